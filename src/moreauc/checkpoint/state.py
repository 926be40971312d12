"""The parts of a training run as one object that can be saved and restored."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from moreauc._checks import check_mapping, shown
from moreauc._parallel import parallel_of
from moreauc._settings import Texts, text_of, texts_of, texts_of_network
from moreauc.checkpoint import parts
from moreauc.checkpoint.file import CheckpointError
from moreauc.checkpoint.loader import LoaderPosition, check_loader
from moreauc.optim import PreviousIterate, ProximalPoint

_OWNER = "RunState"
_OPTIONAL = ("previous", "proximal", "scheduler", "scaler")


class RunState:
    """The parts of a training run as one object that can be saved and restored.

    Create it when all parts exist and before the first step, both in the first run and in the resumed one. It saves
    the state of all parts, previous weights and reference point included, the numbers that schedules change, the
    position in the loader, and the states of all generators (torch, its GPUs, Python, NumPy, and those of loader,
    samplers and data set). The state does not depend on wrapping by `torch.compile` or `DistributedDataParallel`. For a
    `fully_shard` model all processes must call :meth:`state_dict` and :meth:`load_state_dict` together; the state holds
    full tensors, and one process saves it.

    Args:
        model: the model.
        criterion: the loss.
        optimizer: the optimizer, or several.
        loader: the loader that :meth:`batches` iterates over, or a position in it.
        previous: previous weights, if the loss needs them.
        proximal: proximal term, if there is one.
        scheduler: any learning-rate scheduler with a state.
        scaler: gradient scaler.
        others: anything else that has `state_dict()` and `load_state_dict(state)`, by a name of its own.
        settings: anything else that must be the same in the resumed run, by name. Values are compared by type and
            contents, functions by name.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from moreauc import TPAUCLoss
        >>> from moreauc.checkpoint import Checkpoints
        >>> from moreauc.data import TensorBatches
        >>> from moreauc.samplers import PosNegSampler
        >>> x, y = torch.randn(40, 3), (torch.arange(40) % 4 == 0).long()
        >>> def train(checkpoints, epochs):
        ...     model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 1), nn.Flatten(0))
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ...     loader = TensorBatches(x, y, PosNegSampler(y, num_positives=2, num_negatives=6))
        ...     criterion = TPAUCLoss(y, min_tpr=0.5, max_fpr=0.5, gamma=0.1)
        ...     previous = PreviousIterate(model, optimizer)
        ...     run = RunState(model, criterion, optimizer, loader, previous=previous)
        ...     state = checkpoints.load()
        ...     if state is not None:
        ...         run.load_state_dict(state)
        ...     for epoch in range(run.epoch, epochs):
        ...         for inputs, labels, index in run.batches(epoch):
        ...             loss = criterion(model(inputs), labels, index, previous(inputs))
        ...             optimizer.zero_grad()
        ...             loss.backward()
        ...             optimizer.step()
        ...         _ = checkpoints.save(run.state_dict())
        ...     return run.epoch, run.step
        >>> folder = tempfile.TemporaryDirectory()
        >>> train(Checkpoints(folder.name), epochs=2), train(Checkpoints(folder.name), epochs=3)
        ((2, 0), (3, 0))
        >>> folder.cleanup()
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        loader: Iterable[Any] | LoaderPosition,
        *,
        previous: PreviousIterate | None = None,
        proximal: ProximalPoint | None = None,
        scheduler: object = None,
        scaler: object = None,
        others: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.criterion, self.optimizer = model, criterion, optimizer
        self.position = loader if isinstance(loader, LoaderPosition) else LoaderPosition(loader)
        self.previous, self.proximal = previous, proximal
        self.scheduler, self.scaler = scheduler, scaler
        check_names("others", others)
        check_names("settings", settings)
        self.others, self.own_settings = dict(others or {}), dict(settings or {})
        self._check_parts()
        self.start = self.settings()  # settings at the beginning of the run, also of a resumed one

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self.position.epoch

    @property
    def step(self) -> int:
        """Number of batches of this epoch that were consumed."""
        return self.position.step

    def settings(self) -> dict[str, Texts]:
        """Return what must be the same in a resumed run, as texts: the settings of each part."""
        optimizers = {_numbered(n): texts_of(one) for n, one in enumerate(parts.as_sequence(self.optimizer))}
        return {
            "": {name: text_of(value) for name, value in self.own_settings.items()},
            "criterion": texts_of(parts.bare(self.criterion)),
            "model": texts_of_network(parts.bare(self.model)),
            "scheduler": texts_of(self.scheduler),
            "reference point": texts_of(self.proximal),
            **optimizers,
        }

    def batches(self, epoch: int) -> Iterator[Any]:
        """Yield the batches of an epoch; after :meth:`load_state_dict`, those left in it.

        `set_epoch` of the loader and its samplers is called first. A yielded batch counts as consumed.
        """
        return self.position.batches(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return everything as plain data; tensors are those of the parts, not copies."""
        optimizers = parts.as_sequence(self.optimizer)
        return {
            "start": self.start,
            "now": self.settings(),
            "attributes": parts.loss_attributes(self.criterion),
            "model": parts.module_state(self.model),
            "criterion": parts.module_state(self.criterion),
            "optimizers": [parts.optimizer_state(optimizer) for optimizer in optimizers],
            "others": {name: parts.other_state(part) for name, part in self._stateful().items()},
            "position": self.position.state_dict(),
        }

    def check(self, state: Mapping[str, Any]) -> None:
        """Check that a state belongs to a run like this one; change nothing.

        A state of another model, loss, optimizer or loader, of other labels or settings is a `CheckpointError`.
        """
        try:
            self._check(state)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; a run with other settings or data needs another folder") from error
        except Exception as error:  # an unrelated dictionary may raise anything
            raise CheckpointError(
                f"checkpoint must be the state of a RunState, got another: {type(error).__name__}: {error}"
            ) from error

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state, after :meth:`check`; after an error everything is as before."""
        self.check(state)
        before = _copied(self.state_dict())
        try:
            self._load(state)
        except Exception as error:
            self._load(before)
            raise CheckpointError(
                f"checkpoint has a state that a part refuses: {type(error).__name__}: {error}"
            ) from error

    def _check_parts(self) -> None:
        _check_part("model", self.model, nn.Module)
        _check_part("criterion", self.criterion, nn.Module)
        _check_optimizers(self.optimizer)
        check_loader(self.position.loader, _OWNER, "loader")
        _check_part("previous", self.previous, PreviousIterate, optional=True)
        _check_part("proximal", self.proximal, ProximalPoint, optional=True)
        for name in self.others.keys() & {*_OPTIONAL}:
            raise ValueError(f"{_OWNER}: names of others must not be those of other arguments, got {name!r}")
        for name, part in self._stateful().items():
            _check_stateful(f"others[{name!r}]" if name in self.others else name, part)
        parallel = parallel_of(self.model)
        if parallel is not None and parallel.kind == "FullyShardedDataParallel":
            raise ValueError(
                f"{_OWNER}: model must be sharded by fully_shard, which keeps parameters apart, got one of "
                "FullyShardedDataParallel, which joins them, so that no optimizer state belongs to a parameter"
            )

    def _stateful(self) -> dict[str, parts.Stateful]:
        """Return the parts with `state_dict()` and `load_state_dict()`, by name."""
        own = {name: getattr(self, name) for name in _OPTIONAL}
        return {**{name: part for name, part in own.items() if part is not None}, **self.others}

    def _check(self, state: Mapping[str, Any]) -> None:
        times, optimizers = (state["start"], state["now"], self.settings()), parts.as_sequence(self.optimizer)
        if "attributes" not in state:  # not checked elsewhere
            raise CheckpointError("checkpoint has no attributes of the criterion")
        for part in ("", "criterion"):
            parts.check_settings(part, *(settings[part] for settings in times))
        if len(state["optimizers"]) != len(optimizers):
            raise parts.refuse("optimizers:", len(state["optimizers"]), len(optimizers))
        stateful, saved = self._stateful(), state["others"]
        for name in sorted(stateful.keys() - saved.keys()):
            raise CheckpointError(f"checkpoint has no {name}")
        for name in sorted(saved.keys() - stateful.keys()):
            raise CheckpointError(f"checkpoint has {name!r}, this run has none")
        parts.check_tensors("model", self.model, state["model"]["state"])
        for part in ("model", "scheduler", "reference point"):
            parts.check_fixed(part, *(settings[part] for settings in times))
        parts.check_tensors("criterion", self.criterion, state["criterion"]["state"], widened=True)
        for number, (optimizer, one) in enumerate(zip(optimizers, state["optimizers"], strict=True)):
            parts.check_settings(_numbered(number), *(settings[_numbered(number)] for settings in times))
            parts.check_optimizer(_numbered(number), optimizer, one)
        for name, other in stateful.items():
            parts.check_other(name, other, saved[name])
        self.position.check(state["position"])

    def _load(self, state: Mapping[str, Any]) -> None:
        parts.load_module(self.model, state["model"])
        parts.load_module(self.criterion, state["criterion"])
        parts.set_loss_attributes(self.criterion, state["attributes"])
        for optimizer, saved in zip(parts.as_sequence(self.optimizer), state["optimizers"], strict=True):
            parts.load_optimizer(optimizer, saved)
        for name, part in self._stateful().items():
            part.load_state_dict(copy.deepcopy(state["others"][name]["state"]))
        self.start = state["start"]
        self.position.load_state_dict(state["position"])


def _numbered(number: int) -> str:
    return f"optimizer {number}" if number else "optimizer"


def check_names(argument: str, values: Any, owner: str = _OWNER) -> None:
    """Check that an argument is a dictionary whose keys are texts, or None."""
    if values is None:
        return
    check_mapping(owner, argument, values)
    for name in values:
        if not isinstance(name, str):
            raise ValueError(f"{owner}: names of {argument} must be texts, got {name!r}")


def _check_part(name: str, part: object, kind: type, *, optional: bool = False) -> None:
    if not isinstance(part, kind) and not (optional and part is None):
        allowed = f"{kind.__name__} or None" if optional else kind.__name__
        raise ValueError(f"{_OWNER}: {name} must be a {allowed}, got {shown(part)}")


def _check_optimizers(optimizer: object) -> None:
    several = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    if not several or not all(isinstance(one, Optimizer) for one in several):
        raise ValueError(f"{_OWNER}: optimizer must be an Optimizer or a sequence of them, got {shown(optimizer)}")


def _check_stateful(name: str, part: object) -> None:
    """Check that a part has a state; without one the first save, maybe hours later, would fail."""
    methods = ("state_dict", "load_state_dict")
    if isinstance(part, type) or not all(callable(getattr(part, method, None)) for method in methods):
        raise ValueError(f"{_OWNER}: {name} must have state_dict() and load_state_dict(state), got {shown(part)}")


def _copied(value: Any) -> Any:
    """Return a copy of plain data with the tensors on the CPU, where there is room."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        copied = value.copy()
        copied.update((key, _copied(entry)) for key, entry in value.items())
        return copied
    return type(value)(_copied(entry) for entry in value) if type(value) in (list, tuple) else value
