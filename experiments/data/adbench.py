"""Imbalanced two-class tables of ADBench, read from a folder of `.npz` files.

Reference: Han et al., ADBench: Anomaly Detection Benchmark, 2022. Several of the tables come from UCI and ODDS.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.data.download import from_folder

# file, rows and positives of each set, checked when it is read
ADBENCH_SETS = {
    "annthyroid": ("2_annthyroid.npz", 7200, 534),
    "campaign": ("5_campaign.npz", 41188, 4640),
    "Cardiotocography": ("7_Cardiotocography.npz", 2114, 466),
    "fault": ("12_fault.npz", 1941, 673),
    "landsat": ("19_landsat.npz", 6435, 1333),
    "letter": ("20_letter.npz", 1600, 100),
    "magic.gamma": ("22_magic.gamma.npz", 19020, 6688),
    "mnist": ("24_mnist.npz", 7603, 700),
    "PageBlocks": ("27_PageBlocks.npz", 5393, 510),
    "Pima": ("29_Pima.npz", 768, 268),
    "satellite": ("30_satellite.npz", 6435, 2036),
    "thyroid": ("38_thyroid.npz", 3772, 93),
}


def load_adbench(name: str, folder: Path | None = None) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the columns and the 0/1 labels of a set.

    Args:
        name: key of `ADBENCH_SETS`.
        folder: folder that has the files, or a subfolder `adbench` with them; None for MOREAUC_DATA.
    """
    if name not in ADBENCH_SETS:
        raise ValueError(f"load_adbench: name must be one of {', '.join(ADBENCH_SETS)}, got {name!r}")
    file, *wanted = ADBENCH_SETS[name]
    with np.load(from_folder("load_adbench", folder, "adbench", file), allow_pickle=False) as arrays:
        columns, labels = arrays["X"].astype(np.float64), arrays["y"].astype(np.int64)
    counts = [len(labels), int((labels == 1).sum())]
    if counts != wanted or not np.isin(labels, (0, 1)).all():
        raise ValueError(f"load_adbench: {name} must have {wanted} rows and positives, got {counts}")
    return columns, labels
