"""Estimators with scikit-learn's interface: rows, bags of instances, groups.

- :class:`TPAUCClassifier`: rows of a table;
- :class:`TPAUCLinear`: rows of a table, by a linear model;
- :class:`TPAUCForest`: rows of a table, by a random forest;
- :class:`TPAUCBooster`: rows of a table, by boosted trees;
- :class:`TPAUCAuto`: rows of a table, by whichever of these four ranks best;
- :class:`MultiInstanceClassifier`: bags of instances;
- :class:`GroupDROClassifier`, :class:`GroupDRORegressor`: rows that belong to groups.

Each is loaded on first use: a linear model needs no networks.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moreauc.estimators.auto import TPAUCAuto
    from moreauc.estimators.boosted import TPAUCBooster
    from moreauc.estimators.forest import TPAUCForest
    from moreauc.estimators.group_dro import GroupDROClassifier, GroupDRORegressor
    from moreauc.estimators.linear import TPAUCLinear
    from moreauc.estimators.multi_instance import MultiInstanceClassifier
    from moreauc.estimators.tpauc import TPAUCClassifier

__all__ = [
    "GroupDROClassifier",
    "GroupDRORegressor",
    "MultiInstanceClassifier",
    "TPAUCAuto",
    "TPAUCBooster",
    "TPAUCClassifier",
    "TPAUCForest",
    "TPAUCLinear",
]

_HOMES = {
    **dict.fromkeys(("GroupDROClassifier", "GroupDRORegressor"), "group_dro"),
    "MultiInstanceClassifier": "multi_instance",
    "TPAUCAuto": "auto",
    "TPAUCBooster": "boosted",
    "TPAUCClassifier": "tpauc",
    "TPAUCForest": "forest",
    "TPAUCLinear": "linear",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"moreauc.estimators.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
