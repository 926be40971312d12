"""Time of a fit with defaults: `TPAUCClassifier` and `TPAUCLinear` beside logistic regression and LightGBM.

Each in turn on the same made-up rows, 3 % of them positive, with as many threads as torch and LightGBM take by
themselves; wall-clock seconds, the shortest of the runs. `python benchmarks/bench_fit.py --out FILE` writes the report.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from bench_pairs import write
from lightgbm import LGBMClassifier
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from moreauc import TPAUCClassifier, TPAUCLinear
from moreauc.app.report.pages import versions

SIZES = ((10_000, 20), (200_000, 50))
REGION: dict[str, Any] = {"min_tpr": 0.0, "max_fpr": 0.1}


def models() -> dict[str, Any]:
    return {
        "LR": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        "LightGBM": LGBMClassifier(verbosity=-1),
        "TPAUCLinear": TPAUCLinear(random_state=0, **REGION),
        "TPAUCClassifier": TPAUCClassifier(random_state=0, **REGION),
    }


def measure(rows: int, columns: int, runs: int) -> dict[str, float]:
    X, y = make_classification(rows, columns, n_informative=8, weights=[0.97], flip_y=0.02, random_state=0)
    seconds: dict[str, float] = {}
    for _ in range(runs):
        for name, model in models().items():
            begin = time.perf_counter()
            model.fit(X, y)
            seconds[name] = min(seconds.get(name, float("inf")), time.perf_counter() - begin)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--runs", type=int, default=2)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    results = []
    for rows, columns in SIZES:
        seconds = measure(rows, columns, arguments.runs)
        ratios = {name: value / seconds["LR"] for name, value in seconds.items()}
        results.append({"rows": rows, "columns": columns, "seconds": seconds, "times LR": ratios})
        print(rows, columns, {name: round(value, 2) for name, value in seconds.items()})
    machine = {"cores": os.cpu_count(), "threads": torch.get_num_threads(), "machine": platform.machine(), **versions()}
    write({"machine": machine, "results": results}, arguments.out)


if __name__ == "__main__":
    main()
