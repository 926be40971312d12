"""The model a run leaves, with all that scoring another table takes.

The file is a pickle: whoever made it decides what happens when it is read. Load only files of people you trust.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib  # type: ignore[import-untyped]
import numpy as np
import pandas as pd

from moreauc._files import written_whole
from moreauc.cli._group_table import GroupTarget
from moreauc.cli._levels import check_levels
from moreauc.cli._run_folder import MODEL
from moreauc.data.columns import Target, match_features
from moreauc.data.duplicates import Hashes
from moreauc.data.tables import TableError
from moreauc.data.tabular import TableEncoder
from moreauc.report.pages import versions


@dataclass(frozen=True)
class SavedModel:
    """A fitted classifier and the table it belongs to.

    Attributes:
        model: the classifier, fitted to labels 0 and 1.
        kinds: columns it was trained on, and whether they hold numbers or text.
        target: which column and value it predicts.
        min_tpr: region it was trained for.
        max_fpr: as `min_tpr`.
        versions: versions of what it was trained with.
        trained_on: hashes of the rows, or bags, that it was trained on.
    """

    model: Any
    kinds: dict[str, str]
    target: Target
    min_tpr: float
    max_fpr: float
    versions: dict[str, str]
    trained_on: Hashes

    def features(self, frame: pd.DataFrame, source: str) -> pd.DataFrame:
        """Return the columns of a table that the model takes."""
        return match_features(frame, self.kinds, source=source)

    def check_levels(self, features: pd.DataFrame, source: str) -> dict[str, float]:
        """Return the share of unknown levels of each text column; see :func:`moreauc.cli._levels.check_levels`."""
        return check_levels(self.model.preprocessor_, features, source)


@dataclass(frozen=True)
class SavedBagModel(SavedModel):
    """A fitted classifier of bags; `kinds` are the columns of its instances.

    Attributes:
        bags: column that names the bag of each row.
        encoder: turns rows into what the classifier takes.
    """

    bags: str
    encoder: TableEncoder

    def check_levels(self, features: pd.DataFrame, source: str) -> dict[str, float]:
        """Return the share of unknown levels of each text column; see :func:`moreauc.cli._levels.check_levels`."""
        return check_levels(self.encoder, features, source)


@dataclass(frozen=True)
class SavedGroupModel:
    """A fitted classifier or regressor of rows in groups, and the table it belongs to.

    Attributes:
        model: the classifier, fitted to classes as texts, or the regressor.
        kinds: columns it was trained on, and whether they hold numbers or text.
        target: what it predicts.
        groups: columns that name the group of a row; they need not be among `kinds`.
        versions: versions of what it was trained with.
        trained_on: hashes of the rows that it was trained on.
    """

    model: Any
    kinds: dict[str, str]
    target: GroupTarget
    groups: tuple[str, ...]
    versions: dict[str, str]
    trained_on: Hashes

    def features(self, frame: pd.DataFrame, source: str) -> pd.DataFrame:
        """Return the columns of a table that the model takes."""
        return match_features(frame, self.kinds, source=source)

    def check_levels(self, features: pd.DataFrame, source: str) -> dict[str, float]:
        """Return the share of unknown levels of each text column; see :func:`moreauc.cli._levels.check_levels`."""
        return check_levels(self.model.preprocessor_, features, source)


def save_model(
    folder: Path, model: Any, kinds: dict[str, str], target: Target, region: tuple[float, float], trained_on: Hashes
) -> None:
    """Write a fitted classifier into the folder of a run."""
    _write(folder, SavedModel(model, kinds, target, *region, versions(), trained_on))


def save_bag_model(
    folder: Path,
    model: Any,
    kinds: dict[str, str],
    target: Target,
    region: tuple[float, float],
    trained_on: Hashes,
    bags: str,
    encoder: TableEncoder,
) -> None:
    """Write a fitted classifier of bags into the folder of a run."""
    _write(folder, SavedBagModel(model, kinds, target, *region, versions(), trained_on, bags, encoder))


def save_group_model(
    folder: Path,
    model: Any,
    kinds: dict[str, str],
    target: GroupTarget,
    groups: tuple[str, ...],
    trained_on: Hashes,
) -> None:
    """Write a fitted model of rows in groups into the folder of a run."""
    _write(folder, SavedGroupModel(model, kinds, target, groups, versions(), trained_on))


def _write(folder: Path, saved: SavedModel | SavedGroupModel) -> None:
    with written_whole(folder / MODEL) as part:
        joblib.dump(saved, part, compress=3)


def load_model(run: Path) -> SavedModel | SavedGroupModel:
    """Read the model of a run.

    Raises:
        TableError: if the folder has none, or it cannot be read.
    """
    path = run / MODEL
    if not run.is_dir():
        raise TableError(f"{run}: no such folder; give the folder that `moreauc fit` wrote")
    if not path.is_file():
        raise TableError(f"{run}: holds no {MODEL}; give the folder that `moreauc fit` wrote")
    try:
        saved = joblib.load(path)
    except Exception as error:  # a pickle may raise anything
        raise TableError(f"{path}: the model cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(saved, SavedModel | SavedGroupModel):
        raise TableError(f"{path}: not a model of `moreauc fit`, got {type(saved).__name__}")
    if not hasattr(saved, "trained_on"):  # saved before these were kept
        object.__setattr__(saved, "trained_on", np.zeros(0, dtype=np.uint64))
    return saved
