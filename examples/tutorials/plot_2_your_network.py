"""Your own network
================

At the end you have a convolutional network of your own, trained by
:class:`~moreauc.TPAUCLoss` in a plain PyTorch loop from where cross entropy left it,
its learning curves, and its ROC curves before and after.
"""

import copy
from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from moreauc import PreviousIterate, TPAUCLoss
from moreauc.data import TensorBatches
from moreauc.metrics import bootstrap_interval, plot_roc_region, tpauc_score
from moreauc.samplers import PosNegSampler

# %%
# A rare digit in noise
# ---------------------
# Scikit-learn's handwritten digits have 8 x 8 pixels. To be found is the 8, one digit
# in ten. The camera is bad: each time it looks it adds noise, so that no two pictures
# of a digit are alike. For training the noise is added in the loop.

NOISE, LOOKS = 0.5, 4
random = torch.Generator().manual_seed(0)
data = load_digits()
images = data.images.astype(np.float32)[:, None] / 16
labels = (data.target == 8).astype(np.int64)
known, test, train_labels, test_labels = train_test_split(
    images, labels, test_size=0.4, stratify=labels, random_state=0
)
train, validation, train_labels, validation_labels = train_test_split(
    known, train_labels, test_size=0.3, stratify=train_labels, random_state=0
)
train, train_labels = torch.tensor(train), torch.tensor(train_labels)


def taken(pictures: Tensor) -> Tensor:
    """Return the pictures as the camera takes them."""
    return pictures + NOISE * torch.randn(pictures.shape, generator=random)


# validation and test: four pictures of each digit, always the same
seen_validation = taken(torch.tensor(validation).repeat(LOOKS, 1, 1, 1))
validation_labels = np.tile(validation_labels, LOOKS)
seen_test = taken(torch.tensor(test).repeat(LOOKS, 1, 1, 1))
all_test_labels = np.tile(test_labels, LOOKS)

figure, panels = plt.subplots(2, 8, figsize=(8, 2.3), layout="constrained")
chosen = torch.cat(
    [torch.nonzero(train_labels == 1)[:3, 0], torch.nonzero(train_labels == 0)[:5, 0]]
)
for column, place in enumerate(chosen):
    for axes, picture in zip(
        panels[:, column], (train[place], taken(train[place])), strict=True
    ):
        axes.imshow(picture[0].numpy(), cmap="gray_r")
        axes.set_axis_off()
figure.suptitle("above: the digits; below: what the network sees")
plt.show()

# %%
# Batches
# -------
# The loss compares positives with negatives, so that a batch needs both:
# :class:`~moreauc.samplers.PosNegSampler` takes care of that. Each batch comes with the
# numbers of its rows, by which the loss remembers them.

REGION = {"min_tpr": 0.5, "max_fpr": 0.3}
batches = TensorBatches(
    train, train_labels, PosNegSampler(train_labels, num_positives=16, num_negatives=48)
)


def score(network: nn.Module) -> float:
    """Return the two-way partial AUC of the validation pictures."""
    with torch.no_grad():
        return tpauc_score(
            validation_labels, network(seen_validation).squeeze(1), **REGION
        )


# %%
# The loop
# --------
# A plain PyTorch loop, the same for every loss. After each epoch the validation
# pictures are scored, and the network ends with the weights of the best epoch.


def train_network(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[..., Tensor],
    epochs: range,
) -> list[float]:
    """Train, and return the validation score before the first and after each epoch."""
    curve, best = [score(network)], copy.deepcopy(network.state_dict())
    for epoch in epochs:
        batches.set_epoch(epoch)
        for pictures, truth, index in batches:
            loss = loss_of(taken(pictures), truth, index)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        curve.append(score(network))
        if curve[-1] > max(curve[:-1]):
            best = copy.deepcopy(network.state_dict())
    network.load_state_dict(best)
    return curve


# %%
# First cross entropy
# -------------------
# Any network will do that gives one raw score for each picture, without a sigmoid. The
# loss looks at the hardest pairs, and before training nearly all are hard: so begin
# with cross entropy.

torch.manual_seed(0)
network = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 3, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(256, 1),
)
cross_entropy = nn.BCEWithLogitsLoss()
start_curve = train_network(
    network,
    torch.optim.Adam(network.parameters(), lr=3e-3),
    lambda seen, truth, index: cross_entropy(network(seen).squeeze(1), truth.float()),
    epochs=range(15),
)
start, continued = copy.deepcopy(network), copy.deepcopy(network)
print(f"cross entropy: TPAUC {max(start_curve):.3f} on validation pictures")

# %%
# Then the loss
# -------------
# ``previous`` is the network as it was one step ago. It sees the same pictures, and the
# loss corrects what it remembers by the difference; without ``gamma`` it is not needed.
# The bounded loss with standardized scores is what :doc:`/tpauc` advises for a network
# that already orders most pairs.

criterion = TPAUCLoss(
    train_labels,
    **REGION,
    surrogate="smooth_ramp",
    link="standardized",
    threshold_lr="quantile",
    gamma=0.1,
)
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
previous = PreviousIterate(network, optimizer)
curve = train_network(
    network,
    optimizer,
    lambda seen, truth, index: criterion(
        network(seen).squeeze(1), truth, index, previous(seen).squeeze(1)
    ),
    epochs=range(15, 60),
)

# %%
# To be fair, cross entropy gets the same 45 epochs, with the same learning rate.

continued_curve = train_network(
    continued,
    torch.optim.Adam(continued.parameters(), lr=1e-3),
    lambda seen, truth, index: cross_entropy(continued(seen).squeeze(1), truth.float()),
    epochs=range(15, 60),
)

# %%
# What came of it
# ---------------

# sphinx_gallery_thumbnail_number = 2
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
left.plot(range(16), start_curve, color="0.5", label="cross entropy")
left.plot(range(15, 61), continued_curve, color="C1", label="cross entropy, continued")
left.plot(range(15, 61), curve, color="C0", label="TPAUCLoss")
left.set(xlabel="epoch", ylabel="TPAUC of validation pictures")
left.legend(loc="lower right")
networks = {"before": start, "continued": continued, "TPAUCLoss": network}
with torch.no_grad():
    scores = {name: one(seen_test).squeeze(1) for name, one in networks.items()}
plot_roc_region(all_test_labels, scores, **REGION, ax=right)
plt.show()

# %%
# On the test pictures, and whether the difference is more than chance: the bootstrap
# draws digits, each with all of its pictures, and computes the difference of the two on
# them.

digits = np.arange(LOOKS * len(test)).reshape(LOOKS, -1)  # a column for each digit


def difference(truth: np.ndarray, drawn: np.ndarray) -> float:
    """Return the TPAUC of ``TPAUCLoss`` minus that of continued cross entropy."""
    rows = digits[:, drawn].flatten()
    ours, other = (
        tpauc_score(all_test_labels[rows], scores[name][rows], **REGION)
        for name in ("TPAUCLoss", "continued")
    )
    return ours - other


tpauc = {
    name: tpauc_score(all_test_labels, values, **REGION)
    for name, values in scores.items()
}
for name, value in tpauc.items():
    print(f"{name:10} TPAUC {value:.3f}")
interval = bootstrap_interval(
    difference, test_labels, np.arange(len(test)), resamples=500
)
print(f"TPAUCLoss - continued: {interval.estimate:+.3f}")
print(f"95 % interval {interval.low:+.3f} to {interval.high:+.3f}")

# sphinx_gallery_start_ignore
# what the text says, not shown on the page
assert min(tpauc["TPAUCLoss"], tpauc["continued"]) > tpauc["before"] + 0.02
assert interval.low < 0 < interval.high
assert max(curve) > curve[0] == max(start_curve)
# sphinx_gallery_end_ignore

# %%
# More training improved the network, and the two ways do not differ beyond chance. That
# was measured for other networks as well: cross entropy that is stopped at its best
# epoch is hard to beat, and the loss gained where a model could not fit its training
# rows (:doc:`/when_it_pays`). So compare on validation data, as here, and keep what is
# better.
#
# Where to read on
# ----------------
# :doc:`/tpauc` explains what to choose, most important first. :doc:`/training` has this
# loop ready-made, with model selection and checkpoints; :doc:`/sampling` shows it with
# a ``DataLoader``; :doc:`/performance` on a GPU.
