"""One formula for one element and for arrays: compiled code and Python get the same from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from planner.core import FloatArray, compiled, vectorized


@dataclass(frozen=True)
class Line:
    """A slope, twice of which is worked out, and a name, which is no number."""

    slope: float
    name: str = ""

    @property
    def double(self) -> float:
        return 2.0 * self.slope


@dataclass(frozen=True)
class Offset:
    """A constant and a table."""

    offset: float
    table: Any = None


@vectorized(Line, Offset)
def on_line(row: Any, table: FloatArray, x: float, y: float) -> float:
    return row.slope * x + row.double * y + row.offset + table[0, 0]


LINE, OFFSET = Line(3.0, "a"), Offset(0.5, np.full((2, 2), 100.0))


@compiled
def twice(row: Any, table: FloatArray, x: float) -> float:
    return 2.0 * on_line(row, table, x, 1.0)


def test_numbers_broadcast_and_floats_give_a_float() -> None:
    assert on_line(1.0, 2.0, LINE, OFFSET) == 115.5
    x, y = np.array([[1.0], [2.0]]), np.array([0.0, 1.0, 2.0])
    assert on_line(x, y, LINE, OFFSET) == pytest.approx(3.0 * x + 6.0 * y + 100.5)
    assert on_line(np.zeros((0, 3)), 1.0, LINE, OFFSET).shape == (0, 3)


def test_constants_may_differ_from_step_to_step() -> None:
    slopes = np.array([1.0, 2.0, 3.0])
    assert on_line(10.0, 0.0, Line(slopes), OFFSET) == pytest.approx(10.0 * slopes + 100.5)  # type: ignore[arg-type]


def test_compiled_code_calls_the_formula_with_its_constants() -> None:
    assert twice(on_line.constants(LINE, OFFSET)[0], OFFSET.table, 1.0) == 2.0 * (3.0 + 6.0 + 100.5)


def test_numbers_and_records_may_come_in_any_order_but_all_of_them() -> None:
    assert on_line(1.0, LINE, 2.0, OFFSET) == 115.5
    with pytest.raises(ValueError, match="zip"):
        on_line(1.0, 2.0, LINE)
