"""Checks of the sizes and constants that theorems and lemmas share, and the rounding of an iteration count.

`owner` is the public function whose name an error carries; keywords carry the names of its arguments.
"""

from __future__ import annotations

import math

from moreauc._checks import check_count, check_real


def check_epsilon(owner: str, epsilon: float) -> float:
    """Check the wanted accuracy."""
    # Beyond this range the powers of epsilon leave double precision.
    return check_real(owner, "epsilon", epsilon, low=1e-20, high=1e20)


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


def all_or_none(owner: str, **values: float | None) -> list[float] | None:
    """Return the checked values, or None where none is given."""
    missing = [name for name, value in values.items() if value is None]
    if len(missing) == len(values):
        return None
    if missing:
        raise ValueError(f"{owner}: rho_bar needs all of {', '.join(values)} or none, got no {', '.join(missing)}")
    return non_negative(owner, **{name: value for name, value in values.items() if value is not None})


def round_up(value: float) -> int:
    """Return the number of iterations, at least 1."""
    # The factor keeps the rounding errors of an exact integer from pushing it to the next one.
    return max(1, math.ceil(value * (1.0 - 1e-12)))
