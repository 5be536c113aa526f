"""What the solver of large fleet problems reaches, by size of the fleet and feature: the table of the docs.

    python -m tests.studies.fleet_large

Prints one line a problem: what was asked, seconds of the processor, cost, bound and proved gap. Every fleet is checked
by plain loops. Without a time limit, so that cost and bound are the same on every machine.
"""

from __future__ import annotations

import time

from planner.optimizer.large import solve_large
from tests.optimizer.test_large import hard_instance, violations

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
)


def main() -> None:
    """Solve every case and print its row."""
    print("| problem | seconds | cost USD/h | bound USD/h | gap | proved to 0.5 % |")
    print("|---|---|---|---|---|---|")
    for name, shape in CASES:
        problem = hard_instance(**shape)  # type: ignore[arg-type]
        begin = time.process_time()
        answer = solve_large(problem, relative_gap=GAP)
        seconds = time.process_time() - begin
        assert answer is not None and not (answer.has_fleet and list(violations(problem, answer)))
        figures = f"{answer.cost_usd_per_hour:,.2f} | {answer.lower_bound:,.2f} | {100.0 * answer.gap:.2f} %"
        print(f"| {name} | {seconds:.1f} | {figures} | {'yes' if answer.proven else 'no'} |", flush=True)


if __name__ == "__main__":
    main()
