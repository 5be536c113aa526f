"""Rows of the program in plain numbers, with the names they go by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.core import BoolArray, FloatArray, IntArray
from planner.optimizer.layout import Layout, label
from planner.optimizer.types import FEASIBILITY_TOLERANCE, Sense

WHOLE_HORIZON = -1
"""Period of a row that holds over the horizon and not in each period."""

Entries = tuple[IntArray, IntArray, FloatArray | float]
"""Subject of each entry, shape (entries,); its column in each period, (entries, t); its value, or that of all."""


@dataclass(frozen=True)
class ConstraintRows:
    """``sum value x[column]  sense  limit``, for each row of one constraint.

    Attributes:
        constraint: name of its function.
        sense: at most, or at least.
        subjects: what rows are about, e.g. resource and purchase.
        subject: index of what each row is about; rows of one subject differ in the period only.
        field: the input that sets the limit, in the words of `FleetProblem`, with {} for the parts of the subject.
        periods: index of each row's period, or `WHOLE_HORIZON`.
        limit: of each row; what adds to a limit is an entry below 0.
        row, column, value: of each entry.
    """

    constraint: str
    sense: Sense
    subjects: Sequence[tuple[str, ...]]
    subject: IntArray
    field: str
    periods: IntArray
    limit: FloatArray
    row: IntArray
    column: IntArray
    value: FloatArray

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
        number, mine = np.cumsum(kept) - 1, kept[self.row]
        return replace(
            self,
            subject=self.subject[kept],
            periods=self.periods[kept],
            limit=self.limit[kept],
            row=number[self.row[mine]],
            column=self.column[mine],
            value=self.value[mine],
        )

    def used(self, values: FloatArray) -> FloatArray:
        """Left side of each row, by the values of the columns."""
        return self._summed(self.value * values[self.column])

    def slack(self, values: FloatArray) -> FloatArray:
        """Slack of each limit at the values of the columns; below 0 where it is missed."""
        left = self.limit - self.used(values)
        return left if self.sense is Sense.AT_MOST else -left

    def missed(self, values: FloatArray) -> IntArray:
        """Indices of rows that are missed by more than `FEASIBILITY_TOLERANCE` of the limit or of what is added up.

        What is handed over in one slice is measured against the most of any.
        """
        size = np.maximum(np.abs(self.limit), self._summed(np.abs(self.value * values[self.column])))
        if self.constraint == "hand_over":
            size = np.full_like(size, size.max(initial=0.0))
        return np.flatnonzero(self.slack(values) < -FEASIBILITY_TOLERANCE * size)

    def _summed(self, entries: FloatArray) -> FloatArray:
        return np.bincount(self.row, weights=entries, minlength=len(self)).astype(np.float64)


def rows_by_period(
    layout: Layout,
    constraint: str,
    subjects: Sequence[tuple[str, ...]],
    source: str,
    *entries: Entries,
    limits: FloatArray | None = None,
    sense: Sense = Sense.AT_MOST,
) -> ConstraintRows:
    """A row for each subject that has a limit and each period, subject by subject [units of the limit].

    Args:
        layout: of the problem.
        constraint: name of its function.
        subjects: what the rows are about.
        source: the input that sets the limit, with {} for each part of a subject.
        entries: of the rows; with columns of shape (entries, 1) of rows over the horizon instead.
        limits: of each subject; infinite: it has no rows. Without limits they are all 0.
        sense: at most, or at least.
    """
    limits = np.zeros(len(subjects)) if limits is None else limits
    limited = np.isfinite(limits)
    if not limited.any():
        none, of_none = np.zeros(0, dtype=np.int64), np.zeros(0)
        return ConstraintRows(constraint, sense, (), none, source, none, of_none, none, none, of_none)
    width = entries[0][1].shape[1]
    in_period = np.arange(width)
    subject = np.concatenate([subject for subject, _, _ in entries])
    column = np.concatenate([columns for _, columns, _ in entries])
    value = np.concatenate([value + np.zeros(len(columns)) for _, columns, value in entries])
    mine, number = limited[subject], np.cumsum(limited) - 1
    return ConstraintRows(
        constraint=constraint,
        sense=sense,
        subjects=subjects,
        subject=np.repeat(np.flatnonzero(limited), width),
        field=source,
        periods=np.resize(in_period if width == layout.periods else WHOLE_HORIZON, width * int(number[-1] + 1)),
        limit=np.repeat(limits[limited], width),
        row=(number[subject[mine], None] * width + in_period).ravel(),
        column=column[mine].ravel(),
        value=np.repeat(value[mine], width),
    )
