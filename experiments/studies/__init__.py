"""Every study by name, with the numbers of `plans/studies.toml` and, for the largest, of a plan of its own."""

from __future__ import annotations

from typing import Any

from experiments.config import EXPERIMENTS, read_plan
from experiments.engine import Study
from experiments.paper import load_paper_study
from experiments.studies.bags import BagStudy
from experiments.studies.convergence import ConvergenceStudy
from experiments.studies.defaults import DefaultsStudy
from experiments.studies.groups import GroupStudy
from experiments.studies.when import WhenStudy

__all__ = ["load_studies"]

_KINDS: dict[str, Any] = {
    "convergence": ConvergenceStudy,
    "bags": BagStudy,
    "groups": GroupStudy,
    "defaults": DefaultsStudy,
    "screening": DefaultsStudy,
    "bag_defaults": DefaultsStudy,
    "when": WhenStudy,
}


def load_studies() -> dict[str, Study]:
    """Return the paper's experiments and the studies, by name.

    Example:
        >>> list(load_studies())[:4]
        ['molecules', 'bags', 'histology', 'convergence']
    """
    numbers = {**read_plan("studies"), **{name: read_plan(name) for name in ("defaults", "screening", "bag_defaults")}}
    studies: dict[str, Study] = {name: load_paper_study(name) for name in EXPERIMENTS}
    for name, entry in numbers.items():
        kind = _KINDS.get(name) or _KINDS[name.split("_")[-1]]
        studies[name] = kind(name=name, **entry)
    return studies
