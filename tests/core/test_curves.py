"""Curves through points and roots between numbers, against scipy's, to the last bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq

from planner.core import monotone_curve, root_between


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("count", [2, 3, 7, 40])
def test_a_monotone_curve_is_that_of_scipy(count: int, shape: tuple[int, ...]) -> None:
    """Through points that rise, fall and stay, within the nodes, at them and beyond."""
    for seed in range(20):
        chance = np.random.default_rng(seed)
        nodes = np.cumsum(chance.gamma(1.0, size=count) + 1e-3)
        values = chance.normal(size=(count, *shape)) if seed % 2 else np.cumsum(chance.poisson(1.0, (count, *shape)), 0)
        places = np.concatenate([nodes, chance.uniform(nodes[0] - 1.0, nodes[-1] + 1.0, 50)])
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            expected = PchipInterpolator(nodes, values)
        curve = monotone_curve(nodes, values)
        assert np.array_equal(curve(places), expected(places))
        assert np.array_equal(curve(places[-1]), expected(places[-1]))


def test_a_root_is_that_of_scipy() -> None:
    """Of cubics, exponentials and a function that is flat, found in the same steps."""
    for seed in range(200):
        chance = np.random.default_rng(seed)
        root, scale = chance.uniform(-1.0, 1.0), chance.gamma(1.0) * 10.0
        functions = (
            lambda x, root=root: (x - root) * (x * x + 0.1),
            lambda x, root=root, scale=scale: math.expm1(scale * (x - root)),
            lambda x, root=root, scale=scale: math.tanh(30.0 * scale * (x - root)),
        )
        for function in functions:
            for ends in ((-2.0, 2.0), (3.0, -1.0), (root, 2.0), (-2.0, root)):
                tolerance = float(10.0 ** chance.uniform(-12.0, -1.0))
                assert root_between(function, *ends, xtol=tolerance) == brentq(function, *ends, xtol=tolerance)
                found, expected = (find(function, *ends, xtol=tolerance, rtol=1e-4) for find in (root_between, brentq))
                assert found == expected


def test_a_root_that_is_not_between_is_refused() -> None:
    with pytest.raises(ValueError, match="one sign"):
        root_between(lambda x: x * x + 1.0, 0.0, 2.0, xtol=1e-9)
