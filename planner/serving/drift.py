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

What requests are like may move with the rate: while most work comes their prompts may be long and their answers short.
Steady queues are those of the mix of lengths in force, of which there are a few (`planner.workload.RateDrift.mixes`);
the number in the queue is what it was when the mix changes. Rates of different mixes are compared as loads, shares of
the largest stable rate.

Steady queues are evaluated at `NODE_LOADS` of the largest stable rate, whatever the rate asked for, so that a search
for a rate evaluates few; between them slices of distributions are interpolated by a monotone cubic in sqrt(1 - load) of
the logarithm (Fritsch and Carlson, SIAM J. Numerical Analysis 17, 1980).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from planner.core import FloatArray, IntArray, compiled, interpolated_at, monotone_curve
from planner.queueing import QueueLatency, condensed_sample, sorted_slice_means
from planner.serving.types import Role
from planner.workload import (
    JointDistribution,
    LatencyDistribution,
    LengthMix,
    RateDrift,
    RequestClass,
    Workload,
    forgetting_means,
    tail_edges,
)

Array = TypeVar("Array", FloatArray, IntArray)

MOST_NODE_LOAD = 0.975
"""Largest share of the largest stable rate at which a steady queue is evaluated. A choice: nearer to the limit it takes
longer to become steady than rates stay there."""
IDLE_LOAD = 0.01
"""Load that stands for an idle pool."""
NODE_STEPS = 6
"""Steps of sqrt(1 - load) between the two. A choice: resolution against time."""
NODE_LOADS = 1.0 - np.linspace(math.sqrt(1.0 - IDLE_LOAD), math.sqrt(1.0 - MOST_NODE_LOAD), 2 * NODE_STEPS + 1) ** 2
"""Loads at which steady queues are evaluated: every other one, all where the rate varies less than `NARROW_RATIO`."""
NARROW_RATIO, FEW_STEPS = 1.8, 2
"""Ratio of the largest to the smallest rate of a path below which all nodes are evaluated, and steps below which a node
more on either side gives the curves their slopes. A choice as above."""
RARE_SHARE = 0.02
"""Share of the requests, those at the smallest rates, for which no node of their own is evaluated. A choice."""
PATH_STEPS, MOST_STEPS_A_WINDOW = 1024, 16
"""Steps of a path are made as short as this many in all, and in one window, allow. A choice of resolution."""
MINUTE_S = 60.0
"""Length of the busiest minute [s]; definition."""
LEVELS, HALVES = 16, 2
"""Bins of a path by TTFT, finer towards the longest, each in so many by TPOT. A choice of resolution."""
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
MOST_KEPT = 64
"""Curves, of a megabyte each, and scaled lengths that are kept. Affects speed and memory only."""


def busiest_minute(drift: RateDrift) -> float:
    """Mean factor on the rate over the busiest minute.

    Args:
        drift: of the rate.

    Returns:
        Factor [-]; of a drift shorter than a minute its mean, 1.
    """
    factors, step_s = _steps(drift, drift.array)
    length = min(max(round(MINUTE_S / step_s), 1), factors.size)
    sums = np.convolve(np.concatenate([factors, factors[: length - 1]]), np.ones(length), mode="valid")
    return float(sums.max()) / length


@dataclass(frozen=True, eq=False)
class SteadyQueues:
    """A pool before steady requests of one mix of lengths.

    Attributes:
        solve: its queue at a load, a share of that rate; asked for nodes that do not depend on the rate of the demand.
        limit_per_s: its largest stable rate.
    """

    solve: Callable[[float], QueueLatency]
    limit_per_s: float

    def between(self, loads: FloatArray, low: float, high: float) -> SteadyCurve | None:
        """Through the nodes of `loads` around those from `low` to `high`; None where none of them is stable."""
        return _curve(self, _around(loads, low, high))


@lru_cache(maxsize=MOST_KEPT)
def _curve(queues: SteadyQueues, nodes: tuple[float, ...]) -> SteadyCurve | None:
    return SteadyCurve.of(queues.solve, queues.limit_per_s, nodes)


@dataclass(frozen=True)
class MixedWindows:
    """Windows of a drift whose requests have one mix of lengths, and the pool before these.

    Attributes:
        queues: the pool.
        windows: their places.
        work: of a request of the mix over that of one of all.
    """

    queues: SteadyQueues
    windows: IntArray
    work: float = 1.0


def queue_between(
    queues: Sequence[QueueLatency], weights: Sequence[float], factor: float, later_s: float
) -> QueueLatency:
    """A queue between others at the same load: geometric means of times, percentile by percentile.

    Args:
        queues: all stable, or none counts as such.
        weights: of them, which sum to 1 and may be negative.
        factor: on all times of the mean.
        later_s: by which first tokens come later beside that [s].

    Returns:
        Latencies [s]; without a joint distribution where those of the queues have other groups.
    """
    nearest = queues[int(np.argmax(weights))]
    if unstable := [queue for queue in queues if not queue.stable]:
        return unstable[0]

    def mean(values: Iterable[ArrayLike]) -> FloatArray:
        logs = [weight * np.log(np.maximum(each, LEAST_S)) for weight, each in zip(weights, values, strict=True)]
        found = np.exp(np.sum(logs, axis=0))
        return np.where(found > 2.0 * LEAST_S, found, 0.0)

    def of(name: str, more_s: float) -> LatencyDistribution:
        distributions: list[LatencyDistribution] = [getattr(queue, name) for queue in queues]
        times_s = mean(sorted_slice_means(d.support_s, d.weights, SLICE_EDGES) for d in distributions)
        return LatencyDistribution(np.maximum.accumulate(times_s) * factor + more_s, SLICE_MASS)

    def together(joint: JointDistribution) -> JointDistribution:
        first_s, token_s = mean(each.first_s for each in joints), mean(each.token_s for each in joints)
        return replace(joint, first_s=first_s * factor + later_s, token_s=token_s * factor)

    joints = [queue.joint for queue in queues if queue.joint is not None]
    joint = nearest.joint if len({(each.first_s.shape, each.token_s.shape) for each in joints}) == 1 else None
    return replace(
        nearest,
        ttft=LatencyDistribution.later(partial(of, "ttft", later_s)),
        tpot=LatencyDistribution.later(partial(of, "tpot", 0.0)),
        e2e=LatencyDistribution.later(partial(of, "e2e", later_s)),
        itl=LatencyDistribution.later(partial(of, "itl", 0.0)),
        mean_running=float(mean(queue.mean_running for queue in queues)),
        mean_step_s=float(mean(queue.mean_step_s for queue in queues)) * factor,
        joint=None if joint is None else JointDistribution.made_by(partial(together, joint)),
    )


def queue_under_drift(
    queues: SteadyQueues,
    rate_per_s: float,
    drift: RateDrift,
    growth: tuple[float, float] = (0.0, 1.0),
    mixes: Sequence[MixedWindows] = (),
) -> QueueLatency | None:
    """The queue of a pool whose rate varies.

    Args:
        queues: the pool before requests of all lengths.
        rate_per_s: mean rate.
        drift: factors on it.
        growth: relative growth of the work of a request over that of its input and of its output. It matters where the
            lengths of requests drift as well: a window of twice the work counts as one of twice the rate.
        mixes: the pool before requests of the lengths of some windows, for all windows; none: one mix.

    Returns:
        Latencies [s] of all requests; None where the mean rate is more than the pool can serve.
    """
    factors, step_s = _steps(drift, drift.array)
    if rate_per_s >= queues.limit_per_s:
        return None
    mixes = mixes or (MixedWindows(queues, np.arange(drift.array.size)),)
    of_windows: IntArray = np.empty(drift.array.size, dtype=np.int64)
    for place, each in enumerate(mixes):
        of_windows[each.windows] = place
    largest_per_s = np.array([each.work * each.queues.limit_per_s for each in mixes])
    mix, work = _steps(drift, of_windows)[0], _steps(drift, drift.work(*growth))[0]
    loads = work * rate_per_s / largest_per_s[mix]
    order = np.argsort(loads)
    rare = float(loads[order][int(np.searchsorted(np.cumsum(loads[order]), RARE_SHARE * loads.sum()))])
    nodes = NODE_LOADS if loads.max() < NARROW_RATIO * rare else NODE_LOADS[::2]
    ends = [(float(own.min()), float(own.max())) for own in (loads[mix == place] for place in range(len(mixes)))]
    curves = []
    for each, (low, high) in zip(mixes, ends, strict=True):
        curve = each.queues.between(nodes, max(low, min(rare, high)), high)
        if curve is None:
            return None
        curves.append(curve)
    return _Path.of(curves, mix, factors, loads, step_s).latencies()


def _steps(drift: RateDrift, factors: Array) -> tuple[Array, float]:
    """Values of the windows over equal steps, and the length of a step [s]."""
    windows = factors.size
    each = min(max(PATH_STEPS // windows, 1), MOST_STEPS_A_WINDOW)
    return np.repeat(factors, each), drift.window_s / each


def _around(nodes: FloatArray, low: float, high: float) -> tuple[float, ...]:
    """The nodes around loads from `low` to `high`, and where these are few of their neighbours, rising."""
    last = nodes.size - 1
    below = min(max(int(np.searchsorted(nodes, low * (1.0 + 1e-9), side="right")) - 1, 0), last - 1)
    above = max(min(int(np.searchsorted(nodes, high * (1.0 - 1e-9))), last), below + 1)
    if above - below < FEW_STEPS:
        below, above = max(below - 1, 0), min(above + 1, last)
    return tuple(nodes[below : above + 1].tolist())


@dataclass(frozen=True, eq=False)
class SteadyCurve:
    """Steady queues of one pool at rising loads, shares of its largest stable rate."""

    limit_per_s: float
    loads: FloatArray
    queues: tuple[QueueLatency, ...]
    _slices: dict[str, Callable[[FloatArray], FloatArray]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, solve: Callable[[float], QueueLatency], limit_per_s: float, loads: tuple[float, ...]
    ) -> SteadyCurve | None:
        """At some loads; None where none is stable."""
        solved = [(load, solve(load)) for load in loads]
        stable = [(load, queue) for load, queue in solved if queue.stable]
        if not stable:
            return None
        return cls(limit_per_s, np.array([load for load, _ in stable]), tuple(queue for _, queue in stable))

    @property
    def top(self) -> float:
        """Largest load evaluated."""
        return float(self.loads[-1])

    def between(self, of_nodes: Iterable[ArrayLike]) -> Callable[[FloatArray], FloatArray]:
        """Times [s] or numbers of each node, carried to loads, shape (loads, ...)."""
        values = np.array(list(of_nodes))
        if self.loads.size == 1:
            return lambda loads: np.repeat(values, loads.size, axis=0)
        curve = monotone_curve(_places(self.loads), np.log(np.maximum(values, LEAST_S)))

        def at(loads: FloatArray) -> FloatArray:
            found = np.exp(curve(_places(np.clip(loads, self.loads[0], self.top))))
            return np.where(found > 2.0 * LEAST_S, found, 0.0)

        return at

    def slices(self, name: str) -> Callable[[FloatArray], FloatArray]:
        """The distribution of that name at `SLICE_EDGES` [s] by load, shape (loads, slices)."""
        if name not in self._slices:
            distributions: list[LatencyDistribution] = [getattr(queue, name) for queue in self.queues]
            sliced = (sorted_slice_means(d.support_s, d.weights, SLICE_EDGES) for d in distributions)
            self._slices[name] = self.between(sliced)
        return self._slices[name]

    @cached_property
    def joints(
        self,
    ) -> tuple[JointDistribution, Callable[[FloatArray], FloatArray], Callable[[FloatArray], FloatArray]]:
        """A joint distribution for its shape, and TTFT and TPOT [s] of its groups by load, shape (loads, ...)."""
        joints = [queue.joint for queue in self.queues if queue.joint is not None]
        if len(joints) < len(self.queues) or len({(joint.first_s.shape, joint.token_s.shape) for joint in joints}) > 1:
            joints = [
                JointDistribution.independent(
                    *(
                        LatencyDistribution(sorted_slice_means(d.support_s, d.weights, SLICE_EDGES), SLICE_MASS)
                        for d in (queue.ttft, queue.tpot)
                    )
                )
                for queue in self.queues
            ]
        first, token = self.between(j.first_s for j in joints), self.between(j.token_s for j in joints)
        return joints[-1], first, token

    @cached_property
    def running_and_step_s(self) -> Callable[[FloatArray], FloatArray]:
        """Mean number running and mean step [s] by load, shape (loads, 2)."""
        return self.between([queue.mean_running, queue.mean_step_s] for queue in self.queues)

    @cached_property
    def first_s(self) -> FloatArray:
        """Mean TTFT at `TABLE_LOADS` [s]; beyond the last node as 1 / (1 - load)."""
        means = self.between(queue.ttft.mean_s for queue in self.queues)(TABLE_LOADS)
        return np.asarray(means * (1.0 - np.minimum(self.top, TABLE_LOADS)) / (1.0 - TABLE_LOADS))

    @cached_property
    def decode_s(self) -> FloatArray:
        """Mean time from first to last token at `TABLE_LOADS` [s]."""
        return self.between(max(queue.e2e.mean_s - queue.ttft.mean_s, 0.0) for queue in self.queues)(TABLE_LOADS)


def _places(loads: FloatArray) -> FloatArray:
    """Where loads lie on the scale on which latencies are nearly straight."""
    return -np.sqrt(np.maximum(1.0 - loads, 0.0))


@dataclass(frozen=True, eq=False)
class _Followed:
    """A queue along a path: the load at which it would steadily hold as many, the wait beyond [s], what it serves."""

    loads: FloatArray
    late_s: FloatArray
    outflow_per_s: FloatArray


def _follow(
    curves: Sequence[SteadyCurve], mix: IntArray, inflow_per_s: FloatArray, step_s: float, numbers: Sequence[FloatArray]
) -> _Followed:
    """Solve dN/dt = lambda - mu(N) along a path that repeats, by implicit Euler steps.

    An implicit step is N + h mu(N) = N0 + h lambda, whose left side is tabulated for each mix. The path is followed
    again from where it ended until it ends there.

    Args:
        curves: of the pool, by mix.
        mix: in force at each step, shape (steps,).
        inflow_per_s: lambda of each step, likewise.
        step_s: h.
        numbers: N of each mix at `TABLE_LOADS`.
    """
    number = np.maximum.accumulate(np.array(numbers), axis=1)
    limit_per_s = np.array([curve.limit_per_s for curve in curves])
    loads = inflow_per_s / limit_per_s[mix]
    start = float(np.mean([interpolated_at(TABLE_LOADS, number[m], float(loads.mean())) for m in range(len(curves))]))
    left = number + step_s * limit_per_s[:, None] * TABLE_LOADS
    served, after = _followed(inflow_per_s, mix, step_s, TABLE_LOADS, limit_per_s, left, start)
    before = np.append(after[-1], after[:-1])
    tops = np.array([curve.top for curve in curves])
    top = np.array([interpolated_at(TABLE_LOADS, number[m], tops[m]) for m in range(len(curves))])[mix]
    late_s = (np.maximum(before - top, 0.0) + np.maximum(after - top, 0.0)) / (2.0 * limit_per_s[mix])
    return _Followed(np.minimum(served, tops[mix]), late_s, served * limit_per_s[mix])


@compiled(makes_arrays=True)
def _followed(
    inflow_per_s: FloatArray,
    mix: IntArray,
    step_s: float,
    loads: FloatArray,
    limit_per_s: FloatArray,
    left: FloatArray,
    number: float,
) -> tuple[FloatArray, FloatArray]:
    """The load of what flows out in each step, and the number in the queue after it, from one to begin with."""
    served, after = np.empty(inflow_per_s.size), np.empty(inflow_per_s.size)
    for _ in range(MOST_CYCLES):
        before = number
        for step in range(inflow_per_s.size):
            total = number + step_s * inflow_per_s[step]
            served[step] = interpolated_at(left[mix[step]], loads, total)
            number = total - step_s * limit_per_s[mix[step]] * served[step]
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
    """Conditions that requests meet at each step of a path, each array of shape (steps,).

    Attributes:
        curves: of the pool, by mix.
        mix: in force.
        requests: that arrive, in any unit.
        loads: that they bring, shares of the largest stable rate.
        first: the queue that TTFT goes by.
        decode_loads: steady load that TPOT goes by.
    """

    curves: Sequence[SteadyCurve]
    mix: IntArray
    requests: FloatArray
    loads: FloatArray
    first: _Followed
    decode_loads: FloatArray

    @classmethod
    def of(
        cls, curves: Sequence[SteadyCurve], mix: IntArray, requests: FloatArray, loads: FloatArray, step_s: float
    ) -> _Path:
        limit_per_s = np.array([curve.limit_per_s for curve in curves])
        arriving_per_s = loads * limit_per_s[mix]
        prompts, answers = (
            [TABLE_LOADS * curve.limit_per_s * (curve.decode_s if decode else curve.first_s) for curve in curves]
            for decode in (False, True)
        )
        if curves[-1].queues[-1].limit == "running":
            both = [first + decode for first, decode in zip(prompts, answers, strict=True)]
            first = decode = _follow(curves, mix, arriving_per_s, step_s, both)
        else:
            first = _follow(curves, mix, arriving_per_s, step_s, prompts)
            decode = _follow(curves, mix, first.outflow_per_s, step_s, answers)
        mean = float(loads.mean())
        each_s = np.array([np.interp(mean, TABLE_LOADS, curve.decode_s) for curve in curves])
        lasts_s = float(np.average(each_s[mix], weights=requests))
        return cls(curves, mix, requests, loads, first, _ahead(decode.loads, step_s, lasts_s / 2.0))

    def latencies(self) -> QueueLatency:
        """Of all requests."""
        steps = np.flatnonzero(self.requests > 0.0)
        of_curves = [(curve, steps[self.mix[steps] == place]) for place, curve in enumerate(self.curves)]
        parts = [self._binned(curve, own) for curve, own in of_curves if own.size]
        weights = np.concatenate([part.requests for part in parts]) / sum(part.requests.sum() for part in parts)
        mass = weights[:, None] * SLICE_MASS

        def ttft_s() -> FloatArray:
            return np.concatenate([part.ttft_s for part in parts])

        def e2e() -> LatencyDistribution:
            later_s = np.concatenate([part.slices("e2e") + part.behind_s[:, None] for part in parts])
            return condensed_sample(np.maximum(later_s, ttft_s().min()), mass)

        def of(name: str) -> LatencyDistribution:
            return condensed_sample(np.concatenate([part.slices(name) for part in parts]), mass)

        at_steps = [curve.running_and_step_s(self.decode_loads[own]) for curve, own in of_curves]
        running, step_s = np.concatenate(at_steps).mean(axis=0).tolist()
        return replace(
            parts[-1].curve.queues[-1],
            ttft=LatencyDistribution.later(lambda: condensed_sample(ttft_s(), mass)),
            tpot=LatencyDistribution.later(partial(of, "tpot")),
            e2e=LatencyDistribution.later(e2e),
            itl=LatencyDistribution.later(partial(of, "itl")),
            mean_running=running,
            mean_step_s=step_s,
            utilisation=float(self.loads[steps].mean()),
            joint=JointDistribution.made_by(lambda: _joint(parts, weights)),
        )

    def _binned(self, curve: SteadyCurve, steps: IntArray) -> _Bins:
        """Steps of one mix by what requests in them meet: alike in TTFT, then in TPOT."""
        edges = tail_edges(-(-LEVELS // len(self.curves)))
        mean_first_s = np.interp(self.first.loads[steps], TABLE_LOADS, curve.first_s) + self.first.late_s[steps]
        levels = _cut(np.zeros(steps.size), mean_first_s, self.requests[steps], edges)
        bins = _cut(levels, self.decode_loads[steps], self.requests[steps], np.linspace(0.0, 1.0, HALVES + 1))
        order = np.argsort(bins, kind="stable")
        places, starts = steps[order], np.flatnonzero(np.diff(bins[order], prepend=-1))
        in_bins = np.add.reduceat(self.requests[places], starts)
        first, late_s, decode = (
            np.add.reduceat(values[places] * self.requests[places], starts) / in_bins
            for values in (self.first.loads, self.first.late_s, self.decode_loads)
        )
        return _Bins(curve, in_bins, first, late_s, decode)


@dataclass(frozen=True, eq=False)
class _Bins:
    """Steps of one mix that requests meet about the same in, each array of shape (bins,).

    Attributes:
        curve: of the mix.
        requests: that arrive, in any unit.
        first: load that TTFT goes by.
        late_s: what it is later by [s].
        decode: load that TPOT goes by.
    """

    curve: SteadyCurve
    requests: FloatArray
    first: FloatArray
    late_s: FloatArray
    decode: FloatArray

    @property
    def ttft_s(self) -> FloatArray:
        """TTFT in slices [s], shape (bins, slices)."""
        return self.curve.slices("ttft")(self.first) + self.late_s[:, None]

    def slices(self, name: str) -> FloatArray:
        """A latency that goes by the load of decodes, in slices [s], likewise."""
        return self.curve.slices(name)(self.decode)

    @property
    def behind_s(self) -> FloatArray:
        """By how much TTFT is later than at the load that decodes go by [s]."""
        at_first_s, at_decode_s = np.interp(np.stack([self.first, self.decode]), TABLE_LOADS, self.curve.first_s)
        return np.asarray(self.late_s + at_first_s - at_decode_s)


def _joint(parts: Sequence[_Bins], weights: FloatArray) -> JointDistribution:
    """TTFT and TPOT together: independent of each other once prompt, output and bin are known.

    Prompts and outputs of a mix are in as many groups as those of another; where they are not, lengths are not told
    apart.
    """
    known = [part.curve.joints for part in parts]
    alike = {(steady.first_s.shape, steady.token_s.shape) for steady, _, _ in known}
    if len(alike) > 1:
        mass = np.outer(weights, SLICE_MASS).ravel()
        ttft_s = np.concatenate([part.ttft_s for part in parts]).ravel()
        tpot_s = np.concatenate([part.slices("tpot") for part in parts]).ravel()
        whole = JointDistribution.independent(LatencyDistribution(ttft_s, mass), LatencyDistribution(tpot_s, mass))
        return replace(whole, levels=weights.size)
    shares = [float(part.requests.sum()) for part in parts]
    first_s, token_s = [], []
    for part, (_, first_of, token_of) in zip(parts, known, strict=True):
        first_s += list(first_of(part.first) + part.late_s[:, None, None])
        token_s += list(token_of(part.decode))
    steady = known[-1][0]

    def mean(name: str) -> FloatArray:
        return np.asarray(np.average([getattr(each, name) for each, _, _ in known], axis=0, weights=shares))

    return replace(
        steady,
        first_s=np.concatenate(first_s, axis=1),
        first_mass=np.outer(weights, steady.first_mass).ravel(),
        token_s=np.concatenate(token_s, axis=1),
        token_mass=np.outer(weights, steady.token_mass).ravel(),
        weights=mean("weights"),
        prompts=mean("prompts"),
        gaps=mean("gaps"),
        levels=weights.size,
    )


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
    numbers = np.empty(order.size, dtype=np.int64)
    numbers[order] = _cut_in_order(groups[order].astype(np.float64), values[order], weights[order], edges)
    return numbers


@compiled(makes_arrays=True)
def _cut_in_order(groups: FloatArray, values: FloatArray, weights: FloatArray, edges: FloatArray) -> IntArray:
    """`_cut` of steps that are in this order."""
    numbers, number, first = np.empty(groups.size, dtype=np.int64), -1, 0
    while first < groups.size:
        total, kinds, beyond = 0.0, 0, first
        while beyond < groups.size and groups[beyond] == groups[first]:
            total += weights[beyond]
            kinds += 1 if beyond == first or values[beyond] > values[beyond - 1] * (1.0 + 1e-9) else 0
            beyond += 1
        passed, at = 0.0, 0
        for step in range(first, beyond):
            if step == first or values[step] > values[step - 1] * (1.0 + 1e-9):
                before, below = at, (passed + weights[step] / 2.0) / total
                while at < edges.size - 2 and edges[at + 1] <= below + 5e-13:
                    at += 1
                number += 1 if step == first or kinds < edges.size or at > before else 0
            passed += weights[step]
            numbers[step] = number
        first = beyond
    return numbers


@lru_cache(maxsize=MOST_KEPT)
def _scaled_classes(
    kinds: tuple[RequestClass, ...], inputs: float, outputs: float, *, tilted: bool
) -> tuple[RequestClass, ...]:
    """The same requests with mean inputs and outputs times factors; of sessions what is new in each turn.

    Tilted: long or short ones of them come more often, where that can be; else each is longer or shorter.
    """
    classes = []
    for kind in kinds:
        sessions = kind.sessions and kind.sessions.scaled(inputs, outputs)
        lengths = sessions.lengths if sessions else None
        if lengths is None and tilted:
            lengths = kind.lengths.tilted(inputs, outputs)
        lengths = lengths or kind.lengths.scaled(inputs, outputs, kind.lengths.max_total)
        classes.append(kind.model_copy(update={"lengths": lengths, "sessions": sessions}))
    return tuple(classes)


def length_mixes(workload: Workload, role: Role) -> tuple[tuple[LengthMix, Workload], ...]:
    """Mixes of requests from the calmest windows to the busiest.

    Work is prompt tokens in a prefill pool, output tokens in a decode pool, and both in a mixed one.

    Args:
        workload: whose rate varies.
        role: of the pool that serves it.

    Returns:
        Mixes of lengths, each with steady requests like that; none where lengths do not drift.

    Raises:
        Nothing.
    """
    drift = workload.open_arrivals.drift
    if drift is None or not drift.input_factors:
        return ()
    lengths = workload.lengths
    inputs = lengths.mean_input / (lengths.mean_input + lengths.mean_output)
    by_inputs = {Role.MIXED: inputs, Role.PREFILL: 1.0, Role.DECODE: 0.0}[role]
    mixes = drift.mixes(by_inputs, 1.0 - by_inputs)
    if len(mixes) < 2:
        return ()
    return tuple((mix, scaled_workload(workload, mix.inputs, mix.outputs, tilted=True)) for mix in mixes)


def scaled_workload(workload: Workload, inputs: float, outputs: float, *, tilted: bool = False) -> Workload:
    """Steady requests as these with mean inputs and outputs times factors.

    Args:
        workload: the requests.
        inputs: factor on mean inputs.
        outputs: factor on mean outputs.
        tilted: long or short requests come more often, where that can be; else each is longer or shorter.

    Returns:
        The requests at their mean rate; no request is longer than the longest.

    Raises:
        Nothing.
    """
    classes = _scaled_classes(workload.classes, inputs, outputs, tilted=tilted)
    return Workload(arrivals=workload.open_arrivals.steady, classes=classes)
