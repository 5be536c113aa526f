"""Numbers as text are read back to what they were; tables know which columns are numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from planner.core import (
    Table,
    markdown_text,
    money,
    percent,
    rough_share,
    share_with_error,
    significant,
)


@given(st.text(st.sampled_from("a_*`[]()!<>:/\\|~ \n\u202e")) | st.text())
@example("![a](http://example.org/a.png)")
@example("[a]: http://example.org")
@example("[a](<b>)")
def test_text_in_markdown_is_shown_as_it_is(text: str) -> None:
    """By a Markdown reader of CommonMark's own kind: a picture in a name would be loaded by all who read a report."""
    found = MarkdownIt().parse("- x " + markdown_text(text) + " x\n\n[a]: http://example.org\n")
    inner = [token for block in found for token in block.children or ()]
    assert {token.type for token in inner} <= {"text", "text_special"}


def _read(text: str) -> float:
    return float(text.replace(",", "").removesuffix(" %"))


@given(st.floats(min_value=1e-9, max_value=1e12), st.integers(1, 6))
def test_significant_digits_lose_at_most_half_a_digit(value: float, digits: int) -> None:
    text = significant(value, digits)
    assert "e" not in text
    assert _read(text) == pytest.approx(value, rel=0.51 * 10.0 ** (1 - digits))


@given(st.floats(min_value=1.0, max_value=1e9))
def test_money_is_exact_to_the_cent(usd: float) -> None:
    assert _read(money(usd)) == pytest.approx(usd, abs=0.00501)


@given(st.floats(min_value=-5.0, max_value=5.0))
def test_percent_is_within_a_point_of_the_fraction(fraction: float) -> None:
    assert _read(percent(fraction)) == pytest.approx(100.0 * fraction, abs=0.501)


def test_a_miss_is_never_rounded_up_to_everything() -> None:
    assert percent(0.9999) == "99.99 %"
    assert percent(1.0) == "100 %"


SHARES = st.floats(min_value=0.5, max_value=1.0)
ERRORS = st.floats(min_value=1e-4, max_value=0.1)


@given(SHARES, ERRORS, st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999]))
def test_a_sampled_share_is_said_within_its_error_and_no_digit_finer(share: float, error: float, asked: float) -> None:
    text = share_with_error(share, error, asked)
    said, _, half = text.removesuffix(" %").partition(" ± ")
    if text.startswith("> "):
        assert share + error >= 1.0
        least = float(said.removeprefix("> ")) / 100.0
        assert least - 1e-12 <= share - error < least + 10.0 ** -len(said.partition(".")[2]) / 100.0 + 1e-12
        return
    assert float(said) / 100.0 == pytest.approx(share, abs=error)
    is_near_asked = 0.0 < asked - share < error
    assert is_near_asked or len(half.strip("0.").replace(".", "")) <= 2, "one digit of the error, two where it is 10"


@given(SHARES, ERRORS, st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999]))
def test_no_share_below_what_was_asked_reads_as_if_it_held(share: float, error: float, asked: float) -> None:
    if asked - share > 1e-6:
        for text in (share_with_error(share, error, asked), share_with_error(share, 0.0, asked)):
            assert text.startswith("> ") or float(text.removesuffix(" %").partition(" ± ")[0]) < 100.0 * asked
        rough = rough_share(share, error, asked)
        assert rough.startswith("over ") or float(rough.removesuffix(" %")) < 100.0 * asked


def test_a_probability_counted_in_few_draws_has_no_hundredths() -> None:
    """400 of 400 draws hold: Jeffreys' estimate is 0.9988 with a standard error of a quarter of a point."""
    assert rough_share(400.5 / 401.0, 0.0025, 0.9) == "over 99 %"
    assert rough_share(0.9214, 0.0135, 0.9) == "92 %"


@pytest.mark.parametrize("show", [significant, money, percent])
def test_what_is_not_finite_is_said_in_words(show: Callable[[float], str]) -> None:
    assert show(math.inf) == "unbounded"
    assert show(math.nan) == "undefined"


def test_columns_of_numbers_are_recognised() -> None:
    rows = (("h100", "1,234.5", "12 %", "-", "2026-01-01"), ("l40s", "unbounded", "-3.1 %", "4.39 x", "2026-01-01"))
    assert Table("", ("name", "a", "b", "c", "day"), rows).numeric == (False, True, True, True, False)
