from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from experiments.data import keel
from experiments.data.keel import KEEL_SETS, load_keel


def write_set(folder: Path, rows: int = 120, positives: int = 24, end: str = "positive") -> None:
    """A table in KEEL's form: a level, two numbers, a constant, the class."""
    random = np.random.default_rng(0)
    lines = []
    for row in range(rows):
        hit = row < positives
        numbers = random.normal(size=2) + 2 * hit
        lines.append(f"{'M' if row % 3 else 'F'}, {numbers[0]:.3f}, {numbers[1]:.3f}, 7, {end if hit else 'negative'}")
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / "yeast5.dat.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")


@pytest.fixture
def small(monkeypatch, tmp_path):
    monkeypatch.setitem(keel.KEEL_SETS, "yeast5", (120, 24))
    monkeypatch.delenv("MOREAUC_DATA", raising=False)
    write_set(tmp_path / "keel_imbalanced")
    return tmp_path


def test_a_table_has_levels_numbers_and_no_constant_column(small):
    X, y = load_keel("yeast5", small)
    assert X.shape == (120, 3) and int(y.sum()) == 24
    assert [str(kind) for kind in X.dtypes] == ["category", "float64", "float64"]
    again, _ = load_keel("yeast5", small / "keel_imbalanced")
    assert again.equals(X)


def test_wrong_names_and_files(small):
    with pytest.raises(ValueError, match=r"name must be one of abalone.*, got 'iris'"):
        load_keel("iris", small)
    with pytest.raises(ValueError, match=r"the folder must have vowel0.dat or vowel0.dat.gz"):
        load_keel("vowel0", small)
    write_set(small / "keel_imbalanced", positives=23)
    with pytest.raises(ValueError, match=r"yeast5 must have \(120, 24\) rows and positives, got \(120, 23\)"):
        load_keel("yeast5", small)
    write_set(small / "keel_imbalanced", end="maybe")
    with pytest.raises(ValueError, match="yeast5 must have"):
        load_keel("yeast5", small)


def test_the_real_tables_have_the_published_counts():
    """Runs on the real files where MOREAUC_DATA has them; CI sets it."""
    folder = os.environ.get("MOREAUC_DATA")
    if folder and (Path(folder) / "keel_imbalanced").is_dir():
        for name, counts in KEEL_SETS.items():
            X, y = load_keel(name)
            assert (len(X), int(y.sum())) == counts
    assert len(KEEL_SETS) == 6
