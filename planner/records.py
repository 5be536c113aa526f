"""Copies of frozen records with some fields changed, as if they had been written so from the start."""

from __future__ import annotations

from typing import Any, TypeVar

from hardware_db.schema import Frozen

Record = TypeVar("Record", bound=Frozen)


def rebuilt(record: Record, **updates: Any) -> Record:  # noqa: ANN401
    """A copy with some fields changed, validated again and without values derived from the old ones.

    `model_copy` checks nothing and takes cached properties along. Raises InputError as the record itself does.
    """
    fields = {name: getattr(record, name) for name in type(record).model_fields}
    return type(record)(**{**fields, **updates})
