"""Histograms against documented examples; lengths from buckets: exact where the histogram is, else near."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.core import InputError
from planner.traffic import load_lengths
from planner.traffic.histograms import Histogram, bucket_lengths, histogram_of, joint_lengths, mean_lengths
from planner.traffic.prometheus_series import Series, read_series

ONE_TWO_FIVE = [float(m * 10**e) for e in range(6) for m in (1, 2, 5) if m * 10**e <= 131_072]
"""Edges of vLLM's length histograms for max_model_len 131072 (`build_1_2_5_buckets`)."""


def _read(text: str) -> tuple[Series, ...]:
    return read_series(io.StringIO(text))


@pytest.mark.parametrize(
    ("edges", "counts", "p", "quantile"),
    [
        # https://clickhouse.com/docs/sql-reference/aggregate-functions/reference/quantilePrometheusHistogram
        ([0.0, 0.5, 1.0, math.inf], [6.0, 5.0, 3.0, 5.0], 0.5, 0.35),
        ([1.0, 2.0, math.inf], [0.0, 4.0, 0.0], 0.25, 1.25),
        ([1.0, 2.0, math.inf], [2.0, 2.0, 6.0], 0.9, 2.0),  # in the last bucket: its lower edge
        ([10.0, math.inf], [4.0, 0.0], 0.5, 5.0),  # the first bucket begins at 0
    ],
)
def test_quantiles_are_those_of_histogram_quantile(
    edges: list[float], counts: list[float], p: float, quantile: float
) -> None:
    assert Histogram(np.array(edges), np.array(counts), 1.0).quantile(p) == pytest.approx(quantile)


def test_histograms_add_over_labels() -> None:
    page = "".join(
        f'h_bucket{{le="{edge}",engine="{engine}"}} {count}\n'
        for engine in "01"
        for edge, count in (("10.0", 3), ("20.0", 4), ("+Inf", 5))
    )
    page += 'h_sum{engine="0"} 60\nh_sum{engine="1"} 40\nh_count{engine="0"} 5\nh_count{engine="1"} 5\n'
    histogram = histogram_of(_read(page), "h", lambda series: float(series.values[0]))
    assert histogram is not None
    assert (histogram.edges.tolist(), histogram.counts.tolist()) == ([10.0, 20.0, math.inf], [6.0, 2.0, 2.0])
    assert (histogram.count, histogram.mean) == (10.0, 10.0)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ('h_bucket{le="x"} 1\nh_sum 1\nh_count 1\n', "has no upper end le"),
        ('h_bucket{le="1"} 5\nh_bucket{le="2"} 3\nh_sum 9\nh_count 5\n', "counts fewer up to a higher edge"),
        ('h_bucket{le="1"} 5\nh_count 5\n', "h_sum = .*the mean is the sum over the count"),
    ],
)
def test_broken_histograms_are_refused(page: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        histogram_of(_read(page), "h", lambda series: float(series.values[0]))


def _counted(lengths: np.ndarray, edges: list[float] = ONE_TWO_FIVE) -> Histogram:
    """What Prometheus would count: observations of at most each edge."""
    places = np.searchsorted(edges, lengths, side="left")
    return Histogram(np.array([*edges, math.inf]), np.bincount(places, minlength=len(edges) + 1) * 1.0, lengths.sum())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 300_000), min_size=1, max_size=60))
def test_bucket_counts_and_mean_of_any_lengths_are_met(lengths: list[int]) -> None:
    """Invariant: what the histogram knows exactly stays exact."""
    histogram = _counted(np.array(lengths, dtype=np.float64))
    found = bucket_lengths(histogram)
    assert found.mean == pytest.approx(histogram.mean, rel=2e-6)
    places = np.searchsorted(histogram.edges, found.tokens, side="left")
    assert np.bincount(places, found.weights, histogram.edges.size) == pytest.approx(histogram.counts, abs=1e-6)
    assert (found.tokens >= 1).all()
    assert (found.tokens == np.round(found.tokens)).all()


@pytest.mark.parametrize("name", ["azure-2023-conv", "azure-2023-code", "mooncake-conversation"])
def test_measured_lengths_survive_their_histogram(name: str) -> None:
    """Public traces through vLLM's buckets: means exact, deviations within 20 %, percentiles within their bucket."""
    distribution = load_lengths(name)
    for lengths in distribution.sample(20_000, seed=3):
        histogram = _counted(lengths.astype(np.float64))
        found = bucket_lengths(histogram)
        assert found.mean == pytest.approx(lengths.mean(), rel=1e-6)
        deviation = math.sqrt(float(found.weights @ (found.tokens - found.mean) ** 2 / found.weights.sum()))
        assert deviation == pytest.approx(lengths.std(), rel=0.2)
        order = np.argsort(found.tokens)
        shares = np.cumsum(found.weights[order]) / found.weights.sum()
        for p in (0.5, 0.9, 0.99):
            true = np.quantile(lengths, p, method="inverted_cdf")
            near = found.tokens[order][np.searchsorted(shares, p - 1e-9)]
            assert np.searchsorted(ONE_TWO_FIVE, near) == np.searchsorted(ONE_TWO_FIVE, true)


def test_constant_lengths_at_an_edge_are_found() -> None:
    """A benchmark of 1000 tokens falls on the edge of its bucket: only the mean can tell."""
    found = bucket_lengths(_counted(np.full(50, 1000.0)))
    assert found.tokens.tolist() == [1000.0]


def test_lengths_spread_evenly_stay_even() -> None:
    """Limit: 101 to 200 tokens alike has the mean of the middle lengths, so nothing is tilted."""
    found = bucket_lengths(_counted(np.arange(101.0, 201.0), [100.0, 200.0, 300.0]))
    assert found.weights == pytest.approx(np.full(found.weights.size, found.weights[0]), rel=1e-3)


def test_the_last_bucket_reaches_as_far_as_it_is_said_or_needed() -> None:
    few = Histogram(np.array([100.0, math.inf]), np.array([0.0, 10.0]), 1300.0)
    assert bucket_lengths(few).tokens.max() <= 200.0  # twice the last edge
    assert bucket_lengths(few, max_tokens=1000).tokens.max() > 800.0
    long = Histogram(np.array([100.0, math.inf]), np.array([0.0, 10.0]), 50_000.0)
    assert bucket_lengths(long).mean == pytest.approx(5000.0)


@pytest.mark.parametrize(
    ("total", "said"),
    [(100.0, "lies outside what the buckets allow"), (1e7, "lies outside what the buckets allow")],
)
def test_sums_that_contradict_the_buckets_are_refused(total: float, said: str) -> None:
    with pytest.raises(InputError, match=said):
        bucket_lengths(Histogram(np.array([100.0, 200.0, math.inf]), np.array([0.0, 10.0, 0.0]), total))


def test_the_joint_distribution_has_both_means_and_no_correlation() -> None:
    inputs, outputs = (bucket_lengths(_counted(x * 1.0)) for x in load_lengths("azure-2023-conv").sample(4000, seed=4))
    distribution = joint_lengths(inputs, outputs, "test")
    assert distribution.mean_input == pytest.approx(inputs.mean, rel=1e-9)
    assert distribution.mean_output == pytest.approx(outputs.mean, rel=1e-9)
    product = float((distribution.inputs * distribution.outputs) @ distribution.probabilities)
    assert product == pytest.approx(inputs.mean * outputs.mean, rel=1e-9)
    assert len(distribution.weights) <= 2000


def test_many_buckets_still_fit_a_scenario() -> None:
    """SGLang has 30 edges; the product of both distributions is brought down to 2000 cells."""
    edges = [float(edge) for edge in range(100, 4000, 100)]
    lengths = np.random.default_rng(0).integers(1, 3900, 5000) * 1.0
    marginal = bucket_lengths(_counted(lengths, edges))
    distribution = joint_lengths(marginal, marginal, "test")
    assert len(distribution.weights) <= 2000
    assert distribution.mean_input == pytest.approx(lengths.mean(), rel=1e-3)


def test_a_mean_below_one_token_is_one_token() -> None:
    assert mean_lengths(0.3).tokens.tolist() == [1.0]
