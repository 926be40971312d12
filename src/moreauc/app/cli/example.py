"""`moreauc example`: writes one of the example tables."""

from __future__ import annotations

from pathlib import Path

from moreauc._checks import check_choice
from moreauc.app.cli.console import say
from moreauc.app.cli.options import ExampleOptions
from moreauc.app.cli.saved import OutputError
from moreauc.app.tables.files import check_table_path, write_table
from moreauc.data.examples import EXAMPLES, load_example

_TARGET = "target"


def example(options: ExampleOptions) -> None:
    """Run the command."""
    check_choice("moreauc example", "NAME", options.name, EXAMPLES)
    features, labels, description = load_example(options.name)
    out = options.out or Path(f"{options.name}.csv")
    check_table_path(out)
    if out.exists() and not options.force:
        raise OutputError(f"{out}: the file exists; choose another --out, or replace it with --force")
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    write_table(features.assign(**{_TARGET: labels}), out)
    say(description, f"Table: {out}; to train on it: moreauc fit {out} --target {_TARGET}")
