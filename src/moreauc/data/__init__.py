"""Data that knows its row numbers, as the losses need them: every batch is `(inputs, labels, index)`.

Names are loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moreauc.data.bag_batches import BagBatches, BagSampler, SampledBags, collate_bags
    from moreauc.data.bags import Bags, FileBags, FlatBags, ListBags
    from moreauc.data.batches import IndexedDataset, TensorBatches
    from moreauc.data.examples import digit_bags, load_example, planted_groups
    from moreauc.data.scoring import BagEvaluation, bag_scores, instance_outputs, instance_weights

__all__ = [
    "BagBatches",
    "BagEvaluation",
    "BagSampler",
    "Bags",
    "FileBags",
    "FlatBags",
    "IndexedDataset",
    "ListBags",
    "SampledBags",
    "TensorBatches",
    "bag_scores",
    "collate_bags",
    "digit_bags",
    "instance_outputs",
    "instance_weights",
    "load_example",
    "planted_groups",
]

_HOMES = {
    "bag_batches": {"BagBatches", "BagSampler", "SampledBags", "collate_bags"},
    "bags": {"Bags", "FileBags", "FlatBags", "ListBags"},
    "batches": {"IndexedDataset", "TensorBatches"},
    "examples": {"digit_bags", "load_example", "planted_groups"},
    "scoring": {"BagEvaluation", "bag_scores", "instance_outputs", "instance_weights"},
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"moreauc.data.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
