"""The module and the callback of Lightning: scores, settings, what is refused."""

from __future__ import annotations

import copy
import logging
import sys
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy
from lightning_runs import (
    BAGS,
    NAMES,
    REGION,
    Kill,
    Own,
    X,
    Y,
    accuracy,
    assert_same,
    bags,
    bags_by_loader,
    fit_error,
    groups,
    interrupted,
    make,
    network,
    rows,
    run,
    trainer_of,
)
from torch.utils.data import DataLoader, TensorDataset

from moreauc import TPAUCLoss
from moreauc.contrib.lightning import (
    CriterionModule,
    ResumableLoader,
    StatefulCriterion,
    criterion_loss,
    previous_iterate,
)
from moreauc.criteria import CrossEntropyLoss
from moreauc.data import TensorBatches, WholeBags
from moreauc.metrics import tpauc_score
from moreauc.samplers import DistributedBatchSampler
from moreauc.train import predict_scores


def test_the_score_is_that_of_all_validation_rows():
    parts = make(rows)
    trainer = trainer_of([])
    small = TensorBatches(X, Y, batch_size=7)  # the last batch has four rows, and some have no positive
    trainer.fit(parts.module, parts.loader, small)
    scores, labels = predict_scores(parts.module.model, small)
    expected = tpauc_score(labels.numpy(), scores.numpy(), **REGION)
    assert trainer.callback_metrics["val_score"].item() == pytest.approx(expected, abs=1e-6)
    assert trainer.test(parts.module, small, verbose=False)[0]["test_score"] == pytest.approx(expected, abs=1e-6)
    predicted = torch.cat(trainer.predict(parts.module, small))
    assert torch.equal(predicted.double(), scores)
    assert parts.module.training


def test_the_loss_logged_is_the_mean_over_the_steps():
    class Losses(Callback):
        def __init__(self):
            self.losses = []

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            self.losses.append(outputs["loss"].item())

    parts, losses = make(rows), Losses()
    trainer = trainer_of([losses])
    trainer.fit(parts.module, parts.loader, parts.validation)
    assert trainer.callback_metrics["train_loss"].item() == pytest.approx(sum(losses.losses[-5:]) / 5, rel=1e-6)


def test_bags_and_scores_of_the_users():
    parts = make(bags)
    trainer = trainer_of([])
    trainer.fit(parts.module, parts.loader, parts.validation)
    scores, labels = WholeBags(BAGS, parts.criterion.pooling).predict(parts.module.model)
    expected = tpauc_score(labels.numpy(), scores.numpy(), **REGION)
    assert trainer.callback_metrics["val_score"].item() == pytest.approx(expected, abs=1e-6)
    predicted = torch.cat(trainer.predict(parts.module, parts.validation))
    assert torch.allclose(predicted.double(), scores, atol=1e-6)

    parts = make(groups)
    trainer = trainer_of([])
    trainer.fit(parts.module, parts.loader, parts.validation)
    scores, labels = predict_scores(parts.module.model, parts.validation)
    assert trainer.callback_metrics["val_score"].item() == pytest.approx(accuracy(scores, labels))


def test_optimizers_by_name_and_by_function():
    def kind(**settings):
        return CriterionModule(network(), TPAUCLoss(Y, **REGION), **settings).configure_optimizers()

    sgd = kind(lr=0.3, momentum=0.5, weight_decay=0.01)
    assert isinstance(sgd, torch.optim.SGD)
    assert [sgd.defaults[name] for name in ("lr", "momentum", "weight_decay")] == [0.3, 0.5, 0.01]
    adam = kind(optimizer="adam", lr=0.2, weight_decay=0.1)
    assert isinstance(adam, torch.optim.AdamW) and (adam.defaults["lr"], adam.defaults["weight_decay"]) == (0.2, 0.1)
    both = kind(optimizer=torch.optim.RMSprop, scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9))
    assert isinstance(both["optimizer"], torch.optim.RMSprop)
    assert both["lr_scheduler"].optimizer is both["optimizer"]


def test_a_loss_without_memory_and_without_correction(tmp_path):
    """No previous weights are kept; a loss that comes to need them gets them from the next epoch on."""
    parts = make(lambda: (TPAUCLoss(Y, **REGION), *rows()[1:]))
    assert run(parts, tmp_path / "end.ckpt")["ours"]["previous"] is None
    plain_loss = make(lambda: (CrossEntropyLoss(Y), *rows()[1:]), min_tpr=0.2, max_fpr=0.8)
    assert run(plain_loss, tmp_path / "other.ckpt")["ours"]["previous"] is None

    class Correct(Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            pl_module.criterion.gamma = 0.2 if trainer.current_epoch else 0.0

    late = make(lambda: (TPAUCLoss(Y, **REGION), *rows()[1:]))
    late.callbacks.append(Correct())
    assert run(late, tmp_path / "late.ckpt")["ours"]["previous"]["weights"]


def test_nothing_stays_on_the_model_and_modules_can_be_copied(tmp_path):
    class Copy(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            self.copied = copy.deepcopy(pl_module._keep)

    parts, keeper = make(rows), Copy()
    parts.callbacks.append(keeper)
    run(parts, tmp_path / "end.ckpt")
    assert not parts.module.model._forward_pre_hooks
    assert keeper.copied.state_dict()["previous"]["weights"]
    expected, found = (part.state_dict() for part in (parts.module, copy.deepcopy(parts.module)))
    assert_same(dict(found), dict(expected))


def test_a_second_fit_begins_anew(tmp_path):
    parts = make(rows)
    first = run(parts, tmp_path / "one.ckpt", epochs=1)
    second = run(parts, tmp_path / "two.ckpt", epochs=1)
    assert first["loader"] == second["loader"] and first["loader"][0]["step"] == 5  # and not an empty second run
    assert not torch.equal(*(run["weights and tables"]["model.0.weight"] for run in (first, second)))


def test_hooks_of_a_run_that_failed_are_taken_off_by_the_next(tmp_path):
    parts = make(rows, "own")
    interrupted(SimpleNamespace(**{**vars(parts), "callbacks": [*parts.callbacks, Kill(2)]}), None)
    assert len(parts.module.part["net"]._forward_pre_hooks) == 1
    run(parts, tmp_path / "end.ckpt")
    assert not parts.module.part["net"]._forward_pre_hooks


def test_a_checkpoint_without_our_state_is_loaded_with_a_note(tmp_path, caplog):
    class Bare(Own):
        def training_step(self, batch, batch_idx):
            inputs, labels, index = batch
            return self.loss(self.part["net"](inputs).squeeze(1), labels, index)

    trainer = trainer_of([], epochs=1)
    trainer.fit(Bare(TPAUCLoss(Y, **REGION)), make(rows).loader)
    trainer.save_checkpoint(tmp_path / "bare.ckpt")
    parts = make(rows, "own")
    with caplog.at_level(logging.WARNING, logger="moreauc"):
        trainer_of(parts.callbacks).fit(parts.module, parts.loader, ckpt_path=tmp_path / "bare.ckpt")
    assert "the checkpoint has no state of it: previous weights and random states begin anew" in caplog.text


def test_what_cannot_work_is_refused():
    parts = make(rows, "own")
    fit_error("callbacks of the Trainer must hold one to train Own, got none", parts.module, parts.loader)
    with pytest.raises(ValueError, match=r"trainer\.fit must be under way"):
        StatefulCriterion(**NAMES).run_of(parts.module)
    with pytest.raises(ValueError, match="callbacks of the Trainer must hold one to train Own, got none"):
        criterion_loss(Own(rows()[0]), None)

    wrong = [StatefulCriterion(model="part.net")]
    fit_error("criterion must name a submodule of Own, got 'criterion'", parts.module, parts.loader, wrong)
    wrong = [StatefulCriterion(criterion="loss")]
    fit_error("model must name a submodule of Own, got 'model'", parts.module, parts.loader, wrong)

    class Elsewhere(Own):
        def training_step(self, batch, batch_idx):
            inputs, labels, index = batch
            scores = self.part["net"][1:](self.part["net"][0](inputs)).squeeze(1)
            return self.loss(scores, labels, index, previous_scores=previous_iterate(self)(inputs).squeeze(1))

    message = "model must name the submodule that training_step calls, got 'part.net', which was not called"
    fit_error(message, Elsewhere(rows()[0]), parts.loader, [StatefulCriterion(**NAMES)])

    class Needless(Own):
        def training_step(self, batch, batch_idx):
            return previous_iterate(self)

    message = "previous_iterate: the loss must need previous scores, got TPAUCLoss, which does not"
    fit_error(message, Needless(TPAUCLoss(Y, **REGION)), parts.loader, [StatefulCriterion(**NAMES)])


@pytest.mark.parametrize("several", [lambda loader: loader, lambda loader: {"a": loader}, lambda loader: [loader]])
@pytest.mark.parametrize("problem", [rows, bags_by_loader])
def test_loaders_whose_position_would_be_lost_are_refused(several, problem):
    criterion, loader, validation, _ = problem()
    sampler = type(getattr(loader, "batch_sampler", None) or loader.sampler).__name__
    message = rf"train_dataloaders must be ResumableLoader\(loader\), got {type(loader).__name__} with {sampler}"
    fit_error(message, CriterionModule(network(), criterion), several(loader), validation=validation)


def test_batches_of_other_processes_are_refused():
    parts = make(rows)
    dealt = DistributedBatchSampler(parts.loader.loader.sampler, rank=1, world_size=2)
    message = "must split its batches by a DistributedBatchSampler with rank 0 and world_size 1, got 1 and 2"
    fit_error(message, parts.module, ResumableLoader(TensorBatches(X, Y, dealt)), validation=parts.validation)


@pytest.mark.parametrize("plain_loader", [True, False])
def test_a_loader_without_a_position_is_logged(plain_loader, caplog):
    """Lightning makes its iterators at other moments where it resumes, and each draws from the global generator."""
    parts = make(rows)
    loader = TensorBatches(X, Y, batch_size=12) if plain_loader else parts.loader
    with caplog.at_level(logging.WARNING, logger="moreauc"):
        trainer_of([], epochs=1).fit(parts.module, loader, parts.validation)
    text = "train_dataloaders has a TensorBatches, no ResumableLoader: a resumed run will draw other random numbers"
    assert (text in caplog.text) == plain_loader


@pytest.mark.parametrize(
    ("strategy", "processes", "message"),
    [
        (FSDPStrategy, 1, "strategy must leave the weights of the model whole and in place, .* got FSDPStrategy"),
        (DDPStrategy, 2, "criterion must be a .*DistributedCriterion of all 2 processes, got TPAUCLoss of 1"),
    ],
)
def test_strategies_that_scatter_the_state_are_refused(strategy, processes, message):
    trainer = SimpleNamespace(strategy=object.__new__(strategy), world_size=processes)
    parts = make(rows, "own")
    with pytest.raises(ValueError, match=f"StatefulCriterion: {message}"):
        parts.callbacks[0].setup(trainer, parts.module, "fit")
    parts.callbacks[0].setup(trainer, parts.module, "validate")  # nothing to lose


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": ""}, "StatefulCriterion: model must be the name of a submodule, got ''"),
        ({"criterion": 3}, "StatefulCriterion: criterion must be the name of a submodule, got 3"),
        ({"proximal": -1.0}, r"StatefulCriterion: proximal must be a number in \[0, inf\), got -1"),
        ({"restarts": [0]}, "StatefulCriterion: restarts must be an integer"),
    ],
)
def test_errors_of_the_callback(settings, message):
    with pytest.raises(ValueError, match=message):
        StatefulCriterion(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": 3}, "model must be an nn.Module, got int"),
        ({"criterion": abs}, "criterion must be an nn.Module, got builtin_function_or_method"),
        ({"optimizer": "rprop"}, "optimizer must be a function, 'sgd' or 'adam', got 'rprop'"),
        ({"scheduler": 0.1}, "scheduler must be a function or None, got 0.1"),
        ({"score": "auc"}, "score must be a function of scores and labels, got 'auc'"),
        ({"lr": 0.0}, "lr must be a number"),
        ({"momentum": 1.0}, "momentum must be a number"),
        ({"weight_decay": -1.0}, "weight_decay must be a number"),
        ({"min_tpr": 1.0}, "min_tpr must be a number"),
        ({"max_fpr": 0.0}, "max_fpr must be a number"),
    ],
)
def test_errors_of_the_module(settings, message):
    with pytest.raises(ValueError, match=f"CriterionModule: {message}"):
        CriterionModule(**{"model": network(), "criterion": rows()[0], **settings})


def test_a_loss_without_a_region_needs_a_score():
    criterion, loader, validation, _ = groups()
    module = CriterionModule(network(), criterion)
    message = "min_tpr must be given with validation, GroupedLoss has none, got None"
    with pytest.raises(ValueError, match=message):
        trainer_of([]).fit(module, ResumableLoader(loader), validation)


def test_batches_of_validation_have_labels():
    parts = make(rows)
    unlabelled = DataLoader(TensorDataset(X), batch_size=10)
    message = r"CriterionModule: batches of validation must be \(inputs, labels\), got 1 parts"
    fit_error(message, parts.module, parts.loader, validation=unlabelled)


@pytest.mark.parametrize(
    ("chosen", "settings", "message"),
    [
        (Y == 0, {}, "validation must hold both classes, got only labels 0"),
        (Y == 1, {}, "validation must hold both classes, got only labels 1"),
        (
            torch.arange(60) < 3,
            {"min_tpr": 0.2, "max_fpr": 0.4},
            "validation must have enough rows for the region to hold a pair, got 1 positives and 2 negatives",
        ),
        (Y < 2, {"score": lambda scores, labels: float("nan")}, "score must return a finite number, got nan"),
    ],
)
def test_validation_data_that_have_no_score(chosen, settings, message):
    """A NaN would be logged, and never be better or worse than another."""
    parts = make(rows, **settings)
    few = TensorBatches(X[chosen], Y[chosen])
    fit_error(f"CriterionModule: {message}", parts.module, parts.loader, validation=few)


def test_without_lightning_the_error_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("moreauc.contrib")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name == "lightning" or name.startswith("lightning.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lightning", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'moreauc\[lightning\]'"):
        import moreauc.contrib.lightning  # noqa: F401
