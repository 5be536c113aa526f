"""Rules by which engines share out the memory of a GPU at start: a record for each release from which one holds.

An engine loads its weights, runs a full step and a round of sampling, captures graphs, and gives what is left of its
share to the KV cache. What it counts, and of what its share is one, differs by engine and release. Bytes that follow
from shapes (activations, logits) are worked out in `planner.engine.reserve`; here stand what each release multiplies
them by, what was measured (memory outside the tensor library, captured graphs), and the limits that it starts with
where none are given.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from planner.core import Frozen, InputError

Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class MemoryShare(StrEnum):
    """The memory that an engine's memory fraction is a share of."""

    ALL = "all"
    """All memory of the GPU, for everything the engine keeps there (vLLM: gpu_memory_utilization)."""
    STATIC = "static"
    """Memory free before weights are loaded, for weights and KV cache only; activations and graphs come on top
    (SGLang: mem_fraction_static)."""
    FREE = "free"
    """Memory that weights, activations and graphs leave, for the KV cache (TensorRT-LLM: free_gpu_memory_fraction)."""


class CacheLayout(StrEnum):
    """Layouts of a KV cache that layers of several kinds share."""

    EXACT = "exact"
    """Each kind of layer has what it needs."""
    GROUPS = "groups"
    """Layers form groups of one size and one page size; a group that is not full wastes the rest (vLLM)."""
    WINDOW_SHARE = "window_share"
    """Layers with a window keep a fixed share of the tokens that the others keep (SGLang)."""


class StaticReserve(Frozen):
    """Memory that an engine leaves free where no share is given: (memory - reserve) / memory, all in MiB [MiB].

    ``base + batched_token * max(batched tokens, least) + graph_sequence * captured sequences + gpu * GPUs``, at least
    `floor` on GPUs above `floor_above_gib`; `draft` more with speculation.
    """

    base_mib: Amount
    batched_token_mib: Amount
    least_batched_tokens: int = Field(ge=0)
    graph_sequence_mib: Amount
    gpu_mib: Amount
    rank_sequence_mib: Amount = Field(default=0.0, description="for each captured sequence and attention rank")
    floor_mib: Amount = 0.0
    floor_above_gib: Amount = 0.0
    draft_mib: Amount = 0.0


class StartLimits(Frozen):
    """The limits that an engine starts with on GPUs of at least so much memory, where none are given.

    `max_batched_tokens` None is a step that holds the longest request, at least `least_batched_tokens` of it, and
    `chunk_tokens` where requests are longer than `chunked_above`.
    """

    from_gib: Amount = 0.0
    but_not: tuple[str, ...] = Field(default=(), description="architectures that begin so have the next smaller limits")
    max_running_requests: int = Field(ge=1)
    max_batched_tokens: int | None = None
    least_batched_tokens: int = Field(default=2048, ge=1)
    chunked_above: int | None = None
    chunk_tokens: int = Field(default=2048, ge=1)


class ExpertPadding(Frozen):
    """Multiples to which kernels pad the matrices of routed experts in one format, on some GPUs.

    Rows of every matrix (of gate and up projection together, and of the down projection) become a multiple of `rows`,
    the channels read by gate and up one of `hidden`, those read by the down projection one of `intermediate`.
    """

    format: str
    gpus: tuple[str, ...] = Field(description="by the start of their id or architecture; empty: all")
    rows: int = Field(ge=1)
    hidden: int = Field(ge=1)
    intermediate: int = Field(ge=1)


class MemoryRule(Frozen):
    """Memory layout of an engine from one release on.

    Attributes:
        since: first release that it holds for, e.g. ``0.21``.
        dense_only: it holds for models without experts and recurrent layers; others keep the rule before it.
        memory_fraction: where none is given; None: what `reserve` leaves.
        memory_fraction_of: what that is a share of.
        reserve: what is left free by default.
        graphs_in_share: an estimate of captured graphs is taken from the share before the cache gets the rest.
        counts_context: the share holds what the driver keeps for the process as well.
        logit_bytes: at the peak of sampling, for every sampled row and entry of the vocabulary; not split over GPUs.
        few_logit_bytes: the same where fewer than `few_rows` rows are sampled.
        few_rows: rows below which another sort is used.
        kept_logit_bytes: for as long as the server runs, for every row and entry of the vocabulary.
        keeps_workspace: what experts work in stays allocated while a step is sampled.
        context_bytes: what the driver keeps for a process [bytes].
        outside_bytes: outside the tensor library, in all, by GPUs of a stage (the largest number not above counts).
        graph_bytes: of captured graphs, whatever is captured [bytes].
        cache: how layers of several kinds share the cache.
        window_tokens_share: under `CacheLayout.WINDOW_SHARE`.
        limits: it starts with, from much memory to little.
        padding: of routed experts.
        source: of all of these.
        note: what else is to be known.
    """

    since: str = Field(pattern=r"^\d+(\.\d+)*$")
    dense_only: bool = False
    memory_fraction: Fraction | None = None
    memory_fraction_of: MemoryShare = MemoryShare.ALL
    reserve: StaticReserve | None = None
    graphs_in_share: bool = False
    counts_context: bool = False
    logit_bytes: Amount = 0.0
    few_logit_bytes: Amount | None = None
    few_rows: int = Field(default=128, ge=1)
    kept_logit_bytes: Amount = 0.0
    keeps_workspace: bool = False
    context_bytes: Amount = 0.0
    outside_bytes: Mapping[int, Amount] = Field(default_factory=dict)
    graph_bytes: Amount = 0.0
    cache: CacheLayout = CacheLayout.EXACT
    window_tokens_share: Fraction = 1.0
    limits: tuple[StartLimits, ...] = Field(
        default=(StartLimits(max_running_requests=256, max_batched_tokens=8192),), min_length=1
    )
    padding: tuple[ExpertPadding, ...] = ()
    source: str = Field(min_length=8)
    note: str = ""

    @model_validator(mode="after")
    def _says_its_share(self) -> MemoryRule:
        if (self.memory_fraction is None) == (self.reserve is None):
            bound = "needs a share of its own or what is left free, and not both"
            raise InputError("memory_fraction", self.memory_fraction, bound, "give memory_fraction or reserve")
        return self

    def outside_of(self, gpus: int) -> float:
        """Memory outside the tensor library of one of so many GPUs of a stage [bytes]."""
        return max((size for least, size in self.outside_bytes.items() if least <= gpus), default=0.0)

    def limits_on(self, memory_gib: float, architecture: str) -> StartLimits:
        """The limits it starts with on a GPU of so much memory."""
        for limits in self.limits:
            if memory_gib >= limits.from_gib and not architecture.startswith(limits.but_not):
                return limits
        return self.limits[-1]


def release_of(text: str) -> tuple[int, ...]:
    """The numbers of a release, which order releases.

    >>> release_of("0.26.1rc1.dev156+g0eec856") < release_of("0.27"), release_of("v1.3.0rc27")
    (True, (1, 3, 0))
    """
    numbers = []
    for part in text.strip().removeprefix("v").split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if len(digits) < len(part):
            break
    if not numbers:
        raise InputError("engine_version", text, "is no release", "write numbers, such as 0.21.0")
    return tuple(numbers)
