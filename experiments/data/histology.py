"""Histology images as bags of patches, labelled adenocarcinoma or not.

Colon (adenocarcinoma or benign) and Lung (adenocarcinoma or squamous cell carcinoma) are parts of LC25000. Its images
are rotations and flips of about 250 tiles of tissue per class: versions of one tile are near copies, so that a split by
image has the tissue of most test images in training too. :attr:`Histology.tiles` says which belong together.

References: Borkowski et al., Lung and Colon Cancer Histopathological Image Dataset (LC25000), arXiv:1912.12142; tiles
from github.com/GeorgeBatch/LC25000-clean.
"""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from io import BytesIO
from pathlib import Path, PurePosixPath

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.data.download import find_file
from moreauc.data.bags import FlatBags

Patches = NDArray[np.uint8]

# folders of the positive and of the negative images of each set
HISTOLOGY_SETS = {"colon": ("colon_aca", "colon_n"), "lung": ("lung_aca", "lung_scc")}

_OWNER = "load_histology"
IMAGES = 1000  # of each class, checked when a set is read
DRAWN = (100, 1000)  # positive and negative images that are drawn
PATCH = 32  # height and width
_ENDINGS = (".jpeg", ".jpg", ".png")
_STREAM = 3  # keeps these random numbers apart from those that other choices make by the same seed
_VERSIONS = 4  # images made of one tile in the example
_TISSUE = (205.0, 160.0, 195.0)  # mean colour in the example
_STAIN = (-70.0, -80.0, -35.0)  # added to some pixels of a stained patch


@dataclass(frozen=True, eq=False)
class Histology:
    """Images as bags of patches, with what is known of them.

    Attributes:
        patches: patches of each image, row by row, uint8 of shape `(n, patches, 3, height, width)`.
        labels: 0/1 labels of the images, int64 of shape `(n,)`.
        image_names: `folder/file` of each image.
        tiles: number of the tile of tissue that each image was made of, int64 of shape `(n,)`; no tile has images of
            both classes.

    Example:
        >>> images = example_histology(num_positives=4, num_negatives=8)
        >>> images.bags
        FlatBags(12 bags, 4 positive, 48 instances)
        >>> images.bags.instances(0).shape
        torch.Size([4, 3, 32, 32])
    """

    patches: Tensor
    labels: Tensor
    image_names: tuple[str, ...]
    tiles: Tensor

    @cached_property
    def bags(self) -> FlatBags:
        """The images as bags; the patches are not copied."""
        number = self.patches.shape[1]
        ends = torch.arange(0, number * len(self.labels) + 1, number)
        return FlatBags(self.patches.flatten(0, 1), ends, self.labels)


def load_histology(name: str, folder: Path | None = None, *, seed: int = 0, verify: bool = False) -> Histology:
    """Return images of Colon or Lung as bags of patches that do not overlap, 100 positive and 1000 negative ones.

    Images of a class are drawn without replacement, all choices equally likely; first come the positive images, and
    those of a class in the order of their numbers. The files have 1000 images of 224 x 224 pixels of each class: 1000
    negatives are all of them, and an image has 49 patches (the paper's, of 512 x 512, has 256). Decoding needs Pillow.

    Args:
        name: "colon" (positive: adenocarcinoma, negative: benign) or "lung" (positive: adenocarcinoma, negative:
            squamous cell carcinoma).
        folder: folder that has `colon_224.tar` or `lung_224.tar` and, for both classes, a file such as
            `colon_aca_source_tiles.csv.gz`, or a subfolder `lc25000` with them; None for MOREAUC_DATA, or a download.
        seed: of the draw, at least 0; the same seed gives the same images in every version of NumPy.
        verify: whether files in the folder must have the right checksums.

    Raises:
        ValueError: for a missing file, or one that is not what it should be.
    """
    find = partial(find_file, _OWNER, folder=folder, verify=verify)
    path = find(f"{name}_224.tar")
    chosen: list[str] = []
    for number, (of_class, many) in enumerate(zip(HISTOLOGY_SETS[name], DRAWN, strict=True)):
        found = image_names(path, of_class)
        chosen += [found[row] for row in _draw(len(found), many, seed, number)]
    tables = [find(f"{of_class}_source_tiles.csv") for of_class in HISTOLOGY_SETS[name]]
    tiles = torch.tensor(read_tiles(tables, chosen))
    labels = torch.tensor([1] * DRAWN[0] + [0] * DRAWN[1])
    return Histology(torch.from_numpy(read_patches(path, chosen)), labels, tuple(chosen), tiles)


def _draw(size: int, number: int, seed: int, stream: int) -> NDArray[np.int64]:
    """Return `number` of `size` rows in increasing order, all choices equally likely.

    Raw bits only, whose streams NumPy promises for all versions; each class has a stream of its own, so that its images
    do not depend on how many there are of the other.
    """
    source = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(_STREAM, stream)))
    order = np.asarray(source.random_raw(size)).argsort(kind="stable")
    return np.sort(order[:number])


def image_names(path: Path, folder: str) -> list[str]:
    """Return `folder/file` of the images of a folder of the tar file, in the order of the numbers in their names.

    Raises:
        ValueError: if these are not images 1 to 1000, each once.
    """
    try:
        with tarfile.open(path) as archive:
            names = [_short(member.name) for member in archive if member.isfile()]
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{_OWNER}: {path.name} must be a tar file of images, got {error}") from error
    names = [name for name in names if name.startswith(f"{folder}/") and name.lower().endswith(_ENDINGS)]
    names.sort(key=_number)
    numbers = [_number(name) for name in names]
    if numbers != list(range(1, IMAGES + 1)):
        missing = sorted({*range(1, IMAGES + 1)} - {*numbers})[:5]
        found = f"{len(names)} images, none with the numbers {missing}" if missing else f"{len(names)} images"
        raise ValueError(f"{_OWNER}: {path.name} must have images 1 to {IMAGES} of {folder}, each once, got {found}")
    return names


def _short(name: str) -> str:
    return "/".join(PurePosixPath(name).parts[-2:])


def _number(name: str) -> int:
    found = re.search(r"(\d+)$", PurePosixPath(name).stem)
    return int(found[1]) if found else -1


def cut_patches(image: Patches, patch: int) -> Patches:
    """Return the patches of an image `(height, width, 3)`, row by row: `(patches, 3, patch, patch)`."""
    height, width, channels = image.shape
    grid = image.reshape(height // patch, patch, width // patch, patch, channels)
    return np.ascontiguousarray(grid.transpose(0, 2, 4, 1, 3).reshape(-1, channels, patch, patch))


def read_patches(path: Path, names: Sequence[str]) -> Patches:
    """Return the patches of images of the tar file, shape `(images, patches, 3, height, width)`."""
    from PIL import Image

    found: list[Patches] = []
    with tarfile.open(path) as archive:
        members = {_short(member.name): member for member in archive if member.isfile()}
        for name in names:
            try:
                content = archive.extractfile(members[name])
                with Image.open(BytesIO(content.read() if content else b"")) as image:
                    found.append(cut_patches(np.asarray(image.convert("RGB")), PATCH))
            except (
                OSError,
                SyntaxError,
                ValueError,
                tarfile.TarError,
            ) as error:  # the decoder has two for damaged files
                raise ValueError(f"{_OWNER}: {path.name} must hold images, got {name!r}: {error}") from error
    return np.stack(found)


def read_tiles(tables: Sequence[Path], names: Sequence[str]) -> list[int]:
    """Return the tile of each image; tiles of a later table have higher numbers than those of the tables before.

    Args:
        tables: files with the columns `cluster_label`, the number of the tile, and `img_path`, which ends in
            `folder/file`.
        names: `folder/file` of each image, which must have one tile.
    """
    tile_of: dict[str, int] = {}
    for path in tables:
        try:
            table = pd.read_csv(path)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise ValueError(f"{_OWNER}: {path.name} must be a table of tiles, got {error}") from error
        if not {"cluster_label", "img_path"} <= set(table) or not pd.api.types.is_integer_dtype(table["cluster_label"]):
            raise ValueError(f"{_OWNER}: {path.name} must have integers cluster_label and img_path, got {list(table)}")
        keys = ["/".join(str(place).split("/")[-2:]) for place in table["img_path"]]
        first = 1 + max(tile_of.values(), default=-1)
        numbers = (pd.factorize(table["cluster_label"], sort=True)[0] + first).tolist()
        for key, number in zip(keys, numbers, strict=True):
            if tile_of.setdefault(key, number) != number:
                raise ValueError(f"{_OWNER}: {path.name} must have one tile for each image, got two for {key!r}")
    for name in names:
        if name not in tile_of:
            raise ValueError(f"{_OWNER}: the tables of tiles must name every image drawn, got no row for {name!r}")
    return [tile_of[name] for name in names]


def example_histology(
    *, num_positives: int = 20, num_negatives: int = 60, size: int = 64, patch: int = PATCH, seed: int = 0
) -> Histology:
    """Return made-up images in the form of :func:`load_histology`, for tests and first steps.

    Tissue is a noisy texture; a tile of a positive image has one or two patches with darker stains. Up to four images
    are made of each tile, by turning and mirroring it, and noise of their own. `size` is the height and width of an
    image, a multiple of those of a patch. The same seed gives the same images (with the same version of NumPy).

    Example:
        >>> example_histology(num_positives=10, num_negatives=30).patches.shape
        torch.Size([40, 4, 3, 32, 32])
    """
    source = np.random.Generator(np.random.PCG64(seed))
    patches, names, tiles, labels = [], [], [], []
    last = -1
    for label, count, folder in [(1, num_positives, "positive"), (0, num_negatives, "negative")]:
        for number in range(count):
            if number % _VERSIONS == 0:
                tissue, versions, last = _tissue(label, size, patch, source), source.permutation(8), last + 1
            turn, mirror = divmod(int(versions[number % _VERSIONS]), 2)
            image = np.rot90(tissue, turn)[:, :: 1 - 2 * mirror]
            pixels = np.clip(image + source.normal(0.0, 3.0, image.shape), 0, 255).astype(np.uint8)
            patches.append(cut_patches(pixels, patch))
            names.append(f"{folder}/{folder}{number + 1}")
            tiles.append(last)
            labels.append(label)
    return Histology(torch.from_numpy(np.stack(patches)), torch.tensor(labels), tuple(names), torch.tensor(tiles))


def _tissue(label: int, size: int, patch: int, source: np.random.Generator) -> NDArray[np.float64]:
    """Return a tile `(size, size, 3)`: blots of 4 x 4 pixels on a colour, and stains on odd patches if positive."""
    side = -(-size // 4)
    blots = np.kron(source.normal(0.0, 18.0, (side, side, 1)), np.ones((4, 4, 1)))[:size, :size]
    tissue: NDArray[np.float64] = np.array(_TISSUE) + blots
    across = size // patch
    many = min(int(source.integers(1, 3)), across**2) if label else 0
    for place in source.choice(across**2, many, replace=False).tolist():
        top, left = patch * (place // across), patch * (place % across)
        stained = source.random((patch, patch, 1)) < 0.4
        tissue[top : top + patch, left : left + patch] += stained * np.array(_STAIN)
    return tissue
