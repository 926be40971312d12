"""Tables from files: CSV and Parquet, read whole and refused with one clear line where they are not sound.

Rows are counted from 1, the first one below the header; lines are lines of the file.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path

import pandas as pd

from moreauc._extras import import_extra
from moreauc._files import written_whole

__all__ = ["TableError", "check_table_path", "read_table", "write_table"]

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")
_SEPARATORS = ",;\t"


class TableError(ValueError):
    """A table that cannot be used; the message is one line that names the file and the remedy."""


def read_table(path: str | Path) -> pd.DataFrame:
    r"""Read a table from a `.csv`, `.tsv`, `.parquet` or `.pq` file.

    A text file must be UTF-8, have a header with unique names, and as many fields in each line as in the header. Its
    separator is the comma, semicolon or tab that occurs most often in the header. Empty fields and the usual words
    (`NA`, `null`, `nan`, ...) are missing values; blank lines are passed over. Parquet needs the extra "parquet".

    Args:
        path: the file.

    Returns:
        The table, its rows numbered from 0.

    Raises:
        TableError: if the file is missing, of another kind, empty or malformed.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "data.csv"
        >>> _ = file.write_text("age,y\n34,1\n61,0\n")
        >>> read_table(file)["age"].tolist()
        [34, 61]
    """
    path = check_table_path(path)
    if path.is_dir():
        raise TableError(f"{path}: is a folder, a file is needed")
    if not path.is_file():
        raise TableError(f"{path}: no such file")
    if path.stat().st_size == 0:
        raise TableError(f"{path}: the file is empty")
    frame = _read_text(path) if path.suffix.lower() in (".csv", ".tsv") else _read_parquet(path)
    if not len(frame):
        raise TableError(f"{path}: the file has a header but no rows")
    return frame


def write_table(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a table in the format of the suffix; the file appears only when it is whole.

    Args:
        frame: the table; its row labels are not written.
        path: a `.csv`, `.tsv`, `.parquet` or `.pq` file, replaced where it exists.

    Raises:
        TableError: for another suffix.
        OSError: if the file cannot be written; it names the file.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "scores.csv"
        >>> write_table(pd.DataFrame({"row": [1, 2], "score": [0.5, -1.0]}), file)
        >>> file.read_text().split()
        ['row,score', '1,0.5', '2,-1.0']
    """
    path = check_table_path(path)
    with written_whole(path) as part:
        if path.suffix.lower() in (".csv", ".tsv"):
            frame.to_csv(part, index=False, sep="\t" if path.suffix.lower() == ".tsv" else ",")
        else:
            frame.to_parquet(part, index=False, engine="pyarrow")


def check_table_path(path: str | Path) -> Path:
    """Return `path`, whose suffix must be one that can be read and written here.

    Raises:
        TableError: for another suffix.
        ModuleNotFoundError: for Parquet without the extra that brings it.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise TableError(
            f"{path}: unknown kind of file {suffix or '(no suffix)'}, must be one of {', '.join(SUFFIXES)}"
        )
    if suffix in (".parquet", ".pq"):
        import_extra("pyarrow", "parquet")
    return path


def _read_text(path: Path) -> pd.DataFrame:
    text = _decode(path)
    if not text.strip():
        raise TableError(f"{path}: the file is empty")
    header = next(line for line in text.splitlines() if line.strip())
    separator = max(_SEPARATORS, key=header.count)  # the first of equals, hence the comma
    names = _check_lines(path, text, separator)
    try:
        frame = pd.read_csv(
            io.StringIO(text),
            sep=separator,
            header=0,
            names=names,
            index_col=False,
            skipinitialspace=True,
            low_memory=False,
        )
    except pd.errors.ParserError as error:
        raise TableError(f"{path}: cannot be read as CSV: {error}") from error
    return frame


def _decode(path: Path) -> str:
    content = path.read_bytes()
    if (nul := content.find(b"\0")) >= 0 and content[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        raise TableError(f"{path}: not a text file, byte 0x00 at position {nul}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        source = "UTF-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "WINDOWS-1252"
        raise TableError(
            f"{path}: not UTF-8, byte {content[error.start]:#04x} at position {error.start}; convert it, for example: "
            f"iconv -f {source} -t UTF-8 {path.name} > {path.stem}-utf8{path.suffix}"
        ) from error


def _check_lines(path: Path, text: str, separator: str) -> list[str]:
    """Check header and lengths of all lines; return the names of the columns.

    The parser that follows would rename double columns and fill short lines without a word.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    names: list[str] = []
    line = 1
    try:
        for fields in reader:
            if fields and not names:
                names = [name.strip() for name in fields]
                _check_names(path, names)
            elif fields and len(fields) != len(names):
                raise TableError(f"{path}: line {line} has {len(fields)} fields, the header has {len(names)}")
            elif not fields and len(names) == 1 and text.rstrip("\r\n").count("\n") >= line:
                raise TableError(f"{path}: line {line} is blank; write NA for a missing value in a single column")
            line = reader.line_num + 1
    except csv.Error as error:
        raise TableError(f"{path}: cannot be read as CSV, line {line}: {error}") from error
    return names


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
    parquet = import_extra("pyarrow.parquet", "parquet")
    try:
        names = parquet.read_schema(path).names
        _check_names(path, [str(name) for name in names])
        frame: pd.DataFrame = pd.read_parquet(path, engine="pyarrow")
    except TableError:
        raise
    except (ValueError, OSError) as error:  # pyarrow's errors derive from these
        raise TableError(f"{path}: cannot be read as Parquet: {str(error).splitlines()[0]}") from error
    frame.columns = [str(name) for name in frame.columns]
    return frame.reset_index(drop=True)


def list_names(names: list[str], most: int = 5) -> str:
    """Return names in quotes with commas, the first few of many."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
