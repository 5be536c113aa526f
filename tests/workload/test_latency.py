"""The distribution type against numpy and closed forms."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.core import InputError
from planner.workload import JointDistribution, LatencyDistribution

SAMPLES = st.lists(st.floats(0.0, 1e3, allow_subnormal=False), min_size=1, max_size=200)


@given(SAMPLES, st.floats(0.01, 1.0))
def test_quantiles_are_the_inverted_empirical_cdf(samples: list[float], probability: float) -> None:
    ours = LatencyDistribution.from_samples(samples)
    assert ours.quantile_s(probability) == np.quantile(samples, probability - 1e-12, method="inverted_cdf")


@given(SAMPLES)
def test_moments_are_numpys(samples: list[float]) -> None:
    ours = LatencyDistribution.from_samples(samples)
    assert ours.mean_s == pytest.approx(np.mean(samples), abs=1e-9)
    assert ours.std_s == pytest.approx(np.std(samples), abs=1e-6)


@given(SAMPLES, st.floats(0.0, 1e3))
def test_cdf_counts(samples: list[float], at: float) -> None:
    expected = np.mean(np.asarray(samples) <= at)
    assert LatencyDistribution.from_samples(samples).cdf(at) == pytest.approx(expected)


def test_sum_of_two_exponentials_is_erlang() -> None:
    # Erlang-2 with rate 1: mean 2, P(X <= t) = 1 - (1 + t) exp(-t).
    probabilities = (np.arange(20_000) + 0.5) / 20_000
    exponential = LatencyDistribution.from_samples(-np.log1p(-probabilities))
    total = LatencyDistribution.independent_sum(exponential, exponential)
    assert total.mean_s == pytest.approx(2.0, rel=1e-3)
    for p in (0.5, 0.9, 0.99):
        t = total.quantile_s(p)
        assert 1 - (1 + t) * math.exp(-t) == pytest.approx(p, abs=0.004)


@settings(max_examples=15)  # of lists that take long to draw
@given(st.lists(st.floats(0.0, 100.0, allow_subnormal=False), min_size=300, max_size=600))
def test_condensing_keeps_the_mean_and_moves_no_quantile_past_its_slice(samples: list[float]) -> None:
    full = LatencyDistribution.from_samples(samples)
    small = full.condensed(64)
    assert small.support_s.size == 64
    assert small.mean_s == pytest.approx(full.mean_s, abs=1e-9)
    assert small.quantile_s(0.5) <= full.quantile_s(0.5 + 1 / 64) + 1e-9
    assert small.quantile_s(0.5) >= full.quantile_s(0.5 - 1 / 64) - 1e-9


def test_mixture_weights_its_parts() -> None:
    parts = [(LatencyDistribution.constant(1.0), 3.0), (LatencyDistribution.constant(5.0), 1.0)]
    mixed = LatencyDistribution.mixture(parts)
    assert mixed.mean_s == 2.0
    assert mixed.cdf(1.0) == 0.75
    assert (
        LatencyDistribution.mixture(
            [(LatencyDistribution.constant(1.0), 1.0), (LatencyDistribution.constant(5.0), 0.0)]
        ).mean_s
        == 1.0
    )


def test_an_unstable_queue_never_meets_anything() -> None:
    never = LatencyDistribution.unbounded()
    assert never.quantile_s(0.01) == math.inf
    assert never.mean_s == math.inf
    assert never.std_s == math.inf
    assert never.cdf(1e12) == 0.0
    assert LatencyDistribution.independent_sum(never, LatencyDistribution.constant(1.0)).mean_s == math.inf
    assert LatencyDistribution.mixture([(never, 0.5), (LatencyDistribution.constant(1.0), 0.5)]).mean_s == math.inf


@pytest.mark.parametrize(
    ("samples", "weights", "text"),
    [
        ([], None, "at least one sample"),
        ([1.0], [1.0, 2.0], "one weight each"),
        ([math.nan], None, "must be finite"),
        ([1.0], [-1.0], "must be >= 0 and sum"),
    ],
)
def test_bad_samples_are_named(samples: list[float], weights: list[float] | None, text: str) -> None:
    with pytest.raises(InputError, match=text):
        LatencyDistribution.from_samples(samples, weights)


@pytest.mark.parametrize("probability", [0.0, math.nan])
def test_a_percentile_is_a_probability(probability: float) -> None:
    with pytest.raises(InputError, match=r"percentile = .*: must lie in \(0, 1\]. Fix: write 0.99 for p99"):
        LatencyDistribution.constant(1.0).quantile_s(probability)


def test_levels_are_drawn_together() -> None:
    """Half of the requests come at a level where both are short, half where both are long: never one of each."""
    calm, busy = (LatencyDistribution.from_samples([x, 2.0 * x]) for x in (1.0, 10.0))
    alone = JointDistribution.independent(calm, calm)
    both = replace(
        alone,
        first_s=np.array([[1.0, 2.0, 10.0, 20.0]]),
        first_mass=np.full(4, 0.25),
        token_s=np.array([[1.0, 2.0, 10.0, 20.0]]),
        token_mass=np.full(4, 0.25),
        levels=2,
    )
    for ttft_s, tpot_s in ((1.0, 1.0), (5.0, 5.0), (5.0, 15.0), (15.0, 15.0), (30.0, 15.0), (30.0, 30.0)):
        apart = [JointDistribution.independent(level, level).within(ttft_s, tpot_s) for level in (calm, busy)]
        assert both.within(ttft_s, tpot_s) == pytest.approx(sum(apart) / 2.0)
