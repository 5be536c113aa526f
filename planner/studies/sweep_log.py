"""Where a sweep writes its points as they are planned, and finds them again: JSON lines, one point each.

A line is ``{"key": ..., "point": {...}}``. The key names everything the plan depends on, so that a file may hold points
of several sweeps, and a point is only taken from it where planning again would give the same. Several sweeps may write
to one file at once: a point is added in one piece at its end.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from planner.core import InputError

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
