"""Global contrastive loss (SogCLR): the logarithm of an average over all other samples, for each view of a sample."""

import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn
from torch.nn.functional import normalize

from moreauc import FCCOLoss

TEMPERATURE = 0.2


def make_loss(samples: int) -> FCCOLoss:
    """Return the loss; row i holds the mean exp(cosine / T) with other samples of each view, and 2 cosine(a_i, b_i)."""
    return FCCOLoss(samples, lambda u, index: TEMPERATURE * u[:, :2].log().sum(1) - u[:, 2], dim=3, tau=0.5)


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Return these for a batch, shape `(B, 3)`, from unit vectors of both views, each `(B, dim)`."""
    aa, ab, bb = a @ a.T, a @ b.T, b @ b.T
    same = torch.eye(len(a), dtype=torch.bool).repeat(1, 2)
    rows = torch.stack([torch.cat([aa, ab], 1), torch.cat([bb, ab.T], 1)], dim=1)
    means = (rows / TEMPERATURE).exp().masked_fill(same.unsqueeze(1), 0.0).sum(2) / (2 * len(a) - 2)
    return torch.cat([means, 2 * ab.diagonal().unsqueeze(1)], dim=1)


def main(seed: int = 0) -> dict[str, tuple[float, float]]:
    """Learn 8 features of digits without their labels; return how well neighbours tell new digits, before and after."""
    torch.manual_seed(seed)
    digits = load_digits()
    x = torch.tensor(digits.data / 16).float()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    criterion = make_loss(1000)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def metric() -> float:
        features = normalize(model(x), dim=1).detach()
        neighbours = KNeighborsClassifier(1).fit(features[:1000], digits.target[:1000])
        return float(neighbours.score(features[1000:], digits.target[1000:]))

    before = metric()
    for _ in range(300):
        i = torch.randperm(1000)[:64]
        views = [x[i] * (torch.rand(64, 64) > 0.3) for _ in range(2)]  # pixels left out
        loss = criterion(inner(*(normalize(model(view), dim=1) for view in views)), i)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"accuracy of the nearest neighbour": (before, metric())}


if __name__ == "__main__":
    for name, (before, after) in main().items():
        print(f"{name}: {before:.3f} before, {after:.3f} after")
