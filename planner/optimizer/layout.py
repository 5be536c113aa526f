"""The fleet problem as arrays, and which column of the program stands for what.

Columns, in this order: units on n[j, t], rates f[j, s, t] of every slice a unit can serve, blocks bought b[r, p, t],
starts z[j, t], groups in use y[g], kinds in use w[k]. What stands still over the horizon (steady units, committed
purchases, a problem of one period) has one column for all periods.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

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
class Layout:
    """Arrays over units j, slices s, periods t, pairs (unit, slice it can serve) p, purchases q, groups g.

    Attributes:
        problem: what the arrays were read from.
        share: of the horizon, by period; sums to 1. Shape (t,).
        demand_per_s: NaN where as much as can be served. Shape (s, t).
        deferrable: by slice.
        ceiling_per_s: most of a slice that is ever carried in a period; infinite without a demand. Shape (s, t).
        stage, channel: code by unit; channels are numbered.
        usd_per_hour, usd_per_start, at_least, at_most, steady: of each unit; `at_most` is infinite where None.
        pair_unit, pair_slice, pair_rate: of each pair.
        take_unit, take_resource, take_amount: one entry for each resource a unit takes (> 0).
        purchase_resource, purchase_usd_per_hour, purchase_block, purchase_usable, purchase_committed: of each purchase;
            `purchase_usd_per_hour` is per block and hour.
        groups: names of the groups, in use only with `max_groups`; `resource_group` is -1 for none. Shape (r,).
        units_column: shape (j, t). rate_column: shape (p, t). blocks_column: shape (q, t).
        start_units: units whose starts cost something; starts_column has shape (their number, t).
        kinds: (stage, channel, name) of each kind where there are several in a stage and channel; `unit_kind` is -1 for
            units of none.
        groups_column, kinds_column: shapes (g,) and (k,).
        columns: how many there are.
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
    at_least: IntArray
    at_most: FloatArray
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
    units_column: IntArray
    rate_column: IntArray
    blocks_column: IntArray
    start_units: IntArray
    starts_column: IntArray
    groups_column: IntArray
    kinds_column: IntArray
    columns: int

    @property
    def periods(self) -> int:
        """Number of periods."""
        return len(self.share)

    @property
    def served(self) -> BoolArray:
        """Pairs whose rate counts as served: of the stages WHOLE and FIRST."""
        return np.asarray(self.stage[self.pair_unit] != SECOND)

    @property
    def mean_demand_per_s(self) -> FloatArray:
        """Of each slice over the horizon; NaN where as much as can be served."""
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
        fewer = replace(
            self,
            problem=self.problem.model_copy(update={"units": units}),
            stage=self.stage[kept],
            channel=self.channel[kept],
            usd_per_hour=self.usd_per_hour[kept],
            usd_per_start=self.usd_per_start[kept],
            at_least=self.at_least[kept],
            at_most=self.at_most[kept],
            steady=self.steady[kept],
            unit_kind=self.unit_kind[kept],
            pair_unit=number[self.pair_unit[pairs]],
            pair_slice=self.pair_slice[pairs],
            pair_rate=self.pair_rate[pairs],
            take_unit=number[self.take_unit[takes]],
            take_resource=self.take_resource[takes],
            take_amount=self.take_amount[takes],
        )
        return fewer.numbered()

    def numbered(self) -> Layout:
        """The layout with its columns numbered."""
        periods, counter = self.periods, _ColumnCounter()
        starts = (self.usd_per_start > 0.0) & ~self.steady & (periods > 1)
        moves = np.zeros(max(len(self.pair_unit), len(starts)), dtype=bool)
        return replace(
            self,
            units_column=counter.columns(self.steady, periods),
            rate_column=counter.columns(moves[: len(self.pair_unit)], periods),
            blocks_column=counter.columns(self.purchase_committed, periods),
            start_units=np.flatnonzero(starts),
            starts_column=counter.columns(moves[: int(starts.sum())], periods),
            groups_column=counter.columns(np.ones(len(self.groups), dtype=bool), 1).ravel(),
            kinds_column=counter.columns(np.ones(len(self.kinds), dtype=bool), 1).ravel(),
            columns=counter.used,
        )

    def integer(self) -> BoolArray:
        """Which columns hold whole numbers: units, blocks, groups and kinds."""
        whole = np.zeros(self.columns, dtype=bool)
        for columns in (self.units_column, self.blocks_column, self.groups_column, self.kinds_column):
            whole[columns.ravel()] = True
        return whole

    def purchase_names(self) -> Iterator[tuple[str, str]]:
        """Resource and purchase, in the order of the purchases."""
        return ((r.name, p.name) for r in self.problem.resources for p in r.purchases)

    def column_names(self) -> list[str]:
        """One for each column, e.g. ``rate__<unit>__<slice>__<period>``; without the period where it stands still."""
        problem = self.problem
        units, slices = [label(unit.name) for unit in problem.units], [label(slice_.name) for slice_ in problem.slices]
        periods = [f"__{label(period.name)}" for period in problem.periods]
        names = [""] * self.columns

        def fill(columns: IntArray, stems: Sequence[str]) -> None:
            for row, stem in zip(columns, stems, strict=True):
                moves = len(set(row.tolist())) > 1
                for column, period in zip(row, periods, strict=True):
                    names[column] = stem + (period if moves else "")

        fill(self.units_column, [f"units__{name}" for name in units])
        pairs = zip(self.pair_unit, self.pair_slice, strict=True)
        fill(self.rate_column, [f"rate__{units[j]}__{slices[s]}" for j, s in pairs])
        fill(self.blocks_column, [f"blocks__{label(r)}__{label(p)}" for r, p in self.purchase_names()])
        fill(self.starts_column, [f"starts__{units[j]}" for j in self.start_units])
        for column, group in zip(self.groups_column, self.groups, strict=True):
            names[column] = f"uses__{label(group)}"
        for column, subject in zip(self.kinds_column, self.kind_names(), strict=True):
            names[column] = "__".join(("is", *map(label, subject)))
        return names

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
    units, periods = problem.units, len(problem.periods)
    share = np.array([period.hours for period in problem.periods]) / problem.hours
    demand = np.array([s.demand_per_s or (math.nan,) * periods for s in problem.slices])
    deferrable = np.array([slice_.deferrable for slice_ in problem.slices])
    channels = tuple(sorted({unit.channel for unit in units if unit.stage is not UnitStage.WHOLE}))
    channel_code = {name: code for code, name in enumerate(channels)}
    pair_unit, pair_slice, pair_rate = _pairs(problem)
    take_unit, take_resource, take_amount = _takes(problem)
    purchases = [(index, p) for index, r in enumerate(problem.resources) for p in r.purchases]
    groups = tuple(dict.fromkeys(r.group for r in problem.resources if r.group))
    groups = groups if problem.max_groups is not None else ()
    group_code = {name: code for code, name in enumerate(groups)}
    kind_keys = [(STAGES.index(u.stage), channel_code.get(u.channel, -1), u.kind) for u in units]
    kinds = _kinds(kind_keys)
    kind_code = {key: code for code, key in enumerate(kinds)}
    none = np.zeros((0, 0), dtype=np.int64)
    unnumbered = Layout(
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
        at_least=np.array([unit.at_least for unit in units], dtype=np.int64),
        at_most=np.array([math.inf if unit.at_most is None else unit.at_most for unit in units], dtype=float),
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
        units_column=none,
        rate_column=none,
        blocks_column=none,
        start_units=none.ravel(),
        starts_column=none,
        groups_column=none.ravel(),
        kinds_column=none.ravel(),
        columns=0,
    )
    return unnumbered.numbered()


class _ColumnCounter:
    """Numbers columns one after the other."""

    def __init__(self) -> None:
        self.used = 0

    def columns(self, still: BoolArray, periods: int) -> IntArray:
        """One column for what stands still, else one for each period. Shape (things, periods)."""
        width = np.where(still, 1, periods)
        first = self.used + np.cumsum(width) - width
        self.used += int(width.sum())
        return np.asarray(first[:, None] + np.where(still[:, None], 0, np.arange(periods)[None, :]), dtype=np.int64)


def _kinds(keys: Sequence[tuple[int, int, str]]) -> tuple[tuple[int, int, str], ...]:
    """Those of stages FIRST and SECOND with a name, where there is more than one in the stage and channel."""
    named = {key for key in keys if key[2] and key[0] != WHOLE}
    count = Counter(key[:2] for key in named)
    return tuple(sorted(key for key in named if count[key[:2]] > 1))


def _pairs(problem: FleetProblem) -> tuple[IntArray, IntArray, FloatArray]:
    """Unit, slice and rate [1/s] of every pair of a unit and a slice it serves."""
    code = {slice_.name: index for index, slice_ in enumerate(problem.slices)}
    pair_unit, pair_slice, rates = [], [], []
    for index, unit in enumerate(problem.units):
        for name, rate in unit.rates_per_s.items():
            if name not in code:
                fix = "add the slice to the problem, or leave its rate out"
                raise InputError(f"units[{unit.name}].rates_per_s", name, "must be the name of a slice", fix)
            pair_unit.append(index)
            pair_slice.append(code[name])
            rates.append(rate)
    return np.array(pair_unit, dtype=np.int64), np.array(pair_slice, dtype=np.int64), np.array(rates, dtype=float)


def _takes(problem: FleetProblem) -> tuple[IntArray, IntArray, FloatArray]:
    """Unit, resource and amount of every resource that a unit takes."""
    code = {resource.name: index for index, resource in enumerate(problem.resources)}
    take_unit, take_resource, amounts = [], [], []
    for index, unit in enumerate(problem.units):
        for name, amount in unit.takes.items():
            if name not in code:
                fix = "add the resource to the problem; without purchases and limit it is free"
                raise InputError(f"units[{unit.name}].takes", name, "must be the name of a resource", fix)
            if amount > 0.0:
                take_unit.append(index)
                take_resource.append(code[name])
                amounts.append(amount)
    return np.array(take_unit, dtype=np.int64), np.array(take_resource, dtype=np.int64), np.array(amounts, dtype=float)


def _ceiling_per_s(demand: FloatArray, share: FloatArray, deferrable: BoolArray) -> FloatArray:
    """Deferrable work may all be done in one period: ceiling[s, t] = sum_u share_u demand[s, u] / share_t."""
    at_once = (demand @ share)[:, None] / share[None, :]
    most = np.where(deferrable[:, None], at_once, demand)
    return np.asarray(np.where(np.isnan(most), math.inf, most))
