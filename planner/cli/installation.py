"""The packages installed around the planner, and others that are called `planner` too."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

PACKAGE = "planner"
"""Name of the package and of the command."""
DISTRIBUTION = "llm-capacity-planner"
EXTRAS = {
    "app": "the web app, charts and data frames",
    "hub": "models by hf:OWNER/NAME",
    "tables": "measurements in Parquet files",
    "calibration": "measuring a GPU of your own",
    "excel": "plans as Excel workbooks",
    "zstd": "traces packed by zstd",
}
"""Extras that a user may want, and for what; those for development are left out."""


@dataclass(frozen=True)
class Namesake:
    """Another distribution with a package or a command called `planner`.

    Attributes:
        name: of the distribution, and its version.
        has: "package", "command" or both.
    """

    name: str
    has: tuple[str, ...]

    @property
    def words(self) -> str:
        """Description in a sentence."""
        return f"the distribution {self.name} has a {' and a '.join(self.has)} called {PACKAGE} in this environment too"

    @property
    def fix(self) -> str:
        """How to get rid of the clash."""
        name = self.name.partition(" ")[0]
        return f"keep each in a virtual environment of its own: pip uninstall {name} {DISTRIBUTION}, then install one"


def namesakes() -> tuple[Namesake, ...]:
    """Other distributions whose package or command would be taken for this one: each overwrites files of the other."""
    others = (_namesake(found) for found in metadata.distributions() if found.name != DISTRIBUTION)
    return tuple(other for other in others if other.has)


def other_commands() -> tuple[Namesake, ...]:
    """Those of `namesakes` that have a command: quick enough to be looked for at every start."""
    scripts = metadata.entry_points(group="console_scripts", name=PACKAGE)
    found = {script.dist.name: script.dist for script in scripts if script.dist is not None}
    return tuple(_namesake(other) for name, other in found.items() if name != DISTRIBUTION)


def _namesake(found: metadata.Distribution) -> Namesake:
    return Namesake(f"{found.name} {found.version}", tuple(_has(found)))


def _has(found: metadata.Distribution) -> Iterator[str]:
    """Parts of a distribution that are called `planner`; found without opening more than its lists."""
    listed = found.read_text("RECORD") or ""
    top_level = (found.read_text("top_level.txt") or "").split()
    if re.search(rf"^{PACKAGE}/__init__\.py,", listed, re.MULTILINE) or PACKAGE in top_level:
        yield "package"
    if any(script.name == PACKAGE and script.group == "console_scripts" for script in found.entry_points):
        yield "command"


def other_folders() -> tuple[Path, ...]:
    """Folders on the path with a package `planner` that is not this one: where they come first, they are imported."""
    own = Path(__file__).resolve().parents[1]
    places = dict.fromkeys(Path(entry).resolve() / PACKAGE for entry in sys.path)
    return tuple(place for place in places if place != own and (place / "__init__.py").is_file())


def command_path() -> str:
    """Where a shell finds the command `planner`; empty where it does not."""
    return shutil.which(PACKAGE) or ""


@cache
def requirements() -> dict[str, tuple[str, ...]]:
    """Distributions that are required, by extra; those always required stand under an empty name.

    Empty where the planner runs from its source without being installed.
    """
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return {}
    by_extra: dict[str, list[str]] = {}
    for line in lines:
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        name = re.match(r"[\w.-]+", line)
        if name is not None and name[0] != DISTRIBUTION:
            by_extra.setdefault(extra[1] if extra else "", []).append(name[0])
    return {extra: tuple(names) for extra, names in by_extra.items()}


def extra_with(module: str) -> str:
    """The extra that brings a module; empty where none does."""
    wanted = module.partition(".")[0].replace("_", "-")
    return next(
        (extra for extra in EXTRAS if wanted in {name.replace("_", "-") for name in requirements().get(extra, ())}), ""
    )


def installed_version(name: str) -> str:
    """Version of a distribution; empty where it is not there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
