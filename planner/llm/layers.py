"""The layers of a decoder: groups of one kind of attention, one kind of feed-forward, or both.

The kinds themselves are in `planner.llm.attention`, `planner.llm.compressed_attention`, `planner.llm.feed_forward`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from planner.core import Frozen, InputError
from planner.llm.attention import GroupedQueryAttention, LatentAttention, LinearAttention, LinearMap, StateSpace
from planner.llm.compressed_attention import CompressedAttention
from planner.llm.feed_forward import DenseFeedForward, MoeFeedForward
from planner.llm.formats import Size

MAX_LAYERS = 10_000
"""Most decoder layers; the deepest published decoder in the presets, Llama 3.1 405B, has 126."""

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

    def weights(self, hidden: int) -> int:
        """Weights of the gate and the projection in one layer: ``2 * hidden * size``. `hidden` [channels].

        >>> LayerEmbedding(vocab_size=262_144, size=256).weights(1536)  # Gemma 4 E2B: 2 x 1536 x 256
        786432
        """
        return 2 * hidden * self.size


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

    @property
    def experts(self) -> MoeFeedForward | None:
        """The feed-forward block where it is one of routed experts."""
        return self.feed_forward if isinstance(self.feed_forward, MoeFeedForward) else None


def attentions(layers: Iterable[LayerGroup]) -> list[tuple[int, Attention]]:
    """Kinds of attention of some layers, each with its number of layers; layers without are left out."""
    return [(group.count, group.attention) for group in layers if group.attention is not None]


def feed_forwards(layers: Iterable[LayerGroup]) -> list[tuple[int, FeedForward]]:
    """Kinds of feed-forward blocks of some layers, likewise."""
    return [(group.count, group.feed_forward) for group in layers if group.feed_forward is not None]
