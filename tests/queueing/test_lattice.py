"""Sums over a lattice, against numpy and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from planner.queueing.lattice import (
    SHORT_STEP,
    descent_filter,
    lattice_probabilities,
    poisson_sum_transform,
    shift_down,
)


def test_each_point_goes_to_its_neighbours_and_the_mean_is_kept() -> None:
    points, weights = np.array([0.0, 1.3, 2.0, 7.75]), np.array([0.1, 0.2, 0.3, 0.4])
    on_lattice = lattice_probabilities(points, weights, 0.5, 32)
    assert on_lattice.sum() == pytest.approx(1.0)
    assert float(on_lattice @ np.arange(32)) * 0.5 == pytest.approx(float(points @ weights))
    assert np.count_nonzero(on_lattice) == 1 + 2 + 1 + 2


def test_what_is_shifted_below_zero_stays_there() -> None:
    assert shift_down(np.array([0.25, 0.25, 0.5]), 0.5).tolist() == [0.375, 0.375, 0.25]
    assert shift_down(np.array([0.0, 0.0, 1.0]), 1.0).tolist() == [0.0, 1.0, 0.0]


def test_exponentials_that_follow_from_their_neighbours_are_exact() -> None:
    """Rates that rise by the largest steps of the series, by tiny ones and by jumps, two hundred in a row."""
    steps = np.concatenate([np.full(120, SHORT_STEP), np.full(60, 1e-7), np.full(20, 0.3)])
    rates = 0.2 + np.cumsum(steps)
    transform = np.fft.rfft(np.array([0.1, 0.0, 0.5, 0.2, 0.0, 0.0, 0.0, 0.2]))
    direct = np.exp(rates[:, None] * (transform - 1.0))
    assert np.allclose(poisson_sum_transform(rates, transform), direct, rtol=1e-13, atol=0.0)


@pytest.mark.parametrize(("load", "size"), [(0.3, 64), (0.9, 256), (0.99, 2048)])
def test_a_walk_that_descends_by_single_cells_has_a_trivial_factor(load: float, size: int) -> None:
    """All that 1 - z^-1 E[z^A] has in powers of 1/z is its pole: the walk never skips a cell on its way down."""
    coefficients = descent_filter(np.array([0.0, 0.0, 0.5, 0.5]), load / 2.5, 1, size)
    assert coefficients[1:] / coefficients[0] == pytest.approx(np.zeros(size - 1), abs=1e-6)


def test_a_walk_too_near_saturation_for_a_tilt_is_factored_all_the_same() -> None:
    """Its pole at 1 is divided out, and what is left is that of a walk that never skips a cell: nothing."""
    coefficients = descent_filter(np.array([0.0, 0.0, 0.5, 0.5]), (1.0 - 1e-7) / 2.5, 1, 2048)
    assert coefficients[1:] / coefficients[0] == pytest.approx(np.zeros(2047), abs=1e-2)
