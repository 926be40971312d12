"""`moreauc fit`: train on a table, and report how well the model does on rows it has not seen."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer

from moreauc._checks import check_path, check_region
from moreauc.cli import _options as options
from moreauc.cli._console import (
    already_told,
    command_line,
    console,
    print_table,
    say,
    warn,
)
from moreauc.cli._evaluation import (
    COLUMNS,
    Array,
    Evaluation,
    check_rows,
    evaluate_scores,
)
from moreauc.cli._fit_bags import BagRequest, fit_bags
from moreauc.cli._fit_groups import GroupRequest, fit_groups
from moreauc.cli._fit_options import check_options
from moreauc.cli._levels import check_drawn, compare_levels
from moreauc.cli._run_folder import (
    PAGE,
    alone_in,
    check_free,
    run_folder,
)
from moreauc.cli._saved import save_model
from moreauc.cli._saving import Saving
from moreauc.cli._test_rows import (
    TEST_SIZE,
    compare_rows,
    draw_test_rows,
    name_equal_to_test,
)
from moreauc.cli._training import train, untrained_notes
from moreauc.data._doubtful import doubtful_columns
from moreauc.data.columns import (
    Target,
    check_features,
    drop_columns,
    match_features,
    match_target,
    split_target,
)
from moreauc.data.duplicates import hash_rows
from moreauc.data.tables import TableError, read_texts

_LOGGER = logging.getLogger("moreauc.cli.fit")


@dataclass(frozen=True)
class Split:
    """A table with its target taken out, in rows to train on and rows to test on.

    Attributes:
        train: rows to train on.
        train_labels: their labels.
        test: rows to test on.
        test_labels: their labels.
        kinds: columns to learn from, and what they hold.
        target: what is predicted.
        warnings: what to tell about columns and rows.
    """

    train: pd.DataFrame
    train_labels: Array
    test: pd.DataFrame
    test_labels: Array
    kinds: dict[str, str]
    target: Target
    warnings: tuple[str, ...] = ()


@alone_in("out", "checkpoint")
def fit(
    context: typer.Context,
    data: options.Data,
    target: Annotated[
        str, typer.Option(help="Column with the two classes; with --groups of any target.", show_default=False)
    ],
    out: options.Out,
    positive: options.Positive = None,
    min_tpr: options.MinTPR = 0.5,
    max_fpr: options.MaxFPR = 0.5,
    test_size: Annotated[
        float | None,
        typer.Option(help=f"Share of the rows or bags to test on; {TEST_SIZE} if not given.", show_default=False),
    ] = None,
    test: Annotated[
        Path | None, typer.Option(help="Table to test on, instead of a share of DATA.", show_default=False)
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="sonx, ce, ce_weighted, auc_sh, auc_m, mb, aw_poly or sota_s; neither with --bags nor with --groups. "
            "sonx if not given.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="mlp or linear; not with --bags. mlp if not given.", show_default=False)
    ] = None,
    bags: Annotated[
        str | None,
        typer.Option(help="Column that names the bag of each row; rows are then instances.", show_default=False),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="With --bags: sont_mean, sont_smx, sont_att, auc_m_att, midam_smx, midam_att, sota_s_att or ce_att; "
            "sont_att if not given. With --groups: sonx, exponentiated, erm, erm_reweighted or cvar; sonx if none.",
            show_default=False,
        ),
    ] = None,
    instances_per_bag: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Instances of each bag in a step; with --bags. The classifier's default.",
            show_default=False,
        ),
    ] = None,
    groups: options.Groups = None,
    top_k: options.TopK = None,
    task: options.Task = None,
    keep_groups: options.KeepGroups = False,
    drop_groups: options.DropGroups = False,
    groups_per_batch: options.GroupsPerBatch = None,
    samples_per_group: options.SamplesPerGroup = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Passes over the training rows or bags; the classifier's default.", show_default=False
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=2, help="Rows or bags of a step; the classifier's default.", show_default=False)
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate; the classifier's default.", show_default=False)
    ] = None,
    seed: options.Seed = 0,
    drop: options.Drop = None,
    force: options.Force = False,
    checkpoint: options.Checkpoint = None,
    resume: options.Resume = False,
    save_every: options.SaveEvery = None,
) -> None:
    """Train a classifier for two-way partial AUC on a table.

    Leaves report.html, report.json, model.joblib and log.txt in the folder OUT. The report shows the chosen loss beside
    cross entropy, trained on the same rows with the same settings.

    With --bags the rows are instances of bags, and the bags are what has a class: split, training and report go by
    bags, and the report shows which instances decided.

    With --groups the loss of the worst groups is minimised instead, for classes of any number or for numbers, and the
    report shows how every group fares.

    With --checkpoint the training is saved while it goes on, and when it is stopped by Ctrl-C or SIGTERM; the same
    command with --resume goes on with it, to the same result.
    """
    from moreauc.cli._pages import fit_report
    from moreauc.estimators import TPAUCClassifier
    from moreauc.methods import METHODS

    begin = time.perf_counter()
    check_options(
        context,
        bags=bags,
        groups=groups,
        method=method,
        only={
            "bags": {"instances_per_bag": instances_per_bag},
            "groups": {
                "top_k": top_k,
                "task": task,
                "keep_groups": keep_groups or None,
                "drop_groups": drop_groups or None,
                "groups_per_batch": groups_per_batch,
                "samples_per_group": samples_per_group,
            },
        },
    )
    saved_in = None if checkpoint is None else check_path("moreauc fit", "--checkpoint", checkpoint)
    saving = Saving(saved_in, resume, save_every)
    if groups is not None:
        return fit_groups(
            GroupRequest(
                data=data,
                groups=groups,
                target=target,
                out=out,
                task=task or "auto",
                method=method,
                top_k=top_k,
                keep_groups=keep_groups,
                test_size=test_size,
                test=test,
                model=model,
                groups_per_batch=groups_per_batch,
                samples_per_group=samples_per_group,
                epochs=epochs,
                lr=lr,
                seed=seed,
                drop=drop or [],
                force=force,
                saving=saving,
            )
        )
    if bags is not None:
        request = BagRequest(
            data=data,
            bags=bags,
            target=target,
            out=out,
            positive=positive,
            min_tpr=min_tpr,
            max_fpr=max_fpr,
            test_size=test_size,
            test=test,
            method=method,
            instances_per_bag=instances_per_bag,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            seed=seed,
            drop=drop or [],
            force=force,
            saving=saving,
        )
        return fit_bags(request)
    loss, model = loss or "sonx", model or "mlp"
    check_region("moreauc fit", min_tpr, max_fpr)
    if loss not in METHODS["rows"]:
        raise ValueError(f"moreauc fit: --loss must be one of {', '.join(METHODS['rows'])}, got {loss!r}")
    check_free(out, force=force, with_model=True)
    split = read_split(data, target, positive=positive, test_size=test_size, test=test, seed=seed, drop=drop or [])
    check_rows(split.test_labels, "test rows", min_tpr=min_tpr, max_fpr=max_fpr)
    say(f"Positive class: {split.target.name} = {split.target.positive} ({split.target.reason})")
    warn(*split.warnings)
    facts: dict[str, Any] = {"target": target, "positive": str(split.target.positive), "loss": loss, "model": model}
    saving.begin(data, split.kinds, **facts, min_tpr=min_tpr, max_fpr=max_fpr)
    with run_folder(out, force=force, with_model=True) as folder, already_told():
        _LOGGER.info("%s: %d rows to train on, %d to test on", data, len(split.train), len(split.test))
        for line in split.warnings:
            _LOGGER.warning("%s", line)
        # What was not given is left to the classifier: a second set of defaults here would drift from its own.
        given: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "lr": lr}
        given = {key: value for key, value in given.items() if value is not None}
        models: dict[str, Any] = {}
        evaluations: list[Evaluation] = []
        for name in dict.fromkeys([loss, "ce"]):
            title = METHODS["rows"][name].title
            classifier = TPAUCClassifier(
                loss=name,
                min_tpr=min_tpr,
                max_fpr=max_fpr,
                module=model,
                probabilities="calibrated",
                random_state=seed,
                verbose=int(console.is_terminal),
                **given,
            )
            models[title] = train(title, classifier, split.train, split.train_labels, **saving.options(name))
            if name == loss:  # at once: nothing that fails from here on costs the training
                hashes = hash_rows(split.train)
                save_model(folder, classifier, split.kinds, split.target, (min_tpr, max_fpr), hashes)
            evaluations.append(evaluate_model(title, models[title], split.test, split.test_labels))
        command = command_line(
            *("fit", data),
            **{"target": target, "positive": positive, "min_tpr": min_tpr, "max_fpr": max_fpr, "out": out},
            **{"test_size": test_size, "test": test, "loss": loss, "model": model, "epochs": epochs},
            **{"batch_size": batch_size, "lr": lr, "seed": seed, "drop": drop},
        )
        report = fit_report(data, command, split, models, evaluations)
        report.seconds = time.perf_counter() - begin
        report.write(folder, PAGE)
        _LOGGER.info("done in %.1f s", report.seconds)
    print_table(f"Test rows: {len(split.test)}", COLUMNS, [evaluation.row for evaluation in evaluations])
    warn(*(line for evaluation in evaluations for line in evaluation.warnings))
    warn(*untrained_notes({title: model.history_ for title, model in models.items()}))
    say(f"Report: {out / PAGE}")


def read_split(
    data: Path,
    target: str,
    *,
    positive: str | None,
    test_size: float | None,
    test: Path | None,
    seed: int,
    drop: list[str],
) -> Split:
    """Read and check a table, and set rows to test on aside.

    Raises:
        TableError: if a table cannot be used.
    """
    if test is not None and test_size is not None:
        raise TableError("--test and --test-size exclude each other")
    frame, labels, classes = split_target(read_texts(data), target, positive=positive, source=str(data))
    features, kinds = check_features(drop_columns(frame, drop, source=str(data)), source=str(data))
    hashes, doubts = hash_rows(features), doubtful_columns(features)
    if test is not None:
        other, other_labels = match_target(read_texts(test), classes, source=str(test))
        rows = match_features(other, kinds, source=str(test))
        doubts += compare_levels(features, rows, str(test))
        doubts += compare_rows((hashes, labels), (hash_rows(rows), other_labels), data, test)
        return Split(features, labels, rows, other_labels, kinds, classes, tuple(doubts))
    held = draw_test_rows(labels, TEST_SIZE if test_size is None else test_size, seed, hashes)
    rest = np.setdiff1d(np.arange(len(labels)), held)
    parts = (features.iloc[rest], labels[rest], features.iloc[held], labels[held])
    check_drawn(parts[0], parts[2], str(data))
    doubts += name_equal_to_test(hashes, held)
    return Split(*parts, kinds, classes, tuple(doubts))


def evaluate_model(title: str, classifier: Any, features: pd.DataFrame, labels: Array) -> Evaluation:
    """Score rows with a fitted classifier; scores are distances from its threshold."""
    scores = classifier.decision_function(features)
    evaluation = evaluate_scores(
        title, labels, scores, scores > 0, threshold=0.0, min_tpr=classifier.min_tpr, max_fpr=classifier.max_fpr
    )
    _LOGGER.info("%s: TPAUC %.4f %s, AUC %.4f", title, evaluation.tpauc.estimate, evaluation.interval, evaluation.auc)
    for line in evaluation.warnings:
        _LOGGER.warning("%s", line)
    return evaluation
