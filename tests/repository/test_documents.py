"""The documents are short enough to be read, and point at what is there."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.places import DOCS, ROOT
from tests.repository.layers import SOURCES

DESIGN = (DOCS / "design.md").read_text(encoding="utf-8")


def is_there(name: str) -> bool:
    """Whether a dotted name leads to a module, or to something in one."""
    words = name.split(".")
    for count in range(len(words), 0, -1):
        module = ".".join(words[:count])
        try:
            place: object = importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        for word in words[count:]:
            if word in getattr(place, "__annotations__", {}):  # a field, of which nothing more is named
                return True
            if not hasattr(place, word):
                return False
            place = getattr(place, word)
        return True
    return False


def test_names_that_are_written_down_exist() -> None:
    """`planner.serving.performance` and the like, in documents and in docstrings."""
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
    texts |= SOURCES | {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md")}
    named = {
        (place, name)
        for place, text in texts.items()
        for name in re.findall(r"`((?:planner|hardware_db)(?:\.\w+)+)`", text)
    }
    assert len(named) > 100
    assert sorted(f"{place}: {name}" for place, name in named if not is_there(name)) == []


@pytest.mark.parametrize(("name", "most_words"), [("README.md", 900), ("docs/design.md", 2500)])
def test_it_stays_short(name: str, most_words: int) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8").split()) <= most_words


def test_the_places_of_the_design_are_there() -> None:
    """The table "Where do I find": a dozen questions or more, each with files or folders that exist."""
    table = DESIGN.split("## Where do I find")[1].split("## ")[0]
    rows = [row for row in table.splitlines() if row.startswith("| ")][1:]
    assert len(rows) >= 12
    assert all(re.search(r"`[\w/]+(/|\.py)`", row) for row in rows)
    named = re.findall(r"`((?:planner|hardware_db|tests|calibration)/[\w/.]*)`", DESIGN)
    assert not [place for place in named if not (ROOT / place).exists()]


def test_pages_are_of_four_kinds() -> None:
    """Tutorial, how-to, reference, explanation, and studies; at the root only where to begin and what binds."""
    folders = {path.name for path in DOCS.iterdir() if path.is_dir() and path.name not in ("images", "__pycache__")}
    assert folders == {"tutorial", "how-to", "reference", "explanation", "studies"}
    assert {path.name for path in DOCS.glob("*.md")} == {
        "index.md",
        "decisions.md",
        "design.md",
        "conventions.md",
        "limits.md",
    }
