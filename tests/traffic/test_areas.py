"""Clocks of areas and times on the way, against exponentials in closed form and drawn requests."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from planner.core import InputError
from planner.traffic import AreaDemand, AreaTerms, DemandProfile, network_time, utc_factors
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


# --- fixed lines and phones -------------------------------------------------------------------------------------------

FIXED_AND_MOBILE = {"fixed": {"mean_ms": 28.0, "share": 0.6}, "mobile": {"mean_ms": 70.0, "share": 0.4}}
"""Means of cable and LTE in WebPageTest (www/settings/connectivity.ini.sample); the shares are made up."""


def mixed(**more: Any) -> AreaTerms:
    return AreaTerms(**{"access_ms": FIXED_AND_MOBILE, **more})


@pytest.mark.parametrize("percentile", [0.5, 0.9, 0.99])
def test_quantiles_of_mixed_lines_solve_their_closed_form(percentile: float) -> None:
    """Longer than d + t with probability sum p_k exp(-t / m_k), the tail of a hyperexponential, solved by bisection."""
    low_s, high_s = 0.0, 5.0
    for _ in range(60):
        middle_s = (low_s + high_s) / 2.0
        beyond = 0.6 * math.exp(-middle_s / 0.028) + 0.4 * math.exp(-middle_s / 0.070)
        low_s, high_s = (middle_s, high_s) if beyond > 1.0 - percentile else (low_s, middle_s)
    assert mixed().network_time(0.080).quantile_s(percentile) == pytest.approx(0.080 + low_s, rel=0.01)
    assert mixed().network_time(0.080).mean_s == pytest.approx(0.080 + 0.6 * 0.028 + 0.4 * 0.070)


@pytest.mark.parametrize("new_connections", [0.0, 0.3])
@pytest.mark.parametrize("percentile", [0.5, 0.9, 0.99])
def test_ttft_over_mixed_lines_is_that_of_drawn_requests(percentile: float, new_connections: float) -> None:
    """Each drawn request has a line, fixed or mobile, and waits for its pool and its own way; within 2 %."""
    draw = np.random.default_rng(5)
    pool_s = draw.lognormal(-1.5, 0.7, 400_000)
    mean_s = np.where(draw.random(pool_s.size) < 0.4, 0.070, 0.028)
    trips = 1 + 2 * (draw.random(pool_s.size) < new_connections)
    seen_s = np.quantile(pool_s + trips * (0.150 + draw.exponential(mean_s)), percentile)
    pool = LatencyDistribution.from_samples(draw.lognormal(-1.5, 0.7, 400_000))
    way = mixed(new_connections=new_connections).network_time(0.150)
    assert LatencyDistribution.independent_sum(pool, way).quantile_s(percentile) == pytest.approx(seen_s, rel=0.02)


def test_lines_that_are_alike_are_one_mean() -> None:
    alike = {"fixed": {"mean_ms": 30, "share": 0.5}, "mobile": {"mean_ms": 30, "share": 0.5}}
    one, two = AreaTerms(access_ms=30.0).network_time(0.1), mixed(access_ms=alike).network_time(0.1)
    assert [two.quantile_s(q) for q in (0.5, 0.99)] == pytest.approx([one.quantile_s(q) for q in (0.5, 0.99)])


@pytest.mark.parametrize(
    "written",
    ["fixed 60 % at 28 ms, mobile 40 % at 70 ms", "fixed 60% at 28ms,mobile 40% at 70ms", mixed().access_text],
)
def test_lines_are_read_in_words(written: str) -> None:
    assert mixed(access_ms=written) == mixed()
    assert [mixed(access_ms=mean).access_ms for mean in ("35", "35 ms", 35)] == [35.0] * 3


@pytest.mark.parametrize(
    ("access_ms", "field"),
    [
        (-1.0, "access_ms"),
        (20_000.0, "access_ms"),
        ("soon", "access_ms"),
        (None, "access_ms"),
        ([20.0, 40.0], "access_ms"),
        ({}, "access_ms"),
        ({str(line): {"mean_ms": 20.0, "share": 0.01} for line in range(100)}, "access_ms"),
        ("fixed 60 % at 28 ms, mobile 30 % at 70 ms", "access_ms"),
        ("fixed 60 % at 28 ms, fixed 40 % at 70 ms", "access_ms"),
        ({**FIXED_AND_MOBILE, "satellite": {"mean_ms": 600.0, "share": 0.1}}, "access_ms"),
        ({**FIXED_AND_MOBILE, "mobile": {"mean_ms": 70.0, "share": -0.4}}, "access_ms.mobile.share"),
        ({**FIXED_AND_MOBILE, "mobile": {"mean_ms": -70.0, "share": 0.4}}, "access_ms.mobile.mean_ms"),
        ({**FIXED_AND_MOBILE, "mobile": {"mean": 70.0, "share": 0.4}}, "access_ms.mobile.mean"),
        ({**FIXED_AND_MOBILE, "mobile": 70.0}, "access_ms.mobile"),
    ],
)
def test_an_access_network_that_cannot_be_is_refused_by_its_field(access_ms: object, field: str) -> None:
    with pytest.raises(InputError) as refused:
        mixed(access_ms=access_ms)
    assert refused.value.field == field
    assert refused.value.fix
