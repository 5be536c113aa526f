"""Plans read back from their documents (``plan.json``), without planning again.

The request is the document's scenario; deployments, performances and findings are read by the very records they were
written as (`planner.report.records`). What a document names (SKU, engine, calibration) is looked up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hardware_db import Calibration, EngineProfile, HardwareDb, select_calibration
from planner.core import PLAN, InputError, Metric, Reader, Record, UnknownNameError, rebuilt
from planner.engine import MemoryFootprint, ReplicaConfig, RequestLimit, memory_share
from planner.fleet import (
    Plan,
    PlannedDeployment,
    PlanRequest,
    at_rates,
    cascade_services,
    hardware_for,
    request_slices,
    routed_slo,
    routed_workload,
)
from planner.llm import LlmSpec
from planner.report import records
from planner.scenario.read import load_request, plan_document_at
from planner.search import DeploymentOption, PoolOption
from planner.serving import Deployment, Method, Performance, Pool, class_performance
from planner.traffic import DemandSlice
from planner.workload import LatencyDistribution

_READER = Reader(PLAN.remake, {MemoryFootprint: lambda *_: None, RequestLimit: lambda *_: None})
"""Memory and limits of requests follow from the replicas."""


def load_plan(path: str | Path, hardware: HardwareDb | None = None) -> Plan:
    """The plan of a document (``plan.json``).

    Latencies are exact in their mean and in the percentiles of the document and interpolated between these; samples of
    simulations, TTFT and TPOT together and what was simulated (`PlannedDeployment.run`) are not kept. Where the
    calibration that a document names is gone, the one that planning would take now stands for it.

    Args:
        path: of the document.
        hardware: the database it was planned on; the packaged one when None.

    Raises:
        InputError: no plan document, one without its scenario, or one whose values do not fit.
        UnknownNameError: a SKU, engine or slice that neither the database nor the scenario has.
    """
    document = plan_document_at(path)
    if document is None:
        raise InputError("plan", str(path), "is no plan document", "give the JSON file of `planner plan --json`")
    request = load_request(path)
    own = _READER.fields(Plan, document, "plan", without=("request", "deployments", "simulated"))
    deployments = _READER.value(tuple[records.PlannedSummary, ...], document["deployments"], "plan.deployments")
    request = _at_planned_rates(request, deployments)
    rebuilder = _Deployments(hardware_for(request, hardware), _slices(request, own.get("escalated")))
    planned = tuple(rebuilder.planned(f"plan.deployments[{n}]", one) for n, one in enumerate(deployments))
    simulated = any(one.simulated.method is Method.SIMULATED for one in planned) or own.get("corrections") is not None
    return Plan(request=request, deployments=planned, simulated=simulated, **own)


def _at_planned_rates(request: PlanRequest, deployments: Sequence[records.PlannedSummary]) -> PlanRequest:
    """The request with its closed populations at the rates that were planned for them."""
    peak = request.growth * max(request.profile.factors if request.profile else (1.0,))
    rates: dict[str, float] = {}
    for one in deployments:
        rates[one.service] = rates.get(one.service, 0.0) + sum(one.slices.values()) / peak
    return at_rates(request, rates)


def _slices(request: PlanRequest, escalated: object) -> dict[str, DemandSlice]:
    """The slices of a request by name; of a cascade, at the share of requests that the plan escalates."""
    services = request.all_services
    if request.cascade is not None:
        settings = {point.escalated: pair for point, pair in cascade_services(request.main, request.cascade)}
        if escalated not in settings:
            bound = f"is none of the shares that the cascade offers: {list(settings)}"
            raise InputError("plan.escalated", escalated, bound, PLAN.remake)
        services = (*settings[escalated], *request.services)
    return {slice_.name: slice_ for slice_ in request_slices(request, services)}


@dataclass(frozen=True)
class _Deployments:
    """Deployments from their summaries, given the hardware they were planned on and the slices of the request."""

    hardware: HardwareDb
    slices: Mapping[str, DemandSlice]

    def planned(self, place: str, summary: records.PlannedSummary) -> PlannedDeployment:
        """One deployment of the plan."""
        rates, where = self._rates(place, summary), f"{place}.deployment"
        service = self.slices[next(iter(rates))].service
        pools = [
            self._pool(f"{where}.pools[{number}]", pool, service.llm)
            for number, pool in enumerate(summary.deployment.pools)
        ]
        with _located(where):
            deployment = Deployment(pools=tuple(pools), transfer=summary.deployment.transfer)
            surviving = [
                rebuilt(pool, replicas=pool.replicas if one.surviving is None else one.surviving)
                for one, pool in zip(summary.deployment.pools, pools, strict=True)
            ]
        with _located(place):
            workload = routed_workload(self.slices, rates)
        return PlannedDeployment(
            service=service.name,
            option=_option(summary, pools),
            deployment=deployment,
            surviving=Deployment(pools=tuple(surviving), transfer=deployment.transfer),
            workload=workload,
            slo=routed_slo(self.slices, rates),
            sustained_per_s=(summary.deployment.pools[0].sustained_rate_per_replica_s or 0.0) * pools[0].replicas,
            predicted=_performance(summary.predicted),
            simulated=_performance(summary.simulated),
            usd_per_hour=summary.usd_per_hour,
            pool_usd_per_hour=tuple(pool.usd_per_hour or 0.0 for pool in summary.deployment.pools),
            nodes=tuple(pool.nodes or 0 for pool in summary.deployment.pools),
            slices=rates,
        )

    def _rates(self, place: str, summary: records.PlannedSummary) -> dict[str, float]:
        rates = dict(summary.slices)
        if not rates:
            raise InputError(f"{place}.slices", rates, "must name a rate for each slice", PLAN.remake)
        for name, rate in rates.items():
            if name not in self.slices:
                raise UnknownNameError(f"{place}.slices", name, self.slices)
            if not 0.0 < rate < math.inf:
                raise InputError(f"{place}.slices.{name}", rate, "must be a rate > 0", PLAN.remake)
        owners = list(dict.fromkeys(self.slices[name].service.name for name in rates))
        if [summary.service] != owners:
            bound = f"its slices are of {' and '.join(owners)}"
            raise InputError(f"{place}.service", summary.service, bound, PLAN.remake)
        return rates

    def _pool(self, place: str, summary: records.PoolSummary, llm: LlmSpec) -> Pool:
        """A pool; what its engine does by itself is left to it, as planning leaves it."""
        sku = _entry(self.hardware.skus, summary.sku, f"{place}.sku")
        profile = _entry(self.hardware.engines, summary.engine, f"{place}.engine")
        written = vars(summary)
        with _located(place):
            if summary.tp != summary.parallelism.tp:
                raise InputError("tp", summary.tp, f"parallelism.tp is {summary.parallelism.tp}", "write both alike")
            config = ReplicaConfig(
                **{name: written[name] for name in ReplicaConfig.model_fields if name in _SETTINGS},
                llm=llm,
                sku=sku,
                engine=rebuilt(profile, version=summary.engine_version, kv_block_tokens=summary.kv_block_tokens),
                own_schedule=summary.schedule,
                calibration=self._calibration(summary, profile),
            )
            by_itself = rebuilt(config, own_schedule=None)
            config = by_itself if by_itself.schedule == config.schedule else config
            usual = rebuilt(config, memory_fraction=None)
            config = usual if memory_share(usual) == summary.memory_fraction else config
            return Pool(role=summary.role, config=config, replicas=summary.replicas, router=summary.router)

    def _calibration(self, summary: records.PoolSummary, engine: EngineProfile) -> Calibration | None:
        if summary.calibration is None:
            return None
        now = select_calibration(self.hardware, summary.sku, engine.id)
        if now is not None and now.stack == summary.calibration:
            return now
        named = (summary.sku, summary.calibration)
        return next((fit for fit in self.hardware.calibrations if (fit.sku, fit.stack) == named), now)


_SETTINGS = frozenset(records.PoolSummary.__dataclass_fields__) - {"sku", "engine", "engine_version", "calibration"}
"""Fields of a pool's summary that are fields of `ReplicaConfig` as they stand, where it has them."""


def _option(summary: records.PlannedSummary, pools: list[Pool]) -> DeploymentOption:
    """The configurations that were chosen, under the names they were chosen by."""
    bare = [PoolOption(pool.role, pool.config, pool.router) for pool in pools]
    names = summary.name.partition(" ")[2].split(" + ")
    if len(names) == len(bare):
        pairs = zip(bare, names, strict=True)
        bare = [replace(option, tag=name.removeprefix(option.name).strip()) for option, name in pairs]
    return DeploymentOption(summary.deployment.mode, tuple(bare))


def _performance(summary: records.PerformanceSummary) -> Performance:
    kept = {name: value for name, value in vars(summary).items() if name in Performance.__dataclass_fields__}
    latencies = {metric.value: _distribution(getattr(summary, f"{metric}_s")) for metric in Metric}
    classes = []
    for one in summary.classes:
        seen = {Metric.TTFT: one.ttft_s, Metric.TPOT: one.tpot_s, Metric.E2E: one.e2e_s}
        distributions = {metric: _distribution(latency) for metric, latency in seen.items()}
        classes.append(class_performance(one.name, one.rate_per_s, distributions, one.attainment))
    return Performance(**{**kept, **latencies, "classes": tuple(classes), "samples_s": {}})


def _distribution(summary: records.LatencySummary) -> LatencyDistribution:
    percentiles_s = {percentile: getattr(summary, name) for name, percentile in records.PERCENTILES.items()}
    return LatencyDistribution.from_percentiles(summary.mean, percentiles_s)


def _entry(table: Mapping[str, Record], name: str, place: str) -> Record:
    if name not in table:
        raise UnknownNameError(place, name, table)
    return table[name]


@contextmanager
def _located(place: str) -> Iterator[None]:
    """Names the place of the document in an error that only knows its own field."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}.{error.field}", error.value, error.bound, error.fix) from None
