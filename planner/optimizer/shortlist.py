"""The few units and routes that are worth a look in one period of very many.

The relaxation (`planner.optimizer.relaxation`) is solved over all of them and proves the bound. What a route costs
beyond its worth there says how little it would be missed: per request of the large units that serve at least cost, per
unit of the small ones that fill up what is left of a demand.
"""

from __future__ import annotations

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

    def relax(self, layout: Layout) -> RelaxedOptimum | None:
        """The relaxation of least cost; None where it has no solution."""
        begin = self._begin if self._begin is not None and len(self._begin) == layout.columns else None
        relaxed = relax(tighten_rates(build_program(layout, Objective.MIN_COST)), begin)
        if relaxed is not None:
            self._begin = relaxed.active
        return relaxed


def shortlist(layout: Layout, relaxed: RelaxedOptimum) -> tuple[BoolArray, BoolArray]:
    """Units and pairs that are worth a look.

    Args:
        layout: of a problem of one period.
        relaxed: its relaxation.

    Returns:
        Which units, shape (j,), and which of their pairs, shape (p,). What is pinned is among them.
    """
    of_request = relaxed.excess[:, 0]
    of_unit = of_request * tight_rates_per_s(layout)[:, 0]
    kept = layout.at_least[layout.pair_unit] > 0
    members = [pairs for pairs, _ in pools(layout)]
    pairs = np.concatenate([pairs[0] for pairs in members])  # one pair for each pool and slice
    number = np.repeat(np.arange(len(members)), [len(pairs[0]) for pairs in members])
    section = sections(layout, layout.columns)[layout.rate_column[pairs, 0]]
    carries = relaxed.values[layout.rate_column[:, 0]] > 0.0
    chosen = np.concatenate([carries[rows].any(axis=0) for rows in members])
    for excess in (of_request, of_unit):
        least = np.concatenate([excess[rows].min(axis=0) for rows in members])
        chosen[best_of_each(section, least, np.arange(len(pairs)), POOLS_A_SLICE)] = True
    column = np.concatenate([np.arange(len(rows[0])) for rows in members])
    for index in np.flatnonzero(chosen):
        kept[members[number[index]][:, column[index]]] = True
    units = layout.at_least > 0
    units[layout.pair_unit[kept]] = True
    return units, kept
