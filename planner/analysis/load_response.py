"""Behaviour of a deployment at any rate, tabulated: attainment and what its metrics show, with and without a backlog.

Up to the largest stable rate latencies are those of `planner.serving.evaluate` at that rate, as if it had held for long
(quasi-stationary). Beyond it requests wait in a backlog that is a fluid: it grows by rate - capacity and delays
every request that joins it by the time the replicas take to serve what is ahead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from planner.core import FloatArray, Metric, monotone_curve, rebuilt
from planner.fleet import PlannedDeployment
from planner.serving import Performance, largest_stable_rate_per_s, rate_sweep
from planner.workload import ClosedLoop, RecordedArrivals, Slo, Workload

EVALUATED_SHARES = (0.02, 0.2, 0.4, 0.55, 0.68, 0.78, 0.85, 0.9, 0.94, 0.97)
"""Shares of the largest stable rate that are evaluated, denser where waits grow. A choice of accuracy."""
TABLE_POINTS = 257
"""Points of the tables that are read off by straight lines: within 1e-4 of the monotone cubic. A choice."""
EVERY_SIZE_UP_TO = 8
"""Pool sizes up to here are evaluated one by one, larger ones about `SIZE_STEP` apart. A choice."""
SIZE_STEP = 1.25
OTHER_PERCENTILE = 0.95
"""Of a latency that an autoscaler watches and no target is on. A choice: the usual alert."""


class Signal(StrEnum):
    """The metric that an autoscaler watches."""

    CONCURRENCY = "concurrency"
    RATE = "rate"
    KV_CACHE = "kv-cache"
    QUEUE = "queue"
    TTFT = "ttft"
    TPOT = "tpot"

    @property
    def adds_up(self) -> bool:
        """True if the replicas' values add up to one of the fleet, of which each replica has its share."""
        return self in (Signal.CONCURRENCY, Signal.RATE, Signal.QUEUE)

    @property
    def words(self) -> str:
        """With its unit."""
        return SIGNAL_WORDS[self]


SIGNAL_WORDS = {
    Signal.CONCURRENCY: "requests in a replica",
    Signal.RATE: "requests/s of a replica",
    Signal.KV_CACHE: "share of the KV cache in use",
    Signal.QUEUE: "requests waiting at a replica",
    Signal.TTFT: "TTFT [s]",
    Signal.TPOT: "TPOT [s]",
}


@dataclass(frozen=True, eq=False)
class LoadResponse:
    """A deployment of given pool sizes at any rate.

    Attributes:
        capacity_per_s: its largest stable rate [1/s].
        rates_per_s: of the tables, shape (n,), from 0 to the last rate whose latencies are taken as stationary.
        attained: share of requests within every threshold at each rate, shape (n,).
        signals: what each signal shows at each rate, of the fleet where it adds up, shape (n,).
        delays_s: of a backlog, shape (m,), rising from 0.
        attained_delayed: share within every threshold at the last rate and so long a delay, shape (m,).
    """

    capacity_per_s: float
    rates_per_s: FloatArray
    attained: FloatArray
    signals: Mapping[Signal, FloatArray]
    delays_s: FloatArray
    attained_delayed: FloatArray

    def attainment(self, rate_per_s: float) -> float:
        """Share within every threshold without a backlog, at most that of the last rate."""
        return float(np.interp(rate_per_s, self.rates_per_s, self.attained))

    def signal(self, signal: Signal, rate_per_s: float, backlog: float) -> float:
        """Value of a signal at a rate [1/s] with so many requests in the backlog."""
        if signal is Signal.RATE:
            return rate_per_s
        busy_per_s = self.rates_per_s[-1] if backlog > 0.0 else rate_per_s
        value = float(np.interp(busy_per_s, self.rates_per_s, self.signals[signal]))
        if signal.adds_up:
            return value + backlog
        if signal is Signal.TTFT and backlog > 0.0:
            return value + backlog / self.capacity_per_s if self.capacity_per_s else math.inf
        return value


NOTHING_ON = LoadResponse(
    capacity_per_s=0.0,
    rates_per_s=np.zeros(1),
    attained=np.zeros(1),
    signals={signal: np.zeros(1) for signal in Signal},
    delays_s=np.zeros(1),
    attained_delayed=np.zeros(1),
)
"""The response of no replica at all: whatever comes waits."""


class LoadResponses:
    """Responses of a planned deployment at any pool sizes, each evaluated once, when it is first asked for."""

    def __init__(self, planned: PlannedDeployment) -> None:
        self.planned = planned
        self.workload = steady_workload(planned.workload)
        self._known: dict[tuple[int, ...], LoadResponse] = {}

    def of(self, sizes: tuple[int, ...]) -> LoadResponse:
        """The response at pool sizes; in between evaluated sizes that of the next smaller one, per replica."""
        if min(sizes) < 1:
            return NOTHING_ON
        if sizes not in self._known:
            units = math.gcd(*sizes)
            evaluated = _evaluated_size(units)
            base = tuple(size // units * evaluated for size in sizes)
            if base not in self._known:
                self._known[base] = _response(self.planned, base, self.workload)
            self._known[sizes] = _scaled(self._known[base], units / evaluated)
        return self._known[sizes]


def _evaluated_size(units: int) -> int:
    """The largest evaluated size that is not above this one.

    >>> [_evaluated_size(units) for units in (1, 8, 9, 10, 12, 13)]
    [1, 8, 8, 10, 12, 12]
    """
    size = min(units, EVERY_SIZE_UP_TO)
    while math.floor(size * SIZE_STEP) <= units and size >= EVERY_SIZE_UP_TO:
        size = math.floor(size * SIZE_STEP)
    return size


def _scaled(response: LoadResponse, factor: float) -> LoadResponse:
    """The response of more replicas that each do as these."""
    if factor == 1.0:
        return response
    return replace(
        response,
        capacity_per_s=factor * response.capacity_per_s,
        rates_per_s=factor * response.rates_per_s,
        signals={s: v * factor if s.adds_up else v for s, v in response.signals.items()},
    )


def steady_workload(workload: Workload) -> Workload:
    """The workload with its burstiness and without its drift, which the demand curve brings itself."""
    arrivals = workload.arrivals
    if isinstance(arrivals, ClosedLoop):
        return workload
    process = arrivals.process if isinstance(arrivals, RecordedArrivals) else arrivals
    return rebuilt(workload, arrivals=process.steady)


def _response(planned: PlannedDeployment, sizes: tuple[int, ...], workload: Workload) -> LoadResponse:
    deployment = planned.option.deployment(sizes)
    capacity_per_s = largest_stable_rate_per_s(deployment, workload)
    nodes = capacity_per_s * np.array(EVALUATED_SHARES)
    seen = rate_sweep(deployment, workload, nodes.tolist(), nodes=0).performances
    rates = np.linspace(0.0, nodes[-1], TABLE_POINTS)

    def tabulated(values: list[float]) -> FloatArray:
        return np.asarray(monotone_curve(nodes, values)(np.maximum(rates, nodes[0])))

    idle_ttft_s = seen[0].ttft.mean_s
    signals = {
        Signal.CONCURRENCY: rates * tabulated([one.e2e.mean_s for one in seen]),  # Little's formula
        Signal.RATE: rates,
        Signal.KV_CACHE: tabulated([max(pool.kv_occupancy for pool in one.pools) for one in seen]),
        Signal.QUEUE: rates * tabulated([max(0.0, one.ttft.mean_s - idle_ttft_s) for one in seen]),
        Signal.TTFT: tabulated([one.ttft.quantile_s(_percentile(planned.slo, Metric.TTFT)) for one in seen]),
        Signal.TPOT: tabulated([one.tpot.quantile_s(_percentile(planned.slo, Metric.TPOT)) for one in seen]),
    }
    signals[Signal.KV_CACHE] = np.where(
        rates < nodes[0], signals[Signal.KV_CACHE] * rates / nodes[0], signals[Signal.KV_CACHE]
    )
    delays_s, delayed = _delayed(seen[-1], planned.slo)
    return LoadResponse(
        capacity_per_s, rates, tabulated([one.attainment(planned.slo) for one in seen]), signals, delays_s, delayed
    )


def _percentile(slo: Slo, metric: Metric) -> float:
    return max((target.percentile for target in slo.targets if target.metric is metric), default=OTHER_PERCENTILE)


def _delayed(performance: Performance, slo: Slo) -> tuple[FloatArray, FloatArray]:
    """Attainment [-] of a performance by a delay [s] that TTFT and E2E have on top."""
    waits = [target for target in slo.targets if target.metric in (Metric.TTFT, Metric.E2E)]
    if not waits:
        return np.zeros(1), np.array([performance.attainment(slo)])
    longest_s = min(target.threshold_s for target in waits)
    delays_s = longest_s * np.linspace(0.0, 1.0, 33)
    shares = [_attained_after(performance, slo, delay_s) for delay_s in delays_s[:-1].tolist()]
    return delays_s, np.array([*shares, 0.0])


def _attained_after(performance: Performance, slo: Slo, delay_s: float) -> float:
    """Share within every threshold of requests that start so much later: thresholds on waits are that much shorter."""
    targets = tuple(
        rebuilt(target, threshold_s=target.threshold_s - delay_s)
        if target.metric in (Metric.TTFT, Metric.E2E)
        else target
        for target in slo.targets
    )
    return performance.attainment(rebuilt(slo, targets=targets))
