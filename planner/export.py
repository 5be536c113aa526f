"""A plan as JSON: complete, plain, with a schema. Units stand in the names; null is an infinite or absent number.

The records below are the document. `plan_to_dict` fills them, `json_schema` describes them, and neither knows a field
by name twice: adding one to a record changes both.
"""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any

from hardware_db import Frozen, Price
from planner.candidates import Mode, Rejection, SearchSpace
from planner.deployment import Deployment, Method, Performance, Pool, PoolPerformance, Role
from planner.errors import InputError
from planner.latency import LatencyDistribution
from planner.llm import LlmSpec, Precision, active_parameters, kv_bytes_per_token, parameters
from planner.optimizer import Allocation, Objective, SolveStatus
from planner.planning import (
    Alternative,
    CostBreakdown,
    FleetLimits,
    Plan,
    PlannedDeployment,
    PlanRequest,
    PricePolicy,
    TargetCheck,
)
from planner.replica import MemoryFootprint, memory_footprint
from planner.report import headline, planner_version, token_laws
from planner.workload import LatencyTarget, Metric, Slo, Workload

SCHEMA_VERSION = 1
"""Raised when a field changes its meaning or goes; new fields do not raise it."""


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
    """One kind of request: its share of the arrivals and its lengths."""

    name: str
    share: float
    source: str
    input_tokens: TokenSummary
    output_tokens: TokenSummary


@dataclass(frozen=True)
class WorkloadSummary:
    """Mean arrivals [1/s], SCV of the gaps, lengths of all requests and of each class."""

    rate_per_s: float
    scv: float
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


@dataclass(frozen=True)
class PoolSummary:
    """One pool with every setting of its engine. Memory is per GPU, KV tokens per replica.

    `calibration` names the fit in use, null: efficiency 1. Sustained rate, cost and nodes are null outside a plan.
    """

    role: Role
    sku: str
    tp: int
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
    nodes: int | None = None
    usd_per_hour: float | None = None
    sustained_rate_per_replica_s: float | None = None


@dataclass(frozen=True)
class PerformanceSummary:
    """How a deployment performs, predicted (analytic) or simulated. Goodput is null where no targets are given."""

    method: Method
    rate_per_s: float
    stable: bool
    goodput_per_s: float | None
    ttft_s: LatencySummary
    tpot_s: LatencySummary
    e2e_s: LatencySummary
    kv_transfer_s: float
    requests: int
    pools: tuple[PoolPerformance, ...]
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class DeploymentSummary:
    """Pools that serve together and the traffic they take; `kv_link_bytes_per_s` is null when nothing is sent."""

    mode: Mode
    gpus: int
    kv_link_bytes_per_s: float
    pools: tuple[PoolSummary, ...]


@dataclass(frozen=True)
class PlannedSummary:
    """One deployment of a plan, its share of the traffic, its cost, and both judgements of it."""

    name: str
    rate_per_s: float
    usd_per_hour: float
    deployment: DeploymentSummary
    predicted: PerformanceSummary
    simulated: PerformanceSummary


@dataclass(frozen=True)
class MetricSummary:
    """Latencies over all deployments [s]."""

    ttft_s: LatencySummary
    tpot_s: LatencySummary
    e2e_s: LatencySummary


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
    allocation: Allocation | None
    binding: tuple[str, ...]
    diagnosis: tuple[str, ...]
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    considered: int
    elapsed_s: float


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


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Everything a plan says, as plain JSON data (see `PlanDocument`)."""
    prices = {pool.price.sku: pool.price for planned in plan.deployments for pool in planned.option.pools}
    document = PlanDocument(
        schema_version=SCHEMA_VERSION,
        planner_version=planner_version(),
        headline=headline(plan),
        status=plan.status,
        feasible=plan.feasible,
        request=_request(plan.request),
        deployments=tuple(_planned(planned, plan.request.slo) for planned in plan.deployments),
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
        prices=tuple(prices.values()),
        allocation=plan.allocation,
        binding=tuple(row.name for row in plan.allocation.binding) if plan.allocation else (),
        diagnosis=plan.diagnosis,
        assumptions=plan.assumptions,
        warnings=plan.warnings,
        considered=plan.considered,
        elapsed_s=plan.elapsed_s,
    )
    return _object(document)


def performance_to_dict(performance: Performance, slo: Slo | None = None) -> dict[str, Any]:
    """A performance as plain JSON data (see `PerformanceSummary`); goodput only with an Slo."""
    return _object(_performance(performance, slo))


def evaluation_to_dict(
    deployment: Deployment, workload: Workload, performance: Performance, slo: Slo | None = None
) -> dict[str, Any]:
    """A given deployment, its workload and its performance as plain JSON data (see `EvaluationDocument`)."""
    config = deployment.pools[0].config
    document = EvaluationDocument(
        schema_version=SCHEMA_VERSION,
        planner_version=planner_version(),
        llm=_llm(config.llm, config.precision),
        workload=_workload(workload),
        deployment=_deployment(deployment, tuple(_pool(pool) for pool in deployment.pools)),
        performance=_performance(performance, slo),
    )
    return _object(document)


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
    classes = tuple(
        ClassSummary(kind.name, kind.share, kind.lengths.source, *map(_tokens, token_laws(kind.lengths)))
        for kind in workload.classes
    )
    sides = map(_tokens, token_laws(workload.lengths))
    return WorkloadSummary(arrivals.rate_per_s, arrivals.scv, arrivals.source, *sides, classes=classes)


def _tokens(law: LatencyDistribution) -> TokenSummary:
    return TokenSummary(law.mean_s, law.quantile_s(0.5), law.quantile_s(0.99), law.quantile_s(1.0))


def _planned(planned: PlannedDeployment, slo: Slo) -> PlannedSummary:
    pools = tuple(
        dataclasses.replace(
            _pool(pool),
            nodes=nodes,
            usd_per_hour=pool.replicas * option.usd_per_replica_hour,
            sustained_rate_per_replica_s=option.rate_per_replica_s,
        )
        for pool, option, nodes in zip(planned.deployment.pools, planned.option.pools, planned.nodes, strict=True)
    )
    return PlannedSummary(
        name=planned.option.name,
        rate_per_s=planned.workload.arrivals.rate_per_s,
        usd_per_hour=planned.usd_per_hour,
        deployment=_deployment(planned.deployment, pools),
        predicted=_performance(planned.predicted, slo),
        simulated=_performance(planned.simulated, slo),
    )


def _deployment(deployment: Deployment, pools: tuple[PoolSummary, ...]) -> DeploymentSummary:
    mode = Mode.DISAGGREGATED if deployment.is_disaggregated else Mode.MIXED
    return DeploymentSummary(mode, deployment.gpus, deployment.kv_link_bytes_per_s, pools)


def _pool(pool: Pool) -> PoolSummary:
    config = pool.config
    return PoolSummary(
        role=pool.role,
        sku=config.sku.id,
        tp=config.parallelism.tp,
        replicas=pool.replicas,
        gpus=pool.gpus,
        max_running_requests=config.max_running_requests,
        max_batched_tokens=config.max_batched_tokens,
        precision=config.precision,
        engine=config.engine.id,
        engine_version=config.engine.version,
        kv_block_tokens=config.engine.kv_block_tokens,
        memory_fraction=config.engine.memory_fraction,
        calibration=config.calibration.stack if config.calibration else None,
        memory=memory_footprint(config),
    )


def _performance(performance: Performance, slo: Slo | None) -> PerformanceSummary:
    return PerformanceSummary(
        method=performance.method,
        rate_per_s=performance.rate_per_s,
        stable=performance.stable,
        goodput_per_s=None if slo is None else performance.goodput_per_s(slo),
        ttft_s=_latency(performance.ttft),
        tpot_s=_latency(performance.tpot),
        e2e_s=_latency(performance.e2e),
        kv_transfer_s=performance.kv_transfer_s,
        requests=performance.requests,
        pools=performance.pools,
        assumptions=performance.assumptions,
    )


def _metrics(plan: Plan, *, simulated: bool) -> MetricSummary:
    return MetricSummary(*(_latency(plan.latency(metric, simulated=simulated)) for metric in Metric))


def _latency(law: LatencyDistribution) -> LatencySummary:
    return LatencySummary(law.mean_s, *(law.quantile_s(p) for p in (0.5, 0.9, 0.95, 0.99, 0.999)))


# --- records as JSON data and as JSON Schema ------------------------------------------------------------------------


def _object(record: object) -> dict[str, Any]:
    data = plain(record)
    assert isinstance(data, dict)
    return data


def plain(value: object) -> Any:  # noqa: ANN401
    """A value as JSON data: records become objects, enums their values, numbers that are not finite null.

    >>> plain((Metric.TTFT, math.inf, {"gpus": 6}))
    ['ttft', None, {'gpus': 6}]
    """
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Frozen):
        return plain(value.model_dump(mode="json"))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    raise InputError("export", value, "has no JSON form", "give records, enums, numbers, strings and lists of them")


def json_schema(record: type = PlanDocument) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a document of this module."""
    definitions: dict[str, Any] = {}
    root = _schema(record, definitions)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": definitions}


_PLAIN_SCHEMAS: Mapping[object, dict[str, Any]] = {
    float: {"type": ["number", "null"]},
    int: {"type": "integer"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    date: {"type": "string", "format": "date"},
}


def _schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    """Schema of a type hint; records go to `definitions` and are referred to."""
    if hint in _PLAIN_SCHEMAS:
        return dict(_PLAIN_SCHEMAS[hint])
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return {"anyOf": [_schema(argument, definitions) for argument in arguments]}
    if typing.get_origin(hint) is tuple:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if typing.get_origin(hint) is not None:
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    if issubclass(hint, Enum):
        return {"type": "string", "enum": [member.value for member in hint]}
    if hint.__name__ not in definitions:
        definitions[hint.__name__] = {}
        definitions[hint.__name__] = _record_schema(hint, definitions)
    return {"$ref": f"#/$defs/{hint.__name__}"}


def _record_schema(record: Any, definitions: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    if issubclass(record, Frozen):
        schema = record.model_json_schema(mode="serialization", ref_template="#/$defs/{model}")
        definitions.update(schema.pop("$defs", {}))
        return dict(schema)
    hints = typing.get_type_hints(record)
    return {
        "type": "object",
        "description": " ".join((record.__doc__ or "").split()),
        "properties": {field.name: _schema(hints[field.name], definitions) for field in dataclasses.fields(record)},
        "required": [field.name for field in dataclasses.fields(record)],
        "additionalProperties": False,
    }


# --- files ----------------------------------------------------------------------------------------------------------


def write_json(path: str | Path, data: Mapping[str, Any] | list[Any]) -> None:
    """Write JSON data to a file. Raises InputError when it cannot be written, naming why."""
    write_text(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


def write_text(path: str | Path, text: str) -> None:
    """Write text to a file as UTF-8. Raises InputError when it cannot be written, naming why."""
    require_writable(path)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError("output file", str(path), f"cannot be written: {reason}", "choose another place") from None


def require_writable(path: str | Path) -> None:
    """Raise InputError when a file cannot stand at `path`: before the work is done, not after it."""
    place = Path(path)
    try:
        is_folder, has_parent = place.is_dir(), place.parent.is_dir()
    except (OSError, ValueError) as error:
        raise InputError("output file", str(path), f"is no file name ({error})", "choose another name") from None
    if is_folder:
        raise InputError("output file", str(path), "is a folder", "add a file name")
    if not has_parent:
        raise InputError("output file", str(path), f"there is no folder {place.parent}", "create it, or choose another")
