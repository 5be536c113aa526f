"""Condensed lengths keep their moments; slices of a sample keep its mean and never split a value."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.traffic import load_lengths
from planner.workload import condensed_lengths, probability_slices, tail_edges

AZURE = load_lengths("azure-2023-conv")


def test_lengths_are_condensed_without_losing_moments() -> None:
    condensed = condensed_lengths(AZURE)
    assert condensed.mean_prompt == pytest.approx(AZURE.mean_input)
    assert condensed.mean_gaps == pytest.approx(AZURE.mean_output - 1.0)
    assert condensed.prompt_second_moment == pytest.approx(float(AZURE.inputs**2 @ AZURE.probabilities))
    assert condensed.gap_groups.sum(axis=1) == pytest.approx(np.ones(condensed.gaps.size + 1))
    assert condensed.groups @ condensed.group_weights == pytest.approx(AZURE.mean_input)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.floats(0.01, 10.0)), min_size=1, max_size=60),
    st.integers(1, 20),
)
def test_slices_keep_the_mean_and_split_no_value(sample: list[tuple[int, float]], count: int) -> None:
    values, weights = (np.array(column, dtype=np.float64) for column in zip(*sample, strict=True))
    slices = probability_slices(values, weights, tail_edges(count))
    assert slices.weights.sum() == pytest.approx(1.0)
    assert slices.means @ slices.weights == pytest.approx(np.average(values, weights=weights))
    for value in np.unique(values):
        assert np.unique(slices.member[values == value]).size == 1


def test_few_values_come_back_unchanged() -> None:
    slices = probability_slices(np.array([9.0, 1.0]), np.array([1.0, 3.0]), tail_edges(24))
    assert slices.means.tolist() == [1.0, 9.0]
    assert slices.weights.tolist() == [0.75, 0.25]
