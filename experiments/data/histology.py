"""Tissue under the microscope as bags: each image is a bag of patches, and is it adenocarcinoma?

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
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.data.download import find_file
from moreauc._checks import check_count, check_labels, check_shape
from moreauc._system import import_extra
from moreauc.data.bags import FlatBags

HistologySet = Literal["colon", "lung"]
Patches = NDArray[np.uint8]

# folders of the positive and of the negative images of each set
HISTOLOGY_SETS: dict[HistologySet, tuple[str, str]] = {
    "colon": ("colon_aca", "colon_n"),
    "lung": ("lung_aca", "lung_scc"),
}

_IMAGES = {folder: 1000 for folders in HISTOLOGY_SETS.values() for folder in folders}  # checked when a set is read
_ENDINGS = (".jpeg", ".jpg", ".png")
_STREAM = 3  # keeps these random numbers apart from those that other choices make by the same seed
_VERSIONS = 4  # images made of one tile in the example
_TISSUE = (205.0, 160.0, 195.0)  # mean colour in the example
_STAIN = (-70.0, -80.0, -35.0)  # what is added to some pixels of an odd patch


@dataclass(frozen=True, eq=False, repr=False)
class Histology:
    """Images as bags of patches, with what is known of them.

    Attributes:
        name: of the set.
        patches: patches of each image, row by row, uint8 of shape `(n, patches, 3, height, width)`.
        labels: 0/1 labels of the images, int64 of shape `(n,)`.
        image_names: `folder/file` of each image.
        tiles: number of the tile of tissue that each image was made of, int64 of shape `(n,)`; no tile has images of
            both classes.

    Example:
        >>> images = example_histology(num_positives=4, num_negatives=8)
        >>> images
        Histology('example', 4 positive and 8 negative images of 4 patches, 3 tiles)
        >>> images.bags
        FlatBags(12 bags, 4 positive, 48 instances)
        >>> images.bags.instances(0).shape
        torch.Size([4, 3, 32, 32])
    """

    name: str
    patches: Tensor
    labels: Tensor
    image_names: tuple[str, ...]
    tiles: Tensor

    def __post_init__(self) -> None:
        owner = type(self).__name__
        if self.patches.dtype != torch.uint8:
            raise ValueError(f"{owner}: patches must be uint8, got {self.patches.dtype}")
        check_shape(owner, "patches", self.patches, [("n", "patches", 3, "height", "width")])
        check_labels(owner, self.labels, both=False)
        count = len(self.patches)
        for name, found in [("labels", self.labels), ("image_names", self.image_names), ("tiles", self.tiles)]:
            if len(found) != count:
                raise ValueError(f"{owner}: {name} must be as many as images, {count}, got {len(found)}")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        positives, negatives = self.counts
        bags = f"{positives} positive and {negatives} negative images of {self.patches.shape[1]} patches"
        return f"{type(self).__name__}({self.name!r}, {bags}, {len(set(self.tiles.tolist()))} tiles)"

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of positive and of negative images."""
        positives = int(self.labels.sum())
        return positives, len(self) - positives

    @cached_property
    def bags(self) -> FlatBags:
        """The images as bags; the patches are not copied."""
        number = self.patches.shape[1]
        return FlatBags(self.patches.flatten(0, 1), torch.arange(0, number * len(self) + 1, number), self.labels)


def load_histology(
    name: HistologySet,
    folder: Path | None = None,
    *,
    seed: int = 0,
    positives: int = 100,
    negatives: int = 1000,
    patch: int = 32,
    download: bool = True,
    verify: bool = False,
) -> Histology:
    """Return images of Colon or Lung as bags of patches that do not overlap, some of each class drawn by a seed.

    Images of a class are drawn without replacement, all choices equally likely; first come the positive images, and
    those of a class in the order of their numbers. The files have 1000 images of 224 x 224 pixels of each class: 1000
    negatives are all of them, and an image has 49 patches (the paper's, of 512 x 512, has 256). Decoding needs Pillow.

    Args:
        name: "colon" (positive: adenocarcinoma, negative: benign) or "lung" (positive: adenocarcinoma, negative:
            squamous cell carcinoma).
        folder: folder that has `colon_224.tar` or `lung_224.tar` and, for both classes, a file such as
            `colon_aca_source_tiles.csv.gz`, or a subfolder `lc25000` with them; None for MOREAUC_DATA, or a download.
        seed: of the draw, at least 0; the same seed gives the same images in every version of NumPy.
        positives: positive images, at least 1.
        negatives: negative images, at least 1.
        patch: height and width of a patch, at least 1; it must divide those of the images, nothing is cut off.
        download: whether a missing file may be downloaded.
        verify: whether files in the user's folder must have the right checksums.

    Raises:
        ValueError: for an argument out of range, more images than there are, a missing file, or one that is not what
            it should be.
        ModuleNotFoundError: where Pillow is needed and missing.
    """
    owner = "load_histology"
    if name not in HISTOLOGY_SETS:
        raise ValueError(f"{owner}: name must be one of {', '.join(HISTOLOGY_SETS)}, got {name!r}")
    check_count(owner, "seed", seed, minimum=0)
    wanted = (check_count(owner, "positives", positives), check_count(owner, "negatives", negatives))
    check_count(owner, "patch", patch)
    for kind, of_class, many in zip(("positives", "negatives"), HISTOLOGY_SETS[name], wanted, strict=True):
        if many > _IMAGES[of_class]:
            raise ValueError(
                f"{owner}: {kind} must be at most the images of {of_class}, {_IMAGES[of_class]}, got {many}"
            )
    find = partial(find_file, owner, folder=folder, download=download, verify=verify)
    path = find(f"{name}_224.tar")
    names: list[str] = []
    rows: list[int] = []
    for number, (of_class, many) in enumerate(zip(HISTOLOGY_SETS[name], wanted, strict=True)):
        found = image_names(owner, path, of_class)
        check_numbers(owner, path, of_class, found, _IMAGES[of_class])
        rows += (len(names) + _draw(len(found), many, seed, number)).tolist()
        names += found
    chosen = tuple(names[row] for row in rows)
    tables = [find(f"{of_class}_source_tiles.csv") for of_class in HISTOLOGY_SETS[name]]
    tiles = torch.tensor(read_tiles(owner, tables, chosen))
    patches = read_patches(owner, path, chosen, patch)
    labels = torch.tensor([1] * wanted[0] + [0] * wanted[1])
    return Histology(name, torch.from_numpy(patches), labels, chosen, tiles)


def _draw(size: int, number: int, seed: int, stream: int) -> NDArray[np.int64]:
    """Return `number` of `size` rows in increasing order, all choices equally likely.

    Raw bits only, whose streams NumPy promises for all versions; each class has a stream of its own, so that its images
    do not depend on how many there are of the other.
    """
    source = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(_STREAM, stream)))
    order: Any = source.random_raw(size).argsort(kind="stable")
    return np.sort(order[:number])


def image_names(owner: str, path: Path, folder: str) -> list[str]:
    """Return `folder/file` of the images of a folder of the tar file, in the order of the numbers in their names."""
    try:
        with tarfile.open(path) as archive:
            names = [_short(member.name) for member in archive if member.isfile()]
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{owner}: {path.name} must be a tar file of images, got {error}") from error
    names = [name for name in names if name.startswith(f"{folder}/") and name.lower().endswith(_ENDINGS)]
    if len(set(names)) < len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{owner}: {path.name} must have each image once, got {double!r} more than once")
    return sorted(names, key=lambda name: (_number(name), name))


def check_numbers(owner: str, path: Path, folder: str, names: Sequence[str], count: int) -> None:
    """Check that the images of a folder, as :func:`image_names` gives them, are number 1 to `count`, each once."""
    numbers = [_number(name) for name in names]
    missing = sorted(set(range(1, count + 1)) - set(numbers))
    if missing:
        some = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        found = f"{len(missing)} missing: {some}"
    elif len(names) > count:  # of two with the same number the second is one too many
        places = zip(names, numbers, [0, *numbers], strict=False)
        found = repr(next(name for name, own, last in places if not 1 <= own <= count or own == last)) + " as well"
    else:
        return
    raise ValueError(f"{owner}: {path.name} must have images 1 to {count} of {folder} and no others, got {found}")


def _short(name: str) -> str:
    return "/".join(PurePosixPath(name).parts[-2:])


def _number(name: str) -> int:
    found = re.search(r"(\d+)$", PurePosixPath(name).stem)
    return int(found[1]) if found else -1


def cut_patches(owner: str, image: Patches, patch: int) -> Patches:
    """Return the patches of an image `(height, width, 3)`, row by row: `(patches, 3, patch, patch)`."""
    height, width, channels = image.shape
    if height % patch or width % patch:
        raise ValueError(f"{owner}: patch must divide the height and width of images, {height} x {width}, got {patch}")
    grid = image.reshape(height // patch, patch, width // patch, patch, channels)
    return np.ascontiguousarray(grid.transpose(0, 2, 4, 1, 3).reshape(-1, channels, patch, patch))


def read_patches(owner: str, path: Path, names: Sequence[str], patch: int) -> Patches:
    """Return the patches of images of the tar file, shape `(images, patches, 3, patch, patch)`."""
    image_module = import_extra("PIL.Image", "experiments")
    found: list[Patches] = []
    first = None
    with tarfile.open(path) as archive:
        members = {_short(member.name): member for member in archive if member.isfile()}
        for name in names:
            try:
                content: Any = archive.extractfile(members[name])
                with image_module.open(BytesIO(content.read())) as image:
                    pixels = np.asarray(image.convert("RGB"))
            except (OSError, SyntaxError, tarfile.TarError) as error:  # the decoder has both for damaged files
                raise ValueError(f"{owner}: {path.name} must hold images, got {name!r}: {error}") from error
            first = pixels.shape if first is None else first
            if pixels.shape != first:
                size, other = (f"{shape[0]} x {shape[1]}" for shape in (first, pixels.shape))
                raise ValueError(f"{owner}: images must have the size of the first, {size}, got {other} ({name})")
            found.append(cut_patches(owner, pixels, patch))
    return np.stack(found)


def read_tiles(owner: str, tables: Sequence[Path], names: Sequence[str]) -> list[int]:
    """Return the tile of each image; tiles of a later table have higher numbers than those of the tables before.

    Args:
        owner: who asks, for errors.
        tables: files with the columns `cluster_label`, the number of the tile, and `img_path`, which ends in
            `folder/file`.
        names: `folder/file` of each image, which must have one tile.
    """
    tile_of: dict[str, int] = {}
    for path in tables:
        try:
            table = pd.read_csv(path)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise ValueError(f"{owner}: {path.name} must be a table of tiles, got {error}") from error
        if not {"cluster_label", "img_path"} <= set(table) or not pd.api.types.is_integer_dtype(table["cluster_label"]):
            raise ValueError(f"{owner}: {path.name} must have integers cluster_label and img_path, got {list(table)}")
        keys = ["/".join(str(place).split("/")[-2:]) for place in table["img_path"]]
        first = 1 + max(tile_of.values(), default=-1)
        numbers = (pd.factorize(table["cluster_label"], sort=True)[0] + first).tolist()
        for key, number in zip(keys, numbers, strict=True):
            if tile_of.setdefault(key, number) != number:
                raise ValueError(f"{owner}: {path.name} must have one tile for each image, got two for {key!r}")
    for name in names:
        if name not in tile_of:
            raise ValueError(f"{owner}: the tables of tiles must name every image drawn, got no row for {name!r}")
    return [tile_of[name] for name in names]


def example_histology(
    *, num_positives: int = 20, num_negatives: int = 60, size: int = 64, patch: int = 32, seed: int = 0
) -> Histology:
    """Return made-up images in the form of :func:`load_histology`, for tests and first steps.

    Tissue is a noisy texture; a tile of a positive image has one or two patches with darker stains. Up to four images
    are made of each tile, by turning and mirroring it, and noise of their own.

    Args:
        num_positives: positive images, at least 1.
        num_negatives: negative images, at least 1.
        size: height and width of an image, a multiple of `patch`.
        patch: height and width of a patch, at least 4.
        seed: at least 0; the same seed gives the same images (with the same version of NumPy).

    Example:
        >>> example_histology(num_positives=10, num_negatives=30).patches.shape
        torch.Size([40, 4, 3, 32, 32])
    """
    owner = "example_histology"
    counts = (check_count(owner, "num_positives", num_positives), check_count(owner, "num_negatives", num_negatives))
    check_count(owner, "patch", patch, minimum=4)
    if check_count(owner, "size", size, minimum=patch) % patch:
        raise ValueError(f"{owner}: size must be a multiple of patch, {patch}, got {size}")
    source = np.random.Generator(np.random.PCG64(check_count(owner, "seed", seed, minimum=0)))
    patches, names, tiles, labels = [], [], [], []
    last = -1
    for label, count, folder in [(1, counts[0], "positive"), (0, counts[1], "negative")]:
        for number in range(count):
            if number % _VERSIONS == 0:
                tissue, versions, last = _tissue(label, size, patch, source), source.permutation(8), last + 1
            turn, mirror = divmod(int(versions[number % _VERSIONS]), 2)
            image = np.rot90(tissue, turn)[:, :: 1 - 2 * mirror]
            pixels = np.clip(image + source.normal(0.0, 3.0, image.shape), 0, 255).astype(np.uint8)
            patches.append(cut_patches(owner, pixels, patch))
            names.append(f"{folder}/{folder}{number + 1}")
            tiles.append(last)
            labels.append(label)
    return Histology(
        "example", torch.from_numpy(np.stack(patches)), torch.tensor(labels), tuple(names), torch.tensor(tiles)
    )


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
