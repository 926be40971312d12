"""`moreauc fit --bags`: rows are instances, a column names their bag, and the bags are learnt and reported on."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from moreauc._checks import check_region
from moreauc.cli._bag_table import BagTable, match_bags, read_bags
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
from moreauc.cli._levels import check_drawn, compare_levels
from moreauc.cli._run_folder import PAGE, check_free, run_folder
from moreauc.cli._saved import save_bag_model
from moreauc.cli._saving import Saving
from moreauc.cli._test_rows import (
    TEST_SIZE,
    compare_rows,
    draw_test_rows,
    name_equal_to_test,
)
from moreauc.cli._training import train, untrained_notes
from moreauc.data import Bags
from moreauc.data._doubtful import doubtful_columns
from moreauc.data.columns import Target, match_features
from moreauc.data.tables import TableError, read_texts
from moreauc.data.tabular import TableEncoder

_LOGGER = logging.getLogger("moreauc.cli.fit")


@dataclass(frozen=True)
class BagSplit:
    """A table of instances, in bags to train on and bags to test on."""

    train: BagTable
    test: BagTable
    kinds: dict[str, str]
    target: Target
    column: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class BagRequest:
    """What `moreauc fit --bags` was asked for; the attributes are its options."""

    data: Path
    bags: str
    target: str
    out: Path
    positive: str | None
    min_tpr: float
    max_fpr: float
    test_size: float | None
    test: Path | None
    method: str | None
    instances_per_bag: int | None
    epochs: int | None
    batch_size: int | None
    lr: float | None
    seed: int
    drop: list[str]
    force: bool
    saving: Saving


def fit_bags(request: BagRequest) -> None:
    """Train a classifier of bags, and attention by cross entropy beside it; see :func:`moreauc.cli.fit.fit`."""
    from moreauc.cli._bag_pages import fit_bags_report
    from moreauc.estimators import MultiInstanceClassifier
    from moreauc.methods import METHODS

    begin = time.perf_counter()
    method = "sont_att" if request.method is None else request.method
    region = check_region("moreauc fit", request.min_tpr, request.max_fpr)
    if method not in METHODS["bags"]:
        raise ValueError(f"moreauc fit: --method must be one of {', '.join(METHODS['bags'])}, got {method!r}")
    check_free(request.out, force=request.force, with_model=True)
    split = read_bag_split(request)
    check_rows(split.test.labels, "test bags", min_tpr=region[0], max_fpr=region[1], unit="bags")
    say(f"Positive class: {split.target.name} = {split.target.positive} ({split.target.reason})")
    warn(*split.warnings)
    facts: dict[str, Any] = {"target": request.target, "positive": str(split.target.positive), "bags": request.bags}
    facts |= {"method": method, "min_tpr": region[0], "max_fpr": region[1]}
    facts |= {"instances_per_bag": request.instances_per_bag}
    request.saving.begin(request.data, split.kinds, **facts)
    with run_folder(request.out, force=request.force, with_model=True) as folder, already_told():
        counts = len(split.train.names), len(split.test.names)
        _LOGGER.info("%s: %d bags to train on, %d to test on", request.data, *counts)
        for line in split.warnings:
            _LOGGER.warning("%s", line)
        encoder = TableEncoder(owner="fit").fit(split.train.features)
        bags, test = split.train.encode(encoder), split.test.encode(encoder)
        models: dict[str, Any] = {}
        evaluations: list[Evaluation] = []
        for name in dict.fromkeys([method, "ce_att"]):
            title = METHODS["bags"][name].title
            classifier = MultiInstanceClassifier(
                loss=name,
                min_tpr=region[0],
                max_fpr=region[1],
                standardize=False,  # the encoder has done that, and knows numbers from levels
                probabilities="calibrated",
                random_state=request.seed,
                verbose=int(console.is_terminal),
                **_given(request),
            )
            models[title] = train(title, classifier, bags, split.train.labels, **request.saving.options(name))
            if name == method:  # at once: nothing that fails from here on costs the training
                hashes = split.train.hashes()
                save_bag_model(folder, classifier, split.kinds, split.target, region, hashes, request.bags, encoder)
            evaluations.append(evaluate_bags(title, classifier, test, split.test.labels))
        report = fit_bags_report(request.data, _command(request, method), split, test, models, evaluations)
        report.seconds = time.perf_counter() - begin
        report.write(folder, PAGE)
        _LOGGER.info("done in %.1f s", report.seconds)
    print_table(f"Test bags: {len(split.test.names)}", COLUMNS, [evaluation.row for evaluation in evaluations])
    warn(*(line for evaluation in evaluations for line in evaluation.warnings))
    warn(*untrained_notes({title: model.history_ for title, model in models.items()}))
    say(f"Report: {request.out / PAGE}")


def read_bag_split(request: BagRequest) -> BagSplit:
    """Read and check a table of instances, and set bags to test on aside.

    Raises:
        TableError: if a table cannot be used.
    """
    if request.test is not None and request.test_size is not None:
        raise TableError("--test and --test-size exclude each other")
    table, kinds, target = read_bags(
        request.data, request.bags, request.target, positive=request.positive, drop=request.drop
    )
    hashes, doubts = table.hashes(), doubtful_columns(table.features)
    if request.test is not None:
        source, frame = str(request.test), read_texts(request.test)
        codes, names, labels = match_bags(frame, request.bags, target, source=source)
        test = BagTable(match_features(frame, kinds, source=source), codes, names, labels)
        parts = (hashes, table.labels), (test.hashes(), test.labels)
        doubts += compare_levels(table.features, test.features, source)
        doubts += compare_rows(*parts, request.data, request.test, unit="bags")
        return BagSplit(table, test, kinds, target, request.bags, tuple(doubts))
    share = TEST_SIZE if request.test_size is None else request.test_size
    held = draw_test_rows(table.labels, share, request.seed, hashes, unit="bags")
    rest = np.setdiff1d(np.arange(len(table.names)), held)
    drawn = table.part(rest), table.part(held)
    check_drawn(drawn[0].features, drawn[1].features, str(request.data))
    doubts += name_equal_to_test(hashes, held, unit="bags")
    return BagSplit(*drawn, kinds, target, request.bags, tuple(doubts))


def margins(classifier: Any, bags: Bags) -> Array:
    """Return how far the scores of bags are from the classifier's threshold; above 0 is a positive decision."""
    result: Array = classifier.decision_function(bags)
    return result


def evaluate_bags(title: str, classifier: Any, bags: Bags, labels: Array) -> Evaluation:
    """Score bags with a fitted classifier; scores are distances from its threshold."""
    scores = margins(classifier, bags)
    evaluation = evaluate_scores(
        title,
        labels,
        scores,
        scores > 0,
        threshold=0.0,
        min_tpr=classifier.min_tpr,
        max_fpr=classifier.max_fpr,
        unit="bags",
    )
    _LOGGER.info("%s: TPAUC %.4f %s, AUC %.4f", title, evaluation.tpauc.estimate, evaluation.interval, evaluation.auc)
    for line in evaluation.warnings:
        _LOGGER.warning("%s", line)
    return evaluation


def _given(request: BagRequest) -> dict[str, Any]:
    """Return what was given; the rest is left to the classifier, or its defaults would drift from those here."""
    size = request.batch_size
    given = {
        "epochs": request.epochs,
        "lr": request.lr,
        "instances_per_bag": request.instances_per_bag,
        "num_positives": None if size is None else size // 2,
        "num_negatives": None if size is None else size - size // 2,
    }
    return {key: value for key, value in given.items() if value is not None}


def _command(request: BagRequest, method: str) -> str:
    names = ("bags", "target", "positive", "min_tpr", "max_fpr", "out", "test_size", "test")
    options = {name: getattr(request, name) for name in names}
    options["method"] = method
    for name in ("instances_per_bag", "epochs", "batch_size", "lr", "seed", "drop"):
        options[name] = getattr(request, name)
    return command_line("fit", request.data, **options)
