"""Small finite-sum problems whose full objective, constants and optimum are known."""

from experiments.problems.three_level import BagRanking
from experiments.problems.two_level import CVaRAbsoluteLoss, HingedSquares, WorstOfLosses

__all__ = ["BagRanking", "CVaRAbsoluteLoss", "HingedSquares", "WorstOfLosses"]
