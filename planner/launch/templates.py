"""Templates of the exported files (Jinja2, ``templates/*.j2``), and texts of users made safe for what they end up in.

A template of a manifest is YAML: it is rendered, read back as objects and written by one dumper, so that a file is
always well-formed. Every value in it passes the filter ``yaml``, every word of a script the filter ``shell`` and every
name in a README the filter ``name``.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

from planner.core import markdown_text, number_of, one_line, significant, template_environment, with_unit

if TYPE_CHECKING:
    from jinja2 import Environment, Template


def text_of(template: str, **facts: object) -> str:
    """A template with its holes filled by facts."""
    return _template(template).render(facts)


def objects_of(template: str, **facts: object) -> list[dict[str, Any]]:
    """The documents of a YAML template; empty ones are left out."""
    return [found for found in yaml.safe_load_all(text_of(template, **facts)) if found]


@cache
def _template(name: str) -> Template:
    return _environment().get_template(name)


@cache
def _environment() -> Environment:
    found = template_environment("planner.launch", escaped=False)
    found.filters |= {
        "yaml": flow_yaml,
        "literal": literal,
        "shell": shlex.quote,
        "line": one_line,
        "name": markdown_text,
        "markdown": markdown_text,
        "slug": slug,
        "significant": significant,
        "number_of": number_of,
        "distinct": distinct_lines,
    }
    found.globals |= {"with_unit": with_unit}
    return found


class _Readable(yaml.SafeDumper):
    """A dumper that writes texts of several lines as blocks."""


_Readable.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


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


def flow_yaml(value: object) -> str:
    """A value as YAML on one line, for any place of a YAML text.

    >>> flow_yaml({"a": ["$(x): y", 1]}), flow_yaml("no")
    ('{"a": ["$(x): y", 1]}', '"no"')
    """
    text = json.dumps(value)  # YAML too, but for escapes and for numbers such as 1e-05
    if "\\" not in text and not re.search(r"\de[-+]?\d", text):
        return text
    return yaml.safe_dump([value], default_flow_style=True, sort_keys=False, width=math.inf).strip()[1:-1]


def literal(word: str) -> str:
    """A word in which neither Kubernetes nor Compose expands a variable.

    >>> literal("$(HOME) costs $5")
    '$$(HOME) costs $$5'
    """
    return word.replace("$", "$$")


MAX_SLUG = 36
"""Longest slug: with what stands around it a name of Grafana keeps to 40 letters, one of Kubernetes to 63."""


def slug(name: str) -> str:
    """A name as at most 36 lower case letters, digits and hyphens; where it loses letters to that, six of its digest.

    >>> slug("My $(chat)/../Model"), slug("模型一"), slug("模型二")
    ('my-chat-model', 'pool-1eadcc', 'pool-15a58c')
    """
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if name.isascii() and 0 < len(words) <= MAX_SLUG:
        return words
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return f"{words[: MAX_SLUG - len(digest) - 1].strip('-') or 'pool'}-{digest}"


def distinct_lines(text: str) -> str:
    r"""A text with every line once.

    >>> distinct_lines("- a\n- b\n- a\n")
    '- a\n- b\n'
    """
    return "".join(dict.fromkeys(text.splitlines(keepends=True)))
