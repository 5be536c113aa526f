"""Contents of a step, the split of a replica, and the part of a step that one GPU sees."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Self

from pydantic import Field, model_validator

from planner.core import Frozen, InputError
from planner.roofline.arithmetic import Number, at_least, at_most

TINY_COUNT = 1e-12
"""Counts in a denominator are taken for at least this: means over nothing become finite. A guard, not a choice."""


class OperatorFamily(StrEnum):
    """Operator families: the granularity of step-time items."""

    EMBEDDING = "embedding"
    NORM = "norm"
    QKV = "qkv"
    ATTENTION_PREFILL = "attention_prefill"
    ATTENTION_DECODE = "attention_decode"
    ATTENTION_OUTPUT = "attention_output"
    INDEX = "index"
    RECURRENCE = "recurrence"
    FEED_FORWARD = "feed_forward"
    ROUTER = "router"
    EXPERTS = "experts"
    SHARED_EXPERTS = "shared_experts"
    LM_HEAD = "lm_head"
    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    EXPERT_EXCHANGE = "expert_exchange"
    STAGE_TRANSFER = "stage_transfer"


class Bound(StrEnum):
    """The resource an operator, a step or a pool waits for."""

    COMPUTE = "compute"
    MEMORY = "memory"
    LINK = "link"
    OVERHEAD = "overhead"


class Fusion(NamedTuple):
    """What an engine does in the kernel before or after instead of in one of its own.

    Attributes:
        norm_bytes: largest buffer that an all-reduce sums and takes the norm of [bytes].
        quantises: norms and gates write activations in the 8 bits that the product after them reads.
    """

    norm_bytes: float = 0.0
    quantises: bool = False


NO_FUSION = Fusion()
"""Every kernel by itself."""


class Parallelism(Frozen):
    """How one replica is split over GPUs: `tp * dp * pcp * pp` of them.

    Attention (and all dense matrices) is split over `tp` GPUs and repeated on `dp` ranks that serve requests of their
    own (attention data parallelism). Routed experts are spread over all `tp * dp * pcp` GPUs of a stage: `ep` groups of
    whole experts, each expert split over the others of its group; where they do not divide evenly, copies of
    popular ones (`redundant_experts`) fill the groups. Layers are split over `pp` stages. `tp` beyond one fast domain
    is refused unless `across_domains` says that it is meant: sums then cross the network.

    Decode context parallelism takes no GPUs of its own: of the `tp` GPUs, `dcp` that would each keep the same KV heads
    keep them of different tokens. Each attends to its part of a context with the queries of all of them, and the parts
    are merged by the logarithms of their sums (Helix Parallelism, arXiv:2507.07120; vLLM,
    docs/serving/context_parallel_deployment.md).

    Context parallelism of prompts repeats attention on `pcp` GPUs as ranks do, but these share out the tokens of every
    prompt and gather its keys and values in each layer, so that all of them keep the whole cache. The shares are alike
    in work: blocks from both ends of a prompt, or every pcp-th token (SGLang 0.5.23, ``layers/cp/zigzag.py`` and
    ``interleave.py``).
    """

    tp: int = Field(default=1, ge=1, le=72)
    pp: int = Field(default=1, ge=1, le=64)
    ep: int = Field(default=1, ge=1, le=1024)
    dp: int = Field(default=1, ge=1, le=1024)
    dcp: int = Field(default=1, ge=1, le=72, description="GPUs of tp that share out the tokens of a context")
    pcp: int = Field(default=1, ge=1, le=72, description="GPUs that share out the tokens of a prompt")
    redundant_experts: int = Field(default=0, ge=0, le=1024, description="copies of experts, of every layer")
    across_domains: bool = Field(default=False, description="tp may reach beyond one fast domain")

    @model_validator(mode="after")
    def _degrees_divide(self) -> Self:
        if self.stage_gpus % self.ep:
            bound = f"must divide tp * dp{' * pcp' * (self.pcp > 1)} = {self.stage_gpus}"
            raise InputError("parallelism.ep", self.ep, bound, f"use ep = {self.stage_gpus} or a divisor of it")
        if self.tp % self.dcp:
            raise InputError("parallelism.dcp", self.dcp, f"must divide tp = {self.tp}", "use a divisor of it")
        if min(self.dcp, self.pcp) > 1:
            bound = "GPUs that share out prompts keep whole contexts"
            raise InputError("parallelism.pcp", self.pcp, bound, "leave dcp or pcp out")
        return self

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.stage_gpus * self.pp

    @property
    def stage_gpus(self) -> int:
        """GPUs of one pipeline stage: those that share its experts."""
        return self.tp * self.shards

    @property
    def shards(self) -> int:
        """Parts that the tokens of a stage are in: of its attention ranks, shared out or not."""
        return self.dp * self.pcp

    @property
    def expert_tp(self) -> int:
        """GPUs one expert is split over."""
        return self.stage_gpus // self.ep

    @property
    def label(self) -> str:
        """E.g. ``TP4``, ``TP2 DP4 EP8`` or ``TP8 DCP8``; degrees of 1 are left out, except that of TP."""
        degrees = {"TP": self.tp, "PP": self.pp, "DP": self.dp, "EP": self.ep, "DCP": self.dcp, "PCP": self.pcp}
        return " ".join(f"{name}{degree}" for name, degree in degrees.items() if name == "TP" or degree > 1)


@dataclass(frozen=True)
class StepShape:
    """Contents of a step of a replica (or of many: arrays of one shape).

    Attributes:
        decodes: sequences advanced by one token.
        decode_context: sum over decodes of the tokens they attend to, own token included.
        chunk_tokens: new prompt tokens over all chunks.
        chunk_pairs: sum over chunks of new * past + new * (new + 1) / 2 query-key pairs (causal attention integrated
            over the positions of the chunk).
        chunk_context: sum over chunks of past + new tokens.
        chunks: number of prompt chunks.
    """

    decodes: Number
    decode_context: Number
    chunk_tokens: Number = 0.0
    chunk_pairs: Number = 0.0
    chunk_context: Number = 0.0
    chunks: Number = 0.0


@dataclass(frozen=True)
class Load:
    """Part of a step that one GPU sees, that of its attention rank, in sums and means. Floats or arrays of one shape.

    Attributes:
        tokens: of its rank. group_tokens: of all ranks together, which experts see.
        rows: positions whose next token its rank samples.
        decodes: sequences its rank advances by `queries` tokens each. context: mean tokens each attends to.
        chunks: prompt chunks of its rank. new, past: mean new and earlier tokens of its part of a chunk, such that
            chunks * (new * past + new (new + 1) / 2) is the exact number of causal pairs (new is 1 without chunks).
        cached: mean tokens a chunk reads from the cache.
        queries: tokens per decoding sequence and step: 1, more with speculation.
    """

    tokens: Number
    group_tokens: Number
    rows: Number
    decodes: Number
    context: Number
    chunks: Number
    new: Number
    past: Number
    cached: Number
    queries: float = 1.0

    @classmethod
    def of(cls, shape: StepShape, parallelism: Parallelism, queries: float = 1.0) -> Self:
        """The part of a step that one GPU of a replica sees.

        Decodes are spread evenly over the attention ranks and the pipeline's micro-batches; prompt chunks stay whole,
        so that fewer chunks than ranks and micro-batches leave some idle: the busiest rank and micro-batch is meant.
        Where GPUs share out prompts each has its part of the tokens and pairs of a chunk, and all decodes of its rank.
        """
        dp, shares, parts = float(parallelism.dp), float(parallelism.dp * parallelism.pp), float(parallelism.pcp)
        busy = at_least(at_most(shape.chunks, shares), 1.0)
        chunks = shape.chunks / busy
        divisor = at_least(shape.chunks, TINY_COUNT)
        new = at_least(shape.chunk_tokens / parts / divisor, 1.0)
        past = at_least((shape.chunk_pairs / parts / divisor) / new - (new + 1.0) / 2.0, 0.0)
        decodes = shape.decodes / shares
        prompt = shape.chunk_tokens / busy
        # Chunks of all ranks meet at the experts: dp ranks of one micro-batch, as many as are busy.
        ranks = at_most(busy, dp)
        return cls(
            tokens=decodes * queries + prompt / parts,
            group_tokens=decodes * dp * queries + prompt * ranks,
            rows=decodes * queries + chunks,
            decodes=decodes,
            context=at_least(shape.decode_context / at_least(shape.decodes, TINY_COUNT), 1.0),
            chunks=chunks,
            new=new,
            past=past,
            cached=at_least(shape.chunk_context / divisor - new, 0.0),
            queries=queries,
        )
