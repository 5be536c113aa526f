"""The tab *Roofline* on a page of its own: what it says is what the engine says."""

from __future__ import annotations

from functools import cache

import pytest
from streamlit.testing.v1 import AppTest

import planner
from planner.charts import Row, replicas, rooflines, steps
from planner.core import significant
from planner.fleet import hardware_for
from planner.report import glossary
from planner.search import on_sku
from planner.serving import Role
from planner.web import roofline_tab
from planner.web.results import Page
from planner.web.roofline_tab import HINTS
from tests.builders import SMALL_CHAT
from tests.web import pages
from tests.web.pages import charts, figures, fine, html, said, values

SMALL = ("search.skus=[h100-sxm, l40s]", "search.tp=[4]")


@cache
def page_of(*changes: str) -> Page:
    """A page with the plan by theory; the search is all but done, and what is left takes parts of a second."""
    request = planner.load_scenario("chat-llama-70b", [*SMALL_CHAT, *SMALL, *changes])
    hardware = hardware_for(request)
    plan = planner.plan(request, hardware, simulate=False, alternatives=False)
    return Page({}, repr(changes), request, hardware, plan)


def shown(*changes: str) -> AppTest:
    return pages.shown("roofline_tab", pages.small(*SMALL, *changes))


@pytest.fixture(scope="module")
def mixed() -> AppTest:
    return shown()


def test_figures_are_the_engines_own(mixed: AppTest) -> None:
    (chosen,) = roofline_tab.pools_of(page_of())
    model = on_sku(chosen.pool, chosen.planned.workload.lengths, "h100-sxm", page_of().hardware).model
    assert model is not None
    decode = steps.decode_row(model, round(chosen.running))
    assert values(mixed)["Decode step"] == f"{significant(decode['step_ms'])} ms"
    assert values(mixed)["Output tokens/s per GPU"] == significant(decode["tokens_per_s_per_gpu"])
    assert values(mixed)["Weights compute-bound from"] == "295 tokens"  # 1978.9 / 3.35 / 2, one byte a weight
    interval = figures(mixed)["Decode step"].delta
    assert interval == f"{significant(decode['low_ms'])} to {significant(decode['high_ms'])} ms (90 %)"


def test_every_sku_is_compared_and_has_its_own_roof_with_what_its_steps_take(mixed: AppTest) -> None:
    text = html(mixed)
    assert "H100 SXM (planned)" in text and "<td" in text and "L40S" in text
    assert "https://www.nvidia.com/en-us/data-center/h100/" in text
    found = [spec["title"] for spec in charts(mixed)]
    assert len(found) == 6 + 2
    own, other = (title for title in found if title["text"] in ("H100 SXM (planned)", "L40S"))
    assert own["subtitle"][0].startswith(f"decode {values(mixed)['Decode step']}")
    assert own["subtitle"][1].startswith("decode waits for ") and other["subtitle"][0] != own["subtitle"][0]


def test_a_phone_gets_the_first_step_and_the_roof_and_opens_the_rest(mixed: AppTest) -> None:
    """Everything at once was 7,100 pixels long on a phone."""
    folds = {one.label: one.proto.expanded for one in mixed.expander}
    assert [name for name, is_open in folds.items() if is_open] == [next(iter(folds))] and len(folds) == 6


def test_another_batch_gpu_and_format_are_a_click_away(mixed: AppTest) -> None:
    app, before, few = shown(), values(mixed), html(mixed)
    fine(app.number_input[0].set_value(200).run())
    assert "decode step (200 running)" in said(app)
    assert values(app)["Decode step"] != before["Decode step"] and values(app)["Prefill step"] == before["Prefill step"]
    fine(app.toggle[0].set_value(True).run())
    assert ">int8</td>" in html(app) and ">int8</td>" not in few
    fine(app.selectbox[0].set_value("l40s").run())
    assert before.keys() == values(app).keys() and all(before[name] != after for name, after in values(app).items())
    assert "On L40S TP4" in app.markdown[0].value


def test_two_pools_can_be_chosen_from() -> None:
    changes = "search.modes=[disaggregated]"
    app = shown(changes)
    assert app.selectbox[0].label == "Pool" and len(app.selectbox[0].options) == 2
    roles = [one.pool.role for one in roofline_tab.pools_of(page_of(changes))]
    assert set(roles) == {Role.PREFILL, Role.DECODE}
    for place, role in enumerate(roles):
        fine(app.selectbox[0].set_value(place).run())
        step = {Role.PREFILL: "Prefill step", Role.DECODE: "Decode step"}[role]
        assert [name for name in figures(app) if name.endswith("step")] == [step]
        assert len(app.number_input) == (role is Role.DECODE)


def test_a_gpu_that_is_too_small_is_explained_in_place() -> None:
    """Four A10s of 24 GB do not hold 141 GB of 16-bit weights."""
    formats = "precision={weights: bf16, activations: bf16, kv_cache: bf16}"
    app = shown(formats, "search.skus=[h100-sxm, a10]")
    assert "does not fit" in html(app)
    fine(app.selectbox[0].set_value("a10").run())
    assert "does not fit on a10" in app.warning[0].value and not app.metric


def test_without_measurements_there_is_no_interval_and_without_a_fleet_a_sentence() -> None:
    app = shown("search.calibrated=false")
    assert figures(app)["Decode step"].delta in ("", None)
    assert "datasheet rooflines, a bound" in html(app)
    app = shown("slo=[{metric: tpot, percentile: 0.99, threshold_s: 0.0001}]")
    assert "no fleet" in app.info[0].value and not app.metric


def test_a_plan_of_more_confidence_is_shown_with_the_times_estimated_all_the_same() -> None:
    (sure,), (plain,) = roofline_tab.pools_of(page_of("confidence=0.95")), roofline_tab.pools_of(page_of())
    assert sure.pool.config.calibration == plain.pool.config.calibration
    assert sure.pool.config.shift is None


def test_every_heading_is_explained() -> None:
    page = page_of()
    (chosen,) = roofline_tab.pools_of(page)
    fitted = [on_sku(chosen.pool, chosen.planned.workload.lengths, sku, page.hardware) for sku in ("h100-sxm", "l40s")]
    rows, ridges = replicas.sku_rows(fitted, 8.0), rooflines.ridge_rows(page.hardware.skus.values())
    tables = [roofline_tab.sku_table(rows, chosen.pool.config, role, 8.0) for role in Role]
    for table in (*tables, roofline_tab.ridge_table(ridges), roofline_tab.ridge_table(ridges[:1])):
        assert all(HINTS.get(name) or glossary.hint(name) for name in table.columns)
        assert all(len(row) == len(table.columns) for row in table.rows)


def test_the_best_gpu_is_named() -> None:
    rows: list[Row] = [{"sku": sku, "decode_ms": ms} for sku, ms in (("a", 20.0), ("b", 15.0), ("c", None))]
    text = roofline_tab.gpu_verdict(rows, "a", Role.MIXED)
    assert text == "Of the GPUs of the search b has the shortest decode step: 15 ms, 25 % less than a (prices aside)."
    assert roofline_tab.gpu_verdict(rows, "b", Role.DECODE).startswith("No other GPU of the search has a shorter")
    assert roofline_tab.gpu_verdict(rows[:1], "a", Role.MIXED) == ""
