"""What loaders of tensors in memory have in common: rows in the order of a sampler, or all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from moreauc._checks import check_count, shown
from moreauc.samplers.base import Batch, PlannedSampler


class SampledRows:
    """Rows of labelled data in batches; messages name the subclass.

    Attributes:
        labels: labels of the rows, on the device of the data.
        sampler: iterable over batches of row numbers; None for all rows in their order.
        batch_size: rows of a batch without a sampler.
    """

    labels: Tensor
    sampler: Iterable[Sequence[int]] | None
    batch_size: int
    batch_sampler = None  # Lightning expects it of whatever has a sampler

    def _take_sampler(self, sampler: Iterable[Sequence[int]] | None, batch_size: int) -> None:
        owner = type(self).__name__
        if sampler is not None and not hasattr(sampler, "__iter__"):
            raise ValueError(f"{owner}: sampler must be an iterable over batches, got {type(sampler).__name__}")
        self.sampler = sampler
        self.batch_size = check_count(owner, "batch_size", batch_size)

    def __len__(self) -> int:
        if self.sampler is None:
            return -(-len(self.labels) // self.batch_size)
        return len(self.sampler)  # type: ignore[arg-type]  # an error of Python's own where it has no length

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.labels.device

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on to a sampler that has epochs."""
        if self.sampler is not None and hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def set_position(self, epoch: int, step: int) -> None:
        """Pass the position on to the sampler; without one there is nothing to resume.

        Raises:
            ValueError: if the sampler has no `set_position`.
        """
        if self.sampler is None:
            return
        if not hasattr(self.sampler, "set_position"):
            owner, kind = type(self).__name__, type(self.sampler).__name__
            raise ValueError(f"{owner}: sampler must have set_position, got {kind} without")
        self.sampler.set_position(epoch, step)

    def _rows(self, device: torch.device | str = "cpu") -> Tensor | Iterator[Tensor]:
        """Return the rows of all batches: as one tensor on the CPU where the sampler has a plan, else one by one.

        What the sampler gives is fixed by this call, not at the first batch: its position may move meanwhile.

        Args:
            device: where the rows are without a sampler; those of a sampler come on the CPU.
        """
        if self.sampler is None:
            return iter(torch.split(torch.arange(len(self.labels), device=device), self.batch_size))
        if hasattr(self.sampler, "remaining"):
            return self._check_rows(self.sampler.remaining())
        batches = iter(self.sampler)
        return (self._check_rows(self._as_rows(batch)) for batch in batches)

    def _noted(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Return batches of `_rows()`; a sampler that was asked for all of them at once takes note of the pass."""
        planned = isinstance(self.sampler, PlannedSampler) and hasattr(self.sampler, "remaining")
        return self.sampler.track(batches) if planned else batches  # type: ignore[union-attr]

    def _as_rows(self, batch: Sequence[int]) -> Tensor:
        """Return a batch of row numbers; a mask, cast to integers, would be a batch of the first two rows."""
        rows: Tensor = torch.as_tensor(batch)
        if rows.ndim != 1:
            raise ValueError(f"{type(self).__name__}: sampler must give batches of rows, got {shown(batch)}")
        if rows.numel() and (rows.dtype == torch.bool or rows.is_floating_point()):
            raise ValueError(f"{type(self).__name__}: sampler must give integers, got {rows.dtype}")
        return rows.long()

    def _check_rows(self, rows: Tensor) -> Tensor:
        if rows.numel():
            low, high = (int(value) for value in rows.aminmax())
            if low < 0 or high >= len(self.labels):
                bad = low if low < 0 else high
                raise ValueError(f"{type(self).__name__}: sampler must give rows in [0, {len(self.labels)}), got {bad}")
        return rows
