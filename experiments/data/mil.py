"""Two public sets of bags, MUSK2 and Fox, and scaling of instances.

References: Dietterich, Lathrop and Lozano-Pérez, Solving the Multiple Instance Problem with Axis-Parallel Rectangles,
1997 (MUSK2: is a molecule musk, by its shapes?); Andrews, Tsochantaridis and Hofmann, Support Vector Machines for
Multiple-Instance Learning, 2002 (Fox: does an image show a fox, by its regions?).
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.io import loadmat
from scipy.io.matlab import MatReadError
from torch import Tensor

from experiments.data._archives import BROKEN, unpack
from experiments.data.download import find_file
from moreauc.data.bags import Bags, FlatBags, instance_moments, instance_shape

# positive bags, negative bags, instances and features of each set, checked when it is read
MIL_SETS = {"musk2": (39, 63, 6598, 166), "fox": (100, 100, 1320, 230)}


def load_musk2(folder: Path | None = None, *, verify: bool = False) -> FlatBags:
    """Return MUSK2: 102 molecules, 39 of them musk, with 1 to 1044 shapes of 166 features (raw integers).

    Args:
        folder: folder that has `musk2.csv` or `musk2.csv.gz`, or a subfolder `mil` with it; None for MOREAUC_DATA or a
            download. The file has no header; its columns are the label of the bag, the number of the bag, the features.
        verify: whether a file in the folder must have the right checksum.
    """
    path = find_file("load_musk2", "musk2.csv", folder, verify=verify)
    try:
        table = pd.read_csv(path, header=None)
        if table.shape[1] < 3:
            raise ValueError("fewer than 3 columns")
        labels, ids, features = table[0].to_numpy(), table[1].to_numpy(), table.iloc[:, 2:].to_numpy(np.float32)
    except (*BROKEN, OSError) as error:
        raise ValueError(f"load_musk2: {path.name} must be the table of the set, got {error}") from error
    return _bags("load_musk2", "musk2", features, ids, labels)


def load_fox(folder: Path | None = None, *, verify: bool = False) -> FlatBags:
    """Return Fox: 200 images, 100 of them with a fox, of 2 to 13 regions of 230 features.

    The file, `fox.mat` or `fox.mat.gz`, has a struct `x` with the fields `data`, `nlab` (2 for positive) and
    `ident.milbag`. Arguments and errors are those of :func:`load_musk2`.
    """
    path = find_file("load_fox", "fox.mat", folder, verify=verify)
    try:
        content = loadmat(BytesIO(unpack(path)), simplify_cells=True)
    except (*BROKEN, MatReadError, NotImplementedError, IndexError, OSError) as error:
        raise ValueError(f"load_fox: {path.name} must be a .mat file, got {error}") from error
    try:
        struct = content["x"]
        data, labels, ids = struct["data"], struct["nlab"] == 2, struct["ident"]["milbag"]
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"load_fox: fox.mat must have the fields of the set, got {sorted(content)}") from error
    return _bags("load_fox", "fox", data.astype(np.float32), ids, labels.astype(np.int64))


def _bags(owner: str, name: str, instances: NDArray[np.float32], ids: NDArray[Any], labels: NDArray[Any]) -> FlatBags:
    bags = FlatBags.from_ids(instances, ids, labels)
    positives = int(bags.labels.sum())
    counts = (positives, len(bags) - positives, *instances.shape)
    if counts != MIL_SETS[name]:
        wanted = f"{MIL_SETS[name]} positive bags, negative bags, instances and features"
        raise ValueError(f"{owner}: {name} must have {wanted}, got {counts}")
    return bags


def standardize_instances(train: Bags, *others: Bags) -> tuple[Bags, ...]:
    """Return bags whose instances have mean 0 and standard deviation 1 in the training bags, feature by feature.

    Every instance counts the same, whatever the size of its bag. Instances are scaled when they are read (bytes become
    float32); nothing is copied. A feature that is the same in all training instances is shifted only. `others` are
    scaled like `train`.

    Example:
        >>> train = FlatBags(torch.tensor([[1.0], [3.0], [2.0]]), [0, 2, 3], [1, 0])
        >>> test = FlatBags(torch.tensor([[5.0]]), [0, 1], [1])
        >>> train, test = standardize_instances(train, test)
        >>> train.instances(0), test.instances(0)
        (tensor([[-1.2247], [ 1.2247]]), tensor([[3.6742]]))
    """
    mean, std = instance_moments(train)
    for other in others:
        shape = instance_shape(other)
        if shape != tuple(mean.shape):
            found = f"{tuple(mean.shape)}, got {shape}"
            raise ValueError(f"standardize_instances: others must have instances of the shape of train's, {found}")
    return tuple(_ScaledBags(bags, mean, std) for bags in (train, *others))


class _ScaledBags(Bags):
    """Other bags, shifted and divided in float64, since what is left of large numbers may be small."""

    def __init__(self, source: Bags, mean: Tensor, std: Tensor) -> None:
        self.labels, self.sizes = source.labels, source.sizes
        self._source, self._mean, self._std = source, mean, std

    def instances(self, bag: int, rows: Tensor | None = None) -> Tensor:
        raw = self._source.instances(bag, rows)
        scaled = (raw.double() - self._mean) / self._std
        return scaled.to(raw.dtype if raw.is_floating_point() else torch.float32)
