"""`moreauc predict`: scores, probabilities and decisions for the rows of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer

from moreauc.commands import _options as options
from moreauc.commands._console import say
from moreauc.commands._run_folder import OutputError
from moreauc.commands._saved import load_model
from moreauc.data.tables import check_table_path, read_table, write_table


def predict(
    run: options.Run,
    data: options.Data,
    out: Annotated[Path, typer.Option(help="File for the scores: .csv, .tsv, .parquet or .pq.", show_default=False)],
    force: options.Force = False,
) -> None:
    """Score the rows of a table with a saved model.

    Writes row (from 1), score (above 0 where the decision is positive), probability (of the positive class) and
    decision (the class). The table needs no target. The model file is a pickle: use only those of people you trust.
    """
    check_table_path(out)
    if out.is_dir():
        raise OutputError(f"{out}: is a folder, --out needs a file")
    if out.exists() and data.exists() and out.samefile(data):
        raise OutputError(f"{out}: is the table to be scored; choose another --out")
    if out.exists() and not force:
        raise OutputError(f"{out}: the file exists; choose another --out, or replace it with --force")
    if not out.absolute().parent.is_dir():
        raise OutputError(f"{out}: there is no folder {out.parent}")
    saved = load_model(run)
    features = saved.features(read_table(data), str(data))
    scores = saved.model.decision_function(features)
    decisions = scores > 0
    table = pd.DataFrame(
        {
            "row": np.arange(1, len(features) + 1),
            "score": scores,
            "probability": saved.model.predict_proba(features)[:, 1],
            "decision": np.where(decisions, saved.target.positive, saved.target.negative),
        }
    )
    write_table(table, out)
    say(
        f"{decisions.sum()} of {len(table)} rows are called {saved.target.name} = {saved.target.positive}",
        f"Scores: {out}",
    )
