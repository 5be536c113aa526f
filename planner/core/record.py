"""Frozen records, the base of every input, and copies of them with some fields changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.core.errors import from_validation_error

Day = Annotated[date, Field(ge=date(1970, 1, 1), le=date(2999, 12, 31))]
"""A day that years may be added to and taken from."""


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

    def __hash__(self) -> int:
        """Of the key, worked out once."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.key)


class LaterTuple(Sequence[Value]):
    """A tuple that is made when it is first looked at; copied, or sent to another process, it is that tuple."""

    def __init__(self, make: Callable[[], tuple[Value, ...]]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> tuple[Value, ...]:
        made = self._make()
        del self._make  # with all that it holds
        return made

    def __getitem__(self, place: Any) -> Any:  # noqa: ANN401
        return self._made[place]

    def __len__(self) -> int:
        return len(self._made)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple | LaterTuple) and self._made == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type, tuple[object]]:
        return tuple, (self._made,)


def made_later(make: Callable[[], tuple[Value, ...]]) -> tuple[Value, ...]:
    """The tuple that `make` answers with, which is asked once, when something of it is looked at.

    >>> len(made_later(lambda: (1, 2)))
    2
    """
    return cast("tuple[Value, ...]", LaterTuple(make))
