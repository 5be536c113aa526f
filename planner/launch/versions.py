"""The one set of versions that every target was checked against: rows of ``presets/target_versions.csv``."""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from functools import cache

from planner.core import InputError
from planner.launch.readme import markdown_rows
from planner.presets import preset


@dataclass(frozen=True)
class CheckedVersion:
    """A program, chart or resource definition that a target writes for.

    Attributes:
        target: as the command line calls it.
        component: what it is.
        version: the one that was read.
        source_url: where.
        retrieved_on: day.
        note: how it was checked, and whether the export pins it.
    """

    target: str
    component: str
    version: str
    source_url: str
    retrieved_on: str
    note: str


@cache
def checked_versions() -> tuple[CheckedVersion, ...]:
    """Every row. Raises InputError for one that lacks a field."""
    text = preset("target_versions.csv").read_text(encoding="utf-8")
    found = []
    for line, row in enumerate(csv.DictReader(text.splitlines()), start=2):
        if not all(row[field.name] for field in fields(CheckedVersion)):
            raise InputError(f"target_versions.csv line {line}", row["component"], "lacks a field", "complete the row")
        found.append(CheckedVersion(**row))
    return tuple(found)


def version_of(target: str, component: str) -> str:
    """The version of one component."""
    return next(row.version for row in checked_versions() if (row.target, row.component) == (target, component))


def versions_text(target: str) -> str:
    """The versions of a target as a section of a README; empty where it depends on none."""
    rows = [row for row in checked_versions() if row.target == target]
    if not rows:
        return ""
    head = "| Written for | Version | Read on | How |\n| --- | --- | --- | --- |"
    table = markdown_rows(head, ((row.component, row.version, row.retrieved_on, row.note) for row in rows))
    return f"\n## Written for\n\nOther versions may read these files otherwise.\n\n{table}\n"
