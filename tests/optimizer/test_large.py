"""`planner.optimizer.large` against the program written out in full, and its answers checked with plain loops."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from planner.core import InputError
from planner.optimizer import FleetProblem, Period, Purchase, Resource, Slice, Unit, UnitStage
from planner.optimizer.large import LargeAnswer, is_supported, solve_large
from planner.optimizer.large_bound import Prices, lagrangian_bound, least_excess
from planner.optimizer.large_cover import cheapest_purchases
from planner.optimizer.large_master import cannot_serve, run_column_generation
from planner.optimizer.large_tables import ResourcePurchase, build_tables

TOLERANCE = 1e-6
"""Of every check: `FEASIBILITY_TOLERANCE`."""


def hard_instance(
    seed: int,
    *,
    gpus: float = 1500.0,
    families: int = 250,
    sizes: int = 20,
    slices: int = 64,
    periods: int = 24,
    disaggregated: bool = False,
    starts: bool = False,
    proportional: bool = True,
) -> FleetProblem:
    """A fleet problem with the structure of real ones.

    Families of deployments on 12 SKUs, each in pools of 1 to `sizes` replicas whose rate grows as size^1.03 (pooling);
    rates fall with a slice's token count; some SKUs may be reserved for 30 to 45 % less, half are limited; GPUs come
    singly or by eight; slices have Zipf-like weights and phases of their own over the day. `gpus` is what the demand
    would take if every slice were served by its most frugal unit, mean over the day.
    """
    random = np.random.default_rng(seed)
    skus = 12
    usd = np.sort(random.uniform(0.8, 7.0, skus))
    speed = usd ** random.uniform(0.85, 1.05) * random.lognormal(0.0, 0.1, skus)
    length = random.lognormal(0.0, 1.0, slices)
    resources = []
    for sku in range(skus):
        ways = [Purchase(name="on_demand", usd_per_hour=float(usd[sku]), block=int(random.choice([1, 8])))]
        if random.random() < 0.6:
            less = float(usd[sku] * random.uniform(0.55, 0.7))
            ways.append(Purchase(name="reserved", usd_per_hour=less, committed=True, block=8))
        quota = float(round(gpus * random.uniform(0.1, 0.5))) if random.random() < 0.5 else None
        resources.append(Resource(name=f"sku{sku}", purchases=tuple(ways), at_most=quota))
    units = []
    for family in range(families):
        sku, wide = family % skus, int(random.choice([1, 2, 4, 8]))
        lean = random.normal(0.0, 0.25)
        base = 10.0 * speed[sku] * wide ** random.uniform(0.8, 1.0) / length * length ** (0.3 * lean)
        base = base * random.lognormal(0.0, 0.15) * random.lognormal(0.0, 0.08, slices)
        fits = random.random(slices) > 0.1 if wide > 1 else length < np.quantile(length, random.uniform(0.4, 0.95))
        stage = [UnitStage.WHOLE, UnitStage.FIRST, UnitStage.SECOND][family % 3] if disaggregated else UnitStage.WHOLE
        channel = "" if stage is UnitStage.WHOLE else ["fp8", "bf16"][(family // 3) % 2]
        for size in range(1, sizes + 1):
            rates = base * size**1.03 * (1.0 if stage is UnitStage.WHOLE else 2.15)
            if not proportional:
                rates = rates * (1.0 + 0.02 * random.random(slices) * (size - 1) / size)
            units.append(
                Unit(
                    name=f"f{family}x{size}",
                    stage=stage,
                    channel=channel,
                    rates_per_s={f"s{index}": float(rates[index]) for index in np.flatnonzero(fits)},
                    takes={f"sku{sku}": float(wide * size)},
                    usd_per_start=float(0.08 * usd[sku] * wide * size) if starts else 0.0,
                )
            )
    weights = random.permutation(1.0 / np.arange(1, slices + 1) ** 0.9)
    phase = random.uniform(-0.6, 0.6, slices)
    day = 0.95 + 0.65 * np.sin(2.0 * np.pi * np.arange(periods) / periods + phase[:, None])
    demand = weights[:, None] * day
    frugal = np.zeros(slices)
    for unit in units:
        for name, rate in unit.rates_per_s.items():
            frugal[int(name[1:])] = max(frugal[int(name[1:])], rate / sum(unit.takes.values()))
    demand = demand / (demand / frugal[:, None]).sum(axis=0).mean() * gpus
    return FleetProblem(
        slices=tuple(Slice(name=f"s{i}", demand_per_s=tuple(float(d) for d in row)) for i, row in enumerate(demand)),
        units=tuple(units),
        resources=tuple(resources),
        periods=tuple(Period(name=f"hour{t}") for t in range(periods)),
    )


def small_instance(seed: int, *, starts: bool = True) -> FleetProblem:
    """A few units with every feature that is supported, many of them in one problem; some cannot be served."""
    problem = _small_instance(np.random.default_rng(seed))
    if starts:
        return problem
    units = tuple(unit.model_copy(update={"usd_per_start": 0.0}) for unit in problem.units)
    return problem.model_copy(update={"units": units})


def _small_instance(random: np.random.Generator) -> FleetProblem:
    periods, slices, count = int(random.integers(1, 5)), int(random.integers(1, 4)), int(random.integers(3, 9))

    def maybe(share: float, value: float) -> float | None:
        return value if random.random() < share else None

    resources = []
    for index in range(3):
        ways = [
            Purchase(
                name="on_demand",
                usd_per_hour=float(random.uniform(1.0, 4.0)),
                block=int(random.choice([1, 2, 4])),
                at_most=maybe(0.2, float(random.integers(4, 20))),
            )
        ]
        if random.random() < 0.6:
            committed = float(random.uniform(0.5, 2.5))
            low = maybe(0.2, float(random.integers(1, 4))) or 0.0
            high = maybe(0.4, float(random.integers(4, 13)))
            ways.append(
                Purchase(
                    name="reserved",
                    usd_per_hour=committed,
                    committed=True,
                    block=int(random.choice([1, 3])),
                    at_least=low,
                    at_most=high,
                )
            )
        if random.random() < 0.3:
            ways.append(
                Purchase(name="spot", usd_per_hour=float(random.uniform(0.5, 2.0)), usable_share=0.8, at_most=5.0)
            )
        pinned = maybe(0.15, 2.0) or 0.0
        quota = maybe(0.3, float(random.integers(4, 20)))
        resources.append(Resource(name=f"r{index}", purchases=tuple(ways), at_most=quota, at_least=pinned))
    resources.append(Resource(name="kw", at_most=maybe(0.5, float(random.uniform(10.0, 30.0)))))
    disaggregated = random.random() < 0.4
    units = []
    for index in range(count):
        stage = list(UnitStage)[int(random.integers(0, 3))] if disaggregated else UnitStage.WHOLE
        size = int(random.integers(1, 5))
        rates = random.uniform(1.0, 4.0, slices) * size
        able = {f"s{s}": float(rates[s]) for s in range(slices) if random.random() < 0.8} or {"s0": float(rates[0])}
        units.append(
            Unit(
                name=f"u{index}",
                stage=stage,
                channel="" if stage is UnitStage.WHOLE else str(random.choice(["a", "b"])),
                kind="" if stage is UnitStage.WHOLE else str(random.choice(["", "x", "y"])),
                rates_per_s=able,
                takes={f"r{random.integers(0, 3)}": float(size), "kw": float(random.uniform(0.5, 1.0)) * size},
                usd_per_hour=float(random.uniform(0.0, 1.0)) if random.random() < 0.3 else 0.0,
                usd_per_start=float(random.uniform(0.0, 3.0)) if random.random() < 0.5 else 0.0,
                at_least=1 if random.random() < 0.08 else 0,
                at_most=int(random.integers(1, 4)) if random.random() < 0.3 else None,
            )
        )
    return FleetProblem(
        slices=tuple(
            Slice(
                name=f"s{s}",
                demand_per_s=tuple(float(d) for d in random.uniform(0.0, 8.0, periods)),
                deferrable=bool(random.random() < 0.25),
            )
            for s in range(slices)
        ),
        units=tuple(units),
        resources=tuple(resources),
        periods=tuple(Period(name=f"p{t}", hours=float(random.choice([1.0, 2.0, 6.0]))) for t in range(periods)),
        max_units=int(random.integers(4, 12)) if random.random() < 0.2 else None,
    )


class Explicit:
    """The whole program with a variable for everything, written from the problem's records alone."""

    def __init__(self, problem: FleetProblem) -> None:
        self.problem = problem
        self.cost: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []
        self.whole: list[int] = []
        self.rows: list[dict[int, float]] = []
        self.row_low: list[float] = []
        self.row_high: list[float] = []
        self._write()

    def _new(self, cost: float, low: float, high: float | None, whole: int) -> int:
        self.cost.append(cost)
        self.low.append(low)
        self.high.append(np.inf if high is None else high)
        self.whole.append(whole)
        return len(self.cost) - 1

    def _row(self, entries: dict[int, float], low: float, high: float) -> None:
        self.rows.append(entries)
        self.row_low.append(low)
        self.row_high.append(high)

    def _write(self) -> None:
        problem = self.problem
        periods = range(len(problem.periods))
        share = [period.hours / problem.hours for period in problem.periods]
        on = {
            (u.name, t): self._new(u.usd_per_hour * share[t], u.at_least, u.at_most, 1)
            for u in problem.units
            for t in periods
        }
        rate = {
            (u.name, s, t): self._new(0.0, 0.0, None, 0) for u in problem.units for s in u.rates_per_s for t in periods
        }
        for u in problem.units:
            for t in periods:
                carried = {rate[u.name, s, t]: 1.0 / r for s, r in u.rates_per_s.items()}
                self._row({on[u.name, t]: -1.0} | carried, -np.inf, 0.0)
                if u.usd_per_start > 0.0 and len(problem.periods) > 1:
                    start = self._new(u.usd_per_start / problem.hours, 0.0, None, 0)
                    self._row({start: 1.0, on[u.name, t]: -1.0, on[u.name, (t - 1) % len(periods)]: 1.0}, 0.0, np.inf)
        for one in problem.slices:
            assert one.demand_per_s is not None
            serving = {
                t: {
                    rate[u.name, one.name, t]: 1.0
                    for u in problem.units
                    if one.name in u.rates_per_s and u.stage is not UnitStage.SECOND
                }
                for t in periods
            }
            if one.deferrable:
                total = sum(share[t] * one.demand_per_s[t] for t in periods)
                self._row({v: share[t] for t in periods for v in serving[t]}, total, np.inf)
            for t in () if one.deferrable else periods:
                self._row(serving[t], one.demand_per_s[t], np.inf)
            for channel in {u.channel for u in problem.units if u.stage is not UnitStage.WHOLE}:
                for t in periods:
                    pair = {
                        rate[u.name, one.name, t]: 1.0 if u.stage is UnitStage.FIRST else -1.0
                        for u in problem.units
                        if u.stage is not UnitStage.WHOLE and u.channel == channel and one.name in u.rates_per_s
                    }
                    self._row(pair, 0.0, 0.0)
        self._kinds(on)
        self._supply(on, share)

    def _kinds(self, on: dict[tuple[str, int], int]) -> None:
        for stage, channel in itertools.product(
            (UnitStage.FIRST, UnitStage.SECOND), {u.channel for u in self.problem.units}
        ):
            here = [u for u in self.problem.units if (u.stage, u.channel) == (stage, channel) and u.kind]
            uses = {kind: self._new(0.0, 0.0, 1.0, 1) for kind in sorted({u.kind for u in here})}
            for (name, _), column in on.items():
                for unit in here:
                    if unit.name == name:
                        self._row({column: 1.0, uses[unit.kind]: -100.0}, -np.inf, 0.0)
            if uses:
                self._row(dict.fromkeys(uses.values(), 1.0), -np.inf, 1.0)

    def _supply(self, on: dict[tuple[str, int], int], share: list[float]) -> None:
        problem = self.problem
        for resource in problem.resources:
            used = [
                {on[u.name, t]: u.takes[resource.name] for u in problem.units if resource.name in u.takes}
                for t in range(len(share))
            ]
            hold = [dict(row) for row in used]
            held: list[dict[int, float]] = [{} for _ in share]
            for way in resource.purchases:
                high = None if way.at_most is None else np.floor(way.at_most / way.block)
                low = np.ceil(way.at_least / way.block)
                once = self._new(way.usd_per_hour * way.block, low, high, 1) if way.committed else -1
                for t, part in enumerate(share):
                    blocks = once if way.committed else self._new(part * way.usd_per_hour * way.block, low, high, 1)
                    hold[t][blocks] = -way.usable_share * way.block
                    held[t][blocks] = float(way.block)
            for t in range(len(share)):
                if resource.at_most is not None:
                    self._row(used[t], -np.inf, resource.at_most)
                if resource.purchases:
                    self._row(hold[t], -np.inf, 0.0)
                    self._row(held[t], resource.at_least, np.inf)
        if problem.max_units is not None:
            for t in range(len(share)):
                self._row({on[u.name, t]: 1.0 for u in problem.units}, -np.inf, problem.max_units)

    def solve(self, *, fractions: bool = False, gap: float = 0.0, time_limit_s: float = 20.0) -> float | None:
        """Least cost; None: infeasible."""
        entries = [(i, j, v) for i, row in enumerate(self.rows) for j, v in row.items()]
        row, column, value = zip(*entries, strict=True)
        matrix = csr_array((value, (row, column)), shape=(len(self.rows), len(self.cost)))
        found = milp(
            np.array(self.cost),
            integrality=np.zeros(len(self.cost)) if fractions else np.array(self.whole),
            bounds=Bounds(np.array(self.low), np.array(self.high)),
            constraints=[LinearConstraint(matrix, np.array(self.row_low), np.array(self.row_high))],
            options={"mip_rel_gap": gap, "time_limit": time_limit_s},
        )
        assert found.status in (0, 2), found.message
        return float(found.fun) if found.status == 0 else None


def violations(problem: FleetProblem, answer: LargeAnswer) -> Iterator[str]:  # noqa: C901
    """Every limit that the answer breaks, by plain loops over the problem's records."""
    periods = range(len(problem.periods))
    by_name = {unit.name: unit for unit in problem.units}
    slack = 1.0 + TOLERANCE

    def count(name: str, t: int) -> int:
        return answer.units[name][t] if name in answer.units else 0

    for unit in problem.units:
        for t in periods:
            if not unit.at_least <= count(unit.name, t) <= (np.inf if unit.at_most is None else unit.at_most):
                yield f"{unit.name} has {count(unit.name, t)} on in {t}"
            busy = sum(r[t] / unit.rates_per_s[s] for s, r in answer.routed_per_s.get(unit.name, {}).items())
            if busy > count(unit.name, t) * slack + 1e-12:
                yield f"{unit.name} is overfull in {t}: {busy}"
    for one in problem.slices:
        assert one.demand_per_s is not None
        served = [0.0 for _ in periods]
        balance: dict[tuple[str, int], float] = {}
        for name, rates in answer.routed_per_s.items():
            for t in periods:
                rate, unit = rates.get(one.name, [0.0 for _ in periods])[t], by_name[name]
                served[t] += 0.0 if unit.stage is UnitStage.SECOND else rate
                if unit.stage is not UnitStage.WHOLE:
                    key = (unit.channel, t)
                    balance[key] = balance.get(key, 0.0) + (rate if unit.stage is UnitStage.FIRST else -rate)
        hours = [period.hours for period in problem.periods]
        if one.deferrable:
            done = sum(h * s for h, s in zip(hours, served, strict=True))
            asked = sum(h * d for h, d in zip(hours, one.demand_per_s, strict=True))
            if done < asked * (1.0 - TOLERANCE):
                yield f"{one.name} gets {done} of {asked}"
        elif any(got < asked * (1.0 - TOLERANCE) for got, asked in zip(served, one.demand_per_s, strict=True)):
            yield f"{one.name} gets {served}"
        if any(abs(left) > TOLERANCE * max(1.0, *one.demand_per_s) for left in balance.values()):
            yield f"{one.name} is handed over unbalanced: {balance}"
    for resource in problem.resources:
        for t in periods:
            used = sum(unit.takes.get(resource.name, 0.0) * count(unit.name, t) for unit in problem.units)
            if resource.at_most is not None and used > resource.at_most * slack:
                yield f"{resource.name} at most {resource.at_most}, not {used}"
            if not resource.purchases:
                continue
            usable = held = 0.0
            for way in resource.purchases:
                amount = answer.bought.get(resource.name, {}).get(way.name, [0.0 for _ in periods])
                usable += way.usable_share * amount[t]
                held += amount[t]
                if abs(amount[t] / way.block - round(amount[t] / way.block)) > 1e-9:
                    yield f"{way.name} not in blocks"
                if not way.at_least <= amount[t] <= (np.inf if way.at_most is None else way.at_most):
                    yield f"{way.name} out of bounds"
                if way.committed and amount[t] != amount[0]:
                    yield f"{way.name} changes"
            if used > usable * slack + 1e-9 or held < resource.at_least:
                yield f"{resource.name} in {t}: used {used} of {usable}, held {held}"
    kinds = {(by_name[n].stage, by_name[n].channel, by_name[n].kind) for n in answer.units if by_name[n].kind}
    if len(kinds) > len({(stage, channel) for stage, channel, _ in kinds}):
        yield f"mixed kinds: {kinds}"
    for t in periods:
        if problem.max_units is not None and sum(count(name, t) for name in answer.units) > problem.max_units:
            yield "max_units"


def cost_of(problem: FleetProblem, answer: LargeAnswer) -> float:
    """Mean cost, from the records."""
    total = 0.0
    for unit in problem.units:
        counts = answer.units.get(unit.name, tuple(0 for _ in problem.periods))
        for t, period in enumerate(problem.periods):
            total += unit.usd_per_hour * counts[t] * period.hours
            if len(problem.periods) > 1:
                total += unit.usd_per_start * max(counts[t] - counts[t - 1], 0)
    for resource in problem.resources:
        for way in resource.purchases:
            for t, amount in enumerate(answer.bought.get(resource.name, {}).get(way.name, ())):
                total += way.usd_per_hour * amount * problem.periods[t].hours
    return total / problem.hours


def check(problem: FleetProblem, answer: LargeAnswer, best: float, gap: float, known: float = TOLERANCE) -> None:
    """A fleet that meets every limit at the cost it says, between the bound and what is proved (`best` to `known`)."""
    assert answer.lower_bound <= best * (1.0 + TOLERANCE) + 1e-9
    if not answer.has_fleet:
        assert not answer.proven
        return
    assert not list(violations(problem, answer))
    assert answer.cost_usd_per_hour == pytest.approx(cost_of(problem, answer), rel=1e-9)
    assert answer.cost_usd_per_hour >= best * (1.0 - known) - 1e-9
    assert answer.proven == (answer.gap <= gap)
    assert not answer.proven or answer.cost_usd_per_hour * (1.0 - gap) <= best * (1.0 + TOLERANCE)


@pytest.mark.parametrize("seed", range(25))
def test_small_problems_agree_with_the_program_written_out(seed: int) -> None:
    """Every feature at once: the bound is never above the optimum, the fleet never below."""
    problem = small_instance(seed)
    best = Explicit(problem).solve(gap=2e-3)
    answer = solve_large(problem, time_limit_s=0.5, relative_gap=0.005)
    if best is None:
        assert answer is None or not answer.has_fleet
    else:
        assert answer is not None
        check(problem, answer, best, 0.005, 2e-3)


@pytest.mark.parametrize("seed", range(100, 118))
def test_one_period_is_solved_to_the_gap(seed: int) -> None:
    """Without what links periods the program of a period is exact, so that small ones must be proved and equal."""
    problem = small_instance(seed)
    first = tuple(
        one.model_copy(update={"demand_per_s": one.demand_per_s[:1]}) for one in problem.slices if one.demand_per_s
    )
    problem = problem.model_copy(update={"slices": first, "periods": problem.periods[:1]})
    best = Explicit(problem).solve()
    answer = solve_large(problem, time_limit_s=3.0, relative_gap=0.005)
    if best is None:
        assert answer is None or not answer.has_fleet
    else:
        assert answer is not None and (answer.proven or any(unit.kind for unit in problem.units))
        check(problem, answer, best, 0.005)


@pytest.mark.parametrize(("seed", "disaggregated"), [(1, False), (5, False), (3, True), (4, False)])
def test_medium_problems_agree_with_the_program_written_out(seed: int, disaggregated: bool) -> None:
    """Pools of three sizes, 3 slices, 2 periods: the optimum, known to 5 %, is between bound and fleet."""
    shape = {"families": 24 if disaggregated else 12, "sizes": 3, "slices": 3, "periods": 2}
    problem = hard_instance(seed, gpus=100.0, **shape, disaggregated=disaggregated, starts=seed == 4)
    best = Explicit(problem).solve(gap=5e-2)
    answer = solve_large(problem, relative_gap=0.025)
    assert best is not None and answer is not None and answer.has_fleet
    assert not list(violations(problem, answer))
    assert answer.lower_bound <= best * (1.0 + TOLERANCE)
    assert best * (1.0 - 5e-2 - TOLERANCE) <= answer.cost_usd_per_hour <= best * 1.03


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("disaggregated", [False, True])
def test_the_relaxation_without_starts_is_the_linear_program_written_out(seed: int, disaggregated: bool) -> None:
    """Column generation ends at the optimum of the whole linear program, and its bound is never above it."""
    shape = {"families": 24, "sizes": 3, "slices": 6, "periods": 4}
    problem = hard_instance(seed, gpus=200.0, **shape, disaggregated=disaggregated, proportional=seed % 2 > 0)
    best = Explicit(problem).solve(fractions=True)
    found = run_column_generation(build_tables(problem), time.monotonic() + 60.0)
    assert best is not None and found is not None
    assert found.bound.cost <= best * (1.0 + TOLERANCE)
    assert found.bound.cost >= best * (1.0 - 2e-4)


@pytest.mark.parametrize("seed", range(20))
def test_any_prices_prove_a_bound(seed: int) -> None:
    """Weak duality: prices drawn at random, of whatever size, never prove more than the linear program's optimum."""
    problem = small_instance(seed)
    best = Explicit(problem).solve(fractions=True)
    tables = build_tables(problem)
    random = np.random.default_rng(seed)
    for size in (0.1, 1.0, 10.0):
        prices = Prices(
            limits=random.exponential(size, (len(tables.caps), tables.periods)),
            starts=random.random(tables.periods),
            pins={resource: random.exponential(size, tables.periods) for resource in tables.pins},
            unit_limits={
                (unit, period): float(random.exponential(size))
                for unit in range(len(tables.unit_names))
                for period in range(tables.periods)
                if (tables.low[unit] > 0.0 or np.isfinite(tables.high[unit])) and random.random() < 0.7
            },
        )
        if any(tables.low > 0.0) and not all(
            (unit, 0) in prices.unit_limits for unit in np.flatnonzero(tables.low > 0.0)
        ):
            continue
        proved = lagrangian_bound(tables, prices).cost
        assert best is None or proved <= best * (1.0 + TOLERANCE) + 1e-9


@pytest.mark.parametrize("seed", range(100, 112))
def test_a_unit_costs_at_least_its_excess_above_the_bound(seed: int) -> None:
    """Reduced-cost fixing: the optimum with one such unit forced on is no cheaper than bound plus least excess."""
    whole = hard_instance(seed, gpus=12.0, families=8, sizes=3, slices=3, periods=1)
    tables = build_tables(whole)
    found = run_column_generation(tables, time.monotonic() + 60.0)
    assert found is not None
    least = least_excess(tables, found.bound, 0)
    for index in np.argsort(-least)[:3]:
        units = list(whole.units)
        units[index] = units[index].model_copy(update={"at_least": 1})
        best = Explicit(whole.model_copy(update={"units": tuple(units)})).solve(fractions=True)
        assert best is None or best >= (found.bound.cost + least[index]) * (1.0 - 2e-4)


def test_purchases_are_the_cheapest_of_all_that_cover_the_use() -> None:
    """Against every combination of committed blocks, the rest bought by period in blocks at the cheaper of two ways."""
    random = np.random.default_rng(5)
    for _ in range(20):
        ways = [
            Purchase(name="a", usd_per_hour=float(random.uniform(1, 3)), block=2),
            Purchase(name="b", usd_per_hour=float(random.uniform(1, 3)), block=3, usable_share=0.8),
            Purchase(name="c", usd_per_hour=float(random.uniform(0.5, 2)), block=4, committed=True),
        ]
        used = random.integers(0, 15, 3).astype(float)
        weights = np.array([0.2, 0.3, 0.5])
        purchases = [ResourcePurchase(0, 0, way, 0.0, np.inf) for way in ways]
        bought = cheapest_purchases(purchases, used, 4.0, weights)
        assert bought is not None
        cost = sum(float(way.usd_per_hour * row @ weights) for way, row in zip(ways, bought, strict=True))
        best = np.inf
        for held in range(0, 24, 4):
            total = held * ways[2].usd_per_hour
            for need, weight in zip(used, weights, strict=True):
                total += weight * min(
                    a * ways[0].usd_per_hour + b * ways[1].usd_per_hour
                    for a, b in itertools.product(range(0, 18, 2), range(0, 21, 3))
                    if a + 0.8 * b + held >= need - 1e-9 and a + b + held >= 4.0
                )
            best = min(best, total)
        assert cost == pytest.approx(best, rel=1e-9)


def test_limits_too_tight_are_proved_and_not_an_error() -> None:
    """A quota below what the demand needs, and a slice that nothing serves."""
    problem = hard_instance(1, gpus=100.0, families=24, sizes=3, slices=4, periods=3)
    tight = tuple(one.model_copy(update={"at_most": 1.0}) for one in problem.resources)
    scarce = problem.model_copy(update={"resources": tight})
    assert cannot_serve(build_tables(scarce), time.monotonic() + 10.0)
    assert solve_large(scarce, time_limit_s=5.0, relative_gap=0.005) is None
    nobody = Slice(name="nobody", demand_per_s=(1.0, 1.0, 1.0))
    assert (
        solve_large(
            problem.model_copy(update={"slices": (*problem.slices, nobody)}), time_limit_s=5.0, relative_gap=0.1
        )
        is None
    )
    assert not cannot_serve(build_tables(problem), time.monotonic() + 10.0)


def test_a_budget_below_the_bound_is_infeasible_and_one_above_changes_nothing() -> None:
    problem = hard_instance(1, gpus=100.0, families=24, sizes=3, slices=4, periods=3)
    free = solve_large(problem, time_limit_s=1.0, relative_gap=0.05)
    assert free is not None and free.proven
    rich = problem.model_copy(update={"budget_usd_per_hour": free.cost_usd_per_hour * 1.01})
    same = solve_large(rich, time_limit_s=1.0, relative_gap=0.05)
    assert same is not None and same.cost_usd_per_hour == free.cost_usd_per_hour
    poor = problem.model_copy(update={"budget_usd_per_hour": free.lower_bound * 0.9})
    assert solve_large(poor, time_limit_s=1.0, relative_gap=0.05) is None


def test_time_that_runs_out_leaves_a_fleet_with_an_honest_gap() -> None:
    """A gap that cannot be reached: the limit holds (in processor time, which other programs do not lengthen)."""
    problem = hard_instance(2, gpus=100.0, families=100, sizes=10, slices=12, periods=12)
    begin = time.process_time()
    answer = solve_large(problem, time_limit_s=2.0, relative_gap=1e-9)
    assert time.process_time() - begin < 3.5
    assert answer is not None and answer.has_fleet and not answer.proven
    assert 1e-9 < answer.gap < 0.5
    assert answer.gap == pytest.approx(1.0 - answer.lower_bound / answer.cost_usd_per_hour)
    assert not list(violations(problem, answer))


def test_without_a_time_limit_the_answer_is_the_same_every_time() -> None:
    """The search ends by its passes and nodes: two runs, word for word."""
    problem = hard_instance(3, gpus=100.0, families=24, sizes=3, slices=4, periods=2)
    assert solve_large(problem, relative_gap=1e-3) == solve_large(problem, relative_gap=1e-3)


def test_twice_the_money_is_twice_the_cost() -> None:
    """Prices in another currency scale cost and bound and choose the same fleet."""
    problem = hard_instance(3, gpus=100.0, families=24, sizes=4, slices=6, periods=4)
    doubled = tuple(
        one.model_copy(
            update={
                "purchases": tuple(w.model_copy(update={"usd_per_hour": 2.0 * w.usd_per_hour}) for w in one.purchases)
            }
        )
        for one in problem.resources
    )
    once = solve_large(problem, time_limit_s=20.0, relative_gap=0.1)
    twice = solve_large(problem.model_copy(update={"resources": doubled}), time_limit_s=20.0, relative_gap=0.1)
    assert once is not None and twice is not None and once.proven
    assert twice.cost_usd_per_hour == pytest.approx(2.0 * once.cost_usd_per_hour, rel=1e-9)
    assert twice.lower_bound == pytest.approx(2.0 * once.lower_bound, rel=1e-4)


def test_pools_that_share_partners_are_of_one_kind() -> None:
    """Two kinds on each side of two channels: the fleet uses one, and the bound is that of the mixed relaxation."""
    problem = hard_instance(2, gpus=300.0, families=72, sizes=4, slices=4, periods=3, disaggregated=True)
    units = tuple(
        unit if unit.stage is UnitStage.WHOLE else unit.model_copy(update={"kind": unit.name.split("x")[0][-1:] + "k"})
        for unit in problem.units
    )
    mixed = run_column_generation(build_tables(problem), time.monotonic() + 60.0)
    kinds = problem.model_copy(update={"units": units})
    answer = solve_large(kinds, time_limit_s=2.0, relative_gap=0.01)
    assert answer is not None and answer.has_fleet and mixed is not None
    assert not list(violations(kinds, answer))
    assert answer.lower_bound == pytest.approx(mixed.bound.cost, rel=1e-9)
    assert any(unit.stage is not UnitStage.WHOLE for unit in kinds.units if unit.name in answer.units)


def test_what_is_not_supported_is_said() -> None:
    problem = hard_instance(3, families=12, sizes=1, slices=2, periods=2)
    steady = (problem.units[0].model_copy(update={"steady": True}), *problem.units[1:])
    anything = (Slice(name="s0"), *problem.slices[1:])
    assert is_supported(problem)
    for update in ({"max_groups": 2}, {"units": steady}, {"slices": anything}):
        other = problem.model_copy(update=update)
        assert not is_supported(other)
        with pytest.raises(InputError, match="use solve"):
            solve_large(other, time_limit_s=1.0, relative_gap=0.1)
    with pytest.raises(InputError, match="time_limit_s"):
        solve_large(problem, time_limit_s=0.0, relative_gap=0.1)
