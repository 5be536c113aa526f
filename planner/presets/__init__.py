"""Packaged data that a scenario can name: models, lengths, demand profiles, targets, scenarios, flags of engines.

Every file says where its content comes from, in a column, a comment or the README beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

__all__ = ["preset", "table_facts", "table_names"]


def preset(*parts: str) -> Traversable:
    """The place of a packaged file or folder.

    Args:
        parts: names of folders and the file, from `planner/presets` on.

    >>> preset("scenarios", "chat-llama-70b.yaml").is_file()
    True
    """
    return files("planner.presets").joinpath(*parts)


def table_names(folder: Traversable) -> tuple[str, ...]:
    """Names of the tables (CSV) in a folder of packaged data, sorted."""
    names = (entry.name for entry in folder.iterdir())
    return tuple(sorted(name.removesuffix(".csv") for name in names if name.endswith(".csv")))


def table_facts(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """What ``# key: value`` lines of a packaged table say of it."""
    for line in lines:
        if line.startswith("# "):
            key, _, value = line.removeprefix("# ").partition(":")
            yield key, value.strip()
