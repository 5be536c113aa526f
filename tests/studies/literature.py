"""The comparisons DistServe and Sarathi-Serve published, played by the simulator on their set-ups.

Writes `tests/studies/literature.csv`, which docs/studies/literature.md explains. From the root of the checkout:

    python -m tests.studies.literature                 # everything, a minute or two
    python -m tests.studies.literature steps chunked   # only these parts
    python -m tests.studies.literature tables          # the tables of the document, from the file

Sources: DistServe, Zhong et al., OSDI 2024, arXiv:2401.09670; Sarathi-Serve, Agrawal et al., OSDI 2024,
arXiv:2403.02310; their artifacts (github.com/LLMServe/DistServe, github.com/microsoft/sarathi-serve) for the settings
that the papers leave out.

What is published about lengths is little, so a distribution has to be chosen that says no more than that
(`least_assuming`, `lognormal`). All systems of one comparison run on the same kernels and the same engine costs: ratios
show what scheduling and disaggregation do, and nothing of how well one of them was programmed. DistServe's comparisons
have the host of their time (`HOST_S`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import fsolve, minimize
from scipy.special import ndtr, ndtri

from hardware_db import EngineProfile, load_hardware, select_calibration
from planner.core import Metric
from planner.engine import ReplicaConfig, Schedule, step_time
from planner.llm import load_llm
from planner.roofline import Parallelism
from planner.serving import Deployment, KvTransfer, Performance, evaluate
from planner.simulator import simulate
from planner.workload import LatencyTarget, Slo, TokenLengths, Workload
from tests.studies.rows import read_rows, table_lines, write_rows

RESULTS = Path(__file__).with_suffix(".csv")
SKU = "a100-sxm-80gb"
"""DistServe: A100-80GB SXM, NVLink in a node (sec. 6.1). Sarathi-Serve: A100-80GB PCIe, NVLink in pairs (sec. 5)."""

# ------------------------------------------------------------------------------------------------ lengths


def least_assuming(mean_input: float, mean_output: float, most: int, steps: int = 45) -> TokenLengths:
    """The joint distribution of largest entropy among those with these means and input + output <= `most` [tokens].

    p(i, o) ~ exp(-a i - b o) on the triangle, with a and b such that the means are met (Jaynes 1957, Phys. Rev. 106):
    nothing is put in beside what is published. In cells of `most / steps` inputs and of at most as many outputs; those
    of few outputs are narrower, for a stall weighs most on the TPOT of a short answer.
    """
    edges = most / steps * np.arange(steps + 1)
    fine = np.concatenate([[0.5, 1.5, 2.5, 4.5, 8.5, 16.5, 28.5], edges[edges > 28.5]])
    inputs, outputs = (grid.ravel() for grid in np.meshgrid(_middles(edges), _middles(fine), indexing="ij"))
    widths = np.tile(np.diff(fine), steps)
    inside = inputs + outputs <= most
    inputs, outputs, widths = np.rint(inputs[inside]), np.rint(outputs[inside]), widths[inside]

    def weights(slopes: NDArray[np.float64]) -> NDArray[np.float64]:
        return widths * np.exp(-(slopes[0] * inputs + slopes[1] * outputs) / most)

    def dual(slopes: NDArray[np.float64]) -> float:
        return float(np.log(weights(slopes).sum()) + (slopes @ [mean_input, mean_output]) / most)

    slopes = minimize(dual, [1.0, 1.0], method="BFGS", options={"gtol": 1e-7}).x
    return TokenLengths.from_pairs(inputs, outputs, weights(slopes), source="largest entropy")


def _middles(edges: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(1.0, (edges[:-1] + edges[1:]) / 2.0)


@dataclass(frozen=True)
class CutLognormal:
    """A log-normal distribution without its part above `most`; `location` and `spread` of the logarithm uncut."""

    location: float
    spread: float
    most: float

    @classmethod
    def fitted(cls, median: float, p90: float, most: float) -> CutLognormal:
        """The one whose median and 90th percentile, after the cut, are these."""

        def misses(guess: NDArray[np.float64]) -> list[float]:
            distribution = cls(guess[0], guess[1], most)
            return [math.log(distribution.quantile(0.5) / median), math.log(distribution.quantile(0.9) / p90)]

        location, spread = fsolve(misses, [math.log(median), math.log(p90 / median) / ndtri(0.9)])
        return cls(float(location), float(spread), most)

    def quantile(self, probability: float) -> float:
        """The value below which this share lies."""
        kept = ndtr((math.log(self.most) - self.location) / self.spread)
        return float(np.exp(self.location + self.spread * ndtri(probability * kept)))

    def points(self, count: int) -> NDArray[np.int64]:
        """So many values of equal probability, at least 1."""
        chances = (np.arange(count) + 0.5) / count
        return np.maximum(1, np.rint([self.quantile(chance) for chance in chances])).astype(np.int64)


def lognormal(inputs: tuple[float, float], outputs: tuple[float, float], most: int, points: int = 60) -> TokenLengths:
    """Independent log-normal inputs and outputs of given (median, p90), without requests above `most` tokens."""
    one, other = (CutLognormal.fitted(*given, most).points(points) for given in (inputs, outputs))
    pairs = [(i, o) for i in one.tolist() for o in other.tolist() if i + o <= most]
    return TokenLengths.from_pairs([i for i, _ in pairs], [o for _, o in pairs], source="cut log-normal")


SHORT_SHARE, SHORT_TOKENS = 0.83, 8
"""Four of LongBench's 21 tasks, 800 of its 4,750 requests, ask for a summary; most others want a name, a label, a
number or a line (Bai et al. 2023, arXiv:2308.14508, table 1). That such an answer has 8 tokens is assumed."""


def mostly_short(lengths: TokenLengths, mean_output: float) -> TokenLengths:
    """The same inputs; `SHORT_SHARE` of the outputs have `SHORT_TOKENS` tokens, the others what the mean then needs."""
    long = round((mean_output - SHORT_SHARE * SHORT_TOKENS) / (1.0 - SHORT_SHARE))
    inputs = np.minimum(lengths.inputs, OPT_CONTEXT - long)
    return TokenLengths.from_pairs(
        np.concatenate([lengths.inputs, inputs]),
        np.repeat([SHORT_TOKENS, long], inputs.size),
        np.concatenate([SHORT_SHARE * lengths.probabilities, (1.0 - SHORT_SHARE) * lengths.probabilities]),
        source="mostly short answers",
    )


OPT_CONTEXT = 2047
"""DistServe cuts or drops what does not fit into OPT's 2048 learned positions (sec. 6.1)."""
SHAREGPT = (755.5, 200.3)
HUMANEVAL = (171.3, 98.2)
LONGBENCH = (1738.3, 90.7)
"""Mean input and output tokens: DistServe fig. 7."""
OPENCHAT = ((1730.0, 5696.0), (415.0, 834.0), 8192)
ARXIV = ((7059.0, 12985.0), (208.0, 371.0), 16384)
"""(median, p90) of inputs, of outputs; most tokens in all: Sarathi-Serve table 2 and sec. 5."""

# ------------------------------------------------------------------------------------------------ systems

PREFILL_FIRST = Schedule(mixed_steps=False, whole_prompts=True, reserve_outputs=False)
"""vLLM of 2023: steps of whole prompts as soon as there are any, else of decodes; paged KV (Sarathi-Serve sec. 3.2)."""
WHOLE_MIXED = Schedule(mixed_steps=True, whole_prompts=True)
"""Orca: whole prompts and decodes share steps (Sarathi-Serve sec. 3.2)."""
CHUNKED = Schedule(mixed_steps=True, reserve_outputs=False)
"""Sarathi-Serve: decodes first, then chunks of prompts up to the token budget (its alg. 3)."""
PREFILL_POOL = Schedule(whole_prompts=True)
"""DistServe: prompts are batched up to the length that fills the GPU, longer ones go alone (sec. 4.3)."""
FILLS_GPU_TOKENS = 512
"""That length, L_m, on an A100 (DistServe sec. 3.1)."""
ARTIFACT_BUDGET, ARTIFACT_RUNNING = 65_536, 1024
"""max_num_batched_tokens and max_num_seqs of vLLM in DistServe's artifact (evaluation/2-benchmark-serving)."""
SARATHI_RUNNING, ORCA_RUNNING = 128, 16
"""Batch sizes of vLLM and Sarathi-Serve, and of Orca, in the artifact (osdi-experiments/figure-5-6)."""


HOST_S = 0.010
"""Host time of every step in DistServe's comparisons, of its own engine and of the others [s].

The only constant here that is set by a result: by one point, the mixed GPU of DistServe fig. 1 (1.6 requests/s).
Engines of 2023 prepared a step when the one before had ended: this time was not hidden, and a request never waited for
a step that was prepared already (`lag_steps` 0)."""


def engine_of_2023() -> EngineProfile:
    """vLLM as it ships, with the host of 2023; caches go over NVLink, with no connector between servers."""
    engine = load_hardware().engines["vllm"]
    costs = engine.costs.model_copy(update={"lag_steps": 0, "step_s": HOST_S, "transfer_request_s": 0.0})
    return engine.with_costs(costs)


def replica(llm: str, tp: int = 1, pp: int = 1, context: int | None = None, **choices: object) -> ReplicaConfig:
    """A calibrated replica on A100; `context` instead of the model's longest (Sarathi-Serve stretches Yi's 4096)."""
    db = load_hardware()
    spec = load_llm(llm)
    return ReplicaConfig.model_validate(
        {
            "llm": spec if context is None else spec.model_copy(update={"max_context_tokens": context}),
            "sku": db.skus[SKU],
            "engine": db.engines["vllm"],
            "parallelism": Parallelism(tp=tp, pp=pp),
            "calibration": select_calibration(db, SKU, "vllm"),
            **choices,
        }
    )


def colocated(llm: str, tp: int) -> Deployment:
    """vLLM as DistServe's artifact starts it."""
    choices = {"max_batched_tokens": ARTIFACT_BUDGET, "max_running_requests": ARTIFACT_RUNNING}
    return Deployment.mixed(replica(llm, tp, engine=engine_of_2023(), own_schedule=PREFILL_FIRST, **choices))


def chunked(llm: str, tp: int, budget: int = 512, running: int = 512) -> Deployment:
    """Chunked prefill on one pool, as DeepSpeed-MII does it in DistServe's comparison."""
    choices = {"max_batched_tokens": budget, "max_running_requests": running}
    return Deployment.mixed(replica(llm, tp, engine=engine_of_2023(), own_schedule=CHUNKED, **choices))


def disaggregated(
    llm: str, prefill: tuple[int, int], decode: tuple[int, int], replicas: tuple[int, int] = (1, 1)
) -> Deployment:
    """DistServe: (TP, PP) of a prefill and of a decode replica, and how many there are of each."""
    host = {"engine": engine_of_2023()}
    together = {"max_batched_tokens": ARTIFACT_RUNNING, "max_running_requests": ARTIFACT_RUNNING}
    return Deployment.disaggregated(
        replica(llm, *prefill, own_schedule=PREFILL_POOL, max_batched_tokens=FILLS_GPU_TOKENS, **host),
        replica(llm, *decode, own_schedule=CHUNKED, **together, **host),
        replicas,
        KvTransfer(first_token_from_decode=False),  # DistServe counts TTFT to the end of the prompt (sec. 2.1)
    )


# ------------------------------------------------------------------------------------------------ capacity

RATE_TOLERANCE = 0.02
"""Capacities are found to within this share."""


def largest_rate(meets: Callable[[float], bool], start_per_s: float) -> float:
    """Largest rate [1/s] at which `meets` holds, by doubling or halving from `start_per_s`, then bisection; 0 if none.

    The same seed at every rate makes `meets` all but monotone: the same requests come, only closer together.
    """
    low = high = start_per_s
    if meets(start_per_s):
        while meets(high := 2.0 * high):
            low = high
    else:
        while not meets(low := low / 2.0):
            high = low
            if low < start_per_s / 256.0:
                return 0.0
    while high / low > 1.0 + RATE_TOLERANCE:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def slo(ttft_s: float, tpot_s: float, percentile: float = 0.9) -> Slo:
    """Limits of TTFT and TPOT."""
    first = LatencyTarget(metric=Metric.TTFT, percentile=percentile, threshold_s=ttft_s)
    return Slo(targets=(first, LatencyTarget(metric=Metric.TPOT, percentile=percentile, threshold_s=tpot_s)))


def attains(
    deployment: Deployment, lengths: TokenLengths, limits: Slo, rate_per_gpu: float, requests: int = 2000
) -> bool:
    """Whether 90 % of the requests meet both limits at a rate per GPU [1/s] (DistServe sec. 6.1)."""
    workload = Workload.of(rate_per_gpu * deployment.gpus, lengths)
    found = simulate(deployment, workload, seed=1, requests=requests)
    return found.stable and found.attainment(limits) >= 0.9


def goodput_per_gpu(deployment: Deployment, lengths: TokenLengths, limits: Slo) -> float:
    """Largest rate per GPU [1/s] at which 90 % of the requests meet both limits."""
    return largest_rate(lambda rate_per_gpu: attains(deployment, lengths, limits, rate_per_gpu), 1.0)


def sustains(
    config: ReplicaConfig, lengths: TokenLengths, tbt_s: float, rate_per_s: float, requests: int = 2048
) -> bool:
    """Whether the p99 gap between tokens is within `tbt_s` and the median wait within 2 s (Sarathi-Serve sec. 5).

    As many requests as its capacity search sends. The wait is taken as the median TTFT less the time that a prompt of
    mean length takes on an idle replica.
    """
    alone_s = step_time(config, chunks=[(round(lengths.mean_input), 0)]).total_s
    found = simulate(Deployment.mixed(config), Workload.of(rate_per_s, lengths), seed=1, requests=requests)
    waits_s = found.ttft.quantile_s(0.5) - alone_s
    return found.stable and waits_s <= 2.0 and found.itl.quantile_s(0.99) <= tbt_s


def capacity_per_s(config: ReplicaConfig, lengths: TokenLengths, tbt_s: float) -> float:
    """Largest rate [1/s] that is sustained in this sense."""
    return largest_rate(lambda rate_per_s: sustains(config, lengths, tbt_s, rate_per_s), 1.0)


# ------------------------------------------------------------------------------------------------ results


@dataclass(frozen=True)
class Row:
    """One published number and ours.

    Attributes:
        part: of the study.
        name: what is compared.
        published_low, published_high: the published value; a range where only the range over several models is.
        ours: the same from the simulator.
        unit: of the three; "x" is a ratio.
        new, old: what the ratio is made of, in `new_old_unit`; NaN where it is none.
        source: section, figure or table.
    """

    part: str
    name: str
    published_low: float
    published_high: float
    ours: float
    unit: str
    new: float
    old: float
    new_old_unit: str
    source: str


def ratio(part: str, name: str, published: float | tuple[float, float], new: float, old: float, source: str) -> Row:
    """A row with a ratio of rates."""
    low, high = published if isinstance(published, tuple) else (published, published)
    unit = "requests/s per GPU" if part != "chunked" else "requests/s"
    return Row(part, name, low, high, new / old if old else math.inf, "x", new, old, unit, source)


def value(part: str, name: str, published: float, ours: float, unit: str, source: str) -> Row:
    """A row with a value that stands for itself."""
    return Row(part, name, published, published, ours, unit, math.nan, math.nan, "", source)


# ------------------------------------------------------------------------------------------------ parts

STEP_SLOWDOWNS = {
    ("mistral-7b-v0.1", 1, 256): {
        (1024, 1): (1.8, 5.7),
        (1024, 64): (1.2, 2.8),
        (4096, 1): (2.0, 20.3),
        (4096, 64): (1.2, 5.1),
    },
    ("llama-2-70b", 4, 512): {(1024, 1): (3.6, 7.1), (4096, 1): (3.7, 28.3), (4096, 64): (1.9, 10.6)},
}
"""Sarathi-Serve fig. 9: (model, TP, token budget) -> (context, decodes) -> step with a chunk and with a whole prompt,
over the step with decodes alone."""


def steps() -> Iterator[Row]:
    """Sarathi-Serve fig. 9 and 14 and the decode step behind table 3: single steps, no queue."""
    for (llm, tp, budget), cases in STEP_SLOWDOWNS.items():
        for (context, decodes), published in cases.items():
            chunk, whole = slowdowns(llm, tp, budget, context, decodes)
            for kind, theirs, ours in (("a chunk", published[0], chunk), ("a whole prompt", published[1], whole)):
                name = f"{llm}: {decodes} decodes at {context} with {kind}, over decodes alone"
                yield value("steps", name, theirs, ours, "x", "Sarathi-Serve fig. 9")
    for llm, tp, published in (("mistral-7b-v0.1", 1, 0.02), ("yi-34b", 2, 0.04)):
        name = f"{llm}: 32 decodes at 4096"
        ours = step_time(replica(llm, tp), [4096] * 32).total_s
        yield value("steps", name, published, ours, "s", "Sarathi-Serve table 3: strict SLO / 5")
    for chunk, published in ((512, 1.25), (2048, 1.0)):
        name = f"yi-34b: prompt of 8192 in chunks of {chunk}, over whole"
        yield value("steps", name, published, chunking_overhead("yi-34b", 2, 8192, chunk), "x", "Sarathi-Serve fig. 14")


def slowdowns(llm: str, tp: int, budget: int, context: int, decodes: int) -> tuple[float, float]:
    """Duration of a step with decodes and a chunk, and with a whole prompt, over decodes alone.

    The prompt has `context` tokens; the chunk is what the budget leaves, in the middle of it.
    """
    config = replica(llm, tp)
    running = [context] * decodes
    alone_s = step_time(config, running).total_s
    chunk = (budget - decodes, context // 2)
    return (
        step_time(config, running, [chunk]).total_s / alone_s,
        step_time(config, running, [(context, 0)]).total_s / alone_s,
    )


def chunking_overhead(llm: str, tp: int, prompt: int, chunk: int) -> float:
    """Time of a prompt in chunks over its time in one piece."""
    config = replica(llm, tp)
    parts_s = [step_time(config, chunks=[(chunk, past)]).total_s for past in range(0, prompt, chunk)]
    return sum(parts_s) / step_time(config, chunks=[(prompt, 0)]).total_s


@dataclass(frozen=True)
class SarathiModel:
    """A model of Sarathi-Serve's sec. 5.1 and its limits on the p99 gap [s] (table 3)."""

    llm: str
    tp: int
    strict_s: float
    relaxed_s: float

    def config(self, system: str, budget: int, longest: int) -> ReplicaConfig:
        """The replica under one of the systems; `budget` is that of Sarathi-Serve."""
        schedules = {"sarathi": CHUNKED, "vllm": PREFILL_FIRST, "orca": WHOLE_MIXED}
        return replica(
            self.llm,
            self.tp,
            context=longest,
            own_schedule=schedules[system],
            max_batched_tokens=budget if system == "sarathi" else longest * (ORCA_RUNNING if system == "orca" else 1),
            max_running_requests=ORCA_RUNNING if system == "orca" else SARATHI_RUNNING,
        )


MISTRAL = SarathiModel("mistral-7b-v0.1", 1, 0.1, 0.5)
YI = SarathiModel("yi-34b", 2, 0.2, 1.0)
STRICT_BUDGET, RELAXED_BUDGET = 512, 2048
"""Token budgets of Sarathi-Serve (sec. 5.1)."""


@cache
def sarathi_lengths(name: str) -> TokenLengths:
    """openchat_sharegpt4 or arxiv_summarization."""
    return lognormal(*{"openchat": OPENCHAT, "arxiv": ARXIV}[name])


@cache
def sarathi_capacity(model: SarathiModel, system: str, lengths: str, strict: bool) -> float:
    """Capacity [1/s] of one system."""
    longest = {"openchat": OPENCHAT, "arxiv": ARXIV}[lengths][2]
    config = model.config(system, STRICT_BUDGET if strict else RELAXED_BUDGET, longest)
    return capacity_per_s(config, sarathi_lengths(lengths), model.strict_s if strict else model.relaxed_s)


PUBLISHED_CAPACITY: tuple[tuple[SarathiModel, str, bool, str, float | tuple[float, float], str], ...] = (
    (MISTRAL, "openchat", True, "vllm", (2.6, 3.5), "Sarathi-Serve abstract (2.6), sec. 5.2 (3.5)"),
    (MISTRAL, "openchat", True, "orca", 2.78, "Sarathi-Serve fig. 10a"),
    (YI, "openchat", True, "vllm", (3.5, 3.7), "Sarathi-Serve abstract, sec. 5.1 (3.7), fig. 12 (3.5)"),
    (YI, "openchat", True, "orca", 4.0, "Sarathi-Serve sec. 5.1, fig. 10a"),
    (YI, "openchat", False, "vllm", 1.65, "Sarathi-Serve sec. 5.2"),
    (MISTRAL, "arxiv", True, "vllm", (1.0, 2.6), "Sarathi-Serve sec. 5.1: less than on openchat"),
    (YI, "arxiv", True, "vllm", (1.0, 3.7), "Sarathi-Serve sec. 5.1: less than on openchat"),
)


def chunked_prefill() -> Iterator[Row]:
    """Sarathi-Serve fig. 10 and 12: capacity under a limit on the p99 gap between tokens."""
    for model, lengths, strict, rival, published, source in PUBLISHED_CAPACITY:
        new, old = (sarathi_capacity(model, system, lengths, strict) for system in ("sarathi", rival))
        name = f"{model.llm}, {lengths}, {'strict' if strict else 'relaxed'}: Sarathi-Serve over {rival}"
        yield ratio("chunked", name, published, new, old, source)


ABLATION = {
    ("openchat", "whole prompts"): (0.53, 0.68),
    ("openchat", "chunks of 1024"): (0.76, 0.14),
    ("openchat", "chunks of 512"): (0.76, 0.14),
    ("arxiv", "whole prompts"): (3.78, 1.38),
    ("arxiv", "chunks of 1024"): (3.90, 0.17),
    ("arxiv", "chunks of 512"): (3.90, 0.17),
}
"""Sarathi-Serve table 4, Yi-34B: median TTFT and p99 gap [s] of what is mixed with decodes. The table says chunks of
1024, the artifact that makes it (osdi-experiments/table-6) runs 512."""
ABLATION_RATES = {"openchat": 1.0, "arxiv": 0.5}
"""Its arrivals [1/s] (artifact); it runs 128 requests."""


def ablation() -> Iterator[Row]:
    """Sarathi-Serve table 4: what mixing without chunks does to the gaps."""
    for (lengths, kind), (ttft_s, gap_s) in ABLATION.items():
        found = ablation_run(lengths, kind)
        name = f"yi-34b, {lengths} at {ABLATION_RATES[lengths]:g}/s, {kind} mixed with decodes: "
        source = "Sarathi-Serve table 4"
        yield value("ablation", name + "median TTFT", ttft_s, found.ttft.quantile_s(0.5), "s", source)
        yield value("ablation", name + "p99 gap", gap_s, found.itl.quantile_s(0.99), "s", source)


def ablation_run(lengths: str, kind: str, requests: int = 2048) -> Performance:
    """One of its runs, longer; `kind` as in `ABLATION`."""
    longest = {"openchat": OPENCHAT, "arxiv": ARXIV}[lengths][2]
    chunks = kind.startswith("chunks")
    config = replica(
        "yi-34b",
        2,
        context=longest,
        own_schedule=CHUNKED if chunks else WHOLE_MIXED,
        max_batched_tokens=int(kind.rsplit(maxsplit=1)[-1]) if chunks else longest,
        max_running_requests=SARATHI_RUNNING,
    )
    workload = Workload.of(ABLATION_RATES[lengths], sarathi_lengths(lengths))
    return simulate(Deployment.mixed(config), workload, seed=1, requests=requests)


@dataclass(frozen=True)
class Application:
    """A row of DistServe's table 1, the placement of its table 3 and the published gain in rate over vLLM.

    Attributes:
        name: of the application and data.
        llm: served.
        means: input and output tokens.
        ttft_s, tpot_s: limits [s].
        rival_tp: of vLLM (sec. 6.1).
        prefill, decode: (TP, PP) of a replica.
        gain: rate per GPU over that of vLLM, or the range over several models.
        source: of the gain.
        short_answers: most outputs are short (`mostly_short`).
    """

    name: str
    llm: str
    means: tuple[float, float]
    ttft_s: float
    tpot_s: float
    rival_tp: int
    prefill: tuple[int, int]
    decode: tuple[int, int]
    gain: float | tuple[float, float]
    source: str

    short_answers: bool = False

    @property
    def lengths(self) -> TokenLengths:
        """The least assuming distribution of its means, or the one with mostly short answers."""
        plain = least_assuming(*self.means, OPT_CONTEXT)
        return mostly_short(plain, self.means[1]) if self.short_answers else plain

    def goodput(self, deployment: Deployment) -> float:
        """Rate per GPU [1/s] at 90 % attainment."""
        return goodput_per_gpu(deployment, self.lengths, slo(self.ttft_s, self.tpot_s))

    def placements(self) -> Iterator[Deployment]:
        """The published numbers of GPUs per replica, decode without pipelining, and other numbers of replicas."""
        for counts in ((1, 1), (2, 1), (1, 2), (2, 3)):
            yield disaggregated(self.llm, self.prefill, (self.decode[0] * self.decode[1], 1), counts)


APPLICATIONS = (
    Application(
        "chat, ShareGPT", "opt-13b", SHAREGPT, 0.25, 0.1, 1, (2, 1), (1, 1), (2.0, 4.6), "DistServe sec. 6.2, fig. 8"
    ),
    Application(
        "chat, ShareGPT", "opt-66b", SHAREGPT, 2.5, 0.15, 4, (4, 1), (2, 2), (2.0, 4.6), "DistServe sec. 6.2, fig. 8"
    ),
    Application("code, HumanEval", "opt-66b", HUMANEVAL, 0.125, 0.2, 4, (4, 1), (2, 2), 5.7, "DistServe fig. 9a"),
    Application("summaries, LongBench", "opt-66b", LONGBENCH, 15.0, 0.15, 4, (4, 1), (2, 2), 4.3, "DistServe fig. 9b"),
    Application(
        "summaries, LongBench with mostly short answers",
        "opt-66b",
        LONGBENCH,
        15.0,
        0.15,
        4,
        (4, 1),
        (2, 2),
        4.3,
        "DistServe fig. 9b",
        short_answers=True,
    ),
)


def best(application: Application, deployments: Sequence[Deployment]) -> float:
    """Largest goodput per GPU [1/s] of several deployments."""
    return max(application.goodput(deployment) for deployment in deployments)


def applications() -> Iterator[Row]:
    """DistServe fig. 8 and 9: goodput per GPU, with its placement, with the best of ours, against chunked prefill."""
    for one in APPLICATIONS:
        vllm = one.goodput(colocated(one.llm, one.rival_tp))
        placed = one.goodput(disaggregated(one.llm, one.prefill, one.decode))
        name = f"{one.llm}, {one.name}: "
        yield ratio("disaggregated", name + "DistServe's placement over vLLM", one.gain, placed, vllm, one.source)
        found = best(one, tuple(one.placements()))
        yield ratio("disaggregated", name + "best placement over vLLM", one.gain, found, vllm, one.source)
        mii = one.goodput(chunked(one.llm, one.rival_tp))
        yield ratio(
            "disaggregated",
            name + "best placement over chunked prefill",
            MII_GAINS[one.name.split(",")[0]],
            found,
            mii,
            one.source + " (DeepSpeed-MII)",
        )


TIGHTER = (0.5, 0.35)
"""Factors on both limits of 66B chat, whose published ones leave a modern engine much room."""


def tighter() -> Iterator[Row]:
    """66B chat under tighter limits: where the gain over vLLM begins. DistServe fig. 8 shows the same from below."""
    chat = APPLICATIONS[1]
    for scale in TIGHTER:
        one = replace(chat, ttft_s=scale * chat.ttft_s, tpot_s=scale * chat.tpot_s)
        found, vllm = best(one, tuple(one.placements())), one.goodput(colocated(one.llm, one.rival_tp))
        name = f"{one.llm}, {one.name}, limits x {scale:g}: best placement over vLLM"
        source = "DistServe fig. 8, second row: no ratio of rates is published"
        yield ratio("tighter", name, (math.nan, math.nan), found, vllm, source)


def theory() -> Iterator[Row]:
    """The same goodputs from `evaluate`, where theory has the schedule: DistServe's placement and chunked prefill."""
    for one in APPLICATIONS[:4]:
        for kind, deployment in (
            ("DistServe's placement", disaggregated(one.llm, one.prefill, one.decode)),
            ("chunked prefill", chunked(one.llm, one.rival_tp)),
        ):
            name = f"{one.llm}, {one.name}: {kind}, theory over simulation"
            found = theory_goodput_per_gpu(deployment, one.lengths, slo(one.ttft_s, one.tpot_s))
            yield ratio("theory", name, (math.nan, math.nan), found, one.goodput(deployment), "")


def theory_goodput_per_gpu(deployment: Deployment, lengths: TokenLengths, limits: Slo) -> float:
    """`goodput_per_gpu` from theory."""

    def meets(rate_per_gpu: float) -> bool:
        found = evaluate(deployment, Workload.of(rate_per_gpu * deployment.gpus, lengths))
        return found.stable and found.attainment(limits) >= 0.9

    return largest_rate(meets, 1.0)


MII_GAINS = {"chat": (1.6, 7.4), "code": 1.6, "summaries": 1.8}
"""DistServe sec. 6.2: rate over DeepSpeed-MII."""

FIGURE_1_LENGTHS = TokenLengths.constant(512, 64)
FIGURE_1_SLO = slo(0.4, 0.04)
"""p90 TTFT 0.4 s and p90 TPOT 0.04 s (the figure's lines)."""


def figure_1() -> Iterator[Row]:
    """DistServe fig. 1: one mixed GPU against two for prefill and one for decode."""
    mixed = goodput_per_gpu(colocated("opt-13b", 1), FIGURE_1_LENGTHS, FIGURE_1_SLO)
    split = goodput_per_gpu(disaggregated("opt-13b", (1, 1), (1, 1), (2, 1)), FIGURE_1_LENGTHS, FIGURE_1_SLO)
    name, source = "opt-13b, 512 in, 64 out: ", "DistServe fig. 1 and sec. 1"
    unit = "requests/s per GPU"
    yield value("figure-1", name + "one mixed GPU (sets the host time)", 1.6, mixed, unit, source)
    yield value("figure-1", name + "two prefill and one decode GPU", 3.3, split, unit, source)
    yield ratio("figure-1", name + "two prefill and one decode GPU over mixed ones", 2.1, split, mixed, source)


def does_not_pay() -> Iterator[Row]:
    """DistServe sec. 7: where the mixed deployment has the higher goodput per GPU."""
    for name, lengths, limits, counts in AGAINST:
        split = goodput_per_gpu(disaggregated("opt-13b", (1, 1), (1, 1), counts), lengths, limits)
        for rival, deployment in (("vLLM", colocated("opt-13b", 1)), ("chunked prefill", chunked("opt-13b", 1, 2048))):
            mixed = goodput_per_gpu(deployment, lengths, limits)
            claim = "DistServe sec. 7 (few GPUs, throughput before latency): below 1"
            yield ratio("does-not-pay", f"opt-13b, {name}: DistServe over {rival}", (0.0, 1.0), split, mixed, claim)


AGAINST = (
    ("100 in, 500 out, TTFT 5 s, TPOT 0.2 s, two GPUs", TokenLengths.constant(100, 500), slo(5.0, 0.2), (1, 1)),
    ("1500 in, 20 out, TTFT 5 s, TPOT 0.5 s, two GPUs", TokenLengths.constant(1500, 20), slo(5.0, 0.5), (1, 1)),
)

PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "steps": steps,
    "chunked": chunked_prefill,
    "ablation": ablation,
    "figure-1": figure_1,
    "does-not-pay": does_not_pay,
    "disaggregated": applications,
    "tighter": tighter,
    "theory": theory,
}
DOCUMENTED = ("chunked", "disaggregated")
"""Parts whose tables stand in docs/studies/literature.md."""


def main() -> None:
    """Run parts, print their rows and write them to the file; or print the tables."""
    chosen = sys.argv[1:] or list(PARTS)
    if chosen == ["tables"]:
        print("\n\n".join("\n".join(markdown(part)) for part in PARTS))
        return
    for part in chosen:
        rows = []
        for row in PARTS[part]():
            published = f"{row.published_low:g} to {row.published_high:g}"
            print(f"{row.name}: {published}, ours {row.ours:.3g} {row.unit}", flush=True)
            rows.append(row)
        write(part, rows)


def write(part: str, rows: Sequence[Row]) -> None:
    """Put the results of a part in the place of its earlier ones, numbers to three significant digits."""
    made = [{name: _cell(cell) for name, cell in vars(row).items()} for row in rows]
    kept = {name: made if name == part else [row for row in read() if row["part"] == name] for name in PARTS}
    write_rows(RESULTS, [row for of_part in kept.values() for row in of_part])


def _cell(content: str | float) -> str:
    return content if isinstance(content, str) else "" if math.isnan(content) else f"{content:.3g}"


def read() -> list[dict[str, str]]:
    """The committed results."""
    return read_rows(RESULTS)


def markdown(part: str) -> list[str]:
    """The committed results of one part as lines of a Markdown table."""
    rows = []
    for row in read():
        if row["part"] == part:
            low, high, unit = row["published_low"], row["published_high"], row["unit"].replace("x", "×")
            span = f"below {high}" if low == "0" else high if low == high else f"{low} to {high}"
            rows.append((row["name"], f"{span} {unit}" if low else "–", f"{row['ours']} {unit}"))
    return list(table_lines(("comparison", "published", "ours"), rows))


if __name__ == "__main__":
    main()
