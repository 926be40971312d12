"""The training loop: :func:`fit`, :func:`train_step`, :func:`predict_scores`, and the callbacks they take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moreauc.train.history import UntrainedWarning
    from moreauc.train.loop import fit, predict_scores, train_step

__all__ = ["UntrainedWarning", "fit", "predict_scores", "train_step"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from moreauc.train import loop

        return getattr(loop, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
