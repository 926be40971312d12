"""CVaR of samples: the mean of the largest expected losses of single samples, each an average over noisy inputs."""

import torch
from sklearn.datasets import make_friedman1
from torch import Tensor, nn

from moreauc import FCCOLoss


class Tail(nn.Module):
    """The function f(u, s) = s + (u - s)_+ / fraction with its threshold s, a parameter."""

    def __init__(self, fraction: float) -> None:
        super().__init__()
        self.fraction, self.s = fraction, nn.Parameter(torch.zeros(()))

    def forward(self, u: Tensor, index: Tensor) -> Tensor:
        """Return f of the rows, shape `(B1,)`."""
        return self.s + torch.relu(u - self.s) / self.fraction


def make_loss(samples: int, fraction: float) -> FCCOLoss:
    """Return the loss; row i holds the expected loss of sample i."""
    return FCCOLoss(samples, Tail(fraction), tau=0.3)


def inner(prediction: Tensor, target: Tensor) -> Tensor:
    """Return the mean absolute errors of samples, shape `(B1,)`, over draws of their noise, `(draws, B1)`."""
    return (prediction - target).abs().mean(0)


def main(seed: int = 0, fraction: float = 0.1) -> dict[str, tuple[float, float]]:
    """Regression from inputs measured with noise; return the metric of new samples before and after."""
    torch.manual_seed(seed)
    x, y = (torch.tensor(part).float() for part in make_friedman1(2000, random_state=seed))
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(-2))
    criterion = make_loss(1000, fraction)
    optimizer = torch.optim.Adam([*model.parameters(), *criterion.parameters()], lr=1e-2)

    def metric() -> float:
        return inner(model(x[1000:] + torch.randn(100, 1000, 10)), y[1000:]).detach().topk(100).values.mean().item()

    before = metric()
    for _ in range(600):
        i = torch.randperm(1000)[:64]
        loss = criterion(inner(model(x[i] + torch.randn(1, 64, 10)), y[i]), i)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"mean of the largest tenth of expected losses": (before, metric())}


if __name__ == "__main__":
    for name, (before, after) in main().items():
        print(f"{name}: {before:.3f} before, {after:.3f} after")
