"""Plans and evaluations as JSON documents: the records they are written as, and how those are filled.

A plan is written with its own fields, whatever they are. What would take megabytes or stands elsewhere is written as a
summary: distributions as mean and percentiles, SKUs, engines and calibrations by name, workloads by their lengths.
`planner.scenario.load_plan` reads a plan back by the same records. Units stand in the names.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from hardware_db import Price
from planner.core import PLAN, Metric, json_schema, plain
from planner.engine import (
    LoraAdapters,
    MemoryFootprint,
    RequestLimit,
    Schedule,
    Speculation,
    memory_footprint,
    memory_share,
    request_limit,
)
from planner.fleet import Plan, PlannedDeployment, PlanRequest
from planner.llm import LlmSpec, Precision, active_parameters, kv_bytes_per_token, parameters
from planner.optimizer import Objective
from planner.report.plan import headline, planner_version, token_distributions
from planner.roofline import Parallelism
from planner.search import Mode, SearchSpace
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
RESULT_VERSION = 1
"""Of documents of other results; raised when a field changes its meaning or goes."""
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}
"""Fields of a `LatencySummary` after the mean, in order."""
Filled = TypeVar("Filled")


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
    """A language model; KV bytes per token at the precision of the request."""

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
    """A model that is served, its traffic and its targets."""

    name: str
    llm: LlmSummary
    precision: Precision
    workload: WorkloadSummary
    slo: tuple[LatencyTarget, ...]


@dataclass(frozen=True)
class RequestSummary(ServiceSummary):
    """A request. `services` are other models of the same fleet, the small one of a cascade included."""

    max_request_tokens: int | None
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
    confidence: float


@dataclass(frozen=True)
class PoolSummary:
    """One pool with every setting of its replicas and their engine. Memory is per GPU, KV tokens per replica.

    `tp` is the tensor-parallel degree of `parallelism`, `memory_fraction` and `schedule` are those in force, given or
    the engine's own. `expert_skew` is null where none was given. `calibration` names the fit in use, null: efficiency
    1. `max_request_tokens` is null where none was given; `request_limit` is what the engine is told to take then.
    `encoders` are GPUs that encode images for each replica, in `gpus` too. `surviving` are the replicas that are left
    when those that may fail have failed. It, the limit, sustained rate, cost and nodes are null outside a plan.
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
    max_request_tokens: int | None
    request_limit: RequestLimit | None = None
    surviving: int | None = None
    nodes: int | None = None
    usd_per_hour: float | None = None
    sustained_rate_per_replica_s: float | None = None
    encoders: float = 0.0


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
    percentile, as far as the run is long enough for them; `interval` 90 % intervals of the means, from the kernel fits,
    where they are known; `output_tokens_per_s` is 0 when predicted to be overloaded.
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
    interval: Mapping[Metric, tuple[float, float]]
    horizon_s: float
    link_utilisation: float
    rate_cv: float


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
class AgreementSummary:
    """Theory against simulation on a mean; relative difference is (predicted - simulated) / simulated."""

    metric: Metric
    predicted_mean_s: float
    simulated_mean_s: float
    relative_difference: float
    holds: bool


@dataclass(frozen=True)
class PlanFindings:
    """A plan. Infeasible: no deployments, cost and latencies null, and `diagnosis` says why and what would help.

    These are the fields that follow from a plan or are a summary of its own; all others are written as they are.
    `predicted` and `simulated` are latencies over all deployments, by metric (``ttft_s``).
    """

    schema_version: int
    planner_version: str
    headline: str
    feasible: bool
    request: RequestSummary
    deployments: tuple[PlannedSummary, ...]
    gpus: Mapping[str, int]
    predicted: Mapping[str, LatencySummary] | None
    simulated: Mapping[str, LatencySummary] | None
    agreement: tuple[AgreementSummary, ...]
    prices: tuple[Price, ...]
    binding: tuple[str, ...]


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


def filled(record: type[Filled], source: object, /, **own: Any) -> Filled:  # noqa: ANN401
    """A record with the fields given; those that are not, and have no default, are the attributes of the source.

    >>> filled(IntervalSummary, None, low=1.0, high=2.0)
    IntervalSummary(low=1.0, high=2.0)
    """
    fields = dataclasses.fields(record)  # type: ignore[arg-type]
    required = (field.name for field in fields if field.default is dataclasses.MISSING)
    return record(**{name: getattr(source, name) for name in required if name not in own}, **own)


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """A plan as plain JSON data: its findings and its own fields."""
    findings = filled(
        PlanFindings,
        plan,
        schema_version=SCHEMA_VERSION,
        planner_version=planner_version(),
        headline=headline(plan),
        predicted=latencies_of(plan, simulated=False) if plan.feasible else None,
        simulated=latencies_of(plan, simulated=True) if plan.feasible else None,
        prices=tuple(dict.fromkeys(bought.price for bought in plan.bought if bought.price is not None)),
        binding=tuple(row.name for row in plan.allocation.binding) if plan.allocation else (),
        request=_request_summary(plan.request),
        deployments=tuple(map(planned_summary, plan.deployments)),
        agreement=tuple(filled(AgreementSummary, agreement) for agreement in plan.agreement),
    )
    document: dict[str, Any] = plain({**vars(plan), **vars(findings)})
    return document


def plan_schema() -> dict[str, Any]:
    """JSON Schema of what `plan_to_dict` writes."""
    hints = typing.get_type_hints(Plan)
    own = [(name, hint) for name, hint in hints.items() if name not in typing.get_type_hints(PlanFindings)]
    document = dataclasses.make_dataclass("PlanDocument", own, bases=(PlanFindings,), frozen=True)
    document.__doc__ = PlanFindings.__doc__
    return json_schema(document)


def evaluation_document(
    deployment: Deployment, workload: Workload, performance: Performance, slo: Slo | None = None
) -> EvaluationDocument:
    """A given deployment, its workload and its performance; goodput only with an Slo."""
    config = deployment.pools[0].config
    return EvaluationDocument(
        schema_version=SCHEMA_VERSION,
        planner_version=planner_version(),
        llm=_llm_summary(config.llm, config.precision),
        workload=_workload_summary(workload),
        deployment=_deployment_summary(deployment, tuple(_pool_summary(pool) for pool in deployment.pools)),
        performance=performance_summary(performance, slo),
    )


def evaluation_to_dict(
    deployment: Deployment, workload: Workload, performance: Performance, slo: Slo | None = None
) -> dict[str, Any]:
    """A given deployment, its workload and its performance as plain JSON data."""
    document: dict[str, Any] = plain(evaluation_document(deployment, workload, performance, slo))
    return document


def document(name: str, record: object) -> dict[str, Any]:
    """Another result under its name as plain JSON data, with the versions of its schema and of the planner."""
    return {"schema_version": RESULT_VERSION, "planner_version": planner_version(), name: plain(record)}


def _request_summary(request: PlanRequest) -> RequestSummary:
    small = (request.cascade.small,) if request.cascade else ()
    return filled(
        RequestSummary,
        request,
        llm=_llm_summary(request.llm, request.precision),
        workload=_workload_summary(request.workload),
        slo=request.slo.targets,
        services=tuple(map(_service_summary, small + request.services)),
    )


def _service_summary(service: Service) -> ServiceSummary:
    return filled(
        ServiceSummary,
        service,
        llm=_llm_summary(service.llm, service.precision),
        workload=_workload_summary(service.workload),
        slo=service.slo.targets,
    )


def _llm_summary(llm: LlmSpec, precision: Precision) -> LlmSummary:
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


def _workload_summary(workload: Workload) -> WorkloadSummary:
    arrivals = workload.arrivals
    distribution = None if isinstance(arrivals, ClosedLoop) else workload.open_arrivals
    inputs, outputs = map(_token_summary, token_distributions(workload.lengths))
    return WorkloadSummary(
        rate_per_s=math.nan if distribution is None else distribution.rate_per_s,
        scv=math.nan if distribution is None else distribution.scv,
        batch_mean=1.0 if distribution is None else distribution.batch_mean,
        concurrency=arrivals.concurrency if isinstance(arrivals, ClosedLoop) else None,
        recorded_requests=len(arrivals.times_s) if isinstance(arrivals, RecordedArrivals) else None,
        source=arrivals.source,
        input_tokens=inputs,
        output_tokens=outputs,
        classes=tuple(map(_class_summary, workload.classes)),
    )


def _class_summary(kind: RequestClass) -> ClassSummary:
    inputs, outputs = map(_token_summary, token_distributions(kind.lengths))
    return filled(
        ClassSummary,
        kind,
        source=kind.lengths.source,
        input_tokens=inputs,
        output_tokens=outputs,
        slo=kind.slo.targets if kind.slo else (),
    )


def _token_summary(distribution: LatencyDistribution) -> TokenSummary:
    return TokenSummary(distribution.mean_s, *(distribution.quantile_s(p) for p in (0.5, 0.99, 1.0)))


def planned_summary(planned: PlannedDeployment) -> PlannedSummary:
    """One deployment of a plan."""
    slo = planned.slo
    pools = tuple(
        dataclasses.replace(
            _pool_summary(pool),
            request_limit=request_limit(pool.config, planned.workload.lengths.max_total),
            surviving=surviving.replicas,
            nodes=nodes,
            usd_per_hour=usd,
            sustained_rate_per_replica_s=planned.sustained_per_s / pool.replicas,
        )
        for pool, surviving, usd, nodes in zip(
            planned.deployment.pools,
            planned.surviving.pools,
            planned.pool_usd_per_hour,
            planned.nodes,
            strict=True,
        )
    )
    return PlannedSummary(
        name=planned.option.name,
        service=planned.service,
        rate_per_s=planned.workload.arrivals.rate_per_s,
        slices=planned.slices,
        usd_per_hour=planned.usd_per_hour,
        deployment=_deployment_summary(planned.deployment, pools),
        predicted=performance_summary(planned.predicted, slo),
        simulated=performance_summary(planned.simulated, slo),
    )


def _deployment_summary(deployment: Deployment, pools: tuple[PoolSummary, ...]) -> DeploymentSummary:
    mode = Mode.DISAGGREGATED if deployment.is_disaggregated else Mode.MIXED
    return DeploymentSummary(mode, deployment.gpus, deployment.kv_link_bytes_per_s, deployment.transfer, pools)


def _pool_summary(pool: Pool) -> PoolSummary:
    config, engine = pool.config, pool.config.engine
    return filled(
        PoolSummary,
        config,
        role=pool.role,
        sku=config.sku.id,
        tp=config.parallelism.tp,
        replicas=pool.replicas,
        gpus=pool.gpus,
        engine=engine.id,
        engine_version=engine.version,
        kv_block_tokens=engine.kv_block_tokens,
        memory_fraction=memory_share(config),
        encoders=config.encoders,
        calibration=config.calibration.stack if config.calibration else None,
        memory=memory_footprint(config),
        router=pool.router,
    )


def performance_summary(performance: Performance, slo: Slo | None = None) -> PerformanceSummary:
    """One performance; goodput only with an Slo."""
    return filled(
        PerformanceSummary,
        performance,
        goodput_per_s=None if slo is None else performance.goodput_per_s(slo),
        **{f"{metric}_s": _latency_summary(performance.distribution(metric)) for metric in Metric},
        confidence_s=_confidence_intervals(performance),
        classes=tuple(map(_class_performance_summary, performance.classes)),
    )


def _confidence_intervals(performance: Performance) -> dict[str, dict[str, IntervalSummary]]:
    intervals: dict[str, dict[str, IntervalSummary]] = {}
    for metric in performance.samples_s:
        for name, percentile in PERCENTILES.items():
            interval = performance.confidence_s(metric, percentile)
            if interval is not None:
                intervals.setdefault(f"{metric}_s", {})[name] = IntervalSummary(*interval)
    return intervals


def _class_performance_summary(kind: ClassPerformance) -> ClassPerformanceSummary:
    latencies = {"ttft_s": kind.ttft, "tpot_s": kind.tpot, "e2e_s": kind.e2e}
    return filled(
        ClassPerformanceSummary, kind, **{name: _latency_summary(latency) for name, latency in latencies.items()}
    )


def latencies_of(plan: Plan, *, simulated: bool) -> dict[str, LatencySummary]:
    """Latencies over all deployments, by metric."""
    return {f"{metric}_s": _latency_summary(plan.latency(metric, simulated=simulated)) for metric in Metric}


def _latency_summary(distribution: LatencyDistribution) -> LatencySummary:
    return LatencySummary(distribution.mean_s, *(distribution.quantile_s(p) for p in PERCENTILES.values()))
