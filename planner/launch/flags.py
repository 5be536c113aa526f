"""Names of options in each engine: `presets/engine_flags.csv`, a row per engine, version and option, with its page."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from planner.core import InputError, UnsupportedFeatureError, preset_rows


class FlagKind(StrEnum):
    """Kind of a row, which says how it is written."""

    IMAGE = "image"
    """Container image of the version."""
    COMMAND = "command"
    """Command that starts the server, with {model} and {port}."""
    PATH = "path"
    """HTTP path that answers once the server is ready."""
    ARGUMENTS = "arguments"
    """Words of the command line, with {value}."""
    CONFIGURATION = "configuration"
    """``dotted.path=value`` of the engine's own YAML file."""
    ENVIRONMENT = "environment"
    """``NAME=value``."""
    NAME = "name"
    """Name of a metric, a policy or an annotation in the engine."""
    ADDRESS = "address"
    """Environment variable that takes the address at which other servers reach this one."""
    PORT = "port"
    """A port of which every replica on a server needs its own: ``NAME=port`` or ``--flag port``, with the default."""
    DEFAULT = "default"
    """Nothing to write: the engine does so by itself."""


@dataclass(frozen=True)
class EngineFlag:
    """One row of the table: what an engine calls a knob, and the page that says so."""

    engine: str
    version: str
    knob: str
    flag: str
    kind: FlagKind
    source_url: str
    retrieved_on: str
    note: str


def sourced_rows(name: str, *needed: str) -> Iterator[dict[str, str]]:
    """Rows of a packaged table. Raises InputError for one that lacks what it needs."""
    for line, row in enumerate(preset_rows(name), start=2):
        missing = [column for column in needed if not row[column]]
        if missing:
            first = next(iter(row.values()))
            raise InputError(f"{name} line {line}", first, f"lacks {', '.join(missing)}", "complete the row")
        yield row


@cache
def engine_flags() -> tuple[EngineFlag, ...]:
    """The packaged table, in its order. Raises InputError where a row has no source or an unknown kind."""
    found = []
    for row in sourced_rows("engine_flags.csv", "source_url", "retrieved_on"):
        if row["kind"] not in set(FlagKind):
            bound = f"is none of the kinds {', '.join(FlagKind)}"
            raise InputError("engine_flags.csv", row["kind"], bound, "correct the row")
        kind = FlagKind(row.pop("kind"))
        found.append(EngineFlag(kind=kind, **row))
    return tuple(found)


def rows_of(engine: str, knob: str) -> tuple[EngineFlag, ...]:
    """Rows of a knob of an engine, in the order of the table; none where the engine has no word for it."""
    return tuple(row for row in engine_flags() if (row.engine, row.knob) == (engine, knob))


def word_of(engine: str, knob: str) -> str:
    """The text of the first row of a knob, empty where the engine has none."""
    rows = rows_of(engine, knob)
    return rows[0].flag if rows else ""


def words_of(engine: str, knob: str) -> tuple[str, ...]:
    """The words of all rows of a knob for a command line, in the order of the table; none where there are none."""
    rows = (row for row in rows_of(engine, knob) if row.kind is not FlagKind.CONFIGURATION)
    return tuple(word for row in rows for word in shlex.split(row.flag))


def only_of(engine: str, knob: str) -> str:
    """The text of a knob that every engine has one row for."""
    rows = rows_of(engine, knob)
    if not rows:
        known = sorted({row.engine for row in engine_flags()})
        raise UnsupportedFeatureError("engine", engine, f"its {knob} is not known", f"use one of: {', '.join(known)}")
    return rows[0].flag
