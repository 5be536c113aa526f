"""The rows behind every chart, held against the planner's own functions, datasheets and limits of theory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import pairwise

import altair as alt
import numpy as np
import pytest

import planner
from hardware_db import Dtype, load_hardware
from planner import charts
from planner.charts import latencies
from planner.core import HOURS_PER_MONTH, InputError, Metric
from planner.engine import ReplicaConfig
from planner.engine.replica import step_shape
from planner.fleet import Plan
from planner.llm import Precision
from planner.roofline import OperatorFamily, Parallelism
from planner.serving import Deployment, Pool, Role, evaluate
from planner.workload import LatencyTarget, Slo, TokenLengths, Workload
from tests.builders import FP8, calibrated
from tests.pool_oracle import fluid_rate_per_s

HARDWARE = load_hardware()
LENGTHS = TokenLengths.constant(1000, 100)
SLO = Slo(
    targets=(
        LatencyTarget(metric=Metric.TTFT, percentile=0.99, threshold_s=0.5),
        LatencyTarget(metric=Metric.TPOT, percentile=0.99, threshold_s=0.03),
    )
)


def config(
    sku: str = "h100-sxm", tp: int = 1, llm: str = "llama-3.1-8b", dtype: str = "bf16", activations: str = ""
) -> ReplicaConfig:
    return ReplicaConfig(
        llm=planner.load_llm(llm),
        sku=HARDWARE.skus[sku],
        engine=HARDWARE.engines["vllm"],
        precision=Precision(weights=Dtype(dtype), activations=Dtype(activations or dtype)),
        parallelism=Parallelism(tp=tp),
        max_batched_tokens=2048,
    )


MIXED = Deployment.mixed(config(), replicas=2)
SPLIT = Deployment.disaggregated(config(), config(), replicas=(1, 2))
WORKLOAD = Workload.of(10.0, LENGTHS)


# --- latency against rate -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[MIXED, SPLIT], ids=["mixed", "disaggregated"])
def sweep(request: pytest.FixtureRequest) -> tuple[Deployment, list[charts.Row]]:
    return request.param, charts.latency_vs_rate_rows(request.param, WORKLOAD, SLO, points=9)


def test_every_point_is_what_evaluate_says(sweep: tuple[Deployment, list[charts.Row]]) -> None:
    deployment, rows = sweep
    for row in rows[:: max(1, len(rows) // 6)]:
        performance = evaluate(deployment, WORKLOAD.at_rate(row["rate_per_s"]))
        distribution = performance.distribution(Metric(row["metric"].lower()))
        quantile_s = distribution.quantile_s(float(row["percentile"][1:]) / 100)
        assert row["latency_ms"] == pytest.approx(1e3 * quantile_s)


def test_rates_run_from_light_load_to_the_edge_of_stability_and_hit_the_plan(
    sweep: tuple[Deployment, list[charts.Row]],
) -> None:
    deployment, rows = sweep
    largest = min(pool.replicas * fluid_rate_per_s(pool, WORKLOAD) for pool in deployment.pools)
    rates = sorted({row["rate_per_s"] for row in rows})
    assert rates[0] == pytest.approx(0.10 * largest)
    assert rates[-1] == pytest.approx(0.98 * largest)
    assert {row["rate_per_s"] for row in rows if row["is_planned"]} == {10.0}
    assert all(row["load"] == pytest.approx(row["rate_per_s"] / largest) for row in rows)


def test_more_requests_never_make_anything_faster(sweep: tuple[Deployment, list[charts.Row]]) -> None:
    _, rows = sweep
    for metric in ("TTFT", "TPOT"):
        for percentile in ("p50", "p99"):
            curve = [r["latency_ms"] for r in rows if (r["metric"], r["percentile"]) == (metric, percentile)]
            assert len(curve) >= 8
            assert all(later >= earlier * (1 - 1e-9) for earlier, later in pairwise(curve))


def test_the_median_is_never_above_the_tail(sweep: tuple[Deployment, list[charts.Row]]) -> None:
    _, rows = sweep
    by_place = {(r["metric"], r["rate_per_s"], r["percentile"]): r["latency_ms"] for r in rows}
    assert all(ms <= by_place[metric, rate, "p99"] for (metric, rate, p), ms in by_place.items() if p == "p50")


def test_an_idle_deployment_answers_in_the_time_of_one_prompt_step() -> None:
    """Load -> 0: the median TTFT of a 1000-token prompt is one step with that prompt alone in it."""
    rows = charts.latency_vs_rate_rows(MIXED, WORKLOAD.at_rate(0.01), SLO, points=2)
    idle = next(row for row in rows if row["is_planned"] and row["metric"] == "TTFT" and row["percentile"] == "p50")
    alone_s = planner.step_time(config(), chunks=[(1000, 0)]).total_s
    assert idle["latency_ms"] == pytest.approx(1e3 * alone_s, rel=0.02)


def test_a_sweep_never_takes_more_evaluations_than_points(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []

    def counted(deployment: Deployment, workload: Workload) -> planner.Performance:
        rates.append(workload.arrivals.rate_per_s)
        return evaluate(deployment, workload)

    monkeypatch.setattr(latencies, "evaluate", counted)
    charts.latency_vs_rate_rows(MIXED, WORKLOAD, SLO, points=5)
    assert len(rates) == 5


def test_an_overloaded_deployment_has_no_planned_point() -> None:
    rows = charts.latency_vs_rate_rows(MIXED, WORKLOAD.at_rate(1e5), SLO, points=3)
    assert rows and not any(row["is_planned"] for row in rows)
    assert all(math.isfinite(row["latency_ms"]) for row in rows)


@pytest.mark.parametrize("points", [1, 26])
def test_a_sweep_out_of_range_says_so(points: int) -> None:
    with pytest.raises(InputError, match=rf"points = {points}: must be from 2 to 25. Fix: give a number"):
        charts.latency_vs_rate_rows(MIXED, WORKLOAD, SLO, points=points)


def test_metrics_are_shown_where_a_target_asks_for_them() -> None:
    def shown(metric: Metric) -> list[Metric]:
        return charts.shown_metrics(Slo(targets=(LatencyTarget(metric=metric, percentile=0.9, threshold_s=1.0),)))

    assert shown(Metric.TTFT) == [Metric.TTFT, Metric.TPOT]
    assert shown(Metric.ITL) == [Metric.TTFT, Metric.TPOT, Metric.ITL]
    assert shown(Metric.E2E) == [Metric.TTFT, Metric.TPOT, Metric.E2E]


def test_percentiles_are_those_of_the_targets() -> None:
    slo = Slo(targets=(LatencyTarget(metric=Metric.E2E, percentile=0.95, threshold_s=3.0),))
    rows = charts.latency_vs_rate_rows(MIXED, WORKLOAD, slo, points=2)
    shown = {(row["metric"], row["percentile"]) for row in rows}
    assert shown == {(m, "p50") for m in ("TTFT", "TPOT", "E2E")} | {
        ("TTFT", "p99"),
        ("TPOT", "p99"),
        ("E2E", "p95"),
    }


# --- roofline -------------------------------------------------------------------------------------------------------

H100_BF16_PEAK, H100_BANDWIDTH = 989.4e12, 3.35e12
"""Dense bf16 FLOP/s and HBM3 bytes/s of the H100 SXM datasheet (NVIDIA, 2023)."""
DECODE_1 = step_shape([1000], [])
SHAPES = {"decode": step_shape([1000] * 64, []), "prefill": step_shape([], [(2048, 0)])}


def by_operator(rows: list[charts.Row]) -> dict[str, charts.Row]:
    return {row["operator"]: row for row in rows}


def test_a_single_decode_does_one_flop_per_byte() -> None:
    """2 FLOPs per weight of 2 bytes: intensity 1, bound by bandwidth, at bandwidth x 1 FLOP/s."""
    rows = by_operator(charts.roofline_rows(config(), {"decode": DECODE_1}))
    for operator in ("QKV", "feed-forward", "LM head"):
        assert rows[operator]["intensity_flops_per_byte"] == pytest.approx(1.0, rel=0.01)
        assert rows[operator]["attained_flops_per_s"] == pytest.approx(H100_BANDWIDTH, rel=0.01)
        assert rows[operator]["bound"] == "memory"


def test_a_long_prompt_is_bound_by_compute_at_the_peak() -> None:
    rows = by_operator(charts.roofline_rows(config(), {"prefill": SHAPES["prefill"]}))
    assert rows["feed-forward"]["attained_flops_per_s"] == pytest.approx(H100_BF16_PEAK, rel=0.001)
    assert rows["feed-forward"]["bound"] == "compute"


def test_the_roof_bends_at_peak_over_bandwidth() -> None:
    roof = charts.roof_rows(config(), 1.0, 1e4)
    (ridge,) = [row for row in roof if row["is_ridge"]]
    assert ridge["intensity_flops_per_byte"] == pytest.approx(H100_BF16_PEAK / H100_BANDWIDTH, rel=0.001)
    assert roof[0]["attained_flops_per_s"] == pytest.approx(H100_BANDWIDTH)
    assert roof[-1]["attained_flops_per_s"] == pytest.approx(H100_BF16_PEAK, rel=0.001)


@pytest.mark.parametrize(
    "replica",
    [
        config(),
        config(tp=4, dtype="fp8"),
        config("l40s", dtype="int4", activations="bf16"),
        config("mi300x", llm="mixtral-8x7b-v0.1", dtype="fp8"),
        calibrated("deepseek-v3.2", precision=FP8, parallelism=Parallelism(dp=8, ep=8, pp=2)),
        calibrated("gpt-oss-120b", "b200-sxm"),
    ],
    ids=lambda replica: f"{replica.label} {replica.llm.id}",
)
def test_no_operator_is_above_the_roof(replica: ReplicaConfig) -> None:
    bandwidth = replica.sku.hbm_bandwidth_bytes_per_s.value
    for row in charts.roofline_rows(replica, SHAPES):
        roof = min(replica.sku.peak_flops_per_s[Dtype(row["dtype"])].value, bandwidth * row["intensity_flops_per_byte"])
        assert 0.0 < row["attained_flops_per_s"] <= roof * (1 + 1e-9)


@pytest.mark.parametrize("tp", [1, 2])
def test_operator_times_are_those_of_the_step(tp: int) -> None:
    """What a family's row lacks of its time are the passes over activations: rotary embedding, activation function."""
    replica = config(tp=tp)
    step = planner.step_time(replica, [1000] * 64)
    rows = by_operator(charts.roofline_rows(replica, {"decode": SHAPES["decode"]}))
    without_flops = (
        OperatorFamily.EMBEDDING,
        OperatorFamily.NORM,
        OperatorFamily.ALL_REDUCE,
        OperatorFamily.ALL_GATHER,
    )
    times_s = {charts.FAMILY_WORDS[f]: s for f, s in step.family_s.items() if s > 0 and f not in without_flops}
    second = H100_BANDWIDTH / (32 * 64 * 2)  # values per token and layer that one second moves, 16 bit
    times_s["QKV"] -= 2 * (32 + 8) / tp * 128 / second
    times_s["feed-forward"] -= 3 * 14336 / tp / second
    assert {name: row["time_s"] for name, row in rows.items()} == pytest.approx(times_s, rel=1e-4)
    assert all(row["time_share"] == pytest.approx(row["time_s"] / step.total_s) for row in rows.values())


@pytest.mark.parametrize("llm", ["deepseek-v3.2", "qwen3-next-80b-a3b-thinking", "gpt-oss-120b"])
def test_every_architecture_has_its_operators(llm: str) -> None:
    rows = by_operator(charts.roofline_rows(config("h200-sxm", llm=llm, tp=8), SHAPES))
    special = {"deepseek-v3.2": "sparse index", "qwen3-next-80b-a3b-thinking": "recurrence", "gpt-oss-120b": "experts"}
    assert special[llm] in rows and {"QKV", "experts", "LM head"} <= set(rows)


def test_every_operator_family_has_a_name() -> None:
    assert set(charts.FAMILY_WORDS) == set(OperatorFamily)


def test_a_pool_is_described_by_the_steps_it_runs() -> None:
    performance = evaluate(SPLIT, WORKLOAD)
    prefill, decode = (
        charts.pool_shapes(pool, each, LENGTHS) for pool, each in zip(SPLIT.pools, performance.pools, strict=True)
    )
    assert list(prefill) == ["prefill step, 2,048 tokens"]
    assert float(prefill["prefill step, 2,048 tokens"].chunk_tokens) == 2048
    (shape,) = decode.values()
    assert float(shape.decodes) == pytest.approx(max(1.0, performance.pools[1].mean_running))
    assert float(shape.chunk_tokens) == 0.0
    mixed = charts.pool_shapes(MIXED.pools[0], evaluate(MIXED, WORKLOAD).pools[0], LENGTHS)
    assert [name.split(",")[0] for name in mixed] == ["decode step", "prefill step"]


def test_operators_in_one_place_share_a_label() -> None:
    """At batch 1 every weight matrix has intensity 1; attention over 1000 tokens reads other bytes and stands apart."""
    labels = charts.label_rows(charts.roofline_rows(config(llm="llama-2-7b"), {"decode": DECODE_1}))
    assert [row["label"] for row in labels] == ["feed-forward + 4"]  # MHA: one query per key, intensity 1 as well
    labels = charts.label_rows(charts.roofline_rows(config(), {"decode": DECODE_1}))
    assert [row["label"] for row in labels] == ["feed-forward + 3", "decode attention"]  # GQA: 4 queries per key


# --- cost comparison ------------------------------------------------------------------------------------------------


def scenario(**changes: object) -> dict[str, object]:
    return {
        "llm": "llama-3.1-8b",
        "precision": {"weights": "bf16"},
        "workload": {"rate_per_s": 20, "lengths": {"input_tokens": 1000, "output_tokens": 100}},
        "slo": [
            {"metric": "ttft", "percentile": 0.99, "threshold_s": 1.0},
            {"metric": "tpot", "percentile": 0.99, "threshold_s": 0.05},
        ],
        "search": {
            "skus": ["h100-sxm", "l40s", "t4"],
            "tp": [1],
            "pp": [1],
            "max_running_requests": [128],
            "max_batched_tokens": [2048],
        },
        "simulation": {"requests": 400},
    } | changes


@pytest.fixture(scope="module")
def feasible() -> Plan:
    return planner.plan(planner.load_scenario(scenario()))


@pytest.fixture(scope="module")
def infeasible() -> Plan:
    target = {"metric": "ttft", "percentile": 0.99, "threshold_s": 1e-6}
    return planner.plan(planner.load_scenario(scenario(slo=[target])))


def test_bars_are_the_plan_and_its_alternatives(feasible: Plan) -> None:
    rows = charts.cost_comparison_rows(feasible)
    assert feasible.cost is not None
    assert [rows[0]["name"], rows[0]["usd_per_month"]] == ["the plan", pytest.approx(feasible.cost.usd_per_month)]
    named = {row["name"]: row for row in rows[1:]}
    assert set(named) == {"h100-sxm", "l40s", "t4", "mixed", "disaggregated", "sglang", "tensorrt-llm"}
    for alternative in feasible.alternatives:
        usd = alternative.usd_per_hour
        month = None if usd is None else pytest.approx(usd * HOURS_PER_MONTH)
        assert named[alternative.restriction]["usd_per_month"] == month


def test_with_one_sku_no_single_mode_beats_the_sku() -> None:
    """The fleets of one mode are among the fleets of the only SKU."""
    search = {"skus": ["h100-sxm"], "tp": [1], "max_running_requests": [128], "max_batched_tokens": [2048]}
    plan = planner.plan(planner.load_scenario(scenario(search=search)))
    costs = {row["name"]: row["cost"] for row in charts.cost_comparison_rows(plan)}
    assert costs["h100-sxm"] <= min(costs["mixed"], costs["disaggregated"])


def test_bars_run_from_cheap_to_dear_and_then_to_what_cannot_be_done(feasible: Plan) -> None:
    for kind in ("sku", "mode", "engine"):
        costs = [row["cost"] or math.inf for row in charts.cost_comparison_rows(feasible) if row["kind"] == kind]
        assert costs == sorted(costs)


def test_a_sku_too_small_for_the_model_is_listed_with_the_reason(feasible: Plan) -> None:
    """16 GB of bf16 weights do not fit in the 16 GB of a T4."""
    row = next(row for row in charts.cost_comparison_rows(feasible) if row["name"] == "t4")
    assert not row["is_feasible"] and row["cost"] is None
    assert "weights 16.1 GB" in row["reason"] and "no KV cache" in row["reason"]


def test_other_objectives_compare_by_the_request() -> None:
    request = scenario(objective="max_rate", limits={"budget_usd_per_hour": 10.0})
    plan = planner.plan(planner.load_scenario(request))
    rows = [row for row in charts.cost_comparison_rows(plan) if row["is_feasible"]]
    assert plan.cost is not None
    assert rows[0]["cost"] == pytest.approx(plan.cost.usd_per_thousand_requests)
    assert all(row["cost"] == row["usd_per_thousand_requests"] for row in rows)


def test_an_infeasible_plan_has_reasons_for_bars(infeasible: Plan) -> None:
    rows = charts.cost_comparison_rows(infeasible)
    assert [row["name"] for row in rows] == ["h100-sxm", "l40s", "t4", "mixed", "disaggregated"]
    assert not any(row["is_feasible"] for row in rows) and all(row["reason"] for row in rows)


# --- pictures -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures(feasible: Plan, infeasible: Plan) -> dict[str, alt.TopLevelMixin]:
    chosen = feasible.deployments[0]
    pool = chosen.deployment.pools[0]
    shapes = charts.pool_shapes(pool, chosen.predicted.pools[0], chosen.workload.lengths)
    return {
        "latency": charts.latency_vs_rate(chosen.deployment, chosen.workload, feasible.request.slo, points=4),
        "roofline": charts.roofline(pool.config, shapes),
        "cost": charts.cost_comparison(feasible),
        "no cost": charts.cost_comparison(infeasible),
    }


def nodes(tree: object) -> Iterator[dict[str, object]]:
    if isinstance(tree, dict):
        yield tree
        for value in tree.values():
            yield from nodes(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from nodes(value)


def test_pictures_are_valid_and_say_what_they_show(pictures: dict[str, alt.TopLevelMixin]) -> None:
    for chart in pictures.values():
        spec = chart.to_dict()  # altair checks it against the Vega-Lite schema
        assert json.loads(json.dumps(spec, allow_nan=False)) == spec
        panels = spec.get("vconcat", [spec])
        assert all(panel["title"]["text"] and panel["description"] for panel in panels)


def test_axes_carry_units(pictures: dict[str, alt.TopLevelMixin]) -> None:
    titles = {
        node["title"]
        for chart in pictures.values()
        for node in nodes(chart.to_dict())
        if node.get("type") == "quantitative" and "scale" in node and node.get("title")
    }
    assert titles == {
        "Arrival rate (requests/s)",
        "TTFT (ms)",
        "TPOT (ms)",
        "Arithmetic intensity (FLOP per byte of HBM traffic)",
        "Attained per GPU (TFLOP/s)",
        "USD per month",
    }


def test_colours_are_told_apart_by_the_colour_blind(pictures: dict[str, alt.TopLevelMixin]) -> None:
    """The palette of Okabe and Ito (2008), https://jfly.uni-koeln.de/color/, and one grey."""
    palette = {"#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", charts.GREY}
    text = json.dumps([{k: v for k, v in c.to_dict().items() if k != "config"} for c in pictures.values()])
    used = {word[:7] for word in text.split('"') if word.startswith("#") and len(word) == 7}
    assert used and used <= palette


def test_the_picture_marks_targets_and_the_plan(pictures: dict[str, alt.TopLevelMixin]) -> None:
    text = json.dumps(pictures["latency"].to_dict(), ensure_ascii=False)
    assert "target: p99 ≤ 1,000 ms" in text and "target: p99 ≤ 50 ms" in text and "planned 20/s" in text


def test_rows_are_plain_values(feasible: Plan) -> None:
    rows = charts.cost_comparison_rows(feasible) + charts.roofline_rows(config(), SHAPES)
    assert all(isinstance(value, str | float | bool | None) for row in rows for value in row.values())
    assert not any(isinstance(value, np.generic) and not isinstance(value, float) for r in rows for value in r.values())


def test_one_pool_role_is_enough_for_a_roofline() -> None:
    pool = Pool(role=Role.DECODE, config=config(), replicas=1)
    spec = charts.roofline(pool.config, {"decode step": DECODE_1}).to_dict()
    assert "prefill" not in json.dumps(spec["datasets"])
