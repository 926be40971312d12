"""The command line: parses, calls, prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

import moreauc

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Losses and solvers for when the mean loss is wrong."
)
study = typer.Typer(no_args_is_help=True, help="Studies that show the theory at work.")
app.add_typer(study, name="study")
console = Console()


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        console.print(moreauc.__version__)
        raise typer.Exit


@study.command()
def convergence(
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("reports/convergence"),
    steps: Annotated[int, typer.Option(min=50, help="Iterations of each run.")] = 6000,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each setting, side by side.")] = 16,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
) -> None:
    """Compare tables with the plug-in estimator on problems whose optimum is known.

    Writes report.json, three figures and a page that shows them.
    """
    from moreauc.studies import ConvergenceStudy

    plan = ConvergenceStudy(steps=steps, seeds=seeds, jobs=jobs)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    total = sum(task.steps for task in plan.tasks)
    try:
        with Progress(*columns, console=console) as progress:
            bar = progress.add_task(f"{len(plan.tasks)} runs, {seeds} seeds each", total=total)
            report = plan.report(out, progress=lambda done: progress.advance(bar, done))
    except ModuleNotFoundError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(1) from error
    section = report.sections[0]
    table = Table(title="Stationarity and gap to the optimum, mean ± std over seeds", title_justify="left")
    for number, name in enumerate(section.columns[:4]):
        table.add_column(name, justify="left" if number < 2 else "right")
    last = None
    for row in section.rows:
        if last not in (None, row[0]):
            table.add_section()
        table.add_row("" if row[0] == last else row[0], *row[1:4])
        last = row[0]
    console.print(table)
    for part in report.sections[1:]:
        console.print(*part.text, sep="\n", highlight=False)
    console.print(f"Report: {out / 'index.html'}", highlight=False)


def main() -> None:
    """Run the command line."""
    app()
