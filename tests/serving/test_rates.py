"""Rates: the crossing found is the crossing, and a sweep shows what `evaluate` says."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.core import Metric
from planner.roofline import Parallelism
from planner.serving import (
    Deployment,
    Performance,
    evaluate,
    largest_stable_rate_per_s,
    log_excess,
    sustainable_rate_per_s,
)
from planner.serving.rates import rate_sweep
from planner.simulator import simulate
from planner.traffic import load_lengths
from planner.workload import JointDistribution, LatencyDistribution, LatencyTarget, Slo, TokenLengths, Workload
from tests.builders import FP8, calibrated, chat

TTFT = LatencyTarget(metric=Metric.TTFT, percentile=0.99, threshold_s=0.5)
TPOT = LatencyTarget(metric=Metric.TPOT, percentile=0.99, threshold_s=0.03)
SLO = Slo(targets=(TTFT, TPOT))
POOL = Deployment.mixed(calibrated(), 2)
BASE = evaluate(POOL, chat(1.0))


def one_server(rate_scale: float = 1.0) -> object:
    """A judge with the TTFT of M/M/1: p99 = ln(100) / (mu - lambda), mu the largest stable rate of the pool."""
    mu = largest_stable_rate_per_s(POOL, chat(1.0)) * rate_scale

    def judge(_: Deployment, workload: Workload) -> Performance:
        p = (np.arange(1000) + 0.5) / 1000
        sojourn = LatencyDistribution.from_samples(-np.log(1.0 - p) / max(mu - workload.rate_per_s, 1e-9))
        return replace(BASE, ttft=sojourn, tpot=LatencyDistribution.constant(0.01), joint=None)

    return judge


def test_rate_of_a_queue_with_a_closed_form() -> None:
    """p99 of M/M/1 within t as long as lambda <= mu - ln(100) / t (1 % from the points of the distribution)."""
    mu = largest_stable_rate_per_s(POOL, chat(1.0))
    found = sustainable_rate_per_s(POOL, chat(1.0), SLO, one_server())  # type: ignore[arg-type]
    assert found == pytest.approx(mu - math.log(100.0) / 0.5, rel=0.01)


def test_a_front_end_sends_no_more_tokens_than_it_has_time_for() -> None:
    """Servers whose steps are faster than that are limited by it (bottleneck law), late by it at little load."""
    config, stream_s = calibrated(), 1e-3
    costs = config.engine.costs.model_copy(update={"stream_s": stream_s})
    slow = config.model_copy(update={"engine": config.engine.model_copy(update={"costs": costs})})
    limit_per_s = largest_stable_rate_per_s(Deployment.mixed(slow), chat(1.0))
    assert limit_per_s * chat(1.0).lengths.mean_output == pytest.approx(1.0 / stream_s, rel=0.02)
    few = chat(0.01)
    late_s = evaluate(Deployment.mixed(slow), few).ttft.mean_s - evaluate(Deployment.mixed(config), few).ttft.mean_s
    assert late_s == pytest.approx(stream_s, rel=0.05)


@pytest.mark.parametrize(("share", "scale"), [(1e-6, 0.6), (0.3, 1.0), (0.99, 0.8), (1.5, 0.6)])
def test_the_rate_found_does_not_depend_on_where_the_search_starts(share: float, scale: float) -> None:
    """From far below, near, at the limit and beyond it; the crossing lies anywhere."""
    mu = scale * largest_stable_rate_per_s(POOL, chat(1.0))
    asked: list[float] = []

    def judge(deployment: Deployment, workload: Workload) -> Performance:
        asked.append(workload.rate_per_s)
        return one_server(scale)(deployment, workload)  # type: ignore[operator, no-any-return]

    found = sustainable_rate_per_s(POOL, chat(share * mu), SLO, judge)
    assert found == pytest.approx(mu - math.log(100.0) / 0.5, rel=0.01)
    assert len(asked) <= 12


def test_a_latency_that_does_not_rise_with_the_rate_holds_up_to_the_limit() -> None:
    """Steps grow although the crossing seems near at every one of them."""
    near = replace(BASE, ttft=LatencyDistribution.constant(0.4999), tpot=LatencyDistribution.constant(0.01), joint=None)
    limit = largest_stable_rate_per_s(POOL, chat(1.0))
    found = sustainable_rate_per_s(POOL, chat(0.001 * limit), SLO, lambda *_: near)
    assert found == pytest.approx(limit, rel=0.01)


@pytest.mark.parametrize("slo", [SLO, Slo(targets=(TTFT, TPOT), attainment=0.9), Slo(targets=(TPOT,))])
def test_targets_hold_at_the_rate_found_and_fail_a_little_above(slo: Slo) -> None:
    rate = sustainable_rate_per_s(POOL, chat(1.0), slo)
    assert evaluate(POOL, chat(rate)).meets(slo)
    assert not evaluate(POOL, chat(1.01 * rate)).meets(slo)


def test_tighter_targets_never_sustain_more() -> None:
    rates = [
        sustainable_rate_per_s(POOL, chat(1.0), Slo(targets=(TTFT.model_copy(update={"threshold_s": seconds}),)))
        for seconds in (0.05, 0.1, 0.3, 1.0, 10.0)
    ]
    assert rates == sorted(rates)


def test_a_target_below_the_idle_latency_sustains_nothing_and_a_loose_one_all_that_is_stable() -> None:
    nothing = Slo(targets=(LatencyTarget(metric=Metric.TTFT, percentile=0.5, threshold_s=1e-6),))
    assert sustainable_rate_per_s(POOL, chat(1.0), nothing) == 0.0
    loose = Slo(targets=(LatencyTarget(metric=Metric.TTFT, percentile=0.5, threshold_s=1e6),))
    limit = largest_stable_rate_per_s(POOL, chat(1.0))
    for slo in (loose, Slo(targets=())):
        assert sustainable_rate_per_s(POOL, chat(1.0), slo) == pytest.approx(limit, rel=0.01)


def test_joint_share_lies_between_its_bounds() -> None:
    """Frechet: sum - 1 <= P(both) <= the smaller."""
    found = evaluate(POOL, chat(60.0))
    ttft, tpot = found.ttft.quantile_s(0.8), found.tpot.quantile_s(0.7)
    targets = tuple(
        LatencyTarget(metric=metric, percentile=0.5, threshold_s=seconds)
        for metric, seconds in ((Metric.TTFT, ttft), (Metric.TPOT, tpot))
    )
    assert 0.5 - 0.01 <= found.attainment(Slo(targets=targets)) <= 0.7 + 0.02


def test_joint_distribution_of_dependent_groups() -> None:
    """Two kinds of requests, one fast in both and one slow in both: half meet both, not a quarter."""
    distribution = JointDistribution(
        np.array([[1.0], [9.0]]),
        np.ones(1),
        np.array([[1.0], [9.0]]),
        np.ones(1),
        np.eye(2) / 2.0,
        np.arange(2.0),
        np.arange(2.0),
        1,
    )
    assert distribution.within(5.0, 5.0) == 0.5
    assert distribution.within(10.0, 5.0) == 0.5
    assert distribution.within(10.0, 10.0) == 1.0


def test_sweep_is_evaluate_at_each_rate() -> None:
    sweep = rate_sweep(POOL, chat(1.0), rates_per_s=[40.0, 5.0])
    assert sweep.rates_per_s.tolist() == [5.0, 40.0]
    assert sweep.latencies_s(Metric.TTFT, 0.99)[1] == evaluate(POOL, chat(40.0)).ttft.quantile_s(0.99)
    assert sweep.goodput_per_s(SLO)[0] == pytest.approx(5.0, rel=0.02)
    assert sweep.binding(SLO)[0] is None


@pytest.mark.parametrize("replicas", [2, 3, 6])
def test_latencies_near_the_limit_do_not_jump(replicas: int) -> None:
    """Where full steps nearly fall behind the number running moved by 7 % from one rate to the next."""
    limits: dict[str, Any] = {"max_batched_tokens": 2048, "max_running_requests": 128}
    config = calibrated("llama-3.3-70b-instruct", "b200-sxm", precision=FP8, parallelism=Parallelism(tp=2), **limits)
    pool, requests = Deployment.mixed(config, replicas), load_lengths("azure-2023-conv")
    limit = largest_stable_rate_per_s(pool, Workload.of(1.0, requests))
    answers = [evaluate(pool, Workload.of(load * limit, requests)) for load in np.linspace(0.9, 0.97, 15)]
    running, tokens_s = np.array([[each.pools[0].mean_running, each.tpot.quantile_s(0.5)] for each in answers]).T
    assert np.diff(np.log(running)).max() < 0.055
    assert (np.diff(tokens_s) > 0.0).all()


def test_sweep_ends_below_the_limit_of_stability() -> None:
    sweep = rate_sweep(POOL, chat(1.0), points=4)
    limit = largest_stable_rate_per_s(POOL, chat(1.0))
    assert sweep.rates_per_s[-1] == pytest.approx(0.995 * limit)
    assert all(performance.stable for performance in sweep.performances)
    tails = sweep.latencies_s(Metric.TTFT, 0.99)
    assert np.all(np.diff(tails) > 0.0)


@pytest.mark.parametrize(("metric", "percentile"), [(Metric.TTFT, 0.99), (Metric.TPOT, 0.5)])
def test_interpolated_rates_are_those_evaluated(metric: Metric, percentile: float) -> None:
    few = rate_sweep(POOL, chat(1.0), points=20)
    exact = [evaluate(POOL, chat(rate)).distribution(metric).quantile_s(percentile) for rate in few.rates_per_s[:19]]
    ratio = few.latencies_s(metric, percentile)[:19] / exact
    assert ratio == pytest.approx(np.ones(19), abs=0.09)
    assert np.median(np.abs(ratio - 1.0)) < 0.02


def test_a_sweep_beyond_stability_is_infinite_from_there_on() -> None:
    limit = largest_stable_rate_per_s(POOL, chat(1.0))
    sweep = rate_sweep(POOL, chat(1.0), rates_per_s=np.linspace(0.1, 1.5, 30) * limit)
    tails = sweep.latencies_s(Metric.TTFT, 0.99)
    assert np.isfinite(tails[sweep.rates_per_s < 0.9 * limit]).all()
    assert np.isinf(tails[sweep.rates_per_s > limit]).all()
    assert sweep.goodput_per_s(SLO)[-1] == 0.0


def test_overload_is_infinitely_far_from_its_targets() -> None:
    limit = largest_stable_rate_per_s(POOL, chat(1.0))
    assert log_excess(evaluate(POOL, chat(2.0 * limit)), SLO) == math.inf


def test_long_contexts_that_gpus_share_out_are_served_faster_where_memory_binds() -> None:
    """Eight GPUs hold as many contexts of 116,000 tokens eight times; the simulator judges a step of them all."""
    lengths = TokenLengths.constant(100_000, 16_000)
    slo = Slo(targets=(LatencyTarget(metric=Metric.TPOT, percentile=0.95, threshold_s=0.1),))
    pools = [
        Deployment.mixed(calibrated("deepseek-r1", precision=FP8, parallelism=Parallelism(tp=8, dcp=dcp)))
        for dcp in (1, 8)
    ]
    rates = [sustainable_rate_per_s(pool, Workload.of(1.0, lengths), slo) for pool in pools]
    assert 2.0 < rates[1] / rates[0] < 8.0
    for pool, rate_per_s in zip(pools, rates, strict=True):
        busy = Workload.of(0.7 * rate_per_s, lengths)
        simulated = simulate(pool, busy, requests=600, seed=1)
        assert evaluate(pool, busy).tpot.mean_s == pytest.approx(simulated.tpot.mean_s, rel=0.05)
