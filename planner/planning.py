"""`plan(request) -> Plan`: the only orchestrator. From a model, its traffic and its targets to a costed fleet.

Candidates meet the integer program here; the allocation is evaluated again at its real pool sizes and simulated request
by request before it is shown. What turns out too optimistic gets its true rate, what misses a target in simulation a
lower one, and the program is solved again, so the plan that is printed has been seen to hold.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import date, timedelta
from functools import partial

from threadpoolctl import threadpool_limits

from hardware_db import EngineProfile, GpuSku, HardwareDb, Price, load_hardware, select_calibration, select_price
from planner.candidates import CandidateSet, Demand, Mode, Offer, Rejection, find_candidates
from planner.columns import Column, Columns, pool_sizes, used_by_option
from planner.deployment import Performance
from planner.errors import UnknownNameError
from planner.optimizer import Allocation, Limits, Objective, SolveStatus, solve
from planner.performance import evaluate
from planner.plan_types import (
    AGREEMENT,
    STALE_PRICE_DAYS,
    Agreement,
    Alternative,
    CostBreakdown,
    FleetLimits,
    Plan,
    PlannedDeployment,
    PlanRequest,
    PricePolicy,
    TargetCheck,
    latency_over,
)
from planner.simulator import simulate
from planner.stages import prompt_time_share
from planner.workload import LatencyTarget, Metric, Slo, Workload

__all__ = [
    "AGREEMENT",
    "STALE_PRICE_DAYS",
    "Agreement",
    "Alternative",
    "CostBreakdown",
    "FleetLimits",
    "Plan",
    "PlanRequest",
    "PlannedDeployment",
    "PricePolicy",
    "TargetCheck",
    "offered_price",
    "plan",
]

HOURS_PER_MONTH = 730.0
"""8760 h / 12, the month cloud price lists use."""
RELATIVE_GAP = 1e-4
"""To which the fleet is proved best; a cent on a hundred dollars."""
MAX_ROUNDS = 60
"""Solves before the plan is shown as it stands, with what it misses."""
SETTLED_LIFETIMES = 15.0
"""Simulated time in mean request lifetimes: long against the start, which the warm-up drops."""
MAX_SIMULATED = 200_000
Z_95 = 1.96
"""Two-sided 95 % quantile of the normal law: half-width of a simulated share in standard errors."""


Progress = Callable[[str], None]


def plan(request: PlanRequest, hardware: HardwareDb | None = None, progress: Progress | None = None) -> Plan:
    """The cheapest (or otherwise best, see `PlanRequest.objective`) fleet that meets every target.

    Args:
        request: what is served, promised, allowed and aimed at.
        hardware: SKUs, prices and engines; the packaged database when None.
        progress: called with the name of each stage as it starts.

    Raises InputError for unknown SKUs or engines. An infeasible request is an answer: `Plan.feasible` is False.
    """
    with threadpool_limits(limits=1, user_api="blas"):  # many small systems: threads cost more than they give
        return _plan(request, hardware or load_hardware(), progress or (lambda _: None))


def _plan(request: PlanRequest, hardware: HardwareDb, say: Progress) -> Plan:
    started = time.perf_counter()
    engine = _engine(request, hardware)
    offers, unpriced = _offers(request, hardware, engine.id)
    say("searching configurations")
    demand = Demand(request.llm, request.precision, request.workload, request.slo)
    found = find_candidates(demand, request.search, offers, engine)
    say("solving and simulating")
    columns = Columns(found.options, demand)
    allocation, deployments = _settle(request, demand, columns)
    rejections = (*found.rejections, *unpriced)
    if not deployments:
        return _infeasible(request, allocation, rejections, found, time.perf_counter() - started)
    say("comparing alternatives")
    cost = _cost(deployments, request.slo)
    targets = _target_checks(request, deployments)
    agreement = _agreement(deployments)
    return Plan(
        request=request,
        status=allocation.status if allocation else SolveStatus.INFEASIBLE,
        allocation=allocation,
        deployments=deployments,
        cost=cost,
        targets=targets,
        agreement=agreement,
        alternatives=_alternatives(request, columns, cost),
        rejections=rejections,
        diagnosis=(),
        assumptions=_assumptions(deployments),
        warnings=_warnings(request.prices.day, deployments, targets, agreement),
        considered=found.considered,
        elapsed_s=time.perf_counter() - started,
    )


def _engine(request: PlanRequest, hardware: HardwareDb) -> EngineProfile:
    if request.search.engine not in hardware.engines:
        raise UnknownNameError("search.engine", request.search.engine, hardware.engines)
    return hardware.engines[request.search.engine]


def _offers(request: PlanRequest, hardware: HardwareDb, engine: str) -> tuple[list[Offer], list[Rejection]]:
    """SKUs of the search space with their price and calibration; those without a price are rejected by name."""
    policy = request.prices
    for field, names in (
        ("search.skus", request.search.skus),
        ("prices.usd_per_gpu_hour", policy.usd_per_gpu_hour),
        ("limits.gpus", request.limits.gpus),
    ):
        for name in names:
            if name not in hardware.skus:
                raise UnknownNameError(field, name, hardware.skus)
    offers, unpriced = [], []
    for name in dict.fromkeys(request.search.skus):
        price = offered_price(name, policy, hardware)
        if price is not None:
            calibration = select_calibration(hardware, name, engine) if request.search.calibrated else None
            offers.append(Offer(hardware.skus[name], price, calibration))
            continue
        reason = f"{name}: no {policy.commitment} price listed; give one in prices.usd_per_gpu_hour"
        unpriced += [Rejection(name, mode, reason, math.inf) for mode in request.search.modes]
    return offers, unpriced


def offered_price(sku: str, policy: PricePolicy, hardware: HardwareDb) -> Price | None:
    """The price of a SKU under a policy (see `PricePolicy`), or None when nothing is listed.

    Raises UnknownNameError for a SKU, commitment, provider or region that is nowhere in the database.
    """
    if sku in policy.usd_per_gpu_hour:
        return Price(
            sku=sku,
            provider="own price",
            region="any",
            commitment=policy.commitment,
            usd_per_gpu_hour=policy.usd_per_gpu_hour[sku],
            source_url="given in the request",
            retrieved_on=policy.day,
            confidence="high",
        )
    choose = partial(
        select_price,
        hardware,
        sku,
        commitment=policy.commitment,
        provider=policy.provider,
        region=policy.region,
        min_confidence=policy.min_confidence,
    )
    return choose(not_before=policy.day - timedelta(days=STALE_PRICE_DAYS)) or choose()


def _limits(request: PlanRequest) -> Limits:
    return Limits(
        demand_per_s=request.workload.arrivals.rate_per_s,
        budget_per_h=request.limits.budget_usd_per_hour,
        resources={sku: float(count) for sku, count in request.limits.gpus.items()},
    )


def _settle(
    request: PlanRequest, demand: Demand, columns: Columns
) -> tuple[Allocation | None, tuple[PlannedDeployment, ...]]:
    """Solve, deploy and simulate; lower the rates of what misses and repeat, until everything holds."""
    allocation: Allocation | None = None
    deployments: tuple[PlannedDeployment, ...] = ()
    for _ in range(MAX_ROUNDS if columns.all else 0):
        allocation = _solve(request, demand, columns)
        if not allocation.status.has_allocation:
            return _diagnosed(request, demand, columns), ()
        deployments = _deploy(request, allocation, columns)
        missed = [planned for planned in deployments if _missed(planned, request.slo)]
        if not missed:
            break
        columns.lower(missed, allocation)
    return allocation, deployments


def _solve(request: PlanRequest, demand: Demand, columns: Columns) -> Allocation:
    """The best allocation; of equally good ones, one without disaggregation, which is simpler to run."""
    best = _refined(columns, demand, _limits(request), request.objective)
    if all(column.option.mode is Mode.MIXED for column in columns.chosen(best)):
        return best
    mixed = [column for column in columns.all if column.option.mode is Mode.MIXED and column.checked]
    simple = _solved(mixed, _limits(request), request.objective)
    if simple.objective is not None and best.objective is not None:
        return simple if math.isclose(simple.objective, best.objective, rel_tol=1e-9) else best
    return best


def _refined(columns: Columns, demand: Demand, limits: Limits, objective: Objective) -> Allocation:
    """Solve and replace optimistic rates by true ones until every chosen column has its true rate.

    The result is optimal over the true rates of all columns although only those of chosen ones were computed.
    """
    while True:
        allocation = _solved(columns.all, limits, objective)
        unchecked = [column for column in columns.chosen(allocation) if not column.checked]
        if not unchecked:
            return allocation
        columns.check(unchecked, demand)


def _solved(columns: list[Column], limits: Limits, objective: Objective) -> Allocation:
    program = [column.candidate() for column in columns]
    return solve(program, limits, objective, relative_gap=RELATIVE_GAP)


def _diagnosed(request: PlanRequest, demand: Demand, columns: Columns) -> Allocation:
    """Why nothing fits, and what would, by true rates: those of the cheapest fleet and of the most that can be had."""
    limits = _limits(request)
    _refined(columns, demand, Limits(demand_per_s=limits.demand_per_s), Objective.MIN_COST)
    _refined(columns, demand, limits, Objective.MAX_RATE)
    return _solved([column for column in columns.all if column.checked], limits, request.objective)


def _deploy(request: PlanRequest, allocation: Allocation, columns: Columns) -> tuple[PlannedDeployment, ...]:
    """The deployments of an allocation, evaluated and simulated at the rates routed to them.

    Several columns of one configuration become one deployment: a larger pool waits no longer than its parts.
    """
    planned = []
    for chosen in columns.by_option(allocation).values():
        option = chosen[0][0].option
        replicas = pool_sizes(chosen)
        rate = sum(allocation.routed_rate[column.name] for column, _ in chosen)
        arrivals = request.workload.arrivals.split(rate / request.workload.arrivals.rate_per_s)
        workload = Workload(arrivals=arrivals, classes=request.workload.classes)
        deployment = option.deployment(replicas)
        predicted = evaluate(deployment, workload)
        planned.append(
            PlannedDeployment(
                option=option,
                deployment=deployment,
                workload=workload,
                sustained_per_s=sum(units * column.rate_per_s for column, units in chosen),
                predicted=predicted,
                simulated=simulate(deployment, workload, seed=request.seed, requests=_requests(request, predicted)),
                usd_per_hour=option.usd_per_hour(replicas),
                nodes=tuple(
                    _nodes(pool.config.sku, pool.config.parallelism.gpus, pool.replicas) for pool in deployment.pools
                ),
            )
        )
    return tuple(planned)


def _requests(request: PlanRequest, predicted: Performance) -> int:
    """Requests to simulate: as asked for, and enough for the run to outlast its start by many request lifetimes."""
    lifetime_s = predicted.e2e.mean_s if predicted.stable else 0.0
    settled = math.ceil(SETTLED_LIFETIMES * lifetime_s * predicted.rate_per_s)
    return max(request.simulated_requests, min(settled, MAX_SIMULATED))


def _nodes(sku: GpuSku, gpus_per_replica: int, replicas: int) -> int:
    """Servers for `replicas` replicas, none of which straddles two servers unless it is larger than one."""
    if gpus_per_replica > sku.node.gpus:
        return replicas * math.ceil(gpus_per_replica / sku.node.gpus)
    return math.ceil(replicas / (sku.node.gpus // gpus_per_replica))


def _missed(planned: PlannedDeployment, slo: Slo) -> LatencyTarget | None:
    """The first target that theory or simulation misses (simulation beyond its own 95 % sampling error)."""
    for target in slo.targets:
        if planned.predicted.latency_s(target) > target.threshold_s or not _holds_in(planned.simulated, target):
            return target
    return None


def _holds_in(simulated: Performance, target: LatencyTarget) -> bool:
    share = simulated.distribution(target.metric).cdf(target.threshold_s)
    error = math.sqrt(target.percentile * (1.0 - target.percentile) / max(simulated.requests, 1))
    return share >= target.percentile - Z_95 * error


def _cost(deployments: tuple[PlannedDeployment, ...], slo: Slo) -> CostBreakdown:
    total = sum(planned.usd_per_hour for planned in deployments)
    rate = sum(planned.workload.arrivals.rate_per_s for planned in deployments)
    lengths = deployments[0].workload.lengths
    on_inputs = sum(_usd_on_inputs(planned) for planned in deployments)
    goodput = sum(planned.simulated.goodput_per_s(slo) for planned in deployments)
    per_hour = 3600.0 * rate
    return CostBreakdown(
        usd_per_hour=total,
        usd_per_month=total * HOURS_PER_MONTH,
        usd_per_million_input_tokens=1e6 * on_inputs / (per_hour * lengths.mean_input),
        usd_per_million_output_tokens=1e6 * (total - on_inputs) / (per_hour * lengths.mean_output),
        usd_per_thousand_requests=1e3 * total / per_hour,
        goodput_per_s=goodput,
        requests_per_usd=3600.0 * goodput / total,
    )


def _usd_on_inputs(planned: PlannedDeployment) -> float:
    """Cost of input tokens [USD/h]: each pool's cost times the share of its step time that prompts add."""
    return sum(
        pool.replicas * option.usd_per_replica_hour * prompt_time_share(pool, planned.workload)
        for option, pool in zip(planned.option.pools, planned.deployment.pools, strict=True)
    )


def _target_checks(request: PlanRequest, deployments: tuple[PlannedDeployment, ...]) -> tuple[TargetCheck, ...]:
    checks = []
    for target in request.slo.targets:
        predicted = latency_over(deployments, target.metric, simulated=False)
        simulated = latency_over(deployments, target.metric, simulated=True)
        checks.append(
            TargetCheck(
                target=target,
                predicted_s=predicted.quantile_s(target.percentile),
                simulated_s=simulated.quantile_s(target.percentile),
                simulated_attainment=simulated.cdf(target.threshold_s),
                met=predicted.quantile_s(target.percentile) <= target.threshold_s
                and all(_holds_in(planned.simulated, target) for planned in deployments),
            )
        )
    return tuple(checks)


def _agreement(deployments: tuple[PlannedDeployment, ...]) -> tuple[Agreement, ...]:
    pairs = [
        Agreement(
            metric,
            latency_over(deployments, metric, simulated=False).mean_s,
            latency_over(deployments, metric, simulated=True).mean_s,
        )
        for metric in (Metric.TTFT, Metric.TPOT)
    ]
    return tuple(pair for pair in pairs if pair.simulated_mean_s > 0.0)


def _alternatives(request: PlanRequest, columns: Columns, chosen: CostBreakdown) -> tuple[Alternative, ...]:
    """The best fleet of each single SKU and of each mode, from theory, over the columns whose rate is known."""
    known = [column for column in columns.all if column.checked]
    by_sku = [
        (sku, "sku", [column for column in known if column.option.skus == {sku}])
        for sku in dict.fromkeys(request.search.skus)
    ]
    by_mode = [
        (mode.value, "mode", [column for column in known if column.option.mode is mode])
        for mode in request.search.modes
    ]
    return tuple(_alternative(request, kept, chosen, name, kind) for name, kind, kept in by_sku + by_mode)


def _alternative(request: PlanRequest, kept: list[Column], chosen: CostBreakdown, name: str, kind: str) -> Alternative:
    allocation = _solved(kept, _limits(request), request.objective) if kept else None
    if allocation is None or not allocation.status.has_allocation:
        return Alternative(name, kind, "none meets the targets within the limits", None, 0.0, False)
    fleets = [used[0][0].option.deployment(pool_sizes(used)) for used in used_by_option(kept, allocation).values()]
    return Alternative(
        restriction=name,
        kind=kind,
        summary=" + ".join(fleet.summary for fleet in fleets),
        usd_per_hour=allocation.cost_per_h,
        rate_per_s=allocation.rate_per_s,
        is_chosen=math.isclose(allocation.cost_per_h, chosen.usd_per_hour, rel_tol=1e-9),
    )


def _assumptions(deployments: tuple[PlannedDeployment, ...]) -> tuple[str, ...]:
    notes = [note for planned in deployments for note in planned.predicted.assumptions]
    for planned in deployments:
        for pool in planned.option.pools:
            price = pool.price
            notes.append(
                f"{price.sku}: {price.usd_per_gpu_hour:.2f} USD/GPU-h, {price.provider}, {price.commitment}, "
                f"read {price.retrieved_on.isoformat()}, {price.source_url}"
            )
    return tuple(dict.fromkeys(notes))


def _warnings(
    day: date,
    deployments: tuple[PlannedDeployment, ...],
    targets: tuple[TargetCheck, ...],
    agreement: tuple[Agreement, ...],
) -> tuple[str, ...]:
    warnings = []
    for check in targets:
        if not check.met:
            warnings.append(f"{check.target.name}: simulated {1e3 * check.simulated_s:.3g} ms misses the target")
    for pair in agreement:
        if not pair.holds:
            warnings.append(
                f"mean {pair.metric.value.upper()}: theory and simulation differ by {pair.relative_difference:+.0%}"
            )
    for planned in deployments:
        for pool in planned.option.pools:
            age = (day - pool.price.retrieved_on).days
            if age > STALE_PRICE_DAYS:
                warnings.append(f"{pool.price.sku}: price is {age} days old ({pool.price.provider})")
    return tuple(dict.fromkeys(warnings))


def _infeasible(
    request: PlanRequest,
    allocation: Allocation | None,
    rejections: tuple[Rejection, ...],
    found: CandidateSet,
    elapsed_s: float,
) -> Plan:
    return Plan(
        request=request,
        status=allocation.status if allocation else SolveStatus.INFEASIBLE,
        allocation=allocation,
        deployments=(),
        cost=None,
        targets=(),
        agreement=(),
        alternatives=(),
        rejections=rejections,
        diagnosis=_diagnosis(allocation, rejections),
        assumptions=(),
        warnings=(),
        considered=found.considered,
        elapsed_s=elapsed_s,
    )


def _diagnosis(allocation: Allocation | None, rejections: tuple[Rejection, ...]) -> tuple[str, ...]:
    """The binding limit and the smallest change that makes the request feasible, one line each."""
    if allocation is not None and allocation.diagnosis is not None:
        diagnosis = allocation.diagnosis
        return (diagnosis.summary, *(f"smallest change: {relaxation}" for relaxation in diagnosis.relaxations))
    if allocation is not None:
        return (f"the solver ended with {allocation.status}: no fleet found",)
    lines = [f"no configuration meets the targets; {rejection.reason}" for rejection in rejections]
    reachable = [rejection for rejection in rejections if math.isfinite(rejection.ratio)]
    if reachable:
        nearest = min(reachable, key=lambda rejection: rejection.ratio)
        lines.insert(0, f"nearest: {nearest.reason}; relax that target by a factor of {nearest.ratio:.3g} or more")
    return tuple(dict.fromkeys(lines))
