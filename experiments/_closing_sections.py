"""The last parts of an experiment's page: how many rows there were, what diverged, and what was run where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from experiments._sections import NONE
from experiments.config import DataSet, Experiment
from experiments.records import Record, Records
from experiments.tables import title_of
from moreauc.report.pages import Section

_PARTS = ("train", "validation", "test")


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
    """Return the settings that ended in numbers that are not finite."""
    rows = []
    for dataset in plan.datasets.values():
        for entry in plan.contestants.values():
            own = [r for r in records if r["dataset"] == dataset.name and r["method"] == entry.name]
            tried = [row for record in own for row in record["settings"]]
            broken = [row for row in tried if "error" in row]
            if broken:
                rows.append([dataset.title, title_of(entry), f"{len(broken)} of {len(tried)}", broken[0]["error"]])
    text = "From then on such a setting is trained no more; it may be chosen while its scores are still numbers."
    lost = sum(any(entry["test"] is None for entry in record["chosen"]) for record in records)
    if lost:
        text += f" Runs that have no score, since no setting had one, or none that can be tested: {lost}."
    columns = ["data set", "method", "settings of all runs", "the first error"]
    return Section("Settings that diverged", [text if rows or lost else "None."], columns=columns, rows=rows, labels=4)


def where(plan: Experiment, records: Records) -> Section:
    """Return what was run where, by data set."""
    kinds: list[tuple[str, str, Record]] = [("runs", r["dataset"], r) for r in records.runs]
    kinds += [("curves", r["dataset"], r) for r in records.curves]
    kinds += [("starts", name.rsplit("-", 2)[0], r) for name, r in records.starts.items()]
    groups: dict[tuple[str, str, str, str], list[Record]] = {}
    for kind, name, record in kinds:
        title = plan.datasets[name].title if name in plan.datasets else name
        groups.setdefault((title, kind, record["device"], record["where"]["torch"]), []).append(record)
    rows = [
        [*key[:3], _dates(r["where"]["date"] for r in group), key[3], str(len(group)), _hours(group)]
        for key, group in groups.items()
    ]
    text = ["Time is summed over runs; several at once on one device each count the time they share."]
    if records.left_out:
        text.append(f"Left out, since they are no part of the plan: {', '.join(records.left_out)}.")
    if records.unsaid:
        text.append(f"Runs that do not say with what batch and options they were made: {records.unsaid}.")
    if records.half:
        text.append(
            "Runs whose scores count a tie of a positive and a negative one half (and nothing where validation "
            f"chooses, the latest of equal epochs): {records.half}. Later runs count ties as the ROC curve has them."
        )
    columns = ["data set", "what", "device", "date", "torch", "files", "seconds"]
    return Section("What was run where", text, columns=columns, rows=rows, labels=5)


def _dates(dates: Iterable[str]) -> str:
    found = sorted(set(dates))
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _hours(group: Sequence[Record]) -> str:
    return f"{sum(record['seconds'] for record in group):.0f}"
