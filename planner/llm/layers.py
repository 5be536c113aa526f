"""The shapes of one decoder layer, and the number of weights in its matrices.

Sizes are in channels, heads, values; no bytes of a whole model and no GPUs. `planner.llm.sizes` builds models of these.
A layer is one kind of attention (or state space), one kind of feed-forward, or both.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from hardware_db import Dtype
from planner.core import Frozen, InputError
from planner.llm.compressed_attention import (
    CompressedAttention,
    compressed_matrices,
    small_compressed_parameters,
)
from planner.llm.size_types import MAX_SIZE, Count, Size

MAX_LAYERS = 10_000
"""Most decoder layers; the deepest published decoder in the presets, Llama 3.1 405B, has 126."""

BYTES_PER_VALUE: dict[Dtype, float] = {
    Dtype.BF16: 2.0,
    Dtype.FP16: 2.0,
    Dtype.FP8: 1.0,
    Dtype.FP8_TOKEN: 1.0,
    Dtype.FP8_BLOCK: 1.0 + 4.0 / (128 * 128),
    Dtype.MXFP8: 1.0 + 1.0 / 32,
    Dtype.INT8: 1.0,
    Dtype.INT4: 0.5 + 2.0 / 128,
    Dtype.INT4_G32: 0.5 + 2.0 / 32,
    Dtype.NVFP4: 0.5 + 1.0 / 16,
    Dtype.MXFP4: 0.5 + 1.0 / 32,
}
"""Bytes per stored value, block scales included.

INT4: one 16-bit scale per group of 128 (GPTQ, Frantar et al. 2023, sec. 5; AWQ uses the same group) or of 32. NVFP4:
one FP8 scale per 16 values. MXFP4 and MXFP8: one 8-bit scale per 32 values (OCP Microscaling Formats 1.0, table 1).
FP8_BLOCK: one 32-bit scale per 128 x 128 block (DeepSeek-AI 2024, arXiv:2412.19437, sec. 3.3.2). The scales of FP8,
FP8_TOKEN and INT8, one a tensor or one a row of thousands, are left out.
"""

_SIXTEEN_BIT = (Dtype.BF16, Dtype.FP16)
_EIGHT_BIT_FLOAT = (Dtype.FP8, Dtype.FP8_TOKEN, Dtype.FP8_BLOCK, Dtype.MXFP8)
ACTIVATIONS_OF: dict[Dtype, tuple[Dtype, ...]] = {
    Dtype.BF16: _SIXTEEN_BIT,
    Dtype.FP16: _SIXTEEN_BIT,
    **dict.fromkeys(_EIGHT_BIT_FLOAT, (*_EIGHT_BIT_FLOAT, *_SIXTEEN_BIT)),
    Dtype.INT8: (Dtype.INT8, *_SIXTEEN_BIT),
    **dict.fromkeys((Dtype.INT4, Dtype.INT4_G32), (*_SIXTEEN_BIT, *_EIGHT_BIT_FLOAT, Dtype.INT8)),
    Dtype.NVFP4: (Dtype.NVFP4, *_EIGHT_BIT_FLOAT, *_SIXTEEN_BIT),
    Dtype.MXFP4: (Dtype.MXFP4, *_EIGHT_BIT_FLOAT, *_SIXTEEN_BIT),
}
"""Weights of a format, and the activations that kernels of serving engines multiply them with; with 16-bit ones, the
weights are unpacked on the way (weight-only kernels)."""


class Part(StrEnum):
    """The matrices of a model that checkpoints quantise together or leave alone together."""

    ATTENTION = "attention"
    """Projections of attention of every kind, linear attention and state space included."""
    ATTENTION_OUTPUT = "attention_output"
    """The last of them, where it is stored in another format than the rest."""
    FEED_FORWARD = "feed_forward"
    """Dense feed-forward layers, those before or between expert layers included."""
    EXPERTS = "experts"
    SHARED_EXPERTS = "shared_experts"
    LM_HEAD = "lm_head"


def _require_multiplied(weights: Dtype, activations: Dtype) -> None:
    """Refuse formats that no kernel multiplies; raises InputError."""
    for name, dtype in (("weights", weights), ("activations", activations)):
        if dtype is Dtype.FP4:
            raise InputError(
                name, dtype.value, "says how values are multiplied, not their scales", "use nvfp4 or mxfp4"
            )
    if activations not in ACTIVATIONS_OF[weights]:
        known = ", ".join(dtype.value for dtype in ACTIVATIONS_OF[weights])
        bound = f"no engine multiplies {weights.value} weights with them"
        raise InputError("activations", activations.value, bound, f"use one of {known}")


class PartPrecision(Frozen):
    """The number formats of one part that differs from the rest."""

    part: Part
    weights: Dtype
    activations: Dtype

    @model_validator(mode="after")
    def _multiplied(self) -> Self:
        _require_multiplied(self.weights, self.activations)
        return self


class Precision(Frozen):
    """Number formats of a served model. Embeddings, norms and router stay in 16 bit, as checkpoints do.

    `parts` are the exceptions: the LM head, too, stays in 16 bit unless it is one of them.
    """

    weights: Dtype = Dtype.BF16
    activations: Dtype = Dtype.BF16
    kv_cache: Dtype = Dtype.BF16
    parts: tuple[PartPrecision, ...] = ()

    @model_validator(mode="after")
    def _stored_and_multiplied(self) -> Self:
        _require_multiplied(self.weights, self.activations)
        if self.kv_cache is Dtype.FP4:
            raise InputError("kv_cache", "fp4", "says how values are multiplied, not their scales", "use nvfp4")
        return self

    @model_validator(mode="after")
    def _one_exception_a_part(self) -> Self:
        named = [exception.part for exception in self.parts]
        if len(named) != len(set(named)):
            raise InputError("parts", ", ".join(named), "names a part twice", "give each part once")
        return self

    def of(self, part: Part) -> tuple[Dtype, Dtype]:
        """Formats of the weights and the activations of one part.

        >>> experts = PartPrecision(part=Part.EXPERTS, weights=Dtype.MXFP4, activations=Dtype.BF16)
        >>> [dtype.value for dtype in Precision(parts=(experts,)).of(Part.EXPERTS)]  # gpt-oss
        ['mxfp4', 'bf16']
        """
        for exception in self.parts:
            if exception.part is part:
                return exception.weights, exception.activations
        if part is Part.ATTENTION_OUTPUT:
            return self.of(Part.ATTENTION)
        if part is Part.LM_HEAD:
            sixteen_bit = Dtype.FP16 if self.activations is Dtype.FP16 else Dtype.BF16
            return sixteen_bit, sixteen_bit
        return self.weights, self.activations


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


class GroupedQueryAttention(Frozen):
    """Softmax attention with `heads` query heads sharing `kv_heads` key/value heads (MHA and MQA are the ends).

    A layer whose `keys_are_values` has no value projection, but caches both: keys are normed and rotated, values are
    not (``modeling_gemma4.py`` of Hugging Face; vLLM, ``gemma4.py``, loads the key projection in both places). A layer
    that `shares_cache` attends to the keys and values of an earlier layer, and keeps and projects none of its own.
    """

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


class SparseIndex(Frozen):
    """The indexer of DeepSeek sparse attention: small heads that choose the `top_k` tokens a query attends to.

    Defaults are those of DeepSeek-V3.2 (huggingface.co/deepseek-ai/DeepSeek-V3.2, config.json: ``index_n_heads``,
    ``index_head_dim``, ``index_topk``).
    """

    heads: Size = 64
    head_dim: Size = 128
    top_k: Size = 2048
    shared: bool = Field(default=False, description="takes the choice of an earlier layer: no weights, keys or scores")


class LatentAttention(Frozen):
    """Multi-head latent attention: keys and values of all heads are made of one latent vector, which is what is cached.

    Source: DeepSeek-AI 2024, DeepSeek-V2, arXiv:2405.04434, sec. 2.1.
    """

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


class LinearAttention(Frozen):
    """Gated delta rule: a state of `key_dim` x `value_dim` per value head replaces the KV cache.

    A gated delta net decays the state of a head as one (`decay_rank` 0), Kimi Delta Attention every key channel by
    itself, from a projection of low rank. Sources: Yang, Kautz & Hatamizadeh 2024, Gated Delta Networks,
    arXiv:2412.06464 (Qwen3-Next and Qwen3.5); Kimi Team 2025, Kimi Linear, arXiv:2510.26692, sec. 3 (Kimi Linear, K3).
    """

    key_heads: Size
    value_heads: Size
    key_dim: Size = Field(description="channels of one key head")
    value_dim: Size = Field(description="channels of one value head")
    conv_kernel: Size = Field(description="tokens of the short convolution on queries, keys and values")
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
        """Channels the convolution runs over: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


class StateSpace(Frozen):
    """Mamba-2: a state of `head_dim` x `state_size` per head replaces the KV cache.

    Source: Dao & Gu 2024, Transformers are SSMs, arXiv:2405.21060, sec. 7; Nemotron-H.
    """

    heads: Size
    head_dim: Size
    state_size: Size
    groups: Size = Field(description="groups of heads that share B and C")
    conv_kernel: Size

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        """Channels the convolution runs over: x, B and C."""
        return self.inner + 2 * self.groups * self.state_size


class LinearMap(Frozen):
    """One matrix of hidden x hidden channels in place of attention: no cache, no state.

    Source: Bercovich et al. 2024, Puzzle, arXiv:2411.19146, sec. 2 (Nemotron-NAS, ``replace_with_linear``).
    """


class DenseFeedForward(Frozen):
    """Two matrices (up, down), or three when gated (SwiGLU: gate, up, down); or a `single` one in their place."""

    intermediate: Size
    gated: bool = True
    bias: bool = False
    single: bool = Field(default=False, description="one matrix of hidden x intermediate channels (Nemotron-NAS)")

    @model_validator(mode="after")
    def _single_is_plain(self) -> Self:
        if self.single and (self.gated or self.bias):
            raise InputError("single", True, "one matrix has neither gate nor bias", "set gated and bias to false")
        return self


class MoeFeedForward(Frozen):
    """A router over `experts` feed-forward blocks of which each token visits `experts_per_token`, and shared ones."""

    experts: int = Field(ge=2, le=MAX_SIZE)
    experts_per_token: Size
    intermediate: Size = Field(description="of one expert")
    gated: bool = True
    bias: bool = Field(default=False, description="the experts' matrices have biases (gpt-oss)")
    router_bias: bool = Field(default=False, description="a value per expert corrects the router's choice")
    shared_intermediate: Count = Field(default=0, description="all shared experts together; every token visits them")
    shared_gate: bool = Field(default=False, description="a gate of one value weighs the shared expert (Qwen)")
    dense_beside: bool = Field(
        default=False, description="the shared expert is a dense block with norms of its own beside them (Gemma 4)"
    )
    latent: Count = Field(default=0, description="channels the routed experts work on; 0 = the hidden ones (LatentMoE)")
    latent_norm: bool = Field(default=False, description="a norm on the sum of the experts, before it is projected up")
    hashed: bool = Field(default=False, description="a table by token id, not the router's scores, names the experts")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.experts_per_token > self.experts:
            bound = f"must not be above experts = {self.experts}"
            raise InputError("experts_per_token", self.experts_per_token, bound, "correct one of the two")
        if self.shared_gate and not self.shared_intermediate:
            raise InputError("shared_gate", True, "there is no shared expert to weigh", "give shared_intermediate")
        if self.dense_beside and not self.shared_intermediate:
            raise InputError("dense_beside", True, "there is no block beside the experts", "give shared_intermediate")
        if self.latent_norm and not self.latent:
            raise InputError("latent_norm", True, "there is no latent vector to norm", "give latent")
        return self

    def width(self, hidden: int) -> int:
        """Channels that routed experts read and write, of a model of `hidden` channels."""
        return self.latent or hidden


Attention = GroupedQueryAttention | LatentAttention | LinearAttention | StateSpace | LinearMap | CompressedAttention
FeedForward = DenseFeedForward | MoeFeedForward
DecoderLayers = Sequence[tuple[Attention | None, FeedForward | None]]
"""Attention and feed-forward of each decoder layer, in order."""


class LayerEmbedding(Frozen):
    """A row of `size` channels for every token and layer, which the layer gates, projects up and adds.

    The rows come from a table of their own, which is looked up and not multiplied, and from a projection of the token's
    embedding. Source: ``modeling_gemma4.py`` of Hugging Face (per-layer embeddings; before it, Gemma 3n).
    """

    vocab_size: Size
    size: Size


class NormKind(StrEnum):
    """RMSNorm has a scale per channel; LayerNorm has a scale and a bias, or (Cohere) only the scale."""

    RMS = "rms"
    LAYER = "layer"
    LAYER_WITHOUT_BIAS = "layer_without_bias"


class LayerGroup(Frozen):
    """`count` identical decoder layers, wherever in the model they are."""

    count: int = Field(ge=1, le=MAX_LAYERS)
    attention: Attention | None
    feed_forward: FeedForward | None

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if self.attention is None and self.feed_forward is None:
            raise InputError("attention", None, "a layer needs attention, a feed-forward block or both", "give one")
        return self


def attention_matrices(attention: Attention | None, hidden: int) -> dict[str, tuple[int, int]]:
    """Inputs and outputs [channels] of every matrix of the attention (or state-space) block of one layer, by name.

    Names are those of Hugging Face checkpoints; empty for a layer without attention. `hidden` [channels]. Sources:
    Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.2; MLA: DeepSeek-AI 2024, arXiv:2405.04434, eq. 9-19; its index:
    ``inference/model.py`` of huggingface.co/deepseek-ai/DeepSeek-V3.2-Exp (wq_b, wk, weights_proj); index of blocks:
    ``modular_minimax_m3_vl.py`` of Hugging Face; linear attention
    and state space: ``modeling_qwen3_5_moe.py`` and ``modeling_nemotron_h.py`` of Hugging Face; with a decay per
    channel: ``kda.py`` of vLLM and the tensors of huggingface.co/moonshotai/Kimi-K3. Raises nothing.

    >>> v3 = LatentAttention(heads=128, query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
    >>> attention_matrices(v3, 7168)["q_b_proj"]  # 1536 to 128 x 192
    (1536, 24576)
    """
    shapes: dict[str, tuple[int, int]] = {}
    match attention:
        case GroupedQueryAttention():
            shapes = _grouped_query_matrices(attention, hidden)
        case LatentAttention():
            shapes = _latent_matrices(attention, hidden)
        case CompressedAttention():
            shapes = compressed_matrices(attention, hidden)
        case LinearMap():
            shapes = {"linear_attn": (hidden, hidden)}
        case LinearAttention():
            shapes = _delta_rule_matrices(attention, hidden)
        case StateSpace():
            into = 2 * attention.inner + 2 * attention.groups * attention.state_size + attention.heads
            shapes = {"in_proj": (hidden, into), "out_proj": (attention.inner, hidden)}
        case None:
            pass
    return shapes


def _grouped_query_matrices(attention: GroupedQueryAttention, hidden: int) -> dict[str, tuple[int, int]]:
    """As `attention_matrices`."""
    queries, value = attention.heads * attention.head_dim, attention.values_per_head
    shapes = {"q_proj": (hidden, queries * (2 if attention.output_gate else 1))}
    if not attention.shares_cache:
        shapes["k_proj"] = (hidden, attention.kv_heads * attention.head_dim)
        if not attention.keys_are_values:
            shapes["v_proj"] = (hidden, attention.kv_heads * value)
    if attention.head_gate:
        shapes["g_proj"] = (hidden, attention.heads)
    if attention.index is not None:
        shapes["index_q_proj"] = (hidden, attention.index.heads * attention.index.head_dim)
        shapes["index_k_proj"] = (hidden, attention.index.head_dim)
    return shapes | {"o_proj": (attention.heads * value, hidden)}


def _delta_rule_matrices(attention: LinearAttention, hidden: int) -> dict[str, tuple[int, int]]:
    """As `attention_matrices`."""
    keys, values = attention.key_heads * attention.key_dim, attention.value_heads * attention.value_dim
    heads, decay, gate = attention.value_heads, attention.decay_rank, attention.gate_rank
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


def _latent_matrices(attention: LatentAttention, hidden: int) -> dict[str, tuple[int, int]]:
    """As `attention_matrices`."""
    rank, queries = attention.query_rank, attention.heads * (attention.nope_dim + attention.rope_dim)
    shapes = {"q_a_proj": (hidden, rank), "q_b_proj": (rank, queries)} if rank else {"q_proj": (hidden, queries)}
    shapes |= {
        "kv_a_proj_with_mqa": (hidden, attention.kv_rank + attention.rope_dim),
        "kv_b_proj": (attention.kv_rank, attention.heads * (attention.nope_dim + attention.value_dim)),
        "o_proj": (attention.heads * attention.value_dim, hidden),
    }
    if attention.output_gate:
        shapes["g_proj"] = (hidden, attention.heads * attention.value_dim)
    if attention.index is not None and not attention.index.shared:
        shapes |= {
            "indexer.wq_b": (rank, attention.index.heads * attention.index.head_dim),
            "indexer.wk": (hidden, attention.index.head_dim),
            "indexer.weights_proj": (hidden, attention.index.heads),
        }
    return shapes


def attention_weights(attention: Attention | None, hidden: int) -> int:
    """Weights of all matrices of the attention (or state-space) block of one layer.

    Sum of inputs times outputs of `attention_matrices`; biases, norms and convolution excluded, 0 for a layer without
    attention. `hidden` [channels]. Sources: those of `attention_matrices`. Raises nothing.

    >>> v3 = LatentAttention(heads=128, query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
    >>> attention_weights(v3, 7168)  # 7168x1536 + 1536x24576 + 7168x576 + 512x32768 + 16384x7168
    187105280
    """
    return sum(inputs * outputs for inputs, outputs in attention_matrices(attention, hidden).values())


def attention_output_weights(attention: Attention | None, hidden: int) -> int:
    """Weights of the output projection of one layer, the part of `attention_weights` that is `Part.ATTENTION_OUTPUT`.

    `hidden` [channels]. Sources: those of `attention_matrices`. Raises nothing.

    >>> attention_output_weights(GroupedQueryAttention(heads=32, kv_heads=8, head_dim=128), 4096)
    16777216
    """
    shapes = attention_matrices(attention, hidden)
    return sum(inputs * outputs for name, (inputs, outputs) in shapes.items() if name in OUTPUT_PROJECTIONS)


def index_weights(attention: Attention | None, hidden: int) -> int:
    """Weights of the matrices of an index among those of one layer, 0 without one.

    `hidden` [channels]. Sources: those of `attention_matrices`. Raises nothing.

    >>> m3 = GroupedQueryAttention(heads=64, kv_heads=4, head_dim=128, index=BlockIndex())
    >>> index_weights(m3, 6144)  # 6144 to 4 x 128 and to 128
    3932160
    """
    shapes = attention_matrices(attention, hidden)
    return sum(inputs * outputs for name, (inputs, outputs) in shapes.items() if name.startswith("index"))


OUTPUT_PROJECTIONS = ("o_proj", "out_proj", "wo_b")
"""Names of the output projection among `attention_matrices`."""


def feed_forward_weights(feed_forward: FeedForward | None, hidden: int) -> int:
    """Weights of the feed-forward matrices of one layer, of one routed expert for MoE; biases excluded.

    ``3 * hidden * intermediate`` gated, ``2 * hidden * intermediate`` otherwise, 0 for a layer without; experts on a
    latent vector have its channels in place of `hidden` [channels]. Sources: Shazeer 2020, GLU Variants Improve
    Transformer, arXiv:2002.05202, sec. 2; Elango et al. 2026, LatentMoE, arXiv:2601.18089, sec. 3. Raises nothing.

    >>> mixtral_8x7b = MoeFeedForward(experts=8, experts_per_token=2, intermediate=14336)
    >>> feed_forward_weights(mixtral_8x7b, 4096)  # 3 x 4096 x 14336
    176160768
    """
    if feed_forward is None:
        return 0
    channels = feed_forward.width(hidden) if isinstance(feed_forward, MoeFeedForward) else hidden
    return _matrices(feed_forward) * channels * feed_forward.intermediate


def shared_expert_weights(feed_forward: FeedForward | None, hidden: int) -> int:
    """Weights of the matrices of all shared experts of one layer, 0 where there are none; their gate excluded.

    ``3 * hidden * shared_intermediate`` gated, twice otherwise. `hidden` [channels]. Source: Dai et al. 2024,
    DeepSeekMoE, arXiv:2401.06066, sec. 3.2. Raises nothing.

    >>> v3 = MoeFeedForward(experts=256, experts_per_token=8, intermediate=2048, shared_intermediate=2048)
    >>> shared_expert_weights(v3, 7168)  # 3 x 7168 x 2048
    44040192
    """
    if not isinstance(feed_forward, MoeFeedForward):
        return 0
    return _matrices(feed_forward) * hidden * feed_forward.shared_intermediate


def _matrices(feed_forward: FeedForward) -> int:
    """Matrices of a feed-forward block or of one expert."""
    if isinstance(feed_forward, DenseFeedForward) and feed_forward.single:
        return 1
    return 3 if feed_forward.gated else 2


def latent_projection_weights(feed_forward: FeedForward | None, hidden: int) -> int:
    """Weights that project tokens to the latent vector of routed experts and their sum back, 0 without one.

    ``2 * hidden * latent``; 16 bit in all checkpoints, as the router. `hidden` [channels]. Sources: ``fc1_latent_proj``
    and ``fc2_latent_proj`` of ``nemotron_h.py`` in vLLM, ``routed_expert_down_proj`` and ``routed_expert_up_proj`` of
    huggingface.co/moonshotai/Kimi-K3. Raises nothing.

    >>> k3 = MoeFeedForward(experts=896, experts_per_token=16, intermediate=3072, latent=3584)
    >>> latent_projection_weights(k3, 7168)  # 2 x 7168 x 3584
    51380224
    """
    return 2 * hidden * feed_forward.latent if isinstance(feed_forward, MoeFeedForward) else 0


def router_weights(feed_forward: FeedForward | None, hidden: int) -> int:
    """Weights of the router of one layer, 0 for a dense feed-forward; correction bias excluded.

    ``experts * hidden``. `hidden` [channels]. Source: Shazeer et al. 2017, arXiv:1701.06538, sec. 2.1 (W_g).
    Raises nothing.

    >>> mixtral_8x7b = MoeFeedForward(experts=8, experts_per_token=2, intermediate=14336)
    >>> router_weights(mixtral_8x7b, 4096)  # 8 x 4096
    32768
    """
    return feed_forward.experts * hidden if isinstance(feed_forward, MoeFeedForward) else 0


def dense_beside_parameters(feed_forward: FeedForward | None, hidden: int) -> int:
    """Norms and scales of a layer whose experts have a dense block beside them; 0 for others.

    Three norms over the hidden channels, a scale of each of them before the router and one of each expert: ``4 * hidden
    + experts``. `hidden` [channels]. Source: ``modeling_gemma4.py`` of Hugging Face (Gemma4TextDecoderLayer,
    Gemma4TextRouter). Raises nothing.

    >>> beside = {"shared_intermediate": 2112, "dense_beside": True}
    >>> gemma_4 = MoeFeedForward(experts=128, experts_per_token=8, intermediate=704, **beside)
    >>> dense_beside_parameters(gemma_4, 2816)  # 4 x 2816 + 128
    11392
    """
    if not isinstance(feed_forward, MoeFeedForward) or not feed_forward.dense_beside:
        return 0
    return 4 * hidden + feed_forward.experts


def layer_embedding_weights(embedding: LayerEmbedding | None, hidden: int) -> int:
    """Weights of the gate and the projection of an embedding of its own in one layer, 0 without.

    ``2 * hidden * size``. `hidden` [channels]. Source: that of `LayerEmbedding`. Raises nothing.

    >>> layer_embedding_weights(LayerEmbedding(vocab_size=262_144, size=256), 1536)  # Gemma 4 E2B: 2 x 1536 x 256
    786432
    """
    return 0 if embedding is None else 2 * hidden * embedding.size


def feed_forward_biases(feed_forward: FeedForward, hidden: int) -> int:
    """Biases of the matrices of one feed-forward block, of one expert for MoE. Raises nothing.

    >>> gpt_oss = MoeFeedForward(experts=32, experts_per_token=4, intermediate=2880, bias=True)
    >>> feed_forward_biases(gpt_oss, 2880)  # gate and up: 2 x 2880, down: 2880
    8640
    """
    if not feed_forward.bias:
        return 0
    channels = feed_forward.width(hidden) if isinstance(feed_forward, MoeFeedForward) else hidden
    return (2 if feed_forward.gated else 1) * feed_forward.intermediate + channels


def small_attention_parameters(attention: Attention | None, hidden: int) -> int:
    """Parameters of the attention or state-space block of one layer that are in no matrix.

    Biases, norms of queries, keys and latent vectors, sinks; for linear attention and state space the convolution, the
    decay and step of each head and the norm of the output. Source: the ``modeling_<model_type>.py`` named in
    `planner.llm.hf_layers`. Raises nothing.

    >>> small_attention_parameters(GroupedQueryAttention(heads=64, kv_heads=8, head_dim=64, sinks=True), 2880)
    64
    """
    match attention:
        case None | LinearMap():
            return 0
        case GroupedQueryAttention():
            count = attention.qk_norm_values + (attention.heads if attention.sinks else 0)
            biases = attention.heads * attention.head_dim + attention.projected_kv_values
            count += biases if attention.qkv_bias else 0
            count += 2 * attention.index.head_dim if attention.index is not None else 0
            return count + (hidden if attention.output_bias else 0)
        case CompressedAttention():
            return small_compressed_parameters(attention, hidden)
        case LatentAttention():
            index = attention.index
            return attention.query_rank + attention.kv_rank + (2 * index.head_dim if index and not index.shared else 0)
        case LinearAttention():
            count = attention.conv_channels * attention.conv_kernel + attention.value_heads + attention.value_dim
            return count + (attention.key_heads * attention.key_dim if attention.decay_rank else attention.value_heads)
        case StateSpace():
            return attention.conv_channels * (attention.conv_kernel + 1) + 3 * attention.heads + attention.inner
