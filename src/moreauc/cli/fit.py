"""`moreauc fit`: train on a table, and report how well the model does on rows it has not seen."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from moreauc._checks import check_path, check_region
from moreauc.cli.console import already_told, command_line, console, print_table, say, warn
from moreauc.cli.options import FitOptions
from moreauc.cli.saved import PAGE, Saving, check_free, locked_folders, run_folder, save_model
from moreauc.estimators import GroupDROClassifier, GroupDRORegressor, MultiInstanceClassifier, TPAUCClassifier
from moreauc.methods import METHODS
from moreauc.report.pages import Report, Section
from moreauc.tasks.bag_tables import BagTableTask
from moreauc.tasks.group_tables import KINDS, GroupTableTask
from moreauc.tasks.row_tables import RowTableTask
from moreauc.tasks.tables import Split, TableTask, kept_epoch, read_split, warning_text
from moreauc.train import History, UntrainedWarning

_LOGGER = logging.getLogger("moreauc.cli.fit")
_OWNER = "moreauc fit"
_ONLY_BAGS = ("instances_per_bag",)
_ONLY_GROUPS = ("top_k", "task", "keep_groups", "drop_groups", "groups_per_batch", "samples_per_group")
_SETTINGS = ("loss", "model", "min_tpr", "max_fpr", "top_k", *_ONLY_BAGS, "groups_per_batch", "samples_per_group")
_NOT_REPEATED = ("data", "force", "checkpoint", "resume", "save_every")  # in the command of a report


def fit(options: FitOptions) -> None:
    """Run the command."""
    with locked_folders(out=options.out, checkpoint=options.checkpoint):
        _fit(options)


def _fit(options: FitOptions) -> None:
    begin = time.perf_counter()
    kind = choose_task(options)
    options = complete(options, kind)
    folder = None if options.checkpoint is None else check_path(_OWNER, "--checkpoint", options.checkpoint)
    saving = Saving(folder, options.resume, options.save_every)
    check_free(options.out, force=options.force, with_model=True)
    split = read_split(kind, options)
    task, test = split.task, split.test
    task.check_test(test.targets, f"test {task.unit}")
    say(task.announcement)
    warn(*split.warnings)
    saving.begin(options.data, task.kinds, **task.facts(), **{name: getattr(options, name) for name in _SETTINGS})
    note = task.test_note(split)
    with run_folder(options.out, force=options.force, with_model=True) as place, already_told():
        counts = f"{len(split.train)} {task.unit} to train on, {len(test)} to test on"
        _LOGGER.info("%s: %s", options.data, counts)
        for line in (*split.warnings, *([] if note is None else [note])):
            _LOGGER.warning("%s", line)
        split = replace(split, task=task.fitted(split.train))
        inputs = split.task.inputs(test)
        models, evaluations = _train_all(options, saving, split, inputs, place)
        report = fit_report(options.data, _command(options), split, models, evaluations, inputs)
        report.seconds = time.perf_counter() - begin
        report.write(place, PAGE)
        _LOGGER.info("done in %.1f s", report.seconds)
    for table in task.printed(f"Test {task.unit}: {len(test)}", evaluations):
        print_table(*table)
    say(*([] if note is None else [note]))
    warn(*(line for evaluation in evaluations for line in evaluation.warnings))
    warn(*untrained_notes({title: model.history_ for title, model in models.items()}))
    say(f"Report: {options.out / PAGE}")


def _train_all(
    options: FitOptions, saving: Saving, split: Split[Any], inputs: Any, place: Path
) -> tuple[dict[str, Any], list[Any]]:
    """Train with the chosen loss and the baseline; return models by title, and their numbers on the test part."""
    task, train = split.task, split.train
    train_inputs, models, evaluations = task.inputs(train), {}, []
    for loss in dict.fromkeys([str(options.loss), task.baseline]):
        title = METHODS[task.name][loss].title
        model = _estimator(task, replace(options, loss=loss))
        given = {**task.fit_options(train), **saving.options(loss)}
        models[title] = _train(title, model, train_inputs, train.targets, **given)
        if loss == options.loss:  # at once: no later error costs the training
            save_model(place, model, task, train.hashes())
        evaluations.append(task.evaluate(title, model, inputs, split.test))
    return models, evaluations


def _train(title: str, model: Any, inputs: Any, targets: Any, **options: Any) -> Any:
    """Fit an estimator, with options of its `fit`, and log its epochs; return it."""
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrainedWarning)  # logged below, with the title of the model
        model.fit(inputs, targets, **options)
    for row in model.history_.rows:
        numbers = ", ".join(f"{key} {value:.6g}" for key, value in row.items() if key not in ("phase", "epoch"))
        _LOGGER.info("%s, %s epoch %d: %s", title, row["phase"], row["epoch"] + 1, numbers)
    if model.history_.choice:
        _LOGGER.info("%s: weights kept %s, %s", title, kept_epoch(model.history_), model.history_.choice)
    _LOGGER.info("%s: trained in %.1f s", title, time.perf_counter() - begin)
    for note in untrained_notes({title: model.history_}):
        _LOGGER.warning("%s", note)
    return model


def choose_task(options: FitOptions) -> type[TableTask[Any]]:
    """Return the task that was asked for, after a check that the options fit it and each other."""
    bags, groups = options.bags, options.groups
    if bags is not None and groups is not None:
        raise ValueError(f"{_OWNER}: --bags and --groups exclude each other, got {bags!r} and {groups!r}")
    if options.keep_groups and options.drop_groups:
        raise ValueError(f"{_OWNER}: --keep-groups and --drop-groups exclude each other, got both")
    if bags is None:
        _refuse(options, _ONLY_BAGS, "needs --bags")
    if groups is None:
        _refuse(options, _ONLY_GROUPS, "needs --groups")
    if bags is not None:
        _refuse(options, ("model",), "does not go with --bags")
        return BagTableTask
    if groups is not None:
        _refuse(options, ("batch_size",), "does not go with --groups; use --groups-per-batch and --samples-per-group")
        _refuse(options, ("positive", "min_tpr", "max_fpr"), "is for TPAUC and does not go with --groups")
        return GroupTableTask
    return RowTableTask


def _refuse(options: FitOptions, names: tuple[str, ...], why: str) -> None:
    for name in names:
        value = getattr(options, name)
        if value is not None and value is not False:
            raise ValueError(f"{_OWNER}: --{name.replace('_', '-')} {why}, got {value!r}")


def complete(options: FitOptions, kind: type[TableTask[Any]]) -> FitOptions:
    """Return the options with the defaults of the task, after a check of their values."""
    changes: dict[str, Any] = {"loss": options.loss or kind.default}
    choices = {"loss": tuple(METHODS[kind.name]), "task": KINDS, "model": ("mlp", "linear")}
    if kind is not BagTableTask:
        changes["model"] = options.model or "mlp"
    if kind is not GroupTableTask:
        region = (0.5 if edge is None else edge for edge in (options.min_tpr, options.max_fpr))
        changes["min_tpr"], changes["max_fpr"] = check_region(_OWNER, *region)
    options = replace(options, **changes)
    for name, allowed in choices.items():
        value = getattr(options, name)
        if value is not None and value not in allowed:
            raise ValueError(f"{_OWNER}: --{name} must be one of {', '.join(allowed)}, got {value!r}")
    return options


def _estimator(task: TableTask[Any], options: FitOptions) -> Any:
    """Return the estimator; what was not given is left to its own defaults."""
    top_k, size = options.top_k, options.batch_size
    given: dict[str, Any] = {"epochs": options.epochs, "lr": options.lr}
    kind: type[Any] = TPAUCClassifier
    if isinstance(task, GroupTableTask):
        kind = GroupDRORegressor if task.target.task == "regression" else GroupDROClassifier
        whole = top_k is not None and top_k >= 1.0 and float(top_k).is_integer()
        given |= {"top_k": int(top_k) if top_k is not None and whole else top_k}
        given |= {"hidden": () if options.model == "linear" else None}
        given |= {name: getattr(options, name) for name in ("groups_per_batch", "samples_per_group")}
    else:
        given |= {"min_tpr": options.min_tpr, "max_fpr": options.max_fpr, "probabilities": "calibrated"}
    if isinstance(task, RowTableTask):
        given |= {"module": options.model, "batch_size": size}
    if isinstance(task, BagTableTask):
        kind = MultiInstanceClassifier
        given["standardize"] = False  # the encoder of the task has done that, and knows numbers from levels
        given["instances_per_bag"] = options.instances_per_bag
        if size is not None:
            given |= {"num_positives": size // 2, "num_negatives": size - size // 2}
    given = {key: value for key, value in given.items() if value is not None}
    return kind(loss=options.loss, random_state=options.seed, verbose=int(console.is_terminal), **given)


def _command(options: FitOptions) -> str:
    """Return the command that gives the same report again."""
    names = [field.name for field in fields(options) if field.name not in _NOT_REPEATED]
    return command_line("fit", options.data, **{name: getattr(options, name) for name in names})


def fit_report(
    data: Path, command: str, split: Split[Any], models: dict[str, Any], evaluations: Sequence[Any], inputs: Any
) -> Report:
    """Return the report of a training."""
    task, first = split.task, next(iter(models.values()))
    histories = {title: model.history_ for title, model in models.items()}
    notes = untrained_notes(histories)
    parts = {"training": split.train, "test": split.test}
    settings = {key: value for key, value in first.get_params().items() if key != "verbose"}
    result, further = task.result(evaluations, first, inputs, split.test, notes)
    training, more = task.training(models, split)
    rows = [(key, str(value)) for key, value in settings.items()]
    sections = [
        *result,
        training,
        task.data_section(parts, _data_text(data, split)),
        Section("Settings", columns=("argument", "value"), rows=rows),
    ]
    results = {
        "data": {
            "file": str(data),
            **task.facts(),
            "columns": task.kinds,
            "warnings": list(split.warnings),
            **{name: task.counts(part) for name, part in parts.items()},
            **task.split_facts(split),
        },
        "test": [evaluation.to_dict() for evaluation in evaluations],
        **further,
        **more,
        "settings": {
            key: value if isinstance(value, int | float | None) else str(value) for key, value in settings.items()
        },
        "warnings": notes,
        "history": {title: history.to_dict() for title, history in histories.items()},
    }
    return Report(f"{evaluations[0].title} on {data.name}", command, results, sections)


def _data_text(data: Path, split: Split[Any]) -> list[str]:
    task = split.task
    numbers = sum(kind != "text" for kind in task.kinds.values())
    columns = f"{len(task.kinds)} columns: {numbers} of numbers, {len(task.kinds) - numbers} of text"
    note = task.test_note(split)
    return [
        f"{data.name}: {task.description()}. {columns}.",
        *warning_text(split.warnings),
        *([] if note is None else [note]),
    ]


def untrained_notes(histories: dict[str, History]) -> list[str]:
    """Return a sentence for each model whose best weights are those from before its training.

    Example:
        >>> untrained_notes({"SONX": History(best_epoch=3, restored=True)})
        []
        >>> untrained_notes({"SONX": History(best_epoch=-1, restored=True)})
        ['SONX is untrained. No epoch did better on the validation data than ...']
    """
    return [
        f"{title} is untrained. No epoch did better on the validation data than the weights before training, "
        "which were kept. Either the columns tell nothing about the target, or there are too few rows or epochs "
        "(--epochs), or the learning rate (--lr) does not fit."
        for title, history in histories.items()
        if history.untrained
    ]
