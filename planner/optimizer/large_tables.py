"""A fleet problem as arrays, for the solver of large problems.

Axes: units J, slices S, periods T, limits L (what units in use may not exceed together), groups G.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from planner.core import BoolArray, FloatArray, IntArray
from planner.optimizer.types import FleetProblem, Purchase, UnitStage

SECONDS_UNSERVED = 1e200
"""Seconds per request of a unit that cannot serve it: far beyond any rate, while its products stay finite."""
UNSERVED_ABOVE = 1e100
"""Seconds or prices above this belong to requests that cannot be served."""
SIMILAR_RATES = 0.1
"""Largest spread of the ratios of two units' rates at which a shortlist takes one for the other. A choice of speed."""
PROPORTIONAL_RATES = 1e-9
"""Rates of two units are proportional when their ratios agree to this share, a hundredth of a solver's tolerance."""


@dataclass(frozen=True)
class ResourcePurchase:
    """One purchase of one resource.

    Attributes:
        resource: index of the resource.
        limit_index: index of the limit that what is bought must cover.
        purchase: the record; with one period nothing is committed, because that makes no difference.
        low, high: bounds of what is bought, in whole blocks [units of the resource].
    """

    resource: int
    limit_index: int
    purchase: Purchase
    low: float
    high: float


@dataclass(frozen=True)
class Tables:
    """Everything the solver of large problems needs to know.

    Attributes:
        weights: share of the horizon [T].
        demand: what each slice asks for [1/s; S, T].
        deferrable: whether only the total over the horizon counts [S]; nothing is with one period.
        seconds: of a unit for one request per second of a slice; `SECONDS_UNSERVED`: not served [J, S].
        sections: units by part of the service: ("", whole units), then two by channel [indices].
        unit_usd: cost while on [USD/h; J].
        start_usd: mean cost over the horizon of one start [USD/h; J]; zero where there is one period.
        takes: of each limit [J, L].
        caps: most of each limit in any period; infinite: only what is bought [L].
        purchases: of every resource that has some.
        pins: by resource index, fewest bought in every period.
        low, high: units on [J].
        group, scale: units of a group have proportional rates; `scale` is relative to its first [J].
        cluster, size: units of a cluster take the same resources and have rates proportional to within `SIMILAR_RATES`,
            so that one may stand for another; `size` is roughly what one carries relative to the first of its cluster
            [J]. Used by shortlists and rounding only.
        group_size: size of each group's first unit [G].
        group_section: [G].
        group_seconds: of the first unit of each group [G, S].
    """

    unit_names: tuple[str, ...]
    slice_names: tuple[str, ...]
    weights: FloatArray
    demand: FloatArray
    deferrable: BoolArray
    seconds: FloatArray
    sections: tuple[Section, ...]
    unit_usd: FloatArray
    start_usd: FloatArray
    takes: FloatArray
    caps: FloatArray
    purchases: tuple[ResourcePurchase, ...]
    pins: dict[int, float]
    low: FloatArray
    high: FloatArray
    group: IntArray
    scale: FloatArray
    cluster: IntArray
    size: FloatArray
    group_size: FloatArray
    group_section: IntArray
    group_seconds: FloatArray
    resource_names: tuple[str, ...] = field(default=())

    @property
    def periods(self) -> int:
        """Number of periods."""
        return len(self.weights)

    @property
    def amounts(self) -> FloatArray:
        """Rate in a period that is all of a slice's demand; of a deferrable slice, all of the horizon's [1/s; S, T]."""
        total = (self.demand * self.weights).sum(axis=1, keepdims=True)
        return np.where(self.deferrable[:, None], total / self.weights, self.demand)

    @property
    def has_starts(self) -> bool:
        """Whether switching units on costs anything."""
        return bool((self.start_usd > 0.0).any())


@dataclass(frozen=True)
class Section:
    """Units that do the same part of the service within one channel."""

    stage: UnitStage
    channel: str
    units: IntArray


def build_tables(problem: FleetProblem) -> Tables:
    """The problem as arrays.

    Args:
        problem: one that `planner.optimizer.large.is_supported` accepts.

    Returns:
        Its arrays.
    """
    hours = np.array([period.hours for period in problem.periods])
    seconds = _seconds_per_request(problem)
    sections = _sections(problem)
    takes, caps, limit_of_resource = _limits(problem)
    section_of = np.zeros(len(problem.units), dtype=np.int64)
    for index, section in enumerate(sections):
        section_of[section.units] = index
    group, scale, firsts = _groups(seconds, section_of)
    cluster, size = _clusters(seconds, section_of, takes)
    starts = np.array([unit.usd_per_start for unit in problem.units]) / hours.sum()
    return Tables(
        unit_names=tuple(unit.name for unit in problem.units),
        slice_names=tuple(slice_.name for slice_ in problem.slices),
        weights=hours / hours.sum(),
        demand=np.array([slice_.demand_per_s for slice_ in problem.slices], dtype=float),
        deferrable=np.array([slice_.deferrable and len(hours) > 1 for slice_ in problem.slices]),
        seconds=seconds,
        sections=sections,
        unit_usd=np.array([unit.usd_per_hour for unit in problem.units], dtype=float),
        start_usd=starts if len(hours) > 1 else np.zeros_like(starts),
        takes=takes,
        caps=caps,
        purchases=_purchases(problem, limit_of_resource),
        pins={
            index: resource.at_least
            for index, resource in enumerate(problem.resources)
            if resource.purchases and resource.at_least > 0.0
        },
        low=np.array([unit.at_least for unit in problem.units], dtype=float),
        high=_most_units(problem, seconds),
        group=group,
        scale=scale,
        cluster=cluster,
        size=size,
        group_size=size[firsts],
        group_section=section_of[firsts],
        group_seconds=seconds[firsts],
        resource_names=tuple(resource.name for resource in problem.resources),
    )


def _seconds_per_request(problem: FleetProblem) -> FloatArray:
    """Seconds of a unit that a request per second takes, `SECONDS_UNSERVED` where it is not served [J, S]."""
    column = {slice_.name: index for index, slice_ in enumerate(problem.slices)}
    seconds = np.full((len(problem.units), len(column)), SECONDS_UNSERVED)
    for row, unit in zip(seconds, problem.units, strict=True):
        for name, rate_per_s in unit.rates_per_s.items():
            row[column[name]] = 1.0 / rate_per_s
    return seconds


def _most_units(problem: FleetProblem, seconds: FloatArray) -> FloatArray:
    """Most units on; infinite where that many could serve all demand alone, so that the limit says nothing."""
    weights = np.array([period.hours for period in problem.periods])
    most = np.zeros(len(problem.slices))
    for index, slice_ in enumerate(problem.slices):
        demand = np.array(slice_.demand_per_s)
        most[index] = (demand * weights).sum() / weights.min() if slice_.deferrable else demand.max()
    needed = np.where(seconds < UNSERVED_ABOVE, seconds * most, 0.0).sum(axis=1)
    high = np.array([np.inf if unit.at_most is None else unit.at_most for unit in problem.units], dtype=float)
    return np.where(high >= np.ceil(needed), np.inf, high)


def _sections(problem: FleetProblem) -> tuple[Section, ...]:
    """Units by stage and channel, in the order of these."""
    members: dict[tuple[UnitStage, str], list[int]] = {}
    for index, unit in enumerate(problem.units):
        channel = "" if unit.stage is UnitStage.WHOLE else unit.channel
        members.setdefault((unit.stage, channel), []).append(index)
    return tuple(Section(stage, channel, np.array(units)) for (stage, channel), units in sorted(members.items()))


def _limits(problem: FleetProblem) -> tuple[FloatArray, FloatArray, dict[int, int]]:
    """What units take of each limit, the limits, and which limit each resource with purchases must cover."""
    row = {resource.name: index for index, resource in enumerate(problem.resources)}
    used = np.zeros((len(problem.units), len(row)))
    for index, unit in enumerate(problem.units):
        for name, amount in unit.takes.items():
            used[index, row[name]] = amount
    columns: list[FloatArray] = []
    caps: list[float] = []
    limit_of_resource: dict[int, int] = {}
    for index, resource in enumerate(problem.resources):
        if resource.purchases:
            limit_of_resource[index] = len(columns)
            columns.append(used[:, index])
            caps.append(np.inf)
        if resource.at_most is not None:
            columns.append(used[:, index])
            caps.append(resource.at_most)
    if problem.max_units is not None:
        columns.append(np.ones(len(problem.units)))
        caps.append(float(problem.max_units))
    takes = np.column_stack(columns) if columns else np.zeros((len(problem.units), 0))
    return takes, np.array(caps, dtype=float), limit_of_resource


def _purchases(problem: FleetProblem, limit_of_resource: dict[int, int]) -> tuple[ResourcePurchase, ...]:
    purchases = []
    for index, limit_index in limit_of_resource.items():
        for purchase in problem.resources[index].purchases:
            block, at_most = purchase.block, purchase.at_most
            low = float(np.ceil(purchase.at_least / block - 1e-9) * block)
            high = np.inf if at_most is None else float(np.floor(at_most / block + 1e-9) * block)
            once = purchase if len(problem.periods) > 1 else purchase.model_copy(update={"committed": False})
            purchases.append(ResourcePurchase(index, limit_index, once, low, high))
    return tuple(purchases)


def _groups(seconds: FloatArray, section: IntArray) -> tuple[IntArray, FloatArray, IntArray]:
    """Units of one section whose rates are proportional: group, scale relative to its first unit, first units."""
    least = seconds.min(axis=1)
    digits = np.round(np.minimum(seconds / least[:, None], UNSERVED_ABOVE), 9)
    group = np.zeros(len(seconds), dtype=np.int64)
    firsts: dict[tuple[int, bytes], int] = {}
    order: list[int] = []
    for unit in range(len(seconds)):
        key = (int(section[unit]), digits[unit].tobytes())
        if key not in firsts or not _are_proportional(seconds[unit], seconds[order[firsts[key]]]):
            firsts[key] = len(order)
            order.append(unit)
        group[unit] = firsts[key]
    first = np.array(order, dtype=np.int64)
    return group, least[first][group] / least, first


def _clusters(seconds: FloatArray, section: IntArray, takes: FloatArray) -> tuple[IntArray, FloatArray]:
    """Units that may stand for one another: the cluster of each, and its size relative to the first of that."""
    cluster = np.zeros(len(seconds), dtype=np.int64)
    size = np.ones(len(seconds))
    logs = np.log(np.minimum(seconds, UNSERVED_ABOVE))
    firsts_of_kind: dict[tuple[int, bytes, bytes], list[int]] = {}
    numbers: dict[int, int] = {}
    for unit in range(len(seconds)):
        key = (int(section[unit]), (takes[unit] > 0.0).tobytes(), (seconds[unit] < UNSERVED_ABOVE).tobytes())
        firsts = firsts_of_kind.setdefault(key, [])
        served = seconds[unit] < UNSERVED_ABOVE
        apart = logs[firsts][:, served] - logs[unit, served]
        spread = apart.max(axis=1) - apart.min(axis=1)
        if not len(spread) or spread.min() > np.log1p(SIMILAR_RATES):
            firsts.append(unit)
            numbers[unit] = len(numbers)
            cluster[unit] = numbers[unit]
        else:
            nearest = int(spread.argmin())
            cluster[unit] = numbers[firsts[nearest]]
            size[unit] = float(np.exp(apart[nearest].mean()))
    return cluster, size


def _are_proportional(seconds: FloatArray, other: FloatArray) -> bool:
    served = other < UNSERVED_ABOVE
    ratios = seconds[served] / other[served]
    return bool((ratios.max() - ratios.min()) <= PROPORTIONAL_RATES * ratios.min())
