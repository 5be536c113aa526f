"""Clocks of areas and times on the way, against exponentials in closed form and drawn requests."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.core import InputError
from planner.traffic import AreaDemand, DemandProfile, network_time, utc_factors
from planner.workload import LatencyDistribution

DAY = DemandProfile(factors=tuple(float(hour) for hour in range(24)))


@pytest.mark.parametrize("offset", [-8.0, 0.0, 5.5, 13.0])
def test_shifting_clocks_keeps_the_requests_of_a_day(offset: float) -> None:
    factors = utc_factors(DAY, offset)
    assert math.fsum(factors) == pytest.approx(24.0)
    assert len(factors) == 24


def test_clocks_a_whole_day_apart_agree() -> None:
    assert utc_factors(DAY, 12.0) == utc_factors(DAY, -12.0)


def test_midnight_of_tokyo_is_three_in_the_afternoon_in_utc() -> None:
    assert utc_factors(DAY, 9.0)[15] == 0.0


def test_a_week_or_half_hours_are_refused() -> None:
    with pytest.raises(InputError, match="24 factors"):
        AreaDemand(rate_per_s=1.0, hours=DemandProfile(factors=(1.0,) * 168))


@pytest.mark.parametrize("percentile", [0.5, 0.9, 0.99])
def test_access_is_exponential(percentile: float) -> None:
    """Quantile of a shifted exponential: d - m ln(1 - q), Ross, Introduction to Probability Models, ch. 5."""
    time = network_time(0.080, 0.030)
    assert time.quantile_s(percentile) == pytest.approx(0.080 - 0.030 * math.log(1.0 - percentile), rel=0.01)
    assert time.mean_s == pytest.approx(0.110)


@pytest.mark.parametrize("new_connections", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("percentile", [0.5, 0.9, 0.99])
def test_ttft_at_the_user_is_that_of_drawn_requests(percentile: float, new_connections: float) -> None:
    """Each drawn request waits for its pool and for its own way there and back; within 2 %."""
    draw = np.random.default_rng(3)
    pool_s = draw.lognormal(-1.5, 0.7, 400_000)
    trip_s = 0.150 + draw.exponential(0.020, pool_s.size)
    trips = 1 + 2 * (draw.random(pool_s.size) < new_connections)
    seen_s = np.quantile(pool_s + trips * trip_s, percentile)
    pool = LatencyDistribution.from_samples(draw.lognormal(-1.5, 0.7, 400_000))
    at_user = LatencyDistribution.independent_sum(pool, network_time(0.150, 0.020, new_connections))
    assert at_user.quantile_s(percentile) == pytest.approx(seen_s, rel=0.02)
