"""What the integer program of a fleet takes: in plans of many kinds, and on problems too large for one solver run.

    python -m tests.studies.fleet_programs plans     # writes fleet_kinds.csv, two minutes
    python -m tests.studies.fleet_programs large     # writes fleet_large.csv, half an hour

Each row is made in a process of its own. *Plans* are by theory, of `chat-llama-70b` with more to it: programs, CPU
seconds in the optimizer (compiled before), of the longest program, the largest gap of one, how many were cut short, CPU
seconds of all, cost and gap of the fleet. *Large* problems are checked by plain loops and have no time limit, so that
cost and bound are the same on every machine: units, slices, periods, rates to route, CPU seconds, peak memory, cost,
bound and gap.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import planner.fleet.program
from planner.fleet import plan
from planner.optimizer import Allocation, FleetProblem, Objective, solve
from planner.scenario import load_scenario
from tests.optimizer.large_problems import hard_instance, violations
from tests.studies.rows import write_rows

FOLDER = Path(__file__).parent
GAP = 0.005
STEADY = ["workload.scv=1", "workload.drift=null"]
TARGETS = (
    "slo: [{metric: ttft, percentile: 0.99, threshold_s: 1.0}, {metric: tpot, percentile: 0.99, threshold_s: 0.05}]"
)


def _service(name: str, llm: str, rate_per_s: float, lengths: str = "azure-2023-conv") -> str:
    return f"{{name: {name}, llm: {llm}, workload: {{rate_per_s: {rate_per_s}, lengths: {lengths}}}, {TARGETS}}}"


def _services(*services: str) -> str:
    return f"services=[{', '.join(services)}]"


SMALL = _service("small", "llama-3.1-8b", 60)
MIDDLE = _service("middle", "qwen3-32b", 20)
CODE = _service("code", "qwen2.5-7b", 30, "azure-2023-code")
CLASSES = """workload={rate_per_s: 40, classes: [
  {name: chat, share: 0.6, lengths: azure-2023-conv},
  {name: code, share: 0.3, lengths: azure-2023-code},
  {name: documents, share: 0.1, lengths: {input_tokens: 6000, output_tokens: 300}}]}"""
KINDS: dict[str, list[str]] = {
    "as it is": [],
    "steady, 40 requests/s": STEADY,
    "steady, 150 requests/s": [*STEADY, "workload.rate_per_s=150"],
    "two models": [_services(SMALL)],
    "two models, 400 and 600 requests/s": [
        "workload.rate_per_s=400",
        _services(_service("small", "llama-3.1-8b", 600)),
    ],
    "three models, two SKUs at most": [_services(SMALL, MIDDLE), "limits.skus_at_most=2"],
    "four models": [_services(SMALL, MIDDLE, CODE)],
    "three models under quotas": [
        _services(_service("small", "llama-3.1-8b", 200), _service("middle", "qwen3-32b", 60)),
        "workload.rate_per_s=120",
        "limits.gpus={b200-sxm: 16, h200-sxm: 16, h100-sxm: 32, mi300x: 8, l40s: 16}",
    ],
    "three models in whole nodes": [_services(SMALL, MIDDLE), "prices.granularity=node"],
    "six length cells": ["split={input_tokens: [500, 2000], output_tokens: [200]}"],
    "three classes, each for itself": [CLASSES, "by_class=true"],
}
"""By name, what is set of the scenario. Rates, lengths, cuts and quotas are choices."""


def plan_row(kind: str) -> dict[str, object]:
    """One plan, every program that it asks for timed."""
    answers: list[Allocation] = []
    seconds: list[float] = []

    def timed(problem: FleetProblem, **asked: Any) -> Allocation:
        begin = time.process_time()
        answers.append(solve(problem, **asked))
        seconds.append(time.process_time() - begin)
        return answers[-1]

    program: Any = planner.fleet.program
    program.solve = timed
    request, begin = load_scenario("chat-llama-70b", KINDS[kind]), time.process_time()
    allocation = plan(request, simulate=False, alternatives=False).allocation
    assert allocation is not None
    return {
        "kind": kind,
        "programs": len(answers),
        "optimizer_s": f"{sum(seconds):.1f}",
        "longest_s": f"{max(seconds):.1f}",
        "largest_gap_percent": f"{max(100.0 * answer.gap for answer in answers if answer.gap is not None):.2f}",
        "cut_short": sum(answer.status.is_cut_short for answer in answers),
        "cpu_s": f"{time.process_time() - begin:.1f}",
        "usd_per_hour": f"{allocation.cost_usd_per_hour:.2f}",
        "gap_percent": f"{100.0 * (allocation.gap or 0.0):.2f}",
        "status": allocation.status.value,
    }


CASES: tuple[tuple[str, dict[str, object]], ...] = (
    *((f"1,500 GPUs, seed {seed}", {"seed": seed}) for seed in range(1, 6)),
    ("3,000 GPUs, seed 3", {"seed": 3, "gpus": 3000.0}),
    ("300 GPUs, seed 1", {"seed": 1, "gpus": 300.0}),
    ("60 GPUs, seed 1", {"seed": 1, "gpus": 60.0}),
    ("1,500 GPUs, prefill and decode pools", {"seed": 1, "disaggregated": True}),
    ("1,500 GPUs, rates not proportional", {"seed": 1, "proportional": False}),
    ("1,500 GPUs, starts cost 5 minutes", {"seed": 1, "starts": True}),
    ("200 GPUs, 12 slices", {"seed": 3, "gpus": 200.0, "families": 150, "slices": 12}),
    ("1,000 GPUs, 12 slices, one period", {"seed": 3, "gpus": 1000.0, "families": 150, "slices": 12, "periods": 1}),
    *(
        (f"{n} families, 6 slices, 24 hours", {"seed": 3, "gpus": 300.0, "families": n, "slices": 6})
        for n in (25, 50, 100, 200)
    ),
    *(
        (f"100 families, {n} slices, 24 hours", {"seed": 3, "gpus": 300.0, "families": 100, "slices": n})
        for n in (3, 12, 24)
    ),
    *(
        (f"100 families, 6 slices, {n} hours", {"seed": 3, "gpus": 300.0, "families": 100, "slices": 6, "periods": n})
        for n in (3, 6, 12, 48)
    ),
    *(
        (f"{n} GPUs, 100 families, 6 slices, 24 hours", {"seed": 3, "gpus": n, "families": 100, "slices": 6})
        for n in (30.0, 3e3, 3e5)
    ),
)
"""Pools of the rows with families have 1 to 5 replicas, those of the others 1 to 20."""


def large_row(name: str, shape: dict[str, object]) -> dict[str, object]:
    """One problem solved and checked."""
    problem = hard_instance(**({"sizes": 5} if "families" in name else {}), **shape)  # type: ignore[arg-type]
    begin = time.process_time()
    answer = solve(problem, Objective.MIN_COST, relative_gap=GAP)
    seconds = time.process_time() - begin
    assert not answer.status.has_allocation or not list(violations(problem, answer))
    gap, usd = float("nan") if answer.gap is None else answer.gap, answer.cost_usd_per_hour
    return {
        "problem": name,
        "units": len(problem.units),
        "slices": len(problem.slices),
        "periods": len(problem.periods),
        "rates": sum(len(unit.rates_per_s) for unit in problem.units) * len(problem.periods),
        "cpu_s": f"{seconds:.1f}",
        "peak_mb": f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f}",
        "usd_per_hour": f"{usd:.2f}",
        "bound_usd_per_hour": f"{usd * (1.0 - gap):.2f}",
        "gap_percent": f"{100.0 * gap:.2f}",
        "status": answer.status.value,
    }


def main(what: str) -> None:
    """Make every row in a process of its own."""
    jobs: Iterable[Callable[[], dict[str, object]]] = [partial(large_row, *case) for case in CASES]
    path = FOLDER / "fleet_large.csv"
    if what == "plans":
        jobs, path = [partial(plan_row, kind) for kind in KINDS], FOLDER / "fleet_kinds.csv"
    rows: list[dict[str, object]] = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        if what == "plans":  # what is compiled at its first call is compiled in a process whose time is nobody's
            pool.apply(plan_row, (next(iter(KINDS)),))
        for job in jobs:
            rows.append(pool.apply(job))
            print(*rows[-1].values(), sep=" | ", flush=True)
            write_rows(path, rows)


if __name__ == "__main__":
    main(sys.argv[1])
