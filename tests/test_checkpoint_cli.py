"""`moreauc fit --checkpoint --resume`: killed or stopped, run again, and the saved model is the same."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from moreauc._system import FileLock
from moreauc.app.cli import app
from moreauc.app.cli.saved import SavingOptions, load_model
from moreauc.checkpoint import CheckpointError, Checkpoints, Interrupted
from moreauc.estimators import GroupDROClassifier, MultiInstanceClassifier, TPAUCClassifier

pytestmark = pytest.mark.usefixtures("blank_figures")

RUNNER = CliRunner()
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


def network_of(saved):
    return saved.model.model_.state_dict()


def rows_of(saved):
    return [{**row, "seconds": 0} for row in saved.model.history_.rows]


def numbers(out):
    report = json.loads((out / "report.json").read_text())
    return {name: value for name, value in report.items() if name not in ("seconds", "date", "command", "history")}


def same_model(found, wanted):
    found, wanted = load_model(found), load_model(wanted)
    assert rows_of(found) == rows_of(wanted)
    assert found.model.loss_.state_dict().keys() == wanted.model.loss_.state_dict().keys()
    for a, b in (
        (network_of(found), network_of(wanted)),
        (found.model.loss_.state_dict(), wanted.model.loss_.state_dict()),
    ):
        assert all(torch.equal(a[name], b[name]) for name in b)
    for name in ("threshold_", "loss_threshold_"):
        assert getattr(found.model, name, None) == getattr(wanted.model, name, None)
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
    result = RUNNER.invoke(app, arguments(table, kind, tmp_path / "whole"))
    assert result.exit_code == 0, result.output
    words = arguments(table, kind, out, "--checkpoint", folder, "--resume", "--save-every", 20)
    if kind == "table":
        process = run_signalled(signal.SIGKILL, words)  # the first time there is nothing to resume
        assert process.returncode == -signal.SIGKILL, process.stderr
        assert [path.name for path in out.iterdir()] == ["log.txt"] and "train epoch 1" in (out / "log.txt").read_text()
    else:
        with monkeypatch.context() as patch, pytest.raises(Killed):
            interrupt_saves(patch, 3)
            RUNNER.invoke(app, words)
    result = RUNNER.invoke(app, words)
    assert result.exit_code == 0, result.output
    assert same_model(out, tmp_path / "whole")
    assert {path.name for path in folder.iterdir()} == {"data.json", *KINDS[kind][1:]}
    again = RUNNER.invoke(app, [*words, "--force"])  # complete: nothing is trained again
    assert again.exit_code == 0 and same_model(out, tmp_path / "whole")


def test_a_stopped_command_says_how_to_go_on(table, tmp_path):
    number, code = signal.SIGINT, 130
    out, folder = tmp_path / "out", tmp_path / "saved"
    process = run_signalled(number, arguments(table, "table", out, "--checkpoint", folder))
    errors = process.stderr
    assert process.returncode == code, errors
    assert f"stopped by {number.name} in train, epoch " in errors and "Traceback" not in errors
    assert f"saved in {folder / 'sonx'}" in errors
    assert errors.strip().endswith("from where the same call goes on with --resume")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved"]  # neither results nor parts of them
    result = RUNNER.invoke(app, arguments(table, "table", out, "--checkpoint", folder, "--resume"))
    assert result.exit_code == 0 and (out / "model.joblib").exists()


def test_wrong_options_are_named(table, tmp_path):
    def error(*more, source=table, kind="table"):
        result = RUNNER.invoke(app, arguments(source, kind, tmp_path / "out", *more, "--epochs", 2))
        assert result.exit_code == 2, result.output
        return result.output

    assert "error: moreauc fit: --resume needs --checkpoint, got True" in error("--resume")
    assert "error: moreauc fit: --save-every needs --checkpoint, got 5" in error("--save-every", 5)
    text = error("--checkpoint", "")  # and not the present folder
    assert "error: moreauc fit: --checkpoint must be a path that is not empty, got ''" in text
    (tmp_path / "file").write_text("x")
    assert "file: is a file, --checkpoint needs a folder" in error("--checkpoint", tmp_path / "file")
    folder = tmp_path / "saved"
    result = RUNNER.invoke(app, arguments(table, "table", tmp_path / "first", "--checkpoint", folder, "--epochs", 2))
    assert result.exit_code == 0, result.output
    assert "saved: the folder is not empty; continue what is there with --resume" in error("--checkpoint", folder)
    other = tmp_path / "other.csv"
    frame = pd.read_csv(table)
    frame["a"] += 1.0  # the same labels
    frame.to_csv(other, index=False)
    text = error("--checkpoint", folder, "--resume", source=other)
    assert f"saved: holds a training on another table than {other}" in text
    text = error("--checkpoint", folder, "--resume", "--seed", 4)
    assert "error: checkpoint has TPAUCClassifier.random_state 3, this run has 4" in text
    assert f"the checkpoint is in {folder / 'sonx'}" in text
    assert f"{folder}: holds a training with other features: [['a', 'number'], " in error(
        "--checkpoint", folder, "--resume", "--drop", "a"
    )
    assert "saved: holds a training with other min tpr: 0.0, now 0.4" in error(
        "--checkpoint", folder, "--resume", "--min-tpr", 0.4
    )
    assert "saved: holds a training with other " in error("--checkpoint", folder, "--resume", kind="groups")
    for damage in ("{", "3"):
        (folder / "data.json").write_text(damage)
        text = error("--checkpoint", folder, "--resume")
        assert f"{folder / 'data.json'}: cannot be read, so it is unknown what the checkpoints there" in text
    for path in folder.rglob("*.checkpoint"):
        path.unlink()
    again = ["--checkpoint", folder, "--resume", "--epochs", 2]  # with no checkpoints there, anything may begin
    result = RUNNER.invoke(app, arguments(table, "table", tmp_path / "out", *again))
    assert result.exit_code == 0 and "sha256" in (folder / "data.json").read_text()


@pytest.mark.parametrize(
    ("kind", "other", "name"),
    [
        ("table", ["--positive", "0"], "target"),
        ("table", ["--model", "linear", "--loss", "sonx"], "model"),
        ("bags", ["--instances-per-bag", "2"], "instances per bag"),
        ("bags", ["--drop", "c", "--drop", "town"], "features"),
        ("groups", ["--task", "regression"], "target"),
        ("groups", ["--top-k", "1"], "top k"),
    ],
)
def test_a_training_on_something_else_of_the_table_is_refused(kind, other, name, table, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_saves(patch, 1)
        with pytest.raises(Killed):
            RUNNER.invoke(app, arguments(table, kind, tmp_path / "out", "--checkpoint", tmp_path / "saved"))
    words = arguments(table, kind, tmp_path / "out", "--checkpoint", tmp_path / "saved", "--resume", *other)
    result = RUNNER.invoke(app, words)
    assert result.exit_code == 2 and f"holds a training with other {name}: " in result.output, result.output


@pytest.mark.parametrize(
    ("make", "data"),
    [
        (lambda: TPAUCClassifier(epochs=6, dropout=0.2, random_state=1), "rows"),
        (lambda: MultiInstanceClassifier(epochs=6, random_state=1), "bags"),
        (lambda: GroupDROClassifier(epochs=6, random_state=1), "groups"),
    ],
)
def test_estimators_are_resumed(make, data, table, tmp_path, monkeypatch):
    frame = pd.read_csv(table)
    x, y = frame[list("abcd")].to_numpy(), frame["y"].to_numpy()
    given = (x, y)
    if data == "bags":
        given = ([part[list("abcd")].to_numpy() for _, part in frame.groupby("bag")], y[::4])
    options = {"groups": frame["town"]} if data == "groups" else {}
    whole = make().fit(*given, **options)
    with monkeypatch.context() as patch:
        interrupt_saves(patch, 3)
        with pytest.raises(Killed):
            make().fit(*given, **options, checkpoint=tmp_path, every=2)
    found = make().fit(*given, **options, checkpoint=tmp_path, every=2)
    a, b = (fitted.model_.state_dict() for fitted in (found, whole))
    assert all(torch.equal(a[key], b[key]) for key in b)
    for name in ("threshold_", "loss_threshold_"):
        assert getattr(found, name, None) == getattr(whole, name, None)
    with pytest.raises(CheckpointError):
        make().set_params(random_state=2).fit(*given, **options, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="fit: checkpoint must hold no checkpoints where resume is False"):
        make().fit(*given, **options, checkpoint=tmp_path, resume=False)


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


@pytest.mark.parametrize("shared", ["out", "saved"])
def test_a_second_command_is_refused_at_once(shared, table, tmp_path):
    words = arguments(table, "table", tmp_path / "out", "--checkpoint", tmp_path / "saved", "--epochs", 1)
    with held_by_another(tmp_path / shared):
        result = RUNNER.invoke(app, ["fit", "no_table.csv", *words[2:]])  # not even the table was looked at
        option = "--out" if shared == "out" else "--checkpoint"
        wanted = (
            f"error: {tmp_path / shared}: another process is writing there; wait for it, or choose another {option}"
        )
        assert result.exit_code == 2 and result.output == f"{wanted}\n"
        assert [path.name for path in tmp_path.iterdir()] == [f".{shared}.lock"]
    result = RUNNER.invoke(app, ["fit", "no_table.csv", *words[2:]])  # the other was killed, and its lock with it
    assert "no_table.csv: no such file" in result.output and not list(tmp_path.iterdir())


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
        outputs.append(RUNNER.invoke(app, words["b"]).output)
        return original(self, *values, **facts)

    monkeypatch.setattr(SavingOptions, place, meanwhile)
    result = RUNNER.invoke(app, words["a"])
    assert result.exit_code == 0, result.output
    assert f"{folder}: another process is writing there" in outputs[0] and not (tmp_path / "b").exists()
    result = RUNNER.invoke(app, [*words["a"], "--resume", "--force"])  # what is there belongs together
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "other.csv", "saved"]


@pytest.mark.parametrize(
    "words", [["evaluate", "no_run", "no_table.csv"], ["compare", "no_table.csv", "--target", "y"]], ids=" ".join
)
def test_other_commands_lock_their_folder_too(words, tmp_path):
    out = tmp_path / "folder" / ".." / "out"
    with held_by_another(tmp_path / "out"):
        result = RUNNER.invoke(app, [*words, "--out", str(out)])
    assert result.exit_code == 2 and "out: another process is writing there" in result.output
    assert [path.name for path in tmp_path.iterdir()] == [".out.lock"]


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


def test_what_a_kill_left_of_the_note_is_removed(table, tmp_path):
    (tmp_path / ".data.json.0a1b2c3d.part").write_text("{")
    SavingOptions(tmp_path).begin(table, {"a": "number"})
    assert [path.name for path in tmp_path.iterdir()] == ["data.json"]


# What fails after a training


@pytest.mark.parametrize(("kind", "failure"), [("table", OSError(28, "No space")), ("bags", RuntimeError("no font"))])
def test_a_figure_that_fails_costs_no_training(kind, failure, table, tmp_path, monkeypatch):
    def fail(*values):
        raise failure

    monkeypatch.setattr(importlib.import_module("moreauc.app.cli.fit"), "fit_report", fail)
    out = tmp_path / "out"
    result = RUNNER.invoke(app, arguments(table, kind, out, "--epochs", 1))
    wanted = f"error: {out / 'model.joblib'}: the model is saved here, but what comes after it failed: "
    assert result.exit_code == 2 and f"{wanted}{type(failure).__name__}: {failure}" in result.output
    assert sorted(path.name for path in out.iterdir()) == ["log.txt", "model.joblib"]
    assert load_model(out).model.history_.rows
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("failure", [ValueError("diverged"), KeyboardInterrupt()])
def test_a_second_training_that_fails_costs_not_the_first(failure, table, tmp_path, monkeypatch):
    original = TPAUCClassifier.fit

    def fit_or_fail(self, *values, **options):
        if self.loss == "ce":
            raise failure
        return original(self, *values, **options)

    out = tmp_path / "out"
    assert RUNNER.invoke(app, arguments(table, "table", out, "--epochs", 1)).exit_code == 0
    monkeypatch.setattr(TPAUCClassifier, "fit", fit_or_fail)
    result = RUNNER.invoke(app, arguments(table, "table", out, "--epochs", 2, "--force"))
    assert result.exit_code == (130 if isinstance(failure, KeyboardInterrupt) else 2)
    assert f"{out / 'model.joblib'}: the model is saved here" in result.output
    # the report that was there is not one of this model
    assert sorted(path.name for path in out.iterdir()) == ["log.txt", "model.joblib"]
    assert len(load_model(out).model.history_.rows) == 4  # after two of cross entropy


def test_a_training_that_is_interrupted_leaves_its_checkpoint_only(table, tmp_path, monkeypatch):
    """The same command goes on, so that nothing may stand in its way, the first of the two models neither."""
    out, folder = tmp_path / "out", tmp_path / "saved"
    original = TPAUCClassifier.fit

    def stopped(self, *values, **options):
        if self.loss == "ce":
            raise Interrupted(signal.SIGTERM, "in train")
        return original(self, *values, **options)

    words = arguments(table, "table", out, "--checkpoint", folder, "--epochs", 1)
    with monkeypatch.context() as patch:
        patch.setattr(TPAUCClassifier, "fit", stopped)
        assert RUNNER.invoke(app, words).exit_code == 143
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    assert RUNNER.invoke(app, [*words, "--resume"]).exit_code == 0


@pytest.mark.parametrize(("out", "checkpoint"), [("a", "a/saved"), ("a/run", "a"), ("a", "b/../a")])
def test_results_and_checkpoints_need_two_folders(tmp_path, out, checkpoint):
    (tmp_path / "data.csv").write_text("x,y\n1,0\n2,1\n")
    words = ["fit", tmp_path / "data.csv", "--target", "y", "--out", tmp_path / out, "--checkpoint"]
    result = CliRunner().invoke(app, [str(word) for word in [*words, tmp_path / checkpoint]])
    assert result.exit_code == 2
    assert "--out and --checkpoint must be two folders, neither inside the other" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["data.csv"]
