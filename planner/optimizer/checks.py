"""What must hold of a problem before it is solved: consistent input, a limit on every unit, a price on what serves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from planner.core import BoolArray, FloatArray, InputError
from planner.optimizer.layout import FIRST, SECOND, WHOLE, Layout, label
from planner.optimizer.types import FleetProblem, Objective

MOST_UNITS = 500_000
"""Units of a slice beyond which a problem is refused: one in a few million is below what a solver's tolerances tell
from nothing. Measured: demands of 10^7 that take 10^5 units are solved in 0.2 s, of 10^8 HiGHS comes to no end."""
MOST_UNITS_OF_A_CAP = 100 * MOST_UNITS
"""The same where the demand is only a cap. Measured: at 10^9 the least that is not nothing counts as nothing."""


def check_problem(problem: FleetProblem, objective: Objective, time_limit_s: float, relative_gap: float) -> None:
    """Refuse what cannot be solved as it is stated.

    Args:
        problem: in records.
        objective: decides whether slices may be without a demand.
        time_limit_s: must be above 0 [s].
        relative_gap: must lie in [0, 1).

    Raises:
        InputError: names that are equal as labels, pinned resources that cannot be bought, demand missing or below the
            least rate, time or gap out of range.
    """
    names = [unit.name for unit in problem.units]
    _check_names("unit", names, names)
    _check_labels("slice", [slice_.name for slice_ in problem.slices])
    _check_labels("period", [period.name for period in problem.periods])
    _check_labels("resource", [resource.name for resource in problem.resources])
    _check_labels("group", list({resource.group for resource in problem.resources} - {""}))
    for resource in problem.resources:
        _check_labels(f"purchase of {resource.name!r}", [purchase.name for purchase in resource.purchases])
        if resource.at_least > 0.0 and not resource.purchases:
            fix = "give it a purchase, or drop at_least"
            raise InputError(
                f"resources[{resource.name}].at_least", resource.at_least, "there is no way to buy any", fix
            )
    if not time_limit_s > 0.0:
        raise InputError("time_limit_s", time_limit_s, "must be > 0 s", "give the solver some time, e.g. 10")
    if not 0.0 <= relative_gap < 1.0:
        raise InputError("relative_gap", relative_gap, "must lie in [0, 1)", "write 0.01 for one percent")
    _check_demand(problem, objective)


def _check_labels(kind: str, names: list[str]) -> None:
    _check_names(kind, [label(name) for name in names], names)


def _check_names(kind: str, labels: list[str], names: list[str]) -> None:
    """Refuse names whose labels, as they stand in a program, are equal."""
    by_label = Counter(labels)
    twice = [name for name, text in zip(names, labels, strict=True) if by_label[text] > 1]
    if twice:
        bound = f"two {kind} names are equal once all but letters and digits is replaced by _"
        raise InputError(f"{kind} name", twice[:2], bound, f"rename one of the {len(twice)}")


def _check_demand(problem: FleetProblem, objective: Objective) -> None:
    open_ended = [slice_.name for slice_ in problem.slices if slice_.demand_per_s is None]
    if objective is Objective.MIN_COST:
        if open_ended:
            field = f"slices[{open_ended[0]}].demand_per_s"
            raise InputError(field, None, "min_cost needs a demand to serve", "give it, or choose max_rate")
        return
    least = problem.min_rate_per_s
    if least is not None and not open_ended:
        hours = [period.hours for period in problem.periods]
        demand = math.fsum(np.dot(slice_.demand_per_s or (), hours) / problem.hours for slice_ in problem.slices)
        if least > demand:
            bound = f"must be <= the mean demand = {demand:g}"
            raise InputError("min_rate_per_s", least, bound, "lower it to the demand")


def check_size(layout: Layout, most_units: int = MOST_UNITS) -> None:
    """Refuse a demand of which the solver could not tell one unit from none.

    Args:
        layout: of the problem.
        most_units: that a slice may take.

    Raises:
        InputError: a slice needs more than that of every unit that serves it.
    """
    pairs = np.flatnonzero(layout.served)
    fewest = np.full(layout.ceiling_per_s.shape, math.inf)
    needed = layout.ceiling_per_s[layout.pair_slice[pairs]] / layout.pair_rate[pairs][:, None]
    np.minimum.at(fewest, layout.pair_slice[pairs], needed)
    for s in np.flatnonzero((np.isfinite(fewest) & (fewest > most_units)).any(axis=1)):
        bound = f"takes {fewest[s].max():.2g} of the largest unit that serves it; at most {most_units:,} can be planned"
        fix = "plan a part of the demand, or offer larger pools"
        name = layout.problem.slices[s].name
        raise InputError(f"slices[{name}].demand_per_s", float(layout.ceiling_per_s[s].max()), bound, fix)


def unlimited_unit(layout: Layout) -> str | None:
    """Name of a unit whose number no limit counts and which can serve ever more.

    All coefficients are >= 0, so the served rate grows without end exactly when such a unit does a slice without
    demand as a WHOLE, or as a FIRST with a SECOND of the kind that takes what it hands over.

    Args:
        layout: of the problem.

    Returns:
        Its name; None if there is none.
    """
    unlimited = _unlimited_units(layout)
    open_ended = np.isnan(layout.demand_per_s[:, 0])
    chosen = np.flatnonzero(unlimited[layout.pair_unit] & open_ended[layout.pair_slice])
    stage, channel = layout.stage[layout.pair_unit], layout.channel[layout.pair_unit]
    taken = {(layout.pair_slice[p], channel[p]) for p in chosen if stage[p] == SECOND}
    for p in chosen:
        is_taken = stage[p] == FIRST and (layout.pair_slice[p], channel[p]) in taken
        if stage[p] == WHOLE or is_taken:
            return str(layout.problem.units[layout.pair_unit[p]].name)
    return None


def _unlimited_units(layout: Layout) -> BoolArray:
    """Units whose number no limit counts; shape (j,)."""
    problem = layout.problem
    free_of_budget = problem.budget_usd_per_hour is None
    unlimited: BoolArray = np.isinf(layout.at_most) & ((layout.usd_per_hour == 0.0) | free_of_budget)
    if problem.max_units is not None:
        unlimited = np.zeros_like(unlimited)
    for index, resource in enumerate(problem.resources):
        endless = [p for p in resource.purchases if p.at_most is None and (free_of_budget or p.usd_per_hour == 0.0)]
        if resource.at_most is not None or (resource.purchases and not endless):
            unlimited[layout.take_unit[layout.take_resource == index]] = False
    return unlimited


def least_cost_usd_per_hour(layout: Layout) -> float:
    """Least cost of any fleet that serves something [USD/h]: the pinned purchases, or the cheapest unit for one period.

    Args:
        layout: of the problem.

    Returns:
        A lower bound above 0 [USD/h].

    Raises:
        InputError: something is served for nothing, so it has no rate per cost.
    """
    pinned = math.fsum(p.at_least * p.usd_per_hour for r in layout.problem.resources for p in r.purchases)
    unit = _least_unit_cost(layout)
    stages = [unit[layout.stage == stage] for stage in (WHOLE, FIRST, SECOND)]
    whole, first, second = (float(costs.min(initial=math.inf)) for costs in stages)
    least = max(pinned, min(whole, first + second))
    if least == 0.0:
        free = layout.problem.units[int(np.argmin(unit))].name
        fix = "give it or what it takes a price, or choose max_rate"
        raise InputError(f"units[{free}].usd_per_hour", 0.0, "what is served for nothing has no rate per cost", fix)
    return least


def _least_unit_cost(layout: Layout) -> FloatArray:
    """Of one unit on in the shortest period, its resources at the cheapest price [USD/h over the horizon]."""
    shortest = float(layout.share.min())
    price = np.array([_cheapest_price(layout, r) for r in range(len(layout.resource_group))])
    cost = layout.usd_per_hour * shortest
    np.add.at(cost, layout.take_unit, layout.take_amount * price[layout.take_resource])
    return cost


def _cheapest_price(layout: Layout, resource: int) -> float:
    shortest = float(layout.share.min())
    prices: Sequence[float] = [
        p.usd_per_hour / p.usable_share * (1.0 if p.committed else shortest)
        for p in layout.problem.resources[resource].purchases
    ]
    return min(prices, default=0.0)
