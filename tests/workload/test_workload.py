"""The mix of request classes: the mean of their lengths, shares, and errors with their path."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.core import InputError
from planner.workload import (
    ArrivalProcess,
    RequestClass,
    TokenLengths,
    Workload,
)


def _two_classes(share: float) -> tuple[RequestClass, RequestClass]:
    chat = TokenLengths.from_pairs([100, 300], [50, 10], [3, 1])
    return (
        RequestClass(name="chat", lengths=chat, share=share),
        RequestClass(name="code", lengths=TokenLengths.constant(2000, 30), share=1.0 - share),
    )


@given(st.floats(min_value=0.01, max_value=0.99))
def test_mixed_lengths_are_the_share_weighted_mean(share: float) -> None:
    """Law of total expectation, whatever scale the weights of a class have."""
    workload = Workload(arrivals=ArrivalProcess(rate_per_s=1.0), classes=_two_classes(share))
    assert workload.lengths.mean_input == pytest.approx(share * 150.0 + (1 - share) * 2000.0)
    assert workload.lengths.mean_output == pytest.approx(share * 40.0 + (1 - share) * 30.0)
    assert workload.lengths.source == "chat + code"


def test_one_class_is_passed_through() -> None:
    lengths = TokenLengths.constant(10, 5)
    workload = Workload.of(3.0, lengths, scv=2.0)
    assert workload.lengths is lengths
    assert workload.at_rate(9.0) == Workload.of(9.0, lengths, scv=2.0)
    assert hash(workload) == hash(Workload.of(3.0, lengths, scv=2.0))


@pytest.mark.parametrize("share", [0.4, 0.6])
def test_shares_must_sum_to_one(share: float) -> None:
    only = (_two_classes(0.5)[0], RequestClass(name="rest", lengths=TokenLengths.constant(1, 1), share=share))
    expected = f"classes.share = {0.5 + share}: shares must sum to 1. Fix: divide every share by {0.5 + share:g}"
    with pytest.raises(InputError, match=re.escape(expected)):
        Workload(arrivals=ArrivalProcess(rate_per_s=1.0), classes=only)


def test_nested_errors_name_the_whole_path() -> None:
    lengths = {"input_tokens": [7], "output_tokens": [0], "weights": [1.0]}
    with pytest.raises(InputError, match=re.escape("classes[0].lengths.output_tokens[0] = 0: must be a whole number")):
        Workload(arrivals={"rate_per_s": 1.0}, classes=({"lengths": lengths},))
