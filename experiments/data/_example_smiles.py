"""A few thousand valid SMILES put together of rings, what joins two of them, and an end."""

from __future__ import annotations

from functools import lru_cache

# each with a place where the next piece is bound; numbers of rings are moved where two rings meet
_RINGS = (
    "c1ccc({})cc1",
    "c1ccc({})nc1",
    "c1cnc({})nc1",
    "c1cc({})co1",
    "c1cc({})cs1",
    "c1ccc2[nH]cc({})c2c1",
    "c1ccc2cc({})ccc2c1",
    "C1CCC({})CC1",
    "C1CN({})CCO1",
    "C1CCN({})CC1",
    "C1CC({})CC1",
)
_JOINTS = ("C", "CC", "CO", "CN", "C(=O)N")
_ENDS = ("C", "CC", "CCC", "CC(C)C", "CO", "CCO", "CC#N", "C(=O)O", "CCl", "CC(F)(F)F")


@lru_cache
def every_example() -> tuple[str, ...]:
    """Return all of them, one ring or two: the first ring, a joint, a second ring, an end."""
    tails = [ring.translate(str.maketrans("12", "34")) for ring in _RINGS]
    frames = [*_RINGS, *(first.format(joint + tail) for first in _RINGS for joint in _JOINTS for tail in tails)]
    return tuple(frame.format(end) for frame in frames for end in _ENDS)
