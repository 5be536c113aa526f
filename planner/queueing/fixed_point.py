"""The number running and the step time as the fixed point of each other.

The number running changes slowly (over hundreds of steps), the backlog of prompt tokens quickly (over a few). So the
backlog is solved at a fixed number running, which gives the mean step T(n), and T(n) gives the distribution of the
number running.

Its clock is that of steps, each of which counts with the mean T(n) however long it is: a request leaves after K steps,
and those who come in a long one begin to decode behind it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.core import FloatArray, interpolated_at
from planner.queueing.backlog import COARSE_CELLS, Backlog, TokenArrivals, solve_backlog
from planner.queueing.batch_occupancy import PromptEffect, RunningDistribution, running_distribution
from planner.queueing.first_token import own_steps_s
from planner.queueing.offered_load import Burstiness, OfferedLoad, burstiness
from planner.queueing.renewal import excess_at, index_of_dispersion, renewal
from planner.queueing.server import step_duration_s
from planner.queueing.token_gap import LARGEST_FEEDBACK, Followers, GapNoise, MetPrompts, gap_noise

CLOSEST_TO_CRITICAL = 0.985
"""Share of the number running at which full steps only just keep up, up to which the backlog is solved. Chosen because
it agrees with simulation."""
ANCHOR_STDS, APART_STDS, REFINEMENTS = 1.2, 0.2, 3
"""The step curve is anchored at the mean number running and so many standard deviations below and above; no new anchor
comes within so many of an old one; and at most so many rounds add some. A choice: time against accuracy."""
SMALLEST_STD = 0.5
"""Least standard deviation [sequences] by which the first upper anchor stands apart."""
EXPONENTIAL_POINTS = np.array([2.0 - np.sqrt(2.0), 2.0 + np.sqrt(2.0)])
"""Nodes of the two-point Gauss-Laguerre rule: an exponential variable of mean 1."""
EXPONENTIAL_WEIGHTS = np.array([2.0 + np.sqrt(2.0), 2.0 - np.sqrt(2.0)]) / 4.0
"""Its weights."""
LEAST_STEP_SHARE = 0.5
"""An extrapolated mean step is not below this share of the lowest solved one."""


@dataclass(frozen=True, eq=False)
class RunningState:
    """The number running and the steps it goes with.

    Attributes:
        distribution: of the number running.
        step_means_s: T at each of the numbers running of `distribution` [s].
        burstiness: of the arrivals, at this number running.
        noise: fluctuation of the steps near the mean number running.
        steps: those steps, and the prompts in them.
        slope: lambda E[K] dT/dn, the feedback of the number running on itself, in [0, 0.9].
    """

    distribution: RunningDistribution
    step_means_s: FloatArray
    burstiness: Burstiness
    noise: GapNoise
    steps: tuple[Backlog, MetPrompts]
    slope: float


def running_state(offered: OfferedLoad) -> RunningState:
    """The number running and its steps, from a fluid estimate; once more where the burstiness depends on the answer.

    Args:
        offered: the server and what is offered to it, less than its largest stable rate.

    Returns:
        Distribution of the number running, mean step T(n) [s] at each number, and how single steps fluctuate.
    """
    running, step_s = offered.fluid
    bursts = burstiness(offered, running, step_s)
    anchors = (running + 1.0, 1.2 * running + 2.0)
    if offered.arrivals.scv != 1.0:
        rough = _consistent(offered, bursts, anchors, refinements=0)
        mean, std = rough.distribution.mean, max(rough.distribution.std, SMALLEST_STD)
        bursts = burstiness(offered, mean, interpolated_at(offered.scales.counts, rough.step_means_s, mean + 1.0))
        anchors = (mean + 1.0, mean + 1.0 + ANCHOR_STDS * std)
    found = _consistent(offered, bursts, anchors, REFINEMENTS)
    distribution, means = found.distribution, found.step_means_s
    span = max(distribution.std, 1.0)
    here, above = (
        interpolated_at(offered.scales.counts, means, distribution.mean + 1.0 + more) for more in (0.0, span)
    )
    slope = offered.gap_rate_per_s * (above - here) / span
    return RunningState(
        distribution=distribution,
        step_means_s=means,
        burstiness=bursts,
        noise=_step_noise(offered, found.nearest).damped(_memory_share(distribution)),
        steps=(found.nearest, _met_prompts(offered, found.nearest)),
        slope=min(max(slope, 0.0), LARGEST_FEEDBACK),
    )


class _RunningEstimate(NamedTuple):
    """The number running n, from some solved points of T(n).

    Attributes:
        distribution: of n.
        step_means_s: the curve T(n) through the points [s].
        nearest: the point nearest to the mean of n.
    """

    distribution: RunningDistribution
    step_means_s: FloatArray
    nearest: Backlog


def _consistent(
    offered: OfferedLoad, bursts: Burstiness, anchors: tuple[float, float], refinements: int
) -> _RunningEstimate:
    """The step curve T(n) and the distribution of n, consistent: T is solved where the distribution has its mass."""
    stream = offered.tokens(bursts.in_step)
    cap = min(CLOSEST_TO_CRITICAL * offered.critical, float(offered.scales.counts[-1]))
    solved = [_decoding_backlog(offered, n, stream) for n in sorted({min(n, cap) for n in anchors})]
    estimate = _estimate(offered, solved, bursts)
    for _ in range(refinements):
        here, span = estimate.distribution.mean + 1.0, max(estimate.distribution.std, 1.0)
        wanted = [min(here + stds * span, cap) for stds in (-ANCHOR_STDS, 0.0, ANCHOR_STDS)]
        known = np.array([backlog.regime.decoding for backlog in solved])
        new = [n for n in wanted if n >= 1.0 and abs(known - n).min() > APART_STDS * span]
        if not new:
            break
        solved += [_decoding_backlog(offered, n, stream) for n in new]
        estimate = _estimate(offered, solved, bursts)
    return estimate


def _estimate(offered: OfferedLoad, solved: list[Backlog], bursts: Burstiness) -> _RunningEstimate:
    """The number running from solved points of T(n)."""
    means, counts, token_rate = _step_curve(offered, solved), offered.scales.counts, offered.gap_rate_per_s
    largest = math.inf
    if offered.scales.full:
        largest = offered.limit.rate_per_s * offered.lengths.mean_gaps
    guess = running_distribution(counts, means, token_rate, 1.0, largest)
    nearest = min(solved, key=lambda b: abs(b.regime.decoding - guess.mean - 1.0))
    arriving = index_of_dispersion(guess.mean, offered.arrivals.scv)
    z, by_prompts = (_running_dispersion(offered, nearest, each) for each in (arriving, 1.0))
    number = nearest.elasticities[0]
    prompts = PromptEffect(by_prompts, number / (1.0 + number))
    distribution = running_distribution(counts, means, token_rate, z, largest, prompts)
    return _RunningEstimate(distribution, means, nearest)


def weights_until_first(shares: FloatArray) -> FloatArray:
    """Probabilities of `Followers.first_s` of requests by their prompts.

    Args:
        shares: of each prompt group, shape (..., Q).

    Returns:
        Shape (..., points times Q).
    """
    return np.asarray((EXPONENTIAL_WEIGHTS[:, None] * shares[..., None, :]).reshape(*shares.shape[:-1], -1))


def _step_noise(offered: OfferedLoad, backlog: Backlog) -> GapNoise:
    """Fluctuation of the steps at one number running.

    Until its first token a request waits for the rest of the step in progress, for the tokens that this leaves of the
    backlog and those that came meanwhile, and for its own steps.
    """
    lengths, scv, rest_s = offered.lengths, offered.arrivals.scv, backlog.mean_rest_s
    in_step = offered.rate_per_s * rest_s
    kept = min(1.0 + excess_at(renewal(min(scv, 1.0)), in_step) / in_step, 1.0)
    ahead_s = backlog.mean_ahead_s(max(kept, 0.0))
    prepares = offered.server.prepares
    until_s = rest_s + prepares * backlog.mean_step_s + ahead_s * EXPONENTIAL_POINTS
    first_s = np.add.outer(until_s, offered.own_s)
    weights = weights_until_first(lengths.group_weights)
    followers = Followers(offered.rate_per_s, renewal(scv), first_s.ravel(), weights)
    return gap_noise(backlog, lengths.prompt_scv, lengths.mean_prompt, followers, prepares)


def _met_prompts(offered: OfferedLoad, backlog: Backlog) -> MetPrompts:
    """Prompts beside one number running: of what all add to the mean step, each its share of what they add alone."""
    lengths, running, chunk = offered.lengths, backlog.regime.running, backlog.regime.chunk
    alone_s = step_duration_s(offered.server, max(running, 1.0), 0.0)
    steps = np.maximum(lengths.groups / chunk, 1.0)
    mean_s = max(backlog.mean_step_s - alone_s, 0.0) / (offered.rate_per_s * backlog.mean_step_s)
    own_s = own_steps_s(offered.server, max(running, 1.0), chunk, lengths.groups)
    own_s = np.maximum(own_s - np.ceil(lengths.groups / chunk) * alone_s, np.finfo(float).tiny)
    return MetPrompts(
        per_step=offered.rate_per_s * backlog.mean_step_s * lengths.group_weights,
        steps=steps,
        added_s=mean_s * own_s / (own_s @ lengths.group_weights) / steps,
        full_s=max(step_duration_s(offered.server, max(running, 1.0), chunk) - alone_s, 0.0),
    )


def _memory_share(distribution: RunningDistribution) -> float:
    """Share of the backlog's memory that is left where slots are short: few slots let in few prompts at once.

    That a request and one behind it both find a slot, (1 - blocked)^2; chosen because it agrees with simulation.
    """
    return (1.0 - distribution.blocked) ** 2


def _decoding_backlog(offered: OfferedLoad, running: float, stream: TokenArrivals) -> Backlog:
    """Backlog beside `running` sequences that never run out, at the resolution for mean step times."""
    regime = offered.regime(0.0 if offered.server.prompts_first else running, running)
    return solve_backlog(offered.server, regime, stream, COARSE_CELLS, real_costs=True)


def _running_dispersion(offered: OfferedLoad, backlog: Backlog, arriving: float) -> float:
    """Peakedness z of the decodes: how much more variable their number is than for Poisson arrivals.

    What counts of the arrivals is their dispersion over the stay of a request, in which as many come as run on average
    (`arriving`). Per step, counts fluctuate by (1 + e) times the arrivals' own noise and e times that of the prompt
    lengths (e: the elasticity of the step time, because longer steps collect more arrivals). Requests stay K steps,
    which keeps the share E[min(K, K')] / E[K] of it, less what a long memory of the backlog smooths away.
    """
    e, by_length = backlog.elasticities
    per_step = (1.0 + e) ** 2 * arriving + by_length**2 * offered.lengths.prompt_scv
    memory = offered.lengths.residual_gaps
    kept = memory / (memory + offered.relaxation_steps(backlog.regime.decoding))
    return 1.0 + (per_step - 1.0) * offered.lengths.overlap * kept


def _step_curve(offered: OfferedLoad, solved: list[Backlog]) -> FloatArray:
    """T(n) [s] at each of `counts`: linear through the solved points, full steps beyond the critical number."""
    points = sorted({b.regime.decoding: b.mean_gap_s for b in solved}.items())
    n, t = np.array([p[0] for p in points]), np.array([p[1] for p in points])
    full_from = math.inf if offered.server.prompts_first else offered.critical
    return _through_points(n, t, offered.scales.counts, offered.scales.full_steps_s, full_from)


def _through_points(
    n: FloatArray, t: FloatArray, counts: FloatArray, full_s: FloatArray, full_from: float
) -> FloatArray:
    """T at each of `counts` [s]: lines through (n, t), extrapolated upwards; full steps at most, and from a number on.

    That number is infinite where prompts go first and full steps are no bound.
    """
    first_slope = max((t[1] - t[0]) / (n[1] - n[0]), 0.0) if n.size > 1 else 0.0
    last_slope = max((t[-1] - t[-2]) / (n[-1] - n[-2]), 0.0) if n.size > 1 else 0.0
    beyond = last_slope * np.maximum(counts - n[-1], 0.0) - first_slope * np.maximum(n[0] - counts, 0.0)
    curve: FloatArray = np.maximum(np.interp(counts, n, t) + beyond, LEAST_STEP_SHARE * t[0])
    if full_from < math.inf:
        curve = np.where(counts >= full_from, full_s, np.minimum(curve, full_s))
    return curve
