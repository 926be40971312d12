"""Plans, choices, runs and tables of the paper's experiments, at sizes that take seconds or with made-up records."""

from __future__ import annotations

import functools
import itertools
import json
import math
import platform
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import PermutationMethod, wilcoxon

import moreauc
from experiments import __main__ as command_line
from experiments import engine, runs
from experiments import parts as parts_module
from experiments import report as report_module
from experiments.config import (
    EXPERIMENTS,
    batch_of,
    load_experiment,
    made_of,
    make_experiment,
    parse_plan,
    smoke_plan,
    training_on,
)
from experiments.data import histology, molecules
from experiments.engine import RECORDS, Setup, run_missing, select, write_records
from experiments.machine import deterministic
from experiments.paper import PaperStudy, load_paper_study
from experiments.parts import Run, make_parts
from experiments.ranks import difference_table, rank_table
from experiments.sections import NONE
from experiments.tables import make_curves, make_table, signed_rank, smallest_p, sort_records
from experiments.trial import Curves, Trial, _criterion, _scores, pretrain, region_to_choose_by
from moreauc.checkpoint import load_checkpoint
from moreauc.methods import METHODS

PLAN = """
title = "Two"
regions = [[0.5, 0.5]]
runs = 3
[training]
epochs = 4
milestones = [2]
lr = 0.01
optimizer = "sgd"
[datasets.first]
title = "First"
splits = 2
counts = { all = [30, 10] }
published = { base = [[0.4, 0.1]], sont = [[0.6, 0.2]] }
[datasets.second]
title = "Second"
note = "A remark."
[datasets.gone]
title = "Gone"
available = false
note = "It is lost."
published = { base = [[0.2, 0.1]] }
[methods.base]
title = "Base"
preset = "auc_m_att"
grid = { lr = [0.1, 0.01] }
[methods.sont]
title = "SONT"
preset = "sont_att"
grid = { lr = [0.1, 0.01] }
[methods.sont_a]
title = "SONT A"
preset = "sont_att"
remedy = true
grid = { lr = [0.1, 0.01] }
[methods.sont_b]
title = "SONT B"
preset = "sont_mean"
remedy = true
grid = { lr = [0.1, 0.01] }
[methods.base_a]
title = "Base A"
preset = "auc_m_att"
remedy = true
grid = { lr = [0.1, 0.01] }
[ablation]
method = "sont"
datasets = ["first"]
region = [0.5, 0.5]
grid = { gamma = [0.0, "theory"], lr = [0.1] }
"""


@pytest.fixture(scope="module", autouse=True)
def made_once():
    """Data that the library makes are the same every time: once is enough."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (molecules, "example_molecules"),
            (parts_module, "digit_bags"),
            (histology, "example_histology"),
        ):
            patch.setattr(module, name, functools.cache(getattr(module, name)))
        yield


def parse_experiment(name, text):
    return make_experiment(name, parse_plan(text))


def plan_for_tables():
    return parse_experiment("bags", PLAN)


def example(plan, **options):
    return Run(plan, plan.datasets["example"], **options)


def study_of(plan, seeds=None):
    return PaperStudy(name=plan.name, title=plan.title, folder="", seeds=seeds or plan.runs, experiment=plan)


def reproduce(plan, out, *, methods=None, splits=None, seeds=None, jobs=1, progress=None):
    """Do what is missing; return the records by key."""
    study, setup = study_of(plan, seeds), Setup(out)
    run_missing(study, setup, select(study.tasks(setup), methods=methods, splits=splits), jobs=jobs, progress=progress)
    return stored(out)


def stored(out, name=RECORDS):
    found = map(json.loads, (out / name).read_text(encoding="utf-8").splitlines())
    return {entry["key"]: entry for entry in found}


def drop(out, *keys):
    write_records(out / RECORDS, [entry for key, entry in stored(out).items() if key not in keys])


def without_time(entry):
    return {key: value for key, value in entry.items() if key not in ("seconds", "where")}


def read_records(plan, out):
    return sort_records(plan, engine.read_records(study_of(plan), out))


def make_report(plan, out):
    return command_line.make_report(study_of(plan), out, "a command")


# ---- plans


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_plan_is_whole(name):
    plan = load_experiment(name)
    assert len({len(entry.settings) for entry in plan.candidates.values() if not entry.recipe}) == 1
    assert {len(entry.settings) for entry in plan.candidates.values() if entry.recipe} == {3}
    known = METHODS["rows"] if name == "molecules" else METHODS["bags"]
    for entry in plan.candidates.values():
        assert entry.preset in known
        assert len({json.dumps(setting) for setting in entry.settings}) == len(entry.settings)
        for setting in entry.settings:  # each can be made
            _criterion(plan, entry, setting, torch.tensor([0, 1, 0, 1]))
    for dataset in plan.datasets.values():
        assert dataset.note or dataset.available
        for method, values in (dataset.published or {}).items():
            assert plan.candidates[method].literal and len(values) == len(plan.regions)
    if plan.ablation is not None:
        assert set(plan.ablation.datasets) <= set(plan.datasets) and len(plan.ablation.datasets) == 2
        assert [s["gamma"] for s in plan.ablation.settings] == [0.0, 0.001, 0.01, 0.1, "theory"]


def test_counts_of_the_paper():
    counts = {name: entry.counts for kind in EXPERIMENTS for name, entry in load_experiment(kind).datasets.items()}
    assert counts["moltox21"] == {"train": (5834, 248), "validation": (722, 29), "test": (709, 32)}
    assert counts["molmuv"] == {"train": (11466, 21), "validation": (1559, 2), "test": (1709, 6)}
    assert counts["musk2"] == {"all": (102, 39)} and counts["fox"] == {"all": (200, 100)}
    assert counts["colon"] == counts["lung"] == {"all": (1100, 100)}
    assert counts["molhiv"] is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("runs = 3\n", ""), "'runs'"),
        (("lr = 0.01\n", "lr = 0.01\nspeed = 3\n"), "'speed'"),
        (("grid = { lr = [0.1, 0.01] }\n[ab", "grid = { lr = [0.1] }\n[ab"), "as many settings"),
        (("[methods.sont_b]\n", "[methods.sont_b]\nrecipe = true\n"), "recipe for sont_b"),
        (("[ablation]", "[paper_grid]\nlr = [0.5]\n[ablation]"), "paper_grid"),
    ],
)
def test_bad_plans(change, message):
    assert change[0] in PLAN
    with pytest.raises(ValueError, match=f"load_experiment: .*{message}"):
        parse_experiment("bags", PLAN.replace(*change, 1))


# ---- choices


@pytest.mark.parametrize(
    ("positives", "negatives", "region", "expected"),
    [
        (10, 10, (0.6, 0.4), (0.6, 0.4)),
        (2, 10, (0.6, 0.4), (0.5, 0.4)),  # 0.4 of two positives are none
        (10, 2, (0.6, 0.4), (0.6, 0.5)),
        (1, 1, (0.9, 0.1), (0.0, 1.0)),
        (10, 10, (0.9, 0.1), (0.9, 0.1)),  # in floating point 10 (1 - 0.9) is below 1
    ],
)
def test_a_region_that_holds_no_row_is_widened(positives, negatives, region, expected):
    labels = torch.tensor([1] * positives + [0] * negatives)
    assert region_to_choose_by(labels, region) == pytest.approx(expected)


def curves_of(merit, auc=None):
    values = np.array(merit, dtype=float)[:, :, None]
    tests = np.arange(values.size, dtype=float).reshape(values.shape) / 100
    auc = np.zeros(values.shape[:2]) if auc is None else np.array(auc)
    return Curves(plan_for_tables().candidates["base"].settings, values, values + 0.001, tests, auc)


GONE = [-math.inf] * 20
EQUAL = [[0.1, 0.5, 0.5], [0.5, 0.1, 0.1]]


@pytest.mark.parametrize(
    ("merit", "auc", "epochs", "setting", "epoch"),
    [
        ([[0.1, 0.2, 0.3, 0.4], [0.1, 0.5, 0.1, 0.1]], None, 1, 1, 2),
        ([[0.6, -math.inf, -math.inf, -math.inf], [0.1, 0.5, 0.1, 0.1]], None, 1, 0, 1),  # good until it diverged
        ([[0.0, 0.9, 0.0, 0.0], [0.5, 0.5, 0.6, 0.6]], None, 2, 1, 4),  # one lucky epoch does not count for two
        ([[0.5, 0.7, -math.inf, -math.inf], [0.1, 0.1, 0.1, 0.1]], None, 2, 0, 2),
        ([[0.1, 0.2, 0.3, 0.4], [0.2, 0.2, 0.2, 0.2]], None, 9, 0, 4),  # no more epochs than there are
        ([GONE, [0.2, 0.8, 0.5, *GONE[3:]]], None, 5, 1, 3),  # no window of five is finite, one of three is
        (EQUAL, [[0.6, 0.7, 0.8], [0.6, 0.9, 0.9]], 1, 0, 3),  # the AUC decides among equal scores only
        (EQUAL, [[0.6, 0.8, 0.8], [0.6, 0.9, 0.8]], 1, 0, 2),  # then the earliest epoch
        (EQUAL, [[0.6, 0.7, 0.7], [0.8, 0.9, 0.9]], 1, 1, 1),
    ],
)
def test_validation_chooses(merit, auc, epochs, setting, epoch):
    curves = curves_of(merit, auc)
    found = curves.choose(0, epochs=epochs)
    assert found["setting"] == curves.settings[setting] and found["epoch"] == epoch
    assert found["test"] == pytest.approx(curves.test[setting, epoch - 1, 0])
    assert found["last"] == pytest.approx(curves.test[setting, -1, 0])
    assert found["validation"] == pytest.approx(merit[setting][epoch - 1] + 0.001)


@pytest.mark.parametrize(
    ("lead", "setting", "epoch"),
    [
        ([[0.2, 0.1], [0.3, 0.01]], 1, 2),  # the best epoch is beyond chance
        ([[0.2, 0.1], [0.3, 0.0]], None, 0),  # it is not, and another one that is does not count
        ([[0.2, 0.1], [0.3, math.nan]], None, 0),
    ],
)
def test_a_recipe_keeps_its_start_unless_the_best_is_beyond_chance(lead, setting, epoch):
    start = {"validation": np.array([0.6]), "test": np.array([0.44])}
    curves = curves_of([[0.7, 0.6], [0.5, 0.8]])
    curves = replace(curves, start=start, lead=np.array(lead)[:, :, None], test_error=np.full((2, 2, 1), 0.05))
    found = curves.choose(0)
    assert found["epoch"] == epoch and found["setting"] == (None if setting is None else curves.settings[setting])
    expected = (0.6, 0.44, 0.44, 0.0) if setting is None else (0.801, 0.03, 0.03, 0.05)
    assert tuple(found[name] for name in ("validation", "test", "last", "error")) == pytest.approx(expected)
    assert found["plain"] == 0.03
    gone = replace(curves, merit=np.full((2, 2, 1), -math.inf))
    assert (gone.choose(0)["epoch"], gone.choose(0)["test"]) == (0, 0.44)


def test_where_all_diverged_at_once_nothing_is_chosen():
    curves = replace(curves_of([GONE, GONE]), errors=["scores must be finite, got nan", None])
    assert set(curves.choose(0, epochs=5).values()) == {None}
    rows = curves.summary()
    assert [row["merit"] for row in rows] == [[None], [None]] and all("finite" in row["error"] for row in rows)


NARROW = PLAN + "[paper_grid]\nlr = [0.01]\n"  # of the two that are tried the second


# ---- runs


def test_a_setting_that_diverges_is_reported_and_leaves_the_others_alone():
    plan = smoke_plan(load_experiment("bags"))
    plan = replace(plan, training=replace(plan.training, epochs=2, side_by_side=3))
    candidate = plan.candidates["auc_m_att"]
    settings = [{"lr": 0.01, "margin": 0.5, "dual_lr": rate} for rate in (0.1, 1e30, 1.0)]
    calm = [settings[0], {**settings[1], "dual_lr": 0.5}, settings[2]]
    run = example(plan)
    parts = make_parts(run, "attention")
    wild, quiet = (Trial(run, candidate, parts).train(found) for found in (settings, calm))
    assert [error is None for error in wild.errors] == [True, False, True] and quiet.errors == [None] * 3
    assert np.isneginf(wild.merit[1]).all() and np.isfinite(wild.merit[::2]).all()  # so it cannot be chosen
    for kept, name in itertools.product((0, 2), ("merit", "validation", "test")):
        assert np.array_equal(getattr(wild, name)[kept], getattr(quiet, name)[kept])
    broken = {name: torch.full_like(value, math.nan) for name, value in parts.model().state_dict().items()}
    lost = Trial(run, candidate, parts, broken).train(settings[::2])
    assert np.isneginf(lost.merit).all() and all("finite" in error for error in lost.errors)


def recipe_plan(**changes):
    plan = smoke_plan(load_experiment("bags"))
    changed = replace(plan.recipe, **changes)
    return replace(plan, recipe=changed, training=replace(plan.training, side_by_side=2))


def test_the_average_of_the_weights_is_what_is_scored():
    plan = recipe_plan(epochs=2, average=1e9)
    run = example(plan, recipe=True)
    parts = make_parts(run, "attention")
    start = pretrain(run, parts)
    entry, settings = plan.candidates["sota_s_att_recipe"], [{"lr": 0.1}, {"lr": 0.01}]
    still, moved = (
        Trial(replace(run, plan=recipe_plan(epochs=2, average=average)), entry, parts, start).train(settings)
        for average in (1e9, 1e-9)
    )
    expected = runs.score_weights(run, parts, start)
    for name in ("validation", "test"):
        assert still.start[name] == pytest.approx(expected[name])
        for copy, epoch in itertools.product(range(2), range(2)):  # an average over ever so long is the start
            assert getattr(still, name)[copy, epoch] == pytest.approx(expected[name])
    assert np.nanmax(still.lead) <= 0.0 and all(still.choose(column)["epoch"] == 0 for column in range(3))
    trained_plan = replace(plan, training=training_on(plan, run.dataset, entry))  # an average over no time is the last
    last = Trial(replace(run, plan=trained_plan), replace(entry, recipe=False), parts, start).train(settings)
    assert moved.validation == pytest.approx(last.validation) and moved.merit == pytest.approx(last.merit)
    assert not np.allclose(moved.validation, still.validation)


def test_recipe_rows_are_trained_and_shown_by_themselves(tmp_path):
    plan = recipe_plan()
    names = ["sota_s_att", "sont_att", "sota_s_att_recipe", "sont_att_recipe"]
    plan = replace(plan, candidates={name: plan.candidates[name] for name in names}, ablation=None)
    found = reproduce(plan, tmp_path, splits=1)
    assert sorted(key for key in found if key.startswith("start/")) == [f"start/example/recipe/0/{k}" for k in (0, 1)]
    one, other = (found[f"run/example/{name}/0/0"] for name in names[2:])
    assert one["start"] == other["start"] and "chosen_smoothed" not in one
    report = make_report(plan, tmp_path)
    rows, _ = rows_of(report, "Bags of digits, one test split")
    marked = ["start (CE, best epoch)‡", "SOTAs (att), recipe‡", "SONT (att), recipe‡"]
    assert [row[0] for row in rows] == ["SOTAs (att)", "SONT (att)", *marked]
    rows, _ = rows_of(report, "Bags of digits, one test split: SONT (att), recipe‡ against the baselines")
    assert [row[0] for row in rows] == ["SOTAs (att), recipe‡"]
    rows, _ = rows_of(report, "Bags of digits, one test split, epochs chosen by the mean of 5")
    assert [row[0] for row in rows] == ["SOTAs (att)", "SONT (att)"]
    with pytest.raises(ValueError, match=r"made with made .*'average': 7"):
        read_records(replace(plan, recipe=replace(plan.recipe, average=7.0)), tmp_path)


def test_methods_and_data_sets_may_be_trained_otherwise():
    plan = load_experiment("molecules")
    plain, usual = plan.candidates["sonx_plain"], plan.candidates["sonx"]
    few = replace(plan.datasets["moltox21"], epochs=9)
    assert training_on(plan, plan.datasets["moltox21"], usual) == plan.training
    assert training_on(plan, few, plain) == replace(plan.training, momentum=0.0, epochs=9, milestones=(3, 6))
    assert "momentum" not in usual.options and plan.training.momentum == 0.9


def test_scores_that_are_not_finite_have_no_merit():
    labels, scores = torch.tensor([1, 0, 0]), torch.tensor([[0.2, 0.1, 0.0], [0.2, math.nan, 0.0], [0.1, 0.1, 0.0]])
    regions = [(0.0, 1.0), (0.0, 0.5)]
    merit = _scores(labels, scores, regions, missing=-math.inf)
    assert merit.tolist() == [[1.0, 1.0], [-math.inf] * 2, [0.75, 0.5]]
    plain = _scores(labels, scores, regions)
    assert plain[[0, 2]].tolist() == [[1.0, 1.0], [0.75, 0.5]] and np.isnan(plain[1]).all()
    assert np.isnan(_scores(labels, scores[:1], [(0.0, 0.1)])).all()  # no negative in the region


@pytest.mark.parametrize(
    ("name", "methods", "lost"),
    [
        ("molecules", ["ce", "sonx"], "run/example/sonx/0/1"),
        ("histology", ["sont_att"], "run/example/sont_att/0/1"),
        ("bags", ["sont_att_recipe"], "run/example/sont_att_recipe/0/1"),
    ],
)
def test_a_run_that_was_lost_comes_again_bit_for_bit(name, methods, lost, tmp_path):
    plan = smoke_plan(load_experiment(name))
    before = reproduce(plan, tmp_path, methods=methods)
    details = stored(tmp_path, "details.jsonl")
    assert set(details) == {key for key in before if key.startswith("run/")}
    drop(tmp_path, lost)
    for start in (tmp_path / "starts").glob("*.pt"):  # a clone of the repository has none of these
        start.unlink()
    seen = []
    again = reproduce(plan, tmp_path, methods=methods, progress=lambda done, of: seen.append((done, of)))
    assert list(again) == list(before) == sorted(before)
    assert {key for key in before if before[key] != again[key]} <= {lost, *(key for key in before if "start" in key)}
    assert without_time(again[lost]) == without_time(before[lost])
    number = 2 if name == "molecules" or "recipe" in lost else 1  # with the start
    assert seen[-1] == (number, number) and stored(tmp_path, "details.jsonl") == details


# ---- the same numbers whatever else is going on


def plan_with_start(**changes):
    """Molecules with a network large enough for the numbers of one thread and of two to differ."""
    plan = smoke_plan(load_experiment("molecules"))
    dataset = replace(plan.datasets["example"], **{"width": 32, "positives": 80, "negatives": 80, **changes})
    return replace(plan, datasets={"example": dataset}, runs=1, ablation=None)


def start_of(out, plan):
    reproduce(plan, out, methods=["ce"], seeds=1)
    return load_checkpoint(out / "starts" / "example-0-0.pt")["weights"]


RUN, START = "run/example/ce/0/0", "start/example/0/0"


def same(one, other) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def test_threads_of_the_parent_do_not_matter(tmp_path, two_threads):
    plan = plan_with_start()
    place = example(plan)
    parts = make_parts(place)
    loose = runs.pretrain(place, parts)
    torch.set_num_threads(1)
    expected = runs.pretrain(place, parts)
    run = runs.do_run(run=place, candidate=plan.candidates["ce"])
    assert not same(loose, expected)  # else this would show nothing
    torch.set_num_threads(2)
    assert same(start_of(tmp_path, plan), expected)
    record = stored(tmp_path)[RUN]
    assert record["where"]["threads"] == 1 and record["chosen"] == run["chosen"]
    again = runs.do_run(run=place, candidate=plan.candidates["ce"])
    assert again["settings"] == run["settings"] and torch.get_num_threads() == 2


def test_torch_is_as_it_was_afterwards(two_threads):
    with pytest.raises(KeyError), deterministic():
        assert torch.get_num_threads() == 1 and torch.are_deterministic_algorithms_enabled()
        raise KeyError
    assert torch.get_num_threads() == 2 and not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("change", [{"positives": 40}, {"width": 16}, {"pretrain_lr": 0.1}])
def test_a_start_of_another_plan_is_made_again(change, tmp_path):
    plan = plan_with_start()
    if "pretrain_lr" in change:
        other = replace(plan, training=replace(plan.training, **change))
    else:
        other = plan_with_start(**change)
    before, wanted = start_of(tmp_path / "a", plan), start_of(tmp_path / "b", other)
    drop(tmp_path / "a", RUN)
    assert not same(before, wanted) and same(start_of(tmp_path / "a", other), wanted)
    one, two = (stored(tmp_path / name) for name in "ab")
    assert [without_time(one[key]) for key in (RUN, START)] == [without_time(two[key]) for key in (RUN, START)]


def test_a_start_that_is_right_is_used_and_scored(tmp_path, monkeypatch):
    plan = plan_with_start()
    weights = start_of(tmp_path, plan)
    written = stored(tmp_path)[RUN]
    drop(tmp_path, RUN)
    monkeypatch.setattr(runs, "pretrain", lambda *args, **options: pytest.fail("it is there"))
    found = reproduce(plan, tmp_path, methods=["ce", "mb"], seeds=1)
    assert all(found[f"run/example/{name}/0/0"]["start"] == written["start"] for name in ("ce", "mb"))
    expected = runs.score_weights(example(plan), make_parts(example(plan)), weights)
    for part in ("validation", "test"):
        assert [entry[part] for entry in written["start"]] == pytest.approx(expected[part], abs=1e-6)


def test_records_say_where_and_of_what(tmp_path, monkeypatch):
    plan = plan_with_start()
    record = reproduce(plan, tmp_path, methods=["ce"], seeds=1)[RUN]
    assert record["data"] == make_parts(example(plan)).data
    where = record["where"]
    assert set(where) == {"date", "torch", "machine", "python", "moreauc", "commit", "threads", "rdkit"}
    assert where["moreauc"] == moreauc.__version__ and where["python"] == platform.python_version()
    assert where["rdkit"] == pytest.importorskip("rdkit").__version__
    kept = {name: np.shape(values) for name, values in stored(tmp_path, "details.jsonl")[RUN].items() if name != "key"}
    assert kept == {"merit": (2, 1, 2), "validation": (2, 1, 2), "test": (2, 1, 2), "auc": (2, 1)}
    assert record["ties"] == "curve"
    monkeypatch.setitem(sys.modules, "rdkit", None)
    assert runs._rdkit() is None


# ---- plans of work


def test_tasks_are_chosen_by_name(tmp_path):
    study, setup = load_paper_study("bags"), Setup(tmp_path)
    few = select(study.with_seeds(2).tasks(setup), datasets=["fox"], methods=["sont_att"], splits=3)
    assert [task.key for task in few] == [
        *(f"start/fox/recipe/{split}/{run}" for split in range(3) for run in range(2)),
        *(f"run/fox/sont_att/{split}/{run}" for split in range(3) for run in range(2)),
        *(f"ablation/fox/sont_att/{run}" for run in range(2)),
    ]
    assert len(study.needed(select(study.tasks(setup), methods=["midam_smx"]), [])) == 2 * 6 * 5
    by_recipe = study.needed(select(study.tasks(setup), methods=["midam_att_recipe"], splits=1), [])
    assert [task.place["kind"] for task in by_recipe] == ["start"] * 10 + ["run"] * 10
    seven = select(load_paper_study("molecules").with_seeds(7).tasks(setup), methods=["ce"])
    # three sets that are there; seeds may be more
    assert [sum(task.place["kind"] == kind for task in seven) for kind in ("start", "run")] == [42, 21]
    with pytest.raises(ValueError, match=r"dataset must be among musk2, fox, got 'tiger'"):
        select(study.tasks(setup), datasets=["fox", "tiger"])
    with pytest.raises(ValueError, match=r"method must be among .*sont_att.*, got 'sonx'"):
        select(study.tasks(setup), methods=["sonx"])
    with pytest.raises(ValueError, match="seeds must be at most the number of folds, 5, got 6"):
        study.with_seeds(6)


# ---- records


def record(plan, dataset, method, test, *, split=0, run=0, merit=0.5, smoothed=None):
    candidate = plan.candidates[method]
    chosen = {"setting": candidate.settings[0], "epoch": 2, "validation": merit, "test": test, "last": test}
    made = {
        "key": f"run/{dataset}/{method}/{split}/{run}",
        "kind": "run",
        "dataset": dataset,
        "method": method,
        "split": split,
        "run": run,
        "counts": {"train": [20 + run, 6], "validation": [6 - run, 2], "test": [4, 2]},
        "batch": batch_of(plan.datasets[dataset]),
        "options": dict(candidate.options),
        "ties": "curve",
        "regions": [list(region) for region in plan.regions],
        "chosen": [chosen] * len(plan.regions),
        "settings": [{**setting, "merit": [merit] * len(plan.regions)} for setting in candidate.settings],
        "device": "CPU",
        "seconds": 2.0,
        "plan": study_of(plan).plan,
        "where": {"date": f"2026-01-0{run + 1}", "torch": "2.0", "machine": "x"},
    }
    if smoothed is not None:
        made["chosen_smoothed"] = [{**chosen, "test": smoothed}] * len(plan.regions)
    return made


def curve_record(plan, run, *training):
    settings = plan.ablation.settings
    curves = [
        {"setting": setting, "error": None, "training": values, "validation": values, "test": values}
        for setting, values in zip(settings, training, strict=True)
    ]
    common = {key: value for key, value in record(plan, "first", "sont", 0.5).items() if key in ("plan", "where")}
    return {
        **common,
        "key": f"ablation/first/sont/{run}",
        "kind": "ablation",
        "dataset": "first",
        "method": "sont",
        "run": run,
        "region": list(plan.ablation.region),
        "curves": curves,
        "device": "GPU",
        "seconds": 1.0,
    }


def write_runs(out, records):
    """Write records, beside those that are there; of equal keys the later counts."""
    with (out / RECORDS).open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in records)


def test_records_are_read_in_the_order_of_the_plan(tmp_path):
    plan = plan_for_tables()
    write_runs(tmp_path, [record(plan, "second", "base", 0.1), record(plan, "first", "sont", 0.2, run=1)])
    write_runs(tmp_path, [record(plan, "first", "base", 0.3, split=1), record(plan, "first", "sont", 0.4)])
    strange = [{"dataset": "third"}, {"method": "old"}, {"split": 2}, {"run": 3}]
    others = [{**record(plan, "first", "base", 0.9), **change, "key": f"{n}"} for n, change in enumerate(strange)]
    write_runs(tmp_path, others)
    found = read_records(plan, tmp_path)
    assert [entry["chosen"][0]["test"] for entry in found.runs] == [0.3, 0.4, 0.2, 0.1]
    assert found.left_out == ("0", "1", "2", "3")


def made_otherwise(name):
    plan = plan_for_tables()
    made = made_of(plan, plan.datasets["first"], plan.candidates["base"])
    return lambda r: r.update(made={**made, name: "x"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["plan"]["training"].update(epochs=5), "epochs 4, got 5; remove its line, and .* makes it again"),
        (lambda r: r.update(regions=[[0.3, 0.7]]), r"regions \[\[0.5, 0.5\]\], got \[\[0.3, 0.7\]\]"),
        (lambda r: r["settings"].pop(), "settings .*'lr': 0.01.*, got .*'lr': 0.1"),
        (lambda r: r.update(batch={"positives": 3}), "batch .*got {'positives': 3}"),
        (lambda r: r.pop("dataset"), "'dataset'"),
        (lambda r: r["plan"].pop("training"), "'training'"),
        *((made_otherwise(name), f"with made .*, got .*'{name}': 'x'") for name in ("preset", "source")),
    ],
)
def test_a_record_of_another_plan_is_named(change, message, tmp_path):
    plan = plan_for_tables()
    other = record(plan, "first", "base", 0.5)
    change(other)
    write_runs(tmp_path, [record(plan, "first", "sont", 0.5), other])
    with pytest.raises(ValueError, match=rf"bags: the record run/first/base/0/0 in .* cannot be used: .*{message}"):
        make_report(plan, tmp_path)


def test_all_methods_of_a_run_have_the_same_data(tmp_path):
    plan = plan_for_tables()
    records = [record(plan, "first", method, 0.5, run=run) for run in (0, 1) for method in ("base", "sont")]
    for entry, data in zip(records, ("a", "a", "b", "b"), strict=True):
        entry["data"] = {"train": data}
    write_runs(tmp_path, records)
    assert len(read_records(plan, tmp_path).runs) == 4
    records[0]["made"] = made_of(plan, plan.datasets["first"], plan.candidates["base"])  # which is right
    records[3]["data"] = {"train": "a"}
    write_runs(tmp_path, records)
    with pytest.raises(ValueError, match=r"run/first/sont/0/1 must have the data .*'b'.*, got .*'a'"):
        read_records(plan, tmp_path)


# ---- tables


def runs_of(plan, dataset, method, tests, **options):
    return [record(plan, dataset, method, test, run=run, **options) for run, test in enumerate(tests)]


def test_means_spreads_and_wins_of_runs():
    plan = plan_for_tables()
    records = runs_of(plan, "first", "base", [0.1, 0.5, 0.6]) + runs_of(plan, "first", "sont", [0.2, 0.5, 0.2])
    records += runs_of(plan, "first", "sont_a", [0.9, 0.4]) + runs_of(plan, "first", "base", [0.9] * 3, split=1)
    table = make_table(plan, records)
    base, sont, remedy = (table.cell("first", name, 0) for name in ("base", "sont", "sont_a"))
    assert base.mean == pytest.approx(0.4) and base.std == pytest.approx(math.sqrt((0.09 + 0.01 + 0.04) / 2))
    assert (base.wins, sont.wins, remedy.wins) == (2, 2, 1)  # a shared first place is one for both
    assert base.complete and not remedy.complete and remedy.values == {0: 0.9, 1: 0.4}
    assert base.published == (0.4, 0.1) and remedy.published is None
    empty = table.cell("second", "base", 0)
    assert empty.mean is None and empty.std is None and empty.planned == 3
    assert table.has_runs("first") and not table.has_runs("second")
    assert [entry.name for entry in table.methods] == ["base", "sont", "sont_a", "sont_b", "base_a"]


def test_splits_are_means_over_folds_and_need_all_of_them():
    plan = plan_for_tables()
    records = runs_of(plan, "first", "base", [0.1, 0.2, 0.6]) + runs_of(plan, "first", "base", [0.7] * 3, split=1)
    records += runs_of(plan, "first", "sont", [0.4] * 3) + runs_of(plan, "first", "sont", [0.9, 0.9], split=1)
    records += runs_of(plan, "second", "base", [0.5] * 3)
    table = make_table(plan, records, "splits")
    assert [entry.name for entry in table.datasets] == ["first"]
    assert table.cell("first", "base", 0).values == pytest.approx({0: 0.3, 1: 0.7})
    assert table.cell("first", "base", 0).std == pytest.approx(0.4 / math.sqrt(2))
    cell = table.cell("first", "sont", 0)
    assert cell.values == pytest.approx({0: 0.4}) and cell.planned == 2
    test = table.test("sont", "base", "first", 0)
    assert (test.number, test.better, test.p) == (1, 1, 1.0) and test.difference == pytest.approx(0.1)


def diverged_record(plan, dataset, method, **place):
    """A run in which nothing could be chosen, as it is written."""
    lost = record(plan, dataset, method, None, merit=None, **place)
    lost["chosen"] = [dict.fromkeys(("setting", "epoch", "validation", "test", "last"))] * len(plan.regions)
    lost["settings"] = [{**row, "error": "scores must be finite, got nan"} for row in lost["settings"]]
    return lost


def test_a_run_in_which_everything_diverged_is_counted(tmp_path):
    plan = plan_for_tables()
    records = runs_of(plan, "first", "base", [0.1, 0.2, 0.6])
    records += [*runs_of(plan, "first", "sont", [0.3, 0.5]), diverged_record(plan, "first", "sont", run=2)]
    table = make_table(plan, records)
    cell = table.cell("first", "sont", 0)
    assert cell.values == {0: 0.3, 1: 0.5} and cell.failed == 1 and cell.complete
    assert table.cell("first", "base", 0).failed == 0
    assert table.test("sont", "base", "first", 0).number == 2
    write_runs(tmp_path, records)
    report = make_report(plan, tmp_path)
    rows, section = rows_of(report, "First, one test split")
    assert rows[0][1] == "0.300±0.265" and rows[1][1] == "0.400±0.141 (2, 1 no score)" and len(rows) == 2
    assert section.text[1:] == [
        "Not run here: SONT A†; SONT B†; Base A†.",
        "Runs without a score, in which every setting diverged before its first, are counted but not in the mean.",
    ]
    rows, section = rows_of(report, "Settings that diverged")
    assert rows == [["First", "SONT", "2 of 6", "scores must be finite, got nan"]]
    assert section.text[0].endswith("because no setting has one or none that can be tested: 1.")
    content = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    cell = next(entry for entry in content["cells"] if entry["method"] == "sont" and entry["protocol"] == "runs")
    assert (cell["number"], cell["failed"]) == (2, 1)
    assert {"settings": [None], "epochs": [None]}.items() <= content["chosen"][-1].items()


def test_a_lost_run_is_a_loss_and_no_reason_to_leave_others_out():
    plan = plan_for_tables()
    records = [*runs_of(plan, "first", "base", [0.1, 0.2]), diverged_record(plan, "first", "base", run=2)]
    records += runs_of(plan, "first", "sont", [0.0, 0.5, 0.4])
    table = make_table(plan, records)
    assert [table.cell("first", name, 0).wins for name in ("base", "sont")] == [1, 2]
    lost = [diverged_record(plan, "first", name, run=0) for name in ("base", "sont")]
    table = make_table(plan, lost)
    assert [table.cell("first", name, 0).wins for name in ("base", "sont")] == [0, 0]


def test_the_start_is_the_first_row(tmp_path):
    plan = plan_for_tables()
    records = runs_of(plan, "first", "base", [0.1, 0.2, 0.6]) + runs_of(plan, "first", "sont", [0.3, 0.5, 0.7])
    records += runs_of(plan, "first", "base", [0.1, 0.2, 0.6], split=1) + runs_of(plan, "second", "base", [0.1] * 3)
    for entry in records:
        if entry["dataset"] == "first":
            entry["start"] = [{"validation": 0.9, "test": [0.1, 0.2, 0.3][entry["run"]] + 0.4 * entry["split"]}]
    write_runs(tmp_path, records)
    report = make_report(plan, tmp_path)
    rows, _ = rows_of(report, "First, one test split")
    assert rows[0] == ["start (CE)", "0.200±0.100", NONE, NONE] and rows[1][0] == "Base"
    rows, _ = rows_of(report, "First, 2 test splits")
    assert rows[0] == ["start (CE)", "0.400±0.283", NONE, NONE]
    rows, _ = rows_of(report, "Second")
    assert rows[0][0] == "Base"
    starts = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["starts"]
    assert [(entry["protocol"], entry["dataset"]) for entry in starts] == [("runs", "first"), ("splits", "first")]
    assert starts[0]["values"] == [0.1, 0.2, 0.3]


def test_ranks_and_differences_by_the_recipe():
    plan = load_experiment("histology")
    plan = replace(plan, datasets={"colon": plan.datasets["colon"]})
    tests = {"sont_att_recipe": [0.5, 0.7], "sota_s_att_recipe": [0.5, 0.6], "auc_m_att_recipe": [0.2, 0.3]}
    records = [entry for name, values in tests.items() for entry in runs_of(plan, "colon", name, values)]
    records += runs_of(plan, "colon", "sota_s_att", [0.9, 0.9]) + runs_of(plan, "colon", "sont_att", [0.9, 0.9])
    for entry in records[:6]:
        error = 0.03 if entry["method"].startswith("sont") else 0.04
        entry["chosen"] = [{**choice, "error": error} for choice in entry["chosen"]]
    cells = [
        {"protocol": "runs", "choice": "chosen", "dataset": key[0], "method": key[1], "region": plan.regions[key[2]]}
        | report_module._cell(cell)
        for key, cell in make_table(plan, records).cells.items()
    ]
    columns, rows = rank_table([(plan, cells)], recipe=True)
    assert columns == ["method", "Colon", "mean rank", "among 3"]
    assert [row[:2] for row in rows] == [["SONX, SONT", "1.0"], ["SOTA-s", "2.0"], ["AUC-M", "3.0"]]
    columns, rows = rank_table([(plan, cells)], recipe=False)
    assert [row[1] for row in rows] == ["1.5", "1.5"]  # equal means share their ranks
    _, ((name, ours, other, its, difference, spread, error, positives, needed),) = difference_table([(plan, cells)])
    assert (name, ours, other, its, difference) == ("Colon", "0.600", "SOTA-s", "0.550", "+0.050")
    assert (spread, error, positives) == ("0.071", "0.050", "2")  # of 0 and 0.1; root of 0.03² + 0.04²
    assert float(needed) == round(2 * 1.96**2)


def test_the_papers_grid_alone_is_a_table_of_its_own(tmp_path):
    plan = parse_experiment("bags", NARROW)
    records = runs_of(plan, "first", "base", [0.9] * 3) + runs_of(plan, "first", "sont", [0.2] * 3)
    for entry, test in zip(records, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], strict=True):
        entry["chosen_paper"] = [{**entry["chosen"][0], "setting": {"lr": 0.01}, "test": test}]
        entry["settings"][0]["merit"], entry["settings"][1]["merit"] = [0.8], [0.3]
    table = make_table(plan, records, choice="chosen_paper")
    assert [table.cell("first", name, 0).mean for name in ("base", "sont")] == pytest.approx([0.2, 0.5])
    write_runs(tmp_path, records)
    report = make_report(plan, tmp_path)
    heading = "First, one test split, only settings of the paper's grid"
    assert [row[:2] for row in rows_of(report, heading)[0]] == [["Base", "0.200±0.100"], ["SONT", "0.500±0.100"]]
    assert rows_of(report, f"{heading}: SONT against the baselines")[0] == [["Base", "+0.300", "3/3", "0.25"]]
    found = {test["choice"]: test["difference"] for test in report.results["tests"] if test["ours"] == "sont"}
    assert found == pytest.approx({"chosen": -0.7, "chosen_paper": 0.3})


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 2.0, 3.0, 4.0, 5.0],
        [1.0, -2.0, 3.0, 4.0, 5.0],
        [1.0, -1.0, 2.0, 2.0, -3.0, 0.0],
        [-1.0, -1.0, -1.0, -1.0],
        [1.0, 2.0, -3.0, 5.0, 8.0, -13.0, 21.0, 34.0, 55.0, 89.0],
    ],
)
def test_signed_rank_by_all_signs(values):
    every = PermutationMethod(n_resamples=np.inf)
    assert signed_rank(values) == pytest.approx(wilcoxon(values, method=every).pvalue)
    assert signed_rank([-value for value in values]) == pytest.approx(signed_rank(values))


def test_signed_rank_of_no_or_many_differences():
    assert signed_rank([]) == 1.0 == signed_rank([2.0]) == signed_rank([0.3 - 0.1 - 0.2, 1e-12])  # rounding is none
    values = np.random.default_rng(0).normal(0.3, 1.0, 30)
    assert signed_rank(values) == pytest.approx(wilcoxon(values).pvalue)
    assert all(smallest_p(pairs) == signed_rank(np.arange(1.0, pairs + 1)) for pairs in (1, 5, 10))


# ---- curves


def test_curves_are_means_over_runs_that_are_still_finite():
    plan = plan_for_tables()
    records = [curve_record(plan, 0, [0.1, 0.2], [0.5, None]), curve_record(plan, 1, [0.3, 0.6], [0.7, 0.9])]
    plain, theory = make_curves(plan, records)
    assert (plain.label, theory.label) == ("gamma 0", "gamma of the theory")
    assert plain.training[:, 0].tolist() == pytest.approx([0.2, 0.4])
    assert plain.training[:, 1].tolist() == pytest.approx([0.1 * math.sqrt(2), 0.2 * math.sqrt(2)])
    assert (plain.runs, plain.diverged, theory.diverged) == (2, 0, 1)
    assert theory.training[:, 0].tolist() == pytest.approx([0.6, 0.9]) and math.isnan(theory.training[1, 1])
    assert theory.last["test"][0] == pytest.approx(0.9)
    gone = make_curves(plan, [curve_record(plan, 0, [None, None], [0.5, 0.5])])
    assert np.isnan(gone[0].training).all() and gone[0].diverged == 1
    assert make_curves(plan, []) == [] and make_curves(replace(plan, ablation=None), records) == []


# ---- reports


@pytest.fixture
def reported(tmp_path):
    plan = plan_for_tables()
    records = runs_of(plan, "first", "base", [0.1, 0.2, 0.6], smoothed=0.25)
    records += runs_of(plan, "first", "sont", [0.3, 0.5, 0.7], smoothed=0.35)
    records += runs_of(plan, "first", "sont", [0.8, 0.8, 0.8], split=1) + runs_of(
        plan, "first", "base", [0.4] * 3, split=1
    )
    records += runs_of(plan, "first", "sont_b", [0.6, 0.6])
    records[0]["settings"][1]["error"] = "scores must be finite, got nan"
    write_runs(tmp_path, records)
    write_runs(tmp_path, [curve_record(plan, 0, [0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8])])
    return make_report(plan, tmp_path), tmp_path


def rows_of(report, heading):
    (section,) = (section for section in report.sections if section.heading == heading)
    return [list(row) for row in section.rows], section


def test_report_has_the_numbers(reported):
    report, out = reported
    rows, section = rows_of(report, "First, one test split")
    assert section.columns == ["method", "(0.5, 0.5)", "published", "wins"]
    assert rows[0] == ["Base", "0.300±0.265", "0.400±0.100", "0"]
    assert rows[1] == ["SONT", "0.500±0.200", "0.600±0.200", "3"]
    assert rows[2] == ["SONT B†", "0.600±0.000 (2)", NONE, "2"]
    rows, _ = rows_of(report, "First, 2 test splits")
    assert rows[1][:2] == ["SONT", "0.650±0.212"]
    rows, _ = rows_of(report, "First, one test split, epochs chosen by the mean of 5")
    assert rows[0][1] == "0.250±0.000"
    assert rows_of(report, "First, one test split: SONT against the baselines")[0] == [
        ["Base", "+0.200", "3/3", "0.25"]
    ]
    rows, section = rows_of(report, "Gone")
    assert rows == [["Base", "0.200±0.100"]] and section.text == ["What the paper reports.", "It is lost."]
    assert rows_of(report, "Second")[1].text == ["No runs yet: `python -m experiments run bags` does them."]
    content = json.loads((out / "report.json").read_text(encoding="utf-8"))
    cell = next(c for c in content["cells"] if (c["method"], c["protocol"], c["choice"]) == ("sont", "runs", "chosen"))
    assert cell["mean"] == pytest.approx(0.5) and cell["number"] == 3 and cell["values"] == [0.3, 0.5, 0.7]
    assert {test["ours"] for test in content["tests"]} == {"sont"}
    assert content["runs"] == 14 and len(content["chosen"]) == 14
    page = (out / "index.html").read_text(encoding="utf-8")
    assert page.count("<img") == 1 and "a command" in page and (out / "gamma.png").exists()


def test_no_runs_no_report(tmp_path):
    with pytest.raises(ValueError, match=r"got 0 in .*; `python -m experiments run bags` makes the others"):
        make_report(plan_for_tables(), tmp_path)
    other = {**record(plan_for_tables(), "first", "base", 0.5), "dataset": "third"}
    write_runs(tmp_path, [other])
    with pytest.raises(ValueError, match="got none that belong to its plan"):
        make_report(plan_for_tables(), tmp_path)


# ---- what is committed


# The paper's table 1 once more, line by line as it is printed: mean and standard deviation for each region.
PUBLISHED = {
    ("moltox21", "molmuv", "molpcba"): """
ce          0.067 0.001  0.208 0.001  0.161 0.034  0.469 0.018  0.095 0.001  0.264 0.001
auc_sh      0.064 0.008  0.217 0.014  0.260 0.130  0.444 0.128  0.140 0.003  0.312 0.003
auc_m       0.066 0.009  0.209 0.01   0.114 0.079  0.433 0.053  0.142 0.009  0.313 0.003
mb          0.067 0.015  0.215 0.023  0.173 0.153  0.426 0.118  0.095 0.002  0.262 0.003
aw_poly     0.064 0.01   0.206 0.025  0.172 0.144  0.393 0.123  0.110 0.001  0.281 0.002
sota_s      0.068 0.018  0.23  0.021  0.327 0.164  0.526 0.122  0.143 0.001  0.314 0.002
sonx        0.07  0.035  0.252 0.025  0.347 0.175  0.575 0.122  0.158 0.006  0.335 0.006
""",
    ("musk2", "fox"): """
auc_m_att   0.675 0.1    0.783 0.067  0.867 0.036  0.032 0.03   0.253 0.098  0.444 0.118
midam_smx   0.525 0.2    0.667 0.149  0.8   0.097  0.048 0.059  0.265 0.119  0.449 0.113
midam_att   0.6   0.215  0.717 0.135  0.819 0.092  0.016 0.032  0.249 0.125  0.509 0.065
sota_s_att  0.6   0.267  0.683 0.178  0.819 0.097  0.024 0.032  0.278 0.059  0.477 0.046
sont_att    0.7   0.1    0.8   0.067  0.867 0.036  0.12  0.131  0.343 0.176  0.578 0.119
""",
    ("colon", "lung"): """
auc_m_att   0.576 0.1    0.739 0.061  0.803 0.038  0.32  0.181  0.609 0.113  0.744 0.082
midam_smx   0.646 0.083  0.787 0.04   0.863 0.026  0.43  0.195  0.68  0.128  0.824 0.055
midam_att   0.548 0.253  0.738 0.149  0.826 0.102  0.544 0.261  0.716 0.189  0.815 0.129
sota_s_att  0.772 0.124  0.862 0.073  0.911 0.045  0.539 0.153  0.745 0.077  0.841 0.049
sont_att    0.8   0.166  0.875 0.099  0.916 0.065  0.639 0.137  0.779 0.041  0.865 0.028
""",
}


@pytest.mark.parametrize(("name", "names"), list(zip(EXPERIMENTS, PUBLISHED, strict=True)))
def test_published_numbers_are_those_of_the_paper(name, names):
    plan = load_experiment(name)
    wanted = [(0.6, 0.4), (0.5, 0.5)] if name == "molecules" else [(0.5, 0.5), (0.3, 0.7), (0.1, 0.9)]
    assert list(plan.regions) == wanted
    expected = {dataset: {} for dataset in names}
    for line in PUBLISHED[names].strip().splitlines():
        method, *words = line.split()
        numbers = [float(word) for word in words]
        pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
        across = len(pairs) // len(names)
        for number, dataset in enumerate(names):
            expected[dataset][method] = tuple(pairs[number * across : (number + 1) * across])
    found = {key: entry.published for key, entry in plan.datasets.items() if entry.published is not None}
    assert found == expected
