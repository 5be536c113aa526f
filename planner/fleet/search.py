"""Search for the cheapest fleet that meets every target.

1. Solve the integer program with an optimistic rate for every unit (`planner.search.bounds`).
2. Replace the rates of the chosen units by their true sustainable rates; repeat from 1 until none is optimistic.
3. Build the deployments, evaluate and simulate them; lower the rates of every configuration that misses a target, by as
   much as its misses say, and what is expected of those not simulated yet; repeat from 1.
4. Of a fleet that holds, simulate those with a replica fewer (`planner.fleet.smaller_fleets`); what holds against
   theory becomes a unit of its own; repeat from 1.
5. Add replicas on GPUs that are paid for and idle (`planner.fleet.filling`).

The rates of steps 1 and 2 only ever fall, so their answer is optimal over the rates of theory of all units; with steps
3 and 4 it is optimal over these as simulation corrected them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from planner.core import Metric, significant, with_unit
from planner.fleet.columns import Column
from planner.fleet.filling import SAME_COST, filled_allocation
from planner.fleet.networks import on_networks
from planner.fleet.pairing import UsedPool, deployments_of, used_pools
from planner.fleet.preferences import (
    PLAINNESS,
    SHARE_OF_A_GPU,
    Best,
    is_plain,
    most_preferred,
    of_one_family,
    plainer_choices,
    plainest,
    with_fewest_kinds,
)
from planner.fleet.program import RELATIVE_GAP, FleetSearch
from planner.fleet.refinement import COARSE_GAP, refined_allocation, tie_of, with_bound
from planner.fleet.simulation import run_of
from planner.fleet.sites import lower_bound
from planner.fleet.smaller_fleets import Groups, Questions, smaller_pools_that_hold
from planner.fleet.types import PlannedDeployment
from planner.fleet.verification import (
    missing_over_allowed,
    target_checks,
    verify_deployment,
    violated_metrics,
    with_run,
)
from planner.optimizer import Allocation, Objective, Resource, SolveStatus
from planner.search import DeploymentOption
from planner.serving import PoolLimit, Role
from planner.supply import FleetLimits, SiteSupply

LEAST_REQUESTS_TO_OVERRULE = 5000
"""Simulated requests below which a simulation says too little to overrule theory: fifty beyond a p99. A choice."""
SHARE_KEPT_AFTER_MISS = 0.97
"""Most of the rate it missed a target at that a configuration keeps. A choice: larger wastes less and takes longer."""
MISS_GROWTH = 10.0
"""Power of the rate with which requests that miss a target grow, for the rate at which no more would than may. A
choice: 8 to 12 in replays of recordings on pools of 8 to 11 replicas, more where the rate is steady."""
LEAST_MISSED = 0.1
"""Misses over those allowed below which it is not concluded how much more a pool would carry. A choice."""
NEAR_MISS = 2.0
"""Misses by theory over those allowed up to which simulation decides. A choice: 7 % of the rate by `MISS_GROWTH`, and
theory was too careful by up to 12 %."""
PLACES = frozenset({PoolLimit.RUNNING_REQUESTS, PoolLimit.KV_CAPACITY})
"""What a simulated pool is short of when requests waited for a place in it."""
MAX_ROUNDS = 30
"""Fleets verified before the last one is shown as it stands, with what it misses. A choice that rarely matters."""


@dataclass(frozen=True)
class VerifiedFleet:
    """The cheapest fleet.

    Attributes:
        allocation: the program's last answer.
        deployments: what it became, evaluated and simulated; after `MAX_ROUNDS` some may still miss a target.
        passed_over: cost or rate of the best fleet where a simpler one was taken, in words; else empty.
    """

    allocation: Allocation
    deployments: tuple[PlannedDeployment, ...]
    passed_over: str


@dataclass(frozen=True)
class NoFleet:
    """Nothing meets the targets within the limits.

    Attributes:
        allocation: the program's last answer, with its diagnosis; None where some slice has no configuration at all.
        missed: where fleets were found but none that holds, what the last of them misses, in words.
        left_out: what was not offered any more, and why; said before the diagnosis.
    """

    allocation: Allocation | None
    missed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def find_fleet(search: FleetSearch, simulate: bool) -> VerifiedFleet | NoFleet:
    """The cheapest fleet that holds, with replicas on GPUs of it that are paid for and idle."""
    found = _least_fleet(search, simulate)
    return _filled(search, found, simulate) if isinstance(found, VerifiedFleet) else found


def _least_fleet(search: FleetSearch, simulate: bool) -> VerifiedFleet | NoFleet:
    """Solve, deploy and verify; lower the rates of what misses a target and repeat, until everything holds.

    What misses by theory at the pool sizes and rates it was given is not simulated, unless it misses by little. A fleet
    that holds stands until a cheaper one holds too, or none is cheaper by the rates known.
    """
    if search.unserved():
        return NoFleet(None)
    held: VerifiedFleet | None = None
    outcome: VerifiedFleet | NoFleet = NoFleet(None)
    left = Questions(search.request.simulated_requests)
    for _ in range(MAX_ROUNDS):
        trial = _trial(search, simulate, held)
        if isinstance(trial, NoFleet):
            if held is not None:
                break
            return (
                _missed(search, outcome) if trial.allocation is None and isinstance(outcome, VerifiedFleet) else trial
            )
        if trial is None:
            break
        outcome = trial.fleet
        if any(trial.violations):
            trial.lower_rates(search)
            continue
        held = _cheaper(held, trial.fleet)
        if not simulate or not (_witness_smaller(search, trial, left) or trial.raise_expectations(search)):
            break
    if held is not None:
        return held
    return _missed(search, outcome) if isinstance(outcome, VerifiedFleet) else outcome


def _filled(search: FleetSearch, fleet: VerifiedFleet, simulate: bool) -> VerifiedFleet:
    """A fleet that holds, with replicas on its idle GPUs where it still holds with them."""
    allocation = filled_allocation(search, fleet.allocation)
    if allocation is fleet.allocation:
        return fleet
    groups = _on_site(search, allocation, _wanted(search, allocation))
    deployments, violations = _verify(search, groups, search.request.simulated_requests if simulate else None)
    return fleet if any(violations) else replace(fleet, allocation=allocation, deployments=deployments)


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
    """

    fleet: VerifiedFleet
    groups: Groups
    violations: Sequence[frozenset[Metric]]

    def lower_rates(self, search: FleetSearch) -> None:
        """Lower the rates of what missed a target, by what that says of the rate at which it may hold.

        First tokens wait for prompts more than for a place to decode: of a pair that misses TTFT alone the prefill pool
        is lowered, by theory from the second time on the decode pool too. Where requests waited for a place in its
        simulation only the decode pool is: if prompts were late too, the next fleet shows it. Where links between the
        pools cannot carry the KV caches, only the pool with fewer links is lowered.
        """
        for (_, pools), deployment, metrics in zip(self.groups, self.fleet.deployments, self.violations, strict=True):
            missed = missing_over_allowed(deployment, search.slos)
            for pool in (pool for pool in _to_blame(pools, deployment, metrics) if pool.may_cause(metrics)):
                caused = [missed[metric] for metric in metrics & missed.keys() if pool.may_cause({metric})]
                kept = min(_share_that_holds(max([*caused, 1.0])), SHARE_KEPT_AFTER_MISS)
                is_doubtful = pool.option.role is Role.DECODE and metrics == {Metric.TTFT} and deployment.run is None
                is_full = pool.option.role in _short_of_places(deployment)
                search.columns.lower(
                    pool.option,
                    pool.service,
                    pool.capacity_share,
                    kept,
                    is_doubtful=is_doubtful,
                    is_full=is_full,
                    missed_at=(pool.surviving, pool.rates_per_s),
                )

    def raise_expectations(self, search: FleetSearch) -> bool:
        """Expect more of what was not simulated where what was held with room; whether that changed anything."""
        if search.request.objective is not Objective.MIN_COST:
            return False
        raised = []
        for (_, pools), deployment in zip(self.groups, self.fleet.deployments, strict=True):
            missed = missing_over_allowed(deployment, search.slos)
            for pool in pools:
                caused = [ratio for metric, ratio in missed.items() if pool.may_cause({metric})]
                share = pool.capacity_share * _share_that_holds(max(caused, default=1.0))
                raised.append(search.columns.held(pool.option, pool.service, share))
        return any(raised)


def _to_blame(pools: Sequence[UsedPool], planned: PlannedDeployment, metrics: frozenset[Metric]) -> Sequence[UsedPool]:
    """The pools of a deployment that may be why it missed these metrics."""
    if planned.run is not None and metrics == {Metric.TTFT}:
        to_blame = {Role.DECODE} & _short_of_places(planned) or {Role.MIXED, Role.PREFILL}
        return [pool for pool in pools if pool.option.role in to_blame]
    return _short_of_links(pools, planned) or pools


def _short_of_places(planned: PlannedDeployment) -> set[Role]:
    """Roles of the pools in which requests waited for a place in a simulation; without one none."""
    return {pool.role for pool in planned.simulated.pools if planned.run is not None and pool.limit in PLACES}


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


def _share_that_holds(missed_over_allowed: float) -> float:
    """Of the rate at which so many miss a target for each that may, the share at which no more would than may."""
    return math.exp(-math.log(max(missed_over_allowed, LEAST_MISSED)) / MISS_GROWTH)


def _trial(search: FleetSearch, simulate: bool, held: VerifiedFleet | None) -> _Trial | NoFleet | None:
    """Solve, deploy and verify once; None where the best fleet is not cheaper than one that holds."""
    while True:
        cheapest = refined_allocation(search, search.request.objective)
        allocation = _with_room(search, cheapest) or simplest_allocation(search, cheapest)
        if not allocation.status.has_allocation:
            diagnosed = None if search.unserved() else diagnosed_allocation(search, simulate)
            return NoFleet(diagnosed, left_out=search.pairs_left_out)
        if held is not None and not _costs_less(allocation, held.allocation):
            return None
        wanted = _wanted(search, allocation)
        groups = _on_site(search, allocation, wanted)
        deployments, violations = _verify(search, groups, None)
        too_slow = _too_slow_networks(search, wanted, groups, deployments, violations)
        if not too_slow:
            break
        search.without_pairs(allocation, too_slow)
    if simulate and not any(violations):
        deployments, violations = _verify(search, groups, search.request.simulated_requests)
    elif simulate and _may_hold(search, deployments):
        deployments, violations = _overruled(search, groups)
    if not deployments:
        return NoFleet(allocation)
    passed_over = _passed_over(search.request.objective, cheapest, allocation)
    return _Trial(VerifiedFleet(allocation, deployments, passed_over), groups, violations)


def _passed_over(objective: Objective, best: Allocation, chosen: Allocation) -> str:
    """What the best fleet costs or serves, where one that is simpler to run was taken."""
    if objective is Objective.MIN_COST:
        is_dearer = chosen.cost_usd_per_hour > best.cost_usd_per_hour * (1.0 + SAME_COST)
        return f"{best.cost_usd_per_hour:.2f} USD/hour" if is_dearer else ""
    is_less = (chosen.objective or 0.0) < (best.objective or 0.0) * (1.0 - SAME_COST)
    return f"{significant(best.rate_per_s)} requests/s for {best.cost_usd_per_hour:.2f} USD/hour" if is_less else ""


def _with_room(search: FleetSearch, cheapest: Allocation) -> Allocation | None:
    """A fleet that costs no more than the cheapest and has room by theory, after others missed; None: no such."""
    cost = cheapest.objective
    if search.request.objective is not Objective.MIN_COST or cost is None:
        return None
    with search.columns.carefully() as worth:
        if not worth:
            return None
        most = cost * (1.0 + SAME_COST)
        found = refined_allocation(search, Objective.MIN_COST, most_usd_per_hour=most)
        if found.objective is None or found.objective > most:
            return None
        found = simplest_allocation(search, found)
    return with_bound(found, cost * (1.0 - (cheapest.gap or 0.0))) if found.cost_usd_per_hour <= most else None


def _may_overrule(search: FleetSearch) -> bool:
    """Whether what simulation finds may count against theory where that is too careful."""
    enough = search.request.simulated_requests >= LEAST_REQUESTS_TO_OVERRULE
    return enough and search.request.objective is Objective.MIN_COST


def _may_hold(search: FleetSearch, deployments: Sequence[PlannedDeployment]) -> bool:
    """Whether a fleet that misses by theory misses by so little that a simulation may find that it holds."""
    near = [max(missing_over_allowed(planned, search.slos).values(), default=0.0) for planned in deployments]
    return _may_overrule(search) and max(near, default=math.inf) <= NEAR_MISS


def _overruled(search: FleetSearch, groups: Groups) -> tuple[tuple[PlannedDeployment, ...], list[frozenset[Metric]]]:
    """`_verify` where simulation decides against theory: pools of what holds become units that carry what they did."""
    deployments, _ = _verify(search, groups, search.request.simulated_requests)
    violations = [violated_metrics(planned, search.slos, by_theory=False) for planned in deployments]
    if not any(violations):
        for pool in (pool for _, pools in groups for pool in pools):
            search.columns.witness(pool.option, pool.service, pool.surviving, pool.rates_per_s)
    return deployments, violations


def _wanted(search: FleetSearch, allocation: Allocation) -> Groups:
    """The pools of an allocation that serve together, on the networks of reference servers."""
    return deployments_of(used_pools(search.chosen(allocation), allocation, search.peak))


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


def _costs_less(one: Allocation, other: Allocation) -> bool:
    return one.cost_usd_per_hour < other.cost_usd_per_hour * (1.0 - SAME_COST)


def _cheaper(first: VerifiedFleet | None, second: VerifiedFleet) -> VerifiedFleet:
    """The cheaper of two fleets that hold, the second where they cost the same."""
    return first if first is not None and _costs_less(first.allocation, second.allocation) else second


def _witness_smaller(search: FleetSearch, trial: _Trial, left: Questions) -> bool:
    """Whether some smaller fleet holds in simulation; its pools are units of the program from now on."""
    if not _may_overrule(search):
        return False

    def verified(option: DeploymentOption, pools: tuple[UsedPool, ...], requests: int) -> PlannedDeployment:
        seed = search.request.seed
        return verify_deployment(option, pools, search.slices, seed, requests, search.progress, search.slos)

    held = smaller_pools_that_hold(trial.groups, trial.fleet.deployments, search.slos, verified, left)
    for pool in held:
        search.columns.witness(pool.option, pool.service, pool.surviving, pool.rates_per_s)
    return bool(held)


def _verify(
    search: FleetSearch, groups: Groups, requests: int | None
) -> tuple[tuple[PlannedDeployment, ...], list[frozenset[Metric]]]:
    """The deployments, and the metrics whose targets each of them misses; of witnessed units simulation decides."""
    seed = search.request.seed
    deployments = tuple(
        verify_deployment(option, pools, search.slices, seed, requests, search.progress, search.slos)
        for option, pools in groups
    )
    witnessed = [
        any(search.columns.is_witnessed(name) for pool in pools for name in pool.columns) for _, pools in groups
    ]
    return deployments, [
        violated_metrics(deployment, search.slos, by_theory=not seen)
        for deployment, seen in zip(deployments, witnessed, strict=True)
    ]


def simplest_allocation(search: FleetSearch, cheapest: Allocation) -> Allocation:
    """Of fleets that cost little more than the cheapest (`SearchSpace.simplicity`) the one that is preferred.

    Fleets with strays or both modes count only where the others cost clearly more (`planner.fleet.preferences`).
    Predictions are not so exact that such differences count. In this order a fleet is preferred whose GPUs were all
    measured, that has one SKU, and that is mixed: two mixed replicas survive the loss of one, a prefill and a decode
    replica do not. Then kinds of pools are left out one by one, each time the one without which the rest costs least.
    A fleet that is all of that within a tie of the cheapest is looked for before any other.
    """
    objective, columns = search.request.objective, search.columns
    if cheapest.objective is None:
        return cheapest
    if objective is not Objective.MIN_COST:
        return _simplest_of_most(search, cheapest)
    simplicity, lasting, rises = search.request.search.simplicity, cheapest, columns.rises

    def least() -> float:
        """What no fleet of any columns costs less than [USD/h]; nothing is known once a rate rose."""
        return lower_bound(cheapest) if columns.rises == rises else 0.0

    best_of_few = _best_within(search, excess_of_few(search, cheapest), cheapest, COARSE_GAP, least)
    chosen = of_one_family(columns, cheapest, best_of_few) if simplicity > 0.0 else None
    if chosen is None:
        if simplicity > 0.0:
            finest_gap = COARSE_GAP if columns.are_shared else RELATIVE_GAP
            within = _best_within(search, PLAINNESS, cheapest, finest_gap, least)
            lasting = plainest(columns, cheapest, within, simplicity)
        best = _best_within(search, simplicity, lasting, COARSE_GAP, least, like=lasting)
        best_of_few = _best_within(search, excess_of_few(search, lasting), lasting, COARSE_GAP, least, like=lasting)
        chosen = most_preferred(columns, lasting, best, best_of_few)
    chosen = with_fewest_kinds(columns, chosen, best_of_few)
    if chosen is not lasting:
        of_chosen = partial(columns.of_members, columns.members(chosen))
        chosen = refined_allocation(search, objective, of_chosen, at_least_usd_per_hour=least())
    if chosen.objective is None:
        chosen = lasting
    if chosen is cheapest or chosen.objective is None:
        return cheapest
    proved = with_bound(chosen, cheapest.objective * (1.0 - (cheapest.gap or 0.0)))
    return proved.model_copy(update={"status": cheapest.status}) if cheapest.status.is_cut_short else proved


def _simplest_of_most(search: FleetSearch, most: Allocation) -> Allocation:
    """Of fleets that serve little less than the most, or as much per dollar, one that is simpler to run.

    A tie is as wide as of costs (`SearchSpace.simplicity`), and what may be lost for being plain is `PLAINNESS`.
    """
    columns, simplicity, value = search.columns, search.request.search.simplicity, most.objective or 0.0
    if simplicity == 0.0:
        return most
    excess = simplicity if is_plain(columns, most) else max(PLAINNESS, simplicity)
    for choices in plainer_choices(columns, most):
        found = [refined_allocation(search, search.request.objective, of, finest_gap=COARSE_GAP) for of in choices]
        best = max(found, key=lambda one: one.objective or 0.0, default=most)
        if found and (best.objective or 0.0) * (1.0 + excess) >= value and is_plain(columns, best):
            return best
    return most


def _best_within(
    search: FleetSearch,
    excess: float,
    of: Allocation,
    finest_gap: float,
    at_least_usd_per_hour: Callable[[], float],
    like: Allocation | None = None,
) -> Best:
    """The cheapest fleet of some columns if it is dearer by no more than a share, and as plain as another one is."""
    objective, columns = search.request.objective, search.columns
    most = (of.objective or 0.0) * (1.0 + excess + SAME_COST)

    def cheapest(allowed: Callable[[], list[Column]], below: float) -> Allocation | None:
        enough = min(most, below * (1.0 - (tie_of(search) if columns.are_shared else SAME_COST)))
        found = refined_allocation(
            search,
            objective,
            allowed,
            finest_gap=finest_gap,
            most_usd_per_hour=enough,
            at_least_usd_per_hour=at_least_usd_per_hour(),
        )
        return None if found.objective is None or found.objective > enough else found

    def plain(allowed: Callable[[], list[Column]], below: float) -> Allocation | None:
        def too(others: Callable[[], list[Column]], below_others: float) -> Allocation | None:
            return cheapest(partial(_in_both, allowed, others), min(below, below_others))

        found = cheapest(allowed, below)
        found = None if found is None else plainest(columns, found, too, search.request.search.simplicity)
        return found if found is not None and is_plain(columns, found) else None

    return plain if like is not None and is_plain(columns, like) else cheapest


def _in_both(some: Callable[[], list[Column]], others: Callable[[], list[Column]]) -> list[Column]:
    names = {column.name for column in others()}
    return [column for column in some() if column.name in names]


def excess_of_few(search: FleetSearch, of: Allocation) -> float:
    """Share of its cost up to which a fleet that is simpler to run may be dearer: a tie, or `SHARE_OF_A_GPU`."""
    simplicity, usd_per_gpu_hour = search.request.search.simplicity, search.market.site_of(of).supply.cheapest
    if simplicity == 0.0 or not of.objective:
        return simplicity
    dearest = max(usd_per_gpu_hour[column.family.sku] for column in search.columns.chosen(of))
    return max(simplicity, SHARE_OF_A_GPU * dearest / of.objective)


def diagnosed_allocation(search: FleetSearch, simulate: bool) -> Allocation:
    """Why nothing fits, and what would, by true rates: those of the cheapest fleet and of the most that can be had.

    With `simulate` a fleet is looked for that holds without any limit. Where the same limits stand in its way, the
    changes are those that its configurations need, which were simulated.
    """
    loosened = replace(
        search,
        request=search.request.model_copy(update={"limits": FleetLimits()}),
        market=replace(search.market, sites=tuple(_without_limits_at(site) for site in search.market.sites)),
    )
    exists = refined_allocation(loosened, Objective.MIN_COST).status.has_allocation
    by_theory = _what_conflicts(search, lambda: search.columns.all)
    fleet = _least_fleet(loosened, simulate) if exists and simulate else None
    if not isinstance(fleet, VerifiedFleet):
        return by_theory
    of_fleet = partial(search.columns.of_members, search.columns.members(fleet.allocation))
    verified = _what_conflicts(search, of_fleet)
    if by_theory.diagnosis is None or verified.diagnosis is None:
        return by_theory
    return verified if verified.diagnosis.conflict == by_theory.diagnosis.conflict else by_theory


def _what_conflicts(search: FleetSearch, columns: Callable[[], list[Column]]) -> Allocation:
    """What the program says of columns with true rates, among them those that carry the most within the limits."""
    refined_allocation(search, Objective.MAX_RATE, columns)
    return search.allocation([column for column in columns() if column.is_exact], search.request.objective)


def _without_limits_at(site: SiteSupply) -> SiteSupply:
    resources = tuple(_without_limits(resource) for resource in site.supply.resources)
    return replace(site, supply=replace(site.supply, resources=resources))


def _without_limits(resource: Resource) -> Resource:
    purchases = tuple(purchase.model_copy(update={"at_most": None}) for purchase in resource.purchases)
    return resource.model_copy(update={"at_most": None, "at_least": 0.0, "purchases": purchases})
