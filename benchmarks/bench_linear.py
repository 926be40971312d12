"""`TPAUCLinear` beside logistic regression: quality on real tables, and time.

1. `--part quality`: two-way partial AUC on a test part of 30 % of the twelve ADBench tables and Adult, three regions,
   three splits: logistic regression with defaults (standardised, C = 1), with C tuned by five folds for the region, and
   `TPAUCLinear` with defaults. Its defaults were chosen on the first six tables; the others confirm.
2. `--part time`: a fit at 10^4, 10^5 and 10^6 rows of 20 features, in turns, seconds of one thread's processor time.

`python benchmarks/bench_linear.py --part quality --out FILE` writes the report; the data are those of `MOREAUC_DATA`.
"""

from __future__ import annotations

import argparse
import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from bench_pairs import write
from numpy.typing import NDArray
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from experiments.data.adbench import load_adbench
from experiments.data.groups import load_adult
from moreauc import TPAUCLinear
from moreauc._system import one_thread
from moreauc.app.report.pages import versions
from moreauc.data.schema import ColumnWarning
from moreauc.data.tabular import TableEncoder
from moreauc.metrics import tpauc_score

CHOOSING = ("annthyroid", "Cardiotocography", "landsat", "magic.gamma", "PageBlocks", "satellite")
CONFIRMING = ("campaign", "fault", "letter", "mnist", "Pima", "thyroid", "Adult")
REGIONS = ((0.5, 0.5), (0.0, 0.1), (0.3, 0.3))
STRENGTHS = (0.01, 0.1, 1.0, 10.0)
FEATURES = 20
Labels = NDArray[np.int64]


def load(name: str) -> tuple[Any, Labels]:
    if name == "Adult":
        data = load_adult()
        return data.X, np.asarray(data.y)
    return load_adbench(name)


def logistic(strength: float, X: Any, tol: float = 1e-8) -> Pipeline:
    """Logistic regression run to convergence, so that differences are not due to early stopping."""
    model = LogisticRegression(C=strength, max_iter=10_000, tol=tol)
    if hasattr(X, "iloc"):
        return make_pipeline(TableEncoder(), FunctionTransformer(np.float64), model)
    return make_pipeline(StandardScaler(), model)


def take(X: Any, rows: NDArray[Any]) -> Any:
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]


def in_regions(labels: Labels, scores: NDArray[Any]) -> list[float]:
    return [tpauc_score(labels, scores, min_tpr=low, max_fpr=high) for low, high in REGIONS]


def tuned_strengths(X: Any, y: Labels, seed: int) -> list[float]:
    """The C with the best mean over folds, for each region."""
    folds = list(StratifiedKFold(5, shuffle=True, random_state=seed).split(np.zeros(len(y)), y))
    means = []
    for strength in STRENGTHS:
        fitted = [(logistic(strength, X, 1e-4).fit(take(X, train), y[train]), test) for train, test in folds]
        points = [in_regions(y[test], model.decision_function(take(X, test))) for model, test in fitted]
        means.append(np.mean(points, axis=0))
    return [STRENGTHS[best] for best in np.argmax(means, axis=0)]


def quality(name: str, seed: int) -> list[dict[str, Any]]:
    """One row for each region."""
    X, y = load(name)
    train, test = train_test_split(np.arange(len(y)), test_size=0.3, stratify=y, random_state=seed)
    own, later = take(X, train), take(X, test)
    plain = in_regions(y[test], logistic(1.0, X).fit(own, y[train]).decision_function(later))
    rows = []
    for place, strength in enumerate(tuned_strengths(own, y[train], seed)):
        low, high = REGIONS[place]
        tuned = logistic(strength, X).fit(own, y[train]).decision_function(later)
        begin = time.process_time()
        model = TPAUCLinear(min_tpr=low, max_fpr=high, random_state=seed).fit(own, y[train])
        rows.append(
            {
                "table": name,
                "half": "choosing" if name in CHOOSING else "confirming",
                "seed": seed,
                "min_tpr": low,
                "max_fpr": high,
                "LR": plain[place],
                "LR, C tuned": in_regions(y[test], tuned)[place],
                "TPAUCLinear": model.score(later, y[test]),
                "tuned C": strength,
                "C": model.C_,
                "margin": model.margin_,
                "seconds": time.process_time() - begin,
            }
        )
    return rows


def timing(number: int, rounds: int) -> dict[str, Any]:
    """Seconds of a fit of each, and their ratio."""
    X, y = make_classification(
        number, FEATURES, n_informative=10, weights=[0.9], flip_y=0.02, class_sep=0.5, random_state=0
    )
    fits: dict[str, Callable[[], Any]] = {
        "LR": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(X, y),
        "TPAUCLinear": lambda: TPAUCLinear(random_state=0).fit(X, y),
        "TPAUCLinear, margin and C given": lambda: TPAUCLinear(C=1.0, margin=0.1, random_state=0).fit(X, y),
    }
    times: dict[str, list[float]] = {name: [] for name in fits}
    for turn in range(rounds + 1):
        for name, fit in fits.items():
            begin = time.process_time()
            fit()
            if turn:  # the first warms up
                times[name].append(time.process_time() - begin)
    seconds = {name: float(np.median(values)) for name, values in times.items()}
    ratios = {f"{name} / LR": float(np.median(np.divide(times[name], times["LR"]))) for name in fits if name != "LR"}
    return {"rows": number, "seconds": seconds, **ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--part", choices=("quality", "time"), required=True)
    parser.add_argument("--tables", default=",".join((*CHOOSING, *CONFIRMING)), help="comma list")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sizes", default="10000,100000,1000000", help="comma list of rows")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = ("tables", "seeds") if options.part == "quality" else ("sizes", "rounds")
    result: dict[str, Any] = {
        "title": "TPAUCLinear and logistic regression",
        "command": f"python benchmarks/bench_linear.py --part {options.part} "
        + " ".join(f"--{name} {getattr(options, name)}" for name in names),
        "versions": {**versions(), "numpy": np.__version__, "scikit-learn": sklearn.__version__},
        "date": time.strftime("%Y-%m-%d"),
        "device": f"{platform.machine()}, float64, one thread",
    }
    warnings.simplefilter("ignore", ColumnWarning)
    with one_thread():
        if options.part == "quality":
            cells = [(name, seed) for name in options.tables.split(",") for seed in range(options.seeds)]
            result["cells"] = []
            for name, seed in cells:
                result["cells"] += quality(name, seed)
                print(name, seed, flush=True)
        else:
            result["times"] = [timing(int(size), options.rounds) for size in options.sizes.split(",")]
    write(result, options.out)


if __name__ == "__main__":
    main()
