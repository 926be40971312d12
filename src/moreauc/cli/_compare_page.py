"""The page of `moreauc compare`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from moreauc.cli._pages import (
    COUNT_COLUMNS,
    count_classes,
    count_row,
    warning_text,
)
from moreauc.cli.compare import (
    COLUMNS,
    ranked,
    table_row,
    tie_warnings,
)
from moreauc.comparison import ComparisonResult
from moreauc.report.figures import draw_comparison, draw_roc
from moreauc.report.pages import Fact, Report, Section

_CURVES = 3
_FEW_TRIALS = 8  # the default of the command


def compare_report(title: str, command: str, description: Sequence[str], result: ComparisonResult) -> Report:
    """Return the report of a comparison in one region.

    Args:
        title: title of the page.
        command: what was typed.
        description: what the table is, and which methods are missing.
        result: what was measured.
    """
    plan, rows = result.comparison, ranked(result.rows)
    min_tpr, max_fpr = plan.regions[0]
    counts = count_classes(result.positive)
    joined = result.scores()
    curves = {row["title"]: joined[row["title"]] for row in rows[:_CURVES]}
    sections = [
        Section(
            "Result",
            _result_text(result),
            columns=COLUMNS,
            rows=[table_row(row) for row in rows],
            labels=1,
            facts=_facts(rows, counts, f"TPR ≥ {min_tpr:g}, FPR ≤ {max_fpr:g}"),
        ),
        Section("Spread over the folds", images=[draw_comparison(rows)]),
        Section(
            "Curves of the best",
            [
                "From the scores that every row got while its fold was the test fold (first seed), as ranks among the "
                "negatives of that fold: the models of different folds have no common scale. The TPAUC of these joint "
                "scores is therefore near the mean above, not equal to it."
            ],
            images=[draw_roc(result.positive, curves, min_tpr=min_tpr, max_fpr=max_fpr)],
        ),
        Section("Data", description, columns=COUNT_COLUMNS, rows=[count_row("the table", counts)], labels=1),
    ]
    return Report(title, command, compare_numbers(description, result), sections)


def compare_numbers(description: Sequence[str], result: ComparisonResult) -> dict[str, Any]:
    """Return what was measured as plain data."""
    measured = {key: value for key, value in result.to_dict().items() if key != "seconds"}
    return {"description": list(description), **measured}


def _facts(rows: list[dict[str, Any]], counts: dict[str, Any], region: str) -> list[Fact]:
    facts = [Fact("Best", rows[0]["title"], f"TPAUC {rows[0]['mean']:.3f} ± {rows[0]['std']:.3f}")]
    for row in rows:
        if row["method"] == "sonx":
            facts.append(Fact("SONX", f"rank {row['rank']:g}", f"of {len(rows)}, TPAUC {row['mean']:.3f}"))
    facts.append(Fact("Positives", f"{counts['positives']:,}", f"of {counts['rows']:,} rows"))
    facts.append(Fact("Methods", str(len(rows)), f"in the region {region}"))
    return facts


def _result_text(result: ComparisonResult) -> list[str]:
    plan = result.comparison
    seeds = f"{plan.seeds} {'seeds' if plan.seeds > 1 else 'seed'}"
    text = [
        f"TPAUC on rows that were not trained on, mean and standard deviation over {plan.folds} stratified folds and "
        f"{seeds}. In every fold each method tried its default settings and {plan.trials - 1} more, and chose by "
        f"{plan.inner_folds} inner folds of the training rows. Differences that are small beside the standard "
        "deviation may be chance."
    ]
    if plan.trials < _FEW_TRIALS:
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
