r"""Small networks for tables and for the instances of bags.

A network for bags sees instances only: it returns a score for each, or score and attention logit, and the loss pools
them. Any module that returns these can be used. With the features :math:`e(x)` of an instance, its score is
:math:`w_c^\top e(x) + b_c` and its attention logit :math:`w_a^\top \tanh(V e(x) + b)`, or gated
:math:`w_a^\top (\tanh(V e(x) + b) \odot \sigma(U e(x) + b'))`. The logit has no bias: attention does not depend on it.

Reference: Ilse, Tomczak and Welling, Attention-based Deep Multiple Instance Learning, 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from moreauc._checks import check_count, check_real, check_shape

Attention = bool | Literal["gated"]

__all__ = ["MLP", "InstanceMLP", "InstanceNetwork"]


class MLP(nn.Module):
    """Fully connected network with raw scores for each row; without hidden layers it is a linear model.

    Of an input `(B, num_features)` it makes `(B,)`, or `(B, num_outputs)` for more than one.

    Args:
        num_features: width of the input, at least 1.
        hidden: widths of the hidden layers, each at least 1; `()` for a linear model.
        dropout: probability in [0, 1) to drop a hidden unit in training.
        num_outputs: raw scores of a row, at least 1.

    Example:
        >>> import torch
        >>> model = MLP(3, hidden=(8,))
        >>> model(torch.zeros(5, 3)).shape
        torch.Size([5])
    """

    def __init__(
        self, num_features: int, *, hidden: Sequence[int] = (64, 64), dropout: float = 0.0, num_outputs: int = 1
    ) -> None:
        super().__init__()
        width = check_count("MLP", "num_features", num_features)
        if not isinstance(hidden, tuple | list):
            raise ValueError(f"MLP: hidden must be a tuple of widths, got {hidden!r}")
        sizes = [check_count("MLP", "hidden", size) for size in hidden]
        check_real("MLP", "dropout", dropout, low=0.0, high=1.0, high_open=True)
        outputs = check_count("MLP", "num_outputs", num_outputs)
        layers: list[nn.Module] = []
        for size in sizes:
            layers += [nn.Linear(width, size), nn.ReLU()]
            if dropout > 0.0:
                layers.append(nn.Dropout(dropout))
            width = size
        self.layers = nn.Sequential(*layers, nn.Linear(width, outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the raw scores of each row."""
        scores: Tensor = self.layers(inputs)
        return scores.squeeze(1)  # has no effect with several outputs


class PiecewiseLinear(nn.Module):
    r"""Encodes numbers by the bins they lie in, so that a linear layer after it makes a piecewise-linear function.

    A column with the bin edges :math:`q_0 < \dots < q_T` gets, besides its own value clipped to [-4, 4], the `T` inputs
    :math:`2 \min(1, \max(0, (x - q_{t-1}) / (q_t - q_{t-1}))) - 1`. Columns with at most two values are not encoded.
    The edges are quantiles of `rows`, shape `(n, num_features)`, for at most `bins` bins in each column.

    Example:
        >>> layer = PiecewiseLinear(torch.tensor([[0.0], [1.0], [2.0]]), bins=2)
        >>> layer(torch.tensor([[0.5], [3.0]]))
        tensor([[ 0.5000,  0.0000, -1.0000],
                [ 3.0000,  1.0000,  1.0000]])

    Reference:
        Gorishniy, Rubachev and Babenko, On Embeddings for Numerical Features in Tabular Deep Learning, 2022.
    """

    column: Tensor
    low: Tensor
    scale: Tensor

    def __init__(self, rows: Tensor, *, bins: int) -> None:
        super().__init__()
        count = check_count("PiecewiseLinear", "bins", bins)
        columns: list[int] = []
        low, high = [np.zeros(0)], [np.zeros(0)]
        for number, values in enumerate(rows.detach().cpu().double().numpy().T):
            edges = np.unique(values)
            if len(edges) > count + 1:
                edges = np.unique(np.quantile(values, np.linspace(0.0, 1.0, count + 1)))
            if len(edges) > 2:
                columns += [number] * (len(edges) - 1)
                low.append(edges[:-1])
                high.append(edges[1:])
        start, end = np.concatenate(low), np.concatenate(high)
        self.register_buffer("column", torch.tensor(columns, dtype=torch.long))
        self.register_buffer("low", torch.from_numpy(start).float())
        self.register_buffer("scale", torch.from_numpy(2.0 / (end - start)).float())
        self.num_outputs = rows.shape[1] + len(columns)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the clipped inputs and their bins."""
        encoded = ((inputs.index_select(1, self.column) - self.low) * self.scale - 1.0).clamp(-1.0, 1.0)
        return torch.cat([inputs.clamp(-4.0, 4.0), encoded], dim=1)


class BinnedMLP(nn.Module):
    """Network for tables: :class:`PiecewiseLinear` with `bins` bins, then an :class:`MLP` plus a linear model.

    The linear model starts at 0. The edges of the bins are the quantiles of `rows`, shape `(n, num_features)`.
    """

    def __init__(self, rows: Tensor, *, bins: int = 16, hidden: Sequence[int] = (64, 64), dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder = PiecewiseLinear(rows, bins=bins)
        self.network = MLP(self.encoder.num_outputs, hidden=hidden, dropout=dropout)
        self.linear = nn.Linear(self.encoder.num_outputs, 1, bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the raw score of each row."""
        encoded = self.encoder(inputs)
        scores: Tensor = self.network(encoded) + self.linear(encoded).squeeze(1)
        return scores

    @torch.no_grad()
    def mix(self, share: float, weight: Tensor, bias: float) -> None:
        """Make the score a weighted mean of its own and that of a linear model, which has this share.

        The linear model has weights for the inputs, shape `(num_features,)`, and a bias.
        """
        weights, offset = list(self.network.parameters())[-2:]  # of the last layer
        for own in (weights, offset, self.linear.weight):
            own.mul_(1.0 - share)
        offset.add_(share * bias)
        self.linear.weight[0, : len(weight)] += share * weight


class MeanScore(nn.Module):
    """An ensemble: the mean of the raw scores of its members."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, *inputs: object, **named: object) -> Tensor:
        """Return the mean of the members' outputs."""
        return torch.stack([member(*inputs, **named) for member in self.members]).mean(0)


class AttentionHead(nn.Module):
    """Attention logits of instances, `(T,)`, from their features, `(T, num_features)`.

    With `gated` each hidden unit is multiplied by a gate, the sigmoid of another linear layer.
    """

    def __init__(self, num_features: int, gated: bool = False) -> None:
        super().__init__()
        self.hidden = nn.Linear(num_features, num_features)
        self.gate = nn.Linear(num_features, num_features) if gated else None
        self.logit = nn.Linear(num_features, 1, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        """Return one logit for each instance."""
        units = torch.tanh(self.hidden(features))
        if self.gate is not None:
            units = units * torch.sigmoid(self.gate(features))
        logits: Tensor = self.logit(units)
        return logits.squeeze(1)


class InstanceNetwork(nn.Module):
    """An encoder with a score and optionally an attention logit for each instance.

    It makes `(T,)` of `T` instances of any bags, or with attention `(T, 2)`: score and logit.

    Args:
        encoder: module that maps `T` instances to features of shape `(T, num_features)`.
        num_features: width of the features, at least 1.
        attention: False for scores only (mean and smoothed-max pooling), True for score and attention logit, "gated"
            for a logit with gates.

    Example:
        >>> encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10), torch.nn.ReLU())
        >>> InstanceNetwork(encoder, 10, attention=True)(torch.zeros(5, 8, 8)).shape
        torch.Size([5, 2])
    """

    def __init__(self, encoder: nn.Module, num_features: int, *, attention: Attention = False) -> None:
        super().__init__()
        owner = type(self).__name__
        if not isinstance(encoder, nn.Module):
            raise ValueError(f"{owner}: encoder must be a torch.nn.Module, got {type(encoder).__name__}")
        self.num_features = check_count(owner, "num_features", num_features)
        if not isinstance(attention, bool) and attention != "gated":
            raise ValueError(f"{owner}: attention must be True, False or 'gated', got {attention!r}")
        self.encoder = encoder
        self.score = nn.Linear(self.num_features, 1)
        self.attention = AttentionHead(self.num_features, gated=attention == "gated") if attention else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Return a score for each instance, or score and attention logit."""
        features = self.encoder(inputs)
        check_shape(type(self).__name__, "features of encoder", features, [("T", self.num_features)])
        scores: Tensor = self.score(features)
        if self.attention is None:
            return scores.squeeze(1)
        return torch.stack([scores.squeeze(1), self.attention(features)], dim=1)


class InstanceMLP(InstanceNetwork):
    """Network for instances that are vectors: one hidden layer of tanh units, as wide as its input.

    Args:
        num_features: width of the input, at least 1.
        hidden: width of the hidden layer, at least 1; None for that of the input.
        attention: as in :class:`InstanceNetwork`; the head is as wide as the hidden layer.
        dropout: probability in [0, 1) to drop a hidden unit in training.

    Example:
        >>> model = InstanceMLP(166, hidden=32, attention="gated")
        >>> model(torch.zeros(5, 166)).shape
        torch.Size([5, 2])
    """

    def __init__(
        self, num_features: int, *, hidden: int | None = None, attention: Attention = False, dropout: float = 0.0
    ) -> None:
        owner = type(self).__name__
        width = check_count(owner, "num_features", num_features)
        size = width if hidden is None else check_count(owner, "hidden", hidden)
        check_real(owner, "dropout", dropout, low=0.0, high=1.0, high_open=True)
        layers: list[nn.Module] = [nn.Linear(width, size), nn.Tanh()]
        if dropout > 0.0:
            layers.append(nn.Dropout(dropout))
        super().__init__(nn.Sequential(*layers), size, attention=attention)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return a score for each instance, or score and attention logit; integers are converted to floats."""
        return super().forward(inputs if inputs.is_floating_point() else inputs.to(self.score.weight.dtype))
