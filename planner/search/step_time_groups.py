"""Configurations that differ only in chunk budget and batch limit: one step-time function, memory and screen.

Groups are kept for the process, so that a plan made again after a change of price, demand or limits works nothing out
twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from planner.core import InputError
from planner.engine import (
    KvAllocation,
    MemoryFootprint,
    ReplicaConfig,
    memory_footprint,
    must_hold_tokens,
    require_room,
    sure_room_tokens,
)
from planner.search.bounds import BoundsKey, Screen, rescreened, screen
from planner.search.cache_keys import MOST_GROUPS, BoundedCache, group_key
from planner.search.types import Demand
from planner.serving import (
    Pool,
    Role,
    Router,
    decoding_only,
    has_prefixes,
    pool_model,
    remaining_output_tokens,
    token_costs,
)


@dataclass(eq=False)
class StepTimeGroup:
    """Configurations that share step times, in one role, before one shape of demand.

    Attributes:
        base: any of them.
        role: of the pool.
        demand: lengths and targets.
        footprint: memory of `base`.
        screen: bounds for all chunk budgets asked for so far.
    """

    base: ReplicaConfig
    role: Role
    demand: Demand
    footprint: MemoryFootprint
    screen: Screen
    _slots: dict[tuple[int, int], float] = field(default_factory=dict)

    def slots(self, max_batched_tokens: int, max_running_requests: int) -> float:
        """Most sequences at once on one replica; 0 when a request does not fit.

        The numbers of `pool_model`, with only what depends on the two arguments worked out anew. Where a prefix cache
        may spare KV memory, that memory limits nothing here: optimistic.
        """
        key = (max_batched_tokens, max_running_requests)
        if key not in self._slots:
            in_memory = self._kv_running(max_batched_tokens, max_running_requests)
            step_tokens = float(max_batched_tokens * self.base.parallelism.pp)
            self._slots[key] = min(in_memory, float(max_running_requests), step_tokens)
        return self._slots[key]

    def shortfall(self, max_batched_tokens: int, max_running_requests: int) -> str:
        """Why a configuration that has no slots does not fit."""
        lengths = self.demand.workload.lengths
        try:
            config = with_limits(self.base, max_batched_tokens, max_running_requests)
            require_room(config, lengths.max_total, surely=True)
        except InputError as error:
            return error.bound
        return f"{self.base.label}: the longest request does not fit"

    def _kv_running(self, max_batched_tokens: int, max_running_requests: int) -> float:
        """Sequences for which the KV cache has room; 0 when a request does not fit."""
        base = self.base
        config = with_limits(base, max_batched_tokens, max_running_requests)
        longest, held = self._longest_and_held_tokens
        footprint, per_block = memory_footprint(config, self.footprint.stages), base.kv_block_tokens
        if must_hold_tokens(base, longest) > sure_room_tokens(config, footprint):
            return 0.0
        if base.schedule.kv is KvAllocation.CONTIGUOUS or base.lora is not None:
            return self._slots_of_pool_model(config)
        if self._has_prefixes:
            return math.inf if self._slots_of_pool_model(config) > 0.0 else 0.0
        blocks = footprint.kv_blocks // base.parallelism.dp
        kept = footprint.sequence_blocks * per_block
        room = blocks * per_block * base.parallelism.dp * (1.0 - base.schedule.watermark)
        return max(room / (held + per_block / 2.0 + kept), 1.0)

    @cached_property
    def _has_prefixes(self) -> bool:
        pool = Pool(role=self.role, config=self.base, replicas=1)
        return self.role is not Role.DECODE and has_prefixes(pool, self.demand.workload)

    def _slots_of_pool_model(self, config: ReplicaConfig) -> float:
        lengths = self.demand.workload.lengths
        if self.role is Role.DECODE:
            lengths, _ = decoding_only(lengths)
        try:
            return pool_model(Pool(role=self.role, config=config, replicas=1), lengths).max_running
        except InputError:
            return 0.0

    @cached_property
    def _longest_and_held_tokens(self) -> tuple[int, float]:
        """Longest request, and what one holds on average [tokens]."""
        lengths = self.demand.workload.lengths
        if self.role is Role.DECODE:
            lengths, _ = decoding_only(lengths)
        held = token_costs(lengths, self.base.max_batched_tokens, self.role).held_tokens
        if not (self.base.schedule.reserve_outputs or self.role is Role.PREFILL):
            held -= remaining_output_tokens(lengths)
        return lengths.max_total, held


def with_limits(base: ReplicaConfig, max_batched_tokens: int, max_running_requests: int) -> ReplicaConfig:
    """Another configuration of a step-time group.

    Args:
        base: any configuration of it.
        max_batched_tokens: chunk budget, in the range of `ReplicaConfig`: nothing is checked again.
        max_running_requests: batch limit, likewise.

    Returns:
        The configuration with these two.
    """
    return base.model_copy(
        update={"max_batched_tokens": max_batched_tokens, "max_running_requests": max_running_requests}
    )


_GROUPS: BoundedCache[StepTimeGroup] = BoundedCache(MOST_GROUPS)
"""By configuration, role, router and what bounds depend on."""
_SAME_TIMES: BoundedCache[StepTimeGroup] = BoundedCache(MOST_GROUPS)
"""By configuration, role and lengths: groups of the same step times and memory, whatever they were judged by."""
_SAME_MEMORY: BoundedCache[StepTimeGroup] = BoundedCache(MOST_GROUPS)
"""The same, however far off their step times are taken to be: groups of the same memory."""


def step_time_group(
    config: ReplicaConfig,
    role: Role,
    demand: Demand,
    of_demand: BoundsKey,
    max_batched_tokens: Iterable[int],
    most_running: int,
    router: Router = Router.ROUND_ROBIN,
) -> StepTimeGroup:
    """The group of a configuration, kept from one plan to the next.

    Args:
        config: any configuration of it.
        role: of the pool.
        demand: what it is judged by.
        of_demand: `bounds_key(demand)`.
        max_batched_tokens: chunk budgets that will be asked for.
        most_running: largest batch limit that will be asked for.
        router: of the pool.

    Returns:
        The group, with bounds [requests/s] for these budgets and all asked for before.
    """
    of_times = (group_key(config), role, of_demand.lengths)
    key = (*of_times[:2], router, of_demand.demand)
    wanted = set(max_batched_tokens)
    known = _GROUPS.get(key)
    if known is not None and _covers(known, wanted, most_running):
        return known
    alike = _SAME_TIMES.get(of_times)
    if alike is not None and not _covers(alike, wanted, most_running):
        wanted |= {int(budget) for budget in alike.screen.steps.max_batched_tokens}
        most_running, alike = max(most_running, int(alike.screen.most_running)), None
    if alike is not None:
        return _GROUPS.put(key, replace(alike, demand=demand, screen=rescreened(alike.screen, demand, router)))
    screened = screen(config, role, demand, sorted(wanted), float(most_running), router)
    of_memory = (group_key(config.model_copy(update={"shift": None})), *of_times[1:])
    known = _SAME_MEMORY.get(of_memory)
    footprint, slots = (memory_footprint(config), {}) if known is None else (known.footprint, known._slots)
    group = _SAME_MEMORY.put(of_memory, StepTimeGroup(config, role, demand, footprint, screened, slots))
    return _GROUPS.put(key, _SAME_TIMES.put(of_times, group))


def _covers(group: StepTimeGroup, max_batched_tokens: set[int], most_running: int) -> bool:
    """True if its bounds cover all of these."""
    have = {int(budget) for budget in group.screen.steps.max_batched_tokens}
    return max_batched_tokens <= have and most_running <= group.screen.most_running
