"""Each tutorial runs without a warning, draws its pictures, and its numbers say what its text says."""

from __future__ import annotations

import re
import runpy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

FOLDER = Path(__file__).parents[1] / "examples" / "tutorials"
Names = dict[str, Any]


def fraud_csv(names: Names) -> None:
    found = names["found"]
    assert found["TPAUCClassifier"] > found["logistic regression"] + 20
    assert abs(found["TPAUCClassifier"] - found["networks by cross entropy"]) < 10
    assert all(0.04 < share < 0.06 for share in names["false_alarms"].values())
    assert 0 < names["interval"].low < names["interval"].estimate < names["interval"].high


def your_network(names: Names) -> None:
    tpauc, interval = names["tpauc"], names["interval"]
    assert min(tpauc["TPAUCLoss"], tpauc["continued"]) > tpauc["before"] + 0.02
    assert interval.low < 0 < interval.high
    assert interval.estimate == pytest.approx(tpauc["TPAUCLoss"] - tpauc["continued"])
    assert max(names["curve"]) > names["curve"][0] == max(names["start_curve"])


def bags_attention(names: Names) -> None:
    tpauc = names["tpauc"]
    assert tpauc["ce_att"] > tpauc["sont_att"] > 0.6 > 0.2 > tpauc["forest"]
    assert names["share"] > 3 * names["chance"] and names["hit"] > 0.9


def groups(names: Names) -> None:
    ours, erm, trees = names["tables"]
    assert names["worst_loss"][ours] < 0.55 and min(names["worst_loss"][other] for other in (erm, trees)) > 0.8
    assert names["worst_error"][ours] < 0.25 and min(names["worst_error"][other] for other in (erm, trees)) > 0.4
    assert names["error"][ours] > names["error"][trees] > names["error"][erm]
    assert names["tables"][ours].gap < names["tables"][erm].gap / 3
    assert all(len(axes.get_yticklabels()) == 10 for axes in names["panels"])  # not too small for the names


def resume(names: Names) -> None:
    assert names["same_weights"] and names["same_memory"]
    assert 0 < names["resumed"].steps[0] < names["KILLED_AT"] == names["killed"].steps[-1]
    start = names["resumed"].steps[0]
    assert names["resumed"].losses == names["whole"].losses[start:]
    assert names["killed"].losses == names["whole"].losses[: names["KILLED_AT"] + 1]
    assert names["off"] > 0.1


def processes(names: Names) -> None:
    assert len(names["printed"]["one"]) == 7 and names["printed"]["one"] == names["printed"]["two"]
    assert max(names["differences"].values()) < 1e-6
    assert names["states"]["one"]["epoch"] == len(names["losses"]["one"]) == 6
    assert names["whole_loss"] != pytest.approx(names["mean_of_halves"], rel=0.1)


def screening(names: Names) -> None:
    assert all(result["EF 5 %"].mean() > 2 for result in names["results"].values())
    assert -0.05 < names["gain"].mean() < 0.1 and names["gain"].std() > 0.01  # which depends on RDKit's scaffolds
    assert sum(C < 1 for C, _ in names["chosen"]) >= 4 and not any(margin for _, margin in names["chosen"])
    for train, test in names["splits"]:
        assert not set(names["scaffolds"][train]) & set(names["scaffolds"][test])


def your_objective(names: Names) -> None:
    exact, *biased = names["minima"].values()
    assert exact > biased[0] > biased[1] > biased[2]  # 8, 2 and 1 readings
    gaps, found = names["gaps"], names["found"]
    assert 0 <= gaps["FCCOLoss"] < 0.001 < 0.01 < gaps["plug-in"] < gaps["mean squared error"]
    assert found["plug-in"] < -0.1 < found["FCCOLoss"] < 0.1 < found["mean squared error"]
    table, plug_in = names["last"].values()
    assert 0 < table < plug_in / 5


CLAIMS: dict[str, Callable[[Names], None]] = {
    claim.__name__: claim
    for claim in (fraud_csv, your_network, bags_attention, groups, resume, processes, screening, your_objective)
}


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.stem)
def test_a_tutorial_holds_what_it_says(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(plt, "show", lambda: None)
    plt.switch_backend("agg")
    try:
        names = runpy.run_path(str(file), run_name="__main__")
        figures = [plt.figure(number) for number in plt.get_fignums()]
        assert figures and all(axes.has_data() for figure in figures for axes in figure.axes if axes.axison)
        for figure in figures:
            figure.draw_without_rendering()
    finally:
        plt.close("all")
    assert capsys.readouterr().err == ""
    CLAIMS[re.sub(r"plot_\d_", "", file.stem)](names)
