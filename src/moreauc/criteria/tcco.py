r"""The three-level loss for functions the user brings (TCCO, solved by SONT).

Reference: Hu, Zhu and Yang, "Non-Smooth Weakly-Convex Finite-sum Coupled Compositional Optimization", NeurIPS 2023.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from moreauc._checks import check_count, check_device, check_floating, check_shape
from moreauc.core.tables import EstimatorTable, Gamma, UpdateRule
from moreauc.criteria._base import Criterion, Function, Step, rule_attribute
from moreauc.criteria._gates import enter, straight_through
from moreauc.criteria._validation import Check, check_function, repeats


class ParameterSnapshot(nn.Module):
    """The parameters of a module as they were when last captured, kept in buffers so that checkpoints carry them."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._names = {name: name.replace(".", "__") for name, _ in module.named_parameters()}
        for name, parameter in module.named_parameters():
            self.register_buffer(self._names[name], parameter.detach().clone())

    @torch.no_grad()
    def capture(self, module: nn.Module, unless: Tensor | None = None) -> None:
        """Copy the present parameters of `module`, unless a flag on the device, shape `()`, is True."""
        for name, parameter in module.named_parameters():
            kept = self.get_buffer(self._names[name])
            kept.copy_(parameter if unless is None else torch.where(unless, kept, parameter))

    @torch.no_grad()
    def evaluate(self, module: nn.Module, *args: Tensor) -> Tensor:
        """Call `module` with the captured parameters."""
        held = {name: self.get_buffer(key) for name, key in self._names.items()}
        result: Tensor = functional_call(module, held, args)
        return result


class _Pairs(NamedTuple):
    """A checked batch: values of pairs, with gradient, numbers of outer items and of pairs, and the gate."""

    h: Tensor
    outer: Tensor
    pairs: Tensor
    before: Tensor | None
    gate: Tensor | None


class TCCOLoss(Criterion):
    r"""Three-level loss, :math:`F(w) = \frac1{n_1} \sum_i f_i(\frac1{n_2} \sum_j g_i(h_{ij}(w)))` (SONT).

    In training mode a call with outer items :math:`B_1`, inner items :math:`B_2` and `h`
    :math:`= h_{ij}(w_t; B_{3,ij})` for each of their pairs is one iteration of Algorithm 3, or of Algorithm 7 where
    both gammas are 0:

    .. math::

        v_{ij,t+1} &= \Pi_C[(1 - \tau_1) v_{ij,t} + \tau_1 h_{ij}(w_t) + \gamma_1 (h_{ij}(w_t) - h_{ij}(w_{t-1}))]
            && \text{(line 4)} \\
        u_{i,t+1} &= (1 - \tau_2) u_{i,t} + \frac1{B_2} \sum_{j \in B_2} [\tau_2 g_i(v_{ij,t})
            + \gamma_2 (g_i(v_{ij,t}) - g_i(v_{ij,t-1}))] && \text{(line 5)} \\
        G_t &= \frac1{B_1} \sum_{i \in B_1} \Big[\frac1{B_2} \sum_{j \in B_2} \nabla h_{ij}(w_t)\,
            \partial g_i(v_{ij,t})\Big] \partial f_i(u_{i,t}) && \text{(line 6)}

    :math:`v_{ij,t-1}` is the row one iteration ago, whether or not it was visited then, and :math:`v_{-1} = v_0`. Rows
    are initialised at their first visit unless initial values are given. The value returned is :math:`\frac1{B_1}
    \sum_i f_i(u_{i,t})`. Parameters of `outer` or `middle`, if these are modules, get the gradient of the same
    expression; with `gamma2` above 0, :math:`g_i(v_{ij,t-1})` is taken at the parameters that `middle` had in the
    previous call.

    In `eval()` mode a call returns the objective at the values `h` and changes nothing.

    Args:
        num_outer: number of outer items :math:`n_1`.
        num_inner: number of inner items :math:`n_2`.
        outer: `outer(u, outer_index) -> (B1,)`, the functions :math:`f_i`; `u` has shape `(B1, dim_middle)` (`(B1,)`
            where `middle` returns `(B1, B2)`).
        middle: `middle(v, outer_index) -> (B1, B2, dim_middle)` (or `(B1, B2)` where `dim_middle` is 1), the functions
            :math:`g_i`; `v` has the shape of `h`.
        dim_middle: length of a value of `middle`.
        dim_inner: length of a value of `h`.
        tau1: averaging weight of `v` in (0, 1].
        tau2: averaging weight of `u` in (0, 1].
        gamma1: correction weight of `v`, at least 0, or "theory" (:math:`n_1 n_2` rows, :math:`B_1 B_2` visited).
        gamma2: correction weight of `u`, at least 0, or "theory" (:math:`n_1` rows, :math:`B_1` visited).
        bound: radius of the ball that rows of `v` are projected onto; None for no projection.
        initial_u: :math:`u_{i,0}`, a number or a tensor of shape `(num_outer, dim_middle)` (last axis optional at 1).
        initial_v: :math:`v_{ij,0}`, a number or a tensor of shape `(num_outer, num_inner, dim_inner)` (likewise).

    Shape:
        - h, previous_h: `(B1, B2, dim_inner)`, or `(B1, B2)` where `dim_inner` is 1
        - outer_index: `(B1,)`; inner_index: `(B2,)`, the same inner items for all outer ones as in the paper, or
          `(B1, B2)`, each outer item with its own; no pair twice
        - output: scalar

    Example:
        >>> criterion = TCCOLoss(3, 4, lambda u, i: torch.relu(u - 1), lambda v, i: v.abs(), tau1=0.5, tau2=0.5)
        >>> h = torch.tensor([[3.0, -1.0]], requires_grad=True)
        >>> loss = criterion(h, torch.tensor([2]), torch.tensor([0, 3]))
        >>> loss.backward()
        >>> loss.item(), h.grad
        (1.0, tensor([[ 0.5000, -0.5000]]))
    """

    label_buffers: ClassVar[tuple[str, ...]] = ()
    _BY_AUTOGRAD = True
    tau1 = rule_attribute("table_v", "tau", "Averaging weight of `v`.")
    tau2 = rule_attribute("table_u", "tau", "Averaging weight of `u`.")
    gamma1 = rule_attribute("table_v", "gamma", "Correction weight of `v`.")

    def __init__(
        self,
        num_outer: int,
        num_inner: int,
        outer: Function | nn.Module,
        middle: Function | nn.Module,
        *,
        dim_middle: int = 1,
        dim_inner: int = 1,
        tau1: float,
        tau2: float,
        gamma1: Gamma = 0.0,
        gamma2: Gamma = 0.0,
        bound: float | None = None,
        initial_u: float | Tensor | None = None,
        initial_v: float | Tensor | None = None,
    ) -> None:
        super().__init__()
        owner = self._owner
        self.outer = check_function(owner, "outer", outer)
        self.num_outer = check_count(owner, "num_outer", num_outer)
        self.num_inner = check_count(owner, "num_inner", num_inner)
        self.dim_middle = check_count(owner, "dim_middle", dim_middle)
        self.dim_inner = check_count(owner, "dim_inner", dim_inner)
        self.middle = check_function(owner, "middle", middle)
        rule_v = UpdateRule(owner, tau1, gamma1, bound, suffix="1")
        rule_u = UpdateRule(owner, tau2, gamma2, suffix="2")
        if isinstance(initial_v, Tensor) and initial_v.ndim > 0:
            full = (self.num_outer, self.num_inner, self.dim_inner)
            check_shape(owner, "initial_v", initial_v, [full, full[:2]] if self.dim_inner == 1 else [full])
            initial_v = initial_v.reshape(-1, self.dim_inner)
        self.table_u = EstimatorTable(
            self.num_outer, self.dim_middle, rule=rule_u, initial=initial_u, argument="initial_u"
        )
        self.table_v = EstimatorTable(
            self.num_outer * self.num_inner,
            self.dim_inner,
            rule=rule_v,
            initial=initial_v,
            keep_previous=rule_u.corrects,
            argument="initial_v",
        )
        self.previous_middle = None
        if rule_u.corrects and isinstance(middle, nn.Module):
            self.previous_middle = ParameterSnapshot(middle)

    @property
    def needs_previous(self) -> bool:
        """Whether a call in training mode needs `previous_h`: `gamma1` is not 0. `gamma2` needs only the rows."""
        return self.table_v.rule.corrects

    @property
    def u(self) -> Tensor:
        """The outer rows, shape `(num_outer, dim_middle)`, or `(num_outer,)` where `dim_middle` is 1."""
        return self.table_u.values.squeeze(1) if self.dim_middle == 1 else self.table_u.values

    @property
    def v(self) -> Tensor:
        """The inner rows, shape `(num_outer, num_inner, dim_inner)`, without the last axis where `dim_inner` is 1."""
        shape = (self.num_outer, self.num_inner)
        return self.table_v.values.view(shape if self.dim_inner == 1 else (*shape, self.dim_inner))

    @property
    def gamma2(self) -> Gamma:
        """Correction weight of `u`. May be changed, but not raised from 0: the rows of `v` must have been kept."""
        return self.table_u.rule.gamma

    @gamma2.setter
    def gamma2(self, value: Gamma) -> None:
        rule = replace(self.table_u.rule, gamma=value)
        if rule.corrects and not self.table_v.keep_previous:
            raise ValueError(f"{self._owner}: gamma2 must stay 0 in a loss made with gamma2=0, got {value!r}")
        self.table_u.rule = rule

    def _batch(
        self, check: Check, h: Tensor, outer_index: Tensor, inner_index: Tensor, previous_h: Tensor | None = None
    ) -> _Pairs:
        owner, device = self._owner, self.table_v.values.device
        check_floating(owner, "h", h)
        full: tuple[int | str, ...] = ("B1", "B2", self.dim_inner)
        check_shape(owner, "h", h, [full, full[:2]] if self.dim_inner == 1 else [full])
        check_device(owner, "h", h, device)
        outer = check.index(
            "outer_index",
            outer_index,
            self.num_outer,
            length=len(h),
            unique=self.training,
            device=device,
            rows="outer items",
        )
        pairs = self._pairs(check, outer, inner_index, h.shape[1])
        before = check.previous("h", h, previous_h, self.training and self.needs_previous, "gamma1")
        check.finite(h=h, previous_h=before)
        gated, gate = enter(h, check.late)
        return _Pairs(check.clean(gated), outer, pairs, before, gate)

    def _pairs(self, check: Check, outer: Tensor, inner_index: Tensor, b2: int) -> Tensor:
        """Return row numbers of the pairs in the table `v`, checked, shape `(B1 * B2,)`."""
        b1, given = len(outer), torch.as_tensor(inner_index)
        check_shape(self._owner, "inner_index", given, [(b2,), (b1, b2)])
        shared = given.ndim != 2
        inner = check.index(
            "inner_index",
            given.flatten(),
            self.num_inner,
            length=given.numel(),
            unique=shared and self.training,
            device=outer.device,
            rows="inner items",
        )
        pairs = (outer.unsqueeze(1) * self.num_inner + inner.reshape(-1, b2)).flatten()
        if shared or not self.training:
            return pairs
        name, size = "inner_index of one outer item", self.table_v.num_rows  # each pair may occur once
        if not check.late:
            return check.index(name, pairs, size, length=b1 * b2, unique=True, device=outer.device)
        check.flag(f"{name} must not repeat a row inside one batch, got one more than once", repeats(pairs))
        return pairs

    def _step(self, batch: _Pairs) -> Step:
        h, outer_index, pairs, before, gate = batch
        u, v, training = self.table_u, self.table_v, self.training
        now_v = h.detach().reshape(-1, self.dim_inner)
        row_v = v.read(pairs, fill=now_v) if training else now_v
        middle = self._middle(straight_through(row_v.view_as(h), h) if training else h, outer_index)
        mean = middle.mean(dim=1)
        now_u = mean.detach().reshape(len(h), self.dim_middle)
        row_u = u.read(outer_index, fill=now_u) if training else now_u
        observed = straight_through(row_u.view_as(mean), mean) if training else mean
        value = self._call("outer", self.outer, observed, outer_index, (len(h),), (len(h), 1))
        finite: dict[str, Tensor | None] = {"what middle returns": middle, "what outer returns": value}
        if not training:
            return Step(value.mean(), h, gate=gate, finite=finite)
        before_u = None
        if u.rule.corrects:
            before_u = self._middle_before(v.previous(pairs, row_v).view_as(h), outer_index, now_u)
        new_v = v.propose(row_v, now_v, None if before is None else before.reshape(row_v.shape))
        new_u = u.propose(row_u, now_u, before_u)
        finite |= {"the updated row of v": new_v, "the updated row of u": new_u}

        def write(bad: Tensor | None) -> None:
            v.write(pairs, row_v, new_v, bad)
            u.write(outer_index, row_u, new_u, bad)
            if self.previous_middle is not None and isinstance(self.middle, nn.Module):
                self.previous_middle.capture(self.middle, unless=bad)

        return Step(value.mean(), h, gate=gate, finite=finite, write=write)

    def _middle(self, v: Tensor, index: Tensor) -> Tensor:
        b1, b2 = v.shape[:2]
        shapes = [(b1, b2, self.dim_middle), (b1, b2)] if self.dim_middle == 1 else [(b1, b2, self.dim_middle)]
        return self._call("middle", self.middle, v, index, *shapes)

    @torch.no_grad()
    def _middle_before(self, old: Tensor, index: Tensor, now: Tensor) -> Tensor:
        """Mean over j of `middle` as it was one iteration ago, at the rows of `v` one iteration ago."""
        if self.previous_middle is None or not isinstance(self.middle, nn.Module):
            value = self._middle(old, index)
        else:
            value = self.previous_middle.evaluate(self.middle, old, index)
        mean = value.mean(dim=1).reshape(now.shape).to(now.dtype)
        return torch.where(self.table_v.step == 0, now, mean)  # before the first iteration both are equal
