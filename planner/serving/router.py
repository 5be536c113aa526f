"""What the router of a pool makes of it: one queue solved for a replica, changed as the router changes its waits.

`queueing` solves a replica behind a round-robin router (every c-th arrival) or a random one (a share of 1 / c). Routers
that look at the replicas change the wait for the first token:

- in a prefill pool requests are prompts only, so the fewest requests is the shortest queue: each percentile of the wait
  changes as that of M/G/1 does (`queueing.pooling`: join the shortest queue, the shorter of two);
- in a mixed pool most requests that a router counts are decoding, and say little about the prompts ahead. The fewest
  requests is round robin with the share TTFT / E2E of the way to join the shortest queue (by Little's law the share of
  the counted requests that wait for their first token); the less loaded of two lies between random and round robin
  (their geometric mean; chosen because it agrees with simulation of chat traffic,
  docs/explanation/queueing-policies.md);
- a router with prefix affinity heeds where a prefix is and not who is busy: which prefix comes next is chance, so that
  a replica gets the requests of a random router (that popular prefixes load theirs more is left out); requests with
  nothing in common it sends where the fewest are;
- in a decode pool all routers that look even out the number running, at least as well as round robin does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from planner.core import FloatArray
from planner.queueing import (
    QueueLatency,
    random_share,
    random_wait_distribution,
    rescaled_wait,
    round_robin_wait_distribution,
    shortest_queue_wait_distribution,
    two_choices_wait_distribution,
)
from planner.serving.types import Pool, Role, Router
from planner.workload import ArrivalProcess, JointDistribution, LatencyDistribution, TokenLengths

Solve = Callable[[ArrivalProcess, int], QueueLatency]
"""Queue of one of so many replicas behind a round-robin router."""

MOST_LOAD = 0.999
"""Load from which on waits behind a router are worked out at this load. A choice: they grow without bound at 1."""


def routed_queue(
    solve: Solve, arrivals: ArrivalProcess, lengths: TokenLengths, pool: Pool, in_common: bool = False
) -> QueueLatency:
    """The queue of one replica of a pool behind its own router.

    Args:
        solve: the queue of a replica behind a round-robin router.
        arrivals: at the pool.
        lengths: of its requests, outputs in decode steps.
        pool: the pool.
        in_common: its requests have prefixes in common, by which a router with prefix affinity sends them.

    Returns:
        Latencies [s].
    """
    count, router = pool.replicas, pool.router
    if count == 1 or router is Router.ROUND_ROBIN:
        return solve(arrivals, count)
    random = solve(random_share(arrivals, count), 1)
    by_prefix = router is Router.PREFIX_AFFINITY and in_common and pool.role is not Role.DECODE
    if router is Router.RANDOM or by_prefix or not random.stable:
        return random
    in_turn = solve(arrivals, count)
    if pool.role is Role.DECODE:
        return in_turn
    if router is Router.POWER_OF_TWO and pool.role is Role.MIXED:
        return _geometric_mean(random, in_turn)
    work = LatencyDistribution.from_samples(lengths.inputs / lengths.mean_input, lengths.probabilities)
    if router is Router.POWER_OF_TWO:
        return _with_router(random, work, arrivals, pool, random_wait_distribution, two_choices_wait_distribution)
    return _with_router(in_turn, work, arrivals, pool, round_robin_wait_distribution, shortest_queue_wait_distribution)


def _with_router(
    queue: QueueLatency,
    work: LatencyDistribution,
    arrivals: ArrivalProcess,
    pool: Pool,
    plain: Callable[..., LatencyDistribution],
    good: Callable[..., LatencyDistribution],
) -> QueueLatency:
    """The waits of `queue` moved from those of one abstract router to another's, as far as the router can know."""
    joint, load = queue.joint, min(queue.utilisation, MOST_LOAD)
    if joint is None:
        return queue
    known = 1.0 if pool.role is Role.PREFILL else queue.ttft.mean_s / queue.e2e.mean_s
    distributions = [distribution(work, load, pool.replicas, arrivals.scv) for distribution in (plain, good)]
    alone_s = joint.first_s.min(axis=1, keepdims=True)
    waits = replace(joint, first_s=joint.first_s - alone_s).ttft
    moved = rescaled_wait(waits, *distributions)
    moved_s = alone_s + np.interp(
        np.interp(joint.first_s - alone_s, waits.support_s, _ranks(waits)), _ranks(moved), moved.support_s
    )
    return with_joint(queue, replace(joint, first_s=(1.0 - known) * joint.first_s + known * moved_s))


def _ranks(distribution: LatencyDistribution) -> FloatArray:
    """Probability below the middle of each support point."""
    return np.asarray(np.cumsum(distribution.weights) - distribution.weights / 2.0)


def _geometric_mean(worse: QueueLatency, better: QueueLatency) -> QueueLatency:
    """Geometric mean of two queues of the same requests, percentile by percentile."""
    if worse.joint is None or better.joint is None:
        return better
    first_s = np.sqrt(worse.joint.first_s * better.joint.first_s)
    token_s = np.sqrt(worse.joint.token_s * better.joint.token_s)
    return with_joint(better, replace(better.joint, first_s=first_s, token_s=token_s))


def with_joint(queue: QueueLatency, joint: JointDistribution) -> QueueLatency:
    """The same queue with another joint distribution of TTFT and TPOT, and what follows from it.

    Args:
        queue: the queue.
        joint: of its requests [s].

    Returns:
        The queue with TTFT, TPOT and E2E [s] of `joint`.
    """
    if not np.any(joint.gaps > 0.0):
        return replace(queue, joint=joint, ttft=joint.ttft, e2e=joint.ttft)
    return replace(queue, joint=joint, ttft=joint.ttft, tpot=joint.tpot, e2e=joint.e2e)
