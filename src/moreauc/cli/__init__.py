"""The command line `moreauc`."""

from moreauc.cli._app import app, main

__all__ = ["app", "main"]
