"""The coefficients of kernel forms, as a calibration holds them, and what a form must know of GPU and number format.

The equations that use them are in `planner.roofline.kernels` and `planner.roofline.attention_kernels`. Coefficients
whose name contains ``efficiency`` are achieved / peak and lie in (0, 1], so that no form is faster than its roofline.
Times are seconds, the rest pure numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hardware_db import Correction, Dtype, KernelFit
from planner.core import FloatArray, InputError, UnknownNameError
from planner.roofline.arithmetic import PLAIN_NUMBERS, Value

SMALLEST_SIZE = 1e-9
"""Sizes are taken for at least this before their logarithm; a size of 0 lies left of every knot."""


@dataclass(frozen=True)
class GpuPeaks:
    """What a form needs to know of a GPU.

    Attributes:
        flops_per_s: dense peak of the format the kernel computes in [FLOP/s]: for matrix products that of
            `WEIGHT_FORMATS`, for attention that of the KV cache's format (the 16-bit one where the GPU has no other).
        bytes_per_s: HBM bandwidth [bytes/s].
        sms: processors thread blocks are spread over.
    """

    flops_per_s: float
    bytes_per_s: float
    sms: float


@dataclass(frozen=True)
class WeightFormat:
    """How a kernel treats weights stored in one way.

    Attributes:
        arithmetic: format whose peak bounds it.
        weight_bytes: per weight, block scales included.
        activation_bytes: per activation as the product reads it.
        quantised: whether a pass of its own quantises the 16-bit activations before the product.
    """

    arithmetic: Dtype
    weight_bytes: float
    activation_bytes: float
    quantised: bool


WEIGHT_FORMATS: dict[str, WeightFormat] = {
    "bf16": WeightFormat(Dtype.BF16, 2.0, 2.0, quantised=False),
    "fp8": WeightFormat(Dtype.FP8, 1.0, 1.0, quantised=True),
    "fp8_block": WeightFormat(Dtype.FP8, 1.0 + 4.0 / 128**2, 1.0, quantised=True),
    "int8": WeightFormat(Dtype.INT8, 1.0, 1.0, quantised=False),
    "int8_wo": WeightFormat(Dtype.BF16, 1.0, 2.0, quantised=False),
    "int4": WeightFormat(Dtype.BF16, 0.5 + 2.0 / 128, 2.0, quantised=False),
    "fp4": WeightFormat(Dtype.FP4, 0.5 + 1.0 / 16, 0.5 + 1.0 / 16, quantised=True),
    "mxfp4": WeightFormat(Dtype.BF16, 0.5 + 1.0 / 32, 2.0, quantised=False),
    "mxfp4_fp8": WeightFormat(Dtype.FP8, 0.5 + 1.0 / 32, 1.0, quantised=False),
}
"""By variant name of a calibration (``gemm/fp8``). Bytes: scales as in `planner.llm.layers.BYTES_PER_VALUE`.

int8 multiplies integers (SmoothQuant, Xiao et al. 2023, arXiv:2211.10438) whose activations the norm before it
quantises; int8_wo, int4 and mxfp4 multiply 16-bit values after unpacking the weights; mxfp4_fp8 multiplies 8-bit ones.
"""


@dataclass(frozen=True)
class SizeCorrection:
    """What a form misses, as measured: a factor on its time, tabulated over two sizes (`hardware_db` Correction).

    Attributes:
        first_log2: knots of the first size [log2].
        second_log2: knots of the second size [log2].
        log_factor: natural logarithm of the factor, one row per knot of the first size.
    """

    first_log2: tuple[float, ...]
    second_log2: tuple[float, ...]
    log_factor: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, record: Correction | None) -> SizeCorrection | None:
        """From a calibration's record, None where there is none."""
        if record is None:
            return None
        return cls(record.first_log2, record.second_log2, record.log_factor)

    @cached_property
    def _arrays(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        return np.array(self.first_log2), np.array(self.second_log2), np.array(self.log_factor)

    def factor(self, first: float | FloatArray, second: float | FloatArray) -> FloatArray:
        """Factor on the form's time at two sizes (shapes that broadcast), log-linear between knots, constant beyond.

        >>> correction = SizeCorrection((0.0, 2.0), (0.0,), ((0.0,), (float(np.log(4.0)),)))
        >>> correction.factor(np.array([1.0, 2.0, 64.0]), 7.0).round(6).tolist()
        [1.0, 2.0, 4.0]
        """
        rows, columns, table = self._arrays
        i, up = knot_position(rows, first)
        j, right = knot_position(columns, second)
        above, beside = np.minimum(i + 1, len(rows) - 1), np.minimum(j + 1, len(columns) - 1)
        low = table[i, j] * (1.0 - right) + table[i, beside] * right
        high = table[above, j] * (1.0 - right) + table[above, beside] * right
        return np.asarray(np.exp(low * (1.0 - up) + high * up))


def knot_position(knots_log2: FloatArray, size: float | FloatArray) -> tuple[NDArray[np.intp], FloatArray]:
    """Where log2 of a size lies among knots.

    Args:
        knots_log2: rising knots, shape (knots,) [log2].
        size: sizes > 0, any shape.

    Returns:
        Index of the knot at or below (the last but one at most), and the share of the distance to the next one, in
        [0, 1]; both of the shape of `size`.
    """
    log2 = np.log2(np.maximum(size, SMALLEST_SIZE))
    i = np.clip(np.searchsorted(knots_log2, log2, side="right") - 1, 0, max(len(knots_log2) - 2, 0))
    if len(knots_log2) == 1:
        return i, np.zeros(np.shape(log2))
    return i, np.clip((log2 - knots_log2[i]) / (knots_log2[i + 1] - knots_log2[i]), 0.0, 1.0)


def corrected_s(
    time_s: Value, ideal_s: Value, correction: SizeCorrection | None, first: Value | float, second: Value | float
) -> Value:
    """A form's time with its correction, but never below the ideal roofline time [s].

    Args:
        time_s: of the form, any shape [s].
        ideal_s: on the roofline, shape of `time_s` [s].
        correction: of the form; without one the time stays as it is.
        first: first size the correction is tabulated over.
        second: second size.
    """
    if correction is None:
        return time_s
    factor = correction.factor(first, second)
    if isinstance(time_s, PLAIN_NUMBERS):
        return max(time_s * float(factor), ideal_s)
    return np.maximum(time_s * factor, ideal_s)


@dataclass(frozen=True)
class Form:
    """Coefficients of a kernel form, read from a calibration.

    Attributes:
        correction: of the form's time, if any; its two sizes are named in the form's equation.
    """

    correction: SizeCorrection | None = field(default=None, kw_only=True)

    @classmethod
    def of(cls, fit: KernelFit) -> Self:
        """From a calibration's record. Coefficients that only describe how it was measured are left out."""
        values = {name: coefficient.value for name, coefficient in fit.parameters.items()}
        return cls.from_values(values, SizeCorrection.of(fit.correction))

    @classmethod
    def from_values(cls, values: Mapping[str, float], correction: SizeCorrection | None = None) -> Self:
        """From plain numbers by name; those that are no coefficients of this form are left out."""
        known = {attribute.name for attribute in fields(cls)} - {"correction"}
        return cls(**{name: value for name, value in values.items() if name in known}, correction=correction)


@dataclass(frozen=True)
class GemmForm(Form):
    """y[m, n] = x[m, k] W[k, n]. Units: seconds and pure numbers.

    Attributes:
        start_s: launch floor.
        compute_efficiency: of the peak, for the largest tile.
        memory_efficiency: of the bandwidth, with enough tiles in flight.
        order: of the p-norm of compute and memory time.
        small_tile_loss: relative loss of a tile of half the largest one's area.
        fill: how much faster than the share of busy processors the bandwidth grows.
        split_s: cost of the reduction after a split.
        quantise_efficiency: of the bandwidth, in the pass that quantises the activations.
        quantise_row: values a row of activations costs more in that pass (one thread block a row).
    """

    start_s: float
    compute_efficiency: float
    memory_efficiency: float
    order: float
    small_tile_loss: float
    fill: float
    split_s: float
    quantise_efficiency: float = 1.0
    quantise_row: float = 0.0


HEAD_DIMS = (64, 128, 256, 512)
"""Head dimensions that attention is measured at; each stands for those up to it and above the one before."""


def _at_head_dim(form: Form, coefficient: str, head_dim: float) -> float:
    """A coefficient at a head dimension; that of 128 where this one was not measured."""
    measured = next((dim for dim in HEAD_DIMS if head_dim <= dim), HEAD_DIMS[-1])
    return float(getattr(form, f"{coefficient}_{measured}") or getattr(form, f"{coefficient}_128"))


@dataclass(frozen=True)
class PrefillForm(Form):
    """Causal attention of new tokens over past and new ones.

    Attributes:
        start_s: launch floor.
        memory_efficiency: of the bandwidth.
        order: of the p-norm of compute and memory time.
        row_tokens: extra keys each query row costs (prologue, softmax, diagonal tile).
        block_share: how much of one thread block's time is not hidden.
        compute_efficiency_128: of the peak at head dimension 128.
        compute_efficiency_64: at 64 and below; 0 = not measured, as at 128 (so for the others).
        compute_efficiency_256: at 129 to 256.
        compute_efficiency_512: above.
        window_row_growth: row_tokens of windowed layers / row_tokens.
    """

    start_s: float
    memory_efficiency: float
    order: float
    row_tokens: float
    block_share: float
    compute_efficiency_128: float
    compute_efficiency_64: float = 0.0
    compute_efficiency_256: float = 0.0
    compute_efficiency_512: float = 0.0
    window_row_growth: float = 1.0

    def compute_efficiency(self, head_dim: float) -> float:
        """Share of peak at a head dimension; that of 128 where this one was not measured."""
        return _at_head_dim(self, "compute_efficiency", head_dim)


@dataclass(frozen=True)
class DecodeForm(Form):
    """One query per sequence over its cache.

    Attributes:
        start_s: launch floor.
        compute_efficiency: of the peak.
        order: of the p-norm of compute, memory and block time.
        block_s: time of one thread block, spread over the processors.
        fill: as in `GemmForm`.
        memory_efficiency_128: of the bandwidth at head dimension 128.
        splits_kv: 1 when a sequence's cache is split over thread blocks, 0 when one block walks all of it.
        splits_plain: the same for layers with a window or with a KV head for every query head.
        memory_efficiency_64: at 64 and below; 0 = not measured, as at 128 (so for the others).
        memory_efficiency_256: at 129 to 256.
        memory_efficiency_512: above.
        ungrouped_efficiency: share of that efficiency that layers with a KV head for every query head reach.
        group_growth: power of the query heads per KV head in the block floor of layers without a window.
        window_growth: power of the query heads per KV head in the block floor of windowed layers.
    """

    start_s: float
    compute_efficiency: float
    order: float
    block_s: float
    fill: float
    memory_efficiency_128: float
    splits_kv: float = 1.0
    splits_plain: float = 1.0
    memory_efficiency_64: float = 0.0
    memory_efficiency_256: float = 0.0
    memory_efficiency_512: float = 0.0
    ungrouped_efficiency: float = 1.0
    group_growth: float = 0.0
    window_growth: float = 0.0

    def memory_efficiency(self, head_dim: float) -> float:
        """Share of bandwidth at a head dimension; that of 128 where this one was not measured."""
        return _at_head_dim(self, "memory_efficiency", head_dim)


@dataclass(frozen=True)
class LatentDecodeForm(Form):
    """Absorbed decode of multi-head latent attention: all heads read one latent row per cached token.

    Coefficients as in `DecodeForm`, for the one head dimension there is.
    """

    start_s: float
    compute_efficiency: float
    memory_efficiency: float
    order: float
    block_s: float
    fill: float
    splits_kv: float = 1.0


@dataclass(frozen=True)
class LatentPrefillForm(Form):
    """Prefill of multi-head latent attention, keys and values expanded per head. Coefficients as in `PrefillForm`."""

    start_s: float
    compute_efficiency: float
    memory_efficiency: float
    order: float
    row_tokens: float
    block_share: float


@dataclass(frozen=True)
class ExpertsForm(Form):
    """Routed experts of one GPU: top-k, permutation, two grouped GEMMs, un-permutation.

    Attributes:
        start_s: launch floor of all its kernels.
        token_s: routing and permutation per token.
        compute_efficiency: of the peak, for the largest row tile.
        memory_efficiency: of the bandwidth, with enough tiles in flight.
        order: of the p-norm of compute and memory time.
        small_tile_loss: relative loss of a row tile of half the largest one's rows.
        fill: as in `GemmForm`.
    """

    start_s: float
    token_s: float
    compute_efficiency: float
    memory_efficiency: float
    order: float
    small_tile_loss: float
    fill: float


@dataclass(frozen=True)
class CollectiveForm(Form):
    """A collective over a fixed number of GPUs: floor and bandwidth joined by a p-norm, often of order below 1.

    Attributes:
        start_s: time of an empty one.
        link_efficiency: of the link's bandwidth per direction, under the payload convention of `kernels.collective_s`.
        order: of the p-norm.
    """

    start_s: float
    link_efficiency: float
    order: float


@dataclass(frozen=True)
class ElementwiseForm(Form):
    """A pass over memory: launch floor plus traffic at a share of the bandwidth.

    Attributes:
        start_s: launch floor.
        memory_efficiency: of the bandwidth.
    """

    start_s: float
    memory_efficiency: float


FORMS: dict[str, type[Form]] = {
    "gemm": GemmForm,
    "attention_prefill": PrefillForm,
    "attention_decode": DecodeForm,
    "latent_prefill": LatentPrefillForm,
    "latent_decode": LatentDecodeForm,
    "experts": ExpertsForm,
    "all_reduce": CollectiveForm,
    "all_gather": CollectiveForm,
    "reduce_scatter": CollectiveForm,
    "all_to_all": CollectiveForm,
    "expert_dispatch": CollectiveForm,
    "expert_combine": CollectiveForm,
    "elementwise": ElementwiseForm,
}
"""Form of a kernel by the first part of its key in a calibration (``gemm/fp8``)."""


def check_kernel_fit(key: str, fit: KernelFit) -> None:
    """Refuse a fit that cannot time its kernel.

    Args:
        key: of the kernel in a calibration, e.g. ``gemm/fp8``.
        fit: its coefficients.

    Raises:
        UnknownNameError: no form belongs to the key.
        InputError: a coefficient of the form is missing, or a time is negative.
    """
    form = FORMS.get(key.split("/", maxsplit=1)[0])
    if form is None:
        raise UnknownNameError("kernels", key, FORMS)
    try:
        form.of(fit)
    except TypeError as error:
        missing = str(error).partition("missing ")[2] or str(error)
        raise InputError(
            f"kernels.{key}.parameters", list(fit.parameters), f"lacks {missing}", "fit it again"
        ) from None
    for name, coefficient in fit.parameters.items():
        if name.endswith("_s") and coefficient.value < 0.0:
            bound = "a time cannot be negative"
            raise InputError(f"kernels.{key}.parameters.{name}", coefficient.value, bound, "fit it again")
