"""What a table of rows, bags or groups must hold, and how it is read, split and compared.

A :class:`TableTask` is saved with the model; it has one leaf for rows, bags, groups and molecules each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeAlias, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.util import hash_array
from scipy.sparse import csr_array

from moreauc._registry import TaskName
from moreauc.app.report.pages import Section
from moreauc.app.report.verdict import Evaluated
from moreauc.app.tables.files import read_texts
from moreauc.app.tables.targets import check_present, drop_columns
from moreauc.data.bags import Bags
from moreauc.data.duplicates import Hashes, hash_rows, number_equal
from moreauc.data.schema import Schema, TypedFrame, learn_file
from moreauc.data.tables import TableError
from moreauc.data.texts import normal_text

if TYPE_CHECKING:
    from moreauc.app.cli.options import FitOptions
    from moreauc.estimators.description import Description

Array = NDArray[Any]
Random = np.random.RandomState | np.random.Generator
Inputs: TypeAlias = "pd.DataFrame | csr_array | Bags"  # what models take
Cells = tuple[str, Sequence[str], Sequence[Sequence[str]]]  # title, head and rows of a printed table
TEST_SIZE = 0.25
_MANY_EQUAL = 0.1  # share of rows that equal others, above which a split is far from random


@dataclass(frozen=True)
class Table:
    """Rows of a table."""

    features: TypedFrame  # the columns to learn from; the index is the row of the file, from 0
    targets: Array  # what is predicted, for each row (or bag); zeros where the table has no target

    def __len__(self) -> int:
        return len(self.targets)

    def part(self, numbers: Array) -> Self:
        """Return some of the rows (or bags), whose numbers must rise."""
        return replace(self, features=self.features.iloc[numbers], targets=self.targets[numbers])

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user must know of how the table was read."""
        return ()

    def hashes(self) -> Hashes:
        """Return a hash of the features of each row (or bag)."""
        return hash_rows(self.features)


class Model(Protocol):
    """A fitted estimator of this package."""

    @property
    def title(self) -> str:
        """Its name in tables."""

    def describe(self) -> Description:
        """Return what a page shows of it."""


class Estimator(Model, Protocol):
    """An estimator of this package before and after its training."""

    def fit(self, X: Inputs, y: Array, /, **options: object) -> object:
        """Train it."""

    def get_params(self) -> dict[str, object]:
        """Return the arguments of its constructor."""


class Scorer(Protocol):
    """A fitted classifier of two classes, of any library."""

    def decision_function(self, X: Inputs, /) -> Array:
        """Return a score for each row or bag, above 0 where the decision is positive."""


class TwoClassModel(Model, Scorer, Protocol):
    """A fitted estimator of two classes."""

    def predict_proba(self, X: Inputs, /) -> Array:
        """Return the probabilities of both classes, shape `(n, 2)`."""


Sections = tuple[list[Section], dict[str, object]]  # of a report, and further numbers for its JSON

T = TypeVar("T", bound=Table)
M = TypeVar("M", bound=Model)
E = TypeVar("E", bound=Evaluated)


@dataclass(frozen=True)
class Tested(Generic[T, M, E]):
    """A model on a test table."""

    model: M
    inputs: Inputs  # what the model takes of the table
    table: T
    evaluations: Sequence[E]  # of the model, and of those it is compared with
    notes: Sequence[str] = ()  # warnings to show with the verdict
    train: T | None = None  # what the model was trained on; None after the training


@dataclass(frozen=True)
class TableTask(ABC, Generic[T, M, E]):
    """What a table of rows, bags or groups holds, and how a model of it is tested and reported."""

    name: ClassVar[TaskName]  # key of the task in `moreauc.methods.METHODS`
    unit: ClassVar[str] = "rows"
    default: ClassVar[str]  # loss to train with
    baselines: ClassVar[tuple[str, ...]]  # methods to compare with
    measure: ClassVar[str]  # name of the measure that models are compared by

    schema: Schema  # the columns to learn from
    target: object  # what is predicted
    id_column: str | None = field(default=None, kw_only=True)  # names rows; it is not learnt from

    # Reading

    @property
    def kinds(self) -> dict[str, str]:
        """The columns to learn from, and what they hold."""
        return self.schema.kinds

    @classmethod
    @abstractmethod
    def read(cls, frame: pd.DataFrame, options: FitOptions, *, source: str) -> tuple[Self, T]:
        """Return the task that a table and the options of `moreauc fit` make, and the table; both are checked."""

    @abstractmethod
    def match(self, frame: pd.DataFrame, *, source: str, labelled: bool = True) -> T:
        """Return another table, which must have the columns that the model was trained on."""

    def fitted(self, train: T) -> Self:
        """Return the task with what must be learnt from the training rows before a model is fitted."""
        return self

    def inputs(self, table: T) -> Inputs:
        """Return what the model takes."""
        return table.features

    def fit_options(self, table: T) -> dict[str, Array]:
        """Return what `fit` of the model takes besides inputs and targets."""
        return {}

    # Test rows

    @abstractmethod
    def draw_test(self, table: T, share: float, seed: int, hashes: Hashes) -> Array:
        """Return the numbers of the rows (or bags) to test on, in order; equal rows stay on one side."""

    def check_test(self, targets: Array, where: str) -> None:
        """Check that a model can be tested on rows (or bags) of such targets, named `where` in errors."""

    def test_note(self, split: Split[T]) -> str | None:
        """Return a sentence about what is not tested; None if there is nothing to say."""
        return None

    def split_facts(self, split: Split[T]) -> dict[str, object]:
        """Return further numbers on the two parts for the JSON of a report."""
        return {}

    # Results

    @property
    @abstractmethod
    def announcement(self) -> str:
        """What is predicted, for people."""

    @abstractmethod
    def facts(self) -> dict[str, object]:
        """Return what was chosen for a table, as plain data: target and columns with a role."""

    @abstractmethod
    def description(self) -> str:
        """Return what is predicted and by which columns, as a part of a sentence."""

    def columns_text(self) -> str:
        """Return a sentence on the columns that are learnt from."""
        counts = Counter(kind.split()[0] for kind in self.kinds.values())  # "date with offset"
        dates = f", {counts['date']} of dates" if counts["date"] else ""
        return f"{len(self.kinds)} columns: {counts['number']} of numbers, {counts['text']} of text{dates}."

    @abstractmethod
    def counts(self, table: T) -> dict[str, int]:
        """Return the sizes of a table."""

    def count_cells(self, name: str, table: T) -> dict[str, str]:
        """Return the row of a table of sizes, by the heads of its columns."""
        return {f"{self.unit} of": name, **{key: f"{count:,}" for key, count in self.counts(table).items()}}

    def data_section(self, parts: dict[str, T], text: Sequence[str]) -> Section:
        """Return the section of a report on tables by name."""
        cells = [self.count_cells(name, part) for name, part in parts.items()]
        return Section("Data", text, columns=tuple(cells[0]), rows=[tuple(row.values()) for row in cells], labels=1)

    def headline(self, table: T) -> str:
        """Return the size of a table in words."""
        return f"{len(table)} {self.unit}"

    @abstractmethod
    def evaluate(self, title: str, model: M, inputs: Inputs, table: T) -> E:
        """Return the numbers of a model on a table."""

    @abstractmethod
    def goodness(self, model: M, table: T) -> float:
        """Return the measure of a model on a table; higher is better."""

    def sample(self, table: T, number: int, random: np.random.Generator) -> Array:
        """Return the numbers of a random sample of rows (or bags), in order."""
        return np.sort(random.choice(len(table), number, replace=False))

    def row_targets(self, table: T) -> Array:
        """Return a number for each row of the features, by which columns are correlated with the target."""
        return np.unique(table.targets, return_inverse=True)[1]

    @abstractmethod
    def printed(self, title: str, evaluations: Sequence[E]) -> list[Cells]:
        """Return the tables to print."""

    @abstractmethod
    def result(self, tested: Tested[T, M, E]) -> Sections:
        """Return the sections on a model beside the others; the first is the verdict, which the JSON has as well."""

    @abstractmethod
    def training(self, models: Mapping[str, M], split: Split[T]) -> tuple[Section, dict[str, object]]:
        """Return the section on the training of models by title, and further numbers for the JSON."""

    @abstractmethod
    def predict(self, model: M, inputs: Inputs, table: T) -> tuple[pd.DataFrame, str]:
        """Return the predictions as a table, and a line that sums them up."""


@dataclass(frozen=True)
class Split(Generic[T]):
    """A table in two parts."""

    task: TableTask[T, Any, Any]  # what the table holds
    train: T  # rows (or bags) to train on
    test: T  # rows (or bags) to test on
    warnings: tuple[str, ...] = ()  # about columns and rows
    test_name: str | None = None  # name of the table to test on; None where the test rows are drawn from the one table


def read_split(kind: type[TableTask[T, M, E]], options: FitOptions) -> Split[T]:
    """Read and check a table, and draw rows to test on, or read those as well."""
    if options.test is not None and options.test_size is not None:
        raise TableError("--test and --test-size exclude each other")
    source = str(options.data)
    task, table = kind.read(read_texts(options.data), options, source=source)
    hashes, doubts = table.hashes(), [*table.notes, *task.schema.doubts]
    if options.test is not None:
        other = str(options.test)
        test = task.match(read_texts(options.test), source=other)
        doubts += [*test.notes, *unknown_levels(task.schema, test.features, other)[0]]
        parts = (hashes, table.targets), (test.hashes(), test.targets)
        doubts += compare_rows(*parts, options.data, options.test, unit=kind.unit)
        return Split(task, table, test, tuple(doubts), options.test.name)
    share = TEST_SIZE if options.test_size is None else options.test_size
    if not 0.0 < share < 1.0:
        raise TableError(f"--test-size must be in (0, 1), got {share:g}")
    held = task.draw_test(table, share, options.seed, hashes)
    train, test = table.part(np.setdiff1d(np.arange(len(table)), held)), table.part(held)
    train = replace(train, features=task.schema.with_levels(train.features))
    task = replace(task, schema=train.features.schema)
    _check_drawn(task.schema, test.features, source)
    drawn = f"the {len(held):,} {kind.unit} to test on ({len(held) / len(table):.1%}) are"
    doubts += [f"{line}; --test takes a table of its own" for line in equal_rows(hashes, drawn, unit=kind.unit)]
    return Split(task, train, test, tuple(doubts))


def read_features(frame: pd.DataFrame, options: FitOptions, source: str, *others: str) -> tuple[TypedFrame, str | None]:
    """Return the columns to learn from, checked, and the column that names rows.

    Neither that column nor those of --drop, nor others named here, are learnt from.
    """
    drop = [*named_columns("--drop", options.drop, frame), *others]
    identity = None if options.id is None else normal_text(options.id)
    if identity is not None:
        check_present(frame, identity, "id column", source)
        drop.append(identity)
    return learn_file(drop_columns(frame, list(dict.fromkeys(drop)), source=source), source=source), identity


def named_columns(option: str, given: str | Sequence[str] | None, frame: pd.DataFrame) -> list[str]:
    """Return the columns that an option like "race,sex" names; a column whose name has a comma is found as a whole.

    Example:
        >>> named_columns("--drop", ["a,b", "c,d"], pd.DataFrame(columns=["a", "b", "c,d"]))
        ['a', 'b', 'c,d']
    """
    names: list[str] = []
    for text in [given] if isinstance(given, str) else given or ():
        whole = normal_text(text)
        names += [whole] if whole in frame else [normal_text(name) for name in whole.split(",")]
    if not all(names):
        raise TableError(f"{option} must name columns, with commas between them, got {','.join(names)!r}")
    return names


def num_resamples(rows: int) -> int:
    """Return the number of resamples of an interval: fewer for long tables, so that it takes seconds."""
    return min(1000, max(200, 4_000_000 // rows))


# Levels that training has not seen


def unknown_levels(schema: Schema, features: TypedFrame, source: str) -> tuple[list[str], dict[str, float]]:
    """Return warnings about empty columns and unknown levels, and the share of unknown levels by column."""
    empty = [
        f"{source}: column {name!r} holds missing values only, and held others in training; scores may be far off"
        for name in (features if len(features) > 1 else ())  # a single row may lack a value
        if features[name].isna().all()
    ]
    columns = schema.unknown(features, source=source)
    unknown = [f"{source}: {column}" for column in columns if column.unknown]
    return [*empty, *unknown], {column.name: column.share for column in columns}


def _check_drawn(schema: Schema, test: TypedFrame, source: str) -> None:
    """Check, before anything is trained, that test rows drawn from a table have levels in common with the others.

    Equal rows stay together, so that all rows of a level may be in one part.
    """
    try:
        schema.unknown(test, source=f"{source}, rows drawn to test on")
    except TableError as error:
        raise TableError(f"{error}, with another --seed, or give a table to test on with --test") from error


# Rows that occur more than once


def compare_rows(
    train: tuple[Hashes, Array], test: tuple[Hashes, Array], data: Path, other: Path, *, unit: str = "rows"
) -> list[str]:
    """Return a warning if rows of a test table are trained on; refuse a test table that is a copy.

    Each table is given by the hashes and targets of its rows (or bags).
    """
    first, second = (np.sort(hashes + hash_array(targets)) for hashes, targets in (train, test))
    if np.array_equal(first, second):
        raise TableError(
            f"{other}: --test holds the same {unit} as {data}, which are trained on; give {unit} of their own, or "
            "leave --test out, and a share is set aside"
        )
    return known_rows(train[0], test[0], other, unit=unit)


def known_rows(train: Hashes, test: Hashes, other: Path, *, unit: str = "rows") -> list[str]:
    """Return a warning if rows (or bags) of a table are among those a model is trained on, else nothing."""
    known, number = int(np.isin(test, train).sum()), len(test)
    if not known:
        return []
    share = f"{known:,} of {number:,} {unit} of {other} ({known / number:.1%})"
    return [f"{share} equal {unit} that are trained on: the test may look better than it is"]


def equal_rows(hashes: Hashes, parts: str, *, unit: str = "rows") -> list[str]:
    """Return a warning if so many rows (or bags) equal others that a split which keeps them together is not random."""
    counts = np.bincount(number_equal(hashes))
    equal, number = int(counts[counts > 1].sum()), len(hashes)
    if equal <= _MANY_EQUAL * number:
        return []
    return [
        f"{equal:,} of {number:,} {unit} ({equal / number:.1%}) equal others, and only {len(counts):,} are different. "
        f"Equal {unit} stay in one part, so {parts} not drawn at random, and new {unit} may be scored better or worse"
    ]
