"""Whether the chosen fleet meets its targets: each deployment evaluated and simulated at the rates routed to it.

A `ScopedSlo` is a set of targets with the slices it applies to. A deployment may serve slices under several of them:
they are request classes of its workload then, and each `ScopedSlo` is verified on the latencies of its own classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from planner.core import Metric
from planner.fleet.pairing import UsedPool
from planner.fleet.types import Agreement, PlannedDeployment, Progress, TargetCheck, latency_over
from planner.search import BoundedCache, DeploymentOption
from planner.serving import Deployment, Performance, evaluate
from planner.simulator import simulate
from planner.traffic import DemandSlice
from planner.workload import LatencyDistribution, LatencyTarget, RequestClass, Slo, Workload

SIMULATED_LIFETIMES = 15.0
"""Least length of a simulation in mean request lifetimes, so that its warm-up is a small part of it. A choice."""
MAX_SIMULATED_REQUESTS = 200_000
"""Most requests simulated for the sake of `SIMULATED_LIFETIMES`; bounds the time it takes. A choice."""
Z_95 = 1.96
"""Two-sided 95 % quantile of the normal distribution: half-width of a simulated share in standard errors."""
REMEMBERED_PERFORMANCES = 64
"""Evaluations and simulations kept in memory, for plans made again with other prices. Affects speed only."""


@dataclass(frozen=True)
class ScopedSlo:
    """Targets and the slices of the traffic they apply to.

    Attributes:
        name: of the service, or of the slices where a service has several.
        slo: the targets.
        slices: names.
    """

    name: str
    slo: Slo
    slices: frozenset[str]

    def applies_to(self, planned: PlannedDeployment) -> bool:
        """Whether any request of a deployment is under these targets."""
        return bool(self.slices & planned.slices.keys())

    def covers(self, planned: PlannedDeployment) -> bool:
        """Whether all requests of a deployment are."""
        return self.slices >= planned.slices.keys()


def scoped_slos(slices: Sequence[DemandSlice]) -> tuple[ScopedSlo, ...]:
    """The targets of all slices, equal ones of a service once, in order; offline work has none."""
    groups: dict[tuple[str, Slo], list[str]] = {}
    for slice_ in slices:
        if slice_.slo is not None:
            groups.setdefault((slice_.service.name, slice_.slo), []).append(slice_.name)
    services = [service for service, _ in groups]
    return tuple(
        ScopedSlo(service if services.count(service) == 1 else " + ".join(names), slo, frozenset(names))
        for (service, slo), names in groups.items()
    )


# --- one deployment -------------------------------------------------------------------------------------------------


def routed_workload(slices: Mapping[str, DemandSlice], rates_per_s: Mapping[str, float]) -> Workload:
    """The requests of several slices of one service at these rates [1/s], as one stream.

    Arrivals are the share of the service's stream that these rates are of it (a random split). Several slices become
    one class each, with the Slo of its slice.
    """
    total_per_s = math.fsum(rates_per_s.values())
    largest = slices[max(rates_per_s, key=lambda name: rates_per_s[name])]
    if len(rates_per_s) == 1:
        whole = largest.workload
        return Workload(arrivals=whole.arrivals.split(total_per_s / whole.rate_per_s), classes=whole.classes)
    whole = largest.service.workload
    arrivals = whole.arrivals.split(min(1.0, total_per_s / whole.rate_per_s)).at_rate(total_per_s)
    classes = [
        (kind.model_copy(update={"name": class_name(slice_, kind), "slo": slice_.slo}), rate / total_per_s * kind.share)
        for name, rate in rates_per_s.items()
        for slice_ in (slices[name],)
        for kind in slice_.workload.classes
    ]
    shares = math.fsum(share for _, share in classes)
    return Workload(
        arrivals=arrivals, classes=tuple(kind.model_copy(update={"share": share / shares}) for kind, share in classes)
    )


def routed_slo(slices: Mapping[str, DemandSlice], rates_per_s: Mapping[str, float]) -> Slo:
    """The targets of the slices routed to a deployment: those of the first that has any, else its service's."""
    routed = [slices[name] for name in rates_per_s]
    return next((slice_.slo for slice_ in routed if slice_.slo is not None), routed[0].service.slo)


def class_name(slice_: DemandSlice, kind: RequestClass) -> str:
    """Name of a class of a slice among the classes of a deployment."""
    return slice_.name if len(slice_.workload.classes) == 1 else f"{slice_.name}: {kind.name}"


def verify_deployment(
    option: DeploymentOption,
    pools: Sequence[UsedPool],
    slices: Mapping[str, DemandSlice],
    seed: int,
    simulated_requests: int | None,
    progress: Progress = lambda _: None,
) -> PlannedDeployment:
    """A deployment at the rates routed to it, evaluated and simulated. Costs are left at 0.

    Args:
        option: the configurations.
        pools: their sizes and rates; a disaggregated pair takes what is routed to its prefill pool.
        slices: by name.
        seed: of the simulation.
        simulated_requests: fewest requests to simulate; None: by theory alone.
        progress: hears of the simulation.
    """
    rates_per_s = dict(pools[0].rates_per_s)
    workload = routed_workload(slices, rates_per_s)
    surviving = option.deployment(tuple(pool.surviving for pool in pools))
    predicted = _evaluated(surviving, workload)
    simulated = predicted
    if simulated_requests is not None:
        requests = requests_to_simulate(simulated_requests, predicted)
        simulated = _simulated(surviving, workload, seed, requests, progress)
    return PlannedDeployment(
        service=pools[0].service,
        option=option,
        deployment=option.deployment(tuple(pool.replicas for pool in pools)),
        surviving=surviving,
        workload=workload,
        slo=routed_slo(slices, rates_per_s),
        sustained_per_s=pools[0].rate_per_s / max(pool.capacity_share for pool in pools),
        predicted=predicted,
        simulated=simulated,
        usd_per_hour=0.0,
        pool_usd_per_hour=(0.0,) * len(pools),
        nodes=tuple(_nodes(pool) for pool in pools),
        slices=rates_per_s,
    )


_PERFORMANCES: BoundedCache[tuple[Deployment, Performance]] = BoundedCache(REMEMBERED_PERFORMANCES)


def _remembered(
    deployment: Deployment, workload: Workload, seed: int, requests: int, compute: Callable[[], Performance]
) -> Performance:
    """The performance computed for the same deployment before, or what `compute` returns; requests 0: by theory.

    Configurations hold tables that cannot be hashed, so that the key is their summary and the rest is compared.
    """
    key = (deployment.summary, workload, seed, requests)
    known = _PERFORMANCES.get(key)
    if known is None or known[0] != deployment:
        known = _PERFORMANCES.put(key, (deployment, compute()))
    return known[1]


def _evaluated(deployment: Deployment, workload: Workload) -> Performance:
    return _remembered(deployment, workload, 0, 0, lambda: evaluate(deployment, workload))


def _simulated(deployment: Deployment, workload: Workload, seed: int, requests: int, progress: Progress) -> Performance:
    def report_share(share: float) -> None:
        progress(f"simulating {requests:,} requests, {share:.0%}")

    compute = partial(simulate, deployment, workload, seed=seed, requests=requests, progress=report_share)
    return _remembered(deployment, workload, seed, requests, compute)


def requests_to_simulate(at_least: int, predicted: Performance) -> int:
    """Requests to simulate: as many as asked for, or more so that the run lasts `SIMULATED_LIFETIMES`."""
    lifetime_s = predicted.e2e.mean_s if predicted.stable else 0.0
    lasting = math.ceil(SIMULATED_LIFETIMES * lifetime_s * predicted.rate_per_s)
    return max(at_least, min(lasting, MAX_SIMULATED_REQUESTS))


def _nodes(pool: UsedPool) -> int:
    """Servers for a pool, none of whose replicas straddles two servers unless it is larger than one."""
    gpus, node_gpus = pool.option.gpus, pool.option.config.sku.node.gpus
    if gpus > node_gpus:
        return pool.replicas * math.ceil(gpus / node_gpus)
    return math.ceil(pool.replicas / (node_gpus // gpus))


# --- targets --------------------------------------------------------------------------------------------------------


def violated_metrics(planned: PlannedDeployment, slos: Sequence[ScopedSlo]) -> frozenset[Metric]:
    """Metrics whose targets are missed by theory, or by simulation beyond its 95 % sampling error.

    A joint target (`Slo.attainment`) that is missed counts as E2E.
    """
    metrics: set[Metric] = set()
    for scoped in slos:
        if scoped.applies_to(planned):
            metrics |= _violated_metrics(planned, scoped)
    return frozenset(metrics)


def _violated_metrics(planned: PlannedDeployment, scoped: ScopedSlo) -> set[Metric]:
    share = scoped.slo.attainment
    if share is not None and scoped.covers(planned):
        enough = planned.simulated.attainment(scoped.slo) >= share - _sampling_error(share, planned.simulated.requests)
        return set() if enough and planned.predicted.meets(scoped.slo) else {Metric.E2E}
    return {
        target.metric
        for target in scoped.slo.targets
        if _latency(planned, scoped, target.metric, simulated=False).quantile_s(target.percentile) > target.threshold_s
        or not _holds_in_simulation(planned, scoped, target)
    }


def _holds_in_simulation(planned: PlannedDeployment, scoped: ScopedSlo, target: LatencyTarget) -> bool:
    latency = _latency(planned, scoped, target.metric, simulated=True)
    share = _scoped_rate_per_s(planned, scoped) / math.fsum(planned.slices.values())
    requests = round(planned.simulated.requests * share)
    return latency.cdf(target.threshold_s) >= target.percentile - _sampling_error(target.percentile, requests)


def _sampling_error(share: float, requests: int) -> float:
    """Half-width of a simulated share's 95 % interval; 0 where nothing was simulated."""
    return Z_95 * math.sqrt(share * (1.0 - share) / requests) if requests else 0.0


def _scoped_rate_per_s(planned: PlannedDeployment, scoped: ScopedSlo) -> float:
    """Rate of a deployment's requests that are under these targets [1/s]."""
    return math.fsum(rate for name, rate in planned.slices.items() if name in scoped.slices)


def _latency(planned: PlannedDeployment, scoped: ScopedSlo, metric: Metric, *, simulated: bool) -> LatencyDistribution:
    """Latencies of the requests under these targets in one deployment; gaps between tokens are those of all."""
    performance = planned.simulated if simulated else planned.predicted
    if scoped.covers(planned) or metric is Metric.ITL or not performance.classes:
        return performance.distribution(metric)
    classes = [kind for kind in performance.classes if _is_of(kind.name, scoped)]
    distributions = [
        ({Metric.TTFT: kind.ttft, Metric.TPOT: kind.tpot, Metric.E2E: kind.e2e}[metric], kind.rate_per_s)
        for kind in classes
    ]
    return LatencyDistribution.mixture(distributions)


def _is_of(name: str, scoped: ScopedSlo) -> bool:
    """Whether a class of a deployment (see `class_name`) belongs to one of the slices."""
    return any(name == slice_name or name.startswith(f"{slice_name}: ") for slice_name in scoped.slices)


def target_checks(planned: Sequence[PlannedDeployment], slos: Sequence[ScopedSlo]) -> tuple[TargetCheck, ...]:
    """Every target against prediction and simulation, over all deployments with requests under it."""
    checks = []
    for scoped in slos:
        serving = [deployment for deployment in planned if scoped.applies_to(deployment)]
        for target in scoped.slo.targets if serving else ():
            predicted, simulated = (
                LatencyDistribution.mixture(
                    [
                        (
                            _latency(deployment, scoped, target.metric, simulated=by_simulation),
                            _scoped_rate_per_s(deployment, scoped),
                        )
                        for deployment in serving
                    ]
                )
                for by_simulation in (False, True)
            )
            checks.append(
                TargetCheck(
                    target=target,
                    predicted_s=predicted.quantile_s(target.percentile),
                    simulated_s=simulated.quantile_s(target.percentile),
                    simulated_attainment=simulated.cdf(target.threshold_s),
                    met=predicted.quantile_s(target.percentile) <= target.threshold_s
                    and all(_holds_in_simulation(deployment, scoped, target) for deployment in serving),
                    of=scoped.name if len(slos) > 1 else "",
                )
            )
    return tuple(checks)


def goodput_per_s(planned: Sequence[PlannedDeployment], slos: Sequence[ScopedSlo]) -> float:
    """Simulated requests that meet every threshold of theirs [1/s]; those without targets all count."""
    total_per_s = 0.0
    for deployment in planned:
        scopes = [scoped for scoped in slos if scoped.applies_to(deployment)]
        if len(scopes) == 1 and scopes[0].covers(deployment):
            total_per_s += deployment.simulated.goodput_per_s(scopes[0].slo)
        else:
            total_per_s += (
                math.fsum(
                    kind.rate_per_s * (1.0 if kind.attainment is None else kind.attainment)
                    for kind in deployment.simulated.classes
                )
                or deployment.simulated.rate_per_s
            )
    return total_per_s


def agreements(planned: Sequence[PlannedDeployment]) -> tuple[Agreement, ...]:
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
