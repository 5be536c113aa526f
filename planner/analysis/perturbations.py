"""How a request is changed to find out what a part of it is worth: requirements to loosen, tighten or drop, and scales.

A *requirement* is one number (a threshold, a limit, the demand) or one rule (whole nodes, a region) of a request. Its
`key` is that of the scenario, so that a change that helps can be made with ``--set key=value``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from planner.analysis.types import PlanningCase
from planner.core import Frozen, Metric, rebuilt
from planner.fleet import PlanRequest
from planner.supply import offered_prices
from planner.workload import LatencyTarget, RecordedArrivals, RequestClass, Slo, Workload

DEMAND_KEY = "workload.rate_per_s"
NO_LIMIT_S = 86_400.0
"""Threshold [s] that stands for none where an Slo has one target only: a day for one request."""
THRESHOLD_STEPS_S: Mapping[Metric, float] = {
    Metric.TTFT: 0.010,
    Metric.TPOT: 0.001,
    Metric.ITL: 0.001,
    Metric.E2E: 0.100,
}
"""Step of a threshold [s]: a round number of the size of its usual unit. A choice."""
STEP_SHARE = 0.1
"""Step of what is not counted in pieces, as a share of it. A choice."""


# --- requirements ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """A requirement that holds or not, such as whole nodes or one region.

    Attributes:
        name: in words.
        key: of the scenario.
        dropped: the request without it.
    """

    name: str
    key: str
    dropped: PlanRequest


@dataclass(frozen=True)
class NumericRequirement:
    """A requirement that is one number: a threshold, a limit, the demand.

    Attributes:
        name: in words.
        key: of the scenario.
        dropped: the request without it; None where there is nothing to drop (the demand).
        value: as requested.
        unit: of the value.
        looser_upwards: a larger value is easier to meet.
        whole: counted in pieces.
        lowest: smallest value that makes sense.
        step: smallest change worth speaking of.
        with_value: the request at another value.
    """

    name: str
    key: str
    dropped: PlanRequest | None
    value: float
    unit: str
    looser_upwards: bool
    whole: bool
    lowest: float
    step: float
    with_value: Callable[[float], PlanRequest]

    def steps(self) -> tuple[float, ...]:
        """Values one step away, on both sides: by pieces, or by `step` and by a share of `STEP_SHARE`."""
        if self.whole:
            around = [self.value + 1.0, self.value - 1.0]
        else:
            sizes = dict.fromkeys((self.step, STEP_SHARE * self.value))
            around = [self.value + sign * size for sign in (1.0, -1.0) for size in sizes]
        return tuple(float(f"{value:.12g}") for value in around if value >= self.lowest)

    def is_looser(self, value: float) -> bool:
        """True if a value is easier to meet than the one requested."""
        return (value > self.value) == self.looser_upwards


Requirement = Rule | NumericRequirement


def requirements(request: PlanRequest) -> tuple[Requirement, ...]:
    """Everything a request insists on: the demand, each latency target, each limit and each rule of buying."""
    return (*numeric_requirements(request), *_rules(request))


def numeric_requirements(request: PlanRequest) -> tuple[NumericRequirement, ...]:
    """Those that are numbers: the demand, each latency target and each limit."""
    return (*_demand(request), *_targets(request), *_limits(request))


def _demand(request: PlanRequest) -> Iterator[NumericRequirement]:
    if not request.workload.is_closed:
        rate_per_s = request.workload.rate_per_s
        yield NumericRequirement(
            name="demand",
            key=DEMAND_KEY,
            dropped=None,
            value=rate_per_s,
            unit="requests/s",
            looser_upwards=False,
            whole=False,
            lowest=1e-3 * rate_per_s,
            step=STEP_SHARE * rate_per_s,
            with_value=lambda rate_per_s: rebuilt(request, workload=request.workload.at_rate(rate_per_s)),
        )


def _targets(request: PlanRequest) -> Iterator[NumericRequirement]:
    """The targets of the request, then those of its classes."""
    yield from _slo_targets(request.slo, "slo", "", lambda slo: rebuilt(request, slo=slo))
    for index, kind in enumerate(request.workload.classes):
        if kind.slo is not None:
            key = f"workload.classes.{index}.slo"
            yield from _slo_targets(kind.slo, key, f"{kind.name}: ", partial(_with_class_slo, request, index))


def _with_class_slo(request: PlanRequest, index: int, slo: Slo) -> PlanRequest:
    classes = list(request.workload.classes)
    classes[index] = rebuilt(classes[index], slo=slo)
    return rebuilt(request, workload=rebuilt(request.workload, classes=tuple(classes)))


def _slo_targets(
    slo: Slo, key: str, prefix: str, with_slo: Callable[[Slo], PlanRequest]
) -> Iterator[NumericRequirement]:
    for index, target in enumerate(slo.targets):

        def with_threshold(threshold_s: float, index: int = index) -> PlanRequest:
            return with_slo(_with_target(slo, index, rebuilt(slo.targets[index], threshold_s=threshold_s)))

        yield NumericRequirement(
            name=f"{prefix}{target.name}",
            key=f"{key}.{index}.threshold_s",
            dropped=with_slo(_without_target(slo, index)),
            value=target.threshold_s,
            unit="s",
            looser_upwards=True,
            whole=False,
            lowest=1e-4,
            step=THRESHOLD_STEPS_S[target.metric],
            with_value=with_threshold,
        )


def _with_target(slo: Slo, index: int, target: LatencyTarget) -> Slo:
    return rebuilt(slo, targets=(*slo.targets[:index], target, *slo.targets[index + 1 :]))


def _without_target(slo: Slo, index: int) -> Slo:
    """The Slo without one target; a threshold of a day where it is the only one."""
    if len(slo.targets) == 1:
        return _with_target(slo, index, rebuilt(slo.targets[index], threshold_s=NO_LIMIT_S))
    return rebuilt(slo, targets=slo.targets[:index] + slo.targets[index + 1 :])


@dataclass(frozen=True)
class _LimitField:
    """A field of `FleetLimits` that holds one number: what it means, and the value that stands for no limit."""

    field: str
    name: str
    unit: str
    looser_upwards: bool
    whole: bool
    no_limit: float | None
    lowest: float = 0.0


_NUMBERS = (
    _LimitField("budget_usd_per_hour", "budget", "USD/h", True, False, None),
    _LimitField("power_kw", "power", "kW", True, False, None),
    _LimitField("co2_kg_per_hour", "CO2", "kg/h", True, False, None),
    _LimitField("skus_at_most", "most SKUs", "SKUs", True, True, None, 1.0),
    _LimitField("replicas_at_least", "fewest replicas of a pool", "replicas", False, True, 1, 1.0),
    _LimitField("spare_replicas", "spare replicas", "replicas", False, True, 0),
)
_BY_SKU = (
    _LimitField("gpus", "most {}", "GPUs", True, True, None),
    _LimitField("pinned", "fewest {}", "GPUs", False, True, None),
)
_QUOTA = _LimitField("quotas", "quota of {}, {}", "GPUs", True, True, None)
_RULES = (
    ("limits", "survives_node_loss", "a server may fail", (False,)),
    ("limits", "forbidden", "forbidden SKUs", ((),)),
    ("prices", "granularity", "whole servers", ("instance", "gpu")),  # what is sold in one piece is no rule
    ("prices", "provider", "one provider", (None,)),
    ("prices", "region", "one region", (None,)),
)
"""Record, field, name, and the values that stand for no rule, first the one it is dropped to."""


def _limits(request: PlanRequest) -> Iterator[NumericRequirement]:
    limits = request.limits
    for limit in _NUMBERS:
        value: float | None = getattr(limits, limit.field)
        if value is not None and value != limit.no_limit:
            with_limit = partial(_with_limits, request, limit.field)
            yield _limit(limit, limit.name, f"limits.{limit.field}", value, with_limit)
    for limit in _BY_SKU:
        for sku, count in getattr(limits, limit.field).items():
            with_limit = partial(_with_sku_limit, request, limit.field, sku)
            yield _limit(limit, limit.name.format(sku), f"limits.{limit.field}.{sku}", count, with_limit)
    for index, quota in enumerate(limits.quotas):
        place = " ".join(filter(None, (quota.provider, quota.region, quota.commitment))) or "anywhere"
        name, key = _QUOTA.name.format(quota.sku, place), f"limits.quotas.{index}.gpus"
        yield _limit(_QUOTA, name, key, quota.gpus, partial(_with_quota, request, index))


def _limit(
    limit: _LimitField, name: str, key: str, value: float, with_limit: Callable[[float | None], PlanRequest]
) -> NumericRequirement:
    """The requirement of a limit, given the request with another value of it (None: no limit)."""
    return NumericRequirement(
        name=name,
        key=key,
        dropped=with_limit(limit.no_limit),
        value=float(value),
        unit=limit.unit,
        looser_upwards=limit.looser_upwards,
        whole=limit.whole,
        lowest=limit.lowest if limit.whole else 1e-3 * value,
        step=1.0 if limit.whole else STEP_SHARE * value,
        with_value=lambda number: with_limit(round(number) if limit.whole else number),
    )


def _with_limits(request: PlanRequest, field: str, value: object) -> PlanRequest:
    return rebuilt(request, limits=rebuilt(request.limits, **{field: value}))


def _with_sku_limit(request: PlanRequest, field: str, sku: str, number: float | None) -> PlanRequest:
    counts = {name: count for name, count in getattr(request.limits, field).items() if name != sku}
    if number is not None:
        counts[sku] = number
    return _with_limits(request, field, counts)


def _with_quota(request: PlanRequest, index: int, number: float | None) -> PlanRequest:
    quotas = list(request.limits.quotas)
    quotas[index : index + 1] = [] if number is None else [rebuilt(quotas[index], gpus=number)]
    return _with_limits(request, "quotas", tuple(quotas))


def _rules(request: PlanRequest) -> Iterator[Rule]:
    for holder, field, name, no_rules in _RULES:
        record: Frozen = getattr(request, holder)
        if getattr(record, field) not in no_rules:
            dropped = rebuilt(request, **{holder: rebuilt(record, **{field: no_rules[0]})})
            yield Rule(name, f"{holder}.{field}", dropped)


# --- scales ---------------------------------------------------------------------------------------------------------


def with_lengths(request: PlanRequest, inputs: float = 1.0, outputs: float = 1.0) -> PlanRequest:
    """The request with all input and output lengths scaled, cut at the context of the model.

    Requests of a recording come when they came.
    """
    most_tokens, workload = request.llm.max_context_tokens, request.workload

    def scaled(kind: RequestClass) -> RequestClass:
        return rebuilt(kind, lengths=kind.lengths.scaled(inputs, outputs, most_tokens))

    changed = _with_classes(workload, scaled)
    if isinstance(workload.arrivals, RecordedArrivals):
        changed = rebuilt(changed, arrivals=workload.arrivals.scaled(inputs, outputs, most_tokens))
    return rebuilt(request, workload=changed)


def with_prefixes(request: PlanRequest, factor: float) -> PlanRequest:
    """The request with the shared start of prompts scaled, and with it the share of tokens that a cache can hold."""

    def scaled(kind: RequestClass) -> RequestClass:
        if kind.prefixes is None:
            return kind
        tokens = max(1, round(factor * kind.prefixes.tokens))
        return rebuilt(kind, prefixes=rebuilt(kind.prefixes, tokens=tokens))

    return rebuilt(request, workload=_with_classes(request.workload, scaled))


def _with_classes(workload: Workload, change: Callable[[RequestClass], RequestClass]) -> Workload:
    return rebuilt(workload, classes=tuple(map(change, workload.classes)))


def without_choice(request: PlanRequest, field: str, unwanted: object) -> PlanRequest | None:
    """The request with one value fewer to choose from in a field of its search; None when it is the only one."""
    kept = tuple(value for value in getattr(request.search, field) if value != unwanted)
    return rebuilt(request, search=rebuilt(request.search, **{field: kept})) if kept else None


# --- prices ---------------------------------------------------------------------------------------------------------


def price_now(case: PlanningCase, sku: str) -> float | None:
    """The least a GPU-hour of a SKU costs [USD] under the purchase options allowed; None: no price."""
    policy = case.request.prices
    return min((price.usd_per_gpu_hour for price in offered_prices(sku, policy, case.hardware)), default=None)


def at_price(case: PlanningCase, sku: str, factor: float) -> PlanningCase:
    """The case with every price of a SKU times a factor: listed, given and of GPUs of one's own."""
    prices = tuple(
        price.model_copy(update={"usd_per_gpu_hour": factor * price.usd_per_gpu_hour}) if price.sku == sku else price
        for price in case.hardware.prices
    )
    policy = case.request.prices
    own = {name: usd * (factor if name == sku else 1.0) for name, usd in policy.usd_per_gpu_hour.items()}
    updates: dict[str, Any] = {"usd_per_gpu_hour": own}
    owned = policy.owned
    if sku in owned:
        fields = ("capex_usd_per_gpu", "usd_per_kwh", "other_usd_per_gpu_hour")
        dearer = rebuilt(owned[sku], **{name: factor * getattr(owned[sku], name) for name in fields})
        updates["owned"] = {**owned, sku: dearer}
    request = rebuilt(case.request, prices=rebuilt(policy, **updates))
    return PlanningCase(request, case.hardware.model_copy(update={"prices": prices}))
