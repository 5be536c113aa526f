"""A fleet problem as arrays, for the solver of large problems.

Axes: units J, slices S, periods T, limits L (what units in use may not exceed together), groups G.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.optimizer.types import FleetProblem, Purchase, Stage

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

NEVER = 1e200
"""Seconds a unit needs for a request that it cannot serve: far beyond any rate, and its products stay finite."""
BEYOND = 1e100
"""Prices above this mean that there is no way."""
KIN = 0.1
"""Largest spread of the ratios of two units' rates at which one does for the other in a shortlist: a choice."""
PROPORTIONAL = 1e-9
"""Rates of two units count as proportional when their ratios agree to this share: a hundredth of a solver's."""


@dataclass(frozen=True)
class Buying:
    """One way of getting one resource.

    Attributes:
        resource: index of the resource.
        hold: index of the limit that what is bought must cover.
        purchase: the record; with one period nothing is committed, because that makes no difference.
        low, high: bounds of what is bought, in whole blocks [units of the resource].
    """

    resource: int
    hold: int
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
        seconds: of a unit for one request per second of a slice; `NEVER`: not served [J, S].
        sections: units by part of the service: ("", whole units), then two by channel [indices].
        unit_usd: cost while on [USD/h; J].
        start_usd: mean cost over the horizon of one start [USD/h; J]; zero where there is one period.
        takes: of each limit [J, L].
        caps: most of each limit in any period; infinite: only what is bought [L].
        buyings: ways to get what limits with purchases need.
        pins: by resource index, fewest bought in every period.
        low, high: units on [J].
        group, scale: units of a group have proportional rates; `scale` is relative to its first [J].
        kin, size: units of a kin take the same resources and have rates proportional to within `KIN`, so that they do
            for one another; `size` is roughly what one carries relative to its kin's first [J]. Only shortlists and
            rounding lean on it.
        group_size: size of each group's first unit [G].
        group_section: [G].
        group_seconds: of the first unit of each group [G, S].
    """

    unit_names: tuple[str, ...]
    slice_names: tuple[str, ...]
    weights: Floats
    demand: Floats
    deferrable: NDArray[np.bool_]
    seconds: Floats
    sections: tuple[Section, ...]
    unit_usd: Floats
    start_usd: Floats
    takes: Floats
    caps: Floats
    buyings: tuple[Buying, ...]
    pins: dict[int, float]
    low: Floats
    high: Floats
    group: Integers
    scale: Floats
    kin: Integers
    size: Floats
    group_size: Floats
    group_section: Integers
    group_seconds: Floats
    resource_names: tuple[str, ...] = field(default=())

    @property
    def periods(self) -> int:
        """How many."""
        return len(self.weights)

    @property
    def amounts(self) -> Floats:
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

    stage: Stage
    channel: str
    units: Integers


def tables_of(problem: FleetProblem) -> Tables:
    """Write the problem as arrays."""
    hours = np.array([period.hours for period in problem.periods])
    seconds = _seconds(problem)
    sections = _sections(problem)
    takes, caps, holds = _limits(problem)
    section_of = np.zeros(len(problem.units), dtype=np.int64)
    for index, section in enumerate(sections):
        section_of[section.units] = index
    group, scale, firsts = _groups(seconds, section_of)
    kin, size = _kin(seconds, section_of, takes)
    starts = np.array([unit.usd_per_start for unit in problem.units]) / hours.sum()
    return Tables(
        unit_names=tuple(unit.name for unit in problem.units),
        slice_names=tuple(one.name for one in problem.slices),
        weights=hours / hours.sum(),
        demand=np.array([one.demand_per_s for one in problem.slices], dtype=float),
        deferrable=np.array([one.deferrable and len(hours) > 1 for one in problem.slices]),
        seconds=seconds,
        sections=sections,
        unit_usd=np.array([unit.usd_per_hour for unit in problem.units], dtype=float),
        start_usd=starts if len(hours) > 1 else np.zeros_like(starts),
        takes=takes,
        caps=caps,
        buyings=_buyings(problem, holds),
        pins={r: one.at_least for r, one in enumerate(problem.resources) if one.purchases and one.at_least > 0.0},
        low=np.array([unit.at_least for unit in problem.units], dtype=float),
        high=_high(problem, seconds),
        group=group,
        scale=scale,
        kin=kin,
        size=size,
        group_size=size[firsts],
        group_section=section_of[firsts],
        group_seconds=seconds[firsts],
        resource_names=tuple(resource.name for resource in problem.resources),
    )


def _seconds(problem: FleetProblem) -> Floats:
    column = {one.name: index for index, one in enumerate(problem.slices)}
    seconds = np.full((len(problem.units), len(column)), NEVER)
    for row, unit in zip(seconds, problem.units, strict=True):
        for name, rate_per_s in unit.rates_per_s.items():
            row[column[name]] = 1.0 / rate_per_s
    return seconds


def _high(problem: FleetProblem, seconds: Floats) -> Floats:
    """Most units on; infinite where that many could serve all demand alone, so that the limit says nothing."""
    weights = np.array([period.hours for period in problem.periods])
    most = np.zeros(len(problem.slices))
    for index, one in enumerate(problem.slices):
        demand = np.array(one.demand_per_s)
        most[index] = (demand * weights).sum() / weights.min() if one.deferrable else demand.max()
    needed = np.where(seconds < BEYOND, seconds * most, 0.0).sum(axis=1)
    high = np.array([np.inf if unit.at_most is None else unit.at_most for unit in problem.units], dtype=float)
    return np.where(high >= np.ceil(needed), np.inf, high)


def _sections(problem: FleetProblem) -> tuple[Section, ...]:
    members: dict[tuple[Stage, str], list[int]] = {}
    for index, unit in enumerate(problem.units):
        channel = "" if unit.stage is Stage.WHOLE else unit.channel
        members.setdefault((unit.stage, channel), []).append(index)
    return tuple(Section(stage, channel, np.array(units)) for (stage, channel), units in sorted(members.items()))


def _limits(problem: FleetProblem) -> tuple[Floats, Floats, dict[int, int]]:
    """What units take of each limit, the limits, and which limit each resource with purchases must cover."""
    row = {resource.name: index for index, resource in enumerate(problem.resources)}
    used = np.zeros((len(problem.units), len(row)))
    for index, unit in enumerate(problem.units):
        for name, amount in unit.takes.items():
            used[index, row[name]] = amount
    columns: list[Floats] = []
    caps: list[float] = []
    holds: dict[int, int] = {}
    for index, resource in enumerate(problem.resources):
        if resource.purchases:
            holds[index] = len(columns)
            columns.append(used[:, index])
            caps.append(np.inf)
        if resource.at_most is not None:
            columns.append(used[:, index])
            caps.append(resource.at_most)
    if problem.max_units is not None:
        columns.append(np.ones(len(problem.units)))
        caps.append(float(problem.max_units))
    takes = np.column_stack(columns) if columns else np.zeros((len(problem.units), 0))
    return takes, np.array(caps, dtype=float), holds


def _buyings(problem: FleetProblem, holds: dict[int, int]) -> tuple[Buying, ...]:
    found = []
    for index, hold in holds.items():
        for one in problem.resources[index].purchases:
            low = float(np.ceil(one.at_least / one.block - 1e-9) * one.block)
            high = np.inf if one.at_most is None else float(np.floor(one.at_most / one.block + 1e-9) * one.block)
            once = one if len(problem.periods) > 1 else one.model_copy(update={"committed": False})
            found.append(Buying(index, hold, once, low, high))
    return tuple(found)


def _groups(seconds: Floats, section: Integers) -> tuple[Integers, Floats, Integers]:
    """Units of one section whose rates are proportional: group, scale relative to its first unit, first units."""
    least = seconds.min(axis=1)
    digits = np.round(np.minimum(seconds / least[:, None], BEYOND), 9)
    group = np.zeros(len(seconds), dtype=np.int64)
    firsts: dict[tuple[int, bytes], int] = {}
    order: list[int] = []
    for unit in range(len(seconds)):
        key = (int(section[unit]), digits[unit].tobytes())
        if key not in firsts or not _is_proportional(seconds[unit], seconds[order[firsts[key]]]):
            firsts[key] = len(order)
            order.append(unit)
        group[unit] = firsts[key]
    first = np.array(order, dtype=np.int64)
    return group, least[first][group] / least, first


def _kin(seconds: Floats, section: Integers, takes: Floats) -> tuple[Integers, Floats]:
    """Units that do for one another: the kin of each, and its size relative to the kin's first."""
    kin = np.zeros(len(seconds), dtype=np.int64)
    size = np.ones(len(seconds))
    logs = np.log(np.minimum(seconds, BEYOND))
    alike: dict[tuple[int, bytes, bytes], list[int]] = {}
    numbers: dict[int, int] = {}
    for unit in range(len(seconds)):
        key = (int(section[unit]), (takes[unit] > 0.0).tobytes(), (seconds[unit] < BEYOND).tobytes())
        firsts = alike.setdefault(key, [])
        served = seconds[unit] < BEYOND
        apart = logs[firsts][:, served] - logs[unit, served]
        spread = apart.max(axis=1) - apart.min(axis=1)
        if not len(spread) or spread.min() > np.log1p(KIN):
            firsts.append(unit)
            numbers[unit] = len(numbers)
            kin[unit] = numbers[unit]
        else:
            nearest = int(spread.argmin())
            kin[unit] = numbers[firsts[nearest]]
            size[unit] = float(np.exp(apart[nearest].mean()))
    return kin, size


def _is_proportional(one: Floats, other: Floats) -> bool:
    served = other < BEYOND
    ratios = one[served] / other[served]
    return bool((ratios.max() - ratios.min()) <= PROPORTIONAL * ratios.min())
