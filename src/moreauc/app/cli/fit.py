"""`moreauc fit`: train on a table, and report how well the model does on held-out rows."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from moreauc._checks import check_choice, check_path, check_real, check_region
from moreauc._registry import BASELINES, METHODS, MODELS, NETWORKS, OTHER_MODELS, Baseline, load
from moreauc.app.baselines import fit_baseline
from moreauc.app.cli.console import print_table, same_command, say, warn, without_column_warnings
from moreauc.app.cli.options import SURROGATES, FitOptions
from moreauc.app.cli.saved import (
    PAGE,
    SavingOptions,
    check_free,
    default_folder,
    locked_folders,
    run_folder,
    save_model,
)
from moreauc.app.report.pages import Report, Section
from moreauc.app.report.verdict import Evaluated, histories_of, kept_epoch, warning_text
from moreauc.app.tables.bags import BagTableTask
from moreauc.app.tables.base import Array, Estimator, Inputs, Split, Table, TableTask, Tested, read_split
from moreauc.app.tables.groups import KINDS, GroupTableTask
from moreauc.app.tables.molecules import CHOICES as MOLECULE_CHOICES
from moreauc.app.tables.molecules import MoleculeTableTask
from moreauc.app.tables.rows import RowTableTask, TwoClassTask
from moreauc.train import History, UntrainedWarning

_LOGGER = logging.getLogger("moreauc.app.cli.fit")
_OWNER = "moreauc fit"
_ONLY_NETWORKS = ("epochs", "batch_size", "lr", "patience", "device", "checkpoint")
_ONLY_BAGS = ("instances_per_bag",)
_ONLY_MOLECULES = ("split", "invalid", "jobs")
_ONLY_GROUPS = ("top_k", "task", "keep_groups", "drop_groups", "groups_per_batch", "samples_per_group")
_RANGES = {
    "lr": partial(check_real, low=0.0, low_open=True),
    "dropout": partial(check_real, low=0.0, high=1.0, high_open=True),
    "fpr_budget": partial(check_real, low=0.0, high=1.0),
}
_NETWORK = ("epochs", "lr", "patience", "device")  # options that are arguments of all networks
_REGION = ("min_tpr", "max_fpr", "fpr_budget")
# options that are arguments of the estimator of each task
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "rows": _REGION,
    "bags": (*_REGION, *_ONLY_BAGS),
    "groups": ("top_k", "groups_per_batch", "samples_per_group"),
}
_WITH = {"rows": "of rows", "bags": "with --bags", "groups": "with --groups"}


def fit(options: FitOptions) -> None:
    """Run the command."""
    out = options.out or default_folder(options.data.stem, force=options.force)
    with locked_folders(out=out, checkpoint=options.checkpoint):
        _fit(replace(options, out=out), out)


def _fit(options: FitOptions, out: Path) -> None:
    begin = time.perf_counter()
    if options.smiles is not None and options.model is options.loss is None:
        options = replace(options, model="linear")  # on fingerprints hard to beat
    kind = choose_task(options)
    options = complete(options, kind)
    folder = None if options.checkpoint is None else check_path(_OWNER, "--checkpoint", options.checkpoint)
    saving = SavingOptions(folder, options.resume, options.save_every)
    check_free(out, force=options.force, with_model=True)
    split = read_split(kind, options)
    task, test = split.task, split.test
    task.check_test(test.targets, f"test {task.unit}")
    say(task.announcement)
    warn(*split.warnings)
    saving.begin()
    note = task.test_note(split)
    with run_folder(out, force=options.force, with_model=True) as place, without_column_warnings():
        counts = f"{len(split.train)} {task.unit} to train on, {len(test)} to test on"
        _LOGGER.info("%s: %s", options.data, counts)
        for line in (*split.warnings, *([] if note is None else [note])):
            _LOGGER.warning("%s", line)
        split = replace(split, task=task.fitted(split.train))
        inputs = split.task.inputs(test)
        models, evaluations = _train_all(options, saving, split, inputs, place)
        command = same_command("fit", options, "checkpoint", "resume", "save_every")
        report = fit_report(options.data, command, split, models, evaluations, inputs)
        report.seconds = time.perf_counter() - begin
        report.write(place, PAGE)
        _LOGGER.info("done in %.1f s", report.seconds)
    for table in task.printed(f"Test {task.unit}: {len(test)}", evaluations):
        print_table(*table)
    say(*report.results["verdict"]["description"], *([] if note is None else [note]))
    warn(*(line for evaluation in evaluations for line in evaluation.warnings))
    warn(*untrained_notes(histories_of(models)))
    say(f"Report: {out / PAGE}")


def _train_all(
    options: FitOptions, saving: SavingOptions, split: Split[Table], inputs: Inputs, place: Path
) -> tuple[dict[str, Estimator], list[Evaluated]]:
    """Train the model and the baselines; return estimators of ours by title, and the numbers of all on the test part.

    The model is the first of both.
    """
    task, train, test = split.task, split.train, split.test
    train_inputs, models, evaluations = task.inputs(train), dict[str, Estimator](), list[Evaluated]()
    first = options.loss or str(options.model)
    for name in dict.fromkeys([first, *choose_baselines(options, type(task))]):
        if isinstance(task, TwoClassTask) and name in _others(type(task)):
            title = BASELINES[task.name][name].title
            evaluations.append(task.evaluate(title, fit_baseline(name, task, train, seed=options.seed), inputs, test))
            continue
        own, given = name == first, dict[str, object](task.fit_options(train))
        if not own:
            other = {"loss": None, "model": name} if name in OTHER_MODELS else {"loss": name}
        model = _estimator(task, options if own else replace(options, **other, surrogate=None))
        if name not in OTHER_MODELS:
            given |= saving.options(name)
        title = model.title
        models[title] = _train(title, model, train_inputs, train.targets, **given)
        if own:  # at once: no later error costs the training
            save_model(place, model, task, train.hashes())
        evaluations.append(task.evaluate(title, model, inputs, test))
        if len(parts := model.describe().members) > 1:
            evaluations += [task.evaluate(f"{name} alone", part, inputs, test) for name, part in parts.items()]
    return models, evaluations


def _train(title: str, model: Estimator, inputs: Inputs, targets: Array, **options: object) -> Estimator:
    """Fit an estimator, with options of its `fit`, and log its epochs; return it."""
    begin = time.perf_counter()
    _LOGGER.info("%s: training begins", title)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrainedWarning)  # logged below, with the title of the model
        model.fit(inputs, targets, **options)
    histories = histories_of({title: model})
    for history in histories.values():
        if history.choice:
            _LOGGER.info("%s: weights kept %s, %s", title, kept_epoch(history), history.choice)
    _LOGGER.info("%s: trained in %.1f s", title, time.perf_counter() - begin)
    for note in untrained_notes(histories):
        _LOGGER.warning("%s", note)
    return model


def choose_task(options: FitOptions) -> type[TableTask[Any, Any, Any]]:
    """Return the task that was asked for, after a check that the options fit it and each other."""
    bags, groups = options.bags, options.groups
    if bags is not None and groups is not None:
        raise ValueError(f"{_OWNER}: --bags and --groups exclude each other, got {bags!r} and {groups!r}")
    if options.keep_groups and options.drop_groups:
        raise ValueError(f"{_OWNER}: --keep-groups and --drop-groups exclude each other, got both")
    own = "does not go with --bags, whose column names them"
    sizes = "does not go with --groups; use --groups-per-batch and --samples-per-group"
    linear = "does not go with --model linear, unless --loss names how to train a network"
    fixed = options.model in ("trees", "auto")
    for applies, names, why in (
        (bags is None, _ONLY_BAGS, "needs --bags"),
        (groups is None, _ONLY_GROUPS, "needs --groups"),
        (bags is not None, ("smiles", *_ONLY_MOLECULES, "model", "dropout"), "does not go with --bags"),
        (bags is not None, ("id",), own),
        (groups is not None, ("batch_size",), sizes),
        (groups is not None, ("positive", *_REGION), "is for TPAUC and does not go with --groups"),
        (groups is not None, ("smiles", *_ONLY_MOLECULES, "dropout"), "does not go with --groups"),
        (options.smiles is None, _ONLY_MOLECULES, "needs --smiles"),
        (options.smiles is not None, ("drop",), "does not go with --smiles, besides which no column is used"),
        (groups is None and options.model in OTHER_MODELS, ("dropout",), "needs --model mlp"),
        (groups is None and options.model == "linear" and options.loss is None, _ONLY_NETWORKS, linear),
        (groups is None and fixed, ("loss", *_ONLY_NETWORKS), f"does not go with --model {options.model}"),
        (groups is None and options.model == "auto", ("surrogate",), "does not go with --model auto"),
    ):
        for name in names if applies else ():
            value = getattr(options, name)
            if value is not None and value is not False:
                raise ValueError(f"{_OWNER}: --{name.replace('_', '-')} {why}, got {value!r}")
    if bags is not None or groups is not None:
        return GroupTableTask if bags is None else BagTableTask
    return RowTableTask if options.smiles is None else MoleculeTableTask


def complete(options: FitOptions, kind: type[TableTask[Any, Any, Any]]) -> FitOptions:
    """Return the options with the defaults of the task, after a check of their values."""
    rows = issubclass(kind, RowTableTask)
    loss = options.loss or (None if rows and options.model in OTHER_MODELS else kind.default)
    options = replace(options, loss=loss)
    models = ("mlp", *OTHER_MODELS) if rows else ("mlp", "linear")
    choices = {"task": KINDS, "model": models, "surrogate": SURROGATES, **MOLECULE_CHOICES}
    if kind is not BagTableTask:
        options = replace(options, model=options.model or "mlp")
    if kind is not GroupTableTask:
        low, high = check_region(_OWNER, *options.region, names=("--min-tpr", "--max-fpr"))
        options = replace(options, min_tpr=low, max_fpr=high)
    for name, check in _RANGES.items():
        if (number := getattr(options, name)) is not None:
            check(_OWNER, f"--{name.replace('_', '-')}", number)
    for name, allowed in choices.items():
        if (value := getattr(options, name)) is not None:
            check_choice(_OWNER, f"--{name}", value, allowed)
    method = None
    if options.loss is not None:
        others = [_WITH[name] for name in METHODS if name != kind.name and options.loss in METHODS[name]]
        hint = f"; that is a loss {' or '.join(others)}, not {_WITH[kind.name]}" if others else ""
        check_choice(_OWNER, "--loss", options.loss, METHODS[kind.name], hint=hint)
        method = METHODS[kind.name][options.loss]
    if options.surrogate is not None and method is not None and "surrogate" not in method.allowed:
        raise ValueError(f"{_OWNER}: --surrogate is for losses of pairs, and does not go with --loss {options.loss}")
    choose_baselines(options, kind)
    return options


def choose_baselines(options: FitOptions, kind: type[TableTask[Any, Any, Any]]) -> tuple[str, ...]:
    """Return the methods to compare with."""
    if options.baselines is None:
        return kind.baselines
    names = tuple(name.strip() for name in options.baselines.split(","))
    if names == ("none",):
        return ()
    others, known = _others(kind), [*METHODS[kind.name], *(OTHER_MODELS if issubclass(kind, RowTableTask) else ())]
    for name in names:
        check_choice(_OWNER, "--baselines", name, ["none", *known, *others])
        if name in others:
            others[name].check_installed()
    return names


def _others(kind: type[TableTask[Any, Any, Any]]) -> Mapping[str, Baseline]:
    """Return the classifiers of other libraries to compare with."""
    return {} if kind is GroupTableTask else BASELINES[kind.name]


def _estimator(task: TableTask[Any, Any, Any], options: FitOptions) -> Estimator:
    """Return the estimator to train; what was not given is left to its own defaults."""
    given = {
        name: getattr(options, name)
        for name in (*_ARGUMENTS[task.name], *(_NETWORK if options.loss else ("surrogate",)))
    }
    if options.loss and options.surrogate is not None:
        given["loss_options"] = {"surrogate": options.surrogate}
    network: str = task.name
    if isinstance(task, GroupTableTask):
        network = task.target.task
        given["hidden"] = () if options.model == "linear" else None
        if options.top_k is not None and options.top_k >= 1.0 and float(options.top_k).is_integer():
            given["top_k"] = int(options.top_k)
    else:
        given["positive_label"] = 1  # labels are 0 and 1 here
    if task.name == "bags":
        given["standardize"] = False  # the encoder of the task has done that, and knows numbers from levels
        if (size := options.batch_size) is not None:
            given |= {"num_positives": size // 2, "num_negatives": size - size // 2}
    if task.name == "rows" and options.loss:
        given |= {"module": options.model, "batch_size": options.batch_size, "dropout": options.dropout}
    given = {key: value for key, value in given.items() if value is not None}
    if options.loss:
        given |= {"loss": options.loss, "verbose": 1}
    maker = load(NETWORKS[network]) if options.loss else MODELS[str(options.model)].maker
    model: Estimator = maker(random_state=options.seed, **given)
    return model


def fit_report(
    data: Path,
    command: str,
    split: Split[Table],
    models: dict[str, Estimator],
    evaluations: Sequence[Evaluated],
    inputs: Inputs,
) -> Report:
    """Return the report of a training."""
    task, first = split.task, next(iter(models.values()))
    histories = histories_of(models)
    notes = untrained_notes(histories)
    parts = {"training": split.train, "test": split.test}
    settings = {key: value for key, value in first.get_params().items() if key != "verbose"}
    result, further = task.result(Tested(first, inputs, split.test, evaluations, notes, split.train))
    training, more = task.training(models, split)
    rows = [(key, str(value)) for key, value in settings.items()]
    about, note = f"{data.name}: {task.description()}. {task.columns_text()}", task.test_note(split)
    sections = [
        *result,
        training,
        task.data_section(parts, [about, *warning_text(split.warnings), *([] if note is None else [note])]),
        Section("Settings", columns=("argument", "value"), rows=rows),
    ]
    plain = {key: value if isinstance(value, int | float | None) else str(value) for key, value in settings.items()}
    facts = {
        "file": str(data),
        **task.facts(),
        "columns": task.kinds,
        "warnings": list(split.warnings),
        **{name: task.counts(part) for name, part in parts.items()},
        **task.split_facts(split),
    }
    results = {
        "data": facts,
        "test": [evaluation.to_dict() for evaluation in evaluations],
        **further,
        **more,
        "settings": plain,
        "warnings": notes,
        "history": {title: history.to_dict() for title, history in histories.items()},
    }
    return Report(f"{evaluations[0].title} on {data.name}", command, results, sections)


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
