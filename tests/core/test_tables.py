"""Numbers as text are read back to what they were; tables know which columns are numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.core import Metric, Table, duration, money, number_of, percent, significant, unit, with_unit


def _read(text: str) -> float:
    return float(text.replace(",", "").removesuffix(" %"))


@given(st.floats(min_value=1e-9, max_value=1e12), st.integers(1, 6))
def test_significant_digits_lose_at_most_half_a_digit(value: float, digits: int) -> None:
    text = significant(value, digits)
    assert "e" not in text
    assert _read(text) == pytest.approx(value, rel=0.51 * 10.0 ** (1 - digits))


@given(st.integers(-(10**15), 10**15))
def test_whole_numbers_are_shown_in_full(number: int) -> None:
    assert _read(significant(float(number))) == number


@given(st.floats(min_value=1.0, max_value=1e9))
def test_money_is_exact_to_the_cent(usd: float) -> None:
    assert _read(money(usd)) == pytest.approx(usd, abs=0.00501)


@given(st.floats(min_value=-5.0, max_value=5.0))
def test_percent_is_within_a_point_of_the_fraction(fraction: float) -> None:
    assert _read(percent(fraction)) == pytest.approx(100.0 * fraction, abs=0.501)


def test_a_miss_is_never_rounded_up_to_everything() -> None:
    assert percent(0.9999) == "99.99 %"
    assert percent(1.0) == "100 %"


@pytest.mark.parametrize("show", [significant, money, percent])
def test_what_is_not_finite_is_said_in_words(show: Callable[[float], str]) -> None:
    assert show(math.inf) == "unbounded"
    assert show(math.nan) == "undefined"


def test_milliseconds_for_tokens_seconds_for_requests() -> None:
    assert (duration(0.25, Metric.TTFT), unit(Metric.TTFT)) == ("250", "ms")
    assert (duration(0.25, Metric.E2E), unit(Metric.E2E)) == ("0.250", "s")
    assert with_unit(math.inf, Metric.TPOT) == "unbounded"


def test_one_is_singular() -> None:
    assert [number_of(n, "node") for n in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]


def test_columns_of_numbers_are_recognised() -> None:
    rows = (("h100", "1,234.5", "12 %", "-", "2026-01-01"), ("l40s", "unbounded", "-3.1 %", "4.39 x", "2026-01-01"))
    assert Table("", ("name", "a", "b", "c", "day"), rows).numeric == (False, True, True, True, False)
