"""The studies at sizes that take seconds; the numbers of the docs come from the full ones."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from experiments import __main__ as command_line
from experiments.engine import RECORDS, Setup, run_missing
from experiments.studies import bags, convergence, groups, load_studies
from moreauc._checks import NotFiniteError
from moreauc._registry import BASELINES, METHODS
from moreauc.data import digit_bags, planted_groups
from moreauc.methods import build
from moreauc.train import fit

DATA = os.environ.get("MOREAUC_DATA")
STUDIES = load_studies()


def run(study, out, data=None):
    """Run a study and make its report; return the records and the report's numbers."""
    setup = Setup(out, data)
    run_missing(study, setup, study.tasks(setup))
    command_line.make_report(study, out, "a command")
    records = [json.loads(line) for line in (out / RECORDS).read_text(encoding="utf-8").splitlines()]
    return records, json.loads((out / "report.json").read_text(encoding="utf-8"))


# ---- bags


@pytest.fixture
def few_bags(monkeypatch):
    monkeypatch.setattr(bags, "digit_bags", lambda seed: digit_bags(num_bags=40, positive_rate=0.3, seed=seed))


def test_every_method_of_bags_tries_as_many_settings():
    entrants = bags.bag_candidates().values()
    assert [entry.title for entry in entrants if entry.literal] == [
        "SONT (mean), rows before",
        "SONT (smoothed max), rows before",
        "SONT (attention), rows before",
    ]
    assert {entry.method for entry in entrants} == {*METHODS["bags"], *BASELINES["bags"]}
    for entry in entrants:
        settings = entry.settings(6)
        assert len(settings) == 6 and len({json.dumps(setting) for setting in settings}) == 6
        assert entry.settings(2) == settings[:2]


def test_bags(few_bags, tmp_path):
    methods = ("sont_smx", "sont_att", "sont_att_literal", "ce_att", "lr_bags")
    small = replace(STUDIES["digit_bags"], seeds=2, trials=1, epochs=1, methods=methods)
    records, report = run(small, tmp_path)
    assert len(records) == 10
    for cell in report["cells"]:
        own = [record["score"] for record in records if record["method"] == cell["method"]]
        assert cell["mean"] == pytest.approx(np.mean(own), abs=1e-4)
        assert (cell["rank"] is None) == cell["literal"]
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert page.count("<img") == 4 and "Instance weights, attention" in page


def test_a_method_of_bags_that_diverges_says_so(few_bags, monkeypatch):
    def fail(*args, **kwargs):
        raise NotFiniteError("fit: instances must be finite, got nan")

    monkeypatch.setattr(bags, "fit", fail)
    with pytest.raises(ValueError, match=r"digits, SONT \(mean\), seed 0: every setting diverged"):
        bags.tune_and_test(dataset="digits", method="sont_mean", seed=0, trials=1, epochs=1, folder=None)


@pytest.mark.skipif(DATA is None, reason="needs the data that MOREAUC_DATA names")
@pytest.mark.parametrize(("name", "features"), [("musk2", 166), ("fox", 230)])
def test_bags_of_the_literature_run_end_to_end(name, features, tmp_path):
    parts = bags.draw_parts(name, 0, Path(DATA))
    assert parts.train.instances(0).shape[1] == features
    sizes = [len(part) for part in (parts.train, parts.validation, parts.test)]
    assert sum(sizes) == {"musk2": 102, "fox": 200}[name]
    small = replace(STUDIES[f"{name}_bags"], trials=1, epochs=2, methods=("sont_att", "ce_att"))
    assert len(run(small, tmp_path, Path(DATA))[1]["cells"]) == 2


# ---- groups


@pytest.fixture
def few_rows(monkeypatch):
    def draw(seed):
        return planted_groups(num_groups=4, samples=200, test_samples=200, minority_share=0.2, seed=seed)

    monkeypatch.setattr(groups, "planted_groups", draw)


def test_baselines_of_groups_are_weighted_only_where_they_say_so(few_rows):
    study, parts = replace(STUDIES["planted_groups"], trials=1), groups.draw_parts("planted", 0, None)
    weights = [1 / (parts.train.groups == group).sum() for group in parts.train.groups]
    for method, given in {"lr": None, "lr_equal": np.array(weights) * len(weights) / 4}.items():
        model = LogisticRegression(max_iter=1000).fit(parts.train.X, parts.train.y, sample_weight=given)
        record = groups.tune_and_test(study=study, dataset="planted", method=method, seed=0, folder=None)
        right = model.predict(parts.test.X) == parts.test.y
        assert record["row_accuracy"] == pytest.approx(right.mean())
        assert record["worst_accuracy"] == pytest.approx(min(right[parts.test.groups == k].mean() for k in range(4)))


@pytest.mark.parametrize("method", [*METHODS["groups"], *BASELINES["groups"]])
@pytest.mark.parametrize("name", ["planted", "adult", "compas"])
def test_every_method_of_groups_tries_as_many_settings(method, name):
    study = STUDIES[f"{name}_groups"]
    every = study.settings(method)
    assert len(every) == 8 == len({json.dumps(setting) for setting in every})
    if method in BASELINES["groups"]:
        assert every[0] == {key: values[0] for key, values in BASELINES["groups"][method].grid.items()}
        return
    samplers = {setting["sampler"] for setting in every}
    offered = {"groups"} if name == "planted" and method != "erm_reweighted" else {"groups", "plain"}
    assert samplers == ({"plain"} if method == "erm" else offered)
    starts = {setting.get("start", 0.0) for setting in every}
    assert starts == ({0.0, 1 / 3} if name == "planted" and method != "erm" else {0.0})
    assert replace(study, trials=3).settings(method) == every[:3]


def test_a_start_by_cross_entropy_takes_its_share_of_the_epochs(few_rows, monkeypatch):
    seen = []
    monkeypatch.setattr(groups, "fit", lambda *parts, **options: seen.append(options) or fit(*parts, **options))
    study = replace(STUDIES["planted_groups"], epochs=3)
    groups.tune_and_test(study=study, dataset="planted", method="sonx", seed=0, folder=None)
    assert {(options["epochs"], options["warm_start_epochs"]) for options in seen} == {(3, 0), (2, 1)}


def test_groups(few_rows, tmp_path):
    records, report = run(replace(STUDIES["planted_groups"], seeds=2, trials=2, epochs=2), tmp_path)
    assert len(records) == 18
    for cell in report["cells"]:
        own = [record for record in records if record["method"] == cell["method"]]
        for key in ("worst_loss", "worst_accuracy", "mean_accuracy"):
            assert cell[key][0] == pytest.approx(np.mean([record[key] for record in own]), abs=1e-4)
        for record in own:
            assert record["worst_accuracy"] == pytest.approx(min(record["group_accuracy"]), abs=1e-4)
            assert record["mean_accuracy"] == pytest.approx(np.mean(record["group_accuracy"]), abs=1e-3)
            assert record["worst_loss"] >= record["mean_loss"]
            best = max(entry["validation"] for entry in record["tried"])
            chosen = next(entry for entry in record["tried"] if entry["validation"] == best)
            assert {key: chosen[key] for key in record["setting"]} == record["setting"]


@pytest.mark.skipif(DATA is None, reason="needs the data that MOREAUC_DATA names")
@pytest.mark.parametrize(("name", "rows", "number"), [("adult", 48842, 10), ("compas", 7214, 6)])
def test_real_tables_are_split_by_group(name, rows, number):
    parts = groups.draw_parts(name, 0, Path(DATA))
    every = [parts.train, parts.validation, parts.test]
    assert sum(len(part) for part in every) == rows
    assert all(part.num_groups == number and part.sizes.min() > 0 for part in every)
    assert parts.train.X.dtype == np.float32 and abs(float(parts.train.X[:, 0].mean())) < 1e-4


# ---- convergence


def test_convergence(tmp_path, monkeypatch):
    few = {name: convergence.PROBLEMS[name] for name in ("CVaR of absolute losses", "bag ranking (three levels)")}
    monkeypatch.setattr(convergence, "PROBLEMS", few)
    monkeypatch.setattr(
        convergence, "SWEEPS", {"samples_per_batch": (1, 4), "outer_per_batch": (2,), "num_blocks": (10,)}
    )
    settings = [(tau, lr, 10, 4, samples) for tau in (0.5, 0.1) for lr in (1e-5, 1e-3) for samples in (1, 4)]
    monkeypatch.setattr(convergence, "BOUND_SETTINGS", settings[:6])
    _, report = run(replace(STUDIES["convergence"], steps=50, seeds=2, points=2), tmp_path)
    keys = [(entry["problem"], entry["method"]) for entry in report["methods"]]
    assert keys == [(problem, method) for problem in few for method in convergence.METHODS]
    for entry in report["methods"]:
        curve = entry["stationarity"]
        assert len(curve["mean"]) == len(entry["step"]) == len(entry["samples"])
        assert all(low <= high for low, high in zip(curve["low"], curve["high"], strict=True))
    plug = [(entry["factor"], entry["value"]) for entry in report["sweeps"] if entry["method"] == "plug-in"]
    assert plug == [("samples_per_batch", 1), ("samples_per_batch", 4)]
    for entry in report["bounds"]:
        assert len(entry["bound"]) == len(entry["table_error"]) == len(entry["step"]) and min(entry["bound"]) > 0
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    for name in ("methods.png", "sweeps.png", "bounds.png"):
        assert f'src="{name}"' in page and (tmp_path / name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert page.count("<table>") == 3


# ---- the methods that they compare


@pytest.mark.parametrize("name", METHODS["bags"])
def test_a_method_of_bags_gives_a_loss_that_takes_a_step(name):
    labels = torch.tensor([0, 1, 0, 1])
    criterion = build("bags", name, labels, min_tpr=0.0, max_fpr=1.0)
    assert criterion.pooling.name == METHODS["bags"][name].pooling
    assert hasattr(criterion, "table_v") == name.startswith(("sont", "midam"))
    shape = (8, 2) if criterion.pooling.columns == 2 else (8,)
    instances = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    criterion(instances, torch.arange(8) % 4, labels, torch.arange(4)).backward()
    assert instances.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("task", "name", "options", "message"),
    [
        ("bags", "sont", {}, "name must be one of"),
        ("bags", "ce_att", {"gamma": 0.1}, "options of 'ce_att'"),
        ("bags", "sont_att", {"widen": 2.0}, "widen"),
        ("groups", "dro", {"num_groups": 2}, "name must be one of"),
        ("groups", "erm", {"num_groups": 2, "gamma": 0.1}, "options of 'erm'"),
        ("groups", "sonx", {"num_groups": 3}, "group"),  # group 2 has no row
        ("groups", "sonx", {"num_groups": 2, "top_k": 3}, "top_k"),
    ],
)
def test_methods_refuse_what_they_do_not_know(task, name, options, message):
    region = {"min_tpr": 0.5, "max_fpr": 0.5} if task == "bags" else {}
    with pytest.raises(ValueError, match=message):
        build(task, name, [0, 1], **region, **options)


def test_methods_widen_their_region_and_take_groups_as_a_matrix():
    wide = build("bags", "sont_att", [0, 1], min_tpr=0.5, max_fpr=0.4, widen=0.5)
    assert (wide.min_tpr, wide.max_fpr) == (0.25, 0.7)
    matrix = np.array([[1.0, 0.0], [1.0, 1.0]])
    assert all(build("groups", name, matrix, num_groups=2) is not None for name in METHODS["groups"])
