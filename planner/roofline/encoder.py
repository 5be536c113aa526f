"""The vision encoder on one GPU: its operators, and how long the images of a request take in it.

Matrix products run in 16 bit as those of the language model. Patches attend to all patches of their image, forwards and
backwards: P new tokens with (P - 1) / 2 earlier ones each have P^2 pairs, which is how it is asked of the form of
causal attention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from hardware_db import GpuSku
from planner.llm import EncodedImage, EncoderMatrix, VisionEncoder
from planner.roofline.gpu import CalibratedGpu, all_reduce_link_bytes, half_precision, link_bandwidth_bytes_per_s
from planner.roofline.grouped import AttentionHeads, GroupedPrefill, prefill_attention_s
from planner.roofline.kernel_forms import PrefillForm
from planner.roofline.operators import (
    ACTIVATION_BYTES,
    Collective,
    Driver,
    Elementwise,
    MatrixProduct,
    Operator,
    PromptKernel,
    PromptWork,
    operator_seconds,
)
from planner.roofline.shape import Load, OperatorFamily

KERNEL_HEAD_DIMS = (64, 96, 128, 192, 256)
"""Channels of a head for which attention kernels are compiled; others run in the next larger one (FlashAttention 3,
``round_up_headdim`` of ``hopper/flash_api.cpp``)."""


@dataclass(frozen=True)
class PatchAttention(GroupedPrefill):
    """Attention of all patches of an image to one another: what it reads and writes are activations, not a cache."""

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Kernels of encoders for heads of these channels; then those of prompts."""
        return (f"encoder_attention/{self.head_dim:g}", *super().fit_keys)

    @property
    def prompt_work(self) -> PromptWork:
        """4 h d FLOPs per pair; queries, keys and values in, outputs out."""
        width = self.heads * self.head_dim
        return PromptWork(pair_flops=4.0 * width, token_bytes=4.0 * width * ACTIVATION_BYTES)

    def prompt_kernel(self, gpu: CalibratedGpu) -> PromptKernel | None:
        """`prefill_attention_s` without a cache; where such heads were not measured, of prompts in the next of
        `KERNEL_HEAD_DIMS`.
        """
        form = gpu.form(PrefillForm, self.fit_keys[0])
        if form is not None:
            heads = AttentionHeads(self.heads, self.heads, self.head_dim, 0.0)
            return PromptKernel(prefill_attention_s, (heads, form, gpu.peaks(self.dtype)))
        sizes = {field.name: getattr(self, field.name) for field in fields(self)}
        padded = min((float(dim) for dim in KERNEL_HEAD_DIMS if dim >= self.head_dim), default=self.head_dim)
        return GroupedPrefill(**{**sizes, "head_dim": padded}).prompt_kernel(gpu)


def encoder_tp(encoder: VisionEncoder, tp: int) -> int:
    """GPUs that the encoder is split over: those of the language model, or 1, each with all of it.

    vLLM shards the encoder as the language model (``mm_encoder_tp_mode`` is weights by default), SGLang likewise (no
    ``--mm-enable-dp-encoder``); where its heads or channels do not divide, every GPU holds and runs all of it.

    Args:
        encoder: of the model.
        tp: GPUs that a layer of the language model is split over.

    Returns:
        `tp` or 1.
    """
    return tp if encoder.heads % tp == 0 and encoder.intermediate % tp == 0 else 1


def encoder_operators(encoder: VisionEncoder, sku: GpuSku, tp: int) -> tuple[Operator, ...]:
    """All operators of the encoder on one GPU, in the order of the model.

    Those around the layers run over patches or, with `Driver.ROWS`, over merged patches. Layers are split over
    `encoder_tp` GPUs with a sum after attention and feed-forward; what is around them too.

    Args:
        encoder: of the model.
        sku: GPU.
        tp: GPUs that a layer of the language model is split over.

    Returns:
        Operators of one image or of many.
    """
    split, half = encoder_tp(encoder, tp), half_precision(sku)
    layers, hidden = float(encoder.layers), float(encoder.hidden_size)
    heads, head_dim = encoder.heads / split, float(encoder.head_dim)
    inner, width = heads * head_dim, encoder.intermediate / split

    def matrix(family: OperatorFamily, count: float, n: float, k: float, driver: Driver = Driver.TOKENS) -> Operator:
        return MatrixProduct(family, half, count, driver, n, k, half, half)

    def around(item: EncoderMatrix) -> Operator:
        driver = Driver.TOKENS if item.patches == 1 else Driver.ROWS
        return matrix(OperatorFamily.EMBEDDING, float(item.count), item.outputs / split, float(item.inputs), driver)

    def passes(family: OperatorFamily, values: float, kernels: float) -> Operator:
        return Elementwise(family, half, layers, Driver.TOKENS, values, kernels)

    attention = (half, layers, Driver.SHAPE, heads, heads, head_dim, half, 0.0)
    matrices = 2.0 if encoder.gated else 1.0
    operators = [
        *map(around, encoder.matrices),
        passes(OperatorFamily.NORM, 8.0 * hidden, 2.0),
        matrix(OperatorFamily.QKV, layers, 3.0 * inner, hidden),
        passes(OperatorFamily.QKV, 4.0 * inner, 1.0),
        PatchAttention(OperatorFamily.ATTENTION_PREFILL, *attention),
        matrix(OperatorFamily.ATTENTION_OUTPUT, layers, hidden, inner),
        matrix(OperatorFamily.FEED_FORWARD, layers, matrices * width, hidden),
        passes(OperatorFamily.FEED_FORWARD, (matrices + 1.0) * width, 1.0),
        matrix(OperatorFamily.FEED_FORWARD, layers, hidden, width),
    ]
    if split > 1:
        sums = (split, hidden, ACTIVATION_BYTES, all_reduce_link_bytes(1.0, split))
        link = link_bandwidth_bytes_per_s(sku, split)
        reduce = OperatorFamily.ALL_REDUCE
        operators.append(Collective(reduce, half, 2.0 * layers, Driver.TOKENS, "all_reduce", *sums, link))
    return tuple(operators)


def encoder_load(encoder: VisionEncoder, image: EncodedImage, images: int) -> Load:
    """Load of the encoder's operators for `images` images alike, encoded together.

    Args:
        encoder: of the model.
        image: patches and tokens of each.
        images: their number.

    Returns:
        Patches as tokens, merged patches as rows, sequences of patches as chunks.
    """
    sequences, patches = float(images * image.sequences), float(image.patches)
    rows = sequences * patches
    merged = max(matrix.patches for matrix in encoder.matrices)
    return Load(
        tokens=rows,
        group_tokens=rows,
        rows=rows / merged,
        decodes=0.0,
        context=1.0,
        chunks=sequences,
        new=patches,
        past=(patches - 1.0) / 2.0,
        cached=0.0,
    )


def encoder_kernels_s(encoder: VisionEncoder, image: EncodedImage, images: int, gpu: CalibratedGpu, tp: int) -> float:
    """Time of the encoder's kernels for `images` images alike, encoded together.

    Sum of `operator_seconds` over `encoder_operators`: each its kernel where one like it was measured, else its
    roofline (Williams, Waterman, Patterson 2009, CACM 52(4), eq. 1).

    Args:
        encoder: of the model.
        image: patches and tokens of each image.
        images: their number.
        gpu: that runs it, with its calibration.
        tp: GPUs that a layer of the language model is split over.

    Returns:
        Of all of them [s].
    """
    load = encoder_load(encoder, image, images)
    operators = encoder_operators(encoder, gpu.sku, tp)
    link = link_bandwidth_bytes_per_s(gpu.sku, tp) if tp > 1 else math.inf
    return float(sum(operator_seconds(operator, load, gpu, link) for operator in operators))


def encoder_launches(encoder: VisionEncoder, sku: GpuSku, tp: int) -> float:
    """Kernels launched for a batch of images.

    Args:
        encoder: of the model.
        sku: GPU.
        tp: GPUs that a layer of the language model is split over.

    Returns:
        Their number [-].
    """
    return sum(operator.launches for operator in encoder_operators(encoder, sku, tp))
