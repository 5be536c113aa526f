"""Pools that only decode: requests bring their KV cache, take a slot, and advance by one token per step."""

from __future__ import annotations

import math

import numpy as np

from planner.core import FloatArray
from planner.queueing.batch_occupancy import (
    RunningDistribution,
    SlotWork,
    mean_wait_when_blocked_s,
    running_distribution,
)
from planner.queueing.distributions import slice_means, sorted_slice_means
from planner.queueing.latencies import (
    FIRST_EDGES,
    FIRST_MASS,
    Blocking,
    QueueLatency,
    condensed_sample,
    decode_latencies,
    gap_distribution,
    unstable_latency,
    with_slot_wait,
)
from planner.queueing.lattice import geometric
from planner.queueing.renewal import index_of_dispersion, round_robin_share
from planner.queueing.server import (
    BatchServer,
    ContextSpread,
    decode_limit,
    spread_by_contexts,
    step_durations_s,
)
from planner.queueing.token_gap import LARGEST_FEEDBACK, slowly_varying_times
from planner.workload import ArrivalProcess, CondensedLengths, TokenLengths, condensed_lengths

SLOW_EDGES = np.linspace(0.0, 1.0, 33)
"""Slices of the number running told apart in a TPOT. A choice of resolution."""
BOUNDARY_POINTS = (np.arange(8) + 0.5) / 8.0
"""Where in the step in progress an arrival falls."""
SEARCH_POINTS = 64
"""Numbers running tried for the one that the load settles at. Affects speed only."""


def decode_pool(
    server: BatchServer, arrivals: ArrivalProcess, lengths: TokenLengths, replicas: int = 1
) -> QueueLatency:
    """Latencies of identical servers that decode only, behind a round-robin router.

    A request arrives with its prompt served. `ttft` is its wait until it joins a step (for a free slot, then for the
    step boundary), `tpot` its mean step from then on, `e2e` the wait and its O - 1 steps.

    Args:
        server: one server; its chunk budget caps the slots.
        arrivals: of the pool; each server sees every `replicas`-th arrival (rate / c, SCV / c).
        lengths: joint input and output tokens.
        replicas: servers.

    Returns:
        Latency distributions [s]; overload is an answer (`stable` False), not an error.

    Raises InputError when a step time is not finite and positive.
    """
    requests, share = condensed_lengths(lengths), round_robin_share(arrivals, replicas)
    limit = decode_limit(server, requests)
    utilisation = share.rate_per_s / limit.rate_per_s
    if utilisation >= 1.0:
        return unstable_latency(limit, utilisation)
    step_means_s, running = _steps_and_running(server, share, requests)
    wait_s = _wait_s(step_means_s, running, limit.rate_per_s, share, requests)
    first_s = np.broadcast_to(wait_s, (requests.groups.size, wait_s.size))
    gap_times_s = _gap_times_s(step_means_s, running, share.rate_per_s, requests, server.contexts)
    latencies = decode_latencies(requests, first_s, gap_times_s, np.diff(SLOW_EDGES))
    busy = running.probabilities[1:]
    return QueueLatency(
        stable=True,
        ttft=condensed_sample(wait_s, FIRST_MASS),
        tpot=latencies.tpot,
        e2e=latencies.e2e,
        itl=gap_distribution(step_means_s[1:], busy * running.counts[1:]),
        mean_running=running.mean,
        mean_step_s=float(busy.sum() / max((busy / step_means_s[1:]).sum(), np.finfo(float).tiny)),
        utilisation=utilisation,
        limit=limit.limit,
        joint=latencies.joint,
    )


def _steps_and_running(
    server: BatchServer, arrivals: ArrivalProcess, lengths: CondensedLengths
) -> tuple[FloatArray, RunningDistribution]:
    """Step times tau(0), tau(1), ..., tau(N) [s] and the distribution of the number running."""
    slots = max(1, round(min(float(server.max_running), float(server.max_batched_tokens))))
    token_rate = arrivals.rate_per_s * lengths.mean_gaps
    grid = np.unique(np.round(geometric(1.0, slots, SEARCH_POINTS)))
    growing = grid[token_rate * step_durations_s(server, grid, 0.0) >= grid]
    middle = float(growing[-1]) if growing.size else min(token_rate * float(step_durations_s(server, 1.0, 0.0)), 1.0)
    z = 1.0 + (index_of_dispersion(middle, arrivals.scv) - 1.0) * (lengths.overlap if lengths.decoding > 0.0 else 1.0)
    last = int(min(slots, 1.5 * middle + 12.0 * np.sqrt(max(z, 1.0) * middle) + 20.0))
    counts = np.arange(last + 1.0)
    step_means_s = step_durations_s(server, np.maximum(counts, 1.0), 0.0)
    largest = slots / float(step_means_s[-1]) if last == slots else math.inf
    return step_means_s, running_distribution(counts, step_means_s, token_rate, z, largest)


def _wait_s(
    step_means_s: FloatArray,
    running: RunningDistribution,
    largest_rate_per_s: float,
    arrivals: ArrivalProcess,
    lengths: CondensedLengths,
) -> FloatArray:
    """Wait [s] until a request joins, in slices FIRST_EDGES: for a slot, then for the end of the step in progress."""
    empty = running.empty
    steps = sorted_slice_means(step_means_s, running.probabilities * (running.counts > 0), SLOW_EDGES)
    rest = np.append(np.outer(steps, BOUNDARY_POINTS).ravel(), 0.0)
    weights = np.append(np.full(rest.size - 1, (1.0 - empty) / (rest.size - 1)), empty)
    work = SlotWork(float(running.counts[-1]), lengths.gaps_scv)
    mean = mean_wait_when_blocked_s(arrivals.rate_per_s, largest_rate_per_s, arrivals.scv, work)
    boundary = slice_means(rest, weights, FIRST_EDGES)
    return np.asarray(with_slot_wait(boundary[None, :], Blocking(running.blocked, mean))[0])


def _gap_times_s(
    step_means_s: FloatArray,
    running: RunningDistribution,
    rate_per_s: float,
    lengths: CondensedLengths,
    contexts: ContextSpread | None,
) -> FloatArray:
    """Times per output token [s] for each entry of `lengths.gaps`, in slices SLOW_EDGES, shape (gaps, slices).

    A request sees the number running that tokens see.
    """
    made, (steps_s,) = spread_by_contexts(
        (step_means_s[1:],),
        running.seen_by_tokens(step_means_s),
        None if contexts is None else contexts.noise_s(running.counts[1:]),
    )
    slow = sorted_slice_means(steps_s, made, SLOW_EDGES)
    at = int(min(round(running.mean), step_means_s.size - 2))
    feedback = rate_per_s * lengths.mean_gaps * float(step_means_s[at + 1] - step_means_s[at])
    memory = lengths.residual_gaps / (1.0 - min(max(feedback, 0.0), LARGEST_FEEDBACK))
    return slowly_varying_times(lengths.gaps, slow, memory)
