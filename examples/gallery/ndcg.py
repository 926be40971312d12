"""NDCG (SONG) and top-K NDCG: the gain of each relevant item over the logarithm of its rank, an average over items."""

import torch
from sklearn.datasets import make_friedman1
from sklearn.metrics import ndcg_score
from torch import Tensor, nn

from moreauc import FCCOLoss


def make_loss(gain: Tensor, top_k: int | None = None) -> FCCOLoss:
    """Return the loss for gains `(Q, N)`; row q N + i holds the mean excess over item i of the others of query q."""
    ideal = gain.sort(descending=True).values / torch.arange(2, gain.shape[1] + 2, dtype=gain.dtype).log2()
    weight = ((gain > 0).sum(1, keepdim=True) * gain / ideal[:, :top_k].sum(1, keepdim=True)).flatten()

    def outer(u: Tensor, index: Tensor) -> Tensor:
        rank = 1 + (gain.shape[1] - 1) * u
        found = weight[index] / torch.log2(1 + rank)
        return 1 - found if top_k is None else 1 - found / (1 + (rank / (top_k + 0.5)).square())

    return FCCOLoss(gain.numel(), outer, tau=0.5)


def inner(relevant: Tensor, items: Tensor, other: Tensor) -> Tensor:
    """Return the means `(Q, R)` from scores `(Q, R)` and `(Q, J)`; `other`, `(Q, R, J)`, is False for the same item."""
    excess = torch.relu(1 + items.unsqueeze(1) - relevant.unsqueeze(2)).square()
    return (excess * other).sum(2) / other.sum(2)


def main(seed: int = 0, top_k: int | None = None) -> dict[str, tuple[float, float]]:
    """Rank 40 items in each of 100 queries, 8 of them relevant; return metrics of new queries before and after."""
    torch.manual_seed(seed)
    x, y = (torch.tensor(part).float().view(2, 100, 40, -1) for part in make_friedman1(8000, random_state=seed))
    gain = 2.0 ** (4 - y.squeeze(3).argsort(descending=True).argsort() // 2).clamp_min(0) - 1
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(-2))
    criterion = make_loss(gain[0], top_k)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def metrics() -> list[float]:
        return [float(ndcg_score(gain[1], model(x[1]).detach(), k=k)) for k in (None, 3)]

    before = metrics()
    for _ in range(300):
        q, j = torch.randperm(100)[:8], torch.randperm(40)[:16]
        i = torch.multinomial((gain[0, q] > 0).float(), 4)
        scores = model(x[0, q])
        g = inner(scores.gather(1, i), scores[:, j], i.unsqueeze(2) != j)
        loss = criterion(g.flatten(), (40 * q.unsqueeze(1) + i).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return dict(zip(("NDCG", "NDCG at 3"), zip(before, metrics(), strict=True), strict=True))


if __name__ == "__main__":
    for top_k in (None, 3):
        for name, (before, after) in main(top_k=top_k).items():
            print(f"trained for {top_k or 'all'} ranks, {name}: {before:.3f} before, {after:.3f} after")
