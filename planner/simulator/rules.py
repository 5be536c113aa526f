"""Limits and policies of one replica, from its configuration."""

from __future__ import annotations

from dataclasses import dataclass

from planner.core import InputError
from planner.engine import AdapterWork, Batching, KvAllocation, Preemption, ReplicaConfig, Schedule, memory_footprint
from planner.serving import Pool, Role
from planner.simulator.cache import CacheLimits
from planner.workload import RequestClass


@dataclass(frozen=True)
class Rules:
    """Limits and policies of one replica.

    Attributes:
        role: of its pool.
        schedule: the engine's policy.
        max_running: most sequences at once.
        max_batched_tokens: most tokens of a micro-batch; of a step without pipeline stages.
        micro_batches: of a step, one for each pipeline stage.
        tokens_per_decode: tokens of the chunk budget that a decoding sequence takes (its drafts included).
        tokens_per_step: tokens a decoding sequence gains in a step, on average.
        lag_steps: steps between the boundary at which a request is looked at and its being queued.
        memory: the KV cache.
        priorities, weights: of the request classes, by `Ledger.class_index`.
        block_copy_s: time to copy one KV block to or from host memory [s].
        longest_tokens: most tokens of a sequence, its whole room when memory is contiguous; 0: any.
        stream_s: as `ReplicaConfig.stream_s`; 0 where tokens go to a decode pool.
        mask_s: host time per decoding sequence and step [s].
        adapters: what adapters add to a step, None without; `adapter_slots` of them fit.
        ranks: attention ranks, each of which encodes the images of its own prompts.
    """

    role: Role
    schedule: Schedule
    max_running: int
    max_batched_tokens: int
    tokens_per_decode: int
    tokens_per_step: float
    lag_steps: int
    memory: CacheLimits
    priorities: tuple[int, ...] = (0,)
    weights: tuple[float, ...] = (1.0,)
    block_copy_s: float = 0.0
    longest_tokens: int = 0
    stream_s: float = 0.0
    mask_s: float = 0.0
    adapters: AdapterWork | None = None
    adapter_slots: int = 0
    micro_batches: int = 1
    ranks: int = 1

    @property
    def shares_prefixes(self) -> bool:
        """True if prompts share blocks; in a decode pool every KV cache comes whole."""
        return self.schedule.prefix_cache and self.role is not Role.DECODE


def rules_of(pool: Pool, classes: tuple[RequestClass, ...] = ()) -> Rules:
    """The rules of every replica of a pool. Raises InputError when its policies exclude each other."""
    config, speculation = pool.config, pool.config.drafting
    _check(pool)
    per_decode = 1 + speculation.draft_tokens if speculation else 1
    running = config.max_running_requests
    if config.schedule.mixed_steps and config.schedule.batching is Batching.CONTINUOUS:
        running = min(running, max(1, config.step_tokens // per_decode))
    room = memory_footprint(config)
    block_bytes = room.kv_bytes_per_token * config.kv_block_tokens
    return Rules(
        role=pool.role,
        schedule=config.schedule,
        max_running=running,
        max_batched_tokens=config.max_batched_tokens,
        tokens_per_decode=per_decode,
        tokens_per_step=speculation.tokens_per_step if speculation else 1.0,
        lag_steps=config.costs.lag_steps,
        memory=_memory(config),
        priorities=tuple(item.priority for item in classes) or (0,),
        weights=tuple(item.weight for item in classes) or (1.0,),
        block_copy_s=block_bytes / config.sku.node.pcie_bytes_per_s.value,
        longest_tokens=_piece_tokens(config),
        stream_s=0.0 if pool.role is Role.PREFILL else config.stream_s,
        mask_s=config.mask_s,
        adapters=AdapterWork.of(config) if config.lora is not None else None,
        adapter_slots=config.lora.held if config.lora is not None else 0,
        micro_batches=config.parallelism.pp,
        ranks=config.parallelism.dp,
    )


def _piece_tokens(config: ReplicaConfig) -> int:
    """Room for every sequence when memory is contiguous [tokens], else 0."""
    if config.schedule.kv is not KvAllocation.CONTIGUOUS:
        return 0
    return config.schedule.longest_tokens or config.longest_tokens


def _memory(config: ReplicaConfig) -> CacheLimits:
    """The KV cache in blocks. Raises InputError when not even one contiguous piece fits."""
    room, schedule, block = memory_footprint(config), config.schedule, config.kv_block_tokens
    longest = _piece_tokens(config)
    pieces = -(-longest // block)
    if pieces and pieces + room.sequence_blocks > room.kv_blocks:
        bound = f"one piece is more than the {room.kv_capacity_tokens} tokens of KV of {config.words}"
        raise InputError("schedule.longest_tokens", longest, bound, "give a shorter one, or set kv to paged")
    return CacheLimits(
        blocks=room.kv_blocks,
        block_tokens=block,
        sequence_blocks=room.sequence_blocks,
        free_blocks=int(schedule.watermark * room.kv_blocks),
        piece_blocks=pieces,
        reserves=schedule.reserve_outputs or schedule.kv is KvAllocation.CONTIGUOUS,
    )


def _check(pool: Pool) -> None:
    """Policies that exclude each other."""
    schedule, config = pool.config.schedule, pool.config
    if schedule.prefix_cache and schedule.on_preemption is Preemption.SWAP:
        bound = "a swapped KV cache cannot share blocks"
        raise InputError("schedule.on_preemption", "swap", bound, "set it to recompute, or prefix_cache to false")
    if schedule.batching is not Batching.STATIC:
        return
    excluded = (
        ("schedule.prefix_cache", schedule.prefix_cache, "set it to false"),
        ("schedule.preempts", schedule.preempts, "set it to false"),
        ("schedule.batch_wait_steps", schedule.batch_wait_steps, "use static_wait_s"),
        ("schedule.reserve_outputs", not schedule.reserve_outputs, "set it to true: a batch holds its KV to its end"),
        ("replica.lora", config.lora is not None, "batch continuously"),
        ("pool.role", pool.role is Role.DECODE, "batch continuously in a decode pool"),
    )
    for field, there, fix in excluded:
        if there:
            value = (
                pool.role.value if field == "pool.role" else schedule.reserve_outputs if "outputs" in field else True
            )
            raise InputError(field, value, "does not go with static batching", fix)
