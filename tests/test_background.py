"""The pictures of docs/background.md: drawn from what the page says, with the committed numbers."""

from __future__ import annotations

import json
from statistics import mean, stdev

import numpy as np
import pytest

from experiments import background

REPORT = json.loads((background.FOLDER / "background.json").read_text(encoding="utf-8"))
PAGE = (background.FOLDER.parent / "background.md").read_text(encoding="utf-8")


def test_the_page_has_all_pictures_and_they_are_small():
    for path in background.FOLDER.glob("*.png"):
        assert f"](images/{path.name})" in PAGE and path.stat().st_size < 120_000
    assert "](docs/images/roc_region.png)" in (background.FOLDER.parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_numbers_of_the_page_are_in_the_report():
    text, scores = " ".join(PAGE.split()), REPORT["roc_region"]
    before, after = scores["TPAUC"]["cross entropy"], scores["TPAUC"]["then SONX"]
    said = f"{mean(before):.3f} ± {stdev(before):.3f} to {mean(after):.3f} ± {stdev(after):.3f}"
    assert said in text and len(before) == background.SEEDS == 10
    plain, trained = (mean(scores["AUC"][name]) for name in ("cross entropy", "then SONX"))
    assert f"the AUC stayed, {plain:.3f} and {trained:.3f}" in text
    assert f"which can, has {mean(scores['TPAUC']['cross entropy, with squares']):.3f}" in text
    found = REPORT["plug_in"]
    excess = dict(zip(found["sizes"], np.array(found["plug-in"]) / found["true"] - 1, strict=True))
    assert f"four negatives this *plug-in* estimate is {excess[4]:.0%}".replace("%", " %") in text
    assert f"with 128 it is {excess[128]:.0%}".replace("%", " %") in text
    assert all(abs(rows / found["true"] - 1) < 0.03 for rows in found["rows"])


def test_pictures_are_drawn_again_with_the_same_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "SEEDS", 1)
    quick = background.plug_in(100)
    monkeypatch.setattr(background, "plug_in", lambda: quick)
    background.main(tmp_path)
    names = {path.name for path in background.FOLDER.iterdir()}
    assert {path.name for path in tmp_path.iterdir()} == names
    report = json.loads((tmp_path / "background.json").read_text(encoding="utf-8"))
    for metric, methods in report["roc_region"].items():
        for name, (value,) in methods.items():
            assert value == pytest.approx(REPORT["roc_region"][metric][name][0], abs=0.01)
    assert report["table"] == pytest.approx(REPORT["table"], rel=0.02)
    assert report["table"]["gamma of the theory"] < 0.5 * report["table"]["gamma = 0"]
    assert quick["plug-in"][0] > 1.1 * quick["true"] > quick["plug-in"][-1]
