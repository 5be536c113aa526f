"""Known part of a whole module that was measured: its projections and passes, as the other fits of an engine say.

Some attention was measured only with what stands around it. The time of that, as a step counts it, is a constant of
each row, and what is fitted is the rest, judged on the whole. Weights that stay in the L2 cache between repeats are
read from there, as the fits of matrix products describe it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from calibration.operators import gpu_peaks
from calibration.tables import ColumnTable, FloatArray
from hardware_db import Dtype, GpuSku, KernelFit
from planner.roofline import WEIGHT_FORMATS, ElementwiseForm, GemmForm, elementwise_s, gemm_s

Fit = Callable[[str], KernelFit | None]
"""The fit of an engine by its key, None where it has none."""


class Product(NamedTuple):
    """A matrix product of every row.

    Attributes:
        outputs: channels, one number or one a row.
        inputs: channels, likewise.
        formats: variant of a calibration that each row multiplies, one text or one a row.
    """

    outputs: FloatArray | float
    inputs: FloatArray | float
    formats: NDArray[np.str_] | str


class Passes(NamedTuple):
    """Passes over activations: kernels, and bytes of a token that all of them move together."""

    kernels: float
    token_bytes: FloatArray | float


def with_known_s(
    rows: ColumnTable, products: Sequence[Product], passes: Passes | None, sku: GpuSku, fit: Fit
) -> ColumnTable:
    """The rows whose projections and passes have fits, with the time of these as ``_known_s``; None: no passes."""
    tokens, elementwise = rows["batch_size"] * rows["isl"], fit("elementwise/bf16")
    known = np.full(len(rows), np.nan if passes is not None else 0.0)
    if passes is not None and elementwise is not None:
        form = ElementwiseForm.of(elementwise)
        known = (passes.kernels - 1.0) * form.start_s + elementwise_s(
            tokens * passes.token_bytes, form, gpu_peaks(sku, Dtype.BF16)
        )
    sizes = [(np.broadcast_to(p.outputs, known.shape), np.broadcast_to(p.inputs, known.shape)) for p in products]
    formats = [np.broadcast_to(np.asarray(product.formats, dtype=np.str_), known.shape) for product in products]
    stored = np.zeros(len(rows))
    for (n, k), names in zip(sizes, formats, strict=True):
        stored += n * k * np.array([WEIGHT_FORMATS[name].weight_bytes for name in names.tolist()])
    for (n, k), names in zip(sizes, formats, strict=True):
        for name in np.unique(names).tolist():
            at, kind, product = names == name, WEIGHT_FORMATS[name], fit(f"gemm/{name}")
            if product is None:
                known[at] = np.nan
                continue
            peaks = gpu_peaks(sku, kind.arithmetic, product.parameters["resident_gain"].value, stored[at])
            known[at] += gemm_s(tokens[at], n[at], k[at], GemmForm.of(product), peaks, kind)
    return rows.with_columns(_known_s=known).rows(~np.isnan(cast(FloatArray, known)))
