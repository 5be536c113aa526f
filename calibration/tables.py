"""Measured tables as columns: one CSV file (plain or gzip) per operator, the header names the columns.

The files are those of the table layout documented in ``docs/explanation/calibration.md``: seconds, bytes, token counts.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.core import InputError, write_whole

FloatArray = NDArray[np.float64]
Mask = NDArray[np.bool_]
MAX_TABLE_BYTES = 500_000_000
"""Largest table that is read, after unpacking [bytes]: a run writes some 10 MB."""


@dataclass(frozen=True)
class ColumnTable:
    """Columns of one length: numbers as float64, everything else as text."""

    columns: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, name: str) -> FloatArray:
        if name not in self.columns:
            raise InputError("column", name, f"not among {', '.join(self.columns)}", "add it to the table's header")
        return self.columns[name]

    def text(self, name: str) -> NDArray[np.str_]:
        """A column of text."""
        return self[name].astype(np.str_)

    def rows(self, chosen: Mask | NDArray[np.intp]) -> ColumnTable:
        """The chosen rows, by mask or by index."""
        return ColumnTable({name: column[chosen] for name, column in self.columns.items()})

    def with_columns(self, **more: NDArray[Any]) -> ColumnTable:
        """The same rows with further columns."""
        return ColumnTable({**self.columns, **more})

    def keys(self, *names: str) -> NDArray[np.intp]:
        """A number for each distinct combination of the named columns, per row."""
        codes = np.zeros(len(self), dtype=np.intp)
        for name in names:
            values, inverse = np.unique(self.columns[name], return_inverse=True)
            codes = codes * len(values) + inverse
        return np.unique(codes, return_inverse=True)[1]


def joined_tables(tables: Iterable[ColumnTable]) -> ColumnTable:
    """The rows of tables of the same columns, one after another."""
    pieces = list(tables)
    return ColumnTable({name: np.concatenate([piece.columns[name] for piece in pieces]) for name in pieces[0].columns})


def read_table(folder: Path, name: str) -> ColumnTable | None:
    """The table ``<name>.csv`` or ``<name>.csv.gz`` of a folder; None where there is neither.

    Raises:
        InputError: the file is no text, no CSV or larger than `MAX_TABLE_BYTES`, has no rows, or a row is shorter or
            longer than the header.
    """
    for path in (folder / f"{name}.csv", folder / f"{name}.csv.gz"):
        if path.is_file():
            return _parse(path.name, _text(path))
    return None


def read_csv(path: Path) -> ColumnTable:
    """The table of one CSV file, plain or gzip, whatever its name; raises InputError as `read_table` does."""
    return _parse(path.name, _text(path))


def write_table(path: Path, table: ColumnTable) -> None:
    """Write a table as plain CSV that `read_table` reads back; numbers with ten significant digits."""
    columns = [
        [f"{value:.10g}" for value in column.tolist()] if column.dtype.kind == "f" else column.tolist()
        for column in table.columns.values()
    ]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(zip(*columns, strict=True))
    write_whole(path, file.getvalue())


def _text(path: Path) -> str:
    """The text of a table, plain or gzip, up to `MAX_TABLE_BYTES`; raises InputError for anything else."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(MAX_TABLE_BYTES + 1)
        text = content.decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        bound = f"cannot be read as a table ({type(error).__name__})"
        raise InputError("table", path.name, bound, "give CSV as UTF-8 text, plain or gzip") from None
    if len(content) > MAX_TABLE_BYTES:
        raise InputError("table", path.name, f"is larger than {MAX_TABLE_BYTES / 1e6:g} MB", "measure fewer shapes")
    return text


def _parse(name: str, text: str) -> ColumnTable:
    rows = csv.reader(io.StringIO(text))
    try:
        header = next(rows, [])
        columns: list[list[str]] = [[] for _ in header]
        number = 1
        for number, row in enumerate(rows, start=2):
            if len(row) != len(header):
                raise InputError(f"{name} line {number}", row, f"must have {len(header)} cells", "correct that line")
            for column, cell in zip(columns, row, strict=True):
                column.append(cell)
    except csv.Error as error:
        raise InputError("table", name, f"is no CSV table ({error})", "write it again") from None
    if number < 2:
        raise InputError("table", name, "has no rows", "give a CSV file with a header and measurements")
    return ColumnTable({column: _typed(values) for column, values in zip(header, columns, strict=True)})


def _typed(values: list[str]) -> NDArray[Any]:
    array = np.array(values)
    try:
        return array.astype(np.float64)
    except ValueError:
        return array
