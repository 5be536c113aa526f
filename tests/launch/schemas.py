"""Published schemas of what exports write (`tests/reference/schemas`), and what an object breaks of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

FOLDER = Path(__file__).parents[1] / "reference" / "schemas"
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
"""RFC 1035 label, which names of services must be."""


@cache
def definitions() -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Definitions of all files by name, and the names of those of whole objects by `apiVersion kind`."""
    defs: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    for path in sorted(FOLDER.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        assert content["source"] and content["version"] and not set(content["$defs"]) & set(defs), path
        defs |= content["$defs"]
        kinds |= content["kinds"]
    return defs, kinds


def breaks(value: Any, name: str) -> list[str]:
    """What a value breaks of a definition: a line for each, with the place."""
    schema = {"$defs": definitions()[0], "$ref": f"#/$defs/{name}"}
    found = Draft202012Validator(schema).iter_errors(value)
    return [f"{'.'.join(map(str, one.absolute_path))}: {one.message[:300]}" for one in found]


def object_breaks(one: Mapping[str, Any]) -> list[str]:
    """What a whole object breaks; a kind without a schema is one of them."""
    kind = f"{one.get('apiVersion')} {one.get('kind')}"
    kinds = definitions()[1]
    return breaks(one, kinds[kind]) if kind in kinds else [f"no schema of {kind}"]
