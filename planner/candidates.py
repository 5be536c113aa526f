"""Which deployments are worth offering to the integer program, at which pool size, and why the others are not.

A configuration is judged by the homogeneous fleet it needs: the smallest number of replicas k whose latencies meet the
Slo at demand / k requests per second each, times its price. The grid SKU x TP x chunk budget is searched with the most
generous batch limit, the other batch limits at the chunk budgets that won. Almost every point falls to a cheap test:

- *idle*: requests that meet nobody already miss a target;
- *fluid*: even the optimistic bound on what a replica carries needs a fleet no cheaper than the best one found;
- *incumbent*: with the largest fleet that would still be cheaper than the best one found, a target is missed.

These drop no cheaper fleet as long as latency grows with the rate (which tests of `planner.queueing` hold it to, with
ample batch slots). The best configurations met on the way at other TP degrees survive too, so that
the program can mix sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, Self

from pydantic import Field, model_validator

from hardware_db import Calibration, EngineProfile, Frozen, GpuSku, Price
from planner.deployment import Deployment, Pool, Role
from planner.errors import InputError, PlannerError
from planner.handover import tandem_tpot, transfer_law
from planner.llm import LlmSpec, Precision
from planner.performance import evaluate
from planner.rates import sustainable_rate_per_s
from planner.replica import Parallelism, ReplicaConfig
from planner.stages import decode_stage, fluid_rate_per_s, idle_latencies, mixed_stage, prefill_stage
from planner.workload import LatencyTarget, Metric, Slo, Workload

RATE_TOLERANCE = 0.015
"""Relative tolerance of a sustainable rate; it is always rounded down, never up."""
CALM = 64
"""A pool of this many times the fluid bound is as good as idle: each replica works 1.6 % of its time."""
USUAL_BUDGET = 2048
"""Chunk budget tried first; only the order of the search depends on it."""
BULK = 0.9
"""A TPOT percentile from here on is taken to lie above the mean step."""
MAX_GRID = 200_000


class Mode(StrEnum):
    """How prompts and decodes share the hardware."""

    MIXED = "mixed"
    DISAGGREGATED = "disaggregated"


class SearchSpace(Frozen):
    """The grid of configurations to consider."""

    skus: tuple[str, ...] = Field(min_length=1, description="SKU ids of the hardware database")
    modes: tuple[Mode, ...] = Field(default=(Mode.MIXED, Mode.DISAGGREGATED), min_length=1)
    tp: tuple[int, ...] = Field(default=(1, 2, 4, 8), min_length=1)
    max_running_requests: tuple[int, ...] = Field(default=(64, 128, 256), min_length=1)
    max_batched_tokens: tuple[int, ...] = Field(default=(512, 1024, 2048, 4096, 8192), min_length=1)
    engine: str = "vllm"
    calibrated: bool = Field(default=True, description="kernels as measured; false: datasheet rooflines, a bound")

    @model_validator(mode="after")
    def _positive_and_small_enough(self) -> Self:
        for name in ("tp", "max_running_requests", "max_batched_tokens"):
            smallest = min(getattr(self, name))
            if smallest < 1:
                raise InputError(name, smallest, "must be >= 1")
        size = len(self.skus) * len(self.tp) * len(self.max_running_requests) * len(self.max_batched_tokens)
        if size > MAX_GRID:
            raise InputError("search", size, f"more than {MAX_GRID} configurations", "shorten a list")
        return self


@dataclass(frozen=True)
class PoolOption:
    """One configuration in one role.

    Attributes:
        role: of the pool.
        config: of its replicas.
        price: the cited price.
        replicas: smallest pool that meets the Slo at the whole demand.
    """

    role: Role
    config: ReplicaConfig
    price: Price
    replicas: int

    @property
    def usd_per_replica_hour(self) -> float:
        """Cost of one replica [USD/h]."""
        return self.price.usd_per_gpu_hour * self.config.parallelism.gpus

    @property
    def fleet_usd_per_hour(self) -> float:
        """Cost of the smallest pool for the whole demand [USD/h]."""
        return self.replicas * self.usd_per_replica_hour


@dataclass(frozen=True)
class DeploymentOption:
    """Pools that serve together: one mixed, or prefill and decode."""

    mode: Mode
    pools: tuple[PoolOption, ...]

    @property
    def name(self) -> str:
        """E.g. ``mixed h100-sxm TP2 c2048 b128``."""
        parts = [
            f"{pool.config.label} c{pool.config.max_batched_tokens} b{pool.config.max_running_requests}"
            for pool in self.pools
        ]
        return f"{self.mode} " + " + ".join(parts)

    @property
    def skus(self) -> frozenset[str]:
        """SKU ids in use."""
        return frozenset(pool.config.sku.id for pool in self.pools)

    @property
    def fleet_usd_per_hour(self) -> float:
        """Cost of the smallest fleet for the whole demand [USD/h]."""
        return sum(pool.fleet_usd_per_hour for pool in self.pools)

    @property
    def replicas(self) -> tuple[int, ...]:
        """Pool sizes for the whole demand."""
        return tuple(pool.replicas for pool in self.pools)

    def usd_per_hour(self, replicas: tuple[int, ...]) -> float:
        """Cost with these pool sizes [USD/h]."""
        return sum(count * pool.usd_per_replica_hour for count, pool in zip(replicas, self.pools, strict=True))

    def deployment(self, replicas: tuple[int, ...]) -> Deployment:
        """The deployment with these pool sizes."""
        return Deployment(
            pools=tuple(
                Pool(role=pool.role, config=pool.config, replicas=count)
                for pool, count in zip(self.pools, replicas, strict=True)
            )
        )


@dataclass(frozen=True)
class Rejection:
    """Why a SKU offers nothing in one mode.

    Attributes:
        sku: id.
        mode: of the deployment.
        reason: of the configuration that comes nearest.
        ratio: its worst latency / threshold on idle replicas: the smallest relaxation that would help; inf when
            latency is not the reason.
    """

    sku: str
    mode: Mode
    reason: str
    ratio: float


@dataclass(frozen=True)
class CandidateSet:
    """What the search found.

    Attributes:
        options: sized deployments that meet the Slo, cheapest fleet first.
        rejections: why a (SKU, mode) has no option.
        considered: configurations looked at.
        evaluated: latency evaluations made.
    """

    options: tuple[DeploymentOption, ...]
    rejections: tuple[Rejection, ...]
    considered: int
    evaluated: int


@dataclass(frozen=True)
class Demand:
    """What every configuration is judged by."""

    llm: LlmSpec
    precision: Precision
    workload: Workload
    slo: Slo

    def targets(self, metric: Metric) -> tuple[LatencyTarget, ...]:
        """The targets on one metric."""
        return tuple(target for target in self.slo.targets if target.metric is metric)


@dataclass
class _Tally:
    considered: int = 0
    evaluated: int = 0
    misses: dict[tuple[str, Mode], _Miss] = field(default_factory=dict)


class Offer(NamedTuple):
    """A SKU that can be had: its price, and the calibration its step times come from."""

    sku: GpuSku
    price: Price
    calibration: Calibration | None = None


def find_candidates(
    demand: Demand, search: SearchSpace, offers: Iterable[Offer], engine: EngineProfile
) -> CandidateSet:
    """All options of the search space on the offered SKUs; infeasible SKUs are named with the reason."""
    tally = _Tally()
    options: list[DeploymentOption] = []
    for offer in offers:
        for mode in search.modes:
            find = _mixed_options if mode is Mode.MIXED else _disaggregated_options
            options += find(demand, search, offer, engine, tally)
    options.sort(key=lambda option: option.fleet_usd_per_hour)
    rejections = tuple(Rejection(sku, mode, miss.reason, miss.ratio) for (sku, mode), miss in tally.misses.items())
    return CandidateSet(tuple(options), rejections, tally.considered, tally.evaluated)


Assessor = Callable[[Pool, Workload], Mapping[LatencyTarget, float]]
"""The latency [s] a pool of this size reaches at each of its targets under a workload; infinite when unstable."""


def _misses(latencies_s: Mapping[LatencyTarget, float]) -> bool:
    return any(latency > target.threshold_s for target, latency in latencies_s.items())


def _assess_mixed(demand: Demand) -> Assessor:
    def assess(pool: Pool, workload: Workload) -> dict[LatencyTarget, float]:
        queue = mixed_stage(pool, workload).queue
        by_metric = {Metric.TTFT: queue.ttft, Metric.TPOT: queue.tpot, Metric.E2E: queue.e2e}
        return {target: by_metric[target.metric].quantile_s(target.percentile) for target in demand.slo.targets}

    return assess


def _assess_prefill(demand: Demand) -> Assessor:
    targets = demand.targets(Metric.TTFT)

    def assess(pool: Pool, workload: Workload) -> dict[LatencyTarget, float]:
        ttft = prefill_stage(pool, workload).queue.ttft
        return {target: ttft.quantile_s(target.percentile) for target in targets}

    return assess


def _assess_decode(demand: Demand) -> Assessor:
    targets = demand.targets(Metric.TPOT)

    def assess(pool: Pool, workload: Workload) -> dict[LatencyTarget, float]:
        stage = decode_stage(pool, workload)
        if not stage.queue.stable:
            return dict.fromkeys(targets, math.inf)
        pair = Deployment.disaggregated(pool.config, pool.config)
        tpot = tandem_tpot(stage.queue, stage.lengths, transfer_law(pair, stage.lengths))
        return {target: tpot.quantile_s(target.percentile) for target in targets}

    return assess


def _mixed_options(
    demand: Demand, search: SearchSpace, offer: Offer, engine: EngineProfile, tally: _Tally
) -> list[DeploymentOption]:
    grid = _grid(demand, search, offer, engine, search.max_running_requests, search.max_batched_tokens)
    found = _best_pools(Role.MIXED, grid, offer.price, demand, _assess_mixed(demand), tally)
    if not found.options:
        tally.misses[offer.sku.id, Mode.MIXED] = found.miss
    return [DeploymentOption(Mode.MIXED, (option,)) for option in found.options]


def _disaggregated_options(
    demand: Demand, search: SearchSpace, offer: Offer, engine: EngineProfile, tally: _Tally
) -> list[DeploymentOption]:
    """The best prefill and decode pools of one SKU, each sized apart, joined when the tandem meets the Slo."""
    if demand.workload.lengths.outputs.max() <= 1:
        reason = "every request has one output token: nothing to decode"
        tally.misses[offer.sku.id, Mode.DISAGGREGATED] = _Miss(reason, math.inf)
        return []
    most = (max(search.max_running_requests),)
    prompts = _grid(demand, search, offer, engine, most, search.max_batched_tokens)
    prefill = _best_pools(Role.PREFILL, prompts, offer.price, demand, _assess_prefill(demand), tally)
    tokens = _grid(demand, search, offer, engine, search.max_running_requests, (max(search.max_batched_tokens),))
    decode = _best_pools(Role.DECODE, tokens, offer.price, demand, _assess_decode(demand), tally)
    if not prefill.options or not decode.options:
        tally.misses[offer.sku.id, Mode.DISAGGREGATED] = decode.miss if prefill.options else prefill.miss
        return []
    pair = (prefill.options[0], decode.options[0])
    option = _joined(pair, demand, tally)
    if option is None:
        reason = "prefill, KV transfer and decode together miss the Slo"
        tally.misses[offer.sku.id, Mode.DISAGGREGATED] = _Miss(reason, math.inf)
    return [option] if option else []


def _joined(pair: tuple[PoolOption, PoolOption], demand: Demand, tally: _Tally) -> DeploymentOption | None:
    """The pair as one option, its pools grown until the whole tandem meets the Slo."""
    for growth in (1.0, 1.1, 1.25, 1.5, 2.0):
        pools = tuple(replace(pool, replicas=math.ceil(pool.replicas * growth)) for pool in pair)
        option = DeploymentOption(Mode.DISAGGREGATED, pools)
        tally.evaluated += 1
        if evaluate(option.deployment(option.replicas), demand.workload).meets(demand.slo):
            return option
    return None


def _grid(
    demand: Demand,
    search: SearchSpace,
    offer: Offer,
    engine: EngineProfile,
    running: tuple[int, ...],
    budgets: tuple[int, ...],
) -> Iterator[ReplicaConfig]:
    """Configurations of one SKU: every TP degree, batch limit and chunk budget."""
    for tp in sorted(set(search.tp)):
        for batch in sorted(set(running)):
            for budget in sorted(set(budgets)):
                yield ReplicaConfig(
                    llm=demand.llm,
                    sku=offer.sku,
                    engine=engine,
                    precision=demand.precision,
                    parallelism=Parallelism(tp=tp),
                    max_running_requests=batch,
                    max_batched_tokens=budget,
                    calibration=offer.calibration,
                )


@dataclass(frozen=True)
class _Miss:
    """A configuration that fails: why, and how far the worst target is from its threshold (latency / threshold)."""

    reason: str
    ratio: float


@dataclass(frozen=True)
class _Found:
    options: list[PoolOption]
    miss: _Miss


@dataclass(frozen=True)
class _Bounded:
    """A configuration that passed the cheap tests, with the fewest replicas the fluid bound allows."""

    config: ReplicaConfig
    floor: int

    @property
    def gpus(self) -> int:
        """GPUs of the smallest conceivable fleet: its cost in units of the SKU's price."""
        return self.floor * self.config.parallelism.gpus


def _best_pools(
    role: Role, grid: Iterable[ReplicaConfig], price: Price, demand: Demand, assess: Assessor, tally: _Tally
) -> _Found:
    """The cheapest fleet of the grid first, then the best ones of other TP degrees that were met on the way."""
    bounded: list[_Bounded] = []
    nearest = _Miss("nothing in the search space", math.inf)
    for config in grid:
        tally.considered += 1
        checked = _cheap_tests(role, config, demand)
        if isinstance(checked, _Bounded):
            bounded.append(checked)
        elif checked.ratio <= nearest.ratio:
            nearest = checked
    best: dict[int, tuple[ReplicaConfig, int]] = {}
    fewest_gpus: int | None = None
    for item in _in_order(bounded, best):
        gpus = item.config.parallelism.gpus
        most = None if fewest_gpus is None else (fewest_gpus - 1) // gpus
        sized = _smallest_pool(role, item, demand, assess, most, tally)
        if isinstance(sized, int):
            fewest_gpus = sized * gpus
            best[gpus] = (item.config, sized)
        elif sized is not None and sized.ratio <= nearest.ratio:
            nearest = sized
    options = [PoolOption(role, config, price, replicas) for config, replicas in best.values()]
    options.sort(key=lambda option: option.fleet_usd_per_hour)
    return _Found(options, nearest)


def _in_order(bounded: list[_Bounded], best: Mapping[int, tuple[ReplicaConfig, int]]) -> Iterator[_Bounded]:
    """All configurations with the most generous batch limit; then the other limits at the best ones found so far."""
    ordered = sorted(bounded, key=_most_promising)
    generous = max((item.config.max_running_requests for item in bounded), default=0)
    yield from (item for item in ordered if item.config.max_running_requests == generous)
    winners = {(config.parallelism.tp, config.max_batched_tokens) for config, _ in best.values()}
    for item in ordered:
        config = item.config
        if config.max_running_requests < generous and (config.parallelism.tp, config.max_batched_tokens) in winners:
            yield item


def _most_promising(item: _Bounded) -> tuple[float, ...]:
    """Fewest GPUs by the fluid bound first; of equals, budgets near the usual and generous batch limits."""
    config = item.config
    return (item.gpus, abs(math.log(config.max_batched_tokens / USUAL_BUDGET)), -config.max_running_requests)


def _cheap_tests(role: Role, config: ReplicaConfig, demand: Demand) -> _Bounded | _Miss:
    """Does it fit, can it meet the targets when idle, and how many replicas does the fluid bound ask for?"""
    pool, workload = Pool(role=role, config=config, replicas=1), demand.workload
    try:
        idle = idle_latencies(pool, workload)
    except PlannerError as error:
        return _Miss(error.bound, math.inf)
    reached = {target: idle[target.metric].quantile_s(target.percentile) for target in demand.slo.targets}
    if _misses(reached):
        return _miss(config, reached)
    rate = fluid_rate_per_s(pool, workload, _largest_mean_step_s(role, demand))
    if rate <= 0.0:
        return _Miss(f"{config.label}: a decode step is too slow for the TPOT target at any load", math.inf)
    return _Bounded(config, math.ceil(workload.arrivals.rate_per_s / rate * (1.0 - 1e-9)))


def _largest_mean_step_s(role: Role, demand: Demand) -> float:
    """Mean step [s] beyond which a TPOT target cannot hold: its threshold, for percentiles above the bulk."""
    if role is Role.PREFILL:
        return math.inf
    high = [target.threshold_s for target in demand.targets(Metric.TPOT) if target.percentile >= BULK]
    return min(high, default=math.inf)


def _smallest_pool(
    role: Role, item: _Bounded, demand: Demand, assess: Assessor, most: int | None, tally: _Tally
) -> int | _Miss | None:
    """Smallest number of replicas, at most `most` (None: any), that meets the targets at the whole demand.

    None when no pool of at most `most` replicas does; the miss when not even a nearly idle one does.
    """
    config = item.config
    if most is not None and item.floor > most:
        return None

    def latencies(replicas: int) -> Mapping[LatencyTarget, float]:
        tally.evaluated += 1
        return assess(Pool(role=role, config=config, replicas=replicas), demand.workload)

    if most is not None:
        return None if _misses(latencies(most)) else _bisect(latencies, item.floor - 1, most)
    low, high, step = item.floor - 1, item.floor, max(1, item.floor // 8)
    if _misses(latencies(high)):
        calm = latencies(CALM * item.floor)
        if _misses(calm):
            return _miss(config, calm)
        low, high = high, high + step
        while high < CALM * item.floor and _misses(latencies(high)):
            step *= 2
            low, high = high, high + step
    return _bisect(latencies, low, high)


def _bisect(latencies: Callable[[int], Mapping[LatencyTarget, float]], low: int, high: int) -> int:
    """Smallest count in (low, high] that does not miss; `low` misses (or is 0) and `high` holds."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _misses(latencies(middle)) else (low, middle)
    return high


def _miss(config: ReplicaConfig, latencies_s: Mapping[LatencyTarget, float]) -> _Miss:
    target = max(latencies_s, key=lambda t: latencies_s[t] / t.threshold_s)
    reached = latencies_s[target]
    reason = f"{config.label}: {target.name} {1e3 * reached:.3g} ms > {1e3 * target.threshold_s:.3g} ms even when idle"
    return _Miss(reason, reached / target.threshold_s)


def sustained_rate_per_s(option: DeploymentOption, replicas: tuple[int, ...], demand: Demand, upper: float) -> float:
    """Largest rate [1/s], at most `upper`, at which these pools meet the Slo; rounded down by `RATE_TOLERANCE`.

    0 when not even a small rate holds.
    """
    deployment = option.deployment(replicas)
    return sustainable_rate_per_s(deployment, demand.workload, demand.slo, tolerance=RATE_TOLERANCE, at_most=upper)


def fluid_bound_per_s(option: DeploymentOption, replicas: tuple[int, ...], demand: Demand) -> float:
    """Optimistic bound on the rate [1/s] these pools carry together (see `performance.fluid_rate_per_s`)."""
    return min(
        count
        * fluid_rate_per_s(
            Pool(role=pool.role, config=pool.config, replicas=1),
            demand.workload,
            _largest_mean_step_s(pool.role, demand),
        )
        for count, pool in zip(replicas, option.pools, strict=True)
    )
