"""A loss over the batch of all processes."""

from __future__ import annotations

import functools
import inspect
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from moreauc._parallel import parallel_of
from moreauc._settings import settings_of
from moreauc.criteria import TCCOLoss
from moreauc.criteria._base import Criterion
from moreauc.distributed.agreement import check_agreement, check_draws, settings_number
from moreauc.distributed.exchange import ChecksumMismatch, Exchange, Whole, check_part
from moreauc.samplers.base import latest_draw

_INSTANCES = ("instances", "bag", "previous_instances")  # one row for each instance; the others: for each bag or row
_PREFIX = "criterion."


def _left_out(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Exclude a function from compiled steps, at its first call: `torch.compiler.disable` loads the compiler."""
    made: list[Callable[..., Tensor]] = []

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> Tensor:
        if not made:
            made.append(torch.compiler.disable(function))  # type: ignore[no-untyped-call]
        return made[0](*args, **kwargs)

    return call


class DistributedCriterion(Criterion):
    r"""A loss of the library, computed on the batch of all processes.

    Each process calls it with its own part of the batch, as it would call the loss itself, and wraps its model by
    `DistributedDataParallel` or `fully_shard`. Scores, labels and row numbers of all parts are exchanged, and every
    process computes the loss of the whole batch: value, tables and thresholds are those of one process. Each process
    gets the gradient with respect to its own scores, multiplied by the number of processes, so that the average taken
    by the model's wrapper equals the gradient of a single process.

    Parts may be of different sizes. A part may lack positives, or be empty, if the whole batch is valid; its model must
    still be called, or the other processes wait for its gradients. At the beginning of an epoch the processes compare
    seed, epoch and settings of their samplers. Errors of the loss are raised in all processes.

    `state_dict()` is that of the loss inside, the same in all processes. Attributes are read from it and set on it:
    `criterion.u`, `criterion.gamma = 0.1`. Without `torch.distributed`, or with one process, a call simply calls the
    loss inside.

    Args:
        criterion: the loss, made of the same arguments in all processes; rows are numbered as in one process.
        group: the processes that share a batch; None for all.

    Attributes:
        criterion: the loss inside.
        exchange: the :class:`Exchange` with the other processes.

    Raises:
        ValueError: if the loss cannot be split by rows (:class:`~moreauc.TCCOLoss`) or differs from process to process.
            In a call, in all processes: for errors of the loss, and for parts or samplers that do not match.

    Example:
        >>> from moreauc import TPAUCLoss
        >>> criterion = DistributedCriterion(TPAUCLoss([0, 1, 0, 1], min_tpr=0.5, max_fpr=0.5, link="identity"))
        >>> criterion.exchange.size, criterion.min_tpr
        (1, 0.5)
        >>> criterion(torch.tensor([0.5, 0.0]), torch.tensor([0, 1]), torch.tensor([2, 3])).item()
        9.0
        >>> criterion.u
        tensor([0.0000, 4.5000])
    """

    criterion: nn.Module
    exchange: Exchange

    def __init__(self, criterion: nn.Module, group: ProcessGroup | None = None) -> None:
        super().__init__()
        names = argument_names(criterion)
        self._set_up(criterion, names, Exchange(self._owner, group))
        check_agreement(self.exchange, criterion)

    def _set_up(self, criterion: nn.Module, names: Sequence[str], exchange: Exchange) -> None:
        self._names, self.exchange, self._loaded = tuple(names), exchange, False
        self._compared: Mapping[str, Any] | None = None  # draws of the sampler at the last comparison of all processes
        self.register_state_dict_post_hook(_without_prefix)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_with_prefix)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_note_loaded)  # type: ignore[no-untyped-call]
        self.criterion = criterion

    def around(self, other: nn.Module, *names: str) -> DistributedCriterion:
        """Return another loss, called with arguments of these names, over the same processes."""
        made = DistributedCriterion.__new__(DistributedCriterion)
        Criterion.__init__(made)
        made._set_up(other, names, self.exchange)
        return made

    def synchronize(self) -> None:
        """Copy the state of the first process to all, for instance if only that one has loaded a checkpoint."""
        state = self.exchange.broadcast_object(self.state_dict() if self.exchange.rank == 0 else None, "synchronize()")
        self.load_state_dict(state)
        self._loaded = False

    def settings(self) -> dict[str, object]:
        """Return those of the loss inside."""
        return settings_of(self.criterion)

    @property
    def needs_previous(self) -> bool:
        """Whether a call in training mode needs what the model gave at its previous weights."""
        return bool(getattr(self.criterion, "needs_previous", False))

    @_left_out
    def forward(self, *args: object, **kwargs: object) -> Tensor:
        """Return the loss of the whole batch; arguments are this process's part of what the loss takes."""
        if self.exchange.size == 1:
            alone: Tensor = self.criterion(*args, **kwargs)
            return alone
        parts, problem = self._own_parts(args, kwargs)
        whole = self._gather(parts, problem)
        self._check_lengths(whole)
        values = {name: self._joined(name, parts, whole) for name in parts if whole[name] is not None}
        with _repeatable(next(iter(values.values())).device):
            value: Tensor = self.criterion(*values.values()) if _takes_any(self.criterion) else self.criterion(**values)
        return value

    def _gather(self, parts: Mapping[str, Tensor | None], problem: Exception | None) -> dict[str, Whole | None]:
        """Return the parts of all processes; check that their losses and the draws of their samplers are equal.

        A loaded state and the draws of a pass over a sampler are compared once.
        """
        loaded, self._loaded = self._loaded, False
        draw, note = latest_draw(), settings_number(self.criterion, state=loaded)
        if draw != self._compared:
            note = zlib.crc32(repr(draw).encode(), note)
        try:
            whole = self.exchange.gather(parts, problem, note)
        except ChecksumMismatch:
            check_agreement(self.exchange, self.criterion)
            check_draws(self.exchange, draw)
            whole = self.exchange.gather(parts, problem, settings_number(self.criterion, state=False))
        self._compared = draw
        return whole

    def _own_parts(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Tensor | None], Exception | None]:
        """Return the arguments by name, and an error in them, which all processes raise."""
        parts: dict[str, Tensor | None] = dict.fromkeys(self._names)
        try:
            given = dict(zip(self._names, args, strict=False))
            unknown = [name for name in kwargs if name not in parts or name in given]
            if len(args) > len(self._names) or unknown:
                wanted = ", ".join(self._names)
                raise ValueError(f"{self._owner}: arguments must be {wanted}, got {len(args)} and {sorted(kwargs)}")
            given.update(kwargs)
            parts.update({name: check_part(self._owner, name, value) for name, value in given.items()})
            places = {name: part.device for name, part in parts.items() if part is not None}
            if not places:
                raise ValueError(f"{self._owner}: {self._names[0]} must be given, got None")
            device = next(iter(places.values()))
            parts = {name: None if part is None else part.to(device) for name, part in parts.items()}
        except ValueError as error:
            return dict.fromkeys(self._names), error
        return parts, None

    def _check_lengths(self, whole: Mapping[str, Whole | None]) -> None:
        """Check the lengths in each process: joined tensors could have equal lengths by chance."""
        for names in (_INSTANCES, [name for name in whole if name not in _INSTANCES]):
            present = [(name, found.lengths) for name in names if (found := whole.get(name)) is not None]
            for name, lengths in present[1:]:
                first, wanted = present[0]
                for rank, (length, expected) in enumerate(zip(lengths, wanted, strict=True)):
                    if length != expected:
                        raise ValueError(
                            f"{self._owner}: {name} must have as many rows as {first} in each process, "
                            f"{expected} in process {rank}, got {length}"
                        )

    def _joined(self, name: str, parts: Mapping[str, Tensor | None], whole: Mapping[str, Whole | None]) -> Tensor:
        own, found = parts[name], whole[name]
        assert own is not None and found is not None  # for the type checker: checked by the exchange
        if name == "bag":
            bags = whole["index"]
            assert bags is not None
            return _renumbered(found, bags)
        if own.requires_grad and torch.is_grad_enabled():
            begin = found.begin(self.exchange.rank)
            joined: Tensor = _Joined.apply(own, found.values, begin, self.exchange.size)  # type: ignore[no-untyped-call]
            return joined
        return found.values

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("criterion"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        inner = self.__dict__.get("_modules", {}).get("criterion")
        own = name in self.__dict__ or name in ("criterion", "training") or hasattr(type(self), name)
        if inner is not None and not own and hasattr(inner, name):
            setattr(inner, name, value)
        else:
            super().__setattr__(name, value)

    def extra_repr(self) -> str:
        """Return the inner loss, and the place among the processes."""
        return f"{self.criterion!r}, process {self.exchange.rank} of {self.exchange.size}"


def exchange_of(owner: str, model: nn.Module, criterion: nn.Module) -> Exchange | None:
    """Return the communication between the processes of a training run; None for a loss of one process.

    Raises:
        ValueError: where the loss, of this library, and the model are not over the same processes.
    """
    check_seen(owner, model, criterion)
    if not isinstance(criterion, DistributedCriterion):
        return None
    exchange, parallel = criterion.exchange, parallel_of(model)
    if parallel is None and exchange.size > 1:
        raise ValueError(
            f"{owner}: model must be a DistributedDataParallel or fully_shard one where criterion is over "
            f"{exchange.size} processes, got {type(model).__name__}, whose gradients would not be averaged"
        )
    if parallel is not None and max(exchange.size, len(parallel.ranks)) > 1:
        # the mean may be over some of a mesh of several dimensions
        own, all_of_them = {*exchange.ranks}, {*parallel.ranks}
        if not (own == all_of_them if parallel.whole else own <= all_of_them):
            raise ValueError(
                f"{owner}: criterion must be over the processes of model, {list(parallel.ranks)} by {parallel.kind}, "
                f"got {list(exchange.ranks)}"
            )
    return exchange


def check_seen(owner: str, model: nn.Module, criterion: nn.Module) -> None:
    """Refuse a loss of this library that would see the rows of one process only, where the model is of several."""
    if not dist.is_available() or not dist.is_initialized():
        return
    if not isinstance(criterion, Criterion) or isinstance(criterion, DistributedCriterion):
        return
    parallel = parallel_of(model)
    if parallel is not None and len(parallel.ranks) > 1:
        raise ValueError(
            f"{owner}: criterion must be a moreauc.distributed.DistributedCriterion where model is a "
            f"{parallel.kind} one, got {type(criterion).__name__}, which would see the rows of one process only"
        )


class _Joined(torch.autograd.Function):
    """Joins the parts of all processes; the part of this process gets a gradient."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, whole: Tensor, begin: int, size: int) -> Tensor:
        ctx.rows, ctx.size = slice(begin, begin + len(own)), size
        return whole.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad[ctx.rows] * ctx.size, None, None, None


def argument_names(criterion: object) -> list[str]:
    """Return the names of the arguments that the loss takes; they must be known and have rows."""
    owner = DistributedCriterion.__name__
    if not isinstance(criterion, nn.Module) or isinstance(criterion, DistributedCriterion):
        raise ValueError(f"{owner}: criterion must be a loss, got {type(criterion).__name__}")
    if isinstance(criterion, TCCOLoss) or _takes_any(criterion):
        kind = type(criterion).__name__
        raise ValueError(
            f"{owner}: criterion must be a loss whose arguments all have a row for each sample, got {kind}"
        )
    return list(inspect.signature(criterion.forward).parameters)


def _takes_any(criterion: nn.Module) -> bool:
    kinds = [parameter.kind for parameter in inspect.signature(criterion.forward).parameters.values()]
    return inspect.Parameter.VAR_POSITIONAL in kinds or inspect.Parameter.VAR_KEYWORD in kinds


def _renumbered(bag: Whole, bags: Whole) -> Tensor:
    """Return positions of bags in the whole batch; one that is out of range in its process stays out of range."""
    count, moved, begin = sum(bags.lengths), [], 0
    for own, length in zip(torch.split(bag.values, list(bag.lengths)), bags.lengths, strict=True):
        wrong = torch.where(own < 0, own, own + (count - length))
        moved.append(torch.where((own < 0) | (own >= length), wrong, own + begin))
        begin += length
    return torch.cat(moved)


@contextmanager
def _repeatable(device: torch.device) -> Iterator[None]:
    """Make sums on a GPU deterministic, so that all processes get the same bits."""
    if device.type == "cpu":
        yield
        return
    mode, warn = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if mode and not warn:  # the user wants errors
        yield
        return
    try:
        with warnings.catch_warnings():  # where an operation has no such form, as prefix sums, the bits may differ
            warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation")
            torch.use_deterministic_algorithms(True, warn_only=True)
            yield
    finally:
        torch.use_deterministic_algorithms(mode, warn_only=warn)


def _without_prefix(module: nn.Module, state: dict[str, object], prefix: str, metadata: object) -> None:
    """Name entries as the loss inside does, so that one process can load them without this class."""
    for key in [key for key in state if key.startswith(prefix + _PREFIX)]:
        state[prefix + key[len(prefix + _PREFIX) :]] = state.pop(key)


def _note_loaded(module: DistributedCriterion, incompatible: object) -> None:
    """Let the next call compare the states: this one may have been loaded in this process only."""
    module._loaded = True


def _with_prefix(module: nn.Module, state: dict[str, object], prefix: str, *args: object) -> None:
    for key in [key for key in state if key.startswith(prefix)]:
        state[prefix + _PREFIX + key[len(prefix) :]] = state.pop(key)
