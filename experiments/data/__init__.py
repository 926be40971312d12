"""Data sets of the experiments: read from a folder, or downloaded from their public source."""
