"""Deployments refuse nonsense; attainment is counted when it can be and bounded from below when not."""

from __future__ import annotations

import numpy as np
import pytest

from planner.core import InputError, Metric
from planner.roofline import Parallelism
from planner.serving import Deployment, Method, Performance, Pool, Role
from planner.workload import LatencyDistribution, LatencyTarget, Slo
from tests.builders import FP8, calibrated, disaggregated, mixed, replica

SLO = Slo(
    targets=(
        LatencyTarget(metric=Metric.TTFT, percentile=0.9, threshold_s=1.0),
        LatencyTarget(metric=Metric.TPOT, percentile=0.9, threshold_s=0.05),
    )
)


def performance(ttft: list[float], tpot: list[float], method: Method, stable: bool = True) -> Performance:
    """A performance with these per-request latencies."""
    samples = {Metric.TTFT: np.array(ttft), Metric.TPOT: np.array(tpot), Metric.E2E: np.array(ttft)}
    return Performance(
        method=method,
        rate_per_s=10.0,
        stable=stable,
        ttft=LatencyDistribution.from_samples(ttft),
        tpot=LatencyDistribution.from_samples(tpot),
        e2e=LatencyDistribution.from_samples(ttft),
        itl=LatencyDistribution.from_samples(tpot),
        pools=(),
        kv_transfer_s=0.0,
        requests=len(ttft),
        assumptions=(),
        samples_s=samples if method is Method.SIMULATED else {},
    )


def test_simulated_attainment_counts_requests_that_meet_every_target() -> None:
    # Request 1 misses TTFT, request 2 misses TPOT, request 3 misses both, request 4 meets both.
    seen = performance([2.0, 0.5, 2.0, 0.5], [0.01, 0.1, 0.1, 0.01], Method.SIMULATED)
    assert seen.attainment(SLO) == 0.25
    assert seen.goodput_per_s(SLO) == 2.5


def test_analytic_attainment_is_the_frechet_bound_and_never_above_the_count() -> None:
    ttft, tpot = [2.0, 0.5, 0.5, 0.5], [0.01, 0.1, 0.01, 0.01]
    bound = performance(ttft, tpot, Method.ANALYTIC).attainment(SLO)
    assert bound == pytest.approx(0.75 + 0.75 - 1.0)
    assert bound <= performance(ttft, tpot, Method.SIMULATED).attainment(SLO)


def test_an_unstable_deployment_has_no_goodput() -> None:
    assert performance([0.1], [0.01], Method.ANALYTIC, stable=False).goodput_per_s(SLO) == 0.0
    assert not performance([0.1], [0.01], Method.ANALYTIC, stable=False).meets(SLO)


def test_meeting_needs_every_target() -> None:
    assert performance([0.5], [0.01], Method.ANALYTIC).meets(SLO)
    assert not performance([0.5], [0.1], Method.ANALYTIC).meets(SLO)


def test_gpus_add_up_over_pools_and_replicas() -> None:
    assert mixed(3, tp=2).gpus == 6
    assert disaggregated((2, 3), tp=4).gpus == 20


def test_kv_travels_over_the_nics_of_the_smaller_replica() -> None:
    # 400 Gb/s per GPU = 50 GB/s
    pair = Deployment.disaggregated(replica(tp=4), replica(tp=2))
    assert pair.kv_link_bytes_per_s == 0.85 * 2 * 50e9
    assert mixed().kv_link_bytes_per_s == float("inf")


def test_prefill_pools_alone_share_out_prompts_and_one_gpu_sends_the_cache_of_all() -> None:
    """SGLang 0.5.23: "Decode cp size should be equal to 1", and other ranks than the first are dummies that send none
    (disaggregation/common/conn.py).
    """
    shared = calibrated("qwen3-30b-a3b", engine="sglang", parallelism=Parallelism(pcp=8, ep=8))
    decode = calibrated("qwen3-30b-a3b", engine="sglang", parallelism=Parallelism(tp=4))
    pair = Deployment.disaggregated(shared, decode)
    assert pair.kv_link_bytes_per_s == 0.85 * 50e9
    assert pair.kv_links == (1, 4)
    for refused in (lambda: Deployment.mixed(shared), lambda: Deployment.disaggregated(decode, shared)):
        with pytest.raises(InputError, match="use it in prefill pools"):
            refused()


def test_roles_and_formats_must_fit_together() -> None:
    with pytest.raises(InputError, match=r"must be \(mixed\) or \(prefill, decode\)"):
        Deployment(pools=(Pool(role=Role.PREFILL, config=replica(), replicas=1),))
    with pytest.raises(InputError, match="must serve one model with one KV format"):
        Deployment.disaggregated(replica(), replica(precision=FP8))
    with pytest.raises(InputError, match="must serve one model"):
        Deployment.disaggregated(replica(), replica("llama-2-7b"))
    with pytest.raises(InputError, match="replicas = 0"):
        mixed(0)
