"""Raw measurements on disk: appended one by one, so that a run that stops can go on, and written as tables at the end.

A folder holds ``measurements.jsonl`` (one line per case, in the order measured), ``setup.json`` (what was measured on)
and, once `RawFolder.write_tables` ran, one ``<operator>.csv.gz`` per operator in the columns of `COLUMNS`.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self

import numpy as np

from calibration.tables import ColumnTable
from planner.core import InputError, write_whole

Value = str | int | float

ATTENTION_COLUMNS = (
    "attn_dtype",
    "kv_dtype",
    "batch",
    "seq_len",
    "prefix_len",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "window",
)
LATENT_COLUMNS = ATTENTION_COLUMNS[:6]
COLUMNS: dict[str, tuple[str, ...]] = {
    "gemm": ("dtype", "m", "n", "k"),
    "context_attention": ATTENTION_COLUMNS,
    "generation_attention": ATTENTION_COLUMNS,
    "context_mla": LATENT_COLUMNS,
    "generation_mla": LATENT_COLUMNS,
    "moe": ("dtype", "distribution", "num_tokens", "hidden", "inter", "topk", "num_experts", "tp", "ep", "gated"),
    "elementwise": ("op", "bytes"),
    "copy": ("bytes",),
    "launch": ("mode",),
    "host_device": ("direction", "pinned", "bytes"),
    "collectives": ("mode", "op", "num_gpus", "dtype", "bytes"),
}
"""Columns that say what was measured, per operator; tables add backend, version, kernel, ``cold``, ``latency_s``."""


@dataclass(frozen=True)
class KernelCase:
    """One thing to measure: an operator and its dimensions, named as the columns of its table."""

    operator: str
    fields: Mapping[str, Value]

    @property
    def key(self) -> str:
        """The same for the same case, in any order of fields.

        >>> KernelCase("copy", {"bytes": 1024}).key
        'copy bytes=1024'
        """
        return " ".join([self.operator, *(f"{name}={self.fields[name]}" for name in sorted(self.fields))])

    @property
    def row(self) -> ColumnTable:
        """The one row of a table that the case is, without a window where it names none."""
        fields = {"window": 0} | dict(self.fields)
        columns = {name: [value if isinstance(value, str) else float(value)] for name, value in fields.items()}
        return ColumnTable({name: np.array(column) for name, column in columns.items()})

    def number(self, name: str) -> int:
        """A field that is a count."""
        return int(self.fields[name])


class MeasurementOutcome(StrEnum):
    """Outcome of a case."""

    MEASURED = "measured"
    UNAVAILABLE = "unavailable"
    """The installed software or this GPU has no such kernel; the note holds its own words."""
    OUT_OF_MEMORY = "out_of_memory"
    IMPLAUSIBLE = "implausible"
    """The time implies more than the SKU's peak, or is no positive number: kept for the eye, never fitted."""


@dataclass(frozen=True)
class Record:
    """One case and its outcome.

    Attributes:
        latency_s: median seconds of one call; 0 unless measured or implausible.
        scatter: half the distance between the quartiles over the median.
        replays: timed replays the median is of.
        cold: whether the rotating data exceed 1.3 times the L2 cache, so that calls read from memory.
    """

    case: KernelCase
    outcome: MeasurementOutcome
    latency_s: float = 0.0
    kernel: str = ""
    scatter: float = 0.0
    replays: int = 0
    cold: bool = True
    note: str = ""

    def line(self) -> str:
        """As one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, line: str) -> Self:
        """Back from `line`."""
        content = json.loads(line)
        content["case"] = KernelCase(**content["case"])
        content["outcome"] = MeasurementOutcome(content["outcome"])
        return cls(**content)


@dataclass
class RawFolder:
    """The measurements of one run; make with `open_folder`."""

    path: Path
    records: list[Record] = field(default_factory=list)

    @property
    def _log(self) -> Path:
        return self.path / "measurements.jsonl"

    def finished_keys(self) -> frozenset[str]:
        """Keys of the cases that need no second try; implausible ones get one."""
        return frozenset(
            record.case.key for record in self.records if record.outcome is not MeasurementOutcome.IMPLAUSIBLE
        )

    def latest_records(self) -> list[Record]:
        """The last record of each case, in the order first measured."""
        return list({record.case.key: record for record in self.records}.values())

    def measured_records(self) -> list[Record]:
        """The last record of each case that has a plausible time."""
        return [record for record in self.latest_records() if record.outcome is MeasurementOutcome.MEASURED]

    def append(self, record: Record) -> None:
        """Write one record to disk at once."""
        self.records.append(record)
        with self._log.open("a", encoding="utf-8") as log:
            log.write(record.line() + "\n")

    def write_tables(self, backend: str, version: str) -> list[Path]:
        """One ``<operator>.csv.gz`` per operator that has measurements; the same bytes for the same measurements."""
        by_operator: dict[str, list[Record]] = {}
        for record in self.measured_records():
            by_operator.setdefault(record.case.operator, []).append(record)
        written = []
        for operator, records in by_operator.items():
            path = self.path / f"{operator}.csv.gz"
            write_whole(path, gzip.compress(_table(operator, records, backend, version), mtime=0))
            written.append(path)
        return written


def open_folder(path: Path, setup: Mapping[str, Value], resume: bool) -> RawFolder:
    """A folder to append to. With `resume` it goes on with what is there, which must be of the same setup.

    A last line cut off by a crash is dropped.

    Raises:
        InputError: the folder holds measurements and `resume` is off, or they are of another setup, or damaged.
    """
    log, about = path / "measurements.jsonl", path / "setup.json"
    there = _content(log)
    if there and not resume:
        fix = "add --resume to go on with them, or give another folder"
        raise InputError("raw", str(path), "holds measurements already", fix)
    if there and about.is_file():
        _require_same_setup(_setup(about), setup)
    path.mkdir(parents=True, exist_ok=True)
    write_whole(about, json.dumps(dict(setup), indent=1) + "\n")
    records, whole = _parse(path, there)
    if whole != there:
        write_whole(log, whole)
    return RawFolder(path, records)


def _content(path: Path) -> str:
    """The text of a file, nothing where there is none. Raises InputError for one that is no text."""
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        bound = f"cannot be read ({type(error).__name__})"
        raise InputError("raw", path.name, bound, "measure into another folder") from None


def _setup(path: Path) -> dict[str, Value]:
    try:
        setup = json.loads(_content(path))
    except (ValueError, RecursionError):
        setup = None
    if not isinstance(setup, dict):
        raise InputError("raw", path.name, "is no JSON object", "measure into another folder")
    return setup


def _require_same_setup(before: Mapping[str, Value], now: Mapping[str, Value]) -> None:
    for name in before.keys() & now.keys():
        if before[name] != now[name]:
            bound = f"the folder's measurements are of {before[name]!r}"
            raise InputError(f"raw.{name}", now[name], bound, "measure into another folder")


def _parse(path: Path, text: str) -> tuple[list[Record], str]:
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(Record.parse(line))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            place = f"{path.name}/measurements.jsonl line {number}"
            raise InputError(place, line, f"is no measurement: {error}", "remove that line") from None
    return records, "".join(lines)


def _table(operator: str, records: Iterable[Record], backend: str, version: str) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    columns = COLUMNS[operator]
    writer.writerow(["backend", "backend_version", "kernel", *columns, "cold", "latency_s"])
    for record in records:
        cells = [record.case.fields[name] for name in columns]
        writer.writerow([backend, version, record.kernel, *cells, int(record.cold), f"{record.latency_s:.5g}"])
    return text.getvalue().encode("utf-8")
