"""One-way partial AUC by KL (SOPA-s): a soft maximum over the negatives, the logarithm of an average, per positive."""

import torch
from sklearn.datasets import make_classification
from torch import Tensor, nn

from moreauc import FCCOLoss
from moreauc.metrics import tpauc_score


def make_loss(positives: int, temperature: float) -> FCCOLoss:
    """Return the loss; row i holds the mean of exp(l_ij / temperature) over the negatives j."""
    return FCCOLoss(positives, lambda u, index: temperature * u.log(), tau=0.5)


def inner(positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    """Return this mean for each positive of a batch, shape `(B1,)`, from scores of shape `(B1,)` and `(B2,)`."""
    losses = torch.relu(1 + negative - positive.unsqueeze(1)).square()
    return (losses / temperature).exp().mean(1)


def main(seed: int = 0, temperature: float = 0.5) -> dict[str, tuple[float, float]]:
    """Train on rows of which a tenth are positive; return the metric of new rows before and after."""
    torch.manual_seed(seed)
    options = {"n_informative": 8, "n_clusters_per_class": 3, "weights": [0.9], "class_sep": 0.7, "flip_y": 0.02}
    data, labels = make_classification(4000, random_state=seed, **options)
    x, y = torch.tensor(data).float(), torch.tensor(labels == 1)
    positive, negative = x[:2000][y[:2000]], x[:2000][~y[:2000]]
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid(), nn.Flatten(0))
    criterion = make_loss(len(positive), temperature)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def metric() -> float:
        return tpauc_score(y[2000:], model(x[2000:]).detach(), min_tpr=0.0, max_fpr=0.1)

    before = metric()
    for _ in range(300):
        i, j = torch.randperm(len(positive))[:16], torch.randperm(len(negative))[:64]
        loss = criterion(inner(model(positive[i]), model(negative[j]), temperature), i)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"partial AUC up to a false positive rate of 0.1": (before, metric())}


if __name__ == "__main__":
    for name, (before, after) in main().items():
        print(f"{name}: {before:.3f} before, {after:.3f} after")
