"""A fleet that is given, not searched for: does it meet the targets, with which probability, and what would it cost?

The answer is a `Plan` of exactly these pools, made of the same parts as one that was searched for: latencies by theory
and simulation, the probability over what step times may be off by, losses, and the cheapest way to buy its GPUs. That
it misses a target is an answer. Limits of what may be bought do not count, since it is there or will be.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Sequence
from dataclasses import replace

from threadpoolctl import threadpool_limits

from hardware_db import HardwareDb, select_calibration
from planner.core import InputError, PlannerError, UnknownNameError, rebuilt
from planner.engine import require_room
from planner.fleet.confidence import at_deviations, counted_draws, optimistic_deviations, rate_factors, slow_rule
from planner.fleet.market import market_of
from planner.fleet.packing import PackedPool
from planner.fleet.pairing import UsedPool, deployments_of
from planner.fleet.planning import described_plan, hardware_for
from planner.fleet.program import FleetSearch, demand_of, search_fleet
from planner.fleet.search import VerifiedFleet, counted_worlds, simulated_fleet, verified_groups, with_slow_steps
from planner.fleet.types import Plan, PlannedDeployment, PlanRequest, Progress
from planner.fleet.verification import target_checks
from planner.optimizer import Allocation, Objective
from planner.search import ConfigurationFamily, Offer, PoolOption, setups_of
from planner.serving import Deployment, Pool, Role, largest_stable_rate_per_s, sustainable_rate_per_s
from planner.supply import FleetLimits, typed_sku
from planner.workload import Workload

DEFAULT_RUNNING, DEFAULT_TOKENS = 256, 8192
"""Batch limit [requests] and chunk budget [tokens] of a replica unless they are given. Choices: those of the commands
`evaluate` and `simulate`."""
_POOL = re.compile(
    r"(?P<replicas>[1-9]\d{0,5}) ?[x×] ?(?P<sku>((?! (TP|PP|DP|EP|DCP|PCP|c|b|E)\d)[a-zA-Z0-9. -])+?)"
    r"(?P<knobs>( (TP|PP|DP|EP|DCP|PCP|c|b)[1-9]\d{0,6}| E\d{1,4}(\.\d{1,4})?)*)"
    r"( (?P<role>mixed|prefill|decode))?"
)
_SHOWN = re.compile(r"[\d,]+ ?[x×] ?([^()]+) \((\d+) (mixed|prefill|decode)([^()]*)\)")
"""A pool as `Deployment.summary` says it."""
_KNOB = re.compile(r"\b(TP|PP|DP|EP|DCP|PCP|c|b|E)(\d+(?:\.\d+)?)")
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
    """The plan of a given fleet of one deployment, for the traffic and the targets of a request.

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
    """Pools: ``12 x h100-sxm TP4``, ``13 x b200 TP1 prefill + 3 x b200 TP2 b512 decode``, or as plans name them.

    What the words leave open is set up as a plan would: of the formats, caches and drafts that `request.search` may
    choose among, the first with which the fleet serves most within the targets, to `SearchSpace.simplicity`.

    Args:
        text: pools joined by ``+``: replicas, a GPU, degrees (TP, PP, DP, EP; 1 unless given), E with the encoders of
            a replica [GPUs], c and b with its chunk budget [tokens] and batch limit [requests], and the role (mixed
            unless given).
        request: whose model, formats, first engine and router they have.
        hardware: SKUs and engines.

    Raises:
        InputError: words that are no pools, or pools that do not fit or serve together however they are set up.
        UnknownNameError: a SKU that is not known.
    """
    pools = [_pools_in_words(part.strip(), request, hardware) for part in text.split(" + ")]
    found, refusals = [], list[PlannerError]()
    for together in itertools.product(*pools):
        try:
            deployment = Deployment(pools=together)
            for pool in together:
                require_room(pool.config, request.workload.lengths.max_total)
        except InputError as error:
            refusals.append(error)
        else:
            found.append(deployment)
    if not found:
        raise refusals[0]
    if len(found) == 1:
        return found[0]
    most_per_s = [_most_per_s(deployment, request) for deployment in found]
    enough = tuple((1.0 - request.search.simplicity) * most for most in max(most_per_s))
    return next(deployment for deployment, most in zip(found, most_per_s, strict=True) if most >= enough)


def _most_per_s(deployment: Deployment, request: PlanRequest) -> tuple[float, float]:
    """Largest rates within the targets, and that are stable [1/s]."""
    service = request.main
    workload = Workload(arrivals=service.workload.open_arrivals, classes=service.workload.classes)
    most_per_s = SEARCHED_FACTOR * request.growth * workload.rate_per_s
    return (
        sustainable_rate_per_s(deployment, workload, service.slo, at_most=most_per_s),
        largest_stable_rate_per_s(deployment, workload),
    )


def _pools_in_words(text: str, request: PlanRequest, hardware: HardwareDb) -> list[Pool]:
    """The pool that is meant, in every way it may be set up."""
    found = _POOL.fullmatch(_SHOWN.sub(r"\2 x \1\4 \3", text))
    if found is None:
        raise InputError("fleet", text, "is not a pool", "write e.g. '12 x h100-sxm TP4 c8192 b256 mixed'")
    sku, role, service = typed_sku(found["sku"], hardware.skus), Role(found["role"] or Role.MIXED), request.main
    if sku not in hardware.skus:
        raise UnknownNameError("fleet", sku, hardware.skus)
    words = {name.lower(): count for name, count in _KNOB.findall(found["knobs"])}
    encoders = (float(words.pop("e", 0.0)),)
    numbers = {name: int(count) for name, count in words.items()}
    degrees = {name: (numbers.get(name, 1),) for name in ("tp", "pp", "dp", "ep", "dcp", "pcp")}
    if numbers.get("pcp", 1) > 1 and role is not Role.PREFILL:
        raise InputError("fleet", text, "only prefill pools share out prompts (PCP)", "write prefill, or leave PCP out")
    space = request.search.model_copy(update={**degrees, "more_engines": (), "encoders": encoders})
    engine = hardware.engines[space.engine]
    calibration = select_calibration(hardware, sku, engine.id) if space.calibrated else None
    configs = setups_of(
        demand_of(service, service.workload, service.slo),
        space,
        Offer(hardware.skus[sku], {engine.id: calibration}),
        hardware.engines,
        role,
        numbers.get("c", DEFAULT_TOKENS),
        numbers.get("b", DEFAULT_RUNNING),
    )
    return [Pool(role=role, config=config, replicas=int(found["replicas"]), router=space.router) for config in configs]


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
    failing = {name: getattr(request.limits, name) for name in ("spare_replicas", "redundancy", "survives_node_loss")}
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
    slow, deviations = _slow(search, fleet.deployments)
    factors = rate_factors(slow, search.slos)
    found = described_plan(search, fleet, fleet.deployments[0].run is not None, slow, factors, given=True)
    confidence = None
    if simulate:
        progress("drawing what step times may be off by")
        confidence = counted_draws(slow, search.slos, request, factors, exact=True).confidence
    return replace(
        found, slow_targets=target_checks(slow, search.slos), slow_deviations=deviations, confidence=confidence
    )


def _slow(search: FleetSearch, deployments: Sequence[PlannedDeployment]) -> tuple[tuple[PlannedDeployment, ...], float]:
    """Deployments with step times as slow as a plan is made for, and by how many standard deviations.

    Simulated where they were as estimated and keep up: that is what a plan is judged by, and near its targets a
    simulation shows what theory does not see.
    """
    request = search.request
    deviations = optimistic_deviations(request.confidence)
    least = [at_deviations(planned, deviations, request.measured_steps) for planned in deployments]
    simulate = all(planned.run is not None for planned in deployments)
    found = with_slow_steps(search, least, simulate, counted_worlds(search, least))
    slow = found.deployments
    if simulate and all(planned.run is None and planned.predicted.stable for planned in slow):
        slow = simulated_fleet(search, slow)
    return slow, found.deviations


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
    return VerifiedFleet(allocation, tuple(map(_with_largest_rate, deployments)))


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
    spares = map(limits.spares, replicas)
    lost = [own + (most if limits.survives_node_loss else 0) for own, most in zip(spares, worst, strict=True)]
    left = [count - gone for count, gone in zip(replicas, lost, strict=True)]
    if min(left) < 1:
        bound = f"of a pool of {replicas[left.index(min(left))]} nothing is left when {max(lost)} may fail"
        fix = "give it more replicas, or leave limits.spare_replicas, redundancy and survives_node_loss out"
        raise InputError("fleet", replicas, bound, fix)
    return left


def _with_largest_rate(planned: PlannedDeployment) -> PlannedDeployment:
    most_per_s = SEARCHED_FACTOR * planned.workload.rate_per_s
    rate_per_s = sustainable_rate_per_s(planned.deployment, planned.workload, planned.slo, at_most=most_per_s)
    return replace(planned, sustained_per_s=rate_per_s)
