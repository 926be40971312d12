"""`moreauc predict`: scores, probabilities and decisions for the rows of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer

from moreauc.cli import _options as options
from moreauc.cli._bag_table import BagTable, group_bags
from moreauc.cli._console import already_told, say
from moreauc.cli._evaluation import Array
from moreauc.cli._fit_bags import margins
from moreauc.cli._run_folder import OutputError
from moreauc.cli._saved import (
    SavedBagModel,
    SavedGroupModel,
    SavedModel,
    load_model,
)
from moreauc.data.tables import (
    check_table_path,
    read_table,
    read_texts,
    write_table,
)


def predict(
    run: options.Run,
    data: options.Data,
    out: Annotated[Path, typer.Option(help="File for the scores: .csv, .tsv, .parquet or .pq.", show_default=False)],
    instances: Annotated[
        Path | None,
        typer.Option(
            help="File for the instances of the bags, with scores and weights; for a model of bags.", show_default=False
        ),
    ] = None,
    force: options.Force = False,
) -> None:
    """Score the rows of a table with a saved model, or its bags.

    Writes row (from 1), score (above 0 where the decision is positive), probability (of the positive class) and
    decision (the class). A model of bags writes bag instead of row, and with --instances another file with bag, row,
    score and weight of every instance. A model of groups writes row, decision and the probability of each class, or row
    and prediction. The table needs neither target nor groups. The model file is a pickle: use only those of people you
    trust.
    """
    for name, path in (("--out", out), ("--instances", instances)):
        if path is not None:
            _check_file(name, path, data, force=force)
    if instances is not None and instances.absolute() == out.absolute():
        raise OutputError(f"{out}: --out and --instances must be two files")
    saved = load_model(run)
    if instances is not None and not isinstance(saved, SavedBagModel):
        raise ValueError(f"moreauc predict: --instances needs a model of bags, got one of rows in {run}")
    with already_told():
        if isinstance(saved, SavedBagModel):
            _predict_bags(saved, data, out, instances)
        elif isinstance(saved, SavedGroupModel):
            _predict_groups(saved, data, out)
        else:
            _predict_rows(saved, data, out)


def _predict_rows(saved: SavedModel, data: Path, out: Path) -> None:
    features = saved.features(read_table(data), str(data))
    saved.check_levels(features, str(data))
    scores = saved.model.decision_function(features)
    table = pd.DataFrame(
        {
            "row": np.arange(1, len(features) + 1),
            "score": scores,
            "probability": saved.model.predict_proba(features)[:, 1],
            "decision": np.where(scores > 0, saved.target.positive, saved.target.negative),
        }
    )
    write_table(table, out)
    _say_decisions(saved, "rows", scores)
    say(f"Scores: {out}")


def _predict_bags(saved: SavedBagModel, data: Path, out: Path, instances: Path | None) -> None:
    frame = read_texts(data)
    codes, names = group_bags(frame, saved.bags, source=str(data))
    table = BagTable(saved.features(frame, str(data)), codes, names, np.zeros(len(names), dtype=np.int64))
    saved.check_levels(table.features, str(data))
    bags = table.encode(saved.encoder)
    scores = margins(saved.model, bags)
    result = pd.DataFrame(
        {
            "bag": names,
            "score": scores,
            "probability": saved.model.predict_proba(bags)[:, 1],
            "decision": np.where(scores > 0, saved.target.positive, saved.target.negative),
        }
    )
    parts = []
    for bag in range(len(names) if instances is not None else 0):
        found = saved.model.instance_scores(bags.instances(bag))
        columns = {"bag": names[bag], "row": table.rows(bag), "score": found.score, "weight": found.weight}
        parts.append(pd.DataFrame(columns))
    write_table(result, out)
    if instances is not None:
        write_table(pd.concat(parts, ignore_index=True), instances)
    _say_decisions(saved, "bags", scores)
    say(f"Scores: {out}", *([] if instances is None else [f"Instances: {instances}"]))


def _predict_groups(saved: SavedGroupModel, data: Path, out: Path) -> None:
    features = saved.features(read_table(data), str(data))
    saved.check_levels(features, str(data))
    columns: dict[str, Array] = {"row": np.arange(1, len(features) + 1)}
    if saved.target.task == "regression":
        columns["prediction"] = saved.model.predict(features)
        line = f"{len(features)} rows, mean prediction of {saved.target.name} {columns['prediction'].mean():.4g}"
    else:
        columns["decision"] = saved.model.predict(features)
        chances = saved.model.predict_proba(features)
        columns |= {f"probability of {name}": chances[:, k] for k, name in enumerate(saved.model.classes_)}
        counts = [f"{(columns['decision'] == name).sum()} {name}" for name in saved.model.classes_]
        line = f"{len(features)} rows are called {saved.target.name} = {', '.join(counts)}"
    write_table(pd.DataFrame(columns), out)
    say(line, f"Scores: {out}")


def _say_decisions(saved: SavedModel, unit: str, scores: Array) -> None:
    called = f"{(scores > 0).sum()} of {len(scores)} {unit}"
    say(f"{called} are called {saved.target.name} = {saved.target.positive}")


def _check_file(option: str, path: Path, data: Path, *, force: bool) -> None:
    """Check that a table may be written at `path`."""
    check_table_path(path)
    if path.is_dir():
        raise OutputError(f"{path}: is a folder, {option} needs a file")
    if path.exists() and data.exists() and path.samefile(data):
        raise OutputError(f"{path}: is the table to be scored; choose another {option}")
    if path.exists() and not force:
        raise OutputError(f"{path}: the file exists; choose another {option}, or replace it with --force")
    if not path.absolute().parent.is_dir():
        raise OutputError(f"{path}: there is no folder {path.parent}")
