"""The search space and what is found in it: types only.

A *configuration* is one replica's set-up in one role. An *option* is what serves a request from end to end: one mixed
pool, or a prefill and a decode pool (of the same or of different SKUs). How many replicas is not part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from hardware_db import Calibration, GpuSku
from planner.core import Frozen, InputError, Metric
from planner.engine import (
    KvTier,
    LoraAdapters,
    ReplicaConfig,
    Speculation,
    StepTimeShift,
    require_distinct_tiers,
    tiers_label,
)
from planner.llm import LlmSpec, Precision
from planner.serving import Deployment, Pool, Role, Router, encoder_gpus
from planner.workload import LatencyTarget, Slo, Workload

FOLLOWS = "empty: follows from the model, the GPU and the engine"
"""Meaning of an empty list of degrees; `planner.search.grid`."""
FITS = "empty: follows from the traffic and the memory of a replica"
"""Meaning of an empty list of limits; `planner.search.grid`."""
AUTO = "auto"
"""Stands for an empty list in a scenario."""
MAX_GRID = 200_000
"""Most configurations of a search space, roles not counted. A choice."""


ShiftRule = Callable[[ReplicaConfig, Role, float, float], StepTimeShift | None]
"""By how much a replica is off, by its configuration, role and mean input and output tokens; None: not at all."""


class Mode(StrEnum):
    """How prompts and decodes share the hardware."""

    MIXED = "mixed"
    DISAGGREGATED = "disaggregated"


def _one_or_several(value: object) -> object:
    """One set-up as the only one to choose from."""
    if value == AUTO:
        return ()
    return (value,) if isinstance(value, Mapping | Speculation) or value is None else value


Follows = BeforeValidator(lambda value: () if value == AUTO or value is None else value)
"""On lists that follow from the rest of the request where they are left empty."""


def _tier_sets(value: object) -> object:
    """Sets of KV tiers to choose from: one tier, or several as one set, stand for that alone; null for none."""
    if isinstance(value, Mapping | KvTier):
        return ((value,),)
    if not isinstance(value, Sequence) or isinstance(value, str):
        return value
    if value and all(isinstance(item, Mapping | KvTier) for item in value):
        return (value,)
    return tuple(() if item is None else (item,) if isinstance(item, Mapping | KvTier) else item for item in value)


class SearchSpace(Frozen):
    """The grid of configurations to consider: every combination that fits in memory.

    A list that is left empty (or is `auto`) follows from the rest of the request; one that is given restricts the
    search to what it holds. Combinations of degrees that make no replica (`ep` that does not divide `tp * dp`) are left
    out.
    """

    skus: tuple[str, ...] = Field(min_length=1, description="SKU ids of the hardware database")
    modes: tuple[Mode, ...] = Field(default=(Mode.MIXED, Mode.DISAGGREGATED), min_length=1)
    tp: Annotated[tuple[int, ...], Follows] = Field(default=(), description=f"tensor parallelism; {FOLLOWS}")
    pp: Annotated[tuple[int, ...], Follows] = Field(default=(), description=f"pipeline parallelism; {FOLLOWS}")
    dp: Annotated[tuple[int, ...], Follows] = Field(
        default=(), description=f"attention data parallelism in a replica; {FOLLOWS}"
    )
    ep: Annotated[tuple[int, ...], Follows] = Field(default=(), description=f"expert parallelism; {FOLLOWS}")
    dcp: Annotated[tuple[int, ...], Follows] = Field(
        default=(),
        description="decode context parallelism: GPUs of tp that keep the same KV heads share out the tokens instead; "
        "empty: none",
    )
    pcp: Annotated[tuple[int, ...], Follows] = Field(
        default=(),
        description="context parallelism of prompts: so many GPUs of a replica of a prefill pool share out the tokens "
        "of each prompt; empty: none",
    )
    encoders: tuple[Annotated[float, Field(ge=0.0, le=1024.0)], ...] = Field(
        default=(),
        description="GPUs that encode images for each replica that reads prompts, in a pool of their own, to choose "
        "from; 0: replicas encode images themselves; empty: 0",
    )
    max_running_requests: Annotated[tuple[int, ...], Follows] = Field(
        default=(), description=f"batch limits of a replica; {FITS}"
    )
    max_batched_tokens: Annotated[tuple[int, ...], Follows] = Field(
        default=(), description=f"chunk budgets of a replica [tokens]; {FITS}"
    )
    precisions: tuple[Precision, ...] = Field(
        default=(), description="number formats that may be used besides the one of the request"
    )
    engine: str = "vllm"
    more_engines: tuple[str, ...] = Field(default=(), description="engines that may be used besides `engine`")
    prefix_cache: Annotated[tuple[bool, ...], Follows] = Field(
        default=(), description="False, True or both; empty: both where prompts share prefixes, else False"
    )
    kv_tiers: Annotated[tuple[tuple[KvTier, ...], ...], BeforeValidator(_tier_sets)] = Field(
        default=((),), min_length=1, description="sets of KV tiers to choose from, or the one to use; null: none"
    )
    speculation: Annotated[tuple[Speculation | None, ...], BeforeValidator(_one_or_several)] = Field(
        default=(),
        description="drafting set-ups to choose from, or the one to use; null: none; empty: none, and the model's own "
        "prediction modules where it has some",
    )
    lora: LoraAdapters | None = Field(default=None, description="adapters that share the base model in every replica")
    memory_fraction: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="share of GPU memory that engines may take, as each reads it (vLLM's gpu_memory_utilization, "
        "SGLang's mem_fraction_static, TensorRT-LLM's free_gpu_memory_fraction); null: the engine's own",
    )
    eager: bool = Field(default=False, description="no CUDA graphs: every kernel of a step is launched by itself")
    router: Router = Field(default=Router.ROUND_ROBIN, description="of every pool")
    simplicity: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="share of the least cost up to which fleets are ties, which go to the measured, simpler one",
    )
    measured_only: bool = Field(
        default=False, description="leave out GPUs whose step times rest on measurements of other GPUs, or on none"
    )
    pair_skus: bool = Field(default=True, description="prefill and decode pools may be of different SKUs")
    solver: str = Field(
        default="highs",
        description="of the integer program: highs, or one that PuLP finds on this machine (cbc, gurobi, cplex, ...)",
    )
    calibrated: bool = Field(default=True, description="kernels as measured; false: datasheet rooflines, a bound")

    @property
    def engines(self) -> tuple[str, ...]:
        """Every engine that may be used."""
        return tuple(dict.fromkeys((self.engine, *self.more_engines)))

    def narrowed(self, pools: Collection[Pool]) -> SearchSpace | None:
        """The same with only the modes, SKUs, degrees and limits of some pools; None where one of them is not in it.

        Of prefill pools the batch limit is none to choose, of decode pools the chunk budget.
        """
        degrees = [pool.config.parallelism for pool in pools]
        decoding = [pool.config for pool in pools if pool.role is not Role.PREFILL]
        reading = [pool.config for pool in pools if pool.role is not Role.DECODE]
        used: dict[str, list[object]] = {
            "skus": [pool.config.sku.id for pool in pools],
            "modes": [Mode.MIXED if pool.role is Role.MIXED else Mode.DISAGGREGATED for pool in pools],
            **{name: [getattr(each, name) for each in degrees] for name in ("tp", "pp", "dp", "ep", "dcp")},
            "pcp": [pool.config.parallelism.pcp for pool in pools if pool.role is Role.PREFILL],
            "max_running_requests": [config.max_running_requests for config in decoding],
            "max_batched_tokens": [config.max_batched_tokens for config in reading],
            "encoders": [config.encoders for config in reading],
        }
        if any((offered := getattr(self, name)) and not set(values) <= set(offered) for name, values in used.items()):
            return None
        return self.model_copy(update={name: tuple(dict.fromkeys(values)) for name, values in used.items()})

    @model_validator(mode="after")
    def _positive_and_small_enough(self) -> Self:
        size = len(self.skus) * len(self.engines) * (1 + len(self.precisions))
        size *= max(1, len(self.prefix_cache)) * max(1, len(self.speculation)) * len(self.kv_tiers)
        size *= max(1, len(self.encoders))
        for tiers in self.kv_tiers:
            require_distinct_tiers(tiers)
        if any(self.kv_tiers) and self.prefix_cache and True not in self.prefix_cache:
            bound = "KV tiers are levels of the prefix cache"
            raise InputError("prefix_cache", list(self.prefix_cache), bound, "write [true], or [false, true]")
        for name in ("tp", "pp", "dp", "ep", "dcp", "pcp", "max_running_requests", "max_batched_tokens"):
            values = getattr(self, name)
            if min(values, default=1) < 1:
                raise InputError(name, min(values), "must be >= 1")
            size *= max(1, len(values))
        if size > MAX_GRID:
            raise InputError("search", size, f"more than {MAX_GRID} configurations", "shorten a list")
        return self


@dataclass(frozen=True)
class Offer:
    """A SKU that can be had.

    Attributes:
        sku: the GPU.
        calibrations: by engine id, what its step times come from; absent or None: datasheet rooflines.
    """

    sku: GpuSku
    calibrations: Mapping[str, Calibration | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Demand:
    """The demand by which every configuration is judged. Its rate is the largest that any pool may get."""

    llm: LlmSpec
    precision: Precision
    workload: Workload
    slo: Slo
    max_request_tokens: int | None = None
    """Longest request that engines are told to accept [tokens]; None: what the workload needs."""
    published: tuple[Precision, ...] = ()
    """Formats of checkpoints that may be used besides `precision`, on GPUs that run them well."""
    shift_of: ShiftRule | None = None
    """How far step times are taken to be off their estimates; None: not at all."""

    def targets(self, metric: Metric) -> tuple[LatencyTarget, ...]:
        """The targets on one metric."""
        return tuple(target for target in self.slo.targets if target.metric is metric)


@dataclass(frozen=True)
class PoolOption:
    """One configuration in one role."""

    role: Role
    config: ReplicaConfig
    router: Router = Router.ROUND_ROBIN
    tag: str = ""
    """Further features that tell it apart in the search, e.g. ``sglang bf16 prefix cache``; part of the name."""
    serves: str = ""
    """The only slice of the traffic that its pools serve; empty: any."""

    @property
    def gpus(self) -> int:
        """Of one replica."""
        return self.config.parallelism.gpus

    @cached_property
    def name(self) -> str:
        """E.g. ``h100-sxm TP2 c2048 b128``."""
        config, alone = self.config, f"for {self.serves}" if self.serves else ""
        limits = f"c{config.max_batched_tokens} b{config.max_running_requests}"
        return " ".join(filter(None, (config.label, limits, self.tag, alone)))

    def pool(self, replicas: int) -> Pool:
        """So many replicas of it."""
        return Pool(role=self.role, config=self.config, replicas=replicas, router=self.router)


@dataclass(frozen=True)
class ConfigurationFamily:
    """Configurations in one role that buy the same: one SKU, one parallelism, one KV format, one set of KV tiers, and
    for pools that hand KV caches on one engine. How it is set up is free.

    Attributes:
        role: of all members.
        members: at least one, all different.
    """

    role: Role
    members: tuple[PoolOption, ...]

    @cached_property
    def sku(self) -> str:
        """SKU id."""
        return self.members[0].config.sku.id

    @cached_property
    def gpus(self) -> int:
        """Of one replica."""
        return self.members[0].gpus

    def pool_gpus(self, replicas: int) -> int:
        """GPUs of a pool of so many replicas, those of its encoders too."""
        return replicas * self.gpus + encoder_gpus(self.members[0].config, replicas)

    @property
    def mode(self) -> Mode:
        """Of deployments that it is part of."""
        return Mode.MIXED if self.role is Role.MIXED else Mode.DISAGGREGATED

    @cached_property
    def is_measured(self) -> bool:
        """True if its step times come from kernels measured on its own SKU, none of them lent by another."""
        config = self.members[0].config
        return config.calibration is not None and config.calibration.sku == self.sku and not config.lenders

    @cached_property
    def hands_on(self) -> str:
        """What pools must share that send KV caches to one another: their format, and the engine with its connector."""
        config = self.members[0].config
        engine = "" if self.role is Role.MIXED else config.engine.id
        return f"kv {config.precision.kv_cache.value} {engine}".rstrip()

    @cached_property
    def name(self) -> str:
        """E.g. ``prefill h100-sxm TP2 kv fp8 vllm``."""
        config, serves = self.members[0].config, self.members[0].serves
        alone = f"for {serves}" if serves else ""
        words = (self.role.value, config.label, self.hands_on, tiers_label(config.schedule.kv_tiers), alone)
        return " ".join(filter(None, words))


@dataclass(frozen=True)
class DeploymentOption:
    """Pools that serve together: one mixed, or prefill and decode."""

    mode: Mode
    pools: tuple[PoolOption, ...]

    @cached_property
    def name(self) -> str:
        """E.g. ``mixed h100-sxm TP2 c2048 b128``."""
        return f"{self.mode} " + " + ".join(pool.name for pool in self.pools)

    @property
    def skus(self) -> frozenset[str]:
        """SKU ids in use."""
        return frozenset(pool.config.sku.id for pool in self.pools)

    def gpus(self, replicas: tuple[int, ...]) -> dict[str, int]:
        """GPUs by SKU id with these pool sizes."""
        counts: dict[str, int] = {}
        for count, pool in zip(replicas, self.pools, strict=True):
            counts[pool.config.sku.id] = counts.get(pool.config.sku.id, 0) + count * pool.gpus
        return counts

    def deployment(self, replicas: tuple[int, ...]) -> Deployment:
        """The deployment with these pool sizes."""
        return Deployment(pools=tuple(pool.pool(count) for pool, count in zip(self.pools, replicas, strict=True)))


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
class Dominated:
    """A configuration that was left out because another is never worse for the fleet.

    Attributes:
        name: of the configuration.
        by: name of the one that stands in for it.
        reason: in words, with both figures.
    """

    name: str
    by: str
    reason: str
