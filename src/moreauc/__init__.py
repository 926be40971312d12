"""Losses and solvers for non-smooth weakly-convex coupled compositional optimisation.

- :class:`FCCOLoss`, :class:`TCCOLoss`: two- and three-level losses for functions the user brings;
- :class:`TPAUCLoss`, :class:`MultiInstanceTPAUCLoss`: two-way partial AUC of rows, and of bags of instances;
- :class:`GroupDROLoss`: the mean of the K worst groups;
- :class:`PreviousIterate`: the model at the weights before the last step, for variance reduction;
- :class:`TPAUCClassifier`, :class:`TPAUCLinear`, :class:`MultiInstanceClassifier`, :class:`GroupDROClassifier`,
  :class:`GroupDRORegressor`: estimators with scikit-learn's interface, loaded on first use;
- :func:`minimize`: one loop for the problems of :mod:`moreauc.problems` and your own;
- :mod:`moreauc.theory`: the paper's parameters and bounds, the Moreau envelope, a test of assumptions.
"""

from typing import TYPE_CHECKING, Any

from moreauc._version import __version__ as __version__
from moreauc.criteria import FCCOLoss, GroupDROLoss, MultiInstanceTPAUCLoss, TCCOLoss, TPAUCLoss
from moreauc.optim import PreviousIterate
from moreauc.solver import minimize

if TYPE_CHECKING:
    from moreauc.estimators import (
        GroupDROClassifier,
        GroupDRORegressor,
        MultiInstanceClassifier,
        TPAUCClassifier,
        TPAUCLinear,
    )

__all__ = [
    "FCCOLoss",
    "GroupDROClassifier",
    "GroupDROLoss",
    "GroupDRORegressor",
    "MultiInstanceClassifier",
    "MultiInstanceTPAUCLoss",
    "PreviousIterate",
    "TCCOLoss",
    "TPAUCClassifier",
    "TPAUCLinear",
    "TPAUCLoss",
    "minimize",
]


def __getattr__(name: str) -> Any:
    """Load the estimators on first use: they need scikit-learn, which the losses do not."""
    if name in ("GroupDROClassifier", "GroupDRORegressor", "MultiInstanceClassifier", "TPAUCClassifier", "TPAUCLinear"):
        from moreauc import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
