"""Least cost of large fleet problems: a bound by column generation, fleets by an integer program for each period.

For problems whose routing variables (units x slices x periods) are too many to be written down. What links the periods
(committed purchases, starts, work that may wait) is settled by the relaxation first; then every period is an integer
program over a shortlist of units that are cheap at the relaxation's prices. What is found is a fleet that meets every
limit, and how far it can be from the best is known from the bound. Nothing is ever called proven that is not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from planner.core import FloatArray, InputError
from planner.optimizer.large_bound import proved_gap
from planner.optimizer.large_cover import CostedFleet, even_rates_per_s
from planner.optimizer.large_master import MasterSolution, cannot_serve, run_column_generation
from planner.optimizer.large_search import LargeSearch, usd_spent
from planner.optimizer.large_tables import Tables, build_tables
from planner.optimizer.types import FEASIBILITY_TOLERANCE, FleetProblem, UnitStage

MAX_PASSES = 4
"""Times that every period is searched, so that the search ends by itself where nobody sets a time limit. A choice."""
SHARE_FOR_BOUND = 0.4
"""Largest share of the time for the relaxation; the rest is for whole units. A choice."""
SHARE_FOR_SEARCH = 0.97
"""Share of the time after which the search stops, so that rates can be worked out within the limit. A choice."""


@dataclass(frozen=True)
class LargeAnswer:
    """The best fleet found, and what is proved about it.

    Attributes:
        units: by unit, how many are on in each period; only units in use.
        bought: by resource and purchase, how much is held in each period; only what is bought.
        routed_per_s: by unit and slice, the rate in each period [1/s].
        cost_usd_per_hour: mean over the horizon, recomputed from whole numbers [USD/h]; infinite: no fleet was found in
            time.
        lower_bound: no fleet costs less [USD/h].
        proven: the fleet costs at most the gap asked for more than the bound.
    """

    units: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    bought: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    routed_per_s: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    cost_usd_per_hour: float = np.inf
    lower_bound: float = 0.0
    proven: bool = False

    @property
    def has_fleet(self) -> bool:
        """Whether a fleet was found."""
        return bool(np.isfinite(self.cost_usd_per_hour))

    @property
    def gap(self) -> float:
        """Proved (cost - best possible) / cost; infinite without a fleet."""
        return proved_gap(self.cost_usd_per_hour, self.lower_bound)


def is_supported(problem: FleetProblem) -> bool:
    """Whether `solve_large` can answer: every slice has a demand, and nothing asks for what links units in other ways.

    Not supported: `max_groups`, steady units over several periods, and pinned resources that are not bought.

    Args:
        problem: in records.

    Returns:
        True if it can.
    """
    return (
        problem.max_groups is None
        and bool(problem.units)
        and all(slice_.demand_per_s is not None for slice_ in problem.slices)
        and not (len(problem.periods) > 1 and any(unit.steady for unit in problem.units))
        and all(resource.purchases or resource.at_least == 0.0 for resource in problem.resources)
    )


def solve_large(
    problem: FleetProblem, *, relative_gap: float, time_limit_s: float = math.inf, passes: int = MAX_PASSES
) -> LargeAnswer | None:
    """Least cost of the whole demand.

    Args:
        problem: one that `is_supported` accepts.
        relative_gap: stop when the fleet is proved to be this close to the best.
        time_limit_s: for everything [s]; exceeded by at most one linear program and the last bookkeeping. Without one
            the search ends after so many passes and nodes, with the same answer on every machine.
        passes: times that every period is searched by branch and bound.

    Returns:
        The best fleet found, or none in time; None: proved that the limits do not allow any.

    Raises:
        InputError: the problem is not supported, or a limit is not positive.
    """
    if not is_supported(problem):
        raise InputError("problem", "large", "has max_groups, steady units, or a slice without demand", "use solve")
    if time_limit_s <= 0.0:
        raise InputError("time_limit_s", time_limit_s, "must be above 0")
    begin = time.monotonic()
    tables = build_tables(problem)
    relaxed = run_column_generation(tables, begin + SHARE_FOR_BOUND * time_limit_s)
    if relaxed is None:
        return LargeAnswer()
    budget = np.inf if problem.budget_usd_per_hour is None else problem.budget_usd_per_hour
    affordable = budget * (1.0 + FEASIBILITY_TOLERANCE)
    is_short = relaxed.shortfall > FEASIBILITY_TOLERANCE
    if relaxed.bound.cost > affordable or (is_short and cannot_serve(tables, begin + time_limit_s)):
        return None
    deadline = begin + SHARE_FOR_SEARCH * time_limit_s
    search = _finished_search(problem, tables, relaxed, begin, deadline, relative_gap, passes)
    is_whole = search is not None and search.relaxed is relaxed
    bound = max(search.bound if search is not None and is_whole else relaxed.bound.cost, 0.0)
    if search is None or search.best is None or search.best.cost > affordable:
        return None if bound > affordable else LargeAnswer(lower_bound=bound)
    return _answer(search.tables, search.demand, search.best, bound, relative_gap)


def _finished_search(
    problem: FleetProblem,
    tables: Tables,
    relaxed: MasterSolution,
    begin: float,
    deadline: float,
    relative_gap: float,
    passes: int,
) -> LargeSearch | None:
    """The finished search among units of one kind; None: those cannot serve the demand."""
    alike = restrict_kinds(problem, tables, relaxed)
    if alike is not problem:
        tables = build_tables(alike)
        smaller = run_column_generation(tables, begin + 2.0 * SHARE_FOR_BOUND * (deadline - begin))
        if smaller is None or smaller.shortfall > FEASIBILITY_TOLERANCE:
            return None
        relaxed = smaller
    search = LargeSearch(tables, relaxed, deadline, relative_gap)
    search.run(passes)
    return search


def restrict_kinds(problem: FleetProblem, tables: Tables, relaxed: MasterSolution) -> FleetProblem:
    """The problem with one kind of units in each stage of each channel.

    Chosen is a pinned kind, else that on which the relaxation, which may mix kinds, spends most. The bound of the
    relaxation holds for every choice; that of the smaller problem does not, and is not used.

    Args:
        problem: in records.
        tables: the same as arrays.
        relaxed: its relaxation.

    Returns:
        Fewer units; the same object where there is no choice.
    """
    usd_by_unit = usd_spent(tables, relaxed).sum(axis=1)
    spent: dict[tuple[UnitStage, str], dict[str, float]] = {}
    for unit, usd in zip(problem.units, usd_by_unit, strict=True):
        if unit.stage is not UnitStage.WHOLE and unit.kind:
            of_kind = spent.setdefault((unit.stage, unit.channel), {})
            of_kind[unit.kind] = of_kind.get(unit.kind, 0.0) + (np.inf if unit.at_least > 0 else float(usd))
    kept = {place: max(sorted(kinds), key=lambda kind: kinds[kind]) for place, kinds in spent.items()}
    if all(len(kinds) == 1 for kinds in spent.values()):
        return problem
    units = tuple(unit for unit in problem.units if unit.kind in ("", kept.get((unit.stage, unit.channel), unit.kind)))
    return problem.model_copy(update={"units": units})


def _answer(tables: Tables, demand: FloatArray, fleet: CostedFleet, bound: float, relative_gap: float) -> LargeAnswer:
    """The fleet as records."""
    bought: dict[str, dict[str, tuple[float, ...]]] = {}
    for option, amounts in zip(tables.purchases, fleet.bought, strict=True):
        if amounts.any():
            row = bought.setdefault(tables.resource_names[option.resource], {})
            row[option.purchase.name] = tuple(float(amount) for amount in amounts)
    return LargeAnswer(
        units={
            tables.unit_names[unit]: tuple(int(count) for count in fleet.units[unit])
            for unit in np.flatnonzero(fleet.units.any(axis=1))
        },
        bought=bought,
        routed_per_s=even_rates_per_s(tables, demand, fleet.units),
        cost_usd_per_hour=fleet.cost,
        lower_bound=min(bound, fleet.cost),
        proven=proved_gap(fleet.cost, bound) <= relative_gap,
    )
