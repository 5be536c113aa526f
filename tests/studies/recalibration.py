"""Step times that are not what was estimated: what a day of metrics finds, and what the next plan then costs.

``python -m tests.studies.recalibration`` plans a fleet at confidence 0.9 and gives it a truth: every step takes
`FACTORS` times what was estimated. A day of requests (a rate that swings by `SWING` around its mean, busiest as
planned) is simulated with that truth, and what vLLM would have counted of it every five minutes is written as the
answer of a Prometheus. `planner.traffic.read_metrics` reads the first minutes, hours and all of it;
`compare_running_fleet` infers the step times, as `planner check` does; and the same request is planned again with
them, and with step times known exactly. Rows: ``recalibration.csv``.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq

from planner.analysis import ServedTraffic, compare_running_fleet
from planner.core import FloatArray, Metric, rebuilt
from planner.engine import StepTimeShift
from planner.fleet import Plan, PlannedDeployment, PlanRequest, plan
from planner.scenario import load_scenario
from planner.serving import Deployment, MeasuredSteps, Performance, Role, at_slow_end, evaluate, replica_spreads
from planner.simulator import simulate
from planner.traffic import ServerMetrics, read_metrics
from planner.workload import RecordedArrivals, Workload
from tests.builders import HARDWARE
from tests.launch.stub_engine import BUCKETS
from tests.studies.rows import write_rows

FACTORS = (0.8, 1.0, 1.2)
WATCHED_S = {"5 min": 300.0, "1 h": 3600.0, "6 h": 6 * 3600.0, "24 h": 24 * 3600.0}
STEP_S = 300.0
SWING = 0.4
"""Of the mean rate, to either side over the day."""
SEED = 2026
RESULTS = Path(__file__).with_name("recalibration.csv")
SCENARIO: dict[str, Any] = {
    "name": "assistant",
    "llm": "llama-3.3-70b-instruct",
    "confidence": 0.9,
    "workload": {"rate_per_s": 24.0, "drift": "none", "lengths": {"input_tokens": 1000, "output_tokens": 200}},
    "slo": [
        {"metric": "tpot", "percentile": 0.95, "threshold_s": 0.035},
        {"metric": "ttft", "percentile": 0.95, "threshold_s": 2.0},
    ],
    "search": {"skus": ["h100-sxm"], "modes": ["mixed"], "tp": [2]},
    "prices": {"as_of": "2026-11-21", "usd_per_gpu_hour": {"h100-sxm": 2.5}, "granularity": "gpu"},
}
FIELDS = (
    "true_factor",
    "watched",
    "requests",
    "found_factor",
    "steps",
    "steps_error",
    "first_token_error",
    "tpot_low_ms",
    "tpot_true_ms",
    "tpot_high_ms",
    "replicas",
    "usd_per_hour",
    "says",
    "holds",
)


# --- a day ----------------------------------------------------------------------------------------------------------


def day_of(request: PlanRequest) -> Workload:
    """A day of Poisson arrivals whose rate swings, busiest as planned; lengths as planned."""
    chance = np.random.default_rng(SEED)
    starts_s = np.arange(0.0, 86400.0, STEP_S)
    shape = 1.0 - SWING * np.cos(2.0 * math.pi * starts_s / 86400.0)
    rates = request.workload.rate_per_s * shape / shape.max()
    times = np.concatenate(
        [
            np.sort(start + STEP_S * chance.random(chance.poisson(rate * STEP_S)))
            for start, rate in zip(starts_s, rates, strict=True)
        ]
    )
    lengths = request.workload.lengths.sample(times.size, seed=SEED)
    arrivals = RecordedArrivals(
        times_s=tuple(times.tolist()),
        input_tokens=tuple(int(tokens) for tokens in lengths[0]),
        output_tokens=tuple(int(tokens) for tokens in lengths[1]),
        recorded_s=86400.0,
    )
    return Workload(arrivals=arrivals, classes=request.workload.classes)


def counted(day: Workload, truth: Deployment) -> str:
    """What the servers count of the day, as Prometheus answers a query by five minutes."""
    arrivals = day.arrivals
    assert isinstance(arrivals, RecordedArrivals)
    found = simulate(truth, day, seed=SEED, warmup_fraction=0.0)
    seconds = {metric: found.samples_s[metric] for metric in (Metric.TTFT, Metric.TPOT, Metric.E2E)}
    ended_s = np.asarray(arrivals.times_s)[: seconds[Metric.E2E].size] + seconds[Metric.E2E]
    order = np.argsort(ended_s)
    edges_s = np.arange(0.0, 86400.0 + STEP_S, STEP_S)
    upto = np.searchsorted(ended_s[order], edges_s)
    columns = {
        "time_to_first_token_seconds": ("ttft", seconds[Metric.TTFT]),
        "request_time_per_output_token_seconds": ("tpot", seconds[Metric.TPOT]),
        "e2e_request_latency_seconds": ("e2e", seconds[Metric.E2E]),
        "request_prompt_tokens": ("input_lengths", np.asarray(arrivals.input_tokens, dtype=float)),
        "request_generation_tokens": ("output_lengths", np.asarray(arrivals.output_tokens, dtype=float)),
    }
    series = [("vllm:request_success_total", {"finished_reason": "length"}, upto.astype(float))]
    for name, (buckets, values) in columns.items():
        ordered = values[: order.size][order]
        series.append((f"vllm:{name}_sum", {}, _upto(ordered, upto)))
        series.append((f"vllm:{name}_count", {}, upto.astype(float)))
        for edge in (*BUCKETS[buckets], math.inf):
            label = "+Inf" if math.isinf(edge) else str(float(edge))
            series.append((f"vllm:{name}_bucket", {"le": label}, _upto(ordered <= edge, upto)))
    result = [
        {
            "metric": {"__name__": name, "model_name": "assistant", **labels},
            "values": [[float(time), f"{value:.9g}"] for time, value in zip(edges_s, values, strict=True)],
        }
        for name, labels, values in series
    ]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def _upto(values: Any, ends: FloatArray) -> FloatArray:
    """Sums of the first so many values."""
    return np.concatenate([[0.0], np.cumsum(values, dtype=float)])[np.asarray(ends, dtype=int)]


def watched(answer: str, for_s: float) -> ServerMetrics:
    """The busiest part of the day of that length, which is what one would watch."""
    document = json.loads(answer)
    first = STEP_S * math.floor(max(0.0, 43200.0 - for_s / 2.0) / STEP_S)
    for one in document["data"]["result"]:
        one["values"] = [sample for sample in one["values"] if first <= sample[0] <= first + for_s]
    return read_metrics(io.StringIO(json.dumps(document)))


# --- plans ----------------------------------------------------------------------------------------------------------


def true_steps(planned: PlannedDeployment, factor: float) -> MeasuredSteps:
    """Step times known: the deviations at which decodes and first tokens take what they do in truth."""
    config = planned.deployment.pools[0].config
    lengths = planned.workload.lengths
    spreads = replica_spreads(config, Role.MIXED, lengths.mean_input, lengths.mean_output)
    assert spreads is not None
    place = float(brentq(lambda z: at_slow_end(spreads, z).decode - factor, -8.0, 8.0))
    return MeasuredSteps(steps=place, steps_error=1e-3, first_token=place, first_token_error=1e-3)


def in_truth(deployment: Deployment, factor: float) -> Deployment:
    """The same with steps that take so many times as long as estimated."""
    shift = StepTimeShift(decode=factor, prompt=factor)
    pools = tuple(rebuilt(pool, config=rebuilt(pool.config, shift=shift)) for pool in deployment.pools)
    return rebuilt(deployment, pools=pools)


def holds(found: Plan, factor: float) -> bool:
    """Whether every target holds in truth, simulated at the planned rate with a seed of its own."""
    for planned in found.deployments:
        played = simulate(in_truth(planned.deployment, factor), planned.workload, seed=SEED, requests=20_000)
        if not all(
            _meets(played, target.metric, target.percentile, target.threshold_s) for target in planned.slo.targets
        ):
            return False
    return True


def _meets(played: Performance, metric: Metric, percentile: float, threshold_s: float) -> bool:
    return bool(np.mean(played.samples_s[metric] <= threshold_s) >= percentile)


def row_of(request: PlanRequest, factor: float, known: MeasuredSteps | None) -> dict[str, Any]:
    """A plan with what is known: its cost, and where the mean TPOT of the first fleet lies."""
    steps = {} if known is None else {"h100-sxm": known}
    found = plan(rebuilt(request, measured_steps=steps), HARDWARE, alternatives=False)
    assert found.cost is not None and found.confidence is not None
    (planned,) = found.deployments
    low_s, high_s = planned.predicted.interval[Metric.TPOT]
    truth = evaluate(in_truth(planned.deployment, factor), planned.workload)
    return {
        "tpot_low_ms": round(1e3 * low_s, 2),
        "tpot_true_ms": round(1e3 * truth.tpot.mean_s, 2),
        "tpot_high_ms": round(1e3 * high_s, 2),
        "replicas": sum(pool.replicas for pool in planned.deployment.pools),
        "usd_per_hour": round(found.cost.usd_per_hour, 2),
        "says": round(found.confidence.holds, 3),
        "holds": holds(found, factor),
    }


def rows() -> Iterator[Mapping[str, Any]]:
    """By truth: the plan from estimates, those after so much time, and the one with step times known."""
    request = load_scenario(SCENARIO)
    first = plan(request, HARDWARE, alternatives=False)
    (planned,) = first.deployments
    day = day_of(request)
    for factor in FACTORS:
        truth = {"true_factor": factor}
        yield {**truth, "watched": "nothing", **row_of(request, factor, None)}
        answer = counted(day, in_truth(planned.deployment, factor))
        for name, for_s in WATCHED_S.items():
            metrics = watched(answer, for_s)
            running = compare_running_fleet([ServedTraffic(planned.deployment, planned.workload)], planned.slo, metrics)
            told = {**truth, "watched": name, "requests": round(metrics.requests)}
            if running.measured_steps is None:
                yield {**told, "says": "; ".join(running.notes[-1:])}
                continue
            told["found_factor"] = round(running.steps_factor, 3)
            kept = ("steps", "steps_error", "first_token_error")
            told |= {key: getattr(running.measured_steps, key) for key in kept}
            yield {**told, **row_of(request, factor, running.measured_steps)}
        yield {**truth, "watched": "everything", **row_of(request, factor, true_steps(planned, factor))}


def main() -> None:
    """Write the rows as they come."""
    done: list[Mapping[str, Any]] = []
    for row in rows():
        done.append(dict.fromkeys(FIELDS, "") | dict(row))
        write_rows(RESULTS, done)
        print(row)


if __name__ == "__main__":
    main()
