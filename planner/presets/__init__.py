"""Packaged data that a scenario can name: models, lengths, demand profiles, targets, scenarios, flags of engines.

Every file says where its content comes from, in a column, a comment or the README beside it.
"""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable

__all__ = ["preset"]


def preset(*parts: str) -> Traversable:
    """The place of a packaged file or folder.

    Args:
        parts: names of folders and the file, from `planner/presets` on.

    >>> preset("scenarios", "chat-llama-70b.yaml").is_file()
    True
    """
    return files("planner.presets").joinpath(*parts)
