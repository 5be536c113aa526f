"""Rows of the latency charts, held against closed forms, the step times of the engine and its own searches."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

import numpy as np
import pytest

from planner.charts import Row, latencies
from planner.core import Metric
from planner.fleet import shifted_deployment
from planner.serving import (
    Deployment,
    evaluate,
    largest_stable_rate_per_s,
    prompt_gaps,
    sustainable_rate_per_s,
)
from planner.simulator import simulate
from planner.workload import LatencyDistribution, LatencyTarget, Slo, TokenLengths, Workload
from tests.builders import calibrated, replica

CONFIG = calibrated(sku="h100-sxm", max_batched_tokens=2048)
FITTED = Deployment.mixed(CONFIG, 2)
DATASHEET = Deployment.mixed(replica(max_batched_tokens=2048), 2)
ENDS = (shifted_deployment(FITTED, -1.645), shifted_deployment(FITTED, 1.645))
WORKLOAD = Workload.of(20.0, TokenLengths.constant(1000, 100))
SLO = Slo(
    targets=(
        LatencyTarget(metric=Metric.TTFT, percentile=0.99, threshold_s=0.5),
        LatencyTarget(metric=Metric.TPOT, percentile=0.9, threshold_s=0.02),
    )
)


@cache
def banded() -> list[Row]:
    """The curves, each with the ends of its interval."""
    return latencies.banded_rate_rows(FITTED, WORKLOAD, SLO, ENDS, points=5)


@cache
def crossings() -> list[Row]:
    """Where the curves meet their targets."""
    return latencies.crossing_rows(FITTED, WORKLOAD, SLO)


def distribution_of(row: Row, deployment: Deployment) -> float:
    """What `evaluate` says at a row's place [ms]."""
    distribution = evaluate(deployment, WORKLOAD.at_rate(row["rate_per_s"])).distribution(Metric(row["metric"].lower()))
    return 1e3 * distribution.quantile_s(float(row["percentile"][1:]) / 100.0)


# --- the band -------------------------------------------------------------------------------------------------------


def test_the_curve_and_both_ends_are_what_evaluate_says_around_it() -> None:
    """Slow kernels are overloaded before fitted ones; without a calibration there is no band."""
    slow, fitted = (largest_stable_rate_per_s(each, WORKLOAD) for each in (ENDS[1], FITTED))
    assert slow < fitted
    for number, row in enumerate(banded()):
        assert row["low_ms"] <= row["latency_ms"] * (1 + 1e-9)
        assert row["high_ms"] is None or row["latency_ms"] <= row["high_ms"] * (1 + 1e-9)
        assert (row["high_ms"] is None) == (row["rate_per_s"] >= slow)
        if number % 5 == 0:
            assert row["latency_ms"] == pytest.approx(distribution_of(row, FITTED))
            assert row["low_ms"] == pytest.approx(distribution_of(row, ENDS[0]))
            if row["high_ms"] is not None:
                assert row["high_ms"] == pytest.approx(distribution_of(row, ENDS[1]))


def test_the_planned_rate_is_among_the_rates_and_every_rate_is_announced() -> None:
    said: list[str] = []
    rows = latencies.banded_rate_rows(DATASHEET, WORKLOAD, SLO, points=3, progress=said.append)
    assert {row["rate_per_s"] for row in rows if row["is_planned"]} == {20.0}
    assert all(row["low_ms"] is None and row["high_ms"] is None for row in rows)
    assert len(said) == 4


# --- where targets give ---------------------------------------------------------------------------------------------


def test_a_target_holds_up_to_its_crossing_and_not_beyond() -> None:
    for row, target in zip(crossings(), SLO.targets, strict=True):
        assert row["crosses"] and row["target"] == target.name
        assert distribution_of(row, FITTED) <= row["latency_ms"]
        assert distribution_of({**row, "rate_per_s": 1.03 * row["rate_per_s"]}, FITTED) > row["latency_ms"]
    first = min(row["rate_per_s"] for row in crossings())
    assert first == pytest.approx(sustainable_rate_per_s(FITTED, WORKLOAD, SLO), rel=0.01)


def test_curves_go_through_the_marks_of_their_crossings() -> None:
    """Drawn through few other rates a curve met its target 8 % before the mark."""
    marked = [row["rate_per_s"] for row in crossings()]
    rows = latencies.banded_rate_rows(FITTED, WORKLOAD, SLO, points=2, marked=marked)
    for crossing in crossings():
        here = [row for row in rows if all(row[key] == crossing[key] for key in ("metric", "percentile", "rate_per_s"))]
        assert [row["latency_ms"] for row in here] == pytest.approx([crossing["latency_ms"]], rel=0.03)


@pytest.mark.parametrize("threshold_s", [1e-6, 1e6])
def test_a_target_that_always_or_never_holds_has_no_crossing(threshold_s: float) -> None:
    slo = Slo(targets=(LatencyTarget(metric=Metric.E2E, percentile=0.5, threshold_s=threshold_s),))
    (row,) = latencies.crossing_rows(DATASHEET, WORKLOAD, slo)
    assert not row["crosses"]
    assert (row["rate_per_s"] == 0.0) is (threshold_s < 1.0)


# --- simulations ----------------------------------------------------------------------------------------------------


def test_simulated_points_are_the_simulations_percentiles_within_their_sampling_error() -> None:
    runs = latencies.simulated_at_rates(DATASHEET, WORKLOAD, [(10.0, 1500), (20.0, 1500)], seed=3)
    rows = latencies.simulated_rate_rows(runs, SLO)
    assert {row["rate_per_s"] for row in rows} == {10.0, 20.0}
    again = simulate(DATASHEET, WORKLOAD.at_rate(10.0), seed=3, requests=1500)
    first = next(row for row in rows if row["metric"] == "TTFT" and row["percentile"] == "p99")
    assert first["latency_ms"] == 1e3 * again.ttft.quantile_s(0.99)
    for row in rows:
        assert row["steady"] and row["low_ms"] <= row["latency_ms"] <= row["high_ms"]


# --- distributions ----------------------------------------------------------------------------------------------------


def test_the_distribution_of_an_exponential_latency_is_the_exponential_distribution() -> None:
    """Closed form: P(T > t) = exp(-t / m)."""
    shares = (np.arange(200_000) + 0.5) / 200_000
    distribution = LatencyDistribution.from_samples(-0.2 * np.log(1.0 - shares))
    for row in latencies.distribution_rows({"predicted": distribution}, Metric.TTFT):
        assert math.exp(-row["latency_ms"] / 200.0) == pytest.approx(row["beyond"], rel=2e-3)
        assert row["share"] == pytest.approx(1.0 - row["beyond"])
    assert latencies.distribution_rows({"predicted": LatencyDistribution.unbounded()}, Metric.TTFT) == []


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_the_drawn_distribution_passes_above_a_target_exactly_where_it_holds(share: float) -> None:
    """Steps that rise at each point: the height at a threshold is that of the last point at or left of it."""
    distribution = LatencyDistribution.from_samples(np.random.default_rng(5).gamma(2.0, 0.3, 4000))
    for threshold_s in np.linspace(0.9, 1.1, 21) * distribution.quantile_s(share):
        target = LatencyTarget(metric=Metric.TTFT, percentile=share, threshold_s=float(threshold_s))
        rows = latencies.distribution_rows({"simulated": distribution}, Metric.TTFT, Slo(targets=(target,)))
        height = max(row["share"] for row in rows if row["latency_ms"] <= 1e3 * threshold_s)
        assert (height >= share) == (distribution.quantile_s(share) <= threshold_s)


def test_a_target_is_a_point_at_its_threshold_and_share() -> None:
    (point,) = latencies.target_points(SLO, Metric.TPOT)
    assert (point["latency_ms"], point["share"], point["label"]) == (20.0, 0.9, "p90 ≤ 20 ms")


# --- a long prompt --------------------------------------------------------------------------------------------------

RUNNING, CONTEXT, PROMPT, CHUNK = 20, 1000, 8000, 1024


@cache
def long_prompt() -> list[Row]:
    """A long prompt, whole and in chunks."""
    return latencies.long_prompt_rows(CONFIG, PROMPT, CHUNK, RUNNING, CONTEXT)


def test_rows_of_a_long_prompt_are_its_gaps_whole_and_in_chunks() -> None:
    """Weights are read once per chunk: the prompt takes longer, each gap less."""
    whole, chunked = latencies.long_prompt_outcomes(long_prompt())
    assert (whole["stretched"], chunked["stretched"]) == (1, math.ceil(PROMPT / (CHUNK - RUNNING)))
    assert chunked["longest_gap_ms"] < whole["longest_gap_ms"] == pytest.approx(whole["prompt_ttft_ms"])
    assert chunked["prompt_ttft_ms"] > whole["prompt_ttft_ms"]
    gaps = prompt_gaps(CONFIG, PROMPT, None, RUNNING, CONTEXT, latencies.TOKENS_BEFORE + 2, latencies.TOKENS_BEFORE + 1)
    assert whole["longest_gap_ms"] == 1e3 * max(gap.gap_s for gap in gaps)


# --- pictures -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn() -> dict[str, dict[str, Any]]:
    runs = latencies.simulated_at_rates(DATASHEET, WORKLOAD, [(10.0, 300)])
    points = latencies.simulated_rate_rows(runs, SLO)
    distributions = latencies.distribution_rows({"predicted": runs[0].e2e, "simulated": runs[0].e2e}, Metric.E2E, SLO)
    gaps = latencies.distribution_rows({"predicted": runs[0].itl}, Metric.ITL)
    found = {
        "ttft": latencies.rate_panel(banded(), SLO, Metric.TTFT, crossings(), points, "2 x H100"),
        "distribution": latencies.distribution_chart(distributions, [], Metric.E2E, "2 x H100"),
        "tail": latencies.distribution_chart(gaps, [], Metric.ITL, "2 x H100", logarithmic=True, tail=True),
        "prompt": latencies.long_prompt_chart(long_prompt(), SLO, "8,000 tokens"),
    }
    assert latencies.shown_metrics(SLO)[0] is Metric.TTFT
    return {name: chart.to_dict() for name, chart in found.items()}


def _titles(place: Any) -> set[str]:
    if isinstance(place, dict):
        own = {place["title"]} if isinstance(place.get("title"), str) else set()
        return own.union(*(_titles(value) for value in place.values()))
    return set().union(*(_titles(value) for value in place)) if isinstance(place, list) else set()


def test_pictures_are_json_with_units_at_their_axes_and_lines_told_apart_by_more_than_colour(
    drawn: dict[str, dict[str, Any]],
) -> None:
    for name, picture in drawn.items():
        assert json.dumps(picture, allow_nan=False), name
        assert picture["title"]["text"] and picture["title"]["subtitle"], name
    assert {"Arrival rate (requests/s)", "TTFT (ms)"} <= _titles(drawn["ttft"])
    assert "E2E (s)" in _titles(drawn["distribution"])
    assert {"ITL (ms)", "Share of gaps slower"} <= _titles(drawn["tail"])
    assert {"Time since the prompt arrived (ms)", "Gap to the token before (ms)"} <= _titles(drawn["prompt"])

    for name in ("ttft", "distribution", "prompt"):
        dashes = [layer["encoding"].get("strokeDash") for layer in drawn[name]["layer"]]
        ranges = [dash["scale"]["range"] for dash in dashes if dash]
        assert ranges and len({str(dash) for dash in ranges[0]}) == 2, name


def test_an_open_band_reaches_beyond_the_top_of_the_picture(drawn: dict[str, dict[str, Any]]) -> None:
    """Where slow kernels are overloaded the interval has no upper end."""
    picture = drawn["ttft"]
    area = next(layer for layer in picture["layer"] if layer["mark"]["type"] == "area")
    top = area["encoding"]["y"]["scale"]["domain"][1]
    assert any(row["high_ms"] is None for row in banded())
    assert max(row["high"] for row in picture["datasets"][area["data"]["name"]]) >= top
