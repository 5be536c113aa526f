"""What whole units cost: the cheapest purchases that cover them, their starts, and the rates they carry."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from planner.core import FloatArray, PlannerError
from planner.optimizer.large_tables import UNSERVED_ABOVE, ResourcePurchase, Tables
from planner.optimizer.types import FEASIBILITY_TOLERANCE, UnitStage

USE_TOLERANCE = 1e-9
"""Share by which use may exceed what is bought. Covers rounding of sums, far below `FEASIBILITY_TOLERANCE`."""
PURCHASE_NODES = 1000
"""Nodes for the purchases of one resource. A choice: they are a handful of integers, solved in far fewer."""


@dataclass(frozen=True)
class CostedFleet:
    """Whole units, what is bought for them, and the cost of both.

    Attributes:
        units: on [J, T].
        bought: by index of `Tables.purchases` [units of the resource; T].
        cost: mean over the horizon, starts included [USD/h].
    """

    units: FloatArray
    bought: FloatArray
    cost: float


KnownPurchases = dict[tuple[int, bytes], FloatArray | None]
"""Cheapest purchases by resource and use in every period, so that no program is solved twice."""


def buy_fleet(tables: Tables, units: FloatArray, known: KnownPurchases | None = None) -> CostedFleet | None:
    """Buy as cheaply as possible for whole units.

    Args:
        tables: of the problem.
        units: on in each period [J, T].
        known: purchases found before; added to.

    Returns:
        The units with their purchases; None: they exceed a limit.
    """
    known = {} if known is None else known
    used = tables.takes.T @ units
    if (used > tables.caps[:, None] * (1.0 + FEASIBILITY_TOLERANCE)).any():
        return None
    bought = np.zeros((len(tables.purchases), tables.periods))
    for resource in dict.fromkeys(option.resource for option in tables.purchases):
        indices = [index for index, option in enumerate(tables.purchases) if option.resource == resource]
        options = [tables.purchases[index] for index in indices]
        need = used[options[0].limit_index]
        key = (resource, need.tobytes())
        if key not in known:
            known[key] = cheapest_purchases(options, need, tables.pins.get(resource, 0.0), tables.weights)
        amounts = known[key]
        if amounts is None:
            return None
        bought[indices] = amounts
    return CostedFleet(units, bought, _cost(tables, units, bought))


def _cost(tables: Tables, units: FloatArray, bought: FloatArray) -> float:
    running = float((tables.unit_usd[:, None] * units * tables.weights).sum())
    usd = np.array([option.purchase.usd_per_hour for option in tables.purchases])
    purchases = float((usd[:, None] * bought * tables.weights).sum()) if len(usd) else 0.0
    starts = np.maximum(units - np.roll(units, 1, axis=1), 0.0)
    return running + purchases + float((tables.start_usd[:, None] * starts).sum())


def cheapest_purchases(
    options: list[ResourcePurchase], used: FloatArray, pinned: float, weights: FloatArray
) -> FloatArray | None:
    """Least cost of holding what is used in every period, in whole blocks.

    An integer program: blocks of each committed purchase once, of each other by period.

    Args:
        options: purchases of one resource.
        used: of the resource in each period [units of the resource; T].
        pinned: fewest bought in every period [units of the resource].
        weights: share of the horizon of each period [T].

    Returns:
        Amounts held [units of the resource; options, T]; None: it cannot be bought.
    """
    periods = len(weights)
    columns: list[tuple[int, int]] = []
    for index, option in enumerate(options):
        columns += [(index, -1)] if option.purchase.committed else [(index, period) for period in range(periods)]
    cost = np.array([_block_usd(options[i], 1.0 if period < 0 else float(weights[period])) for i, period in columns])
    rows, places, usable, plain = [], [], [], []
    for place, (index, period) in enumerate(columns):
        for row in range(periods) if period < 0 else [period]:
            rows.append(row)
            places.append(place)
            usable.append(options[index].purchase.usable_share * options[index].purchase.block)
            plain.append(float(options[index].purchase.block))
    shape = (periods, len(columns))
    limits = [LinearConstraint(csr_array((usable, (rows, places)), shape=shape), used * (1.0 - USE_TOLERANCE), np.inf)]
    if pinned > 0.0:
        limits.append(LinearConstraint(csr_array((plain, (rows, places)), shape=shape), pinned, np.inf))
    low = np.array([options[index].low / options[index].purchase.block for index, _ in columns])
    high = np.array([options[index].high / options[index].purchase.block for index, _ in columns])
    solution = milp(
        cost,
        integrality=np.ones(len(columns), dtype=np.int64),
        bounds=Bounds(low, high),
        constraints=limits,
        options={"mip_rel_gap": 0.0, "node_limit": PURCHASE_NODES},
    )
    if solution.x is None:
        return None
    amounts = np.zeros((len(options), periods))
    for (index, period), blocks in zip(columns, np.round(solution.x), strict=True):
        if period < 0:
            amounts[index, :] = blocks * options[index].purchase.block
        else:
            amounts[index, period] = blocks * options[index].purchase.block
    return amounts


def _block_usd(option: ResourcePurchase, weight: float) -> float:
    return option.purchase.usd_per_hour * option.purchase.block * weight


def even_rates_per_s(tables: Tables, demand: FloatArray, units: FloatArray) -> dict[str, dict[str, tuple[float, ...]]]:
    """Rate that every unit carries of every slice in each period, with the fullest group as empty as possible.

    Args:
        tables: of the problem.
        demand: that each period serves [1/s; S, T].
        units: on in each period [J, T].

    Returns:
        By unit and slice, the rate in each period [1/s].
    """
    rates: dict[int, FloatArray] = {}
    for period in range(tables.periods):
        for group, carried in balanced_rates_per_s(tables, demand[:, period], units[:, period]).items():
            members = np.flatnonzero((tables.group == group) & (units[:, period] > 0.0))
            capacity = tables.scale[members] * units[members, period]
            for unit, share in zip(members, capacity / capacity.sum(), strict=True):
                rates.setdefault(int(unit), np.zeros(demand.shape))[:, period] += share * carried
    return {
        tables.unit_names[unit]: {
            tables.slice_names[index]: tuple(float(rate) for rate in carried[index])
            for index in np.flatnonzero(carried.any(axis=1))
        }
        for unit, carried in sorted(rates.items())
    }


def balanced_rates_per_s(tables: Tables, demand: FloatArray, units: FloatArray) -> dict[int, FloatArray]:
    """Rates of one period at which the largest utilisation of any group is least.

    A linear program: min u, sum_s seconds_gs f_gs <= u capacity_g, every slice served, stages balanced.

    Args:
        tables: of the problem.
        demand: of each slice [1/s; S].
        units: on [J].

    Returns:
        By group, the rate of each slice [1/s; S].

    Raises:
        PlannerError: the units do not carry the demand.
    """
    capacity = np.zeros(len(tables.group_seconds))
    np.add.at(capacity, tables.group, tables.scale * units)
    asked = [int(index) for index in np.flatnonzero(demand > 0.0)]
    groups = [int(group) for group in np.flatnonzero(capacity > 0.0)]
    pairs = [(group, int(s)) for group in groups for s in asked if tables.group_seconds[group, s] < UNSERVED_ABOVE]
    if not pairs:
        return {}
    carry, serve = _balance_rows(tables, pairs, groups, asked, demand, capacity)
    served = serve.shape[0]
    right = np.concatenate([np.ones(len(asked)), np.zeros(served - len(asked))])
    cost = np.zeros(len(pairs) + 1)
    cost[-1] = 1.0
    solution = milp(
        cost,
        bounds=Bounds(0.0, np.inf),
        constraints=[LinearConstraint(carry, -np.inf, 0.0), LinearConstraint(serve, right, right)],
    )
    rates: dict[int, FloatArray] = {}
    if solution.x is None:
        raise PlannerError("units", float(capacity.sum()), "do not carry what they were chosen for", "report this")
    for (group, index), share in zip(pairs, solution.x[:-1], strict=True):
        if share > 0.0:
            rates.setdefault(group, np.zeros(len(demand)))[index] = share * demand[index]
    return rates


def _balance_rows(
    tables: Tables,
    pairs: list[tuple[int, int]],
    groups: list[int],
    asked: list[int],
    demand: FloatArray,
    capacity: FloatArray,
) -> tuple[csr_array, csr_array]:
    """Rows of that program: utilisation of each group; each slice served, and each stage balanced."""
    row_of = {group: row for row, group in enumerate(groups)}
    serve_of = {int(index): row for row, index in enumerate(asked)}
    stage_row: dict[tuple[str, int], int] = {}
    used: list[tuple[int, int, float]] = [(row, len(pairs), -1.0) for row in range(len(groups))]
    equal: list[tuple[int, int, float]] = []
    for place, (group, index) in enumerate(pairs):
        section = tables.sections[int(tables.group_section[group])]
        share = float(tables.group_seconds[group, index] * demand[index] / capacity[group])
        used.append((row_of[group], place, share))
        if section.stage is not UnitStage.SECOND:
            equal.append((serve_of[index], place, 1.0))
        if section.stage is not UnitStage.WHOLE:
            row = stage_row.setdefault((section.channel, index), len(asked) + len(stage_row))
            equal.append((row, place, 1.0 if section.stage is UnitStage.FIRST else -1.0))
    width = len(pairs) + 1
    return _matrix(used, len(groups), width), _matrix(equal, len(asked) + len(stage_row), width)


def _matrix(entries: list[tuple[int, int, float]], rows: int, columns: int) -> csr_array:
    row, column, value = zip(*entries, strict=True)
    return csr_array((value, (row, column)), shape=(rows, columns))
