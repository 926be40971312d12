"""The data on which the objectives of the gallery are compared with LibAUC, and LibAUC's side of it; see `peer.py`.

Every batch is the whole data set, so that averages over batches are those of the definition.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

TEMPERATURE = 0.5  # of the partial AUC by KL
COSINE_TEMPERATURE = 0.2  # that of examples/gallery/contrastive.py
MAX_FPR, TOP_K = 0.1, 3
ITEMS, RELEVANT = 40, 8  # of a query
Step = tuple[Callable[[], Tensor], Tensor]  # forward and backward, and the tensor whose gradient it fills


def pair_scores(size: int) -> tuple[Tensor, Tensor]:
    """Return scores in (0, 1) that want a gradient, three negatives after each positive's share, and labels."""
    labels = (torch.arange(4 * size) < size).long()
    scores = torch.randn(4 * size, generator=torch.Generator().manual_seed(size)) + 0.5 * labels
    return torch.sigmoid(scores).requires_grad_(), labels


def query_scores(size: int) -> tuple[Tensor, Tensor]:
    """Return scores of the items of `size` queries, `(size, ITEMS)`, and grades, above 0 for the first `RELEVANT`."""
    scores = torch.randn(size, ITEMS, generator=torch.Generator().manual_seed(size)).requires_grad_()
    grades = torch.cat([torch.arange(RELEVANT) // 2 + 1, torch.zeros(ITEMS - RELEVANT, dtype=torch.long)])
    return scores, grades.expand(size, ITEMS)


def view_features(size: int) -> Tensor:
    """Return features of two views of `size` samples, `(2, size, 64)`."""
    random = torch.Generator().manual_seed(size)
    both = torch.randn(size, 64, generator=random) + torch.randn(2, size, 64, generator=random)
    return both.requires_grad_()


def step_of(loss: Callable[[], Tensor], leaf: Tensor) -> Step:
    """Return forward and backward of a loss."""

    def step() -> Tensor:
        leaf.grad = None
        value = loss()
        torch.autograd.backward(value)
        return value.detach()

    return step, leaf


def libauc_step(name: str, size: int, gamma: float) -> Step:
    """Return a step of LibAUC's loss; `gamma` is its weight of new values, which we call tau."""
    losses = importlib.import_module("libauc.losses")
    with contextlib.redirect_stdout(sys.stderr):  # some losses print when they are made
        return _STEPS[name](losses, size, gamma)


def run_code(code: str) -> dict[str, Any]:
    """Run code of docs/libauc.md and return `found`, or the value of `loss` and the gradient in the weights."""
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(sys.stderr):
        exec(compile(code, "docs/libauc.md", "exec"), names)
    if "found" in names:
        return {"found": [float(value) for value in names["found"]]}
    gradients = [parameter.grad.flatten() for parameter in names["model"].parameters()]
    return {"value": names["loss"].item(), "gradient": torch.cat(gradients).tolist()}


def _average_precision(losses: Any, size: int, gamma: float) -> Step:
    return _pairs(losses.APLoss(data_len=4 * size, gamma=gamma), size)


def _partial_auc_cvar(losses: Any, size: int, gamma: float) -> Step:
    make = importlib.import_module("libauc.losses.auc").pAUC_CVaR_Loss
    return _pairs(make(data_len=4 * size, pos_len=size, beta=MAX_FPR), size)


def _partial_auc_kl(losses: Any, size: int, gamma: float) -> Step:
    make = importlib.import_module("libauc.losses.auc").pAUC_DRO_Loss
    return _pairs(make(data_len=4 * size, gamma=gamma, Lambda=TEMPERATURE), size)


def _pairs(criterion: Any, size: int) -> Step:
    scores, labels = pair_scores(size)
    index = torch.arange(len(labels))
    return step_of(lambda: criterion(scores.unsqueeze(1), labels, index), scores)


def _ndcg(losses: Any, size: int, gamma: float, top_k: int = -1) -> Step:
    scores, grades = query_scores(size)
    gain = 2.0**grades - 1.0
    places = torch.arange(2.0, ITEMS + 2.0).log2()
    ideal = gain.sort(descending=True).values / places
    batch = {
        "rating": grades,
        "user_id": torch.arange(size),
        "num_pos_items": torch.full((size,), RELEVANT),
        "ideal_dcg": ideal[:, : top_k if top_k > 0 else ITEMS].sum(1),
        "user_item_id": torch.arange(size * ITEMS).view(size, ITEMS),
    }
    criterion = losses.NDCGLoss(
        N=size * ITEMS, num_user=size, num_item=ITEMS, num_pos=RELEVANT, gamma0=gamma, topk=top_k
    )
    return step_of(lambda: criterion(scores, batch), scores)


def _top_k_ndcg(losses: Any, size: int, gamma: float) -> Step:
    return _ndcg(losses, size, gamma, TOP_K)


def _contrastive(losses: Any, size: int, gamma: float) -> Step:
    features, index = view_features(size), torch.arange(size)
    criterion = losses.GCLoss(mode="unimodal", N=size, tau=COSINE_TEMPERATURE, gamma=gamma)
    return step_of(lambda: criterion(features[0], features[1], index), features)


def _listwise(losses: Any, size: int, gamma: float) -> Step:
    scores, _ = query_scores(size)
    batch = {"user_item_id": torch.arange(size * ITEMS).view(size, ITEMS)}
    criterion = losses.ListwiseCELoss(N=size * ITEMS, num_pos=1, gamma=gamma)
    return step_of(lambda: criterion(scores, batch), scores)


_STEPS: dict[str, Callable[[Any, int, float], Step]] = {
    "average_precision": _average_precision,
    "ndcg": _ndcg,
    "ndcg, top 3": _top_k_ndcg,
    "partial_auc_cvar": _partial_auc_cvar,
    "partial_auc_kl": _partial_auc_kl,
    "contrastive": _contrastive,
    "listwise": _listwise,
}
