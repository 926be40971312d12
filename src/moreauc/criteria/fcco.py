r"""The two-level loss for functions the user brings (FCCO, solved by SONX).

Reference: Hu, Zhu and Yang, "Non-Smooth Weakly-Convex Finite-sum Coupled Compositional Optimization", NeurIPS 2023.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from moreauc._checks import check_count, check_device, check_floating, check_shape
from moreauc.core.tables import EstimatorTable, Gamma, UpdateRule
from moreauc.criteria._base import Criterion, Function, Step, rule_attribute
from moreauc.criteria._gates import enter, straight_through
from moreauc.criteria._validation import Check, check_function


class _Blocks(NamedTuple):
    """A checked batch: values of blocks, with gradient, their numbers, values at the previous weights, and the gate."""

    inner: Tensor
    numbers: Tensor
    before: Tensor | None
    gate: Tensor | None


class FCCOLoss(Criterion):
    r"""Two-level coupled compositional loss, :math:`F(w) = \frac1n \sum_i f_i(g_i(w))` (SONX).

    In training mode a call with a batch of blocks :math:`B_1` is one iteration of Algorithm 1, or of Algorithm 6 where
    `gamma` is 0. With `inner` :math:`= g_i(w_t; B_{2,i})` and `previous_inner` :math:`= g_i(w_{t-1}; B_{2,i})`:

    .. math::

        u_{i,t+1} &= (1 - \tau) u_{i,t} + \tau g_i(w_t; B_{2,i})
            + \gamma (g_i(w_t; B_{2,i}) - g_i(w_{t-1}; B_{2,i})) && \text{(line 4)} \\
        G_t &= \frac1{B_1} \sum_{i \in B_1} \partial g_i(w_t; B_{2,i})\, \partial f_i(u_{i,t}) && \text{(line 5)}

    The gradient uses the row before its update, :math:`u_{i,t}`. The value returned is
    :math:`\frac1{B_1} \sum_i f_i(u_{i,t})`. A row is initialised at its first visit with the value observed then,
    unless `initial` is given. If `outer` is a module with parameters, their gradient is :math:`\frac1{B_1} \sum_i
    \partial_s f_i(u_{i,t}; s)`; give them to an optimizer.

    In `eval()` mode a call returns :math:`\frac1{B_1} \sum_i f_i(\text{inner}_i)` and changes nothing.

    Args:
        num_blocks: number of blocks :math:`n`.
        outer: `outer(u, index) -> (B1,)`, the functions :math:`f_i` at the rows `u`, which have the shape of `inner`;
            any function differentiable almost everywhere, or an `nn.Module`.
        dim: length of a block's value.
        gamma: correction weight, at least 0, or "theory" for :math:`\frac{n - B_1}{B_1 (1 - \tau)} + (1 - \tau)` with
            the :math:`B_1` of the batch; 0 is the moving average.
        bound: radius of the ball that rows are projected onto after the update; None for no projection.

    Shape:
        - inner, previous_inner: `(B1, dim)`, or `(B1,)` where `dim` is 1
        - index: `(B1,)`, block numbers in [0, num_blocks), no repeats
        - output: scalar

    Example:
        >>> import torch
        >>> criterion = FCCOLoss(4, lambda u, index: torch.relu(u), tau=0.5)
        >>> inner = torch.tensor([3.0, -1.0], requires_grad=True)
        >>> loss = criterion(inner, torch.tensor([2, 0]))
        >>> loss.backward()
        >>> loss.item(), inner.grad, criterion.u
        (1.5, tensor([0.5000, 0.0000]), tensor([-1.,  0.,  3.,  0.]))
    """

    label_buffers: ClassVar[tuple[str, ...]] = ()
    _BY_AUTOGRAD = True
    tau = rule_attribute("table_u", "tau", "Averaging weight in (0, 1].")
    gamma = rule_attribute("table_u", "gamma", "Correction weight.")

    def __init__(
        self,
        num_blocks: int,
        outer: Function | nn.Module,
        *,
        dim: int = 1,
        tau: float,
        gamma: Gamma = 0.0,
        bound: float | None = None,
        initial: float | Tensor | None = None,
    ) -> None:
        super().__init__()
        self.outer = check_function(self._owner, "outer", outer)
        self.num_blocks = check_count(self._owner, "num_blocks", num_blocks)
        self.dim = check_count(self._owner, "dim", dim)
        rule = UpdateRule(self._owner, tau, gamma, bound)
        self.table_u = EstimatorTable(self.num_blocks, self.dim, rule=rule, initial=initial)

    @property
    def needs_previous(self) -> bool:
        """Whether a call in training mode needs `previous_inner`: `gamma` is not 0."""
        return self.table_u.rule.corrects

    @property
    def u(self) -> Tensor:
        """The rows, shape `(num_blocks, dim)`, or `(num_blocks,)` where `dim` is 1. A view of the buffer."""
        return self.table_u.values.squeeze(1) if self.dim == 1 else self.table_u.values

    def _batch(self, check: Check, inner: Tensor, index: Tensor, previous_inner: Tensor | None = None) -> _Blocks:
        return self._blocks(check, "inner", inner, index, previous_inner)

    def _blocks(
        self, check: Check, name: str, inner: Tensor, index: Tensor, previous: Tensor | None, *, rows: str = "blocks"
    ) -> _Blocks:
        """Check values of blocks that errors call `name`, their numbers, and the values at the previous weights."""
        owner, device = self._owner, self.table_u.values.device
        check_floating(owner, name, inner)
        check_shape(owner, name, inner, [("B1", self.dim), ("B1",)] if self.dim == 1 else [("B1", self.dim)])
        check_device(owner, name, inner, device)
        unique = self.training
        index = check.index("index", index, self.num_blocks, length=len(inner), unique=unique, device=device, rows=rows)
        before = check.previous(name, inner, previous, self.training and self.needs_previous)
        check.finite(**{name: inner, f"previous_{name}": before})
        gated, gate = enter(inner, check.late)
        return _Blocks(check.clean(gated), index, before, gate)

    def _step(self, batch: _Blocks) -> Step:
        inner, index, before, gate = batch
        table, size = self.table_u, len(inner)
        now = inner.detach().reshape(size, self.dim)
        if not self.training:
            value = self._call("outer", self.outer, inner, index, (size,), (size, 1))
            return Step(value.mean(), inner, gate=gate, finite={"what outer returns": value})
        row = table.read(index, fill=now)
        new = table.propose(row, now, None if before is None else before.reshape(size, self.dim))
        value = self._call("outer", self.outer, straight_through(row.view_as(inner), inner), index, (size,), (size, 1))
        finite = {"what outer returns": value, "the updated table row": new}

        def write(bad: Tensor | None) -> None:
            table.write(index, row, new, bad)

        return Step(value.mean(), inner, gate=gate, finite=finite, write=write)
