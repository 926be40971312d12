"""What a model goes by: how much worse it is without a column, or by how much a column changes its scores."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from moreauc.report.pages import Section, draw_bars
from moreauc.tasks.tables import T, TableTask

_MOST_ROWS = 2000  # to score again for each column
_LEAST_UNITS = 100
_MOST_COLUMNS = 40
_REPEATS = 3
_SHOWN = 20  # bars
_LEVELS = 8  # of a column of text
HEADING = "What the scores go by"


def importance_section(task: TableTask[T], model: Any, table: T) -> tuple[list[Section], dict[str, Any]]:
    """Return the section of a report on the columns, and its numbers for the JSON."""
    if is_linear(model) and task.name == "rows":
        rows = linear_effects(task, model, table)
        caption = f"Change of the score by {len(rows[:_SHOWN])} columns or values."
        text = (
            "How much the score changes if a number rises by one standard deviation of the test rows, or if a text is "
            "this one instead of the average of all; the scores are a sum of such terms."
        )
        cells = [(row["column"], row["value"], f"{row['effect']:+.4f}") for row in rows]
        heads, names = ("column", "value", "score"), [f"{row['column']} {row['value']}" for row in rows]
        values, spreads, key = [row["effect"] for row in rows], None, "effects"
    else:
        rows = permutation_importance(task, model, table)
        caption = f"How much worse the {task.measure} is with a column shuffled; whiskers: standard deviation."
        text = (
            f"How much worse the {task.measure} is if the values of one column are shuffled: mean and standard "
            f"deviation of {_REPEATS} shuffles of at most {_MOST_ROWS:,} test rows. Columns that tell the same share "
            "what they are worth."
        )
        if len(task.kinds) > _MOST_COLUMNS:
            text += f" Tried were columns of text and the numbers nearest to the target, {_MOST_COLUMNS} in all."
        cells = [(row["column"], f"{row['loss']:+.4f}", f"{row['std']:.4f}") for row in rows]
        heads, names = ("column", "worse by", "std"), [row["column"] for row in rows]
        values, spreads, key = [row["loss"] for row in rows], [row["std"] for row in rows], "importance"
    if not rows:
        return [], {}
    shown = None if spreads is None else spreads[:_SHOWN]
    image = draw_bars(
        names[:_SHOWN], values[:_SHOWN], shown, label=heads[-1] if shown is None else heads[1], caption=caption
    )
    section = Section(
        HEADING, [text], columns=heads, rows=cells[:_SHOWN], labels=len(heads) - (2 if shown else 1), images=[image]
    )
    return [section], {key: rows}


def is_linear(model: Any) -> bool:
    """Return whether the scores of a model are a sum of terms of the columns."""
    return hasattr(model, "coef_") or getattr(model, "module", None) == "linear"


def permutation_importance(task: TableTask[T], model: Any, table: T, *, seed: int = 0) -> list[dict[str, Any]]:
    """Return how much worse a model does where a column is shuffled, the most important first.

    Only some of the rows and columns of a large table are used.
    """
    random = np.random.default_rng(seed)
    units = max(_LEAST_UNITS, int(len(table) * _MOST_ROWS / len(table.features)))
    part = table.part(task.sample(table, units, random)) if units < len(table) else table
    whole = task.goodness(model, part)
    if math.isnan(whole):
        return []
    found = []
    for name in _nearest(task, part):
        losses = []
        for _ in range(_REPEATS):
            features = part.features.copy(deep=False)
            features[name] = features[name].array[random.permutation(len(features))]
            losses.append(whole - task.goodness(model, replace(part, features=features)))
        found.append({"column": name, "loss": float(np.mean(losses)), "std": float(np.std(losses, ddof=1))})
    return sorted(found, key=lambda row: -row["loss"])


def _nearest(task: TableTask[T], table: T) -> list[str]:
    """Return all columns, or columns of text and those most correlated with the target."""
    names = list(task.kinds)
    if len(names) <= _MOST_COLUMNS:
        return names
    target = pd.Series(task.row_targets(table), index=table.features.index)
    numbers = [name for name in names if table.features[name].dtype.kind == "f"]
    nearness = table.features[numbers].corrwith(target).abs().fillna(0.0)
    ranked = [name for name in names if name not in nearness] + list(nearness.sort_values(ascending=False).index)
    return ranked[:_MOST_COLUMNS]


def linear_effects(task: TableTask[T], model: Any, table: T) -> list[dict[str, Any]]:
    """Return by how much columns change the score of a linear model, the largest change first."""
    features, probes = table.features, []
    for name in task.kinds:
        column = features[name]
        if column.dtype.kind == "f":
            mean, spread = column.mean(), column.std()
            shown = f"{spread:,.0f}" if spread >= 100.0 else f"{spread:.3g}"
            probes += [(name, f"+ {shown}", mean + spread, 1.0), (name, "", mean, -1.0)]
        elif column.dtype.kind == "O":
            shares = column.value_counts(normalize=True)[:_LEVELS]
            probes += [(name, f"= {level}", level, share / shares.sum()) for level, share in shares.items()]
    rows = features.iloc[np.zeros(len(probes), dtype=int)].reset_index(drop=True)
    for place, (name, _, value, _) in enumerate(probes):
        rows[name] = rows[name].where(rows.index != place, value)
    scores = model.decision_function(task.inputs(replace(table, features=rows, targets=np.zeros(len(rows), dtype=int))))
    frame = pd.DataFrame(probes, columns=["column", "value", "at", "weight"]).assign(score=scores.astype(float))
    found = []
    for name, own in frame.groupby("column", sort=False):
        if own["value"].iloc[-1] == "":
            found.append(
                {"column": name, "value": own["value"].iloc[0], "effect": own["score"].iloc[0] - own["score"].iloc[1]}
            )
            continue
        centre = float((own["score"] * own["weight"]).sum())
        found += [{"column": name, "value": row.value, "effect": row.score - centre} for row in own.itertuples()]
    return sorted(found, key=lambda row: -abs(row["effect"]))
