"""JSON that is complete, plain and as its schema says."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

import planner
from planner.core import Metric, json_schema, json_text, plain
from planner.fleet import Plan
from planner.report import evaluation_to_dict, plan_schema, plan_to_dict
from planner.report.plan import headline
from planner.report.records import EvaluationDocument, performance_summary

SCENARIO: dict[str, Any] = {
    "name": "small",
    "llm": "llama-3.1-8b",
    "precision": {"weights": "fp8", "activations": "fp8", "kv_cache": "bf16"},
    "workload": {
        "rate_per_s": 30,
        "scv": 2.0,
        "classes": [
            {"name": "chat", "share": 0.75, "lengths": {"input_tokens": 500, "output_tokens": 100}},
            {"name": "long", "share": 0.25, "lengths": {"input_tokens": 2000, "output_tokens": 50}},
        ],
    },
    "slo": [{"metric": "ttft", "percentile": 0.99, "threshold_s": 1.0}],
    "search": {"skus": ["h100-sxm"], "tp": [1], "max_running_requests": [64], "max_batched_tokens": [2048]},
    "prices": {"usd_per_gpu_hour": {"h100-sxm": 2.5}},
    "limits": {"budget_usd_per_hour": 1000, "gpus": {"h100-sxm": 64}},
    "simulation": {"requests": 300, "seed": 3},
}
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planner.plan(planner.load_scenario(SCENARIO))


@pytest.fixture(scope="module")
def exported(plan: Plan) -> dict[str, Any]:
    return plan_to_dict(plan)


@pytest.fixture(scope="module")
def impossible() -> Plan:
    return planner.plan(planner.load_scenario(SCENARIO, ["slo.0.threshold_s=0.0001"]))


def test_every_field_of_a_plan_is_exported(plan: Plan, exported: dict[str, Any]) -> None:
    assert json.loads(json_text(exported)) == exported
    assert {field.name for field in dataclasses.fields(plan)} <= set(exported)
    assert exported["headline"] == headline(plan)
    assert exported["feasible"] is True
    assert exported["gpus"] == plan.gpus


def test_request_is_exported_with_all_it_depends_on(plan: Plan, exported: dict[str, Any]) -> None:
    request = exported["request"]
    assert (request["llm"]["id"], request["llm"]["parameters"]) == ("llama-3.1-8b", 8_030_261_248)
    assert request["llm"]["kv_bytes_per_token"] == 131_072  # 2 x 8 heads x 128 x 2 bytes x 32 layers
    assert request["precision"] == {**SCENARIO["precision"], "parts": []}
    assert SCENARIO["limits"].items() <= request["limits"].items()
    assert (request["seed"], request["simulated_requests"]) == (3, 300)
    assert request["slo"] == SCENARIO["slo"]
    assert request["search"]["skus"] == ["h100-sxm"]
    workload = request["workload"]
    assert (workload["rate_per_s"], workload["scv"]) == (30.0, 2.0)
    assert [kind["share"] for kind in workload["classes"]] == [0.75, 0.25]
    assert workload["input_tokens"] == {"mean": 875.0, "p50": 500.0, "p99": 2000.0, "max": 2000.0}
    assert workload["output_tokens"] == {"mean": 87.5, "p50": 100.0, "p99": 100.0, "max": 100.0}


def test_totals_are_the_sums_of_their_parts(exported: dict[str, Any]) -> None:
    deployments, cost = exported["deployments"], exported["cost"]
    assert sum(planned["usd_per_hour"] for planned in deployments) == pytest.approx(cost["usd_per_hour"])
    assert sum(planned["rate_per_s"] for planned in deployments) == pytest.approx(30.0)
    assert sum(planned["simulated"]["goodput_per_s"] for planned in deployments) == pytest.approx(cost["goodput_per_s"])
    assert sum(planned["deployment"]["gpus"] for planned in deployments) == sum(exported["gpus"].values())
    assert exported["allocation"]["cost_per_h"] == pytest.approx(cost["usd_per_hour"])


def test_latencies_constraints_prices_and_agreement_are_exported(plan: Plan, exported: dict[str, Any]) -> None:
    for source in ("predicted", "simulated"):
        for metric in Metric:
            distribution, shown = plan.latency(metric, simulated=source == "simulated"), exported[source][f"{metric}_s"]
            assert shown["mean"] == pytest.approx(distribution.mean_s)
            assert all(shown[name] == distribution.quantile_s(p) for name, p in PERCENTILES.items())
    assert plan.allocation is not None
    rows = {row["name"]: row for row in exported["allocation"]["constraints"]}
    assert set(rows) == {row.name for row in plan.allocation.constraints}
    budget = rows["within_budget"]
    assert budget["slack"] == pytest.approx(1000 - exported["cost"]["usd_per_hour"]) and budget["dual"] is not None
    assert "serve_demand__llama_3_1_8b" in exported["binding"]
    (price,) = exported["prices"]
    assert (price["sku"], price["usd_per_gpu_hour"]) == ("h100-sxm", 2.5)
    assert price["source_url"] and price["retrieved_on"]
    for pair, shown in zip(plan.agreement, exported["agreement"], strict=True):
        difference = shown["predicted_mean_s"] / shown["simulated_mean_s"] - 1.0
        assert shown["relative_difference"] == pytest.approx(difference)
        assert shown["holds"] is (abs(difference) <= 0.15) is pair.holds


def test_infeasible_plan_is_exported_with_its_diagnosis(impossible: Plan) -> None:
    exported = plan_to_dict(impossible)
    assert exported["feasible"] is False
    assert (exported["cost"], exported["predicted"], exported["deployments"]) == (None, None, [])
    assert exported["diagnosis"] == list(impossible.diagnosis) != []
    assert {rejection["sku"] for rejection in exported["rejections"]} == {"h100-sxm"}


def test_unbounded_latencies_become_null(plan: Plan) -> None:
    planned = plan.deployments[0]
    overloaded = planner.evaluate(planned.deployment, planned.workload.at_rate(1e5))
    shown = plain(performance_summary(overloaded, plan.request.slo))
    assert (shown["stable"], shown["goodput_per_s"]) == (False, 0.0)
    assert set(shown["ttft_s"].values()) == {None}
    json_text(shown)


def test_gaps_classes_and_sampling_errors_are_exported(plan: Plan) -> None:
    planned = plan.deployments[0]
    shown = plain(performance_summary(planned.simulated))
    assert shown["itl_s"]["p99"] == planned.simulated.itl.quantile_s(0.99)
    assert {one["name"] for one in shown["classes"]} <= {"chat", "long"}
    for metric, intervals in shown["confidence_s"].items():
        for percentile, interval in intervals.items():
            assert interval["low"] <= shown[metric][percentile] <= interval["high"]
    theory = plain(performance_summary(planned.predicted))
    assert theory["confidence_s"] == {} and theory["goodput_per_s"] is None  # which needs targets


def test_a_closed_loop_has_users_and_no_rate(plan: Plan) -> None:
    deployment = plan.deployments[0].deployment
    loop = planner.Workload.closed(4, planner.TokenLengths.constant(300, 30))
    exported = evaluation_to_dict(deployment, loop, planner.simulate(deployment, loop))
    json_text(exported)
    assert exported["workload"]["concurrency"] == 4
    assert (exported["workload"]["rate_per_s"], exported["workload"]["scv"]) == (None, None)
    (pool, *_) = exported["deployment"]["pools"]
    assert (pool["router"], pool["schedule"]["order"], pool["speculation"]) == ("round_robin", "fcfs", None)


# --- schema ---------------------------------------------------------------------------------------------------------


def complaints(document: object, schema: dict[str, Any]) -> list[str]:
    """Places of a document that break its schema."""
    jsonschema = pytest.importorskip("jsonschema", reason="no JSON Schema validator installed")
    jsonschema.Draft202012Validator.check_schema(schema)
    return [error.json_path for error in jsonschema.Draft202012Validator(schema).iter_errors(document)]


def test_plans_are_as_their_schema_says(exported: dict[str, Any], impossible: Plan) -> None:
    for document in (exported, plan_to_dict(impossible)):
        assert complaints(document, plan_schema()) == []
    assert len(complaints({}, plan_schema())) == len(exported)


def test_evaluations_are_as_their_schema_says(plan: Plan) -> None:
    planned = plan.deployments[0]
    for performance in (planned.predicted, planned.simulated):
        document = evaluation_to_dict(planned.deployment, planned.workload, performance)
        assert complaints(document, json_schema(EvaluationDocument)) == []
        assert document["performance"] == plain(performance_summary(performance))
        assert document["performance"]["method"] == performance.method


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"status": "fine"}, "$.status"),
        ({"considered": 1.5}, "$.considered"),
        ({"gpus": {"h100-sxm": 1.5}}, "$.gpus['h100-sxm']"),
        ({"surprise": 1}, "$"),
        ({"cost": {}}, "$.cost"),
    ],
)
def test_schema_refuses_what_is_not_a_plan(exported: dict[str, Any], change: dict[str, Any], place: str) -> None:
    assert complaints({**exported, **change}, plan_schema()) == [place]
