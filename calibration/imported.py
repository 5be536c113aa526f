"""Other people's measurements as tables of ``docs/explanation/calibration.md``: read, checked, fitted as our own.

`calibration.aiconfigurator` and `calibration.vidur` know the two formats; what they share is here. Nothing is fitted
in a new way: the converted tables go through `calibration.assemble`, and every row that is left out is counted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import numpy as np

from calibration import assemble
from calibration.possible import possible_rows
from calibration.tables import ColumnTable, FloatArray, Mask, read_csv, write_table
from hardware_db import NETWORK, Calibration, GpuSku
from planner.core import InputError, UnknownNameError

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""How a file begins whose content Git LFS has not fetched (https://github.com/git-lfs/git-lfs, docs/spec.md)."""
MAX_IMPOSSIBLE_SHARE = 0.05
"""Share of a table's rows beyond which impossible ones are no outliers: of 1.6 million measured rows for H100, L40S and
B200 six are impossible; of rows in seconds that are read as milliseconds, all."""
TOLERATED_IMPOSSIBLE_ROWS = 3
"""Impossible rows that even a small table may have."""
KEY_PREFIXES = {
    "gemm": ("gemm/",),
    "context_attention": ("attention_prefill/",),
    "generation_attention": ("attention_decode/",),
    "context_mla": ("latent_prefill/",),
    "generation_mla": ("latent_decode/",),
    "moe": ("experts/",),
    "collectives": ("all_reduce/", "all_gather/", "reduce_scatter/"),
    "ep_all_to_all": ("expert_dispatch/", "expert_combine/"),
    "mlp": ("elementwise/",),
}
"""Table -> how the keys of the fits it can give begin."""


@dataclass(frozen=True)
class Imported:
    """Converted tables, by their name in ``docs/explanation/calibration.md``, with where they come from.

    Attributes:
        tables: columns as there, in seconds, bytes and tokens.
        source: address, files, versions and devices, for `Calibration.source`.
        left_out: what was not taken and why, one line each.
    """

    tables: Mapping[str, ColumnTable]
    source: str
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImportedFit:
    """A calibration with what its reader should know: rows read, what was left out, which fits are not its own."""

    calibration: Calibration
    rows: Mapping[str, int]
    left_out: tuple[str, ...]
    filled: tuple[str, ...] = ()


def read_columns(path: Path) -> ColumnTable:
    """The columns of one file: Parquet, or CSV under any name.

    Raises:
        InputError: a Git LFS pointer in place of the file, no such table, no rows, rows of different length; Parquet
            without pyarrow.
    """
    with path.open("rb") as file:
        start = file.read(len(LFS_POINTER))
    if start == LFS_POINTER:
        bound = "is a Git LFS pointer, not the table"
        raise InputError("table", path.name, bound, "run git lfs pull in that repository, then give the folder again")
    return _read_parquet(path) if start[:4] == b"PAR1" else read_csv(path)


def _read_parquet(path: Path) -> ColumnTable:
    try:
        import pyarrow.parquet  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415 - only Parquet needs it
    except ImportError:
        fix = "pip install pyarrow, or write the table as CSV"
        raise InputError("table", path.name, "is Parquet, which takes pyarrow to read", fix) from None
    try:
        columns = pyarrow.parquet.ParquetFile(path).read().to_pydict()
    except (pyarrow.ArrowException, OSError) as error:
        bound = f"cannot be read as Parquet ({type(error).__name__})"
        raise InputError("table", path.name, bound, "fetch that file again") from None
    table = ColumnTable({name: _typed(values) for name, values in columns.items()})
    if not len(table):
        raise InputError("table", path.name, "has no rows", "give a table with measurements")
    return table


def _typed(values: list[object]) -> FloatArray:
    """Numbers as float64 with NaN for what is missing, everything else as text."""
    try:
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    except (TypeError, ValueError):
        return np.array(["" if value is None else str(value) for value in values])


def require_columns(table: ColumnTable, file: str, names: Iterable[str]) -> None:
    """Raise InputError unless a file has these columns."""
    missing = [name for name in names if name not in table.columns]
    if missing:
        bound = f"lacks the columns {', '.join(missing)}"
        raise InputError("table", file, bound, f"give a table of this format; it has {', '.join(table.columns)[:200]}")


def number_column(table: ColumnTable, file: str, name: str) -> FloatArray:
    """A column as numbers, NaN where a cell is empty; raises InputError where it holds text."""
    column = table[name]
    if column.dtype.kind == "f":
        return column
    text = np.char.strip(column.astype(np.str_))
    try:
        return np.where(text == "", "nan", text).astype(np.float64)
    except ValueError:
        wrong = next(cell for cell in text.tolist() if not _is_number(cell))
        fix = "correct that cell, or leave the row out"
        raise InputError(f"{file}, column {name}", wrong, "must be a number", fix) from None


def _is_number(cell: str) -> bool:
    try:
        float(cell or "nan")
    except ValueError:
        return False
    return True


def text_column(rows: int, value: str) -> FloatArray:
    """A column of one text."""
    return np.full(rows, value)


def merged_repeats(table: ColumnTable) -> ColumnTable:
    """Each measured point once, with the median of its times, in the order of its first row.

    >>> table = ColumnTable({"m": np.array([1.0, 2.0, 1.0]), "latency_s": np.array([3.0, 9.0, 5.0])})
    >>> merged_repeats(table).columns["latency_s"]
    array([4., 9.])
    """
    group = table.keys(*(name for name in table.columns if name != "latency_s"))
    count = np.bincount(group)
    if count.max(initial=0) <= 1:
        return table
    ordered = table["latency_s"][np.lexsort((table["latency_s"], group))]
    start = np.concatenate([[0], np.cumsum(count)[:-1]])
    median = (ordered[start + (count - 1) // 2] + ordered[start + count // 2]) / 2.0
    first = np.sort(np.unique(group, return_index=True)[1])
    return table.rows(first).with_columns(latency_s=median[group[first]])


def checked_tables(imported: Imported, sku: GpuSku) -> Imported:
    """The tables without rows that cannot be true on this SKU: no duration, sizes that are none, or faster than the
    roofline allows (`calibration.possible`).

    Raises:
        InputError: so many rows of a table are impossible that it is another GPU's, or in another unit.
    """
    tables, left_out = {}, list(imported.left_out)
    for name, table in imported.tables.items():
        sized = _valid_rows(table)
        if not sized.all():
            left_out.append(f"{name}: {(~sized).sum()} rows without a duration or with sizes that are none")
        rows = table.rows(sized)
        good = possible_rows(name, rows, sku)
        impossible = int((~good).sum())
        if impossible > max(TOLERATED_IMPOSSIBLE_ROWS, MAX_IMPOSSIBLE_SHARE * len(rows)):
            bound = f"{impossible} of {len(rows)} rows are faster than the peaks of {sku.id} allow"
            raise InputError("table", name, bound, "check --sku; times must be in the unit of the published tables")
        if impossible:
            left_out.append(f"{name}: {impossible} rows faster than the peaks of {sku.id} allow")
        if good.any():
            tables[name] = merged_repeats(rows.rows(good))
    return replace(imported, tables=tables, left_out=tuple(left_out))


MAY_BE_ZERO = ("prefix_len", "window", "gated", "num_sms")
"""Columns in which 0 says something; in the others it is no size."""
LARGEST_SIZE = 2.0**53
"""Sizes beyond it are no counts of anything: from there on float64 skips whole numbers."""


def _valid_rows(table: ColumnTable) -> Mask:
    """Rows whose numbers are finite and positive (`MAY_BE_ZERO` apart), whole ones where they are sizes."""
    good = np.ones(len(table), dtype=np.bool_)
    for name, column in table.columns.items():
        if column.dtype.kind == "f":
            good &= (column <= LARGEST_SIZE) & ((column >= 0.0) if name in MAY_BE_ZERO else (column > 0.0))
            good &= (column == np.floor(column)) | (name == "latency_s")
    return good


def fit_imported(imported: Imported, skus: Mapping[str, GpuSku], sku_id: str, engine: str, on: date) -> ImportedFit:
    """The calibration of one engine from converted tables, by `assemble.calibrate`.

    Args:
        imported: converted tables; rows that cannot be true on the SKU are left out here.
        skus: known SKUs.
        sku_id: the one the tables were measured on.
        engine: profile whose kernels are wanted; where it has none, those of the tables' other engines are taken.
        on: date of the fit.

    Raises:
        UnknownNameError: the SKU or the engine.
        InputError: as `checked`; or no 16-bit matrix products of this engine.
    """
    if sku_id not in skus:
        raise UnknownNameError("--sku", sku_id, skus)
    if engine not in assemble.ENGINES:
        raise UnknownNameError("--engine", engine, assemble.ENGINES)
    valid = checked_tables(imported, skus[sku_id])
    _require_products(valid, engine)
    calibration = _assembled_calibration(valid, skus, sku_id, engine, on)
    unused = [
        name for name in valid.tables if not any(key.startswith(KEY_PREFIXES[name]) for key in calibration.kernels)
    ]
    left_out = (*valid.left_out, *(f"{name}: {len(valid.tables[name])} rows, {TOO_FEW_NOTE}" for name in unused))
    note = "; ".join((calibration.note, *(f"left out: {line}" for line in left_out)))
    rows = {name: len(table) for name, table in valid.tables.items()}
    update = {"source": imported.source, "note": note}
    return ImportedFit(calibration.model_copy(update=update), rows, left_out)


TOO_FEW_NOTE = "too few shapes or none of the kernels that are fitted (docs/explanation/calibration.md)"


def _require_products(valid: Imported, engine: str) -> None:
    gemm = valid.tables.get("gemm")
    backends = [] if gemm is None else np.unique(gemm.text("backend")[gemm.text("dtype") == "bf16"]).tolist()
    if assemble.ENGINES[engine] in backends:
        return
    known = [name for name, backend in assemble.ENGINES.items() if backend in backends]
    fix = f"use --engine {' or '.join(known)}" if known else "give the folder with the table of matrix products"
    raise InputError("--engine", engine, "has no 16-bit matrix products in this folder", fix)


def _assembled_calibration(
    imported: Imported, skus: Mapping[str, GpuSku], sku_id: str, engine: str, on: date
) -> Calibration:
    names = {sku: folder for folder, sku in assemble.SKUS.items()}
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / names.get(sku_id, sku_id)
        folder.mkdir()
        for name, table in imported.tables.items():
            write_table(folder / f"{name}.csv", table)
        try:
            calibrations = assemble.calibrate(folder, skus, sku_id, (engine,), on)
        except InputError as error:
            if error.field != "folder":
                raise
            calibrations = {}
    if engine not in calibrations:
        bound = "has too few 16-bit matrix products with n, k >= 512"
        raise InputError("--engine", engine, bound, f"measure {assemble.MIN_ROWS} or more, of several weight shapes")
    return calibrations[engine]


def completed_fit(fitted: ImportedFit, packaged: Iterable[Calibration]) -> ImportedFit:
    """The fit with the operators its tables lack from a packaged calibration of the same SKU: of its engine, else any.

    Each filled fit says so in its note, and the source names the calibration it is from.
    """
    own = fitted.calibration
    others = [other for other in packaged if other.sku == own.sku]
    mine = [other for other in others if other.engine == own.engine] or others
    if not mine:
        return fitted
    lender = max(mine, key=lambda other: (other.fitted_on, other.stack))
    filled = {key: fit for key, fit in lender.kernels.items() if key not in own.kernels and not key.startswith(NETWORK)}
    if not filled:
        return fitted
    origin = f"not in the imported tables: packaged fit of {lender.stack}"
    kernels = {key: fit.model_copy(update={"note": f"{origin}; {fit.note}"}) for key, fit in filled.items()}
    source = f"{own.source}; operators that these tables lack, as their notes say: {lender.stack}, {lender.source}"
    calibration = own.model_copy(update={"kernels": {**own.kernels, **kernels}, "source": source})
    return replace(fitted, calibration=calibration, filled=tuple(kernels))
