"""How far one pool is from its targets at a rate, by those that concern its role.

A mixed pool is judged by all targets, of the whole workload and of its classes; a prefill pool by those on TTFT, with
a KV transfer to a replica like its own without a wait for links; a decode pool by those on TPOT and ITL, and by those
on TTFT with its own part of a first token alone: the wait for a place and a step. Of targets on E2E each must be within
with its own part alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from planner.core import Metric, rebuilt
from planner.engine import Order
from planner.queueing import sum_of_independent
from planner.search.types import Demand
from planner.serving import (
    ClassPerformance,
    Deployment,
    Performance,
    Pool,
    PoolUnderLoad,
    Role,
    busy_windows,
    decoding_only,
    evaluate,
    log_excess,
    piecewise_transfers,
    pool_limit_per_s,
    pool_under_load,
    prompt_and_transfer,
    steady_pools_around,
)
from planner.workload import LatencyDistribution, LatencyTarget, Slo, Workload

BUSY_TIMES = 3.0
"""Busy windows are looked at first that have this many times the requests that may miss a target. A choice: fewer are
busier, but must nearly all miss it."""
MOST_PREEMPTED = 0.01
"""Most preemptions of a request in a configuration that is planned with. A choice: headroom where KV memory binds, for
theory knows the work of preemptions and not the waits of those preempted."""
LEAST_LOG_EXCESS = -30.0
"""Logarithm of latency over threshold where there is nothing to miss."""
LEAST_LATENCY_S, LEAST_SHARE = 1e-12, 1e-9
"""A latency [s] and a share of 0 on a logarithmic scale."""


class SloMargin(NamedTuple):
    """How a pool stands to its targets.

    Attributes:
        log_excess: of the worst target, log(latency / threshold), or of a joint Slo log(missing / allowed share); at
            most 0 when all hold, infinite when unstable.
        worst: its metric, where one target decides.
        running: mean number running on a replica.
    """

    log_excess: float
    worst: Metric | None
    running: float


def pool_slo_margin(pool: Pool, demand: Demand, rate_per_s: float) -> SloMargin:
    """How a pool stands to its targets at a rate.

    Args:
        pool: the pool.
        demand: lengths, kind of arrivals and targets.
        rate_per_s: requests that reach the deployment [1/s].

    Returns:
        The worst target and by how much it is missed, log(latency / threshold) [-].

    Raises:
        InputError: a request does not fit.
    """
    arrivals = demand.workload.open_arrivals.at_rate(rate_per_s)
    workload = Workload(arrivals=arrivals, classes=demand.workload.classes)
    if pool.role is Role.MIXED and not _own_queue_says_all(pool, demand):
        return _margin_of_all(evaluate(Deployment(pools=(pool,)), workload), demand)
    if arrivals.drift is not None:
        missed = _busy_margin(pool, demand.slo, workload)
        if missed is not None:
            return missed
    return _margin(pool, demand.slo, pool_under_load(pool, workload), workload)


def slo_margin_between_nodes(pool: Pool, demand: Demand, rate_per_s: float) -> SloMargin:
    """`pool_slo_margin` at a steady rate, between the two loads next to it at which any drift evaluates the pool.

    log(latency / threshold) is interpolated in sqrt(1 - load), in which it is nearly straight: 39 of 45 rates found
    were within 2 % of those of the queue itself, two at low loads far off (docs/explanation/search.md). Shares of
    requests within targets are not as smooth and not interpolated.

    Args:
        pool: the pool.
        demand: lengths, kind of arrivals and targets.
        rate_per_s: steady requests that reach the deployment [1/s].

    Returns:
        The worst target and by how much it is missed, log(latency / threshold) [-].

    Raises:
        InputError: a request does not fit.
    """
    workload = demand.workload.at_rate(rate_per_s)
    around = steady_pools_around(pool, workload) if _own_queue_says_all(pool, demand) else None
    if around is None:
        return pool_slo_margin(pool, demand, rate_per_s)
    limit = pool_limit_per_s(pool, workload)
    low, high = (loaded.workload.rate_per_s for loaded in around)
    at_low, at_high, here = (math.sqrt(1.0 - rate / limit) for rate in (low, high, rate_per_s))
    share = (at_low - here) / (at_low - at_high)
    below, above = (_margin(pool, demand.slo, loaded, loaded.workload) for loaded in around)
    if math.isinf(below.log_excess) or math.isinf(above.log_excess):  # nothing lies between
        return pool_slo_margin(pool, demand, rate_per_s)
    return SloMargin(
        below.log_excess + share * (above.log_excess - below.log_excess),
        above.worst,
        below.running + share * (above.running - below.running),
    )


def _busy_margin(pool: Pool, slo: Slo, workload: Workload) -> SloMargin | None:
    """By how much targets are missed at least in the busiest windows of a rate that varies; None where they may hold.

    Of a share s of the requests at most a share (1 - p) / s may miss a target at percentile p of all.
    """
    strictest = max([target.percentile for target in slo.targets]) if slo.attainment is None else slo.attainment
    loaded, share = busy_windows(pool, workload, min(BUSY_TIMES * (1.0 - strictest), 1.0))
    if share <= 0.0:
        return None

    required = slo_of_share(slo, share)
    if required is None:
        return None
    margin = _margin(pool, required, loaded, loaded.workload)
    return margin if margin.log_excess > 0.0 else None


def slo_of_share(slo: Slo, share: float) -> Slo | None:
    """Targets that a share of the requests must meet even if all others meet theirs.

    Args:
        slo: of all requests.
        share: in (0, 1].

    Returns:
        Targets at lower percentiles; None where all of that share may miss them.

    Raises:
        Nothing.
    """

    def within(of_all: float) -> float:
        return 1.0 - (1.0 - of_all) / share

    targets = tuple(
        target.model_copy(update={"percentile": within(target.percentile)})
        for target in slo.targets
        if within(target.percentile) > 0.0
    )
    attainment = None if slo.attainment is None else within(slo.attainment)
    if not targets or (attainment is not None and attainment <= 0.0):
        return None
    return Slo(targets=targets, attainment=attainment)


def _margin(pool: Pool, slo: Slo, loaded: PoolUnderLoad, workload: Workload) -> SloMargin:
    """How a pool under a workload stands to the targets that concern its role, and to preemptions."""
    queue, metric = loaded.queue, None
    if not queue.stable:
        return SloMargin(math.inf, metric, queue.mean_running)
    distributions = {Metric.TTFT: queue.ttft, Metric.TPOT: queue.tpot, Metric.E2E: queue.e2e, Metric.ITL: queue.itl}
    if pool.role is Role.PREFILL:
        distributions = _of_prompts(pool, loaded, workload)
    elif pool.role is Role.DECODE:
        distributions = _of_decodes(loaded, workload)
    worst = _worst(slo, distributions, queue.mean_running)
    preempted = math.log(max(loaded.preempted, LEAST_SHARE) / MOST_PREEMPTED)
    return SloMargin(preempted, None, queue.mean_running) if preempted > max(worst.log_excess, 0.0) else worst


def _of_prompts(pool: Pool, loaded: PoolUnderLoad, workload: Workload) -> dict[Metric, LatencyDistribution]:
    """With what a first token from the decode pool takes beyond the prompt, whatever that pool is: the transfer."""
    request = LatencyDistribution.constant(pool.config.costs.transfer_request_s)
    ttft = sum_of_independent(loaded.queue.ttft, request)
    if bool((workload.lengths.outputs > 1).any()):
        lengths, share = decoding_only(workload.lengths)
        split, receiver = pool.config.parallelism, pool.config
        if pool.encoders or split.pcp > 1:  # decode pools have neither encoders nor prompts to share out
            ranks = split.model_copy(update={"dp": split.shards, "pcp": 1})
            receiver = rebuilt(pool.config, encoders=0.0, parallelism=ranks)
        both = Deployment.disaggregated(pool.config, receiver)
        transfers = piecewise_transfers(both, lengths, loaded.prefix_hits)
        ready = sum_of_independent(prompt_and_transfer(loaded.queue, transfers, lengths), request)
        ttft = _of_those_that_decode(ready, share, ttft)
    return {Metric.TTFT: ttft, Metric.E2E: ttft}


def _of_decodes(loaded: PoolUnderLoad, workload: Workload) -> dict[Metric, LatencyDistribution]:
    """Of all requests, of which those with one output token do not come here."""
    queue, share = loaded.queue, loaded.rate_per_s / workload.rate_per_s
    none = LatencyDistribution.constant(0.0)
    first = _of_those_that_decode(sum_of_independent(queue.ttft, queue.itl), share, none)
    tpot = _of_those_that_decode(queue.tpot, share, none)
    e2e = _of_those_that_decode(queue.e2e, share, none)
    return {Metric.TTFT: first, Metric.TPOT: tpot, Metric.ITL: queue.itl, Metric.E2E: e2e}


def _of_those_that_decode(
    latency: LatencyDistribution, share: float, others: LatencyDistribution
) -> LatencyDistribution:
    """A latency of the share of requests that decode, among `others` of those that end with their prompt."""
    return LatencyDistribution.mixture([(latency, share), (others, 1.0 - share)]) if share < 1.0 else latency


def _own_queue_says_all(pool: Pool, demand: Demand) -> bool:
    """True if there are only single targets of the whole workload, and requests are served as they come."""
    special = pool.config.schedule.order is not Order.FCFS
    class_targets = any(requests.slo is not None for requests in demand.workload.classes)
    return demand.slo.attainment is None and not special and not class_targets


def _worst(slo: Slo, distributions: Mapping[Metric, LatencyDistribution], running: float) -> SloMargin:
    """The worst of the targets that `distributions` speak of; of a joint Slo each must reach the whole's share."""
    excesses: list[tuple[float, Metric]] = []
    for target in slo.targets:
        distribution = distributions.get(target.metric)
        if distribution is None or (slo.attainment is not None and target.metric is Metric.ITL):
            continue
        if slo.attainment is None:
            excess = _latency_excess(target, distribution)
        else:
            excess = _share_excess(distribution.cdf(target.threshold_s), slo.attainment)
        excesses.append((excess, target.metric))
    if not excesses:
        return SloMargin(LEAST_LOG_EXCESS, None, running)
    worst, metric = max(excesses)
    return SloMargin(worst, metric, running)


def _latency_excess(target: LatencyTarget, distribution: LatencyDistribution) -> float:
    """log(latency / threshold) at the target's percentile."""
    return math.log(max(distribution.quantile_s(target.percentile), LEAST_LATENCY_S) / target.threshold_s)


def _share_excess(within: float, attainment: float) -> float:
    """log(missing share / allowed share)."""
    return math.log(max(1.0 - within, LEAST_SHARE) / (1.0 - attainment))


def _margin_of_all(performance: Performance, demand: Demand) -> SloMargin:
    """By all targets, of the whole workload and of its classes."""
    excess = log_excess(performance, demand.slo)
    if performance.stable:
        slos = {requests.name: requests.slo for requests in demand.workload.classes}
        excess = max([excess, *(_class_excess(seen, slos[seen.name]) for seen in performance.classes)])
    return SloMargin(excess, None, performance.pools[0].mean_running)


def _class_excess(seen: ClassPerformance, slo: Slo | None) -> float:
    """How far one class is from its own targets (log of the ratio)."""
    if slo is None:
        return LEAST_LOG_EXCESS
    if slo.attainment is not None:
        return _share_excess(seen.attainment or 0.0, slo.attainment)
    distributions = {Metric.TTFT: seen.ttft, Metric.TPOT: seen.tpot, Metric.E2E: seen.e2e}
    excesses = [
        _latency_excess(target, distributions[target.metric])
        for target in slo.targets
        if target.metric in distributions
    ]
    return max(excesses, default=LEAST_LOG_EXCESS)
