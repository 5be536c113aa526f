"""Sets of marks that may make a fleet cheap where each mark in use is charged once.

A program that weighs charges is slow to prove: its relaxation uses a part of every mark. Most fleets of few charges are
plain, though: each slice is served by units of one set of marks (in two stages, by those of one set each). What the
marks of a plain fleet cost is known well beforehand, since no fleet costs less than its requests by the unit that is
cheapest for each, in any parts (the relaxation of a covering knapsack). All other fleets pay one charge more than the
plainest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from planner.core import BoolArray, FloatArray
from planner.optimizer.layout import FIRST, SECOND, WHOLE, Layout

MOST_SETS = 200
"""Sets of marks that are kept from slice to slice, the cheapest. A choice that may pass over a cheaper fleet."""


def plain_sets(layout: Layout, most_usd_per_hour: float) -> tuple[list[tuple[float, BoolArray]], float]:
    """The sets of marks of plain fleets that may cost at most so much, charges included, cheapest first.

    Args:
        layout: of a problem of least cost with charges.
        most_usd_per_hour: dearer fleets are not looked for.

    Returns:
        What no fleet of a set costs less than, with its charges [USD/h], and which groups it is, shape (g,), at most
        `MOST_SETS`; and what none of a set left out costs less than.
    """
    charge, usd_of, marks_of = float(layout.charge.max()), _usd_per_hour(layout), _marks(layout)
    options = [_options(layout, s, usd_of, marks_of) for s in _asked(layout)]
    least = [min(usd.values(), default=math.inf) for usd in options]
    sets, left_out = {0: 0.0}, math.inf
    for place, usd in enumerate(options):
        later, total = math.fsum(least[place + 1 :]), dict[int, float]()
        room = most_usd_per_hour - math.fsum(least) + least[place]
        few = [(marks, more) for marks, more in usd.items() if more + charge * marks.bit_count() <= room]
        for (before, spent), (marks, more) in product(sets.items(), few):
            total[before | marks] = min(spent + more, total.get(before | marks, math.inf))
        bounds = sorted((own + charge * marks.bit_count() + later, marks) for marks, own in total.items())
        bounds = [each for each in bounds if each[0] <= most_usd_per_hour]
        left_out = min([left_out, *(bound for bound, _ in bounds[MOST_SETS:])])
        sets = {marks: total[marks] for _, marks in bounds[:MOST_SETS]}
    bits = 1 << np.arange(len(layout.charge), dtype=object)
    found = sorted((own + charge * marks.bit_count(), marks) for marks, own in sets.items())
    return [(bound, np.array((bits & marks) > 0, dtype=bool)) for bound, marks in found], left_out


def fewest_marks(layout: Layout) -> int:
    """Marks that every fleet has at least: those of one unit of a slice, and of each further one those new to it.

    Args:
        layout: of a problem with charges.

    Returns:
        Their number.
    """
    marks, fewest, seen = _marks(layout), 0, 0
    for s in _asked(layout):
        served = layout.pair_unit[(layout.pair_slice == s) & layout.served]
        fewest += min(((marks[j] & ~seen).bit_count() for j in served.tolist()), default=0)
        for j in layout.pair_unit[layout.pair_slice == s].tolist():
            seen |= marks[j]
    return fewest


def _asked(layout: Layout) -> list[int]:
    return np.flatnonzero(layout.mean_demand_per_s > 0.0).tolist()


def _marks(layout: Layout) -> list[int]:
    """Of each unit the groups that are charged, a bit for each."""
    bits = 1 << np.arange(len(layout.charge), dtype=object)
    return [int(bits[own].sum()) for own in layout.in_group & (layout.charge > 0.0)]


def _options(layout: Layout, s: int, usd: FloatArray, marks: Sequence[int]) -> dict[int, float]:
    """Marks of the units that may serve a slice, of one set in each stage, and its least cost by these [USD/h]."""
    stages: dict[tuple[int, int], dict[int, float]] = {}
    for pair in np.flatnonzero(layout.pair_slice == s).tolist():
        j = int(layout.pair_unit[pair])
        own = stages.setdefault((int(layout.stage[j]), int(layout.channel[j])), {})
        own[marks[j]] = min(float(usd[pair]), own.get(marks[j], math.inf))
    found = dict(stages.get((WHOLE, -1), {}))
    for channel in range(len(layout.channels)):
        both = (stages.get((stage, channel), {}).items() for stage in (FIRST, SECOND))
        for (first, usd_first), (second, usd_second) in product(*both):
            found[first | second] = min(usd_first + usd_second, found.get(first | second, math.inf))
    return found


def _usd_per_hour(layout: Layout) -> FloatArray:
    """What each pair costs at least if it carries all of its slice, in any parts of a unit; shape (p,)."""
    price = layout.cheapest(layout.purchase_usd_per_hour / layout.purchase_usable)
    unit = (layout.usd_per_hour + layout.takes @ price)[layout.pair_unit]
    rate, s = layout.tight_rates_per_s, layout.pair_slice
    at_once = (layout.demand_per_s[s] / np.where(rate > 0.0, rate, np.inf)) @ layout.share
    any_time = layout.mean_demand_per_s[s] / np.maximum(rate.max(axis=1), np.finfo(float).tiny)
    return np.asarray(unit * np.where(layout.deferrable[s], any_time, at_once))
