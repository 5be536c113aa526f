"""What the program reaches on fleet problems too large for one run of the solver, by size and feature of the fleet.

    python -m tests.studies.fleet_large      # writes fleet_large.csv, half an hour

One row a problem: units, slices, periods, rates to route, seconds of the processor, peak memory, cost, bound and gap.
Every fleet is checked by plain loops. Without a time limit, so that cost and bound are the same on every machine.
"""

from __future__ import annotations

import csv
import multiprocessing
import resource
import time
from pathlib import Path

from planner.optimizer import Objective, solve
from tests.optimizer.large_problems import hard_instance, violations

RESULTS = Path(__file__).with_suffix(".csv")
GAP = 0.005
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


def row(name: str, shape: dict[str, object]) -> list[str]:
    """One problem solved and checked."""
    problem = hard_instance(**({"sizes": 5} if "families" in name else {}), **shape)  # type: ignore[arg-type]
    begin = time.process_time()
    answer = solve(problem, Objective.MIN_COST, relative_gap=GAP)
    seconds = time.process_time() - begin
    assert not answer.status.has_allocation or not list(violations(problem, answer))
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    sizes = (len(problem.units), len(problem.slices), len(problem.periods))
    rates = sum(len(unit.rates_per_s) for unit in problem.units) * len(problem.periods)
    gap = float("nan") if answer.gap is None else answer.gap
    usd = answer.cost_usd_per_hour
    figures = (f"{seconds:.1f}", f"{megabytes:.0f}", f"{usd:.2f}", f"{usd * (1.0 - gap):.2f}", f"{100.0 * gap:.2f}")
    return [name, *map(str, sizes), str(rates), *figures, answer.status.value]


def main() -> None:
    """Solve every case in a process of its own and write its row."""
    head = "problem,units,slices,periods,rates,cpu_s,peak_mb,usd_per_hour,bound_usd_per_hour,gap_percent,status"
    with (
        RESULTS.open("w", newline="") as file,
        multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head.split(","))
        for case in CASES:
            writer.writerow(pool.apply(row, case))
            file.flush()


if __name__ == "__main__":
    main()
