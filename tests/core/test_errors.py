"""Error lines name field, value, bound and fix, from whatever depth they come."""

from __future__ import annotations

import pytest
from pydantic import Field

from planner.core import Frozen, InputError, PlannerError, UnknownNameError, shorten


class Inner(Frozen):
    """A nested record for the tests below."""

    rate: float = Field(gt=0)
    count: int = Field(default=1, ge=1, le=9)


class Outer(Frozen):
    """A record holding records."""

    inner: Inner
    more: tuple[Inner, ...] = ()


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"inner": {"rate": -3}}, "inner.rate = -3: Input should be greater than 0. Fix: give a value greater than 0"),
        ({"inner": {"rate": 1, "count": 10}}, "inner.count = 10: Input should be less than or equal to 9. Fix: give"),
        ({"inner": {}}, "inner.rate = '(missing)': required field is missing. Fix: add rate"),
        ({"inner": {"rate": 1, "rat": 2}}, "inner.rat = 2: unknown field. Fix: remove it or correct its spelling"),
        ({"inner": {"rate": float("nan")}}, "inner.rate = nan: Input should be a finite number"),
        ({"inner": {"rate": 1}, "more": [{"rate": 1}, {"rate": 0}]}, "more[1].rate = 0: Input should be greater"),
        ({}, "inner = '(missing)': required field is missing. Fix: add inner"),
    ],
)
def test_a_nested_complaint_is_one_line_with_its_path(data: dict[str, object], line: str) -> None:
    with pytest.raises(InputError) as caught:
        Outer(**data)  # type: ignore[arg-type]
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_further_complaints_are_named() -> None:
    with pytest.raises(InputError, match=r"\(after this one: count\)"):
        Inner(rate=-1, count=0)


def test_an_unknown_name_suggests_the_nearest() -> None:
    typed = UnknownNameError("llm", "Llama 70b", ["llama-2-70b", "llama-2-7b", "llama-3.3-70b-instruct"])
    assert typed.fix.endswith("of: llama-3.3-70b-instruct, llama-2-70b")  # what has all its words, the latest first
    line = str(UnknownNameError("sku", "h100", ["h100-sxm", "h100-pcie", "t4"]))
    assert line.startswith("sku = 'h100': unknown name. Fix: use one close to it of: h100")
    assert "t4" not in line


def test_long_values_are_cut() -> None:
    assert len(shorten("y" * 10_000)) <= 60
    assert len(str(PlannerError("f", {"k": "y" * 10_000}, "bound"))) < 100
