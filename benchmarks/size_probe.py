"""The part of `size.py` that runs the library: which files of the package a call passes through.

Run by `size.py` in a process of its own, with the checkout to be measured first on the path:
`python benchmarks/size_probe.py import`, `step` or `fit FOLDER [OPTION ...]` prints a JSON object.
"""

from __future__ import annotations

import contextlib
import csv
import inspect
import io
import json
import random
import runpy
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import moreauc

PACKAGE = f"{Path(moreauc.__file__).parent}/"
# How often one fit looks at the columns, of which its table has three. A function has the first of the names or, in
# other states of the code, another.
WATCHED = {
    "kinds of columns found": ("_learn_written", "_kind", "_as_number_or_text"),
    "passes that look for doubtful columns": ("_learn", "doubtful_columns"),
    "encoder fitted": ("TableEncoder._fit",),
}
Report = dict[str, object]


def loaded() -> list[str]:
    """Return which files of the package were loaded, relative to it."""
    files = {str(getattr(module, "__file__", None)) for module in sys.modules.values()}
    return sorted(file.removeprefix(PACKAGE) for file in files if file.startswith(PACKAGE))


class Calls:
    """The calls of functions of the package in order, in all threads.

    What runs because a module is imported counts, too; bodies of modules and classes are no calls. Comprehensions are
    none either: newer versions of Python run them in their function.

    Attributes:
        files: file of each function called, relative to the package.
        functions: how often each function was called, by its qualified name.
    """

    def __init__(self) -> None:
        self.files: list[str] = []
        self.functions: Counter[str] = Counter()

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.endswith(("comp>", "genexpr>"))
        if event == "call" and is_function and code.co_filename.startswith(PACKAGE):
            self.files.append(code.co_filename.removeprefix(PACKAGE))
            self.functions[code.co_qualname] += 1

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Record what is called inside."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def report(self) -> Report:
        """Return the numbers of files, of calls and of successive calls that lie in different files."""
        changes = sum(one != other for one, other in zip(self.files, self.files[1:], strict=False))
        watched = {key: sum(self.functions[name] for name in names) for key, names in WATCHED.items()}
        names = sorted(set(self.files))
        return {"files": len(names), "calls": len(self.files), "changes": changes, "names": names} | watched


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


def fit(folder: Path, options: Sequence[str]) -> Calls:
    """Record `moreauc fit` on a small table that is written to the folder."""
    draw = random.Random(0)
    with open(folder / "data.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "dose", "ward", "state"])
        for row in range(120):
            ill = row % 4 == 0
            dose = "" if row % 17 == 0 else draw.gauss(ill, 1.0)
            writer.writerow([draw.gauss(2.0 * ill, 1.0), dose, draw.choice("ABC"), "ill" if ill else "well"])
    words = ["fit", str(folder / "data.csv"), "--target", "state", "--out", str(folder / "run"), *options]
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
    what, *words = sys.argv[1:]
    if what == "import":
        from moreauc import TPAUCLinear as TPAUCLinear

        report: Report = {}
    else:
        report = (step() if what == "step" else fit(Path(words[0]), words[1:])).report()
    print(json.dumps(report | {"loaded": len(loaded())}))


if __name__ == "__main__":
    main()
