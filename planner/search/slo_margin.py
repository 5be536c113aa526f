"""Whether one pool meets what is promised at a rate, by the targets that concern its role.

A mixed pool is judged by all targets, of the whole workload and of its classes; a prefill pool by those on TTFT; a
decode pool by those on TPOT and ITL, behind a hand-over from a replica like its own without a wait for links.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from planner.core import Metric
from planner.engine import Batching, Order
from planner.search.types import Demand
from planner.serving import (
    ClassPerformance,
    Deployment,
    Performance,
    Pool,
    Role,
    decode_stage,
    evaluate,
    excess,
    mixed_stage,
    prefill_stage,
    tandem_itl,
    tandem_tpot,
    transfer_distribution,
)
from planner.workload import LatencyDistribution, LatencyTarget, Slo, Workload

NOTHING = -30.0
"""Logarithm of latency over threshold where there is nothing to miss."""


class Judgement(NamedTuple):
    """How a pool stands to its targets.

    Attributes:
        over: of the worst target, log(latency / threshold), or of a joint promise log(missing / allowed share); at most
            0 when all hold, infinite when unstable.
        worst: its metric, where one target decides.
        running: mean number running on a replica.
    """

    over: float
    worst: Metric | None
    running: float


def judge(pool: Pool, demand: Demand, rate_per_s: float) -> Judgement:
    """The standing of a pool at a rate [1/s]. Raises InputError when a request does not fit."""
    workload = demand.workload.at_rate(rate_per_s)
    if pool.role is Role.PREFILL:
        queue = prefill_stage(pool, workload).queue
        return _worst(demand.slo, {Metric.TTFT: queue.ttft}, queue.stable, queue.mean_running)
    if pool.role is Role.DECODE:
        return _judge_decode(pool, demand, workload)
    if not _is_plain(pool, demand):
        return _judge_whole(evaluate(Deployment(pools=(pool,)), workload), demand)
    queue = mixed_stage(pool, workload).queue
    distributions = {Metric.TTFT: queue.ttft, Metric.TPOT: queue.tpot, Metric.E2E: queue.e2e, Metric.ITL: queue.itl}
    return _worst(demand.slo, distributions, queue.stable, queue.mean_running)


def _judge_decode(pool: Pool, demand: Demand, workload: Workload) -> Judgement:
    stage = decode_stage(pool, workload)
    queue, share = stage.queue, stage.rate_per_s / workload.rate_per_s
    if not queue.stable:
        return Judgement(math.inf, None, queue.mean_running)
    transfer = transfer_distribution(Deployment.disaggregated(pool.config, pool.config), stage.lengths)
    tpot = tandem_tpot(queue, stage.lengths, transfer)
    if share < 1.0:
        tpot = LatencyDistribution.mixture([(tpot, share), (LatencyDistribution.constant(0.0), 1.0 - share)])
    distributions = {Metric.TPOT: tpot}
    if any(target.metric is Metric.ITL for target in demand.slo.targets):
        distributions[Metric.ITL] = tandem_itl(queue, stage.lengths, transfer)
    return _worst(demand.slo, distributions, True, queue.mean_running)


def _is_plain(pool: Pool, demand: Demand) -> bool:
    """Whether the pool's own queue says all: single targets of the whole workload, first come first served."""
    schedule = pool.config.schedule
    special = schedule.batching is Batching.STATIC or schedule.order is not Order.FCFS
    classes = any(one.slo is not None for one in demand.workload.classes)
    return demand.slo.attainment is None and not special and not classes


def _worst(slo: Slo, distributions: Mapping[Metric, LatencyDistribution], stable: bool, running: float) -> Judgement:
    """The worst of the targets that `distributions` speak of; under a joint promise each must reach its share."""
    if not stable:
        return Judgement(math.inf, None, running)
    over: list[tuple[float, Metric]] = []
    for target in slo.targets:
        distribution = distributions.get(target.metric)
        if distribution is None or (slo.attainment is not None and target.metric is Metric.ITL):
            continue
        over.append(
            (
                _over(target, distribution.quantile_s) if slo.attainment is None else _short(slo, target, distribution),
                target.metric,
            )
        )
    if not over:
        return Judgement(NOTHING, None, running)
    worst, metric = max(over)
    return Judgement(worst, metric, running)


def _over(target: LatencyTarget, quantile_s: Callable[[float], float]) -> float:
    return math.log(max(quantile_s(target.percentile), 1e-12) / target.threshold_s)


def _short(slo: Slo, target: LatencyTarget, distribution: LatencyDistribution) -> float:
    assert slo.attainment is not None
    return math.log(max(1.0 - distribution.cdf(target.threshold_s), 1e-9) / (1.0 - slo.attainment))


def _judge_whole(found: Performance, demand: Demand) -> Judgement:
    """By everything promised, to the whole workload and to its classes."""
    over = excess(found, demand.slo)
    if found.stable:
        slos = {one.name: one.slo for one in demand.workload.classes}
        over = max([over, *(_class_over(one, slos[one.name]) for one in found.classes)])
    return Judgement(over, None, found.pools[0].mean_running)


def _class_over(found: ClassPerformance, slo: Slo | None) -> float:
    """How far one class is from its own targets (log of the ratio)."""
    if slo is None:
        return NOTHING
    if slo.attainment is not None:
        return math.log(max(1.0 - (found.attainment or 0.0), 1e-9) / (1.0 - slo.attainment))
    distributions = {Metric.TTFT: found.ttft, Metric.TPOT: found.tpot, Metric.E2E: found.e2e}
    over = [
        _over(target, distributions[target.metric].quantile_s)
        for target in slo.targets
        if target.metric in distributions
    ]
    return max(over, default=NOTHING)
