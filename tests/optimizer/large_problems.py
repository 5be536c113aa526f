"""Fleet problems with the structure of real ones, as large as asked for."""

from __future__ import annotations

import numpy as np

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
