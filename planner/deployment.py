"""Pools that serve together, the link between them, and how they perform. Types only.

A deployment is either one MIXED pool or a PREFILL pool and a DECODE pool joined by a KV link.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from hardware_db.schema import Frozen
from planner.errors import InputError
from planner.latency import LatencyDistribution
from planner.replica import ReplicaConfig
from planner.roofline import Bound
from planner.workload import LatencyTarget, Metric, Slo


class Role(StrEnum):
    """What a pool does."""

    MIXED = "mixed"
    """Continuous batching: prompts (in chunks) and decodes share the steps."""
    PREFILL = "prefill"
    """Prompts only; emits the first token and hands the KV cache over."""
    DECODE = "decode"
    """Decodes only; receives prompts as KV cache."""


class Pool(Frozen):
    """`replicas` identical replicas with one role behind a round-robin router."""

    role: Role
    config: ReplicaConfig
    replicas: int = Field(ge=1, le=1_000_000)

    @property
    def gpus(self) -> int:
        """GPUs of the whole pool."""
        return self.replicas * self.config.parallelism.gpus


class Deployment(Frozen):
    """Pools that serve the same requests together."""

    pools: tuple[Pool, ...] = Field(min_length=1, max_length=2)

    @model_validator(mode="after")
    def _roles_fit(self) -> Self:
        roles = tuple(pool.role for pool in self.pools)
        if roles not in ((Role.MIXED,), (Role.PREFILL, Role.DECODE)):
            raise InputError("deployment.pools.role", [str(r) for r in roles], "must be (mixed) or (prefill, decode)")
        llms = {pool.config.llm.id for pool in self.pools}
        caches = {pool.config.precision.kv_cache for pool in self.pools}
        if len(llms) > 1 or len(caches) > 1:
            raise InputError("deployment.pools", sorted(llms), "all pools must serve one model with one KV format")
        return self

    @classmethod
    def mixed(cls, config: ReplicaConfig, replicas: int = 1) -> Self:
        """One mixed pool."""
        return cls(pools=(Pool(role=Role.MIXED, config=config, replicas=replicas),))

    @classmethod
    def disaggregated(cls, prefill: ReplicaConfig, decode: ReplicaConfig, replicas: tuple[int, int] = (1, 1)) -> Self:
        """A prefill and a decode pool; KV travels over the NICs of the smaller replica."""
        return cls(
            pools=(
                Pool(role=Role.PREFILL, config=prefill, replicas=replicas[0]),
                Pool(role=Role.DECODE, config=decode, replicas=replicas[1]),
            )
        )

    @property
    def is_disaggregated(self) -> bool:
        """Whether prefill and decode run on pools of their own."""
        return len(self.pools) == 2

    @property
    def gpus(self) -> int:
        """GPUs of all pools."""
        return sum(pool.gpus for pool in self.pools)

    @property
    def summary(self) -> str:
        """E.g. ``4 x h100-sxm TP2 mixed``."""
        return " + ".join(f"{pool.replicas} x {pool.config.label} {pool.role}" for pool in self.pools)

    @property
    def kv_link_bytes_per_s(self) -> float:
        """Bandwidth of one prompt's KV transfer [bytes/s]: NICs of the smaller of the two replicas; inf when mixed."""
        if not self.is_disaggregated:
            return float("inf")
        return min(
            pool.config.sku.node.nic_bytes_per_s_per_gpu.value * pool.config.parallelism.gpus for pool in self.pools
        )


class Method(StrEnum):
    """How a performance was obtained."""

    ANALYTIC = "analytic"
    SIMULATED = "simulated"


class PoolLimit(StrEnum):
    """What a pool runs out of first as the rate grows."""

    COMPUTE = "compute"
    MEMORY = "memory"
    LINK = "link"
    OVERHEAD = "overhead"
    KV_CAPACITY = "kv_capacity"
    RUNNING_REQUESTS = "running_requests"


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
    """

    role: Role
    utilisation: float
    limit: PoolLimit
    bound: Bound
    mean_running: float
    mean_step_s: float
    kv_occupancy: float


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
        pools: one entry per pool of the deployment.
        kv_transfer_s: mean KV transfer time between the pools [s]; 0 when mixed.
        requests: requests measured (simulated), 0 when analytic.
        assumptions: what the numbers take for granted.
        samples_s: per-request latencies by metric, each shape (requests,), when simulated; else empty.
        output_tokens_per_s: output tokens of the requests that ended in the measured time, per second of it
            (simulated; of a closed loop the whole run); 0 when analytic.
        steady: of a closed loop, the same over its steady part: requests sent after every user has had a first answer
            and before the last request of every user. None when open or when the run is too short to have one.
        interval: where the true mean of a metric lies with 90 % probability [s], from the spread of the kernels'
            measurements about their fits (`planner.uncertainty`); empty when uncalibrated.
    """

    method: Method
    rate_per_s: float
    stable: bool
    ttft: LatencyDistribution
    tpot: LatencyDistribution
    e2e: LatencyDistribution
    pools: tuple[PoolPerformance, ...]
    kv_transfer_s: float
    requests: int
    assumptions: tuple[str, ...]
    samples_s: Mapping[Metric, NDArray[np.float64]]
    output_tokens_per_s: float = 0.0
    steady: Performance | None = None
    interval: Mapping[Metric, tuple[float, float]] = field(default_factory=dict)

    def distribution(self, metric: Metric) -> LatencyDistribution:
        """The distribution of a metric."""
        return {Metric.TTFT: self.ttft, Metric.TPOT: self.tpot, Metric.E2E: self.e2e}[metric]

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
        """Whether every target's percentile is within its threshold."""
        return self.stable and all(self.latency_s(target) <= target.threshold_s for target in slo.targets)

    def attainment(self, slo: Slo) -> float:
        """Share of requests that meet every threshold at once.

        Simulated: counted. Analytic: the Frechet lower bound max(0, sum of single attainments - (targets - 1)), which
        holds whatever the dependence between the metrics.
        """
        if self.samples_s:
            met = [self.samples_s[target.metric] <= target.threshold_s for target in slo.targets]
            return float(np.logical_and.reduce(met).mean())
        single = [self.distribution(target.metric).cdf(target.threshold_s) for target in slo.targets]
        return max(0.0, sum(single) - (len(single) - 1))

    def goodput_per_s(self, slo: Slo) -> float:
        """Requests per second that meet every threshold of their SLO."""
        return self.rate_per_s * self.attainment(slo) if self.stable else 0.0
