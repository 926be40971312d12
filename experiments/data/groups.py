"""Two public tables whose rows belong to groups: Adult and COMPAS.

References: Kohavi, Scaling Up the Accuracy of Naive-Bayes Classifiers, 1996 (Adult: does a person earn more than 50 000
dollars?); Larson, Mattu, Kirchner and Angwin, How We Analyzed the COMPAS Recidivism Algorithm, ProPublica, 2016.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.data.download import find_file
from moreauc.data.examples import GroupData

Rows = NDArray[np.int64]

# rows and positives of each file, checked when it is read
GROUP_SETS = {"adult.data": (32561, 7841), "adult.test": (16281, 3846), "compas-scores-two-years.csv": (7214, 3251)}

_ADULT_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"),
    *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"),
)
_ADULT_RACES = ("Amer-Indian-Eskimo", "Asian-Pac-Islander", "Black", "Other", "White")
_ADULT_GROUPS = [f"{race}, {sex}" for race in _ADULT_RACES for sex in ("Female", "Male")]
_COMPAS_COUNTS = ["juv_fel_count", "juv_misd_count", "juv_other_count", "priors_count"]
_COMPAS_COLUMNS = ["age", "sex", *_COMPAS_COUNTS, "c_charge_degree"]
_COMPAS_GROUPS = ["African-American", "Asian", "Caucasian", "Hispanic", "Native American", "Other"]


def load_adult(folder: Path | None = None) -> GroupData:
    """Return Adult: does a person of the census of 1994 earn more than 50 000 dollars? Ten groups by race and sex.

    The rows are those of adult.data, then those of adult.test. Race and sex are left out of X, though other columns
    tell of them still (a husband's sex); the other 12 columns are kept, `fnlwgt` too, which is a weight of the survey,
    not a property of the person. Texts become categories, and `?` a missing value. Groups are numbered by name.

    Args:
        folder: folder that has `adult.data` or `adult.data.gz` (and the same of `adult.test`), or a subfolder `groups`
            with them; None for MOREAUC_DATA or a download.
    """
    names = ("adult.data", "adult.test")
    places = {name: find_file("load_adult", name, folder) for name in names}
    table = pd.concat([_adult_table(place, name) for name, place in places.items()], ignore_index=True)
    labels = (table.pop("income") == ">50K").to_numpy().astype(np.int64)
    groups = _numbers("load_adult", table["race"].astype(str) + ", " + table["sex"].astype(str), _ADULT_GROUPS)
    return GroupData(_with_categories(table.drop(columns=["race", "sex"])), labels, groups, _ADULT_GROUPS)


def load_compas(folder: Path | None = None) -> GroupData:
    """Return COMPAS: was a defendant charged again within two years of the screening? Six groups by race.

    X has what was known at the screening: age, sex, juvenile felonies, misdemeanours and other offences, prior
    offences, and the degree of the charge. The scores of COMPAS, which are another's prediction, and everything after
    the screening (custody, later charges, `is_recid`, `start`, `end`, `event`), which is the label in disguise, are
    left out; so are dates and texts. Race is in `groups` only.

    All 7214 rows of the file are there, without ProPublica's further filters. The file has a known flaw: every one of
    its 998 rows screened after 1 April 2014 is positive, against 36 % before, since the two years of the others were
    not over (Barenstein, ProPublica's COMPAS Data Revisited, 2019). Rates of recidivism are too high for that reason.

    The file is `compas-scores-two-years.csv` or the `.csv.gz`; arguments and errors are those of :func:`load_adult`.
    """
    name = "compas-scores-two-years.csv"
    table = pd.read_csv(find_file("load_compas", name, folder))
    missing = {*_COMPAS_COLUMNS, "race", "two_year_recid"} - set(table.columns)
    if missing:
        raise ValueError(f"load_compas: {name} must have the columns of the set, got none named {sorted(missing)}")
    _check_counts("load_compas", name, table["two_year_recid"], negative=0, positive=1)
    labels = table["two_year_recid"].to_numpy().astype(np.int64)
    groups = _numbers("load_compas", table["race"], _COMPAS_GROUPS)
    return GroupData(_with_categories(table[_COMPAS_COLUMNS]), labels, groups, _COMPAS_GROUPS)


def _adult_table(place: Path, name: str) -> pd.DataFrame:
    first = int(name == "adult.test")  # its first line is a remark
    table = pd.read_csv(place, header=None, skiprows=first, skipinitialspace=True, na_values="?")
    if table.shape[1] != len(_ADULT_COLUMNS) + 1:
        raise ValueError(f"load_adult: {name} must have {len(_ADULT_COLUMNS) + 1} columns, got {table.shape[1]}")
    table.columns = [*_ADULT_COLUMNS, "income"]
    table["income"] = table["income"].astype(str).str.removesuffix(".")  # the labels of the test part end in one
    _check_counts("load_adult", name, table["income"], negative="<=50K", positive=">50K")
    return table


def _check_counts(owner: str, name: str, labels: pd.Series, *, negative: object, positive: object) -> None:
    counts = (len(labels), int((labels == positive).sum()))
    if counts != GROUP_SETS[name] or not labels.isin([negative, positive]).all():
        raise ValueError(f"{owner}: {name} must have {GROUP_SETS[name]} rows and positives, got {counts}")


def _numbers(owner: str, column: pd.Series, names: list[str]) -> Rows:
    numbers: Rows = pd.Index(names).get_indexer(column).astype(np.int64)  # -1 for an unknown one
    if (numbers < 0).any():
        strange = column[numbers < 0].iloc[0]
        raise ValueError(f"{owner}: the group of a row must be one of {'; '.join(names)}, got {strange!r}")
    return numbers


def _with_categories(table: pd.DataFrame) -> pd.DataFrame:
    texts = [name for name in table if not pd.api.types.is_numeric_dtype(table[name])]
    return table.astype(dict.fromkeys(texts, "category"))
