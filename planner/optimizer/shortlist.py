"""The few pairs that are worth a look in one period of very many.

The relaxation (`planner.optimizer.relaxation`) is solved over all of them and proves the bound. What a pair costs
beyond its worth there says how little it would be missed: per request of the large units that serve at least cost, per
unit of the small ones that fill up what is left of a demand.
"""

from __future__ import annotations

import math

import numpy as np

from planner.core import BoolArray
from planner.optimizer.layout import Layout
from planner.optimizer.relaxation import RelaxedOptimum, best_of_each
from planner.optimizer.tightening import pools, tight_rates_per_s

POOLS_A_SLICE = 2
"""Pools kept for each slice, stage and channel by either measure. A choice of what is reached in how long."""


def shortlist(layout: Layout, relaxed: RelaxedOptimum) -> BoolArray:
    """The pairs that are worth a look: all units of a pool (`pools`) or none, slice by slice.

    Kept are those of which one carries something, and the least missed by either measure.

    Args:
        layout: of a problem of one period.
        relaxed: its relaxation.

    Returns:
        Which pairs, shape (p,).
    """
    carries = relaxed.values[layout.column.rates[:, 0]] > 0.0
    slices = len(layout.deferrable)
    place = pools(layout)[0][layout.pair_unit] * slices + layout.pair_slice
    stage = layout.stage[layout.pair_unit] * (len(layout.channels) + 1) + layout.channel[layout.pair_unit] + 1
    section = stage * slices + layout.pair_slice
    _, first, of_pair = np.unique(place, return_index=True, return_inverse=True)
    kept = np.zeros(len(first), dtype=bool)
    kept[of_pair[carries]] = True
    of_request = relaxed.excess[:, 0]
    for excess in (of_request, of_request * tight_rates_per_s(layout)[:, 0]):
        least = np.full(len(first), math.inf)
        np.minimum.at(least, of_pair, excess)
        kept[best_of_each(section[first], least, POOLS_A_SLICE)] = True
    return np.asarray(kept[of_pair])
