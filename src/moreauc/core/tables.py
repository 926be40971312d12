r"""The per-block memory of the algorithms: one row for each block, visited a few at a time, and how a row moves.

A table is an `nn.Module` whose state is buffers, so checkpoints, `.to()`, copies and pickles carry it. The cost of a
step depends on the visited rows only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from moreauc._checks import check_count, check_finite, check_real, check_shape
from moreauc._settings import module_settings, tensor_text, text_of

Gamma = float | Literal["theory"]

_NEVER = -2  # not -1, which is the iteration before the first


def theory_gamma(num_rows: int, num_visited: int, tau: float) -> float:
    r"""Correction weight that the analysis of MSVR asks for (lemma `lem:16`, theorem `thm:1`).

    .. math:: \gamma = \frac{n - B_1}{B_1 (1 - \tau)} + (1 - \tau)

    with :math:`n` = `num_rows` (:math:`n_1 n_2` for the inner table of SONT), :math:`B_1` = `num_visited` rows visited
    in one step (:math:`B_1 B_2`), and :math:`\tau < 1`.

    Example:
        >>> theory_gamma(100, 10, tau=0.5)
        18.5
    """
    num_rows = check_count("theory_gamma", "num_rows", num_rows)
    num_visited = check_count("theory_gamma", "num_visited", num_visited)
    if num_visited > num_rows:
        raise ValueError(f"theory_gamma: num_visited must be at most num_rows = {num_rows}, got {num_visited}")
    tau = check_real("theory_gamma", "tau", tau, low=0.0, high=1.0, low_open=True, high_open=True)
    return (num_rows - num_visited) / (num_visited * (1.0 - tau)) + (1.0 - tau)


def update_row(
    row: Tensor, now: Tensor, before: Tensor | None, *, tau: float, gamma: float | Tensor, bound: float | None = None
) -> Tensor:
    r"""Return the visited rows after one step.

    .. math:: u_{i,t+1} = \Pi_C [(1 - \tau) u_{i,t} + \tau\, g_i(w_t; B) + \gamma (g_i(w_t; B) - g_i(w_{t-1}; B))]

    (Algorithm 1, line 4; Algorithm 3, lines 4 and 5; with :math:`\gamma = 0` Algorithms 6 and 7.)

    All are rows, shape `(B, dim)`, or `(B,)` where rows are numbers: `now` observed at the current iterate, `before` of
    the same samples at the previous one, unused where `gamma` is 0. `bound` is the radius :math:`C` of the ball that
    each row is projected onto; None for no projection.
    """
    new = torch.lerp(row, now, tau)  # (1 - tau) row + tau now, exact where row = now and where tau = 1
    if isinstance(gamma, Tensor) or gamma != 0.0:
        if before is None:
            raise ValueError("update_row: before must be given where gamma is not 0, got None")
        new = new + gamma * (now - before)
    return new if bound is None else project(new, bound)


def project(row: Tensor, bound: float) -> Tensor:
    """Project each row onto the Euclidean ball of radius `bound` around the origin."""
    peak = row.abs().amax(dim=-1, keepdim=True).clamp_min(torch.finfo(row.dtype).tiny)
    norm = peak * vector_norm(row / peak, dim=-1, keepdim=True)  # squares of the entries might overflow
    shrink: Tensor = bound / norm.clamp_min(bound)
    return row * shrink


@dataclass(frozen=True)
class UpdateRule:
    """The parameters of :func:`update_row`, checked once.

    `owner` is the class named in errors, with `suffix` after the argument names ("1" for `tau1`). `gamma` may be
    "theory", for :func:`theory_gamma` at the batch's size.
    """

    owner: str = field(repr=False)  # only for error messages, not part of the rule
    tau: float
    gamma: Gamma = 0.0
    bound: float | None = None
    suffix: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        check_real(self.owner, f"tau{self.suffix}", self.tau, low=0.0, high=1.0, low_open=True)
        name = f"gamma{self.suffix}"
        if isinstance(self.gamma, str):
            if self.gamma != "theory":
                raise ValueError(f"{self.owner}: {name} must be a number or 'theory', got {self.gamma!r}")
            if self.tau == 1.0:
                raise ValueError(f"{self.owner}: {name}='theory' needs tau{self.suffix} in (0, 1), got 1.0")
        else:
            check_real(self.owner, name, self.gamma, low=0.0)
        if self.bound is not None:
            check_real(self.owner, "bound", self.bound, low=0.0, low_open=True)

    @property
    def corrects(self) -> bool:
        """Whether the rule needs the values at the previous iterate."""
        return self.gamma != 0.0

    def __call__(
        self, row: Tensor, now: Tensor, before: Tensor | None, *, num_rows: int, visited: int | Tensor | None = None
    ) -> Tensor:
        """Return the rows after one step of a table of `num_rows` rows; shapes as in :func:`update_row`.

        `visited` is the number of different rows, by default that of the rows given.
        """
        weight: float | Tensor
        if isinstance(self.gamma, str):
            weight = correction_weight(self.gamma, self.tau, num_rows, len(row) if visited is None else visited)
        else:
            weight = self.gamma
        return update_row(row, now, before, tau=self.tau, gamma=weight, bound=self.bound)


def correction_weight(gamma: Gamma, tau: float, num_rows: int, visited: int | Tensor) -> float | Tensor:
    """Return `gamma`, or the weight of :func:`theory_gamma`, as a tensor where `visited` is one."""
    if gamma != "theory":
        return float(gamma)
    if isinstance(visited, Tensor):
        return (num_rows - visited) / (visited * (1.0 - tau)) + (1.0 - tau)
    return theory_gamma(num_rows, visited, tau)


class Table(nn.Module):
    r"""Rows that are read and written a few at a time.

    A row that was never visited and has no initial value takes the first value observed for it, as if it had held that
    value from the start.

    With `keep_previous` the table also answers for the value a row had one iteration ago: each write notes the
    iteration and the value it replaced. The table is never narrower than what it averages: it takes the wider of its
    own floating type and that of the values it meets or loads.

    `owner` and `argument` are what errors call the class and `initial`: a number for all rows, or one row for each;
    None to fill each row at its first visit. `dim` is the length of a row; None where rows are numbers, so that all
    shapes lack the last axis. `values` are the rows, and `visited` tells which of them hold a value; with
    `keep_previous`, `step` is the number of iterations done.
    """

    values: Tensor
    visited: Tensor
    step: Tensor
    replaced: Tensor
    written: Tensor
    _buffers: dict[str, Tensor]  # type: ignore[assignment]  # read directly: a fifth of the cost of an attribute
    _UNDESCRIBED: ClassVar[tuple[str, ...]] = ("_complete", "_filled", "_owner")  # state, and a name

    def __init__(
        self,
        owner: str,
        num_rows: int,
        dim: int | None = None,
        *,
        initial: float | Tensor | None = None,
        keep_previous: bool = False,
        argument: str = "initial",
    ) -> None:
        super().__init__()
        self._owner = owner
        self.num_rows = check_count(owner, "number of rows", num_rows)
        self.dim = None if dim is None else check_count(owner, "dim", dim)
        self.keep_previous = keep_previous
        self.initial: float | str | None = None  # the checksum of a tensor, which may be as large as the table
        self.register_buffer("values", self._initial_values(initial, argument))
        self.register_buffer("visited", torch.full((self.num_rows,), initial is not None))
        self._complete = initial is not None  # every row holds a value
        self._filled = 0  # rows written since `_complete` was last computed
        if keep_previous:
            self.register_buffer("step", torch.zeros((), dtype=torch.int64))
            self.register_buffer("replaced", torch.zeros_like(self.values))
            self.register_buffer("written", torch.full((self.num_rows,), _NEVER, dtype=torch.int64))

    def _initial_values(self, initial: float | Tensor | None, argument: str) -> Tensor:
        shape = (self.num_rows,) if self.dim is None else (self.num_rows, self.dim)
        if initial is None:
            return torch.zeros(shape)
        if not isinstance(initial, Tensor):
            initial = torch.as_tensor(initial, dtype=torch.get_default_dtype())
        if not initial.is_floating_point():
            initial = initial.to(torch.get_default_dtype())
        if initial.ndim > 0:
            check_shape(self._owner, argument, initial, [shape, shape[:1]] if self.dim == 1 else [shape])
        check_finite(self._owner, **{argument: initial})
        initial = initial.detach()
        self.initial = float(initial) if initial.ndim == 0 else tensor_text(initial)
        return initial.expand(shape).clone() if initial.ndim == 0 else initial.reshape(shape).clone()

    @property
    def number(self) -> Tensor:
        """The only row of a table that has one, a number, shape `()`."""
        return self._buffers["values"].view(())

    @property
    def seen(self) -> Tensor | None:
        """Which rows hold a value, shape `(num_rows,)`; None for all of them."""
        return None if self._complete else self.visited

    def read(self, index: Tensor, *, fill: Tensor) -> Tensor:
        """Return the rows `index` as they are now, `fill` standing in for rows that hold nothing yet.

        `fill` are values observed in this iteration, shape `(B, dim)`. The result is a copy, of the wider of both
        types.
        """
        held = self._buffers["values"].index_select(0, index)
        return held if self._complete and held.dtype == fill.dtype else self._filled_up(held, fill, index)

    def read_all(self, *, fill: Tensor) -> Tensor:
        """Return all rows, shape `(num_rows, dim)`, as :meth:`read` does."""
        return self._filled_up(self._buffers["values"].clone(), fill, None)

    def _filled_up(self, held: Tensor, fill: Tensor, index: Tensor | None) -> Tensor:
        if held.dtype != fill.dtype:
            wide = wider(held.dtype, fill.dtype)
            held, fill = _as(held, wide), _as(fill, wide)
        if self._complete:
            return held
        visited = self._buffers["visited"]
        visited = visited if index is None else visited.index_select(0, index)
        return torch.where(visited if self.dim is None else visited.unsqueeze(1), held, fill)

    def previous(self, index: Tensor, row: Tensor) -> Tensor:
        """Return the rows `index` as they were one iteration ago; `row` are those of now, as :meth:`read` gave them."""
        if not self.keep_previous:
            raise RuntimeError("this table was made without keep_previous")
        held = self._buffers
        changed = held["written"].index_select(0, index) == held["step"] - 1
        before = _as(held["replaced"].index_select(0, index), row.dtype)
        return torch.where(changed if self.dim is None else changed.unsqueeze(1), before, row)

    def write(self, index: Tensor, row: Tensor, new: Tensor, bad: Tensor | None = None) -> None:
        """End the iteration: rows `index`, which were `row`, become `new`; the others stay as they are.

        `row` is what :meth:`read` gave. A row may come several times if what is written there is the same. Where `bad`,
        a flag on the device, is True, nothing changes.
        """
        held = self._buffers
        if held["values"].dtype != new.dtype:
            self._widen(new.dtype)
        values = held["values"]
        row, new = _as(row, values.dtype), _as(new, values.dtype)
        if bad is not None:
            self._write_unless(bad, index, row, new)
            return
        if self.keep_previous:  # save the written rows and their old values
            held["written"].index_fill_(0, index, held["step"])
            held["step"].add_(1)
            held["replaced"].index_copy_(0, index, row)
        values.index_copy_(0, index, new)
        if not self._complete:
            held["visited"].index_fill_(0, index, True)
            filled = self._filled + index.shape[0]
            if filled >= self.num_rows:  # all rows may have been visited
                self._complete, filled = bool(held["visited"].all()), 0
            self.__dict__["_filled"] = filled  # as an attribute of a module it would cost as much as an operation

    def _write_unless(self, bad: Tensor, index: Tensor, row: Tensor, new: Tensor) -> None:
        """Write where a flag on the device is not set."""
        if self.keep_previous:
            self.written.index_copy_(0, index, torch.where(bad, self.written.index_select(0, index), self.step))
            self.step.add_(~bad)
            self.replaced.index_copy_(0, index, torch.where(bad, self.replaced.index_select(0, index), row))
        self.values.index_copy_(0, index, torch.where(bad, self.values.index_select(0, index), new))
        if not self._complete:
            self.visited.index_copy_(0, index, self.visited.index_select(0, index) | ~bad)

    def write_number(self, new: float | Tensor, dtype: torch.dtype, bad: Tensor | None = None) -> None:
        """Do as :meth:`write_all` with the only row; a Python number, of which `dtype` is the type, has no flag."""
        if isinstance(new, Tensor):
            self.write_all(new, bad)
            return
        if self._buffers["values"].dtype != dtype:
            self._widen(dtype)
        self._buffers["values"].fill_(new)

    def write_all(self, new: Tensor, bad: Tensor | None = None) -> None:
        """End an iteration that visits all rows, of a table made without `keep_previous`; shape `(num_rows, dim)`."""
        held = self._buffers
        if held["values"].dtype != new.dtype:
            self._widen(new.dtype)
        values = held["values"]
        values.copy_(new if bad is None else torch.where(bad, values, _as(new, values.dtype)))
        if self._complete:
            return
        if bad is None:
            self.visited.fill_(True)
            self._complete = True
        else:
            self.visited.logical_or_(~bad)

    def _widen(self, dtype: torch.dtype) -> None:
        wide = wider(self.values.dtype, dtype)
        if wide != self.values.dtype:
            self.values = self.values.to(wide)
            if self.keep_previous:
                self.replaced = self.replaced.to(wide)

    def _load_from_state_dict(self, state_dict: Mapping[str, object], prefix: str, *args: object) -> None:
        saved = state_dict.get(prefix + "values")
        if isinstance(saved, Tensor):
            self._widen(saved.dtype)
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._complete = bool(self.visited.all())  # after an error nothing was loaded

    def extra_repr(self) -> str:
        """Show the settings, as checkpoints and processes compare them."""
        return ", ".join(f"{name}={text_of(value)}" for name, value in module_settings(self).items())


class EstimatorTable(Table):
    r"""Rows :math:`u_i` that track the inner values of a compositional objective.

    The step that first visits a row reads the value observed for it, and then updates it by `rule` like any other.

    Example:
        >>> table = EstimatorTable(5, rule=UpdateRule("example", tau=0.5))
        >>> index, now = torch.tensor([3, 1]), torch.tensor([2.0, 4.0])
        >>> row = table.read(index, fill=now)
        >>> table.write(index, row, table.propose(row, 3 * now))
        >>> table.values
        tensor([0., 8., 0., 4., 0.])
    """

    def __init__(
        self,
        num_rows: int,
        dim: int | None = None,
        *,
        rule: UpdateRule,
        initial: float | Tensor | None = None,
        keep_previous: bool = False,
        argument: str = "initial",
    ) -> None:
        super().__init__(rule.owner, num_rows, dim, initial=initial, keep_previous=keep_previous, argument=argument)
        self.rule = rule

    def propose(
        self, row: Tensor, now: Tensor, before: Tensor | None = None, visited: int | Tensor | None = None
    ) -> Tensor:
        """Return what the rule makes of `row`; shapes `(B, dim)`. Nothing is written.

        `visited` is the number of different rows where it is not `B`.
        """
        before = None if before is None else _as(before, row.dtype)
        return self.rule(row, _as(now, row.dtype), before, num_rows=self.num_rows, visited=visited)


def wider(one: torch.dtype, other: torch.dtype) -> torch.dtype:
    """Return the wider of two floating types; equal ones, the rule, cost nothing."""
    return one if one == other else torch.promote_types(one, other)


def _as(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return values in a type; asking first costs less than a conversion that changes nothing."""
    return values if values.dtype == dtype else values.to(dtype)
