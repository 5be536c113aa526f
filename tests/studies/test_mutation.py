"""The page of the mutation study says what its rows say."""

from __future__ import annotations

import re

from tests.places import ROOT
from tests.studies import mutation

PAGE = (ROOT / "docs" / "studies" / "mutation.md").read_text(encoding="utf-8")
NOTICED = ("killed", "hung")


def test_the_table_is_that_of_the_rows() -> None:
    rows = mutation.kept()
    printed = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
    assert [line[0] for line in printed] == [*dict.fromkeys(row.package for row in rows), "all"]
    for package, *figures in printed:
        drawn, at_first, since, equivalent, left = map(int, figures)
        own = [row for row in rows if package in (row.package, "all")]
        assert drawn == len(own)
        assert at_first <= since == sum(row.outcome in NOTICED for row in own)
        assert equivalent == sum(row.answer.startswith("equivalent: ") for row in own)
        assert left == drawn - since - equivalent


def test_every_survivor_has_an_answer() -> None:
    for row in mutation.kept():
        assert row.outcome in (*NOTICED, "survived", "no test")
        assert (row.outcome in NOTICED) == (row.answer == ""), row
        assert row.answer == "" or row.answer.startswith(("equivalent: ", "open: ")), row
