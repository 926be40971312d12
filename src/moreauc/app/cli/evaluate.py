"""`moreauc evaluate`: how well a saved model does on a labelled table."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from moreauc.app.cli.console import command_line, print_table, say, warn, without_column_warnings
from moreauc.app.cli.options import EvaluateOptions
from moreauc.app.cli.saved import PAGE, check_free, load_model, locked_folders, run_folder
from moreauc.app.cli.screen import of_molecules
from moreauc.app.report.pages import Report
from moreauc.app.report.verdict import Evaluated
from moreauc.app.tables.base import Inputs, Model, Table, TableTask, known_rows, unknown_levels
from moreauc.app.tables.files import read_texts


def evaluate(options: EvaluateOptions) -> None:
    """Run the command."""
    with locked_folders(out=options.out), without_column_warnings():
        _evaluate(options)


def _evaluate(options: EvaluateOptions) -> None:
    begin = time.perf_counter()
    run, data, out = options.run, options.data, options.out
    if out is not None:
        check_free(out, force=options.force)
    saved = load_model(run)
    task, model = of_molecules(saved.task, options), saved.model
    table = task.match(read_texts(data), source=str(data))
    doubts, unknown = unknown_levels(task.schema, table.features, str(data))
    warn(*table.notes, *doubts, *known_rows(saved.trained_on, table.hashes(), data, unit=task.unit))
    title, inputs = model.title, task.inputs(table)
    with nullcontext() if out is None else run_folder(out, force=options.force) as folder:
        evaluation = task.evaluate(title, model, inputs, table)
        if folder is not None:
            command, heading = command_line("evaluate", run, data, out=out), f"{title} of {run.name} on {data.name}"
            report = evaluate_report(data, command, heading, task, table, model, evaluation, inputs, unknown)
            report.seconds = time.perf_counter() - begin
            report.write(folder, PAGE)
    for cells in task.printed(f"{data.name}: {task.headline(table)}", [evaluation]):
        print_table(*cells)
    warn(*evaluation.warnings)
    if out is not None:
        say(f"Report: {out / PAGE}")


def evaluate_report(
    data: Path,
    command: str,
    heading: str,
    task: TableTask[Any, Any, Any],
    table: Table,
    model: Model,
    evaluation: Evaluated,
    inputs: Inputs,
    unknown: dict[str, float],
) -> Report:
    """Return the report of a saved model on another table; `unknown` is the share of unknown levels of each column."""
    text = []
    if unknown:
        listed = ", ".join(f"{name} {share:.1%}" for name, share in unknown.items())
        text = [f"Share of levels that were not there in training, by column: {listed}."]
    sections, further = task.result([evaluation], model, inputs, table, [])
    results = {
        "data": {"file": str(data), **task.counts(table), "unknown_levels": unknown},
        "test": [evaluation.to_dict()],
        **further,
    }
    return Report(heading, command, results, [*sections, task.data_section({data.name: table}, text)])
