"""How long attention over compressed keys takes: a kernel form of everything between its projections.

Form, coefficients and their conventions as in `planner.roofline.kernels`. The kernels are those of DeepSeek-V4
(``inference/model.py`` of huggingface.co/deepseek-ai/DeepSeek-V4-Flash; ``deepseek_v4_attention.py`` of vLLM 0.24):
norms and rotation of queries, pooling of keys, sparse attention over window and entries, rotation back and quantisation
of the output. The scores of an index and the choice of entries are in `planner.roofline.index_kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.roofline.arithmetic import Value, at_least, rounded_up
from planner.roofline.attention_kernels import attended_pairs
from planner.roofline.kernel_forms import CompressedForm, GpuPeaks, corrected_s

HEAD_GROUP = 64.0
"""Query heads the sparse kernel works on together; fewer are filled up (``padded_heads`` of vLLM; FlashMLA)."""
BYTES_OF_HEAD, BYTES_OF_PADDED_HEAD = 7.0, 4.0
"""Bytes moved for each channel of a query head around the attention kernel, norm and rotation of queries in place
(2 + 2), outputs rotated back and quantised (2 + 1); and of each filled-up head by that kernel, queries in and outputs
out (2 + 2)."""


@dataclass(frozen=True)
class CompressedHeads:
    """The heads of compressed attention on one GPU and what they see.

    Attributes:
        heads: query heads on this GPU.
        head_dim: channels of a head and of a key.
        entry_bytes: bytes of a cached key.
        window: tokens a query sees uncompressed.
        ratio: tokens to a compressed key, 0 = none.
        top_k: most compressed keys a query attends to, 0 = all.
    """

    heads: float
    head_dim: float
    entry_bytes: float
    window: float
    ratio: float
    top_k: float


def padded_heads(heads: float) -> float:
    """Query heads that the sparse kernel works on: whole groups of 64.

    Args:
        heads: on this GPU.

    Returns:
        The next multiple of `HEAD_GROUP`.

    >>> padded_heads(8.0), padded_heads(128.0)
    (64.0, 128.0)
    """
    return HEAD_GROUP * rounded_up(heads / HEAD_GROUP)


def compressed_pairs(new: Value, past: Value, shape: CompressedHeads) -> Value:
    """Query-key pairs of new tokens: sum over i = 1..new of min(past + i, window) + min((past + i) / ratio, top_k).

    Parts of compressed keys count, of which a query sees half a one too many on average.

    Args:
        new: new tokens, any shape.
        past: tokens before them, shape of `new`.
        shape: what a query sees.

    Returns:
        Pairs, shape of `new`.

    >>> heavily, sparse = CompressedHeads(64, 512, 584, 128, 128, 0), CompressedHeads(64, 512, 584, 128, 4, 512)
    >>> compressed_pairs(1.0, 12_799.0, heavily), compressed_pairs(1.0, 12_799.0, sparse)  # 128 + 100, 128 + 512
    (228.0, 640.0)
    """
    pairs = attended_pairs(new, past, shape.window)
    if not shape.ratio:
        return pairs
    return pairs + attended_pairs(new, past, shape.top_k * shape.ratio) / shape.ratio


def compressed_attention_s(
    tokens: Value, pairs: Value, read_bytes: Value, shape: CompressedHeads, form: CompressedForm, peaks: GpuPeaks
) -> Value:
    """Time [s] of everything between the projections but the index.

    ``start + memory + compute`` with H the heads filled up to whole groups of 64 and

        memory  = (tokens d (7 heads + 4 H) + read_bytes) / (e_m bandwidth)
        compute = 4 H d (pairs + row_keys tokens) / (e_c peak)

    Kernels follow one another, so that times add up. Corrected over the keys of a token, pairs / tokens, and the groups
    of heads of all tokens, tokens H / 64.

    Args:
        tokens: new tokens of all sequences, any shape.
        pairs: `compressed_pairs` of all sequences, shape of `tokens`.
        read_bytes: keys that are read from memory, shape of `tokens` [bytes].
        shape: heads and what they see.
        form: coefficients.
        peaks: of the GPU, in 16 bit: 8-bit keys are unpacked.

    Returns:
        Duration, shape of `tokens` [s].

    >>> form = CompressedForm(1e-5, compute_efficiency=0.5, memory_efficiency=0.5, row_keys=72.0)
    >>> gpu = GpuPeaks(1e15, 4e12, 132.0)
    >>> shape = CompressedHeads(64.0, 512.0, 584.0, 128.0, 128.0, 0.0)
    >>> took = compressed_attention_s(1000.0, 128_000.0, 0.0, shape, form, gpu)
    >>> f"{took:.7f}"  # 1e-5 + 3.604e8 / 2e12 + 2.621e10 / 5e14
    '0.0002427'
    """
    padded, d = padded_heads(shape.heads), shape.head_dim
    traffic = tokens * (d * (BYTES_OF_HEAD * shape.heads + BYTES_OF_PADDED_HEAD * padded)) + read_bytes
    compute = (pairs + form.row_keys * tokens) * (4.0 * padded * d / (form.compute_efficiency * peaks.flops_per_s))
    took = form.start_s + traffic / (form.memory_efficiency * peaks.bytes_per_s) + compute
    if form.correction is None:
        return took
    ideal = at_least(pairs * (4.0 * shape.heads * d / peaks.flops_per_s), read_bytes / peaks.bytes_per_s)
    each = pairs / at_least(tokens, 1e-9)
    return corrected_s(took, ideal, form.correction, each, tokens * (padded / HEAD_GROUP))
