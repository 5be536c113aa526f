"""Texts of users made safe for the files they end up in: names, single lines, Compose literals."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml


class _Readable(yaml.SafeDumper):
    """A dumper that writes texts of several lines as blocks."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Readable.add_representer(str, _block)


def yaml_text(documents: Sequence[Mapping[str, Any]]) -> str:
    r"""YAML of several documents, their keys in order and texts of several lines as blocks.

    >>> print(yaml_text([{"b": 1, "a": "no"}, {"c": "x\ny\n"}]), end="")
    b: 1
    a: 'no'
    ---
    c: |
      x
      y
    """
    return "---\n".join(
        yaml.dump(dict(document), Dumper=_Readable, sort_keys=False, width=120) for document in documents
    )


def slug(name: str) -> str:
    """A name as lower case letters, digits and hyphens.

    >>> slug("My $(chat)/../Model"), slug("***")
    ('my-chat-model', 'pool')
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "pool"


def one_line(text: str) -> str:
    """Text on one line, without control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def compose_literal(word: str) -> str:
    """A word that Compose does not interpolate."""
    return word.replace("$", "$$")


def kubernetes_literal(word: str) -> str:
    """A word in which Kubernetes expands no variable.

    >>> kubernetes_literal("$(HOME) costs $5")
    '$$(HOME) costs $$5'
    """
    return word.replace("$", "$$")
