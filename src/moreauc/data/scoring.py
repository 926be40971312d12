"""Scores of a model: for all batches of a loader, for whole bags, and for the instances of a bag."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from moreauc._checks import check_count, check_finite, check_shape
from moreauc._parallel import without_communication, without_gradient
from moreauc.core.pooling import Pooling, PoolingName, get_pooling
from moreauc.data.bag_batches import BagInputs
from moreauc.data.bags import Bags, check_bags
from moreauc.optim.previous import PreviousIterate
from moreauc.samplers.base import passes_for_scores

Numbers = NDArray[np.float64]

_OWNER = "predict_scores"


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the first parameter; the CPU for a model without parameters."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def on_device(value: Any, device: torch.device) -> Any:
    """Return tensors on the device, also those in tuples, lists and dictionaries; numbers and arrays as tensors."""
    if isinstance(value, Mapping):
        return {name: on_device(entry, device) for name, entry in value.items()}
    if isinstance(value, tuple | list):
        moved = [on_device(entry, device) for entry in value]
        return type(value)(*moved) if hasattr(value, "_fields") else tuple(moved)  # named tuples keep their type
    return value.to(device, non_blocking=True) if hasattr(value, "to") else torch.as_tensor(value, device=device)


def instances_for(model: nn.Module, instances: Tensor) -> Tensor:
    """Return the instances of bags in the floating type of the model's weights; integers stay as they are."""
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    if weight is None or not instances.is_floating_point() or instances.dtype == weight.dtype:
        return instances
    return instances.to(weight.dtype)


def joined(outputs: Any) -> Any:
    """Return a pair of vectors, score and attention logit, as two columns; anything else as it is."""
    pair = isinstance(outputs, tuple | list) and len(outputs) == 2
    if not pair or any(not isinstance(part, Tensor) or part.numel() != len(part) for part in outputs):
        return outputs
    return torch.stack([part.reshape(-1) for part in outputs], dim=1)


@runtime_checkable
class Evaluation(Protocol):
    """Data that scores itself, such as :class:`~moreauc.data.BagEvaluation`."""

    def predict(self, model: nn.Module, device: torch.device | str | None = None) -> tuple[Tensor, Tensor]:
        """Return raw scores and labels, on the CPU."""
        ...


def predict_scores(
    model: nn.Module, batches: Iterable[Sequence[object]] | Evaluation, *, device: torch.device | str | None = None
) -> tuple[Tensor, Tensor]:
    """Return raw scores, float64, and labels of all batches, on the CPU. The model is evaluated in eval mode.

    Args:
        model: maps inputs to raw scores, shape `(B,)` or `(B, 1)`. Where rows are not the first dimension of its
            outputs, its attribute `row_dim` says which they are.
        batches: loader of `(inputs, labels, ...)` batches, or :class:`~moreauc.data.BagEvaluation`.
        device: device of the model; inferred by default.

    Example:
        >>> from moreauc.data import TensorBatches
        >>> batches = TensorBatches(torch.randn(5, 2), torch.tensor([0, 1, 0, 0, 1]))
        >>> scores, labels = predict_scores(nn.Linear(2, 1), batches)
        >>> scores.shape, labels.tolist()
        (torch.Size([5]), [0, 1, 0, 0, 1])
    """
    model = without_communication(model)
    place = device_of(model) if device is None else torch.device(device)
    if isinstance(batches, Evaluation):
        return batches.predict(model, place)
    with _evaluating(model), passes_for_scores():
        parts = [_scored(model, batch, place) for batch in batches]
    if not parts:
        raise ValueError(f"{_OWNER}: batches must not be empty, got no batch")
    scores, labels = zip(*parts, strict=True)
    return torch.cat(scores, _row_dim(model)).clone(), torch.cat(labels)


def scores_of(model: nn.Module | PreviousIterate, inputs: object) -> Tensor:
    """Call a model with a tuple by position, a dictionary by name, anything else as one argument.

    One column becomes shape `(B,)`, a pair of vectors, score and attention logit, two columns. Outputs of a model with
    a `row_dim` other than 0 are returned as they are.
    """
    if isinstance(inputs, Mapping):
        scores = model(**inputs)
    else:
        scores = model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)
    scores = joined(scores)
    one_column = scores.ndim == 2 and scores.shape[1] == 1 and _row_dim(model) == 0
    return scores.squeeze(1) if one_column else scores  # type: ignore[no-any-return]


def _scored(model: nn.Module, batch: object, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return scores and labels of one batch."""
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        kind = f"{len(batch)} part" if isinstance(batch, tuple | list) else type(batch).__name__
        raise ValueError(f"{_OWNER}: batches must be (inputs, labels, ...), got {kind}")
    if isinstance(batch[0], BagInputs):
        raise ValueError(f"{_OWNER}: batches must hold whole bags, moreauc.data.BagEvaluation, got BagBatches")
    scores = scores_of(model, on_device(batch[0], device)).double().cpu()
    labels = torch.as_tensor(batch[1]).reshape(-1).cpu()
    rows = scores.shape[_row_dim(model)] if scores.ndim else 1
    if len(labels) not in (rows, scores.numel()):
        raise ValueError(f"{_OWNER}: labels must be as many as scores, {rows}, got {len(labels)}")
    return scores, labels


def _row_dim(model: nn.Module | PreviousIterate) -> int:
    """Return the dimension of a model's outputs that counts rows: its attribute `row_dim`, or 0."""
    return int(getattr(model.model if isinstance(model, PreviousIterate) else model, "row_dim", 0))


class BagEvaluation:
    """Evaluation data: the scores of whole bags, not of a few instances of each.

    Args:
        bags: the bags.
        pooling: "mean", "smoothed_max", "attention", or a :class:`~moreauc.core.pooling.Pooling`.
        temperature: of the smoothed max, above 0.
        chunk: instances that go through the model at once, at least 1.

    Example:
        >>> from moreauc.data import ListBags
        >>> bags = ListBags([torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0]])], labels=[0, 1])
        >>> BagEvaluation(bags, "mean").predict(nn.Identity())
        (tensor([2., 5.], dtype=torch.float64), tensor([0, 1]))
    """

    def __init__(
        self, bags: Bags, pooling: PoolingName | Pooling, *, temperature: float = 0.1, chunk: int = 4096
    ) -> None:
        owner = type(self).__name__
        self.bags, self.labels = check_bags(owner, bags), bags.labels
        self.pooling = get_pooling(owner, pooling, temperature)
        self.chunk = check_count(owner, "chunk", chunk)

    def __len__(self) -> int:
        return len(self.bags)

    def predict(self, model: nn.Module, device: torch.device | str | None = None) -> tuple[Tensor, Tensor]:
        """Return raw scores, float64, and labels of all bags, on the CPU; see :func:`bag_scores`."""
        return bag_scores(model, self.bags, self.pooling, chunk=self.chunk, device=device), self.labels

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.bags}, {self.pooling})"


def bag_scores(
    model: nn.Module,
    bags: Bags,
    pooling: PoolingName | Pooling,
    *,
    temperature: float = 0.1,
    chunk: int = 4096,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return the raw scores of whole bags, pooled over all of their instances, before any link.

    Instances are read and scored in chunks, which the result does not depend on: small bags share a chunk, a larger bag
    is split. The model is evaluated in eval mode. Scores are float64 of shape `(n,)`, on the CPU.

    Args:
        model: maps instances `(T, ...)` to scores, `(T,)` or `(T, 1)`; for attention to `(T, 2)`, score and logit.
        bags: the bags.
        pooling: as in :class:`BagEvaluation`.
        temperature: of the smoothed max, above 0.
        chunk: instances that go through the model at once, at least 1.
        device: device of the model; inferred by default.

    Example:
        >>> from moreauc.data import ListBags
        >>> bags = ListBags([torch.tensor([[1.0], [3.0], [8.0]]), torch.tensor([[5.0]])], labels=[0, 1])
        >>> bag_scores(nn.Identity(), bags, "mean", chunk=2)
        tensor([4., 5.], dtype=torch.float64)
    """
    owner = "bag_scores"
    pool = get_pooling(owner, pooling, temperature)
    check_count(owner, "chunk", chunk)
    check_bags(owner, bags)
    place = device_of(model) if device is None else torch.device(device)
    rows = torch.zeros(len(bags), pool.dim, dtype=torch.float64)
    with _evaluating(model):
        for pieces in _chunks(bags.sizes.tolist(), chunk):
            inputs = [
                bags.instances(bag, None if whole else torch.arange(start, stop)) for bag, start, stop, whole in pieces
            ]
            lengths = torch.tensor([len(part) for part in inputs])
            outputs = _outputs(owner, model, torch.cat(inputs).to(place))
            _check_columns(owner, outputs, model, pool)
            parts = pool.observe(outputs.cpu().double(), torch.repeat_interleave(lengths), len(pieces))
            for piece, part in zip(pieces, parts.unsqueeze(1), strict=True):
                seen = rows[piece.bag : piece.bag + 1]
                tau = (piece.stop - piece.start) / piece.stop  # the share of this part in what has been seen by now
                rows[piece.bag] = part if piece.start == 0 else pool.update(seen, part, None, tau=tau)
    return pool.score(rows).clone()


def instance_outputs(
    model: nn.Module, instances: Tensor, *, chunk: int = 4096, device: torch.device | str | None = None
) -> Tensor:
    """Return what a model gives for each instance of a bag, to see which of them decided.

    The result is float64 of shape `(T,)` or `(T, columns)`, on the CPU. `chunk` of the `instances` go through the
    `model` at once; its `device` is inferred by default.

    Example:
        >>> instance_outputs(nn.Identity(), torch.tensor([[1.0], [3.0]]))
        tensor([1., 3.], dtype=torch.float64)
    """
    owner = "instance_outputs"
    check_count(owner, "chunk", chunk)
    if not isinstance(instances, Tensor) or not instances.ndim or not len(instances):
        kind = f"shape {tuple(instances.shape)}" if isinstance(instances, Tensor) else type(instances).__name__
        raise ValueError(f"{owner}: instances must be a tensor with at least one instance, got {kind}")
    place = device_of(model) if device is None else torch.device(device)
    with _evaluating(model):
        parts = [_outputs(owner, model, part.to(place)).cpu().double() for part in torch.split(instances, chunk)]
    return torch.cat(parts).clone()


class _Piece(NamedTuple):
    """Instances of a bag from `start` to before `stop`, and whether these are all of it."""

    bag: int
    start: int
    stop: int
    whole: bool


def _chunks(sizes: list[int], chunk: int) -> Iterator[list[_Piece]]:
    """Go through all bags in chunks; a bag is cut only where it is larger than a chunk."""
    pieces: list[_Piece] = []
    room = chunk
    for bag, size in enumerate(sizes):
        if pieces and size > room:
            yield pieces
            pieces, room = [], chunk
        start = 0
        while size - start > chunk:
            yield [_Piece(bag, start, start + chunk, False)]
            start += chunk
        pieces.append(_Piece(bag, start, size, start == 0))
        room -= size - start
    yield pieces


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into eval mode, without gradients, for a while."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with without_gradient(model):
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def _outputs(owner: str, model: nn.Module, instances: Tensor) -> Tensor:
    """Return a row for each instance, or a number where the model gives one column."""
    outputs = joined(model(instances_for(model, instances)))
    if not isinstance(outputs, Tensor) or outputs.shape[:1] != instances.shape[:1]:
        found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        kind = f"a tensor with a row for each of {len(instances)} instances"
        raise ValueError(f"{owner}: model must return {kind}, got {found} from {type(model).__name__}")
    return outputs.squeeze(1) if outputs.ndim == 2 and outputs.shape[1] == 1 else outputs


def _check_columns(owner: str, outputs: Tensor, model: nn.Module, pooling: Pooling) -> None:
    columns = pooling.columns
    wanted = (len(outputs),) if columns == 1 else (len(outputs), columns)
    if tuple(outputs.shape) != wanted:
        raise ValueError(
            f"{owner}: model must return {columns} column{'s' * (columns > 1)} for {pooling.name} pooling, shape "
            f"{wanted}, got {tuple(outputs.shape)} from {type(model).__name__}"
        )


def instance_weights(
    outputs: ArrayLike | Tensor, pooling: PoolingName | Pooling, *, temperature: float = 0.1
) -> tuple[Numbers, Numbers]:
    r"""Return score and weight of each instance of a bag, float64 of shape `(T,)` each; the weights add up to 1.

    The weight is the derivative of the bag's score in that of the instance: the softmax of the attention logits, the
    softmax of the scores over the temperature for the smoothed max, equal weights for the mean.

    `outputs` are what the model gives for each instance (:func:`~moreauc.data.instance_outputs`). `pooling` and
    `temperature` are those of :class:`BagEvaluation`.

    Example:
        >>> scores, weights = instance_weights([[5.0, 0.0], [-1.0, 0.0], [7.0, -1000.0]], "attention")
        >>> scores, weights
        (array([ 5., -1., 7.]), array([0.5, 0.5, 0. ]))
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


def real_tensor(owner: str, name: str, value: object, shapes: list[tuple[int | str, ...]]) -> Tensor:
    """Return finite real numbers as a tensor on the CPU, of the type they have."""
    try:
        if not isinstance(value, Tensor):
            array = np.asarray(value)
            value = torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{owner}: {name} must hold numbers, got a {type(value).__name__} of other types") from error
    tensor: Tensor = value.detach().cpu()
    check_shape(owner, name, tensor, shapes)
    if tensor.is_complex():
        raise ValueError(f"{owner}: {name} must hold real numbers, got {tensor.dtype}")
    check_finite(owner, **{name: tensor.double()})  # not all types have a sum
    return tensor
