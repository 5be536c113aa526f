"""A scenario as the query of a web address, and back.

    ?base=chat-llama-70b&workload.rate_per_s=60&slo.0.threshold_s=0.5

`base` names the packaged scenario that a link starts from; every other parameter is an assignment as ``--set`` takes
it, so a link can be read, edited by hand and given to the command line. Values too long to read (a histogram, an
uploaded config.json) are compressed: ``z.`` and base64 of zlib. Only what differs from the base is written.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import yaml

from planner.core import InputError
from planner.scenario.files import MAX_SCENARIO_BYTES, list_scenarios
from planner.scenario.read import read_scenario
from planner.scenario.types import Scenario

_UNPRINTED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")

Content = dict[str, Any]
"""A scenario as plain JSON data, every field present."""

BASE = "base"
"""Parameter that names the packaged scenario a link starts from."""
PACKED = "z."
"""Start of a compressed value."""
MAX_READABLE = 200
"""Longest value that is written as it is [characters]."""
MAX_LINK = 12_000
"""Longest query that servers and mail programs are trusted with [characters]."""


def full_content(scenario: Scenario) -> Content:
    """Every field of a scenario as plain JSON data."""
    return scenario.model_dump(mode="json")


@cache
def _packaged_json(name: str) -> str:
    return json.dumps(full_content(read_scenario(name)[0]))


def packaged_content(name: str) -> Content:
    """Every field of a packaged scenario. Raises UnknownNameError.

    >>> packaged_content("chat-llama-70b")["workload"]["rate_per_s"]
    40.0
    """
    return dict(json.loads(_packaged_json(name)))


def query_of(content: Mapping[str, Any], base: str) -> dict[str, str]:
    """The parameters that make `content` of the packaged scenario `base`.

    >>> content = packaged_content("chat-llama-70b")
    >>> content["workload"]["rate_per_s"] = 60.0
    >>> query_of(content, "chat-llama-70b")
    {'base': 'chat-llama-70b', 'workload.rate_per_s': '60.0'}
    """
    return {BASE: base, **{path: _value_text(value) for path, value in differences(packaged_content(base), content)}}


def content_of(query: Mapping[str, str], default: str) -> Content:
    """The scenario of a link, every field present; without `base` it starts from the packaged scenario `default`.

    Nothing that it names is opened. Raises InputError naming the parameter: an unknown base or field, a value out of
    range or not readable.
    """
    name = query.get(BASE, default)
    if name not in list_scenarios():
        raise InputError(BASE, name, "no such packaged scenario", f"use one of {', '.join(list_scenarios())}")
    assignments = [f"{path}={decompressed(path, text)}" for path, text in query.items() if path != BASE]
    return full_content(read_scenario(packaged_content(name), assignments, from_outside=True)[0])


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted paths at which two contents differ, with the later value; as deep as both have the same shape."""
    for name in [*before, *(name for name in after if name not in before)]:
        yield from _differences_at(name, before.get(name), after.get(name))


def _differences_at(path: str, before: object, after: object) -> Iterator[tuple[str, Any]]:
    if before == after:
        return
    pairs: list[tuple[str, object, object]] = []
    if isinstance(before, Mapping) and isinstance(after, Mapping) and before and set(before) == set(after):
        pairs = [(name, before[name], after[name]) for name in before]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        records = all(isinstance(item, Mapping) for item in (*before, *after))
        pairs = [(str(place), *both) for place, both in enumerate(zip(before, after, strict=True))] if records else []
    if not pairs:
        yield path, after
    for name, old, new in pairs:
        yield from _differences_at(f"{path}.{name}", old, new)


def _value_text(value: object) -> str:
    """A value as YAML on one line, compressed where it is long."""
    text = value if isinstance(value, str) and len(value) <= MAX_READABLE and _is_plain(value) else _json(value)
    if len(text) <= MAX_READABLE:
        return text
    return PACKED + base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")


def _is_plain(text: str) -> bool:
    """True if YAML reads the text as itself."""
    try:
        return bool(yaml.safe_load(text) == text) and not text.startswith(PACKED)
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return False


def _json(value: object) -> str:
    """JSON that YAML reads alike: characters that YAML does not print are escaped, pairs of surrogates are not."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return _UNPRINTED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def decompressed(path: str, text: str) -> str:
    """The text of a parameter, unpacked where it was compressed. Raises InputError naming the parameter."""
    if not text.startswith(PACKED):
        return text
    packed = text.removeprefix(PACKED)
    try:
        raw = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(raw, MAX_SCENARIO_BYTES)
    except (binascii.Error, zlib.error, ValueError):
        raise InputError(path, text[:40], "is no compressed value", "copy the whole link once more") from None
    if unpacker.unconsumed_tail or not unpacker.eof:
        bound = f"is cut off, or longer than {MAX_SCENARIO_BYTES} bytes"
        raise InputError(path, text[:40], bound, "copy the whole link once more")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InputError(path, text[:40], "is no text", "copy the whole link once more") from None


# --- paths ------------------------------------------------------------------------------------------------------------


def value_at(place: Any, path: str, default: object = None) -> Any:  # noqa: ANN401
    """The value at a dotted path of plain data, or `default`. A name that ends the path may itself hold dots."""
    while path:
        name, path = first_name(place, path)
        if isinstance(place, Mapping) and name in place:
            place = place[name]
        elif isinstance(place, list) and name.isdecimal() and int(name) < len(place):
            place = place[int(name)]
        else:
            return default
    return place


def first_name(place: object, path: str) -> tuple[str, str]:
    """The first name of a path, and the rest: all of it where a mapping has that name, such as a SKU's id with dots."""
    if isinstance(place, Mapping) and path in place:
        return path, ""
    name, _, rest = path.partition(".")
    return name, rest
