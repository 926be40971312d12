from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
import torch

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start; threads wait for a core in vain


def pytest_collection_finish() -> None:
    """Leave modules and collected tests, which stay to the end, out of each later collection of garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    yield
    assert torch.get_default_dtype() == torch.float32, "a test left another default type behind"


@pytest.fixture
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save no pictures: drawing takes more than half the time of a command. `monkeypatch.undo()` draws again."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, file, **options: None)
