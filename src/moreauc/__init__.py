"""Losses and solvers for non-smooth weakly-convex coupled compositional optimisation.

- :class:`FCCOLoss`, :class:`TCCOLoss`: two- and three-level losses for functions the user brings;
- :class:`TPAUCLoss`, :class:`MultiInstanceTPAUCLoss`: two-way partial AUC of rows, and of bags of instances;
- :class:`GroupDROLoss`: the mean of the K worst groups;
- :class:`PreviousIterate`: the model at the weights before the last step, for variance reduction;
- :mod:`moreauc.problems`, :func:`minimize`: problems with a known optimum, and one loop that solves them;
- :mod:`moreauc.theory`: the paper's parameters and bounds, the Moreau envelope, a test of assumptions.
"""

from moreauc import problems, solver, theory
from moreauc.criteria import FCCOLoss, GroupDROLoss, MultiInstanceTPAUCLoss, TCCOLoss, TPAUCLoss
from moreauc.optim import PreviousIterate
from moreauc.solver import minimize

__version__ = "0.1.0.dev0"

__all__ = [
    "FCCOLoss",
    "GroupDROLoss",
    "MultiInstanceTPAUCLoss",
    "PreviousIterate",
    "TCCOLoss",
    "TPAUCLoss",
    "minimize",
    "problems",
    "solver",
    "theory",
]
