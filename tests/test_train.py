from __future__ import annotations

import copy
import io
import logging
import math
import re
import sys
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from experiments.models.side_by_side import SideBySide
from moreauc import FCCOLoss, MultiInstanceTPAUCLoss, PreviousIterate, TPAUCLoss
from moreauc.criteria import CrossEntropyLoss
from moreauc.data import BagBatches, BagEvaluation, ListBags, TensorBatches
from moreauc.methods import METHODS, build
from moreauc.metrics import TiedScoresWarning, tpauc_score
from moreauc.models import InstanceMLP
from moreauc.samplers import PosNegSampler
from moreauc.train import Callback, TensorBoardLogger, UntrainedWarning, fit, predict_scores, train_step
from moreauc.train.state import ProgressBar

REGION = {"min_tpr": 0.5, "max_fpr": 0.5}


def make_data(n=120, seed=0):
    random = torch.Generator().manual_seed(seed)
    y = (torch.arange(n) % 6 == 0).long()
    x = torch.randn(n, 4, generator=random)
    x[:, 0] += 3.0 * y
    return x, y


def batches(x, y, seed=0):
    return TensorBatches(x, y, PosNegSampler(y, num_positives=6, num_negatives=12, seed=seed))


def make_model(dropout=0.0):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 1))


class Recorder(Callback):
    def __init__(self):
        self.events = []
        self.lrs = []

    def on_begin(self, state):
        self.events.append(("begin", state.phase))

    def on_step(self, state):
        self.events.append(("step", state.phase, state.epoch, state.step))
        self.lrs.append(state.optimizer.param_groups[0]["lr"])

    def on_epoch(self, state):
        self.events.append(("epoch", state.phase, state.epoch))

    def on_end(self, state):
        self.events.append(("end", state.phase))


@pytest.mark.parametrize("gamma", [0.0, 0.3])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_fit_is_the_plain_loop(gamma, dropout):
    """The loop that a reader would write by hand gives the same weights, bit for bit."""
    x, y = make_data()
    by_fit, by_hand = make_model(dropout), make_model(dropout)
    options = {**REGION, "gamma": gamma}
    history = fit(
        *(by_fit, TPAUCLoss(y, **options), batches(x, y)),
        **{"epochs": 6, "lr": 0.1, "momentum": 0.5, "weight_decay": 0.01, "seed": 7},
    )
    torch.manual_seed(7)
    criterion = TPAUCLoss(y, **options)
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1, momentum=0.5, weight_decay=0.01)
    previous = PreviousIterate(by_hand, optimizer)
    loader = batches(x, y)
    for epoch in range(6):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * 0.1 ** ((epoch >= 2) + (epoch >= 4))
        loader.set_epoch(epoch)
        losses = []
        for inputs, labels, index in loader:
            scores = by_hand(inputs).squeeze(1)
            before = previous(inputs).squeeze(1) if gamma else None
            loss = criterion(scores, labels, index, before)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert history.rows[epoch]["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-6)
        assert history.rows[epoch]["lr"] == pytest.approx(0.1 * 0.1 ** ((epoch >= 2) + (epoch >= 4)))
    for a, b in zip(by_fit.parameters(), by_hand.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("copies", "rows"), [(1, 1), (3, 1), (3, 5)])
def test_models_side_by_side_keep_their_rows(copies, rows):
    """A batch of one row has scores `(C, 1)`, which are not those of `C` rows and one column."""

    class Criterion(nn.Module):
        needs_previous = True

        def forward(self, scores, labels, index, previous_scores):
            assert scores.shape == previous_scores.shape == (copies, rows)
            return scores.sum()

    model = SideBySide([nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)) for _ in range(copies)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = make_data(rows)
    train_step(model, Criterion(), optimizer, (x, y, torch.arange(rows)), PreviousIterate(model, optimizer))


def test_the_best_validation_score_is_kept_and_restored():
    x, y = make_data()
    valid = TensorBatches(*make_data(seed=1))
    model, scores = make_model(), []

    class Watch(Callback):
        def on_epoch(self, state):
            raw, labels = predict_scores(state.model, valid)
            scores.append((tpauc_score(labels.numpy(), raw.numpy(), **REGION), copy.deepcopy(state.model.state_dict())))

    history = fit(model, TPAUCLoss(y, **REGION), batches(x, y), validation=valid, epochs=8, lr=0.5, callbacks=[Watch()])
    assert history["score"] == pytest.approx([score for score, _ in scores])
    best = max(range(8), key=lambda epoch: (scores[epoch][0], epoch))
    assert history.restored and history.best_epoch == best and history.best_score == pytest.approx(scores[best][0])
    assert all(torch.equal(value, scores[best][1][name]) for name, value in model.state_dict().items())
    last = make_model()
    history = fit(last, TPAUCLoss(y, **REGION), batches(x, y), validation=valid, epochs=8, lr=0.5, keep_best=False)
    assert not history.restored
    assert all(torch.equal(value, scores[-1][1][name]) for name, value in last.state_dict().items())


def test_weights_before_the_first_epoch_may_be_the_best_which_is_said_again_when_a_finished_run_is_read(tmp_path):
    x, y = make_data()
    valid = TensorBatches(x, y)

    def start():
        model = nn.Linear(4, 1)
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[5.0, 0.0, 0.0, 0.0]]))
        return model

    class Spoil(Callback):
        def on_epoch(self, state):
            if state.phase == "train":
                with torch.no_grad():
                    state.model.weight[0, 0] -= 50.0

    for place, options, when in [
        (None, {}, "before training, score 0.95"),
        *[(tmp_path, {"warm_start_epochs": 1}, "after the warm start")] * 2,
    ]:
        model = start()
        run = partial(fit, model, TPAUCLoss(y, **REGION), batches(x, y), validation=valid, epochs=2, checkpoint=place)
        with pytest.warns(UntrainedWarning, match=f"than the weights {when}"):
            history = run(callbacks=[Spoil()], lr=1e-3, **options)
        assert history.best_epoch == -1 and history.untrained
        assert model.weight[0, 0].item() == pytest.approx(5.0, abs=0.1)
    options = {"validation": valid, "epochs": 2, "callbacks": [Spoil()], "lr": 1e-3, "keep_best": False}
    history = fit(start(), TPAUCLoss(y, **REGION), batches(x, y), **options)
    assert history.best_epoch == -1 and not history.untrained  # nor a word where they are not kept


def test_warm_start_is_cross_entropy_and_comes_first():
    x, y = make_data()
    by_fit, by_hand, recorder = make_model(), make_model(), Recorder()
    history = fit(
        *(by_fit, TPAUCLoss(y, **REGION), batches(x, y)),
        **{"epochs": 1, "warm_start_epochs": 2, "lr": 0.1, "callbacks": [recorder], "seed": 0},
    )
    assert [row["phase"] for row in history.rows] == ["warm start", "warm start", "train"]
    assert [event for event in recorder.events if event[0] != "step"] == [
        *(("begin", "warm start"), ("epoch", "warm start", 0), ("epoch", "warm start", 1)),
        *(("begin", "train"), ("epoch", "train", 0), ("end", "train")),
    ]
    loader = batches(x, y)
    loss, optimizer = nn.BCEWithLogitsLoss(), torch.optim.SGD(by_hand.parameters(), 0.1, 0.9, weight_decay=2e-4)
    for epoch in range(2):
        loader.set_epoch(epoch)
        for inputs, labels, _ in loader:
            optimizer.zero_grad()
            loss(by_hand(inputs).squeeze(1), labels.float()).backward()
            optimizer.step()
    criterion = TPAUCLoss(y, **REGION)
    optimizer = torch.optim.SGD(by_hand.parameters(), 0.1, 0.9, weight_decay=2e-4)
    loader.set_epoch(2)
    for batch in loader:
        train_step(by_hand, criterion, optimizer, batch)
    for a, b in zip(by_fit.parameters(), by_hand.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore::moreauc.metrics.TiedScoresWarning")  # a small network on few rows
@pytest.mark.parametrize("method", METHODS["rows"])
def test_every_method_runs_in_the_same_loop_and_learns(method):
    x, y = make_data(360)
    model = make_model()
    criterion = build("rows", method, y, **REGION)
    history = fit(
        *(model, criterion, batches(x, y)),
        **{"validation": TensorBatches(*make_data(360, seed=1)), **REGION, "optimizer": "adam", "lr": 0.01},
        **{"epochs": 15, "proximal": METHODS["rows"][method].proximal, "seed": 0},
    )
    assert history.best_score > 0.75
    assert all(math.isfinite(loss) for loss in history["loss"])


def test_the_seed_decides_and_global_random_state_is_left_alone():
    x, y = make_data()

    def run(seed):
        model = make_model(dropout=0.5)
        fit(model, TPAUCLoss(y, **REGION), batches(x, y), epochs=2, lr=0.1, seed=seed)
        return model[0].weight

    torch.manual_seed(5)
    first = run(1)
    inside = torch.get_rng_state()
    fit(make_model(0.5), TPAUCLoss(y, **REGION), batches(x, y), epochs=1, seed=1)
    assert torch.equal(inside, torch.get_rng_state())
    assert torch.equal(first, run(1)) and not torch.equal(first, run(2))


def test_predict_scores_leaves_the_modes_alone():
    x, y = make_data()
    model = make_model(dropout=0.5)
    model.train()
    model[2].eval()
    scores, labels = predict_scores(model, TensorBatches(x, y, batch_size=7))
    assert [module.training for module in model] == [True, True, False, True] and model.training
    assert torch.equal(labels, y)
    torch.testing.assert_close(scores, model.eval()(x).detach().squeeze(1).double())


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, left, right):
        return self.layer(torch.cat([left, right], 1)).squeeze(1)


@pytest.mark.parametrize("form", [lambda a, b: (a, b), lambda a, b: {"left": a, "right": b}])
def test_inputs_may_be_tuples_or_dictionaries_and_hooks_are_gone_after_the_run(form):
    x, y = make_data()
    model, criterion = Two(), TPAUCLoss(y, gamma=0.1, **REGION)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = TensorBatches(form(x[:, :2], x[:, 2:]), y, PosNegSampler(y, num_positives=6, num_negatives=12))
    assert len(fit(model, criterion, loader, optimizer=optimizer, epochs=2, proximal=0.1)["loss"]) == 2
    assert not model._forward_pre_hooks and not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: {"validation": TensorBatches(x, 0 * y)}, "validation must hold both classes"),
        (lambda x, y: {"validation": TensorBatches(x[:12], y[:12]), "min_tpr": 0.9}, "2 positives and 10 negatives"),
        (lambda x, y: {"validation": TensorBatches(x, y), "criterion": CrossEntropyLoss(y)}, "min_tpr must be given"),
        (lambda x, y: {"train": [(x, y)]}, "batch must be"),
        (lambda x, y: {"train": []}, "train must give at least one batch"),
        (lambda x, y: {"validation": TensorBatches(x * torch.nan, y)}, "scores on the validation data .* not finite"),
    ],
)
def test_wrong_data_is_named(change, message):
    x, y = make_data()
    parts = {"train": batches(x, y), "criterion": TPAUCLoss(y, **REGION), **change(x, y)}
    with pytest.raises(ValueError, match=message):
        fit(make_model(), parts.pop("criterion"), parts.pop("train"), epochs=1, **parts)


def test_an_error_in_a_step_is_noted_with_its_place():
    x, y = make_data()
    with pytest.raises(ValueError, match="scores must be finite") as caught:
        fit(make_model(), TPAUCLoss(y, **REGION), batches(x * torch.nan, y), epochs=1, lr=0.25)
    assert any("in train, epoch 0, step" in note and "learning rate 0.25" in note for note in caught.value.__notes__)


def test_previous_weights_must_be_given_where_the_loss_needs_them():
    assert not TPAUCLoss([0, 1], **REGION).needs_previous and not CrossEntropyLoss([0, 1]).needs_previous
    assert TPAUCLoss([0, 1], gamma="theory", tau=0.5, **REGION).needs_previous
    assert FCCOLoss(3, lambda u, index: u, tau=0.5, gamma=0.1).needs_previous
    x, y = make_data()
    model, criterion = make_model(), TPAUCLoss(y, gamma=0.1, **REGION)
    with pytest.raises(ValueError, match="train_step: previous"):
        train_step(model, criterion, torch.optim.SGD(model.parameters(), 0.1), next(iter(batches(x, y))))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"epochs": 0}, "epochs"), ({"warm_start_epochs": -1}, "warm_start_epochs"), ({"lr": 0.0}, "lr")),
        *(({"momentum": 1.0}, "momentum"), ({"weight_decay": -1.0}, "weight_decay"), ({"optimizer": "lion"}, "optimi")),
        *(({"milestones": [0]}, "milestones"), ({"lr_factor": 0.0}, "lr_factor"), ({"proximal": -1.0}, "proximal")),
        *(({"patience": 2}, "patience must be None"), ({"patience": 0}, "patience"), ({"seed": -1}, "seed")),
        *(({"min_tpr": 1.0, "validation": True}, "min_tpr"), ({"max_fpr": 0.0, "validation": True}, "max_fpr")),
    ],
)
def test_wrong_arguments_are_named_before_anything_moves(options, message):
    x, y = make_data()
    if "validation" in options:
        options = {**options, "validation": TensorBatches(x, y)}
    model = make_model()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=f"fit: {message}"):
        fit(model, TPAUCLoss(y, **REGION), batches(x, y), **options)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda x, y: [], "batches"),
        (lambda x, y: DataLoader(x, batch_size=7), "batches"),
        (lambda x, y: [(x,)], "batches"),
        (lambda x, y: [(x, torch.stack([y, 1 - y], 1))], "labels must be as many as scores, 60, got 120"),
        (lambda x, y: [(x, y[:5])], "labels must be as many as scores, 60, got 5"),
    ],
)
def test_batches_without_labels_of_their_own_are_not_scored(make, name):
    x, y = make_data(60)
    model = make_model()
    with pytest.raises(ValueError, match=f"predict_scores: {name}"):
        predict_scores(model, make(x, y))
    assert model.training


@pytest.mark.parametrize("name", ["on_begin", "on_step", "on_epoch", "on_end", None])
def test_callbacks_that_lack_a_hook_are_named(name):
    x, y = make_data()
    hooks = {hook: lambda self, state: None for hook in ("on_begin", "on_step", "on_epoch", "on_end") if hook != name}
    kind = type("Mine", (), hooks)
    model = make_model()
    before = copy.deepcopy(model.state_dict())
    callback, got = (kind(), "a Mine") if name else (kind, "the class Mine")
    with pytest.raises(ValueError, match=f"fit: callbacks must be objects of moreauc.*.Callback, got {got}"):
        fit(model, TPAUCLoss(y, **REGION), batches(x, y), epochs=1, callbacks=[callback])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.filterwarnings("ignore::moreauc.metrics.TiedScoresWarning")  # a small network on few rows
def test_the_progress_bar_shows_objective_and_scores():
    from rich.console import Console

    x, y = make_data()
    console = Console(record=True, width=80, force_terminal=True, file=io.StringIO())
    fit(
        *(make_model(), TPAUCLoss(y, **REGION), batches(x, y)),
        **{"validation": TensorBatches(x, y), "epochs": 3, "warm_start_epochs": 1, "callbacks": [ProgressBar(console)]},
    )
    text = console.export_text()
    assert "warm start 1/1  objective" in text
    assert re.search(r"train 3/3  score \d\.\d{4}, best \d\.\d{4} ━+ 0:00:0\d 0:00:00", text)
    assert len(text.splitlines()[-1]) <= 80


def test_progress_without_a_terminal_is_a_line_now_and_then_and_every_epoch_is_logged(capsys, caplog, monkeypatch):
    x, y = make_data()
    run = (make_model(), TPAUCLoss(y, **REGION), batches(x, y))
    fit(*run, epochs=2, progress=True)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("moreauc.train.state._PAUSE", 0.0)
    with caplog.at_level("INFO", logger="moreauc.train"):
        fit(*run, epochs=2, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert all(re.fullmatch(r"train \d/2(  objective [\d.e-]+)?  \d+ s, at most \d+ s left", line) for line in lines)
    assert lines[-1].startswith("train 2/2  objective") and lines[-1].endswith("at most 0 s left")
    assert re.match(r"train epoch 2: loss [\d.e-]+, lr [\d.e-]+, seconds ", caplog.messages[1])


@pytest.mark.filterwarnings("ignore::moreauc.metrics.TiedScoresWarning")  # a small network on few rows
def test_tensorboard_gets_every_epoch(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    x, y = make_data()
    history = fit(
        *(make_model(), TPAUCLoss(y, **REGION), batches(x, y)),
        **{"validation": TensorBatches(x, y), "epochs": 3, "callbacks": [TensorBoardLogger(tmp_path)]},
    )
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(history["loss"], rel=1e-6)
    assert [event.value for event in events.Scalars("score")] == pytest.approx(history["score"], rel=1e-6)


def test_without_tensorboard_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ModuleNotFoundError, match=r"moreauc\[tensorboard\]"):
        TensorBoardLogger(tmp_path)


def test_validation_by_another_score_and_targets_of_any_kind():
    """Regression: the weights kept are those of the lowest validation error."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=random)
    y = x[:, 0] - 2 * x[:, 1]

    class Squared(nn.Module):
        def forward(self, scores, labels, index):
            return (scores - labels).square().mean()

    seen = []

    def score(scores, labels):
        seen.append(-float((scores - labels).square().mean()))
        return seen[-1]

    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    batches = TensorBatches(x, y, batch_size=20, binary=False)
    history = fit(model, Squared(), batches, validation=batches, score=score, epochs=5, lr=0.6, momentum=0.0)
    assert history.best_score == max(seen) and history["score"] == seen[1:]
    with torch.no_grad():
        kept = -float((model(x).squeeze(1) - y).square().mean())
    assert kept == pytest.approx(max(seen), rel=1e-5)
    for bad, message in [
        ("accuracy", "score must be a function"),
        (lambda s, y: float("nan"), "a finite number, got nan"),
    ]:
        with pytest.raises(ValueError, match=message):
            fit(model, Squared(), batches, validation=batches, score=bad, epochs=1)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = InstanceMLP(3, attention=True)

    def forward(self, x):
        return tuple(self.network(x).unbind(1))


@pytest.mark.parametrize("kind", ["float64", "uint8"])
def test_bags_of_other_types_and_models_that_return_pairs(kind):
    random = np.random.default_rng(0)
    bags = ListBags([random.integers(0, 9, (4, 3)).astype(kind) for _ in range(12)], [0, 1] * 6)
    train = BagBatches(bags, PosNegSampler(bags.labels, num_positives=2, num_negatives=2), instances_per_bag=2)
    results = []
    for make in (lambda: InstanceMLP(3, attention=True), Pair):
        torch.manual_seed(0)
        criterion = MultiInstanceTPAUCLoss(bags.labels, **REGION, pooling="attention", gamma=0.1)
        history = fit(make(), criterion, train, validation=BagEvaluation(bags, "attention"), epochs=2, lr=0.01)
        results.append((history["loss"], history["score"]))
    assert results[0] == results[1]
    with pytest.raises(ValueError, match="batches must hold whole bags"):
        predict_scores(InstanceMLP(3), train)


class Scripted(nn.Module):
    """Gives the validation rows the scores that are written down for each epoch, the first before training."""

    def __init__(self, scores):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("scores", torch.tensor(scores, dtype=torch.float64))
        self.register_buffer("place", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        return self.weight * x.squeeze(1) if self.training else self.scores[self.place]


class NextScores(Callback):
    def on_step(self, state):
        if state.step == state.steps - 1:
            state.model.place += 1


def chosen_of(*scores, min_tpr=0.5, max_fpr=0.5, **options):
    """Train on nothing and choose: labels of the validation rows are 1, 1, 0, 0."""
    x, y = make_data()
    validation = TensorBatches(torch.zeros(4, 2), [1, 1, 0, 0])
    model = Scripted(scores)
    history = fit(
        *(model, build("rows", "ce", y, min_tpr=0.5, max_fpr=0.5), TensorBatches(x[:, :1], y, batch_size=1024)),
        **{"validation": validation, "epochs": len(scores) - 1, "callbacks": [NextScores()], **options},
        **{"min_tpr": min_tpr, "max_fpr": max_fpr},
    )
    return history, model


WORST, BAD, BETTER = [1.0, 2.0, 3.0, 4.0], [1.0, 3.5, 3.0, 4.0], [1.0, 4.5, 3.0, 4.0]  # TPAUC 0; AUC 0, 0.25, 0.5
HONEST = [3.5, 5.0, 3.0, 4.0]
NARROW, WIDE = [5.0, 8.0, 0.0, 4.0], [7.0, 8.0, 0.0, 1.0]  # all pairs in order
RISING = [[1.0, 2.0 + k / 2, 3.0, 4.0] for k in range(6)]  # AUC 0, 0, 0.125, 0.25, ...
GROWING = [[7.0 + step, 8.0 + step, 0.0, 1.0] for step in range(8)]


@pytest.mark.parametrize(
    ("scores", "patience", "best", "epochs", "by"),
    [
        ([WORST, BAD, BETTER, BETTER, WORST], None, 1, 4, "earliest"),
        ([WORST, BAD, BETTER, WORST], None, 1, 3, "auc"),
        ([WORST, BETTER, HONEST, [5.0, 6.0, 3.0, 4.0], WORST], None, 2, 4, "score"),
        ([NARROW, WIDE, [14.0, 16.0, 0.0, 2.0], NARROW], None, 0, 3, "earliest"),  # the scale does not matter
        ([NARROW, WIDE, NARROW], None, 0, 2, "gap"),
        ([[0.0] * 4, HONEST, [7.0] * 4], None, 0, 2, "auc"),  # one score for all rows gets 0, not one half
        (GROWING, 2, 1, 2, "gap"),  # a gap that grows does not prolong a run
        (RISING, 1, -1, 1, None),
        (RISING, 2, 4, 5, "auc"),  # a wider region does
    ],
)
def test_of_epochs_with_one_score_the_wider_region_the_auc_the_gap_and_the_earliest_decide(
    scores, patience, best, epochs, by
):
    history, model = chosen_of(*scores, patience=patience)
    assert (history.best_epoch, len(history["score"]), model.place) == (best, epochs, best + 1)
    assert by is None or history.chosen_by == by
    assert (history.choice == "") == (history.chosen_by == "score")


def test_scores_of_the_epochs_are_in_the_history():
    history, _ = chosen_of(WORST, BAD, BETTER, BETTER, WORST)
    assert history.best_scores == {"score": 0.0, "wider_score": 0.0, "auc": 0.5, "gap": 0.0}
    assert history["score"] == [0.0] * 4 and history["auc"] == [0.25, 0.5, 0.5, 0.0]
    history, _ = chosen_of(NARROW, WIDE, NARROW)
    assert history.best_scores["gap"] == pytest.approx(6.0 / np.std(WIDE))


def test_weights_of_validation_rows_decide_between_epochs():
    low, high = [1.0, 4.0, 2.0, 3.0], [4.0, 1.0, 2.0, 3.0]  # either loses one of the two positives
    for weight, best in (((3.0, 1.0, 1.0, 1.0), 1), ((1.0, 3.0, 1.0, 1.0), 0)):
        options = {"min_tpr": 0.0, "max_fpr": 1.0, "validation_weight": np.array(weight)}
        history, _ = chosen_of([1.0, 2.0, 3.0, 4.0], low, high, **options)
        assert history.best_epoch == best and history.best_score == 0.75
    with pytest.raises(ValueError, match="validation_weight must be None with a score of your own"):
        chosen_of(low, high, **options, score=lambda scores, labels: 0.0)


def test_a_kept_model_with_tied_scores_warns():
    with pytest.warns(TiedScoresWarning, match="100.0% of the validation rows of the region have a score"):
        history, _ = chosen_of([1.0, 2.0, 3.0, 4.0], [0.0] * 4)
    assert history.best_tied == 1.0
