"""Whole units to everything that follows from them: capacity, routed rates, cost, and whether every limit holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.optimizer.constraints import Row, Rows, pools_of, rate_name, units_name
from planner.optimizer.program import SPREAD_FIX
from planner.optimizer.types import FEASIBILITY_TOLERANCE, Candidate, ConstraintReport, Limits, Sense

_ROUNDING = 1e-9
"""A count this close to a whole number is that number; 1e-9 is far above float rounding, far below one unit."""


@dataclass(frozen=True)
class Fleet:
    """What a set of whole units does.

    Attributes:
        units: by pool name.
        routed: rate routed to each candidate [1/s], by candidate name.
        capacity_per_s: rate all chains together can carry [1/s].
        rate_per_s: rate served [1/s], the sum of the routed rates.
        cost_per_h: [USD/h].
    """

    units: Mapping[str, int]
    routed: Mapping[str, float]
    capacity_per_s: float
    rate_per_s: float
    cost_per_h: float

    @property
    def rate_per_cost(self) -> float:
        """Rate served per cost [1/s per USD/h]; infinite for a free fleet."""
        return self.rate_per_s / self.cost_per_h if self.cost_per_h else math.inf


def fleet_of(rows: Rows, candidates: Sequence[Candidate], limits: Limits, found: Mapping[str, int]) -> Fleet:
    """The fleet of units by variable name, without the units that carry nothing.

    A chain carries what its narrowest pool carries, min_p r_p n_p [1/s]; what its other pools have above that is
    dropped in whole blocks. The demand (or all the capacity, if there is none) is split over the candidates in
    proportion to their capacity, so that all run at the same utilisation.

    Raises PlannerError if the fleet misses a row by more than `FEASIBILITY_TOLERANCE`: the solver was wrong.
    """
    units: dict[str, int] = {}
    capacity: dict[str, float] = {}
    for candidate in candidates:
        carried = min(pool.rate_per_unit * found.get(units_name(pool), 0) for pool in candidate.pools)
        for pool in candidate.pools:
            blocks = carried / (pool.rate_per_unit * pool.granularity)
            units[pool.name] = math.ceil(blocks * (1.0 - _ROUNDING)) * pool.granularity
        capacity[candidate.name] = carried
    total = math.fsum(capacity.values())
    served = total if limits.demand_per_s is None else min(total, limits.demand_per_s)
    routed = {name: rate * (served / total if total else 0.0) for name, rate in capacity.items()}
    cost = math.fsum(pool.cost_per_unit * units[pool.name] for pool in pools_of(candidates))
    fleet = Fleet(units, routed, total, served, cost)
    for row in reports(rows, candidates, fleet, {}):
        if row.slack < -FEASIBILITY_TOLERANCE * max(abs(row.limit), abs(row.used)):
            raise PlannerError(
                row.name, row.used, f"units miss their limit {row.sense.value} {row.limit:g}", SPREAD_FIX
            )
    return fleet


def reports(
    rows: Rows, candidates: Sequence[Candidate], fleet: Fleet, duals: Mapping[str, float]
) -> tuple[ConstraintReport, ...]:
    """Each row at the fleet; `carry_rate` only of pools in use."""
    values: dict[str, float] = {units_name(pool): fleet.units[pool.name] for pool in pools_of(candidates)}
    values |= {rate_name(candidate): fleet.routed[candidate.name] for candidate in candidates}
    used = [row for row in rows if not row.supply or any(values[name] for name in row.supply)]
    return tuple(_report(row, values, duals.get(row.name)) for row in used)


def _report(row: Row, values: Mapping[str, float], dual: float | None) -> ConstraintReport:
    used = math.fsum(value * values[name] for name, value in row.used.items())
    limit = row.limit + math.fsum(value * values[name] for name, value in row.supply.items())
    slack = limit - used if row.sense is Sense.AT_MOST else used - limit
    return ConstraintReport(
        name=row.name, field=row.field, sense=row.sense, limit=limit, used=used, slack=slack, dual=dual
    )
