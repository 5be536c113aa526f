"""The units of the integer program: families of configurations at one pool size, and what they carry of each slice.

The capacity of k replicas behind one router is more than k times that of one, so each pool size is a unit of its own.
A unit starts with optimistic rates (`Capacity.bound_per_s`). Only for the units that the program chooses is the best
member of the family searched for and its true rate computed (`CandidateColumns.refine`); these rates only ever fall,
so that the program's answer, once all its units have true rates, is optimal over the true rates of all.

A pool that was simulated and held where theory says it would not becomes a unit with the rates it held
(`CandidateColumns.witness`): one unit more with true rates, which no bound has to cover.

A unit that serves several slices has one configuration: the best member for each of the slices it was chosen for
becomes a unit of its own, with its rates of all slices. A compromise that is best for none of them is not searched.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from planner.engine import kv_tiers_usd_per_gpu_hour
from planner.fleet.types import pool_name
from planner.optimizer import Allocation, Unit, UnitStage
from planner.search import Capacity, ConfigurationFamily, Dominated, PoolOption, worth_sizes
from planner.serving import Role
from planner.supply import FleetLimits, replicas_that_may_fail
from planner.traffic import DemandSlice

SHARE_KEPT_AFTER_MISS = 0.97
"""A configuration that missed a target in simulation keeps this share of the rate it missed it at.

A choice: larger wastes less capacity and takes more rounds.
"""
MISSES_BEFORE_LARGER_CUTS = 2
"""Misses after which a configuration loses more each time: it may not hold at any rate worth having. A choice."""
_ROUNDING = 1e-9
"""Share by which a rate that was seen to hold is raised, so that the program may route all of it."""
STAGE_OF_ROLE = {Role.MIXED: UnitStage.WHOLE, Role.PREFILL: UnitStage.FIRST, Role.DECODE: UnitStage.SECOND}


@dataclass(frozen=True)
class SliceRate:
    """What a unit carries of one slice: a rate [1/s], and whether it is the true one or an upper bound."""

    rate_per_s: float
    is_exact: bool


@dataclass(frozen=True)
class Column:
    """Replicas of one configuration as one unit of the program.

    Attributes:
        service: whose requests it serves.
        family: what is bought.
        replicas: size of the pool.
        surviving: replicas that are left when those that may fail have failed; what the rates are of.
        member: the configuration; None as long as it is the best one for whatever is served.
        rates: by slice.
        channel: prefill pools only send KV caches to decode pools of the same one; empty for mixed pools.
    """

    service: str
    family: ConfigurationFamily
    replicas: int
    surviving: int
    member: PoolOption | None
    rates: Mapping[str, SliceRate]
    channel: str = ""

    @property
    def name(self) -> str:
        """E.g. ``llama-3.1-8b mixed h100-sxm TP2 c2048 b128 x3``."""
        return f"{self.service} {self.kind} x{self.replicas}"

    @property
    def kind(self) -> str:
        """What is bought and how it is set up, whatever the size."""
        return self.family.name if self.member is None else pool_name(self.member)

    @property
    def gpus(self) -> dict[str, int]:
        """GPUs by SKU."""
        return {self.family.sku: self.replicas * self.family.gpus}

    @property
    def kv_tiers_usd_per_hour(self) -> float:
        """Cost of the KV tiers behind its GPUs [USD/h]."""
        return kv_tiers_usd_per_gpu_hour(self.family.members[0].config) * self.replicas * self.family.gpus

    @property
    def is_mixed(self) -> bool:
        """Whether it serves whole requests."""
        return self.family.role is Role.MIXED

    @property
    def stage(self) -> UnitStage:
        """Which stage of a request it serves."""
        return STAGE_OF_ROLE[self.family.role]

    @property
    def is_decode(self) -> bool:
        """Whether it receives what prefill pools send."""
        return self.family.role is Role.DECODE

    @property
    def is_exact(self) -> bool:
        """Whether all its rates are true ones."""
        return self.member is not None and all(rate.is_exact for rate in self.rates.values())


class CandidateColumns:
    """All units of a plan; their rates only ever fall, but for those of units that simulation found to hold."""

    def __init__(
        self,
        slices: Sequence[DemandSlice],
        families: Mapping[str, Sequence[ConfigurationFamily]],
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
        self._limits = limits
        self._witnessed: set[str] = set()
        self.dominated: dict[str, Dominated] = {}
        self._capacities = capacities
        self._cuts: dict[tuple[str, str], float] = {}
        self._misses: dict[tuple[str, str], int] = {}
        self._demand_per_s = {
            slice_.name: math.inf if slice_.deferrable else max(slice_.demand_per_s) for slice_ in slices
        }
        self._families: dict[str, dict[str, dict[str, ConfigurationFamily]]] = {}
        sizes: dict[tuple[str, str], set[int]] = {}
        for slice_ in slices:
            service = slice_.service.name
            for family in families[slice_.name]:
                self._families.setdefault(service, {}).setdefault(family.name, {})[slice_.name] = family
                worth = worth_sizes(family, capacities[slice_.name], max(slice_.demand_per_s))
                sizes.setdefault((service, family.name), set()).update(worth)
        self._by_name: dict[str, Column] = {}
        for (service, name), counts in sizes.items():
            for surviving in sorted(counts):
                self._set(self._family_column(service, name, surviving, limits))

    @property
    def all(self) -> list[Column]:
        """Every column as it stands."""
        return list(self._by_name.values())

    def chosen(self, allocation: Allocation) -> list[Column]:
        """The columns an allocation uses."""
        return [self._by_name[name] for name in allocation.units]

    def members(self, allocation: Allocation) -> list[tuple[str, PoolOption]]:
        """The configurations an allocation uses, each once, with their service."""
        used = [(column.service, column.member) for column in self.chosen(allocation) if column.member is not None]
        return list({(service, pool_name(member)): (service, member) for service, member in used}.values())

    def refine(self, allocation: Allocation) -> bool:
        """Replace optimistic rates that the allocation relies on by true ones; whether there were any."""
        open_columns = [(column, self._bounded_slices(column, allocation)) for column in self.chosen(allocation)]
        open_columns = [(column, names) for column, names in open_columns if names or column.member is None]
        for column, names in open_columns:
            if column.member is None:
                self._choose_members(column, names)
            else:
                exact = {name: self._true_rate(column, column.member, name) for name in names}
                self._set(replace(column, rates={**column.rates, **exact}))
        self._tighten({(column.service, column.family.name) for column, _ in open_columns})
        return bool(open_columns)

    def lower(self, member: PoolOption, service: str, share: float) -> None:
        """Lower what a configuration carries, at every pool size, after it missed a target with `share` of its rates.

        What made theory too optimistic at one size makes it so at the others, and pools of one configuration are put
        together from columns of several sizes.
        """
        key = (service, pool_name(member))
        self._misses[key] = self._misses.get(key, 0) + 1
        cut = SHARE_KEPT_AFTER_MISS ** max(1, self._misses[key] - MISSES_BEFORE_LARGER_CUTS) * min(1.0, share)
        self._cuts[key] = cut * self._cuts.get(key, 1.0)
        for column in self.of_members([(service, member)]):
            rates = {name: replace(rate, rate_per_s=cut * rate.rate_per_s) for name, rate in column.rates.items()}
            self._set(replace(column, rates=rates))

    def witness(self, member: PoolOption, service: str, surviving: int, rates_per_s: Mapping[str, float]) -> None:
        """A pool of so many surviving replicas was simulated at these rates [1/s] and held: a unit that carries them.

        Its rates are those of theory, raised in one proportion until what was simulated fills the unit. Nothing is
        concluded for other sizes: a size that simulation did not see keeps the rate of theory.
        """
        known = self.of_members([(service, member)])
        column = replace(
            known[0], surviving=surviving, replicas=replicas_with_spares(surviving, known[0].family, self._limits)
        )
        total_per_s = math.fsum(rates_per_s.values())
        theory = {name: self._true_rate(column, member, name).rate_per_s or total_per_s for name in rates_per_s}
        raised = max(1.0, math.fsum(rate / theory[name] for name, rate in rates_per_s.items())) * (1.0 + _ROUNDING)
        seen = {name: SliceRate(raised * rate, is_exact=True) for name, rate in theory.items()}
        same = self._by_name.get(column.name)
        self._set(replace(column, rates={**(same.rates if same else {}), **seen}))
        self._witnessed.add(column.name)

    def is_witnessed(self, name: str) -> bool:
        """Whether a column has rates that simulation found, whatever theory says of them."""
        return name in self._witnessed

    def of_members(self, members: Iterable[tuple[str, PoolOption]]) -> list[Column]:
        """The columns of some configurations (service and member), one for every pool size of their families."""
        wanted = {(service, pool_name(member)): member for service, member in members}
        for column in [column for column in self.all if column.member is None]:
            for (service, name), member in wanted.items():
                fits = service == column.service and name in {pool_name(option) for option in column.family.members}
                new = replace(column, member=member, rates={})
                if fits and new.name not in self._by_name:
                    self._set(replace(new, rates=self._member_bounds(column, member)))
        return [
            column
            for column in self.all
            if column.member is not None and (column.service, pool_name(column.member)) in wanted
        ]

    def _family_column(self, service: str, family: str, surviving: int, limits: FleetLimits) -> Column:
        """A column whose rates are bounds, for every slice that some member of the family can serve."""
        by_slice = self._families[service][family]
        rates = {name: self._bound(sliced, surviving, name) for name, sliced in by_slice.items()}
        widest = max(by_slice.values(), key=lambda sliced: len(sliced.members))
        channel = f"{service} {widest.kv_cache} {self._sites[widest.sku]}"
        return Column(
            service=service,
            family=widest,
            replicas=replicas_with_spares(surviving, widest, limits),
            surviving=surviving,
            member=None,
            rates=rates,
            channel="" if widest.role is Role.MIXED else channel,
        )

    def _bound(self, family: ConfigurationFamily, surviving: int, name: str) -> SliceRate:
        bound_per_s = self._capacities[name].bound_per_s(family, surviving)
        return SliceRate(min(self._demand_per_s[name], bound_per_s), is_exact=False)

    def _true_rate(self, column: Column, member: PoolOption, name: str) -> SliceRate:
        rate_per_s = self._capacities[name].rate_per_s(member, column.surviving, self._demand_per_s[name])
        return self._cut_rate(column.service, member, rate_per_s)

    def _cut_rate(self, service: str, member: PoolOption, rate_per_s: float) -> SliceRate:
        """A rate that theory finds, less what simulation took from its configuration."""
        return SliceRate(self._cuts.get((service, pool_name(member)), 1.0) * rate_per_s, is_exact=True)

    def _bounded_slices(self, column: Column, allocation: Allocation) -> list[str]:
        """Slices the allocation routes to a column by a rate that is only a bound."""
        routed = allocation.routed_per_s.get(column.name, {})
        return [name for name, rates in routed.items() if max(rates) > 0.0 and not column.rates[name].is_exact]

    def _choose_members(self, column: Column, names: Sequence[str]) -> None:
        """Find the best member for each of these slices; each becomes a column of its own.

        The column without a member goes on to stand for the slices that are still unknown.
        """
        for name in names:
            family = self._families[column.service][column.family.name][name]
            best = self._capacities[name].best(family, column.surviving, self._demand_per_s[name])
            self.dominated |= {dominated.name: dominated for dominated in best.dominated}
            if best.member is not None:
                rate = self._cut_rate(column.service, best.member, best.rate_per_s)
                self._add(column, best.member, name, rate)
        kept = {name: rate for name, rate in column.rates.items() if name not in names} if names else {}
        self._set(replace(column, rates=kept))

    def _add(self, column: Column, member: PoolOption, name: str, rate: SliceRate) -> None:
        """The column with a member, whose rate of one slice is known."""
        new = replace(column, member=member, rates={})
        known = self._by_name.get(new.name)
        rates = dict(known.rates) if known else self._member_bounds(column, member)
        if self.is_witnessed(new.name) and name in rates:
            rate = max(rate, rates[name], key=lambda each: (each.is_exact, each.rate_per_s))
        self._set(replace(new, rates={**rates, name: rate}))

    def _member_bounds(self, column: Column, member: PoolOption) -> dict[str, SliceRate]:
        """Bounds on what one member carries: those of its family, of the slices it can serve at all."""
        by_slice = self._families[column.service][column.family.name]
        return {
            name: replace(column.rates[name], is_exact=False)
            for name, family in by_slice.items()
            if name in column.rates and member.name in {option.name for option in family.members}
        }

    def _tighten(self, known: Set[tuple[str, str]]) -> None:
        """Lower the bounds of columns without a member by what has become known of families (service and name)."""
        for column in self.all:
            if column.member is None and (column.service, column.family.name) in known:
                by_slice = self._families[column.service][column.family.name]
                rates = {name: self._bound(by_slice[name], column.surviving, name) for name in column.rates}
                self._set(replace(column, rates=rates))

    def _set(self, column: Column) -> None:
        """Replace the column of the same name; one that carries nothing is removed."""
        rates = {name: rate for name, rate in column.rates.items() if rate.rate_per_s > 0.0}
        if rates:
            self._by_name[column.name] = replace(column, rates=rates)
        else:
            self._by_name.pop(column.name, None)


def replicas_with_spares(surviving: int, family: ConfigurationFamily, limits: FleetLimits) -> int:
    """Replicas to buy so that so many survive when those that may fail have failed; at least the fewest allowed."""
    node_gpus = family.members[0].config.sku.node.gpus
    replicas = surviving
    while replicas - replicas_that_may_fail(replicas, family.gpus, node_gpus, limits) < surviving:
        replicas += 1
    return max(replicas, limits.replicas_at_least)


def unit_of(column: Column, takes: Mapping[str, float], usd_per_start: float, steady: bool) -> Unit:
    """A column as the integer program sees it.

    Args:
        column: what is on or off.
        takes: of each resource.
        usd_per_start: cost of switching it on [USD].
        steady: on in all periods or in none.
    """
    return Unit(
        name=column.name,
        stage=column.stage,
        channel=column.channel,
        kind="" if column.is_mixed else column.kind,
        rates_per_s={name: rate.rate_per_s for name, rate in column.rates.items()},
        takes=takes,
        usd_per_hour=column.kv_tiers_usd_per_hour,
        usd_per_start=usd_per_start,
        steady=steady,
    )
