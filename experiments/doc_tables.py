"""The tables of the documentation by name, from the committed reports of the studies and of the benchmarks."""

from __future__ import annotations

import json
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


def _bench(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "reports" / f"{name}.json").read_text(encoding="utf-8"))


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


def fcco_step_table() -> str:
    """A step of FCCOLoss over that of the mean loss."""
    variants, rows = ("FCCOLoss, gamma 0", "mean loss + forward without gradient", "FCCOLoss, gamma 0.1"), []
    for name, machine, model in [("step", "CPU", "mlp"), ("step_h200", "H200", "resnet20")]:
        for batch in (64, 1024):
            entry = _bench(name)[f"training {model}, batch {batch}"]
            ratios = [f"{entry[f'{variant} / mean loss']['median']:.2f}" for variant in variants]
            rows.append([f"{machine}, batch {batch}", *ratios])
    return _markdown(["", "FCCOLoss, gamma 0", "floor with correction", "FCCOLoss, gamma 0.1"], rows).replace(
        "|  |", "| |", 1
    )


def pairs_table() -> str:
    """Forward and backward of the loss beside LibAUC's."""
    sizes, rows = _bench("pairs")["sizes"], []
    for size in dict.fromkeys(entry["per class"] for entry in sizes):
        own = {entry["contestant"]: entry for entry in sizes if entry["per class"] == size}
        ours = own["TPAUCLoss"]
        row = [f"{size:,}", f"{ours['microseconds'] / 1000:.3g} ms", f"{ours['growth_mib']:.0f} MiB"]
        for entry in (own["tpAUC_CVaR_loss"], own["tpAUC_KL_Loss"]):
            ratio = entry.get("times TPAUCLoss", 0.0)
            shown = f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"
            row.append("out of memory" if "error" in entry else f"{shown} times, {entry['growth_mib']:,.0f} MiB")
        rows.append(row)
    columns = ["positives and negatives, each", "TPAUCLoss", "memory", "LibAUC tpAUC_CVaR_loss", "LibAUC tpAUC_KL_Loss"]
    return _markdown(columns, rows)


def metric_table() -> str:
    """Times of tpauc_score beside others."""
    rows = []
    for entry in (entry for entry in _bench("metrics")["times"] if entry["levels"] is None):
        ratios = [entry[f"{name} / tpauc_score"]["median"] for name in ("pauc_roc_score", "sklearn roc_auc_score")]
        row = [f"{100 * entry['share']:g} %", f"({entry['min_tpr']:g}, {entry['max_fpr']:g})"]
        rows.append([*row, f"{entry['milliseconds']['tpauc_score']:.0f} ms", *(f"{ratio:.1f}" for ratio in ratios)])
    columns = ["positives", "region", "tpauc_score", "LibAUC pauc_roc_score", "scikit-learn roc_auc_score"]
    return _markdown(columns, rows)


def mlp_step_table() -> str:
    """A training step of three networks over that of cross entropy."""
    report, rows = _bench("tpauc_step"), []
    variants = ("TPAUCLoss, gamma 0", "cross entropy + forward without gradient", "TPAUCLoss, gamma 0.1")
    for name in (key for key in report if key.startswith(("small", "medium", "large"))):
        ratios = [report[name][f"{variant} / cross entropy"] for variant in variants]
        cells = [f"{r['median']:.2f} ({r['quartiles'][0]:.2f} to {r['quartiles'][1]:.2f})" for r in ratios]
        rows.append([name, f"{report[name]['microseconds']['cross entropy'] / 1000:.2f} ms", *cells])
    return _markdown(["MLP", "CE step", "gamma 0", "floor with correction", "gamma 0.1"], rows)


def device_step_table(device: str, *techniques: str) -> str:
    """Cross entropy in milliseconds, the other losses in times of it by the same technique."""
    done = [row for row in _bench(f"step_{device}")["rows"] if "error" not in row]
    found = {(row["case"], row["loss"], row["technique"]): row for row in done}
    rows = []
    for case, loss in dict.fromkeys(key[:2] for key in found):
        row = [case, loss]
        for entry in (found.get((case, loss, technique)) for technique in techniques):
            if entry is None:
                row.append("")
            elif loss == "CE":
                row.append(f"{entry['milliseconds']['median']:.3g} ms")
            else:
                row.append(f"{entry['times CE by the same technique']['median']:.2f}")
        rows.append(row)
    return _markdown(["model", "loss", *techniques], rows)


def target_table() -> str:
    """What a step on the H200 was to cost, and does."""
    rows = []
    for row in _bench("step_cuda")["targets"]:
        case, most = row["target"].rsplit(", at most ", 1)
        floors = [row["floor of a correction"], row["floor of a correction beside the forward"]]
        shown = [f"{floor:.3f}" for floor in floors if floor is not None and "gamma 0.1" in case]
        met = "yes" if row["met"] else "no"
        rows.append([case, most.split()[0], f"{row['measured']:.3f}", " / ".join(shown), met])
    return _markdown(["ResNet20 on the H200, times CE", "target", "measured", "floor", "met"], rows)


def bag_memory_table() -> str:
    """Memory and time of bags of several sizes."""
    rows = []
    for entry in _bench("bags")["sizes"]:
        row = [f"{entry['instances per bag']:,}", f"{entry['mib of one bag']:.1f} MiB"]
        row += [f"{entry[part]['process_mib']:.0f} MiB" for part in ("training", "scoring")]
        rows.append([*row, f"{entry['microseconds per step']['microseconds'] / 1000:.1f} ms"])
    return _markdown(["instances in a bag", "one bag", "peak of training", "peak of scoring", "a step"], rows)


def model_table() -> str:
    """A step and an epoch of the paper's networks."""
    report, rows = _bench("models_h200"), []
    for network in ("GIN", "ResNet20"):
        for row in (row for row in report[network]["variants"] if not row["variant"].endswith("the CPU")):
            numbers = [row[key]["median"] for key in ("milliseconds per step", "seconds per epoch", "times CE")]
            rows.append([network, row["variant"], *(f"{n:.{d}f}" for n, d in zip(numbers, (1, 2, 2), strict=True))])
    return _markdown(["network", "loss", "ms per step", "s per epoch", "ratio to CE"], rows)


def tissue_step_table() -> str:
    """Steps per second of ResNet20 in several processes, operation by operation and as one graph."""
    found = _bench("tissue_h200")["rows"]
    rows = []
    for row in found:
        rates = [f"{entry['steps of models per second, all']['median']:.0f}" for entry in row["processes"]]
        rows.append([f"SONT, gamma {row['gamma']:g}", "one graph" if row["graphed"] else "operations", *rates])
    numbers = [entry["processes"] for entry in found[0]["processes"]]
    return _markdown(["loss", "step", *(f"{n} process{'es' if n > 1 else ''}" for n in numbers)], rows)


def copies_table() -> str:
    """Copies of GIN side by side and one after the other."""
    rows = []
    for row in _bench("models_h200")["side by side"]["copies"]:
        both = [row[key] for key in ("side by side", "one after the other")]
        times = [f"{entry['milliseconds for a step of all']['median']:.0f}" for entry in both]
        rows.append([str(row["copies"]), *times, f"{row['one after the other / side by side']['median']:.2f}"])
    return _markdown(["copies of GIN", "ms for a step of all, side by side", "one after the other", "ratio"], rows)


def processes_line() -> str:
    """Steps of single models per second in several processes, as a sentence."""
    found = _bench("models_h200")["processes"]["processes"]
    rates = [f"{row['steps of models per second, all']['median']:,.0f} with {row['processes']}" for row in found]
    return f"Processes with six copies each, under NVIDIA's MPS: steps of single models per second {', '.join(rates)}."


def size_table() -> str:
    """Sizes of the library, in one column for each state that was measured."""
    columns = json.loads((ROOT / "docs" / "reports" / "size.json").read_text(encoding="utf-8"))
    keys = dict.fromkeys(key for column in columns.values() for key in column)
    rows = [[key, *(f"{column[key]:,}" if key in column else "" for column in columns.values())] for key in keys]
    return _markdown(["what", *columns], rows)


_TECHNIQUES = ("eager", "compiled", "graphed", "compiled and graphed")
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
    "bench FCCOLoss": fcco_step_table,
    "bench pairs": pairs_table,
    "bench metrics": metric_table,
    "bench MLP": mlp_step_table,
    "bench cuda": partial(device_step_table, "cuda", *_TECHNIQUES),
    "bench cpu": partial(device_step_table, "cpu", *_TECHNIQUES[:2]),
    "bench targets": target_table,
    "bench bags": bag_memory_table,
    "bench models": model_table,
    "bench tissue": tissue_step_table,
    "bench copies": copies_table,
    "bench processes": processes_line,
}
