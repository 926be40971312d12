"""The gallery: each file runs, improves its metric and agrees with loops from definitions."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gallery_oracles as oracles
import pytest
import torch
from gallery_oracles import mean
from torch.nn.functional import normalize

FOLDER = Path(__file__).parents[1] / "examples" / "gallery"
FILES = sorted(FOLDER.glob("*.py"))


@cache
def script(name: str) -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / f"{name}.py"))


@dataclass(frozen=True)
class Problem:
    """An objective on numbers `w`, which stand for the scores of a model, and its parts in the gallery and as loops.

    Attributes:
        build: the names of the file -> its loss.
        size: length of `w`.
        draw: make a batch of all data, in a random order.
        call: names of the file, `w`, batch -> inner values and block numbers, as the file's `main` calls the loss.
        exact: `w` and the threshold -> the objective by its definition.
    """

    file: str
    build: Callable[[dict[str, Any]], Any]
    size: int
    draw: Callable[[], Any]
    call: Callable[[dict[str, Any], torch.Tensor, Any], tuple[torch.Tensor, ...]]
    exact: Callable[..., Any]


def rows_and_columns(rows: int, columns: int) -> Callable[[], Any]:
    return lambda: (torch.randperm(rows), torch.randperm(columns))


P, N = 5, 7  # positives, negatives
BOTH = rows_and_columns(P, N)


def classes(w: torch.Tensor, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return w[batch[0]], w[P + batch[1]]


Q, ITEMS = 4, 6
GRADES = [[3, 1, 0, 0, 2, 0], [0, 1, 0, 2, 1, 0], [1, 0, 3, 2, 0, 0], [0, 0, 0, 1, 1, 1]]  # 3 relevant in each query
GAIN = [[2.0**grade - 1.0 for grade in row] for row in GRADES]
RELEVANT = torch.tensor([[place for place, grade in enumerate(row) if grade > 0] for row in GRADES])
BY_GRADE = [[place for place, grade in enumerate(row) for _ in range(grade)] for row in GRADES]


def draw_relevant() -> Any:
    """Draw queries, relevant items of each, and items for all of them."""
    q = torch.randperm(Q)
    return q, RELEVANT[q], torch.randperm(ITEMS)


def ndcg_call(file: dict[str, Any], w: torch.Tensor, batch: Any) -> tuple[torch.Tensor, ...]:
    (q, i, j), scores = batch, w.view(Q, ITEMS)[batch[0]]
    inner = file["inner"](scores.gather(1, i), scores[:, j], i.unsqueeze(2) != j)
    return inner.flatten(), (ITEMS * q.unsqueeze(1) + i).flatten()


def ndcg_problem(top_k: int | None) -> Problem:
    return Problem(
        "ndcg",
        lambda file: file["make_loss"](torch.tensor(GAIN, dtype=torch.float64), top_k),
        Q * ITEMS,
        draw_relevant,
        ndcg_call,
        lambda w, s: oracles.ndcg(w, GAIN, top_k),
    )


def listwise_call(file: dict[str, Any], w: torch.Tensor, batch: Any) -> tuple[torch.Tensor, ...]:
    """Call the file query by query, whose numbers of items differ in the whole batch."""
    (q, i, j), scores = batch, w.view(Q, ITEMS)
    own = zip(q.tolist(), i, strict=True)
    parts = [file["inner"](scores[k, items].unsqueeze(0), scores[k, j].unsqueeze(0)) for k, items in own]
    return torch.cat(parts), q


SAMPLES = 5
VIEWS = (2, SAMPLES, 2)


def contrastive_call(file: dict[str, Any], w: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b = normalize(w.view(VIEWS)[:, batch], dim=2)
    return file["inner"](a, b), batch


TASKS, OF_TASK = 10, 4
RANDOM = torch.Generator().manual_seed(1)
TARGET = torch.randn(TASKS, OF_TASK, generator=RANDOM, dtype=torch.float64)
NOISE = torch.randn(3, 8, generator=RANDOM, dtype=torch.float64)


def cvar_call(file: dict[str, Any], w: torch.Tensor, batch: Any) -> tuple[torch.Tensor, ...]:
    i, draws = batch
    return file["inner"](w[i] + NOISE[draws][:, i], TARGET.flatten()[i]), i


def shortage(i: int, w: Any, draws: Sequence[int]) -> Any:
    return mean([float(NOISE[draw, i]) + 0.4 - w[i] for draw in draws]) - 0.5


def tasks_call(file: dict[str, Any], w: torch.Tensor, batch: Any) -> tuple[torch.Tensor, ...]:
    task, rows = batch[0].unsqueeze(1), batch[1]
    return file["inner"](w.view(TASKS, OF_TASK)[task, rows], TARGET[task, rows]), batch[0]


PROBLEMS = {
    "average_precision": Problem(
        "average_precision",
        lambda file: file["make_loss"](P, N),
        P + N,
        BOTH,
        lambda file, w, batch: (file["inner"](*classes(w, batch)), batch[0]),
        lambda w, s: oracles.average_precision(w, P),
    ),
    "ndcg": ndcg_problem(None),
    "ndcg, top 3": ndcg_problem(3),
    "partial_auc_cvar": Problem(
        "partial_auc_cvar",
        lambda file: file["make_loss"](P),
        P + N + P,
        BOTH,
        lambda file, w, batch: (file["inner"](*classes(w, batch), w[P + N :][batch[0]], 0.3), batch[0]),
        lambda w, s: oracles.partial_auc_cvar(w, P, N, 0.3),
    ),
    "partial_auc_kl": Problem(
        "partial_auc_kl",
        lambda file: file["make_loss"](P, 0.7),
        P + N,
        BOTH,
        lambda file, w, batch: (file["inner"](*classes(w, batch), 0.7), batch[0]),
        lambda w, s: oracles.partial_auc_kl(w, P, 0.7),
    ),
    "p_norm_push": Problem(
        "p_norm_push",
        lambda file: file["make_loss"](N, 3.0),
        P + N,
        BOTH,
        lambda file, w, batch: (file["inner"](*classes(w, batch)), batch[1]),
        lambda w, s: oracles.p_norm_push(w, P, 3),
    ),
    "contrastive": Problem(
        "contrastive",
        lambda file: file["make_loss"](SAMPLES),
        4 * SAMPLES,
        lambda: torch.randperm(SAMPLES),
        contrastive_call,
        lambda w, s: oracles.contrastive(w, 0.2),
    ),
    "listwise": Problem(
        "listwise",
        lambda file: file["make_loss"](Q, ITEMS),
        Q * ITEMS,
        lambda: (torch.arange(Q), BY_GRADE, torch.arange(ITEMS)),  # an item as often as its relevance says
        listwise_call,
        lambda w, s: oracles.listwise(w, GRADES),
    ),
    "sample_cvar": Problem(
        "sample_cvar",
        lambda file: file["make_loss"](8, 0.3),
        8,
        rows_and_columns(8, 3),
        cvar_call,
        lambda w, s: oracles.sample_cvar(w, s, TARGET.flatten().tolist(), NOISE.tolist(), 0.3),
    ),
    "constraints": Problem(
        "constraints",
        lambda file: file["make_loss"](8),
        8,
        rows_and_columns(8, 3),
        lambda file, w, batch: (file["inner"](NOISE[batch[1]][:, batch[0]].T + 0.4 - w[batch[0], None]), batch[0]),
        lambda w, s: mean([shortage(i, w, range(3)).clamp_min(0.0) for i in range(8)]),
    ),
    "worst_tasks": Problem(
        "worst_tasks",
        lambda file: file["make_loss"](4),
        TASKS * OF_TASK,
        rows_and_columns(TASKS, OF_TASK),
        tasks_call,
        lambda w, s: oracles.worst_tasks(w, s, TARGET.tolist(), 4),
    ),
}


@pytest.fixture(params=PROBLEMS)
def problem(request: pytest.FixtureRequest) -> Problem:
    return PROBLEMS[request.param]


def start(size: int) -> torch.Tensor:
    return (0.7 * torch.randn(size, dtype=torch.float64)).requires_grad_()


def threshold_of(criterion: Any) -> torch.Tensor | None:
    """Return the parameter of the loss, at a value that some blocks exceed; None where there is none."""
    found = list(criterion.parameters())
    for parameter in found:
        parameter.data.fill_(0.6)
    return found[0] if found else None


def check_first_step(value: torch.Tensor, points: Sequence[torch.Tensor | None], exact: Callable[..., Any]) -> None:
    """Compare a loss and its gradient with autograd of the definition."""
    present = [point for point in points if point is not None]
    value.backward()
    w = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in present[0].tolist()]
    s = torch.tensor(present[1].item() if len(present) > 1 else 0.0, dtype=torch.float64, requires_grad=True)
    expected = exact(w, s)
    slopes = torch.autograd.grad(expected, [*w, s], allow_unused=True)
    *slopes, slope_s = [0.0 if slope is None else slope.item() for slope in slopes]
    assert value.item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-9)
    assert present[0].grad.tolist() == pytest.approx(slopes, rel=1e-9, abs=1e-9)
    assert max(map(abs, slopes)) > 1e-3
    if len(present) > 1:
        assert present[1].grad.item() == pytest.approx(slope_s, rel=1e-9, abs=1e-9)


def test_the_first_step_on_everything_is_that_of_the_definition(problem):
    file, w = script(problem.file), start(problem.size)
    criterion = problem.build(file).double()
    criterion.tau = 1.0
    threshold = threshold_of(criterion)
    value = criterion(*problem.call(file, w, problem.draw()))
    check_first_step(value, [w, threshold], problem.exact)


# three levels

POS, NEG = 3, 4  # of each task


def worst_call(file: dict[str, Any], w: torch.Tensor, batch: Any) -> tuple[torch.Tensor, ...]:
    task, i, j = batch
    own = w.view(TASKS, POS + NEG)[task]
    return file["inner"](own.gather(1, i), own[:, POS + j]), task, i


def draw_tasks() -> Any:
    return torch.randperm(TASKS), torch.stack([torch.randperm(POS) for _ in range(TASKS)]), torch.randperm(NEG)


def test_the_first_step_of_three_levels_is_that_of_the_definition():
    file, w = script("worst_partial_auc"), start(TASKS * (POS + NEG))
    criterion = file["make_loss"](POS, 4).double()
    criterion.tau1 = criterion.tau2 = 1.0
    threshold = threshold_of(criterion)
    value = criterion(*worst_call(file, w, draw_tasks()))
    check_first_step(value, [w, threshold], lambda w, s: oracles.worst_partial_auc(w, s, POS, NEG, 4, 0.5))


# the files


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_file_runs_and_improves_its_metric(path, capsys):
    runpy.run_path(str(path), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    found = [re.fullmatch(r"(.+): (\d\.\d{3}) before, (\d\.\d{3}) after", line) for line in lines]
    assert len(found) == (4 if path.stem == "ndcg" else 1)
    for line in found:
        before, after = float(line[2]), float(line[3])
        if "loss" in line[1]:
            assert after < 0.75 * before
        else:
            assert after > before + 0.15
