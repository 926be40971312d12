"""Losses and solvers for non-smooth weakly-convex coupled compositional optimisation."""

from moreauc.criteria import FCCOLoss, TCCOLoss
from moreauc.optim import PreviousIterate

__version__ = "0.1.0.dev0"

__all__ = ["FCCOLoss", "PreviousIterate", "TCCOLoss"]
