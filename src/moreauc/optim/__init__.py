"""Extensions of `torch.optim` optimizers: previous weights and a proximal term."""

from moreauc.optim.previous import PreviousIterate
from moreauc.optim.proximal import ProximalPoint

__all__ = ["PreviousIterate", "ProximalPoint"]
