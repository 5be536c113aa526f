"""Arithmetic of kernel forms: closed forms, and pairs by counting."""

from __future__ import annotations

import itertools
import math

import pytest

from planner.roofline import (
    attended_pairs,
)
from planner.roofline.arithmetic import p_norm


def test_the_p_norm_lies_between_the_maximum_and_the_sum():
    for order in (0.5, 1.0, 2.0, 7.0):
        assert max(3.0, 4.0) <= p_norm(order, 3.0, 4.0)
        assert (p_norm(order, 3.0, 4.0) <= 7.0) == (order >= 1.0)
    assert [p_norm(2.0, 0.0, 2.0), p_norm(0.5, 0.0, 0.0), p_norm(math.inf, 3.0, 3.0)] == [2.0, 0.0, 3.0]


@pytest.mark.parametrize("window", [0, 1, 5, 12, 100])
def test_attended_pairs_by_counting(window):
    for new, past in itertools.product((1, 4, 17), (0, 3, 30)):
        counted = sum(min(past + i, window or math.inf) for i in range(1, new + 1))
        assert attended_pairs(float(new), float(past), window) == counted
