"""Arrivals of a scenario: replays of packaged recordings, their scaling, and every form of drift."""

from __future__ import annotations

import re
from typing import Any

import pytest

from planner.core import InputError
from planner.scenario import load_scenario, read_scenario
from planner.scenario.arrivals import MAX_REPLAYED
from planner.scenario.read import scenario_of_text, scenario_text
from planner.traffic import load_lengths, load_profile, preset_arrivals, recorded_arrivals
from planner.workload import ArrivalProcess, RateDrift, RecordedArrivals, Workload

CHAT = "azure-2023-conv"
CONSTANT = {"input_tokens": 100, "output_tokens": 10}


def content(**workload: Any) -> dict[str, Any]:
    return {
        "llm": "llama-3.1-8b",
        "workload": workload,
        "slo": [{"metric": "ttft", "percentile": 0.9, "threshold_s": 2.0}],
        "search": {"skus": ["h100-sxm"]},
    }


def workload_of(**workload: Any) -> Workload:
    return load_scenario(content(**workload)).workload


def process_of(**workload: Any) -> ArrivalProcess:
    arrivals = workload_of(**workload).arrivals
    assert isinstance(arrivals, ArrivalProcess)
    return arrivals


# --- recordings -----------------------------------------------------------------------------------------------------


def test_a_packaged_recording_is_replayed_by_name() -> None:
    found = workload_of(replay=CHAT)
    assert found.arrivals == recorded_arrivals(CHAT)
    assert found.lengths == load_lengths(CHAT)
    faster = workload_of(replay=CHAT, rate_per_s=12.0).arrivals
    assert isinstance(faster, RecordedArrivals)
    assert faster.rate_per_s == pytest.approx(12.0)
    assert faster.duration_s == pytest.approx(recorded_arrivals(CHAT).duration_s, rel=1e-4)


def test_burstiness_and_lengths_of_one_recording_are_its_replay() -> None:
    """What the app's two widgets say is what `replay` says."""
    both = workload_of(rate_per_s=12.0, scv=CHAT, lengths=CHAT)
    assert both == workload_of(replay=CHAT, rate_per_s=12.0)
    half = workload_of(rate_per_s=12.0, scv=CHAT, lengths={"preset": CHAT, "mean_input_tokens": 577.35})
    assert isinstance(half.arrivals, RecordedArrivals)
    assert half.arrivals.tokens[0].mean() == pytest.approx(577.35, rel=0.01)
    assert half.lengths.mean_input == pytest.approx(577.35, rel=0.001)


@pytest.mark.parametrize(
    "fields",
    [
        {"lengths": CONSTANT},
        {"lengths": "azure-2023-code"},
        {"lengths": CHAT, "drift": {"cv": 0.1, "correlation_time_s": 60}},
        {"lengths": CHAT, "drift": CHAT},
        {"lengths": CHAT, "batch_mean": 2.0},
    ],
)
def test_what_is_not_one_recording_is_a_process(fields: dict[str, Any]) -> None:
    assert process_of(rate_per_s=12.0, scv=CHAT, **fields).scv == preset_arrivals(CHAT, 12.0).scv


def test_very_high_rates_are_planned_by_the_process() -> None:
    limit_per_s = MAX_REPLAYED / recorded_arrivals(CHAT).duration_s
    assert process_of(rate_per_s=1.01 * limit_per_s, scv=CHAT, lengths=CHAT).drift is not None


# --- drift ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drift", "expected"),
    [
        ({"cv": 0.3, "correlation_time_s": 300}, RateDrift.random(0.3, 300.0)),
        ({"cv": 0.3, "correlation_time_s": 300, "seed": 4}, RateDrift.random(0.3, 300.0, seed=4)),
        ({"window_s": 60, "factors": [10, 30]}, RateDrift.of([0.5, 1.5], 60.0)),
        ({"profile": "azure-2024-conv-day"}, RateDrift.of(load_profile("azure-2024-conv-day").factors, 3600.0)),
        (CHAT, preset_arrivals(CHAT, 5.0).drift),
        ("none", None),
    ],
)
def test_every_form_of_drift_is_read_and_written_back(drift: object, expected: RateDrift | None) -> None:
    fields = content(rate_per_s=5.0, scv=2.0, lengths=CONSTANT, drift=drift)
    found = load_scenario(fields).workload.open_arrivals
    assert found.scv == 2.0
    assert (found.drift is None) == (expected is None)
    if found.drift is not None and expected is not None:
        assert (found.drift.window_s, found.drift.factors) == (expected.window_s, pytest.approx(expected.factors))
    scenario = read_scenario(fields)[0]
    assert scenario_of_text(scenario_text(scenario.model_dump(mode="json"))) == scenario


def test_the_name_of_a_recording_brings_its_drift_unless_told_otherwise() -> None:
    fields = {"rate_per_s": 20.0, "scv": CHAT, "lengths": CONSTANT}
    with_drift, without = process_of(**fields), process_of(**fields, drift="none")
    assert with_drift == preset_arrivals(CHAT, 20.0)
    assert without == with_drift.steady
    assert process_of(rate_per_s=20.0, scv=1.5, lengths=CONSTANT).drift is None


@pytest.mark.parametrize(
    ("workload", "line"),
    [
        ({"replay": CHAT, "drift": "none"}, "workload.drift = 'none': does not go with workload.replay. Fix: drop one"),
        ({"rate_per_s": 1, "lengths": CONSTANT, "scaling": "stretch"}, "workload.scaling = <Scaling.STRETCH"),
        ({"concurrency": 3, "lengths": CONSTANT, "drift": "none"}, "does not go with workload.concurrency"),
        ({"rate_per_s": 1, "lengths": CONSTANT, "drift": 3}, "workload.drift = 3: must be two numbers"),
        ({"rate_per_s": 1, "lengths": CONSTANT, "drift": "azure"}, "workload.drift = 'azure': unknown name"),
        ({"rate_per_s": 1, "lengths": CONSTANT, "drift": {"profile": "x"}}, "workload.drift profile = 'x': unknown"),
        ({"rate_per_s": 1, "lengths": CONSTANT, "drift": {"cv": 9, "correlation_time_s": 1}}, "drift.cv = 9"),
        ({"rate_per_s": 1, "lengths": CONSTANT, "drift": {"cv": 1}}, "drift.correlation_time_s = '(missing)'"),
        ({"rate_per_s": 1, "lengths": CONSTANT, "drift": {"window_s": 1, "factors": [0, 0]}}, "workload.drift"),
        ({"rate_per_s": 1, "lengths": CONSTANT, "scv": "azure"}, "workload.scv = 'azure': unknown name"),
    ],
)
def test_what_does_not_go_together_is_refused(workload: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError, match=re.escape(line)):
        workload_of(**workload)
