"""Why a plan has no fleet, in a sentence, and changes of the scenario that help.

`fixes` reads proposals off what the plan says (what came nearest, which limits conflict, what has no price) without
solving; `complete_fix` follows one until there is a fleet, so that what is offered is known to help and what it costs.
Changes are values by dotted path of the scenario, as ``--set`` and the web app take them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hardware_db import Dtype, EngineFeature, HardwareDb, load_hardware, sku_words
from planner.analysis import SmallestRelaxation
from planner.core import InputError, number_of, significant, with_unit
from planner.fleet import Plan, PlanRequest
from planner.optimizer import Diagnosis, Relaxation
from planner.report import diagnosis, quantity
from planner.search import Mode, Rejection
from planner.supply import PricePolicy, offered_prices
from planner.workload import LatencyTarget

T = TypeVar("T")

QUEUEING_ROOM = (1.1, 1.5)
"""Factors on the latency of an idle replica: little room to queue (many replicas), and some. A choice; both are
offered, with what they cost."""
MAX_JOINED_FIXES = 4
"""Most changes that are joined into one fix. A choice."""
TP_DEGREES = (1, 2, 4, 8)
"""Tensor-parallel degrees that are worth a try: those within a server of eight GPUs."""
SHARED_FROM_TOKENS, SHARED_BY = 8192, 8
"""Mean prompt from which on it is worth to share prompts out, where the first token comes as soon as without (SGLang
issue 37944: "break-even at ~8K"), and the GPUs of a server that do so."""
MAX_MORE_SKUS = 3
"""SKUs that are proposed together, those of the greatest memory bandwidth."""
VALUE_WITHOUT_RULE: Mapping[str, Any] = {
    "limits.survives_node_loss": False,
    "limits.forbidden": [],
    "prices.granularity": "instance",
    "prices.provider": None,
    "prices.region": None,
}
"""Value in a scenario of a rule that does not hold."""
COUNTED_UNITS = frozenset({"GPUs", "replicas", "SKUs"})
"""Units that are counted in pieces."""


@dataclass(frozen=True)
class Fix:
    """A change of the scenario.

    Attributes:
        text: what it does, e.g. ``Allow p99 TTFT up to 310 ms (now 20 ms)``.
        changes: values by dotted path of the scenario.
    """

    text: str
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class CompletedFix:
    """A fix that helps, and the plan with it (by theory)."""

    fix: Fix
    plan: Plan


Solve = Callable[[Mapping[str, Any]], Plan]
"""From changes to the plan with them. May raise InputError."""


# --- what may help --------------------------------------------------------------------------------------------------


def fixes(plan: Plan, hardware: HardwareDb | None = None) -> tuple[Fix, ...]:
    """Changes that may make an infeasible plan feasible, nearest first. Solves nothing; none of a feasible plan.

    A proposal is a first step: where two things stand in the way, each alone is not enough (see `complete_fix`).

    Args:
        plan: without a fleet.
        hardware: what it was planned on, for SKUs and prices; the packaged database when None.
    """
    if plan.feasible:
        return ()
    known = hardware or load_hardware()
    proposals = [*_limit_fixes(plan), *_supply_fixes(plan, known), *_latency_fixes(plan), *_search_fixes(plan, known)]
    unique = {repr(sorted(fix.changes.items())): fix for fix in reversed(proposals)}
    return tuple(fix for fix in proposals if unique[repr(sorted(fix.changes.items()))] is fix)


def complete_fix(fix: Fix, solve: Solve, hardware: HardwareDb | None = None) -> CompletedFix | None:
    """A fix with whatever else is needed, and the plan it leads to; None where `MAX_JOINED_FIXES` are not enough.

    A limit of GPUs that was dropped comes back as what the plan found uses.
    """
    applied = [fix]
    for _ in range(MAX_JOINED_FIXES):
        try:
            plan = solve(_joint_changes(applied))
        except InputError:
            return None
        if plan.feasible:
            applied = [_with_used_gpus(step, plan) for step in applied]
            return CompletedFix(Fix("; ".join(step.text for step in applied), _joint_changes(applied)), plan)
        done = _joint_changes(applied)
        more = (fix for fix in fixes(plan, hardware) if any(done.get(path) != new for path, new in fix.changes.items()))
        if (further := next(more, None)) is None:
            return None
        applied = [step for step in applied if not set(step.changes) <= set(further.changes)] + [further]
    return None


def _joint_changes(applied: Sequence[Fix]) -> dict[str, Any]:
    return {path: value for fix in applied for path, value in fix.changes.items()}


_GPUS = "limits.gpus"


def _with_used_gpus(fix: Fix, plan: Plan) -> Fix:
    """A dropped limit of GPUs as the number that is used instead."""
    if set(fix.changes) != {_GPUS}:
        return fix
    limits = dict(fix.changes[_GPUS])
    used = {sku: count for sku, count in plan.gpus.items() if sku not in limits and f" {sku} " in f"{fix.text} "}
    if not used:
        return fix
    allowed = " and ".join(f"{count:,} x {sku}" for sku, count in used.items())
    return Fix(f"Allow {allowed}", {_GPUS: {**limits, **used}})


# --- limits that conflict -------------------------------------------------------------------------------------------


def _limit_fixes(plan: Plan) -> Iterator[Fix]:
    """Each limit of the conflict at the nearest value that will do, or without it."""
    if plan.allocation is None or plan.allocation.diagnosis is None:
        return
    relaxations = plan.allocation.diagnosis.relaxations
    for relaxation in sorted(relaxations, key=lambda relaxation: relaxation.needed is None):
        yield from _relaxed(relaxation, relaxation.needed, relaxation.limit, plan.request)


_SIMPLE = {
    "budget_usd_per_hour": ("limits.budget_usd_per_hour", "the budget", "USD/h"),
    "resources[power_kw].at_most": ("limits.power_kw", "the power limit", "kW"),
    "resources[co2_kg_per_h].at_most": ("limits.co2_kg_per_hour", "the CO2 limit", "kg/h"),
    "max_groups": ("limits.skus_at_most", "the number of SKUs", "SKUs"),
}
"""Fields of the program that one field of a scenario sets: its path, name and unit."""
_RESOURCE = re.compile(r"resources\[([^\]]+)\]\.(?:purchases\[[^\]]+\]\.)?at_most")
_PIN = re.compile(r"resources\[([^\]]+)\]\.at_least")


def _relaxed(relaxation: Relaxation, needed: float | None, limit: float, request: PlanRequest) -> Iterator[Fix]:
    if relaxation.field in _SIMPLE:
        path, name, unit = _SIMPLE[relaxation.field]
        if needed is None:
            yield Fix(f"Lift {name} of {quantity(limit, unit)}", {path: None})
        else:
            value = math.ceil(needed) if unit in COUNTED_UNITS else rounded_up(needed, 3)
            yield Fix(f"Raise {name} to {quantity(value, unit)} (now {quantity(limit, unit)})", {path: value})
    elif pin := _PIN.fullmatch(relaxation.field):
        if needed is None:
            text, kept = f"Do not insist on {limit:,.0f} x {pin[1]}", {}
        else:
            text, kept = (
                f"Insist on {math.floor(needed):,} x {pin[1]} only (now {limit:,.0f})",
                {pin[1]: math.floor(needed)},
            )
        yield Fix(text, {"limits.pinned": {**without(request.limits.pinned, pin[1]), **kept}})
    elif limited := _RESOURCE.fullmatch(relaxation.field):
        if needed is None:
            yield from _lift_gpu_limits(limited[1], request)
        else:
            yield from _allow_gpus(limited[1], math.ceil(needed - 1e-9), limit, request)
    elif needed is not None and relaxation.field.startswith("slices["):
        one_stream = request.has_one_model and request.split is None and not request.by_class
        if one_stream and request.profile is None and request.growth == 1.0:  # the demand is the rate of the scenario
            rate_per_s = -rounded_up(-needed, 3)
            yield Fix(f"Serve {significant(rate_per_s)} requests/s at most", {"workload.rate_per_s": rate_per_s})


def without(held: Mapping[str, T], name: str) -> dict[str, T]:
    """A mapping without one of its names."""
    return {other: value for other, value in held.items() if other != name}


def _allow_gpus(sku: str, needed: int, limit: float, request: PlanRequest) -> Iterator[Fix]:
    limits, quotas = request.limits.gpus, request.limits.quotas
    if sku in limits and limits[sku] < needed:
        yield Fix(f"Allow {needed:,} x {sku} (now {limit:,.0f})", {_GPUS: {**limits, sku: needed}})
    elif any(quota.sku == sku for quota in quotas):
        grown = [
            {**quota.model_dump(mode="json"), "gpus": max(quota.gpus, needed if quota.sku == sku else 0)}
            for quota in quotas
        ]
        yield Fix(f"Raise the quota of {sku} to {needed:,} GPUs (now {limit:,.0f})", {"limits.quotas": grown})


def _lift_gpu_limits(sku: str, request: PlanRequest) -> Iterator[Fix]:
    """Without limits and quotas of a SKU."""
    if sku in request.limits.gpus:
        kept = without(request.limits.gpus, sku)
        yield Fix(f"Lift the limit of {request.limits.gpus[sku]:,} x {sku}", {_GPUS: kept})
    if any(quota.sku == sku for quota in request.limits.quotas):
        others = [quota.model_dump(mode="json") for quota in request.limits.quotas if quota.sku != sku]
        yield Fix(f"Lift the quota of {sku}", {"limits.quotas": others})


# --- what cannot be bought ------------------------------------------------------------------------------------------


def _supply_fixes(plan: Plan, hardware: HardwareDb) -> Iterator[Fix]:
    """Of SKUs that are ruled out or have no price: what rules them out, lifted."""
    request = plan.request
    reasons = {rejection.sku: rejection.reason for rejection in plan.rejections if not math.isfinite(rejection.ratio)}
    forbidden = [sku for sku in reasons if sku in request.limits.forbidden]
    if forbidden:
        kept = [sku for sku in request.limits.forbidden if sku not in forbidden]
        yield Fix(f"Allow {', '.join(forbidden)} (forbidden now)", {"limits.forbidden": kept})
    for sku in reasons:
        if request.limits.gpus.get(sku) == 0:
            yield from _lift_gpu_limits(sku, request)
    unpriced = [sku for sku, why in reasons.items() if "price that may be used" in why]
    if unpriced:
        yield from _price_fixes(unpriced, request, hardware)
        yield from (fix for sku in unpriced for fix in _lift_gpu_limits(sku, request))


def _price_fixes(skus: Sequence[str], request: PlanRequest, hardware: HardwareDb) -> Iterator[Fix]:
    """Changes of the price policy under which one of the SKUs has a price."""
    policy = request.prices
    tried: list[tuple[str, dict[str, Any]]] = []
    if policy.region is not None:
        tried.append((f"Buy outside {policy.region} too", {"region": None}))
    if policy.provider is not None:
        tried.append((f"Buy from others than {policy.provider} too", {"provider": None, "region": None}))
    if policy.min_confidence != "low":
        tried.append(("Use prices of low confidence too", {"min_confidence": "low"}))
    listed = sorted({price.commitment for price in hardware.prices if price.sku in skus})
    for commitment in listed:
        if commitment not in policy.commitments and commitment != "spot":
            words = commitment.replace("_", " ")
            tried.append((f"Buy {words} too", {"commitments": [*policy.commitments, commitment]}))
    for text, fields in tried:
        given = {**fields, **({"commitments": tuple(fields["commitments"])} if "commitments" in fields else {})}
        loosened = policy.model_copy(update=given)
        priced = [sku for sku in skus if has_price(sku, loosened, hardware)]
        if priced:
            named = ", ".join(priced[:3]) + (", ..." if len(priced) > 3 else "")
            yield Fix(f"{text} ({named})", {f"prices.{name}": value for name, value in fields.items()})


def has_price(sku: str, policy: PricePolicy, hardware: HardwareDb) -> bool:
    """True if a SKU can be bought under a policy."""
    try:
        return bool(offered_prices(sku, policy, hardware))
    except InputError:
        return False


# --- targets --------------------------------------------------------------------------------------------------------


def _latency_fixes(plan: Plan) -> Iterator[Fix]:
    """The target that came nearest to being met, loosened to what an idle replica takes and some room to queue."""
    nearest: dict[_ScenarioTarget, float] = {}
    for rejection in plan.rejections:
        place = _violated_target(rejection, plan.request)
        if place is not None and rejection.ratio < nearest.get(place, math.inf):
            nearest[place] = rejection.ratio
    if not nearest and not (plan.allocation and plan.allocation.diagnosis) and not plan.rejections:
        nearest = dict.fromkeys(_targets(plan.request), 1.0)
    for place, ratio in sorted(nearest.items(), key=lambda item: item[1]):
        target = place.target
        for room in QUEUEING_ROOM:
            loosened = rounded_up(room * ratio * target.threshold_s, 2)
            now = with_unit(target.threshold_s, target.metric)
            text = f"Allow {place.owner}{target.name} up to {with_unit(loosened, target.metric)} (now {now})"
            yield Fix(text, {place.path: loosened})


@dataclass(frozen=True)
class _ScenarioTarget:
    """A latency target and where the scenario says it.

    Attributes:
        path: dotted, of its threshold.
        target: the target.
        owner: the class or service it is for, such as ``chat: ``; empty where the scenario has it for all.
    """

    path: str
    target: LatencyTarget
    owner: str


def _targets(request: PlanRequest) -> Iterator[_ScenarioTarget]:
    """Every target of a request."""
    slos = [("slo", request.slo, "")]
    slos += [
        (f"workload.classes.{place}.slo", kind.slo, f"{kind.name}: ")
        for place, kind in enumerate(request.workload.classes)
        if kind.slo is not None
    ]
    slos += [
        (f"services.{place}.slo", service.slo, f"{service.name}: ") for place, service in enumerate(request.services)
    ]
    for path, slo, owner in slos:
        for place, target in enumerate(slo.targets):
            yield _ScenarioTarget(f"{path}.{place}.threshold_s", target, owner)


def _violated_target(rejection: Rejection, request: PlanRequest) -> _ScenarioTarget | None:
    """The target that a rejection names; of several alike, the one whose owner it names."""
    if not math.isfinite(rejection.ratio):
        return None
    named = [
        place
        for place in _targets(request)
        if f": {place.target.name} " in rejection.reason
        and f"> {with_unit(place.target.threshold_s, place.target.metric)} " in rejection.reason
    ]
    return max(
        named,
        key=lambda place: place.owner.removesuffix(": ") in rejection.reason and len(place.owner),
        default=None,
    )


# --- more to choose from --------------------------------------------------------------------------------------------


def _search_fixes(plan: Plan, hardware: HardwareDb) -> Iterator[Fix]:
    """More degrees, modes, formats and SKUs, where no configuration will do (limits are no reason to look further)."""
    request, search = plan.request, plan.request.search
    if plan.allocation is not None and plan.allocation.diagnosis is not None:
        return
    more = _faster_skus(request, hardware)
    if more:
        yield Fix(f"Look at {', '.join(more)} too", {"search.skus": [*search.skus, *more]})
    degrees = sorted({*search.tp, *TP_DEGREES})
    if search.tp and degrees != sorted(set(search.tp)):
        added = ", ".join(f"TP{degree}" for degree in degrees if degree not in search.tp)
        yield Fix(f"Try {added} too", {"search.tp": degrees})
    for mode in Mode:
        if mode not in search.modes:
            yield Fix(
                f"Try {mode.value} pools too", {"search.modes": [*(known.value for known in search.modes), mode.value]}
            )
    yield from _shared_prompts(request, hardware)
    if request.precision.weights in (Dtype.BF16, Dtype.FP16) and not request.precision.parts:
        formats = {"weights": "fp8", "activations": "fp8", "kv_cache": "fp8"}
        yield Fix(f"Serve in FP8 (now {request.precision.weights.value})", {"precision": formats})


def _shared_prompts(request: PlanRequest, hardware: HardwareDb) -> Iterator[Fix]:
    """Long prompts shared out over the GPUs of prefill pools, by an engine that is known to do so for the model."""
    search, feature = request.search, EngineFeature.PROMPT_CONTEXT
    long = max(service.workload.lengths.mean_input for service in request.all_services) >= SHARED_FROM_TOKENS
    for engine in hardware.engines.values() if long and not search.pcp else ():
        rows = [row for row in engine.support if row.feature is feature and request.llm.family in row.families]
        if any(row.supported for row in rows):
            changes: dict[str, Any] = {"search.pcp": [1, SHARED_BY]}
            if engine.id not in search.engines:
                changes["search.more_engines"] = [*search.more_engines, engine.id]
            if Mode.DISAGGREGATED not in search.modes:
                changes["search.modes"] = [*(known.value for known in search.modes), Mode.DISAGGREGATED.value]
            yield Fix(f"Share long prompts out over {SHARED_BY} GPUs of prefill pools in {engine.name}", changes)


def _faster_skus(request: PlanRequest, hardware: HardwareDb) -> list[str]:
    """SKUs with a price that are not looked at, of the greatest memory bandwidth, which paces most decoding."""
    taken = {*request.search.skus, *request.limits.forbidden}
    fastest = sorted(hardware.skus.values(), key=lambda gpu: -gpu.hbm_bandwidth_bytes_per_s.value)
    priced = (gpu.id for gpu in fastest if gpu.id not in taken and has_price(gpu.id, request.prices, hardware))
    return [sku for sku, _ in zip(priced, range(MAX_MORE_SKUS), strict=False)]


# --- smallest relaxations -------------------------------------------------------------------------------------------


def fix_from_relaxation(relaxation: SmallestRelaxation) -> Fix | None:
    """The change that a smallest relaxation says is enough, its value rounded to the looser side; None: none is."""
    key, name = relaxation.key, relaxation.name
    if relaxation.outcome is None:
        return None
    if relaxation.before is None or relaxation.needed is None:
        return Fix(f"Without {name}", {key: VALUE_WITHOUT_RULE[key]}) if key in VALUE_WITHOUT_RULE else None
    value = _rounded_looser(relaxation.before, relaxation.needed, relaxation.unit)
    text = f"{name}: {quantity(relaxation.before, relaxation.unit)} to {quantity(value, relaxation.unit)}"
    return Fix(text[:1].upper() + text[1:] if text.split(maxsplit=1)[0].islower() else text, {key: value})


def _rounded_looser(before: float, needed: float, unit: str) -> float | int:
    up = needed > before
    if unit in COUNTED_UNITS:
        return math.ceil(needed - 1e-9) if up else math.floor(needed + 1e-9)
    return rounded_up(needed, 3) if up else -rounded_up(-needed, 3)


def rounded_up(value: float, digits: int) -> float:
    """The least number of so many significant digits that is no smaller.

    >>> rounded_up(0.2804, 2), rounded_up(70.9728, 3), rounded_up(-31.26, 3)
    (0.29, 71.0, -31.2)
    """
    if value == 0.0:
        return 0.0
    place = digits - 1 - math.floor(math.log10(abs(value)))
    scaled = math.ceil(float(f"{value:.12g}") * 10.0**place - 1e-9)
    return float(f"{scaled / 10.0**place:.{digits + 1}g}")


# --- in words -------------------------------------------------------------------------------------------------------


def infeasibility_reason(plan: Plan) -> str:
    """Why there is no fleet, in one plain sentence; empty for a feasible plan."""
    if plan.feasible:
        return ""
    if plan.allocation is not None and plan.allocation.diagnosis is not None:
        return _conflict_text(plan.allocation.diagnosis, plan.request)
    reachable = [rejection for rejection in plan.rejections if math.isfinite(rejection.ratio)]
    if reachable:
        nearest = min(reachable, key=lambda rejection: rejection.ratio)
        text = f"Nearest: {nearest.reason}."
        if (place := _violated_target(nearest, plan.request)) is not None:
            target, owner = place.target, place.owner
            threshold = with_unit(target.threshold_s, target.metric)
            reached = with_unit(nearest.ratio * target.threshold_s, target.metric)
            label = nearest.reason.partition(f": {target.name} ")[0].removeprefix(owner)
            text = f"Nearest comes {label} with {owner}{target.name} {reached}, where {threshold} are asked."
        return f"No configuration meets the targets, even with no other request in the system. {text}"
    if plan.rejections:
        causes = dict.fromkeys(rejection.reason for rejection in plan.rejections)
        return f"Nothing that was looked at can serve the model: {'; '.join(list(causes)[:3])}."
    lines = diagnosis(plan)
    return f"{lines[0]}." if lines else "Within the targets no configuration carries any load to speak of."


def _conflict_text(conflict: Diagnosis, request: PlanRequest) -> str:
    limits = list(dict.fromkeys(limit_in_words(item.field, item.limit, request) for item in conflict.relaxations))
    if not limits:
        return f"{conflict.summary}."
    if len(limits) == 1:
        return f"Nothing meets {limits[0]}."
    return f"These cannot hold together: {', '.join(limits[:-1])} and {limits[-1]}."


def limit_in_words(field: str, limit: float, request: PlanRequest) -> str:
    """A limit of the program as a person would say it.

    Args:
        field: the input that sets it, as `planner.optimizer.ConstraintReport.field` has it.
        limit: its value.
        request: whose it is.
    """
    if field in _SIMPLE:
        _, name, unit = _SIMPLE[field]
        return f"at most {number_of(round(limit), 'SKU')}" if unit == "SKUs" else f"{name} of {quantity(limit, unit)}"
    if pin := _PIN.fullmatch(field):
        return f"at least {limit:,.0f} × {sku_words(pin[1])}"
    if limited := _RESOURCE.fullmatch(field):
        return f"at most {limit:,.0f} × {sku_words(limited[1])}"
    if field.startswith("slices["):
        name = field[len("slices[") :].partition("]")[0]
        of = f" of {name}" if len(request.all_services) > 1 or name != request.llm.id else ""
        return f"the demand{of} of {significant(limit)} requests/s"
    if field == "min_rate_per_s":
        return "a fleet of at least one replica"
    return f"{field.replace('_', ' ')} {significant(limit)}"
