"""The units of the integer program: families of configurations at one pool size, and what they carry of each slice.

The capacity of k replicas behind one router is more than k times that of one, so each pool size is a unit of its own.
A unit starts with optimistic rates (`Capacity.bound_per_s`). Only for the units that the program chooses is the best
member of the family searched for and its true rate computed (`CandidateColumns.refine`); these rates fall, so that the
program's answer, once all its units have true rates, is optimal over the true rates of all. Where a bound turns out to
have been too low, which under a drift it may, that is counted (`CandidateColumns.rises`).

A rate is true by the last of three oracles asked: bound, theory, simulation. Simulation lowers the rates of a
configuration that missed (`CandidateColumns.lower`, `planner.fleet.corrections`). A pool that held in simulation
against theory becomes a unit of its own with the rates it held (`CandidateColumns.add_simulated`): one unit more with
true rates, which no bound has to cover.

A unit that serves several slices has one configuration: the best member for each of the slices it was chosen for
becomes a unit of its own, with its rates of all slices. A compromise that is best for none of them is not searched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from planner.core import Metric
from planner.engine import MOST_BATCHED_TOKENS, ReplicaConfig, kv_tiers_usd_per_gpu_hour
from planner.fleet.corrections import LEAST_KEPT, Corrections, HeldPool, KeptShare, KeptShares, SureShare
from planner.fleet.types import pool_name
from planner.optimizer import Allocation, Unit, UnitStage
from planner.search import Capacity, ConfigurationFamily, Dominated, Mode, PoolOption, Rejection, worth_sizes
from planner.serving import MOST_REPLICAS, Role
from planner.supply import FleetLimits, replicas_that_may_fail
from planner.traffic import DemandSlice
from planner.workload import RecordedArrivals

_ROUNDING = 1e-9
"""Share by which a rate that was seen to hold is raised, so that the program may route all of it."""
LEAST_ASKED_BEYOND = 1.5
"""Factor on the rate of a pool that falls short up to which theory is asked how much it carries. A choice."""
STAGE_OF_ROLE = {Role.MIXED: UnitStage.WHOLE, Role.PREFILL: UnitStage.FIRST, Role.DECODE: UnitStage.SECOND}


@dataclass(frozen=True)
class SliceRate:
    """Rate of a unit for one slice [1/s], and whether it is true or an upper bound."""

    rate_per_s: float
    is_exact: bool


@dataclass(frozen=True)
class Column:
    """Replicas of one configuration as one unit of the program.

    Attributes:
        service: whose requests it serves.
        family: what is bought.
        surviving: replicas that are left when those that may fail have failed; what the rates are of.
        limits: which may fail, and the fewest of a pool.
        member: the configuration; None as long as it is the best one for whatever is served.
        rates: by slice.
        channel: prefill pools only send KV caches to decode pools of the same one; empty for mixed pools.
        servers: over which it is spread at least.
    """

    service: str
    family: ConfigurationFamily
    surviving: int
    limits: FleetLimits
    member: PoolOption | None
    rates: Mapping[str, SliceRate]
    channel: str = ""
    servers: int = 1

    @cached_property
    def name(self) -> str:
        """E.g. ``llama-3.1-8b mixed h100-sxm TP2 c2048 b128 x3``, of three surviving replicas."""
        return f"{self.service} {self.kind} x{self.surviving}"

    @cached_property
    def replicas(self) -> int:
        """Size of the pool: the fewest of which so many survive, at least the fewest allowed."""
        node_gpus, gpus = self.family.members[0].config.sku.node.gpus, self.family.gpus
        replicas = self.surviving
        while replicas - replicas_that_may_fail(replicas, gpus, node_gpus, self.limits, self.servers) < self.surviving:
            replicas += 1
        return max(replicas, self.limits.replicas_at_least)

    @property
    def kind(self) -> str:
        """Its configuration, whatever the size; of a column without a member its family."""
        return self.family.name if self.member is None else pool_name(self.member)

    @property
    def gpus(self) -> dict[str, int]:
        """GPUs by SKU."""
        return {self.family.sku: self.family.pool_gpus(self.replicas)}

    @property
    def kv_tiers_usd_per_hour(self) -> float:
        """Cost of the KV tiers behind its GPUs [USD/h]."""
        return kv_tiers_usd_per_gpu_hour(self.family.members[0].config) * self.replicas * self.family.gpus

    @property
    def is_measured(self) -> bool:
        """True if its step times come from kernels measured on its own SKU."""
        return self.family.is_measured

    @property
    def is_mixed(self) -> bool:
        """True if it serves whole requests."""
        return self.family.role is Role.MIXED

    @property
    def marks(self) -> tuple[str, ...]:
        """Traits shared with other columns; each more makes a fleet less simple (`planner.fleet.refinement`)."""
        own = (f"{self.service} {self.kind}", self.family.sku)
        return own if self.is_mixed else (*own, f"{self.service} in pairs")

    @property
    def stage(self) -> UnitStage:
        """Which stage of a request it serves."""
        return STAGE_OF_ROLE[self.family.role]

    @property
    def is_decode(self) -> bool:
        """True if it receives what prefill pools send."""
        return self.family.role is Role.DECODE

    @property
    def is_exact(self) -> bool:
        """True if all its rates are true."""
        return self.member is not None and all(rate.is_exact for rate in self.rates.values())


class _TheoryRate(NamedTuple):
    """Rate of a column by theory [1/s], and the rate up to which theory was asked [1/s]."""

    rate_per_s: float
    asked_per_s: float


class CandidateColumns:
    """All units of a plan, with the rates of theory as far as they are known and as simulation corrected them.

    Attributes:
        dominated: members that another one of their family betters, by name.
        together: by service and family, the share of its rates that it keeps in a fleet of several SKUs, which all have
            to hold in the same worlds of other step times; 1 where there is none.
        rises: how often a rate rose. Under a drift bounds rest on shares that other families kept, which may be too
            low; what was concluded from rates before does not hold then.
    """

    def __init__(
        self,
        slices: Sequence[DemandSlice],
        families: Mapping[str, Sequence[ConfigurationFamily]],
        capacities: Mapping[str, Capacity],
        limits: FleetLimits,
        sites: Mapping[str, str],
        corrections: Corrections | None = None,
    ) -> None:
        """One column for each family and pool size that is worth it for some slice of its service.

        Args:
            slices: what is served.
            families: by slice name.
            capacities: by slice name.
            limits: the fewest replicas of a pool, and those that may fail.
            sites: by SKU, where it stands: prefill and decode pools serve together on one site only.
            corrections: what simulation taught in another plan; None: nothing.
        """
        self.rises = 0
        sure_together = () if corrections is None else corrections.together
        self.together = {(one.service, one.family): one.share for one in sure_together}
        self._sites = sites
        self._limits = limits
        self._simulated: dict[tuple[str, str], float] = {}
        self._held: dict[str, HeldPool] = {}
        self.dominated: dict[str, Dominated] = {}
        self._capacities = capacities
        self._theory: dict[tuple[str, str], _TheoryRate] = {}
        self._family_of: dict[tuple[str, str], str] = {}
        self._member_of: dict[tuple[str, str], PoolOption] = {}
        self._shares = KeptShares()
        self._is_steady = not any(
            isinstance(slice_.workload.arrivals, RecordedArrivals) or slice_.workload.open_arrivals.drift is not None
            for slice_ in slices
        )
        self._demand_per_s = {
            slice_.name: math.inf if slice_.deferrable else max(slice_.demand_per_s) for slice_ in slices
        }
        self._largest_per_s = {slice_.name: max(slice_.demand_per_s) for slice_ in slices}
        self._families: dict[str, dict[str, dict[str, ConfigurationFamily]]] = {}
        for slice_ in slices:
            for family in families[slice_.name]:
                self._add_family(slice_.service.name, slice_.name, family)
        self._untried: dict[tuple[str, str], dict[str, ConfigurationFamily]] = {}
        self._by_name: dict[str, Column] = {}
        self._sizes: set[tuple[str, str, int]] = set()
        if corrections is not None:
            self._shares.take_over(corrections, self._families)
            for kept in corrections.kept:
                configuration, _, alone = kept.configuration.partition(" for ")
                if alone and (kept.service, configuration) in self._member_of:
                    self.offer_alone(self._member_of[kept.service, configuration], kept.service, self._demand_per_s)
        for service in self._families:
            self._add_sizes(service)
        if corrections is not None:
            tried = [(kept.service, kept.configuration) for kept in corrections.kept]
            self.of_members((key[0], self._member_of[key]) for key in tried if key in self._member_of)
            for pool in corrections.held:
                self._add_held(pool)

    def _add_held(self, pool: HeldPool) -> None:
        """Add the unit of a pool that carried more than theory says in another plan: as much more here."""
        key = (pool.service, pool.configuration)
        if key not in self._member_of:
            return
        member, by_slice = self._member_of[key], self._families[pool.service][self._family_of[key]]
        column = self._sized(pool.service, member, pool.surviving)
        ratios = {name: ratio for name, ratio in pool.ratios.items() if name in by_slice}
        for name in ratios:
            self._ask(column, member, name)
        theory = {name: self._rate(column, name).rate_per_s for name in ratios}
        self._simulated |= {(column.name, name): ratio * theory[name] for name, ratio in ratios.items()}
        self._held[column.name] = pool
        self._set(replace(column, rates={name: self._rate(column, name) for name in ratios}))

    def _sized(self, service: str, member: PoolOption, surviving: int) -> Column:
        """A column of a configuration with so many surviving replicas, without rates."""
        return self._family_column(service, self._family_of[service, pool_name(member)], surviving, member)

    def corrections(self, known: Corrections, used: Iterable[str]) -> Corrections:
        """Corrections of the rates of theory by the simulations so far.

        Args:
            known: before; its traffic and doubt hold for these too.
            used: names of the columns of the fleet; pools that carried more than theory says are told of these only.
        """
        kept = {(one.service, one.configuration): one for one in self._shares.all_kept()}
        expected = self._shares.all_expected()
        of_others = {(each.service, each.role) for each in expected}
        for column in (self._by_name[name] for name in used if name in self._by_name):
            key = (column.service, column.family.role)
            if column.member is not None and (key in of_others or column.member.serves):  # it held as it is
                name = pool_name(column.member)
                share = self._shares.of(*key, column.family.name, name)
                own = KeptShare(
                    service=column.service, role=key[1], family=column.family.name, configuration=name, share=share
                )
                kept.setdefault((column.service, name), own)
        return Corrections(
            traffic=known.traffic,
            doubt=known.doubt,
            kept=tuple(kept.values()),
            expected=tuple(expected),
            held=tuple(self._held[name] for name in used if name in self._held),
            sure=tuple(self._shares.all_sure()),
            together=tuple(
                SureShare(service=service, family=family, share=share)
                for (service, family), share in self.together.items()
            ),
        )

    @property
    def expectations(self) -> tuple[str, ...]:
        """See `KeptShares.expectations`."""
        return self._shares.expectations

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
        """Replace optimistic rates that the allocation relies on by true ones; True if there were any."""
        open_columns = list[tuple[Column, list[str]]]()
        for column in self.chosen(allocation):
            routed = allocation.routed_per_s.get(column.name, {})
            names = [name for name, rates in routed.items() if max(rates) > 0.0 and not column.rates[name].is_exact]
            if names or column.member is None:
                open_columns.append((column, names))
        for column, names in open_columns:
            if column.member is None:
                self._choose_members(column, names)
            else:
                for name in names:
                    self._ask(column, column.member, name)
                self._set(self._corrected(column))
        self._tighten()
        return bool(open_columns)

    def refine_bound(self, allocation: Allocation) -> bool:
        """Replace optimistic rates that only the bound of an allocation rests on; True if there were any.

        Without this a bound could rest for ever on rates that no unit has.
        """
        rests_on = allocation.bound_rests_on
        routed = {name: dict.fromkeys(slices, (1.0,)) for name, slices in rests_on.items()}
        units = {name: (1,) for name in rests_on if name in self._by_name}
        return self.refine(allocation.model_copy(update={"units": units, "routed_per_s": routed}))

    def idle_misses(self, name: str) -> list[Rejection]:
        """Why families do not serve a slice (by its name) though each request fits: for each SKU and mode what misses.

        Of a role the family that comes nearest, of a pair the role that misses by more.
        """
        of_roles: dict[tuple[str, Role], Rejection | None] = {}
        for family in (
            by_slice[name] for of in self._families.values() for by_slice in of.values() if name in by_slice
        ):
            key, miss = (family.sku, family.role), self._capacities[name].idle_miss(family)
            known = of_roles.setdefault(key, miss)
            if known is not None and (miss is None or miss.ratio < known.ratio):
                of_roles[key] = miss
        worst: dict[tuple[str, Mode], Rejection] = {}
        for found in of_roles.values():
            if found is not None:
                before = worst.get((found.sku, found.mode), found)
                worst[found.sku, found.mode] = max(before, found, key=lambda miss: miss.ratio)
        return list(worst.values())

    def lower(self, member: PoolOption, service: str, share: float, kept: float, *, simulated: bool = True) -> None:
        """Lower the rates of a configuration, at every pool size, after it missed a target.

        What made theory too optimistic at one size makes it so at the others, and pools of one configuration are put
        together from columns of several sizes. Larger pools become worth a column.

        Args:
            member: the configuration.
            service: it serves.
            share: of its rates that was routed to it.
            kept: share of that at which it may hold.
            simulated: the miss was, not one by theory.
        """
        name = pool_name(member)
        family = self._family_of[service, name]
        self._shares.miss(service, member.role, family, name, share, kept, simulated=simulated)
        self._add_sizes(service)
        self.of_members([(service, member)])
        for column in self.all:
            if column.service == service and column.family.role is member.role:
                self._set(self._corrected(column))
        if self._is_steady:
            own = member.config
            self._offer_others(
                member,
                service,
                lambda other: (
                    other.max_batched_tokens != own.max_batched_tokens
                    or other.max_running_requests < own.max_running_requests
                ),
            )

    def fall_short(
        self,
        member: PoolOption,
        service: str,
        surviving: int,
        rates_per_s: Mapping[str, float],
        kept: float,
        late: Collection[Metric] = (),
    ) -> None:
        """Lower the rates of a family, at every pool size, after a pool held in too few worlds of other step times.

        Args:
            member: one of its configurations.
            service: it serves.
            surviving: replicas of the pool.
            rates_per_s: routed to it, by slice.
            kept: share of that at which it would have held.
            late: what was. Tokens may not be with fewer requests that run at once, nor prompts with larger chunks:
                lower batch limits and larger chunk budgets, if there are any, keep their rates and are offered.
        """
        family, own = self._family_of[service, pool_name(member)], member.config
        whole = {
            name: self._capacities[name].rate_per_s(member, surviving, LEAST_ASKED_BEYOND * rate_per_s)
            for name, rate_per_s in rates_per_s.items()
        }
        known = self._kept_share(service, member)
        routed = math.fsum(rate / max(known * whole[name], rate) for name, rate in rates_per_s.items())
        lost = min(1.0, routed) * kept
        fewest, largest = _widest(self._families[service][family].values())
        tokens = member.role is not Role.PREFILL and not {Metric.TPOT, Metric.ITL}.isdisjoint(late)
        prompts = member.role is not Role.DECODE and Metric.TTFT in late
        running = own.max_running_requests if tokens and own.max_running_requests > fewest else 0
        batched = own.max_batched_tokens if prompts and own.max_batched_tokens < largest else MOST_BATCHED_TOKENS
        self._shares.fall_short(service, family, lost, running, batched)
        if running or batched < MOST_BATCHED_TOKENS:
            self.of_members([(service, member)])
            self._offer_others(
                member,
                service,
                lambda other: other.max_running_requests < running or other.max_batched_tokens > batched,
            )
        self._add_sizes(service)
        for column in [one for one in self.all if (one.service, one.family.name) == (service, family)]:
            for name in column.rates:
                if (column.name, name) in self._simulated:
                    self._simulated[column.name, name] *= lost
            self._set(self._corrected(column))

    def lower_together(self, member: PoolOption, service: str, kept: float) -> None:
        """Lower the rates of a configuration's family in fleets of several SKUs to a share.

        Args:
            member: the configuration.
            service: it serves.
            kept: share.
        """
        key = service, self._family_of[service, pool_name(member)]
        share = kept * self.together.get(key, 1.0)
        self.together[key] = share if share >= LEAST_KEPT else 0.0

    def share_together(self, column: Column) -> float:
        """Share of its rates that a column keeps in a fleet of several SKUs."""
        return self.together.get((column.service, column.family.name), 1.0)

    def offer_alone(self, member: PoolOption, service: str, served: Collection[str]) -> None:
        """Offer pools that serve one slice alone, after one of the same family missed a target with several.

        The program takes what several slices need of a pool for the sum of what each alone needs. That this is too
        little lowers the rates of a family with any slices in it, and says nothing of each alone.

        Args:
            member: of the pool that missed.
            service: it serves.
            served: names of its slices; nothing is offered for one.
        """
        by_slice = self._families[service][self._family_of[service, pool_name(member)]]
        for name in by_slice if len(served) > 1 else ():
            members = tuple(replace(each, serves=name) for each in by_slice[name].members)
            alone = replace(by_slice[name], members=members)
            if alone.name not in self._families[service]:
                self._add_family(service, name, alone)
        self._add_sizes(service)

    def _add_family(self, service: str, name: str, family: ConfigurationFamily) -> None:
        """Know a family that can serve a slice of a service, by its name."""
        self._families.setdefault(service, {}).setdefault(family.name, {})[name] = family
        members = {(service, pool_name(member)): member for member in family.members}
        self._member_of |= members
        self._family_of |= dict.fromkeys(members, family.name)

    def _offer_others(self, missed: PoolOption, service: str, may_hold: Callable[[ReplicaConfig], bool]) -> None:
        """Offer the other members of a family that may hold at every size; what missed has columns of its own.

        Of members that carry all that is asked by theory one was chosen, and another may hold where that one missed;
        not one that only has more places. Where the rate varies, theory errs about the traffic, not about a member.
        """
        family = self._family_of[service, pool_name(missed)]
        untried = {}
        for name, sliced in self._open_families(service, family).items():
            others = tuple(member for member in sliced.members if may_hold(member.config))
            if others:
                untried[name] = replace(sliced, members=others)
        self._untried[service, family] = untried
        for column in self.all:
            if (column.service, column.family.name, column.member) == (service, family, None):
                del self._by_name[column.name]
        self._sizes = {size for size in self._sizes if size[:2] != (service, family)}
        self._add_sizes(service)

    def _open_families(self, service: str, family: str) -> dict[str, ConfigurationFamily]:
        """By slice, the members of a family that may still be chosen."""
        return self._untried.get((service, family), self._families[service][family])

    def add_simulated(self, member: PoolOption, service: str, surviving: int, rates_per_s: Mapping[str, float]) -> None:
        """Add the unit of a pool that held in simulation: so many surviving replicas at these rates [1/s].

        Its rates are those of theory, raised in one proportion until what was simulated fills the unit. Nothing is
        concluded for other sizes: a size that simulation did not see keeps the rate of theory.
        """
        column = self._sized(service, member, surviving)
        total_per_s = math.fsum(rates_per_s.values())
        for name in rates_per_s:
            self._ask(column, member, name)
        theory = {name: self._rate(column, name).rate_per_s or total_per_s for name in rates_per_s}
        raised = max(1.0, math.fsum(rate / theory[name] for name, rate in rates_per_s.items())) * (1.0 + _ROUNDING)
        self._simulated |= {(column.name, name): raised * rate for name, rate in theory.items()}
        self._held[column.name] = HeldPool(
            service=service,
            configuration=pool_name(member),
            surviving=surviving,
            ratios=dict.fromkeys(theory, raised),
        )
        same = self._by_name.get(column.name)
        names = {**(same.rates if same else {}), **dict.fromkeys(rates_per_s)}
        self._set(replace(column, rates={name: self._rate(column, name) for name in names}))

    def given(self, service: str, family: str, surviving: int, rates_per_s: Mapping[str, float]) -> Column:
        """A pool of a family with one member that carries these rates [1/s], whatever theory says of it."""
        bare = self._family_column(service, family, surviving)
        (member,) = bare.family.members
        rates = {name: SliceRate(rate_per_s, is_exact=True) for name, rate_per_s in rates_per_s.items()}
        channel = "" if bare.is_mixed else "given"
        column = replace(bare, member=member, rates=rates, channel=channel)
        self._by_name[column.name] = column
        return column

    def just(
        self, pools: Iterable[tuple[str, PoolOption, int, Mapping[str, float]]], *, is_simulated: bool, beside: bool
    ) -> CandidateColumns:
        """Columns of some pools, which carry what is routed to them, whatever is known of their rates.

        Args:
            pools: service, configuration, surviving replicas, and by slice what is routed to them [1/s].
            is_simulated: whether they are simulated though theory says that they miss.
            beside: all others stay.
        """
        own = copy(self)
        own._by_name, own._simulated = dict(self._by_name) if beside else {}, dict(self._simulated)
        own.together = self.together if beside else {}
        for service, member, surviving, routed_per_s in pools:
            rates_per_s = {name: rate * (1.0 + _ROUNDING) for name, rate in routed_per_s.items()}
            rates = {name: SliceRate(rate_per_s, is_exact=True) for name, rate_per_s in rates_per_s.items()}
            column = replace(self._sized(service, member, surviving), rates=rates)
            own._by_name[column.name] = column
            own._simulated |= {(column.name, name): rate for name, rate in rates_per_s.items()} if is_simulated else {}
        return own

    def enlarged(self, units: Mapping[str, int], routed_per_s: Mapping[str, float]) -> Column:
        """All units of one configuration as one with a surviving replica more, which carries at least what they do.

        Args:
            units: how many by column, with true rates of what is routed to them.
            routed_per_s: to all of them, by slice [1/s].
        """
        parts = [(self._by_name[name], count) for name, count in units.items()]
        column, _ = parts[0]
        if column.member is None:
            raise ValueError(f"{column.name} has no configuration yet: refine it before it is enlarged")
        surviving = sum(count * part.surviving for part, count in parts) + 1
        larger = self._sized(column.service, column.member, surviving)
        if any(self.is_simulated(name) for name in units):
            self.add_simulated(column.member, column.service, surviving, routed_per_s)
        rates = dict(self._by_name.get(larger.name, larger).rates)
        for name in set.intersection(*(set(part.rates) for part, _ in parts)):
            together_per_s = math.fsum(count * part.rates[name].rate_per_s for part, count in parts)
            carried = SliceRate(together_per_s, all(part.rates[name].is_exact for part, _ in parts))
            rates[name] = max(carried, rates.get(name, carried), key=lambda each: each.rate_per_s)
        self._set(replace(larger, rates=rates))
        return self._by_name[larger.name]

    def is_simulated(self, name: str) -> bool:
        """True if a column has rates that held in simulation, whatever theory says of them."""
        return any(column == name for column, _ in self._simulated)

    def of_members(self, members: Iterable[tuple[str, PoolOption]]) -> list[Column]:
        """The columns of some configurations (service and member), one for every pool size of their families."""
        wanted = {(service, pool_name(member)): member for service, member in members}
        for column in [column for column in self.all if column.member is None]:
            for (service, name), member in wanted.items():
                fits = service == column.service and self._family_of[service, name] == column.family.name
                new = replace(column, member=member, rates={})
                if fits and new.name not in self._by_name:
                    self._set(replace(new, rates=self._member_rates(new)))
        return [
            column
            for column in self.all
            if column.member is not None and (column.service, pool_name(column.member)) in wanted
        ]

    def _add_sizes(self, service: str) -> None:
        """A column for every family of a service and every pool size that is worth it and has none yet."""
        for name in self._families[service]:
            by_slice = self._open_families(service, name)
            sizes: set[int] = set()
            for slice_name, family in by_slice.items():
                sure = self._shares.sure(service, name, *_widest([family]))
                kept = self._shares.expected(service, family.role) * sure
                wanted_per_s = self._largest_per_s[slice_name] / max(kept, LEAST_KEPT)
                worth = worth_sizes(family, self._capacities[slice_name], wanted_per_s)
                sizes |= {surviving for surviving in worth if surviving <= MOST_REPLICAS}
            for surviving in sorted(sizes):
                if (service, name, surviving) not in self._sizes:
                    self._sizes.add((service, name, surviving))
                    self._set(self._family_column(service, name, surviving))

    def _family_column(self, service: str, family: str, surviving: int, member: PoolOption | None = None) -> Column:
        """A column whose rates are bounds, for every slice that some member of the family serves; of a member none."""
        by_slice = self._open_families(service, family) if member is None else self._families[service][family]
        widest = max(by_slice.values(), key=lambda sliced: len(sliced.members))
        channel = f"{service} {widest.hands_on} {self._sites[widest.sku]}"
        column = Column(
            service=service,
            family=widest,
            surviving=surviving,
            limits=self._limits,
            member=member,
            rates={},
            channel="" if widest.role is Role.MIXED else channel,
        )
        return replace(column, rates={name: self._rate(column, name) for name in by_slice if member is None})

    def _kept_share(self, service: str, member: PoolOption) -> float:
        """Share of its rates by theory that simulation and the confidence asked for leave a configuration."""
        name = pool_name(member)
        family = self._family_of[service, name]
        config = member.config
        sure = self._shares.sure(service, family, config.max_running_requests, config.max_batched_tokens)
        return self._shares.of(service, member.role, family, name) * sure

    def _kept_of(self, column: Column) -> float:
        """The same of a column; of one without a member that of the best that may be chosen."""
        service, family = column.service, column.family
        if column.member is not None:
            return self._kept_share(service, column.member)
        if (service, family.name) in self._untried:
            best = self._shares.expected(service, family.role)
        else:
            best = self._shares.best_of(service, family.role, family.name)
        widest = _widest(self._open_families(service, family.name).values())
        return best * self._shares.sure(service, family.name, *widest)

    def _rate(self, column: Column, name: str) -> SliceRate:
        """Rate of a column for a slice by the last oracle asked; a bound where theory was not asked far enough."""
        kept = self._kept_of(column)
        most_per_s, theory = self._demand_per_s[name], self._theory.get((column.name, name))
        is_exact = theory is not None and (
            theory.rate_per_s < theory.asked_per_s or kept * theory.asked_per_s >= most_per_s * (1.0 - _ROUNDING)
        )
        if theory is None or not is_exact:
            key = (column.service, column.family.name)
            by_slice = self._open_families(*key) if column.member is None else self._families[key[0]][key[1]]
            rate_per_s = self._capacities[name].bound_per_s(by_slice[name], column.surviving)
        else:
            rate_per_s = theory.rate_per_s
        rate_per_s = min(kept * rate_per_s, most_per_s)
        held_per_s = self._simulated.get((column.name, name))
        if held_per_s is not None:
            return SliceRate(max(rate_per_s, held_per_s), is_exact=True)
        return SliceRate(rate_per_s, is_exact)

    def _corrected(self, column: Column) -> Column:
        """The column with its rates as they are known now."""
        return replace(column, rates={name: self._rate(column, name) for name in column.rates})

    def _asked_per_s(self, column: Column, name: str) -> float:
        """Rate by theory above which a column need not be known."""
        return self._demand_per_s[name] / max(self._kept_of(column), LEAST_KEPT)

    def _ask(self, column: Column, member: PoolOption, name: str) -> None:
        """Ask theory what a member carries of a slice in a pool of this size."""
        asked_per_s = self._asked_per_s(column, name)
        rate_per_s = self._capacities[name].rate_per_s(member, column.surviving, asked_per_s)
        self._theory[column.name, name] = _TheoryRate(rate_per_s, asked_per_s)

    def _choose_members(self, column: Column, names: Sequence[str]) -> None:
        """Find the best member for each of these slices; each becomes a column of its own.

        The column without a member goes on to stand for the slices that are still unknown.
        """
        asked = {name: self._first_asked(column, name) for name in names}
        for name, first in asked.items():
            if first is not column:
                self._choose_members(first, [name])
        names = [name for name, first in asked.items() if first is column]
        if asked and not names:
            return
        for name in names:
            family = self._open_families(column.service, column.family.name)[name]
            asked_per_s = self._asked_per_s(column, name)
            best = self._capacities[name].best(family, column.surviving, asked_per_s)
            self.dominated |= {dominated.name: dominated for dominated in best.dominated}
            if best.member is not None:
                member = replace(best.member, serves=family.members[0].serves)
                self._note_rise(column.rates.get(name), best.rate_per_s * self._kept_share(column.service, member))
                new = replace(column, member=member, rates={})
                self._theory[new.name, name] = _TheoryRate(best.rate_per_s, asked_per_s)
                known = self._by_name.get(new.name)
                rates = known.rates if known else self._member_rates(new)
                self._set(replace(new, rates={**rates, name: self._rate(new, name)}))
        kept = {name: rate for name, rate in column.rates.items() if name not in names} if names else {}
        self._set(replace(column, rates=kept))

    def _first_asked(self, column: Column, name: str) -> Column:
        """The column itself, or before any of its family is known the one that by its bound carries a whole slice.

        Rates per replica grow with the pool, so that this one's bounds those of all smaller ones.
        """
        family = self._open_families(column.service, column.family.name)[name]
        if not self._capacities[name].is_new(family):
            return column
        carry_all = [
            each
            for each in self.all
            if (each.service, each.family, each.member) == (column.service, column.family, None)
            and name in each.rates
            and each.rates[name].rate_per_s >= self._demand_per_s[name] * (1.0 - _ROUNDING)
        ]
        smallest = min(carry_all, key=lambda each: each.surviving, default=column)
        return max(smallest, column, key=lambda each: each.surviving)

    def _member_rates(self, column: Column) -> dict[str, SliceRate]:
        """Rates of a new column of a member, for the slices that it can serve at all."""
        by_slice = self._families[column.service][column.family.name]
        serves = [
            name
            for name, family in by_slice.items()
            if column.member is not None and column.member.name in {option.name for option in family.members}
        ]
        return {name: self._rate(column, name) for name in serves}

    def _tighten(self) -> None:
        """Lower the bounds of columns without a member by what has become known."""
        for column in self.all:
            if column.member is None:
                self._set(self._corrected(column))

    def _set(self, column: Column) -> None:
        """Replace the column of the same name; one that carries nothing is removed."""
        rates = {name: rate for name, rate in column.rates.items() if rate.rate_per_s > 0.0}
        known = self._by_name.get(column.name)
        if (
            known is not None
            and known.member is column.member
            and known.surviving == column.surviving
            and known.rates == rates
        ):
            return  # the program keeps the unit that it made of that object
        if known is not None:
            for name, rate in rates.items():
                self._note_rise(known.rates.get(name), rate.rate_per_s)
        if rates:
            self._by_name[column.name] = replace(column, rates=rates)
        else:
            self._by_name.pop(column.name, None)

    def _note_rise(self, before: SliceRate | None, rate_per_s: float) -> None:
        if before is not None and rate_per_s > before.rate_per_s * (1.0 + _ROUNDING):
            self.rises += 1


def _widest(families: Iterable[ConfigurationFamily]) -> tuple[int, int]:
    """Lowest batch limit and largest chunk budget [tokens] of families; of none those that nothing is known of."""
    configs = [member.config for family in families for member in family.members]
    fewest = min((config.max_running_requests for config in configs), default=0)
    return fewest, max((config.max_batched_tokens for config in configs), default=MOST_BATCHED_TOKENS)


def unit_of(column: Column, share: float, takes: Mapping[str, float], usd_per_start: float, steady: bool) -> Unit:
    """A column as the integer program sees it.

    Args:
        column: what is on or off.
        share: of its rates that it keeps.
        takes: of each resource.
        usd_per_start: cost of switching it on [USD].
        steady: on in all periods or in none.
    """
    return Unit(
        name=column.name,
        stage=column.stage,
        channel=column.channel,
        kind="" if column.is_mixed else column.kind,
        rates_per_s={name: share * rate.rate_per_s for name, rate in column.rates.items()},
        takes=takes,
        usd_per_hour=column.kv_tiers_usd_per_hour,
        usd_per_start=usd_per_start,
        steady=steady,
        marks=column.marks,
    )
