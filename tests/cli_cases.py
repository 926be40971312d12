"""Small tables of rows, bags and groups, and the expected output of the command line; for the tests of the commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from typer.testing import CliRunner, Result

from moreauc.app.cli import app
from moreauc.app.cli.saved import load_model

FILES = ["log.txt", "model.joblib", "report.html", "report.json"]
REGION = {"min_tpr": 0.4, "max_fpr": 0.5}
_AREA = ["--min-tpr", "0.4", "--max-fpr", "0.5"]


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def done(*words: object) -> Result:
    result = call(*words)
    assert result.exit_code == 0, result.output
    return result


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def rows_table(rows: int = 240, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    ill = np.arange(rows) % 6 == 0
    numbers = random.normal(size=(rows, 3)) + np.outer(ill, [1.5, 1.0, 0.0])
    numbers[::17, 2] = np.nan
    frame = pd.DataFrame(numbers * [1.0, 10.0, 0.1], columns=["age", "dose", "gap"])
    frame["ward"] = random.choice(["A", "B", "C"], rows)
    frame["state"] = np.where(ill, "ill", "well")
    return frame


def bags_table(rows: int = 48, seed: int = 0) -> pd.DataFrame:
    """Patients with 1 to 6 rows that do not stand together; an ill one has a row far out."""
    random = np.random.default_rng(seed)
    parts = []
    for bag in range(rows):
        ill = bag % 4 == 0
        part = pd.DataFrame(random.normal(size=(random.integers(1, 7), 3)), columns=["age", "dose", "gap"])
        part.loc[part.index[-1], "age"] += 6.0 * ill
        parts.append(part.assign(patient=f"p{bag}", state="ill" if ill else "well"))
    frame = pd.concat(parts, ignore_index=True)
    frame["ward"] = random.choice(["A", "B", "C"], len(frame))
    frame.loc[::9, "gap"] = np.nan
    return frame.iloc[random.permutation(len(frame))].reset_index(drop=True)


def groups_table(rows: int = 240, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(random.normal(size=(rows, 3)), columns=["age", "dose", "gap"])
    frame["ward"] = random.choice(["A", "B", "C"], size=rows)
    frame["race"] = np.array(["x", "y", "z"])[np.arange(rows) % 3]
    frame["sex"] = np.arange(rows) % 2
    frame["state"] = np.where(frame["age"] + 0.3 * random.normal(size=rows) > 0, "ill", "well")
    frame["cost"] = 100.0 + 20.0 * frame["age"]
    frame.loc[::9, "gap"] = np.nan
    return frame


_RANKED = ("Verdict", "Methods", "Curves and scores", "Importance of columns")


@dataclass(frozen=True)
class Case:
    """One way to call `moreauc fit`.

    Attributes:
        table: makes the table, of so many rows or bags, with a seed.
        words: options that belong to the task.
        target: column that is predicted.
        first: line that `fit` prints first.
        sizes: of training and test part in the report.
        headline: what `evaluate` prints of the whole table.
        losses: the chosen one and the baseline.
        other: another loss, for a quick run.
        unit: what is split.
        headings: of the page.
        images: of the page.
    """

    table: Callable[..., pd.DataFrame]
    words: tuple[str, ...]
    target: str
    first: str
    sizes: tuple[dict[str, int], dict[str, int]]
    headline: str
    losses: tuple[str, str]
    other: str
    task: str
    unit: str = "rows"
    headings: tuple[str, ...] = (*_RANKED, "Training", "Data", "Settings")
    images: int = 6

    @property
    def drawn(self) -> int:
        return self.sizes[1][self.unit]


_POSITIVE = "Positive class: state = ill (the rarer of two values)"
_BY_GROUP = ("--groups", "race,sex", "--top-k", "2", "--epochs", "4", "--lr", "0.02")
_GROUPS = ("Verdict", "Methods", "Groups", "Importance of columns", "Training", "Data", "Settings")
_SIZES = (
    {"rows": 180, "groups": 6, "smallest": 30, "largest": 30},
    {"rows": 60, "groups": 6, "smallest": 10, "largest": 10},
)
CASES = {
    "rows": Case(
        rows_table,
        ("--target", "state", *_AREA, "--epochs", "3"),
        "state",
        _POSITIVE,
        ({"rows": 180, "positives": 30, "negatives": 150}, {"rows": 60, "positives": 10, "negatives": 50}),
        "240 rows, 40 positives",
        ("sonx", "lr"),
        "ce",
        "rows",
    ),
    "bags": Case(
        bags_table,
        ("--bags", "patient", "--target", "state", *_AREA, "--epochs", "4", "--lr", "0.02"),
        "state",
        _POSITIVE,
        (
            {"bags": 36, "positives": 9, "negatives": 27, "instances": 131},
            {"bags": 12, "positives": 3, "negatives": 9, "instances": 37},
        ),
        "48 bags, 12 positives",
        ("sont_att", "lr_bags"),
        "ce_att",
        "bags",
        unit="bags",
        headings=(
            *(*_RANKED, "Instances of the best scored positive bag"),
            *("Instances of the hardest bag", "Training", "Data", "Settings"),
        ),
        images=8,
    ),
    "classes": Case(
        groups_table,
        (*_BY_GROUP, "--target", "state", "--drop", "cost"),
        "state",
        "Task: classification of state (the target is no number)",
        _SIZES,
        "240 rows",
        ("sonx", "erm"),
        "erm",
        "groups",
        headings=_GROUPS,
        images=4,
    ),
}
CASES["numbers"] = replace(
    CASES["classes"],
    words=(*_BY_GROUP, "--target", "cost", "--drop", "state"),
    target="cost",
    first="Task: regression of cost (the target has 240 different numbers)",
)


@dataclass(frozen=True)
class Run:
    """A table, and a training on it; `folder` holds data.csv and run."""

    name: str
    case: Case
    folder: Path
    result: Result

    @property
    def data(self) -> Path:
        return self.folder / "data.csv"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def fit(self, *words: object) -> tuple[object, ...]:
        """Return the words of a quick training on the same table."""
        return ("fit", self.data, *self.case.words, "--epochs", 1, "--loss", self.case.other, *words)


def train(name: str, folder: Path) -> Run:
    case = CASES[name]
    case.table().to_csv(folder / "data.csv", index=False)
    return Run(name, case, folder, done("fit", folder / "data.csv", *case.words, "--out", folder / "run"))


def score_by_hand(run: Path, frame: pd.DataFrame) -> tuple[list[str], np.ndarray]:
    """Return names and scores of the rows or bags of a table; bag by bag, in the order of their first rows."""
    saved = load_model(run)
    columns = frame[list(saved.task.kinds)]
    if saved.task.name != "bags":
        return [str(row + 1) for row in range(len(frame))], saved.model.decision_function(columns)
    names = list(dict.fromkeys(frame["patient"]))
    encode = saved.task.instance_encoder.encode
    bags = [encode(columns[(frame["patient"] == name).to_numpy()]) for name in names]
    return names, saved.model.decision_function(bags)
