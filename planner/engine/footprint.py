"""Memory of one replica: what one GPU holds, the KV capacity that is left, and whether the engine starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from hardware_db import MemoryShare
from planner.core import InputError, UnsupportedFeatureError
from planner.engine.cache_layout import CacheCost, cache_cost, draft_llm
from planner.engine.replica import ReplicaConfig
from planner.engine.reserve import Reserve, cache_room_bytes, memory_share, reserve
from planner.engine.weights import lora_bytes_per_gpu, stage_weights_bytes
from planner.llm import pipeline_stages, require_context

WEIGHTS_SPREAD, RESERVE_SPREAD, LEAST_SPREAD_BYTES = 0.01, 0.3, 0.15 * 2.0**30
"""Standard deviation of the room for the cache: shares of the weights and of what is held beside weights and cache, and
what is added to both in squares. Fitted to start-up logs, each model predicted without its own: nine in ten lie within
1.6 of it, 98 in a hundred above -2.33 (docs/studies/memory.md)."""
START_PROBABILITY = 0.99
"""Probability with which a planned replica starts. A choice."""
START_DEVIATIONS = NormalDist().inv_cdf(START_PROBABILITY)
"""The same in standard deviations of the room for the cache."""


@dataclass(frozen=True, kw_only=True)
class MemoryFootprint(Reserve):
    """Memory of one GPU of the replica [bytes], and the KV cache of the replica [tokens].

    Attributes:
        usable_bytes: what weights, reserve and cache take together, beside the context.
        weights_bytes: this GPU's share of the weights, and the slots of adapters.
        kv_capacity_bytes: what is left for the KV cache; 0 when nothing is.
        spread_bytes: standard deviation of that.
        kv_bytes_per_token: KV bytes one token takes on this GPU, in layers that keep the whole context.
        kv_capacity_tokens: whole blocks times block size, over all attention ranks.
        kv_blocks: whole blocks, over all attention ranks.
        sequence_blocks: blocks' worth of bytes each sequence takes beside its tokens (windows, recurrent state).
        reason: why it does not start, or None.
        stages: what the pipeline stages hold; the bytes above are those of the one with the least room.
    """

    usable_bytes: float
    weights_bytes: float
    kv_capacity_bytes: float
    spread_bytes: float
    kv_bytes_per_token: float
    kv_capacity_tokens: int
    kv_blocks: int
    sequence_blocks: int
    reason: str | None
    stages: tuple[StageMemory, ...] = ()

    @property
    def fits(self) -> bool:
        """True if the engine starts and has room for at least one KV block."""
        return self.reason is None


@dataclass(frozen=True)
class StageMemory:
    """Memory of one GPU of a pipeline stage, whatever the limits of its steps (without a pipeline there is one stage).

    Attributes:
        weights_bytes: its share of the weights, and the slots of adapters.
        kv_bytes_per_token: KV bytes of one token, in layers that keep the whole context [bytes/token].
        sequence_bytes: what one sequence takes beside its tokens (windows, recurrent state) [bytes].
        step_token_bytes: what layers with a window hold of each token of a step until the next one [bytes/token].
        samples: it has the head, and so the logits.
    """

    weights_bytes: float
    kv_bytes_per_token: float
    sequence_bytes: float
    step_token_bytes: float
    samples: bool


def stage_memory(replica: ReplicaConfig) -> tuple[StageMemory, ...]:
    """Memory of one GPU of each pipeline stage; stages that hold the same once.

    Args:
        replica: the replica; its limits (`max_running_requests`, `max_batched_tokens`) play no part.

    Returns:
        At least one record [bytes].

    Raises:
        InputError: the model has fewer layers than stages.
    """
    draft = draft_llm(replica)
    drafts = cache_cost(replica, draft.layers, draft) if draft is not None else CacheCost(0.0, 0.0)
    found = []
    for stage in dict.fromkeys(pipeline_stages(replica.llm, replica.parallelism.pp, replica.engine.spare_layers)):
        cost, more = cache_cost(replica, stage.layers), drafts if stage.last else CacheCost(0.0, 0.0)
        found.append(
            StageMemory(
                weights_bytes=stage_weights_bytes(replica, stage) + lora_bytes_per_gpu(replica, stage),
                kv_bytes_per_token=cost.token_bytes + more.token_bytes,
                sequence_bytes=cost.sequence_bytes + more.sequence_bytes,
                step_token_bytes=cost.step_token_bytes + more.step_token_bytes,
                samples=stage.last,
            )
        )
    return tuple(found)


def memory_footprint(replica: ReplicaConfig, stages: Sequence[StageMemory] = ()) -> MemoryFootprint:
    """Weights, reserve and KV capacity of one GPU: of the pipeline stage with the least room.

    A pipeline holds as many tokens as the stage with room for the fewest; what a sequence takes beside its tokens is
    that of the stage it takes the largest share of. Layers with a window hold the tokens of a step until the next one.

    Args:
        replica: the replica.
        stages: `stage_memory` of it, where known.

    Returns:
        Bytes of one GPU and KV tokens of the replica; `reason` says what does not fit.

    Raises:
        InputError: the model has fewer layers than stages.
    """
    stages = tuple(stages) or stage_memory(replica)
    split, block_tokens = replica.parallelism, replica.kv_block_tokens
    held = {samples: reserve(replica, samples) for samples in {stage.samples for stage in stages}}
    given = [cache_room_bytes(replica, stage.weights_bytes, held[stage.samples]) for stage in stages]
    step_tokens = replica.max_batched_tokens / split.dp
    rooms = [left - stage.step_token_bytes * step_tokens for stage, left in zip(stages, given, strict=True)]
    blocks = [
        left / (stage.kv_bytes_per_token * block_tokens) if stage.kv_bytes_per_token else math.copysign(math.inf, left)
        for stage, left in zip(stages, rooms, strict=True)
    ]
    least = min(range(len(stages)), key=lambda place: (blocks[place], rooms[place]))
    fewest, fullest = blocks[least], stages[least]
    if not math.isfinite(fewest):
        bound = "has no layers that keep keys and values of the whole context"
        raise UnsupportedFeatureError("llm", replica.llm.id, bound, "use a model with attention")
    beside = max(
        stage.sequence_bytes / (fullest.kv_bytes_per_token * block_tokens)
        if stage is fullest
        else stage.sequence_bytes * fewest / room
        for stage, room in zip(stages, rooms, strict=True)
        if room > 0.0 or stage is fullest
    )
    whole, kept = max(0, int(fewest)), held[fullest.samples]
    return MemoryFootprint(
        usable_bytes=fullest.weights_bytes + kept.total_bytes - kept.context_bytes + max(0.0, given[least]),
        weights_bytes=fullest.weights_bytes,
        **vars(kept),
        kv_capacity_bytes=max(0.0, given[least]),
        spread_bytes=math.hypot(
            WEIGHTS_SPREAD * fullest.weights_bytes,
            RESERVE_SPREAD * (kept.total_bytes - kept.context_bytes),
            LEAST_SPREAD_BYTES,
        ),
        kv_bytes_per_token=fullest.kv_bytes_per_token,
        kv_capacity_tokens=whole * block_tokens * split.dp,
        kv_blocks=whole * split.dp,
        sequence_blocks=math.ceil(beside),
        reason=_shortfall(replica, fullest.weights_bytes, kept, given[least], whole),
        stages=stages,
    )


def start_probability(replica: ReplicaConfig, footprint: MemoryFootprint, longest_request_tokens: int) -> float:
    """Probability that the engine starts and has room for one request, uncertain as its memory is.

    Args:
        replica: the replica.
        footprint: its memory.
        longest_request_tokens: input and output of the longest request [tokens].

    Returns:
        Of a normal distribution of the room for the cache [-].
    """
    spare = one_request_room_tokens(replica, footprint) - must_hold_tokens(replica, longest_request_tokens)
    return NormalDist().cdf(spare * footprint.kv_bytes_per_token / footprint.spread_bytes) if footprint.fits else 0.0


def sure_room_tokens(replica: ReplicaConfig, footprint: MemoryFootprint) -> int:
    """KV tokens that one request finds on an empty replica with `START_PROBABILITY`.

    Args:
        replica: the replica.
        footprint: its memory.

    Returns:
        Tokens, as `one_request_room_tokens` counts them; 0 where a full step does not fit beside the cache [tokens].
    """
    if _full_step_lacks_bytes(replica, footprint) > 0.0:
        return 0
    less = START_DEVIATIONS * footprint.spread_bytes
    return max(0, one_request_room_tokens(replica, footprint) - math.ceil(less / footprint.kv_bytes_per_token))


def _full_step_lacks_bytes(replica: ReplicaConfig, footprint: MemoryFootprint) -> float:
    """Memory of a full step beside weights and cache, less that of a GPU [bytes]."""
    return footprint.usable_bytes + footprint.context_bytes - replica.sku.seen_bytes


def _shortfall(replica: ReplicaConfig, weights: float, held: Reserve, room: float, blocks: int) -> str | None:
    """Why the engine does not start, or None; arguments in bytes. Where activations are outside the share, none are
    measured as it starts.
    """
    peaks, seen = held.activation_bytes + held.sampling_bytes, replica.sku.seen_bytes
    beside = held.total_bytes - peaks
    parts = (
        f"{replica.words}: weights {weights / 1e9:.1f} GB + activations and sampling {peaks / 1e9:.1f} GB + graphs and "
        f"libraries {beside / 1e9:.1f} GB per GPU"
    )
    measured = 0.0 if replica.memory_rule.memory_fraction_of is MemoryShare.STATIC else peaks
    spare = seen - weights - beside - measured - max(0.0, room)
    if blocks and spare < 0.0:
        cache = f"with a KV cache of {room / 1e9:.1f} GB"
        over = f"need {-spare / 1e9:.1f} GB more than the {seen / 1e9:.1f} GB of a GPU"
        return f"{parts} {cache} {over}; use a memory share below {memory_share(replica):g}"
    if not blocks:
        share = f"a share of {memory_share(replica):g} of the {seen / 1e9:.1f} GB of a GPU"
        return (
            f"{parts} leave no KV cache in {share}; use more GPUs per replica, fewer bits per weight or fewer requests"
        )
    return None


def require_room(replica: ReplicaConfig, longest_request_tokens: int, *, surely: bool = False) -> MemoryFootprint:
    """The footprint of a replica that can hold its longest request.

    Args:
        replica: the replica.
        longest_request_tokens: input and output of the longest request [tokens].
        surely: with `START_PROBABILITY`, as plans ask for; false: as predicted.

    Returns:
        Its footprint.

    Raises:
        InputError: the model's context, `max_request_tokens` or the replica's memory is too small; the message names
            which.
    """
    require_context(replica.llm, longest_request_tokens, replica.max_request_tokens)
    footprint = memory_footprint(replica)
    if footprint.reason is not None:
        raise InputError("replica.memory", replica.words, footprint.reason)
    over = _full_step_lacks_bytes(replica, footprint)
    if surely and over > 0.0:
        bound = f"a full step needs {over / 1e9:.1f} GB more than {replica.words} has beside weights and KV cache"
        fix = f"use a memory share below {memory_share(replica):g}, or fewer tokens of a step"
        raise InputError("replica.memory", replica.words, bound, fix)
    room = sure_room_tokens(replica, footprint) if surely else one_request_room_tokens(replica, footprint)
    if longest_request_tokens > room:
        sure = f", {START_PROBABILITY:.0%} sure" if surely else ""
        bound = f"the longest request does not fit in the {room} tokens of KV of {replica.words}{sure}"
        raise InputError("workload.lengths", longest_request_tokens, bound, "use more GPUs per replica or an fp8 cache")
    if (needed := must_hold_tokens(replica, longest_request_tokens)) > room:
        bound = (
            f"{replica.engine.name} does not start where such a request does not fit, and {replica.words} has room for "
            f"{room} tokens of KV"
        )
        raise InputError("max_request_tokens", needed, bound, f"write {longest_request_tokens} to {room}")
    return footprint


def one_request_room_tokens(replica: ReplicaConfig, footprint: MemoryFootprint) -> int:
    """KV tokens that one request finds on an empty replica: those of one attention rank.

    Args:
        replica: the replica.
        footprint: its memory.

    Returns:
        Tokens of layers that keep the whole context, windows and recurrent state of one sequence paid for [tokens].
    """
    kept = footprint.sequence_blocks * replica.kv_block_tokens
    return max(0, footprint.kv_capacity_tokens // replica.parallelism.dp - kept)


def must_hold_tokens(replica: ReplicaConfig, longest_request_tokens: int) -> int:
    """KV tokens that one request must find: those of the longest, and what the engine insists on to start.

    Args:
        replica: the replica; `EngineProfile.requires_longest_fits` says whether its engine insists on anything.
        longest_request_tokens: input and output of the longest request [tokens].

    Returns:
        The larger of the two [tokens].
    """
    insists = replica.max_request_tokens if replica.engine.requires_longest_fits else None
    return max(longest_request_tokens, insists or 0)


REQUEST_HEADROOM = 1.1
"""Factor between the longest request planned for and what the engine is told to take, where nothing is given: chat
templates and retries add tokens. A choice: it costs nothing as long as one such request fits."""
REQUEST_STEP_TOKENS = 1024
"""Lengths that are told or proposed are multiples of this [tokens]: a choice, of figures that people write."""


@dataclass(frozen=True)
class RequestLimit:
    """The longest request that an engine is told to take (vLLM's max_model_len).

    Attributes:
        tokens: input and output [tokens].
        reason: why so many, in words.
    """

    tokens: int
    reason: str


def request_limit(replica: ReplicaConfig, longest_request_tokens: int) -> RequestLimit:
    """The longest request an engine is told to take: as given, else that of the traffic with free headroom.

    Without a word engines take the whole context of the model: vLLM then refuses to start where one such request does
    not fit in its KV cache, SGLang and TensorRT-LLM lower the limit to what fits
    (`EngineProfile.requires_longest_fits`).

    Args:
        replica: that has room for the longest request (`require_room`).
        longest_request_tokens: input and output of the longest request planned for [tokens].

    Returns:
        `max_request_tokens` where given; else the longest request times `REQUEST_HEADROOM`, rounded up to
        `REQUEST_STEP_TOKENS`, but no more than the model's context and what one request finds in the KV cache.
    """
    room = sure_room_tokens(replica, memory_footprint(replica))
    if (given := replica.max_request_tokens) is not None:
        lowered = f"; {replica.engine.name} lowers it to the {room:,} that {replica.words} has room for"
        return RequestLimit(given, "as given by max_request_tokens" + (lowered if given > room else ""))
    wanted = math.ceil(REQUEST_HEADROOM * longest_request_tokens / REQUEST_STEP_TOKENS) * REQUEST_STEP_TOKENS
    limits = {
        wanted: f"the longest request planned for, {longest_request_tokens:,}, and {REQUEST_HEADROOM - 1:.0%} headroom",
        replica.llm.max_context_tokens: f"the context of {replica.llm.id}",
        room: f"what the KV cache of {replica.words} holds",
    }
    tokens = max(longest_request_tokens, min(limits))
    return RequestLimit(tokens, limits.get(tokens, "the longest request planned for"))
