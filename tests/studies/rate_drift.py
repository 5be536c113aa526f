"""How far `planner.evaluate` is from `planner.simulate` where the rate varies.

Deployments of H100 and H200 under drifts from 5 s to an hour, mean loads of 0.3 to 0.85 of the largest stable rate and
peaks of up to 2.2 times it. KV blocks are reserved, so that both sides play the same process; four runs over whole
cycles of the path are pooled. Run from the root of the checkout, some five minutes:

    python -m tests.studies.rate_drift             # simulate what is missing, evaluate all, print the table
    python -m tests.studies.rate_drift --theory    # only evaluate anew and print the table

Simulated figures are kept in `rate_drift.csv` beside this file. All times in seconds.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from hardware_db import load_hardware, select_calibration
from planner.core import FloatArray, Metric
from planner.engine import ReplicaConfig, Schedule
from planner.llm import load_llm
from planner.roofline import Parallelism
from planner.serving import Deployment, Performance, evaluate, largest_stable_rate_per_s
from planner.simulator import simulate
from planner.traffic import load_lengths
from planner.workload import ArrivalProcess, LatencyDistribution, RateDrift, RequestClass, TokenLengths, Workload
from tests.studies.rows import Row, read, write

RESULTS = Path(__file__).with_suffix(".csv")
RUNS = 4
MOST_PATH_REQUESTS, FEWEST_REQUESTS = 40_000, 12_000
"""A path is cut in half until it brings at most so many requests; a run takes as many cycles as bring this many."""
QUANTILES = (0.5, 0.9, 0.99)
TP = {"llama-3.1-8b": 1, "qwen2.5-32b": 2, "llama-3.3-70b-instruct": 4, "qwen3-30b-a3b": 1}
FIGURES = tuple(f"{metric}_p{round(100 * q)}" for metric in ("ttft", "tpot", "e2e") for q in QUANTILES)


@dataclass(frozen=True)
class Scenario:
    """One deployment under one drift: (coefficient of variation, correlation time [s]), or factors of windows."""

    name: str
    llm: str
    sku: str
    replicas: tuple[int, ...]
    budget: int
    slots: int
    of_lengths: str | tuple[float, float, float]
    scv: float
    load: float
    drift: tuple[float, float] | tuple[tuple[float, ...], float]
    seed: int

    @cached_property
    def lengths(self) -> TokenLengths:
        """Recorded, or log-normal with mean input, mean output and one coefficient of variation."""
        if isinstance(self.of_lengths, str):
            return load_lengths(self.of_lengths)
        mean_input, mean_output, cv = self.of_lengths
        generator, sigma = np.random.default_rng(1), math.sqrt(math.log1p(cv**2))

        def draw(mean: float, largest: int) -> FloatArray:
            sizes = mean * np.exp(sigma * generator.standard_normal(400) - sigma**2 / 2.0)
            return np.clip(np.round(sizes), 1, largest)

        return TokenLengths.from_pairs(draw(mean_input, 16_000), draw(mean_output, 8_000))

    @cached_property
    def deployment(self) -> Deployment:
        db = load_hardware()
        config = ReplicaConfig(
            llm=load_llm(self.llm),
            sku=db.skus[self.sku],
            engine=db.engines["vllm"],
            calibration=select_calibration(db, self.sku, "vllm"),
            parallelism=Parallelism(tp=TP[self.llm]),
            max_batched_tokens=self.budget,
            max_running_requests=self.slots,
            own_schedule=Schedule(reserve_outputs=True),
        )
        if len(self.replicas) == 1:
            return Deployment.mixed(config, self.replicas[0])
        return Deployment.disaggregated(config, config, (self.replicas[0], self.replicas[1]))

    @cached_property
    def limit_per_s(self) -> float:
        return largest_stable_rate_per_s(self.deployment, Workload.of(1.0, self.lengths))

    @cached_property
    def path(self) -> RateDrift:
        what, seconds = self.drift
        if isinstance(what, tuple):
            return RateDrift.of(what, seconds)
        drift = RateDrift.random(what, seconds, self.seed)
        windows = len(drift.factors)
        while self.load * self.limit_per_s * drift.window_s * windows > MOST_PATH_REQUESTS and windows > 32:
            windows //= 2
        return RateDrift.of(drift.factors[:windows], drift.window_s)

    @cached_property
    def workload(self) -> Workload:
        arrivals = ArrivalProcess(rate_per_s=self.load * self.limit_per_s, scv=self.scv, drift=self.path)
        return Workload(arrivals=arrivals, classes=(RequestClass(lengths=self.lengths),))

    @property
    def label(self) -> str:
        return (
            f"{self.llm} {self.sku} x{'+'.join(map(str, self.replicas))}, {self.slots} slots, SCV {self.scv:g}, load "
            f"{self.load:g}, CV {self.path.cv:.2f}, peak {self.load * self.path.peak:.2f}, windows of "
            f"{self.path.window_s:g} s"
        )


CONV, CODE = "azure-2023-conv", "azure-2023-code"
L8, L70, Q32, Q30 = "llama-3.1-8b", "llama-3.3-70b-instruct", "qwen2.5-32b", "qwen3-30b-a3b"
SURGE = (1.0, 1.0, 1.0, 1.0, 2.5, 0.7)
SCENARIOS = (
    Scenario("a", L8, "h100-sxm", (1,), 2048, 256, (800, 200, 1.0), 1.0, 0.6, (0.3, 60.0), 1),
    Scenario("b", L8, "h100-sxm", (1,), 2048, 256, (800, 200, 1.0), 1.0, 0.75, (0.3, 20.0), 2),
    Scenario("c", L8, "h100-sxm", (1,), 8192, 64, (1500, 150, 1.0), 1.0, 0.5, (0.5, 120.0), 3),
    Scenario("d", L70, "h100-sxm", (2,), 2048, 128, CONV, 1.0, 0.7, (0.2, 300.0), 4),
    Scenario("e", L70, "h100-sxm", (1,), 2048, 128, CONV, 1.0, 0.5, (0.8, 300.0), 5),
    Scenario("f", Q32, "h100-sxm", (2,), 1024, 256, (400, 500, 0.7), 1.0, 0.8, (0.1, 60.0), 6),
    Scenario("g", Q32, "h200-sxm", (1,), 2048, 256, CODE, 2.0, 0.6, (0.4, 30.0), 7),
    Scenario("h", L70, "h100-sxm", (2, 2), 4096, 128, CONV, 1.0, 0.6, (0.3, 120.0), 8),
    Scenario("i", L70, "h200-sxm", (1, 1), 4096, 128, (1000, 200, 1.0), 1.0, 0.7, (0.2, 600.0), 9),
    Scenario("j", L8, "h100-sxm", (4,), 2048, 256, (800, 200, 1.0), 1.0, 0.85, (0.15, 10.0), 10),
    Scenario("k", L8, "h100-sxm", (1,), 512, 32, (500, 300, 1.0), 1.0, 0.6, (0.4, 5.0), 11),
    Scenario("l", L8, "h100-sxm", (1,), 2048, 32, (500, 300, 1.0), 1.0, 0.6, (0.4, 60.0), 12),
    Scenario("m", L70, "h100-sxm", (1,), 2048, 128, CONV, 1.0, 0.45, (SURGE, 300.0), 13),
    Scenario("n", L70, "h100-sxm", (1,), 2048, 128, CONV, 1.0, 0.3, (0.6, 3600.0), 14),
    Scenario("o", Q30, "h100-sxm", (4,), 2048, 256, CONV, 1.0, 0.7, (0.22, 60.0), 15),
    Scenario("p", L8, "h100-sxm", (2, 2), 4096, 128, (1500, 150, 1.0), 1.0, 0.6, (0.5, 60.0), 16),
)


def figures(distributions: dict[Metric, LatencyDistribution]) -> list[float]:
    return [distributions[metric].quantile_s(q) for metric in (Metric.TTFT, Metric.TPOT, Metric.E2E) for q in QUANTILES]


def simulated_row(scenario: Scenario) -> Row:
    """Pooled over runs, each over whole cycles of the path after a tenth of that or one cycle."""
    cycle = scenario.workload.rate_per_s * scenario.path.duration_s
    measured = round(cycle * max(1, math.ceil(FEWEST_REQUESTS / cycle)))
    filling = int(min(cycle, 0.1 * measured))
    sent = measured + filling
    runs: list[Performance] = [
        simulate(
            scenario.deployment,
            scenario.workload,
            seed=1000 * run + scenario.seed,
            requests=sent,
            warmup_fraction=filling / sent,
        )
        for run in range(RUNS)
    ]
    pooled = {
        metric: LatencyDistribution.from_samples(np.concatenate([run.samples_s[metric] for run in runs]))
        for metric in (Metric.TTFT, Metric.TPOT, Metric.E2E)
    }
    return dict(zip(FIGURES, figures(pooled), strict=True))


def theory_row(scenario: Scenario) -> Row:
    performance = evaluate(scenario.deployment, scenario.workload)
    return dict(zip(FIGURES, figures({metric: performance.distribution(metric) for metric in Metric}), strict=True))


def main() -> None:
    """Simulate what is missing, evaluate all, print the errors."""
    rows = read(RESULTS)
    errors = []
    for number, scenario in enumerate(SCENARIOS):
        if number not in rows and "--theory" not in sys.argv:
            rows[number] = {"number": number, **simulated_row(scenario)}
            write(RESULTS, rows)
        theory = theory_row(scenario)
        errors.append([theory[name] / rows[number][name] - 1.0 for name in FIGURES])
        cells = " | ".join(f"{100.0 * error:+.0f}" for error in errors[-1][:6])
        print(f"| {scenario.name}: {scenario.label} | {cells} |")
    for name, share in (("median", 0.5), ("p90", 0.9)):
        cells = " | ".join(f"{100.0 * value:.1f} %" for value in np.quantile(np.abs(errors), share, axis=0)[:6])
        print(f"| {name} | {cells} |")


if __name__ == "__main__":
    main()
