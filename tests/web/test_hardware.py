"""The tab Hardware: what it shows is what the database says, and what is entered there reaches the plan."""

from __future__ import annotations

import json
import re
from datetime import date
from importlib import resources
from typing import Any

import altair as alt
import pytest
from streamlit.testing.v1 import AppTest

import planner
from calibration import METRICS, accuracy_rows
from hardware_db import Dtype, Fact, HardwareDb, OwnHardware, load_hardware, select_price, with_own_hardware
from planner.charts import hardware as charts
from planner.fleet import hardware_for
from planner.roofline import ridge_point_flops_per_byte
from planner.scenario import full_content, read_scenario, user_hardware
from planner.web import hardware_tab
from planner.web.results import Page
from tests.builders import SMALL_CHAT

HARDWARE = load_hardware()
SMALL = (*SMALL_CHAT, "prices.as_of=2026-11-21")


def run_tab() -> None:
    """The tab alone, of a small scenario that stands in the session as `small`."""
    import json

    import streamlit as st

    from planner.web import hardware_tab, results, session

    if "scenario" not in st.session_state:
        session.start()
        session.replace_scenario(json.loads(st.session_state.small))
        st.session_state.past = []
    hardware_tab.show(results.page_of(session.content(), session.key()))


def tab(section: str = "", *assignments: str) -> AppTest:
    """The tab after its first run, on a section."""
    app = AppTest.from_function(run_tab, default_timeout=30)
    app.session_state["small"] = json.dumps(full_content(read_scenario("chat-llama-70b", [*SMALL, *assignments])[0]))
    if section:
        app.session_state["hardware-section"] = section
    return fine(app.run())


def fine(app: AppTest) -> AppTest:
    assert not app.exception
    return app


def scenario(app: AppTest) -> dict[str, Any]:
    found: dict[str, Any] = app.session_state["scenario"]
    return found


def text_of(app: AppTest) -> str:
    shown = [*app.markdown, *app.caption, *app.info, *app.error]
    return "\n".join([one.value for one in shown] + [one.proto.body for one in app.get("html")]).replace("\\", "")


def test_rows_of_facts_are_even_and_every_note_is_readable_under_them() -> None:
    """A remark of three lines in the first row made it five times as high as the next."""
    app = tab()
    (table,) = [one.proto.body for one in app.get("html") if "Peak bf16" in one.proto.body]
    facts = [fact for _, fact in user_hardware.facts_of(HARDWARE.skus["h100-sxm"]) if isinstance(fact, Fact)]
    notes = {fact.note for fact in facts if fact.note}
    assert max(map(len, notes)) > 100, "there is a long one"
    listed = next(one.value for one in app.caption if one.value.startswith("1. ")).replace("\\", "").splitlines()
    assert {line.partition(". ")[2] for line in listed} == notes
    cells = re.findall(r"<tr>(.*?)</tr>", table)[1:]
    numbers = [re.sub("<[^>]*>", "", row.rpartition("<td")[2].partition(">")[2]) for row in cells]
    assert {int(number) for number in numbers if number} == set(range(1, len(notes) + 1))


# --- charts -----------------------------------------------------------------------------------------------------------


def test_a_gpu_lies_on_its_ridge_point() -> None:
    rows = charts.sku_map_rows(HARDWARE, Dtype.FP8, "vllm", ["h100-sxm"])
    assert {row["sku"] for row in rows} == {n for n, sku in HARDWARE.skus.items() if Dtype.FP8 in sku.peak_flops_per_s}
    for row in rows:
        ridge = row["peak_tflops_per_s"] / row["bandwidth_tb_per_s"]
        assert ridge == pytest.approx(ridge_point_flops_per_byte(HARDWARE.skus[row["sku"]], Dtype.FP8))
        assert row["ridge_flops_per_byte"] == pytest.approx(ridge)
    assert [row["sku"] for row in rows if row["is_marked"]] == ["h100-sxm"]


def test_ridge_lines_have_the_slope_they_say() -> None:
    lines, ends = charts._ridge_lines([0.5, 8.0], [100.0, 5000.0])
    assert len(ends) == len(lines) / 2 > 3
    for line in lines:
        assert line["peak_tflops_per_s"] / line["bandwidth_tb_per_s"] == pytest.approx(float(line["ridge"]))
        assert 0.5 <= line["bandwidth_tb_per_s"] <= 8.0
        assert 99.9 <= line["peak_tflops_per_s"] <= 5000.1


def test_what_is_known_of_kernels_follows_the_calibrations() -> None:
    bare = HARDWARE.model_copy(update={"calibrations": ()})
    assert charts.knowledge(bare, "h100-sxm", "vllm") == (charts.DATASHEET, "")
    kind, source = charts.knowledge(HARDWARE, "mi300x", "vllm")
    assert kind == charts.PARTLY
    assert source.startswith("mi300x, vllm")
    assert charts.knowledge(HARDWARE, "h100-pcie", "vllm")[0] == charts.BORROWED


def test_prices_keep_their_number_source_and_age() -> None:
    day = date(2026, 11, 21)
    rows = charts.price_rows(HARDWARE.prices, day)
    listed = sorted((one.sku, one.usd_per_gpu_hour, one.source_url, one.retrieved_on) for one in HARDWARE.prices)
    shown = [
        (row["sku"], row["usd_per_gpu_hour"], row["source_url"], date.fromisoformat(row["retrieved_on"]))
        for row in rows
    ]
    assert sorted(shown) == listed
    assert all(row["age_days"] == (day - date.fromisoformat(row["retrieved_on"])).days for row in rows)
    assert rows[0]["usd_per_gpu_hour"] == min(price for _, price, _, _ in listed)


def test_the_price_a_plan_pays_is_ringed() -> None:
    paid = select_price(HARDWARE, "h100-sxm")
    assert paid is not None
    rows = charts.price_rows(HARDWARE.prices, date(2026, 11, 21), [paid])
    assert [row["usd_per_gpu_hour"] for row in rows if row["is_used"]] == [paid.usd_per_gpu_hour]


@pytest.mark.parametrize("metric", METRICS)
def test_errors_are_drawn_as_they_were_published(metric: str) -> None:
    rows = charts.accuracy_chart_rows(accuracy_rows(), metric)
    published = {row.name: row for row in accuracy_rows() if row.metric == metric and row.is_group}
    assert len(rows) == len(published) == len({row["label"] for row in rows})
    for row in rows:
        assert row["median_percent"] == pytest.approx(100.0 * published[row["group"]].median)
        assert ("held out" in row["label"]) == (row["part"] == "held out")  # in words, not by colour alone
    parts = [row["part"] for row in rows]
    assert parts == sorted(parts, reverse=True)  # held out first


def pictures() -> list[alt.LayerChart]:
    skus = charts.sku_map_rows(HARDWARE, Dtype.BF16, "vllm", ["h100-sxm", "b200-sxm"])
    prices = charts.price_rows(HARDWARE.prices, date(2026, 11, 21))
    errors = charts.accuracy_chart_rows(accuracy_rows(), "TPOT")
    return [
        charts.sku_map(skus, Dtype.BF16),
        charts.price_chart(prices),
        charts.accuracy_chart(errors, "TPOT", {"dense, mixed": 0.035}),
    ]


@pytest.mark.parametrize("picture", pictures())
def test_a_chart_is_valid_has_a_title_and_units(picture: alt.LayerChart) -> None:
    drawn = picture.to_dict()
    assert drawn["title"]["text"]
    assert "[" in json.dumps(drawn["layer"][0]["encoding"]["x"]["title"])
    assert drawn["description"]


# --- GPUs, prices, calibrations, accuracy -----------------------------------------------------------------------------


def test_gpus_are_all_there_with_a_definition_behind_every_column() -> None:
    app = tab()
    frame = app.dataframe[0].value
    assert set(frame["gpu"]) == set(HARDWARE.skus)
    assert frame["gpu"].iloc[0] == "h100-sxm"  # what is searched comes first
    assert frame.set_index("gpu")["hbm_gib"]["h100-sxm"] == 80.0
    assert all(column["help"] for column in hardware_tab.GPU_COLUMNS.values())
    assert all(column is None or column["help"] for column in hardware_tab.PRICE_COLUMNS.values())


def test_a_gpu_is_found_by_any_of_its_words() -> None:
    app = tab()
    fine(app.text_input(key="gpu-find").set_value("amd cdna3").run())
    assert set(app.dataframe[0].value["gpu"]) == {"mi300x", "mi325x"}
    fine(app.text_input(key="gpu-find").set_value("no such thing").run())
    assert "No GPU has that" in app.info[0].value


def test_the_facts_of_a_gpu_carry_source_day_and_kind() -> None:
    app = tab()
    shown = text_of(app)
    sku = HARDWARE.skus["h100-sxm"]
    assert "What is known about NVIDIA H100 SXM (h100-sxm)" in shown
    assert sku.hbm_bandwidth_bytes_per_s.source in shown
    assert sku.hbm_bandwidth_bytes_per_s.retrieved_on.isoformat() in shown
    assert "planning assumption: network of a typical server" in shown
    assert ">assumed</td>" in shown
    assert len(re.findall('<td(?: class="[a-z]+")? title="', shown)) >= 7 * 13  # every cell has a hover


def test_prices_are_those_of_what_is_chosen() -> None:
    app = tab("Prices")
    assert set(app.dataframe[-1].value["sku"]) == {"h100-sxm"}
    assert app.dataframe[-1].value["is_used"].sum() == 1
    fine(app.multiselect(key="prices-providers").set_value(["TensorWave"]).run())
    assert "No price is listed" in app.info[0].value


def test_calibrations_are_all_there_and_the_kernels_of_the_plans() -> None:
    app = tab("Calibrations")
    shown = text_of(app)
    assert all(one.stack in shown for one in HARDWARE.calibrations)
    assert app.selectbox(key="calibration").value == "h100-sxm, vllm 0.24.0"
    assert "gemm/fp8" in shown


def test_accuracy_names_the_closest_runs_and_says_when_they_were_held_out() -> None:
    app = tab("Accuracy")
    shown = text_of(app)
    assert "Closest measured runs to llama-3.3-70b-instruct on h100-sxm: Llama-3.1-70B fp8 on h100-sxm" in shown
    assert "(fitted)" in shown
    assert "Llama-3.1-70B fp8 on h200-sxm, vllm, mixed" in shown
    fine(app.button_group(key="accuracy-metric").set_value("TTFT").run())


@pytest.mark.parametrize("section", list(hardware_tab.SECTIONS))
def test_every_section_stands_without_a_fleet(section: str) -> None:
    tab(section, "slo=[{metric: ttft, percentile: 0.99, threshold_s: 0.0001}]")


# --- one's own --------------------------------------------------------------------------------------------------------


def field(app: AppTest, kind: str, start: str) -> Any:
    return next(one for one in getattr(app, kind) if (one.key or "").startswith(start))


def use(app: AppTest) -> AppTest:
    return next(one for one in app.button if one.label == "Use it").click().run()


def test_what_is_entered_is_planned_with_and_can_be_removed() -> None:
    app = tab("Your own")
    before = scenario(app)
    field(app, "number_input", "own-hbm_bandwidth").set_value(6.7)
    field(app, "text_input", "own-id").set_value("h100.v2")
    fine(use(app))
    after = scenario(app)
    request = planner.load_scenario(after)
    mine = hardware_for(request).skus["h100.v2"]
    assert mine.hbm_bandwidth_bytes_per_s.value == 6.7e12
    assert (mine.hbm_bandwidth_bytes_per_s.kind, mine.hbm_bandwidth_bytes_per_s.source) == (
        "assumed",
        user_hardware.ENTERED,
    )
    assert mine.peak_flops_per_s == HARDWARE.skus["h100-sxm"].peak_flops_per_s
    assert request.search.skus == ("h100-sxm", "h100.v2")
    listed = select_price(HARDWARE, "h100-sxm", not_before=date(2026, 5, 25))
    assert listed is not None
    assert request.prices.usd_per_gpu_hour == {"h100.v2": listed.usd_per_gpu_hour}
    assert "HBM bandwidth 6.7 TB/s (was 3.35 TB/s)" in text_of(app)
    fine(app.button(key="remove-sku-h100.v2").click().run())
    assert scenario(app) == before


@pytest.mark.parametrize(
    ("kind", "start", "value", "said"),
    [
        ("text_input", "own-id", "No Id", "id = 'No Id'"),
        ("number_input", "own-hbm_capacity", 0.0, "HBM capacity [GiB] = 0.0: must be finite and > 0"),
    ],
)
def test_what_cannot_be_is_said_in_place_and_changes_nothing(kind: str, start: str, value: object, said: str) -> None:
    app = tab("Your own")
    before = scenario(app)
    field(app, kind, start).set_value(value)
    fine(use(app))
    assert said in text_of(app)
    assert scenario(app) == before


def test_a_gpu_without_any_price_asks_for_one() -> None:
    unpriced = sorted(set(HARDWARE.skus) - {price.sku for price in HARDWARE.prices})[0]
    app = tab("Your own")
    before = scenario(app)
    fine(app.selectbox(key="own-base").set_value(unpriced).run())
    fine(use(app))
    assert f"no price is listed for {unpriced}-own" in text_of(app)
    assert scenario(app) == before


def test_an_uploaded_gpu_and_calibration_reach_the_scenario() -> None:
    folder = resources.files("hardware_db")
    raw = folder.joinpath("skus/h100-sxm.toml").read_bytes().replace(b'"h100-sxm"', b'"mine"')
    app = tab("Your own")
    app.file_uploader(key="own-sku-file").upload("mine.toml", raw, "text/plain")
    fine(app.run())
    assert "NVIDIA H100 SXM (mine)" in text_of(app)
    field(app, "number_input", "own-file-usd").set_value(2.0)
    fine(app.button(key="own-sku-use").click().run())
    raw = folder.joinpath("calibrations/h100-sxm__vllm-0.24.0.json").read_bytes().replace(b'"h100-sxm"', b'"mine"')
    app.file_uploader(key="own-calibration-file").upload("mine.json", raw, "application/json")
    fine(app.run())
    fine(app.button(key="own-calibration-use").click().run())
    own = planner.load_scenario(scenario(app)).own_hardware
    assert [sku.id for sku in own.skus] == [one.sku for one in own.calibrations] == ["mine"]
    fine(app.button(key="remove-calibration-mine").click().run())
    assert not planner.load_scenario(scenario(app)).own_hardware.calibrations


def test_own_gpus_come_first_and_are_marked() -> None:
    mine = user_hardware.edited_sku(HARDWARE.skus["l4"], "mine", "Mine", {}, date(2026, 11, 22))
    rows = hardware_tab.gpu_rows(page(with_own_hardware(HARDWARE, OwnHardware(skus=(mine,)))))
    assert [(row["gpu"], row["own"]) for row in rows[:2]] == [("mine", True), ("h100-sxm", False)]


def page(hardware: HardwareDb) -> Page:
    request = planner.load_scenario("chat-llama-70b", SMALL)
    plan = planner.plan(request, hardware, simulate=False, alternatives=False)
    return Page({}, "", request, hardware, plan)
