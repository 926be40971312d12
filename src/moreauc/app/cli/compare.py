"""`moreauc compare`: SONX and every baseline on one table, by cross-validation."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from moreauc._checks import check_choice, check_region
from moreauc._registry import ADVICE, BASELINES, every_method, method_names
from moreauc.app.cli.console import print_table, progress_bar, same_command, say, warn, without_column_warnings
from moreauc.app.cli.options import CompareOptions, FitOptions
from moreauc.app.cli.saved import PAGE, check_free, default_folder, locked_folders, run_folder
from moreauc.app.comparison import Comparison, ComparisonResult, Row
from moreauc.app.report.pages import Fact, Report, Section, draw_comparison, draw_precision_recall, draw_roc
from moreauc.app.report.verdict import rank, warning_text
from moreauc.app.tables.base import Table, equal_rows
from moreauc.app.tables.files import read_texts
from moreauc.app.tables.rows import RowTableTask
from moreauc.data.examples import EXAMPLES, load_example
from moreauc.data.schema import learn_frame
from moreauc.data.tables import TableError
from moreauc.metrics.ranking import ties_text

_LOGGER = logging.getLogger("moreauc.app.cli.compare")
_OWNER = "moreauc compare"
_COLUMNS = ("method", "TPAUC", "std", "rank", "seconds")
_CURVES = 3
_FEW_TRIALS = 8  # the default of the command


def compare(options: CompareOptions) -> None:
    """Run the command."""
    name = options.example if options.data is None else options.data.stem
    out = options.out or default_folder(f"{name}-comparison", force=options.force)
    with locked_folders(out=out):
        _compare(replace(options, out=out), out)


def _compare(options: CompareOptions, out: Path) -> None:
    begin = time.perf_counter()
    region = check_region(_OWNER, options.min_tpr, options.max_fpr, names=("--min-tpr", "--max-fpr"))
    chosen, missing = choose_methods(options.methods)
    check_free(out, force=options.force)
    table, description = read_data(options)
    effort = {name: getattr(options, name) for name in ("folds", "inner_folds", "seeds", "trials", "jobs")}
    plan = Comparison(methods=chosen, regions=(region,), **effort)
    say(description, *missing)
    doubts = [*table.features.schema.doubts, *equal_rows(table.hashes(), "the folds are")]
    warn(*doubts)
    with run_folder(out, force=options.force) as folder, without_column_warnings():
        for line in (description, *missing):
            _LOGGER.info("%s", line)
        for line in doubts:
            _LOGGER.warning("%s", line)
        result = _run(plan, table)
        title = f"Comparison on {options.example if options.data is None else options.data.name}"
        command, lines = same_command("compare", options, "jobs"), [description, *missing, *doubts]
        report = Report(title, command, compare_numbers(lines, result), seconds=time.perf_counter() - begin)
        report.write_numbers(folder)  # at once: a figure that fails costs no training
        report.sections = compare_sections(lines, table, result)
        report.seconds = time.perf_counter() - begin
        report.write(folder, PAGE)
        _LOGGER.info("done in %.1f s", report.seconds)
    times = "1 seed" if options.seeds == 1 else f"{options.seeds} seeds"
    rows = [table_row(row) for row in ranked(result.rows)]
    print_table(f"TPAUC over {options.folds} folds and {times}", _COLUMNS, rows)
    say(*rank(result.rows, "TPAUC", options.folds))
    warn(*tie_warnings(result.rows))
    say(f"Report: {out / PAGE}")


def _run(plan: Comparison, table: Table) -> ComparisonResult:
    """Run a comparison behind a progress bar, and log what comes out."""
    with progress_bar(f"{len(plan.methods)} methods, {plan.folds} folds", len(plan.pieces())) as advance:

        def show(done: int, total: int) -> None:
            _LOGGER.info("%d of %d pieces of work done", done, total)
            advance(1.0)

        result = plan.run(table.features, table.targets, progress=show)
    for row in result.rows:
        _LOGGER.info("%s: TPAUC %.4f, std %.4f, %.1f s", row["title"], row["mean"], row["std"], row["seconds"])
    return result


def choose_methods(names: str | None) -> tuple[tuple[str, ...], list[str]]:
    """Return the methods to compare, and a line for each that is left out because it is not installed."""
    if names is None:
        return every_method("rows")
    others = BASELINES["rows"]
    chosen = tuple(name.strip() for name in names.split(","))
    known = method_names("rows")
    for name in chosen:
        check_choice(_OWNER, "--methods", name, known)
        if chosen.count(name) > 1:
            raise ValueError(f"{_OWNER}: --methods must name each once, got {name!r} more than once")
        needed = others.get("lightgbm" if name == "trees" else name)
        if needed is not None and not needed.installed:
            raise ValueError(f"{_OWNER}: {needed.title} {ADVICE}")
    return chosen, []


def read_data(options: CompareOptions) -> tuple[Table, str]:
    """Read a file or an example; return it, and what it is in words."""
    data, target = options.data, options.target
    if (data is None) == (options.example is None):
        raise TableError("give a table or --example, not both" if data else "give a table with --target, or --example")
    if options.example is not None:
        if target is not None or options.positive is not None or options.id is not None or options.drop:
            raise TableError("--target, --positive, --id and --drop go with a table of yours, not with --example")
        check_choice(_OWNER, "--example", options.example, EXAMPLES)
        features, labels, description = load_example(options.example)
        return Table(learn_frame(_OWNER, features), labels), description
    if target is None:
        raise TableError(f"{data}: --target must name the column with the two classes")
    shared = {name: getattr(options, name) for name in ("positive", "id", "drop", "min_tpr", "max_fpr")}
    own = FitOptions(data=Path(str(data)), target=target, **shared)
    task, table = RowTableTask.read(read_texts(str(data)), own, source=str(data))
    positive = f"{target} = {task.target.positive}, {task.target.reason}"
    return table, f"{data}: {table.targets.sum()} of {len(table)} rows are positive ({positive})."


def ranked(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a comparison, the best first."""
    return sorted(rows, key=lambda row: row["rank"])


def tie_warnings(rows: Sequence[Row]) -> list[str]:
    """Return a line for each method whose test scores are tied in more than a tenth of the region's rows."""
    texts = ((row["title"], ties_text(row["tied"])) for row in ranked(rows))
    return [f"{title}: {text}" for title, text in texts if text is not None]


def table_row(row: Row) -> tuple[str, ...]:
    """Return the cells of a row of the printed table."""
    return (row["title"], f"{row['mean']:.4f}", f"± {row['std']:.4f}", f"{row['rank']:g}", f"{row['seconds']:.1f}")


def compare_numbers(description: Sequence[str], result: ComparisonResult) -> dict[str, object]:
    """Return what was measured as plain data."""
    measured = {key: value for key, value in result.to_dict().items() if key != "seconds"}
    return {"description": list(description), **measured}


def compare_sections(description: Sequence[str], table: Table, result: ComparisonResult) -> list[Section]:
    """Return the sections of a report on a comparison in one region."""
    rows = ranked(result.rows)
    min_tpr, max_fpr = result.comparison.regions[0]
    positives, number, joined = int(table.targets.sum()), len(table), result.scores()
    curves = {row["title"]: joined[row["title"]] for row in rows[:_CURVES]}
    facts = [Fact("Best", rows[0]["title"], f"TPAUC {rows[0]['mean']:.3f} ± {rows[0]['std']:.3f}")]
    for row in rows:
        if row["method"] == "sonx":
            facts.append(Fact("SONX", f"rank {row['rank']:g}", f"of {len(rows)}, TPAUC {row['mean']:.3f}"))
    facts.append(Fact("Positives", f"{positives:,}", f"of {number:,} rows"))
    facts.append(Fact("Methods", str(len(rows)), f"in the region TPR ≥ {min_tpr:g}, FPR ≤ {max_fpr:g}"))
    about_curves = (
        "From the scores that every row got while its fold was the test fold (first seed), as ranks among the "
        "negatives of that fold: the models of different folds have no common scale. The TPAUC of these joint "
        "scores is therefore near the mean above, not equal to it."
    )
    images = [
        draw_roc(result.positive, curves, min_tpr=min_tpr, max_fpr=max_fpr),
        draw_precision_recall(result.positive, curves),
    ]
    heads = ("rows", "positives", "negatives", "share of positives")
    sizes = (f"{number:,}", f"{positives:,}", f"{number - positives:,}", f"{positives / number:.2%}")
    cells = [table_row(row) for row in rows]
    return [
        Section("Verdict", rank(rows, "TPAUC", result.comparison.folds), facts=facts),
        Section("Methods", _result_text(result), columns=_COLUMNS, rows=cells, labels=1),
        Section("Spread over the folds", images=[draw_comparison(rows)]),
        Section("Curves of the best", [about_curves], images=images),
        Section("Data", description, columns=heads, rows=[sizes], labels=0),
    ]


def _result_text(result: ComparisonResult) -> list[str]:
    plan = result.comparison
    seeds = f"{plan.seeds} {'seeds' if plan.seeds > 1 else 'seed'}"
    tuned = (
        f"In every fold each method tried its default settings and {plan.trials - 1} more, and chose by "
        f"{plan.inner_folds} inner folds of the training rows."
    )
    text = [
        f"TPAUC on rows that were not trained on, mean and standard deviation over {plan.folds} stratified folds and "
        f"{seeds}. {tuned if plan.trials > 1 else 'Every method has its default settings.'}"
    ]
    if 1 < plan.trials < _FEW_TRIALS:
        # Seen: cross entropy on one example fell from 0.99 to 0.00 because ten epochs were its best of two settings.
        text.append(
            f"With {plan.trials} of the usual {_FEW_TRIALS} settings a method may be stuck with one that does not suit "
            "it, such as too few steps: a low score here may be the setting's, not the method's."
        )
    text += warning_text(tie_warnings(result.rows))
    diverged: Counter[str] = Counter()
    for record in result.records:
        diverged[record["method"]] += record["failures"]
    if diverged.total():
        counts = ", ".join(f"{method} {count}" for method, count in diverged.items() if count)
        text.append(f"Settings that diverged in training and were passed over: {counts}.")
    return text
