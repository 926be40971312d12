"""`moreauc evaluate`: how well a saved model does on a labelled table."""

from __future__ import annotations

import time
from contextlib import nullcontext

from moreauc.app.cli.console import command_line, print_table, say, warn, without_column_warnings
from moreauc.app.cli.options import EvaluateOptions
from moreauc.app.cli.saved import PAGE, check_free, load_model, locked_folders, run_folder
from moreauc.app.cli.screen import of_molecules
from moreauc.app.report.pages import Report
from moreauc.app.tables.base import Tested, known_rows, unknown_levels
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
            sections, further = task.result(Tested(model, inputs, table, [evaluation]))
            listed = ", ".join(f"{name} {share:.1%}" for name, share in unknown.items())
            text = [f"Share of levels that were not there in training, by column: {listed}."] if unknown else []
            facts = {"file": str(data), **task.counts(table), "unknown_levels": unknown}
            report = Report(
                f"{title} of {run.name} on {data.name}",
                command_line("evaluate", run, data, out=out),
                {"data": facts, "test": [evaluation.to_dict()], **further},
                [*sections, task.data_section({data.name: table}, text)],
                time.perf_counter() - begin,
            )
            report.write(folder, PAGE)
    for cells in task.printed(f"{data.name}: {task.headline(table)}", [evaluation]):
        print_table(*cells)
    warn(*evaluation.warnings)
    if out is not None:
        say(f"Report: {out / PAGE}")
