"""The fleet problem as arrays, and which column of the program stands for what.

Columns, in this order: units on n[j, t], rates f[j, s, t] of every slice a unit can serve, blocks bought b[r, p, t],
starts z[j, t], groups in use y[g], kinds in use w[k]. What stands still over the horizon (steady units, committed
purchases, a problem of one period) has one column for all periods.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from planner.core import BoolArray, FloatArray, InputError, IntArray
from planner.optimizer.types import FleetProblem, Resource, Slice, UnitStage

STAGES = (UnitStage.WHOLE, UnitStage.FIRST, UnitStage.SECOND)
WHOLE, FIRST, SECOND = range(3)
"""Codes of the stages in `Layout.stage`."""
_MAX_RATE_OVER_CEILING = 1e8
"""A unit is rated at no more than this many times all there is to carry. A choice that keeps coefficients in the
solver's range: it shifts results by less than 1e-8 of that."""


def label(name: str) -> str:
    """A name as it may stand in a program: letters and digits, what is not ASCII by its code points, and an underscore
    for every run of other signs, or for nothing.

    Args:
        name: of a unit, slice, resource, purchase, period or group.

    Returns:
        Letters, digits and underscores.

    >>> label("h100-sxm | tp=2"), label("模 1")
    ('h100_sxm_tp_2', 'u6a21_1')
    """
    is_ascii = name.isascii()
    ascii_only = name if is_ascii else "".join(each if each.isascii() else f"u{ord(each):x}" for each in name)
    return re.sub(r"[^A-Za-z0-9]+", "_", ascii_only).strip("_") or "_"


@dataclass(frozen=True)
class Columns:
    """Which column stands for what, by thing and period (groups and kinds: by thing), and how many there are.

    `starts` are those of `Layout.start_units`.
    """

    units: IntArray
    rates: IntArray
    blocks: IntArray
    starts: IntArray
    groups: IntArray
    kinds: IntArray
    count: int


@dataclass(frozen=True)
class Layout:
    """Arrays over units j, slices s, periods t, pairs (unit, slice it can serve) p, purchases q, groups g.

    Attributes:
        problem: what the arrays were read from.
        share: of the horizon, by period; sums to 1. Shape (t,).
        demand_per_s: shape (s, t).
        deferrable: by slice.
        ceiling_per_s: most of a slice that is ever carried in a period; shape (s, t).
        stage, channel: code by unit; channels are numbered.
        usd_per_hour, usd_per_start, steady: of each unit.
        pair_unit, pair_slice, pair_rate: of each pair.
        takes: what one of each unit takes of every resource; shape (j, r).
        resource_most, resource_least: most in use of each resource, fewest bought; infinite or 0 without a limit.
        purchase_resource, purchase_usd_per_hour, purchase_block, purchase_usable, purchase_committed, purchase_most: of
            each purchase, money, size and what is usable of it by block; and most units of the resource, or infinite.
        groups: names of the groups of resources, only with `max_groups`, and of the marks that are charged.
        in_group: which units are of which; shape (j, g).
        charge: of each; 0 of groups of resources.
        kinds: (stage, channel, name) of each kind where there are several in a stage and channel; `unit_kind` is -1 for
            units of none.
    """

    problem: FleetProblem
    share: FloatArray
    demand_per_s: FloatArray
    deferrable: BoolArray
    ceiling_per_s: FloatArray
    stage: IntArray
    channel: IntArray
    channels: tuple[str, ...]
    usd_per_hour: FloatArray
    usd_per_start: FloatArray
    steady: BoolArray
    pair_unit: IntArray
    pair_slice: IntArray
    pair_rate: FloatArray
    takes: FloatArray
    resource_most: FloatArray
    resource_least: FloatArray
    purchase_resource: IntArray
    purchase_usd_per_hour: FloatArray
    purchase_block: FloatArray
    purchase_usable: FloatArray
    purchase_committed: BoolArray
    purchase_most: FloatArray
    groups: tuple[str, ...]
    in_group: BoolArray
    charge: FloatArray
    kinds: tuple[tuple[int, int, str], ...]
    unit_kind: IntArray

    @property
    def periods(self) -> int:
        """Number of periods."""
        return len(self.share)

    @cached_property
    def start_units(self) -> IntArray:
        """Units whose starts cost something."""
        return np.flatnonzero((self.usd_per_start > 0.0) & ~self.steady & (self.periods > 1))

    @cached_property
    def is_still(self) -> BoolArray:
        """Units that do not follow the demand freely: steady ones, and those whose starts cost something."""
        return np.asarray(self.steady | ((self.usd_per_start > 0.0) & (self.periods > 1)))

    @cached_property
    def column(self) -> Columns:
        """Everything numbered through; what stands still has the same column in all periods."""
        moves = [np.zeros(count, dtype=bool) for count in (len(self.pair_unit), len(self.start_units))]
        stands = [np.ones(len(each), dtype=bool) for each in (self.groups, self.kinds)]
        parts = [self.steady, moves[0], self.purchase_committed, moves[1], *stands]
        still = np.concatenate(parts)
        beyond = np.cumsum(np.where(still, 1, self.periods))
        numbered = beyond[:, None] - np.where(still[:, None], 1, np.arange(self.periods, 0, -1))
        ends = np.cumsum([len(part) for part in parts]).tolist()
        units, rates, blocks, starts, groups, kinds = (numbered[a:b] for a, b in pairwise([0, *ends]))
        return Columns(units, rates, blocks, starts, groups[:, 0], kinds[:, 0], int(beyond.max(initial=0)))

    @property
    def columns(self) -> int:
        """How many there are."""
        return self.column.count

    @property
    def served(self) -> BoolArray:
        """Pairs whose rate counts as served: of the stages WHOLE and FIRST."""
        return np.asarray(self.stage[self.pair_unit] != SECOND)

    @property
    def mean_demand_per_s(self) -> FloatArray:
        """Of each slice over the horizon."""
        return np.asarray(self.demand_per_s @ self.share)

    @property
    def pair_ceiling_per_s(self) -> FloatArray:
        """Most that a pair ever carries in a period, its slice's ceiling; shape (p, t)."""
        return np.asarray(self.ceiling_per_s[self.pair_slice])

    @cached_property
    def mean_cost(self) -> FloatArray:
        """Mean cost over the horizon of one of each column [USD/h].

        ``sum_t h_t/H (sum_j k n + sum_flexible c g b) + sum_committed c g b + sum w z / H``
        """
        cost = np.zeros(self.columns)
        np.add.at(cost, self.column.units, self.usd_per_hour[:, None] * self.share)
        np.add.at(cost, self.column.blocks, self.purchase_usd_per_hour[:, None] * self.share)
        cost[self.column.starts] = (self.usd_per_start[self.start_units] / self.problem.hours)[:, None]
        return cost

    @cached_property
    def mean_rate(self) -> FloatArray:
        """Mean rate served by each column: ``sum_t h_t/H sum_s sum_j f[j, s, t]`` over WHOLE and FIRST units."""
        rate = np.zeros(self.columns)
        rate[self.column.rates[self.served]] = self.share
        return rate

    @cached_property
    def charges(self) -> FloatArray:
        """Amount by which each column makes the objective worse."""
        charges = np.zeros(self.columns)
        charges[self.column.groups] = self.charge
        return charges

    @property
    def smallest_useful_rate_per_s(self) -> float:
        """Least mean rate of a fleet that serves anything: ``min h_t/H min(r[j, s], d[s, t])`` over d > 0.

        Of deferrable work, d is what a period has to do if all of it is done then. 0 where there is nothing to serve.
        """
        useful = np.minimum(self.pair_rate[:, None], self.pair_ceiling_per_s) * self.share
        least = float(useful[self.pair_ceiling_per_s > 0.0].min(initial=math.inf))
        return least if math.isfinite(least) else 0.0

    @property
    def are_periods_linked(self) -> bool:
        """True if purchases, units or work of several periods depend on one another at least cost."""
        are_linked = self.purchase_committed.any() or self.is_still.any() or self.deferrable.any()
        return self.periods > 1 and bool(are_linked)

    @cached_property
    def load(self) -> FloatArray:
        """Units that would carry all there is to carry by themselves: sum_s d_s / r_s. Shape (j, t)."""
        load = np.zeros((len(self.usd_per_hour), self.periods))
        np.add.at(load, self.pair_unit, self.pair_ceiling_per_s / self.pair_rate[:, None])
        return load

    @cached_property
    def capped_rates_per_s(self) -> FloatArray:
        """Rates of units, none out of all proportion to what there is to carry; shape (p, t)."""
        ceiling = self.pair_ceiling_per_s
        return np.minimum(self.pair_rate[:, None], np.where(ceiling > 0.0, ceiling * _MAX_RATE_OVER_CEILING, math.inf))

    @cached_property
    def tight_rates_per_s(self) -> FloatArray:
        """Rates of units with the same whole solutions and a tighter relaxation: r min(1, sum_s d_s / r_s); (p, t).

        If one unit has the share L = sum_s d_s / r_s < 1 of itself to give at most (d_s all there is to carry), then
        ``sum_s f_s / r_s <= n`` may be ``<= L n`` for whole n: no more than L is ever used, and none without a unit.
        For a single slice that is r = min(r, d), and it keeps r x (a count that is 1e-8 off zero) from serving
        anything.

        Source: coefficient tightening, M. W. P. Savelsbergh 1994, "Preprocessing and probing techniques for mixed
        integer programming problems", ORSA Journal on Computing 6(4).
        """
        useful = np.where(self.load > 0.0, np.minimum(self.load, 1.0), 1.0)
        return np.minimum(self.pair_rate[:, None] * useful[self.pair_unit], self.capped_rates_per_s)

    @cached_property
    def section(self) -> IntArray:
        """One number for each stage, channel, kind and set of groups of resources; shape (j,)."""
        alike = np.column_stack([self.stage, self.channel, self.unit_kind, self.in_group])
        return np.unique(alike, axis=0, return_inverse=True)[1].ravel()

    @cached_property
    def pools(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Units of one `section` whose rates are in proportion.

        Of each unit the first of its pool, its pair of each slice (or -1), and what it may carry in units of the first.
        Shapes (j,), (j, s), (j, t).
        """
        count, slices = len(self.usd_per_hour), len(self.deferrable)
        rate, pair_of = np.zeros((count, slices)), np.full((count, slices), -1)
        rate[self.pair_unit, self.pair_slice] = self.pair_rate
        pair_of[self.pair_unit, self.pair_slice] = np.arange(len(self.pair_unit))
        shape = (rate / np.maximum(rate.max(axis=1, keepdims=True), np.finfo(float).tiny)).round(9)
        alike = np.column_stack([self.section, shape])
        _, first, of_unit = np.unique(alike, axis=0, return_index=True, return_inverse=True)
        lead, size = first[of_unit.ravel()], np.ones((count, self.periods))
        tight, unit = self.tight_rates_per_s, self.pair_unit
        size[unit] = tight / tight[pair_of[lead[unit], self.pair_slice]]
        return lead, pair_of, size

    def unbettered(self) -> BoolArray:
        """Units of which no other of the same `section` carries as much of everything, takes and costs no more.

        What is carried is `tight_rates_per_s`: with whole numbers of units nothing is lost without the others. (The
        dominated columns of presolve: E. D. Andersen and K. D. Andersen 1995, Mathematical Programming 71.)
        """
        count = len(self.usd_per_hour)
        rate = np.zeros((count, len(self.deferrable), self.periods))
        rate[self.pair_unit, self.pair_slice] = self.tight_rates_per_s
        burden = np.column_stack(
            [self.takes, self.usd_per_hour, self.usd_per_start, self.steady, -rate.reshape(count, -1)]
        )
        return unbettered(self.section, burden)

    def cheapest(self, usd: FloatArray) -> FloatArray:
        """The least of what purchases cost, for each resource; 0 where there is none."""
        least = np.full(len(self.resource_most), math.inf)
        np.minimum.at(least, self.purchase_resource, usd)
        return np.where(np.isfinite(least), least, 0.0)

    def select(self, pairs: BoolArray) -> Layout:
        """The layout of the problem in which only these pairs may carry anything, of the units that have any."""
        units, pair_unit = np.unique(self.pair_unit[pairs], return_inverse=True)
        return replace(
            self,
            problem=self.problem.model_copy(update={"units": tuple(self.problem.units[j] for j in units)}),
            stage=self.stage[units],
            channel=self.channel[units],
            usd_per_hour=self.usd_per_hour[units],
            usd_per_start=self.usd_per_start[units],
            steady=self.steady[units],
            takes=self.takes[units],
            in_group=self.in_group[units],
            unit_kind=self.unit_kind[units],
            pair_unit=pair_unit,
            pair_slice=self.pair_slice[pairs],
            pair_rate=self.pair_rate[pairs],
        )

    def uncharged(self) -> Layout:
        """The layout of the problem without charges: of the groups, those of resources are left."""
        kept = self.charge == 0.0
        groups = tuple(name for name, is_kept in zip(self.groups, kept, strict=True) if is_kept)
        return replace(self, groups=groups, in_group=self.in_group[:, kept], charge=self.charge[kept])

    def columns_of(self, pairs: BoolArray) -> BoolArray:
        """Which columns are those of ``self.select(pairs)``, which has them in the same order."""
        is_kept = np.isin(np.arange(len(self.stage)), self.pair_unit[pairs])
        kept = np.ones(self.columns, dtype=bool)
        kept[self.column.units[~is_kept]] = False
        kept[self.column.rates[~pairs]] = False
        kept[self.column.starts[~is_kept[self.start_units]]] = False
        return kept

    def fill_in(self, values: FloatArray) -> None:
        """Set, in values by column, what follows from the units that are on: starts, groups and kinds in use."""
        units = values[self.column.units]
        on, used = units[self.start_units], units.max(axis=1, initial=0.0) > 0.0
        values[self.column.starts] = np.maximum(on - np.roll(on, 1, axis=1), 0.0)
        values[self.column.groups[self.in_group[used].any(axis=0)]] = 1.0
        values[self.column.kinds[np.isin(np.arange(len(self.kinds)), self.unit_kind[used])]] = 1.0

    def purchase_names(self) -> Iterator[tuple[str, str]]:
        """Resource and purchase, in the order of the purchases."""
        return ((r.name, p.name) for r in self.problem.resources for p in r.purchases)

    def kind_names(self) -> list[tuple[str, str, str]]:
        """UnitStage, channel and name of each kind."""
        return [(STAGES[stage].value, self.channels[channel], name) for stage, channel, name in self.kinds]


def build_layout(problem: FleetProblem) -> Layout:
    """The arrays and columns of a problem [1/s, USD/h, units of each resource].

    Args:
        problem: in records.

    Raises:
        InputError: a unit serves a slice or takes a resource that the problem does not have.
    """
    units, resources = problem.units, problem.resources
    share = np.array([period.hours for period in problem.periods]) / problem.hours
    demand = np.array([slice_.demand_per_s for slice_ in problem.slices], dtype=float)
    deferrable = np.array([slice_.deferrable for slice_ in problem.slices])
    at_once = (demand @ share)[:, None] / share  # deferrable work may all be done in one period
    channels = tuple(sorted({unit.channel for unit in units if unit.stage is not UnitStage.WHOLE}))
    code_of_stage = {stage: code for code, stage in enumerate(STAGES)}
    code_of_channel = {channel: code for code, channel in enumerate(channels)}
    stage = [code_of_stage[unit.stage] for unit in units]
    channel = [code_of_channel[unit.channel] if code else -1 for unit, code in zip(units, stage, strict=True)]
    places = list(zip(stage, channel, (unit.kind for unit in units), strict=True))
    named = {place for place in places if place[1] >= 0 and place[2]}
    several = Counter(place[:2] for place in named)
    kinds = tuple(sorted(place for place in named if several[place[:2]] > 1))
    code_of_kind = {place: code for code, place in enumerate(kinds)}
    groups = tuple(dict.fromkeys(r.group for r in resources if r.group)) if problem.max_groups is not None else ()
    group_of_resource = np.array([[r.group == group for group in groups] for r in resources], dtype=bool)
    marks = tuple(dict.fromkeys(mark for unit in units for mark in unit.marks)) if problem.charge else ()
    has_mark = np.array([[mark in unit.marks for mark in marks] for unit in units], dtype=bool)
    purchases = [(index, p) for index, r in enumerate(resources) for p in r.purchases]
    pair_unit, pair_slice, pair_rate = _entries(
        problem, "rates_per_s", "slice", "add the slice to the problem, or leave its rate out"
    )
    take_unit, take_resource, take_amount = _entries(
        problem, "takes", "resource", "add the resource to the problem; without purchases and limit it is free"
    )
    takes = np.zeros((len(units), len(resources)))
    takes[take_unit, take_resource] = take_amount
    return Layout(
        problem=problem,
        share=share,
        demand_per_s=demand,
        deferrable=deferrable,
        ceiling_per_s=np.where(deferrable[:, None], at_once, demand),
        stage=np.array(stage, dtype=np.int64),
        channel=np.array(channel, dtype=np.int64),
        channels=channels,
        usd_per_hour=np.array([unit.usd_per_hour for unit in units], dtype=float),
        usd_per_start=np.array([unit.usd_per_start for unit in units], dtype=float),
        steady=np.array([unit.steady for unit in units], dtype=bool),
        pair_unit=pair_unit,
        pair_slice=pair_slice,
        pair_rate=pair_rate,
        takes=takes,
        resource_most=np.array([math.inf if r.at_most is None else r.at_most for r in resources], dtype=float),
        resource_least=np.array([r.at_least for r in resources], dtype=float),
        purchase_resource=np.array([index for index, _ in purchases], dtype=np.int64),
        purchase_usd_per_hour=np.array([p.usd_per_hour * p.block for _, p in purchases], dtype=float),
        purchase_block=np.array([p.block for _, p in purchases], dtype=float),
        purchase_usable=np.array([p.block * p.usable_share for _, p in purchases], dtype=float),
        purchase_committed=np.array([p.committed for _, p in purchases], dtype=bool),
        purchase_most=np.array([math.inf if p.at_most is None else p.at_most for _, p in purchases], dtype=float),
        groups=(*groups, *marks),
        in_group=np.column_stack(
            [
                (takes > 0.0) @ group_of_resource.reshape(len(resources), len(groups)),
                has_mark.reshape(len(units), len(marks)),
            ]
        ),
        charge=np.repeat([0.0, problem.charge], [len(groups), len(marks)]),
        kinds=kinds,
        unit_kind=np.array([code_of_kind.get(place, -1) for place in places], dtype=np.int64),
    )


def _entries(problem: FleetProblem, field: str, what: str, fix: str) -> tuple[IntArray, IntArray, FloatArray]:
    """Unit, index of the slice or resource, and value of every entry of a mapping that units have."""
    things: Sequence[Slice | Resource] = problem.slices if what == "slice" else problem.resources
    code = {thing.name: index for index, thing in enumerate(things)}
    of_units: list[Mapping[str, float]] = [getattr(unit, field) for unit in problem.units]
    unknown = {name for values in of_units for name in values} - code.keys()
    for unit, values in zip(problem.units if unknown else (), of_units, strict=False):
        for name in values.keys() & unknown:
            raise InputError(f"units[{unit.name}].{field}", name, f"must be the name of a {what}", fix)
    return (
        np.repeat(np.arange(len(of_units)), [len(values) for values in of_units]),
        np.array([code[name] for values in of_units for name in values], dtype=np.int64),
        np.array([value for values in of_units for value in values.values()], dtype=float),
    )


def unbettered(group: IntArray, burden: FloatArray) -> BoolArray:
    """Those as good as which in every column no other of their group is, of equal ones the first [bool, shape (n,)].

    Args:
        group: of each, shape (n,).
        burden: of each in every respect, shape (n, columns).
    """
    kept, left = np.zeros(len(group), dtype=bool), np.lexsort((burden.sum(axis=1), group))
    while len(left):  # the least sum of each group is bettered by none, and takes out those that it betters
        is_first = np.append(True, group[left[1:]] != group[left[:-1]])
        kept[left[is_first]] = True
        best = left[is_first][np.cumsum(is_first) - 1]
        left = left[(burden[best] > burden[left]).any(axis=1)]
    return kept
