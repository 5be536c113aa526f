"""Targets are verified on the requests they apply to, and the cost of a fleet is shared without a remainder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from planner.core import FloatArray, Metric
from planner.fleet import PlannedDeployment, routed_workload
from planner.fleet.costs import with_costs
from planner.fleet.pairing import UsedPool
from planner.fleet.verification import (
    ScopedSlo,
    missing_over_allowed,
    open_targets,
    scoped_slos,
    simulated_share,
    target_checks,
    verify_deployment,
    violated_metrics,
)
from planner.llm import Precision, load_llm
from planner.search import DeploymentOption, Mode, PoolOption
from planner.serving import Performance, Role, evaluate
from planner.traffic import DemandSlice, Service
from planner.workload import LatencyDistribution, LatencyTarget, RateDrift, RequestClass, Slo, TokenLengths, Workload
from tests.builders import chat, mixed, replica


def slo(ttft_s: float) -> Slo:
    return Slo(targets=(LatencyTarget(metric=Metric.TTFT, percentile=0.9, threshold_s=ttft_s),))


SHORT, LONG = TokenLengths.constant(200, 50), TokenLengths.constant(6000, 200)
BOTH = Workload(
    arrivals=chat(40.0, 3.0).arrivals,
    classes=(
        RequestClass(name="short", lengths=SHORT, share=0.75),
        RequestClass(name="long", lengths=LONG, share=0.25),
    ),
)
SERVICE = Service(name="chat", llm=load_llm("llama-3.1-8b"), precision=Precision(), workload=BOTH, slo=slo(0.5))


def parts(short: Slo | None = None, long: Slo | None = None) -> dict[str, DemandSlice]:
    return {
        name: DemandSlice(name, SERVICE, BOTH.only(name), targets, (BOTH.only(name).rate_per_s,))
        for name, targets in (("short", short or slo(0.5)), ("long", long or slo(0.5)))
    }


def pool(rates: dict[str, float], replicas: int = 4) -> UsedPool:
    return UsedPool("chat", PoolOption(Role.MIXED, replica()), replicas, replicas, rates, 0.8, ("column",))


def deployed(rates: dict[str, float], slices: dict[str, DemandSlice], replicas: int = 4) -> PlannedDeployment:
    option = DeploymentOption(Mode.MIXED, (PoolOption(Role.MIXED, replica()),))
    return verify_deployment(option, [pool(rates, replicas)], slices, seed=1, simulated_requests=2000)


def test_slices_put_together_again_are_the_stream_they_were_cut_from() -> None:
    whole = routed_workload(parts(), {"short": 30.0, "long": 10.0})
    assert whole.rate_per_s == pytest.approx(BOTH.rate_per_s)
    assert whole.arrivals.scv == pytest.approx(BOTH.arrivals.scv)
    assert whole.lengths.mean_input == pytest.approx(BOTH.lengths.mean_input)
    assert [one.name for one in whole.classes] == ["short", "long"]


def test_a_share_of_bursty_arrivals_is_a_random_split() -> None:
    bursty = parts()
    half = routed_workload(bursty, {"short": 15.0})
    assert half.rate_per_s == pytest.approx(15.0)
    assert half.arrivals.scv == pytest.approx(bursty["short"].workload.arrivals.split(0.5).scv)


def test_equal_targets_are_one_and_different_ones_are_apart() -> None:
    (one,) = scoped_slos(list(parts().values()))
    assert (one.name, one.slices) == ("chat", {"short", "long"})
    two = scoped_slos(list(parts(short=slo(0.2)).values()))
    assert [scoped.name for scoped in two] == ["short", "long"]
    offline = DemandSlice("later", SERVICE, BOTH, None, (1.0,), deferrable=True)
    assert scoped_slos([offline]) == ()


def test_targets_are_verified_on_their_own_requests() -> None:
    """Long prompts take longer: a threshold between the two is missed by the long ones only."""
    free = deployed({"short": 30.0, "long": 10.0}, parts())
    by_name = {kind.name: kind.ttft.quantile_s(0.9) for kind in free.predicted.classes}
    assert by_name["short"] < by_name["long"]
    between = math.sqrt(by_name["short"] * by_name["long"])
    slices = parts(short=slo(between), long=slo(10.0))
    assert not violated_metrics(deployed({"short": 30.0, "long": 10.0}, slices), scoped_slos(list(slices.values())))
    slices = parts(short=slo(10.0), long=slo(between))
    one = deployed({"short": 30.0, "long": 10.0}, slices)
    assert violated_metrics(one, scoped_slos(list(slices.values()))) == {Metric.TTFT}
    checks = target_checks([one], scoped_slos(list(slices.values())))
    assert {check.of: check.met for check in checks} == {"short": True, "long": False}


def test_what_is_verified_is_what_is_left_after_failures() -> None:
    option = DeploymentOption(Mode.MIXED, (PoolOption(Role.MIXED, replica()),))
    spare = UsedPool("chat", option.pools[0], 4, 3, {"short": 30.0}, 0.8, ("column",))
    one = verify_deployment(option, [spare], parts(), seed=1, simulated_requests=None)
    assert (one.deployment.pools[0].replicas, one.surviving.pools[0].replicas) == (4, 3)
    assert one.predicted.ttft.mean_s == evaluate(mixed(3), one.workload).ttft.mean_s
    assert one.simulated is one.predicted


def test_costs_are_shared_without_a_remainder() -> None:
    two = [deployed({"short": 10.0}, parts(), 3), deployed({"long": 2.0}, parts(), 5)]
    shared = with_costs(two, {"h100-sxm": 24.0})
    assert [one.usd_per_hour for one in shared] == [pytest.approx(9.0), pytest.approx(15.0)]
    assert math.fsum(one.usd_per_hour for one in shared) == pytest.approx(24.0, abs=1e-12)


def test_misses_are_counted_against_those_allowed() -> None:
    """By theory before a simulation, then in it; of the busiest part of a run as if nothing else missed."""
    option = DeploymentOption(Mode.MIXED, (PoolOption(Role.MIXED, replica()),))
    slices = parts()
    by_theory = verify_deployment(option, [pool({"short": 30.0}, 1)], slices, seed=1, simulated_requests=None)
    run = verify_deployment(option, [pool({"short": 30.0}, 1)], slices, seed=1, simulated_requests=2000)
    threshold_s = run.simulated.ttft.quantile_s(0.7)
    (scoped,) = scoped_slos([replace(slices["short"], slo=slo(threshold_s))])
    missed = missing_over_allowed(run, [scoped])
    error = simulated_share(run, scoped, scoped.slo.targets[0]).error  # what the next run may miss more
    assert missed == {Metric.TTFT: pytest.approx((0.3 + error) / 0.1, rel=0.01)}
    expected = (1.0 - by_theory.predicted.ttft.cdf(threshold_s)) / 0.1
    assert missing_over_allowed(by_theory, [scoped]) == {Metric.TTFT: pytest.approx(expected)}
    assert run.run is not None
    of_more = replace(run, run=replace(run.run, part_of=10 * run.simulated.requests))
    assert missing_over_allowed(of_more, [scoped]) == {Metric.TTFT: pytest.approx((0.03 + error) / 0.1, rel=0.01)}
    assert violated_metrics(run, [scoped], by_theory=False) == {Metric.TTFT}
    assert violated_metrics(of_more, [scoped], by_theory=False) == set()


def test_a_share_just_above_the_target_in_a_short_run_is_no_hold() -> None:
    """The oracle: runs with other seeds. Of fleets that hold by their first run, the next one misses one in forty."""
    option = DeploymentOption(Mode.MIXED, (PoolOption(Role.MIXED, replica()),))
    rng = np.random.default_rng(1)
    scoped = next(iter(scoped_slos([parts()["short"]])))
    base = verify_deployment(option, [pool({"short": 30.0}, 1)], parts(), seed=1, simulated_requests=2000)
    assert base.run is not None
    held = missed_next = naive_missed = naive = 0
    for _ in range(400):
        truth = rng.uniform(0.87, 0.95)  # share of requests within the target of 90 %, in the long run
        first, following = (np.where(rng.random(2000) < truth, 0.1, 9.9) for _ in range(2))
        run = replace(base, simulated=_of(base, first))
        if Metric.TTFT not in violated_metrics(run, [scoped], by_theory=False):
            held += 1
            missed_next += (following <= 0.5).mean() < 0.9
        if (first <= 0.5).mean() >= 0.9:
            naive += 1
            naive_missed += (following <= 0.5).mean() < 0.9
    assert held > 100
    assert missed_next <= 0.025 * held
    assert naive_missed > 3 * max(missed_next, 1)


def test_the_error_of_a_share_is_said_where_the_share_is() -> None:
    """That it is judged by, so that a share above the target beside NO is explained; two like runs leave 1/sqrt(2)."""
    option = DeploymentOption(Mode.MIXED, (PoolOption(Role.MIXED, replica()),))
    scoped = next(iter(scoped_slos([parts()["short"]])))
    base = verify_deployment(option, [pool({"short": 30.0}, 1)], parts(), seed=1, simulated_requests=2000)
    late = np.where(np.arange(2000) % 11 == 0, 9.9, 0.1)  # 90.9 % within, 90 % asked
    run = replace(base, simulated=_of(base, late))
    one, two = (target_checks([run] * count, [scoped])[0] for count in (1, 2))
    assert one.simulated_error == pytest.approx(1.96 * math.sqrt(0.9 * 0.1 / 2000))
    assert two.simulated_error == pytest.approx(one.simulated_error / math.sqrt(2.0))
    assert one.share_words == "90.9 ± 1.3 %" and not one.met
    assert target_checks([replace(base, run=None)], [scoped])[0].simulated_error == 0.0


def _of(planned: PlannedDeployment, ttft_s: FloatArray) -> Performance:
    """The simulated performance with other first tokens."""
    ttft = LatencyDistribution.from_samples(ttft_s)
    samples = {**planned.simulated.samples_s, Metric.TTFT: ttft_s}
    return replace(planned.simulated, ttft=ttft, samples_s=samples, requests=ttft_s.size)


CYCLE_S = 50.0
SWINGING = RateDrift.of([1.6, 1.4, 0.6, 0.4], CYCLE_S / 4.0)


def drifting() -> dict[str, DemandSlice]:
    """The short requests at a rate that drifts: 1,500 to a cycle at 30/s."""
    whole = BOTH.model_copy(update={"arrivals": BOTH.open_arrivals.model_copy(update={"drift": SWINGING})})
    service = SERVICE.model_copy(update={"workload": whole})
    return {"short": DemandSlice("short", service, whole.only("short"), slo(0.5), (whole.only("short").rate_per_s,))}


@pytest.mark.parametrize(("quantile", "is_longer"), [(0.905, True), (0.99, False), (1.0, True)])
def test_a_share_that_a_cycle_of_a_drift_may_owe_to_luck_is_looked_at_over_several(
    quantile: float, is_longer: bool
) -> None:
    """Misses come together at the peaks of the rate: one cycle more or less of them decides what is near the target.

    A cycle without any says nothing of how they come.
    """
    option, slices = DeploymentOption(Mode.MIXED, (PoolOption(Role.MIXED, replica()),)), drifting()

    def verified(slos: Sequence[ScopedSlo]) -> PlannedDeployment:
        return verify_deployment(option, [pool({"short": 30.0}, 1)], slices, 1, 1500, slos=slos)

    one = verified(())
    assert one.run is not None and one.run.requests is not None
    scoped = scoped_slos([replace(slices["short"], slo=slo(one.simulated.ttft.quantile_s(quantile)))])
    run = verified(scoped).run
    assert run is not None and run.requests is not None
    cycles = run.requests / 30.0 / CYCLE_S
    assert (cycles > 4.0) is is_longer
    assert is_longer or run.requests == one.run.requests


def test_the_error_of_several_cycles_is_that_of_their_shares() -> None:
    """The oracle: the spread of the shares of many runs of eight cycles, whose peaks all miss alike but for a part that
    the requests of a cycle have in common. Batches that part peaks from valleys would say several times as much."""
    option, rng = DeploymentOption(Mode.MIXED, (PoolOption(Role.MIXED, replica()),)), np.random.default_rng(2)
    base = verify_deployment(option, [pool({"short": 30.0}, 1)], drifting(), 1, 13_000)
    (scoped,) = scoped_slos([drifting()["short"]])
    assert base.run is not None
    values, errors = [], []
    for _ in range(200):
        common = np.repeat(rng.normal(0.0, 0.05, 8), 1500)
        peaks = np.tile(np.repeat([0.75, 1.0], 750), 8)
        within = rng.random(12_000) < np.clip(peaks + common, 0.0, 1.0)
        run = replace(base, simulated=_of(base, np.where(within, 0.1, 9.9)))
        share = simulated_share(run, scoped, scoped.slo.targets[0])
        values.append(share.value)
        errors.append(share.error)
    covered = np.mean(np.abs(np.array(values) - np.mean(values)) <= errors)
    assert 0.9 <= covered <= 0.99


def test_a_cycle_without_misses_leaves_open_what_comes_in_bunches() -> None:
    """The oracle: cycles each twentieth of which is a bunch with a chance of 5 %, and three in ten requests of a bunch
    miss, so that 98.5 % are within the threshold of a p99. Cycles of no bunch or of one must not decide."""
    option, rng = DeploymentOption(Mode.MIXED, (PoolOption(Role.MIXED, replica()),)), np.random.default_rng(5)
    base = verify_deployment(option, [pool({"short": 30.0}, 1)], drifting(), 1, 1500)
    asked = LatencyTarget(metric=Metric.TTFT, percentile=0.99, threshold_s=0.5)
    scoped = scoped_slos([replace(drifting()["short"], slo=Slo(targets=(asked,)))])
    counts = []
    for _ in range(100):
        bunches = rng.random(20) < 0.05
        within = ~np.repeat(bunches, 75) | (rng.random(1500) < 0.7)
        run = replace(base, simulated=_of(base, np.where(within, 0.1, 9.9)))
        counts.append(int(bunches.sum()))
        assert counts[-1] > 1 or open_targets(run, scoped, within_cycle=True)
    assert min(counts) == 0 and counts.count(1) > 20
