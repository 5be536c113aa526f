"""The fleet problem as arrays, and which column of the program stands for what.

Columns, in this order: units on n[j, t], rates f[j, s, t] of every slice a unit can serve, blocks bought b[r, p, t],
starts z[j, t], groups in use y[g], kinds in use w[k]. What stands still over the horizon (steady units, committed
purchases, a problem of one period) has one column for all periods.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from planner.core import BoolArray, FloatArray, InputError, IntArray
from planner.optimizer.types import FleetProblem, UnitStage

STAGES = (UnitStage.WHOLE, UnitStage.FIRST, UnitStage.SECOND)
WHOLE, FIRST, SECOND = range(3)
"""Codes of the stages in `Layout.stage`."""


def label(name: str) -> str:
    """A name as it may stand in a program: every run of other characters than letters and digits is one underscore.

    Args:
        name: of a unit, slice, resource, purchase, period or group.

    Returns:
        The label; an underscore where nothing is left.

    >>> label("h100-sxm | tp=2")
    'h100_sxm_tp_2'
    """
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_") or "_"


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
        take_unit, take_resource, take_amount: one entry for each resource a unit takes (> 0).
        purchase_resource, purchase_usd_per_hour, purchase_block, purchase_usable, purchase_committed: of each purchase;
            `purchase_usd_per_hour` is per block and hour.
        groups: names of the groups, in use only with `max_groups`; `resource_group` is -1 for none. Shape (r,).
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
    take_unit: IntArray
    take_resource: IntArray
    take_amount: FloatArray
    purchase_resource: IntArray
    purchase_usd_per_hour: FloatArray
    purchase_block: FloatArray
    purchase_usable: FloatArray
    purchase_committed: BoolArray
    groups: tuple[str, ...]
    resource_group: IntArray
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
    def column(self) -> Columns:
        """Everything numbered through; what stands still has the same column in all periods."""
        moves = [np.zeros(count, dtype=bool) for count in (len(self.pair_unit), len(self.start_units))]
        stands = [np.ones(len(each), dtype=bool) for each in (self.groups, self.kinds)]
        numbered, used = [], 0
        for still in (self.steady, moves[0], self.purchase_committed, moves[1], *stands):
            width = np.where(still, 1, self.periods)
            first = used + np.cumsum(width) - width
            used += int(width.sum())
            numbered.append(first[:, None] + np.where(still[:, None], 0, np.arange(self.periods)))
        units, rates, blocks, starts, groups, kinds = numbered
        return Columns(units, rates, blocks, starts, groups[:, 0], kinds[:, 0], used)

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

    def select(self, kept: BoolArray, pairs: BoolArray | None = None) -> Layout:
        """The layout of the problem with fewer units, or fewer slices for some of them.

        Args:
            kept: which units stay; shape (j,).
            pairs: which pairs may carry anything, all of kept units; default: all of these.
        """
        number = np.cumsum(kept) - 1
        chosen = np.flatnonzero(kept)
        units = tuple(self.problem.units[j] for j in chosen)
        pairs = kept[self.pair_unit] if pairs is None else pairs
        takes = kept[self.take_unit]
        return replace(
            self,
            problem=self.problem.model_copy(update={"units": units}),
            stage=self.stage[kept],
            channel=self.channel[kept],
            usd_per_hour=self.usd_per_hour[kept],
            usd_per_start=self.usd_per_start[kept],
            steady=self.steady[kept],
            unit_kind=self.unit_kind[kept],
            pair_unit=number[self.pair_unit[pairs]],
            pair_slice=self.pair_slice[pairs],
            pair_rate=self.pair_rate[pairs],
            take_unit=number[self.take_unit[takes]],
            take_resource=self.take_resource[takes],
            take_amount=self.take_amount[takes],
        )

    def columns_of(self, fewer: Layout, kept: BoolArray, pairs: BoolArray) -> IntArray:
        """For each column of ``fewer = self.select(kept, pairs)``, which one it is here."""
        mine = np.zeros(fewer.columns, dtype=np.int64)
        mine[fewer.column.units] = self.column.units[kept]
        mine[fewer.column.rates] = self.column.rates[pairs]
        mine[fewer.column.blocks] = self.column.blocks
        mine[fewer.column.starts] = self.column.starts[kept[self.start_units]]
        mine[fewer.column.groups] = self.column.groups
        mine[fewer.column.kinds] = self.column.kinds
        return mine

    def integer(self) -> BoolArray:
        """Which columns hold whole numbers: units, blocks, groups and kinds."""
        whole = np.zeros(self.columns, dtype=bool)
        for columns in (self.column.units, self.column.blocks, self.column.groups, self.column.kinds):
            whole[columns.ravel()] = True
        return whole

    def purchase_names(self) -> Iterator[tuple[str, str]]:
        """Resource and purchase, in the order of the purchases."""
        return ((r.name, p.name) for r in self.problem.resources for p in r.purchases)

    def kind_names(self) -> list[tuple[str, str, str]]:
        """UnitStage, channel and name of each kind."""
        return [(STAGES[stage].value, self.channels[channel], name) for stage, channel, name in self.kinds]


def build_layout(problem: FleetProblem) -> Layout:
    """The arrays and columns of a problem.

    Args:
        problem: in records.

    Returns:
        The same in arrays, with its columns numbered.

    Raises:
        InputError: a unit serves a slice or takes a resource that the problem does not have.
    """
    units = problem.units
    share = np.array([period.hours for period in problem.periods]) / problem.hours
    demand = np.array([slice_.demand_per_s for slice_ in problem.slices], dtype=float)
    deferrable = np.array([slice_.deferrable for slice_ in problem.slices])
    channels = tuple(sorted({unit.channel for unit in units if unit.stage is not UnitStage.WHOLE}))
    channel_code = {name: code for code, name in enumerate(channels)}
    fix = "add the slice to the problem, or leave its rate out"
    pair_unit, pair_slice, pair_rate = _entries(
        problem, "rates_per_s", (s.name for s in problem.slices), "must be the name of a slice", fix
    )
    fix = "add the resource to the problem; without purchases and limit it is free"
    take_unit, take_resource, take_amount = _entries(
        problem, "takes", (r.name for r in problem.resources), "must be the name of a resource", fix
    )
    purchases = [(index, p) for index, r in enumerate(problem.resources) for p in r.purchases]
    groups = tuple(dict.fromkeys(r.group for r in problem.resources if r.group))
    groups = groups if problem.max_groups is not None else ()
    group_code = {name: code for code, name in enumerate(groups)}
    kind_keys = [(STAGES.index(u.stage), channel_code.get(u.channel, -1), u.kind) for u in units]
    kinds = _kinds(kind_keys)
    kind_code = {key: code for code, key in enumerate(kinds)}
    return Layout(
        problem=problem,
        share=share,
        demand_per_s=demand,
        deferrable=deferrable,
        ceiling_per_s=_ceiling_per_s(demand, share, deferrable),
        stage=np.array([STAGES.index(unit.stage) for unit in units], dtype=np.int64),
        channel=np.array(
            [channel_code.get(u.channel, -1) if u.stage is not UnitStage.WHOLE else -1 for u in units], int
        ),
        channels=channels,
        usd_per_hour=np.array([unit.usd_per_hour for unit in units], dtype=float),
        usd_per_start=np.array([unit.usd_per_start for unit in units], dtype=float),
        steady=np.array([unit.steady for unit in units], dtype=bool),
        pair_unit=pair_unit,
        pair_slice=pair_slice,
        pair_rate=pair_rate,
        take_unit=take_unit,
        take_resource=take_resource,
        take_amount=take_amount,
        purchase_resource=np.array([index for index, _ in purchases], dtype=np.int64),
        purchase_usd_per_hour=np.array([p.usd_per_hour * p.block for _, p in purchases], dtype=float),
        purchase_block=np.array([p.block for _, p in purchases], dtype=float),
        purchase_usable=np.array([p.usable_share for _, p in purchases], dtype=float),
        purchase_committed=np.array([p.committed for _, p in purchases], dtype=bool),
        groups=groups,
        resource_group=np.array([group_code.get(r.group, -1) for r in problem.resources], dtype=np.int64),
        kinds=kinds,
        unit_kind=np.array([kind_code.get(key, -1) for key in kind_keys], dtype=np.int64),
    )


def _kinds(keys: Sequence[tuple[int, int, str]]) -> tuple[tuple[int, int, str], ...]:
    """Those of stages FIRST and SECOND with a name, where there is more than one in the stage and channel."""
    named = {key for key in keys if key[2] and key[0] != WHOLE}
    count = Counter(key[:2] for key in named)
    return tuple(sorted(key for key in named if count[key[:2]] > 1))


def _entries(
    problem: FleetProblem, field: str, names: Iterable[str], bound: str, fix: str
) -> tuple[IntArray, IntArray, FloatArray]:
    """Unit, index of the name and value of every entry above 0 of a mapping that units have."""
    code = {name: index for index, name in enumerate(names)}
    found = []
    for index, unit in enumerate(problem.units):
        for name, value in getattr(unit, field).items():
            if name not in code:
                raise InputError(f"units[{unit.name}].{field}", name, bound, fix)
            if value > 0.0:
                found.append((index, code[name], value))
    unit_, other, value_ = zip(*found, strict=True) if found else ((), (), ())
    return np.array(unit_, dtype=np.int64), np.array(other, dtype=np.int64), np.array(value_, dtype=float)


def _ceiling_per_s(demand: FloatArray, share: FloatArray, deferrable: BoolArray) -> FloatArray:
    """Deferrable work may all be done in one period: ceiling[s, t] = sum_u share_u demand[s, u] / share_t."""
    at_once = (demand @ share)[:, None] / share[None, :]
    return np.asarray(np.where(deferrable[:, None], at_once, demand))
