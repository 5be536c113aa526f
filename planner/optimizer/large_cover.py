"""What whole units cost: the cheapest purchases that cover them, their starts, and the rates they carry."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from planner.core import PlannerError
from planner.optimizer.large_tables import BEYOND, Buying, Floats, Tables
from planner.optimizer.types import FEASIBILITY_TOLERANCE, Stage

NEEDED_SLACK = 1e-9
"""Share by which use may exceed what is bought: rounding of sums, far below `FEASIBILITY_TOLERANCE`."""
COVER_TIME_S = 1.0
"""Most time for the purchases of one resource [s]; they are a handful of integers."""


@dataclass(frozen=True)
class Fleet:
    """Whole units with what is bought for them.

    Attributes:
        units: on [J, T].
        bought: by index of `Tables.buyings` [units of the resource; T].
        cost: mean over the horizon, starts included [USD/h].
    """

    units: Floats
    bought: Floats
    cost: float


Known = dict[tuple[int, bytes], Floats | None]
"""Cheapest purchases by resource and use, so that they are not looked for twice."""


def fleet_of(tables: Tables, units: Floats, known: Known | None = None) -> Fleet | None:
    """Buy as cheaply as possible for these units; None: they exceed a limit."""
    known = {} if known is None else known
    used = tables.takes.T @ units
    if (used > tables.caps[:, None] * (1.0 + FEASIBILITY_TOLERANCE)).any():
        return None
    bought = np.zeros((len(tables.buyings), tables.periods))
    for resource in dict.fromkeys(one.resource for one in tables.buyings):
        indices = [index for index, one in enumerate(tables.buyings) if one.resource == resource]
        ways = [tables.buyings[index] for index in indices]
        need = used[ways[0].hold]
        key = (resource, need.tobytes())
        if key not in known:
            known[key] = cheapest_purchases(ways, need, tables.pins.get(resource, 0.0), tables.weights)
        amounts = known[key]
        if amounts is None:
            return None
        bought[indices] = amounts
    return Fleet(units, bought, _cost(tables, units, bought))


def _cost(tables: Tables, units: Floats, bought: Floats) -> float:
    running = float((tables.unit_usd[:, None] * units * tables.weights).sum())
    usd = np.array([one.purchase.usd_per_hour for one in tables.buyings])
    purchases = float((usd[:, None] * bought * tables.weights).sum()) if len(usd) else 0.0
    starts = np.maximum(units - np.roll(units, 1, axis=1), 0.0)
    return running + purchases + float((tables.start_usd[:, None] * starts).sum())


def cheapest_purchases(ways: list[Buying], used: Floats, pinned: float, weights: Floats) -> Floats | None:
    """Least cost of holding what is used in every period, in whole blocks [ways, T]; None: it cannot be bought.

    Integers: blocks of each committed way once, of each other way by period.
    """
    periods = len(weights)
    columns: list[tuple[int, int]] = []
    for way, buying in enumerate(ways):
        columns += [(way, -1)] if buying.purchase.committed else [(way, period) for period in range(periods)]
    cost = np.array([_block_usd(ways[way], 1.0 if period < 0 else float(weights[period])) for way, period in columns])
    rows, places, usable, plain = [], [], [], []
    for place, (way, period) in enumerate(columns):
        for row in range(periods) if period < 0 else [period]:
            rows.append(row)
            places.append(place)
            usable.append(ways[way].purchase.usable_share * ways[way].purchase.block)
            plain.append(float(ways[way].purchase.block))
    shape = (periods, len(columns))
    limits = [LinearConstraint(csr_array((usable, (rows, places)), shape=shape), used * (1.0 - NEEDED_SLACK), np.inf)]
    if pinned > 0.0:
        limits.append(LinearConstraint(csr_array((plain, (rows, places)), shape=shape), pinned, np.inf))
    low = np.array([ways[way].low / ways[way].purchase.block for way, _ in columns])
    high = np.array([ways[way].high / ways[way].purchase.block for way, _ in columns])
    found = milp(
        cost,
        integrality=np.ones(len(columns), dtype=np.int64),
        bounds=Bounds(low, high),
        constraints=limits,
        options={"mip_rel_gap": 0.0, "time_limit": COVER_TIME_S},
    )
    if found.x is None:
        return None
    amounts = np.zeros((len(ways), periods))
    for (way, period), blocks in zip(columns, np.round(found.x), strict=True):
        if period < 0:
            amounts[way, :] = blocks * ways[way].purchase.block
        else:
            amounts[way, period] = blocks * ways[way].purchase.block
    return amounts


def _block_usd(buying: Buying, weight: float) -> float:
    return buying.purchase.usd_per_hour * buying.purchase.block * weight


def routed(tables: Tables, demand: Floats, units: Floats) -> dict[str, dict[str, tuple[float, ...]]]:
    """Rate that every unit carries of every slice in each period [1/s], the fullest group as empty as possible."""
    rates: dict[int, Floats] = {}
    for period in range(tables.periods):
        for group, carried in balanced(tables, demand[:, period], units[:, period]).items():
            members = np.flatnonzero((tables.group == group) & (units[:, period] > 0.0))
            capacity = tables.scale[members] * units[members, period]
            for unit, share in zip(members, capacity / capacity.sum(), strict=True):
                rates.setdefault(int(unit), np.zeros(demand.shape))[:, period] += share * carried
    return {
        tables.unit_names[unit]: {
            tables.slice_names[index]: tuple(float(one) for one in carried[index])
            for index in np.flatnonzero(carried.any(axis=1))
        }
        for unit, carried in sorted(rates.items())
    }


def balanced(tables: Tables, demand: Floats, units: Floats) -> dict[int, Floats]:
    """By group, the rate of each slice [1/s; S] at which the largest utilisation of any group is least.

    A linear program: min u, sum_s seconds_gs f_gs <= u capacity_g, every slice served, stages balanced.
    """
    capacity = np.zeros(len(tables.group_seconds))
    np.add.at(capacity, tables.group, tables.scale * units)
    asked = [int(index) for index in np.flatnonzero(demand > 0.0)]
    groups = [int(group) for group in np.flatnonzero(capacity > 0.0)]
    pairs = [(group, int(s)) for group in groups for s in asked if tables.group_seconds[group, s] < BEYOND]
    if not pairs:
        return {}
    carry, serve = csr_rows(tables, pairs, groups, asked, demand, capacity)
    served = serve.shape[0]
    right = np.concatenate([np.ones(len(asked)), np.zeros(served - len(asked))])
    cost = np.zeros(len(pairs) + 1)
    cost[-1] = 1.0
    found = milp(
        cost,
        bounds=Bounds(0.0, np.inf),
        constraints=[LinearConstraint(carry, -np.inf, 0.0), LinearConstraint(serve, right, right)],
    )
    rates: dict[int, Floats] = {}
    if found.x is None:
        raise PlannerError("units", float(capacity.sum()), "do not carry what they were chosen for", "report this")
    for (group, index), share in zip(pairs, found.x[:-1], strict=True):
        if share > 0.0:
            rates.setdefault(group, np.zeros(len(demand)))[index] = share * demand[index]
    return rates


def csr_rows(
    tables: Tables,
    pairs: list[tuple[int, int]],
    groups: list[int],
    asked: list[int],
    demand: Floats,
    capacity: Floats,
) -> tuple[csr_array, csr_array]:
    """Rows of that program: utilisation of each group, then each slice served and each stage balanced."""
    row_of = {group: row for row, group in enumerate(groups)}
    serve_of = {int(index): row for row, index in enumerate(asked)}
    hand_over: dict[tuple[str, int], int] = {}
    used: list[tuple[int, int, float]] = [(row, len(pairs), -1.0) for row in range(len(groups))]
    equal: list[tuple[int, int, float]] = []
    for place, (group, index) in enumerate(pairs):
        section = tables.sections[int(tables.group_section[group])]
        share = float(tables.group_seconds[group, index] * demand[index] / capacity[group])
        used.append((row_of[group], place, share))
        if section.stage is not Stage.SECOND:
            equal.append((serve_of[index], place, 1.0))
        if section.stage is not Stage.WHOLE:
            row = hand_over.setdefault((section.channel, index), len(asked) + len(hand_over))
            equal.append((row, place, 1.0 if section.stage is Stage.FIRST else -1.0))
    width = len(pairs) + 1
    return _matrix(used, len(groups), width), _matrix(equal, len(asked) + len(hand_over), width)


def _matrix(entries: list[tuple[int, int, float]], rows: int, columns: int) -> csr_array:
    row, column, value = zip(*entries, strict=True)
    return csr_array((value, (row, column)), shape=(rows, columns))
