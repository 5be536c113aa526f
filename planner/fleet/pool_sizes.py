"""Pool sizes beside those that were tried: between what missed and what holds, and with GPUs that are paid for.

What is concluded from a fleet that misses is a guess: one with a replica more may hold, or one that gives a prefill
replica for a decode replica. Theory that is too careful makes a fleet too large, and nothing in a fleet that holds
shows it: so each of its pools in turn loses replicas. Which sizes are asked about is said here; whether a fleet of them
holds is for `planner.fleet.search`.

Where GPUs come in blocks larger than a fleet needs, or are one's own, a replica that costs nothing lowers the load of
every other one: whoever pays for sixteen GPUs of which fifteen suffice runs sixteen. The program does not say so, since
fleets of both sizes cost the same.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from planner.fleet.pairing import UsedPool, shared_rates, used_pools
from planner.fleet.program import SAME_COST, FleetSearch
from planner.fleet.types import PlannedDeployment, pool_name
from planner.fleet.verification import ScopedSlo, simulated_share
from planner.optimizer import Allocation, Objective
from planner.search import DeploymentOption
from planner.serving import MOST_STABLE_SHARE
from planner.supply import Supply, with_all_owned

Groups = Sequence[tuple[DeploymentOption, tuple[UsedPool, ...]]]
"""Pools that serve together, with their configurations."""

LARGEST_ERROR_OF_THEORY = 1.25
"""Load, in what a pool sustains by theory, up to which simulation is asked. A choice: of 63 plans with a smaller
neighbour theory was too careful by up to 12 %. What falls behind by theory (`MOST_STABLE_SHARE`) is not asked: a run
may end before that shows."""
TAIL_GROWTH = 3.0
"""Power of the load per replica with which the misses grow at least: a fleet whose misses would then be too many is not
asked. A choice: near the largest rate the tail of a wait grows faster."""


def fewest_that_hold(least: int, more: int, holds: Callable[[int], bool | None]) -> None:
    """Ask for the fewest replicas that hold, from a number of them down.

    Args:
        least: a number that misses.
        more: a number above it.
        holds: asked whether a number does; None: it is not to be had, but fewer may be.
    """
    top = None
    while more > least:
        verdict = holds(more)
        if verdict is None:
            more -= 1
            continue
        if verdict:
            top = more
        elif top is None:
            return
        else:
            least = more
        more = (least + top) // 2


def may_hold(
    pools: Sequence[UsedPool], before: Sequence[UsedPool], known: PlannedDeployment, slos: Sequence[ScopedSlo]
) -> bool:
    """True if theory is near enough to the load of pools of other sizes, and few enough requests missed before.

    Args:
        pools: of the other sizes; none: the others do without them.
        before: as they held.
        known: the same, simulated.
        slos: targets.
    """
    for pool, old, seen in zip(pools, before, known.predicted.pools, strict=False):
        growth = pool.rate_per_s / old.rate_per_s * old.surviving / pool.surviving
        if growth > 1.0 and old.capacity_share * growth > LARGEST_ERROR_OF_THEORY:
            return False
        if growth * seen.utilisation > MOST_STABLE_SHARE:
            return False
        for scoped in (scoped for scoped in slos if scoped.applies_to(known)):
            for target in scoped.slo.targets:
                missing = 1.0 - simulated_share(known, scoped, target).value
                if pool.may_cause({target.metric}) and missing * growth**TAIL_GROWTH > 1.0 - target.percentile:
                    return False
    return True


# --- sizes that were not tried --------------------------------------------------------------------------------------


def sizes_of(pools: Iterable[UsedPool]) -> Counter[tuple[str, str]]:
    """Surviving replicas by service and configuration."""
    return sum((Counter({(pool.service, pool_name(pool.option)): pool.surviving}) for pool in pools), Counter())


def exchanges(groups: Groups, usd: float, supply: Supply) -> Iterator[tuple[int, Mapping[int, int], int]]:
    """Pools that may grow, what others give up for it, and how far they may for so much more, if prices were linear.

    Nothing is given up, or a replica of the partner.

    Args:
        groups: pools that serve together.
        usd: what the fleet may cost more [USD/h].
        supply: with the cost of a GPU of each SKU.

    Returns:
        The place of the pool among all; replicas more of others, by place, below 0; the most that it may have more.
    """
    pools = [(index, pool, pool.option.config) for index, (_, own) in enumerate(groups) for pool in own]
    each = [(config.parallelism.gpus + config.encoders) * supply.cheapest[config.sku.id] for *_, config in pools]
    for place, (of, *_) in enumerate(pools):
        yield place, {}, int(usd / each[place])
        for other, (its, pool, _) in enumerate(pools):
            if its == of and other != place and pool.surviving > 1:
                yield place, {other: -1}, int((usd + each[other]) / each[place])


def resized(groups: Groups, more: Mapping[int, int]) -> list[tuple[UsedPool, ...]]:
    """The pools of every deployment of a fleet with more surviving replicas or fewer; none where one has none left.

    Deployments of the same slices share their traffic in proportion to what they sustain.

    Args:
        groups: pools that serve together.
        more: surviving replicas more, by place among all pools.
    """
    places = itertools.count()
    sized = [
        [replace(pool, surviving=max(pool.surviving + more.get(next(places), 0), 0)) for pool in pools]
        for _, pools in groups
    ]
    routed = [pools[0].rate_per_s for _, pools in groups]
    left = [
        min(new.surviving / old.surviving / old.capacity_share for new, old in zip(own, pools, strict=True))
        for own, (_, pools) in zip(sized, groups, strict=True)
    ]
    shares = [1.0 if share else 0.0 for share in left]
    if len({(pools[0].service, frozenset(pools[0].rates_per_s)) for _, pools in groups}) == 1 and any(left):
        sustained = [rate_per_s * share for rate_per_s, share in zip(routed, left, strict=True)]
        shares = [after / before for after, before in zip(shared_rates(routed, sustained), routed, strict=True)]
    return [
        tuple(pool.portion(share, pool.replicas, pool.surviving) for pool in own) if share else ()
        for share, own in zip(shares, sized, strict=True)
    ]


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
        if round(idle[config.sku.id]) < config.parallelism.gpus + config.encoders:
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
