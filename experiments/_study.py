"""`python -m experiments study`: what the docs claim, as programs that measure it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer

from moreauc.cli.console import (
    console,
    print_table,
    progress_bar,
    say,
)
from moreauc.cli.saved import alone_in
from moreauc.report.pages import Report

app = typer.Typer(no_args_is_help=True, help="Studies: what the docs claim, measured again.")

T = TypeVar("T")
Jobs = Annotated[int, typer.Option(min=1, help="Processes.")]
Trials = Annotated[int, typer.Option(min=1, help="Settings tried for each method and fold.")]


@app.command()
@alone_in("out")
def convergence(
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("reports/convergence"),
    steps: Annotated[int, typer.Option(min=50, help="Iterations of each run.")] = 6000,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each setting, side by side.")] = 16,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
) -> None:
    """Compare tables with the plug-in estimator on problems whose optimum is known.

    Writes report.json, three figures and a page that shows them.
    """
    from rich.table import Table

    from experiments.studies import ConvergenceStudy

    plan = ConvergenceStudy(steps=steps, seeds=seeds, jobs=jobs)
    total = sum(task.steps for task in plan.tasks)
    with progress_bar(f"{len(plan.tasks)} runs, {seeds} seeds each", total) as advance:
        report = plan.report(out, progress=advance)
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
        console.print(*part.text, sep="\n")
    say(f"Report: {out / 'index.html'}")


@app.command()
def keel(
    out: Annotated[Path, typer.Option(help="Folder for the results; what is there is not done again.")] = Path(
        "reports/keel"
    ),
    data: Annotated[
        Path | None, typer.Option("--data-dir", help="Folder with the tables; MOREAUC_DATA by default.")
    ] = None,
    sets: Annotated[str | None, typer.Option(help="Names of tables with commas; all by default.")] = None,
    methods: Annotated[str | None, typer.Option(help="Names of methods with commas; all by default.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions with other folds.")] = 5,
    trials: Trials = 4,
    jobs: Jobs = 2,
    report_only: Annotated[bool, typer.Option("--report", help="Only make the tables from what is there.")] = False,
) -> None:
    """Compare SONX, the baselines and boosted trees on the imbalanced tables of KEEL."""
    from experiments.studies import KeelStudy

    options = {"sets": sets, "methods": methods}
    named = {name: tuple(value.split(",")) for name, value in options.items() if value is not None}
    plan = KeelStudy(folder=data, seeds=seeds, trials=trials, jobs=jobs, **named)
    if not report_only:
        _with_bar("fold", lambda show: plan.run(out, progress=show))
    _show(plan.report(out), out)


@app.command()
@alone_in("out")
def label_noise(
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("reports/label_noise"),
    seeds: Annotated[int, typer.Option(min=2, help="Tables drawn.")] = 6,
    trials: Trials = 4,
    jobs: Jobs = 2,
) -> None:
    """Measure what mislabelled training rows do to SONX, cross entropy and SOTA-s."""
    from experiments.studies import LabelNoiseStudy

    plan = LabelNoiseStudy(seeds=seeds, trials=trials, jobs=jobs)
    _show(_with_bar("run", lambda show: plan.report(out, progress=show)), out)


@app.command()
@alone_in("out")
def thresholds(
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("reports/thresholds"),
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions with other folds.")] = 2,
    trials: Trials = 4,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of the runs for the training objective.")] = 30,
    jobs: Jobs = 2,
) -> None:
    """Compare ways to move the thresholds of the TPAUC loss."""
    from experiments.studies import ThresholdStudy

    plan = ThresholdStudy(seeds=seeds, trials=trials, epochs=epochs, jobs=jobs)
    _show(_with_bar("fold", lambda show: plan.report(out, progress=show)), out)


@app.command()
def bags(
    out: Annotated[Path, typer.Option(help="Folder for the results; what is there is not done again.")] = Path(
        "reports/bags"
    ),
    name: Annotated[str, typer.Option("--set", help="digits, musk2 or fox.")] = "digits",
    data: Annotated[
        Path | None, typer.Option("--data-dir", help="Folder with MUSK2 and Fox; MOREAUC_DATA by default.")
    ] = None,
    methods: Annotated[str | None, typer.Option(help="Names of methods with commas; all by default.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Draws of the data.")] = 5,
    trials: Annotated[int, typer.Option(min=1, max=6, help="Settings tried for each method.")] = 6,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of a run.")] = 60,
    jobs: Jobs = 2,
    report_only: Annotated[bool, typer.Option("--report", help="Only make the tables from what is there.")] = False,
) -> None:
    """Compare SONT with each pooling and the baselines over bags of instances.

    With --seeds 1 --trials 1 it takes about a minute.
    """
    from experiments.studies import BagStudy

    chosen = None if methods is None else tuple(methods.split(","))
    known = cast(Any, name)  # the study says which there are
    plan = BagStudy(known, seeds, trials, epochs, methods=chosen, folder=data, jobs=jobs)
    if not report_only:
        _with_bar("run", lambda show: plan.run(out, progress=show))
    _show(plan.report(out), out)


@app.command()
def groups(
    out: Annotated[Path, typer.Option(help="Folder for the results; what is there is not done again.")] = Path(
        "reports/groups"
    ),
    name: Annotated[str, typer.Option("--set", help="planted, adult, compas or convergence.")] = "planted",
    data: Annotated[
        Path | None, typer.Option("--data-dir", help="Folder with Adult and COMPAS; MOREAUC_DATA by default.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Draws of the data; 10 of planted, 5 of others, 3.")] = None,
    trials: Annotated[int, typer.Option(min=1, max=8, help="Settings tried for each method.")] = 8,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of a run; 120 of planted, 30 of others.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a run of the convergence study.")] = 6000,
    jobs: Jobs = 2,
    report_only: Annotated[bool, typer.Option("--report", help="Only make the tables from what is there.")] = False,
) -> None:
    """Compare SONX over groups with exponentiated weights, ERM and CVaR of samples.

    "convergence" measures the loss of the worst groups against samples drawn, with 8 of 10, 100 and 1000 groups in a
    batch.
    """
    from experiments.studies import GroupConvergenceStudy, GroupStudy

    if name == "convergence":
        whole = GroupConvergenceStudy(seeds or 3, steps, jobs)
        _show(_with_bar("run", lambda show: whole.report(out, progress=show)), out)
        return
    number = seeds or (10 if name == "planted" else 5)
    known = cast(Any, name)  # the study says which there are
    plan = GroupStudy(known, number, trials, epochs, folder=data, jobs=jobs)
    if not report_only:
        _with_bar("run", lambda show: plan.run(out, progress=show))
    _show(plan.report(out), out)


def _with_bar(piece: str, run: Callable[[Callable[[int, int], None]], T]) -> T:
    """Run something that tells how many pieces are done, with a bar."""
    with progress_bar(f"every {piece}", 1.0) as advance:
        shown = 0.0

        def show(done: int, total: int) -> None:
            nonlocal shown
            advance(done / total - shown)
            shown = done / total

        return run(show)


def _show(report: Report, out: Path) -> None:
    for section in report.sections:
        if section.rows:
            print_table(section.heading, section.columns, section.rows)
    say(f"Report: {out / 'index.html'}")
