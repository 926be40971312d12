"""The benchmark programs at tiny sizes, without LibAUC: they run and leave the report that the docs read."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from sklearn.datasets import make_classification

from experiments.data.smiles import example_smiles
from experiments.machine import deterministic
from moreauc.criteria import CrossEntropyLoss

FOLDER = Path(__file__).parents[1] / "benchmarks"
Run = Callable[..., dict[str, Any]]
HEAD = {"title", "command", "versions", "date", "device"}


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def program(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """A function that runs a program in this process and returns its report."""

    def called(file: str, *options: str) -> dict[str, Any]:
        out = tmp_path / "report.json"
        monkeypatch.setattr(sys, "argv", [str(FOLDER / file), *options, "--out", str(out)])
        with deterministic():  # puts the settings of torch back at its end
            program(file.removesuffix(".py")).main()
        text = out.read_text(encoding="utf-8")
        report: dict[str, Any] = json.loads(text)
        assert report.keys() >= HEAD and report["command"].startswith(f"python benchmarks/{file} ")
        assert str(tmp_path) not in text
        return report

    return called


def test_pairs_report_has_time_and_memory_of_each_contestant_or_its_error(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, once = program("bench_pairs"), {}
    measured = bench.memory

    def memory(name: str, *parts: Any) -> dict[str, Any]:
        """Start one process for all that need no pair matrix."""
        matrix = name == "kernel, pair matrix"
        if matrix not in once:
            once[matrix] = measured(name, *parts)
        return dict(once[matrix])

    monkeypatch.setattr(bench, "memory", memory)
    options = ("--sizes", "60000", "--rounds", "3", "--memory-gib", "12", "--without-peer", "--without-crossover")
    report = run("bench_pairs.py", *options, "--seconds", "0")
    rows = {row["contestant"]: row for row in report["sizes"]}
    assert set(rows) == {"TPAUCLoss", "kernel", "kernel, smooth ramp", "kernel, pair matrix"}
    assert "allocate memory" in rows.pop("kernel, pair matrix")["error"]
    for row in rows.values():
        low, high = row["quartiles"]
        assert 0 < low <= row["microseconds"] <= high
        assert row["rounds"] == 3
        assert row["process_mib"] > row["growth_mib"]
        assert 1 < row["growth_mib"] < 100  # far below the 3433 of one matrix
    assert "--without-peer --without-crossover" in report["command"]


def test_metrics_report_has_ratios_and_edges(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--number", "400", "--rounds", "3", "--seconds", "0", "--without-peer")
    monkeypatch.setattr(program("bench_metrics"), "REGIONS", [(0.5, 0.5)])
    report = run("bench_metrics.py", *options)
    assert {(row["share"], row["levels"]) for row in report["times"]} == {
        (share, levels) for share in (0.01, 0.1, 0.5) for levels in (None, 64, 1)
    }
    for row in report["times"]:
        assert row["sklearn roc_auc_score / tpauc_score"]["median"] > 0
        assert 0 <= row["value"] <= 1
    for row in report["edges"]:
        assert row["tpauc_score"] == row["pair definition"], row["case"]


def test_linear_reports_have_quality_and_time_beside_logistic_regression(run: Run, monkeypatch: Any) -> None:
    X, y = make_classification(300, 4, weights=[0.8], random_state=0)
    monkeypatch.setattr(program("bench_linear"), "load", lambda name: (X, y))
    cells = run("bench_linear.py", "--part", "quality", "--tables", "landsat,Pima", "--seeds", "1")["cells"]
    assert [cell["half"] for cell in cells] == ["choosing"] * 3 + ["confirming"] * 3
    assert all(0 <= cell[name] <= 1 for cell in cells for name in ("LR", "LR, C tuned", "TPAUCLinear"))
    (row,) = run("bench_linear.py", "--part", "time", "--sizes", "200", "--rounds", "1")["times"]
    assert row["rows"] == 200 and row["TPAUCLinear / LR"] > 0


def test_fingerprints_are_compared_on_other_scaffolds(run: Run, tmp_path: Path) -> None:
    smiles = example_smiles()[::11]
    frame = pd.DataFrame({"smiles": [*smiles, "C1CC"], "active": [*("n" in text for text in smiles), True]})
    frame.astype({"active": int}).to_csv(tmp_path / "assay.csv", index=False)
    options = ("--part", "defaults", "--data", str(tmp_path / "assay.csv"), "--targets", "active", "--seeds", "1")
    rows = run("bench_screening.py", *options)["rows"]
    assert [(row["kind"], row["size"]) for row in rows][1:3] == [("count", 2048), ("bit", 4096)]
    assert all(0 < row["tpauc"] <= 1 and row["target"] == "active" for row in rows)


def test_a_library_repeats_the_molecules_of_an_assay(tmp_path: Path) -> None:
    bench = program("bench_screening")
    (tmp_path / "assay.csv").write_text("smiles,active\nCCO,1\nCCN,0\n", encoding="utf-8")
    bench.write_library(tmp_path / "assay.csv", 5, tmp_path / "library.csv")
    assert (tmp_path / "library.csv").read_text(encoding="utf-8").split() == ["smiles", *("CCO", "CCN") * 2, "CCO"]
    assert min(bench.alone(tmp_path / "library.csv", 2)) > 0
    found = bench.measured("-c", "import time; time.sleep(0.2); print(len(bytes(50_000_000)))")
    assert found["peak memory in MB"] > 50 and found["seconds"] >= 0.2


def test_the_boosting_report_has_a_round_beside_that_of_lightgbm(run: Run) -> None:
    pytest.importorskip("lightgbm")
    (row,) = run("bench_boosting.py", "--sizes", "300", "--rounds", "2", "--turns", "1")["times"]
    assert row["rows"] == 300 and row["tpauc_objective / binary"] > 0 and row["seconds"]["gradient"] > 0


def test_the_choice_of_an_epoch_is_compared_with_others(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOREAUC_DATA", raising=False)
    report = run("epoch_choice.py", "--seeds", "1", "--epochs", "2")
    assert [row["table"] for row in report["tables"]] == ["breast_cancer", "digits, 9"]
    assert all(0 <= row[rule]["mean"] <= 1 for row in report["tables"] for rule in ("earliest", "latest", "gap"))


def test_step_report_has_a_ratio_for_each_variant_and_width(run: Run) -> None:
    report = run("bench_tpauc_step.py", "--rounds", "2", "--steps", "1")
    floors = ("cross entropy + forward without gradient", "pair matrix written directly")
    for part in ("small: 64-64-64-1", "medium: 64-256-256-256-1", "large: 64-512-512-512-1"):
        for name in (*floors, "TPAUCLoss, gamma 0", "TPAUCLoss, gamma 0.1"):
            ratio = report[part][f"{name} / cross entropy"]
            assert ratio["quartiles"][0] <= ratio["median"] <= ratio["quartiles"][1]
    assert len(report["targets"]) == 7
    assert all(row["met"] == (row["measured"] <= float(row["target"].split()[-1])) for row in report["targets"])


def test_gallery_report_has_runs_by_seed_beside_the_plain_mean(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program("bench_gallery"), "NAMES", ["p_norm_push", "listwise"])
    rows = run("bench_gallery.py", "--seeds", "2", "--without-peer")["runs"]
    assert [row["example"] for row in rows] == ["p_norm_push", "listwise"]
    assert all(len(row[part]) == 2 for row in rows for part in ("before", "after"))
    assert rows[0]["plain"] == {"p": 1} and rows[0]["after, plain"] != rows[0]["after"] and "plain" not in rows[1]


def test_losses_of_the_gallery_are_compared_with_gradients_of_a_peer() -> None:
    bench = program("bench_gallery")

    class Other:
        """Answers with our gradient, times the factor that is expected, and with our times."""

        def ask(self, do: str, *, name: str, size: int, **arguments: Any) -> dict[str, Any]:
            step, leaf = bench.our_step(name, size, 0.5)
            if do == "gallery":
                return {"seconds": bench.repeat(step, arguments["times"])}
            value, factor = step().item(), bench.COMPARED[name].factor or 2.0
            return {"value": value, "gradient": (factor * leaf.grad).flatten().tolist()}

    options = argparse.Namespace(rounds=3, seconds=0.0)
    for name, compared in bench.COMPARED.items():
        row = bench.first_step(name, 6, Other())
        gap = row["weight 1"]["gradient gap"]
        assert gap < 1e-6 if compared.factor else gap == pytest.approx(1.0)
        assert row["weight 0.9"]["value"] == row["weight 0.9"]["LibAUC value"]
        assert row["weight 0.9"]["cosine"] == pytest.approx(1.0)
        times = bench.timed(name, 6, Other(), options)
        assert times["ratio"] > 0 and ("sum of the labels" in times) == (name in bench.PAIRS)


def test_the_page_for_users_of_libauc_is_what_was_run_beside_it() -> None:
    page = program("libauc_page")
    report = json.loads((FOLDER / "reports" / "libauc.json").read_text(encoding="utf-8"))
    text = page.PAGE.read_text(encoding="utf-8")
    for name in [name for part in report["names"].values() for name in part]:
        assert re.search(rf"\b{name}\b", text), name
    for section, row in zip(page.sections(), report["sections"], strict=True):
        assert (section.title, section.libauc) == (row["section"], row["code"]), "run benchmarks/libauc_page.py again"
        own = page.run_code(section.ours)
        if "found" in row:
            assert own["found"] == pytest.approx(row["found"], rel=1e-4)
            if section.title.startswith("Sixty steps"):
                assert row["found"] == pytest.approx(row["LibAUC found"], rel=1e-5)
        else:
            assert own["gradient"] == pytest.approx(row["as on the page"]["gradient"], rel=1e-3, abs=1e-5)
            one = row["averaging weight 1"]
            scale = 6.25 if "MIDAM" in section.title or "PESG" in section.title else 1.0
            assert one["cosine"] == pytest.approx(1.0) and one["norm over ours"] == pytest.approx(scale, rel=1e-4)


def test_code_for_libauc_is_compared_with_ours() -> None:
    page, begin = program("libauc_page"), "from torch import nn\nmodel = nn.Linear(1, 1, bias=False)\nloss = 0.9 * "
    three, two = (f"{begin}{factor} * model.weight.sum()\nloss.backward()" for factor in (3, 2))
    section = page.Section("a title", three, two)
    row = page.compare(section, SimpleNamespace(ask=lambda do, code: getattr(page, do)(code)))
    for name, weight in (("as on the page", 0.9), ("averaging weight 1", 1.0)):
        part = row[name]
        assert part["gradient"][0] == pytest.approx(2 * weight) and part["norm over ours"] == pytest.approx(1.5)
        assert part["cosine"] == pytest.approx(1.0)
    with pytest.raises(RuntimeError, match="a title: no such loss"):
        page.compare(section, SimpleNamespace(ask=lambda do, code: {"error": "no such loss"}))


def test_targets_of_pairs_compare_with_what_was_measured() -> None:
    rows = [
        {"per class": 64, "contestant": "tpAUC_CVaR_loss", "times TPAUCLoss": 0.9},
        {"per class": 8192, "contestant": "tpAUC_CVaR_loss", "times TPAUCLoss": 900.0},
        {"per class": 10**6, "contestant": "TPAUCLoss", "microseconds": 4e6, "growth_mib": 100.0},
    ]
    assert [row["met"] for row in program("bench_pairs").targets(rows)] == [False, True, False, True]


def test_pair_definition_of_the_metrics_report() -> None:
    by_pairs = program("bench_metrics").by_pairs
    assert by_pairs([1, 1, 0, 0], [0.9, 0.3, 0.4, 0.3], 0.5, 1.0) == 0.25
    assert math.isnan(by_pairs([1, 0], [0.9, 0.3], 0.5, 1.0))
    assert by_pairs([1] * 10 + [0], [0.2] + [0.9] * 9 + [0.5], 0.9, 1.0) == 0.0


def test_the_peer_answers_over_its_pipe_and_reports_failures() -> None:
    peer = program("peer")
    with peer.Peer(Path(sys.executable), memory_gib=64.0) as other:
        answer = other.ask("versions")
        assert "libauc" in answer or answer["error"].startswith("ModuleNotFoundError")
        assert other.ask("metric_of", labels=[1, 0])["error"].startswith("TypeError")
        assert "error" in other.ask("nonsense")


def test_contestants_see_the_same_data() -> None:
    peer = program("peer")
    scores, labels, index = peer.loss_data(16)
    assert scores.requires_grad and labels.sum() == 16 and index.tolist() == list(range(32))
    assert peer.loss_data(16)[0].tolist() == scores.tolist()
    labels, values = peer.metric_data(1000, 0.1, 64)
    assert labels.sum() == 100 and len(set(values.tolist())) < 80


def test_bags_report_has_memory_time_and_agreement(run: Run) -> None:
    report = run("bench_bags.py", "--sizes", "300", "--steps", "2", "--instances", "8")
    assert [row["instances per bag"] for row in report["sizes"]] == [300]
    for row in report["sizes"]:
        assert row["training"]["process_mib"] > row["training"]["growth_mib"] >= 0
        assert row["microseconds per step"]["microseconds"] > 0
    assert {row["pooling"] for row in report["scores"]} == {"mean", "smoothed_max", "attention"}
    assert len(report["targets"]) == 3
    assert all(row["met"] == (row["measured"] <= float(row["target"].split()[-1])) for row in report["targets"])
    assert report["targets"][2]["met"]


def test_models_report_has_epochs_copies_and_processes(run: Run) -> None:
    report = run("bench_models.py", "--quick", "--processes", "1,2")
    assert report["threads"] == 1 and "torch" in report["versions"]
    assert report["CUDA_MPS_PIPE_DIRECTORY is set"] == ("CUDA_MPS_PIPE_DIRECTORY" in os.environ)
    sizes = report["sizes"]
    assert 6 < sizes["atoms of a molecule, mean"] < 27 and 1.9 < sizes["edges of an atom, mean"] < 2.3
    plain = {"CE", "CE + forward without gradient"}
    sonx = {"SONX, gamma 0", "SONX, gamma 0.1"}
    on_cpu = {f"{name}, loss on the CPU" for name in {"CE"} | sonx}
    # 20 and 100 rows in batches of 4 and 12; 8 and 16 bags in batches of 2 and 2
    check_epochs(report["GIN"], steps=9, variants=plain | sonx | on_cpu)
    check_epochs(report["ResNet20"], steps=8, variants=plain | {"SONT, gamma 0", "SONT, gamma 0.1"})
    copies = report["side by side"]["copies"]
    assert [row["copies"] for row in copies] == [1, 2]
    for row in copies:
        for way in ("side by side", "one after the other"):
            whole, rate = row[way]["milliseconds for a step of all"], row[way]["steps of models per second"]
            check_spread(whole)
            assert rate["median"] == pytest.approx(1e3 * row["copies"] / whole["median"], rel=1e-3)
        check_spread(row["one after the other / side by side"])
    rows = report["processes"]["processes"]
    assert [row["processes"] for row in rows] == [1, 2] and report["processes"]["threads of each"] == 1
    for row in rows:
        check_spread(row["steps of models per second, each process"])
        check_spread(row["steps of models per second, all"])
    assert rows[0]["times 1"] == {"median": 1.0, "quartiles": [1.0, 1.0]}


def test_tissue_report_has_processes_with_and_without_a_graph(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program("bench_tissue"), "processes", lambda *parts: {1: [[2.0], [3.0]]})
    report = run("bench_tissue.py", "--quick", "--processes", "1")
    assert [(row["gamma"], row["graphed"]) for row in report["rows"]] == [(0.1, False), (0.1, True)]
    for row in report["rows"]:
        assert [entry["processes"] for entry in row["processes"]] == [1]
        assert row["processes"][0]["steps of models per second, all"]["median"] == 2.5


def test_a_step_of_the_benchmark_can_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, recorded = program("model_steps"), []
    monkeypatch.setattr(steps, "GraphedStep", lambda *parts, previous: recorded.append)
    for graphed in (False, True):
        steps.resnet_step(steps.QUICK, 0.1, graphed, torch.device("cpu"))()
    assert [batch[0].instances.shape[0] for batch in recorded] == [8]


def check_spread(found: dict[str, Any]) -> None:
    low, high = found["quartiles"]
    assert 0 < low <= found["median"] <= high


def check_epochs(part: dict[str, Any], *, steps: int, variants: set[str]) -> None:
    assert part["steps of an epoch"] == steps and part["rounds"] == 3
    check_spread(part["making a batch"]["milliseconds"])
    rows = {row["variant"]: row for row in part["variants"]}
    assert set(rows) == variants
    for row in rows.values():
        check_spread(row["times CE"])
        step, epoch = row["milliseconds per step"], row["seconds per epoch"]
        check_spread(step)
        assert epoch["median"] == pytest.approx(1e-3 * steps * step["median"], rel=1e-3)
    assert rows["CE"]["times CE"]["median"] == 1.0


def test_without_rdkit_models_are_timed_on_random_graphs_of_the_same_size(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = program("model_steps")
    for name in ("rdkit", "rdkit.Chem", "rdkit.rdBase"):  # parts that another test has imported, too
        monkeypatch.setitem(sys.modules, name, None)
    kind, graphs = steps.molecule_graphs(steps.QUICK)
    assert kind == "random graphs"
    assert (len(graphs), int(graphs.labels.sum())) == (120, 20)
    assert graphs.nodes.min() >= 18 and graphs.nodes.max() <= 25
    assert graphs.links.sum() / graphs.nodes.sum() == pytest.approx(2.2, abs=0.03)
    for row in range(5):
        edges = graphs.batch([row])["edges"].T.tolist()
        pairs = {(source, target) for source, target in edges}
        assert len(pairs) == len(edges) and all(source != target for source, target in pairs)
        assert pairs == {(target, source) for source, target in pairs}  # each bond both ways
        reached = {0}
        for _ in range(25):
            reached |= {target for source, target in pairs if source in reached}
        assert reached == set(range(int(graphs.nodes[row])))


def test_rates_of_processes_are_added_in_each_window() -> None:
    options = argparse.Namespace(processes=[1, 2], windows=2, window=0.5)
    rates = {1: [[10.0], [20.0]], 2: [[9.0, 11.0], [15.0, 25.0]]}
    first, second = program("bench_models").process_rows(rates, options)["processes"]
    assert first["steps of models per second, all"]["median"] == 15.0
    assert second["steps of models per second, all"] == {"median": 30.0, "quartiles": [25.0, 35.0]}
    assert second["steps of models per second, each process"]["median"] == 13.0
    assert second["times 1"]["median"] == 2.0


def test_the_floor_of_a_correction_is_one_more_forward() -> None:
    steps = program("model_steps")
    loader = steps.graph_loader(steps.random_graphs(40), steps.QUICK)
    batches = list(loader)[:2]
    calls = {}
    for one_more in (False, True):
        model, seen = steps.gin(steps.QUICK, torch.device("cpu")), []
        model.dropout.register_forward_hook(lambda *_, seen=seen: seen.append(torch.is_grad_enabled()))
        step = steps.training_step(model, CrossEntropyLoss(loader.labels), batches, one_more=one_more)
        step()
        calls[one_more] = seen
    assert calls == {False: 5 * [True], True: 5 * [False] + 5 * [True]}  # five layers


def test_models_are_timed_with_the_settings_of_the_experiments() -> None:
    memory: Any = torch.utils.deterministic

    def settings() -> tuple[bool, bool, str]:
        precision = torch.get_float32_matmul_precision()
        return torch.are_deterministic_algorithms_enabled(), memory.fill_uninitialized_memory, precision

    with deterministic():  # puts everything back at its end
        wanted = settings()
        torch.use_deterministic_algorithms(False)
        memory.fill_uninitialized_memory = True
        torch.set_float32_matmul_precision("highest")
        program("model_steps").set_torch(threads=torch.get_num_threads())
        assert settings() == wanted


def test_report_of_whole_steps_has_each_loss_of_each_model(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    step = program("step")
    measured = step.process_memory(1, "TPAUC, gamma 0", SimpleNamespace(quick=True))
    monkeypatch.setattr(step, "process_memory", lambda *parts: measured)  # one process is enough
    report = run("step.py", "--quick", "--seconds", "1", "--techniques", "eager")
    rows = {(row["case"], row["loss"]): row for row in report["rows"]}
    losses = program("step_variants").LOSSES
    assert {case for case, _ in rows} == {"ResNet20, batch 16", "MLP, batch 16", "GIN, batch 16"}
    assert len(rows) == 3 * len(losses)
    for row in rows.values():
        assert "error" not in row
        check_spread(row["milliseconds"])
        check_spread(row["times CE by the same technique"])
        assert row["operations"] > 50 and row["peak MiB"] > 0


def test_a_variant_that_fails_is_reported_and_its_targets_are_left_out() -> None:
    step = program("step")
    _, error = step.attempt(lambda: 1 / 0)
    assert error.startswith("ZeroDivisionError at test_benchmarks.py:")
    ratio = {"median": 1.01, "quartiles": [1.0, 1.02]}
    rows = [
        {"case": "ResNet20, batch 1024", "loss": "TPAUC, gamma 0", "technique": "eager", "error": error},
        {
            "case": "ResNet20, batch 1024",
            "loss": "TPAUC, gamma 0",
            "technique": "graphed",
            "times CE by the same technique": ratio,
            "times eager CE": ratio,
        },
    ]
    (target,) = step.targets(rows, "cuda")
    assert not step.targets(rows, "cpu")
    assert target["met"] and "graphed, at most 1.02" in target["target"] and target["floor of a correction"] is None


def test_steps_that_compile_come_last_with_a_base_for_their_ratios() -> None:
    step = program("step")
    plans = step.planned(4, ["eager", "compiled"])
    assert [number for number, *_ in plans] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert all(base == [("eager", "CE")] for _, kinds, base in plans if kinds[0][0] == "compiled")


def test_a_floor_beside_the_forward_is_there_for_graphs_only() -> None:
    step = program("step")
    kinds = [kind for _, early, _ in step.planned(1, ["eager", "graphed", "compiled and graphed"]) for kind in early]
    assert [technique for technique, loss in kinds if loss == step.BESIDE] == ["graphed", "compiled and graphed"]
    assert [technique for technique, loss in kinds if loss == step.FLOOR] == [
        "eager",
        "graphed",
        "compiled and graphed",
    ]


def test_launches_that_were_not_counted_are_named() -> None:
    step, device = program("step"), torch.device("cpu")
    kinds = [("graphed", "CE"), ("eager", "CE")]
    for changing, reasons in ((True, ["the shapes of the inputs change", "no time"]), (False, ["no time", "no time"])):
        rows = step.launched(SimpleNamespace(name="some", changing=changing), kinds, device, step.Clock(0.0))
        assert all(reason in row["error"] for row, reason in zip(rows, reasons, strict=True))


def test_memory_of_a_model_that_was_there_is_counted() -> None:
    variants = program("step_variants")
    model = torch.nn.Linear(1024, 256, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trained = variants.Trained(model, optimizer, None)
    assert variants._mebibytes(trained) == 1.0
    model(torch.ones(1, 1024)).sum().backward()
    optimizer.step()
    assert variants._mebibytes(trained) == 3.0  # with gradient and momentum
