"""Checks of ranges, shapes and indices for the whole package, and the rule that turns a share into a count.

Every `check_` function names the class or function the user called (`owner`), the argument, what is allowed and what
came, and raises before its caller has changed any state.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_SHORT = 1024  # numbers that are checked as a list


class NotFiniteError(ValueError):
    """Values are NaN or infinite, as those of a training that diverged are."""


def check_count(owner: str, name: str, value: object, *, minimum: int = 1) -> int:
    """Return `value` as an int of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise ValueError(f"{owner}: {name} must be an integer of at least {minimum}, got {value!r}")
    return int(value)


def check_real(
    owner: str,
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    low_open: bool = False,
    high_open: bool = False,
) -> float:
    """Return `value` as a finite float inside the interval from `low` to `high`."""
    ok = type(value) is not bool and isinstance(value, Real) and math.isfinite(value)
    if ok:
        ok = (value > low if low_open else value >= low) and (value < high if high_open else value <= high)
    if not ok:
        left = "(" if low_open or math.isinf(low) else "["
        right = ")" if high_open or math.isinf(high) else "]"
        raise ValueError(f"{owner}: {name} must be a number in {left}{low:g}, {high:g}{right}, got {value!r}")
    return float(value)


def check_region(
    owner: str, min_tpr: object, max_fpr: object, names: tuple[str, str] = ("min_tpr", "max_fpr")
) -> tuple[float, float]:
    """Return `min_tpr` in [0, 1) and `max_fpr` in (0, 1] as floats; errors call them by `names`."""
    return (
        check_real(owner, names[0], min_tpr, low=0.0, high=1.0, high_open=True),
        check_real(owner, names[1], max_fpr, low=0.0, high=1.0, low_open=True),
    )


def check_choice(owner: str, name: str, value: str, allowed: Iterable[str], *, hint: str = "") -> None:
    """Check that `value` is one of the allowed; the error names the nearest, unless it ends with another hint."""
    known = list(allowed)
    if value not in known:
        close = get_close_matches(value, known, n=1)
        hint = hint or (f"; did you mean {close[0]!r}?" if close else "")
        raise ValueError(f"{owner}: {name} must be one of {', '.join(known)}, got {value!r}{hint}")


def check_flag(owner: str, name: str, value: object) -> bool:
    """Return `value`, which must be True or False: a text such as "no" would count as True."""
    if not isinstance(value, bool):
        raise ValueError(f"{owner}: {name} must be True or False, got {shown(value)}")
    return value


def check_mapping(owner: str, name: str, value: object) -> None:
    """Check that `value` is a dictionary or the like."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{owner}: {name} must be a dictionary, got {shown(value)}")


def check_path(owner: str, name: str, value: object) -> Path:
    """Return `value` as a path that is not empty: an empty one would mean the current folder."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError(f"{owner}: {name} must be a path that is not empty, got {shown(value)}")
    return Path(text)


def check_folder(owner: str, name: str, value: object) -> Path:
    """Return `value` as the path of a folder that is there or can be made."""
    folder = check_path(owner, name, value)
    try:
        os.stat(folder)
    except FileNotFoundError:
        return folder
    except NotADirectoryError as error:
        raise ValueError(f"{owner}: {name} must be a folder, got {str(folder)!r}, which goes through a file") from error
    if not folder.is_dir():
        raise ValueError(f"{owner}: {name} must be a folder, got the file {str(folder)!r}")
    return folder


def check_floating(owner: str, name: str, value: object) -> Tensor:
    """Return `value`, which must be a floating point tensor."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = f"{value.dtype} tensor" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{owner}: {name} must be a floating point tensor, got a {kind}")
    return value


def check_shape(owner: str, name: str, value: Tensor, allowed: Sequence[tuple[int | str, ...]]) -> None:
    """Check the shape of `value` against the allowed ones; a str in a shape means any positive size."""
    shape = tuple(value.shape)
    if shape in allowed or _fits(shape, allowed):
        return
    wanted = " or ".join(map(_shape_text, allowed))
    remedy = squeeze_remedy(shape) if _fits(shape[:-1], allowed) else ""
    raise ValueError(f"{owner}: {name} must have shape {wanted}, got {_shape_text(shape)}{remedy}")


def _fits(shape: tuple[int, ...], allowed: Sequence[tuple[int | str, ...]]) -> bool:
    return any(
        len(wanted) == len(shape)
        and all(size > 0 if isinstance(want, str) else size == want for want, size in zip(wanted, shape, strict=True))
        for wanted in allowed
    )


def squeeze_remedy(shape: tuple[int, ...]) -> str:
    """Return what an error about a shape that is right up to its last axis adds, where that axis has one entry."""
    return f"; remove the last axis with .squeeze({len(shape) - 1})" if len(shape) > 1 and shape[-1] == 1 else ""


def check_scores_shape(owner: str, scores: Tensor) -> None:
    """Check that scores have shape `(B,)`; two columns are taken for logits of two classes."""
    if scores.ndim == 2 and scores.shape[1] == 2:
        raise ValueError(
            f"{owner}: scores must have shape (B,), got {_shape_text(tuple(scores.shape))}; give the network one "
            "output, or pass the difference of its two logits, logits[:, 1] - logits[:, 0]"
        )
    check_shape(owner, "scores", scores, [("B",)])


def check_same_shape(owner: str, name: str, value: Tensor, other_name: str, other: Tensor) -> None:
    """Check that `value` has the shape of `other`."""
    if value.shape != other.shape:
        shape, wanted = tuple(value.shape), tuple(other.shape)
        remedy = squeeze_remedy(shape) if shape[:-1] == wanted else ""
        raise ValueError(
            f"{owner}: {name} must have the shape of {other_name}, {_shape_text(wanted)}, "
            f"got {_shape_text(shape)}{remedy}"
        )


def check_device(owner: str, name: str, value: Tensor, device: torch.device) -> None:
    """Check that `value` is where the module's own state is."""
    if value.device != device:
        raise ValueError(
            f"{owner}: {name} must be on {device}, where the tables are, got {value.device}; "
            f"move the loss with .to({str(value.device)!r})"
        )


def check_finite(owner: str, **tensors: Tensor | None) -> None:
    """Check that no tensor holds NaN or infinity, with one transfer from the device for all of them.

    A finite sum has finite terms, and is cheap; entries are checked only where it is not finite.
    """
    present = {name: value.detach() for name, value in tensors.items() if value is not None}
    first, *others = (value.sum() if value.ndim else value for value in present.values())
    for other in others:
        first = first + other
    if math.isfinite(first):
        return
    for name, value in present.items():
        bad = value[~torch.isfinite(value)]
        if bad.numel():
            raise NotFiniteError(f"{owner}: {name} must be finite, got {bad[0].item()} ({bad.numel()} such entries)")


def check_index(
    owner: str, name: str, index: object, size: int, *, length: int, unique: bool = True, remedy: str = ""
) -> Tensor:
    """Return `index` as an int64 vector of `length` row numbers in [0, size), each at most once if `unique`.

    `remedy` is what the error about a number out of range ends with.
    """
    rows = as_index(owner, name, index, length)
    if length <= _SHORT:  # for a few numbers a set costs less than the calls that sort them
        numbers = rows.tolist()
        first, last, repeats = min(numbers), max(numbers), len(set(numbers)) < length
    else:
        ordered = np.sort(rows.numpy(force=True))  # several times faster than torch's sort
        first, last, repeats = ordered[0], ordered[-1], bool((ordered[1:] == ordered[:-1]).any())
    if first < 0 or last >= size:
        raise ValueError(f"{owner}: {name} must lie in [0, {size}), got {first if first < 0 else last}{remedy}")
    if unique and repeats:
        ordered = np.sort(rows.numpy(force=True))
        double = ordered[1:][ordered[1:] == ordered[:-1]][0]
        raise ValueError(f"{owner}: {name} must not repeat a row inside one batch, got {double} more than once")
    return rows


def as_index(owner: str, name: str, index: object, length: int) -> Tensor:
    """Return `index` as an int64 vector of `length` numbers, without a check of their values."""
    rows: Tensor = torch.as_tensor(index)
    if rows.dtype == torch.bool or rows.is_floating_point() or rows.is_complex():
        raise ValueError(f"{owner}: {name} must hold integers, got {rows.dtype}")
    check_shape(owner, name, rows, [(length,)])
    return rows.long()


def as_labels(owner: str, labels: object) -> Tensor:
    """Return `labels` as a tensor; arrays of any layout are copied, since torch takes neither all of them nor views."""
    if isinstance(labels, Tensor):
        return labels
    try:
        array = np.array(labels)
        if array.dtype == object and all(isinstance(label, Real) for label in array.flat):
            array = array.astype(np.float64)  # a column of numbers from a table with text columns
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{owner}: labels must be a vector of 0 and 1, got {no_number(labels)}") from error


def no_number(values: object) -> str:
    """Return what an error shows of a vector that holds other things than numbers: the first of them."""
    kind = type(values).__name__
    try:
        entries = np.array(values, dtype=None if isinstance(values, np.ndarray) else object).tolist()
    except ValueError:  # lists of different lengths
        return f"a {kind}"
    if not isinstance(entries, list):
        return shown(values)
    strange = [entry for entry in entries if not isinstance(entry, Real)]
    return f"{shown(strange[0])} in a {kind}" if strange else f"a {kind}"


def check_labels(owner: str, labels: object, *, both: bool = True, remedy: str = "") -> Tensor:
    """Return `labels` as an int64 vector of 0 and 1 that holds both, or either if not `both`.

    `remedy` is what the error about a class that is missing ends with.
    """
    values = as_labels(owner, labels)
    check_shape(owner, "labels", values, [("n",)])
    strange = values[(values != 0) & (values != 1)]
    if strange.numel():
        raise ValueError(f"{owner}: labels must be 0 or 1, got {strange[0].item()}")
    positives = int((values == 1).sum()) if both else -1
    if positives in (0, len(values)):
        raise ValueError(f"{owner}: labels must hold both 0 and 1, got only {int(positives > 0)}{remedy}")
    return values.long()


def check_link(owner: str, link: object) -> None:
    """Check the name of a link function."""
    if link not in ("sigmoid", "identity", "standardized"):
        raise ValueError(f"{owner}: link must be 'sigmoid', 'identity' or 'standardized', got {link!r}")


def floor_count(number: int, share: float) -> int:
    """Return `number * share` rounded down, tolerating rounding errors: 10 * (1 - 0.9) is 1.

    The error of 1 - 0.9 is small beside 1, not beside the share; 4 machine epsilons times `number` are forgiven.
    """
    return min(number, math.floor(number * (share + 4.0 * sys.float_info.epsilon)))


def shown(value: object) -> str:
    """Return a short text for a value of the wrong kind: a plain value itself, else its type."""
    plain = value is None or isinstance(value, bool | int | float | str | bytes)
    return repr(value) if plain else f"a {type(value).__name__}"


def _shape_text(shape: tuple[int | str, ...]) -> str:
    return "(" + ", ".join(str(size) for size in shape) + ("," if len(shape) == 1 else "") + ")"
