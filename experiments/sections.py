"""The sections of an experiment's page: texts and formatted tables of the cells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.config import DataSet, Experiment
from experiments.engine import Record
from experiments.ranks import difference_table, rank_table
from experiments.tables import Cell, Curve, Records, Table, smallest_p, title_of
from experiments.trial import SMOOTHED
from moreauc.app.report.pages import Section

NONE = "–"  # noqa: RUF001
_PARTS = ("train", "validation", "test")
START, RECIPE_START = "start (CE)", "start (CE, best epoch)‡"
_CHOICES = {
    "chosen": "",
    "chosen_paper": ", only settings of the paper's grid",
    "chosen_smoothed": f", epochs chosen by the mean of {SMOOTHED}",
}


def show(mean: float | None, std: float | None = None) -> str:
    """Format a mean and a standard deviation, either of which may be missing.

    Example:
        >>> show(0.5, 0.125), show(0.5), show(None)
        ('0.500±0.125', '0.500', '–')
    """
    if mean is None or math.isnan(mean):
        return NONE
    return f"{mean:.3f}" if std is None or math.isnan(std) else f"{mean:.3f}±{std:.3f}"


def show_cell(cell: Cell, number: int) -> str:
    """Format a cell; if it has another number of values or runs without a score, these counts are in parentheses."""
    text = show(cell.mean, cell.std)
    notes = [str(len(cell.values))] if len(cell.values) != number or cell.failed else []
    notes += [f"{cell.failed} no score"] if cell.failed else []
    return f"{text} ({', '.join(notes)})" if notes else text


def region_name(region: tuple[float, float]) -> str:
    """Return a region as the paper writes it: least TPR and largest FPR."""
    return f"({region[0]:g}, {region[1]:g})"


def units(table: Table) -> str:
    """Return the name of what the values of a table are taken over."""
    if table.protocol == "splits":
        return "test splits"
    return "seeds" if table.plan.name == "molecules" else "folds"


def heading(table: Table, dataset: DataSet) -> str:
    """Return the heading of a data set's table."""
    text = dataset.title
    if dataset.splits > 1:
        text += f", {dataset.splits} test splits" if table.protocol == "splits" else ", one test split"
    return text + _choice(table)


def _choice(table: Table) -> str:
    return _CHOICES[table.choice]


def results(table: Table, dataset: DataSet) -> Section:
    """Return the table of a data set, the published numbers beside ours."""
    plan = table.plan
    if not table.has_runs(dataset.name):
        return _not_run(plan, dataset)
    published = dataset.published is not None
    columns = ["method"]
    for region in plan.regions:
        columns += [region_name(region), *(["published"] if published else [])]
    number, across = table.number(dataset.name), range(len(plan.regions))
    lines = []
    for recipe, start in ((False, START), (True, RECIPE_START)):
        entries = [entry for entry in table.run_on(dataset.name) if entry.recipe == recipe]
        starts = [table.starts.get((dataset.name, column, recipe)) for column in across]
        found = [cell for cell in starts if cell is not None]
        lines += [(start, found)] if entries and len(found) == len(starts) else []
        for entry in entries:
            lines.append((title_of(entry), [table.cell(dataset.name, entry.name, column) for column in across]))
    rows = []
    for title, cells in lines:
        row = [title]
        for cell in cells:
            row += [show_cell(cell, number), *([show(*(cell.published or (None, None)))] if published else [])]
        rows.append([*row, NONE if title in (START, RECIPE_START) else "/".join(str(cell.wins) for cell in cells)])
    return Section(heading(table, dataset), _about(table, dataset), columns=[*columns, "wins"], rows=rows, labels=1)


def _about(table: Table, dataset: DataSet) -> list[str]:
    plan, what = table.plan, units(table)
    number, methods = table.number(dataset.name), table.run_on(dataset.name)
    names = {entry.name for entry in methods}
    own = [cell for key, cell in table.cells.items() if key[0] == dataset.name and key[1] in names]
    text = f"Test TPAUC, mean ± standard deviation over {number} {what}"
    if table.protocol == "splits":
        text += f", each the mean over its {plan.runs} folds"
    if table.choice == "chosen_smoothed":
        text += f"; all methods choose the epoch by the mean validation score of {SMOOTHED} epochs"
    if table.choice == "chosen_paper":
        text += f"; validation chooses among the settings of the paper's grid only ({_grid(plan)})"
    text += f". Wins: number of {what} in which no method of the paper is better, in each region."
    if any(entry.remedy for entry in methods):
        text += " † departs from the paper's protocol."
    if any(entry.recipe for entry in methods):
        text += f" {_recipe(plan)}"
    remarks = [dataset.note] if dataset.note else []
    left_out = [title_of(entry) for entry in table.methods if entry.name not in names]
    if left_out:
        remarks.append(f"Not run here: {'; '.join(left_out)}.")
    if any(not cell.complete for cell in own):
        remarks.append(f"Runs are missing: a number in parentheses is the number of {what} of a cell, of {number}.")
    elif any(cell.there != number for cell in own):
        remarks.append(f"A number in parentheses is the number of {what} of a cell, if it is not {number}.")
    if any(cell.failed for cell in own):
        remarks.append(
            "Runs without a score, in which every setting diverged before its first, are counted but not in the mean."
        )
    return [text, *remarks]


def _recipe(plan: Experiment) -> str:
    """Describe the recipe."""
    recipe = plan.recipe
    if recipe is None:
        return ""
    return (
        f"‡ follows the recipe: {recipe.epochs} epochs of the method's loss with averaged weights, from the best of "
        f"{recipe.pretrain_epochs} epochs of cross entropy; the start is kept unless an epoch is better in validation "
        f"by more than {recipe.min_gain:g} standard error; wins are counted among these rows."
    )


def _grid(plan: Experiment) -> str:
    return "; ".join(f"{key} {', '.join(f'{value:g}' for value in values)}" for key, values in plan.paper_grid.items())


def _not_run(plan: Experiment, dataset: DataSet) -> Section:
    """Return the published numbers of a data set without runs, and why there are none."""
    why = dataset.note if not dataset.available else f"No runs yet: `python -m experiments run {plan.name}` does them."
    rows = [
        [title_of(plan.candidates[name]), *(show(*value) for value in values)]
        for name, values in (dataset.published or {}).items()
    ]
    columns = ["method", *(f"{region_name(region)} published" for region in plan.regions)]
    text = ["What the paper reports.", why] if rows else [why]
    return Section(dataset.title, text, columns=columns if rows else [], rows=rows, labels=1)


def paired(table: Table, dataset: DataSet) -> list[Section]:
    """Return the paired tests of a data set: a table for each of our methods, of the paper and by the recipe."""
    plan, what, sections = table.plan, units(table), []
    for ours in [*table.literal, *table.recipes]:
        rows, most = [], 0
        for other in table.baselines(ours):
            tests = [table.test(ours, other, dataset.name, column) for column in range(len(plan.regions))]
            row = [title_of(plan.candidates[other])]
            for test in tests:
                difference = NONE if test.difference is None else f"{test.difference:+.3f}"
                row += [difference, f"{test.better}/{test.number}", NONE if test.p is None else f"{test.p:.3g}"]
            most = max(most, *(test.number for test in tests))
            rows += [row] if any(test.number for test in tests) else []
        text = [
            f"Mean difference of test TPAUC over the {what} that both have, in how many of these ours is better, and "
            "the p-value of Wilcoxon's signed-rank test (two-sided, equal pairs left out, not corrected for several "
            "tests).",
            f"With {most} {what} the smallest possible p is {smallest_p(most):.4g}.",
        ]
        columns = ["against", *(name for region in plan.regions for name in (region_name(region), "better", "p"))]
        title = f"{heading(table, dataset)}: {title_of(plan.candidates[ours])} against the baselines"
        sections += [Section(title, text, columns=columns, rows=rows, labels=1)] if rows else []
    return sections


def recipes(plan: Experiment, cells: Sequence[Mapping[str, Any]]) -> list[Section]:
    """Return ranks by the recipe and by the paper's protocol, and differences; nothing without runs."""
    found = [(plan, cells)]
    columns, rows = rank_table(found, recipe=True)
    if not rows:
        return []
    text = "Mean rank of mean test TPAUC over the regions of each data set, all test splits where there are several."
    compared = (
        "Our method minus the best other one at (0.5, 0.5), both by the recipe; the standard deviation of this over "
        "runs; its standard error over test rows; and the test positives at which it would be significant."
    )
    literal, paper = rank_table(found, recipe=False)
    against, differences = difference_table(found)
    return [
        Section("Ranks by the recipe", [text, _recipe(plan)], columns=columns, rows=rows, labels=1),
        Section("Ranks by the paper's protocol", [text], columns=literal, rows=paper, labels=1),
        Section("Differences by the recipe", [compared], columns=against, rows=differences, labels=1),
    ]


def gamma(plan: Experiment, curves: Sequence[Curve], figure: str) -> Section:
    """Return the training curves and their last values."""
    low, high = plan.ablation.region if plan.ablation is not None else (0.0, 1.0)
    title = plan.candidates[plan.ablation.method].title if plan.ablation is not None else ""
    rows = [
        [
            plan.datasets[curve.dataset].title,
            curve.label,
            *(show(*curve.training[_at(curve, share)]) for share in (0.25, 0.5)),
            *(show(*curve.last[part]) for part in ("training", "validation", "test")),
            f"{curve.diverged}/{curve.runs}",
        ]
        for curve in curves
    ]
    text = [
        f"{title}: TPAUC at TPR ≥ {low:g}, FPR ≤ {high:g} of the training rows after each epoch, mean over runs with a "
        "band of one standard deviation. The table has the values after a quarter and half of the epochs and at the "
        "end, and there also those of validation and test rows. No epoch is chosen."
    ]
    columns = ["data set", "setting", "quarter", "half", "end", "validation", "test", "diverged"]
    caption = "Training TPAUC against epochs, one line for each value of gamma, one panel for each data set"
    return Section("Effect of gamma", text, figure, caption, columns, rows, 2)


def _at(curve: Curve, share: float) -> int:
    return max(round(share * len(curve.training)) - 1, 0)


def counts(plan: Experiment, records: Sequence[Record]) -> Section:
    """Return rows and positives of the data sets, beside the paper's."""
    rows = []
    for dataset in plan.datasets.values():
        own = [record["counts"] for record in records if record["dataset"] == dataset.name]
        found = [_span([entry[part] for entry in own]) for part in _PARTS]
        totals = [[sum(entry[part][k] for part in _PARTS) for k in range(2)] for entry in own]
        rows.append([dataset.title, *found, _span(totals), _published(dataset)])
    text = ["Rows (bags, images) and, in parentheses, positives among them; ranges where folds or splits differ."]
    columns = ["data set", *_PARTS, "all", "paper"]
    return Section("Counts", text, columns=columns, rows=rows, labels=1)


def _span(pairs: Sequence[Sequence[int]]) -> str:
    if not pairs:
        return NONE
    values = [sorted({pair[k] for pair in pairs}) for k in range(2)]
    rows, positives = (str(v[0]) if len(v) == 1 else f"{v[0]} to {v[-1]}" for v in values)
    return f"{rows} ({positives})"


def _published(dataset: DataSet) -> str:
    if dataset.counts is None:
        return NONE
    return " / ".join(
        f"{values[0]} ({values[1]})" if len(values) > 1 else str(values[0]) for values in dataset.counts.values()
    )


def diverged(plan: Experiment, records: Sequence[Record]) -> Section:
    """Return the settings whose scores became infinite or NaN."""
    rows = []
    for dataset in plan.datasets.values():
        for entry in plan.candidates.values():
            own = [r for r in records if r["dataset"] == dataset.name and r["method"] == entry.name]
            tried = [row for record in own for row in record["settings"]]
            broken = [row for row in tried if "error" in row]
            if broken:
                rows.append([dataset.title, title_of(entry), f"{len(broken)} of {len(tried)}", broken[0]["error"]])
    text = "Training of such a setting ends there; its earlier epochs may be chosen."
    lost = sum(any(entry["test"] is None for entry in record["chosen"]) for record in records)
    if lost:
        text += f" Runs without a score, because no setting has one or none that can be tested: {lost}."
    columns = ["data set", "method", "settings of all runs", "first error"]
    return Section("Settings that diverged", [text if rows or lost else "None."], columns=columns, rows=rows, labels=4)


def where(plan: Experiment, records: Records) -> Section:
    """Return device, date and time of the runs, by data set."""
    kinds: list[tuple[str, str, Record]] = [("runs", r["dataset"], r) for r in records.runs]
    kinds += [("curves", r["dataset"], r) for r in records.curves]
    kinds += [("starts", r["dataset"], r) for r in records.starts]
    groups: dict[tuple[str, str, str, str], list[Record]] = {}
    for kind, name, record in kinds:
        title = plan.datasets[name].title if name in plan.datasets else name
        groups.setdefault((title, kind, record["device"], record["where"]["torch"]), []).append(record)
    rows = [
        [*key[:3], _dates(r["where"]["date"] for r in group), key[3], str(len(group)), _hours(group)]
        for key, group in groups.items()
    ]
    text = ["Seconds are summed over runs; runs that share a device each count the whole time."]
    if records.left_out:
        text.append(f"Not in the plan, left out: {', '.join(records.left_out)}.")
    if records.half:
        text.append(
            "Runs whose scores count a tie of a positive and a negative one half (0 in validation, where the latest of "
            f"equal epochs is chosen): {records.half}. Later runs count ties as in the ROC curve."
        )
    columns = ["data set", "what", "device", "date", "torch", "runs", "seconds"]
    return Section("Devices and times", text, columns=columns, rows=rows, labels=5)


def _dates(dates: Iterable[str]) -> str:
    found = sorted(set(dates))
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _hours(group: Sequence[Record]) -> str:
    return f"{sum(record['seconds'] for record in group):.0f}"
