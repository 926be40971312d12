"""Small finite-sum problems whose full objective, subgradient, constants and optimum are known."""

from moreauc.problems.base import ThreeLevelProblem, TwoLevelProblem
from moreauc.problems.three_level import BagRanking
from moreauc.problems.two_level import CVaRAbsoluteLoss, HingedSquares, WorstOfLosses

__all__ = ["BagRanking", "CVaRAbsoluteLoss", "HingedSquares", "ThreeLevelProblem", "TwoLevelProblem", "WorstOfLosses"]
