"""What is to be started: the deployments of a plan with their traffic, from a `Plan` or from the file it was kept in.

Every writer of launch files starts from a `Fleet`. `read_fleet` plans nothing: the request is the document's scenario,
the pools are the document's, and the traffic of a deployment is put together from its slices as planning does it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

from hardware_db import Calibration, EngineProfile, HardwareDb, Price, select_calibration
from planner.core import InputError, Metric, Record, UnknownNameError, rebuilt
from planner.engine import ReplicaConfig, memory_share
from planner.fleet import (
    BoughtGpus,
    Plan,
    PlannedDeployment,
    PlanRequest,
    ScheduledPeriod,
    cascade_services,
    hardware_for,
    request_slices,
    routed_slo,
    routed_workload,
)
from planner.llm import LlmSpec
from planner.scenario import load_request, plan_document_at
from planner.serving import Deployment, Pool
from planner.traffic import DemandProfile, DemandSlice
from planner.workload import LatencyTarget, Slo, Workload

PLAN_AGAIN = "plan again with --json"
"""The way out of a document that does not hold what a launch needs."""
PERCENTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
"""Percentiles of latencies that a plan document keeps."""
Read = TypeVar("Read")


@dataclass(frozen=True)
class LaunchedDeployment:
    """Pools that serve together, as they are to be started.

    Attributes:
        service: name of the model's service.
        deployment: with its pool sizes, spare replicas included.
        workload: what is routed to it.
        slo: the targets of its requests; of several slices, those of the first.
        figures: what the plan expects of it; None where a document does not hold that.
    """

    service: str
    deployment: Deployment
    workload: Workload
    slo: Slo
    figures: PlannedFigures | None = None


@dataclass(frozen=True)
class PlannedFigures:
    """What a plan expects of a deployment.

    Attributes:
        expected_s: latency [s] by metric and percentile (`PERCENTILES`): simulated where the plan was simulated.
        sustained_per_replica_s: of each pool, the rate that one replica sustains under the targets [1/s].
        pool_usd_per_hour: of each pool.
    """

    expected_s: Mapping[str, Mapping[float, float]]
    sustained_per_replica_s: tuple[float, ...]
    pool_usd_per_hour: tuple[float, ...]

    def expected(self, target: LatencyTarget) -> float | None:
        """The latency expected at the percentile of a target [s]; None where it was not kept or is unbounded."""
        expected_s = self.expected_s[target.metric.value].get(target.percentile, math.inf)
        return expected_s if math.isfinite(expected_s) else None


@dataclass(frozen=True)
class Fleet:
    """Everything of a plan that is to be started.

    Attributes:
        name: of the request.
        deployments: what to run.
        profile: how the demand moves; None where it does not.
        schedule: the fleet in each period of the profile; empty without one.
        bought: GPUs by purchase option; empty where a document does not hold them.
        day: that the plan is for; None where it is made up.
        survives_node_loss: whether it was planned to lose any one server.
    """

    name: str
    deployments: tuple[LaunchedDeployment, ...]
    profile: DemandProfile | None = None
    schedule: tuple[ScheduledPeriod, ...] = ()
    bought: tuple[BoughtGpus, ...] = ()
    day: date | None = None
    survives_node_loss: bool = False


def fleet_of(plan: Plan) -> Fleet:
    """The fleet of a plan. Raises InputError for a plan without one."""
    _require_some(plan.request.name, plan.deployments)
    deployments = tuple(
        LaunchedDeployment(planned.service, planned.deployment, planned.workload, planned.slo, _figures_of(planned))
        for planned in plan.deployments
    )
    request = plan.request
    survives = request.limits.survives_node_loss
    return Fleet(request.name, deployments, request.profile, plan.schedule, plan.bought, request.prices.day, survives)


def _figures_of(planned: PlannedDeployment) -> PlannedFigures:
    latencies = {metric.value: getattr(planned.simulated, metric.value) for metric in Metric}
    return PlannedFigures(
        {name: {p: found.quantile_s(p) for p in PERCENTILES} for name, found in latencies.items()},
        tuple(planned.sustained_per_s / pool.replicas for pool in planned.deployment.pools),
        planned.pool_usd_per_hour,
    )


def _require_some(name: str, deployments: Sequence[object]) -> None:
    if not deployments:
        raise InputError("plan", name, "has no fleet to launch", "change the request until it is feasible")


def read_fleet(path: str | Path, hardware: HardwareDb | None = None) -> Fleet:
    """The fleet of a plan document (``plan.json``), without planning again.

    What a document names (SKU, engine, calibration) is looked up; versions, limits and memory shares are its own. Where
    the calibration it names is gone, the one that planning would take now stands for it: no launch depends on it.

    Args:
        path: of the document.
        hardware: the database it was planned on; the packaged one when None.

    Raises:
        InputError: no plan document, one without its scenario, pools or slices, or one whose values do not fit.
        UnknownNameError: a SKU, engine or slice that neither the database nor the scenario has.
    """
    document = plan_document_at(path)
    if document is None:
        raise InputError("plan", str(path), "is no plan document", "give the JSON file of `planner plan --json`")
    request = load_request(path)
    planned = _required_records(document, "deployments", "plan")
    _require_some(request.name, planned)
    reader = _Reader(hardware_for(request, hardware), _slices(request, document.get("escalated")))
    deployments = tuple(reader.deployment(place, record) for place, record in planned)
    schedule, bought = (_as_far_as_held(read, document.get(name)) for name, read in _RECORDS.items())
    day, survives = request.prices.day, request.limits.survives_node_loss
    return Fleet(request.name, deployments, request.profile, schedule or (), bought or (), day, survives)


def _as_far_as_held(read: Callable[[Any], Read], content: object) -> Read | None:
    """What a reader makes of content; None where it is not what the reader takes: no launch depends on it."""
    try:
        return read(content)
    except (InputError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _schedule(content: Any) -> tuple[ScheduledPeriod, ...]:  # noqa: ANN401
    numbers = ("hours", "demand_per_s", "served_per_s", "usd_per_hour")
    return tuple(
        ScheduledPeriod(
            name=str(record["name"]),
            replicas={str(name): int(count) for name, count in record["replicas"].items()},
            gpus={str(sku): float(count) for sku, count in record["gpus"].items()},
            **{name: float(record[name]) for name in numbers},
        )
        for record in content
    )


def _bought(content: Any) -> tuple[BoughtGpus, ...]:  # noqa: ANN401
    return tuple(
        BoughtGpus(
            sku=str(record["sku"]),
            purchase=str(record["purchase"]),
            price=None if record["price"] is None else Price.model_validate(record["price"]),
            committed=bool(record["committed"]),
            gpus=tuple(map(float, record["gpus"])),
            usd_per_gpu_hour=float(record["usd_per_gpu_hour"]),
            usd_per_hour=float(record["usd_per_hour"]),
        )
        for record in content
    )


_RECORDS: Mapping[str, Callable[[Any], Any]] = {"schedule": _schedule, "bought": _bought}
"""Readers of the records of a document that no launch depends on."""


def _figures(planned: Mapping[str, Any]) -> PlannedFigures:
    pools = planned["deployment"]["pools"]
    expected = {
        metric.value: {p: _seconds(planned["simulated"][f"{metric.value}_s"][name]) for p, name in _KEPT.items()}
        for metric in Metric
    }
    per_replica = tuple(float(pool["sustained_rate_per_replica_s"]) for pool in pools)
    return PlannedFigures(expected, per_replica, tuple(float(pool["usd_per_hour"]) for pool in pools))


def _seconds(value: float | None) -> float:
    """A latency of a document, which writes an unbounded one as null."""
    return math.inf if value is None else float(value)


_KEPT = {p: f"p{100 * p:g}".replace(".", "_") for p in PERCENTILES}
"""Names of the percentiles in a document."""


def _slices(request: PlanRequest, escalated: object) -> dict[str, DemandSlice]:
    """The slices of a request by name; of a cascade, at the share of requests that the plan escalates."""
    services = request.all_services
    if request.cascade is not None:
        settings = cascade_services(request.main, request.cascade)
        chosen = [pair for point, pair in settings if point.escalated == escalated]
        if not chosen:
            bound = f"is none of the shares that the cascade offers: {[point.escalated for point, _ in settings]}"
            raise InputError("plan.escalated", escalated, bound, PLAN_AGAIN)
        services = (*chosen[0], *request.services)
    return {slice_.name: slice_ for slice_ in request_slices(request, services)}


@dataclass(frozen=True)
class _Reader:
    """Deployments of a document, given the hardware it was planned on and the slices of its request by name."""

    hardware: HardwareDb
    slices: Mapping[str, DemandSlice]

    def deployment(self, place: str, planned: Mapping[str, Any]) -> LaunchedDeployment:
        """One entry of the document's deployments."""
        rates = self._rates(planned, place)
        service = self.slices[next(iter(rates))].service
        owners = list(dict.fromkeys(self.slices[name].service.name for name in rates))
        if [_required_field(planned, "service", place)] != owners:
            bound = f"its slices are of {' and '.join(owners)}"
            raise InputError(f"{place}.service", planned["service"], bound, PLAN_AGAIN)
        where, content = f"{place}.deployment", _required_field(planned, "deployment", place)
        if not isinstance(content, Mapping):
            raise InputError(where, content, "must be a record", PLAN_AGAIN)
        records = _required_records(content, "pools", where)
        with _locate_errors(where):
            pools = tuple(self._pool(pool_at, pool, service.llm) for pool_at, pool in records)
            deployment = Deployment(pools=pools, transfer=_required_field(content, "transfer", where))
        with _locate_errors(place):
            workload = routed_workload(self.slices, rates)
        return LaunchedDeployment(
            service.name, deployment, workload, routed_slo(self.slices, rates), _as_far_as_held(_figures, planned)
        )

    def _rates(self, planned: Mapping[str, Any], place: str) -> dict[str, float]:
        rates = _required_field(planned, "slices", place)
        if not (isinstance(rates, Mapping) and rates):
            raise InputError(f"{place}.slices", rates, "must name a rate for each slice", PLAN_AGAIN)
        for name, rate in rates.items():
            if name not in self.slices:
                raise UnknownNameError(f"{place}.slices", name, self.slices)
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0.0 < rate < math.inf:
                raise InputError(f"{place}.slices.{name}", rate, "must be a rate > 0", PLAN_AGAIN)
        return dict(rates)

    def _pool(self, place: str, pool: Mapping[str, Any], llm: LlmSpec) -> Pool:
        given = {name: _required_field(pool, name, place) for name in _POOL_FIELDS}
        with _locate_errors(place):
            config = self._config(place, pool, llm)
            tp = _required_field(pool, "tp", place)
            if tp != config.parallelism.tp:
                raise InputError("tp", tp, f"parallelism.tp is {config.parallelism.tp}", "write both alike")
            return Pool(**given, config=config)

    def _config(self, place: str, pool: Mapping[str, Any], llm: LlmSpec) -> ReplicaConfig:
        """The replica of a pool; what its engine does by itself is left to it, as planning leaves it."""
        engine = self._engine(place, pool)
        fraction, calibration = (
            _required_field(pool, "memory_fraction", place),
            _required_field(pool, "calibration", place),
        )
        sku = _table_entry(self.hardware.skus, pool, "sku", place)
        config = ReplicaConfig(
            **{name: _required_field(pool, name, place) for name in _CONFIG_FIELDS},
            llm=llm,
            sku=sku,
            engine=engine,
            own_schedule=_required_field(pool, "schedule", place),
            max_request_tokens=pool.get("max_request_tokens"),
            memory_fraction=fraction,
            calibration=None if calibration is None else self._calibration(calibration, sku.id, engine.id),
        )
        by_itself = rebuilt(config, own_schedule=None)
        config = by_itself if by_itself.schedule == config.schedule else config
        usual = rebuilt(config, memory_fraction=None)
        return usual if memory_share(usual) == fraction else config

    def _engine(self, place: str, pool: Mapping[str, Any]) -> EngineProfile:
        """The profile of the database, at the version that was planned with."""
        profile = _table_entry(self.hardware.engines, pool, "engine", place)
        version, block = (_required_field(pool, name, place) for name in ("engine_version", "kv_block_tokens"))
        return rebuilt(profile, version=version, kv_block_tokens=block)

    def _calibration(self, stack: object, sku: str, engine: str) -> Calibration | None:
        now = select_calibration(self.hardware, sku, engine)
        if now is not None and now.stack == stack:
            return now
        calibrations = (fit for fit in self.hardware.calibrations if (fit.sku, fit.stack) == (sku, stack))
        return next(calibrations, now)


_POOL_FIELDS = ("role", "replicas", "router")
_CONFIG_FIELDS = (
    "precision",
    "parallelism",
    "max_running_requests",
    "max_batched_tokens",
    "speculation",
    "lora",
    "expert_skew",
    "mask_s",
)
"""Fields of a pool in the document that are fields of `Pool` and of `ReplicaConfig` as they stand."""


def _required_field(record: Mapping[str, Any], name: str, place: str) -> Any:  # noqa: ANN401
    """A field of a record at a place of the document. Raises InputError where it is missing."""
    if name not in record:
        raise InputError(f"{place}.{name}", "(missing)", "this document does not hold what a launch needs", PLAN_AGAIN)
    return record[name]


def _required_records(record: Mapping[str, Any], name: str, place: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The records of a list with their places. Raises InputError where it is none."""
    items = _required_field(record, name, place)
    if not (isinstance(items, list) and all(isinstance(item, Mapping) for item in items)):
        raise InputError(f"{place}.{name}", items, "must be a list of records", PLAN_AGAIN)
    return [(f"{place}.{name}[{index}]", item) for index, item in enumerate(items)]


def _table_entry(table: Mapping[str, Record], record: Mapping[str, Any], name: str, place: str) -> Record:
    """What a field names. Raises UnknownNameError."""
    key = _required_field(record, name, place)
    if not isinstance(key, str) or key not in table:
        raise UnknownNameError(f"{place}.{name}", key, table)
    return table[key]


@contextmanager
def _locate_errors(place: str) -> Iterator[None]:
    """Names the place of the document in an error that only knows its own field."""
    try:
        yield
    except InputError as error:
        if error.field.startswith("plan."):
            raise
        raise InputError(f"{place}.{error.field}", error.value, error.bound, error.fix) from None
