"""How well groups fare: the numbers that `fit --groups` and `evaluate` print and report."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from moreauc.cli._group_table import GroupRows
from moreauc.metrics import GroupTable

_LOGGER = logging.getLogger("moreauc.cli.fit")
_SHOWN = 20  # groups printed


@dataclass(frozen=True)
class GroupEvaluation:
    """One model on rows in groups.

    Attributes:
        title: name of the model in tables.
        table: its groups, the worst first.
        top_k: how many of the worst groups count; not more than there are.
        score: accuracy of all rows, or R² for regression.
        quantity: which of them.
    """

    title: str
    table: GroupTable
    top_k: int
    score: float
    quantity: str

    @property
    def losses(self) -> dict[str, float]:
        """Mean loss of the worst group, of the K worst, and of all groups, each counted as one."""
        losses = np.asarray(self.table.loss)
        return {
            "worst": float(losses[0]),
            "top_k": float(losses[: self.top_k].mean()),
            "mean": float(losses.mean()),
            "gap": self.table.gap,
        }

    @property
    def worst_accuracy(self) -> float | None:
        """Lowest accuracy of a group; None for regression."""
        return None if self.table.accuracy is None else float(self.table.accuracy.min())

    @property
    def row(self) -> tuple[str, ...]:
        """Cells of a table with the head :func:`summary_columns`."""
        losses = [value for key, value in self.losses.items() if key != "top_k" or self.top_k > 1]
        lowest = [] if self.worst_accuracy is None else [self.worst_accuracy]
        numbers = (*losses, *lowest, self.score)
        return (self.title, str(self.table.worst["name"]), *(f"{number:.4f}" for number in numbers))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        accuracy = {} if self.worst_accuracy is None else {"worst_accuracy": self.worst_accuracy}
        summary = {"title": self.title, "top_k": self.top_k, **{f"{key}_loss": x for key, x in self.losses.items()}}
        return {**summary, **accuracy, self.quantity: self.score, "groups": self.table.rows()}


def evaluate_groups(title: str, model: Any, rows: GroupRows) -> GroupEvaluation:
    """Judge a fitted model on rows in groups."""
    table = model.group_score(rows.features, rows.values, rows.groups)
    score, top_k = float(model.score(rows.features, rows.values)), min(model.top_k_, len(table))
    quantity = "R2" if table.accuracy is None else "accuracy"
    evaluation = GroupEvaluation(title, table, top_k, score, quantity)
    worst = table.worst
    _LOGGER.info("%s: worst group %s, loss %.4f; %s %.4f", title, worst["name"], worst["loss"], quantity, score)
    return evaluation


def summary_columns(evaluation: GroupEvaluation) -> tuple[str, ...]:
    """Return the head of a table of methods."""
    several = () if evaluation.top_k == 1 else (f"{evaluation.top_k} worst",)
    accuracy = () if evaluation.worst_accuracy is None else ("lowest acc.",)
    quantity = "acc." if accuracy else evaluation.quantity
    return ("method", "worst group", "its loss", *several, "all groups", "gap", *accuracy, quantity)


def group_columns(evaluation: GroupEvaluation) -> tuple[str, ...]:
    """Return the head of a table of groups."""
    table = evaluation.table
    known = [name for name in ("accuracy", "auc") if getattr(table, name) is not None]
    return ("group", "rows", "share", "loss", *("AUC" if name == "auc" else name for name in known))


def group_cells(evaluation: GroupEvaluation) -> list[tuple[str, ...]]:
    """Return the cells of a table of groups."""
    cells = []
    for row in evaluation.table.rows():
        numbers = [row[name] for name in ("loss", "accuracy", "auc") if name in row]
        shown = ("-" if np.isnan(number) else f"{number:.4f}" for number in numbers)
        cells.append((str(row["name"]), f"{row['size']:,}", f"{row['share']:.2%}", *shown))
    return cells


def group_rows(evaluation: GroupEvaluation) -> tuple[str, tuple[str, ...], list[tuple[str, ...]]]:
    """Return title, head and cells of the table of groups to print; of many, the worst."""
    cells = group_cells(evaluation)
    title = f"Groups by {evaluation.title}, the worst first"
    if len(cells) > _SHOWN:
        title += f" ({_SHOWN} of {len(cells)})"
    return title, group_columns(evaluation), cells[:_SHOWN]
