"""Several processes give what one gives."""

from __future__ import annotations

import distributed_runs as runs
import pytest
import torch
import torch.multiprocessing

from moreauc.metrics import tpauc_score

WORLDS = (2, 3)
NAMES = [case.name for case in runs.CASES]
EXACT = {"rtol": 1e-9, "atol": 1e-9}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Everything of 2 and of 3 processes: a list of what each process found, by their number."""
    folder = tmp_path_factory.mktemp("distributed")
    torch.set_num_threads(1)
    runs.save_half(folder, None)
    found = {}
    for world in WORLDS:
        torch.multiprocessing.spawn(runs.work, (world, str(folder)), nprocs=world)
        found[world] = [torch.load(folder / f"{world}-{rank}.pt", weights_only=False) for rank in range(world)]
    found["folder"] = folder
    return found


@pytest.fixture(scope="module")
def alone():
    """The runs in one process."""
    torch.set_num_threads(1)
    return {case.name: runs.run_case(case, runs.ALONE) for case in runs.CASES}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_run_of_several_processes_is_that_of_one(results, alone, name, world):
    expected = alone[name]["steps"]
    assert len(expected) == runs.STEPS
    assert any(not torch.equal(step["loss"], expected[0]["loss"]) for step in expected)
    for rank in range(world):
        found = results[world][rank]["cases"][name]["steps"]
        for step, (one, several) in enumerate(zip(expected, found, strict=True)):
            assert one.keys() == several.keys()
            for key in one:
                where = f"{key} of process {rank} after step {step}"
                torch.testing.assert_close(several[key], one[key], **EXACT, msg=lambda text, w=where: f"{w}: {text}")


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", NAMES)
def test_state_and_value_are_the_same_bits_in_all_processes(results, name, world):
    first, *others = (found["cases"][name]["steps"] for found in results[world])
    for other in others:
        for one, two in zip(first, other, strict=True):
            assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("world", WORLDS)
def test_parts_were_uneven_and_at_times_without_positives_or_empty(results, alone, world):
    for case in runs.CASES:
        parts = [found["cases"][case.name] for found in results[world]]
        sizes = list(zip(*(part["sizes"] for part in parts), strict=True))
        assert [sum(step) for step in sizes] == alone[case.name]["sizes"]
        if case.deal == "rows":
            assert any(len(set(step)) > 1 for step in sizes)
        if case.kind in ("tpauc", "bags") and (world > 2 or case.deal == "rows"):
            assert any(0 in part["positives"] for part in parts)
    name = next(case.name for case in runs.CASES if case.kind == "groups" and case.deal == "groups")
    assert any(0 in found["cases"][name]["sizes"] for found in results[world])
