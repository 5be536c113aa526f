"""The queue of one replica of a pool: arrivals of any kind, a router before it, what the engine adds behind it.

`queueing` solves a replica behind a round-robin router (every c-th arrival) or a random one (a share of 1 / c). Routers
that look at the replicas change the wait for the first token:

- in a prefill pool requests are prompts only, so the fewest requests is the shortest queue: each percentile of the wait
  changes as that of M/G/1 does (`queueing.load_balancing`: join the shortest queue, the shorter of two);
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
    decode_pool,
    mixed_pool,
    prefill_pool,
    random_wait_distribution,
    rescaled_wait,
    round_robin_wait_distribution,
    shortest_queue_wait_distribution,
    step_duration_s,
    two_choices_wait_distribution,
)
from planner.serving.full_memory import full_memory
from planner.serving.pool import PoolModel, lengths_in_steps, tokens_per_step
from planner.serving.types import Pool, Role, Router
from planner.workload import MAX_SCV, ArrivalProcess, JointDistribution, LatencyDistribution, TokenLengths

DISPERSION_WINDOWS = 64
"""Windows at which the dispersion of recorded arrivals is looked at. A choice."""
Solve = Callable[[ArrivalProcess, int], QueueLatency]
"""Queue of one of so many replicas behind a round-robin router."""

MOST_LOAD = 0.999
"""Load from which on waits behind a router, or by priority, are worked out at this load. A choice: they grow without
bound at 1."""


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
    count, router = pool.replicas, pool.router if pool.routers == 1 else Router.RANDOM
    if count == 1 or router is Router.ROUND_ROBIN:
        return solve(arrivals, count)
    random = solve(arrivals.split(1.0 / count), 1)
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


def replica_queue(
    model: PoolModel, lengths: TokenLengths, arrivals: ArrivalProcess, in_common: bool = False
) -> QueueLatency:
    """The queue of one replica behind the pool's router.

    Args:
        model: the pool.
        lengths: of its requests, prompts by their work.
        arrivals: at the pool.
        in_common: prompts have prefixes in common, by which a router with prefix affinity sends them.

    Returns:
        Latencies [s] from the time at which the engine looks at a request.
    """
    pool = model.pool
    memory, rate_per_s = full_memory(model, lengths), arrivals.rate_per_s / pool.replicas
    seen = model.server if memory is None else memory.server(model.server, rate_per_s)
    server = replace(seen, prompts_first=not pool.config.schedule.mixed_steps)
    steps = lengths if pool.role is Role.PREFILL else lengths_in_steps(lengths, tokens_per_step(pool.config))
    queue_of = {Role.MIXED: mixed_pool, Role.PREFILL: prefill_pool, Role.DECODE: decode_pool}[pool.role]

    def solve(offered: ArrivalProcess, replicas: int) -> QueueLatency:
        return queue_of(server, offered, steps, replicas)

    queue = _solved_for_any_arrivals(
        arrivals, model, lengths, lambda offered: routed_queue(solve, offered, steps, pool, in_common)
    )
    if seen is model.server or memory is None:
        return queue
    return replace(queue, utilisation=rate_per_s / memory.limit_per_s)


def _solved_for_any_arrivals(
    arrivals: ArrivalProcess,
    model: PoolModel,
    lengths: TokenLengths,
    solve: Callable[[ArrivalProcess], QueueLatency],
) -> QueueLatency:
    """The queue under arrivals of any kind, as that of the renewal process that waits as long.

    Robust queueing (Whitt and You, Operations Research 66(1), 2018): with I(x) the index of dispersion over x arrivals
    and c^2 the SCV of the work, the wait is the supremum over x of sqrt(2 rho x (I(x) + c^2)) - (1 - rho) x, in
    services. Where I is the same for all x that is rho (I + c^2) / (2 (1 - rho)), which gives the renewal process its
    SCV. In a mixed pool rho(x) grows from the load of the prompts alone to that of the pool as x outlasts the time that
    decodes take to follow (ours).
    """
    if not arrivals.dispersion:
        return solve(arrivals if arrivals.is_renewal else arrivals.as_renewal(1.0))
    poisson = solve(ArrivalProcess(rate_per_s=arrivals.rate_per_s))
    if not poisson.stable:
        return poisson
    tokens, probabilities = lengths.outputs if model.pool.role is Role.DECODE else lengths.inputs, lengths.probabilities
    mean, load = float(tokens @ probabilities), poisson.utilisation
    scv = float((tokens / mean - 1.0) ** 2 @ probabilities)
    x = np.geomspace(1.0, arrivals.dispersion[-1][0], DISPERSION_WINDOWS)
    busy = np.full(x.size, load)
    if model.pool.role is Role.MIXED:
        quick = min(prompts_share(model, lengths, arrivals.rate_per_s, poisson.mean_running), load)
        busy += (quick - load) * np.exp(-x / (arrivals.rate_per_s * poisson.e2e.mean_s))
    spread = np.array([arrivals.index_of_dispersion(window) for window in x]) + scv
    wait = float((np.sqrt(2.0 * busy * x * spread) - (1.0 - busy) * x).max())
    alike = min(max(2.0 * (1.0 - load) * wait / load - scv, arrivals.index_of_dispersion(1.0)), MAX_SCV)
    return solve(ArrivalProcess(rate_per_s=arrivals.rate_per_s, scv=alike, source=arrivals.source))


def prompts_share(model: PoolModel, lengths: TokenLengths, rate_per_s: float, running: float) -> float:
    """Share of the time that full steps beside so many decodes need for the prompts that arrive.

    Args:
        model: the pool.
        lengths: of its requests.
        rate_per_s: of all its requests [1/s].
        running: sequences that decode on a replica.

    Returns:
        A share, above 1 where prompts alone overload the pool [-].
    """
    chunk = max(model.server.max_batched_tokens - running, 1.0)
    step_s = float(model.server.step_s(np.array([running]), np.array([chunk]))[0])
    return rate_per_s / model.pool.replicas * lengths.mean_input * step_s / chunk


def as_served(queue: QueueLatency, model: PoolModel) -> QueueLatency:
    """With what the engine adds before it looks at a request, and TPOT per token instead of per step.

    Steps are waited for only where sequences decode, with chance min(1, mean running); the queue of a mixed pool has
    one of them (`BatchServer.prepares`). A prefill pool has a step prepared only while requests wait, and those wait
    for it anyway.

    Args:
        queue: of a replica.
        model: its pool.

    Returns:
        The queue with its latencies [s] as clients see them.
    """
    if not queue.stable:
        return queue
    pool = model.pool
    config = pool.config
    gain = tokens_per_step(config)
    tpot = (
        LatencyDistribution.from_samples(queue.tpot.support_s / gain, queue.tpot.weights) if gain > 1.0 else queue.tpot
    )
    busy = 0.0 if pool.role is Role.PREFILL else min(1.0, queue.mean_running)
    interval = config.schedule.receive_interval_steps - 1
    late_s = (config.costs.lag_steps - model.server.prepares + interval / 2.0) * busy * queue.mean_step_s
    late_s += 0.0 if pool.role is Role.PREFILL else config.stream_s * (1.0 + queue.mean_running)
    if pool.role is not Role.DECODE:
        late_s += config.costs.request_s

    alone_s = 0.0 if pool.role is Role.DECODE else step_duration_s(model.server, 0.0, 1.0)

    def later(times_s: FloatArray) -> FloatArray:
        return np.maximum(times_s + late_s, alone_s)

    joint = queue.joint
    if joint is not None:
        first_s, token_s, gaps = later(joint.first_s), joint.token_s / gain, joint.gaps * gain
        joint = replace(joint, first_s=first_s, token_s=token_s, gaps=gaps)
    if late_s == 0.0:
        return replace(queue, tpot=tpot, joint=joint)
    ttft = LatencyDistribution.from_samples(later(queue.ttft.support_s), queue.ttft.weights)
    all_later = float(queue.ttft.support_s[0]) + late_s >= alone_s
    e2e = LatencyDistribution.later(
        lambda: LatencyDistribution.from_samples(later(queue.e2e.support_s), queue.e2e.weights),
        queue.e2e.mean_s + late_s if all_later else None,
    )
    return replace(queue, ttft=ttft, tpot=tpot, e2e=e2e, joint=joint)
