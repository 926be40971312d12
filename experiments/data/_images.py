"""Images of a tar file as patches, decoded once and then read from a cache, and the tables that say what they show."""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
import tempfile
import warnings
import zlib
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.data.download import cache_folder
from moreauc._extras import import_extra
from moreauc._files import naming

Patches = NDArray[np.uint8]

_ENDINGS = (".jpeg", ".jpg", ".png")


def image_names(owner: str, path: Path, folder: str) -> list[str]:
    """Return `folder/file` of the images of a folder of the tar file, by the number at the end of the name.

    Raises:
        ValueError: for a file that is not a tar file, and a name that comes twice.
    """
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
    """Check that the images of a folder, as :func:`image_names` gives them, are number 1 to `count`, each once.

    Raises:
        ValueError: where one is missing, or there is another; it says which.
    """
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
    """Return the patches of an image `(height, width, 3)`, row by row: `(patches, 3, patch, patch)`.

    Raises:
        ValueError: for an image whose height or width is not a multiple of `patch`.
    """
    height, width, channels = image.shape
    if height % patch or width % patch:
        raise ValueError(f"{owner}: patch must divide the height and width of images, {height} x {width}, got {patch}")
    grid = image.reshape(height // patch, patch, width // patch, patch, channels)
    return np.ascontiguousarray(grid.transpose(0, 2, 4, 1, 3).reshape(-1, channels, patch, patch))


def read_patches(
    owner: str, path: Path, names: Sequence[str], rows: NDArray[np.int64], *, patch: int, cache: bool
) -> Patches:
    """Return the patches of some images, shape `(images, patches, 3, patch, patch)`.

    With `cache` all images are decoded the first time and kept in the cache folder as they are in memory, by the
    checksum of the tar file and the size of the patches. A cache that is damaged is made again; where none can be
    written there is a warning, and the images are decoded.

    Args:
        owner: who asks, for errors.
        path: the tar file.
        names: images of the tar file, as :func:`image_names` gives them, all that the cache is to have.
        rows: numbers of the images wanted among them.
        patch: height and width of a patch.
        cache: whether to use the cache.

    Raises:
        ValueError: for an image that cannot be decoded or has another size than the first, and for `patch` where it
            does not divide that size.
    """
    found = None
    if cache:
        try:
            place = cache_folder() / "histology" / f"{path.stem}-{_checksum(path, names)[:20]}-{patch}.npy"
        except ModuleNotFoundError as error:
            _warn(owner, error)
        else:
            found = _cached(owner, path, names, rows, patch, place)
    return np.stack(list(_decoded(owner, path, [names[row] for row in rows], patch))) if found is None else found


def _cached(
    owner: str, path: Path, names: Sequence[str], rows: NDArray[np.int64], patch: int, place: Path
) -> Patches | None:
    """Return the patches from the cache, which is made where there is none; None where that cannot be done."""
    found = _load(place, len(names), rows)
    if found is None:
        try:
            _store(place, len(names), _decoded(owner, path, names, patch))
        except OSError as error:
            _warn(owner, error)
        found = _load(place, len(names), rows)
    return found


def _warn(owner: str, error: Exception) -> None:
    advice = "set MOREAUC_CACHE to a folder that can be written, or cache=False"
    warnings.warn(f"{owner}: decoded images could not be cached ({error}); {advice}", stacklevel=4)


def _decoded(owner: str, path: Path, names: Sequence[str], patch: int) -> Iterator[Patches]:
    """Yield the patches of one image after the other, all of the same number."""
    image_module = import_extra("PIL.Image", "experiments")
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
                size, found = (f"{shape[0]} x {shape[1]}" for shape in (first, pixels.shape))
                raise ValueError(f"{owner}: images must have the size of the first, {size}, got {found} ({name})")
            yield cut_patches(owner, pixels, patch)


def _checksum(path: Path, names: Sequence[str]) -> str:
    """Return a checksum of the file and of what is read from it."""
    with path.open("rb") as file:
        total = hashlib.file_digest(file, "sha256")
    total.update("\n".join(names).encode())
    return total.hexdigest()


def _sums(place: Path) -> Path:
    return place.with_suffix(".sums.npy")


def _load(place: Path, count: int, rows: NDArray[np.int64]) -> Patches | None:
    """Return rows of a stored array of `count`, or None where it is missing or is not what was stored."""
    try:
        sums = np.load(_sums(place))
        stored = np.load(place, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return None
    if sums.shape != (count,) or len(stored) != count or stored.dtype != np.uint8:
        return None
    found: Patches = np.asarray(stored[rows])
    same = all(zlib.crc32(image.data) == total for image, total in zip(found, sums[rows].tolist(), strict=True))
    return found if same else None


def _store(place: Path, count: int, images: Iterator[Patches]) -> None:
    """Write the images into one array, one by one, and then a checksum of each beside it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    # elsewhere first and then moved, so that nobody reads half a file; the file system is the same
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        images_file, sums_file = Path(folder) / "images.npy", Path(folder) / "sums.npy"
        sums = np.zeros(count, dtype=np.uint32)
        # a plain file, which is closed before it is moved: some systems move no file that is open or mapped
        with naming(place), images_file.open("wb") as file:
            for number, image in enumerate(images):
                if number == 0:
                    header = {"descr": "|u1", "fortran_order": False, "shape": (count, *image.shape)}
                    np.lib.format.write_array_header_1_0(file, header)
                file.write(image.data)
                sums[number] = zlib.crc32(image.data)
        with naming(_sums(place)):
            np.save(sums_file, sums)
        os.replace(images_file, place)
        os.replace(sums_file, _sums(place))


def read_tiles(owner: str, tables: Sequence[Path], names: Sequence[str]) -> list[int]:
    """Return the tile of each image; tiles of a later table have higher numbers than those of the tables before.

    Args:
        owner: who asks, for errors.
        tables: files with the columns `cluster_label`, the number of the tile, and `img_path`, which ends in
            `folder/file`.
        names: `folder/file` of each image.

    Raises:
        ValueError: for a file that is not such a table, an image with two tiles, and one that has none.
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
