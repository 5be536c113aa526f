"""Kinds of attention, and of state space in its place: shapes of one layer, its weights, what it caches.

A kind answers for itself: `AttentionKind` says what is asked, and is zero where a kind has none of it. Sizes are in
channels, heads and values; bytes are those of one layer. `planner.llm.sizes` builds models of these. Attention over
compressed keys has a module of its own, `planner.llm.compressed_attention`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar, Self

from pydantic import Field, model_validator

from planner.core import Dtype, Frozen, InputError
from planner.llm.formats import BYTES_PER_VALUE, Count, Size

UNQUANTISED_BYTES = BYTES_PER_VALUE[Dtype.BF16]
"""Bytes per value of what checkpoints never quantise."""
_STATE_BYTES = 4.0
"""Bytes per value of a recurrent state: float32. Default of SGLang 0.5 (``mamba_ssm_dtype``) and what checkpoints of
Qwen3.5 (``mamba_ssm_dtype``) and Nemotron (``mamba_ssm_cache_dtype``) ask for; without a key vLLM takes 16 bits."""
OUTPUT_PROJECTIONS = ("o_proj", "out_proj", "wo_b")
"""Names of the output projection among `AttentionKind.matrices`."""


class AttentionKind(Frozen):
    """Base of the kinds of attention; the defaults are those of a kind without cache, state or index."""

    checkpoint_blocks: ClassVar[tuple[str, ...]] = ("self_attn", "mixer")
    """Names that checkpoints give to the block its matrices are in."""
    repeated: ClassVar[frozenset[str]] = frozenset()
    """Names among `matrices` of what every GPU of a tensor-parallel group has whole: projections to a vector that all
    heads share. Source: ``ReplicatedLinear`` in ``deepseek_v2.py`` (attention and Indexer) and ``kda.py`` of vLLM."""
    one_row: ClassVar[bool] = False
    """The cache keeps one row a token for all heads (latent attention)."""
    has_cache: ClassVar[bool] = False
    """Keys and values, or what stands for them, are cached or read from a cache."""
    small_cache: ClassVar[bool] = False
    """Engines keep its cache in 8 bits only."""

    @abstractmethod
    def matrices(self, hidden: int) -> dict[str, tuple[int, int]]:
        """Inputs and outputs [channels] of every matrix of one layer, by its name in Hugging Face checkpoints."""

    @abstractmethod
    def small_parameters(self, hidden: int) -> int:
        """Parameters of one layer that are in no matrix: biases, norms, sinks, convolutions."""

    def weights(self, hidden: int) -> int:
        """Weights of all matrices of one layer: the sum of inputs times outputs; biases and norms excluded."""
        return sum(inputs * outputs for inputs, outputs in self.matrices(hidden).values())

    def output_weights(self, hidden: int) -> int:
        """Weights of the output projection, the part of `weights` that is `Part.ATTENTION_OUTPUT`."""
        shapes = self.matrices(hidden).items()
        return sum(inputs * outputs for name, (inputs, outputs) in shapes if name in OUTPUT_PROJECTIONS)

    def weights_per_gpu(self, hidden: int, tp: int) -> float:
        """Weights of the matrices of one layer on one of `tp` GPUs: the `repeated` ones whole, the rest split."""
        shapes = self.matrices(hidden).items()
        whole = float(sum(inputs * outputs for name, (inputs, outputs) in shapes if name in self.repeated))
        return whole + (self.weights(hidden) - whole) / tp

    def compressor_weights(self, hidden: int) -> int:
        """Weights among `small_parameters` that every GPU has whole: those that pool tokens into entries."""
        return 0

    @property
    def rotary_channels(self) -> int:
        """Channels of a head that carry the position."""
        return 0

    @property
    def cache_window(self) -> int:
        """Tokens that are cached at most; 0: all of the context, or none where nothing is cached."""
        return 0

    @property
    def keeps_context(self) -> bool:
        """True if something of every token of the context stays: with a cache, unless it is a window alone."""
        return self.has_cache and not self.cache_window

    @property
    def recurrent(self) -> bool:
        """True if a state of constant size stands for all tokens before it, instead of keys and values."""
        return self.state_bytes > 0.0 and not self.has_cache

    def row_bytes(self, dtype: Dtype) -> float:
        """Bytes of one cached row: what a token, or the tokens pooled into it, leave in one layer [bytes]."""
        return 0.0

    def token_bytes(self, dtype: Dtype) -> float:
        """Bytes of each token of the context in caches that keep all of it, the keys of an index left out [bytes]."""
        return self.row_bytes(dtype) if self.keeps_context else 0.0

    def window_bytes(self, dtype: Dtype) -> float:
        """Bytes of each token within the window; 0 without one [bytes]."""
        return self.row_bytes(dtype) if self.cache_window else 0.0

    @property
    def index_bytes(self) -> float:
        """Bytes of each token of the context in the keys of an index, whatever the format of the cache [bytes]."""
        return 0.0

    @property
    def state_bytes(self) -> float:
        """Bytes of constant size that each sequence has [bytes]."""
        return 0.0

    def state_bytes_per_gpu(self, tp: int) -> float:
        """Of `state_bytes`, those on one of `tp` GPUs [bytes]."""
        return self.state_bytes / tp

    def cache_share(self, tp: int) -> float:
        """Share of the rows that one of `tp` GPUs holds; 1 where every GPU has them whole. Raises InputError."""
        return 1.0

    def token_bytes_per_gpu(self, dtype: Dtype, tp: int, dcp: int = 1) -> float:
        """Bytes of one token on one of `tp` GPUs, that of an index included, as if its window were endless [bytes].

        Of `dcp` GPUs that share out the tokens each holds one in so many: the mean of all tokens.
        """
        return self.cache_share(tp) / dcp * (self.token_bytes(dtype) or self.window_bytes(dtype)) + self.index_bytes

    def working_values(self, tp: int) -> float:
        """Values per token of the tensors that live at once while a step runs, on one of `tp` GPUs."""
        return 0.0

    def gathered_values(self, tp: int) -> float:
        """Values that each cached token is expanded to when it is attended to, on one of `tp` GPUs."""
        return 0.0


class BlockIndex(Frozen):
    """The indexer of MiniMax sparse attention: small heads that choose the blocks of keys a query attends to.

    It scores every key; a block counts as its best key does, and the block a query stands in is always among the
    chosen. Keys are cached one a token, for all heads, in 16 bits. Defaults are those of MiniMax-M3
    (``sparse_attention_config`` in its config.json). Source: MiniMax 2026, MiniMax Sparse Attention, arXiv:2606.13392;
    ``modular_minimax_m3_vl.py`` of Hugging Face; vLLM, ``minimax_m3/common/indexer.py``.
    """

    heads: Size = 4
    head_dim: Size = 128
    block_tokens: Size = 128
    blocks: Size = Field(default=16, description="blocks a query attends to at most, its own included")

    @property
    def top_k(self) -> int:
        """Keys a query attends to at most; its own block taken for full, at most 1 / `blocks` above the truth."""
        return self.blocks * self.block_tokens


class GroupedQueryAttention(AttentionKind):
    """Softmax attention with `heads` query heads sharing `kv_heads` key/value heads (MHA and MQA are the ends).

    A layer whose `keys_are_values` has no value projection, but caches both: keys are normed and rotated, values are
    not (``modeling_gemma4.py`` of Hugging Face; vLLM, ``gemma4.py``, loads the key projection in both places). A layer
    that `shares_cache` attends to the keys and values of an earlier layer, and keeps and projects none of its own.
    Source: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.2.

    >>> opt_13b = GroupedQueryAttention(heads=40, kv_heads=40, head_dim=128)
    >>> opt_13b.token_bytes(Dtype.FP16) * 40 / 1024  # 800 KB: Kwon et al. 2023, arXiv:2309.06180, sec. 3
    800.0
    """

    has_cache: ClassVar[bool] = True

    heads: Size
    kv_heads: Size
    head_dim: Size
    value_dim: Count = Field(default=0, description="channels of a value head; 0 = those of a key head")
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm_values: Count = Field(default=0, description="parameters of query and key norms")
    window: Count = Field(default=0, description="tokens a query sees at most; 0 = the whole context")
    chunked: bool = Field(default=False, description="within aligned chunks of `window` tokens, no sliding (Llama 4)")
    sinks: bool = Field(default=False, description="a learned logit per head joins the softmax (gpt-oss)")
    output_gate: bool = Field(default=False, description="the query projection is doubled by a gate (Qwen3-Next)")
    head_gate: bool = Field(default=False, description="a projection of one value a head gates the output (Step-3.5)")
    keys_are_values: bool = Field(default=False, description="no value projection: values are raw keys (Gemma 4)")
    shares_cache: bool = Field(default=False, description="keys and values are those of an earlier layer (Gemma 4 E2B)")
    index: BlockIndex | None = Field(default=None, description="attention over blocks of keys that an index chooses")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.keys_are_values and self.values_per_head != self.head_dim:
            bound = f"raw keys have head_dim = {self.head_dim} channels"
            raise InputError("value_dim", self.value_dim, bound, "leave it out")
        if self.heads % self.kv_heads:
            raise InputError("kv_heads", self.kv_heads, f"must divide heads = {self.heads}", "correct one of the two")
        if self.index is not None and self.window:
            bound = "an index chooses among all keys"
            raise InputError("window", self.window, bound, "give one of the two")
        if self.chunked and not self.window:
            raise InputError("window", 0, "chunked attention needs the length of a chunk", "give window")
        return self

    @property
    def values_per_head(self) -> int:
        """Channels of a value head."""
        return self.value_dim or self.head_dim

    @property
    def cached_values(self) -> int:
        """Values one token leaves in the cache of one layer, keys and values; 0 in the cache of another layer."""
        return 0 if self.shares_cache else self.kv_heads * (self.head_dim + self.values_per_head)

    @property
    def projected_kv_values(self) -> int:
        """Values the key and value projections make of one token."""
        if self.shares_cache:
            return 0
        return self.kv_heads * (self.head_dim + (0 if self.keys_are_values else self.values_per_head))

    def kv_heads_per_gpu(self, tp: int) -> int:
        """Key/value heads that one of `tp` GPUs holds: ``kv_heads / tp``, at least 1 (repeated where tp > kv_heads).

        Raises:
            InputError: heads cannot be split evenly, which engines refuse too.
        """
        if self.heads % tp:
            raise InputError("parallelism.tp", tp, f"{self.heads} query heads do not split evenly", "use a divisor")
        smaller, larger = sorted((self.kv_heads, tp))
        if larger % smaller:
            raise InputError("parallelism.tp", tp, f"{self.kv_heads} KV heads do not split evenly", "use a divisor")
        return max(1, self.kv_heads // tp)

    def matrices(self, hidden: int) -> dict[str, tuple[int, int]]:
        """As `AttentionKind.matrices`; the index of blocks: ``modular_minimax_m3_vl.py`` of Hugging Face."""
        shapes = {"q_proj": (hidden, self.heads * self.head_dim * (2 if self.output_gate else 1))}
        if not self.shares_cache:
            shapes["k_proj"] = (hidden, self.kv_heads * self.head_dim)
            if not self.keys_are_values:
                shapes["v_proj"] = (hidden, self.kv_heads * self.values_per_head)
        if self.head_gate:
            shapes["g_proj"] = (hidden, self.heads)
        if self.index is not None:
            shapes["index_q_proj"] = (hidden, self.index.heads * self.index.head_dim)
            shapes["index_k_proj"] = (hidden, self.index.head_dim)
        return shapes | {"o_proj": (self.heads * self.values_per_head, hidden)}

    def small_parameters(self, hidden: int) -> int:
        """Biases, norms of queries and keys (and of those of an index), a sink a head.

        >>> GroupedQueryAttention(heads=64, kv_heads=8, head_dim=64, sinks=True).small_parameters(2880)
        64
        """
        count = self.qk_norm_values + (self.heads if self.sinks else 0)
        count += self.heads * self.head_dim + self.projected_kv_values if self.qkv_bias else 0
        count += 2 * self.index.head_dim if self.index is not None else 0
        return count + (hidden if self.output_bias else 0)

    def weights_per_gpu(self, hidden: int, tp: int) -> float:
        """Projections of keys and values, and the index heads beside them, are split as KV heads are.

        The one key of an index is on every GPU (``MinimaxM3QKVParallelLinearWithIndexer`` of vLLM 0.24).
        """
        by_kv_head, key = float(self.projected_kv_values * hidden), 0.0
        if self.index is not None:
            by_kv_head += self.index.heads * self.index.head_dim * hidden
            key = float(self.index.head_dim * hidden)
        return (self.weights(hidden) - by_kv_head - key) / tp + by_kv_head * self.cache_share(tp) + key

    @property
    def rotary_channels(self) -> int:
        """All of a head."""
        return self.head_dim

    @property
    def cache_window(self) -> int:
        """The window, or a chunk, counted at its fullest."""
        return self.window

    def row_bytes(self, dtype: Dtype) -> float:
        """Keys and values: ``kv_heads * (head_dim + value_dim)`` values, none where they are those of another layer."""
        return self.cached_values * BYTES_PER_VALUE[dtype]

    @property
    def index_bytes(self) -> float:
        """One 16-bit key: ``2 head_dim`` (vLLM 0.24, ``MiniMaxM3IndexerCache``)."""
        return self.index.head_dim * UNQUANTISED_BYTES if self.index is not None else 0.0

    def cache_share(self, tp: int) -> float:
        """Heads on the GPU of those there are."""
        return self.kv_heads_per_gpu(tp) / self.kv_heads

    def working_values(self, tp: int) -> float:
        """Queries, outputs, keys and values."""
        projected = self.projected_kv_values // self.kv_heads * self.kv_heads_per_gpu(tp)
        return 2.0 * (self.heads // tp) * self.head_dim + projected


class SparseIndex(Frozen):
    """The indexer of DeepSeek sparse attention: small heads that choose the `top_k` tokens a query attends to.

    Defaults are those of DeepSeek-V3.2 (huggingface.co/deepseek-ai/DeepSeek-V3.2, config.json: ``index_n_heads``,
    ``index_head_dim``, ``index_topk``).
    """

    heads: Size = 64
    head_dim: Size = 128
    top_k: Size = 2048
    shared: bool = Field(default=False, description="takes the choice of an earlier layer: no weights, keys or scores")


class LatentAttention(AttentionKind):
    """Multi-head latent attention: keys and values of all heads are made of one latent vector, which is what is cached.

    Source: DeepSeek-AI 2024, DeepSeek-V2, arXiv:2405.04434, sec. 2.1.

    >>> v3 = LatentAttention(heads=128, query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
    >>> v3.matrices(7168)["q_b_proj"]  # 1536 to 128 x 192
    (1536, 24576)
    >>> v3.weights(7168)  # 7168x1536 + 1536x24576 + 7168x576 + 512x32768 + 16384x7168
    187105280
    """

    repeated: ClassVar[frozenset[str]] = frozenset(
        {"q_a_proj", "kv_a_proj_with_mqa", "indexer.wq_b", "indexer.wk", "indexer.weights_proj"}
    )
    one_row: ClassVar[bool] = True
    has_cache: ClassVar[bool] = True

    heads: Size
    query_rank: Count = Field(description="channels queries are compressed to; 0 = a full query projection")
    kv_rank: Size = Field(description="channels of the latent vector")
    nope_dim: Size = Field(description="channels per head of queries and keys without position")
    rope_dim: Size = Field(description="channels of queries and of the shared key that carry the position")
    value_dim: Size = Field(description="channels per head of values")
    index: SparseIndex | None = None
    output_gate: bool = Field(default=False, description="a projection gates every channel of the output (Kimi-K3)")

    @model_validator(mode="after")
    def _index_has_queries(self) -> Self:
        if self.index is not None and not self.query_rank:
            bound = "the sparse index reads the compressed query"
            raise InputError("query_rank", 0, bound, "give the rank of the query, or no index")
        return self

    @property
    def own_index(self) -> SparseIndex | None:
        """The index, unless it takes the choice of another layer."""
        return self.index if self.index is not None and not self.index.shared else None

    def matrices(self, hidden: int) -> dict[str, tuple[int, int]]:
        """DeepSeek-AI 2024, arXiv:2405.04434, eq. 9-19.

        Its index: ``inference/model.py`` of huggingface.co/deepseek-ai/DeepSeek-V3.2-Exp (wq_b, wk, weights_proj).
        """
        rank, queries = self.query_rank, self.heads * (self.nope_dim + self.rope_dim)
        shapes = {"q_a_proj": (hidden, rank), "q_b_proj": (rank, queries)} if rank else {"q_proj": (hidden, queries)}
        shapes |= {
            "kv_a_proj_with_mqa": (hidden, self.kv_rank + self.rope_dim),
            "kv_b_proj": (self.kv_rank, self.heads * (self.nope_dim + self.value_dim)),
            "o_proj": (self.heads * self.value_dim, hidden),
        }
        if self.output_gate:
            shapes["g_proj"] = (hidden, self.heads * self.value_dim)
        if self.own_index is not None:
            shapes |= {
                "indexer.wq_b": (rank, self.own_index.heads * self.own_index.head_dim),
                "indexer.wk": (hidden, self.own_index.head_dim),
                "indexer.weights_proj": (hidden, self.own_index.heads),
            }
        return shapes

    def small_parameters(self, hidden: int) -> int:
        """Norms of the latent vectors and of the keys of an index."""
        return self.query_rank + self.kv_rank + (2 * self.own_index.head_dim if self.own_index is not None else 0)

    @property
    def rotary_channels(self) -> int:
        """Those that carry the position."""
        return self.rope_dim

    def row_bytes(self, dtype: Dtype) -> float:
        """One vector for all heads: ``kv_rank + rope_dim`` values (arXiv:2405.04434, sec. 2.1.4)."""
        return (self.kv_rank + self.rope_dim) * BYTES_PER_VALUE[dtype]

    @property
    def index_bytes(self) -> float:
        """One FP8 key and a 32-bit scale per 128 channels; none where the choice of another layer is taken.

        ``head_dim + 4 * head_dim / 128``. Sources: DeepSeek-V3.2-Exp, ``inference/model.py``, class Indexer (k_cache,
        k_scale_cache); the same 132 bytes in vLLM 0.11, ``DeepseekV32IndexerCache``; sgl-project/sglang#30531 (GLM-5.2:
        47,702 bytes a token with an 8-bit cache).
        """
        channels = self.own_index.head_dim if self.own_index is not None else 0
        return float(channels + 4 * math.ceil(channels / 128))

    def working_values(self, tp: int) -> float:
        """Queries, and keys and values that are made of the latent vector."""
        return self.heads / tp * (2 * self.nope_dim + self.rope_dim + self.value_dim)

    def gathered_values(self, tp: int) -> float:
        """Keys and values of the heads on the GPU."""
        return self.heads / tp * (self.nope_dim + self.value_dim)


class _Recurrent(AttentionKind):
    """Kinds with a state in place of a cache: that of the heads, and the last tokens of a short convolution."""

    conv_kernel: Size = Field(description="tokens of the short convolution on what the projection makes")

    @property
    @abstractmethod
    def state_values(self) -> int:
        """Values of the state of all heads."""

    @property
    @abstractmethod
    def conv_channels(self) -> int:
        """Channels the convolution runs over."""

    @property
    def state_bytes(self) -> float:
        """The state in 32 bits, and ``conv_kernel - 1`` tokens of the channels of the convolution in 16 bits.

        Source: vLLM 0.11, ``mamba_utils.py`` (MambaStateShapeCalculator).
        """
        return self.state_values * _STATE_BYTES + self.conv_channels * (self.conv_kernel - 1) * UNQUANTISED_BYTES

    def working_values(self, tp: int) -> float:
        """Into the convolution and out of it."""
        return 2.0 * self.conv_channels / tp


class LinearAttention(_Recurrent):
    """Gated delta rule: a state of `key_dim` x `value_dim` per value head replaces the KV cache.

    A gated delta net decays the state of a head as one (`decay_rank` 0), Kimi Delta Attention every key channel by
    itself, from a projection of low rank. Sources: Yang, Kautz & Hatamizadeh 2024, Gated Delta Networks,
    arXiv:2412.06464 (Qwen3-Next and Qwen3.5); Kimi Team 2025, Kimi Linear, arXiv:2510.26692, sec. 3 (Kimi Linear, K3).

    >>> of_qwen3_next = LinearAttention(key_heads=16, value_heads=32, key_dim=128, value_dim=128, conv_kernel=4)
    >>> of_qwen3_next.state_bytes  # 32 x 128 x 128 x 4 + 8192 x 3 x 2
    2146304.0
    """

    checkpoint_blocks: ClassVar[tuple[str, ...]] = ("linear_attn", "self_attn")
    repeated: ClassVar[frozenset[str]] = frozenset({"f_a_proj", "g_a_proj"})

    key_heads: Size
    value_heads: Size
    key_dim: Size = Field(description="channels of one key head")
    value_dim: Size = Field(description="channels of one value head")
    decay_rank: Count = Field(default=0, description="rank of the decay of every key channel; 0 = one decay a head")
    gate_rank: Count = Field(default=0, description="rank of the gate of the output; 0 = a full projection")

    @model_validator(mode="after")
    def _key_heads_divide_value_heads(self) -> Self:
        if self.value_heads % self.key_heads:
            bound = f"must divide value_heads = {self.value_heads}"
            raise InputError("key_heads", self.key_heads, bound, "correct one of the two")
        return self

    @property
    def conv_channels(self) -> int:
        """Queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def state_values(self) -> int:
        """``value_heads * key_dim * value_dim`` (arXiv:2412.06464, eq. 10)."""
        return self.value_heads * self.key_dim * self.value_dim

    def matrices(self, hidden: int) -> dict[str, tuple[int, int]]:
        """``modeling_qwen3_5_moe.py`` of Hugging Face.

        With a decay per channel: ``kda.py`` of vLLM and the tensors of huggingface.co/moonshotai/Kimi-K3.
        """
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        heads, decay, gate = self.value_heads, self.decay_rank, self.gate_rank
        if decay:
            return {
                "q_proj": (hidden, keys),
                "k_proj": (hidden, keys),
                "v_proj": (hidden, values),
                "f_a_proj": (hidden, decay),
                "f_b_proj": (decay, keys),
                "b_proj": (hidden, heads),
                **({"g_a_proj": (hidden, gate), "g_b_proj": (gate, values)} if gate else {"g_proj": (hidden, values)}),
                "o_proj": (values, hidden),
            }
        return {
            "in_proj_qkv": (hidden, 2 * keys + values),
            "in_proj_z": (hidden, values),
            "in_proj_b": (hidden, heads),
            "in_proj_a": (hidden, heads),
            "out_proj": (values, hidden),
        }

    def small_parameters(self, hidden: int) -> int:
        """The convolution, the decay and step of each head and the norm of the output."""
        count = self.conv_channels * self.conv_kernel + self.value_heads + self.value_dim
        return count + (self.key_heads * self.key_dim if self.decay_rank else self.value_heads)


class StateSpace(_Recurrent):
    """Mamba-2: a state of `head_dim` x `state_size` per head replaces the KV cache.

    Source: Dao & Gu 2024, Transformers are SSMs, arXiv:2405.21060, sec. 7; Nemotron-H.
    """

    checkpoint_blocks: ClassVar[tuple[str, ...]] = ("mixer",)

    heads: Size
    head_dim: Size
    state_size: Size
    groups: Size = Field(description="groups of heads that share B and C")

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        """x, B and C."""
        return self.inner + 2 * self.groups * self.state_size

    @property
    def state_values(self) -> int:
        """``heads * head_dim * state_size`` (arXiv:2405.21060, sec. 7)."""
        return self.inner * self.state_size

    def groups_per_gpu(self, tp: int) -> int:
        """Groups of B and C that one of `tp` GPUs holds: ``groups / tp``; a single group is on every GPU.

        Source: vLLM, ``MambaMixer2`` (vllm/model_executor/layers/mamba/mamba_mixer2.py: "If tensor parallel world size
        does not divide num_groups, then num_groups must equal 1").

        Raises:
            InputError: heads or groups cannot be split evenly.
        """
        if self.heads % tp:
            raise InputError("parallelism.tp", tp, f"{self.heads} Mamba-2 heads do not split evenly", "use a divisor")
        if self.groups % tp and self.groups > 1:
            bound = f"{self.groups} groups of Mamba-2 do not split evenly"
            raise InputError("parallelism.tp", tp, bound, f"use a divisor of {self.groups}")
        return max(1, self.groups // tp)

    def matrices(self, hidden: int) -> dict[str, tuple[int, int]]:
        """``modeling_nemotron_h.py`` of Hugging Face."""
        into = 2 * self.inner + 2 * self.groups * self.state_size + self.heads
        return {"in_proj": (hidden, into), "out_proj": (self.inner, hidden)}

    def small_parameters(self, hidden: int) -> int:
        """The convolution with its bias; decay, step and skip of each head; the norm of the output."""
        return self.conv_channels * (self.conv_kernel + 1) + 3 * self.heads + self.inner

    def _repeated_channels(self, tp: int) -> float:
        """Channels of B and C on one GPU beyond its share."""
        return 2.0 * (self.groups_per_gpu(tp) - self.groups / tp) * self.state_size

    def weights_per_gpu(self, hidden: int, tp: int) -> float:
        """Split over heads, but B and C of a single group are whole on every GPU."""
        repeated = hidden * self._repeated_channels(tp)
        return repeated + (self.weights(hidden) - repeated) / tp

    def state_bytes_per_gpu(self, tp: int) -> float:
        """Likewise."""
        repeated = self._repeated_channels(tp) * (self.conv_kernel - 1) * UNQUANTISED_BYTES
        return self.state_bytes / tp + repeated


class LinearMap(AttentionKind):
    """One matrix of hidden x hidden channels in place of attention: no cache, no state.

    Source: Bercovich et al. 2024, Puzzle, arXiv:2411.19146, sec. 2 (Nemotron-NAS, ``replace_with_linear``).
    """

    def matrices(self, hidden: int) -> dict[str, tuple[int, int]]:
        """A single one."""
        return {"linear_attn": (hidden, hidden)}

    def small_parameters(self, hidden: int) -> int:
        """None."""
        return 0
