"""The page of the mutation study says what its rows say."""

from __future__ import annotations

import re

from tests.places import ROOT
from tests.studies import mutation

PAGE = (ROOT / "docs" / "studies" / "mutation.md").read_text(encoding="utf-8")
NOTICED = ("killed", "hung")


def test_the_table_is_that_of_the_rows() -> None:
    rows = mutation.kept()
    printed = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) % \|$", PAGE, re.MULTILINE)
    assert [line[0] for line in printed] == [*mutation.PACKAGES, "all"]
    for package, *figures in printed:
        own = [row for row in rows if package in (row.package, "all")]
        noticed = sum(row.outcome in NOTICED for row in own)
        equivalent = sum(row.answer.startswith("equivalent: ") for row in own)
        share = round(100.0 * noticed / (len(own) - equivalent))
        assert [int(figure) for figure in figures] == [
            len(own),
            noticed,
            equivalent,
            len(own) - noticed - equivalent,
            share,
        ]


def test_every_survivor_has_an_answer() -> None:
    for row in mutation.kept():
        assert row.outcome in (*NOTICED, "survived", "no test")
        assert (row.outcome in NOTICED) == (row.answer == ""), row
        assert row.answer == "" or row.answer.startswith(("equivalent: ", "open: ")), row
