"""How far one pool is from its targets at a rate, by those that concern its role.

A mixed pool is judged by all targets, of the whole workload and of its classes; a prefill pool by those on TTFT, with
a KV transfer to a replica like its own without a wait for links; a decode pool by those on TPOT and ITL, and by those
on TTFT with its own part of a first token alone: the wait for a place and a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from planner.core import Metric
from planner.engine import Batching, Order
from planner.queueing import sum_of_independent
from planner.search.types import Demand
from planner.serving import (
    ClassPerformance,
    Deployment,
    Performance,
    Pool,
    Role,
    decoding_only,
    evaluate,
    log_excess,
    pool_under_load,
    transfer_distribution,
)
from planner.workload import LatencyDistribution, LatencyTarget, Slo, Workload

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
    workload = demand.workload.at_rate(rate_per_s)
    if pool.role is Role.DECODE:
        return _decode_margin(pool, demand, workload)
    if pool.role is Role.PREFILL:
        return _prefill_margin(pool, demand, workload)
    if not _own_queue_says_all(pool, demand):
        return _margin_of_all(evaluate(Deployment(pools=(pool,)), workload), demand)
    queue = pool_under_load(pool, workload).queue
    distributions = {Metric.TTFT: queue.ttft, Metric.TPOT: queue.tpot, Metric.E2E: queue.e2e, Metric.ITL: queue.itl}
    return _worst(demand.slo, distributions, queue.stable, queue.mean_running)


def _prefill_margin(pool: Pool, demand: Demand, workload: Workload) -> SloMargin:
    """With what a first token from the decode pool takes beyond the prompt, whatever that pool is: the transfer."""
    queue = pool_under_load(pool, workload).queue
    if not queue.stable:
        return SloMargin(math.inf, None, queue.mean_running)
    ttft = sum_of_independent(queue.ttft, LatencyDistribution.constant(pool.config.costs.transfer_request_s))
    if bool((workload.lengths.outputs > 1).any()):
        lengths, share = decoding_only(workload.lengths)
        transfer = transfer_distribution(Deployment.disaggregated(pool.config, pool.config), lengths)
        ttft = _of_those_that_decode(sum_of_independent(ttft, transfer), share, ttft)
    return _worst(demand.slo, {Metric.TTFT: ttft}, True, queue.mean_running)


def _decode_margin(pool: Pool, demand: Demand, workload: Workload) -> SloMargin:
    loaded = pool_under_load(pool, workload)
    queue, share = loaded.queue, loaded.rate_per_s / workload.rate_per_s
    if not queue.stable:
        return SloMargin(math.inf, None, queue.mean_running)
    none = LatencyDistribution.constant(0.0)
    first = _of_those_that_decode(sum_of_independent(queue.ttft, queue.itl), share, none)
    tpot = _of_those_that_decode(queue.tpot, share, none)
    return _worst(demand.slo, {Metric.TTFT: first, Metric.TPOT: tpot, Metric.ITL: queue.itl}, True, queue.mean_running)


def _of_those_that_decode(
    latency: LatencyDistribution, share: float, others: LatencyDistribution
) -> LatencyDistribution:
    """A latency of the share of requests that decode, among `others` of those that end with their prompt."""
    return LatencyDistribution.mixture([(latency, share), (others, 1.0 - share)]) if share < 1.0 else latency


def _own_queue_says_all(pool: Pool, demand: Demand) -> bool:
    """Whether there are only single targets of the whole workload, and requests are served as they come."""
    schedule = pool.config.schedule
    special = schedule.batching is Batching.STATIC or schedule.order is not Order.FCFS
    class_targets = any(requests.slo is not None for requests in demand.workload.classes)
    return demand.slo.attainment is None and not special and not class_targets


def _worst(slo: Slo, distributions: Mapping[Metric, LatencyDistribution], stable: bool, running: float) -> SloMargin:
    """The worst of the targets that `distributions` speak of; of a joint Slo each must reach the whole's share."""
    if not stable:
        return SloMargin(math.inf, None, running)
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
