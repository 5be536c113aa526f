"""A running fleet beside its plan: what differs, why most likely, and what that teaches of its step times.

A plan rests on its traffic (rate, how the rate varies, lengths, prefix hits) and on step times. What the fleet measures
of itself (`planner.traffic.ServerMetrics`) is held against three predictions by theory: as planned; with one part of
the traffic at a time as it was measured; with all of them. What the last does not explain is not the traffic.

**Step times.** In standard deviations z of what steps may be off by (`planner.serving.uncertainty`), TPOT at the
measured traffic is brought to its measured mean by z' deviations. Theory's own error moves z' by e = error / (slope of
log TPOT in z): little where servers are busy, for then TPOT grows faster than the steps. Estimates are off by z ~
N(0, 1) before anything is measured, so that afterwards

    z ~ N(z' / (1 + e^2), e^2 / (1 + e^2))

(conjugate normal prior; Gelman et al., *Bayesian Data Analysis*, 3rd edition, 2013, section 2.5). TTFT then says the
same of a prompt that meets nobody. What an earlier check taught is replaced: the same fleet watched again is off from
theory by the same, so that the two do not count as independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from planner.core import InputError, Metric, rebuilt, root_between
from planner.serving import (
    NOT_MEASURED,
    TPOT_ERROR,
    TTFT_ERROR,
    Deployment,
    MeasuredSteps,
    Performance,
    Pool,
    ReplicaSpreads,
    at_slow_end,
    evaluate,
    known_steps,
    replica_spreads,
    steps_key,
)
from planner.traffic import MeasuredLatency, ServerMetrics
from planner.workload import ArrivalProcess, LatencyDistribution, LatencyTarget, RequestClass, Slo, Workload

ALIKE = 0.1
"""Relative difference up to which a quantity without an interval counts as planned. A choice."""
LEAST_REQUESTS = 1000.0
"""Requests below which step times are not inferred: means of fewer are uncertain by themselves. A choice."""
MOST_LOAD = 0.9
"""Share of the largest stable rate above which step times are not inferred: latencies are then mostly backlog, which
the smallest change of load changes several times over. A choice."""
FAR_OFF = 3.0
"""Deviations from which on a note asks for another reason than the step times. A choice: one in 370 is as far off."""
MOST_DEVIATIONS = 6.0
"""Deviations between which step times are looked for. A choice: no calibration is off by more."""
LATENCIES = (Metric.TTFT, Metric.TPOT, Metric.ITL, Metric.E2E)


class TrafficPart(StrEnum):
    """A part of the traffic that may be other than planned."""

    RATE = "rate"
    VARIATION = "variation of the rate"
    LENGTHS = "lengths"
    HITS = "prefix hits"


class Finding(StrEnum):
    """How a measured latency stands to the plan."""

    AS_PLANNED = "as planned"
    TRAFFIC = "explained by the traffic"
    STEP_TIMES = "not explained by the traffic"


@dataclass(frozen=True)
class RunningQuantity:
    """A quantity of the traffic or of the servers.

    Attributes:
        name: what it is.
        unit: of both values; empty for a share or a ratio.
        planned: as the plan has it.
        measured: by the fleet.
    """

    name: str
    unit: str
    planned: float
    measured: float

    @property
    def differs(self) -> bool:
        """True if they are more than `ALIKE` apart."""
        return abs(self.measured - self.planned) > ALIKE * max(abs(self.planned), abs(self.measured))


@dataclass(frozen=True)
class RunningLatency:
    """The mean of a latency, predicted and measured.

    Attributes:
        metric: which.
        planned_s: at the planned traffic [s].
        planned_interval_s: where it lies with 90 % probability; None where nothing is calibrated.
        expected_s, expected_interval_s: the same at the measured traffic.
        measured_s: by the servers [s].
        with_part_s: at the planned traffic with one part as measured [s].
    """

    metric: Metric
    planned_s: float
    planned_interval_s: tuple[float, float] | None
    expected_s: float
    expected_interval_s: tuple[float, float] | None
    measured_s: float
    with_part_s: Mapping[TrafficPart, float] = field(default_factory=dict)

    @property
    def finding(self) -> Finding:
        """True if the measured traffic explains it; as planned where it would have been without.

        A fleet with slow steps and little traffic may be as fast as planned: two errors that cancel are not a plan.
        """
        if not _within(self.measured_s, self.expected_s, self.expected_interval_s):
            return Finding.STEP_TIMES
        inside = _within(self.measured_s, self.planned_s, self.planned_interval_s)
        return Finding.AS_PLANNED if inside else Finding.TRAFFIC

    @property
    def reason(self) -> str:
        """The likeliest one: what alone moves the prediction furthest towards what was measured."""
        gap = math.log(self.measured_s / self.planned_s)
        parts = {part.value: _log(at_s / self.planned_s) for part, at_s in self.with_part_s.items()}
        parts["step times"] = _log(self.measured_s / self.expected_s)
        if self.finding is Finding.STEP_TIMES and _within(self.measured_s, self.planned_s, self.planned_interval_s):
            return "step times"
        return max(parts, key=lambda name: math.copysign(parts[name], gap * parts[name]))


@dataclass(frozen=True)
class RunningTarget:
    """A latency target: the latency at its percentile [s].

    Attributes:
        target: the target.
        planned_s: at the planned traffic.
        expected_s: at the measured one.
        measured_s: the ends of the servers' bucket in which it lies; None where the servers do not say.
    """

    target: LatencyTarget
    planned_s: float
    expected_s: float
    measured_s: tuple[float, float] | None

    @property
    def is_met(self) -> bool | None:
        """By the fleet as it runs; None where it does not say, or the threshold lies inside of the bucket."""
        if self.measured_s is None or self.measured_s[0] < self.target.threshold_s < self.measured_s[1]:
            return None
        return self.measured_s[1] <= self.target.threshold_s


@dataclass(frozen=True)
class SeenSteps:
    """Step times as one fleet alone shows them: standard deviations of what they may be off by.

    Attributes:
        sku, engine, llm: whose.
        steps, steps_error: of all steps, and the standard deviation of what that is off by itself.
        first_token, first_token_error: of a prompt that meets nobody; an infinite error where nothing was seen.
        steps_shared, first_token_shared: share of the variance that is the same for every model of the SKU and engine,
            their kernels.
    """

    sku: str
    engine: str
    llm: str
    steps: float
    steps_error: float
    first_token: float
    first_token_error: float
    steps_shared: float
    first_token_shared: float


@dataclass(frozen=True)
class RunningFleet:
    """A running fleet beside its plan.

    Attributes:
        quantities: traffic, requests in the system, KV memory, preemptions.
        latencies: means.
        targets: percentiles.
        sku: whose step times were inferred; empty where they cannot be.
        measured_steps: of that SKU; None where they cannot be.
        steps_factor: what steps of decodes take over what is estimated, by the measurement alone.
        seen: what `measured_steps` is made of.
        notes: what was assumed or left out.
    """

    quantities: tuple[RunningQuantity, ...]
    latencies: tuple[RunningLatency, ...]
    targets: tuple[RunningTarget, ...]
    sku: str
    measured_steps: MeasuredSteps | None
    steps_factor: float
    seen: SeenSteps | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ServedTraffic:
    """A deployment and what the plan routes to it."""

    deployment: Deployment
    workload: Workload


def compare_running_fleet(
    served: Sequence[ServedTraffic], slo: Slo, measured: ServerMetrics, known: Mapping[str, MeasuredSteps] | None = None
) -> RunningFleet:
    """Measurements of a running fleet beside the plan.

    Args:
        served: all deployments of one model.
        slo: its targets.
        measured: metrics of all their servers.
        known: by SKU or model on a SKU, what was known of step times when it was planned.

    Returns:
        Quantities, latencies [s] and targets; and the step times, where the fleet has one SKU and was watched long
        enough.

    Raises:
        InputError: no deployment, or no time over which requests were counted.
    """
    if not served:
        raise InputError("plan", "no deployment", "has nothing that could run", "give a plan that is feasible")
    fleet = _Fleet(tuple(served), measured, dict(known or {}))
    planned, expected = fleet.predicted(()), fleet.predicted(fleet.parts)
    with_part = {part: fleet.predicted((part,)) for part in fleet.parts}
    latencies = tuple(_latencies(measured.latencies, planned, expected, with_part))
    seen, factor, notes = _step_times(fleet, expected, measured)
    if seen is None and any(one.finding is Finding.STEP_TIMES for one in latencies):
        notes += ("a plan made again rests on the step times of the first, which do not explain these latencies",)
    return RunningFleet(
        quantities=tuple(_quantities(fleet, planned, measured)),
        latencies=latencies,
        targets=tuple(_target(target, planned, expected, measured) for target in slo.targets),
        sku="" if seen is None else seen.sku,
        measured_steps=None if seen is None else _posteriors([seen])[0],
        steps_factor=factor,
        seen=seen,
        notes=(*measured.notes, *notes),
    )


# --- predictions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Prediction:
    """Performances of the deployments of a fleet, and what part of the requests each serves."""

    performances: tuple[Performance, ...]
    shares: tuple[float, ...]

    @property
    def load(self) -> float:
        """The largest utilisation of a pool."""
        return max(pool.utilisation for one in self.performances for pool in one.pools)

    def distribution(self, metric: Metric) -> LatencyDistribution:
        """Of all requests [s]."""
        return LatencyDistribution.mixture(
            [(one.distribution(metric), share) for one, share in zip(self.performances, self.shares, strict=True)]
        )

    def mean_s(self, metric: Metric) -> float:
        """Of all requests [s]; unbounded where some deployment cannot keep up."""
        if not all(one.stable for one in self.performances):
            return math.inf
        return self.mean(one.distribution(metric).mean_s for one in self.performances)

    def interval_s(self, metric: Metric) -> tuple[float, float] | None:
        """Where the mean lies with 90 % probability [s], all deployments off alike; None where nothing is known."""
        ends = [one.interval.get(metric) for one in self.performances]
        known = [end for end in ends if end is not None]
        if len(known) < len(ends):
            return None
        return self.mean(low for low, _ in known), self.mean(high for _, high in known)

    def mean(self, values: Iterable[float]) -> float:
        """Mean over the requests of one value a deployment."""
        return math.fsum(share * value for share, value in zip(self.shares, values, strict=True))


@dataclass(frozen=True)
class _Fleet:
    """The deployments of a plan, and the traffic that its servers measured."""

    served: tuple[ServedTraffic, ...]
    measured: ServerMetrics
    known: dict[str, MeasuredSteps]

    @property
    def parts(self) -> tuple[TrafficPart, ...]:
        """Traffic as the metrics show it."""
        parts = [TrafficPart.RATE, TrafficPart.LENGTHS]
        if self.measured.drift is not None:
            parts.insert(1, TrafficPart.VARIATION)
        caches = all(one.deployment.pools[0].config.schedule.prefix_cache for one in self.served)
        if self.measured.prefix_share is not None and caches:
            parts.append(TrafficPart.HITS)
        return tuple(parts)

    def predicted(
        self, parts: Sequence[TrafficPart], steps: float | None = None, first_token: float | None = None
    ) -> _Prediction:
        """With some parts of the traffic as measured; with all steps, and first tokens, so many deviations slower."""
        rates = [one.workload.rate_per_s for one in self.served]
        performances = []
        for one in self.served:
            pools = tuple(self._pool(pool, one.workload, steps, first_token) for pool in one.deployment.pools)
            performances.append(evaluate(rebuilt(one.deployment, pools=pools), self._traffic(one.workload, parts)))
        return _Prediction(tuple(performances), tuple(rate / math.fsum(rates) for rate in rates))

    def _traffic(self, workload: Workload, parts: Sequence[TrafficPart]) -> Workload:
        arrivals: ArrivalProcess = workload.open_arrivals
        classes = workload.classes
        if TrafficPart.RATE in parts:
            planned_per_s = math.fsum(one.workload.rate_per_s for one in self.served)
            arrivals = arrivals.at_rate(arrivals.rate_per_s * self.measured.rate_per_s() / planned_per_s)
        if TrafficPart.VARIATION in parts:
            arrivals = ArrivalProcess(rate_per_s=arrivals.rate_per_s, drift=self.measured.drift)
        if TrafficPart.LENGTHS in parts:
            hits = classes[0].prefix_hit_rate if len(classes) == 1 else 0.0
            classes = (RequestClass(lengths=self.measured.lengths, prefix_hit_rate=hits),)
        if TrafficPart.HITS in parts and self.measured.prefix_share is not None:
            hits = min(self.measured.prefix_share, MOST_HITS)
            classes = tuple(
                RequestClass(name=kind.name, share=kind.share, lengths=kind.lengths, prefix_hit_rate=hits)
                for kind in classes
            )
        return Workload(arrivals=arrivals, classes=classes)

    def _pool(self, pool: Pool, workload: Workload, steps: float | None, first_token: float | None) -> Pool:
        config = rebuilt(pool.config, shift=None)
        spreads = self.spreads(pool, workload)
        known = known_steps(self.known, config)
        if spreads is None or (known == NOT_MEASURED and steps is None and first_token is None):
            return rebuilt(pool, config=config)
        assumed = known.model_copy(
            update={
                "steps": known.steps if steps is None else steps,
                "steps_error": known.steps_error if steps is None else 0.0,
                "first_token": known.first_token if first_token is None else first_token,
                "first_token_error": known.first_token_error if first_token is None else 0.0,
            }
        )
        return rebuilt(pool, config=rebuilt(config, shift=at_slow_end(spreads, 0.0, assumed)))

    def spreads(self, pool: Pool, workload: Workload) -> ReplicaSpreads | None:
        """Deviation that the step times of a pool may have before anything is measured."""
        lengths = workload.lengths
        return replica_spreads(rebuilt(pool.config, shift=None), pool.role, lengths.mean_input, lengths.mean_output)


MOST_HITS = 0.999
"""Largest share of a prompt that counts as found in a cache. A guard: something is always computed."""


# --- beside the plan ------------------------------------------------------------------------------------------------


def _latencies(
    found: Iterable[MeasuredLatency],
    planned: _Prediction,
    expected: _Prediction,
    with_part: Mapping[TrafficPart, _Prediction],
) -> Iterable[RunningLatency]:
    for one in found:
        yield RunningLatency(
            metric=one.metric,
            planned_s=planned.mean_s(one.metric),
            planned_interval_s=planned.interval_s(one.metric),
            expected_s=expected.mean_s(one.metric),
            expected_interval_s=expected.interval_s(one.metric),
            measured_s=one.mean_s,
            with_part_s={part: prediction.mean_s(one.metric) for part, prediction in with_part.items()},
        )


def _quantities(fleet: _Fleet, planned: _Prediction, measured: ServerMetrics) -> Iterable[RunningQuantity]:
    rates = [one.workload.rate_per_s for one in fleet.served]
    total = math.fsum(rates)

    def mean(of: Callable[[Workload], float]) -> float:
        weighted = (rate * of(one.workload) for rate, one in zip(rates, fleet.served, strict=True))
        return math.fsum(weighted) / total

    yield RunningQuantity("requests", "1/s", total, measured.rate_per_s())
    if measured.drift is not None:
        drift = fleet.served[0].workload.open_arrivals.drift
        yield RunningQuantity("variation of the rate", "", 0.0 if drift is None else drift.cv, measured.drift.cv)
    lengths = measured.lengths
    yield RunningQuantity("input tokens", "a request", mean(lambda one: one.lengths.mean_input), lengths.mean_input)
    yield RunningQuantity("output tokens", "a request", mean(lambda one: one.lengths.mean_output), lengths.mean_output)
    if measured.prefix_share is not None:
        hits = planned.mean(one.pools[0].prefix_hits for one in planned.performances)
        yield RunningQuantity("prefix hits", "of the input tokens", hits, measured.prefix_share)
    if measured.mean_running is not None:
        waiting = measured.mean_waiting or 0.0
        inside = total * planned.mean_s(Metric.E2E)
        yield RunningQuantity("requests in the system", "", inside, measured.mean_running + waiting)
    if measured.kv_usage is not None:
        used = planned.mean(one.pools[-1].kv_occupancy for one in planned.performances)
        yield RunningQuantity("KV memory in use", "of a replica's", used, measured.kv_usage)
    if measured.preempted is not None:
        preempted = planned.mean(max(pool.preempted for pool in one.pools) for one in planned.performances)
        yield RunningQuantity("preemptions", "a request", preempted, measured.preempted)


def _target(
    target: LatencyTarget, planned: _Prediction, expected: _Prediction, measured: ServerMetrics
) -> RunningTarget:
    of_metric = [one.histogram for one in measured.latencies if one.metric is target.metric]
    seen_s = of_metric[0].bounds(target.percentile) if of_metric else None
    return RunningTarget(
        target,
        planned.distribution(target.metric).quantile_s(target.percentile),
        expected.distribution(target.metric).quantile_s(target.percentile),
        seen_s,
    )


# --- step times -----------------------------------------------------------------------------------------------------


def learned_steps(fleets: Sequence[RunningFleet]) -> dict[str, MeasuredSteps]:
    """Step times learned from fleets of several models together: by model on a SKU (`planner.serving.steps_key`).

    Kernels are shared: what a model on the same SKU and engine measured moves the others by the part of the variance
    that is their kernels'. With priors of covariance R (1, and sqrt(shared_i shared_j) between two) and errors E

        z ~ N(R (R + E)^-1 z', R - R (R + E)^-1 R)

    (Gelman et al., *Bayesian Data Analysis*, 3rd edition, 2013, section 3.5); of one model it is the form above.

    Args:
        fleets: one comparison a model; those that say nothing of step times are left out.

    Returns:
        Deviations of every model that was seen.
    """
    learned: dict[str, MeasuredSteps] = {}
    seen = [fleet.seen for fleet in fleets if fleet.seen is not None]
    for place in dict.fromkeys((one.sku, one.engine) for one in seen):
        here = [one for one in seen if (one.sku, one.engine) == place]
        keys = [steps_key(one.sku, one.llm) for one in here]
        learned |= dict(zip(keys, _posteriors(here), strict=True))
    return learned


def _posteriors(seen: Sequence[SeenSteps]) -> list[MeasuredSteps]:
    """Of each model on one SKU and engine, from what all of them say."""
    steps = _posterior([(one.steps, one.steps_error, one.steps_shared) for one in seen])
    firsts = _posterior([(one.first_token, one.first_token_error, one.first_token_shared) for one in seen])
    return [
        MeasuredSteps(
            steps=_rounded(mean),
            steps_error=_rounded(error),
            first_token=_rounded(first),
            first_token_error=_rounded(first_error),
        )
        for (mean, error), (first, first_error) in zip(steps, firsts, strict=True)
    ]


def _posterior(seen: Sequence[tuple[float, float, float]]) -> list[tuple[float, float]]:
    """Mean and standard deviation of standard normals, each seen with (value, error, shared part of its variance).

    >>> _posterior([(1.0, 0.0, 0.5)]), _posterior([(2.0, 1.0, 0.5)])[0][0], _posterior([(0.0, math.inf, 0.0)])
    ([(1.0, 0.0)], 1.0, [(0.0, 1.0)])
    """
    shared = np.sqrt([share for _, _, share in seen])
    prior = np.outer(shared, shared)
    np.fill_diagonal(prior, 1.0)
    precise = np.array([math.isfinite(error) for _, error, _ in seen])
    if not precise.any():
        return [(0.0, 1.0)] * len(seen)
    errors = np.diag([error**2 for _, error, _ in seen if math.isfinite(error)])
    values = np.array([value for value, error, _ in seen if math.isfinite(error)])
    weights = np.linalg.solve(prior[np.ix_(precise, precise)] + errors, prior[precise]).T
    means = weights @ values
    left = np.clip(1.0 - np.einsum("ij,ji->i", weights, prior[precise]), 0.0, None)
    return list(zip(means.tolist(), np.sqrt(left).tolist(), strict=True))


def _step_times(
    fleet: _Fleet, expected: _Prediction, measured: ServerMetrics
) -> tuple[SeenSteps | None, float, tuple[str, ...]]:
    """Step times, the factor on steps of decodes, and why there are none."""
    means = {one.metric: one for one in measured.latencies}
    per_token = means.get(Metric.TPOT) or means.get(Metric.ITL)
    skus = {pool.config.sku.id for one in fleet.served for pool in one.deployment.pools}
    why = _why_not(fleet, skus, per_token, expected, measured)
    if why or per_token is None:
        return None, 1.0, (f"step times are not inferred: {why}",)
    seen = _seen(lambda z: fleet.predicted(fleet.parts, z).mean_s(per_token.metric), per_token.mean_s, TPOT_ERROR)
    if abs(seen.deviations) >= MOST_DEVIATIONS:
        estimates = f"{MOST_DEVIATIONS:g} standard deviations of the estimates"
        why = f"none within {estimates} explains what a token took: {_ELSEWHERE}"
        return None, 1.0, (f"step times are not inferred: {why}",)
    if fleet.predicted(fleet.parts, seen.deviations).load > MOST_LOAD:
        why = "with the steps that tokens suggest the fleet is as good as full; watch it at a quieter time"
        return None, 1.0, (f"step times are not inferred: {why}",)
    notes = seen.notes("steps")
    first_seen = _Seen(0.0, math.inf)
    if (ttft := means.get(Metric.TTFT)) is not None:

        def ttft_s(z: float) -> float:
            return fleet.predicted(fleet.parts, seen.deviations, z).mean_s(Metric.TTFT)

        first_seen = _seen(ttft_s, ttft.mean_s, TTFT_ERROR)
        notes += first_seen.notes("first tokens")
    pool = fleet.served[0].deployment.pools[-1]
    spreads = fleet.spreads(pool, fleet.served[0].workload)
    factor, shared = 1.0, (0.0, 0.0)
    if spreads is not None:
        factor, shared = at_slow_end(spreads, seen.deviations).decode, spreads.shared
    config = pool.config
    off = (seen.deviations, seen.error, first_seen.deviations, first_seen.error)
    found = SeenSteps(config.sku.id, config.engine.id, config.llm.id, *off, *shared)
    return found, factor, notes


@dataclass(frozen=True)
class _Seen:
    """Deviations by which step times are off as measured, and the standard deviation of what that is off by itself."""

    deviations: float
    error: float

    def notes(self, what: str) -> tuple[str, ...]:
        """That estimates are hardly ever off by so much."""
        if abs(self.deviations) < FAR_OFF or self.error > 1.0:
            return ()
        direction = "slower" if self.deviations > 0.0 else "faster"
        return (
            f"{what} are {abs(self.deviations):.1f} standard deviations {direction} than estimated, further than "
            f"estimates are off: {_ELSEWHERE}",
        )


_ELSEWHERE = "look first at engine flags, clocks, other work on the GPUs and what servers measure"


def _why_not(
    fleet: _Fleet, skus: set[str], per_token: MeasuredLatency | None, expected: _Prediction, measured: ServerMetrics
) -> str:
    """Why step times cannot be inferred; empty where they can."""
    if len(skus) > 1:
        return f"the metrics are of {' and '.join(sorted(skus))} together; watch one kind of replica"
    if per_token is None:
        return "the servers do not say what a token took"
    if measured.requests < LEAST_REQUESTS:
        return f"{measured.requests:,.0f} requests were watched; watch {LEAST_REQUESTS:,.0f} or more"
    if not all(one.stable for one in expected.performances):
        return "at the measured traffic the fleet cannot keep up by theory"
    if any(one.interval.get(Metric.TPOT) is None for one in expected.performances):
        return f"{next(iter(skus))} has no calibration whose spread could be narrowed"
    return ""


def _seen(mean_s: Callable[[float], float], measured_s: float, error: float) -> _Seen:
    """Where a predicted mean is the measured one, and how far theory's error moves that place.

    Args:
        mean_s: predicted at so many deviations [s].
        measured_s: the measured one.
        error: of the prediction, relative.

    Returns:
        The place, or the nearest end where there is none.
    """

    def log_ratio(deviations: float) -> float:
        value = mean_s(deviations) / measured_s
        return math.log(value) if math.isfinite(value) else LARGE

    low, high = -MOST_DEVIATIONS, MOST_DEVIATIONS
    place = low if log_ratio(low) >= 0.0 else high
    if log_ratio(low) < 0.0 < log_ratio(high):
        place = float(root_between(log_ratio, low, high, xtol=DEVIATIONS_TOLERANCE))
    slope = log_ratio(place + SLOPE_STEP) - log_ratio(place - SLOPE_STEP)
    return _Seen(place, error / max(slope / (2.0 * SLOPE_STEP), LEAST_SLOPE))


SLOPE_STEP = 0.25
"""Deviations to either side at which the slope is taken. A choice: wider than theory is uneven."""
LEAST_SLOPE = 1e-6
"""Guards a division where a latency does not depend on what is asked."""
LARGE = 1e3
"""Logarithm that stands for an unbounded latency."""
DEVIATIONS_TOLERANCE = 1e-2
"""To which deviations are found. A choice."""


def _rounded(value: float) -> float:
    return round(value, 4) + 0.0  # never -0


def _within(measured_s: float, predicted_s: float, interval_s: tuple[float, float] | None) -> bool:
    low_s, high_s = interval_s or (predicted_s * (1.0 - ALIKE), predicted_s * (1.0 + ALIKE))
    return low_s <= measured_s <= high_s


def _log(ratio: float) -> float:
    return math.log(ratio) if 0.0 < ratio < math.inf else math.copysign(LARGE, ratio - 1.0)
