"""Does a plan for 90 % confidence hold with 90 % where step times are uncertain, and what does knowing them save?

`python -m tests.studies.confidence` plans each case once from the estimates and judges that fleet in 200 worlds: step
times drawn from what they may be off by, other draws than those the plan was made with. It prints and writes, for each
case (`confidence.csv`): the share of worlds in which every target holds by theory; in the first `SIMULATED` of them
also by simulation; and what the fleet costs beside the mean cost of fleets planned in the first `CLAIRVOYANT` worlds
with step times known, those left out in which no fleet holds. `--cost [QUESTION ...]` plans the questions of
`decisions.yaml` by theory, for the estimates and for 90 %, and writes what they cost (`confidence_cost.csv`).
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from planner.analysis.headline import fleet_words
from planner.core import rebuilt
from planner.engine import ReplicaConfig, StepTimeShift
from planner.fleet import PlanRequest, plan
from planner.fleet import confidence as draws
from planner.fleet.market import market_of
from planner.fleet.program import search_fleet
from planner.fleet.search import find_fleet
from planner.fleet.simulation import run_of
from planner.fleet.verification import violated_metrics, with_run
from planner.scenario import load_scenario
from planner.search import ShiftRule
from planner.serving import Role, drawn_shifts, replica_spreads
from tests.builders import HARDWARE
from tests.studies.decisions import QUESTIONS
from tests.studies.rows import read_rows, write_rows

WORLDS, SIMULATED, CLAIRVOYANT = 200, 40, 30
SEED = 2026
RESULTS = Path(__file__).with_name("confidence.csv")
COSTS = Path(__file__).with_name("confidence_cost.csv")
CHAT: dict[str, Any] = {
    "name": "chat",
    "confidence": 0.9,
    "llm": "llama-3.1-8b",
    "workload": {"rate_per_s": 600.0, "drift": "none", "lengths": {"input_tokens": 1000, "output_tokens": 200}},
    "slo": [
        {"metric": "ttft", "percentile": 0.95, "threshold_s": 0.5},
        {"metric": "tpot", "percentile": 0.95, "threshold_s": 0.025},
    ],
    "prices": {"as_of": "2026-11-21", "usd_per_gpu_hour": {"h100-sxm": 2.5, "l40s": 0.9, "h200-sxm": 3.0}},
}
CASES: dict[str, dict[str, Any]] = {
    "one SKU": {"search": {"skus": ["h100-sxm"], "modes": ["mixed"], "tp": [1]}},
    "two SKUs": {
        "search": {"skus": ["h100-sxm", "h200-sxm"], "modes": ["mixed"], "tp": [1]},
        "limits": {"gpus": {"h100-sxm": 16, "h200-sxm": 16}},
    },
    "disaggregated": {"search": {"skus": ["h100-sxm"], "modes": ["disaggregated"], "tp": [1]}},
}


def request_of(case: str) -> PlanRequest:
    """What is planned."""
    return load_scenario({**CHAT, **CASES[case]})


def judged(case: str) -> dict[str, Any]:
    """The row of a case."""
    request = request_of(case)
    found = plan(request, HARDWARE, alternatives=False)
    assert found.cost is not None and found.confidence is not None
    search = search_fleet(request, market_of(request, HARDWARE), request.all_services)
    holds, simulated = np.ones(WORLDS, dtype=bool), np.ones(SIMULATED, dtype=bool)
    for planned in found.deployments:
        judge = draws._Judge(planned, search.slos, SEED, {}, *draws.rate_factors([planned], search.slos))
        holds &= judge.holds(None)[:WORLDS]
        for world in range(SIMULATED):
            true = judge._at(judge.logs[world])
            run = run_of(true.surviving, planned.workload, 10_000, true.predicted)
            played = with_run(replace(true, workload=planned.workload), run, world, lambda _: None)
            simulated[world] &= not violated_metrics(played, search.slos, by_theory=False)
    known_usd = [clairvoyant_usd(request, world) for world in range(CLAIRVOYANT)]
    return {
        "case": case,
        "fleet": " + ".join(planned.deployment.summary for planned in found.deployments),
        "usd_per_hour": round(found.cost.usd_per_hour, 2),
        "says": round(found.confidence.holds, 3),
        "worlds": WORLDS,
        "holds": round(float(holds.mean()), 3),
        "simulated": SIMULATED,
        "holds_simulated": round(float(simulated.mean()), 3),
        "clairvoyant": int(np.isfinite(known_usd).sum()),
        "clairvoyant_usd": round(float(np.nanmean(known_usd)), 2),
    }


def drawn_rule(world: int) -> ShiftRule:
    """Step times as one world has them."""

    def shift_of(config: ReplicaConfig, role: Role, mean_input: float, mean_output: float) -> StepTimeShift | None:
        spreads = replica_spreads(config, role, mean_input, mean_output)
        if spreads is None:
            return None
        of_worlds = drawn_shifts(spreads, draws._normals_of(config, role is Role.MIXED, SEED))
        return spreads.shift(*map(float, of_worlds[world]))

    return shift_of


def clairvoyant_usd(request: PlanRequest, world: int) -> float:
    """Cost of the fleet planned by theory where the step times of a world are known [USD/h]; nan where none holds."""
    market = market_of(request, HARDWARE)
    search = search_fleet(request, market, request.all_services, shift_of=drawn_rule(world))
    allocation = find_fleet(search, simulate=False).allocation
    return math.nan if allocation is None else allocation.cost_usd_per_hour


def cost_of(question: str) -> dict[str, Any]:
    """The fleet of one of the twenty questions by theory, for the estimates and for 90 %."""
    scenario = QUESTIONS[question]
    request = load_scenario(scenario if isinstance(scenario, str) else {"name": question, **scenario})
    row: dict[str, Any] = {"question": question}
    for confidence in (0.5, 0.9):
        found = plan(rebuilt(request, confidence=confidence), HARDWARE, simulate=False, alternatives=False)
        share = f"{100.0 * confidence:.0f}"
        row[f"usd_per_hour_{share}"] = round(found.cost.usd_per_hour, 2) if found.cost is not None else ""
        row[f"fleet_{share}"] = fleet_words(found) if found.cost is not None else "none"
    return row


def write_costs(questions: list[str]) -> None:
    """Plan the questions named, or all, and write what confidence costs after each."""
    for question in questions or list(QUESTIONS):
        row = cost_of(question)
        print(row, flush=True)
        known = {one["question"]: one for one in read_rows(COSTS)} | {question: row}
        write_rows(COSTS, [known[name] for name in QUESTIONS if name in known])


def main(cases: list[str]) -> None:
    """Judge the cases named, or all, and write what was found after each."""
    if cases[:1] == ["--cost"]:
        write_costs(cases[1:])
        return
    rows = read_rows(RESULTS)
    for case in cases or list(CASES):
        row = judged(case)
        print(row, flush=True)
        rows = [known for known in rows if known["case"] != case] + [row]
        write_rows(RESULTS, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
