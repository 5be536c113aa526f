"""The same whole solutions in fewer columns, with a tighter relaxation and coefficients of one size."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np

from planner.core import FloatArray, IntArray
from planner.optimizer.constraint_rows import ConstraintRows, Terms
from planner.optimizer.layout import Layout
from planner.optimizer.program import Program
from planner.optimizer.types import Sense

_MAX_RATE_OVER_CEILING = 1e8
"""A unit is rated at no more than this many times all there is to carry. A choice that keeps coefficients in the
solver's range: it shifts results by less than 1e-8 of that."""
MAX_CARRY_MOST_ROWS = 5_000
"""Rows `carry_most` beyond which they are left out. A choice of speed: 12,000 of them took four times as long as none
on 1,500 units of 12 slices."""


def tighten_rates(program: Program) -> Program:
    """The same whole solutions with a tighter relaxation and rates of one size.

    If one unit has the share L = sum_s d_s / r_s < 1 of itself to give at most (d_s all there is to carry), then
    ``sum_s f_s / r_s <= n`` may be ``<= L n`` for whole n: no more than L is ever used, and none without a unit. For a
    single slice that is r = min(r, d), and it keeps r x (a count that is 1e-8 off zero) from serving anything.

    Source: coefficient tightening, M. W. P. Savelsbergh 1994, "Preprocessing and probing techniques for mixed integer
    programming problems", ORSA Journal on Computing 6(4).

    Args:
        program: as stated.

    Returns:
        The program with other coefficients in its rows `carry_rate`.
    """
    return _with_unit_rates(program, tight_rates_per_s(program.layout))


def tight_rates_per_s(layout: Layout) -> FloatArray:
    """Rates of units as `tighten_rates` states them [1/s]: r min(1, sum_s d_s / r_s).

    Args:
        layout: of the problem.

    Returns:
        By pair and period, none out of all proportion to the demand; shape (p, t).
    """
    load = layout.ceiling_per_s[layout.pair_slice] / layout.pair_rate[:, None]
    share = np.zeros((len(layout.usd_per_hour), layout.periods))
    np.add.at(share, layout.pair_unit, load)
    useful = np.where(share > 0.0, np.minimum(share, 1.0), 1.0)
    return np.minimum(layout.pair_rate[:, None] * useful[layout.pair_unit], _rate_cap_per_s(layout))


def limit_counts(program: Program) -> Program:
    """The same best whole solutions with a largest count for every unit and block.

    One unit more than carries all there is to carry, ``ceil(sum_s d_s / r_s)``, is of no use (of a unit that stands
    still, or whose start costs something, in the busiest period; but what is pinned stays), nor is a block more than
    all units together take. Branch and bound over whole numbers without an end is several times slower.

    Args:
        program: as stated.

    Returns:
        The program with `Program.most`.
    """
    layout = program.layout
    load = np.zeros((len(layout.usd_per_hour), layout.periods))
    np.add.at(load, layout.pair_unit, layout.ceiling_per_s[layout.pair_slice] / layout.pair_rate[:, None])
    still = layout.steady.copy()
    still[layout.start_units] = True
    load[still] = load[still].max(axis=1, keepdims=True)
    units = np.maximum(np.ceil(load), layout.at_least[:, None])
    taken = np.zeros((len(layout.problem.resources), layout.periods))
    np.add.at(taken, layout.take_resource, layout.take_amount[:, None] * units[layout.take_unit])
    pinned = [resource.at_least for resource in layout.problem.resources]
    of_purchases = [purchase.at_least for resource in layout.problem.resources for purchase in resource.purchases]
    need = np.maximum(taken / _least_usable_share(layout), np.array(pinned)[:, None])[layout.purchase_resource].max(
        axis=1, initial=0.0
    )
    blocks = np.ceil(np.maximum(need, np.array(of_purchases)) / layout.purchase_block)
    most = np.full(layout.columns, math.inf)
    most[layout.units_column] = units
    most[layout.blocks_column] = blocks[:, None]
    return replace(program, most=most)


def _least_usable_share(layout: Layout) -> FloatArray:
    """Least share of what is bought of each resource that is usable; shape (r, 1)."""
    usable = np.ones(len(layout.problem.resources))
    np.minimum.at(usable, layout.purchase_resource, layout.purchase_usable)
    return usable[:, None]


def cap_rates(program: Program) -> Program:
    """The program with its own relaxation: only rates out of all proportion to the demand are cut.

    Args:
        program: as stated.

    Returns:
        The program with other coefficients in its rows `carry_rate`.
    """
    layout = program.layout
    return _with_unit_rates(program, np.minimum(layout.pair_rate[:, None], _rate_cap_per_s(layout)))


def _rate_cap_per_s(layout: Layout) -> FloatArray:
    """Largest rate of a pair in a period: `_MAX_RATE_OVER_CEILING` times all there is to carry [1/s]. Shape (p, t)."""
    ceiling = layout.ceiling_per_s[layout.pair_slice]
    return np.where(ceiling > 0.0, ceiling * _MAX_RATE_OVER_CEILING, math.inf)


def _with_unit_rates(program: Program, rate_per_s: FloatArray) -> Program:
    def cut(rows: ConstraintRows) -> ConstraintRows:
        return replace(rows, used=replace(rows.used, value=1.0 / rate_per_s.ravel()))

    return replace(program, rows=tuple(cut(r) if r.constraint == "carry_rate" else r for r in program.rows))


def add_carry_most_rows(program: Program) -> Program:
    """With a row ``f[j, s, t] <= d[s, t] n[j, t]`` for units of several slices that could carry more than there is.

    Implied by whole numbers of units, not by fractions of them.

    Args:
        program: of any rows.

    Returns:
        The program with rows `carry_most`; the same object where there are none, or more than `MAX_CARRY_MOST_ROWS`.
    """
    layout = program.layout
    ceiling = layout.ceiling_per_s[layout.pair_slice]
    serves = np.bincount(layout.pair_unit, minlength=len(layout.usd_per_hour))[layout.pair_unit]
    pair, period = np.nonzero((serves > 1)[:, None] & (layout.pair_rate[:, None] > ceiling) & (ceiling > 0.0))
    if not 0 < len(pair) <= MAX_CARRY_MOST_ROWS:
        return program
    number = np.arange(len(pair))
    rows = ConstraintRows(
        constraint="carry_most",
        sense=Sense.AT_MOST,
        subjects=[(unit.name,) for unit in layout.problem.units],
        subject=layout.pair_unit[pair],
        field="units[{}].rates_per_s",
        periods=period,
        limit=np.zeros(len(pair)),
        used=Terms(number, layout.rate_column[pair, period], 1.0 / ceiling[pair, period]),
        supply=Terms(number, layout.units_column[layout.pair_unit[pair], period], np.ones(len(pair))),
    )
    return replace(program, rows=(*program.rows, rows))


def pool_rates(program: Program) -> Program:
    """With one rate for all units of a stage and channel that serve a single slice, the same for all of them.

    ``f_j <= r_j n_j`` for each of them is ``sum_j f_j <= sum_j r_j n_j`` once only the sum matters. The sum stands in
    the column of the first of them; `unpool_rates` gives it back to all. Of the purchases, those that come out whole by
    themselves need not be asked to (`_implied_integers`).

    Args:
        program: with the rates of `tighten_rates`.

    Returns:
        The program with rows `carry_together` and fewer columns.
    """
    layout = program.layout
    pools = _poolable_pairs(layout)
    rates = tight_rates_per_s(layout)
    alone = np.zeros(len(layout.usd_per_hour), dtype=bool)
    used, supply, fixed_at_zero = [], [], []
    periods = np.arange(layout.periods)
    for index, pairs in enumerate(pools):
        row = index * layout.periods + periods
        units = layout.pair_unit[pairs]
        alone[units] = True
        fixed_at_zero.append(layout.rate_column[pairs[1:]].ravel())
        used.append(Terms(row, layout.rate_column[pairs[0]], np.ones(layout.periods)))
        supply.append(Terms(np.tile(row, len(pairs)), layout.units_column[units].ravel(), rates[pairs].ravel()))
    if not pools:
        return replace(program, implied_integer=_implied_integers(layout))
    together = ConstraintRows(
        constraint="carry_together",
        sense=Sense.AT_MOST,
        subjects=[(str(index),) for index in range(len(pools))],
        subject=np.repeat(np.arange(len(pools)), layout.periods),
        field="",
        periods=np.tile(periods, len(pools)),
        limit=np.zeros(len(pools) * layout.periods),
        used=_concatenated(used),
        supply=_concatenated(supply),
    )
    others = [rows.select(~alone[rows.subject]) if rows.constraint == "carry_rate" else rows for rows in program.rows]
    stated = (*(rows for rows in others if len(rows)), together)
    return replace(
        program, rows=stated, fixed_at_zero=np.concatenate(fixed_at_zero), implied_integer=_implied_integers(layout)
    )


def unpool_rates(layout: Layout, values: FloatArray) -> FloatArray:
    """Values of `pool_rates` by unit: filled one after the other, so that what is not needed carries nothing.

    Args:
        layout: of the program.
        values: by column of the layout, pooled.

    Returns:
        By column, with a rate for every pair [1/s].
    """
    by_unit = values.copy()
    rates = tight_rates_per_s(layout)
    for pairs in _poolable_pairs(layout):
        left = values[layout.rate_column[pairs[0]]]
        could = rates[pairs] * values[layout.units_column[layout.pair_unit[pairs]]]
        before = np.cumsum(could, axis=0) - could
        by_unit[layout.rate_column[pairs]] = np.clip(left[None, :] - before, 0.0, could)
    return by_unit


def _poolable_pairs(layout: Layout) -> list[IntArray]:
    """Pairs of units of one slice, by kind, stage, channel, slice and groups."""
    serves = np.bincount(layout.pair_unit, minlength=len(layout.usd_per_hour))
    groups = defaultdict(set)
    for unit, group in zip(layout.take_unit, layout.resource_group[layout.take_resource], strict=True):
        if group >= 0:
            groups[int(unit)].add(int(group))
    pools: dict[tuple[int, int, int, int, frozenset[int]], list[int]] = defaultdict(list)
    for pair in np.flatnonzero(serves[layout.pair_unit] == 1).tolist():
        unit = int(layout.pair_unit[pair])
        key = (
            int(layout.unit_kind[unit]),
            int(layout.stage[unit]),
            int(layout.channel[unit]),
            int(layout.pair_slice[pair]),
            frozenset(groups[unit]),
        )
        pools[key].append(pair)
    return [np.array(pairs) for pairs in pools.values()]


def _implied_integers(layout: Layout) -> IntArray:
    """Columns of one purchase of each resource that come out whole, where all that is taken or bought otherwise is.

    It is bought by the piece and fills up what the others leave, a whole number; what is bought beyond that is dropped
    afterwards.
    """
    columns = []
    whole = layout.purchase_block * layout.purchase_usable
    for index, resource in enumerate(layout.problem.resources):
        mine = np.flatnonzero(layout.purchase_resource == index)
        single = [q for q in mine if layout.purchase_block[q] == 1.0 and layout.purchase_usable[q] == 1.0]
        if layout.periods > 1:
            single = [q for q in single if not layout.purchase_committed[q]]
        limits = [
            resource.at_least,
            *(p.at_least for p in resource.purchases),
            *(p.at_most or 0.0 for p in resource.purchases),
        ]
        takes = layout.take_amount[layout.take_resource == index]
        if single and all(_is_whole(np.asarray(amounts, dtype=float)) for amounts in (takes, whole[mine], limits)):
            columns.append(layout.blocks_column[single[0]])
    return np.unique(np.concatenate(columns)) if columns else np.zeros(0, dtype=np.int64)


def _is_whole(values: FloatArray) -> bool:
    return bool((values == np.round(values)).all())


def _concatenated(terms: list[Terms]) -> Terms:
    return Terms(
        np.concatenate([part.row for part in terms]),
        np.concatenate([part.column for part in terms]),
        np.concatenate([part.value for part in terms]),
    )
