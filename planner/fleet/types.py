"""The planner's request and answer. Types only; `planner.fleet.planning.plan` fills them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

import numpy as np
from pydantic import Field, model_validator

from hardware_db import ANYWHERE, GpuSku, OwnHardware, Price
from planner.core import FloatArray, Frozen, InputError, Metric, rough_share, share_with_error
from planner.fleet.corrections import Corrections, StepDoubt
from planner.fleet.packing import PackedPool, server_count, servers_bought
from planner.llm import LlmSpec, Precision, require_context
from planner.optimizer import Allocation, Objective, SolveStatus
from planner.search import DeploymentOption, Dominated, PoolOption, Rejection, SearchSpace
from planner.serving import Deployment, MeasuredSteps, Performance, Pool
from planner.supply import OWN_PRICE_SOURCE, OWNED, FleetLimits, PricePolicy, Site
from planner.traffic import (
    AreaDemand,
    Cascade,
    DemandProfile,
    Forecast,
    LengthSplit,
    OfflineWork,
    Service,
    require_encoder,
)
from planner.workload import LatencyDistribution, LatencyTarget, RecordedArrivals, Slo, Workload

AGREEMENT = 0.15
"""Largest relative difference of mean TTFT or TPOT between theory and simulation that is not flagged. A choice."""

Progress = Callable[[str], None]
"""Called with what is being done."""


class PlanRequest(Frozen):
    """Everything a plan depends on, besides the hardware database."""

    name: str = "unnamed"
    llm: LlmSpec
    precision: Precision
    max_request_tokens: int | None = Field(
        default=None, ge=1, description="input and output of one request that engines are told to take [tokens]"
    )
    published: tuple[Precision, ...] = Field(
        default=(), description="narrower formats of checkpoints that may be used besides, on GPUs that run them well"
    )
    workload: Workload
    slo: Slo
    search: SearchSpace
    prices: PricePolicy = PricePolicy()
    limits: FleetLimits = FleetLimits()
    objective: Objective = Objective.MIN_COST
    seed: int = Field(default=0, ge=0)
    simulated_requests: int = Field(default=10_000, ge=100, le=1_000_000)
    services: tuple[Service, ...] = Field(default=(), description="other models served by the same fleet")
    split: LengthSplit | None = Field(default=None, description="parts of the traffic that may go to different pools")
    by_class: bool = Field(default=False, description="every request class may go to pools of its own")
    profile: DemandProfile | None = Field(default=None, description="how the demand moves over the day or week")
    cascade: Cascade | None = Field(default=None, description="a small model that answers some of the requests")
    offline: tuple[OfflineWork, ...] = Field(default=(), description="work for this model that may wait")
    growth: float = Field(default=1.0, gt=0, le=1000.0, description="factor on every rate")
    users: float | None = Field(default=None, gt=0, description="of the service before growth, who share its cost")
    populations: Mapping[str, int] = Field(
        default_factory=dict, description="by service, users at the same time whose rate a workload has"
    )
    forecast: Forecast | None = Field(default=None, description="how the demand will grow; the plan is for its start")
    confidence: float = Field(
        default=0.9,
        ge=0.5,
        le=0.999,
        description="probability with which every target holds, uncertain as step times are; 0.5: as estimated",
    )
    measured_steps: Mapping[str, MeasuredSteps] = Field(
        default_factory=dict, description="by SKU, or sku/model, what a running fleet taught of its step times"
    )
    own_hardware: OwnHardware = Field(default=OwnHardware(), description="SKUs and calibrations of the user's own")
    areas: Mapping[str, AreaDemand] = Field(
        default_factory=dict,
        description="where the users of the workload are; `plan_regions` plans where to serve them",
    )

    @model_validator(mode="after")
    def _requests_fit_the_model(self) -> Self:
        require_context(self.llm, self.workload.lengths.max_total, self.max_request_tokens)
        for work in self.offline:
            require_context(self.llm, work.lengths.max_total, self.max_request_tokens, f"offline.{work.name}.lengths")
        for service in self.all_services:
            require_encoder(service.llm, service.workload.lengths)
        names = [service.name for service in self.all_services]
        if len(set(names)) < len(names):
            raise InputError("services.name", names, "two services have one name", "rename one")
        return self

    @property
    def main(self) -> Service:
        """The model of the request as a service."""
        return Service(
            name=self.llm.id,
            llm=self.llm,
            precision=self.precision,
            workload=self.workload,
            slo=self.slo,
            max_request_tokens=self.max_request_tokens,
            published=self.published,
        )

    @property
    def all_services(self) -> tuple[Service, ...]:
        """Every model of the fleet."""
        return (self.main, *self.services)

    @property
    def step_doubt(self) -> StepDoubt:
        """How uncertain step times are, and how sure the fleet shall be."""
        return StepDoubt(confidence=self.confidence, measured=self.measured_steps)

    def waits(self, slice_name: str) -> bool:
        """True if the requests of a slice have no targets: only their mean rate has to be served."""
        names = {f"{self.llm.id}: {work.name}" for work in self.offline}
        names |= {service.name for service in self.all_services if not service.slo.targets}
        return slice_name in names or slice_name.split(": ", maxsplit=1)[0] in names

    @property
    def has_one_model(self) -> bool:
        """True if one model serves everything."""
        return not self.services and self.cascade is None


@dataclass(frozen=True)
class CostBreakdown:
    """Cost of a fleet and value for money.

    Input and output tokens share the cost of a mixed pool by what they take from its largest stable rate; a prefill
    pool is all input, a decode pool all output.

    Attributes:
        usd_per_hour: of the fleet, used or not; mean over the horizon.
        usd_per_month: the same for 730 hours.
        usd_per_million_input_tokens: their share of the cost, over them.
        usd_per_million_output_tokens: the same of output.
        usd_per_million_tokens: cost over all tokens, of either kind.
        usd_per_thousand_requests: cost over requests served.
        goodput_per_s: requests that meet every target [1/s].
        requests_per_usd: these over cost.
        usd_per_user_month: cost of a month over users; None where nobody said how many there are.
        tokens_per_usd: input and output tokens of requests that meet every target, over cost.
        goodput_by_service_per_s: by service, its requests that meet every target [1/s].
    """

    usd_per_hour: float
    usd_per_month: float
    usd_per_million_input_tokens: float
    usd_per_million_output_tokens: float
    usd_per_million_tokens: float
    usd_per_thousand_requests: float
    goodput_per_s: float
    requests_per_usd: float
    usd_per_user_month: float | None = None
    tokens_per_usd: float = 0.0
    goodput_by_service_per_s: Mapping[str, float] = field(default_factory=dict)


SWITCHING = "switching"
"""In place of a purchase option: what it costs that GPUs are new to the fleet."""
KV_TIERS = "KV tiers"
"""In place of a purchase option: host memory, drives and stores behind GPUs, where these have a price of their own."""


@dataclass(frozen=True)
class BoughtGpus:
    """GPUs of one SKU under one purchase option.

    Attributes:
        sku: id.
        purchase: the option, e.g. ``on_demand``, ``reserved_1yr``, ``owned``.
        price: what applies; None for GPUs of one's own.
        committed: paid whether used or not.
        gpus: held in each period.
        usd_per_gpu_hour: price, with headroom not counted.
        usd_per_hour: mean cost over the horizon.
    """

    sku: str
    purchase: str
    price: Price | None
    committed: bool
    gpus: tuple[float, ...]
    usd_per_gpu_hour: float
    usd_per_hour: float


@dataclass(frozen=True)
class ScheduledPeriod:
    """The fleet in one period of the demand profile.

    Attributes:
        name: e.g. ``hour 14``.
        hours: its length.
        demand_per_s: arrivals of all online slices [1/s].
        served_per_s: all requests served, deferrable ones included [1/s].
        replicas: on, by `pool_name`.
        gpus: bought, by SKU.
        usd_per_hour: cost in this period, committed purchases included, starts not.
    """

    name: str
    hours: float
    demand_per_s: float
    served_per_s: float
    replicas: Mapping[str, int]
    gpus: Mapping[str, float]
    usd_per_hour: float


@dataclass(frozen=True)
class SimulatedRun:
    """A simulation run of a deployment.

    Attributes:
        deployment: all of its replicas or a part of them.
        workload: what that part gets.
        requests: up to the last one measured; None: all of a recording.
        warmup_fraction: share of them that is not measured.
        fleet_share: of the traffic, and of the replicas.
        left_out: what could not be simulated within the time it may take, in words; empty: nothing.
        part_of: measured requests of the run that this is the busiest part of, to see whether it misses for certain;
            None: it is whole.
    """

    deployment: Deployment
    workload: Workload
    requests: int | None
    warmup_fraction: float
    fleet_share: float = 1.0
    left_out: str = ""
    part_of: int | None = None

    @property
    def recording(self) -> RecordedArrivals | None:
        """The recording that is replayed, if any."""
        arrivals = self.workload.arrivals
        return arrivals if isinstance(arrivals, RecordedArrivals) else None

    @property
    def sent_s(self) -> FloatArray:
        """When the measured requests of a recording come, after its first [s]; shape (0,) of a process."""
        if self.recording is None:
            return np.zeros(0)
        times_s = self.recording.offsets_s
        return times_s[int(self.warmup_fraction * times_s.size) :]


@dataclass(frozen=True)
class PlannedDeployment:
    """One deployment of the plan with the share of the traffic it takes, in the period of the largest demand; of work
    that waits for another one, in the period in which most of its replicas are on.

    Attributes:
        service: name of the model's service.
        option: what was chosen.
        deployment: with its pool sizes.
        surviving: the same without the replicas that may fail; what `predicted` and `simulated` are about.
        workload: what is routed to it.
        slo: the targets of its requests; of several the first (each is checked).
        sustained_per_s: rate it sustains under the Slo [1/s], as far as it was searched for; >= what is routed.
        predicted: from theory.
        simulated: from request-level simulation; the prediction again where the plan was not simulated.
        usd_per_hour: of all its pools.
        pool_usd_per_hour: of each pool, its share of what its SKU's GPUs cost.
        nodes: servers of each pool by itself; `Plan.servers` counts those that pools share once.
        slices: rate of each slice routed to it [1/s].
        run: what `simulated` is about; None where the plan was not simulated.
    """

    service: str
    option: DeploymentOption
    deployment: Deployment
    surviving: Deployment
    workload: Workload
    slo: Slo
    sustained_per_s: float
    predicted: Performance
    simulated: Performance
    usd_per_hour: float
    pool_usd_per_hour: tuple[float, ...]
    nodes: tuple[int, ...]
    slices: Mapping[str, float]
    run: SimulatedRun | None = None


def pool_name(option: PoolOption) -> str:
    """Role and configuration, which tell the pools of a service apart, whatever their size."""
    return f"{option.role} {option.name}"


@dataclass(frozen=True)
class TargetCheck:
    """A target against prediction and simulation, over all traffic it applies to.

    Attributes:
        target: what was asked.
        predicted_s: latency at its percentile, by theory [s].
        simulated_s: the same in simulation [s].
        simulated_attainment: share of the requests within the threshold.
        met: whether it holds.
        of: the traffic it applies to, if not all.
        simulated_error: half-width of the 95 % interval of that share; 0 of a recording, and where nothing was
            simulated.
    """

    target: LatencyTarget
    predicted_s: float
    simulated_s: float
    simulated_attainment: float
    met: bool
    of: str = ""
    simulated_error: float = 0.0

    @property
    def share_words(self) -> str:
        """The share within the threshold, in as many digits as are known."""
        return share_with_error(self.simulated_attainment, self.simulated_error, self.target.percentile)


@dataclass(frozen=True)
class ReplayedTarget:
    """A target in the replay of a recording by one deployment.

    Attributes:
        deployment: the replicas that were simulated.
        recording: where it comes from and what was done to it.
        requests: measured; the first few load the system.
        duration_s: from the first of them to the last.
        fleet_share: of the deployment that was simulated, with that share of its requests.
        left_out: what of the recording was not replayed; empty: nothing.
        target: what was asked.
        attainment: share of the requests within the threshold.
        worst_minute_attainment: the same of the requests sent in the minute in which it is smallest.
        worst_minute_s: when that minute begins, after the first request [s].
        of: the traffic under the target, if not all.
    """

    deployment: str
    recording: str
    requests: int
    duration_s: float
    fleet_share: float
    left_out: str
    target: LatencyTarget
    attainment: float
    worst_minute_attainment: float
    worst_minute_s: float
    of: str = ""


class LossOf(StrEnum):
    """A failure: of a replica, or of a server with all replicas of a pool on it."""

    REPLICA = "replica"
    SERVER = "server"


@dataclass(frozen=True)
class Loss:
    """The worst loss of its kind, by theory as far as simulation did not show that it sees too little.

    Attributes:
        of: a replica, or all replicas of a pool on one server.
        failed: e.g. ``1 of 8 prefill replicas``.
        holds: whether every target holds with what is left, with step times as slow as the fleet was planned for.
        holds_as_estimated: the same with step times as estimated.
        target: the one that is nearest to its threshold or furthest beyond it; None where none applies or nothing is
            left.
        predicted_s: its latency then, as estimated [s]; infinite where nothing is left.
        slow_s: the same with step times as slow as the fleet was planned for [s].
        scope: the traffic under the target, if not all; where nothing is left, that.
    """

    of: LossOf
    failed: str
    holds: bool
    holds_as_estimated: bool
    target: LatencyTarget | None
    predicted_s: float
    slow_s: float
    scope: str = ""

    @property
    def setting(self) -> str:
        """The setting that makes a plan survive it."""
        return "limits.spare_replicas=1" if self.of is LossOf.REPLICA else "limits.survives_node_loss=true"


@dataclass(frozen=True)
class PlanConfidence:
    """With which probability a fleet meets every target, uncertain as step times are (`planner.fleet.confidence`).

    Attributes:
        asked: what the plan was made for.
        holds: the probability.
        error: its standard error, from the number of draws.
        uncalibrated: SKUs whose step times are bounds, of unknown error: they count as exact here.
        starts: the probability that all replicas start, uncertain as memory is; a factor of `holds`.
        sources: the measured runs that say what step times may be off by, in words.
    """

    asked: float
    holds: float
    error: float
    uncalibrated: tuple[str, ...] = ()
    starts: float = 1.0
    sources: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The probability, in as many digits as the draws say."""
        return rough_share(self.holds, self.error, self.asked)

    @property
    def falls_short(self) -> bool:
        """True if it holds with less than was asked, by more than the draws leave open."""
        return not self.uncalibrated and self.holds < self.asked - self.error

    @property
    def least(self) -> float:
        """Kept away from 0 and 1, where no quantile is."""
        return min(max(self.holds, 0.01), 0.99)


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
        """True if the two differ by at most `AGREEMENT`."""
        return abs(self.relative_difference) <= AGREEMENT


@dataclass(frozen=True)
class Alternative:
    """The best fleet in narrower formats, with shared contexts, of one SKU, of one mode, or of another engine on the
    SKUs of the plan; from theory, not simulated.

    Attributes:
        restriction: what tells it from the plan: narrower formats, shared contexts, or the SKU id, mode or engine it is
            restricted to.
        kind: "format", "context", "sku", "mode" or "engine".
        summary: pools in words, or why there is none.
        usd_per_hour: cost, or None when there is none.
        rate_per_s: what it serves.
        is_chosen: whether it costs and serves what the plan does.
        is_bound: `usd_per_hour` is a lower bound from optimistic rates; no closer look, as that is more already.
        why_not: of one that costs no more than the plan, why it is not the plan; empty where it costs more.
    """

    restriction: str
    kind: str
    summary: str
    usd_per_hour: float | None
    rate_per_s: float
    is_chosen: bool
    is_bound: bool = False
    why_not: str = ""


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
        considered: configurations examined.
        elapsed_s: wall time of planning.
        bought: GPUs by purchase option.
        schedule: the fleet in each period of a demand profile; empty without one.
        flat_usd_per_hour: cost of the best fleet that never changes size; None without a profile.
        passed_over: the best fleet by theory, where one that is measured or simpler was taken, in words; else empty.
        enough: GPUs by SKU that would do, where idle ones that are paid for serve too; else empty.
        dominated: configurations that another stands in for.
        escalated: of a cascade, the share of requests the large model answers; None without one.
        simulated: whether the deployments were simulated.
        replays: every target in every replay of a recording.
        losses: whether it survives the loss of a replica and of a server.
        confidence: with which probability it holds; None where it was not simulated.
        slow_targets: `targets` with step times as slow as the fleet was planned for.
        slow_deviations: standard deviations that those are slower than estimated.
        corrections: what simulation taught about rates of theory; None where there was none.
        scenario: what the request was written as, if it was; with it `planner explain` can plan again.
        scenario_folder: where its relative paths start, as seen from the folder the plan is written to.
        given: whether its fleet was given, not searched for.
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
    bought: tuple[BoughtGpus, ...] = ()
    schedule: tuple[ScheduledPeriod, ...] = ()
    flat_usd_per_hour: float | None = None
    passed_over: str = ""
    enough: Mapping[str, int] = field(default_factory=dict)
    dominated: tuple[Dominated, ...] = ()
    escalated: float | None = None
    simulated: bool = True
    replays: tuple[ReplayedTarget, ...] = ()
    losses: tuple[Loss, ...] = ()
    confidence: PlanConfidence | None = None
    slow_targets: tuple[TargetCheck, ...] = ()
    slow_deviations: float = 0.0
    corrections: Corrections | None = None
    scenario: Mapping[str, Any] | None = None
    scenario_folder: str = ""
    given: bool = False

    @property
    def feasible(self) -> bool:
        """True if there is a fleet to run."""
        return bool(self.deployments)

    @property
    def listed_prices(self) -> tuple[Price, ...]:
        """Prices of somebody who sells, of what is bought; not those that the request gives itself."""
        prices = (bought.price for bought in self.bought if bought.price is not None)
        return tuple(price for price in prices if price.source_url != OWN_PRICE_SOURCE)

    @property
    def places(self) -> tuple[str, ...]:
        """Who sells the GPUs, by name, and where a region was chosen: ``Lambda``, ``GCP europe-west4``."""
        listed = sorted(self.listed_prices, key=lambda price: price.region not in ANYWHERE)
        regions = {price.provider: price.region for price in listed}
        return tuple(Site(provider=provider, region=region).name for provider, region in sorted(regions.items()))

    @property
    def own_gpus(self) -> dict[str, int]:
        """GPUs of one's own that serve, by SKU id, in the period that uses the most."""
        used = self.gpus
        held = {bought.sku: round(max(bought.gpus)) for bought in self.bought if bought.purchase == OWNED}
        return {sku: min(count, used[sku]) for sku, count in held.items() if sku in used}

    @property
    def rented_gpus(self) -> dict[str, int]:
        """GPUs at somebody's price by SKU id, those of the period that rents the most."""
        held: dict[str, FloatArray] = {}
        for bought in self.bought:
            if bought.price is not None:
                held[bought.sku] = held.get(bought.sku, 0.0) + np.array(bought.gpus)
        return {sku: round(float(gpus.max())) for sku, gpus in held.items()}

    @property
    def paid_usd_per_gpu_hour(self) -> dict[str, float]:
        """What an hour of a rented GPU in use costs by SKU id [USD], the mean over all that is bought of it."""
        paid: dict[str, list[tuple[float, float]]] = {}
        used = self.gpus
        for bought in self.bought:
            if bought.sku in used and bought.price is not None and bought.usd_per_hour > 0.0:
                held = bought.usd_per_hour / bought.usd_per_gpu_hour
                paid.setdefault(bought.sku, []).append((bought.usd_per_hour, held))
        return {sku: sum(usd for usd, _ in each) / sum(held for _, held in each) for sku, each in paid.items()}

    @property
    def gpus(self) -> dict[str, int]:
        """GPUs by SKU id."""
        counts: dict[str, int] = {}
        for pool in self.pools:
            counts[pool.config.sku.id] = counts.get(pool.config.sku.id, 0) + pool.gpus
        return counts

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Every pool of the fleet."""
        return tuple(pool for planned in self.deployments for pool in planned.deployment.pools)

    @property
    def for_service(self) -> tuple[str, ...]:
        """Words after each deployment that say which model it serves; empty where there is only one."""
        services = [planned.service for planned in self.deployments]
        return tuple(f" for {name}" if len(set(services)) > 1 else "" for name in services)

    @property
    def summary(self) -> str:
        """Pools in words, e.g. ``7 × B200 SXM (7 mixed TP1)``; empty without a fleet."""
        named = zip(self.deployments, self.for_service, strict=True)
        return " + ".join(f"{planned.deployment.summary}{words}" for planned, words in named)

    @property
    def deployment_names(self) -> tuple[str, ...]:
        """What tells each deployment from the others: its model, its number, or both; empty where there is only one."""
        services = [planned.service for planned in self.deployments]
        if len(set(services)) < 2:
            return tuple(str(number) for number in range(1, len(services) + 1)) if len(services) > 1 else ("",)
        several = {name for name in services if services.count(name) > 1}
        return tuple(
            f"{name} {services[: place + 1].count(name)}" if name in several else name
            for place, name in enumerate(services)
        )

    @property
    def servers(self) -> int:
        """Servers of the fleet as `packed_replicas` spreads replicas: one that several pools share counts once."""
        pools = self.pools
        bought = gpu_servers(self.bought, {pool.config.sku.id: pool.config.sku for pool in pools})
        return server_count([one for pool in pools for one in PackedPool.all_of(pool)], bought)

    def latency(self, metric: Metric, *, simulated: bool = False) -> LatencyDistribution:
        """Distribution of a metric over all deployments, weighted by their traffic."""
        return latency_over(self.deployments, metric, simulated=simulated)


def gpu_servers(bought: Sequence[BoughtGpus], skus: Mapping[str, GpuSku]) -> dict[str, tuple[int, ...]]:
    """GPUs of every server that is bought, by SKU; `skus` are those that count, by id."""
    held = ((one.sku, one.purchase, one.gpus) for one in bought if one.purchase not in (SWITCHING, KV_TIERS))
    return servers_bought(held, skus)


def latency_over(deployments: Sequence[PlannedDeployment], metric: Metric, *, simulated: bool) -> LatencyDistribution:
    """Distribution of a metric over deployments, weighted by their traffic."""
    performances = [planned.simulated if simulated else planned.predicted for planned in deployments]
    distributions = [(performance.distribution(metric), performance.rate_per_s) for performance in performances]
    return LatencyDistribution.mixture(distributions)
