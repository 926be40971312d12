"""Many constraints by a hinge penalty: a row for the value of each constraint, which is a mean over samples."""

import torch
from torch import Tensor, nn

from moreauc import FCCOLoss

SHOPS, LARGEST = 500, 0.5


def make_loss(constraints: int) -> FCCOLoss:
    """Return the penalty, the mean violation; row k holds the value of constraint k, at most 0 where it is met."""
    return FCCOLoss(constraints, lambda u, index: torch.relu(u), tau=0.1)


def inner(shortage: Tensor) -> Tensor:
    """Return the value of each constraint in a batch, shape `(B1,)`, from shortages of shape `(B1, samples)`."""
    return shortage.mean(1) - LARGEST


def main(seed: int = 0) -> dict[str, tuple[float, float]]:
    """Forecast the demand of all shops with one model, whose mean shortage in each shop must not exceed 0.5.

    The metric is the share of shops in which it is at most 0.6 on new samples, before and after the penalty sets in.
    """
    torch.manual_seed(seed)
    extra = torch.randn(SHOPS)
    model, criterion = nn.Linear(3, 1), make_loss(SHOPS)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)

    def shortage(shop: Tensor, samples: int) -> Tensor:
        x = torch.randn(len(shop), samples, 3)
        demand = x.sum(2) + extra[shop, None] + torch.randn(len(shop), samples)
        return demand.sub(model(x).squeeze(2))

    def metric() -> float:
        return (shortage(torch.arange(SHOPS), 1000).mean(1) <= LARGEST + 0.1).float().mean().item()

    for step in range(1200):
        if step == 400:
            before = metric()
        weight = max(step - 400, 0) / 800 * SHOPS  # grows, so that the model learns the objective first
        shop = torch.randperm(SHOPS)[:50]
        short = shortage(shop, 4)
        loss = short.square().mean() + weight * criterion(inner(short), shop)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"share of shops within the bound": (before, metric())}


if __name__ == "__main__":
    for name, (before, after) in main().items():
        print(f"{name}: {before:.3f} before, {after:.3f} after")
