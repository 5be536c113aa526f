"""From what happened in a run to a `Performance`."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from planner.deployment import Deployment, Method, Performance, PoolLimit, PoolPerformance
from planner.latency import LatencyDistribution
from planner.roofline import Bound, StepShape
from planner.simulator.pools import Played, Served
from planner.simulator.traffic import FloatArray, IntArray, Offered
from planner.steps import StepTimer
from planner.uncertainty import latency_intervals
from planner.workload import ClosedLoop, Metric, Workload

TIMED_AT_ONCE = 8192
"""Runs of steps whose operators are timed in one call: keeps memory small."""
BLOCKED_SHARE = 0.01
"""A cap is a pool's limit when it held back a waiting request for more than this share of the busy time."""
BUSY_SHARE = 0.99
"""An overloaded pool idles less than 1 - this."""
GROWTH_RATIO = 1.2
"""Overload makes waits grow in proportion to time: at least 2-fold from the second to the last quarter of a run."""
LAG_SHARE = 0.03
"""An overloaded pool falls behind the clock by more than this share of the time that has passed (load above 1.03)."""
SETTLED_LIFETIMES = 10.0
"""A run shorter than this many mean E2E still shows its start; its result says so."""


def open_performance(
    deployment: Deployment, workload: Workload, measured: slice, offered: Offered, played: Played
) -> Performance:
    """Of the measured requests of an open run."""
    chosen = np.arange(measured.start, measured.stop)
    window_s = _window_s(played.sent_s[measured], played.end_s[measured])
    found = _performance(deployment, chosen, window_s, workload.rate_per_s, offered, played)
    behind = [
        _falls_behind(one, pool.utilisation, measured) for one, pool in zip(played.pools, found.pools, strict=True)
    ]
    notes = () if any(behind) else _too_short(window_s, found.e2e.mean_s, measured.stop)
    return replace(found, stable=not any(behind), assumptions=found.assumptions + notes)


def closed_performance(deployment: Deployment, loop: ClosedLoop, offered: Offered, played: Played) -> Performance:
    """Of all requests of a closed loop, with its steady part.

    That begins when every user has had its first answer and as many answers as there are users have come, and ends
    when all but the last of each user have been sent. In between the rate is sends per second.
    """
    count, users = offered.inputs.size, min(loop.concurrency, offered.inputs.size)
    makespan_s = float(played.end_s.max())
    whole = _performance(deployment, np.arange(count), (0.0, makespan_s), count / makespan_s, offered, played)
    later_s = played.sent_s[users:]
    answered = users + int(np.searchsorted(later_s, played.end_s[:users].max()))
    begin, stop = max(answered, 2 * users), count - users
    if begin >= stop or played.sent_s[begin] == played.sent_s[stop]:
        return whole
    window_s = (float(played.sent_s[begin]), float(played.sent_s[stop]))
    rate = (stop - begin) / (window_s[1] - window_s[0])
    steady = _performance(deployment, np.arange(begin, stop), window_s, rate, offered, played)
    return replace(whole, steady=steady)


def _performance(
    deployment: Deployment,
    chosen: IntArray,
    window_s: tuple[float, float],
    rate_per_s: float,
    offered: Offered,
    played: Played,
) -> Performance:
    """Latencies of the chosen requests; pool figures and tokens over a window [s]."""
    samples = _samples_s(offered, played, chosen)
    laws = {metric: LatencyDistribution.from_samples(values) for metric, values in samples.items()}
    ended = (played.end_s > window_s[0]) & (played.end_s <= window_s[1])
    sent_s = played.transfer_s[chosen][offered.outputs[chosen] > 1]
    pools = tuple(_pool_performance(one, window_s) for one in played.pools)
    lengths = float(offered.inputs[chosen].mean()), float(offered.outputs[chosen].mean())
    means = {metric: law.mean_s for metric, law in laws.items()}
    return Performance(
        method=Method.SIMULATED,
        rate_per_s=rate_per_s,
        stable=True,
        ttft=laws[Metric.TTFT],
        tpot=laws[Metric.TPOT],
        e2e=laws[Metric.E2E],
        pools=pools,
        kv_transfer_s=float(sent_s.mean()) if sent_s.size else 0.0,
        requests=chosen.size,
        assumptions=_assumptions(deployment),
        samples_s=samples,
        output_tokens_per_s=float(offered.outputs[ended].sum()) / (window_s[1] - window_s[0]),
        interval=latency_intervals(deployment, *lengths, [pool.mean_running for pool in pools], means),
    )


def _samples_s(offered: Offered, played: Played, chosen: IntArray) -> dict[Metric, FloatArray]:
    """TTFT, TPOT and E2E [s] of the chosen requests, each shape (chosen,)."""
    ttft = (played.first_s - played.sent_s)[chosen]
    e2e = (played.end_s - played.sent_s)[chosen]
    gaps = np.maximum(offered.outputs[chosen] - 1, 1)
    return {Metric.TTFT: ttft, Metric.TPOT: (e2e - ttft) / gaps, Metric.E2E: e2e}


def _window_s(sent_s: FloatArray, end_s: FloatArray) -> tuple[float, float]:
    """First to last measured arrival [s]; of a single request, its time in the system."""
    first, last = float(sent_s[0]), float(sent_s[-1])
    return first, last if last > first else float(end_s.max())


def _assumptions(deployment: Deployment) -> tuple[str, ...]:
    notes = [note for pool in deployment.pools for note in pool.config.assumptions]
    if deployment.is_disaggregated:
        notes.append("KV transfer at full NIC bandwidth without contention")
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


# ------------------------------------------------------------------------------------------------ one pool


def _pool_performance(served: Served, window_s: tuple[float, float]) -> PoolPerformance:
    """Time averages per replica over a window [s]."""
    (start_s, end_s, steps, held, running), shapes = served.runs.T[:5], served.runs.T[5:]
    inside_s = np.maximum(0.0, np.minimum(end_s, window_s[1]) - np.maximum(start_s, window_s[0]))
    steps_inside = steps * inside_s / (end_s - start_s)
    busy_s = float(inside_s.sum())
    replica_s = (window_s[1] - window_s[0]) * served.pool.replicas
    bound = _bound(served.pool.config.timer, steps_inside, shapes)
    return PoolPerformance(
        role=served.pool.role,
        utilisation=min(1.0, busy_s / replica_s),
        limit=_limit(served, float((end_s - start_s).sum()), bound),
        bound=bound,
        mean_running=float(inside_s @ running) / replica_s,
        mean_step_s=busy_s / float(steps_inside.sum()) if busy_s else 0.0,
        kv_occupancy=float(inside_s @ held) / replica_s / served.kv_blocks,
    )


def _bound(timer: StepTimer, steps: FloatArray, shapes: FloatArray) -> Bound:
    """The resource that takes most of the time of `steps` steps of each shape; of a lone decode if there are none.

    `steps` has shape (runs,), `shapes` has shape (fields of `StepShape`, runs).
    """
    if not steps.any():
        return timer.itemised(StepShape(1.0, 1.0)).bound
    seconds = np.zeros(len(Bound))
    for first in range(0, steps.size, TIMED_AT_ONCE):
        block = slice(first, first + TIMED_AT_ONCE)
        seconds += timer.bounds_s(StepShape(*shapes[:, block])) @ steps[block]
    return list(Bound)[int(seconds.argmax())]


def _limit(served: Served, busy_s: float, bound: Bound) -> PoolLimit:
    """The cap that held requests back for more than 1 % of the busy time, else the bound."""
    cap = max(served.blocked_s, key=served.blocked_s.__getitem__)
    if served.blocked_s[cap] > BLOCKED_SHARE * busy_s:
        return cap
    return PoolLimit(bound.value)


def _falls_behind(served: Served, utilisation: float, measured: slice) -> bool:
    """Whether waits for admission grew through the measured requests as only overload makes them grow."""
    inside = (served.request >= measured.start) & (served.request < measured.stop)
    arrival_s = served.arrival_s[inside]
    if utilisation < BUSY_SHARE or arrival_s.size < 4:
        return False
    wait_s = served.admit_s[inside] - arrival_s
    quarters = np.array_split(np.arange(arrival_s.size), 4)
    early, late = (float(wait_s[quarters[i]].mean()) for i in (1, 3))
    return late > GROWTH_RATIO * early and late > LAG_SHARE * float(arrival_s[quarters[3]].mean())
