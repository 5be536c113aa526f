"""Calibrations held against each other over a grid of shapes, and against measured tables.

The cases of a run get their expected time from the packaged fit (`calibration.expected`). Here the rows of measured
tables are read as such cases, so that a wrong dimension, byte or format in a case shows before a GPU is rented.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from calibration.assemble import ELEMENTWISE_OPS, ENGINES, GEMM_DTYPES, LATENT_DECODE_BACKENDS
from calibration.expected import PASS_KEYS, fit_key, fitted_s
from calibration.measure import is_cold
from calibration.operators import KV_BYTES, elementwise_rows, kernel_s
from calibration.possible import least_work, row_of
from calibration.records import COLUMNS, KernelCase, Value
from calibration.tables import ColumnTable, Mask, read_table
from hardware_db import Calibration, GpuSku
from planner.core import InputError

TOKENS = (1.0, 8.0, 32.0, 64.0, 128.0, 256.0, 512.0, 2048.0, 8192.0)
MATRICES = (
    (4096.0, 4096.0),
    (6144.0, 4096.0),
    (28672.0, 4096.0),
    (4096.0, 14336.0),
    (8192.0, 8192.0),
    (10240.0, 8192.0),
    (8192.0, 3584.0),
    (2560.0, 5120.0),
)
HEADS = ((32.0, 8.0, 128.0), (8.0, 1.0, 128.0), (64.0, 8.0, 128.0), (16.0, 4.0, 128.0))
LATENT_HEADS = ((128.0,), (16.0,))
DECODES = tuple(product((1.0, 8.0, 32.0, 128.0), (511.0, 2047.0, 8191.0, 32767.0)))
PROMPTS = tuple((1.0, tokens, 0.0) for tokens in (128.0, 512.0, 2048.0, 8192.0))
EXPERTS = ((2048.0, 768.0, 128.0, 8.0), (4096.0, 14336.0, 8.0, 2.0), (4096.0, 1536.0, 128.0, 8.0))
SIZES = np.geomspace(2.0**16, 2.0**30, 15)
"""Shapes that two calibrations are compared at. A choice: what models in use have."""


def _grid(names: str, *sides: Sequence[Sequence[float]], **fixed: float | str) -> ColumnTable:
    """Every combination of the sides as rows, their numbers under the names; `fixed` are the same in all."""
    rows = np.array([sum(map(tuple, some), ()) for some in product(*sides)])
    columns = dict(zip(names.split(), rows.T, strict=True))
    return ColumnTable(columns | {name: np.full(len(rows), value) for name, value in fixed.items()})


_HEADS = "num_heads num_kv_heads head_dim"
_BYTES = ColumnTable({"bytes": SIZES})
GRIDS: Mapping[str, ColumnTable] = {
    "gemm": _grid("n k m", MATRICES, [(tokens,) for tokens in TOKENS]),
    "attention_prefill": _grid(f"{_HEADS} batch seq_len prefix_len", HEADS, PROMPTS, window=0.0),
    "attention_decode": _grid(f"{_HEADS} batch prefix_len", HEADS, DECODES, window=0.0),
    "latent_prefill": _grid("num_heads batch seq_len prefix_len", LATENT_HEADS, PROMPTS),
    "latent_decode": _grid("num_heads batch prefix_len", LATENT_HEADS, DECODES),
    "experts": _grid(
        "hidden inter num_experts topk num_tokens",
        EXPERTS,
        [(tokens,) for tokens in TOKENS],
        tp=1.0,
        ep=1.0,
        gated=1.0,
        distribution="balanced",
    ),
    **dict.fromkeys(("elementwise", "all_reduce", "all_gather", "reduce_scatter", "all_to_all"), _BYTES),
}
"""Operator of a calibration -> the shapes."""


@dataclass(frozen=True)
class FitComparison:
    """Time by the second calibration over time by the first, over a grid of shapes of one operator."""

    key: str
    shapes: int
    median: float
    p10: float
    p90: float


def compare(first: Calibration, second: Calibration, skus: Mapping[str, GpuSku]) -> list[FitComparison]:
    """Every operator that both have and that has a grid here, sorted by key.

    Raises:
        InputError: a SKU is not among `skus`, or no operator is in both.
    """
    for calibration in (first, second):
        if calibration.sku not in skus:
            raise InputError("sku", calibration.sku, "is not in the hardware database", "add its SKU file")
    comparisons = []
    for key in sorted(first.kernels.keys() & second.kernels.keys()):
        rows = GRIDS.get(key.split("/")[0])
        if rows is not None:
            of_first, of_second = (kernel_s(key, one.kernels[key], rows, skus[one.sku]) for one in (first, second))
            p10, median, p90 = np.quantile(of_second / of_first, [0.1, 0.5, 0.9]).tolist()
            comparisons.append(FitComparison(key, len(rows), median, p10, p90))
    if not comparisons:
        both = f"{sorted(first.kernels)} against {sorted(second.kernels)}"
        raise InputError("kernels", both, "have no operator in common", "compare calibrations of the same operators")
    return comparisons


# --- against measured tables -------------------------------------------------------------------------------------


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
    """True if a decode's cache exceeds the L2 cache: tables replay one input, predictions are for what is not kept."""
    cache = 0.0 if sku.l2_bytes is None else sku.l2_bytes.value
    read = float(least_work(case.operator, row_of(case), sku).hbm_bytes[0])
    return not case.operator.startswith("generation") or is_cold(read, cache)


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
