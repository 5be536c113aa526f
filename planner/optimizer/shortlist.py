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
from planner.optimizer.program import build_program
from planner.optimizer.relaxation import RelaxedOptimum, best_of_each, relax, sections
from planner.optimizer.tightening import pools, tight_rates_per_s, tighten_rates
from planner.optimizer.types import Objective

POOLS_A_SLICE = 2
"""Pools kept for each slice, stage and channel by either measure. A choice of what is reached in how long."""


class Relaxer:
    """Solves the relaxations of periods that are alike, each from where the one before ended."""

    def __init__(self) -> None:
        self._begin: BoolArray | None = None

    def relax(self, layout: Layout, time_limit_s: float = math.inf) -> RelaxedOptimum | None:
        """The relaxation of least cost; None where it has no solution, or where the time ran out."""
        begin = self._begin if self._begin is not None and len(self._begin) == layout.columns else None
        relaxed = relax(tighten_rates(build_program(layout, Objective.MIN_COST)), time_limit_s, begin)
        if relaxed is not None:
            self._begin = relaxed.active
        return relaxed


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
    _, first, of_pair = np.unique(place, return_index=True, return_inverse=True)
    kept = np.zeros(len(first), dtype=bool)
    kept[of_pair[carries]] = True
    of_request = relaxed.excess[:, 0]
    for excess in (of_request, of_request * tight_rates_per_s(layout)[:, 0]):
        least = np.full(len(first), math.inf)
        np.minimum.at(least, of_pair, excess)
        kept[best_of_each(sections(layout)[first], least, POOLS_A_SLICE)] = True
    return np.asarray(kept[of_pair])
