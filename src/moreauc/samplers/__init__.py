"""Batch samplers: which rows of a data set make up each step.

- :class:`PosNegSampler`: fixed numbers of positives and negatives in every batch;
- :class:`GroupSampler`: some groups in every batch, and some rows of each;
- :class:`PlainSampler`: rows in random order, with whatever groups come;
- :class:`DistributedBatchSampler`: the batches of any of them, split over several processes.
"""

from moreauc.samplers.distributed import DistributedBatchSampler
from moreauc.samplers.groups import GroupSampler, PlainSampler
from moreauc.samplers.pos_neg import PosNegSampler

__all__ = ["DistributedBatchSampler", "GroupSampler", "PlainSampler", "PosNegSampler"]
