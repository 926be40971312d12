"""The gallery of objectives: its runs, and its losses beside those of LibAUC 2.0.1 where that has the same objective.

1. Every file of `examples/gallery` with several seeds: its metric before and after, and after training with the
   parameter at which the objective is a plain mean.
2. Value and gradient of the first step, on the whole data set: with the weight of new values 1, where tables that start
   at 0 hold what was observed as ours do, and with 0.9, LibAUC's default.
3. Forward and backward from scores, the candidates in turns, one thread each (see `peer.py`). For losses of pairs also
   a sum of Python over the labels, by which LibAUC asks whether there is a positive.

`python benchmarks/bench_gallery.py --out FILE` writes the report.
"""

from __future__ import annotations

import argparse
import platform
import runpy
import statistics
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from bench_pairs import Turn, take_turns, write
from gallery_peer import (
    ITEMS,
    MAX_FPR,
    RELEVANT,
    TEMPERATURE,
    TOP_K,
    Step,
    pair_scores,
    query_scores,
    step_of,
    view_features,
)
from peer import HERE, Peer, environment, repeat, summary
from torch import Tensor
from torch.nn.functional import normalize

from moreauc.app.report.pages import versions

GALLERY = HERE.parent / "examples" / "gallery"
NAMES = sorted(path.stem for path in GALLERY.glob("*.py"))
PLAIN: dict[str, dict[str, float]] = {  # where the objective is the mean of its losses, or close to it
    "partial_auc_cvar": {"max_fpr": 1.0},
    "partial_auc_kl": {"temperature": 100.0},
    "p_norm_push": {"p": 1.0},
    "sample_cvar": {"fraction": 1.0},
    "worst_tasks": {"k": 10},
    "worst_partial_auc": {"k": 10},
}
SIZES = (32, 256)
PAIRS = ("average_precision", "partial_auc_cvar", "partial_auc_kl")
ALWAYS = "LibAUC updates a row before it uses it, we after."


class Compared(NamedTuple):
    """LibAUC's counterpart.

    Attributes:
        libauc: its class.
        factor: its gradient over ours with the weight 1; None where it has another objective.
        why: what differs, in words.
    """

    libauc: str
    factor: float | None
    why: str


COMPARED = {
    "average_precision": Compared(
        "APLoss",
        1.0,
        "Its value is that of a function linear in the pair losses, 0 up to rounding. Its rows start at 0, which "
        "divides the first gradient by 0.9.",
    ),
    "ndcg": Compared(
        "NDCGLoss",
        1.0,
        "Its value is that of a function linear in the averages. Its rows start at 0, so that the first ranks are 0.9 "
        "of those observed.",
    ),
    "ndcg, top 3": Compared(
        "NDCGLoss(topk=3)",
        None,
        "Another objective. It selects items by a score threshold for each query, which solves a problem of its own "
        "and starts at 0; we select by the smoothed rank, which needs no further level.",
    ),
    "partial_auc_cvar": Compared("pAUC_CVaR_Loss", 1.0, "It moves its thresholds itself; ours are parameters."),
    "partial_auc_kl": Compared(
        "pAUC_DRO_Loss",
        1.0,
        "Its value is the weighted mean of the pair losses, without the KL term. Its rows start at 0, which divides "
        "the first gradient by 0.9.",
    ),
    "contrastive": Compared(
        "GCLoss (unimodal)",
        1.0,
        "Its value is that of a function linear in the cosines. Its first step fills the rows, as ours does; later "
        "steps have one row for both views of a sample, ours one for each.",
    ),
    "listwise": Compared(
        "ListwiseCELoss",
        float(ITEMS - 1),
        f"It sums over the {ITEMS - 1} items of an average where we divide. Its rows start at 0, which divides the "
        "first gradient by 0.9, and are in units of the largest difference in a batch, which each batch has anew.",
    ),
}


@cache
def gallery(name: str) -> dict[str, Any]:
    """Return the names that a file of the gallery defines."""
    return runpy.run_path(str(GALLERY / f"{name.split(',')[0]}.py"))


def our_step(name: str, size: int, tau: float) -> Step:
    """Return forward and backward of the gallery's loss on the data that LibAUC gets."""
    file = gallery(name)
    criterion, inner, leaf = _OURS[name](file, size)
    criterion.tau = tau
    index = torch.arange(criterion.num_blocks) if not name.startswith("ndcg") else _relevant_blocks(size)

    def loss() -> Tensor:
        value: Tensor = criterion(inner(), index)
        return value

    return step_of(loss, leaf)


Ours = tuple[Any, Callable[[], Tensor], Tensor]  # loss, inner values, and what wants the gradient


def _average_precision(file: dict[str, Any], size: int) -> Ours:
    scores, _ = pair_scores(size)
    return file["make_loss"](size, 3 * size), lambda: file["inner"](scores[:size], scores[size:]), scores


def _partial_auc_cvar(file: dict[str, Any], size: int) -> Ours:
    scores, _ = pair_scores(size)
    threshold = torch.zeros(size, requires_grad=True)

    def inner() -> Tensor:
        values: Tensor = file["inner"](scores[:size], scores[size:], threshold, MAX_FPR)
        return values

    return file["make_loss"](size), inner, scores


def _partial_auc_kl(file: dict[str, Any], size: int) -> Ours:
    scores, _ = pair_scores(size)
    loss = file["make_loss"](size, TEMPERATURE)
    return loss, lambda: file["inner"](scores[:size], scores[size:], TEMPERATURE), scores


def _relevant_blocks(size: int) -> Tensor:
    return (ITEMS * torch.arange(size).unsqueeze(1) + torch.arange(RELEVANT)).flatten()


def _ndcg(file: dict[str, Any], size: int, top_k: int | None = None) -> Ours:
    scores, grades = query_scores(size)
    other = torch.arange(RELEVANT).unsqueeze(1) != torch.arange(ITEMS)
    loss = file["make_loss"](2.0**grades - 1.0, top_k)
    return loss, lambda: file["inner"](scores[:, :RELEVANT], scores, other.expand(size, -1, -1)).flatten(), scores


def _top_k_ndcg(file: dict[str, Any], size: int) -> Ours:
    return _ndcg(file, size, TOP_K)


def _contrastive(file: dict[str, Any], size: int) -> Ours:
    features = view_features(size)
    return file["make_loss"](size), lambda: file["inner"](*normalize(features, dim=2)), features


def _listwise(file: dict[str, Any], size: int) -> Ours:
    """One relevant item, and the average over the others only, as LibAUC has it."""
    scores, _ = query_scores(size)
    return file["make_loss"](size, ITEMS - 1), lambda: file["inner"](scores[:, :1], scores[:, 1:]), scores


_OURS: dict[str, Callable[[dict[str, Any], int], Ours]] = {
    "average_precision": _average_precision,
    "ndcg": _ndcg,
    "ndcg, top 3": _top_k_ndcg,
    "partial_auc_cvar": _partial_auc_cvar,
    "partial_auc_kl": _partial_auc_kl,
    "contrastive": _contrastive,
    "listwise": _listwise,
}


def runs(seeds: int) -> list[dict[str, Any]]:
    """A row for each metric of each file: before and after, by seed."""
    rows = []
    for name in NAMES:
        variants: list[tuple[str, dict[str, Any]]] = [(name, {})]
        variants += [(f"{name}, top 3", {"top_k": 3})] if name == "ndcg" else []
        for title, options in variants:
            begin = time.perf_counter()
            found = [gallery(name)["main"](seed=seed, **options) for seed in range(seeds)]
            seconds = (time.perf_counter() - begin) / seeds
            plain = (
                [gallery(name)["main"](seed=seed, **PLAIN[name]) for seed in range(seeds)] if name in PLAIN else None
            )
            for metric in found[0]:
                row: dict[str, Any] = {"example": title, "metric": metric, "seconds": seconds}
                row["before"], row["after"] = ([run[metric][part] for run in found] for part in (0, 1))
                if plain is not None:
                    row |= {"plain": PLAIN[name], "after, plain": [run[metric][1] for run in plain]}
                rows.append(row)
    return rows


def first_step(name: str, size: int, peer: Peer) -> dict[str, Any]:
    """Value and gradient of the first step beside LibAUC's."""
    compared = COMPARED[name]
    row: dict[str, Any] = {"example": name, "LibAUC": compared.libauc, "size": size, "factor": compared.factor}
    for weight in (1.0, 0.9):
        step, leaf = our_step(name, size, weight)
        value = step().item()
        theirs = peer.ask("first_of_gallery", name=name, size=size, gamma=weight)
        if leaf.grad is None or "error" in theirs:
            raise RuntimeError(f"{name}: {theirs.get('error', 'no gradient')}")
        ours, other = leaf.grad.flatten().double(), torch.tensor(theirs["gradient"], dtype=torch.float64)
        scaled = ours * (compared.factor or 1.0)
        row[f"weight {weight:g}"] = {
            "value": value,
            "LibAUC value": theirs["value"],
            "gradient gap": ((other - scaled).abs().max() / scaled.abs().max()).item(),
            "norm over ours": (other.norm() / ours.norm()).item(),
            "cosine": (ours @ other / ours.norm() / other.norm()).item(),
        }
    return row | {"why": compared.why}


def timed(name: str, size: int, peer: Peer, options: argparse.Namespace) -> dict[str, Any]:
    """Microseconds of forward and backward, in turns; of the processor, since other programs may use it, too."""

    def theirs(times: int) -> list[float]:
        answer = peer.ask("gallery", name=name, size=size, times=times)
        if "error" in answer:
            raise RuntimeError(f"{name}: {answer['error']}")
        seconds: list[float] = answer["seconds"]
        return seconds

    def turn(step: Callable[[], object]) -> Turn:
        return lambda times: repeat(step, times, time.process_time)

    turns: dict[str, Turn] = {"gallery": turn(our_step(name, size, 0.9)[0]), "LibAUC": theirs}
    if name in PAIRS:
        mask = pair_scores(size)[1] == 1
        turns["sum of the labels"] = turn(lambda: sum(mask))
    times = take_turns(turns, rounds=options.rounds, seconds=options.seconds)
    ratio = statistics.median(a / b for a, b in zip(times["LibAUC"], times["gallery"], strict=True))
    return {"example": name, "size": size, **{who: summary(part) for who, part in times.items()}, "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES), help="positives, queries or samples")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=10.0, help="about how long one comparison may take")
    parser.add_argument("--without-peer", action="store_true", help="leave LibAUC out: nothing is installed")
    parser.add_argument("--environment", type=Path, default=HERE / ".libauc-venv", help="where LibAUC is installed")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    command = f"--seeds {options.seeds} --sizes {' '.join(map(str, options.sizes))} --rounds {options.rounds}"
    command += f" --seconds {options.seconds:g}" + " --without-peer" * options.without_peer
    result: dict[str, Any] = {
        "title": "the gallery of objectives",
        "command": f"python benchmarks/bench_gallery.py {command}",
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d"),
        "device": f"{platform.machine()}, one thread, float32; time of the processor",
        "runs": runs(options.seeds),
    }
    if not options.without_peer:
        with Peer(environment(options.environment)) as peer:
            result["peer"] = peer.ask("versions")
            result["every loss"] = ALWAYS
            result["first step"] = [first_step(name, options.sizes[0], peer) for name in COMPARED]
            result["times"] = [timed(name, size, peer, options) for name in COMPARED for size in options.sizes]
    write(result, options.out)


if __name__ == "__main__":
    main()
