"""Estimators with scikit-learn's interface: rows, bags of instances, groups.

- :class:`TPAUCClassifier`: rows of a table;
- :class:`TPAUCLinear`: rows of a table, by a linear model;
- :class:`TPAUCForest`: rows of a table, by a random forest;
- :class:`TPAUCBooster`: rows of a table, by boosted trees;
- :class:`TPAUCAuto`: rows of a table, by whichever of these four ranks best;
- :class:`MultiInstanceClassifier`: bags of instances;
- :class:`GroupDROClassifier`, :class:`GroupDRORegressor`: rows that belong to groups.
"""

from moreauc.estimators.auto import TPAUCAuto
from moreauc.estimators.boosted import TPAUCBooster
from moreauc.estimators.forest import TPAUCForest
from moreauc.estimators.group_dro import GroupDROClassifier, GroupDRORegressor, GroupsWarning
from moreauc.estimators.linear import TPAUCLinear
from moreauc.estimators.multi_instance import MultiInstanceClassifier
from moreauc.estimators.tpauc import TPAUCClassifier

__all__ = [
    "GroupDROClassifier",
    "GroupDRORegressor",
    "GroupsWarning",
    "MultiInstanceClassifier",
    "TPAUCAuto",
    "TPAUCBooster",
    "TPAUCClassifier",
    "TPAUCForest",
    "TPAUCLinear",
]
