"""Small finite-sum problems whose full objective, subgradient, constants and optimum are known."""

from moreauc.problems._base import (
    Optimum,
    Problem,
    ThreeLevelProblem,
    TwoLevelProblem,
)
from moreauc.problems.three_level import BagRanking
from moreauc.problems.two_level import CVaRAbsoluteLoss, HingedSquares, WorstOfLosses

__all__ = [
    "BagRanking",
    "CVaRAbsoluteLoss",
    "HingedSquares",
    "Optimum",
    "Problem",
    "ThreeLevelProblem",
    "TwoLevelProblem",
    "WorstOfLosses",
]
