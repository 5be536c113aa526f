"""The schedule of an engine: batching, order of admission, KV memory, preemption, drafts and adapters. Types only.

Every field is a choice that some serving system makes; `planner.analysis.systems` names the combinations of the
literature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from hardware_db import KvTierKind
from planner.core import Frozen, InputError
from planner.llm import DraftMethod, DraftSpec, load_draft

Share = Annotated[float, Field(ge=0.0, le=1.0)]
"""A probability."""


class Batching(StrEnum):
    """When requests may join the ones that run."""

    CONTINUOUS = "continuous"
    """At every step boundary (Orca, Yu et al., OSDI 2022)."""
    STATIC = "static"
    """Only when the whole batch has ended: prompts padded to the longest, every sequence kept until the last ends."""


class Order(StrEnum):
    """Order in which waiting requests are admitted."""

    FCFS = "fcfs"
    """First come, first served."""
    SHORTEST_FIRST = "shortest_first"
    """Fewest prompt and output tokens first (SJF with known lengths: what a perfect predictor gives)."""
    PRIORITY = "priority"
    """Lowest `RequestClass.priority` first, then first come; with `Schedule.preempts` it takes the place of others."""
    FAIR_SHARE = "fair_share"
    """The class that has had the fewest tokens per `RequestClass.weight` first (Sheng et al., OSDI 2024, VTC)."""


class KvAllocation(StrEnum):
    """Allocation of KV memory."""

    PAGED = "paged"
    """In blocks (Kwon et al., SOSP 2023)."""
    CONTIGUOUS = "contiguous"
    """Room for `Schedule.longest_tokens` in one piece for every sequence, as before paging."""


class Preemption(StrEnum):
    """Fate of the KV cache of a sequence that has to make room."""

    RECOMPUTE = "recompute"
    """Dropped; prompt and tokens so far are processed again."""
    SWAP = "swap"
    """Copied to host memory and back over the host link, no step running meanwhile."""


class KvTier(Frozen):
    """A level of the prefix cache behind the GPU; see `planner.engine.kv_tiers`.

    Attributes:
        kind: where it is.
        size_bytes: of each server, what KV blocks may take of its memory or drives; of a shared store the part that
            each server brings to it. 0: no tier.
        read_bytes_per_s: at which one GPU loads from it; None: as `hardware_db.kv_tier_facts` says for its SKU.
        latency_s: fixed time of a load; None: likewise.
        usd_per_gb_month: of `size_bytes`, GB of 10^9 bytes; 0: part of the server, whose price has it.
    """

    kind: KvTierKind
    size_bytes: float = Field(ge=0.0, le=1e18)
    read_bytes_per_s: float | None = Field(default=None, gt=0.0, le=1e15)
    latency_s: float | None = Field(default=None, ge=0.0, le=60.0)
    usd_per_gb_month: float = Field(default=0.0, ge=0.0, le=1e4)


class Schedule(Frozen):
    """The rules by which an engine fills its steps.

    Attributes:
        mixed_steps: a step may hold prompts and decodes together; otherwise it holds prompts (first) or decodes.
        whole_prompts: prompts are not split over steps, unless one is longer than the chunk budget.
        batch_wait_steps: while sequences decode, waiting prompts are held back for at most this many steps
            (TensorRT-LLM: batch_wait_timeout_iters).
        batch_wait_fill: or until their tokens reach this share of the chunk budget (batch_wait_max_tokens_ratio).
        batch_wait_requests: or until so many of them wait, or fewer sequences decode; 0: however many. (TensorRT-LLM's
            enable_balance waits for a prompt on every attention rank while all of them decode,
            `_balance_adp_requests` of its PyExecutor; timeout_iters is `batch_wait_steps`.)
        receive_interval_steps: steps between looks at new requests while sequences decode (SGLang:
            scheduler-recv-interval).
        stream_interval_steps: steps of a sequence whose tokens are sent together (SGLang: stream-interval); 0: they
            become text elsewhere (Dynamo).
        reserve_outputs: KV blocks for input and output are reserved on admission, so that nothing is preempted.
        batching: continuous, or static as before Orca.
        static_wait_s: how long a free static batch waits to fill up before it starts with what there is [s].
        order: which waiting request is admitted first.
        preempts: under `Order.PRIORITY`, a waiting request of a lower number takes the place of the running one with
            the highest, as `on_preemption` says.
        kv: how KV memory is set aside.
        longest_tokens: room per sequence when contiguous [tokens]; 0: all that a sequence may hold.
        watermark: share of the KV blocks kept free when a request is admitted (vLLM: 0.01).
        on_preemption: what becomes of the KV cache of a sequence that makes room.
        prefix_cache: blocks of shared prefixes are kept when their requests end, least recently used dropped first.
        kv_tiers: levels behind the GPU that the prefix cache goes on to, from fast to slow.
        captured_decodes: most sequences of an attention rank in a step of decodes that is replayed as a captured graph;
            None: as the engine captures by default.
        captured_prompt_tokens: most tokens of an attention rank in a step with prompts that is replayed as captured
            graphs; None: likewise.
        fused_norms: all-reduces take the norm that follows, where the engine can, and kernels are the engine's own: no
            compiler fuses the passes that quantise; None: as its release does.
    """

    mixed_steps: bool = True
    whole_prompts: bool = False
    batch_wait_steps: int = Field(default=0, ge=0, le=10_000)
    batch_wait_fill: float = Field(default=0.0, ge=0.0, le=1.0)
    batch_wait_requests: int = Field(default=0, ge=0, le=10_000)
    receive_interval_steps: int = Field(default=1, ge=1, le=10_000)
    stream_interval_steps: int = Field(default=1, ge=0, le=10_000)
    reserve_outputs: bool = True
    batching: Batching = Batching.CONTINUOUS
    static_wait_s: float = Field(default=0.0, ge=0.0, le=3600.0)
    order: Order = Order.FCFS
    preempts: bool = False
    kv: KvAllocation = KvAllocation.PAGED
    longest_tokens: int = Field(default=0, ge=0)
    watermark: float = Field(default=0.0, ge=0.0, lt=1.0)
    on_preemption: Preemption = Preemption.RECOMPUTE
    prefix_cache: bool = False
    kv_tiers: tuple[KvTier, ...] = ()
    captured_decodes: int | None = Field(default=None, ge=0)
    captured_prompt_tokens: int | None = Field(default=None, ge=0)
    fused_norms: bool | None = None

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.preempts and self.order is not Order.PRIORITY:
            raise InputError("schedule.preempts", True, "only priorities preempt", "set order to priority")
        if self.kv is KvAllocation.CONTIGUOUS and self.prefix_cache:
            bound = "contiguous KV memory shares no prefixes"
            raise InputError("schedule.prefix_cache", True, bound, "set kv to paged, or prefix_cache to false")
        if self.kv_tiers and not self.prefix_cache:
            raise InputError("schedule.prefix_cache", False, "KV tiers are levels of it", "set it to true")
        require_distinct_tiers(self.kv_tiers)
        return self


def tiers_label(tiers: Sequence[KvTier]) -> str:
    """Name of a set of tiers.

    Args:
        tiers: of one prefix cache.

    Returns:
        Kinds and sizes of a server; empty for none.

    >>> tiers_label([KvTier(kind="host", size_bytes=1.6e12), KvTier(kind="ssd", size_bytes=2e13)])
    'host 1600 GB + ssd 20000 GB'
    """
    return " + ".join(f"{tier.kind} {tier.size_bytes / 1e9:g} GB" for tier in tiers if tier.size_bytes)


def require_distinct_tiers(tiers: Sequence[KvTier]) -> None:
    """Refuse a kind of tier twice, and host memory behind another: what comes from further on goes through it.

    Args:
        tiers: of one prefix cache, in the order in which they are asked.

    Raises:
        InputError: they are in another order.
    """
    kinds = [tier.kind for tier in tiers]
    if len(set(kinds)) < len(kinds) or KvTierKind.HOST in kinds[1:]:
        bound = "must be of different kinds, host memory first"
        raise InputError("kv_tiers", [kind.value for kind in kinds], bound, "sort them from fast to slow")


def _shapes_of_draft(value: object) -> object:
    """The content of a config.json as the shapes it stands for."""
    return load_draft(value) if isinstance(value, Mapping) and "llm" not in value else value


class Speculation(Frozen):
    """Draft and verify (Leviathan et al. 2023, arXiv:2211.17192): `draft_tokens` guesses are checked in one step.

    Attributes:
        draft_tokens: guesses per step.
        acceptance: probability that a guess is right, given that those before it were; or, by position, that it and
            those before it are; None: as measured for method, model and `dataset`
            (`planner.llm.measured_acceptance`).
        draft_cost: time of one draft step as a share of a decode step of the model, with the same share of its weights
            kept beside it (c there).
        method: who guesses; None: whatever takes `draft_cost`, the head or model named as `draft`, else the model's
            own module.
        draft: what guesses: the name of a published head or of a preset, or the content of its config.json; None: the
            head that is published for the model.
        dataset: that acceptance was measured on; None: the one measured for the model.
    """

    draft_tokens: int = Field(ge=1, le=64)
    acceptance: Share | tuple[Share, ...] | None = None
    draft_cost: float | None = Field(default=None, ge=0.0, le=1.0)
    method: DraftMethod | None = None
    draft: Annotated[str | DraftSpec | None, BeforeValidator(_shapes_of_draft)] = None
    dataset: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if isinstance(self.acceptance, tuple):
            if len(self.acceptance) != self.draft_tokens:
                bound = f"needs one probability for each of {self.draft_tokens} guesses"
                raise InputError("speculation.acceptance", len(self.acceptance), bound, "give so many, or one for all")
            if list(self.acceptance) != sorted(self.acceptance, reverse=True):
                bound = "falls from guess to guess: each is right only with those before it"
                raise InputError("speculation.acceptance", self.acceptance, bound, "give cumulated probabilities")
        if (self.kind is DraftMethod.SHARE) != (self.draft_cost is not None):
            bound = "goes with draft_cost and no other method"
            raise InputError("speculation.method", self.kind.value, bound, "give draft_cost, or another method")
        if self.draft is not None and self.kind in (DraftMethod.SHARE, DraftMethod.MTP):
            raise InputError("speculation.draft", self.label, "goes with eagle3 and draft_model only", "leave it out")
        if self.kind is DraftMethod.SHARE and self.acceptance is None:
            bound = "nothing says how many guesses are right"
            raise InputError("speculation.acceptance", "(missing)", bound, "give acceptance")
        return self

    @property
    def kind(self) -> DraftMethod:
        """Who guesses."""
        if self.method is not None:
            return self.method
        if self.draft_cost is not None:
            return DraftMethod.SHARE
        if self.draft is None:
            return DraftMethod.MTP
        draft = load_draft(self.draft) if isinstance(self.draft, str) else self.draft
        return DraftMethod.EAGLE3 if draft.fused_once else DraftMethod.DRAFT_MODEL

    @property
    def label(self) -> str:
        """E.g. ``draft 3 eagle3 mt-bench``."""
        draft = self.draft.llm.id if isinstance(self.draft, DraftSpec) else self.draft
        return " ".join(filter(None, ("draft", str(self.draft_tokens), self.kind.value, draft, self.dataset)))


class LoraAdapters(Frozen):
    """Low-rank adapters served beside one base model (Hu et al., arXiv 2106.09685; S-LoRA, Sheng et al., MLSys 2024).

    Every request uses one of `adapters`, adapter k with a popularity in proportion to k^-`skew`. `slots` of them fit in
    GPU memory at once; one that is not there is loaded over the host link before its request's prompt begins.

    Attributes:
        adapters: distinct ones.
        rank: of the two factors, r; every projection of attention and feed-forward has a pair.
        slots: of GPU memory set aside for adapters; None: one for each, and in a search several counts to choose from.
        skew: exponent of their popularity; 0: all alike.
    """

    adapters: int = Field(ge=1, le=1_000_000)
    rank: int = Field(default=16, ge=1, le=1024)
    slots: int | None = Field(default=None, ge=1, le=65_536)
    skew: float = Field(default=0.0, ge=0.0, le=4.0)

    @property
    def held(self) -> int:
        """Adapters in GPU memory at once."""
        return self.adapters if self.slots is None else self.slots
