"""Margins of a pool whose rate varies, or was recorded: what `evaluate` says, for about as many evaluations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hardware_db import select_calibration
from planner.core import Metric
from planner.engine import ReplicaConfig
from planner.llm import Precision, load_llm
from planner.search import Capacity, Demand, PoolOption, slo_margin
from planner.search.candidates import RATE_TOLERANCE
from planner.search.slo_margin import pool_slo_margin, slo_margin_between_nodes
from planner.serving import Deployment, Role, evaluate, pool_limit_per_s, pool_load, sustainable_rate_per_s
from planner.workload import ArrivalProcess, LatencyTarget, RateDrift, RecordedArrivals, RequestClass, Slo, Workload
from tests.builders import CHAT, HARDWARE
from tests.search.caches import forget_all

DRIFT = RateDrift.random(0.3, 300.0, seed=4)
SLO = Slo(
    targets=(
        LatencyTarget(metric=Metric.TTFT, percentile=0.99, threshold_s=0.5),
        LatencyTarget(metric=Metric.TPOT, percentile=0.99, threshold_s=0.02),
    )
)
CLASSES = (RequestClass(lengths=CHAT),)


def demand(drift: RateDrift | None) -> Demand:
    arrivals = ArrivalProcess(rate_per_s=50.0, drift=drift)
    workload = Workload(arrivals=arrivals, classes=CLASSES)
    return Demand(load_llm("llama-3.1-8b"), Precision(), workload, SLO)


def option(role: Role = Role.MIXED, limit: int = 128) -> PoolOption:
    calibration = select_calibration(HARDWARE, "h100-sxm", "vllm")
    config = ReplicaConfig(
        llm=load_llm("llama-3.1-8b"),
        sku=HARDWARE.skus["h100-sxm"],
        engine=HARDWARE.engines["vllm"],
        calibration=calibration,
        max_batched_tokens=2048,
        max_running_requests=limit,
    )
    return PoolOption(role, config)


def test_a_latency_without_bound_at_the_loads_around_a_rate_has_none_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference of two infinities was no number, and the search for a rate stopped with an error."""
    monkeypatch.setattr(slo_margin, "_latency_excess", lambda *_: math.inf)
    assert slo_margin_between_nodes(option().pool(2), demand(None), 20.0).log_excess == math.inf


@pytest.mark.parametrize("role", [Role.MIXED, Role.DECODE])
def test_between_two_loads_a_pool_is_as_far_from_its_targets_as_its_own_queue_says(role: Role) -> None:
    """At the loads themselves the same; between them within 5 % of a latency, and rising with the rate."""
    steady, pool = demand(None), option(role).pool(3)
    limit_per_s = pool_limit_per_s(pool, steady.workload)
    nodes, between = pool_load.STEADY_NODES[3:6] * limit_per_s, np.linspace(0.5, 0.9, 9) * limit_per_s
    for rate_per_s in nodes.tolist():
        own = pool_slo_margin(pool, steady, rate_per_s)
        assert slo_margin_between_nodes(pool, steady, rate_per_s).log_excess == pytest.approx(own.log_excess, abs=1e-9)
    found = [slo_margin_between_nodes(pool, steady, rate).log_excess for rate in between.tolist()]
    own_queues = [pool_slo_margin(pool, steady, rate).log_excess for rate in between.tolist()]
    assert found == pytest.approx(own_queues, abs=0.05)
    assert found == sorted(found)


def test_the_rate_found_under_drift_is_what_evaluate_holds() -> None:
    forget_all()
    varying = demand(DRIFT)
    rate_per_s = Capacity(varying).rate_per_s(option(), 3)
    deployment = Deployment(pools=(option().pool(3),))
    true = sustainable_rate_per_s(deployment, varying.workload, SLO)
    assert (1.0 - 2.0 * RATE_TOLERANCE) * true <= rate_per_s <= true * 1.002
    assert rate_per_s < 0.95 * Capacity(demand(None)).rate_per_s(option(), 3)
    assert evaluate(deployment, varying.workload.at_rate(rate_per_s)).meets(SLO)


@pytest.mark.parametrize("role", list(Role))
def test_bounds_are_bounds_under_drift(role: Role) -> None:
    varying = Capacity(demand(DRIFT))
    member = option(role)
    candidate = varying._candidate(member)
    assert varying.rate_per_s(member, 2) <= candidate.screened_per_s(2)


def test_a_recording_is_judged_as_the_process_it_is_summed_up_by() -> None:
    times_s = ArrivalProcess(rate_per_s=8.0, drift=DRIFT).sample_times_s(6000, seed=0)
    inputs, outputs = CHAT.sample(6000, seed=1)
    arrivals = RecordedArrivals(
        times_s=tuple(times_s.tolist()), input_tokens=tuple(inputs.tolist()), output_tokens=tuple(outputs.tolist())
    )
    recorded, summed = (
        Demand(load_llm("llama-3.1-8b"), Precision(), Workload(arrivals=each, classes=CLASSES), SLO)
        for each in (arrivals, arrivals.process)
    )
    pool = option().pool(1)
    assert pool_slo_margin(pool, recorded, 9.0) == pool_slo_margin(pool, summed, 9.0)
