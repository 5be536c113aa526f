"""Rows of the program in plain numbers, with the names they go by."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.core import BoolArray, FloatArray, IntArray
from planner.optimizer.layout import Layout, label
from planner.optimizer.types import Sense

WHOLE_HORIZON = -1
"""Period of a row that holds over the horizon and not in each period."""


@dataclass(frozen=True)
class Terms:
    """``value x[column]`` is added to row `row`, for each entry."""

    row: IntArray = dataclasses.field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    column: IntArray = dataclasses.field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    value: FloatArray = dataclasses.field(default_factory=lambda: np.zeros(0))

    def select_rows(self, kept: BoolArray) -> Terms:
        """The terms of the kept rows, which are numbered anew."""
        number = np.cumsum(kept) - 1
        mine = kept[self.row]
        return Terms(number[self.row[mine]], self.column[mine], self.value[mine])


@dataclass(frozen=True)
class ConstraintRows:
    """``sum used x  sense  limit + sum supply x``, for each row of one constraint.

    Attributes:
        constraint: name of its function.
        sense: at most, or at least.
        subjects: what rows are about, e.g. resource and purchase.
        subject: index of what each row is about; rows of one subject differ in the period only.
        field: the input that sets the limit, in the words of `FleetProblem`, with {} for the parts of the subject.
        periods: index of each row's period, or `WHOLE_HORIZON`.
        limit: constant part of the limit.
        used: terms of what is used.
        supply: terms of what is added to the limit.
    """

    constraint: str
    sense: Sense
    subjects: Sequence[tuple[str, ...]]
    subject: IntArray
    field: str
    periods: IntArray
    limit: FloatArray
    used: Terms
    supply: Terms = dataclasses.field(default_factory=Terms)

    def __len__(self) -> int:
        return len(self.limit)

    def families(self) -> list[str]:
        """Name of each row without its period: constraint, then subject."""
        names = ["__".join((self.constraint, *map(label, subject))) for subject in self.subjects]
        return [names[index] for index in self.subject]

    def fields(self) -> list[str]:
        """The input that sets the limit of each row."""
        names = [self.field.format(*subject) for subject in self.subjects]
        return [names[index] for index in self.subject]

    def names(self, layout: Layout) -> list[str]:
        """Name of each row, with its period where there are several."""
        periods = [f"__{label(period.name)}" for period in layout.problem.periods]
        shown = [periods[t] if t >= 0 and len(periods) > 1 else "" for t in self.periods]
        return [family + period for family, period in zip(self.families(), shown, strict=True)]

    def select(self, kept: BoolArray) -> ConstraintRows:
        """The rows that are kept."""
        return replace(
            self,
            subject=self.subject[kept],
            periods=self.periods[kept],
            limit=self.limit[kept],
            used=self.used.select_rows(kept),
            supply=self.supply.select_rows(kept),
        )


def no_rows(constraint: str) -> ConstraintRows:
    """A constraint that nothing asks for.

    Args:
        constraint: name of its function.

    Returns:
        No rows.
    """
    none = np.zeros(0, dtype=np.int64)
    return ConstraintRows(constraint, Sense.AT_MOST, [], none, "", none, np.zeros(0), Terms())


def one_row(constraint: str, source: str, sense: Sense, limit: float, used: Terms) -> ConstraintRows:
    """A row over the whole horizon.

    Args:
        constraint: name of its function.
        source: the input that sets the limit.
        sense: at most, or at least.
        limit: constant limit.
        used: terms of what is used, all of row 0.

    Returns:
        The row, about nothing in particular.
    """
    first = np.zeros(1, dtype=np.int64)
    return ConstraintRows(constraint, sense, [()], first, source, np.array([WHOLE_HORIZON]), np.array([limit]), used)


def terms_by_period(layout: Layout, subject: IntArray, columns: IntArray, value: FloatArray | float = 1.0) -> Terms:
    """Terms of rows of `rows_by_period`.

    Args:
        layout: of the problem.
        subject: which each entry belongs to, shape (entries,).
        columns: of each entry in each period, shape (entries, t).
        value: of each entry, the same in all periods, shape (entries,); or of all.

    Returns:
        An entry for each period.
    """
    row = subject[:, None] * layout.periods + np.arange(layout.periods)
    every = np.broadcast_to(np.asarray(value, dtype=float).reshape(-1, 1), columns.shape)
    return Terms(row.ravel(), columns.ravel(), every.ravel())


def rows_by_period(
    layout: Layout,
    constraint: str,
    sense: Sense,
    subjects: Sequence[tuple[str, ...]],
    source: str,
    used: Terms,
    supply: Terms | None = None,
    limits: Sequence[float | None] | None = None,
) -> ConstraintRows:
    """A row for each subject and period, subject by subject.

    Args:
        layout: of the problem.
        constraint: name of its function.
        sense: at most, or at least.
        subjects: what the rows are about.
        source: the input that sets the limit, with {} for each part of a subject.
        used: terms of what is used, see `terms_by_period`.
        supply: terms of what is added to the limit.
        limits: of each subject; None: it has no rows. Without limits they are all 0.

    Returns:
        As many rows as subjects with a limit x periods.
    """
    values = [0.0] * len(subjects) if limits is None else [math.nan if each is None else each for each in limits]
    limit = np.repeat(np.array(values, dtype=float), layout.periods)
    rows = ConstraintRows(
        constraint=constraint,
        sense=sense,
        subjects=subjects,
        subject=np.repeat(np.arange(len(subjects)), layout.periods),
        field=source,
        periods=np.tile(np.arange(layout.periods), len(subjects)),
        limit=limit,
        used=used,
        supply=supply or Terms(),
    )
    return rows if limits is None else rows.select(~np.isnan(limit))
