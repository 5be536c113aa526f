"""The tab *Latency* without a browser: what it says, what it offers, and how it bears plans of all kinds."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="the web app needs the extra `app`")
from streamlit.testing.v1 import AppTest

from planner.core import Metric
from planner.fleet import Plan, plan
from planner.scenario import load_scenario
from planner.web import latency_growth, latency_tab
from tests.builders import calibrated, small_request
from tests.charts.titles import title_of

TIMEOUT_S = 60
SMALL: dict[str, Any] = {
    "name": "small",
    "llm": "llama-3.1-8b",
    "precision": {"weights": "bf16"},
    "workload": {"rate_per_s": 30.0, "lengths": {"input_tokens": 800, "output_tokens": 100}},
    "slo": [
        {"metric": "ttft", "percentile": 0.95, "threshold_s": 0.5},
        {"metric": "tpot", "percentile": 0.95, "threshold_s": 0.03},
    ],
    "search": {
        "skus": ["h100-sxm"],
        "modes": ["mixed"],
        "tp": [1],
        "max_batched_tokens": [2048],
        "max_running_requests": [128],
    },
    "prices": {"as_of": "2026-11-21"},
    "simulation": {"requests": 500},
}
SPLIT = {**SMALL, "search": {**SMALL["search"], "modes": ["disaggregated"], "calibrated": False}}
NEVER = {**SMALL, "slo": [{"metric": "ttft", "percentile": 0.95, "threshold_s": 1e-4}]}
TWO = {
    **SMALL,
    "search": {**SMALL["search"], "calibrated": False},
    "services": [
        {
            "name": "code",
            "llm": "qwen2.5-7b",
            "workload": {"rate_per_s": 5.0, "lengths": {"input_tokens": 500, "output_tokens": 50}},
            "slo": SMALL["slo"],
        }
    ],
}


def page(content: dict[str, object], simulate: bool) -> None:
    """The tab alone, on the plan of a scenario."""
    import streamlit as st

    import planner
    from planner.fleet import hardware_for
    from planner.scenario import full_content, read_scenario
    from planner.web import latency_tab, results, session

    if "scenario" not in st.session_state:
        st.session_state.update(scenario=full_content(read_scenario(content)[0]), past=[], future=[], complaint=None)
    key = session.key()
    request = results.request_of(key)
    hardware = hardware_for(request)

    def make(say: results.Progress) -> planner.Plan:
        return planner.plan(request, hardware, say, simulate=simulate, alternatives=False)

    found = results.compute_once(("of a test", key, simulate), make, "Planning")
    latency_tab.show(results.Page(session.content(), key, request, hardware, found))


@pytest.fixture(autouse=True)
def _coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few points and short runs: what is tested is the page."""
    monkeypatch.setattr(latency_growth.latencies, "BAND_POINTS", 3)
    monkeypatch.setattr(latency_growth, "MIN_SIMULATED_REQUESTS", 300)


def opened(content: dict[str, Any], simulate: bool = True) -> AppTest:
    app = AppTest.from_function(page, default_timeout=TIMEOUT_S, args=(content, simulate)).run()
    assert not app.exception and not app.error
    return app


def said(app: AppTest) -> str:
    return "\n".join(str(one.value) for one in (*app.markdown, *app.caption, *app.info)).replace("\\", "")


def figures(app: AppTest) -> dict[str, tuple[str, str]]:
    return {one.label.replace("\\", ""): (one.value, one.delta) for one in app.metric}


def titles(app: AppTest) -> list[str]:
    return [title_of(json.loads(one.proto.spec)) for one in app.get("vega_lite_chart")]


def reference(content: dict[str, Any], simulate: bool = True) -> Plan:
    return plan(load_scenario(content), simulate=simulate, alternatives=False)


# --- what it shows --------------------------------------------------------------------------------------------------


def test_every_target_is_shown_predicted_with_its_interval_and_simulated_with_its_share() -> None:
    app, found = opened(SMALL), reference(SMALL)
    shown = figures(app)
    for check in found.targets:
        limit = f"{1e3 * check.target.threshold_s:g} ms"
        predicted, interval = shown[f"{check.target.name}, at most {limit}"]
        assert float(predicted.split()[0]) == pytest.approx(1e3 * check.predicted_s, rel=5e-3)
        low, high = (float(word) for word in interval.removesuffix(" ms (90 %)").split(" to "))
        assert low < 1e3 * check.predicted_s < high
        simulated, share = shown[f"{check.target.name}, simulated"]
        assert float(simulated.split()[0]) == pytest.approx(1e3 * check.simulated_s, rel=5e-3)
        assert share.endswith("wanted 95 %")
    assert "All targets hold in theory and in simulation" in said(app)


def test_every_chart_says_what_it_shows() -> None:
    app = opened(SMALL)
    assert titles(app) == [
        "TTFT against arrival rate",
        "TPOT against arrival rate",
        *(f"{metric.value.upper()}: share of {'gaps' if metric is Metric.ITL else 'requests'} within a latency"
          for metric in Metric),
        "Gaps in running answers when a long prompt arrives",
    ]  # fmt: skip


def test_the_sustainable_rate_is_at_least_the_planned_one() -> None:
    """A plan holds its targets at what it routes: theory's own sustainable rate cannot be below."""
    shown = figures(opened(SMALL))
    sustained, planned = (float(shown[name][0].removesuffix("/s")) for name in ("Sustainable rate", "Planned rate"))
    assert sustained >= 0.99 * planned
    low, high = (float(word) for word in shown["Sustainable rate"][1].removesuffix("/s (90 %)").split(" to "))
    assert low <= sustained <= high


def test_what_cannot_be_served_has_a_sentence_and_nothing_else() -> None:
    app = opened(NEVER)
    assert "No fleet meets these targets" in said(app)
    assert not app.metric and not titles(app)


def test_a_disaggregated_pool_is_told_to_see_no_prompts() -> None:
    app = opened(SPLIT, simulate=False)
    assert "Here prompts run on a pool of their own" in said(app)
    assert "planned" not in " ".join(app.select_slider[0].options)


def test_with_several_deployments_one_is_chosen() -> None:
    app = opened(TWO, simulate=False)
    (choice,) = app.selectbox
    before = figures(app)["Planned rate"]
    choice.set_value(choice.options.index(choice.options[-1])).run()
    assert not app.exception
    assert figures(app)["Planned rate"] != before
    assert {"code: p95 TTFT, at most 500 ms", "llama-3.1-8b: p95 TTFT, at most 500 ms"} <= figures(app).keys()


# --- what a visitor can do ------------------------------------------------------------------------------------------


def test_the_tail_is_one_click_away() -> None:
    app = opened(SMALL)
    app.segmented_control[0].set_value("slower")
    app.toggle[0].set_value(True).run()
    assert not app.exception
    assert "TTFT: share of requests slower than a latency" in titles(app)


def stall_ms(app: AppTest) -> float:
    sentence = next(str(one.value) for one in app.markdown if "Taken whole" in str(one.value))
    return float(sentence.split("once, for ")[1].split(" ")[0].replace(",", ""))


def test_a_longer_prompt_stalls_longer_and_only_for_who_asked() -> None:
    mine, others = opened(SMALL, simulate=False), opened(SMALL, simulate=False)
    before = stall_ms(mine)
    mine.slider[0].set_value(20_000).run()
    assert stall_ms(mine) > 2.0 * before
    assert stall_ms(others) == before


def test_more_confidence_is_one_click_away_until_there_is_no_more() -> None:
    app = opened({**SMALL, "confidence": 0.95}, simulate=False)
    assert "every target holds with 95 % confidence" in said(app)
    (button,) = [one for one in app.button if one.key == "latency-confidence"]
    assert button.label == "Plan with 99 %"
    button.click().run()
    assert not app.exception
    assert app.session_state.scenario["confidence"] == 0.99
    assert "every target holds with 99 % confidence" in said(app)
    assert not [one for one in app.button if one.key == "latency-confidence"]


def test_targets_that_slow_kernels_would_miss_are_named() -> None:
    tight = {**SMALL, "confidence": 0.5, "slo": [{"metric": "tpot", "percentile": 0.95, "threshold_s": 0.012}]}
    text = said(opened(tight, simulate=False))
    assert "slow end" in text and "exactly as estimated" in text


# --- its parts ------------------------------------------------------------------------------------------------------


def test_rates_to_simulate_are_apart_and_below_the_limit() -> None:
    rates = latency_growth.rates_to_simulate(50.0, 50.5, 100.0)
    assert rates == [30.0, 80.0, 95.0]
    assert latency_growth.rates_to_simulate(10.0, 60.0, 100.0) == [30.0, 50.0, 60.0, 80.0, 95.0]


def test_the_verdict_names_what_is_missed() -> None:
    found = reference(SMALL, simulate=False)
    worse = replace(found.targets[0], predicted_s=math.inf, met=False)
    text = latency_tab.verdict(replace(found, targets=(worse, *found.targets[1:])))
    assert text == "Not held by theory: p95 TTFT. The fleet is overloaded."


def test_the_confidence_found_is_told_once_it_is_known() -> None:
    found = reference(SMALL)
    assert found.confidence is not None
    text = latency_tab.confidence_in_words(found)
    assert text.endswith(f"with a probability of {found.confidence.words}.")
    assert "follows the simulation" in latency_tab.confidence_in_words(replace(found, confidence=None))
    unknown = replace(found, confidence=replace(found.confidence, uncalibrated=("h100-sxm",)))
    assert "of h100-sxm are bounds" in latency_tab.confidence_in_words(unknown)


def test_a_joint_promise_is_judged_by_its_joint_share() -> None:
    found = plan(small_request(attainment=0.9), alternatives=False)
    text = latency_tab.verdict(found)
    assert text.startswith("Within all thresholds at once: ") and text.endswith("the target is 90 %.")


def test_chunks_leave_room_beside_the_answers() -> None:
    config = calibrated(sku="h100-sxm", max_batched_tokens=3000)
    sizes = latency_tab.chunk_choices(config, 200)
    assert 3000 in sizes and min(sizes) >= 400
