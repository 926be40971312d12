"""Tables whose columns name the groups of rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd

from moreauc.app.report.pages import Fact, Section, as_image, draw_training
from moreauc.app.report.verdict import (
    Evaluated,
    Verdict,
    compare_models,
    histories_of,
    importance_section,
    kept_epoch,
    warning_text,
)
from moreauc.app.tables.base import (
    Cells,
    Inputs,
    Sections,
    Split,
    Table,
    TableTask,
    Tested,
    named_columns,
    num_resamples,
    read_features,
)
from moreauc.app.tables.targets import check_classes, check_present
from moreauc.data.duplicates import Codes, Hashes, number_equal
from moreauc.data.groups import hold_out, name_groups
from moreauc.data.tables import TableError, list_names
from moreauc.data.texts import class_text, group_texts, is_number, lost_in_floats, name_texts, normal_text, type_column
from moreauc.metrics import group_loss, plot_groups
from moreauc.metrics.bootstrap import resample_scores
from moreauc.metrics.groups import GroupTable
from moreauc.tasks.base import Array

if TYPE_CHECKING:
    from moreauc.app.cli.options import FitOptions
    from moreauc.estimators.group_dro import GroupDROEstimator

_LOGGER = logging.getLogger("moreauc.app.cli.fit")
KINDS = ("auto", "classification", "regression")
_MOST_CLASSES = 10  # whole numbers of more values are taken for quantities
_MEANING = (
    "The loss of a group is the mean {loss} of its rows; that of several groups is the mean of theirs, each counted as "
    "one, however many rows it has. The gap is the worst less the best. The numbers of a small group are uncertain."
)
_SHOWN = 20  # groups printed, or named in a sentence


@dataclass(frozen=True)
class GroupTarget:
    """What is predicted."""

    name: str  # the column
    task: str  # "classification" or "regression"
    classes: tuple[str, ...]  # the classes as texts, sorted; none for regression
    reason: str  # how the task was found, for people


@dataclass(frozen=True)
class GroupedTable(Table):
    """Rows in groups; `targets` are texts of classes, or numbers."""

    groups: Array  # name of each row's group

    @cached_property
    def codes(self) -> Codes:
        """Number of each row's group in this table, by the order of the names."""
        return np.unique(self.groups.astype(str), return_inverse=True)[1]

    def part(self, numbers: Array) -> Self:
        return replace(super().part(numbers), groups=self.groups[numbers])


@dataclass(frozen=True)
class GroupEvaluation(Evaluated):
    """One model on rows in groups, compared by the mean loss of the worst ones."""

    table: GroupTable  # its groups, the worst first
    top_k: int  # how many of the worst groups count; not more than there are
    score: float  # accuracy of all rows, or R² for regression
    quantity: str  # which of them

    @property
    def losses(self) -> dict[str, float]:
        """Mean loss of the worst group, of the K worst, and of all groups, each counted as one."""
        losses = np.asarray(self.table.loss)
        return {
            "worst": float(losses[0]),
            "top_k": float(losses[: self.top_k].mean()),
            "mean": float(losses.mean()),
            "gap": self.table.gap,
        }

    @property
    def worst_accuracy(self) -> float | None:
        """Lowest accuracy of a group; None for regression."""
        return None if self.table.accuracy is None else float(self.table.accuracy.min())

    @property
    def cells(self) -> dict[str, str]:
        """Row of a table of methods, by the heads of its columns."""
        numbers = {"its loss": self.losses["worst"]}
        if self.top_k > 1:
            numbers[f"{self.top_k} worst"] = self.losses["top_k"]
        numbers |= {"all groups": self.losses["mean"], "gap": self.losses["gap"]}
        if self.worst_accuracy is not None:
            numbers["lowest acc."] = self.worst_accuracy
        numbers["acc." if self.quantity == "accuracy" else self.quantity] = self.score
        worst = str(self.table.worst["name"])
        return {"method": self.title, "worst group": worst} | {key: f"{value:.4f}" for key, value in numbers.items()}

    def group_cells(self) -> list[dict[str, str]]:
        """Return the rows of a table of groups, by the heads of its columns."""
        cells = []
        for row in self.table.rows():
            numbers = {head: row[name] for name, head in _QUANTITIES.items() if name in row}
            shown = {head: "-" if np.isnan(number) else f"{number:.4f}" for head, number in numbers.items()}
            cells.append(
                {"group": str(row["name"]), "rows": f"{row['size']:,}", "share": f"{row['share']:.2%}"} | shown
            )
        return cells

    def to_dict(self) -> dict[str, object]:
        accuracy = {} if self.worst_accuracy is None else {"worst_accuracy": self.worst_accuracy}
        summary = {"title": self.title, "top_k": self.top_k, **{f"{key}_loss": x for key, x in self.losses.items()}}
        return {**summary, **accuracy, self.quantity: self.score, "groups": self.table.rows()}


_QUANTITIES = {"loss": "loss", "accuracy": "accuracy", "auc": "AUC"}


@dataclass(frozen=True)
class GroupTableTask(TableTask[GroupedTable, "GroupDROEstimator", GroupEvaluation]):
    """A table whose rows are in groups."""

    name = "groups"
    default = "sonx"
    baselines = ("erm",)
    measure = "loss of the worst groups"

    target: GroupTarget
    columns: tuple[str, ...]  # name the group of a row; they need not be among `kinds`

    @classmethod
    def read(cls, frame: pd.DataFrame, options: FitOptions, *, source: str) -> tuple[Self, GroupedTable]:
        columns = named_columns("--groups", options.groups, frame)
        if len(set(columns)) < len(columns):
            raise TableError(f"--groups must name every column once, got {options.groups!r}")
        if (name := normal_text(options.target)) in columns:
            raise TableError(f"--groups and --target must name different columns, got {name!r} for both")
        target, values = find_target(frame, options.target, options.task or "auto", source=source)
        groups = find_groups(frame, columns, source=source)
        unused = () if options.keep_groups else columns
        features, identity = read_features(frame, options, source, target.name, *unused)
        return cls(features.schema, target, tuple(columns), id_column=identity), GroupedTable(features, values, groups)

    def match(self, frame: pd.DataFrame, *, source: str, labelled: bool = True) -> GroupedTable:
        values: Array = np.zeros(len(frame))
        groups = values
        if labelled:
            values = match_values(frame, self.target, source=source)
            groups = find_groups(frame, list(self.columns), source=source)
        return GroupedTable(self.schema.match(frame, source=source), values, groups)

    def fit_options(self, table: GroupedTable) -> dict[str, Array]:
        return {"groups": table.groups}

    def draw_test(self, table: GroupedTable, share: float, seed: int, hashes: Hashes) -> Array:
        order = np.unique(table.targets, return_inverse=True)[1]
        classes = self.target.task == "classification"
        same, random = number_equal(hashes), np.random.default_rng(seed)
        held = hold_out(table.codes, order, share, random, classes=classes, same=same)[1]
        if not len(held):
            raise TableError(
                f"no rows in the test split: --test-size {share:g} takes none of any group, all are too small"
            )
        return held

    def test_note(self, split: Split[GroupedTable]) -> str | None:
        groups = untested(split)
        if not groups:
            return None
        named = [f"{name} ({size:,} row{'s' if size > 1 else ''})" for name, size in groups.items()]
        more = f" and {len(named) - _SHOWN:,} more, which report.json names" if len(named) > _SHOWN else ""
        have, they, were = ("have", "they", "were") if len(named) > 1 else ("has", "it", "was")
        few = "too few rows to spare any for the test part"
        what = few if split.test_name is None else f"no rows in {split.test_name}"
        return (
            f"{len(named):,} of {len(set(split.train.groups)):,} groups {have} {what}, so {they} {were} trained on but "
            f"not tested: {', '.join(named[:_SHOWN])}{more}."
        )

    def split_facts(self, split: Split[GroupedTable]) -> dict[str, object]:
        groups = [{"name": name, "rows": size} for name, size in untested(split).items()]
        return {"untested": {"note": self.test_note(split), "groups": groups}}

    @property
    def announcement(self) -> str:
        return f"Task: {self.target.task} of {self.target.name} ({self.target.reason})"

    def facts(self) -> dict[str, object]:
        target = {"column": self.target.name, "task": self.target.task, "classes": list(self.target.classes)}
        return {"target": target, "groups": list(self.columns)}

    def description(self) -> str:
        target, kept = self.target, any(name in self.kinds for name in self.columns)
        return (
            f"{target.task} of {target.name} ({target.reason}), groups by {' and '.join(self.columns)}, "
            f"{'also' if kept else 'not'} learnt from"
        )

    def counts(self, table: GroupedTable) -> dict[str, int]:
        sizes = np.bincount(table.codes)
        return {"rows": len(table), "groups": len(sizes), "smallest": int(sizes.min()), "largest": int(sizes.max())}

    def evaluate(self, title: str, model: GroupDROEstimator, inputs: Inputs, table: GroupedTable) -> GroupEvaluation:
        groups = model.group_score(inputs, table.targets, table.groups)
        score, top_k = float(model.score(inputs, table.targets)), min(model.top_k_, len(groups))
        quantity = "R2" if groups.accuracy is None else "accuracy"
        worst = groups.worst
        _LOGGER.info("%s: worst group %s, loss %.4f; %s %.4f", title, worst["name"], worst["loss"], quantity, score)
        losses, number = model.row_losses(inputs, table.targets), num_resamples(len(table))
        resamples = resample_scores(
            lambda codes, losses: group_loss(losses, codes, top_k=top_k), table.codes, losses, resamples=number
        )
        return GroupEvaluation(groups, top_k, score, quantity, title=title, resamples=resamples)

    def goodness(self, model: GroupDROEstimator, table: GroupedTable) -> float:
        losses = model.row_losses(self.inputs(table), table.targets)
        return -group_loss(losses, table.codes, top_k=min(model.top_k_, int(table.codes.max()) + 1))

    def printed(self, title: str, evaluations: Sequence[GroupEvaluation]) -> list[Cells]:
        first = evaluations[0]
        cells, text = first.group_cells(), f"Groups by {first.title}, the worst first"
        if len(cells) > _SHOWN:
            text += f" ({_SHOWN} of {len(cells)})"
        summary = [tuple(evaluation.cells.values()) for evaluation in evaluations]
        groups = [tuple(row.values()) for row in cells[:_SHOWN]]
        return [(title, tuple(first.cells), summary), (text, tuple(cells[0]), groups)]

    def result(self, tested: Tested[GroupedTable, GroupDROEstimator, GroupEvaluation]) -> Sections:
        evaluations, model = tested.evaluations, tested.model
        first = evaluations[0]
        measure = "loss of the worst group" if first.top_k == 1 else "mean loss of the worst groups"
        verdict = compare_models(evaluations, measure, self.unit, lower_is_better=True)
        text = [*verdict.text, *_advice(verdict, evaluations)]
        rows = [tuple(evaluation.cells.values()) for evaluation in evaluations]
        meaning = _MEANING.format(loss=model.describe().row_loss)
        columns, numbers = importance_section(self, model, tested.table)
        sections = [
            Section("Verdict", [*text, *warning_text(tested.notes)], facts=_facts(first)),
            Section("Methods", [meaning], columns=tuple(first.cells), rows=rows, labels=2),
            _group_section(evaluations, model),
            *columns,
        ]
        return sections, {"verdict": {**verdict.to_dict(), "description": text}, **numbers}

    def training(
        self, models: Mapping[str, GroupDROEstimator], split: Split[GroupedTable]
    ) -> tuple[Section, dict[str, object]]:
        text = []
        histories = histories_of(models)
        for title, history in histories.items():
            if history.best_epoch is None:
                text.append(f"{title}: groups too small to hold any rows out; the weights of the last epoch were kept.")
            else:
                loss, when = -(history.best_score or 0.0), kept_epoch(history)
                chosen = models[title].describe().chosen_by
                text.append(f"{title}: lowest {chosen} {loss:.4f}, of the validation rows, {when}, kept.")
        what = "; ".join(f"{title}: {model.describe().chosen_by}" for title, model in models.items())
        caption = (
            f"What the epoch was chosen by, on the validation rows after every epoch ({what}); the weights kept are "
            "dotted. Losses of groups are shrunk towards their mean as far as chance explains how they differ."
        )
        images = draw_training(histories, quantity="validation loss", caption=caption, lower_is_better=True)
        first = next(iter(models.values()))
        return Section("Training", text, images=images), {"threshold": first.describe().loss_threshold}

    def predict(self, model: GroupDROEstimator, inputs: Inputs, table: GroupedTable) -> tuple[pd.DataFrame, str]:
        columns: dict[str, Array] = {"row": np.arange(1, len(table) + 1)}
        if self.target.task == "regression":
            columns["prediction"] = model.predict(inputs)
            mean = columns["prediction"].mean()
            return pd.DataFrame(columns), f"{len(table)} rows, mean prediction of {self.target.name} {mean:.4g}"
        columns["decision"] = model.predict(inputs)
        chances = model.predict_proba(inputs)
        columns |= {f"probability of {name}": chances[:, k] for k, name in enumerate(model.classes_)}
        counts = [f"{(columns['decision'] == name).sum()} {name}" for name in model.classes_]
        return pd.DataFrame(columns), f"{len(table)} rows are called {self.target.name} = {', '.join(counts)}"


def untested(split: Split[GroupedTable]) -> dict[str, int]:
    """Return the groups that are trained on and have no test rows, by name, with the number of their rows."""
    names, sizes = np.unique(split.train.groups.astype(str), return_counts=True)
    tested = set(split.test.groups)
    return {str(name): int(size) for name, size in zip(names, sizes, strict=True) if name not in tested}


def find_target(frame: pd.DataFrame, name: str, task: str, *, source: str) -> tuple[GroupTarget, Array]:
    """Return what is to be predicted, and the target of each row.

    With the task "auto", text and bool are classes, and so are two values and up to ten different whole numbers; other
    numbers are quantities.

    Example:
        >>> find_target(pd.DataFrame({"y": [1.5, 2.0, 4.0]}), "y", "auto", source="t")[0].task
        'regression'
        >>> find_target(pd.DataFrame({"y": [3, 1, 2]}), "y", "auto", source="t")[0].classes
        ('1', '2', '3')
    """
    name = normal_text(name)
    column = check_present(frame, name, "target", source)
    texts, reason = name_texts(column, class_text), "as asked for"
    if task == "auto":
        check_classes(column, name, "give --task classification", source=source)
        task, reason = _guess(type_column(column), texts.nunique())
    if task == "regression":
        if lost := lost_in_floats(type_column(column)):
            raise TableError(f"{source}: target {name!r} {lost}, or give --task classification if these are classes")
        return GroupTarget(name, task, (), reason), _numbers(column, name, source)
    classes = sorted(set(texts))
    if len(classes) < 2:
        raise TableError(f"{source}: target {name!r} must have at least two classes, got one class only: {classes[0]}")
    return GroupTarget(name, task, tuple(classes), reason), texts.to_numpy(dtype=object)


def match_values(frame: pd.DataFrame, target: GroupTarget, *, source: str) -> Array:
    """Return the target of each row of another table."""
    column = check_present(frame, target.name, "target", source)
    if target.task == "regression":
        return _numbers(column, target.name, source)
    texts = name_texts(column, class_text)
    strange = texts[~texts.isin(target.classes)]
    if len(strange):
        known = list_names(list(target.classes))
        raise TableError(
            f"{source}: target {target.name!r} must be one of {known}, got {strange.iloc[0]!r} in row "
            f"{strange.index[0] + 1}"
        )
    values: Array = texts.to_numpy(dtype=object)
    return values


def find_groups(frame: pd.DataFrame, names: list[str], *, source: str) -> Array:
    """Return the name of each row's group: the values of its columns with commas between them."""
    texts = {name: group_texts(check_present(frame, name, "group column", source)) for name in names}
    found, codes = name_groups(source, pd.DataFrame(texts), len(frame))
    return found[codes]


def _guess(column: pd.Series[Any], count: int) -> tuple[str, str]:
    """Return the task that a target of so many classes is, and why."""
    if pd.api.types.is_bool_dtype(column.dtype) or not is_number(column):
        return "classification", "the target is no number"
    if count <= 2:
        return "classification", "the target has two values"
    if count <= _MOST_CLASSES and bool((column % 1 == 0).all()):
        return "classification", f"the target has {count} different whole numbers"
    return "regression", f"the target has {count} different numbers"


def _numbers(column: pd.Series[Any], name: str, source: str) -> Array:
    values: Array = pd.to_numeric(type_column(column), errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise TableError(
            f"{source}: target {name!r} must hold finite numbers for regression, got {column.iloc[bad[0]]!r} in row "
            f"{bad[0] + 1}"
        )
    return values


def _advice(verdict: Verdict, evaluations: Sequence[GroupEvaluation]) -> list[str]:
    """Return what the worst groups cost the others, and what to try next."""
    if verdict.other is None:
        return []
    first, other = evaluations[0], next(found for found in evaluations if found.title == verdict.other)
    price = f"Over all rows {first.title} has {first.quantity} {first.score:.3f}, {other.title} {other.score:.3f}."
    lines = {
        "better": "keep the model if that is worth it; a larger --top-k trains for more groups.",
        "worse": f"try --loss erm_reweighted or a larger --top-k; where that is no better, use {other.title}.",
        "equal": f"use {other.title}, or try a larger --top-k; small groups leave much to chance, which more rows end.",
    }
    return [price, f"Next: {lines[verdict.outcome]}"]


def _facts(first: GroupEvaluation) -> list[Fact]:
    losses, number = first.losses, first.top_k
    facts = [Fact("Loss of the worst group", f"{losses['worst']:.3f}", str(first.table.worst["name"]))]
    if number > 1:
        facts.append(Fact(f"Loss of the {number} worst groups", f"{losses['top_k']:.3f}", "their mean"))
    if first.worst_accuracy is not None:
        facts.append(Fact("Lowest accuracy", f"{first.worst_accuracy:.3f}", "of a group"))
    facts.append(Fact(first.quantity, f"{first.score:.3f}", "of all rows"))
    return facts


def _group_section(evaluations: Sequence[GroupEvaluation], model: GroupDROEstimator) -> Section:
    """Return the table of groups by the first model, with the losses of the others, and the plot."""
    first, cells = evaluations[0], evaluations[0].group_cells()
    for other in evaluations[1:]:
        by_name = dict(zip(other.table.name, np.asarray(other.table.loss), strict=True))
        for row in cells:
            row[f"loss by {other.title}"] = f"{by_name[row['group']]:.4f}"
    threshold = model.describe().loss_threshold
    text = f"Mean loss of the groups by {first.title}, the worst first."
    if threshold is not None:
        text += " The dashed line is the threshold s at the end of the training: groups above it were trained for."
    image = as_image(plot_groups(first.table, threshold=threshold, top_k=first.top_k), text)
    rows = [tuple(row.values()) for row in cells]
    return Section("Groups", columns=tuple(cells[0]), rows=rows, labels=1, images=[image])
