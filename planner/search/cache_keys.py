"""What configurations have in common: one machine, its memory and its screen; and names that survive a re-plan.

Configurations that differ only in chunk budget and batch limit share weights, KV format and step times. Their keys
name everything that a sustainable rate depends on and nothing else, so that what was found once is found again after a
change of price, demand or limits.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

from pydantic import BaseModel

from planner.core import InputError
from planner.engine import (
    KvAllocation,
    MemoryFootprint,
    ReplicaConfig,
    activation_bytes_per_gpu,
    memory_footprint,
    require_room,
)
from planner.search.bounds import Screen, screen
from planner.search.types import Demand, PoolOption
from planner.serving import Pool, Role, Router, decoding_only, has_prefixes, pool_model, token_costs

Value = TypeVar("Value")

MOST_NAMES = 100_000
MOST_MACHINES = 4096
"""Kept in memory: a machine takes about a tenth of a megabyte."""


class Bounded(Generic[Value]):
    """A dictionary that forgets what was not asked for the longest."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[Hashable, Value] = OrderedDict()

    def get(self, key: Hashable) -> Value | None:
        """What is kept under a key, if it still is."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def put(self, key: Hashable, value: Value) -> Value:
        """Keep a value, and return it."""
        self._kept[key] = value
        self._kept.move_to_end(key)
        while len(self._kept) > self._size:
            self._kept.popitem(last=False)
        return value

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()


_NAMES: Bounded[tuple[tuple[object, ...], Hashable]] = Bounded(MOST_NAMES)
_MACHINES: Bounded[Machine] = Bounded(MOST_MACHINES)


def forget() -> None:
    """Forget every machine."""
    _NAMES.clear()
    _MACHINES.clear()


def _content(record: BaseModel | None) -> Hashable:
    """A name for the content of a large record, worked out once for each object."""
    known = _NAMES.get(id(record))
    if known is not None and known[0][0] is record:
        return known[1]
    text = "" if record is None else record.model_dump_json()
    return _NAMES.put(id(record), ((record,), hashlib.sha256(text.encode()).hexdigest()))[1]


def parts(config: ReplicaConfig) -> tuple[object, ...]:
    """Everything of a configuration but its chunk budget and batch limit."""
    large = (config.llm, config.sku, config.engine, config.calibration)
    small = (config.precision, config.parallelism, config.speculation, config.own_schedule, config.lora)
    return (*large, *small, config.memory_fraction, config.expert_skew, config.mask_s)


def machine_key(config: ReplicaConfig) -> Hashable:
    """Names the content of `parts`."""
    ids = tuple(id(part) for part in parts(config))
    known = _NAMES.get(ids)
    if known is not None and all(a is b for a, b in zip(known[0], parts(config), strict=True)):
        return known[1]
    large = tuple(_content(one) for one in (config.llm, config.sku, config.engine, config.calibration))
    return _NAMES.put(ids, (parts(config), hash_once((*large, *parts(config)[len(large) :]))))[1]


def config_key(option: PoolOption) -> Hashable:
    """Names a configuration in its role."""
    known = _NAMES.get(("option", id(option)))
    if known is not None and known[0][0] is option:
        return known[1]
    config = option.config
    key = (machine_key(config), option.role, option.router, config.max_batched_tokens, config.max_running_requests)
    return _NAMES.put(("option", id(option)), ((option,), hash_once(key)))[1]


@dataclass(frozen=True, eq=False)
class _Hashed:
    """A key whose hash is worked out once."""

    key: Hashable
    value: int

    def __hash__(self) -> int:
        return self.value

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Hashed) and self.value == other.value and self.key == other.key)


def hash_once(key: Hashable) -> Hashable:
    """The same key, quick to look up again."""
    return _Hashed(key, hash(key))


def demand_key(demand: Demand) -> Hashable:
    """Names the shape of a demand: lengths, kind of arrivals and targets; not its rate."""
    arrivals = demand.workload.open_arrivals
    shape = (arrivals.scv, arrivals.batch_mean, arrivals.dispersion)
    return hash_once((demand.workload.classes, shape, demand.slo))


@dataclass(eq=False)
class Machine:
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

    def slots(self, budget: int, limit: int) -> float:
        """Most sequences at once on one replica with this chunk budget and batch limit; 0 when a request does not fit.

        The numbers of `pool_model`, with only what depends on the two worked out anew. Where a prefix cache may spare
        KV memory, that memory limits nothing here: optimistic.
        """
        key = (budget, limit)
        if key not in self._slots:
            self._slots[key] = min(self._kv_running(budget, limit), float(limit), float(budget))
        return self._slots[key]

    def shortfall(self, budget: int, limit: int) -> str:
        """Why a configuration that has no slots does not fit."""
        lengths = self.demand.workload.lengths
        try:
            require_room(with_limits(self.base, budget, limit), lengths.max_total)
        except InputError as error:
            return error.bound
        return f"{self.base.label}: the longest request does not fit"

    def _kv_running(self, budget: int, limit: int) -> float:
        base = self.base
        config = with_limits(base, budget, limit)
        pool = Pool(role=self.role, config=config, replicas=1)
        if base.schedule.kv is KvAllocation.CONTIGUOUS or base.lora is not None:
            return _as_modelled(pool, self.demand)
        if self.role is not Role.DECODE and has_prefixes(pool, self.demand.workload):
            return math.inf if _as_modelled(pool, self.demand) > 0.0 else 0.0
        found, per_block = self.footprint, base.engine.kv_block_tokens
        left = found.usable_bytes - found.weights_bytes - activation_bytes_per_gpu(config)
        blocks = max(0, int(left // (found.kv_bytes_per_token * per_block)))
        longest, held = self._lengths
        kept = found.sequence_blocks * per_block
        if longest > blocks * per_block - kept:
            return 0.0
        room = blocks * per_block * base.parallelism.dp * (1.0 - base.schedule.watermark)
        return max(room / (held + per_block / 2.0 + kept), 1.0)

    @cached_property
    def _lengths(self) -> tuple[int, float]:
        """Longest request, and what one holds on average [tokens]."""
        lengths = self.demand.workload.lengths
        if self.role is Role.DECODE:
            lengths, _ = decoding_only(lengths)
        held = token_costs(lengths, self.base.max_batched_tokens, self.role).held_tokens
        if not (self.base.schedule.reserve_outputs or self.role is Role.PREFILL):
            residence = lengths.outputs * lengths.probabilities
            held -= float(lengths.outputs @ residence) / 2.0 / float(residence.sum())
        return lengths.max_total, held


def _as_modelled(pool: Pool, demand: Demand) -> float:
    lengths = demand.workload.lengths
    if pool.role is Role.DECODE:
        lengths, _ = decoding_only(lengths)
    try:
        return pool_model(pool, lengths).max_running
    except InputError:
        return 0.0


def with_limits(base: ReplicaConfig, budget: int, limit: int) -> ReplicaConfig:
    """The same machine with another chunk budget and batch limit (in range: nothing is checked again)."""
    return base.model_copy(update={"max_batched_tokens": budget, "max_running_requests": limit})


def machine(
    config: ReplicaConfig,
    role: Role,
    demand: Demand,
    of_demand: Hashable,
    budgets: Iterable[int],
    most_running: int,
    router: Router = Router.ROUND_ROBIN,
) -> Machine:
    """The machine of a configuration, kept from one plan to the next.

    Args:
        config: any configuration of it.
        role: of the pool.
        demand: what it is judged by.
        of_demand: `demand_key(demand)`.
        budgets: chunk budgets that will be asked for.
        most_running: largest batch limit that will be asked for.
        router: of the pool.
    """
    key = (machine_key(config), role, router, of_demand)
    known, wanted = _MACHINES.get(key), set(budgets)
    if known is not None:
        have = {int(budget) for budget in known.screen.steps.budgets}
        if wanted <= have and most_running <= known.screen.most_running:
            return known
        wanted, most_running = wanted | have, max(most_running, int(known.screen.most_running))
    found = screen(config, role, demand, sorted(wanted), float(most_running), router)
    return _MACHINES.put(key, Machine(config, role, demand, memory_footprint(config), found))
