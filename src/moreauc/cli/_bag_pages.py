"""The pages of the commands on bags: those of rows, and which instances decided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from moreauc.cli._bag_table import BagTable
from moreauc.cli._evaluation import Array, Evaluation
from moreauc.cli._fit_bags import BagSplit, margins
from moreauc.cli._levels import levels_text
from moreauc.cli._pages import (
    plain_settings,
    result_section,
    score_section,
    settings_of,
    settings_section,
    target_dict,
    training_section,
    warning_text,
)
from moreauc.cli._training import untrained_notes
from moreauc.data import Bags
from moreauc.report.bag_figures import plot_instance_weights
from moreauc.report.figures import as_image
from moreauc.report.pages import Report, Section

COUNT_COLUMNS = ("bags of", "bags", "positives", "negatives", "share of positives", "instances")
_MOST = 10  # instances shown of a bag
_BEST = ("best scored positive bag", "No other positive bag has a higher score.")
_HARDEST = ("hardest bag", "No other bag is farther on the wrong side of the threshold, or nearer to it.")
_MEANING = (
    "The weight is what an instance counts in the score of the bag, 1 for all together. The contribution is the weight "
    "times the distance of the instance's score from the threshold: above 0 it spoke for the positive class, below 0 "
    "against it."
)


def fit_bags_report(
    data: Path, command: str, split: BagSplit, test: Bags, models: dict[str, Any], evaluations: list[Evaluation]
) -> Report:
    """Return the report of a training run on bags.

    Args:
        data: the table.
        command: what was typed.
        split: its bags.
        test: the test bags as the classifiers take them.
        models: the fitted classifiers by title, the chosen one first.
        evaluations: their numbers on the test bags.
    """
    first = models[evaluations[0].title]
    scores = {title: margins(model, test) for title, model in models.items()}
    histories = {title: model.history_ for title, model in models.items()}
    parts = {"training": split.train, "test": split.test}
    settings = settings_of(first)
    shown = _instances(split.test, test, first)
    numbers = sum(kind != "text" for kind in split.kinds.values())
    target = split.target
    text = (
        f"{data.name}: bags by {split.column}, target {target.name}, positive class {target.positive} "
        f"({target.reason}), other class {target.negative}. {len(split.kinds)} columns: {numbers} of numbers, "
        f"{len(split.kinds) - numbers} of text."
    )
    sections = [
        result_section(evaluations, first.min_tpr, first.max_fpr, unit="bags", notes=untrained_notes(histories)),
        score_section(split.test.labels, scores, first),
        *_instance_sections(shown, evaluations[0].title),
        training_section(histories, unit="bags"),
        _data_section([text, *warning_text(split.warnings)], parts),
        settings_section(settings),
    ]
    results = {
        "data": {
            "file": str(data),
            "bags": split.column,
            "target": target_dict(target),
            "columns": split.kinds,
            "warnings": list(split.warnings),
            **{name: _counts(part) for name, part in parts.items()},
        },
        "test": [evaluation.to_dict() for evaluation in evaluations],
        "instances": [_heaviest(entry) for entry in shown],
        "settings": plain_settings(settings),
        "warnings": untrained_notes(histories),
        "history": {title: history.to_dict() for title, history in histories.items()},
    }
    return Report(f"{evaluations[0].title} on {data.name}", command, results, sections)


def evaluate_bags_report(
    data: Path,
    command: str,
    title: str,
    table: BagTable,
    bags: Bags,
    model: Any,
    evaluation: Evaluation,
    unknown: dict[str, float],
) -> Report:
    """Return the report of a saved model on other bags; `unknown` is the share of unknown levels of each column."""
    shown = _instances(table, bags, model)
    sections = [
        result_section([evaluation], model.min_tpr, model.max_fpr, unit="bags"),
        score_section(table.labels, {evaluation.title: margins(model, bags)}, model),
        *_instance_sections(shown, evaluation.title),
        _data_section(levels_text(unknown), {data.name: table}),
    ]
    results = {
        "data": {"file": str(data), **_counts(table), "unknown_levels": unknown},
        "test": [evaluation.to_dict()],
        "instances": [_heaviest(entry) for entry in shown],
    }
    return Report(title, command, results, sections)


def _instances(table: BagTable, bags: Bags, model: Any) -> list[dict[str, Any]]:
    """Return the instances of two bags: the positive one with the highest score, and the one that is farthest off."""
    distance = margins(model, bags)
    best = int(np.argmax(np.where(table.labels == 1, distance, -np.inf)))
    hardest = int(np.argmax(np.where(table.labels == 1, -distance, distance)))
    entries = []
    for bag, (role, why) in ((best, _BEST), (hardest, _HARDEST)):
        found = model.instance_scores(bags.instances(bag))
        entries.append(
            {
                "role": role,
                "why": why,
                "bag": table.names[bag],
                "label": int(table.labels[bag]),
                "distance": float(distance[bag]),
                "rows": table.rows(bag).tolist(),
                "score": found.score.tolist(),
                "weight": found.weight.tolist(),
                "contribution": found.contribution.tolist(),
            }
        )
    return entries


def _order(entry: dict[str, Any]) -> list[int]:
    """Return the numbers of the heaviest instances of a bag."""
    order: list[int] = np.argsort(-np.array(entry["weight"]), kind="stable")[:_MOST].tolist()
    return order


def _heaviest(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the heaviest instances only: a bag may have hundreds of thousands."""
    names = ("rows", "score", "weight", "contribution")
    cut = {name: [entry[name][k] for k in _order(entry)] for name in names}
    return {"size": len(entry["rows"]), **entry, **cut}


def _instance_sections(shown: list[dict[str, Any]], title: str) -> list[Section]:
    sections = []
    for entry in shown:
        weight: Array = np.array(entry["weight"])
        sections.append(
            Section(
                f"Instances of the {entry['role']}",
                [_verdict(entry), _MEANING],
                columns=("instance", "row of the table", "weight", "score", "contribution"),
                rows=[_instance_row(entry, k) for k in _order(entry)],
                labels=0,
                images=[as_image(plot_instance_weights(entry["score"], weight, limit=_MOST), _caption(entry, title))],
            )
        )
    return sections


def _verdict(entry: dict[str, Any]) -> str:
    """Return what was decided about a bag, and whether that is right."""
    above = entry["distance"] > 0
    side = f"{abs(entry['distance']):.3g} {'above' if above else 'below'} the threshold"
    right = "correctly" if above == bool(entry["label"]) else "wrongly"
    kind, count = "a positive" if entry["label"] else "a negative", len(entry["weight"])
    return (
        f"{entry['bag']}, {kind} of {count} instance{'s' * (count > 1)}: its score is {side}, {right}. {entry['why']}"
    )


def _instance_row(entry: dict[str, Any], k: int) -> tuple[str, ...]:
    numbers = (f"{entry[name][k]:.4f}" for name in ("weight", "score", "contribution"))
    return (str(k), str(entry["rows"][k]), *numbers)


def _caption(entry: dict[str, Any], title: str) -> str:
    return f"Weights of the instances of {entry['bag']} by {title}; instances are counted from 0 inside the bag."


def _counts(table: BagTable) -> dict[str, int]:
    positives, count = int(table.labels.sum()), len(table.names)
    return {"bags": count, "positives": positives, "negatives": count - positives, "instances": len(table.codes)}


def _data_section(text: list[str], parts: dict[str, BagTable]) -> Section:
    rows = []
    for name, part in parts.items():
        counts = _counts(part)
        share = f"{counts['positives'] / counts['bags']:.2%}"
        cells = [f"{counts[key]:,}" for key in ("bags", "positives", "negatives")]
        rows.append((name, *cells, share, f"{counts['instances']:,}"))
    return Section("Data", text, columns=COUNT_COLUMNS, rows=rows, labels=1)
