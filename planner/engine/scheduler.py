"""How an engine fills its steps: batching, order of admission, KV memory, preemption, drafts and adapters. Types only.

Every field is a choice that some serving system makes; `planner.systems.catalogue` names the combinations of the
literature.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from planner.core import Frozen, InputError


class Batching(StrEnum):
    """When requests may join the ones that run."""

    CONTINUOUS = "continuous"
    """At every step boundary (Orca, Yu et al., OSDI 2022)."""
    STATIC = "static"
    """Only when the whole batch has ended: prompts padded to the longest, every sequence kept until the last ends."""


class Order(StrEnum):
    """Which waiting request is admitted first."""

    FCFS = "fcfs"
    """First come, first served."""
    SHORTEST_FIRST = "shortest_first"
    """Fewest prompt and output tokens first (SJF with known lengths: what a perfect predictor gives)."""
    PRIORITY = "priority"
    """Lowest `RequestClass.priority` first, then first come; with `Schedule.preempts` it takes the place of others."""
    FAIR_SHARE = "fair_share"
    """The class that has had the fewest tokens per `RequestClass.weight` first (Sheng et al., OSDI 2024, VTC)."""


class KvAllocation(StrEnum):
    """How KV memory is set aside."""

    PAGED = "paged"
    """In blocks (Kwon et al., SOSP 2023)."""
    CONTIGUOUS = "contiguous"
    """Room for `Schedule.longest_tokens` in one piece for every sequence, as before paging."""


class Preemption(StrEnum):
    """What happens to the KV cache of a sequence that has to make room."""

    RECOMPUTE = "recompute"
    """Dropped; prompt and tokens so far are processed again."""
    SWAP = "swap"
    """Copied to host memory and back over the host link, no step running meanwhile."""


class Schedule(Frozen):
    """How an engine fills its steps.

    Attributes:
        mixed_steps: a step may hold prompts and decodes together; otherwise it holds prompts (first) or decodes.
        whole_prompts: prompts are not split over steps, unless one is longer than the chunk budget.
        batch_wait_steps: while sequences decode, waiting prompts are held back for at most this many steps
            (TensorRT-LLM: batch_wait_timeout_iters).
        batch_wait_fill: or until their tokens reach this share of the chunk budget (batch_wait_max_tokens_ratio).
        receive_interval_steps: steps between looks at new requests while sequences decode (SGLang:
            scheduler-recv-interval).
        reserve_outputs: KV blocks for input and output are reserved on admission, so that nothing is preempted.
        batching: continuous, or static as before Orca.
        static_wait_s: how long a free static batch waits to fill up before it starts with what there is [s].
        order: which waiting request is admitted first.
        preempts: under `Order.PRIORITY`, a waiting request of a lower number takes the place of the running one with
            the highest, as `on_preemption` says.
        kv: how KV memory is set aside.
        longest_tokens: room per sequence when contiguous [tokens]; 0: the model's whole context.
        watermark: share of the KV blocks kept free when a request is admitted (vLLM: 0.01).
        on_preemption: what becomes of the KV cache of a sequence that makes room.
        prefix_cache: blocks of shared prefixes are kept when their requests end, least recently used dropped first.
    """

    mixed_steps: bool = True
    whole_prompts: bool = False
    batch_wait_steps: int = Field(default=0, ge=0, le=10_000)
    batch_wait_fill: float = Field(default=0.0, ge=0.0, le=1.0)
    receive_interval_steps: int = Field(default=1, ge=1, le=10_000)
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

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.preempts and self.order is not Order.PRIORITY:
            raise InputError("schedule.preempts", True, "only priorities preempt", "set order to priority")
        if self.kv is KvAllocation.CONTIGUOUS and self.prefix_cache:
            bound = "contiguous KV memory shares no prefixes"
            raise InputError("schedule.prefix_cache", True, bound, "set kv to paged, or prefix_cache to false")
        return self


class Speculation(Frozen):
    """Draft and verify (Leviathan et al. 2023, arXiv:2211.17192): `draft_tokens` guesses are checked in one step.

    Attributes:
        draft_tokens: guesses per step.
        acceptance: probability that a guess is right, given that those before it were.
        draft_cost: time of one draft step as a share of a decode step of the model, with the same share of its weights
            kept beside it (c there); None: the model's own multi-token-prediction module drafts, timed as it is.
    """

    draft_tokens: int = Field(ge=1, le=64)
    acceptance: float = Field(ge=0.0, le=1.0)
    draft_cost: float | None = Field(default=None, ge=0.0, le=1.0)

    @property
    def tokens_per_step(self) -> float:
        """Expected tokens a sequence gains per step: (1 - a^(k + 1)) / (1 - a) (eq. 1 there).

        >>> round(Speculation(draft_tokens=3, acceptance=0.8).tokens_per_step, 3)
        2.952
        """
        return sum(self.acceptance**position for position in range(self.draft_tokens + 1))


class LoraAdapters(Frozen):
    """Low-rank adapters served beside one base model (Hu et al., arXiv 2106.09685; S-LoRA, Sheng et al., MLSys 2024).

    Every request uses one of `adapters`, adapter k with a popularity in proportion to k^-`skew`. `slots` of them fit in
    GPU memory at once; one that is not there is loaded over the host link before its request's prompt begins.

    Attributes:
        adapters: distinct ones.
        rank: of the two factors, r; every projection of attention and feed-forward has a pair.
        slots: of GPU memory set aside for adapters.
        skew: exponent of their popularity; 0: all alike.
    """

    adapters: int = Field(ge=1, le=1_000_000)
    rank: int = Field(default=16, ge=1, le=1024)
    slots: int = Field(default=8, ge=1, le=65_536)
    skew: float = Field(default=0.0, ge=0.0, le=4.0)
