"""The K worst of several tasks, three levels: each task is a one-way partial AUC by KL, a function of averages."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from moreauc import TCCOLoss
from moreauc.metrics import tpauc_score

TASKS, TEMPERATURE = 10, 0.5


class Worst(nn.Module):
    """The function f(u, s) = s + TASKS / k (u - s)_+ with its threshold s, a parameter."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k, self.s = k, nn.Parameter(torch.zeros(()))

    def forward(self, u: Tensor, index: Tensor) -> Tensor:
        """Return f of the rows, shape `(B1,)`."""
        return self.s + torch.relu(u - self.s) * TASKS / self.k


def make_loss(samples: int, k: int) -> TCCOLoss:
    """Return the loss; v_ti holds the mean exponential of positive i of task t, and u_t the mean logarithm of these."""
    return TCCOLoss(TASKS, samples, Worst(k), lambda v, index: TEMPERATURE * v.log(), tau1=0.5, tau2=0.3)


def inner(positive: Tensor, negative: Tensor) -> Tensor:
    """Return h, the mean exponentials `(B1, B2)`, from scores of each task's positives `(B1, B2)` and negatives."""
    losses = torch.relu(1 + negative.unsqueeze(1) - positive.unsqueeze(2)).square()
    return (losses / TEMPERATURE).exp().mean(2)


def main(seed: int = 0, k: int = 3) -> dict[str, tuple[float, float]]:
    """Tell each digit from the others by three features that all share; return the metric before and after."""
    torch.manual_seed(seed)
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16).float(), torch.tensor(digits.target)
    positive = (y[:1000] == torch.arange(TASKS).unsqueeze(1)).float()
    model = nn.Sequential(nn.Linear(64, 3), nn.Linear(3, TASKS), nn.Sigmoid())
    criterion = make_loss(1000, k)
    optimizer = torch.optim.Adam([*model.parameters(), *criterion.parameters()], lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, 1000)

    def metric() -> float:
        scores = model(x[1000:]).detach()
        each = [tpauc_score(y[1000:] == t, scores[:, t], min_tpr=0.0, max_fpr=0.1) for t in range(TASKS)]
        return sum(sorted(each)[:3]) / 3

    before = metric()
    for _ in range(1000):
        task = torch.randperm(TASKS)[:4]
        i, j = torch.multinomial(positive[task], 8), torch.multinomial(1 - positive[task], 32)
        scores = model(x[torch.cat([i, j], 1)])[torch.arange(4), :, task]
        loss = criterion(inner(scores[:, :8], scores[:, 8:]), task, i)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return {"mean partial AUC of the three worst tasks": (before, metric())}


if __name__ == "__main__":
    for name, (before, after) in main().items():
        print(f"{name}: {before:.3f} before, {after:.3f} after")
