"""What sits between a loss and a `torch.optim` optimizer."""

from moreauc.optim.previous import PreviousIterate

__all__ = ["PreviousIterate"]
