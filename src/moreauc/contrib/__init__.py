"""Where users train: parts that let other libraries' training loops and checkpoints keep all that the losses need.

- :mod:`moreauc.contrib.lightning`: a module and a callback for Lightning (extra `lightning`);
- :class:`ResumableLoader`: a loader that knows how many batches it has given, for any loop; docs/adapters.md has one of
  Accelerate, which needs nothing else.
"""

from moreauc.contrib.loader import ResumableLoader

__all__ = ["ResumableLoader"]
