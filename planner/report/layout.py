"""What every result is laid out as: a report for a terminal, and a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from planner.core import Table


@dataclass(frozen=True)
class Report:
    """A result as a terminal shows it.

    Attributes:
        headline: the answer in one sentence, or empty.
        tables: the answer in numbers.
        lists: what else there is to say, by title; an empty list is not shown.
    """

    headline: str
    tables: tuple[Table, ...] = ()
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)


def markdown_page(title: str, headline: str, sections: Iterable[str]) -> str:
    r"""A page of GitHub Markdown: the title, the answer in bold, and sections with blank lines between.

    >>> markdown_page("Plan", "It fits.", ["## Why", "- It is small."])
    '# Plan\n\n**It fits.**\n\n## Why\n\n- It is small.\n'
    """
    return "\n\n".join([f"# {title}", f"**{headline}**", *sections]) + "\n"


def markdown_list(lines: Iterable[str]) -> str:
    """Lines as a list in Markdown."""
    return "\n".join(f"- {line}" for line in lines)
