"""The imbalanced two-class tables of the KEEL repository, read from a folder of `.dat` or `.dat.gz` files.

The files have no header; the last column says `positive` or `negative`; some other columns are categories, not numbers.
Reference: Alcalá-Fdez et al., KEEL Data-Mining Software Tool: Data Set Repository, 2011 (sci2s.ugr.es/keel).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.data.download import from_folder

# rows and positives of each set, checked when it is read
KEEL_SETS = {
    "abalone-17_vs_7-8-9-10": (2338, 58),
    "kddcup-buffer_overflow_vs_back": (2233, 30),
    "poker-8-9_vs_5": (2075, 25),
    "segment0": (2308, 329),
    "vowel0": (988, 90),
    "yeast5": (1484, 44),
}


def load_keel(name: str, folder: Path | None = None) -> tuple[pd.DataFrame, NDArray[np.int64]]:
    """Return the columns and the 0/1 labels of a set; columns that are the same in every row are left out.

    Args:
        name: key of `KEEL_SETS`.
        folder: folder that has the files, or a subfolder `keel_imbalanced` with them; None for MOREAUC_DATA.
    """
    if name not in KEEL_SETS:
        raise ValueError(f"load_keel: name must be one of {', '.join(KEEL_SETS)}, got {name!r}")
    found = from_folder("load_keel", folder, "keel_imbalanced", f"{name}.dat", f"{name}.dat.gz")
    table = pd.read_csv(found, header=None, skipinitialspace=True, comment="@")
    target = table.iloc[:, -1].astype(str).str.strip()
    labels = (target == "positive").to_numpy().astype(np.int64)
    counts = (len(table), int(labels.sum()))
    if counts != KEEL_SETS[name] or not target.isin(["positive", "negative"]).all():
        raise ValueError(f"load_keel: {name} must have {KEEL_SETS[name]} rows and positives, got {counts}")
    columns = table.iloc[:, :-1]
    columns = columns.loc[:, columns.nunique() > 1]
    columns.columns = [f"x{number + 1}" for number in columns.columns]
    texts = [name for name in columns if not pd.api.types.is_numeric_dtype(columns[name])]
    return columns.astype(dict.fromkeys(texts, "category")), labels
