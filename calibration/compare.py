"""Two calibrations side by side: what each predicts over a grid of shapes, and how the second relates to the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from calibration.operators import kernel_s
from calibration.tables import ColumnTable
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
