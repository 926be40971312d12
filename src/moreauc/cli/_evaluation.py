"""How well scores do on labelled rows: the numbers that `fit` and `evaluate` print and report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score, roc_curve

from moreauc._checks import floor_count
from moreauc.data.tables import TableError
from moreauc.metrics import (
    BootstrapInterval,
    bootstrap_interval,
    tied_share,
    tpauc_score,
)
from moreauc.metrics.ties import ties_text

Array = NDArray[Any]

COLUMNS = ("method", "TPAUC", "95 % interval", "AUC", "TPR at budget", "TPR", "FPR")
EXPLANATION = (
    "TPAUC is the share of correctly ordered pairs among the lowest positives and the highest negatives of the region, "
    "with the 95 % bootstrap interval over test rows (training data and seed held fixed). TPR at budget is the highest "
    "true positive rate that any threshold reaches on these rows within the false-positive budget. TPR and FPR are "
    "those of the model's own threshold, which was fixed in training."
)


@dataclass(frozen=True)
class Evaluation:
    """Scores of one model on labelled rows.

    Attributes:
        title: name of the model in tables.
        tpauc: TPAUC with its bootstrap interval.
        auc: area under the whole curve.
        tpr_at_budget: highest true positive rate at a false positive rate of at most the budget.
        threshold: the model's own threshold; a higher score is a positive decision.
        tpr: true positive rate there.
        fpr: false positive rate there.
        tied: share of the region's rows whose score is also that of a row of the other class.
        unit: what is scored, "rows" or "bags".
    """

    title: str
    tpauc: BootstrapInterval
    auc: float
    tpr_at_budget: float
    threshold: float
    tpr: float
    fpr: float
    tied: float
    unit: str = "rows"

    @property
    def warnings(self) -> list[str]:
        """What a user must know before believing the numbers."""
        text = ties_text(self.tied, unit=self.unit)
        return [] if text is None else [f"{self.title}: {text}"]

    @property
    def interval(self) -> str:
        """The interval as text."""
        return f"[{self.tpauc.low:.3f}, {self.tpauc.high:.3f}]"

    @property
    def row(self) -> tuple[str, ...]:
        """Cells of a table with the head `COLUMNS`."""
        numbers = (self.auc, self.tpr_at_budget, self.tpr, self.fpr)
        return (self.title, f"{self.tpauc.estimate:.4f}", self.interval, *(f"{number:.4f}" for number in numbers))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)


def evaluate_scores(
    title: str,
    labels: Array,
    scores: Array,
    decisions: Array,
    *,
    threshold: float,
    min_tpr: float,
    max_fpr: float,
    unit: str = "rows",
) -> Evaluation:
    """Return the numbers of one model.

    Args:
        title: name of the model.
        labels: 0 and 1, shape `(n,)`.
        scores: shape `(n,)`.
        decisions: 0 and 1, shape `(n,)`.
        threshold: where the decisions turn.
        min_tpr: lower edge of the region.
        max_fpr: upper edge of the region, and the false-positive budget.
        unit: what is scored, "rows" or "bags".
    """
    fpr, tpr, _ = roc_curve(labels, scores, drop_intermediate=False)
    resamples = min(1000, max(100, 20_000_000 // len(labels)))  # a minute at most
    return Evaluation(
        title=title,
        tpauc=bootstrap_interval(tpauc_score, labels, scores, min_tpr=min_tpr, max_fpr=max_fpr, resamples=resamples),
        auc=float(roc_auc_score(labels, scores)),
        tpr_at_budget=float(tpr[fpr <= max_fpr + 1e-12].max()),
        threshold=threshold,
        tpr=float(decisions[labels == 1].mean()),
        fpr=float(decisions[labels == 0].mean()),
        tied=tied_share(labels, scores, min_tpr=min_tpr, max_fpr=max_fpr),
        unit=unit,
    )


def check_rows(labels: Array, where: str, *, min_tpr: float, max_fpr: float, unit: str = "rows") -> None:
    """Check that some rows have a TPAUC.

    Args:
        labels: 0 and 1, shape `(n,)`.
        where: name of the rows in errors.
        min_tpr: lower edge of the region.
        max_fpr: upper edge of the region.
        unit: what they are called, "rows" or "bags".

    Raises:
        TableError: if a class is missing, or too small for the region to hold one of its rows.
    """
    positives = int(np.sum(labels))
    for name, count, option, value, share in (
        ("positive", positives, "--min-tpr", min_tpr, 1.0 - min_tpr),
        ("negative", len(labels) - positives, "--max-fpr", max_fpr, max_fpr),
    ):
        if not count:
            raise TableError(f"{where}: there are no {name}s among {len(labels)} {unit}")
        if not floor_count(count, share):
            rows = f"{count} {name}{'s' if count > 1 else ''}"
            raise TableError(f"{where}: with {rows}, {option} {value:g} leaves none in the region; TPAUC is undefined")
