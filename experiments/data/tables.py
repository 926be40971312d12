"""The two-class tables of the studies by name: ADBench, KEEL, Adult, fingerprints of molecules, and made ones."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from sklearn.datasets import make_classification

from experiments.data.adbench import ADBENCH_SETS, load_adbench
from experiments.data.fingerprints import FINGERPRINT_SETS, load_fingerprints
from experiments.data.groups import load_adult
from experiments.data.keel import load_keel
from moreauc.comparison import Table
from moreauc.data.examples import load_example


@lru_cache(maxsize=2)
def load_table(name: str, folder: Path | None = None) -> Table:
    """Return all rows of a table; fingerprints with their split into training and test rows.

    Args:
        name: "fraud", "Adult", a set of ADBench, of KEEL or of fingerprints, or "made" with a seed, as in "made 0".
        folder: folder with the data; None for MOREAUC_DATA, or a download where there is one.
    """
    if name in FINGERPRINT_SETS:
        bits, labels, train, test = load_fingerprints(name, folder)
        return Table(bits, labels, (train, test))
    if name in ADBENCH_SETS:
        return Table(*load_adbench(name, folder))
    if name == "Adult":
        data = load_adult(folder)
        return Table(data.X, data.y)
    if name == "fraud":
        return Table(*load_example("fraud")[:2])
    if name.startswith("made "):
        return Table(*make_classification(300, 5, weights=[0.8], flip_y=0.1, random_state=int(name.split()[1])))
    return Table(*load_keel(name, folder))
