"""The commands of the command line, one file each; :mod:`moreauc.cli` puts them together."""
