"""`moreauc evaluate`: how well a saved model does on a labelled table."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from moreauc.cli import _options as options
from moreauc.cli._bag_table import BagTable, match_bags
from moreauc.cli._console import (
    already_told,
    command_line,
    print_table,
    say,
    warn,
)
from moreauc.cli._evaluation import COLUMNS, check_rows
from moreauc.cli._fit_bags import evaluate_bags
from moreauc.cli._fit_groups import read_group_rows
from moreauc.cli._group_evaluation import evaluate_groups, group_rows, summary_columns
from moreauc.cli._run_folder import (
    PAGE,
    alone_in,
    check_free,
    run_folder,
)
from moreauc.cli._saved import (
    SavedBagModel,
    SavedGroupModel,
    SavedModel,
    load_model,
)
from moreauc.cli._test_rows import name_known
from moreauc.cli.fit import evaluate_model
from moreauc.data.columns import match_target
from moreauc.data.duplicates import hash_rows
from moreauc.data.tables import read_texts


@alone_in("out")
def evaluate(
    run: options.Run,
    data: options.Data,
    out: Annotated[Path | None, typer.Option(help="Folder for a report; none by default.", show_default=False)] = None,
    force: options.Force = False,
) -> None:
    """Score a labelled table with a saved model, of rows, of bags or of groups.

    Prints TPAUC with its bootstrap interval, AUC, and the rates at the model's threshold; for a model of groups how
    every group fares. With --out leaves report.html, report.json and log.txt. The model file is a pickle: use only
    those of people you trust.
    """
    begin = time.perf_counter()
    if out is not None:
        check_free(out, force=force)
    saved = load_model(run)
    with already_told():
        if isinstance(saved, SavedGroupModel):
            _evaluate_groups(run, data, out, force, saved, begin)
        elif isinstance(saved, SavedBagModel):
            _evaluate_bags(run, data, out, force, saved, begin)
        else:
            _evaluate_rows(run, data, out, force, saved, begin)


def _evaluate_rows(run: Path, data: Path, out: Path | None, force: bool, saved: SavedModel, begin: float) -> None:
    from moreauc.cli._pages import evaluate_report
    from moreauc.methods import METHODS

    frame, labels = match_target(read_texts(data), saved.target, source=str(data))
    check_rows(labels, str(data), min_tpr=saved.min_tpr, max_fpr=saved.max_fpr)
    features = saved.features(frame, str(data))
    unknown = saved.check_levels(features, str(data))
    warn(*name_known(saved.trained_on, hash_rows(features), data))
    title = METHODS["rows"][saved.model.loss].title
    if out is None:
        evaluation = evaluate_model(title, saved.model, features, labels)
    else:
        with run_folder(out, force=force) as folder:
            evaluation = evaluate_model(title, saved.model, features, labels)
            report = evaluate_report(
                data,
                command_line("evaluate", run, data, out=out),
                f"{title} of {run.name} on {data.name}",
                labels,
                saved.model.decision_function(features),
                saved.model,
                evaluation,
                unknown,
            )
            report.seconds = time.perf_counter() - begin
            report.write(folder, PAGE)
    print_table(f"{data.name}: {len(labels)} rows, {labels.sum()} positives", COLUMNS, [evaluation.row])
    warn(*evaluation.warnings)
    if out is not None:
        say(f"Report: {out / PAGE}")


def _evaluate_bags(run: Path, data: Path, out: Path | None, force: bool, saved: SavedBagModel, begin: float) -> None:
    from moreauc.cli._bag_pages import evaluate_bags_report
    from moreauc.methods import METHODS

    frame = read_texts(data)
    codes, names, labels = match_bags(frame, saved.bags, saved.target, source=str(data))
    check_rows(labels, str(data), min_tpr=saved.min_tpr, max_fpr=saved.max_fpr, unit="bags")
    table = BagTable(saved.features(frame, str(data)), codes, names, labels)
    unknown = saved.check_levels(table.features, str(data))
    warn(*name_known(saved.trained_on, table.hashes(), data, unit="bags"))
    bags, title = table.encode(saved.encoder), METHODS["bags"][saved.model.loss].title
    if out is None:
        evaluation = evaluate_bags(title, saved.model, bags, labels)
    else:
        with run_folder(out, force=force) as folder:
            evaluation = evaluate_bags(title, saved.model, bags, labels)
            command, heading = command_line("evaluate", run, data, out=out), f"{title} of {run.name} on {data.name}"
            report = evaluate_bags_report(data, command, heading, table, bags, saved.model, evaluation, unknown)
            report.seconds = time.perf_counter() - begin
            report.write(folder, PAGE)
    print_table(f"{data.name}: {len(names)} bags, {labels.sum()} positives", COLUMNS, [evaluation.row])
    warn(*evaluation.warnings)
    if out is not None:
        say(f"Report: {out / PAGE}")


def _evaluate_groups(
    run: Path, data: Path, out: Path | None, force: bool, saved: SavedGroupModel, begin: float
) -> None:
    from moreauc.cli._group_pages import evaluate_groups_report
    from moreauc.methods import METHODS

    rows = read_group_rows(data, saved.kinds, saved.target, saved.groups)
    unknown = saved.check_levels(rows.features, str(data))
    warn(*name_known(saved.trained_on, hash_rows(rows.features), data))
    title = METHODS["groups"][saved.model.loss].title
    if out is None:
        evaluation = evaluate_groups(title, saved.model, rows)
    else:
        with run_folder(out, force=force) as folder:
            evaluation = evaluate_groups(title, saved.model, rows)
            command, heading = command_line("evaluate", run, data, out=out), f"{title} of {run.name} on {data.name}"
            report = evaluate_groups_report(data, command, heading, rows, saved.model, evaluation, unknown)
            report.seconds = time.perf_counter() - begin
            report.write(folder, PAGE)
    print_table(f"{data.name}: {len(rows.values)} rows", summary_columns(evaluation), [evaluation.row])
    print_table(*group_rows(evaluation))
    if out is not None:
        say(f"Report: {out / PAGE}")
