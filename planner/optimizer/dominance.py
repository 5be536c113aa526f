"""Which units can be left out because another is at least as good, one for one."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from planner.core import FloatArray, IntArray
from planner.optimizer.layout import Layout


def dominators(layout: Layout) -> IntArray:
    """For each unit one that is at least as good, one for one, and itself not dominated.

    Unit a dominates b of the same stage, channel and kind that takes the same resources, when one of a costs no more
    (nor does its start), takes no more of any resource, carries no less of every slice, and is steady only if b is.
    Then replacing each unit of b by one of a keeps every limit and every objective as good, whatever the integers. Of
    equal ones the first stays. Time O(n^2) within a kind, vectorised.

    Args:
        layout: of the problem.

    Returns:
        Index of a unit, -1 for none; shape (j,).

    >>> from planner.optimizer.layout import build_layout
    >>> from planner.optimizer.types import FleetProblem, Slice, Unit
    >>> make = lambda name, rate, cost: Unit(name=name, rates_per_s={"chat": rate}, usd_per_hour=cost)
    >>> units = (make("slow", 1.0, 2.0), make("fast", 3.0, 2.0), make("dear", 3.0, 4.0), make("small", 0.5, 1.0))
    >>> chat = Slice(name="chat", demand_per_s=(9.0,))
    >>> dominators(build_layout(FleetProblem(slices=(chat,), units=units))).tolist()
    [1, -1, 1, -1]
    """
    dominator = np.full(len(layout.usd_per_hour), -1, dtype=np.int64)
    burden = _burden(layout)
    for members in _comparable_units(layout):
        dominator[members] = _dominators_among(layout, burden, members)
    return dominator


def _comparable_units(layout: Layout) -> list[IntArray]:
    """Units of one stage, channel and kind that take the same resources, in their order."""
    taken: list[list[int]] = [[] for _ in layout.usd_per_hour]
    for unit, resource in zip(layout.take_unit.tolist(), layout.take_resource.tolist(), strict=True):
        taken[unit].append(resource)
    kinds: dict[tuple[int, ...], list[int]] = defaultdict(list)
    own = zip(layout.stage.tolist(), layout.channel.tolist(), layout.unit_kind.tolist(), strict=True)
    for unit, place in enumerate(own):
        kinds[(*place, *sorted(taken[unit]))].append(unit)
    return [np.array(members) for members in kinds.values() if len(members) > 1]


def _burden(layout: Layout) -> FloatArray:
    """Costs, rates with their sign turned, resources: less is better. Shape (j, 2 + slices + resources)."""
    count = len(layout.usd_per_hour)
    rates = np.zeros((count, len(layout.deferrable)))
    rates[layout.pair_unit, layout.pair_slice] = layout.pair_rate
    takes = np.zeros((count, len(layout.resource_group)))
    takes[layout.take_unit, layout.take_resource] = layout.take_amount
    return np.hstack([np.column_stack([layout.usd_per_hour, layout.usd_per_start]), -rates, takes])


def _dominators_among(layout: Layout, burden: FloatArray, members: IntArray) -> IntArray:
    """`dominators` within units that can be compared; shape (members,)."""
    own = burden[members]
    own = own[:, (own != own[0]).any(axis=0)]  # what all have alike decides nothing
    steady = layout.steady[members]

    good = np.ones((len(members), len(members)), dtype=bool)
    for column in own.T:
        good &= column[None, :] <= column[:, None]
    good &= ~steady[None, :] | steady[:, None]
    strict = good & (~good.T | np.tri(len(members), k=-1, dtype=bool))
    best = ~strict.any(axis=1)
    first = np.argmax(strict & best[None, :], axis=1)
    return np.where(best, -1, members[first])
