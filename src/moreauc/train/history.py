"""The history of a training run: one row of numbers for each epoch."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from typing import Any


class UntrainedWarning(UserWarning):
    """No epoch did better on the validation data than the weights before the first one, which were kept."""


@dataclass
class History:
    """One row for each epoch, and which of them was the best on the validation data.

    Attributes:
        rows: dictionaries with `phase` ("warm start" or "train"), `epoch` (from 0 in its phase), `loss` (mean over the
            epoch's steps), `lr`, `seconds`, and `score` (of the validation data: TPAUC, or what `fit` was
            given) where there is validation data; where that is TPAUC, also `wider_score`, the TPAUC of the region half
            way to the whole square, `auc`, and `gap`, from the highest negative to the lowest positive in standard
            deviations of the scores (0 where a pair is not in order).
        best_score: the highest `score` of the phase "train" (of its start, too), or None without validation data.
        best_epoch: its epoch, -1 for the weights before the first one. Of epochs with one `score` the best is that with
            the highest `wider_score`, then `auc`, then `gap`, then the earliest.
        best_scores: `score`, `wider_score`, `auc` and `gap` of that epoch.
        best_tied: share of the region's validation rows that are tied with a row of the other class at that epoch.
        chosen_by: which of these distinguished the best epoch from all others; "earliest" if none did.
        restored: whether the model was given the weights of `best_epoch` at the end.

    Example:
        >>> history = History()
        >>> history.add(phase="train", epoch=0, loss=0.5)
        >>> history["loss"]
        [0.5]
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    best_score: float | None = None
    best_epoch: int | None = None
    best_scores: dict[str, float] = field(default_factory=dict)
    best_tied: float = 0.0
    chosen_by: str = "score"
    restored: bool = False

    @property
    def choice(self) -> str:
        """How the best epoch was chosen among epochs with the same score, in words; empty if there was one."""
        wider = {"wider_score": "TPAUC of the region half way to the whole square", "auc": "AUC"}
        if self.chosen_by in wider:
            return (
                f"equal in other epochs, chosen by the {wider[self.chosen_by]}, {self.best_scores[self.chosen_by]:.4f}"
            )
        if self.chosen_by == "gap":
            return (
                "all validation pairs are in order, in other epochs too; chosen by the gap between the classes, "
                f"{self.best_scores['gap']:.3g} standard deviations of the scores"
            )
        return "equal in other epochs, the earliest was chosen" if self.chosen_by == "earliest" else ""

    @property
    def untrained(self) -> bool:
        """Whether the model was given the weights from before the first epoch at the end."""
        return self.restored and self.best_epoch == -1

    def add(self, **row: Any) -> None:
        """Append a row."""
        self.rows.append(row)

    def __getitem__(self, name: str) -> list[Any]:
        """Return one column over the epochs of the phase "train"; rows without it are left out."""
        return [row[name] for row in self.rows if row["phase"] == "train" and name in row]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return dict(sorted(asdict(self).items()))

    state_dict = to_dict

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take everything from a checkpoint."""
        for entry in fields(self):
            setattr(self, entry.name, deepcopy(state[entry.name]))
