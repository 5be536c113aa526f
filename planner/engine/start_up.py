"""The memory of a server once it has started, in the words of its engine's log; or why it does not start.

An engine starts where its weights, a full step, a round of sampling and captured graphs leave room for the KV cache of
at least one request: of the longest it is told to take (vLLM), or of any (`EngineProfile.requires_longest_fits`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.core import GIB, PlannerError, rebuilt
from planner.engine.footprint import REQUEST_STEP_TOKENS, MemoryFootprint, memory_footprint, start_probability
from planner.engine.replica import LEAST_BATCHED_TOKENS, ReplicaConfig
from planner.engine.reserve import memory_share

WHOLE_SHARE = 0.97
"""The largest share of a GPU's memory that is proposed: the driver keeps half a gibibyte for a process of the rest."""
SHARE_STEP = 0.01
"""Shares are proposed in steps of this: a choice, of figures that people write."""
MOST_GPUS = 8
"""No more GPUs are proposed to split a replica over: those of a usual server."""


@dataclass(frozen=True)
class StartUp:
    """Memory of one GPU of a server as it starts [bytes], and what its cache holds [tokens].

    Attributes:
        replica: that starts, with every limit it starts with.
        footprint: its memory in parts.
        seen_bytes: memory of the GPU as the driver reports it to a process.
        share: the memory fraction in force [-].
        kv_tokens: tokens of KV cache of the replica, as the engine's log counts them.
        concurrency: requests of the longest length that fit at once, over all attention ranks.
        needed_bytes: of cache for one request of the longest length, on one GPU.
        longest_tokens: the longest request that would fit on one attention rank [tokens].
        reason: why it does not start; empty where it does.
        fixes: each by itself makes it start, the smallest first; empty where it starts.
    """

    replica: ReplicaConfig
    footprint: MemoryFootprint
    seen_bytes: float
    share: float
    kv_tokens: int
    concurrency: float
    needed_bytes: float
    longest_tokens: int
    reason: str
    fixes: tuple[StartFix, ...] = ()

    @property
    def starts(self) -> bool:
        """True if it starts."""
        return not self.reason

    @property
    def weights_bytes(self) -> float:
        """Weights on one GPU [bytes]."""
        return self.footprint.weights_bytes

    @property
    def activation_bytes(self) -> float:
        """Activations of a full step at their peak [bytes]."""
        return self.footprint.activation_bytes

    @property
    def sampling_bytes(self) -> float:
        """Sampling above that peak, and what it keeps [bytes]."""
        return self.footprint.sampling_bytes

    @property
    def outside_bytes(self) -> float:
        """Memory outside PyTorch [bytes]."""
        return self.footprint.outside_bytes

    @property
    def graph_bytes(self) -> float:
        """Captured graphs [bytes]."""
        return self.footprint.graph_bytes

    @property
    def kv_bytes(self) -> float:
        """KV cache on one GPU [bytes]."""
        return self.footprint.kv_capacity_bytes

    def batch_of(self, tokens: int) -> int:
        """Requests of so many tokens, input and output, that the cache of the replica holds at once."""
        room = self.footprint.kv_capacity_tokens / self.replica.parallelism.dp
        kept = self.footprint.sequence_blocks * self.replica.kv_block_tokens
        return self.replica.parallelism.dp * int(room // (tokens + kept)) if room >= tokens + kept else 0


@dataclass(frozen=True)
class StartFix:
    """A change of one setting that makes a server start.

    Attributes:
        field: of `ReplicaConfig`, or ``parallelism.tp``.
        value: it is to have.
        words: the same for people.
    """

    field: str
    value: float
    words: str


def default_limits(replica: ReplicaConfig, running: int | None, batched: int | None, longest: int) -> tuple[int, int]:
    """The batch limit and chunk budget that an engine starts with where none are given.

    Args:
        replica: whose engine, release, GPU and attention ranks count.
        running: batch limit of the whole replica, where given.
        batched: chunk budget, where given [tokens].
        longest: the longest request [tokens].

    Returns:
        Both, of the whole replica.
    """
    limits = replica.memory_rule.limits_on(replica.sku.seen_bytes / GIB, replica.sku.architecture)
    ranks = replica.parallelism.dp
    if batched is None:
        usual = limits.max_batched_tokens
        if usual is None:
            is_long = limits.chunked_above is not None and longest > limits.chunked_above
            usual = limits.chunk_tokens if is_long else max(longest, limits.least_batched_tokens)
        batched = ranks * usual
    if running is None:
        running = max(1, min(ranks * limits.max_running_requests, batched))
    return running, batched


def start_up(replica: ReplicaConfig, propose: bool = True) -> StartUp:
    """The memory of a server as it starts, or why it does not.

    Args:
        replica: with its limits; `max_request_tokens` None is the whole context of the model, as engines take it.
        propose: look for changes that make it start.

    Returns:
        Memory of one GPU and tokens of the cache.

    Raises:
        InputError: the model has fewer layers than stages.
        UnsupportedFeatureError: the model has no KV cache.

    >>> from hardware_db import load_hardware
    >>> from planner.llm import load_llm
    >>> db = load_hardware()
    >>> one = ReplicaConfig(llm=load_llm("qwen3-32b"), sku=db.skus["h100-sxm"], engine=db.engines["vllm"])
    >>> found = start_up(one)
    >>> found.starts, found.fixes[0].words
    (False, 'requests of at most ... tokens')
    """
    footprint = memory_footprint(replica)
    longest, dp = replica.longest_tokens, replica.parallelism.dp
    held = (footprint.weights_bytes, footprint.kv_bytes_per_token)
    fullest = next(stage for stage in footprint.stages if (stage.weights_bytes, stage.kv_bytes_per_token) == held)
    step_tokens, block = replica.max_batched_tokens / dp, replica.kv_block_tokens
    room = footprint.kv_capacity_bytes

    def needed(tokens: int) -> float:
        whole_blocks = math.ceil(tokens / block) * block * footprint.kv_bytes_per_token
        return whole_blocks + fullest.sequence_bytes + fullest.step_token_bytes * min(step_tokens, tokens)

    one = needed(longest)
    concurrency = room / one
    is_mixed = fullest.sequence_bytes > 0.0 or fullest.step_token_bytes > 0.0  # not all grows with the tokens
    lengths = range(1, replica.llm.max_context_tokens + 1)
    fitting = bisect_right(lengths, room, key=needed)
    must = longest if replica.engine.requires_longest_fits else min(longest, LEAST_BATCHED_TOKENS)
    reason = footprint.reason or ""
    if not reason and needed(must) > room:
        reason = (
            f"{replica.words}: a request of {must:,} tokens needs {needed(must) / GIB:.2f} GiB of KV cache, and "
            f"{room / GIB:.2f} GiB are left for it; the longest that fits has {fitting:,} tokens"
        )
    found = StartUp(
        replica=replica,
        footprint=footprint,
        seen_bytes=replica.sku.seen_bytes,
        share=memory_share(replica),
        kv_tokens=int(concurrency * longest) * dp if is_mixed else footprint.kv_capacity_tokens,
        concurrency=concurrency * dp,
        needed_bytes=one,
        longest_tokens=fitting if not footprint.reason else 0,
        reason=reason,
    )
    if found.starts or not propose:
        return found
    return replace(found, fixes=tuple(_fixes(found)))


def start_up_probability(found: StartUp) -> float:
    """Probability that a server starts, uncertain as its memory is.

    Args:
        found: how it is predicted to start.

    Returns:
        Of a normal distribution of the room for its cache [-].
    """
    replica = found.replica
    longest = replica.longest_tokens if replica.engine.requires_longest_fits else LEAST_BATCHED_TOKENS
    return start_probability(replica, found.footprint, longest)


def _fixes(found: StartUp) -> Iterator[StartFix]:
    """Changes of one setting that make a server start, from the one that costs least."""
    replica = found.replica
    fitting = found.longest_tokens // REQUEST_STEP_TOKENS * REQUEST_STEP_TOKENS
    if fitting and replica.engine.requires_longest_fits:
        yield StartFix("max_request_tokens", fitting, f"requests of at most {fitting:,} tokens")
    running = replica.max_running_requests
    while running > 1:
        running //= 2
        if _starts(replica, max_running_requests=running):
            yield StartFix("max_running_requests", running, f"at most {running:,} running requests")
            break
    for share in _shares(found.share):
        if _starts(replica, memory_fraction=share):
            yield StartFix("memory_fraction", share, f"a memory share of {share:.2f}")
            break
    tp = replica.parallelism.tp
    while (tp := tp * 2) <= max(MOST_GPUS, replica.sku.node.gpus):
        try:
            wider = rebuilt(replica, parallelism=replica.parallelism.model_copy(update={"tp": tp}))
        except PlannerError:
            continue
        if start_up(wider, propose=False).starts:
            yield StartFix("parallelism.tp", tp, f"{wider.parallelism.gpus} GPUs per replica (TP{tp})")
            break


def _shares(present: float) -> Iterator[float]:
    """Shares that people write, from the next larger one up, then from the next smaller one down."""
    above = math.floor(present / SHARE_STEP + 1.0)
    below = math.ceil(present / SHARE_STEP - 1.0)
    yield from (round(step * SHARE_STEP, 2) for step in range(above, round(WHOLE_SHARE / SHARE_STEP) + 1))
    yield from (round(step * SHARE_STEP, 2) for step in range(below, 0, -1))


def _starts(replica: ReplicaConfig, **changes: float) -> bool:
    return start_up(rebuilt(replica, **changes), propose=False).starts
