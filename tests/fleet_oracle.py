"""Fleet problems solved by counting through every fleet, in plain Python that shares nothing with the planner.

What a set of units can serve of two slices is the region under a concave line y = phi(x): that of one unit is a
triangle, that of several their Minkowski sum, that of a first and a second stage the intersection of both.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.optimizer import FleetProblem, Period, Purchase, Resource, Slice, Unit, UnitStage

EPS = 1e-9


# --- regions ---------------------------------------------------------------------------------------------------


def line_of(rates):
    """Vertices (x, y) of the sum of triangles with legs (a, b), from the left to the right."""
    x, y = 0.0, sum(b for _, b in rates)
    points = [(x, y)]
    for a, b in sorted((pair for pair in rates if pair[0] > 0.0), key=lambda pair: pair[1] / pair[0]):
        x, y = x + a, y - b
        points.append((x, y))
    return points


def value_at(points, x):
    """phi(x); minus infinity beyond its end."""
    if x > points[-1][0] + EPS:
        return -math.inf
    return float(np.interp(x, [p[0] for p in points], [p[1] for p in points]))


def both(one, other):
    """The line of the intersection."""
    end = min(one[-1][0], other[-1][0])
    xs = sorted({p[0] for p in (*one, *other) if p[0] <= end} | {end})
    found = []
    for left, right in itertools.pairwise([*xs, None]):
        found.append((left, min(value_at(one, left), value_at(other, left))))
        if right is None:
            break
        gaps = [value_at(one, x) - value_at(other, x) for x in (left, right)]
        if gaps[0] * gaps[1] < 0.0:
            x = left + (right - left) * gaps[0] / (gaps[0] - gaps[1])
            found.append((x, value_at(one, x)))
    return found


def together(lines):
    """The line of the sum of regions: their pieces, steepest last."""
    pieces = [(x1 - x0, y0 - y1) for line in lines for (x0, y0), (x1, y1) in itertools.pairwise(line) if x1 > x0]
    x, y = 0.0, sum(line[0][1] for line in lines)
    points = [(x, y)]
    for a, b in sorted(pieces, key=lambda piece: piece[1] / piece[0]):
        x, y = x + a, y - b
        points.append((x, y))
    return points


def most_of(points, caps, least):
    """Greatest x + y under the line with least <= (x, y) <= caps; minus infinity if there is none."""
    end = min(caps[0], points[-1][0])
    xs = {p[0] for p in points} | {least[0], end}
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        for level in (caps[1], least[1]):
            if (y0 - level) * (y1 - level) < 0.0 and math.isfinite(level):
                xs.add(x0 + (x1 - x0) * (y0 - level) / (y0 - y1))
    best = -math.inf
    for x in xs:
        y = min(value_at(points, x), caps[1])
        if least[0] - EPS <= x <= end + EPS and y >= least[1] - EPS:
            best = max(best, x + y)
    return best


# --- all fleets ------------------------------------------------------------------------------------------------


@dataclass
class Fleets:
    """Every fleet of a problem: whether it meets its limits, what it costs and what it serves."""

    problem: FleetProblem
    must_serve_all: bool

    def __post_init__(self):
        self.hours = [period.hours for period in self.problem.periods]
        self.horizon = sum(self.hours)
        self.regions = {}
        self.covers = {}

    @cached_property
    def tops(self):
        """Most units that could be of use, by unit."""
        tops = []
        for unit in self.problem.units:
            top = 0
            for t in range(len(self.hours)):
                use = sum(
                    self.ceiling(s, t) / unit.rates_per_s[s.name]
                    for s in self.problem.slices
                    if s.name in unit.rates_per_s
                )
                top = max(top, math.ceil(use - EPS))
            tops.append(top)
        return tops

    def ceiling(self, one, t):
        if one.deferrable:
            return self.total(one) / self.hours[t]
        return one.demand_per_s[t]

    def total(self, one):
        return sum(h * d for h, d in zip(self.hours, one.demand_per_s, strict=True))

    @property
    def size(self):
        count = 1
        for unit, top in zip(self.problem.units, self.tops, strict=True):
            count *= (top + 1) ** (1 if unit.steady else len(self.hours))
        return count

    def everything(self):
        """Every (units by unit and period) that may be of use."""
        choices = []
        for unit, top in zip(self.problem.units, self.tops, strict=True):
            numbers = range(top + 1)
            if unit.steady:
                choices.append([(n,) * len(self.hours) for n in numbers])
            else:
                choices.append(list(itertools.product(numbers, repeat=len(self.hours))))
        return itertools.product(*choices)

    def region(self, counts):
        """The line of what the units can serve of the first and the second slice."""
        if counts not in self.regions:
            names = [one.name for one in self.problem.slices] + [""]
            kinds = {}
            for unit, n in zip(self.problem.units, counts, strict=True):
                pair = tuple(n * unit.rates_per_s.get(name, 0.0) for name in names[:2])
                key = (unit.stage, "" if unit.stage is UnitStage.WHOLE else unit.channel)
                kinds.setdefault(key, []).append(pair)
            lines = [line_of(pairs) for (stage, _), pairs in kinds.items() if stage is UnitStage.WHOLE]
            for channel in {c for stage, c in kinds if stage is not UnitStage.WHOLE}:
                sides = [line_of(kinds.get((stage, channel), [])) for stage in (UnitStage.FIRST, UnitStage.SECOND)]
                lines.append(both(*sides))
            self.regions[counts] = together(lines)
        return self.regions[counts]

    def served(self, fleet):
        """Greatest mean rate that may be served, minus infinity if what must be served cannot."""
        lines = [self.region(tuple(row[t] for row in fleet)) for t in range(len(self.hours))]
        first, *more = self.problem.slices
        if first.deferrable:  # then it is alone
            could = sum(h * line[-1][0] for h, line in zip(self.hours, lines, strict=True))
            need = self.total(first) if self.must_serve_all else 0.0
            return min(could, self.total(first)) / self.horizon if could >= need - EPS else -math.inf
        second = more[0] if more else None
        if second is not None and second.deferrable:  # only asked with must_serve_all
            could = sum(
                h * value_at(line, first.demand_per_s[t])
                for t, (h, line) in enumerate(zip(self.hours, lines, strict=True))
            )
            return 0.0 if could >= self.total(second) - EPS else -math.inf
        rate = 0.0
        for t, (h, line) in enumerate(zip(self.hours, lines, strict=True)):
            caps = (first.demand_per_s[t], second.demand_per_s[t] if second else 0.0)
            least = caps if self.must_serve_all else (0.0, 0.0)
            rate += h * most_of(line, caps, least)
        return rate / self.horizon

    def cover(self, resource, taken):
        """Least mean cost of holding what is taken in each period; infinite if it cannot be had."""
        key = (resource.name, taken)
        if key not in self.covers:
            self.covers[key] = self._cover(resource, taken)
        return self.covers[key]

    def _cover(self, resource, taken):
        if resource.at_most is not None and max(taken) > resource.at_most + EPS:
            return math.inf
        if not resource.purchases:
            return 0.0
        committed = [p for p in resource.purchases if p.committed]
        flexible = [p for p in resource.purchases if not p.committed]
        best = math.inf
        for blocks in itertools.product(*(self._blocks(p, max(*taken, resource.at_least)) for p in committed)):
            held = [n * p.block for n, p in zip(blocks, committed, strict=True)]
            usable = sum(n * p.usable_share for n, p in zip(held, committed, strict=True))
            cost = sum(n * p.usd_per_hour for n, p in zip(held, committed, strict=True))
            for h, need in zip(self.hours, taken, strict=True):
                cost += h / self.horizon * self._top_up(flexible, need - usable, resource.at_least - sum(held))
            best = min(best, cost)
        return best

    def _top_up(self, flexible, need, pinned):
        best = math.inf
        for blocks in itertools.product(*(self._blocks(p, max(need, pinned, 0.0)) for p in flexible)):
            held = [n * p.block for n, p in zip(blocks, flexible, strict=True)]
            usable = sum(n * p.usable_share for n, p in zip(held, flexible, strict=True))
            if usable >= need - EPS and sum(held) >= pinned - EPS:
                best = min(best, sum(n * p.usd_per_hour for n, p in zip(held, flexible, strict=True)))
        return best

    def _blocks(self, purchase, need):
        high = max(0, math.ceil(need / purchase.usable_share / purchase.block - EPS))
        if purchase.at_most is not None:
            high = min(high, math.floor(purchase.at_most / purchase.block + EPS))
        return range(high + 1)

    def cost(self, fleet):
        """Mean cost, infinite where a limit other than the budget is missed."""
        problem = self.problem
        by_period = list(zip(*fleet, strict=True))
        if problem.max_groups is not None:
            used = [unit for unit, row in zip(problem.units, fleet, strict=True) if any(row)]
            groups = {r.group for r in problem.resources for u in used if r.group and u.takes.get(r.name)}
            if len(groups) > problem.max_groups:
                return math.inf
        kinds = {
            (u.stage, u.channel, u.kind)
            for u, row in zip(problem.units, fleet, strict=True)
            if any(row) and u.kind and u.stage is not UnitStage.WHOLE
        }
        if len({kind[:2] for kind in kinds}) < len(kinds):
            return math.inf
        cost = 0.0
        for unit, row in zip(problem.units, fleet, strict=True):
            cost += unit.usd_per_hour * sum(h * n for h, n in zip(self.hours, row, strict=True)) / self.horizon
            cost += unit.usd_per_start * sum(max(0, n - row[t - 1]) for t, n in enumerate(row)) / self.horizon
        for resource in problem.resources:
            amounts = [unit.takes.get(resource.name, 0.0) for unit in problem.units]
            taken = tuple(sum(a * n for a, n in zip(amounts, row, strict=True)) for row in by_period)
            cost += self.cover(resource, taken)
            if cost == math.inf:
                break
        return cost

    @cached_property
    def outcomes(self):
        """(cost, rate) of every fleet that meets all limits."""
        budget = math.inf if self.problem.budget_usd_per_hour is None else self.problem.budget_usd_per_hour
        found = []
        for fleet in self.everything():
            cost = self.cost(fleet)
            if cost < math.inf and cost <= budget + EPS:
                rate = self.served(fleet)
                if rate > -math.inf:
                    found.append((cost, rate))
        return found

    def best(self, objective):
        """(objective, cost, rate) by the documented tie-breaks; None if there is none. Rate None where it is fixed."""
        found = self.outcomes
        if objective.value != "min_cost":
            least = self.problem.min_rate_per_s or 1e-6
            found = [pair for pair in found if pair[1] >= least - EPS]
        if not found:
            return None
        if objective.value == "min_cost":
            cost = min(pair[0] for pair in found)
            return cost, cost, None
        if objective.value == "max_rate":
            most = max(pair[1] for pair in found)
            return most, min(pair[0] for pair in found if pair[1] >= most - EPS), most
        ratio = max(rate / cost for cost, rate in found)
        most = max(rate for cost, rate in found if rate / cost >= ratio * (1 - 1e-9))
        return ratio, most / ratio, most


# --- random problems -------------------------------------------------------------------------------------------


def quarters(rng, low, high):
    return float(rng.integers(low * 4, high * 4 + 1)) / 4


def small_problem(seed, objective):
    """Up to four units, two slices, two periods, with a share of every feature; quarters, so that sums are exact."""
    attempt = 0
    while True:
        rng = np.random.default_rng((seed, attempt))
        problem = _small_problem(rng, objective)
        if Fleets(problem, objective.value == "min_cost").size <= 1500:
            return problem
        attempt += 1


def _small_problem(rng, objective):
    least_cost = objective.value == "min_cost"
    yes = lambda chance: rng.random() < chance  # noqa: E731
    periods = tuple(
        Period(name=f"t{t}", hours=h) for t, h in enumerate(((1.0,), (1.0, 3.0), (2.0, 2.0))[rng.integers(3)])
    )
    count = 2 if yes(0.5) else 1
    last_waits = yes(0.25) and (least_cost or count == 1)
    slices = tuple(
        Slice(
            name=f"s{i}",
            demand_per_s=tuple(quarters(rng, 0 if yes(0.1) else 1, 5) for _ in periods),
            deferrable=last_waits and i == count - 1,
        )
        for i in range(count)
    )
    if not any(sum(one.demand_per_s) for one in slices):
        slices = (slices[0].model_copy(update={"demand_per_s": (2.0,) * len(periods)}), *slices[1:])
    resources = []
    for name in ("x", "y"):
        ways = []
        if yes(0.8):
            ways.append(_purchase(rng, "plain", yes))
            if yes(0.5):
                ways.append(_purchase(rng, "other", yes))
        at_most = float(rng.integers(2, 12)) if yes(0.25) else None
        at_least = float(rng.integers(1, 4)) if ways and yes(0.1) else 0.0
        resources.append(Resource(name=name, purchases=tuple(ways), at_most=at_most, at_least=at_least, group=name))
    staged = yes(0.45)
    stages = [UnitStage.FIRST, UnitStage.SECOND, *rng.choice(list(UnitStage), 2)] if staged else [UnitStage.WHOLE] * 3
    units = tuple(
        _unit(rng, index, stage, slices, yes) for index, stage in enumerate(stages[: int(rng.integers(2, 5))])
    )
    return FleetProblem(
        slices=slices,
        units=units,
        resources=tuple(resources),
        periods=periods,
        budget_usd_per_hour=quarters(rng, 2, 24) if yes(0.3) else None,
        min_rate_per_s=0.5 if not least_cost and yes(0.2) and sum(slices[0].demand_per_s) > 2.0 else None,
        max_groups=1 if yes(0.2) else None,
    )


def _purchase(rng, name, yes):
    block = int(rng.choice([1, 1, 2, 4]))
    return Purchase(
        name=name,
        usd_per_hour=quarters(rng, 0, 3) + 0.25,
        committed=yes(0.35),
        block=block,
        at_most=float(rng.integers(2, 12)) if yes(0.2) else None,
        usable_share=float(rng.choice([1.0, 1.0, 0.75, 0.5])),
    )


def _unit(rng, index, stage, slices, yes):
    chosen = [one for one in slices if yes(0.8)] or [slices[0]]
    return Unit(
        name=f"u{index}",
        stage=stage,
        channel="" if stage is UnitStage.WHOLE else str(rng.choice(["a", "a", "b"])),
        kind=str(rng.choice(["", "k", "m"])),
        rates_per_s={one.name: quarters(rng, 1, 6) for one in chosen},
        takes={name: float(rng.integers(1, 4)) for name in ("x", "y") if yes(0.55)},
        usd_per_hour=quarters(rng, 0, 3) + 0.25,
        usd_per_start=quarters(rng, 0, 4) if yes(0.3) else 0.0,
        steady=yes(0.2),
    )
