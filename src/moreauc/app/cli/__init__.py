"""The command line `moreauc`."""

import logging

from moreauc.app.cli.app import app as app
from moreauc.app.cli.app import main as main

logging.getLogger(__name__).addHandler(logging.NullHandler())  # or warnings would be printed twice
