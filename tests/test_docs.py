"""Numbers in the text come from committed reports, links lead somewhere, every public name is listed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from moreauc.methods import METHODS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]  # `make docs` checks the links of docs/


def text(page: str) -> str:
    """Return a page's words, with single spaces."""
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def read(name: str) -> dict:
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


def test_what_is_said_of_the_costs_of_a_step_is_in_the_reports():
    report = read("benchmarks/reports/step_cuda.json")
    done = [row for row in report["rows"] if "error" not in row]
    assert all(row["waits of the host"] == 0 and row["passes without a wait"] is True for row in done)
    assert all("left out: " in row["error"] for row in report["rows"] if "error" in row)
    large = [row["peak memory times CE"] for row in done if row["case"] == "ResNet20, batch 1024"]
    assert len(large) > 16 and min(large) > 0.97 and max(large) < 1.02
    row_of = {(row["case"], row["loss"], row["technique"]): row for row in done}

    def ratio(batch: int, gamma: str, technique: str = "graphed") -> str:
        row = row_of[f"ResNet20, batch {batch}", f"TPAUC, gamma {gamma}", technique]
        return f"{row['times CE by the same technique']['median']:.2f}"

    said = (
        f"a step of ResNet20 by SONX takes {ratio(1024, '0')} times one by cross entropy with gamma 0 and "
        f"{ratio(1024, '0.1')} times with gamma 0.1 at batch 1024, {ratio(64, '0')} and {ratio(64, '0.1')} times at "
        "batch 64"
    )
    assert said in text("docs/performance.md")
    on_cpu = {row["target"].split(", ")[-2]: row["met"] for row in read("benchmarks/reports/step_cpu.json")["targets"]}
    assert on_cpu == {"eager": False, "compiled": True}
    unmet = [row["target"] for row in report["targets"] if not row["met"]]
    assert unmet == ["ResNet20, batch 64, TPAUC, gamma 0.1, compiled, at most 1.25 times CE"]


def rows_ratio(name: str) -> float:
    return read(f"benchmarks/reports/{name}.json")["FCCOLoss, 64 blocks"]["10^7 rows / 10^3 rows"]["median"]


def test_the_numbers_in_the_text_are_those_of_the_reports():
    cpu, gpu = rows_ratio("step"), rows_ratio("step_h200")
    assert max(cpu, gpu) < 1.5
    assert f"{cpu:.2f} times as long on the CPU and {gpu:.2f} times on the H200" in text("docs/engine.md")
    assert f"run on {read('benchmarks/reports/step_h200.json')['date']}" in text("docs/engine.md")
    assert f"over {read('docs/reports/convergence/report.json')['seeds']} seeds" in text("docs/solver.md")
    pairs = [row for row in read("benchmarks/reports/pairs.json")["sizes"] if row["contestant"] == "TPAUCLoss"]
    million = next(row["microseconds"] for row in pairs if row["per class"] == 10**6)
    assert 0.4e6 < million < 0.55e6 and "half a second for a million positives and a million" in text("README.md")


def test_the_readme_is_short_and_true_of_its_table():
    assert len(text("README.md").split()) <= 900
    rows = [
        row for row in read("docs/reports/defaults/report.json")["standings_with"]["auto"] if row["half"] == "confirm"
    ]
    ranks = {row["method"]: row["rank"] for row in rows if row["region"] not in ("0.5, 0.5", "0, 0.1", "0.3, 0.3")}
    means = {row["method"]: row["mean"] for row in rows if row["region"] == "0.5, 0.5"}
    assert min(ranks, key=ranks.__getitem__) == "auto" and means["lightgbm_tuned"] > means["auto"]
    assert {row["tables"] for row in rows} == {17} and {len(row["seeds"]) for row in rows} == {1}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    for link in links:
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


def test_torture_report_has_kills_of_every_loss_and_no_differences():
    report = read("docs/reports/torture/report.json")
    rows = {row["loss"]: row for row in report["losses"]}
    assert report["kills"] >= 100 and report["differences"] == 0
    others = report["other_settings"]
    assert others["problems"] == [] and others["values_refused"] > 200
    assert f"All {len(rows)} named methods are run" in text("docs/checkpoints.md")
    assert report["kills"] == sum(row["kills"] for row in rows.values()) == report["restarts"]
    assert report["kills_inside_a_save"] == sum(row["inside_a_save"] for row in rows.values()) >= report["kills"] / 4
    for kind, methods in METHODS.items():
        for method in methods:
            row = rows.pop(f"{kind}: {method}")
            assert row["kills"] > 0 and row["inside_a_save"] > 0 and row["tensors_compared"] > 0
            assert row["kills"] == sum(row["by_stage"].values()) and row["differences"] == 0
    assert not rows
    page = (ROOT / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    counts = re.search(r"(\d+) kills, (\d+) of them inside a save, (\d+) differences", page)
    assert counts is not None
    assert [int(word) for word in counts.groups()] == [
        *(report["kills"], report["kills_inside_a_save"], report["differences"])
    ]


@pytest.mark.parametrize("base", ["src/moreauc", "experiments"])
def test_the_page_on_the_architecture_names_every_package(base):
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = {path.name for path in (ROOT / base).iterdir() if path.is_dir() and any(path.glob("[!.]*.*"))}
    assert all(f"{name}/" in page for name in folders), folders


def test_what_is_said_of_rates_is_in_the_report():
    fits = read("docs/reports/rates/report.json")["fits"]
    every = {fit["problem"]: {f["method"]: f for f in fits if f["problem"] == fit["problem"]} for fit in fits}
    cvar, hinge, worst = every.values()
    for found in every.values():
        ends = {method: fit["mean"][-1] for method, fit in found.items()}
        assert ends["SONEX"] < ends["SONX"] and max(ends, key=ends.__getitem__) == "ALEXR2"
        assert ends["SONEX, no smoothing"] < ends["SONEX"]
    assert cvar["SONEX"]["mean"][-1] - cvar["SONEX, no smoothing"]["mean"][-1] < 0.001
    assert worst["SONEX"]["mean"][-1] - worst["SONEX, no smoothing"]["mean"][-1] < 0.003
    clear = [found["SONEX"]["against_sonx"] for found in every.values()]
    assert [mean < -3.0 * error for mean, error in clear] == [True, True, False]
    momentum = [found["SONX, momentum"]["against_sonx"] for found in every.values()]
    assert [mean < -2.0 * error for mean, error in momentum] == [False, True, False]
    for found in (cvar, hinge):
        assert abs(found["SONEX"]["slope"] + 1 / 5) < found["SONEX"]["std"]
        assert found["SONX"]["slope"] < -1 / 6
    assert all(-0.34 < fit["slope"] < -0.27 for fit in worst.values())
    flat = [f for f in fits if f["predicted"] is not None and f["slope"] > f["predicted"]]
    assert [(fit["problem"], fit["method"]) for fit in flat] == [("CVaR of absolute losses", "ALEXR2")]
    assert round((flat[0]["slope"] + 1 / 5) / flat[0]["std"]) == 7
    chosen = [fit["setting"]["smoothing"] for fit in fits if "smoothing" in fit["setting"]]
    assert chosen.count(0.01) == 5 and len(chosen) == 6


def test_what_is_said_of_smoothing_is_in_the_report():
    report, page = read("docs/reports/smoothing/report.json"), text("docs/successors.md")
    gains = {(gain["dataset"], gain["optimizer"], gain["width"]): gain for gain in report["gains"]}
    stars = {
        key: {place for place, gain in gains.items() if gain[key]["p"] is not None and gain[key]["p"] < 0.05}
        for key in ("objective", "test")
    }
    assert stars["test"] == {("NR-AhR", "Adam", 0.01), ("planted groups", "SGD, momentum", 1.0)}
    gained, lost = (gains[place]["test"]["mean"] for place in sorted(stars["test"], key=str))
    assert f"Of {len(gains)} differences in test scores two have a star" in page
    assert f"width of 0.01 gains {gained:.3f}, momentum on planted groups with a width of 1 loses {-lost:.3f}" in page
    lower = {place for place in stars["objective"] if gains[place]["objective"]["mean"] > 0}
    assert lower == {
        *(("NR-AhR", optimizer, 1.0) for optimizer in ("SGD, momentum", "Adam")),
        *(("digit bags", "Adam", 1.0), ("planted groups", "Adam", 0.1)),
    }
    tuned = [gain for (_, _, width), gain in gains.items() if width == "tuned"]
    better = [sum(gain[key]["mean"] > 0 for gain in tuned) for key in ("objective", "test")]
    assert '"tuned" is better in {} of 12 objectives and {} of 12 test scores'.format(*better) in page
    first = {}
    for cell in report["cells"]:
        name, score = cell["dataset"], cell["test"]["mean"]
        first[name] = max(first.get(name, (score, "")), (score, cell["method"]))
    winners = {name: method.split(",")[0] for name, (_, method) in first.items()}
    sgd = {"NR-AhR", "planted groups"}
    assert winners == {name: "SGD" if name in sgd else "Adam" for name in winners} and len(winners) == 6
    assert not any(method == "SGD, momentum" for _, method in first.values())
    digits = [cell["objective"]["mean"] for cell in report["cells"] if cell["dataset"] == "digits"]
    assert max(digits) < 0.01
