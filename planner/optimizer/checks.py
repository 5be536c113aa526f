"""Checks of a problem before it is solved: consistent input, a limit on every unit, a price on what serves."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from planner.core import InputError
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
        objective: decides whether a least rate is asked for.
        time_limit_s: must be above 0 [s].
        relative_gap: must lie in [0, 1).

    Raises:
        InputError: names that are equal as labels, pinned resources that cannot be bought, demand below the least
            rate, a time or gap out of range.
    """
    resources = problem.resources
    _check_names("unit", [unit.name for unit in problem.units], are_labels=False)
    _check_names("slice", [slice_.name for slice_ in problem.slices])
    _check_names("period", [period.name for period in problem.periods])
    _check_names("resource", [resource.name for resource in resources])
    _check_names("group", list({resource.group for resource in resources} - {""}))
    for resource in resources:
        _check_names(f"purchase of {resource.name!r}", [purchase.name for purchase in resource.purchases])
        if resource.at_least > 0.0 and not resource.purchases:
            field, fix = f"resources[{resource.name}].at_least", "give it a purchase, or drop at_least"
            raise InputError(field, resource.at_least, "there is no way to buy any", fix)
    if not time_limit_s > 0.0:
        raise InputError("time_limit_s", time_limit_s, "must be > 0 s", "give the solver some time, e.g. 10")
    if not 0.0 <= relative_gap < 1.0:
        raise InputError("relative_gap", relative_gap, "must lie in [0, 1)", "write 0.01 for one percent")
    hours, least = [period.hours for period in problem.periods], problem.min_rate_per_s
    demand = math.fsum(np.dot(slice_.demand_per_s, hours) / problem.hours for slice_ in problem.slices)
    if objective is not Objective.MIN_COST and least is not None and least > demand:
        bound = f"must be <= the mean demand = {demand:g}"
        raise InputError("min_rate_per_s", least, bound, "lower it to the demand")


def _check_names(kind: str, names: list[str], *, are_labels: bool = True) -> None:
    """Refuse names that are equal, or whose labels are, as they stand in a program."""
    labels = [label(name) if are_labels else name for name in names]
    count = Counter(labels)
    twice = [name for name, text in zip(names, labels, strict=True) if count[text] > 1]
    if twice:
        bound = f"two {kind} names are equal once all but letters and digits is replaced by _"
        raise InputError(f"{kind} name", twice[:2], bound, f"rename one of the {len(twice)}")


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
    needed = (layout.pair_ceiling_per_s / layout.pair_rate[:, None])[pairs]
    np.minimum.at(fewest, layout.pair_slice[pairs], needed)
    for s in np.flatnonzero((np.isfinite(fewest) & (fewest > most_units)).any(axis=1)):
        bound = f"takes {fewest[s].max():.2g} of the largest unit that serves it; at most {most_units:,} can be planned"
        fix = "plan a part of the demand, or offer larger pools"
        name = layout.problem.slices[s].name
        raise InputError(f"slices[{name}].demand_per_s", float(layout.ceiling_per_s[s].max()), bound, fix)


def least_cost_usd_per_hour(layout: Layout) -> float:
    """Least cost of any fleet that serves something, above 0 [USD/h]: that of the cheapest unit for one period.

    Args:
        layout: of the problem.

    Raises:
        InputError: something is served for nothing, so it has no rate per cost.
    """
    shortest = float(layout.share.min())
    usd = layout.purchase_usd_per_hour / layout.purchase_usable
    price = layout.cheapest(np.where(layout.purchase_committed, usd, usd * shortest))
    unit = layout.usd_per_hour * shortest + layout.takes @ price
    whole, first, second = (unit[layout.stage == stage].min(initial=math.inf) for stage in (WHOLE, FIRST, SECOND))
    least = float(min(whole, first + second))
    if least == 0.0:
        free = layout.problem.units[int(np.argmin(unit))].name
        fix = "give it or what it takes a price, or choose max_rate"
        raise InputError(f"units[{free}].usd_per_hour", 0.0, "what is served for nothing has no rate per cost", fix)
    return least
