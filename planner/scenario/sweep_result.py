"""Result of a sweep: one row per point, as records, as a pandas frame, as CSV, and as JSON lines that it resumes from.

A line is ``{"key": ..., "point": {...}}``. The key names everything the plan depends on, so that a file may hold points
of several sweeps, and a point is only taken from it where planning again would give the same. Several sweeps may write
to one file at once: a point is added in one piece at its end.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from planner.core import InputError, Table, money, number_of, percent, write_text
from planner.report import csv_text, frame

if TYPE_CHECKING:
    import pandas as pd

FAILED = "failed"
"""Status of a point at which planning broke off with something that is no answer."""
UNPLANNED = "not planned"
"""Status of a point that was never planned: the sweep was interrupted, or its worker died."""
INTERRUPTED = "interrupted"
"""Why a sweep ends that a person stopped."""
HIGHER_IS_BETTER = ("rate_per_s", "goodput_per_s")
"""Figures of which `Sweep.best` takes the largest."""
MAX_TABLE_POINTS = 60
"""Points that are shown as a table; a file has all. A choice."""

Values = Mapping[str, Any]
"""Settings of a point, by dotted path of the scenario."""


@dataclass(frozen=True)
class SweepPoint:
    """One point of a sweep and what its plan comes to; figures are None where there is no fleet.

    Attributes:
        number: its place in the sweep, from 0.
        values: by dotted path of the scenario, what the point sets.
        status: how planning ended (`planner.optimizer.SolveStatus`), or ``refused``, ``failed``, ``not planned``.
        feasible: True if there is a fleet.
        reason: why there is none; empty where there is.
        usd_per_hour: cost of the fleet.
        usd_per_month: the same for a mean month.
        usd_per_million_input_tokens: as in `planner.fleet.types.CostBreakdown`.
        usd_per_million_output_tokens: the same for output.
        usd_per_million_tokens: cost over all tokens, of either kind: what fleets of any mode can be compared by.
        rate_per_s: served by the fleet [1/s].
        goodput_per_s: of it, requests that meet every target [1/s].
        gpus: by SKU.
        fleet: its pools in words.
        tightest: the target with the least left.
        tightest_ratio: its predicted latency over its threshold.
        targets_met: True if every target holds, in simulation too if the sweep simulates.
        binding: limits that bind.
        alternatives: USD/h of the best fleet restricted to one SKU or one mode, None where there is none; empty
            unless asked for.
        seconds: wall time of planning.
    """

    number: int
    values: Values
    status: str
    feasible: bool = False
    reason: str = ""
    usd_per_hour: float | None = None
    usd_per_month: float | None = None
    usd_per_million_input_tokens: float | None = None
    usd_per_million_output_tokens: float | None = None
    usd_per_million_tokens: float | None = None
    rate_per_s: float | None = None
    goodput_per_s: float | None = None
    gpus: Mapping[str, int] = field(default_factory=dict)
    fleet: str = ""
    tightest: str = ""
    tightest_ratio: float | None = None
    targets_met: bool | None = None
    binding: tuple[str, ...] = ()
    alternatives: Mapping[str, float | None] = field(default_factory=dict)
    seconds: float = 0.0

    def record(self) -> dict[str, Any]:
        """The point as one flat row: its settings under their paths, one column per SKU and per alternative.

        A value that is a list or a mapping is JSON text.
        """
        row = {"point": self.number} | {path: _cell(value) for path, value in self.values.items()}
        for name in _FIGURES:
            value = getattr(self, name)
            if name == "gpus":
                row |= {f"gpus_{sku}": count for sku, count in value.items()}
            elif name == "alternatives":
                row |= {f"alternative_{what}_usd_per_hour": usd for what, usd in value.items()}
            else:
                row[name] = "; ".join(value) if name == "binding" else value
        return row


_FIGURES = tuple(field.name for field in dataclasses.fields(SweepPoint) if field.name not in ("number", "values"))


def _cell(value: object) -> object:
    return json.dumps(value) if isinstance(value, list | dict) else value


@dataclass(frozen=True, eq=False)
class Sweep:
    """All points of a sweep, in the order asked for.

    Attributes:
        name: of the scenario.
        paths: the fields that are varied.
        points: one per point, planned or not.
        stopped: why some were not planned, or empty.
        elapsed_s: wall time of the whole.
    """

    name: str
    paths: tuple[str, ...]
    points: tuple[SweepPoint, ...]
    stopped: str = ""

    @property
    def interrupted(self) -> bool:
        """True if a person stopped it (Ctrl-C)."""
        return self.stopped == INTERRUPTED

    elapsed_s: float = 0.0

    @property
    def feasible(self) -> tuple[SweepPoint, ...]:
        """The points that have a fleet."""
        return tuple(point for point in self.points if point.feasible)

    def best(self, by: str = "usd_per_hour") -> SweepPoint | None:
        """The feasible point with the least of a figure (of a rate: with the most); None where none is feasible.

        Raises InputError for what is no figure of a point.
        """
        figures = [
            name for name in _FIGURES if name.startswith("usd_") or name in (*HIGHER_IS_BETTER, "tightest_ratio")
        ]
        if by not in figures:
            raise InputError("by", by, "is no figure of a point", f"use one of: {', '.join(figures)}")
        sign = -1.0 if by in HIGHER_IS_BETTER else 1.0
        known = [point for point in self.feasible if getattr(point, by) is not None]
        return min(known, key=lambda point: sign * getattr(point, by), default=None)

    def records(self) -> list[dict[str, Any]]:
        """One flat row per point, all with the same columns; None where a point has no such figure."""
        rows = [point.record() for point in self.points]
        skus = dict.fromkeys(f"gpus_{sku}" for point in self.points for sku in point.gpus)
        rows = [dict.fromkeys(skus, 0) | row if row["feasible"] else row for row in rows]
        last = ("status", *_FIGURES)
        named = dict.fromkeys(itertools.chain(("point", *self.paths), *rows))
        columns = sorted(named, key=lambda name: _column_place(name, last))
        return [{name: row.get(name) for name in columns} for row in rows]

    def frame(self) -> pd.DataFrame:
        """The rows of `records` as a pandas DataFrame. Raises InputError where pandas is not installed."""
        return frame(self)

    def to_csv(self, path: str | Path | None = None) -> str:
        """The rows of `records` as CSV, written to a file if one is given; text that starts a formula is quoted.

        Raises InputError for a file that cannot be written.
        """
        rows = self.records()
        text = csv_text(tuple(rows[0]), [tuple(row.values()) for row in rows]) if rows else ""
        if path is not None:
            write_text(str(path), text)
        return text


def _column_place(name: str, last: Sequence[str]) -> int:
    """Where a column stands: the point and its values, then the figures in their order."""
    if name.startswith("gpus_"):
        return last.index("gpus")
    if name.startswith("alternative_"):
        return last.index("alternatives")
    return last.index(name) if name in last else -1


# --- in words and tables ----------------------------------------------------------------------------------------------


def headline(sweep: Sweep) -> str:
    """How many points there are, how many have a fleet, and the cheapest of them."""
    feasible, best = len(sweep.feasible), sweep.best()
    text = f"{sweep.name}: {number_of(len(sweep.points), 'point')}, {feasible:,} with a fleet"
    if best is None:
        return f"{text}."
    where = ", ".join(f"{path}={_cell(value)}" for path, value in best.values.items())
    return f"{text}; the cheapest is {best.fleet} for {money(best.usd_per_hour or 0.0)} USD/hour at {where}."


def table(sweep: Sweep, most: int = MAX_TABLE_POINTS) -> Table:
    """The first points as a table: settings, cost, fleet and tightest target, or why it has none."""
    rows = tuple(
        (*(str(_cell(point.values.get(path, "-"))) for path in sweep.paths), *_figure_cells(point))
        for point in sweep.points[:most]
    )
    columns = (*sweep.paths, "USD/hour", "$ per million tokens", "fleet", "tightest target")
    left = len(sweep.points) - len(rows)
    note = f"{number_of(left, 'more point')} not shown: write them with --csv." if left else ""
    return Table("Points", columns, rows, note)


def _figure_cells(point: SweepPoint) -> tuple[str, ...]:
    if point.usd_per_hour is None:
        return ("-", "-", f"{point.status}: {point.reason}", "-")
    tokens, ratio = point.usd_per_million_tokens, point.tightest_ratio
    tightest = point.tightest if ratio is None else f"{point.tightest} at {percent(ratio)}"
    return (money(point.usd_per_hour), "-" if tokens is None else money(tokens), point.fleet, tightest)


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_START = '{"key": '
"""How every line starts; one that was cut off while it was written starts so too."""


class SweepLog:
    """A file of planned points, opened for more. Without a path it holds nothing and writes nothing.

    Attributes:
        rows: planned points by key, as they were when the file was opened.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._path = None if path is None else Path(path)
        self._file: io.FileIO | None = None
        self.rows: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        """Read what is there. Raises InputError: not such a file, or one that cannot be read or written."""
        if self._path is not None:
            try:
                self._read(self._path)
            except InputError:
                self.__exit__(None, None, None)
                raise
        return self

    def _read(self, path: Path) -> None:
        """Open the file and read its rows."""
        try:
            self._file = io.FileIO(path, "a")  # no buffer: it would be written in pieces
            with _alone(self._file):
                text = path.read_text(encoding="utf-8")
                whole, end, torn = text.rpartition("\n")
                self.rows = _read_rows(whole, path)
                if torn and not (torn.startswith(_START) or _START.startswith(torn)):
                    raise _not_a_log(path, whole.count("\n") + bool(end) + 1)
                if torn:
                    self._file.truncate(len((whole + end).encode()))  # a point that was cut off is planned again
        except OSError as error:
            raise InputError("resume", str(path), f"cannot be used: {error.strerror}", "name a file") from None
        except UnicodeDecodeError:
            raise _not_a_log(path, 1) from None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def write(self, points: Mapping[str, Mapping[str, Any]]) -> None:
        """Add planned points by key, so that they are in the file when this returns."""
        if self._file is not None:
            for key, point in points.items():
                line = json.dumps({"key": key, "point": point}, allow_nan=False)
                left = memoryview(f"{line}\n".encode())
                with _alone(self._file):
                    while left:  # once, unless the disk is full
                        left = left[self._file.write(left) :]


@contextmanager
def _alone(file: io.FileIO) -> Iterator[None]:
    """Keep other processes out while a line is half written, or half read; not on Windows."""
    if fcntl is None:
        yield
        return
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def _read_rows(text: str, path: Path) -> dict[str, dict[str, Any]]:
    rows = {}
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            row = json.loads(line)
            rows[str(row["key"])] = dict(row["point"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise _not_a_log(path, number) from None
    return rows


def _not_a_log(path: Path, line: int) -> InputError:
    return InputError("resume", str(path), f"line {line} is no point of a sweep", "name a new file, or one of a sweep")
