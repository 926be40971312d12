"""The two-class tables and bags of the studies by name: ADBench, KEEL, Adult, fingerprints, MUSK2, Fox, made ones."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_classification

from experiments.data.adbench import ADBENCH_SETS, load_adbench
from experiments.data.fingerprints import FINGERPRINT_SETS, load_fingerprints
from experiments.data.groups import load_adult
from experiments.data.keel import load_keel
from experiments.data.mil import load_fox, load_musk2
from moreauc.app.comparison import LabelledData
from moreauc.data import Bags, digit_bags
from moreauc.data.examples import load_example

_BAGS = {"MUSK2": load_musk2, "Fox": load_fox}


@lru_cache(maxsize=2)
def load_table(name: str, folder: Path | None = None) -> LabelledData:
    """Return all rows of a table; fingerprints with their split into training and test rows.

    Args:
        name: "fraud", "Adult", a set of ADBench, of KEEL or of fingerprints, or "made" with a seed, as in "made 0"; for
            bags "MUSK2", "Fox", or "digits" with the digit to find, as in "digits 9", and their own split.
        folder: folder with the data; None for MOREAUC_DATA, or a download where there is one.
    """
    if name in FINGERPRINT_SETS:
        bits, labels, train, test = load_fingerprints(name, folder)
        return LabelledData(bits, labels, (train, test))
    if name in ADBENCH_SETS:
        return LabelledData(*load_adbench(name, folder))
    if name == "Adult":
        data = load_adult(folder)
        return LabelledData(data.X, data.y)
    if name == "fraud":
        return LabelledData(*load_example("fraud")[:2])
    if name in _BAGS:
        bags = _BAGS[name](folder)
        return LabelledData(_as_list(bags), bags.labels.numpy())
    if name.startswith("digits "):
        digits = digit_bags(target=int(name.split()[1]))
        labels = np.concatenate([digits.train.labels.numpy(), digits.test.labels.numpy()])
        rows = np.arange(len(labels))
        parts = rows[: len(digits.train)], rows[len(digits.train) :]
        return LabelledData(_as_list(digits.train) + _as_list(digits.test), labels, parts)
    if name.startswith("made "):
        return LabelledData(*make_classification(300, 5, weights=[0.8], flip_y=0.1, random_state=int(name.split()[1])))
    return LabelledData(*load_keel(name, folder))


def _as_list(bags: Bags) -> list[NDArray[np.float32]]:
    return [bags.instances(bag).numpy() for bag in range(len(bags))]
