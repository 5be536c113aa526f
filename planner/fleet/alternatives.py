"""What the best fleet would be under a restriction, beside the one that was planned: one SKU, one mode, another engine.

By theory, with what simulation taught of the plan (`planner.fleet.corrections`). Engines are compared on the SKUs of
the plan: those that have step times of that engine's own kernels there, so that nothing borrowed is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.fleet.columns import Column
from planner.fleet.corrections import Corrections
from planner.fleet.filling import filled_allocation
from planner.fleet.market import market_of
from planner.fleet.program import FleetSearch, search_fleet
from planner.fleet.refinement import COARSE_GAP, refined_allocation
from planner.fleet.search import simplest_allocation
from planner.fleet.types import Alternative, PlanRequest, Progress
from planner.optimizer import Allocation, UnitStage
from planner.search import Mode, ShiftRule

CLEARLY_DEARER = 0.15
"""Share by which an alternative must be dearer, at optimistic rates, to be shown by that bound alone. A choice."""


def alternatives_of(
    search: FleetSearch, chosen: Allocation, shift_of: ShiftRule | None, corrections: Corrections | None
) -> tuple[Alternative, ...]:
    """The best fleet of each single SKU, of each mode, and of each other engine on the SKUs of the plan, from theory.

    A restriction that the plan keeps anyway has the plan's fleet. One that is `CLEARLY_DEARER` than the chosen one even
    at optimistic rates is not examined any closer.

    Args:
        search: that found the plan.
        chosen: its fleet.
        shift_of: how far step times were taken to be off.
        corrections: what simulation taught of the plan; None: it was not simulated.
    """
    space = search.request.search
    alternatives = []
    for sku in dict.fromkeys(space.skus):
        columns = [column for column in search.columns.all if column.family.sku == sku]
        alternatives.append(_alternative(_quiet(search, sku), columns, chosen, sku, "sku"))
    for mode in dict.fromkeys(space.modes):  # each looks at the columns as the one before left them
        columns = [column for column in search.columns.all if column.is_mixed is (mode is Mode.MIXED)]
        alternatives.append(_alternative(_quiet(search, mode.value), columns, chosen, mode.value, "mode"))
    for engine, skus in other_engines(search, chosen).items():
        own = _quiet(search, engine)
        request = _on_engine(search.request, engine, skus)
        market = market_of(request, search.market.hardware)
        services = list({slice_.service.name: slice_.service for slice_ in search.slices.values()}.values())
        again = search_fleet(request, market, services, own.progress, shift_of, corrections)
        alternatives.append(_alternative(again, again.columns.all, chosen, engine, "engine"))
    return tuple(alternatives)


def other_engines(search: FleetSearch, chosen: Allocation) -> dict[str, tuple[str, ...]]:
    """Engines that were not searched, with those SKUs of the plan for which their kernels were measured.

    Args:
        search: that found the plan.
        chosen: its fleet.
    """
    used = dict.fromkeys(column.family.sku for column in search.columns.chosen(chosen))
    hardware, searched = search.market.hardware, search.request.search.engines
    measured = {(calibration.sku, calibration.engine) for calibration in hardware.calibrations}
    by_engine = {
        engine: tuple(sku for sku in used if (sku, engine) in measured)
        for engine in hardware.engines
        if engine not in searched
    }
    return {engine: skus for engine, skus in by_engine.items() if skus} if search.request.search.calibrated else {}


def _on_engine(request: PlanRequest, engine: str, skus: Sequence[str]) -> PlanRequest:
    """The request for another engine on some SKUs, and on those that have to be bought whatever serves."""
    pinned = [sku for sku, count in request.limits.pinned.items() if count]
    wanted = tuple(dict.fromkeys((*skus, *pinned)))
    space = request.search.model_copy(update={"engine": engine, "more_engines": (), "skus": wanted})
    return request.model_copy(update={"search": space})


def _quiet(search: FleetSearch, name: str) -> FleetSearch:
    """The search, saying one stage in place of whatever it hears."""
    stage = f"comparing alternatives: {name}"
    search.progress(stage)
    return replace(search, progress=_constant(search.progress, stage))


def _constant(progress: Progress, stage: str) -> Progress:
    return lambda _: progress(stage)


def _alternative(
    search: FleetSearch, columns: Sequence[Column], chosen: Allocation, name: str, kind: str
) -> Alternative:
    is_chosen = kind != "engine" and chosen.units.keys() <= {column.name for column in columns}
    if is_chosen:  # cheaper fleets, within what ties are wide, were passed over for it
        allocation: Allocation | None = chosen
    else:
        allocation = _best(search, columns, kind, (1.0 + CLEARLY_DEARER) * chosen.cost_usd_per_hour)
    if allocation is None or not allocation.status.has_allocation:
        return Alternative(name, kind, "none meets the targets within the limits", None, 0.0, False)
    stages = list(UnitStage)
    used = sorted(search.chosen(allocation), key=lambda column: stages.index(column.stage))
    return Alternative(
        restriction=name,
        kind=kind,
        summary=_fleet_summary(used, allocation, search.peak),
        usd_per_hour=allocation.cost_usd_per_hour,
        rate_per_s=allocation.rate_per_s,
        is_chosen=is_chosen,
        is_bound=not all(column.is_exact for column in used),
    )


def _best(search: FleetSearch, columns: Sequence[Column], kind: str, clearly_dearer: float) -> Allocation | None:
    """The best fleet of the columns' families; at optimistic rates where that is dearer.

    Where nothing else may be chosen from, that of another engine, it is as simple to run as the plan is.
    """
    allocation = search.allocation(columns, search.request.objective) if columns else None
    if allocation is None or allocation.cost_usd_per_hour > clearly_dearer:
        return allocation
    families = {(column.service, column.family.name) for column in columns}

    def of_families() -> list[Column]:
        return [column for column in search.columns.all if (column.service, column.family.name) in families]

    allocation = refined_allocation(
        search, search.request.objective, of_families, finest_gap=COARSE_GAP, enough_usd_per_hour=clearly_dearer
    )
    if kind == "engine" and allocation.status.has_allocation and allocation.cost_usd_per_hour <= clearly_dearer:
        allocation = simplest_allocation(search, allocation)
    if all(column.is_exact for column in search.columns.chosen(allocation)):
        allocation = filled_allocation(search, allocation)
    return allocation


def _fleet_summary(used: Sequence[Column], allocation: Allocation, period: int) -> str:
    """E.g. ``4 x h100-sxm TP2 mixed``: what runs then; pools that differ in engine settings only count together."""
    counts: dict[str, int] = {}
    for column in used:
        pool = f"{column.family.members[0].config.label} {column.family.role}"
        counts[pool] = counts.get(pool, 0) + allocation.units[column.name][period] * column.replicas
    return " + ".join(f"{count} x {pool}" for pool, count in counts.items() if count)
