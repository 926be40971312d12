"""The page of the studies of defaults and of screening: ranks, paired tests, seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import rankdata, wilcoxon

from experiments.data.fingerprints import FINGERPRINT_SETS
from experiments.engine import Record
from experiments.files import save_figure
from experiments.studies._shared import mean_and_std, show
from experiments.studies.defaults_entries import ENTRIES
from moreauc.app.report.pages import COLORS, Report, Section

if TYPE_CHECKING:
    from experiments.studies.defaults import DefaultsStudy

# titles of the parts of a plan
PARTS = {"choose": "Tables to choose", "confirm": "Tables to confirm", "assays": "Tox21 and HIV", "muv": "MUV"}
OURS = ("sonx", "linear", "booster", "auto", "sont_att")
EQUAL = 0.0005  # means nearer than this count as equal
COLLAPSED = 10, 0.9  # limits of different test scores and AUC below which a model is collapsed
_QUIET = "#66717f"
_ALL = "all"


def summary(
    records: Sequence[Record],
    tables: Mapping[str, Sequence[str]],
    regions: Sequence[Sequence[float]],
    unranked: Sequence[str] = (),
) -> Record:
    """Return the cells (table, region and candidate), and for each part standings and paired tests.

    In each part, the candidates are those that have records there, and the tables those that all of them have records
    of, in every region; the seeds of a table are those that all have. A candidate that is not ranked is compared with
    the others on the tables and seeds that it has, and changes nothing else.

    Args:
        records: of :func:`~experiments.studies.defaults.run_candidate`, with their places.
        tables: tables of each part.
        regions: pairs of the lowest TPR and the highest FPR.
        unranked: candidates that are not ranked.
    """
    runs: dict[tuple[str, str, str], dict[int, Record]] = {}
    for record in records:
        for entry in record["results"]:
            runs.setdefault((record["dataset"], region_name(entry["region"]), record["method"]), {})[record["seed"]] = (
                entry
            )
    tried = {method for _, _, method in runs}
    ranked = [name for name in ENTRIES if name in tried and name not in unranked]
    extras = [name for name in OURS if name in unranked]
    cells, left_out = _all_cells(runs, tables, regions, ranked)
    against = _against(cells, OURS)
    for extra, other in product(extras, ranked):
        against += _against(_common_cells(runs, tables, regions, extra, other), (extra,))
    return {
        "tables": {part: list(names) for part, names in tables.items()},
        "left_out": left_out,
        "regions": [region_name(region) for region in regions],
        "cells": cells,
        "standings": _standings(cells),
        "standings_with": {name: _standings(_common_cells(runs, tables, regions, name, *ranked)) for name in extras},
        "against": against,
    }


def _all_cells(
    runs: dict[tuple[str, str, str], dict[int, Record]],
    tables: Mapping[str, Sequence[str]],
    regions: Sequence[Sequence[float]],
    candidates: Sequence[str],
) -> tuple[list[Record], list[str]]:
    """Return the cells of the tables that all candidates of a half have records of, and the tables left out."""
    cells: list[Record] = []
    left_out: list[str] = []
    for half, region in product(tables, map(region_name, regions)):
        there = {method for name, _, method in runs if name in tables[half]}
        methods = [method for method in candidates if method in there]
        for name in tables[half]:
            found = {method: runs.get((name, region, method), {}) for method in methods}
            seeds = _common_seeds(name, found)
            if seeds:
                cells += _cells({"half": half, "region": region, "table": name}, found, seeds)
            elif methods and name not in left_out:
                left_out.append(name)
    return [cell for cell in cells if cell["table"] not in left_out], left_out


def _common_cells(
    runs: dict[tuple[str, str, str], dict[int, Record]],
    tables: Mapping[str, Sequence[str]],
    regions: Sequence[Sequence[float]],
    *candidates: str,
) -> list[Record]:
    """Return the cells of some candidates, of the tables and seeds that all of them have in all regions."""
    places = [region_name(region) for region in regions]

    def has_all(name: str) -> bool:
        return all((name, place, method) in runs for place in places for method in candidates)

    common = {half: [name for name in names if has_all(name)] for half, names in tables.items()}
    return _all_cells(runs, common, regions, candidates)[0]


def region_name(region: Sequence[float]) -> str:
    """Return a region as text."""
    return f"{region[0]:g}, {region[1]:g}"


def _common_seeds(table: str, found: dict[str, dict[int, Record]]) -> list[int]:
    """Return the seeds that all candidates have; one whose training is the same for every seed has them all."""
    once = [method for method in found if table in FINGERPRINT_SETS and not ENTRIES[method].random]
    if not found or any(0 not in found[method] for method in once):
        return []
    random = [set(found[method]) for method in found if method not in once]
    seeds = sorted(set.intersection(*random)) if random else [0]
    for method in once:
        found[method] = dict.fromkeys(seeds, found[method][0])
    return seeds


def _cells(place: Record, found: dict[str, dict[int, Record]], seeds: list[int]) -> list[Record]:
    own = {method: [runs[seed] for seed in seeds] for method, runs in found.items()}
    means = {method: float(np.mean([run["tpauc"] for run in runs])) for method, runs in own.items()}
    ranks = rankdata([-round(mean, 6) for mean in means.values()])
    return [
        {
            **place,
            "method": method,
            **mean_and_std([run["tpauc"] for run in runs]),
            "rank": float(rank),
            "scores": [run["tpauc"] for run in runs],
            "auc": float(np.mean([run["auc"] for run in runs])),
            "seconds": _mean_seconds(found[method].values()),  # over all seeds
            **_top(runs),
            "collapsed": sum((run["distinct"] < COLLAPSED[0]) & (run["auc"] < COLLAPSED[1]) for run in runs),
        }
        for (method, runs), rank in zip(own.items(), ranks, strict=True)
    ]


def _top(runs: Sequence[Record]) -> Record:
    """Return the mean scores of the top of the list, which molecules have: BEDROC and enrichment by share."""
    if not all("bedroc" in run for run in runs):
        return {}
    shares = {share: float(np.mean([run["enrichment"][share] for run in runs])) for share in runs[0]["enrichment"]}
    return {"bedroc": float(np.mean([run["bedroc"] for run in runs])), "enrichment": shares}


def _mean_seconds(runs: Iterable[Record]) -> float | None:
    """Return the mean of the known seconds: runs that were timed differently have none."""
    known = [run["seconds"] for run in runs if run["seconds"] is not None]
    return float(np.mean(known)) if known else None


def _standings(cells: Sequence[Record]) -> list[Record]:
    """Return for each half, region (and all regions) and candidate its mean rank and other statistics."""
    rows = []
    for half, region in _places(cells):
        some = [cell for cell in cells if cell["half"] == half and region in (cell["region"], _ALL)]
        for method in dict.fromkeys(cell["method"] for cell in some):
            own = [cell for cell in some if cell["method"] == method]
            seconds = [cell["seconds"] for cell in own if cell["seconds"] is not None]
            rows.append(
                {
                    "half": half,
                    "region": region,
                    "method": method,
                    "title": ENTRIES[method].title,
                    "tables": len({cell["table"] for cell in own}),
                    "seeds": sorted({len(cell["scores"]) for cell in own}),
                    "rank": float(np.mean([cell["rank"] for cell in own])),
                    "mean": float(np.mean([cell["mean"] for cell in own])),
                    "auc": float(np.mean([cell["auc"] for cell in own])),
                    "not_below": _not_below(own, some, ("ce", "lr", "ce_att", "lr_bags")),
                    "not_below_tuned": _not_below(own, some, ("ce", "lr", "lr_tuned", "ce_att", "lr_bags")),
                    "seconds": float(np.median(seconds)) if seconds else None,
                    "most_seconds": max(seconds, default=None),
                    "collapsed": sum(cell["collapsed"] for cell in own),
                }
            )
    return rows


def _places(cells: Sequence[Record]) -> list[tuple[str, str]]:
    halves, regions = (list(dict.fromkeys(cell[key] for cell in cells)) for key in ("half", "region"))
    return [(half, region) for half in halves for region in (*regions, _ALL)]


def _not_below(own: Sequence[Record], cells: Sequence[Record], others: Sequence[str]) -> float | None:
    """Return the share of a candidate's cells that are not below the best of others; None where none has records."""
    best: dict[tuple[str, str], float] = {}
    for cell in (cell for cell in cells if cell["method"] in others):
        place = cell["table"], cell["region"]
        best[place] = max(best.get(place, 0.0), cell["mean"])
    met = [cell["mean"] >= best[cell["table"], cell["region"]] - EQUAL for cell in own] if best else []
    return float(np.mean(met)) if met else None


def _against(cells: Sequence[Record], ours: Sequence[str]) -> list[Record]:
    """Compare each of ours with every other candidate: a signed-rank test over tables, and tables won and lost.

    A table is won or lost where the mean difference over seeds is more than twice its standard error; over all regions
    a table counts once, with its mean.
    """
    rows = []
    for half, region in _places(cells):
        by: dict[tuple[str, str], list[Record]] = {}
        for cell in cells:
            if cell["half"] == half and region in (cell["region"], _ALL):
                by.setdefault((cell["method"], cell["table"]), []).append(cell)
        methods, tables = (list(dict.fromkeys(key[place] for key in by)) for place in (0, 1))
        for method, other in ((a, b) for a in ours for b in methods if a in methods and a != b):
            gaps = [_scores(by[method, table]) - _scores(by[other, table]) for table in tables]
            means = np.array([gap.mean() for gap in gaps])
            errors = np.array([gap.std(ddof=1) / len(gap) ** 0.5 if len(gap) > 1 else np.inf for gap in gaps])
            rows.append(
                {
                    "half": half,
                    "region": region,
                    "method": method,
                    "other": other,
                    "title": ENTRIES[other].title,
                    "difference": float(means.mean()),
                    "higher": int((means > EQUAL).sum()),
                    "lower": int((means < -EQUAL).sum()),
                    "won": int((means > np.maximum(2.0 * errors, EQUAL)).sum()),
                    "lost": int((means < -np.maximum(2.0 * errors, EQUAL)).sum()),
                    "tables": len(tables),
                    "p": float(wilcoxon(means).pvalue) if np.abs(means).max(initial=0.0) > 0.0 else 1.0,
                }
            )
    return rows


def _scores(cells: Iterable[Record]) -> NDArray[np.float64]:
    """Return the scores by seed, the mean over regions where there are several."""
    means: NDArray[np.float64] = np.mean([cell["scores"] for cell in cells], axis=0)
    return means


def standing_table(results: Record, half: str, extra: str | None = None) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of a half's standings, the best mean rank first; with an unranked candidate or not."""
    regions = results["regions"]
    standings = results["standings"] if extra is None else results["standings_with"][extra]
    by = {(row["method"], row["region"]): row for row in standings if row["half"] == half}
    order = sorted((row for row in by.values() if row["region"] == _ALL), key=lambda row: float(row["rank"]))
    rows = []
    for row in order:
        own = [by[row["method"], region] for region in regions]
        shares = ["" if row[key] is None else f"{row[key]:.0%}" for key in ("not_below", "not_below_tuned")]
        times = ["" if row[key] is None else f"{row[key]:.1f}" for key in ("seconds", "most_seconds")]
        last = [*shares, *times, str(row["collapsed"])]
        rows.append([row["title"], *(f"{e['rank']:.2f}" for e in own), *(f"{e['mean']:.3f}" for e in own), *last])
    heads = [f"{what} ({region})" for what in ("rank", "TPAUC") for region in regions]
    more = ["not below CE, LR", "nor tuned LR", "seconds, median", "most", "collapsed"]
    return ["method", *heads, *more], rows


def against_table(results: Record, half: str, method: str) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the paired tests of one of ours: difference, tables won and lost, p."""
    some = [row for row in results["against"] if (row["half"], row["method"]) == (half, method)]
    places = [*results["regions"], _ALL]
    rows = []
    for title in dict.fromkeys(row["title"] for row in some):
        own = {row["region"]: row for row in some if row["title"] == title}
        rows.append([title, *(_verdict(own[place]) for place in places)])
    return ["against", *(f"({place})" if place != _ALL else "mean of the regions" for place in places)], rows


def _verdict(row: Record) -> str:
    return f"{row['difference']:+.3f}; {row['won']} : {row['lost']}; p {row['p']:.3f}"


def top_table(results: Record, part: str, region: str) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of BEDROC and enrichment: mean rank over the tables and mean, the best BEDROC first.

    Where the training depends on the region, the models are those trained for `region`.
    """
    cells = [cell for cell in results["cells"] if (cell["half"], cell["region"]) == (part, region)]
    cells = [{**cell, "BEDROC": cell["bedroc"], **_factors(cell)} for cell in cells]
    scores = ["BEDROC", *_factors(cells[0])]
    ranks: dict[tuple[str, str], list[float]] = {}
    for name, table in product(scores, dict.fromkeys(cell["table"] for cell in cells)):
        own = [cell for cell in cells if cell["table"] == table]
        for cell, rank in zip(own, rankdata([-round(cell[name], 6) for cell in own]), strict=True):
            ranks.setdefault((cell["method"], name), []).append(float(rank))
    rows = []
    for method in dict.fromkeys(cell["method"] for cell in cells):
        means = [np.mean([cell[name] for cell in cells if cell["method"] == method]) for name in scores]
        shown = [f"{np.mean(ranks[method, name]):.2f}" for name in scores]
        rows.append([ENTRIES[method].title, *shown, f"{means[0]:.3f}", *(f"{mean:.1f}" for mean in means[1:])])
    rows.sort(key=lambda row: float(row[1]))
    return ["method", *(f"rank {name}" for name in scores), *scores], rows


def _factors(cell: Record) -> dict[str, float]:
    """Return the enrichment factors of a cell by the names of their columns."""
    return {f"EF {share}": factor for share, factor in cell["enrichment"].items()}


def score_table(results: Record, half: str, region: str) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of TPAUC in a region: a row for each table, a column for each candidate."""
    cells = [cell for cell in results["cells"] if (cell["half"], cell["region"]) == (half, region)]
    titles = [ENTRIES[method].title for method in dict.fromkeys(cell["method"] for cell in cells)]
    tables = dict.fromkeys(cell["table"] for cell in cells)
    return ["table", *titles], [[name, *(show(c) for c in cells if c["table"] == name)] for name in tables]


def make_page(study: DefaultsStudy, records: Sequence[Record], out: Path) -> Report:
    """Draw the ranks into `out` and return the report."""
    results = summary(records, study.parts, study.regions, study.unranked)
    sections = []
    if results["cells"]:
        save_figure(draw_ranks(results), out / "ranks.png")
        caption = "Average rank over the tables of each part; a line joins the regions, lower is better."
        sections.append(Section("Ranks", figure="ranks.png", caption=caption))
    for part in _parts(results):
        sections += _sections(results, part)
    return Report(study.title, "", {"plan": study.plan, "seeds": study.seeds, **results}, sections)


def _parts(results: Record) -> list[str]:
    """Return the parts that have standings."""
    return list(dict.fromkeys(row["half"] for row in results["standings"]))


def _sections(results: Record, half: str) -> list[Section]:
    title = PARTS[half]
    there = [name for name in results["tables"][half] if name not in results["left_out"]]
    missing = [name for name in results["tables"][half] if name in results["left_out"]]
    seeds = next(row["seeds"] for row in results["standings"] if row["half"] == half)
    many = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
    text = [f"{len(there)} tables: {', '.join(there)}. Seeds common to all candidates: {many}."]
    text += [f"Left out, because some candidates have no runs: {', '.join(missing)}."] if missing else []
    columns, rows = standing_table(results, half)
    sections = [Section(f"{title}: standings", text, columns=columns, rows=rows, labels=1)]
    if all("bedroc" in cell for cell in results["cells"]):
        last = min(results["regions"], key=lambda region: float(region.split(", ")[1]))
        columns, rows = top_table(results, half, last)
        words = f"BEDROC and enrichment factors of the models for ({last}): mean rank over the tables, then the mean."
        sections.append(Section(f"{title}: the top of the list", [words], columns=columns, rows=rows, labels=1))
    for method in OURS:
        columns, rows = against_table(results, half, method)
        if rows:
            number = max(row["tables"] for row in results["against"] if (row["half"], row["method"]) == (half, method))
            words = (
                f"{number} tables: mean difference of TPAUC; tables won : lost by more than twice the standard error "
                "over seeds; p of Wilcoxon's signed ranks."
            )
            heading = f"{title}: {ENTRIES[method].title} against each"
            sections.append(Section(heading, [words], columns=columns, rows=rows, labels=1))
    for region in results["regions"]:
        columns, rows = score_table(results, half, region)
        words = "Mean ± standard deviation over seeds."
        sections.append(Section(f"{title}: TPAUC ({region})", [words], columns=columns, rows=rows, labels=1))
    return sections


def draw_ranks(results: Record) -> Figure:
    """Draw the average ranks: a panel for each part, a row for each candidate, a marker for each region."""
    halves = _parts(results)
    standings = {(row["half"], row["method"], row["region"]): row for row in results["standings"]}
    shown = [row for row in results["standings"] if row["half"] == halves[-1] and row["region"] == _ALL]
    methods = [row["method"] for row in sorted(shown, key=lambda row: float(row["rank"]))]
    figure = Figure(figsize=(1.8 + 3.6 * len(halves), 1.3 + 0.32 * len(methods)), layout="constrained")
    panels = figure.subplots(1, len(halves), squeeze=False, sharex=True, sharey=True)[0]
    for axes, half in zip(panels, halves, strict=True):
        for place, method in enumerate(methods):
            rows = [standings.get((half, method, region)) for region in results["regions"]]
            ranks = [row["rank"] for row in rows if row is not None]
            color = COLORS[0] if method in OURS else _QUIET
            axes.plot(ranks, [place] * len(ranks), "-", color=color, alpha=0.5, linewidth=2)
            for rank, marker in zip(ranks, "osD", strict=False):
                axes.plot(rank, place, marker, color=color, markersize=6)
        count = next((row["tables"] for row in results["standings"] if row["half"] == half), 0)
        axes.set_title(f"{PARTS[half]} ({count})", fontsize=10)
        axes.set_xlabel("average rank")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    panels[0].set_yticks(range(len(methods)), [ENTRIES[method].title for method in methods])
    panels[0].set_ylim(len(methods) - 0.5, -0.5)
    for region, marker in zip(results["regions"], "osD", strict=False):
        panels[0].plot([], [], marker, color=_QUIET, label=f"({region})")
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return figure
