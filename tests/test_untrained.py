"""Weights from before training are kept only with a warning: in Python, on the terminal, in the log and on the page."""

from __future__ import annotations

import html
import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from moreauc.app.cli import app
from moreauc.estimators import GroupDROClassifier, MultiInstanceClassifier, TPAUCClassifier, network_fit
from moreauc.train import UntrainedWarning
from moreauc.train import loop as train

pytestmark = pytest.mark.usefixtures("blank_figures")


class Turned(nn.Module):
    """Scores rows by their first column, and the other way round from the first step of training on."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("sign", torch.ones(()))

    def forward(self, inputs):
        if self.training:
            self.sign.fill_(-1.0)
        return self.sign * self.weight * inputs[:, 0]


def table(rows: int = 120) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).normal(size=(rows, 2))
    return X, (X[:, 0] > 0).astype(int), np.arange(rows) % 3


QUICK = {"module": Turned, "epochs": 2, "lr": 1e-4, "random_state": 0}


def fit_rows(**options):
    X, y, _ = table()
    return TPAUCClassifier(**{**QUICK, **options}).fit(X, y)


def fit_bags(**options):
    X, y, _ = table()
    return MultiInstanceClassifier(loss="sont_mean", **{**QUICK, **options}).fit([row[None] for row in X], y)


def fit_groups(**options):
    X, y, groups = table()
    return GroupDROClassifier(**{**QUICK, **options}).fit(X, y, groups=groups)


@pytest.mark.parametrize("fit", [fit_rows, fit_bags, fit_groups])
def test_every_estimator_warns(fit):
    with pytest.warns(UntrainedWarning, match="fit: no epoch did better .* than the weights before training"):
        model = fit()
    assert model.history_.untrained and model.history_.best_epoch == -1
    assert not fit(validation_fraction=0.0).history_.untrained  # the last epoch is kept, and nothing is said


def csv(path):
    X, y, groups = table()
    frame = pd.DataFrame(X, columns=["size", "shape"]).assign(y=y, site=groups, bag=[f"b{k}" for k in range(len(y))])
    frame.to_csv(path, index=False)
    return path


def command(folder, *words):
    line = ["fit", csv(folder / "data.csv"), "--target", "y", "--out", folder / "run", *words]
    result = CliRunner().invoke(app, [str(word) for word in line])
    assert result.exit_code == 0, result.output
    return result.stderr, json.loads((folder / "run" / "report.json").read_text())["warnings"]


@pytest.mark.parametrize(
    ("words", "titles"),
    [
        (["--drop", "bag,site", "--model", "linear", "--loss", "sonx", "--baselines", "none"], ["SONX"]),
        (["--bags", "bag", "--drop", "site", "--baselines", "ce_att"], ["SONT (attention)", "CE (attention)"]),
        (["--groups", "site", "--drop", "bag"], ["SONX", "ERM"]),
    ],
)
def test_the_command_says_so_in_every_place(words, titles, tmp_path, monkeypatch):
    def untrained(*parts, **options):
        history = train.fit(*parts, **options)
        history.best_epoch = -1
        return history

    monkeypatch.setattr(network_fit, "fit", untrained)
    errors, notes = command(tmp_path, "--epochs", 1, *words)
    page = html.unescape((tmp_path / "run" / "report.html").read_text())
    log = (tmp_path / "run" / "log.txt").read_text()
    for note, title in zip(notes, titles, strict=True):
        assert note.startswith(f"{title} is untrained. No epoch did better")
        assert f"warning: {note}" in errors and note in page and f"WARNING {title} is untrained" in log
    assert page.count("before training") >= 2 * len(titles) and "after epoch 0" not in page


def test_a_trained_model_has_no_note(tmp_path):
    errors, notes = command(tmp_path, "--groups", "site", "--drop", "bag", "--epochs", 3)
    assert "warning" not in errors and notes == []
