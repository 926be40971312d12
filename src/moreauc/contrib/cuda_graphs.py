r"""A whole training step as one CUDA graph, for models whose kernels take less time than their launches.

The host launches one graph instead of hundreds of kernels. In the graph the forward at :math:`w_{t-1}` runs beside that
at :math:`w_t`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from moreauc._checks import check_count
from moreauc.contrib.graph_key import (
    Held,
    check_hooks,
    check_optimizer_steps,
    check_parts,
    contents,
    copy_into,
    form_of,
    mapped,
)
from moreauc.criteria._base import losses_in
from moreauc.criteria._validation import several_processes
from moreauc.data.scoring import device_of, on_device, scores_of
from moreauc.optim import PreviousIterate
from moreauc.train.loop import check_batch, open_batch, train_step

__all__ = ["GraphedStep"]

_OWNER = "GraphedStep"


class GraphedStep:
    r"""Replacement for :func:`moreauc.train.train_step` that replays a CUDA graph if possible.

    The first `warm_up` batches are ordinary steps. Then the step is recorded, and replayed for every batch of the same
    shapes and types; other batches (a smaller last one) are ordinary steps. The step is recorded again, after `warm_up`
    ordinary steps, if something in the recording has changed: a number, such as the learning rate or a loss's `tau`,
    a module's mode, whether a parameter is trained, a tensor replaced by another. So a schedule that changes the
    learning rate at every step must use a tensor on the GPU for it. On the CPU, and in one of several processes, all
    steps are ordinary ones.

    Other Python code runs only while the step is recorded and is not replayed: hooks, counters, lists and dictionaries
    that a model or a loss of your own reads. Call :meth:`reset` after such a change. Do not read gradients in
    `parameter.grad` between replays and ordinary steps.

    Dropout masks are other ones than without a graph, but the same in both forwards of a step.

    Args:
        model: maps inputs to raw scores; may be compiled (`torch.compile`), but not in a mode that makes graphs itself.
        criterion: one that does not wait for the GPU: :class:`~moreauc.TPAUCLoss`,
            :class:`~moreauc.MultiInstanceTPAUCLoss`, :class:`~moreauc.criteria.GroupedLoss` over
            :class:`~moreauc.GroupDROLoss`, or any module that is called the same way.
        optimizer: moves the weights. Those that count their steps, as Adam, need `capturable=True`. On a GPU its
            step hooks must be those of :class:`~moreauc.PreviousIterate`: others (`ProximalPoint`) are refused.
        previous: the model at its previous weights; needed where the criterion's `needs_previous` is True.
        warm_up: ordinary steps before a recording, at least 2.
        overlap: whether the forward at the previous weights runs beside the other one. It then sees buffers as they
            were before the step's forward.

    Attributes:
        recorded: whether the last step was a replay.

    Raises:
        RuntimeError: if a step cannot be recorded, usually because it synchronizes with the GPU. Training can continue
            with ordinary steps.

    Example:
        >>> from moreauc import TPAUCLoss
        >>> labels = torch.tensor([1, 0, 0, 1])
        >>> model, criterion = nn.Linear(2, 1), TPAUCLoss(labels, min_tpr=0.5, max_fpr=0.5, gamma=0.1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> step = GraphedStep(model, criterion, optimizer, previous=PreviousIterate(model, optimizer))
        >>> step((torch.randn(4, 2), labels, torch.arange(4))).shape, step.recorded
        (torch.Size([]), False)
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: nn.Module,
        optimizer: Optimizer,
        *,
        previous: PreviousIterate | None = None,
        warm_up: int = 3,
        overlap: bool = True,
    ) -> None:
        self.model, self.criterion, self.optimizer, self.previous = model, criterion, optimizer, previous
        self.warm_up = check_count(_OWNER, "warm_up", warm_up, minimum=2)
        self.overlap = overlap
        self.recorded = False
        check_parts(_OWNER, model, optimizer, previous)
        if device_of(model).type == "cuda":
            check_optimizer_steps(_OWNER, optimizer)
        self._streams: dict[torch.device, tuple[torch.cuda.Stream, torch.cuda.Stream]] = {}
        self.reset()

    def reset(self) -> None:
        """Discard the recording and the memory that it holds."""
        self._recording: _Recording | None = None
        self._last: tuple[Any, ...] | None = None
        self._in_a_row = 0
        self._random = False

    def __call__(self, batch: object) -> Tensor:
        """Do one step; return the loss without gradient, shape `()`.

        Args:
            batch: `(inputs, labels, index)`, as for :func:`moreauc.train.train_step`; brought to the GPU if need be.
        """
        if getattr(self.criterion, "needs_previous", False) and self.previous is None:
            raise ValueError(
                f"{_OWNER}: previous must be given where the criterion needs previous scores, got None; "
                "pass previous=PreviousIterate(model, optimizer)"
            )
        check_batch(_OWNER, batch)
        self.recorded = False
        device = device_of(self.model)
        if device.type != "cuda" or several_processes():
            return self._ordinary(batch)
        check_hooks(_OWNER, self.optimizer)
        batch = on_device(batch, device)
        numbers, tensors = contents(self.model, self.criterion, self.optimizer, self.previous)
        key = (form_of(batch), numbers)
        if self._recording is None or self._recording.key != key or not self._recording.held.are(tensors):
            self._in_a_row = self._in_a_row + 1 if key == self._last else 1
            self._last = key
            if self._in_a_row <= self.warm_up:
                return self._warm(batch, device)
            # before recording: frees the memory of the last graph; after an error everything starts again
            self._recording, self._last, self._in_a_row = None, None, 0
            check_optimizer_steps(_OWNER, self.optimizer)  # some have a step count only after the first step
            recording = _Recording(self, batch, key, Held(tensors), device)
            # tensors that the loss kept of the recorded call belong to the graph
            recording.held = Held(contents(self.model, self.criterion, self.optimizer, self.previous)[1])
            self._recording = recording
        self._last = None
        self.recorded = True
        return self._recording.replay(batch)

    def _ordinary(self, batch: object) -> Tensor:
        return train_step(self.model, self.criterion, self.optimizer, batch, self.previous)

    def _streams_on(self, device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
        """Return two streams, always the same: libraries keep memory for each stream used."""
        if device not in self._streams:
            main = _stream(device)
            self._streams[device] = main, _stream_beside(main, device)
        return self._streams[device]

    def _warm(self, batch: object, device: torch.device) -> Tensor:
        """Take an ordinary step on the stream of the recording, which torch requires before a recording.

        Autocast's cache is off, as in the recording: changing it would compile compiled code again.
        """
        here, (aside, _) = torch.cuda.current_stream(device), self._streams_on(device)
        generator = torch.cuda.default_generators[_number(device)]
        drawn = generator.get_offset()
        aside.wait_stream(here)
        with torch.cuda.stream(aside), _no_autocast_cache():
            loss = self._ordinary(batch)
        here.wait_stream(aside)
        self._random = self._random or generator.get_offset() != drawn
        return loss.clone()


class _Recording:
    """A step recorded for batches of one form, with tensors of its own for the batch.

    It keeps no reference to its owner: a graph that waits for the garbage collector would hold its memory until then.
    """

    def __init__(
        self, owner: GraphedStep, batch: object, key: tuple[Any, ...], held: Held, device: torch.device
    ) -> None:
        self.key, self.held = key, held
        self._criterion, self._overlap = owner.criterion, owner.overlap
        self._batch = mapped(batch, lambda value: torch.empty_like(value).copy_(value))
        self._graph = torch.cuda.CUDAGraph()
        self._twin = _Twin(self._graph, device) if owner._random and owner.previous is not None else None
        self._main, self._side = owner._streams_on(device)
        owner.optimizer.zero_grad(set_to_none=True)
        errors: list[Exception] = []  # of the step: clearer than the error at the end of a broken recording
        try:
            with torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream(device)), _no_garbage():
                self._record(owner, errors)
        except Exception as error:
            with torch.cuda.device(device):
                _end_recordings(self._batch[1], self._main)
            _refuse(errors.pop() if errors else error)

    def _record(self, owner: GraphedStep, errors: list[Exception]) -> None:
        """Record the step without autocast's cache: the graph would read cached casts and not repeat them."""
        previous = owner.previous
        in_previous = previous.captured_by(self) if isinstance(previous, PreviousIterate) else nullcontext()
        with _no_autocast_cache(), _capture(self._graph, self._main), in_previous:
            try:
                self._loss = self._step(owner)
            except Exception as error:
                errors.append(error)
                raise

    def replay(self, batch: object) -> Tensor:
        copy_into(self._batch, batch)
        if self._twin is not None:
            self._twin.align()
        self._graph.replay()
        for loss in losses_in(self._criterion):
            loss.replayed()
        return self._loss.clone()

    def random_state(self) -> Any:
        return nullcontext() if self._twin is None else self._twin.instead()

    def copied(self) -> None:
        """Let the forward at the current weights begin: the buffers that it may change have been copied."""
        if self._overlap:
            self._main.wait_event(torch.cuda.current_stream(self._main.device).record_event())

    def _step(self, owner: GraphedStep) -> Tensor:
        """Take a step as `train_step` does, with the forward at the previous weights on a second stream."""
        inputs, others, name = open_batch(owner.model, self._batch)
        before: dict[str, Tensor] = {}
        if owner.previous is not None and getattr(owner.criterion, "needs_previous", False):
            self._side.wait_stream(self._main)
            with torch.cuda.stream(self._side if owner.overlap else self._main):
                before[name] = scores_of(owner.previous, inputs)
        scores = scores_of(owner.model, inputs)
        if before:
            self._main.wait_stream(self._side)
        loss: Tensor = owner.criterion(scores, *others, **before)
        owner.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        owner.optimizer.step()
        return loss.detach()


class _Twin:
    """A second random state, from which the forward at the previous weights draws the same numbers."""

    def __init__(self, graph: torch.cuda.CUDAGraph, device: torch.device) -> None:
        self._generator = torch.cuda.default_generators[_number(device)]
        self._own = self._generator.graphsafe_get_state()
        self._other = self._generator.clone_state()
        graph.register_generator_state(self._other)

    @contextmanager
    def instead(self) -> Iterator[None]:
        self._generator.graphsafe_set_state(self._other)
        try:
            yield
        finally:
            self._generator.graphsafe_set_state(self._own)

    def align(self) -> None:
        """Set the second state to the first one, which other code may have changed."""
        if self._other.initial_seed() != self._own.initial_seed():
            self._other.manual_seed(self._own.initial_seed())
        if self._other.get_offset() != self._own.get_offset():
            self._other.set_offset(self._own.get_offset())


@contextmanager
def _no_autocast_cache() -> Iterator[None]:
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(cached)


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Collect garbage now and pause the collector: freeing another graph during a recording ends the process."""
    gc.collect()
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _capture(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> torch.cuda.graph:
    # thread_local: what other threads do meanwhile, such as a loader's that pins memory, must not disturb it
    return torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local")


def _end_recordings(some: Tensor, stream: torch.cuda.Stream) -> None:
    """Record and end another graph: after a broken recording torch's generator draws only once another has ended."""
    with suppress(Exception), _capture(torch.cuda.CUDAGraph(), stream):
        some.clone()


def _refuse(error: Exception) -> NoReturn:
    """Raise the error of a step that could not be recorded; only a plain RuntimeError is explained."""
    if isinstance(error, torch.OutOfMemoryError) or not isinstance(error, RuntimeError):
        raise error
    why = str(error).split("\n")[0]
    waits = "captur" in why  # in the words of torch and of CUDA
    what = "something waits for the GPU" if waits else "it failed while it was recorded"
    raise RuntimeError(f"{_OWNER}: the step cannot be recorded, {what}: {why}") from error


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _stream_beside(other: torch.cuda.Stream, device: torch.device) -> torch.cuda.Stream:
    """Return a stream other than the given one: torch reuses its 32 streams in turn."""
    stream = _stream(device)
    return _stream(device) if stream == other else stream


def _number(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index
