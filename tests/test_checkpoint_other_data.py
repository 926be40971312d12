"""A checkpoint of a run on other labels, or judged otherwise, is refused, whoever holds the labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from interruptions import Kill, Killed, data, network, planned, small_run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from moreauc.checkpoint import CheckpointError, RunState
from moreauc.checkpoint.loader import held_labels
from moreauc.criteria import GroupDROLoss, GroupedLoss
from moreauc.data import (
    BagBatches,
    IndexedDataset,
    ListBags,
    TensorBatches,
    WholeBags,
)
from moreauc.estimators import GroupDROClassifier, MultiInstanceClassifier, TPAUCClassifier
from moreauc.samplers import PosNegSampler

X, Y = data()
OTHER = Y.flip(0).clone()  # as many positives
OTHERS = "labels of the training set must be those of this run, got others"


class Own(nn.Module):
    """A loss that holds no labels."""

    def forward(self, scores, labels, index):
        return nn.functional.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype))


class Evaluated:
    """Validation data without labels that could be seen."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def predict(self, model, device=None):
        return torch.arange(60.0).double(), Y


def refused(folder, first, second, message, **options):
    with pytest.raises(Killed):
        small_run(folder, callbacks=[Kill(8)], **options, **first)
    with pytest.raises(CheckpointError, match=message):
        small_run(folder, **options, **second)
    small_run(folder, **options, **first)  # the run itself goes on


LOADERS = {
    "tensors": lambda y: TensorBatches(X, y, planned(Y)),
    "pairs": lambda y: DataLoader(IndexedDataset(TensorDataset(X, y)), batch_size=12),
    "given": lambda y: DataLoader(IndexedDataset(list(X), y), batch_size=12),
}


@pytest.mark.parametrize("name", LOADERS)
def test_labels_that_the_loader_holds(name, tmp_path):
    make = LOADERS[name]
    refused(tmp_path, {"loader": make(Y)}, {"loader": make(OTHER)}, OTHERS, criterion=Own())


def test_labels_beside_the_groups_of_a_loss(tmp_path):
    def given(y):
        criterion = GroupedLoss(GroupDROLoss(4, top_k=2), torch.arange(60) % 4)
        return {"criterion": criterion, "loader": TensorBatches(X, y, planned(Y))}

    refused(tmp_path, given(Y), given(OTHER), OTHERS)


def test_a_sampler_made_of_other_labels(tmp_path):
    first, second = ({"loader": TensorBatches(X, Y, planned(y))} for y in (Y, OTHER))
    message = "loader.sampler.checksum_of_labels must be as in this run, .*: the batches would differ"
    refused(tmp_path, first, second, message)


def test_processes_have_the_same_checksums():
    options = {"num_positives": 2, "num_negatives": 2, "world_size": 2}
    first, second = (PosNegSampler(Y, rank=rank, **options) for rank in range(2))
    runs = []
    for sampler in (first, second):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        runs.append(RunState(model, Own(), optimizer, TensorBatches(X, Y, sampler)))
    runs[1].check(runs[0].state_dict())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (TensorBatches(X, OTHER), "validation_labels of the run must be"),
        (TensorBatches(X[:30], Y[:30]), "validation_labels of the run must be"),
        (Evaluated(60), "validation_labels of the run must be"),
    ],
)
def test_labels_of_the_validation_data(other, message, tmp_path):
    refused(tmp_path, {"validation": TensorBatches(X, Y)}, {"validation": other}, message)


def test_length_of_validation_data_whose_labels_cannot_be_seen(tmp_path):
    message = "validation_length of the run must be 50 as in this run, got 60"
    refused(tmp_path, {"validation": Evaluated(60)}, {"validation": Evaluated(50)}, message)


def test_the_batch_size_of_the_validation_is_free(tmp_path):
    with pytest.raises(Killed):
        small_run(tmp_path, callbacks=[Kill(8)], validation=TensorBatches(X, Y, batch_size=20))
    small_run(tmp_path, validation=TensorBatches(X, Y, batch_size=30))


def gap(scores, labels):
    return float(scores[labels == 1].mean() - scores[labels == 0].mean())


def other_gap(scores, labels):
    return float(scores[labels == 1].amin() - scores[labels == 0].amax())


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({}, {"score": gap}, "score of the run must be test_checkpoint_other_data.gap as in this run, got None in"),
        ({"score": gap}, {}, "score of the run must be None as in this run, got test_checkpoint_other_data.gap in"),
        ({"score": gap}, {"score": other_gap}, "score of the run must be .*.other_gap as in this run, got .*.gap in"),
    ],
)
def test_a_run_judged_by_another_score(first, second, message, tmp_path):
    refused(tmp_path, first, second, message, validation=TensorBatches(X, Y))


def test_settings_of_one_run_only():
    def run(**settings):
        model = network()
        return RunState(model, Own(), torch.optim.SGD(model.parameters(), 0.1), range(3), settings=settings)

    with pytest.raises(CheckpointError, match="b of the run must be 2 as in this run, got absent"):
        run(a=1, b=2).check(run(a=1).state_dict())
    with pytest.raises(CheckpointError, match="b of the run must be absent as in this run, got 2"):
        run(a=1).check(run(a=1, b=2).state_dict())
    run(a=1, b=2).check(run(b=2, a=1).state_dict())


def test_estimators_without_labels_in_the_loss(tmp_path):
    groups = torch.arange(60).numpy() % 4

    def make():
        return GroupDROClassifier(epochs=2, random_state=1, validation_fraction=0.0)

    make().fit(X.numpy(), Y.numpy(), groups=groups, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match=OTHERS):
        make().fit(X.numpy(), 1 - Y.numpy(), groups=groups, checkpoint=tmp_path)


def test_bags():
    bags = [ListBags([X[row : row + 2] for row in range(0, 60, 2)], labels) for labels in (Y[:30], OTHER[:30])]
    sampler = PosNegSampler(Y[:30], num_positives=2, num_negatives=2)
    for make in (lambda b: BagBatches(b, sampler, instances_per_bag=1), lambda b: WholeBags(b, "mean")):
        first, second = (held_labels(make(b)) for b in bags)
        assert list(first) == ["loader.labels"] and first != second and first == held_labels(make(bags[0]))


def test_labels_in_lists_and_none_at_all():
    class Images:
        targets = None

        def __init__(self, targets):
            self.targets = targets

    assert held_labels(Images([0, 1])) == held_labels(Images(torch.tensor([0, 1], dtype=torch.int32)))
    assert held_labels(Images([0.0, 1.0])) == held_labels(Images(torch.tensor([0.0, 1.0])))
    assert held_labels(Images(["a"])) == held_labels(Images([])) == held_labels(range(3)) == {}


_QUICK = {"epochs": 2, "random_state": 0}
ESTIMATORS = {
    "rows": lambda: (TPAUCClassifier(**_QUICK), X.numpy(), {}),
    "bags": lambda: (MultiInstanceClassifier(**_QUICK), [row.reshape(1, -1) for row in X.numpy()], {}),
    "groups": lambda: (GroupDROClassifier(**_QUICK), X.numpy(), {"groups": np.arange(len(X)) % 3}),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_inputs_of_an_estimator(name, tmp_path):
    """Other inputs than those of the checkpoint are refused: the old weights would be those of another table."""
    estimator, inputs, more = ESTIMATORS[name]()
    scores = estimator.fit(inputs, Y.numpy(), **more, checkpoint=tmp_path).predict(inputs)
    other = [-bag for bag in inputs] if isinstance(inputs, list) else -inputs
    with pytest.raises(
        CheckpointError, match=r"loader.checksum_of_inputs must be as in this run, '[0-9a-f]{8}', got '"
    ):
        ESTIMATORS[name]()[0].fit(other, Y.numpy(), **more, checkpoint=tmp_path)
    again = ESTIMATORS[name]()[0].fit(inputs, Y.numpy(), **more, checkpoint=tmp_path)
    np.testing.assert_array_equal(again.predict(inputs), scores)
