"""A `fit` that fails leaves the estimator as it was."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

Arguments = ParamSpec("Arguments")
Estimator = TypeVar("Estimator")
Result = TypeVar("Result")


def all_or_nothing(
    fit: Callable[Concatenate[Estimator, Arguments], Result],
) -> Callable[Concatenate[Estimator, Arguments], Result]:
    """Return a `fit` after whose failure, an interrupt included, all attributes are those that were there before.

    A generator given as `random_state` is put back, too, so that the same call draws the same again. `fit` must not
    change what attributes hold, only set them anew. In a warning `fit` has one more caller than it seems.
    """

    @functools.wraps(fit)
    def fit_whole(self: Estimator, /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        before: dict[str, Any] = dict(vars(self))
        source = before.get("random_state")
        drawn: Any = source.get_state() if isinstance(source, np.random.RandomState) else None
        try:
            return fit(self, *args, **options)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            if isinstance(source, np.random.RandomState):
                source.set_state(drawn)
            raise

    return fit_whole
