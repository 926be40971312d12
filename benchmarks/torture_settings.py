"""Other settings are refused: every option of every loss and estimator, found by the signatures of their constructors.

A checkpoint is made with the settings of a base; then each option gets other values, and each of them must be refused
when the checkpoint is to go on. Values are derived from an option's type, default and literal choices. `OTHERS` has
those of options that take anything but numbers, flags and choices; an option with neither is an error, so that a new
one cannot be forgotten. Options that may differ (`moreauc.estimators.base.FREE`) must go on.
"""

from __future__ import annotations

import inspect
import tempfile
import typing
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

import experiments.models.side_by_side  # noqa: F401 (classes are found among those that are loaded)
import moreauc.estimators
from moreauc.checkpoint import CheckpointError, RunState, load_checkpoint, save_checkpoint
from moreauc.core.surrogates import _SURROGATES
from moreauc.criteria import AUCMinMaxLoss, CrossEntropyLoss, GroupDROLoss, GroupERMLoss, SampleCVaRLoss
from moreauc.distributed.agreement import fingerprint
from moreauc.estimators.base import FREE
from moreauc.methods import METHODS
from moreauc.models import MLP

LABELS = [1, 0, 0, 1, 0, 0]
GROUPS = [0, 1, 2, 0, 1, 2]
DATA = ("labels", "groups", "group_sizes", "sample_weight")  # options that are data: `repr` does not show them


def outer(u: Tensor, index: Tensor) -> Tensor:
    """Return the outer function of the bases."""
    return u.reshape(len(index), -1).square().sum(1)


def other_outer(u: Tensor, index: Tensor) -> Tensor:
    """Return another one."""
    return u.reshape(len(index), -1).relu().sum(1)


def middle(v: Tensor, index: Tensor) -> Tensor:
    """Return the middle function of the bases."""
    return v.square()


# Arguments without a default that are no plain number, which is 0.5; and what makes a training short and repeatable.
BASE: dict[str, Any] = {
    **{"labels": LABELS, "groups": GROUPS, "num_groups": 3, "num_blocks": 6, "num_outer": 3, "num_inner": 2},
    **{"num_constraints": 6, "top_k": 2, "pooling": "smoothed_max", "outer": outer, "middle": middle},
    **{"PooledLoss.criterion": CrossEntropyLoss(LABELS), "GroupedLoss.criterion": GroupERMLoss(3)},
    **{"SideBySideLoss.criteria": [CrossEntropyLoss(LABELS)], "epochs": 1, "random_state": 0, "samples_per_group": 4},
}
# Second bases, of options that mean nothing in the first.
MORE_BASES: dict[str, dict[str, Any]] = {"GroupERMLoss": {"group_sizes": [2, 2, 2]}}

# Values that cannot be derived, by option or by class and option.
OTHERS: dict[str, Sequence[Any]] = {
    "labels": [[0, 1, 0, 1, 0, 0]],
    "sample_weight": [[1.0, 2.0, 3.0, 1.0, 1.0, 2.0]],
    "groups": [[1, 0, 2, 0, 1, 2]],
    "group_sizes": [[1, 2, 3]],
    "surrogate": list(_SURROGATES),
    "outer": [other_outer, nn.Softplus(), nn.Softplus(beta=2)],
    "middle": [torch.abs, nn.Tanh()],
    "prox": [torch.abs, other_outer],
    "initial": [0.25, torch.linspace(0.0, 1.0, 6)[:, None]],
    "positive_label": [0],
    "TPAUCClassifier.start": [None],
    "PooledLoss.criterion": [CrossEntropyLoss(LABELS, positive_weight=2.0), AUCMinMaxLoss(LABELS)],
    "GroupedLoss.criterion": [SampleCVaRLoss(fraction=0.5), GroupDROLoss(3, top_k=1), GroupDROLoss(3, top_k=2)],
    "SideBySideLoss.criteria": [[CrossEntropyLoss(LABELS, positive_weight=2.0)], [CrossEntropyLoss(LABELS)] * 2],
    "TPAUCClassifier.loss": list(METHODS["rows"]),
    "TPAUCClassifier.module": ["linear", MLP, nn.Linear(3, 1)],
    "MultiInstanceClassifier.loss": list(METHODS["bags"]),
    "GroupDROClassifier.loss": list(METHODS["groups"]),
    "GroupDRORegressor.loss": list(METHODS["groups"]),
    "MultiInstanceClassifier.module": [partial(nn.Linear, out_features=2), nn.Linear(3, 2)],
    "module": [nn.Linear, nn.Linear(3, 1)],
    "TPAUCClassifier.loss_options": [{"surrogate": "logistic"}, {"gamma": 0.1}, {"widen": 0.5}],
    "loss_options": [{"tau": 0.5}, {"gamma": 0.1}],
    "device": ["cpu:0", torch.device("cpu")],
}


@dataclass
class Count:
    """Counts of the options of one class.

    Attributes:
        name: of the class.
        options: how many options had at least one other value.
        refused: other values that were refused.
        free: other values of options that may differ, and that went on.
        problems: failed expectations, as texts.
    """

    name: str
    options: int = 0
    refused: int = 0
    free: int = 0
    problems: list[str] = field(default_factory=list)


def losses() -> list[type[nn.Module]]:
    """Return all public losses."""
    return sorted(
        (kind for kind in _kinds(nn.Module) if kind.__name__.endswith("Loss")), key=lambda kind: kind.__name__
    )


def estimators() -> list[type[Any]]:
    """Return all estimators whose training can be saved."""
    public = [getattr(moreauc.estimators, name) for name in moreauc.estimators.__all__]
    kinds = [kind for kind in public if issubclass(kind, BaseEstimator)]
    found = [kind for kind in kinds if "checkpoint" in inspect.signature(kind.fit).parameters]
    return sorted(found, key=lambda kind: str(kind.__name__))


def _kinds(base: type[Any]) -> Iterator[Any]:
    """Yield the public classes of public modules of the library that are derived from another."""
    for kind in base.__subclasses__():
        place = kind.__module__
        if place.startswith(("moreauc.", "experiments.")) and not kind.__name__.startswith("_") and "._" not in place:
            yield kind
        yield from _kinds(kind)


def base_value(kind: type[Any], option: str) -> Any:
    """Return the value of an option that the others are compared with."""
    default = inspect.signature(kind).parameters[option].default
    known = BASE.get(f"{kind.__name__}.{option}", BASE.get(option, default))
    if known is inspect.Parameter.empty and float in _hints(kind)[option]:
        return 0.5
    return known


def other_values(kind: type[Any], option: str, value: Any) -> list[Any]:
    """Return values of an option that are not the one given.

    Raises:
        RuntimeError: where none can be derived and none is known.
    """
    known = OTHERS.get(f"{kind.__name__}.{option}", OTHERS.get(option))
    if known is not None:
        return [entry for entry in known if isinstance(entry, Tensor) or entry != value]
    found = [other for hint in _hints(kind)[option] for other in _derived(hint, value)]
    if not found:
        raise RuntimeError(f"{kind.__name__}: no other value of {option!r} is known; add one to OTHERS")
    return found


def _hints(kind: type[Any]) -> dict[str, list[Any]]:
    """Return the types that each argument of a constructor may have."""
    return {name: list(_alternatives(hint)) for name, hint in typing.get_type_hints(kind.__init__).items()}


def _alternatives(hint: Any) -> Iterator[Any]:
    if isinstance(hint, type) or typing.get_origin(hint) in (typing.Literal, tuple):
        yield hint
    else:
        for part in typing.get_args(hint):
            yield from _alternatives(part)


def _derived(hint: Any, value: Any) -> Iterator[Any]:
    """Yield other values of one type, near a value."""
    if typing.get_origin(hint) is typing.Literal:
        yield from (choice for choice in typing.get_args(hint) if choice != value)
    elif hint is bool:
        yield not value
    elif hint is int:
        yield value + 1 if isinstance(value, int) else 3
    elif hint is float and type(value) is int:
        yield value + 1
    elif hint is float:
        yield value / 2 if isinstance(value, float) and value else 0.25
    elif typing.get_origin(hint) is tuple and isinstance(value, tuple):
        yield (*value[:-1], *_derived(type(value[-1]), value[-1]))


def try_loss(kind: type[nn.Module]) -> Count:
    """Try other settings of a loss."""
    return _try(kind, _LossTrial)


def try_estimator(kind: type[Any]) -> Count:
    """Try other settings of an estimator."""
    return _try(kind, _EstimatorTrial)


def try_all() -> dict[str, Any]:
    """Try other settings of all losses and estimators; return the numbers of a report."""
    return summary([*map(try_loss, losses()), *map(try_estimator, estimators())])


def _try(kind: type[Any], trial: Callable[[type[Any], dict[str, Any]], Any]) -> Count:
    count, tried = Count(kind.__name__), set()
    parameters = inspect.signature(kind).parameters
    for more in ({}, *([MORE_BASES[kind.__name__]] if kind.__name__ in MORE_BASES else [])):
        base = {**{name: base_value(kind, name) for name in parameters}, **more}
        with trial(kind, base) as one:
            if (problem := one.problem(base, free=True)) is not None:
                count.problems.append(f"{kind.__name__}: equal settings: {problem}")
            for option in parameters:
                for value in other_values(kind, option, base.get(option)):
                    try:
                        problem = one.problem({**base, option: value}, free=option in FREE, option=option)
                    except (ValueError, TypeError):  # not a value that the class takes
                        continue
                    tried.add(option)
                    if problem is not None:
                        count.problems.append(f"{kind.__name__}({option}={value!r}): {problem}")
                    elif option in FREE:
                        count.free += 1
                    else:
                        count.refused += 1
    count.options = len(tried)
    for option in parameters.keys() - tried:
        count.problems.append(f"{kind.__name__}: no other value of {option!r} is allowed")
    return count


class _LossTrial:
    """A checkpoint of a loss, in a run with a schedule, and whether it resumes with other settings."""

    def __init__(self, kind: type[nn.Module], base: dict[str, Any]) -> None:
        self._kind = kind
        self._loss, scheduled = kind(**base), kind(**base)
        run = self._run(scheduled)
        for option in base:
            if isinstance(getattr(scheduled, option, None), float) and hasattr(getattr(kind, option, None), "fset"):
                setattr(scheduled, option, 0.75 * getattr(scheduled, option))
        with tempfile.TemporaryDirectory() as folder:
            save_checkpoint(Path(folder) / "one.checkpoint", run.state_dict())
            self._saved = load_checkpoint(Path(folder) / "one.checkpoint")

    def __enter__(self) -> _LossTrial:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def problem(self, options: dict[str, Any], *, free: bool, option: str = "") -> str | None:
        """Return a failed expectation: a resumed run that must be refused, or the other way round."""
        other = self._kind(**options)
        seen = {"processes take it for the same": fingerprint(other) != fingerprint(self._loss)}
        if option not in DATA:
            seen["repr is the same"] = repr(other) != repr(self._loss)
        for text, differs in seen.items():
            if differs == free:
                return text if not free else f"not: {text}"
        return _outcome(lambda: self._run(other).load_state_dict(self._saved), free=free)

    def _run(self, loss: nn.Module) -> RunState:
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        return RunState(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), range(3))


class _EstimatorTrial:
    """A finished training of an estimator, and whether it goes on with other arguments."""

    def __init__(self, kind: type[Any], base: dict[str, Any]) -> None:
        self._kind = kind
        random, rows = np.random.default_rng(0), 36
        self._classes = np.arange(rows) % 3 // 2
        table = random.normal(size=(rows, 3)) + self._classes[:, None]
        named = inspect.signature(kind.fit).parameters
        self._data: dict[str, Any] = {"bags": list(table[:, None])} if "bags" in named else {"X": table}
        self._data["y"] = self._classes if "Classifier" in kind.__name__ else table[:, 0] + 0.1 * self._classes
        if "groups" in named:
            self._data["groups"] = np.arange(rows) % 4
        self._folder = tempfile.TemporaryDirectory()
        self._fit(base)

    def __enter__(self) -> _EstimatorTrial:
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.cleanup()

    def problem(self, options: dict[str, Any], *, free: bool, option: str = "") -> str | None:
        """Return a failed expectation; a refusal must leave the files unchanged."""
        files = self._files()
        problem = _outcome(lambda: self._fit(options), free=free, names=option)
        return "the files have changed" if problem is None and self._files() != files else problem

    def _fit(self, options: dict[str, Any]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of so few rows
            self._kind(**options).fit(**self._data, checkpoint=self._folder.name)

    def _files(self) -> dict[str, bytes]:
        files = (path for path in Path(self._folder.name).rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in files}


def _outcome(action: Callable[[], None], *, free: bool, names: str = "") -> str | None:
    """Return what is wrong with what an action does: go on if allowed, or raise an error that names the option."""
    try:
        action()
    except CheckpointError as error:
        if free:
            return f"refused: {error}"
        return None if names in str(error) else f"refused without its name: {error}"
    return None if free else "went on"


def summary(counts: Sequence[Count]) -> dict[str, Any]:
    """Return the numbers of a report."""
    return {
        "classes": len(counts),
        "options": sum(count.options for count in counts),
        "values_refused": sum(count.refused for count in counts),
        "values_that_may_differ": sum(count.free for count in counts),
        "problems": [problem for count in counts for problem in count.problems],
        "by_class": {c.name: {"options": c.options, "refused": c.refused, "may_differ": c.free} for c in counts},
    }
