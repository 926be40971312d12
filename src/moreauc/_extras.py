"""Optional dependencies: an error that names the extra to install."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def import_extra(module: str, extra: str) -> Any:
    """Import `module`, or say which extra brings it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and module.split(".")[0] != error.name.split(".")[0]:
            raise
        package = module.split(".")[0]
        raise ModuleNotFoundError(
            f"this needs {package}, which is not installed; install it with: pip install 'moreauc[{extra}]'",
            name=error.name,
        ) from error
