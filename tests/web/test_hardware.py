"""The tab Hardware: what it shows is what the database says, and what is entered there reaches the plan."""

from __future__ import annotations

import re
from datetime import date
from importlib import resources
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

import planner
from hardware_db import Fact, OwnHardware, load_hardware, select_price, sku_words, with_own_hardware
from planner.fleet import hardware_for
from planner.scenario import user_hardware
from planner.web import hardware_tab
from planner.web.results import Page
from tests.builders import SMALL_CHAT
from tests.web import pages
from tests.web.pages import fine, press, said, scenario, small

HARDWARE = load_hardware()
AS_OF = "prices.as_of=2026-11-21"


def tab(section: str = "GPUs", *assignments: str) -> AppTest:
    """The tab after its first run, on a section."""
    return pages.shown("hardware_tab", small(AS_OF, *assignments), state={"hardware-section": section})


# --- GPUs, prices, calibrations, accuracy -----------------------------------------------------------------------------


def test_gpus_are_all_there_with_definitions_facts_and_sources() -> None:
    """Rows of facts are even: a remark of three lines in the first row made it five times as high as the next."""
    app = tab()
    frame, text = app.dataframe[0].value, said(app)
    assert set(frame["gpu"]) == set(map(sku_words, HARDWARE.skus))
    assert frame["gpu"].iloc[0] == "H100 SXM"  # what is searched comes first
    assert frame.set_index("gpu")["hbm_gib"]["H100 SXM"] == 80.0
    assert all(column["help"] for column in hardware_tab.GPU_COLUMNS.values())
    assert all(column is None or column["help"] for column in hardware_tab.PRICE_COLUMNS.values())
    sku = HARDWARE.skus["h100-sxm"]
    assert "What is known about NVIDIA H100 SXM (h100-sxm)" in text
    assert sku.hbm_bandwidth_bytes_per_s.source in text
    assert sku.hbm_bandwidth_bytes_per_s.retrieved_on.isoformat() in text
    assert ">assumed</td>" in text
    (table,) = [one.proto.body for one in app.get("html") if "Peak bf16" in one.proto.body]
    facts = [fact for _, fact in user_hardware.facts_of(sku) if isinstance(fact, Fact)]
    notes = {fact.note for fact in facts if fact.note}
    assert max(map(len, notes)) > 100, "there is a long one"
    listed = next(one.value for one in app.caption if one.value.startswith("1. ")).replace("\\", "").splitlines()
    assert {line.partition(". ")[2] for line in listed} == notes
    cells = re.findall(r"<tr>(.*?)</tr>", table)[1:]
    numbers = [re.sub("<[^>]*>", "", row.rpartition("<td")[2].partition(">")[2]) for row in cells]
    assert {int(number) for number in numbers if number} == set(range(1, len(notes) + 1))
    for words, found in (("amd cdna3", {"MI300X", "MI308X", "MI325X"}), ("no such thing", None)):
        fine(app.text_input(key="gpu-find").set_value(words).run())
        if found:
            assert set(app.dataframe[0].value["gpu"]) == found
    assert "No GPU has that" in app.info[0].value


def test_prices_are_those_of_what_is_chosen() -> None:
    app = tab("Prices")
    assert set(app.dataframe[-1].value["sku"]) == {"H100 SXM"}
    assert app.dataframe[-1].value["is_used"].sum() == 1
    fine(app.multiselect(key="prices-providers").set_value(["TensorWave"]).run())
    assert "No price is listed" in app.info[0].value


def test_calibrations_are_all_there_and_the_kernels_of_the_plans() -> None:
    app = tab("Calibrations")
    assert all(one.stack in said(app) for one in HARDWARE.calibrations)
    assert app.selectbox(key="calibration").value == "H100 SXM, vllm 0.24.0"
    assert "gemm/fp8" in said(app)


def test_accuracy_names_the_closest_runs_and_says_when_they_were_held_out() -> None:
    app = tab("Accuracy")
    assert (
        "Closest measured runs to llama-3.3-70b-instruct on h100-sxm: Llama-3.1-70B fp8 on h100-sxm, vllm, mixed (fit"
        in said(app)
    )
    fine(app.button_group(key="accuracy-metric").set_value("TTFT").run())


@pytest.mark.parametrize("section", list(hardware_tab.SECTIONS))
def test_every_section_stands_without_a_fleet(section: str) -> None:
    tab(section, "slo=[{metric: ttft, percentile: 0.99, threshold_s: 0.0001}]")


# --- one's own --------------------------------------------------------------------------------------------------------


def field(app: AppTest, kind: str, start: str) -> Any:
    return next(one for one in getattr(app, kind) if (one.key or "").startswith(start))


def use(app: AppTest) -> AppTest:
    return fine(next(one for one in app.button if one.label == "Use it").click().run())


def test_what_is_entered_is_planned_with_and_can_be_removed() -> None:
    app = tab("Your own")
    before = scenario(app)
    field(app, "number_input", "own-hbm_bandwidth").set_value(6.7)
    field(app, "text_input", "own-id").set_value("h100.v2")
    use(app)
    request = planner.load_scenario(scenario(app))
    mine = hardware_for(request).skus["h100.v2"]
    bandwidth = mine.hbm_bandwidth_bytes_per_s
    assert (bandwidth.value, bandwidth.kind, bandwidth.source) == (6.7e12, "assumed", user_hardware.ENTERED)
    assert mine.peak_flops_per_s == HARDWARE.skus["h100-sxm"].peak_flops_per_s
    assert request.search.skus == ("h100-sxm", "h100.v2")
    listed = select_price(HARDWARE, "h100-sxm", not_before=date(2026, 5, 25))
    assert listed is not None
    assert request.prices.usd_per_gpu_hour == {"h100.v2": listed.usd_per_gpu_hour}
    assert "HBM bandwidth 6.7 TB/s (was 3.35 TB/s)" in said(app)
    assert scenario(press(app, "remove-sku-h100.v2")) == before


def test_what_cannot_be_is_said_in_place_and_changes_nothing() -> None:
    app = tab("Your own")
    before = scenario(app)
    cases = (
        ("text_input", "own-id", "No Id", "mine", "id = 'No Id'"),
        ("number_input", "own-hbm_capacity", 0.0, 80.0, "HBM capacity [GiB] = 0.0: must be finite and > 0"),
    )
    for kind, start, wrong, right, words in cases:
        field(app, kind, start).set_value(wrong)
        assert words in said(use(app)) and scenario(app) == before
        field(app, kind, start).set_value(right)
    unpriced = sorted(set(HARDWARE.skus) - {price.sku for price in HARDWARE.prices})[0]
    fine(app.selectbox(key="own-base").set_value(unpriced).run())
    assert f"no price is listed for {unpriced}-own" in said(use(app)) and scenario(app) == before


def test_an_uploaded_gpu_and_calibration_reach_the_scenario() -> None:
    folder = resources.files("hardware_db")
    raw = folder.joinpath("skus/h100-sxm.toml").read_bytes().replace(b'"h100-sxm"', b'"mine"')
    app = tab("Your own")
    app.file_uploader(key="own-sku-file").upload("mine.toml", raw, "text/plain")
    assert "NVIDIA H100 SXM (mine)" in said(fine(app.run()))
    field(app, "number_input", "own-file-usd").set_value(2.0)
    press(app, "own-sku-use")
    raw = folder.joinpath("calibrations/h100-sxm__vllm-0.24.0.json").read_bytes().replace(b'"h100-sxm"', b'"mine"')
    app.file_uploader(key="own-calibration-file").upload("mine.json", raw, "application/json")
    press(fine(app.run()), "own-calibration-use")
    own = planner.load_scenario(scenario(app)).own_hardware
    assert [sku.id for sku in own.skus] == [one.sku for one in own.calibrations] == ["mine"]
    press(app, "remove-calibration-mine")
    assert not planner.load_scenario(scenario(app)).own_hardware.calibrations


def test_own_gpus_come_first_and_are_marked() -> None:
    mine = user_hardware.edited_sku(HARDWARE.skus["l4"], "mine", "Mine", {}, date(2026, 11, 22))
    hardware = with_own_hardware(HARDWARE, OwnHardware(skus=(mine,)))
    request = planner.load_scenario("chat-llama-70b", (*SMALL_CHAT, AS_OF))
    plan = planner.plan(request, hardware, simulate=False, alternatives=False)
    rows = hardware_tab.gpu_rows(Page({}, "", request, hardware, plan))
    assert [(row["gpu"], row["own"]) for row in rows[:2]] == [("mine", True), ("h100-sxm", False)]
