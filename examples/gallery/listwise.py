"""Listwise cross entropy: the logarithm of an average over all items of a query, less the scores of relevant ones."""

import torch
from sklearn.datasets import make_friedman1
from sklearn.metrics import ndcg_score
from torch import Tensor, nn

from moreauc import FCCOLoss


def make_loss(queries: int, items: int) -> FCCOLoss:
    """Return the loss; row q holds the mean of exp(score) over the items of q, and the mean score by relevance."""
    return FCCOLoss(queries, lambda u, index: (items * u[:, 0]).log() - u[:, 1], dim=2, tau=0.5)


def inner(relevant: Tensor, items: Tensor) -> Tensor:
    """Return both for a batch, `(Q, 2)`, from scores of items drawn by relevance, `(Q, R)`, and evenly, `(Q, J)`."""
    return torch.stack([items.exp().mean(1), relevant.mean(1)], dim=1)


def main(seed: int = 0) -> dict[str, tuple[float, float]]:
    """Rank 40 items in each of 100 queries, 8 of them relevant; return the metric of new queries before and after."""
    torch.manual_seed(seed)
    x, y = (torch.tensor(part).float().view(2, 100, 40, -1) for part in make_friedman1(8000, random_state=seed))
    gain = 2.0 ** (4 - y.squeeze(3).argsort(descending=True).argsort() // 2).clamp_min(0) - 1
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(-2))
    criterion = make_loss(100, 40)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def metric() -> float:
        return float(ndcg_score(gain[1], model(x[1]).detach()))

    before = metric()
    for _ in range(300):
        q, j = torch.randperm(100)[:8], torch.randperm(40)[:16]
        i = torch.multinomial(gain[0, q], 4, replacement=True)
        scores = model(x[0, q])
        loss = criterion(inner(scores.gather(1, i), scores[:, j]), q)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"NDCG": (before, metric())}


if __name__ == "__main__":
    for name, (before, after) in main().items():
        print(f"{name}: {before:.3f} before, {after:.3f} after")
