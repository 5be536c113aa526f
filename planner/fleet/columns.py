"""The units of the integer program: families of configurations at one pool size, and what they carry of each slice.

The capacity of k replicas behind one router is more than k times that of one, so each pool size is a unit of its own.
A unit starts with optimistic rates (`Capacity.bound_per_s`). Only for the units that the program chooses is the best
member of the family looked for and its true rate computed (`Columns.refine`); rates only ever fall, so that the
program's answer, once all its units have true rates, is optimal over the true rates of all.

A unit that serves several slices has one configuration: the best member for each of the slices it was chosen for
becomes a unit of its own, with its rates of all slices. A compromise that is best for none of them is not looked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from planner.fleet.slices import DemandSlice
from planner.optimizer import Allocation, Stage, Unit
from planner.search import Capacity, Dominated, Family, PoolOption, worth_sizes
from planner.serving import Role
from planner.supply import FleetLimits, replicas_that_may_fail

REFUTED = 0.97
"""A configuration that missed a target in simulation keeps this share of the rate it missed it at."""
PATIENCE = 2
"""Misses after which a configuration loses more each time: it may not hold at any rate worth having."""
STAGES = {Role.MIXED: Stage.WHOLE, Role.PREFILL: Stage.FIRST, Role.DECODE: Stage.SECOND}

Taken = Callable[[Mapping[str, int]], Mapping[str, float]]
"""What GPUs, by SKU, take of each resource."""


@dataclass(frozen=True)
class Carried:
    """What a unit carries of one slice: a rate [1/s], and whether it is known to hold."""

    rate_per_s: float
    is_exact: bool


@dataclass(frozen=True)
class Column:
    """Replicas of one configuration as one unit of the program.

    Attributes:
        service: whose requests it serves.
        family: what is bought.
        replicas: size of the pool.
        rated: replicas that are left when those that may fail have failed; what the rates are of.
        member: the configuration; None as long as it is the best one for whatever is served.
        rates: by slice.
        channel: prefill pools only hand over to decode pools of the same one; empty for mixed pools.
    """

    service: str
    family: Family
    replicas: int
    rated: int
    member: PoolOption | None
    rates: Mapping[str, Carried]
    channel: str = ""

    @property
    def name(self) -> str:
        """E.g. ``llama-3.1-8b mixed h100-sxm TP2 c2048 b128 x3``."""
        return f"{self.service} {self.kind} x{self.replicas}"

    @property
    def kind(self) -> str:
        """What is bought and how it is set up, whatever the size."""
        return self.family.name if self.member is None else _kind(self.member)

    @property
    def gpus(self) -> dict[str, int]:
        """GPUs by SKU."""
        return {self.family.sku: self.replicas * self.family.gpus}

    @property
    def is_mixed(self) -> bool:
        """Whether it serves whole requests."""
        return self.family.role is Role.MIXED

    @property
    def stage(self) -> Stage:
        """Which part of the service it does."""
        return STAGES[self.family.role]

    @property
    def is_decode(self) -> bool:
        """Whether it takes what prefill pools hand over."""
        return self.family.role is Role.DECODE

    @property
    def is_exact(self) -> bool:
        """Whether all its rates are known to hold."""
        return self.member is not None and all(carried.is_exact for carried in self.rates.values())


class Columns:
    """All units of a plan; their rates only ever fall."""

    def __init__(
        self,
        slices: Sequence[DemandSlice],
        families: Mapping[str, Sequence[Family]],
        capacities: Mapping[str, Capacity],
        limits: FleetLimits,
        sites: Mapping[str, str],
    ) -> None:
        """One column for each family and pool size that is worth it for some slice of its service.

        Args:
            slices: what is served.
            families: by slice name.
            capacities: by slice name.
            limits: the fewest replicas of a pool, and those that may fail.
            sites: by SKU, where it stands: prefill and decode pools serve together on one site only.
        """
        self._sites = sites
        self.dominated: dict[str, Dominated] = {}
        self._capacities = capacities
        self._factors: dict[tuple[str, str], float] = {}
        self._missed: dict[tuple[str, str], int] = {}
        self._most = {part.name: math.inf if part.deferrable else max(part.demand_per_s) for part in slices}
        self._families: dict[str, dict[str, dict[str, Family]]] = {}
        sizes: dict[tuple[str, str], set[int]] = {}
        for part in slices:
            service = part.service.name
            for family in families[part.name]:
                self._families.setdefault(service, {}).setdefault(family.name, {})[part.name] = family
                worth = worth_sizes(family, capacities[part.name], max(part.demand_per_s))
                sizes.setdefault((service, family.name), set()).update(worth)
        self._by_name: dict[str, Column] = {}
        for (service, name), counts in sizes.items():
            for rated in sorted(counts):
                self._set(self._bounded(service, name, rated, limits))

    @property
    def all(self) -> list[Column]:
        """Every column as it stands."""
        return list(self._by_name.values())

    def chosen(self, allocation: Allocation) -> list[Column]:
        """The columns an allocation uses."""
        return [self._by_name[name] for name in allocation.units]

    def members(self, allocation: Allocation) -> list[tuple[str, PoolOption]]:
        """The configurations an allocation uses, each once, with their service."""
        used = [(one.service, one.member) for one in self.chosen(allocation) if one.member is not None]
        return list({(service, _kind(member)): (service, member) for service, member in used}.values())

    def refine(self, allocation: Allocation) -> bool:
        """Replace optimistic rates that the allocation relies on by true ones; whether there were any."""
        open_columns = [(column, self._unknown(column, allocation)) for column in self.chosen(allocation)]
        open_columns = [(column, names) for column, names in open_columns if names or column.member is None]
        for column, names in open_columns:
            if column.member is None:
                self._resolve(column, names)
            else:
                exact = {name: self._true(column.service, column.member, column.rated, name) for name in names}
                self._set(replace(column, rates={**column.rates, **exact}))
        self._tighten({(column.service, column.family.name) for column, _ in open_columns})
        return bool(open_columns)

    def lower(self, member: PoolOption, service: str, share: float) -> None:
        """Lower what a configuration carries, at every pool size, after it missed a target with `share` of its rates.

        What made theory too optimistic at one size makes it so at the others, and pools of one configuration are put
        together from columns of several sizes.
        """
        key = (service, _kind(member))
        self._missed[key] = self._missed.get(key, 0) + 1
        factor = REFUTED ** max(1, self._missed[key] - PATIENCE) * min(1.0, share)
        self._factors[key] = factor * self._factors.get(key, 1.0)
        for column in self.of_members([(service, member)]):
            rates = {name: replace(one, rate_per_s=factor * one.rate_per_s) for name, one in column.rates.items()}
            self._set(replace(column, rates=rates))

    def of_members(self, members: Iterable[tuple[str, PoolOption]]) -> list[Column]:
        """The columns of some configurations (service and member), one for every pool size of their families."""
        wanted = {(service, _kind(member)): member for service, member in members}
        for column in [one for one in self.all if one.member is None]:
            for (service, kind), member in wanted.items():
                fits = service == column.service and kind in {_kind(one) for one in column.family.members}
                new = replace(column, member=member, rates={})
                if fits and new.name not in self._by_name:
                    self._set(replace(new, rates=self._bounds_of(column, member)))
        return [one for one in self.all if one.member is not None and (one.service, _kind(one.member)) in wanted]

    def _bounded(self, service: str, family: str, rated: int, limits: FleetLimits) -> Column:
        """A column whose rates are bounds, for every slice that some member of the family can serve."""
        by_slice = self._families[service][family]
        rates = {name: self._bound(one, rated, name) for name, one in by_slice.items()}
        widest = max(by_slice.values(), key=lambda one: len(one.members))
        channel = f"{service} {widest.kv_cache} {self._sites[widest.sku]}"
        return Column(
            service=service,
            family=widest,
            replicas=with_spares(rated, widest, limits),
            rated=rated,
            member=None,
            rates=rates,
            channel="" if widest.role is Role.MIXED else channel,
        )

    def _bound(self, family: Family, rated: int, name: str) -> Carried:
        bound = self._capacities[name].bound_per_s(family, rated)
        return Carried(min(self._most[name], bound), is_exact=False)

    def _true(self, service: str, member: PoolOption, rated: int, name: str) -> Carried:
        return self._exact(service, member, self._capacities[name].rate_per_s(member, rated, self._most[name]))

    def _exact(self, service: str, member: PoolOption, rate_per_s: float) -> Carried:
        """A rate that theory finds, less what simulation took from its configuration."""
        return Carried(self._factors.get((service, _kind(member)), 1.0) * rate_per_s, is_exact=True)

    def _unknown(self, column: Column, allocation: Allocation) -> list[str]:
        """Slices the allocation routes to a column by a rate that is only a bound."""
        routed = allocation.routed_per_s.get(column.name, {})
        return [name for name, rates in routed.items() if max(rates) > 0.0 and not column.rates[name].is_exact]

    def _resolve(self, column: Column, names: Sequence[str]) -> None:
        """Look for the best member for each of these slices; each becomes a column of its own.

        The column without a member goes on to stand for the slices that are still unknown.
        """
        for name in names:
            family = self._families[column.service][column.family.name][name]
            best = self._capacities[name].best(family, column.rated, self._most[name])
            self.dominated |= {one.name: one for one in best.dominated}
            if best.member is not None:
                self._add(column, best.member, name, self._exact(column.service, best.member, best.rate_per_s))
        kept = {name: carried for name, carried in column.rates.items() if name not in names} if names else {}
        self._set(replace(column, rates=kept))

    def _add(self, column: Column, member: PoolOption, name: str, carried: Carried) -> None:
        """The column with a member, whose rate of one slice is known."""
        new = replace(column, member=member, rates={})
        known = self._by_name.get(new.name)
        rates = dict(known.rates) if known else self._bounds_of(column, member)
        self._set(replace(new, rates={**rates, name: carried}))

    def _bounds_of(self, column: Column, member: PoolOption) -> dict[str, Carried]:
        """Bounds on what one member carries: those of its family, of the slices it can serve at all."""
        by_slice = self._families[column.service][column.family.name]
        return {
            name: replace(column.rates[name], is_exact=False)
            for name, family in by_slice.items()
            if name in column.rates and member.name in {one.name for one in family.members}
        }

    def _tighten(self, known: Set[tuple[str, str]]) -> None:
        """Lower the bounds of columns without a member by what has become known of families (service and name)."""
        for column in [one for one in self.all if one.member is None and (one.service, one.family.name) in known]:
            by_slice = self._families[column.service][column.family.name]
            rates = {name: self._bound(by_slice[name], column.rated, name) for name in column.rates}
            self._set(replace(column, rates=rates))

    def _set(self, column: Column) -> None:
        """Put a column in place of the one of its name; one that carries nothing is no column."""
        rates = {name: carried for name, carried in column.rates.items() if carried.rate_per_s > 0.0}
        if rates:
            self._by_name[column.name] = replace(column, rates=rates)
        else:
            self._by_name.pop(column.name, None)


def _kind(member: PoolOption) -> str:
    """What tells configurations of a service apart."""
    return f"{member.role} {member.name}"


def with_spares(rated: int, family: Family, limits: FleetLimits) -> int:
    """Replicas to buy so that `rated` are left when those that may fail have failed; at least the fewest allowed."""
    node_gpus = family.members[0].config.sku.node.gpus
    replicas = rated
    while replicas - replicas_that_may_fail(replicas, family.gpus, node_gpus, limits) < rated:
        replicas += 1
    return max(replicas, limits.replicas_at_least)


def unit_of(column: Column, taken: Taken, usd_per_start: float, steady: bool) -> Unit:
    """A column as the integer program sees it."""
    return Unit(
        name=column.name,
        stage=column.stage,
        channel=column.channel,
        kind="" if column.is_mixed else column.kind,
        rates_per_s={name: carried.rate_per_s for name, carried in column.rates.items()},
        takes=taken(column.gpus),
        usd_per_start=usd_per_start,
        steady=steady,
    )
