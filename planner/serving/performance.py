"""`evaluate`: the one place where step times meet queues.

Each pool is solved on its own (`planner.serving.stage`); here a prefill pool, the hand-over and a decode pool become
one tandem, and the request classes of a workload are told apart (`planner.serving.request_classes`). Closed loops are
the matter of `planner.serving.closed_loop`, static batches of `planner.serving.static_batching`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from planner.core import Metric
from planner.engine import Batching, Order
from planner.queueing import LinkWait, QueueLatency, summed, transient_wait_distribution, work_variance_per_s
from planner.serving.closed_loop import closed_performance
from planner.serving.closed_loop_disaggregated import tandem_performance
from planner.serving.kv_transfer import (
    FloatArray,
    kv_transfer_times_s,
    tandem_itl,
    tandem_tpot,
    transfer_distribution,
    waiting_for_link,
)
from planner.serving.request_classes import (
    class_performance,
    class_performances,
    kinds_of,
    mixed_distribution,
    ordered_distributions,
)
from planner.serving.router import with_joint
from planner.serving.stage import (
    Stage,
    decode_stage,
    decoding_only,
    largest_stable_rate_per_s,
    mixed_stage,
    pool_limit_per_s,
    prefill_stage,
)
from planner.serving.static_batching import NOTES, static_queue
from planner.serving.types import (
    ClassPerformance,
    Deployment,
    Method,
    Performance,
    Pool,
    PoolPerformance,
    Role,
    Router,
    predicted_attainment,
)
from planner.serving.uncertainty import latency_intervals
from planner.workload import ClosedLoop, JointDistribution, LatencyDistribution, TokenLengths, Workload

__all__ = ["evaluate"]

CALM_LOAD, FULL_LOAD = 0.5, 0.98
"""Shares of the largest stable rate that stand for a first token without a queue and for decodes of a full pool."""
DECODE_POINTS = 64
"""Points of TPOT and of output lengths that are multiplied."""
TINY_S = 1e-30
"""Guards a division by a latency of 0 [s]."""


def evaluate(deployment: Deployment, workload: Workload, *, horizon_s: float | None = None) -> Performance:
    """Latency distributions of a deployment under a workload, from theory; of a closed loop over the whole run.

    Args:
        deployment: the pools.
        workload: arrivals and lengths.
        horizon_s: an overloaded deployment is answered over so much time after an empty start [s], `stable` being False
            all the same. None: its latencies are unbounded, as they are in the long run.

    Raises InputError when the model, its KV cache or the longest request does not fit. An overloaded deployment is
    not an error.
    """
    if isinstance(workload.arrivals, ClosedLoop) and not _is_static(deployment):
        play = tandem_performance if deployment.is_disaggregated else closed_performance
        notes = _assumptions(deployment) + _closed_assumptions(deployment)
        found = play(deployment, workload.arrivals, workload.lengths, notes)
        return _with_interval(deployment, workload.lengths, found)
    found = _steady(deployment, workload)
    if horizon_s is not None and not found.stable:
        found = _overloaded(deployment, workload, horizon_s, found)
    return _with_interval(deployment, workload.lengths, found)


def _is_static(deployment: Deployment) -> bool:
    return deployment.pools[0].config.schedule.batching is Batching.STATIC


def _steady(deployment: Deployment, workload: Workload) -> Performance:
    """In the long run, under open arrivals."""
    if _is_static(deployment):
        return _evaluate_static(deployment, workload)
    return (_evaluate_disaggregated if deployment.is_disaggregated else _evaluate_mixed)(deployment, workload)


def _with_interval(deployment: Deployment, lengths: TokenLengths, found: Performance) -> Performance:
    """The same with the intervals of its means; its steady part has the same spread."""
    means = {metric: found.distribution(metric).mean_s for metric in Metric}
    running = [pool.mean_running for pool in found.pools]
    intervals = latency_intervals(deployment, lengths.mean_input, lengths.mean_output, running, means)
    steady = found.steady
    if steady is not None and intervals:
        scale = {metric: steady.distribution(metric).mean_s / max(means[metric], TINY_S) for metric in Metric}
        bounds = {metric: (low * scale[metric], high * scale[metric]) for metric, (low, high) in intervals.items()}
        steady = replace(steady, interval=bounds)
    return replace(found, interval=intervals, steady=steady)


def _evaluate_static(deployment: Deployment, workload: Workload) -> Performance:
    queue, figures = static_queue(deployment.pools[0], workload)
    return _of_one_pool(workload, queue, figures, _assumptions(deployment) + NOTES)


def _evaluate_mixed(deployment: Deployment, workload: Workload) -> Performance:
    stage = mixed_stage(deployment.pools[0], workload)
    queue, classes = _in_order(stage)
    notes = _assumptions(deployment) + _queueing_assumptions(deployment)
    return _of_one_pool(workload, queue, stage.performance(), notes, classes)


def _of_one_pool(
    workload: Workload,
    queue: QueueLatency,
    figures: PoolPerformance,
    assumptions: tuple[str, ...],
    classes: tuple[ClassPerformance, ...] = (),
) -> Performance:
    """What requests see of a pool that serves them from first to last."""
    return Performance(
        method=Method.ANALYTIC,
        rate_per_s=workload.rate_per_s,
        stable=queue.stable,
        ttft=queue.ttft,
        tpot=queue.tpot,
        e2e=queue.e2e,
        itl=queue.itl,
        pools=(figures,),
        kv_transfer_s=0.0,
        requests=0,
        assumptions=assumptions,
        samples_s={},
        joint=queue.joint,
        classes=classes,
    )


def _in_order(stage: Stage) -> tuple[QueueLatency, tuple[ClassPerformance, ...]]:
    """A pool's queue under its order of admission, and what each class sees where there are several."""
    queue, schedule, workload = stage.queue, stage.model.pool.config.schedule, stage.workload
    kinds = kinds_of(workload, schedule.order)
    reordered = len({kind.place for kind in kinds}) > 1
    if not queue.stable or queue.joint is None or not (reordered or len(workload.classes) > 1):
        return queue, ()
    distributions = ordered_distributions(queue, kinds, schedule)
    classes = class_performances(workload, distributions, kinds) if len(workload.classes) > 1 else ()
    return (with_joint(queue, mixed_distribution(distributions, kinds)) if reordered else queue), classes


def _evaluate_disaggregated(deployment: Deployment, workload: Workload) -> Performance:
    first = prefill_stage(deployment.pools[0], workload)
    second = decode_stage(deployment.pools[1], workload)
    share = second.rate_per_s / first.rate_per_s
    link = waiting_for_link(deployment, second.lengths, second.rate_per_s)
    stable = first.queue.stable and second.queue.stable and (link.stable or not deployment.transfer.shared)
    prompts, classes = _in_order(first)
    ttft = tpot = e2e = itl = LatencyDistribution.unbounded()
    transfer_s = float(kv_transfer_times_s(deployment, second.lengths) @ second.lengths.probabilities)
    if stable:
        distribution = transfer_distribution(deployment, second.lengths, link, _last_step(first))
        ttft, tpot, itl, e2e = _handed_over(deployment, prompts.ttft, distribution, second)
        nothing = LatencyDistribution.constant(0.0)
        tpot = LatencyDistribution.mixture([(tpot, share), (nothing, 1.0 - share)])
        e2e = LatencyDistribution.mixture([(e2e, share), (prompts.ttft, 1.0 - share)])
        ttft = LatencyDistribution.mixture([(ttft, share), (prompts.ttft, 1.0 - share)])
    return Performance(
        method=Method.ANALYTIC,
        rate_per_s=workload.rate_per_s,
        stable=stable,
        ttft=ttft,
        tpot=tpot,
        e2e=e2e,
        itl=itl,
        pools=(first.performance(), second.performance()),
        kv_transfer_s=transfer_s,
        requests=0,
        assumptions=_assumptions(deployment) + _queueing_assumptions(deployment),
        samples_s={},
        joint=JointDistribution.independent(ttft, tpot) if stable else None,
        classes=_classes_handed_over(deployment, workload, link, classes, first, second) if stable else (),
        link_utilisation=link.utilisation,
    )


def _last_step(prefill: Stage) -> Callable[[FloatArray], FloatArray]:
    """Duration [s] of the step that ends a prompt alone on its replica, from the prompt's tokens."""
    server = prefill.model.server

    def last_step_s(tokens: FloatArray) -> FloatArray:
        last = tokens - (np.ceil(tokens / server.max_batched_tokens) - 1.0) * server.max_batched_tokens
        return server.step_s(np.zeros_like(last), last)

    return last_step_s


def _handed_over(
    deployment: Deployment, prompt: LatencyDistribution, transfer: LatencyDistribution, decode: Stage
) -> tuple[LatencyDistribution, LatencyDistribution, LatencyDistribution, LatencyDistribution]:
    """TTFT, TPOT, ITL and E2E of requests that decode, from the distribution of their prompts and of the hand-over.

    A first token from the decode pool takes a step there before the O - 1 that follow it.
    """
    queue = decode.queue
    e2e = summed(prompt, transfer, queue.e2e)
    if not deployment.transfer.first_token_from_decode:
        return prompt, tandem_tpot(queue, decode.lengths, transfer), tandem_itl(queue, decode.lengths, transfer), e2e
    ttft = summed(prompt, transfer, queue.ttft, queue.itl)
    return ttft, queue.tpot, queue.itl, summed(e2e, queue.itl)


def _classes_handed_over(
    deployment: Deployment,
    workload: Workload,
    link: LinkWait,
    classes: tuple[ClassPerformance, ...],
    first: Stage,
    decode: Stage,
) -> tuple[ClassPerformance, ...]:
    """What each class sees of the whole tandem, from what it sees of the prefill pool."""
    joint, found = decode.queue.joint, []
    for seen, one in zip(classes, workload.classes if classes else (), strict=True):
        assert joint is not None
        decoding, share = decoding_only(one.lengths)
        distribution = joint.of_lengths(decoding.inputs, decoding.outputs - 1.0, decoding.probabilities)
        queue = replace(
            decode.queue, ttft=distribution.ttft, tpot=distribution.tpot, e2e=distribution.e2e, joint=distribution
        )
        transfer = transfer_distribution(deployment, decoding, link, _last_step(first))
        distributions = _handed_over(deployment, seen.ttft, transfer, replace(decode, queue=queue, lengths=decoding))
        ttft, tpot, _, e2e = distributions
        latencies = {
            Metric.TTFT: LatencyDistribution.mixture([(ttft, share), (seen.ttft, 1.0 - share)]),
            Metric.TPOT: LatencyDistribution.mixture([(tpot, share), (LatencyDistribution.constant(0.0), 1.0 - share)]),
            Metric.E2E: LatencyDistribution.mixture([(e2e, share), (seen.ttft, 1.0 - share)]),
        }
        together = JointDistribution.independent(latencies[Metric.TTFT], latencies[Metric.TPOT])
        reached = None if one.slo is None else predicted_attainment(one.slo, latencies, together)
        found.append(class_performance(one.name, seen.rate_per_s, latencies, reached))
    return tuple(found)


def _overloaded(deployment: Deployment, workload: Workload, horizon_s: float, unbounded: Performance) -> Performance:
    """Latencies over the first `horizon_s` [s] of an overload: `queueing.overload` for the wait, the rest as it is near
    saturation (decodes) and well below it (a first token without the queue).

    The wait is for the pool that gives out first: before the first token, or after it for a decode pool.
    """
    limit = largest_stable_rate_per_s(deployment, workload)
    calm, full = (evaluate(deployment, workload.at_rate(share * limit)) for share in (CALM_LOAD, FULL_LOAD))
    wait = _transient_wait(deployment, workload, limit, horizon_s)
    lengths, first, tpot, itl = workload.lengths, calm.ttft, full.tpot, full.itl
    ttft = summed(wait, first)
    e2e = summed(ttft, _decode_times(lengths, tpot))
    if _least(deployment, workload).role is Role.DECODE:
        decoding, share = decoding_only(lengths)
        slow, free = (decode_stage(deployment.pools[1], workload.at_rate(s * limit)) for s in (FULL_LOAD, CALM_LOAD))
        queue = replace(slow.queue, ttft=free.queue.ttft)
        late = tandem_tpot(queue, decoding, wait)
        e2e = summed(first, wait, _decode_times(lengths, queue.tpot))
        tpot = LatencyDistribution.mixture([(late, share), (LatencyDistribution.constant(0.0), 1.0 - share)])
        ttft, itl = first, tandem_itl(queue, decoding, wait)
    return replace(
        unbounded,
        ttft=ttft,
        tpot=tpot,
        e2e=e2e,
        itl=itl,
        joint=JointDistribution.independent(ttft, tpot),
        horizon_s=horizon_s,
        assumptions=(
            *unbounded.assumptions,
            f"overloaded: latencies of the first {horizon_s:g} s after an empty start",
        ),
    )


def _decode_times(lengths: TokenLengths, tpot: LatencyDistribution) -> LatencyDistribution:
    """Distribution of (output tokens - 1) * TPOT [s], the two taken as independent."""
    few = tpot.condensed(DECODE_POINTS)
    gaps = LatencyDistribution.from_samples(lengths.outputs - 1.0, lengths.probabilities).condensed(DECODE_POINTS)
    return LatencyDistribution.from_samples(
        np.multiply.outer(few.support_s, gaps.support_s), np.multiply.outer(few.weights, gaps.weights)
    )


def _least(deployment: Deployment, workload: Workload) -> Pool:
    """The pool that gives out first."""
    return min(deployment.pools, key=lambda pool: pool_limit_per_s(pool, workload))


def _transient_wait(
    deployment: Deployment, workload: Workload, limit_per_s: float, horizon_s: float
) -> LatencyDistribution:
    """Wait for the pool that gives out first [s], a replica of it taken as a server of its largest stable rate."""
    pool, arrivals, lengths = _least(deployment, workload), workload.open_arrivals, workload.lengths
    tokens = lengths.outputs if pool.role is Role.DECODE else lengths.inputs
    mean = float(tokens @ lengths.probabilities)
    scv = float((tokens / mean - 1.0) ** 2 @ lengths.probabilities)
    rate, work_s = workload.rate_per_s / pool.replicas, pool.replicas / limit_per_s
    variance = work_variance_per_s(rate, work_s, scv, arrivals.scv / pool.replicas)
    return transient_wait_distribution(workload.rate_per_s / limit_per_s, variance, horizon_s)


def _assumptions(deployment: Deployment) -> tuple[str, ...]:
    notes = [note for pool in deployment.pools for note in pool.config.assumptions]
    if deployment.is_disaggregated and not deployment.transfer.shared:
        notes.append("KV transfer at full NIC bandwidth without contention")
    return tuple(dict.fromkeys(notes))


def _closed_assumptions(deployment: Deployment) -> tuple[str, ...]:
    """What the theory of closed loops leaves out."""
    notes = ["theory: percentiles are those of means over the run, without the chance of single steps"]
    if not all(pool.config.schedule.reserve_outputs for pool in deployment.pools):
        notes.append("theory: KV cache holds inputs and half the outputs, and nothing is preempted")
    if any(pool.config.schedule.whole_prompts for pool in deployment.pools):
        notes.append("theory: whole prompts all have the mean length where they are fitted into steps")
    if any(_not_in_closed_loops(pool) for pool in deployment.pools):
        notes.append("theory: closed loops are first come, first served, round robin, without prefix cache or adapters")
    return tuple(notes)


def _not_in_closed_loops(pool: Pool) -> bool:
    config, schedule = pool.config, pool.config.schedule
    special = schedule.order is not Order.FCFS or schedule.prefix_cache or pool.router is not Router.ROUND_ROBIN
    return special or config.lora is not None or config.mask_s > 0.0


def _queueing_assumptions(deployment: Deployment) -> tuple[str, ...]:
    """Policies of the engines that the queueing theory of open arrivals does not know; the simulation does."""
    return tuple(dict.fromkeys(note for pool in deployment.pools for note in _unknown_policies(pool)))


def _unknown_policies(pool: Pool) -> list[str]:
    config, schedule = pool.config, pool.config.schedule
    apart = pool.role is Role.MIXED and not schedule.mixed_steps
    held = schedule.batch_wait_steps > 0 and schedule.batch_wait_fill > 0.0
    notes = {
        "a step of prompts and the decode step after it count as one": apart,
        "prompts are split over steps, though the engine keeps them whole": schedule.whole_prompts,
        "prompts are taken in at once, though the engine holds them back to batch them": held,
        "half the receive interval is added to the wait": schedule.receive_interval_steps > 1,
        "KV cache holds inputs and half the outputs, and nothing is preempted": not schedule.reserve_outputs,
        "fair share is taken as first come, first served": schedule.order is Order.FAIR_SHARE,
        "adapters are there when their requests come, as long as slots last": config.lora is not None,
        "every step of a sequence gains the mean number of tokens": config.speculation is not None,
        "requests that arrive together are taken in together": config.costs.admission_s > 0.0,
    }
    return [f"theory: {note}" for note, applies in notes.items() if applies]
