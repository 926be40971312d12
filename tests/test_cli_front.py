"""What a shell sees before a command runs: help, completion, words that are wrong, and pipes that close early."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from moreauc.app.cli import main, options
from moreauc.app.tables.groups import KINDS
from moreauc.app.tables.molecules import CHOICES
from moreauc.core.surrogates import _SURROGATES
from moreauc.data.examples import EXAMPLES
from tests.cli_cases import call, rows_table

COMMANDS = ["fit", "evaluate", "predict", "compare", "example"]
HEAVY = {"torch", "numpy", "pandas", "sklearn", "scipy", "matplotlib"}


def run(*words: str, code: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, and then some code in it."""
    begin = f"import sys; sys.argv = ['moreauc', *{words!r}]; from moreauc.app.cli import main"
    main = f"{begin}\ntry: main()\nfinally: {code or 'pass'}"
    return subprocess.run(
        [sys.executable, "-c", main], capture_output=True, text=True, env={**os.environ, **environment}, timeout=60
    )


def test_the_names_that_options_list_are_those_there_are():
    assert tuple(_SURROGATES) == options.SURROGATES and tuple(EXAMPLES) == options.EXAMPLES
    assert options.TASKS == KINDS and {"split": options.SPLITS, "invalid": options.INVALID} == CHOICES


# Help


@pytest.mark.parametrize("words", [["--help"], ["fit", "--help"]], ids=" ".join)
def test_help_imports_nothing_heavy(words):
    done = run(*words, code=f"print({HEAVY} & set(sys.modules))")
    assert done.returncode == 0 and done.stdout.endswith("set()\n"), done.stdout[-200:] + done.stderr


def test_a_single_letter_asks_for_help():
    for command in ("", *COMMANDS):
        assert call(*command.split(), "-h").output == call(*command.split(), "--help").output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "a.csv"], "missing option '--target'"),
        (["fti"], "no such command 'fti'. Did you mean 'fit'?"),
        (["fit", "a.csv", "--traget", "y"], "no such option: --traget "),
        (["fit", "a.csv", "--target", "y", "--max-fpr", "small"], "invalid value for '--max-fpr': "),
        (["fit", "a.csv", "--target", "y", "--epochs", "0"], "invalid value for '--epochs': "),
        (["evaluate", "run"], "missing argument 'DATA'"),
        (["example", "fraud", "more"], "got unexpected extra argument"),
    ],
)
def test_wrong_words_are_named_in_one_line(words, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["moreauc", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    out, error = capsys.readouterr()
    assert (caught.value.code, out) == (2, "")
    assert error.startswith(f"error: {message}") and re.search(r"; see moreauc( \w+)? --help\n$", error)
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--loss", "sonc"], "--loss must be one of sonx, ce, .*, got 'sonc'; did you mean 'sonx'?"),
        (["--loss", "ce", "--bags", "b"], "--loss must be one of sont_mean, .*, got 'ce'; that is a loss of rows, .*"),
        (["--loss", "sont_att"], "--loss must be .*, got 'sont_att'; that is a loss with --bags, not of rows"),
        (["--model", "lineer"], "--model must be .*; did you mean 'linear'?"),
        (["--surrogate", "squared-hinge"], "--surrogate must be .*; did you mean 'squared_hinge'?"),
        (["--baselines", "lr,lgbm"], "--baselines must be .*, got 'lgbm'; did you mean 'lightgbm'?"),
        (["--groups", "g", "--task", "regresion"], "--task must be .*; did you mean 'regression'?"),
        (["--smiles", "s", "--split", "scafold"], "--split must be .*; did you mean 'scaffold'?"),
    ],
)
def test_the_nearest_name_is_suggested(tmp_path, words, message):
    result = call("fit", tmp_path / "data.csv", "--target", "y", "--out", tmp_path / "run", *words)
    assert result.exit_code == 2 and re.fullmatch(f"error: moreauc fit: {message}\n".replace("?", r"\?"), result.stderr)


def test_a_command_line_without_words_shows_the_help():
    done = run()
    assert done.returncode == 2 and "Usage: moreauc" in done.stdout + done.stderr and "error" not in done.stderr


# Completion


def test_the_script_of_each_shell_is_printed():
    shells = {"bash": "complete -o default -F", "zsh": "#compdef moreauc", "fish": "complete --command"}
    for shell, word in shells.items():
        done = run(_MOREAUC_COMPLETE=f"source_{shell}", code=f"print({HEAVY} & set(sys.modules))")
        assert done.returncode == 0 and word in done.stdout and done.stdout.endswith("set()\n"), done.stderr
    help_text = call("--help").output
    assert "--install-completion" in help_text and "--show-completion" in help_text


def completions(line: str, shell: str = "bash") -> list[str]:
    """Return what a shell is offered for the last word of a line, which may be empty."""
    if shell == "bash":
        asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    else:
        asked = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = run(_MOREAUC_COMPLETE=f"complete_{shell}", **asked, code=f"assert not {HEAVY} & set(sys.modules)")
    assert done.returncode == 0 and not done.stderr, done.stderr
    return [word.split("\t")[0] for word in done.stdout.split("\n") if word]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("moreauc pr", ["predict"]),
        ("moreauc fit a.csv --min", ["--min-tpr"]),
        ("moreauc fit a.csv --target y --bags b --loss ce", ["ce_att"]),
        ("moreauc fit a.csv --target y --groups g --loss e", ["exponentiated", "erm", "erm_reweighted"]),
        ("moreauc fit a.csv --model ", list(options.MODEL_NAMES)),
        ("moreauc fit a.csv --surrogate s", ["squared_hinge", "squared", "sigmoid", "smooth_ramp"]),
        ("moreauc fit a.csv --bags b --baselines fo", ["forest_bags"]),
        ("moreauc fit a.csv --smiles s --split r", ["random"]),
        ("moreauc compare a.csv --methods sonx,li", ["sonx,linear", "sonx,lightgbm"]),
        ("moreauc example fr", ["fraud", "fraud_test"]),
        ("moreauc predict ru", []),  # files, which the shell itself completes
    ],
)
def test_a_line_is_completed(line, words):
    assert completions(line) == words


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_every_shell_is_offered_the_same(shell):
    found = completions("moreauc fit a.csv --target y --loss ce", shell)
    assert all(any(word in line for line in found) for word in ("ce", "ce_weighted")) and "sonx" not in found


def test_bash_completes_with_the_script(tmp_path):
    (tmp_path / "moreauc").write_text(f'#!/bin/sh\nexec {sys.executable} -m moreauc "$@"\n')
    (tmp_path / "moreauc").chmod(0o755)
    script = run(_MOREAUC_COMPLETE="source_bash").stdout
    ask = 'COMP_WORDS=(moreauc fit a.csv --loss sta); COMP_CWORD=4; _moreauc_completion moreauc; echo "${COMPREPLY[@]}"'
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, env={**os.environ, "PATH": path}
    )
    assert done.stdout == "staco\n", done.stderr


# Pipes


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pipes")
    rows_table().to_csv(folder / "data.csv", index=False)
    words = ["--target", "state", "--model", "linear", "--baselines", "none", "--max-fpr", "0.5"]
    assert call("fit", folder / "data.csv", *words, "--out", folder / "run").exit_code == 0
    return folder


@pytest.mark.parametrize("command", ["--help", "predict run data.csv", "evaluate run data.csv"])
def test_a_closed_pipe_ends_a_command_silently(fitted, command):
    reading, writing = os.pipe()
    os.close(reading)  # as `head` does when it has seen enough
    words = [sys.executable, "-m", "moreauc", *command.split()]
    done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=fitted, timeout=60)
    os.close(writing)
    unexpected = [line for line in done.stderr.splitlines() if not line.startswith("warning: ")]
    assert done.returncode in (0, 1) and not unexpected, done.stderr
