"""Compressed lengths against the uncompressed distribution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.traffic.compression import compress
from planner.workload import MAX_TOKENS, TokenLengths
from tests.traffic.weighted_statistics import correlation, quantile


def _random_lengths(seed: int, count: int = 30_000) -> TokenLengths:
    """Heavy-tailed, correlated, with a spike, as traces are."""
    rng = np.random.default_rng(seed)
    shared_part = rng.normal(size=count)
    inputs = np.exp(6.5 + 1.2 * (0.6 * shared_part + 0.8 * rng.normal(size=count)))
    outputs = np.exp(4.8 + 0.9 * (0.6 * shared_part + 0.8 * rng.normal(size=count)))
    inputs = np.where(rng.random(count) < 0.1, 4096, inputs)
    return TokenLengths.from_pairs(np.ceil(inputs), np.ceil(outputs), rng.integers(1, 4, count))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_compress_keeps_the_distribution(seed: int) -> None:
    full = _random_lengths(seed)
    small = compress(full)
    assert len(small.weights) <= 2000
    assert sum(small.weights) == pytest.approx(sum(full.weights), rel=1e-12)
    assert small.mean_input == pytest.approx(full.mean_input, rel=1e-3)
    assert small.mean_output == pytest.approx(full.mean_output, rel=1e-3)
    assert correlation(small) == pytest.approx(correlation(full), abs=0.01)
    assert small.mean_decode_context == pytest.approx(full.mean_decode_context, rel=0.005)
    for probability in (0.5, 0.9, 0.95, 0.99):
        for axis in ("inputs", "outputs"):
            kept = quantile(getattr(small, axis), np.asarray(small.weights), probability)
            exact = quantile(getattr(full, axis), np.asarray(full.weights), probability)
            assert kept == pytest.approx(exact, rel=0.02)


pairs = st.tuples(
    st.integers(min_value=1, max_value=MAX_TOKENS),
    st.integers(min_value=1, max_value=3000),
    st.floats(min_value=0.0, max_value=1e6, allow_subnormal=False),
)


@given(st.lists(pairs, min_size=1, max_size=400), st.integers(min_value=100, max_value=150))
def test_compress_keeps_totals(rows: list[tuple[int, int, float]], cells: int) -> None:
    """Total weight, both means to half of the heaviest cell, and the ranges, whatever the distribution."""
    inputs, outputs, weights = zip(*rows, strict=True)
    if not any(weights):
        return
    full = TokenLengths.from_pairs(inputs, outputs, weights)
    small = compress(full, cells)
    assert len(small.weights) <= cells
    assert sum(small.weights) == pytest.approx(sum(weights), rel=1e-9)
    slack = float(small.probabilities.max()) / 2.0
    assert abs(small.mean_input - full.mean_input) <= slack + 1e-9 * full.mean_input
    assert abs(small.mean_output - full.mean_output) <= slack + 1e-9 * full.mean_output
    assert min(small.input_tokens) >= min(inputs)
    assert max(small.output_tokens) <= max(outputs)


def test_few_pairs_are_kept_exactly() -> None:
    full = TokenLengths.from_pairs([5, 5, 9, 5], [1, 2, 3, 1], [1.0, 2.0, 3.0, 4.0])
    small = compress(full, 100)
    assert dict(zip(zip(small.input_tokens, small.output_tokens, strict=True), small.weights, strict=True)) == {
        (5, 1): 5.0,
        (5, 2): 2.0,
        (9, 3): 3.0,
    }


def test_compress_does_not_depend_on_the_order() -> None:
    full = _random_lengths(4, 5000)
    shuffled = np.random.default_rng(0).permutation(5000)
    other = TokenLengths.from_pairs(full.inputs[shuffled], full.outputs[shuffled], np.asarray(full.weights)[shuffled])
    assert compress(full, 500) == compress(other, 500)
