"""The interface of rows, bags and groups: a task and the training loop, without an estimator, do what estimators do."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from test_estimators import CASES, task_of
from torch import nn

from moreauc.data import ListBags
from moreauc.methods import METHODS
from moreauc.tasks.bags import BagTask
from moreauc.tasks.base import Data
from moreauc.tasks.goals import Classes, Numbers
from moreauc.tasks.groups import GroupTask
from moreauc.tasks.rows import RowTask
from moreauc.train import fit

REGION = {"min_tpr": 0.4, "max_fpr": 0.6}
TASKS = {
    "rows": (RowTask(loss="sonx", batch_size=32, **REGION), {"batch_size": 32, **REGION}),
    "bags": (BagTask(loss="auc_m_att", num_positives=4, **REGION), {"num_positives": 4, **REGION}),
    "groups": (GroupTask(loss="sonx", num_groups=3, top_k=2, goal=Classes(np.arange(2))), {"top_k": 2}),
    "numbers": (GroupTask(loss="cvar", num_groups=3, top_k=1, goal=Numbers("absolute")), {"sample_loss": "absolute"}),
}


def trained_by_hand(task, inputs, values, groups, model, num_seeds):
    """Train as an estimator does, step by step; return task, data, what is held out, loss and history."""
    random = np.random.RandomState(0)
    train, held = task.hold_out(values, 0.2, random, groups=groups)
    seeds = random.randint(2**31 - 1, size=num_seeds).tolist()
    task = task.fitted(values[train])
    data = Data(inputs, torch.from_numpy(task.targets(values)), values, groups)
    loss = task.build(data.part(train))
    batches = task.batches(data.part(train), loss, model, (seeds[1], *seeds[3:]))
    other = data.part(held)
    history = fit(
        *(model, loss, batches),
        validation=task.validation(other, loss),
        **{"epochs": 4, "optimizer": "adam", "lr": 0.02, "weight_decay": 1e-3, "seed": seeds[2]},
        proximal=task.method.proximal,
        **task.score(other, loss),
    )
    return task, data, held, loss, history


@pytest.mark.parametrize("name", TASKS)
def test_an_estimator_is_its_task_and_the_loop(name):
    case, (task, options) = CASES[name], TASKS[name]
    X, y, *rest = case.data
    groups = rest[0] if rest else None
    module = nn.Linear(case.width, case.outputs)
    shared = {"loss": task.loss, "epochs": 4, "lr": 0.02, "weight_decay": 1e-3, "standardize": False, "module": module}
    one = {"start": None, "ensemble": 1, "patience": None} if name == "rows" else {}
    estimator = case.kind(random_state=0, **shared, **options, **one).fit(*case.data)

    values = y if name == "numbers" else y.astype(np.int64)
    inputs = ListBags([torch.tensor(bag).float() for bag in X], y) if name == "bags" else torch.tensor(X).float()
    model = copy.deepcopy(module)
    task, data, held, _, history = trained_by_hand(task, inputs, values, groups, model, 4 if name == "bags" else 3)
    np.testing.assert_array_equal(held, estimator.held_out_)
    assert history["loss"] == estimator.history_["loss"] and history["score"] == estimator.history_["score"]
    assert all(torch.equal(value, estimator.model_.state_dict()[key]) for key, value in model.state_dict().items())
    assert task.method is METHODS[task_of(case)][task.loss]
    assert task.checksum(data) == task.checksum(data.part(np.arange(len(data))))
    assert task.checksum(data) != task.checksum(data.part(np.arange(len(data))[::-1].copy()))


@pytest.mark.parametrize("name", TASKS)
def test_a_hold_out_is_a_partition_that_keeps_equal_rows_together(name):
    task = TASKS[name][0]
    _, y, *rest = CASES[name].data
    same = np.arange(len(y)) // 2  # each row twice, in whatever class and group
    for seed in range(5):
        groups = rest[0] if rest else None
        for given in (None, same):
            train, held = task.hold_out(y, 0.3, np.random.RandomState(seed), groups=groups, same=given)
            assert sorted([*train, *held]) == list(range(len(y))) and len(held)
        assert not set(same[train]) & set(same[held])
        again = task.hold_out(y, 0.3, np.random.RandomState(seed), groups=groups, same=same)
        np.testing.assert_array_equal(again[1], held)
    assert len(task.hold_out(y, 0.0, np.random.RandomState(0), groups=groups)[1]) == 0
