"""The shapes of one decoder layer, and the number of weights in its matrices.

Sizes are in channels, heads, values; no bytes of a whole model and no GPUs. `planner.llm` builds models of these.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from hardware_db.schema import Dtype, Frozen
from planner.errors import InputError

MAX_SIZE = 2**31 - 1
"""Largest size, a signed 32-bit index; published shapes stay below 2**25 (context of Llama 4 Scout: 10 485 760)."""
MAX_LAYERS = 10_000
"""Most decoder layers; the deepest published decoder in the presets, Llama 3.1 405B, has 126."""

Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
Count = Annotated[int, Field(ge=0, le=MAX_SIZE)]

BYTES_PER_VALUE: dict[Dtype, float] = {
    Dtype.BF16: 2.0,
    Dtype.FP16: 2.0,
    Dtype.FP8: 1.0,
    Dtype.INT8: 1.0,
    Dtype.INT4: 0.5 + 2.0 / 128,
    Dtype.FP4: 0.5 + 1.0 / 16,
}
"""Bytes per stored value, block scales included.

INT4: one 16-bit scale per group of 128 (GPTQ, Frantar et al. 2023, sec. 5; AWQ uses the same group). FP4: one FP8 scale
per 16 values (NVFP4). FP8 and INT8 scales are per tensor or channel and negligible.
"""


class Precision(Frozen):
    """Number formats of a served model. Embeddings, LM head, norms and router stay in 16 bit, as checkpoints do."""

    weights: Dtype = Dtype.BF16
    activations: Dtype = Dtype.BF16
    kv_cache: Dtype = Dtype.BF16


class GroupedQueryAttention(Frozen):
    """Softmax attention with `heads` query heads sharing `kv_heads` key/value heads (MHA and MQA are the ends)."""

    heads: Size
    kv_heads: Size
    head_dim: Size
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm_values: Count = Field(default=0, description="parameters of query and key norms")

    @model_validator(mode="after")
    def _kv_heads_divide_heads(self) -> Self:
        if self.heads % self.kv_heads:
            raise InputError("kv_heads", self.kv_heads, f"must divide heads = {self.heads}", "correct one of the two")
        return self


class DenseFeedForward(Frozen):
    """Two matrices (up, down), or three when gated (SwiGLU: gate, up, down)."""

    intermediate: Size
    gated: bool = True
    bias: bool = False


class MoeFeedForward(Frozen):
    """A router over `experts` feed-forward blocks of which each token visits `experts_per_token`."""

    experts: int = Field(ge=2, le=MAX_SIZE)
    experts_per_token: Size
    intermediate: Size = Field(description="of one expert")
    gated: bool = True
    router_bias: bool = Field(default=False, description="a value per expert corrects the router's choice")

    @model_validator(mode="after")
    def _enough_experts(self) -> Self:
        if self.experts_per_token > self.experts:
            bound = f"must not be above experts = {self.experts}"
            raise InputError("experts_per_token", self.experts_per_token, bound, "correct one of the two")
        return self


class NormKind(StrEnum):
    """RMSNorm has a scale per channel; LayerNorm has a scale and a bias, or (Cohere) only the scale."""

    RMS = "rms"
    LAYER = "layer"
    LAYER_WITHOUT_BIAS = "layer_without_bias"


class LayerGroup(Frozen):
    """`count` identical decoder layers."""

    count: int = Field(ge=1, le=MAX_LAYERS)
    attention: GroupedQueryAttention
    feed_forward: DenseFeedForward | MoeFeedForward


def qkv_weights(group: LayerGroup, hidden: int) -> int:
    """Weights of the query, key and value projections of one layer, biases excluded.

    ``hidden * (heads + 2 kv_heads) * head_dim``. `hidden` [channels]. Source: Ainslie et al. 2023, GQA,
    arXiv:2305.13245, sec. 2.2. Raises nothing.

    >>> llama_3_1_8b = GroupedQueryAttention(heads=32, kv_heads=8, head_dim=128)
    >>> group = LayerGroup(count=32, attention=llama_3_1_8b, feed_forward=DenseFeedForward(intermediate=14336))
    >>> qkv_weights(group, 4096)  # 4096 x 4096 + 2 x 4096 x 1024
    25165824
    """
    attention = group.attention
    return hidden * (attention.heads + 2 * attention.kv_heads) * attention.head_dim


def output_weights(group: LayerGroup, hidden: int) -> int:
    """Weights of the attention output projection of one layer, bias excluded.

    ``heads * head_dim * hidden``. `hidden` [channels]. Source: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.2
    (W^O). Raises nothing.

    >>> llama_3_1_8b = GroupedQueryAttention(heads=32, kv_heads=8, head_dim=128)
    >>> group = LayerGroup(count=32, attention=llama_3_1_8b, feed_forward=DenseFeedForward(intermediate=14336))
    >>> output_weights(group, 4096)  # 4096 x 4096
    16777216
    """
    return group.attention.heads * group.attention.head_dim * hidden


def feed_forward_weights(feed_forward: DenseFeedForward | MoeFeedForward, hidden: int) -> int:
    """Weights of the feed-forward matrices of one layer, of one expert for MoE; biases excluded.

    ``3 * hidden * intermediate`` gated, ``2 * hidden * intermediate`` otherwise. `hidden` [channels]. Source: Shazeer
    2020, GLU Variants Improve Transformer, arXiv:2002.05202, sec. 2. Raises nothing.

    >>> mixtral_8x7b = MoeFeedForward(experts=8, experts_per_token=2, intermediate=14336)
    >>> feed_forward_weights(mixtral_8x7b, 4096)  # 3 x 4096 x 14336
    176160768
    """
    return (3 if feed_forward.gated else 2) * hidden * feed_forward.intermediate


def router_weights(feed_forward: DenseFeedForward | MoeFeedForward, hidden: int) -> int:
    """Weights of the router of one layer, 0 for a dense feed-forward; correction bias excluded.

    ``experts * hidden``. `hidden` [channels]. Source: Shazeer et al. 2017, arXiv:1701.06538, sec. 2.1 (W_g).
    Raises nothing.

    >>> mixtral_8x7b = MoeFeedForward(experts=8, experts_per_token=2, intermediate=14336)
    >>> router_weights(mixtral_8x7b, 4096)  # 8 x 4096
    32768
    """
    return feed_forward.experts * hidden if isinstance(feed_forward, MoeFeedForward) else 0
