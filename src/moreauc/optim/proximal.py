r"""A pull of the weights toward a reference point, as a hook on any optimizer."""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import NoReturn, SupportsIndex, TypedDict

import torch
from torch import Tensor
from torch.optim import Optimizer

from moreauc._checks import check_real
from moreauc.optim.hooks import (
    Args,
    Arguments,
    Closure,
    Kwargs,
    check_optimizer,
    check_value,
    found_infinity,
    like_parameter,
    whole,
    wrap_closure,
)


class ProximalState(TypedDict):
    """The state of a `ProximalPoint`, tensors in the order of the optimizer."""

    reference: list[Tensor]
    average: list[Tensor]
    steps: Tensor


class ProximalPoint:
    r"""Adds the gradient of :math:`\frac{\gamma}{2} \|w - w_\text{ref}\|^2` to each step of an optimizer.

    The first reference point is the weights when this object is made. :meth:`restart` moves it to the average of the
    iterates since the last restart, as PESG does at the end of each stage, when it divides its learning rate. (In
    LibAUC's code the first reference is random, near 0.)

    Just before a step, or after each evaluation of its closure, :math:`\gamma (w - w_\text{ref})` is added to the
    gradients, so that momentum and preconditioning apply to it, too; after the step `parameter.grad` is restored.
    Parameters without a gradient are not pulled, and a skipped step does not count.

    Args:
        optimizer: any `torch.optim` optimizer.
        weight: :math:`\gamma`, at least 0. A plain attribute: a schedule may change it.

    Limits: a deep copy of an optimizer loses its hooks. A fused optimizer with a gradient scaler raises a `ValueError`.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
        >>> optimizer = torch.optim.SGD([weight], lr=0.5)
        >>> proximal = ProximalPoint(optimizer, weight=1.0)
        >>> for _ in range(2):
        ...     weight.grad = torch.tensor([1.0])
        ...     optimizer.step()
        >>> weight.data  # 1 - 0.5, then 0.5 - 0.5 (1 - 0.5)
        tensor([0.2500])
        >>> proximal.restart()
        >>> proximal.state_dict()["reference"]
        [tensor([0.3750])]

    Reference:
        Yuan, Yan, Sonka and Yang, Large-scale Robust Deep AUC Maximization: A New Surrogate Loss and Empirical Studies
        on Medical Image Classification, ICCV 2021, arXiv:2012.03173.
    """

    def __init__(self, optimizer: Optimizer, weight: float) -> None:
        optimizer = check_optimizer("ProximalPoint", optimizer)
        self.weight = weight
        self.optimizer = optimizer
        self._reference: dict[Tensor, Tensor] = {}
        self._average: dict[Tensor, Tensor] = {}
        self._steps = 0  # iterates in the average
        self._own_gradients: list[tuple[Tensor, Tensor]] = []
        self._adopt()
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def settings(self) -> dict[str, object]:
        """Return what must be the same in a resumed run."""
        return {"weight": self.weight}

    def __repr__(self) -> str:
        return f"ProximalPoint({type(self.optimizer).__name__}, weight={self.weight:g})"

    @property
    def weight(self) -> float:
        """Weight of the proximal term, at least 0."""
        return self._weight

    @weight.setter
    def weight(self, value: float) -> None:
        self._weight = check_real("ProximalPoint", "weight", value, low=0.0)

    @torch.no_grad()
    def restart(self) -> None:
        """Take the average of the iterates since the last restart as reference; before any step change nothing."""
        if self._steps:
            for parameter, average in self._average.items():
                self._reference[parameter] = average.clone()
        self._steps = 0

    def remove(self) -> None:
        """Remove the hooks from the optimizer."""
        for handle in self._handles:
            handle.remove()

    def state_dict(self) -> ProximalState:
        """Return reference, average and its length for a checkpoint, tensors in the optimizer's order.

        Shards of `fully_shard` are gathered, so that all processes must make the call.
        """
        self._adopt()
        return {
            "reference": [whole(self._reference[parameter]) for parameter in self._parameters()],
            "average": [whole(self._average[parameter]) for parameter in self._parameters()],
            "steps": torch.tensor(self._steps),
        }

    def load_state_dict(self, state: ProximalState) -> None:
        """Take the state of a checkpoint; the optimizer must hold as many parameters, of the same shapes and order."""
        parameters = self._parameters()
        for name in ("reference", "average"):
            if (found := len(state[name])) != len(parameters):
                raise ValueError(f"ProximalPoint: state[{name!r}] must hold {len(parameters)} tensors, got {found}")
            for number, (parameter, value) in enumerate(zip(parameters, state[name], strict=True)):
                check_value("ProximalPoint", f"state[{name!r}][{number}]", value, parameter)
        for parameter, reference, average in zip(parameters, state["reference"], state["average"], strict=True):
            self._reference[parameter] = like_parameter(reference, parameter, _wide(parameter.dtype))
            self._average[parameter] = like_parameter(average, parameter, _wide(parameter.dtype))
        self._steps = int(state["steps"])

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse to be pickled or copied: the hooks would be lost silently."""
        raise TypeError("ProximalPoint cannot be copied or pickled; save its state_dict() and make a new one")

    def _parameters(self) -> list[Tensor]:
        return list(chain.from_iterable(group["params"] for group in self.optimizer.param_groups))

    @torch.no_grad()
    def _adopt(self) -> None:
        """Start a reference for new parameters, and follow those that were moved or cast."""
        for parameter in self._parameters():
            wide = _wide(parameter.dtype)
            for kept in (self._reference, self._average):
                old = kept.get(parameter)
                if old is None:
                    kept[parameter] = parameter.detach().to(wide, copy=True)
                elif old.dtype != wide or old.device != parameter.device:
                    kept[parameter] = old.to(parameter.device, wide)

    def _before_step(self, optimizer: Optimizer, args: Args, kwargs: Kwargs) -> Arguments | None:
        if found_infinity("ProximalPoint", optimizer, kwargs) is not None:
            raise ValueError(
                f"ProximalPoint: optimizer must not be fused under a GradScaler, got {type(optimizer).__name__} with "
                "fused=True, which scales the proximal term and skips steps on the device; use fused=False"
            )

        def wrap(closure: Closure) -> Closure:
            def evaluate() -> object:
                self._restore_gradients()  # a closure may accumulate into the gradients
                result = closure()
                self._pull()
                return result

            return evaluate

        changed = wrap_closure(args, kwargs, wrap)
        if changed is None:
            self._pull()
        return changed

    @torch.no_grad()
    def _pull(self) -> None:
        """Add the gradient of the proximal term."""
        self._adopt()
        self._own_gradients = [(p, p.grad) for p in self._parameters() if p.grad is not None]
        if not self._own_gradients:
            return
        parameters, gradients = map(list, zip(*self._own_gradients, strict=True))
        # one operation for all weights: hundreds of small ones would cost a GPU as much as the model
        pulls = torch._foreach_sub(parameters, [self._reference[parameter] for parameter in parameters])
        torch._foreach_mul_(pulls, self.weight)
        torch._foreach_add_(pulls, gradients)
        for parameter, gradient, pull in zip(parameters, gradients, pulls, strict=True):
            parameter.grad = pull.to(gradient.dtype)

    def _restore_gradients(self) -> None:
        for parameter, gradient in self._own_gradients:
            parameter.grad = gradient
        self._own_gradients.clear()

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, args: Args, kwargs: Kwargs) -> None:
        self._restore_gradients()
        self._steps += 1
        parameters = self._parameters()
        averages = [self._average[parameter] for parameter in parameters]
        now = [parameter.to(_wide(parameter.dtype)) for parameter in parameters]
        torch._foreach_lerp_(averages, now, 1.0 / self._steps)


@cache
def _wide(kind: torch.dtype) -> torch.dtype:
    """Return the type to average in: half types would swallow small steps."""
    return torch.promote_types(kind, torch.float32)
