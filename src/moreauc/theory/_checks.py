"""Checks of the sizes and constants that theorems and lemmas share.

`owner` is the public function whose name an error carries; keywords carry the names of its arguments.
"""

from __future__ import annotations

from moreauc._checks import check_count, check_real


def check_batch(owner: str, **sizes: int) -> tuple[int, int]:
    """Check the two named numbers: the size of a set, then how many of it are in a batch."""
    (set_name, size), (batch_name, batch) = sizes.items()
    size, batch = check_count(owner, set_name, size), check_count(owner, batch_name, batch)
    if batch > size:
        raise ValueError(f"{owner}: {batch_name} must be at most {set_name} = {size}, got {batch}")
    return size, batch


def positive(owner: str, **values: float) -> list[float]:
    """Check that the named numbers are above 0."""
    return [check_real(owner, name, value, low=0.0, low_open=True) for name, value in values.items()]


def non_negative(owner: str, **values: float) -> list[float]:
    """Check that the named numbers are at least 0."""
    return [check_real(owner, name, value, low=0.0) for name, value in values.items()]


def all_or_none(owner: str, **values: float | None) -> dict[str, float] | None:
    """Return the checked values by name, or None where none is given."""
    given = {name: value for name, value in values.items() if value is not None}
    missing = [name for name in values if name not in given]
    if given and missing:
        raise ValueError(f"{owner}: rho_bar needs all of {', '.join(values)} or none, got no {', '.join(missing)}")
    return dict(zip(given, non_negative(owner, **given), strict=True)) or None
