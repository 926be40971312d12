"""Many small networks trained at once: one model whose weights have a copy for each of them, one loss that sums theirs.

A small network leaves a GPU idle: its kernels end before the next can be launched. The copies share the batches, and
every kernel does the work of all of them. They are a module and a loss like any other, so that the training loop,
optimizers, :class:`~moreauc.optim.PreviousIterate` and :class:`~moreauc.optim.ProximalPoint` work on them unchanged;
since no weight enters the loss of another copy, and optimizers work weight by weight, each copy is trained as it would
be alone (up to the order in which numbers are added, and its dropout masks).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.optim import Optimizer


class SideBySide(nn.Module):
    """Copies of one architecture with weights of their own, called on the same inputs.

    Args:
        models: modules of one kind: the same parameters and buffers, by name, shape and type. Their weights are copied.
            In training mode each has its own dropout masks, and its own batch-norm statistics.

    Shape:
        - input: what the models take
        - output: `(C, ...)`, what each of the `C` models gives

    Example:
        >>> first, second = nn.Linear(3, 1), nn.Linear(3, 1)
        >>> both = SideBySide([first, second])
        >>> x = torch.ones(5, 3)
        >>> both(x).shape, bool(torch.allclose(both(x)[1], second(x)))
        (torch.Size([2, 5, 1]), True)
        >>> both.copies, both.copy(1).weight.shape
        (2, torch.Size([1, 3]))
    """

    row_dim = 1  # of the outputs, whose first dimension is that of the copies

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        for number, model in enumerate(models):
            if _form(model) != _form(models[0]):
                raise ValueError(f"SideBySide: models must have the same weights, got others in models[{number}]")
        self.copies = len(models)
        # the architecture alone: kept out of the submodules, or its own weights would be trained and saved too
        self._bare = [deepcopy(models[0]).requires_grad_(False).to("meta")]
        self._parameter_names = [name for name, _ in models[0].named_parameters()]
        self._buffer_names = [name for name, _ in models[0].named_buffers()]
        states = [{**dict(model.named_parameters()), **dict(model.named_buffers())} for model in models]
        trained = dict(models[0].named_parameters())
        for name in [*self._parameter_names, *self._buffer_names]:
            values = torch.stack([state[name].detach() for state in states])
            if name in trained:
                parameter = nn.Parameter(values, requires_grad=trained[name].requires_grad)
                self.register_parameter(_flat(name), parameter)
            else:
                self.register_buffer(_flat(name), values)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what each copy gives for these arguments, the copies along the first dimension."""
        model = self._bare[0].train(self.training)
        weights = {name: getattr(self, _flat(name)) for name in self._parameter_names}
        buffers = {name: getattr(self, _flat(name)) for name in self._buffer_names}

        def one(weights: dict[str, Tensor], buffers: dict[str, Tensor]) -> Any:
            return functional_call(model, (weights, buffers), args, kwargs)

        return vmap(one, randomness="different")(weights, buffers)

    def copy(self, number: int) -> nn.Module:
        """Return one of the models, with its present weights, as a module of its own."""
        names = [*self._parameter_names, *self._buffer_names]
        state = {name: getattr(self, _flat(name))[number].detach() for name in names}
        device = next(iter(state.values())).device if state else torch.device("cpu")
        model = deepcopy(self._bare[0]).to_empty(device=device)
        with torch.no_grad():
            for name, value in [*model.named_parameters(), *model.named_buffers()]:
                value.data = state[name].clone()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(getattr(self, _flat(name)).requires_grad)
        return model.train(self.training)


class SideBySideLoss(nn.Module):
    """The sum of losses, one for each copy of :class:`SideBySide`.

    The losses may live on the CPU while the scores are on a GPU: a loss is some dozens of small operations on a few
    hundred numbers, which a CPU computes faster than a GPU launches them. Scores are then moved in one transfer, and
    the gradients back in another.

    Args:
        criteria: losses called as `criterion(scores, labels, index)`, one for each copy.

    Example:
        >>> from moreauc import TPAUCLoss
        >>> labels = torch.tensor([1, 0, 0, 1])
        >>> losses = [TPAUCLoss(labels, min_tpr=0.5, max_fpr=0.5, gamma=gamma) for gamma in (0.0, 0.1)]
        >>> criterion = SideBySideLoss(losses)
        >>> scores = torch.zeros(2, 4, requires_grad=True)
        >>> criterion.needs_previous, criterion(scores, labels, torch.arange(4), previous_scores=scores.detach()).ndim
        (True, 0)
    """

    def __init__(self, criteria: Sequence[nn.Module]) -> None:
        super().__init__()
        self.criteria = nn.ModuleList(criteria)

    @property
    def needs_previous(self) -> bool:
        """Whether a call needs what the models gave at their previous weights: one of the losses does."""
        return any(getattr(criterion, "needs_previous", False) for criterion in self.criteria)

    def forward(self, scores: Tensor, *others: Tensor, **before: Tensor) -> Tensor:
        """Return the sum of the losses, for scores `(C, ...)`; other arguments go to each loss as they are."""
        if len(scores) != len(self.criteria):
            shape = tuple(scores.shape)
            raise ValueError(f"SideBySideLoss: scores must have shape ({len(self.criteria)}, ...), got {shape}")
        place = next((buffer.device for buffer in self.criteria.buffers()), scores.device)
        others = tuple(value.to(place) for value in others)
        old = {name: value.to(place).unbind() for name, value in before.items()}
        total = torch.zeros((), dtype=torch.promote_types(scores.dtype, torch.float32), device=place)
        for number, (criterion, own) in enumerate(zip(self.criteria, scores.to(place).unbind(), strict=True)):
            needed = getattr(criterion, "needs_previous", False)
            extra = {name: values[number] for name, values in old.items()} if needed else {}
            total = total + criterion(own, *others, **extra)
        return total


class CopyRates:
    r"""Learning rates that differ from copy to copy, for the optimizer of a :class:`SideBySide` model.

    A step is proportional to the learning rate for SGD (momentum and weight decay included), Adam and
    AdamW: after each step of the optimizer, with its own rate, copy :math:`c` keeps the share `factors[c]` of what its
    weights have moved. Schedules of the optimizer's rate still apply.

    Args:
        optimizer: an optimizer whose step is in proportion to its learning rate, over parameters with a first dimension
            for the copies.
        factors: learning rate of each copy over that of the optimizer, above 0.

    Example:
        >>> weights = nn.Parameter(torch.ones(2, 1))
        >>> optimizer = torch.optim.SGD([weights], lr=0.1)
        >>> rates = CopyRates(optimizer, [1.0, 0.5])
        >>> weights.sum().backward()
        >>> optimizer.step()
        >>> weights.data
        tensor([[0.9000], [0.9500]])
    """

    def __init__(self, optimizer: Optimizer, factors: Sequence[float]) -> None:
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for parameter in self._parameters:
            if parameter.ndim == 0 or len(parameter) != len(factors):
                shape = tuple(parameter.shape)
                raise ValueError(f"CopyRates: factors must be one for each copy, got {len(factors)} for shape {shape}")
        self._factors = [
            torch.tensor(factors, dtype=p.dtype, device=p.device).reshape(-1, *(1,) * (p.ndim - 1))
            for p in self._parameters
        ]
        self._before = [p.detach().clone() for p in self._parameters]
        self._handles = [optimizer.register_step_pre_hook(self._keep), optimizer.register_step_post_hook(self._scale)]

    def remove(self) -> None:
        """Take the hooks off the optimizer."""
        for handle in self._handles:
            handle.remove()

    @torch.no_grad()
    def _keep(self, *args: object) -> None:
        torch._foreach_copy_(self._before, self._parameters)

    @torch.no_grad()
    def _scale(self, *args: object) -> None:
        moved = torch._foreach_sub(self._parameters, self._before)
        torch._foreach_mul_(moved, self._factors)
        torch._foreach_add_(self._before, moved)
        torch._foreach_copy_(self._parameters, self._before)


def _flat(name: str) -> str:
    """Return a name that a module may have; a dot would be a submodule."""
    return "copies of " + name.replace(".", "/")


def _form(model: nn.Module) -> list[tuple[str, torch.Size, torch.dtype]]:
    values = [*model.named_parameters(), *model.named_buffers()]
    return [(name, value.shape, value.dtype) for name, value in values]
