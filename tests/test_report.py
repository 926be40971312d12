"""The pages of the commands, opened in a real browser."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from moreauc._system import import_extra
from moreauc.app.report.pages import (
    Fact,
    Image,
    Report,
    Section,
    draw_comparison,
    draw_histograms,
    draw_roc,
    draw_training,
)
from moreauc.app.tables.rows import check_region_holds, evaluate_scores
from moreauc.data.tables import TableError
from moreauc.train import History
from tests.cli_cases import done

PNG = b"\x89PNG\r\n\x1a\n"
NAMES = ("chromium", "chromium-browser", "google-chrome")

# Forbids everything that is not inside the page, and notes what was tried nevertheless.
GUARD = """<head><script>
const tried = [];
document.addEventListener("securitypolicyviolation", (e) => tried.push(e.blockedURI));
</script><meta http-equiv="Content-Security-Policy"
content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">"""

# Tells, after everything has been loaded, what the browser made of the page.
PROBE = """<script>
window.addEventListener("load", () => {
  const box = (e) => { const r = e.getBoundingClientRect(); return [r.left, r.right]; };
  const found = {
    images: [...document.images].map(
      (i) => ({complete: i.complete, width: i.naturalWidth, height: i.naturalHeight, alt: i.alt, box: box(i)})),
    rows: [...document.querySelectorAll("table")].map((t) => t.tBodies[0].rows.length),
    facts: [...document.querySelectorAll(".facts dd")].map((d) => d.firstChild.textContent),
    requests: tried,
    width: document.documentElement.scrollWidth, window: window.innerWidth,
  };
  const out = document.createElement("pre");
  out.id = "probe";
  out.textContent = JSON.stringify(found);
  document.body.append(out);
});
</script></body>"""


def find_browser() -> str:
    named = os.environ.get("MOREAUC_BROWSER")
    found = next(filter(None, map(shutil.which, [named] if named else NAMES)), None)
    if found is None:
        tried = f"MOREAUC_BROWSER={named}" if named else f"{', '.join(NAMES)} on the PATH"
        pytest.fail(f"no browser ({tried}): install Chromium, or set MOREAUC_BROWSER to one", pytrace=False)
    return found


def open_page(page: Path, folder: Path, width: int) -> dict:
    """Open a copy of a page, alone in a folder, and return what the probe saw."""
    text = page.read_text(encoding="utf-8")
    assert text.count("</body>") == text.count("<head>") == 1
    copy = folder / "copy.html"
    copy.write_text(text.replace("<head>", GUARD).replace("</body>", PROBE), encoding="utf-8")
    options = [
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
        *("--disable-background-networking", "--disable-component-update", f"--window-size={width},2000"),
        *(f"--user-data-dir={folder / 'profile'}", "--dump-dom"),
    ]
    seen = subprocess.run([find_browser(), *options, copy.as_uri()], capture_output=True, text=True, timeout=120)
    match = re.search(r'<pre id="probe">(.*?)</pre>', seen.stdout, re.DOTALL)
    assert match, seen.stderr[-2000:]
    return json.loads(html.unescape(match[1]))


def check_page(page: Path, folder: Path, *, images: list[str], rows: list[int], width: int) -> dict:
    """Check what every page must have: the figures, the tables, nothing from elsewhere, nothing too wide."""
    seen = open_page(page, folder, width)
    assert [image["alt"].split(" ")[0] for image in seen["images"]] == images
    for image in seen["images"]:
        assert image["complete"] and image["width"] > 200 and image["height"] > 100, image["alt"]
        assert image["box"][0] >= 0 and image["box"][1] <= seen["window"], image["alt"]
    assert seen["rows"] == rows
    assert seen["requests"] == []
    assert seen["width"] <= seen["window"], "the page scrolls sideways"
    links = re.findall(r'(?:src|href)="([^"]{0,40})', page.read_text(encoding="utf-8"))
    assert {link for link in links if not link.startswith("data:image/png;base64,")} == {"report.json"}
    return seen


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small training run, the evaluation of its model, and a comparison, as a user gets them."""
    folder = tmp_path_factory.mktemp("report")
    y = (np.arange(200) % 5 == 0).astype(int)
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 2)) + y[:, None], columns=["a", "b"]).round(4)
    frame.assign(y=y).to_csv(folder / "data.csv", index=False)
    data, model = folder / "data.csv", folder / "run"
    done("fit", data, "--target", "y", "--epochs", "3", "--out", model)
    done("evaluate", model, data, "--out", folder / "evaluation")
    few = ("--folds", "2", "--inner-folds", "2", "--trials", "1", "--jobs", "1")
    done("compare", data, "--target", "y", "--methods", "sonx,ce", *few, "--out", folder / "comparison")
    return folder


@pytest.mark.parametrize("width", [1200, 420])
def test_the_page_of_a_training_run(run, tmp_path, width):
    names = ["ROC", "Precision", "Scores", "How", "Objective", "TPAUC"]
    report = json.loads((run / "run" / "report.json").read_text())
    tables = [2, 2, 2, len(report["settings"])]
    seen = check_page(run / "run" / "report.html", tmp_path, images=names, rows=tables, width=width)
    first = report["test"][0]
    expected = [first["tpauc"]["estimate"], 100 * first["tpr"], 100 * first["precision"], first["alerts"], first["auc"]]
    shown = [float(fact.rstrip("%")) for fact in seen["facts"]]
    # the page rounds the numbers, report.json has five digits of them
    assert np.allclose(shown, expected, rtol=0.0, atol=[0.0006, 0.06, 0.06, 0.6, 0.0006])
    assert [fact.endswith("%") for fact in seen["facts"]] == [False, True, True, False, False]


@pytest.mark.parametrize("width", [1200, 420])
def test_the_pages_of_an_evaluation_and_of_a_comparison(run, tmp_path, width):
    page, images = run / "evaluation" / "report.html", ["ROC", "Precision", "Scores", "How"]
    check_page(page, tmp_path, images=images, rows=[1, 2, 1], width=width)
    page = run / "comparison" / "report.html"
    seen = check_page(page, tmp_path, images=["TPAUC", "ROC", "Precision"], rows=[2, 1], width=width)
    assert seen["facts"][2:] == ["40", "2"]  # positives, methods


def test_pages_escape_what_they_show(tmp_path):
    shown = {"facts": [Fact("<n>", "<v>", "<o>")], "images": [Image(PNG, '"<c>"', 10)]}
    section = Section("a < b", ["x & y"], columns="ab", rows=["xy", ["<script>", ""]], labels=1, **shown)
    numbers = {"n": 1.23456789, "bad": float("nan"), "b": (1, torch.tensor([0.1234567]))}
    page = Report("<title>", "c", numbers, [section]).write(tmp_path, "report.html").read_text()
    assert not re.search("<[nvoc]>|<script>", page) and "&lt;script&gt;" in page and "a &lt; b" in page
    content = json.loads((tmp_path / "report.json").read_text())
    assert (content["n"], content["bad"], content["b"]) == (1.2346, None, [1, [0.12346]])
    assert "<dt>&lt;n&gt;</dt><dd>&lt;v&gt;<small>&lt;o&gt;</small>" in page
    assert 'alt="&#34;&lt;c&gt;&#34;" width="10"' in page and "data:image/png;base64,iVBORw0KGgo=" in page
    assert '<td class="text">x</td><td>y</td>' in page


def test_figures_are_pictures_with_words():
    y, scores = np.array([0, 0, 1, 1]), np.array([-1.0, 0.5, 0.2, 2.0])
    history = History()
    history.add(phase="train", epoch=0, loss=1.0)
    alone = draw_training({"A": history})
    assert len(alone) == 1 and alone[0].caption.startswith("Objective of A")
    history.add(phase="train", epoch=1, loss=0.5, score=0.7)
    history.best_epoch = 0
    rows = [{"title": name, "scores": [0.1, 0.2], "mean": 0.15, "std": 0.05} for name in "AB"]
    region = {"min_tpr": 0.5, "max_fpr": 0.5}
    pictures = [
        draw_roc(y, {"A": scores}, **region),
        draw_roc(y, {"A": scores, "B": scores, "C": scores}, **region),
        draw_histograms(y, scores),
        draw_histograms(y, scores, threshold=0.0),
        draw_histograms([0, 1], [3.0, 3.0], threshold=0.0),  # of a constant model
        draw_comparison(rows),
        *draw_training({"A": history, "B": history}),
    ]
    assert all(picture.content[:8] == PNG and picture.width > 200 for picture in pictures)
    assert pictures[0].caption == "ROC curve of A; the region of the TPAUC is shaded."
    assert "of A, B and C;" in pictures[1].caption
    assert "dashed" in pictures[3].caption and "dashed" not in pictures[2].caption


def test_the_numbers_of_an_evaluation():
    labels = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])
    scores = np.array([4.0, 3.0, 1.0, -2.0, 3.5, 2.0, 0.5, -1.0, -3.0, -4.0])
    result = evaluate_scores("m", labels, scores, min_tpr=0.5, max_fpr=0.5)
    assert result.tpauc.estimate == pytest.approx(1 / 6)  # {1, -2} against {3.5, 2, 0.5}: one of six
    assert result.tpr_at_budget == 0.75 and (result.tpr, result.fpr) == (0.75, 0.5)
    assert result.auc == pytest.approx((6 + 5 + 4 + 2) / 24)
    numbers = ("0.7083", "0.7500", "0.7500", "0.5000", "0.5000", "600.0")
    assert result.row[:2] == ("m", "0.1667") and result.row[3:] == numbers
    assert evaluate_scores("m", labels, scores, min_tpr=0.5, max_fpr=0.5, budget=0.2).tpr_at_budget == 0.5
    assert result.to_dict()["tpauc"]["resamples"] == 1000


@pytest.mark.parametrize(
    ("positives", "negatives", "message"),
    [
        (0, 5, "there are no positives among 5 rows"),
        (5, 0, "there are no negatives among 5 rows"),
        (1, 5, "with 1 positive, --min-tpr 0.6 leaves none"),
        (5, 2, "with 2 negatives, --max-fpr 0.4 leaves none"),
    ],
)
def test_rows_without_a_score(positives, negatives, message):
    with pytest.raises(TableError, match=f"^t: {message}"):
        check_region_holds(np.repeat([1, 0], [positives, negatives]), "t", min_tpr=0.6, max_fpr=0.4)
    check_region_holds(np.repeat([1, 0], [3, 3]), "t", min_tpr=0.6, max_fpr=0.4)


def test_import_extra_passes_on_what_is_there_and_other_errors(tmp_path, monkeypatch):
    assert import_extra("json", "none") is json
    message = "needs surely_not_there, which is not installed.*pip install 'moreauc\\[some\\]'"
    with pytest.raises(ModuleNotFoundError, match=message):
        import_extra("surely_not_there.part", "some")
    (tmp_path / "halfbroken.py").write_text("import surely_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="surely_not_there"):
        import_extra("halfbroken", "none")
