"""Pools that serve prompts: continuous batching with chunked prefill, and prefill alone.

Latencies of a request that meets a given number running are averaged over the distribution of that number.
"""

from __future__ import annotations

import numpy as np

from planner.queueing.backlog import COARSE_CELLS, FINE_CELLS, Backlog, TokenArrivals, solve_backlog
from planner.queueing.batch_occupancy import SlotWork, mean_wait_when_blocked_s
from planner.queueing.capacity import RUNNING, mixed_limit
from planner.queueing.first_token import first_token_times
from planner.queueing.fixed_point import CLOSEST_TO_CRITICAL, RunningState, running_state
from planner.queueing.latencies import (
    FIRST_EDGES,
    NEGLIGIBLE,
    Blocking,
    condensed,
    decode_latencies,
    delayed,
    first_token_distribution,
    unstable,
)
from planner.queueing.lengths import length_distribution
from planner.queueing.offered_load import Offered, burstiness
from planner.queueing.quantisation import binned_slice_means, sorted_slice_means
from planner.queueing.renewal import per_server
from planner.queueing.steps import require_usable, step_duration_s
from planner.queueing.token_gap import GapNoise, token_gap_times
from planner.queueing.types import BatchServer, FloatArray, QueueLatency
from planner.workload import ArrivalProcess, LatencyDistribution, TokenLengths

TINY = 1e-9
LARGEST_SOLVED = 0.985
"""Utilisation up to which the backlog is solved; above, waits grow as 1 / (1 - utilisation) (heavy traffic)."""
SMALLEST_SOLVED = 1e-6
"""A server less used than this is solved as if it were used this much."""
SLOW_EDGES = np.linspace(0.0, 1.0, 9)
OFTEN_EMPTY = 1e-3
"""Above this probability that nothing decodes, steps with nothing but prompts count in the mean step."""
TOWARDS_SATURATION = 0.5
"""Share of the way to its saturated value that the number running goes while a long backlog lasts; agrees with
simulation."""
NEGLIGIBLE_SPREAD = 0.02


def mixed_pool(server: BatchServer, arrivals: ArrivalProcess, lengths: TokenLengths, replicas: int = 1) -> QueueLatency:
    """Latencies of identical servers that each serve prompts and decodes, behind a round-robin router.

    Args:
        server: one server.
        arrivals: of the pool; each server sees every `replicas`-th arrival (rate / c, SCV / c).
        lengths: joint input and output tokens.
        replicas: servers.

    Raises InputError when the server cannot work or its step times are not finite and positive. Overload is an answer
    (`stable` False), not an error.
    """
    require_usable(server, replicas)
    limit = mixed_limit(server, length_distribution(lengths))
    offered = Offered(server, per_server(arrivals, replicas), length_distribution(lengths), limit)
    return _prompts_alone(offered) if offered.lengths.mean_gaps == 0.0 else _prompts_and_decodes(offered)


def prefill_pool(
    server: BatchServer, arrivals: ArrivalProcess, lengths: TokenLengths, replicas: int = 1
) -> QueueLatency:
    """Latencies of identical servers that serve prompts only: every request has one output token, E2E is TTFT.

    Arguments, result and errors as `mixed_pool`.
    """
    require_usable(server, replicas)
    prompts = length_distribution(lengths).prompts_only()
    return _prompts_alone(Offered(server, per_server(arrivals, replicas), prompts, mixed_limit(server, prompts)))


def _solvable(offered: Offered) -> tuple[Offered, float, float]:
    """The load to solve, its true utilisation, and the factor by which waits are larger than there."""
    utilisation = offered.rate_per_s / offered.limit.rate_per_s
    rate = min(max(utilisation, SMALLEST_SOLVED), LARGEST_SOLVED) * offered.limit.rate_per_s
    solved = Offered(offered.server, offered.arrivals.at_rate(rate), offered.lengths, offered.limit)
    return solved, utilisation, max(1.0, (1.0 - LARGEST_SOLVED) / max(1.0 - utilisation, np.finfo(float).tiny))


def _prompts_alone(offered: Offered) -> QueueLatency:
    solved, utilisation, stretch = _solvable(offered)
    if utilisation >= 1.0:
        return unstable(offered.limit, utilisation)
    spread = burstiness(solved, 0.0, solved.fluid[1])
    alone = solved.regime(0.0, 0.0, idle=1.0)
    backlog = solve_backlog(solved.server, alone, solved.tokens(spread.in_queue))
    busy = solve_backlog(solved.server, alone, solved.tokens(spread.in_step), COARSE_CELLS)
    times, weights = first_token_times(solved.server, backlog, solved.lengths, spread.sight)
    first_s = binned_slice_means(times, weights, FIRST_EDGES) * stretch
    ttft = condensed(first_s, np.outer(solved.lengths.group_weights, np.diff(FIRST_EDGES)))
    return QueueLatency(
        stable=True,
        ttft=ttft,
        tpot=LatencyDistribution.constant(0.0),
        e2e=ttft,
        itl=LatencyDistribution.constant(0.0),
        mean_running=0.0,
        mean_step_s=busy.mean_step_s,
        utilisation=utilisation,
        limit=offered.limit.limit,
        joint=first_token_distribution(solved.lengths, first_s),
    )


def _prompts_and_decodes(offered: Offered) -> QueueLatency:
    solved, utilisation, stretch = _solvable(offered)
    if utilisation >= 1.0:
        return unstable(offered.limit, utilisation)
    state = running_state(solved)
    backlogs = _backlogs_met(solved, state)
    parts = [first_token_times(solved.server, b, solved.lengths, state.spread.sight) for b in backlogs]
    times, weights = (np.concatenate(pieces, axis=1) for pieces in zip(*parts, strict=True))
    first_s = delayed(binned_slice_means(times, weights, FIRST_EDGES) * stretch, _blocking(solved, state, utilisation))
    gaps = solved.lengths.gaps
    tpot, e2e, joint = decode_latencies(solved.lengths, first_s, *_gap_times_s(solved, state, state.noise, gaps))
    one_gap_s, gap_mass = _gap_times_s(solved, state, state.noise.anywhere(), np.ones(1))
    return QueueLatency(
        stable=True,
        ttft=condensed(first_s, np.outer(solved.lengths.group_weights, np.diff(FIRST_EDGES))),
        tpot=tpot,
        e2e=e2e,
        itl=condensed(one_gap_s, gap_mass),
        mean_running=state.distribution.mean,
        mean_step_s=_mean_step_s(state, backlogs),
        utilisation=utilisation,
        limit=offered.limit.limit,
        joint=joint,
    )


def _backlogs_met(offered: Offered, state: RunningState) -> list[Backlog]:
    """Backlogs at two numbers running, one below and one above the mean, that stand for its distribution.

    While a long backlog lasts, the number running moves: the two are drawn together, and full steps are taken part of
    the way to the number running of a saturated server.
    """
    distribution, memory = state.distribution, offered.lengths.residual_gaps
    top = CLOSEST_TO_CRITICAL * offered.critical
    mean = min(distribution.mean, top)
    slow = offered.relaxation_steps(mean)
    spread = min(distribution.std * np.sqrt(memory / (memory + slow)), mean, top - mean)
    stream = offered.tokens(state.spread.in_queue)
    saturating = TOWARDS_SATURATION * slow / (slow + memory)
    nodes = [mean - spread, mean + spread] if spread > NEGLIGIBLE_SPREAD * mean else [mean]
    return [_met_backlog(offered, n, distribution.empty, saturating, stream) for n in nodes]


def _met_backlog(offered: Offered, running: float, empty: float, saturating: float, stream: TokenArrivals) -> Backlog:
    """Backlog at one number running; nothing decodes for the share `empty` of the time."""
    full_running = running + max(offered.limit.running - running, 0.0) * saturating
    if not offered.keeps_up(full_running):
        full_running = running
    idle, decoding = 0.0, running
    if empty > 0.0:
        decoding = max(running / max(1.0 - empty, TINY), TINY)
        pause_s = 1.0 / stream.rate_per_s
        odds = step_duration_s(offered.server, decoding, 0.0) / pause_s * empty / max(1.0 - empty, TINY)
        idle = odds / (1.0 + odds)
    return solve_backlog(offered.server, offered.regime(running, full_running, decoding, idle), stream, FINE_CELLS)


def _slot_work(offered: Offered) -> SlotWork:
    """Variability of the completions of a server whose slots are all taken.

    They fluctuate as the slots' own cycles (SCV of the gaps) and as the prompts that lengthen the steps (SCV of the
    prompts), each in proportion to its share of the step time, squared.
    """
    distribution, limit = offered.lengths, offered.limit
    decoding = step_duration_s(offered.server, limit.running, 0.0) / limit.step_s
    cycle = distribution.mean_gaps / (distribution.mean_gaps + limit.prefill_steps)
    shared = distribution.prompt_scv * (1.0 - decoding) ** 2
    return SlotWork(offered.server.max_running, distribution.gaps_scv * (cycle * decoding) ** 2, shared)


def _blocking(offered: Offered, state: RunningState, utilisation: float) -> Blocking:
    """Wait for a slot where slots give out first."""
    if state.distribution.blocked < NEGLIGIBLE or offered.limit.limit != RUNNING:
        return Blocking(0.0, 0.0)
    largest = offered.limit.rate_per_s
    mean = mean_wait_when_blocked_s(utilisation * largest, largest, offered.arrivals.scv, _slot_work(offered))
    return Blocking(state.distribution.blocked, mean)


def _gap_times_s(
    offered: Offered, state: RunningState, noise: GapNoise, gaps: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Times per output token [s] of requests with `gaps` steps and their weights, both of shape (gaps, points)."""
    counts, distribution = offered.counts, state.distribution
    seen = np.interp(counts + 1.0, counts, state.step_means_s)
    alone = np.minimum(offered.decode_steps_s, seen)
    slow, floor = (sorted_slice_means(one, distribution.probabilities, SLOW_EDGES) for one in (seen, alone))
    longest = float(np.interp(distribution.mean + 2.0 * distribution.std, counts, offered.full_steps_s))
    memory = offered.lengths.residual_gaps / (1.0 - state.slope)
    return token_gap_times(gaps, noise, slow, floor, memory, longest)


def _mean_step_s(state: RunningState, backlogs: list[Backlog]) -> float:
    """Mean duration of a busy step [s]; where the server is often empty, steps with nothing but prompts count too."""
    if state.distribution.empty > OFTEN_EMPTY:
        return float(np.mean([b.mean_step_s for b in backlogs]))
    running = state.distribution.probabilities[1:]
    return float(running.sum() / (running / state.step_means_s[1:]).sum())
