"""The pages of the commands: what was found, the data, the figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moreauc.cli._evaluation import (
    COLUMNS,
    EXPLANATION,
    Array,
    Evaluation,
)
from moreauc.cli._levels import levels_text
from moreauc.cli._training import kept_when, untrained_notes
from moreauc.cli.fit import Split
from moreauc.data.columns import Target
from moreauc.report.figures import draw_histograms, draw_roc, draw_training
from moreauc.report.pages import Fact, Report, Section

COUNT_COLUMNS = ("rows of", "rows", "positives", "negatives", "share of positives")


def fit_report(data: Path, command: str, split: Split, models: dict[str, Any], evaluations: list[Evaluation]) -> Report:
    """Return the report of a training run.

    Args:
        data: the table.
        command: what was typed.
        split: its rows.
        models: the fitted classifiers by title, the chosen one first.
        evaluations: their numbers on the test rows.
    """
    first = models[evaluations[0].title]
    scores = {title: model.decision_function(split.test) for title, model in models.items()}
    parts = {"training": split.train_labels, "test": split.test_labels}
    histories = {title: model.history_ for title, model in models.items()}
    settings = settings_of(first)
    sections = [
        result_section(evaluations, first.min_tpr, first.max_fpr, notes=untrained_notes(histories)),
        score_section(split.test_labels, scores, first),
        training_section(histories),
        _data_section(data, parts, split),
        settings_section(settings),
    ]
    results = {
        "data": {
            "file": str(data),
            "target": target_dict(split.target),
            "columns": split.kinds,
            "warnings": list(split.warnings),
            **{name: count_classes(labels) for name, labels in parts.items()},
        },
        "test": [evaluation.to_dict() for evaluation in evaluations],
        "settings": plain_settings(settings),
        "warnings": untrained_notes(histories),
        "history": {title: history.to_dict() for title, history in histories.items()},
    }
    return Report(f"{evaluations[0].title} on {data.name}", command, results, sections)


def evaluate_report(
    data: Path,
    command: str,
    title: str,
    labels: Array,
    scores: Array,
    model: Any,
    evaluation: Evaluation,
    unknown: dict[str, float],
) -> Report:
    """Return the report of a saved model on another table; `unknown` is the share of unknown levels of each column."""
    counts = count_classes(labels)
    sections = [
        result_section([evaluation], model.min_tpr, model.max_fpr),
        score_section(labels, {evaluation.title: scores}, model),
        Section("Data", levels_text(unknown), columns=COUNT_COLUMNS, rows=[count_row(data.name, counts)], labels=1),
    ]
    results = {"data": {"file": str(data), **counts, "unknown_levels": unknown}, "test": [evaluation.to_dict()]}
    return Report(title, command, results, sections)


def result_section(
    evaluations: list[Evaluation], min_tpr: float, max_fpr: float, *, unit: str = "rows", notes: Sequence[str] = ()
) -> Section:
    """Return the numbers on the test rows (or bags, the `unit`), those of the first model as facts, after notes."""
    first = evaluations[0]
    low, high = first.tpauc.low, first.tpauc.high
    facts = [
        Fact(
            f"TPAUC, TPR ≥ {min_tpr:g}, FPR ≤ {max_fpr:g}",
            f"{first.tpauc.estimate:.3f}",
            f"95 %: {low:.3f} to {high:.3f}",
        ),
        Fact("AUC", f"{first.auc:.3f}", "the whole curve"),
        Fact(f"TPR at FPR ≤ {max_fpr:g}", f"{first.tpr_at_budget:.3f}", f"best threshold on these {unit}"),
        Fact("TPR of the decisions", f"{first.tpr:.3f}", f"at an FPR of {first.fpr:.3f}"),
    ]
    rows = [evaluation.row for evaluation in evaluations]
    text = EXPLANATION.replace("rows", unit)
    warnings = [line for evaluation in evaluations for line in evaluation.warnings]
    return Section(
        "Result", [*warning_text([*notes, *warnings]), text], columns=COLUMNS, rows=rows, labels=1, facts=facts
    )


def settings_of(model: Any) -> dict[str, Any]:
    """Return the arguments of a classifier."""
    return {key: value for key, value in model.get_params().items() if key != "verbose"}


def settings_section(settings: dict[str, Any]) -> Section:
    """Return the arguments of a classifier as a table."""
    rows = [(key, str(value)) for key, value in settings.items()]
    return Section("Settings", columns=("argument", "value"), rows=rows)


def plain_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a classifier as plain data."""
    return {key: value if isinstance(value, int | float | None) else str(value) for key, value in settings.items()}


def count_classes(labels: Array) -> dict[str, Any]:
    """Return how many rows of either class there are."""
    positives = int(labels.sum())
    return {"rows": len(labels), "positives": positives, "negatives": len(labels) - positives}


def target_dict(target: Target) -> dict[str, str]:
    """Return the classes as plain data."""
    return {"column": target.name, "positive": target.positive, "negative": target.negative}


def count_row(name: str, counts: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a table with the head `COUNT_COLUMNS`."""
    share = counts["positives"] / counts["rows"]
    return (name, *(f"{counts[key]:,}" for key in ("rows", "positives", "negatives")), f"{share:.2%}")


def score_section(labels: Array, scores: dict[str, Array], model: Any) -> Section:
    """Return the ROC curves, and the scores of the first model, whose decisions turn at 0."""
    first = next(iter(scores.values()))
    return Section(
        "Curve and scores",
        images=[
            draw_roc(labels, scores, min_tpr=model.min_tpr, max_fpr=model.max_fpr),
            draw_histograms(labels, first, threshold=0.0),
        ],
    )


def training_section(histories: dict[str, Any], *, unit: str = "rows") -> Section:
    """Return the training curves, and which epoch was kept."""
    text = []
    for title, history in histories.items():
        if history.best_epoch is None:
            text.append(f"{title}: too few {unit} to hold any out; the weights of the last epoch were kept.")
        else:
            score, when = history.best_score, kept_when(history)
            choice = f" ({history.choice})" if history.choice else ""
            text.append(f"{title}: best validation TPAUC {score:.4f} {when}{choice}; these weights were kept.")
    return Section("Training", text, images=draw_training(histories))


def _data_section(data: Path, parts: dict[str, Array], split: Split) -> Section:
    target, numbers = split.target, sum(kind != "text" for kind in split.kinds.values())
    text = (
        f"{data.name}: target {target.name}, positive class {target.positive} ({target.reason}), other class "
        f"{target.negative}. {len(split.kinds)} columns: {numbers} of numbers, {len(split.kinds) - numbers} of text."
    )
    rows = [count_row(name, count_classes(labels)) for name, labels in parts.items()]
    return Section("Data", [text, *warning_text(split.warnings)], columns=COUNT_COLUMNS, rows=rows, labels=1)


def warning_text(lines: Sequence[str]) -> list[str]:
    """Return the paragraphs of a page for warnings."""
    return [f"Warning: {line.removesuffix('.')}." for line in lines]
