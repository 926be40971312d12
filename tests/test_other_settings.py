"""A checkpoint goes on only with the settings it was made with: nested parts, their types, and what estimators know."""

from __future__ import annotations

import copy
import functools
import logging
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from interruptions import REGION, Kill, Killed, data, network, same, small_run
from interruptions import settings as generator
from torch import nn

from moreauc import TPAUCLoss
from moreauc._description import describe, describe_network, text_of
from moreauc.checkpoint import (
    CheckpointError,
    Checkpoints,
    RunState,
    load_checkpoint,
    save_checkpoint,
)
from moreauc.core.pooling import SmoothedMaxPooling
from moreauc.criteria import (
    FCCOLoss,
    GroupedLoss,
    MultiInstanceTPAUCLoss,
    PooledLoss,
)
from moreauc.estimators import GroupDROClassifier, MultiInstanceClassifier, TPAUCClassifier
from moreauc.methods import build
from moreauc.models import MLP

X, Y = data()


@pytest.mark.parametrize("kind", generator.losses(), ids=lambda kind: kind.__name__)
def test_every_option_of_every_loss(kind):
    count = generator.try_loss(kind)
    assert count.problems == [] and count.refused >= count.options > 0


@pytest.mark.parametrize("kind", generator.estimators(), ids=lambda kind: kind.__name__)
def test_every_option_of_every_estimator(kind):
    count = generator.try_estimator(kind)
    assert count.problems == [] and count.refused > 15 and count.free >= 3


def test_an_option_without_a_known_other_value_is_an_error():
    class NewLoss(nn.Module):
        def __init__(self, *, curve: nn.Module | None = None) -> None:
            super().__init__()

    with pytest.raises(RuntimeError, match="NewLoss: no other value of 'curve' is known; add one to OTHERS"):
        generator.try_loss(NewLoss)


def tpauc(**options):
    return TPAUCLoss(Y, gamma=0.1, **{**REGION, **options})


def grouped(name):
    return build("groups", name, torch.arange(60) % 4, num_groups=4)


CHANGES = {
    "surrogate": (tpauc, {}, {"surrogate": "hinge"}, r"surrogate of the criterion must be Hinge\(margin=1\)"),
    "logistic": (tpauc, {}, {"surrogate": "logistic"}, r"got SquaredHinge\(margin=1\) in the checkpoint"),
    "margin": (tpauc, {}, {"margin": 0.5}, r"surrogate of the criterion must be SquaredHinge\(margin=0.5\)"),
    "link": (tpauc, {}, {"link": "identity"}, "link of the criterion must be 'identity' as in this run, got 'sigmoid'"),
    "groups": (
        grouped,
        {"name": "erm"},
        {"name": "cvar"},
        "the class of criterion of the criterion must be SampleCVaR",
    ),
}


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("what", CHANGES)
def test_a_run_under_another_loss_is_refused_before_anything_changes(what, done, tmp_path):
    make, first, second, message = CHANGES[what]
    if done:
        small_run(tmp_path, criterion=make(**first))
    else:
        with pytest.raises(Killed):
            small_run(tmp_path, criterion=make(**first), callbacks=[Kill(9)])
    model, criterion = network(), make(**second)
    before = copy.deepcopy([model.state_dict(), criterion.state_dict()])
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(CheckpointError, match=f"{message}.* needs another folder; the checkpoint is in "):
        small_run(tmp_path, model=model, criterion=criterion)
    assert same([model.state_dict(), criterion.state_dict()], before) == []
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files
    small_run(tmp_path, criterion=make(**first))


def test_a_setting_that_a_schedule_changes_is_compared_with_where_it_began(tmp_path):
    class Lower(Kill):
        def on_epoch(self, state):
            if hasattr(state.criterion, "tau"):
                state.criterion.tau *= 0.5

    with pytest.raises(Killed):
        small_run(tmp_path, criterion=tpauc(tau=0.8), callbacks=[Lower(12)])
    with pytest.raises(CheckpointError, match=r"tau of the criterion must be 0.7 as in this run, got 0.8 in the check"):
        small_run(tmp_path, criterion=tpauc(tau=0.7), callbacks=[Lower(0)])
    _, criterion, _ = small_run(tmp_path, criterion=tpauc(tau=0.8), callbacks=[Lower(0)])
    assert criterion.tau == 0.1


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: network(dropout=0.1), "3.p of the model must be 0.1 as in this run, got 0.4 in the checkpoint"),
        (
            lambda: nn.Sequential(*(nn.Tanh() if isinstance(part, nn.ReLU) else part for part in network())),
            "the class of 2 of the model must be torch.nn.modules.activation.Tanh as in this run, got torch.*ReLU",
        ),
    ],
)
def test_a_model_with_other_layers_is_refused(other, message, tmp_path):
    with pytest.raises(Killed):
        small_run(tmp_path, callbacks=[Kill(9)])
    with pytest.raises(CheckpointError, match=message):
        small_run(tmp_path, model=other())


def test_attributes_of_a_model_that_move_are_no_settings(tmp_path):
    class Counting(nn.Sequential):
        calls = 0

        def forward(self, inputs):
            self.calls += 1
            return super().forward(inputs)

    model = Counting(*network())
    with pytest.raises(Killed):
        small_run(tmp_path, model=model, callbacks=[Kill(9)], every=4)
    small_run(tmp_path, model=model)  # which has counted on after it was saved


def test_settings_of_the_users_own(tmp_path):
    first = {"tokens": 512, "augment": functools.partial(torch.clamp, min=0.0), "network": nn.Dropout(0.2)}
    with pytest.raises(Killed):
        small_run(tmp_path, settings=first, callbacks=[Kill(9)])
    with pytest.raises(
        CheckpointError, match="tokens of the run must be 256 as in this run, got 512 in the checkpoint"
    ):
        small_run(tmp_path, settings={**first, "tokens": 256})
    with pytest.raises(CheckpointError, match=r"augment of the run must be partial\(.*clamp, min=1\)"):
        small_run(tmp_path, settings={**first, "augment": functools.partial(torch.clamp, min=1)})
    with pytest.raises(CheckpointError, match=r"network of the run must be torch.*Dropout\(p=0.3, inplace=False\)"):
        small_run(tmp_path, settings={**first, "network": nn.Dropout(0.3)})
    with pytest.raises(CheckpointError, match="tokens of the run must be absent as in this run, got 512"):
        small_run(tmp_path, settings={name: first[name] for name in ("augment", "network")})
    with pytest.raises(ValueError, match="fit: settings must not hold 'epochs', which is compared anyway"):
        small_run(tmp_path, settings={"epochs": 3})
    with pytest.raises(ValueError, match="fit: names of settings must be texts, got 3"):
        small_run(tmp_path, settings={3: 3})
    small_run(tmp_path, settings=first)


ESTIMATORS = {
    "dropout": (TPAUCClassifier, {}, {"dropout": 0.3}),
    "hidden": (TPAUCClassifier, {}, {"hidden": (64,)}),
    "loss_options": (TPAUCClassifier, {}, {"loss_options": {"surrogate": "logistic"}}),
    "module": (
        TPAUCClassifier,
        {"module": nn.Sequential(nn.Linear(4, 1), nn.Dropout(0.1))},
        {"module": nn.Sequential(nn.Linear(4, 1), nn.Dropout(0.2))},
    ),
    "loss": (GroupDROClassifier, {"loss": "erm"}, {"loss": "cvar"}),
    "pooling": (MultiInstanceClassifier, {"loss": "sont_mean"}, {"loss": "sont_smx"}),
    "temperature": (
        MultiInstanceClassifier,
        {"loss": "sont_smx", "loss_options": {"temperature": 0.1}},
        {"loss": "sont_smx", "loss_options": {"temperature": 1.0}},
    ),
}


@pytest.mark.parametrize("what", ESTIMATORS)
def test_a_finished_estimator_does_not_come_back_as_another(what, tmp_path):
    kind, first, second = ESTIMATORS[what]
    inputs = list(X.numpy()[:, None]) if kind is MultiInstanceClassifier else X.numpy()
    more = {"groups": np.arange(60) % 3} if kind is GroupDROClassifier else {}
    make = functools.partial(kind, epochs=1, random_state=0)
    make(**first).fit(inputs, Y.numpy(), **more, checkpoint=tmp_path)
    name = next(name for name in second if first.get(name) != second[name])
    other = make(**second)
    with pytest.raises(
        CheckpointError, match=rf"checkpoint: {kind.__name__}.{name} of the run must be .* as in this run"
    ):
        other.fit(inputs, Y.numpy(), **more, checkpoint=tmp_path)
    assert not hasattr(other, "classes_")


def test_checkpoints_without_a_description_are_refused(tmp_path):
    with pytest.raises(Killed):
        small_run(tmp_path, callbacks=[Kill(9)])
    for path in Checkpoints(tmp_path).files():
        state = load_checkpoint(path)
        del state["attributes"]
        save_checkpoint(path, state)
    with pytest.raises(CheckpointError, match=r"must hold the attributes of the loss, got .* needs another folder"):
        small_run(tmp_path)


# The description


def test_repr_shows_the_description():
    text = repr(MultiInstanceTPAUCLoss(Y, pooling="smoothed_max", temperature=0.25, **REGION))
    for part in ("min_tpr=0.5", "pooling=SmoothedMaxPooling(temperature=0.25)", "surrogate=SquaredHinge(margin=0.5)"):
        assert part in text
    assert repr(SmoothedMaxPooling(1 / 3)) == f"SmoothedMaxPooling(temperature={1 / 3!r})"


def test_descriptions_hold_settings_and_no_state():
    criterion = tpauc(initial=torch.linspace(0.0, 1.0, 20))
    before = describe(criterion)
    assert before["gamma"] == "0.1" and before["the class of table_u"] == "EstimatorTable"
    assert before["table_u.initial"].startswith("'torch.float32 of shape (20,) with checksum ")
    scores = torch.zeros(60)
    criterion(scores, Y, torch.arange(60), previous_scores=scores)
    criterion.eval()
    criterion.checks = "late"
    assert describe(criterion) == before


def test_attributes_of_classes_of_the_users_own_are_described():
    class Weighted(PooledLoss):
        def __init__(self, criterion, weight):
            super().__init__(criterion, "mean")
            self.weight = weight

    first, second = (describe(Weighted(tpauc(), torch.tensor([1.0, weight]))) for weight in (1.0, 2.0))
    assert {name for name in first if first[name] != second[name]} == {"weight"}
    assert "test_other_settings" in first["the class"] and first["criterion.gamma"] == "0.1"


class Power:
    def __init__(self, power):
        self.power, self.itself = power, self

    def __call__(self, u, index):
        return u**self.power


def test_functions_are_described_by_their_names_and_objects_by_what_they_hold():
    def loss(outer):
        return describe(FCCOLoss(4, outer, tau=0.5))["outer"]

    assert loss(torch.abs) != loss(torch.relu)
    name = f"{__name__}.test_functions_are_described_by_their_names_and_objects_by_what_they_hold.<locals>.<lambda>"
    assert loss(lambda u, index: u) == loss(lambda u, index: 2 * u) == name  # the limit that the docs name
    assert loss(Power(2)) == f"{__name__}.Power(power=2, itself=...)" != loss(Power(3))
    assert loss(functools.partial(Power.__call__, Power(3))) == f"partial({__name__}.Power.__call__, {loss(Power(3))})"
    assert loss(Power(2).__call__) == f"{loss(Power(2))}.__call__"
    assert "loss='squared'" in repr(GroupedLoss(grouped("erm").criterion, torch.arange(60) % 4, loss="squared"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float64(0.5), "0.5"),
        (np.array([1, 2]), "int64 of shape (2,) with checksum 00f6ddb9"),
        (np.array(["a", None]), "object of shape (2,) with checksum "),
        ((1,), "(1,)"),
        ([1, "a", None], "(1, 'a', None)"),
        ({"b": 1, "a": {2, 1}}, "{'a': {1, 2}, 'b': 1}"),
        (torch.float32, "torch.float32"),
        (MLP, "MLP"),
        (int, "int"),
        (np.random.RandomState(0), "numpy.random.mtrand.RandomState"),
        (
            nn.Sequential(nn.Dropout(0.1)),
            "torch.nn.modules.container.Sequential(0=torch.nn.modules.dropout.Dropout(p=0.1",
        ),
    ],
)
def test_texts_of_values(value, text):
    assert text_of(value).startswith(text)


class Slotted:
    __slots__ = ("margin",)

    def __init__(self, margin):
        self.margin = margin


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Slotted(1), Slotted(2)),
        (range(3), range(4)),
        (Path("a"), Path("b")),
        (Fraction(1, 3), Fraction(1, 4)),
        (1, True),
        (np.float32(0.1), 0.1),
    ],
)
def test_different_values_have_different_texts(one, other):
    assert text_of(one) != text_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (np.int64(1), np.float32(1)),
        (0.0, -0.0),
        ([1, (2,)], (1.0, [2])),
        (functools.partial(torch.clamp, min=0, max=1), functools.partial(torch.clamp, max=1.0, min=0.0)),
    ],
)
def test_equal_values_have_one_text(one, other):
    assert text_of(one) == text_of(other)


def test_a_logger_of_a_loss_is_its_name():
    criterion = tpauc()
    criterion.log = logging.getLogger("loss")
    before = describe(criterion)
    criterion.log.isEnabledFor(logging.INFO)  # is remembered inside of it
    logging.getLogger("loss.child")
    assert describe(criterion) == before and before["log"] == "logging.Logger('loss')"


def test_objects_that_know_each_other_are_described_once():
    objects = [Power(number) for number in range(40)]
    for one in objects:
        one.others = list(objects)  # along all paths that would take for ever
    text = text_of(objects[0])
    assert all(text.count(f"Power(power={number}, ") == 1 for number in range(40))


@pytest.mark.parametrize("kind", [np.float64, torch.tensor])
def test_learning_rates_of_any_kind_are_compared(kind):
    def run(lr):
        model = network()
        return RunState(model, tpauc(), torch.optim.SGD(model.parameters(), lr=kind(lr)), [])

    saved = run(0.1).state_dict()
    run(0.1).check(saved)
    with pytest.raises(CheckpointError, match="lr of group 0 of the optimizer must be"):
        run(0.2).check(saved)


def test_numpy_numbers_that_a_schedule_set_are_put_back():
    def run():
        model = network()
        return RunState(model, tpauc(), torch.optim.SGD(model.parameters(), lr=0.1), [])

    first, second = run(), run()
    first.criterion.temperature = second.criterion.temperature = 1.0
    first.start = first._present_settings()
    first.criterion.temperature = np.float64(0.25)
    second.load_state_dict(first.state_dict())
    assert second.criterion.temperature == 0.25


def test_a_model_is_described_by_plain_attributes():
    model = MLP(3, hidden=(4,), dropout=0.25)
    model.configuration, model.calls = object(), 3
    found = describe_network(model)
    assert found["calls"] == "3" and "configuration" not in found and "0.25" in found.values()
