"""Lightning, the real one: runs equal plain loops, and interrupted runs equal uninterrupted ones, bit for bit."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import Callback, Checkpoint, ModelCheckpoint
from lightning_runs import (
    EPOCHS,
    NAMES,
    PROBLEMS,
    REGION,
    Kill,
    Killed,
    Manual,
    Own,
    Save,
    Y,
    assert_same,
    bags,
    everything,
    fit_error,
    groups,
    interrupted,
    make,
    plain,
    resume,
    rows,
    run,
    trainer_of,
)

from moreauc import TPAUCLoss
from moreauc.checkpoint import CheckpointError
from moreauc.contrib.lightning import ResumableLoader, StatefulCriterion, criterion_loss


@pytest.mark.parametrize(
    ("problem", "options"),
    [
        (rows, {}),
        (bags, {}),
        (groups, {}),
        (rows, {"accumulate_grad_batches": 2}),
        (rows, {"gradient_clip_val": 0.05}),
        (rows, {"precision": "bf16-mixed"}),
        (bags, {"precision": "bf16-mixed", "accumulate_grad_batches": 3}),
    ],
)
def test_a_run_equals_a_plain_loop(problem, options, tmp_path):
    """So previous scores are those of the weights before the last step, with the same dropout masks."""
    names = {"accumulate_grad_batches": "accumulate", "gradient_clip_val": "clip", "precision": "dtype"}
    plain_options = {names[key]: torch.bfloat16 if key == "precision" else value for key, value in options.items()}
    state, previous = plain(problem, **plain_options)
    found = run(make(problem), tmp_path / "end.ckpt", **options)
    assert_same(dict(found["weights and tables"]), state)
    assert_same(found["ours"]["previous"], previous)
    assert found["weights and tables"]["model.0.weight"].dtype == torch.float32


def test_the_proximal_point_equals_a_plain_loop(tmp_path):
    state, _ = plain(rows, proximal=0.5, restarts=[1, 2], clip=0.05)
    parts = make(rows, proximal=0.5, restarts=[1, 2])
    found = run(parts, tmp_path / "end.ckpt", gradient_clip_val=0.05)
    assert_same(dict(found["weights and tables"]), state)
    assert found["ours"]["proximal"]["steps"].item() == 5 and found["ours"]["renewed"] == 2


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
    assert_same(resume(parts(), saved, folder / "resumed.ckpt", **options), expected)
    return expected, saved


PULL = {"proximal": 0.1, "restarts": [1]}
TRAINERS = [
    *({"max_steps": 13, "epochs": -1}, {"val_check_interval": 2}, {"limit_train_batches": 3}),
    *({"reload_dataloaders_every_n_epochs": 1}, {"check_val_every_n_epoch": 2}),
]
RESUMED = [
    # in the first epoch, after its last batch, in the second
    *((rows, "ready", batch, {}, {}) for batch in (1, 4, 7)),
    *((problem, "ready", 7, {}, {}) for problem in PROBLEMS if problem is not rows),
    # with manual optimization batches 0, 2 and 4 end between two steps
    *((rows, "own", batch, {}, {}) for batch in (4, 7)),
    *((rows, "manual", batch, {}, {}) for batch in (0, 3, 4)),
    *((rows, "ready", batch, PULL, {"precision": "bf16-mixed"}) for batch in (4, 6)),
    *((rows, "ready", batch, PULL, {"gradient_clip_val": 0.05}) for batch in (4, 6)),
    *((rows, "ready", batch, PULL, {"accumulate_grad_batches": 3}) for batch in (0, 2, 4, 6)),
    *((rows, "ready", batch, {"proximal": 0.5, "restarts": [1, 2]}, {}) for batch in (4, 9)),
    *((rows, "ready", batch, {}, options) for options in TRAINERS for batch in (4, 6)),
]


@pytest.mark.parametrize(("problem", "kind", "batch", "settings", "options"), RESUMED)
def test_a_run_resumed_after_a_batch_equals_the_uninterrupted_one(problem, kind, batch, settings, options, tmp_path):
    """Also in the middle of an accumulation, whose gradients Lightning does not keep."""
    key = f"{problem.__name__} {kind} {settings} {options}"
    expected, saved = check_resumed(lambda: make(problem, kind, **settings), batch, tmp_path, key, **options)
    assert expected["ours"]["previous"]["weights"]
    if not options:
        assert expected["loader"][0]["epoch"] == EPOCHS - 1 and expected["loader"][0]["step"] == 5
    if kind == "ready":
        kept = torch.load(saved, weights_only=True)["callbacks"]["StatefulCriterion"]["processes"][0]["gradients"]
        assert bool(kept) == ("accumulate_grad_batches" in options and batch in (0, 6, 8))


@pytest.mark.parametrize(
    ("problem", "at", "epoch"),
    [
        *((rows, at, epoch) for at in ("train epoch end", "validation end") for epoch in (0, 1)),
        *((bags, "train epoch end", 1), (groups, "validation end", 1)),
    ],
)
def test_a_run_resumed_after_an_epoch_equals_the_uninterrupted_one(problem, at, epoch, tmp_path):
    def parts(folder, *others):
        new = make(problem)
        at_end = at == "train epoch end"
        new.callbacks += [ModelCheckpoint(dirpath=folder, save_top_k=1, save_on_train_epoch_end=at_end), *others]
        return new

    expected = run(parts(tmp_path / "whole"), tmp_path / "whole.ckpt", checkpoints=True)
    interrupted(parts(tmp_path / "cut", Kill(5 * epoch + 6)), None, checkpoints=True)
    (saved,) = (tmp_path / "cut").iterdir()
    assert saved.name == f"epoch={epoch}-step={5 * epoch + 5}.ckpt"
    saved = saved.rename(tmp_path / saved.name)  # Lightning does not like a folder that holds one already
    assert_same(resume(parts(tmp_path / "cut"), saved, tmp_path / "end.ckpt", checkpoints=True), expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"surrogate": "hinge"}, r"surrogate of the criterion must be Hinge\(margin=1\) as in this run, got Squared"),
        ({"proximal": 0.2}, "proximal of the StatefulCriterion must be 0.2 as in this run, got 0.0 in the checkpoint"),
    ],
)
def test_another_loss_or_callback_is_refused(settings, message, tmp_path):
    own = {name: settings[name] for name in settings if name == "proximal"}
    options = {name: settings[name] for name in settings if name not in own}
    parts = make(rows)
    parts.callbacks += [Save(2, tmp_path / "saved.ckpt"), Kill(3)]
    saved = interrupted(parts, tmp_path / "saved.ckpt")
    other = make(lambda: (TPAUCLoss(Y, gamma=0.2, **REGION, **options), *rows()[1:]), **own)
    with pytest.raises(CheckpointError, match=f"{message}.* begins anew, without ckpt_path"):
        resume(other, saved, tmp_path / "resumed.ckpt")


class Correct(Callback):
    """Sets gamma from some batch on, as docs/adapters.md tells."""

    def __init__(self, first):
        self.first = first

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        criterion = pl_module.get_submodule("loss" if isinstance(pl_module, Own) else "criterion")
        criterion.gamma = 0.2 if 5 * trainer.current_epoch + batch_idx >= self.first else 0.0


class SaveEpoch(Callback):
    """Saves at the end of the second epoch."""

    def __init__(self, path):
        self.path = path

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch == 1:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("kind", ["ready", "own"])  # where the callback comes before ours, and after it
@pytest.mark.parametrize(("first", "batch"), [(5, 4), (5, None), (7, 7), (7, 9)])  # with an epoch, and inside of it
def test_previous_weights_are_kept_where_the_correction_is_switched_on_later(kind, first, batch, tmp_path):
    """A new loss has no correction when the checkpoint is loaded; what it will need must not be dropped."""

    def parts(*others):
        new = make(lambda: (TPAUCLoss(Y, **REGION), *rows()[1:]), kind)
        new.callbacks += [Correct(first), *others]
        return new

    expected = whole_run(parts, tmp_path, f"{kind} {first}")
    path = tmp_path / "saved.ckpt"
    random.seed(3), np.random.seed(3)
    save = SaveEpoch(path) if batch is None else Save(batch, path)
    interrupted(parts(save, Kill(11 if batch is None else batch + 1)), path)
    kept = torch.load(path, weights_only=True)["callbacks"]["StatefulCriterion"]["previous"]
    assert (kept is None) == (batch == 4)
    assert_same(resume(parts(), path, tmp_path / "resumed.ckpt"), expected)
    assert expected["ours"]["previous"]["weights"]


class Data(LightningDataModule):
    """Makes its loaders when it is asked."""

    def train_dataloader(self):
        return ResumableLoader(rows()[1])

    def val_dataloader(self):
        return rows()[2]


def test_loaders_of_a_data_module(tmp_path):
    expected = run(make(rows), tmp_path / "whole.ckpt")
    cut, path = make(rows), tmp_path / "saved.ckpt"
    with pytest.raises(Killed):
        trainer_of([Save(6, path), Kill(7)]).fit(cut.module, datamodule=Data())
    trainer, resumed = trainer_of([]), make(rows)
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

    def __init__(self, batch):
        self.batch = batch

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.fit_loop.total_batch_idx == self.batch:
            trainer._signal_connector.received_sigterm = True


@pytest.mark.parametrize("batch", [2, 6])
def test_a_run_ended_by_a_signal_resumes(batch, tmp_path):
    """Lightning ends after the batch, here between two steps, and its callback saves what is there."""
    expected = whole_run(lambda: make(rows), tmp_path, "accumulate 2", accumulate_grad_batches=2)
    parts = make(rows)
    random.seed(3), np.random.seed(3)
    parts.callbacks += [SaveAtTheEnd(tmp_path / "last.ckpt"), Terminate(batch)]
    with pytest.raises(SystemExit):
        run(parts, None, accumulate_grad_batches=2, checkpoints=True)
    options = {"accumulate_grad_batches": 2}
    assert_same(resume(make(rows), tmp_path / "last.ckpt", tmp_path / "resumed.ckpt", **options), expected)


@pytest.mark.parametrize(("batch", "accumulate"), [(0, 1), (3, 1), (5, 1), (4, 3)])
def test_a_batch_that_was_not_finished_is_done_again(batch, accumulate, tmp_path):
    options = {"accumulate_grad_batches": accumulate}
    expected = whole_run(lambda: make(rows), tmp_path, f"accumulate {accumulate}", **options)
    parts = make(rows)
    random.seed(3), np.random.seed(3)
    parts.callbacks += [SaveAtTheEnd(tmp_path / "last.ckpt"), Kill(batch)]
    interrupted(parts, None, checkpoints=True, **options)
    assert parts.loader.step == batch % 5
    assert_same(resume(make(rows), tmp_path / "last.ckpt", tmp_path / "resumed.ckpt", **options), expected)


def test_a_finished_run_is_resumed_for_more_epochs(tmp_path):
    expected = run(make(rows), tmp_path / "whole.ckpt")
    first = make(rows)
    run(first, tmp_path / "two.ckpt", epochs=2)
    assert_same(resume(make(rows), tmp_path / "two.ckpt", tmp_path / "three.ckpt"), expected)
    done = resume(make(rows), tmp_path / "whole.ckpt", tmp_path / "again.ckpt")  # nothing left to do, nothing lost
    assert_same({**done, "loader": []}, {**expected, "loader": []})


def test_random_states_of_python_and_numpy_are_kept(tmp_path):
    class Noisy(Callback):
        def __init__(self):
            self.seen = []

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            self.seen.append((random.random(), random.gauss(), float(np.random.normal())))

    states = random.getstate(), np.random.get_state()
    try:
        whole = make(rows)
        random.seed(3), np.random.seed(3)
        whole.callbacks.append(Noisy())
        run(whole, tmp_path / "whole.ckpt")
        random.seed(3), np.random.seed(3)
        parts = make(rows)
        parts.callbacks += [Noisy(), Save(6, tmp_path / "saved.ckpt"), Kill(8)]
        interrupted(parts, None)
        random.seed(5), np.random.seed(5)
        resumed = make(rows)
        resumed.callbacks.append(Noisy())
        resume(resumed, tmp_path / "saved.ckpt", tmp_path / "end.ckpt")
        assert resumed.callbacks[0].seen == whole.callbacks[0].seen[7:]
    finally:
        random.setstate(states[0]), np.random.set_state(states[1])


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
    def parts():
        return SimpleNamespace(
            module=TwoOptimizers(rows()[0]),
            loader=ResumableLoader(rows()[1]),
            validation=None,
            callbacks=[StatefulCriterion(**NAMES)],
        )

    expected, _ = check_resumed(parts, 6, tmp_path)
    assert len(expected["ours"]["previous"]["weights"]) == 4
    message = "proximal must be 0 unless there is one optimizer, got 2 optimizers"
    fit_error(message, parts().module, parts().loader, [StatefulCriterion(**NAMES, proximal=0.1)])
