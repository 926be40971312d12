"""Lightning, the real one: runs equal plain loops, and interrupted runs equal uninterrupted ones, bit for bit."""

from __future__ import annotations

import copy
import logging
import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import Callback, Checkpoint, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy
from lightning_runs import (
    NAMES,
    REGION,
    Kill,
    Killed,
    Manual,
    Own,
    Save,
    X,
    Y,
    assert_same,
    bags,
    bags_by_loader,
    everything,
    fit_error,
    groups,
    interrupted,
    make,
    plain,
    resume,
    rows,
    rows_by_workers,
    run,
    trainer_of,
)

from moreauc import TPAUCLoss
from moreauc.checkpoint import CheckpointError
from moreauc.contrib.lightning import ResumableLoader, StatefulCriterion, criterion_loss, previous_iterate
from moreauc.data import TensorBatches
from moreauc.samplers import DistributedBatchSampler


@pytest.mark.parametrize(
    ("problem", "pull", "options"),
    [
        (rows, {}, {"accumulate_grad_batches": 2}),
        (rows, {"proximal": 0.5, "restarts": [1, 2]}, {"gradient_clip_val": 0.05}),
        (groups, {}, {}),
        (bags, {}, {"precision": "bf16-mixed", "accumulate_grad_batches": 3}),
    ],
)
def test_a_run_equals_a_plain_loop(problem, pull, options, tmp_path):
    """So previous scores are those of the weights before the last step, with the same dropout masks."""
    names = {"accumulate_grad_batches": "accumulate", "gradient_clip_val": "clip", "precision": "dtype"}
    plain_options = {names[key]: torch.bfloat16 if key == "precision" else value for key, value in options.items()}
    state, previous = plain(problem, **plain_options, **pull)
    found = run(make(problem, **pull), tmp_path / "end.ckpt", **options)
    assert_same(dict(found["weights and tables"]), state)
    assert_same(found["ours"]["previous"], previous)
    assert found["weights and tables"]["part.net.0.weight"].dtype == torch.float32
    assert not pull or (found["ours"]["proximal"]["steps"].item() == 5 and found["ours"]["renewed"] == 2)


class Noisy(Callback):
    """Draws from the generators of Python and NumPy, whose states are compared at the end."""

    def on_train_batch_end(self, *others):
        random.random(), np.random.normal()


_WHOLE = {}  # uninterrupted runs, by what they depend on


def whole_run(parts, folder, key=None, **options):
    """Return all that an uninterrupted run ends with; runs with one key are done once."""
    if key is None or key not in _WHOLE:
        random.seed(3), np.random.seed(3)
        found = run(parts(), folder / "whole.ckpt", **options)
        if key is None:
            return found
        _WHOLE[key] = found
    return _WHOLE[key]


def check_resumed(parts, batch, folder, key=None, **options):
    """Compare a run that was saved after a batch and resumed with an uninterrupted one; return that and the file."""
    expected = whole_run(parts, folder, key, **options)
    first, saved = parts(), folder / "saved.ckpt"
    first.callbacks += [Save(batch, saved), Kill(batch + 1)]
    random.seed(3), np.random.seed(3)
    interrupted(first, saved, **options)
    random.seed(5), np.random.seed(5)
    assert_same(resume(parts(), saved, folder / "resumed.ckpt", **options), expected)
    return expected, saved


PULL = {"proximal": 0.1, "restarts": [1]}
RESUMED = [
    # in the first epoch, after its last batch, in the second
    *((rows, Own, batch, {}, {}) for batch in (1, 4, 7)),
    *((problem, Own, 7, {}, {}) for problem in (rows_by_workers, bags, bags_by_loader, groups)),
    # with manual optimization batches 0, 2 and 4 end between two steps
    *((rows, Manual, batch, {}, {}) for batch in (0, 3)),
    (rows, Own, 6, PULL, {"precision": "bf16-mixed"}),
    (rows, Own, 4, PULL, {"gradient_clip_val": 0.05}),
    *((rows, Own, batch, PULL, {"accumulate_grad_batches": 3}) for batch in (0, 2, 4, 6)),
    (rows, Own, 6, {}, {"max_steps": 13, "epochs": -1}),
    *((rows, Own, batch, {}, {"val_check_interval": 2}) for batch in (4, 6)),
    (rows, Own, 4, {}, {"limit_train_batches": 3}),
    (rows, Own, 6, {}, {"reload_dataloaders_every_n_epochs": 1}),
    (rows, Own, 4, {}, {"check_val_every_n_epoch": 2}),
]


@pytest.mark.parametrize(("problem", "module", "batch", "settings", "options"), RESUMED)
def test_a_run_resumed_after_a_batch_equals_the_uninterrupted_one(problem, module, batch, settings, options, tmp_path):
    """Also in the middle of an accumulation, whose gradients Lightning does not keep."""

    def parts():
        new = make(problem, module, **settings)
        new.callbacks.append(Noisy())
        return new

    key = f"{problem.__name__} {module.__name__} {settings} {options}"
    expected, saved = check_resumed(parts, batch, tmp_path, key, **options)
    assert expected["ours"]["previous"]["weights"]
    if module is Own:
        kept = torch.load(saved, weights_only=True)["callbacks"]["StatefulCriterion"]["processes"][0]["gradients"]
        assert bool(kept) == ("accumulate_grad_batches" in options and batch in (0, 6))


@pytest.mark.parametrize(("at_end", "epoch"), [(True, 0), (False, 1)])
def test_a_run_resumed_after_an_epoch_equals_the_uninterrupted_one(at_end, epoch, tmp_path):
    def parts(folder, *others):
        new = make()
        new.callbacks += [ModelCheckpoint(dirpath=folder, save_top_k=1, save_on_train_epoch_end=at_end), *others]
        return new

    expected = run(parts(tmp_path / "whole"), tmp_path / "whole.ckpt", checkpoints=True)
    interrupted(parts(tmp_path / "cut", Kill(5 * epoch + 6)), None, checkpoints=True)
    (saved,) = (tmp_path / "cut").iterdir()
    assert saved.name == f"epoch={epoch}-step={5 * epoch + 5}.ckpt"
    saved = saved.rename(tmp_path / saved.name)  # Lightning does not like a folder that holds one already
    assert_same(resume(parts(tmp_path / "cut"), saved, tmp_path / "end.ckpt", checkpoints=True), expected)


@pytest.mark.parametrize(
    ("options", "own", "message"),
    [
        ({"surrogate": "hinge"}, {}, "surrogate"),
        ({}, {"proximal": 0.2}, "proximal"),
        ({}, {"restarts": [1]}, "restarts"),
    ],
)
def test_another_loss_or_callback_is_refused(options, own, message, tmp_path):
    parts = make()
    parts.callbacks += [Save(2, tmp_path / "saved.ckpt"), Kill(3)]
    saved = interrupted(parts, tmp_path / "saved.ckpt")
    other = make(lambda: (TPAUCLoss(Y, gamma=0.2, **REGION, **options), rows()[1]), **own)
    with pytest.raises(CheckpointError, match=f"{message}.* without ckpt_path"):
        resume(other, saved, tmp_path / "resumed.ckpt")


class Correct(Callback):
    """Sets gamma from some batch on, as docs/adapters.md tells."""

    def __init__(self, first):
        self.first = first

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        pl_module.loss.gamma = 0.2 if 5 * trainer.current_epoch + batch_idx >= self.first else 0.0


@pytest.mark.parametrize("before", [False, True])  # whether the schedule's callback is called before ours
@pytest.mark.parametrize(("first", "batch"), [(5, 4), (7, 7)])  # from the beginning of an epoch, from inside of it
def test_previous_weights_are_kept_where_the_correction_is_switched_on_later(before, first, batch, tmp_path):
    """A new loss has no correction when the checkpoint is loaded; what it will need must not be dropped."""

    def parts():
        new = make(lambda: (TPAUCLoss(Y, **REGION), rows()[1]))
        new.callbacks.insert(0 if before else 1, Correct(first))
        return new

    expected, saved = check_resumed(parts, batch, tmp_path, f"{before} {first}")
    kept = torch.load(saved, weights_only=True)["callbacks"]["StatefulCriterion"]["previous"]
    assert (kept is None) == (batch == 4)
    assert expected["ours"]["previous"]["weights"]


class Data(LightningDataModule):
    """Makes its loaders when it is asked."""

    def train_dataloader(self):
        return ResumableLoader(rows()[1])

    def val_dataloader(self):
        return make().validation


def test_loaders_of_a_data_module(tmp_path):
    expected = run(make(), tmp_path / "whole.ckpt")
    cut, path = make(), tmp_path / "saved.ckpt"
    with pytest.raises(Killed):
        trainer_of([*cut.callbacks, Save(6, path), Kill(7)]).fit(cut.module, datamodule=Data())
    resumed = make()
    trainer = trainer_of(resumed.callbacks)
    trainer.fit(resumed.module, datamodule=Data(), ckpt_path=path)
    assert_same(everything(trainer, tmp_path / "end.ckpt"), expected)


class SaveAtTheEnd(Checkpoint):
    """What Lightning's OnExceptionCheckpoint does, which warns where there is none to begin with."""

    def __init__(self, path):
        self.path = path

    def on_exception(self, trainer, pl_module, exception):
        trainer.save_checkpoint(self.path)


class Terminate(Callback):
    """Does what Lightning's handler of SIGTERM does, during a batch."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.fit_loop.total_batch_idx == 6:
            trainer._signal_connector.received_sigterm = True


@pytest.mark.parametrize(
    ("end", "accumulate", "error"),
    [(Terminate(), 2, SystemExit), *((Kill(n), 1, Killed) for n in (0, 5)), (Kill(4), 3, Killed)],
)
def test_a_run_ended_by_a_signal_or_an_error_resumes(end, accumulate, error, tmp_path):
    """After a signal Lightning ends behind the batch, here between two steps; a batch that failed is done again."""
    options = {"accumulate_grad_batches": accumulate}
    expected = whole_run(make, tmp_path, f"accumulate {accumulate}", **options)
    parts, path = make(), tmp_path / "last.ckpt"
    random.seed(3), np.random.seed(3)
    parts.callbacks += [SaveAtTheEnd(path), end]
    with pytest.raises(error):
        run(parts, None, checkpoints=True, **options)
    assert_same(resume(make(), path, tmp_path / "resumed.ckpt", **options), expected)


def test_a_finished_run_is_resumed_for_more_epochs(tmp_path):
    expected = run(make(), tmp_path / "whole.ckpt")
    run(make(), tmp_path / "two.ckpt", epochs=2)
    assert_same(resume(make(), tmp_path / "two.ckpt", tmp_path / "three.ckpt"), expected)
    done = resume(make(), tmp_path / "whole.ckpt", tmp_path / "again.ckpt")  # nothing left to do, nothing lost
    assert_same({**done, "loader": []}, {**expected, "loader": []})


class TwoOptimizers(Manual):
    def configure_optimizers(self):
        first, second = self.part["net"][0], self.part["net"][3]
        return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (first, second)]

    def training_step(self, batch, batch_idx):
        self.manual_backward(criterion_loss(self, batch))
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()


def test_several_optimizers(tmp_path):
    expected, _ = check_resumed(lambda: make(module=TwoOptimizers), 6, tmp_path)
    assert len(expected["ours"]["previous"]["weights"]) == 4
    parts = make(module=TwoOptimizers, proximal=0.1)
    fit_error("proximal", parts.module, parts.loader, parts.callbacks)


def test_nothing_stays_on_the_model_and_the_callback_can_be_copied(tmp_path):
    class Copy(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            self.copied = copy.deepcopy(trainer.callbacks[0])

    parts, keeper = make(), Copy()
    parts.callbacks.append(keeper)
    net = parts.module.part["net"]
    first = run(parts, tmp_path / "end.ckpt", epochs=1)
    assert not net._forward_pre_hooks and keeper.copied.state_dict()["previous"]["weights"]
    with pytest.raises(Killed):
        trainer_of([*parts.callbacks, Kill(2)]).fit(parts.module, parts.loader, parts.validation)
    assert len(net._forward_pre_hooks) == 1
    second = run(parts, tmp_path / "two.ckpt", epochs=1)  # begins anew, and takes off the hooks of the failed run
    assert not net._forward_pre_hooks
    assert first["loader"] == second["loader"] and first["loader"][0]["step"] == 5


class Bare(Own):
    def training_step(self, batch, batch_idx):
        inputs, labels, index = batch
        return self.loss(self.part["net"](inputs).squeeze(1), labels, index)


def test_a_checkpoint_without_our_state_is_loaded_with_a_note(tmp_path, caplog):
    trainer = trainer_of([], epochs=1)
    trainer.fit(Bare(TPAUCLoss(Y, **REGION)), make().loader, make().validation)
    trainer.save_checkpoint(tmp_path / "bare.ckpt")
    parts = make(lambda: (TPAUCLoss(Y, **REGION), rows()[1]))
    with caplog.at_level(logging.WARNING, logger="moreauc"):
        found = resume(parts, tmp_path / "bare.ckpt", tmp_path / "end.ckpt")
    assert "the checkpoint has no state of it" in caplog.text
    assert found["ours"]["previous"] is None  # a loss without correction needs none


class Elsewhere(Own):
    def training_step(self, batch, batch_idx):
        inputs, labels, index = batch
        scores = self.part["net"][1:](self.part["net"][0](inputs)).squeeze(1)
        return self.loss(scores, labels, index, previous_scores=previous_iterate(self)(inputs).squeeze(1))


class Needless(Own):
    def training_step(self, batch, batch_idx):
        return previous_iterate(self)


def test_what_cannot_work_is_refused():
    parts = make()
    for callbacks, message in [
        ([], "callbacks of the Trainer must hold one to train Own"),
        ([StatefulCriterion(model="part.net")], "criterion must name a submodule of Own"),
        ([StatefulCriterion(criterion="loss")], "model must name a submodule of Own"),
    ]:
        fit_error(message, parts.module, parts.loader, callbacks)
    with pytest.raises(ValueError, match=r"trainer\.fit must be under way"):
        StatefulCriterion(**NAMES).run_of(parts.module)
    with pytest.raises(ValueError, match="callbacks of the Trainer"):
        criterion_loss(Own(rows()[0]), None)
    with pytest.raises(RuntimeError, match="cannot match this call to a forward pass"):
        trainer_of([StatefulCriterion(**NAMES)]).fit(Elsewhere(rows()[0]), parts.loader, parts.validation)
    fit_error("the loss must need previous scores", Needless(TPAUCLoss(Y, **REGION)), parts.loader)
    dealt = DistributedBatchSampler(parts.loader.loader.sampler, rank=1, world_size=2)
    fit_error("rank 0 and world_size 1, got 1 and 2", parts.module, ResumableLoader(TensorBatches(X, Y, dealt)))


@pytest.mark.parametrize("several", [lambda loader: loader, lambda loader: {"a": loader}])
@pytest.mark.parametrize("problem", [rows, bags_by_loader])
def test_loaders_whose_position_would_be_lost_are_refused(several, problem):
    criterion, loader = problem()
    message = rf"train_dataloaders must be ResumableLoader\(loader\), got {type(loader).__name__}"
    fit_error(message, Own(criterion), several(loader))


@pytest.mark.parametrize("plain_loader", [True, False])
def test_a_loader_without_a_position_is_logged(plain_loader, caplog):
    """Lightning makes its iterators at other moments where it resumes, and each draws from the global generator."""
    parts = make()
    loader = TensorBatches(X, Y, batch_size=12) if plain_loader else parts.loader
    with caplog.at_level(logging.WARNING, logger="moreauc"):
        trainer_of(parts.callbacks, epochs=1).fit(parts.module, loader, parts.validation)
    assert ("no ResumableLoader" in caplog.text) == plain_loader


@pytest.mark.parametrize(
    ("strategy", "processes", "message"),
    [
        (FSDPStrategy, 1, "strategy must leave the weights of the model whole and in place, .* got FSDPStrategy"),
        (DDPStrategy, 2, "criterion must be a .*DistributedCriterion of all 2 processes, got TPAUCLoss of 1"),
    ],
)
def test_strategies_that_scatter_the_state_are_refused(strategy, processes, message):
    trainer = SimpleNamespace(strategy=object.__new__(strategy), world_size=processes)
    parts = make()
    with pytest.raises(ValueError, match=message):
        parts.callbacks[0].setup(trainer, parts.module, "fit")
    parts.callbacks[0].setup(trainer, parts.module, "validate")  # nothing to lose


@pytest.mark.parametrize("settings", [{"model": ""}, {"criterion": 3}, {"proximal": -1.0}, {"restarts": [0]}])
def test_errors_of_the_callback(settings):
    with pytest.raises(ValueError, match=f"StatefulCriterion: {next(iter(settings))}"):
        StatefulCriterion(**settings)


def test_without_lightning_the_error_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("moreauc.contrib", "lightning."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lightning", None)
    with pytest.raises(ModuleNotFoundError, match=r"moreauc\[lightning\]"):
        import moreauc.contrib.lightning  # noqa: F401
