"""The answer of a queue, and how points and weights become its latency distributions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.core import FloatArray
from planner.queueing.distributions import DISTRIBUTION_EDGES, slice_means, sorted_slice_means
from planner.queueing.server import FluidLimit
from planner.workload import CondensedLengths, JointDistribution, LatencyDistribution, tail_edges

POINT_MASS = np.diff(DISTRIBUTION_EDGES)
"""Their probabilities."""
FIRST_EDGES = tail_edges(40)
"""Slices of the TTFT of a prompt group."""
FIRST_MASS = np.diff(FIRST_EDGES)
"""Their probabilities."""
FIRST_MIDDLES = (FIRST_EDGES[1:] + FIRST_EDGES[:-1]) / 2.0
"""Their middles."""
START_EDGES = tail_edges(10)
"""Slices of the TTFT of the requests of one output length within an E2E."""
TOKEN_EDGES = tail_edges(24)
"""Slices of the TPOT of requests of one output length."""
TOKEN_MASS = np.diff(TOKEN_EDGES)
"""Their probabilities."""
GAP_TIME_EDGES = tail_edges(10)
"""Slices of the TPOT within an E2E."""
WAIT_EDGES = tail_edges(12)
"""Slices of the wait for a slot."""
NEGLIGIBLE = 1e-5
"""Probability of waiting for a slot below which nobody does."""


@dataclass(frozen=True)
class QueueLatency:
    """Stationary latencies of one server (or pool) at one rate.

    Attributes:
        stable: False when the offered load exceeds capacity; the distributions are then unbounded.
        ttft: arrival to first token [s].
        tpot: (E2E - TTFT) / (output tokens - 1) of a request [s]; 0 for one-token outputs.
        e2e: arrival to last token [s].
        itl: one gap between two tokens [s], over all gaps of all requests; 0 where none decodes.
        mean_running: time-average number of running (decoding) sequences.
        mean_step_s: mean duration of a busy step [s].
        utilisation: offered rate / largest stable rate; >= 1 when unstable.
        limit: what gives out first as the rate grows: "prompts" (chunk budget), "running" (sequence limit).
        joint: TTFT and TPOT together (of a decode pool: its `ttft`), by prompt and by output length.
    """

    stable: bool
    ttft: LatencyDistribution
    tpot: LatencyDistribution
    e2e: LatencyDistribution
    itl: LatencyDistribution
    mean_running: float
    mean_step_s: float
    utilisation: float
    limit: str
    joint: JointDistribution | None = None


@dataclass(frozen=True)
class Blocking:
    """Wait for a free slot: with `probability`, exponential with mean `mean_s` [s]; otherwise none."""

    probability: float
    mean_s: float

    def points(self) -> tuple[FloatArray, FloatArray]:
        """Waits [s] and weights."""
        if self.probability < NEGLIGIBLE:
            return np.zeros(1), np.ones(1)
        above = 1.0 - WAIT_EDGES
        # Mean of an exponential between two quantiles: its quantile -log(1 - u), integrated over the slice of u.
        integral = above * np.log(np.maximum(above, np.finfo(float).tiny)) - above
        means = np.diff(integral) / np.diff(WAIT_EDGES)
        waits = np.concatenate([[0.0], self.mean_s * means])
        weights = np.concatenate([[1.0 - self.probability], self.probability * np.diff(WAIT_EDGES)])
        return waits, weights


def gap_distribution(steps_s: FloatArray, tokens: FloatArray) -> LatencyDistribution:
    """Distribution of a single gap between two tokens [s], over all gaps of all requests.

    A state with n running and steps of T(n) sees tokens at the rate n / T(n); a gap falls there in that proportion.

    Args:
        steps_s: step durations at some states [s], shape (states,).
        tokens: time spent in each state times the number running, any scale, shape (states,).
    """
    weights = tokens / steps_s
    if not weights.sum() > 0.0:
        return LatencyDistribution.constant(0.0)
    return condensed_sample(steps_s, weights)


def condensed_sample(times: FloatArray, weights: FloatArray) -> LatencyDistribution:
    """A weighted sample as a latency distribution of at most 512 points that keeps the mean.

    Args:
        times: [s], any one shape.
        weights: >= 0, broadcastable to `times`.

    Returns:
        Distribution [s], finer towards the tail.
    """
    values, mass = times.ravel(), np.broadcast_to(weights, times.shape).ravel()
    if values.size < DISTRIBUTION_EDGES.size:
        return LatencyDistribution.from_samples(values, mass)
    means = slice_means(values, mass, DISTRIBUTION_EDGES)
    return LatencyDistribution(np.maximum.accumulate(means), POINT_MASS)


def with_own_spread(first_s: FloatArray, lengths: CondensedLengths, own_s: FloatArray) -> FloatArray:
    """Times with the spread of the prompts of each group, which adds to the variance as if independent of the waits.

    Longer prompts are put to longer times: x + g d with d the deviation of a prompt's own time from the group's mean,
    and g such that Var(x + g d) = Var x + Var d (1 where nobody waits).

    Args:
        first_s: times of the mean prompt of each group in slices FIRST_EDGES, x [s], shape (groups, slices).
        lengths: of the requests.
        own_s: time a prompt of each group takes alone [s], shape (groups,).

    Returns:
        Times of the same means [s], shape (groups, slices).
    """
    at = np.cumsum(lengths.group_weights)[:, None] - np.outer(lengths.group_weights, 1.0 - FIRST_MIDDLES)
    place = np.minimum(np.searchsorted(np.cumsum(lengths.prompt_weights), at), lengths.prompts.size - 1)
    apart_s = np.interp(lengths.prompts[place], lengths.groups, own_s)
    apart_s -= (apart_s @ FIRST_MASS)[:, None]
    variance, shared = apart_s**2 @ FIRST_MASS, np.maximum((first_s * apart_s) @ FIRST_MASS, 0.0)
    share = variance / np.maximum(np.hypot(shared, variance) + shared, np.finfo(float).tiny)
    return np.asarray(first_s + share[:, None] * apart_s)


def with_slot_wait(first_s: FloatArray, blocking: Blocking) -> FloatArray:
    """Add the wait for a slot (independent) to times given by slices FIRST_EDGES.

    Args:
        first_s: times without that wait [s], shape (groups, slices).
        blocking: the wait for a slot.

    Returns:
        Times [s] with the wait, in slices FIRST_EDGES, shape (groups, slices).
    """
    waits, chance = blocking.points()
    if waits.size == 1:
        return first_s
    total = first_s[:, :, None] + waits
    share = np.broadcast_to(FIRST_MASS[:, None] * chance, total.shape)
    rows = (first_s.shape[0], -1)
    return slice_means(total.reshape(rows), share.reshape(rows), FIRST_EDGES)


@dataclass(frozen=True, eq=False)
class DecodeLatencies:
    """Latencies of requests that decode.

    Attributes:
        tpot: (E2E - TTFT) / (output tokens - 1) of a request [s].
        e2e: arrival to last token [s].
        joint: TTFT and TPOT together.
    """

    tpot: LatencyDistribution
    e2e: LatencyDistribution
    joint: JointDistribution


def decode_latencies(
    lengths: CondensedLengths, first_s: FloatArray, gap_times_s: FloatArray, mass: FloatArray
) -> DecodeLatencies:
    """Distributions of TPOT, of E2E = TTFT + (O - 1) TPOT, and of TTFT and TPOT together.

    Args:
        lengths: of the requests.
        first_s: TTFT [s] of each prompt group in slices FIRST_EDGES, shape (groups, slices).
        gap_times_s: times per output token [s] for each entry of `lengths.gaps`, best in rising runs, (gaps, points).
        mass: of these points, shape (points,) or (gaps, points).

    Returns:
        The three distributions [s]; a request of one output token has a TPOT of 0.
    """
    token_s = slice_means(gap_times_s, mass, TOKEN_EDGES, runs=True)
    tokens = np.append(token_s.ravel(), 0.0)
    chance = np.outer(lengths.gap_weights * lengths.decoding, TOKEN_MASS)
    done_at_once = max(1.0 - lengths.decoding, 0.0)
    shares = np.append(chance.ravel(), done_at_once)
    among = np.append(lengths.gap_weights * lengths.decoding, done_at_once)
    joint = JointDistribution(
        first_s=first_s,
        first_mass=FIRST_MASS,
        token_s=np.concatenate([token_s, np.zeros((1, token_s.shape[1]))]),
        token_mass=TOKEN_MASS,
        weights=lengths.gap_groups * among[:, None],
        prompts=lengths.groups,
        gaps=np.append(lengths.gaps, 0.0),
        levels=1,
    )
    return DecodeLatencies(condensed_sample(tokens, shares), e2e_distribution(joint), joint)


def e2e_distribution(joint: JointDistribution) -> LatencyDistribution:
    """E2E = TTFT + (O - 1) TPOT [s] of requests of one level of load, finer towards the tail than `joint.e2e`.

    Args:
        joint: TTFT and TPOT of the requests, each rising along its rows.

    Returns:
        Distribution [s] whose mean is that of TTFT plus that of the decodes; computed when it is looked at.
    """
    return LatencyDistribution.later(lambda: _e2e_distribution(joint), joint.mean_e2e_s)


def _e2e_distribution(joint: JointDistribution) -> LatencyDistribution:
    shares = joint.weights.sum(axis=1)
    some = np.flatnonzero(shares > 0.0)
    few = _coarser(joint.first_s, joint.first_mass, START_EDGES)
    decode_s = joint.gaps[some, None] * _coarser(joint.token_s[some], joint.token_mass, GAP_TIME_EDGES)
    order = np.argsort(few, axis=None, kind="stable")
    among = (joint.weights[some, :, None] * np.diff(START_EDGES)).reshape(some.size, -1)
    start_s = sorted_slice_means(few.ravel()[order], among[:, order], START_EDGES)
    both = np.outer(np.diff(START_EDGES), np.diff(GAP_TIME_EDGES))
    return condensed_sample(start_s[:, :, None] + decode_s[:, None, :], shares[some, None, None] * both)


def first_token_distribution(lengths: CondensedLengths, first_s: FloatArray) -> JointDistribution:
    """TTFT and TPOT [s] together where every request has one output token, so that TPOT is 0.

    Args:
        lengths: of the requests.
        first_s: TTFT [s] of each prompt group in slices FIRST_EDGES, shape (groups, slices).
    """
    return JointDistribution(
        first_s=first_s,
        first_mass=FIRST_MASS,
        token_s=np.zeros((1, 1)),
        token_mass=np.ones(1),
        weights=lengths.group_weights[None, :],
        prompts=lengths.groups,
        gaps=np.zeros(1),
        levels=1,
    )


def _coarser(means: FloatArray, mass: FloatArray, to: FloatArray) -> FloatArray:
    """Slice means at fewer edges, row by row."""
    return sorted_slice_means(means, np.broadcast_to(mass, means.shape), to)


def unstable_latency(limit: FluidLimit, utilisation: float) -> QueueLatency:
    """The answer to an overload: unbounded latencies.

    Args:
        limit: the server at its largest stable rate.
        utilisation: offered rate over that rate, >= 1.

    Returns:
        Latencies with `stable` False, and the number running and the mean step of the saturated server.
    """
    never = LatencyDistribution.unbounded()
    return QueueLatency(
        stable=False,
        ttft=never,
        tpot=never,
        e2e=never,
        itl=never,
        mean_running=limit.running,
        mean_step_s=limit.step_s,
        utilisation=utilisation,
        limit=limit.limit,
    )
