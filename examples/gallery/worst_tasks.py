"""The K worst of several tasks, two levels: a row for the mean loss of each task, and a threshold between them."""

import torch
from sklearn.datasets import make_regression
from torch import Tensor, nn

from moreauc import FCCOLoss

TASKS = 10


class Worst(nn.Module):
    """The function f(u, s) = s + TASKS / k (u - s)_+ with its threshold s, a parameter."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k, self.s = k, nn.Parameter(torch.zeros(()))

    def forward(self, u: Tensor, index: Tensor) -> Tensor:
        """Return f of the rows, shape `(B1,)`."""
        return self.s + torch.relu(u - self.s) * TASKS / self.k


def make_loss(k: int) -> FCCOLoss:
    """Return the loss; row t holds the mean loss of task t."""
    return FCCOLoss(TASKS, Worst(k), tau=0.2)


def inner(prediction: Tensor, target: Tensor) -> Tensor:
    """Return the mean absolute error of each task in a batch, shape `(B1,)`, over its samples, `(B1, samples)`."""
    return (prediction - target).abs().mean(1)


def main(seed: int = 0, k: int = 3) -> dict[str, tuple[float, float]]:
    """Ten regressions share five features of a network; return the metric of new samples before and after."""
    torch.manual_seed(seed)
    data = make_regression(2000, 20, n_informative=8, n_targets=TASKS, random_state=seed)
    x, y = (torch.tensor(part / part.std(0)).float() for part in data)
    model = nn.Sequential(nn.Linear(20, 5), nn.Linear(5, TASKS))
    criterion = make_loss(k)
    optimizer = torch.optim.Adam([*model.parameters(), *criterion.parameters()], lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, 1000)

    def metric() -> float:
        return inner(model(x[1000:]).T, y[1000:].T).detach().topk(3).values.mean().item()

    before = metric()
    for _ in range(1000):
        task, rows = torch.randperm(TASKS)[:4], torch.randint(1000, (4, 8))
        prediction = model(x[rows])[torch.arange(4), :, task]
        loss = criterion(inner(prediction, y[rows, task.unsqueeze(1)]), task)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return {"mean loss of the three worst tasks": (before, metric())}


if __name__ == "__main__":
    for name, (before, after) in main().items():
        print(f"{name}: {before:.3f} before, {after:.3f} after")
