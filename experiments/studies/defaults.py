"""Our estimators with default settings beside logistic regression and trees, default and tuned, on many tables.

Three plans: "defaults", where half of the tables choose the defaults and the other half confirms them; "screening",
fingerprints of molecules, with the scores that chemists look at; "bag_defaults", bags of instances.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.utils import get_tags
from threadpoolctl import threadpool_limits

from experiments.config import combinations
from experiments.data.fingerprints import FINGERPRINT_SETS, load_fingerprints
from experiments.data.tables import load_table
from experiments.engine import Record, Setup, Study, Task
from experiments.studies.defaults_entries import ENTRIES, Entry, Model
from experiments.studies.defaults_page import make_page
from moreauc.app.comparison import LabelledData, Region
from moreauc.app.report.pages import Report
from moreauc.metrics import bedroc_score, enrichment_factor, tpauc_score

_FEW = ("sonx", "linear", "ce", "lr", "lr_tuned")  # of the tiny version
TOPS = (0.001, 0.01, 0.05)  # shares of the molecules whose enrichment is noted
_INNER = 0.25  # of the training rows, to tune by


@dataclass(frozen=True, kw_only=True)
class DefaultsStudy(Study):
    """TPAUC, AUC and seconds of every candidate on every table.

    Args:
        regions: pairs of the lowest TPR and the highest FPR.
        test_fraction: share of the rows to test on.
        most_rows: larger tables are sampled down to this many rows.
        parts: tables by part; ranks and tests are made for each.
        methods: names of candidates.
        unranked: candidates that lack runs of some tables: compared on those they have, without changing the ranks.
    """

    regions: tuple[Region, ...]
    test_fraction: float
    most_rows: int
    parts: Mapping[str, tuple[str, ...]]
    methods: tuple[str, ...]
    unranked: tuple[str, ...] = ()
    planned: ClassVar = ("test_fraction", "most_rows")

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables of all parts."""
        return tuple(name for names in self.parts.values() for name in names)

    def smoke(self) -> DefaultsStudy:
        """Return a version with a made table in each part, one seed and few candidates."""
        made = {part: (f"made {number}",) for number, part in enumerate(self.parts)}
        return replace(self, seeds=1, parts=made, methods=_FEW, unranked=())

    def tasks(self, setup: Setup) -> list[Task]:
        """Return a task for each seed, table, candidate and, where its training depends on it, region."""
        tasks = []
        for at in combinations(seed=range(self.seeds), dataset=self.tables, method=self.methods):
            entry, dataset, seed = ENTRIES[at["method"]], at["dataset"], at["seed"]
            if seed and not entry.random and dataset in FINGERPRINT_SETS:
                continue  # would be the same again
            for regions in [(region,) for region in self.regions] if entry.regional else [self.regions]:
                name = "{:g}, {:g}".format(*regions[0]) if entry.regional else "all"
                place = {"dataset": dataset, "method": at["method"], "region": name, "seed": seed}
                options = {"dataset": dataset, "method": at["method"], "seed": seed, "regions": regions}
                where = {"folder": setup.data, "device": setup.device}
                tasks.append(Task(place, run_candidate, {**options, **self.plan, **where}))
        return tasks

    def prepare(self, tasks: Sequence[Task]) -> None:
        """Make the fingerprints once, in the cache."""
        files = {
            FINGERPRINT_SETS[name][0]: name for name in (t.place["dataset"] for t in tasks) if name in FINGERPRINT_SETS
        }
        for name in files.values():
            load_fingerprints(name, tasks[0].options["folder"])

    def report(self, records: Sequence[Record], out: Path) -> Report:
        """Return ranks, paired tests and scores of the tables that have records of all candidates."""
        return make_page(self, records, out)


def run_candidate(
    *,
    dataset: str,
    method: str,
    seed: int,
    regions: tuple[Region, ...],
    test_fraction: float,
    most_rows: int,
    folder: Path | None,
    device: str = "cpu",
) -> Record:
    """Train a candidate, tuned where it has several settings, and score it on the test rows in each region.

    Networks are trained on the device. Molecules are also scored by what the top of their list holds.
    """
    entry, table = ENTRIES[method], split_table(dataset, seed, test_fraction, most_rows, folder)
    train, test = table.split_rows(0, 0, 0)
    trained: dict[int, tuple[NDArray[Any], float]] = {}
    tuned = _tune(entry, table, train, regions, seed) if len(entry.settings) > 1 else ([0] * len(regions), 0.0)
    results = []
    for region, number in zip(regions, tuned[0], strict=True):
        if number not in trained:
            options = {**entry.settings[number], **({"device": device} if entry.network else {})}
            trained[number] = _fit(entry.make(options, region, seed, issparse(table.X)), table, train, test)
        scores, seconds = trained[number]
        found = {"region": region, **_scores_in(table.positive[test], scores, region), "seconds": tuned[1] + seconds}
        if dataset in FINGERPRINT_SETS:
            found |= _top_scores(table.positive[test], scores)
        results.append({**found, "distinct": len(np.unique(scores)), "setting": dict(entry.settings[number])})
    return {"results": results, "test_rows": len(test), "test_positives": int(table.positive[test].sum())}


def _tune(
    entry: Entry, table: LabelledData, train: NDArray[Any], regions: Sequence[Region], seed: int
) -> tuple[list[int], float]:
    """Return the number of the best setting for each region, by validation rows, and the seconds of all fits."""
    labels = table.positive
    rows, others = train_test_split(train, test_size=_INNER, stratify=labels[train], random_state=seed)
    makes = [entry.make(options, regions[0], seed, issparse(table.X)) for options in entry.settings]
    found = [_fit(model, table, rows, others) for model in makes]
    scored = [[tuple(_scores_in(labels[others], scores, region).values()) for scores, _ in found] for region in regions]
    best = [max(range(len(own)), key=lambda number, own=own: own[number]) for own in scored]  # type: ignore[misc]
    return best, sum(seconds for _, seconds in found)


def _scores_in(labels: NDArray[Any], scores: NDArray[Any], region: Region) -> dict[str, float]:
    tpauc = tpauc_score(labels, scores, min_tpr=region[0], max_fpr=region[1])
    return {"tpauc": tpauc, "auc": float(roc_auc_score(labels, scores))}


def _top_scores(labels: NDArray[Any], scores: NDArray[Any]) -> Record:
    factors = {f"{share:.1%}": enrichment_factor(labels, scores, fraction=share) for share in TOPS}
    return {"enrichment": factors, "bedroc": bedroc_score(labels, scores)}


def _fit(model: Model, table: LabelledData, rows: NDArray[Any], others: NDArray[Any]) -> tuple[NDArray[Any], float]:
    """Train on `rows`; return the scores of `others` and the processor's seconds of both, on one thread."""
    X, Z = table.take(rows), table.take(others)
    if issparse(X) and not get_tags(model).input_tags.sparse:
        X, Z = X.toarray(), Z.toarray()
    began = time.process_time()  # does not depend on what else runs on the machine
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, table.positive[rows])
        scores = model.decision_function(Z) if hasattr(model, "decision_function") else model.predict_proba(Z)[:, 1]
    return np.asarray(scores), time.process_time() - began


def split_table(dataset: str, seed: int, test_fraction: float, most_rows: int, folder: Path | None) -> LabelledData:
    """Return a table with its training and test rows: of fingerprints by scaffold, of others drawn by the seed."""
    whole = load_table(dataset, folder)
    if whole.split is not None:
        return whole
    rows, labels = np.arange(len(whole.positive)), whole.positive
    if len(rows) > most_rows:
        rows = train_test_split(rows, train_size=most_rows, stratify=labels, random_state=seed)[0]
    train, test = train_test_split(rows, test_size=test_fraction, stratify=labels[rows], random_state=seed)
    return replace(whole, split=(np.sort(train), np.sort(test)))
