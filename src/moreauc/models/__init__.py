"""Small networks: for tables and for the instances of bags.

- :class:`MLP`: what :class:`~moreauc.estimators.TPAUCClassifier` trains where no module is given;
- :class:`InstanceMLP`: instances that are vectors, one hidden layer;
- :class:`InstanceNetwork` and :class:`AttentionHead`: any encoder made into a network for instances.

A network for bags sees instances only: it returns a score for each, or score and attention logit, and the loss pools
them. Any module that returns these can be used.
"""

from moreauc.models.instances import (
    InstanceMLP,
    InstanceNetwork,
)
from moreauc.models.mlp import MLP

__all__ = ["MLP", "InstanceMLP", "InstanceNetwork"]
