"""From chosen units to deployments: columns of one configuration become one pool, prefill pools find decode pools.

The program balances what all prefill pools of a service send with what all its decode pools receive. Usually it chooses
one configuration of each. Where it chooses several, they are matched in order of size, and a pool that serves with two
others is divided in proportion to the rate.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.core import Metric
from planner.fleet.columns import Column
from planner.fleet.types import pool_name
from planner.optimizer import Allocation
from planner.search import DeploymentOption, Mode, PoolOption
from planner.serving import Role

_ROUNDING = 1e-9
"""Share of a pool's rate below which what is left of it is rounding."""
_NOT_CAUSED_BY = {Role.PREFILL: {Metric.TPOT, Metric.ITL}, Role.DECODE: set[Metric](), Role.MIXED: set[Metric]()}
"""Latencies that a role has no part in."""


@dataclass(frozen=True)
class UsedPool:
    """One configuration in one period.

    Attributes:
        service: whose requests it serves.
        option: the configuration.
        replicas: on.
        surviving: of those, the ones that are left when those that may fail have failed.
        rates_per_s: routed to it, by slice.
        capacity_share: of what it could carry, the share routed to it.
        columns: names of the columns it is made of.
        channel: of its columns.
    """

    service: str
    option: PoolOption
    replicas: int
    surviving: int
    rates_per_s: Mapping[str, float]
    capacity_share: float
    columns: tuple[str, ...]
    channel: str = ""

    @property
    def rate_per_s(self) -> float:
        """Everything routed to it [1/s]."""
        return math.fsum(self.rates_per_s.values())

    def may_cause(self, metrics: Collection[Metric]) -> bool:
        """True if this pool may have caused misses of these metrics: prefill has no part in TPOT and ITL."""
        return bool(set(metrics) - _NOT_CAUSED_BY[self.option.role])

    def portion(self, share: float, replicas: int, surviving: int) -> UsedPool:
        """Some replicas of the pool, with this share of its traffic."""
        rates_per_s = {name: share * rate for name, rate in self.rates_per_s.items()}
        return replace(self, replicas=replicas, surviving=surviving, rates_per_s=rates_per_s)


def used_pools(columns: Iterable[Column], allocation: Allocation, period: int) -> list[UsedPool]:
    """The pools of one period: columns of one configuration together, those that carry nothing left out."""
    groups: dict[tuple[str, str], tuple[PoolOption, list[Column]]] = {}
    for column in columns:
        if column.member is not None and allocation.units[column.name][period] > 0:
            key = (column.service, pool_name(column.member))
            groups.setdefault(key, (column.member, []))[1].append(column)
    pools = [_merged_pool(option, group, allocation, period) for option, group in groups.values()]
    return [pool for pool in pools if pool.rate_per_s > 0.0]


def _merged_pool(option: PoolOption, group: Sequence[Column], allocation: Allocation, period: int) -> UsedPool:
    units = [allocation.units[column.name][period] for column in group]
    rates_per_s: dict[str, float] = {}
    busy_units = 0.0
    for column in group:
        for name, by_period in allocation.routed_per_s.get(column.name, {}).items():
            rates_per_s[name] = rates_per_s.get(name, 0.0) + by_period[period]
            busy_units += by_period[period] / column.rates[name].rate_per_s
    return UsedPool(
        service=group[0].service,
        option=option,
        replicas=sum(count * column.replicas for count, column in zip(units, group, strict=True)),
        surviving=sum(count * column.surviving for count, column in zip(units, group, strict=True)),
        rates_per_s={name: rate for name, rate in rates_per_s.items() if rate > 0.0},
        capacity_share=busy_units / sum(units),
        columns=tuple(column.name for column in group),
        channel=group[0].channel,
    )


def deployments_of(pools: Sequence[UsedPool]) -> list[tuple[DeploymentOption, tuple[UsedPool, ...]]]:
    """Pools that serve together: each mixed pool alone, prefill pools with decode pools of their channel."""
    deployments: list[tuple[DeploymentOption, tuple[UsedPool, ...]]] = [
        (DeploymentOption(Mode.MIXED, (pool.option,)), (pool,)) for pool in pools if pool.option.role is Role.MIXED
    ]
    separate = [pool for pool in pools if pool.option.role is not Role.MIXED]
    for service, channel in dict.fromkeys((pool.service, pool.channel) for pool in separate):
        connected = [pool for pool in separate if (pool.service, pool.channel) == (service, channel)]
        prefill = [pool for pool in connected if pool.option.role is Role.PREFILL]
        decode = [pool for pool in connected if pool.option.role is Role.DECODE]
        for pair in match_pools(prefill, decode):
            deployments.append((DeploymentOption(Mode.DISAGGREGATED, tuple(pool.option for pool in pair)), pair))
    return deployments


@dataclass(frozen=True)
class _Match:
    """A share of a prefill pool's traffic, and the share of a decode pool's that it is."""

    prefill: UsedPool
    prefill_share: float
    decode: UsedPool
    decode_share: float


def match_pools(prefill: Sequence[UsedPool], decode: Sequence[UsedPool]) -> list[tuple[UsedPool, UsedPool]]:
    """Prefill pools and decode pools joined, largest first, so that all their traffic finds a partner.

    Both sides carry the same traffic in sum; the decode side's rates may leave out requests of one token.
    """
    left = [(pool, 1.0) for pool in sorted(prefill, key=lambda pool: -pool.rate_per_s)]
    right = [(pool, 1.0) for pool in sorted(decode, key=lambda pool: -pool.rate_per_s)]
    scale = math.fsum(pool.rate_per_s for pool in prefill) / math.fsum(pool.rate_per_s for pool in decode)
    matches: list[_Match] = []
    while left and right:
        (first, first_left), (second, second_left) = left[0], right[0]
        amount = min(first_left * first.rate_per_s, second_left * second.rate_per_s * scale)
        match = _Match(first, amount / first.rate_per_s, second, amount / (second.rate_per_s * scale))
        matches.append(match)
        left[0], right[0] = (first, first_left - match.prefill_share), (second, second_left - match.decode_share)
        left = left if left[0][1] > _ROUNDING else left[1:]
        right = right if right[0][1] > _ROUNDING else right[1:]
    prefill_portions = _portions([(match.prefill, match.prefill_share) for match in matches])
    decode_portions = _portions([(match.decode, match.decode_share) for match in matches])
    return list(zip(prefill_portions, decode_portions, strict=True))


def _portions(shares: Sequence[tuple[UsedPool, float]]) -> list[UsedPool]:
    """Each share of a pool in whole replicas, at least one each, in the order given."""
    places_of: dict[int, list[int]] = {}
    for place, (pool, _) in enumerate(shares):
        places_of.setdefault(id(pool), []).append(place)
    portions: dict[int, UsedPool] = {}
    for places in places_of.values():
        pool, weights = shares[places[0]][0], [shares[place][1] for place in places]
        replicas = apportionment(pool.replicas, weights)
        surviving = apportionment(pool.surviving, weights)
        total = math.fsum(weights)
        for place, weight, count, left in zip(places, weights, replicas, surviving, strict=True):
            portions[place] = pool if len(places) == 1 else pool.portion(weight / total, count, min(count, left))
    return [portions[place] for place in range(len(shares))]


def shared_rates(rates_per_s: Sequence[float], sustained_per_s: Sequence[float]) -> list[float]:
    """The traffic of several deployments shared anew, in proportion to what each sustains.

    >>> shared_rates([6.0, 2.0], [3.0, 1.0]), shared_rates([6.0, 2.0], [0.0, 1.0])
    ([6.0, 2.0], [0.0, 8.0])
    """
    total_per_s, together_per_s = math.fsum(rates_per_s), math.fsum(sustained_per_s)
    return [total_per_s * each / together_per_s for each in sustained_per_s]


def apportionment(whole: int, weights: Sequence[float]) -> list[int]:
    """A whole number divided in proportion to weights by largest remainders, every part at least 1.

    The parts sum to the whole, or to their number where the whole is smaller: what a small share is raised by is taken
    from the parts that are furthest above their shares.

    >>> apportionment(10, [0.52, 0.31, 0.17])
    [5, 3, 2]
    >>> apportionment(50, [49.9, 0.05, 0.05])
    [48, 1, 1]
    """
    total = math.fsum(weights)
    exact = [whole * weight / total for weight in weights]
    counts = [max(1, math.floor(value)) for value in exact]
    order = sorted(range(len(weights)), key=lambda index: math.floor(exact[index]) - exact[index])
    for index in order[: max(0, whole - sum(counts))]:
        counts[index] += 1
    for _ in range(sum(counts) - max(whole, len(counts))):
        counts[max((index for index, count in enumerate(counts) if count > 1), key=lambda i: counts[i] - exact[i])] -= 1
    return counts
