"""What the goals and several constraints are made of: cost and served rate by column, and bounds on rates.

Symbols as in `planner.optimizer.constraints`.
"""

from __future__ import annotations

import math

import numpy as np

from planner.core import FloatArray
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
