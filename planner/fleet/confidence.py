"""With which probability a fleet meets its targets, where step times are uncertain by as much as measurements say.

Step times are estimates. `planner.serving.uncertainty` says by how much they may be off, as standard deviations of
logarithms, and what is off together: the kernels of a SKU and engine by one factor, a SKU that was not measured by
one, a model on a SKU and engine by one for its steps and one for the time to a first token. A *draw* of these factors
is a world in which the fleet either meets every target or does not; the probability is the share of draws in which it
does.

Confidence is asked for as a probability. Rates are looked for with every step time `optimistic_deviations` slower than
estimated, with which few families carry less than they may. Of each fleet that the program comes to the draws are
counted (`Judgement`). Where too few hold, only what that fleet is made of is lowered (`Judgement.shortfalls`), to the
rate at which it holds in the last of the draws that it has to, and the program is solved again
(`planner.fleet.search`). So doubt about one SKU never makes another dearer. The pools of a pair are lowered each by
what it is to blame for: a latency late in too many draws by itself, in the last of these, and the pool whose slower
steps make it later.

Each deployment is judged by theory. Slower steps never bring a latency down, so that many draws are known to hold or to
miss from another that is slower, or faster, in everything. The logarithm of a latency at its percentile is smooth in
those of the step times: once a spline through some evaluations foretold others, draws that it leaves in no doubt are
read off it. Eight to seventeen evaluations stand for all 400, and four at another rate of the same deployment: of five
fleets of which every draw was evaluated as well none was read off wrongly, of two at another rate one draw of 800.

Where all that a step consists of is shifted, an evaluation under a rate that varies solves no queue of its own:
latencies are those of a few ratios of the two factors (`planner.serving.pool_load`). Of 100 draws of each of five
fleets none was judged otherwise than by queues of its own; latencies of mixed pools differed by 0.6 % (one standard
deviation), of pairs by nothing.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import NormalDist
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.core import BoolArray, FloatArray, Metric, rebuilt
from planner.engine import ReplicaConfig, StepTimeShift, memory_footprint, start_probability
from planner.fleet.corrections import LEAST_KEPT, MISS_GROWTH
from planner.fleet.simulation import evaluated
from planner.fleet.types import PlanConfidence, PlannedDeployment, PlanRequest
from planner.fleet.verification import ScopedSlo, asked_metrics, log_excesses, missing_over_allowed, violated_metrics
from planner.search import BoundedCache, DeploymentOption, ShiftRule
from planner.serving import (
    NOT_MEASURED,
    Deployment,
    MeasuredSteps,
    Role,
    StandardNormals,
    at_slow_end,
    drawn_shifts,
    known_steps,
    replica_spreads,
)
from planner.workload import Workload

DRAWS = 400
"""Draws that a probability is counted in: 1.5 points of standard error at 90 %. A choice."""
BEYOND_THEORY = (0.8, 2.0)
"""Factors on the rate between which it is looked for where theory misses as much as a simulation did. A choice."""
LEAST_MISSED = 0.1
"""Simulated misses over those allowed below which nothing is concluded of theory. A choice."""
RATE_TOLERANCE = 0.01
"""To which that factor is found. A choice."""
NEAR = 1.0
"""Logarithm of a latency over its target up to which evaluations say how latencies go near the targets. A choice."""
FORETOLD = 3
"""Latest evaluations whose errors count, each against a spline through those before. A choice."""
IN_DOUBT = 3.0
"""Largest of these errors times which a draw this near to the targets is in doubt. A choice."""
RATE_SCALE = 0.1
"""Logarithm of a rate that counts in the spline as a standard deviation of a step time does. Affects speed."""
LEAST_DOUBT = 0.005
"""Logarithm of a latency over its target up to which every draw is: twice what slices leave unsteady."""
ALIKE_PARTS = 2.0
"""Independent parts of a step time, alike in size, that all so slow at once are as rare as their sum may be by the
confidence asked for. A choice: with more the draws of more fleets are counted that fall short."""
SLOWER, SHARE_TO_BLAME = 0.01, 0.5
"""Logarithm by which the steps of one pool are slower for it to be seen how a latency goes by them, and the least share
of the largest of these changes of a pool that lacks something too. A choice."""
FAR_CUT = 0.9
"""Share of a rate below which another is looked for in two steps. A choice."""
DEVIATIONS_TRIED = 33
"""Standard deviations between 0 and the most at which it is seen how bad steps so slow are; linear in between."""
CUTS_AT_MOST = 8
"""Rates tried for the one at which a fleet holds in a draw."""
NOTHING_MEASURED: Mapping[str, MeasuredSteps] = MappingProxyType({})
"""No running fleet taught anything of any SKU."""


class _Verdict(NamedTuple):
    """By theory: the metrics whose targets are missed, logarithms of misses over those allowed, and `log_excesses`."""

    missed: frozenset[Metric]
    log_misses: Mapping[Metric, float]
    log_excesses: FloatArray


_VERDICTS: BoundedCache[tuple[Deployment, _Verdict]] = BoundedCache(4096)
"""Verdicts by theory, of a few hundred bytes each. Affects speed only."""


def deviations_of(probability: float) -> float:
    """Standard deviations above the mean that a normal distribution stays below with a probability in (0, 1).

    >>> round(deviations_of(0.9), 3), deviations_of(0.5)
    (1.282, 0.0)
    """
    return NormalDist().inv_cdf(probability)


def optimistic_deviations(confidence: float) -> float:
    """Standard deviations slower with which rates are looked for before any draw is counted.

    A fleet misses where a sum of independent parts is too large. Of n alike parts all d deviations slow at once are as
    much as d sqrt(n) deviations of their sum.
    """
    asked = deviations_of(confidence)
    return asked / math.sqrt(ALIKE_PARTS) if asked > 0.0 else asked


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
    surviving = slower_deployment(planned, deviations, measured)
    configs = [pool.config for pool in surviving.pools]
    pools = zip(planned.option.pools, configs, strict=True)
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

    Those that nothing is known of and nothing is to slow down have no shift.

    Args:
        planned: as estimated.
        deviations: standard deviations that its step times are slower than is to be expected; negative: faster.
        measured: by SKU or model on a SKU, what is known of step times.
    """
    rule, lengths = slow_rule(deviations, measured), planned.workload.lengths

    def slower(config: ReplicaConfig, role: Role) -> ReplicaConfig:
        own = config if config.shift is None else rebuilt(config, shift=None)
        if rule is None or (not deviations and known_steps(measured, config) == NOT_MEASURED):
            return own
        return rebuilt(own, shift=rule(own, role, lengths.mean_input, lengths.mean_output))

    return _reconfigured(planned.surviving, [slower(pool.config, pool.role) for pool in planned.surviving.pools])


def _reconfigured(deployment: Deployment, configs: Sequence[ReplicaConfig]) -> Deployment:
    pools = zip(deployment.pools, configs, strict=True)
    return rebuilt(deployment, pools=tuple(rebuilt(pool, config=config) for pool, config in pools))


# --- the probability ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shortfall:
    """A deployment that holds in too few draws.

    Attributes:
        place: of the deployment in its fleet.
        kept_by: by role of its pools, the share of its rate at which it holds the targets that it misses because of
            them in the last of the draws that it has to hold in, half of the way there where that is far; 0 where at
            none.
        metrics: whose targets it misses there, or where it holds at none, those that it misses nearly idle.
    """

    place: int
    kept_by: Mapping[Role, float]
    metrics: frozenset[Metric]

    @property
    def kept(self) -> float:
        """Share of its rate at which it holds all of them."""
        return min(self.kept_by.values())


@dataclass(frozen=True)
class Judgement:
    """With which probability a fleet holds, counted in draws.

    Attributes:
        confidence: the probability; where counting stopped once it was enough, or too little, what was counted so far.
        deviations: standard deviations that all its steps are slower than estimated in a world as bad as the last of
            the draws in which it has to hold.
        shortfalls: of the deployments that hold in too few draws; none where the fleet holds in enough.
        jointly: each of them holds in enough draws, but not all in the same ones.
    """

    confidence: PlanConfidence
    deviations: float
    shortfalls: tuple[Shortfall, ...] = ()
    jointly: bool = False


def counted_draws(
    deployments: Sequence[PlannedDeployment],
    slos: Sequence[ScopedSlo],
    request: PlanRequest,
    factors: Sequence[float] | None = None,
    *,
    exact: bool = False,
    surfaces: dict[Hashable, _Surface] | None = None,
) -> Judgement:
    """With which probability every deployment starts and meets every target, and what falls short of that asked for.

    Targets are judged over draws of what step times may be off by; whether replicas start is independent of them
    (`planner.engine.start_probability`).

    Args:
        deployments: as found: with the step times they were verified with, simulated or not.
        slos: the targets.
        request: what was asked for: the confidence, the seed of the draws (fleets of the same seed are judged by the
            same) and what is known of step times.
        factors: `rate_factors` of the deployments; None: theory as it is.
        exact: count to the end and look for no shortfalls.
        surfaces: what was evaluated for the same plan so far, at any rate; added to.
    """
    starts = min(  # of one kind all replicas start, or none
        (
            start_probability(pool.config, memory_footprint(pool.config), planned.workload.lengths.max_total)
            for planned in deployments
            for pool in planned.surviving.pools
        ),
        default=1.0,
    )
    enough = min(max(math.ceil(request.confidence * (DRAWS + 1.0) / starts - 0.5), 1), DRAWS)
    shared = {} if surfaces is None else surfaces
    makes = [
        partial(_Judge, planned, slos, request.seed, request.measured_steps, factor, shared)
        for planned, factor in zip(deployments, factors or [1.0] * len(deployments), strict=True)
    ]
    judges = [make() for make in makes]
    alone = [judge.holds(None if exact else enough) for judge in judges]
    evaluated = 0
    while evaluated < (known := sum(len(surface.found) for surface in shared.values())) and (
        exact or min(int(holds.sum()) for holds in alone) >= enough
    ):  # to the end, until all that was evaluated on the way changes nothing
        judges, evaluated = [make() for make in makes], known
        alone = [judge.holds(None) for judge in judges]
    jointly = min(int(holds.sum()) for holds in alone) >= enough
    holds = np.logical_and.reduce(alone)
    jeffreys = (float(holds.sum()) + 0.5) / (DRAWS + 1.0)  # no number of draws makes it certain
    share = starts * jeffreys
    error = math.sqrt(max(share * (1.0 - share), 1.0 / DRAWS) / DRAWS)
    unknown = sorted({sku for judge in judges for sku in judge.uncalibrated})
    sources = sorted({spreads.group.source for judge in judges for spreads in judge.spreads if spreads is not None})
    confidence = PlanConfidence(request.confidence, share, error, tuple(unknown), starts, tuple(sources))
    ranks = [judge.ranks() for judge in judges]
    within = next(  # the fewest draws in which each has to hold for all to hold in enough
        (count for count in range(enough, DRAWS) if not jointly or (np.max(ranks, axis=0) < count).sum() >= enough),
        DRAWS,
    )
    last = [int(np.flatnonzero(rank == within - 1)[0]) for rank in ranks]
    most = deviations_of(within / (DRAWS + 1.0))  # where all that is off goes with one factor
    deviations = max(judge.deviations_in(draw, most) for judge, draw in zip(judges, last, strict=True))
    if exact or holds.sum() >= enough:
        return Judgement(confidence, deviations)
    shortfalls = (
        judge.shortfall_in(place, draw, within) for place, (judge, draw) in enumerate(zip(judges, last, strict=True))
    )
    return Judgement(confidence, deviations, tuple(one for one in shortfalls if one is not None), jointly)


class _Judge:
    """Judges one deployment, draw by draw."""

    def __init__(
        self,
        planned: PlannedDeployment,
        slos: Sequence[ScopedSlo],
        seed: int,
        measured: Mapping[str, MeasuredSteps],
        rate_factor: float,
        surfaces: dict[Hashable, _Surface],
    ) -> None:
        self.planned, self.slos, self.rate_factor, self.measured = planned, slos, rate_factor, measured
        self.known: BoolArray = np.zeros(DRAWS, dtype=bool)
        self.held: BoolArray = np.zeros(DRAWS, dtype=bool)
        lengths = planned.workload.lengths
        self.surviving = slower_deployment(planned, 0.0)
        pools = self.surviving.pools
        self.spreads = [replica_spreads(one.config, one.role, lengths.mean_input, lengths.mean_output) for one in pools]
        self.uncalibrated = {pool.config.sku.id for pool, own in zip(pools, self.spreads, strict=True) if own is None}
        self.asked = frozenset(slos), frozenset(planned.slices), planned.workload
        self.metrics = np.array(asked_metrics(planned, slos))
        self.logs = self._drawn(seed, measured)
        self.scale = np.where(np.ptp(self.logs, axis=0) > 0.0, self.logs.std(axis=0), 1.0)
        self.places = self._places(self.logs)
        key = (self.surviving.summary, *self.asked[:2], planned.workload.classes)  # of a plan: arrivals follow
        self.surface = surfaces.setdefault(key, _Surface())

    def _drawn(self, seed: int, measured: Mapping[str, MeasuredSteps]) -> FloatArray:
        """What step times are off by, as `ReplicaSpreads.shift` takes it: shape (draws, 3 of each pool)."""
        columns = []
        for pool, spreads in zip(self.surviving.pools, self.spreads, strict=True):
            known = known_steps(measured, pool.config)
            normals = _normals_of(pool.config, pool.role is Role.MIXED, seed)
            columns.append(np.zeros((DRAWS, 3)) if spreads is None else drawn_shifts(spreads, normals, known))
        return np.concatenate(columns, axis=1)

    def holds(self, enough: int | None) -> BoolArray:
        """By draw. One that is faster in everything than one that holds does so too; the other way round likewise.

        Asked next is the draw whose verdict, whichever it is, says most about the others; once latencies can be read
        off, the one that is nearest to the targets. With `enough` no more are asked once so many hold or can not hold
        any more; of the others none counts as holding.
        """
        self._note(*self._verified())
        for place, excesses in self.surface.found.items():
            if place[-1] == self.places[0, -1]:
                self._note_at(np.array(place), bool(excesses.max() <= 0.0))
        faster = np.all(self.logs[:, None] <= self.logs, axis=2)
        while True:
            known, holds, open_draws = self.known.copy(), self.held.copy(), np.flatnonzero(~self.known)
            read_off = self.surface.worst(self.places[open_draws])
            if read_off is not None:
                known[open_draws] = np.abs(read_off) > self.surface.doubt(self.places[0, -1])
                holds[open_draws] = known[open_draws] & (read_off <= 0.0)
            misses = (known & ~holds).sum() if read_off is not None else 0  # only then can the others be ranked
            if known.all() or (enough is not None and (holds.sum() >= enough or misses > DRAWS - enough)):
                self.known, self.held = known, holds
                return holds
            among = faster[np.ix_(open_draws, open_draws)]
            says_most = np.argmax(np.minimum(among.sum(axis=0), among.sum(axis=1)))
            logs = self.logs[open_draws[says_most if read_off is None else np.abs(read_off).argmin()]]
            verdict = self._verified_at(logs)
            self._note(logs, not verdict.missed)

    def _places(self, logs: FloatArray, factor: float = 1.0) -> FloatArray:
        """Of step times on the surface, at so many times the rate; shape (draws, columns + 1)."""
        log_rate = math.log(factor * self.rate_factor * self.planned.workload.rate_per_s) / RATE_SCALE
        return np.column_stack([logs / self.scale, np.full(len(logs), log_rate)])

    def ranks(self) -> NDArray[np.intp]:
        """Place of every draw, from the one in which the deployment holds most easily; shape (draws,)."""
        severity = self._severity(self.logs)
        misses = np.where(self.known, ~self.held, severity > 0.0)
        ranks = np.empty(DRAWS, dtype=np.intp)
        ranks[np.lexsort((severity, misses))] = np.arange(DRAWS)
        return ranks

    def _severity(self, logs: FloatArray) -> FloatArray:
        """How far beyond the targets step times bring a deployment, below 0 where it meets them; shape (draws,)."""
        read_off = self.surface.worst(self._places(logs))
        if read_off is not None:
            return read_off
        sums = (self.logs / self.scale).sum(axis=1)
        return np.asarray((logs / self.scale).sum(axis=1) - sums[self.held].max(initial=sums.min()))

    def deviations_in(self, draw: int, most: float) -> float:
        """Standard deviations, from 0 to `most`, that everything has to be slower for it to be as bad as a draw."""
        deviations = np.linspace(0.0, most, DEVIATIONS_TRIED)
        severity = self._severity(np.array([self._slow_logs(each) for each in deviations.tolist()]))
        return float(np.interp(self._severity(self.logs[[draw]])[0], np.maximum.accumulate(severity), deviations))

    def _slow_logs(self, deviations: float) -> FloatArray:
        return _logs_of(
            None if own is None else at_slow_end(own, deviations, known_steps(self.measured, pool.config))
            for pool, own in zip(self.surviving.pools, self.spreads, strict=True)
        )

    def shortfall_in(self, place: int, draw: int, within: int) -> Shortfall | None:
        """What the deployment lacks to hold in a draw, the last of `within`; None where it holds."""
        if self.known[draw] and self.held[draw]:
            return None
        missed, roles = self._verified_at(self.logs[draw]).missed, [pool.role for pool in self.surviving.pools]
        if len(roles) > 1 and (draws := self._last_by(missed, within)):
            return self._shortfall_of_pair(place, draws)
        kept, metrics = self._kept(draw, missed)
        return Shortfall(place, dict.fromkeys(roles, kept), metrics)

    def _shortfall_of_pair(self, place: int, draws: Mapping[Metric, int]) -> Shortfall:
        """What each pool of a pair lacks, for metrics that are each missed in too many draws, in the last by each.

        Of a metric those pools lack something whose step times it goes by most.
        """
        kept_by: dict[Role, float] = {}
        missed = frozenset[Metric]()
        for metric, draw in draws.items():
            kept, metrics = self._kept(draw, frozenset({metric}))
            missed |= metrics
            planned = self._at(self.logs[draw])  # no draws are slowed, so that they are kept off the surface
            at = (kept**2 or 1.0) * self.rate_factor  # at which it holds
            for role in roles_to_blame(planned, self.slos, {metric}, at):
                kept_by[role] = min(kept, kept_by.get(role, 1.0))
        return Shortfall(place, kept_by, missed)

    def _last_by(self, missed: Iterable[Metric], within: int) -> dict[Metric, int]:
        """Of metrics that are each missed in too many draws, as far as is known, the last of so many draws by each."""
        last: dict[Metric, int] = {}
        by_target = self.surface.read_off(self.places)
        if by_target is None:
            return last
        for metric in sorted(missed):
            severity = by_target[:, self.metrics == metric].max(axis=1)
            draw = int(np.argsort(severity, kind="stable")[within - 1])
            if severity[draw] > 0.0:
                last[metric] = draw
        return last

    def _kept(self, draw: int, metrics: frozenset[Metric]) -> tuple[float, frozenset[Metric]]:
        """Share of its rate at which a deployment holds the targets of some metrics in a draw, and these metrics.

        Where at none, 0 and those that it misses nearly idle.
        """
        low, high, factor = 0.0, 1.0, 1.0
        for _ in range(CUTS_AT_MOST):
            verdict = self._verified_at(self.logs[draw], factor)
            missed = verdict.missed & metrics
            low, high = (low, factor) if missed else (factor, high)
            if high < LEAST_KEPT:
                return 0.0, missed or metrics
            if low >= (1.0 - RATE_TOLERANCE) * high:
                break
            log_misses = max((verdict.log_misses.get(metric, math.inf) for metric in metrics), default=math.inf)
            step = factor * math.exp(-log_misses / MISS_GROWTH) if math.isfinite(log_misses) else 0.0
            factor = step if low < step < high and (low or step > 0.8 * high) else (low + high) / 2.0
        kept = math.sqrt(high) if high < FAR_CUT else high  # which draw is the last is known near the targets only
        return min(kept, 1.0 - RATE_TOLERANCE / 2.0), metrics

    def _note(self, logs: FloatArray, verdict: bool) -> None:
        """Extend a verdict to the open draws that it decides."""
        self._note_at(self._places(logs[None])[0], verdict)

    def _note_at(self, place: FloatArray, verdict: bool) -> None:
        alike = (self.places <= place).all(axis=1) if verdict else (self.places >= place).all(axis=1)
        alike &= ~self.known
        self.held[alike] = verdict
        self.known |= alike

    def _verified(self) -> tuple[FloatArray, bool]:
        """The step times that the deployment was verified with, and whether it held."""
        logs = _logs_of(pool.config.shift for pool in self.planned.surviving.pools)
        return logs, not violated_metrics(self.planned, self.slos, by_theory=self.planned.run is None)

    def _verified_at(self, logs: FloatArray, factor: float = 1.0) -> _Verdict:
        """Verdict by theory with step times that are off by this.

        Remembered: the same fleet is judged before and after it was simulated, and with others beside it.
        """
        surviving = self.surviving
        key = (surviving.summary, *self.asked, factor * self.rate_factor, logs.tobytes())
        known = _VERDICTS.get(key)
        if known is None or known[0] != surviving:
            planned = self._at(logs, factor)
            log_misses = {
                metric: math.log(misses) if misses > 0.0 else -math.inf
                for metric, misses in missing_over_allowed(planned, self.slos).items()
            }
            missed, excesses = violated_metrics(planned, self.slos), log_excesses(planned, self.slos)
            known = _VERDICTS.put(key, (surviving, _Verdict(missed, log_misses, excesses)))
        self.surface.add(self._places(logs[None], factor)[0], known[1].log_excesses)
        return known[1]

    def _at(self, logs: FloatArray, factor: float = 1.0) -> PlannedDeployment:
        """The deployment by theory with step times that are off by this, at so many times its rate."""
        off = zip(self.surviving.pools, self.spreads, logs.reshape(-1, 3).tolist(), strict=True)
        configs = [
            rebuilt(pool.config, shift=None if spreads is None else spreads.shift(*own)) for pool, spreads, own in off
        ]
        surviving = _reconfigured(self.surviving, configs)
        return by_theory(replace(self.planned, surviving=surviving), factor * self.rate_factor)


@dataclass
class _Surface:
    """Logarithms of latencies over their targets by step times and the rate: a spline through those evaluated.

    Of each target s(x) = sum_i w_i |x - x_i|^3 + b x + c with sum_i w_i = 0 and sum_i w_i x_i = 0, the smoothest
    function through the values in the sense of Duchon, "Splines minimizing rotation-invariant semi-norms in Sobolev
    spaces" (1977): a plane where they lie on one.

    Attributes:
        found: what was evaluated, shape (targets,) each, by its place: logarithms of step times and last of the rate.
        errors: of what was foretold, of the worst target and up to `NEAR`, by the rate.
    """

    found: dict[tuple[float, ...], FloatArray] = field(default_factory=dict)
    errors: dict[float, list[float]] = field(default_factory=dict)

    def add(self, place: FloatArray, excesses: FloatArray) -> None:
        """Add an evaluation and, of all but the first at a rate, its error against what was foretold."""
        if tuple(place.tolist()) in self.found:
            return
        foretold, errors = self.worst(place[None]), self.errors.get(place[-1])
        if errors is None:
            self.errors[place[-1]] = []
        elif foretold is not None:
            both = np.clip([float(foretold[0]), float(excesses.max())], -NEAR, NEAR)
            errors.append(abs(float(both[0] - both[1])))
        self.found[tuple(place.tolist())] = excesses

    def worst(self, places: FloatArray) -> FloatArray | None:
        """Of the target that is missed most, shape (places,); None where too few are known near the targets."""
        by_target = self.read_off(places)
        return None if by_target is None else np.asarray(by_target.max(axis=1))

    def read_off(self, places: FloatArray) -> FloatArray | None:
        """Of each target, shape (places, targets); None where too few are known near the targets."""
        near = [each for each in self.found.items() if abs(each[1].max()) <= NEAR and np.isfinite(each[1]).all()]
        if len(near) <= places.shape[1]:
            return None
        points, found = (np.array(each) for each in zip(*near, strict=True))
        asked, points = places - points[0], points - points[0]  # so that a rate that is the only one has no slope
        plane = np.column_stack([points, np.ones(len(points))])
        equations = np.block([[_cubes(points, points), plane], [plane.T, np.zeros((plane.shape[1],) * 2)]])
        right = np.concatenate([found, np.zeros((plane.shape[1], found.shape[1]))])
        weights = np.linalg.lstsq(equations, right, rcond=None)[0]
        return np.asarray(np.column_stack([_cubes(asked, points), asked, np.ones(len(asked))]) @ weights)

    def doubt(self, log_rate: float) -> float:
        """Largest error that a value read off at a rate may have; infinite as long as too little was foretold there."""
        errors = self.errors.get(log_rate, [])[-FORETOLD:]
        return max(IN_DOUBT * max(errors), LEAST_DOUBT) if len(errors) == FORETOLD else math.inf


def _cubes(some: FloatArray, others: FloatArray) -> FloatArray:
    """Distances of points to the power of three, shape (some, others)."""
    return np.asarray(np.linalg.norm(some[:, None] - others, axis=2) ** 3)


def _logs_of(shifts: Iterable[StepTimeShift | None]) -> FloatArray:
    """What the step times of pools are off by, as `ReplicaSpreads.shift` takes it."""
    known = [shift or StepTimeShift() for shift in shifts]
    return np.array([[math.log(shift.decode), math.log(shift.prompt), shift.request_s] for shift in known]).ravel()


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
    performance = evaluated(planned.surviving, at_factor(planned.workload, rate_factor), figures=False)
    return replace(planned, predicted=performance, simulated=performance, run=None)


def roles_to_blame(
    planned: PlannedDeployment, slos: Sequence[ScopedSlo], metrics: Collection[Metric], rate_factor: float = 1.0
) -> list[Role]:
    """Pools of a pair by whose step times latencies of some metrics go most, by theory; all where links count.

    Args:
        planned: the pair, with its step times.
        slos: targets; the one missed most counts.
        metrics: of these.
        rate_factor: on its rate.
    """
    pools, asked = planned.surviving.pools, np.isin(asked_metrics(planned, slos), list(metrics))

    def excess(slower: int) -> float:
        off = [_shifted(pool.config, math.exp(SLOWER * (place == slower))) for place, pool in enumerate(pools)]
        at = by_theory(replace(planned, surviving=_reconfigured(planned.surviving, off)), rate_factor)
        return float(log_excesses(at, slos)[asked].max(initial=-math.inf))

    before = excess(len(pools))
    growth = [max(excess(place) - before, 0.0) if math.isfinite(before) else 1.0 for place in range(len(pools))]
    least = SHARE_TO_BLAME * max(growth) if math.fsum(growth) >= SLOWER else 0.0  # less than in proportion: of links
    return [pool.role for pool, own in zip(pools, growth, strict=True) if own >= least]


def _shifted(config: ReplicaConfig, factor: float) -> ReplicaConfig:
    """A replica whose steps take so many times as long."""
    own = config.shift or StepTimeShift()
    return rebuilt(config, shift=own.model_copy(update={"decode": factor * own.decode, "prompt": factor * own.prompt}))


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
    """Factor on the rate at which theory has as many requests miss a target as the simulation had.

    Theory is smoother than traffic, or more careful: what it does not see at the step times that were simulated it
    would not see at others either. Where it is more careful the upper end of the sampling error counts. A fleet of
    which next to none miss says nothing of that.
    """
    if planned.run is None:
        return 1.0

    def simulated(*, at_most: bool) -> float:
        return max(missing_over_allowed(planned, slos, at_most=at_most).values(), default=0.0)

    def misses_less(factor: float, than: float) -> bool:
        missed = missing_over_allowed(by_theory(planned, factor), slos)
        return max(missed.values(), default=0.0) < than

    (low, high), than = BEYOND_THEORY, simulated(at_most=False)
    if than < LEAST_MISSED:
        return 1.0
    if misses_less(1.0, than):
        low = 1.0
    else:
        high, than = 1.0, simulated(at_most=True)
        if misses_less(1.0, than):
            return 1.0
    while high - low > RATE_TOLERANCE:
        middle = (low + high) / 2.0
        low, high = (middle, high) if misses_less(middle, than) else (low, middle)
    return low if low >= 1.0 else high
