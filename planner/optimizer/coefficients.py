"""What the goals and several constraints are made of: cost and served rate by column, and bounds on rates.

Symbols as in `planner.optimizer.constraints`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from planner.core import BoolArray, FloatArray
from planner.optimizer.layout import Layout


def mean_cost(layout: Layout) -> FloatArray:
    """Coefficients of the mean cost over the horizon [USD/h].

    ``sum_t h_t/H (sum_j k n + sum_flexible c g b) + sum_committed c g b + sum w z / H``

    Args:
        layout: of the problem.

    Returns:
        USD/h of one of each column; shape (columns,).
    """
    cost = np.zeros(layout.columns)
    np.add.at(cost, layout.column.units, layout.usd_per_hour[:, None] * layout.share[None, :])
    np.add.at(cost, layout.column.blocks, layout.purchase_usd_per_hour[:, None] * layout.share[None, :])
    cost[layout.column.starts] = (layout.usd_per_start[layout.start_units] / layout.problem.hours)[:, None]
    return cost


def mean_rate(layout: Layout) -> FloatArray:
    """Coefficients of the served rate, mean over the horizon [1/s].

    ``sum_t h_t/H sum_s sum_j f[j, s, t]`` over units of stages WHOLE and FIRST.

    Args:
        layout: of the problem.

    Returns:
        By column; shape (columns,).
    """
    rate = np.zeros(layout.columns)
    rate[layout.column.rates[layout.served]] = layout.share[None, :]
    return rate


def smallest_useful_rate(layout: Layout) -> float:
    """Least mean rate [1/s] that a fleet serves if it serves anything.

    ``min h_t/H min(r[j, s], d[s, t])`` over d > 0. Of deferrable work, d is what a period has to do if all of it is
    done then.

    Args:
        layout: of the problem.

    Returns:
        Rate [1/s]; 0 where there is nothing to serve.
    """
    ceiling = layout.ceiling_per_s[layout.pair_slice]
    useful = np.minimum(layout.pair_rate[:, None], ceiling) * layout.share[None, :]
    return float(useful[ceiling > 0.0].min(initial=math.inf)) if (ceiling > 0.0).any() else 0.0


def most_carried_per_s(layout: Layout, pairs: BoolArray) -> FloatArray:
    """Most that some units can carry of one slice in a period within the limits [1/s].

    The least of ``sum_j r_j at_most_j`` and ``max_j (r_j / a_j) L``, for every limit L of which each of the units takes
    a_j > 0: a resource, the number of units, the budget.

    Args:
        layout: of the problem.
        pairs: which pairs (unit, slice) may carry it; shape (p,).

    Returns:
        By period, infinite without a limit; shape (t,).
    """
    unit, rate = layout.pair_unit[pairs], layout.pair_rate[pairs]
    bounds = [float(rate @ layout.at_most[unit])]
    if layout.problem.max_units is not None:
        bounds.append(float(rate.max(initial=0.0)) * layout.problem.max_units)
    usd, budget = layout.usd_per_hour[unit], layout.problem.budget_usd_per_hour
    if budget is not None and (usd > 0.0).all():
        bounds.append(float((rate / usd).max(initial=0.0)) * budget / float(layout.share.min()))
    for index, limit in enumerate(_largest_supply(layout)):
        taken = np.zeros(len(layout.usd_per_hour))
        mine = layout.take_resource == index
        taken[layout.take_unit[mine]] = layout.take_amount[mine]
        if math.isfinite(limit) and (taken[unit] > 0.0).all():
            bounds.append(float((rate / taken[unit]).max(initial=0.0)) * limit)
    return np.full(layout.periods, min(bounds))


def _largest_supply(layout: Layout) -> Iterator[float]:
    """Most of each resource that units can ever take: its limit, and what can be bought."""
    budget = layout.problem.budget_usd_per_hour
    for resource in layout.problem.resources:
        most = math.inf if resource.at_most is None else resource.at_most
        bought = 0.0
        for purchase in resource.purchases:
            limits = [math.inf if purchase.at_most is None else purchase.at_most]
            if budget is not None and purchase.usd_per_hour > 0.0:
                share = 1.0 if purchase.committed else float(layout.share.min())
                limits.append(budget / purchase.usd_per_hour / share)
            bought += purchase.usable_share * min(limits)
        yield min(most, bought) if resource.purchases else most
