"""Large and small fleet problems, and the whole program of one written out from its records alone."""

from __future__ import annotations

import itertools

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from planner.optimizer import FleetProblem, Period, Purchase, Resource, Slice, Unit, UnitStage


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
            high = maybe(0.4, float(random.integers(4, 13)))
            ways.append(
                Purchase(
                    name="reserved",
                    usd_per_hour=committed,
                    committed=True,
                    block=int(random.choice([1, 3])),
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
        on = {(u.name, t): self._new(u.usd_per_hour * share[t], 0.0, None, 1) for u in problem.units for t in periods}
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
                once = self._new(way.usd_per_hour * way.block, 0.0, high, 1) if way.committed else -1
                for t, part in enumerate(share):
                    blocks = once if way.committed else self._new(part * way.usd_per_hour * way.block, 0.0, high, 1)
                    hold[t][blocks] = -way.usable_share * way.block
                    held[t][blocks] = float(way.block)
            for t in range(len(share)):
                if resource.at_most is not None:
                    self._row(used[t], -np.inf, resource.at_most)
                if resource.purchases:
                    self._row(hold[t], -np.inf, 0.0)
                    self._row(held[t], resource.at_least, np.inf)

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
