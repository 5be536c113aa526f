"""Time per output token of a request: the mean of its O - 1 steps.

Three things make it vary: the number running, which changes slowly; the prompts in the steps, which come and go fast;
and the start, because a request begins to decode right after a prompt was served, in a busier time than usual.

Prompts met in K decode steps are rare and large. A prompt of m steps shares some of them with the K steps of a request,
wherever its first step is among m + K - 1: the smaller of m and K steps at |m - K| + 1 places, each smaller number of
steps at two. Prompts come at random, so that what they add together is a compound Poisson sum, the exponential of whose
jump rates is its transform (Feller 1968, *Introduction to Probability Theory and Its Applications I*, ch. XII). Prompts
that queue for the budget, and those that come while others make steps longer, come in clusters: jumps are that much
larger, and rarer, as makes the variance what the caller knows it to be; none is larger than K full steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.core import FloatArray, compiled, last_knot
from planner.queueing.backlog import Backlog, StepChain
from planner.queueing.distributions import slice_means_in_rows, sorted_slice_means
from planner.queueing.lattice import cis
from planner.queueing.renewal import Renewal, excess_at, excess_from, renewal
from planner.workload import tail_edges

SUM_CELLS, DEVIATIONS, BEYOND_LARGEST = 256, 8.0, 1.2
"""Lattice of a sum: its cells, and its end in standard deviations above the mean and at least in largest jumps. A
choice of resolution: jumps far below a cell widen a sum, which is then close to normal anyway, and scaled to its
variance."""
PART_MIDDLES = np.array([0.125, 0.375, 0.625, 0.875])
"""Shares of an overlap that stand for all smaller ones: the middles of four parts. A choice of resolution."""
TINY = float(np.finfo(float).tiny)
"""Guards a division by a variance of 0."""
NOISE_EDGES = tail_edges(16)
"""Slices of what prompts add to the decode of a request: the noise points. A choice of resolution."""
NOISE_MASS = np.diff(NOISE_EDGES)
"""Their probabilities."""
SHORTEST_SHARE = 1e-6
"""Guards divisions: least prompt time as a share of the step, least relative variance of what prompts add."""
SHORTEST_S = 1e-15
"""Guards a division by a time of 0 [s]."""
SHORTEST_SPAN = 1e-3
"""Least span [memory times] told from none: the variance left is 1 up to it."""
LARGEST_FEEDBACK = 0.9
"""Bound on lambda E[K] dT/dn, the feedback that lengthens the memory of the number running. A choice."""


@dataclass(frozen=True)
class MetPrompts:
    """Prompts as a request that decodes meets them.

    Attributes:
        per_step: of each group, prompts that begin per step, shape (Q,).
        steps: that one takes, >= 1, shape (Q,).
        added_s: by which each of these steps is longer than one without prompts [s], shape (Q,).
        full_s: by which a full step is [s].
    """

    per_step: FloatArray
    steps: FloatArray
    added_s: FloatArray
    full_s: float

    def shapes(self, gaps: FloatArray, std_s: FloatArray, edges: FloatArray) -> FloatArray:
        """Distributions of what prompts add to k steps, less their mean and over their standard deviation.

        Args:
            gaps: numbers of steps k, > 0, shape (G,).
            std_s: standard deviation of what prompts add to so many steps together [s], > 0, shape (G,).
            edges: of the probability slices whose means are wanted, from 0 to 1, shape (slices + 1,).

        Returns:
            Slice means [-] of mean 0 and variance 1, shape (G, slices); 0 where nothing varies.
        """
        prompts = self.per_step, self.steps, self.added_s, self.full_s
        chances = np.maximum(_compound_poisson(*prompts, gaps, std_s), 0.0)
        cells, mass = np.arange(SUM_CELLS, dtype=np.float64)[None, :], np.diff(edges)
        means = slice_means_in_rows(cells, chances, edges)
        centred = means - (means @ mass)[:, None]
        return np.asarray(centred / np.sqrt(np.maximum(centred**2 @ mass, TINY))[:, None])


@compiled(makes_arrays=True)
def _jumps(per_step: FloatArray, steps: FloatArray, added_s: FloatArray, full_s: float, gaps: float) -> FloatArray:
    """Time one prompt adds to k steps [s], the number of prompts that do, and the most that a cluster adds [s].

    Arguments as in `MetPrompts`; shape (3, parts times Q).
    """
    groups, parts = steps.size, PART_MIDDLES.size
    jumps = np.empty((3, (1 + parts) * groups))
    for group in range(groups):
        shared = min(steps[group], gaps)
        jumps[0, group] = shared * added_s[group]
        jumps[1, group] = per_step[group] * (abs(steps[group] - gaps) + 1.0)
        for part in range(parts):
            kind = (1 + part) * groups + group
            jumps[0, kind] = max(shared * PART_MIDDLES[part], 1.0) * added_s[group]
            jumps[1, kind] = per_step[group] * 2.0 * max(shared - 1.0, 0.0) / parts
        for kind in range(group, jumps.shape[1], groups):
            jumps[2, kind] = gaps * max(full_s, added_s[group])
    return jumps


@compiled(makes_arrays=True)
def _compound_poisson(
    per_step: FloatArray, steps: FloatArray, added_s: FloatArray, full_s: float, gaps: FloatArray, std_s: FloatArray
) -> FloatArray:
    """Chances of sums of clusters of jumps on a lattice, row by row, shape (G, SUM_CELLS)."""
    rows = gaps.size
    levy, total = np.zeros((rows, SUM_CELLS)), np.empty(rows)
    for row in range(rows):
        jumps = _jumps(per_step, steps, added_s, full_s, gaps[row])
        total[row] = _add_clusters(levy[row], jumps[0], jumps[1], jumps[2], std_s[row])
    transform = np.fft.rfft(levy)
    for row in range(rows):
        for k in range(transform.shape[1]):
            transform[row, k] = math.exp(transform[row, k].real - total[row]) * cis(transform[row, k].imag)
    return np.fft.irfft(transform, SUM_CELLS)


@compiled
def _add_clusters(levy: FloatArray, jumps_s: FloatArray, rates: FloatArray, most_s: FloatArray, std_s: float) -> float:
    """Put the rates of clusters of jumps on a lattice that holds their sum; all of them together."""
    alone, largest, mean, variance, total = 0.0, 0.0, 0.0, 0.0, 0.0
    for kind in range(jumps_s.size):
        alone += jumps_s[kind] ** 2 * rates[kind]
    clusters = max(std_s**2 / max(alone, SHORTEST_S**2), 1.0)
    for kind in range(jumps_s.size):
        jump = min(jumps_s[kind] * clusters, most_s[kind])
        mean += rates[kind] * jumps_s[kind]
        variance += rates[kind] * jumps_s[kind] * jump
        largest = max(largest, jump)
    cell_s = max(_lattice_end(mean, variance), BEYOND_LARGEST * largest, SHORTEST_S) / (SUM_CELLS - 1)
    for kind in range(jumps_s.size):
        if rates[kind] == 0.0:
            continue
        jump = min(jumps_s[kind] * clusters, most_s[kind])
        rate = rates[kind] * jumps_s[kind] / max(jump, SHORTEST_S)
        below = min(int(jump / cell_s), SUM_CELLS - 2)
        levy[below] += rate * (1.0 - (jump / cell_s - below))
        levy[below + 1] += rate * (jump / cell_s - below)
        total += rate
    return total


@compiled
def _lattice_end(mean: float, variance: float) -> float:
    """`DEVIATIONS` above the mean, of the sum as the lattice has it: cells add at most mean * cell to the variance.

    With t the end, (t - mean)^2 = DEVIATIONS^2 (variance + mean t / (cells - 1)).
    """
    per_end = DEVIATIONS**2 * mean / (SUM_CELLS - 1)
    beyond = per_end**2 + 4.0 * (per_end * mean + DEVIATIONS**2 * variance)
    return mean + (per_end + math.sqrt(beyond)) / 2.0


class Followers(NamedTuple):
    """Arrivals behind a request: more (or fewer) than behind a random instant, for arrivals in bursts (or regular).

    Attributes:
        rate_per_s: arrivals [1/s].
        counts: of the arrivals.
        first_s: from the arrival of a request to its first token [s], shape (F,).
        weights: probabilities of these, shape (F,).
    """

    rate_per_s: float
    counts: Renewal
    first_s: FloatArray
    weights: FloatArray


@compiled
def _excess_until_first(followers: Followers) -> float:
    """Arrivals until the first token beyond those of a Poisson process: companions of a burst, or a lack of them."""
    beyond = 0.0
    for place in range(followers.first_s.size):
        window = followers.rate_per_s * followers.first_s[place]
        beyond += followers.weights[place] * excess_at(followers.counts, window)
    return beyond


@compiled(makes_arrays=True)
def _surplus(followers: Followers, spans_s: FloatArray) -> FloatArray:
    """Prompts by which the arrivals within the spans [s] after the first token exceed the mean."""
    more, known = np.zeros(spans_s.size), 0.0
    if followers.counts.scv == 1.0:
        return more
    for place in range(followers.first_s.size):
        first, weight = followers.rate_per_s * followers.first_s[place], followers.weights[place]
        known += weight * excess_at(followers.counts, first)
        knot, before = 0, first
        for at in range(spans_s.size):
            window = first + followers.rate_per_s * spans_s[at]
            knot = last_knot(followers.counts.windows, window, knot if window >= before else 0)
            more[at] += weight * excess_from(followers.counts, window, knot)
            before = window
    for at in range(spans_s.size):
        more[at] -= known
    return more


@compiled(makes_arrays=True)
def _met(steps: FloatArray, prompts: FloatArray, kept: float) -> FloatArray:
    """Of prompts that come within so many steps, those whose work is done within them; arguments of shape (G,).

    Of what comes in a step the share `kept` is left after each further one. Within an interval they come evenly.

    Args:
        steps: rising.
        prompts: that come within so many.
        kept: of a prompt's work, on average over its work.
    """
    met, left, before, come = np.empty(steps.size), 0.0, 0.0, 0.0
    fading = -math.log(max(kept, TINY))
    for at in range(steps.size):
        span = fading * (steps[at] - before)
        left = left * math.exp(-span) - (prompts[at] - come) * math.expm1(-span) / max(span, TINY)
        met[at], before, come = prompts[at] - left, steps[at], prompts[at]
    return met


class GapNoise(NamedTuple):
    """Fluctuation of step durations while the number running stands still.

    Attributes:
        mean_s: mean duration of a step [s].
        variance: of one step [s^2].
        correlation: of neighbouring steps, in [0, 1).
        start_s: excess of the first steps of a request over the mean, summed [s].
        left: mean prompts left behind at a first token; NaN for steps at random instants.
        followers: what arrives behind a request.
        per_prompt_s: what one prompt more adds to the time of many steps [s].
        stride: steps after which what came in one is served: 2 where steps are prepared, else 1.
        own_steps: that a prompt takes, on average over the work of all, at least 1.
    """

    mean_s: float
    variance: float
    correlation: float
    start_s: float
    left: float
    followers: Followers
    per_prompt_s: float
    stride: float = 1.0
    own_steps: float = 1.0

    def damped(self, share: float) -> GapNoise:
        """The same with covariances of steps and start reduced to a share: few slots keep the backlog from building up.

        The covariances add 2 r / (1 - r) times the variance of one step to the long-run variance per step.
        """
        kept = share * self.correlation
        return self._replace(correlation=kept / (1.0 - self.correlation + kept), start_s=self.start_s * share)

    def anywhere(self) -> GapNoise:
        """The same for steps at random instants instead of right after a first token."""
        return self._replace(start_s=0.0, left=math.nan, followers=self.followers._replace(counts=renewal(1.0)))

    def mean_variance(self, gaps: FloatArray) -> FloatArray:
        """Variance [s^2] of the mean of k successive steps with geometrically fading correlation r.

        variance / k * ((1 + r) / (1 - r) - 2 r (1 - r^k) / (k (1 - r)^2)), the exact sum for an AR(1) sequence.
        """
        r, k = self.correlation, np.maximum(gaps / self.stride, 1.0)
        spread = (1.0 + r) / (1.0 - r) - 2.0 * r * (1.0 - r**k) / (k * (1.0 - r) ** 2)
        return np.asarray(self.variance / gaps * spread)

    def start_excess_s(self, gaps: FloatArray, more_left: FloatArray | float = 0.0) -> FloatArray:
        """Time the start adds to the mean of k steps [s]: the backlog left behind, and who follows the request.

        Args:
            gaps: numbers of steps k, > 0, rising, shape (G,).
            more_left: prompts that requests of so many steps leave behind beyond what all do, shape (G,).
        """
        start_s, steps = self.start_s + more_left * self.per_prompt_s, gaps / self.stride
        met = _met(steps, _surplus(self.followers, gaps * self.mean_s), 1.0 - 1.0 / self.own_steps)
        return np.asarray((start_s * (1.0 - self.correlation**steps) + met * self.per_prompt_s) / gaps)


def gap_noise(
    backlog: Backlog, prompt_scv: float, mean_prompt: float, followers: Followers, prepares: bool = False
) -> GapNoise:
    """Fluctuation of the steps around the mean at a fixed number running.

    Over many steps the total time T_K satisfies T_K = K a + f A(T_K): its variance per step is
    T (e^2 SCV + e_L^2 SCV(L)) / rate, e and e_L the elasticities to the number of prompts and to their lengths. That
    fixes the correlation.

    Args:
        backlog: solved for a server that never idles.
        prompt_scv: SCV(L), of the lengths of prompts.
        mean_prompt: E[L] [tokens].
        followers: what arrives while a request decodes.
        prepares: of the server.

    Returns:
        Mean [s], variance [s^2] and correlation of the steps, and what the start of a decode adds [s].
    """
    variance, mean = backlog.chain.step_variance, backlog.mean_step_s
    by_number, by_length = backlog.elasticities
    long_run = mean / followers.rate_per_s * (by_number**2 * followers.counts.scv + by_length**2 * prompt_scv)
    ratio = max(long_run / variance, 1.0) if variance > 0.0 else 1.0
    rest = backlog.arrivals.tokens_per_s, backlog.mean_rest_s, backlog.regime.chunk
    behind = _backlog_after_a_prompt(backlog.chain, backlog.cell, backlog.duration_s, *rest, mean_prompt, followers)
    shares = backlog.chain.step_probabilities
    not_full = 1.0 - float(shares[-1]) / max(1.0 - float(shares[0]), SHORTEST_SHARE)
    usual = backlog.chain.mean_tokens + prepares * backlog.arrivals.tokens_per_s * mean
    per_prompt_s = by_number / followers.rate_per_s
    return GapNoise(
        mean_s=mean,
        variance=variance,
        correlation=(ratio - 1.0) / (ratio + 1.0),
        start_s=(behind - (0.0 if backlog.prompts_first else usual)) / mean_prompt * per_prompt_s,
        left=behind / mean_prompt,
        followers=followers,
        per_prompt_s=per_prompt_s,
        stride=1.0 + prepares * not_full,
        own_steps=max(mean_prompt * (1.0 + prompt_scv) / backlog.regime.chunk, 1.0),
    )


@compiled
def _backlog_after_a_prompt(
    chain: StepChain,
    cell: float,
    duration_s: FloatArray,
    token_rate: float,
    mean_rest_s: float,
    chunk: float,
    mean_prompt: float,
    followers: Followers,
) -> float:
    """Mean backlog [tokens] at the step boundary where a random prompt has just been finished.

    First come, first served, all of it came in the time to first token [s], less what was served with the prompt: a
    step that is not full takes in all that came before it began, a full one half of it behind the prompt. At least as
    many prompts end in steps that are not full as find no other (as many leave nobody behind as find nobody), however
    coarse the lattice is. Companions of a burst come behind as a renewal process brings them. Source: Little, and level
    crossing of the number of prompts.
    """
    ended, first_s = 0.0, 0.0
    for place in range(1, duration_s.size):
        ended += max(1.0, place * cell / mean_prompt) * chain.step_probabilities[place]
    for place in range(followers.first_s.size):
        first_s += followers.first_s[place] * followers.weights[place]
    alone = chain.step_probabilities[0] * duration_s[0] / chain.mean_step_s
    part = min(max(ended * mean_prompt / (token_rate * chain.mean_step_s), alone), 1.0)
    beyond = _excess_until_first(followers)
    if beyond <= 0.0:
        served = token_rate * part * mean_rest_s + (1.0 - part) * chunk / 2.0
        return float((1.0 + beyond / (followers.rate_per_s * first_s)) * max(token_rate * first_s - served, 0.0))
    soon = excess_at(followers.counts, followers.rate_per_s * mean_rest_s)
    served = part * (token_rate * mean_rest_s + soon * mean_prompt) + (1.0 - part) * chunk / 2.0
    return float(max(token_rate * first_s + beyond * mean_prompt - served, 0.0))


def token_gap_times(
    gaps: FloatArray,
    more_left: FloatArray,
    noise: GapNoise,
    steps: tuple[Backlog, MetPrompts],
    slow_s: FloatArray,
    floor_s: FloatArray,
    memory_steps: float,
    longest_s: float,
) -> tuple[FloatArray, FloatArray]:
    """Times per output token [s] of requests with `gaps` steps and their weights, both of shape (gaps, points).

    Args:
        gaps: numbers of steps, > 0, shape (G,).
        more_left: prompts that requests of so many steps leave behind beyond what all do, shape (G,).
        noise: of the steps.
        steps: those that fluctuate, and the prompts in them.
        slow_s: mean step at equally likely numbers running [s], shape (S,).
        floor_s: step without prompts at these [s], shape (S,).
        memory_steps: steps over which the number running is remembered.
        longest_s: no step is longer [s].

    Returns:
        Times [s] and weights, each shape (gaps, points).
    """
    std_s = np.sqrt(noise.mean_variance(gaps))
    shapes, late_s = _fast_fluctuation(gaps, std_s, noise, *steps), noise.start_excess_s(gaps, more_left)
    at = noise.variance > 0.0, max(noise.mean_s, SHORTEST_S), memory_steps, longest_s
    return _points(gaps, std_s, shapes, late_s, slow_s, floor_s, NOISE_MASS, *at)


@compiled(makes_arrays=True)
def _points(
    gaps: FloatArray,
    std_s: FloatArray,
    shapes: FloatArray,
    late_s: FloatArray,
    slow_s: FloatArray,
    floor_s: FloatArray,
    mass: FloatArray,
    varies: bool,
    mean_s: float,
    memory_steps: float,
    longest_s: float,
) -> tuple[FloatArray, FloatArray]:
    """Times [s] and weights at each slow point: at steps without prompts, then at each noise point; (gaps, points).

    Args:
        gaps: numbers of steps, shape (gaps,).
        std_s: standard deviations of their means while the number running stands still [s], shape (gaps,).
        shapes: deviations over these, rising, shape (gaps, noise points).
        late_s: what the start adds to the mean [s], shape (gaps,).
        slow_s: mean step at equally likely numbers running [s], shape (S,).
        floor_s: step without prompts at these [s], shape (S,).
        mass: of the noise points, shape (noise points,).
        varies: whether single steps do.
        mean_s: of the steps.
        memory_steps: steps over which the number running is remembered.
        longest_s: no step is longer [s].
    """
    places, points = slow_s.size, mass.size + 1
    slow, floor = slowly_varying_times(gaps, slow_s, memory_steps), slowly_varying_times(gaps, floor_s, memory_steps)
    times, weights = np.empty((gaps.size, places * points)), np.empty((gaps.size, places * points))
    prompts_s, above = max(_mean(slow_s) - _mean(floor_s), SHORTEST_SHARE * mean_s), np.empty(mass.size)
    for gap in range(gaps.size):
        mean, variance = _mean(slow[gap]), 0.0
        for place in range(places):
            variance += (slow[gap, place] - mean) ** 2 / places
        fast_s = std_s[gap] * _coherence(gaps[gap] / memory_steps, std_s[gap], math.sqrt(variance)) if varies else 0.0
        grown = max(1.0 + late_s[gap] / prompts_s, 0.0)
        for place in range(places):
            without, mean = min(floor[gap, place], slow[gap, place]), 0.0
            for point in range(mass.size):
                above[point] = max(slow[gap, place] - without + fast_s * shapes[gap, point], 0.0)
                mean += above[point] * mass[point]
            for point in range(mass.size):
                above[point] *= (slow[gap, place] - without) / max(mean, SHORTEST_S)
            added, share = size_biased_mixture(above, mass, grown)
            first = place * points
            times[gap, first] = without
            weights[gap, first] = max(1.0 - grown, 0.0)
            for point in range(mass.size):
                times[gap, first + 1 + point] = min(without + added[point], max(without, longest_s))
                weights[gap, first + 1 + point] = share[point] * min(grown, 1.0)
    return times, weights


@compiled(makes_arrays=True)
def size_biased_mixture(above: FloatArray, mass: FloatArray, grown: float) -> tuple[FloatArray, FloatArray]:
    """Time prompts add to the steps, once its mean has grown by a factor above 1 because more prompts came.

    One more prompt (or cluster) than usual makes a Poisson sum X size-biased: weights X / E[X], mean E[X^2] / E[X]. A
    mixture with that distribution has the mean wanted; what it cannot reach is made up by stretching. Prompts that add
    nothing, as those on a server that is all but idle, leave the weights as they are.

    Args:
        above: what prompts add [s], shape (noise points,).
        mass: of the noise points, shape (noise points,).
        grown: factor on the mean; 1 and less change nothing.

    Returns:
        What prompts add [s] and its weights, both of the shape of `above`.
    """
    mean, square = 0.0, 0.0
    for point in range(mass.size):
        mean += above[point] * mass[point]
        square += above[point] ** 2 * mass[point]
    adds = mean > SHORTEST_S
    mean = max(mean, SHORTEST_S)
    spread = max(square / mean**2 - 1.0, SHORTEST_SHARE)
    biased = min(max((grown - 1.0) / spread, 0.0), 1.0) if adds else 0.0
    stretch = max(grown / (1.0 + biased * spread), 1.0)
    added, share = np.empty(mass.size), np.empty(mass.size)
    for point in range(mass.size):
        added[point] = above[point] * stretch
        share[point] = mass[point] * (1.0 - biased + biased * above[point] / mean)
    return added, share


@compiled(makes_arrays=True)
def slowly_varying_times(gaps: FloatArray, slow_s: FloatArray, memory_steps: float) -> FloatArray:
    """Mean step [s] over `gaps` steps where only the number running moves, shape (gaps, slow points).

    The deviations from the mean shrink as the mean of an exponentially forgetting process over that span does: of its
    variance the share 2 (exp(-x) - 1 + x) / x^2 is left, x the span in memory times.

    Args:
        gaps: numbers of steps, shape (G,).
        slow_s: mean step at equally likely numbers running [s], shape (S,).
        memory_steps: steps over which the number running is remembered.
    """
    times, mean = np.empty((gaps.size, slow_s.size)), _mean(slow_s)
    for gap in range(gaps.size):
        x = max(gaps[gap] / memory_steps, SHORTEST_SPAN)
        lasting = math.sqrt(2.0 * (math.expm1(-x) + x) / x**2)
        for place in range(slow_s.size):
            times[gap, place] = mean + (slow_s[place] - mean) * lasting
    return times


@compiled
def _mean(values: FloatArray) -> float:
    total = 0.0
    for value in values:
        total += value
    return total / values.size


@compiled
def _coherence(span: float, fast_s: float, slow_s: float) -> float:
    """Factor on the fast fluctuation because the number running follows it.

    The prompts that lengthen the steps decode next and raise the number running. Over k steps the two deviations have
    the correlation 1 - (1 - exp(-x)) / x, x = k / memory (none at first, full in the long run), which adds twice the
    product of their standard deviations to the variance.

    Args:
        span: x.
        fast_s: standard deviation of the fast fluctuation [s].
        slow_s: of the slow one [s].
    """
    x = max(span, 1e-6)
    return math.sqrt(1.0 + 2.0 * (1.0 + math.expm1(-x) / x) * slow_s / fast_s)


def _fast_fluctuation(
    gaps: FloatArray, std_s: FloatArray, noise: GapNoise, backlog: Backlog, prompts: MetPrompts
) -> FloatArray:
    """Deviation of the mean of k steps over its standard deviation at the noise points, shape (gaps, 16).

    One step has its own distribution; several have that of the prompts in them (`planner.queueing.token_gap`).
    """
    if noise.variance <= 0.0:
        return np.zeros((gaps.size, NOISE_MASS.size))
    several = gaps > 1.0
    if several.all():
        return prompts.shapes(gaps, gaps * std_s, NOISE_EDGES)
    durations_s = backlog.step_durations_s
    order = np.argsort(durations_s, kind="stable")
    one = sorted_slice_means(durations_s[order], backlog.chain.step_probabilities[order], NOISE_EDGES)
    shapes = np.tile((one - noise.mean_s) / np.sqrt(noise.variance), (gaps.size, 1))
    if several.any():
        shapes[several] = prompts.shapes(gaps[several], (gaps * std_s)[several], NOISE_EDGES)
    return shapes
