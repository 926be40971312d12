"""`moreauc compare`: SONX, the baselines and boosted trees on one table, by cross-validation."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from moreauc._checks import check_region
from moreauc.cli import _options as options
from moreauc.cli._console import (
    already_told,
    command_line,
    print_table,
    progress_bar,
    say,
    warn,
)
from moreauc.cli._evaluation import Array
from moreauc.cli._run_folder import (
    PAGE,
    alone_in,
    check_free,
    run_folder,
)
from moreauc.cli._test_rows import name_equal
from moreauc.data._doubtful import doubtful_columns
from moreauc.data.columns import check_features, drop_columns, split_target
from moreauc.data.duplicates import hash_rows
from moreauc.data.tables import TableError, read_texts
from moreauc.metrics.ties import ties_text
from moreauc.report.pages import Report

_LOGGER = logging.getLogger("moreauc.cli.compare")
BOOSTERS = {"lightgbm": "LightGBM", "xgboost": "XGBoost"}
COLUMNS = ("method", "TPAUC", "std", "rank", "seconds")


@alone_in("out")
def compare(
    out: options.Out,
    data: Annotated[
        Path | None, typer.Argument(metavar="[DATA]", help="Table: .csv, .tsv, .parquet or .pq.", show_default=False)
    ] = None,
    target: Annotated[str | None, typer.Option(help="Column with the two classes of DATA.", show_default=False)] = None,
    example: Annotated[
        str | None,
        typer.Option(help="A table of scikit-learn instead: digits, breast_cancer or diabetes.", show_default=False),
    ] = None,
    positive: options.Positive = None,
    min_tpr: options.MinTPR = 0.5,
    max_fpr: options.MaxFPR = 0.5,
    methods: Annotated[
        str | None,
        typer.Option(help="Names with commas, such as sonx,ce,lightgbm; all by default.", show_default=False),
    ] = None,
    folds: Annotated[int, typer.Option(min=2, help="Folds of the cross-validation.")] = 5,
    inner_folds: Annotated[
        int, typer.Option(min=2, help="Folds of the training rows that settings are chosen by.")
    ] = 3,
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions with other folds.")] = 1,
    trials: Annotated[int, typer.Option(min=1, help="Settings tried for each method and fold.")] = 8,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    drop: options.Drop = None,
    force: options.Force = False,
) -> None:
    """Compare SONX with the baselines and boosted trees on a table, by cross-validation.

    Every method gets the same number of settings to try. Leaves report.html, report.json and log.txt in the folder OUT.
    LightGBM and XGBoost take part where they are installed (extra "boosting").
    """
    from moreauc.cli._compare_page import compare_numbers, compare_report
    from moreauc.comparison import Comparison

    begin = time.perf_counter()
    check_region("moreauc compare", min_tpr, max_fpr)
    chosen, missing = choose_methods(methods)
    check_free(out, force=force)
    features, labels, description = read_data(data, target, example, positive, drop or [])
    plan = Comparison(
        methods=chosen,
        regions=((min_tpr, max_fpr),),
        folds=folds,
        inner_folds=inner_folds,
        seeds=seeds,
        trials=trials,
        jobs=jobs,
    )
    say(description, *missing)
    doubts = [*doubtful_columns(features), *name_equal(hash_rows(features), "the folds are")]
    warn(*doubts)
    with run_folder(out, force=force) as folder, already_told():
        _LOGGER.info("%s", description)
        for line in doubts:
            _LOGGER.warning("%s", line)
        for line in missing:
            _LOGGER.info("%s", line)
        with progress_bar(f"{len(chosen)} methods, {folds} folds", len(plan.tasks())) as advance:

            def show(done: int, total: int) -> None:
                _LOGGER.info("%d of %d pieces of work done", done, total)
                advance(1.0)

            result = plan.run(features, labels, progress=show)
        for row in result.rows:
            _LOGGER.info("%s: TPAUC %.4f, std %.4f, %.1f s", row["title"], row["mean"], row["std"], row["seconds"])
        command = command_line(
            *("compare", data),
            **{"target": target, "example": example, "positive": positive, "min_tpr": min_tpr, "max_fpr": max_fpr},
            **{"out": out, "methods": methods, "folds": folds, "inner_folds": inner_folds, "seeds": seeds},
            **{"trials": trials, "drop": drop},
        )
        name = example if data is None else data.name
        title, lines = f"Comparison on {name}", [description, *missing, *doubts]
        # at once: a figure that fails costs no training
        numbers = Report(title, command, compare_numbers(lines, result), seconds=time.perf_counter() - begin)
        numbers.write_numbers(folder)
        report = compare_report(title, command, lines, result)
        report.seconds = time.perf_counter() - begin
        report.write(folder, PAGE)
        _LOGGER.info("done in %.1f s", report.seconds)
    times = "1 seed" if seeds == 1 else f"{seeds} seeds"
    print_table(f"TPAUC over {folds} folds and {times}", COLUMNS, [table_row(row) for row in ranked(result.rows)])
    warn(*tie_warnings(result.rows))
    say(f"Report: {out / PAGE}")


def choose_methods(names: str | None) -> tuple[tuple[str, ...], list[str]]:
    """Return the methods to compare, and a line for each booster that would have come along were it installed.

    Raises:
        ValueError: for an unknown method, one given twice, or a booster that was asked for and is not installed.
    """
    from moreauc.methods import METHODS

    absent = [name for name in BOOSTERS if find_spec(name) is None]
    advice = "is not installed; pip install 'moreauc[boosting]' brings it"
    if names is None:
        present = tuple(name for name in BOOSTERS if name not in absent)
        return (*METHODS["rows"], *present), [f"{BOOSTERS[name]} is left out: it {advice}" for name in absent]
    chosen = tuple(name.strip() for name in names.split(","))
    known = (*METHODS["rows"], *BOOSTERS)
    for name in chosen:
        if name not in known:
            raise ValueError(f"moreauc compare: --methods must be of {', '.join(known)}, got {name!r}")
        if chosen.count(name) > 1:
            raise ValueError(f"moreauc compare: --methods must name each once, got {name!r} more than once")
        if name in absent:
            raise ValueError(f"moreauc compare: {BOOSTERS[name]} {advice}")
    return chosen, []


def read_data(
    data: Path | None, target: str | None, example: str | None, positive: str | None, drop: list[str]
) -> tuple[pd.DataFrame, Array, str]:
    """Read a file or an example; return columns, labels and what they are in words.

    Raises:
        ValueError: if both or neither are given, or the table cannot be used.
    """
    if (data is None) == (example is None):
        raise TableError("give a table or --example, not both" if data else "give a table with --target, or --example")
    if example is not None:
        from moreauc.data.examples import load_example

        if target is not None or positive is not None or drop:
            raise TableError("--target, --positive and --drop go with a table of yours, not with --example")
        return load_example(example)
    if target is None:
        raise TableError(f"{data}: --target must name the column with the two classes")
    frame, labels, classes = split_target(read_texts(str(data)), target, positive=positive, source=str(data))
    features, _ = check_features(drop_columns(frame, drop, source=str(data)), source=str(data))
    description = (
        f"{data}: {labels.sum()} of {len(labels)} rows are positive ({target} = {classes.positive}, {classes.reason})."
    )
    return features, labels, description


def ranked(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a comparison, the best first."""
    return sorted(rows, key=lambda row: row["rank"])


def tie_warnings(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each method whose test scores are tied in more than a tenth of the region's rows."""
    texts = ((row["title"], ties_text(row["tied"])) for row in ranked(rows))
    return [f"{title}: {text}" for title, text in texts if text is not None]


def table_row(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a table with the head `COLUMNS`."""
    return (row["title"], f"{row['mean']:.4f}", f"± {row['std']:.4f}", f"{row['rank']:g}", f"{row['seconds']:.1f}")
