"""Small networks: for tables, for graphs, and for the instances of bags.

- :class:`MLP`: what :class:`~moreauc.estimator.TPAUCClassifier` trains where no module is given;
- :class:`InstanceMLP`: instances that are vectors, one hidden layer;
- :class:`ResNet20`: instances that are patches of an image;
- :class:`GIN`: molecules and other graphs with categories at nodes and edges;
- :class:`InstanceNetwork` and :class:`AttentionHead`: any encoder made into a network for instances.

A network for bags sees instances only: it returns a score for each, or score and attention logit, and the loss pools
them. Any module that does so will do.
"""

from moreauc.models.gin import GIN
from moreauc.models.instances import Attention, AttentionHead, InstanceMLP, InstanceNetwork
from moreauc.models.mlp import MLP
from moreauc.models.resnet import ResNet20

__all__ = ["GIN", "MLP", "Attention", "AttentionHead", "InstanceMLP", "InstanceNetwork", "ResNet20"]
