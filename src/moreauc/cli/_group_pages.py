"""The pages of the commands on rows in groups: how each group fares, and how the training went."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from moreauc.cli._fit_groups import GroupSplit
from moreauc.cli._group_evaluation import (
    GroupEvaluation,
    group_cells,
    group_columns,
    summary_columns,
)
from moreauc.cli._group_table import GroupRows, GroupTarget
from moreauc.cli._levels import levels_text
from moreauc.cli._pages import (
    plain_settings,
    settings_of,
    settings_section,
    warning_text,
)
from moreauc.cli._training import kept_when, untrained_notes
from moreauc.metrics import plot_groups
from moreauc.report.figures import as_image, draw_training
from moreauc.report.pages import (
    Fact,
    Report,
    Section,
)

COUNT_COLUMNS = ("rows of", "rows", "groups", "smallest", "largest")
_LOSSES = {"squared": "squared error", "absolute": "absolute error"}


def fit_groups_report(
    data: Path, command: str, split: GroupSplit, models: dict[str, Any], evaluations: list[GroupEvaluation]
) -> Report:
    """Return the report of a training run on rows in groups.

    Args:
        data: the table.
        command: what was typed.
        split: its rows.
        models: the fitted models by title, the chosen one first.
        evaluations: their numbers on the test rows.
    """
    first = models[evaluations[0].title]
    parts = {"training": split.train, "test": split.test}
    histories = {title: model.history_ for title, model in models.items()}
    settings = settings_of(first)
    sections = [
        _result_section(evaluations, first, untrained_notes(histories)),
        _group_section(evaluations, first, split.note),
        _training_section(models),
        _data_section(data, parts, split),
        settings_section(settings),
    ]
    results = {
        "data": {
            "file": str(data),
            "target": _target_dict(split.target),
            "groups": list(split.columns),
            "columns": split.kinds,
            "warnings": list(split.warnings),
            **{name: _counts(part) for name, part in parts.items()},
            "untested": {
                "note": split.note,
                "groups": [{"name": name, "rows": size} for name, size in split.untested.items()],
            },
        },
        "test": [evaluation.to_dict() for evaluation in evaluations],
        "threshold": first.loss_threshold_,
        "settings": plain_settings(settings),
        "warnings": untrained_notes(histories),
        "history": {title: history.to_dict() for title, history in histories.items()},
    }
    return Report(f"{evaluations[0].title} on {data.name}", command, results, sections)


def evaluate_groups_report(
    data: Path,
    command: str,
    title: str,
    rows: GroupRows,
    model: Any,
    evaluation: GroupEvaluation,
    unknown: dict[str, float],
) -> Report:
    """Return the report of a saved model on another table; `unknown` is the share of unknown levels of each column."""
    cells = [_count_cells(data.name, rows)]
    sections = [
        _result_section([evaluation], model),
        _group_section([evaluation], model),
        Section("Data", levels_text(unknown), columns=COUNT_COLUMNS, rows=cells, labels=1),
    ]
    results = {"data": {"file": str(data), **_counts(rows), "unknown_levels": unknown}, "test": [evaluation.to_dict()]}
    return Report(title, command, results, sections)


def _result_section(evaluations: list[GroupEvaluation], model: Any, notes: Sequence[str] = ()) -> Section:
    first = evaluations[0]
    losses, number, loss = first.losses, first.top_k, _loss_name(model)
    facts = [Fact("Loss of the worst group", f"{losses['worst']:.3f}", str(first.table.worst["name"]))]
    if number > 1:
        facts.append(Fact(f"Loss of the {number} worst groups", f"{losses['top_k']:.3f}", "their mean"))
    if first.worst_accuracy is not None:
        facts.append(Fact("Lowest accuracy", f"{first.worst_accuracy:.3f}", "of a group"))
    facts.append(Fact(first.quantity, f"{first.score:.3f}", "of all rows"))
    text = (
        f"The loss of a group is the mean {loss} of its rows; that of several groups is the mean of theirs, each "
        "counted as one, however many rows it has. The gap is the worst less the best. The numbers of a small group "
        "are uncertain."
    )
    rows = [evaluation.row for evaluation in evaluations]
    return Section(
        "Result", [*warning_text(notes), text], columns=summary_columns(first), rows=rows, labels=2, facts=facts
    )


def _group_section(evaluations: list[GroupEvaluation], model: Any, note: str | None = None) -> Section:
    """Return the table of groups by the first model, with the losses of the others, the plot, and who is not in it."""
    first, others = evaluations[0], evaluations[1:]
    columns, cells = list(group_columns(first)), [list(row) for row in group_cells(first)]
    for other in others:
        columns.append(f"loss by {other.title}")
        by_name = dict(zip(other.table.name, np.asarray(other.table.loss), strict=True))
        for row in cells:
            row.append(f"{by_name[row[0]]:.4f}")
    figure = plot_groups(first.table, threshold=model.loss_threshold_, top_k=first.top_k)
    text = f"Mean loss of the groups by {first.title}, the worst first."
    if model.loss_threshold_ is not None:
        text += " The dashed line is the threshold s at the end of the training: groups above it were trained for."
    notes = [] if note is None else [note]
    return Section("Groups", notes, columns=columns, rows=cells, labels=1, images=[as_image(figure, text)])


def _training_section(models: dict[str, Any]) -> Section:
    histories = {title: model.history_ for title, model in models.items()}
    text = []
    for title, model in models.items():
        history = model.history_
        if history.best_epoch is None:
            text.append(f"{title}: groups too small to hold any rows out; the weights of the last epoch were kept.")
        else:
            loss, when = -history.best_score, kept_when(history)
            text.append(f"{title}: lowest {model.chosen_by_} {loss:.4f}, of the validation rows, {when}, kept.")
    what = "; ".join(f"{title}: {model.chosen_by_}" for title, model in models.items())
    caption = (
        f"What the epoch was chosen by, on the validation rows after every epoch ({what}); the weights kept are "
        "dotted. Losses of groups are drawn towards the mean as far as chance explains how they differ."
    )
    images = draw_training(histories, quantity="validation loss", caption=caption, lower_is_better=True)
    return Section("Training", text, images=images)


def _data_section(data: Path, parts: dict[str, GroupRows], split: GroupSplit) -> Section:
    target, numbers = split.target, sum(kind != "text" for kind in split.kinds.values())
    kept = [name for name in split.columns if name in split.kinds]
    text = (
        f"{data.name}: {target.task} of {target.name} ({target.reason}), groups by {' and '.join(split.columns)}, "
        f"{'also' if kept else 'not'} learnt from. {len(split.kinds)} columns: {numbers} of numbers, "
        f"{len(split.kinds) - numbers} of text."
    )
    rows = [_count_cells(name, part) for name, part in parts.items()]
    return Section("Data", [text, *warning_text(split.warnings)], columns=COUNT_COLUMNS, rows=rows, labels=1)


def _counts(rows: GroupRows) -> dict[str, int]:
    sizes = np.unique(rows.groups.astype(str), return_counts=True)[1]
    return {"rows": len(rows.values), "groups": len(sizes), "smallest": int(sizes.min()), "largest": int(sizes.max())}


def _count_cells(name: str, rows: GroupRows) -> tuple[str, ...]:
    return (name, *(f"{count:,}" for count in _counts(rows).values()))


def _loss_name(model: Any) -> str:
    return _LOSSES.get(getattr(model, "loss", ""), "log loss")


def _target_dict(target: GroupTarget) -> dict[str, Any]:
    return {"column": target.name, "task": target.task, "classes": list(target.classes)}
