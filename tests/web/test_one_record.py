"""One record of a plan: every tab and every command shows its cost, GPUs, probability, headroom and prices."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

import planner
from planner.analysis import Headroom, headline, headroom
from planner.charts import latencies
from planner.core import change, json_text, money, percent, write_text
from planner.fleet import Plan
from planner.report import plan_to_dict
from planner.scenario import full_content, read_scenario
from planner.web import latency_growth
from tests.cli.shell import data, flat, planned_once
from tests.web.pages import COMPLETE, figures, said, shown, titles, values

LENGTHS = {"input_tokens": 900, "output_tokens": 120}
SLO = [
    {"metric": "ttft", "percentile": 0.95, "threshold_s": 1.0},
    {"metric": "tpot", "percentile": 0.95, "threshold_s": 0.04},
]
SEARCH = {
    **{"skus": ["h100-sxm"], "modes": ["mixed"], "tp": [1]},
    **{"max_running_requests": [128], "max_batched_tokens": [2048]},
}
BASE: Mapping[str, Any] = {
    "llm": "llama-3.1-8b",
    "workload": {"rate_per_s": 60, "lengths": LENGTHS},
    "slo": SLO,
    "search": SEARCH,
    "prices": {"as_of": "2026-11-21"},
    "simulation": {"requests": 1000},
}
OTHER = {
    **{"name": "second", "llm": "qwen3-8b", "workload": {"rate_per_s": 20, "lengths": LENGTHS}},
    "slo": SLO[:1],
}
OWN = {"h100-sxm": {"count": 12, "capex_usd_per_gpu": 20000.0}}
SCENARIOS: Mapping[str, Mapping[str, Any]] = {
    "pair": {**BASE, "search": {**SEARCH, "modes": ["disaggregated"]}},
    "mixed, owned, surer": {**BASE, "confidence": 0.97, "prices": {**BASE["prices"], "owned": OWN}},
    "two models": {**BASE, "confidence": 0.5, "services": [OTHER]},
}


@dataclass(frozen=True)
class Recorded:
    """A scenario with the record of its plan, which every part of the page and every command is held to."""

    content: dict[str, Any]
    plan: Plan
    headroom: Headroom
    file: Path
    document: Path

    @property
    def usd_per_hour(self) -> float:
        assert self.plan.cost is not None
        return self.plan.cost.usd_per_hour

    @property
    def month(self) -> str:
        assert self.plan.cost is not None
        return headline.dollars(self.plan.cost.usd_per_month)

    @property
    def gpus(self) -> int:
        return sum(self.plan.gpus.values())

    @property
    def sure(self) -> str:
        assert self.plan.confidence is not None
        return self.plan.confidence.words


@pytest.fixture(scope="module", autouse=True)
def _planned_once() -> Iterator[None]:
    """The same is planned once for pages and commands: they are held to what they show, not to making it again."""
    with planned_once() as patch:
        patch.setattr(latencies, "BAND_POINTS", 2)
        patch.setattr(latency_growth, "SIMULATED_LOADS", ())
        yield


@pytest.fixture(scope="module", params=SCENARIOS)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("record")
    file, document = folder / "scenario.yaml", folder / "plan.json"
    content = {"name": request.param, **SCENARIOS[request.param]}
    file.write_text(json.dumps(content), encoding="utf-8")  # which is YAML, too
    scenario, _ = read_scenario(str(file))
    found = planner.plan(planner.load_scenario(str(file)))
    assert found.feasible and found.simulated
    written = replace(found, scenario=scenario.model_dump(mode="json", exclude_unset=True))
    write_text(document, json_text(plan_to_dict(written)))
    return Recorded(full_content(scenario), found, headroom(found), file, document)


def page(recorded: Recorded, parts: str, **state: object) -> AppTest:
    return shown(parts, recorded.content, COMPLETE, state=state)


# --- tabs -----------------------------------------------------------------------------------------------------------


def test_the_answer_shows_the_record(recorded: Recorded) -> None:
    app = page(recorded, "summary")
    shown_values, text = values(app), said(app)
    assert shown_values["Per month"] == recorded.month
    assert shown_values["Fleet"].split()[0] == f"{recorded.gpus:,}"
    assert shown_values["Headroom"] == change(recorded.headroom.share)
    assert figures(app)["Headroom"].delta == headline.headroom_words(recorded.headroom)
    assert f"all targets held with {recorded.sure} probability" in text


def test_plan_tab_shows_the_record(recorded: Recorded) -> None:
    app = page(recorded, "plan_tab")
    text = said(app)
    assert f"holds with {recorded.sure} ({percent(recorded.plan.request.confidence)} asked)" in text
    assert recorded.plan.cost is not None and headline.goodput_words(recorded.plan.cost) in text
    assert f">{money(recorded.usd_per_hour)}<" in text  # of the table of costs
    for bought in recorded.plan.bought:
        assert f">{money(bought.usd_per_gpu_hour)}<" in text
    if recorded.plan.request.services:
        assert "second mixed" in text and "llama-3.1-8b mixed" in text


def test_why_tab_compares_with_the_record(recorded: Recorded) -> None:
    app = page(recorded, "why_tab")
    sliders = [one for one in app.select_slider if one.label.startswith("Price of")]
    paid = recorded.plan.paid_usd_per_gpu_hour
    assert [one.format_func(1.0) for one in sliders] == [f"${money(usd)}" for usd in paid.values()]


def test_latency_tab_has_the_interval_and_the_headroom_of_the_record(recorded: Recorded) -> None:
    app = page(recorded, "latency_tab")
    text, shown_values = said(app), values(app)
    assert f"This fleet does with a probability of {recorded.sure}." in text
    if len(recorded.plan.deployments) == 1:
        assert shown_values["Headroom of this deployment"] == change(recorded.headroom.share)
    slow = [planner.core.with_unit(check.predicted_s, check.target.metric) for check in recorded.plan.slow_targets]
    ends = [str(one.delta) for one in figures(app).values() if str(one.delta).endswith("if fast or slow")]
    assert [end.removesuffix(", if fast or slow").rpartition(" to ")[2] for end in ends] == slow


def test_roofline_tab_is_about_the_pools_of_the_record(recorded: Recorded) -> None:
    text = said(page(recorded, "roofline_tab"))
    assert not re.findall(r"\d\.\d\d %", text)
    assert any(pool.config.words in text for pool in recorded.plan.pools)


def test_cost_tab_shows_the_record(recorded: Recorded) -> None:
    app = page(recorded, "cost_tab")
    shown_values = values(app)
    assert shown_values["$ per hour"] == headline.dollars(recorded.usd_per_hour)
    assert shown_values["$ per month"] == recorded.month
    assert recorded.plan.cost is not None
    assert any(f"Where ${recorded.plan.cost.usd_per_month:,.0f} a month goes" in title for title in titles(app))
    for bought in recorded.plan.bought:
        assert f">{money(bought.usd_per_gpu_hour)}<" in said(app)


@pytest.mark.parametrize("section", ["GPUs", "Scenarios"])
def test_compare_tab_sets_the_record_beside_others(recorded: Recorded, section: str) -> None:
    saved = [{"id": 1, "name": "saved", "content": recorded.content}]
    text = said(page(recorded, "compare_tab", **{"compare-section": section, "saved_scenarios": saved}))
    assert recorded.plan.cost is not None
    month = money(recorded.plan.cost.usd_per_month)
    if section == "GPUs":  # the plan is of this GPU alone
        assert f"costs least alone: {month} USD per month for {recorded.gpus} GPU" in text
        assert "as the plan does" in text
    else:
        assert month in text or recorded.month in text


def test_hardware_tab_marks_the_prices_that_are_paid(recorded: Recorded) -> None:
    app = page(recorded, "hardware_tab", **{"hardware-section": "Prices"})
    paid = {one.price.usd_per_gpu_hour for one in recorded.plan.bought if one.price is not None}
    frame = app.dataframe[0].value
    assert paid <= set(frame["usd_per_gpu_hour"])


# --- commands -------------------------------------------------------------------------------------------------------


def test_plan_prints_the_record(recorded: Recorded) -> None:
    text = flat("plan", recorded.file, "-q")
    assert f"{money(recorded.usd_per_hour)} USD/hour" in text
    assert f"holds with {recorded.sure} " in text
    assert sum(map(int, re.findall(r"(\d+) × H100 SXM \(", text))) == recorded.gpus


def test_explain_and_what_if_start_from_the_record(recorded: Recorded) -> None:
    found = data("explain", recorded.document, "--only", "headroom,prices")["explanation"]
    assert found["outcome"]["usd_per_hour"] == pytest.approx(recorded.usd_per_hour, rel=1e-9)
    assert found["outcome"]["gpus"] == recorded.plan.gpus
    assert found["headroom"]["share"] == pytest.approx(recorded.headroom.share, abs=5e-3)
    for price in found["prices"]:
        paid = recorded.plan.paid_usd_per_gpu_hour.get(price["sku"], price["usd_per_gpu_hour"])
        assert price["usd_per_gpu_hour"] == pytest.approx(paid)
    rate = recorded.plan.request.workload.rate_per_s
    before = data("what-if", recorded.document, "--set", f"workload.rate_per_s={1.3 * rate}")["what_if"]["before"]
    assert before["cost"]["usd_per_month"] == pytest.approx(recorded.usd_per_hour * 730.0)
    assert before["outcome"]["gpus"] == recorded.plan.gpus


def test_forecast_grows_the_record(recorded: Recorded) -> None:
    found = data("forecast", recorded.document, "--growth", "0.05", "--purchases", 0)["growth"]
    assert found["headroom"] == pytest.approx(recorded.headroom.share, abs=5e-3)


def test_the_fleet_of_the_record_performs_as_it_says(recorded: Recorded) -> None:
    """`evaluate` of the same replicas; only of one mixed pool, which the command takes as options."""
    if len(recorded.plan.pools) > 1:
        return
    (planned,) = recorded.plan.deployments
    (pool,) = planned.surviving.pools
    config = pool.config
    words = ["evaluate", "--scenario", recorded.file, "--sku", config.sku.id, "--replicas", pool.replicas]
    words += ["--tp", config.parallelism.tp, "--weights", config.precision.weights, "--kv", config.precision.kv_cache]
    words += ["--max-running-requests", config.max_running_requests, "--max-batched-tokens", config.max_batched_tokens]
    found = data(*words, "--activations", config.precision.activations)["performance"]
    assert found["ttft_s"]["p95"] == pytest.approx(recorded.plan.targets[0].predicted_s, rel=1e-6)
    assert found["tpot_s"]["p95"] == pytest.approx(recorded.plan.targets[1].predicted_s, rel=1e-6)


def test_the_document_is_the_record(recorded: Recorded) -> None:
    found = json.loads(recorded.document.read_text(encoding="utf-8"))
    again = planner.load_plan(recorded.document)
    assert found["gpus"] == recorded.plan.gpus and again.cost == recorded.plan.cost
    assert again.confidence == recorded.plan.confidence
    assert headroom(again).share == pytest.approx(recorded.headroom.share, abs=5e-3)
