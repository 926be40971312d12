"""Training with Lightning: its loop and its checkpoints, with nothing lost. Needs the extra `lightning`.

- :class:`CriterionModule`: a LightningModule of a model and a loss of the library, ready to use;
- :class:`StatefulCriterion`: a callback for a LightningModule of your own, with :func:`criterion_loss` or
  :func:`previous_iterate` in its `training_step`;
- :class:`~moreauc.contrib.ResumableLoader`: the loader to give to `trainer.fit`.

The tables of a loss are buffers of a submodule, which Lightning saves with the weights. The callback saves what
Lightning does not: the previous weights, the reference point, the global random states, gradients not used yet.
"""

from __future__ import annotations

from moreauc.contrib._lightning_callback import StatefulCriterion, criterion_loss, previous_iterate
from moreauc.contrib._lightning_module import CriterionModule
from moreauc.contrib.loader import ResumableLoader

__all__ = ["CriterionModule", "ResumableLoader", "StatefulCriterion", "criterion_loss", "previous_iterate"]
