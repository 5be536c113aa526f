"""The page "How wrong can it be?" quotes: every figure of a row stands in the section that the row links to."""

from __future__ import annotations

import re

import pytest

from tests.places import DOCS

PAGE = DOCS / "explanation" / "how-wrong.md"
ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("|") and "](" in line
]


def section(link: str) -> str:
    """The text under the heading that a link leads to, tables with their cells apart; all of the page without one."""
    file, _, anchor = link.partition("#")
    text = (PAGE.parent / file).read_text(encoding="utf-8")
    if not anchor:
        return text
    parts = re.split(r"^(#+ .+)$", text, flags=re.MULTILINE)
    for heading, below in zip(parts[1::2], parts[2::2], strict=True):
        if re.sub(r"[^a-z0-9 -]", "", heading.lstrip("# ").lower()).replace(" ", "-") == anchor:
            return below
    raise AssertionError(f"no heading {anchor} in {file}")


def numbers(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.]*\d)", re.sub(r"DeepSeek-R1|GB200|B200|MI3\d\dX", "", text)))


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:40] for row in ROWS])
def test_every_figure_stands_where_the_row_says(row: list[str]) -> None:
    what, figure, source = row
    ((link),) = re.findall(r"\]\(([^)]+)\)", source)
    there = section(link)
    asked = numbers(figure) | (numbers(what) - {"99", "90"})
    assert asked
    missing = asked - numbers(there)
    assert not missing, f"{what}: {missing} not in {link}"


def test_rows_are_found() -> None:
    assert len(ROWS) >= 14
