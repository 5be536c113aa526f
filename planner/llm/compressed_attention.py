"""Attention over compressed keys: a sliding window beside entries that each stand for several tokens (DeepSeek-V4).

Every layer keeps its last tokens as they are. Beside them a learned gate pools each `ratio` tokens into one entry of
the cache; queries attend to all entries (heavily compressed attention) or to those an index chooses (compressed sparse
attention). Keys are values, one head for all query heads. Queries are made from a vector of low rank, outputs are
projected group by group to another one and then to the hidden channels.

Sources: ``inference/model.py`` of huggingface.co/deepseek-ai/DeepSeek-V4-Flash (classes Attention, Compressor and
Indexer), ``modular_deepseek_v4.py`` of Hugging Face Transformers; caches: ``deepseek_v4_attention.py`` and
``deepseek_compressor.py`` of vLLM 0.24.
"""

from __future__ import annotations

import math
from typing import ClassVar, Self

from pydantic import Field, model_validator

from planner.core import Dtype, InputError
from planner.llm.attention import AttentionKind
from planner.llm.formats import BYTES_PER_VALUE, Count, Size

OVERLAPPING_RATIO = 4
"""Tokens to an entry at which entries overlap: each pools the tokens of the entry before it too, from channels of their
own (``overlap = compress_ratio == 4`` in ``inference/model.py``)."""
STATE_VALUE_BYTES = 4.0
"""Bytes per value of a compressor's state: it pools in 32 bits (``inference/model.py``; ``CompressorStateCache``)."""
POSITION_VALUE_BYTES = 2.0
"""Bytes per channel that carries the position, which stays in 16 bits in an 8-bit cache (vLLM's ``fp8_ds_mla``)."""
HEAD_GROUP = 64
"""Query heads a sparse kernel works on together; fewer are filled up (``padded_heads`` of vLLM, FlashMLA's
``flash_mla_sparse_fwd``)."""
VALUES_PER_CACHE_SCALE, CACHE_SCALE_BYTES = 64, 8
"""Channels that share one scale of a byte in that cache; an entry's scales are filled up to a multiple of 8 bytes."""
INDEX_SCALE_BYTES, VALUES_PER_INDEX_SCALE = 4, 128
"""Scale of an 8-bit index key (DeepSeek-V3.2-Exp, ``inference/model.py``, class Indexer); the same room is
kept for a 4-bit one (``DeepseekV4Indexer``)."""


class CompressedAttention(AttentionKind):
    """A window of tokens, and one cache entry for every `ratio` tokens before; with `index_heads` only chosen ones."""

    checkpoint_blocks: ClassVar[tuple[str, ...]] = ("attn", "self_attn")
    repeated: ClassVar[frozenset[str]] = frozenset({"wq_a", "wkv", "indexer.wq_b"})
    has_cache: ClassVar[bool] = True
    small_cache: ClassVar[bool] = True

    heads: Size
    head_dim: Size = Field(description="channels of queries and of the one key, which is the value too")
    rope_dim: Size = Field(description="of them, those that carry the position")
    query_rank: Size = Field(description="channels queries are compressed to")
    output_groups: Size = Field(description="groups of heads whose outputs are projected apart")
    output_rank: Size = Field(description="channels each group is projected to")
    window: Size = Field(description="tokens a query sees uncompressed")
    ratio: Count = Field(default=0, description="tokens to a compressed entry; 0 = the window only")
    index_heads: Count = Field(
        default=0, description="heads of the index that chooses entries; 0 = all are attended to"
    )
    index_dim: Count = Field(default=0, description="channels of a head of the index and of its key")
    top_k: Count = Field(default=0, description="most entries that are chosen")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.heads % self.output_groups:
            bound = f"must divide heads = {self.heads}"
            raise InputError("output_groups", self.output_groups, bound, "correct one of the two")
        if self.rope_dim > self.head_dim:
            raise InputError("rope_dim", self.rope_dim, f"must not be above head_dim = {self.head_dim}", "correct it")
        index = (self.index_heads, self.index_dim, self.top_k)
        if any(index) and not (all(index) and self.ratio):
            bound = "an index has heads, channels and a number of entries to choose from"
            raise InputError("index_heads", self.index_heads, bound, "give index_heads, index_dim, top_k and ratio")
        return self

    @property
    def pooled_parts(self) -> int:
        """Projections of a token that entries pool: 2 where entries overlap, else 1."""
        return 2 if self.ratio == OVERLAPPING_RATIO else 1

    @property
    def rotary_channels(self) -> int:
        """Those that carry the position."""
        return self.rope_dim

    @property
    def cache_window(self) -> int:
        """The window."""
        return self.window

    @property
    def keeps_context(self) -> bool:
        """Where there are entries beside the window."""
        return self.ratio > 0

    def row_bytes(self, dtype: Dtype) -> float:
        """Bytes of one entry of the cache, of the window as of compressed ones.

        In 16 bits ``2 head_dim``; else the channels without position in `dtype`, 2 bytes of those with it, and a byte
        of scale for 64 of the former, filled up to 8: 584 bytes of DeepSeek-V4 in 8 bits.
        """
        if dtype in (Dtype.BF16, Dtype.FP16):
            return POSITION_VALUE_BYTES * self.head_dim
        plain = self.head_dim - self.rope_dim
        scales = math.ceil(plain / VALUES_PER_CACHE_SCALE / CACHE_SCALE_BYTES) * CACHE_SCALE_BYTES
        return plain * BYTES_PER_VALUE[dtype] + self.rope_dim * POSITION_VALUE_BYTES + scales

    def token_bytes(self, dtype: Dtype) -> float:
        """An entry for every `ratio` tokens."""
        return self.row_bytes(dtype) / self.ratio if self.ratio else 0.0

    @property
    def index_bytes(self) -> float:
        """The key of an entry, for every `ratio` tokens."""
        return self.index_entry_bytes / self.ratio if self.index_heads else 0.0

    @property
    def index_entry_bytes(self) -> float:
        """Bytes of the index key of one compressed entry, 0 without an index."""
        return float(self.index_dim + INDEX_SCALE_BYTES * math.ceil(self.index_dim / VALUES_PER_INDEX_SCALE))

    @property
    def state_bytes(self) -> float:
        """Bytes of one sequence's tokens that wait for their entry: keys and gates of `pooled_parts * ratio` of them.

        ``2 values (key, gate) * pooled_parts * channels * (pooled_parts * ratio) * 4``, of keys and of index keys.
        """
        tokens, channels = self.pooled_parts * self.ratio, self.pooled_parts * (self.head_dim + self.index_dim)
        return 2.0 * tokens * channels * STATE_VALUE_BYTES

    def state_bytes_per_gpu(self, tp: int) -> float:
        """Whole on every GPU."""
        return self.state_bytes

    def working_values(self, tp: int) -> float:
        """Queries and outputs of heads that kernels fill up."""
        return 2.0 * HEAD_GROUP * math.ceil(self.heads / tp / HEAD_GROUP) * self.head_dim

    def matrices(self, hidden: int) -> dict[str, tuple[int, int]]:
        """Those that checkpoints quantise; the others stay in 16 bits (`compressor_weights`)."""
        rank, channels = self.query_rank, self.heads * self.head_dim
        shapes = {
            "wq_a": (hidden, rank),
            "wq_b": (rank, channels),
            "wkv": (hidden, self.head_dim),
            "wo_a": (channels // self.output_groups, self.output_groups * self.output_rank),
            "wo_b": (self.output_groups * self.output_rank, hidden),
        }
        if self.index_heads:
            shapes["indexer.wq_b"] = (rank, self.index_heads * self.index_dim)
        return shapes

    def compressor_weights(self, hidden: int) -> int:
        """Weights that make entries and index keys of tokens, and weigh the heads of the index.

        ``hidden * (2 pooled_parts (head_dim + index_dim) + index_heads)`` (wkv, wgate, weights_proj): 16 bit in all
        checkpoints, and on every GPU (``disable_tp`` of vLLM's compressor). `hidden` [channels].

        >>> flash = CompressedAttention(heads=64, head_dim=512, rope_dim=64, query_rank=1024, output_groups=8,
        ...     output_rank=1024, window=128, ratio=128)
        >>> flash.compressor_weights(4096)  # 4096 x 2 x 512
        4194304
        """
        pooled = 2 * self.pooled_parts * (self.head_dim + self.index_dim) + self.index_heads
        return hidden * pooled if self.ratio else 0

    def small_parameters(self, hidden: int) -> int:
        """`compressor_weights`, positions and norms of entries, norms of queries and keys, a sink a head."""
        count = self.query_rank + self.head_dim + self.heads
        if self.ratio:
            channels = self.head_dim + self.index_dim
            count += self.ratio * self.pooled_parts * channels + channels
        return count + self.compressor_weights(hidden)
