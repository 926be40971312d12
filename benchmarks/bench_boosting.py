"""A round of boosted trees with the two-way partial AUC as objective beside LightGBM's built-in one.

LightGBM grows trees of 31 leaves on 10^4, 10^5 and 10^6 rows of 20 features, a tenth of them positive, with its own
`binary` objective and with `tpauc_objective`, in turns on the same binned data set. Seconds are processor time of one
thread for a round; the gradient alone is timed on the scores that the first turn ends with. XGBoost is not timed: its
objective is the same function.

`python benchmarks/bench_boosting.py --out FILE` writes the report.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
from bench_pairs import write
from sklearn.datasets import make_classification

from moreauc._system import one_thread
from moreauc.app.report.pages import versions
from moreauc.boosting import tpauc_objective

FEATURES = 20
REGION: dict[str, Any] = {"min_tpr": 0.5, "max_fpr": 0.5}
FIXED = {"num_threads": 1, "verbosity": -1, "deterministic": True, "force_row_wise": True}


def timing(number: int, rounds: int, turns: int) -> dict[str, Any]:
    """Seconds of a round with each objective and of the gradient alone, and their ratios."""
    X, y = make_classification(
        number, FEATURES, n_informative=10, weights=[0.9], flip_y=0.02, class_sep=0.5, random_state=0
    )
    data = lightgbm.Dataset(X, y, params=FIXED, free_raw_data=False).construct()
    own = tpauc_objective(**REGION, log_loss_rounds=0)
    objectives: dict[str, Any] = {"binary": "binary", "tpauc_objective": own}
    scores = lightgbm.train({**FIXED, "objective": "binary"}, data, rounds).predict(X, raw_score=True)
    times: dict[str, list[float]] = {name: [] for name in (*objectives, "gradient")}
    for turn in range(turns + 1):
        for name, objective in objectives.items():
            begin = time.process_time()
            lightgbm.train({**FIXED, "objective": objective}, data, rounds)
            if turn:  # the first warms up
                times[name].append((time.process_time() - begin) / rounds)
        begin = time.process_time()
        for _ in range(rounds):
            own(y, scores)
        if turn:
            times["gradient"].append((time.process_time() - begin) / rounds)
    seconds = {name: float(np.median(values)) for name, values in times.items()}
    ratio = float(np.median(np.divide(times["tpauc_objective"], times["binary"])))
    return {"rows": number, "seconds": seconds, "tpauc_objective / binary": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", default="10000,100000,1000000", help="comma list of rows")
    parser.add_argument("--rounds", type=int, default=10, help="of a training")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = ("sizes", "rounds", "turns")
    result: dict[str, Any] = {
        "title": "Seconds of a boosting round",
        "command": "python benchmarks/bench_boosting.py " + " ".join(f"--{n} {getattr(options, n)}" for n in names),
        "versions": {**versions(), "numpy": np.__version__, "lightgbm": lightgbm.__version__},
        "date": time.strftime("%Y-%m-%d"),
        "device": f"{platform.machine()}, one thread, processor time",
        "load": os.getloadavg()[0],
    }
    with one_thread():
        result["times"] = [timing(int(size), options.rounds, options.turns) for size in options.sizes.split(",")]
    write(result, options.out)


if __name__ == "__main__":
    main()
