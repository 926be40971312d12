"""What the estimators share: checks of arguments, tables and targets, the module, what the loop is told, scores.

The messages name their owner, as everywhere; the estimators keep what is their own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.validation import check_consistent_length, validate_data
from torch import Tensor, nn

from moreauc._checks import check_count, check_real
from moreauc.data import TensorBatches
from moreauc.data._normal_form import check_apart
from moreauc.data.tabular import check_exact
from moreauc.train import predict_scores

Array = NDArray[Any]

CHUNK = 4096  # rows of a table scored at once

# Arguments that a training which goes on from a checkpoint may have otherwise: the trained model does not depend on
# where and how loudly it is trained and how many instances are scored at once, and what is decided by its scores is
# chosen after the training.
FREE = frozenset({"device", "verbose", "chunk", "fpr_budget", "probabilities"})


def check_choices(owner: str, estimator: Any, choices: Mapping[str, Collection[str]]) -> None:
    """Check that arguments of an estimator are among what they may be."""
    for name, allowed in choices.items():
        if getattr(estimator, name) not in allowed:
            raise ValueError(f"{owner}: {name} must be one of {list(allowed)}, got {getattr(estimator, name)!r}")


def check_options(owner: str, name: str, options: Any, *, taken: Collection[str]) -> dict[str, Any]:
    """Return keyword arguments of a loss as a dictionary of their own; `taken` are those that the estimator gives."""
    if options is not None and not isinstance(options, Mapping):
        raise ValueError(f"{owner}: {name} must be a dictionary or None, got {options!r}")
    for key in options or {}:
        if not isinstance(key, str) or key in taken:
            raise ValueError(f"{owner}: {name} must not hold {key!r}, which is given elsewhere or no name")
    return dict(options or {})


def check_module(owner: str, module: Any) -> None:
    """Check that a module is one, a function that makes one, or None for the estimator's own."""
    if module is not None and not callable(module):
        raise ValueError(f"{owner}: module must be None, a module or a function that makes one, got {module!r}")


def check_training(owner: str, estimator: Any) -> None:
    """Check what is held out, the patience with it, and the device."""
    check_real(owner, "validation_fraction", estimator.validation_fraction, low=0.0, high=1.0, high_open=True)
    if estimator.patience is not None:
        check_count(owner, "patience", estimator.patience)
    try:
        torch.empty(0, device=estimator.device)
    except (AssertionError, RuntimeError, TypeError) as error:
        raise ValueError(f"{owner}: device must be one that torch has here, got {estimator.device!r}") from error


def check_table(owner: str, estimator: BaseEstimator, X: Any, *, reset: bool) -> Any:
    """Return a DataFrame as it is and anything else as a float array without infinity."""
    if not isinstance(X, pd.DataFrame):
        if reset and isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "iuO":
            check_exact(owner, pd.DataFrame(X))
        kinds = [np.float64, np.float32]
        return validate_data(estimator, X, reset=reset, dtype=kinds, ensure_all_finite="allow-nan")
    validate_data(estimator, X, reset=reset, skip_check_array=True)
    if 0 in X.shape:
        raise ValueError(f"{owner}: X must have at least one row and one column, got shape {X.shape}")
    return X


def check_targets(owner: str, X: Any, y: ArrayLike) -> Array:
    """Return one target for each row of a table, none of them missing."""
    values: Array = column_or_1d(y, warn=True)
    assert_all_finite(values, input_name="y", estimator_name=owner)
    if pd.isna(values).any():
        raise ValueError(f"{owner}: y must have no missing values, got {int(pd.isna(values).sum())}")
    check_consistent_length(X, values)
    check_apart(owner, "y", values)
    return values


def check_label(owner: str, classes: Array, label: Any) -> Any:
    """Return the class to find: the label, which must be one of the classes, or the second of them for None."""
    found = classes[1] if label is None else label
    if found not in classes.tolist():
        raise ValueError(f"{owner}: positive_label must be one of {classes.tolist()}, got {found!r}")
    return found


def check_known(owner: str, values: Array, classes: Array) -> None:
    """Check that targets which come after `fit` are of its classes."""
    strange = values[~np.isin(values, classes)]
    if len(strange):
        raise ValueError(f"{owner}: y must hold the classes {classes.tolist()}, got {strange[:1].tolist()}")


def make_module(
    owner: str, module: nn.Module | Callable[..., Any], *sizes: int, seed: int, fitted: nn.Module | None = None
) -> nn.Module:
    """Return a copy of a module, or what a function makes of the sizes, its weights drawn by the seed.

    A function that gives weights of the `fitted` module again has its result copied: if the new training fails, the
    old model must be as before.
    """
    if isinstance(module, nn.Module):
        return copy.deepcopy(module)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = module(*sizes)
    if not isinstance(made, nn.Module):
        raise ValueError(f"{owner}: module must make a torch module, got {type(made).__name__}")
    own = set() if fitted is None else {id(tensor) for tensor in (*fitted.parameters(), *fitted.buffers())}
    shared = any(id(tensor) in own for tensor in (*made.parameters(), *made.buffers()))
    return copy.deepcopy(made) if shared else made


def training_arguments(estimator: Any, *, held: Array, seed: int) -> dict[str, Any]:
    """Return what :func:`moreauc.train.fit` is told by every estimator; `held` are the numbers of what is held out."""
    return {
        "epochs": estimator.epochs,
        "optimizer": estimator.optimizer,
        "lr": estimator.lr,
        "weight_decay": estimator.weight_decay,
        "patience": estimator.patience if len(held) else None,
        "seed": seed,
        "device": estimator.device,
        "progress": bool(estimator.verbose),
        "settings": {f"{type(estimator).__name__}.{name}": value for name, value in compared_settings(estimator)},
    }


def compared_settings(estimator: BaseEstimator) -> list[tuple[str, Any]]:
    """Return the arguments of an estimator that a training which goes on from a checkpoint must have, by name."""
    return [(name, value) for name, value in estimator.get_params(deep=False).items() if name not in FREE]


def table_scores(owner: str, model: nn.Module, inputs: Tensor) -> Array:
    """Return the raw scores of the rows of a table, shape `(n,)` or `(n, outputs)`."""
    batches = TensorBatches(inputs, torch.zeros(len(inputs), dtype=torch.long), batch_size=CHUNK)
    return check_scores(owner, predict_scores(model, batches)[0].numpy(), giver="model", data="X")


def check_scores(owner: str, scores: Array, *, giver: str, data: str) -> Array:
    """Return scores, which must be finite; `giver` and `data` are what the estimator calls its network and input."""
    if not np.isfinite(scores).all():
        raise ValueError(
            f"{owner}: the {giver} gave scores that are not finite; {data} may lie far outside what it was fitted on"
        )
    return scores
