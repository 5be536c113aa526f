"""From chosen units to deployments: columns of one configuration become one pool, prefill pools find decode pools.

The program balances what all prefill pools of a service hand over with what all its decode pools take. Usually it
chooses one configuration of each. Where it chooses several, they are matched in order of size, and a pool that serves
with two others is cut into parts in proportion to the rate.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.core import Metric
from planner.fleet.columns import Column
from planner.optimizer import Allocation
from planner.search import DeploymentOption, Mode, PoolOption
from planner.serving import Role

_NOTHING = 1e-9
"""Share of a rate below which it is rounding."""


@dataclass(frozen=True)
class UsedPool:
    """One configuration in one period.

    Attributes:
        service: whose requests it serves.
        option: the configuration.
        replicas: on.
        rated: of those, the ones that are left when those that may fail have failed.
        rates_per_s: routed to it, by slice.
        capacity_share: of what it could carry, the share routed to it.
        columns: names of the columns it is made of.
        channel: of its columns.
    """

    service: str
    option: PoolOption
    replicas: int
    rated: int
    rates_per_s: Mapping[str, float]
    capacity_share: float
    columns: tuple[str, ...]
    channel: str = ""

    @property
    def rate_per_s(self) -> float:
        """Everything routed to it [1/s]."""
        return math.fsum(self.rates_per_s.values())

    def is_answerable(self, metrics: Collection[Metric]) -> bool:
        """Whether this pool may be why such targets were missed: TTFT is made by prefill, TPOT and ITL by decode."""
        not_mine = {Role.PREFILL: {Metric.TPOT, Metric.ITL}, Role.DECODE: {Metric.TTFT}, Role.MIXED: set()}
        return bool(set(metrics) - not_mine[self.option.role])

    def part(self, share: float, replicas: int, rated: int) -> UsedPool:
        """A part of the pool with this share of its traffic."""
        rates = {name: share * rate for name, rate in self.rates_per_s.items()}
        return replace(self, replicas=replicas, rated=rated, rates_per_s=rates)


def used_pools(columns: Iterable[Column], allocation: Allocation, period: int) -> list[UsedPool]:
    """The pools of one period: columns of one configuration together, those that carry nothing left out."""
    groups: dict[tuple[str, str], list[Column]] = {}
    for column in columns:
        if column.member is not None and allocation.units[column.name][period] > 0:
            groups.setdefault((column.service, f"{column.member.role} {column.member.name}"), []).append(column)
    pools = [_merged(group, allocation, period) for group in groups.values()]
    return [pool for pool in pools if pool.rate_per_s > 0.0]


def _merged(group: Sequence[Column], allocation: Allocation, period: int) -> UsedPool:
    units = [allocation.units[column.name][period] for column in group]
    rates: dict[str, float] = {}
    busy = 0.0
    for column in group:
        for name, by_period in allocation.routed_per_s.get(column.name, {}).items():
            rates[name] = rates.get(name, 0.0) + by_period[period]
            busy += by_period[period] / column.rates[name].rate_per_s
    option = group[0].member
    assert option is not None
    return UsedPool(
        service=group[0].service,
        option=option,
        replicas=sum(count * column.replicas for count, column in zip(units, group, strict=True)),
        rated=sum(count * column.rated for count, column in zip(units, group, strict=True)),
        rates_per_s={name: rate for name, rate in rates.items() if rate > 0.0},
        capacity_share=busy / sum(units),
        columns=tuple(column.name for column in group),
        channel=group[0].channel,
    )


def deployments_of(
    pools: Sequence[UsedPool],
) -> list[tuple[DeploymentOption, tuple[UsedPool, ...]]]:
    """What serves together: each mixed pool alone, and prefill pools with decode pools of their KV format."""
    found: list[tuple[DeploymentOption, tuple[UsedPool, ...]]] = [
        (DeploymentOption(Mode.MIXED, (pool.option,)), (pool,)) for pool in pools if pool.option.role is Role.MIXED
    ]
    apart = [pool for pool in pools if pool.option.role is not Role.MIXED]
    for service, channel in dict.fromkeys((pool.service, pool.channel) for pool in apart):
        alike = [pool for pool in apart if (pool.service, pool.channel) == (service, channel)]
        first = [pool for pool in alike if pool.option.role is Role.PREFILL]
        second = [pool for pool in alike if pool.option.role is Role.DECODE]
        for pair in matched(first, second):
            found.append(
                (
                    DeploymentOption(Mode.DISAGGREGATED, tuple(pool.option for pool in pair)),
                    pair,
                )
            )
    return found


def matched(first: Sequence[UsedPool], second: Sequence[UsedPool]) -> list[tuple[UsedPool, UsedPool]]:
    """Prefill pools and decode pools joined, largest first, so that all their traffic finds a partner.

    Both sides carry the same traffic in sum; the decode side's rates may leave out requests of one token.
    """
    left = [(pool, 1.0) for pool in sorted(first, key=lambda pool: -pool.rate_per_s)]
    right = [(pool, 1.0) for pool in sorted(second, key=lambda pool: -pool.rate_per_s)]
    scale = math.fsum(pool.rate_per_s for pool in first) / math.fsum(pool.rate_per_s for pool in second)
    shares: list[tuple[UsedPool, float, UsedPool, float]] = []
    while left and right:
        (a, share_a), (b, share_b) = left[0], right[0]
        amount = min(share_a * a.rate_per_s, share_b * b.rate_per_s * scale)
        taken_a, taken_b = amount / a.rate_per_s, amount / (b.rate_per_s * scale)
        shares.append((a, taken_a, b, taken_b))
        left[0], right[0] = (a, share_a - taken_a), (b, share_b - taken_b)
        left = left if left[0][1] > _NOTHING else left[1:]
        right = right if right[0][1] > _NOTHING else right[1:]
    return _in_whole_replicas(shares)


def _in_whole_replicas(
    shares: Sequence[tuple[UsedPool, float, UsedPool, float]],
) -> list[tuple[UsedPool, UsedPool]]:
    """The parts of each pool in whole replicas, at least one each."""
    sides = []
    for side in (0, 2):
        parts: dict[int, list[int]] = {}
        for index, row in enumerate(shares):
            parts.setdefault(id(row[side]), []).append(index)
        cut: dict[int, UsedPool] = {}
        for indices in parts.values():
            pool = shares[indices[0]][side]
            assert isinstance(pool, UsedPool)
            weights = [float(shares[index][side + 1]) for index in indices]  # type: ignore[arg-type]
            replicas, rated = (
                apportioned(pool.replicas, weights),
                apportioned(pool.rated, weights),
            )
            total = math.fsum(weights)
            for index, weight, count, left in zip(indices, weights, replicas, rated, strict=True):
                cut[index] = pool if len(indices) == 1 else pool.part(weight / total, count, min(count, left))
        sides.append(cut)
    return [(sides[0][index], sides[1][index]) for index in range(len(shares))]


def apportioned(whole: int, weights: Sequence[float]) -> list[int]:
    """A whole number cut in proportion to weights by largest remainders, every part at least 1.

    >>> apportioned(10, [0.52, 0.31, 0.17])
    [5, 3, 2]
    """
    total = math.fsum(weights)
    exact = [whole * weight / total for weight in weights]
    parts = [max(1, math.floor(value)) for value in exact]
    order = sorted(range(len(weights)), key=lambda index: math.floor(exact[index]) - exact[index])
    for index in order[: max(0, whole - sum(parts))]:
        parts[index] += 1
    return parts
