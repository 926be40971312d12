"""What the commands print: results on standard output, warnings and progress on standard error."""

from __future__ import annotations

import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from moreauc._system import printable
from moreauc.app.cli.options import CompareOptions, FitOptions

# Texts of users, such as names of files, may look like markup (`[bold]`, `:key:`) and are none.
_plain_console = partial(Console, markup=False, emoji=False, highlight=False)
console, errors = _plain_console(), _plain_console(stderr=True)
_LABEL = 10  # letters that a name must have room for
PAUSE = 10.0  # seconds between two lines of progress where there is no terminal


def wide_console(width: int) -> Console:
    """Return a console like the one for standard output, of another width."""
    return _plain_console(width=width)


def say(*lines: str) -> None:
    """Print lines as they are: no colours, no wrapping inside a path, no control characters."""
    for line in lines:
        console.print(printable(line), soft_wrap=True)


def complain(*lines: str) -> None:
    """Print lines on standard error as :func:`say` does."""
    for line in lines:
        errors.print(printable(line), soft_wrap=True)


def warn(*lines: str) -> None:
    """Print warnings on standard error."""
    for line in lines:
        errors.print(printable(f"warning: {line}"), soft_wrap=True)


@contextmanager
def without_column_warnings() -> Iterator[None]:
    """Suppress the warnings of the estimators about columns, which the command has printed already."""
    from moreauc.data.schema import ColumnWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ColumnWarning)
        yield


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first column is text and whose others are numbers."""
    console.print(text_table(title, columns, rows))


def text_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, labels: int = 1) -> Table:
    """Return a table for a console; the first `labels` columns are texts, the others numbers."""
    table = Table(title=printable(title), title_justify="left")
    cells = [[printable(text) for text in row] for row in rows]
    words = [*zip(*cells, strict=True)] if cells else [()] * len(columns)
    # heads may take two lines, numbers not, where there is room for them
    widths = [max(map(len, [*own, *printable(head).split()])) for own, head in zip(words, columns, strict=True)]
    room = console.width - sum(widths[labels:]) - 3 * len(columns) - 1
    for number, column in enumerate(columns):
        if number < labels:
            table.add_column(printable(column))
        else:
            table.add_column(printable(column), justify="right", width=widths[number] if room > _LABEL else None)
    for row in cells:
        table.add_row(*row)
    return table


@contextmanager
def progress_bar(text: str, total: float) -> Iterator[Callable[[float], None]]:
    """Show progress and time left on standard error: a bar on a terminal, else a line now and then.

    Yields the function that advances it.
    """
    if not errors.is_terminal:
        yield _progress_lines(text, total)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(None),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, expand=True) as progress:
        bar = progress.add_task(printable(text), total=total)
        yield lambda done: progress.advance(bar, done)


def _progress_lines(text: str, total: float) -> Callable[[float], None]:
    began = told = time.monotonic()
    sum_done = 0.0

    def advance(done: float) -> None:
        nonlocal told, sum_done
        sum_done += done
        now = time.monotonic()
        if now - told >= PAUSE and sum_done > 0.0:
            told = now
            left = (now - began) * (total - sum_done) / sum_done
            complain(f"{text}: {sum_done / total:.0%}, {now - began:.0f} s, about {left:.0f} s left")

    return advance


def same_command(command: str, options: FitOptions | CompareOptions, *left_out: str) -> str:
    """Return the command that gives the same report again."""
    names = [field.name for field in fields(options) if field.name not in ("data", "force", *left_out)]
    return command_line(command, options.data, **{name: getattr(options, name) for name in names})


def command_line(*words: str | Path | float | None, **options: object) -> str:
    """Return a command as one would type it; options that are None or False are left out.

    Example:
        >>> command_line("fit", "my data.csv", max_fpr=0.4, drop=["id", "name"], force=False)
        "moreauc fit 'my data.csv' --max-fpr 0.4 --drop id --drop name"
    """
    parts = ["moreauc", *(str(word) for word in words if word is not None)]
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            parts.append(option)
        elif value is not None and value is not False:
            for entry in value if isinstance(value, list | tuple) else [value]:
                parts += [option, str(entry)]
    return shlex.join(parts)
