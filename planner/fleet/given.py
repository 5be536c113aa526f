"""A fleet that is given, not searched for: does it meet the targets, with which probability, and what would it cost?

The answer is a `Plan` of exactly these pools, made of the same parts as one that was searched for: latencies by theory
and simulation, the probability over what step times may be off by, losses, and the cheapest way to buy its GPUs. That
it misses a target is an answer. Limits of what may be bought do not count, since it is there or will be.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace

from threadpoolctl import threadpool_limits

from hardware_db import HardwareDb, select_calibration
from planner.core import InputError, UnknownNameError, rebuilt
from planner.engine import ReplicaConfig
from planner.fleet.confidence import at_deviations, confidence_of, deviations_of, rate_factors, slow_rule
from planner.fleet.market import market_of
from planner.fleet.packing import PackedPool
from planner.fleet.pairing import UsedPool, deployments_of
from planner.fleet.planning import described_plan, hardware_for
from planner.fleet.program import FleetSearch, search_fleet
from planner.fleet.search import VerifiedFleet, verified_groups
from planner.fleet.types import Plan, PlannedDeployment, PlanRequest, Progress
from planner.fleet.verification import target_checks
from planner.optimizer import Allocation, Objective
from planner.roofline import Parallelism
from planner.search import ConfigurationFamily, PoolOption, may_share_prefixes
from planner.serving import Deployment, Pool, Role, sustainable_rate_per_s
from planner.supply import FleetLimits

DEFAULT_RUNNING, DEFAULT_TOKENS = 256, 8192
"""Batch limit [requests] and chunk budget [tokens] of a replica unless they are given. Choices: those of the commands
`evaluate` and `simulate`."""
_POOL = re.compile(
    r"(?P<replicas>[1-9]\d{0,5}) ?[x×] ?(?P<sku>[a-z0-9.-]+)(?P<knobs>( (TP|PP|DP|EP|c|b)[1-9]\d{0,6})*)"
    r"( (?P<role>mixed|prefill|decode))?"
)
_KNOB = re.compile(r"(TP|PP|DP|EP|c|b)(\d+)")
SEARCHED_FACTOR = 4.0
"""Largest rate that is looked for, over the demand. A choice: beyond it the fleet is several times too large."""


def plan_of_given(
    request: PlanRequest,
    deployment: Deployment,
    hardware: HardwareDb | None = None,
    progress: Progress = lambda _: None,
    *,
    simulate: bool = True,
) -> Plan:
    """What a fleet of one deployment is for the traffic and the targets of a request.

    Args:
        request: traffic, targets, prices and confidence; of its limits those of what may fail count.
        deployment: mixed, or a prefill and a decode pool, with step times as estimated.
        hardware: SKUs, prices and engines; the packaged database when None.
        progress: called with the name of each stage as it starts.
        simulate: verify it by simulation too, where it keeps up.

    Returns:
        A plan of these pools. `PlannedDeployment.sustained_per_s` is the largest rate within the targets [1/s], up to
        `SEARCHED_FACTOR` times the demand.

    Raises:
        InputError: several services, a cascade, a demand profile or work that may wait; a deployment that does not
            fit; or GPUs that nobody sells where the request buys.
        UnknownNameError: SKUs of which nothing is known.
    """
    _require_one_steady_service(request)
    started = time.perf_counter()
    with threadpool_limits(limits=1, user_api="blas"):
        return replace(
            _given(request, deployment, hardware_for(request, hardware), progress, simulate),
            elapsed_s=time.perf_counter() - started,
        )


def deployment_in_words(text: str, request: PlanRequest, hardware: HardwareDb) -> Deployment:
    """Pools as plans name them: ``12 x h100-sxm TP4``, ``13 x b200-sxm TP1 prefill + 3 x b200-sxm TP2 b512 decode``.

    Args:
        text: pools joined by ``+``: replicas, SKU id, degrees (TP, PP, DP, EP; 1 unless given), c and b with the chunk
            budget [tokens] and the batch limit [requests] of a replica, and the role (mixed unless given).
        request: whose model, formats, first engine and router they have.
        hardware: SKUs and engines.

    Raises:
        InputError: words that are no pools, or pools that do not serve together.
        UnknownNameError: a SKU that is not known.
    """
    return Deployment(pools=tuple(_pool_in_words(part.strip(), request, hardware) for part in text.split(" + ")))


def _pool_in_words(text: str, request: PlanRequest, hardware: HardwareDb) -> Pool:
    found = _POOL.fullmatch(text)
    if found is None:
        raise InputError("fleet", text, "is not a pool", "write e.g. '12 x h100-sxm TP4 c8192 b256 mixed'")
    if found["sku"] not in hardware.skus:
        raise UnknownNameError("fleet", found["sku"], hardware.skus)
    numbers = {name.lower(): int(count) for name, count in _KNOB.findall(found["knobs"])}
    degrees = {name: numbers[name] for name in ("tp", "pp", "dp", "ep") if name in numbers}
    role = Role(found["role"] or Role.MIXED)
    config = given_replica(
        request,
        hardware,
        found["sku"],
        role,
        Parallelism(**degrees),
        numbers.get("b", DEFAULT_RUNNING),
        numbers.get("c", DEFAULT_TOKENS),
    )
    return Pool(role=role, config=config, replicas=int(found["replicas"]), router=request.search.router)


def given_replica(
    request: PlanRequest,
    hardware: HardwareDb,
    sku: str,
    role: Role,
    parallelism: Parallelism,
    max_running_requests: int,
    max_batched_tokens: int,
) -> ReplicaConfig:
    """A replica of the model of a request, set up as its first engine sets it up, with measured step times if it may.

    Shared prefixes are cached where the traffic has any. Raises InputError for a split that makes no replica.
    """
    engine = hardware.engines[request.search.engine]
    config = ReplicaConfig(
        llm=request.llm,
        sku=hardware.skus[sku],
        engine=engine,
        precision=request.precision,
        parallelism=parallelism,
        max_running_requests=max_running_requests,
        max_batched_tokens=max_batched_tokens,
        max_request_tokens=request.max_request_tokens,
        calibration=select_calibration(hardware, sku, engine.id) if request.search.calibrated else None,
        lora=request.search.lora,
    )
    if role is Role.DECODE or not may_share_prefixes(request.workload):
        return config
    return rebuilt(config, own_schedule=config.schedule.model_copy(update={"prefix_cache": True}))


def _require_one_steady_service(request: PlanRequest) -> None:
    for field, several in (
        ("services", len(request.all_services) > 1),
        ("cascade", request.cascade is not None),
        ("profile", request.profile is not None),
        ("offline", bool(request.offline)),
    ):
        if several:
            bound = "a given fleet is looked at for one model at its busiest rate"
            raise InputError(field, "(given)", bound, f"leave {field} out")


def _given(
    request: PlanRequest, deployment: Deployment, hardware: HardwareDb, progress: Progress, simulate: bool
) -> Plan:
    engines = list(dict.fromkeys(pool.config.engine.id for pool in deployment.pools))
    skus = tuple(dict.fromkeys(pool.config.sku.id for pool in deployment.pools))
    space = request.search.model_copy(update={"skus": skus, "engine": engines[0], "more_engines": tuple(engines[1:])})
    failing = {name: getattr(request.limits, name) for name in ("spare_replicas", "survives_node_loss")}
    asked = request.model_copy(update={"search": space, "limits": FleetLimits()})
    market = market_of(asked, hardware)
    if market.unpriced:
        raise InputError("deployment.pools.sku", market.unpriced[0].sku, market.unpriced[0].reason, "give its price")
    rule, lengths = slow_rule(0.0, request.measured_steps), request.workload.lengths
    options = []
    for pool in deployment.pools:
        shift = None if rule is None else rule(pool.config, pool.role, lengths.mean_input, lengths.mean_output)
        config = pool.config if shift is None else rebuilt(pool.config, shift=shift)
        options.append(PoolOption(pool.role, config, pool.router))
    search = search_fleet(asked, market, asked.all_services, progress, given=[_family_of(option) for option in options])
    replicas = [pool.replicas for pool in deployment.pools]
    fleet = _verified(search, options, replicas, FleetLimits(**failing), simulate)
    progress("adding up")
    search = replace(search, request=asked.model_copy(update={"limits": FleetLimits(**failing)}))
    deviations = deviations_of(request.confidence)
    slow = [at_deviations(planned, deviations, request.measured_steps) for planned in fleet.deployments]
    factors = rate_factors(fleet.deployments, search.slos)
    found = described_plan(search, fleet, fleet.deployments[0].run is not None, slow, factors, given=True)
    confidence = None
    if simulate:
        progress("drawing what step times may be off by")
        confidence = confidence_of(
            fleet.deployments, search.slos, request.confidence, request.seed, request.measured_steps, factors
        )
    return replace(found, slow_targets=target_checks(slow, search.slos), confidence=confidence)


def _family_of(option: PoolOption) -> ConfigurationFamily:
    return ConfigurationFamily(option.role, (option,))


def _verified(
    search: FleetSearch, options: Sequence[PoolOption], replicas: Sequence[int], limits: FleetLimits, simulate: bool
) -> VerifiedFleet:
    """The pools with all traffic and without what may fail, bought where that costs least."""
    service = next(iter(search.slices.values())).service.name
    demand_per_s = {name: max(slice_.demand_per_s) for name, slice_ in search.slices.items()}
    columns = [
        search.columns.given(service, _family_of(option).name, count, demand_per_s)
        for option, count in zip(options, replicas, strict=True)
    ]
    allocation = search.allocation(columns, Objective.MIN_COST)
    if not allocation.status.has_allocation:
        sku = options[0].config.sku.id
        raise InputError("deployment", sku, "cannot be bought at any one site", "change prices.provider or its pools")
    left = _left(search, allocation, options, replicas, limits)
    pools = [
        UsedPool(service, option, count, surviving, demand_per_s, 1.0, (column.name,), column.channel)
        for option, count, surviving, column in zip(options, replicas, left, columns, strict=True)
    ]
    groups = deployments_of(pools)
    deployments = verified_groups(search, allocation, groups, None)
    if simulate and all(planned.predicted.stable for planned in deployments):
        search.progress("simulating")
        deployments = verified_groups(search, allocation, groups, search.request.simulated_requests)
    return VerifiedFleet(allocation, tuple(map(_with_largest_rate, deployments)), None)


def _left(
    search: FleetSearch,
    allocation: Allocation,
    options: Sequence[PoolOption],
    replicas: Sequence[int],
    limits: FleetLimits,
) -> list[int]:
    """Replicas of each pool that are left when those that may fail have failed, the worst of the servers among them."""
    pools = [PackedPool.of(option.pool(count)) for option, count in zip(options, replicas, strict=True)]
    worst = [max(lost) for lost in zip(*search.server_losses(allocation, pools), strict=True)]
    lost = [limits.spare_replicas + (most if limits.survives_node_loss else 0) for most in worst]
    left = [count - gone for count, gone in zip(replicas, lost, strict=True)]
    if min(left) < 1:
        bound = f"of a pool of {replicas[left.index(min(left))]} nothing is left when {max(lost)} may fail"
        fix = "give it more replicas, or leave limits.spare_replicas and limits.survives_node_loss out"
        raise InputError("fleet", replicas, bound, fix)
    return left


def _with_largest_rate(planned: PlannedDeployment) -> PlannedDeployment:
    most_per_s = SEARCHED_FACTOR * planned.workload.rate_per_s
    rate_per_s = sustainable_rate_per_s(planned.deployment, planned.workload, planned.slo, at_most=most_per_s)
    return replace(planned, sustained_per_s=rate_per_s)
