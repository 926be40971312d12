"""Rows whose only feature is a molecule: read from SMILES, split by scaffolds, reported as chemists look at them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
from pandas.util import hash_array
from scipy.sparse import csr_array

from moreauc.app.molecules import SmilesFingerprints, with_progress
from moreauc.app.report.molecules import HEADS, molecule_sections, screening, screening_row
from moreauc.app.smiles import CHUNK, Chunk, InvalidSmiles, Morgan, read_chunks, stack
from moreauc.app.tables.base import Cells, Inputs, Scorer, Sections, Split, Table, Tested, TwoClassModel
from moreauc.app.tables.rows import Evaluation, RowTableTask, draw_test_rows
from moreauc.app.tables.targets import check_present, split_target
from moreauc.data.duplicates import Hashes
from moreauc.data.schema import Schema
from moreauc.data.tables import TableError, list_names
from moreauc.data.texts import normal_text
from moreauc.tasks.base import Array

if TYPE_CHECKING:
    from moreauc.app.cli.options import FitOptions

CHOICES = {"split": ("scaffold", "random"), "invalid": ("error", "skip")}
_COMMON = 0.1  # share of the test part above which a scaffold is not tested on


@dataclass(frozen=True)
class MoleculeTable(Table):
    """Molecules; `features` has no columns, its index is the row of the file."""

    smiles: Array  # as the file has them
    fingerprints: csr_array  # one row for each molecule
    canonical: Array  # canonical SMILES without salts
    scaffolds: Array  # rings and what joins them
    skipped: str = ""  # what was left out, in words; "" for nothing

    def part(self, numbers: Array) -> Self:
        names = ("smiles", "fingerprints", "canonical", "scaffolds")
        return replace(super().part(numbers), **{name: getattr(self, name)[numbers] for name in names})

    @property
    def notes(self) -> tuple[str, ...]:
        return (self.skipped,) if self.skipped else ()

    def hashes(self) -> Hashes:
        """Return a hash of each canonical SMILES."""
        hashes: Hashes = hash_array(self.canonical)
        return hashes


@dataclass(frozen=True)
class MoleculeTableTask(RowTableTask):
    """A table whose molecules are classified by their fingerprints; other columns are not used."""

    unit = "molecules"

    smiles: str = field(default="smiles", kw_only=True)  # the column
    morgan: Morgan = field(default_factory=SmilesFingerprints().settings, kw_only=True)
    split: str = field(default="scaffold", kw_only=True)  # what stays on one side: scaffolds, or equal molecules
    invalid: str = field(default="error", kw_only=True)  # what to do with rows that hold no molecule
    jobs: int = field(default=1, kw_only=True)  # processes that read molecules
    unused: tuple[str, ...] = field(default=(), kw_only=True)  # the other columns

    @classmethod
    def read(cls, frame: pd.DataFrame, options: FitOptions, *, source: str) -> tuple[Self, MoleculeTable]:
        rest, labels, target = split_target(frame, options.target, positive=options.positive, source=source)
        identity = None if options.id is None else normal_text(options.id)
        if identity is not None:
            check_present(rest, identity, "id column", source)
        column = normal_text(str(options.smiles))
        task = cls(
            Schema(),
            target,
            *options.region,
            fpr_budget=options.fpr_budget,
            id_column=identity,
            smiles=column,
            split=options.split or "scaffold",
            unused=tuple(name for name in rest if name not in (column, identity)),
        ).reading(None, options.invalid, options.jobs)
        return task, task._read(rest, labels, source)

    def reading(self, column: str | None, invalid: str | None, jobs: int | None) -> Self:
        """Return the task for another table: with another column, other rows to refuse, more processes."""
        if invalid is not None and invalid not in CHOICES["invalid"]:
            raise ValueError(f"moreauc: --invalid must be one of {', '.join(CHOICES['invalid'])}, got {invalid!r}")
        column = self.smiles if column is None else normal_text(column)
        return replace(self, smiles=column, invalid=invalid or "error", jobs=jobs or 1)

    def match(self, frame: pd.DataFrame, *, source: str, labelled: bool = True) -> MoleculeTable:
        table = self._read(frame, self.labels(frame, source, labelled), source)
        if labelled:
            self.check_test(table.targets, source)
        return table

    def column(self, frame: pd.DataFrame, source: str) -> pd.Series[Any]:
        """Return the column of SMILES, in which values may be missing."""
        if self.smiles not in frame:
            check_present(frame, self.smiles, "SMILES column", source)  # which says what columns there are
        return frame[self.smiles]

    def check_valid(self, wrong: Sequence[InvalidSmiles], source: str) -> None:
        """Refuse invalid rows, unless they are to be left out."""
        if not wrong or self.invalid == "skip":
            return
        more = f" ({len(wrong):,} such rows)" if len(wrong) > 1 else ""
        raise TableError(
            f"{source}: column {self.smiles!r}, {_named(wrong[0])}{more}; correct it, or leave such rows out with "
            "--invalid skip"
        )

    def left_out(self, first: InvalidSmiles, number: int, rows: int, source: str) -> str:
        """Return what was left out of a table, in words."""
        share = f"{number:,} of {rows:,} rows are left out"
        return f"{source}: {share}, which hold no molecule in column {self.smiles!r}; the first is {_named(first)}"

    def stream(self, pieces: Iterable[Sequence[Any]]) -> Iterator[Chunk]:
        """Yield the fingerprints of pieces of a column, as they are asked for."""
        return read_chunks(self.morgan, pieces, self.jobs)

    def _read(self, frame: pd.DataFrame, labels: Array, source: str) -> MoleculeTable:
        column = self.column(frame, source)
        if column.isna().all():
            raise TableError(f"{source}: SMILES column {self.smiles!r} is empty: all of its {len(column):,} values are")
        texts = column.astype(object).where(column.notna(), None).to_numpy()
        pieces = [texts[place : place + CHUNK].tolist() for place in range(0, len(texts), CHUNK)]
        found = list(with_progress(read_chunks(self.morgan, pieces, self.jobs, identities=True), len(pieces)))
        wrong = [one for chunk in found for one in chunk.invalid]
        self.check_valid(wrong, source)
        skipped = self.left_out(wrong[0], len(wrong), len(texts), source) if wrong else ""
        good = np.setdiff1d(np.arange(len(texts)), [one.row for one in wrong])
        if not len(good):
            raise TableError(f"{source}: there are no molecules in column {self.smiles!r}; {_named(wrong[0])}")
        whole = MoleculeTable(
            features=Schema().own(pd.DataFrame(index=frame.index)),
            targets=labels,
            smiles=texts,
            fingerprints=stack([chunk.fingerprints for chunk in found], self.morgan.size),
            canonical=np.array([text for chunk in found for text in chunk.canonical], dtype=object),
            scaffolds=np.array([text for chunk in found for text in chunk.scaffolds], dtype=object),
            skipped=skipped,
        )
        return whole.part(good)

    # Training

    def inputs(self, table: Table) -> csr_array:
        return _molecules(table).fingerprints

    def fit_options(self, table: Table) -> dict[str, Array]:
        """Return what stays on one side of a hold-out: scaffolds, or equal molecules."""
        return {"groups": self._together(_molecules(table))}

    def draw_test(self, table: Table, share: float, seed: int, hashes: Hashes) -> Array:
        """Return the numbers of the molecules to test on; a scaffold is on one side, a common one in training.

        A few common scaffolds, benzene or none at all, would otherwise make up most of the test part.
        """
        together: Hashes = hash_array(self._together(_molecules(table)))
        _, place, sizes = np.unique(together, return_inverse=True, return_counts=True)
        rows = np.flatnonzero(sizes[place] <= max(1, _COMMON * share * len(table)))
        whole = share * len(table)
        if self.split == "random" or len(rows) < 2 * whole:
            rows = np.arange(len(table))
        return rows[draw_test_rows(table.targets[rows], whole / len(rows), seed, together[rows], unit=self.unit)]

    def _together(self, table: MoleculeTable) -> Array:
        return table.scaffolds if self.split == "scaffold" else table.canonical

    # Results

    @property
    def announcement(self) -> str:
        unused = f"; not used: {list_names(list(self.unused))}" if self.unused else ""
        return f"{super().announcement}. Learnt from: the molecules of column {self.smiles!r}{unused}"

    def facts(self) -> dict[str, object]:
        return {**super().facts(), "smiles": self.smiles, "fingerprint": self.morgan._asdict(), "split": self.split}

    def columns_text(self) -> str:
        kind = {"count": "counts", "bit": "bits"}[self.morgan.kind]
        unused = f" Columns that are not used: {', '.join(self.unused)}." if self.unused else ""
        return (
            f"Molecules of column {self.smiles} as Morgan fingerprints: {self.morgan.size} {kind} of pieces with a "
            f"radius of up to {self.morgan.radius} bonds, of the largest organic fragment.{unused}"
        )

    def split_facts(self, split: Split[Table]) -> dict[str, object]:
        return {"scaffolds": self._scaffolds(split)}

    def _scaffolds(self, split: Split[Table]) -> dict[str, int]:
        parts = {"training": split.train, "test": split.test}
        return {name: len(set(_molecules(part).scaffolds)) for name, part in parts.items()}

    def test_note(self, split: Split[Table]) -> str | None:
        counts = self._scaffolds(split)
        if self.split != "scaffold" or split.test_name is not None:
            return None
        return (
            f"The test molecules have {counts['test']:,} scaffolds (Bemis and Murcko), none of which is among the "
            f"{counts['training']:,} of the training molecules. Scores by a random split (--split random) would be "
            "higher than those of new chemistry."
        )

    def printed(self, title: str, evaluations: Sequence[Evaluation]) -> list[Cells]:
        rows = [screening_row(one.title, one.screening) for one in evaluations if one.screening is not None]
        return [*super().printed(title, evaluations), ("Top of the list", HEADS, rows)]

    def evaluate(self, title: str, model: Scorer, inputs: Inputs, table: Table) -> Evaluation:
        found = super().evaluate(title, model, inputs, table)
        return replace(found, screening=screening(table.targets, found.scores))

    def explain(self, tested: Tested[Table, TwoClassModel, Evaluation]) -> Sections:
        evaluations, known = tested.evaluations, _molecules(tested.table)
        scores = {one.title: one.scores for one in evaluations}
        rows = [screening_row(one.title, one.screening) for one in evaluations if one.screening is not None]
        return molecule_sections(rows, scores, known, tested.model, self.morgan)


def _named(wrong: InvalidSmiles) -> str:
    return f"row {wrong.row + 1}: {'' if wrong.value is None else str(wrong.value)[:80]!r} {wrong.reason}"


def _molecules(table: Table) -> MoleculeTable:
    if not isinstance(table, MoleculeTable):
        raise TypeError(f"a table of molecules is needed, got {type(table).__name__}")
    return table
