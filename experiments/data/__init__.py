"""Data sets of the experiments: read from a folder, or downloaded from their public source.

Arguments out of range, missing files and files that are not the set are a `ValueError` that says what was expected.
"""
