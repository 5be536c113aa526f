"""Mélange's setting, planned anew: which mix of L4, A10G, A100 and H100 wins when, and what it saves.

Writes `tests/studies/melange_rates.csv` (what one GPU of each SKU sustains, by request size) and
`tests/studies/melange.csv` (the fleets), which docs/studies/melange.md explains. From the root of the checkout:

    python -m tests.studies.melange           # everything, some minutes
    python -m tests.studies.melange fleets    # only the fleets, from the committed rates
    python -m tests.studies.melange_claims    # the tables of the document, from the files

Source: Griggs et al. 2024, "Mélange: Cost Efficient Large Language Model Serving by Exploiting GPU Heterogeneity",
arXiv:2404.14527v4; its code and profiling scripts, github.com/tyler-griggs/melange-release. The published fleets (its
tables 3 to 8) are in `tests/reference/melange_fleets.csv`. Nothing here is fitted to them.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.special import ndtr

from hardware_db import EngineProfile, load_hardware, select_calibration
from planner.core import Metric
from planner.engine import ReplicaConfig, Schedule, memory_footprint
from planner.llm import load_llm
from planner.optimizer import FleetProblem, Objective, Purchase, Resource, Slice, SolveStatus, Unit, solve
from planner.serving import Deployment, Performance, sustainable_rate_per_s
from planner.simulator import simulate
from planner.workload import LatencyTarget, Slo, TokenLengths, Workload
from tests.studies.literature import PREFILL_FIRST, engine_of_2023
from tests.studies.rows import read_rows

FloatArray = NDArray[np.float64]
Fleet = dict[str, int]
Rates = Mapping[str, FloatArray]

FLEETS = Path(__file__).with_suffix(".csv")
RATES = FLEETS.with_name("melange_rates.csv")
PUBLISHED = FLEETS.parents[1] / "reference" / "melange_fleets.csv"

# ------------------------------------------------------------------------------------------------ the setting

SKUS = {"l4": "l4", "a10g": "a10g", "a100": "a100-sxm-80gb", "h100": "h100-sxm"}
PRICES = {"l4": 0.70, "a10g": 1.01, "a100": 3.67, "h100": 7.516}
"""USD per GPU-hour (table 1). That of H100 is RunPod's, scaled: 4.69 / 2.29 x 3.67 (sec. 6.1)."""
SLOS_S = (0.040, 0.120)
TRAFFIC_PER_S = (1, 2, 4, 8, 16, 32)
"""Average TPOT and requests per second (sec. 6.1, tables 3 to 8)."""
OUTPUTS = (25, 100, 250, 500, 1000, 2000)
INPUTS = (*OUTPUTS, 4000, 8000, 12_000, 16_000)
"""Upper ends of the 6 output and 10 input ranges [tokens]. The paper says how many there are (sec. 6.1) and draws them
in fig. 5; the profiling script has the first six. The last four are assumed: doublings, and the 12,000 of
`CHEAP_INPUT`. A bucket is profiled at its upper ends, as the script does."""
CHEAP_INPUT = 12_000
"""L4 and A10G serve no longer requests [tokens] (sec. 6.2): of the last range of inputs that they serve, inputs that
are shorter by the answer."""
CHEAP = ("l4", "a10g")
SLICES = 8
"""Into so many slices a bucket's rate is divided, each served by one SKU (sec. 6.1)."""
MEMORY_SHARE = 0.90
"""`gpu_memory_utilization` of vLLM at the time unless given (github.com/vllm-project/vllm/issues/1018)."""
OLDEST_LAYOUT = "0.6.4"
"""The release of vLLM whose memory layout stands for that of 0.2.7: the oldest one that is modelled."""
RUNNING, BUDGET = 256, 2048
"""`max_num_seqs` of vLLM at the time unless given (github.com/vllm-project/vllm/issues/6801); tokens of a chunk, which
its steps of whole prompts did not have: assumed."""
CHUNKED = Schedule(mixed_steps=True, reserve_outputs=False)
"""What theory knows of vLLM's schedule; `played_rate_per_s` says how far from the prefill-first of 0.2.7 that is."""


@dataclass(frozen=True)
class LogNormal:
    """Tokens by mean [tokens] and standard deviation of the logarithm."""

    mean: float
    spread: float

    def below(self, tokens: NDArray[np.float64]) -> FloatArray:
        """Share of requests with fewer tokens, shape as given."""
        centre = math.log(self.mean) - self.spread**2 / 2.0
        return np.asarray(ndtr((np.log(tokens) - centre) / self.spread))


CHAT_SPREAD = 1.32
"""Least squares to the CDF of input + output of LMSYS-Chat-1M (`LMSYS_TOTAL`), one spread for both, means as given."""
LMSYS_TOTAL = {
    64: 0.131439,
    128: 0.235947,
    256: 0.382477,
    512: 0.638327,
    768: 0.757983,
    1024: 0.830662,
    1536: 0.90886,
    2048: 0.948285,
    3072: 0.972866,
    4096: 0.983742,
    6144: 0.992885,
    8192: 0.996531,
    12288: 0.998633,
}
"""Share of conversations with at most so many tokens: github.com/vllm-project/semantic-router,
src/fleet-sim/fleet_sim/data."""
ARENA = (LogNormal(329.43, CHAT_SPREAD), LogNormal(195.66, CHAT_SPREAD))
"""Inputs and outputs; means: legend of fig. 10."""
PUBMED = (
    LogNormal(4174.13, math.log(6101 / 2715) / 1.2816),
    LogNormal(314.10, math.log(318 / 212) / 1.2816),
)
"""Means: legend of fig. 10. Spreads from medians and 90th percentiles of PubMed: 2715 and 6101, 212 and 318 (Zaheer et
al. 2020, BigBird, arXiv:2007.14062, statistics of its summarisation data; not reopened, hence `SPREADS`)."""
LONG_SHARE = 0.2
"""Of the mixed data from PubMed (sec. 6.1)."""
DATASETS = ("arena", "pubmed", "mixed")
LEAST_SHARE = 1e-5
"""Buckets with a smaller share of the requests are left out: PubMed has 133,000 papers (App. A.1)."""


SPREADS = {"narrower lengths": 0.8, "wider lengths": 1.25}
"""Factors on all spreads, which are the least certain of the inputs."""


@cache
def shares(dataset: str, factor: float = 1.0) -> FloatArray:
    """Share of requests in each bucket, shape (inputs, outputs), with spreads times a factor.

    What lies beyond the last range counts in the last; chats beyond `CHEAP_INPUT`, which the paper has none of (it
    serves the whole of Arena on L4), in the range that ends there.
    """
    if dataset == "mixed":
        return (1.0 - LONG_SHARE) * shares("arena", factor) + LONG_SHARE * shares("pubmed", factor)
    distributions = ARENA if dataset == "arena" else PUBMED
    inputs, outputs = (LogNormal(distribution.mean, factor * distribution.spread) for distribution in distributions)
    last = CHEAP_INPUT if dataset == "arena" else INPUTS[-1]
    found = np.outer(_ranges(inputs, INPUTS, last), _ranges(outputs, OUTPUTS, OUTPUTS[-1]))
    kept: FloatArray = np.where(found >= LEAST_SHARE, found, 0.0)
    return np.asarray(kept / kept.sum())


def _ranges(distribution: LogNormal, ends: Sequence[int], last: int) -> FloatArray:
    tokens = np.asarray(ends, dtype=np.float64)
    return np.diff(np.where(tokens >= last, 1.0, distribution.below(tokens)), prepend=0.0)


# ------------------------------------------------------------------------------------------------ what a GPU sustains


@dataclass(frozen=True)
class Variant:
    """One way to ask: which engine costs, and what "average TPOT" is.

    `per_token_of_e2e`: request latency over output tokens, as sec. 4.1 defines it; otherwise the mean gap after the
    first token, as the profiling script prints it and as TPOT is defined here.
    """

    name: str
    engine: EngineProfile
    per_token_of_e2e: bool = False

    def slo(self, output_tokens: int, threshold_s: float) -> Slo:
        """The median stands for the average: requests of a bucket are alike, so that their TPOT is nearly symmetric."""
        metric = Metric.E2E if self.per_token_of_e2e else Metric.TPOT
        limit_s = threshold_s * output_tokens if self.per_token_of_e2e else threshold_s
        return Slo(targets=(LatencyTarget(metric=metric, percentile=0.5, threshold_s=limit_s),))


HOST_S, SEQUENCE_HOST_S = 0.004, 80e-6
"""Host time of a step of vLLM in 2024, not hidden, and what each sequence adds [s]: 4 ms at least
(github.com/vllm-project/vllm/issues/6854), 20 ms at 200 sequences (issues/6801)."""


def engine_of_2024() -> EngineProfile:
    """vLLM as it ships, with the host that its developers measured in 2024, before they hid it."""
    engine = load_hardware().engines["vllm"]
    host = {"lag_steps": 0, "step_s": HOST_S, "sequence_s": SEQUENCE_HOST_S}
    return engine.with_costs(engine.costs.model_copy(update=host))


MAIN = "host of 2024"


def variants() -> dict[str, Variant]:
    """The main one first; then 10 ms of host in every step (tests/studies/literature.py), today's, the other TPOT."""
    made = (
        Variant(MAIN, engine_of_2024()),
        Variant("host of 2023", engine_of_2023()),
        Variant("host of today", load_hardware().engines["vllm"]),
        Variant("latency per token", engine_of_2024(), per_token_of_e2e=True),
    )
    return {one.name: one for one in made}


def replica(sku: str, engine: EngineProfile, schedule: Schedule = CHUNKED) -> ReplicaConfig:
    """Llama-2-7b on one GPU; its 4,096 positions are stretched to the longest bucket, as the paper must have done."""
    db = load_hardware()
    llm = load_llm("llama-2-7b")
    return ReplicaConfig(
        llm=llm.model_copy(update={"max_context_tokens": INPUTS[-1] + OUTPUTS[-1]}),
        sku=db.skus[SKUS[sku]],
        engine=engine,
        calibration=select_calibration(db, SKUS[sku], "vllm"),
        own_schedule=schedule,
        memory_fraction=MEMORY_SHARE,
        engine_version=OLDEST_LAYOUT,
        max_running_requests=RUNNING,
        max_batched_tokens=BUDGET,
    )


def fits(sku: str, input_tokens: int, output_tokens: int) -> bool:
    """Whether a SKU may serve a bucket: the paper's limit, and room for the KV of one request."""
    room = memory_footprint(replica(sku, engine_of_2024())).kv_capacity_tokens
    served = _served_input(sku, input_tokens, output_tokens) + output_tokens <= room
    return served and (sku not in CHEAP or input_tokens <= CHEAP_INPUT)


def _served_input(sku: str, input_tokens: int, output_tokens: int) -> int:
    """Of a bucket, the longest input that a SKU serves [tokens]."""
    return min(input_tokens, CHEAP_INPUT - output_tokens) if sku in CHEAP else input_tokens


def rate_per_s(variant: Variant, sku: str, input_tokens: int, output_tokens: int, slo_s: float) -> float:
    """Requests per second of this size that one GPU sustains; 0 when it cannot."""
    if not fits(sku, input_tokens, output_tokens):
        return 0.0
    deployment = Deployment.mixed(replica(sku, variant.engine))
    served = _served_input(sku, input_tokens, output_tokens)
    workload = Workload.of(1.0, TokenLengths.constant(served, output_tokens))
    return sustainable_rate_per_s(deployment, workload, variant.slo(output_tokens, slo_s), tolerance=0.005)


SWEEP_MS, SWEEP_TOKENS = (40, 60, 80, 100, 120, 140, 160), 64
"""SLOs, and inputs and outputs of every request, of fig. 6."""
CHECKED = ((25, 25), (250, 250), (1000, 250), (4000, 250))
"""Sizes at which the schedule is checked by simulation, at 120 ms."""
PREFILL_FIRST_PLAYED, CHUNKED_PLAYED = "prefill first, simulated", "chunked, simulated"


def played_rate_per_s(sku: str, input_tokens: int, output_tokens: int, prefill_first: bool) -> float:
    """What a GPU sustains at 120 ms in simulation: vLLM 0.2.7's own order, or the chunked prefill that theory knows."""
    main = variants()[MAIN]
    config = replica(sku, main.engine, PREFILL_FIRST if prefill_first else CHUNKED)
    deployment = Deployment.mixed(config.model_copy(update={"max_batched_tokens": max(BUDGET, input_tokens)}))
    workload = Workload.of(1.0, TokenLengths.constant(input_tokens, output_tokens))

    def play(one: Deployment, asked: Workload) -> Performance:
        return simulate(one, asked, seed=1, requests=2000)

    return sustainable_rate_per_s(deployment, workload, main.slo(output_tokens, 0.120), judge=play, tolerance=0.02)


def write_rates() -> None:
    """The rates of every variant, SKU, bucket and SLO, of fig. 6 and of the check, to four digits."""
    with RATES.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["variant", "slo_ms", "sku", "input_tokens", "output_tokens", "rate_per_s"])
        for row in _rate_rows():
            writer.writerow([*row[:-1], f"{row[-1]:.4g}"])


def _rate_rows() -> Iterator[tuple[str, int, str, int, int, float]]:
    made = variants()
    for name, variant in made.items():
        for slo_s in SLOS_S:
            for sku in SKUS:
                for i, o in ((i, o) for i in INPUTS for o in OUTPUTS):
                    yield name, round(1e3 * slo_s), sku, i, o, rate_per_s(variant, sku, i, o, slo_s)
        print(name, flush=True)
    for slo_ms in SWEEP_MS:
        for sku in ("a10g", "a100"):
            found = rate_per_s(made[MAIN], sku, SWEEP_TOKENS, SWEEP_TOKENS, 1e-3 * slo_ms)
            yield MAIN, slo_ms, sku, SWEEP_TOKENS, SWEEP_TOKENS, found
    for name, prefill_first in ((PREFILL_FIRST_PLAYED, True), (CHUNKED_PLAYED, False)):
        for sku in SKUS:
            for i, o in CHECKED:
                yield name, 120, sku, i, o, played_rate_per_s(sku, i, o, prefill_first)


@cache
def read_rates() -> dict[tuple[str, int], dict[str, FloatArray]]:
    """By variant and SLO [ms]: by SKU the rates [1/s], shape (inputs, outputs); 0 where none was asked for."""
    found: dict[tuple[str, int], dict[str, FloatArray]] = {}
    for row in read_rows(RATES):
        size = int(row["input_tokens"]), int(row["output_tokens"])
        if size[0] in INPUTS and size[1] in OUTPUTS:
            table = found.setdefault((row["variant"], int(row["slo_ms"])), {})
            grid = table.setdefault(row["sku"], np.zeros((len(INPUTS), len(OUTPUTS))))
            grid[INPUTS.index(size[0]), OUTPUTS.index(size[1])] = float(row["rate_per_s"])
    return found


@cache
def read_sweep() -> dict[int, dict[str, float]]:
    """By SLO [ms]: the rates [1/s] of A10G and A100 at the size of fig. 6."""
    found: dict[int, dict[str, float]] = {}
    for row in read_rows(RATES):
        if int(row["input_tokens"]) == SWEEP_TOKENS:
            found.setdefault(int(row["slo_ms"]), {})[row["sku"]] = float(row["rate_per_s"])
    return found


# ------------------------------------------------------------------------------------------------ fleets


def cheapest(rates: Rates, demand_per_s: FloatArray) -> Fleet | None:
    """GPUs of each SKU that serve the demand, by bucket, at least cost: the planner's program. None: cannot be."""
    cells = [cell for cell in np.ndindex(*demand_per_s.shape) if demand_per_s[cell] > 0.0]
    units = []
    for sku, grid in rates.items():
        carried = {_name(cell): float(grid[cell]) for cell in cells if grid[cell] > 0.0}
        if carried:
            units.append(Unit(name=sku, rates_per_s=carried, takes={sku: 1.0}))
    resources = [
        Resource(name=unit.name, purchases=(Purchase(name="on_demand", usd_per_hour=PRICES[unit.name]),))
        for unit in units
    ]
    slices = [Slice(name=_name(cell), demand_per_s=(float(demand_per_s[cell]),)) for cell in cells]
    problem = FleetProblem(slices=tuple(slices), units=tuple(units), resources=tuple(resources))
    answer = solve(problem, Objective.MIN_COST)
    if answer.status is SolveStatus.INFEASIBLE:
        return None
    assert answer.status is SolveStatus.OPTIMAL, answer.status
    return {sku: answer.units.get(sku, (0,))[0] for sku in SKUS}


def _name(cell: tuple[int, ...]) -> str:
    return f"{INPUTS[cell[0]]} in, {OUTPUTS[cell[1]]} out"


def cheapest_by_milp(rates: Rates, demand_per_s: FloatArray, slices: int = 0) -> float:
    """Least cost [USD/h] by the program of sec. 5.4.3, written out for scipy's HiGHS; infinite: cannot be.

    Variables: x[c, s] of the demand of bucket c on SKU s, then GPUs b[s]; sum_s x[c, s] = 1,
    sum_c x[c, s] d[c] / r[c, s] <= b[s]. x is a share, or with `slices` a whole number of them (equal slices are
    counted, not told apart).
    """
    cells = np.flatnonzero(demand_per_s.ravel() > 0.0)
    skus = tuple(rates)
    able = np.stack([rates[sku].ravel()[cells] > 0.0 for sku in skus], axis=1)
    loads = np.zeros(able.shape)
    for place, sku in enumerate(skus):
        column = able[:, place]
        loads[column, place] = demand_per_s.ravel()[cells][column] / rates[sku].ravel()[cells][column]
    parts = float(slices or 1)
    count, width = able.size, len(skus)
    whole = np.zeros((len(cells), count + width))
    fit = np.zeros((width, count + width))
    for place in range(width):
        columns = np.arange(len(cells)) * width + place
        whole[np.arange(len(cells)), columns] = 1.0
        fit[place, columns] = loads[:, place] / parts
        fit[place, count + place] = -1.0
    found = milp(
        c=np.concatenate([np.zeros(count), [PRICES[sku] for sku in skus]]),
        constraints=[LinearConstraint(whole, parts, parts), LinearConstraint(fit, -np.inf, 0.0)],
        integrality=np.concatenate([np.full(count, 1 if slices else 0), np.ones(width)]),
        bounds=Bounds(0.0, np.concatenate([np.where(able.ravel(), parts, 0.0), np.full(width, np.inf)])),
        options={"time_limit": 20.0, "mip_rel_gap": 1e-6},
    )
    return float(found.fun) if found.x is not None else math.inf


def alone(rates: FloatArray, demand_per_s: FloatArray) -> int | None:
    """GPUs of one SKU that serve the demand: sum of d / r, rounded up; None where it cannot serve a bucket at all."""
    asked = demand_per_s > 0.0
    if np.any(rates[asked] <= 0.0):
        return None
    return math.ceil(float((demand_per_s[asked] / rates[asked]).sum()) - 1e-9)


def cost(fleet: Fleet) -> float:
    """USD/h."""
    return sum(PRICES[sku] * count for sku, count in fleet.items())


def write_fleets() -> None:
    """Fleets of every variant, data set, SLO and rate, from the committed rates."""
    with FLEETS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["variant", "dataset", "slo_ms", "rate_per_s", "fleet", *SKUS, "usd_per_hour", "sliced_usd_per_hour"]
        )
        asked = [(name, name, 1.0) for name in variants()] + [(name, MAIN, SPREADS[name]) for name in SPREADS]
        for name, engine, factor in asked:
            for slo_ms in (round(1e3 * slo_s) for slo_s in SLOS_S):
                rates = read_rates()[engine, slo_ms]
                for dataset, traffic in ((dataset, traffic) for dataset in DATASETS for traffic in TRAFFIC_PER_S):
                    demand = traffic * shares(dataset, factor)
                    for row in _fleets(rates, demand, sliced=name == MAIN):
                        writer.writerow([name, dataset, slo_ms, traffic, *row])


def _fleets(rates: Rates, demand_per_s: FloatArray, sliced: bool) -> Iterator[list[object]]:
    mix = cheapest(rates, demand_per_s)
    assert mix is not None
    by_slices = f"{cheapest_by_milp(rates, demand_per_s, SLICES):.3f}" if sliced else ""
    yield ["mix", *mix.values(), f"{cost(mix):.3f}", by_slices]
    for sku, grid in rates.items():
        count = alone(grid, demand_per_s)
        if count is not None:
            fleet = {other: count if other == sku else 0 for other in SKUS}
            yield [f"{sku}-only", *fleet.values(), f"{cost(fleet):.3f}", ""]


# ------------------------------------------------------------------------------------------------ reading both


@dataclass(frozen=True)
class Case:
    """One data set, SLO and rate: the mixed fleet and what each SKU alone costs [USD/h]."""

    dataset: str
    slo_ms: int
    rate_per_s: int
    mix: Fleet
    alone_usd_per_hour: Mapping[str, float]

    @property
    def usd_per_hour(self) -> float:
        """Of the mixed fleet."""
        return cost(self.mix)

    @property
    def best_alone(self) -> str:
        """The cheapest single SKU."""
        return min(self.alone_usd_per_hour, key=lambda sku: self.alone_usd_per_hour[sku])

    def saving(self, sku: str) -> float:
        """Share of the cost of a single-SKU fleet that the mix saves."""
        return 1.0 - self.usd_per_hour / self.alone_usd_per_hour[sku]

    def cost_share(self, *skus: str) -> float:
        """Of the mix's cost, what goes to these SKUs."""
        return sum(PRICES[sku] * self.mix[sku] for sku in skus) / self.usd_per_hour


Cases = dict[tuple[str, int, int], Case]


def published_cases() -> Cases:
    """Tables 3 to 8; costs from the prices (two rows of the paper are misprinted)."""
    return _cases(read_rows(PUBLISHED))


def our_cases(variant: str = MAIN) -> Cases:
    """Of the committed file."""
    return _cases([row for row in read_rows(FLEETS) if row["variant"] == variant])


def _cases(rows: Sequence[Mapping[str, str]]) -> Cases:
    mixes: dict[tuple[str, int, int], Fleet] = {}
    singles: dict[tuple[str, int, int], Fleet] = {}
    for row in rows:
        key = (row["dataset"], int(row["slo_ms"]), int(row["rate_per_s"]))
        fleet = {sku: int(row[sku]) for sku in SKUS}
        if row["fleet"] == "mix":
            mixes[key] = fleet
        else:
            sku = row["fleet"].removesuffix("-only")
            singles.setdefault(key, {})[sku] = fleet[sku]
    return {
        key: Case(*key, mix, {sku: PRICES[sku] * count for sku, count in singles[key].items()})
        for key, mix in mixes.items()
    }


def main() -> None:
    """Compute the rates, unless only the fleets are asked for, and the fleets."""
    if sys.argv[1:] != ["fleets"]:
        write_rates()
    read_rates.cache_clear()
    write_fleets()


if __name__ == "__main__":
    main()
