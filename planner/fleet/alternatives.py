"""Alternatives to the plan: in narrower formats, with shared contexts, or under a restriction (one SKU, one mode,
another engine).

By theory, with what simulation taught of the plan (`planner.fleet.corrections`), and as simple to run as a plan of that
restriction alone would be (`planner.fleet.refinement`). Engines are compared on the SKUs of the plan: those that have
step times of that engine's own kernels there, so that nothing borrowed is compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from planner.core import percent
from planner.engine import ReplicaConfig
from planner.fleet.columns import CandidateColumns, Column
from planner.fleet.corrections import Corrections
from planner.fleet.market import market_of
from planner.fleet.pool_sizes import filled_allocation
from planner.fleet.program import SAME_COST, FleetSearch, search_fleet
from planner.fleet.refinement import COARSE_GAP, preferred_allocation, refined_allocation
from planner.fleet.types import Alternative, PlanRequest
from planner.llm import format_words
from planner.optimizer import Allocation, Objective, UnitStage
from planner.search import ShiftRule
from planner.serving import Role, pool_words
from planner.supply import with_all_owned
from planner.traffic import Service

NARROWER = "narrower formats"
"""Name of the alternative in them."""
SHARED, SHARED_BY = "shared contexts", (1, 2, 4, 8)
"""Name of the alternative with decode context parallelism, and its degrees: powers of two up to a server."""
LONG_CONTEXT_TOKENS = 65_536
"""Mean prompt from which on that alternative is looked at: "gains typically appear with input sequence lengths >64K
tokens" (TensorRT-LLM, docs/source/features/helix.md)."""
NOT_ASKED_FOR = {
    "format": "not asked for: precision=narrower; what it costs in accuracy is not judged",
    "engine": "not searched for: search.more_engines",
    "context": "not searched for: search.dcp; no serving run has judged its step times",
}
"""Why an alternative of a kind is not the plan."""
CLEARLY_DEARER = 0.15
"""Share by which an alternative must be dearer, at optimistic rates, to be shown by that bound alone. A choice."""
MOST_ROUNDS = 30
"""Times that optimistic rates of an alternative are replaced before its bound is shown as it stands. A choice: of eight
scenarios with ten alternatives each all but one end within 25."""
UNDECIDED = "not looked at any closer: many configurations are as good by their bounds"
"""In place of the fleet of such a bound."""
NOT_LOOKED_AT = "clearly dearer, not looked at any closer"
"""In place of the fleet of such a bound where that mixes SKUs or modes, as hardly anybody would: its rates are not true
ones."""


def alternatives_of(
    search: FleetSearch, chosen: Allocation, shift_of: ShiftRule | None, corrections: Corrections | None
) -> tuple[Alternative, ...]:
    """The best fleet in narrower formats, with shared contexts, of each SKU, mode, and other engine on the SKUs of the
    plan, from theory.

    Narrower formats are looked at where those of the checkpoint are kept unasked, shared contexts where prompts are of
    `LONG_CONTEXT_TOKENS`, both shown where they save. A
    restriction that the plan keeps anyway has the plan's fleet. One that is `CLEARLY_DEARER` than the chosen one even
    at optimistic rates is not examined any closer.

    Args:
        search: that found the plan.
        chosen: its fleet.
        shift_of: how far step times were taken to be off.
        corrections: what simulation taught of the plan; None: it was not simulated.
    """
    space, simulated = search.request.search, corrections is not None
    restrictions: list[tuple[str, str, Callable[[Column], bool]]] = [
        *((sku, "sku", lambda column, sku=sku: column.family.sku == sku) for sku in dict.fromkeys(space.skus)),
        *((mode.value, "mode", lambda one, mode=mode: one.family.mode is mode) for mode in dict.fromkeys(space.modes)),
    ]
    services = list({slice_.service.name: slice_.service for slice_ in search.slices.values()}.values())
    narrower = [service.with_narrower_formats or service for service in services]
    shared = _with_shared_contexts(search.request, services)
    alternatives = []
    for name, kind, request, served in (
        (NARROWER, "format", search.request, narrower),
        (SHARED, "context", shared, services),
    ):
        if (request, served) != (search.request, services):
            again = search_fleet(request, search.market, served, _quiet(search, name).progress, shift_of, corrections)
            found = _alternative(again, chosen, name, kind, simulated)
            alternatives += [found] if _is_better(search, found, chosen) else []
    for name, kind, keeps in restrictions:  # each looks at the columns as the one before left them
        own = replace(_quiet(search, name), columns=_Only(search.columns, keeps))
        alternatives.append(_alternative(own, chosen, name, kind, simulated))
    for engine, skus in other_engines(search, chosen).items():
        own = _quiet(search, engine)
        request = _on_engine(search.request, engine, skus)
        market = market_of(request, search.market.hardware)
        again = search_fleet(request, market, services, own.progress, shift_of, corrections)
        alternatives.append(_alternative(again, chosen, engine, "engine", simulated))
    return tuple(alternatives)


def _with_shared_contexts(request: PlanRequest, services: Sequence[Service]) -> PlanRequest:
    """The request with decode context parallelism, where prompts are long and nothing is said of it."""
    longest = max(service.workload.lengths.mean_input for service in services)
    if request.search.dcp or longest < LONG_CONTEXT_TOKENS:
        return request
    return request.model_copy(update={"search": request.search.model_copy(update={"dcp": SHARED_BY})})


def _is_better(search: FleetSearch, found: Alternative, chosen: Allocation) -> bool:
    """True if a fleet costs less or serves more than the plan."""
    paid = with_all_owned(chosen, search.market.site_of(chosen).supply).cost_usd_per_hour
    is_cheaper = (found.usd_per_hour or math.inf) < paid * (1.0 - SAME_COST)
    return is_cheaper or found.rate_per_s > chosen.rate_per_s * (1.0 + SAME_COST)


class _Only(CandidateColumns):
    """Columns of some families only. What is asked of them is known to all the columns that they are taken from."""

    def __init__(self, columns: CandidateColumns, keeps: Callable[[Column], bool]) -> None:
        vars(self).update(vars(columns))
        self._keeps = keeps

    @property
    def all(self) -> list[Column]:
        """Those of the families."""
        return [column for column in super().all if self._keeps(column)]


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
    """The request for another engine on some SKUs, and on those that have to be bought whatever serves.

    A memory fraction is not taken over: every engine counts another part of the memory in it.
    """
    pinned = [sku for sku, count in request.limits.pinned.items() if count]
    wanted = tuple(dict.fromkeys((*skus, *pinned)))
    changes = {"engine": engine, "more_engines": (), "skus": wanted, "memory_fraction": None}
    space = request.search.model_copy(update=changes)
    return request.model_copy(update={"search": space})


def _quiet(search: FleetSearch, name: str) -> FleetSearch:
    """The search, which reports one stage whatever it does."""
    stage = f"comparing alternatives: {name}"
    search.progress(stage)
    return replace(search, progress=lambda _: search.progress(stage))


def _alternative(search: FleetSearch, chosen: Allocation, name: str, kind: str, simulated: bool) -> Alternative:
    is_chosen = kind in ("sku", "mode") and chosen.units.keys() <= {column.name for column in search.columns.all}
    clearly_dearer = (1.0 + CLEARLY_DEARER) * chosen.cost_usd_per_hour
    if is_chosen:  # cheaper fleets, within what ties are wide, were passed over for it
        allocation: Allocation | None = chosen
    else:
        allocation = _best(search, clearly_dearer)
    if allocation is None or not allocation.status.has_allocation:
        return Alternative(name, kind, "none meets the targets within the limits", None, 0.0, False)
    stages = list(UnitStage)
    used = sorted(search.chosen(allocation), key=lambda column: stages.index(column.stage))
    is_bound = not all(column.is_exact for column in used)
    kinds = {(one.service, one.family.sku, one.is_mixed) for one in used}
    summary = _fleet_summary(used, allocation, search.peak, with_formats=kind == "format")
    if is_bound and allocation.cost_usd_per_hour <= clearly_dearer:
        summary = UNDECIDED
    elif is_bound and len(kinds) > len({one.service for one in used}):
        summary = NOT_LOOKED_AT
    return Alternative(
        restriction=name,
        kind=kind,
        summary=summary,
        usd_per_hour=with_all_owned(allocation, search.market.site_of(allocation).supply).cost_usd_per_hour,
        rate_per_s=allocation.rate_per_s,
        is_chosen=is_chosen,
        is_bound=is_bound,
        why_not="" if is_chosen or is_bound else _why_not(search, chosen, allocation, kind, simulated),
    )


def _best(search: FleetSearch, clearly_dearer: float) -> Allocation | None:
    """The fleet that a plan of these columns alone would be; at optimistic rates where that is dearer."""
    objective = search.request.objective
    allocation = search.allocation(search.columns.all, objective) if search.columns.all else None
    if allocation is None or allocation.cost_usd_per_hour > clearly_dearer:
        return allocation
    allocation = refined_allocation(
        search, objective, finest_gap=COARSE_GAP, enough_usd_per_hour=clearly_dearer, rounds_at_most=MOST_ROUNDS
    )
    if not _is_exact(search, allocation):
        return allocation
    if allocation.status.has_allocation and allocation.cost_usd_per_hour <= clearly_dearer:
        allocation = preferred_allocation(search, allocation)
    return filled_allocation(search, allocation) if _is_exact(search, allocation) else allocation


def _is_exact(search: FleetSearch, allocation: Allocation) -> bool:
    """True if a fleet rests on true rates alone."""
    return all(column.is_exact for column in search.columns.chosen(allocation))


def _why_not(search: FleetSearch, chosen: Allocation, other: Allocation, kind: str, simulated: bool) -> str:
    """Why a fleet that costs no more than the plan is not the plan, as far as the search knows; else empty."""
    if search.request.objective is not Objective.MIN_COST or _costs_more(other, chosen):
        return ""
    if kind in NOT_ASKED_FOR:
        return NOT_ASKED_FOR[kind]
    reason, excess = _why_preferred(search.columns, chosen, other), search.request.search.simplicity
    if reason and chosen.cost_usd_per_hour <= (1.0 + excess + SAME_COST) * other.cost_usd_per_hour:
        return f"{reason} (search.simplicity)"
    if not _costs_more(chosen, other):
        return ""
    if simulated:
        return "by theory alone: the plan was simulated, this was not"
    return f"the plan is the cheapest to within {percent(chosen.gap)}" if chosen.gap else ""


def _why_preferred(columns: CandidateColumns, chosen: Allocation, other: Allocation) -> str:
    """Why a fleet is preferred to another, by what is preferred first; empty where it is not."""
    ours, others = columns.chosen(chosen), columns.chosen(other)
    borrowed = dict.fromkeys(column.family.sku for column in others if not column.is_measured)
    if borrowed and all(column.is_measured for column in ours):
        return f"step times of {', '.join(borrowed)} were not all measured"
    counts = [len({column.family.sku for column in used}) for used in (ours, others)]
    if counts[0] != counts[1]:
        return f"{counts[1]} SKUs where {counts[0]} will do" if counts[0] < counts[1] else ""
    mixed = [all(column.is_mixed for column in used) for used in (ours, others)]
    if mixed[0] is not mixed[1]:
        return "mixed replicas are simpler to run than pairs of pools" if mixed[0] else ""
    counts = [len({(column.service, column.family.name) for column in used}) for used in (ours, others)]
    if counts[0] == counts[1]:
        counts = [len(columns.members(fleet)) for fleet in (chosen, other)]
    return f"{counts[1]} kinds of pools where {counts[0]} will do" if counts[0] < counts[1] else ""


def _costs_more(one: Allocation, other: Allocation) -> bool:
    return one.cost_usd_per_hour > (1.0 + SAME_COST) * other.cost_usd_per_hour


def _fleet_summary(used: Sequence[Column], allocation: Allocation, period: int, *, with_formats: bool) -> str:
    """E.g. ``8 × H100 SXM (4 mixed TP2)``: what runs then; pools that differ in engine settings only count together."""
    counts: dict[tuple[str, Role, str], int] = {}
    configs: dict[str, ReplicaConfig] = {}
    several = len({column.service for column in used}) > 1
    for column in used:
        config = (column.member or column.family.members[0]).config
        more = f" for {column.service}" * several
        if with_formats:
            more += f" in {format_words(config.llm, config.precision)}, KV {config.precision.kv_cache}"
        pool = (configs.setdefault(config.label, config).label, column.family.role, more)
        counts[pool] = counts.get(pool, 0) + allocation.units[column.name][period] * column.replicas
    return " + ".join(
        f"{pool_words(configs[label], role, count)}{more}" for (label, role, more), count in counts.items() if count
    )
