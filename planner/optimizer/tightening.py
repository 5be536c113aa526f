"""The same whole solutions in fewer columns, with a tighter relaxation and coefficients of one size."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np

from planner.optimizer.constraint_rows import Rows, Terms
from planner.optimizer.layout import Floats, Ints, Layout
from planner.optimizer.program import Program
from planner.optimizer.types import Sense

_MOST_TIMES_THE_CEILING = 1e8
"""A unit that could carry more than this many times all there is is rated at that: it shifts less than 1e-8 of it."""


def tightened(program: Program) -> Program:
    """The same whole solutions with a tighter relaxation and rates of one size.

    If one unit has the share L = sum_s d_s / r_s < 1 of itself to give at most (d_s all there is to carry), then
    ``sum_s f_s / r_s <= n`` may be ``<= L n`` for whole n: no more than L is ever used, and none without a unit. For a
    single slice that is r = min(r, d), and it keeps r x (a count that is 1e-8 off zero) from serving anything.
    Coefficient tightening: M. W. P. Savelsbergh 1994, "Preprocessing and probing techniques for mixed integer
    programming problems", ORSA Journal on Computing 6(4).
    """
    return _with_rates(program, tight_rates_per_s(program.layout))


def tight_rates_per_s(layout: Layout) -> Floats:
    """Rates times min(1, sum_s d_s / r_s), see `tightened`; none out of all proportion to d. Shape (p, t)."""
    load = layout.ceiling_per_s[layout.pair_slice] / layout.pair_rate[:, None]
    share = np.zeros((len(layout.usd_per_hour), layout.periods))
    np.add.at(share, layout.pair_unit, load)
    useful = np.where(share > 0.0, np.minimum(share, 1.0), 1.0)
    return np.minimum(layout.pair_rate[:, None] * useful[layout.pair_unit], _most_per_s(layout))


def tamed(program: Program) -> Program:
    """The program with its own relaxation: only rates out of all proportion to the demand are cut."""
    layout = program.layout
    return _with_rates(program, np.minimum(layout.pair_rate[:, None], _most_per_s(layout)))


def _most_per_s(layout: Layout) -> Floats:
    """Rate of a pair in all proportion to what there is to carry."""
    ceiling = layout.ceiling_per_s[layout.pair_slice]
    return np.where(ceiling > 0.0, ceiling * _MOST_TIMES_THE_CEILING, math.inf)


def _with_rates(program: Program, rate_per_s: Floats) -> Program:
    def cut(rows: Rows) -> Rows:
        return replace(rows, used=replace(rows.used, value=1.0 / rate_per_s.ravel()))

    return replace(program, rows=tuple(cut(r) if r.constraint == "carry_rate" else r for r in program.rows))


def with_carry_most(program: Program) -> Program:
    """With a row ``f[j, s, t] <= d[s, t] n[j, t]`` for units of several slices that could carry more than there is.

    Implied by whole numbers of units, not by fractions of them.
    """
    layout = program.layout
    ceiling = layout.ceiling_per_s[layout.pair_slice]
    serves = np.bincount(layout.pair_unit, minlength=len(layout.usd_per_hour))[layout.pair_unit]
    pair, period = np.nonzero((serves > 1)[:, None] & (layout.pair_rate[:, None] > ceiling) & (ceiling > 0.0))
    if not len(pair):
        return program
    number = np.arange(len(pair))
    rows = Rows(
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


def pooled(program: Program) -> Program:
    """With one rate for all units of a stage and channel that serve a single slice, the same for all of them.

    ``f_j <= r_j n_j`` for each of them is ``sum_j f_j <= sum_j r_j n_j`` once only the sum matters. The sum stands in
    the column of the first of them; `spread` gives it back to all. Of the ways of buying, those that come out whole by
    themselves need not be asked to (`_implied`).
    """
    layout = program.layout
    pools = _pools(layout)
    rates = tight_rates_per_s(layout)
    alone = np.zeros(len(layout.usd_per_hour), dtype=bool)
    used, supply, gone = [], [], []
    periods = np.arange(layout.periods)
    for index, pairs in enumerate(pools):
        row = index * layout.periods + periods
        units = layout.pair_unit[pairs]
        alone[units] = True
        gone.append(layout.rate_column[pairs[1:]].ravel())
        used.append(Terms(row, layout.rate_column[pairs[0]], np.ones(layout.periods)))
        supply.append(Terms(np.tile(row, len(pairs)), layout.units_column[units].ravel(), rates[pairs].ravel()))
    if not pools:
        return replace(program, implied=_implied(layout))
    together = Rows(
        constraint="carry_together",
        sense=Sense.AT_MOST,
        subjects=[(str(index),) for index in range(len(pools))],
        subject=np.repeat(np.arange(len(pools)), layout.periods),
        field="",
        periods=np.tile(periods, len(pools)),
        limit=np.zeros(len(pools) * layout.periods),
        used=_joined(used),
        supply=_joined(supply),
    )
    others = [r.only(~alone[r.subject]) if r.constraint == "carry_rate" else r for r in program.rows]
    rows = (*(one for one in others if len(one)), together)
    return replace(program, rows=rows, gone=np.concatenate(gone), implied=_implied(layout))


def spread(layout: Layout, values: Floats) -> Floats:
    """Values of `pooled` by unit: filled one after the other, so that what is not needed carries nothing."""
    found = values.copy()
    rates = tight_rates_per_s(layout)
    for pairs in _pools(layout):
        left = values[layout.rate_column[pairs[0]]]
        could = rates[pairs] * values[layout.units_column[layout.pair_unit[pairs]]]
        before = np.cumsum(could, axis=0) - could
        found[layout.rate_column[pairs]] = np.clip(left[None, :] - before, 0.0, could)
    return found


def _pools(layout: Layout) -> list[Ints]:
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


def _implied(layout: Layout) -> Ints:
    """Of each resource one purchase by the piece, if all that is taken or bought otherwise is whole.

    It fills up what the others leave, a whole number; what is bought beyond that is dropped afterwards.
    """
    found = []
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
        if single and all(_is_whole(np.asarray(one, dtype=float)) for one in (takes, whole[mine], limits)):
            found.append(layout.blocks_column[single[0]])
    return np.unique(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64)


def _is_whole(values: Floats) -> bool:
    return bool((values == np.round(values)).all())


def _joined(terms: list[Terms]) -> Terms:
    return Terms(
        np.concatenate([one.row for one in terms]),
        np.concatenate([one.column for one in terms]),
        np.concatenate([one.value for one in terms]),
    )
