"""Which of the epochs that are equal on the validation rows does best on test rows: earliest, latest, or widest gap.

Networks are trained by SONX; after every epoch validation and test rows are scored. Epochs are equal where the TPAUC at
(0.5, 0.5), that of the wider region and the AUC of the validation rows are. The rule of :func:`moreauc.train.fit` is
"gap": :func:`moreauc.metrics.ranking.selection_scores`, then the earliest.

`python benchmarks/epoch_choice.py --out FILE` writes the report. Tables of scikit-learn, and those of KEEL and ADBench
where the folder MOREAUC_DATA has them; no time is measured.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_pairs import write
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split

from experiments.data.keel import KEEL_SETS, load_keel
from moreauc.app.report.pages import versions
from moreauc.data import TensorBatches
from moreauc.data.schema import ColumnWarning
from moreauc.data.tabular import TableEncoder
from moreauc.methods import build
from moreauc.metrics import TiedScoresWarning, tpauc_score
from moreauc.metrics.ranking import selection_scores
from moreauc.models import MLP
from moreauc.samplers import PosNegSampler
from moreauc.train import Callback, TrainState, fit, predict_scores

REGION: dict[str, Any] = {"min_tpr": 0.5, "max_fpr": 0.5}
ADBENCH = ("20_letter", "24_mnist", "27_PageBlocks", "38_thyroid")
MOST_ROWS = 6000
Array = NDArray[Any]


class Recorder(Callback):
    """Keeps the validation scores and the test score of every epoch."""

    def __init__(self, validation: TensorBatches, test: TensorBatches) -> None:
        self.validation, self.test = validation, test
        self.seen: list[tuple[float, ...]] = []
        self.scores: list[float] = []

    def on_epoch(self, state: TrainState) -> None:
        """Score both parts."""
        scores, labels = predict_scores(state.model, self.validation)
        self.seen.append(selection_scores(labels.numpy(), scores.numpy(), **REGION))
        scores, labels = predict_scores(state.model, self.test)
        self.scores.append(tpauc_score(labels.numpy(), scores.numpy(), **REGION))


def tables(folder: str | None) -> dict[str, tuple[Any, Array]]:
    """Return tables and their 0/1 labels by name."""
    X, y = load_breast_cancer(return_X_y=True)
    digits, number = load_digits(return_X_y=True)
    found: dict[str, tuple[Any, Array]] = {"breast_cancer": (X, 1 - y), "digits, 9": (digits, (number == 9) * 1)}
    if folder is None:
        return found
    found |= {name: load_keel(name, Path(folder)) for name in KEEL_SETS}
    for name in ADBENCH:
        with np.load(Path(folder) / "adbench" / f"{name}.npz", allow_pickle=True) as file:
            found[name] = file["X"], file["y"].astype(np.int64)
    return found


def one_run(X: Any, y: Array, seed: int, epochs: int) -> dict[str, Any]:
    """Train once; return the test score of each rule, and how many epochs are equal."""
    rows = np.random.default_rng(0).permutation(len(y))[:MOST_ROWS]
    rest, test = train_test_split(rows, test_size=0.4, stratify=y[rows], random_state=seed)
    train, held = train_test_split(rest, test_size=0.2, stratify=y[rest], random_state=seed)
    table = TableEncoder().fit(X, rows=train).transform(X)
    parts = [(torch.tensor(table[part], dtype=torch.float32), torch.tensor(y[part])) for part in (train, held, test)]
    torch.manual_seed(seed)
    model, labels = MLP(parts[0][0].shape[1]), parts[0][1]
    sampler = PosNegSampler(labels, num_positives=min(32, int(labels.sum())), num_negatives=96, seed=seed)
    recorder = Recorder(TensorBatches(*parts[1]), TensorBatches(*parts[2]))
    criterion = build("rows", "sonx", labels, **REGION)
    options: dict[str, Any] = {"epochs": epochs, "optimizer": "adam", "lr": 0.001, "seed": seed}
    fit(model, criterion, TensorBatches(*parts[0], sampler), callbacks=[recorder], **options)
    best = max(seen[:3] for seen in recorder.seen)
    equal = [epoch for epoch, seen in enumerate(recorder.seen) if seen[:3] == best]
    chosen = {"earliest": equal[0], "latest": equal[-1], "gap": max(equal, key=lambda epoch: recorder.seen[epoch][3])}
    return {"equal": len(equal), "auc": best[2], **{rule: recorder.scores[epoch] for rule, epoch in chosen.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, (X, y) in tables(os.environ.get("MOREAUC_DATA")).items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TiedScoresWarning)
            warnings.simplefilter("ignore", ColumnWarning)
            runs = [one_run(X, y, seed, options.epochs) for seed in range(options.seeds)]
        row: dict[str, Any] = {"table": name, "runs": len(runs), "with equal epochs": sum(r["equal"] > 1 for r in runs)}
        for rule in ("earliest", "latest", "gap"):
            scores = [run[rule] for run in runs]
            row[rule] = {"mean": float(np.mean(scores)), "std": float(np.std(scores, ddof=1)) if runs[1:] else 0.0}
        rows.append(row)
        print(
            name,
            row["with equal epochs"],
            {rule: round(row[rule]["mean"], 4) for rule in ("earliest", "latest", "gap")},
        )
    result: dict[str, Any] = {
        "title": "Test TPAUC of epochs that are equal on the validation rows",
        "command": f"python benchmarks/epoch_choice.py --seeds {options.seeds} --epochs {options.epochs}",
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d"),
        "device": f"{platform.machine()}, float32",
        "tables": rows,
    }
    write(result, options.out)


if __name__ == "__main__":
    main()
