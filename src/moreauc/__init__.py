"""Losses and solvers for non-smooth weakly-convex coupled compositional optimisation.

- :class:`FCCOLoss`, :class:`TCCOLoss`: two- and three-level losses for functions the user brings;
- :class:`TPAUCLoss`, :class:`MultiInstanceTPAUCLoss`: two-way partial AUC of rows, and of bags of instances;
- :class:`GroupDROLoss`: the mean of the K worst groups;
- :class:`PreviousIterate`: the model at the weights before the last step, for variance reduction;
- :class:`TPAUCClassifier`, :class:`TPAUCLinear`, :class:`TPAUCForest`, :class:`TPAUCBooster`, :class:`TPAUCAuto`,
  :class:`MultiInstanceClassifier`, :class:`GroupDROClassifier`, :class:`GroupDRORegressor`: estimators with
  scikit-learn's interface;
- :func:`minimize`: one loop for finite-sum problems of your own, by the paper's algorithms;
- :mod:`moreauc.theory`: the parameters of the paper's theorems, and the Moreau envelope.

Modules and names are loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from moreauc._version import __version__ as __version__

if TYPE_CHECKING:
    from moreauc.criteria import FCCOLoss, GroupDROLoss, MultiInstanceTPAUCLoss, TCCOLoss, TPAUCLoss
    from moreauc.estimators import (
        GroupDROClassifier,
        GroupDRORegressor,
        MultiInstanceClassifier,
        TPAUCAuto,
        TPAUCBooster,
        TPAUCClassifier,
        TPAUCForest,
        TPAUCLinear,
    )
    from moreauc.optim import PreviousIterate
    from moreauc.solver import minimize

__all__ = [
    "FCCOLoss",
    "GroupDROClassifier",
    "GroupDROLoss",
    "GroupDRORegressor",
    "MultiInstanceClassifier",
    "MultiInstanceTPAUCLoss",
    "PreviousIterate",
    "TCCOLoss",
    "TPAUCAuto",
    "TPAUCBooster",
    "TPAUCClassifier",
    "TPAUCForest",
    "TPAUCLinear",
    "TPAUCLoss",
    "minimize",
]


_MODULES = {
    *("boosting", "checkpoint", "contrib", "criteria", "data", "distributed", "estimators", "methods"),
    *("metrics", "models", "optim", "samplers", "solver", "theory", "train"),
}


def __getattr__(name: str) -> Any:
    """Load what is asked for on first use: losses need torch, estimators also scikit-learn, and both take seconds."""
    if name in _MODULES:
        return import_module(f"moreauc.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name.endswith("Loss"):
        home = "criteria"
    else:
        home = {"PreviousIterate": "optim", "minimize": "solver"}.get(name, "estimators")
    return getattr(import_module(f"moreauc.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
