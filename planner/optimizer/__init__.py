"""The integer program that chooses the fleet: units, slices of demand and purchase options in, whole numbers out.

Knows no tokens and no GPUs. A *unit* is a pool of given size with a rate for every *slice* of the demand it can serve;
units take *resources*, which are bought by *purchases*; demand and fleet move over *periods* that repeat. With n units
on [integer], rates f routed to them [1/s] and b blocks of resources bought [integer]:

    min_cost            least    mean cost of units, purchases and starts       so that the demand is served
    max_rate            greatest mean served rate, then least cost              within the limits, demand as a cap
    max_rate_per_cost   greatest mean served rate / mean cost                   within the limits, demand as a cap

subject to one function per constraint (`planner.optimizer.constraints`), whose names stand in the program, in the
report and in the documentation.

Least cost is tried from what is cheap to prove to what is not, and the best fleet and the highest bound are kept:
streams by themselves (`covering`), periods by themselves (`periods`), then one program by HiGHS with that fleet as its
start (`highs`). All limits are on work, counted the same on every machine, unless the caller sets one in seconds.

>>> chat = Slice(name="chat", demand_per_s=(10.0,))
>>> unit = Unit(name="a", rates_per_s={"chat": 4.0}, takes={"gpu": 2.0})
>>> gpus = Resource(name="gpu", purchases=(Purchase(name="on_demand", usd_per_hour=1.25),))
>>> answer = solve(FleetProblem(slices=(chat,), units=(unit,), resources=(gpus,)), Objective.MIN_COST)
>>> answer.status.value, answer.units, answer.bought, answer.cost_usd_per_hour
('optimal', {'a': (3,)}, {'gpu': {'on_demand': (6.0,)}}, 7.5)
"""

from __future__ import annotations

from planner.optimizer.highs import OWN_SOLVER
from planner.optimizer.solving import WORK, solve, write_program
from planner.optimizer.types import (
    ALWAYS,
    FEASIBILITY_TOLERANCE,
    Allocation,
    ConstraintReport,
    Diagnosis,
    FleetProblem,
    Objective,
    Period,
    Purchase,
    Relaxation,
    Resource,
    Slice,
    SolveStatus,
    Unit,
    UnitStage,
)
