"""The commands of the command line, one file each; :mod:`moreauc.cli` puts them together."""

import logging

# What commands log goes to the log of a run. Where there is none, as in `evaluate` without --out, logging itself would
# print warnings, which the commands print already.
logging.getLogger(__name__).addHandler(logging.NullHandler())
