"""Runs of several processes that are saved, cut and resumed."""

from __future__ import annotations

import checkpoint_runs as runs
import pytest
import torch
from processes import run_processes

WORLDS = (2, 3)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributed")
    torch.set_num_threads(1)
    for world in WORLDS:
        runs.cut(folder / f"half-1-for-{world}", 1, 2)
    found = {}
    for world in WORLDS:
        run_processes(runs.work, world, folder)
        found[world] = [torch.load(folder / f"{world}-{rank}.pt", weights_only=False) for rank in range(world)]
    found["folder"] = folder
    return found


@pytest.fixture(scope="module")
def alone():
    torch.set_num_threads(1)
    return runs.train(None)


def flat(run):
    return {f"{kind} {name}": value for kind in ("model", "criterion") for name, value in run[kind].items()} | {
        "scores": run["scores"]
    }


def equal(one, two):
    one, two = flat(one), flat(two)
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def assert_close(found, expected):
    torch.testing.assert_close(flat(found), flat(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("world", "kind"), [(2, ""), (3, ""), (2, " sharded")])
def test_a_resumed_run_equals_the_uninterrupted_one(results, world, kind):
    for found in results[world]:
        assert len(found[f"whole{kind}"]["scores"]) == 2
        assert equal(found[f"cut{kind}"], found[f"whole{kind}"])
        assert equal(found[f"again{kind}"], found[f"whole{kind}"])
    first, *others = (found[f"cut{kind}"] for found in results[world])
    assert all(equal(first, other) for other in others)


def test_a_signal_to_one_process_stops_all_at_the_same_step(results):
    texts = {found["signal"] for found in results[2]}
    assert len(texts) == 1 and "stopped by SIGTERM in warm start, epoch 0, after 3 of its steps" in texts.pop()
    assert all(equal(found["signalled"], found["whole"]) for found in results[2])


@pytest.mark.parametrize("world", WORLDS)
def test_another_number_of_processes_resumes_with_the_same_batches(results, alone, world):
    sources = [name for name in results[world][0] if name.startswith("from ")]
    assert sources == {2: ["from 1"], 3: ["from 1", "from 2"]}[world]
    resumed = [found[name] for found in results[world] for name in sources]
    for run in (*resumed, runs.train(results["folder"] / f"half-{world}-for-1")):
        assert_close(run, alone)


def test_sharded_models_are_resumed_by_another_number_of_processes(results):
    for found in results[3]:
        assert_close(found["sharded from two"], results[2][0]["plain sharded"])


def test_the_state_of_a_sharded_model_is_that_of_torch(results):
    for found in results[2]:
        assert found["as torch"] and found["kept"]
        assert found["message"] == "checkpoint has a state that a part refuses: KeyError: 'refused'"


@pytest.mark.parametrize("world", WORLDS)
def test_what_the_first_process_refuses_all_refuse(results, world):
    first, *others = (found["refused"] for found in results[world])
    assert first[0].startswith("ValueError: fit: checkpoint must hold no checkpoints where resume is False, got ")
    assert all(found[0].startswith("CheckpointError: process 0 cannot go on") for found in others)
    for found in (first, *others):
        assert "lr_factor" in found[1] and found[1].startswith("CheckpointError")


@pytest.mark.parametrize("world", WORLDS)
def test_there_is_one_file_for_all_processes(results, world):
    kept = [name for name in results[world][0]["files"] if name.endswith(".checkpoint")]
    assert len(kept) == 2 and sorted(kept) == sorted(results[world][0]["files"])
    assert all(found["files"] == results[world][0]["files"] for found in results[world])
