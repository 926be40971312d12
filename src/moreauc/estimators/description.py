"""What a fitted estimator says of itself, for pages and commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from moreauc.estimators.ranker import Ranker
    from moreauc.train import History

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ModelScore:
    """How a kind of model ranked the held-out rows, trained on the others."""

    name: str  # "linear", "forest", "trees" or "mlp"
    tpauc: float  # two-way partial AUC of the held-out rows; NaN where no rows could be held out
    below: float  # by how much it is below the best one
    error: float  # standard error of that difference, paired by rows
    chosen: bool  # whether the model is used
    seconds: float  # time of its training


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a page shows of a fitted estimator.

    Attributes:
        kind: "linear" where scores are a sum of terms of the columns; a linear network is one of these.
        title: name in tables.
        held_out: numbers of the rows or bags that were not trained on; empty where there are none, or where folds or
            out-of-bag scores take their place.
        threshold: raw scores above it are called positive; None for groups.
        summary: what the training found, as a part of a sentence; empty for networks, which have histories.
        coefficients: weights of the encoded columns, which rise with the chance of `classes_[1]`; None if not linear.
        importance: share of each encoded column in what the splits of trees gain; None for other models.
        candidates: the models that were tried, where several were.
        members: the models whose mean the scores are, by name; empty where there is one.
        histories: of each trained network.
    """

    kind: Literal["network", "linear", "forest", "trees", "auto"]
    title: str
    held_out: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    threshold: float | None = None
    summary: str = ""
    coefficients: Floats | None = None
    importance: Floats | None = None
    candidates: tuple[ModelScore, ...] = ()
    members: Mapping[str, Ranker] = field(default_factory=dict)
    histories: tuple[History, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GroupDescription(Description):
    """What a page shows of a fitted estimator for groups.

    Attributes:
        row_loss: name of the loss of a row, such as "log loss".
        top_k: how many of the worst groups count.
        chosen_by: the held-out loss that the epoch was chosen by; None if no rows are held out.
        loss_threshold: mean loss above which a group contributed to the loss at the end; None for losses without one.
    """

    row_loss: str
    top_k: int
    chosen_by: str | None
    loss_threshold: float | None
