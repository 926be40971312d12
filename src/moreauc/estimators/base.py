"""What all estimators share: arguments as attributes, their checks, tables as input."""

from __future__ import annotations

import functools
import inspect
from abc import abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar, dataclass_transform, get_type_hints

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.validation import check_consistent_length, validate_data

from moreauc._checks import NotFiniteError, check_count
from moreauc._registry import METHODS, TaskName
from moreauc.data.duplicates import Codes, number_equal
from moreauc.data.schema import TypedFrame, learn_frame, warn_of_doubts
from moreauc.data.tables import as_frame
from moreauc.data.tabular import check_exact
from moreauc.data.texts import check_apart
from moreauc.estimators.description import Description

Array = NDArray[Any]
Floats = NDArray[np.float64]
Random = int | np.random.RandomState | None

# Arguments that may change when a training is resumed from a checkpoint: the trained model does not depend on them.
FREE = frozenset({"device", "verbose", "chunk", "fpr_budget", "probabilities"})

Arguments = ParamSpec("Arguments")
Estimator = TypeVar("Estimator")
Result = TypeVar("Result")


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(field,))
@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(field,))
def with_arguments(kind: type[Estimator]) -> type[Estimator]:
    """Return an estimator whose constructor takes its fields and those of its bases, by name.

    The types of these arguments are resolved here, since each module knows only the names of its own ones.
    """
    made = dataclass(kw_only=True, eq=False, repr=False)(kind)
    known, types = get_type_hints(made), made.__init__.__annotations__
    types.update({name: known[name] for name in types if name in known})
    return made


def all_or_nothing(
    fit: Callable[Concatenate[Estimator, Arguments], Result],
) -> Callable[Concatenate[Estimator, Arguments], Result]:
    """Return a `fit` that restores all attributes if it fails or is interrupted.

    A generator given as `random_state` is put back, too, so that the same call draws the same again. `fit` must not
    modify the objects that attributes hold, only replace them. Warnings of `fit` need one more stack level.
    """

    @functools.wraps(fit)
    def fit_whole(self: Estimator, /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        before = dict(vars(self))
        source = before.get("random_state")
        drawn = source.get_state(legacy=False) if isinstance(source, np.random.RandomState) else {}
        try:
            return fit(self, *args, **options)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            if isinstance(source, np.random.RandomState):
                source.set_state(drawn)
            raise

    return fit_whole


class Scorer(BaseEstimator):  # type: ignore[misc]
    """Arguments kept as attributes, and the checks that every estimator makes."""

    _owner: str
    _task: ClassVar[TaskName | None] = None  # what the networks are trained for; None for other models

    def __init_subclass__(cls, **options: object) -> None:
        """Let errors name the leaf, and let its `help` show what its bases describe."""
        super().__init_subclass__(**options)
        cls._owner = cls.__name__
        bases = [inspect.getdoc(base) for base in cls.__bases__ if issubclass(base, Scorer) and base is not Scorer]
        own = cls.__dict__.get("__doc__")
        if own:  # there is none if Python runs without docstrings
            cls.__doc__ = "\n\n".join([inspect.cleandoc(own), *filter(None, bases)]) + "\n"

    @property
    def title(self) -> str:
        """The name in tables, that of the loss of a network, else that of the class."""
        return self._owner if self._task is None else METHODS[self._task][self.loss].title

    def settings(self) -> dict[str, object]:
        """Return the arguments that the trained model depends on, by which checkpoints and processes are compared."""
        return {name: value for name, value in self.get_params(deep=False).items() if name not in FREE}

    @abstractmethod
    def describe(self) -> Description:
        """Return what a page shows of the fitted estimator."""

    def _check_choices(self, **choices: Collection[str]) -> None:
        for name, allowed in choices.items():
            if getattr(self, name) not in tuple(allowed):  # which takes what cannot be hashed
                raise ValueError(f"{self._owner}: {name} must be one of {list(allowed)}, got {getattr(self, name)!r}")

    def _check_counts(self, *names: str, minimum: int = 1) -> None:
        for name in names:
            check_count(self._owner, name, getattr(self, name), minimum=minimum)

    def _check_known(self, values: Array) -> None:
        """Check that later targets have the classes of `fit`."""
        strange = values[~np.isin(values, self.classes_)]
        if len(strange):
            raise ValueError(
                f"{self._owner}: y must hold the classes {self.classes_.tolist()}, got {strange[:1].tolist()}"
            )


def check_scores(owner: str, scores: Array, *, data: str = "X") -> Array:
    """Return scores, which must be finite; `data` is what the estimator calls its input."""
    if not np.isfinite(scores).all():
        raise NotFiniteError(
            f"{owner}: the model gave scores that are not finite; {data} may lie far outside what it was fitted on"
        )
    return scores


def check_table(estimator: Scorer, X: object, *, reset: bool, stacklevel: int = 4) -> Any:
    """Return a table to check: a sparse matrix as CSR, anything but a DataFrame as a float array without infinity.

    With `reset` number and names of features are set, otherwise they must be those of `fit`; and the columns of a
    DataFrame are learnt, once: a :class:`~moreauc.data.schema.TypedFrame` is known.
    """
    owner, kinds = estimator._owner, [np.float64, np.float32]
    X = as_frame(owner, X)
    if issparse(X):
        return validate_data(estimator, X, reset=reset, dtype=kinds, accept_sparse="csr")
    if not isinstance(X, pd.DataFrame):
        if reset and isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "iuO":
            check_exact(owner, pd.DataFrame(X))
        return validate_data(estimator, X, reset=reset, dtype=kinds, ensure_all_finite="allow-nan")
    validate_data(estimator, X, reset=reset, skip_check_array=True)
    if 0 in X.shape:
        raise ValueError(f"{owner}: X must have at least one row and one column, got shape {X.shape}")
    if not reset or isinstance(X, TypedFrame):
        return X
    table = learn_frame(owner, X)
    warn_of_doubts(owner, table.schema, stacklevel=stacklevel)
    return table


def check_targets(owner: str, X: object, y: ArrayLike) -> Array:
    """Return one target for each row of a table, none of them missing."""
    values: Array = column_or_1d(y, warn=True)
    assert_all_finite(values, input_name="y", estimator_name=owner)
    _check_present(owner, "y", values)
    check_consistent_length(X, values)
    check_apart(owner, "y", pd.unique(values))
    return values


def check_groups(owner: str, X: object, groups: ArrayLike) -> Codes:
    """Return a number for the group of each row of a table, none of them missing."""
    values = column_or_1d(groups)
    _check_present(owner, "groups", values)
    check_consistent_length(X, values)
    return number_equal(values)


def _check_present(owner: str, name: str, values: Array) -> None:
    missing = int(pd.isna(values).sum())
    if missing:
        raise ValueError(f"{owner}: {name} must have no missing values, got {missing}")
