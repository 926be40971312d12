"""Studies: what the docs claim, as programs that measure it again."""

from experiments.studies.bags import BagStudy
from experiments.studies.convergence import ConvergenceStudy
from experiments.studies.groups import GroupConvergenceStudy, GroupStudy
from experiments.studies.keel import KeelStudy
from experiments.studies.label_noise import LabelNoiseStudy
from experiments.studies.thresholds import ThresholdStudy

__all__ = [
    "BagStudy",
    "ConvergenceStudy",
    "GroupConvergenceStudy",
    "GroupStudy",
    "KeelStudy",
    "LabelNoiseStudy",
    "ThresholdStudy",
]
