"""Services, their demand over time, and its split between pools: types only.

A plan serves one or several models (*services*). The traffic of each is cut into *slices* that the program routes: by
request class, by input and output length, by model of a cascade. A *profile* says how all of it moves over the day.
`planner.fleet.slices` makes slices of services, `planner.traffic.profiles` makes profiles of recordings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from pydantic import Field, model_validator

from planner.core import Frozen, InputError
from planner.llm import LlmSpec, Precision, narrower_precisions, require_context
from planner.workload import Slo, TokenLengths, Workload


class DemandProfile(Frozen):
    """Demand over time: factors on every rate, one for each of equal periods that repeat.

    Attributes:
        factors: by period; 1 is the rate the workload states.
        period_hours: length of one period [h].
        cold_start_s: from the order for a GPU until its replica serves [s]; paid for at every start.
        autoscale: pools may change size from period to period; False: one fleet, sized for the largest period.
        source: where the factors come from.
    """

    factors: tuple[float, ...] = Field(min_length=1, max_length=24 * 7 * 12)
    period_hours: float = Field(default=1.0, gt=0)
    cold_start_s: float = Field(default=0.0, ge=0)
    autoscale: bool = True
    source: str = "given"

    @model_validator(mode="after")
    def _some_demand(self) -> Self:
        if min(self.factors) < 0.0 or max(self.factors) <= 0.0:
            raise InputError("profile.factors", min(self.factors), "must be >= 0, and one of them > 0")
        return self


class LengthSplit(Frozen):
    """Cuts of the traffic by length: a request goes to the slice between the next lower and the next higher cut.

    ``input_tokens=(2000,)`` makes two slices: up to 2000 input tokens, and above.
    """

    input_tokens: tuple[int, ...] = ()
    output_tokens: tuple[int, ...] = ()


class Service(Frozen):
    """One model with its traffic and its targets."""

    name: str = Field(min_length=1)
    llm: LlmSpec
    precision: Precision
    workload: Workload
    slo: Slo
    max_request_tokens: int | None = Field(
        default=None, ge=1, description="input and output of one request that engines are told to take [tokens]"
    )

    published: tuple[Precision, ...] = Field(
        default=(), description="narrower formats of checkpoints that may be used besides, on GPUs that run them well"
    )

    @model_validator(mode="after")
    def _requests_fit_the_model(self) -> Self:
        require_context(self.llm, self.workload.lengths.max_total, self.max_request_tokens)
        return self

    @property
    def with_narrower_formats(self) -> Service | None:
        """The service where narrower formats may be used besides; None where they may already, or there are none."""
        narrower = narrower_precisions(self.llm)
        if self.published or self.precision != self.llm.native_precision or not narrower:
            return None
        return self.model_copy(update={"published": narrower})


class CascadePoint(Frozen):
    """One setting of a cascade: the share of requests the large model answers, and the quality reached with it."""

    escalated: float = Field(ge=0, le=1)
    quality: float


class Cascade(Frozen):
    """A small model answers first and the large one answers what it passes on (FrugalGPT, Chen et al. 2023).

    Attributes:
        small: the service that sees every request.
        large: the service whose requests these are; its workload's rate is that of all requests.
        points: settings that were measured, e.g. of a learned router; the cheapest with enough quality is planned.
        least_quality: in the unit of the points.
        routed: a router decides beforehand (RouteLLM, Ong et al. 2024), so that the small model does not see what the
            large one answers; False: the small one answers everything first.
    """

    small: Service
    points: tuple[CascadePoint, ...] = Field(min_length=1)
    least_quality: float
    routed: bool = False


class OfflineWork(Frozen):
    """Work without latency targets that fills what is spare: only its total over the horizon counts."""

    name: str = Field(min_length=1)
    lengths: TokenLengths
    requests_per_hour: float = Field(gt=0, description="mean over the horizon")


@dataclass(frozen=True)
class DemandSlice:
    """Traffic that is routed as one: a share of the requests of a service.

    Attributes:
        name: unique in the plan, e.g. ``chat: up to 2000 in``.
        service: whose traffic it is.
        workload: of this slice alone, at the largest rate it reaches in any period.
        slo: its latency targets; None for offline work.
        demand_per_s: by period [1/s].
        deferrable: only its total counts.
    """

    name: str
    service: Service
    workload: Workload
    slo: Slo | None
    demand_per_s: tuple[float, ...]
    deferrable: bool = False
