"""A pool whose rate varies: its limits in closed form, the backlog by hand, and the simulator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from planner.core import IntArray, Metric
from planner.engine import ReplicaConfig, Schedule, StepTimeShift
from planner.queueing import QueueLatency
from planner.serving import (
    Deployment,
    Pool,
    Role,
    evaluate,
    largest_stable_rate_per_s,
    pool_limit_per_s,
    rate_sweep,
    sustainable_rate_per_s,
)
from planner.serving.drift import NODE_LOADS, MixedWindows, SteadyQueues, busiest_minute, queue_under_drift
from planner.serving.pool_load import _steady_pools
from planner.simulator import simulate
from planner.traffic import load_lengths, load_recording
from planner.workload import (
    ArrivalProcess,
    JointDistribution,
    LatencyDistribution,
    LatencyTarget,
    RateDrift,
    RecordedArrivals,
    RequestClass,
    Slo,
    TokenLengths,
    Workload,
)
from tests.builders import calibrated

LIMIT_PER_S = 1000.0
QUANTILES = (0.5, 0.9, 0.99)
CALM, BUSY = NODE_LOADS[[4, 8]].tolist()
"""Loads at which steady queues are evaluated, so that nothing is interpolated."""


def _queues(solve: Callable[[float], QueueLatency], limit_per_s: float) -> SteadyQueues:
    """Of a pool whose queue is known by the rate."""
    return SteadyQueues(lambda load: solve(load * limit_per_s), limit_per_s)


def exponential(mean_s: float) -> LatencyDistribution:
    middles = 1.0 - ((np.arange(4000) + 0.5) / 4000) ** 2
    return LatencyDistribution.from_samples(-mean_s * np.log1p(-middles), 1.0 - middles)


def under_drift(
    solve: Callable[[float], QueueLatency], rate_per_s: float, drift: RateDrift, by_inputs: float = 0.0
) -> QueueLatency:
    found = queue_under_drift(_queues(solve, LIMIT_PER_S), rate_per_s, drift, (by_inputs, 1.0 - by_inputs))
    assert found is not None
    return found


def single_server(rate_per_s: float, decode_s: float = 0.0) -> QueueLatency:
    """M/M/1 in sojourn time; then so many seconds [s] with the answer."""
    stable = rate_per_s < LIMIT_PER_S
    ttft = exponential(1.0 / (LIMIT_PER_S - rate_per_s)) if stable else LatencyDistribution.unbounded()
    tpot = LatencyDistribution.constant(1e-3 / (1.0 - 0.9 * min(rate_per_s / LIMIT_PER_S, 1.0)))
    e2e = LatencyDistribution(ttft.support_s + decode_s, ttft.weights)
    return QueueLatency(
        stable=stable,
        ttft=ttft,
        tpot=tpot,
        e2e=e2e,
        itl=tpot,
        mean_running=rate_per_s * decode_s,
        mean_step_s=1e-3,
        utilisation=rate_per_s / LIMIT_PER_S,
        limit="prompts",
        joint=JointDistribution.independent(ttft, tpot) if stable else None,
    )


def quantiles(distribution: LatencyDistribution) -> list[float]:
    return [distribution.quantile_s(q) for q in QUANTILES]


@pytest.mark.parametrize("load", [0.2, 0.6, 0.9])
def test_a_rate_that_hardly_varies_gives_the_steady_queue(load: float) -> None:
    drift = RateDrift.of([1.0, 1.0 + 1e-6], window_s=100.0)
    everything = under_drift(single_server, load * LIMIT_PER_S, drift)
    steady = single_server(load * LIMIT_PER_S)
    assert quantiles(everything.ttft) == pytest.approx(quantiles(steady.ttft), rel=0.03)
    assert quantiles(everything.tpot) == pytest.approx(quantiles(steady.tpot), rel=0.03)
    assert everything.utilisation == pytest.approx(load)


def test_a_slow_rate_gives_the_mixture_of_steady_queues_by_their_requests() -> None:
    drift = RateDrift.of([CALM, BUSY], window_s=1e6)
    rate_per_s, share = (CALM + BUSY) / 2.0 * LIMIT_PER_S, CALM / (CALM + BUSY)
    everything = under_drift(single_server, rate_per_s, drift)
    calm, busy = single_server(CALM * LIMIT_PER_S), single_server(BUSY * LIMIT_PER_S)
    mixed = LatencyDistribution.mixture([(calm.ttft, share), (busy.ttft, 1.0 - share)])
    assert quantiles(everything.ttft) == pytest.approx(quantiles(mixed), rel=0.01)
    mean_tpot_s = share * calm.tpot.mean_s + (1.0 - share) * busy.tpot.mean_s
    assert everything.tpot.mean_s == pytest.approx(mean_tpot_s, rel=1e-3)
    assert everything.joint is not None
    ttft_s, tpot_s = busy.ttft.quantile_s(0.5), (calm.tpot.mean_s + busy.tpot.mean_s) / 2.0
    assert everything.joint.within(ttft_s, tpot_s) == pytest.approx(share * calm.ttft.cdf(ttft_s), rel=0.02)


def test_a_fast_rate_gives_the_steady_queue_at_the_mean() -> None:
    drift = RateDrift.of([0.1, 1.9], window_s=1e-6)
    everything = under_drift(partial(single_server, decode_s=5.0), 600.0, drift)
    steady = single_server(600.0, decode_s=5.0)
    assert quantiles(everything.ttft) == pytest.approx(quantiles(steady.ttft), rel=0.05)
    assert quantiles(everything.tpot) == pytest.approx(quantiles(steady.tpot), rel=0.05)
    assert quantiles(everything.e2e) == pytest.approx(quantiles(steady.e2e), rel=0.05)


def test_tpot_does_not_follow_a_rate_that_is_faster_than_answers() -> None:
    quick = RateDrift.of([0.4, 1.6], window_s=2.0)
    slow = RateDrift.of([0.4, 1.6], window_s=2000.0)
    spreads = []
    for drift in (quick, slow):
        queue = under_drift(partial(single_server, decode_s=20.0), 500.0, drift)
        spreads.append(queue.tpot.quantile_s(0.99) / queue.tpot.quantile_s(0.01))
    assert spreads[0] < 1.1
    assert spreads[1] > 2.0


def test_the_backlog_of_a_square_wave_is_the_fluid_one() -> None:
    """At 1.25 and 0.5 of the limit it grows by 0.25 T in a window T and is gone after half of the next."""
    window_s = 1000.0
    drift = RateDrift.of([1.25, 0.5], window_s=window_s)
    everything = under_drift(single_server, 0.875 * LIMIT_PER_S, drift)
    mean_s = 0.125 * window_s * (1.25 + 0.5 * 0.5) / (1.25 + 0.5)
    assert everything.ttft.mean_s == pytest.approx(mean_s, rel=0.05)
    assert everything.ttft.quantile_s(0.995) == pytest.approx(0.25 * window_s, rel=0.1)
    waits = everything.ttft.cdf(1.0)
    assert waits == pytest.approx(0.5 * 0.5 / 1.75, abs=0.05)


def test_more_variation_is_never_faster() -> None:
    worst = [0.0, 0.0]
    for cv in (0.05, 0.1, 0.2, 0.4, 0.8):
        queue = under_drift(single_server, 600.0, RateDrift.random(cv, 60.0, seed=1))
        seen = [queue.ttft.quantile_s(0.99), queue.tpot.quantile_s(0.99)]
        assert all(now >= 0.99 * before for now, before in zip(seen, worst, strict=True))
        worst = seen


def test_a_mean_rate_above_the_limit_has_no_path() -> None:
    queues, drift = _queues(single_server, LIMIT_PER_S), RateDrift.of([0.5, 1.5], window_s=60.0)
    assert queue_under_drift(queues, 1.01 * LIMIT_PER_S, drift) is None


def test_the_busiest_minute_is_the_largest_mean_of_sixty_seconds() -> None:
    drift = RateDrift.of([1.0, 4.0, 2.0, 1.0], window_s=30.0)
    assert busiest_minute(drift) == pytest.approx(3.0 / 2.0)
    assert busiest_minute(RateDrift.of([1.0, 3.0], window_s=5.0)) == pytest.approx(1.0)


def test_longer_prompts_in_some_windows_count_as_more_prompts() -> None:
    rate = RateDrift.of([0.5, 1.5], window_s=600.0)
    longer = RateDrift(window_s=600.0, factors=(1.0, 1.0), input_factors=(0.5, 1.5), output_factors=(1.0, 1.0))
    of_rate, of_lengths = (under_drift(single_server, 500.0, drift, by_inputs=1.0) for drift in (rate, longer))
    slowest = LatencyDistribution.mixture([(single_server(250.0).ttft, 0.5), (single_server(750.0).ttft, 0.5)])
    assert quantiles(of_lengths.ttft) == pytest.approx(quantiles(slowest), rel=0.05)
    assert of_rate.ttft.mean_s > of_lengths.ttft.mean_s  # more of its requests come in the busy windows


def test_requests_of_other_lengths_while_most_come_meet_the_queue_before_such_requests() -> None:
    """Rates that move slowly: the mixture of the steady queues of both mixes, by the requests that come in each."""

    def slower(rate_per_s: float) -> QueueLatency:
        """The same server where every request takes twice as long."""
        queue = single_server(2.0 * rate_per_s)
        return replace(queue, tpot=LatencyDistribution.constant(0.5))

    drift = RateDrift.of([CALM, BUSY / 2.0], window_s=1e6)
    rates = CALM * LIMIT_PER_S, BUSY / 2.0 * LIMIT_PER_S
    mixes = (
        MixedWindows(_queues(single_server, LIMIT_PER_S), np.array([0])),
        MixedWindows(_queues(slower, LIMIT_PER_S / 2.0), np.array([1])),
    )
    found = queue_under_drift(_queues(single_server, LIMIT_PER_S), sum(rates) / 2.0, drift, mixes=mixes)
    assert found is not None and found.joint is not None
    calm, busy = single_server(rates[0]), slower(rates[1])
    mixed = LatencyDistribution.mixture([(calm.ttft, rates[0] / sum(rates)), (busy.ttft, rates[1] / sum(rates))])
    assert quantiles(found.ttft) == pytest.approx(quantiles(mixed), rel=0.01)
    assert found.tpot.cdf(0.4) == pytest.approx(rates[0] / sum(rates), rel=2e-3)  # 512 points
    within = found.joint.within(busy.ttft.quantile_s(0.5), 1.0)
    assert within == pytest.approx(mixed.cdf(busy.ttft.quantile_s(0.5)), rel=0.01)


def test_a_queue_keeps_its_number_when_the_mix_of_lengths_changes() -> None:
    """Overloaded by long requests, then served as short ones: what waits is served at the rate of short ones."""
    window_s = 1000.0
    drift = RateDrift.of([1.0, 1.0], window_s=window_s)
    long_per_s = 0.5 * LIMIT_PER_S
    mixes = (
        MixedWindows(_queues(single_server, LIMIT_PER_S), np.array([0])),
        MixedWindows(_queues(lambda rate_per_s: single_server(2.0 * rate_per_s), long_per_s), np.array([1]), 1.0),
    )
    found = queue_under_drift(_queues(single_server, LIMIT_PER_S), 1.2 * long_per_s, drift, mixes=mixes)
    assert found is not None
    grown = 0.2 * long_per_s * window_s  # at the end of the long ones; gone after a quarter of the other window
    assert grown / (LIMIT_PER_S - 1.2 * long_per_s) < window_s
    assert found.ttft.cdf(1.0) == pytest.approx(0.5 * (1.0 - 0.25), abs=0.05)


# --- whole deployments ----------------------------------------------------------------------------------------------


@cache
def replica(**settings: Any) -> ReplicaConfig:
    return calibrated(sku="h100-sxm", own_schedule=Schedule(reserve_outputs=True), max_batched_tokens=2048, **settings)


LENGTHS = TokenLengths.from_pairs([200, 600, 1600], [60, 200, 400], weights=[1, 2, 1])


def drifting(rate_per_s: float, drift: RateDrift) -> Workload:
    arrivals = ArrivalProcess(rate_per_s=rate_per_s, drift=drift)
    return Workload(arrivals=arrivals, classes=(RequestClass(lengths=LENGTHS),))


@pytest.mark.parametrize(
    ("deployment", "load", "drift"),
    [
        (Deployment.mixed(replica()), 0.6, RateDrift.of([0.6, 1.4, 1.0, 1.2, 0.8], window_s=40.0)),
        (Deployment.disaggregated(replica(), replica()), 0.6, RateDrift.of([0.5, 1.5], window_s=60.0)),
    ],
)
def test_theory_agrees_with_simulation(deployment: Deployment, load: float, drift: RateDrift) -> None:
    limit_per_s = largest_stable_rate_per_s(deployment, Workload.of(1.0, LENGTHS))
    workload = drifting(load * limit_per_s, drift)
    cycle = workload.rate_per_s * drift.duration_s
    cycles = max(2, round(60_000 / cycle))
    simulated = simulate(
        deployment, workload, requests=round((cycles + 1) * cycle), warmup_fraction=1.0 / (cycles + 1), seed=3
    )
    theory = evaluate(deployment, workload)
    for metric, tolerances in ((Metric.TTFT, (0.1, 0.25, 0.35)), (Metric.TPOT, (0.06, 0.12, 0.2))):
        for quantile, tolerance in zip(QUANTILES, tolerances, strict=True):
            expected = simulated.distribution(metric).quantile_s(quantile)
            assert theory.distribution(metric).quantile_s(quantile) == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize(
    ("roles", "ratio", "tolerance"), [(1, 0.4, 1e-6), (1, 0.2, 0.012), (1, -0.11, 0.012), (2, 0.2, 0.004)]
)
def test_worlds_are_read_off_those_of_neighbouring_ratios(roles: int, ratio: float, tolerance: float) -> None:
    """Steps all longer by a factor are the same queue in slower time; of the ratio of factors latencies are smooth."""
    shift = StepTimeShift(decode=1.13, prompt=1.13 * math.exp(ratio), request_s=0.02)
    config = replica(shift=shift)
    deployment = Deployment.mixed(config, 2) if roles == 1 else Deployment.disaggregated(config, config)
    limit_per_s = largest_stable_rate_per_s(deployment, Workload.of(1.0, LENGTHS))
    workload = drifting(0.7 * limit_per_s, RateDrift.of([0.8, 1.2, 1.0], window_s=60.0))
    exact, read_off = evaluate(deployment, workload), evaluate(deployment, workload, figures=False)
    for metric in (Metric.TTFT, Metric.TPOT, Metric.E2E):
        expected, found = (quantiles(each.distribution(metric)) for each in (exact, read_off))
        assert found == pytest.approx(expected, rel=tolerance)


def test_a_drift_is_told() -> None:
    deployment, drift = Deployment.mixed(replica(), 2), RateDrift.random(0.3, 120.0, seed=2)
    performance = evaluate(deployment, drifting(20.0, drift))
    assert performance.rate_cv == pytest.approx(0.3)
    told = f"coefficient of variation 0.30, busiest minute {20.0 * busiest_minute(drift):.3g}/s"
    assert any(told in note for note in performance.assumptions)
    slo = Slo(
        targets=(
            LatencyTarget(metric=Metric.TTFT, percentile=0.9, threshold_s=performance.ttft.quantile_s(0.9)),
            LatencyTarget(metric=Metric.TPOT, percentile=0.9, threshold_s=performance.tpot.quantile_s(0.9)),
        )
    )
    assert 0.8 <= performance.attainment(slo) <= 0.91


def test_classes_and_overloads_are_answered_under_drift() -> None:
    drift = RateDrift.of([0.7, 1.3], window_s=300.0)
    arrivals = ArrivalProcess(rate_per_s=10.0, drift=drift)
    classes = tuple(RequestClass(name=name, lengths=LENGTHS, share=0.5) for name in ("one", "two"))
    both = evaluate(Deployment.mixed(replica()), Workload(arrivals=arrivals, classes=classes))
    assert [seen.rate_per_s for seen in both.classes] == [5.0, 5.0]
    whole = evaluate(Deployment.mixed(replica()), drifting(10.0, drift))
    assert both.classes[0].ttft.quantile_s(0.9) == pytest.approx(whole.ttft.quantile_s(0.9), rel=0.1)
    overload = evaluate(Deployment.mixed(replica()), drifting(500.0, drift), horizon_s=600.0)
    assert not overload.stable
    assert np.isfinite(overload.ttft.quantile_s(0.99))


def test_the_sustainable_rate_under_drift_is_smaller_and_holds() -> None:
    deployment, drift = Deployment.mixed(replica()), RateDrift.random(0.4, 300.0, seed=4)
    slo = Slo(targets=(LatencyTarget(metric=Metric.TPOT, percentile=0.99, threshold_s=0.02),))
    steady = sustainable_rate_per_s(deployment, Workload.of(1.0, LENGTHS), slo)
    rate_per_s = sustainable_rate_per_s(deployment, drifting(1.0, drift), slo)
    assert 0.3 * steady < rate_per_s < 0.9 * steady
    assert evaluate(deployment, drifting(rate_per_s, drift)).meets(slo)
    assert not evaluate(deployment, drifting(1.02 * rate_per_s, drift)).meets(slo)
    sweep = rate_sweep(deployment, drifting(1.0, drift), [0.9 * rate_per_s, 1.1 * rate_per_s])
    assert sweep.latencies_s(Metric.TPOT, 0.99)[0] < 0.02 < sweep.latencies_s(Metric.TPOT, 0.99)[1]


def test_a_recording_is_answered_as_the_process_it_is_summed_up_by() -> None:
    times_s = ArrivalProcess(rate_per_s=8.0, drift=RateDrift.random(0.4, 60.0)).sample_times_s(8000, seed=0)
    inputs, outputs = LENGTHS.sample(8000, seed=1)
    recorded = RecordedArrivals(
        times_s=tuple(times_s.tolist()), input_tokens=tuple(inputs.tolist()), output_tokens=tuple(outputs.tolist())
    )
    classes = (RequestClass(lengths=LENGTHS),)
    assert recorded.process.drift is not None
    of_recording, of_process = (
        evaluate(Deployment.mixed(replica()), Workload(arrivals=arrivals, classes=classes))
        for arrivals in (recorded, recorded.process)
    )
    assert quantiles(of_recording.ttft) == quantiles(of_process.ttft)


@pytest.mark.parametrize(
    ("role", "inputs", "outputs"), [(Role.MIXED, 1.5, 0.6), (Role.PREFILL, 0.7, 1.4), (Role.DECODE, 1.3, 1.3)]
)
def test_other_lengths_are_as_much_work_as_they_take_from_the_largest_rate(
    role: Role, inputs: float, outputs: float
) -> None:
    """Windows with prompts half as long again and shorter answers: the oracle is the largest rate with such lengths."""
    pool = Pool(role=role, config=replica(), replicas=2)
    steady = _steady_pools(pool, Workload.of(1.0, LENGTHS))
    changed = Workload.of(1.0, LENGTHS.scaled(inputs, outputs, 10_000))
    drift = RateDrift(
        window_s=1.0, factors=(1.0, 1.0), input_factors=(inputs, 2.0 - inputs), output_factors=(outputs, 2.0 - outputs)
    )
    work = float(drift.work(*steady.growth)[0])
    assert steady.limit_per_s / pool_limit_per_s(pool, changed) == pytest.approx(work, rel=0.12)


def test_prompts_that_grow_with_the_rate_are_waited_for() -> None:
    """The replay of arrivals whose inputs are longest when most requests come, and of the same ones shuffled."""
    rng = np.random.default_rng(4)
    windows, window_s, deployment = 40, 20.0, Deployment.mixed(replica(), 2)
    factors = np.resize([0.7, 1.3], windows)
    counts = rng.poisson(16.0 * window_s * factors)
    times_s = np.concatenate([np.sort(rng.uniform(w, w + 1.0, n)) for w, n in enumerate(counts)]) * window_s
    inputs = np.where(np.repeat(factors, counts) > 1.0, 1000, 500)

    def tail(of_requests: IntArray) -> tuple[float, float]:
        recording = RecordedArrivals(
            times_s=tuple(times_s.tolist()),
            input_tokens=tuple(of_requests.tolist()),
            output_tokens=(100,) * times_s.size,
        )
        cells = TokenLengths.from_pairs([500, 1000], [100, 100], weights=np.bincount(of_requests // 501, minlength=2))
        workload = Workload(arrivals=recording, classes=(RequestClass(lengths=cells),))
        found = evaluate(deployment, workload), simulate(deployment, workload)
        return found[0].tpot.quantile_s(0.99), found[1].tpot.quantile_s(0.99)

    together, shuffled = tail(inputs), tail(rng.permutation(inputs))
    assert together[1] > 1.05 * shuffled[1]  # that it matters at all
    assert together[0] / shuffled[0] == pytest.approx(together[1] / shuffled[1], rel=0.12)


@pytest.mark.parametrize(("recording", "replicas", "load"), [("azure-2023-conv", 4, 0.4)])
def test_a_replay_whose_prompts_are_longest_when_most_come_is_as_slow_as_theory_says(
    recording: str, replicas: int, load: float
) -> None:
    """TPOT at p99 was 27 % short before requests of the busiest windows had lengths of their own."""
    deployment, kinds = Deployment.mixed(replica(), replicas), (RequestClass(lengths=load_lengths(recording)),)
    whole = load_recording(recording).recorded()
    limit_per_s = largest_stable_rate_per_s(deployment, Workload(arrivals=whole, classes=kinds))
    workload = Workload(arrivals=whole.at_rate(load * limit_per_s), classes=kinds)
    theory, replay = evaluate(deployment, workload), simulate(deployment, workload)
    for metric, tolerance in ((Metric.TTFT, 0.15), (Metric.TPOT, 0.12)):
        expected = replay.distribution(metric).quantile_s(0.99)
        assert theory.distribution(metric).quantile_s(0.99) == pytest.approx(expected, rel=tolerance)
