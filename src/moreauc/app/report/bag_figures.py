"""Weights of the instances of a bag in its score: as bars, tiles, or over the image they are cut from.

Figures are matplotlib's own objects: no window is opened, no backend is chosen, and nothing has to be closed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from moreauc._checks import check_count, check_real
from moreauc._system import printable, show_as_written
from moreauc.app.report.pages import plain_axes
from moreauc.data.scoring import real_tensor

TensorLike = ArrayLike | Tensor
Numbers = NDArray[np.float64]

_COLORS = "viridis"  # lightness rises evenly, so that it can be read in grey
_BAR, _MARK = "#0b6e99", "#d1495b"
_WIDTH = 5.2  # inches; letters are still readable where the page shows it 420 pixels wide
_HALF, _THIN, _BELOW = 2.5, 0.12, 0.75  # inches: one of two images, the colour bar, all that is below
_COLUMNS = 6  # of tiles
_NUMBER = "weight in the score of the bag"


def plot_instance_weights(
    scores: ArrayLike | Tensor,
    weights: ArrayLike | Tensor,
    *,
    images: ArrayLike | Tensor | None = None,
    marked: ArrayLike | Tensor | None = None,
    limit: int = 24,
    title: str | None = None,
) -> Figure:
    """Draw the instances of one bag by decreasing weight, with weight and score of each.

    An instance is a bar as long as its weight; with images, a tile in a frame coloured by the weight.

    Args:
        scores: score of each instance, shape `(T,)`.
        weights: weight of each in the score of the bag, shape `(T,)`, at least 0.
        images: a picture of each instance, `(T, height, width)` of any real numbers, in grey, or
            `(T, height, width, 3)`, bytes or floating point numbers in [0, 1].
        marked: True for instances to mark with a star; shape `(T,)`.
        limit: instances to show at most; the title states the number if there are more.
        title: a line above; None for none.

    Example:
        >>> figure = plot_instance_weights([0.3, 2.0, -1.0], [0.2, 0.7, 0.1], marked=[False, True, False])
        >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
        ['1', '0', '2']
        >>> len(plot_instance_weights([0.3, 2.0], [0.2, 0.8], images=np.zeros((2, 8, 8))).axes)  # and the colour bar
        3
    """
    owner = "plot_instance_weights"
    heights = _weights(owner, weights, ("T",))
    count = len(heights)
    values = real_tensor(owner, "scores", scores, [(count,)]).double().numpy()
    shape = (count, "height", "width")
    tiles = None if images is None else _pictures(owner, "images", images, [shape, (*shape, 3)])
    stars = np.zeros(count, dtype=bool) if marked is None else _marks(owner, marked, count)
    check_count(owner, "limit", limit)
    order = np.argsort(-heights, kind="stable")[:limit]  # equal ones as they stand in the bag
    heading = [] if title is None else title.split("\n")
    if count > limit:
        share = heights[order].sum() / max(heights.sum(), np.finfo(float).tiny)
        heading.append(f"the {limit} heaviest of {count} instances, with {100 * share:.0f} % of the weight")
    if tiles is None:
        figure = _bars(order, values[order], heights[order], stars[order])
    else:
        figure = _tiles(tiles[order], values[order], heights[order], stars[order])
    return _titled(figure, heading)


def plot_patch_weights(
    image: ArrayLike | Tensor,
    weights: ArrayLike | Tensor,
    *,
    patch: int = 32,
    grid: tuple[int, int] | None = None,
    alpha: float = 0.5,
    title: str | None = None,
) -> Figure:
    """Draw an image, and beside it the same in grey with its patches coloured by their weight.

    Patches are squares from the upper left corner on, row after row; a rest that fills no patch has no colour.

    Args:
        image: shape `(height, width, 3)`, bytes or floating point numbers in [0, 1].
        weights: weight of each patch, row after row, shape `(rows * columns,)`, at least 0.
        patch: side of a patch in pixels, at least 1.
        grid: rows and columns of patches; None for as many as the image holds.
        alpha: how much the colours cover the image, in [0, 1].
        title: a line above; None for none.

    Example:
        >>> figure = plot_patch_weights(np.zeros((70, 100, 3)), np.arange(6) / 15)
        >>> figure.axes[1].images[1].get_array().shape
        (2, 3)
    """
    owner = "plot_patch_weights"
    side = check_count(owner, "patch", patch)
    picture = _pictures(owner, "image", image, [("height", "width", 3)])
    rows, columns = _grid(owner, grid, side, picture.shape[:2])
    shares = _weights(owner, weights, (rows * columns,)).reshape(rows, columns)
    check_real(owner, "alpha", alpha, low=0.0, high=1.0)
    height, width = picture.shape[:2]
    figure = Figure(figsize=(_WIDTH, _BELOW + _HALF * height / width), layout=ConstrainedLayoutEngine())
    places = figure.add_gridspec(2, 2, height_ratios=[_HALF * height / width, _THIN])
    left, right = figure.add_subplot(places[0, 0]), figure.add_subplot(places[0, 1])
    left.imshow(picture)
    top = 255.0 if picture.dtype == np.uint8 else 1.0
    grey = picture @ np.array([0.299, 0.587, 0.114]) / top  # how bright the eye sees red, green and blue
    right.imshow(grey, cmap="gray", vmin=0.0, vmax=1.0)
    # Pixels are squares around whole numbers, so that the first begins at -0.5.
    box = (-0.5, columns * side - 0.5, rows * side - 0.5, -0.5)
    scale = _scale(shares)
    right.imshow(shares, cmap=_COLORS, norm=scale, alpha=alpha, extent=box, interpolation="nearest")
    right.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
    for axes in (left, right):
        axes.set_axis_off()
    _color_bar(figure, figure.add_subplot(places[1, :]), scale)
    return _titled(figure, [] if title is None else title.split("\n"))


def _bars(order: NDArray[np.int64], scores: Numbers, weights: Numbers, marked: NDArray[np.bool_]) -> Figure:
    places = np.arange(len(order))
    figure = Figure(figsize=(_WIDTH, 1.0 + 0.24 * len(order)), layout=ConstrainedLayoutEngine())
    axes = figure.subplots()
    axes.barh(places, weights, height=0.72, color=_BAR)
    axes.set_yticks(places, [str(number) for number in order])
    axes.set_ylim(len(order) - 0.4, -0.6)
    top = float(weights.max()) or 1.0
    axes.set_xlim(0.0, 1.08 * top)
    axes.set(xlabel=_NUMBER, ylabel="instance")
    plain_axes(axes, grid="x")
    second = axes.secondary_yaxis("right")
    second.set_yticks(places, [_score(score) for score in scores], ha="right")
    second.tick_params(length=0, pad=38)
    second.set_ylabel("score")
    second.spines["right"].set_visible(False)
    if marked.any():
        axes.plot(weights[marked] + 0.04 * top, places[marked], "*", color=_MARK, markersize=10, label="marked")
        figure.legend(frameon=False, loc="outside lower right", fontsize=9)
    return figure


def _tiles(images: NDArray[Any], scores: Numbers, weights: Numbers, marked: NDArray[np.bool_]) -> Figure:
    lines = -(-len(images) // _COLUMNS)
    tile = 0.76 * images.shape[1] / images.shape[2]
    engine = ConstrainedLayoutEngine(w_pad=0.05, h_pad=0.04)
    figure = Figure(figsize=(_WIDTH, _BELOW + 0.3 + lines * (tile + 0.43)), layout=engine)
    grid = figure.add_gridspec(lines + 1, _COLUMNS, height_ratios=[*[tile] * lines, _THIN])
    scale = _scale(weights)
    tones = {} if images.ndim == 4 else {"cmap": "gray", "vmin": images.min(), "vmax": images.max()}
    for place, picture in enumerate(images):
        axes = figure.add_subplot(grid[place // _COLUMNS, place % _COLUMNS])
        axes.imshow(picture, interpolation="nearest", **tones)
        axes.set(xticks=[], yticks=[])
        axes.set_xlabel(f"{_weight(weights[place])}\n{_score(scores[place])}", fontsize=9, labelpad=4)
        for spine in axes.spines.values():
            spine.set(color=ScalarMappable(scale, _COLORS).to_rgba(weights[place]), linewidth=4)
        if marked[place]:
            (star,) = axes.plot(0.93, 0.93, "*", color=_MARK, transform=axes.transAxes)
            star.set(markeredgecolor="white", markersize=15, clip_on=False, zorder=5)
            star.set_in_layout(False)  # or tiles with a star would be smaller
    _color_bar(figure, figure.add_subplot(grid[lines, :]), scale)
    figure.supxlabel("below each: weight, score" + "; with a star: marked" * bool(marked.any()), fontsize=9)
    return figure


def _titled(figure: Figure, lines: list[str]) -> Figure:
    if lines:
        show_as_written([figure.suptitle("\n".join(map(printable, lines)), fontsize=10)])
        figure.set_figheight(figure.get_figheight() + 0.2 * len(lines))
    return figure


def _scale(weights: Numbers) -> Normalize:
    return Normalize(0.0, float(weights.max()) or 1.0)


def _color_bar(figure: Figure, axes: Axes, scale: Normalize) -> None:
    axes.set_axis_off()
    inner = axes.inset_axes((0.1, 0.0, 0.8, 1.0))  # or the numbers at its ends would push the pictures aside
    bar = figure.colorbar(ScalarMappable(scale, _COLORS), cax=inner, orientation="horizontal")
    bar.set_label(_NUMBER, fontsize=9)
    inner.tick_params(labelsize=9)
    bar.outline.set_visible(False)


def _weight(weight: float) -> str:
    if 0.0 < weight < 0.001:
        return "<0.001"
    return f"{weight:.2f}" if weight >= 0.1 else f"{weight:.3f}"


def _score(score: float) -> str:
    return f"{score:+.2f}" if abs(score) < 100.0 else f"{score:+.3g}"


def _weights(owner: str, value: TensorLike, shape: tuple[int | str, ...]) -> Numbers:
    weights: Numbers = real_tensor(owner, "weights", value, [shape]).double().numpy()
    if weights.min() < 0.0:
        raise ValueError(f"{owner}: weights must be at least 0, got {weights.min():g}")
    return weights


def _marks(owner: str, value: TensorLike, count: int) -> NDArray[np.bool_]:
    marks = real_tensor(owner, "marked", value, [(count,)])
    if marks.dtype != torch.bool:
        raise ValueError(f"{owner}: marked must be True or False, got {marks.dtype}")
    return marks.numpy()


def _pictures(owner: str, name: str, value: TensorLike, shapes: list[tuple[int | str, ...]]) -> NDArray[Any]:
    """Return pictures as bytes or float64; those with colours, the last of the shapes, as matplotlib takes them."""
    tensor = real_tensor(owner, name, value, shapes)
    if tensor.dtype == torch.uint8:
        return tensor.numpy()
    numbers: Numbers = tensor.double().numpy()
    if numbers.ndim == len(shapes[-1]) and (numbers.min() < 0.0 or numbers.max() > 1.0):
        found = f"{numbers.min():g} to {numbers.max():g}"
        raise ValueError(f"{owner}: {name} with colours must be bytes or lie in [0, 1], got {found}")
    return numbers


def _grid(owner: str, grid: object, patch: int, size: tuple[int, ...]) -> tuple[int, int]:
    most = (size[0] // patch, size[1] // patch)
    if min(most) < 1:
        raise ValueError(f"{owner}: patch must be at most the image's sides, {size[0]} and {size[1]}, got {patch}")
    if grid is None:
        return most
    if not isinstance(grid, tuple | list) or len(grid) != 2:
        raise ValueError(f"{owner}: grid must be a pair, rows and columns, got {grid!r}")
    rows, columns = (check_count(owner, "grid", number) for number in grid)
    if rows > most[0] or columns > most[1]:
        raise ValueError(f"{owner}: grid must be at most {most} for patches of {patch} pixels, got {(rows, columns)}")
    return rows, columns
