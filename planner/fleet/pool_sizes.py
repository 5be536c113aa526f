"""Pool sizes of a fleet that holds: smaller where simulation allows it, larger where the GPUs are paid for.

Theory that is too careful makes a fleet too large, and nothing in a fleet that holds shows it. So each pool in turn
loses a replica; its traffic stays, or where several deployments serve the same slices, is spread over the rest. A
smaller fleet that holds is made smaller still until it misses.

Where GPUs come in blocks larger than a fleet needs, or are one's own, a replica that costs nothing lowers the load of
every other one: whoever pays for sixteen GPUs of which fifteen suffice runs sixteen. The program does not say so, since
fleets of both sizes cost the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.fleet.pairing import UsedPool, shared_rates, used_pools
from planner.fleet.program import SAME_COST, FleetSearch
from planner.fleet.types import PlannedDeployment, pool_name
from planner.fleet.verification import ScopedSlo, open_targets, simulated_share, violated_metrics
from planner.optimizer import Allocation, Objective
from planner.search import DeploymentOption
from planner.serving import MOST_STABLE_SHARE
from planner.supply import with_all_owned

Groups = Sequence[tuple[DeploymentOption, tuple[UsedPool, ...]]]
"""Pools that serve together, with their configurations."""
Simulate = Callable[[DeploymentOption, tuple[UsedPool, ...], int], PlannedDeployment]
"""Pools simulated with a number of requests."""

LARGEST_ERROR_OF_THEORY = 1.25
"""Load, in what a pool sustains by theory, up to which simulation is asked. A choice: of 63 plans with a smaller
neighbour theory was too careful by up to 12 %. What falls behind by theory (`MOST_STABLE_SHARE`) is not asked: a run
may end before that shows."""
TAIL_GROWTH = 3.0
"""Power of the load per replica with which the misses grow at least: a fleet whose misses would then be too many is not
asked. A choice: near the largest rate the tail of a wait grows faster."""
PILOT_SHARE = 0.3
"""Requests of a first, short run over those of a plan's simulation: what misses clearly is not simulated longer."""
BUDGET_RUNS = 6.0
"""Runs as long as a plan's simulation that may be made to find smaller fleets; of a recording, replays. A choice."""


@dataclass
class Questions:
    """How much may still be simulated to find smaller fleets.

    Attributes:
        requests: of a plan's simulation.
        spent: runs of that length so far, where a recording is replayed of its length.
    """

    requests: int
    spent: float = 0.0

    @property
    def may_ask(self) -> bool:
        """True if anything is left."""
        return self.spent < BUDGET_RUNS


@dataclass(frozen=True)
class _Held:
    """A fleet that holds: its pools, what was simulated of them, and whether others are as sure."""

    groups: Groups
    deployments: Sequence[PlannedDeployment]
    slos: Sequence[ScopedSlo]
    is_sure: Callable[[Sequence[PlannedDeployment]], bool]


def smaller_pools_that_hold(
    groups: Groups,
    deployments: Sequence[PlannedDeployment],
    slos: Sequence[ScopedSlo],
    simulate: Simulate,
    questions: Questions,
    is_sure: Callable[[Sequence[PlannedDeployment]], bool],
) -> list[UsedPool]:
    """The pools of a fleet with fewer replicas that holds, as far as they are not those of this one; none: no such.

    The first pool that can do without a replica loses as many as it can: one, two, four, ... until the fleet misses,
    then halfway between what held and what missed.

    Args:
        groups: pools of a fleet that holds.
        deployments: the same, simulated.
        slos: targets.
        simulate: pools at their rates.
        questions: how much may be simulated; counted on.
        is_sure: asked of deployments that hold in simulation: whether they do in as many worlds as were asked for.
    """
    fleet = _Held(groups, deployments, slos, is_sure)
    for place, (_, pools) in enumerate(groups):
        for index in range(len(pools)):
            best: list[UsedPool] = []
            held, missed, fewer = 0, math.inf, 1
            while held < fewer < missed:
                changed = _without(groups, place, index, fewer)
                if changed and _holds(fleet, changed, simulate, questions):
                    held, best = fewer, [pool for pools in changed.values() for pool in pools]
                else:
                    missed = fewer
                fewer = 2 * held if math.isinf(missed) else (held + int(missed)) // 2
            if best:
                return best
    return []


def _without(groups: Groups, place: int, index: int, fewer: int) -> dict[int, tuple[UsedPool, ...]]:
    """The deployments that change, by place, when a pool has fewer replicas; empty: it has no more than that.

    Deployments of one slice share its traffic in proportion to what they sustain; one without replicas is dropped.
    """
    pools = groups[place][1]
    pool = pools[index]
    if pool.surviving < fewer:
        return {}
    kept = (pool.surviving - fewer) / pool.surviving
    smaller = replace(pool, replicas=pool.replicas - fewer, surviving=pool.surviving - fewer)
    changed = {place: (*pools[:index], smaller, *pools[index + 1 :])}
    alike = [
        number
        for number, (_, others) in enumerate(groups)
        if (others[0].service, set(others[0].rates_per_s)) == (pool.service, set(pools[0].rates_per_s))
    ]
    if len(alike) == 1 or len(pool.rates_per_s) > 1:
        return changed if kept else {}
    sustained = {
        number: groups[number][1][0].rate_per_s / max(each.capacity_share for each in groups[number][1])
        for number in alike
    }
    sustained[place] *= kept
    rates_per_s = shared_rates([groups[number][1][0].rate_per_s for number in alike], list(sustained.values()))
    spread = {}
    for number, rate_per_s in zip(alike, rates_per_s, strict=True):
        if rate_per_s > 0.0:
            before = changed.get(number, groups[number][1])
            spread[number] = tuple(
                each.portion(rate_per_s / before[0].rate_per_s, each.replicas, each.surviving) for each in before
            )
    return spread


def _holds(fleet: _Held, changed: dict[int, tuple[UsedPool, ...]], simulate: Simulate, questions: Questions) -> bool:
    """True if the deployments that change hold in simulation; not asked where theory is far from it."""
    if not all(_may_hold(fleet, place, pools) for place, pools in changed.items()):
        return False
    simulated = []
    for place, pools in changed.items():
        option, known = fleet.groups[place][0], fleet.deployments[place]
        is_replay = known.run is not None and known.run.recording is not None
        whole = known.simulated.requests if is_replay else questions.requests
        pilot = max(1, round(PILOT_SHARE * questions.requests))
        for requests in (questions.requests,) if is_replay else (pilot, questions.requests):
            if not questions.may_ask:
                return False
            planned = simulate(option, pools, requests)
            questions.spent += planned.simulated.requests / whole
            is_decided = requests == questions.requests or not open_targets(planned, fleet.slos)
            if is_decided and violated_metrics(planned, fleet.slos, by_theory=False):
                return False
        simulated.append(planned)
    return fleet.is_sure(simulated)


def _may_hold(fleet: _Held, place: int, pools: tuple[UsedPool, ...]) -> bool:
    """True if theory is near enough to the load of these pools, and few enough requests missed before."""
    known = fleet.deployments[place]
    for pool, before, seen in zip(pools, fleet.groups[place][1], known.predicted.pools, strict=True):
        growth = pool.rate_per_s / before.rate_per_s * before.surviving / max(pool.surviving, 1)
        if growth > 1.0 and before.capacity_share * growth > LARGEST_ERROR_OF_THEORY:
            return False
        if growth * seen.utilisation > MOST_STABLE_SHARE:
            return False
        for scoped in (scoped for scoped in fleet.slos if scoped.applies_to(known)):
            for target in scoped.slo.targets:
                missing = 1.0 - simulated_share(known, scoped, target).value
                if pool.may_cause({target.metric}) and missing * growth**TAIL_GROWTH > 1.0 - target.percentile:
                    return False
    return True


# --- idle GPUs ------------------------------------------------------------------------------------------------------


def filled_allocation(search: FleetSearch, allocation: Allocation) -> Allocation:
    """The same purchases with replicas added to the busiest pools as long as idle GPUs and all limits allow it.

    GPUs of one's own are paid for whether a fleet takes them or not (`planner.supply.with_all_owned`).

    What a larger pool carries is what it carried before: no rate is asked of theory, and how busy it is follows from
    its replicas. Fleets of several periods stay as they are: what idles in one of them is switched off or was bought
    for another one.

    Args:
        search: that found the fleet.
        allocation: the cheapest fleet, or one that is preferred to it.
    """
    if search.request.objective is not Objective.MIN_COST or len(search.periods) > 1:
        return allocation
    filled = allocation
    pools = used_pools(search.columns.chosen(allocation), allocation, 0)
    needed = {_key(pool): pool.capacity_share * pool.surviving for pool in pools}
    while (larger := _with_a_replica_more(search, filled, needed)) is not None:
        filled = larger
    kept = {"gap": allocation.gap, "status": allocation.status}
    return allocation if filled is allocation else filled.model_copy(update=kept)


def _key(pool: UsedPool) -> tuple[str, str, str]:
    """Identity of a pool of a fleet, whatever its size."""
    return pool.service, pool_name(pool.option), pool.channel


def _with_a_replica_more(
    search: FleetSearch, allocation: Allocation, needed: Mapping[tuple[str, str, str], float]
) -> Allocation | None:
    """The fleet with one of its pools larger for the same money, the busiest that can be; None where none can be.

    `needed` is how many replicas each would keep busy.
    """
    columns = search.columns.chosen(allocation)
    there = replace(search, market=replace(search.market, sites=(search.market.site_of(allocation),)))
    supply = search.market.site_of(allocation).supply
    whole = with_all_owned(allocation, supply)
    idle = {sku: math.fsum(held for (held,) in bought.values()) for sku, bought in whole.bought.items()}
    for column in search.chosen(allocation):
        for sku, gpus in column.gpus.items():
            idle[sku] -= allocation.units[column.name][0] * gpus
    busiest = sorted(used_pools(columns, allocation, 0), key=lambda pool: -needed[_key(pool)] / pool.surviving)
    for pool in busiest:
        config = pool.option.config
        if round(idle[config.sku.id]) < config.parallelism.gpus:
            continue
        units = {name: allocation.units[name][0] for name in pool.columns}
        larger = search.columns.enlarged(units, pool.rates_per_s)
        rest = [column for column in columns if column.name not in units]
        found = there.allocation([*rest, larger], Objective.MIN_COST)
        most_usd_per_hour = whole.cost_usd_per_hour * (1.0 + SAME_COST)
        costs_more = found.objective is None or with_all_owned(found, supply).cost_usd_per_hour > most_usd_per_hour
        if not costs_more and larger.name in found.units:
            return found.model_copy(update={"program": allocation.program})
    return None
