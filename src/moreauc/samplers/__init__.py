"""Batch samplers: which rows of a data set make up each step.

- :class:`PosNegSampler`: fixed numbers of positives and negatives in every batch.
"""

from moreauc.samplers.pos_neg import PosNegSampler

__all__ = ["PosNegSampler"]
