"""Several processes
=================

At the end you have trained with two processes on one machine, and have seen that they
compute what one process does. On several GPUs it is the same script.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from moreauc import TPAUCLoss
from moreauc.checkpoint import load_checkpoint

# %%
# Why there is something to do
# ----------------------------
# With ``DistributedDataParallel`` each process computes the loss of its part of the
# batch, and gradients are averaged. That is right for a mean over rows. The partial AUC
# is a mean over pairs, and a pair may have its two rows in two processes; also, each
# process would remember other rows. So the mean of the losses of two halves is not the
# loss of the whole:

scores = torch.tensor([2.0, -1.0, 0.5, -2.0, 1.5, -0.5, 0.0, -1.5])
labels = torch.tensor([1, 0, 1, 0, 0, 0, 1, 1])


def loss_of(rows: list[int]) -> float:
    """Return the loss of a batch of these rows."""
    index = torch.tensor(rows)
    return float(
        TPAUCLoss(labels, min_tpr=0.0, max_fpr=0.5, link="identity")(
            scores[index], labels[index], index
        )
    )


whole_loss, mean_of_halves = (
    loss_of([*range(8)]),
    (loss_of([0, 1, 2, 3]) + loss_of([4, 5, 6, 7])) / 2,
)
print(f"loss of the batch {whole_loss:.3f}, mean over its halves {mean_of_halves:.3f}")

# %%
# ``DistributedCriterion`` exchanges the scores of the batch, a few bytes for each row,
# and computes the loss of the whole in every process; ``DistributedBatchSampler``
# splits the batches of any sampler.
#
# A script
# --------
# ``examples/ddp_tpauc.py`` has both, and checkpoints. (To run this tutorial yourself,
# take a checkout, in which both scripts are.) Its training:

script = Path(sys.argv[0]).resolve().parents[1] / "ddp_tpauc.py"
text = script.read_text(encoding="utf-8")
print(text[text.index("    model = Distributed") : text.index("    own = ")])

# %%
# One process and two
# -------------------
# ``torchrun`` starts the processes; without it the script is one process. Both do six
# epochs with batches of 64 rows in all, in double precision, and print the loss.

folder = Path(tempfile.mkdtemp())
torchrun = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc_per_node",
    "2",
]
commands = {"one": [sys.executable], "two": torchrun}
environment = {**os.environ, "OMP_NUM_THREADS": "1"}
printed = {}
for name, command in commands.items():
    run = subprocess.run(
        [
            *command,
            str(script),
            "--double",
            "--epochs",
            "6",
            "--out",
            str(folder / name),
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    printed[name] = run.stdout.splitlines()
print(f"{'one process':36}two processes")
for one, two in zip(printed["one"], printed["two"], strict=True):
    print(f"{one:36}{two}")

# %%
# Equal to all digits printed. The checkpoints have the others: the largest difference
# of any weight, and of any number that the loss remembers.

states = {name: load_checkpoint(folder / name / "checkpoint.pt") for name in commands}
differences = {
    part: max(
        float((value.double() - states["two"][part][key].double()).abs().max())
        for key, value in states["one"][part].items()
    )
    for part in ("model", "criterion")
}
print(f"largest difference of a weight: {differences['model']:.0e}")
print(f"of a number that the loss remembers: {differences['criterion']:.0e}")

# %%
# That is rounding, since the two add in another order. It grows during training,
# because the loss has kinks. In single precision, where it begins at 1e-7 and not at
# 1e-16, it can be seen after some epochs, as between two machines.

losses = {
    name: [float(x) for x in re.findall(r"loss (\S+)", "\n".join(lines))]
    for name, lines in printed.items()
}
figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
axes.plot(losses["one"], color="0.75", linewidth=6, label="one process")
axes.plot(losses["two"], color="C0", label="two processes")
axes.set(xlabel="epoch", ylabel="loss of its last batch")
axes.legend()
plt.show()

# sphinx_gallery_start_ignore
# what the text says, not shown on the page
assert len(printed["one"]) == 7 and printed["one"] == printed["two"]
assert max(differences.values()) < 1e-6
assert states["one"]["epoch"] == len(losses["one"]) == 6
assert abs(whole_loss / mean_of_halves - 1) > 0.1
# sphinx_gallery_end_ignore

# %%
# The numbers are for trust, not for speed: with a network this small two processes are
# slower than one. They pay where the network is large, or the data do not fit on one
# machine.
#
# Where to read on
# ----------------
# :doc:`/distributed` has what is communicated, checkpoints that another number of
# processes can resume, and metrics over all processes. :doc:`/adapters` does the same
# with Lightning and Accelerate, :doc:`/performance` is about the GPU.
