"""The tables of the documentation by name, from the committed reports; those of benchmarks are made beside them."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.config import load_experiment

__all__ = ["TABLES"]

ROOT = Path(__file__).parent.parent
_LARGER = ("auc_m_att", "midam_smx_after", "midam_att", "sota_s_att", "sont_att", "sont_att_after")
_MEASURES = ("worst loss", "K worst, loss", "mean loss", "worst accuracy", "K worst, accuracy", "mean accuracy")
_GROUP_TITLES = {"sonx": "SONX", "exponentiated": "exponentiated", "unscaled": "exponentiated, unscaled"}


def _study(folder: str) -> Any:
    return json.loads((ROOT / "docs" / "reports" / folder / "report.json").read_text(encoding="utf-8"))


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (columns, *rows)]
    return "\n".join([lines[0], "|---" * len(columns) + "|", *lines[1:]])


def _spread(cell: Mapping[str, float]) -> str:
    return f"{cell['mean']:.3f} ± {cell['std']:.3f}"


def _short(name: str) -> str:
    """Return the first word of the name of a KEEL table."""
    return name.split("_")[0].split("-")[0]


def convergence_table() -> str:
    """Stationarity in the second half of the run, by problem and method."""
    methods = ["table, gamma of the theory", "table, gamma 0.1", "table, moving average", "plug-in"]
    rows: dict[str, list[str]] = {}
    for entry in _study("convergence")["methods"]:
        if entry["method"] in methods:
            mean, std = entry["final_stationarity"]
            name = entry["problem"].replace("|squares|", "squares")
            rows.setdefault(name, [name]).append(f"{mean:.3f} ± {std:.3f}")
    return _markdown(["problem", *methods], rows.values())


def keel_table(region: tuple[float, float]) -> str:
    """TPAUC by method and table, the best rank first."""
    report = _study("keel")
    cells = [cell for cell in report["cells"] if tuple(cell["region"]) == region]
    rows = []
    for entry in sorted(report["ranks"], key=lambda entry: float(entry[str(region)])):
        numbers = [_spread(cell) for cell in cells if cell["method"] == entry["method"]]
        rows.append([entry["title"], *numbers, f"{entry[str(region)]:.2f}"])
    return _markdown(["method", *dict.fromkeys(_short(cell["set"]) for cell in cells), "rank"], rows)


def keel_ranks() -> str:
    """Average rank and mean of each method, and SONX against it."""
    report = _study("keel")
    against = {entry["method"]: entry for entry in report["sonx_against"]}
    rows = []
    for entry in sorted(report["ranks"], key=lambda entry: float(entry["all"])):
        row, other = [entry["title"], f"{entry['all']:.2f}", f"{entry['mean']:.3f}"], against.get(entry["method"])
        tally = "" if other is None else f"{other['better']} / {other['equal']} / {other['worse']}"
        rows.append([*row, tally, "" if other is None else f"{other['p_of_signed_ranks']:.3f}"])
    columns = ["method", "average rank", "mean TPAUC", "SONX better / equal / worse", "p (signed ranks)"]
    return _markdown(columns, rows)


def keel_remedies() -> str:
    """Variants that were tried after the tables were seen."""
    rows = []
    for row in _study("keel")["remedies"]:
        place = f"{_short(row['set'])}, ({row['region'][0]:g}, {row['region'][1]:g})"
        best = f"{row['best']:.3f} ({row['best_title']})"
        rows.append([place, row["title"], _spread(row), f"{row['sonx']:.3f}", best])
    return _markdown(["table, region", "variant", "TPAUC", "SONX", "best of the table"], rows)


def noise_table() -> str:
    """TPAUC by method and share of flipped labels."""
    cells = _study("label_noise")["cells"]
    titles, flips = (list(dict.fromkeys(cell[key] for cell in cells)) for key in ("title", "flips"))
    rows = [[title, *(_spread(cell) for cell in cells if cell["title"] == title)] for title in titles]
    return _markdown(["method", *(f"{100 * share:g} % flipped" for share in flips)], rows)


def objective_table() -> str:
    """Training objective by rule, link and table."""
    runs = _study("thresholds")["objectives"]
    sets = list(dict.fromkeys(run["dataset"] for run in runs))
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for run in runs:
        found.setdefault((run["link"], run["rule"]), {}).setdefault(run["dataset"], []).append(run["objective"])
    order = sorted(found, key=lambda key: ("sigmoid", "identity").index(key[0]))
    rows = [[rule, link, *(f"{np.mean(found[link, rule][name]):.3f}" for name in sets)] for link, rule in order]
    return _markdown(["thresholds", "link", *sets], rows)


def held_out_table() -> str:
    """TPAUC of test folds by rule and link."""
    cells = _study("thresholds")["held_out"]
    sets, rows = list(dict.fromkeys(cell["dataset"] for cell in cells)), []
    for rule, link in dict.fromkeys((cell["rule"], cell["link"]) for cell in cells):
        own = [cell for cell in cells if (cell["rule"], cell["link"]) == (rule, link)]
        mean = float(np.mean([cell["mean"] for cell in own]))
        rows.append([f"{rule}, {link}", *map(_spread, own), f"{mean:.3f}"])
    return _markdown(["thresholds, link", *sets, "mean"], rows)


def bag_table() -> str:
    """TPAUC, rank and heaviest instance by method, on bags of digits."""
    rows = []
    for cell in _study("bags")["cells"]:
        rank = "" if cell["rank"] is None else f"{cell['rank']:.1f}"
        found = "" if cell["target_found"] is None else f"{100 * cell['target_found']:.0f} %"
        rows.append([cell["title"], _spread(cell), rank, found])
    return _markdown(["method", "TPAUC (0.5, 0.5)", "average rank", "heaviest instance is the nine"], rows)


def group_table(name: str) -> str:
    """Losses and accuracies of groups by method."""
    keys = ("worst_loss", "top_k_loss", "mean_loss", "worst_accuracy", "top_k_accuracy", "mean_accuracy")
    cells = _study(f"groups/{name}")["cells"]
    rows = [[cell["title"], *(f"{cell[key][0]:.3f} ± {cell[key][1]:.3f}" for key in keys)] for cell in cells]
    return _markdown(["method", *_MEASURES], rows)


def many_groups_table() -> str:
    """Loss of the worst groups after some and after all samples."""
    curves, places, rows = _study("groups/convergence")["curves"], (-9, -1), []
    for curve in curves:
        cells = [f"{curve[key][place]:.3f}" for key in ("top_k_loss", "worst_loss") for place in places]
        rows.append([f"{curve['groups']:,}", _GROUP_TITLES[curve["method"]], *cells])
    counts = [f"{curves[0]['samples'][place]:,}" for place in places]
    heads = [f"{words}, {count} samples" for words in ("worst tenth", "worst group") for count in counts]
    return _markdown(["groups", "method", *heads], rows)


def experiment_table(name: str, dataset: str, protocol: str = "runs", choice: str = "chosen") -> str:
    """Test TPAUC of an experiment of the paper beside the published numbers."""
    plan, rows = load_experiment(name), []
    wanted = {"dataset": dataset, "protocol": protocol, "choice": choice}
    cells = [cell for cell in _study(f"experiments/{name}")["cells"] if wanted.items() <= cell.items()]
    beside = plan.datasets[dataset].published is not None
    for method, contestant in plan.contestants.items():
        row = [contestant.title + ("†" if contestant.remedy else "")]
        for cell in (cell for cell in cells if cell["method"] == method and cell["number"]):
            published, there = cell["published"], cell["number"] + cell["failed"]
            lost = f" ({cell['failed']} lost)" if cell["failed"] else f" ({there} folds)" if there < plan.runs else ""
            row.append(_spread(cell) + lost)
            row += ["" if published is None else f"{published[0]:.3f} ± {published[1]:.3f}"] if beside else []
        if len(row) > 1 and not method.endswith("_large"):  # these have a table of their own
            rows.append(row)
    heads = [head for low, high in plan.regions for head in (f"({low}, {high})", *(["published"] if beside else []))]
    return _markdown(["method", *heads], rows)


def larger_table() -> str:
    """Means over all test splits of bags, with the paper's learning rates and with larger ones."""
    plan, means = load_experiment("bags"), {}
    for cell in _study("experiments/bags")["cells"]:
        if (cell["protocol"], cell["choice"]) == ("splits", "chosen"):
            means[cell["dataset"], cell["method"], tuple(cell["region"])] = cell["mean"]
    columns = [(dataset, region) for dataset in ("musk2", "fox") for region in plan.regions]
    rows = []
    for method in (name for plain in _LARGER for name in (plain, f"{plain}_large")):
        title = plan.contestants[method].title + ("†" if plan.contestants[method].remedy else "")
        rows.append([title, *(f"{means[dataset, method, region]:.3f}" for dataset, region in columns)])
    heads = [f"{plan.datasets[dataset].title} ({low}, {high})" for dataset, (low, high) in columns]
    return _markdown(["method", *heads], rows)


def size_table() -> str:
    """Sizes of the library, in one column for each state that was measured."""
    columns = json.loads((ROOT / "docs" / "reports" / "size.json").read_text(encoding="utf-8"))
    keys = dict.fromkeys(key for column in columns.values() for key in column)
    rows = [[key, *(f"{column[key]:,}" if key in column else "" for column in columns.values())] for key in keys]
    return _markdown(["what", *columns], rows)


TABLES: dict[str, Callable[[], str]] = {
    "convergence": convergence_table,
    "keel ranks": keel_ranks,
    "keel 0.5, 0.5": partial(keel_table, (0.5, 0.5)),
    "keel 0.6, 0.4": partial(keel_table, (0.6, 0.4)),
    "keel remedies": keel_remedies,
    "label noise": noise_table,
    "threshold objectives": objective_table,
    "threshold scores": held_out_table,
    "digit_bags": bag_table,
    **{f"{name}_groups": partial(group_table, name) for name in ("planted", "adult", "compas")},
    "many_groups": many_groups_table,
    **{name: partial(experiment_table, "molecules", name) for name in ("moltox21", "molmuv", "molhiv")},
    **{name: partial(experiment_table, "bags", name) for name in ("musk2", "fox")},
    **{f"{name}, all splits": partial(experiment_table, "bags", name, "splits") for name in ("musk2", "fox")},
    "bags, larger learning rates": larger_table,
    **{name: partial(experiment_table, "histology", name) for name in ("colon", "lung", "lung_tiles", "lung_long")},
    **{
        f"{name}, the paper's grid": partial(experiment_table, "histology", name, choice="chosen_paper")
        for name in ("colon", "lung")
    },
    "size": size_table,
    **runpy.run_path(str(ROOT / "benchmarks" / "doc_tables.py"))["TABLES"],
}
