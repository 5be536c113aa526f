"""From what happened in a run to a `Performance`: latencies of the measured requests, figures of the pools."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from planner.core import FloatArray, IntArray, Metric
from planner.engine import Batching, KvAllocation, StepTimer, encoder_notes, images_s
from planner.roofline import Bound, StepShape
from planner.serving import (
    ClassPerformance,
    Deployment,
    Method,
    Performance,
    PoolLimit,
    PoolPerformance,
    Role,
    class_performance,
    latency_intervals,
    notes_on_waiting_prompts,
)
from planner.simulator.events import RunRecord
from planner.simulator.pool import PoolRecord
from planner.simulator.traffic import DrawnTraffic
from planner.workload import ClosedLoop, LatencyDistribution, RequestClass, Slo, Workload

MOST_TIMED = 4096
"""Runs of steps whose operators are timed, with prompts and without, evenly spaced. A choice: the share of a resource
in the time is then known to a percent."""
BLOCKED_SHARE = 0.01
"""A cap is a pool's limit when it held back a waiting request for more than this share of the busy time. A choice."""
BUSY_SHARE = 0.99
"""An overloaded pool idles less than 1 - this. A choice: affects `stable` only."""
GROWTH_RATIO = 1.2
"""Overload makes waits grow in proportion to time: at least 2-fold from the second to the last quarter of a run."""
LAG_SHARE = 0.03
"""An overloaded pool falls behind the clock by more than this share of the time that has passed (load above 1.03)."""
HIGH_SHARE = 0.99
"""Share of the time in which `PoolPerformance.kv_occupancy_p99` is not exceeded (definition)."""
SETTLED_LIFETIMES = 10.0
"""A run shorter than this many mean E2E still shows its start; its result says so. A choice."""


def open_performance(
    deployment: Deployment, workload: Workload, measured: slice, traffic: DrawnTraffic, record: RunRecord
) -> Performance:
    """Performance of the measured requests of an open run."""
    chosen = np.arange(measured.start, measured.stop)
    first_s, last_s = (float(record.sent_s[place]) for place in (measured.start, measured.stop - 1))
    window_s = first_s, last_s if last_s > first_s else float(record.end_s[measured].max())
    performance = _performance(deployment, workload.classes, chosen, window_s, workload.rate_per_s, traffic, record)
    crossed = performance.link_utilisation >= BUSY_SHARE
    behind = [
        _falls_behind(pool_record, crossed or pool.utilisation >= BUSY_SHARE, measured)
        for pool_record, pool in zip(record.pools, performance.pools, strict=True)
    ]
    if crossed:
        sent = chosen[~np.isnan(record.transfer_s[measured])]
        behind.append(_grows(record.sent_s[sent], record.transfer_s[sent]))
    if performance.pools[0].encoders_busy >= BUSY_SHARE:
        sent_s = record.sent_s[record.pools[0].request]
        behind.append(_grows(sent_s, record.pools[0].arrival_s - sent_s))
    notes = () if any(behind) else _too_short(window_s, performance.e2e.mean_s, measured.stop)
    return replace(performance, stable=not any(behind), assumptions=performance.assumptions + notes)


def closed_performance(
    deployment: Deployment, workload: Workload, loop: ClosedLoop, traffic: DrawnTraffic, record: RunRecord
) -> Performance:
    """Performance of all requests of a closed loop, with its steady part.

    That begins when every user has had its first answer and as many answers as there are users have come, and ends
    when all but the last of each user have been sent. In between the rate is sends per second.
    """
    count, users = traffic.inputs.size, min(loop.concurrency, traffic.inputs.size)
    makespan_s = float(record.end_s.max())
    everyone, all_of_it = np.arange(count), (0.0, makespan_s)
    whole = _performance(deployment, workload.classes, everyone, all_of_it, count / makespan_s, traffic, record)
    later_s = record.sent_s[users:]
    answered = users + int(np.searchsorted(later_s, record.end_s[:users].max()))
    begin, stop = max(answered, 2 * users), count - users
    if begin >= stop or record.sent_s[begin] == record.sent_s[stop]:
        return whole
    window_s = (float(record.sent_s[begin]), float(record.sent_s[stop]))
    rate = (stop - begin) / (window_s[1] - window_s[0])
    steady = _performance(deployment, workload.classes, np.arange(begin, stop), window_s, rate, traffic, record)
    return replace(whole, steady=steady)


def _performance(
    deployment: Deployment,
    classes: tuple[RequestClass, ...],
    chosen: IntArray,
    window_s: tuple[float, float],
    rate_per_s: float,
    traffic: DrawnTraffic,
    record: RunRecord,
) -> Performance:
    """Latencies of the chosen requests; pool figures and tokens over a window [s]."""
    samples = _samples_s(traffic, record, chosen)
    distributions = {metric: LatencyDistribution.from_samples(values) for metric, values in samples.items()}
    ended = (record.end_s > window_s[0]) & (record.end_s <= window_s[1])
    sent_s = record.transfer_s[chosen]
    sent_s = sent_s[~np.isnan(sent_s)]
    pools = tuple(_pool_performance(pool, traffic, chosen, window_s) for pool in record.pools)
    if record.encoded.size:
        busy = _busy_share(record.encoded, window_s, deployment.pools[0].encoders)
        pools = (replace(pools[0], encoders_busy=busy), *pools[1:])
    lengths = float(traffic.inputs[chosen].mean()), float(traffic.outputs[chosen].mean())
    means = {metric: distribution.mean_s for metric, distribution in distributions.items()}
    running, encode_s = [pool.mean_running for pool in pools], _mean_encoder_s(deployment, traffic, chosen)
    links = min(pool.replicas * own for pool, own in zip(deployment.pools, deployment.kv_links, strict=True))
    return Performance(
        method=Method.SIMULATED,
        rate_per_s=rate_per_s,
        stable=True,
        ttft=distributions[Metric.TTFT],
        tpot=distributions[Metric.TPOT],
        e2e=distributions[Metric.E2E],
        itl=_token_gaps(record.pools[-1].gaps, window_s) or distributions[Metric.TPOT],
        pools=pools,
        kv_transfer_s=float(sent_s.mean()) if sent_s.size else 0.0,
        requests=chosen.size,
        assumptions=_assumptions(deployment)
        + notes_on_waiting_prompts(deployment, pools, int(traffic.inputs[chosen].max()))
        + encoder_notes(deployment.pools[0].config, encode_s),
        samples_s=samples,
        output_tokens_per_s=float(traffic.outputs[ended].sum()) / (window_s[1] - window_s[0]),
        interval=latency_intervals(deployment, *lengths, running, means, encode_s=encode_s),
        classes=_class_performances(classes, traffic.class_index[chosen], rate_per_s, samples),
        link_utilisation=_busy_share(record.sends, window_s, links),
    )


def _mean_encoder_s(deployment: Deployment, traffic: DrawnTraffic, chosen: IntArray) -> float:
    """Mean time of the vision encoder on the images of the chosen requests [s]."""
    if not traffic.kinds:
        return 0.0
    each_s = np.array([*(images_s(deployment.pools[0].config, images) for images in traffic.kinds), 0.0])
    return float(each_s[traffic.images[chosen]].mean())


def _samples_s(traffic: DrawnTraffic, record: RunRecord, chosen: IntArray) -> dict[Metric, FloatArray]:
    """TTFT, TPOT and E2E [s] of the chosen requests, each shape (chosen,), in order of sending."""
    ttft = (record.first_s - record.sent_s)[chosen]
    e2e = (record.end_s - record.sent_s)[chosen]
    gaps = np.maximum(traffic.outputs[chosen] - 1, 1)
    return {Metric.TTFT: ttft, Metric.TPOT: (e2e - ttft) / gaps, Metric.E2E: e2e}


def _token_gaps(gaps: FloatArray, window_s: tuple[float, float]) -> LatencyDistribution | None:
    """The distribution of the gaps [s] between tokens that ended in a window [s]; None when there were none."""
    end_s, gap_s, count = gaps.T
    inside = (end_s > window_s[0]) & (end_s <= window_s[1]) & (count > 0)
    return LatencyDistribution.from_samples(gap_s[inside], count[inside]) if inside.any() else None


def _class_performances(
    classes: tuple[RequestClass, ...], class_index: IntArray, rate_per_s: float, samples: dict[Metric, FloatArray]
) -> tuple[ClassPerformance, ...]:
    """One entry for each of several classes of which a request was measured; `class_index` has shape (chosen,)."""
    performances = []
    for index, requests in enumerate(classes if len(classes) > 1 else ()):
        mine = class_index == index
        if not mine.any():
            continue
        own = {metric: values[mine] for metric, values in samples.items()}
        distributions = {metric: LatencyDistribution.from_samples(values) for metric, values in own.items()}
        attainment = None if requests.slo is None else _attainment(requests.slo, own)
        rate = rate_per_s * float(mine.mean())
        performances.append(class_performance(requests.name, rate, distributions, attainment))
    return tuple(performances)


def _attainment(slo: Slo, samples: dict[Metric, FloatArray]) -> float:
    """Share of the requests that meet every threshold; targets on single gaps (ITL) do not count."""
    met = [samples[target.metric] <= target.threshold_s for target in slo.targets if target.metric in samples]
    return float(np.logical_and.reduce(met).mean()) if met else 1.0


def _busy_share(sends: FloatArray, window_s: tuple[float, float], links: int) -> float:
    """Seconds of transfers, (start, seconds) in shape (n, 2), in a window [s] per second of it and link."""
    start_s, seconds = sends.T
    inside_s = np.minimum(start_s + seconds, window_s[1]) - np.maximum(start_s, window_s[0])
    return float(np.maximum(0.0, inside_s).sum()) / ((window_s[1] - window_s[0]) * links)


def _assumptions(deployment: Deployment) -> tuple[str, ...]:
    notes = [note for pool in deployment.pools for note in pool.config.assumptions]
    if deployment.is_disaggregated:
        shared = "one after the other on each replica's link" if deployment.transfer.shared else "without contention"
        notes.append(f"KV transfer at full NIC bandwidth {shared}")
    return tuple(dict.fromkeys(notes))


def _too_short(window_s: tuple[float, float], mean_e2e_s: float, requests: int) -> tuple[str, ...]:
    """A note when the run is too short for its start to be forgotten, with the length that would do."""
    length_s = window_s[1] - window_s[0]
    if length_s >= SETTLED_LIFETIMES * mean_e2e_s:
        return ()
    enough = math.ceil(requests * SETTLED_LIFETIMES * mean_e2e_s / length_s)
    return (
        f"simulated {length_s:.3g} s of arrivals, short for requests that take {mean_e2e_s:.3g} s: the empty start "
        f"still shows; simulate {enough} requests",
    )


def _pool_performance(
    pool_record: PoolRecord, traffic: DrawnTraffic, chosen: IntArray, window_s: tuple[float, float]
) -> PoolPerformance:
    """Time averages per replica over a window [s], and prompt tokens of the chosen requests found in its cache."""
    (start_s, end_s, steps, held, running), shapes = pool_record.runs.T[:5], pool_record.runs.T[5:]
    inside_s = np.maximum(0.0, np.minimum(end_s, window_s[1]) - np.maximum(start_s, window_s[0]))
    steps_inside = steps * inside_s / (end_s - start_s)
    busy_s = float(inside_s.sum())
    replica_s = (window_s[1] - window_s[0]) * pool_record.pool.replicas
    bound = _bound(pool_record.pool.config.timer, steps_inside, shapes)
    links = pool_record.pool.replicas * pool_record.pool.config.parallelism.dp
    return PoolPerformance(
        role=pool_record.pool.role,
        utilisation=min(1.0, busy_s / replica_s),
        limit=_limit(pool_record, float((end_s - start_s).sum()), bound),
        bound=bound,
        mean_running=float(inside_s @ running) / replica_s,
        mean_step_s=busy_s / float(steps_inside.sum()) if busy_s else 0.0,
        kv_occupancy=float(inside_s @ held) / replica_s / pool_record.kv_blocks,
        kv_occupancy_p99=_high_occupancy(held, inside_s, replica_s) / pool_record.kv_blocks,
        prefix_hits=float(_hit_share(pool_record.hits, pool_record, traffic, chosen)),
        kv_waste=_kv_waste(pool_record, inside_s),
        preempted=pool_record.preempted / max(1, pool_record.request.size),
        tier_hits=tuple(_hit_share(pool_record.tier_hits, pool_record, traffic, chosen).tolist()),
        tier_link=_busy_share(pool_record.tier_loads, window_s, links),
    )


def _high_occupancy(held: FloatArray, inside_s: FloatArray, replica_s: float) -> float:
    """Blocks held that are exceeded 1 % of the time; nothing is held while a replica idles. Shapes (runs,)."""
    order = np.argsort(held)
    passed_s = np.append(replica_s - inside_s.sum(), inside_s[order]).cumsum()
    place = int(np.searchsorted(passed_s, HIGH_SHARE * replica_s))
    return 0.0 if place == 0 else float(held[order][min(place, held.size) - 1])


def _hit_share(hits: IntArray, pool_record: PoolRecord, traffic: DrawnTraffic, chosen: IntArray) -> FloatArray:
    """Share of the chosen requests' prompt tokens that are `hits`, shape (n, ...); the result has shape (...)."""
    found = np.zeros((traffic.inputs.size, *hits.shape[1:]))
    found[pool_record.request] = hits
    return np.asarray(found[chosen].sum(axis=0) / traffic.inputs[chosen].sum())


def _kv_waste(pool_record: PoolRecord, inside_s: FloatArray) -> float:
    """Share of the memory of the blocks that sequences hold in which none of their tokens is stored, over time.

    Only of steps in which every sequence is at work: the tokens of a paused one, or of a static batch whose prompts are
    under way, are not in the step's shape. Where a static batch goes on with sequences that have ended, their part is
    waste (padding of prompts is not told apart from tokens). 0 in a prefill pool, where nothing is set aside but the
    ends of last blocks. `inside_s` has shape (runs,) [s].
    """
    if pool_record.pool.role is Role.PREFILL:
        return 0.0
    config, schedule = pool_record.pool.config, pool_record.pool.config.schedule
    steps, held, running, decodes, context, _, _, cached, prompts = pool_record.runs.T[2:]
    if not schedule.reserve_outputs and schedule.kv is KvAllocation.PAGED:
        speed = config.drafting.tokens_per_step if config.drafting else 1.0
        context = context - decodes * speed * (steps - 1.0) / 2.0  # blocks held are those of the first step of a run
    known = (running <= decodes) & ((decodes > 0) | (schedule.batching is not Batching.STATIC))
    stored = context * running / np.maximum(decodes, 1.0) + cached
    room = (held - pool_record.sequence_blocks * (running + prompts)) * config.kv_block_tokens
    known_s = np.where(known, inside_s, 0.0)
    set_aside = float(known_s @ room)
    return max(0.0, 1.0 - float(known_s @ np.minimum(stored, room)) / set_aside) if set_aside > 0.0 else 0.0


def _bound(timer: StepTimer, steps: FloatArray, shapes: FloatArray) -> Bound:
    """The resource that takes most of the time of `steps` steps of each shape; of a lone decode if there are none.

    `steps` has shape (runs,), `shapes` has shape (fields of `StepShape`, runs).
    """
    if not steps.any():
        return timer.bound(StepShape(1.0, 1.0))
    seconds = np.zeros(len(Bound))
    has_prompts, made = shapes[-1] > 0.0, steps > 0.0
    for which in (np.flatnonzero(made & has_prompts), np.flatnonzero(made & ~has_prompts)):
        timed = which[:: max(1, which.size // MOST_TIMED)]
        if timed.size:
            stands_for = steps[which].sum() / steps[timed].sum()
            seconds += timer.bounds_s(StepShape(*shapes[:, timed])) @ steps[timed] * stands_for
    return list(Bound)[int(seconds.argmax())]


def _limit(pool_record: PoolRecord, busy_s: float, bound: Bound) -> PoolLimit:
    """The cap that held requests back for more than 1 % of the busy time, else the bound."""
    cap = max(pool_record.blocked_s, key=pool_record.blocked_s.__getitem__)
    if pool_record.blocked_s[cap] > BLOCKED_SHARE * busy_s:
        return cap
    return PoolLimit(bound.value)


def _falls_behind(pool_record: PoolRecord, busy: bool, measured: slice) -> bool:
    """True if waits for admission grew through the measured requests as only overload makes them grow."""
    inside = (pool_record.request >= measured.start) & (pool_record.request < measured.stop)
    arrival_s = pool_record.arrival_s[inside]
    return busy and _grows(arrival_s, pool_record.admit_s[inside] - arrival_s)


def _grows(arrival_s: FloatArray, wait_s: FloatArray) -> bool:
    """True if waits, in order of arrival, grow in proportion to the time that has passed; each shape (n,) [s]."""
    if arrival_s.size < 4:
        return False
    quarters = np.array_split(np.arange(arrival_s.size), 4)
    early, late = (float(wait_s[quarters[i]].mean()) for i in (1, 3))
    return late > GROWTH_RATIO * early and late > LAG_SHARE * float(arrival_s[quarters[3]].mean())
