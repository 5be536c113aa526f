"""Errors that instruct: every one names the field, the value, the bound it broke and the fix.

A user of the command line sees exactly one line and no traceback; a user of the Python API catches
`PlannerError`. An *infeasible* request is not an error: it is an answer (see `planner.Plan`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ValidationError

_VALUE_WIDTH = 60
"""Most characters of a value in a message."""


class PlannerError(ValueError):
    """Base of every error the planner raises on purpose.

    The message reads ``field = value: bound. Fix: fix`` so that one line is enough to act on.
    """

    def __init__(self, field: str, value: object, bound: str, fix: str = "") -> None:
        self.field = field
        self.value = value
        self.bound = bound
        self.fix = fix
        super().__init__(self._line())

    def _line(self) -> str:
        line = f"{self.field} = {shorten(self.value)}: {self.bound}"
        return f"{line}. Fix: {self.fix}" if self.fix else line


class InputError(PlannerError):
    """A value the user gave is missing, malformed or out of range."""


_WORD = re.compile(r"[a-z0-9.]+")


class UnknownNameError(InputError):
    """A name that is in no table (SKU, model, scenario ...); suggests those of its words, that it begins, or alike."""

    def __init__(self, field: str, name: object, known: Iterable[str]) -> None:
        names, words = sorted(known), _WORD.findall(str(name).lower())
        of_words = [one for one in reversed(names) if words and {*words} <= {*_WORD.findall(one.lower())}]
        begun = [one for one in names if words and one.lower().startswith(str(name).lower())]
        near = of_words[:3] or begun or difflib.get_close_matches(str(name).lower(), names, n=3, cutoff=0.4)
        shown = near or names
        listed = ", ".join(shown[:12]) + (", ..." if len(shown) > 12 else "")
        bound = "unknown name" if names else "unknown name (none are known)"
        super().__init__(field, name, bound, f"use {'one close to it' if near else 'one'} of: {listed}")


class UnsupportedFeatureError(InputError):
    """The input is valid but uses a feature that is not modelled; refusing beats a silent wrong answer."""


def shorten(value: object) -> str:
    """`repr` of a value, cut to one short line.

    >>> shorten("x" * 100)[-4:]
    "...'"
    """
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # repr of an integer beyond Python's digit limit
        text = f"a {type(value).__name__} too long to show"
    except RecursionError:
        text = f"a {type(value).__name__} nested too deeply to show"
    return text if len(text) <= _VALUE_WIDTH else text[: _VALUE_WIDTH - 4] + "..." + text[-1]


_OTHERS_NAMED = 3
"""Fields that an error names besides its own."""
MISSING_FIELD = "required field is missing"
"""Bound of errors about fields that a record must have."""


def from_validation_error(error: ValidationError, prefix: str = "") -> InputError:
    """The first complaint of a pydantic `ValidationError` as one instructive `InputError`.

    An unknown field goes first: misspelled, it is why another is missing. `prefix` names the record (``"scenario"``);
    the fix names the fields of the next ones.
    """
    details = [d for d in error.errors(include_url=False) if d["type"] != "too_short"] or error.errors(
        include_url=False
    )
    first = next((detail for detail in details if detail["type"] == "extra_forbidden"), details[0])
    field = _dotted(prefix, first["loc"])
    kind, context = first["type"], first.get("ctx", {})
    others = dict.fromkeys(_dotted(prefix, detail["loc"]) for detail in details if detail is not first)
    rest = f" (after this one: {', '.join(list(others)[:_OTHERS_NAMED])})" if others else ""
    nested = context.get("error")
    if isinstance(nested, PlannerError):
        return _with_place(nested, prefix, first["loc"], rest)
    if kind == "missing":
        return InputError(field, "(missing)", MISSING_FIELD, f"add {field.rsplit('.', 1)[-1]}{rest}")
    if kind == "extra_forbidden":
        return InputError(field, first["input"], "unknown field", f"remove it or correct its spelling{rest}")
    return InputError(field, first["input"], first["msg"].removeprefix("Value error, "), _fix_of(kind, context) + rest)


def _with_place(nested: PlannerError, prefix: str, location: Sequence[Any], rest: str) -> InputError:
    """An error raised inside a record, with the place of the record before its field (unless it names that itself)."""
    names_its_place = bool(location) and nested.field.split(".")[0] == location[-1]
    field = _dotted(prefix, (*(location[:-1] if names_its_place else location), nested.field))
    return InputError(field, nested.value, nested.bound, (nested.fix or "give a value within that bound") + rest)


def _dotted(prefix: str, location: Sequence[Any]) -> str:
    """A place in a record as its user writes it: ``classes[0].lengths``."""
    steps = [prefix] if prefix else []
    for step in location:
        if step != "":
            steps.append(f"[{step}]" if isinstance(step, int) else str(step))
    return ".".join(steps).replace(".[", "[") or "input"


_BOUND_WORDS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "of at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "of at most"),
}


def _fix_of(kind: str, context: dict[str, Any]) -> str:
    """Remedy for a complaint of pydantic of one kind."""
    if kind in _BOUND_WORDS:
        key, words = _BOUND_WORDS[kind]
        return f"give a value {words} {context[key]}"
    if kind == "enum":
        return f"use one of {context.get('expected', '')}"
    if kind == "finite_number":
        return "give a finite number"
    return "give a value of the documented type and range"
