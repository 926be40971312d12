"""What a report says of models: which is better on the test data, whether beyond chance, and by which columns.

A column is important if the model is worse without it, or if it changes the scores.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal, TypedDict, cast

import numpy as np
import pandas as pd
from scipy.stats import t as student

from moreauc.app.report.pages import Section, draw_bars
from moreauc.metrics.bootstrap import BootstrapInterval, Resamples

if TYPE_CHECKING:
    from moreauc.app.comparison import Row
    from moreauc.app.tables.base import E, M, Model, T, TableTask, TwoClassModel
    from moreauc.train import History

Outcome = Literal["better", "worse", "equal", "alone"]

_MOST_ROWS = 2000  # to score again for each column
_LEAST_UNITS = 100
_MOST_COLUMNS = 40
_REPEATS = 3
_SHOWN = 20  # bars
_LEVELS = 8  # of a column of text
HEADING = "Importance of columns"


@dataclass(frozen=True, kw_only=True)
class Evaluated(ABC):
    """A model on the test data."""

    title: str  # its name in tables
    resamples: Resamples  # the measure that models are compared by, over resamples of the test data

    @property
    def warnings(self) -> list[str]:
        """What a user must know before trusting the numbers."""
        return []

    @abstractmethod
    def to_dict(self) -> dict[str, object]:
        """Return the numbers as plain data."""


@dataclass(frozen=True)
class Verdict:
    """The first model beside the best of the others."""

    outcome: Outcome  # of the first model; "equal" where the difference may be chance
    text: tuple[str, ...]  # the headline, and its evidence
    other: str | None = None  # title of the best of the others
    difference: BootstrapInterval | None = None  # how much better the first is, over resamples of the test data

    def to_dict(self) -> dict[str, object]:
        """Return the verdict as plain data, without the text."""
        return {"outcome": self.outcome, "other": self.other, "difference": self.difference and asdict(self.difference)}


def compare_models(models: Sequence[Evaluated], measure: str, unit: str, *, lower_is_better: bool = False) -> Verdict:
    """Compare the first model with the best of the others by a paired bootstrap of `unit`, such as "rows"."""
    first, *others = models
    if not others:
        found = first.resamples.interval()
        spread = f"95 % of resamples of the test {unit} have {found.low:.3f} to {found.high:.3f}."
        return Verdict("alone", (f"{first.title} has a {measure} of {found.estimate:.3f} on these {unit}.", spread))
    sign = -1.0 if lower_is_better else 1.0
    other = max(others, key=lambda model: sign * model.resamples.estimate)
    gain = other.resamples - first.resamples if lower_is_better else first.resamples - other.resamples
    interval = gain.interval()
    outcome: Outcome = "better" if interval.low > 0.0 else "worse" if interval.high < 0.0 else "equal"
    ahead, behind, shown = (first, other, interval) if gain.estimate >= 0.0 else (other, first, (-gain).interval())
    if outcome == "equal":
        headline = f"{ahead.title} and {behind.title} cannot be told apart on these {unit}"
    else:
        headline = f"{ahead.title} is better than {behind.title} on these {unit}"
    headline += f": {measure} {ahead.resamples.estimate:.3f} against {behind.resamples.estimate:.3f}."
    evidence = (
        f"The difference of {shown.estimate:.3f} in favour of {ahead.title} is "
        f"{'within' if outcome == 'equal' else 'beyond'} chance: 95 % of resamples of the test {unit} have "
        f"{shown.low:+.3f} to {shown.high:+.3f}."
    )
    if shown.estimate == shown.low == shown.high == 0.0:
        evidence = f"They have the same {measure} on all resamples of the test {unit}."
    return Verdict(outcome, (headline, evidence), other.title, interval)


def rank(rows: Sequence[Row], measure: str, folds: int) -> list[str]:
    """Return which method is best by cross-validation, and which may be as good; a higher `measure` is better."""
    best, *others = sorted(rows, key=lambda row: -row["mean"])
    near = [row["title"] for row in others if not is_beyond_chance(best["scores"], row["scores"], folds)]
    headline = f"{best['title']} has the highest {measure} on this table: {best['mean']:.3f}."
    if not others:
        return [headline]
    test = "paired t-test over the folds at 5 %, corrected for training rows that they share"
    if not near:
        return [headline, f"All others are behind beyond chance ({test})."]
    listed = near[0] if len(near) == 1 else f"{', '.join(near[:-1])} and {near[-1]}"
    rest = "" if len(near) == len(others) else " The others are behind beyond chance."
    return [headline, f"Not told apart from it ({test}): {listed}.{rest}"]


def is_beyond_chance(first: Sequence[float], second: Sequence[float], folds: int) -> bool:
    """Return whether the first of two methods is better beyond chance, by its scores in folds (one order for both).

    Reference:
        Nadeau, Bengio, Inference for the generalization error, Machine Learning 52, 2003.

    Example:
        >>> is_beyond_chance([0.8, 0.9, 0.8, 0.9], [0.5, 0.6, 0.4, 0.6], 4)
        True
        >>> is_beyond_chance([0.8, 0.9, 0.8, 0.9], [0.7, 1.0, 0.6, 0.9], 4)
        False
    """
    gain = np.subtract(first, second)
    error = gain.std(ddof=1) * np.sqrt(1.0 / len(gain) + 1.0 / (folds - 1))  # 1 / (folds - 1) test rows a training row
    return bool(gain.mean() > student.ppf(0.975, len(gain) - 1) * error)


# Words of reports


def warning_text(lines: Sequence[str]) -> list[str]:
    """Return the paragraphs of a page for warnings."""
    return [f"Warning: {line.removesuffix('.')}." for line in lines]


def histories_of(models: Mapping[str, Model]) -> dict[str, History]:
    """Return the history of the first network of each model by title; those that are no networks have none."""
    found = {title: model.describe().histories for title, model in models.items()}
    return {title: histories[0] for title, histories in found.items() if histories}


def kept_epoch(history: History) -> str:
    """Return which weights were kept: those after an epoch, of the start if need be, or those before training."""
    if history.best_epoch == -1 and history.start_epoch not in (None, -1):
        return f"at the start, after epoch {history.start_epoch + 1} of cross entropy"
    return "before training" if history.best_epoch == -1 else f"after epoch {(history.best_epoch or 0) + 1}"


# Importance of columns


class Importance(TypedDict):
    """How much worse a model is with a column shuffled."""

    column: str
    loss: float
    std: float


class Effect(TypedDict):
    """How much a value of a column changes the score of a linear model."""

    column: str
    value: str
    effect: float


def importance_section(task: TableTask[T, M, E], model: M, table: T) -> tuple[list[Section], dict[str, object]]:
    """Return the section of a report on the columns, and its numbers for the JSON."""
    numbers: dict[str, object]
    if model.describe().kind == "linear":
        effects = linear_effects(task, cast("TwoClassModel", model), table)
        caption = f"Change of the score by {len(effects[:_SHOWN])} columns or values."
        text = (
            "How much the score changes if a number rises by one standard deviation of the test rows, or if a text is "
            "this one instead of the average of all; the scores are a sum of such terms."
        )
        cells = [(row["column"], row["value"], f"{row['effect']:+.4f}") for row in effects[:_SHOWN]]
        names = [f"{row['column']} {row['value']}" for row in effects[:_SHOWN]]
        bars, spreads = [row["effect"] for row in effects[:_SHOWN]], None
        heads, label, numbers = ("column", "value", "score"), "score", {"effects": effects}
    else:
        rows = permutation_importance(task, model, table)
        caption = f"How much worse the {task.measure} is with a column shuffled; whiskers: standard deviation."
        text = (
            f"How much worse the {task.measure} is if the values of one column are shuffled: mean and standard "
            f"deviation of {_REPEATS} shuffles of at most {_MOST_ROWS:,} test rows. Correlated columns share "
            "their importance."
        )
        if len(task.kinds) > _MOST_COLUMNS:
            text += f" Tried were columns of text and the numbers nearest to the target, {_MOST_COLUMNS} in all."
        cells = [(row["column"], f"{row['loss']:+.4f}", f"{row['std']:.4f}") for row in rows[:_SHOWN]]
        names = [row["column"] for row in rows[:_SHOWN]]
        bars, spreads = [row["loss"] for row in rows[:_SHOWN]], [row["std"] for row in rows[:_SHOWN]]
        heads, label, numbers = ("column", "worse by", "std"), "worse by", {"importance": rows}
    if not cells:
        return [], {}
    image = draw_bars(names, bars, spreads, label=label, caption=caption)
    labels = 2 if spreads is None else 1
    return [Section(HEADING, [text], columns=heads, rows=cells, labels=labels, images=[image])], numbers


def permutation_importance(task: TableTask[T, M, E], model: M, table: T, *, seed: int = 0) -> list[Importance]:
    """Return how much worse a model does where a column is shuffled, the most important first.

    Only some of the rows and columns of a large table are used.
    """
    random = np.random.default_rng(seed)
    units = max(_LEAST_UNITS, int(len(table) * _MOST_ROWS / len(table.features)))
    part = table.part(task.sample(table, units, random)) if units < len(table) else table
    whole = task.goodness(model, part)
    if math.isnan(whole):
        return []
    found: list[Importance] = []
    for name in _nearest(task, part):
        losses = []
        for _ in range(_REPEATS):
            features = part.features.copy(deep=False)
            features[name] = features[name].array[random.permutation(len(features))]
            losses.append(whole - task.goodness(model, replace(part, features=features)))
        found.append({"column": name, "loss": float(np.mean(losses)), "std": float(np.std(losses, ddof=1))})
    return sorted(found, key=lambda row: -row["loss"])


def _nearest(task: TableTask[T, M, E], table: T) -> list[str]:
    """Return all columns, or columns of text and those most correlated with the target."""
    names = list(task.kinds)
    if len(names) <= _MOST_COLUMNS:
        return names
    target = pd.Series(task.row_targets(table), index=table.features.index)
    numbers = [name for name in names if table.features[name].dtype.kind == "f"]
    nearness = table.features[numbers].corrwith(target).abs().fillna(0.0)
    ranked = [name for name in names if name not in nearness] + list(nearness.sort_values(ascending=False).index)
    return ranked[:_MOST_COLUMNS]


def linear_effects(task: TableTask[T, M, E], model: TwoClassModel, table: T) -> list[Effect]:
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
    found: list[Effect] = []
    for name, own in frame.groupby("column", sort=False):
        number = own["value"].iloc[-1] == ""
        centre = own["score"].iloc[-1] if number else float((own["score"] * own["weight"]).sum())
        shown = own.iloc[:1] if number else own
        found += [{"column": name, "value": row.value, "effect": row.score - centre} for row in shown.itertuples()]
    return sorted(found, key=lambda row: -abs(row["effect"]))
