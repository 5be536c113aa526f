"""The tab *Latency* without a browser: what it says, what it offers, and how it bears plans of all kinds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from planner.core import Metric
from planner.fleet import Plan, plan
from planner.scenario import full_content, load_scenario, read_scenario
from planner.web import latency_growth, latency_tab
from tests.builders import calibrated, small_request
from tests.web import pages
from tests.web.pages import CHECKED, THEORY, figures, fine, press, said, scenario, titles

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
UNCALIBRATED = {**SMALL["search"], "calibrated": False}


@pytest.fixture(autouse=True, scope="module")
def _coarse() -> Iterator[None]:
    """Few points and short runs: what is tested is the page."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency_growth.latencies, "BAND_POINTS", 3)
        patch.setattr(latency_growth, "MIN_SIMULATED_REQUESTS", 300)
        yield


def opened(until: str, **changes: Any) -> AppTest:
    app = pages.shown("latency_tab", full_content(read_scenario({**SMALL, **changes})[0]), until)
    assert not app.error
    return app


@pytest.fixture(scope="module")
def checked() -> AppTest:
    return opened(CHECKED)


@pytest.fixture(scope="module")
def found() -> Plan:
    return plan(load_scenario(SMALL), alternatives=False)


# --- what it shows --------------------------------------------------------------------------------------------------


def test_every_target_is_shown_predicted_with_its_interval_and_simulated_with_its_share(
    checked: AppTest, found: Plan
) -> None:
    """The sustainable rate is at least the planned one, at which the plan holds its targets."""
    cards = figures(checked)
    for check in found.targets:
        predicted = cards[f"{check.target.name}, at most {1e3 * check.target.threshold_s:g} ms"]
        assert float(predicted.value.split()[0]) == pytest.approx(1e3 * check.predicted_s, rel=5e-3)
        low, high = (float(word) for word in predicted.delta.removesuffix(" ms, if fast or slow").split(" to "))
        assert low < 1e3 * check.predicted_s < high
        simulated = cards[f"{check.target.name}, simulated"]
        assert float(simulated.value.split()[0]) == pytest.approx(1e3 * check.simulated_s, rel=5e-3)
        assert simulated.delta.endswith("wanted 95 %")
    assert "All targets hold in theory and in simulation" in said(checked)
    sustained, planned = (float(cards[name].value.removesuffix("/s")) for name in ("Sustainable rate", "Planned rate"))
    assert sustained >= 0.99 * planned
    assert float(cards["Sustainable rate"].delta.removesuffix("/s if exact")) >= sustained


def test_every_chart_says_what_it_shows_and_the_tail_is_one_click_away(checked: AppTest) -> None:
    of = {metric: "gaps" if metric is Metric.ITL else "requests" for metric in Metric}
    assert titles(checked) == [
        "TTFT against arrival rate",
        "TPOT against arrival rate",
        *(f"{metric.value.upper()}: share of {what} within a latency" for metric, what in of.items()),
        "Gaps in running answers when a long prompt arrives",
    ]
    checked.segmented_control[0].set_value("slower")
    fine(checked.toggle[0].set_value(True).run())
    assert "TTFT: share of requests slower than a latency" in titles(checked)


def test_what_cannot_be_served_has_a_sentence_and_nothing_else() -> None:
    app = opened(THEORY, slo=[{"metric": "ttft", "percentile": 0.95, "threshold_s": 1e-4}])
    assert "No fleet meets these targets" in said(app)
    assert not app.metric and not titles(app)


def test_a_disaggregated_pool_is_told_to_see_no_prompts() -> None:
    app = opened(THEORY, search={**UNCALIBRATED, "modes": ["disaggregated"]})
    assert "Here prompts run on a pool of their own" in said(app)
    assert "planned" not in " ".join(app.select_slider[0].options)


def test_with_several_deployments_one_is_chosen() -> None:
    lengths = {"input_tokens": 500, "output_tokens": 50}
    code = {"name": "code", "llm": "qwen2.5-7b", "workload": {"rate_per_s": 5.0, "lengths": lengths}}
    app = opened(THEORY, search=UNCALIBRATED, services=[{**code, "slo": SMALL["slo"]}])
    (choice,) = app.selectbox
    before = figures(app)["Planned rate"].value
    fine(choice.set_value(choice.options.index(choice.options[-1])).run())
    assert figures(app)["Planned rate"].value != before
    assert {"code: p95 TTFT, at most 500 ms", "llama-3.1-8b: p95 TTFT, at most 500 ms"} <= figures(app).keys()


# --- what a visitor can do ------------------------------------------------------------------------------------------


def stall_ms(app: AppTest) -> float:
    sentence = next(str(one.value) for one in app.markdown if "Taken whole" in str(one.value))
    return float(sentence.split("once, for ")[1].split(" ")[0].replace(",", ""))


def test_a_longer_prompt_stalls_longer() -> None:
    app = opened(THEORY)
    before = stall_ms(app)
    app.slider[0].set_value(20_000).run()
    assert stall_ms(app) > 2.0 * before


def test_more_confidence_is_one_click_away_until_there_is_no_more() -> None:
    app = opened(THEORY, confidence=0.95)
    assert "every target holds with 95 % confidence" in said(app)
    assert app.button(key="latency-confidence").label == "Plan with 99 %"
    assert scenario(press(app, "latency-confidence"))["confidence"] == 0.99
    assert "every target holds with 99 % confidence" in said(app)
    assert not [one for one in app.button if one.key == "latency-confidence"]


# --- its parts ------------------------------------------------------------------------------------------------------


def test_rates_to_simulate_are_apart_and_below_the_limit() -> None:
    assert latency_growth.rates_to_simulate(50.0, 50.5, 100.0) == [30.0, 80.0, 95.0]
    assert latency_growth.rates_to_simulate(10.0, 60.0, 100.0) == [30.0, 50.0, 60.0, 80.0, 95.0]


def test_the_verdict_names_what_is_missed(found: Plan) -> None:
    worse = replace(found.targets[0], predicted_s=math.inf, met=False)
    text = latency_tab.verdict(replace(found, simulated=False, targets=(worse, *found.targets[1:])))
    assert text == "Not held by theory: p95 TTFT. The fleet is overloaded."


def test_the_confidence_found_is_told_once_it_is_known(found: Plan) -> None:
    assert found.confidence is not None
    text = latency_tab.confidence_in_words(found)
    assert text.endswith(f"with a probability of {found.confidence.words}.")
    assert "follows the simulation" in latency_tab.confidence_in_words(replace(found, confidence=None))
    unknown = replace(found, confidence=replace(found.confidence, uncalibrated=("h100-sxm",)))
    assert "of h100-sxm are bounds" in latency_tab.confidence_in_words(unknown)


def test_work_without_targets_has_latencies_and_no_rate_at_which_targets_fail() -> None:
    """It broke at the least of no crossings."""
    app = pages.shown("latency_tab", pages.small("slo=[]"), THEORY)
    assert titles(app) and not any("Sustainable rate" in figure for figure in figures(app))


def test_a_joint_promise_is_judged_by_its_joint_share() -> None:
    text = latency_tab.verdict(plan(small_request(attainment=0.9), alternatives=False))
    assert text.startswith("Within all thresholds at once: ") and text.endswith("the target is 90 %.")


def test_chunks_leave_room_beside_the_answers() -> None:
    sizes = latency_tab.chunk_choices(calibrated(sku="h100-sxm", max_batched_tokens=3000), 200)
    assert 3000 in sizes and min(sizes) >= 400
