"""Frozen records, the base of every input, and copies of them with some fields changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from planner.core.errors import from_validation_error


class Frozen(BaseModel):  # noqa: PLW1641  (pydantic hashes frozen records by their fields)
    """Immutable, closed record: unknown fields are an error, NaN and infinity are refused.

    Base of every input of the planner. Raises `InputError`, never pydantic's own error.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    if not TYPE_CHECKING:

        def __init__(self, /, **data):  # noqa: ANN204, ANN003 - hidden from type checkers, who see the fields
            try:
                super().__init__(**data)
            except ValidationError as error:
                raise from_validation_error(error) from None

    def __eq__(self, other: object) -> bool:
        """True if all fields are equal. Values derived from them and kept do not count: arrays have no one truth."""
        if self is other:
            return True
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in type(self).model_fields)


Record = TypeVar("Record", bound=Frozen)


def rebuilt(record: Record, **updates: Any) -> Record:  # noqa: ANN401
    """A copy with some fields changed, validated again and without values derived from the old ones.

    `model_copy` checks nothing and takes cached properties along. Raises InputError as the record itself does.
    """
    fields = {name: getattr(record, name) for name in type(record).model_fields}
    return type(record)(**{**fields, **updates})


def checked_once(check: Callable[[Record], Record]) -> Callable[[Record], Record]:
    """A validator of a large record that looks at the same values once.

    Pydantic runs the validators of a record again for every other record that holds it.
    """

    @wraps(check)
    def checked(record: Record) -> Record:
        values = [getattr(record, name) for name in type(record).model_fields]
        known = vars(record).get("_checked")
        if known is None or any(value is not before for value, before in zip(values, known, strict=True)):
            check(record)
            vars(record)["_checked"] = values
        return record

    return checked


Value = TypeVar("Value")


@dataclass(frozen=True)
class Keyed(Generic[Value]):
    """An argument of a function that remembers its answers, told apart by a key that is cheaper to hash than it.

    It keeps the argument alive, so that an id in the key stands for the same record as long as the answer is kept.
    """

    value: Value = field(compare=False)
    key: Hashable
