"""Tables that ship with scikit-learn, made imbalanced: something to try the command line on without a download."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

_SEED = 0


def load_example(name: str) -> tuple[pd.DataFrame, NDArray[np.int64], str]:
    """Return one of the example tables.

    Args:
        name: "digits", "breast_cancer" or "diabetes".

    Returns:
        The columns, labels of 0 and 1 of shape `(n,)`, and in words where the table comes from and how it was made
        imbalanced. The same name gives the same table every time.

    Example:
        >>> X, y, description = load_example("digits")
        >>> X.shape, int(y.sum())
        ((1691, 61), 68)
    """
    if name not in EXAMPLES:
        raise ValueError(f"load_example: name must be one of {', '.join(EXAMPLES)}, got {name!r}")
    return EXAMPLES[name]()


def _digits() -> tuple[pd.DataFrame, NDArray[np.int64], str]:
    from sklearn.datasets import load_digits

    data = load_digits(as_frame=True)
    rows, labels = _thin((data.target == 8).to_numpy(), share=0.04)
    columns = data.data.loc[:, data.data.nunique() > 1]  # three corner pixels are always 0
    description = (
        "Handwritten digits of 8 x 8 pixels (scikit-learn's load_digits): is it an 8? "
        f"{_thinned(data.target == 8, labels)} Pixels that are the same in every image are left out."
    )
    return columns.iloc[rows].reset_index(drop=True), labels, description


def _breast_cancer() -> tuple[pd.DataFrame, NDArray[np.int64], str]:
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer(as_frame=True)
    rows, labels = _thin((data.target == 0).to_numpy(), share=0.05)
    description = (
        "Cell nuclei of breast masses (scikit-learn's load_breast_cancer): is the mass malignant? "
        f"{_thinned(data.target == 0, labels)}"
    )
    return data.data.iloc[rows].reset_index(drop=True), labels, description


def _diabetes() -> tuple[pd.DataFrame, NDArray[np.int64], str]:
    from sklearn.datasets import load_diabetes

    data = load_diabetes(as_frame=True, scaled=False)
    limit = float(np.quantile(data.target, 0.9))
    labels = (data.target > limit).to_numpy().astype(np.int64)
    description = (
        "Diabetes patients (scikit-learn's load_diabetes): is the progression of the disease after one year in the "
        f"highest tenth, above {limit:g}? {labels.sum()} of {len(labels)} patients are; no row was taken out."
    )
    return data.data, labels, description


def _thin(positive: NDArray[np.bool_], *, share: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw so many positives that they make up `share` of the rows; return rows kept, in order, and their labels."""
    members = np.flatnonzero(positive)
    count = round(share / (1.0 - share) * (len(positive) - len(members)))
    drawn = np.random.default_rng(_SEED).choice(members, count, replace=False)
    rows = np.sort(np.concatenate([np.flatnonzero(~positive), drawn]))
    return rows, positive[rows].astype(np.int64)


def _thinned(positive: pd.Series[bool], labels: NDArray[np.int64]) -> str:
    kept = int(labels.sum())
    return (
        f"Made imbalanced: {kept} of the {int(positive.sum())} positives, drawn at random with a fixed seed, are kept "
        f"beside all {len(labels) - kept} negatives ({kept / len(labels):.1%} positives)."
    )


EXAMPLES: dict[str, Callable[[], tuple[pd.DataFrame, NDArray[np.int64], str]]] = {
    "digits": _digits,
    "breast_cancer": _breast_cancer,
    "diabetes": _diabetes,
}
