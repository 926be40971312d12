"""Tables of files (CSV and Parquet) as DataFrames of pandas; malformed files are refused with one line that says why.

Rows are counted from 1, the first one below the header; lines are lines of the file.
"""

from __future__ import annotations

import csv
import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pandas as pd
from pandas.api.types import infer_dtype

from moreauc._system import import_extra, written_whole
from moreauc.data.tables import TableError, from_arrow, list_names
from moreauc.data.texts import normal_fields, normal_text, normal_texts

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")
_SEPARATORS = ",;\t"
_HEADER = re.compile(r'("[^"]*"|[^"\n])*(\n|$)')
_LINE = re.compile(r"[^\n]*")
_HEAD = 20  # lines that the separator is chosen by
_QUOTED = re.compile(r'"[^"]*"')
_END = "\0"  # appended as a last line, which an open quotation would swallow; no text file has it
_MISSING = {
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
}


def read_texts(path: str | Path) -> pd.DataFrame:
    """Read a table from a `.csv`, `.tsv`, `.parquet` or `.pq` file; all columns of a text file are texts.

    As numbers, the names 01 and 1 of two groups would be one; :func:`~moreauc.data.texts.type_column` makes numbers of
    the columns that hold them. A text file must be UTF-8, have a header with unique names, and as many fields in each
    line as in the header. Its separator is the comma, semicolon or tab that makes the most columns of the header, in a
    `.tsv` file with tabs the tab; lines end as on any system. Texts and names are stripped and composed (NFC). Empty
    fields and the usual words (`NA`, `null`, `nan`, ...) are missing values; blank lines are ignored. Parquet needs the
    extra "parquet"; a stored index of a DataFrame is a column, and columns keep their types.

    Raises:
        TableError: if the file is missing, of another kind, empty or malformed.
    """
    frame, _ = next(stream_texts(path, sys.maxsize))
    return frame


def stream_texts(path: str | Path, size: int) -> Iterator[tuple[pd.DataFrame, int]]:
    """Yield a table in pieces of `size` rows, read as by :func:`read_texts`, and how many letters each took.

    The index goes on from piece to piece. Text files are read line by line, in constant memory; other files at once.

    Raises:
        TableError: as :func:`read_texts` does; what is wrong further down is found when it is reached.
    """
    path = _check_file(path)
    if path.suffix.lower() not in (".csv", ".tsv"):
        frame = _read_parquet(path)
        if not len(frame):
            raise TableError(f"{path}: the file has a header but no rows")
        for start in range(0, len(frame), size):
            yield frame.iloc[start : start + size], path.stat().st_size * size // len(frame)
        return
    letters = 0

    def lines() -> Iterator[str]:
        nonlocal letters
        with open(path, encoding="utf-8-sig") as file:  # which makes \n of all ends of lines
            for line in file:
                if "\0" in line:
                    _refuse(path)
                letters += len(line)
                yield line

    try:
        head = "".join(itertools.islice(lines(), _HEAD))
        tabs = path.suffix.lower() == ".tsv" and "\t" in head
        rows = _read_rows(path, lines(), "\t" if tabs else _separator(head))
        names = [normal_text(name) for name in next(rows, [])]
        if not names:
            raise TableError(f"{path}: the file is empty")
        _check_names(path, names)
        start, letters = 0, 0
        while piece := list(itertools.islice(rows, size)):
            columns = {name: _present(column) for name, column in zip(names, zip(*piece, strict=True), strict=True)}
            frame = pd.DataFrame(columns)
            frame.index = pd.RangeIndex(start, start + len(piece))
            start += len(piece)
            yield frame, letters
            letters = 0
        if not start:
            raise TableError(f"{path}: the file has a header but no rows")
    except UnicodeDecodeError:
        _refuse(path)


def write_table(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a table in the format of the suffix; the file appears only when it is whole."""
    path = check_table_path(path)
    with written_whole(path) as part:
        if path.suffix.lower() in (".csv", ".tsv"):
            frame.to_csv(part, index=False, sep="\t" if path.suffix.lower() == ".tsv" else ",")
        else:
            frame.to_parquet(part, index=False, engine="pyarrow")


def check_table_path(path: str | Path) -> Path:
    """Return `path`, whose suffix must be one that can be read and written here."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise TableError(
            f"{path}: unknown kind of file {suffix or '(no suffix)'}, must be one of {', '.join(SUFFIXES)}"
        )
    if suffix in (".parquet", ".pq"):
        import_extra("pyarrow", "parquet")
    return path


def _check_file(path: str | Path) -> Path:
    """Return the path of a table to be read, which must be there."""
    path = check_table_path(path)
    if path.is_dir():
        raise TableError(f"{path}: is a folder, a file is needed")
    if not path.is_file():
        raise TableError(f"{path}: no such file")
    if path.stat().st_size == 0:
        raise TableError(f"{path}: the file is empty")
    return path


def _present(fields: Sequence[str]) -> pd.Series:
    """Return the texts of a column in normal form, without the words for missing values."""
    texts = [None if text in _MISSING else text for text in normal_fields(fields)]
    return pd.Series(texts)


def _refuse(path: Path) -> NoReturn:
    """Say which byte of a file is no text, and what to do."""
    content = path.read_bytes()
    wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    if (nul := content.find(b"\0")) >= 0 and not wide:
        raise TableError(f"{path}: not a text file, byte 0x00 at position {nul}")
    try:
        content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TableError(
            f"{path}: not UTF-8, byte {content[error.start]:#04x} at position {error.start}; convert it, for example: "
            f"iconv -f {'UTF-16' if wide else 'WINDOWS-1252'} -t UTF-8 {path.name} > {path.stem}-utf8{path.suffix}"
        ) from error
    raise TableError(f"{path}: the file has changed while it was read")


def _separator(text: str) -> str:
    """Return the separator that the header has most often outside of quotation marks, the comma by default."""
    text = text.lstrip("\n ")
    header = _HEADER.match(text) or _LINE.match(text)
    plain = _QUOTED.sub("", header[0] if header else "")
    return max(_SEPARATORS, key=plain.count)  # the first of equals


def _read_rows(path: Path, lines: Iterable[str], separator: str) -> Iterator[list[str]]:
    """Yield the fields of the header and of all lines below it, which must be as many; blank lines are ignored."""
    width, line, blank = 0, 1, 0
    reader = csv.reader(itertools.chain(lines, [_END]), delimiter=separator, skipinitialspace=True)
    try:
        for fields in reader:
            if fields == [_END]:
                break
            if fields[-1:] and fields[-1].endswith(_END):
                raise TableError(f"{path}: cannot be read as CSV, line {line}: a quotation mark is not closed")
            if len(fields) > 1 or any(map(str.strip, fields)):
                width = width or len(fields)
                _check_fields(path, fields, width, line, blank)
                yield fields
            elif width:
                blank = line
            line = reader.line_num + 1
    except csv.Error as error:
        raise TableError(f"{path}: cannot be read as CSV, line {line}: {error}") from error


def _check_fields(path: Path, fields: list[str], width: int, line: int, blank: int) -> None:
    """Check a line, number `line` of the file, by the width of the header; `blank` is the last blank line above it."""
    if len(fields) != width:
        raise TableError(f"{path}: line {line} has {len(fields)} fields, the header has {width}")
    if width == 1 and blank:
        raise TableError(f"{path}: line {blank} is blank; write NA for a missing value in a single column")


def _check_names(path: Path, names: list[str]) -> None:
    if "" in names:
        raise TableError(
            f"{path}: column {names.index('') + 1} has no name; name it, or, if it is a row index, write the table "
            "without it (index=False in pandas)"
        )
    double = [name for name, count in Counter(names).items() if count > 1]
    if double:
        raise TableError(f"{path}: column names must be unique, got {list_names(double)} more than once")


def _read_parquet(path: Path) -> pd.DataFrame:
    """Read a file column by column, so that a stored index is a column."""
    parquet = import_extra("pyarrow.parquet", "parquet")
    try:
        file = parquet.ParquetFile(path)
        names = [normal_text(name) for name in file.schema_arrow.names]
        _check_names(path, names)
        frame = from_arrow(file.read())
    except TableError:
        raise
    except (ValueError, OSError) as error:  # pyarrow's errors derive from these
        raise TableError(f"{path}: cannot be read as Parquet: {str(error).splitlines()[0]}") from error
    return pd.DataFrame({name: _plain(frame.iloc[:, place]) for place, name in enumerate(names)})


def _plain(column: pd.Series) -> pd.Series:
    """Return a column without categories, its texts in normal form."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(object)
    is_text = column.dtype.kind == "O" and infer_dtype(column, skipna=True) == "string"
    return normal_texts(column) if is_text else column
