"""LibAUC in a separate environment, measured in turns with our code.

As a module it is the caller's side: :func:`environment` installs LibAUC once, :class:`Peer` starts an interpreter there
and asks it over a pipe. As a program it is the other side: a JSON request on each line of its input, a JSON answer on
each line of its output. The two never work at the same time, so that both can be measured on the same core.

LibAUC is no dependency of the package. Its losses and metrics import torch, numpy, scipy, scikit-learn and tqdm; the
other eleven packages that it declares are not installed. Only for torchvision, which its samplers import to recognise
folders of images, there is an empty module, since the build on PyPI needs torch with CUDA.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from gallery_peer import libauc_step, run_code
from numpy.typing import NDArray
from torch import Tensor

LIBAUC = "2.0.1"
NEEDED = ("numpy", "scipy", "scikit-learn", "tqdm")
HERE = Path(__file__).resolve().parent
LOSSES = ("tpAUC_CVaR_loss", "tpAUC_KL_Loss")
ALPHA = BETA = 0.5  # the region of all timings of losses; LibAUC's defaults as well


def loss_data(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return raw scores that want a gradient, labels and index: `size` of each class in random order."""
    random = torch.Generator().manual_seed(size)
    labels = (torch.randperm(2 * size, generator=random) < size).long()
    scores = torch.randn(2 * size, generator=random) + 0.5 * labels
    return scores.requires_grad_(), labels, torch.arange(2 * size)


def metric_data(number: int, share: float, levels: int | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return labels with a share of positives, and normal scores, rounded to about `levels` values."""
    random = np.random.default_rng(number)
    labels = (random.permutation(number) < share * number).astype(np.int64)
    scores = random.standard_normal(number) + labels
    return labels, scores if levels is None else np.round(scores * levels / 8.0) * 8.0 / levels


def repeat(step: Callable[[], object], times: int, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Seconds of each of `times` calls."""
    seconds = []
    for _ in range(times):
        begin = clock()
        step()
        seconds.append(clock() - begin)
    return seconds


def limit_memory(gibibytes: float) -> None:
    """Let an allocation beyond the limit fail with an error instead of filling the machine."""
    size = int(gibibytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))


def peak_memory(step: Callable[[], object]) -> dict[str, float]:
    """MiB by which the peak resident size rises over the state before one call, and the whole peak of the process."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far becomes the present size
    before = _status("VmRSS")
    step()
    peak = _status("VmHWM")
    return {"growth_mib": (peak - before) / 1024, "process_mib": peak / 1024}


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def shorten(error: BaseException) -> str:
    """One line that names an error, without addresses in the sources of a library."""
    text = " ".join(str(error).split())
    start = text.find("DefaultCPUAllocator")
    return f"{type(error).__name__}: {text[max(start, 0) :][:160]}"


def summary(seconds: Sequence[float]) -> dict[str, Any]:
    """Median and quartiles in microseconds."""
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else 3 * [seconds[0]]
    return {"microseconds": 1e6 * median, "quartiles": [1e6 * low, 1e6 * high]}


def environment(folder: Path) -> Path:
    """Return the interpreter of an environment in `folder` that has LibAUC; it is made if it is not there."""
    python = folder / "bin" / "python"
    ready = folder / f".libauc-{LIBAUC}"
    if ready.exists():
        return python
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pinned = ["--constraint", str(HERE.parent / "constraints.txt")]
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [*pip, *pinned, "torch"],  # first and alone: a loose requirement pulls gigabytes of GPU packages
        [*pip, *pinned, *NEEDED],
        [*pip, "--no-deps", f"libauc=={LIBAUC}"],
    ):
        subprocess.run(command, check=True)
    (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    ready.touch()
    return python


class Peer:
    """An interpreter at the other end of a pipe.

    Args:
        python: the interpreter, as :func:`environment` returns it.
        memory_gib: limit of its address space.
    """

    def __init__(self, python: Path, memory_gib: float = math.inf) -> None:
        command = [str(python), str(HERE / "peer.py")]
        if math.isfinite(memory_gib):
            command += ["--memory-gib", str(memory_gib)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send a request and wait for the answer; a failure there comes back as {"error": ...}."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the peer has no pipes")
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:  # killed, for example for lack of memory
            return {"error": f"the process ended with code {self._process.wait()}"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.communicate()  # ends its input, and with it the process

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Answers:
    """The requests that the other side answers; steps and data are made once and kept."""

    def __init__(self) -> None:
        self._steps: dict[tuple[Any, ...], Callable[[], Any]] = {}

    def versions(self) -> dict[str, Any]:
        return {"libauc": importlib.import_module("libauc").__version__, "torch": torch.__version__}

    def names(self) -> dict[str, Any]:
        """Return its public classes and functions, by module."""
        found = {}
        for part in ("losses", "optimizers", "sampler", "metrics"):
            module = importlib.import_module(f"libauc.{part}")
            own = {name: value for name, value in vars(module).items() if not name.startswith("_") and callable(value)}
            found[part] = sorted(name for name, value in own.items() if value.__module__.startswith(module.__name__))
        return found

    def run_code(self, code: str) -> dict[str, Any]:
        return run_code(code)

    def loss(self, name: str, size: int, times: int) -> dict[str, Any]:
        step = self._kept(("loss", name, size), lambda: _loss_step(name, size)[0])
        return {"seconds": repeat(step, times)}

    def loss_memory(self, name: str, size: int) -> dict[str, Any]:
        _loss_step(name, 64)[0]()  # loads what the first call loads
        return dict(peak_memory(_loss_step(name, size)[0]))

    def first_loss(self, name: str, size: int) -> dict[str, Any]:
        step, scores = _loss_step(name, size)
        value = step()
        return {"value": value.item(), "gradient": [] if scores.grad is None else scores.grad.tolist()}

    def gallery(self, name: str, size: int, times: int) -> dict[str, Any]:
        step = self._kept(("gallery", name, size), lambda: libauc_step(name, size, 0.9)[0])
        return {"seconds": repeat(step, times, time.process_time)}

    def first_of_gallery(self, name: str, size: int, gamma: float) -> dict[str, Any]:
        step, leaf = libauc_step(name, size, gamma)
        value = step().item()
        return {"value": value, "gradient": [] if leaf.grad is None else leaf.grad.flatten().tolist()}

    def metric(
        self, number: int, share: float, levels: int | None, min_tpr: float, max_fpr: float, times: int
    ) -> dict[str, Any]:
        score = importlib.import_module("libauc.metrics").pauc_roc_score
        key = ("data", number, share, levels)
        labels, scores = self._kept(key, lambda: _constant(metric_data(number, share, levels)))()

        def step() -> float:
            return float(score(labels, scores, max_fpr=max_fpr, min_tpr=min_tpr))

        return {"seconds": repeat(step, times), "value": step()}

    def metric_of(self, labels: list[int], scores: list[float], min_tpr: float, max_fpr: float) -> dict[str, Any]:
        score = importlib.import_module("libauc.metrics").pauc_roc_score
        return {"value": float(score(np.array(labels), np.array(scores), max_fpr=max_fpr, min_tpr=min_tpr))}

    def _kept(self, key: tuple[Any, ...], make: Callable[[], Callable[[], Any]]) -> Callable[[], Any]:
        if key not in self._steps:
            self._steps = {kept: step for kept, step in self._steps.items() if kept[-1] == key[-1]}  # free other sizes
            self._steps[key] = make()
        return self._steps[key]


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _loss_step(name: str, size: int) -> tuple[Callable[[], Tensor], Tensor]:
    """Forward and backward as LibAUC's examples do it: the model's output through a sigmoid, then the loss."""
    scores, labels, index = loss_data(size)
    make = getattr(importlib.import_module("libauc.losses.auc"), name)
    # One loss names the margin `threshold`, the other `margin`; rows are looked up by the index in the whole set.
    arguments = {"data_length": 2 * size, "threshold": 1.0} if name == "tpAUC_CVaR_loss" else {"data_len": 2 * size}
    criterion = make(**arguments)

    def step() -> Tensor:
        scores.grad = None
        value: Tensor = criterion(torch.sigmoid(scores).unsqueeze(1), labels, index)
        torch.autograd.backward(value)
        return value.detach()

    return step, scores


def serve() -> None:
    """Answer requests until the input ends."""
    answers = _Answers()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(answers, request.pop("do"))(**request)
        except Exception as error:  # the caller decides what a failure means
            answer = {"error": shorten(error)}
        print(json.dumps(answer), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--memory-gib", type=float)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.modules["torchvision"] = ModuleType("torchvision")
    if options.memory_gib is not None:
        limit_memory(options.memory_gib)
    serve()


if __name__ == "__main__":
    main()
