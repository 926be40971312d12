"""Data that knows its row numbers, as the losses need them: every batch is `(inputs, labels, index)`.

- :class:`IndexedDataset`: any map-style data set, for a `DataLoader`;
- :class:`TensorBatches`: tensors in memory, without a `DataLoader`.
"""

from moreauc.data.batches import TensorBatches
from moreauc.data.indexed import IndexedDataset

__all__ = ["IndexedDataset", "TensorBatches"]
