"""`python -m experiments`: the paper's experiments and the studies of the docs."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from experiments.engine import RECORDS, Record, Setup, Study, read_records, run_missing, select
from moreauc.app.cli.app import CommandGroup
from moreauc.app.cli.console import console, progress_bar, say, text_table, wide_console
from moreauc.app.report.pages import Report

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    help="The paper's experiments and the studies of the docs: run what is missing, make reports of the records.",
)
REPORTS = Path(__file__).parent.parent / "docs" / "reports"
_WIDTH = 120  # of tables where there is no terminal to ask

Names = Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Names of studies; `list` shows them.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Repetitions; by default as many as the plan has.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the results; by default the study's own in docs/reports.")]
Smoke = Annotated[bool, typer.Option("--smoke", help="Run a tiny version on generated data, in seconds.")]


@app.callback()
def _main(
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where in the code an error came up.")] = False,
) -> None:
    pass


@app.command("list")
def list_studies() -> None:
    """List the studies, and how many of their planned runs have records."""
    from experiments.engine import count_records
    from experiments.studies import load_studies

    rows = []
    for study in load_studies().values():
        out = REPORTS / study.folder
        rows.append([study.name, study.title, *map(str, count_records(study, out)), study.data or "generated"])
    columns = ["name", "title", "runs done", "planned", "data"]
    wide_console(_WIDTH).print(text_table("Studies", columns, rows, labels=2))


@app.command()
def run(
    names: Names = None,
    dataset: Annotated[str | None, typer.Option(help="Data sets to run, with commas; all by default.")] = None,
    method: Annotated[str | None, typer.Option(help="Methods to run, with commas; all by default.")] = None,
    seeds: Seeds = None,
    splits: Annotated[int | None, typer.Option(min=1, help="At most this many test splits of bags.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at a time; on a GPU they share it.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda: where networks are trained.")] = "auto",
    data: Annotated[
        Path | None, typer.Option("--data-dir", help="Folder with the data; by default MOREAUC_DATA, or a download.")
    ] = None,
    out: Out = None,
    smoke: Smoke = False,
) -> None:
    """Run what is missing of studies, then make the reports.

    A run that has a record is not repeated: stop the program at any time, and the same command goes on from there.
    """
    place = _device(device)
    if not names and not smoke:
        raise ValueError("run: NAME must be at least one study; only --smoke runs all of them")
    for study, folder in _chosen(names, seeds, out, smoke):
        setup = Setup(folder or Path(tempfile.mkdtemp(prefix=f"experiments-{study.name}-")), data, place)
        tasks = select(
            study.tasks(setup), datasets=_split("dataset", dataset), methods=_split("method", method), splits=splits
        )
        try:
            with progress_bar(f"{study.title}: runs", 1.0) as advance:
                shown = 0.0

                def show(done: int, of: int, advance=advance) -> None:  # type: ignore[no-untyped-def]
                    nonlocal shown
                    advance(done / of - shown)
                    shown = done / of

                run_missing(study, setup, tasks, jobs=jobs, progress=show)
        except KeyboardInterrupt:
            say(f"Stopped: what is done is in {setup.out / RECORDS}, and the same command goes on from there")
            raise typer.Exit(130) from None
        _report(study, setup.out, _command(study, seeds, out, smoke))


@app.command()
def report(names: Names = None, seeds: Seeds = None, out: Out = None, smoke: Smoke = False) -> None:
    """Make tables, figures and pages from the records; by default for all studies that have records."""
    if smoke and out is None:
        raise ValueError("report: out must be given with --smoke: the folder of that run, got none")
    for study, folder in _chosen(names, seeds, out, smoke):
        if names or (folder is not None and (folder / RECORDS).exists()):
            _report(study, folder or REPORTS / study.folder, _command(study, seeds, out, smoke))


@app.command()
def docs(
    check: Annotated[bool, typer.Option("--check", help="Only compare, and fail where a page differs.")] = False,
) -> None:
    """Write the tables of the documentation, between their markers, from the reports."""
    from experiments.docs import update_pages

    changed = update_pages(write=not check)
    lines = [f"{'differs' if check else 'written'}: {name}" for name in changed]
    say(*(lines or ["Every table is as the reports say"]))
    if check and changed:
        raise typer.Exit(1)


def _chosen(
    names: list[str] | None, seeds: int | None, out: Path | None, smoke: bool
) -> list[tuple[Study, Path | None]]:
    """Return studies and their folders; None stands for a new temporary folder."""
    from experiments.studies import load_studies

    known = load_studies()
    for name in names or ():
        if name not in known:
            raise ValueError(f"NAME must be one of {', '.join(known)}, got {name!r}")
    chosen = []
    for name in names or known:
        study = known[name] if seeds is None else known[name].with_seeds(seeds)
        folder = REPORTS / study.folder if out is None else out / study.folder if len(names or known) > 1 else out
        chosen.append((study.smoke() if smoke else study, None if smoke and out is None else folder))
    return chosen


def _command(study: Study, seeds: int | None, out: Path | None, smoke: bool) -> str:
    words = ["python", "-m", "experiments", "run", study.name]
    words += [] if seeds is None else ["--seeds", str(seeds)]
    words += ["--smoke"] if smoke else []
    return shlex.join(words if out is None else [*words, "--out", str(out)])


def _split(option: str, text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [word.strip() for word in text.split(",") if word.strip()]
    if not names:
        raise ValueError(f"run: {option} must be at least one name, several with commas, got {text!r}")
    return names


def _device(name: str) -> str:
    import torch

    able = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    if name == "auto":
        return able[-1]
    if name not in able:
        raise ValueError(f"run: device must be one of auto, {', '.join(able)} on this machine, got {name!r}")
    return name


def _report(study: Study, out: Path, command: str) -> None:
    made = make_report(study, out, command)
    place = console if console.is_terminal else wide_console(_WIDTH)
    for section in made.sections:
        if section.rows:
            place.print(text_table(section.heading, section.columns, section.rows, labels=section.labels))
    say(f"Report: {out / 'index.html'}")


def make_report(study: Study, out: Path, command: str) -> Report:
    """Write `report.json`, figures and page of a study's records; all of it depends on the records only."""
    records = read_records(study, out)
    made = study.report(records, out)
    made.command = command
    times = [record["seconds"] for record in records if "seconds" in record]
    made.seconds = sum(times) if len(times) == len(records) else None
    made.made_with = _versions(records)
    made.write(out)
    return made


def _versions(records: list[Record]) -> dict[str, str]:
    """Return the versions that the runs were made with."""
    found = {name: {record["where"].get(name) for record in records} for name in ("moreauc", "torch", "python")}
    return {name: ", ".join(sorted(known - {None})) or "not recorded" for name, known in found.items()}


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
