"""Services and profiles become slices and periods: the rows of the integer program.

`slices_of` cuts the traffic of every service by request class and by length, `cascade_services` says what the two
models of a cascade have to serve, `pooled_adapters` which services can share a base model. Cutting a stream is random
splitting: each request goes one way by chance, independently of those before (`ArrivalProcess.split`).

A slice is promised what its service was. Where every slice meets a percentile, so does the whole; the reverse need not
hold, so a cut never weakens a promise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from planner.core import InputError, Metric
from planner.engine import LoraAdapters
from planner.optimizer import ALWAYS, Period, Slice
from planner.traffic import (
    Cascade,
    CascadePoint,
    DemandProfile,
    DemandSlice,
    LengthSplit,
    OfflineWork,
    Service,
    TypicalPeriods,
)
from planner.workload import MAX_SCV, ArrivalProcess, LatencyTarget, RequestClass, Slo, TokenLengths, Workload

__all__ = [
    "AdapterPool",
    "Cascade",
    "CascadePoint",
    "DemandProfile",
    "DemandSlice",
    "LengthPart",
    "LengthSplit",
    "OfflineWork",
    "Service",
    "TypicalPeriods",
    "cascade_services",
    "periods_of",
    "pooled_adapters",
    "program_slices",
    "slices_of",
    "slo_left",
    "split_by_length",
]

LONG_RUN = 1e12
"""A window [mean gaps] beyond every measured one, where the index of dispersion is that of the long run."""
WAITING = (Metric.TTFT, Metric.E2E)
"""Metrics that count from the arrival on, so that time spent before is part of them."""


# --- lengths --------------------------------------------------------------------------------------------------------


class LengthPart(NamedTuple):
    """Requests between two cuts: what they are called, their lengths, and their share of all requests."""

    label: str
    lengths: TokenLengths
    share: float


def split_by_length(lengths: TokenLengths, split: LengthSplit) -> tuple[LengthPart, ...]:
    """A distribution of lengths cut into parts; cells and weights are kept as they are, so the parts mixed are the whole.

    Args:
        lengths: n weighted cells.
        split: cuts [tokens]; a request of exactly that many tokens is below the cut.

    Returns:
        Parts by input, then by output length, ascending; shares [1] sum to 1. Parts without requests are left out.

    Equation: share of part p = sum of the weights in p / sum of all weights (the distribution of total probability).

    Raises:
        InputError: a cut is below 1 token, or cuts do not rise.

    >>> both = TokenLengths.from_pairs([500, 4000], [100, 50], weights=[3, 1])
    >>> [(part.label, part.share) for part in split_by_length(both, LengthSplit(input_tokens=(2000,)))]
    [('up to 2000 in', 0.75), ('above 2000 in', 0.25)]
    """
    rows = np.searchsorted(_rising("input_tokens", split.input_tokens), lengths.inputs, side="left")
    columns = np.searchsorted(_rising("output_tokens", split.output_tokens), lengths.outputs, side="left")
    weights = np.asarray(lengths.weights, dtype=np.float64)
    total, parts = math.fsum(lengths.weights), []
    for row, column in product(range(len(split.input_tokens) + 1), range(len(split.output_tokens) + 1)):
        inside = (rows == row) & (columns == column)
        mass = math.fsum(weights[inside])
        if mass <= 0.0:
            continue
        label = _label(split, row, column)
        source = ", ".join(part for part in (lengths.source, label) if part)
        cells = (lengths.inputs[inside], lengths.outputs[inside], weights[inside])
        parts.append(LengthPart(label, TokenLengths.from_pairs(*cells, source=source), mass / total))
    return tuple(parts)


def _rising(name: str, cuts: tuple[int, ...]) -> tuple[int, ...]:
    if cuts and cuts[0] < 1:
        raise InputError(f"split.{name}", cuts[0], "a cut must be at 1 token or more", "remove it")
    for lower, upper in pairwise(cuts):
        if upper <= lower:
            raise InputError(f"split.{name}", upper, f"does not rise above {lower}", "sort the cuts, each once")
    return cuts


def _label(split: LengthSplit, row: int, column: int) -> str:
    """E.g. ``up to 2000 in, above 300 out``."""
    sides = ((split.input_tokens, row, "in"), (split.output_tokens, column, "out"))
    return ", ".join(f"{_range(cuts, place)} {unit}" for cuts, place, unit in sides if cuts)


def _range(cuts: tuple[int, ...], place: int) -> str:
    if place == 0:
        return f"up to {cuts[0]}"
    return f"above {cuts[-1]}" if place == len(cuts) else f"{cuts[place - 1] + 1} to {cuts[place]}"


# --- slices ---------------------------------------------------------------------------------------------------------


def slices_of(
    services: Sequence[Service],
    *,
    split: LengthSplit | None = None,
    profile: DemandProfile | TypicalPeriods | None = None,
    offline: Sequence[tuple[Service, OfflineWork]] = (),
    growth: float = 1.0,
    by_class: bool = False,
) -> tuple[DemandSlice, ...]:
    """Everything that has to be served, cut into what may go different ways.

    Classes with targets of their own are slices of their own, promised those; the other classes of a service stay
    together. Within, one slice for each cell of the split. The slice's arrivals are a random split of the service's; a
    recording that is cut goes on as the process it is summed up by.

    Args:
        services: with different names and open arrivals.
        split: cuts by length; None: none.
        profile: factors on the rates by period; None: one period at the stated rates.
        offline: the model that answers (its name and `LlmSpec`; its workload does not count) and the work. It is
            stated at its mean rate, with the Poisson arrivals of a default `ArrivalProcess`, which no target rests on.
        growth: factor on every rate, offline work included.
        by_class: every class is a slice of its own.

    Returns:
        Slices whose `demand_per_s` [1/s] sum over a service, in every period, to rate * factor * growth.

    Raises:
        InputError: nothing to serve, a name that occurs twice, a closed loop, a growth that is not > 0, or cuts that
            do not rise.
    """
    if not services and not offline:
        raise InputError("services", "[]", "there is nothing to serve", "give a service or offline work")
    if not (math.isfinite(growth) and growth > 0.0):
        raise InputError("growth", growth, "must be finite and > 0", "write 1.2 for a fifth more of every rate")
    _unique("services.name", [service.name for service in services])
    factors = (1.0,) if profile is None else profile.factors
    scaled = tuple(factor * growth for factor in factors)
    slices = [one for service in services for one in _online(service, split or LengthSplit(), scaled, by_class)]
    slices += [_offline(service, work, len(factors), growth) for service, work in offline]
    _unique("slices.name", [one.name for one in slices])
    return tuple(slices)


def _online(service: Service, split: LengthSplit, factors: tuple[float, ...], by_class: bool) -> Iterator[DemandSlice]:
    """The slices of one service."""
    workload = service.workload
    rate_per_s, parts = workload.rate_per_s, list(_parts(service, split, by_class))
    for label, classes, slo in parts:
        share = math.fsum(one.share for one in classes)
        own = workload if len(parts) == 1 else _share_of(workload, classes, share)
        peak_per_s = rate_per_s * share * max(factors)
        yield DemandSlice(
            name=": ".join(part for part in (service.name, label) if part),
            service=service,
            workload=own if peak_per_s == own.rate_per_s else own.at_rate(peak_per_s),
            slo=slo,
            demand_per_s=tuple(rate_per_s * share * factor for factor in factors),
        )


def _parts(service: Service, split: LengthSplit, by_class: bool) -> Iterator[tuple[str, tuple[RequestClass, ...], Slo]]:
    """Label, classes with their share of all requests of the service, and targets of each part that has requests."""
    groups = _groups(service, by_class)
    for kinds, slo in groups:
        cells: dict[str, list[RequestClass]] = {}
        for one in kinds:
            for part in split_by_length(one.lengths, split):
                update = {"lengths": part.lengths if part.label else one.lengths, "share": one.share * part.share}
                cells.setdefault(part.label, []).append(one.model_copy(update=update))
        group = " + ".join(one.name for one in kinds) if len(groups) > 1 else ""
        for row, column in product(range(len(split.input_tokens) + 1), range(len(split.output_tokens) + 1)):
            label = _label(split, row, column)
            if label in cells:
                yield ": ".join(part for part in (group, label) if part), tuple(cells[label]), slo


def _groups(service: Service, by_class: bool) -> list[tuple[tuple[RequestClass, ...], Slo]]:
    """Classes that stay together with their targets: those that stand alone, then all others."""
    classes = service.workload.classes
    others = tuple(one for one in classes if not by_class and one.slo is None)
    groups: list[tuple[tuple[RequestClass, ...], Slo]] = [
        ((one,), one.slo or service.slo) for one in classes if one not in others
    ]
    return [*groups, (others, service.slo)] if others else groups


def _share_of(workload: Workload, classes: tuple[RequestClass, ...], share: float) -> Workload:
    """The part of the workload with these classes, `share` of its requests."""
    inside = tuple(one.model_copy(update={"share": min(1.0, one.share / share)}) for one in classes)
    return Workload(arrivals=workload.arrivals.split(min(1.0, share)), classes=inside)


def _offline(service: Service, work: OfflineWork, periods: int, growth: float) -> DemandSlice:
    rate_per_s = work.requests_per_hour * growth / 3600.0
    arrivals = ArrivalProcess(rate_per_s=rate_per_s, source="mean of offline work")
    return DemandSlice(
        name=f"{service.name}: {work.name}",
        service=service,
        workload=Workload(arrivals=arrivals, classes=(RequestClass(name=work.name, lengths=work.lengths),)),
        slo=None,
        demand_per_s=(rate_per_s,) * periods,
        deferrable=True,
    )


def _unique(field: str, names: Sequence[str]) -> None:
    for place, name in enumerate(names):
        if name in names[:place]:
            raise InputError(field, name, "the name occurs twice", "rename one")


def program_slices(slices: Sequence[DemandSlice]) -> tuple[Slice, ...]:
    """The same rows in the plain numbers of the integer program."""
    return tuple(Slice(name=one.name, demand_per_s=one.demand_per_s, deferrable=one.deferrable) for one in slices)


def periods_of(profile: DemandProfile | TypicalPeriods | None) -> tuple[Period, ...]:
    """The periods of the integer program, one for each factor; equal neighbours stay apart, as starts are counted.

    Named by the time at which they begin, counted from the start of the profile; typical periods by what they are.

    >>> [period.name for period in periods_of(DemandProfile(factors=(1, 2), period_hours=12))]
    ['00:00', '12:00']
    """
    if profile is None:
        return (ALWAYS,)
    if isinstance(profile, TypicalPeriods):
        return tuple(Period(name=f"typical {place}", hours=hours) for place, hours in enumerate(profile.hours, start=1))
    names = _clock_names(len(profile.factors), profile.period_hours)
    return tuple(Period(name=name, hours=profile.period_hours) for name in names)


def _clock_names(count: int, hours: float) -> list[str]:
    """``07:30``, with the day before it where there are several; plain numbers where minutes do not tell."""
    minutes = hours * 60.0
    if abs(minutes - round(minutes)) > 1e-9 or minutes < 1.0:
        return [f"period {place}" for place in range(1, count + 1)]
    starts = [place * round(minutes) for place in range(count)]
    clocks = [f"{start // 60 % 24:02d}:{start % 60:02d}" for start in starts]
    if count * hours <= 24.0:
        return clocks
    return [f"day {start // 1440 + 1} {clock}" for start, clock in zip(starts, clocks, strict=True)]


# --- cascades -------------------------------------------------------------------------------------------------------


def cascade_services(main: Service, cascade: Cascade) -> tuple[tuple[CascadePoint, tuple[Service, ...]], ...]:
    """What the small and the large model have to serve, for every setting of a cascade that is good enough.

    Args:
        main: the large model's service; its traffic is all requests and its targets are what was promised.
        cascade: the small model, with the lengths of its answers and targets of its own (its rate does not count),
            and the settings that were measured.

    Returns:
        Settings with enough quality that no other beats (none escalates less at the same quality or more), by rising
        escalation, each with the services to plan; a model that gets nothing is left out.

    A router decides beforehand (RouteLLM, Ong et al., arXiv:2406.18665): of the rate L, small gets (1 - e) L and large
    e L, both within the targets they have; the router's own time is not counted. In sequence (FrugalGPT, Chen et al.,
    arXiv:2305.05176), small gets L and large e L, and a request is escalated when its answer was judged, so that the
    large model has only what `slo_left` says; answers that stay are shown after the verdict, which its condition on the
    small model's E2E covers. The verdict takes no time here. Escalation is taken as random splitting: escalated
    requests are as long and as bursty as main's, and what the small model's queue does to the times between them is
    not counted.

    Raises:
        InputError: one name for both, a closed loop, no setting good enough, or (in sequence) no E2E target of the
            small model under which something of main's targets is left.
    """
    if main.name == cascade.small.name:
        raise InputError("cascade.small.name", main.name, "is the name of the large service too", "rename one")
    return tuple((point, _cascaded(main, cascade, point)) for point in _efficient_points(cascade))


def _efficient_points(cascade: Cascade) -> list[CascadePoint]:
    """Points with enough quality, by rising escalation, each with more quality than all before."""
    best, kept = -math.inf, []
    for point in sorted(cascade.points, key=lambda point: (point.escalated, -point.quality)):
        if point.quality >= cascade.least_quality and point.quality > best:
            kept.append(point)
            best = point.quality
    if not kept:
        reached = max(point.quality for point in cascade.points)
        bound = f"the best setting reaches {reached:g}"
        raise InputError(
            "cascade.least_quality", cascade.least_quality, bound, "ask for less, or measure other settings"
        )
    return kept


def _cascaded(main: Service, cascade: Cascade, point: CascadePoint) -> tuple[Service, ...]:
    arrivals, small = main.workload.open_arrivals, cascade.small
    seen = 1.0 - point.escalated if cascade.routed else 1.0
    services = []
    if seen > 0.0:
        own = Workload(arrivals=arrivals.split(seen), classes=small.workload.classes)
        services.append(small.model_copy(update={"workload": own}))
    if point.escalated > 0.0:
        classes = main.workload.classes
        slo = main.slo
        if not cascade.routed:
            slo = slo_left(main.slo, small.slo)
            classes = tuple(_class_left(one, small.slo) for one in classes)
        own = Workload(arrivals=arrivals.split(point.escalated), classes=classes)
        services.append(main.model_copy(update={"workload": own, "slo": slo}))
    return tuple(services)


def _class_left(one: RequestClass, before: Slo) -> RequestClass:
    return one if one.slo is None else one.model_copy(update={"slo": slo_left(one.slo, before)})


def slo_left(slo: Slo, before: Slo) -> Slo:
    """Targets that are left to a service whose requests first had to be answered in full by another.

    Args:
        slo: what was promised for the whole: of targets on TTFT and E2E some time [s] and some percentile [1] is used.
        before: targets of the service that comes first, of which those on E2E count: threshold a, percentile q.

    Returns:
        For each TTFT or E2E target (threshold T, percentile p): threshold T - a, percentile p + 1 - q. TPOT and ITL are
        as they were. Of several E2E targets the one that leaves the most time is taken.

    Equation: with A the first service's E2E and B the second's TTFT or E2E, A + B > T only if A > a or B > T - a, so
    P(A + B > T) <= P(A > a) + P(B > T - a) <= (1 - q) + (1 - (p + 1 - q)) = 1 - p. Source: Boole's inequality (the
    union bound), which asks for no independence between A and B. It takes for granted that requests that go on are as
    slow in the first service as those that stay. Under a joint promise (`attainment`) p and q are those shares.

    Raises:
        InputError: no E2E target in `before` has a < T and q > p.

    >>> targets = (LatencyTarget(metric="ttft", percentile=0.95, threshold_s=3.0),)
    >>> first = (LatencyTarget(metric="e2e", percentile=0.99, threshold_s=2.0),)
    >>> slo_left(Slo(targets=targets), Slo(targets=first)).targets[0]
    LatencyTarget(metric=<Metric.TTFT: 'ttft'>, percentile=0.96, threshold_s=1.0)
    """
    waits = [target for target in slo.targets if target.metric in WAITING]
    if not waits:
        return slo
    if slo.attainment is None:
        return Slo(targets=tuple(_target_left(target, before) for target in slo.targets))
    first = min(waits, key=lambda target: target.threshold_s)
    spent_s, chance = _spent(first, slo.attainment, before)
    targets = tuple(
        target.model_copy(update={"threshold_s": target.threshold_s - spent_s}) if target in waits else target
        for target in slo.targets
    )
    return Slo(targets=targets, attainment=_raised(slo.attainment, chance))


def _target_left(target: LatencyTarget, before: Slo) -> LatencyTarget:
    if target.metric not in WAITING:
        return target
    spent_s, chance = _spent(target, target.percentile, before)
    update = {"threshold_s": target.threshold_s - spent_s, "percentile": _raised(target.percentile, chance)}
    return target.model_copy(update=update)


def _raised(percentile: float, chance: float) -> float:
    """The percentile p + 1 - q, to the twelfth digit, so that 0.95 and 0.99 make 0.96."""
    return round(percentile + 1.0 - chance, 12)


def _spent(target: LatencyTarget, percentile: float, before: Slo) -> tuple[float, float]:
    """Threshold [s] and probability of the E2E target of `before` that leaves the most, or InputError."""
    known = [
        (one.threshold_s, one.percentile if before.attainment is None else before.attainment)
        for one in before.targets
        if one.metric is Metric.E2E
    ]
    usable = [pair for pair in known if pair[0] < target.threshold_s and pair[1] > percentile]
    if usable:
        return min(usable)
    shown = ", ".join(f"p{100 * chance:g} E2E <= {spent_s:g} s" for spent_s, chance in known) or "no E2E target"
    bound = f"leaves nothing of {target.threshold_s:g} s at p{100 * percentile:g} for an escalated request"
    fix = f"give an E2E target below {target.threshold_s:g} s at more than p{100 * percentile:g}, or a router"
    raise InputError("cascade.small.slo", shown, bound, fix)


# --- adapters -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AdapterPool:
    """Services that share the weights of one base model.

    Attributes:
        service: all of them together.
        lora: their adapters (`ReplicaConfig.lora`); None for a service on its own, whose adapter can be merged.
        members: names of the services.
    """

    service: Service
    lora: LoraAdapters | None
    members: tuple[str, ...]


def pooled_adapters(services: Sequence[Service], *, rank: int = 16, slots: int = 8) -> tuple[AdapterPool, ...]:
    """Services with the same model, precision and targets, each a low-rank adapter, as one service per base model.

    The classes of the pool are those of its members, in proportion to their rates. Adapters are taken as equally
    popular: of all popularities that makes the expected number of distinct adapters in a step largest
    (sum_k 1 - (1 - p_k)^n is Schur-concave in p), hence their time and their loads, so a plan errs on the safe side.
    In memory a replica then holds `slots` adapters beside the weights (`planner.engine.replica.lora_bytes_per_gpu`).

    Args:
        services: of which some may share a model.
        rank: of the largest adapter.
        slots: adapters a replica keeps in GPU memory; no more than there are.

    Equation: rate L = sum L_k; SCV = sum (L_k / L) I_k with I_k the member's index of dispersion in the long run, the
    asymptotic method for superposed streams (Whitt, Operations Research 30(1), 1982, p. 125; exact for Poisson).

    Raises:
        InputError: a closed loop, or a name that occurs twice.
    """
    _unique("services.name", [service.name for service in services])
    groups: dict[tuple[object, ...], list[Service]] = {}
    for service in services:
        groups.setdefault((service.llm, service.precision, service.slo), []).append(service)
    return tuple(_adapter_pool(members, rank, slots) for members in groups.values())


def _adapter_pool(members: list[Service], rank: int, slots: int) -> AdapterPool:
    names, count = tuple(one.name for one in members), len(members)
    if count == 1:
        return AdapterPool(members[0], None, names)
    streams = [one.workload.open_arrivals for one in members]
    total = math.fsum(stream.rate_per_s for stream in streams)
    shares = [stream.rate_per_s / total for stream in streams]
    scv = math.fsum(share * stream.index_of_dispersion(LONG_RUN) for share, stream in zip(shares, streams, strict=True))
    arrivals = ArrivalProcess(rate_per_s=total, scv=min(scv, MAX_SCV), source="superposed: " + ", ".join(names))
    classes = tuple(
        one.model_copy(update={"name": _class_name(member, one), "share": one.share * share})
        for member, share in zip(members, shares, strict=True)
        for one in member.workload.classes
    )
    update = {"name": " + ".join(names), "workload": Workload(arrivals=arrivals, classes=classes)}
    lora = LoraAdapters(adapters=count, rank=rank, slots=min(slots, count))
    return AdapterPool(members[0].model_copy(update=update), lora, names)


def _class_name(member: Service, one: RequestClass) -> str:
    return member.name if len(member.workload.classes) == 1 else f"{member.name}: {one.name}"
