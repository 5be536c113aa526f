"""Input and output of the integer program. Types only.

Rates are per second, money is USD per hour (the mean over the horizon), resources are counted in whatever unit their
limit is counted in. A quantity "by period" has one entry for each of `FleetProblem.periods`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from planner.core import Frozen, InputError

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
AboveZero = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]

FEASIBILITY_TOLERANCE = 1e-6
"""A limit counts as met when it is missed by at most this share of it.

Ten HiGHS-default primal tolerances (1e-7, HiGHS option `primal_feasibility_tolerance`): far below any measured rate.
"""

SHOWN_DIGITS = 5
"""Significant digits of the change of a limit that is not whole: cents of a hundred dollars."""


class Objective(StrEnum):
    """Criterion of the best fleet. Rates and costs are means over the horizon."""

    MIN_COST = "min_cost"
    """Least cost [USD/h] that serves the whole demand."""
    MAX_RATE = "max_rate"
    """Greatest served rate [1/s] within the limits (the demand is a cap); of those the cheapest."""
    MAX_RATE_PER_COST = "max_rate_per_cost"
    """Greatest served rate per cost [1/s per USD/h], a true ratio; of equal ratios the one that serves most."""


class SolveStatus(StrEnum):
    """How a solve ended."""

    OPTIMAL = "optimal"
    """Proved best, to `FEASIBILITY_TOLERANCE`."""
    WITHIN_GAP = "within_gap"
    """Proved to be within the relative gap that was asked for, but not to be best."""
    TIME_LIMIT = "time_limit"
    """The time given ran out; the allocation meets every limit, but may not be best (or, at `max_rate`, cheapest)."""
    WORK_LIMIT = "work_limit"
    """The same after as much work as is done at most, which is the same on every machine."""
    NO_SOLUTION_IN_TIME = "no_solution_in_time"
    """Time or work ran out before any allocation was found, and before it was proved that there is none."""
    INFEASIBLE = "infeasible"
    """Proved that no allocation serves what must be served within the limits. See `Allocation.diagnosis`."""

    @property
    def has_allocation(self) -> bool:
        """True if units and rates were found."""
        return self in (SolveStatus.OPTIMAL, SolveStatus.WITHIN_GAP) or self.is_cut_short

    @property
    def is_cut_short(self) -> bool:
        """True if there is an allocation that more time or work might have improved."""
        return self in (SolveStatus.TIME_LIMIT, SolveStatus.WORK_LIMIT)


class Sense(StrEnum):
    """Direction of a constraint."""

    AT_MOST = "<="
    AT_LEAST = ">="


class Period(Frozen):
    """A stretch in which demand and fleet stand still. The horizon repeats: the last comes before the first."""

    name: str = Field(min_length=1)
    hours: AboveZero = 1.0


ALWAYS = Period(name="always")


class Slice(Frozen):
    """A stream of requests that may be routed in parts: one row of the demand.

    `demand_per_s` is by period. A deferrable slice is work that may wait: only its total over the horizon counts.
    """

    name: str = Field(min_length=1)
    demand_per_s: tuple[NonNegative, ...]
    deferrable: bool = False


class UnitStage(StrEnum):
    """Which part of the service a unit does."""

    WHOLE = "whole"
    """All of it."""
    FIRST = "first"
    """The first half; its requests pass to units of the second half."""
    SECOND = "second"
    """The second half of the requests that units of the first half pass on."""


class Unit(Frozen):
    """A pool of given size as one thing that is bought whole numbers of.

    A unit that serves several slices spends the share f / rate of itself on each: sum_s f_s / rate_s <= units on. What
    is served of a slice is what units of the stages WHOLE and FIRST carry; of every slice and channel, units of stage
    SECOND carry as much as those of stage FIRST.

    Attributes:
        name: unique.
        stage: part of the service.
        channel: requests pass from FIRST to SECOND within one channel only (e.g. a format of KV caches).
        kind: in each channel all units of stage FIRST that are on in any period are of one kind, and all of stage
            SECOND; an empty one goes with every other. (Pools that share partners are set up alike.)
        rates_per_s: by slice, what one unit carries if it serves that slice alone [1/s]; absent: it cannot serve it.
        takes: of each resource, by name, while on (GPUs, kW, kg CO2e/h ...).
        usd_per_hour: cost while on, besides that of the resources.
        usd_per_start: cost of switching one unit on (the time its resources are held before it serves).
        steady: as many in every period.
        marks: what it has in common with others, for each of which a fleet may be charged once (`FleetProblem.charge`).
    """

    name: str = Field(min_length=1)
    stage: UnitStage = UnitStage.WHOLE
    channel: str = ""
    kind: str = ""
    rates_per_s: Mapping[str, AboveZero] = Field(min_length=1)
    takes: Mapping[str, NonNegative] = Field(default_factory=dict)
    usd_per_hour: NonNegative = 0.0
    usd_per_start: NonNegative = 0.0
    steady: bool = False
    marks: tuple[str, ...] = ()


class Purchase(Frozen):
    """One purchase option of a resource.

    Attributes:
        name: unique within the resource, e.g. ``reserved_1yr``.
        usd_per_hour: of one unit of the resource.
        committed: bought for the whole horizon and paid whether used or not; otherwise bought by period.
        block: bought in whole multiples of this many.
        at_most: units of the resource.
        usable_share: of what is bought, the rest being headroom (spot).
    """

    name: str = Field(min_length=1)
    usd_per_hour: NonNegative
    committed: bool = False
    block: int = Field(default=1, ge=1)
    at_most: NonNegative | None = None
    usable_share: Share = 1.0


class Resource(Frozen):
    """A resource that units take. Without purchases it costs nothing and is only limited.

    Attributes:
        name: unique.
        purchases: options to get it; what units take must have been bought.
        at_most: most in use in any period.
        at_least: fewest bought in every period (pinned).
        group: what counts as one for `FleetProblem.max_groups`, e.g. the SKU; empty: nothing.
    """

    name: str = Field(min_length=1)
    purchases: tuple[Purchase, ...] = ()
    at_most: NonNegative | None = None
    at_least: NonNegative = 0.0
    group: str = ""


class FleetProblem(Frozen):
    """The whole question, in plain numbers. None means unlimited."""

    slices: tuple[Slice, ...] = Field(min_length=1)
    units: tuple[Unit, ...]
    resources: tuple[Resource, ...] = ()
    periods: tuple[Period, ...] = Field(default=(ALWAYS,), min_length=1)
    budget_usd_per_hour: NonNegative | None = Field(default=None, description="most mean cost [USD/h]")
    min_rate_per_s: AboveZero | None = Field(default=None, description="mean rate that max_* objectives must serve")
    max_groups: int | None = Field(default=None, ge=1, description="most groups of resources in use")
    charge: NonNegative = Field(default=0.0, description="of each mark in use [USD/h, or 1/s of a rate]")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        count = len(self.periods)
        for slice_ in self.slices:
            if len(slice_.demand_per_s) != count:
                bound = f"needs one value for each of {count} periods"
                raise InputError(f"slice {slice_.name!r} demand_per_s", len(slice_.demand_per_s), bound)
        return self

    @property
    def hours(self) -> float:
        """Length of the horizon [h]."""
        return sum(period.hours for period in self.periods)


class ConstraintReport(Frozen):
    """One constraint at the allocation found, over all periods: the period in which least is left.

    `slack` is what is left (>= 0 up to rounding). `dual` is the change of the objective per unit of the limit (moved in
    all periods at once) in the *LP relaxation* (unit counts may be fractions), because an integer program has no
    duals; None for `max_rate_per_cost`, whose ratio has no linear relaxation.
    """

    name: str = Field(description="name in the program: the constraint's function, then what it is about")
    field: str = Field(description="the input that sets it, e.g. budget_usd_per_hour")
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
    is_proven: bool = Field(default=True, description="False when the work ran out: the change may be too large")

    def __str__(self) -> str:
        """For example ``budget_usd_per_hour 40 -> 57.3``; rounded so that what is said is enough."""
        change = "no change of it alone helps" if self.needed is None else f"-> {self._shown(self.needed):.10g}"
        return f"{self.field} {self.limit:.10g} {change}"

    def _shown(self, needed: float) -> float:
        if needed == round(needed):
            return needed
        cell = 10.0 ** (math.floor(math.log10(abs(needed))) + 1 - SHOWN_DIGITS)
        away = math.ceil if needed > self.limit else math.floor
        return float(away(round(needed / cell, 6)) * cell)


class Diagnosis(Frozen):
    """Why there is no allocation."""

    conflict: tuple[str, ...] = Field(
        default=(), description="names of constraints that cannot hold together; dropping any one would do"
    )
    fields: tuple[str, ...] = Field(default=(), description="of each, the input that sets it")
    relaxations: tuple[Relaxation, ...] = Field(default=(), description="one for each constraint of the conflict")
    is_proven: bool = Field(default=True, description="False when the work ran out: the conflict may not be minimal")
    note: str = Field(default="", description="what there is to say where no change was looked for")

    @property
    def summary(self) -> str:
        """The inputs that conflict, and the changes of which any one is enough."""
        if not self.fields:
            return self.note
        together = f"{', '.join(self.fields[:-1])} and {self.fields[-1]}" if len(self.fields) > 1 else self.fields[0]
        together += " cannot hold together" if len(self.fields) > 1 else " cannot hold"
        if self.note:
            return together + self.note
        helpful = [str(relaxation) for relaxation in self.relaxations if relaxation.needed is not None]
        change = "no change of one of them alone is enough" if len(self.fields) > 1 else "no change of it is enough"
        remedy = f"enough is any of: {'; '.join(helpful)}" if helpful else change
        if not self.is_proven:
            remedy = (
                f"{remedy if helpful else 'no way out found yet'} (the search was cut short: a smaller change may do)"
            )
        return f"{together}; {remedy}"


class Allocation(Frozen):
    """The answer. All quantities are recomputed from the whole numbers of units, never read off the solver.

    Attributes:
        status: how the solve ended.
        objective: USD/h, 1/s, or 1/s per USD/h, `FleetProblem.charge` included; None without allocation.
        gap: proved |best possible - objective| / |objective|, if any.
        units: by unit, how many are on in each period; only units in use.
        bought: by resource and purchase, how much is held in each period; only what is bought.
        routed_per_s: by unit and slice, the rate in each period [1/s]; every unit on that serves the same slices is
            equally loaded as far as the units allow.
        cost_usd_per_hour: mean over the horizon [USD/h], starts included.
        starts_usd_per_hour: of that, for switching units on.
        rate_per_s: served, mean over the horizon [1/s].
        constraints: every limit; not the rows of single units.
        iterates: max_rate_per_cost: Dinkelbach's rising ratios.
        diagnosis: given when infeasible.
        program: which of several programs was solved, as the caller counts them.
        at_least_usd_per_hour: where all cost more than may be, what they cost at least [USD/h]; else 0.
        bound_rests_on: by unit, slices that it serves in the fleet behind the bound, where that is another fleet.

    Plan files keep the names `cost_per_h` and `starts_usd_per_h`, under which they were first written.
    """

    status: SolveStatus
    objective: float | None = None
    gap: float | None = None
    units: Mapping[str, tuple[int, ...]] = Field(default_factory=dict)
    bought: Mapping[str, Mapping[str, tuple[float, ...]]] = Field(default_factory=dict)
    routed_per_s: Mapping[str, Mapping[str, tuple[float, ...]]] = Field(default_factory=dict)
    cost_usd_per_hour: float = Field(default=0.0, serialization_alias="cost_per_h")
    starts_usd_per_hour: float = Field(default=0.0, serialization_alias="starts_usd_per_h")
    rate_per_s: float = 0.0
    constraints: tuple[ConstraintReport, ...] = ()
    iterates: tuple[float, ...] = ()
    diagnosis: Diagnosis | None = None
    program: int = Field(default=0, ge=0, exclude=True)
    at_least_usd_per_hour: float = Field(default=0.0, ge=0, exclude=True)
    bound_rests_on: Mapping[str, tuple[str, ...]] = Field(default_factory=dict, exclude=True)

    @property
    def binding(self) -> tuple[ConstraintReport, ...]:
        """The limits that hold the objective back (see `ConstraintReport.is_tight`)."""
        return tuple(row for row in self.constraints if row.is_tight)
