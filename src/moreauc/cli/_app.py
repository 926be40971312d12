"""The command line: parses, calls, prints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup

import moreauc
from moreauc._printable import printable
from moreauc.cli import (
    compare,
    evaluate,
    fit,
    predict,
)
from moreauc.cli._console import complain, say
from moreauc.train.interrupt import Interrupted


@contextmanager
def _printable_usage() -> Iterator[None]:
    """Spell out what would act on the terminal in messages about words of the command line, which name files."""
    try:
        yield
    except click.UsageError as error:
        lines = error.format_message().split("\n")  # which a help text has
        shown = [printable(line) for line in lines]
        if shown == lines:
            raise
        raise click.UsageError("\n".join(shown), error.ctx) from error


class CommandGroup(TyperGroup):
    """Turns an error about the input into one line and exit code 2, a signal while training into 130 or 143."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        with _printable_usage():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _printable_usage():
                return super().invoke(ctx)
        except Interrupted as interrupt:  # which has saved the training
            complain(f"{interrupt} with --resume")
            raise typer.Exit(interrupt.exit_code) from interrupt
        except KeyboardInterrupt as interrupt:
            complain(*getattr(interrupt, "__notes__", ()))  # where a model is that was trained before
            raise
        except (ValueError, OSError, ModuleNotFoundError) as error:
            if ctx.params["traceback"]:
                raise
            text = " ".join(" ".join([str(error), *getattr(error, "__notes__", ())]).split())
            complain(f"error: {text}")
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    help="Losses and solvers for when the mean loss is wrong.",
)
app.command()(fit.fit)
app.command()(evaluate.evaluate)
app.command()(predict.predict)
app.command()(compare.compare)


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where in the code an error came up.")] = False,
) -> None:
    if version:
        say(moreauc.__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line."""
    app()
