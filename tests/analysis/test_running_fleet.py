"""A running fleet beside its plan: what a simulated fleet of known truth measures is told apart and recovered."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from planner.analysis import (
    Finding,
    RunningFleet,
    SeenSteps,
    ServedTraffic,
    TrafficPart,
    compare_running_fleet,
    learned_steps,
)
from planner.analysis.running_fleet import FAR_OFF
from planner.core import FloatArray, InputError, Metric, rebuilt
from planner.engine import StepTimeShift
from planner.report import running_fleet as report
from planner.serving import (
    Deployment,
    MeasuredSteps,
    Role,
    at_slow_end,
    evaluate,
    largest_stable_rate_per_s,
    replica_spreads,
)
from planner.simulator import simulate
from planner.traffic import ServerMetrics, read_metrics
from planner.workload import LatencyTarget, Slo, TokenLengths, Workload
from tests.builders import calibrated

LENGTHS = TokenLengths.constant(1000, 200)
PLANNED = Workload.of(8.0, LENGTHS)
TARGETS = Slo(
    targets=(
        LatencyTarget(metric=Metric.TTFT, percentile=0.99, threshold_s=2.0),
        LatencyTarget(metric=Metric.TPOT, percentile=0.99, threshold_s=0.05),
    )
)
CONFIG = calibrated(max_batched_tokens=4096)
DEPLOYMENT = Deployment.mixed(CONFIG, replicas=2)
REQUESTS = 6000
BUCKETS = np.append(np.geomspace(1e-3, 200.0, 240), math.inf)


def running(truth: Deployment, workload: Workload) -> ServerMetrics:
    """What is read of the servers of a fleet of these step times."""
    return read_metrics(io.StringIO(page(truth, workload)), interval_s=REQUESTS / workload.rate_per_s)


def page(truth: Deployment, workload: Workload, requests: int = REQUESTS) -> str:
    """What servers of these step times would say of this traffic, as one scrape of vLLM's counters and histograms."""
    found = simulate(truth, workload, seed=5, requests=requests)
    lengths = workload.lengths
    lines = [
        f"vllm:request_success_total {requests}",
        f"vllm:prompt_tokens_total {requests * lengths.mean_input}",
        f"vllm:generation_tokens_total {requests * lengths.mean_output}",
        f"vllm:num_requests_running {workload.rate_per_s * found.e2e.mean_s}",
        "vllm:num_requests_waiting 0",
        "vllm:kv_cache_usage_perc 0.25",
        "vllm:num_preemptions_total 0",
    ]
    names = {
        Metric.TTFT: "time_to_first_token_seconds",
        Metric.TPOT: "request_time_per_output_token_seconds",
        Metric.E2E: "e2e_request_latency_seconds",
    }
    for metric, name in names.items():
        lines += histogram(f"vllm:{name}", found.samples_s[metric])
    return "\n".join(lines) + "\n"


def histogram(name: str, samples_s: FloatArray) -> list[str]:
    counts = [int((samples_s <= edge).sum()) for edge in BUCKETS]
    edges = ["+Inf" if math.isinf(edge) else f"{edge:.6g}" for edge in BUCKETS]
    rows = [f'{name}_bucket{{le="{edge}"}} {count}' for edge, count in zip(edges, counts, strict=True)]
    return [*rows, f"{name}_sum {samples_s.sum()}", f"{name}_count {samples_s.size}"]


def slower(factor: float) -> Deployment:
    return Deployment.mixed(rebuilt(CONFIG, shift=StepTimeShift(decode=factor, prompt=factor)), replicas=2)


def compared(metrics: ServerMetrics, known: MeasuredSteps | None = None) -> RunningFleet:
    of_sku = {} if known is None else {CONFIG.sku.id: known}
    return compare_running_fleet([ServedTraffic(DEPLOYMENT, PLANNED)], TARGETS, metrics, of_sku)


@cache
def of_slower_steps() -> RunningFleet:
    return compared(running(slower(1.25), PLANNED))


def finding(fleet: RunningFleet, metric: Metric) -> Finding:
    (one,) = [latency for latency in fleet.latencies if latency.metric is metric]
    return one.finding


def test_a_fleet_that_is_what_was_planned_is_found_to_be_so() -> None:
    fleet = compared(running(DEPLOYMENT, PLANNED))
    assert {one.finding for one in fleet.latencies} == {Finding.AS_PLANNED}
    assert all(one.is_met for one in fleet.targets)
    assert fleet.steps_factor == pytest.approx(1.0, abs=0.04)
    assert "runs as planned" in report.headline(fleet)


def test_other_traffic_is_the_reason_where_it_is_the_truth() -> None:
    """Answers four times as long at the same rate: more requests decode, and steps are what they were."""
    metrics = running(DEPLOYMENT, Workload.of(8.0, TokenLengths.constant(1000, 800)))
    fleet = compared(metrics)
    assert finding(fleet, Metric.E2E) is Finding.TRAFFIC
    (e2e,) = [one for one in fleet.latencies if one.metric is Metric.E2E]
    assert e2e.reason == TrafficPart.LENGTHS.value
    assert e2e.expected_s == pytest.approx(e2e.measured_s, rel=0.05)
    assert fleet.steps_factor == pytest.approx(1.0, abs=0.05)


def test_slower_steps_are_the_reason_where_they_are_the_truth_and_are_recovered() -> None:
    """Steps 25 % slower than estimated: known again to what theory is off by."""
    fleet = of_slower_steps()
    assert finding(fleet, Metric.TPOT) is Finding.STEP_TIMES
    (tpot,) = [one for one in fleet.latencies if one.metric is Metric.TPOT]
    assert tpot.reason == "step times"
    assert fleet.steps_factor == pytest.approx(1.25, rel=0.04)
    assert fleet.measured_steps is not None
    assert fleet.measured_steps.steps > 1.0 and fleet.measured_steps.steps_error < 0.6
    assert f"steps of {CONFIG.sku.short_name} take" in report.step_time_lines(fleet)[0]
    is_far_off = fleet.measured_steps.steps >= FAR_OFF
    assert is_far_off is any("look first at engine flags" in note for note in fleet.notes)
    assert list(learned_steps([fleet]).values()) == [fleet.measured_steps], "one model teaches what it does alone"


def test_what_was_learned_predicts_the_fleet_and_a_second_check_teaches_nothing_more() -> None:
    """The next plan knows: its estimates meet what is measured, in a narrower interval."""
    learned = compared(running(slower(1.12), PLANNED)).measured_steps
    assert learned is not None
    spreads = replica_spreads(CONFIG, Role.MIXED, 1000.0, 200.0)
    assert spreads is not None
    informed = Deployment.mixed(rebuilt(CONFIG, shift=at_slow_end(spreads, 0.0, learned)), replicas=2)
    before, after = evaluate(DEPLOYMENT, PLANNED), evaluate(informed, PLANNED)
    truth = evaluate(slower(1.12), PLANNED).tpot.mean_s
    assert abs(after.tpot.mean_s - truth) < 0.4 * abs(before.tpot.mean_s - truth)
    low_s, high_s = after.interval[Metric.TPOT]
    assert low_s < truth < high_s
    assert _width(after.interval[Metric.TPOT]) < 0.8 * _width(before.interval[Metric.TPOT])
    again = compared(running(slower(1.12), PLANNED), learned)
    assert again.measured_steps is not None
    assert again.measured_steps.steps == pytest.approx(learned.steps, abs=0.05)
    assert again.measured_steps.steps_error == pytest.approx(learned.steps_error, abs=0.02)


def _width(interval_s: tuple[float, float]) -> float:
    return math.log(interval_s[1] / interval_s[0])


def test_slow_steps_hidden_by_little_traffic_are_not_as_planned() -> None:
    """TPOT is what was planned, at half of the traffic it was planned for."""
    fleet = compared(running(slower(1.12), PLANNED.at_rate(4.0)))
    (tpot,) = [one for one in fleet.latencies if one.metric is Metric.TPOT]
    assert tpot.planned_interval_s is not None
    assert tpot.planned_interval_s[0] < tpot.measured_s < tpot.planned_interval_s[1]
    assert (tpot.finding, tpot.reason) == (Finding.STEP_TIMES, "step times")


def test_a_full_fleet_teaches_no_step_times() -> None:
    """At 97 % of the largest rate of the true servers latencies are backlog: no factor is read into them."""
    truth = slower(1.15)
    rate_per_s = 0.97 * largest_stable_rate_per_s(truth, PLANNED)
    fleet = compared(running(truth, PLANNED.at_rate(rate_per_s)))
    assert fleet.measured_steps is None
    assert any("as good as full" in note or "cannot keep up" in note for note in fleet.notes)


def test_steps_that_no_estimate_explains_teach_nothing() -> None:
    """Steps of four times the estimated ones are another server: what it cannot tell is said, not the nearest guess."""
    fleet = compared(running(slower(4.0), PLANNED.at_rate(1.0)))
    assert fleet.measured_steps is None
    assert any("explains what a token took: look first at engine flags" in note for note in fleet.notes)
    assert "rests on the step times of the first" in fleet.notes[-1]


def test_too_little_to_learn_from_says_so() -> None:
    metrics = running(DEPLOYMENT, PLANNED)
    few = ServerMetrics(**{**vars(metrics), "requests": 100.0})
    fleet = compared(few)
    assert fleet.measured_steps is None
    assert any("100 requests were watched" in note for note in fleet.notes)
    with pytest.raises(InputError, match="nothing that could run"):
        compare_running_fleet([], TARGETS, metrics)


def test_a_percentile_in_a_bucket_around_its_threshold_is_neither_met_nor_missed() -> None:
    """vLLM's buckets of TPOT end at 10, 25 and 50 ms: of 15 ms they say that it is below 25 and not below 20."""
    page = (
        "vllm:request_success_total 2000\nvllm:prompt_tokens_total 2000000\nvllm:generation_tokens_total 400000\n"
        'vllm:request_time_per_output_token_seconds_bucket{le="0.01"} 0\n'
        'vllm:request_time_per_output_token_seconds_bucket{le="0.025"} 2000\n'
        'vllm:request_time_per_output_token_seconds_bucket{le="+Inf"} 2000\n'
        "vllm:request_time_per_output_token_seconds_sum 30\nvllm:request_time_per_output_token_seconds_count 2000\n"
    )
    metrics = read_metrics(io.StringIO(page), interval_s=250.0)
    served = [ServedTraffic(DEPLOYMENT, PLANNED)]
    for threshold_s, is_met in ((0.009, False), (0.02, None), (0.025, True)):
        slo = Slo(targets=(LatencyTarget(metric=Metric.TPOT, percentile=0.9, threshold_s=threshold_s),))
        (target,) = compare_running_fleet(served, slo, metrics).targets
        assert target.measured_s == (0.01, 0.025) and target.is_met is is_met


def _seen(llm: str, steps: float, error: float, shared: float) -> RunningFleet:
    found = SeenSteps("h100-sxm", "vllm", llm, steps, error, 0.0, math.inf, shared, 0.0)
    return replace(of_slower_steps(), seen=found)


def test_models_that_share_kernels_move_one_another_by_the_part_that_is_shared() -> None:
    """Two jointly normal variables of correlation r, of which one is seen exactly at z: the other's mean is r z and
    its variance 1 - r^2 (conditional normal distribution); of nothing in common each stands alone."""
    shared = 0.64
    together = learned_steps([_seen("a", 2.0, 0.0, shared), _seen("b", 0.0, 1e6, shared)])
    assert together["h100-sxm/a"].steps == pytest.approx(2.0)
    assert together["h100-sxm/b"].steps == pytest.approx(shared * 2.0, abs=1e-3)
    assert together["h100-sxm/b"].steps_error == pytest.approx(math.sqrt(1.0 - shared**2), abs=1e-3)
    apart = learned_steps([_seen("a", 2.0, 0.5, 0.0), _seen("b", -1.0, 1.0, 0.0)])
    assert apart["h100-sxm/a"].steps == pytest.approx(2.0 / 1.25, abs=1e-4)
    assert (apart["h100-sxm/b"].steps, apart["h100-sxm/b"].first_token_error) == pytest.approx((-0.5, 1.0), abs=1e-4)
