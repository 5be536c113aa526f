"""Points and weights put together into the three latency distributions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.queueing.capacity import FluidLimit
from planner.queueing.lengths import LengthDistribution
from planner.queueing.quantisation import slice_means, sorted_slice_means, tail_edges
from planner.queueing.types import FloatArray, QueueLatency
from planner.workload import JointDistribution, LatencyDistribution

POINTS = 512
"""Support points of a returned distribution, finer towards the tail."""
FIRST_EDGES = tail_edges(40)
"""Slices of the TTFT of a prompt group."""
START_EDGES = tail_edges(10)
"""Slices of the same within an E2E."""
TOKEN_EDGES = tail_edges(24)
"""Slices of the TPOT of requests of one output length."""
GAP_TIME_EDGES = tail_edges(10)
"""Slices of the TPOT within an E2E."""
WAIT_EDGES = tail_edges(12)
NEGLIGIBLE = 1e-5


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
    """Distribution of a single gap between tokens from the step durations at some states [s] and the time spent there times the
    number running (shape of both (states,)): a state sees tokens at n / T(n), a gap falls there in that proportion.
    """
    weights = tokens / steps_s
    if not weights.sum() > 0.0:
        return LatencyDistribution.constant(0.0)
    return condensed(steps_s, weights)


def condensed(times: FloatArray, weights: FloatArray) -> LatencyDistribution:
    """A weighted sample as a distribution of at most POINTS points that keeps the mean; any one shape."""
    values, mass = times.ravel(), np.broadcast_to(weights, times.shape).ravel()
    if values.size <= POINTS:
        return LatencyDistribution.from_samples(values, mass)
    edges = tail_edges(POINTS)
    means = slice_means(values, mass, edges)
    return LatencyDistribution.from_samples(np.maximum.accumulate(means), np.diff(edges))


def delayed(first_s: FloatArray, blocking: Blocking) -> FloatArray:
    """Add the wait for a slot (independent) to times given by slices FIRST_EDGES; shape (groups, slices) kept."""
    waits, chance = blocking.points()
    if waits.size == 1:
        return first_s
    total = first_s[:, :, None] + waits
    share = np.broadcast_to(np.diff(FIRST_EDGES)[:, None] * chance, total.shape)
    rows = (first_s.shape[0], -1)
    return slice_means(total.reshape(rows), share.reshape(rows), FIRST_EDGES)


def decode_latencies(
    lengths: LengthDistribution, first_s: FloatArray, gap_times_s: FloatArray, mass: FloatArray
) -> tuple[LatencyDistribution, LatencyDistribution, JointDistribution]:
    """Distributions of TPOT, of E2E = TTFT + (O - 1) TPOT, and of TTFT and TPOT together.

    Args:
        lengths: of the requests.
        first_s: TTFT [s] of each prompt group in slices FIRST_EDGES, shape (groups, slices).
        gap_times_s: times per output token [s] for each entry of `lengths.gaps`, shape (gaps, points).
        mass: of these points, shape (points,) or (gaps, points).
    """
    token_s = slice_means(gap_times_s, mass, TOKEN_EDGES)
    tokens = np.append(token_s.ravel(), 0.0)
    chance = np.outer(lengths.gap_weights * lengths.decoding, np.diff(TOKEN_EDGES))
    done_at_once = max(1.0 - lengths.decoding, 0.0)
    shares = np.append(chance.ravel(), done_at_once)
    decode_s = lengths.gaps[:, None] * _coarser(token_s, TOKEN_EDGES, GAP_TIME_EDGES)
    few = _coarser(first_s, FIRST_EDGES, START_EDGES)
    among = (lengths.gap_groups[:, :, None] * np.diff(START_EDGES)).reshape(lengths.gaps.size + 1, -1)
    order = np.argsort(few, axis=None, kind="stable")
    start_s = sorted_slice_means(few.ravel()[order], among[:, order], START_EDGES)
    ends = (start_s[:-1, :, None] + decode_s[:, None, :]).reshape(lengths.gaps.size, -1)
    both = np.outer(np.diff(START_EDGES), np.diff(GAP_TIME_EDGES)).ravel()
    weights = np.outer(lengths.gap_weights * lengths.decoding, both)
    all_ends = np.append(ends, start_s[-1])
    all_weights = np.append(weights, np.diff(START_EDGES) * done_at_once)
    among_all = np.append(lengths.gap_weights * lengths.decoding, done_at_once)
    joint = JointDistribution(
        first_s=first_s,
        first_mass=np.diff(FIRST_EDGES),
        token_s=np.concatenate([token_s, np.zeros((1, token_s.shape[1]))]),
        token_mass=np.diff(TOKEN_EDGES),
        weights=lengths.gap_groups * among_all[:, None],
        prompts=lengths.groups,
        gaps=np.append(lengths.gaps, 0.0),
    )
    return condensed(tokens, shares), condensed(all_ends, all_weights), joint


def first_token_distribution(lengths: LengthDistribution, first_s: FloatArray) -> JointDistribution:
    """Requests of one output token: TTFT [s] of each prompt group in slices FIRST_EDGES, shape (groups, slices)."""
    nothing, all_of_it = np.zeros(1), np.ones(1)
    weights = lengths.group_weights[None, :]
    return JointDistribution(
        first_s, np.diff(FIRST_EDGES), nothing[None, :], all_of_it, weights, lengths.groups, nothing
    )


def _coarser(means: FloatArray, edges: FloatArray, to: FloatArray) -> FloatArray:
    """Slice means at fewer edges, row by row."""
    return sorted_slice_means(means, np.broadcast_to(np.diff(edges), means.shape), to)


def unstable(limit: FluidLimit, utilisation: float) -> QueueLatency:
    """The answer to an overload."""
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
