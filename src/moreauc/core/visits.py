"""Rows of a table in an iteration that may be refused on the device: read first, written only where all is well."""

from __future__ import annotations

import torch
from torch import Tensor

from moreauc.core.tables import EstimatorTable


class Visit:
    """The rows `index` of a table, which may name a row several times if what is written there is the same.

    Args:
        table: the table; when written to it takes the type `wide` if that is wider than its own.
        index: row numbers, shape `(B,)`.
        wide: floating type of what it will be given.
    """

    def __init__(self, table: EstimatorTable, index: Tensor, wide: torch.dtype) -> None:
        self.table, self.index = table, index
        wide = torch.promote_types(table.values.dtype, wide)
        self.held = table.values.index_select(0, index).to(wide)
        self._seen = None if table._complete else table.visited.index_select(0, index)

    def row(self, fill: Tensor) -> Tensor:
        """Return the rows, shape `(B, dim)`, `fill` standing in for rows that hold nothing yet."""
        if self._seen is None:
            return self.held
        return torch.where(self._seen.unsqueeze(1), self.held, fill.to(self.held.dtype))

    def previous(self, row: Tensor) -> Tensor:
        """Return the rows as they were one iteration ago; `row` are those of now."""
        table = self.table
        changed = table.written.index_select(0, self.index) == table.step - 1
        return torch.where(changed.unsqueeze(1), table.replaced.index_select(0, self.index).to(row.dtype), row)

    def write(self, bad: Tensor, row: Tensor, new: Tensor) -> None:
        """End the iteration unless `bad`, shape `()`, is True: rows that were `row` become `new`."""
        table, index = self.table, self.index
        table._widen(self.held.dtype)
        if table.keep_previous:
            replaced, written = table.replaced.index_select(0, index), table.written.index_select(0, index)
            table.replaced.index_copy_(0, index, torch.where(bad, replaced, row.to(replaced.dtype)))
            table.written.index_copy_(0, index, torch.where(bad, written, table.step))
            table.step.add_(~bad)
        table.values.index_copy_(0, index, torch.where(bad, self.held, new.to(self.held.dtype)))
        if self._seen is not None:
            table.visited.index_copy_(0, index, self._seen | ~bad)
