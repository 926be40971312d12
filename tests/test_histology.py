"""Images as bags of patches: order of patches, draws, tiles, cache, what a split gives away, and the made-up images."""

from __future__ import annotations

import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from experiments.data import histology
from experiments.data.download import PUBLIC_FILES
from experiments.data.histology import HISTOLOGY_SETS, example_histology, image_names, load_histology, read_tiles
from experiments.data.splits import test_and_folds as split

COUNT = 15  # images of a class
STEMS = {"colon_aca": "colonca", "colon_n": "colonn"}


def pixels_of(folder: str, number: int, size: tuple[int, int] = (8, 12)) -> np.ndarray:
    """An image in which every pixel says where it is, and of which image."""
    row, column = np.indices(size)
    return np.stack([20 * row + column, 100 * (folder == "colon_n") + number + 0 * row, column], axis=2).astype(
        np.uint8
    )


def encoded(pixels: np.ndarray, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def write_set(folder: Path, files: dict[str, bytes] | None = None, prefix: str = "") -> None:
    """Images 1, 2, ... of both classes, not in this order, and files of tiles with three images each."""
    content = {
        f"{of_class}/{stem}{number}.png": encoded(pixels_of(of_class, number))
        for of_class, stem in STEMS.items()
        for number in reversed(range(1, COUNT + 1))
    }
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "colon_224.tar", "w") as archive:
        for name, data in {**content, **(files or {})}.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    for of_class, stem in STEMS.items():
        rows = [f"{7 * (number // 3)},./LC25000/{of_class}/{stem}{number}.png\n" for number in range(1, COUNT + 1)]
        (folder / f"{of_class}_source_tiles.csv").write_text("cluster_label,img_path\n" + "".join(rows))


@pytest.fixture
def small(monkeypatch, tmp_path):
    monkeypatch.delenv("MOREAUC_DATA", raising=False)
    monkeypatch.setenv("MOREAUC_CACHE", str(tmp_path / "cache"))
    for name, value in {"IMAGES": COUNT, "DRAWN": (5, 15), "PATCH": 4}.items():
        monkeypatch.setattr(histology, name, value)
    write_set(tmp_path / "data" / "lc25000")
    return tmp_path / "data"


def number_of(name: str) -> int:
    return int("".join(letter for letter in name.split("/")[1] if letter.isdigit()))


def test_patches_row_by_row_with_channels_first(small):
    images = load_histology("colon", small)
    assert images.patches.shape == (20, 6, 3, 4, 4) and images.patches.dtype == torch.uint8
    for row, name in enumerate(images.image_names):
        whole = pixels_of(name.split("/")[0], number_of(name))
        for place in range(6):
            top, left = 4 * (place // 3), 4 * (place % 3)
            for channel in range(3):
                found = images.patches[row, place, channel].numpy()
                assert (found == whole[top : top + 4, left : left + 4, channel]).all()


def test_labels_names_tiles_and_counts(small):
    images = load_histology("colon", small)
    assert images.labels.tolist() == [1] * 5 + [0] * 15
    assert all(name.startswith("colon_aca/colonca") for name in images.image_names[:5])
    assert images.image_names[5:] == tuple(f"colon_n/colonn{number}.png" for number in range(1, 16))  # 2 before 10
    numbers = [number_of(name) for name in images.image_names]
    assert numbers[:5] == sorted(set(numbers[:5]))
    # six tiles of positives, 0 to 5, whatever the draw, then those of the negatives
    assert images.tiles.tolist() == [n // 3 + (6 if row >= 5 else 0) for row, n in enumerate(numbers)]


def test_a_seed_is_a_draw(small, monkeypatch):
    before, state = np.random.get_state()[1].copy(), torch.get_rng_state()
    first, again, other = (load_histology("colon", small, seed=seed) for seed in (0, 0, 1))
    example_histology(num_positives=1, num_negatives=1)
    assert (np.random.get_state()[1] == before).all() and torch.equal(torch.get_rng_state(), state)
    assert first.image_names == again.image_names and torch.equal(first.patches, again.patches)
    assert first.image_names[:5] != other.image_names[:5]
    monkeypatch.setattr(histology, "DRAWN", (5, 3))
    fewer = load_histology("colon", small)
    assert fewer.image_names[:5] == first.image_names[:5] and set(fewer.image_names) < set(first.image_names)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"colon_n/colonn4.png": b"no image"}, "'colon_n/colonn4.png'"),
        ({"colon_n/colonn4.png": encoded(pixels_of("colon_n", 4, (9, 12)))}, "'colon_n/colonn4"),
        ({"extra/colon_n/colonn4.png": b""}, "each once, got 16 images"),
        ({"colon_n/colonn16.png": b""}, "images 1 to 15 of colon_n, each once, got 16 images"),
    ],
)
def test_tars_that_do_not_fit(small, files, message):
    write_set(small / "lc25000", {"colon_aca/README.txt": b"?", **files})  # other files are left alone
    with pytest.raises(ValueError, match=rf"load_histology: colon_224\.tar must .*{message}"):
        load_histology("colon", small)


def test_checksums_of_the_users_files(small, monkeypatch):
    names = ("colon_224.tar", "colon_aca_source_tiles.csv", "colon_n_source_tiles.csv")
    for name in names:
        entry = PUBLIC_FILES[name]
        monkeypatch.setitem(PUBLIC_FILES, name, replace(entry, sha256=entry.checksum(small / "lc25000" / name)))
    expected = load_histology("colon", small, verify=True).image_names
    for name in names:
        with monkeypatch.context() as patch:
            patch.setitem(PUBLIC_FILES, name, replace(PUBLIC_FILES[name], sha256="0" * 64))
            with pytest.raises(ValueError, match=rf"load_histology: .*{name} must have the sha256 0{{64}}"):
                load_histology("colon", small, verify=True)
            assert load_histology("colon", small).image_names == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "must have integers cluster_label and img_path"),
        ("cluster_label,img_path\n0.5,colon_n/colonn1.png\n", "must have integers cluster_label and img_path"),
        ("", "must be a table of tiles"),
        ("cluster_label,img_path\n1,colon_n/colonn1.png\n", "got no row for 'colon_n/colonn2.png'"),
        ("cluster_label,img_path\n1,a/x/y.png\n2,b/x/y.png\n", "one tile for each image, got two"),
    ],
)
def test_broken_tables_of_tiles(small, content, message):
    (small / "lc25000" / "colon_n_source_tiles.csv").write_text(content)
    with pytest.raises(ValueError, match=f"load_histology: .*{message}"):
        load_histology("colon", small)
    (small / "lc25000" / "colon_224.tar").write_bytes(b"not a tar")
    with pytest.raises(ValueError, match=r"colon_224.tar must be a tar file"):
        load_histology("colon", small)


def leak(images, train, test):
    """The share of test images whose tile has an image among the training rows."""
    return float(torch.isin(images.tiles[test], images.tiles[train]).double().mean())


def test_a_split_by_tile_gives_nothing_away():
    images = example_histology(num_positives=40, num_negatives=120, size=8, patch=4)
    for seed in range(3):
        by_image, by_tile = split(images.labels, seed=seed), split(images.labels, seed=seed, groups=images.tiles)
        # an image is alone among four with probability of about 0.1 ** 3
        assert leak(images, torch.cat(by_image[1][0]), by_image[0]) > 0.9
        assert leak(images, torch.cat(by_tile[1][0]), by_tile[0]) == 0.0
        assert all(leak(images, train, validation) == 0.0 for train, validation in by_tile[1])


def test_example_images_have_the_form_of_the_real_ones():
    images = example_histology(num_positives=6, num_negatives=9, seed=2)
    assert images.patches.shape == (15, 4, 3, 32, 32) and images.patches.dtype == torch.uint8
    assert images.labels.tolist() == [1] * 6 + [0] * 9
    assert images.tiles.tolist() == [0] * 4 + [1] * 2 + [2] * 4 + [3] * 4 + [4]
    assert len(set(images.image_names)) == 15
    again, other = example_histology(num_positives=6, num_negatives=9, seed=2), example_histology(seed=3)
    assert torch.equal(images.patches, again.patches) and not torch.equal(images.patches, other.patches[:15])
    assert example_histology(num_positives=1, num_negatives=1, size=12, patch=4).patches.shape == (2, 9, 3, 4, 4)


@pytest.mark.parametrize("name", HISTOLOGY_SETS)
def test_the_real_images(name):
    """Runs on the real files where MOREAUC_DATA has them; CI sets it. Tiles are counted in the table of the data."""
    tiles = {"colon": (246, 245), "lung": (242, 240)}[name]
    folder = os.environ.get("MOREAUC_DATA")
    if folder and (Path(folder) / "lc25000").is_dir():
        place = Path(folder) / "lc25000"
        for of_class, number in zip(HISTOLOGY_SETS[name], tiles, strict=True):
            names = image_names(place / f"{name}_224.tar", of_class)
            assert len(names) == 1000 and [number_of(image) for image in names] == list(range(1, 1001))
            assert len(set(read_tiles([place / f"{of_class}_source_tiles.csv.gz"], names))) == number
        images = load_histology(name)
        assert int(images.labels.sum()) == 100 and images.patches.shape == (1100, 49, 3, 32, 32)
        of_class = [set(images.tiles[images.labels == label].tolist()) for label in (0, 1)]
        assert not of_class[0] & of_class[1] and len(of_class[0]) == tiles[1]
        test, folds = split(images.labels, seed=0)
        assert len(test) == 110 and int(images.labels[test].sum()) == 10
        assert leak(images, torch.cat(folds[0]), test) > 0.8
        test, folds = split(images.labels, seed=0, groups=images.tiles)
        assert leak(images, torch.cat(folds[0]), test) == 0.0 and int(images.labels[test].sum()) == 10
    assert len(tiles) == 2
