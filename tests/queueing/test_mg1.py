"""The wait in M/G/1, and the classical closed forms, against tables, exact sums in high precision, and inversion."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, getcontext

import numpy as np
import pytest

from planner.queueing.mg1 import mg1_wait_distribution
from planner.workload import LatencyDistribution
from tests.queueing.classic_queues import (
    allen_cunneen_wait_s,
    erlang_b,
    erlang_c,
    kingman_wait_s,
    md1_wait_cdf,
    mdc_wait_s,
    mm1_sojourn_quantile_s,
    mmc_wait_cdf,
    mmc_wait_quantile_s,
    mmc_wait_s,
    pollaczek_khinchine_wait_s,
    processor_sharing_sojourn_s,
    whitt_wait_s,
)


def sliced(quantile: Callable[[np.ndarray], np.ndarray], points: int = 100_000) -> LatencyDistribution:
    values = quantile((np.arange(points) + 0.5) / points)
    return LatencyDistribution.from_samples(values / values.mean())


EXPONENTIAL = sliced(lambda u: -np.log1p(-u))


class TestErlang:
    @pytest.mark.parametrize(
        ("servers", "offered"), [(1, 0.0101), (5, 1.36), (10, 4.46), (20, 12.03), (50, 37.9), (100, 84.1)]
    )
    def test_loss_tables(self, servers: int, offered: float) -> None:
        # Traffic carried by N trunks at 1 % loss, as every table of Erlang B prints it (e.g. Cooper 1981, appendix).
        assert erlang_b(servers, offered) == pytest.approx(0.01, rel=0.02)

    def test_loss_equals_the_sum(self) -> None:
        terms = [10.0**k / math.factorial(k) for k in range(16)]
        assert erlang_b(15, 10.0) == pytest.approx(terms[-1] / sum(terms), rel=1e-12)

    def test_the_call_centre_example(self) -> None:
        # 200 calls an hour of 180 s and 14 agents: P(wait) 17.4 %, 88.8 % answered in 20 s, mean wait 7.8 s
        # (Call Centre Helper, "Erlang C formula made simple with an easy worked example").
        rate, service = 200.0 / 3600.0, 180.0
        assert erlang_c(14, 10.0 / 14.0) == pytest.approx(0.174, abs=5e-4)
        assert mmc_wait_cdf(rate, service, 14, 20.0) == pytest.approx(0.888, abs=5e-4)
        assert mmc_wait_s(rate, service, 14) == pytest.approx(7.8, abs=0.05)

    def test_erlang_c_from_erlang_b(self) -> None:
        # C = B / (1 - rho (1 - B)) (Cooper 1981, eq. 3.4.8).
        for servers, load in ((1, 0.3), (7, 0.8), (200, 0.97)):
            lost = erlang_b(servers, servers * load)
            assert erlang_c(servers, load) == pytest.approx(lost / (1.0 - load * (1.0 - lost)))

    def test_quantile_inverts_the_distribution(self) -> None:
        for p in (0.9, 0.99, 0.999):
            wait = mmc_wait_quantile_s(3.2, 1.0, 4, p)
            assert mmc_wait_cdf(3.2, 1.0, 4, wait) == pytest.approx(p)
        assert mmc_wait_quantile_s(3.2, 1.0, 4, 0.1) == 0.0
        # M/M/1: sojourn percentile over wait percentile differ by ln(rho) mean sojourns.
        gap = mm1_sojourn_quantile_s(0.8, 1.0, 0.99) - mmc_wait_quantile_s(0.8, 1.0, 1, 0.99)
        assert gap == pytest.approx(-5.0 * math.log(0.8))


class TestDeterministicService:
    @pytest.mark.parametrize("load", [0.1, 0.5, 0.8, 0.95])
    def test_erlangs_alternating_sum_in_exact_arithmetic(self, load: float) -> None:
        getcontext().prec = 120
        rho = Decimal(str(load))
        for wait in (0.0, 0.3, 1.0, 2.5, 7.25, 20.75):
            t, total = Decimal(str(wait)), Decimal(0)
            for k in range(int(wait) + 1):
                x = rho * (t - k)
                total += ((-x) ** k if k else Decimal(1)) / math.factorial(k) * x.exp()
            assert md1_wait_cdf(load, 1.0, wait) == pytest.approx(float((1 - rho) * total), abs=1e-9)

    def test_mean_is_pollaczek_khinchine(self) -> None:
        t = np.linspace(0.0, 200.0, 20_001)
        beyond = [1.0 - md1_wait_cdf(0.8, 1.0, float(x)) for x in t[:6001]]
        assert np.trapezoid(beyond, t[:6001]) == pytest.approx(pollaczek_khinchine_wait_s(0.8, 1.0, 0.0), rel=1e-3)

    @pytest.mark.parametrize("load", [0.2, 0.7, 0.95])
    def test_the_lattice_solves_m_d_1(self, load: float) -> None:
        distribution = mg1_wait_distribution(load, LatencyDistribution.constant(1.0))
        assert distribution.mean_s == pytest.approx(pollaczek_khinchine_wait_s(load, 1.0, 0.0), rel=3e-3)
        for p in (0.9, 0.99, 0.999):
            assert md1_wait_cdf(load, 1.0, distribution.quantile_s(p)) == pytest.approx(p, abs=0.02 * (1 - p) + 3e-4)


def euler_inverse(transform: Callable[[np.ndarray], np.ndarray], t: float) -> float:
    """P(W > t) from the Laplace transform of the tail: Abate and Whitt, ORSA J. Computing 7 (1995), EULER."""
    a, n, m = 18.4, 25, 12
    k = np.arange(1, n + m + 1)
    terms = np.real(transform(np.array([complex(a, 2.0 * np.pi * j) / (2.0 * t) for j in k])))
    first = np.real(transform(np.array([complex(a, 0.0) / (2.0 * t)])))[0]
    partial = np.cumsum(np.append(first / 2.0, (-1.0) ** k * terms)) * math.exp(a / 2.0) / t
    weights = np.array([math.comb(m, j) for j in range(m + 1)]) / 2.0**m
    return float(weights @ partial[n : n + m + 1])


class TestGeneralService:
    @pytest.mark.parametrize("load", [0.05, 0.5, 0.9, 0.98])
    def test_exponential_service_is_m_m_1(self, load: float) -> None:
        distribution = mg1_wait_distribution(load, EXPONENTIAL)
        assert distribution.mean_s == pytest.approx(mmc_wait_s(load, 1.0, 1), rel=3e-3)
        for p in (0.96, 0.99, 0.999):
            assert distribution.quantile_s(p) == pytest.approx(
                mmc_wait_quantile_s(load, 1.0, 1, p), rel=0.015, abs=1e-9
            )

    @pytest.mark.parametrize("shape", [0.3, 2.0, 5.0])
    @pytest.mark.parametrize("load", [0.4, 0.85])
    def test_gamma_service_by_transform_inversion(self, load: float, shape: float) -> None:
        from scipy.special import gammaincinv

        def tail(s: np.ndarray) -> np.ndarray:
            service = (1.0 + s / shape) ** -shape
            wait = (1.0 - load) * s / (s - load * (1.0 - service))
            return (1.0 - wait) / s

        distribution = mg1_wait_distribution(load, sliced(lambda u: gammaincinv(shape, u)))
        for p in (0.9, 0.99, 0.999):
            assert euler_inverse(tail, distribution.quantile_s(p)) == pytest.approx(1.0 - p, rel=0.03)

    def test_batches_are_burkes_formula(self) -> None:
        # Geometric batches of mean b: wait of M/G/1 for whole batches, and b - 1 services of companions before one's
        # own (Burke, Operations Research 23, 1975, 830-833).
        load, b = 0.6, 2.5
        batch_second = b * 1.0 + 2.0 * b * (b - 1.0)
        expected = load / b * batch_second / (2.0 * (1.0 - load)) + (b - 1.0)
        distribution = mg1_wait_distribution(load, LatencyDistribution.constant(1.0), dispersion=2.0 * b - 1.0)
        assert distribution.mean_s == pytest.approx(expected, rel=2e-3)

    def test_regular_arrivals_keep_the_variance_of_the_work(self) -> None:
        # Heavy traffic: (I + SCV) / 2 rho / (1 - rho) (Kingman).
        distribution = mg1_wait_distribution(0.9, EXPONENTIAL, dispersion=0.25)
        assert distribution.mean_s == pytest.approx(kingman_wait_s(0.9, 1.0, 0.25, 1.0), rel=0.01)

    def test_nobody_arrives(self) -> None:
        assert mg1_wait_distribution(0.0, EXPONENTIAL).mean_s == 0.0


class TestApproximations:
    def test_allen_cunneen_is_exact_where_it_should_be(self) -> None:
        assert allen_cunneen_wait_s(3.2, 1.0, 4, 1.0, 1.0) == pytest.approx(mmc_wait_s(3.2, 1.0, 4))
        assert allen_cunneen_wait_s(0.8, 1.0, 1, 1.0, 3.0) == pytest.approx(pollaczek_khinchine_wait_s(0.8, 1.0, 3.0))

    @pytest.mark.parametrize(("servers", "load"), [(1, 0.8), (2, 0.5), (8, 0.9), (32, 0.95)])
    def test_whitt_is_exact_for_m_m_c_and_cosmetatos_for_m_d_c(self, servers: int, load: float) -> None:
        rate = servers * load
        assert whitt_wait_s(rate, 1.0, servers, 1.0, 1.0) == pytest.approx(mmc_wait_s(rate, 1.0, servers))
        assert whitt_wait_s(rate, 1.0, servers, 1.0, 0.0) == pytest.approx(mdc_wait_s(rate, 1.0, servers))
        assert whitt_wait_s(servers * load, 1.0, servers, 0.0, 0.0) == 0.0

    @pytest.mark.parametrize(("load", "within"), [(0.5, 0.25), (0.8, 0.06), (0.95, 0.01)])
    def test_whitt_for_d_m_1(self, load: float, within: float) -> None:
        # D/M/1 exactly: sigma = exp(-(1 - sigma) / rho), wait sigma / (1 - sigma) (Kleinrock I, section 6.3).
        sigma = 0.5
        for _ in range(500):
            sigma = math.exp(-(1.0 - sigma) / load)
        assert whitt_wait_s(load, 1.0, 1, 0.0, 1.0) == pytest.approx(sigma / (1.0 - sigma), rel=within)

    def test_heavy_traffic_is_kingman(self) -> None:
        assert whitt_wait_s(0.999, 1.0, 1, 0.5, 2.0) == pytest.approx(kingman_wait_s(0.999, 1.0, 0.5, 2.0), rel=0.01)

    def test_processor_sharing_slows_all_alike(self) -> None:
        assert processor_sharing_sojourn_s(3.0, 0.5) == 2.0 * 3.0
        # Exponential work: the mean over all is that of M/M/1, whatever the order of service.
        assert processor_sharing_sojourn_s(1.0, 0.8) == pytest.approx(1.0 + mmc_wait_s(0.8, 1.0, 1))
