"""What every result is laid out as in Markdown."""

from __future__ import annotations

from collections.abc import Iterable


def markdown_page(title: str, headline: str, sections: Iterable[str]) -> str:
    r"""A page of GitHub Markdown: the title, the answer in bold, and sections with blank lines between.

    >>> markdown_page("Plan", "It fits.", ["## Why", "- It is small."])
    '# Plan\n\n**It fits.**\n\n## Why\n\n- It is small.\n'
    """
    return "\n\n".join([f"# {title}", f"**{headline}**", *sections]) + "\n"


def markdown_list(lines: Iterable[str]) -> str:
    """Lines as a list in Markdown."""
    return "\n".join(f"- {line}" for line in lines)
