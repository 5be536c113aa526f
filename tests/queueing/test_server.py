"""Steps of sequences with other contexts, against sums of contexts that are drawn."""

from __future__ import annotations

import numpy as np
import pytest

from planner.queueing import BatchServer, decode_pool
from planner.queueing.distributions import slice_means
from planner.queueing.server import CONTEXT_EDGES, ContextSpread, spread_by_contexts, step_durations_s
from planner.workload import ArrivalProcess, TokenLengths

MASS = np.diff(CONTEXT_EDGES)
PER_CONTEXT_S = 0.002


def spread(scv: float) -> ContextSpread:
    """Each sequence adds a time of its own, 2 ms on average."""
    return ContextSpread(lambda n: PER_CONTEXT_S * np.sqrt(scv * n), scv)


@pytest.mark.parametrize("running", [1, 4, 64])
def test_slices_are_those_of_gamma_distributed_contexts(running: int) -> None:
    drawn = np.random.default_rng(7).gamma(running / 0.8, 0.8, 400_000) * PER_CONTEXT_S
    expected = slice_means(drawn - drawn.mean(), np.ones_like(drawn), CONTEXT_EDGES)
    expected *= drawn.std() / np.sqrt(expected**2 @ MASS)
    got = spread(0.8).noise_s(np.array([float(running)]))[0]
    assert got == pytest.approx(expected, abs=0.12 * drawn.std())


@pytest.mark.parametrize("scv", [0.0, 1e-9, 1.0, 60.0, 100.0, 1e4, 1e12])
def test_contexts_however_rare_the_long_ones_add_a_mean_of_zero_and_take_no_more_than_they_had(scv: float) -> None:
    """One request in 10^9 that runs for 10^5 steps has such an SCV; most steps hold none."""
    counts = np.array([1.0, 2.0, 50.0, 4096.0])
    noise_s = spread(scv).noise_s(counts)
    deviations, wanted = np.sqrt(noise_s**2 @ MASS), PER_CONTEXT_S * np.sqrt(scv * counts)
    assert np.all(np.abs(noise_s @ MASS) <= 1e-12 * (wanted + PER_CONTEXT_S))
    assert np.all(deviations <= wanted * (1.0 + 1e-12))
    assert np.all(noise_s.min(axis=1) >= -1.1 * PER_CONTEXT_S * counts)
    mild = scv <= 60.0 * counts
    assert deviations[mild] == pytest.approx(wanted[mild])


def test_the_mean_stays_and_the_variance_is_added() -> None:
    counts, shares = np.arange(1.0, 9.0), np.full(8, 1.0 / 8.0)
    steps = 0.01 + 0.002 * counts
    mass, (curve,) = spread_by_contexts((steps,), shares, spread(0.5).noise_s(counts))
    assert curve @ mass == pytest.approx(steps @ shares)
    variance = (curve - curve @ mass) ** 2 @ mass
    own = PER_CONTEXT_S**2 * 0.5 * counts.mean()
    assert variance == pytest.approx((steps - steps.mean()) ** 2 @ shares + own)
    assert np.all(np.diff(curve) >= 0.0)


def test_no_spread_changes_nothing() -> None:
    counts = np.arange(1.0, 5.0)
    given = counts / 10.0
    shares, (curve,) = spread_by_contexts((counts,), given, None)
    assert shares is given and curve is counts


def test_a_decode_pool_tells_requests_with_long_neighbours_apart() -> None:
    """With so few steps that nobody leaves meanwhile, TPOT varies as the sum of the contexts does."""

    def pool(contexts: ContextSpread | None) -> float:
        server = BatchServer(lambda n, p: 0.02 + PER_CONTEXT_S * n + 0.0 * p, 64, 64, contexts=contexts)
        tpot = decode_pool(server, ArrivalProcess(rate_per_s=5.0), TokenLengths.constant(100, 61)).tpot
        points = np.array([tpot.quantile_s(q) for q in np.linspace(0.005, 0.995, 100)])
        return float(points.std())

    assert pool(spread(2.0)) > 1.2 * pool(None)


def test_a_step_beside_less_than_one_keeps_to_its_budget() -> None:
    """Steps of more tokens than a CUDA graph holds take twice as long, and a budget of 512 never has them."""
    server = BatchServer(lambda n, p: np.where(n + p > 512.0, 0.04, 0.02), 512, 64)
    assert step_durations_s(server, np.array([0.0, 0.4, 1.0]), np.array([512.0, 511.6, 511.0])) == pytest.approx(0.02)
