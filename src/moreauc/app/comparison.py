"""Comparison of methods on rows or bags by nested cross-validation, with equal tuning effort for each method.

Runs are parallelised by joblib: in loky processes by default, or by the backend of `joblib.parallel_config`, such as
`parallel_config(backend="dask")` for a Dask cluster. Results do not depend on the backend.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, TypedDict

import joblib  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata
from sklearn.base import ClassifierMixin
from sklearn.model_selection import StratifiedKFold

from moreauc._checks import NotFiniteError, check_count, check_region, floor_count
from moreauc._registry import (
    BASELINES,
    METHODS,
    MODELS,
    NETWORK_GRID,
    NETWORKS,
    OTHER_MODELS,
    Baseline,
    TaskName,
    every_method,
    load,
    method_names,
)
from moreauc._system import one_thread
from moreauc.app.baselines import scores_of
from moreauc.data.duplicates import Codes, any_equal, fold_together, number_equal, same_bags
from moreauc.data.tabular import Input, same_rows
from moreauc.metrics import tpauc_score
from moreauc.metrics.ranking import selection_scores, tied_share
from moreauc.tasks.bags import as_bags
from moreauc.tasks.base import Array

__all__ = ["Comparison"]

Region = tuple[float, float]
Options = dict[str, object]
Grid = Mapping[str, tuple[object, ...]]

_OWNER = "Comparison"


@dataclass(frozen=True)
class LabelledData:
    """Rows, or bags of instances, and their 0/1 labels."""

    X: Input | list[ArrayLike]  # array or DataFrame; or a list of bags
    positive: Array  # the labels
    split: tuple[Array, Array] | None = None  # training and test rows, where these are given
    # equal rows have equal numbers, from 0, and stay in one fold; None: equal rows are ignored, as in committed studies
    same: Codes | None = None

    def take(self, rows: Array) -> Any:
        """Return some of the rows or bags."""
        if isinstance(self.X, list):
            return [self.X[row] for row in rows]
        return self.X.iloc[rows] if hasattr(self.X, "iloc") else self.X[rows]

    def split_rows(self, folds: int, seed: int, fold: int) -> tuple[Array, Array]:
        """Return training and test rows: those given, or a stratified fold."""
        if self.split is not None:
            return self.split
        return self._folds(np.arange(len(self.positive)), folds, seed)[fold]

    def inner_rows(self, train: Array, folds: int, seed: int) -> list[tuple[Array, Array]]:
        """Return for each inner fold of training rows those to train on and those to choose by."""
        return [(train[a], train[b]) for a, b in self._folds(train, folds, seed)]

    def _folds(self, rows: Array, folds: int, seed: int) -> list[tuple[Array, Array]]:
        """Return stratified folds of some rows, as positions in `rows`."""
        labels = self.positive[rows]
        same = None if self.same is None else number_equal(self.same[rows])
        if same is None or not any_equal(same):
            return list(StratifiedKFold(folds, shuffle=True, random_state=seed).split(labels, labels))
        part = fold_together(same, labels, folds, np.random.RandomState(seed))
        return [(np.flatnonzero(part != fold), np.flatnonzero(part == fold)) for fold in range(folds)]

    def check_folds(self, folds: int, inner_folds: int, seeds: int, regions: Sequence[Region]) -> None:
        """Check that every region holds a row of either class in every fold, which equal rows may prevent."""
        if self.same is None or not any_equal(self.same):
            return
        shares = {1: min(1.0 - region[0] for region in regions), 0: min(region[1] for region in regions)}
        for seed, fold in product(range(seeds), range(folds)):
            train, test = self.split_rows(folds, seed, fold)
            for part in (test, *(others for _, others in self.inner_rows(train, inner_folds, seed))):
                if any(floor_count(int((self.positive[part] == k).sum()), share) < 1 for k, share in shares.items()):
                    raise ValueError(
                        f"Comparison: X must have enough different rows for {folds} folds with {inner_folds} inner "
                        f"ones, since equal rows stay together, got {int(self.same.max()) + 1} among {len(self.same)}; "
                        "take fewer folds"
                    )


@dataclass(frozen=True)
class Candidate:
    """A method that can be tuned.

    Attributes:
        name: its key.
        title: its name in tables.
        regional: whether its training depends on the region.
        grid: option -> values; the first of each is the default.
        make: (options, region, seed) -> an unfitted scikit-learn classifier.
    """

    name: str
    title: str
    regional: bool
    grid: Grid
    make: Callable[[Options, Region, int], ClassifierMixin]

    def draw(self, trials: int, seed: int) -> list[Options]:
        """Return the options of `trials` different trials: the defaults, then random draws from the grid.

        The values of an option are used in random order, each once before any is repeated (with three or more values
        the default comes last in the first round, since it has been tried). The order depends only on the name of the
        option and the seed, so that the networks of all losses try the same learning rates and weight decays, unless a
        repeated draw is skipped. A small grid may give fewer trials.
        """
        found = [{name: values[0] for name, values in self.grid.items()}]
        queues: dict[str, list[int]] = {name: [] for name in self.grid}
        randoms = {name: np.random.default_rng([seed, *name.encode()]) for name in self.grid}
        size = math.prod(len(values) for values in self.grid.values())
        while len(found) < min(trials, size):
            options = {}
            for name, values in self.grid.items():
                if not queues[name]:
                    order = randoms[name].permutation(len(values)).tolist()
                    if len(found) == 1 and len(values) > 2:
                        order = [number for number in order if number] + [0]
                    queues[name] = order
                options[name] = values[queues[name].pop(0)]
            if options not in found:
                found.append(options)
        return found

    def fit_and_score(
        self, options: Options, region: Region, table: LabelledData, rows: Array, others: Array, seed: int
    ) -> Array | None:
        """Train on `rows` of the table and return the scores of `others`; None where the training diverged."""
        estimator = self.make(options, region, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # trees warn a lot on small tables
            try:
                estimator.fit(table.take(rows), table.positive[rows])
                scores = scores_of(estimator, table.take(others))
            except NotFiniteError:
                return None
        return scores if np.isfinite(scores).all() else None


def candidates(names: Sequence[str | Candidate], **settings: object) -> list[Candidate]:
    """Return the candidates of these names.

    Args:
        names: methods of rows or bags, keys of :data:`moreauc.methods.METHODS`; for rows also "linear", "trees" and
            "auto" (:class:`~moreauc.TPAUCLinear`, `TPAUCBooster`, `TPAUCAuto`), "lr", "forest", "lightgbm"
            and "xgboost"; for bags "lr_bags" and "forest_bags"; candidates are returned unchanged.
        settings: arguments of :class:`~moreauc.TPAUCClassifier` or
            :class:`~moreauc.MultiInstanceClassifier` for all networks.

    Raises:
        ValueError: for an unknown name.
        ModuleNotFoundError: if boosted trees are requested and not installed; the message names the extra.

    Example:
        >>> [candidate.title for candidate in candidates(["sonx", "ce"])]
        ['SONX', 'CE']
    """
    others = {**BASELINES["rows"], **BASELINES["bags"]}
    chosen = []
    for name in names:
        if isinstance(name, Candidate):
            chosen.append(name)
        elif name in others:
            chosen.append(baseline("rows" if name in BASELINES["rows"] else "bags", name))
        elif name in OTHER_MODELS:
            model = MODELS[name]
            model.check_installed()
            chosen.append(Candidate(name, model.title, True, model.grid, partial(_make_model, model.maker)))
        elif name in METHODS["rows"] or name in METHODS["bags"]:
            chosen.append(network(name, settings=settings))
        else:
            known = [*method_names("rows"), *method_names("bags")]
            raise ValueError(f"candidates: names must be among {known}, got {name!r}")
    return chosen


def _every_row_method() -> tuple[str, ...]:
    names, lines = every_method("rows")
    for line in lines:
        warnings.warn(f"{_OWNER}: {line}", stacklevel=3)
    return names


def baseline(task: TaskName, name: str) -> Candidate:
    """Return a baseline of a task, key of `BASELINES[task]`; a missing package is a ModuleNotFoundError."""
    found = BASELINES[task][name]
    found.check_installed()
    return Candidate(name, found.title, False, found.grid, partial(_make_baseline, found))


def network(
    method: str,
    *,
    name: str | None = None,
    title: str | None = None,
    grid: Grid | None = None,
    settings: Mapping[str, object] | None = None,
) -> Candidate:
    """Return a candidate that trains a network with a loss of this package.

    A variant has a name, a title, and a grid of options of the loss; by default these are those of the method.
    `settings` are arguments of the classifier.

    Example:
        >>> variant = network("sonx", name="slow", title="SONX, slow", grid={"threshold_lr": (0.1,)})
        >>> variant.draw(1, seed=0)[0]["threshold_lr"]
        0.1
    """
    task: TaskName = "rows" if method in METHODS["rows"] else "bags"
    kind, found = load(NETWORKS[task]), METHODS[task][method]
    given = {"ensemble": 1, **(settings or {})}  # several would be fitted for each trial and fold
    if task == "bags":
        del given["ensemble"]
    every = {**_network_grid(kind), **(found.grid if grid is None else grid)}
    tuned = {option: values for option, values in every.items() if option not in given}
    make = partial(_make_network, kind, method, given)  # can be sent to another process
    return Candidate(name or method, title or found.title, found.regional, tuned, make)


def _network_grid(kind: Callable[..., ClassifierMixin]) -> Grid:
    """Return what all networks of an estimator are tuned over, its own defaults first."""
    defaults = kind().get_params()
    own = {name: defaults[name] for name in NETWORK_GRID}
    return {name: (own[name], *(value for value in NETWORK_GRID[name] if value != own[name])) for name in own}


def _make_model(kind: Callable[..., ClassifierMixin], options: Options, region: Region, seed: int) -> ClassifierMixin:
    return kind(min_tpr=region[0], max_fpr=region[1], random_state=seed, **options)


def _make_baseline(found: Baseline, options: Options, region: Region, seed: int) -> ClassifierMixin:
    return found.make(options, seed)


def _make_network(
    kind: Callable[..., ClassifierMixin], loss: str, settings: Options, options: Options, region: Region, seed: int
) -> ClassifierMixin:
    """Make the classifier of a loss; each option is an argument of the classifier or of the loss."""
    shared = {key: options[key] for key in kind().get_params() if key in options}
    own = {key: options[key] for key in options if key not in shared}
    return _make_model(kind, {"loss": loss, "loss_options": own, **settings, **shared}, region, seed)


class Record(TypedDict):
    """What a comparison measured of one method in one region and fold."""

    method: str
    region: Region
    seed: int
    fold: int
    score: float
    tied: float  # share of the region's rows with the score of a row of the other class
    inner_score: float
    options: Options
    seconds: float
    failures: int  # trials that diverged
    test_rows: list[int]  # of the first seed only
    test_scores: list[float]


class Row(TypedDict):
    """One method in one region, over all seeds and folds."""

    region: Region
    method: str
    title: str
    scores: list[float]
    mean: float
    std: float
    tied: float  # mean share of tied rows
    seconds: float
    rank: float  # among the methods


@dataclass(frozen=True)
class Comparison:
    r"""Nested cross-validation of several methods with equal tuning effort.

    For each seed the rows are split into stratified folds. In each fold every method has the same number of trials: its
    default options, then options drawn from its grid. A trial is scored by its mean TPAUC over inner stratified folds
    of the training rows; ties are broken by the TPAUC of a wider region, the AUC, then the gap between perfectly
    separated classes. The best trial (the first if several are equal) is refitted on all training rows and scores the
    test rows, which no choice depends on. Identical rows are kept in the same fold. Whether networks hold out rows to
    choose the epoch, or use all of them until the last epoch, is one of the options, as is the number of epochs.

    Args:
        methods: names as for `candidates`, or what it returns; all for rows, or all for bags. By default all methods
            for rows, with boosted trees if they are installed.
        regions: pairs `(min_tpr, max_fpr)`. Methods whose training does not depend on the region are trained once and
            scored in each.
        folds: outer folds, at least 2.
        inner_folds: inner folds, at least 2.
        seeds: repetitions with other folds, at least 1.
        trials: options tried by each method, at least 1.
        jobs: number of processes; 1 for that of `joblib.parallel_config`, or one process without it.
        settings: arguments of the classifier for all networks; these are not tuned.

    Example:
        >>> from sklearn.datasets import make_classification
        >>> X, y = make_classification(120, weights=[0.8], flip_y=0, random_state=0)
        >>> small = Comparison(["sonx", "ce"], folds=2, inner_folds=2, trials=1, jobs=1, settings={"module": "linear"})
        >>> result = small.run(X, y)
        >>> [(row["title"], len(row["scores"])) for row in result.rows]
        [('SONX', 2), ('CE', 2)]
    """

    methods: Sequence[str | Candidate] = field(default_factory=_every_row_method)
    regions: Sequence[Region] = ((0.5, 0.5),)
    folds: int = 5
    inner_folds: int = 3
    seeds: int = 1
    trials: int = 8
    jobs: int = 1
    settings: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("folds", "inner_folds"):
            check_count(_OWNER, name, getattr(self, name), minimum=2)
        for name in ("seeds", "trials", "jobs"):
            check_count(_OWNER, name, getattr(self, name))
        if not len(self.regions):
            raise ValueError(f"{_OWNER}: regions must not be empty, got {self.regions!r}")
        for region in self.regions:
            check_region(_OWNER, *region)
        names = [candidate.name for candidate in candidates(self.methods, **self._for_all)]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"{_OWNER}: methods must be names without repeats, at least one, got {names}")

    @property
    def _for_all(self) -> Options:
        """Settings of all networks; without tuning, the ensemble has its default size."""
        return {**({"ensemble": None} if self.trials == 1 else {}), **self.settings}

    def pieces(self) -> list[Piece]:
        """Return the pieces of work: one for each seed, fold and method (and region, if the training depends on it)."""
        pieces, methods = [], candidates(self.methods, **self._for_all)
        for seed, fold, candidate in product(range(self.seeds), range(self.folds), methods):
            groups = [(region,) for region in self.regions] if candidate.regional else [tuple(self.regions)]
            pieces += [Piece(candidate, regions, seed, fold) for regions in groups]
        return pieces

    def run(
        self, X: Input | list[ArrayLike], y: ArrayLike, *, progress: Callable[[int, int], None] | None = None
    ) -> ComparisonResult:
        """Compare on one table, or on bags.

        Args:
            X: array or DataFrame, as for :class:`~moreauc.TPAUCClassifier`; a list of arrays for bags.
            y: 0/1 labels, shape `(n,)`.
            progress: called with the pieces of work done and in all.

        Raises:
            ValueError: for labels other than 0/1, and if a class has so few distinct rows that a fold's region would be
                empty.
        """
        positive = np.asarray(y)
        self._check(positive)
        same = same_bags(as_bags(_OWNER, X)[0]) if isinstance(X, list) else same_rows(_OWNER, X)
        table = LabelledData(X, positive, same=same)
        table.check_folds(self.folds, self.inner_folds, self.seeds, self.regions)
        pieces, started = self.pieces(), time.perf_counter()
        finished: dict[int, list[Record]] = {}
        jobs = None if self.jobs == 1 else self.jobs  # None for joblib's configuration
        if joblib.effective_n_jobs(jobs) == 1:
            results = ((number, piece.tune_and_test(table, self)) for number, piece in enumerate(pieces))
        else:
            options = {"return_as": "generator_unordered", "pre_dispatch": "all", "batch_size": 1}
            calls = (joblib.delayed(_work)(number, piece, table, self) for number, piece in enumerate(pieces))
            results = joblib.Parallel(n_jobs=jobs, **options)(calls)
        for number, records in results:  # as they finish
            finished[number] = records
            if progress is not None:
                progress(len(finished), len(pieces))
        flat = [record for number in range(len(pieces)) for record in finished[number]]
        return ComparisonResult(self, positive, flat, time.perf_counter() - started)

    def _check(self, positive: Array) -> None:
        if positive.ndim != 1 or not np.isin(positive, (0, 1)).all():
            raise ValueError(f"{_OWNER}: y must be a vector of 0 and 1, got values {np.unique(positive)[:5].tolist()}")
        counts = {"positives": int((positive == 1).sum()), "negatives": int((positive == 0).sum())}
        for name, count in counts.items():
            share = min(1.0 - r[0] if name == "positives" else r[1] for r in self.regions)
            # the smaller of the smallest test fold and the smallest inner test fold
            smallest = min(count // self.folds, (count - math.ceil(count / self.folds)) // self.inner_folds)
            if floor_count(smallest, share) < 1:
                raise ValueError(
                    f"{_OWNER}: y must have enough {name} for {self.folds} folds with {self.inner_folds} inner ones, "
                    f"so that the region holds at least one in each, got {count}"
                )


@dataclass
class ComparisonResult:
    """What a comparison measured."""

    comparison: Comparison  # its settings
    positive: Array  # the labels
    records: list[Record]
    seconds: float  # how long it took

    @property
    def rows(self) -> list[Row]:
        """One row for each region and method."""
        rows: list[Row] = []
        for region in [(low, high) for low, high in self.comparison.regions]:  # pairs of any kind
            group: list[Row] = []
            for candidate in candidates(self.comparison.methods):
                own = [r for r in self.records if r["method"] == candidate.name and r["region"] == region]
                scores = [record["score"] for record in own]
                row: Row = {
                    "region": region,
                    "method": candidate.name,
                    "title": candidate.title,
                    "scores": scores,
                    "mean": float(np.mean(scores)),
                    "std": float(np.std(scores, ddof=1)),
                    "tied": float(np.mean([record["tied"] for record in own])),
                    "seconds": sum(record["seconds"] for record in own),
                    "rank": 0.0,
                }
                group.append(row)
            for row, rank in zip(group, rankdata([-row["mean"] for row in group]).tolist(), strict=True):
                row["rank"] = rank
            rows += group
        return rows

    def scores(self, region: Region | None = None) -> dict[str, Array]:
        """Return for each method's title a score of every row, from the fold that tested it (first seed).

        Models of different folds are brought together by ranks within the negatives of the fold.
        """
        min_tpr, max_fpr = self.comparison.regions[0] if region is None else region
        joined = {}
        for candidate in candidates(self.comparison.methods):
            values = np.full(len(self.positive), np.nan)
            for record in self.records:
                if (record["method"], record["region"], record["seed"]) == (candidate.name, (min_tpr, max_fpr), 0):
                    rows, scores = np.asarray(record["test_rows"]), np.asarray(record["test_scores"])
                    negatives = np.sort(scores[self.positive[rows] == 0])
                    below = np.searchsorted(negatives, scores, "left") + np.searchsorted(negatives, scores, "right")
                    values[rows] = below / (2.0 * len(negatives))
            joined[candidate.title] = values
        return joined

    def to_dict(self) -> dict[str, object]:
        """Return the settings, the rows and the records (without test scores) as plain data."""
        scores = ("test_rows", "test_scores")
        return {
            "plan": {name: getattr(self.comparison, name) for name in ("folds", "inner_folds", "seeds", "trials")},
            "positives": int((self.positive == 1).sum()),
            "negatives": int((self.positive == 0).sum()),
            "rows": self.rows,
            "records": [{key: entry for key, entry in one.items() if key not in scores} for one in self.records],
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class Piece:
    """A piece of work: one method in one fold, scored in one or more regions."""

    candidate: Candidate
    regions: tuple[Region, ...]
    seed: int
    fold: int

    def tune_and_test(self, table: LabelledData, plan: Comparison) -> list[Record]:
        """Tune the method on the training rows of the fold, and test what was chosen; one record for each region."""
        started = time.perf_counter()
        train, test = table.split_rows(plan.folds, self.seed, self.fold)
        parts = table.inner_rows(train, plan.inner_folds, self.seed)
        options = self.candidate.draw(plan.trials, self.seed)
        means = np.array([self._inner_scores(option, table, parts) for option in options])  # (trials, regions, 4)
        diverged = int(np.isnan(means).any(axis=(1, 2)).sum())
        means = np.where(np.isnan(means), -1.0, means)
        tested: dict[int, Array | None] = {}
        labels, records = table.positive[test], list[Record]()
        for column, region in enumerate(self.regions):
            for choice in np.lexsort(-means[:, column].T[::-1]).tolist():  # stable: the first of equal trials
                if choice not in tested:
                    tested[choice] = self.candidate.fit_and_score(
                        options[choice], region, table, train, test, self.seed
                    )
                scores = tested[choice]
                if scores is not None:
                    break
                diverged += 1
            else:
                raise ValueError(
                    f"{_OWNER}: every trial of {self.candidate.title} diverged in fold {self.fold}; are there columns "
                    "of very large numbers?"
                )
            records.append(
                {
                    "method": self.candidate.name,
                    "region": (region[0], region[1]),
                    "seed": self.seed,
                    "fold": self.fold,
                    "score": tpauc_score(labels, scores, min_tpr=region[0], max_fpr=region[1]),
                    "tied": tied_share(labels, scores, min_tpr=region[0], max_fpr=region[1]),
                    "inner_score": float(means[choice, column, 0]),
                    "options": options[choice],
                    "seconds": 0.0,
                    "failures": diverged,
                    "test_rows": test.tolist() if self.seed == 0 else [],
                    "test_scores": scores.tolist() if self.seed == 0 else [],
                }
            )
        for record in records:
            record["seconds"] = (time.perf_counter() - started) / len(records)
        return records

    def _inner_scores(self, option: Options, table: LabelledData, parts: Sequence[tuple[Array, Array]]) -> Array:
        """Return the mean selection scores over the inner folds, shape `(regions, 4)`; NaN where it diverged."""
        scores = []
        for rows, others in parts:
            values = self.candidate.fit_and_score(option, self.regions[0], table, rows, others, self.seed)
            if values is None:
                return np.full((len(self.regions), 4), math.nan)
            labels = table.positive[others]
            scores.append([selection_scores(labels, values, min_tpr=a, max_fpr=b) for a, b in self.regions])
        means: Array = np.mean(scores, axis=0)
        return means


def _work(number: int, piece: Piece, table: LabelledData, plan: Comparison) -> tuple[int, list[Record]]:
    """Run a piece of work on one thread: there are as many processes as cores."""
    with one_thread():
        return number, piece.tune_and_test(table, plan)
