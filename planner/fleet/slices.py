"""Services and profiles become slices and periods: the rows of the integer program.

Traffic is cut by service, request class and length. Each cut is a random split: every request falls on one side by
chance, independently of those before (`ArrivalProcess.split`). A slice has the targets of its service or class. Where
every slice meets a percentile, so does the whole; the reverse need not hold, so a cut never weakens a target.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from planner.core import BoolArray, InputError
from planner.optimizer import ALWAYS, Period, Slice
from planner.traffic import DemandProfile, DemandSlice, LengthSplit, OfflineWork, Service
from planner.workload import ArrivalProcess, RecordedArrivals, RequestClass, Slo, TokenLengths, Workload

# --- lengths --------------------------------------------------------------------------------------------------------


class LengthRange(NamedTuple):
    """Requests between two cuts: a label, their lengths, and their share of all requests."""

    label: str
    lengths: TokenLengths
    share: float


def split_by_length(lengths: TokenLengths, split: LengthSplit) -> tuple[LengthRange, ...]:
    """A distribution of lengths cut into ranges. Cells and weights are kept, so the ranges mixed are the whole.

    Args:
        lengths: n weighted cells.
        split: cuts [tokens]; a request of exactly that many tokens is below the cut.

    Returns:
        Ranges by input, then by output length, ascending; shares [1] sum to 1. Ranges without requests are left out.

    Equation: share of range r = sum of the weights in r / sum of all weights (the law of total probability).

    Raises:
        InputError: a cut is below 1 token, or cuts do not rise.

    >>> both = TokenLengths.from_pairs([500, 4000], [100, 50], weights=[3, 1])
    >>> [(part.label, part.share) for part in split_by_length(both, LengthSplit(input_tokens=(2000,)))]
    [('up to 2000 in', 0.75), ('above 2000 in', 0.25)]
    """
    rows = np.searchsorted(_require_rising("input_tokens", split.input_tokens), lengths.inputs, side="left")
    columns = np.searchsorted(_require_rising("output_tokens", split.output_tokens), lengths.outputs, side="left")
    weights = np.asarray(lengths.weights, dtype=np.float64)
    total, ranges = math.fsum(lengths.weights), []
    for row, column in product(range(len(split.input_tokens) + 1), range(len(split.output_tokens) + 1)):
        inside = (rows == row) & (columns == column)
        mass = math.fsum(weights[inside])
        if mass <= 0.0:
            continue
        label = _range_label(split, row, column)
        source = ", ".join(filter(None, (lengths.source, label)))
        cells = (lengths.inputs[inside], lengths.outputs[inside], weights[inside])
        images = lengths.images_of(np.flatnonzero(inside))
        ranges.append(LengthRange(label, TokenLengths.from_pairs(*cells, source=source, images=images), mass / total))
    return tuple(ranges)


def _require_rising(name: str, cuts: tuple[int, ...]) -> tuple[int, ...]:
    if cuts and cuts[0] < 1:
        raise InputError(f"split.{name}", cuts[0], "a cut must be at 1 token or more", "remove it")
    for lower, upper in pairwise(cuts):
        if upper <= lower:
            raise InputError(f"split.{name}", upper, f"does not rise above {lower}", "sort the cuts, each once")
    return cuts


def _range_label(split: LengthSplit, row: int, column: int) -> str:
    """E.g. ``up to 2000 in, above 300 out``."""
    sides = ((split.input_tokens, row, "in"), (split.output_tokens, column, "out"))
    return ", ".join(f"{_between(cuts, place)} {unit}" for cuts, place, unit in sides if cuts)


def _between(cuts: tuple[int, ...], place: int) -> str:
    if place == 0:
        return f"up to {cuts[0]}"
    return f"above {cuts[-1]}" if place == len(cuts) else f"{cuts[place - 1] + 1} to {cuts[place]}"


# --- slices ---------------------------------------------------------------------------------------------------------


def slices_of(
    services: Sequence[Service],
    *,
    split: LengthSplit | None = None,
    profile: DemandProfile | None = None,
    offline: Sequence[tuple[Service, OfflineWork]] = (),
    growth: float = 1.0,
    by_class: bool = False,
) -> tuple[DemandSlice, ...]:
    """Everything that has to be served, cut into slices that may go to different pools.

    Classes with targets of their own are slices of their own; the other classes of a service stay together. Within,
    one slice for each cell of the split. The slice's arrivals are a random split of the service's. A slice of a
    recording is the recording of its requests, by length and class as they were recorded; where a slice would have
    fewer than two of them, the service goes on as the process that sums its recording up.

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
        InputError: nothing to serve, a name that occurs twice, a closed loop, a growth that is not > 0, cuts that
            do not rise, or cuts through sessions.
    """
    if not services and not offline:
        raise InputError("services", "[]", "there is nothing to serve", "give a service or offline work")
    if not (math.isfinite(growth) and growth > 0.0):
        raise InputError("growth", growth, "must be finite and > 0", "write 1.2 for a fifth more of every rate")
    require_unique("services.name", [service.name for service in services])
    factors = (1.0,) if profile is None else profile.factors
    slices: list[DemandSlice] = []
    for service in services:
        slices += _service_slices(service, split or LengthSplit(), factors, growth, by_class)
    for service, work in offline:
        requests = RequestClass(name=work.name, lengths=work.lengths)
        rate_per_s = work.requests_per_hour * growth / 3600.0
        slices.append(_waiting_slice(f"{service.name}: {work.name}", service, (requests,), rate_per_s, len(factors)))
    require_unique("slices.name", [slice_.name for slice_ in slices])
    return tuple(slices)


def _service_slices(
    service: Service, split: LengthSplit, factors: tuple[float, ...], growth: float, by_class: bool
) -> Iterator[DemandSlice]:
    """The slices of one service; those without targets wait, at their mean rate in every period."""
    cells = list(_cells(service, split, by_class))
    _, parts = _cut(service.workload, cells, split)
    for cell, own in zip(cells, parts, strict=True):
        name, own_per_s = ": ".join(filter(None, (service.name, cell.label))), own.rate_per_s * growth
        if not cell.slo.targets:
            yield _waiting_slice(name, service, own.classes, own_per_s, len(factors))
            continue
        peak_per_s = own_per_s * max(factors)
        yield DemandSlice(
            name=name,
            service=service,
            workload=own if peak_per_s == own.rate_per_s else own.at_rate(peak_per_s),
            slo=cell.slo,
            demand_per_s=tuple(own_per_s * factor for factor in factors),
        )


class _Cell(NamedTuple):
    """Requests of a service that stay together: their classes, each with its share of all requests of the service."""

    label: str
    classes: tuple[RequestClass, ...]
    slo: Slo
    place: tuple[int, int]


def _cells(service: Service, split: LengthSplit, by_class: bool) -> Iterator[_Cell]:
    """Every group of classes, cut by length; cells without requests are left out."""
    groups = _class_groups(service, by_class)
    for classes, slo in groups:
        by_range: dict[str, list[RequestClass]] = {}
        for kind in classes:
            for part in split_by_length(kind.lengths, split):
                if part.label and kind.sessions is not None:
                    bound = "would cut sessions, whose requests need those before them"
                    raise InputError("split", part.label, bound, "leave out split")
                update = {"lengths": part.lengths if part.label else kind.lengths, "share": kind.share * part.share}
                by_range.setdefault(part.label, []).append(kind.model_copy(update=update))
        group = " + ".join(kind.name for kind in classes) if len(groups) > 1 else ""
        for row, column in product(range(len(split.input_tokens) + 1), range(len(split.output_tokens) + 1)):
            label = _range_label(split, row, column)
            if label in by_range:
                yield _Cell(": ".join(filter(None, (group, label))), tuple(by_range[label]), slo, (row, column))


def _class_groups(service: Service, by_class: bool) -> list[tuple[tuple[RequestClass, ...], Slo]]:
    """Classes that stay together with their targets: those that stand alone, then all others."""
    classes = service.workload.classes
    others = tuple(kind for kind in classes if not by_class and kind.slo is None)
    groups: list[tuple[tuple[RequestClass, ...], Slo]] = [
        ((kind,), kind.slo or service.slo) for kind in classes if kind not in others
    ]
    return [*groups, (others, service.slo)] if others else groups


def _cut(workload: Workload, cells: Sequence[_Cell], split: LengthSplit) -> tuple[Workload, list[Workload]]:
    """The workload of a service, and its part in each cell."""
    if len(cells) == 1:
        return workload, [workload]
    if isinstance(workload.arrivals, RecordedArrivals):
        masks = [_recorded_in(workload, cell, split) for cell in cells]
        counts = [int(mask.sum()) for mask in masks]
        if min(counts) >= 2 and sum(counts) == len(workload.arrivals.times_s):
            return workload, [_recorded_part(workload, cell, mask) for cell, mask in zip(cells, masks, strict=True)]
        workload = Workload(arrivals=workload.open_arrivals, classes=workload.classes)
    parts = []
    for cell in cells:
        share = math.fsum(kind.share for kind in cell.classes)
        inside = tuple(kind.model_copy(update={"share": min(1.0, kind.share / share)}) for kind in cell.classes)
        parts.append(Workload(arrivals=workload.arrivals.split(min(1.0, share)), classes=inside))
    return workload, parts


def _recorded_in(workload: Workload, cell: _Cell, split: LengthSplit) -> BoolArray:
    """Which requests of a recording are in a cell, by class and length, shape (n,)."""
    arrivals = workload.arrivals
    assert isinstance(arrivals, RecordedArrivals)
    rows, columns = (
        np.searchsorted(cuts, tokens, side="left")
        for cuts, tokens in zip((split.input_tokens, split.output_tokens), arrivals.tokens, strict=True)
    )
    inside = (rows == cell.place[0]) & (columns == cell.place[1])
    if not arrivals.class_index:
        return np.asarray(inside)
    names = [kind.name for kind in workload.classes]
    return np.asarray(inside & np.isin(arrivals.class_index, [names.index(kind.name) for kind in cell.classes]))


def _recorded_part(workload: Workload, cell: _Cell, mask: BoolArray) -> Workload:
    """The requests of a cell as a recording, with classes counted anew; shares are those recorded."""
    assert isinstance(workload.arrivals, RecordedArrivals)
    part = workload.arrivals.only(mask)
    names = [kind.name for kind in workload.classes]
    labels = np.searchsorted([names.index(kind.name) for kind in cell.classes], part.class_index or [0])
    counts = np.maximum(np.bincount(labels, minlength=len(cell.classes)), 1e-3)
    classes = tuple(
        kind.model_copy(update={"share": float(count / counts.sum())})
        for kind, count in zip(cell.classes, counts, strict=True)
    )
    kept = tuple(labels.tolist()) if len(classes) > 1 else ()
    return Workload(arrivals=part.model_copy(update={"class_index": kept}), classes=classes)


def _waiting_slice(
    name: str, service: Service, classes: tuple[RequestClass, ...], rate_per_s: float, periods: int
) -> DemandSlice:
    """Work that may wait, at its mean rate."""
    arrivals = ArrivalProcess(rate_per_s=rate_per_s, source="mean of work that may wait")
    return DemandSlice(
        name=name,
        service=service,
        workload=Workload(arrivals=arrivals, classes=classes),
        slo=None,
        demand_per_s=(rate_per_s,) * periods,
        deferrable=True,
    )


def require_unique(field: str, names: Sequence[str]) -> None:
    """Raise InputError where a name occurs twice."""
    for place, name in enumerate(names):
        if name in names[:place]:
            raise InputError(field, name, "the name occurs twice", "rename one")


def program_slices(slices: Sequence[DemandSlice]) -> tuple[Slice, ...]:
    """The slices as the integer program sees them."""
    return tuple(
        Slice(name=slice_.name, demand_per_s=slice_.demand_per_s, deferrable=slice_.deferrable) for slice_ in slices
    )


def periods_of(profile: DemandProfile | None) -> tuple[Period, ...]:
    """The periods of the integer program, one for each factor; equal neighbours stay apart, as starts are counted.

    Named by the time at which they begin, counted from the start of the profile.

    >>> [period.name for period in periods_of(DemandProfile(factors=(1, 2), period_hours=12))]
    ['00:00', '12:00']
    """
    if profile is None:
        return (ALWAYS,)
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
