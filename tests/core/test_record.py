"""Frozen records: equal when their fields are, whatever was derived from them; copies that are checked."""

from __future__ import annotations

import pickle
from functools import cached_property
from itertools import product
from typing import Self

import numpy as np
import pytest
from pydantic import Field, model_validator

from planner.core import FloatArray, Frozen, InputError, made_later, plain
from planner.core.record import checked_once, rebuilt


class Inner(Frozen):
    """A record within another."""

    values: tuple[float, ...]

    @cached_property
    def doubled(self) -> FloatArray:
        """An array, of which == gives no single truth."""
        return 2.0 * np.asarray(self.values)


class Outer(Frozen):
    """A record with a record, and a default."""

    name: str
    inner: Inner
    factor: float = Field(default=1.0, ge=0.0)

    @cached_property
    def total(self) -> FloatArray:
        """Derived from another derived value."""
        return self.factor * self.inner.doubled


def outer(name: str = "a", values: tuple[float, ...] = (1.0, 2.0), factor: float = 1.0) -> Outer:
    """A record of its own, nothing shared."""
    return Outer(name=name, inner=Inner(values=values), factor=factor)


def test_records_are_equal_exactly_when_all_fields_are() -> None:
    """Over all pairs of eight records; what pydantic writes of them decides."""
    some = [outer(*fields) for fields in product(("a", "b"), ((1.0, 2.0), (1.0, 3.0)), (1.0, 0.5))]
    for one, other in product(some, some):
        same = one.model_dump() == other.model_dump()
        assert (one == other) is same
        assert (one != other) is not same
        assert (hash(one) == hash(other)) is same


def test_values_that_were_derived_do_not_count() -> None:
    """Each side, both or neither has worked out its arrays; comparing them would raise."""
    for left, right in product((False, True), repeat=2):
        one, other = outer(), outer()
        _ = left and one.total
        _ = right and other.total
        assert one == other
        assert hash(one) == hash(other)
        assert len({one, other}) == 1
        assert one != outer(values=(1.0, 9.0))


def test_a_copy_with_changes_is_checked_and_forgets_what_was_derived() -> None:
    one = outer()
    assert one.total.tolist() == [2.0, 4.0]
    assert rebuilt(one, factor=3.0).total.tolist() == [6.0, 12.0]
    assert rebuilt(one) == one
    with pytest.raises(InputError, match="factor"):
        rebuilt(one, factor=-1.0)


def test_a_large_record_is_checked_once_however_many_records_hold_it() -> None:
    """Pydantic runs its validators again for each of them."""
    looked_at = []

    class Large(Frozen):
        values: tuple[int, ...]

        @model_validator(mode="after")
        @checked_once
        def _positive(self) -> Self:
            looked_at.append(self.values)
            if min(self.values) < 0:
                raise InputError("values", min(self.values), "must be >= 0")
            return self

    class Holder(Frozen):
        large: Large

    large = Large(values=(1, 2))
    assert Holder(large=large) == Holder(large=large) and looked_at == [(1, 2)]
    for _ in range(2):
        with pytest.raises(InputError):  # a copy that was not checked is, and found wrong each time
            Holder(large=large.model_copy(update={"values": (-1,)}))


def test_a_tuple_made_later_is_made_once_and_only_when_looked_at() -> None:
    """It is the tuple for whoever looks: by place, in JSON, and where it was sent to another process."""
    asked = []
    later = made_later(lambda: (asked.append(1), (1.5, "a"))[1])
    assert asked == []
    assert (later[0], *later[1:], len(later), plain(later)) == (1.5, "a", 2, [1.5, "a"])
    assert later == (1.5, "a") and later == (1.5, "a")
    assert pickle.loads(pickle.dumps(later)) == (1.5, "a")
    assert asked == [1]
