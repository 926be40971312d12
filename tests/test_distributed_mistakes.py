"""Mistakes with several processes are errors in all of them; sharded and compiled models do what others do."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import distributed_mistakes as runs
import pytest
import torch
from processes import run_processes

from moreauc import PreviousIterate
from moreauc.distributed import DistributedCriterion, gather_scores
from moreauc.distributed.criterion import _repeatable

EXACT = {"rtol": 1e-9, "atol": 1e-9}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What two processes found."""
    folder = tmp_path_factory.mktemp("mistakes")
    run_processes(runs.work, 2, folder)
    assert not (folder / "never").exists()
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


def test_random_numbers_differ_and_the_first_process_has_those_of_one(results):
    first, second = (found["masks"] for found in results)
    assert torch.equal(first, torch.Generator().manual_seed(5).get_state())
    draws = [torch.rand(8, generator=torch.Generator().set_state(state)) for state in (first, second)]
    assert not torch.equal(*draws)


def test_batch_normalisation_ends_and_is_judged_with_the_statistics_of_the_first_process(results):
    first, second = (found["normalised"] for found in results)
    assert len(first["scores"]) == 3 and first["1.running_mean 0"].count_nonzero() == 6
    assert first.keys() == second.keys() and len(first) == 7
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_fit_of_sharded_models_is_that_of_one_process(results):
    expected = runs.fit_sharded(None)
    assert len(expected["scores"]) == 4
    for found in (process["fit sharded"] for process in results):
        assert found["scores"] == pytest.approx(expected["scores"]) and found["best"] == expected["best"]
        torch.testing.assert_close(found["weights"], expected["weights"], **EXACT)


def test_states_of_shards_are_whole_and_can_be_put_back(results):
    first, second = (found["states of shards"] for found in results)
    for name in ("previous", "proximal", "weights True"):
        torch.testing.assert_close(first[name], second[name], rtol=0, atol=0)
    for name, value in first["weights False"].items():
        assert torch.equal(first["weights True"][name], value)
    one = runs.network()
    previous = PreviousIterate(one, torch.optim.SGD(one.parameters(), lr=0.1))
    previous.load_state_dict(first["previous"])
    one.load_state_dict(first["previous"]["weights"])
    before = one(runs.X).detach()
    torch.nn.init.zeros_(one[2].weight)
    assert torch.equal(previous(runs.X), before) and not torch.equal(one(runs.X), before)
    assert [tuple(value.shape) for value in first["proximal"]["average"]] == [(6, 4), (6,), (1, 6), (1,)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("into one", r"PreviousIterate: state\['0.weight'\] must be a whole tensor, as the parameter is, got a shard"),
        ("proximal into one", r"ProximalPoint: state\['reference'\]\[0\] must be a whole tensor, .* got a shard"),
    ],
)
def test_shards_are_refused_by_models_of_one_process(results, name, message):
    for found in results:
        assert re.match(message, found["states of shards"][name])


def test_compiled_models_are_those_inside(results):
    for found in (process["compiled"] for process in results):
        assert found["names compiled"] == found["names plain"] == ["0.weight", "0.bias", *found["names plain"][2:]]
        torch.testing.assert_close(found["compiled"], found["plain"], **EXACT)
        assert len(found["compiled"]["scores"]) == runs.ROWS


def test_compiled_steps_leave_the_loss_out(results):
    for found in (process["compiled loss"] for process in results):
        assert found["plain"][1].count_nonzero() > 0
        assert all(torch.equal(*pair) for pair in zip(found["plain"], found["compiled"], strict=True))


def test_the_compiler_is_not_loaded_with_the_library():
    code = "import sys, moreauc.train; sys.exit('torch._dynamo' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bare", "fit: model must be a DistributedDataParallel or fully_shard one where criterion is over 2 processes"),
        ("sharded", "fit: criterion must be a .*DistributedCriterion where model is a fully_shard one, got TPAUCLoss"),
        ("compiled", "fit: criterion must be a .* where model is a DistributedDataParallel one, got TPAUCLoss"),
        ("other group", r"fit: criterion must be over the processes of model, \[\d\] by Distr.*, got \[0, 1\]"),
        ("loss of one", r"fit: criterion must be over the processes of model, \[0, 1\] by Distr.*, got \[\d\]"),
        ("hybrid", "no error"),
        ("older", "fit: criterion must be a .* where model is a FullyShardedDataParallel one, got TPAUCLoss"),
        ("step", "train_step: criterion must be a .* where model is a DistributedDataParallel one, got TPAUCLoss"),
        ("uneven", "predict_scores: batches must be as many in all processes, .* got fewer in process 0"),
    ],
)
def test_models_that_do_not_go_with_the_loss_are_refused(results, name, message):
    for found in results:
        assert re.match(message, found["wrong models"][name]), found["wrong models"][name]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("known", r"fit: train must have as many batches in all processes, got \[6, 1\]"),
        ("warm start", r"fit: train must have as many batches in all processes, got \[6, 1\]"),
        ("validation", r"fit: validation must have as many batches in all processes, got \[3, 2\]"),
        ("unknown", "all processes must do the same, .* got a call of .* in process 0 and the end of an epoch in pro"),
        ("validated", "all processes must do the same, .* got a call of .* in process 0 and the validation score in"),
    ],
)
def test_parts_of_different_lengths_are_an_error_in_all_processes(results, name, message):
    for found in results:
        assert re.search(message, found["wrong lengths"][name]), found["wrong lengths"][name]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("setting", r"got tau 0.3 in process 0 and 0.9 in process 1"),
        ("setting in fit", r"got tau 0.3 in process 0 and 0.9 in process 1"),
        ("mode", "got training True in process 0 and False in process 1"),
        ("state", "got table_u.values .* in process 0 and .* in process 1"),
    ],
)
def test_losses_that_come_to_differ_are_found_by_the_next_call(results, name, message):
    for found in results:
        text = found["wrong later"][name]
        assert text.startswith("DistributedCriterion: criterion must be the same in all processes, ")
        assert re.search(message, text), text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dealt", "got seed 3 in process 0 and 4 in process 1"),
        ("shards", "got seed 3 in process 0 and 4 in process 1"),
        ("plain", "got seed 3 in process 0 and 4 in process 1"),
        ("epoch", "got epoch 1 in process 0 and 0 in process 1"),
        ("size", "got num_negatives 4 in process 0 and 5 in process 1"),
        ("fit", "got seed 3 in process 0 and 4 in process 1"),
    ],
)
def test_samplers_that_differ_are_found_by_name_at_the_first_exchange(results, name, message):
    owner = "fit" if name == "fit" else "DistributedCriterion"
    for found in results:
        text = found["wrong samplers"][name]
        expected = f"{owner}: samplers over the same rows must draw the same in all processes, {message}; "
        assert text.startswith(expected), text


@pytest.mark.parametrize("name", ["own rows", "same"])
def test_samplers_over_other_rows_may_differ(results, name):
    assert [found["wrong samplers"][name] for found in results] == ["no error"] * 2


def test_losses_that_were_made_equal_again_go_on(results):
    first, second = (found["wrong later"]["values"] for found in results)
    assert first == second and first[0] != first[1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no rows", "predict_scores: batches must not be empty, got no batch"),
        ("no numbers", r"predict_scores: batches must be \(inputs, labels, index\), got 2"),
        ("sparse", "DistributedCriterion: scores must be a dense tensor, got one of layout torch.sparse_coo"),
        ("other calls", "must do the same, .* got a call of Distr.* in process 0 and a call of gather_scores with"),
        ("too many", "test: at most 16 tensors must be exchanged at once, got 17"),
    ],
)
def test_wrong_parts_are_an_error_in_all_processes(results, name, message):
    for found in results:
        assert re.search(message, found["wrong parts"][name]), found["wrong parts"][name]


def test_a_process_without_batches_gets_the_scores_of_the_others(results):
    for found in (process["wrong parts"] for process in results):
        torch.testing.assert_close(found["rows of one"][0], runs.network()(runs.X).squeeze(1).detach())
        assert torch.equal(found["rows of one"][1], runs.LABELS.float())
        assert found["columns of one"][0].shape == (runs.ROWS, 3)
        assert torch.equal(found["fine"], runs.X[:, 0])


def test_tensors_of_all_types_can_be_given(results):
    first, second = (found["tensors of first"] for found in results)
    assert len(first) == 7 and all(value.count_nonzero() or not len(value) for value in first if value.ndim)
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))


def test_many_exchanges_share_one_group_for_numbers(results):
    assert [found["side groups"] for found in results] == [1, 1]


def test_copies_talk_with_the_same_processes(results):
    for found in (process["copies"] for process in results):
        assert found["values"] == [found["values"][0]] * 2
        assert (
            found["pickle"] == "DistributedCriterion over a group of processes cannot be pickled; save its state_dict()"
        )


@pytest.mark.parametrize("group", [2, "gloo", True, [0, 1], torch.distributed])
def test_groups_that_are_none_are_refused_in_one_process_too(group):
    message = "group must be a torch.distributed.ProcessGroup or None, got "
    with pytest.raises(ValueError, match=f"^DistributedCriterion: {message}{re.escape(repr(group))}"):
        DistributedCriterion(runs.plain_loss(0.0), group)
    with pytest.raises(ValueError, match=f"^gather_scores: {message}"):
        gather_scores(torch.zeros(2), torch.tensor([0, 1]), torch.arange(2), group=group)


def test_a_strict_deterministic_mode_stays_strict():
    torch.use_deterministic_algorithms(True)
    try:
        with _repeatable(torch.device("meta")):
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
