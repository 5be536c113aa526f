"""The columns of the integer program: one configuration at one pool size, with the rate it carries.

The capacity of k replicas behind one router is more than k times that of one, so each pool size is a column of its own.
A column starts with an optimistic rate; only when the program chooses it is the true one computed (`Columns.check`).
Because rates per replica grow with the pool, a computed rate also bounds those of smaller pools.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from planner.candidates import Demand, DeploymentOption, fluid_bound_per_s, sustained_rate_per_s
from planner.optimizer import Allocation, Candidate, CandidatePool
from planner.plan_types import PlannedDeployment

SMALL = 8
"""Up to this size every pool size is a column; above, sizes grow by a quarter."""
REFUTED = 0.97
"""A column that missed a target in simulation keeps this share of the rate it missed it at."""


@dataclass(frozen=True)
class Column:
    """Pools of these sizes as one unit of the program.

    Attributes:
        option: the configuration.
        replicas: pool sizes.
        rate_per_s: what the unit carries under the Slo [1/s]; an upper bound until `checked`.
        checked: whether the rate is known to hold.
    """

    option: DeploymentOption
    replicas: tuple[int, ...]
    rate_per_s: float
    checked: bool

    @property
    def name(self) -> str:
        """E.g. ``mixed h100-sxm TP2 c2048 b128 x3``."""
        return f"{self.option.name} x{'+'.join(str(count) for count in self.replicas)}"

    def candidate(self) -> Candidate:
        """The column as the integer program sees it."""
        gpus: dict[str, float] = {}
        for count, pool in zip(self.replicas, self.option.pools, strict=True):
            gpus[pool.config.sku.id] = gpus.get(pool.config.sku.id, 0.0) + count * pool.config.parallelism.gpus
        unit = CandidatePool(
            name=self.name,
            rate_per_unit=self.rate_per_s,
            cost_per_unit=self.option.usd_per_hour(self.replicas),
            resources=gpus,
        )
        return Candidate(name=self.name, pools=(unit,))


class Columns:
    """All columns of a plan; their rates only ever fall."""

    def __init__(self, options: Iterable[DeploymentOption], demand: Demand) -> None:
        self._by_name = {column.name: column for option in options for column in _columns(option, demand)}

    @property
    def all(self) -> list[Column]:
        """Every column as it stands."""
        return list(self._by_name.values())

    def chosen(self, allocation: Allocation) -> list[Column]:
        """The columns an allocation uses."""
        return [column for column in self.all if allocation.units.get(column.name, 0) > 0]

    def by_option(self, allocation: Allocation) -> dict[str, list[tuple[Column, int]]]:
        """The columns an allocation uses with their units, by name of their configuration."""
        return used_by_option(self.all, allocation)

    def check(self, columns: Iterable[Column], demand: Demand) -> None:
        """Replace optimistic rates by true ones, and tighten the bounds of smaller pools accordingly.

        For each configuration the largest unchecked pool goes first: its rate bounds all the others.
        """
        largest = {column.option.name: self._unchecked(column.option)[-1] for column in columns}
        for column in largest.values():
            rate = sustained_rate_per_s(column.option, column.replicas, demand, column.rate_per_s)
            self._set(replace(column, rate_per_s=rate, checked=True))
            for other in self._unchecked(column.option):
                share = max(a / b for a, b in zip(other.replicas, column.replicas, strict=True))
                self._set(replace(other, rate_per_s=min(other.rate_per_s, share * rate)))

    def lower(self, missed: Iterable[PlannedDeployment], allocation: Allocation) -> None:
        """Lower the columns of deployments that missed a target below the rate they missed it at."""
        groups = self.by_option(allocation)
        for planned in missed:
            share = planned.workload.arrivals.rate_per_s / planned.sustained_per_s
            for column, _ in groups[planned.option.name]:
                self._set(replace(column, rate_per_s=REFUTED * min(1.0, share) * column.rate_per_s))

    def _unchecked(self, option: DeploymentOption) -> list[Column]:
        """The unchecked columns of a configuration, smallest pools first."""
        rest = [column for column in self.all if column.option is option and not column.checked]
        return sorted(rest, key=lambda column: column.replicas)

    def _set(self, column: Column) -> None:
        """Put a column in place of the one of its name; one that carries nothing is no column."""
        if column.rate_per_s > 0.0:
            self._by_name[column.name] = column
        else:
            del self._by_name[column.name]


def used_by_option(columns: Iterable[Column], allocation: Allocation) -> dict[str, list[tuple[Column, int]]]:
    """Those of `columns` that an allocation uses with their units, by name of their configuration."""
    groups: dict[str, list[tuple[Column, int]]] = {}
    for column in columns:
        units = allocation.units.get(column.name, 0)
        if units > 0:
            groups.setdefault(column.option.name, []).append((column, units))
    return groups


def pool_sizes(used: Sequence[tuple[Column, int]]) -> tuple[int, ...]:
    """Replicas of each pool when the used columns of one configuration become one deployment."""
    return tuple(sum(sizes) for sizes in zip(*(_times(column, units) for column, units in used), strict=True))


def _times(column: Column, units: int) -> tuple[int, ...]:
    return tuple(units * count for count in column.replicas)


def _columns(option: DeploymentOption, demand: Demand) -> list[Column]:
    """One column for each size up to a little more than what the whole demand needs."""
    whole = demand.workload.arrivals.rate_per_s
    largest = max(option.replicas)
    columns = []
    for size in _sizes(largest):
        replicas = tuple(-(-count * size // largest) for count in option.replicas)
        if size >= largest:
            columns.append(Column(option, replicas, whole, checked=True))
            continue
        bound = min(whole, fluid_bound_per_s(option, replicas, demand))
        if len(option.pools) == 1:
            bound = min(bound, whole * size / (largest - 1))
        columns.append(Column(option, replicas, bound, checked=False))
    return columns


def _sizes(largest: int) -> list[int]:
    """Pool sizes worth a column, when `largest` carries the whole demand.

    >>> _sizes(3), _sizes(14)
    ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16])
    """
    sizes = set(range(1, min(SMALL, largest) + 1)) | {largest, largest + 1, largest + 2, -(-largest * 11 // 10)}
    size = SMALL
    while size < largest:
        sizes.add(size)
        size = -(-size * 5 // 4)
    return sorted(sizes)
