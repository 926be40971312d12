"""The command line `moreauc`."""

import logging

from moreauc.cli.app import app as app
from moreauc.cli.app import main as main

logging.getLogger(__name__).addHandler(logging.NullHandler())  # or warnings would be printed twice
