"""What goes into the integer program and what comes out of it. Types only.

Rates are per second, costs are USD per hour; resources are counted in whatever unit their limit is counted in.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from hardware_db.schema import Frozen
from planner.errors import InputError

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
AboveZero = Annotated[float, Field(gt=0, allow_inf_nan=False)]

FEASIBILITY_TOLERANCE = 1e-6
"""A limit counts as met when it is missed by at most this share of it.

Ten HiGHS-default primal tolerances (1e-7, HiGHS option `primal_feasibility_tolerance`): far below any measured rate.
"""


class Objective(StrEnum):
    """What is best."""

    MIN_COST = "min_cost"
    """Least cost [USD/h] that serves the whole demand."""
    MAX_RATE = "max_rate"
    """Greatest served rate [1/s] within the limits (the demand, if given, is a cap); of those the cheapest."""
    MAX_RATE_PER_COST = "max_rate_per_cost"
    """Greatest served rate per cost [1/s per USD/h], a true ratio; of equal ratios the one that serves most."""


class SolveStatus(StrEnum):
    """How a solve ended."""

    OPTIMAL = "optimal"
    """Proved best, to `FEASIBILITY_TOLERANCE`."""
    WITHIN_GAP = "within_gap"
    """Proved to be within the relative gap that was asked for, but not to be best."""
    TIME_LIMIT = "time_limit"
    """The time ran out; the allocation meets every limit, and may or may not be best (or, at `max_rate`, cheapest)."""
    NO_SOLUTION_IN_TIME = "no_solution_in_time"
    """The time ran out before any allocation was found, and before it was proved that there is none."""
    INFEASIBLE = "infeasible"
    """Proved that no allocation serves what must be served within the limits. See `Allocation.diagnosis`."""
    UNBOUNDED = "unbounded"
    """No limit stops the served rate from growing, so there is no best allocation."""

    @property
    def has_allocation(self) -> bool:
        """Whether units and rates were found."""
        return self in (SolveStatus.OPTIMAL, SolveStatus.WITHIN_GAP, SolveStatus.TIME_LIMIT)


class Sense(StrEnum):
    """Direction of a constraint."""

    AT_MOST = "<="
    AT_LEAST = ">="


class CandidatePool(Frozen):
    """Identical units side by side.

    Raises InputError when no unit carries anything: such a pool can never be used.
    """

    name: str = Field(min_length=1)
    rate_per_unit: float = Field(description="sustainable rate of one unit [1/s]; > 0")
    cost_per_unit: NonNegative = Field(description="[USD/h]")
    resources: Mapping[str, NonNegative] = Field(default_factory=dict, description="taken by one unit, by name")
    granularity: int = Field(default=1, ge=1, description="units come in multiples of this, e.g. replicas per server")

    @model_validator(mode="after")
    def _carries_something(self) -> Self:
        if self.rate_per_unit <= 0.0:
            field, fix = f"pool {self.name!r} rate_per_unit", "leave the candidate out: it can never be used"
            raise InputError(field, self.rate_per_unit, "must be > 0 per s", fix)
        return self


class Candidate(Frozen):
    """A chain of pools; every routed request passes through each of them once."""

    name: str = Field(min_length=1)
    pools: tuple[CandidatePool, ...] = Field(min_length=1)


class Limits(Frozen):
    """What the fleet must and may do. None (or an absent resource) means unlimited."""

    demand_per_s: AboveZero | None = Field(
        default=None, description="arrivals [1/s]: min_cost serves all, max_* no more"
    )
    min_rate_per_s: AboveZero | None = Field(default=None, description="rate [1/s] that max_* objectives must serve")
    budget_per_h: NonNegative | None = Field(default=None, description="most cost [USD/h]")
    resources: Mapping[str, NonNegative] = Field(default_factory=dict, description="most of each resource, by name")
    max_units: int | None = Field(default=None, ge=0, description="most units of all pools together")


class ConstraintReport(Frozen):
    """One constraint at the allocation found.

    `slack` is what is left (>= 0 up to rounding). `dual` is the change of the objective per unit of the limit in the
    *LP relaxation* (unit counts may be fractions), because an integer program has no duals; None for
    `max_rate_per_cost`, whose ratio has no linear relaxation.
    """

    name: str = Field(description="name in the program: the constraint's function, then what it is about")
    field: str = Field(description="the input that sets it, e.g. budget_per_h")
    sense: Sense
    limit: float
    used: float
    slack: float
    dual: float | None = None

    @property
    def is_tight(self) -> bool:
        """Nothing is left, or the relaxed program would gain from a looser limit."""
        return self.slack <= FEASIBILITY_TOLERANCE * max(abs(self.limit), abs(self.used)) or bool(self.dual)


class Relaxation(Frozen):
    """The smallest change of one limit, all others kept, that makes the request feasible."""

    name: str = Field(description="constraint")
    field: str = Field(description="the input that sets it")
    limit: float
    needed: float | None = Field(description="nearest limit that is feasible; None: no change of this one alone helps")
    is_proven: bool = Field(default=True, description="False when time ran out: the change may be too large")

    def __str__(self) -> str:
        """For example ``budget_per_h 40 -> 57.3``."""
        change = "no change of it alone helps" if self.needed is None else f"-> {self.needed:.10g}"
        return f"{self.field} {self.limit:.10g} {change}"


class Diagnosis(Frozen):
    """Why there is no allocation."""

    summary: str
    conflict: tuple[str, ...] = Field(
        default=(), description="names of constraints that cannot hold together; dropping any one would do"
    )
    relaxations: tuple[Relaxation, ...] = Field(default=(), description="one for each constraint of the conflict")
    is_proven: bool = Field(default=True, description="False when time ran out: the conflict may not be minimal")


class Allocation(Frozen):
    """The answer. All quantities are recomputed from the integer `units`, never read off the solver."""

    status: SolveStatus
    objective: float | None = Field(default=None, description="USD/h, 1/s, or 1/s per USD/h; None without allocation")
    gap: float | None = Field(default=None, description="proved |best possible - objective| / |objective|, if any")
    units: Mapping[str, int] = Field(default_factory=dict, description="by pool name")
    routed_rate: Mapping[str, float] = Field(default_factory=dict, description="[1/s] by candidate name")
    cost_per_h: float = 0.0
    rate_per_s: float = Field(default=0.0, description="served: the sum of routed rates")
    capacity_per_s: float = Field(default=0.0, description="what the units could carry; >= rate_per_s")
    constraints: tuple[ConstraintReport, ...] = Field(
        default=(), description="every limit, and carry_rate of each pool in use"
    )
    iterates: tuple[float, ...] = Field(default=(), description="max_rate_per_cost: Dinkelbach's rising ratios")
    diagnosis: Diagnosis | None = Field(default=None, description="given when infeasible or unbounded")

    @property
    def binding(self) -> tuple[ConstraintReport, ...]:
        """The limits that hold the objective back (see `ConstraintReport.is_tight`)."""
        return tuple(row for row in self.constraints if row.is_tight and not row.name.startswith("carry_rate__"))
