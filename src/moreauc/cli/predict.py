"""`moreauc predict`: scores, probabilities and decisions for the rows of a table."""

from __future__ import annotations

from pathlib import Path

from moreauc.cli.console import already_told, say, warn
from moreauc.cli.options import PredictOptions
from moreauc.cli.saved import OutputError, load_model
from moreauc.data.tables import check_table_path, read_texts, write_table
from moreauc.tasks.bag_tables import BagTableTask
from moreauc.tasks.tables import unknown_levels


def predict(options: PredictOptions) -> None:
    """Run the command."""
    data, out, file = options.data, options.out, options.instances
    for name, path in (("--out", out), ("--instances", file)):
        if path is not None:
            _check_file(name, path, data, force=options.force)
    if file is not None and file.absolute() == out.absolute():
        raise OutputError(f"{out}: --out and --instances must be two files")
    saved = load_model(options.run)
    task, model = saved.task, saved.model
    if file is not None and not isinstance(task, BagTableTask):
        raise ValueError(f"moreauc predict: --instances needs a model of bags, got one of rows in {options.run}")
    with already_told():
        table = task.match(read_texts(data), source=str(data), labelled=False)
        warn(*unknown_levels(task.encoder(model), table.features, str(data))[0])
        inputs = task.inputs(table)
        result, line = task.predict(model, inputs, table)
        instances = None
        if file is not None and isinstance(task, BagTableTask):
            instances = task.predict_instances(model, inputs, table)
    write_table(result, out)
    if file is not None and instances is not None:
        write_table(instances, file)
    say(line, f"Scores: {out}", *([] if file is None else [f"Instances: {file}"]))


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
