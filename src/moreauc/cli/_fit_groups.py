"""`moreauc fit --groups`: rows are in groups, and the groups that fare worst are trained for and reported on."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from moreauc.cli._console import (
    already_told,
    command_line,
    console,
    print_table,
    say,
    warn,
)
from moreauc.cli._group_evaluation import (
    GroupEvaluation,
    evaluate_groups,
    group_rows,
    summary_columns,
)
from moreauc.cli._group_table import (
    TASKS,
    GroupRows,
    GroupTarget,
    find_groups,
    find_target,
    match_values,
    split_names,
)
from moreauc.cli._levels import check_drawn, compare_levels
from moreauc.cli._run_folder import PAGE, check_free, run_folder
from moreauc.cli._saved import save_group_model
from moreauc.cli._saving import Saving
from moreauc.cli._test_rows import TEST_SIZE, compare_rows, name_equal_to_test
from moreauc.cli._training import train, untrained_notes
from moreauc.data._doubtful import doubtful_columns
from moreauc.data.columns import check_features, drop_columns, match_features
from moreauc.data.duplicates import hash_rows, number_equal
from moreauc.data.tables import TableError, read_texts
from moreauc.tasks.groups import hold_out, name_groups

_LOGGER = logging.getLogger("moreauc.cli.fit")
_NAMED = 20  # groups without test rows that a sentence names


@dataclass(frozen=True)
class GroupSplit:
    """A table, in rows to train on and rows to test on.

    Attributes:
        train: rows to train on.
        test: rows to test on.
        kinds: columns to learn from, and what they hold.
        target: what is predicted.
        columns: those that name the group.
        test_name: name of the table that the test rows are from; None where they are set aside from the one table.
        warnings: what to tell about columns and rows.
    """

    train: GroupRows
    test: GroupRows
    kinds: dict[str, str]
    target: GroupTarget
    columns: tuple[str, ...]
    test_name: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def untested(self) -> dict[str, int]:
        """Groups that are trained on and have no test rows, by name, with the number of their rows."""
        names, sizes = np.unique(self.train.groups.astype(str), return_counts=True)
        tested = set(self.test.groups)
        return {str(name): int(size) for name, size in zip(names, sizes, strict=True) if name not in tested}

    @property
    def note(self) -> str | None:
        """A sentence on the groups that are not tested, for people; None where there are none."""
        groups = self.untested
        if not groups:
            return None
        named = [f"{name} ({size:,} row{'s' if size > 1 else ''})" for name, size in groups.items()]
        more = f" and {len(named) - _NAMED:,} more, which report.json names" if len(named) > _NAMED else ""
        have, they, were = ("have", "they", "were") if len(named) > 1 else ("has", "it", "was")
        what = (
            "too few rows to spare any for the test part" if self.test_name is None else f"no rows in {self.test_name}"
        )
        return (
            f"{len(named):,} of {len(set(self.train.groups)):,} groups {have} {what}, so {they} {were} trained on but "
            f"not tested: {', '.join(named[:_NAMED])}{more}."
        )


@dataclass(frozen=True)
class GroupRequest:
    """What `moreauc fit --groups` was asked for; the attributes are its options."""

    data: Path
    groups: str
    target: str
    out: Path
    task: str
    method: str | None
    top_k: float | None
    keep_groups: bool
    test_size: float | None
    test: Path | None
    model: str | None
    groups_per_batch: int | None
    samples_per_group: int | None
    epochs: int | None
    lr: float | None
    seed: int
    drop: list[str]
    force: bool
    saving: Saving


def fit_groups(request: GroupRequest) -> None:
    """Train a model of rows in groups, and the mean of rows beside it; see :func:`moreauc.cli.fit.fit`."""
    from moreauc.cli._group_pages import fit_groups_report
    from moreauc.estimators import GroupDROClassifier, GroupDRORegressor
    from moreauc.methods import METHODS

    begin = time.perf_counter()
    method = "sonx" if request.method is None else request.method
    for name, value, allowed in (
        ("method", method, tuple(METHODS["groups"])),
        ("task", request.task, TASKS),
        ("model", request.model or "mlp", ("mlp", "linear")),
    ):
        if value not in allowed:
            raise ValueError(f"moreauc fit: --{name} must be one of {', '.join(allowed)}, got {value!r}")
    check_free(request.out, force=request.force, with_model=True)
    split = read_group_split(request)
    target = split.target
    say(f"Task: {target.task} of {target.name} ({target.reason})")
    warn(*split.warnings)
    facts = {"target": target.name, "task": target.task, "groups": list(split.columns), "method": method}
    options = ("top_k", "model", "groups_per_batch", "samples_per_group")
    request.saving.begin(request.data, split.kinds, **facts, **{name: getattr(request, name) for name in options})
    with run_folder(request.out, force=request.force, with_model=True) as folder, already_told():
        counts = len(split.train.values), len(split.test.values), len(set(split.train.groups))
        _LOGGER.info("%s: %d rows to train on, %d to test on, %d groups", request.data, *counts)
        for line in (*split.warnings, *([] if split.note is None else [split.note])):
            _LOGGER.warning("%s", line)
        kind = GroupDRORegressor if target.task == "regression" else GroupDROClassifier
        models: dict[str, Any] = {}
        evaluations: list[GroupEvaluation] = []
        for name in dict.fromkeys([method, "erm"]):
            title = METHODS["groups"][name].title
            model = kind(loss=name, random_state=request.seed, verbose=int(console.is_terminal), **_given(request))
            rows, saved = split.train, request.saving.options(name)
            models[title] = train(title, model, rows.features, rows.values, groups=rows.groups, **saved)
            if name == method:  # at once: nothing that fails from here on costs the training
                save_group_model(folder, model, split.kinds, target, split.columns, hash_rows(rows.features))
            evaluations.append(evaluate_groups(title, model, split.test))
        report = fit_groups_report(request.data, _command(request, method), split, models, evaluations)
        report.seconds = time.perf_counter() - begin
        report.write(folder, PAGE)
        _LOGGER.info("done in %.1f s", report.seconds)
    first = evaluations[0]
    print_table(f"Test rows: {len(split.test.values)}", summary_columns(first), [entry.row for entry in evaluations])
    print_table(*group_rows(first))
    if split.note is not None:
        say(split.note)
    warn(*untrained_notes({title: model.history_ for title, model in models.items()}))
    say(f"Report: {request.out / PAGE}")


def read_group_split(request: GroupRequest) -> GroupSplit:
    """Read and check a table of rows in groups, and set a share of each group aside to test on.

    Raises:
        TableError: if a table cannot be used.
    """
    if request.test is not None and request.test_size is not None:
        raise TableError("--test and --test-size exclude each other")
    source, frame = str(request.data), read_texts(request.data)
    columns = split_names(request.groups, frame, request.target)
    target, values = find_target(frame, request.target, request.task, source=source)
    groups = find_groups(frame, columns, source=source)
    dropped = [name for name in columns if not request.keep_groups and name not in request.drop]
    rest = drop_columns(frame, [*request.drop, target.name, *dropped], source=source)
    features, kinds = check_features(rest, source=source)
    table = GroupRows(features, values, groups)
    hashes, doubts = hash_rows(features), doubtful_columns(features)
    if request.test is not None:
        test = read_group_rows(request.test, kinds, target, tuple(columns))
        doubts += compare_levels(features, test.features, str(request.test))
        doubts += compare_rows((hashes, values), (hash_rows(test.features), test.values), request.data, request.test)
        return GroupSplit(table, test, kinds, target, tuple(columns), request.test.name, tuple(doubts))
    share = TEST_SIZE if request.test_size is None else request.test_size
    if not 0.0 < share < 1.0:
        raise TableError(f"--test-size must be in (0, 1), got {share:g}")
    codes = name_groups(source, groups, len(groups))[1]
    order = np.unique(values, return_inverse=True)[1]
    random = np.random.default_rng(request.seed)
    classes, same = target.task == "classification", number_equal(hashes)
    train, held = hold_out(codes, order, share, random, classes=classes, same=same)
    if not len(held):
        raise TableError(f"no rows in the test split: --test-size {share:g} takes none of any group, all are too small")
    parts = table.part(train), table.part(held)
    check_drawn(parts[0].features, parts[1].features, source)
    doubts += name_equal_to_test(hashes, held)
    return GroupSplit(*parts, kinds, target, tuple(columns), warnings=tuple(doubts))


def read_group_rows(data: Path, kinds: dict[str, str], target: GroupTarget, columns: tuple[str, ...]) -> GroupRows:
    """Read the rows of another table with the same columns.

    Raises:
        TableError: if a column is missing or cannot be used.
    """
    source, frame = str(data), read_texts(data)
    values = match_values(frame, target, source=source)
    groups = find_groups(frame, list(columns), source=source)
    return GroupRows(match_features(frame, kinds, source=source), values, groups)


def _given(request: GroupRequest) -> dict[str, Any]:
    """Return what was given; the rest is left to the estimator, or its defaults would drift from those here."""
    top_k = request.top_k
    if top_k is not None and top_k >= 1.0 and float(top_k).is_integer():
        top_k = int(top_k)
    given = {
        "top_k": top_k,
        "hidden": () if request.model == "linear" else None,
        "groups_per_batch": request.groups_per_batch,
        "samples_per_group": request.samples_per_group,
        "epochs": request.epochs,
        "lr": request.lr,
    }
    return {key: value for key, value in given.items() if value is not None}


def _command(request: GroupRequest, method: str) -> str:
    options = {name: getattr(request, name) for name in ("groups", "target", "out", "test_size", "test", "top_k")}
    options["method"] = method
    options["task"] = None if request.task == "auto" else request.task
    for name in ("keep_groups", "model", "groups_per_batch", "samples_per_group", "epochs", "lr", "seed", "drop"):
        options[name] = getattr(request, name)
    return command_line("fit", request.data, **options)
