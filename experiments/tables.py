"""From the records of runs to cells of tables and points of curves: means, spreads, wins, paired tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata, wilcoxon

from experiments.config import Candidate, DataSet, Experiment, Setting
from experiments.engine import Record

Numbers = NDArray[np.float64]
Protocol = Literal["runs", "splits"]
Choice = Literal["chosen", "chosen_paper", "chosen_smoothed"]
Published = tuple[float, float]
_EXACT = 16  # differences whose signs are all enumerated
_OF_START = ("pretrain_epochs", "pretrain_lr", "weight_decay")  # what the weights to start from depend on
_EQUAL = 1e-9  # smaller differences of scores are rounding errors


@dataclass(frozen=True)
class Records:
    """The records of an experiment by kind.

    Attributes:
        runs: in the order of the plan.
        curves: training curves.
        starts: weights that runs start from, those that were made as the plan says.
        left_out: keys of runs outside the plan.
        half: number of runs that count ties as one half, as the first runs did.
    """

    runs: list[Record]
    curves: list[Record] = field(default_factory=list)
    starts: list[Record] = field(default_factory=list)
    left_out: tuple[str, ...] = ()
    half: int = 0


def sort_records(plan: Experiment, records: Sequence[Record]) -> Records:
    """Sort checked records by kind.

    Raises:
        ValueError: if there is no run of the plan, or methods of one run had other data.
    """
    every = [record for record in records if record["kind"] == "run"]
    runs = [record for record in every if belongs(plan, record)]
    if not runs:
        raise ValueError(f"report {plan.name}: out must hold runs of {plan.name}, got none that belong to its plan")
    known: dict[tuple[Any, ...], Any] = {}
    for record in (record for record in runs if "data" in record):  # the first runs did not say which data
        data = known.setdefault((record["dataset"], record["split"], record["run"]), record["data"])
        if data != record["data"]:
            raise ValueError(f"report {plan.name}: {record['key']} must have the data {data}, got {record['data']}")
    datasets, methods = list(plan.datasets), list(plan.candidates)
    runs.sort(key=lambda r: (datasets.index(r["dataset"]), methods.index(r["method"]), r["split"], r["run"]))
    shown = () if plan.ablation is None else plan.ablation.datasets
    return Records(
        runs,
        [record for record in records if record["kind"] == "ablation" and record["dataset"] in shown],
        [record for record in records if record["kind"] == "start" and _is_planned(plan, record)],
        tuple(record["key"] for record in every if not belongs(plan, record)),
        sum("ties" not in record for record in runs),
    )


def _is_planned(plan: Experiment, start: Record) -> bool:
    """Return whether weights to start from were made as the plan says."""
    wanted, found = asdict(plan.training), start["plan"]["training"]
    if "of" in start:
        wanted, found = {**wanted, **({} if plan.recipe is None else asdict(plan.recipe))}, start["made"]
    return all(found.get(name) == wanted[name] for name in _OF_START)


def belongs(plan: Experiment, record: Record) -> bool:
    """Return whether a record is of a run of the plan."""
    dataset = plan.datasets.get(record["dataset"])
    known = dataset is not None and record["method"] in plan.candidates and record["split"] < dataset.splits
    # there are as many folds as the plan says; seeds may be more
    return known and (plan.name == "molecules" or record["run"] < plan.runs)


@dataclass(frozen=True)
class Cell:
    """A method on a data set in a region.

    Attributes:
        values: test TPAUC by run; by test split, each the mean over its folds, in the table of splits.
        planned: how many values are planned.
        published: published mean and standard deviation.
        wins: values that no method of the paper exceeds, of the runs that all of these have; one without a value loses.
            Recipe rows are counted among themselves.
        lost: runs that are there but have no value, or splits with such a run.
        error: of recipe rows, standard error of the difference to the start over test rows, the root of its mean square
            over runs; None for others.
        positives: test positives, the mean over runs.
        plain: of recipe rows, mean test TPAUC of the best validation epoch, without the rule of the standard error.
    """

    values: Mapping[int, float]
    planned: int
    published: Published | None = None
    wins: int = 0
    lost: frozenset[int] = frozenset()
    error: float | None = None
    positives: float = 0.0
    plain: float | None = None

    @property
    def mean(self) -> float | None:
        """Mean of the values; None without any."""
        return float(np.mean(list(self.values.values()))) if self.values else None

    @property
    def std(self) -> float | None:
        """Standard deviation of the values, with n - 1 below; None for fewer than two."""
        return float(np.std(list(self.values.values()), ddof=1)) if len(self.values) > 1 else None

    @property
    def failed(self) -> int:
        """How many have no value: as a rule every setting diverged before it could be scored."""
        return len(self.lost)

    @property
    def there(self) -> int:
        """How many values there are, and how many runs without one."""
        return len(self.values) + self.failed

    @property
    def complete(self) -> bool:
        """Whether there are as many values as planned, or more; runs without one are there, too."""
        return self.there >= self.planned


@dataclass(frozen=True)
class PairedTest:
    """A method of ours beside a baseline, over the runs or splits that both have.

    Attributes:
        number: pairs.
        difference: mean of ours less the other.
        better: pairs in which ours is better.
        p: two-sided p-value of the signed-rank test; 1 where all pairs are equal, None without a pair.
    """

    number: int
    difference: float | None
    better: int
    p: float | None


@dataclass(frozen=True)
class Table:
    """The cells of a protocol.

    Attributes:
        plan: the experiment.
        protocol: "runs" for the runs of the first test split, "splits" for all test splits.
        choice: rule of choice: "chosen" by single epochs, "chosen_smoothed" by the mean of several, "chosen_paper" by
            single epochs of settings that are also in the paper's grid.
        datasets: the data sets that take part.
        cells: by data set, method and region.
        starts: by data set, region and whether of recipe rows, of the weights that all methods start from, where they
            were scored.
        run: data sets and methods that have a run, whether it was chosen from this way or not.
    """

    plan: Experiment
    protocol: Protocol
    choice: Choice
    datasets: tuple[DataSet, ...]
    cells: Mapping[tuple[str, str, int], Cell]
    starts: Mapping[tuple[str, int, bool], Cell] = field(default_factory=dict)
    run: frozenset[tuple[str, str]] = frozenset()

    def cell(self, dataset: str, method: str, column: int) -> Cell:
        """Return a cell; one without values where no run is there."""
        return self.cells[dataset, method, column]

    @property
    def methods(self) -> list[Candidate]:
        """The methods as rows: those of the paper, the remedies, then those by the recipe, with their one choice."""
        entries = [entry for entry in self.plan.candidates.values() if self.choice == "chosen" or not entry.recipe]
        return sorted(entries, key=lambda entry: (entry.recipe, entry.remedy))

    def run_on(self, dataset: str) -> list[Candidate]:
        """The methods that make a row for a data set: those with published numbers for it, and those that were run."""
        published = self.plan.datasets[dataset].published or {}
        return [entry for entry in self.methods if entry.name in published or (dataset, entry.name) in self.run]

    def number(self, dataset: str) -> int:
        """Return how many values a cell of a data set should have: as planned, or more where all that have some do."""
        cells = [cell for key, cell in self.cells.items() if key[0] == dataset]
        return max(cells[0].planned, min((cell.there for cell in cells if cell.there), default=0))

    def has_runs(self, dataset: str) -> bool:
        """Return whether a data set has a run in any cell, with a value or without."""
        return any(cell.there for key, cell in self.cells.items() if key[0] == dataset)

    @property
    def literal(self) -> list[str]:
        """Our methods as in the paper."""
        return [entry.name for entry in self.methods if is_ours(entry) and entry.literal]

    @property
    def recipes(self) -> list[str]:
        """Our methods by the recipe."""
        return [entry.name for entry in self.methods if is_ours(entry) and entry.recipe]

    def baselines(self, ours: str) -> list[str]:
        """Return the methods to be compared with one of ours: those of the paper, or those by the recipe."""
        recipe = self.plan.candidates[ours].recipe
        return [
            entry.name for entry in self.methods if not is_ours(entry) and entry.recipe == recipe and not entry.remedy
        ]

    def test(self, ours: str, baseline: str, dataset: str, column: int) -> PairedTest:
        """Return the paired test of one of our methods against a baseline."""
        one, other = (self.cell(dataset, name, column).values for name in (ours, baseline))
        common = sorted(set(one) & set(other))
        if not common:
            return PairedTest(0, None, 0, None)
        differences = np.array([one[unit] - other[unit] for unit in common])
        better = int((differences > _EQUAL).sum())
        return PairedTest(len(common), float(differences.mean()), better, signed_rank(differences))


def title_of(entry: Candidate) -> str:
    """Return the name of a method in tables and figures; remedies and those by the recipe are marked."""
    return entry.title + ("†" if entry.remedy else "‡" if entry.recipe else "")


def is_ours(entry: Candidate) -> bool:
    """Return whether a method is SONX or SONT."""
    return entry.preset.startswith(("sonx", "sont"))


def make_table(
    plan: Experiment, records: Sequence[Record], protocol: Protocol = "runs", choice: Choice = "chosen"
) -> Table:
    """Make the cells of a protocol; see :class:`Table`.

    With "splits" a value is the mean over the folds of a test split, if all of them are there.
    """
    datasets = tuple(entry for entry in plan.datasets.values() if protocol == "runs" or entry.splits > 1)
    used = [record for record in records if protocol == "splits" or record["split"] == 0]
    cells: dict[tuple[str, str, int], Cell] = {}
    starts = {}
    for dataset, column in product(datasets, range(len(plan.regions))):
        own = [record for record in used if record["dataset"] == dataset.name and choice in record]
        row = {}
        for name in plan.candidates:
            there = [record for record in own if record["method"] == name]
            row[name] = _cell(plan, dataset, name, column, there, protocol, choice)
        cells |= {(dataset.name, name, column): cell for name, cell in _with_wins(plan, row).items()}
    for recipe, dataset, column in product((False, True), datasets, range(len(plan.regions))):
        found = {  # which all methods of a run share
            (record["split"], record["run"]): record["start"][column]["test"]
            for record in used
            if record["dataset"] == dataset.name and "start" in record
            if plan.candidates[record["method"]].recipe == recipe
        }
        values, _ = _by_unit(plan, [(*place, score) for place, score in sorted(found.items())], protocol)
        if values:
            starts[dataset.name, column, recipe] = Cell(values, plan.runs if protocol == "runs" else dataset.splits)
    run = frozenset((record["dataset"], record["method"]) for record in used)
    return Table(plan, protocol, choice, datasets, cells, starts, run)


def _cell(
    plan: Experiment,
    dataset: DataSet,
    method: str,
    column: int,
    records: list[Record],
    protocol: Protocol,
    choice: Choice,
) -> Cell:
    scores = [(record["split"], record["run"], record[choice][column]["test"]) for record in records]
    values, lost = _by_unit(plan, scores, protocol)
    published = (dataset.published or {}).get(method)
    errors = [record[choice][column].get("error") for record in records]
    squares = [error**2 for error in errors if error is not None]
    plain = [record[choice][column].get("plain") for record in records]
    scored = [score for score in plain if score is not None]
    return Cell(
        values,
        plan.runs if protocol == "runs" else dataset.splits,
        lost=lost,
        published=None if published is None else published[column],
        error=math.sqrt(np.mean(squares)) if squares else None,
        plain=float(np.mean(scored)) if scored else None,
        positives=float(np.mean([record["counts"]["test"][1] for record in records])) if records else 0.0,
    )


def _by_unit(
    plan: Experiment, scores: Sequence[tuple[int, int, float | None]], protocol: Protocol
) -> tuple[dict[int, float], frozenset[int]]:
    """Return the values of triples of split, run and score by run or by whole split, and which of these have none.

    A split that lacks a fold would be compared with other folds.
    """
    groups: dict[int, list[Any]] = {}
    for split, run, score in scores:
        groups.setdefault(run if protocol == "runs" else split, []).append(score)
    whole = {unit: own for unit, own in groups.items() if protocol == "runs" or len(own) == plan.runs}
    values = {unit: float(np.mean(own)) for unit, own in whole.items() if None not in own}
    return values, frozenset(whole.keys() - values.keys())


def _with_wins(plan: Experiment, row: Mapping[str, Cell]) -> dict[str, Cell]:
    """Count, for a method of the paper among these and for a remedy beside these, how often none is better.

    Methods by the recipe are counted among themselves.
    """
    counted = {}
    for recipe in (False, True):
        group = {name: entry for name, entry in plan.candidates.items() if entry.recipe == recipe}
        paper = [name for name, entry in group.items() if not entry.remedy and row[name].there]
        common = set.intersection(*({*row[name].values, *row[name].lost} for name in paper)) if paper else set()
        best = {unit: max(row[name].values.get(unit, -math.inf) for name in paper) for unit in common}
        for name in group:
            cell = row[name]
            wins = sum(unit in cell.values and cell.values[unit] >= best[unit] - _EQUAL for unit in common)
            counted[name] = replace(cell, wins=wins)
    return counted


def smallest_p(pairs: int) -> float:
    """Return the smallest p-value that the signed-rank test can give for so many pairs, all different.

    Example:
        >>> smallest_p(5), smallest_p(10)
        (0.0625, 0.001953125)
    """
    return min(1.0, 2.0 ** (1 - pairs))


def signed_rank(differences: Sequence[float] | Numbers) -> float:
    """Return the two-sided p-value of Wilcoxon's signed-rank test: how likely signs by chance would be as one-sided.

    Equal pairs are left out; the p-value is 1 where all are equal. Up to 16 others are tested exactly, tied ranks
    included, which scores that move in large steps have; more of them by SciPy.

    Example:
        >>> signed_rank([0.1, 0.2, 0.3, 0.4, 0.5]), signed_rank([0.1, 0.0, -0.1])
        (0.0625, 1.0)
    """
    values = np.asarray(differences, dtype=float)
    values = values[np.abs(values) > _EQUAL]
    if not len(values):
        return 1.0
    if len(values) > _EXACT:
        return float(wilcoxon(values).pvalue)
    ranks = rankdata(np.round(np.abs(values), 9))  # equal steps up and down are ties
    sums = np.zeros(1)
    for rank in ranks:
        sums = np.concatenate([sums, sums + rank])
    seen = ranks[values > 0.0].sum()
    return float(min(1.0, 2.0 * min((sums >= seen).mean(), (sums <= seen).mean())))


@dataclass(frozen=True)
class Curve:
    """TPAUC after each epoch with one setting, over the runs of a data set.

    Attributes:
        dataset: name of the data set.
        label: the entries in which this setting differs from the others.
        runs: number of runs.
        diverged: runs whose scores were no longer finite at the end; they count as long as they are.
        training: for each epoch mean and standard deviation of the TPAUC of the training rows, `(epochs, 2)`; the
            deviation is NaN for a single run.
        last: mean and standard deviation at the end, for "training", "validation" and "test".
    """

    dataset: str
    label: str
    runs: int
    diverged: int
    training: Numbers
    last: dict[str, tuple[float, float]]


def make_curves(plan: Experiment, records: Sequence[Record]) -> list[Curve]:
    """Return the curves of each data set and setting, in the order of the plan, where there are runs."""
    if plan.ablation is None:
        return []
    settings = plan.ablation.settings
    curves = []
    for dataset in plan.ablation.datasets:
        own = [record for record in records if record["dataset"] == dataset]
        for number in range(len(settings) if own else 0):
            entries = [record["curves"][number] for record in own]
            curves.append(_curve(dataset, label_of(settings[number], settings), entries))
    return curves


def _curve(dataset: str, label: str, entries: list[Record]) -> Curve:
    moments = {part: _moments([entry[part] for entry in entries]) for part in ("training", "validation", "test")}
    diverged = sum(entry["training"][-1] is None for entry in entries)
    last = {part: (float(values[-1, 0]), float(values[-1, 1])) for part, values in moments.items()}
    return Curve(dataset, label, len(entries), diverged, moments["training"], last)


def _moments(curves: list[list[float | None]]) -> Numbers:
    """Return mean and standard deviation for each epoch, of the runs whose scores are finite there."""
    values = np.array(curves, dtype=float)
    found = np.full((values.shape[1], 2), np.nan)
    for epoch, column in enumerate(values.T):
        finite = column[np.isfinite(column)]
        if len(finite):
            found[epoch, 0] = finite.mean()
        if len(finite) > 1:
            found[epoch, 1] = finite.std(ddof=1)
    return found


def label_of(setting: Setting, others: Sequence[Setting]) -> str:
    """Return the entries in which a setting differs from others, as text.

    Example:
        >>> settings = [{"gamma": 0.1, "share": 0.5}, {"gamma": "theory", "share": 0.5}]
        >>> [label_of(setting, settings) for setting in settings]
        ['gamma 0.1', 'gamma of the theory']
    """
    words = []
    for key, value in setting.items():
        if any(other.get(key) != value for other in others):
            number = f"{value:g}" if isinstance(value, float) else str(value)
            words.append(f"{key} of the theory" if value == "theory" else f"{key} {number}")
    return ", ".join(words)
