"""A Griffe extension: examples in docstrings become blocks of code, where Markdown would see quotations and links."""

from __future__ import annotations

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^>>> .*(?:\n(?!\s*$).+)*", re.MULTILINE)
"""From the first prompt to the next blank line, which ends the expected output too."""


def fenced(text: str) -> str:
    r"""A docstring whose examples stand in fences.

    >>> fenced("Twice.\n\n>>> twice(2)\n4\n").splitlines()
    ['Twice.', '', '```pycon', '>>> twice(2)', '4', '```']
    """
    return DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", text)


class Doctests(griffe.Extension):
    """Applies `fenced` to every docstring that is read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:  # noqa: ANN401 - Griffe's own signature
        """Called by Griffe for every module, class, function and attribute, once its members are read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
