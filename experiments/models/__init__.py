"""Networks of the paper's experiments: GIN for molecules, ResNet20 for patches of images."""

from experiments.models.gin import GIN
from experiments.models.resnet import ResNet20

__all__ = ["GIN", "ResNet20"]
