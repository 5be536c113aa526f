"""How long block-sparse attention takes: kernel forms of an index that scores every key and attention over its blocks.

Forms, coefficients and their conventions as in `planner.roofline.kernels`. The attention is that of MiniMax-M3 (MiniMax
2026, MiniMax Sparse Attention, arXiv:2606.13392); its blocks come whole, and what is chosen is not known, so that
`top_k` keys stand for the chosen blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.roofline.arithmetic import Value, at_least, at_most, p_norm
from planner.roofline.attention_kernels import attended_pairs
from planner.roofline.kernel_forms import BlockDecodeForm, BlockPrefillForm, GpuPeaks

INDEX_KEY_BYTES = 2.0
"""Bytes per channel of an index key: 16 bit whatever the cache (vLLM 0.24, ``MiniMaxM3IndexerCache``; SGLang 0.5.16,
``index_dtype``)."""
QUERY_GROUP = 16.0
"""Query heads of a KV head that a tile is filled up to: the least rows of a matrix instruction (mma m16n8k16)."""


@dataclass(frozen=True)
class BlockHeads:
    """The heads of block-sparse attention on one GPU.

    Attributes:
        heads: query heads on this GPU.
        kv_heads: KV heads on this GPU.
        head_dim: channels of a head.
        kv_bytes: bytes per cached value.
        top_k: keys a query attends to at most.
        index_heads: of the index, on this GPU.
        index_dim: channels of an index head, and of the key that all share.
    """

    heads: float
    kv_heads: float
    head_dim: float
    kv_bytes: float
    top_k: float
    index_heads: float
    index_dim: float

    @property
    def key_bytes(self) -> float:
        """Bytes of one key and value of all KV heads."""
        return 2.0 * self.kv_heads * self.head_dim * self.kv_bytes

    @property
    def index_bytes(self) -> float:
        """Bytes of one index key."""
        return self.index_dim * INDEX_KEY_BYTES

    @property
    def filled_heads(self) -> float:
        """Query heads with tiles filled up."""
        return self.kv_heads * at_least(self.heads / self.kv_heads, QUERY_GROUP)


def block_prefill_s(
    chunks: Value, new: Value, past: Value, shape: BlockHeads, form: BlockPrefillForm, peaks: GpuPeaks
) -> Value:
    """Time [s] of block-sparse attention of prompt chunks, its index included (means over the chunks are allowed).

    ``start + attention + memory + p_norm(scores, chain)`` with

        attention = 4 chunks filled_heads d (pairs + row_tokens new) / (e_c peak), pairs of min(keys seen, top_k)
        memory    = chunks new d (4 heads + 2 kv_heads (2 + 2 kv_bytes)) / (e_m bandwidth)
                    + chunks ((past + new) index_bytes + min(past, top_k) key_bytes) / bandwidth
        scores    = 2 chunks index_heads d_i (all pairs) / (e_i peak)
        chain     = (past + new) key_s, one thread block after another over the keys of a row

    Args:
        chunks: sequences that bring new tokens, any shape.
        new: tokens each brings, shape of `chunks`.
        past: tokens each has cached, shape of `chunks`.
        shape: heads, cache and index.
        form: coefficients.
        peaks: of the GPU, in 16 bit.

    Returns:
        Duration, shape of `chunks` [s].

    >>> form = BlockPrefillForm(0.0, 0.25, 0.5, 0.5, 0.0, 0.0, order=1.0)
    >>> heads, gpu = BlockHeads(16.0, 1.0, 128.0, 2.0, 2048.0, 1.0, 128.0), GpuPeaks(1e15, 4e12, 132.0)
    >>> f"{block_prefill_s(1.0, 1.0, 4095.0, heads, form, gpu) * 1e6:.3f}"  # 8.2 kFLOP x 2048 / 2.5e14, memory, scores
    '0.598'
    """
    chosen = attended_pairs(new, past, shape.top_k) + form.row_tokens * new
    attention = (
        chunks * chosen * (4.0 * shape.filled_heads * shape.head_dim / (form.compute_efficiency * peaks.flops_per_s))
    )
    own = shape.head_dim * (4.0 * shape.heads + 2.0 * shape.kv_heads * (2.0 + 2.0 * shape.kv_bytes))
    read = (past + new) * shape.index_bytes + at_most(past, shape.top_k) * shape.key_bytes
    memory = chunks * (new * (own / form.memory_efficiency) + read) / peaks.bytes_per_s
    pair_s = 2.0 * shape.index_heads * shape.index_dim / (form.index_efficiency * peaks.flops_per_s)
    scores = chunks * attended_pairs(new, past, 0.0) * pair_s
    return form.start_s + attention + memory + p_norm(form.order, scores, (past + new) * form.key_s)


def block_decode_s(
    sequences: Value, context: Value, queries: float, shape: BlockHeads, form: BlockDecodeForm, peaks: GpuPeaks
) -> Value:
    """Time [s] of block-sparse attention of one token (`queries`, with drafts) of many sequences, its index included.

    ``p_norm(start, attention + blocks + index)`` with

        attention = sequences queries (min(context, top_k) key_bytes + 4 heads d) / (e_m bandwidth)
        blocks    = sequences queries kv_heads block_s / sms
        index     = sequences context index_bytes / (e_i bandwidth)

    Every query reads the blocks it chose; the index keys of a sequence are read once.

    Args:
        sequences: sequences that decode, any shape.
        context: cached tokens of each, its new one included, shape of `sequences`.
        queries: new tokens of each.
        shape: heads, cache and index.
        form: coefficients.
        peaks: of the GPU, in 16 bit.

    Returns:
        Duration, shape of `sequences` [s].

    >>> form = BlockDecodeForm(start_s=0.0, memory_efficiency=0.5, index_efficiency=1.0, block_s=0.0, order=1.0)
    >>> heads, gpu = BlockHeads(16.0, 1.0, 128.0, 2.0, 2048.0, 1.0, 128.0), GpuPeaks(1e15, 4e12, 132.0)
    >>> f"{block_decode_s(64.0, 8192.0, 1.0, heads, form, gpu) * 1e6:.2f}"  # 64 (2048 x 512 + 8192) / 2e12 + index
    '67.37'
    """
    rows = sequences * queries
    read = at_most(context, shape.top_k) * shape.key_bytes + 4.0 * shape.heads * shape.head_dim
    attention = rows * (read / (form.memory_efficiency * peaks.bytes_per_s))
    blocks = rows * (shape.kv_heads * form.block_s / peaks.sms)
    index = sequences * (context * (shape.index_bytes / (form.index_efficiency * peaks.bytes_per_s)))
    return p_norm(form.order, sequences * 0.0 + form.start_s, attention + blocks + index)
