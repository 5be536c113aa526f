"""What every number on the page means: unit, definition, and how it was come by.

A *term* is looked up by the heading of a column, the name of a row or the label of a figure, units in brackets aside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Term:
    """A quantity in words.

    Attributes:
        name: as headings write it, without its unit.
        unit: of it, or empty.
        meaning: what it is, in a sentence.
        origin: how it was come by: measured, fitted, simulated, predicted, listed, given, assumed, counted.
    """

    name: str
    unit: str
    meaning: str
    origin: str

    @property
    def hint(self) -> str:
        """All of it in one text, for a hover."""
        unit = f" [{self.unit}]" if self.unit else ""
        return f"{self.name}{unit}: {self.meaning} ({self.origin})"


TERMS: tuple[Term, ...] = (
    Term("$ per hour", "USD/h", "Price of all GPUs of the fleet for an hour.", "listed prices times GPUs"),
)


@cache
def _by_name() -> dict[str, Term]:
    return {_plain(found.name): found for found in TERMS}


def _plain(label: str) -> str:
    return re.sub(r"\s*\[[^\]]*\]\s*", " ", label).strip().lower()


def term(label: str) -> Term | None:
    """The term of a heading, row or label; None where there is none.

    >>> term("$ per hour").unit
    'USD/h'
    """
    return _by_name().get(_plain(label))


def hint(label: str) -> str:
    """What a hover says about a heading, row or label; empty where nothing is known."""
    found = term(label)
    return found.hint if found else ""


def unknown(labels: Iterable[str]) -> list[str]:
    """Labels that have no term."""
    return [label for label in labels if term(label) is None]
