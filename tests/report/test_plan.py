"""What is shown of a plan adds up to the plan, and its words survive Markdown."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import replace
from typing import Any

import pytest

import planner
from hardware_db import sku_id, sku_words
from planner.core import Metric, Table, money, rebuilt, significant
from planner.engine import images_s
from planner.fleet import Plan
from planner.fleet.types import Agreement
from planner.launch import launch_specs
from planner.launch.placement import place_replicas, server_numbers
from planner.llm import load_llm
from planner.report import LIMITS
from planner.report import plan as report
from planner.search import Mode, Rejection
from planner.serving import Performance, PoolLimit
from planner.workload import Images

PRICES = {"h100-sxm": 2.5, "l40s": 1.25}
RATE = 30.0
ALTERNATIVES = "Best alternative per format, SKU, mode and engine"
SCENARIO: dict[str, Any] = {
    "name": "small",
    "llm": "llama-3.1-8b",
    "workload": {"rate_per_s": RATE, "lengths": {"input_tokens": 1000, "output_tokens": 100}},
    "slo": [
        {"metric": "ttft", "percentile": 0.99, "threshold_s": 1.0},
        {"metric": "tpot", "percentile": 0.95, "threshold_s": 0.1},
    ],
    "search": {"skus": list(PRICES), "tp": [1], "max_running_requests": [64], "max_batched_tokens": [2048]},
    "prices": {"usd_per_gpu_hour": PRICES},
    "simulation": {"requests": 300},
}


def _plan(*overrides: str) -> Plan:
    return planner.plan(planner.load_scenario(SCENARIO, overrides))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return _plan()


@pytest.fixture(scope="module")
def impossible() -> Plan:
    """A first token sooner than the weights can be read: 16 GB at 3.35 TB/s take 4.8 ms."""
    return _plan("slo.0.threshold_s=0.001")


def _table(plan: Plan, title: str) -> Table:
    (found,) = (table for table in report.tables(plan) if table.title == title)
    return found


def _rows(table: Table) -> list[dict[str, str]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def _asked(plan: Plan) -> dict[str, str]:
    return {row["what"]: row["value"] for row in _rows(_table(plan, "Request"))}


def _number(text: str) -> float:
    return float(re.sub(r"[,%x ]", "", text))


def test_cost_is_gpus_times_price(plan: Plan) -> None:
    assert plan.cost is not None
    usd = sum(PRICES[sku] * count for sku, count in plan.gpus.items())
    shown = {row["what"]: row["value"] for row in _rows(_table(plan, "Cost"))}
    assert _number(shown["$ per hour"]) == pytest.approx(usd, abs=0.005)
    assert _number(shown["$ per month"]) == pytest.approx(usd * 8760 / 12, abs=0.005)
    assert _number(shown["$ per thousand requests"]) == pytest.approx(1000 * usd / (3600 * RATE), rel=0.005)
    per_dollar = 3600 * _number(shown["goodput [requests/s]"]) / usd
    assert _number(shown["goodput per dollar [requests/USD]"]) == pytest.approx(per_dollar, rel=0.01)
    tokens = _number(shown["$ per million input tokens"]) * 1000 + _number(shown["$ per million output tokens"]) * 100
    assert tokens * RATE * 3600 / 1e6 == pytest.approx(usd, rel=0.01)


def test_fleet_adds_up_to_cost_and_traffic(plan: Plan) -> None:
    assert plan.cost is not None
    rows = _rows(_table(plan, "Fleet"))
    assert sum(_number(row["USD/hour"]) for row in rows) == pytest.approx(plan.cost.usd_per_hour, abs=0.005 * len(rows))
    assert sum(_number(row["GPUs"]) for row in rows) == sum(plan.gpus.values())
    assert all(_number(row["GPUs"]) == _number(row["GPUs each"]) * _number(row["replicas"]) for row in rows)
    entering = [row for row in rows if not row["pool"].endswith("decode")]
    assert sum(_number(row["requests/s"]) for row in entering) == pytest.approx(RATE, rel=0.005)


def test_latencies_are_those_of_the_plan_in_milliseconds(plan: Plan) -> None:
    rows = {(row["metric"], row["from"]): row for row in _rows(_table(plan, "Latency"))}
    assert len(rows) == 2 * len(Metric)
    for source in ("predicted", "simulated"):
        distribution = plan.latency(Metric.TTFT, simulated=source == "simulated")
        row = rows["TTFT [ms]", source]
        for column, seconds in (
            ("mean", distribution.mean_s),
            ("p50", distribution.quantile_s(0.5)),
            ("p99.9", distribution.quantile_s(0.999)),
        ):
            assert _number(row[column]) == pytest.approx(1e3 * seconds, rel=0.006)
    assert _number(rows["E2E [s]", "simulated"]["p95"]) == pytest.approx(
        plan.latency(Metric.E2E, simulated=True).quantile_s(0.95), rel=0.006
    )


def test_targets_are_held_against_both_theory_and_simulation(plan: Plan) -> None:
    first, second = _rows(_table(plan, "Targets"))
    assert (first["target"], first["at most"], first["wanted share"]) == ("p99 TTFT [ms]", "1,000", "99 %")
    assert (second["target"], second["at most"], second["wanted share"]) == ("p95 TPOT [ms]", "100", "95 %")
    for row, check in zip((first, second), plan.targets, strict=True):
        assert row["met"] == ("yes" if check.met else "NO")
        assert _number(row["predicted"]) == pytest.approx(1e3 * check.predicted_s, rel=0.006)
        assert _number(row["simulated"]) == pytest.approx(1e3 * check.simulated_s, rel=0.006)


def test_latencies_of_several_deployments_together_say_that_they_are(plan: Plan) -> None:
    twice = dataclasses.replace(plan, deployments=2 * plan.deployments)
    assert "together" in _table(twice, "Latency").note and not _table(plan, "Latency").note


def test_alternatives_show_their_distance_from_the_plan(plan: Plan) -> None:
    assert plan.cost is not None
    rows = _rows(_table(plan, ALTERNATIVES))
    others = {"narrower formats", "mixed", "disaggregated", "sglang", "tensorrt-llm"}
    assert {row["only"] for row in rows} == {*map(sku_words, PRICES), *others}
    for row in rows:
        if row["USD/hour"] == "-":
            continue
        difference = _number(row["USD/hour"].removeprefix(">= ")) - plan.cost.usd_per_hour
        assert _number(row["difference"]) == pytest.approx(difference, abs=0.01)
        assert _number(row["difference %"]) == pytest.approx(100 * difference / plan.cost.usd_per_hour, abs=0.51)


def test_a_reason_stands_in_the_row_of_what_is_cheaper_and_takes_no_column_where_there_is_none(plan: Plan) -> None:
    bare = tuple(dataclasses.replace(one, why_not="") for one in plan.alternatives)
    assert len(_table(dataclasses.replace(plan, alternatives=bare), ALTERNATIVES).columns) == 6
    cheaper = (dataclasses.replace(bare[0], why_not="2 SKUs where 1 will do", usd_per_hour=None), *bare[1:])
    rows = {row["only"]: row for row in _rows(_table(dataclasses.replace(plan, alternatives=cheaper), ALTERNATIVES))}
    reasons = {name: row["why it is not the plan"] for name, row in rows.items()}
    assert reasons.pop(cheaper[0].restriction) == "2 SKUs where 1 will do" and set(reasons.values()) == {"-"}
    assert rows[cheaper[0].restriction]["difference %"] == "-"  # one that does not exist has no numbers
    none = dataclasses.replace(next(one for one in bare if one.kind == "sku"), usd_per_hour=None)
    why = Rejection(none.restriction, Mode.MIXED, f"{none.restriction}: no price may be used", math.inf)
    (row,) = _rows(_table(dataclasses.replace(plan, alternatives=(none,), rejections=(why,)), ALTERNATIVES))
    assert (row["best fleet"], row["why it is not the plan"]) == ("none", why.reason)  # it is for sale nowhere


@pytest.mark.parametrize(("predicted", "verdict"), [(1.149, "yes"), (1.151, "NO"), (0.851, "yes"), (0.849, "NO")])
def test_agreement_is_judged_at_15_percent(plan: Plan, predicted: float, verdict: str) -> None:
    changed = dataclasses.replace(plan, agreement=(Agreement(Metric.TTFT, predicted, 1.0),))
    (row,) = _rows(_table(changed, "Theory against simulation"))
    assert row["within 15 %"] == verdict
    assert _number(row["difference"]) == pytest.approx(100 * (predicted - 1.0), abs=0.51)


def test_several_deployments_are_numbered_and_their_servers_counted_once(plan: Plan) -> None:
    plan = dataclasses.replace(plan, deployments=plan.deployments[:1])
    twice = dataclasses.replace(plan, deployments=plan.deployments * 2)
    names = [row["pool"] for row in _rows(_table(twice, "Fleet"))]
    assert all(name.startswith("1 ") for name in names[: len(names) // 2])
    assert all(name.startswith("2 ") for name in names[len(names) // 2 :])
    nodes = [_number({r["what"]: r["value"] for r in _rows(_table(p, "Cost"))}["servers"]) for p in (plan, twice)]
    assert nodes == [len(server_numbers(place_replicas(launch_specs(p)))) for p in (plan, twice)]
    assert nodes[0] <= sum(_number(row["servers"]) for row in _rows(_table(plan, "Fleet")))


def test_a_fleet_whose_pools_share_servers_says_so_under_its_rows(plan: Plan) -> None:
    (planned,) = plan.deployments[:1]
    pools = tuple(rebuilt(pool, replicas=1) for pool in planned.deployment.pools)
    small = dataclasses.replace(planned, deployment=rebuilt(planned.deployment, pools=pools), nodes=(1,) * len(pools))
    one, two = (dataclasses.replace(plan, deployments=(small,) * count) for count in (1, 2))
    assert two.servers < sum(_number(row["servers"]) for row in _rows(_table(two, "Fleet")))
    assert f"the fleet has {two.servers}" in _table(two, "Fleet").note
    assert (len(pools) > 1) == bool(_table(one, "Fleet").note)


def test_every_pool_shows_what_binds_it(plan: Plan) -> None:
    rows = _rows(_table(plan, "Load of each pool"))
    performances = [p for planned in plan.deployments for p in (planned.predicted, planned.simulated)]
    assert len(rows) == sum(len(performance.pools) for performance in performances)
    assert {row["bound"] for row in rows} <= {"compute", "memory", "link", "overhead"}
    note = _table(plan, "Load of each pool").note
    limits = {pool.limit for performance in performances for pool in performance.pools}
    assert all(f"{row['gives out first']}: " in note for row in rows), "what gives out is explained under it"
    assert [limit for limit in PoolLimit if LIMITS[limit] in note] == [limit for limit in PoolLimit if limit in limits]
    assert all(0.0 <= _number(row[name]) <= 100.0 for row in rows for name in ("utilisation", "KV held"))


def test_constraints_show_slack_and_dual_and_prices_where_they_are_from(plan: Plan) -> None:
    assert plan.allocation is not None
    rows = _rows(_table(plan, "Constraints"))
    assert len(rows) == len(plan.allocation.constraints)
    assert (rows[0]["constraint"], rows[0]["slack"]) == ("serve_demand", "0")
    assert rows[0]["used and limit"] == f"{RATE:g} >= {RATE:g}"
    assert _number(rows[0]["dual"]) > 0.0
    for row in _rows(_table(plan, "Prices")):
        assert row["provider"] == "own price" and _number(row["USD/GPU-hour"]) == PRICES[sku_id(row["SKU"])]
    assert "given in the request" in _table(plan, "Prices").note


def test_headline_is_one_sentence_with_the_answer(plan: Plan) -> None:
    assert plan.cost is not None
    line = report.headline(plan)
    assert "\n" not in line
    assert line.endswith(" % (90 % asked); calibrated.") and "held in simulation, holds with " in line
    for part in ("llama-3.1-8b", "30 requests/s", money(plan.cost.usd_per_hour), "p99 TTFT", "p95 TPOT"):
        assert part in line
    for planned in plan.deployments:
        for pool in planned.deployment.pools:
            assert f"{pool.gpus} × {pool.config.sku.short_name}" in line
    request = plan.request.model_copy(update={"workload": plan.request.workload.at_rate(2 * RATE)})
    assert "30 of 60 requests/s" in report.headline(dataclasses.replace(plan, request=request))


def test_infeasible_plan_names_the_nearest_miss_and_every_rejection(impossible: Plan) -> None:
    assert not impossible.feasible
    assert report.headline(impossible).startswith("No fleet serves llama-3.1-8b at 30 requests/s: nearest: ")
    assert [table.title for table in report.tables(impossible)] == ["Request", "Rejected"]
    rows = _rows(_table(impossible, "Rejected"))
    assert {(row["SKU"], row["mode"]) for row in rows} == {
        (sku_words(s), m) for s in PRICES for m in ("mixed", "disaggregated")
    }
    h100 = next(row for row in rows if row["SKU"] == "H100 SXM")
    assert _number(h100["relax by"]) > 4.8  # 1 ms against 4.8 ms, before any prompt is computed
    (nearest,) = report.diagnosis(impossible)
    assert nearest.startswith("nearest: ")


def test_request_table_says_what_was_asked(plan: Plan) -> None:
    shown = _asked(plan)
    assert shown["model"] == "llama-3.1-8b, 8.03 B parameters"
    assert shown["targets"] == "p99 TTFT <= 1,000 ms; p95 TPOT <= 100 ms"
    assert shown["lengths"] == "input mean 1,000, p99 1,000; output mean 100, p99 100 tokens (constant)"


def test_request_table_has_every_model(plan: Plan) -> None:
    """Of several models the table showed the first, as if the others had not been asked for."""
    other = load_llm("phi-4")
    second = plan.request.main.model_copy(
        update={"name": "documents", "llm": other, "precision": other.native_precision}
    )
    several = replace(plan, request=plan.request.model_copy(update={"services": (second,)}))
    said = {(row["service"], row["what"]): row["value"] for row in _rows(_table(several, "Request"))}
    assert said["documents", "model"].startswith("phi-4") and said["llama-3.1-8b", "model"].startswith("llama-3.1-8b")
    assert {what for of, what in said if of == "documents"} == {what for of, what in said if of == "llama-3.1-8b"}
    assert ("all", "objective") in said


def test_request_table_says_what_images_are() -> None:
    changes = ["search.skus=[h100-sxm]", "search.tp=[1]", "search.max_running_requests=[128]", "workload.rate_per_s=2"]
    changes += ["search.max_batched_tokens=[8192]", "simulation.requests=300", "workload.images.size=1024x1024"]
    planned = planner.plan(planner.load_scenario("vision-qwen3-vl-8b", changes))
    rows = _asked(planned)
    encoder_s = images_s(planned.deployments[0].deployment.pools[0].config, Images(width=1024, height=1024))
    assert rows["model"].endswith("8.19 B parameters and 0.576 B of a vision encoder")
    mean_tokens = 1.5 * (32 * 32 + 2)
    assert (
        f"1.50 a request on average, of 1024x1024 pixels: {mean_tokens:,.0f} image tokens a request" in rows["images"]
    )
    shown_ms = float(re.search(r"encoder ([0-9.]+) ms on H100 SXM TP1", rows["images"])[1])  # type: ignore[index]
    assert 1.0 < shown_ms / (1e3 * encoder_s) < 1.6  # one image or two, encoded together


def test_kv_transfer_is_mentioned_where_there_is_one(plan: Plan) -> None:
    planned = plan.deployments[0]
    sent: Performance = dataclasses.replace(planned.predicted, kv_transfer_s=0.0125)
    changed = dataclasses.replace(plan, deployments=(dataclasses.replace(planned, predicted=sent),))
    assert "12.5 ms" in _table(changed, "Latency").note


# --- Markdown -------------------------------------------------------------------------------------------------------


def test_markdown_shows_the_same_cells_as_the_tables_and_every_number_of_the_cost(plan: Plan) -> None:
    text = report.page(plan).markdown
    for table in report.tables(plan):
        assert f"\n## {table.title}\n" in text
        for row in table.rows:
            assert "| " + " | ".join(row) + " |" in text
    for line in (*report.plan_assumptions(plan), *plan.warnings, *report.METHOD):
        assert f"- {line}" in text
    assert plan.cost is not None
    dollars = [value for name, value in vars(plan.cost).items() if name.startswith("usd_") and value is not None]
    for shown in [*map(money, dollars), significant(plan.cost.goodput_per_s), significant(plan.cost.requests_per_usd)]:
        assert f" {shown} " in text
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE)
    assert len(blocks) == len(report.tables(plan))
    for block in blocks:  # rows are as wide as their headings
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
    assert f"llm-capacity-planner {planner.__version__} in " in text


def test_words_of_a_user_cannot_break_the_report(plan: Plan) -> None:
    named = plan.request.model_copy(update={"name": "a|b\n# c <script> `d` *e*"})
    title = report.page(dataclasses.replace(plan, request=named)).markdown.splitlines()[0]
    assert title == r"# Capacity plan: a\|b # c &lt;script> \`d\` \*e\*"


def test_markdown_of_an_infeasible_plan_says_why(impossible: Plan) -> None:
    text = report.page(impossible).markdown
    assert text.count("relax that target by a factor of") == 1, "the first reason is the headline's"
    told = report.page(replace(impossible, diagnosis=(*impossible.diagnosis, "no change of it alone helps"))).markdown
    assert "## Why, and what would help" in told and "no change of it alone helps" in told
    assert "## Cost" not in text
