"""`python -m experiments reproduce`: the paper's experiments; runs that are there are not done again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.config import EXPERIMENTS, Experiment, load_experiment
from moreauc.cli.console import (
    command_line,
    console,
    progress_bar,
    say,
    text_table,
    wide_console,
)
from moreauc.report.pages import Report

_WIDTH = 120  # of tables where there is no terminal to ask


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="EXPERIMENT", help=f"{', '.join(EXPERIMENTS)}; with --report all of them.", show_default=False
        ),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Data sets to run, names with commas; all by default.", show_default=False)
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Methods to run, names with commas; all by default.", show_default=False)
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Seeds of molecules, folds of bags; 5 of either by default.", show_default=False),
    ] = None,
    splits: Annotated[
        int | None, typer.Option(min=1, help="Test splits of bags, at most; 6 by default.", show_default=False)
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes, on one GPU or as many cores.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda; auto is cuda where there is one.")] = "auto",
    data: Annotated[
        Path | None,
        typer.Option("--data-dir", help="Folder with the data; MOREAUC_DATA, or a download, by default."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results; reports/experiments/EXPERIMENT by default, below docs in a checkout.",
            show_default=False,
        ),
    ] = None,
    report_only: Annotated[
        bool, typer.Option("--report", help="Only make tables and figures of what is there.")
    ] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="A tiny version on data made here, in seconds.")] = False,
) -> None:
    """Run one of the paper's experiments and make its tables.

    Runs are small files; those that are there are not done again, so that it can be stopped at any time and goes on
    where it was. The tables show all that is there, whatever was chosen to be run.
    """
    datasets, methods = _names("dataset", dataset), _names("method", method)
    for known, folder in _folders(name, out, report_only, smoke):
        plan = load_experiment(known)
        if smoke:
            from experiments.smoke import smoke_plan

            plan = smoke_plan(plan)
        with _place(folder, known) as place:
            if not report_only:
                _run(plan, place, datasets, methods, seeds, splits, jobs, device, data)
            named = place if folder is None or out is not None else None
            _report(plan, place, command_line("reproduce", known, report=True, smoke=smoke, out=named))
            if folder is None:
                say(f"The files of this trial stay in {place}")


@contextmanager
def _place(folder: Path | None, name: str) -> Iterator[Path]:
    """Give the folder, or a new one for files that nobody keeps; it is gone again where nothing was put into it."""
    if folder is not None:
        yield folder
        return
    made = Path(tempfile.mkdtemp(prefix=f"moreauc-{name}-"))
    try:
        yield made
    finally:
        with suppress(OSError):  # it is not empty
            made.rmdir()


def _folders(name: str | None, out: Path | None, report_only: bool, smoke: bool) -> list[tuple[str, Path | None]]:
    """Return the experiments to look at, and their folders; None for a new one."""
    if smoke and report_only and out is None:
        raise ValueError("reproduce: out must be given for --report with --smoke: the folder of the trial, got none")
    if name is not None and name not in EXPERIMENTS:
        raise ValueError(f"reproduce: EXPERIMENT must be one of {', '.join(EXPERIMENTS)}, got {name!r}")
    if name is not None:
        return [(name, out if out is not None else None if smoke else _default(name))]
    if not report_only:
        raise ValueError(f"reproduce: EXPERIMENT must be one of {', '.join(EXPERIMENTS)}; only --report needs none")
    places = [(known, _default(known) if out is None else out / known) for known in EXPERIMENTS]
    found: list[tuple[str, Path | None]] = [
        (known, place) for known, place in places if any((place / "runs").glob("*.json"))
    ]
    if not found:
        looked = ", ".join(str(place / "runs") for _, place in places)
        raise ValueError(f"reproduce: out must hold runs of an experiment, got none in {looked}")
    return found


def _default(name: str) -> Path:
    place = Path("reports/experiments") / name
    in_checkout = Path("docs") / place
    return in_checkout if in_checkout.is_dir() else place


def _names(option: str, text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [word.strip() for word in text.split(",") if word.strip()]
    if not names:
        raise ValueError(f"reproduce: {option} must be at least one name, several with commas, got {text!r}")
    return names


def _run(
    plan: Experiment,
    out: Path,
    datasets: list[str] | None,
    methods: list[str] | None,
    seeds: int | None,
    splits: int | None,
    jobs: int,
    device: str,
    folder: Path | None,
) -> None:
    """Do what is missing, and say how much that is."""
    from experiments import runs
    from experiments.records import read_records

    place = _device(device)
    wanted: dict[str, Any] = {"datasets": datasets, "methods": methods, "runs": seeds, "splits": splits}
    work = runs.plan_work(plan, out, folder=folder, device=place, **wanted)
    read_records(plan, out)  # a file of another plan is better found now than after hours
    missing = {kind: [n for n in names if not (out / kind / f"{n}.json").exists()] for kind, names in work.items()}
    say(_state(plan, out, len(work["runs"]), len(missing["runs"]), len(missing["ablation"]), place))
    total = sum(len(names) for names in missing.values())
    if not total:
        return
    try:
        with progress_bar(f"{plan.title}, {total} files", total) as advance:
            runs.reproduce(
                plan, out, folder=folder, device=place, jobs=jobs, progress=lambda done, of: advance(1), **wanted
            )
    except KeyboardInterrupt:
        left = sum(not (out / kind / f"{n}.json").exists() for kind, names in missing.items() for n in names)
        say(f"Stopped: {total - left} of {total} files are done and kept, the same command goes on from there")
        raise typer.Exit(130) from None


def _state(plan: Experiment, out: Path, planned: int, missing: int, curves: int, device: str) -> str:
    text = f"{plan.title}: {planned - missing} of {planned} runs are there, {missing} missing"
    if curves:
        text += f", {curves} training curves missing"
    return f"{text}; on {device}, to {out / 'runs'}"


def _device(name: str) -> str:
    import torch

    able = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    if name == "auto":
        return able[-1]
    if name not in able:
        raise ValueError(f"reproduce: device must be one of auto, {', '.join(able)} on this machine, got {name!r}")
    return name


def _report(plan: Experiment, out: Path, command: str) -> None:
    from experiments.report import make_report

    _show(make_report(plan, out, command=command), out)


def _show(report: Report, out: Path) -> None:
    place = console if console.is_terminal else wide_console(_WIDTH)
    for section in report.sections:
        if section.rows:
            place.print(text_table(section.heading, section.columns, section.rows, labels=section.labels))
            say(*section.text[1:])  # the first paragraph explains the table, on the page
    say(f"Report: {out / 'index.html'}")
