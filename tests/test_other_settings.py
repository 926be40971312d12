"""A checkpoint is refused with other settings or data than those it was made with; settings are compared as text."""

from __future__ import annotations

import copy
import functools
import logging
import random
import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from interruptions import REGION, Kill, Killed, data, network, same, small_run
from interruptions import settings as generator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from moreauc import TPAUCLoss
from moreauc._settings import text_of, texts_of, texts_of_network
from moreauc.checkpoint import CheckpointError, Checkpoints, RunState
from moreauc.checkpoint.loader import held_labels
from moreauc.criteria import CrossEntropyLoss, FCCOLoss, GroupDROLoss, GroupedLoss, MultiInstanceTPAUCLoss, PooledLoss
from moreauc.data import BagBatches, BagEvaluation, IndexedDataset, ListBags, TensorBatches
from moreauc.estimators import GroupDROClassifier, MultiInstanceClassifier, TPAUCClassifier
from moreauc.methods import build
from moreauc.samplers import PosNegSampler

X, Y = data()
OTHER_Y = Y.flip(0).clone()  # as many positives


@pytest.mark.parametrize("kind", generator.losses(), ids=lambda kind: kind.__name__)
def test_every_option_of_every_loss(kind):
    count = generator.try_loss(kind)
    assert count.problems == [] and count.refused >= count.options > 0


@pytest.mark.parametrize("kind", generator.estimators(), ids=lambda kind: kind.__name__)
def test_every_option_of_every_estimator(kind):
    count = generator.try_estimator(kind)
    assert count.problems == [] and count.refused > 15 and count.free >= 3


# Runs with other settings or data


class Own(nn.Module):
    """A loss that holds no labels."""

    def forward(self, scores, labels, index):
        return nn.functional.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype))


class OtherNames(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = network()

    def forward(self, x):
        return self.layers(x)


class Evaluated:
    """Validation data whose labels cannot be seen."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def predict(self, model, device=None):
        return torch.arange(60.0).double(), Y


def wider():
    return nn.Sequential(nn.Linear(4, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Dropout(), nn.Linear(7, 1), nn.Flatten(0))


def with_tanh():
    return nn.Sequential(*(nn.Tanh() if isinstance(part, nn.ReLU) else part for part in network()))


def tpauc(**options):
    return TPAUCLoss(Y, **{"gamma": 0.1, **REGION, **options})


def grouped(name):
    return build("groups", name, torch.arange(60) % 4, num_groups=4)


def of_groups(groups):
    return GroupedLoss(GroupDROLoss(4, top_k=2), groups % 4)


def batches(y, sampled=Y, **options):
    return TensorBatches(X, y, PosNegSampler(sampled, **{"num_positives": 4, "num_negatives": 8, **options}))


def gap(scores, labels):
    return float(scores[labels == 1].mean() - scores[labels == 0].mean())


def other_gap(scores, labels):
    return float(scores[labels == 1].amin() - scores[labels == 0].amax())


FIRST = {  # runs that are saved
    "plain": dict,
    "erm": lambda: {"criterion": grouped("erm")},
    "groups": lambda: {"criterion": of_groups(torch.arange(60))},
    "loss without labels": lambda: {"criterion": Own()},
    "pairs": lambda: {"criterion": Own(), "loader": pairs(Y)},
    "given": lambda: {"criterion": Own(), "loader": given(Y)},
    "validation": lambda: {"validation": TensorBatches(X, Y)},
    "unseen validation": lambda: {"validation": Evaluated(60)},
    "score": lambda: {"validation": TensorBatches(X, Y), "score": gap},
}


def pairs(y):
    return DataLoader(IndexedDataset(TensorDataset(X, y)), batch_size=12)


def given(y):
    return DataLoader(IndexedDataset(list(X), y), batch_size=12)


REFUSED = [  # the run that is saved, what another run has instead, and what the error names
    ("plain", lambda: {"model": OtherNames()}, "unexpected parameter '0.bias' in the model"),
    ("plain", lambda: {"model": wider()}, r"'0.weight' in the model of shape \(6, 4\), this run has \(7, 4\)"),
    ("plain", lambda: {"model": network().double()}, "'0.weight' in the model of type torch.float32, this run has"),
    ("plain", lambda: {"model": network(dropout=0.1)}, "3.p 0.4 in the model, this run has 0.1"),
    ("plain", lambda: {"model": with_tanh()}, "the class of 2 torch.nn.modules.activation.ReLU in the model"),
    ("plain", lambda: {"criterion": CrossEntropyLoss(Y)}, "the class TPAUCLoss in the criterion"),
    (
        "plain",
        lambda: {"criterion": tpauc(gamma=0.2)},
        "gamma 0.1 in the criterion, this run has 0.2; a run with other settings or data needs another folder; ",
    ),
    ("erm", lambda: {"criterion": grouped("cvar")}, "criterion GroupERMLoss.* this run has SampleCVaRLoss"),
    ("plain", lambda: {"optimizer": "adam"}, "the class torch.optim.sgd.SGD in the optimizer"),
    ("plain", lambda: {"lr": 0.1}, "lr 0.05, this run has 0.1"),
    ("plain", lambda: {"epochs": 4}, "epochs 3, this run has 4"),
    (
        "plain",
        lambda: {"loader": batches(Y, seed=1)},
        "loader.sampler.seed 0, this run has 1: the batches would differ",
    ),
    ("plain", lambda: {"loader": batches(Y, num_positives=5)}, "num_positives 4, this run has 5"),
    ("plain", lambda: {"loader": pairs(Y)}, "the batches would differ"),
    ("plain", lambda: {"loader": batches(Y, OTHER_Y)}, "loader.sampler.checksum_of_labels"),
    ("plain", lambda: {"labels": OTHER_Y}, "other labels in the criterion"),
    ("plain", lambda: {"criterion": tpauc(sample_weight=torch.ones(60))}, "sample_weight"),
    ("groups", lambda: {"criterion": of_groups(torch.arange(60).flip(0))}, "other groups in the criterion"),
    ("groups", lambda: {"loader": batches(OTHER_Y)}, "other labels in the loader"),
    ("loss without labels", lambda: {"loader": batches(OTHER_Y)}, "other labels in the loader"),
    ("pairs", lambda: {"loader": pairs(OTHER_Y)}, "other labels in the loader"),
    ("given", lambda: {"loader": given(OTHER_Y)}, "other labels in the loader"),
    ("plain", lambda: {"validation": TensorBatches(X, Y)}, "validation False, this run has True"),
    ("validation", lambda: {"validation": TensorBatches(X, OTHER_Y)}, "validation_labels"),
    ("validation", lambda: {"validation": Evaluated(60)}, "validation_labels"),
    ("unseen validation", lambda: {"validation": Evaluated(50)}, "validation_length 60, this run has 50"),
    ("validation", lambda: {"score": gap}, f"score None, this run has {__name__}.gap"),
    ("score", lambda: {"score": other_gap}, "score .*.gap, this run has .*.other_gap"),
]
KILLS = {"warm start": 3, "train": 13, "done": 0}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a function that copies a saved run of `FIRST` in a phase; each is trained once."""
    made = {}

    def copied(first, phase, target):
        if (first, phase) not in made:
            made[first, phase] = place = tmp_path_factory.mktemp("saved")
            try:
                small_run(place, callbacks=[Kill(KILLS[phase])], **FIRST[first]())
            except Killed:
                assert phase != "done"
        shutil.copytree(made[first, phase], target, dirs_exist_ok=True)

    return copied


@pytest.mark.parametrize(
    ("first", "other", "message", "phase"),  # the check is the same in every phase
    [(*row, "train") for row in REFUSED] + [(*REFUSED[5], phase) for phase in ("warm start", "done")],
)
def test_a_checkpoint_of_another_run_is_refused_and_nothing_changes(first, other, message, phase, saved, tmp_path):
    saved(first, phase, tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    options = {**FIRST[first](), **other()}
    model = options.pop("model", None) or network()
    criterion = options.pop("criterion", None) or TPAUCLoss(options.get("labels", Y), gamma=0.1, **REGION)
    before = copy.deepcopy([model.state_dict(), criterion.state_dict()])
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    with pytest.raises(CheckpointError, match=f"^checkpoint has .*{message}"):
        small_run(tmp_path, model=model, criterion=criterion, **options)
    assert same([model.state_dict(), criterion.state_dict()], before) == []
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert torch.equal(states[0], after[0]) and states[1:] == after[1:]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


@pytest.mark.parametrize("first", FIRST)
def test_the_same_run_is_resumed(first, saved, tmp_path):
    saved(first, "train", tmp_path)
    options = {**FIRST[first]()}
    if first == "validation":
        options["validation"] = TensorBatches(X, Y, batch_size=30)  # the batch size is free
    assert len(small_run(tmp_path, **options)[2].rows) == 4


def test_checkpoints_are_resumed_only_where_asked_and_only_those_of_fit(saved, tmp_path):
    saved("plain", "done", tmp_path / "a")
    with pytest.raises(ValueError, match="resume is False"):
        small_run(tmp_path / "a", resume=False)
    Checkpoints(tmp_path / "b").save({"epoch": 3})
    with pytest.raises(CheckpointError, match="fit: checkpoint must be that of a run of fit, got another"):
        small_run(tmp_path / "b")


def test_a_setting_that_a_schedule_changes_is_compared_with_where_it_began(tmp_path):
    class Lower(Kill):
        def on_epoch(self, state):
            if hasattr(state.criterion, "tau"):
                state.criterion.tau *= 0.5

    with pytest.raises(Killed):
        small_run(tmp_path, criterion=tpauc(tau=0.8), callbacks=[Lower(12)])
    with pytest.raises(CheckpointError, match=r"tau 0\.8 in the criterion, this run has 0\.7"):
        small_run(tmp_path, criterion=tpauc(tau=0.7), callbacks=[Lower(0)])
    _, criterion, _ = small_run(tmp_path, criterion=tpauc(tau=0.8), callbacks=[Lower(0)])
    assert criterion.tau == 0.1


def test_attributes_of_a_model_that_change_or_are_objects_are_no_settings(tmp_path):
    class Counting(nn.Sequential):
        calls = 0

        def forward(self, inputs):
            self.calls += 1
            return super().forward(inputs)

    model = Counting(*network())
    model.configuration = object()
    with pytest.raises(Killed):
        small_run(tmp_path, model=model, callbacks=[Kill(9)], every=4)
    small_run(tmp_path, model=model)  # which has counted on after it was saved
    found = texts_of_network(model)
    assert int(found["calls"]) > 9 and "configuration" not in found and found["3.p"] == "0.4"


def test_settings_of_the_user(tmp_path):
    first = {"tokens": 512, "augment": functools.partial(torch.clamp, min=0.0), "network": nn.Dropout(0.2)}
    with pytest.raises(Killed):
        small_run(tmp_path, settings=first, callbacks=[Kill(9)])
    for other, message in [
        ({**first, "augment": functools.partial(torch.clamp, min=1)}, r"augment .* this run has partial\(.*min=1\)"),
        ({**first, "network": nn.Dropout(0.3)}, r"network .* this run has torch.*Dropout\(p=0.3, inplace=False\)"),
        ({"augment": first["augment"], "network": first["network"]}, "tokens 512, this run has none"),
        ({**first, "more": 2}, "more none, this run has 2"),
        ({"epochs": 3}, "fit: settings"),
        ({3: 3}, "fit: names of settings"),
    ]:
        with pytest.raises(ValueError, match=message):
            small_run(tmp_path, settings=other)
    small_run(tmp_path, settings=dict(reversed(first.items())))


def test_processes_have_the_same_checksums():
    states = []
    for rank in range(2):
        model = network()
        loader = batches(Y, num_positives=2, num_negatives=2, world_size=2, rank=rank)
        states.append(RunState(model, Own(), torch.optim.SGD(model.parameters(), 0.1), loader))
    states[1].check(states[0].state_dict())


def test_labels_of_bags_and_lists():
    bags = [ListBags([X[row : row + 2] for row in range(0, 60, 2)], labels) for labels in (Y[:30], OTHER_Y[:30])]
    sampler = PosNegSampler(Y[:30], num_positives=2, num_negatives=2)
    for make in (lambda b: BagBatches(b, sampler, instances_per_bag=1), lambda b: BagEvaluation(b, "mean")):
        first, second = (held_labels(make(b)) for b in bags)
        assert list(first) == ["loader.labels"] and first != second and first == held_labels(make(bags[0]))

    class Images:
        def __init__(self, targets):
            self.targets = targets

    assert held_labels(Images([0, 1])) == held_labels(Images(torch.tensor([0, 1], dtype=torch.int32)))
    assert held_labels(Images([0.0, 1.0])) == held_labels(Images(torch.tensor([0.0, 1.0])))
    assert held_labels(Images(["a"])) == held_labels(Images([])) == held_labels(range(3)) == {}


# Estimators


def inputs_of(kind):
    more = {"groups": np.arange(60) % 3} if kind is GroupDROClassifier else {}
    return list(X.numpy()[:, None]) if kind is MultiInstanceClassifier else X.numpy(), more


@pytest.mark.parametrize("kind", [TPAUCClassifier, MultiInstanceClassifier, GroupDROClassifier])
def test_other_inputs_or_labels_of_an_estimator_are_refused(kind, tmp_path):
    inputs, more = inputs_of(kind)

    def fitted(inputs, y=Y):
        estimator = kind(epochs=2, random_state=0, validation_fraction=0.0)
        return estimator.fit(inputs, y.numpy(), **more, checkpoint=tmp_path)

    scores = fitted(inputs).predict(inputs)
    other = [-bag for bag in inputs] if isinstance(inputs, list) else -inputs
    with pytest.raises(CheckpointError, match="checksum_of_inputs"):
        fitted(other)
    with pytest.raises(CheckpointError, match="other labels in the"):
        fitted(inputs, OTHER_Y)
    np.testing.assert_array_equal(fitted(inputs).predict(inputs), scores)


# The description


def test_settings_of_a_loss_hold_options_and_data_and_no_state():
    criterion = tpauc(initial=torch.linspace(0.0, 1.0, 20))
    criterion.log = logging.getLogger("loss")
    before = texts_of(criterion)
    assert before["gamma"] == "0.1" and before["table_u"].startswith("EstimatorTable(")
    assert before["initial"].startswith("'torch.float32 of shape (20,) with checksum ")
    assert before["labels"].startswith("torch.int64 of shape (60,) with checksum ")
    assert before["log"] == "logging.Logger('loss')"
    assert criterion.settings()["labels"] is criterion.position
    scores = torch.zeros(60)
    criterion(scores, Y, torch.arange(60), previous_scores=scores)
    criterion.eval()
    criterion.checks = "late"
    criterion.log.isEnabledFor(logging.INFO)  # is remembered inside of it
    assert texts_of(criterion) == before
    text = repr(MultiInstanceTPAUCLoss(Y, pooling="smoothed_max", temperature=0.25, **REGION))
    assert "min_tpr=0.5" in text and "pooling='smoothed_max', temperature=0.25, surrogate='squared_hinge'" in text


def test_a_part_of_the_users_own_is_described_by_its_attributes_or_says_its_settings_itself():
    class Weighted(PooledLoss):
        def __init__(self, criterion, weight):
            super().__init__(criterion, "mean")
            self.weight = weight

    first, second = (texts_of(Weighted(tpauc(), torch.tensor([1.0, weight]))) for weight in (1.0, 2.0))
    assert {name for name in first if first[name] != second[name]} == {"weight"}
    assert "test_other_settings" in first["the class"] and "gamma=0.1" in first["criterion"]

    class Answering(nn.Linear):
        def settings(self):
            return {"width": self.out_features}

    assert list(texts_of(Answering(2, 3)).values()) == list(texts_of_network(Answering(2, 3)).values())
    assert texts_of(Answering(2, 3))["width"] == "3"
    assert text_of([Answering(2, 3)]).endswith("Answering(width=3),)")


class Power:
    def __init__(self, power):
        self.power, self.itself = power, self

    def __call__(self, u, index):
        return u**self.power


class Slotted:
    __slots__ = ("margin",)

    def __init__(self, margin):
        self.margin = margin


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        *(
            (one, other, False)
            for one, other in ((Slotted(1), Slotted(2)), (range(3), range(4)), (Path("a"), Path("b")))
        ),
        *((one, other, False) for one, other in ((Fraction(1, 3), Fraction(1, 4)), (1, True), (np.float32(0.1), 0.1))),
        (np.array(["a", None]), np.array(["b", None]), False),
        *((one, other, True) for one, other in ((1, 1.0), (np.int64(1), np.float32(1)), (0.0, -0.0))),
        ([1, (2,)], (1.0, [2]), True),
        ({"b": 1, "a": {2, 1}}, {"a": {1, 2}, "b": 1}, True),
        (np.random.RandomState(0), np.random.RandomState(1), True),  # a state is no setting
        (functools.partial(torch.clamp, min=0, max=1), functools.partial(torch.clamp, max=1.0, min=0.0), True),
    ],
)
def test_equal_values_have_one_text_and_others_another(one, other, equal):
    assert (text_of(one) == text_of(other)) == equal


def test_functions_are_described_by_their_names_and_objects_by_what_they_hold():
    def loss(outer):
        return texts_of(FCCOLoss(4, outer, tau=0.5))["outer"]

    assert loss(torch.abs) != loss(torch.relu)
    name = f"{__name__}.test_functions_are_described_by_their_names_and_objects_by_what_they_hold.<locals>.<lambda>"
    assert loss(lambda u, index: u) == loss(lambda u, index: 2 * u) == name  # the limit that the docs name
    assert loss(Power(2)) == f"{__name__}.Power(power=2, itself=...)" != loss(Power(3))
    assert loss(functools.partial(Power.__call__, Power(3))) == f"partial({__name__}.Power.__call__, {loss(Power(3))})"
    assert loss(Power(2).__call__) == f"{loss(Power(2))}.__call__"
    assert "loss='squared'" in repr(GroupedLoss(grouped("erm").criterion, torch.arange(60) % 4, loss="squared"))


def test_objects_that_know_each_other_are_described_once():
    objects = [Power(number) for number in range(40)]
    for one in objects:
        one.others = list(objects)  # along all paths that would take for ever
    text = text_of(objects[0])
    assert all(text.count(f"Power(power={number}, ") == 1 for number in range(40))


@pytest.mark.parametrize("kind", [np.float64, torch.tensor])
def test_numbers_of_any_kind_are_compared_and_restored(kind):
    def run(lr):
        model = network()
        run = RunState(model, tpauc(), torch.optim.SGD(model.parameters(), lr=kind(lr)), [])
        run.criterion.temperature = 1.0
        run.start = run.settings()
        return run

    first, second = run(0.1), run(0.1)
    first.criterion.temperature = np.float64(0.25)  # by a schedule
    second.load_state_dict(first.state_dict())
    assert second.criterion.temperature == 0.25
    with pytest.raises(CheckpointError, match="lr of group 0"):
        run(0.2).check(first.state_dict())
