"""Kinds of feed-forward blocks, dense and of experts: shapes of one layer, its weights, what a token visits.

A kind answers for itself, as those of `planner.llm.attention` do. Sizes are in channels and values.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

from pydantic import Field, model_validator

from planner.core import Frozen, InputError
from planner.llm.formats import MAX_SIZE, Count, Part, Size


class FeedForwardKind(Frozen):
    """Base of the kinds of feed-forward blocks; of experts, one of them is the block."""

    intermediate: Size = Field(description="channels between the matrices, of one expert")
    gated: bool = True
    bias: bool = Field(default=False, description="the matrices have biases")

    @abstractmethod
    def parts(self, hidden: int) -> dict[Part, int]:
        """Weights of the matrices of one layer, by the part of the model they are quantised with."""

    @abstractmethod
    def small_parameters(self, hidden: int) -> int:
        """Parameters of one layer that are in no matrix of `parts`: biases, router, gates, norms."""

    @abstractmethod
    def adapted_channels(self, hidden: int) -> tuple[int, int]:
        """Inputs plus outputs [channels] of the matrices of one layer, summed: of routed experts, and of all others."""

    @abstractmethod
    def working_values(self, hidden: int, tp: int, expert_tp: int) -> float:
        """Values per token of the tensors that live at once, on one of `tp` GPUs (of `expert_tp` for an expert)."""

    @abstractmethod
    def checkpoint_blocks(self, part: Part) -> tuple[str, ...]:
        """Names that checkpoints give to the block of a part of `parts`, after the number of the layer."""

    @property
    def matrix_names(self) -> tuple[str, ...]:
        """Names of the matrices of the block in Hugging Face checkpoints."""
        return ("gate_proj", "up_proj", "down_proj") if self.gated else ("up_proj", "down_proj")

    @property
    def matrices(self) -> int:
        """Number of them."""
        return len(self.matrix_names)

    @property
    def products(self) -> int:
        """Matrix products of one layer; those of routed experts count once, as one grouped product."""
        return self.matrices

    def width(self, hidden: int) -> int:
        """Channels that the block reads and writes, of a model of `hidden` channels."""
        return hidden

    def weights(self, hidden: int) -> int:
        """Weights of the matrices of the block; biases excluded: ``matrices * width * intermediate``.

        Source: Shazeer 2020, GLU Variants Improve Transformer, arXiv:2002.05202, sec. 2.
        """
        return self.matrices * self.width(hidden) * self.intermediate

    def biases(self, hidden: int) -> int:
        """Biases of the matrices of the block.

        >>> gpt_oss = MoeFeedForward(experts=32, experts_per_token=4, intermediate=2880, bias=True)
        >>> gpt_oss.biases(2880)  # gate and up: 2 x 2880, down: 2880
        8640
        """
        return (2 if self.gated else 1) * self.intermediate + self.width(hidden) if self.bias else 0


class DenseFeedForward(FeedForwardKind):
    """Two matrices (up, down), or three when gated (SwiGLU: gate, up, down); or a `single` one in their place."""

    single: bool = Field(default=False, description="one matrix of hidden x intermediate channels (Nemotron-NAS)")

    @model_validator(mode="after")
    def _single_is_plain(self) -> Self:
        if self.single and (self.gated or self.bias):
            raise InputError("single", True, "one matrix has neither gate nor bias", "set gated and bias to false")
        return self

    @property
    def matrix_names(self) -> tuple[str, ...]:
        """One where it is single."""
        return ("linear_mlp",) if self.single else super().matrix_names

    def checkpoint_blocks(self, part: Part) -> tuple[str, ...]:
        """Of dense layers."""
        return ("mlp", "feed_forward", "mixer")

    def parts(self, hidden: int) -> dict[Part, int]:
        """A part of its own."""
        return {Part.FEED_FORWARD: self.weights(hidden)}

    def small_parameters(self, hidden: int) -> int:
        """Biases."""
        return self.biases(hidden)

    def adapted_channels(self, hidden: int) -> tuple[int, int]:
        """No experts."""
        return 0, self.matrices * (hidden + self.intermediate)

    def working_values(self, hidden: int, tp: int, expert_tp: int) -> float:
        """Gate and up, and the activation."""
        return (3 if self.gated else 2) * self.intermediate / tp


class MoeFeedForward(FeedForwardKind):
    """A router over `experts` feed-forward blocks of which each token visits `experts_per_token`, and shared ones.

    Experts may work on a latent vector (Elango et al. 2026, LatentMoE, arXiv:2601.18089, sec. 3).

    >>> mixtral_8x7b = MoeFeedForward(experts=8, experts_per_token=2, intermediate=14336)
    >>> mixtral_8x7b.weights(4096), mixtral_8x7b.small_parameters(4096)  # 3 x 4096 x 14336; the router, 8 x 4096
    (176160768, 32768)
    """

    experts: int = Field(ge=2, le=MAX_SIZE)
    experts_per_token: Size
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

    @property
    def visited_share(self) -> float:
        """Share of the routed experts that one token visits."""
        return self.experts_per_token / self.experts

    @property
    def products(self) -> int:
        """Those of shared experts beside those of routed ones."""
        return self.matrices * (2 if self.shared_intermediate else 1)

    def width(self, hidden: int) -> int:
        """Channels that routed experts read and write."""
        return self.latent or hidden

    def parts(self, hidden: int) -> dict[Part, int]:
        """Routed experts, and all shared ones, without their gate: ``matrices * hidden * shared_intermediate``.

        Source: Dai et al. 2024, DeepSeekMoE, arXiv:2401.06066, sec. 3.2.

        >>> v3 = MoeFeedForward(experts=256, experts_per_token=8, intermediate=2048, shared_intermediate=2048)
        >>> v3.parts(7168)[Part.SHARED_EXPERTS]  # 3 x 7168 x 2048
        44040192
        """
        shared = self.matrices * hidden * self.shared_intermediate
        return {Part.EXPERTS: self.experts * self.weights(hidden), Part.SHARED_EXPERTS: shared}

    def checkpoint_blocks(self, part: Part) -> tuple[str, ...]:
        """Names of the first expert, and of the shared ones: others where a dense block is beside them, not in one."""
        if self.dense_beside:
            return ("experts.0", "moe.experts.0") if part is Part.EXPERTS else ("mlp",)
        blocks = ("mlp", "ffn", "block_sparse_moe", "mixer")
        if part is Part.EXPERTS:
            return (*(f"{block}.experts.0" for block in (*blocks, "moe")), "feed_forward.experts", "moe")
        shared = ("mlp.shared_expert", "feed_forward.shared_expert", "share_expert")
        return (*(f"{block}.shared_experts" for block in blocks), *shared)

    def latent_weights(self, hidden: int) -> int:
        """Weights that project tokens to the latent vector of routed experts and their sum back: ``2 hidden latent``.

        16 bit in all checkpoints, as the router. Sources: ``fc1_latent_proj`` and ``fc2_latent_proj`` of
        ``nemotron_h.py`` in vLLM, ``routed_expert_down_proj`` and ``routed_expert_up_proj`` of
        huggingface.co/moonshotai/Kimi-K3.

        >>> k3 = MoeFeedForward(experts=896, experts_per_token=16, intermediate=3072, latent=3584)
        >>> k3.latent_weights(7168)  # 2 x 7168 x 3584
        51380224
        """
        return 2 * hidden * self.latent

    def small_parameters(self, hidden: int) -> int:
        """Router (``experts * hidden``: Shazeer et al. 2017, arXiv:1701.06538, sec. 2.1), latent projections, biases.

        Where a dense block is beside the experts, three norms over the hidden channels, a scale of each of them before
        the router and one of each expert: ``4 * hidden + experts``. Source: ``modeling_gemma4.py`` of Hugging Face
        (Gemma4TextDecoderLayer, Gemma4TextRouter).

        >>> beside = {"shared_intermediate": 2112, "dense_beside": True}
        >>> gemma_4 = MoeFeedForward(experts=128, experts_per_token=8, intermediate=704, **beside)
        >>> gemma_4.small_parameters(2816) - 128 * 2816  # 4 x 2816 + 128
        11392
        """
        count = self.experts * (hidden + self.biases(hidden)) + self.latent_weights(hidden)
        count += 4 * hidden + self.experts if self.dense_beside else 0
        count += self.experts if self.router_bias else 0
        count += hidden if self.shared_gate else 0
        return count + (self.latent if self.latent_norm else 0)

    def adapted_channels(self, hidden: int) -> tuple[int, int]:
        """Every routed expert has a pair of factors, and the shared ones together."""
        shared = self.matrices * (hidden + self.shared_intermediate) if self.shared_intermediate else 0
        return self.experts * self.matrices * (self.width(hidden) + self.intermediate), shared

    def working_values(self, hidden: int, tp: int, expert_tp: int) -> float:
        """The work space of routed experts: max(gate and up, hidden) and the activation, by visit.

        Source: ``fused_experts`` of vLLM: `intermediate_cache13` and `intermediate_cache2`.
        """
        inner = self.intermediate / expert_tp
        return self.experts_per_token * (max((2 if self.gated else 1) * inner, self.width(hidden)) + inner)
