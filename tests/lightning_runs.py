"""Shared by the tests of Lightning: problems, modules, and runs that are cut and resumed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from interruptions import same
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from moreauc import GroupDROLoss, MultiInstanceTPAUCLoss, PreviousIterate, TPAUCLoss
from moreauc.contrib.lightning import ResumableLoader, StatefulCriterion, criterion_loss, previous_iterate
from moreauc.criteria import GroupedLoss
from moreauc.data import BagBatches, BagSampler, IndexedDataset, ListBags, SampledBags, TensorBatches, collate_bags
from moreauc.data.bag_batches import BagInputs
from moreauc.data.scoring import scores_of
from moreauc.optim import ProximalPoint
from moreauc.samplers import GroupSampler, PosNegSampler

REGION = {"min_tpr": 0.3, "max_fpr": 0.6}
EPOCHS = 3
Y = (torch.arange(60) % 4 == 0).long()  # 15 positives: 5 batches of 3 positives and 9 negatives
X = torch.randn(60, 4, generator=torch.Generator().manual_seed(1)) + Y.unsqueeze(1)
GROUPS = torch.arange(60) % 5
BAGS = ListBags([X[3 * i : 3 * i + 3] for i in range(20)], labels=Y[::3])  # 5 positive bags of 20


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 1))


def rows():
    loader = TensorBatches(X, Y, PosNegSampler(Y, num_positives=3, num_negatives=9))
    return TPAUCLoss(Y, **REGION, gamma=0.2), loader


def rows_by_workers():
    sampler = PosNegSampler(Y, num_positives=3, num_negatives=9)
    loader = DataLoader(IndexedDataset(TensorDataset(X, Y)), batch_sampler=sampler, num_workers=1)
    return TPAUCLoss(Y, **REGION, gamma=0.2, threshold_lr="quantile"), loader


def bags():
    loader = BagBatches(BAGS, PosNegSampler(BAGS.labels, num_positives=1, num_negatives=3), instances_per_bag=2)
    return MultiInstanceTPAUCLoss(
        BAGS.labels, **REGION, pooling="smoothed_max", gamma=0.1, update_order="after"
    ), loader


def bags_by_loader():
    sampler = BagSampler(PosNegSampler(BAGS.labels, num_positives=1, num_negatives=3))
    loader = DataLoader(SampledBags(BAGS, instances_per_bag=2), batch_sampler=sampler, collate_fn=collate_bags)
    return MultiInstanceTPAUCLoss(BAGS.labels, **REGION, pooling="mean", gamma=0.1), loader


def groups():
    loader = TensorBatches(X, Y, GroupSampler(GROUPS, groups_per_batch=3, samples_per_group=4))
    return GroupedLoss(GroupDROLoss(5, top_k=2, gamma=0.3), GROUPS), loader


class Unvalidated(LightningModule):
    """A module of the user's, with names of its own."""

    def __init__(self, criterion):
        super().__init__()
        self.part = nn.ModuleDict({"net": network()})
        self.loss = criterion

    def training_step(self, batch, batch_idx):
        return criterion_loss(self, batch)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.part.parameters(), lr=0.1, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)}


class Own(Unvalidated):
    def validation_step(self, batch, batch_idx):
        self.part["net"](batch[0])


class Manual(Unvalidated):
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


def make(problem=rows, module=Own, **settings):
    """Return a module, a training loader, a validation loader and callbacks, all new."""
    criterion, loader = problem()
    return SimpleNamespace(
        module=module(criterion),
        loader=ResumableLoader(loader),
        validation=TensorBatches(X, Y) if issubclass(module, Own) else None,
        callbacks=[StatefulCriterion(**NAMES, **settings)],
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


def assert_same(found, expected):
    assert same(found, expected) == []


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
    """Train as :class:`Own` does, by a loop of a few lines; return weights, criterion and previous ones."""
    criterion, loader = problem()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
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
        **{f"part.net.{name}": value for name, value in model.state_dict().items()},
        **{f"loss.{name}": value for name, value in criterion.state_dict().items()},
    }, previous.state_dict()


def fit_error(message, module, loader, callbacks=None):
    callbacks = [StatefulCriterion(**NAMES)] if callbacks is None else callbacks
    with pytest.raises(ValueError, match=message):
        trainer_of(callbacks).fit(module, loader, TensorBatches(X, Y) if isinstance(module, Own) else None)
