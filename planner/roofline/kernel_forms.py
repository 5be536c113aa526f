"""The coefficients of kernel forms, as a calibration holds them, and what a form must know of GPU and number format.

The equations that use them are in `planner.roofline.kernels` and beside the operators of attention. Coefficients
whose name contains ``efficiency`` are achieved / peak and lie in (0, 1], so that no form is faster than its roofline.
Times are seconds, the rest pure numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import Self

import numpy as np

from hardware_db import Correction, Dtype, KernelFit, MeasuredShapes
from planner.core import Constants, FloatArray, InputError, UnknownNameError, compiled, vectorized, with_knots
from planner.llm import ACTIVATIONS_OF, BYTES_PER_VALUE
from planner.roofline.arithmetic import corrected_s


@dataclass(frozen=True)
class GpuPeaks:
    """Peaks of a GPU that forms use.

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
        quantised: true if a pass of its own quantises the 16-bit activations before the product.
    """

    arithmetic: Dtype
    weight_bytes: float
    activation_bytes: float
    quantised: bool


def weight_key(weights: Dtype, activations: Dtype) -> str:
    """Name of the kernels that multiply two formats: ``bf16``, ``fp8``, ``int8_wo`` (weight only), ``mxfp4_fp8``, ...

    Args:
        weights: number format of the weights.
        activations: number format of the activations, one of `planner.llm.ACTIVATIONS_OF` for these weights.

    Returns:
        A key of `WEIGHT_FORMATS`.
    """
    if BYTES_PER_VALUE[weights] == 2.0:
        return "bf16"
    if BYTES_PER_VALUE[activations] == 2.0:
        return f"{weights.value}_wo"
    if weights.arithmetic is activations.arithmetic:
        return weights.value
    return f"{weights.value}_{activations.arithmetic.value}"


def _weight_format(weights: Dtype, activations: Dtype) -> WeightFormat:
    arithmetic = activations.arithmetic
    activation_bytes = _PLAIN_ACTIVATION_BYTES.get(arithmetic, BYTES_PER_VALUE[weights])
    quantised = arithmetic is weights.arithmetic and arithmetic in (Dtype.FP8, Dtype.FP4)
    return WeightFormat(arithmetic, BYTES_PER_VALUE[weights], activation_bytes, quantised)


_PLAIN_ACTIVATION_BYTES = {Dtype.BF16: 2.0, Dtype.FP8: 1.0, Dtype.INT8: 1.0}
"""Per activation, by arithmetic; scales of 8-bit ones, at most 3 % of their bytes, are left out. 4-bit activations are
scaled as the weights they are multiplied with."""
WEIGHT_FORMATS: dict[str, WeightFormat] = {
    weight_key(weights, activations): _weight_format(weights, activations)
    for weights, known in ACTIVATIONS_OF.items()
    for activations in known
    if Dtype.FP16 not in (weights, activations)
}
"""By variant name of a calibration (``gemm/fp8``). Bytes: scales as in `planner.llm.BYTES_PER_VALUE`.

``fp8``, ``int8``, ``nvfp4`` ... multiply activations of the same width; ``fp8_wo``, ``int8_wo``, ``int4_wo`` ... 16-bit
ones after unpacking the weights; ``mxfp4_fp8``, ``int4_fp8`` ... 8-bit ones. The activations of fp8 and of 4 bits are
quantised by a pass of its own (those of fp8 may come so: `Fusion`), those of int8 by the norm before it (SmoothQuant,
Xiao et al. 2023, arXiv:2211.10438), those of mixed products by the kernels before them.
"""


@dataclass(frozen=True)
class SizeCorrection:
    """Measured correction of a form: a factor on its time, tabulated over two sizes (`hardware_db` Correction).

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
    def table(self) -> FloatArray:
        """The same with its knots, at least two a side, as `interpolated` reads it."""
        first, second, table = (np.array(part) for part in (self.first_log2, self.second_log2, self.log_factor))
        if len(first) == 1:
            first, table = np.append(first, first + 1.0), np.vstack([table, table])
        if len(second) == 1:
            second, table = np.append(second, second + 1.0), np.hstack([table, table])
        return with_knots(first, second, table)

    def factor(self, first: float | FloatArray, second: float | FloatArray) -> FloatArray:
        """Factor on the form's time at two sizes (shapes that broadcast), log-linear between knots, constant beyond.

        >>> correction = SizeCorrection((0.0, 2.0), (0.0,), ((0.0,), (float(np.log(4.0)),)))
        >>> correction.factor(np.array([1.0, 2.0, 64.0]), 7.0).round(6).tolist()
        [1.0, 2.0, 4.0]
        """
        return _factor(first, second, self)


@vectorized(SizeCorrection)
def _factor(_constants: None, table: FloatArray, first: float, second: float) -> float:
    return corrected_s(table, 1.0, 0.0, first, second)


SHAPE_LENGTHS_LOG2 = (0.5, 0.5, 1.0, 1.0, 1.0, 0.2)
"""Distances over which what was measured at a shape of experts tells about another one [doublings]: of the hidden size,
the width of an expert, the experts a token visits, all experts, the groups they live in, and the matrices of an expert.
Fitted: of four sets the one with the least error on models left out, for eleven of twelve kernels. The first two are
those of a matrix product's output and inner width as well."""
SHAPE_DOUBT = 0.3
"""Weight of no correction at all where curves of other shapes are averaged; that of an equal shape is 1. Fitted so."""


@dataclass(frozen=True)
class ShapeCorrection:
    """Correction of a form at measured shapes (`hardware_db` MeasuredShapes): each has its own curve over a size.

    At any other shape the curves of those near it are averaged,

        curve = sum_i w_i curve_i / (sum_i w_i + doubt),    w_i = exp(-distance_i^2 / 2)

    which fades to none where nothing near was measured (kernel regression, Nadaraya 1964, Theory Probab. Appl. 9, 141,
    with a pull to zero).

    Attributes:
        size_log2: knots of the size [log2].
        shapes: sizes of each measured shape.
        log_factor: natural logarithm of the factor at every knot, one curve per shape.
    """

    size_log2: tuple[float, ...]
    shapes: tuple[tuple[float, ...], ...]
    log_factor: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, record: MeasuredShapes | None) -> ShapeCorrection | None:
        """From a calibration's record, None where there is none. Equal records share what they have looked up."""
        return None if record is None else _shape_correction(record)

    @cached_property
    def _arrays(self) -> tuple[FloatArray, FloatArray]:
        return _shape_position(np.array(self.shapes)), np.array(self.log_factor)

    @cached_property
    def _curves(self) -> dict[tuple[float, ...], SizeCorrection]:
        return {}

    def at(self, shape: tuple[float, ...]) -> SizeCorrection:
        """The curve of a shape, whose first size is that of the knots; its second one does not matter.

        >>> measured = ShapeCorrection((0.0, 4.0), ((4096.0, 1024.0, 8.0, 128.0, 1.0, 3.0),), ((0.2, 0.1),))
        >>> measured.at((4096.0, 1024.0, 8.0, 128.0, 1.0, 3.0)).log_factor
        ((0.2,), (0.1,))
        >>> measured.at((512.0, 64.0, 1.0, 8.0, 1.0, 3.0)).log_factor  # nothing near was measured
        ((0.0,), (0.0,))
        """
        curve = self._curves.get(shape)
        if curve is None:
            measured = shape in self.shapes
            log_factor = self.log_factor[self.shapes.index(shape)] if measured else self._near(shape)
            curve = SizeCorrection(self.size_log2, (0.0,), tuple((value,) for value in log_factor))
            self._curves[shape] = curve
        return curve

    def _near(self, shape: tuple[float, ...]) -> tuple[float, ...]:
        positions, curves = self._arrays
        distance = (positions - _shape_position(np.array([shape]))) / np.array(SHAPE_LENGTHS_LOG2[: len(shape)])
        weight = np.exp(-0.5 * (distance**2).sum(axis=1))
        return tuple((weight @ curves / (weight.sum() + SHAPE_DOUBT)).round(4).tolist())


@lru_cache(maxsize=512)
def _shape_correction(record: MeasuredShapes) -> ShapeCorrection:
    return ShapeCorrection(record.size_log2, record.shapes, record.log_factor)


def _shape_position(shapes: FloatArray) -> FloatArray:
    """Where shapes of experts lie [doublings]; from one group of experts to two is twice as far as from two to four.

    Without expert parallelism the load is another one (no GPU is busier than the rest) and engines may run other
    kernels.
    """
    position = np.log2(shapes)
    if position.shape[1] == len(SHAPE_LENGTHS_LOG2):
        position[:, 4] += shapes[:, 4] > 1.0
    return np.asarray(position)


NO_CORRECTION = with_knots(np.arange(2.0), np.arange(2.0), np.zeros((2, 2)))
"""Table of a correction that changes nothing."""


@dataclass(frozen=True)
class Form:
    """Coefficients of a kernel form, read from a calibration.

    Attributes:
        correction: of the form's time, if any; its two sizes are named in the form's equation.
        measured: of the corrected time at measured shapes, if any; likewise.
    """

    correction: SizeCorrection | None = field(default=None, kw_only=True)
    measured: ShapeCorrection | None = field(default=None, kw_only=True)

    @property
    def table(self) -> FloatArray:
        """Of the correction; of no effect where there is none."""
        return NO_CORRECTION if self.correction is None else self.correction.table

    @classmethod
    def of(cls, fit: KernelFit) -> Self:
        """From a calibration's record. Coefficients that only describe how it was measured are left out."""
        values = {name: coefficient.value for name, coefficient in fit.parameters.items()}
        return cls.from_values(values, SizeCorrection.of(fit.correction), ShapeCorrection.of(fit.measured_shapes))

    @classmethod
    def from_values(
        cls,
        values: Mapping[str, float],
        correction: SizeCorrection | None = None,
        measured: ShapeCorrection | None = None,
    ) -> Self:
        """From plain numbers by name; those that are no coefficients of this form are left out."""
        known = {attribute.name for attribute in fields(cls)} - {"correction", "measured"}
        chosen = {name: value for name, value in values.items() if name in known}
        return cls(**chosen, correction=correction, measured=measured)


@dataclass(frozen=True)
class RooflineForm(Form):
    """Shares of a roofline. Units: seconds and pure numbers.

    Attributes:
        start_s: launch floor of its kernels.
        compute_efficiency: of the peak.
        memory_efficiency: of the bandwidth.
        order: of the p-norm of compute and memory time.
    """

    start_s: float
    compute_efficiency: float
    memory_efficiency: float
    order: float


@dataclass(frozen=True)
class GemmForm(RooflineForm):
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

    small_tile_loss: float
    fill: float
    split_s: float
    quantise_efficiency: float = 1.0
    quantise_row: float = 0.0


HEAD_DIMS = (64, 128, 256, 512)
"""Head dimensions that attention is measured at; each stands for those up to it and above the one before."""


@compiled
def at_head_dim(head_dim: float, at_64: float, at_128: float, at_256: float, at_512: float) -> float:
    """A coefficient at a head dimension; that of 128 where this one was not measured.

    Args:
        head_dim: channels of a head.
        at_64: coefficient at the first of `HEAD_DIMS` and below; 0 = not measured (so for the others).
        at_128: above that, up to the second.
        at_256: likewise.
        at_512: likewise, and beyond.

    Returns:
        The coefficient.
    """
    value = at_64 if head_dim <= 64.0 else at_128 if head_dim <= 128.0 else at_256 if head_dim <= 256.0 else at_512
    return value if value > 0.0 else at_128


@dataclass(frozen=True)
class PrefillForm(Form):
    """Causal attention of new tokens over past and new ones.

    Attributes:
        start_s: launch floor.
        memory_efficiency: of the bandwidth.
        order: of the p-norm of compute and memory time.
        row_tokens: extra keys each query row costs (prologue, softmax, diagonal tile).
        block_share: how much of one thread block's time is not hidden.
        compute_efficiency_128: of the peak at head dimension 128; of a fit for one kind of heads, at theirs.
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


@compiled
def prefill_efficiency(row: Constants) -> float:
    """Share of the peak that prompt attention reaches.

    Args:
        row: heads, and the coefficients of a `PrefillForm`.

    Returns:
        The share, in (0, 1].
    """
    of_short = row.compute_efficiency_64, row.compute_efficiency_128
    return at_head_dim(row.head_dim, *of_short, row.compute_efficiency_256, row.compute_efficiency_512)


@dataclass(frozen=True)
class DecodeForm(Form):
    """One query per sequence over its cache.

    Attributes:
        start_s: launch floor.
        compute_efficiency: of the peak.
        order: of the p-norm of compute, memory and block time.
        block_s: time of one thread block, spread over the processors.
        fill: as in `GemmForm`.
        memory_efficiency_128: of the bandwidth at head dimension 128; of a fit for one kind of heads, at theirs.
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


@dataclass(frozen=True)
class LatentDecodeForm(RooflineForm):
    """Absorbed decode of multi-head latent attention: all heads read one latent row per cached token.

    Coefficients as in `DecodeForm`, for the one head dimension there is.
    """

    block_s: float
    fill: float
    splits_kv: float = 1.0


@dataclass(frozen=True)
class LatentPrefillForm(RooflineForm):
    """Prefill of multi-head latent attention, keys and values expanded per head. Coefficients as in `PrefillForm`."""

    row_tokens: float
    block_share: float


@dataclass(frozen=True)
class RecurrentPrefillForm(RooflineForm):
    """Short convolution and chunked scan of prompts through a recurrent state.

    Attributes:
        start_s: launch floor of both kernels.
        compute_efficiency: of the peak, with enough sequences and heads to fill the processors.
        memory_efficiency: of the bandwidth.
        order: of the p-norm of the work of all and the chain of one.
        token_s: a token's part of one sequence's chain of chunks, which come one after another.
    """

    token_s: float


@dataclass(frozen=True)
class RecurrentDecodeForm(Form):
    """Short convolution and update of the recurrent state, one token per sequence.

    Attributes:
        start_s: launch floor of both kernels.
        memory_efficiency: of the bandwidth.
        order: of the p-norm of floor and memory time.
    """

    start_s: float
    memory_efficiency: float
    order: float


@dataclass(frozen=True)
class IndexScoresForm(RooflineForm):
    """Scores of a sparse index: small heads against one 8-bit key per token.

    Attributes:
        start_s: launch floor.
        compute_efficiency: of the peak.
        memory_efficiency: of the bandwidth.
        order: of the p-norm of compute and memory time.
    """


@dataclass(frozen=True)
class IndexSelectionForm(Form):
    """The largest of each query's scores, one thread block a query.

    Attributes:
        start_s: launch floor.
        row_s: of a thread block, whatever it selects from.
        key_s: of a thread block per score.
    """

    start_s: float
    row_s: float
    key_s: float


@dataclass(frozen=True)
class SparsePrefillForm(Form):
    """Latent attention of new tokens over the keys a sparse index chose for each, one thread block a token.

    Attributes:
        start_s: launch floor.
        compute_efficiency: of the peak, every token's keys and heads filled up.
    """

    start_s: float
    compute_efficiency: float


@dataclass(frozen=True)
class CompressedForm(Form):
    """Attention over a window and compressed keys, with all that is between its projections but the index.

    Attributes:
        start_s: launch floor of its kernels.
        compute_efficiency: of the peak, heads filled up to whole groups.
        memory_efficiency: of the bandwidth, in the passes over queries and outputs and in reading keys.
        row_keys: keys that a query costs beside those it sees (prologue, softmax, blocks that are not full).
    """

    start_s: float
    compute_efficiency: float
    memory_efficiency: float
    row_keys: float


@dataclass(frozen=True)
class ChosenPrefillForm(Form):
    """Latent attention of prompts over the keys a sparse index chose, and that index.

    Attributes:
        start_s: launch floor of attention.
        compute_efficiency: of the peak, of attention with groups of query heads filled up.
        short_share: cost of a query that sees no key, relative to one that sees all it may attend to.
        head_growth: exponent of the cost over groups of query heads.
        index_start_s: launch floor of scores and selection.
        index_efficiency: of the peak, of the scores.
        select_s: of a processor per score.
        dense_keys: tokens, with those before them, up to which a prompt goes through dense attention and nothing is
            scored; 0 = never.
        dense_efficiency: of the peak, there.
    """

    start_s: float
    compute_efficiency: float
    short_share: float
    head_growth: float
    index_start_s: float
    index_efficiency: float
    select_s: float
    dense_keys: float = 0.0
    dense_efficiency: float = 1.0


@dataclass(frozen=True)
class ChosenDecodeForm(Form):
    """Latent attention of decodes over the keys a sparse index chose, and that index.

    Attributes:
        start_s: launch floor of attention.
        compute_efficiency: of the peak, of attention with groups of query heads filled up.
        short_share: as in `ChosenPrefillForm`.
        order: of the p-norm of floor and work.
        index_start_s: launch floor of scores and selection.
        index_efficiency: of the bandwidth, for index keys.
    """

    start_s: float
    compute_efficiency: float
    short_share: float
    order: float
    index_start_s: float
    index_efficiency: float


@dataclass(frozen=True)
class BlockPrefillForm(Form):
    """Prompts over the blocks of keys an index chose, the scores of the index included.

    Attributes:
        start_s: launch floor of all its kernels.
        compute_efficiency: of the peak, of attention with its tiles of query heads filled up.
        memory_efficiency: of the bandwidth, for queries, outputs, new keys and values.
        index_efficiency: of the peak, of the scores.
        row_tokens: keys' worth of work each query costs beside its keys.
        key_s: of a thread block of the index per key of a row.
        order: of the p-norm of scores and chain.
    """

    start_s: float
    compute_efficiency: float
    memory_efficiency: float
    index_efficiency: float
    row_tokens: float
    key_s: float
    order: float


@dataclass(frozen=True)
class BlockDecodeForm(Form):
    """Decodes over the blocks of keys an index chose, the scores of the index included.

    Attributes:
        start_s: launch floor of all its kernels.
        memory_efficiency: of the bandwidth, for chosen keys and values.
        index_efficiency: of the bandwidth, for index keys.
        block_s: of a thread block, per query and KV head.
        order: of the p-norm of floor and work.
    """

    start_s: float
    memory_efficiency: float
    index_efficiency: float
    block_s: float
    order: float


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
class NetworkForm(Form):
    """Communication that leaves a server: over the network, or over the links of a rack-scale domain.

    Attributes:
        launch_s: of its kernels.
        hop_s: per trip and GPU of a domain beyond the first.
        crossing_s: per trip and doubling of the number of domains.
        link_efficiency: of the bandwidth of the slowest link.
        order: of the p-norm of start and transfer.
    """

    launch_s: float
    hop_s: float
    crossing_s: float
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
    "wide_prefill": PrefillForm,
    "encoder_attention": PrefillForm,
    "wide_decode": DecodeForm,
    "latent_prefill": LatentPrefillForm,
    "latent_decode": LatentDecodeForm,
    "recurrent_prefill": RecurrentPrefillForm,
    "recurrent_decode": RecurrentDecodeForm,
    "index_scores": IndexScoresForm,
    "index_selection": IndexSelectionForm,
    "sparse_prefill": SparsePrefillForm,
    "chosen_prefill": ChosenPrefillForm,
    "chosen_decode": ChosenDecodeForm,
    "block_prefill": BlockPrefillForm,
    "block_decode": BlockDecodeForm,
    "compressed_prefill": CompressedForm,
    "compressed_decode": CompressedForm,
    "experts": ExpertsForm,
    "all_reduce": CollectiveForm,
    "normed_reduce": CollectiveForm,
    "all_gather": CollectiveForm,
    "reduce_scatter": CollectiveForm,
    "all_to_all": CollectiveForm,
    "expert_dispatch": CollectiveForm,
    "expert_combine": CollectiveForm,
    "network": NetworkForm,
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
