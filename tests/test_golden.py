"""The reports of the command line on small tables equal those in `tests/golden`, number for number.

They are rewritten, by the code that Python finds, with

    python tests/test_golden.py tests/golden

to be done only for a change of numbers that the changelog states. The commands run in a process whose libraries use the
kernels of the oldest processors: others round differently, and a few epochs turn that into other models.

Compared is what `report.json` holds, less times, versions, paths, the command and prose (of which only the number of
items counts), and the head of the predictions. `report.json` has five significant digits, where a value at a border may
be rounded either way: one unit of the last digit is allowed. Predictions have all digits of float32, in which sums
depend on their order.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from moreauc.app.cli import app

GOLDEN = Path(__file__).parent / "golden"
# The same kernels on every x86-64 processor: of torch, MKL, oneDNN, OpenBLAS (NumPy, SciPy) and NumPy itself.
PORTABLE = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Nehalem",
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
DROPPED = {"seconds", "versions", "command", "device", "file"}
PROSE = {"warnings", "why", "description", "note"}
SAME = {"module": "model"}  # one name for the arguments of all estimators, in `settings`
REPORT_DIGITS = 5
PREDICTIONS_SHOWN = 8


def rows_table(rows: int = 160) -> pd.DataFrame:
    random = np.random.default_rng(1)
    ill = np.arange(rows) % 5 == 0
    frame = pd.DataFrame(random.normal(size=(rows, 3)) + np.outer(ill, [1.0, 0.7, 0.0]), columns=["age", "dose", "gap"])
    frame["dose"] *= 30.0
    frame["ward"] = random.choice(["A", "B", "C"], rows)
    frame["state"] = np.where(ill, "ill", "well")
    frame.loc[::17, "gap"] = np.nan
    frame.loc[3::23, "ward"] = np.nan
    return frame


def bags_table(bags: int = 60) -> pd.DataFrame:
    """Patients with 1 to 6 rows in any order; an ill one has a row farther out."""
    random = np.random.default_rng(2)
    parts = []
    for bag in range(bags):
        ill = bag % 4 == 0
        part = pd.DataFrame(random.normal(size=(random.integers(1, 7), 3)), columns=["size", "shape", "gap"])
        part.loc[part.index[-1], "size"] += 3.0 * ill
        parts.append(part.assign(patient=f"p{bag}", state="ill" if ill else "well"))
    frame = pd.concat(parts, ignore_index=True)
    frame["stain"] = random.choice(["A", "B"], len(frame))
    frame.loc[::9, "gap"] = np.nan
    return frame.iloc[random.permutation(len(frame))].reset_index(drop=True)


def groups_table(rows: int = 200) -> pd.DataFrame:
    random = np.random.default_rng(3)
    frame = pd.DataFrame(random.normal(size=(rows, 3)), columns=["size", "shape", "gap"])
    frame["stain"] = random.choice(["A", "B"], size=rows)
    frame["race"] = random.choice(["x", "y", "z"], size=rows, p=[0.5, 0.3, 0.2])
    frame["sex"] = np.arange(rows) % 2
    slope = np.where(frame["race"] == "z", 0.5, 1.0)
    value = slope * frame["size"] + 0.3 * random.normal(size=rows)
    frame["grade"] = np.array(["high", "low", "middle"])[np.digitize(value, [-0.4, 0.4])]
    frame["cost"] = 100.0 + 20.0 * value
    frame.loc[::9, "gap"] = np.nan
    return frame


AREA = "--min-tpr 0.4 --max-fpr 0.6"
HALF = "--min-tpr 0.5 --max-fpr 0.5"
TABLES: dict[str, Callable[[], pd.DataFrame]] = {"rows": rows_table, "bags": bags_table, "groups": groups_table}
FITS = {  # the table, and the words of `moreauc fit`
    "rows": ("rows", f"--target state --epochs 3 {AREA}"),
    "rows_auc_m": ("rows", f"--target state --epochs 4 --lr 0.05 --loss auc_m --model linear {HALF}"),
    "bags": ("bags", f"--bags patient --target state --epochs 4 --lr 0.02 {AREA}"),
    "bags_midam": ("bags", f"--bags patient --target state --epochs 4 --lr 0.02 --seed 3 --loss midam_smx {HALF}"),
    "groups": ("groups", "--groups race,sex --target grade --drop cost --epochs 4 --lr 0.02"),
    "groups_regression": (
        "groups",
        "--groups race --keep-groups --target cost --drop grade --epochs 2 --top-k 2 --loss exponentiated",
    ),
}
COMPARE = f"--target state --folds 2 --inner-folds 2 --trials 2 --jobs 1 --methods sonx,ce,auc_sh {AREA}"


def call(*words: object) -> None:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output


def write_tables(folder: Path) -> None:
    for name, make in TABLES.items():
        make().to_csv(folder / f"{name}.csv", index=False)


def fit_and_use(name: str, folder: Path) -> dict[str, Any]:
    """Run fit, evaluate and predict; return what they report."""
    table, words = FITS[name]
    data = folder / f"{table}.csv"
    baseline = {"rows": "ce", "bags": "ce_att", "groups": "erm"}[table]
    call("fit", data, "--out", folder / name, *words.split(), "--baselines", baseline)
    call("evaluate", folder / name, data, "--out", folder / "evaluated")
    call("predict", folder / name, data, "--out", folder / "predictions.csv")
    predictions = pd.read_csv(folder / "predictions.csv")
    return {
        "fit": shortened(read(folder / name)),
        "evaluate": shortened(read(folder / "evaluated")),
        "predictions": {
            "rows": len(predictions),
            "columns": list(predictions.columns),
            "first": predictions.head(PREDICTIONS_SHOWN).to_dict("list"),
        },
    }


def compare_methods(folder: Path) -> dict[str, Any]:
    call("compare", folder / "rows.csv", "--out", folder / "compare", *COMPARE.split())
    return {"compare": shortened(read(folder / "compare"))}


def read(run: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((run / "report.json").read_text(encoding="utf-8"))
    return report


def shortened(value: Any) -> Any:
    """Return a report without what is free to differ from run to run or may be said in other words."""
    if isinstance(value, dict):
        kept = {key: _items(part) if key in PROSE else shortened(part) for key, part in value.items()}
        kept = {key: part for key, part in kept.items() if key not in DROPPED}
        if isinstance(kept.get("settings"), dict):
            kept["settings"] = {SAME.get(key, key): part for key, part in sorted(kept["settings"].items())}
        return kept
    return [shortened(part) for part in value] if isinstance(value, list) else value


def _items(text: Any) -> int:
    return len(text) if isinstance(text, list) else int(bool(text))


def leaves(value: Any, place: str = "") -> dict[str, Any]:
    """Return what stands at each place of a report."""
    if not value or not isinstance(value, dict | list):
        return {place: value}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return {name: leaf for key, part in parts for name, leaf in leaves(part, f"{place}/{key}").items()}


def differences(expected: Any, found: Any, close: Callable[[float, float], bool], part: str) -> list[str]:
    """Return where two reports differ, a line for each place."""
    first, second = leaves(expected, part), leaves(found, part)
    lines = []
    for place in sorted(first.keys() | second.keys()):
        a, b = first.get(place, "nothing"), second.get(place, "nothing")
        if a != b and not (isinstance(a, float) and isinstance(b, int | float) and close(a, b)):
            lines.append(f"{place}: expected {a!r}, found {b!r}")
    return lines


def report_close(expected: float, found: float) -> bool:
    if math.isnan(expected) or expected == 0.0:
        return math.isnan(expected) and math.isnan(found)
    unit = 10.0 ** (math.floor(math.log10(abs(expected))) - REPORT_DIGITS + 1)
    return abs(expected - found) <= 1.01 * unit


def prediction_close(expected: float, found: float) -> bool:
    return math.isclose(expected, found, rel_tol=1e-5, abs_tol=1e-6)


def make(name: str, folder: Path) -> dict[str, Any]:
    write_tables(folder)
    return compare_methods(folder) if name == "compare" else fit_and_use(name, folder)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the reports as they are now, written by this file as a program."""
    folder: Path = tmp_path_factory.mktemp("golden")
    command = [sys.executable, __file__, str(folder)]
    done = subprocess.run(command, env={**os.environ, **PORTABLE}, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", [*FITS, "compare"])
def test_reports_are_the_golden_ones(name: str, reports: Path) -> None:
    expected, found = (json.loads((folder / f"{name}.json").read_text("utf-8")) for folder in (GOLDEN, reports))
    lines = []
    for part in sorted(expected.keys() | found.keys()):
        close = prediction_close if part == "predictions" else report_close
        lines += differences(expected.get(part), found.get(part), close, part)
    assert not lines, "\n".join([f"{len(lines)} differences", *lines[:40]])


def main(folder: Path) -> None:
    if any(os.environ.get(name) != value for name, value in PORTABLE.items()):  # libraries read it when they are loaded
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **PORTABLE})
    Figure.savefig = lambda *args, **options: None  # drawing takes more than half the time of a command
    for name in [*FITS, "compare"]:
        with tempfile.TemporaryDirectory() as place:
            text = json.dumps(make(name, Path(place)), indent=1)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(f"written: {name}.json", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
