"""Pools that serve together, the link between them, and how they perform. Types only.

A deployment is either one MIXED pool or a PREFILL pool and a DECODE pool joined by a KV link.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from hardware_db import EngineFeature, GpuSku
from planner.core import Frozen, InputError, Metric
from planner.engine import ReplicaConfig, require_supported
from planner.roofline import Bound
from planner.workload import JointDistribution, LatencyDistribution, LatencyTarget, Slo, batch_quantile_interval

ROUNDING = 1e-3
"""Share of a GPU below which encoders of a pool are rounding: names of pools have four digits of theirs."""
MOST_REPLICAS = 1_000_000
"""Most replicas of one pool: more is a slip of the pen. A choice."""


class Role(StrEnum):
    """The work of a pool."""

    MIXED = "mixed"
    """Continuous batching: prompts (in chunks) and decodes share the steps."""
    PREFILL = "prefill"
    """Prompts only; emits the first token and sends the KV cache on."""
    DECODE = "decode"
    """Decodes only; receives prompts as KV cache."""


class Router(StrEnum):
    """Which replica of a pool gets a request."""

    ROUND_ROBIN = "round_robin"
    """Each in turn."""
    RANDOM = "random"
    """Any, with equal chances."""
    POWER_OF_TWO = "power_of_two"
    """The less loaded of two picked at random (Mitzenmacher, IEEE TPDS 12(10), 2001)."""
    LEAST_REQUESTS = "least_requests"
    """The one with the fewest requests waiting and running (join the shortest queue)."""
    LEAST_TOKENS = "least_tokens"
    """The one with the fewest tokens of requests waiting and running."""
    PREFIX_AFFINITY = "prefix_affinity"
    """The one whose cache holds most of the prompt, unless it has twice the mean number of requests or more; without a
    shared prefix as `LEAST_REQUESTS`."""


TRANSFER_SHARE = 0.85
"""Share of its link's bandwidth that a KV transfer reaches: 341 of 400 Gb/s for writes of 16 MiB with NIXL over UCX
(github.com/ai-dynamo/nixl pull request 1647); Mooncake reaches 0.80 to 0.84 of one 400 Gb/s NIC from 100 MB on
(github.com/uccl-project/uccl pull request 265, github.com/kvcache-ai/Mooncake issue 813)."""


class KvTransfer(Frozen):
    """How KV caches travel from prefill to decode.

    Attributes:
        shared: transfers of one prefill replica follow each other on its link, as do those to one decode replica, and
            the sender keeps its KV blocks until the transfer ends; otherwise each has the whole link to itself.
        layerwise: a layer's cache is sent while the next layers are computed, so that only what the last chunk's step
            does not cover, and at least one layer's share, is waited for.
        first_token_from_decode: the client gets its first token from the decode replica, after the transfer and in the
            first step there, instead of from the prefill replica. So do vLLM, SGLang and TensorRT-LLM: their routers
            pass the decode server's stream on, and a wait for a place to decode counts towards TTFT.
    """

    shared: bool = True
    layerwise: bool = False
    first_token_from_decode: bool = True


class Pool(Frozen):
    """`replicas` identical replicas with one role behind a router.

    Several `routers` stand side by side, each of which takes turns and knows nothing of the others; a request meets any
    of them. Theory takes them for one that chooses at random.
    """

    role: Role
    config: ReplicaConfig
    replicas: int = Field(ge=1, le=MOST_REPLICAS)
    router: Router = Router.ROUND_ROBIN
    routers: int = Field(default=1, ge=1, le=1024)

    @property
    def encoders(self) -> int:
        """GPUs that encode the images of its requests."""
        return encoder_gpus(self.config, self.replicas)

    @property
    def gpus(self) -> int:
        """GPUs of the whole pool, those of its encoders too."""
        return self.replicas * self.config.parallelism.gpus + self.encoders


def pool_words(config: ReplicaConfig, role: Role, replicas: int) -> str:
    """GPUs, and the replicas that they make: ``8 × H100 SXM (4 mixed TP2)``.

    Args:
        config: of a replica.
        role: of the pool.
        replicas: of the pool.

    Returns:
        The pool in words.
    """
    gpus = replicas * config.parallelism.gpus + encoder_gpus(config, replicas)
    return f"{gpus:,} × {config.sku.short_name} ({replicas} {role} {config.split})"


class Deployment(Frozen):
    """Pools that serve the same requests together."""

    pools: tuple[Pool, ...] = Field(min_length=1, max_length=2)
    transfer: KvTransfer = KvTransfer()

    @model_validator(mode="after")
    def _roles_fit(self) -> Self:
        roles = tuple(pool.role for pool in self.pools)
        if any(pool.routers > 1 and pool.router is not Router.ROUND_ROBIN for pool in self.pools):
            raise InputError("deployment.pools.routers", "several", "take turns", "leave router out, or have one")
        if roles not in ((Role.MIXED,), (Role.PREFILL, Role.DECODE)):
            raise InputError("deployment.pools.role", [str(r) for r in roles], "must be (mixed) or (prefill, decode)")
        for pool in self.pools:
            if pool.config.parallelism.pcp > 1 and pool.role is not Role.PREFILL:
                bound = f"{pool.role} pools decode, which each of the GPUs that share out prompts would repeat"
                raise InputError(
                    "deployment.pools.parallelism.pcp", pool.config.parallelism.pcp, bound, "use it in prefill pools"
                )
        if self.pools[-1].role is Role.DECODE and self.pools[-1].encoders:
            raise InputError("deployment.pools.encoders", self.pools[-1].encoders, "prefill pools have encoders")
        llms = {pool.config.llm.id for pool in self.pools}
        caches = {pool.config.precision.kv_cache for pool in self.pools}
        if len(llms) > 1 or len(caches) > 1:
            raise InputError("deployment.pools", sorted(llms), "all pools must serve one model with one KV format")
        if len(roles) > 1:
            for config in (pool.config for pool in self.pools):
                features = (*config.features, EngineFeature.DISAGGREGATION)
                require_supported(config.engine, config.llm, config.sku, features)
        return self

    @classmethod
    def mixed(cls, config: ReplicaConfig, replicas: int = 1) -> Self:
        """One mixed pool."""
        return cls(pools=(Pool(role=Role.MIXED, config=config, replicas=replicas),))

    @classmethod
    def disaggregated(
        cls,
        prefill: ReplicaConfig,
        decode: ReplicaConfig,
        replicas: tuple[int, int] = (1, 1),
        transfer: KvTransfer = KvTransfer(),  # noqa: B008 - frozen
    ) -> Self:
        """A prefill and a decode pool; KV travels over the link of the smaller replica."""
        return cls(
            pools=(
                Pool(role=Role.PREFILL, config=prefill, replicas=replicas[0]),
                Pool(role=Role.DECODE, config=decode, replicas=replicas[1]),
            ),
            transfer=transfer,
        )

    @property
    def is_disaggregated(self) -> bool:
        """True if prefill and decode run on pools of their own."""
        return len(self.pools) == 2

    @property
    def gpus(self) -> int:
        """GPUs of all pools."""
        return sum(pool.gpus for pool in self.pools)

    @property
    def summary(self) -> str:
        """GPUs, and the replicas that they make: ``8 × H100 SXM (4 mixed TP2)``."""
        return " + ".join(pool_words(pool.config, pool.role, pool.replicas) for pool in self.pools)

    @property
    def kv_link_bytes_per_s(self) -> float:
        """Bandwidth of one prompt's KV transfer [bytes/s], `TRANSFER_SHARE` of the link; inf when mixed.

        The link is that of the GPUs that hold a sequence, all of the smaller of the two replicas or of its attention
        rank: their NICs, or the scale-up link where one of its domains is larger than a server and holds both replicas.
        """
        if not self.is_disaggregated:
            return float("inf")
        gpus = sum(pool.config.parallelism.gpus for pool in self.pools)
        slowest = min(between_servers_bytes_per_s(pool.config.sku, gpus) for pool in self.pools)
        return TRANSFER_SHARE * slowest * min(_sequence_gpus(pool) for pool in self.pools)

    @property
    def kv_links(self) -> tuple[int, ...]:
        """KV transfers that a replica of each pool can send or receive at once: its GPUs over those of one transfer."""
        fewest = min(_sequence_gpus(pool) for pool in self.pools)
        return tuple(_sequence_gpus(pool) * pool.config.parallelism.dp // fewest for pool in self.pools)


def _sequence_gpus(pool: Pool) -> int:
    """GPUs of a replica that send or receive a sequence: one attention rank.

    Of GPUs that share out prompts one sends the cache that all hold (``SGLANG_DISAGGREGATION_ALL_CP_RANKS_TRANSFER`` of
    SGLang's environ.py is off).
    """
    return pool.config.parallelism.gpus // pool.config.parallelism.shards


def encoder_gpus(config: ReplicaConfig, replicas: int) -> int:
    """GPUs of the encoders of a pool: whole ones, for the share of each replica.

    Args:
        config: of a replica.
        replicas: of the pool.

    Returns:
        0 where replicas encode images themselves [GPUs].
    """
    return math.ceil(replicas * config.encoders - ROUNDING)


def between_servers_bytes_per_s(sku: GpuSku, gpus: int) -> float:
    """Bandwidth of one GPU and direction to a GPU of another server.

    Args:
        sku: datasheet.
        gpus: of the group that both are in.

    Returns:
        That of the scale-up link where one of its domains is larger than a server and holds the group, else of the
        network [bytes/s].
    """
    if sku.leaves_by_network(gpus):
        return sku.node.nic_bytes_per_s_per_gpu.value
    return sku.scale_up.bandwidth_bytes_per_s.value


class Method(StrEnum):
    """How a performance was obtained."""

    ANALYTIC = "analytic"
    SIMULATED = "simulated"


class PoolLimit(StrEnum):
    """The limit that a pool reaches first as the rate grows."""

    COMPUTE = "compute"
    MEMORY = "memory"
    LINK = "link"
    OVERHEAD = "overhead"
    KV_CAPACITY = "kv_capacity"
    RUNNING_REQUESTS = "running_requests"
    BATCHED_TOKENS = "batched_tokens"
    """Prompts that are not split do not fit into a step beside the requests that run."""


@dataclass(frozen=True)
class PoolPerformance:
    """How one pool works at the offered rate.

    Attributes:
        role: of the pool.
        utilisation: analytic: offered rate / largest stable rate; simulated: share of time the replicas were busy.
        limit: what gives out first as the rate grows.
        bound: the resource most of the step time waits for at the operating point.
        mean_running: decoding sequences per replica, time average.
        mean_step_s: mean duration of a busy step [s].
        kv_occupancy: mean share of the KV cache held by requests.
        kv_occupancy_p99: share that is exceeded 1 % of the time; 0 in theory where memory is hardly ever full.
        prefix_hits: share of the input tokens found in the prefix cache.
        kv_waste: share of the KV memory set aside for requests that held no token of theirs.
        preempted: preemptions per request.
        tier_hits: of `prefix_hits`, the share found in each KV tier and not on the GPU, in the order of the tiers.
        tier_link: share of the time that the link of a replica's KV tiers is busy.
        encoders_busy: share of the time that the encoders of the pool are busy.
    """

    role: Role
    utilisation: float
    limit: PoolLimit
    bound: Bound
    mean_running: float
    mean_step_s: float
    kv_occupancy: float
    prefix_hits: float = 0.0
    kv_waste: float = 0.0
    preempted: float = 0.0
    tier_hits: tuple[float, ...] = ()
    tier_link: float = 0.0
    kv_occupancy_p99: float = 0.0
    encoders_busy: float = 0.0


def predicted_attainment(
    slo: Slo, distributions: Mapping[Metric, LatencyDistribution], joint: JointDistribution | None
) -> float:
    """Share of requests that meet every threshold at once, from distributions.

    TTFT and TPOT together by their joint distribution; what else there is enters by the Frechet lower bound
    max(0, sum of single shares - (their number - 1)), which holds whatever the dependence.

    Args:
        slo: the thresholds; targets on single gaps (ITL) do not count.
        distributions: by metric [s].
        joint: TTFT and TPOT together [s], where known.

    Returns:
        Share in [0, 1].
    """
    metrics = {target.metric for target in slo.targets if target.metric is not Metric.ITL}
    strictest = {
        metric: min(target.threshold_s for target in slo.targets if target.metric is metric) for metric in metrics
    }
    shares = []
    if joint is not None and {Metric.TTFT, Metric.TPOT} <= metrics:
        shares.append(joint.within(strictest.pop(Metric.TTFT), strictest.pop(Metric.TPOT)))
    shares += [distributions[metric].cdf(threshold_s) for metric, threshold_s in strictest.items()]
    return max(0.0, sum(shares) - (len(shares) - 1))


@dataclass(frozen=True, eq=False)
class ClassPerformance:
    """Latencies of the requests of one class; attributes as in `Performance`."""

    name: str
    rate_per_s: float
    ttft: LatencyDistribution
    tpot: LatencyDistribution
    e2e: LatencyDistribution
    attainment: float | None = None
    """Share of its requests that meet every threshold of the class's own Slo; None when it has none."""


class Latencies(NamedTuple):
    """Distributions [s] of a group of requests, as `Performance` has them."""

    ttft: LatencyDistribution
    tpot: LatencyDistribution
    e2e: LatencyDistribution
    itl: LatencyDistribution


@dataclass(frozen=True, eq=False)
class Performance:
    """Latencies of a deployment under a workload; the same type from theory and from simulation.

    Attributes:
        method: analytic or simulated.
        rate_per_s: offered arrivals [1/s]; of a closed loop, requests done per second of the run.
        stable: False when some pool cannot keep up; latencies are then unbounded (analytic).
        ttft: arrival to first token [s].
        tpot: (E2E - TTFT) / (output tokens - 1) [s]; 0 for one-token outputs.
        e2e: arrival to last token [s].
        itl: one gap between two tokens [s], over all gaps of all requests.
        pools: one entry per pool of the deployment.
        kv_transfer_s: mean time from the end of a prompt to its KV cache at the decode pool [s], in theory without
            waits for links; 0 when mixed.
        requests: requests measured (simulated), 0 when analytic.
        assumptions: what the numbers take for granted.
        samples_s: per-request latencies by metric, each shape (requests,), when simulated; else empty.
        output_tokens_per_s: output tokens of the requests that ended in the measured time, per second of it
            (of a closed loop the whole run); in theory what comes in, 0 when overloaded.
        steady: of a closed loop, the same over its steady part: requests sent after every user has had a first answer
            and before the last request of every user. None when open or when the run is too short to have one.
        interval: where the true mean of a metric lies with 90 % probability [s], from the spread of the kernels'
            measurements about their fits (`planner.serving.uncertainty`); empty when uncalibrated.
        classes: one entry per request class where there are several.
        joint: TTFT and TPOT of a request together, where theory knows them so.
        horizon_s: of an overloaded deployment, the time after an empty start that the latencies are of; 0: steady.
        link_utilisation: seconds of KV transfers per second and link of the pool that has fewer replicas, above 1 only
            where links are not shared (simulated; 0 when mixed or analytic).
        rate_cv: coefficient of variation of a rate that varies; 0 where it is steady or was not looked at (simulated).
    """

    method: Method
    rate_per_s: float
    stable: bool
    ttft: LatencyDistribution
    tpot: LatencyDistribution
    e2e: LatencyDistribution
    itl: LatencyDistribution
    pools: tuple[PoolPerformance, ...]
    kv_transfer_s: float = 0.0
    requests: int = 0
    assumptions: tuple[str, ...] = ()
    samples_s: Mapping[Metric, NDArray[np.float64]] = field(default_factory=dict)
    output_tokens_per_s: float = 0.0
    steady: Performance | None = None
    interval: Mapping[Metric, tuple[float, float]] = field(default_factory=dict)
    classes: tuple[ClassPerformance, ...] = ()
    joint: JointDistribution | None = None
    horizon_s: float = 0.0
    link_utilisation: float = 0.0
    rate_cv: float = 0.0

    def distribution(self, metric: Metric) -> LatencyDistribution:
        """The distribution of a metric."""
        return {Metric.TTFT: self.ttft, Metric.TPOT: self.tpot, Metric.E2E: self.e2e, Metric.ITL: self.itl}[metric]

    def summary(self, metric: Metric) -> str:
        """The mean of a metric with its interval, e.g. ``TPOT 21 ms [19, 24]``; in s from 1 s on."""
        mean_s = self.distribution(metric).mean_s
        scale, unit = (1.0, "s") if mean_s >= 1.0 else (1e3, "ms")
        text = f"{metric.value.upper()} {mean_s * scale:.3g} {unit}"
        if metric not in self.interval:
            return text
        low_s, high_s = self.interval[metric]
        return f"{text} [{low_s * scale:.3g}, {high_s * scale:.3g}]"

    def latency_s(self, target: LatencyTarget) -> float:
        """The predicted latency [s] at the target's metric and percentile."""
        return self.distribution(target.metric).quantile_s(target.percentile)

    def meets(self, slo: Slo) -> bool:
        """True if each target's percentile is within its threshold; for a joint Slo, if its share is reached."""
        if slo.attainment is not None:
            return self.stable and self.attainment(slo) >= slo.attainment
        return self.stable and all(self.latency_s(target) <= target.threshold_s for target in slo.targets)

    def attainment(self, slo: Slo) -> float:
        """Share of requests that meet every threshold at once; targets on single gaps (ITL) do not count.

        Simulated: counted. Analytic: `predicted_attainment`.
        """
        targets = [target for target in slo.targets if target.metric is not Metric.ITL]
        if not targets:
            return 1.0
        if self.samples_s:
            met = [self.samples_s[target.metric] <= target.threshold_s for target in targets]
            return float(np.logical_and.reduce(met).mean())
        distributions = {metric: self.distribution(metric) for metric in Metric}
        return predicted_attainment(slo, distributions, self.joint)

    def confidence_s(self, metric: Metric, percentile: float) -> tuple[float, float] | None:
        """Where a simulated percentile [s] lies with 95 % confidence, by batch means; None when analytic or too short.

        `planner.workload.batch_quantile_interval` says how.
        """
        samples_s = self.samples_s.get(metric)
        return None if samples_s is None else batch_quantile_interval(samples_s, percentile)

    def goodput_per_s(self, slo: Slo) -> float:
        """Requests per second that meet every threshold of their SLO."""
        return self.rate_per_s * self.attainment(slo) if self.stable or self.horizon_s else 0.0
