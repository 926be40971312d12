"""The numbers in README come from committed reports, and its links lead somewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import moreauc.metrics
import moreauc.theory

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


def read(name: str) -> dict:
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


def study_table() -> str:
    report = read("docs/reports/convergence/report.json")
    rows: dict[str, dict[str, str]] = {}
    methods = ["table, gamma of the theory", "table, gamma 0.1", "table, moving average", "plug-in"]
    for entry in report["methods"]:
        problem, method = entry["key"]
        if method in methods:
            mean, std = entry["final_stationarity"]
            rows.setdefault(problem, {})[method] = f"{mean:.3f} ± {std:.3f}"
    lines = ["| problem | " + " | ".join(methods) + " |", "|---" * (len(methods) + 1) + "|"]
    lines += [f"| {problem} | " + " | ".join(row[method] for method in methods) + " |" for problem, row in rows.items()]
    return "\n".join(lines).replace("|squares|", "squares")


def bench_table() -> str:
    lines = ["| | FCCOLoss, gamma 0 | floor with correction | FCCOLoss, gamma 0.1 |", "|---|---|---|---|"]
    for name, machine, model in [("step", "CPU", "mlp"), ("step_h200", "H200", "resnet20")]:
        report = read(f"benchmarks/reports/{name}.json")
        for batch in (64, 1024):
            entry = report[f"training {model}, batch {batch}"]
            variants = ("FCCOLoss, gamma 0", "mean loss + forward without gradient", "FCCOLoss, gamma 0.1")
            numbers = " | ".join(f"{entry[f'{v} / mean loss']['median']:.2f}" for v in variants)
            lines.append(f"| {machine}, batch {batch} | {numbers} |")
    return "\n".join(lines)


def rows_ratio(name: str) -> float:
    return read(f"benchmarks/reports/{name}.json")["FCCOLoss, 64 blocks"]["10^7 rows / 10^3 rows"]["median"]


def test_the_tables_are_those_of_the_reports():
    assert study_table() in README
    assert bench_table() in README


def test_the_numbers_in_the_text_are_those_of_the_reports():
    for name, machine in (("step", "on the CPU"), ("step_h200", "on the H200")):
        assert f"{rows_ratio(name):.2f} times" in README.replace("\n", " ") and machine in README.replace("\n", " ")
        assert rows_ratio(name) < 1.5
    assert read("benchmarks/reports/step_h200.json")["date"] in README
    assert f"over {read('docs/reports/convergence/report.json')['seeds']} seeds" in README.replace("\n", " ")


def test_the_committed_study_shows_what_the_text_says():
    found = read("docs/reports/convergence/report.json")["findings"]
    assert min(found["plug-in over table at the end"].values()) > 1.5
    floors = list(found["plug-in stationarity by samples per batch"].values())
    assert floors == sorted(floors, reverse=True)
    for entry in found["stationarity at the end over that at a tenth of the run"].values():
        assert entry["plug-in"] > 0.8 > entry["table, gamma of the theory"]
    assert found["settings where the bound fails"] == []
    assert found["bound over measured table error, smallest and largest"][0] < 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    for link in links:
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


def test_the_api_page_names_everything_public():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    names = {*moreauc.__all__, *moreauc.problems.__all__, *moreauc.theory.__all__, *moreauc.metrics.__all__} - {
        "problems",
        "solver",
        "theory",
    }
    results = {"Optimum", "Problem", "MoreauEnvelope", "Witness"} | {n for n in names if n.endswith("Parameters")}
    assert [name for name in sorted(names - results) if not re.search(rf"\b{name}\b", page)] == []
