"""Batch samplers: they choose the rows of each batch.

- :class:`PosNegSampler`: fixed numbers of positives and negatives in every batch;
- :class:`GroupSampler`: some groups in every batch, and some rows of each;
- :class:`ShuffledSampler`: shuffled rows, regardless of their groups;
- :class:`DistributedBatchSampler`: the batches of any of them, split over several processes.
"""

from moreauc.samplers.base import PosNegSampler
from moreauc.samplers.distributed import DistributedBatchSampler
from moreauc.samplers.groups import GroupSampler, ShuffledSampler

__all__ = ["DistributedBatchSampler", "GroupSampler", "PosNegSampler", "ShuffledSampler"]
