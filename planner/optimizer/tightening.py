"""The same whole solutions in fewer columns, with a tighter relaxation and coefficients of one size."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from planner.core import FloatArray, IntArray
from planner.optimizer.layout import Layout
from planner.optimizer.program import Program

_MAX_RATE_OVER_CEILING = 1e8
"""A unit is rated at no more than this many times all there is to carry. A choice that keeps coefficients in the
solver's range: it shifts results by less than 1e-8 of that."""


def capped_rates_per_s(layout: Layout) -> FloatArray:
    """Rates of units, none out of all proportion to the demand: at most 10^8 times all there is to carry [1/s].

    Args:
        layout: of the problem.

    Returns:
        By pair and period; shape (p, t).
    """
    ceiling = layout.pair_ceiling_per_s
    most = np.where(ceiling > 0.0, ceiling * _MAX_RATE_OVER_CEILING, math.inf)
    return np.minimum(layout.pair_rate[:, None], most)


def tight_rates_per_s(layout: Layout) -> FloatArray:
    """Rates of units with the same whole solutions and a tighter relaxation [1/s]: r min(1, sum_s d_s / r_s), capped.

    If one unit has the share L = sum_s d_s / r_s < 1 of itself to give at most (d_s all there is to carry), then
    ``sum_s f_s / r_s <= n`` may be ``<= L n`` for whole n: no more than L is ever used, and none without a unit. For a
    single slice that is r = min(r, d), and it keeps r x (a count that is 1e-8 off zero) from serving anything.

    Source: coefficient tightening, M. W. P. Savelsbergh 1994, "Preprocessing and probing techniques for mixed integer
    programming problems", ORSA Journal on Computing 6(4).

    Args:
        layout: of the problem.

    Returns:
        By pair and period; shape (p, t).
    """
    load = _load(layout)
    useful = np.where(load > 0.0, np.minimum(load, 1.0), 1.0)
    return np.minimum(layout.pair_rate[:, None] * useful[layout.pair_unit], capped_rates_per_s(layout))


def _load(layout: Layout) -> FloatArray:
    """Units that would carry all there is to carry by themselves: sum_s d_s / r_s. Shape (j, t)."""
    load = np.zeros((len(layout.usd_per_hour), layout.periods))
    np.add.at(load, layout.pair_unit, layout.pair_ceiling_per_s / layout.pair_rate[:, None])
    return load


def with_rates(program: Program, rate_per_s: FloatArray) -> Program:
    """The program with other rates in its rows `carry_rate`.

    Args:
        program: as stated.
        rate_per_s: of each pair in each period, shape (p, t).

    Returns:
        The program with other coefficients.
    """
    used = 1.0 / rate_per_s.ravel()
    rows = (
        replace(rows, value=np.append(used, rows.value[used.size :])) if rows.constraint == "carry_rate" else rows
        for rows in program.rows
    )
    return replace(program, rows=tuple(rows))


def pool_rates(program: Program) -> Program:
    """The tightened program in fewer columns, and with a largest count for every unit.

    Of units of one stage, channel, kind and set of groups whose rates are in proportion only the sum of what they carry
    matters: ``sum_s f_js / r_js <= n_j`` for each of them is ``sum_s f_s / r_s <= sum_j (r_j / r) n_j``. The sum stands
    in the columns of the first of them; `unpool_rates` gives it back to all.

    One unit more than carries all there is to carry, ``ceil(sum_s d_s / r_s)``, is of no use (of a unit that stands
    still, or whose start costs something, in the busiest period).

    Args:
        program: as stated.

    Returns:
        The program with fewer rows `carry_rate`, rates that stay 0, and `Program.most`.
    """
    layout, periods = program.layout, np.arange(program.layout.periods)
    lead, _, size = pools(layout)
    leads = np.flatnonzero(lead[layout.pair_unit] == layout.pair_unit)
    unit = np.concatenate([layout.pair_unit[leads], lead])
    pooled = {
        "row": (unit[:, None] * len(periods) + periods).ravel(),
        "column": np.concatenate([layout.column.rates[leads], layout.column.units]).ravel(),
        "value": np.concatenate([1.0 / tight_rates_per_s(layout)[leads], -size]).ravel(),
    }
    rows = (replace(r, **pooled) if r.constraint == "carry_rate" else r for r in program.rows)
    load = _load(layout)
    load[layout.is_still] = load[layout.is_still].max(axis=1, keepdims=True)
    most = np.full(program.columns, math.inf)
    most[layout.column.units] = np.ceil(load)
    most[layout.column.rates[lead[layout.pair_unit] != layout.pair_unit]] = 0.0
    return replace(program, rows=tuple(rows), most=most)


def unpool_rates(layout: Layout, values: FloatArray) -> FloatArray:
    """Values of `pool_rates` by unit: filled one after the other, so that what is not needed carries nothing.

    Args:
        layout: of the program.
        values: by column of the layout, pooled.

    Returns:
        By column, with a rate for every pair [1/s].
    """
    by_unit, rates = values.copy(), tight_rates_per_s(layout)
    lead, pair_of, size = pools(layout)
    for first in np.flatnonzero(np.bincount(lead) > 1):
        units, slices = np.flatnonzero(lead == first), np.flatnonzero(pair_of[first] >= 0)
        pooled = values[layout.column.rates[pair_of[first, slices]]]
        used = (pooled / rates[pair_of[first, slices]]).sum(axis=0)
        could = size[units] * values[layout.column.units[units]]
        before = np.cumsum(could, axis=0) - could
        share = np.clip(used - before, 0.0, could) / np.where(used > 0.0, used, 1.0)
        by_unit[layout.column.rates[pair_of[np.ix_(units, slices)]]] = share[:, None] * pooled
    is_off = values[layout.column.units][layout.pair_unit] == 0.0
    by_unit[layout.column.rates[is_off]] = 0.0  # a solver leaves 1e-14 there, and any rate is too much for no unit
    return by_unit


def pools(layout: Layout) -> tuple[IntArray, IntArray, FloatArray]:
    """Units of one stage, channel, kind and set of groups whose rates are in proportion.

    Args:
        layout: of the problem.

    Returns:
        Of each unit the first of its pool, its pair of each slice (or -1), and what it may carry in units of the first.
        Shapes (j,), (j, s), (j, t).
    """
    count = len(layout.usd_per_hour)
    rate, pair_of = np.zeros((count, len(layout.deferrable))), np.full((count, len(layout.deferrable)), -1)
    rate[layout.pair_unit, layout.pair_slice] = layout.pair_rate
    pair_of[layout.pair_unit, layout.pair_slice] = np.arange(len(layout.pair_unit))
    largest = rate.max(axis=1, keepdims=True)
    shape = (rate / np.where(largest > 0.0, largest, 1.0)).round(9)
    in_group = np.zeros((count, len(layout.groups) + 1))
    in_group[layout.take_unit, layout.resource_group[layout.take_resource]] = 1.0  # -1, no group, is the last column
    alike = np.column_stack([layout.stage, layout.channel, layout.unit_kind, in_group[:, :-1], shape])
    _, first, of_unit = np.unique(alike, axis=0, return_index=True, return_inverse=True)
    lead, size = first[of_unit.ravel()], np.ones((count, layout.periods))
    tight, unit = tight_rates_per_s(layout), layout.pair_unit
    size[unit] = tight / tight[pair_of[lead[unit], layout.pair_slice]]
    return lead, pair_of, size
