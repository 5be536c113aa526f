"""Plans and evaluations as JSON: complete, plain, with a schema; and files that say why they cannot be written.

The documents are the records of `planner.report.records`; null is an infinite or absent number.
"""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
import types
import typing
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from planner.core import Frozen, InputError, write_all_whole
from planner.fleet import Plan
from planner.report.records import PlanDocument, evaluation_document, plan_document
from planner.serving import Deployment, Performance
from planner.workload import Slo, Workload


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Everything a plan says, as plain JSON data (see `planner.report.records.PlanDocument`)."""
    document: dict[str, Any] = plain(plan_document(plan))
    return document


def evaluation_to_dict(
    deployment: Deployment, workload: Workload, performance: Performance, slo: Slo | None = None
) -> dict[str, Any]:
    """A given deployment, its workload and its performance (see `planner.report.records.EvaluationDocument`)."""
    document: dict[str, Any] = plain(evaluation_document(deployment, workload, performance, slo))
    return document


def plain(value: object) -> Any:  # noqa: ANN401
    """A value as JSON data: records become objects, enums their values, numbers that are not finite null.

    >>> plain((0.5, math.inf, {"gpus": 6}))
    [0.5, None, {'gpus': 6}]
    """
    if isinstance(value, Frozen):
        value = value.model_dump(mode="json", by_alias=True)
    elif dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return _leaf(value)


def _leaf(value: object) -> str | bool | int | float | None:
    if isinstance(value, Enum):
        return _leaf(value.value)
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    raise InputError("export", value, "has no JSON form", "give records, enums, numbers, strings and lists of them")


def json_schema(record: type = PlanDocument) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a document of this module."""
    definitions: dict[str, Any] = {}
    root = _schema(record, definitions)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": definitions}


_PLAIN_SCHEMAS: Mapping[object, dict[str, Any]] = {
    float: {"type": ["number", "null"]},
    int: {"type": "integer"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    Any: {},
    type(None): {"type": "null"},
}


def _schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    """Schema of a type hint; records go to `definitions` and are referred to."""
    if hint in _PLAIN_SCHEMAS:
        return dict(_PLAIN_SCHEMAS[hint])
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return {"anyOf": [_schema(argument, definitions) for argument in arguments]}
    if typing.get_origin(hint) is tuple:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if typing.get_origin(hint) is not None:
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    if issubclass(hint, Enum):
        return {"type": "string", "enum": [member.value for member in hint]}
    if hint.__name__ not in definitions:
        definitions[hint.__name__] = {}
        definitions[hint.__name__] = _record_schema(hint, definitions)
    return {"$ref": f"#/$defs/{hint.__name__}"}


def _record_schema(record: Any, definitions: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    if issubclass(record, Frozen):
        schema = record.model_json_schema(mode="serialization", ref_template="#/$defs/{model}")
        definitions.update(schema.pop("$defs", {}))
        return dict(schema)
    hints = typing.get_type_hints(record)
    return {
        "type": "object",
        "description": " ".join((record.__doc__ or "").split()),
        "properties": {field.name: _schema(hints[field.name], definitions) for field in dataclasses.fields(record)},
        "required": [field.name for field in dataclasses.fields(record)],
        "additionalProperties": False,
    }


# --- files ----------------------------------------------------------------------------------------------------------


def json_text(data: Mapping[str, Any] | list[Any]) -> str:
    """JSON data as indented text."""
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def write_text(path: str | Path, text: str) -> None:
    """Write text to a file as UTF-8, whole or not at all. Raises InputError when it cannot be written, naming why."""
    write_texts({path: text})


def write_texts(texts: Mapping[str | Path, str]) -> None:
    """Write texts to files, as `write_text` each: all of them, or none."""
    for path in texts:
        require_writable(path)
    try:
        write_all_whole(texts)
    except (OSError, ValueError) as error:
        reason, names = getattr(error, "strerror", None) or str(error), ", ".join(map(str, texts))
        raise InputError("output file", names, f"cannot be written: {reason}", "choose another place") from None


def require_writable(path: str | Path) -> None:
    """Raise InputError when a file cannot stand at `path`: before the work is done, not after it."""
    place = Path(path)
    try:
        is_folder, has_parent = place.is_dir(), place.parent.is_dir()
    except (OSError, ValueError) as error:
        raise InputError("output file", str(path), f"is no file name ({error})", "choose another name") from None
    if is_folder:
        raise InputError("output file", str(path), "is a folder", "add a file name")
    if not has_parent:
        raise InputError("output file", str(path), f"there is no folder {place.parent}", "create it, or choose another")
