"""A pool under a rate that varies: steady queues at a few rates, followed along the path of the rate.

How many requests N are in a queue does not jump with the rate; it follows

    dN/dt = lambda(t) - mu(N),    mu the inverse of N(lambda) = lambda E[T(lambda)] (Little)

T is what the steady theory says of the time there: the pointwise stationary fluid flow approximation (Wang, Tipper and
Banerjee, "A new approximation for nonstationary queues", IEEE INFOCOM 1996). It is one equation for three regimes.
Where the rate moves slowly mu = lambda, each window is steady by itself. Where it moves fast N settles at the mean
rate: near N it relaxes within dN/dlambda, for M/G/1 in heavy traffic v / (2 m^2) with the spare capacity m and the
variance v of the work, which is the mean relaxation time of reflected Brownian motion (Abate and Whitt, "Transient
behavior of regulated Brownian motion I", Advances in Applied Probability 19, 1987); with constant T it is the M_t/M/
infinity queue (Eick, Massey and Whitt, Operations Research 41(4), 1993). Above the largest stable rate mu stays there
and N grows by the difference, the fluid backlog, which later requests wait for.

There are two such queues in a pool. A first token waits for the prompts before it; where slots give out first, for the
answers before it. TPOT goes by the requests decoding, over the time that the request itself decodes. At each step of
the path TTFT is that of the steady queue at the rate at which it would hold as many requests, later by what N exceeds
the largest steady one evaluated, and TPOT the same for the second queue. Steps are binned by both, and all requests are
the mixture of the bins by the requests that come in them.

Steady queues are evaluated at `NODE_LOADS` of the largest stable rate, whatever the rate asked for, so that a search
for a rate evaluates few; between them slices of distributions are interpolated by a monotone cubic in sqrt(1 - load) of
the logarithm (Fritsch and Carlson, SIAM J. Numerical Analysis 17, 1980).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy.interpolate import PchipInterpolator

from planner.core import FloatArray, IntArray, compiled, interpolated_at
from planner.queueing import QueueLatency, condensed_sample, sorted_slice_means
from planner.workload import JointDistribution, LatencyDistribution, RateDrift, forgetting_means, tail_edges

MOST_NODE_LOAD = 0.975
"""Largest share of the largest stable rate at which a steady queue is evaluated. A choice: nearer to the limit it takes
longer to become steady than rates stay there."""
IDLE_LOAD = 0.01
"""Load that stands for an idle pool."""
NODE_STEPS = 6
"""Steps of sqrt(1 - load) between the two. A choice: resolution against time."""
NODE_LOADS = 1.0 - np.linspace(math.sqrt(1.0 - IDLE_LOAD), math.sqrt(1.0 - MOST_NODE_LOAD), 2 * NODE_STEPS + 1) ** 2
"""Loads at which steady queues are evaluated: every other one, all where the rate varies less than `NARROW_RATIO`."""
NARROW_RATIO = 1.8
"""Ratio of the largest to the smallest rate of a path below which it varies little. A choice as above."""
FEW_STEPS = 3
"""Where a path covers fewer steps, a node more on either side gives the curves their slopes. A choice as above."""
RARE_SHARE = 0.02
"""Share of the requests, those at the smallest rates, for which no node of their own is evaluated. A choice."""
PATH_STEPS = 1024
"""Steps of a path are made as short as this many in all allow. A choice of resolution."""
MOST_STEPS_A_WINDOW = 16
"""Most of them in one window. A choice."""
MINUTE_S = 60.0
"""Length of the busiest minute [s]; definition."""
LEVELS, HALVES = 16, 2
"""Bins of a path by TTFT, each in so many by TPOT. A choice of resolution."""
LEVEL_EDGES = tail_edges(LEVELS)
"""Slices of requests by TTFT, finer towards the longest. A choice."""
SLICE_EDGES = tail_edges(384)
"""Slices in which distributions of nodes are interpolated. A choice of resolution."""
SLICE_MASS = np.diff(SLICE_EDGES)
"""Their probabilities."""
TABLE_LOADS = np.concatenate([np.linspace(0.0, MOST_NODE_LOAD, 196), 1.0 - np.geomspace(0.0245, 1e-5, 60)])
"""Loads at which the number in a queue is tabulated. A choice of resolution."""
LEAST_S = 1e-12
"""A time of 0 on a logarithmic scale [s]."""
SAME_STATE = 1e-9
"""Relative change of the number in a queue from which on a path repeats."""
MOST_CYCLES = 8
"""Most times that a path is followed until it repeats. A choice: queues that forget nothing in so long hardly exist."""


def busiest_minute(drift: RateDrift) -> float:
    """Mean factor on the rate over the busiest minute.

    Args:
        drift: of the rate.

    Returns:
        Factor [-]; of a drift shorter than a minute its mean, 1.
    """
    factors, step_s = _steps(drift, drift.array)
    return float(factors[_minute(factors, step_s)].mean())


@dataclass(frozen=True, eq=False)
class QueueUnderDrift:
    """The queue of a pool whose rate varies.

    Attributes:
        everything: latencies [s] of all requests.
        path: what they meet; None where the mean rate is more than the pool can serve.
        minute: steps of the busiest minute.
    """

    everything: QueueLatency
    path: _Path | None
    minute: IntArray

    @cached_property
    def busiest(self) -> QueueLatency:
        """Latencies [s] of the requests that come in the busiest minute."""
        return self.everything if self.path is None else self.path.latencies(self.minute)


def queue_under_drift(
    solve: Callable[[float], QueueLatency],
    limit_per_s: float,
    rate_per_s: float,
    drift: RateDrift,
    growth: tuple[float, float] = (0.0, 1.0),
    curves: dict[tuple[float, ...], SteadyCurve | None] | None = None,
) -> QueueUnderDrift:
    """The queue of a pool whose rate varies.

    Args:
        solve: its steady queue at a rate [1/s]; asked for nodes that do not depend on `rate_per_s`.
        limit_per_s: largest stable rate of the pool.
        rate_per_s: mean rate.
        drift: factors on it.
        growth: relative growth of the work of a request over that of its input and of its output. It matters where the
            lengths of requests drift as well: a window of twice the work counts as one of twice the rate.
        curves: through the nodes evaluated so far, by their rates, to which new ones are added; of the same `solve`.

    Returns:
        Latencies [s] of all requests, and of those of the busiest minute; that of `solve`, unstable, where the mean
        rate is more than the pool can serve.
    """
    factors, step_s = _steps(drift, drift.array)
    minute = _minute(factors, step_s)
    if rate_per_s >= limit_per_s:
        return QueueUnderDrift(solve(rate_per_s), None, minute)
    loads = _steps(drift, drift.work(*growth))[0] * (rate_per_s / limit_per_s)
    order = np.argsort(loads)
    rare = int(np.searchsorted(np.cumsum(loads[order]), RARE_SHARE * loads.sum()))
    rates = _node_loads(float(loads[order][rare]), float(loads.max())) * limit_per_s
    curves, nodes = {} if curves is None else curves, tuple(rates.tolist())
    if nodes not in curves:
        curves[nodes] = SteadyCurve.of(solve, limit_per_s, nodes)
    curve = curves[nodes]
    if curve is None:
        return QueueUnderDrift(solve(rate_per_s), None, minute)
    path = _Path.of(curve, factors, loads * limit_per_s, step_s)
    return QueueUnderDrift(path.latencies(np.arange(factors.size)), path, minute)


def _steps(drift: RateDrift, factors: FloatArray) -> tuple[FloatArray, float]:
    """Factors of the windows over equal steps, and the length of a step [s]."""
    windows = factors.size
    each = min(max(PATH_STEPS // windows, 1), MOST_STEPS_A_WINDOW)
    return np.repeat(factors, each), drift.window_s / each


def _minute(factors: FloatArray, step_s: float) -> IntArray:
    """Steps of the busiest minute; of several alike the last, when queues have followed."""
    size = factors.size
    length = min(max(round(MINUTE_S / step_s), 1), size)
    sums = np.convolve(np.concatenate([factors, factors[: length - 1]]), np.ones(length), mode="valid")
    first = size - 1 - int(np.argmax(np.round(sums[::-1], 9)))
    return (first + np.arange(length)) % size


def _node_loads(low: float, high: float) -> FloatArray:
    """Loads of the nodes around those from `low` to `high`, and where these are few of their neighbours, rising."""
    loads = NODE_LOADS if high < NARROW_RATIO * low else NODE_LOADS[::2]
    last = loads.size - 1
    below = min(max(int(np.searchsorted(loads, low * (1.0 + 1e-9), side="right")) - 1, 0), last - 1)
    above = max(min(int(np.searchsorted(loads, high * (1.0 - 1e-9))), last), below + 1)
    if above - below < FEW_STEPS:
        below, above = max(below - 1, 0), min(above + 1, last)
    return np.asarray(loads[below : above + 1])


@dataclass(frozen=True, eq=False)
class SteadyCurve:
    """Steady queues of one pool at rising rates."""

    limit_per_s: float
    rates_per_s: FloatArray
    queues: tuple[QueueLatency, ...]
    _slices: dict[str, Callable[[FloatArray], FloatArray]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, solve: Callable[[float], QueueLatency], limit_per_s: float, rates_per_s: tuple[float, ...]
    ) -> SteadyCurve | None:
        """At some rates; None where none is stable."""
        solved = [(rate, solve(rate)) for rate in rates_per_s]
        stable = [(rate, queue) for rate, queue in solved if queue.stable]
        if not stable:
            return None
        return cls(limit_per_s, np.array([rate for rate, _ in stable]), tuple(queue for _, queue in stable))

    @property
    def top_per_s(self) -> float:
        """Largest rate evaluated."""
        return float(self.rates_per_s[-1])

    def _places(self, rates_per_s: FloatArray) -> FloatArray:
        return -np.sqrt(np.maximum(1.0 - rates_per_s / self.limit_per_s, 0.0))

    def between(self, of_nodes: Iterable[ArrayLike]) -> Callable[[FloatArray], FloatArray]:
        """Times [s] or numbers of each node, carried to rates, shape (rates, ...)."""
        values = np.array(list(of_nodes))
        if self.rates_per_s.size == 1:
            return lambda rates_per_s: np.repeat(values, rates_per_s.size, axis=0)
        curve = PchipInterpolator(self._places(self.rates_per_s), np.log(np.maximum(values, LEAST_S)))

        def at(rates_per_s: FloatArray) -> FloatArray:
            inside = np.clip(rates_per_s, self.rates_per_s[0], self.top_per_s)
            found = np.exp(curve(self._places(inside)))
            return np.where(found > 2.0 * LEAST_S, found, 0.0)

        return at

    def slices(self, name: str) -> Callable[[FloatArray], FloatArray]:
        """The distribution of that name at `SLICE_EDGES` [s] by rate, shape (rates, slices)."""
        if name not in self._slices:
            distributions: list[LatencyDistribution] = [getattr(queue, name) for queue in self.queues]
            sliced = (sorted_slice_means(d.support_s, d.weights, SLICE_EDGES) for d in distributions)
            self._slices[name] = self.between(sliced)
        return self._slices[name]

    @cached_property
    def joints(
        self,
    ) -> tuple[JointDistribution, Callable[[FloatArray], FloatArray], Callable[[FloatArray], FloatArray]]:
        """A joint distribution for its shape, and TTFT and TPOT [s] of its groups by rate, shape (rates, ...)."""
        joints = [queue.joint for queue in self.queues if queue.joint is not None]
        if len(joints) < len(self.queues) or len({(joint.first_s.shape, joint.token_s.shape) for joint in joints}) > 1:
            joints = [JointDistribution.independent(*_sliced(queue)) for queue in self.queues]
        first, token = self.between(j.first_s for j in joints), self.between(j.token_s for j in joints)
        return joints[-1], first, token

    @cached_property
    def running_and_step_s(self) -> Callable[[FloatArray], FloatArray]:
        """Mean number running and mean step [s] by rate, shape (rates, 2)."""
        return self.between([queue.mean_running, queue.mean_step_s] for queue in self.queues)

    @cached_property
    def waits_for_slots(self) -> bool:
        """Whether answers give out before prompts do."""
        return self.queues[-1].limit == "running"

    @cached_property
    def table_per_s(self) -> FloatArray:
        """Rates at which numbers in the queues are tabulated."""
        return TABLE_LOADS * self.limit_per_s

    @cached_property
    def first_s(self) -> FloatArray:
        """Mean TTFT at `table_per_s` [s]; beyond the last node as 1 / (1 - load)."""
        means = self.between(queue.ttft.mean_s for queue in self.queues)(self.table_per_s)
        spare = 1.0 - np.minimum(self.top_per_s, self.table_per_s) / self.limit_per_s
        return np.asarray(means * spare / (1.0 - TABLE_LOADS))

    @cached_property
    def decode_s(self) -> FloatArray:
        """Mean time from first to last token at `table_per_s` [s]."""
        return self.between(max(queue.e2e.mean_s - queue.ttft.mean_s, 0.0) for queue in self.queues)(self.table_per_s)


@dataclass(frozen=True, eq=False)
class _Followed:
    """A queue along a path: the rate at which it would steadily hold as many [1/s], and the wait beyond [s]."""

    rates_per_s: FloatArray
    late_s: FloatArray
    outflow_per_s: FloatArray


def _follow(curve: SteadyCurve, inflow_per_s: FloatArray, step_s: float, number: FloatArray) -> _Followed:
    """Solve dN/dt = lambda - mu(N) along a path that repeats, by implicit Euler steps.

    An implicit step is N + h mu(N) = N0 + h lambda, whose left side is tabulated. The path is followed again from where
    it ended until it ends there.

    Args:
        curve: of the pool.
        inflow_per_s: lambda of each step, shape (steps,).
        step_s: h.
        number: N at `curve.table_per_s`.
    """
    rates, limit = curve.table_per_s, curve.limit_per_s
    number = np.maximum.accumulate(number)
    start = interpolated_at(rates, number, float(inflow_per_s.mean()))
    rates_per_s, after = _followed(inflow_per_s, step_s, rates, number + step_s * rates, start)
    before = np.append(after[-1], after[:-1])
    top = interpolated_at(rates, number, curve.top_per_s)
    late_s = (np.maximum(before - top, 0.0) + np.maximum(after - top, 0.0)) / (2.0 * limit)
    return _Followed(np.minimum(rates_per_s, curve.top_per_s), late_s, rates_per_s)


@compiled(makes_arrays=True)
def _followed(
    inflow_per_s: FloatArray, step_s: float, rates_per_s: FloatArray, left: FloatArray, number: float
) -> tuple[FloatArray, FloatArray]:
    """What flows out in each step [1/s], and the number in the queue after it, from one to begin with."""
    served, after = np.empty(inflow_per_s.size), np.empty(inflow_per_s.size)
    for _ in range(MOST_CYCLES):
        before = number
        for step in range(inflow_per_s.size):
            total = number + step_s * inflow_per_s[step]
            served[step] = interpolated_at(left, rates_per_s, total)
            number = total - step_s * served[step]
            after[step] = number
        if abs(number - before) <= SAME_STATE * (1.0 + before):
            break
    return served, after


def _ahead(values: FloatArray, step_s: float, memory_s: float) -> FloatArray:
    """Mean of a path that repeats over an exponential time of mean `memory_s` [s] to come, shape of `values`."""
    kept = memory_s / (memory_s + step_s)
    means = forgetting_means(np.tile(values[::-1], 2), kept, float(values.mean()))
    return np.asarray(means[values.size :][::-1])


@dataclass(frozen=True, eq=False)
class _Path:
    """What requests meet at each step of a path, each array of shape (steps,).

    Attributes:
        curve: of the pool.
        requests: that arrive, in any unit.
        work_per_s: rate of requests of mean length that would bring as much work.
        first: the queue that TTFT goes by.
        decode_per_s: steady rate that TPOT goes by.
    """

    curve: SteadyCurve
    requests: FloatArray
    work_per_s: FloatArray
    first: _Followed
    decode_per_s: FloatArray

    @classmethod
    def of(cls, curve: SteadyCurve, requests: FloatArray, work_per_s: FloatArray, step_s: float) -> _Path:
        table = curve.table_per_s
        prompts, answers = table * curve.first_s, table * curve.decode_s
        if curve.waits_for_slots:
            first = decode = _follow(curve, work_per_s, step_s, prompts + answers)
        else:
            first = _follow(curve, work_per_s, step_s, prompts)
            decode = _follow(curve, first.outflow_per_s, step_s, answers)
        lasts_s = float(np.interp(work_per_s.mean(), table, curve.decode_s))
        return cls(curve, requests, work_per_s, first, _ahead(decode.rates_per_s, step_s, lasts_s / 2.0))

    @cached_property
    def _mean_first_s(self) -> FloatArray:
        """Mean TTFT at each step [s]."""
        return np.interp(self.first.rates_per_s, self.curve.table_per_s, self.curve.first_s) + self.first.late_s

    def _bins(self, steps: IntArray) -> tuple[IntArray, IntArray]:
        """Steps ordered by bins that requests are told apart by, alike in TTFT, then in TPOT; and where bins begin."""
        steps = steps[self.requests[steps] > 0.0]
        levels = _cut(np.zeros(steps.size), self._mean_first_s[steps], self.requests[steps], LEVEL_EDGES)
        bins = _cut(levels, self.decode_per_s[steps], self.requests[steps], np.linspace(0.0, 1.0, HALVES + 1))
        order = np.argsort(bins, kind="stable")
        return steps[order], np.flatnonzero(np.diff(bins[order], prepend=-1))

    def latencies(self, steps: IntArray) -> QueueLatency:
        """Of the requests that come in some steps."""
        curve, (places, starts) = self.curve, self._bins(steps)
        requests = self.requests[places]
        in_bins = np.add.reduceat(requests, starts)
        weights = in_bins / in_bins.sum()

        def means(values: FloatArray) -> FloatArray:
            return np.asarray(np.add.reduceat(values[places] * requests, starts) / in_bins)

        first, late_s, decode = means(self.first.rates_per_s), means(self.first.late_s), means(self.decode_per_s)
        mean_first_s = np.interp(np.stack([first, decode]), curve.table_per_s, curve.first_s)
        behind_s = late_s + mean_first_s[0] - mean_first_s[1]
        mass = weights[:, None] * SLICE_MASS
        ttft_s = curve.slices("ttft")(first) + late_s[:, None]

        def e2e() -> LatencyDistribution:
            return condensed_sample(np.maximum(curve.slices("e2e")(decode) + behind_s[:, None], ttft_s.min()), mass)

        running, step_s = curve.running_and_step_s(self.decode_per_s[steps]).mean(axis=0).tolist()
        return replace(
            curve.queues[-1],
            ttft=condensed_sample(ttft_s, mass),
            tpot=condensed_sample(curve.slices("tpot")(decode), mass),
            e2e=LatencyDistribution.later(e2e),
            itl=LatencyDistribution.later(lambda: condensed_sample(curve.slices("itl")(decode), mass)),
            mean_running=running,
            mean_step_s=step_s,
            utilisation=float(self.work_per_s[steps].mean()) / curve.limit_per_s,
            joint=JointDistribution.made_by(lambda: self._joint(weights, first, late_s, decode)),
        )

    def _joint(
        self, weights: FloatArray, first: FloatArray, late_s: FloatArray, decode: FloatArray
    ) -> JointDistribution:
        """TTFT and TPOT together: independent of each other once prompt, output and bin are known."""
        steady, first_of, token_of = self.curve.joints
        return replace(
            steady,
            first_s=np.concatenate(list(first_of(first) + late_s[:, None, None]), axis=1),
            first_mass=np.outer(weights, steady.first_mass).ravel(),
            token_s=np.concatenate(list(token_of(decode)), axis=1),
            token_mass=np.outer(weights, steady.token_mass).ravel(),
            levels=weights.size,
        )


def _sliced(queue: QueueLatency) -> tuple[LatencyDistribution, LatencyDistribution]:
    """TTFT and TPOT alone, at `SLICE_EDGES`."""
    ttft_s, tpot_s = (sorted_slice_means(d.support_s, d.weights, SLICE_EDGES) for d in (queue.ttft, queue.tpot))
    return LatencyDistribution(ttft_s, SLICE_MASS), LatencyDistribution(tpot_s, SLICE_MASS)


def _cut(groups: FloatArray | IntArray, values: FloatArray, weights: FloatArray, edges: FloatArray) -> IntArray:
    """Within each group steps in rising order of `values`, cut into slices of their weight; steps alike stay together.

    Args:
        groups: numbers of the groups, shape (steps,).
        values: of the steps, likewise.
        weights: of the steps, > 0, likewise.
        edges: of the slices, as shares of a group's weight.

    Returns:
        Numbers of the slices, rising with the group and the value, shape (steps,).
    """
    order = np.lexsort((np.round(values, 12), groups))
    ranked, of_group, weight = values[order], groups[order], weights[order]
    firsts = np.flatnonzero(np.diff(of_group, prepend=of_group[0] - 1))
    sizes = np.diff(np.append(firsts, order.size))
    through = np.cumsum(weight)
    before, total = through[firsts] - weight[firsts], np.add.reduceat(weight, firsts)
    below = (through - weight / 2.0 - np.repeat(before, sizes)) / np.repeat(total, sizes)
    new = np.append(True, (np.diff(of_group) > 0) | (ranked[1:] > ranked[:-1] * (1.0 + 1e-9)))
    run_starts = np.maximum.accumulate(np.where(new, np.arange(order.size), 0))
    slices = np.searchsorted(edges[1:-1], np.round(below, 12), side="right")[run_starts]
    is_few = np.repeat(np.add.reduceat(new, firsts, dtype=np.int64) < edges.size, sizes)
    slices = np.where(is_few, np.cumsum(new), slices)
    changes = np.append(False, (np.diff(of_group) > 0) | (np.diff(slices) != 0))
    numbers = np.empty(order.size, dtype=np.int64)
    numbers[order] = np.cumsum(changes)
    return numbers
