"""Molecules of a library, ranked as a stream: `moreauc predict` for a model of SMILES, in constant memory."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd

from moreauc._system import written_whole
from moreauc.app.cli.console import complain, progress_bar, say, warn
from moreauc.app.cli.options import EvaluateOptions, PredictOptions
from moreauc.app.smiles import CHUNK, InvalidSmiles
from moreauc.app.tables.base import TableTask, TwoClassModel
from moreauc.app.tables.files import stream_texts, write_table
from moreauc.app.tables.molecules import MoleculeTableTask
from moreauc.data.tables import TableError


def of_molecules(task: TableTask[Any, Any, Any], options: PredictOptions | EvaluateOptions) -> TableTask[Any, Any, Any]:
    """Return the task with the options about molecules, which other tasks do not have."""
    if isinstance(task, MoleculeTableTask):
        return task.reading(options.smiles, options.invalid, options.jobs)
    for name in ("smiles", "invalid", "jobs"):
        if getattr(options, name) is not None:
            raise ValueError(f"moreauc: --{name} needs a model of molecules, got one of {task.name} in {options.run}")
    return task


def with_columns(result: pd.DataFrame, kept: pd.DataFrame) -> pd.DataFrame:
    """Return predictions with columns of the table after the number of the row.

    A column of the predictions that has the name of one of these is written with "predicted" before its name.

    Example:
        >>> result = pd.DataFrame({"row": [1, 2], "score": [0.5, -1.0]})
        >>> list(with_columns(result, pd.DataFrame({"name": ["a", "b"], "score": [7, 8]})))
        ['row', 'name', 'score', 'predicted score']
    """
    renamed = result.rename(columns={name: f"predicted {name}" for name in result if name in kept})
    return pd.concat([renamed.iloc[:, :1], kept.reset_index(drop=True), renamed.iloc[:, 1:]], axis=1)


def ranked(rows: pd.DataFrame, number: int) -> pd.DataFrame:
    """Return the rows of the highest scores, the best first and of equals the first, with their rank.

    Example:
        >>> ranked(pd.DataFrame({"row": [1, 2, 3], "score": [0.5, 2.0, 0.5]}), 2)
           rank  row  score
        1     1    2    2.0
        0     2    1    0.5
    """
    best = _best(rows, number)
    best.insert(0, "rank", np.arange(1, len(best) + 1))
    return best


def _best(rows: pd.DataFrame, number: int) -> pd.DataFrame:
    return rows.sort_values(_score_name(rows), ascending=False, kind="stable").iloc[:number].copy()


def _score_name(rows: pd.DataFrame) -> str:
    return "predicted score" if "predicted score" in rows else "score"


class _Counts:
    """What was seen of a library."""

    def __init__(self) -> None:
        self.rows = self.positive = self.wrong = 0
        self.first: InvalidSmiles | None = None


def screen(options: PredictOptions, task: MoleculeTableTask, model: TwoClassModel) -> None:
    """Score the molecules of a table chunk by chunk; write all of them in their order, or the best."""
    counts, out = _Counts(), options.out
    parts = _scored(options, task, model, counts)
    if options.top is not None:
        best = next(parts)
        for part in parts:
            name = _score_name(part)
            better = part[part[name] > best[name].min()] if len(best) >= options.top else part  # of equals the first
            best = _best(pd.concat([best, better]), options.top) if len(better) else best
        parts = iter([ranked(best, options.top)])
    write(parts, out)
    called = f"{counts.positive:,} of {counts.rows - counts.wrong:,} molecules are called"
    lines = [f"{called} {task.target.name} = {task.target.positive}"]
    if options.top is not None:
        lines.append(f"The best {min(len(best), options.top):,} are written")
    (complain if out is None else say)(*lines, *([] if out is None else [f"Scores: {out}"]))


def write(parts: Iterator[pd.DataFrame], out: Path | None) -> None:
    """Write tables below each other, to standard output if `out` is None."""
    if out is not None and out.suffix.lower() not in (".csv", ".tsv"):
        write_table(pd.concat(list(parts)), out)
        return
    separator = "\t" if out is not None and out.suffix.lower() == ".tsv" else ","
    with ExitStack() as stack:
        file: IO[str] = sys.stdout
        if out is not None:
            file = stack.enter_context(open(stack.enter_context(written_whole(out)), "x", encoding="utf-8", newline=""))
        for number, part in enumerate(parts):
            part.to_csv(file, index=False, header=number == 0, sep=separator, lineterminator="\n")


def _scored(
    options: PredictOptions, task: MoleculeTableTask, model: TwoClassModel, counts: _Counts
) -> Iterator[pd.DataFrame]:
    """Yield the predictions of valid rows, a chunk at a time; counts are complete at the end."""
    source, waiting = str(options.data), deque[tuple[pd.DataFrame, int]]()
    identity = task.id_column

    def pieces() -> Iterator[list[object]]:
        for frame, letters in stream_texts(options.data, CHUNK):
            column = task.column(frame, source)
            if not waiting and not counts.rows and identity is not None and identity not in frame:
                warn(f"{source}: no id column {identity!r}, so that the scores have row numbers only")
            waiting.append((frame, letters))
            yield column.astype(object).where(column.notna(), None).tolist()

    with progress_bar("Screening", options.data.stat().st_size) as advance:
        for chunk in task.stream(pieces()):
            frame, letters = waiting.popleft()
            task.check_valid(chunk.invalid, source)
            counts.first = counts.first or next(iter(chunk.invalid), None)
            counts.wrong += len(chunk.invalid)
            counts.rows += len(frame)
            good = np.flatnonzero(~np.isin(frame.index, [one.row for one in chunk.invalid]))
            if len(good):
                frame, kept = frame.iloc[good], [name for name in (task.id_column, task.smiles) if name in frame]
                result = task.predictions(model, chunk.fingerprints[good], frame.index + 1)
                counts.positive += int((result["score"] > 0).sum())
                yield with_columns(result, frame if options.keep_columns else frame[kept])
            advance(letters)
    if counts.wrong == counts.rows:
        raise TableError(f"{source}: SMILES column {task.smiles!r} holds no molecule in {counts.rows:,} rows")
    if counts.first is not None:
        warn(task.left_out(counts.first, counts.wrong, counts.rows, source))
