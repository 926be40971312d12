"""Weights of instances against the derivative of the bag's score, and what the figures show."""

from __future__ import annotations

import io

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib import colormaps

from moreauc.app.report.bag_figures import plot_instance_weights, plot_patch_weights
from moreauc.core.pooling import MeanPooling, SmoothedMaxPooling
from moreauc.data import ListBags, bag_scores, instance_outputs, instance_weights
from moreauc.models import InstanceMLP


def png(figure) -> bytes:
    """Draw it, as a report does; layout warnings are errors."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=80)
    return buffer.getvalue()


def softmax(logits) -> np.ndarray:
    shares = [sum(np.exp(b - a) for b in logits) ** -1 for a in logits]
    return np.array(shares)


def labels_below(figure) -> list[str]:
    return [axes.get_xlabel() for axes in figure.axes if axes.images]


OUTPUTS = np.array([[0.5, -1.0], [2.0, 0.3], [-1.5, 1.2], [0.0, 0.3]])


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor, np.ndarray.tolist])
def test_weights_by_hand(kind):
    scores, weights = instance_weights(kind(OUTPUTS), "attention")
    np.testing.assert_array_equal(scores, OUTPUTS[:, 0])
    np.testing.assert_allclose(weights, softmax(OUTPUTS[:, 1]), rtol=1e-12)
    np.testing.assert_array_equal(instance_weights(kind(OUTPUTS[:, 0]), "mean")[1], np.full(4, 0.25))
    # the temperature of a pooling is its own
    for pooling, temperature in (("smoothed_max", 0.7), (SmoothedMaxPooling(0.7), 5.0)):
        scores, weights = instance_weights(kind(OUTPUTS[:, 0]), pooling, temperature=temperature)
        np.testing.assert_array_equal(scores, OUTPUTS[:, 0])
        np.testing.assert_allclose(weights, softmax(OUTPUTS[:, 0] / 0.7), rtol=1e-12)


@pytest.mark.parametrize("pooling", ["mean", "smoothed_max", "attention"])
def test_a_small_change_of_an_instance_counts_by_its_weight(pooling):
    rows = OUTPUTS if pooling == "attention" else OUTPUTS[:, :1]
    weights = instance_weights(rows if pooling == "attention" else rows[:, 0], pooling)[1]
    assert weights.sum() == pytest.approx(1.0, rel=1e-12)
    for place, weight in enumerate(weights):
        step = np.zeros_like(rows)
        step[place, 0] = 1e-5
        bags = ListBags([rows + step, rows - step], labels=[0, 1])
        up, down = bag_scores(torch.nn.Identity(), bags, pooling).tolist()
        assert (up - down) / 2e-5 == pytest.approx(weight, abs=1e-7)


@pytest.mark.parametrize("size", [1e3, 1e17])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_large_outputs_do_not_overflow(size, dtype):
    logits = torch.tensor([size, -size, size, 0.0], dtype=dtype)
    expected = [0.5, 0.0, 0.5, 0.0]
    np.testing.assert_allclose(instance_weights(logits, "smoothed_max")[1], expected, atol=1e-12)
    both = torch.stack([logits.neg(), logits], dim=1).requires_grad_()
    scores, weights = instance_weights(both, "attention")
    np.testing.assert_allclose(weights, expected, atol=1e-12)
    assert scores.tolist() == logits.neg().tolist()


def test_the_outputs_of_a_model_stay_as_they_are():
    model, instances = InstanceMLP(3, attention=True), torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    outputs = instance_outputs(model, instances)
    copy = outputs.clone()
    scores, weights = instance_weights(outputs, "attention")
    whole = bag_scores(model, ListBags([instances], labels=[1]), "attention")
    assert (scores * weights).sum() == pytest.approx(whole.item(), rel=1e-6)
    scores[:] = 0.0
    assert torch.equal(outputs, copy)


@pytest.mark.parametrize(
    ("outputs", "pooling", "message"),
    [
        (OUTPUTS, "mean", r"outputs must have shape \(T,\), got \(4, 2\)"),
        (OUTPUTS, MeanPooling(), r"outputs must have shape \(T,\), got \(4, 2\)"),
        (OUTPUTS[:, 0], "attention", r"outputs must have shape \(T, 2\), got \(4,\)"),
        ([], "mean", r"outputs must have shape \(T,\), got \(0,\)"),
        ([1.0, np.nan], "mean", r"outputs must be finite, got nan \(1 such"),
        ([1j, 2.0], "mean", "outputs must hold real numbers"),
        (["a", "b"], "mean", "outputs must hold numbers"),
        ([1e308, 1.0], "smoothed_max", "weights of the instances must be finite, got nan"),
        ([1.0], "max", "pooling must be one of"),
        ([1.0], "smoothed_max", "temperature must be a number in"),
    ],
)
def test_outputs_that_have_no_weights(outputs, pooling, message):
    with pytest.raises(ValueError, match=f"instance_weights: {message}"):
        instance_weights(outputs, pooling, temperature=0.0 if "temperature" in message else 0.1)


def test_bars_from_the_heaviest_on():
    marked = torch.tensor([True, False, True, False])
    plain = plot_instance_weights([0.5, -2.0, 1234.5, 7.0], [0.1, 0.6, 0.2, 0.1], title="a bag")
    figure = plot_instance_weights([0.5, -2.0, 1234.5, 7.0], torch.tensor([0.1, 0.6, 0.2, 0.1]), marked=marked)
    axes = figure.axes[0]
    np.testing.assert_allclose([bar.get_width() for bar in axes.patches], [0.6, 0.2, 0.1, 0.1])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "2", "0", "3"]  # equal ones in their order
    second = axes.child_axes[0]
    assert [label.get_text() for label in second.get_yticklabels()] == ["-2.00", "+1.23e+03", "+0.50", "+7.00"]
    low, high = axes.get_ylim()
    assert low > high  # the first bar is the upper one
    (stars,) = axes.lines
    assert stars.get_ydata().tolist() == [1, 2] and stars.get_marker() == "*"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["marked"]
    assert plain.get_suptitle() == "a bag" and not plain.axes[0].lines and not plain.legends
    assert png(figure)[:4] == b"\x89PNG"


@pytest.mark.parametrize("images", [None, np.zeros((50, 4, 4))])
def test_a_large_bag_is_cut_and_says_so(images):
    weights = np.r_[np.full(2, 0.3), np.full(48, 0.4 / 48)]
    figure = plot_instance_weights(np.zeros(50), weights, limit=3, images=images, title="large")
    share = round(100 * (0.6 + 0.4 / 48))
    assert figure.get_suptitle() == f"large\nthe 3 heaviest of 50 instances, with {share} % of the weight"
    shown = len(figure.axes[0].patches) if images is None else len(labels_below(figure))
    assert shown == 3
    assert not plot_instance_weights([1.0], [1.0], limit=1).get_suptitle()
    nothing = plot_instance_weights(np.zeros(50), np.zeros(50), images=images, limit=1)
    assert nothing.get_suptitle().endswith("with 0 % of the weight") and png(nothing)[:4] == b"\x89PNG"


@pytest.mark.parametrize("size", [1, 7, 24])
def test_tiles_in_order_with_frames_by_weight(size):
    random = np.random.Generator(np.random.PCG64(0))
    images, weights = random.random((size, 8, 6)), random.random(size) / size
    marked = np.arange(size) % 2 == 0
    figure = plot_instance_weights(np.arange(size), weights, images=images, marked=marked)
    tiles = [axes for axes in figure.axes if axes.images]
    order = sorted(range(size), key=lambda place: -weights[place])
    assert len(tiles) == size
    for place, axes in zip(order, tiles, strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), images[place])
        assert axes.images[0].get_clim() == (images.min(), images.max())  # one scale of grey for the bag
        expected = colormaps["viridis"](weights[place] / weights.max())
        np.testing.assert_allclose(axes.spines["left"].get_edgecolor(), expected)
        assert axes.get_xlabel().endswith(f"\n+{place}.00")
        assert len(axes.lines) == marked[place]
        assert axes.get_xlim() == (-0.5, 5.5)  # the star does not widen it
    assert png(figure)[:4] == b"\x89PNG"
    assert figure.get_supxlabel() == "below each: weight, score; with a star: marked"


def test_numbers_below_the_tiles():
    images = np.zeros((5, 2, 2))
    figure = plot_instance_weights([0.004, -12.5, 5e6, -1.0, 1.0], [0.5, 0.04321, 5e-4, 0.0, 1.0], images=images)
    expected = ["1.00\n+1.00", "0.50\n+0.00", "0.043\n-12.50", "<0.001\n+5e+06", "0.000\n-1.00"]
    assert labels_below(figure) == expected
    assert figure.get_supxlabel() == "below each: weight, score"


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, ">f8"])
def test_pictures_of_any_type(dtype):
    images = (np.arange(2 * 4 * 4 * 3).reshape(2, 4, 4, 3) % 2).astype(dtype)
    figure = plot_instance_weights([0.0, 1.0], [0.9, 0.1], images=images)
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), images[0])
    grey = plot_instance_weights([0.0, 1.0], [0.9, 0.1], images=1000.0 * images[..., 0].astype(float))
    assert png(figure)[:4] == png(grey)[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": [0.5, -0.1]}, r"weights .* got -0\.1"),
        ({"weights": [0.5, np.nan]}, "weights .* got nan"),
        ({"weights": []}, r"weights .* got \(0,\)"),
        ({"weights": [0.5, 0.3, 0.2]}, r"scores must have shape \(3,\), got \(2,\)"),
        ({"scores": [1.0, np.inf]}, "scores .* got inf"),
        ({"images": np.zeros((3, 4, 4))}, r"images must have shape \(2, height, width\) .* got \(3, 4, 4\)"),
        ({"images": np.zeros((2, 3, 4, 4))}, r"images .* got \(2, 3, 4, 4\)"),
        ({"images": np.full((2, 4, 4), np.nan)}, "images .* got nan"),
        ({"images": np.full((2, 4, 4, 3), 255.0)}, r"images .* \[0, 1\], got 255 to 255"),
        ({"images": np.full((2, 4, 4, 3), -1.0)}, "images .* got -1 to -1"),
        ({"marked": [True]}, r"marked .* got \(1,\)"),
        ({"marked": [0, 1]}, "marked must be True or False"),
        ({"limit": 0}, "limit .* got 0"),
    ],
)
def test_instances_that_cannot_be_drawn(change, message):
    with pytest.raises(ValueError, match=f"^plot_instance_weights: {message}"):
        plot_instance_weights(**{"scores": [1.0, 2.0], "weights": [0.5, 0.5], **change})


IMAGE = np.random.Generator(np.random.PCG64(1)).integers(0, 256, (70, 101, 3), dtype=np.uint8)


@pytest.mark.parametrize("image", [IMAGE, IMAGE / 255.0, torch.from_numpy(IMAGE)], ids=["bytes", "float", "tensor"])
def test_patches_lie_where_they_were_cut(image):
    weights = np.arange(6) / 15
    figure = plot_patch_weights(image, weights, title="tissue", alpha=0.3)
    left, right = figure.axes[:2]
    np.testing.assert_array_equal(left.images[0].get_array(), np.asarray(image))
    grey, colors = right.images
    expected = (0.299 * IMAGE[5, 7, 0] + 0.587 * IMAGE[5, 7, 1] + 0.114 * IMAGE[5, 7, 2]) / 255.0
    assert grey.get_array()[5, 7] == pytest.approx(expected)
    assert colors.get_extent() == [-0.5, 95.5, 63.5, -0.5] and colors.get_alpha() == 0.3
    for row, column in [(0, 0), (31, 32), (32, 31), (63, 95)]:
        assert colors.get_array()[row // 32, column // 32] == weights[3 * (row // 32) + column // 32]
    assert right.get_xlim() == (-0.5, 100.5) and right.get_ylim() == (69.5, -0.5)  # the rest of the image is seen
    assert figure.get_suptitle() == "tissue" and png(figure)[:4] == b"\x89PNG"
    smaller = plot_patch_weights(image, [0.2, 0.8], patch=20, grid=(1, 2))
    assert smaller.axes[1].images[1].get_extent() == [-0.5, 39.5, 19.5, -0.5] and not smaller.get_suptitle()


def test_the_colours_on_the_page_are_those_of_the_patches():
    """Pixels, not settings: the heavy patch of a black image is the only bright one, lower left of the right panel."""
    figure = plot_patch_weights(np.zeros((64, 64, 3)), [0.0, 0.0, 1.0, 0.0], alpha=1.0)
    figure.savefig(buffer := io.BytesIO(), format="png", dpi=100)
    buffer.seek(0)
    page = plt.imread(buffer)[..., :3]
    yellow = np.abs(page - colormaps["viridis"](1.0)[:3]).max(axis=2) < 0.02
    box = figure.axes[1].get_window_extent().bounds
    scale = 100 / figure.dpi
    left, bottom, width, height = (scale * side for side in box)
    inside = yellow[round(len(page) - bottom - height) : round(len(page) - bottom), round(left) : round(left + width)]
    rows, columns = np.nonzero(inside)
    assert inside.mean() == pytest.approx(0.25, abs=0.02)
    assert rows.min() > 0.48 * len(inside) and columns.max() < 0.52 * inside.shape[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": IMAGE[..., 0]}, r"image .* got \(70, 101\)"),
        ({"image": IMAGE.transpose(2, 0, 1)}, r"image .* got \(3, 70, 101\)"),
        ({"image": IMAGE * 1.0}, "image .* got 0 to 255"),
        ({"weights": np.ones(5)}, r"weights must have shape \(6,\), got \(5,\)"),
        ({"weights": np.full(6, -1.0)}, "weights .* got -1"),
        ({"patch": 0}, "patch .* got 0"),
        ({"patch": 71}, "patch must be at most the image's sides, 70 and 101, got 71"),
        ({"grid": (2, 4)}, r"grid must be at most \(2, 3\) .* got \(2, 4\)"),
        ({"grid": (3, 3)}, r"grid must be at most \(2, 3\) .* got \(3, 3\)"),
        ({"grid": (0, 3)}, "grid .* got 0"),
        ({"grid": 6}, "grid .* got 6"),
        ({"grid": (2, 3, 1)}, r"grid .* got \(2, 3, 1\)"),
        ({"alpha": 1.5}, r"alpha .* got 1\.5"),
    ],
)
def test_patches_that_cannot_be_drawn(change, message):
    with pytest.raises(ValueError, match=f"^plot_patch_weights: {message}"):
        plot_patch_weights(**{"image": IMAGE, "weights": np.ones(6), **change})


def test_no_figure_stays_open_and_none_is_wider_than_a_page():
    figures = [
        plot_instance_weights([1.0], [1.0]),
        plot_instance_weights([1.0], [1.0], images=np.zeros((1, 4, 4))),
        plot_patch_weights(IMAGE, np.ones(6)),
    ]
    assert plt.get_fignums() == []
    assert all(figure.get_figwidth() <= 5.2 for figure in figures)
