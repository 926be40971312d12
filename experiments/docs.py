"""The tables of the documentation, made from committed reports and written between markers.

A page has `<!-- begin: NAME -->` and `<!-- end: NAME -->` around a table; NAME is a key of :data:`TABLES`. Tables of
the benchmarks are made in `benchmarks/doc_tables.py`.
"""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from experiments.config import EXPERIMENTS, Kind, load_experiment
from experiments.files import write_bytes
from experiments.ranks import difference_table, rank_table
from experiments.studies._shared import show
from experiments.studies.bags import bag_rows
from experiments.studies.defaults_page import against_table, standing_table
from experiments.studies.groups import group_table
from experiments.studies.when import capacity_table, condition_table, fit_table
from experiments.tables import title_of

__all__ = ["TABLES", "update_pages"]

ROOT = Path(__file__).parent.parent
_MARKED = re.compile(r"(<!-- begin: (?P<name>[^>]+) -->\n)(?P<text>.*?)(<!-- end: (?P=name) -->)", re.DOTALL)
_LARGER = ("auc_m_att", "midam_smx_after", "midam_att", "sota_s_att", "sont_att", "sont_att_after")


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


def experiment_table(name: Kind, dataset: str, protocol: str = "runs", choice: str = "chosen") -> str:
    """Test TPAUC of an experiment of the paper beside the published numbers."""
    plan, rows = load_experiment(name), []
    wanted = {"dataset": dataset, "protocol": protocol, "choice": choice}
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


def recipe_table(name: Kind, dataset: str) -> str:
    """Test TPAUC by the recipe, beside the start and the same methods by the paper's protocol."""
    plan, study = load_experiment(name), _study(f"experiments/{name}")
    wanted = {"dataset": dataset, "protocol": "splits" if plan.datasets[dataset].splits > 1 else "runs"}
    start = [cell for cell in study["starts"] if {**wanted, "recipe": True}.items() <= cell.items()]
    rows = [["start (CE, best epoch)", *(text for cell in start for text in (show(cell), ""))]]
    cells = [cell for cell in study["cells"] if {**wanted, "choice": "chosen"}.items() <= cell.items()]
    known = {(cell["method"], tuple(cell["region"])): cell for cell in cells if cell["number"]}
    for method in (entry.name for entry in plan.candidates.values() if entry.recipe):
        title, row = plan.candidates[method].title.removesuffix(", recipe"), []
        for region in (region for region in plan.regions if (method, region) in known):
            own, paper = known[method, region], known.get((method.removesuffix("_recipe"), region))
            row += [show(own), "" if paper is None else _show_first(paper, own["number"])]
        rows += [[title, *row]] if row else []
    heads = [head for low, high in plan.regions for head in (f"({low}, {high})", "as in the paper")]
    return _markdown(["method", *heads], rows)


def caution_table() -> str:
    """Mean test TPAUC of the start and of the recipe with and without the rule of one standard error."""
    rows = []
    for name in EXPERIMENTS:
        plan, study = load_experiment(name), _study(f"experiments/{name}")
        column = plan.regions.index((0.5, 0.5))
        for start in (cell for cell in study["starts"] if cell.get("recipe") and cell["region"] == [0.5, 0.5]):
            place = {entry: start[entry] for entry in ("dataset", "protocol", "region")}
            cells = [cell for cell in study["cells"] if place.items() <= cell.items() and "plain" in cell]
            own = {"dataset": start["dataset"]}.items()
            epochs = [
                entry["epochs"][column]
                for entry in study["chosen"]
                if own <= entry.items() and plan.candidates[entry["method"]].recipe
            ]
            if (plan.datasets[start["dataset"]].splits > 1) == (start["protocol"] == "splits"):
                means = [float(np.mean([cell[key] for cell in cells])) for key in ("mean", "plain")]
                scores = [f"{score:.3f}" for score in (start["mean"], *means)]
                rows.append([plan.datasets[start["dataset"]].title, *scores, f"{epochs.count(0)} of {len(epochs)}"])
    return _markdown(["data set", "start", "with the rule", "without", "runs that keep the start"], rows)


def _show_first(cell: Mapping[str, Any], number: int) -> str:
    """Show mean and spread over the first seeds, folds or splits: those that another cell has."""
    values = np.array(cell["values"][:number])
    return show({"mean": values.mean(), "std": values.std(ddof=1) if len(values) > 1 else None})


def _ranked() -> list[Any]:
    return [(load_experiment(name), _study(f"experiments/{name}")["cells"]) for name in EXPERIMENTS]


def larger_table() -> str:
    """Means over all test splits of bags, with the paper's learning rates and with larger ones."""
    plan, means = load_experiment("bags"), {}
    for cell in _study("experiments/bags")["cells"]:
        if (cell["protocol"], cell["choice"]) == ("splits", "chosen"):
            means[cell["dataset"], cell["method"], tuple(cell["region"])] = cell["mean"]
    columns = [(dataset, region) for dataset in ("musk2", "fox") for region in plan.regions]
    rows = []
    for method in (name for plain in _LARGER for name in (plain, f"{plain}_large")):
        rows.append(
            [
                title_of(plan.candidates[method]),
                *(f"{means[dataset, method, region]:.3f}" for dataset, region in columns),
            ]
        )
    heads = [f"{plan.datasets[dataset].title} ({low}, {high})" for dataset, (low, high) in columns]
    return _markdown(["method", *heads], rows)


def defaults_table(half: str, extra: str | None = None) -> str:
    """Ranks, means and seconds of all candidates on one half of the tables, or on those that `extra` has."""
    return _markdown(*standing_table(_study("defaults"), half, extra))


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


def defaults_against(method: str) -> str:
    """Paired tests of one of ours on the confirming half."""
    return _markdown(*against_table(_study("defaults"), "confirm", method))


TABLES: dict[str, Callable[[], str]] = {
    "convergence": partial(
        convergence_table, "table, gamma of the theory", "table, gamma 0.1", "table, moving average", "plug-in"
    ),
    "digit_bags": bag_table,
    "planted_groups": planted_groups_table,
    **{name: partial(experiment_table, "molecules", name) for name in ("moltox21", "molmuv", "molhiv")},
    **{name: partial(experiment_table, "bags", name) for name in ("musk2", "fox")},
    **{f"{name}, all splits": partial(experiment_table, "bags", name, "splits") for name in ("musk2", "fox")},
    "bags, larger learning rates": larger_table,
    **{name: partial(experiment_table, "histology", name) for name in ("colon", "lung", "lung_tiles", "lung_long")},
    **{
        f"{name}, the paper's grid": partial(experiment_table, "histology", name, choice="chosen_paper")
        for name in ("colon", "lung")
    },
    **{f"{key}, recipe": partial(recipe_table, "molecules", key) for key in ("moltox21", "molmuv", "molhiv")},
    **{f"{key}, recipe": partial(recipe_table, "bags", key) for key in ("musk2", "fox")},
    **{f"{key}, recipe": partial(recipe_table, "histology", key) for key in ("colon", "lung")},
    "recipe, ranks": lambda: _markdown(*rank_table(_ranked(), recipe=True)),
    "paper, ranks": lambda: _markdown(*rank_table(_ranked(), recipe=False)),
    "recipe, caution": caution_table,
    "recipe, differences": lambda: _markdown(*difference_table(_ranked())),
    **{f"defaults, {half}": partial(defaults_table, half) for half in ("choose", "confirm")},
    "defaults, in short": defaults_in_short,
    "defaults, with auto": partial(defaults_table, "confirm", "auto"),
    **{f"defaults, {method} against": partial(defaults_against, method) for method in ("sonx", "linear", "auto")},
    "screening, assays": lambda: _markdown(*standing_table(_study("screening"), "assays")),
    "screening, assays with auto": lambda: _markdown(*standing_table(_study("screening"), "assays", "auto")),
    **{
        f"bag_defaults, {half}": partial(lambda half: _markdown(*standing_table(_study("bag_defaults"), half)), half)
        for half in ("choose", "confirm")
    },
    "when, conditions": lambda: _markdown(*condition_table(_study("when"))),
    "when, fit": lambda: _markdown(*fit_table(_study("when"))),
    "when, networks": lambda: _markdown(*capacity_table(_study("when"))),
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
