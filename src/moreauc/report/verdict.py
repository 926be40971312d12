"""The result in words: which model is better on the test data, by how much, and whether that is beyond chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import numpy as np
from scipy.stats import t as student

from moreauc.metrics.bootstrap import BootstrapInterval, Resamples

Outcome = Literal["better", "worse", "equal", "alone"]


class Judged(Protocol):
    """A model on the test data."""

    @property
    def title(self) -> str:
        """Its name."""

    @property
    def resamples(self) -> Resamples:
        """What models are judged by, over resamples of the test data."""


@dataclass(frozen=True)
class Verdict:
    """The first model beside the best of the others."""

    outcome: Outcome  # of the first model; "equal" where the difference may be chance
    text: tuple[str, ...]  # the headline, and what it rests on
    other: str | None = None  # title of the best of the others
    difference: BootstrapInterval | None = None  # how much better the first is, over resamples of the test data

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as plain data, without the text."""
        return {"outcome": self.outcome, "other": self.other, "difference": self.difference and asdict(self.difference)}


def judge(models: Sequence[Judged], measure: str, unit: str, *, lower_is_better: bool = False) -> Verdict:
    """Compare the first model with the best of the others by a paired bootstrap.

    Args:
        models: the first, and those to compare it with.
        measure: what they are judged by, in words.
        unit: what is resampled, such as "rows".
        lower_is_better: whether a low number is good.
    """
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


def rank(rows: Sequence[dict[str, Any]], measure: str, folds: int) -> list[str]:
    """Return which method is best by cross-validation, and which may be as good.

    Args:
        rows: one for each method, with "title", "mean" and "scores", those of every fold and seed, in one order.
        measure: what they are judged by, higher is better, in words.
        folds: number of folds of each seed.
    """
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
