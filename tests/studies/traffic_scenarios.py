"""How far `planner.evaluate` is from `planner.simulate` under traffic as it really comes.

Random deployments under random workloads: engines with schedules of their own (KV blocks are reserved, so that both
sides play the same process), recorded lengths, short answers, prompts of 10,000 tokens and more, bursts, loads up to
0.92 of the largest stable rate. In the last third of them the rate drifts (`ArrivalProcess.drift`). Some half an hour:

    python -m tests.studies.traffic_scenarios            # simulate what is missing, evaluate all, print the tables
    python -m tests.studies.traffic_scenarios --theory   # only evaluate anew and print the tables
    python -m tests.studies.traffic_scenarios --seed 1 --rows FILE   # other scenarios, rows elsewhere

Simulated figures are kept in `traffic_scenarios.csv` beside this file, a row as soon as it is done, so that a run can
be cut short and taken up again. All times in seconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np

from hardware_db import HardwareDb, load_hardware, select_calibration
from planner.core import FloatArray, IntArray, Metric
from planner.engine import ReplicaConfig, memory_footprint
from planner.llm import load_llm
from planner.roofline import Parallelism
from planner.serving import Deployment, Performance, evaluate, largest_stable_rate_per_s
from planner.simulator import simulate
from planner.traffic import load_lengths
from planner.workload import RateDrift, TokenLengths, Workload
from tests.studies.rows import Row, fair_lengths, fair_seed, read, table_lines, write

T = TypeVar("T")

SCENARIOS, STEADY, DRAW = 120, 80, 50
SEED = 20_261_123  # of log-normal lengths
RESULTS = Path(__file__).with_suffix(".csv")

LLMS = {"llama-3.1-8b": (1, 2), "qwen2.5-32b": (2, 4), "llama-3.3-70b-instruct": (4, 8), "qwen3-30b-a3b": (1, 2)}
"""Models and the GPUs that one replica may have."""
SKUS = ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200-sxm", "mi300x")
ENGINES = ("vllm", "vllm", "sglang", "tensorrt-llm")
BUDGETS = (512, 2048, 8192, 16_384)
LIMITS = (16, 32, 64, 128, 256, 512)
KINDS = ("mixed", "mixed", "disaggregated")
REPLICAS = (1, 1, 2, 4, 8)
LENGTHS = (
    "constant",
    "lognormal",
    "short answers",
    "long prompts",
    "azure-2023-conv",
    "azure-2023-code",
    "mooncake-conversation",
    "servegen-deepseek-r1",
)
SCVS, LOADS = (0.3, 4.0), (0.1, 0.92)
MEANS = {
    "constant": ((200.0, 4000.0), (60.0, 600.0)),
    "lognormal": ((200.0, 4000.0), (60.0, 600.0)),
    "short answers": ((300.0, 6000.0), (10.0, 80.0)),
    "long prompts": ((10_000.0, 30_000.0), (60.0, 600.0)),
}
"""Ranges of mean input and output tokens, drawn evenly in the logarithm."""
UNUSED = ((1.0, 1.0), (1.0, 1.0))
"""In their place where lengths are recorded."""
VARIATION = 1.0
"""Coefficient of variation of log-normal lengths."""
DRAWN_LENGTHS = 2000
LONGEST_INPUT, LONGEST_OUTPUT = 100_000, 8_000

DRIFT_CVS, DRIFT_WINDOWS, MOST_DRIFTING_LOAD = (0.1, 0.4), (8, 24, 64), 0.75
"""Coefficients of variation of drifting rates, windows of one measured run, and the largest mean load."""
MEASURED = 5_000
"""Requests measured in one run."""
LEAST_RUNS, MOST_RUNS, MOST_STEPS = 2, 14, 1.2e6
"""So many runs are pooled, fewer where their prompts come to more steps than the last."""
CLOSE = 0.025
"""No more runs once the half-width of the pooled p99 TTFT is below this share of it."""
PARTS = 5
"""Parts of a run whose scatter tells the half-width."""
FILLINGS, MOST_FILLING = 5.0, 8_000
"""A system with n requests in it is full after some multiple of n arrivals; those are not measured."""
HALF_WIDTH = 1.96
FIGURES = {Metric.TTFT: (0.5, 0.9, 0.99), Metric.TPOT: (0.5, 0.99)}
FIGURE_NAMES = [f"{metric.value}_p{round(100 * level)}" for metric, levels in FIGURES.items() for level in levels]


@dataclass(frozen=True)
class Scenario:
    """One deployment under one workload, by what was drawn for it."""

    number: int
    llm: str
    gpus: int
    sku: str
    engine: str
    budget: int
    limit: int
    kind: str
    replicas: int
    lengths_name: str
    means: tuple[float, float]
    scv: float
    load: float
    drift_cv: float = 0.0
    drift_windows: int = 0

    @cached_property
    def config(self) -> ReplicaConfig:
        """One replica, calibrated."""
        db = _hardware()
        engine = db.engines[self.engine]
        config = ReplicaConfig(
            llm=load_llm(self.llm),
            sku=db.skus[self.sku],
            engine=engine,
            calibration=select_calibration(db, self.sku, self.engine),
            parallelism=Parallelism(tp=self.gpus),
            max_running_requests=self.limit,
            max_batched_tokens=self.budget,
        )
        schedule = config.schedule.model_copy(update={"reserve_outputs": True})
        config = config.model_copy(update={"own_schedule": schedule})
        if not schedule.whole_prompts:
            return config
        longest = int(self._that_fit(config).inputs.max()) + self.limit
        return config.model_copy(update={"max_batched_tokens": max(self.budget, longest)})

    @cached_property
    def lengths(self) -> TokenLengths:
        """Token lengths of its requests."""
        return self._that_fit(self.config)

    def _that_fit(self, config: ReplicaConfig) -> TokenLengths:
        """Those of its lengths that fit the context and half of the KV cache."""
        room = min(config.longest_tokens, memory_footprint(config).kv_capacity_tokens // 2)
        return _shorter_than(_lengths(self.lengths_name, self.means), room)

    @cached_property
    def deployment(self) -> Deployment:
        """The pools; of two, the one that could carry less decides and the other has about as much room."""
        if self.kind == "mixed":
            return self.with_replicas(self.replicas, 0)
        plenty = 10**4
        prefill, decode = (
            largest_stable_rate_per_s(self.with_replicas(*counts), self.unloaded)
            for counts in ((1, plenty), (plenty, 1))
        )
        few = max(1, round(self.replicas * min(decode / prefill, prefill / decode)))
        return self.with_replicas(few, self.replicas) if decode < prefill else self.with_replicas(self.replicas, few)

    def with_replicas(self, first: int, decode: int) -> Deployment:
        """Its pools with so many replicas."""
        if self.kind == "mixed":
            return Deployment.mixed(self.config, first)
        return Deployment.disaggregated(self.config, self.config, (first, decode))

    @property
    def unloaded(self) -> Workload:
        """Its requests at a token rate of arrivals."""
        return Workload.of(1.0, self.lengths, self.scv)

    @cached_property
    def workload(self) -> Workload:
        """Its requests at its load."""
        return self.at_rate(self.load * largest_stable_rate_per_s(self.deployment, self.unloaded))

    def at_rate(self, rate_per_s: float) -> Workload:
        """Its requests at a mean rate; a drift begins anew with every measured run."""
        steady = self.unloaded.at_rate(rate_per_s)
        if not self.drift_windows:
            return steady
        steps = np.random.default_rng(self.number).gamma(self.drift_cv**-2, self.drift_cv**2, self.drift_windows)
        drift = RateDrift.of(steps, MEASURED / rate_per_s / self.drift_windows)
        return steady.model_copy(update={"arrivals": steady.open_arrivals.model_copy(update={"drift": drift})})

    @property
    def groups(self) -> tuple[str, ...]:
        """What the tables tell apart."""
        kinds = {
            "mixed": self.kind == "mixed",
            "disaggregated": self.kind != "mixed",
            "prompts first": self.kind == "mixed" and not self.config.schedule.mixed_steps,
            "short answers": self.lengths.mean_output <= 80.0,
            "long prompts": self.lengths.mean_input >= 10_000.0,
            "load above 0.7": self.load > 0.7,
            "SCV of 3 and more": self.scv >= 3.0,
        }
        if self.drift_windows:
            return ("drifting rate",)
        return ("steady rate", *(name for name, holds in kinds.items() if holds))

    @property
    def label(self) -> str:
        """In a few words."""
        size = "+".join(str(pool.replicas) for pool in self.deployment.pools)
        means = f"{self.lengths.mean_input:.0f}/{self.lengths.mean_output:.0f}"
        drift = f", {self.drift_windows} windows of CV {self.drift_cv:.2f}" if self.drift_windows else ""
        return (
            f"{self.number}: {self.llm} {self.gpus} x {self.sku} {self.engine} {self.kind} x{size}, "
            f"C={self.config.max_batched_tokens}, {self.limit} at once, "
            f"{self.lengths_name} {means}, SCV {self.scv:.2g}, load {self.load:.2f}{drift}"
        )


@cache
def _hardware() -> HardwareDb:
    return load_hardware()


@cache
def _lengths(name: str, means: tuple[float, float]) -> TokenLengths:
    if name not in MEANS:
        return load_lengths(name)
    if name == "constant":
        return TokenLengths.constant(round(means[0]), round(means[1]))
    spread = np.log1p(VARIATION**2)
    generator = np.random.default_rng(SEED)

    def draw(mean: float, largest: int) -> IntArray:
        values = np.exp(generator.normal(np.log(mean) - spread / 2.0, np.sqrt(spread), DRAWN_LENGTHS))
        return np.clip(np.rint(values), 1, largest).astype(np.int64)

    return TokenLengths.from_pairs(draw(means[0], LONGEST_INPUT), draw(means[1], LONGEST_OUTPUT))


def _shorter_than(lengths: TokenLengths, room: int) -> TokenLengths:
    """Those of so many tokens together at most."""
    kept = lengths.inputs + lengths.outputs <= room
    if kept.all():
        return lengths
    return TokenLengths.from_pairs(lengths.inputs[kept], lengths.outputs[kept], lengths.probabilities[kept])


def scenarios(seed: int = DRAW, count: int = SCENARIOS, steady: int | None = None) -> list[Scenario]:
    """Drawn at random; from `steady` on, by default half of them, the rate drifts."""
    generator = np.random.default_rng(seed)
    calibrated = {(calibration.sku, calibration.engine) for calibration in _hardware().calibrations}

    def any_of(values: Sequence[T]) -> T:
        return values[int(generator.integers(len(values)))]

    def evenly_in_logarithm(bounds: tuple[float, float]) -> float:
        return float(np.exp(generator.uniform(*np.log(bounds))))

    def one(number: int) -> Scenario:
        drifts = number >= (count // 2 if steady is None else steady)
        llm, engine, name = any_of(tuple(LLMS)), any_of(ENGINES), any_of(LENGTHS)
        first, second = (evenly_in_logarithm(bounds) for bounds in MEANS.get(name, UNUSED))
        return Scenario(
            number=number,
            llm=llm,
            gpus=any_of(LLMS[llm]),
            sku=any_of([sku for sku in SKUS if (sku, engine) in calibrated]),
            engine=engine,
            budget=any_of(BUDGETS),
            limit=any_of(LIMITS),
            kind=any_of(KINDS),
            replicas=any_of(REPLICAS),
            lengths_name=name,
            means=(first, second),
            scv=evenly_in_logarithm(SCVS),
            load=float(generator.uniform(LOADS[0], MOST_DRIFTING_LOAD if drifts else LOADS[1])),
            drift_cv=float(generator.uniform(*DRIFT_CVS)) if drifts else 0.0,
            drift_windows=any_of(DRIFT_WINDOWS) if drifts else 0,
        )

    return [one(number) for number in range(count)]


# ------------------------------------------------------------------------------------------------ figures


def figures(quantiles_of: Callable[[Metric, float], float], prefix: str) -> Row:
    """The figures compared [s]."""
    return {
        f"{prefix}_{metric.value}_p{round(100 * level)}": quantiles_of(metric, level)
        for metric, levels in FIGURES.items()
        for level in levels
    }


def simulated_row(scenario: Scenario) -> Row:
    """What several runs of the simulation say together, and the relative half-width of each figure (95 %)."""
    started = time.perf_counter()
    theory = evaluate(scenario.deployment, scenario.workload)
    in_system = theory.rate_per_s * theory.e2e.mean_s if theory.stable else MOST_FILLING
    filling = int(min(max(0.1 * MEASURED, FILLINGS * in_system), MOST_FILLING))
    runs: list[Performance] = []
    row: Row = {}
    steps = MEASURED * (1.0 + scenario.lengths.mean_input / scenario.config.max_batched_tokens)
    most = min(max(MOST_STEPS / steps, LEAST_RUNS), MOST_RUNS)
    while len(runs) < LEAST_RUNS or (len(runs) < most and row["wide_ttft_p99"] > CLOSE):
        runs.append(_one_run(scenario, filling, len(runs)))
        row = _pooled(runs)
    stable = float(scenario.drift_windows > 0 or all(run.stable for run in runs))
    first, last = (pool.replicas for pool in (scenario.deployment.pools[0], scenario.deployment.pools[-1]))
    head: Row = {"number": scenario.number, "rate_per_s": scenario.workload.rate_per_s, "stable": stable}
    head |= {"replicas": first, "decode_replicas": last}
    wall: Row = {"measured": MEASURED * len(runs), "sim_wall_s": time.perf_counter() - started}
    return head | row | wall


def _one_run(scenario: Scenario, filling: int, run: int) -> Performance:
    first, requests = 1000 * scenario.number + run, MEASURED + filling
    return simulate(
        scenario.deployment,
        scenario.workload,
        seed=fair_seed(scenario.workload, first, filling, requests),
        requests=requests,
        warmup_fraction=filling / requests + 1e-9,
        drawn=fair_lengths(scenario.lengths, requests + filling, first),
    )


def _pooled(runs: Sequence[Performance]) -> Row:
    row: Row = {}
    for metric, levels in FIGURES.items():
        samples = [run.samples_s[metric] for run in runs]
        parts = [part for sample in samples for part in np.array_split(sample, PARTS)]
        pooled = np.concatenate(samples)
        for level in levels:
            name, value = f"{metric.value}_p{round(100 * level)}", float(np.quantile(pooled, level))
            each = np.array([np.quantile(part, level) for part in parts])
            row[f"sim_{name}"] = value
            row[f"wide_{name}"] = float(HALF_WIDTH * each.std(ddof=1) / np.sqrt(each.size) / max(value, 1e-30))
    return row


def theory_row(scenario: Scenario, simulated: Row) -> Row:
    """What the theory says of what was simulated."""
    deployment = scenario.with_replicas(int(simulated["replicas"]), int(simulated["decode_replicas"]))
    found = evaluate(deployment, scenario.at_rate(simulated["rate_per_s"]))
    return figures(lambda metric, level: found.distribution(metric).quantile_s(level), "theory")


# ------------------------------------------------------------------------------------------------ tables


def errors_of(rows: Sequence[Row], name: str) -> FloatArray:
    """Relative errors of one figure, of stable runs."""
    seen = [row for row in rows if row["stable"] > 0.0 and row[f"sim_{name}"] > 0.0]
    return np.array([row[f"theory_{name}"] / row[f"sim_{name}"] - 1.0 for row in seen])


def table(order: Sequence[Scenario], rows: dict[int, Row]) -> str:
    """Median and 90th percentile of the errors of each figure, by group."""
    heads = [name.replace("_", " ").upper().replace(" P", " p") for name in FIGURE_NAMES]
    cells = []
    names = sorted({name for scenario in order for name in scenario.groups}, key=_GROUP_ORDER.index)
    for group in names:
        members = [rows[s.number] for s in order if s.number in rows and group in s.groups]
        sizes = [100.0 * np.abs(errors_of(members, name)) for name in FIGURE_NAMES]
        shown = [f"{np.median(size):.1f}, {np.quantile(size, 0.9):.0f} %" if size.size else "–" for size in sizes]
        cells.append([group, str(len(members)), *shown])
    wide = [f"{100.0 * np.median([row[f'wide_{name}'] for row in rows.values()]):.1f} %" for name in FIGURE_NAMES]
    cells.append(["half-width of the simulation (median)", "", *wide])
    return "\n".join(table_lines(["group", "scenarios", *heads], cells))


_GROUP_ORDER = (
    "steady rate",
    "mixed",
    "disaggregated",
    "prompts first",
    "short answers",
    "long prompts",
    "load above 0.7",
    "SCV of 3 and more",
    "drifting rate",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate what is missing, evaluate all, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=DRAW)
    parser.add_argument("--rows", type=Path, default=RESULTS)
    parser.add_argument("--steady", type=int, default=STEADY)
    parser.add_argument("--drifting", type=int, default=SCENARIOS - STEADY)
    parser.add_argument("--theory", action="store_true", help="simulate nothing")
    asked = parser.parse_args(arguments)
    order = scenarios(asked.seed, asked.steady + asked.drifting, asked.steady)
    for scenario in [] if asked.theory else order:
        done = read(asked.rows)
        if scenario.number not in done:
            row = simulated_row(scenario)
            row |= theory_row(scenario, row)
            write(asked.rows, done | {scenario.number: row})
            print(f"{scenario.number}: {row['measured']:.0f} requests, {row['sim_wall_s']:.1f} s", flush=True)
    rows = {number: row | theory_row(order[number], row) for number, row in read(asked.rows).items()}
    write(asked.rows, rows)
    print(f"\n{table(order, rows)}")


if __name__ == "__main__":
    main()
