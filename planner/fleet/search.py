"""Search for the cheapest fleet that meets every target.

1. Solve the integer program with an optimistic rate for every unit (`planner.search.bounds`).
2. Replace the rates of the chosen units by those of theory; repeat from 1 until none is optimistic.
3. Of the fleets that tie with the best take the one that is simplest to run, and of those of one price the one with
   the most room (`planner.fleet.refinement`).
4. Build the deployments and evaluate them. Where they hold in too few worlds of other step times, lower the rates of
   the families that they are made of (`planner.fleet.confidence`); repeat from 1. Of a pool that serves several slices
   offer those that serve one alone (`CandidateColumns.offer_alone`), also in 5.
5. Simulate them, with steps as slow as in the last of the worlds in which they have to hold; lower the rates of every
   configuration that misses a target, by as much as its misses say, and what is expected of those not simulated yet,
   or of the families where with these misses in mind too few worlds are left; repeat from 1.
6. Of a fleet that holds, simulate those with a replica fewer; what holds against theory becomes a unit of its own;
   repeat from 1. At last add replicas on GPUs that are paid for and idle (`planner.fleet.pool_sizes`).

A rate is true by the last of three oracles asked: bound, theory, simulation. Those of steps 1 and 2 only ever fall, so
that their answer is optimal over the rates of theory of all units; with steps 4 to 6 it is optimal over these as
worlds and simulations corrected them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from planner.core import Metric, percent, significant, with_unit
from planner.fleet.columns import Column
from planner.fleet.confidence import (
    FAR_CUT,
    Judgement,
    at_deviations,
    counted_draws,
    optimistic_deviations,
    rate_factors,
    roles_to_blame,
)
from planner.fleet.corrections import MISS_GROWTH
from planner.fleet.market import on_networks
from planner.fleet.pairing import UsedPool, deployments_of, used_pools
from planner.fleet.pool_sizes import (
    LARGEST_ERROR_OF_THEORY,
    Groups,
    exchanges,
    fewest_that_hold,
    filled_allocation,
    may_hold,
    resized,
    sizes_of,
)
from planner.fleet.program import SAME_COST, FleetSearch
from planner.fleet.refinement import (
    preference,
    preferred_allocation,
    refined_allocation,
    roomiest_allocation,
    with_bound,
)
from planner.fleet.simulation import run_of
from planner.fleet.sites import lower_bound
from planner.fleet.types import PlannedDeployment
from planner.fleet.verification import (
    ScopedSlo,
    missing_over_allowed,
    simulated_long_enough,
    target_checks,
    verify_deployment,
    violated_metrics,
    with_run,
)
from planner.llm import Precision
from planner.optimizer import Allocation, Objective, SolveStatus
from planner.serving import PoolLimit, Role
from planner.supply import FleetLimits, SiteSupply

LEAST_REQUESTS_TO_OVERRULE = 5000
"""Simulated requests below which a simulation says too little to overrule theory: fifty beyond a p99. A choice."""
SHARE_KEPT_AFTER_MISS = 0.97
"""Most of the rate it missed a target at that a configuration keeps. A choice: larger wastes less and takes longer."""
CALMER = 0.1
"""Standard deviations less with which a fleet is simulated once more that holds in enough worlds and misses in that
one. A choice."""
MOST_PASSED_OVER = 2
"""Fleets looked at for one that is better than a simpler one that was taken. A choice; affects words only."""
PLACES = frozenset({PoolLimit.RUNNING_REQUESTS, PoolLimit.KV_CAPACITY})
"""Limits of a simulated pool that make requests wait for a place in it."""
MOST_OTHER_SIZES = 12
"""Sizes that miss, between what missed before and what holds, after which no more are looked at, and as many below
that. A choice that may pass over a cheaper fleet."""
MAX_ROUNDS = 30
"""Fleets simulated before the last one is shown as it stands, with what it misses. A choice that rarely matters."""


@dataclass(frozen=True)
class VerifiedFleet:
    """The cheapest fleet.

    Attributes:
        allocation: the program's last answer.
        deployments: what it became, evaluated and simulated; after `MAX_ROUNDS` some may still miss a target.
        passed_over: the best fleet by theory where a simpler one was taken, in words; else empty.
        deviations: standard deviations that its steps are slower than estimated.
        enough: GPUs by SKU that hold too, where more are paid for and serve; else empty.
    """

    allocation: Allocation
    deployments: tuple[PlannedDeployment, ...]
    passed_over: str = ""
    deviations: float = 0.0
    enough: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class NoFleet:
    """Nothing meets the targets within the limits.

    Attributes:
        allocation: the program's last answer, with its diagnosis; None where some slice has no configuration at all.
        missed: where fleets were found but none that holds, what the last of them misses, in words.
        left_out: what was not offered any more, and why; said before the diagnosis where pairs alone were asked for.
    """

    allocation: Allocation | None
    missed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def find_fleet(search: FleetSearch, simulate: bool, says_what_else: bool = False) -> VerifiedFleet | NoFleet:
    """The cheapest fleet that holds, with replicas on GPUs of it that are paid for and idle.

    Args:
        search: whose columns are refined.
        simulate: verify fleets by simulation too.
        says_what_else: also look for `VerifiedFleet.passed_over`.
    """
    found = _least_fleet(search, simulate)
    if isinstance(found, NoFleet):
        return found
    passed_over = _passed_over(search, found) if says_what_else else ""
    return _filled(search, replace(found, passed_over=passed_over), simulate)


def _least_fleet(search: FleetSearch, simulate: bool) -> VerifiedFleet | NoFleet:
    """Solve, deploy and verify; lower the rates of what misses a target and repeat, until everything holds.

    Fleets that miss by theory at the pool sizes and rates they were given are not simulated. A fleet that holds stands
    until a cheaper one holds too, or none is cheaper by the rates known.
    """
    if search.unserved():
        return NoFleet(None)
    missed: list[_Trial] = []
    simulated = 0
    while simulated < MAX_ROUNDS:
        trial = _trial(search, simulate)
        if isinstance(trial, NoFleet):
            if trial.allocation is not None or not missed:
                return trial
            break
        if trial.holds:
            return _surest(search, _with_other_sizes(search, missed, trial, simulate), simulate).fleet
        simulated += trial.fleet.deployments[0].run is not None
        trial.lower_rates(search, sum(trial.sizes == other.sizes for other in missed))
        missed.append(trial)
    return _missed(search, missed[-1].fleet)


def _surest(search: FleetSearch, held: _Trial, simulate: bool) -> _Trial:
    """The fleet most likely to hold of those of one price, GPUs and formats: this one, or one without a family of it.

    None that is less simple, or in which one replica reads or answers everything where this one has several.
    """
    if search.request.objective is not Objective.MIN_COST or not search.slos:
        return held
    sure, columns = _counted(search, held.fleet.deployments, exact=True).confidence.holds, search.columns
    usd_per_hour = held.fleet.allocation.cost_usd_per_hour * (1.0 + SAME_COST)
    of = {name for _, pools in held.groups for pool in pools for name in pool.columns}
    used = [column for column in columns.all if column.name in of]
    alike, faults, left_out = {_gpu_and_formats(column) for column in used}, preference(used), ("", "")

    def others() -> list[Column]:
        kept = (column for column in columns.all if (column.service, column.family.name) != left_out)
        return [column for column in kept if _gpu_and_formats(column) in alike]

    for family in dict.fromkeys((column.service, column.family.name) for column in used):
        left_out = family
        found = refined_allocation(search, Objective.MIN_COST, others, most_usd_per_hour=usd_per_hour)
        is_found = found.status.has_allocation and found.cost_usd_per_hour <= usd_per_hour
        if not is_found or preference(columns.chosen(found)) > faults:
            continue
        for by_simulation in (False, True) if simulate else (False,):
            trial = _verified(search, found, by_simulation)
            if trial is None or not trial.holds or _fewest_of_a_stage(trial) < min(_fewest_of_a_stage(held), 2):
                break
            other, surer = trial, _counted(search, trial.fleet.deployments, exact=True).confidence.holds
            if surer <= sure:
                break
        else:
            held, sure = other, surer
    return held


def _gpu_and_formats(column: Column) -> tuple[str, Precision]:
    return column.family.sku, column.family.members[0].config.precision


def _fewest_of_a_stage(trial: _Trial) -> int:
    """Replicas that read the prompts of a service, or write its answers, whichever are fewest."""
    able: Counter[tuple[str, Role]] = Counter()
    for pool in (pool for _, pools in trial.groups for pool in pools):
        for stage in (Role.PREFILL, Role.DECODE):
            able[pool.service, stage] += pool.replicas * (pool.option.role in (Role.MIXED, stage))
    return min(able.values(), default=0)


def _with_other_sizes(search: FleetSearch, missed: Sequence[_Trial], held: _Trial, simulate: bool) -> _Trial:
    """The cheapest fleet that holds: one that does, or one of its pools or of pools that missed, in other sizes.

    What a miss says of other pool sizes is a guess (`_Trial.lower_rates`). So every fleet that missed and costs less is
    looked at again with one pool larger, by as much as is still cheaper, also in exchange for a replica of the pool
    that it serves with; one of several deployments, which missed with some of them fuller than others, as it is. What
    is left is asked for with fewer replicas, by theory where something missed, else where it may be too careful.
    """
    if search.request.objective is not Objective.MIN_COST:
        return held
    best = _Best(search, simulate, search, held, [trial.sizes for trial in missed if len(trial.groups) == 1])
    asked = len(missed) + MOST_OTHER_SIZES
    for trial in reversed({str(trial.sizes): trial for trial in missed}.values()) if len(search.periods) == 1 else ():
        usd = best.held.fleet.allocation.cost_usd_per_hour - trial.fleet.allocation.cost_usd_per_hour
        for place, less, most in exchanges(trial.groups, usd, search.market.site_of(trial.fleet.allocation).supply):
            misses = -1 if len(trial.groups) > 1 and not less else 0
            fewest_that_hold(misses, most, partial(best.is_bettered, trial.groups, place, less, asked))
    overrules = simulate and search.request.simulated_requests >= LEAST_REQUESTS_TO_OVERRULE
    asked = len(best.known) + MOST_OTHER_SIZES
    for place in range(sum(len(pools) for _, pools in best.held.groups) if overrules or missed else 0):
        groups = best.held.groups
        sizes = [pool.surviving for _, pools in groups for pool in pools]
        least = -math.ceil(sizes[place] * (1.0 - 1.0 / LARGEST_ERROR_OF_THEORY)) - 1 if place < len(sizes) else 0
        fewest_that_hold(least, -1, partial(best.is_bettered, groups, place, {}, asked, overrules=overrules))
    for pool in best.pools:
        search.columns.add_simulated(pool.option, pool.service, pool.surviving, pool.rates_per_s)
    return best.held


@dataclass
class _Best:
    """The cheapest fleet that is known to hold.

    Attributes:
        search: that found the first.
        simulate: or by theory alone.
        at: the search whose columns it is made of.
        held: itself.
        known: pool sizes that miss.
        pools: of another fleet than the first.
    """

    search: FleetSearch
    simulate: bool
    at: FleetSearch
    held: _Trial
    known: list[Counter[tuple[str, str]]]
    pools: Sequence[UsedPool] = ()

    def is_bettered(
        self, groups: Groups, place: int, less: Mapping[int, int], most: int, more: int, *, overrules: bool = False
    ) -> bool | None:
        """True if pools of other sizes are cheaper and hold, and so are the best; None where they are not cheaper.

        Args:
            groups: pools as they were tried.
            place: of the one that gets more replicas.
            less: others that do, by place.
            most: sizes that may be known to miss; beyond, nothing is asked any more.
            more: how many replicas.
            overrules: theory does not count.
        """
        tried = resized(groups, {place: more, **less})
        pools = [pool for own in tried for pool in own]
        if len(self.known) >= most or not pools:
            return False
        of_each = ((pool.service, pool.option, pool.surviving, pool.rates_per_s) for pool in pools)
        columns = self.search.columns.just(of_each, is_simulated=overrules, beside=len(self.search.periods) > 1)
        search = replace(self.search, columns=columns)
        search.surfaces.update(self.search.surfaces)
        allocation = search.allocation(search.columns.all, Objective.MIN_COST)
        if not self._is_dearer(search, allocation):
            return None
        if not (more or less) and _routed(_wanted(search, allocation)) == _routed(groups):
            return False  # as it was tried
        sizes, before = sizes_of(pools), zip(tried, groups, self.held.fleet.deployments, strict=False)
        if any(sizes.keys() == other.keys() and sizes <= other for other in self.known) or (
            overrules and not all(may_hold(new, old, known, search.slos) for new, (_, old), known in before)
        ):
            return False
        trial = _verified(search, allocation, self.simulate)
        if trial is None or not trial.holds:
            self.known.append(sizes)
            return False
        proved = with_bound(allocation, lower_bound(self.held.fleet.allocation))
        self.held = replace(trial, fleet=replace(trial.fleet, allocation=proved))
        self.at, self.pools = search, pools
        return True

    def _is_dearer(self, search: FleetSearch, other: Allocation) -> bool:
        """True if it costs more than all pools of another search, by more than a tie where it is preferred."""
        if len(search.periods) == 1 and other.units != {column.name: (1,) for column in search.columns.all}:
            return False
        held = self.held.fleet.allocation
        is_plainer = preference(search.columns.chosen(other)) <= preference(self.at.columns.chosen(held))
        tie = 0.0 if is_plainer else search.request.search.simplicity
        return other.cost_usd_per_hour * (1.0 + tie) < held.cost_usd_per_hour * (1.0 - SAME_COST)


def _routed(groups: Groups) -> Counter[tuple[str, str, int, float]]:
    """Pools by service, configuration, size and what is routed to them [1/s], to six digits."""
    pools = (pool for _, own in groups for pool in own)
    return Counter((one.service, one.option.name, one.surviving, float(f"{one.rate_per_s:.6g}")) for one in pools)


def _filled(search: FleetSearch, fleet: VerifiedFleet, simulate: bool) -> VerifiedFleet:
    """A fleet that holds, with replicas on its idle GPUs where it still holds with them."""
    allocation = filled_allocation(search, fleet.allocation)
    if allocation is fleet.allocation:
        return fleet
    groups = _on_site(search, allocation, _wanted(search, allocation))
    deployments, violations = _verify(search, groups, None)
    if any(violations):
        return fleet
    deployments = _slower(search, deployments, fleet.deviations)
    if simulate:
        deployments = simulated_fleet(search, deployments)
        violations = [violated_metrics(planned, search.slos, by_theory=False) for planned in deployments]
    if any(violations):
        return fleet
    return replace(fleet, allocation=allocation, deployments=deployments, enough=search.gpus(fleet.allocation))


def _missed(search: FleetSearch, last: VerifiedFleet) -> NoFleet:
    """None of the fleets tried holds: what the last one misses, by theory or in its simulation."""
    lines = ["no fleet was found that holds; the last one tried misses:"]
    for check in target_checks([_simulated_whole(search, planned) for planned in last.deployments], search.slos):
        reached_s = max(check.predicted_s, check.simulated_s)
        if reached_s > check.target.threshold_s:
            reached, asked = (
                with_unit(time_s, check.target.metric) for time_s in (reached_s, check.target.threshold_s)
            )
            factor = reached_s / check.target.threshold_s
            lines.append(f"{check.target.name} {reached} > {asked}; relax that target by a factor of {factor:.3g}")
    lines += [
        f"{significant(planned.workload.rate_per_s)} requests/s of {' + '.join(planned.slices)}: it falls behind"
        for planned in last.deployments
        if not (planned.predicted.stable and planned.simulated.stable)
    ]
    if len(lines) == 1:
        sure = percent(search.request.confidence)
        lines = [f"no fleet was found that holds with {sure}: the last one tried does as estimated, not on slow steps"]
    return NoFleet(last.allocation.model_copy(update={"status": SolveStatus.INFEASIBLE}), tuple(lines))


def _simulated_whole(search: FleetSearch, planned: PlannedDeployment) -> PlannedDeployment:
    """A deployment that missed a target in the busiest part of a recording, with all of that replayed."""
    run = planned.run
    if run is None or run.part_of is None:
        return planned
    whole = run_of(planned.surviving, planned.workload, search.request.simulated_requests, planned.predicted)
    return with_run(planned, whole, search.request.seed, search.progress)


@dataclass(frozen=True)
class _Trial:
    """The best fleet by the rates known, verified.

    Attributes:
        fleet: as it is.
        groups: the pools that serve together.
        violations: of each of these, the metrics whose targets it misses.
        judgement: in how many worlds of other step times they hold; None where none were asked for.
    """

    fleet: VerifiedFleet
    groups: Groups
    violations: Sequence[frozenset[Metric]]
    judgement: Judgement | None

    @property
    def holds(self) -> bool:
        """True if no target is missed, in as many worlds as were asked for."""
        return not (any(self.violations) or _falls_short(self.judgement))

    @property
    def sizes(self) -> Counter[tuple[str, str]]:
        """Surviving replicas of every configuration."""
        return sizes_of(pool for _, pools in self.groups for pool in pools)

    def lower_rates(self, search: FleetSearch, again: int = 0) -> None:
        """Lower the rates of what missed a target, by what that says of the rate at which it may hold.

        First tokens wait for prompts more than for a place to decode: of a pair that misses TTFT alone in simulation
        the prefill pool is lowered, or where requests waited for a place the decode pool: if prompts were late too, the
        next fleet shows it. By theory it is the pool by whose steps the latency goes most. Where links between the
        pools cannot carry the KV caches, only the pool with fewer links is lowered.
        """
        if _falls_short(self.judgement):
            self._lower_unsure(search, 1 + again)
            return
        for (_, pools), deployment, metrics in zip(self.groups, self.fleet.deployments, self.violations, strict=True):
            missed = missing_over_allowed(deployment, search.slos)
            blamed = _to_blame(pools, deployment, metrics, search.slos)
            for pool in (pool for pool in blamed if pool.may_cause(metrics)):
                caused = [missed[metric] for metric in metrics & missed.keys() if pool.may_cause({metric})]
                kept = min(max([*caused, 1.0]) ** (-1.0 / MISS_GROWTH), SHARE_KEPT_AFTER_MISS)
                simulated = deployment.run is not None
                search.columns.lower(pool.option, pool.service, pool.capacity_share, kept, simulated=simulated)
                search.columns.offer_alone(pool.option, pool.service, pool.rates_per_s)

    def _lower_unsure(self, search: FleetSearch, times: int) -> None:
        """Lower the rates of the families that hold in too few worlds; in fleets of several SKUs where these do so.

        What is off of one SKU is not of another, so that several hold at once in fewer worlds than each: nothing that
        a fleet of one of them has to bear. They lose so many times as much where the same fleet did so before.
        """
        assert self.judgement is not None
        shortfalls, jointly = self.judgement.shortfalls, self.judgement.jointly
        skus = [{pool.option.config.sku.id for pool in pools} for _, pools in self.groups]
        own = [short for short in shortfalls if len(skus[short.place]) == 1]
        together = len(set().union(*skus)) > 1 and (jointly or not own)
        for short in shortfalls if together else own:
            for pool in (pool for pool in self.groups[short.place][1] if together or pool.option.role in short.kept_by):
                if together:
                    kept = short.kept**times
                    search.columns.lower_together(pool.option, pool.service, max(kept, FAR_CUT) * bool(kept))
                    continue
                kept = short.kept_by[pool.option.role]
                columns, late = search.columns, short.metrics
                columns.fall_short(pool.option, pool.service, pool.surviving, pool.rates_per_s, kept, late)
                search.columns.offer_alone(pool.option, pool.service, pool.rates_per_s)


def _falls_short(judgement: Judgement | None) -> bool:
    return judgement is not None and bool(judgement.shortfalls)


def _to_blame(
    pools: Sequence[UsedPool], planned: PlannedDeployment, metrics: frozenset[Metric], slos: Sequence[ScopedSlo]
) -> Sequence[UsedPool]:
    """The pools of a deployment that may have caused misses of these metrics."""
    if planned.run is not None and metrics == {Metric.TTFT}:
        waited_for = {pool.role for pool in planned.simulated.pools if pool.limit in PLACES}
        to_blame = {Role.DECODE} & waited_for or {Role.MIXED, Role.PREFILL}
        return [pool for pool in pools if pool.option.role in to_blame]
    if planned.run is not None or len(pools) < 2:
        return pools
    if short := _short_of_links(pools, planned):
        return short
    roles = roles_to_blame(planned, slos, metrics)
    return [pool for pool in pools if pool.option.role in roles]


def _short_of_links(pools: Sequence[UsedPool], planned: PlannedDeployment) -> list[UsedPool]:
    """Of a pair whose links fall behind by theory while its pools do not, the pool with fewer; none otherwise.

    A pool's own rate knows its own links, not how slow those of the other pool are.
    """
    predicted = planned.predicted
    keep_up = all(pool.utilisation < 1.0 for pool in predicted.pools)
    if predicted.stable or len(pools) < 2 or predicted.link_utilisation < 1.0 or not keep_up:
        return []
    fewest = min(pool.surviving for pool in pools)
    return [pool for pool in pools if pool.surviving == fewest]


def _trial(search: FleetSearch, simulate: bool) -> _Trial | NoFleet:
    """Solve, deploy and verify once."""
    while True:
        best = preferred_allocation(search, refined_allocation(search, search.request.objective))
        allocation = roomiest_allocation(search, best)
        if not allocation.status.has_allocation:
            diagnosed = None if search.unserved() else diagnosed_allocation(search, simulate)
            return NoFleet(diagnosed, left_out=search.pairs_left_out)
        trial = _verified(search, allocation, simulate)
        if trial is not None:
            return trial if trial.fleet.deployments else NoFleet(allocation)


def _verified(search: FleetSearch, allocation: Allocation, simulate: bool) -> _Trial | None:
    """A fleet deployed and verified; None where pairs of it are not offered any more, for want of a network."""
    wanted = _wanted(search, allocation)
    groups = _on_site(search, allocation, wanted)
    deployments, violations = _verify(search, groups, None)
    too_slow = _too_slow_networks(search, wanted, groups, deployments, violations)
    if too_slow:
        search.without_pairs(allocation, too_slow)
        return None
    judgement = None
    names = [name for _, pools in groups for pool in pools for name in pool.columns]
    if deployments and not any(violations) and not any(map(search.columns.is_simulated, names)):
        judgement = counted_worlds(search, deployments)
    if any(violations) or not deployments or _falls_short(judgement):
        slow = SlowFleet(deployments, optimistic_deviations(search.request.confidence), violations, judgement)
    else:
        slow = with_slow_steps(search, deployments, simulate, judgement)
    fleet = VerifiedFleet(allocation, slow.deployments, deviations=slow.deviations)
    return _Trial(fleet, groups, slow.violations, slow.judgement)


@dataclass(frozen=True)
class SlowFleet:
    """A fleet with steps as slow as in the last of the worlds in which it has to hold.

    Attributes:
        deployments: as they are then.
        deviations: standard deviations that all steps are slower than estimated.
        violations: of each deployment, the metrics whose targets it misses in simulation.
        judgement: in how many worlds they hold; None where no more were asked for than half of them.
    """

    deployments: tuple[PlannedDeployment, ...]
    deviations: float
    violations: Sequence[frozenset[Metric]]
    judgement: Judgement | None = None


def with_slow_steps(
    search: FleetSearch, deployments: Sequence[PlannedDeployment], simulate: bool, judgement: Judgement | None
) -> SlowFleet:
    """Deployments in the last of the worlds in which they have to hold.

    A fleet that misses there and with that in mind still holds in enough worlds is simulated in a calmer one.

    Args:
        search: whose confidence and targets count.
        deployments: evaluated with steps `optimistic_deviations` slower than estimated.
        simulate: or by theory alone; those that hold in too few worlds are not simulated.
        judgement: by theory in how many they hold; None where simulation is known to be kinder.
    """
    least = optimistic_deviations(search.request.confidence)
    worst = least if judgement is None else max(least, judgement.deviations)
    slow, deviations = _bearable(search, deployments, worst)
    found = SlowFleet(slow, deviations, [frozenset() for _ in slow], judgement)
    while simulate and not _falls_short(judgement):
        slow = simulated_fleet(search, slow)
        judgement = counted_worlds(search, slow)
        violations = [violated_metrics(planned, search.slos, by_theory=False) for planned in slow]
        found = SlowFleet(slow, deviations, violations, judgement)
        if judgement is None or not any(found.violations) or deviations - CALMER < least:
            break
        slow, deviations = _bearable(search, deployments, deviations - CALMER)
    return found


def _bearable(
    search: FleetSearch, deployments: Sequence[PlannedDeployment], deviations: float
) -> tuple[tuple[PlannedDeployment, ...], float]:
    """Deployments with steps at most so many standard deviations slower, as few less as let them hold by theory."""
    least = optimistic_deviations(search.request.confidence)
    while True:
        slow = _slower(search, deployments, deviations)
        if deviations - CALMER < least or not any(violated_metrics(planned, search.slos) for planned in slow):
            return slow, deviations
        deviations -= CALMER


def _slower(
    search: FleetSearch, deployments: Sequence[PlannedDeployment], deviations: float
) -> tuple[PlannedDeployment, ...]:
    """Deployments by theory, with steps so many standard deviations slower than estimated."""
    return tuple(at_deviations(planned, deviations, search.request.measured_steps) for planned in deployments)


def simulated_fleet(search: FleetSearch, deployments: Sequence[PlannedDeployment]) -> tuple[PlannedDeployment, ...]:
    """Deployments simulated with steps as slow as they are, as long as their targets ask."""
    requests, seed = search.request.simulated_requests, search.request.seed
    return tuple(simulated_long_enough(one, search.slos, seed, requests, search.progress) for one in deployments)


def counted_worlds(search: FleetSearch, deployments: Sequence[PlannedDeployment]) -> Judgement | None:
    """In how many worlds deployments hold, with what their simulations saw and theory did not.

    None where no more were asked for than half of them, in which a deployment holds that does as estimated; several
    hold together in fewer.
    """
    if not search.slos or (len(deployments) < 2 and optimistic_deviations(search.request.confidence) <= 0.0):
        return None
    return _counted(search, deployments)


def _counted(search: FleetSearch, deployments: Sequence[PlannedDeployment], *, exact: bool = False) -> Judgement:
    """In how many worlds deployments hold, with what their simulations saw; `exact` as in `counted_draws`."""
    factors = rate_factors(deployments, search.slos)
    return counted_draws(deployments, search.slos, search.request, factors, exact=exact, surfaces=search.surfaces)


def _passed_over(search: FleetSearch, chosen: VerifiedFleet) -> str:
    """GPUs of a fleet that is better and holds by theory, in as many worlds as asked for, and what it costs or serves.

    Empty where there is none, or none of `MOST_PASSED_OVER`.
    """
    for _ in range(MOST_PASSED_OVER):
        best = refined_allocation(search, search.request.objective)
        words = _better(search, best, chosen.allocation)
        trial = _verified(search, best, False) if words else None
        if not words or (trial is not None and trial.holds):
            return words
        if trial is not None:
            trial.lower_rates(search)
    return ""


def _better(search: FleetSearch, best: Allocation, chosen: Allocation) -> str:
    """GPUs of a fleet and what it costs or serves, where that is better than another."""
    fleet = " + ".join(f"{count:,} x {sku}" for sku, count in search.gpus(best).items())
    usd = f"for {best.cost_usd_per_hour:.2f} USD/hour"
    if search.request.objective is Objective.MIN_COST:
        is_dearer = chosen.cost_usd_per_hour > best.cost_usd_per_hour * (1.0 + SAME_COST)
        return f"{fleet} {usd}" if is_dearer else ""
    is_less = (chosen.objective or 0.0) < (best.objective or 0.0) * (1.0 - SAME_COST)
    return f"{fleet}, {significant(best.rate_per_s)} requests/s {usd}" if is_less else ""


def _wanted(search: FleetSearch, allocation: Allocation) -> Groups:
    """The pools of an allocation that serve together, on the networks of reference servers.

    At the peak; of services that wait for another period then, when most of their replicas are on.
    """
    columns = search.chosen(allocation)
    pools = used_pools(columns, allocation, search.peak)
    waiting = dict.fromkeys(column.service for column in columns) if len(search.periods) > 1 else {}
    for service in waiting.keys() - {pool.service for pool in pools}:
        own = [column for column in columns if column.service == service]
        on = [sum(allocation.units[column.name][t] for column in own) for t in range(len(search.periods))]
        pools += used_pools(own, allocation, on.index(max(on)))
    return deployments_of(pools)


def _on_site(search: FleetSearch, allocation: Allocation, groups: Groups) -> Groups:
    """The same pools on the networks of the site where they are bought."""
    networks = search.market.site_of(allocation).networks
    return [(on_networks(option, pools, networks), pools) for option, pools in groups]


def verified_groups(
    search: FleetSearch, allocation: Allocation, groups: Groups, requests: int | None
) -> tuple[PlannedDeployment, ...]:
    """Pools that serve together where an allocation is bought, evaluated and, with a number of requests, simulated."""
    return _verify(search, _on_site(search, allocation, groups), requests)[0]


def _too_slow_networks(
    search: FleetSearch,
    wanted: Groups,
    groups: Groups,
    deployments: Sequence[PlannedDeployment],
    violations: Sequence[frozenset[Metric]],
) -> set[tuple[str, str]]:
    """Services and SKUs of pairs that miss a target with the network of their site, not with the reference server's.

    Or whose links cannot carry the KV caches there, though those of the reference server can.
    """
    found: set[tuple[str, str]] = set()
    for (option, pools), (slower, _), planned, metrics in zip(wanted, groups, deployments, violations, strict=True):
        if slower is option or not metrics:
            continue
        (fast,), missed = _verify(search, [(option, pools)], None)
        if not any(missed) or fast.predicted.link_utilisation < 1.0 <= planned.predicted.link_utilisation:
            changed = (own for own, card in zip(slower.pools, option.pools, strict=True) if own is not card)
            found.update((planned.service, own.config.sku.id) for own in changed)
    return found


def _verify(
    search: FleetSearch, groups: Groups, requests: int | None
) -> tuple[tuple[PlannedDeployment, ...], list[frozenset[Metric]]]:
    """The deployments, and the metrics whose targets each of them misses; of simulated units simulation decides."""
    seed = search.request.seed
    deployments = tuple(
        verify_deployment(option, pools, search.slices, seed, requests, search.progress, search.slos)
        for option, pools in groups
    )
    return deployments, [
        violated_metrics(
            deployment,
            search.slos,
            by_theory=not any(search.columns.is_simulated(name) for pool in pools for name in pool.columns),
        )
        for deployment, (_, pools) in zip(deployments, groups, strict=True)
    ]


def diagnosed_allocation(search: FleetSearch, simulate: bool) -> Allocation:
    """Why nothing fits, and what would, by true rates: those of the cheapest fleet and of the most that can be had.

    A fleet is looked for that holds without any limit. Where the same limits stand in its way, the
    changes are those that its configurations need, which were simulated (`simulate`), or counted in draws by theory.
    """
    loosened = replace(
        search,
        request=search.request.model_copy(update={"limits": FleetLimits()}),
        market=replace(search.market, sites=tuple(map(_without_limits, search.market.sites))),
    )
    exists = refined_allocation(loosened, Objective.MIN_COST).status.has_allocation
    by_theory = _what_conflicts(search, lambda: search.columns.all)
    fleet = _least_fleet(loosened, simulate) if exists else None
    if not isinstance(fleet, VerifiedFleet):
        return by_theory
    of_fleet = partial(search.columns.of_members, search.columns.members(fleet.allocation))
    verified = _what_conflicts(search, of_fleet)
    if by_theory.diagnosis is None or verified.diagnosis is None:
        return by_theory
    return verified if verified.diagnosis.conflict == by_theory.diagnosis.conflict else by_theory


def _what_conflicts(search: FleetSearch, columns: Callable[[], list[Column]]) -> Allocation:
    """The program's answer over columns with true rates, among them those that carry the most within the limits."""
    refined_allocation(search, Objective.MAX_RATE, columns)
    return search.allocation([column for column in columns() if column.is_exact], search.request.objective)


def _without_limits(site: SiteSupply) -> SiteSupply:
    resources = tuple(
        resource.model_copy(
            update={
                "at_most": None,
                "at_least": 0.0,
                "purchases": tuple(purchase.model_copy(update={"at_most": None}) for purchase in resource.purchases),
            }
        )
        for resource in site.supply.resources
    )
    return replace(site, supply=replace(site.supply, resources=resources))
