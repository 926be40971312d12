"""What constructors of losses refuse, and the attributes that schedules may change."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from moreauc import FCCOLoss, GroupDROLoss, MultiInstanceTPAUCLoss, TCCOLoss, TPAUCLoss
from moreauc.criteria import (
    AUCMinMaxLoss,
    AUCSquaredHingeLoss,
    AWPolyLoss,
    CrossEntropyLoss,
    ExponentiatedGroupDROLoss,
    GroupedLoss,
    GroupERMLoss,
    MIDAMLoss,
    MiniBatchTPAUCLoss,
    PooledLoss,
    SampleCVaRLoss,
    SOTAsLoss,
    STACOLoss,
)

LABELS = [0, 1, 0, 1]
NAN, ZEROS = float("nan"), torch.zeros
REGION = {"labels": LABELS, "min_tpr": 0.5, "max_fpr": 0.5}
BAGS = {"labels": LABELS, "pooling": "mean"}


def relu(u, index):
    return torch.relu(u)


TCCO = {"num_outer": 3, "num_inner": 2, "outer": relu, "middle": relu, "tau1": 0.5, "tau2": 0.5}
# arguments that a loss takes, and for each some values that it does not
ARGUMENTS = [
    (
        FCCOLoss,
        {"num_blocks": 3, "outer": relu, "tau": 0.5},
        {
            **{"num_blocks": [0, 2.0, True], "dim": [0], "outer": [3], "tau": [0.0, 1.01, NAN, "big"]},
            **{"gamma": [-0.1, "theorem", None], "bound": [0.0], "initial": [ZEROS(4), NAN]},
        },
    ),
    (FCCOLoss, {"num_blocks": 3, "outer": relu, "tau": 1.0}, {"gamma": ["theory"]}),
    (
        TCCOLoss,
        TCCO,
        {
            **{"num_outer": [0], "num_inner": [-1], "dim_middle": [0], "dim_inner": [1.5], "middle": [None]},
            **{"tau1": [2], "tau2": [0], "gamma1": [-1], "gamma2": ["x"], "bound": [-2.0]},
            **{"initial_v": [ZEROS(2, 3), math.inf], "initial_u": [ZEROS(2)]},
        },
    ),
    (TCCOLoss, {**TCCO, "tau2": 1.0}, {"gamma2": ["theory"]}),
    (TPAUCLoss, {**REGION, "threshold_lr": "quantile"}, {"surrogate": ["squared"]}),
    (MultiInstanceTPAUCLoss, {**REGION, "pooling": "mean", "threshold_lr": "quantile"}, {"surrogate": ["squared"]}),
    (
        TPAUCLoss,
        REGION,
        {
            **{"min_tpr": [1.0], "max_fpr": [0.0], "link": ["probit"], "tau": [0.0], "gamma": [-1.0]},
            **{"threshold_lr": [(1.0, -1.0), (1.0, 1.0, 1.0), "median"], "sample_weight": [[1.0], [0.0] * 4]},
        },
    ),
    (
        MultiInstanceTPAUCLoss,
        {**REGION, "pooling": "smoothed_max"},
        {
            **{"pooling": ["median"], "temperature": [0.0], "tau": [1.5, (0.5, 0.5, 0.5)], "bound": [0.0]},
            **{"gamma": [(0.1, 0.1), (0.1, -0.1, 0.0), "paper"], "min_tpr": [1.0], "update_order": ["during"]},
        },
    ),
    (CrossEntropyLoss, {"labels": LABELS}, {"positive_weight": [0.0, "equal"]}),
    (AUCSquaredHingeLoss, {"labels": LABELS}, {"link": ["probit"], "margin": [-1.0]}),
    (AUCMinMaxLoss, {"labels": LABELS}, {"link": ["standardized"], "margin": [-1.0], "dual_lr": [-1.0]}),
    (MiniBatchTPAUCLoss, REGION, {"min_tpr": [1.0], "max_fpr": [0.0]}),
    (AWPolyLoss, {"labels": LABELS, "power": 1.0}, {"power": [-0.1]}),
    (
        SOTAsLoss,
        {"labels": LABELS},
        {"temperature_negatives": [0.0], "temperature_positives": [0.0], "tau1": [0.0], "tau2": [1.5]},
    ),
    (
        STACOLoss,
        REGION,
        {
            **{"min_tpr": [1.0], "max_fpr": [0.0], "dual_lr": [-0.1], "link": ["logit"]},
            "threshold_lr": [(0.1, -1.0), (0.1, 0.1, 0.1), "quantile"],
        },
    ),
    (MIDAMLoss, BAGS, {"pooling": ["max"], "tau": [0.0], "margin": [-1.0], "link": ["probit"], "dual_lr": [-1.0]}),
    (MIDAMLoss, {"labels": LABELS, "pooling": "smoothed_max"}, {"temperature": [-1.0]}),
    (
        PooledLoss,
        {"criterion": CrossEntropyLoss(LABELS), "pooling": "smoothed_max"},
        {
            **{"pooling": ["max"], "temperature": [0.0]},
            "criterion": [
                nn.Linear(1, 1),
                *(torch.sigmoid, MultiInstanceTPAUCLoss(**REGION, pooling="mean"), FCCOLoss(3, relu, tau=0.5)),
                PooledLoss(CrossEntropyLoss(LABELS), "mean"),
            ],
        },
    ),
    (
        GroupDROLoss,
        {"num_groups": 6, "top_k": 1},
        {
            **{"num_groups": [0], "top_k": [0, 7], "tau": [0.0], "gamma": [-1], "threshold_lr": ["best", -1]},
            "initial": [ZEROS(3)],
        },
    ),
    (
        GroupERMLoss,
        {"num_groups": 2},
        {"num_groups": [0], "group_sizes": [[1, 2, 3], [1.0, 2.0], np.array([2, 0])], "num_samples": [3]},
    ),
    (GroupERMLoss, {"num_groups": 2, "group_sizes": [4, 2]}, {"num_samples": [3]}),
    (ExponentiatedGroupDROLoss, {"num_groups": 2}, {"num_groups": [0], "step": [-1.0]}),
    (SampleCVaRLoss, {"fraction": 0.5}, {"fraction": [0.0, 1.1]}),
    (
        GroupedLoss,
        {"criterion": GroupERMLoss(3), "groups": [0, 1, 2]},
        {
            "criterion": [relu, nn.Linear(1, 1), AUCSquaredHingeLoss([0, 1])],
            "loss": ["hinge", None],
            "groups": [
                *([0, 2, 2], torch.tensor([[1, 1, 0], [0, 1, 0]]), [0, 1, 2, 3], [0, 1, 2, -1], [0.0, 1.0, 2.0]),
                *(["a", "b", "c"], ZEROS(4, 2), torch.full((4, 3), 0.5), [], 1),
            ],
        },
    ),
    (GroupedLoss, {"criterion": SampleCVaRLoss(fraction=0.5), "groups": [0, 1]}, {"groups": [[2, 0, 0]]}),
]


@pytest.mark.parametrize(
    ("kind", "options", "name", "value"),
    [
        pytest.param(kind, options, name, value, id=f"{kind.__name__}-{name}-{number}")
        for kind, options, wrong in ARGUMENTS
        for name, values in wrong.items()
        for number, value in enumerate(values)
    ],
)
def test_wrong_arguments_are_named(kind, options, name, value):
    kind(**options)
    with pytest.raises(ValueError, match=rf"^\w+: {name}"):
        kind(**{**options, name: value})


LABELLED = [(kind, options) for kind, options, _ in ARGUMENTS if "labels" in options]


@pytest.mark.parametrize("labels", [[1, 1], [0, 0], [0, 3], [[0, 1]]])
@pytest.mark.parametrize(("kind", "options"), LABELLED)
def test_wrong_training_labels(kind, options, labels):
    with pytest.raises(ValueError, match=f"{kind.__name__}: labels must"):
        kind(**{**options, "labels": torch.tensor(labels)})


@pytest.mark.parametrize(
    ("labels", "got"),
    [
        *((None, "None"), ("0110", ".*"), ([object(), 1], ".*"), ({0: 1}, "a dict"), (["no", "yes"], "'no' in a list")),
        *(([0, 1, "yes"], "'yes' in a list"), (np.array(["0", "1"]), "'0' in a ndarray")),
        (np.array([0, None, 1], dtype=object), "None in a ndarray"),
        (pd.Series(["no", "yes"]), "'no' in a Series"),
        ([[0], [1, 0]], "a list in a list"),
        ([np.zeros((2, 2)), np.zeros((2, 3))], "a list"),
    ],
)
def test_labels_that_are_no_numbers_are_shown(labels, got):
    with pytest.raises(ValueError, match=f"TPAUCLoss: labels must be a vector of 0 and 1, got {got}$"):
        TPAUCLoss(labels, min_tpr=0.5, max_fpr=0.5)


@pytest.mark.parametrize(
    "labels",
    [
        *(np.array([0, 1, 1, 0]), np.array([0, 1, 1, 0])[::-1], np.array([0, 1, 1, 0], dtype=">i4")),
        *(np.array([0, 1, 1, 0], dtype=object), np.array([0.0, True, 1, np.int8(0)], dtype=object)),
    ],
)
def test_labels_may_be_arrays_of_any_make(labels):
    labels.flags.writeable = False
    assert TPAUCLoss(labels, min_tpr=0.5, max_fpr=0.5).position.tolist() == [-1, 0, 1, -1]


# attributes that schedules may change: what may be set, what is then read, and what is refused
ATTRIBUTES = [
    (FCCOLoss, {"num_blocks": 3, "outer": relu, "tau": 0.5}, {"tau": (1.0, 1.5), "gamma": (2.0, -1.0)}),
    (*(TCCOLoss, TCCO), {"tau1": (0.2, 0.0), "tau2": (0.1, 2.0), "gamma1": (0.3, -1.0), "gamma2": (0.0, 0.5)}),
    (TCCOLoss, {**TCCO, "gamma2": 1.0}, {"gamma2": (0.0, -1.0)}),
    (
        *(TPAUCLoss, REGION),
        {"tau": (0.2, 0.0), "gamma": ("theory", -1.0), "threshold_lr": ((1.0, 0.1), (1.0, 1.0, 1.0))},
    ),
    (TPAUCLoss, REGION, {"threshold_lr": ("quantile", "median")}),
    (TPAUCLoss, {**REGION, "surrogate": "squared"}, {"threshold_lr": ((1.0, 0.1), (1.0, -1.0))}),
    (
        *(MultiInstanceTPAUCLoss, {**REGION, "pooling": "mean"}),
        {"tau": ((0.5, 0.4), (0.5, 0.0)), "gamma": ((0.1, 0.2, "theory"), (0.1, -1.0, 0.0))},
    ),
    (SOTAsLoss, {"labels": LABELS}, {"tau1": (0.2, -1.0), "tau2": (0.3, -1.0)}),
    (AUCMinMaxLoss, {"labels": LABELS}, {"dual_lr": (0.0, -1.0)}),
    (AWPolyLoss, {"labels": LABELS, "power": 1.0}, {"power": (2.0, -1.0)}),
    (STACOLoss, REGION, {"dual_lr": (0.0, -1.0), "threshold_lr": ((0.2, 0.0), (0.1, -1.0))}),
    (MIDAMLoss, BAGS, {"tau": (1.0, 0.0), "dual_lr": (0.0, -1.0)}),
    (GroupDROLoss, {"num_groups": 3, "top_k": 1}, {"tau": (0.5, 0.0), "threshold_lr": ("quantile", -1)}),
    (ExponentiatedGroupDROLoss, {"num_groups": 3}, {"step": (0.0, -1)}),
    (SampleCVaRLoss, {"fraction": 0.5}, {"fraction": (1.0, 2)}),
]


@pytest.mark.parametrize(("kind", "options", "changes"), ATTRIBUTES)
def test_schedules_may_change_attributes_within_their_range(kind, options, changes):
    criterion = kind(**options)
    for name, (value, bad) in changes.items():
        setattr(criterion, name, value)
        assert getattr(criterion, name) == value
        with pytest.raises(ValueError, match=rf"^{kind.__name__}: {name}"):
            setattr(criterion, name, bad)
        assert getattr(criterion, name) == value


def test_one_number_sets_a_pair_and_rules_that_share_a_weight_are_checked_together():
    assert TPAUCLoss(**REGION, threshold_lr=0.5).threshold_lr == (0.5, 0.5)
    assert STACOLoss(**REGION, threshold_lr=0.3).threshold_lr == (0.3, 0.3)
    bags = MultiInstanceTPAUCLoss(**REGION, pooling="mean", tau=0.5, gamma=(0.1, "theory", 0.0))
    with pytest.raises(ValueError, match="gamma2='theory' needs tau2 in"):
        bags.tau = 1.0
    assert bags.tau == (0.5, 0.5)
