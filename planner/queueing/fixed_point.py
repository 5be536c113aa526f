"""The number running and the step time, made to agree: each depends on the other.

The number running changes slowly (over hundreds of steps), the backlog of prompt tokens quickly (over a few). So the
backlog is solved at a fixed number running, which gives the mean step T(n), and T(n) gives the distribution of the
number running.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.queueing.backlog import COARSE_CELLS, Backlog, TokenArrivals, solve_backlog
from planner.queueing.batch_occupancy import RunningDistribution, running_distribution
from planner.queueing.capacity import RUNNING
from planner.queueing.offered_load import Burstiness, Offered, burstiness
from planner.queueing.token_gap import LARGEST_FEEDBACK, Followers, GapNoise, gap_noise, token_elasticity
from planner.queueing.types import FloatArray

CLOSEST_TO_CRITICAL = 0.985
"""The backlog is not solved nearer than this to the number running at which full steps only just keep up."""
UPWARD = 1.2
"""The step curve is anchored at the mean number running and this many standard deviations above."""
NEAR = 0.3
"""No new anchor within this many standard deviations of an old one."""
REFINEMENTS = 3
SMALLEST_STD = 0.5
EXPONENTIAL_POINTS = np.array([2.0 - np.sqrt(2.0), 2.0 + np.sqrt(2.0)])
EXPONENTIAL_WEIGHTS = np.array([2.0 + np.sqrt(2.0), 2.0 - np.sqrt(2.0)]) / 4.0
"""Two-point Gauss-Laguerre rule: an exponential variable of mean 1."""
LEAST_STEP = 0.5
"""An extrapolated mean step is not below this share of the lowest solved one."""


@dataclass(frozen=True, eq=False)
class RunningState:
    """The number running and the steps it goes with.

    Attributes:
        distribution: of the number running.
        step_means_s: T at each of the numbers running of `distribution` [s].
        spread: burstiness.
        noise: fluctuation of the steps near the mean number running.
        slope: lambda E[K] dT/dn, the feedback of the number running on itself, in [0, 0.9].
    """

    distribution: RunningDistribution
    step_means_s: FloatArray
    spread: Burstiness
    noise: GapNoise
    slope: float


def running_state(offered: Offered) -> RunningState:
    """The number running, from a fluid estimate; once more where the burstiness depends on what came out."""
    running, step_s = offered.fluid
    spread = burstiness(offered, running, step_s)
    starts = (running + 1.0, 1.2 * running + 2.0)
    if offered.arrivals.scv != 1.0:
        rough = _agreed(offered, spread, starts, refinements=0)
        distribution, means = rough.distribution, rough.step_means_s
        spread = burstiness(
            offered, distribution.mean, float(np.interp(distribution.mean + 1.0, offered.counts, means))
        )
        starts = (distribution.mean + 1.0, distribution.mean + 1.0 + UPWARD * max(distribution.std, SMALLEST_STD))
    return _agreed(offered, spread, starts, REFINEMENTS)


def _agreed(offered: Offered, spread: Burstiness, starts: tuple[float, float], refinements: int) -> RunningState:
    """The step curve T(n) and the distribution of n, made to agree: T is solved where the distribution has its mass."""
    stream = offered.tokens(spread.in_step)
    solved = [_decoding_backlog(offered, n, stream) for n in starts]
    for _ in range(refinements):
        distribution = _distribution_from(offered, solved, spread)[0]
        wanted = (distribution.mean + 1.0, distribution.mean + 1.0 + UPWARD * distribution.std)
        new = [n for n in wanted if all(abs(n - b.regime.running) > NEAR * max(distribution.std, 1.0) for b in solved)]
        if not new:
            break
        solved += [_decoding_backlog(offered, n, stream) for n in new]
    distribution, means, nearest = _distribution_from(offered, solved, spread)
    noise = _noise(offered, nearest, spread).damped(_open(distribution))
    rise = np.interp(
        [distribution.mean + 1.0, distribution.mean + 1.0 + max(distribution.std, 1.0)], offered.counts, means
    )
    slope = offered.gap_rate_per_s * float(rise[1] - rise[0]) / max(distribution.std, 1.0)
    return RunningState(distribution, means, spread, noise, min(max(slope, 0.0), LARGEST_FEEDBACK))


def _distribution_from(
    offered: Offered, solved: list[Backlog], spread: Burstiness
) -> tuple[RunningDistribution, FloatArray, Backlog]:
    """Distribution of n from solved points of T(n), the curve through them [s], and the point nearest to the mean."""
    means = _step_curve(offered, solved)
    gaps = np.array([max(offered.lengths.mean_gaps / offered.lengths.decoding, 1.0)])
    largest = None
    if offered.limit.limit == RUNNING:
        largest = offered.limit.rate_per_s * offered.lengths.mean_gaps
    guess = running_distribution(offered.counts, means, offered.gap_rate_per_s, 1.0, largest)
    nearest = min(solved, key=lambda b: abs(b.regime.running - guess.mean - 1.0))
    z = _running_dispersion(offered, nearest)
    noise = _noise(offered, nearest, spread)
    stay = means + float(noise.start_excess_s(gaps)[0]) * _open(guess)
    return running_distribution(offered.counts, stay, offered.gap_rate_per_s, z, largest), means, nearest


def _noise(offered: Offered, backlog: Backlog, spread: Burstiness) -> GapNoise:
    """Fluctuation of the steps at one number running.

    Until its first token a request waits half a step, for the tokens ahead (Little: the backlog over the token rate,
    less the step that serves them) and for its own steps.
    """
    distribution = offered.lengths
    ahead_s = max(backlog.mean_tokens / offered.token_rate_per_s - backlog.mean_step_s, 0.0)
    first_s = backlog.mean_step_s / 2.0 + np.add.outer(ahead_s * EXPONENTIAL_POINTS, offered.own_s)
    weights = np.outer(EXPONENTIAL_WEIGHTS, distribution.group_weights)
    batched = max(spread.in_step - 1.0, 0.0) / 2.0
    followers = Followers(offered.rate_per_s, offered.arrivals.scv, first_s.ravel(), weights.ravel(), batched)
    return gap_noise(backlog, offered.token_variance_per_s, distribution.mean_prompt, followers)


def _open(distribution: RunningDistribution) -> float:
    """Share of the backlog's memory that is left where slots are short: few slots let in few prompts at once.

    That a request and one behind it both find a slot, (1 - blocked)^2; chosen because it agrees with simulation.
    """
    return (1.0 - distribution.blocked) ** 2


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
    return np.where(counts >= offered.critical, full, np.clip(curve, LEAST_STEP * t[0], full))
