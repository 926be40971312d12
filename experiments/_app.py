"""The command line of the experiments: parses, calls, prints."""

from __future__ import annotations

from typing import Annotated

import typer

from experiments import _reproduce, _study
from moreauc.cli.app import CommandGroup

app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, add_completion=False, help="The paper's experiments, and studies."
)
app.command()(_reproduce.reproduce)
app.add_typer(_study.app, name="study")


@app.callback()
def _main(
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where in the code an error came up.")] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line."""
    app()
