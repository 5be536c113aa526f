"""A recording is replayed whole, a drift for a whole cycle; what is too large, on a part with the same load."""

from __future__ import annotations

import numpy as np
import pytest

from planner.core import Metric
from planner.fleet import simulation as module
from planner.fleet.simulation import (
    busiest_part,
    busiest_requests,
    evaluated,
    part_of_fleet,
    requests_to_forget,
    run_notes,
    run_of,
    simulated,
)
from planner.serving import Deployment, evaluate, largest_stable_rate_per_s
from planner.workload import (
    STUDENT_95,
    ArrivalProcess,
    RateDrift,
    RecordedArrivals,
    RequestClass,
    TokenLengths,
    Workload,
)
from tests.builders import disaggregated, mixed

LENGTHS = TokenLengths.constant(500, 100)


def recorded(rate_per_s: float = 20.0, seconds: float = 120.0, seed: int = 0) -> Workload:
    """Poisson arrivals, twice as many a second in the last half."""
    rng = np.random.default_rng(seed)
    count = round(rate_per_s * seconds)
    times_s = np.sort(np.where(rng.random(count) < 1 / 3, rng.random(count), 1.0 + rng.random(count)) * seconds / 2.0)
    arrivals = RecordedArrivals(
        times_s=tuple(times_s.tolist()), input_tokens=(500,) * count, output_tokens=(100,) * count, source="made up"
    )
    return Workload(arrivals=arrivals, classes=(RequestClass(lengths=LENGTHS),))


def drifting(rate_per_s: float, cycle_s: float) -> Workload:
    drift = RateDrift.of([0.5, 1.5], window_s=cycle_s / 2.0)
    return Workload(
        arrivals=ArrivalProcess(rate_per_s=rate_per_s, drift=drift), classes=(RequestClass(lengths=LENGTHS),)
    )


def test_a_recording_is_replayed_from_its_first_request_to_its_last() -> None:
    workload, deployment = recorded(), mixed(2)
    run = run_of(deployment, workload, 100, evaluate(deployment, workload))
    assert (run.requests, run.fleet_share, run.left_out, run.workload) == (None, 1.0, "", workload)
    found = simulated(run, workload, 0, lambda _: None)
    assert found.requests == run.sent_s.size
    assert found.requests == len(workload.arrivals.times_s) * (1.0 - run.warmup_fraction) // 1 + 1


def test_three_lifetimes_at_the_start_are_not_measured() -> None:
    workload, deployment = recorded(), mixed(2)
    predicted = evaluate(deployment, workload)
    run = run_of(deployment, workload, 100, predicted)
    assert run.warmup_fraction == pytest.approx(3.0 * predicted.e2e.mean_s / 120.0, rel=0.01)


def test_a_drift_is_simulated_for_a_whole_cycle() -> None:
    workload, deployment = drifting(10.0, 400.0), mixed(2)
    run = run_of(deployment, workload, 1000, evaluate(deployment, workload))
    assert run.requests is not None
    assert run.requests * (1.0 - run.warmup_fraction) >= 10.0 * 400.0


def test_what_a_cycle_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SIMULATED_REQUESTS", 2000)
    workload, deployment = drifting(10.0, 3600.0), mixed(2)
    run = run_of(deployment, workload, 1000, evaluate(deployment, workload))
    assert run.requests == 2000
    assert run.fleet_share == 0.5
    assert "0.11 hours of a drift that repeats after 1" in " ".join(run_notes(run))


@pytest.mark.parametrize("replicas", [(12, 4), (7, 3), (20, 1), (50, 17)])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.9, 1.0, 3.0])
def test_a_part_has_the_load_of_the_whole(replicas: tuple[int, int], share: float) -> None:
    part, traffic = part_of_fleet(disaggregated(replicas), share)
    kept = [pool.replicas / count for pool, count in zip(part.pools, replicas, strict=True)]
    assert max(kept) <= traffic <= 1.01 * min(kept)
    assert traffic >= min(share, 1.0) - 0.011


def test_a_large_fleet_is_replayed_in_part_and_answers_for_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the whole. Percentiles of a part that gets its share agree; rates are those of the whole."""
    workload, deployment = recorded(80.0), mixed(8)
    predicted = evaluated(deployment, workload)
    whole = simulated(run_of(deployment, workload, 100, predicted), workload, 0, lambda _: None)
    monkeypatch.setattr(module, "MAX_SIMULATED_REQUESTS", len(workload.arrivals.times_s) // 2)
    run = run_of(deployment, workload, 100, predicted)
    assert (run.deployment.pools[0].replicas, run.fleet_share) == (4, 0.5)
    part = simulated(run, workload, 0, lambda _: None)
    assert part.rate_per_s == whole.rate_per_s
    for metric in (Metric.TTFT, Metric.TPOT):
        for percentile in (0.5, 0.9):
            expected = whole.distribution(metric).quantile_s(percentile)
            assert part.distribution(metric).quantile_s(percentile) == pytest.approx(expected, rel=0.1)
    assert part.output_tokens_per_s == pytest.approx(whole.output_tokens_per_s, rel=0.03)


def test_of_what_is_too_long_for_one_replica_the_busiest_part_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SIMULATED_REQUESTS", 1000)
    workload, deployment = recorded(20.0), Deployment.mixed(mixed().pools[0].config)
    run = run_of(deployment, workload, 100, evaluate(deployment, workload))
    assert run.recording is not None
    assert run.recording.times_s[0] > 55.0  # twice as busy from one minute on
    assert "busiest" in run.left_out


def test_busiest_requests_keep_their_clock() -> None:
    whole = recorded(20.0).arrivals
    assert isinstance(whole, RecordedArrivals)
    busiest = busiest_requests(whole, 500)
    times_s = whole.offsets_s
    shortest = min(times_s[first + 499] - times_s[first] for first in range(times_s.size - 499))
    assert busiest.offsets_s[-1] == pytest.approx(shortest, rel=1e-3)


def test_the_busiest_part_of_a_replay_tells_a_certain_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many misses as in the busiest part there are in the whole, at least, but for what an empty start hides."""
    monkeypatch.setattr(module, "FEWEST_IN_PARTS", 100)
    workload, deployment = recorded(rate_per_s=60.0), mixed(1)
    run = run_of(deployment, workload, 100, evaluate(deployment, workload))
    part = busiest_part(run)
    assert part is not None and part.recording is not None and run.recording is not None
    assert len(part.recording.times_s) == round(module.BUSIEST_SHARE * len(run.recording.times_s))
    assert part.recording.offsets_s[-1] < 0.9 * module.BUSIEST_SHARE * run.recording.offsets_s[-1]
    assert part.part_of == pytest.approx(run.sent_s.size, abs=1)
    whole_s, part_s = (simulated(of, workload, 0, lambda _: None).samples_s[Metric.TTFT] for of in (run, part))
    threshold_s = float(np.quantile(whole_s, 0.9))
    assert 0 < (part_s > threshold_s).sum() <= (whole_s > threshold_s).sum()


def test_of_a_drift_that_is_too_long_a_stretch_like_all_of_it_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """One replica cannot be cut; a stretch from anywhere might be the calm half alone."""
    monkeypatch.setattr(module, "MAX_SIMULATED_REQUESTS", 2000)
    drift = RateDrift.of([0.5] * 40 + [1.5] * 40, window_s=60.0)
    arrivals = ArrivalProcess(rate_per_s=1.0, drift=drift)
    workload = Workload(arrivals=arrivals, classes=(RequestClass(lengths=LENGTHS),))
    deployment = mixed(1)
    run = run_of(deployment, workload, 100, evaluate(deployment, workload))
    seen = run.workload.arrivals
    assert isinstance(seen, ArrivalProcess) and seen.drift is not None
    assert run.requests == 2000 and "hours of a drift" in run.left_out
    assert seen.drift.cv == pytest.approx(drift.cv, rel=0.1) and seen.rate_per_s == pytest.approx(1.0, rel=0.1)


def test_near_saturation_a_run_is_as_long_as_its_error_asks_for() -> None:
    """The oracle: waits of M/M/1 by Lindley's recursion, of which a share 1 - load exp(-(1 - load) x) is within x
    services. The 95 % interval from twenty batches holds it in nine of ten runs of that length, and in half of runs a
    tenth as long. Queues forget within (1 + load) / (1 - load)^2 services there."""
    generator, load = np.random.default_rng(3), 0.95
    outputs = np.ceil(generator.exponential(400.0, 20_000)).astype(np.int64)
    lengths = TokenLengths.from_pairs(np.full(outputs.size, 500), outputs)
    pool = disaggregated((1, 1)).pools[1]
    forgotten = requests_to_forget(pool, load, lengths, 1.0)
    assert forgotten == pytest.approx((1.0 + load) / (1.0 - load) ** 2, rel=0.06)
    within, held = 1.0 - load * np.exp(-2.0), {0.1: 0, 1.0: 0}
    for share in held:
        size = round(share * module.SIMULATED_RELAXATIONS * forgotten)
        for _ in range(100):
            walk = np.cumsum(generator.exponential(1.0, size + 4000) - generator.exponential(1.0 / load, size + 4000))
            waits = (walk - np.minimum.accumulate(walk))[4000:]
            batches = np.array([batch.mean() for batch in np.array_split(waits <= 2.0 / (1.0 - load), 20)])
            error = STUDENT_95[20] * batches.std(ddof=1) / np.sqrt(20)
            held[share] += abs(batches.mean() - within) <= error
    assert held[1.0] >= 85 and held[0.1] <= 65


@pytest.mark.parametrize(("load", "is_longer"), [(0.8, False), (0.95, True)])
def test_only_near_saturation_runs_are_made_longer(load: float, is_longer: bool) -> None:
    """What decides is the pool that is near its largest stable rate, here the one that decodes."""
    deployment, workload = disaggregated((8, 2)), Workload.of(1.0, TokenLengths.constant(100, 200))
    rate_per_s = load * largest_stable_rate_per_s(deployment, workload)
    run = run_of(deployment, workload.at_rate(rate_per_s), 5000, evaluate(deployment, workload.at_rate(rate_per_s)))
    assert run.requests is not None and (run.requests > 20_000) is is_longer
