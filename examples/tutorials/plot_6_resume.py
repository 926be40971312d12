"""Resume after a kill
===================

At the end you have a training that was stopped in the middle of an epoch and resumed,
with weights that equal those of an undisturbed run bit for bit, and you have seen what
a checkpoint of weights alone would have lost.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn

from moreauc import TPAUCLoss
from moreauc.data import TensorBatches
from moreauc.samplers import PosNegSampler
from moreauc.train import Callback, TrainState, fit

# %%
# A training
# ----------
# One row in ten is positive. The network has dropout, so that its random numbers have
# to be restored, too. The loss has a memory: a number for each positive row and
# thresholds.

y = (torch.arange(2000) % 10 == 0).long()
random = torch.Generator().manual_seed(0)
x = torch.randn(2000, 8, generator=random) + 0.5 * y.unsqueeze(1)
EPOCHS, KILLED_AT = 20, 310  # the last is a step; an epoch has 38


class Recorder(Callback):
    """Keeps the loss of each step, and can stop the training like a power cut."""

    def __init__(self, killed_at: int | None = None) -> None:
        self.killed_at = killed_at
        self.steps: list[int] = []
        self.losses: list[float] = []

    def on_step(self, state: TrainState) -> None:
        """Note the loss; raise at the step given."""
        self.steps.append(state.epoch * len(batches) + state.step)
        self.losses.append(float(state.loss))
        if self.steps[-1] == self.killed_at:
            raise RuntimeError("power cut")


def make() -> tuple[nn.Module, TPAUCLoss]:
    """Return the untrained network and the loss, the same at each call."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 1)
    )
    return network, TPAUCLoss(y, min_tpr=0.5, max_fpr=0.3, tau=0.3, gamma=0.1)


def equal(one: nn.Module, other: nn.Module) -> bool:
    """Return whether all weights and buffers of two modules are equal bit for bit."""
    states = one.state_dict(), other.state_dict()
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])


batches = TensorBatches(x, y, PosNegSampler(y, num_positives=16, num_negatives=48))
settings = {"epochs": EPOCHS, "lr": 0.05, "milestones": (), "seed": 0}

# %%
# Undisturbed
# -----------

whole_network, whole_criterion = make()
whole = Recorder()
fit(whole_network, whole_criterion, batches, callbacks=[whole], **settings)
print(f"{len(whole.losses)} steps")

# %%
# Killed and resumed
# ------------------
# The new arguments are ``checkpoint``, a folder, and ``every``: save after so many
# steps, and at the end of each epoch. An error in a callback stands for the power cut:
# nothing is saved then, and everything in memory is lost.

folder = Path(tempfile.mkdtemp())
settings |= {"checkpoint": folder, "every": 25}
killed = Recorder(killed_at=KILLED_AT)
network, criterion = make()
try:
    fit(network, criterion, batches, callbacks=[killed], **settings)
except RuntimeError as error:
    print(f"{error} at step {killed.steps[-1]}")
print("saved:", ", ".join(sorted(file.name for file in folder.glob("*.checkpoint"))))

# %%
# The same call again. It finds the folder, and goes on from the last save.

network, criterion = make()
resumed = Recorder()
fit(network, criterion, batches, callbacks=[resumed], **settings)
same_weights = equal(network, whole_network)
same_memory = equal(criterion, whole_criterion)
print(f"resumed at step {resumed.steps[0]}")
print(f"weights equal bit for bit: {same_weights}; memory of the loss: {same_memory}")

# %%
# Weights alone
# -------------
# What one would do otherwise: save the weights at the end of an epoch, load them, and
# train for the epochs that are left. Then momentum, the memory of the loss, the
# previous weights, the place in the data and the random numbers begin anew.

saved_network, criterion = make()
alone = {"lr": 0.05, "milestones": (), "seed": 0}
fit(saved_network, criterion, batches, epochs=8, **alone)

naive_network, criterion = make()
naive_network.load_state_dict(saved_network.state_dict())
naive = Recorder()
fit(naive_network, criterion, batches, epochs=EPOCHS - 8, callbacks=[naive], **alone)
pairs = zip(naive_network.parameters(), whole_network.parameters(), strict=True)
off = max(float((one - other).detach().abs().max()) for one, other in pairs)
largest = max(float(one.detach().abs().max()) for one in whole_network.parameters())
print(f"weights differ by up to {off:.2f} at the end; the largest is {largest:.2f}")

# %%
# The loss of the resumed run lies on that of the undisturbed one, step by step; with
# weights alone it jumps and takes another way. Where such a run ends is not worse by
# necessity, but it depends on when it was stopped.


def smooth(losses: list[float]) -> torch.Tensor:
    """Return means over 20 steps."""
    return torch.tensor(losses).unfold(0, 20, 1).mean(1)


curves = {
    "undisturbed": (whole, 0, {"color": "0.75", "linewidth": 6}),
    "until the power cut": (killed, 0, {"color": "C3"}),
    "resumed from the checkpoint": (resumed, 0, {"color": "C0"}),
    "resumed with weights alone": (naive, 8, {"color": "C1", "linestyle": "--"}),
}
figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
for name, (recorder, epochs, style) in curves.items():
    steps = [step + epochs * len(batches) for step in recorder.steps[19:]]
    axes.plot(steps, smooth(recorder.losses), label=name, **style)
axes.axvline(KILLED_AT, color="C3", linewidth=1, linestyle=":")
axes.set(xlabel="step", ylabel="training loss, mean over 20 steps")
axes.legend()
plt.show()

# sphinx_gallery_start_ignore
# what the text says, not shown on the page
assert same_weights and same_memory
start = resumed.steps[0]
assert 0 < start < KILLED_AT == killed.steps[-1]
assert resumed.losses == whole.losses[start:]
assert killed.losses == whole.losses[: KILLED_AT + 1]
assert off > 0.1
# sphinx_gallery_end_ignore

# %%
# A real kill is no different: each file is written under another name and renamed, so
# that at any moment there is a whole one. ``make torture`` kills processes hundreds of
# times, also in the middle of a save, and compares the files bit for bit. On SIGTERM,
# which schedulers send first, the step is finished and the run saved.
#
# Where to read on
# ----------------
# :doc:`/training` has the training loop and its callbacks. :doc:`/checkpoints` says
# what is in a file, which files are rejected, and how to save in a loop of your own.
# The estimators take ``checkpoint=``, too, and on the command line it is ``--checkpoint
# FOLDER --resume`` (:doc:`/cli`).
