"""Training on several processes: losses over the batch of all of them, exact metrics.

- :class:`DistributedCriterion`: a loss of the library as one process would compute it on the parts of all processes;
- :class:`~moreauc.samplers.DistributedBatchSampler`: the batches of one process, split over several;
- :func:`predict_scores`, :func:`gather_scores`: scores of all processes, no row twice, the same everywhere;
- :func:`gather_meter`: a streaming metric of the batches of all processes.

docs/distributed.md is the guide.
"""

from moreauc.distributed.criterion import DistributedCriterion
from moreauc.distributed.scores import gather_meter, gather_scores, predict_scores

__all__ = ["DistributedCriterion", "gather_meter", "gather_scores", "predict_scores"]
