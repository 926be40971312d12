"""Every study by name, with the numbers of `plans/studies.toml`."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

from experiments.config import EXPERIMENTS
from experiments.engine import Study
from experiments.paper import load_paper_study
from experiments.studies.bags import BagStudy
from experiments.studies.convergence import ConvergenceStudy
from experiments.studies.groups import GroupStudy
from experiments.studies.keel import KeelStudy
from experiments.studies.label_noise import LabelNoiseStudy
from experiments.studies.many_groups import ManyGroupsStudy
from experiments.studies.thresholds import ThresholdStudy

__all__ = ["load_studies"]

_KINDS: dict[str, Any] = {
    "keel": KeelStudy,
    "label_noise": LabelNoiseStudy,
    "thresholds": ThresholdStudy,
    "convergence": ConvergenceStudy,
    "bags": BagStudy,
    "groups": GroupStudy,
    "many_groups": ManyGroupsStudy,
}


def load_studies() -> dict[str, Study]:
    """Return the paper's experiments and the studies, by name.

    Example:
        >>> list(load_studies())[:4]
        ['molecules', 'bags', 'histology', 'keel']
    """
    numbers = tomllib.loads((files("experiments") / "plans" / "studies.toml").read_text(encoding="utf-8"))
    studies: dict[str, Study] = {name: load_paper_study(name) for name in EXPERIMENTS}
    for name, entry in numbers.items():
        kind = _KINDS.get(name) or _KINDS[name.split("_")[-1]]
        studies[name] = kind(name=name, **{key: tuple(v) if isinstance(v, list) else v for key, v in entry.items()})
    return studies
