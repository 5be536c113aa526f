"""The tab *Roofline* on a page of its own: what it says is what the engine says."""

from __future__ import annotations

import json
from functools import cache

import pytest
from streamlit.testing.v1 import AppTest

import planner
from planner.charts import Row, replicas, rooflines, steps
from planner.core import Table, significant
from planner.fleet import PlanRequest, hardware_for
from planner.report import glossary
from planner.search import on_sku
from planner.serving import Role
from planner.web import roofline_tab
from planner.web.results import Page
from planner.web.roofline_tab import HINTS

SMALL = (
    "workload.drift=none",
    "search.skus=[h100-sxm, l40s]",
    "search.tp=[4]",
    "search.max_running_requests=[256]",
    "search.max_batched_tokens=[2048]",
)


def request_of(*changes: str) -> PlanRequest:
    return planner.load_scenario("chat-llama-70b", [*SMALL, *changes])


@cache
def page_of(*changes: str) -> Page:
    """A page with the plan by theory; the search is all but done, and what is left takes parts of a second."""
    request = request_of(*changes)
    hardware = hardware_for(request)
    plan = planner.plan(request, hardware, simulate=False, alternatives=False)
    return Page({}, repr(changes), request, hardware, plan)


def script(changes: tuple[str, ...]) -> None:
    from planner.web import roofline_tab
    from tests.web.test_roofline import page_of

    roofline_tab.show(page_of(*changes))


def shown(*changes: str) -> AppTest:
    app = AppTest.from_function(script, args=(changes,), default_timeout=30).run()
    assert not app.exception
    return app


MIXED = "search.modes=[mixed]"


@pytest.fixture(scope="module")
def mixed() -> AppTest:
    return shown(MIXED)


def figures(app: AppTest) -> dict[str, str]:
    return {one.label: one.value for one in app.metric}


def html(app: AppTest) -> str:
    return "".join(str(one.proto.body) for one in app.get("html"))


def test_figures_are_the_engines_own(mixed: AppTest) -> None:
    (chosen,) = roofline_tab.pools_of(page_of(MIXED))
    model = on_sku(chosen.pool, chosen.planned.workload.lengths, "h100-sxm", page_of(MIXED).hardware).model
    assert model is not None
    decode = steps.decode_row(model, round(chosen.running))
    assert figures(mixed)["Decode step"] == f"{significant(decode['step_ms'])} ms"
    assert figures(mixed)["Output tokens/s per GPU"] == significant(decode["tokens_per_s_per_gpu"])
    assert figures(mixed)["Weights compute-bound from"] == "295 tokens"  # 1978.9 / 3.35 / 2, one byte a weight
    interval = next(one for one in mixed.metric if one.label == "Decode step").delta
    assert interval == f"{significant(decode['low_ms'])} to {significant(decode['high_ms'])} ms (90 %)"


def test_another_gpu_changes_every_figure(mixed: AppTest) -> None:
    app = shown(MIXED)
    app.selectbox[0].set_value("l40s").run()
    assert not app.exception
    before, after = figures(mixed), figures(app)
    assert before.keys() == after.keys() and all(before[name] != after[name] for name in before)
    assert "On l40s TP4" in app.markdown[0].value


def test_another_batch_changes_the_step() -> None:
    app = shown(MIXED)
    single = figures(app)
    app.number_input[0].set_value(200).run()
    assert not app.exception
    assert "decode step (200 running)" in app.markdown[0].value
    assert figures(app)["Decode step"] != single["Decode step"]
    assert figures(app)["Prefill step"] == single["Prefill step"]


def test_every_sku_of_the_search_is_compared(mixed: AppTest) -> None:
    text = html(mixed)
    assert "h100-sxm (planned)" in text and "<td" in text and "l40s" in text
    assert "https://www.nvidia.com/en-us/data-center/h100/" in text
    assert len(mixed.get("vega_lite_chart")) == 6 + 2


def test_every_sku_has_its_own_roof_with_what_its_steps_take(mixed: AppTest) -> None:
    titles = [json.loads(one.proto.spec)["title"] for one in mixed.get("vega_lite_chart")]
    own, other = (title for title in titles if title["text"] in ("h100-sxm (planned)", "l40s"))
    assert own["subtitle"][0].startswith(f"decode {figures(mixed)['Decode step']}")
    assert own["subtitle"][1].startswith("decode waits for ") and other["subtitle"][0] != own["subtitle"][0]


def test_all_formats_are_a_click_away() -> None:
    app = shown(MIXED)
    few = html(app)
    app.toggle[0].set_value(True).run()
    assert not app.exception
    assert ">int8</td>" in html(app) and ">int8</td>" not in few


def test_two_pools_can_be_chosen_from() -> None:
    app = shown("search.modes=[disaggregated]")
    pool = app.selectbox[0]
    assert pool.label == "Pool" and len(pool.options) == 2
    roles = [one.pool.role for one in roofline_tab.pools_of(page_of("search.modes=[disaggregated]"))]
    assert set(roles) == {Role.PREFILL, Role.DECODE}
    for place, role in enumerate(roles):
        app.selectbox[0].set_value(place).run()
        assert not app.exception
        step = {Role.PREFILL: "Prefill step", Role.DECODE: "Decode step"}[role]
        assert [name for name in figures(app) if name.endswith("step")] == [step]
        assert len(app.number_input) == (role is Role.DECODE)


def test_a_gpu_that_is_too_small_is_explained_in_place() -> None:
    """Four A10s of 24 GB do not hold 141 GB of 16-bit weights."""
    formats = ("precision={weights: bf16, activations: bf16, kv_cache: bf16}", MIXED)
    app = shown(*formats, "search.skus=[h100-sxm, a10]")
    assert "does not fit" in html(app)
    app.selectbox[0].set_value("a10").run()
    assert not app.exception
    assert "does not fit on a10" in app.warning[0].value and not app.metric


def test_without_measurements_there_is_no_interval_and_it_says_so() -> None:
    app = shown(MIXED, "search.calibrated=false")
    assert {one.label: one.delta for one in app.metric}["Decode step"] in ("", None)
    assert "datasheet rooflines, a bound" in html(app)


def test_without_a_fleet_there_is_a_sentence() -> None:
    app = shown(MIXED, "slo=[{metric: tpot, percentile: 0.99, threshold_s: 0.0001}]")
    assert "no fleet" in app.info[0].value and not app.metric


def test_a_plan_of_more_confidence_is_shown_with_the_times_estimated_all_the_same() -> None:
    (sure,), (plain,) = roofline_tab.pools_of(page_of(MIXED, "confidence=0.95")), roofline_tab.pools_of(page_of(MIXED))
    assert sure.pool.config.calibration == plain.pool.config.calibration
    assert sure.pool.config.shift is None


def test_every_heading_is_explained() -> None:
    page = page_of(MIXED)
    (chosen,) = roofline_tab.pools_of(page)
    fitted = [on_sku(chosen.pool, chosen.planned.workload.lengths, sku, page.hardware) for sku in ("h100-sxm", "l40s")]
    rows, own = replicas.sku_rows(fitted, 8.0), chosen.pool.config
    tables: list[Table] = [roofline_tab.sku_table(rows, own, role, 8.0) for role in Role]
    ridges = rooflines.ridge_rows(page.hardware.skus.values())
    tables += [roofline_tab.ridge_table(ridges), roofline_tab.ridge_table(ridges[:1])]
    for table in tables:
        assert all(HINTS.get(name) or glossary.hint(name) for name in table.columns)
        assert all(len(row) == len(table.columns) for row in table.rows)


def test_the_best_gpu_is_named() -> None:
    rows: list[Row] = [
        {"sku": "a", "decode_ms": 20.0},
        {"sku": "b", "decode_ms": 15.0},
        {"sku": "c", "decode_ms": None},
    ]
    text = roofline_tab.gpu_verdict(rows, "a", Role.MIXED)
    assert text == "Of the GPUs of the search b has the shortest decode step: 15 ms, 25 % less than a (prices aside)."
    assert roofline_tab.gpu_verdict(rows, "b", Role.DECODE).startswith("No other GPU of the search has a shorter")
    assert roofline_tab.gpu_verdict(rows[:1], "a", Role.MIXED) == ""
