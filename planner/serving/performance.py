"""`evaluate`: pools under load, each solved on its own, become what requests see.

A prefill pool, the KV transfer and a decode pool become one tandem, and the request classes of a workload are told
apart. The line of steps is in `planner.serving`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from hardware_db import EngineFeature
from planner.core import Metric, UnsupportedFeatureError
from planner.engine import (
    Order,
    encoder_notes,
    kv_tier_notes,
    mean_encoder_s,
    prefix_reuse_notes,
    support_notes,
    tier_loads,
)
from planner.queueing import (
    LinkWait,
    QueueLatency,
    sum_of_independent,
    transient_wait_distribution,
    work_variance_per_s,
)
from planner.serving.closed_loop import closed_loop_performance
from planner.serving.drift import busiest_minute
from planner.serving.kv_transfer import (
    CONDENSED_POINTS,
    piecewise_transfers,
    prompt_and_transfer,
    taken_by_others,
    tandem_itl,
    tandem_tpot,
    transfer_distribution,
    waiting_for_link,
)
from planner.serving.pool import notes_on_waiting_prompts
from planner.serving.pool_load import (
    PoolUnderLoad,
    decoding_only,
    largest_stable_rate_per_s,
    pool_limit_per_s,
    pool_under_load,
)
from planner.serving.pool_queue import with_joint
from planner.serving.request_classes import (
    class_performance,
    class_performances,
    mixed_distribution,
    ordered_distributions,
    waiting_groups,
)
from planner.serving.session_cache import known_hit_notes, session_notes
from planner.serving.types import (
    ClassPerformance,
    Deployment,
    Latencies,
    Method,
    Performance,
    Pool,
    Role,
    Router,
    predicted_attainment,
)
from planner.serving.uncertainty import latency_intervals
from planner.workload import ClosedLoop, JointDistribution, LatencyDistribution, TokenLengths, Workload

CALM_LOAD, FULL_LOAD = 0.5, 0.98
"""Shares of the largest stable rate that stand, in an overload, for a first token without a queue and for decodes of a
full pool. A choice."""
LEAST_LATENCY_S = 1e-30
"""Guards a division by a latency of 0 [s]."""


def evaluate(
    deployment: Deployment, workload: Workload, *, horizon_s: float | None = None, figures: bool = True
) -> Performance:
    """Latency distributions of a deployment under a workload, from theory; of a closed loop over the whole run.

    Args:
        deployment: the pools.
        workload: arrivals and lengths.
        horizon_s: an overloaded deployment is answered over so much time after an empty start [s], `stable` being False
            all the same. None: its latencies are unbounded, as they are in the long run.
        figures: with figures of the pools, the busiest minute and intervals; what is only held against targets needs
            none, and reads latencies under shifts of step times off those of neighbouring shifts.

    Returns:
        Latencies [s], figures of the pools, and what the numbers take for granted. An overloaded deployment is not an
        error.

    Raises:
        InputError: the model, its KV cache or the longest request does not fit.
        UnsupportedFeatureError: static batches and users who think, which only the simulator plays.
    """
    if isinstance(workload.arrivals, ClosedLoop):
        if workload.arrivals.think_time_s:
            bound = "the theory of closed loops has no users who think between an answer and the next request"
            fix = "simulate it; `planner plan` finds their rate"
            raise UnsupportedFeatureError("workload.think_time_s", workload.arrivals.think_time_s, bound, fix)
        assumptions = _assumptions(deployment) + _closed_loop_assumptions(deployment)
        closed = closed_loop_performance(deployment, workload.arrivals, workload.lengths, assumptions)
        if not figures:
            return closed
        return _with_intervals(deployment, workload.lengths, _with_notes(deployment, workload.lengths, closed))
    performance = _long_run(deployment, workload, figures)
    if not figures:
        return performance
    if horizon_s is not None and not performance.stable:
        steady = Workload(arrivals=workload.open_arrivals.steady, classes=workload.classes)
        performance = _overloaded(deployment, steady, horizon_s, performance)
    performance = _with_notes(deployment, workload.lengths, performance)
    cached = (*session_notes(deployment, workload), *known_hit_notes(deployment, workload))
    notes = (*performance.assumptions, *cached)
    tokens_per_s = workload.rate_per_s * workload.lengths.mean_output if performance.stable else 0.0
    performance = replace(performance, assumptions=notes, output_tokens_per_s=tokens_per_s)
    return _with_intervals(deployment, workload.lengths, performance)


def _with_notes(deployment: Deployment, lengths: TokenLengths, performance: Performance) -> Performance:
    """The same, saying so where whole prompts wait for a step with room, and what the encoder of images takes."""
    notes = notes_on_waiting_prompts(deployment, performance.pools, int(lengths.inputs.max()))
    config = deployment.pools[0].config
    notes += encoder_notes(config, mean_encoder_s(config, lengths))
    notes += _tier_hit_notes(deployment, performance)
    return replace(performance, assumptions=(*performance.assumptions, *notes)) if notes else performance


def _tier_hit_notes(deployment: Deployment, performance: Performance) -> tuple[str, ...]:
    """How much of the prompts comes from KV tiers, in words."""
    notes = []
    for pool, figures in zip(deployment.pools, performance.pools, strict=True):
        if not figures.tier_hits:
            continue
        kinds = [loads.tier.kind for loads in tier_loads(pool.config)]
        on_gpu = figures.prefix_hits - sum(figures.tier_hits)
        shares = [f"{on_gpu:.0%} of the input tokens are found on the GPU"]
        shares += [f"{share:.0%} in the {kind} tier" for kind, share in zip(kinds, figures.tier_hits, strict=True)]
        notes.append(f"KV tiers: {', '.join(shares)}; their link is busy {figures.tier_link:.0%} of the time")
    return tuple(notes)


def _long_run(deployment: Deployment, workload: Workload, figures: bool) -> Performance:
    """Under open arrivals, in the long run."""
    pools = tuple(pool_under_load(pool, workload, between_shifts=not figures) for pool in deployment.pools)
    performance = _of_pools(deployment, workload, pools, figures)
    drift = workload.open_arrivals.drift
    if not figures or drift is None or not performance.stable:
        return performance
    note = (
        f"rate varies ({drift.source}): coefficient of variation {drift.cv:.2f}, busiest minute "
        f"{busiest_minute(drift) * workload.rate_per_s:.3g}/s; percentiles are over all requests"
    )
    return replace(performance, rate_cv=drift.cv, assumptions=(*performance.assumptions, note))


def _of_pools(
    deployment: Deployment, workload: Workload, pools: tuple[PoolUnderLoad, ...], figures: bool
) -> Performance:
    """Performance of pools under load."""
    answer = _disaggregated if deployment.is_disaggregated else _mixed
    performance = answer(deployment, workload, *pools)
    return replace(performance, pools=tuple(pool.performance() for pool in pools)) if figures else performance


def _with_intervals(deployment: Deployment, lengths: TokenLengths, performance: Performance) -> Performance:
    """The same with the intervals of its means; its steady part has the same spread."""
    means_s = {metric: performance.distribution(metric).mean_s for metric in Metric}
    running = [pool.mean_running for pool in performance.pools]
    tokens, encode_s = (lengths.mean_input, lengths.mean_output), mean_encoder_s(deployment.pools[0].config, lengths)
    intervals = latency_intervals(deployment, *tokens, running, means_s, encode_s=encode_s)
    steady = performance.steady
    if steady is not None and intervals:
        scale = {
            metric: steady.distribution(metric).mean_s / max(means_s[metric], LEAST_LATENCY_S) for metric in Metric
        }
        bounds = {metric: (low * scale[metric], high * scale[metric]) for metric, (low, high) in intervals.items()}
        steady = replace(steady, interval=bounds)
    return replace(performance, interval=intervals, steady=steady)


def _mixed(deployment: Deployment, workload: Workload, loaded: PoolUnderLoad) -> Performance:
    queue, classes = _in_order(loaded)
    return Performance(
        method=Method.ANALYTIC,
        rate_per_s=workload.rate_per_s,
        stable=queue.stable,
        ttft=queue.ttft,
        tpot=queue.tpot,
        e2e=queue.e2e,
        itl=queue.itl,
        pools=(),
        assumptions=_assumptions(deployment) + _queueing_assumptions(deployment),
        joint=queue.joint,
        classes=classes,
    )


def _in_order(loaded: PoolUnderLoad) -> tuple[QueueLatency, tuple[ClassPerformance, ...]]:
    """A pool's queue under its order of admission, and what each class sees where there are several."""
    queue, schedule, workload = loaded.queue, loaded.model.pool.config.schedule, loaded.workload
    groups = waiting_groups(workload, schedule.order)
    reordered = len({group.place for group in groups}) > 1
    if not queue.stable or queue.joint is None or not (reordered or len(workload.classes) > 1):
        return queue, ()
    distributions = ordered_distributions(queue, queue.joint, groups, schedule, loaded.prompt_load, loaded.slots_full)
    classes = class_performances(workload, distributions, groups) if len(workload.classes) > 1 else ()
    return (with_joint(queue, mixed_distribution(distributions, groups)) if reordered else queue), classes


def _with_prefill_only(seen: Latencies, prompt: LatencyDistribution, decoding_share: float) -> Latencies:
    """Latencies with those of requests of one output token among them, which end with their prompt."""
    rest, none = 1.0 - decoding_share, LatencyDistribution.constant(0.0)
    return Latencies(
        ttft=LatencyDistribution.mixture([(seen.ttft, decoding_share), (prompt, rest)]),
        tpot=LatencyDistribution.mixture([(seen.tpot, decoding_share), (none, rest)]),
        e2e=LatencyDistribution.mixture([(seen.e2e, decoding_share), (prompt, rest)]),
        itl=seen.itl,
    )


def _disaggregated(
    deployment: Deployment, workload: Workload, prefill: PoolUnderLoad, decode: PoolUnderLoad
) -> Performance:
    share = decode.rate_per_s / prefill.rate_per_s
    link = waiting_for_link(deployment, decode.lengths, decode.rate_per_s, prefill.prefix_hits)
    stable = prefill.queue.stable and decode.queue.stable and (link.stable or not deployment.transfer.shared)
    prompts, classes = _in_order(prefill)
    request = LatencyDistribution.constant(deployment.pools[0].config.costs.transfer_request_s)
    sent = piecewise_transfers(deployment, decode.lengths, prefill.prefix_hits)
    seen = Latencies(*[LatencyDistribution.unbounded()] * 4)
    if stable:
        taken = taken_by_others(deployment, decode.lengths, decode.rate_per_s)
        transfer = transfer_distribution(deployment, decode.lengths, link, prefill.prefix_hits, taken)
        waits = (request, link.wait) if deployment.transfer.shared else (request,)
        ready = sum_of_independent(prompt_and_transfer(prompts, sent, decode.lengths, taken), *waits)
        prompt = sum_of_independent(prompts.ttft, request)
        seen = _with_prefill_only(_tandem(deployment, (prompt, transfer, ready), decode), prompt, share)
    return Performance(
        method=Method.ANALYTIC,
        rate_per_s=workload.rate_per_s,
        stable=stable,
        **seen._asdict(),
        pools=(),
        kv_transfer_s=float(sent.exposed_s() @ decode.lengths.probabilities),
        assumptions=_assumptions(deployment) + _queueing_assumptions(deployment),
        joint=JointDistribution.independent(seen.ttft, seen.tpot) if stable else None,
        classes=_tandem_classes(deployment, workload, link, classes, prefill, decode) if stable else (),
        link_utilisation=link.utilisation,
    )


def _tandem(deployment: Deployment, before: tuple[LatencyDistribution, ...], decode: PoolUnderLoad) -> Latencies:
    """Latencies of requests that decode, from the distributions of their prompts, of the KV transfer, and of both [s].

    A first token from the decode pool takes a step there before the O - 1 that follow it.
    """
    queue, lengths, (prompt, transfer, ready) = decode.queue, decode.lengths, before
    if not deployment.transfer.first_token_from_decode:
        tpot, itl = tandem_tpot(queue, lengths, transfer), tandem_itl(queue, lengths, transfer)
        return Latencies(prompt, tpot, _later_sum(ready, queue.e2e), itl)
    ttft = sum_of_independent(ready, queue.ttft, queue.itl)
    return Latencies(ttft, queue.tpot, _later_sum(ready, queue.e2e, queue.itl), queue.itl)


def _later_sum(*terms: LatencyDistribution) -> LatencyDistribution:
    """`sum_of_independent`, computed when it is looked at."""
    return LatencyDistribution.later(partial(sum_of_independent, *terms), sum(term.mean_s for term in terms))


def _tandem_classes(
    deployment: Deployment,
    workload: Workload,
    link: LinkWait,
    classes: tuple[ClassPerformance, ...],
    prefill: PoolUnderLoad,
    decode: PoolUnderLoad,
) -> tuple[ClassPerformance, ...]:
    """Performance of each class in the whole tandem, from that in the prefill pool."""
    joint = decode.queue.joint
    if joint is None or not classes:
        return ()
    request = LatencyDistribution.constant(deployment.pools[0].config.costs.transfer_request_s)
    taken = taken_by_others(deployment, decode.lengths, decode.rate_per_s)
    performances = []
    for seen, requests in zip(classes, workload.classes, strict=True):
        decoding, share = decoding_only(requests.lengths)
        own = joint.of_lengths(decoding.inputs, decoding.outputs - 1.0, decoding.probabilities)
        queue = replace(decode.queue, ttft=own.ttft, tpot=own.tpot, e2e=own.e2e, joint=own)
        transfer = transfer_distribution(deployment, decoding, link, prefill.prefix_hits, taken)
        prompt = sum_of_independent(seen.ttft, request)
        before = prompt, transfer, sum_of_independent(prompt, transfer)
        tandem = _tandem(deployment, before, replace(decode, queue=queue, lengths=decoding))
        whole = _with_prefill_only(tandem, prompt, share)
        latencies = {Metric.TTFT: whole.ttft, Metric.TPOT: whole.tpot, Metric.E2E: whole.e2e}
        together = JointDistribution.independent(whole.ttft, whole.tpot)
        attainment = None if requests.slo is None else predicted_attainment(requests.slo, latencies, together)
        performances.append(class_performance(requests.name, seen.rate_per_s, latencies, attainment))
    return tuple(performances)


def _overloaded(deployment: Deployment, workload: Workload, horizon_s: float, unbounded: Performance) -> Performance:
    """Latencies over the first `horizon_s` [s] of an overload: `queueing.overload` for the wait, the rest as it is near
    saturation (decodes) and well below it (a first token without the queue).

    The wait is for the pool that gives out first: before the first token, or after it for a decode pool where the first
    token comes from the prefill pool.
    """
    limit = largest_stable_rate_per_s(deployment, workload)
    calm, full = (evaluate(deployment, workload.at_rate(share * limit)) for share in (CALM_LOAD, FULL_LOAD))
    pool = min(deployment.pools, key=lambda pool: pool_limit_per_s(pool, workload))
    wait = _transient_wait(pool, workload, limit, horizon_s)
    lengths, first, tpot, itl = workload.lengths, calm.ttft, full.tpot, full.itl
    ttft = sum_of_independent(wait, first)
    e2e = sum_of_independent(ttft, _decode_times(lengths, tpot))
    if pool.role is Role.DECODE and not deployment.transfer.first_token_from_decode:
        decoding, share = decoding_only(lengths)
        slow, free = (
            pool_under_load(deployment.pools[1], workload.at_rate(load * limit)).queue
            for load in (FULL_LOAD, CALM_LOAD)
        )
        queue = replace(slow, ttft=free.ttft)
        late = tandem_tpot(queue, decoding, wait)
        e2e = sum_of_independent(first, wait, _decode_times(lengths, queue.tpot))
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
    few = tpot.condensed(CONDENSED_POINTS)
    gaps = LatencyDistribution.from_samples(lengths.outputs - 1.0, lengths.probabilities).condensed(CONDENSED_POINTS)
    return LatencyDistribution.from_samples(
        np.multiply.outer(few.support_s, gaps.support_s), np.multiply.outer(few.weights, gaps.weights)
    )


def _transient_wait(pool: Pool, workload: Workload, limit_per_s: float, horizon_s: float) -> LatencyDistribution:
    """Wait for an overloaded pool [s], a replica of it taken as a server of its largest stable rate."""
    arrivals, lengths = workload.open_arrivals, workload.lengths
    tokens = lengths.outputs if pool.role is Role.DECODE else lengths.inputs
    mean = float(tokens @ lengths.probabilities)
    scv = float((tokens / mean - 1.0) ** 2 @ lengths.probabilities)
    rate, work_s = workload.rate_per_s / pool.replicas, pool.replicas / limit_per_s
    variance = work_variance_per_s(rate, work_s, scv, arrivals.scv / pool.replicas)
    return transient_wait_distribution(workload.rate_per_s / limit_per_s, variance, horizon_s)


def _assumptions(deployment: Deployment) -> tuple[str, ...]:
    notes = [note for pool in deployment.pools for note in pool.config.assumptions]
    notes += [
        note
        for pool in deployment.pools
        if pool.role is not Role.DECODE
        for note in (*prefix_reuse_notes(pool.config), *kv_tier_notes(pool.config))
    ]
    if deployment.is_disaggregated:
        for config in (pool.config for pool in deployment.pools):
            notes += support_notes(config.engine, config.llm, config.sku, (EngineFeature.DISAGGREGATION,))
    if deployment.is_disaggregated and not deployment.transfer.shared:
        notes.append("KV transfer at full NIC bandwidth without contention")
    return tuple(dict.fromkeys(notes))


def _closed_loop_assumptions(deployment: Deployment) -> tuple[str, ...]:
    """Notes on what the theory of closed loops leaves out."""
    notes = ["theory: percentiles are those of means over the run, without the chance of single steps"]
    if not all(pool.config.schedule.reserve_outputs for pool in deployment.pools):
        notes.append("theory: KV cache holds inputs and half the outputs, and nothing is preempted")
    if any(pool.config.schedule.whole_prompts for pool in deployment.pools):
        notes.append("theory: whole prompts all have the mean length where they are fitted into steps")
    if any(_is_beyond_closed_loops(pool) for pool in deployment.pools):
        notes.append("theory: closed loops are first come, first served, round robin, without prefix cache or adapters")
    return tuple(notes)


def _is_beyond_closed_loops(pool: Pool) -> bool:
    """True if a pool has features that the theory of closed loops ignores."""
    config, schedule = pool.config, pool.config.schedule
    special = schedule.order is not Order.FCFS or schedule.prefix_cache or pool.router is not Router.ROUND_ROBIN
    special = special or pool.routers > 1
    return special or config.lora is not None or config.mask_s > 0.0


def _queueing_assumptions(deployment: Deployment) -> tuple[str, ...]:
    """Policies of the engines that the queueing theory of open arrivals does not know; the simulation does."""
    return tuple(dict.fromkeys(note for pool in deployment.pools for note in _unknown_policies(pool)))


def _unknown_policies(pool: Pool) -> list[str]:
    config, schedule = pool.config, pool.config.schedule
    apart = pool.role is Role.MIXED and not schedule.mixed_steps
    held = schedule.batch_wait_steps > 0 and max(schedule.batch_wait_fill, schedule.batch_wait_requests) > 0.0
    notes = {
        "a step of prompts and the decode step after it count as one": apart,
        "prompts are split over steps, though the engine keeps them whole": schedule.whole_prompts,
        "prompts are taken in at once, though the engine holds them back to batch them": held,
        "half the receive interval is added to the wait": schedule.receive_interval_steps > 1,
        "KV cache holds inputs and half the outputs; preemptions add work, not gaps": not schedule.reserve_outputs,
        "fair share is taken as first come, first served": schedule.order is Order.FAIR_SHARE,
        "adapters are there when their requests come, as long as slots last": config.lora is not None,
        "every step of a sequence gains the mean number of tokens": config.speculation is not None,
        "requests that arrive together are taken in together": config.costs.admission_s > 0.0,
    }
    found = [f"theory: {note}" for note, applies in notes.items() if applies]
    if config.costs.stream_s and schedule.stream_interval_steps > 1:
        each = f"{schedule.stream_interval_steps} steps"
        found.append(f"{config.engine.name} sends tokens of {each} together, for its front end to keep up")
    return found
