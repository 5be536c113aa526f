"""With which probability a fleet meets its targets, where step times are uncertain by as much as measurements say.

Step times are estimates. `planner.serving.uncertainty` says by how much they may be off, as standard deviations of
logarithms, and what is off together: the kernels of a SKU and engine by one factor, a SKU that was not measured by
one, a model on a SKU and engine by one for its steps and one for the time to a first token. A *draw* of these factors
is a world in which the fleet either meets every target or does not; the probability is the share of draws in which it
does.

Confidence is asked for as a probability. The fleet is planned with every step time so many standard deviations
slower than estimated (that quantile of the normal distribution), which is exact where one thing alone may be off, and
more where others have to hold too; `planner.fleet.planning` plans with more deviations until the draws say it is
enough. Each deployment is judged by theory. Slower steps never bring a latency down, so that most draws are known to
hold or to miss from another that is slower, or faster, in everything: two dozen evaluations stand for all. Near the
targets the logarithm of the misses may go linearly with those of the step times: where a plane through some
evaluations foretold others and leaves no open draw in doubt, the rest are read off it, which halves the evaluations.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from types import MappingProxyType

import numpy as np

from planner.core import BoolArray, FloatArray, rebuilt
from planner.engine import ReplicaConfig, StepTimeShift, memory_footprint, start_probability
from planner.fleet.simulation import evaluated
from planner.fleet.types import PlanConfidence, PlannedDeployment
from planner.fleet.verification import ScopedSlo, missing_over_allowed, violated_metrics
from planner.search import DeploymentOption, PoolOption, ShiftRule
from planner.serving import (
    NOT_MEASURED,
    Deployment,
    MeasuredSteps,
    Pool,
    Role,
    StandardNormals,
    at_slow_end,
    drawn_shifts,
    evaluate,
    known_steps,
    replica_spreads,
)
from planner.workload import Workload

DRAWS = 400
"""Draws that a probability is counted in: 1.5 points of standard error at 90 %. A choice."""
MOST_BEYOND_THEORY = 2.0
"""Factor on the rate up to which it is looked for where theory misses as much as a simulation did. A choice."""
LEAST_MISSED = 0.1
"""Simulated misses over those allowed below which nothing is concluded of theory. A choice."""
RATE_TOLERANCE = 0.01
"""To which that factor is found. A choice."""
NEAR_LOG_MISSES = 1.5
"""Logarithm of misses over those allowed up to which it may go linearly with those of step times: as seen."""
FORETOLD = 3
"""Evaluations that a plane through the ones before must have foretold before it is believed. A choice."""
IN_DOUBT = 3.0
"""Largest error of what it foretold times which a draw this near to the targets is in doubt. A choice."""
LEAST_DOUBT = 0.02
"""The same logarithm, of misses that are counted on a lattice: a choice."""


NOTHING_MEASURED: Mapping[str, MeasuredSteps] = MappingProxyType({})
"""No running fleet taught anything of any SKU."""


def deviations_of(probability: float) -> float:
    """Standard deviations above the mean that a normal distribution stays below with a probability in (0, 1).

    >>> round(deviations_of(0.9), 3), deviations_of(0.5)
    (1.282, 0.0)
    """
    return NormalDist().inv_cdf(probability)


def slow_rule(deviations: float, measured: Mapping[str, MeasuredSteps]) -> ShiftRule | None:
    """Every step time so many standard deviations slower than is to be expected; None for none.

    Args:
        deviations: of what is not known.
        measured: by SKU or model on a SKU, what is known of step times.
    """
    return _SlowSteps(deviations, tuple(measured.items())) if deviations or measured else None


@dataclass(frozen=True)
class _SlowSteps:
    """The rule of `slow_rule`; two of the same content are equal, so that what was found by one is found again."""

    deviations: float
    measured: tuple[tuple[str, MeasuredSteps], ...]

    def __call__(
        self, config: ReplicaConfig, role: Role, mean_input: float, mean_output: float
    ) -> StepTimeShift | None:
        spreads = replica_spreads(config, role, mean_input, mean_output)
        if spreads is None:
            return None
        return at_slow_end(spreads, self.deviations, known_steps(dict(self.measured), config))


# --- estimates and shifts -------------------------------------------------------------------------------------------


def as_estimated(
    planned: PlannedDeployment, measured: Mapping[str, MeasuredSteps] = NOTHING_MEASURED
) -> PlannedDeployment:
    """A deployment that was found with slower step times, with those to be expected; evaluated, not simulated again.

    Args:
        planned: as it was found.
        measured: by SKU or model on a SKU, what is known of step times.
    """
    return at_deviations(planned, 0.0, measured)


def at_deviations(
    planned: PlannedDeployment, deviations: float, measured: Mapping[str, MeasuredSteps]
) -> PlannedDeployment:
    """A deployment with step times as `slow_rule` has them; evaluated, not simulated again.

    Args:
        planned: as it was found.
        deviations: standard deviations that its step times are slower than is to be expected.
        measured: by SKU or model on a SKU, what is known of step times.
    """
    configs = _slower_configs(planned, planned.option.pools, deviations, measured)
    pools = zip(planned.option.pools, configs, strict=True)
    surviving = _reconfigured(planned.surviving, configs)
    predicted = evaluated(surviving, planned.workload)
    return replace(
        planned,
        option=DeploymentOption(planned.option.mode, tuple(replace(pool, config=own) for pool, own in pools)),
        deployment=_reconfigured(planned.deployment, configs),
        surviving=surviving,
        predicted=predicted,
        simulated=predicted,
        run=None,
    )


def slower_deployment(
    planned: PlannedDeployment, deviations: float, measured: Mapping[str, MeasuredSteps] = NOTHING_MEASURED
) -> Deployment:
    """The replicas of a deployment that survive the failures allowed for, with step times as `slow_rule` has them.

    Args:
        planned: as estimated.
        deviations: standard deviations that its step times are slower than is to be expected; negative: faster.
        measured: by SKU or model on a SKU, what is known of step times.
    """
    surviving = planned.surviving
    return _reconfigured(surviving, _slower_configs(planned, surviving.pools, deviations, measured))


def _slower_configs(
    planned: PlannedDeployment,
    pools: Sequence[Pool | PoolOption],
    deviations: float,
    measured: Mapping[str, MeasuredSteps],
) -> list[ReplicaConfig]:
    """The replicas of its pools; those that nothing is known of and nothing is to slow down have no shift."""
    rule, lengths = slow_rule(deviations, measured), planned.workload.lengths

    def slower(config: ReplicaConfig, role: Role) -> ReplicaConfig:
        own = config if config.shift is None else rebuilt(config, shift=None)
        if rule is None or (not deviations and known_steps(measured, config) == NOT_MEASURED):
            return own
        return rebuilt(own, shift=rule(own, role, lengths.mean_input, lengths.mean_output))

    return [slower(pool.config, pool.role) for pool in pools]


def _reconfigured(deployment: Deployment, configs: Sequence[ReplicaConfig]) -> Deployment:
    pools = zip(deployment.pools, configs, strict=True)
    return rebuilt(deployment, pools=tuple(rebuilt(pool, config=config) for pool, config in pools))


# --- the probability ------------------------------------------------------------------------------------------------


def confidence_of(
    deployments: Sequence[PlannedDeployment],
    slos: Sequence[ScopedSlo],
    asked: float,
    seed: int,
    measured: Mapping[str, MeasuredSteps] = NOTHING_MEASURED,
    factors: Sequence[float] | None = None,
) -> PlanConfidence:
    """The probability that every deployment starts and meets every target.

    Targets are judged over draws of what step times may be off by; whether replicas start is independent of them
    (`planner.engine.start_probability`).

    Args:
        deployments: as found: with the step times they were verified with, simulated or not.
        slos: the targets.
        asked: what the plan was made for.
        seed: of the draws; fleets of the same seed are judged by the same draws.
        measured: by SKU or model on a SKU, what is known of step times.
        factors: `rate_factors` of the deployments, where they are known.
    """
    holds: BoolArray = np.ones(DRAWS, dtype=bool)
    starts = min(  # of one kind all replicas start, or none
        (
            start_probability(pool.config, memory_footprint(pool.config), planned.workload.lengths.max_total)
            for planned in deployments
            for pool in planned.surviving.pools
        ),
        default=1.0,
    )
    unknown, sources = set[str](), set[str]()
    for planned, factor in zip(deployments, factors or rate_factors(deployments, slos), strict=True):
        judge = _Judge(planned, slos, seed, measured, factor)
        holds &= judge.holds()
        unknown |= judge.uncalibrated
        sources |= {spreads.group.source for spreads in judge.spreads if spreads is not None}
    jeffreys = (float(holds.sum()) + 0.5) / (DRAWS + 1.0)  # no number of draws makes it certain
    share = starts * jeffreys
    error = math.sqrt(max(share * (1.0 - share), 1.0 / DRAWS) / DRAWS)
    return PlanConfidence(asked, share, error, tuple(sorted(unknown)), starts, tuple(sorted(sources)))


class _Judge:
    """Judges one deployment, draw by draw."""

    def __init__(
        self,
        planned: PlannedDeployment,
        slos: Sequence[ScopedSlo],
        seed: int,
        measured: Mapping[str, MeasuredSteps],
        rate_factor: float = 1.0,
    ) -> None:
        self.planned, self.slos, self.rate_factor = planned, slos, rate_factor
        lengths = planned.workload.lengths
        self.estimate = as_estimated(planned)
        self.spreads = [
            replica_spreads(pool.config, pool.role, lengths.mean_input, lengths.mean_output)
            for pool in self.estimate.surviving.pools
        ]
        self.uncalibrated = {
            pool.config.sku.id
            for pool, spreads in zip(self.estimate.surviving.pools, self.spreads, strict=True)
            if spreads is None
        }
        self.logs = self._drawn(seed, measured)

    def _drawn(self, seed: int, measured: Mapping[str, MeasuredSteps]) -> FloatArray:
        """What step times are off by, as `ReplicaSpreads.shift` takes it: shape (draws, 3 of each pool)."""
        columns = []
        for pool, spreads in zip(self.estimate.surviving.pools, self.spreads, strict=True):
            known = known_steps(measured, pool.config)
            normals = _normals_of(pool.config, pool.role is Role.MIXED, seed)
            columns.append(np.zeros((DRAWS, 3)) if spreads is None else drawn_shifts(spreads, normals, known))
        return np.concatenate(columns, axis=1)

    def holds(self) -> BoolArray:
        """By draw. One that is faster in everything than one that holds does so too; the other way round likewise.

        Asked next is the draw whose verdict, whichever it is, says most about the others; once a plane goes through
        what was found near the targets, the one that is nearest to them.
        """
        known = np.zeros(DRAWS, dtype=bool)
        holds = np.zeros(DRAWS, dtype=bool)
        found, verdict = self._verified()
        self._note(found, verdict, known, holds)
        faster = np.all(self.logs[:, None] <= self.logs, axis=2)
        plane = _Plane()
        while not known.all():
            open_draws = np.flatnonzero(~known)
            read_off = plane.log_misses(self.logs[open_draws])
            if read_off is not None and plane.doubt < np.abs(read_off).min():
                holds[open_draws] = read_off <= 0.0
                break
            among = faster[np.ix_(open_draws, open_draws)]
            says_most = np.argmax(np.minimum(among.sum(axis=0), among.sum(axis=1)))
            logs = self.logs[open_draws[says_most if read_off is None else np.abs(read_off).argmin()]]
            verdict, log_misses = self._verified_at(logs)
            plane.add(logs, log_misses)
            self._note(logs, verdict, known, holds)
        return holds

    def _note(self, logs: FloatArray, verdict: bool, known: BoolArray, holds: BoolArray) -> None:
        """Extend a verdict to the open draws that it decides."""
        alike = (self.logs <= logs).all(axis=1) if verdict else (self.logs >= logs).all(axis=1)
        alike &= ~known
        holds[alike] = verdict
        known |= alike

    def _verified(self) -> tuple[FloatArray, bool]:
        """The step times that the deployment was verified with, and whether it held."""
        logs = []
        for pool in self.planned.surviving.pools:
            shift = pool.config.shift or StepTimeShift()
            logs += [math.log(shift.decode), math.log(shift.prompt), shift.request_s]
        return np.array(logs), not violated_metrics(self.planned, self.slos, by_theory=self.planned.run is None)

    def _verified_at(self, logs: FloatArray) -> tuple[bool, float]:
        """Verdict by theory with step times that are off by this, and the logarithm of misses over those allowed."""
        planned = self._at(logs)
        misses = max(missing_over_allowed(planned, self.slos).values(), default=0.0)
        return not violated_metrics(planned, self.slos), math.log(misses) if misses > 0.0 else -math.inf

    def _at(self, logs: FloatArray) -> PlannedDeployment:
        """The deployment by theory with step times that are off by this."""
        shifts = [
            None if spreads is None else spreads.shift(*map(float, logs[3 * place : 3 * place + 3]))
            for place, spreads in enumerate(self.spreads)
        ]
        configs = [
            rebuilt(pool.config, shift=shift) for pool, shift in zip(self.estimate.surviving.pools, shifts, strict=True)
        ]
        surviving = _reconfigured(self.estimate.surviving, configs)
        return by_theory(replace(self.estimate, surviving=surviving), self.rate_factor)


@dataclass
class _Plane:
    """Logarithms of misses by those of step times, near the targets: at those evaluated, and a plane through them."""

    logs: list[FloatArray] = field(default_factory=list)
    found: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    def add(self, logs: FloatArray, log_misses: float) -> None:
        """Add an evaluation: its error against what was foretold and, near the targets, a point of the plane."""
        foretold = self.log_misses(logs[None])
        if foretold is not None:
            self.errors.append(abs(float(foretold[0]) - log_misses))
        if abs(log_misses) <= NEAR_LOG_MISSES:
            self.logs.append(logs)
            self.found.append(log_misses)

    def log_misses(self, logs: FloatArray) -> FloatArray | None:
        """At other step times, shape (draws,); None where too few are known."""
        if len(self.found) <= logs.shape[1] + 1:
            return None
        points = np.column_stack([np.array(self.logs), np.ones(len(self.found))])
        plane = np.linalg.lstsq(points, np.array(self.found), rcond=None)[0]
        return np.asarray(np.column_stack([logs, np.ones(len(logs))]) @ plane)

    @property
    def doubt(self) -> float:
        """Largest error that a value read off may have; infinite as long as the plane foretold too little."""
        return max(IN_DOUBT * max(self.errors), LEAST_DOUBT) if len(self.errors) >= FORETOLD else math.inf


def _normals_of(config: ReplicaConfig, is_mixed: bool, seed: int) -> StandardNormals:
    """The draws that are a configuration's."""
    place = (config.sku.id, config.engine.id)
    model = (*place, config.llm.id, "mixed" if is_mixed else "disaggregated")
    return StandardNormals(
        _normals(seed, "kernels", *place),
        _normals(seed, "borrowed", config.sku.id),
        _normals(seed, "steps", *model),
        _normals(seed, "prompts", *model),
        _normals(seed, "late", *model),
        _normals(seed, "steps measured", *place),
        _normals(seed, "first token measured", *place),
    )


def _normals(seed: int, *what: str) -> FloatArray:
    """Draws of one thing that step times may be off by: the same for the same thing in every fleet."""
    return np.random.default_rng([seed, zlib.crc32(" ".join(what).encode())]).standard_normal(DRAWS)


def by_theory(planned: PlannedDeployment, rate_factor: float) -> PlannedDeployment:
    """A deployment evaluated at so many times its rate."""
    performance = evaluate(planned.surviving, at_factor(planned.workload, rate_factor), figures=False)
    return replace(planned, predicted=performance, simulated=performance, run=None)


def at_factor(workload: Workload, rate_factor: float) -> Workload:
    """A workload at so many times its rate."""
    if rate_factor == 1.0:
        return workload
    arrivals = workload.open_arrivals
    return Workload(arrivals=arrivals.at_rate(rate_factor * arrivals.rate_per_s), classes=workload.classes)


def rate_factors(deployments: Sequence[PlannedDeployment], slos: Sequence[ScopedSlo]) -> tuple[float, ...]:
    """Of each deployment the factor on its rate at which theory has as many requests miss as its simulation had."""
    return tuple(_rate_factor(planned, slos) for planned in deployments)


def _rate_factor(planned: PlannedDeployment, slos: Sequence[ScopedSlo]) -> float:
    """Factor on the rate at which theory has as many requests miss a target as the simulation had; at least 1.

    Theory is smoother than traffic: what it does not see at the step times that were simulated it would not see at
    others either. A fleet of which next to none miss says nothing of that.
    """
    if planned.run is None:
        return 1.0
    simulated = max(missing_over_allowed(planned, slos, at_most=False).values(), default=0.0)
    if simulated < LEAST_MISSED:
        return 1.0

    def misses_less(factor: float) -> bool:
        missed = missing_over_allowed(by_theory(planned, factor), slos)
        return max(missed.values(), default=0.0) < simulated

    low, high = 1.0, MOST_BEYOND_THEORY
    if not misses_less(low):
        return low
    while high - low > RATE_TOLERANCE:
        middle = (low + high) / 2.0
        low, high = (middle, high) if misses_less(middle) else (low, middle)
    return low
