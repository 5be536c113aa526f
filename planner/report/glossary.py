"""Terms on the page (`planner/presets/terms.csv`): unit, definition and provenance of every number.

A *term* is looked up by the heading of a column, the name of a row or the label of a figure, units in brackets aside.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

from planner.core import preset_rows


@dataclass(frozen=True)
class Term:
    """A quantity in words.

    Attributes:
        name: as headings write it, without its unit.
        unit: of it, or empty.
        meaning: its definition, in a sentence.
        provenance: measured, fitted, simulated, predicted, listed, given, assumed, counted.
    """

    name: str
    unit: str
    meaning: str
    provenance: str

    @property
    def hint(self) -> str:
        """All of it in one text, for a hover."""
        unit = f" [{self.unit}]" if self.unit else ""
        return f"{self.name}{unit}: {self.meaning} ({self.provenance})"


@cache
def _rows(page: str) -> tuple[Term, ...]:
    """Terms of `terms.csv`: of one page of the web app, by what a label looks like (pattern), else of every table."""
    return tuple(Term(*list(row.values())[1:]) for row in preset_rows("terms.csv") if row["page"] == page)


TERMS = _rows("")
"""Every term; names differ in more than case."""


def hints_of(page: str) -> dict[str, str]:
    """Definitions that headings, and names of rows, have on one page of the web app, before those of `TERMS`.

    >>> hints_of("check")["as planned"]
    'Whether the two are alike.'
    """
    return {term.name: term.meaning for term in _rows(page)}


@cache
def _by_name() -> dict[str, Term]:
    return {_plain(term.name): term for term in TERMS}


def _plain(label: str) -> str:
    return re.sub(r"\s*\[[^\]]*\]\s*", " ", label).strip().lower()


def term(label: str) -> Term | None:
    """The term of a heading, row or label; None where there is none.

    >>> term("$ per hour").unit
    'USD/h'
    >>> term("p99 TTFT [ms]").name
    'p99 TTFT [ms]'
    """
    name = _plain(label)
    if name in _by_name():
        return _by_name()[name]
    family = next((family for family in _rows("pattern") if re.fullmatch(family.name, name)), None)
    return None if family is None else replace(family, name=label)


def hint(label: str) -> str:
    """Text of the hover on a heading, row or label; empty where there is no term."""
    known = term(label)
    return known.hint if known else ""


def meaning(label: str) -> str:
    """The definition alone; empty where there is no term."""
    known = term(label)
    return known.meaning if known else ""
