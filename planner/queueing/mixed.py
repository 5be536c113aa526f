"""Pools that serve prompts: continuous batching with chunked prefill, and prefill alone.

The number running changes slowly (over hundreds of steps), the backlog of prompt tokens quickly (over a few). So the
backlog is solved at a fixed number running, which gives the mean step T(n); T(n) gives the law of the number running;
and latencies are averaged over that law.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.latency import LatencyDistribution
from planner.queueing.backlog import COARSE_CELLS, FINE_CELLS, Backlog, TokenArrivals, solve_backlog
from planner.queueing.capacity import RUNNING, mixed_limit
from planner.queueing.first_token import first_token_times
from planner.queueing.latencies import (
    FIRST_EDGES,
    NEGLIGIBLE,
    Blocking,
    condensed,
    decode_latencies,
    delayed,
    unstable,
)
from planner.queueing.lengths import length_law
from planner.queueing.offered import Burstiness, Offered, burstiness
from planner.queueing.renewal import per_server
from planner.queueing.running import RunningLaw, mean_wait_when_blocked_s, running_law
from planner.queueing.slices import slice_means, sorted_slice_means
from planner.queueing.steps import require_usable, step_duration_s
from planner.queueing.token_gap import (
    LARGEST_FEEDBACK,
    NOISE_EDGES,
    GapNoise,
    gap_noise,
    token_elasticity,
    token_gap_times,
)
from planner.queueing.types import BatchServer, FloatArray, QueueLatency
from planner.workload import ArrivalProcess, TokenLengths

LARGEST_SOLVED = 0.985
"""Utilisation up to which the backlog is solved; above, waits grow as 1 / (1 - utilisation) (heavy traffic)."""
SMALLEST_SOLVED = 1e-6
"""A server less used than this is solved as if it were used this much."""
CLOSEST_TO_CRITICAL = 0.985
"""The backlog is not solved nearer than this to the running number at which full steps only just keep up."""
SLOW_EDGES = np.linspace(0.0, 1.0, 9)
OFTEN_EMPTY = 1e-3
UPWARD = 1.2
"""The step curve is anchored at the mean number running and this many standard deviations above."""
NEAR = 0.3
"""No new anchor within this many standard deviations of an old one."""
REFINEMENTS = 3


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
    limit = mixed_limit(server, length_law(lengths))
    offered = Offered(server, per_server(arrivals, replicas), length_law(lengths), limit)
    return _prompts_alone(offered) if offered.lengths.mean_gaps == 0.0 else _prompts_and_decodes(offered)


def prefill_pool(
    server: BatchServer, arrivals: ArrivalProcess, lengths: TokenLengths, replicas: int = 1
) -> QueueLatency:
    """Latencies of identical servers that serve prompts only: every request has one output token, E2E is TTFT.

    Arguments, result and errors as `mixed_pool`.
    """
    require_usable(server, replicas)
    prompts = length_law(lengths).prompts_only()
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
    spread = burstiness(solved, 0.0, solved.fluid()[1])
    alone = solved.regime(0.0, 0.0, idle=1.0)
    backlog = solve_backlog(solved.server, alone, solved.tokens(spread.in_queue))
    busy = solve_backlog(solved.server, alone, solved.tokens(spread.in_step), COARSE_CELLS)
    times, weights = first_token_times(solved.server, backlog, solved.lengths, spread.sight)
    first_s = slice_means(times, weights, FIRST_EDGES) * stretch
    ttft = condensed(first_s, np.outer(solved.lengths.group_weights, np.diff(FIRST_EDGES)))
    return QueueLatency(
        stable=True,
        ttft=ttft,
        tpot=LatencyDistribution.constant(0.0),
        e2e=ttft,
        mean_running=0.0,
        mean_step_s=busy.mean_step_s,
        utilisation=utilisation,
        limit=offered.limit.limit,
    )


def _prompts_and_decodes(offered: Offered) -> QueueLatency:
    solved, utilisation, stretch = _solvable(offered)
    if utilisation >= 1.0:
        return unstable(offered.limit, utilisation)
    state = _running_state(solved, utilisation)
    backlogs = _backlogs_met(solved, state)
    parts = [first_token_times(solved.server, b, solved.lengths, state.spread.sight) for b in backlogs]
    times, weights = (np.concatenate(pieces, axis=1) for pieces in zip(*parts, strict=True))
    first_s = delayed(slice_means(times, weights, FIRST_EDGES) * stretch, _blocking(solved, state, utilisation))
    tpot, e2e = decode_latencies(solved.lengths, first_s, *_gap_times_s(solved, state))
    return QueueLatency(
        stable=True,
        ttft=condensed(first_s, np.outer(solved.lengths.group_weights, np.diff(FIRST_EDGES))),
        tpot=tpot,
        e2e=e2e,
        mean_running=state.law.mean,
        mean_step_s=_mean_step_s(state, backlogs),
        utilisation=utilisation,
        limit=offered.limit.limit,
    )


@dataclass(frozen=True, eq=False)
class _RunningState:
    """The number running and the steps it goes with.

    Attributes:
        law: of the number running.
        step_means_s: T(0), ..., T(N) [s].
        spread: burstiness.
        noise: fluctuation of the steps near the mean number running.
        slope: lambda E[K] dT/dn, the feedback of the number running on itself, in [0, 0.9].
    """

    law: RunningLaw
    step_means_s: FloatArray
    spread: Burstiness
    noise: GapNoise
    slope: float


def _running_state(offered: Offered, utilisation: float) -> _RunningState:
    """The number running, from a fluid estimate; once more where the burstiness depends on what came out."""
    running, step_s = offered.fluid()
    spread = burstiness(offered, running, step_s)
    starts = (running + 1.0, 1.2 * running + 2.0)
    if offered.arrivals.scv != 1.0:
        rough = _agreed(offered, utilisation, spread, starts, refinements=0)
        law, means = rough.law, rough.step_means_s
        spread = burstiness(offered, law.mean, float(np.interp(law.mean + 1.0, offered.counts, means)))
        starts = (law.mean + 1.0, law.mean + 1.0 + UPWARD * max(law.std, 0.5))
    return _agreed(offered, utilisation, spread, starts, REFINEMENTS)


def _agreed(
    offered: Offered, utilisation: float, spread: Burstiness, starts: tuple[float, float], refinements: int
) -> _RunningState:
    """The step curve T(n) and the law of n, made to agree: T is solved where the law has its mass."""
    stream = offered.tokens(spread.in_step)
    solved = [_decoding_backlog(offered, n, stream) for n in starts]
    for _ in range(refinements):
        law = _law_from(offered, solved, utilisation, spread)[0]
        wanted = (law.mean + 1.0, law.mean + 1.0 + UPWARD * law.std)
        new = [n for n in wanted if all(abs(n - b.regime.running) > NEAR * max(law.std, 1.0) for b in solved)]
        if not new:
            break
        solved += [_decoding_backlog(offered, n, stream) for n in new]
    law, means, nearest = _law_from(offered, solved, utilisation, spread)
    noise = gap_noise(nearest, offered.token_variance_per_s, offered.lengths.mean_prompt, spread.sight.thinning)
    noise = noise.damped((1.0 - law.blocked) ** 2)
    rise = np.interp([law.mean + 1.0, law.mean + 1.0 + max(law.std, 1.0)], offered.counts, means)
    slope = offered.gap_rate_per_s * float(rise[1] - rise[0]) / max(law.std, 1.0)
    return _RunningState(law, means, spread, noise, min(max(slope, 0.0), LARGEST_FEEDBACK))


def _law_from(
    offered: Offered, solved: list[Backlog], utilisation: float, spread: Burstiness
) -> tuple[RunningLaw, FloatArray, Backlog]:
    """Law of n from solved points of T(n), the curve through them [s], and the point nearest to the mean."""
    means = _step_curve(offered, solved)
    gaps = np.array([max(offered.lengths.mean_gaps / offered.lengths.decoding, 1.0)])
    largest = None
    if offered.limit.limit == RUNNING:
        largest = offered.limit.rate_per_s * offered.lengths.mean_gaps
    guess = running_law(offered.counts, means, offered.gap_rate_per_s, 1.0, largest)
    nearest = min(solved, key=lambda b: abs(b.regime.running - guess.mean - 1.0))
    z = _running_dispersion(offered, nearest)
    noise = gap_noise(nearest, offered.token_variance_per_s, offered.lengths.mean_prompt, spread.sight.thinning)
    stay = means + float(noise.start_excess_s(gaps)[0]) * (1.0 - guess.blocked) ** 2
    return running_law(offered.counts, stay, offered.gap_rate_per_s, z, largest), means, nearest


def _decoding_backlog(offered: Offered, running: float, stream: TokenArrivals) -> Backlog:
    """Backlog beside `running` sequences that never run out, at the resolution for mean step times."""
    n = min(running, CLOSEST_TO_CRITICAL * offered.critical)
    return solve_backlog(offered.server, offered.regime(n, n), stream, COARSE_CELLS)


def _running_dispersion(offered: Offered, backlog: Backlog) -> float:
    """Peakedness z of the decodes: how much more variable their number is than for Poisson arrivals.

    Per step, counts fluctuate by (1 + e) times the arrivals' own noise and e times that of the prompt lengths (e: the
    elasticity of the step time, because longer steps collect more arrivals). Requests stay K steps, which keeps the
    share E[min(K, K')] / E[K] of it, less what a long memory of the backlog smooths away.
    """
    e = token_elasticity(backlog)
    per_step = (1.0 + e) ** 2 * offered.arrivals.scv + e**2 * offered.lengths.prompt_scv
    memory = offered.lengths.residual_gaps
    kept = memory / (memory + offered.relaxation_steps(backlog.regime.running))
    return 1.0 + (per_step - 1.0) * offered.lengths.overlap * kept


def _step_curve(offered: Offered, solved: list[Backlog]) -> FloatArray:
    """T(n) [s] at each of `counts`: linear through the solved points, full steps beyond the critical number."""
    points = sorted({b.regime.running: b.mean_step_s for b in solved}.items())
    n, t = np.array([p[0] for p in points]), np.array([p[1] for p in points])
    counts, full = offered.counts, offered.full_steps_s
    if n.size == 1:
        curve = np.full(counts.size, t[0])
    else:
        slopes = np.maximum(np.diff(t) / np.diff(n), 0.0)
        curve = np.interp(counts, n, t)
        curve += slopes[-1] * np.maximum(counts - n[-1], 0.0) - slopes[0] * np.maximum(n[0] - counts, 0.0)
    return np.where(counts >= offered.critical, full, np.clip(curve, 0.5 * t[0], full))


def _backlogs_met(offered: Offered, state: _RunningState) -> list[Backlog]:
    """Backlogs at two numbers running, one below and one above the mean, that stand for its law.

    While a long backlog lasts, the number running moves: the two are drawn together, and full steps are taken part of
    the way to the number running of a saturated server.
    """
    law, memory = state.law, offered.lengths.residual_gaps
    top = CLOSEST_TO_CRITICAL * offered.critical
    mean = min(law.mean, top)
    slow = offered.relaxation_steps(mean)
    spread = min(law.std * np.sqrt(memory / (memory + slow)), mean, top - mean)
    stream = offered.tokens(state.spread.in_queue)
    saturating = 0.5 * slow / (slow + memory)
    nodes = [mean - spread, mean + spread] if spread > 0.02 * mean else [mean]
    return [_met_backlog(offered, n, law.empty, saturating, stream) for n in nodes]


def _met_backlog(offered: Offered, running: float, empty: float, saturating: float, stream: TokenArrivals) -> Backlog:
    full_running = running + max(offered.limit.running - running, 0.0) * saturating
    if not offered.keeps_up(full_running):
        full_running = running
    idle, decoding = 0.0, running
    if empty > 0.0:
        decoding = max(running / max(1.0 - empty, 1e-9), 1e-6)
        pause_s = 1.0 / stream.rate_per_s
        odds = step_duration_s(offered.server, decoding, 0.0) / pause_s * empty / max(1.0 - empty, 1e-12)
        idle = odds / (1.0 + odds)
    return solve_backlog(offered.server, offered.regime(running, full_running, decoding, idle), stream, FINE_CELLS)


def _work_scv(offered: Offered) -> float:
    """Variability of the completions of a server whose slots are all taken.

    They fluctuate as the slots' own cycles (SCV of the gaps) and as the prompts that lengthen the steps (SCV of the
    prompts), each in proportion to its share of the step time, squared.
    """
    law, limit = offered.lengths, offered.limit
    decoding = step_duration_s(offered.server, limit.running, 0.0) / limit.step_s
    cycle = law.mean_gaps / (law.mean_gaps + limit.prefill_steps)
    return law.gaps_scv * (cycle * decoding) ** 2 + law.prompt_scv * (1.0 - decoding) ** 2


def _blocking(offered: Offered, state: _RunningState, utilisation: float) -> Blocking:
    """Wait for a slot where slots give out first."""
    if state.law.blocked < NEGLIGIBLE or offered.limit.limit != RUNNING:
        return Blocking(0.0, 0.0)
    largest = offered.limit.rate_per_s
    mean = mean_wait_when_blocked_s(utilisation * largest, largest, offered.arrivals.scv, _work_scv(offered))
    return Blocking(state.law.blocked, mean)


def _gap_times_s(offered: Offered, state: _RunningState) -> tuple[FloatArray, FloatArray]:
    """Times per output token [s] for each entry of `lengths.gaps`, shape (gaps, points), and the points' masses."""
    seen = np.interp(offered.counts + 1.0, offered.counts, state.step_means_s)
    slow = sorted_slice_means(seen, state.law.probabilities, SLOW_EDGES)
    likely = np.interp(state.law.mean + 2.0 * state.law.std, offered.counts, offered.full_steps_s)
    longest = max(float(likely), state.noise.shortest_s)
    memory = offered.lengths.residual_gaps / (1.0 - state.slope)
    times = token_gap_times(offered.lengths.gaps, state.noise, slow, memory, longest)
    mass = np.outer(np.diff(SLOW_EDGES), np.diff(NOISE_EDGES))
    return times.reshape(offered.lengths.gaps.size, -1), mass.ravel()


def _mean_step_s(state: _RunningState, backlogs: list[Backlog]) -> float:
    """Mean duration of a busy step [s]; where the server is often empty, steps with nothing but prompts count too."""
    if state.law.empty > OFTEN_EMPTY:
        return float(np.mean([b.mean_step_s for b in backlogs]))
    running = state.law.probabilities[1:]
    return float(running.sum() / (running / state.step_means_s[1:]).sum())
