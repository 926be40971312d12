"""The study of bags, at sizes that take seconds; the numbers of the docs come from the full one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from experiments._app import app
from experiments.studies import BagStudy, _bag_runs
from experiments.studies._bag_runs import bag_contestants, draw_parts
from moreauc.methods import METHODS, build

RUNNER = CliRunner()
DATA = os.environ.get("MOREAUC_DATA")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(_bag_runs, "digit_bags", lambda seed: whole(num_bags=40, positive_rate=0.3, seed=seed))


def whole(**options):
    from moreauc.data import digit_bags

    return digit_bags(**options)


def test_every_method_is_there_and_tries_as_many_settings():
    contestants = bag_contestants()
    assert [entry.title for entry in contestants if entry.literal] == [
        "SONT (mean), rows before",
        "SONT (smoothed max), rows before",
        "SONT (attention), rows before",
    ]
    assert {entry.method for entry in contestants} == set(METHODS["bags"])
    for entry in contestants:
        settings = entry.settings(6)
        assert len(settings) == 6 and len({json.dumps(setting) for setting in settings}) == 6
        assert entry.settings(2) == settings[:2]


@pytest.mark.parametrize("name", METHODS["bags"])
def test_a_preset_gives_a_loss_that_takes_a_step(name):
    labels = torch.tensor([0, 1, 0, 1])
    criterion = build("bags", name, labels, min_tpr=0.0, max_fpr=1.0)
    assert criterion.pooling.name == METHODS["bags"][name].pooling
    assert hasattr(criterion, "table_v") == name.startswith(("sont", "midam"))
    shape = (8, 2) if criterion.pooling.columns == 2 else (8,)
    instances = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    criterion(instances, torch.arange(8) % 4, labels, torch.arange(4)).backward()
    assert instances.grad.abs().sum() > 0


def test_presets_refuse_what_they_do_not_know():
    with pytest.raises(ValueError, match=r"name must be one of \['sont_mean'"):
        build("bags", "sont", [0, 1], min_tpr=0.5, max_fpr=0.5)
    with pytest.raises(ValueError, match="options of 'ce_att' must be among"):
        build("bags", "ce_att", [0, 1], min_tpr=0.5, max_fpr=0.5, gamma=0.1)
    with pytest.raises(ValueError, match="widen must be a number"):
        build("bags", "sont_att", [0, 1], min_tpr=0.5, max_fpr=0.5, widen=2.0)
    wide = build("bags", "sont_att", [0, 1], min_tpr=0.5, max_fpr=0.4, widen=0.5)
    assert (wide.min_tpr, wide.max_fpr) == (0.25, 0.7)


def test_study_runs_resumes_and_reports(small, tmp_path):
    command = ["study", "bags", "--seeds", "2", "--trials", "1", "--epochs", "1", "--jobs", "1", "--out", str(tmp_path)]
    result = RUNNER.invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0 and "MIDAM" in result.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report["records"]) == 22
    for cell in report["cells"]:
        own = [record["score"] for record in report["records"] if record["method"] == cell["method"]]
        assert cell["mean"] == pytest.approx(np.mean(own), abs=1e-4)
        assert (cell["rank"] is None) == cell["literal"]
    page = (tmp_path / "index.html").read_text()
    assert page.count("<img") == 4 and "Which instance decided, attention" in page
    files = sorted((tmp_path / "runs").iterdir())
    assert len(files) == 22
    # one file gone: it alone is made again, with the same numbers
    lost = next(file for file in files if file.name == "digits-sont_att-1.json")
    before, stamps = json.loads(lost.read_text()), {file: file.stat().st_mtime_ns for file in files}
    lost.unlink()
    RUNNER.invoke(app, command, catch_exceptions=False)
    again = json.loads(lost.read_text())
    assert {key: again[key] for key in ("score", "tried", "target_found")} == {
        key: before[key] for key in ("score", "tried", "target_found")
    }
    assert all(file.stat().st_mtime_ns == stamp for file, stamp in stamps.items() if file != lost)
    # a report alone needs all runs, of the same plan
    with pytest.raises(ValueError, match=r"digits-sont_mean-0\.json must be made with"):
        BagStudy(seeds=2, trials=2, epochs=1).report(tmp_path)
    lost.unlink()
    with pytest.raises(ValueError, match=r"must hold a run digits-sont_att-1, got no digits-sont_att-1\.json"):
        BagStudy(seeds=2, trials=1, epochs=1).report(tmp_path)


def test_study_in_processes_gives_the_same(tmp_path):
    """On the real data, since workers do not see what a test has changed."""
    options = {"seeds": 1, "trials": 1, "epochs": 1, "methods": ("sont_mean", "ce_att")}
    scores = []
    for jobs in (1, 2):
        plan = BagStudy(**options, jobs=jobs)
        plan.run(tmp_path / str(jobs))
        scores.append([record["score"] for record in plan.report(tmp_path / str(jobs)).results["records"]])
    assert scores[0] == scores[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "tiger"}, "name must be one of"),
        ({"seeds": 0}, "seeds must be an integer"),
        ({"trials": 7}, r"trials must lie in \[1, 6\], got 7"),
        ({"methods": ("sonx",)}, "methods must be among"),
    ],
)
def test_bad_plans(options, message):
    with pytest.raises(ValueError, match=f"BagStudy: {message}"):
        BagStudy(**options)


def test_a_method_that_diverges_says_so(small, monkeypatch, tmp_path):
    def fail(*args, **kwargs):
        raise ValueError("fit: instances must be finite, got nan")

    monkeypatch.setattr(_bag_runs, "fit", fail)
    with pytest.raises(ValueError, match=r"every setting of SONT \(mean\) diverged with seed 0"):
        BagStudy(seeds=1, trials=1, methods=("sont_mean",), jobs=1).run(tmp_path)


@pytest.mark.skipif(DATA is None, reason="needs the data that MOREAUC_DATA names")
@pytest.mark.parametrize(("name", "features"), [("musk2", 166), ("fox", 230)])
def test_sets_of_the_literature_run_end_to_end(name, features, tmp_path):
    parts = draw_parts(name, 0, Path(DATA))
    assert parts.train.instances(0).shape[1] == features
    sizes = [len(part) for part in (parts.train, parts.validation, parts.test)]
    assert sum(sizes) == {"musk2": 102, "fox": 200}[name]
    plan = BagStudy(name, seeds=1, trials=1, epochs=2, methods=("sont_att", "ce_att"), folder=Path(DATA), jobs=1)
    plan.run(tmp_path)
    assert len(plan.report(tmp_path).results["cells"]) == 2
