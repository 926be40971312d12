"""The pages of `fit` and `evaluate`: what was found, the training, the data, the settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moreauc.report.pages import Report, Section
from moreauc.tasks.tables import Split, Table, TableTask, warning_text
from moreauc.train.history import History


def fit_report(
    data: Path, command: str, split: Split[Any], models: dict[str, Any], evaluations: Sequence[Any], inputs: Any
) -> Report:
    """Return the report of a training.

    Args:
        data: the table.
        command: what was typed.
        split: its two parts.
        models: the fitted estimators by title, the chosen one first.
        evaluations: their numbers on the test part.
        inputs: the test part as the estimators take it.
    """
    task, first = split.task, next(iter(models.values()))
    histories = {title: model.history_ for title, model in models.items()}
    notes = untrained_notes(histories)
    parts = {"training": split.train, "test": split.test}
    settings = {key: value for key, value in first.get_params().items() if key != "verbose"}
    result, further = task.result(evaluations, first, inputs, split.test, notes)
    training, more = task.training(models, split)
    rows = [(key, str(value)) for key, value in settings.items()]
    sections = [
        *result,
        training,
        _data_section(task, parts, _data_text(data, split)),
        Section("Settings", columns=("argument", "value"), rows=rows),
    ]
    results = {
        "data": {
            "file": str(data),
            **task.facts(),
            "columns": task.kinds,
            "warnings": list(split.warnings),
            **{name: task.counts(part) for name, part in parts.items()},
            **task.split_facts(split),
        },
        "test": [evaluation.to_dict() for evaluation in evaluations],
        **further,
        **more,
        "settings": {
            key: value if isinstance(value, int | float | None) else str(value) for key, value in settings.items()
        },
        "warnings": notes,
        "history": {title: history.to_dict() for title, history in histories.items()},
    }
    return Report(f"{evaluations[0].title} on {data.name}", command, results, sections)


def evaluate_report(
    data: Path,
    command: str,
    heading: str,
    task: TableTask[Any],
    table: Table,
    model: Any,
    evaluation: Any,
    inputs: Any,
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
    return Report(heading, command, results, [*sections, _data_section(task, {data.name: table}, text)])


def _data_text(data: Path, split: Split[Any]) -> list[str]:
    task = split.task
    numbers = sum(kind != "text" for kind in task.kinds.values())
    columns = f"{len(task.kinds)} columns: {numbers} of numbers, {len(task.kinds) - numbers} of text"
    note = task.test_note(split)
    return [
        f"{data.name}: {task.description()}. {columns}.",
        *warning_text(split.warnings),
        *([] if note is None else [note]),
    ]


def _data_section(task: TableTask[Any], parts: dict[str, Any], text: Sequence[str]) -> Section:
    cells = [task.count_cells(name, part) for name, part in parts.items()]
    return Section("Data", text, columns=tuple(cells[0]), rows=[tuple(row.values()) for row in cells], labels=1)


def untrained_notes(histories: dict[str, History]) -> list[str]:
    """Return a sentence for each model whose best weights are those from before its training.

    Args:
        histories: of the models, by their titles.

    Example:
        >>> untrained_notes({"SONX": History(best_epoch=3, restored=True)})
        []
        >>> untrained_notes({"SONX": History(best_epoch=-1, restored=True)})
        ['SONX is untrained. No epoch did better on the validation data than ...']
    """
    return [
        f"{title} is untrained. No epoch did better on the validation data than the weights before training, "
        "which were kept. Either the columns tell nothing about the target, or there are too few rows or epochs "
        "(--epochs), or the learning rate (--lr) does not fit."
        for title, history in histories.items()
        if history.untrained
    ]
