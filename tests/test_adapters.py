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
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from moreauc import GroupDROLoss, MultiInstanceTPAUCLoss, PreviousIterate, TPAUCLoss
from moreauc._scoring import scores_of
from moreauc.adapters._random_states import random_states, set_random_states
from moreauc.adapters.lightning import (
    CriterionModule,
    ResumableLoader,
    StatefulCriterion,
    criterion_loss,
    previous_iterate,
)
from moreauc.criteria import CrossEntropyLoss, GroupedLoss
from moreauc.data import (
    BagBatches,
    BagInputs,
    BagSampler,
    IndexedDataset,
    ListBags,
    SampledBags,
    TensorBatches,
    WholeBags,
    collate_bags,
)
from moreauc.metrics import tpauc_score
from moreauc.optim import ProximalPoint
from moreauc.samplers import GroupSampler, PosNegSampler
from moreauc.train import predict_scores

REGION = {"min_tpr": 0.3, "max_fpr": 0.6}
EPOCHS = 3
Y = (torch.arange(60) % 4 == 0).long()  # 15 positives: 5 batches of 3 positives and 9 negatives
X = torch.randn(60, 4, generator=torch.Generator().manual_seed(1)) + Y.unsqueeze(1)
GROUPS = torch.arange(60) % 5
BAGS = ListBags([X[3 * i : 3 * i + 3] for i in range(20)], labels=Y[::3])  # 5 positive bags of 20


def accuracy(scores, labels):
    return float(((scores > 0) == labels).double().mean())


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 1))


def rows():
    loader = TensorBatches(X, Y, PosNegSampler(Y, num_positives=3, num_negatives=9))
    return TPAUCLoss(Y, **REGION, gamma=0.2), loader, TensorBatches(X, Y), {}


def rows_by_workers():
    sampler = PosNegSampler(Y, num_positives=3, num_negatives=9)
    loader = DataLoader(IndexedDataset(TensorDataset(X, Y)), batch_sampler=sampler, num_workers=1)
    return TPAUCLoss(Y, **REGION, gamma=0.2, threshold_lr="quantile"), loader, TensorBatches(X, Y), {}


def bags():
    loader = BagBatches(BAGS, PosNegSampler(BAGS.labels, num_positives=1, num_negatives=3), instances_per_bag=2)
    whole = BagBatches(BAGS, torch.arange(20).split(8), instances_per_bag=None)
    criterion = MultiInstanceTPAUCLoss(BAGS.labels, **REGION, pooling="smoothed_max", gamma=0.1, rows="after")
    return criterion, loader, whole, {}


def bags_by_loader():
    sampler = BagSampler(PosNegSampler(BAGS.labels, num_positives=1, num_negatives=3))
    loader = DataLoader(SampledBags(BAGS, instances_per_bag=2), batch_sampler=sampler, collate_fn=collate_bags)
    whole = BagBatches(BAGS, torch.arange(20).split(8), instances_per_bag=None)
    return MultiInstanceTPAUCLoss(BAGS.labels, **REGION, pooling="mean", gamma=0.1), loader, whole, {}


def groups():
    loader = TensorBatches(X, Y, GroupSampler(GROUPS, groups_per_batch=3, samples_per_group=4))
    criterion = GroupedLoss(GroupDROLoss(5, top_k=2, gamma=0.3), GROUPS)
    return criterion, loader, TensorBatches(X, Y), {"score": accuracy}


PROBLEMS = [rows, rows_by_workers, bags, bags_by_loader, groups]


class Own(LightningModule):
    """A module of the user's, with other names."""

    def __init__(self, criterion):
        super().__init__()
        self.part = nn.ModuleDict({"net": network()})
        self.loss = criterion

    def training_step(self, batch, batch_idx):
        return criterion_loss(self, batch)

    def configure_optimizers(self):
        return torch.optim.Adam(self.part.parameters(), lr=0.05)


class Manual(Own):
    """Two batches for each step, with the previous scores computed by hand."""

    def __init__(self, criterion):
        super().__init__(criterion)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        inputs, labels, index = batch
        scores = self.part["net"](inputs).squeeze(1)
        loss = self.loss(scores, labels, index, previous_scores=previous_iterate(self)(inputs).squeeze(1))
        self.manual_backward(loss / 2)
        if batch_idx % 2:
            optimizer = self.optimizers()
            optimizer.step()
            optimizer.zero_grad()


NAMES = {"model": "part.net", "criterion": "loss"}


def make(problem, kind="ready", **settings):
    """Return a module, a training loader, a validation loader and callbacks, all new."""
    criterion, loader, validation, extra = problem()
    if kind == "ready":
        settings = {"lr": 0.1, "scheduler": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5), **extra, **settings}
        module, callbacks = CriterionModule(network(), criterion, **settings), []
    else:
        module, validation = {"own": Own, "manual": Manual}[kind](criterion), None
        callbacks = [StatefulCriterion(**NAMES, **settings)]
    return SimpleNamespace(
        module=module, loader=ResumableLoader(loader), validation=validation, callbacks=callbacks, criterion=criterion
    )


def trainer_of(callbacks, *, epochs=EPOCHS, checkpoints=False, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    options = {"accelerator": "cpu", "max_epochs": epochs, "enable_checkpointing": checkpoints, **quiet, **options}
    return Trainer(callbacks=callbacks, **options)


class Killed(Exception):
    pass


class Kill(Callback):
    """Ends a run at the start of a batch, counted over all epochs."""

    def __init__(self, batch):
        self.batch = batch

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.fit_loop.total_batch_idx == self.batch:
            raise Killed


class Save(Callback):
    """Saves after a batch, counted over all epochs."""

    def __init__(self, batch, path):
        self.batch, self.path = batch, path

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.fit_loop.total_batch_idx == self.batch:
            trainer.save_checkpoint(self.path)


def everything(trainer, path):
    """Return all that two runs must have in common at their end, from a checkpoint that loads without running code."""
    trainer.save_checkpoint(path)
    saved = torch.load(path, weights_only=True)
    return {
        "weights and tables": saved["state_dict"],
        "optimizers": saved["optimizer_states"],
        "schedulers": saved["lr_schedulers"],
        "ours": saved["callbacks"]["StatefulCriterion"],
        "loader": saved["loops"]["fit_loop"]["state_dict"]["combined_loader"],
        "steps": (saved["epoch"], saved["global_step"]),
        "scaler": {name: value for name, value in saved.items() if "Precision" in name},
    }


def assert_same(found, expected, where=""):
    assert type(found) is type(expected), where
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected:
            assert_same(found[key], expected[key], f"{where} {key}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), where
        for number, pair in enumerate(zip(found, expected, strict=True)):
            assert_same(*pair, f"{where} {number}")
    elif isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype and torch.equal(found, expected), where
    else:
        assert found == expected, where


def run(parts, path, **options):
    trainer = trainer_of(parts.callbacks, **options)
    trainer.fit(parts.module, parts.loader, parts.validation)
    return everything(trainer, path)


def resume(parts, checkpoint, path, **options):
    torch.manual_seed(99)  # whatever the new process has drawn
    trainer = trainer_of(parts.callbacks, **options)
    trainer.fit(parts.module, parts.loader, parts.validation, ckpt_path=checkpoint, weights_only=True)
    return everything(trainer, path)


def interrupted(parts, path, **options):
    trainer = trainer_of(parts.callbacks, **options)
    with pytest.raises(Killed):
        trainer.fit(parts.module, parts.loader, parts.validation)
    return path


def plain(problem, *, accumulate=1, clip=None, dtype=None, proximal=0.0, restarts=()):
    """Train as :class:`CriterionModule` does, by a loop of a few lines; return weights, criterion and previous ones."""
    criterion, loader, _, _ = problem()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    previous, point = PreviousIterate(model, optimizer), ProximalPoint(optimizer, proximal)
    for epoch in range(EPOCHS):
        if epoch in restarts:
            point.restart()
        getattr(loader, "sampler", loader).set_epoch(epoch)
        for number, (inputs, labels, index) in enumerate(loader, start=1):
            with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                bag = [inputs.bag] if isinstance(inputs, BagInputs) else []
                x = inputs.instances if bag else inputs
                scores, before = scores_of(model, x), scores_of(previous, x)
                name = "previous_instances" if bag else "previous_scores"
                loss = criterion(scores, *bag, labels, index, **{name: before})
            (loss / accumulate).backward()
            if number % accumulate == 0 or number == len(loader):
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
        schedule.step()
    return {
        **{f"model.{name}": value for name, value in model.state_dict().items()},
        **{f"criterion.{name}": value for name, value in criterion.state_dict().items()},
    }, previous.state_dict()


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


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("batch", [1, 4, 7])  # in the first epoch, after its last batch, in the second
def test_a_run_resumed_after_a_batch_equals_the_uninterrupted_one(problem, batch, tmp_path):
    expected = run(make(problem), tmp_path / "whole.ckpt")
    parts = make(problem)
    parts.callbacks += [Save(batch, tmp_path / "saved.ckpt"), Kill(batch + 2)]
    saved = interrupted(parts, tmp_path / "saved.ckpt")
    assert_same(resume(make(problem), saved, tmp_path / "resumed.ckpt"), expected)
    assert expected["loader"][0]["epoch"] == EPOCHS - 1 and expected["loader"][0]["step"] == 5
    assert expected["ours"]["previous"]["weights"]


@pytest.mark.parametrize("problem", [rows, bags, groups])
@pytest.mark.parametrize("at", ["train epoch end", "validation end"])
@pytest.mark.parametrize("epoch", [0, 1])
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


@pytest.mark.parametrize("kind", ["own", "manual"])
@pytest.mark.parametrize("batch", [0, 3, 4, 7])  # with manual optimization batches 0, 2 and 4 end between two steps
def test_modules_of_the_users_resume(kind, batch, tmp_path):
    expected = run(make(rows, kind), tmp_path / "whole.ckpt")
    parts = make(rows, kind)
    parts.callbacks += [Save(batch, tmp_path / "saved.ckpt"), Kill(batch + 1)]
    saved = interrupted(parts, tmp_path / "saved.ckpt")
    assert_same(resume(make(rows, kind), saved, tmp_path / "resumed.ckpt"), expected)


@pytest.mark.parametrize(
    "options", [{"accumulate_grad_batches": 3}, {"precision": "bf16-mixed"}, {"gradient_clip_val": 0.05}]
)
@pytest.mark.parametrize("batch", [0, 2, 4, 6, 8])
def test_resuming_with_accumulation_clipping_and_mixed_precision(options, batch, tmp_path):
    """Also in the middle of an accumulation, whose gradients Lightning does not keep."""
    expected = run(make(rows, proximal=0.1, restarts=[1]), tmp_path / "whole.ckpt", **options)
    parts = make(rows, proximal=0.1, restarts=[1])
    parts.callbacks += [Save(batch, tmp_path / "saved.ckpt"), Kill(batch + 1)]
    saved = interrupted(parts, tmp_path / "saved.ckpt", **options)
    kept = torch.load(saved, weights_only=True)["callbacks"]["StatefulCriterion"]["gradients"]
    assert bool(kept) == ("accumulate_grad_batches" in options and batch in (0, 6, 8))
    found = resume(make(rows, proximal=0.1, restarts=[1]), saved, tmp_path / "resumed.ckpt", **options)
    assert_same(found, expected)


@pytest.mark.parametrize("batch", [4, 9])
def test_the_reference_point_is_renewed_where_a_run_resumes_between_epochs(batch, tmp_path):
    settings = {"proximal": 0.5, "restarts": [1, 2]}
    expected = run(make(rows, **settings), tmp_path / "whole.ckpt")
    parts = make(rows, **settings)
    parts.callbacks += [Save(batch, tmp_path / "saved.ckpt"), Kill(batch + 1)]
    saved = interrupted(parts, tmp_path / "saved.ckpt")
    assert_same(resume(make(rows, **settings), saved, tmp_path / "resumed.ckpt"), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"max_steps": 13, "epochs": -1},
        {"val_check_interval": 2},
        {"limit_train_batches": 3},
        {"reload_dataloaders_every_n_epochs": 1},
        {"check_val_every_n_epoch": 2},
    ],
)
@pytest.mark.parametrize("batch", [2, 4, 6])
def test_resuming_under_other_settings_of_the_trainer(options, batch, tmp_path):
    expected = run(make(rows), tmp_path / "whole.ckpt", **options)
    parts = make(rows)
    parts.callbacks += [Save(batch, tmp_path / "saved.ckpt"), Kill(batch + 1)]
    saved = interrupted(parts, tmp_path / "saved.ckpt", **options)
    assert_same(resume(make(rows), saved, tmp_path / "resumed.ckpt", **options), expected)


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
    expected = run(make(rows), tmp_path / "whole.ckpt", accumulate_grad_batches=2)
    parts = make(rows)
    parts.callbacks += [SaveAtTheEnd(tmp_path / "last.ckpt"), Terminate(batch)]
    with pytest.raises(SystemExit):
        run(parts, None, accumulate_grad_batches=2, checkpoints=True)
    options = {"accumulate_grad_batches": 2}
    assert_same(resume(make(rows), tmp_path / "last.ckpt", tmp_path / "resumed.ckpt", **options), expected)


@pytest.mark.parametrize(("batch", "accumulate"), [(0, 1), (3, 1), (5, 1), (4, 3)])
def test_a_batch_that_was_not_finished_is_done_again(batch, accumulate, tmp_path):
    options = {"accumulate_grad_batches": accumulate}
    expected = run(make(rows), tmp_path / "whole.ckpt", **options)
    parts = make(rows)
    parts.callbacks += [SaveAtTheEnd(tmp_path / "last.ckpt"), Kill(batch)]
    interrupted(parts, None, checkpoints=True, **options)
    assert parts.loader.step == batch % 5
    assert_same(resume(make(rows), tmp_path / "last.ckpt", tmp_path / "resumed.ckpt", **options), expected)


def test_a_finished_run_goes_on_for_more_epochs(tmp_path):
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


class FakeAccelerator:
    """What torch tells of an accelerator with two devices."""

    def __init__(self, used, count=2):
        self.used, self.count, self.states = used, count, [torch.tensor([number]) for number in range(count)]

    def is_initialized(self):
        return self.used

    def device_count(self):
        return self.count

    def get_rng_state(self, number):
        return self.states[number]

    def set_rng_state(self, state, number):
        self.states[number] = state


@pytest.mark.parametrize("used", [True, False])
def test_random_states_of_devices_are_kept_where_they_are_used(used, monkeypatch):
    def pretend(accelerator):
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
        monkeypatch.setattr(torch, "get_device_module", lambda device: accelerator)
        return accelerator

    with monkeypatch.context():
        first = pretend(FakeAccelerator(used))
        first.states = [torch.tensor([7]), torch.tensor([8])]
        saved = random_states()
        assert [state.item() for state in saved["devices"]] == ([7, 8] if used else [])
        other = pretend(FakeAccelerator(used, count=1))  # a machine with fewer of them
        set_random_states(saved)
        assert [state.item() for state in other.states] == ([7] if used else [0])
        pretend(object())  # one that does not tell, as that of Macs
        assert random_states()["devices"] == []


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


def fit_error(message, module, loader, callbacks=(), validation=None):
    with pytest.raises(ValueError, match=message):
        trainer_of(list(callbacks)).fit(module, loader, validation)


def test_what_cannot_work_is_refused():
    parts = make(rows, "own")
    fit_error("callbacks of the Trainer must hold one to train Own, got none", parts.module, parts.loader)
    with pytest.raises(ValueError, match=r"trainer\.fit must be under way"):
        StatefulCriterion(**NAMES).run(parts.module)
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

    expected = run(parts(), tmp_path / "whole.ckpt")
    assert len(expected["ours"]["previous"]["weights"]) == 4
    cut = parts()
    cut.callbacks += [Save(6, tmp_path / "saved.ckpt"), Kill(7)]
    saved = interrupted(cut, tmp_path / "saved.ckpt")
    assert_same(resume(parts(), saved, tmp_path / "resumed.ckpt"), expected)
    message = "proximal must be 0 unless there is one optimizer, got 2 optimizers"
    fit_error(message, parts().module, parts().loader, [StatefulCriterion(**NAMES, proximal=0.1)])


@pytest.mark.parametrize("several", [lambda loader: loader, lambda loader: {"a": loader}, lambda loader: [loader]])
@pytest.mark.parametrize("problem", [rows, bags_by_loader])
def test_loaders_that_lightning_cannot_place_are_refused(several, problem):
    criterion, loader, validation, _ = problem()
    sampler = type(getattr(loader, "batch_sampler", None) or loader.sampler).__name__
    message = rf"train_dataloaders must be ResumableLoader\(loader\), got {type(loader).__name__} with {sampler}"
    fit_error(message, CriterionModule(network(), criterion), several(loader), validation=validation)


@pytest.mark.parametrize(
    ("strategy", "processes", "message"),
    [
        (FSDPStrategy, 1, "strategy must leave the weights of the model whole and in place, .* got FSDPStrategy"),
        (DDPStrategy, 2, "devices must be 1, got 2 processes"),
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
        ({"score": "auc"}, "score must be a function or None, got 'auc'"),
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
    message = "min_tpr or score must be given with validation data, GroupedLoss has no region"
    with pytest.raises(ValueError, match=message):
        trainer_of([]).fit(module, ResumableLoader(loader), validation)


def test_without_lightning_the_error_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("moreauc.adapters")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name == "lightning" or name.startswith("lightning.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lightning", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'moreauc\[lightning\]'"):
        import moreauc.adapters.lightning  # noqa: F401
