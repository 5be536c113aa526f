"""Versions of the files a user keeps: scenarios, plans and calibrations.

Each file says in `schema_version` how its fields are to be read. One of an older version is brought up to date step by
step, each step a function from the content of one version to that of the next; one of a newer version is refused. A
version is raised when a field changes its meaning or goes; a new field that may be left out does not raise it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

from planner.core.errors import InputError

VERSION_KEY = "schema_version"
"""Field of a file that holds its version."""

Content = Mapping[str, Any]
"""A file as plain data."""
Migration = Callable[[Content], Content]
"""From the content of one version to that of the next, `VERSION_KEY` apart. Malformed content is left for whoever
validates it."""


@dataclass(frozen=True)
class Format:
    """A kind of file.

    Attributes:
        name: in messages.
        current: version that is written, and the newest that is read.
        remake: how such a file is written again, for messages.
        migrations: by version, from it to the next.
    """

    name: str
    current: int
    remake: str
    migrations: Mapping[int, Migration] = field(default_factory=dict)

    def upgrade(self, content: Content) -> dict[str, Any]:
        """A copy of the content brought up to the current version, which it then names.

        Raises InputError: a version that is no whole number from 1 on, is newer than the current one, or older than any
        release wrote.
        """
        version, upgraded = self._version(content), dict(content)
        while version < self.current:
            upgraded = dict(self.migrations[version](upgraded))
            version += 1
        return {**upgraded, VERSION_KEY: version}

    def _version(self, content: Content) -> int:
        version = content.get(VERSION_KEY, self.current)
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            fix = f"write {VERSION_KEY}: {self.current}, or {self.remake}"
            raise InputError(VERSION_KEY, version, f"must be a whole number from 1 to {self.current}", fix)
        if version > self.current:
            bound = f"this {self.name} was written by a newer planner: schema {version}, this one reads up to"
            raise InputError(
                VERSION_KEY, version, f"{bound} {self.current}", f"upgrade the planner, or {self.remake} with this one"
            )
        if version < min(self.migrations, default=self.current):
            raise InputError(VERSION_KEY, version, f"no release of the planner wrote such a {self.name}", self.remake)
        return version


def _plan_of_3(content: Content) -> Content:
    """Version 3 held a plan at the deviations of its confidence, or at those beyond them that its corrections say."""
    asked, request, taught = (content.get(name) for name in ("confidence", "request", "corrections"))
    confidence = asked.get("asked") if isinstance(asked, Mapping) else None
    deviations = NormalDist().inv_cdf(confidence) if isinstance(confidence, float) and 0.0 < confidence < 1.0 else 0.0
    upgraded = {"slow_deviations": deviations, **content}
    if isinstance(taught, Mapping) and isinstance(request, Mapping):
        measured = request.get("measured_steps", {})
        doubt = {"confidence": request.get("confidence", 0.9), "measured": measured}
        kept = {name: part for name, part in taught.items() if name != "deviations"}
        upgraded["corrections"] = {**kept, "doubt": doubt, "sure": [], "together": []}
    return upgraded


SCENARIO = Format("scenario", 1, "write the scenario again")
"""Scenarios (YAML); most say no version."""
PLAN = Format("plan", 4, "plan again with --json", {3: _plan_of_3})
"""Plans as JSON. 3, of release 0.1.0: every field of a plan. 4: how slow the steps are that the plan holds at."""
CALIBRATION = Format("calibration", 2, "measure and fit again with python -m calibration")
"""Calibrations as JSON. 2: fits by kernel, with their errors."""
