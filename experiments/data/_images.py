"""Images of a tar file as patches, and the tables that say which piece of tissue they show."""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from moreauc._extras import import_extra

Patches = NDArray[np.uint8]

_ENDINGS = (".jpeg", ".jpg", ".png")


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
