"""Nested cross-validation of several methods, several processes wide."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from moreauc._checks import check_count, check_region, floor_count
from moreauc.comparison._contestants import (
    Contestant,
    Options,
    Region,
    contestants,
)
from moreauc.comparison._table import Table
from moreauc.data.tabular import same_rows
from moreauc.metrics import tied_share, tpauc_score
from moreauc.metrics.selection import selection_scores

_OWNER = "Comparison"
_DEFAULT = ("sonx", "ce", "ce_weighted", "auc_sh", "auc_m", "mb", "aw_poly", "sota_s")


@dataclass(frozen=True)
class Comparison:
    r"""A comparison under equal effort.

    For each seed the rows are cut into stratified folds. In each fold every method has the same number of trials: its
    default options, then options drawn from its grid. A trial is judged by its mean TPAUC over inner stratified folds
    of the training rows, trials of one TPAUC by that of a wider region, by the AUC, then by the gap between classes
    that are wholly in order; the best trial (the first of equals) is trained again on all of them and scores the test
    rows, which nothing was chosen by. Equal rows stay together in all folds. Networks train without early choice;
    their epochs are among the options.

    Args:
        methods: keys of :data:`moreauc.methods.METHODS`, "lightgbm", "xgboost", or contestants of your own.
        regions: pairs `(min_tpr, max_fpr)`. Methods that do not know a region are trained once and judged in each.
        folds: outer folds, at least 2.
        inner_folds: inner folds, at least 2.
        seeds: repetitions with other folds, at least 1.
        trials: options tried by each method, at least 1.
        jobs: processes.
        settings: arguments of :class:`~moreauc.estimators.TPAUCClassifier` for all networks.

    Example:
        >>> from sklearn.datasets import make_classification
        >>> X, y = make_classification(120, weights=[0.8], flip_y=0, random_state=0)
        >>> small = Comparison(["sonx", "ce"], folds=2, inner_folds=2, trials=1, jobs=1, settings={"module": "linear"})
        >>> result = small.run(X, y)
        >>> [(row["title"], len(row["scores"])) for row in result.rows]
        [('SONX', 2), ('CE', 2)]
    """

    methods: Sequence[str | Contestant] = _DEFAULT
    regions: Sequence[Region] = ((0.5, 0.5),)
    folds: int = 5
    inner_folds: int = 3
    seeds: int = 1
    trials: int = 8
    jobs: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("folds", "inner_folds"):
            check_count(_OWNER, name, getattr(self, name), minimum=2)
        for name in ("seeds", "trials", "jobs"):
            check_count(_OWNER, name, getattr(self, name))
        if not len(self.regions):
            raise ValueError(f"{_OWNER}: regions must not be empty, got {self.regions!r}")
        for region in self.regions:
            check_region(_OWNER, *region)
        names = [contestant.name for contestant in contestants(self.methods, **self.settings)]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"{_OWNER}: methods must be names without repeats, at least one, got {names}")

    def tasks(self) -> list[Task]:
        """Return the pieces of work: one for each seed, fold and method (and region, where the method knows one)."""
        pieces = []
        for seed in range(self.seeds):
            for fold in range(self.folds):
                for contestant in contestants(self.methods, **self.settings):
                    groups = [(region,) for region in self.regions] if contestant.regional else [tuple(self.regions)]
                    pieces += [Task(contestant, regions, seed, fold) for regions in groups]
        return pieces

    def run(self, X: Any, y: ArrayLike, *, progress: Callable[[int, int], None] | None = None) -> ComparisonResult:
        """Compare on one table.

        Args:
            X: array or DataFrame, as for :class:`~moreauc.estimators.TPAUCClassifier`.
            y: 0/1 labels, shape `(n,)`.
            progress: called with the pieces of work done and in all.

        Raises:
            ValueError: for labels other than 0/1, and where so few rows of a class differ that a fold's region would be
                empty.
        """
        positive = np.asarray(y)
        self._check(positive)
        table = Table(X, positive, same=same_rows(_OWNER, X))
        table.check_folds(self.folds, self.inner_folds, self.seeds, self.regions)
        tasks, started = self.tasks(), time.perf_counter()
        finished: dict[int, list[dict[str, Any]]] = {}
        work = [(task, "") for task in tasks]
        for number, records in run_tasks(work, {"": table}, self, jobs=self.jobs):
            finished[number] = records
            if progress is not None:
                progress(len(finished), len(tasks))
        flat = [record for number in range(len(tasks)) for record in finished[number]]
        return ComparisonResult(self, positive, flat, time.perf_counter() - started)

    def _check(self, positive: NDArray[Any]) -> None:
        if positive.ndim != 1 or not np.isin(positive, (0, 1)).all():
            raise ValueError(f"{_OWNER}: y must be a vector of 0 and 1, got values {np.unique(positive)[:5].tolist()}")
        counts = {"positives": int((positive == 1).sum()), "negatives": int((positive == 0).sum())}
        for name, count in counts.items():
            share = min(1.0 - r[0] if name == "positives" else r[1] for r in self.regions)
            # the smallest test fold, and the smallest inner one of the smallest training part
            smallest = min(count // self.folds, (count - math.ceil(count / self.folds)) // self.inner_folds)
            if floor_count(smallest, share) < 1:
                raise ValueError(
                    f"{_OWNER}: y must have enough {name} for {self.folds} folds with {self.inner_folds} inner ones, "
                    f"so that the region holds at least one in each, got {count}"
                )


@dataclass(frozen=True)
class Task:
    """One method in one fold."""

    contestant: Contestant
    regions: tuple[Region, ...]
    seed: int
    fold: int


@dataclass
class ComparisonResult:
    """What a comparison measured.

    Attributes:
        comparison: its settings.
        positive: the labels.
        records: one dictionary for each method, region, seed and fold: `score`, `tied` (see
            :func:`~moreauc.metrics.tied_share`), `options`, `inner_score`, `seconds`, `failures` (trials that diverged)
            and, for the first seed, `test_rows` and `test_scores`.
        seconds: how long it took.
    """

    comparison: Comparison
    positive: NDArray[Any]
    records: list[dict[str, Any]]
    seconds: float

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row for each region and method: scores, mean, std, mean share of tied rows, rank among the methods."""
        rows: list[dict[str, Any]] = []
        for region in self.comparison.regions:
            group: list[dict[str, Any]] = []
            for contestant in contestants(self.comparison.methods):
                own = [r for r in self.records if r["method"] == contestant.name and r["region"] == tuple(region)]
                scores = [record["score"] for record in own]
                row: dict[str, Any] = {
                    "region": tuple(region),
                    "method": contestant.name,
                    "title": contestant.title,
                    "scores": scores,
                }
                row |= {"mean": float(np.mean(scores)), "std": float(np.std(scores, ddof=1))}
                row["tied"] = float(np.mean([record["tied"] for record in own]))
                group.append(row | {"seconds": sum(record["seconds"] for record in own)})
            ranks = rankdata([-row["mean"] for row in group])
            rows += [row | {"rank": float(rank)} for row, rank in zip(group, ranks, strict=True)]
        return rows

    def scores(self, region: Region | None = None) -> dict[str, NDArray[Any]]:
        """Return for each method's title a score of every row, from the fold that tested it (first seed).

        Models of different folds are brought together by ranks within the negatives of the fold.
        """
        min_tpr, max_fpr = self.comparison.regions[0] if region is None else region
        joined = {}
        for contestant in contestants(self.comparison.methods):
            values = np.full(len(self.positive), np.nan)
            for record in self.records:
                if (record["method"], record["region"], record["seed"]) == (contestant.name, (min_tpr, max_fpr), 0):
                    rows, scores = np.asarray(record["test_rows"]), np.asarray(record["test_scores"])
                    negatives = np.sort(scores[self.positive[rows] == 0])
                    below = np.searchsorted(negatives, scores, "left") + np.searchsorted(negatives, scores, "right")
                    values[rows] = below / (2.0 * len(negatives))
            joined[contestant.title] = values
        return joined

    def to_dict(self) -> dict[str, Any]:
        """Return the settings, the rows and the records (without test scores) as plain data."""
        keep = ("method", "region", "seed", "fold", "score", "tied", "inner_score", "options", "seconds", "failures")
        plan = {name: getattr(self.comparison, name) for name in ("folds", "inner_folds", "seeds", "trials")}
        return {
            "plan": plan,
            "positives": int((self.positive == 1).sum()),
            "negatives": int((self.positive == 0).sum()),
            "rows": self.rows,
            "records": [{name: record[name] for name in keep} for record in self.records],
            "seconds": self.seconds,
        }


def run_tasks(
    work: Sequence[tuple[Task, str]], tables: Mapping[str, Table], plan: Comparison, *, jobs: int
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Do pieces of work, each a task and the name of its table; yield their numbers and records as they finish."""
    if jobs == 1:
        for number, (task, name) in enumerate(work):
            yield number, tune_and_test(task, tables[name], plan)
        return
    # a forked child of a process that has used torch's threads may hang
    context = get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _begin_worker, (dict(tables), plan)) as pool:
        futures = {pool.submit(_work, task, name): number for number, (task, name) in enumerate(work)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


_worker: tuple[Mapping[str, Table], Comparison] | None = None  # what a worker process was given at its start


def _begin_worker(tables: Mapping[str, Table], plan: Comparison) -> None:
    """Let a worker process use one core (there are as many of them as cores), and give it the tables."""
    global _worker
    torch.set_num_threads(1)
    _worker = (tables, plan)


def _work(task: Task, name: str) -> list[dict[str, Any]]:
    if _worker is None:
        raise RuntimeError("this is for worker processes only")
    tables, plan = _worker
    return tune_and_test(task, tables[name], plan)


def tune_and_test(task: Task, table: Table, plan: Comparison) -> list[dict[str, Any]]:
    """Tune a method on the training rows of one split, and test what was chosen; one record for each region."""
    started = time.perf_counter()
    positive = table.positive
    train, test = table.split_rows(plan.folds, task.seed, task.fold)
    parts = table.inner_rows(train, plan.inner_folds, task.seed)
    options = task.contestant.draw(plan.trials, task.seed)
    means = np.array([_inner_scores(task, option, table, parts) for option in options])  # (trials, regions, 4)
    failures = int(np.isnan(means).any(axis=(1, 2)).sum())
    means = np.where(np.isnan(means), -1.0, means)
    cache: dict[int, NDArray[Any] | None] = {}
    records = []
    for column, region in enumerate(task.regions):
        for choice in np.lexsort(-means[:, column].T[::-1]):  # stable: of equals the first
            if int(choice) not in cache:
                cache[int(choice)] = _scores(task, options[choice], region, table, train, test)
            scores = cache[int(choice)]
            if scores is not None:
                break
            failures += 1
        else:
            raise ValueError(
                f"{_OWNER}: every trial of {task.contestant.title} diverged in fold {task.fold}; are there columns of "
                "very large numbers?"
            )
        records.append(
            {
                "method": task.contestant.name,
                "region": tuple(region),
                "seed": task.seed,
                "fold": task.fold,
                "score": tpauc_score(positive[test], scores, min_tpr=region[0], max_fpr=region[1]),
                "tied": tied_share(positive[test], scores, min_tpr=region[0], max_fpr=region[1]),
                "inner_score": float(means[choice, column, 0]),
                "options": options[choice],
                "failures": failures,
                "test_rows": test.tolist() if task.seed == 0 else [],
                "test_scores": scores.tolist() if task.seed == 0 else [],
            }
        )
    spent = (time.perf_counter() - started) / len(records)
    return [record | {"seconds": spent} for record in records]


def _inner_scores(task: Task, option: Options, table: Table, parts: Sequence[Any]) -> NDArray[Any]:
    """Return the mean over the inner folds of what trials are chosen by, `(regions, 4)`; NaN where it diverged."""
    scores = []
    for rows, others in parts:
        values = _scores(task, option, task.regions[0], table, rows, others)
        if values is None:
            return np.full((len(task.regions), 4), math.nan)
        labels = table.positive[others]
        scores.append([selection_scores(labels, values, min_tpr=a, max_fpr=b) for a, b in task.regions])
    means: NDArray[Any] = np.mean(scores, axis=0)
    return means


def _scores(task: Task, option: Options, region: Region, table: Table, rows: Any, others: Any) -> NDArray[Any] | None:
    """Return the scores of `others` by a model of `rows`, or None where the training diverged."""
    try:
        scores = task.contestant.fit_and_score(option, region, table.X, table.positive, rows, others, task.seed)
    except ValueError as error:
        if "finite" not in str(error):
            raise
        return None
    return scores if np.isfinite(scores).all() else None
