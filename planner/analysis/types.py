"""Records of an explanation, one for each kind of answer. Types only; `planner.analysis.why` fills them.

Money is USD per hour, rates are requests per second, and a quantity that does not exist (no fleet, no bound) is
infinite or None. A *value* is what the objective counts (`PlanMeasure`): cost, served rate, or served rate per cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hardware_db import HardwareDb
from planner.fleet import PlanRequest
from planner.llm import ApiPrice

SAME_VALUE = 1e-6
"""Relative difference up to which two values are the same, far below the gap to which fleets are proved. A choice."""


class PlanMeasure(StrEnum):
    """Measure by which plans are compared; the value is its unit."""

    COST = "USD/h"
    """Cost; less is better."""
    RATE = "requests/s"
    """Served rate; more is better."""
    RATE_PER_COST = "requests/USD"
    """Served requests per dollar; more is better."""

    @classmethod
    def of(cls, request: PlanRequest) -> PlanMeasure:
        """The measure of a request's objective."""
        return _MEASURES[request.objective.value]


_MEASURES = {"min_cost": PlanMeasure.COST, "max_rate": PlanMeasure.RATE, "max_rate_per_cost": PlanMeasure.RATE_PER_COST}
"""By objective."""


class PlanQuestion(StrEnum):
    """Questions to an explanation."""

    MARGINAL = "marginal"
    """Worth of one step more or less of each target and limit."""
    STEPS = "steps"
    """The smallest change of each target and limit that changes the plan."""
    REQUIREMENTS = "requirements"
    """Cost of each requirement: the plan with it less the plan without."""
    TORNADO = "tornado"
    """How cost and goodput move with prices, demand, lengths, hit rate and efficiency."""
    PRICES = "prices"
    """The price of each SKU at which the plan changes."""
    API = "api"
    """Self-hosting against a hosted API."""
    RUNNERS_UP = "runners-up"
    """The next best plans, and why they lost."""
    RELAXATIONS = "relaxations"
    """Infeasible: the smallest single change that makes it feasible."""
    PARETO = "pareto"
    """Cost against goodput and against each target."""
    CONFIDENCE = "confidence"
    """Cost against the probability with which every target holds."""
    HEADROOM = "headroom"
    """How much the demand may grow before more has to be bought."""
    MEASURE = "measure"
    """Worth of measuring each SKU before deciding."""


@dataclass(frozen=True)
class PlanningCase:
    """The problem that is solved: a request, and the hardware with its prices and calibrations."""

    request: PlanRequest
    hardware: HardwareDb


@dataclass(frozen=True)
class PlanOutcome:
    """Outcome of a solve, in brief.

    Attributes:
        status: how the solve ended.
        fleet: in words, or why there is none.
        gpus: by SKU id.
        usd_per_hour: cost; infinite when there is no fleet.
        rate_per_s: served [1/s].
        tightest: name of the target with the least left.
        tightest_ratio: its predicted latency over its threshold.
        bound: the resource most of the step time waits for, by pool.
        binding: names of the binding limits.
        diagnosis: why there is no fleet.
    """

    status: str
    fleet: str
    gpus: Mapping[str, int] = field(default_factory=dict)
    usd_per_hour: float = math.inf
    rate_per_s: float = 0.0
    tightest: str = ""
    tightest_ratio: float = math.nan
    bound: str = ""
    binding: tuple[str, ...] = ()
    diagnosis: tuple[str, ...] = ()

    @property
    def feasible(self) -> bool:
        """True if there is a fleet."""
        return math.isfinite(self.usd_per_hour)

    def value(self, measure: PlanMeasure) -> float:
        """The objective: USD/h, 1/s, or requests per USD."""
        if measure is PlanMeasure.COST:
            return self.usd_per_hour
        if measure is PlanMeasure.RATE:
            return self.rate_per_s
        return 3600.0 * self.rate_per_s / self.usd_per_hour if self.feasible else 0.0

    def differs(self, other: PlanOutcome, measure: PlanMeasure) -> bool:
        """True if the two are worth different amounts, or only one is feasible."""
        if self.feasible != other.feasible:
            return True
        return self.feasible and not math.isclose(self.value(measure), other.value(measure), rel_tol=SAME_VALUE)


def gain(before: PlanOutcome, after: PlanOutcome, measure: PlanMeasure) -> float | None:
    """By how much `after` is better (USD/h saved, 1/s or requests/USD won); None where either has no fleet.

    >>> dear, cheap = (PlanOutcome("optimal", "", usd_per_hour=usd) for usd in (50.0, 9.0))
    >>> gain(dear, cheap, PlanMeasure.COST), gain(cheap, dear, PlanMeasure.COST)
    (41.0, -41.0)
    """
    if not (before.feasible and after.feasible):
        return None
    change = after.value(measure) - before.value(measure)
    return 0.0 - change if measure is PlanMeasure.COST else change


@dataclass(frozen=True)
class Marginal:
    """One step of one target or limit, and what it is worth.

    Attributes:
        name: of the requirement.
        key: of the scenario, as `--set` takes it.
        unit: of before and after.
        before: as requested.
        after: tried instead.
        easier: the step loosens the requirement.
        outcome: of the plan made again.
        gain: see `gain`; negative: it costs. None: no fleet before or after.
    """

    name: str
    key: str
    unit: str
    before: float
    after: float
    easier: bool
    outcome: PlanOutcome
    gain: float | None


@dataclass(frozen=True)
class RequirementCost:
    """Cost of a requirement: the best plan with it against the best plan without it.

    Attributes:
        name: of the requirement.
        key: of the scenario.
        without: the plan when it is dropped.
        cost: what is lost by it (USD/h, 1/s or requests/USD), >= 0 up to the solver's gap; None: no fleet with it.
    """

    name: str
    key: str
    without: PlanOutcome
    cost: float | None


@dataclass(frozen=True)
class KeptFleet:
    """This same fleet under other conditions, from theory.

    Attributes:
        holds: every target is met at the demand routed to it.
        tightest: name of the target with the least left.
        tightest_ratio: its latency over its threshold.
        usd_per_hour: what it costs then.
        rate_per_s: largest demand it serves within the targets, split over its deployments as planned [1/s].
    """

    holds: bool
    tightest: str
    tightest_ratio: float
    usd_per_hour: float
    rate_per_s: float


@dataclass(frozen=True)
class SensitivityEnd:
    """One end of a bar of the tornado: the plan made again, and the plan kept.

    `kept` is None where the request has no fleet to keep.
    """

    label: str
    remade: PlanOutcome
    kept: KeptFleet | None


@dataclass(frozen=True)
class Sensitivity:
    """A bar of the tornado. `swing` is the width of cost between the ends [USD/h]; infinite where one has no fleet."""

    name: str
    low: SensitivityEnd
    high: SensitivityEnd
    swing: float


@dataclass(frozen=True)
class BreakEvenPrice:
    """The price of a SKU at which the plan changes.

    Attributes:
        sku: id.
        gpus: of it in the plan.
        usd_per_gpu_hour: the least it costs now.
        changes_at: the price at which the plan takes fewer (of a SKU in use) or any (of one that is not); None: it
            does not within `up_to`.
        up_to: furthest price tried.
        becomes: the plan just beyond `changes_at`.
    """

    sku: str
    gpus: int
    usd_per_gpu_hour: float
    changes_at: float | None
    up_to: float
    becomes: PlanOutcome | None


@dataclass(frozen=True)
class RunnerUp:
    """A plan that lost.

    Attributes:
        without: what had to be forbidden to get it.
        outcome: of the plan.
        loss: by how much it is worse (USD/h, 1/s or requests/USD); why it lost is in its `tightest` and `bound`.
    """

    without: tuple[str, ...]
    outcome: PlanOutcome
    loss: float


@dataclass(frozen=True)
class SmallestRelaxation:
    """The smallest change of one requirement, all others kept, that makes an infeasible request feasible.

    Attributes:
        name: of the requirement.
        key: of the scenario.
        unit: of before and needed.
        before: as requested; None for a requirement that holds or not.
        needed: nearest value found feasible; None: no change of this one alone helps (or, where before is None,
            dropping it is the change).
        outcome: of the plan at `needed`, or without the requirement; None when that does not help.
    """

    name: str
    key: str
    unit: str
    before: float | None
    needed: float | None
    outcome: PlanOutcome | None


@dataclass(frozen=True)
class ParetoPoint:
    """One point of a front: what was asked for, and the cheapest plan for it."""

    asked: float
    outcome: PlanOutcome


@dataclass(frozen=True)
class Pareto:
    """Cost against one quantity: only points to which no other is at least as good in both and better in one.

    Attributes:
        name: of the quantity.
        unit: of it.
        more_is_better: a rate; otherwise a threshold.
        points: by rising quantity.
        tried: points that were solved, dominated and infeasible ones included.
    """

    name: str
    unit: str
    more_is_better: bool
    points: tuple[ParetoPoint, ...]
    tried: int


@dataclass(frozen=True)
class ConfidencePoint:
    """The plan made for one confidence.

    Attributes:
        confidence: probability with which every target holds; 0.5: the fleet if the estimates were exact.
        asked: it is the request's own.
        outcome: of the plan.
        calibrated: some SKU of it is; without one nothing is known of what step times may be off by.
    """

    confidence: float
    asked: bool
    outcome: PlanOutcome
    calibrated: bool


class Measuring(StrEnum):
    """Measurement that would settle how long the steps of a SKU take."""

    KERNELS = "kernels"
    """A calibration of its kernels."""
    LLM = "model"
    """A benchmark of the model on it."""


@dataclass(frozen=True)
class MeasurementValue:
    """Value of measuring a SKU before deciding: the expected value of perfect information.

    Attributes:
        sku: id.
        engines: that it would be measured with.
        gpus: of it in the plan.
        calibrated: something is known of what its step times may be off by; otherwise the rest is not known either.
        gain: mean gain over what measuring may show, in the unit of the measure; None where there is no fleet now.
        usd_per_month: the same in dollars; None unless cost is what counts.
        changes: probability that the fleet becomes another one (of an infeasible request: that there is one).
        impossible: probability that no fleet is left.
        cheaper: probability that the fleet becomes better.
        saving: mean share of the cost that it is cheaper by then; 0 unless cost is what counts.
        replica_gpus: GPUs of one replica, which is what has to be measured; 0 where no plan has one.
        hour_usd: an hour of them at the price of the plan [USD]; None without a price.
        at_best: the plan where its steps turn out as fast as at the lowest quantile tried.
        settled_by: the measurement of what is the more uncertain; None where measuring changes nothing.
        kernel_spread: standard deviation of the logarithm [-] of what the tightest target is about (its steps, or its
            time to a first token), by its kernels.
        llm_spread: the same by what the model adds.
    """

    sku: str
    engines: tuple[str, ...]
    gpus: int
    calibrated: bool
    gain: float | None = None
    usd_per_month: float | None = None
    changes: float = 0.0
    impossible: float = 0.0
    cheaper: float = 0.0
    saving: float = 0.0
    replica_gpus: int = 0
    hour_usd: float | None = None
    at_best: PlanOutcome | None = None
    settled_by: Measuring | None = None
    kernel_spread: float | None = None
    llm_spread: float | None = None


@dataclass(frozen=True)
class ApiBreakEven:
    """A plan against an API.

    Attributes:
        price: of the API.
        api_usd_per_hour: what the API asks for the traffic that the plan serves, as a mean over the horizon like the
            cost of the fleet.
        self_usd_per_hour: what the fleet costs.
        api_usd_per_thousand_requests: mean request.
        cached_share: of the input tokens, found in the prefix cache.
        self_usd_per_million_input_tokens: of self-hosting; cached tokens are taken to cost no step time, so that this
            is over the others.
        self_usd_per_million_output_tokens: of self-hosting.
        fleet_break_even_per_s: from this rate on, this fleet (paid whether used or not) is cheaper than the API [1/s].
        utilisation: that rate over the mean rate the plan serves; above 1 the API is cheaper for this traffic.
        smallest_break_even_per_s: the demand (the rate a request states) from which on a fleet planned for it is
            cheaper than the API [1/s]: the change nearest to the planned demand, searched down to a 64th of it where
            the fleet wins (and that where it always does) and up to 8 times it where the API does. None: not
            searched, or the API wins up to there.
    """

    price: ApiPrice
    api_usd_per_hour: float
    self_usd_per_hour: float
    api_usd_per_thousand_requests: float
    cached_share: float
    self_usd_per_million_input_tokens: float
    self_usd_per_million_output_tokens: float
    fleet_break_even_per_s: float
    utilisation: float
    smallest_break_even_per_s: float | None = None


@dataclass(frozen=True)
class Headroom:
    """How much more the fleet could serve within every target, the traffic split as planned.

    By the rates that it was planned with: of theory, as simulation corrected them, with step times as slow as the
    confidence asked for has them. Demand that has grown by more asks for another plan.

    Attributes:
        share: most it serves over the demand, less 1.
        tightest: the target nearest to its threshold, with these step times.
        tightest_ratio: its latency over its threshold.
        confidence: that the plan was made for.
        estimated_share: `share` with step times as estimated; None where nothing is calibrated.
    """

    share: float
    tightest: str
    tightest_ratio: float
    confidence: float
    estimated_share: float | None


@dataclass(frozen=True)
class Explanation:
    """All answers about one plan.

    Attributes:
        name: of the request.
        measure: what plans are compared by.
        outcome: the plan itself.
        marginals, steps, requirements, tornado, prices, api, runners_up, relaxations, pareto, confidence,
            measurements: by question; empty where not asked.
        headroom: how much the demand may grow; None where not asked.
        answered: questions that were.
        unanswered: question and why not, e.g. that the number of solves ran out.
        solves: programs that were solved for it.
        elapsed_s: wall time.
    """

    name: str
    measure: PlanMeasure
    outcome: PlanOutcome
    marginals: tuple[Marginal, ...] = ()
    steps: tuple[Marginal, ...] = ()
    requirements: tuple[RequirementCost, ...] = ()
    tornado: tuple[Sensitivity, ...] = ()
    prices: tuple[BreakEvenPrice, ...] = ()
    api: tuple[ApiBreakEven, ...] = ()
    runners_up: tuple[RunnerUp, ...] = ()
    relaxations: tuple[SmallestRelaxation, ...] = ()
    pareto: tuple[Pareto, ...] = ()
    confidence: tuple[ConfidencePoint, ...] = ()
    measurements: tuple[MeasurementValue, ...] = ()
    headroom: Headroom | None = None
    answered: tuple[PlanQuestion, ...] = ()
    unanswered: Mapping[str, str] = field(default_factory=dict)
    solves: int = 0
    elapsed_s: float = 0.0
