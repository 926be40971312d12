r"""The per-block memory of the algorithms: one row for each block, visited a few at a time.

A table is an `nn.Module` whose state is buffers, so checkpoints, `.to()`, copies and pickles carry it. The cost of a
step is that of the visited rows; the table itself never looks at the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from moreauc._checks import check_count, check_finite, check_shape
from moreauc._description import settings_text, tensor_text
from moreauc.core.rules import UpdateRule

_NEVER = -2  # before every iteration, and not "one iteration before the first"


class Table(nn.Module):
    r"""Rows that are read and written a few at a time.

    A row that was never visited and has no initial value takes the first value observed for it, as if it had held that
    value from the start.

    With `keep_previous` the table also answers for the value a row had one iteration ago. Only rows written in the last
    iteration differ from what they were, so each write notes the iteration and the value it replaced; no copy of the
    table is made.

    The table is never narrower than what it averages: it takes the wider of its own floating type and that of the
    values it meets or loads (this happens at most once for each wider type).

    Args:
        owner: class named in errors.
        num_rows: number of rows :math:`n`.
        dim: length of a row.
        initial: a number for all rows, or a tensor of shape `(num_rows, dim)` (`(num_rows,)` where `dim` is 1);
            None to fill each row at its first visit.
        keep_previous: keep what :meth:`previous` needs.
        argument: what errors call `initial`.

    Attributes:
        values: the rows, shape `(num_rows, dim)`.
        visited: which rows hold a value, shape `(num_rows,)`.
        step: with `keep_previous`, the number of iterations done, a 0-d integer tensor.
    """

    values: Tensor
    visited: Tensor
    step: Tensor
    replaced: Tensor
    written: Tensor
    _UNDESCRIBED: ClassVar[tuple[str, ...]] = ("_complete", "_filled", "_owner")  # state, which moves, and a name

    def __init__(
        self,
        owner: str,
        num_rows: int,
        dim: int = 1,
        *,
        initial: float | Tensor | None = None,
        keep_previous: bool = False,
        argument: str = "initial",
    ) -> None:
        super().__init__()
        self._owner = owner
        self.num_rows = check_count(owner, "number of rows", num_rows)
        self.dim = check_count(owner, "dim", dim)
        self.keep_previous = keep_previous
        self.initial: float | str | None = None  # of a tensor its checksum: it may be as large as the table
        self.register_buffer("values", self._initial_values(initial, argument))
        self.register_buffer("visited", torch.full((self.num_rows,), initial is not None))
        self._complete = initial is not None  # every row holds a value
        self._filled = 0  # rows written since it was last asked whether all have been visited
        if keep_previous:
            self.register_buffer("step", torch.zeros((), dtype=torch.int64))
            self.register_buffer("replaced", torch.zeros_like(self.values))
            self.register_buffer("written", torch.full((self.num_rows,), _NEVER, dtype=torch.int64))

    def _initial_values(self, initial: float | Tensor | None, argument: str) -> Tensor:
        shape = (self.num_rows, self.dim)
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
    def seen(self) -> Tensor | None:
        """Which rows hold a value, shape `(num_rows,)`; None for all of them."""
        return None if self._complete else self.visited

    def read(self, index: Tensor, *, fill: Tensor) -> Tensor:
        """Return the rows `index` as they are now, `fill` standing in for rows that hold nothing yet.

        Args:
            index: row numbers, shape `(B,)`.
            fill: values observed in this iteration, shape `(B, dim)`.

        Returns:
            A copy of the rows, shape `(B, dim)`, of the wider of both types. Nothing is written.
        """
        held = self.values.index_select(0, index)
        wide = wider(held.dtype, fill.dtype)
        if held.dtype != wide:
            held = held.to(wide)
        if self._complete:
            return held
        return torch.where(self.visited.index_select(0, index).unsqueeze(1), held, _as(fill, wide))

    def read_all(self, *, fill: Tensor) -> Tensor:
        """Return all rows, shape `(num_rows, dim)`, as :meth:`read` does."""
        wide = wider(self.values.dtype, fill.dtype)
        held = self.values.to(wide, copy=True)
        return held if self._complete else torch.where(self.visited.unsqueeze(1), held, _as(fill, wide))

    def previous(self, index: Tensor, row: Tensor) -> Tensor:
        """Return the rows `index` as they were one iteration ago; `row` are those of now, as :meth:`read` gave them."""
        if not self.keep_previous:
            raise RuntimeError("this table was made without keep_previous")
        changed = (self.written.index_select(0, index) == self.step - 1).unsqueeze(1)
        return torch.where(changed, _as(self.replaced.index_select(0, index), row.dtype), row)

    def write(self, index: Tensor, row: Tensor, new: Tensor, bad: Tensor | None = None) -> None:
        """End the iteration: rows `index`, which were `row`, become `new`; the others stay as they are.

        Args:
            index: row numbers, shape `(B,)`; a row may come several times if what is written there is the same.
            row: what :meth:`read` gave, shape `(B, dim)`.
            new: the new rows, shape `(B, dim)`.
            bad: a flag on the device, shape `()`: where it is True, nothing changes.
        """
        self._widen(new.dtype)
        values, row, new = self.values, _as(row, self.values.dtype), _as(new, self.values.dtype)
        if bad is not None:
            new = torch.where(bad, values.index_select(0, index), new)
        if self.keep_previous:
            self._note(index, row, bad)
        values.index_copy_(0, index, new)
        if self._complete:
            return
        if bad is not None:
            self.visited.index_copy_(0, index, self.visited.index_select(0, index) | ~bad)
            return
        self.visited.index_fill_(0, index, True)
        self._filled += len(index)
        if self._filled >= self.num_rows:  # all may have been visited; seldom asked
            self._complete, self._filled = bool(self.visited.all()), 0

    def _note(self, index: Tensor, row: Tensor, bad: Tensor | None) -> None:
        """Note which rows are written in this iteration, and what they were."""
        if bad is None:
            self.written.index_fill_(0, index, self.step)
            self.step.add_(1)
        else:
            row = torch.where(bad, self.replaced.index_select(0, index), row)
            self.written.index_copy_(0, index, torch.where(bad, self.written.index_select(0, index), self.step))
            self.step.add_(~bad)
        self.replaced.index_copy_(0, index, row)

    def write_all(self, new: Tensor, bad: Tensor | None = None) -> None:
        """End an iteration that visits all rows, of a table made without `keep_previous`; shape `(num_rows, dim)`."""
        self._widen(new.dtype)
        if bad is None:
            self.values.copy_(new)
        else:
            self.values.copy_(torch.where(bad, self.values, _as(new, self.values.dtype)))
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

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        saved = state_dict.get(prefix + "values")
        if isinstance(saved, Tensor):
            self._widen(saved.dtype)
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._complete = bool(self.visited.all())  # of what was loaded, which may be nothing after an error

    def extra_repr(self) -> str:
        """Show the settings, as checkpoints and processes compare them."""
        return settings_text(self)


class EstimatorTable(Table):
    r"""Rows :math:`u_i` that track the inner values of a compositional objective.

    The step that first visits a row reads the value observed for it, and then updates it by the rule like any other.

    Args:
        num_rows: number of rows :math:`n`.
        dim: length of a row.
        rule: how a visited row moves.
        initial: as for :class:`Table`.
        keep_previous: as for :class:`Table`.
        argument: what errors call `initial`.

    Example:
        >>> table = EstimatorTable(5, rule=UpdateRule("example", tau=0.5))
        >>> index, now = torch.tensor([3, 1]), torch.tensor([[2.0], [4.0]])
        >>> row = table.read(index, fill=now)
        >>> table.write(index, row, table.propose(row, 3 * now))
        >>> table.values.squeeze(1)
        tensor([0., 8., 0., 4., 0.])
    """

    def __init__(
        self,
        num_rows: int,
        dim: int = 1,
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
