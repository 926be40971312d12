from __future__ import annotations

import copy
import io
import logging
import math
import re
import sys
from functools import partial
from itertools import count

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from experiments.models.side_by_side import SideBySide
from moreauc import FCCOLoss, PreviousIterate, TPAUCLoss
from moreauc.criteria import CrossEntropyLoss
from moreauc.data import TensorBatches
from moreauc.methods import METHODS, build
from moreauc.metrics import TiedScoresWarning, tpauc_score
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


@pytest.mark.parametrize("gamma", [0.0, 0.3])
@pytest.mark.parametrize(("copies", "rows"), [(1, 1), (3, 1), (3, 5)])
def test_models_side_by_side_keep_their_rows(gamma, copies, rows):
    """A batch of one row has scores `(C, 1)`, which are not those of `C` rows and one column."""
    model = SideBySide([nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)) for _ in range(copies)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []

    class Criterion(nn.Module):
        needs_previous = gamma > 0.0

        def forward(self, scores, labels, index, previous_scores=None):
            seen.append((scores.shape, scores.shape if previous_scores is None else previous_scores.shape))
            return scores.sum()

    x, y = make_data(rows)
    train_step(model, Criterion(), optimizer, (x, y, torch.arange(rows)), PreviousIterate(model, optimizer))
    assert seen == [((copies, rows), (copies, rows))]


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


def test_weights_before_the_first_epoch_may_be_the_best():
    x, y = make_data()
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[5.0, 0.0, 0.0, 0.0]]))
    start = copy.deepcopy(model.state_dict())

    class Spoil(Callback):
        def on_step(self, state):
            with torch.no_grad():
                state.model.weight[0, 0] -= 50.0

    run = partial(fit, model, validation=TensorBatches(x, y), epochs=2, callbacks=[Spoil()])
    with pytest.warns(UntrainedWarning, match="than the weights before training, score 0.95, which were kept"):
        history = run(TPAUCLoss(y, **REGION), batches(x, y))
    assert history.best_epoch == -1 and history.untrained
    assert torch.equal(model.weight, start["weight"])
    history = run(TPAUCLoss(y, **REGION), batches(x, y), keep_best=False)  # nor a word where they are not kept
    assert history.best_epoch == -1 and not history.untrained


def test_untrained_weights_are_named_again_when_a_finished_run_is_read(tmp_path):
    x, y = make_data()
    scores = count()
    options = {"warm_start_epochs": 1, "score": lambda *_: -next(scores), "checkpoint": tmp_path / "run"}
    for _ in range(2):
        run = partial(fit, nn.Linear(4, 1), TPAUCLoss(y, **REGION), batches(x, y), validation=TensorBatches(x, y))
        with pytest.warns(UntrainedWarning, match="than the weights after the warm start"):
            assert run(epochs=1, **options).untrained
    assert next(scores) == 2  # the second time nothing was trained


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


def test_inputs_may_be_tuples_or_dictionaries():
    x, y = make_data()

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, left, right):
            return self.layer(torch.cat([left, right], 1)).squeeze(1)

    for inputs in ((x[:, :2], x[:, 2:]), {"left": x[:, :2], "right": x[:, 2:]}):
        sampler = PosNegSampler(y, num_positives=6, num_negatives=12)
        criterion = TPAUCLoss(y, gamma=0.1, **REGION)
        history = fit(Two(), criterion, TensorBatches(inputs, y, sampler), epochs=2, lr=0.1)
        assert len(history["loss"]) == 2


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


def test_hooks_are_gone_after_the_run():
    x, y = make_data()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fit(model, TPAUCLoss(y, gamma=0.1, **REGION), batches(x, y), optimizer=optimizer, epochs=1, proximal=0.1)
    assert not model._forward_pre_hooks and not optimizer._optimizer_step_pre_hooks


def test_predict_scores_leaves_the_modes_alone():
    x, y = make_data()
    model = make_model(dropout=0.5)
    model.train()
    model[2].eval()
    scores, labels = predict_scores(model, TensorBatches(x, y, batch_size=7))
    assert [module.training for module in model] == [True, True, False, True] and model.training
    assert torch.equal(labels, y)
    torch.testing.assert_close(scores, model.eval()(x).detach().squeeze(1).double())


def test_needs_previous_follows_gamma():
    assert not TPAUCLoss([0, 1], **REGION).needs_previous
    assert TPAUCLoss([0, 1], gamma="theory", tau=0.5, **REGION).needs_previous
    assert not CrossEntropyLoss([0, 1]).needs_previous
    assert FCCOLoss(3, lambda u, index: u, tau=0.5, gamma=0.1).needs_previous
    x, y = make_data()
    with pytest.raises(ValueError, match="train_step: previous must be given where the criterion needs"):
        batch = next(iter(batches(x, y)))
        train_step(make_model(), TPAUCLoss(y, gamma=0.1, **REGION), torch.optim.SGD([torch.zeros(1)], 0.1), batch)


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


def test_wrong_data_is_named():
    x, y = make_data()
    model, criterion = make_model(), TPAUCLoss(y, **REGION)
    with pytest.raises(ValueError, match="validation must hold both classes, got only labels 0"):
        fit(model, criterion, batches(x, y), validation=TensorBatches(x, torch.zeros_like(y)), epochs=1)
    few = TensorBatches(x[:12], y[:12])
    with pytest.raises(ValueError, match="enough rows for the region to hold a pair, got 2 positives and 10 negatives"):
        fit(model, criterion, batches(x, y), validation=few, min_tpr=0.9, epochs=1)
    with pytest.raises(ValueError, match="min_tpr must be given with validation, CrossEntropyLoss has none, got None"):
        fit(model, CrossEntropyLoss(y), batches(x, y), validation=TensorBatches(x, y), epochs=1)
    with pytest.raises(ValueError, match=r"batch must be \(inputs, labels, index\), got 2"):
        fit(model, criterion, [(x, y)], epochs=1)
    with pytest.raises(ValueError, match="train must give at least one batch in each epoch, got none"):
        fit(model, criterion, [], epochs=1)
    with pytest.raises(ValueError, match="batches must not be empty"):
        predict_scores(model, [])
    x[3] = torch.nan
    with pytest.raises(ValueError, match="scores must be finite") as caught:
        fit(model, criterion, batches(x, y), epochs=1, lr=0.25)
    assert any("in train, epoch 0, step" in note and "learning rate 0.25" in note for note in caught.value.__notes__)
    with pytest.raises(ValueError, match="scores on the validation data that are not finite"):
        fit(model, TPAUCLoss(y, **REGION), batches(*make_data()), validation=TensorBatches(x, y), epochs=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x, y: DataLoader(x, batch_size=7), "batches must be .* got Tensor"),
        (lambda x, y: [(x,)], "batches must be .* got 1 part"),
        (lambda x, y: [(x, torch.stack([y, 1 - y], 1))], "labels must be as many as scores, 60, got 120"),
        (lambda x, y: [(x, y[:5])], "labels must be as many as scores, 60, got 5"),
    ],
)
def test_batches_without_labels_of_their_own_are_not_scored(make, message):
    x, y = make_data()
    x, y = x[:60], y[:60]
    model = make_model()
    with pytest.raises(ValueError, match=f"predict_scores: {message}"):
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


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys, monkeypatch):
    x, y = make_data()
    run = (make_model(), TPAUCLoss(y, **REGION), batches(x, y))
    fit(*run, epochs=2, progress=True)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("moreauc.train.state._PAUSE", 0.0)
    fit(*run, epochs=2, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert all(re.fullmatch(r"train \d/2(  objective [\d.e-]+)?  \d+ s, at most \d+ s left", line) for line in lines)
    assert lines[-1].startswith("train 2/2  objective") and lines[-1].endswith("at most 0 s left")


def test_every_epoch_is_logged_while_it_trains(caplog):
    x, y = make_data()

    class Look(Callback):
        def on_epoch(self, state):
            seen.append(len(caplog.messages))

    seen: list[int] = []
    with caplog.at_level("INFO", logger="moreauc.train"):
        fit(make_model(), TPAUCLoss(y, **REGION), batches(x, y), epochs=2, callbacks=[Look()])
    assert seen == [1, 2] and re.match(r"train epoch 2: loss [\d.e-]+, lr [\d.e-]+, seconds ", caplog.messages[1])


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
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'moreauc\[tensorboard\]'"):
        TensorBoardLogger(tmp_path)


def test_unknown_methods_and_widths():
    with pytest.raises(ValueError, match=r"build: name must be one of .*, got 'sgd'"):
        build("rows", "sgd", [0, 1], **REGION)
    with pytest.raises(ValueError, match=r"build: widen must be a number in \[0, 1\], got 2.0"):
        build("rows", "sonx", [0, 1], widen=2.0, **REGION)
    with pytest.raises(ValueError, match=r"build: options of 'ce' must be among .*, got 'gamma'"):
        build("rows", "ce", [0, 1], gamma=0.1, **REGION)
    wide = build("rows", "sonx", [0, 1], widen=0.5, min_tpr=0.6, max_fpr=0.4)
    assert wide.min_tpr == pytest.approx(0.3) and wide.max_fpr == pytest.approx(0.7)
    assert build("rows", "mb", [0, 1], widen=1.0, **REGION).max_fpr == 1.0


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
    with pytest.raises(ValueError, match="labels must be finite"):
        TensorBatches(x, torch.full((60,), float("nan")), binary=False)
    with pytest.raises(ValueError, match="labels must be 0 or 1"):
        TensorBatches(x, y)


@pytest.mark.parametrize("kind", ["float64", "uint8"])
def test_bags_of_other_types_and_models_that_return_pairs(kind):
    from moreauc import MultiInstanceTPAUCLoss
    from moreauc.data import BagBatches, BagEvaluation, ListBags
    from moreauc.models import InstanceMLP

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = InstanceMLP(3, attention=True)

        def forward(self, x):
            return tuple(self.network(x).unbind(1))

    random = np.random.default_rng(0)
    arrays = [random.integers(0, 9, (4, 3)).astype(kind) for _ in range(12)]
    bags = ListBags(arrays, [0, 1] * 6)
    train = BagBatches(bags, PosNegSampler(bags.labels, num_positives=2, num_negatives=2), instances_per_bag=2)
    results = []
    for wrap in (lambda: InstanceMLP(3, attention=True), Pair):
        torch.manual_seed(0)
        criterion = MultiInstanceTPAUCLoss(bags.labels, min_tpr=0.5, max_fpr=0.5, pooling="attention", gamma=0.1)
        history = fit(wrap(), criterion, train, validation=BagEvaluation(bags, "attention"), epochs=2, lr=0.01)
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


def test_of_epochs_with_one_score_the_wider_region_then_the_auc_then_the_earliest_is_kept():
    worst, bad = [1.0, 2.0, 3.0, 4.0], [1.0, 3.5, 3.0, 4.0]  # AUC 0 and 0.25, TPAUC 0
    better = [1.0, 4.5, 3.0, 4.0]  # AUC 0.5
    history, model = chosen_of(worst, bad, better, better, worst)
    assert history.best_score == 0.0 and history.best_epoch == 1 and model.place == 2
    assert history.best_scores == {"score": 0.0, "wider_score": 0.0, "auc": 0.5, "gap": 0.0}
    assert history.chosen_by == "earliest" and "earliest" in history.choice
    assert history["score"] == [0.0] * 4 and history["auc"] == [0.25, 0.5, 0.5, 0.0]
    history, model = chosen_of(worst, bad, better, worst)
    assert history.best_epoch == 1 and history.chosen_by == "auc" and history.choice.endswith("by the AUC, 0.5000")
    history, model = chosen_of(worst, better, [3.5, 5.0, 3.0, 4.0], [5.0, 6.0, 3.0, 4.0], worst)
    assert history.best_epoch == 2 and history.chosen_by == "score" and history.choice == ""
    assert history.best_score == 1.0


def test_weights_of_validation_rows_decide_between_epochs():
    low, high = [1.0, 4.0, 2.0, 3.0], [4.0, 1.0, 2.0, 3.0]  # either loses one of the two positives
    for weight, best in (((3.0, 1.0, 1.0, 1.0), 1), ((1.0, 3.0, 1.0, 1.0), 0)):
        options = {"min_tpr": 0.0, "max_fpr": 1.0, "validation_weight": np.array(weight)}
        history, _ = chosen_of([1.0, 2.0, 3.0, 4.0], low, high, **options)
        assert history.best_epoch == best and history.best_score == 0.75
    with pytest.raises(ValueError, match="validation_weight must be None with a score of your own"):
        chosen_of(low, high, **options, score=lambda scores, labels: 0.0)


def test_where_all_pairs_are_in_order_the_widest_gap_then_the_earliest_is_kept():
    narrow, wide = [5.0, 8.0, 0.0, 4.0], [7.0, 8.0, 0.0, 1.0]
    history, _ = chosen_of(narrow, wide, [14.0, 16.0, 0.0, 2.0], narrow)  # the scale of the scores does not matter
    assert history.best_epoch == 0 and history.chosen_by == "earliest"
    assert history.best_scores["gap"] == pytest.approx(6.0 / np.std(wide))
    history, _ = chosen_of(narrow, wide, narrow)
    assert history.best_epoch == 0 and history.chosen_by == "gap" and "gap between the classes" in history.choice


def test_patience_ends_a_run_whose_pairs_are_all_in_order_while_the_gap_grows():
    growing = [[7.0 + step, 8.0 + step, 0.0, 1.0] for step in range(8)]
    history, _ = chosen_of(*growing, patience=2)
    assert len(history.rows) == 2 and history.best_epoch == 1 and history.chosen_by == "gap"


def test_a_model_that_gives_all_rows_one_score_is_not_kept():
    """Ties count as the curve has them: one score for all rows gets 0 at (0.5, 0.5), not one half."""
    honest = [3.5, 5.0, 3.0, 4.0]
    history, _ = chosen_of([0.0] * 4, honest, [7.0] * 4)
    assert history.best_epoch == 0 and history.best_scores["auc"] == 0.75


def test_a_kept_model_with_tied_scores_warns():
    with pytest.warns(TiedScoresWarning, match="100.0% of the validation rows of the region have a score"):
        history, _ = chosen_of([1.0, 2.0, 3.0, 4.0], [0.0] * 4)
    assert history.best_tied == 1.0


def test_patience_counts_epochs_that_are_better_in_a_wider_region():
    rising = [[1.0, 2.0 + k / 2, 3.0, 4.0] for k in range(6)]  # AUC 0, 0, 0.125, 0.25, ...
    history, _ = chosen_of(*rising, patience=1)
    assert len(history["score"]) == 1 and history.best_epoch == -1
    history, _ = chosen_of(*rising, patience=2)
    assert len(history["score"]) == 5 and history.best_epoch == 4
