"""Whether the chosen fleet keeps what was promised: each deployment evaluated and simulated at what is routed to it.

A *promise* is an Slo and the slices it was given to. Where a deployment serves slices of several promises they are
request classes of its workload, and each promise is judged by the latencies of its own classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from planner.core import Metric
from planner.fleet.pairing import UsedPool
from planner.fleet.slices import DemandSlice
from planner.fleet.types import Agreement, PlannedDeployment, TargetCheck, latency_over
from planner.search import Bounded, DeploymentOption
from planner.serving import Deployment, Performance, evaluate
from planner.simulator import simulate
from planner.workload import LatencyDistribution, LatencyTarget, RequestClass, Slo, Workload

SETTLED_LIFETIMES = 15.0
"""Simulated time in mean request lifetimes: long against the start, which the warm-up drops."""
MAX_SIMULATED = 200_000
Z_95 = 1.96
"""Two-sided 95 % quantile of the normal distribution: half-width of a simulated share in standard errors."""
KEPT = 64
"""Evaluations and simulations kept, so that a plan made again with another price asks nothing twice."""


@dataclass(frozen=True)
class Promise:
    """Targets and the slices of the traffic they were promised to.

    Attributes:
        name: of the service, or of the slice where a service makes several promises.
        slo: the targets.
        slices: names.
    """

    name: str
    slo: Slo
    slices: frozenset[str]


def promises_of(slices: Sequence[DemandSlice]) -> tuple[Promise, ...]:
    """Every promise once, in order; offline work was promised nothing."""
    groups: dict[tuple[str, Slo], list[str]] = {}
    for part in slices:
        if part.slo is not None:
            groups.setdefault((part.service.name, part.slo), []).append(part.name)
    services = [service for service, _ in groups]
    return tuple(
        Promise(service if services.count(service) == 1 else " + ".join(names), slo, frozenset(names))
        for (service, slo), names in groups.items()
    )


def routed_workload(slices: Mapping[str, DemandSlice], rates_per_s: Mapping[str, float]) -> Workload:
    """The requests of several slices of one service at these rates [1/s], as one stream.

    Arrivals are the share of the service's stream that these rates are of it (a random split). Several slices become
    one class each, with the Slo they were promised.
    """
    total = math.fsum(rates_per_s.values())
    largest = slices[max(rates_per_s, key=lambda name: rates_per_s[name])]
    if len(rates_per_s) == 1:
        whole = largest.workload
        return Workload(arrivals=whole.arrivals.split(total / whole.rate_per_s), classes=whole.classes)
    whole = largest.service.workload
    arrivals = whole.arrivals.split(min(1.0, total / whole.rate_per_s)).at_rate(total)
    classes = [
        (one.model_copy(update={"name": class_name(part, one), "slo": part.slo}), rate / total * one.share)
        for name, rate in rates_per_s.items()
        for part in (slices[name],)
        for one in part.workload.classes
    ]
    shares = math.fsum(share for _, share in classes)
    return Workload(
        arrivals=arrivals, classes=tuple(one.model_copy(update={"share": share / shares}) for one, share in classes)
    )


def class_name(part: DemandSlice, one: RequestClass) -> str:
    """Name of a class of a slice among the classes of a deployment."""
    return part.name if len(part.workload.classes) == 1 else f"{part.name}: {one.name}"


def judged(
    option: DeploymentOption,
    pools: Sequence[UsedPool],
    slices: Mapping[str, DemandSlice],
    seed: int,
    simulated_requests: int | None,
    say: Callable[[str], None] = lambda _: None,
) -> PlannedDeployment:
    """A deployment at the rates routed to it, evaluated and (with a number of requests) simulated.

    Costs are left at 0. A disaggregated pair takes what is routed to its prefill pool. `say` hears of the simulation.
    """
    rates = dict(pools[0].rates_per_s)
    workload = routed_workload(slices, rates)
    survivors = option.deployment(tuple(pool.rated for pool in pools))
    predicted = _evaluated(survivors, workload)
    simulated = predicted
    if simulated_requests is not None:
        simulated = _simulated(survivors, workload, seed, requests_for(simulated_requests, predicted), say)
    promised = [part.slo for name in rates if (part := slices[name]).slo is not None]
    return PlannedDeployment(
        service=pools[0].service,
        option=option,
        deployment=option.deployment(tuple(pool.replicas for pool in pools)),
        judged=survivors,
        workload=workload,
        slo=promised[0] if promised and promised[0] else slices[next(iter(rates))].service.slo,
        sustained_per_s=pools[0].rate_per_s / max(pool.capacity_share for pool in pools),
        predicted=predicted,
        simulated=simulated,
        usd_per_hour=0.0,
        pool_usd_per_hour=(0.0,) * len(pools),
        nodes=tuple(_nodes(pool) for pool in pools),
        slices=rates,
    )


_KEPT: Bounded[tuple[Deployment, Performance]] = Bounded(KEPT)


def _remembered(
    deployment: Deployment, workload: Workload, seed: int, requests: int, ask: Callable[[], Performance]
) -> Performance:
    """What was found for the same deployment before, or what `ask` finds; requests 0 stands for theory.

    Configurations hold tables that cannot be hashed, so that the key is their summary and the rest is compared.
    """
    key = (deployment.summary, workload, seed, requests)
    known = _KEPT.get(key)
    if known is None or known[0] != deployment:
        known = _KEPT.put(key, (deployment, ask()))
    return known[1]


def _evaluated(deployment: Deployment, workload: Workload) -> Performance:
    return _remembered(deployment, workload, 0, 0, lambda: evaluate(deployment, workload))


def _simulated(
    deployment: Deployment, workload: Workload, seed: int, requests: int, say: Callable[[str], None]
) -> Performance:
    def progress(share: float) -> None:
        say(f"simulating {requests:,} requests, {share:.0%}")

    found = partial(simulate, deployment, workload, seed=seed, requests=requests, progress=progress)
    return _remembered(deployment, workload, seed, requests, found)


def requests_for(least: int, predicted: Performance) -> int:
    """Requests to simulate: as asked for, and enough for the run to outlast its start by many request lifetimes."""
    lifetime_s = predicted.e2e.mean_s if predicted.stable else 0.0
    settled = math.ceil(SETTLED_LIFETIMES * lifetime_s * predicted.rate_per_s)
    return max(least, min(settled, MAX_SIMULATED))


def _nodes(pool: UsedPool) -> int:
    """Servers for a pool, none of whose replicas straddles two servers unless it is larger than one."""
    gpus, node = pool.option.gpus, pool.option.config.sku.node.gpus
    if gpus > node:
        return pool.replicas * math.ceil(gpus / node)
    return math.ceil(pool.replicas / (node // gpus))


def with_costs(planned: Iterable[PlannedDeployment], usd_by_sku: Mapping[str, float]) -> tuple[PlannedDeployment, ...]:
    """The deployments with what they cost [USD/h]: what a SKU's GPUs cost in all, shared by GPUs in use."""
    planned = tuple(planned)
    used: dict[str, int] = {}
    for one in planned:
        for pool in one.deployment.pools:
            used[pool.config.sku.id] = used.get(pool.config.sku.id, 0) + pool.gpus
    return tuple(
        replace(
            one,
            pool_usd_per_hour=(
                costs := tuple(
                    usd_by_sku.get(pool.config.sku.id, 0.0) * pool.gpus / used[pool.config.sku.id]
                    for pool in one.deployment.pools
                )
            ),
            usd_per_hour=math.fsum(costs),
        )
        for one in planned
    )


# --- promises --------------------------------------------------------------------------------------------------------


def missed(planned: PlannedDeployment, promises: Sequence[Promise]) -> frozenset[Metric]:
    """Metrics whose targets theory or simulation (beyond its own 95 % sampling error) misses; a joint promise: E2E."""
    found: set[Metric] = set()
    for promise in promises:
        if promise.slices & planned.slices.keys():
            found |= _missed(planned, promise)
    return frozenset(found)


def _missed(planned: PlannedDeployment, promise: Promise) -> set[Metric]:
    share = promise.slo.attainment
    if share is not None and promise.slices >= planned.slices.keys():
        enough = planned.simulated.attainment(promise.slo) >= share - _error(share, planned.simulated.requests)
        return set() if enough and planned.predicted.meets(promise.slo) else {Metric.E2E}
    return {
        target.metric
        for target in promise.slo.targets
        if _distribution(planned, promise, target.metric, simulated=False).quantile_s(target.percentile)
        > target.threshold_s
        or not _holds(planned, promise, target)
    }


def _holds(planned: PlannedDeployment, promise: Promise, target: LatencyTarget) -> bool:
    distribution = _distribution(planned, promise, target.metric, simulated=True)
    requests = round(planned.simulated.requests * _share(planned, promise))
    return distribution.cdf(target.threshold_s) >= target.percentile - _error(target.percentile, requests)


def _error(share: float, requests: int) -> float:
    """Half-width of a simulated share's 95 % interval; nothing where nothing was simulated."""
    return Z_95 * math.sqrt(share * (1.0 - share) / requests) if requests else 0.0


def _share(planned: PlannedDeployment, promise: Promise) -> float:
    """Share of a deployment's requests that a promise was given to."""
    total = math.fsum(planned.slices.values())
    return math.fsum(rate for name, rate in planned.slices.items() if name in promise.slices) / total


def _distribution(
    planned: PlannedDeployment, promise: Promise, metric: Metric, *, simulated: bool
) -> LatencyDistribution:
    """Latencies of a promise's requests in one deployment; gaps between tokens are those of all requests."""
    performance = planned.simulated if simulated else planned.predicted
    if promise.slices >= planned.slices.keys() or metric is Metric.ITL or not performance.classes:
        return performance.distribution(metric)
    mine = [one for one in performance.classes if _is_of(one.name, promise)]
    distributions = [
        ({Metric.TTFT: one.ttft, Metric.TPOT: one.tpot, Metric.E2E: one.e2e}[metric], one.rate_per_s) for one in mine
    ]
    return LatencyDistribution.mixture(distributions)


def _is_of(name: str, promise: Promise) -> bool:
    """Whether a class of a deployment (see `class_name`) belongs to a slice of a promise."""
    return any(name == part or name.startswith(f"{part}: ") for part in promise.slices)


def target_checks(planned: Sequence[PlannedDeployment], promises: Sequence[Promise]) -> tuple[TargetCheck, ...]:
    """Every target of every promise against prediction and simulation, over all deployments that serve it."""
    checks = []
    for promise in promises:
        serving = [one for one in planned if promise.slices & one.slices.keys()]
        for target in promise.slo.targets if serving else ():
            predicted, simulated = (
                LatencyDistribution.mixture(
                    [
                        (_distribution(one, promise, target.metric, simulated=how), _rate(one, promise))
                        for one in serving
                    ]
                )
                for how in (False, True)
            )
            checks.append(
                TargetCheck(
                    target=target,
                    predicted_s=predicted.quantile_s(target.percentile),
                    simulated_s=simulated.quantile_s(target.percentile),
                    simulated_attainment=simulated.cdf(target.threshold_s),
                    met=predicted.quantile_s(target.percentile) <= target.threshold_s
                    and all(_holds(one, promise, target) for one in serving),
                    of=promise.name if len(promises) > 1 else "",
                )
            )
    return tuple(checks)


def _rate(planned: PlannedDeployment, promise: Promise) -> float:
    return math.fsum(rate for name, rate in planned.slices.items() if name in promise.slices)


def goodput_per_s(planned: Sequence[PlannedDeployment], promises: Sequence[Promise]) -> float:
    """Simulated requests per second that meet every threshold they were promised; those promised nothing all count."""
    total = 0.0
    for one in planned:
        serving = [promise for promise in promises if promise.slices & one.slices.keys()]
        if len(serving) == 1 and serving[0].slices >= one.slices.keys():
            total += one.simulated.goodput_per_s(serving[0].slo)
        else:
            total += (
                math.fsum(
                    kind.rate_per_s * (1.0 if kind.attainment is None else kind.attainment)
                    for kind in one.simulated.classes
                )
                or one.simulated.rate_per_s
            )
    return total


def agreement(planned: Sequence[PlannedDeployment]) -> tuple[Agreement, ...]:
    """Theory against simulation on mean TTFT and TPOT."""
    pairs = [
        Agreement(
            metric,
            latency_over(planned, metric, simulated=False).mean_s,
            latency_over(planned, metric, simulated=True).mean_s,
        )
        for metric in (Metric.TTFT, Metric.TPOT)
    ]
    return tuple(pair for pair in pairs if pair.simulated_mean_s > 0.0)
