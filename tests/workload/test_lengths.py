"""Token lengths against brute force; every refusal says what to write instead."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.core import InputError
from planner.workload import (
    MAX_TOKENS,
    TokenLengths,
)

tokens = st.integers(min_value=1, max_value=10_000)
cells = st.lists(st.tuples(tokens, tokens, st.floats(min_value=0.01, max_value=100.0)), min_size=1, max_size=30)


def _from_cells(rows: list[tuple[int, int, float]]) -> TokenLengths:
    inputs, outputs, weights = zip(*rows, strict=True)
    return TokenLengths.from_pairs(inputs, outputs, weights)


@given(cells)
def test_lengths_are_a_distribution(rows: list[tuple[int, int, float]]) -> None:
    lengths = _from_cells(rows)
    assert lengths.probabilities.sum() == pytest.approx(1.0)
    assert min(r[0] for r in rows) <= lengths.mean_input * (1 + 1e-9)
    assert lengths.mean_input <= max(r[0] for r in rows) * (1 + 1e-9)
    assert lengths.max_total == max(r[0] + r[1] for r in rows)
    inputs, outputs, weights = zip(*rows, strict=True)  # pairs are checked as arrays, and not again as cells
    record = TokenLengths(input_tokens=inputs, output_tokens=outputs, weights=weights)
    assert (lengths, hash(lengths), lengths.inputs.tolist()) == (record, hash(record), record.inputs.tolist())
    assert lengths.probabilities.tolist() == record.probabilities.tolist()


@given(cells)
def test_mean_decode_context_by_walking_every_step(rows: list[tuple[int, int, float]]) -> None:
    """Sums the context of each decode step of each request one by one."""
    steps = contexts = 0.0
    for input_tokens, output_tokens, weight in rows:
        walked = np.arange(input_tokens + 1, input_tokens + output_tokens)
        steps += weight * walked.size
        contexts += weight * float(walked.sum())
    lengths = _from_cells(rows)
    expected = contexts / steps if steps else lengths.mean_input + 1.0
    assert lengths.mean_decode_context == pytest.approx(expected, rel=1e-9)


def test_one_token_answers_have_the_context_of_a_first_step() -> None:
    assert TokenLengths.constant(500, 1).mean_decode_context == 501.0


def test_weights_have_any_scale() -> None:
    light, heavy = TokenLengths.from_pairs([1, 9], [2, 4], [1, 3]), TokenLengths.from_pairs([1, 9], [2, 4], [1e6, 3e6])
    assert light.mean_input == heavy.mean_input == 7.0
    assert light.mean_output == heavy.mean_output == 3.5


def test_cells_without_weight_do_not_count() -> None:
    lengths = TokenLengths.from_pairs([10, 1000], [5, 1000], [1, 0])
    assert lengths.max_total == 15
    assert lengths.sample(50, seed=0)[0].max() == 10


def test_sampling_follows_the_weights() -> None:
    """20,000 draws of a 3 : 1 choice: five standard deviations of a binomial are 0.0153."""
    lengths = TokenLengths.from_pairs([100, 200], [10, 20], [3, 1])
    inputs, outputs = lengths.sample(20_000, seed=7)
    assert abs(float((inputs == 100).mean()) - 0.75) < 5 * math.sqrt(0.75 * 0.25 / 20_000)
    assert np.array_equal(inputs == 100, outputs == 10)
    assert np.array_equal(inputs, lengths.sample(20_000, seed=7)[0])


@pytest.mark.parametrize(
    ("inputs", "outputs", "weights", "line"),
    [
        ([5, 0], [1, 1], None, "input_tokens[1] = 0: must be a whole number of tokens >= 1"),
        ([5, 2.5], [1, 1], None, "input_tokens[1] = 2.5: must be a whole number"),
        ([10 * MAX_TOKENS], [1], None, "<= 100000000. Fix: drop or correct that request"),
        ([10**400], [1], None, "input_tokens = [1000"),
        (["many"], [1], None, "input_tokens = ['many']: must be numbers. Fix: give a flat list of numbers"),
        ([], [], None, "input_tokens = '[]': needs at least one cell. Fix: give the lengths of at least one request"),
        ([1, 2], [1], None, "lengths = [1, 2]: input_tokens, output_tokens and weights differ in number"),
        ([1], [1], [-1], "weights[0] = -1.0: must be finite and >= 0. Fix: drop that cell"),
        ([1, 1], [1, 1], [1e308, 1e308], "weights = inf: must sum to more than 0 and to a finite number"),
    ],
)
def test_lengths_refuse(inputs: list[float], outputs: list[float], weights: list[float] | None, line: str) -> None:
    with pytest.raises(InputError, match=re.escape(line)):
        TokenLengths.from_pairs(inputs, outputs, weights)


def test_lengths_refuse_fields_given_directly() -> None:
    with pytest.raises(InputError, match=re.escape("output_tokens[1] = 0: must be a whole number of tokens")):
        TokenLengths(input_tokens=(1, 1), output_tokens=(1, 0), weights=(1.0, 1.0))
    with pytest.raises(InputError, match=re.escape("weights[0] = nan: Input should be a finite number")):
        TokenLengths(input_tokens=(1,), output_tokens=(1,), weights=(math.nan,))


@given(cells, st.floats(0.8, 1.25), st.floats(0.8, 1.25))
def test_tilted_lengths_have_the_means_asked_for_and_are_the_same_lengths(
    rows: list[tuple[int, int, float]], inputs: float, outputs: float
) -> None:
    """Their probabilities over the old ones are an exponential of the lengths, which makes them the nearest such."""
    lengths = _from_cells(rows)
    tilted = lengths.tilted(inputs, outputs)
    if tilted is None:
        return
    assert tilted.mean_input == pytest.approx(inputs * lengths.mean_input, rel=1e-5)
    assert tilted.mean_output == pytest.approx(outputs * lengths.mean_output, rel=1e-5)
    assert tilted.input_tokens == lengths.input_tokens and tilted.max_total == lengths.max_total
    likely = tilted.probabilities > 1e-9
    logs = np.log(tilted.probabilities[likely] / lengths.probabilities[likely])
    of = np.stack([lengths.inputs[likely], lengths.outputs[likely], np.ones(logs.size)], axis=1) / 1e4
    left = logs - of @ np.linalg.lstsq(of, logs, rcond=None)[0]
    assert np.abs(left).max() < 1e-3 * max(np.abs(logs).max(), 1.0)


def test_lengths_that_cannot_have_means_are_not_tilted() -> None:
    assert TokenLengths.constant(1000, 100).tilted(1.1, 1.0) is None
    assert TokenLengths.from_pairs([500, 1000], [100, 100]).tilted(1.4, 1.0) is None  # beyond the longest
    assert TokenLengths.from_pairs([500, 1000], [100, 100]).tilted(1.2, 1.0) is not None
