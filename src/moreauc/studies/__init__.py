"""Studies: what the docs claim, as programs that measure it again."""

from moreauc.studies.bags import BagStudy
from moreauc.studies.convergence import ConvergenceStudy
from moreauc.studies.groups import GroupConvergenceStudy, GroupStudy
from moreauc.studies.keel import KeelStudy
from moreauc.studies.label_noise import LabelNoiseStudy
from moreauc.studies.thresholds import ThresholdStudy

__all__ = [
    "BagStudy",
    "ConvergenceStudy",
    "GroupConvergenceStudy",
    "GroupStudy",
    "KeelStudy",
    "LabelNoiseStudy",
    "ThresholdStudy",
]
