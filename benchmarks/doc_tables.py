"""The tables of the documentation that come from the reports of the benchmarks; see `python -m experiments docs`."""

from __future__ import annotations

import ast
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any


def _bench(name: str) -> Any:
    return json.loads((Path(__file__).parent / "reports" / f"{name}.json").read_text(encoding="utf-8"))


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (columns, *rows)]
    return "\n".join([lines[0], "|---" * len(columns) + "|", *lines[1:]])


def pairs_table() -> str:
    """Forward and backward of the loss beside LibAUC's."""
    sizes, rows = _bench("pairs")["sizes"], []
    for size in dict.fromkeys(entry["per class"] for entry in sizes):
        own = {entry["candidate"]: entry for entry in sizes if entry["per class"] == size}
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


def target_table() -> str:
    """Targets and measured costs of a step on the H200."""
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


def linear_quality_table() -> str:
    """Two-way partial AUC of logistic regression and of TPAUCLinear, the mean over splits, by table and region."""
    cells = _bench("linear_confirming")["cells"]
    regions = list(dict.fromkeys((cell["min_tpr"], cell["max_fpr"]) for cell in cells))
    names = ("LR", "LR, C tuned", "TPAUCLinear")

    def mean(some: Sequence[Any], name: str) -> float:
        return float(sum(cell[name] for cell in some)) / len(some)

    def line(title: str, some: Sequence[Any]) -> list[str]:
        row = [title]
        for region in regions:
            own = [cell for cell in some if (cell["min_tpr"], cell["max_fpr"]) == region]
            row.append(", ".join(f"{mean(own, name):.3f}" for name in names))
        return [*row, f"{sum(cell['TPAUCLinear'] >= cell['LR'] - 1e-9 for cell in some)} of {len(some)}"]

    tables = dict.fromkeys(cell["table"] for cell in cells)
    rows = [line(table, [cell for cell in cells if cell["table"] == table]) for table in tables]
    columns = ["table", *(f"({low:g}, {high:g})" for low, high in regions), "at least LR"]
    return _markdown(columns, [*rows, line("all", cells)])


def linear_time_table() -> str:
    """Seconds of a fit of TPAUCLinear beside logistic regression."""
    rows = []
    for entry in _bench("linear_time")["times"]:
        row = [f"{entry['rows']:,}", f"{entry['seconds']['LR']:.2g} s"]
        for name in ("TPAUCLinear", "TPAUCLinear, margin and C given"):
            row.append(f"{entry['seconds'][name]:.2g} s, {entry[f'{name} / LR']:.2g} times")
        rows.append(row)
    return _markdown(["rows of 20 features", "LR", "TPAUCLinear", "margin and C given"], rows)


def boosting_table() -> str:
    """Seconds of a boosting round with the objective for the region beside LightGBM's own."""
    rows = []
    for entry in _bench("boosting")["times"]:
        seconds = [f"{entry['seconds'][name]:.2g} s" for name in ("gradient", "tpauc_objective", "binary")]
        rows.append([f"{entry['rows']:,}", *seconds, f"{entry['tpauc_objective / binary']:.2g}"])
    columns = [
        "rows of 20 features",
        "gradient and Hessian",
        "round",
        "round of LightGBM's log loss",
        "ratio of rounds",
    ]
    return _markdown(columns, rows)


def fit_time_table() -> str:
    """Seconds of a fit of the estimators of rows with defaults, beside logistic regression and LightGBM."""
    names = ("LR", "LightGBM", "TPAUCLinear", "TPAUCClassifier")
    rows = []
    for entry in _bench("fit")["results"]:
        seconds = [f"{entry['seconds'][name]:.2g} s" for name in names]
        rows.append([f"{entry['rows']:,} x {entry['columns']}", *seconds])
    return _markdown(["rows x columns", *names], rows)


GALLERY = Path(__file__).parent.parent / "examples" / "gallery"


def gallery_code(name: str) -> str:
    """The objective in a file of the gallery: what stands between its imports and its `main`."""
    text = (GALLERY / f"{name}.py").read_text(encoding="utf-8")
    tree = ast.parse(text)
    first = max(node.end_lineno or 0 for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
    (last,) = (node.lineno - 1 for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main")
    code = "\n".join(text.splitlines()[first:last]).strip()
    return f"```python\n{code}\n```"


def gallery_run_table() -> str:
    """What the runs of the files gave: mean and standard deviation over seeds."""
    rows = []
    for entry in _bench("gallery")["runs"]:
        row = [entry["example"], entry["metric"], _mean_std(entry["before"]), _mean_std(entry["after"]), "", ""]
        if "plain" in entry:
            ((option, value),) = entry["plain"].items()
            pairs = list(zip(entry["after"], entry["after, plain"], strict=True))
            better = sum((ours < plain) == ("loss" in entry["metric"]) for ours, plain in pairs)
            row[4:] = [f"{_mean_std(entry['after, plain'])} ({option} = {value:g})", f"{better} of {len(pairs)} seeds"]
        rows.append(row)
    columns = ["trained by", "metric of new data", "before", "after", "with the plain mean instead", "better in"]
    return _markdown(columns, rows)


def _mean_std(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"


def gallery_first_step_table() -> str:
    """Value and gradient of the first step beside LibAUC's."""
    rows = []
    for entry in _bench("gallery")["first step"]:
        one, default = entry["weight 1"], entry["weight 0.9"]
        gap = "other" if entry["factor"] is None else f"{one['gradient gap']:.0e}"
        norms = [f"{part['norm over ours']:.3f}" for part in (one, default)]
        values = f"{one['value']:.3f}, {one['LibAUC value']:.3f}"
        rows.append([entry["example"], entry["LibAUC"], gap, *norms, f"{one['cosine']:.4f}", values, entry["why"]])
    columns = ["example", "LibAUC", "gap of gradients", "norm of theirs over ours", "at weight 0.9", "cosine"]
    return _markdown([*columns, "values, ours and theirs", "why they differ"], rows)


def libauc_table() -> str:
    """Value and gradient of the first step of each pair of code in docs/libauc.md."""
    report, rows = _bench("libauc"), []
    for entry in (entry for entry in report["sections"] if "found" not in entry):
        page, one = entry["as on the page"], entry["averaging weight 1"]
        values = [f"{page[name]:.4f}".replace("-0.0000", "0.0000") for name in ("LibAUC value", "value")]
        ratios = [f"{part['norm over ours']:.3f}" for part in (page, one)]
        rows.append([entry["section"], *values, *ratios, f"{page['cosine']:.4f}", f"{one['cosine']:.4f}"])
    columns = ["pair", "LibAUC's value", "ours", "ratio on the page", "with weight 1", "cosine", "with weight 1"]
    made = f"LibAUC {report['peer']['libauc']}, torch {report['peer']['torch'].split('+')[0]}, {report['date']}"
    return f"{_markdown(columns, rows)}\n\n{made}."


def libauc_found_table() -> str:
    """What the other pairs of code in docs/libauc.md found."""
    sections = [entry for entry in _bench("libauc")["sections"] if "found" in entry]
    shown = [
        [", ".join(f"{value:.4g}" for value in entry[key]) for key in ("LibAUC found", "found")] for entry in sections
    ]
    rows = [[entry["section"], *cells] for entry, cells in zip(sections, shown, strict=True)]
    return _markdown(["pair", "`found` of LibAUC", "ours"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "bench pairs": pairs_table,
    "bench metrics": metric_table,
    "bench MLP": mlp_step_table,
    "bench targets": target_table,
    "bench bags": bag_memory_table,
    "bench linear confirming": linear_quality_table,
    "bench linear time": linear_time_table,
    "bench boosting": boosting_table,
    "bench fit": fit_time_table,
    **{f"gallery {path.stem}": partial(gallery_code, path.stem) for path in GALLERY.glob("*.py")},
    "gallery, runs": gallery_run_table,
    "bench gallery, first step": gallery_first_step_table,
    "bench libauc": libauc_table,
    "bench libauc, found": libauc_found_table,
}
