"""`moreauc predict`: scores, probabilities and decisions for the rows of a table."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from moreauc.app.cli.console import complain, say, warn, without_column_warnings
from moreauc.app.cli.options import PredictOptions
from moreauc.app.cli.saved import OutputError, load_model
from moreauc.app.cli.screen import of_molecules, ranked, screen, with_columns, write
from moreauc.app.tables.bags import BagTableTask
from moreauc.app.tables.base import TwoClassModel, unknown_levels
from moreauc.app.tables.files import check_table_path, read_texts, write_table
from moreauc.app.tables.molecules import MoleculeTableTask
from moreauc.app.tables.rows import RowTableTask
from moreauc.estimators import MultiInstanceClassifier


def predict(options: PredictOptions) -> None:
    """Run the command."""
    data, out, file = options.data, options.out, options.instances
    for name, path in (("--out", out), ("--instances", file)):
        if path is not None:
            _check_file(name, path, data, force=options.force)
    if file is not None and out is not None and file.absolute() == out.absolute():
        raise OutputError(f"{out}: --out and --instances must be two files")
    saved = load_model(options.run)
    task, model = of_molecules(saved.task, options), saved.model
    if file is not None and not isinstance(task, BagTableTask):
        raise ValueError(f"moreauc predict: --instances needs a model of bags, got one of rows in {options.run}")
    if options.keep_columns and isinstance(task, BagTableTask):
        raise ValueError(f"moreauc predict: --keep-columns needs a model of rows, got one of bags in {options.run}")
    if isinstance(task, MoleculeTableTask):
        screen(options, task, cast(TwoClassModel, model))
        return
    if options.top is not None and not isinstance(task, RowTableTask):
        raise ValueError(f"moreauc predict: --top needs a model of rows of two classes, got another in {options.run}")
    frame = read_texts(data)
    with without_column_warnings():
        table = task.match(frame, source=str(data), labelled=False)
        warn(*unknown_levels(task.schema, table.features, str(data))[0])
        inputs = task.inputs(table)
        result, line = task.predict(model, inputs, table)
        instances = None
        if file is not None and isinstance(task, BagTableTask):
            instances = task.predict_instances(cast(MultiInstanceClassifier, model), inputs, table)
    if task.id_column is not None and task.id_column not in frame:
        warn(f"{data}: no id column {task.id_column!r}, so that the scores have row numbers only")
    kept = list(frame) if options.keep_columns else [name for name in [task.id_column] if name in frame]
    if kept:
        result = with_columns(result, frame[kept])
    if options.top is not None:
        result = ranked(result, options.top)
    write(iter([result]), out)
    lines = [line] if out is None else [line, f"Scores: {out}"]
    if file is not None and instances is not None:
        write_table(instances, file)
        lines.append(f"Instances: {file}")
    (complain if out is None else say)(*lines)


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
