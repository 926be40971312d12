"""The part of `size.py` that runs the library: which files of the package a call passes through.

Run by `size.py` in a process of its own, with the checkout to be measured first on the path:
`python benchmarks/size_probe.py step` or `fit FOLDER` prints a JSON object. Uses only names that DESIGN.md fixes.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import random
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import moreauc

PACKAGE = str(Path(moreauc.__file__).parent)
NO_FUNCTIONS = {"<module>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}


class Calls:
    """The calls of functions of the package in order; what runs because a module is imported does not count.

    Comprehensions are no calls: newer versions of Python run them in their function.

    Attributes:
        files: file of each function called, relative to the package.
    """

    def __init__(self) -> None:
        self.files: list[str] = []
        self._importing = 0

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        if code.co_name == "<module>" and frame.f_back and "importlib" in frame.f_back.f_code.co_filename:
            self._importing += 1 if event == "call" else -1
        elif self._importing or event == "return" or code.co_name in NO_FUNCTIONS:
            return
        elif code.co_filename.startswith(PACKAGE):
            self.files.append(code.co_filename[len(PACKAGE) + 1 :])

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Record what is called inside."""
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)

    def report(self) -> dict[str, Any]:
        """Return the numbers of files, of calls and of successive calls that lie in different files."""
        changes = sum(one != other for one, other in zip(self.files, self.files[1:], strict=False))
        return {
            "files": len(set(self.files)),
            "calls": len(self.files),
            "changes": changes,
            "names": sorted(set(self.files)),
        }


def step() -> Calls:
    """Record one training step with TPAUCLoss and gamma > 0, after others that fill tables and make buffers."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    inputs, labels = torch.randn(128, 8), (torch.arange(128) % 2).float()
    index = torch.arange(128)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = moreauc.TPAUCLoss(labels, min_tpr=0.5, max_fpr=0.5, gamma=0.1)
    previous = moreauc.PreviousIterate(model, optimizer)

    def once() -> None:
        value = criterion(model(inputs), labels, index, previous(inputs))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    for _ in range(4):
        once()
    calls = Calls()
    with calls.recorded():
        once()
    return calls


def fit(folder: Path) -> Calls:
    """Record `moreauc fit` on a small table that is written to the folder."""
    draw = random.Random(0)
    with open(folder / "data.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "dose", "ward", "state"])
        for row in range(120):
            ill = row % 4 == 0
            dose = "" if row % 17 == 0 else draw.gauss(ill, 1.0)
            writer.writerow([draw.gauss(2.0 * ill, 1.0), dose, draw.choice("ABC"), "ill" if ill else "well"])
    words = ["fit", str(folder / "data.csv"), "--target", "state", "--out", str(folder / "run"), "--epochs", "3"]
    calls, before = Calls(), sys.argv
    sys.argv = ["moreauc", *words]
    try:
        with calls.recorded(), contextlib.redirect_stdout(io.StringIO()):
            runpy.run_module("moreauc", run_name="__main__")
    except SystemExit as stop:
        if stop.code:
            raise
    finally:
        sys.argv = before
    return calls


def main() -> None:
    calls = step() if sys.argv[1] == "step" else fit(Path(sys.argv[2]))
    print(json.dumps(calls.report()))


if __name__ == "__main__":
    main()
