"""Images as bags of patches: order of patches, draws, tiles, cache, what a split gives away, and the made-up images."""

from __future__ import annotations

import io
import os
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from experiments.data import histology
from experiments.data.download import PUBLIC_FILES
from experiments.data.histology import (
    HISTOLOGY_SETS,
    Histology,
    cut_patches,
    example_histology,
    image_names,
    load_histology,
    read_tiles,
)
from experiments.data.splits import test_and_folds as split
from experiments.models.resnet import ResNet20
from moreauc.data.bag_batches import BagBatches
from moreauc.data.bags import to_padded
from moreauc.data.scoring import WholeBags
from moreauc.samplers import PosNegSampler

COUNTS = {"colon_aca": ("colonca", 12), "colon_n": ("colonn", 15)}


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
        for of_class, (stem, count) in COUNTS.items()
        for number in reversed(range(1, count + 1))
    }
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "colon_224.tar", "w") as archive:
        for name, data in {**content, **(files or {})}.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    for of_class, (stem, count) in COUNTS.items():
        rows = [f"{7 * (number // 3)},./LC25000/{of_class}/{stem}{number}.png\n" for number in range(1, count + 1)]
        (folder / f"{of_class}_source_tiles.csv").write_text("cluster_label,img_path\n" + "".join(rows))


@pytest.fixture
def small(monkeypatch, tmp_path):
    monkeypatch.delenv("MOREAUC_DATA", raising=False)
    monkeypatch.setenv("MOREAUC_CACHE", str(tmp_path / "cache"))
    for of_class, (_, count) in COUNTS.items():
        monkeypatch.setitem(histology._IMAGES, of_class, count)
    write_set(tmp_path / "data" / "lc25000")
    return tmp_path / "data"


def load(folder, **changes):
    options = {"positives": 5, "negatives": 15, "patch": 4, "download": False}
    return load_histology("colon", folder, **{**options, **changes})


def number_of(name: str) -> int:
    return int("".join(letter for letter in name.split("/")[1] if letter.isdigit()))


def test_patches_row_by_row_with_channels_first(small):
    images = load(small)
    assert images.patches.shape == (20, 6, 3, 4, 4) and images.patches.dtype == torch.uint8
    for row, name in enumerate(images.image_names):
        whole = pixels_of(name.split("/")[0], number_of(name))
        for place in range(6):
            top, left = 4 * (place // 3), 4 * (place % 3)
            for channel in range(3):
                found = images.patches[row, place, channel].numpy()
                assert (found == whole[top : top + 4, left : left + 4, channel]).all()


def test_labels_names_tiles_and_counts(small):
    images = load(small)
    assert images.counts == (5, 15) and len(images) == 20 and images.name == "colon"
    assert images.labels.tolist() == [1] * 5 + [0] * 15
    assert all(name.startswith("colon_aca/colonca") for name in images.image_names[:5])
    assert images.image_names[5:] == tuple(f"colon_n/colonn{number}.png" for number in range(1, 16))  # 2 before 10
    numbers = [number_of(name) for name in images.image_names]
    assert numbers[:5] == sorted(set(numbers[:5]))
    # five tiles of positives, 0 to 4, whatever the draw, then those of the negatives
    assert images.tiles.tolist() == [n // 3 + (5 if row >= 5 else 0) for row, n in enumerate(numbers)]
    tiles = len(set(images.tiles.tolist()))
    assert repr(images) == f"Histology('colon', 5 positive and 15 negative images of 6 patches, {tiles} tiles)"


def test_images_as_bags(small):
    images = load(small)
    assert images.bags is images.bags and images.bags.labels.tolist() == images.labels.tolist()
    assert images.bags.sizes.tolist() == [6] * 20
    assert torch.equal(images.bags.instances(7), images.patches[7])
    assert images.bags.instances(0).data_ptr() == images.patches.data_ptr()  # no copy
    rows = torch.tensor([5, 1])
    assert torch.equal(images.bags.subset([3, 9]).instances(1, rows), images.patches[9, rows])
    padded, mask = to_padded(images.bags)[:2]
    assert padded.shape == (20, 6, 3, 4, 4) and bool(mask.all())


def test_bags_of_patches_go_through_the_network():
    images = example_histology(num_positives=4, num_negatives=4)
    batches = BagBatches(
        images.bags, PosNegSampler(images.labels, num_positives=2, num_negatives=2), instances_per_bag=3
    )
    inputs, labels, index = next(iter(batches))
    assert inputs.instances.shape == (12, 3, 32, 32) and inputs.instances.dtype == torch.uint8
    assert labels.tolist() == images.labels[index].tolist()
    model = ResNet20(attention=True, width=2)
    scores, found = WholeBags(images.bags, "attention", chunk=5).predict(model)
    assert scores.shape == (8,) and torch.equal(found, images.labels) and bool(scores.isfinite().all())
    model.eval()
    with torch.no_grad():
        score, logit = model(images.patches[3]).double().unbind(1)
    assert scores[3].item() == pytest.approx(float((logit.softmax(0) * score).sum()), rel=1e-4, abs=1e-6)


def test_a_seed_is_a_draw(small):
    before, state = np.random.get_state()[1].copy(), torch.get_rng_state()
    first, again, other = load(small), load(small), load(small, seed=1)
    example_histology(num_positives=1, num_negatives=1)
    assert (np.random.get_state()[1] == before).all() and torch.equal(torch.get_rng_state(), state)
    assert first.image_names == again.image_names and torch.equal(first.patches, again.patches)
    assert first.image_names[:5] != other.image_names[:5]
    fewer = load(small, negatives=3)
    assert fewer.image_names[:5] == first.image_names[:5] and set(fewer.image_names) < set(first.image_names)
    # written down: committed results name a draw by its seed alone
    assert [number_of(name) for name in first.image_names[:5]] == [2, 4, 6, 8, 9]


def test_every_image_is_as_likely(small):
    """300 draws of 5 of 12: each frequency within five standard errors."""
    from experiments.data.histology import _draw

    seen = np.zeros(12)
    for seed in range(300):
        rows = _draw(12, 5, seed, 0)
        assert len(set(rows.tolist())) == 5
        seen[rows] += 1
    assert np.abs(seen / 300 - 5 / 12).max() < 5 * np.sqrt(0.25 / 300)


def test_jpeg_of_flat_colours_and_other_modes(small):
    colours = {1: (200, 30, 90), 2: (10, 250, 128)}
    files = {
        f"colon_aca/colonca{n}.png": encoded(np.full((8, 12, 3), colour, np.uint8), "JPEG", quality=90)
        for n, colour in colours.items()
    }
    files["colon_aca/colonca3.png"] = encoded(np.full((8, 12), 77, np.uint8))  # grey
    write_set(small / "lc25000", files)
    images = load(small, positives=12, negatives=1)
    for n, colour in {**colours, 3: (77, 77, 77)}.items():
        difference = images.patches[n - 1].double() - torch.tensor(colour).reshape(3, 1, 1)
        assert difference.abs().max() <= 3


@pytest.mark.parametrize("prefix", ["./", "lung_colon/images/"])
def test_folders_may_lie_deeper_in_the_tar(small, prefix):
    expected = load(small)
    write_set(small / "deep", prefix=prefix)
    assert load(small / "deep").image_names == expected.image_names


def test_other_members_of_the_tar_are_left_alone(small):
    write_set(small / "lc25000", {"colon_aca/README.txt": b"?", "colon_aca/cover.PNG": encoded(pixels_of("x", 0))})
    names = image_names("me", small / "lc25000" / "colon_224.tar", "colon_aca")
    assert names == ["colon_aca/cover.PNG", *(f"colon_aca/colonca{number}.png" for number in range(1, 13))]


def test_without_the_decoder(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs PIL, .* pip install 'moreauc\[experiments\]'"):
        load(small)


@pytest.mark.parametrize(
    ("files", "changes", "message"),
    [
        ({}, {"patch": 5}, "patch must divide the height and width of images, 8 x 12, got 5"),
        ({}, {"patch": 8}, "patch must divide the height and width of images, 8 x 12, got 8"),
        ({}, {"positives": 13}, "positives must be at most the images of colon_aca, 12, got 13"),
        ({}, {"negatives": 16}, "negatives must be at most the images of colon_n, 15, got 16"),
        (
            {"colon_n/colonn4.png": encoded(pixels_of("colon_n", 4, (12, 8)))},
            {},
            r"images must have the size of the first, 8 x 12, got 12 x 8 \(colon_n/colonn4.png\)",
        ),
        ({"colon_n/colonn4.png": b"no image"}, {}, r"colon_224.tar must hold images, got 'colon_n/colonn4.png': "),
        (
            {"colon_n/colonn4.png": encoded(pixels_of("colon_n", 4))[:-30]},
            {},
            r"colon_224.tar must hold images, got 'colon_n/colonn4.png': ",
        ),
        (
            {"extra/colon_n/colonn4.png": encoded(pixels_of("colon_n", 4))},
            {},
            "colon_224.tar must have each image once, got 'colon_n/colonn4.png' more than once",
        ),
        (
            {"colon_n/colonn16.png": encoded(pixels_of("colon_n", 16))},
            {},
            "tar must have images 1 to 15 of colon_n and no others, got 'colon_n/colonn16.png' as well",
        ),
        (
            {"colon_aca/cover.png": encoded(pixels_of("colon_n", 16))},
            {},
            "tar must have images 1 to 12 of colon_aca and no others, got 'colon_aca/cover.png' as well",
        ),
        (
            {"colon_n/colonn04.png": encoded(pixels_of("colon_n", 16))},
            {},
            "tar must have images 1 to 15 of colon_n and no others, got 'colon_n/colonn4.png' as well",
        ),
    ],
)
def test_tars_that_do_not_fit(small, files, changes, message):
    write_set(small / "lc25000", files)
    with pytest.raises(ValueError, match=f"load_histology: .*{message}"):
        load(small, **{"positives": 12, **changes})


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"colon_aca": 14}, "images 1 to 14 of colon_aca and no others, got 2 missing: 13, 14"),
        ({"colon_n": 40}, "images 1 to 40 of colon_n and no others, got 25 missing: 16, 17, 18, 19, 20, ..."),
    ],
)
def test_images_that_are_missing(small, monkeypatch, counts, message):
    for of_class, count in counts.items():
        monkeypatch.setitem(histology._IMAGES, of_class, count)
    with pytest.raises(ValueError, match=rf"load_histology: colon_224\.tar must have {message}"):
        load(small)


@pytest.mark.parametrize("wrong", ["colon_224.tar", "colon_aca_source_tiles.csv", "colon_n_source_tiles.csv"])
def test_checksums_of_the_users_files(small, monkeypatch, wrong):
    for name in ("colon_224.tar", "colon_aca_source_tiles.csv", "colon_n_source_tiles.csv"):
        entry = PUBLIC_FILES[name]
        right = entry.checksum(small / "lc25000" / name)
        monkeypatch.setitem(PUBLIC_FILES, name, replace(entry, sha256=right))
    assert len(load(small, verify=True)) == 20
    monkeypatch.setitem(PUBLIC_FILES, wrong, replace(PUBLIC_FILES[wrong], sha256="0" * 64))
    with pytest.raises(
        ValueError, match=rf"load_histology: .*{wrong} must have the sha256 0{{64}}, got [0-9a-f]{{64}}"
    ):
        load(small, verify=True)
    assert len(load(small)) == 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "breast"}, "name must be one of colon, lung, got 'breast'"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"positives": 0}, "positives must be an integer of at least 1, got 0"),
        ({"negatives": 0}, "negatives must be an integer of at least 1, got 0"),
        ({"patch": 0}, "patch must be an integer of at least 1, got 0"),
    ],
)
def test_arguments_out_of_range(small, arguments, message):
    with pytest.raises(ValueError, match=f"load_histology: {message}"):
        load_histology(**{"name": "colon", "folder": small, "download": False, **arguments})


def test_missing_and_broken_files(small):
    place = small / "lc25000"
    with pytest.raises(ValueError, match=r"load_histology: .*lung_224.tar"):
        load_histology("lung", small, download=False)
    (place / "colon_n_source_tiles.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"colon_n_source_tiles.csv must have integers cluster_label and img_path"):
        load(small)
    (place / "colon_n_source_tiles.csv").write_text("cluster_label,img_path\n0.5,colon_n/colonn1.png\n")
    with pytest.raises(ValueError, match=r"colon_n_source_tiles.csv must have integers cluster_label and img_path"):
        load(small)
    (place / "colon_n_source_tiles.csv").write_text("")
    with pytest.raises(ValueError, match=r"colon_n_source_tiles.csv must be a table of tiles, got"):
        load(small)
    (place / "colon_n_source_tiles.csv").write_text("cluster_label,img_path\n1,colon_n/colonn1.png\n")
    with pytest.raises(ValueError, match=r"name every image drawn, got no row for 'colon_n/colonn2.png'"):
        load(small)
    (place / "colon_n_source_tiles.csv").write_text("cluster_label,img_path\n1,a/x/y.png\n2,b/x/y.png\n")
    with pytest.raises(ValueError, match=r"colon_n_source_tiles.csv must have one tile for each image, got two for"):
        load(small)
    (place / "colon_224.tar").write_bytes(b"not a tar")
    with pytest.raises(ValueError, match=r"load_histology: colon_224.tar must be a tar file of images, got"):
        load(small)


def made(labels, tiles, patches=None):
    patches = torch.zeros(len(labels), 2, 3, 4, 4, dtype=torch.uint8) if patches is None else patches
    return Histology("made", patches, torch.tensor(labels), tuple(f"x/{n}" for n in labels), torch.tensor(tiles))


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


@pytest.mark.parametrize(
    ("labels", "tiles", "patches", "message"),
    [
        ([0, 1], [0, 1], torch.zeros(2, 2, 3, 4, 4), "patches must be uint8, got torch.float32"),
        ([0, 1], [0, 1], torch.zeros(2, 3, 4, 4, dtype=torch.uint8), r"patches must have shape \(n, patches, 3, h"),
        ([0, 2], [0, 1], None, "labels must be 0 or 1, got 2"),
        ([0, 1], [0], None, "tiles must be as many as images, 2, got 1"),
        ([0, 1], [0, 1], torch.zeros(3, 2, 3, 4, 4, dtype=torch.uint8), "labels must be as many as images, 3, got 2"),
    ],
)
def test_images_that_do_not_fit_together(labels, tiles, patches, message):
    with pytest.raises(ValueError, match=f"Histology: {message}"):
        made(labels, tiles, patches)


def test_example_images_have_the_form_of_the_real_ones():
    images = example_histology(num_positives=6, num_negatives=9, seed=2)
    assert images.patches.shape == (15, 4, 3, 32, 32) and images.patches.dtype == torch.uint8
    assert images.counts == (6, 9) and images.labels.tolist() == [1] * 6 + [0] * 9
    assert images.tiles.tolist() == [0] * 4 + [1] * 2 + [2] * 4 + [3] * 4 + [4]
    assert len(set(images.image_names)) == 15
    again, other = example_histology(num_positives=6, num_negatives=9, seed=2), example_histology(seed=3)
    assert torch.equal(images.patches, again.patches) and not torch.equal(images.patches, other.patches[:15])
    assert example_histology(num_positives=1, num_negatives=1, size=12, patch=4).patches.shape == (2, 9, 3, 4, 4)


def test_positive_example_images_have_one_or_two_odd_patches():
    """Stains make the spread of the red pixels of a patch much larger."""
    images = example_histology(num_positives=120, num_negatives=40, size=96)
    odd = images.patches[:, :, 0].double().std((2, 3)) > 27
    number = odd.sum(1)
    assert set(number[images.labels == 1].tolist()) == {1, 2} and set(number[images.labels == 0].tolist()) == {0}
    assert bool(odd.any(0).all())  # anywhere in the image


def whole(patches: torch.Tensor) -> torch.Tensor:
    """The image of four patches."""
    return torch.cat([torch.cat([patches[0], patches[1]], 2), torch.cat([patches[2], patches[3]], 2)], 1).double()


def test_example_images_of_a_tile_are_turned_and_mirrored():
    images = example_histology(num_positives=4, num_negatives=4)
    base, others = whole(images.patches[4]), images.patches[5:]
    for other in map(whole, others):
        versions = [torch.rot90(m, k, (1, 2)) for m in (other, other.flip(2)) for k in range(4)]
        distances = sorted(float((base - version).abs().mean()) for version in versions)
        assert distances[0] < 6 < 12 < distances[1]
        assert float((base - other).abs().mean()) > 12  # no version comes twice


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_positives": 0}, "num_positives must be an integer of at least 1, got 0"),
        ({"num_negatives": 0}, "num_negatives must be an integer of at least 1, got 0"),
        ({"patch": 3}, "patch must be an integer of at least 4, got 3"),
        ({"size": 16}, "size must be an integer of at least 32, got 16"),
        ({"size": 48}, "size must be a multiple of patch, 32, got 48"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
    ],
)
def test_examples_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=f"example_histology: {message}"):
        example_histology(**arguments)


def test_patches_of_an_image_that_is_no_square():
    image = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    patches = cut_patches("me", image, 2)
    assert patches.shape == (6, 3, 2, 2) and (patches[4, 1] == image[2:4, 2:4, 1]).all()


@pytest.mark.parametrize("name", HISTOLOGY_SETS)
def test_the_real_images(name):
    """Runs on the real files where MOREAUC_DATA has them; CI sets it. Tiles are counted in the table of the data."""
    tiles = {"colon": (246, 245), "lung": (242, 240)}[name]
    folder = os.environ.get("MOREAUC_DATA")
    if folder and (Path(folder) / "lc25000").is_dir():
        place = Path(folder) / "lc25000"
        for of_class, number in zip(HISTOLOGY_SETS[name], tiles, strict=True):
            names = image_names("me", place / f"{name}_224.tar", of_class)
            assert len(names) == 1000 and [number_of(image) for image in names] == list(range(1, 1001))
            assert len(set(read_tiles("me", [place / f"{of_class}_source_tiles.csv.gz"], names))) == number
        images = load_histology(name, download=False)
        assert images.counts == (100, 1000) and images.patches.shape == (1100, 49, 3, 32, 32)
        of_class = [set(images.tiles[images.labels == label].tolist()) for label in (0, 1)]
        assert not of_class[0] & of_class[1] and len(of_class[0]) == tiles[1]
        test, folds = split(images.labels, seed=0)
        assert len(test) == 110 and int(images.labels[test].sum()) == 10
        assert leak(images, torch.cat(folds[0]), test) > 0.8
        test, folds = split(images.labels, seed=0, groups=images.tiles)
        assert leak(images, torch.cat(folds[0]), test) == 0.0 and int(images.labels[test].sum()) == 10
    assert len(tiles) == 2
