"""The command line: parses the options, calls the command, and turns errors into one line."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import moreauc
from moreauc.app.cli.console import complain, say
from moreauc.app.cli.options import COMMANDS, signature

_UsageError: Any = typer.BadParameter.__mro__[1]  # typer has a click of its own, and does not export this class of it


@contextmanager
def _short_usage() -> Iterator[None]:
    """Say what is wrong with the words of the command line in one line."""
    try:
        yield
    except _UsageError as error:
        text = error.format_message()
        if not text or "\n" in text:  # a help text, which it prints itself
            raise
        command = "moreauc" if error.ctx is None else error.ctx.command_path
        complain(f"error: {text[:1].lower()}{text[1:].rstrip('.')}; see {command} --help")
        raise typer.Exit(2) from error


class CommandGroup(TyperGroup):
    """Turns an error about the input into one line and exit code 2, a signal while training into 130 or 143."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the words of the command line."""
        with _short_usage():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            with _short_usage():
                return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            from moreauc.checkpoint import Interrupted  # here, so that --help does not wait for it

            if isinstance(interrupt, Interrupted):  # the training is saved
                complain(f"{interrupt} with --resume")
                raise typer.Exit(interrupt.exit_code) from interrupt
            complain(*getattr(interrupt, "__notes__", ()))  # where an already trained model is
            raise
        except BrokenPipeError:  # the reader has closed the pipe; click ends the process silently
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
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train, test and compare models for partial AUC, bags of instances and worst groups.",
)


def _command(name: str) -> Callable[..., None]:
    """Return a command, whose module is imported when it is called."""
    options = COMMANDS[name]

    def call(**values: object) -> None:
        getattr(import_module(f"moreauc.app.cli.{name}"), name)(options(**values))

    call.__signature__ = signature(name)  # type: ignore[attr-defined]
    call.__doc__ = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(options.__doc__ or ""))  # one line a paragraph
    return call


for _name in COMMANDS:
    app.command(_name)(_command(_name))


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show the full traceback of an error.")] = False,
) -> None:
    if version:
        say(moreauc.__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line."""
    if "_MOREAUC_COMPLETE" in os.environ:
        os.environ["COLUMNS"] = "1000"  # or a long help text is wrapped, and its second line offered as a word
    app(prog_name="moreauc")  # also for `python -m moreauc`
