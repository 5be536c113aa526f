"""How a request is changed to find out what a part of it is worth: requirements to loosen, tighten or drop, and scales.

A *requirement* is one number (a threshold, a limit, the demand) or one rule (whole nodes, a region) of a request. Its
`key` is that of the scenario, so that a change that helps can be made with ``--set key=value``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.analysis.types import Case
from planner.core import Frozen, Metric, rebuilt
from planner.fleet import PlanRequest
from planner.search import Mode
from planner.supply import offered_prices
from planner.workload import LatencyTarget, RequestClass, Slo, TokenLengths, Workload

NO_LIMIT_S = 86_400.0
"""Threshold [s] that stands for none where an Slo has one target only: a day for one request."""
STEPS_S: Mapping[Metric, float] = {Metric.TTFT: 0.010, Metric.TPOT: 0.001, Metric.ITL: 0.001, Metric.E2E: 0.100}
"""Step of a threshold [s]: a round number of the size of its usual unit, a choice."""
SHARE = 0.1
"""Step of what is not counted in pieces, as a share of it; a choice."""


# --- requirements ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Requirement:
    """Something a request insists on.

    Attributes:
        name: in words.
        key: of the scenario.
        value: as requested; None for a rule that holds or not.
        unit: of the value.
        looser_upwards: a larger value is easier to meet.
        whole: counted in pieces.
        lowest: smallest value that makes sense.
        with_value: the request at another value.
        dropped: the request without it; None where there is nothing to drop (the demand).
        step: smallest change worth speaking of.
    """

    name: str
    key: str
    value: float | None
    unit: str
    looser_upwards: bool
    whole: bool
    lowest: float
    with_value: Callable[[float], PlanRequest]
    dropped: PlanRequest | None
    step: float

    def steps(self) -> tuple[float, ...]:
        """Values one step away, on both sides: by pieces, or by `step` and by a share of `SHARE`."""
        if self.value is None:
            return ()
        if self.whole:
            around = [self.value + 1.0, self.value - 1.0]
        else:
            sizes = dict.fromkeys((self.step, SHARE * self.value))
            around = [self.value + sign * size for sign in (1.0, -1.0) for size in sizes]
        return tuple(float(f"{value:.12g}") for value in around if value >= self.lowest)

    def is_looser(self, value: float) -> bool:
        """Whether a value is easier to meet than the one requested."""
        assert self.value is not None
        return (value > self.value) == self.looser_upwards


def requirements(request: PlanRequest) -> tuple[Requirement, ...]:
    """Everything a request insists on: the demand, each latency target, each limit and each rule of buying."""
    return (*_demand(request), *_targets(request), *_limits(request), *_rules(request))


def _demand(request: PlanRequest) -> tuple[Requirement, ...]:
    if request.workload.is_closed:
        return ()
    rate = request.workload.rate_per_s

    def with_rate(rate_per_s: float) -> PlanRequest:
        return rebuilt(request, workload=request.workload.at_rate(rate_per_s))

    step = SHARE * rate
    key = "workload.rate_per_s"
    return (Requirement("demand", key, rate, "requests/s", False, False, 1e-3 * rate, with_rate, None, step),)


def _targets(request: PlanRequest) -> tuple[Requirement, ...]:
    found = _of_slo(request.slo, "slo", "", lambda slo: rebuilt(request, slo=slo))
    for index, kind in enumerate(request.workload.classes):
        if kind.slo is not None:
            key = f"workload.classes.{index}.slo"
            found += _of_slo(kind.slo, key, f"{kind.name}: ", _class_slo(request, index))
    return found


def _class_slo(request: PlanRequest, index: int) -> Callable[[Slo], PlanRequest]:
    def with_slo(slo: Slo) -> PlanRequest:
        classes = list(request.workload.classes)
        classes[index] = rebuilt(classes[index], slo=slo)
        return rebuilt(request, workload=rebuilt(request.workload, classes=tuple(classes)))

    return with_slo


def _of_slo(slo: Slo, key: str, prefix: str, with_slo: Callable[[Slo], PlanRequest]) -> tuple[Requirement, ...]:
    found = []
    for index, target in enumerate(slo.targets):

        def with_threshold(threshold_s: float, index: int = index) -> PlanRequest:
            return with_slo(_replaced(slo, index, rebuilt(slo.targets[index], threshold_s=threshold_s)))

        found.append(
            Requirement(
                name=f"{prefix}{target.name}",
                key=f"{key}.{index}.threshold_s",
                value=target.threshold_s,
                unit="s",
                looser_upwards=True,
                whole=False,
                lowest=1e-4,
                with_value=with_threshold,
                dropped=with_slo(_without(slo, index)),
                step=STEPS_S[target.metric],
            )
        )
    return tuple(found)


def _replaced(slo: Slo, index: int, target: LatencyTarget) -> Slo:
    return rebuilt(slo, targets=(*slo.targets[:index], target, *slo.targets[index + 1 :]))


def _without(slo: Slo, index: int) -> Slo:
    """The Slo without one target; a threshold of a day where it is the only one."""
    if len(slo.targets) == 1:
        return _replaced(slo, index, rebuilt(slo.targets[index], threshold_s=NO_LIMIT_S))
    return rebuilt(slo, targets=slo.targets[:index] + slo.targets[index + 1 :])


@dataclass(frozen=True)
class _Limit:
    """A field of `FleetLimits` that holds one number: what it means, and the value that stands for none."""

    field: str
    name: str
    unit: str
    looser_upwards: bool
    whole: bool
    free: float | None
    lowest: float = 0.0


_NUMBERS = (
    _Limit("budget_usd_per_hour", "budget", "USD/h", True, False, None),
    _Limit("power_kw", "power", "kW", True, False, None),
    _Limit("co2_kg_per_hour", "CO2", "kg/h", True, False, None),
    _Limit("skus_at_most", "most SKUs", "SKUs", True, True, None, 1.0),
    _Limit("replicas_at_least", "fewest replicas of a pool", "replicas", False, True, 1, 1.0),
    _Limit("spare_replicas", "spare replicas", "replicas", False, True, 0),
)
_BY_SKU = (
    _Limit("gpus", "most {}", "GPUs", True, True, None),
    _Limit("pinned", "fewest {}", "GPUs", False, True, None),
)
_RULES = (
    ("limits", "survives_node_loss", "a server may fail", False),
    ("limits", "forbidden", "forbidden SKUs", ()),
    ("prices", "granularity", "whole instances or servers", "gpu"),
    ("prices", "provider", "one provider", None),
    ("prices", "region", "one region", None),
)
"""Record, field, name, and the value that stands for no rule."""


def _limits(request: PlanRequest) -> tuple[Requirement, ...]:
    limits = request.limits
    found = []
    for limit in _NUMBERS:
        value: float | None = getattr(limits, limit.field)
        if value is not None and value != limit.free:
            found.append(_limit(request, limit, limit.name, f"limits.{limit.field}", value, _setter(limit), limit.free))
    for limit in _BY_SKU:
        for sku, count in getattr(limits, limit.field).items():
            name, key = limit.name.format(sku), f"limits.{limit.field}.{sku}"
            found.append(_limit(request, limit, name, key, count, _sku_setter(limit.field, sku), None))
    for index, quota in enumerate(limits.quotas):
        place = " ".join(filter(None, (quota.provider, quota.region, quota.commitment))) or "anywhere"
        limit = _Limit("quotas", f"quota of {quota.sku}, {place}", "GPUs", True, True, None)
        key = f"limits.quotas.{index}.gpus"
        found.append(_limit(request, limit, limit.name, key, quota.gpus, _quota_setter(index), None))
    return tuple(found)


Setter = Callable[[Any, float | None], dict[str, Any]]
"""From limits and a number (None: no limit) to the fields that change."""


def _limit(
    request: PlanRequest, limit: _Limit, name: str, key: str, value: float, setter: Setter, free: float | None
) -> Requirement:
    def with_value(number: float | None) -> PlanRequest:
        given = round(number) if limit.whole and number is not None else number
        return rebuilt(request, limits=rebuilt(request.limits, **setter(request.limits, given)))

    step = 1.0 if limit.whole else SHARE * value
    lowest = limit.lowest if limit.whole else 1e-3 * value
    return Requirement(
        name,
        key,
        float(value),
        limit.unit,
        limit.looser_upwards,
        limit.whole,
        lowest,
        with_value,
        with_value(free),
        step,
    )


def _setter(limit: _Limit) -> Setter:
    return lambda limits, number: {limit.field: number}


def _sku_setter(field: str, sku: str) -> Setter:
    def changed(limits: Any, number: float | None) -> dict[str, Any]:  # noqa: ANN401
        others = {name: count for name, count in getattr(limits, field).items() if name != sku}
        return {field: others if number is None else {**others, sku: number}}

    return changed


def _quota_setter(index: int) -> Setter:
    def changed(limits: Any, number: float | None) -> dict[str, Any]:  # noqa: ANN401
        quotas = list(limits.quotas)
        quotas[index : index + 1] = [] if number is None else [rebuilt(quotas[index], gpus=number)]
        return {"quotas": tuple(quotas)}

    return changed


def _rules(request: PlanRequest) -> tuple[Requirement, ...]:
    found = []
    for holder, field, name, free in _RULES:
        record: Frozen = getattr(request, holder)
        if getattr(record, field) != free:
            dropped = rebuilt(request, **{holder: rebuilt(record, **{field: free})})
            found.append(
                Requirement(name, f"{holder}.{field}", None, "", True, False, 0.0, lambda _: request, dropped, 0.0)
            )
    return tuple(found)


# --- scales ---------------------------------------------------------------------------------------------------------


def with_lengths(request: PlanRequest, inputs: float = 1.0, outputs: float = 1.0) -> PlanRequest:
    """The request with all input and output lengths scaled, cut at the context of the model. No recordings."""

    def scaled(kind: RequestClass) -> RequestClass:
        return rebuilt(kind, lengths=scaled_lengths(kind.lengths, inputs, outputs, request.llm.max_context_tokens))

    return rebuilt(request, workload=_with_classes(request.workload, scaled))


def scaled_lengths(lengths: TokenLengths, inputs: float, outputs: float, most_tokens: int) -> TokenLengths:
    """Lengths times factors, rounded to whole tokens >= 1, inputs cut so that no request is longer than `most_tokens`.

    >>> distribution = scaled_lengths(TokenLengths.constant(1000, 100), 1.2, 0.8, 1250)
    >>> distribution.mean_input, distribution.mean_output
    (1170.0, 80.0)
    """
    written = np.clip(np.rint(lengths.outputs * outputs), 1.0, most_tokens - 1.0)
    read = np.clip(np.rint(lengths.inputs * inputs), 1.0, most_tokens - written)
    return TokenLengths.from_pairs(read, written, lengths.probabilities, source=lengths.source)


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


def without_sku(request: PlanRequest, sku: str) -> PlanRequest | None:
    """The request with one SKU fewer to choose from; None when it is the only one."""
    return _searched(request, "skus", sku)


def without_mode(request: PlanRequest, mode: Mode) -> PlanRequest | None:
    """The request with one mode fewer to choose from; None when it is the only one."""
    return _searched(request, "modes", mode)


def without_tp(request: PlanRequest, tp: int) -> PlanRequest | None:
    """The request with one tensor-parallel degree fewer to choose from; None when it is the only one."""
    return _searched(request, "tp", tp)


def _searched(request: PlanRequest, field: str, unwanted: object) -> PlanRequest | None:
    kept = tuple(value for value in getattr(request.search, field) if value != unwanted)
    return rebuilt(request, search=rebuilt(request.search, **{field: kept})) if kept else None


# --- prices ---------------------------------------------------------------------------------------------------------


def price_now(case: Case, sku: str) -> float | None:
    """The least a GPU-hour of a SKU costs [USD] under the ways of buying allowed; None: no price."""
    policy = case.request.prices
    return min((price.usd_per_gpu_hour for price in offered_prices(sku, policy, case.hardware)), default=None)


def at_price(case: Case, sku: str, factor: float) -> Case:
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
    return Case(request, case.hardware.model_copy(update={"prices": prices}))
