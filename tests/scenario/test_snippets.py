"""Parts of scenarios: the real reader of scenarios takes them, and says what they were made of."""

from __future__ import annotations

import doctest
import io
import json
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hardware_db import load_hardware
from planner.core import InputError
from planner.scenario import load_scenario, read_scenario
from planner.scenario.snippets import (
    MAX_DRIFT_WINDOWS,
    metrics_comments,
    metrics_snippet,
    prices_comments,
    prices_snippet,
    replay_snippet,
    snippet_text,
    trace_comments,
    trace_csv,
    trace_snippet,
)
from planner.supply import read_prices
from planner.traffic import RecognisedTrace, Trace, read_any_trace, read_metrics, read_trace
from planner.workload import RateDrift
from tests.builders import YAML_LOADER
from tests.places import DATA, DOCS


def _recorded(requests: int = 3000) -> RecognisedTrace:
    generator = np.random.default_rng(5)
    gaps = generator.gamma(0.5, 1.0, requests)
    lengths = generator.integers(1, 4000, (2, requests))
    return RecognisedTrace(
        Trace.from_arrays(np.cumsum(gaps), *lengths, source="own log"), "CSV", ("rows sorted by time",)
    )


def _scenario(fragment: dict[str, Any]) -> dict[str, Any]:
    """A packaged scenario with its workload and the like replaced."""
    content = read_scenario("chat-llama-70b")[0].model_dump(mode="json", exclude_defaults=True)
    return {**content, **yaml.load(snippet_text(fragment), Loader=YAML_LOADER)}


def test_a_trace_becomes_a_workload_with_its_rate_scv_and_means() -> None:
    found = _recorded()
    request = load_scenario(_scenario(trace_snippet(found)))
    assert request.workload.rate_per_s == pytest.approx(found.trace.rate_per_s, rel=1e-9)
    process = found.trace.arrivals()
    assert request.workload.open_arrivals.scv == pytest.approx(process.scv, rel=1e-9)
    assert (request.workload.open_arrivals.drift is None) == (process.drift is None)
    assert request.workload.lengths.mean_input == pytest.approx(found.trace.input_tokens.mean(), rel=1e-3)
    assert request.workload.lengths.mean_output == pytest.approx(found.trace.output_tokens.mean(), rel=1e-3)
    assert len(request.workload.lengths.weights) <= 400


def test_a_metronome_has_an_scv_of_0_and_not_what_rounding_leaves() -> None:
    times = np.arange(500) * 0.1
    ticking = Trace.from_arrays(times, np.full(500, 100), np.full(500, 20), source="own log")
    found = RecognisedTrace(ticking, "CSV", ())
    assert 0.0 < found.trace.arrivals().scv < 1e-20
    assert trace_snippet(found)["workload"]["scv"] == 0.0


def test_a_trace_at_another_rate_is_as_more_users_of_it() -> None:
    """SCV of the gaps of the superposed trace: below that of the trace, whose bursts are each user's own."""
    found = _recorded()
    rate_per_s = 7.0 * found.trace.rate_per_s
    made = trace_snippet(found, rate_per_s)["workload"]
    assert (made["rate_per_s"], made["scv"]) == pytest.approx((rate_per_s, found.trace.arrivals(rate_per_s).scv))
    assert 1.0 < made["scv"] < trace_snippet(found)["workload"]["scv"]


def test_a_trace_whose_rate_swings_brings_its_drift() -> None:
    """One hour at 2/s and one at 6/s, in turn for a day: CV 0.5, as the scenario has it too."""
    times = np.cumsum(np.random.default_rng(1).exponential(0.25, 24 * 3600 * 4))
    swinging = RateDrift.of([2.0, 6.0], 3600.0).clock_s(times)
    tokens = np.full(times.size, 100)
    made = trace_snippet(RecognisedTrace(Trace.from_arrays(swinging, tokens, tokens), "made up"))
    drift = load_scenario(_scenario(made)).workload.open_arrivals.drift
    assert drift is not None
    assert drift.cv == pytest.approx(0.5, abs=0.02)
    assert len(drift.factors) <= MAX_DRIFT_WINDOWS
    assert made["workload"]["scv"] == pytest.approx(1.0, abs=0.1)


def test_a_trace_without_arrivals_needs_a_rate() -> None:
    found = RecognisedTrace(_recorded(200).trace, "conversations", lengths_only=True)
    for make in (trace_snippet, lambda trace: replay_snippet(trace, "x.csv")):
        with pytest.raises(InputError, match="does not say when requests arrived"):
            make(found)
    with pytest.raises(InputError, match="must lie between 100 and 2000"):
        trace_snippet(found, 3.0, cells=5)
    assert set(trace_snippet(found, 3.0)["workload"]) == {"rate_per_s", "lengths"}  # and no SCV that nobody measured


def test_a_replayed_trace_is_the_trace(tmp_path: Path) -> None:
    found = _recorded(500)
    file = tmp_path / "requests.csv"
    file.write_text(trace_csv(found.trace), encoding="utf-8")
    again = read_trace(file)
    assert np.array_equal(again.input_tokens, found.trace.input_tokens)
    assert again.arrival_s == pytest.approx(found.trace.arrival_s, abs=1e-9)
    request = load_scenario(_scenario(replay_snippet(found, str(file), rate_per_s=2.0)))
    assert request.workload.rate_per_s == pytest.approx(2.0)


def test_areas_and_the_time_of_day_stay_with_a_trace() -> None:
    """Of a log with dates: the rows that it is written as say where users are, and when of a day in UTC."""
    rows = ["ts,country,prompt_tokens,completion_tokens"]
    rows += ["2026-01-01T09:30:00+01:00,JP,10,20", "2026-01-01T10:30:00+01:00,DE,30,40"]
    found = read_any_trace(io.StringIO("\n".join(rows))).trace
    assert found.areas is not None
    assert (found.starts_at_hours, found.areas.tolist()) == (8.5, ["JP", "DE"])
    again = read_trace(io.StringIO(trace_csv(found)))
    assert again.areas is not None
    assert (again.starts_at_hours, again.areas.tolist()) == (8.5, ["JP", "DE"])


def test_metrics_become_a_workload() -> None:
    metrics = read_metrics(DATA / "metrics" / "vllm_first.txt", DATA / "metrics" / "vllm_second.txt", interval_s=600.0)
    request = load_scenario(_scenario(metrics_snippet(metrics)))
    assert request.workload.rate_per_s == 2.5
    assert request.workload.lengths.mean_input == pytest.approx(metrics.lengths.mean_input, rel=1e-6)
    said = "\n".join(metrics_comments(metrics))
    assert "requests finished: 1,500 in 600 s" in said
    assert "measured TTFT: mean 147.3 ms" in said
    assert "input tokens found in the prefix cache: 25.0%" in said


def _day() -> io.StringIO:
    """Two days of a server that is busy from 6 to 12 h UTC (6 requests/s) and else finishes 2 a second."""
    lines = []
    for name, times in (("request_success", 1), ("prompt_tokens", 50), ("generation_tokens", 9)):
        points, total = [], 0.0
        for hour in range(49):
            points.append([1_699_920_000 + 3600 * hour, f"{times * total:.0f}"])  # 2023-11-14, 0:00 UTC
            total += 3600.0 * (6.0 if 6 <= hour % 24 < 12 else 2.0)
        lines.append({"metric": {"__name__": f"vllm:{name}_total"}, "values": points})
    return io.StringIO(json.dumps({"data": {"resultType": "matrix", "result": lines}}))


def test_the_steps_of_metrics_are_drift_around_their_mean() -> None:
    """A quarter of the day at 6/s, the rest at 2/s: mean 3, CV 1 / sqrt(3); another rate is taken as steady."""
    made = metrics_snippet(read_metrics(_day()))
    drift = load_scenario(_scenario(made)).workload.open_arrivals.drift
    assert drift is not None
    assert drift.cv == pytest.approx(3.0**-0.5, rel=0.01)
    assert drift.peak == pytest.approx(2.0, rel=0.01)
    assert read_metrics(_day()).workload().open_arrivals.drift is not None
    assert "drift" not in metrics_snippet(read_metrics(_day()), "p95")["workload"]
    assert "drift" not in metrics_snippet(read_metrics(_day()), profile=True)["workload"]
    assert read_metrics(_day()).workload(0.95).open_arrivals.drift is None


def test_a_profile_stands_on_the_mean_rate() -> None:
    metrics = read_metrics(_day())
    fragment = metrics_snippet(metrics, profile=True)
    request = load_scenario(_scenario(fragment))
    assert request.workload.rate_per_s == pytest.approx(3.0)
    assert request.profile is not None
    assert request.profile.factors[:13] == pytest.approx([2 / 3] * 6 + [2.0] * 6 + [2 / 3])
    with pytest.raises(InputError, match="a profile stands on the mean rate"):
        metrics_snippet(metrics, "p95", profile=True)


@pytest.mark.parametrize(
    ("rate", "per_s"), [("mean", 3.0), ("peak", 6.0), ("p50", 2.0), ("p95", 6.0), (4.5, 4.5), ("4.5", 4.5)]
)
def test_the_rate_is_the_one_asked_for(rate: str | float, per_s: float) -> None:
    assert metrics_snippet(read_metrics(_day()), rate)["workload"]["rate_per_s"] == pytest.approx(per_s)


@pytest.mark.parametrize("rate", ["median", "p", "-3", "nan", "p0", "p200"])
def test_rates_that_are_none_are_refused(rate: str) -> None:
    with pytest.raises(InputError, match=r"rate|percentile"):
        metrics_snippet(read_metrics(_day()), rate)


def test_prices_become_a_policy_with_their_origin_in_comments() -> None:
    table = "sku,provider,region,commitment,usd_per_gpu_hour\nh100-sxm,Ours,here,on_demand,2.5\n"
    table += "h100-sxm,Ours,there,on_demand,2.0\nh100-sxm,Ours,there,reserved_1yr,1.0\nx9,Ours,there,on_demand,1\n"
    found = read_prices(io.StringIO(table), retrieved_on=date(2026, 11, 22), source_url="contract 17")
    request = load_scenario(_scenario(prices_snippet(found)))
    assert request.prices.usd_per_gpu_hour == {"h100-sxm": 2.0}
    assert prices_snippet(found, "here")["prices"]["usd_per_gpu_hour"] == {"h100-sxm": 2.5}
    assert "h100-sxm: Ours there, 2026-11-22, contract 17" in prices_comments(found)
    assert "no SKU known for x9: 1 rows left out" in prices_comments(found)
    with pytest.raises(InputError, match=r"no on-demand price there. Fix: use one of: here, there"):
        prices_snippet(found, "nowhere")
    assert "h100-sxm" in load_hardware().skus


def test_comments_never_end_their_line() -> None:
    """A file's name or a note with a line break must not become YAML."""
    text = snippet_text({"workload": {}}, ["harmless\nlimits: {budget_usd_per_hour: 1}\x85y\u2028z"])
    assert yaml.safe_load(text) == {"workload": {}}
    found = RecognisedTrace(_recorded(200).trace, "CSV\n- x", ("a\nb",))
    assert yaml.safe_load(snippet_text({}, trace_comments(found))) == {}


def test_the_guide_to_importing_runs() -> None:
    """Its Python as printed; `tests/cli/test_measurements.py` holds its commands against theirs."""
    guide = DOCS / "how-to" / "import.md"
    failed, ran = doctest.testfile(str(guide), module_relative=False)
    assert (failed, ran >= 12) == (0, True)
