"""Pools that serve prompts: continuous batching with chunked prefill, and prefill alone.

Latencies of a request that meets a given number running are averaged over the distribution of that number.

Where prompts go first, a step holds prompts as long as there are any, else decodes. A request that decodes in K
steps of a waits for all prompts that are there when it begins and for all that come before its last step: X on top of
K a, the delay busy period of an M/G/1 queue of prompts,

    E X = E Y / (1 - rho),  Var X = Var Y / (1 - rho)^2 + E Y lambda E S^2 / (1 - rho)^3

with Y the work V left behind at the first token and that which comes in (K - 1) a. X is 0 with the chance that nobody
is left behind and nobody comes; otherwise it has a gamma distribution (ours), so that mean and variance are these
(Conway, Maxwell and Miller, Theory of Scheduling, 1967, section 8-3: delay busy periods).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.special import gammainc, gammaincinv

from planner.core import FloatArray
from planner.queueing.backlog import COARSE_CELLS, FINE_CELLS, Backlog, TokenArrivals, solve_backlog
from planner.queueing.batch_occupancy import SlotWork, mean_wait_when_blocked_s
from planner.queueing.distributions import Sample, binned_slice_means, sorted_slice_means
from planner.queueing.first_token import first_token_times, own_steps_s
from planner.queueing.fixed_point import CLOSEST_TO_CRITICAL, RunningState, running_state, weights_until_first
from planner.queueing.latencies import (
    FIRST_EDGES,
    FIRST_MASS,
    NEGLIGIBLE,
    Blocking,
    QueueLatency,
    condensed_sample,
    decode_latencies,
    first_token_distribution,
    unstable_latency,
    with_own_spread,
    with_slot_wait,
)
from planner.queueing.offered_load import OfferedLoad, burstiness
from planner.queueing.renewal import round_robin_share
from planner.queueing.server import (
    BatchServer,
    mixed_limit,
    spread_by_contexts,
    step_duration_s,
)
from planner.queueing.token_gap import NOISE_EDGES, GapNoise, slowly_varying_times, token_gap_times
from planner.workload import ArrivalProcess, LatencyDistribution, TokenLengths, condensed_lengths

SMALLEST_SHARE = 1e-9
"""Guards divisions by the share of the time in which something decodes."""
LARGEST_SOLVED = 0.985
"""Utilisation up to which the backlog is solved; above, waits grow as 1 / (1 - utilisation) (heavy traffic)."""
SMALLEST_SOLVED = 1e-6
"""A server less used than this is solved as if it were used this much."""
SLOW_EDGES = np.linspace(0.0, 1.0, 9)
"""Slices of the number running told apart in a TPOT. A choice of resolution."""
OFTEN_EMPTY = 1e-3
"""Above this probability that nothing decodes, steps with nothing but prompts count in the mean step."""
LEAST_PROMPT_LOAD = 1e-9
"""Least share of the time that prompts are taken to need. Guards a division."""
LEAST_SPREAD, LARGEST_SPREAD = 1e-4, 400.0
"""Least and largest SCV of that time where there is any: beyond, all but one slice of it are 0 or alike."""
SHORTEST_S = 1e-100
"""Guards a division by a time of 0 [s]."""
LEAST_LEFT = 1e-3
"""Least share of the time that prompts leave to decodes."""
NEGLIGIBLE_SPREAD = 0.02
"""Spread of the number running, relative to its mean, below which its mean alone stands for it. Affects speed."""


def mixed_pool(server: BatchServer, arrivals: ArrivalProcess, lengths: TokenLengths, replicas: int = 1) -> QueueLatency:
    """Latencies of identical servers that each serve prompts and decodes, behind a round-robin router.

    Args:
        server: one server.
        arrivals: of the pool; each server sees every `replicas`-th arrival (rate / c, SCV / c).
        lengths: joint input and output tokens.
        replicas: servers.

    Returns:
        Latency distributions [s]; overload is an answer (`stable` False), not an error.

    Raises InputError when a step time is not finite and positive.
    """
    limit = mixed_limit(server, condensed_lengths(lengths))
    offered = OfferedLoad(server, round_robin_share(arrivals, replicas), condensed_lengths(lengths), limit)
    return _prompts_alone(offered) if offered.lengths.mean_gaps == 0.0 else _prompts_and_decodes(offered)


def prefill_pool(
    server: BatchServer, arrivals: ArrivalProcess, lengths: TokenLengths, replicas: int = 1
) -> QueueLatency:
    """Latencies of identical servers that serve prompts only: every request has one output token, E2E is TTFT.

    Args:
        server: one server.
        arrivals: of the pool; each server sees every `replicas`-th arrival (rate / c, SCV / c).
        lengths: joint input and output tokens; outputs are ignored.
        replicas: servers.

    Returns:
        Latency distributions [s]; overload is an answer (`stable` False), not an error.

    Raises InputError when a step time is not finite and positive.
    """
    prompts = condensed_lengths(lengths).prompts_only
    return _prompts_alone(
        OfferedLoad(server, round_robin_share(arrivals, replicas), prompts, mixed_limit(server, prompts))
    )


def _solvable_load(offered: OfferedLoad) -> OfferedLoad:
    """The same load at the nearest utilisation that is solved."""
    utilisation = min(max(offered.utilisation, SMALLEST_SOLVED), LARGEST_SOLVED)
    arrivals = offered.arrivals.at_rate(utilisation * offered.limit.rate_per_s)
    return replace(offered, arrivals=arrivals)


def _wait_stretch(utilisation: float) -> float:
    """Factor by which waits are longer than at the utilisation that is solved."""
    return max(1.0, (1.0 - LARGEST_SOLVED) / max(1.0 - utilisation, np.finfo(float).tiny))


def _prompts_alone(offered: OfferedLoad) -> QueueLatency:
    """Latencies where no request decodes."""
    utilisation = offered.utilisation
    if utilisation >= 1.0:
        return unstable_latency(offered.limit, utilisation)
    solved = _solvable_load(offered)
    bursts = burstiness(solved, 0.0, solved.fluid[1])
    alone = solved.regime(0.0, idle=1.0)
    backlog = solve_backlog(solved.server, alone, solved.tokens(bursts.in_queue))
    busy = solve_backlog(solved.server, alone, solved.tokens(bursts.in_step), COARSE_CELLS)
    met = [first_token_times(solved.server, backlog, solved.lengths, bursts.view)]
    first_s = _first_token_times_s(solved, met) * _wait_stretch(utilisation)
    ttft = _ttft(solved, first_s)
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


def _prompts_and_decodes(offered: OfferedLoad) -> QueueLatency:
    """Latencies where requests decode beside the prompts of others."""
    utilisation = offered.utilisation
    if utilisation >= 1.0:
        return unstable_latency(offered.limit, utilisation)
    solved = _solvable_load(offered)
    state = running_state(solved)
    backlogs = _backlogs_at_batches(solved, state)
    met = [first_token_times(solved.server, backlog, solved.lengths, state.burstiness.view) for backlog in backlogs]
    first_s = _first_token_times_s(solved, met) * _wait_stretch(utilisation)
    first_s = with_slot_wait(first_s, _blocking(solved, state, utilisation))
    gaps = solved.lengths.gaps
    gap_times_s = _gap_times(solved, state)
    latencies, ttft = decode_latencies(solved.lengths, first_s, *gap_times_s(state.noise, gaps)), _ttft(solved, first_s)

    def single_gap() -> LatencyDistribution:
        return condensed_sample(*gap_times_s(state.noise.anywhere(), np.ones(1)))

    return QueueLatency(
        stable=True,
        ttft=ttft,
        tpot=latencies.tpot,
        e2e=latencies.e2e,
        itl=LatencyDistribution.later(single_gap),
        mean_running=solved.rate_per_s * (latencies.e2e.mean_s - ttft.mean_s),  # Little
        mean_step_s=_mean_step_s(state, backlogs),
        utilisation=utilisation,
        limit=offered.limit.limit,
        joint=latencies.joint,
    )


def _first_token_times_s(offered: OfferedLoad, met: list[Sample]) -> FloatArray:
    """TTFT [s] of each prompt group in slices FIRST_EDGES, shape (groups, slices)."""
    return with_own_spread(binned_slice_means(met, FIRST_EDGES), offered.lengths, offered.own_s)


def _ttft(offered: OfferedLoad, first_s: FloatArray) -> LatencyDistribution:
    """TTFT of all requests from slices FIRST_EDGES of each prompt group, shape (groups, slices)."""
    shares = offered.lengths.group_weights[:, None] * FIRST_MASS
    return LatencyDistribution.later(lambda: condensed_sample(first_s, shares), float((first_s * shares).sum()))


def _backlogs_at_batches(offered: OfferedLoad, state: RunningState) -> list[Backlog]:
    """Backlogs at two numbers running, one below and one above the mean, that stand for its distribution.

    While a long backlog lasts, the number running moves: the two are drawn together.
    """
    distribution, memory = state.distribution, offered.lengths.residual_gaps
    top = CLOSEST_TO_CRITICAL * offered.critical
    mean = min(distribution.mean, top)
    slow = offered.relaxation_steps(mean)
    spread = min(distribution.std * np.sqrt(memory / (memory + slow)), mean, top - mean)
    stream = offered.tokens(state.burstiness.in_queue)
    nodes = [mean - spread, mean + spread] if spread > NEGLIGIBLE_SPREAD * mean else [mean]
    return [backlog_at_batch(offered, n, distribution.empty, stream) for n in nodes]


def backlog_at_batch(load: OfferedLoad, batch: float, p_no_decode: float, prompts: TokenArrivals) -> Backlog:
    """Stationary prompt backlog while `batch` sequences decode.

    Given that something decodes the batch is n / (1 - p0). An empty server waits for an arrival with odds
    (step / mean gap) * p0 / (1 - p0). Where prompts go first, nothing decodes in a step with prompts.

    Args:
        load: the server and what is offered to it.
        batch: mean number of decoding sequences, n.
        p_no_decode: probability p0 that nothing decodes, in [0, 1).
        prompts: the stream of prompt tokens.

    Returns:
        The backlog [tokens] at the starts of steps, at the resolution for latencies.
    """
    p_idle, decoding = 0.0, batch
    if p_no_decode > 0.0:
        p_decode = max(1.0 - p_no_decode, SMALLEST_SHARE)
        decoding = max(batch / p_decode, SMALLEST_SHARE)
        mean_gap_s = 1.0 / prompts.rate_per_s
        odds = step_duration_s(load.server, decoding, 0.0) / mean_gap_s * p_no_decode / p_decode
        p_idle = odds / (1.0 + odds)
    regime = load.regime(0.0 if load.server.prompts_first else batch, decoding, p_idle)
    return solve_backlog(load.server, regime, prompts, FINE_CELLS)


def _slot_work(offered: OfferedLoad) -> SlotWork:
    """Variability of the completions of a server whose slots are all taken.

    They fluctuate as the slots' own cycles (SCV of the gaps) and as the prompts that lengthen the steps (SCV of the
    prompts), each in proportion to its share of the step time, squared.
    """
    lengths, limit = offered.lengths, offered.limit
    decoding = step_duration_s(offered.server, limit.running, 0.0) / limit.step_s
    cycle = lengths.mean_gaps / (lengths.mean_gaps + limit.prefill_steps)
    shared = lengths.prompt_scv * (1.0 - decoding) ** 2
    return SlotWork(offered.server.max_running, lengths.gaps_scv * (cycle * decoding) ** 2, shared)


def _blocking(offered: OfferedLoad, state: RunningState, utilisation: float) -> Blocking:
    """Wait for a slot where slots give out first."""
    if state.distribution.blocked < NEGLIGIBLE:
        return Blocking(0.0, 0.0)
    largest = offered.limit.rate_per_s
    mean = mean_wait_when_blocked_s(utilisation * largest, largest, offered.arrivals.scv, _slot_work(offered))
    return Blocking(state.distribution.blocked, mean)


def _gap_times(
    offered: OfferedLoad, state: RunningState
) -> Callable[[GapNoise, FloatArray], tuple[FloatArray, FloatArray]]:
    """Times per output token [s] of requests with `gaps` steps and their weights, both of shape (gaps, points).

    A function of how single steps fluctuate and of the gaps, shape (gaps,).
    """
    if offered.server.prompts_first:
        return partial(_interrupted_gap_times_s, offered, state)
    scales, distribution = offered.scales, state.distribution
    counts = scales.counts
    seen, made = state.step_means_s[1:], distribution.seen_by_tokens(state.step_means_s)
    alone = np.minimum(np.interp(counts[1:], counts + 1.0, scales.decode_steps_s), seen)
    made, curves = spread_by_contexts((seen, alone), made, scales.context_noise_s)
    slow, floor = (sorted_slice_means(curve, made, SLOW_EDGES) for curve in curves)
    longest = float(np.interp(distribution.mean + 2.0 * distribution.std, counts, scales.full_steps_s))
    memory = offered.lengths.residual_gaps / (1.0 - state.slope)
    own = _more_left(offered)

    def times_s(noise: GapNoise, gaps: FloatArray) -> tuple[FloatArray, FloatArray]:
        more = np.zeros(gaps.size) if math.isnan(noise.left) else own
        return token_gap_times(gaps, more, noise, state.steps, slow, floor, memory, longest)

    return times_s


def _more_left(offered: OfferedLoad) -> FloatArray:
    """Prompts that requests of each number of steps leave behind at their first token beyond what all do, shape (G,).

    Others come while their own prompts are served, which are longer or shorter than those of all.
    """
    lengths, own_s = offered.lengths, offered.own_s
    return np.asarray(offered.rate_per_s * (lengths.gap_groups[:-1] @ own_s - own_s @ lengths.group_weights))


def _interrupted_gap_times_s(
    offered: OfferedLoad, state: RunningState, noise: GapNoise, gaps: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The same where prompts go first; a step at a random instant finds those that came in the step before it."""
    lengths, arrivals, distribution = offered.lengths, offered.arrivals, state.distribution
    made, scales = distribution.seen_by_tokens(state.step_means_s), offered.scales
    alone = np.interp(scales.counts[1:], scales.counts + 1.0, scales.decode_steps_s)
    shares, (alone,) = spread_by_contexts((alone,), made, scales.context_noise_s)
    floor_s = sorted_slice_means(alone, shares, SLOW_EDGES)
    load = max(1.0 - float(floor_s.mean()) / float(state.step_means_s[1:] @ made), LEAST_PROMPT_LOAD)
    own_s = own_steps_s(offered.server, 0.0, offered.max_batched_tokens, lengths.groups)
    own_scv = float((own_s / float(own_s @ lengths.group_weights) - 1.0) ** 2 @ lengths.group_weights)
    mean_s, followers = load / arrivals.rate_per_s, noise.followers
    left = arrivals.rate_per_s * float(floor_s.mean()) if math.isnan(noise.left) else noise.left
    expected = left * followers.first_s / float(followers.weights @ followers.first_s)
    # Behind a first token each number of steps has the prompts that go with it.
    chances = followers.weights[None, :] if math.isnan(noise.left) else weights_until_first(lengths.gap_groups[:-1])
    left_behind = chances @ expected
    stream = PromptStream(
        rate_per_s=arrivals.rate_per_s,
        mean_s=mean_s,
        variance_per_s=arrivals.rate_per_s * mean_s**2 * (own_scv + arrivals.scv),
        left=left_behind,
        left_variance=left_behind + chances @ expected**2 - left_behind**2,
        nobody_left=chances @ np.exp(-expected),
    )
    memory = lengths.residual_gaps / (1.0 - state.slope)
    return interrupted_gap_times(gaps, slowly_varying_times(gaps, floor_s, memory), stream)


def _mean_step_s(state: RunningState, backlogs: list[Backlog]) -> float:
    """Mean duration of a busy step [s]; where the server is often empty, steps with nothing but prompts count too."""
    if state.distribution.empty > OFTEN_EMPTY or backlogs[0].prompts_first:
        return float(np.mean([backlog.mean_step_s for backlog in backlogs]))
    running = state.distribution.probabilities[1:]
    return float(running.sum() / (running / state.step_means_s[1:]).sum())


@dataclass(frozen=True)
class PromptStream:
    """Prompts that interrupt decodes.

    Attributes:
        rate_per_s: of arrivals [1/s].
        mean_s: time of a prompt [s].
        variance_per_s: growth of the variance of the work that arrives, lambda (Var S + SCV E[S]^2) [s^2/s].
        left: mean prompts left behind at a first token, shape (G,) or (1,).
        left_variance: variance of that number.
        nobody_left: chance that there are none.
    """

    rate_per_s: float
    mean_s: float
    variance_per_s: float
    left: FloatArray
    left_variance: FloatArray
    nobody_left: FloatArray


def interrupted_gap_times(
    gaps: FloatArray, decode_s: FloatArray, prompts: PromptStream
) -> tuple[FloatArray, FloatArray]:
    """Times per output token [s] of requests with `gaps` steps and their weights, both of shape (gaps, points).

    Args:
        gaps: numbers of steps, > 0, shape (G,).
        decode_s: a step of decodes at equally likely numbers running [s], shape (G, S).
        prompts: that interrupt them.

    Returns:
        Times [s] and weights, each shape (gaps, S (slices + 1)).
    """
    coming_s = decode_s.mean(axis=1) * (gaps - 1.0)
    spare = max(1.0 - prompts.rate_per_s * prompts.mean_s, LEAST_LEFT)
    work_s = (prompts.left + prompts.rate_per_s * coming_s) * prompts.mean_s
    own_variance = prompts.variance_per_s / prompts.rate_per_s
    work_variance = prompts.left_variance * prompts.mean_s**2 + prompts.left * own_variance
    work_variance = work_variance + prompts.variance_per_s * coming_s
    mean_s, variance = work_s / spare, work_variance / spare**2 + work_s * prompts.variance_per_s / spare**3
    none = prompts.nobody_left * np.exp(-prompts.rate_per_s * coming_s)
    some = np.maximum(1.0 - none, np.finfo(float).tiny)
    scv = np.clip(some * (variance / np.maximum(mean_s, SHORTEST_S) ** 2 + 1.0) - 1.0, LEAST_SPREAD, LARGEST_SPREAD)
    shares = np.diff(NOISE_EDGES)
    shape = 1.0 / scv[:, None]
    slices = np.diff(gammainc(shape + 1.0, gammaincinv(shape, NOISE_EDGES[None, :])), axis=1) / shares
    extra_s = np.concatenate([np.zeros((gaps.size, 1)), (mean_s / some)[:, None] * slices], axis=1)
    chance = np.concatenate([none[:, None], some[:, None] * shares], axis=1)
    times = decode_s[:, :, None] + (extra_s / gaps[:, None])[:, None, :]
    weights = np.broadcast_to(chance[:, None, :], times.shape)
    return times.reshape(gaps.size, -1), weights.reshape(gaps.size, -1)
