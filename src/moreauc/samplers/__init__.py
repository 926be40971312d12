"""Batch samplers: they choose the rows of each batch."""

from moreauc.samplers.base import PosNegSampler
from moreauc.samplers.distributed import DistributedBatchSampler
from moreauc.samplers.groups import GroupSampler, ShuffledSampler

__all__ = ["DistributedBatchSampler", "GroupSampler", "PosNegSampler", "ShuffledSampler"]
