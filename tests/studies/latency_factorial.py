"""How far `planner.evaluate` is from `planner.simulate`, over models, GPUs, budgets, slots, lengths, burstiness, load.

A fixed-seed factorial of whole deployments: in every dimension each level comes equally often, in an order of its own
(a Latin hypercube over levels). Step times are the calibrated ones, engine costs as shipped; KV blocks are reserved, so
that both sides play the same process. Run from the root of the checkout:

    python -m tests.studies.latency_factorial            # simulate what is missing, evaluate all, print the tables
    python -m tests.studies.latency_factorial --theory   # only evaluate anew and print the tables
    python -m tests.studies.latency_factorial --rates    # sustainable rates, then the tables

Simulated figures are kept in `latency_factorial.csv` and `latency_rates.csv` beside this file, a row as soon as it is
done, so that a run can be cut short and taken up again. All times in seconds.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardware_db import load_hardware, select_calibration
from planner.core import Metric
from planner.engine import ReplicaConfig, Schedule
from planner.llm import load_llm
from planner.roofline import Parallelism
from planner.serving import Deployment, Performance, evaluate, largest_stable_rate_per_s, sustainable_rate_per_s
from planner.simulator import simulate
from planner.simulator.traffic import draw
from planner.traffic import load_lengths
from planner.workload import LatencyTarget, Slo, TokenLengths, Workload
from tests.pool_oracle import idle_latencies

FloatArray = NDArray[np.float64]
Row = dict[str, float]

SCENARIOS = 240
SEED = 20_261_121
REQUESTS = 8_000
"""Measured requests of a simulation; twice as many above a load of `HIGH`, for queues remember longer there. More are
simulated where the system fills slowly."""
HIGH = 0.8
LONGEST_RUN = 30_000
CLOSE_RATE, TRIED_SEEDS = 0.001, 60
"""Of so many seeds the first (or best) is taken whose measured arrivals come at the rate asked for to this share: near
saturation a rate that is 1 % off by chance moves a wait by more than the theory's error."""
FILLINGS = 6.0
"""A system with n requests in it is full after some multiple of n arrivals; those are not measured."""
BATCHES = 10
"""Consecutive parts of a run whose scatter tells how good its figures are."""
FIGURES = ("mean", "p50", "p90", "p99")
METRICS = (Metric.TTFT, Metric.TPOT, Metric.E2E)
RESULTS = Path(__file__).with_suffix(".csv")
RATES = RESULTS.with_name("latency_rates.csv")

LLMS = {"llama-3.1-8b": 1, "qwen2.5-32b": 2, "llama-3.3-70b-instruct": 4, "qwen3-30b-a3b": 2}
"""Models and the GPUs of one replica."""
SKUS = ("a100-sxm-80gb", "h100-sxm", "h200-sxm")
BUDGETS = (256, 512, 1024, 2048, 4096, 8192)
SLOTS = (16, 32, 64, 128, 256, 512, 1024)
LENGTHS = ("constant", "lognormal 0.5", "lognormal 1", "lognormal 2", "azure-2023-conv", "azure-2023-code")
"""The number is the coefficient of variation of inputs and of outputs."""
SCVS = (0.0, 0.25, 0.5, 1.0, 1.0, 2.0, 4.0, 9.0)
KINDS = ("mixed", "mixed", "disaggregated")
REPLICAS = (1, 2, 4, 8, 16)
LOADS = (0.1, 0.95)
MEAN_INPUTS, MEAN_OUTPUTS = (128.0, 4096.0), (32.0, 768.0)
"""Ranges of the mean lengths, drawn evenly in the logarithm."""
LONGEST_INPUT, LONGEST_OUTPUT = 16_000, 8_000
RATE_SCENARIOS = 30
SLACKS = {"tight": (3.0, 1.5), "usual": (10.0, 3.0)}
"""The SLOs of the sustainable rate: p99 TTFT and p99 TPOT at most these multiples of those of an idle system."""
NEAR = 0.2
"""The simulated sustainable rate is sought within this share of the theory's, further out where it is not there, in
`HALVINGS` steps: to 1.3 %."""
HALVINGS = 4
MOST_STEPS_OUT = 6


@dataclass(frozen=True)
class Scenario:
    """One deployment under one workload, by the levels drawn for it."""

    number: int
    llm: str
    sku: str
    budget: int
    slots: int
    lengths_name: str
    mean_input: float
    mean_output: float
    scv: float
    load: float
    kind: str
    replicas: int

    @cached_property
    def lengths(self) -> TokenLengths:
        """Token lengths of its requests."""
        return _lengths(self.lengths_name, self.mean_input, self.mean_output)

    @cached_property
    def config(self) -> ReplicaConfig:
        """One replica, calibrated."""
        db = _hardware()
        return ReplicaConfig(
            llm=load_llm(self.llm),
            sku=db.skus[self.sku],
            engine=db.engines["vllm"],
            calibration=select_calibration(db, self.sku, "vllm"),
            parallelism=Parallelism(tp=LLMS[self.llm]),
            max_running_requests=self.slots,
            max_batched_tokens=self.budget,
            own_schedule=Schedule(reserve_outputs=True),
        )

    @cached_property
    def deployment(self) -> Deployment:
        """The pools; of two, the one that could carry less decides and the other has about as much room."""
        if self.kind == "mixed":
            return Deployment.mixed(self.config, self.replicas)
        one = Deployment.disaggregated(self.config, self.config, (1, 1))
        alone = [largest_stable_rate_per_s(_with_replicas(one, r), self.unloaded) for r in ((1, 10**4), (10**4, 1))]
        ratio = alone[1] / alone[0]
        few = max(1, round(self.replicas * min(ratio, 1.0 / ratio)))
        return _with_replicas(one, (few, self.replicas) if ratio < 1.0 else (self.replicas, few))

    @property
    def unloaded(self) -> Workload:
        """Its requests at a token rate of arrivals."""
        return Workload.of(1.0, self.lengths, self.scv)

    @cached_property
    def largest_rate_per_s(self) -> float:
        """Largest stable rate of the whole deployment."""
        return largest_stable_rate_per_s(self.deployment, self.unloaded)

    @cached_property
    def workload(self) -> Workload:
        """Its requests at its load."""
        return self.unloaded.at_rate(self.load * self.largest_rate_per_s)

    def simulated(self, rate_per_s: float, in_system: float, measured: int) -> Performance:
        """A run at a rate, without the part in which the system fills; the same random numbers at every rate."""
        filling = int(min(max(0.1 * measured, FILLINGS * in_system), LONGEST_RUN - measured))
        requests, workload = measured + filling, self.unloaded.at_rate(rate_per_s)
        return simulate(
            self.deployment,
            workload,
            seed=fair_seed(workload, self.number, filling, requests),
            requests=requests,
            warmup_fraction=filling / requests + 1e-9,
            drawn=fair_lengths(self.lengths, requests + filling, self.number),
        )


@cache
def _hardware():  # type: ignore[no-untyped-def]
    return load_hardware()


@cache
def _lengths(name: str, mean_input: float, mean_output: float) -> TokenLengths:
    if name == "constant":
        return TokenLengths.constant(round(mean_input), round(mean_output))
    if not name.startswith("lognormal"):
        return load_lengths(name)
    variation = float(name.split()[1])
    spread = np.log1p(variation**2)
    generator = np.random.default_rng(SEED)

    def draw(mean: float, largest: int) -> NDArray[np.int64]:
        values = np.exp(generator.normal(np.log(mean) - spread / 2.0, np.sqrt(spread), 4000))
        return np.clip(np.rint(values), 1, largest).astype(np.int64)

    return TokenLengths.from_pairs(draw(mean_input, LONGEST_INPUT), draw(mean_output, LONGEST_OUTPUT))


def fair_seed(workload: Workload, first: int, filling: int, requests: int) -> int:
    """A seed whose measured arrivals come at very nearly the rate asked for."""
    best, seed = np.inf, first
    for candidate in range(1000 * first, 1000 * first + TRIED_SEEDS):
        sent_s = draw(workload, requests, candidate).sent_s
        off = abs((requests - filling) / (sent_s[-1] - sent_s[filling - 1]) / workload.rate_per_s - 1.0)
        if off < best:
            best, seed = off, candidate
        if best < CLOSE_RATE:
            break
    return seed


def fair_lengths(lengths: TokenLengths, count: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lengths in proportion to their probabilities (to one request), in random order: no chance in the offered load."""
    generator = np.random.default_rng(seed)
    places = (np.arange(count) + generator.random()) / count
    cells = np.searchsorted(np.cumsum(lengths.probabilities), places).clip(0, lengths.inputs.size - 1)
    cells = generator.permutation(cells)
    return lengths.inputs[cells].astype(np.int64), lengths.outputs[cells].astype(np.int64)


def _with_replicas(deployment: Deployment, replicas: tuple[int, int]) -> Deployment:
    first, second = (pool.config for pool in deployment.pools)
    return Deployment.disaggregated(first, second, replicas)


def scenarios(count: int = SCENARIOS, seed: int = SEED) -> list[Scenario]:
    """The factorial: each level of each dimension equally often, each dimension shuffled on its own."""
    generator = np.random.default_rng(seed)

    def levels(values: Iterable[object]) -> list[object]:
        chosen = list(values)
        return [chosen[i] for i in generator.permutation(np.arange(count) % len(chosen))]

    def even(low: float, high: float) -> FloatArray:
        return np.asarray(low + (high - low) * (generator.permutation(count) + 0.5) / count)

    columns = zip(
        range(count),
        levels(LLMS),
        levels(SKUS),
        levels(BUDGETS),
        levels(SLOTS),
        levels(LENGTHS),
        np.exp(even(*np.log(MEAN_INPUTS))).tolist(),
        np.exp(even(*np.log(MEAN_OUTPUTS))).tolist(),
        levels(SCVS),
        even(*LOADS).tolist(),
        levels(KINDS),
        levels(REPLICAS),
        strict=True,
    )
    return [Scenario(*row) for row in columns]  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ figures


def _four(values_at: Callable[[float], float], mean: float) -> list[float]:
    return [mean, values_at(0.5), values_at(0.9), values_at(0.99)]


def figures(found: Performance, prefix: str) -> Row:
    """Mean, p50, p90 and p99 of each metric [s]."""
    row: Row = {}
    for metric in METRICS:
        distribution = found.distribution(metric)
        for name, value in zip(FIGURES, _four(distribution.quantile_s, distribution.mean_s), strict=True):
            row[f"{prefix}_{metric.value}_{name}"] = value
    return row


def scatter(found: Performance) -> Row:
    """Relative standard error of each simulated figure, from the scatter between parts of the run."""
    row: Row = {}
    for metric in METRICS:
        parts = np.array_split(found.samples_s[metric], BATCHES)
        each = np.array([[part.mean(), *np.quantile(part, (0.5, 0.9, 0.99))] for part in parts])
        error = each.std(axis=0, ddof=1) / np.sqrt(BATCHES) / np.maximum(each.mean(axis=0), 1e-30)
        for name, value in zip(FIGURES, error.tolist(), strict=True):
            row[f"se_{metric.value}_{name}"] = value
    return row


def in_system(found: Performance) -> float:
    """Mean requests in the deployment (Little)."""
    return found.rate_per_s * found.e2e.mean_s if found.stable else 1e4


def simulated_row(scenario: Scenario) -> Row:
    """What the simulation says about a scenario."""
    rate = scenario.workload.rate_per_s
    started = time.perf_counter()
    measured = REQUESTS if scenario.load < HIGH else 2 * REQUESTS
    found = scenario.simulated(rate, in_system(evaluate(scenario.deployment, scenario.workload)), measured)
    row: Row = {"number": scenario.number, "rate_per_s": rate, "sim_stable": float(found.stable)}
    return row | figures(found, "sim") | scatter(found) | {"sim_wall_s": time.perf_counter() - started}


def theory_row(scenario: Scenario, rate_per_s: float) -> Row:
    """What the theory says, and the CPU time of one evaluation (the second: the first fills caches)."""
    workload = scenario.unloaded.at_rate(rate_per_s)
    evaluate(scenario.deployment, workload)
    started = time.process_time()
    found = evaluate(scenario.deployment, workload)
    spent = time.process_time() - started
    short = max(pool.utilisation for pool in found.pools)
    slots = float(any(pool.limit.value in ("running_requests", "kv_capacity") for pool in found.pools))
    return figures(found, "theory") | {"theory_ms": 1e3 * spent, "utilisation": short, "slots_first": slots}


def read(path: Path) -> dict[int, Row]:
    """Rows done so far, by scenario."""
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    return {int(row["number"]): row for row in rows}


def write(path: Path, rows: dict[int, Row]) -> None:
    """All rows, sorted by scenario."""
    ordered = [rows[number] for number in sorted(rows)]
    unfinished = path.with_suffix(".part")
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, list(ordered[0]), lineterminator="\n")
        out.writeheader()
        out.writerows({key: f"{value:.6g}" for key, value in row.items()} for row in ordered)
    unfinished.replace(path)


# ------------------------------------------------------------------------------------------------ runs


def simulate_all(order: list[Scenario]) -> None:
    """Simulate the scenarios not yet in the results; a spread over all of them is done early."""
    for scenario in sorted(order, key=lambda s: (s.number % 4, s.number)):
        done = read(RESULTS)
        if scenario.number in done:
            continue
        row = simulated_row(scenario) | theory_row(scenario, scenario.workload.rate_per_s)
        write(RESULTS, done | {scenario.number: row})
        print(f"{len(done) + 1:4d} done, scenario {scenario.number}: {row['sim_wall_s']:.1f} s", flush=True)


def evaluate_all(order: list[Scenario]) -> dict[int, Row]:
    """The theory's figures anew beside the simulated ones."""
    rows = read(RESULTS)
    return {n: row | theory_row(order[n], row["rate_per_s"]) for n, row in rows.items()}


# ------------------------------------------------------------------------------------------------ sustainable rates


def slo_of(scenario: Scenario, name: str) -> Slo:
    """Targets on p99 TTFT and p99 TPOT as multiples of what an idle system reaches."""
    first = idle_latencies(scenario.deployment.pools[0], scenario.unloaded)[Metric.TTFT].quantile_s(0.99)
    last = idle_latencies(scenario.deployment.pools[-1], scenario.unloaded)[Metric.TPOT].quantile_s(0.99)
    ttft, tpot = SLACKS[name]
    return Slo(
        targets=(
            LatencyTarget(metric=Metric.TTFT, percentile=0.99, threshold_s=ttft * first),
            LatencyTarget(metric=Metric.TPOT, percentile=0.99, threshold_s=tpot * last),
        )
    )


def simulated_rate(scenario: Scenario, slo: Slo, near: float) -> float:
    """Sustainable rate [1/s] by simulation around a guess, the same random numbers at every rate."""
    load = in_system(evaluate(scenario.deployment, scenario.unloaded.at_rate(near)))

    def good(rate: float) -> bool:
        return scenario.simulated(rate, load, REQUESTS // 2).meets(slo)

    low, high = (1.0 - NEAR) * near, (1.0 + NEAR) * near
    for _ in range(MOST_STEPS_OUT):
        if good(low):
            break
        low, high = (1.0 - NEAR) * low, low
    for _ in range(MOST_STEPS_OUT):
        if not good(high):
            break
        low, high = high, (1.0 + NEAR) * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if good(middle) else (low, middle)
    return (low + high) / 2.0


def rate_all(order: list[Scenario]) -> None:
    """Sustainable rates of every eighth scenario that has one by the theory, under each SLO."""
    for scenario in [s for s in order if s.number % (SCENARIOS // RATE_SCENARIOS) == 1]:
        if scenario.number in read(RATES):
            continue
        row: Row = {"number": scenario.number}
        for name in SLACKS:
            slo = slo_of(scenario, name)
            theory = sustainable_rate_per_s(scenario.deployment, scenario.unloaded, slo)
            row[f"theory_{name}"] = theory
            row[f"sim_{name}"] = simulated_rate(scenario, slo, theory) if theory > 0.0 else 0.0
        write(RATES, read(RATES) | {scenario.number: row})
        print("rates:", ", ".join(f"{key} {value:.4g}" for key, value in row.items()), flush=True)


# ------------------------------------------------------------------------------------------------ tables


def errors(rows: dict[int, Row], metric: str, figure: str) -> FloatArray:
    """Relative errors of the theory, shape (rows,); NaN where the simulated figure is 0 or the run was overloaded."""
    theory, sim, stable = (
        np.array([row[key] for row in rows.values()])
        for key in (f"theory_{metric}_{figure}", f"sim_{metric}_{figure}", "sim_stable")
    )
    return np.where((sim > 0.0) & (stable > 0.0), theory / np.maximum(sim, 1e-30) - 1.0, np.nan)


def table(rows: dict[int, Row]) -> str:
    """Median error, shares within 25 % and largest error of each figure, and the median simulated standard error."""
    lines = [
        "| metric | figure | median | within 25 % | within 25 % or 2 s.e. beyond | largest | s.e. of simulation |",
        "|---|---|---|---|---|---|---|",
    ]
    for metric in ("ttft", "tpot", "e2e"):
        for figure in FIGURES:
            found = np.abs(errors(rows, metric, figure))
            noise = np.array([row[f"se_{metric}_{figure}"] for row in rows.values()])[np.isfinite(found)]
            size = found[np.isfinite(found)]
            near = (size <= 0.25 + 2.0 * noise).mean()
            lines.append(
                f"| {metric.upper()} | {figure} | {100 * np.median(size):.1f} % | {100 * (size <= 0.25).mean():.0f} % "
                f"| {100 * near:.0f} % | {100 * size.max():.0f} % | {100 * np.median(noise):.1f} % |"
            )
    return "\n".join(lines)


def groups(order: list[Scenario], rows: dict[int, Row]) -> dict[str, list[int]]:
    """Scenarios by what matters."""
    chosen: dict[str, Callable[[Scenario, Row], bool]] = {
        "all": lambda s, r: True,
        "mixed": lambda s, r: s.kind == "mixed",
        "disaggregated": lambda s, r: s.kind != "mixed",
        "slots give out first": lambda s, r: r["slots_first"] > 0.0,
        "slots ample": lambda s, r: r["slots_first"] == 0.0,
        "SCV per server < 0.1": lambda s, r: s.scv / s.replicas < 0.1,
        "SCV per server 0.1 to 1": lambda s, r: 0.1 <= s.scv / s.replicas < 1.0,
        "SCV per server 1 to 3": lambda s, r: 1.0 <= s.scv / s.replicas < 3.0,
        "SCV per server 3 to 9": lambda s, r: s.scv / s.replicas >= 3.0,
        "load 0.1 to 0.4": lambda s, r: s.load < 0.4,
        "load 0.4 to 0.7": lambda s, r: 0.4 <= s.load < 0.7,
        "load 0.7 to 0.85": lambda s, r: 0.7 <= s.load < 0.85,
        "load 0.85 to 0.95": lambda s, r: s.load >= 0.85,
        "1 or 2 replicas": lambda s, r: s.replicas <= 2,
        "4 to 16 replicas": lambda s, r: s.replicas > 2,
        "constant lengths": lambda s, r: s.lengths_name == "constant",
    }
    return {name: [n for n, row in rows.items() if test(order[n], row)] for name, test in chosen.items()}


def group_table(order: list[Scenario], rows: dict[int, Row]) -> str:
    """Median error and share within 25 % of the figures that matter most, group by group."""
    wanted = (("ttft", "p50"), ("ttft", "p90"), ("ttft", "p99"), ("tpot", "p50"), ("tpot", "p99"))
    heads = " | ".join(f"{metric.upper()} {figure}" for metric, figure in wanted)
    lines = [f"| group | scenarios | {heads} |", "|---" * (len(wanted) + 2) + "|"]
    for name, members in groups(order, rows).items():
        if members:
            cells = []
            for metric, figure in wanted:
                size = np.abs(errors({n: rows[n] for n in members}, metric, figure))
                size = size[np.isfinite(size)]
                cells.append(f"{100 * np.median(size):.1f} %, {100 * (size <= 0.25).mean():.0f} %")
            lines.append(f"| {name} | {len(members)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def worst_table(order: list[Scenario], rows: dict[int, Row], count: int = 10) -> str:
    """The scenarios with the largest errors among p50, p90 and p99 of TTFT and TPOT."""
    chosen = [(m, f) for m in ("ttft", "tpot") for f in FIGURES[1:]]
    table_of = np.stack([np.nan_to_num(errors(rows, *key)) for key in chosen], axis=1)
    largest = np.abs(np.log1p(table_of)).max(axis=1)
    lines = [
        "| scenario | TTFT p50, p90, p99: simulated | error | s.e. of p99 | TPOT p50, p90, p99: error |",
        "|---|---|---|---|---|",
    ]
    numbers = list(rows)
    for at in np.argsort(-largest)[:count]:
        row, what = rows[numbers[at]], order[numbers[at]]
        seconds = ", ".join(f"{1e3 * row[f'sim_ttft_{f}']:.3g}" for f in FIGURES[1:])
        parts = [" ".join(f"{100 * e:+.0f}" for e in table_of[at, i : i + 3]) for i in (0, 3)]
        lines.append(
            f"| {label(what)} | {seconds} ms | {parts[0]} % | {100 * row['se_ttft_p99']:.0f} % | {parts[1]} % |"
        )
    return "\n".join(lines)


def label(what: Scenario) -> str:
    """A scenario in a few words."""
    lengths = what.lengths_name
    if not lengths.startswith("azure"):
        lengths += f" {what.mean_input:.0f}/{what.mean_output:.0f}"
    size = "+".join(str(pool.replicas) for pool in what.deployment.pools)
    return (
        f"{what.number}: {what.llm} {what.sku} {what.kind} x{size}, C={what.budget}, {what.slots} slots, {lengths}, "
        f"SCV {what.scv:g}, load {what.load:.2f}"
    )


def rate_table() -> str:
    """Errors of the sustainable rate."""
    lines = []
    for name, (ttft, tpot) in SLACKS.items():
        rows = [row for row in read(RATES).values() if row[f"sim_{name}"] > 0.0]
        if rows:
            errors = np.array([row[f"theory_{name}"] / row[f"sim_{name}"] - 1.0 for row in rows])
            size = np.abs(errors)
            lines.append(
                f"Sustainable rate with p99 TTFT within {ttft:g} and p99 TPOT within {tpot:g} times idle, {size.size} "
                f"scenarios: median error {100 * np.median(size):.1f} %, signed {100 * np.median(errors):+.1f} %, "
                f"within 5 % {100 * (size <= 0.05).mean():.0f} %, within 15 % {100 * (size <= 0.15).mean():.0f} %, "
                f"largest {100 * size.max():.0f} %"
            )
    return "\n".join(lines) or "no sustainable rates yet"


def main(arguments: list[str]) -> None:
    """Run what is asked for and print the tables."""
    order = scenarios()
    if "--rates" in arguments:
        rate_all(order)
    elif "--theory" not in arguments:
        simulate_all(order)
    rows = evaluate_all(order)
    write(RESULTS, rows)
    times = np.array([row["theory_ms"] for row in rows.values()])
    print(f"\n{table(rows)}\n\n{group_table(order, rows)}\n\n{worst_table(order, rows)}\n\n{rate_table()}\n")
    print(f"Time of one evaluation: median {np.median(times):.1f} ms, 90 % within {np.quantile(times, 0.9):.1f} ms.")


if __name__ == "__main__":
    main(sys.argv[1:])
