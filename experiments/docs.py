"""The tables of the documentation, made from committed reports and written between markers.

A page has `<!-- begin: NAME -->` and `<!-- end: NAME -->` around a table; NAME is a key of :data:`TABLES`. Tables of
the benchmarks are made in `benchmarks/doc_tables.py`.
"""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from experiments.config import EXPERIMENTS, Kind, load_experiment
from experiments.files import write_bytes
from experiments.ranks import difference_table, rank_table
from experiments.studies._shared import show
from experiments.studies.bags import bag_rows
from experiments.studies.defaults_page import against_table, standing_table
from experiments.studies.groups import group_table
from experiments.studies.when import condition_table, fit_table
from experiments.tables import title_of

__all__ = ["TABLES", "update_pages"]

ROOT = Path(__file__).parent.parent
_MARKED = re.compile(r"(<!-- begin: (?P<name>[^>]+) -->\n)(?P<text>.*?)(<!-- end: (?P=name) -->)", re.DOTALL)


def _study(folder: str) -> Any:
    return json.loads((ROOT / "docs" / "reports" / folder / "report.json").read_text(encoding="utf-8"))


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (columns, *rows)]
    return "\n".join([lines[0], "|---" * len(columns) + "|", *lines[1:]])


def convergence_table(*methods: str) -> str:
    """Stationarity in the second half of the run, by problem and method."""
    rows: dict[str, list[str]] = {}
    for entry in _study("convergence")["methods"]:
        if entry["method"] in methods:
            mean, std = entry["final_stationarity"]
            name = entry["problem"].replace("|squares|", "squares")
            rows.setdefault(name, [name]).append(f"{mean:.3f} ± {std:.3f}")
    return _markdown(["problem", *methods], [row for row in rows.values() if len(row) > len(methods)])


def bag_table() -> str:
    """TPAUC, rank and heaviest instance by method, on bags of digits."""
    columns = ["method", "TPAUC (0.5, 0.5)", "average rank", "heaviest instance is the nine"]
    return _markdown(columns, bag_rows(_study("bags")["cells"]))


def planted_groups_table() -> str:
    """Losses and accuracies of planted groups by method."""
    return _markdown(*group_table(_study("groups/planted")["cells"]))


def experiment_table(name: Kind, dataset: str, protocol: str = "runs") -> str:
    """Test TPAUC of an experiment of the paper beside the published numbers."""
    plan, rows = load_experiment(name), []
    wanted = {"dataset": dataset, "protocol": protocol, "choice": "chosen"}
    cells = [cell for cell in _study(f"experiments/{name}")["cells"] if wanted.items() <= cell.items()]
    beside = plan.datasets[dataset].published is not None
    for method, candidate in plan.candidates.items():
        row = [title_of(candidate)]
        for cell in (cell for cell in cells if cell["method"] == method and cell["number"]):
            published, there = cell["published"], cell["number"] + cell["failed"]
            lost = f" ({cell['failed']} lost)" if cell["failed"] else f" ({there} folds)" if there < plan.runs else ""
            row.append(show(cell) + lost)
            row += ["" if published is None else f"{published[0]:.3f} ± {published[1]:.3f}"] if beside else []
        if len(row) > 1 and not method.endswith(("_large", "_recipe")):  # these have tables of their own
            rows.append(row)
    heads = [head for low, high in plan.regions for head in (f"({low}, {high})", *(["published"] if beside else []))]
    return _markdown(["method", *heads], rows)


def _ranked() -> list[Any]:
    return [(load_experiment(name), _study(f"experiments/{name}")["cells"]) for name in EXPERIMENTS]


def defaults_in_short() -> str:
    """Mean rank over the three regions, and mean scores in two, of all candidates on the confirming half."""
    rows = [row for row in _study("defaults")["standings_with"]["auto"] if row["half"] == "confirm"]
    columns = ["0.5, 0.5", "0, 0.1"]
    means = {(row["method"], row["region"]): row["mean"] for row in rows}
    overall = sorted(
        (row for row in rows if row["region"] not in _study("defaults")["regions"]), key=itemgetter("rank")
    )
    return _markdown(
        ["method", "mean rank", *(f"TPAUC ({region})" for region in columns)],
        [
            [row["title"], f"{row['rank']:.1f}", *(f"{means[row['method'], region]:.3f}" for region in columns)]
            for row in overall
        ],
    )


TABLES: dict[str, Callable[[], str]] = {
    "convergence": partial(
        convergence_table, "table, gamma of the theory", "table, gamma 0.1", "table, moving average", "plug-in"
    ),
    "digit_bags": bag_table,
    "planted_groups": planted_groups_table,
    **{name: partial(experiment_table, "molecules", name) for name in ("moltox21", "molmuv", "molhiv")},
    **{name: partial(experiment_table, "bags", name) for name in ("musk2", "fox")},
    **{f"{name}, all splits": partial(experiment_table, "bags", name, "splits") for name in ("musk2", "fox")},
    **{name: partial(experiment_table, "histology", name) for name in ("colon", "lung")},
    "recipe, ranks": lambda: _markdown(*rank_table(_ranked(), recipe=True)),
    "recipe, differences": lambda: _markdown(*difference_table(_ranked())),
    "defaults, in short": defaults_in_short,
    "defaults, with auto": lambda: _markdown(*standing_table(_study("defaults"), "confirm", "auto")),
    "defaults, sonx against": lambda: _markdown(*against_table(_study("defaults"), "confirm", "sonx")),
    "screening, assays": lambda: _markdown(*standing_table(_study("screening"), "assays")),
    "screening, assays with auto": lambda: _markdown(*standing_table(_study("screening"), "assays", "auto")),
    "bag_defaults, confirm": lambda: _markdown(*standing_table(_study("bag_defaults"), "confirm")),
    "when, conditions": lambda: _markdown(*condition_table(_study("when"))),
    "when, fit": lambda: _markdown(*fit_table(_study("when"))),
    **runpy.run_path(str(ROOT / "benchmarks" / "doc_tables.py"))["TABLES"],
}


def update_pages(*, root: Path = ROOT, write: bool = True) -> list[str]:
    """Write every marked table; return the pages and tables that differed from the reports.

    Args:
        root: the checkout, with README.md and docs.
        write: whether to write; False only compares.

    Raises:
        ValueError: for a marker without its counterpart, or with an unknown name.
    """
    changed = []
    for page in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        found = list(_MARKED.finditer(text))
        if len(found) != text.count("<!-- begin: ") or len(found) != text.count("<!-- end: "):
            raise ValueError(f"docs: {page.name} must have an end for every begin of a table, got one without")
        for match in reversed(found):
            name = match["name"]
            if name not in TABLES:
                raise ValueError(f"docs: {page.name} must name a table of experiments.docs, got {name!r}")
            table = TABLES[name]() + "\n"
            if table != match["text"]:
                changed.append(f"{page.relative_to(root)}, {name}")
                text = text[: match.start("text")] + table + text[match.end("text") :]
        if write and found:
            write_bytes(page, text.encode())
    return changed
