"""The network for tables: what the classifiers and the regressor for tables train where no module is given."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from moreauc._checks import check_count, check_real


class MLP(nn.Module):
    """Fully connected network with raw scores for each row; without hidden layers it is a linear model.

    Args:
        num_features: width of the input, at least 1.
        hidden: widths of the hidden layers, each at least 1; `()` for a linear model.
        dropout: probability in [0, 1) to drop a hidden unit in training.
        num_outputs: raw scores of a row, at least 1.

    Shape:
        - input: `(B, num_features)`
        - output: `(B,)`, or `(B, num_outputs)` for more than one

    Raises:
        ValueError: for an argument out of range.

    Example:
        >>> import torch
        >>> model = MLP(3, hidden=(8,))
        >>> model(torch.zeros(5, 3)).shape
        torch.Size([5])
        >>> MLP(3, num_outputs=4)(torch.zeros(5, 3)).shape
        torch.Size([5, 4])
        >>> MLP(3, hidden=())
        MLP(
          (layers): Sequential(
            (0): Linear(in_features=3, out_features=1, bias=True)
          )
        )
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
        return scores.squeeze(1)  # changes nothing where there are several
