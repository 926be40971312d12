"""`moreauc fit --checkpoint --resume`: killed or stopped, run again, and the saved model is the same."""

from __future__ import annotations

import importlib
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest
import torch

from moreauc._system import FileLock
from moreauc.app.cli.saved import SavingOptions, load_model
from moreauc.checkpoint import CheckpointError, Checkpoints, Interrupted
from moreauc.estimators import GroupDROClassifier, MultiInstanceClassifier, TPAUCClassifier
from tests.cli_cases import call, done, snapshot

pytestmark = pytest.mark.usefixtures("blank_figures")

KINDS = {
    "table": (["--epochs", "8", "--batch-size", "32"], "sonx", "ce"),
    "bags": (["--bags", "bag", "--epochs", "8"], "sont_att", "ce_att"),
    "groups": (["--groups", "town", "--epochs", "8"], "sonx", "erm"),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    random = np.random.default_rng(0)
    bag = np.repeat(np.arange(100), 4)
    label = (bag % 3 == 0).astype(int)
    frame = pd.DataFrame(random.normal(size=(400, 4)) + label[:, None], columns=list("abcd"))
    frame = frame.assign(bag=bag, town=np.array(["x", "y", "z"])[bag % 7 % 3], y=label)
    path = tmp_path_factory.mktemp("data") / "table.csv"
    frame.to_csv(path, index=False)
    return path


def arguments(table, kind, out, *more):
    chosen = KINDS[kind][0]
    drop = [name for name in ("bag", "town") if name not in chosen]
    dropped = [word for name in drop for word in ("--drop", name)]
    words = [*chosen, *dropped, "--seed", "3", "--baselines", KINDS[kind][2], *map(str, more)]
    return ["fit", str(table), "--target", "y", "--out", str(out), *words]


SIGNALLED = """
import os, signal, sys
from moreauc.checkpoint import Checkpoints
from moreauc.app.cli import main

# a shell that runs the tests in the background has them ignore Ctrl-C, and so would their children
signal.signal(signal.SIGINT, signal.default_int_handler)
number, original, saves = int(sys.argv.pop(1)), Checkpoints.save, []

def save(self, state):
    saves.append(original(self, state))
    if len(saves) == 3:
        os.kill(os.getpid(), number)
    return saves[-1]

Checkpoints.save = save
main()
"""


def run_signalled(number, words):
    """A command in a process that sends itself the signal after its third save: whoever waits may come too late."""
    command = [sys.executable, "-c", SIGNALLED, str(int(number)), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def same_model(found, wanted):
    found, wanted = load_model(found).model, load_model(wanted).model
    assert [{**row, "seconds": 0} for row in found.history_.rows] == [
        {**row, "seconds": 0} for row in wanted.history_.rows
    ]
    for a, b in (
        (found.model_.state_dict(), wanted.model_.state_dict()),
        (found.loss_.state_dict(), wanted.loss_.state_dict()),
    ):
        assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in b)
    for name in ("threshold_", "loss_threshold_"):
        assert getattr(found, name, None) == getattr(wanted, name, None)
    return True


class Killed(BaseException):
    pass


def interrupt_saves(monkeypatch, after):
    """Let so many saves pass, then end the run."""
    save, count = Checkpoints.save, [0]

    def counted(self, state):
        count[0] += 1
        if count[0] > after:
            raise Killed
        return save(self, state)

    monkeypatch.setattr(Checkpoints, "save", counted)


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_command_is_resumed_to_the_same_model(kind, table, tmp_path, monkeypatch):
    out, folder = tmp_path / "out", tmp_path / "saved"
    done(*arguments(table, kind, tmp_path / "whole"))
    words = arguments(table, kind, out, "--checkpoint", folder, "--resume", "--save-every", 20)
    if kind == "table":
        process = run_signalled(signal.SIGKILL, words)  # the first time there is nothing to resume
        assert process.returncode == -signal.SIGKILL, process.stderr
        assert [path.name for path in out.iterdir()] == ["log.txt"] and "train epoch 1" in (out / "log.txt").read_text()
    else:
        with monkeypatch.context() as patch, pytest.raises(Killed):
            interrupt_saves(patch, 3)
            call(*words)
    done(*words)
    assert same_model(out, tmp_path / "whole")
    assert {path.name for path in folder.iterdir()} == set(KINDS[kind][1:])
    done(*words, "--force")  # complete: nothing is trained again
    assert same_model(out, tmp_path / "whole")


def test_a_stopped_command_says_how_to_go_on(table, tmp_path):
    out, folder = tmp_path / "out", tmp_path / "saved"
    words = arguments(table, "table", out, "--checkpoint", folder, "--save-every", 5, "--epochs", 2)
    process = run_signalled(signal.SIGINT, words)
    errors = process.stderr
    assert process.returncode == 130, errors
    assert "stopped by SIGINT in train, epoch " in errors and "Traceback" not in errors
    assert f"saved in {folder / 'sonx'}" in errors and errors.strip().endswith("--resume")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved"]  # neither results nor parts of them
    done(*words, "--resume")
    assert (out / "model.joblib").exists()


@pytest.fixture(scope="module")
def saved(table, tmp_path_factory):
    """A folder of checkpoints for each kind, of a training that was killed."""
    folder = tmp_path_factory.mktemp("killed")
    for kind in KINDS:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            interrupt_saves(patch, 2)
            call(*arguments(table, kind, folder / "out", "--checkpoint", folder / kind))
    frame = pd.read_csv(table)
    frame["a"] = frame["a"].abs()  # the same labels
    frame.to_csv(folder / "other.csv", index=False)
    return folder


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("table", ["--resume"], "fit: --resume needs --checkpoint, got True"),
        ("table", ["--save-every", "5"], "fit: --save-every needs --checkpoint, got 5"),
        ("table", ["--checkpoint", ""], "fit: --checkpoint must be a path that is not empty"),  # not the present folder
        ("table", ["--checkpoint", "other.csv"], "other.csv: is a file, --checkpoint needs a folder"),
        ("table", ["--checkpoint", "table"], "table: the folder is not empty; continue what is there with --resume"),
        ("table", ["--seed", "4"], "checkpoint has TPAUCClassifier.random_state 3, this run has 4"),
        ("table", ["--drop", "a"], "checkpoint has "),
        ("table", ["--min-tpr", "0.4"], "checkpoint has TPAUCClassifier.min_tpr 0, this run has 0.4"),
        ("table", ["--positive", "0"], "checkpoint has validation_labels "),
        ("table", ["--model", "linear", "--loss", "sonx"], "checkpoint has TPAUCClassifier.module "),
        ("bags", ["--instances-per-bag", "2"], "checkpoint has MultiInstanceClassifier.instances_per_bag "),
        ("bags", ["--drop", "c", "--drop", "town"], "checkpoint has 'encoder.0.weight'"),
        ("groups", ["--task", "regression"], "checkpoint has GroupDRORegressor."),
        ("groups", ["--top-k", "2"], "checkpoint has GroupDROClassifier.top_k "),
    ],
)
def test_a_training_on_something_else_is_refused(kind, options, message, saved, table, tmp_path, monkeypatch):
    monkeypatch.chdir(saved)
    if not {"--resume", "--save-every", "--checkpoint"} & set(options):
        options = ["--checkpoint", kind, "--resume", *options]
    before = snapshot(saved)
    result = call(*arguments(table, kind, tmp_path / "out", *options))
    assert result.exit_code == 2 and message in result.stderr, result.output
    assert snapshot(saved) == before and not list(tmp_path.iterdir())


def test_a_folder_of_another_table(saved, tmp_path):
    shutil.copytree(saved / "table", tmp_path / "saved")
    folder = tmp_path / "saved"
    words = arguments(saved / "other.csv", "table", tmp_path / "out", "--checkpoint", folder, "--resume")
    assert "checkpoint has loader.checksum_of_inputs" in call(*words).stderr
    for path in folder.rglob("*.checkpoint"):
        path.unlink()
    done(*words, "--epochs", 1)  # with no checkpoints there, anything may begin


@pytest.mark.parametrize("estimator", [TPAUCClassifier, MultiInstanceClassifier, GroupDROClassifier])
def test_estimators_are_resumed(estimator, table, tmp_path, monkeypatch):
    frame = pd.read_csv(table)
    given = (frame[list("abcd")].to_numpy(), frame["y"].to_numpy())
    if estimator is MultiInstanceClassifier:
        given = ([part[list("abcd")].to_numpy() for _, part in frame.groupby("bag")], given[1][::4])
    groups = {"groups": frame["town"]} if estimator is GroupDROClassifier else {}

    def fit(seed=1, **options):
        return estimator(epochs=6, random_state=seed).fit(*given, **groups, **options)

    whole = fit()
    with monkeypatch.context() as patch, pytest.raises(Killed):
        interrupt_saves(patch, 3)
        fit(checkpoint=tmp_path, every=2)
    found = fit(checkpoint=tmp_path, every=2)
    a, b = (fitted.model_.state_dict() for fitted in (found, whole))
    assert all(torch.equal(a[key], b[key]) for key in b)
    for name in ("threshold_", "loss_threshold_"):
        assert getattr(found, name, None) == getattr(whole, name, None)
    with pytest.raises(CheckpointError):
        fit(seed=2, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"checkpoint must .* resume is False"):
        fit(checkpoint=tmp_path, resume=False)


# Two commands at once

OTHER = """
import fcntl, sys
file = open(sys.argv[1], "ab")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("locked", flush=True)
sys.stdin.readline()
"""


@contextmanager
def held_by_another(folder):
    """Another process that writes to a folder, as its lock tells; it ends by a kill."""
    command = [sys.executable, "-c", OTHER, str(folder.with_name(f".{folder.name}.lock"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        yield
        process.kill()


@pytest.mark.parametrize(
    ("locked", "words"),
    [
        ("out", ["fit", "--target", "y"]),
        ("saved", ["fit", "--target", "y", "--checkpoint", "saved"]),
        ("out", ["evaluate", "no_run"]),
        ("out", ["compare", "--target", "y"]),
    ],
)
def test_a_second_command_is_refused_at_once(locked, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [*words, "no_table.csv", "--out", "folder/../out"]  # not even the table is looked at
    with held_by_another(tmp_path / locked):
        result = call(*words)
        assert result.exit_code == 2 and result.stderr.count("\n") == 1
        assert f"{locked}: another process is writing there" in result.stderr
        assert [path.name for path in tmp_path.iterdir()] == [f".{locked}.lock"]
    assert "no such" in call(*words).stderr  # the other was killed, and its lock with it
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["begin", "options"])
def test_two_first_starts_in_one_folder(place, table, tmp_path, monkeypatch):
    """The second begins before the first has written anything, or when its training begins, on another table."""
    other = tmp_path / "other.csv"
    pd.read_csv(table).iloc[::-1].to_csv(other, index=False)
    folder, original, outputs = tmp_path / "saved", getattr(SavingOptions, place), []
    words = {
        name: arguments(source, "table", tmp_path / name, "--checkpoint", folder, "--epochs", 1)
        for name, source in (("a", table), ("b", other))
    }

    def meanwhile(self, *values, **facts):
        monkeypatch.setattr(SavingOptions, place, original)
        outputs.append(call(*words["b"]).output)
        return original(self, *values, **facts)

    monkeypatch.setattr(SavingOptions, place, meanwhile)
    done(*words["a"])
    assert f"{folder}: another process is writing there" in outputs[0] and not (tmp_path / "b").exists()
    done(*words["a"], "--resume", "--force")  # what is there belongs together
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "other.csv", "saved"]


def test_locks_of_one_process(tmp_path):
    """Two of its runs are kept apart; a file that was left hinders nobody, one that is removed does no harm."""
    first, second, path = FileLock(), FileLock(), tmp_path / "lock"
    path.touch()
    assert first.take(path) and not second.take(path)
    second.release()  # of what it has not
    assert not second.take(path) and path.exists()
    first.release()
    assert not path.exists() and second.take(path)
    path.unlink()  # by somebody who cleans up
    assert first.take(path)
    second.release()
    assert path.exists() and not second.take(path)
    first.release()
    assert not list(tmp_path.iterdir())


def test_a_folder_is_read_only_when_it_is_locked(tmp_path, table, monkeypatch):
    """Another run may end between a look at the checkpoints and the lock, and would then be overwritten."""
    events = []
    for owner, name in ((FileLock, "take"), (Checkpoints, "load"), (Checkpoints, "save"), (FileLock, "release")):
        original = getattr(owner, name)

        def noted(self, *values, original=original, name=name):
            events.append(name)
            return original(self, *values)

        monkeypatch.setattr(owner, name, noted)
    frame = pd.read_csv(table)
    model = TPAUCClassifier(epochs=1, start=None, ensemble=1, random_state=0)
    model.fit(frame[list("abcd")], frame["y"], checkpoint=tmp_path / "saved")
    assert events == ["take", "load", "save", "save", "release"]


# What fails after a training


def failing_baseline(failure):
    """Return a `fit` that fails for the second model of a command."""
    original = TPAUCClassifier.fit

    def fit(self, *values, **options):
        if self.loss == "ce":
            raise failure
        return original(self, *values, **options)

    return fit


@pytest.mark.parametrize("failure", [OSError(28, "No space"), RuntimeError("no font")])
def test_a_figure_that_fails_costs_no_training(failure, table, tmp_path, monkeypatch):
    def fail(*values):
        raise failure

    monkeypatch.setattr(importlib.import_module("moreauc.app.cli.fit"), "fit_report", fail)
    out = tmp_path / "out"
    result = call(*arguments(table, "table", out, "--epochs", 1))
    wanted = f"error: {out / 'model.joblib'}: the model is saved here, but what comes after it failed: "
    assert result.exit_code == 2 and f"{wanted}{type(failure).__name__}: {failure}" in result.output
    assert sorted(path.name for path in out.iterdir()) == ["log.txt", "model.joblib"]
    assert load_model(out).model.history_.rows
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(("failure", "code"), [(ValueError("diverged"), 2), (KeyboardInterrupt(), 130)])
def test_a_second_training_that_fails_costs_not_the_first(failure, code, table, tmp_path, monkeypatch):
    out = tmp_path / "out"
    done(*arguments(table, "table", out, "--epochs", 1))
    monkeypatch.setattr(TPAUCClassifier, "fit", failing_baseline(failure))
    result = call(*arguments(table, "table", out, "--epochs", 2, "--force"))
    assert result.exit_code == code and f"{out / 'model.joblib'}: the model is saved here" in result.output
    # the report that was there is not one of this model
    assert sorted(path.name for path in out.iterdir()) == ["log.txt", "model.joblib"]
    assert len(load_model(out).model.history_.rows) == 4  # after two of cross entropy


def test_a_training_that_is_interrupted_leaves_its_checkpoint_only(table, tmp_path, monkeypatch):
    """The same command goes on, so that nothing may stand in its way, the first of the two models neither."""
    words = arguments(table, "table", tmp_path / "out", "--checkpoint", tmp_path / "saved", "--epochs", 1)
    with monkeypatch.context() as patch:
        patch.setattr(TPAUCClassifier, "fit", failing_baseline(Interrupted(signal.SIGTERM, "in train")))
        assert call(*words).exit_code == 143
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    done(*words, "--resume")


@pytest.mark.parametrize(("out", "checkpoint"), [("a", "a/saved"), ("a/run", "a"), ("a", "b/../a")])
def test_results_and_checkpoints_need_two_folders(tmp_path, out, checkpoint):
    (tmp_path / "data.csv").write_text("x,y\n1,0\n2,1\n")
    words = ["fit", tmp_path / "data.csv", "--target", "y", "--out", tmp_path / out]
    result = call(*words, "--checkpoint", tmp_path / checkpoint)
    assert result.exit_code == 2 and "--out and --checkpoint must be two folders" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["data.csv"]
