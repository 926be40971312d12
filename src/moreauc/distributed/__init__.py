"""Training on several processes: losses over the batch of all of them, exact metrics.

docs/distributed.md is the guide.
"""

from moreauc.distributed.criterion import DistributedCriterion
from moreauc.distributed.scores import gather_meter, gather_scores, predict_scores

__all__ = ["DistributedCriterion", "gather_meter", "gather_scores", "predict_scores"]
