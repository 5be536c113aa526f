"""Lengths, arrivals and targets against brute force and renewal theory; every refusal says what to write instead."""

from __future__ import annotations

import math
import re
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.core import InputError, Metric
from planner.workload import (
    MAX_TOKENS,
    ArrivalProcess,
    ClosedLoop,
    LatencyTarget,
    RequestClass,
    Slo,
    TokenLengths,
    Workload,
)

# --- lengths --------------------------------------------------------------------------------------------------------

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
    assert lengths == _from_cells(rows)
    assert hash(lengths) == hash(_from_cells(rows))


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


def test_two_thousand_cells_build_in_two_milliseconds() -> None:
    rng = np.random.default_rng(0)
    pairs = rng.integers(1, 9000, size=(2, 2000))
    fields = TokenLengths.from_pairs(pairs[0], pairs[1]).model_dump()

    def once() -> float:
        start = time.perf_counter()
        TokenLengths(**fields)
        return time.perf_counter() - start

    assert min(once() for _ in range(30)) < 2e-3


def test_arrays_cannot_be_changed() -> None:
    lengths = TokenLengths.constant(10, 10)
    with pytest.raises(ValueError, match="read-only"):
        lengths.inputs[0] = 1.0


@pytest.mark.parametrize(
    ("inputs", "outputs", "weights", "line"),
    [
        ([5, 0], [1, 1], None, "input_tokens[1] = 0: must be a whole number of tokens >= 1"),
        ([5], [-3], None, "output_tokens[0] = -3: must be a whole number"),
        ([5, 2.5], [1, 1], None, "input_tokens[1] = 2.5: must be a whole number"),
        ([math.nan], [1], None, "input_tokens[0] = nan: must be a whole number"),
        ([10 * MAX_TOKENS], [1], None, "<= 100000000. Fix: drop or correct that request"),
        ([10**400], [1], None, "input_tokens = [1000"),
        (["many"], [1], None, "input_tokens = ['many']: must be numbers. Fix: give a flat list of numbers"),
        ([], [], None, "input_tokens = '[]': needs at least one cell. Fix: give the lengths of at least one request"),
        ([1, 2], [1], None, "lengths = [1, 2]: input_tokens, output_tokens and weights differ in number"),
        ([1, 2], [1, 2], [1], "lengths = [1, 2]: input_tokens, output_tokens and weights differ in number"),
        ([1], [1], [-1], "weights[0] = -1.0: must be finite and >= 0. Fix: drop that cell"),
        ([1], [1], [math.inf], "weights[0] = inf: must be finite and >= 0"),
        ([1], [1], [0], "weights = 0.0: must sum to more than 0"),
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


# --- arrivals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scv", [0.04, 0.25, 1.0, 1.197, 4.0, 20.0])
def test_gap_mean_and_scv_match_renewal_theory(scv: float) -> None:
    """Gamma gaps of shape a = 1/SCV: mean 1/rate, variance SCV/rate^2, fourth central moment 3a(a + 2)/(a rate)^4.

    Tolerances are five standard errors of the sample mean and (leading order) of the sample variance.
    """
    count, rate = 400_000, 5.0
    gaps = np.diff(ArrivalProcess(rate_per_s=rate, scv=scv).sample_times_s(count, seed=11), prepend=0.0)
    assert abs(gaps.mean() * rate - 1.0) < 5 * math.sqrt(scv / count)
    kurtosis = 3.0 + 6.0 * scv
    assert abs(gaps.var() * rate**2 / scv - 1.0) < 5 * math.sqrt((kurtosis - 1.0) / count)


def test_poisson_counts_have_variance_equal_to_their_mean() -> None:
    times = ArrivalProcess(rate_per_s=8.0).sample_times_s(200_000, seed=3)
    counts = np.bincount(times.astype(np.int64))[:20_000]
    assert counts.mean() == pytest.approx(8.0, abs=5 * math.sqrt(8.0 / 20_000))
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=5 * math.sqrt(2.0 / 20_000))


@pytest.mark.parametrize("scv", [0.0, 1e-300, 1e-13])
def test_no_variance_is_a_metronome(scv: float) -> None:
    times = ArrivalProcess(rate_per_s=2.0, scv=scv).sample_times_s(4, seed=1)
    assert times.tolist() == [0.5, 1.0, 1.5, 2.0]


@pytest.mark.parametrize("scv", [1e-11, 173.0, 1000.0])
def test_extreme_bursts_keep_order_and_rate(scv: float) -> None:
    count = 500_000
    times = ArrivalProcess(rate_per_s=3.0, scv=scv).sample_times_s(count, seed=5)
    assert np.isfinite(times).all()
    assert (np.diff(times) >= 0.0).all()
    assert times[-1] * 3.0 / count == pytest.approx(1.0, abs=5 * math.sqrt(scv / count) + 1e-9)


def test_rate_only_rescales_time() -> None:
    slow = ArrivalProcess(rate_per_s=1.0, scv=2.0)
    assert slow.at_rate(4.0).scv == 2.0
    assert slow.at_rate(4.0).sample_times_s(100, seed=1) * 4.0 == pytest.approx(slow.sample_times_s(100, seed=1))


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"rate_per_s": -1.0}, "rate_per_s = -1.0: Input should be greater than 0. Fix: give a value greater than 0"),
        ({"rate_per_s": 0.0}, "rate_per_s = 0.0: Input should be greater than 0"),
        ({"rate_per_s": math.nan}, "rate_per_s = nan: Input should be a finite number. Fix: give a finite number"),
        ({"rate_per_s": 1.0, "scv": -0.5}, "scv = -0.5: Input should be greater than or equal to 0"),
        ({"rate_per_s": 1.0, "scv": 2e6}, "scv = 2000000.0: Input should be less than or equal to 1000"),
        ({}, "rate_per_s = '(missing)': required field is missing. Fix: add rate_per_s"),
        ({"rate_per_s": 1.0, "cv": 2.0}, "cv = 2.0: unknown field. Fix: remove it or correct its spelling"),
    ],
)
def test_arrivals_refuse(fields: dict[str, float], line: str) -> None:
    with pytest.raises(InputError, match=re.escape(line)):
        ArrivalProcess(**fields)


def test_draws_refuse_negative_counts_and_seeds() -> None:
    with pytest.raises(InputError, match=r"count = -1: must be >= 0\. Fix: give a count of 0 or more"):
        ArrivalProcess(rate_per_s=1.0).sample_times_s(-1, seed=0)
    with pytest.raises(InputError, match=r"seed = -2: must be >= 0\. Fix: give a seed of 0 or more"):
        TokenLengths.constant(1, 1).sample(1, seed=-2)


# --- workload -------------------------------------------------------------------------------------------------------


def _two_classes(share: float) -> tuple[RequestClass, RequestClass]:
    chat = TokenLengths.from_pairs([100, 300], [50, 10], [3, 1])
    return (
        RequestClass(name="chat", lengths=chat, share=share),
        RequestClass(name="code", lengths=TokenLengths.constant(2000, 30), share=1.0 - share),
    )


@given(st.floats(min_value=0.01, max_value=0.99))
def test_mixed_lengths_are_the_share_weighted_mean(share: float) -> None:
    """Distribution of total expectation, whatever scale the weights of a class have."""
    workload = Workload(arrivals=ArrivalProcess(rate_per_s=1.0), classes=_two_classes(share))
    assert workload.lengths.mean_input == pytest.approx(share * 150.0 + (1 - share) * 2000.0)
    assert workload.lengths.mean_output == pytest.approx(share * 40.0 + (1 - share) * 30.0)
    assert workload.lengths.source == "chat + code"


def test_one_class_is_passed_through() -> None:
    lengths = TokenLengths.constant(10, 5)
    workload = Workload.of(3.0, lengths, scv=2.0)
    assert workload.lengths is lengths
    assert workload.at_rate(9.0) == Workload.of(9.0, lengths, scv=2.0)
    assert hash(workload) == hash(Workload.of(3.0, lengths, scv=2.0))


@pytest.mark.parametrize("share", [0.4, 0.6])
def test_shares_must_sum_to_one(share: float) -> None:
    only = (_two_classes(0.5)[0], RequestClass(name="rest", lengths=TokenLengths.constant(1, 1), share=share))
    expected = f"classes.share = {0.5 + share}: shares must sum to 1. Fix: divide every share by {0.5 + share:g}"
    with pytest.raises(InputError, match=re.escape(expected)):
        Workload(arrivals=ArrivalProcess(rate_per_s=1.0), classes=only)


def test_nested_errors_name_the_whole_path() -> None:
    lengths = {"input_tokens": [7], "output_tokens": [0], "weights": [1.0]}
    with pytest.raises(InputError, match=re.escape("classes[0].lengths.output_tokens[0] = 0: must be a whole number")):
        Workload(arrivals={"rate_per_s": 1.0}, classes=({"lengths": lengths},))


# --- closed loops ---------------------------------------------------------------------------------------------------


def test_a_closed_loop_has_ten_requests_per_user_unless_given() -> None:
    """InferenceX: the number of prompts is 10 times the concurrency."""
    lengths = TokenLengths.constant(1024, 1024)
    assert Workload.closed(64, lengths).arrivals == ClosedLoop(concurrency=64, requests=0)
    assert ClosedLoop(concurrency=64).total_requests == 640
    assert ClosedLoop(concurrency=64, requests=100).total_requests == 100
    assert Workload.closed(64, lengths, requests=640) == Workload.closed(64, lengths, requests=640)
    assert hash(Workload.closed(64, lengths)) == hash(Workload.closed(64, lengths))
    assert Workload.closed(64, lengths) != Workload.of(64.0, lengths)
    assert Workload.closed(64, lengths).is_closed
    assert not Workload.of(64.0, lengths).is_closed


@given(st.integers(1, 50), st.integers(0, 100), st.floats(0.0, 100.0))
def test_users_start_evenly_over_the_ramp(users: int, requests: int, ramp_s: float) -> None:
    starts = ClosedLoop(concurrency=users, requests=requests, ramp_s=ramp_s).start_times_s()
    assert starts.size == min(users, requests or 10 * users)
    assert starts[0] == 0.0
    assert np.diff(starts) == pytest.approx(np.full(starts.size - 1, ramp_s / users), abs=1e-9)


def test_the_rate_of_a_closed_loop_is_an_outcome() -> None:
    workload = Workload.closed(8, TokenLengths.constant(10, 5))
    fix = "Fix: simulate it, or give an ArrivalProcess at the rate that the simulation found"
    head = "workload.arrivals = 'closed loop of 8': a closed loop has no"
    with pytest.raises(InputError, match=re.escape(f"{head} arrival rate of its own. {fix}")):
        workload.rate_per_s  # noqa: B018
    with pytest.raises(InputError, match=re.escape(f"{head} rate that could be set to 3/s. {fix}")):
        workload.at_rate(3.0)
    with pytest.raises(InputError, match=re.escape(f"{head} arrivals of which 0.5 could be split off. {fix}")):
        workload.arrivals.split(0.5)
    with pytest.raises(InputError, match=re.escape(f"{head} distribution of arrivals. {fix}")):
        workload.open_arrivals  # noqa: B018
    with pytest.raises(InputError, match=re.escape(f"{head} distribution of interarrival times. {fix}")):
        workload.arrivals.scv  # noqa: B018


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"concurrency": 0}, "concurrency = 0: Input should be greater than or equal to 1"),
        ({"concurrency": 4, "requests": -1}, "requests = -1: Input should be greater than or equal to 0"),
        ({"concurrency": 4, "ramp_s": math.inf}, "ramp_s = inf: Input should be a finite number"),
        ({}, "concurrency = '(missing)': required field is missing. Fix: add concurrency"),
    ],
)
def test_closed_loops_refuse(fields: dict[str, float], line: str) -> None:
    with pytest.raises(InputError, match=re.escape(line)):
        ClosedLoop(**fields)


# --- targets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("percentile", "name"), [(0.5, "p50 TPOT"), (0.99, "p99 TPOT"), (0.999, "p99.9 TPOT"), (0.29, "p29 TPOT")]
)
def test_target_names(percentile: float, name: str) -> None:
    assert LatencyTarget(metric=Metric.TPOT, percentile=percentile, threshold_s=0.05).name == name


@pytest.mark.parametrize("percentile", [1.5, 99.0, 1.0, 0.0, -0.1])
def test_percentile_refuses(percentile: float) -> None:
    line = f"percentile = {percentile}: must lie strictly between 0 and 1. Fix: write 0.99 for p99"
    with pytest.raises(InputError, match=re.escape(line)):
        LatencyTarget(metric=Metric.TTFT, percentile=percentile, threshold_s=1.0)


def test_targets_refuse() -> None:
    with pytest.raises(InputError, match=r"percentile = nan: Input should be a finite number"):
        LatencyTarget(metric=Metric.TTFT, percentile=math.nan, threshold_s=1.0)
    with pytest.raises(InputError, match=r"threshold_s = 0\.0: Input should be greater than 0\. Fix: give a value"):
        LatencyTarget(metric=Metric.TTFT, percentile=0.9, threshold_s=0.0)
    with pytest.raises(InputError, match=r"metric = 'tbt': .*Fix: use one of 'ttft', 'tpot', 'e2e' or 'itl'"):
        LatencyTarget(metric="tbt", percentile=0.9, threshold_s=1.0)
    with pytest.raises(InputError, match=r"targets = \(\): .*at least 1 item"):
        Slo(targets=())
    with pytest.raises(InputError, match=r"targets\[0\]\.percentile = 99.*Fix: write 0\.99 for p99"):
        Slo(targets=({"metric": "ttft", "percentile": 99, "threshold_s": 1.0},))
