"""Tables of rows with two classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd

from moreauc.data.columns import match_target, split_target
from moreauc.tasks.tables import Array, Table, read_features, read_matching
from moreauc.tasks.two_classes import TwoClassTask


@dataclass(frozen=True)
class RowTableTask(TwoClassTask[Table]):
    """A table whose rows are classified."""

    name = "rows"
    default = "sonx"
    baseline = "ce"

    @classmethod
    def read(cls, frame: pd.DataFrame, options: Any, *, source: str) -> tuple[Self, Table]:
        rest, labels, target = split_target(frame, options.target, positive=options.positive, source=source)
        features, kinds = read_features(rest, options.drop, source)
        return cls(kinds, target, options.min_tpr, options.max_fpr), Table(features, labels)

    def match(self, frame: pd.DataFrame, *, source: str, labelled: bool = True) -> Table:
        labels: Array = np.zeros(len(frame), dtype=np.int64)
        if labelled:
            _, labels = match_target(frame, self.target, source=source)
            self.check_test(labels, source)
        return Table(read_matching(self, frame, source), labels)

    def names(self, table: Table) -> Array:
        return np.arange(1, len(table) + 1)
