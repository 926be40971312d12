"""Adapters to the training loops and checkpoints of other libraries.

- :mod:`moreauc.contrib.lightning`: a callback for Lightning (extra `lightning`);
- :class:`ResumableLoader`: a loader with a saved position, for any loop; docs/adapters.md shows one with Accelerate.
"""

from moreauc.contrib.loader import ResumableLoader

__all__ = ["ResumableLoader"]
