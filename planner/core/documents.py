"""Records as plain JSON data, back from it, and as JSON Schema: all three by the type hints of their fields.

Records become objects, enums their values; a number that is not finite is null, and null is read as infinity where a
number is due.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Container, Mapping
from datetime import date
from enum import Enum
from typing import Any, TypeVar

from pydantic import ValidationError

from planner.core.errors import InputError, from_validation_error
from planner.core.record import Frozen, LaterTuple

Read = TypeVar("Read")
Form = Callable[[Any, str], Any]
"""Reads content that stands at a place of a document."""


def plain(value: object) -> Any:  # noqa: ANN401
    """A value as JSON data. Raises InputError for what has no JSON form.

    >>> plain((0.5, math.inf, {"gpus": 6}))
    [0.5, None, {'gpus': 6}]
    """
    if isinstance(value, Frozen):
        value = value.model_dump(mode="json", by_alias=True)
    elif dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, Enum):
        value = value.value
    elif isinstance(value, date):
        value = value.isoformat()
    elif (tolist := getattr(value, "tolist", None)) is not None:  # an array or a number of numpy, which is not loaded
        value = tolist()
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | LaterTuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    raise InputError("export", value, "has no JSON form", "give records, enums, numbers, strings and lists of them")


@dataclasses.dataclass(frozen=True)
class Reader:
    """Reads records from plain data. Fields that a record does not have are passed over.

    Attributes:
        fix: remedy for data that does not fit, for messages.
        forms: by type, what reads it where it is not written field by field.
    """

    fix: str
    forms: Mapping[Any, Form] = dataclasses.field(default_factory=dict)

    def record(self, kind: type[Read], content: object, place: str) -> Read:
        """A record of a type from the content at a place. Raises InputError, which names the place."""
        return kind(**self.fields(kind, content, place))

    def fields(self, kind: type, content: object, place: str, without: Container[str] = ()) -> dict[str, Any]:
        """The fields of a dataclass that content holds. Raises as `record`, also for one that has no default."""
        if not isinstance(content, Mapping):
            raise InputError(place, content, "must be a record", self.fix)
        hints, found = typing.get_type_hints(kind), {}
        for field in dataclasses.fields(kind):
            if field.name in without:
                continue
            if field.name in content:
                found[field.name] = self.value(hints[field.name], content[field.name], f"{place}.{field.name}")
            elif field.default is field.default_factory is dataclasses.MISSING:
                raise InputError(f"{place}.{field.name}", "(missing)", "this document does not hold it", self.fix)
        return found

    def value(self, hint: Any, content: Any, place: str) -> Any:  # noqa: ANN401
        """A value of a type hint. Raises as `record`."""
        if hint in self.forms or hint is Any:
            return self.forms[hint](content, place) if hint in self.forms else content
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (types.UnionType, typing.Union):
            (kind,) = (argument for argument in arguments if argument is not type(None))
            return None if content is None else self.value(kind, content, place)
        if origin is not None:
            read = self._tuple if origin is tuple else self._mapping
            return read(arguments, content, place)
        if dataclasses.is_dataclass(hint):
            return self.record(typing.cast("type", hint), content, place)
        return (self._frozen if issubclass(hint, Frozen) else self._leaf)(hint, content, place)

    def _mapping(self, kinds: tuple[Any, ...], content: object, place: str) -> dict[Any, Any]:
        if not isinstance(content, Mapping):
            raise InputError(place, content, "must be a mapping", self.fix)
        key, item = kinds
        return {
            self.value(key, name, place): self.value(item, inner, f"{place}.{name}") for name, inner in content.items()
        }

    def _tuple(self, kinds: tuple[Any, ...], content: object, place: str) -> tuple[Any, ...]:
        is_any_length = kinds[-1] is ...
        if not isinstance(content, list) or not (is_any_length or len(content) == len(kinds)):
            raise InputError(
                place, content, "must be a list" + ("" if is_any_length else f" of {len(kinds)}"), self.fix
            )
        hints = kinds[:1] * len(content) if is_any_length else kinds
        pairs = enumerate(zip(hints, content, strict=True))
        return tuple(self.value(hint, item, f"{place}[{number}]") for number, (hint, item) in pairs)

    def _frozen(self, kind: type[Frozen], content: object, place: str) -> Frozen:
        written = {field.serialization_alias: name for name, field in kind.model_fields.items()}
        if isinstance(content, Mapping):
            content = {written.get(name, name): item for name, item in content.items()}
        try:
            return kind.model_validate(content)
        except ValidationError as error:
            raise from_validation_error(error, place) from None

    def _leaf(self, kind: type, content: object, place: str) -> object:
        if kind is float and content is None:
            return math.inf
        is_number = isinstance(content, int | float) and not isinstance(content, bool)
        if is_number if kind is float else type(content) is (str if issubclass(kind, Enum) else kind):
            try:
                return kind(content)
            except (ValueError, OverflowError):
                pass
        names = [member.value for member in kind] if issubclass(kind, Enum) else []
        bound = f"must be one of {', '.join(names)}" if names else f"must be {_LEAVES[kind]}"
        raise InputError(place, content, bound, self.fix)


_LEAVES: Mapping[type, str] = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}


def json_schema(record: type) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a record as `plain` writes it."""
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
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_schema(argument, definitions) for argument in arguments]}
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin is not None:
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
    names = [field.name for field in dataclasses.fields(record)]
    return {
        "type": "object",
        "description": " ".join((record.__doc__ or "").split()),
        "properties": {name: _schema(hints[name], definitions) for name in names},
        "required": names,
        "additionalProperties": False,
    }


def json_text(data: Mapping[str, Any] | list[Any]) -> str:
    """JSON data as indented text."""
    return json.dumps(data, indent=2, allow_nan=False) + "\n"
