"""Simulation runs of a deployment: long enough to decide whether it meets its targets.

A recording is replayed whole, from its first request to its last. A process is drawn: as many requests as were asked
for, more where they stay long, and one whole cycle of a drift. What would take more than `MAX_SIMULATED_REQUESTS` is
simulated on a part of the fleet that gets its share of the traffic, so that every replica has the load it has in the
whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from planner.fleet.types import Progress, SimulatedRun
from planner.search import MOST_RESULTS, BoundedCache
from planner.serving import MOST_STABLE_SHARE, Deployment, Performance, Pool, Role, evaluate, requests_to_settle
from planner.simulator import simulate
from planner.workload import ArrivalProcess, RecordedArrivals, TokenLengths, Workload, condensed_lengths

SIMULATED_LIFETIMES = 15.0
"""Least length of a simulation in mean request lifetimes, so that its warm-up is a small part of it. A choice."""
SIMULATED_RELAXATIONS = 80.0
"""Least length of a simulation in times in which queues forget: four for each of the twenty batches that its error is
read from. Over shorter ones batches are alike and the error comes out too small: the interval of a share held it in 43
of 100 runs of ten such times beside a decode pool at 95.8 %, in 22 of 25 of eighty at 93 %. A choice."""
MAX_SIMULATED_REQUESTS = 200_000
"""Most requests of one simulation, unless more are asked for; bounds the time it takes. A choice."""
WARMUP_FRACTION = 0.1
"""Share of the requests drawn of a steady process that is not measured (that of `simulate`)."""
WARMUP_LIFETIMES = 3.0
"""Start of a recording or of a drift that is not measured, in mean request lifetimes; at most `WARMUP_FRACTION` of it.
What an empty start still lacks after t is the share of requests that stay longer, exp(-3) = 5 % for exponential stays.
A tenth of an hour would hide six minutes, which may be the worst."""
ALIKE = 0.01
"""Largest relative difference of the parts of two pools that are simulated for the whole. A choice."""
BUSIEST_SHARE = 0.2
"""Part of a recording that is replayed first. A choice: misses come in the busiest part."""
FEWEST_IN_PARTS = 20_000
"""Requests from which on a recording is replayed in parts. A choice: below it is quick as a whole."""


def requests_to_simulate(at_least: int, predicted: Performance) -> int:
    """Requests to simulate: as many as asked for, or more so that the run lasts `SIMULATED_LIFETIMES`."""
    lasting = math.ceil(SIMULATED_LIFETIMES * _lifetime_s(predicted) * predicted.rate_per_s)
    return max(at_least, min(lasting, MAX_SIMULATED_REQUESTS))


def requests_to_forget(pool: Pool, load: float, lengths: TokenLengths, arrival_scv: float) -> float:
    """Requests of a pool that come within the time in which its queues forget, (SCV of arrivals + r SCV of work) /
    (1 - load)^2.

    A queue with little to spare is reflected Brownian motion, of which the integrated autocorrelation is its variance
    per service over the square of the spare share [service times]. Each of r replicas behind a router that takes turns
    sees the SCV of the arrivals / r, and a share 1 / r of the requests.

    Args:
        pool: its role decides what work is: input tokens, output tokens, or of both those that vary more.
        load: offered over largest stable rate, in [0, 1).
        lengths: of the requests.
        arrival_scv: of the gaps between the pool's arrivals.

    Source: Whitt, "Planning queueing simulations", Management Science 35 (1989) 1341-1366.
    """
    of = condensed_lengths(lengths)
    work_scv = {Role.PREFILL: of.prompt_scv, Role.DECODE: of.gaps_scv}.get(pool.role, max(of.prompt_scv, of.gaps_scv))
    return (arrival_scv + pool.replicas * work_scv) / (1.0 - min(load, MOST_STABLE_SHARE)) ** 2


def run_of(deployment: Deployment, workload: Workload, at_least: int, predicted: Performance) -> SimulatedRun:
    """The run that simulates a deployment.

    Args:
        deployment: its replicas.
        workload: all it gets.
        at_least: fewest requests, unless a recording has fewer.
        predicted: by theory, for how long requests stay.
    """
    arrivals = workload.arrivals
    lifetime_s = _lifetime_s(predicted)
    if isinstance(arrivals, RecordedArrivals):
        return _replay(deployment, workload, arrivals, lifetime_s)
    requests = requests_to_simulate(at_least, predicted)
    if any(pool.kv_occupancy_p99 > 0.0 for pool in predicted.pools) and predicted.stable:
        requests = max(requests, min(requests_to_settle(deployment, workload), MAX_SIMULATED_REQUESTS))
    if isinstance(arrivals, ArrivalProcess) and predicted.stable:
        pools = zip(deployment.pools, predicted.pools, strict=True)
        forgotten = (requests_to_forget(one, of.utilisation, workload.lengths, arrivals.scv) for one, of in pools)
        requests = max(requests, round(min(SIMULATED_RELAXATIONS * max(forgotten), MAX_SIMULATED_REQUESTS)))
    if isinstance(arrivals, ArrivalProcess) and arrivals.drift is not None:
        return _drawn_drift(deployment, workload, arrivals, requests, lifetime_s)
    return SimulatedRun(deployment, workload, requests, WARMUP_FRACTION)


def _lifetime_s(predicted: Performance) -> float:
    return predicted.e2e.mean_s if predicted.stable else 0.0


def _warmup_fraction(lifetime_s: float, duration_s: float) -> float:
    return min(WARMUP_FRACTION, WARMUP_LIFETIMES * lifetime_s / duration_s)


def _replay(deployment: Deployment, workload: Workload, recording: RecordedArrivals, lifetime_s: float) -> SimulatedRun:
    """All of a recording by all of the fleet, or a share of it by that share of the fleet."""
    recorded = len(recording.times_s)
    part, share = part_of_fleet(deployment, MAX_SIMULATED_REQUESTS / recorded)
    thinned, left_out = recording.split(share), ""
    if len(thinned.times_s) > MAX_SIMULATED_REQUESTS:
        busiest = busiest_requests(thinned, MAX_SIMULATED_REQUESTS)
        hours, whole = (float(times.offsets_s[-1]) / 3600.0 for times in (busiest, thinned))
        thinned, left_out = busiest, f"only the busiest {hours:.2g} of {whole:.2g} hours"
    warmup = _warmup_fraction(lifetime_s, float(thinned.offsets_s[-1]))
    replayed = Workload(arrivals=thinned, classes=workload.classes)
    return SimulatedRun(part, replayed, None, warmup, share, left_out)


def busiest_part(run: SimulatedRun) -> SimulatedRun | None:
    """The busiest part of a replay, which tells most fleets that miss; None where it is short."""
    recording = run.recording
    if recording is None or len(recording.times_s) < FEWEST_IN_PARTS:
        return None
    measured = round(len(recording.times_s) * (1.0 - run.warmup_fraction))
    part = busiest_requests(recording, round(BUSIEST_SHARE * len(recording.times_s)))
    return replace(run, workload=Workload(arrivals=part, classes=run.workload.classes), part_of=measured)


def _drawn_drift(
    deployment: Deployment, workload: Workload, arrivals: ArrivalProcess, requests: int, lifetime_s: float
) -> SimulatedRun:
    """One whole cycle of a drift, and as many requests as a steady process would have.

    Of a cycle that is too long the stretch whose rates are distributed most like those of all of it.
    """
    drift = arrivals.drift
    cycle_s = drift.duration_s if drift is not None else 0.0
    warmup = _warmup_fraction(lifetime_s, cycle_s)
    wanted = max(requests, math.ceil(cycle_s * arrivals.rate_per_s / (1.0 - warmup)))
    part, share = part_of_fleet(deployment, max(requests, MAX_SIMULATED_REQUESTS) / wanted)
    most = max(requests, MAX_SIMULATED_REQUESTS)
    drawn = min(math.ceil(wanted * share), most)
    seen, left_out = arrivals.split(share), ""
    if drift is not None and drawn < math.ceil(wanted * share):
        seen_s = drawn * (1.0 - warmup) / (share * arrivals.rate_per_s)
        left_out = f"only {seen_s / 3600.0:.2g} hours of a drift that repeats after {cycle_s / 3600.0:.2g}"
        stretch, mean = drift.stretch_like_all(seen_s)
        seen = seen.model_copy(update={"drift": stretch}).at_rate(mean * seen.rate_per_s)
    of_part = Workload(arrivals=seen, classes=workload.classes)
    return SimulatedRun(part, of_part, drawn, warmup, share, left_out)


def part_of_fleet(deployment: Deployment, share: float) -> tuple[Deployment, float]:
    """A deployment with about this share of its replicas or a little more, and the share of the traffic it gets.

    Pools stand to one another as in the whole, up to `ALIKE`; no replica has less to do than there. A smaller pool
    averages less, so that a part that holds speaks for the whole.

    >>> from hardware_db import load_hardware
    >>> from planner import ReplicaConfig, load_llm
    >>> db = load_hardware()
    >>> one = ReplicaConfig(llm=load_llm("llama-3.1-8b"), sku=db.skus["h100-sxm"], engine=db.engines["vllm"])
    >>> part, share = part_of_fleet(Deployment.disaggregated(one, one, (12, 4)), 0.3)
    >>> part.summary, share
    ('6 × H100 SXM (6 prefill TP1) + 2 × H100 SXM (2 decode TP1)', 0.5)
    """
    counts = [pool.replicas for pool in deployment.pools]
    for first in range(max(1, math.ceil(share * counts[0] - ALIKE)), counts[0]):
        kept = [max(1, round(first / counts[0] * count)) for count in counts]
        shares = [few / count for few, count in zip(kept, counts, strict=True)]
        if min(shares) >= share - ALIKE and max(shares) <= (1.0 + ALIKE) * min(shares):
            pools = [
                pool.model_copy(update={"replicas": few}) for pool, few in zip(deployment.pools, kept, strict=True)
            ]
            return deployment.model_copy(update={"pools": tuple(pools)}), max(shares)
    return deployment, 1.0


def busiest_requests(recording: RecordedArrivals, count: int) -> RecordedArrivals:
    """So many consecutive requests that came in the shortest time, when they came."""
    times_s = recording.offsets_s
    first = int(np.argmin(times_s[count - 1 :] - times_s[: times_s.size - count + 1]))
    places = np.arange(times_s.size)
    return recording.only((places >= first) & (places < first + count))


def run_notes(run: SimulatedRun) -> tuple[str, ...]:
    """Notes on the traffic that a run leaves out."""
    notes = []
    doing = "simulated" if run.recording is None else "replayed"
    if run.fleet_share < 1.0:
        notes.append(f"{doing} on {run.deployment.summary} with {run.fleet_share:.1%} of the requests, for the whole")
    if run.left_out:
        notes.append(f"{doing}: {run.left_out}")
    return tuple(notes)


# --- running it -----------------------------------------------------------------------------------------------------


_PERFORMANCES: BoundedCache[tuple[Deployment, Performance]] = BoundedCache(MOST_RESULTS)


def _remembered(
    deployment: Deployment, workload: Workload, settings: tuple[float, ...], compute: Callable[[], Performance]
) -> Performance:
    """The performance computed for the same deployment before, or what `compute` returns.

    Configurations hold tables that cannot be hashed, so that the key is their summary and the rest is compared.
    """
    key = (deployment.summary, tuple(pool.config.shift for pool in deployment.pools), workload, settings)
    known = _PERFORMANCES.get(key)
    if known is None or known[0] != deployment:
        known = _PERFORMANCES.put(key, (deployment, compute()))
    return known[1]


def evaluated(deployment: Deployment, workload: Workload, *, figures: bool = True) -> Performance:
    """By theory; `figures` as in `evaluate`."""
    compute = partial(evaluate, deployment, workload, figures=figures)
    return _remembered(deployment, workload, (float(figures),), compute)


def simulated(run: SimulatedRun, workload: Workload, seed: int, progress: Progress) -> Performance:
    """The run's latencies, at the rates of the whole `workload` it is a part of."""
    recording = run.recording
    requests = len(recording.times_s) if recording is not None else run.requests or 0
    doing = "simulating" if recording is None else "replaying"

    compute = partial(
        simulate,
        run.deployment,
        run.workload,
        seed=seed,
        requests=run.requests,
        warmup_fraction=run.warmup_fraction,
        progress=lambda share: progress(f"{doing} {requests:,} requests, {share:.0%}"),
    )
    found = _remembered(run.deployment, run.workload, (seed, requests, run.warmup_fraction), compute)
    if found.rate_per_s == workload.rate_per_s:
        return found
    factor = workload.rate_per_s / found.rate_per_s
    return replace(
        found,
        rate_per_s=workload.rate_per_s,
        output_tokens_per_s=found.output_tokens_per_s / run.fleet_share,
        classes=tuple(replace(kind, rate_per_s=factor * kind.rate_per_s) for kind in found.classes),
    )
