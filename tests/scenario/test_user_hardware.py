"""Hardware of one's own: what is entered is marked, what is uploaded is checked, and what plans do with either."""

from __future__ import annotations

import json
import math
from datetime import date
from importlib import resources

import pytest
import yaml

import planner
from hardware_db import (
    Calibration,
    Fact,
    GpuSku,
    HardwareDb,
    Kind,
    OwnHardware,
    select_calibration,
    with_own_hardware,
)
from hardware_db.loader import networked
from planner.core import InputError
from planner.fleet import hardware_for
from planner.scenario import Scenario, url, user_hardware
from planner.scenario.user_hardware import edited_sku, facts_of
from tests.builders import H100, HARDWARE, YAML_LOADER, with_changes

DAY = date(2026, 11, 22)
BANDWIDTH = "hbm_bandwidth_bytes_per_s"
BAD = (0.0, -1.0, math.inf, math.nan)
SMALL = (
    "workload.drift=none",
    "search.skus=[h100-sxm]",
    "search.modes=[mixed]",
    "search.tp=[4]",
    "search.max_running_requests=[256]",
)


def content(*assignments: str) -> url.Content:
    chosen = (*SMALL, "search.max_batched_tokens=[2048]", "prices.as_of=2026-11-21", *assignments)
    return url.full_content(planner.scenario.read.read_scenario("chat-llama-70b", chosen)[0])


def calibration(sku: str = "h100-sxm") -> Calibration:
    return next(one for one in HARDWARE.calibrations if one.sku == sku)


def packaged_text(folder: str, name: str) -> bytes:
    return resources.files("hardware_db").joinpath(folder, name).read_bytes()


# --- facts ------------------------------------------------------------------------------------------------------------


def test_only_what_was_changed_is_marked_as_assumed() -> None:
    mine = edited_sku(H100, "mine", "Mine", {BANDWIDTH: 4.0, "hbm_capacity_bytes": 80.0}, DAY)
    assert mine.hbm_bandwidth_bytes_per_s == Fact(
        value=4e12, source=user_hardware.ENTERED, retrieved_on=DAY, kind=Kind.ASSUMED, note="was 3.35 TB/s"
    )
    assert mine.hbm_capacity_bytes == H100.hbm_capacity_bytes  # the same number in another unit is no change
    assert mine.peak_flops_per_s == H100.peak_flops_per_s


def test_a_whole_form_filled_with_what_was_shown_changes_no_fact() -> None:
    for sku in HARDWARE.skus.values():
        quantities = [*user_hardware.peak_quantities(sku), *user_hardware.QUANTITIES]
        shown = {one.path: user_hardware.shown_value(sku, one) for one in quantities}
        known = {path: value for path, value in shown.items() if value is not None}
        assert facts_of(edited_sku(sku, sku.id, sku.name, known, DAY)) == facts_of(sku)
    listed = [fact for _, fact in facts_of(H100) if isinstance(fact, Fact)]
    assert len(listed) == H100.model_dump_json().count('"retrieved_on"')  # every one


def test_a_fact_that_was_not_known_can_be_given() -> None:
    unknown = next(sku for sku in HARDWARE.skus.values() if sku.tdp_watts is None)
    assert edited_sku(unknown, "mine", "Mine", {"tdp_watts": 500.0}, DAY).tdp_watts == Fact(
        value=500.0, source=user_hardware.ENTERED, retrieved_on=DAY, kind=Kind.ASSUMED
    )


@pytest.mark.parametrize(
    ("sku_id", "shown", "said"),
    [
        *(("mine", {BANDWIDTH: value}, r"HBM bandwidth \[TB/s\] = .*finite and > 0") for value in BAD),
        *((sku_id, {}, r"^id = ") for sku_id in ("", "Mine", "a b", "-x")),
        ("mine", {"colour": 1.0}, "field"),
    ],
)
def test_what_cannot_be_is_refused(sku_id: str, shown: dict[str, float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        edited_sku(H100, sku_id, "Mine", shown, DAY)


# --- uploads ----------------------------------------------------------------------------------------------------------


def test_packaged_files_read_from_memory_are_what_the_database_has() -> None:
    for name, sku in HARDWARE.skus.items():
        assert user_hardware.sku_of_toml(packaged_text("skus", f"{name}.toml"), "any-name.toml") == sku
    folder = resources.files("hardware_db").joinpath("calibrations")
    for file in folder.iterdir():
        assert networked(user_hardware.calibration_of_json(file.read_bytes())) in HARDWARE.calibrations


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"\xff\xfe", "not UTF-8"),
        (b"id = ", "not valid TOML"),
        (b"", "required field is missing"),
        (b"x" * (user_hardware.MAX_SKU_BYTES + 1), "larger than 100,000 bytes"),
        (b'id = "x"\nhbm_capacity_bytes = { value = 1, source = "nowhere" }', "source = 'nowhere': unknown name"),
    ],
)
def test_a_bad_sku_file_is_refused_with_its_reason(raw: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said):
        user_hardware.sku_of_toml(raw)


def broken(**changes: float) -> bytes:
    """A packaged calibration with coefficients of one GEMM set to other values (None: left out)."""
    fields = json.loads(calibration().model_dump_json())
    parameters = fields["kernels"]["gemm/bf16"]["parameters"]
    for name, value in changes.items():
        if value is None:
            del parameters[name]
        else:
            parameters[name] = {"value": value, "low": value, "high": value}
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"\xff", "not UTF-8"),
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "one JSON object"),
        (b"{}", "required field is missing"),
        (b" " * (user_hardware.MAX_CALIBRATION_BYTES + 1), "larger than 5,000,000 bytes"),
        (broken(compute_efficiency=1.1), r"an efficiency lies in \(0, 1\]"),
        (broken(start_s=-1e-6), "a time cannot be negative"),
        (broken(split_s=None), "lacks .*split_s"),
        (broken().replace(b'"gemm/bf16"', b'"gem/bf16"'), "unknown name"),
        (broken().replace(b'"schema_version": 2', b'"schema_version": 1'), "schema_version"),
    ],
)
def test_a_bad_calibration_is_refused_with_its_reason(raw: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said):
        user_hardware.calibration_of_json(raw)


# --- in the database --------------------------------------------------------------------------------------------------


def test_an_own_sku_stands_in_place_of_the_one_of_its_id_and_of_no_other() -> None:
    faster = edited_sku(H100, H100.id, H100.name, {BANDWIDTH: 5.0}, DAY)
    found = with_own_hardware(HARDWARE, OwnHardware(skus=(faster,)))
    assert found.skus == {**HARDWARE.skus, "h100-sxm": faster}
    assert found.prices == HARDWARE.prices
    assert HARDWARE.skus["h100-sxm"] is H100


def test_own_hardware_twice_is_own_hardware_once() -> None:
    own = OwnHardware(skus=(edited_sku(H100, "mine", "Mine", {}, DAY),))
    once = with_own_hardware(HARDWARE, own)
    assert with_own_hardware(once, own) is once
    assert with_own_hardware(HARDWARE, OwnHardware()) is HARDWARE


def test_an_own_calibration_replaces_all_others_of_its_sku() -> None:
    mine = calibration().model_copy(update={"stack": "mine 1.0", "fitted_on": date(2020, 1, 1)})
    found = with_own_hardware(HARDWARE, OwnHardware(calibrations=(mine,)))
    assert [one for one in found.calibrations if one.sku == "h100-sxm"] == [mine]
    others = [one for one in HARDWARE.calibrations if one.sku != "h100-sxm"]
    assert [one for one in found.calibrations if one.sku != "h100-sxm"] == others
    assert all(select_calibration(found, "h100-sxm", engine) == mine for engine in HARDWARE.engines)


def test_a_calibration_of_a_sku_that_is_not_there_is_refused() -> None:
    stray = calibration().model_copy(update={"sku": "nowhere"})
    with pytest.raises(InputError, match=r"own_hardware.calibrations = 'nowhere': is the calibration of no known SKU"):
        with_own_hardware(HARDWARE, OwnHardware(calibrations=(stray,)))
    mine = edited_sku(H100, "nowhere", "Mine", {}, DAY)
    with_own_hardware(HARDWARE, OwnHardware(skus=(mine,), calibrations=(stray,)))  # with its SKU it is welcome


def test_an_own_sku_borrows_from_the_relatives_of_its_architecture() -> None:
    found = with_own_hardware(HARDWARE, OwnHardware(skus=(edited_sku(H100, "mine", "Mine", {}, DAY),)))
    borrowed = select_calibration(found, "mine", "vllm")
    assert borrowed is not None
    assert HARDWARE.skus[borrowed.sku].architecture == H100.architecture


# --- in a scenario ----------------------------------------------------------------------------------------------------


def test_a_scenario_with_own_hardware_survives_yaml() -> None:
    before = content()
    mine = edited_sku(H100, "mine.v2", "Mine", {BANDWIDTH: 4.0}, DAY)
    after = with_changes(before, user_hardware.changes_with_sku(before, mine, 2.5, searched=True))
    after = with_changes(after, user_hardware.changes_with_calibration(after, calibration()))
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    again = Scenario(**yaml.load(yaml.dump(after, Dumper=dumper), Loader=YAML_LOADER))
    assert url.full_content(again) == after
    assert again.own_hardware == OwnHardware(skus=(mine,), calibrations=(calibration(),))
    request = planner.load_scenario(after)
    assert request.prices.usd_per_gpu_hour == {"mine.v2": 2.5}  # a dot in an id is no way into a mapping
    assert hardware_for(request).skus["mine.v2"] == mine


def test_what_is_taken_in_and_given_up_leaves_the_scenario_as_it_was() -> None:
    before = content("prices.usd_per_gpu_hour={h200-sxm: 3.0}")
    mine = edited_sku(H100, "mine", "Mine", {}, DAY)
    after = with_changes(before, user_hardware.changes_with_sku(before, mine, 2.5, searched=True))
    own = calibration().model_copy(update={"sku": "mine"})
    after = with_changes(after, user_hardware.changes_with_calibration(after, own))
    after["limits"]["gpus"] = {"mine": 4}
    after["limits"]["forbidden"] = ["mine"]
    after["limits"]["quotas"] = [{"sku": "mine", "gpus": 8, "provider": None, "region": None, "commitment": None}]
    planner.load_scenario(after)
    assert with_changes(after, user_hardware.changes_without_sku(after, "mine")) == before


def test_the_last_sku_searched_leaves_its_nearest_relative_behind() -> None:
    before = content()
    mine = edited_sku(HARDWARE.skus["l40s"], "mine", "Mine", {}, DAY)
    after = with_changes(before, user_hardware.changes_with_sku(before, mine, 1.0, searched=True))
    after["search"]["skus"] = ["mine"]
    assert user_hardware.changes_without_sku(after, "mine")["search.skus"] == ["l40s"]


def test_a_replaced_packaged_sku_comes_back_and_stays_searched() -> None:
    before = content()
    faster = edited_sku(H100, H100.id, H100.name, {BANDWIDTH: 5.0}, DAY)
    after = with_changes(before, user_hardware.changes_with_sku(before, faster, None, searched=True))
    assert after["search"] == before["search"]
    assert with_changes(after, user_hardware.changes_without_sku(after, H100.id)) == before


def test_without_a_price_of_its_own_a_sku_pays_what_is_listed() -> None:
    """The field of the price, emptied, takes the price out again. The same SKU twice is there once."""
    before = content("prices.usd_per_gpu_hour={h200-sxm: 3.0}")
    priced = with_changes(before, user_hardware.changes_with_sku(before, H100, 2.0, searched=True))
    assert with_changes(priced, user_hardware.changes_with_sku(priced, H100, 2.0, searched=True)) == priced
    emptied = with_changes(priced, user_hardware.changes_with_sku(priced, H100, None, searched=True))
    assert priced["prices"]["usd_per_gpu_hour"] == {"h200-sxm": 3.0, "h100-sxm": 2.0}
    assert emptied["prices"] == before["prices"]


def cost_with(sku: GpuSku, hardware: HardwareDb | None = None) -> float:
    """Fleet of one SKU with no room for what step times may be off by: those errors are drawn by the SKU's id."""
    before = content("confidence=0.5")
    after = with_changes(before, user_hardware.changes_with_sku(before, sku, 3.0, searched=True))
    after["search"]["skus"] = [sku.id]
    plan = planner.plan(planner.load_scenario(after), hardware, simulate=False, alternatives=False)
    assert plan.cost is not None
    return plan.cost.usd_per_hour


def test_twice_the_bandwidth_at_the_same_price_never_costs_more() -> None:
    same = edited_sku(H100, "same", "Same", {}, DAY)
    doubled = edited_sku(H100, "doubled", "Doubled", {BANDWIDTH: 6.7}, DAY)
    assert cost_with(doubled) <= cost_with(same)


def test_a_copy_under_another_id_costs_the_same_with_the_same_calibration() -> None:
    copied = edited_sku(H100, "copied", "Copied", {}, DAY)
    engine = planner.load_scenario(content()).search.engine
    fitted = select_calibration(HARDWARE, "h100-sxm", engine)
    assert fitted is not None
    own = HARDWARE.model_copy(
        update={"calibrations": (*HARDWARE.calibrations, fitted.model_copy(update={"sku": "copied"}))}
    )
    assert cost_with(copied, own) == pytest.approx(cost_with(H100))
