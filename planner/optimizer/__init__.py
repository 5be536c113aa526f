"""The integer program that chooses the fleet: candidates in, integer pool sizes out. Knows no tokens and no GPUs.

A *pool* has a rate, a cost and resources per unit. A *candidate* is a chain of pools that all carry the same routed
rate (one pool when mixed, a prefill and a decode pool when disaggregated). With n units of each pool p [integer] and
the rate f routed to each candidate c [1/s]:

    min_cost            least    sum_p cost_p n_p                        so that the demand is served
    max_rate            greatest sum_c f_c, then least cost              within the limits, demand as a cap
    max_rate_per_cost   greatest (sum_c f_c) / (sum_p cost_p n_p)        within the limits, demand as a cap

subject to one function per constraint (`planner.optimizer.constraints`): `serve_demand`, `cap_at_demand`,
`serve_minimum`, `carry_rate`, `within_budget`, `within_resource`, `within_units`. The same names stand in the
program, in the report and in the documentation.

>>> pool = CandidatePool(name="a", rate_per_unit=4.0, cost_per_unit=2.5)
>>> answer = solve([Candidate(name="a", pools=(pool,))], Limits(demand_per_s=10.0), Objective.MIN_COST)
>>> answer.status.value, answer.units, answer.cost_per_h
('optimal', {'a': 3}, 7.5)
"""

from __future__ import annotations

from planner.optimizer.dominance import dominated
from planner.optimizer.highs import to_pulp
from planner.optimizer.program import Program, build
from planner.optimizer.solving import solve
from planner.optimizer.types import (
    Allocation,
    Candidate,
    CandidatePool,
    ConstraintReport,
    Diagnosis,
    Limits,
    Objective,
    Relaxation,
    Sense,
    SolveStatus,
)

__all__ = [
    "Allocation",
    "Candidate",
    "CandidatePool",
    "ConstraintReport",
    "Diagnosis",
    "Limits",
    "Objective",
    "Program",
    "Relaxation",
    "Sense",
    "SolveStatus",
    "build",
    "dominated",
    "solve",
    "to_pulp",
]
