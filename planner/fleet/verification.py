"""Verification of a fleet against its targets: each deployment evaluated and simulated at the rates routed to it.

A `ScopedSlo` is a set of targets with the slices it applies to. A deployment may serve slices under several of them:
they are request classes of its workload then, and each `ScopedSlo` is verified on the latencies of its own classes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from planner.core import BoolArray, FloatArray, Metric
from planner.fleet.packing import PackedPool, server_count
from planner.fleet.pairing import UsedPool
from planner.fleet.simulation import MAX_SIMULATED_REQUESTS, busiest_part, evaluated, run_of, simulated
from planner.fleet.types import (
    Agreement,
    PlannedDeployment,
    Progress,
    ReplayedTarget,
    SimulatedRun,
    TargetCheck,
    latency_over,
)
from planner.search import DeploymentOption
from planner.traffic import DemandSlice
from planner.workload import (
    STUDENT_95,
    ArrivalProcess,
    LatencyDistribution,
    LatencyTarget,
    RecordedArrivals,
    RequestClass,
    Slo,
    Workload,
)

BATCHES = 20
"""Batches of consecutive requests that the error of a simulated share is read from (Law, Simulation Modeling and
Analysis, ch. 9)."""
FEWEST_CYCLES = 4
"""Cycles of a drift from which on the error of a share is read off them. A choice: Student's t of three is a third
larger."""
FEW_BUNCHES = (3.0, 4.74)
"""Upper 95 % limit of the mean number of events where none and where one was seen (Poisson, exact: -ln 0.05 = 3.0, the
"rule of three"; Garwood 1936)."""
Z_95 = 1.96
"""Two-sided 95 % quantile of the normal distribution."""
SMALLEST_ERROR = 0.2
"""Sampling error of a share over the misses allowed from which on a longer run would say no more of use. A choice."""
SMALLEST_SHARE = 0.005
"""The same at most, of all requests: half a point. A choice."""
LONGER = 4
"""How much longer it is made. A choice."""
ROUNDING = 1e-9
"""Of a share that adds weights up."""
MINUTE_S = 60.0
"""Windows of a replay [s]."""


@dataclass(frozen=True)
class ScopedSlo:
    """Targets and the slices of the traffic they apply to.

    Attributes:
        name: of the service, or of the slices where a service has several.
        slo: the targets.
        slices: names.
    """

    name: str
    slo: Slo
    slices: frozenset[str]

    def applies_to(self, planned: PlannedDeployment) -> bool:
        """True if any request of a deployment is under these targets."""
        return bool(self.slices & planned.slices.keys())

    def covers(self, planned: PlannedDeployment) -> bool:
        """True if all requests of a deployment are."""
        return self.slices >= planned.slices.keys()


def scoped_slos(slices: Sequence[DemandSlice]) -> tuple[ScopedSlo, ...]:
    """The targets of all slices, equal ones of a service once, in order; offline work has none."""
    groups: dict[tuple[str, Slo], list[str]] = {}
    for slice_ in slices:
        if slice_.slo is not None:
            groups.setdefault((slice_.service.name, slice_.slo), []).append(slice_.name)
    services = [service for service, _ in groups]
    return tuple(
        ScopedSlo(service if services.count(service) == 1 else " + ".join(names), slo, frozenset(names))
        for (service, slo), names in groups.items()
    )


# --- one deployment -------------------------------------------------------------------------------------------------


def routed_workload(slices: Mapping[str, DemandSlice], rates_per_s: Mapping[str, float]) -> Workload:
    """The requests of several slices of one service at these rates [1/s], as one stream.

    Arrivals are the share of the service's stream that these rates are of it (a random split); of a recording the
    requests that chance leaves, when they came. Several slices become one class each, with the Slo of its slice.
    """
    total_per_s = math.fsum(rates_per_s.values())
    largest = slices[max(rates_per_s, key=lambda name: rates_per_s[name])]
    if len(rates_per_s) == 1:
        whole = largest.workload
        if largest.deferrable:  # in some periods more than its mean rate
            return whole.at_rate(total_per_s)
        return Workload(arrivals=whole.arrivals.split(total_per_s / whole.rate_per_s), classes=whole.classes)
    arrivals = _together(slices, rates_per_s, largest.service.workload)
    classes = [
        (kind.model_copy(update={"name": class_name(slice_, kind), "slo": slice_.slo}), rate / total_per_s * kind.share)
        for name, rate in rates_per_s.items()
        for slice_ in (slices[name],)
        for kind in slice_.workload.classes
    ]
    shares = math.fsum(share for _, share in classes)
    return Workload(
        arrivals=arrivals, classes=tuple(kind.model_copy(update={"share": share / shares}) for kind, share in classes)
    )


def _together(
    slices: Mapping[str, DemandSlice], rates_per_s: Mapping[str, float], whole: Workload
) -> ArrivalProcess | RecordedArrivals:
    """Arrivals of several slices: their recordings on one clock, else a share of the service's process."""
    recordings = []
    for name, rate_per_s in rates_per_s.items():
        arrivals = slices[name].workload.arrivals
        if isinstance(arrivals, RecordedArrivals):
            recordings.append(arrivals.split(min(1.0, rate_per_s / arrivals.rate_per_s)))
    if len(recordings) == len(rates_per_s):
        return RecordedArrivals.merged(recordings, [len(slices[name].workload.classes) for name in rates_per_s])
    total_per_s, stream = math.fsum(rates_per_s.values()), whole.open_arrivals
    return stream.split(min(1.0, total_per_s / stream.rate_per_s)).at_rate(total_per_s)


def routed_slo(slices: Mapping[str, DemandSlice], rates_per_s: Mapping[str, float]) -> Slo:
    """The targets of the slices routed to a deployment: those of the first that has any, else its service's."""
    routed = [slices[name] for name in rates_per_s]
    return next((slice_.slo for slice_ in routed if slice_.slo is not None), routed[0].service.slo)


def class_name(slice_: DemandSlice, kind: RequestClass) -> str:
    """Name of a class of a slice among the classes of a deployment."""
    return slice_.name if len(slice_.workload.classes) == 1 else f"{slice_.name}: {kind.name}"


def verify_deployment(
    option: DeploymentOption,
    pools: Sequence[UsedPool],
    slices: Mapping[str, DemandSlice],
    seed: int,
    simulated_requests: int | None,
    progress: Progress = lambda _: None,
    slos: Sequence[ScopedSlo] = (),
) -> PlannedDeployment:
    """A deployment at the rates routed to it, evaluated and simulated. Costs are left at 0.

    Args:
        option: the configurations.
        pools: their sizes and rates; a disaggregated pair takes what is routed to its prefill pool.
        slices: by name.
        seed: of the simulation.
        simulated_requests: fewest requests to simulate; None: by theory alone.
        progress: hears of the simulation.
        slos: targets that decide how long the simulation is; none: as long as asked, recordings whole.
    """
    planned = _deployed(option, pools, slices)
    return (
        planned
        if simulated_requests is None
        else simulated_long_enough(planned, slos, seed, simulated_requests, progress)
    )


def simulated_long_enough(
    planned: PlannedDeployment, slos: Sequence[ScopedSlo], seed: int, simulated_requests: int, progress: Progress
) -> PlannedDeployment:
    """A deployment simulated until it is clear whether it meets its targets.

    A run whose sampling error leaves that open is made longer (`LONGER`), until the error is less than `SMALLEST_ERROR`
    of the misses that are allowed; so is one, once, that meets what theory misses: of several fleets tried beyond
    theory the one whose run was lucky would be taken. Of a long recording the busiest part is replayed first: where
    more requests miss a target there than may in all of it, that is all.

    Args:
        planned: evaluated.
        slos: targets that decide how long the simulation is; none: as long as asked, recordings whole.
        seed: of the simulation.
        simulated_requests: fewest requests to simulate.
        progress: hears of the simulation.
    """
    requests: int | None = simulated_requests
    while requests is not None:
        run = run_of(planned.surviving, planned.workload, requests, planned.predicted)
        part = busiest_part(run) if slos else None
        if part is not None:
            planned = with_run(planned, part, seed, progress)
            if violated_metrics(planned, slos, by_theory=False):
                return planned
        planned = with_run(planned, run, seed, progress)
        longer = LONGER * (run.requests or MAX_SIMULATED_REQUESTS)
        is_open = max(open_targets(planned, slos, within_cycle=True), default=0.0) > 1.0
        if requests == simulated_requests and run.recording is None:
            is_open |= not violated_metrics(planned, slos, by_theory=False) and bool(violated_metrics(planned, slos))
        requests = longer if longer <= MAX_SIMULATED_REQUESTS and is_open else None
    return planned


def with_run(planned: PlannedDeployment, run: SimulatedRun, seed: int, progress: Progress) -> PlannedDeployment:
    """A deployment with what a run of it finds."""
    return replace(planned, simulated=simulated(run, planned.workload, seed, progress), run=run)


def _deployed(
    option: DeploymentOption, pools: Sequence[UsedPool], slices: Mapping[str, DemandSlice]
) -> PlannedDeployment:
    """A deployment by theory."""
    rates_per_s = dict(pools[0].rates_per_s)
    workload = routed_workload(slices, rates_per_s)
    deployment = option.deployment(tuple(pool.replicas for pool in pools))
    surviving = option.deployment(tuple(pool.surviving for pool in pools))
    predicted = evaluated(surviving, workload)
    return PlannedDeployment(
        service=pools[0].service,
        option=option,
        deployment=deployment,
        surviving=surviving,
        workload=workload,
        slo=routed_slo(slices, rates_per_s),
        sustained_per_s=pools[0].rate_per_s / max(pool.capacity_share for pool in pools),
        predicted=predicted,
        simulated=predicted,
        usd_per_hour=0.0,
        pool_usd_per_hour=(0.0,) * len(pools),
        nodes=tuple(server_count(PackedPool.all_of(pool)) for pool in deployment.pools),
        slices=rates_per_s,
    )


# --- targets --------------------------------------------------------------------------------------------------------


class SimulatedShare(NamedTuple):
    """Share of the requests of a run that are within a threshold, and the half-width of its 95 % interval."""

    value: float
    error: float

    @property
    def least(self) -> float:
        """The lower end."""
        return self.value - self.error


@dataclass(frozen=True)
class _AskedShare:
    """A share of a deployment's requests that is to be within a threshold, or within all of a joint target.

    Attributes:
        planned: the deployment.
        scoped: targets of the requests.
        target: one of them; None: all at once (`Slo.attainment`), which counts as E2E.
    """

    planned: PlannedDeployment
    scoped: ScopedSlo
    target: LatencyTarget | None

    @property
    def metric(self) -> Metric:
        """That a miss is held against."""
        return Metric.E2E if self.target is None else self.target.metric

    @property
    def value(self) -> float:
        """The share."""
        return (self.scoped.slo.attainment or 1.0) if self.target is None else self.target.percentile

    @property
    def by_theory(self) -> float:
        """Share within, by theory."""
        if self.target is None:
            return self.planned.predicted.attainment(self.scoped.slo)
        return _latency(self.planned, self.scoped, self.target.metric, simulated=False).cdf(self.target.threshold_s)

    @property
    def log_excess(self) -> float:
        """Logarithm of the latency at the percentile over its threshold, by theory; of all at once of misses over those
        allowed. The target is met up to 0.
        """
        if self.target is None:
            return math.log(max(1.0 - self.by_theory, sys.float_info.min) / (1.0 - self.value))
        latency = _latency(self.planned, self.scoped, self.target.metric, simulated=False)
        return math.log(max(latency.quantile_s(self.target.percentile) / self.target.threshold_s, sys.float_info.min))

    def simulated(self, *, within_cycle: bool = False) -> SimulatedShare:
        """Share within, in the run of the deployment."""
        if self.target is None:
            return joint_share(self.planned, self.scoped, within_cycle=within_cycle)
        return simulated_share(self.planned, self.scoped, self.target, within_cycle=within_cycle)

    @property
    def is_reached(self) -> bool:
        """True if the simulated share reaches it, sampling error included, or where nothing was simulated."""
        return self.planned.run is None or _reaches(self.simulated(), self.value)


def _asked_shares(planned: PlannedDeployment, slos: Sequence[ScopedSlo]) -> Iterator[_AskedShare]:
    for scoped in (scoped for scoped in slos if scoped.applies_to(planned)):
        is_joint = scoped.slo.attainment is not None and scoped.covers(planned)
        for target in (None,) if is_joint else scoped.slo.targets:
            yield _AskedShare(planned, scoped, target)


def violated_metrics(
    planned: PlannedDeployment, slos: Sequence[ScopedSlo], *, by_theory: bool = True
) -> frozenset[Metric]:
    """Metrics whose targets are missed, by theory (if that counts) or by simulation.

    In a simulation the lower end of the 95 % interval of the share within the threshold must reach the target's own, so
    that the next run does not miss it; the share itself where its error is below `SMALLEST_ERROR`. A joint target
    (`Slo.attainment`) that is missed counts as E2E, and so does a simulation that falls behind (`Performance.stable`).
    Where nothing has a target, only theory that falls behind does: pools that work as fast as they can always queue.
    """
    asked = list(_asked_shares(planned, slos))
    missed = {one.metric for one in asked if not one.is_reached or (by_theory and one.log_excess > 0.0)}
    behind = _falls_behind(planned) if asked else by_theory and not planned.predicted.stable
    return frozenset(missed | {Metric.E2E} if behind else missed)


def _falls_behind(planned: PlannedDeployment) -> bool:
    """True if a whole run falls behind its arrivals; its busiest part may."""
    return planned.run is not None and planned.run.part_of is None and not planned.simulated.stable


def missing_over_allowed(
    planned: PlannedDeployment, slos: Sequence[ScopedSlo], *, at_most: bool = True
) -> dict[Metric, float]:
    """Share of requests that miss a target over the share that may, by metric: simulated, or by theory before that.

    Of what was simulated the upper end of its sampling error, or with `at_most` off what was seen. A joint target
    counts as E2E, as in `violated_metrics`.
    """
    worst: dict[Metric, float] = {}
    for asked in _asked_shares(planned, slos):
        if planned.run is None:
            within = asked.by_theory
        else:
            seen = asked.simulated()
            within = seen.least if at_most else seen.value
        worst[asked.metric] = max(worst.get(asked.metric, 0.0), (1.0 - within) / (1.0 - asked.value))
    return worst


def log_excesses(planned: PlannedDeployment, slos: Sequence[ScopedSlo]) -> FloatArray:
    """By how much each target is missed by theory, as a logarithm, at most 0 where it holds; shape (targets,).

    Without targets whether it falls behind, infinite either way.
    """
    found = [asked.log_excess for asked in _asked_shares(planned, slos)]
    return np.array(found or [-math.inf if planned.predicted.stable else math.inf])


def asked_metrics(planned: PlannedDeployment, slos: Sequence[ScopedSlo]) -> tuple[Metric, ...]:
    """Metric of each target of `log_excesses`."""
    return tuple(asked.metric for asked in _asked_shares(planned, slos))


def _smallest_error(asked: float) -> float:
    """Sampling error of a share from which on a run is long enough."""
    return min(SMALLEST_ERROR * (1.0 - asked), SMALLEST_SHARE)


def _reaches(share: SimulatedShare, asked: float) -> bool:
    """True if a simulated share reaches the target, sampling error included."""
    is_sharp = share.error <= _smallest_error(asked)
    return (share.value if is_sharp else share.least) >= asked - ROUNDING


def simulated_share(
    planned: PlannedDeployment, scoped: ScopedSlo, target: LatencyTarget, *, within_cycle: bool = False
) -> SimulatedShare:
    """Share of a run's requests under these targets that are within the threshold of one of them.

    In the busiest part of a run the share if all other requests were. Its error is that of `_sampling_error`.
    """
    value = _of_whole_run(planned, _latency(planned, scoped, target.metric, simulated=True).cdf(target.threshold_s))
    requests = planned.simulated.requests * _scoped_rate_per_s(planned, scoped) / math.fsum(planned.slices.values())
    samples_s = planned.simulated.samples_s.get(target.metric)
    within = np.ones(0, dtype=bool) if samples_s is None else samples_s <= target.threshold_s
    return SimulatedShare(value, _sampling_error(planned, target.percentile, requests, within, within_cycle))


def _sampling_error(
    planned: PlannedDeployment, asked: float, requests: float, within: BoolArray, within_cycle: bool
) -> float:
    """Half-width of the 95 % interval of a share that is about as large as asked.

    A replay has none: targets are to hold on that recording. Batches of requests drawn at a rate that drifts are unlike
    by the drift itself, so that they are whole cycles of it; of fewer than `FEWEST_CYCLES` requests count as
    independent, or with `within_cycle` in batches all the same: an error that is too large. Where none or one of these
    batches misses anything, how misses bunch is not seen: of such a run the error is the share of batches of which the
    next may miss all (`FEW_BUNCHES`).
    """
    if planned.run is not None and planned.run.recording is not None:
        return 0.0
    error, cycles = Z_95 * math.sqrt(asked * (1.0 - asked) / max(1.0, requests)), _cycles(planned)
    if cycles >= FEWEST_CYCLES:
        return error * _clustering(within, round(min(cycles, BATCHES)))
    if not within_cycle or within.size < BATCHES:
        return error
    bunches = sum(not batch.all() for batch in np.array_split(within, BATCHES))
    unseen = FEW_BUNCHES[bunches] / BATCHES if bunches < len(FEW_BUNCHES) else 0.0
    return max(error * _clustering(within, BATCHES), unseen)


def _of_whole_run(planned: PlannedDeployment, share: float) -> float:
    """A share within a threshold among all requests, if those that were not simulated were within it."""
    whole = planned.run.part_of if planned.run is not None else None
    return share if whole is None else 1.0 - (1.0 - share) * planned.simulated.requests / whole


def joint_share(planned: PlannedDeployment, scoped: ScopedSlo, *, within_cycle: bool = False) -> SimulatedShare:
    """Share of a run's requests that meet every threshold at once; its error as in `simulated_share`."""
    value, share = _of_whole_run(planned, planned.simulated.attainment(scoped.slo)), scoped.slo.attainment or 1.0
    samples_s = planned.simulated.samples_s
    targets = [target for target in scoped.slo.targets if target.metric in samples_s]
    met = [samples_s[target.metric] <= target.threshold_s for target in targets]
    together = np.logical_and.reduce(met) if met else np.ones(0, dtype=bool)
    error = _sampling_error(planned, share, planned.simulated.requests, together, within_cycle)
    return SimulatedShare(value, error)


def _clustering(within: BoolArray, batches: int) -> float:
    """By how much more a share varies than that of independent requests would, at least 1, from batches.

    Misses come together: what one request waits for the next waits for too. With p_i the share of batch i of b and p
    that of all the half-width is t(b - 1) sqrt(sum (p_i - p)^2 / (b (b - 1))) (batch means: Law, ch. 9).
    """
    if within.size < batches or within.all() or not within.any():
        return 1.0
    mean = float(within.mean())
    shares = np.array([batch.mean() for batch in np.array_split(within, batches)])
    batched = STUDENT_95[batches] * math.sqrt(float(np.square(shares - mean).sum()) / (batches * (batches - 1)))
    return max(1.0, batched / (Z_95 * math.sqrt(mean * (1.0 - mean) / within.size)))


def open_targets(planned: PlannedDeployment, slos: Sequence[ScopedSlo], *, within_cycle: bool = False) -> list[float]:
    """Of the targets that a run leaves open, its sampling error over that from which on it is long enough."""
    shares = [(asked.value, asked.simulated(within_cycle=within_cycle)) for asked in _asked_shares(planned, slos)]
    return [seen.error / _smallest_error(asked) for asked, seen in shares if abs(seen.value - asked) < seen.error]


def _cycles(planned: PlannedDeployment) -> float:
    """Cycles of a drift that a run sees; infinite without a drift, where any batch of requests is like any other."""
    arrivals = None if planned.run is None else planned.run.workload.arrivals
    if not isinstance(arrivals, ArrivalProcess) or arrivals.drift is None:
        return math.inf
    measured_s = planned.simulated.requests / arrivals.rate_per_s
    return measured_s / arrivals.drift.duration_s


def _scoped_rate_per_s(planned: PlannedDeployment, scoped: ScopedSlo) -> float:
    """Rate of a deployment's requests that are under these targets [1/s]."""
    return math.fsum(rate for name, rate in planned.slices.items() if name in scoped.slices)


def _latency(planned: PlannedDeployment, scoped: ScopedSlo, metric: Metric, *, simulated: bool) -> LatencyDistribution:
    """Latencies of the requests under these targets in one deployment; gaps between tokens are those of all."""
    performance = planned.simulated if simulated else planned.predicted
    if scoped.covers(planned) or metric is Metric.ITL or not performance.classes:
        return performance.distribution(metric)
    classes = [kind for kind in performance.classes if _is_of(kind.name, scoped)]
    distributions = [
        ({Metric.TTFT: kind.ttft, Metric.TPOT: kind.tpot, Metric.E2E: kind.e2e}[metric], kind.rate_per_s)
        for kind in classes
    ]
    return LatencyDistribution.mixture(distributions)


def _is_of(name: str, scoped: ScopedSlo) -> bool:
    """True if a class of a deployment (see `class_name`) belongs to one of the slices."""
    return any(name == slice_name or name.startswith(f"{slice_name}: ") for slice_name in scoped.slices)


def target_checks(planned: Sequence[PlannedDeployment], slos: Sequence[ScopedSlo]) -> tuple[TargetCheck, ...]:
    """Every target against prediction and simulation, over all deployments with requests under it."""
    checks = []
    for scoped in slos:
        serving = [deployment for deployment in planned if scoped.applies_to(deployment)]
        any_simulated = any(deployment.run is not None for deployment in serving)
        for target in scoped.slo.targets if serving else ():
            predicted, simulated = (
                LatencyDistribution.mixture(
                    [
                        (
                            _latency(deployment, scoped, target.metric, simulated=by_simulation),
                            _scoped_rate_per_s(deployment, scoped),
                        )
                        for deployment in serving
                    ]
                )
                for by_simulation in (False, True)
            )
            checks.append(
                TargetCheck(
                    target=target,
                    predicted_s=predicted.quantile_s(target.percentile),
                    simulated_s=simulated.quantile_s(target.percentile),
                    simulated_attainment=simulated.cdf(target.threshold_s),
                    met=all(
                        one.run is None or (one.simulated.stable and _AskedShare(one, scoped, target).is_reached)
                        for one in serving
                    )
                    and (any_simulated or predicted.quantile_s(target.percentile) <= target.threshold_s),
                    of=scoped.name if len(slos) > 1 else "",
                    simulated_error=_error_over(serving, scoped, target),
                )
            )
    return tuple(checks)


def _error_over(serving: Sequence[PlannedDeployment], scoped: ScopedSlo, target: LatencyTarget) -> float:
    """Half-width of the 95 % interval of a share over several deployments, which are simulated apart."""
    rates = [(_scoped_rate_per_s(planned, scoped), planned) for planned in serving if planned.run is not None]
    errors = (rate * simulated_share(planned, scoped, target).error for rate, planned in rates)
    return math.hypot(*errors) / max(math.fsum(rate for rate, _ in rates), sys.float_info.min)


def replayed_targets(planned: Sequence[PlannedDeployment], slos: Sequence[ScopedSlo]) -> tuple[ReplayedTarget, ...]:
    """Every target in every replay of a recording; targets on single gaps (ITL) have no requests to count."""
    rows = []
    for deployment in planned:
        run = deployment.run
        for scoped in slos if run is not None and run.recording is not None else ():
            mine = _requests_under(deployment, run, scoped) if run is not None else np.zeros(0, dtype=bool)
            for target in scoped.slo.targets if run is not None and mine.any() else ():
                samples_s = deployment.simulated.samples_s.get(target.metric)
                if samples_s is not None and run is not None:
                    of = scoped.name if len(slos) > 1 else ""
                    rows.append(_replayed_target(run, mine, samples_s[mine] <= target.threshold_s, target, of))
    return tuple(rows)


def _requests_under(planned: PlannedDeployment, run: SimulatedRun, scoped: ScopedSlo) -> BoolArray:
    """Which measured requests of a replay are under these targets, shape (requests,)."""
    measured = run.sent_s.size
    if not scoped.applies_to(planned) or run.recording is None:
        return np.zeros(measured, dtype=bool)
    if scoped.covers(planned) or not run.recording.class_index:
        return np.ones(measured, dtype=bool)
    wanted = [index for index, kind in enumerate(run.workload.classes) if _is_of(kind.name, scoped)]
    return np.isin(run.recording.class_index[-measured:], wanted)


def _replayed_target(
    run: SimulatedRun, mine: BoolArray, within: BoolArray, target: LatencyTarget, of: str
) -> ReplayedTarget:
    """One row: `mine` of all measured requests, of these the ones `within` the threshold."""
    sent_s = run.sent_s[mine]
    minutes = (sent_s // MINUTE_S).astype(np.int64)
    counts = np.bincount(minutes)
    shares = np.where(counts > 0, np.bincount(minutes, weights=within) / np.maximum(counts, 1), np.inf)
    worst = int(shares.argmin())
    return ReplayedTarget(
        deployment=run.deployment.summary,
        recording=run.recording.source if run.recording is not None else "",
        requests=int(within.size),
        duration_s=float(sent_s[-1] - sent_s[0]),
        fleet_share=run.fleet_share,
        left_out=run.left_out,
        target=target,
        attainment=float(within.mean()),
        worst_minute_attainment=float(shares[worst]),
        worst_minute_s=worst * MINUTE_S,
        of=of,
    )


def goodput_per_s(planned: Sequence[PlannedDeployment], slos: Sequence[ScopedSlo]) -> float:
    """Simulated requests that meet every threshold of theirs [1/s]; those without targets all count."""
    total_per_s = 0.0
    for deployment in planned:
        scopes = [scoped for scoped in slos if scoped.applies_to(deployment)]
        if len(scopes) == 1 and scopes[0].covers(deployment):
            total_per_s += deployment.simulated.goodput_per_s(scopes[0].slo)
        else:
            total_per_s += (
                math.fsum(
                    kind.rate_per_s * (1.0 if kind.attainment is None else kind.attainment)
                    for kind in deployment.simulated.classes
                )
                or deployment.simulated.rate_per_s
            )
    return total_per_s


def agreements(planned: Sequence[PlannedDeployment]) -> tuple[Agreement, ...]:
    """Theory against simulation on mean TTFT and TPOT."""
    pairs = [
        Agreement(
            metric,
            latency_over(planned, metric, simulated=False).mean_s,
            latency_over(planned, metric, simulated=True).mean_s,
        )
        for metric in (Metric.TTFT, Metric.TPOT)
    ]
    return tuple(pair for pair in pairs if pair.simulated_mean_s > 0.0)
