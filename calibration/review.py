"""Expected times against measured tables: what ``run --dry-run`` prints, held against the rows of the same kernels.

The cases of a run get their expected time from the packaged fit (`calibration.expected`). Here the rows of measured
tables are read as such cases, so that a wrong dimension, byte or format in a case shows before a GPU is rented.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibration.assemble import ELEMENTWISE_OPS, ENGINES, GEMM_DTYPES, LATENT_DECODE_BACKENDS
from calibration.expected import PASS_KEYS, fit_key, fitted_s
from calibration.measure import is_cold
from calibration.operators import KV_BYTES, elementwise_rows
from calibration.plausible import least_work
from calibration.records import COLUMNS, KernelCase, Value
from calibration.tables import ColumnTable, Mask, read_table
from hardware_db import Calibration, GpuSku
from planner.core import InputError

MOST_ROWS = 2000
"""Rows of one kernel and backend that are looked at, spread evenly."""
OWN_BACKENDS = ("torch", "measured")
"""Of a run's own tables, and of tables that name none."""


@dataclass(frozen=True)
class Review:
    """Expected over measured times of one kernel's rows: 10th, 50th and 90th percentile."""

    key: str
    backend: str
    rows: int
    p10: float
    median: float
    p90: float


def reviews(folder: Path, calibration: Calibration, sku: GpuSku) -> list[Review]:
    """Every kernel of the folder's tables that a run measures and the calibration has.

    Args:
        folder: of measured tables.
        calibration: whose fits say what to expect.
        sku: both are of.

    Raises:
        InputError: there is no such row.
    """
    found = []
    for name, core in READ.items():
        table = read_table(folder, name)
        if table is None:
            continue
        rows = table.rows(core(table))
        backends = rows.text("backend") if "backend" in rows.columns else np.full(len(rows), "measured")
        for backend in np.unique(backends).tolist():
            if _is_of(name, backend, calibration, folder.name):
                found += _reviews_of(name, rows.rows(backends == backend), backend, calibration, sku)
    if not found:
        fix = "give a folder with gemm.csv[.gz] and others of the calibration's engine"
        raise InputError("folder", str(folder), f"has no rows of kernels that {calibration.stack} is fitted to", fix)
    return found


def _is_of(name: str, backend: str, calibration: Calibration, folder: str) -> bool:
    own = ENGINES.get(calibration.engine, calibration.engine)
    if name.endswith("_mla"):
        own = LATENT_DECODE_BACKENDS.get(folder, "trtllm") if name == "generation_mla" else "trtllm"
    return backend in (own, *OWN_BACKENDS) or backend in calibration.stack.split(" ", 1)[1]


def _reviews_of(name: str, rows: ColumnTable, backend: str, calibration: Calibration, sku: GpuSku) -> list[Review]:
    by_key: dict[str, list[float]] = {}
    cases = [(case, seconds) for case, seconds in _cases(name, rows) if _is_cold(case, sku)]
    keys = np.array([fit_key(case) for case, _ in cases])
    for key in sorted(set(keys.tolist()) & calibration.kernels.keys()):
        at = np.flatnonzero(keys == key)
        for index in at[:: max(1, len(at) // MOST_ROWS)].tolist():
            case, measured_s = cases[index]
            by_key.setdefault(key, []).append(fitted_s(case, calibration.kernels[key], sku) / measured_s)
    quantiles = {key: np.quantile(ratios, [0.1, 0.5, 0.9]).tolist() for key, ratios in by_key.items()}
    return [Review(key, backend, len(by_key[key]), *three) for key, three in quantiles.items()]


def _is_cold(case: KernelCase, sku: GpuSku) -> bool:
    """Whether a decode's cache exceeds the L2 cache: tables replay one input, predictions are for what is not kept."""
    cache = 0.0 if sku.l2_bytes is None else sku.l2_bytes.value
    return not case.operator.startswith("generation") or is_cold(least_work(case).hbm_bytes, cache)


def _cases(name: str, rows: ColumnTable) -> Iterator[tuple[KernelCase, float]]:
    if name == "mlp":
        rows = elementwise_rows(rows)
        ours = {
            theirs: PASSED[variant] for variant, ops in ELEMENTWISE_OPS.items() if variant != "bf16" for theirs in ops
        }
        ops = [ours[op] for op in rows.text("op").tolist()]
        for op, size, seconds in zip(ops, rows["bytes"].tolist(), rows["latency_s"].tolist(), strict=True):
            yield KernelCase("elementwise", {"op": op, "bytes": int(size)}), seconds
        return
    names = [column for column in COLUMNS[name] if column in rows.columns]
    columns = [rows.columns[column].tolist() for column in names]
    for *values, seconds in zip(*columns, rows["latency_s"].tolist(), strict=True):
        fields: Mapping[str, Value] = dict(zip(names, values, strict=True))
        yield KernelCase(name, fields), seconds


PASSED = {key: op for op, key in PASS_KEYS.items()}


def _products(rows: ColumnTable) -> Mask:
    known = np.isin(rows.text("dtype"), list(GEMM_DTYPES.values()))
    if "backend" in rows.columns:  # vLLM's block-scaled rows carry the host's time, and no fit is made of them
        known &= ~((rows.text("dtype") == "fp8_block") & (rows.text("backend") == "vllm"))
    return np.asarray(known & (rows["n"] >= 512) & (rows["k"] >= 512))


def _prompts(rows: ColumnTable) -> Mask:
    return np.asarray((rows["batch"] * rows["seq_len"] >= 64) & _known(rows))


def _decodes(rows: ColumnTable) -> Mask:
    return np.asarray((rows["prefix_len"] >= 255) & _known(rows))


def _known(rows: ColumnTable) -> Mask:
    """Caches of a known format; heads of the usual kernels, without a window."""
    known = np.isin(rows.text("kv_dtype"), list(KV_BYTES))
    if "window" in rows.columns:
        known &= (rows["window"] == 0) & np.isin(rows["head_dim"], (64, 128))
    return np.asarray(known)


READ: Mapping[str, Callable[[ColumnTable], Mask]] = {
    "gemm": _products,
    "context_attention": _prompts,
    "generation_attention": _decodes,
    "context_mla": _prompts,
    "generation_mla": _decodes,
    "mlp": lambda rows: np.asarray(np.isin(rows.text("op"), sum(ELEMENTWISE_OPS.values(), ()))),
    "elementwise": lambda rows: np.ones(len(rows), dtype=np.bool_),
}
"""Table -> which of its rows are of shapes that fits are made of."""
