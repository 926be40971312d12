"""Weights of the instances of a bag in its score."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from moreauc._checks import check_finite, check_shape
from moreauc.core.pooling import Pooling, PoolingName, get_pooling

Numbers = NDArray[np.float64]


def instance_weights(
    outputs: ArrayLike | Tensor, pooling: PoolingName | Pooling, *, temperature: float = 0.1
) -> tuple[Numbers, Numbers]:
    r"""Return score and weight of each instance of a bag, float64 of shape `(T,)` each; the weights add up to 1.

    The weight is the derivative of the bag's score in that of the instance: the softmax of the attention logits, the
    softmax of the scores over the temperature for the smoothed max, equal weights for the mean.

    Args:
        outputs: what the model gives for each instance (:func:`~moreauc.data.instance_outputs`): scores `(T,)`, or
            score and attention logit `(T, 2)`; finite.
        pooling: "mean", "smoothed_max", "attention", or a :class:`~moreauc.core.pooling.Pooling`.
        temperature: that of the smoothed max, above 0.

    Example:
        >>> scores, weights = instance_weights([[5.0, 0.0], [-1.0, 0.0], [7.0, -1000.0]], "attention")
        >>> scores, weights
        (array([ 5., -1., 7.]), array([0.5, 0.5, 0. ]))
        >>> instance_weights([1.0, 1.1], "smoothed_max")[1].round(3)
        array([0.269, 0.731])
    """
    owner = "instance_weights"
    pool = get_pooling(owner, pooling, temperature)
    values = real_tensor(owner, "outputs", outputs, [("T",) if pool.columns == 1 else ("T", pool.columns)]).double()
    bag = torch.zeros(len(values), dtype=torch.int64)
    weights = pool.vjp(torch.ones(1, dtype=torch.float64), pool.observe(values, bag, 1), values, bag)
    scores, weights = (part.reshape(len(part), -1)[:, 0] for part in (values, weights))
    weights = weights / weights.sum()  # of huge logits the logarithm of their mean has only the first digits
    check_finite(owner, **{"weights of the instances": weights})
    return scores.numpy().copy(), weights.numpy()


def real_tensor(owner: str, name: str, value: Any, shapes: list[tuple[int | str, ...]]) -> Tensor:
    """Return finite real numbers as a tensor on the CPU, of the type they have."""
    try:
        if not isinstance(value, Tensor):
            array = np.asarray(value)
            value = torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{owner}: {name} must hold numbers, got a {type(value).__name__} of other things") from error
    tensor: Tensor = value.detach().cpu()
    check_shape(owner, name, tensor, shapes)
    if tensor.is_complex():
        raise ValueError(f"{owner}: {name} must hold real numbers, got {tensor.dtype}")
    check_finite(owner, **{name: tensor.double()})  # not all types have a sum
    return tensor
