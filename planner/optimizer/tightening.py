"""The same whole solutions in fewer columns, with a tighter relaxation and coefficients of one size."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from planner.core import FloatArray
from planner.optimizer.layout import Layout
from planner.optimizer.program import Program


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
    lead, _, size = layout.pools
    leads = np.flatnonzero(lead[layout.pair_unit] == layout.pair_unit)
    unit = np.concatenate([layout.pair_unit[leads], lead])
    pooled = {
        "row": (unit[:, None] * len(periods) + periods).ravel(),
        "column": np.concatenate([layout.column.rates[leads], layout.column.units]).ravel(),
        "value": np.concatenate([1.0 / layout.tight_rates_per_s[leads], -size]).ravel(),
    }
    rows = (replace(r, **pooled) if r.constraint == "carry_rate" else r for r in program.rows)
    load = layout.load.copy()
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
    by_unit, rates = values.copy(), layout.tight_rates_per_s
    lead, pair_of, size = layout.pools
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
