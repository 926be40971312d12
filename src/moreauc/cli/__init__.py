"""The command line `moreauc`."""

import logging

from moreauc.cli.app import app, main

__all__ = ["app", "main"]

logging.getLogger(__name__).addHandler(logging.NullHandler())  # or warnings would be printed twice
