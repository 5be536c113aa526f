"""A lower bound on the cost of a large fleet problem: column generation with a bound that holds at any time.

The relaxation lets units and blocks be fractions. A fractional unit is never partly idle, so that it is gone once the
share of it that a slice takes is written as routed rate / rate: what is left is, for every slice and period, a choice
of *routes* (a whole unit, or a unit of the first and one of the second stage of a channel) under the limits. Routes
enter the restricted program only when their price asks for it (Gilmore and Gomory 1961).

Every vector of prices of the limits, converged or not, proves a bound (`large_bound`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import highspy
import numpy as np

from planner.core import FloatArray
from planner.optimizer.large_bound import (
    NEGLIGIBLE,
    ZERO_PRICE,
    LagrangianBound,
    Prices,
    cheapest_purchase_prices,
    lagrangian_bound,
)
from planner.optimizer.large_tables import UNSERVED_ABOVE, ResourcePurchase, Tables

CONVERGENCE_GAP = 1e-4
"""Column generation stops when the restricted program is at most this share above the bound. A choice, a
fiftieth of the 0.5 % that large fleets are proved to."""
SHORTFALL_PRICE = 100.0
"""Price of not serving a slice, as a multiple of its cheapest route at the first prices; raised while it is paid."""
MAX_PRICE_RAISES = 4
"""Number of times that price is raised, a hundredfold each time, before infeasibility is tested instead."""


class Route(NamedTuple):
    """Indices of a slice, a period and the units that serve it; `second` is -1 for a whole unit."""

    slice_: int
    period: int
    first: int
    second: int


class UsedRoute(NamedTuple):
    """A route, and the share of the slice's amount that takes it."""

    route: Route
    share: float


@dataclass(frozen=True)
class MasterSolution:
    """The relaxation, solved as far as time allowed.

    Attributes:
        bound: the best that was proved.
        cost: of the restricted program [USD/h]; above the bound until converged.
        shortfall: share of some slice that is not served; above zero: the limits may be too tight.
        routes: those in use.
        bought: by index of `Tables.purchases` [units of the resource; T].
    """

    bound: LagrangianBound
    cost: float
    shortfall: float
    routes: tuple[UsedRoute, ...]
    bought: FloatArray


class RestrictedMaster:
    """The restricted program over the routes generated so far, kept in HiGHS between rounds."""

    def __init__(self, tables: Tables, shortfall_price: FloatArray) -> None:
        """Rows of limits, starts, demand and pins; columns of purchases, starts and shortfall.

        Args:
            tables: the problem.
            shortfall_price: cost of serving none of a slice's amount [S, T].
        """
        self.tables = tables
        self.solver = highspy.Highs()
        self.solver.setOptionValue("output_flag", False)
        self.solver.setOptionValue("threads", 1)
        self.columns: list[tuple[float, float, float, list[tuple[int, float]]]] = []
        self.routes: list[Route] = []
        self.route_column: list[int] = []
        self.unit_limit_row: dict[tuple[int, int], int] = {}
        self.known: set[Route] = set()
        self.idle: set[tuple[int, int]] = set()
        self.count = 0
        self._rows()
        self.purchase_columns = [self._purchase_columns(option) for option in tables.purchases]
        for period in range(tables.periods if tables.has_starts else 0):
            self._column(1.0, 0.0, np.inf, [(self.start_row[period], -1.0)])
        self.shortfall_column = [
            self._column(float(shortfall_price[key]), 0.0, np.inf, [(row, 1.0)]) for key, row in self.serve_row.items()
        ]
        self._flush()
        for unit in np.flatnonzero(tables.low > 0.0):
            for period in range(tables.periods):
                self._unit_limit_row(int(unit), period)

    def _rows(self) -> None:
        tables = self.tables
        upper: list[float] = []
        lower: list[float] = []

        def row(low: float, high: float) -> int:
            lower.append(low)
            upper.append(high)
            return len(upper) - 1

        caps = np.where(np.isfinite(tables.caps), tables.caps, 0.0)
        self.limit_row = np.array(
            [[row(-np.inf, float(cap)) for _ in range(tables.periods)] for cap in caps], dtype=np.int64
        ).reshape(len(caps), tables.periods)
        self.pin_row = {r: [row(most, np.inf) for _ in range(tables.periods)] for r, most in tables.pins.items()}
        self.start_row = [row(-np.inf, 0.0) for _ in range(tables.periods if tables.has_starts else 0)]
        self.serve_row: dict[tuple[int, int], int] = {}
        for index, may_wait in enumerate(tables.deferrable):
            asked = [int(period) for period in np.flatnonzero(tables.amounts[index] > 0.0)]
            shared = row(1.0, np.inf) if may_wait and asked else -1
            for period in asked:
                self.serve_row[index, period] = shared if may_wait else row(1.0, np.inf)
        none = np.empty(0, dtype=np.int32)
        zeros = np.zeros(len(upper), dtype=np.int32)
        self.solver.addRows(len(upper), np.array(lower), np.array(upper), 0, zeros, none, np.empty(0))

    def _column(self, cost: float, low: float, high: float, entries: list[tuple[int, float]]) -> int:
        self.columns.append((cost, low, high, entries))
        self.count += 1
        return self.count - 1

    def _flush(self) -> None:
        """Add the waiting columns to the solver's program."""
        if not self.columns:
            return
        cost, low, high, entries = zip(*self.columns, strict=True)
        sizes = [len(column) for column in entries]
        begins = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int32)
        rows = np.array([row for column in entries for row, _ in column], dtype=np.int32)
        values = np.array([value for column in entries for _, value in column], dtype=float)
        self.solver.addCols(len(cost), np.array(cost), np.array(low), np.array(high), len(rows), begins, rows, values)
        self.columns = []

    def _purchase_columns(self, option: ResourcePurchase) -> list[int]:
        usable, usd = -option.purchase.usable_share, option.purchase.usd_per_hour
        periods = range(self.tables.periods)

        def entries(period: int) -> list[tuple[int, float]]:
            pin = [(self.pin_row[option.resource][period], 1.0)] if option.resource in self.pin_row else []
            return [(int(self.limit_row[option.limit_index, period]), usable), *pin]

        if option.purchase.committed:
            every = [entry for period in periods for entry in entries(period)]
            once = self._column(usd, option.low, option.high, every)
            return [once] * self.tables.periods
        weights = self.tables.weights
        return [self._column(usd * float(weights[t]), option.low, option.high, entries(t)) for t in periods]

    def _use(self, unit: int, period: int) -> tuple[float, list[tuple[int, float]]]:
        """Cost and rows of one unit on for one period."""
        tables = self.tables
        taken = np.flatnonzero(tables.takes[unit])
        entries = [(int(self.limit_row[limit, period]), float(tables.takes[unit, limit])) for limit in taken]
        if tables.start_usd[unit] > 0.0:
            start = float(tables.start_usd[unit])
            entries += [(self.start_row[period], start), (self.start_row[(period + 1) % tables.periods], -start)]
        return float(tables.unit_usd[unit] * tables.weights[period]), entries

    def _unit_limit_row(self, unit: int, period: int) -> int:
        """Row of a unit whose number is limited: what routes take of it is at most the units on."""
        if (unit, period) not in self.unit_limit_row:
            none = np.empty(0, dtype=np.int32)
            self.solver.addRow(-np.inf, 0.0, 0, none, np.empty(0))
            row = self.solver.getNumRow() - 1
            cost, entries = self._use(unit, period)
            self._column(cost, float(self.tables.low[unit]), float(self.tables.high[unit]), [*entries, (row, -1.0)])
            self._flush()
            self.unit_limit_row[unit, period] = row
        return self.unit_limit_row[unit, period]

    def add(self, routes: Sequence[Route]) -> int:
        """Add routes that are new; returns how many were."""
        new = [route for route in dict.fromkeys(routes) if route not in self.known]
        self.known.update(new)
        amounts = self.tables.amounts
        for index, period, *units in new:
            total = 0.0
            entries = [(self.serve_row[index, period], 1.0)]
            for unit in units:
                if unit < 0:
                    continue
                share = float(amounts[index, period] * self.tables.seconds[unit, index])
                if self.tables.low[unit] > 0.0 or np.isfinite(self.tables.high[unit]):
                    entries.append((self._unit_limit_row(unit, period), share))
                    continue
                cost, rows = self._use(unit, period)
                total += share * cost
                entries += [(row, share * value) for row, value in rows]
            merged: dict[int, float] = {}
            for row, value in entries:
                merged[row] = merged.get(row, 0.0) + value
            self.route_column.append(self._column(total, 0.0, np.inf, list(merged.items())))
        self.routes += new
        self._flush()
        return len(new)

    def add_idle(self, keys: Sequence[tuple[int, int]]) -> int:
        """Let units (unit, period) be on without serving; returns how many are new. A limited unit gets its row."""
        new = [key for key in keys if key not in self.idle]
        for unit, period in new:
            self.idle.add((unit, period))
            if np.isfinite(self.tables.high[unit]):
                self._unit_limit_row(unit, period)
                continue
            cost, rows = self._use(unit, period)
            self._column(cost, 0.0, np.inf, rows)
        self._flush()
        return len(new)

    def solve(self, time_limit_s: float) -> Prices | None:
        """Prices of the limits at the optimum of the restricted program; None: stopped before."""
        self.solver.setOptionValue("time_limit", self.solver.getRunTime() + max(time_limit_s, 0.1))
        self.solver.run()
        if self.solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        point = self.solver.getSolution()
        self.dual: FloatArray = np.array(point.row_dual)
        self.primal: FloatArray = np.array(point.col_value)
        starts = -self.dual[self.start_row] if self.start_row else np.zeros(self.tables.periods)
        limits = -self.dual[self.limit_row] if self.limit_row.size else np.zeros((0, self.tables.periods))
        return Prices(
            limits=limits,
            starts=starts,
            pins={resource: self.dual[rows] for resource, rows in self.pin_row.items()},
            unit_limits={key: -float(self.dual[row]) for key, row in self.unit_limit_row.items()},
        )

    @property
    def cost(self) -> float:
        """Of the restricted program at its last optimum [USD/h]."""
        return float(self.solver.getInfo().objective_function_value)

    @property
    def shortfall(self) -> float:
        """Largest share of a slice's amount that is not served."""
        return float(self.primal[self.shortfall_column].max(initial=0.0))

    def raise_shortfall_price(self) -> None:
        """Make not serving a hundred times dearer."""
        costs = np.array(self.solver.getLp().col_cost_)
        for column in set(self.shortfall_column):
            self.solver.changeColCost(column, 100.0 * float(costs[column]))

    def solution(self, bound: LagrangianBound) -> MasterSolution:
        """The solution as it stands, with the best bound so far."""
        used = [(route, self.primal[col]) for route, col in zip(self.routes, self.route_column, strict=True)]
        bought = np.array([self.primal[columns] for columns in self.purchase_columns]).reshape(-1, self.tables.periods)
        kept = tuple(UsedRoute(route, float(value)) for route, value in used if value > 1e-9)
        return MasterSolution(bound, self.cost, self.shortfall, kept, bought)


def run_column_generation(tables: Tables, deadline: float) -> MasterSolution | None:
    """Solve the relaxation by column generation.

    Args:
        tables: of the problem.
        deadline: of `time.monotonic` [s].

    Returns:
        The solution when converged or when the time is up; None: nothing was solved.
    """
    best = lagrangian_bound(tables, cheapest_purchase_prices(tables))
    asked = tables.amounts > 0.0
    if (best.routes.price[asked] > UNSERVED_ABOVE).any():
        return MasterSolution(best, np.inf, 1.0, (), np.zeros((len(tables.purchases), tables.periods)))
    dear = np.maximum(best.routes.price, 1e-3 * best.routes.price[asked].max(initial=ZERO_PRICE))
    master = RestrictedMaster(tables, SHORTFALL_PRICE * tables.amounts * dear)
    newest = best
    solution: MasterSolution | None = None
    raises = 0
    while True:
        added = master.add(_cheapest_routes(tables, newest)) + master.add_idle(newest.idle)
        converged = solution is not None and (
            added == 0 or solution.cost - best.cost <= CONVERGENCE_GAP * abs(solution.cost)
        )
        if solution is not None and converged:
            if solution.shortfall <= NEGLIGIBLE or raises == MAX_PRICE_RAISES:
                return solution
            master.raise_shortfall_price()
            raises += 1
        prices = master.solve(deadline - time.monotonic())
        if prices is None:
            return solution
        newest = lagrangian_bound(tables, prices)
        best = newest if newest.cost >= best.cost else best
        solution = master.solution(best)
        if time.monotonic() > deadline:
            return solution


def cannot_serve(tables: Tables, deadline: float) -> bool:
    """Whether it is proved that the limits do not let all demand be served, even by fractions of units.

    The same relaxation with every cost zero and a price of one for serving none of a slice: a bound above zero is the
    proof (the first phase of the simplex method).

    Args:
        tables: of the problem.
        deadline: of `time.monotonic` [s].

    Returns:
        True: proved. False: it can be served, or the time ran out.
    """
    asked = tables.amounts > 0.0
    free = replace(
        tables,
        unit_usd=np.zeros_like(tables.unit_usd),
        start_usd=np.zeros_like(tables.start_usd),
        purchases=tuple(
            replace(option, purchase=option.purchase.model_copy(update={"usd_per_hour": 0.0}))
            for option in tables.purchases
        ),
    )
    newest = lagrangian_bound(tables, cheapest_purchase_prices(tables))
    if (newest.routes.price[asked] > UNSERVED_ABOVE).any():
        return True
    master = RestrictedMaster(free, np.ones_like(tables.demand))
    while master.add(_cheapest_routes(tables, newest)):
        prices = master.solve(deadline - time.monotonic())
        if prices is None or time.monotonic() > deadline:
            return False
        newest = lagrangian_bound(free, prices, most_worth=1.0)
        if newest.cost > NEGLIGIBLE:
            return True
    return False


def _cheapest_routes(tables: Tables, bound: LagrangianBound) -> list[Route]:
    """The cheapest route of every slice and period at the prices of a bound."""
    first, second = bound.routes.first, bound.routes.second
    return [Route(int(s), int(t), int(first[s, t]), int(second[s, t])) for s, t in np.argwhere(tables.amounts > 0.0)]
