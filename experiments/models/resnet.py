"""ResNet-20 for patches of 32 x 32 pixels.

Reference: He, Zhang, Ren and Sun, Deep Residual Learning for Image Recognition, 2016, section 4.2: a 3 x 3 convolution,
three stages of three blocks of two 3 x 3 convolutions, batch normalisation after each convolution, shortcuts without
parameters ("option A"), the mean over the pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from moreauc.models import Attention, InstanceNetwork


class ResNet20(InstanceNetwork):
    """Network for instances that are patches of an image, with 0.27 million weights.

    Bytes are divided by 255; floating point numbers are taken to lie in [0, 1] already. Both are then moved to
    [-1, 1]. Batch normalisation is over all instances of a batch, of whichever bag.

    Args:
        attention: False for scores only, True for score and attention logit, "gated" for a logit with gates.
        in_channels: channels of a patch.
        width: channels of the first stage; the second has twice and the third four times as many.

    Shape:
        - input: `(T, in_channels, 32, 32)`, uint8 or floating point; other heights and widths work too
        - output: `(T,)`, or with attention `(T, 2)`: score and logit

    Example:
        >>> model = ResNet20(attention=True)
        >>> model(torch.zeros(5, 3, 32, 32, dtype=torch.uint8)).shape
        torch.Size([5, 2])
        >>> sum(p.numel() for p in ResNet20().parameters())
        269137
    """

    def __init__(self, *, attention: Attention = False, in_channels: int = 3, width: int = 16) -> None:
        super().__init__(_PatchEncoder(in_channels, width), 4 * width, attention=attention)


class _PatchEncoder(nn.Module):
    def __init__(self, in_channels: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        stages = []
        for stage in range(3):
            channels = width * 2**stage
            for block in range(3):
                narrower = stage > 0 and block == 0
                stages.append(_Block(channels // 2 if narrower else channels, channels))
        self.blocks = nn.Sequential(*stages)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, patches: Tensor) -> Tensor:
        top = 255.0 if patches.dtype == torch.uint8 else 1.0
        inputs = patches.to(self.first.weight.dtype) * (2.0 / top) - 1.0
        features: Tensor = self.blocks(torch.relu(self.norm(self.first(inputs))))
        return features.mean(dim=(2, 3))


class _Block(nn.Module):
    """Two convolutions beside a shortcut; where the channels double, every second pixel is taken and zeros appended."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stride = 1 if inputs == outputs else 2
        self.added = outputs - inputs
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=self.stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        shortcut = inputs
        if self.added:
            thinned = inputs[:, :, :: self.stride, :: self.stride]
            shortcut = nn.functional.pad(thinned, (0, 0, 0, 0, 0, self.added))
        return torch.relu(self.body(inputs) + shortcut)
