"""What the program of a fleet takes for kinds of requests: models, classes, length cells, quotas, by instance.

    python -m tests.studies.fleet_kinds [--only "four models"] [--keep FOLDER]    # writes fleet_kinds.csv, two minutes
    python -m tests.studies.fleet_kinds --replay FOLDER/FILE [--every 3]

Each kind is a plan by theory of `chat-llama-70b` with more to it, in a process of its own. One row a plan: how many
programs, CPU seconds in the optimizer (compiled before, see `warm`), of the longest program, the largest gap of one,
how many were cut short, CPU seconds of all, cost and gap of the fleet. `--keep` writes the programs of each plan down,
and `--replay` solves them again: seconds, how they end, and the sums of costs and of bounds.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import pickle
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import planner.fleet.program
from planner.fleet import Plan, plan
from planner.optimizer import Allocation, FleetProblem, Objective, solve
from planner.scenario import load_scenario

RESULTS = Path(__file__).with_suffix(".csv")
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


@dataclass
class Recorder:
    """`solve`, which takes the time of every program that a plan asks.

    Attributes:
        programs: what was asked, where they are kept.
        seconds: of the processor, of each.
        answers: of each.
    """

    is_kept: bool = False
    programs: list[tuple[FleetProblem, dict[str, Any]]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    answers: list[Allocation] = field(default_factory=list)

    def solve(self, problem: FleetProblem, **asked: Any) -> Allocation:
        """The answer, its time taken."""
        if self.is_kept:
            self.programs.append((problem, asked))
        begin = time.process_time()
        answer = solve(problem, **asked)
        self.seconds.append(time.process_time() - begin)
        self.answers.append(answer)
        return answer


def planned(kind: str, recorder: Recorder) -> tuple[Plan, float]:
    """The plan of a kind, and its CPU seconds; programs of it go through a recorder."""
    request = load_scenario("chat-llama-70b", KINDS[kind])
    program: Any = planner.fleet.program
    before, program.solve = program.solve, recorder.solve
    begin = time.process_time()
    try:
        found = plan(request, simulate=False, alternatives=False)
    finally:
        program.solve = before
    return found, time.process_time() - begin


def row(kind: str, folder: Path | None) -> list[str]:
    """One plan."""
    recorder = Recorder(is_kept=folder is not None)
    found, seconds = planned(kind, recorder)
    if folder is not None:
        (folder / f"{kind.replace('/', ' per ')}.pickle").write_bytes(pickle.dumps(recorder.programs))
    gaps = [100.0 * answer.gap for answer in recorder.answers if answer.gap is not None]
    cut_short = sum(answer.status.is_cut_short for answer in recorder.answers)
    allocation = found.allocation
    assert allocation is not None
    return [
        kind,
        str(len(recorder.answers)),
        f"{sum(recorder.seconds):.1f}",
        f"{max(recorder.seconds):.1f}",
        f"{max(gaps):.2f}",
        str(cut_short),
        f"{seconds:.1f}",
        f"{allocation.cost_usd_per_hour:.2f}",
        f"{100.0 * (allocation.gap or 0.0):.2f}",
        allocation.status.value,
    ]


def replay(programs: Sequence[tuple[FleetProblem, dict[str, Any]]], solved: Callable[..., Allocation] = solve) -> str:
    """Programs solved again: CPU seconds, how they end, and the sums of their costs and bounds [USD/h]."""
    statuses: Counter[str] = Counter()
    seconds = usd = bounds = worst = 0.0
    for problem, asked in programs:
        begin = time.process_time()
        answer = solved(problem, **asked)
        seconds += time.process_time() - begin
        statuses[answer.status.value] += 1
        if asked["objective"] is Objective.MIN_COST and answer.objective is not None and answer.gap is not None:
            usd += answer.objective
            bounds += answer.objective * (1.0 - answer.gap)
            worst = max(worst, answer.gap)
    ends = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    return (
        f"{len(programs)} programs, {seconds:.2f} s, {ends}; {usd:.2f} USD/h, {bounds:.2f} proved, {worst:.2%} at most"
    )


def warm() -> None:
    """Compile what is compiled at its first call, in a process whose time is nobody's."""
    planned("as it is", Recorder())


def main() -> None:
    """Plan every kind in a process of its own and write its row; or solve programs again that were kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=KINDS)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--every", type=int, default=1)
    chosen = parser.parse_args()
    if chosen.replay:
        print(replay(pickle.loads(chosen.replay.read_bytes())[:: chosen.every]))
        return
    head = "kind,programs,optimizer_s,longest_s,largest_gap_percent,cut_short,cpu_s,usd_per_hour,gap_percent,status"
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        pool.apply(warm)
        rows = []
        for kind in chosen.only or KINDS:
            rows.append(pool.apply(row, (kind, chosen.keep)))
            print(*rows[-1], sep=" | ", flush=True)
    if not chosen.only:
        with RESULTS.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([head.split(","), *rows])


if __name__ == "__main__":
    main()
