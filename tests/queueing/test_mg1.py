"""The wait in M/G/1 against closed forms and the inversion of its transform."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import gammaincinv

from planner.queueing.mg1 import mg1_wait_distribution
from planner.workload import LatencyDistribution
from tests.queueing.classic_queues import (
    kingman_wait_s,
    md1_wait_cdf,
    pollaczek_khinchine_wait_s,
)


def sliced(quantile: Callable[[np.ndarray], np.ndarray], points: int = 100_000) -> LatencyDistribution:
    values = quantile((np.arange(points) + 0.5) / points)
    return LatencyDistribution.from_samples(values / values.mean())


CONSTANT = LatencyDistribution.constant(1.0)
EXPONENTIAL = sliced(lambda u: -np.log1p(-u))


def euler_inverse(transform: Callable[[np.ndarray], np.ndarray], t: float) -> float:
    """P(W > t) from the Laplace transform of the tail: Abate and Whitt, ORSA J. Computing 7 (1995), EULER."""
    a, n, m = 18.4, 25, 12
    k = np.arange(1, n + m + 1)
    terms = np.real(transform(np.array([complex(a, 2.0 * np.pi * j) / (2.0 * t) for j in k])))
    first = np.real(transform(np.array([complex(a, 0.0) / (2.0 * t)])))[0]
    partial = np.cumsum(np.append(first / 2.0, (-1.0) ** k * terms)) * math.exp(a / 2.0) / t
    weights = np.array([math.comb(m, j) for j in range(m + 1)]) / 2.0**m
    return float(weights @ partial[n : n + m + 1])


@pytest.mark.parametrize(("load", "percentiles"), [(0.2, (0.9, 0.99, 0.999)), (0.7, (0.9, 0.99)), (0.95, (0.2, 0.5))])
def test_constant_service_is_m_d_1(load: float, percentiles: tuple[float, ...]) -> None:
    distribution = mg1_wait_distribution(load, CONSTANT)
    assert distribution.mean_s == pytest.approx(pollaczek_khinchine_wait_s(load, 1.0, 0.0), rel=3e-3)
    for p in percentiles:
        assert md1_wait_cdf(load, distribution.quantile_s(p)) == pytest.approx(p, abs=0.02 * (1 - p) + 3e-4)


@pytest.mark.parametrize(("load", "shape"), [(0.4, 0.3), (0.85, 0.3), (0.4, 5.0), (0.85, 5.0)])
def test_gamma_service_by_transform_inversion(load: float, shape: float) -> None:
    def tail(s: np.ndarray) -> np.ndarray:
        service = (1.0 + s / shape) ** -shape
        wait = (1.0 - load) * s / (s - load * (1.0 - service))
        return (1.0 - wait) / s

    distribution = mg1_wait_distribution(load, sliced(lambda u: gammaincinv(shape, u)))
    for p in (0.9, 0.99, 0.999):
        assert euler_inverse(tail, distribution.quantile_s(p)) == pytest.approx(1.0 - p, rel=0.03)


def test_batches_are_burkes_formula() -> None:
    """Geometric batches of mean b: the wait of whole batches in M/G/1, and b - 1 services of companions first.

    Source: Burke, Operations Research 23 (1975) 830-833.
    """
    load, b = 0.6, 2.5
    batch_second = b * 1.0 + 2.0 * b * (b - 1.0)
    expected = load / b * batch_second / (2.0 * (1.0 - load)) + (b - 1.0)
    assert mg1_wait_distribution(load, CONSTANT, dispersion=2.0 * b - 1.0).mean_s == pytest.approx(expected, rel=2e-3)


def test_regular_arrivals_keep_the_variance_of_the_work() -> None:
    found = mg1_wait_distribution(0.9, EXPONENTIAL, dispersion=0.25)
    assert found.mean_s == pytest.approx(kingman_wait_s(0.9, 1.0, 0.25, 1.0), rel=0.01)


def test_nobody_waits_for_nobody() -> None:
    assert mg1_wait_distribution(0.0, EXPONENTIAL).mean_s == 0.0
