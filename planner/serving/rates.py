"""Latency against rate: the rate a deployment sustains under its targets, and whole curves.

Everything here asks `planner.serving.performance.evaluate` at several rates. As the rate grows from nothing to the
limit of stability every percentile grows without bound, so "how far is the worst target from its threshold" crosses
zero once; the crossing is found by a secant method on the logarithm of that ratio: steps from the workload's own rate
until the crossing lies between two, then a bracketing one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.core import FloatArray, InputError, Metric, monotone_curve
from planner.serving.performance import evaluate
from planner.serving.pool_load import largest_stable_rate_per_s
from planner.serving.types import Deployment, Performance
from planner.workload import LatencyTarget, Slo, Workload

RATE_TOLERANCE = 0.002
"""Relative tolerance of a sustainable rate."""
IDLE_SHARE, MOST_STABLE_SHARE = 1e-3, 0.995
"""Shares of the largest stable rate that are as good as idle, and the largest that is tried: no larger rate is ever
called sustainable. A choice."""
MOST_EVALUATIONS = 40
"""Evaluations after which the search for a sustainable rate ends: a guard."""
EVALUATED_RATES = 12
"""Rates a sweep evaluates unless told otherwise. A choice."""
LEAST_LATENCY_S = 1e-12
"""A latency of 0 on a logarithmic scale [s]."""
LEAST_MISSING_SHARE = 1e-9
"""A share of 0 of the requests that miss their thresholds, on a logarithmic scale."""
LEAST_SECANT_SHARE = 0.02
"""Of the bracket, how far a trial stays away from its ends. Affects speed only."""
LEAST_START = 0.05
"""Share of the largest rate below which the workload's own is no place to start from. Affects speed only."""
GUESSED_SLOPE, LEAST_SLOPE = 1.0, 0.2
"""Of the logarithm of a latency over that of the rate: before two rates are known, and at least. Affect speed only."""
SMALLEST_STEP, LARGEST_STEP = math.log(1.01), math.log(4.0)
"""By how much a step towards a crossing changes the logarithm of the rate: the first at least, each later one at least
twice as much as the one before, and any at most. Affect speed only."""


def log_excess(performance: Performance, slo: Slo) -> float:
    """How far the worst target is from holding: log(latency / threshold).

    Targets of a joint Slo count together: with attainment a the figure is log((1 - share within all thresholds) /
    (1 - a)).

    Args:
        performance: of the deployment.
        slo: the targets.

    Returns:
        The logarithm [-]: at most 0 when the Slo holds, minus infinity without targets, infinite when unstable.
    """
    if not performance.stable:
        return math.inf
    if slo.attainment is not None:
        return math.log(max(1.0 - performance.attainment(slo), LEAST_MISSING_SHARE) / (1.0 - slo.attainment))
    latencies = ((performance.latency_s(target), target.threshold_s) for target in slo.targets)
    return max((math.log(max(got, LEAST_LATENCY_S) / limit) for got, limit in latencies), default=-math.inf)


def sustainable_rate_per_s(
    deployment: Deployment,
    workload: Workload,
    slo: Slo,
    judge: Callable[[Deployment, Workload], Performance] = evaluate,
    tolerance: float = RATE_TOLERANCE,
    at_most: float = math.inf,
) -> float:
    """Largest rate [requests/s] at which the deployment meets the Slo; 0 when it misses it even nearly idle.

    Args:
        deployment: the pools.
        workload: mix and burstiness; its own rate is where the search starts and does not matter beyond the tolerance.
        slo: the targets.
        judge: what answers for a rate: `evaluate`, or a call of `simulate` with a fixed seed (the same random numbers
            at every rate keep the curve monotone).
        tolerance: relative width of the bracket at which the search ends; the lower end is returned.
        at_most: rates above it do not matter [requests/s].

    Raises:
        InputError: as `evaluate`, and for closed loops, whose rate is an outcome.
    """
    top = min(at_most, MOST_STABLE_SHARE * largest_stable_rate_per_s(deployment, workload))

    def excess(rate_per_s: float) -> float:
        return log_excess(judge(deployment, workload.at_rate(rate_per_s)), slo)

    start_per_s = workload.rate_per_s if LEAST_START < workload.rate_per_s / top < 1.0 else top / 2.0
    low, at_low, high, at_high = _bracket(excess, start_per_s, top, tolerance)
    if at_high <= 0.0:
        return high
    if at_low > 0.0:
        return 0.0
    side = 0
    for _ in range(MOST_EVALUATIONS):
        if high - low <= tolerance * high:
            break
        middle = _secant_crossing(low, high, at_low, at_high)
        at_middle = excess(middle)
        if at_middle <= 0.0:
            low, at_low = middle, at_middle
            at_high, side = (at_high / 2.0 if side == 1 else at_high), 1
        else:
            high, at_high = middle, at_middle
            at_low, side = (at_low / 2.0 if side == -1 else at_low), -1
    return low


def _bracket(
    excess: Callable[[float], float], start_per_s: float, top_per_s: float, tolerance: float
) -> tuple[float, float, float, float]:
    """Two rates about the crossing with the excess at each: from a start up or down, where its slope says.

    The last step up is to the largest rate, where the lower of the two is not known to be near; the last down to an
    idle deployment.
    """
    idle_per_s, slope, least = IDLE_SHARE * top_per_s, GUESSED_SLOPE, SMALLEST_STEP
    near, at_near = start_per_s, excess(start_per_s)
    is_below = at_near <= 0.0
    while True:
        step = min(max(abs(at_near) / slope + tolerance, least), LARGEST_STEP)
        far = min(near * math.exp(step), top_per_s) if is_below else max(near * math.exp(-step), idle_per_s)
        at_far = excess(far)
        if (at_far <= 0.0) != is_below or far in (top_per_s, idle_per_s):
            break
        if math.isfinite(at_near):
            slope = max((at_far - at_near) / math.log(far / near), LEAST_SLOPE)
        near, at_near, least = far, at_far, 2.0 * least
    return (near, at_near, far, at_far) if is_below else (far, at_far, near, at_near)


def _secant_crossing(low: float, high: float, at_low: float, at_high: float) -> float:
    """Where the secant crosses zero (Illinois variant of regula falsi), kept off the ends; else the middle.

    Dowell and Jarratt, "A modified regula falsi method for computing the root of an equation", BIT 11 (1971) 168-174.
    """
    if not math.isfinite(at_high) or at_high <= at_low:
        return (low + high) / 2.0
    share = -at_low / (at_high - at_low)
    return low + min(max(share, LEAST_SECANT_SHARE), 1.0 - LEAST_SECANT_SHARE) * (high - low)


@dataclass(frozen=True, eq=False)
class RateSweep:
    """Percentiles and goodput of a deployment at many rates.

    Attributes:
        rates_per_s: shape (n,), rising.
        nodes_per_s: rates that were evaluated, shape (m,), rising; between them figures are interpolated.
        performances: one per node.
    """

    rates_per_s: FloatArray
    nodes_per_s: FloatArray
    performances: tuple[Performance, ...]

    def latencies_s(self, metric: Metric, percentile: float) -> FloatArray:
        """A percentile [s] at each rate, shape (n,); infinite where unstable."""
        return self._at_rates([p.distribution(metric).quantile_s(percentile) for p in self.performances], _log, np.exp)

    def goodput_per_s(self, slo: Slo) -> FloatArray:
        """Requests per second that meet every threshold, at each rate, shape (n,)."""
        return self.rates_per_s * self.attainment(slo)

    def attainment(self, slo: Slo) -> FloatArray:
        """Share of requests that meet every threshold, at each rate, shape (n,); 0 where unstable."""
        return self._at_rates(
            [p.attainment(slo) if p.stable else 0.0 for p in self.performances], np.asarray, np.asarray
        )

    def binding(self, slo: Slo) -> tuple[LatencyTarget | None, ...]:
        """The target furthest beyond its threshold at each rate, None where all hold."""
        ratios = np.stack([self.latencies_s(t.metric, t.percentile) / t.threshold_s for t in slo.targets])
        worst = ratios.argmax(axis=0)
        return tuple(
            slo.targets[index] if ratios[index, place] > 1.0 else None for place, index in enumerate(worst.tolist())
        )

    def _at_rates(
        self,
        at_nodes: Sequence[float],
        scale: Callable[[FloatArray], FloatArray],
        back: Callable[[FloatArray], FloatArray],
    ) -> FloatArray:
        """Figures at the nodes carried to all rates by a monotone cubic on a scale of their own.

        From the first infinite one on they stay infinite. Fritsch and Carlson, SIAM J. Numerical Analysis 17 (1980).
        """
        values = np.asarray(at_nodes, dtype=np.float64)
        finite = int(np.argmin(np.isfinite(values))) if not np.isfinite(values).all() else values.size
        figures = np.full(self.rates_per_s.size, math.inf)
        if self.nodes_per_s.size == self.rates_per_s.size:
            return values
        inside = self.rates_per_s <= (self.nodes_per_s[finite - 1] if finite else 0.0)
        if finite == 1:
            figures[inside] = values[0]
        elif finite:
            curve = monotone_curve(self.nodes_per_s[:finite], scale(values[:finite]))
            figures[inside] = back(curve(self.rates_per_s[inside]))
        return figures


def rate_sweep(
    deployment: Deployment,
    workload: Workload,
    rates_per_s: Iterable[float] | None = None,
    points: int = 50,
    nodes: int = EVALUATED_RATES,
    judge: Callable[[Deployment, Workload], Performance] = evaluate,
) -> RateSweep:
    """Performance at many rates, by default `points` of them evenly spaced up to the limit of stability.

    Args:
        deployment: the pools.
        workload: mix and burstiness; its own rate does not matter.
        rates_per_s: other rates, in any order.
        points: how many, where none are given.
        nodes: more rates than this are interpolated between so many evaluated ones, placed more densely towards the
            largest rate; 0 evaluates every rate. With 12 nodes percentiles up to 95 % load are within 9 %.
        judge: what answers for a rate, as in `sustainable_rate_per_s`.

    Returns:
        Performances at the evaluated rates, and percentiles [s] and goodput [requests/s] at all.

    Raises:
        InputError: rates that are not positive, and as `evaluate`.
    """
    if rates_per_s is None:
        if points < 1:
            raise InputError("points", points, "must be >= 1", "50 make a smooth curve")
        top = MOST_STABLE_SHARE * largest_stable_rate_per_s(deployment, workload)
        rates = top * np.arange(1.0, points + 1.0) / points
    else:
        rates = np.sort(np.asarray(list(rates_per_s), dtype=np.float64))
        if not rates.size or not np.all(np.isfinite(rates)) or rates[0] <= 0.0:
            raise InputError("rates_per_s", rates.tolist()[:3], "needs rates > 0", "give rates in requests per second")
    evaluated = _nodes(rates, nodes) if 1 < nodes < rates.size else rates
    performances = tuple(judge(deployment, workload.at_rate(rate)) for rate in evaluated.tolist())
    return RateSweep(rates, evaluated, performances)


def _nodes(rates: FloatArray, count: int) -> FloatArray:
    """Rates to evaluate between the smallest and the largest: even in sqrt(1 - rate / (more than the largest)).

    Waits grow as 1 / (1 - load), so nodes crowd towards the limit of stability.
    """
    beyond = rates[-1] / MOST_STABLE_SHARE
    first, last = float(np.sqrt(1.0 - rates[0] / beyond)), float(np.sqrt(1.0 - rates[-1] / beyond))
    return np.asarray(beyond * (1.0 - np.linspace(first, last, count) ** 2))


def _log(latencies_s: FloatArray) -> FloatArray:
    return np.asarray(np.log(np.maximum(latencies_s, LEAST_LATENCY_S)))
