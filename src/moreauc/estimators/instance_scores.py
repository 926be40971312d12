"""What :class:`~moreauc.estimators.MultiInstanceClassifier` tells of the instances of a bag."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class InstanceScores:
    r"""What each instance of a bag had to say, and how much it counted; all of shape `(instances,)`, float64.

    Attributes:
        score: raw score of the instance; high for the class to find.
        weight: derivative of the bag's score in the instance's; at least 0, and 1 together. With attention the
            softmax of the attention logits, with the smoothed maximum that of the scores over its temperature, with
            the mean the same for all.
        contribution: :math:`\text{weight} \cdot (\text{score} - \text{threshold})`: above 0 for the class to find,
            below 0 against it. Their sum is how far the bag's score is from the threshold (for the smoothed maximum
            more than that, by at most its temperature times the logarithm of the number of instances).
    """

    score: NDArray[np.float64]
    weight: NDArray[np.float64]
    contribution: NDArray[np.float64]
