"""What sits between a loss and a `torch.optim` optimizer."""

from moreauc.optim.previous import PreviousIterate
from moreauc.optim.proximal import ProximalPoint

__all__ = ["PreviousIterate", "ProximalPoint"]
