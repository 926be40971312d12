"""The command line: parses, calls, prints."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import moreauc
from moreauc._interrupt import Interrupted
from moreauc.commands import compare, evaluate, fit, predict, reproduce, study
from moreauc.commands._console import say


class _Group(TyperGroup):
    """Turns an error about the input into one line and exit code 2, a signal while training into 130 or 143."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Interrupted as interrupt:  # which has saved the training
            typer.echo(f"{interrupt} with --resume", err=True)
            raise typer.Exit(interrupt.exit_code) from interrupt
        except (ValueError, OSError, ModuleNotFoundError) as error:
            if ctx.params["traceback"]:
                raise
            text = " ".join(" ".join([str(error), *getattr(error, "__notes__", ())]).split())
            typer.echo(f"error: {text}", err=True)
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=_Group, no_args_is_help=True, add_completion=False, help="Losses and solvers for when the mean loss is wrong."
)
app.command()(fit.fit)
app.command()(evaluate.evaluate)
app.command()(predict.predict)
app.command()(compare.compare)
app.command()(reproduce.reproduce)
app.add_typer(study.app, name="study")


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


if __name__ == "__main__":  # without this `python -m moreauc.cli` would do nothing, and say nothing
    main()
