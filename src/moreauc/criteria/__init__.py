"""The losses: each checks a batch, reads and updates its tables, and returns a scalar to call `backward` on."""

from moreauc.criteria.fcco import FCCOLoss
from moreauc.criteria.tcco import TCCOLoss
from moreauc.criteria.tpauc import TPAUCLoss

__all__ = ["FCCOLoss", "TCCOLoss", "TPAUCLoss"]
