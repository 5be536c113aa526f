"""What is asked of the planner and what it answers. Types only; `planner.planning.plan` fills them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Self

from pydantic import Field, model_validator

from hardware_db import Frozen
from planner.candidates import DeploymentOption, Rejection, SearchSpace
from planner.deployment import Deployment, Performance
from planner.errors import InputError
from planner.latency import LatencyDistribution
from planner.llm import LlmSpec, Precision
from planner.optimizer import Allocation, Objective, SolveStatus
from planner.workload import LatencyTarget, Metric, Slo, Workload

STALE_PRICE_DAYS = 180
"""Age from which a price is used only when there is no younger one, with a warning."""
AGREEMENT = 0.15
"""Largest relative difference of mean TTFT or TPOT between theory and simulation that is not flagged."""


class PricePolicy(Frozen):
    """Which price applies to a SKU: the user's own, else the cheapest listed one that matches and is not stale.

    Where every matching price is older than `STALE_PRICE_DAYS` on the day `as_of`, the cheapest of those is used and
    the plan warns.
    """

    commitment: str = "on_demand"
    provider: str | None = None
    region: str | None = None
    min_confidence: str = "medium"
    as_of: date | None = Field(default=None, description="day the plan is made for; default: today")
    usd_per_gpu_hour: Mapping[str, float] = Field(default_factory=dict, description="own prices by SKU id")

    @property
    def day(self) -> date:
        """The day prices are judged on."""
        return self.as_of or date.today()

    @model_validator(mode="after")
    def _positive(self) -> Self:
        for sku, usd in self.usd_per_gpu_hour.items():
            if not (math.isfinite(usd) and usd > 0):
                raise InputError(f"prices.usd_per_gpu_hour.{sku}", usd, "must be finite and > 0 USD/h")
        return self


class FleetLimits(Frozen):
    """What may be bought."""

    budget_usd_per_hour: float | None = Field(default=None, gt=0)
    gpus: Mapping[str, int] = Field(default_factory=dict, description="most GPUs by SKU id")

    @model_validator(mode="after")
    def _not_negative(self) -> Self:
        for sku, count in self.gpus.items():
            if count < 0:
                raise InputError(f"limits.gpus.{sku}", count, "must be >= 0")
        return self


class PlanRequest(Frozen):
    """Everything a plan depends on, besides the hardware database."""

    name: str = "unnamed"
    llm: LlmSpec
    precision: Precision
    workload: Workload
    slo: Slo
    search: SearchSpace
    prices: PricePolicy = PricePolicy()
    limits: FleetLimits = FleetLimits()
    objective: Objective = Objective.MIN_COST
    seed: int = Field(default=0, ge=0)
    simulated_requests: int = Field(default=10_000, ge=100, le=1_000_000)

    @model_validator(mode="after")
    def _requests_fit_the_model(self) -> Self:
        longest = self.workload.lengths.max_total
        if longest > self.llm.max_context_tokens:
            bound = f"longer than the {self.llm.max_context_tokens} tokens of context of {self.llm.id}"
            raise InputError("workload.lengths", longest, bound, "cut the lengths or choose another model")
        return self


@dataclass(frozen=True)
class CostBreakdown:
    """What a fleet costs and what one gets for it.

    Input and output tokens share the cost of a mixed pool by the step time prompts add; a prefill pool is all input,
    a decode pool all output.
    """

    usd_per_hour: float
    usd_per_month: float
    usd_per_million_input_tokens: float
    usd_per_million_output_tokens: float
    usd_per_thousand_requests: float
    goodput_per_s: float
    requests_per_usd: float


@dataclass(frozen=True)
class PlannedDeployment:
    """One deployment of the plan with the share of the traffic it takes.

    Attributes:
        option: the candidate it comes from.
        deployment: with its pool sizes.
        workload: what is routed to it.
        sustained_per_s: rate it sustains under the Slo [1/s], as far as it was looked for; >= what is routed.
        predicted: from theory.
        simulated: from request-level simulation.
        usd_per_hour: of all its pools.
        nodes: servers per pool, replicas never straddling two.
    """

    option: DeploymentOption
    deployment: Deployment
    workload: Workload
    sustained_per_s: float
    predicted: Performance
    simulated: Performance
    usd_per_hour: float
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class TargetCheck:
    """A target against prediction and simulation, over all deployments."""

    target: LatencyTarget
    predicted_s: float
    simulated_s: float
    simulated_attainment: float
    met: bool


@dataclass(frozen=True)
class Agreement:
    """Theory against simulation on a mean."""

    metric: Metric
    predicted_mean_s: float
    simulated_mean_s: float

    @property
    def relative_difference(self) -> float:
        """(predicted - simulated) / simulated."""
        return self.predicted_mean_s / self.simulated_mean_s - 1.0

    @property
    def holds(self) -> bool:
        """Whether the two differ by at most `AGREEMENT`."""
        return abs(self.relative_difference) <= AGREEMENT


@dataclass(frozen=True)
class Alternative:
    """The best fleet restricted to one SKU or one mode (from theory, not simulated).

    Attributes:
        restriction: the SKU id or mode it is restricted to.
        kind: "sku" or "mode".
        summary: pools in words, or why there is none.
        usd_per_hour: cost, or None when there is none.
        rate_per_s: what it serves.
        is_chosen: whether it costs and serves what the plan does.
    """

    restriction: str
    kind: str
    summary: str
    usd_per_hour: float | None
    rate_per_s: float
    is_chosen: bool


@dataclass(frozen=True, eq=False)
class Plan:
    """The answer to a PlanRequest. When `status` has no allocation, `diagnosis` says why and what would help.

    Attributes:
        request: what was asked.
        status: how the integer program ended.
        allocation: its answer, with binding constraints and gap.
        deployments: what to run.
        cost: of the whole fleet, or None when infeasible.
        targets: every target against prediction and simulation.
        agreement: theory against simulation on mean TTFT and TPOT.
        alternatives: best fleet per SKU and per mode.
        rejections: SKUs and modes with no feasible option, and why.
        diagnosis: why infeasible, and the smallest changes that help.
        assumptions: what the numbers take for granted.
        warnings: stale prices, disagreement, targets missed in simulation.
        considered: configurations looked at.
        elapsed_s: wall time of planning.
    """

    request: PlanRequest
    status: SolveStatus
    allocation: Allocation | None
    deployments: tuple[PlannedDeployment, ...]
    cost: CostBreakdown | None
    targets: tuple[TargetCheck, ...]
    agreement: tuple[Agreement, ...]
    alternatives: tuple[Alternative, ...]
    rejections: tuple[Rejection, ...]
    diagnosis: tuple[str, ...]
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    considered: int
    elapsed_s: float

    @property
    def feasible(self) -> bool:
        """Whether there is a fleet to run."""
        return bool(self.deployments)

    @property
    def gpus(self) -> dict[str, int]:
        """GPUs by SKU id."""
        counts: dict[str, int] = {}
        for planned in self.deployments:
            for pool in planned.deployment.pools:
                counts[pool.config.sku.id] = counts.get(pool.config.sku.id, 0) + pool.gpus
        return counts

    def latency(self, metric: Metric, *, simulated: bool = False) -> LatencyDistribution:
        """Distribution of a metric over all deployments, weighted by their traffic."""
        return latency_over(self.deployments, metric, simulated=simulated)


def latency_over(deployments: Sequence[PlannedDeployment], metric: Metric, *, simulated: bool) -> LatencyDistribution:
    """Distribution of a metric over deployments, weighted by their traffic."""
    performances = [planned.simulated if simulated else planned.predicted for planned in deployments]
    return LatencyDistribution.mixture([(each.distribution(metric), each.rate_per_s) for each in performances])
