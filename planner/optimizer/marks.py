"""The cheapest fleet where each mark in use is charged once, from programs without charges.

A program that weighs charges is slow to prove: its relaxation uses a part of every mark, and they link all streams and
periods. Without charges these are solved by themselves. So marks are branched on: of the cheapest fleet without charges
one mark at a time is either paid for, whether it is used or not, or ruled out, which asks for a cheapest fleet without
it. No fleet of a branch costs less than the cheapest without charges and the charges of what is paid for there, or of
the fewest marks there are. The branch of the lowest bound is next (best-first branch and bound: A. H. Land and
A. G. Doig 1960, "An automatic method of solving discrete programming problems", Econometrica 28(3)).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable

import numpy as np

from planner.core import BoolArray, FloatArray
from planner.optimizer.layout import Layout

MOST_PROGRAMS = 10
"""Programs without charges after which what is left open is only a bound. A choice of what is reached in how long."""

Uncharged = Callable[[BoolArray, float], tuple[float, FloatArray | None]]
"""Given which pairs there are, and their least charges: a bound on the cost without charges, infinite where no fleet is
worth it; and the values of the cheapest, by column of the layout, if there is any."""


def charged_bound(layout: Layout, uncharged: Uncharged, dearest: Callable[[], float], gap: float) -> float:
    """What no fleet costs less than, charges included [USD/h]; infinite where none costs at most `dearest`.

    Args:
        layout: of a problem of least cost with charges.
        uncharged: solves it without charges, and keeps what it finds.
        dearest: cost of the best fleet so far, or the most that one may cost, charges included [USD/h].
        gap: share of that cost by which a bound may be below it.
    """
    charge, is_mark = float(layout.charge.max()), layout.in_group & (layout.charge > 0.0)
    marks = [sum(1 << g for g in np.flatnonzero(own).tolist()) for own in is_mark]
    left: list[tuple[float, int, int, int, int, float, FloatArray | None]] = []
    order, closed = itertools.count(), math.inf

    def open_branch(paid: int, ruled_out: int, known: tuple[float, FloatArray | None] | None = None) -> None:
        fewest = fewest_marks(layout, marks, paid, ruled_out)
        allowed = np.array([not own & ruled_out for own in marks], dtype=bool)
        usd, values = known or uncharged(allowed[layout.pair_unit], charge * fewest)
        if math.isfinite(usd):
            heapq.heappush(left, (usd + charge * fewest, next(order), fewest, paid, ruled_out, usd, values))

    open_branch(0, 0)
    programs = 1
    while left and left[0][0] < dearest() * (1.0 - gap) and programs < MOST_PROGRAMS:
        bound, _, fewest, paid, ruled_out, usd, values = heapq.heappop(left)
        carried = _carried(layout, values)
        if len(carried) <= fewest:
            closed = min(closed, bound)
            continue
        mark = max((each for each in carried if not each & paid), key=lambda each: carried[each])
        open_branch(paid | mark, ruled_out, (usd, values))
        open_branch(paid, ruled_out | mark)
        programs += 1
    return min([closed, *(bound for bound, *_ in left)])


def fewest_marks(layout: Layout, marks: list[int], paid: int = 0, ruled_out: int = 0) -> int:
    """Marks that every fleet has or pays for: those of one unit of a slice, and of each further one those new to it.

    Args:
        layout: of a problem with charges.
        marks: of each unit, a bit for each.
        paid: marks that are paid for.
        ruled_out: marks that no unit may have.

    Returns:
        Their number.
    """
    fewest, seen = paid.bit_count(), paid
    for s in np.flatnonzero(layout.mean_demand_per_s > 0.0).tolist():
        served = layout.pair_unit[(layout.pair_slice == s) & layout.served]
        fewest += min(((marks[j] & ~seen).bit_count() for j in served.tolist() if not marks[j] & ruled_out), default=0)
        for j in layout.pair_unit[layout.pair_slice == s].tolist():
            seen |= marks[j]
    return fewest


def _carried(layout: Layout, values: FloatArray | None) -> dict[int, float]:
    """What units with each mark in use carry."""
    if values is None:
        return {}
    used = np.asarray(values[layout.column.units].any(axis=1))
    rate = np.zeros(len(used))
    np.add.at(rate, layout.pair_unit, values[layout.column.rates].sum(axis=1))
    has = layout.in_group & (layout.charge > 0.0) & used[:, None]
    return {1 << g: float(rate[has[:, g]].sum()) for g in np.flatnonzero(has.any(axis=0)).tolist()}
