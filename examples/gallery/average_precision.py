"""Average precision (SOAP): one minus the precision at the rank of each positive, a quotient of two averages."""

import torch
from sklearn.datasets import load_digits
from sklearn.metrics import average_precision_score
from torch import Tensor, nn

from moreauc import FCCOLoss


def make_loss(positives: int, negatives: int) -> FCCOLoss:
    """Return the loss; row i holds the mean excess over positive i of the other positives, and of the negatives."""

    def outer(u: Tensor, index: Tensor) -> Tensor:
        right, wrong = 1 + (positives - 1) * u[:, 0], negatives * u[:, 1]
        return wrong / (right + wrong)

    return FCCOLoss(positives, outer, dim=2, tau=0.5)


def inner(positive: Tensor, negative: Tensor) -> Tensor:
    """Return both means for each positive of a batch, shape `(B1, 2)`, from scores of shape `(B1,)` and `(B2,)`."""
    among = torch.relu(1 + positive - positive.unsqueeze(1)).square().fill_diagonal_(0)
    over = torch.relu(1 + negative - positive.unsqueeze(1)).square()
    return torch.stack([among.sum(1) / (len(positive) - 1), over.mean(1)], dim=1)


def main(seed: int = 0) -> dict[str, tuple[float, float]]:
    """Learn to tell eights from other digits; return the metric of new digits before and after."""
    torch.manual_seed(seed)
    digits = load_digits()
    x, eight = torch.tensor(digits.data / 16).float(), torch.tensor(digits.target == 8)
    positive, negative = x[:1000][eight[:1000]], x[:1000][~eight[:1000]]
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    criterion = make_loss(len(positive), len(negative))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def metric() -> float:
        return float(average_precision_score(eight[1000:], model(x[1000:]).detach()))

    before = metric()
    for _ in range(300):
        i, j = torch.randperm(len(positive))[:16], torch.randperm(len(negative))[:64]
        loss = criterion(inner(model(positive[i]), model(negative[j])), i)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"average precision": (before, metric())}


if __name__ == "__main__":
    for name, (before, after) in main().items():
        print(f"{name}: {before:.3f} before, {after:.3f} after")
