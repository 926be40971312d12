"""CUDA graphs played on the CPU: operations are recorded without effect, and replayed on the tensors they were given.

What a real graph does not see, this one does not see either: Python that ran while recording, numbers that were baked
in. Two streams are one.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from moreauc.data.scoring import on_device

MADE: list[Graph] = []


class Graph:
    """Stands for `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor]]] = []
        self.replays = 0
        self.options: dict[str, Any] = {}
        self.generators: list[Any] = []
        MADE.append(self)

    def register_generator_state(self, generator: Any) -> None:
        self.generators.append(generator)

    @torch.no_grad()
    def replay(self) -> None:
        self.replays += 1
        for function, args, kwargs, results in self.calls:
            found = [leaf for leaf in tree_leaves(function(*args, **kwargs)) if isinstance(leaf, Tensor)]
            for kept, new in zip(results, found, strict=True):
                if kept.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    kept.copy_(new)


class _Recorder(TorchDispatchMode):
    """Writes operations down; what they change of tensors that were there before is changed back at the end."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph, self.own, self.saved = graph, set(), {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if func._schema.is_mutable or "batch_norm" in str(func):  # which changes its statistics unsaid
            for leaf in leaves:
                key = leaf.untyped_storage().data_ptr()
                if key not in self.own and key not in self.saved:
                    self.saved[key] = (leaf.untyped_storage(), leaf.untyped_storage().clone())
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            raise RuntimeError(f"{func} is not permitted when stream is capturing")
        result = func(*args, **kwargs)
        made = [leaf.detach() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        known = {leaf.untyped_storage().data_ptr() for leaf in leaves}
        self.own |= {leaf.untyped_storage().data_ptr() for leaf in made} - known
        args, kwargs = torch.utils._pytree.tree_map_only(Tensor, lambda value: value.detach(), (args, kwargs))
        self.graph.calls.append((func, args, kwargs, made))
        return result

    def undo(self) -> None:
        for storage, before in self.saved.values():
            storage.copy_(before)


@contextmanager
def recording(graph: Graph, stream: Stream, **options: Any):
    graph.options = options
    recorder = _Recorder(graph)
    Generator.recorded = True
    try:
        with current(stream), recorder:
            yield
        Generator.recorded = False  # not after a recording that broke: so does torch
    finally:
        recorder.undo()


class Stream:
    """Stands for `torch.cuda.Stream`: there are 32, which are handed out in turn. What it waits for is written down."""

    device = None
    made = itertools.count()
    now: Stream
    waits: ClassVar[list[tuple[int, str, int]]] = []

    def __init__(self, device: Any = None) -> None:
        self.number = next(Stream.made) % 32

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.number == other.number

    __hash__ = None

    def wait_stream(self, other: Stream) -> None:
        Stream.waits.append((self.number, "stream", other.number))

    def wait_event(self, event: int) -> None:
        Stream.waits.append((self.number, "event", event))

    def record_event(self) -> int:
        return self.number


@contextmanager
def current(stream: Stream):
    """Stands for `torch.cuda.stream`."""
    before, Stream.now = Stream.now, stream
    try:
        yield
    finally:
        Stream.now = before


class Generator:
    """Stands for a generator of the GPU, which counts what is drawn from it, and cannot while it is recorded."""

    recorded: ClassVar[bool] = False

    def __init__(self, seed: int = 0, offset: int = 0) -> None:
        self.state = SimpleNamespace(seed=seed, offset=offset)

    def get_offset(self) -> int:
        return self.state.offset

    def set_offset(self, offset: int) -> None:
        self.state.offset = offset

    def initial_seed(self) -> int:
        return self.state.seed

    def manual_seed(self, seed: int) -> None:
        self.state.seed, self.state.offset = seed, 0

    def graphsafe_get_state(self) -> Generator:
        twin = Generator()
        twin.state = self.state
        return twin

    def graphsafe_set_state(self, other: Generator) -> None:
        self.state = other.state

    def clone_state(self) -> Generator:
        return Generator(self.state.seed, self.state.offset)


def play(monkeypatch, module) -> Generator:
    """Let `module` take the CPU for a GPU that has graphs; returns its generator."""
    generator, Generator.recorded = Generator(), False
    MADE.clear()
    Stream.now = Stream()
    Stream.waits.clear()
    monkeypatch.setattr(module, "device_of", lambda model: torch.device("cuda", 0))
    monkeypatch.setattr(module, "on_device", lambda batch, device: on_device(batch, torch.device("cpu")))
    for name, value in {
        "Stream": Stream,
        "CUDAGraph": Graph,
        "current_stream": lambda device=None: Stream.now,
        "stream": current,
        "device": lambda device: _nothing(),
        "graph": recording,
        "default_generators": (generator,),
        "current_device": lambda: 0,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return generator


@contextmanager
def _nothing():
    yield
