"""Names for the content of configurations and demands, under which what was found for one is found again.

A key names everything that a sustainable rate depends on and nothing else, so that what was found once is found again
after a change of price, demand or limits. Configurations that differ only in chunk budget and batch limit share a
*step-time group* (`planner.search.step_time_groups`) and its key.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel

from planner.engine import ReplicaConfig
from planner.search.types import Demand, PoolOption

Value = TypeVar("Value")

MOST_NUMBERS, MOST_GROUPS, MOST_RESULTS = 100_000, 4096, 64
"""Entries kept in memory, of numbers and keys, of step-time groups (a tenth of a megabyte each), and of searches and
performances. Affects speed only."""


class BoundedCache(Generic[Value]):
    """A dictionary that forgets what was not asked for the longest."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[Hashable, Value] = OrderedDict()

    def get(self, key: Hashable) -> Value | None:
        """The value kept under a key, if it still is."""
        value = self._kept.get(key)
        if value is not None:
            self._kept.move_to_end(key)
        return value

    def put(self, key: Hashable, value: Value) -> Value:
        """Keep a value, and return it."""
        self._kept[key] = value
        self._kept.move_to_end(key)
        while len(self._kept) > self._size:
            self._kept.popitem(last=False)
        return value


_KEYS: BoundedCache[tuple[tuple[object, ...], Hashable]] = BoundedCache(MOST_NUMBERS)
"""Keys worked out so far by the ids of what they name, which is kept with them so that no id is used again."""


def content_key(record: BaseModel | None) -> Hashable:
    """Names the content of a large record, worked out once for each object.

    Args:
        record: the record.

    Returns:
        The same key for records of the same content.
    """
    known = _KEYS.get(id(record))
    if known is not None and known[0][0] is record:
        return known[1]
    text = "" if record is None else record.model_dump_json()
    return _KEYS.put(id(record), ((record,), hashlib.sha256(text.encode()).hexdigest()))[1]


def shared_settings(config: ReplicaConfig) -> tuple[object, ...]:
    """Everything of a configuration but its chunk budget and batch limit.

    Args:
        config: the configuration.

    Returns:
        Its large records, then its small ones.
    """
    large = (config.llm, config.sku, config.engine, config.calibration)
    small = (config.precision, config.parallelism, config.speculation, config.own_schedule, config.lora)
    limits = (config.max_request_tokens, config.memory_fraction)
    return (*large, *small, *limits, config.expert_skew, config.mask_s, config.shift, config.encoders)


def group_key(config: ReplicaConfig) -> Hashable:
    """Names the content of `shared_settings`.

    Args:
        config: any configuration of a step-time group.

    Returns:
        The same key for configurations of the same content.
    """
    ids = tuple(id(setting) for setting in shared_settings(config))
    known = _KEYS.get(ids)
    if known is not None and all(a is b for a, b in zip(known[0], shared_settings(config), strict=True)):
        return known[1]
    large = tuple(content_key(record) for record in (config.llm, config.sku, config.engine, config.calibration))
    key = hash_once((*large, *shared_settings(config)[len(large) :]))
    return _KEYS.put(ids, (shared_settings(config), key))[1]


def config_key(option: PoolOption) -> Hashable:
    """Names a configuration in its role.

    Args:
        option: the configuration.

    Returns:
        The same key for options of the same content.
    """
    known = _KEYS.get(("option", id(option)))
    if known is not None and known[0][0] is option:
        return known[1]
    config = option.config
    key = (group_key(config), option.role, option.router, config.max_batched_tokens, config.max_running_requests)
    return _KEYS.put(("option", id(option)), ((option,), hash_once(key)))[1]


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
    """The same key, quick to look up again.

    Args:
        key: any key.

    Returns:
        A key that is equal where the given one is.
    """
    return _Hashed(key, hash(key))


def demand_key(demand: Demand) -> Hashable:
    """Names the shape of a demand: lengths, kind of arrivals and targets; not its rate.

    Args:
        demand: the demand.

    Returns:
        The same key for demands of the same shape.
    """
    arrivals = demand.workload.open_arrivals
    shape = (arrivals.scv, arrivals.batch_mean, arrivals.dispersion, arrivals.drift)
    return hash_once((demand.workload.classes, shape, demand.slo))
