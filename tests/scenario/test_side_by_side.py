"""Plans side by side: the same costs as the planner's own alternatives, invariants of restriction, and safe files."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import pytest

from hardware_db import load_hardware, sku_words
from planner.analysis import headline, outcome_of
from planner.charts import costs
from planner.core import HOURS_PER_MONTH, InputError, PlannerError
from planner.fleet import Alternative, Plan, plan
from planner.report import plan_to_dict
from planner.scenario import (
    MAX_SCENARIO_BYTES,
    PlanSide,
    bounded_side,
    cheapest_first,
    differing_cells,
    differing_rows,
    full_content,
    on_one_sku,
    planned_side,
    priced_skus,
    read_scenario,
    scenario_in,
    scenario_table,
    settings_table,
    share_of_threshold,
    sku_table,
)
from planner.scenario.side_by_side import DATASHEET, NONE
from planner.scenario.url import packaged_content
from tests.builders import small_request

HARDWARE = load_hardware()
REQUEST = small_request()
SKUS = REQUEST.search.skus


@pytest.fixture(scope="module")
def whole() -> Plan:
    return plan(REQUEST, HARDWARE, simulate=False)


@pytest.fixture(scope="module")
def sides() -> list[PlanSide]:
    """Each SKU of the request alone, and one of which no price is listed."""
    return [planned_side(sku, on_one_sku(REQUEST, sku), HARDWARE) for sku in (*SKUS, "h20")]


# --- plans ------------------------------------------------------------------------------------------------------------


def test_a_sku_alone_costs_what_the_plan_says_of_that_alternative(whole: Plan, sides: list[PlanSide]) -> None:
    said = {one.restriction: one for one in whole.alternatives if one.kind == "sku"}
    compared = 0
    for one in sides[:2]:
        assert one.plan is not None and one.plan.cost is not None
        usd = said[one.name].usd_per_hour
        assert usd is not None
        if said[one.name].is_bound:
            assert one.plan.cost.usd_per_hour >= usd * (1 - 1e-9)
        else:
            assert one.plan.cost.usd_per_hour == pytest.approx(usd)
            compared += 1
    assert compared >= 1


def test_fewer_skus_never_cost_less(whole: Plan, sides: list[PlanSide]) -> None:
    assert whole.cost is not None
    for one in sides[:2]:
        assert one.plan is not None and one.plan.cost is not None
        assert one.plan.cost.usd_per_hour >= whole.cost.usd_per_hour * (1 - 1e-9)
        assert set(one.plan.gpus) == {one.name}


def test_figures_of_a_side_are_those_of_its_plan(sides: list[PlanSide]) -> None:
    for one in sides[:2]:
        assert one.plan is not None and one.plan.cost is not None and one.tightest is not None
        brief = outcome_of(one.plan)
        assert one.tightest.target.name == brief.tightest
        assert share_of_threshold(one.tightest) == pytest.approx(brief.tightest_ratio)
        assert one.fleet == brief.fleet
        assert one.gpus == sum(brief.gpus.values())
        assert one.served_per_s == pytest.approx(REQUEST.workload.rate_per_s)
        assert one.usd_per_month == pytest.approx(brief.usd_per_hour * HOURS_PER_MONTH)


def test_what_cannot_be_is_a_side_with_a_reason(sides: list[PlanSide]) -> None:
    assert not sides[2].feasible and sides[2].usd_per_month is None
    assert "h20" in sides[2].reason
    pinned = small_request(limits={"pinned": {"h100-sxm": 2}})
    refused = planned_side("a100", on_one_sku(pinned, "a100-sxm-80gb"), HARDWARE)
    assert refused.plan is None and refused.reason == refused.refusal
    assert "pinned" in refused.reason


def test_step_times_say_what_they_rest_on(sides: list[PlanSide]) -> None:
    assert sides[0].step_times == DATASHEET and not sides[0].is_fitted
    fitted = planned_side("fitted", small_request(search={"calibrated": True, "skus": ["h100-sxm"]}), HARDWARE)
    assert fitted.step_times == "fitted on H100 SXM" and fitted.is_fitted
    measured = {fit.sku for fit in HARDWARE.calibrations}
    assert "h100-nvl" not in measured
    carried = planned_side("carried", small_request(search={"calibrated": True, "skus": ["h100-nvl"]}), HARDWARE)
    assert carried.step_times.startswith("carried over from ") and not carried.is_fitted
    assert carried.step_times.removeprefix("carried over from ") in map(sku_words, measured)


def test_every_priced_sku_has_a_price_that_may_be_used() -> None:
    found = priced_skus(REQUEST, HARDWARE)
    listed = {price.sku for price in HARDWARE.prices if price.commitment in REQUEST.prices.commitments}
    assert set(SKUS) < set(found) <= listed
    unlisted = sorted(set(HARDWARE.skus) - listed)[0]
    own = small_request(prices={"usd_per_gpu_hour": {unlisted: 2.0}})
    assert set(priced_skus(own, HARDWARE)) == {*found, unlisted}
    without = small_request(limits={"forbidden": [found[0]]})
    assert set(priced_skus(without, HARDWARE)) == set(found[1:])


def test_cheapest_comes_first_and_what_cannot_be_last(sides: list[PlanSide]) -> None:
    costs = [math.inf if one.usd_per_month is None else one.usd_per_month for one in cheapest_first(reversed(sides))]
    assert all(less <= more for less, more in pairwise(costs))
    assert costs[-1] == math.inf


# --- tables -----------------------------------------------------------------------------------------------------------


def test_the_table_of_skus_has_every_side_and_its_reason(whole: Plan, sides: list[PlanSide]) -> None:
    reference = PlanSide("the plan", REQUEST, whole)
    bound = bounded_side("dear", REQUEST, Alternative("dear", "sku", "", 99.0, 30.0, False, True))
    table = sku_table([*sides, bound], reference)
    assert [row[0] for row in table.rows] == ["the plan", *SKUS, "h20", "dear"]
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert table.rows[3][1].startswith("none: ") and set(table.rows[3][2:]) == {NONE}
    assert table.rows[4][table.columns.index("$ per month")] == "at least 72,270.00"  # 99 USD/h, 730 h
    assert "h100-sxm" not in table.rows[1][1]  # it is the name of the row


def test_scenarios_side_by_side_differ_where_they_do(sides: list[PlanSide]) -> None:
    table = scenario_table(sides)
    rows = {row[0]: row[1:] for row in table.rows}
    assert table.columns == ("what", *(one.name for one in sides))
    assert rows["model"] == ("llama-3.1-8b",) * 3
    assert rows["traffic"] == ("30 requests/s, SCV 1",) * 3
    assert rows["mean tokens"] == ("800 in, 150 out",) * 3
    assert rows["fleet"][2].startswith("none: ") and rows["$ per month"][2] == NONE
    assert rows["judged by"] == ("theory", "theory", NONE)
    assert "of 500 ms" in rows["p95 TTFT"][0]
    kept = differing_rows(table)
    assert "model" not in [row[0] for row in kept.rows]
    assert "fleet" in [row[0] for row in kept.rows]
    assert {row for row, _ in differing_cells(kept)} == set(range(len(kept.rows)))


def test_settings_that_differ_are_named_with_both_values() -> None:
    first = packaged_content("chat-llama-70b")
    second = packaged_content("chat-llama-70b")
    second["workload"]["rate_per_s"] = 60.0
    second["slo"][0]["threshold_s"] = 0.5
    second["search"]["skus"] = ["h100-sxm"]
    second["name"] = "another"
    table = settings_table({"a": first, "b": second})
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["workload.rate_per_s"] == ("40.0", "60.0")
    assert rows["slo.0.threshold_s"] == ("1.0", "0.5")
    assert rows["search.skus"][1] == "[h100-sxm]"
    assert set(rows) == {"workload.rate_per_s", "slo.0.threshold_s", "search.skus"}
    assert settings_table({"a": first, "b": dict(first)}).rows == ()


# --- files ------------------------------------------------------------------------------------------------------------

LENGTHS = b"lengths: {input_tokens: 1000, output_tokens: 200}"
YAML = b"""
llm: llama-3.1-8b
workload: {rate_per_s: 20, lengths: {input_tokens: 1000, output_tokens: 200}}
slo: [{metric: ttft, percentile: 0.9, threshold_s: 0.5}]
search: {skus: [h100-sxm]}
"""


def test_a_file_is_read_as_the_scenario_it_holds() -> None:
    search = {"skus": ["h100-sxm"]}
    slo = [{"metric": "ttft", "percentile": 0.9, "threshold_s": 0.5}]
    lengths = {"input_tokens": 1000, "output_tokens": 200}
    content = {"llm": "llama-3.1-8b", "workload": {"rate_per_s": 20, "lengths": lengths}, "slo": slo, "search": search}
    wanted = full_content(read_scenario(content)[0])
    assert scenario_in("a.yaml", YAML) == wanted
    assert scenario_in("a.json", json.dumps(content).encode()) == wanted
    assert scenario_in("bom.yaml", b"\xef\xbb\xbf" + YAML) == wanted


def test_a_plan_is_read_as_the_scenario_it_answers(whole: Plan) -> None:
    content = packaged_content("chat-llama-70b")
    document = plan_to_dict(whole)
    raw = json.dumps({**document, "scenario": content}).encode()
    assert scenario_in("plan.json", raw) == full_content(read_scenario(content)[0])
    with pytest.raises(InputError, match="does not hold its scenario"):
        scenario_in("plan.json", json.dumps({**document, "scenario": None}).encode())


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"x" * (MAX_SCENARIO_BYTES + 1), "larger than 1,000,000 bytes"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"[1, 2]", "mapping"),
        (b"a: {", "not plain YAML"),
        (YAML.replace(LENGTHS, b"3: 4"), "names are no text"),
        (YAML.replace(b"llama-3.1-8b", b"/etc/passwd"), "names a file"),  # more in tests/fuzz/test_names_and_places.py
        (YAML + b"surprise: 1\n", "surprise"),
    ],
)
def test_a_file_that_is_no_scenario_is_refused_and_nothing_it_names_is_opened(raw: bytes, text: str) -> None:
    with pytest.raises(PlannerError, match=text):
        scenario_in("upload", raw)


# --- charts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("measure", list(costs.COMPARED_QUANTITIES))
def test_bars_show_the_figures_of_the_plans(sides: list[PlanSide], measure: str) -> None:
    bound = bounded_side("dear", REQUEST, Alternative("dear", "sku", "", 99.0, 30.0, False, True))
    rows = costs.side_rows([*sides, bound], sides[0])
    for row, one in zip(rows, sides[:2], strict=False):
        assert one.plan is not None and one.plan.cost is not None
        assert row["usd_per_month"] == one.plan.cost.usd_per_month
        assert row["usd_per_million_output_tokens"] == one.plan.cost.usd_per_million_output_tokens
    spec: dict[str, Any] = costs.side_chart(rows, measure, "each GPU alone", "small.").to_dict()
    marks = {mark["name"]: mark for mark in spec["datasets"][spec["layer"][0]["data"]["name"]]}
    field = costs.COMPARED_QUANTITIES[measure].field
    assert marks["h100-sxm"]["end"] == rows[0][field]
    assert marks["h20"]["label"] == "no fleet"
    assert marks["dear"]["label"].startswith("at least $" if field == "usd_per_month" else "not planned closer")
    assert "not measured" in marks["a100-sxm-80gb"]["label"]


def test_the_whole_cost_of_a_token_does_not_depend_on_which_pool_reads_and_which_writes() -> None:
    """Outside truth: the cost of an hour over the tokens of an hour, for mixed pools and for pairs alike."""
    load = {"rate_per_s": 30.0, "lengths": {"input_tokens": 800, "output_tokens": 150}}
    mixed, pair = (
        plan(
            small_request(workload=load, search={"modes": [mode], "skus": ["h100-sxm"], "tp": [1]}),
            simulate=False,
            alternatives=False,
        )
        for mode in ("mixed", "disaggregated")
    )
    for found in (mixed, pair):
        assert found.cost is not None
        tokens = 3600.0 * 30.0 * (800 + 150)
        assert found.cost.usd_per_million_tokens == pytest.approx(1e6 * found.cost.usd_per_hour / tokens)
    assert headline.output_share_words(mixed) == ""
    assert "per million input tokens" in headline.output_share_words(pair)
    (decode,) = (pool for pool in pair.pools if pool.role.value == "decode")
    (bought,) = pair.bought
    assert pair.cost is not None  # alone, the output figure counts the decode pool only
    assert pair.cost.usd_per_million_output_tokens == pytest.approx(
        1e6 * bought.usd_per_hour * decode.gpus / sum(pair.gpus.values()) / (3600.0 * 30.0 * 150)
    )
