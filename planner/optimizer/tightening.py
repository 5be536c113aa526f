"""The same whole solutions in fewer columns, with a tighter relaxation and coefficients of one size."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from planner.core import FloatArray, IntArray
from planner.optimizer.constraint_rows import ConstraintRows, Terms, rows_by_period
from planner.optimizer.layout import Layout
from planner.optimizer.program import Program
from planner.optimizer.types import Sense

_MAX_RATE_OVER_CEILING = 1e8
"""A unit is rated at no more than this many times all there is to carry. A choice that keeps coefficients in the
solver's range: it shifts results by less than 1e-8 of that."""
_LEAST_CARRY_MOST = 1e-6
"""Least coefficient of a unit in rows `carry_most`, for the solver's range; a larger one only loosens the row."""
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
    return np.minimum(layout.pair_rate[:, None] * _useful_share(layout)[layout.pair_unit], _rate_cap_per_s(layout))


def _useful_share(layout: Layout) -> FloatArray:
    """The most of a unit that is ever used: min(1, sum_s d_s / r_s). Shape (j, t)."""
    load = _load(layout)
    return np.where(load > 0.0, np.minimum(load, 1.0), 1.0)


def _load(layout: Layout) -> FloatArray:
    """Units that would carry all there is to carry by themselves: sum_s d_s / r_s. Shape (j, t)."""
    load = np.zeros((len(layout.usd_per_hour), layout.periods))
    np.add.at(load, layout.pair_unit, layout.ceiling_per_s[layout.pair_slice] / layout.pair_rate[:, None])
    return load


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
    load = _load(layout)
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


def pool_rates(program: Program) -> Program:
    """With one set of rates for all units of a stage, channel and kind whose rates are in proportion.

    ``sum_s f_js / r_js <= n_j`` for each of them is ``sum_s f_s / r_s <= sum_j (r_j / r) n_j`` once only the sum of
    their rates matters; it stands in the columns of the first of them, and `unpool_rates` gives it back to all. Of
    several slices, a row ``f_s <= sum_j min(r_js, d_s) n_j`` says what whole numbers of units imply and fractions do
    not. Of the purchases, those that come out whole by themselves need not be asked to (`_implied_integers`).

    Args:
        program: with any rows `carry_rate`.

    Returns:
        The program with rows `carry_together` and `carry_most` instead, and fewer columns.
    """
    layout, periods = program.layout, np.arange(program.layout.periods)
    rates = tight_rates_per_s(layout)
    used: list[Terms] = []
    supply: list[Terms] = []
    used_most: list[Terms] = []
    supply_most: list[Terms] = []
    idle: list[IntArray] = []
    for index, (pairs, size) in enumerate(pools(layout)):
        row, units, slices = index * len(periods) + periods, layout.pair_unit[pairs[:, 0]], layout.pair_slice[pairs[0]]
        first, on = layout.rate_column[pairs[0]], layout.units_column[units].ravel()
        rate = rates[pairs[0]]
        unit_of_row = rate if len(slices) == 1 else np.ones((1, len(periods)))
        used.append(Terms(np.tile(row, len(slices)), first.ravel(), (unit_of_row / rate).ravel()))
        supply.append(Terms(np.tile(row, len(units)), on, (size * unit_of_row).ravel()))
        idle.append(layout.rate_column[pairs[1:]].ravel())
        for column, slice_ in enumerate(slices.tolist() if len(slices) > 1 else ()):
            there, own = layout.ceiling_per_s[slice_], layout.pair_rate[pairs[:, column]][:, None]
            if (own > there).any() and there.any():
                asked = np.where(there > 0.0, there, 1.0)
                row = len(used_most) * len(periods) + periods
                could = np.maximum(np.minimum(own / asked, 1.0), _LEAST_CARRY_MOST)
                used_most.append(Terms(row, first[column], 1.0 / asked))
                supply_most.append(Terms(np.tile(row, len(units)), on, could.ravel()))
    stated = [rows for rows in program.rows if rows.constraint != "carry_rate"]
    if used:
        stated.append(_rows("carry_together", layout, used, supply))
    if 0 < len(used_most) * len(periods) <= MAX_CARRY_MOST_ROWS:
        stated.append(_rows("carry_most", layout, used_most, supply_most))
    fixed = np.concatenate(idle) if idle else np.zeros(0, dtype=np.int64)
    return replace(program, rows=tuple(stated), fixed_at_zero=fixed, implied_integer=_implied_integers(layout))


def _rows(constraint: str, layout: Layout, used: list[Terms], supply: list[Terms]) -> ConstraintRows:
    """Rows of which none has a limit of its own."""
    subjects = [(str(index),) for index in range(len(used))]
    terms, more = _concatenated(used), _concatenated(supply)
    return rows_by_period(layout, constraint, Sense.AT_MOST, subjects, "", terms, more)


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
    for pairs, size in pools(layout):
        pooled = values[layout.rate_column[pairs[0]]]
        used = (pooled / rates[pairs[0]]).sum(axis=0)
        could = size * values[layout.units_column[layout.pair_unit[pairs[:, 0]]]]
        before = np.cumsum(could, axis=0) - could
        share = np.clip(used - before, 0.0, could) / np.where(used > 0.0, used, 1.0)
        by_unit[layout.rate_column[pairs]] = share[:, None] * pooled
    return by_unit


def pools(layout: Layout) -> Iterator[tuple[IntArray, FloatArray]]:
    """Units whose rates are in proportion, of one stage, channel, kind and set of groups.

    Args:
        layout: of the problem.

    Yields:
        Their pairs, shape (units, slices), and what each may carry in units of the first, shape (units, t).
    """
    order = np.lexsort((layout.pair_slice, layout.pair_unit))
    ends = np.cumsum(np.bincount(layout.pair_unit, minlength=len(layout.usd_per_hour)))
    groups: dict[int, set[int]] = defaultdict(set)
    for unit, group in zip(layout.take_unit, layout.resource_group[layout.take_resource], strict=True):
        if group >= 0:
            groups[int(unit)].add(int(group))
    own = zip(layout.stage.tolist(), layout.channel.tolist(), layout.unit_kind.tolist(), strict=True)
    members: dict[tuple[object, ...], list[IntArray]] = defaultdict(list)
    for unit, place in enumerate(own):
        pairs = order[(ends[unit - 1] if unit else 0) : ends[unit]]
        if len(pairs):
            shape = layout.pair_rate[pairs] / layout.pair_rate[pairs[0]]
            key = (*place, frozenset(groups[unit]), layout.pair_slice[pairs].tobytes(), shape.round(9).tobytes())
            members[key].append(pairs)
    useful = _useful_share(layout)
    for pairs in map(np.array, members.values()):
        could = layout.pair_rate[pairs[:, 0]][:, None] * useful[layout.pair_unit[pairs[:, 0]]]
        yield pairs, could / could[0]


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
