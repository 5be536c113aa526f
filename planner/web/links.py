"""Scenarios from outside, with what is wrong in them put right: a link or file opens with everything else as it says.

A value that cannot be used is replaced by that of a packaged scenario, or left out where that has none; what was said
about it is kept, so that the page can name it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planner.core import InputError
from planner.scenario import (
    Content,
    differences,
    files,
    first_name,
    formats_with,
    full_content,
    list_scenarios,
    load_scenario,
    parse_fields,
    read_scenario,
    scenario_in,
    url,
    value_at,
)

MAX_REPAIRS = 20
"""Values put right before a link or file is given up as a whole. Affects which links open."""


@dataclass(frozen=True)
class Opened:
    """A scenario from outside.

    Attributes:
        content: every field, all of them usable.
        dropped: what was said of each value that was not used.
    """

    content: Content
    dropped: tuple[InputError, ...] = ()


def from_link(query: Mapping[str, str], default: str) -> Opened:
    """The scenario of a link's parameters; what cannot be used is as in the packaged scenario it starts from."""
    base = query.get(url.BASE, default)
    dropped: list[InputError] = []
    if base not in list_scenarios():
        known = ", ".join(list_scenarios())
        dropped.append(InputError(url.BASE, base, "no such packaged scenario", f"use one of {known}"))
        base = default
    fallback = url.packaged_content(base)
    assigned, used = dict(fallback), {url.BASE: base}
    for path, text in query.items():
        if path == url.BASE:
            continue
        try:
            assigned = files.with_overrides(assigned, [f"{path}={url.decompressed(path, text)}"])
            used[path] = text
        except InputError as error:
            dropped.append(error)
    try:
        content = url.content_of(used, default)
        _check(content)
        return Opened(content, tuple(dropped))
    except InputError:
        formats = formats_with(assigned["llm"], None) if "llm" in used and "precision" not in used else {}
        mended = repaired({**assigned, **formats}, fallback)
        return Opened(mended.content, (*dropped, *mended.dropped))


def from_file(name: str, raw: bytes, default: str) -> Opened:
    """The scenario of a file; of one with fields, what cannot be used is as in the packaged scenario `default`.

    Raises InputError where the file as a whole is none: too large, no text, no YAML, or without model and traffic.
    """
    try:
        content = scenario_in(name, raw)
        _check(content)
        return Opened(content)
    except InputError as error:
        refusal = error
    try:
        fields = parse_fields(raw.decode("utf-8-sig"))
    except (InputError, UnicodeDecodeError):
        raise refusal from None
    fallback = url.packaged_content(default)
    if not {"llm", "workload"} <= set(fields):
        raise refusal
    return repaired(fields, fallback)


# --- putting right ----------------------------------------------------------------------------------------------------


def repaired(content: Mapping[str, Any], fallback: Content) -> Opened:
    """A scenario whose unusable values are those of `fallback`, one after the other; all of it where that is no end."""
    changed: Content = json.loads(json.dumps(dict(content), default=str))
    dropped: list[InputError] = []
    for _ in range(MAX_REPAIRS):
        refusal = _refusal(changed)
        if refusal is None:
            return Opened(full_content(read_scenario(changed)[0]), tuple(dropped))
        dropped.append(refusal)
        changed = _without(changed, refusal, fallback)
    return Opened(fallback, tuple(dropped))


def _refusal(content: Content) -> InputError | None:
    """The first error of a scenario, if any."""
    try:
        _check(full_content(read_scenario(content)[0]))
    except InputError as error:
        return error
    return None


def _check(content: Content) -> None:
    """Raise InputError where a scenario cannot be used here: it names a file, or what it says cannot be."""
    for path in ("search.skus", "search.modes", "search.tp", "prices.commitments"):
        items = value_at(content, path)
        if len(set(items)) < len(items):
            raise InputError(path, items, "names one more than once", "name each once")
    load_scenario(content, from_outside=True)


def _without(content: Content, refusal: InputError, fallback: Content) -> Content:
    """The scenario without the value that was refused: the first change nearby that ends this refusal."""
    candidates = [_replaced(content, fallback, path) for path in _suspects(content, refusal, fallback)]
    words = str(refusal)
    for candidate in candidates:
        if candidate != content and str(_refusal(candidate)) != words:
            return candidate
    return fallback


def _suspects(content: Content, refusal: InputError, fallback: Content) -> Iterator[str]:
    """Paths that a refusal may be about, the nearest first: its field, what differs in it, the fields around it."""
    named = re.sub(r"\[(\d+)\]", r".\1", refusal.field).replace("--set ", "")
    names = re.split(r"[. ]", named)
    for length in range(len(names), 0, -1):
        path = ".".join(names[:length])
        value = value_at(content, path, _ABSENT)
        if value is _ABSENT:
            continue
        if isinstance(value, Mapping) and isinstance(value_at(fallback, path), Mapping):
            yield from (f"{path}.{below}" for below, _ in differences(value_at(fallback, path), value))
        yield path
    yield from (path for path, _ in differences(fallback, content))


_ABSENT = object()


def _replaced(content: Content, fallback: Content, path: str) -> Content:
    """The scenario with the value at a path as the fallback has it, or without it."""
    changed: Content = json.loads(json.dumps(content))
    place: Any = changed
    name, rest = first_name(place, path)
    while rest:
        if isinstance(place, list):
            place = place[int(name)] if name.isdecimal() and int(name) < len(place) else None
        else:
            place = place.get(name)
        if not isinstance(place, dict | list):
            return content
        name, rest = first_name(place, rest)
    value = value_at(fallback, path, _ABSENT)
    if isinstance(place, list):
        if not (name.isdecimal() and int(name) < len(place)):
            return content
        place[int(name) : int(name) + 1] = [] if value is _ABSENT else [value]
    elif value is _ABSENT:
        place.pop(name, None)
    else:
        place[name] = value
    return changed
