"""What is written of a plan and of an evaluation: the records of the JSON documents, and how they are filled.

Units stand in the names. `planner.report.json_documents` turns records into JSON and into its schema, so a field is
named only here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hardware_db import Price
from planner.core import PLAN, Metric
from planner.engine import LoraAdapters, MemoryFootprint, Schedule, Speculation, memory_footprint
from planner.fleet import (
    Alternative,
    BoughtGpus,
    CostBreakdown,
    Plan,
    PlannedDeployment,
    PlanRequest,
    ScheduledPeriod,
    TargetCheck,
)
from planner.llm import LlmSpec, Precision, active_parameters, kv_bytes_per_token, parameters
from planner.optimizer import Allocation, Objective, SolveStatus
from planner.report.plan import headline, planner_version, token_distributions
from planner.roofline import Parallelism
from planner.search import Mode, Rejection, SearchSpace
from planner.serving import (
    ClassPerformance,
    Deployment,
    KvTransfer,
    Method,
    Performance,
    Pool,
    PoolPerformance,
    Role,
    Router,
)
from planner.supply import FleetLimits, PricePolicy
from planner.traffic import DemandProfile, LengthSplit, Service
from planner.workload import (
    ClosedLoop,
    LatencyDistribution,
    LatencyTarget,
    RecordedArrivals,
    RequestClass,
    SharedPrefixes,
    Slo,
    Workload,
)

SCHEMA_VERSION = PLAN.current
"""Of every document here; `planner.core.versions` says when it is raised, and reads plans of older versions."""
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}
"""Fields of a `LatencySummary` after the mean, in order."""


@dataclass(frozen=True)
class LatencySummary:
    """Mean and percentiles over requests [s]; null: unbounded."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    p99_9: float


@dataclass(frozen=True)
class TokenSummary:
    """Mean and percentiles over requests [tokens]."""

    mean: float
    p50: float
    p99: float
    max: float


@dataclass(frozen=True)
class ClassSummary:
    """One kind of request: its share of the arrivals, its lengths, and how it is treated."""

    name: str
    share: float
    source: str
    input_tokens: TokenSummary
    output_tokens: TokenSummary
    priority: int
    weight: float
    slo: tuple[LatencyTarget, ...]
    prefixes: SharedPrefixes | None


@dataclass(frozen=True)
class WorkloadSummary:
    """Mean arrivals [1/s], SCV of the gaps (null in a closed loop), lengths of all requests and of each class.

    `concurrency` is the users of a closed loop, `recorded_requests` those of a recording; else null.
    """

    rate_per_s: float
    scv: float
    batch_mean: float
    concurrency: int | None
    recorded_requests: int | None
    source: str
    input_tokens: TokenSummary
    output_tokens: TokenSummary
    classes: tuple[ClassSummary, ...]


@dataclass(frozen=True)
class LlmSummary:
    """What is served; KV bytes per token at the precision of the request."""

    id: str
    name: str
    source: str
    parameters: int
    active_parameters: int
    layers: int
    max_context_tokens: int
    kv_bytes_per_token: float


@dataclass(frozen=True)
class ServiceSummary:
    """Another model in the same fleet (the small one of a cascade included)."""

    name: str
    llm: LlmSummary
    precision: Precision
    workload: WorkloadSummary
    slo: tuple[LatencyTarget, ...]


@dataclass(frozen=True)
class RequestSummary:
    """What was asked."""

    name: str
    llm: LlmSummary
    precision: Precision
    workload: WorkloadSummary
    slo: tuple[LatencyTarget, ...]
    search: SearchSpace
    prices: PricePolicy
    limits: FleetLimits
    objective: Objective
    seed: int
    simulated_requests: int
    services: tuple[ServiceSummary, ...]
    split: LengthSplit | None
    profile: DemandProfile | None
    growth: float
    pessimism: float | None


@dataclass(frozen=True)
class PoolSummary:
    """One pool with every setting of its replicas and their engine. Memory is per GPU, KV tokens per replica.

    `tp` is the tensor-parallel degree of `parallelism`, `memory_fraction` and `schedule` are those in force, given or
    the engine's own. `expert_skew` is null where none was given. `calibration` names the fit in use, null: efficiency
    1. Sustained rate, cost and nodes are null outside a plan.
    """

    role: Role
    sku: str
    tp: int
    parallelism: Parallelism
    replicas: int
    gpus: int
    max_running_requests: int
    max_batched_tokens: int
    precision: Precision
    engine: str
    engine_version: str
    kv_block_tokens: int
    memory_fraction: float
    calibration: str | None
    memory: MemoryFootprint
    router: Router
    schedule: Schedule
    speculation: Speculation | None
    lora: LoraAdapters | None
    expert_skew: float | None
    mask_s: float
    nodes: int | None = None
    usd_per_hour: float | None = None
    sustained_rate_per_replica_s: float | None = None


@dataclass(frozen=True)
class IntervalSummary:
    """Ends of an interval [s]."""

    low: float
    high: float


@dataclass(frozen=True)
class ClassPerformanceSummary:
    """Latencies of one class of requests; `attainment` is the share within its own targets, null without any."""

    name: str
    rate_per_s: float
    ttft_s: LatencySummary
    tpot_s: LatencySummary
    e2e_s: LatencySummary
    attainment: float | None


@dataclass(frozen=True)
class PerformanceSummary:
    """How a deployment performs, predicted (analytic) or simulated. Goodput is null where no targets are given.

    `itl_s` is over all gaps between tokens. `confidence_s` holds 95 % intervals of simulated percentiles by metric and
    percentile, as far as the run is long enough for them; `output_tokens_per_s` is 0 when predicted.
    """

    method: Method
    rate_per_s: float
    stable: bool
    goodput_per_s: float | None
    ttft_s: LatencySummary
    tpot_s: LatencySummary
    e2e_s: LatencySummary
    itl_s: LatencySummary
    confidence_s: Mapping[str, Mapping[str, IntervalSummary]]
    kv_transfer_s: float
    requests: int
    output_tokens_per_s: float
    pools: tuple[PoolPerformance, ...]
    classes: tuple[ClassPerformanceSummary, ...]
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class DeploymentSummary:
    """Pools that serve together and the traffic they take; `kv_link_bytes_per_s` is null when nothing is sent."""

    mode: Mode
    gpus: int
    kv_link_bytes_per_s: float
    transfer: KvTransfer
    pools: tuple[PoolSummary, ...]


@dataclass(frozen=True)
class PlannedSummary:
    """One deployment of a plan, its share of the traffic, its cost, and both judgements of it."""

    name: str
    service: str
    rate_per_s: float
    slices: Mapping[str, float]
    usd_per_hour: float
    deployment: DeploymentSummary
    predicted: PerformanceSummary
    simulated: PerformanceSummary


@dataclass(frozen=True)
class MetricSummary:
    """Latencies over all deployments [s]; ITL over all gaps between tokens."""

    ttft_s: LatencySummary
    tpot_s: LatencySummary
    e2e_s: LatencySummary
    itl_s: LatencySummary


@dataclass(frozen=True)
class AgreementSummary:
    """Theory against simulation on a mean; relative difference is (predicted - simulated) / simulated."""

    metric: Metric
    predicted_mean_s: float
    simulated_mean_s: float
    relative_difference: float
    holds: bool


@dataclass(frozen=True)
class PlanDocument:
    """A plan. Infeasible: no deployments, cost and latencies null, and `diagnosis` says why and what would help."""

    schema_version: int
    planner_version: str
    headline: str
    status: SolveStatus
    feasible: bool
    request: RequestSummary
    deployments: tuple[PlannedSummary, ...]
    gpus: Mapping[str, int]
    cost: CostBreakdown | None
    predicted: MetricSummary | None
    simulated: MetricSummary | None
    targets: tuple[TargetCheck, ...]
    agreement: tuple[AgreementSummary, ...]
    alternatives: tuple[Alternative, ...]
    rejections: tuple[Rejection, ...]
    prices: tuple[Price, ...]
    bought: tuple[BoughtGpus, ...]
    schedule: tuple[ScheduledPeriod, ...]
    flat_usd_per_hour: float | None
    escalated: float | None
    dominated: int
    allocation: Allocation | None
    binding: tuple[str, ...]
    diagnosis: tuple[str, ...]
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    considered: int
    elapsed_s: float
    scenario: Mapping[str, Any] | None
    scenario_folder: str


@dataclass(frozen=True)
class EvaluationDocument:
    """A given deployment under a workload, and how it performs."""

    schema_version: int
    planner_version: str
    llm: LlmSummary
    workload: WorkloadSummary
    deployment: DeploymentSummary
    performance: PerformanceSummary


# --- filling the records --------------------------------------------------------------------------------------------


def plan_document(plan: Plan) -> PlanDocument:
    """Everything a plan says."""
    prices = dict.fromkeys(one.price for one in plan.bought if one.price is not None)
    return PlanDocument(
        schema_version=SCHEMA_VERSION,
        planner_version=planner_version(),
        headline=headline(plan),
        status=plan.status,
        feasible=plan.feasible,
        request=_request(plan.request),
        deployments=tuple(_planned(planned, planned.slo) for planned in plan.deployments),
        gpus=plan.gpus,
        cost=plan.cost,
        predicted=_metrics(plan, simulated=False) if plan.feasible else None,
        simulated=_metrics(plan, simulated=True) if plan.feasible else None,
        targets=plan.targets,
        agreement=tuple(
            AgreementSummary(a.metric, a.predicted_mean_s, a.simulated_mean_s, a.relative_difference, a.holds)
            for a in plan.agreement
        ),
        alternatives=plan.alternatives,
        rejections=plan.rejections,
        prices=tuple(prices),
        bought=plan.bought,
        schedule=plan.schedule,
        flat_usd_per_hour=plan.flat_usd_per_hour,
        escalated=plan.escalated,
        dominated=len(plan.dominated),
        allocation=plan.allocation,
        binding=tuple(row.name for row in plan.allocation.binding) if plan.allocation else (),
        diagnosis=plan.diagnosis,
        assumptions=plan.assumptions,
        warnings=plan.warnings,
        considered=plan.considered,
        elapsed_s=plan.elapsed_s,
        scenario=plan.scenario,
        scenario_folder=plan.scenario_folder,
    )


def evaluation_document(
    deployment: Deployment, workload: Workload, performance: Performance, slo: Slo | None = None
) -> EvaluationDocument:
    """A given deployment, its workload and its performance; goodput only with an Slo."""
    config = deployment.pools[0].config
    return EvaluationDocument(
        schema_version=SCHEMA_VERSION,
        planner_version=planner_version(),
        llm=_llm(config.llm, config.precision),
        workload=_workload(workload),
        deployment=_deployment(deployment, tuple(_pool(pool) for pool in deployment.pools)),
        performance=performance_summary(performance, slo),
    )


def _request(request: PlanRequest) -> RequestSummary:
    return RequestSummary(
        name=request.name,
        llm=_llm(request.llm, request.precision),
        precision=request.precision,
        workload=_workload(request.workload),
        slo=request.slo.targets,
        search=request.search,
        prices=request.prices,
        limits=request.limits,
        objective=request.objective,
        seed=request.seed,
        simulated_requests=request.simulated_requests,
        services=tuple(map(_service, ((request.cascade.small,) if request.cascade else ()) + request.services)),
        split=request.split,
        profile=request.profile,
        growth=request.growth,
        pessimism=request.pessimism,
    )


def _service(service: Service) -> ServiceSummary:
    return ServiceSummary(
        name=service.name,
        llm=_llm(service.llm, service.precision),
        precision=service.precision,
        workload=_workload(service.workload),
        slo=service.slo.targets,
    )


def _llm(llm: LlmSpec, precision: Precision) -> LlmSummary:
    return LlmSummary(
        id=llm.id,
        name=llm.name,
        source=llm.source,
        parameters=parameters(llm),
        active_parameters=active_parameters(llm),
        layers=llm.num_layers,
        max_context_tokens=llm.max_context_tokens,
        kv_bytes_per_token=kv_bytes_per_token(llm, precision.kv_cache),
    )


def _workload(workload: Workload) -> WorkloadSummary:
    arrivals = workload.arrivals
    distribution = None if isinstance(arrivals, ClosedLoop) else workload.open_arrivals
    inputs, outputs = map(_tokens, token_distributions(workload.lengths))
    return WorkloadSummary(
        rate_per_s=math.nan if distribution is None else distribution.rate_per_s,
        scv=math.nan if distribution is None else distribution.scv,
        batch_mean=1.0 if distribution is None else distribution.batch_mean,
        concurrency=arrivals.concurrency if isinstance(arrivals, ClosedLoop) else None,
        recorded_requests=len(arrivals.times_s) if isinstance(arrivals, RecordedArrivals) else None,
        source=arrivals.source,
        input_tokens=inputs,
        output_tokens=outputs,
        classes=tuple(map(_kind, workload.classes)),
    )


def _kind(kind: RequestClass) -> ClassSummary:
    inputs, outputs = map(_tokens, token_distributions(kind.lengths))
    return ClassSummary(
        name=kind.name,
        share=kind.share,
        source=kind.lengths.source,
        input_tokens=inputs,
        output_tokens=outputs,
        priority=kind.priority,
        weight=kind.weight,
        slo=kind.slo.targets if kind.slo else (),
        prefixes=kind.prefixes,
    )


def _tokens(distribution: LatencyDistribution) -> TokenSummary:
    return TokenSummary(
        distribution.mean_s, distribution.quantile_s(0.5), distribution.quantile_s(0.99), distribution.quantile_s(1.0)
    )


def _planned(planned: PlannedDeployment, slo: Slo) -> PlannedSummary:
    pools = tuple(
        dataclasses.replace(
            _pool(pool),
            nodes=nodes,
            usd_per_hour=usd,
            sustained_rate_per_replica_s=planned.sustained_per_s / pool.replicas,
        )
        for pool, usd, nodes in zip(planned.deployment.pools, planned.pool_usd_per_hour, planned.nodes, strict=True)
    )
    return PlannedSummary(
        name=planned.option.name,
        service=planned.service,
        rate_per_s=planned.workload.arrivals.rate_per_s,
        slices=planned.slices,
        usd_per_hour=planned.usd_per_hour,
        deployment=_deployment(planned.deployment, pools),
        predicted=performance_summary(planned.predicted, slo),
        simulated=performance_summary(planned.simulated, slo),
    )


def _deployment(deployment: Deployment, pools: tuple[PoolSummary, ...]) -> DeploymentSummary:
    mode = Mode.DISAGGREGATED if deployment.is_disaggregated else Mode.MIXED
    return DeploymentSummary(mode, deployment.gpus, deployment.kv_link_bytes_per_s, deployment.transfer, pools)


def _pool(pool: Pool) -> PoolSummary:
    config = pool.config
    return PoolSummary(
        role=pool.role,
        sku=config.sku.id,
        tp=config.parallelism.tp,
        parallelism=config.parallelism,
        replicas=pool.replicas,
        gpus=pool.gpus,
        max_running_requests=config.max_running_requests,
        max_batched_tokens=config.max_batched_tokens,
        precision=config.precision,
        engine=config.engine.id,
        engine_version=config.engine.version,
        kv_block_tokens=config.engine.kv_block_tokens,
        memory_fraction=config.memory_fraction or config.engine.memory_fraction,
        calibration=config.calibration.stack if config.calibration else None,
        memory=memory_footprint(config),
        router=pool.router,
        schedule=config.schedule,
        speculation=config.speculation,
        lora=config.lora,
        expert_skew=config.expert_skew,
        mask_s=config.mask_s,
    )


def performance_summary(performance: Performance, slo: Slo | None = None) -> PerformanceSummary:
    """One performance; goodput only with an Slo."""
    return PerformanceSummary(
        method=performance.method,
        rate_per_s=performance.rate_per_s,
        stable=performance.stable,
        goodput_per_s=None if slo is None else performance.goodput_per_s(slo),
        ttft_s=_latency(performance.ttft),
        tpot_s=_latency(performance.tpot),
        e2e_s=_latency(performance.e2e),
        itl_s=_latency(performance.itl),
        confidence_s=_confidence(performance),
        kv_transfer_s=performance.kv_transfer_s,
        requests=performance.requests,
        output_tokens_per_s=performance.output_tokens_per_s,
        pools=performance.pools,
        classes=tuple(_class(one) for one in performance.classes),
        assumptions=performance.assumptions,
    )


def _confidence(performance: Performance) -> dict[str, dict[str, IntervalSummary]]:
    found: dict[str, dict[str, IntervalSummary]] = {}
    for metric in performance.samples_s:
        for name, percentile in PERCENTILES.items():
            interval = performance.confidence_s(metric, percentile)
            if interval is not None:
                found.setdefault(f"{metric}_s", {})[name] = IntervalSummary(*interval)
    return found


def _class(one: ClassPerformance) -> ClassPerformanceSummary:
    ttft_s, tpot_s, e2e_s = (_latency(distribution) for distribution in (one.ttft, one.tpot, one.e2e))
    return ClassPerformanceSummary(one.name, one.rate_per_s, ttft_s, tpot_s, e2e_s, one.attainment)


def _metrics(plan: Plan, *, simulated: bool) -> MetricSummary:
    return MetricSummary(**{f"{metric}_s": _latency(plan.latency(metric, simulated=simulated)) for metric in Metric})


def _latency(distribution: LatencyDistribution) -> LatencySummary:
    return LatencySummary(distribution.mean_s, *(distribution.quantile_s(p) for p in PERCENTILES.values()))
