"""Several processes give what one gives."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import distributed_runs as runs
import pytest
import torch
from processes import run_processes

from experiments.models.side_by_side import SideBySideLoss
from moreauc import PreviousIterate, TCCOLoss, TPAUCLoss
from moreauc.checkpoint import load_checkpoint
from moreauc.distributed import DistributedCriterion, gather_scores
from moreauc.distributed.criterion import _repeatable
from moreauc.metrics import tpauc_score

WORLDS = (2, 3)
RUNS = [(case.name, world) for world in WORLDS for case in runs.cases_of(world)]
EXACT = {"rtol": 1e-9, "atol": 1e-9}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Everything of 2 and of 3 processes: a list of what each process found, by their number."""
    folder = tmp_path_factory.mktemp("distributed")
    torch.set_num_threads(1)
    found = {}
    for world in WORLDS:
        run_processes(runs.work, world, folder)
        found[world] = [torch.load(folder / f"{world}-{rank}.pt", weights_only=False) for rank in range(world)]
    return found


@pytest.fixture(scope="module")
def alone():
    """The runs in one process."""
    torch.set_num_threads(1)
    return {case.name: runs.run_case(case, runs.ALONE) for case in runs.CASES}


@pytest.mark.parametrize(("name", "world"), RUNS)
def test_a_run_of_several_processes_is_that_of_one(results, alone, name, world):
    """Close to that of one, and to the last bit the same in all processes."""
    expected = alone[name]
    assert len(expected) == runs.STEPS and any(not torch.equal(step["loss"], expected[0]["loss"]) for step in expected)
    first, *others = (found["cases"][name] for found in results[world])
    for step, (one, several) in enumerate(zip(expected, first, strict=True)):
        assert one.keys() == several.keys()
        for key in one:
            where = f"{key} after step {step}"
            torch.testing.assert_close(several[key], one[key], **EXACT, msg=lambda text, w=where: f"{w}: {text}")
        assert all(torch.equal(several[key], other[step][key]) for other in others for key in one)


def assert_same(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for key in expected:
        torch.testing.assert_close(found[key], expected[key], **EXACT)


SAMPLERS = "samplers over the same rows must draw the same in all processes, got "
ERRORS = {  # of every process: what was done, and what its error says
    "wrong batches": {
        "nan": "TPAUCLoss: scores must be finite",
        "repeated": "TPAUCLoss: index must not repeat",
        "label": "TPAUCLoss: index must point",
        "type": "scores must be of one kind .* torch.float64 .* torch.float32 .* in process 1",
        "missing": "previous_scores must be of one kind .* None in process 1",
        "lengths": "labels must have as many rows as scores in each process",
        "strange": "scores must be a tensor, got a str",
        "unknown": "arguments must be scores, labels, index, previous_scores",
        "nothing": "scores must be given, got None",
        "empty": "TPAUCLoss: scores must have shape",
        "bag": r"MultiInstanceTPAUCLoss: bag must lie in \[0, 8\), got 8",
    },
    "wrong criteria": {
        "labels": "criterion must be the same in all processes, got labels .*checksum",
        "threshold_lr": r"got threshold_lr \(0.1, 0.1\) in process 0 and 'quantile' in process",
        "margin": "SquaredHinge.margin=1. in process 0 and SquaredHinge.margin=0.5. in process",
        "class": "got the class TPAUCLoss in process 0 and CrossEntropyLoss in process",
    },
    "refused": {
        "tensor parallel": "PreviousIterate: model must be sharded by fully_shard",
        "fsdp1": "PreviousIterate: model must be sharded by fully_shard, .* FullyShardedDataParallel",
        "not wrapped": "fit: criterion must be a moreauc.distributed.DistributedCriterion",
    },
    "states of shards": {
        "into one": r"PreviousIterate: state\['0.weight'\] must be a whole tensor",
        "proximal into one": r"ProximalPoint: state\['reference'\]\[0\] must be a whole tensor",
    },
    "wrong models": {
        "bare": "fit: model must be a DistributedDataParallel or fully_shard one",
        "sharded": "fit: criterion must be a .* where model is a fully_shard one",
        "compiled": "fit: criterion must be a .* where model is a DistributedDataParallel one",
        "other group": r"fit: criterion must be over the processes of model, \[\d\] by Distr.*, got \[0, 1\]",
        "loss of one": r"fit: criterion must be over the processes of model, \[0, 1\] by Distr.*, got \[\d\]",
        "hybrid": "no error",
        "step": "train_step: criterion must be a .* where model is a DistributedDataParallel one",
        "uneven": "predict_scores: batches must be as many in all processes, .* fewer in process 0",
    },
    "wrong lengths": {
        "known": r"fit: train must have as many batches in all processes, got \[4, 1\]",
        "validation": r"fit: validation must have as many batches in all processes, got \[3, 2\]",
        "unknown": "must do the same, .* in process 0 and the end of an epoch in process 1",
    },
    "wrong later": {
        "setting": "criterion must be the same .* got tau 0.3 in process 0 and 0.9 in process 1",
        "setting in fit": "got tau 0.3 in process 0 and 0.9 in process 1",
        "mode": "got training True in process 0 and False in process 1",
        "state": "got table_u.values .* in process 0 and .* in process 1",
    },
    "wrong samplers": {
        "dealt": f"DistributedCriterion: {SAMPLERS}seed 3 in process 0 and 4 in process 1",
        "shards": f"{SAMPLERS}seed 3",
        "plain": f"{SAMPLERS}seed 3",
        "epoch": f"{SAMPLERS}epoch 1 in process 0 and 0 in process 1",
        "fit": f"fit: {SAMPLERS}seed 3",
        "own rows": "no error",
        "same": "no error",
    },
    "wrong parts": {
        "no rows": "predict_scores: batches must not be empty",
        "no numbers": r"predict_scores: batches must be \(inputs, labels, index\), got 2",
        "sparse": "DistributedCriterion: scores must be a dense tensor",
        "other calls": "must do the same, .* a call of Distr.* in process 0 and a call of gather_scores",
        "too many": "test: at most 16 tensors",
    },
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, named in ERRORS.items() for name in named])
def test_what_is_wrong_in_one_process_is_an_error_in_all(results, kind, name):
    worlds = WORLDS if kind in results[3][0] else (2,)
    for found in (found for world in worlds for found in results[world]):
        assert re.search(ERRORS[kind][name], found[kind][name]), found[kind][name]


def test_a_wrong_batch_changes_nothing_and_names_the_process_at_fault(results):
    assert all(found["unchanged"] for world in WORLDS for found in results[world])
    assert results[3][2]["wrong batches"]["strange"].startswith("DistributedCriterion: process 1 cannot go on: ")


@pytest.mark.parametrize("world", WORLDS)
def test_evaluation_mode_and_blocks_with_an_outer_function_that_learns(results, world):
    expected, blocks = runs.evaluation(runs.ALONE), runs.blocks(runs.ALONE)
    assert all(step["scale"] != 0 for step in blocks)
    for found in results[world]:
        torch.testing.assert_close(found["evaluation"], expected, **EXACT)
        torch.testing.assert_close(found["blocks"], blocks, **EXACT)
        assert not found["evaluation"]["again"].requires_grad


@pytest.mark.parametrize("world", WORLDS)
def test_metrics_are_exact_and_count_rows_once(results, world):
    scores = runs.X @ torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64)
    expected = tpauc_score(runs.LABELS.numpy(), scores.numpy(), min_tpr=0.4, max_fpr=0.5)
    for found in (process["metrics"] for process in results[world]):
        assert found["tpauc"] == expected
        assert found["all"] == f"StreamingTPAUC(min_tpr=0.4, max_fpr=0.5): {runs.POSITIVES} positives, 32 negatives"
        assert found["own"] != found["all"]
        torch.testing.assert_close(found["scores"], scores)
        assert torch.equal(found["labels"], runs.LABELS)
        torch.testing.assert_close(found["uneven"][0], scores)
        assert torch.equal(found["uneven"][1], runs.LABELS) and torch.equal(found["uneven"][2], torch.arange(runs.ROWS))
        assert re.search(r"gather_scores: labels must have shape \(\d+,\), got \(1,\)", found["wrong"])


@pytest.mark.parametrize("world", WORLDS)
def test_fit_does_what_it_does_in_one_process(results, world):
    bags = {"epochs": 1, "warm_start_epochs": 1}
    for name, alone in (("fit", runs.run_fit(None)), ("fit bags", runs.run_fit(None, runs.FITTED_BAGS, **bags))):
        for found, weights in (process[name] for process in results[world]):
            assert_same(weights, alone[1])
            assert found["best_epoch"] == alone[0]["best_epoch"]
            for row, expected in zip(found["rows"], alone[0]["rows"], strict=True):
                assert row.pop("phase") == expected["phase"]
                assert row == pytest.approx({key: expected[key] for key in expected if key != "phase"}, rel=1e-6)
    assert all(process["patience"] == results[world][0]["patience"] for process in results[world])
    assert len(results[world][0]["patience"]["rows"]) < 12
    assert all(process["stops"] == 2 for process in results[world])


def test_a_group_of_some_of_the_processes(results):
    expected = results[2][0]["group"]
    assert len(expected) == 10
    for found in (results[3][0]["group"], results[3][2]["group"]):
        for one, two in zip(expected, found, strict=True):
            assert all(torch.equal(one[key], two[key]) for key in one)
    assert results[3][1]["group"] == "DistributedCriterion: group must hold this process, number 1, got one without it"


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    run_processes(runs.work_on_gpu, 2, folder)
    return [torch.load(folder / f"gpu-{rank}.pt", weights_only=False) for rank in range(2)]


if torch.cuda.is_available():

    @pytest.mark.parametrize("case", runs.MAIN, ids=lambda case: case.name)
    def test_processes_that_share_a_gpu(on_gpu, case):
        expected = runs.run_case(case, runs.ALONE, "cuda")
        for one, *several in zip(expected, *(found[case.name] for found in on_gpu), strict=True):
            for found in several:
                assert_same(found, one)
                assert all(torch.equal(found[key], several[0][key]) for key in found)


# in one process


def tpauc(**options):
    return TPAUCLoss(runs.LABELS, **{"min_tpr": 0.4, "max_fpr": 0.5, **options})


def test_alone_the_loss_is_as_without():
    plain, wrapped = tpauc(), DistributedCriterion(tpauc())
    index = torch.arange(runs.ROWS)
    gradients = []
    for criterion in (plain, wrapped):
        scores = runs.X[:, 0].clone().requires_grad_()
        criterion(scores, runs.LABELS, index=index).backward()
        gradients.append(scores.grad)
    assert torch.equal(*gradients)
    state = wrapped.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in plain.state_dict().items())
    assert list(state) == list(plain.state_dict())
    wrapped.synchronize()
    assert repr(wrapped) == f"DistributedCriterion({wrapped.criterion!r}, process 0 of 1)"


def test_attributes_are_those_of_the_loss_inside():
    criterion = DistributedCriterion(tpauc())
    assert not criterion.needs_previous and criterion.min_tpr == 0.4
    criterion.gamma, criterion.threshold_lr = 0.3, "quantile"
    assert criterion.needs_previous and criterion.criterion.gamma == 0.3
    assert criterion.criterion.threshold_lr == "quantile"
    assert torch.equal(criterion.u, criterion.criterion.u)
    with pytest.raises(ValueError, match="TPAUCLoss: tau must be"):
        criterion.tau = 2.0
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        criterion.nonsense  # noqa: B018
    criterion.note = "its own"
    assert not hasattr(criterion.criterion, "note")
    assert not criterion.eval().criterion.training
    assert criterion.double().u.dtype == torch.float64


@pytest.mark.parametrize(
    ("criterion", "message"),
    [
        (lambda: print, "criterion must be a loss, got builtin_function_or_method"),
        (lambda: DistributedCriterion(tpauc()), "criterion must be a loss, got DistributedCriterion"),
        (lambda: TCCOLoss(3, 3, torch.relu, torch.relu, tau1=0.5, tau2=0.5), "criterion must be .* got TCCOLoss"),
        (lambda: SideBySideLoss([tpauc()]), "criterion must be a loss whose arguments .* got SideBySideLoss"),
    ],
)
def test_losses_that_cannot_be_split(criterion, message):
    with pytest.raises(ValueError, match=f"DistributedCriterion: {message}"):
        DistributedCriterion(criterion())


def test_deterministic_operations_are_asked_for_and_given_up_again():
    with _repeatable(torch.device("meta")):
        assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    with _repeatable(torch.device("cpu")):
        assert not torch.are_deterministic_algorithms_enabled()


def test_torchrun_without_a_group_is_an_error(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"torch\.distributed must be set up where WORLD_SIZE is 2; call torch\."):
        DistributedCriterion(tpauc())


# models of all kinds, in two processes


def test_random_numbers_differ_and_the_first_process_has_those_of_one(results):
    first, second = (found["masks"] for found in results[2])
    assert torch.equal(first, torch.Generator().manual_seed(5).get_state())
    draws = [torch.rand(8, generator=torch.Generator().set_state(state)) for state in (first, second)]
    assert not torch.equal(*draws)


def test_batch_normalisation_ends_and_is_judged_with_the_statistics_of_the_first_process(results):
    first, second = (found["normalised"] for found in results[2])
    assert len(first["scores"]) == 3 and first["1.running_mean 0"].count_nonzero() == 6
    assert first.keys() == second.keys() and len(first) == 7
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_fit_of_sharded_models_is_that_of_one_process(results):
    expected = runs.fit_sharded(None)
    assert len(expected["scores"]) == 4
    for found in (process["fit sharded"] for process in results[2]):
        assert found["scores"] == pytest.approx(expected["scores"]) and found["best"] == expected["best"]
        torch.testing.assert_close(found["weights"], expected["weights"], **EXACT)


def test_states_of_shards_are_whole_and_can_be_put_back(results):
    first, second = (found["states of shards"] for found in results[2])
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
    assert [tuple(value.shape) for value in first["proximal"]["average"]] == [(6, 3), (6,), (1, 6), (1,)]


def test_compiled_models_are_those_inside(results):
    for found in (process["compiled"] for process in results[2]):
        assert found["names compiled"] == found["names plain"] == ["0.weight", "0.bias", *found["names plain"][2:]]
        torch.testing.assert_close(found["compiled"], found["plain"], **EXACT)
        assert len(found["compiled"]["scores"]) == runs.ROWS


def test_compiled_steps_leave_the_loss_out(results):
    for found in (process["compiled loss"] for process in results[2]):
        assert found["plain"][1].count_nonzero() > 0
        assert all(torch.equal(*pair) for pair in zip(found["plain"], found["compiled"], strict=True))


def test_losses_that_were_made_equal_again_go_on(results):
    first, second = (found["wrong later"]["values"] for found in results[2])
    assert first == second and first[0] != first[1]


def test_a_process_without_batches_gets_the_scores_of_the_others(results):
    for found in (process["wrong parts"] for process in results[2]):
        torch.testing.assert_close(found["rows of one"][0], runs.network()(runs.X).squeeze(1).detach())
        assert torch.equal(found["rows of one"][1], runs.LABELS.float())
        assert torch.equal(found["fine"], runs.X[:, 0])


def test_copies_talk_with_the_same_processes(results):
    for found in (process["copies"] for process in results[2]):
        assert found["values"] == [found["values"][0]] * 2 and "state_dict()" in found["pickle"]


@pytest.mark.parametrize("group", [2, "gloo", True, [0, 1], torch.distributed])
def test_groups_that_are_none_are_refused_in_one_process_too(group):
    message = "group must be a torch.distributed.ProcessGroup or None, got "
    with pytest.raises(ValueError, match=f"^DistributedCriterion: {message}{re.escape(repr(group))}"):
        DistributedCriterion(runs.plain_loss(0.0), group)
    with pytest.raises(ValueError, match=f"^gather_scores: {message}"):
        gather_scores(torch.zeros(2), torch.tensor([0, 1]), torch.arange(2), group=group)


# under torchrun

EXAMPLE = Path(__file__).parent.parent / "examples" / "ddp_tpauc.py"
# The example in float64, where its rounding cannot hide anything, with rows that remember long; it may be killed.
WATCHED = f"""
import os, signal, sys
from functools import partial
import torch
sys.path.insert(0, {str(EXAMPLE.parent)!r})
import ddp_tpauc
torch.set_default_dtype(torch.float64)
ddp_tpauc.TPAUCLoss = partial(ddp_tpauc.TPAUCLoss, tau=0.1)
killed_at, path = int(sys.argv.pop(1)), sys.argv[2]
steps, real = [], ddp_tpauc.train_step
def train_step(model, criterion, *args):
    steps.append((model, criterion))
    if len(steps) == killed_at and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return real(model, criterion, *args)
ddp_tpauc.train_step = train_step
ddp_tpauc.main()
model, criterion = steps[-1]
end = {{**getattr(model, "module", model).state_dict(), **criterion.state_dict()}}
torch.save(end, os.path.join(path, f"end-{{os.environ.get('RANK', 'alone')}}.pt"))
"""


def torchrun(script: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run two processes on the CPU; one that waited for a dead one would wait for half an hour, not for 300 s."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", script, *arguments]
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        list(map(str, command)), env={**os.environ, **own}, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_killed_process_ends_the_job_which_then_goes_on(tmp_path):
    script = tmp_path / "watched.py"
    script.write_text(WATCHED, encoding="utf-8")
    killed = torchrun(script, 50, "--out", tmp_path / "killed", "--epochs", 3)
    assert killed.returncode != 0 and "SIGKILL" in killed.stderr
    assert re.fullmatch(r"epoch 0: loss \d\.\d{4}\n", killed.stdout)
    again = torchrun(script, 0, "--out", tmp_path / "killed", "--epochs", 3)
    assert again.returncode == 0, again.stderr
    assert re.fullmatch(r"(epoch [12]: loss \d\.\d{4}\n){2}TPAUC of the training rows: 0\.\d{4}\n", again.stdout)
    run_processes(runs.watched_alone, 1, tmp_path)
    one = torch.load(tmp_path / "alone" / "end-alone.pt")
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / "killed" / f"end-{rank}.pt"), one, **EXACT)
    saved = [load_checkpoint(tmp_path / name / "checkpoint.pt") for name in ("alone", "killed")]
    assert saved[0].keys() == saved[1].keys() == {"epoch", "model", "optimizer", "previous", "criterion"}
    torch.testing.assert_close(saved[1]["previous"], saved[0]["previous"], **EXACT)
