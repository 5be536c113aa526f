"""Rules and dashboards: the plan's own numbers, metrics that engines have, panels that do not cover one another.

Every expression that twelve shapes of plans export was parsed with promql-parser 0.12.0 on 2026-11-24; it is no
dependency, so that here only names, brackets and selectors are looked at.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import yaml

from planner import launch
from planner.core import UnsupportedFeatureError
from planner.fleet import Plan
from planner.launch import launch_specs
from planner.launch.observability import POOL, SLOWER
from planner.launch.placement import place_replicas
from planner.traffic import metric_names
from planner.workload import LatencyTarget, Slo
from tests.launch.schemas import breaks
from tests.launch.test_kubernetes import kinds, objects
from tests.made_up_fleets import NASTY, launched, mixed, pair, planned

WATCHED = [mixed("vllm", 4, tp=2), mixed("tensorrt-llm"), pair("vllm"), pair("sglang")]
FUNCTIONS = {"sum", "avg", "by", "le", "rate", "histogram_quantile", "vector", "up", "or", "unless"}


def exported(plan: Plan) -> dict[str, str]:
    """Files of a plan."""
    return launch.export_files(plan, "observability")


def rules(plan: Plan) -> list[dict[str, Any]]:
    """All rules of a plan."""
    groups = yaml.safe_load(exported(plan)["rules.yml"])["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels(plan: Plan) -> list[dict[str, Any]]:
    """All panels of a plan."""
    return list(json.loads(exported(plan)["grafana-dashboard.json"])["panels"])


def require_metrics(expression: str, exporter: str) -> None:
    """An expression asks for nothing but what is known of an exporter."""
    known = {one.metric for one in metric_names() if one.engine == exporter}
    bare = re.sub(r'\{[^}]*\}|\[5m\]|"[^"]*"', "", expression)
    names = set(re.findall(r"[a-zA-Z_][a-zA-Z0-9_:]*", bare)) - FUNCTIONS
    assert {name.removesuffix("_bucket") for name in names} <= known, expression


def expressions(plan: Plan) -> set[str]:
    """Everything that is asked of Prometheus."""
    asked = [target["expr"] for panel in panels(plan) for target in panel.get("targets", [])]
    return {*asked, *(rule["expr"] for rule in rules(plan))}


@pytest.mark.parametrize("plan", WATCHED)
def test_rules_are_of_the_operator_s_schema_and_the_plain_file_holds_the_same(plan: Plan) -> None:
    (resource,) = yaml.safe_load_all(exported(plan)["prometheus-rules.yaml"])
    assert not breaks(resource, "PrometheusRule")
    assert resource["spec"] == yaml.safe_load(exported(plan)["rules.yml"])
    assert len({group["name"] for group in resource["spec"]["groups"]}) == len(resource["spec"]["groups"])
    for rule in rules(plan):
        assert ("record" in rule) != ("alert" in rule)
        assert re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", rule.get("record") or rule["alert"])


@pytest.mark.parametrize("plan", WATCHED)
def test_expressions_ask_for_metrics_that_the_engine_has_of_pools_that_are_there(plan: Plan) -> None:
    specs = launch_specs(plan)
    pools = {f"llm-{spec.name}" for spec in specs}
    for expression in expressions(plan):
        for opened, closed in ("()", "[]", "{}"):
            assert expression.count(opened) == expression.count(closed), expression
        require_metrics(expression, specs[0].engine_id)
        for selected in re.findall(rf'{POOL}=~?"([^"]*)"', expression):
            assert set(selected.split("|")) <= pools


def test_numbers_are_those_of_the_plan() -> None:
    plan = mixed("vllm", 4, tp=2)
    (one,) = plan.deployments
    slo = Slo(targets=(LatencyTarget(metric="ttft", percentile=0.99, threshold_s=0.4),))
    found = rules(replace(plan, deployments=(replace(one, slo=slo),)))
    recorded = {rule["record"]: rule["expr"] for rule in found if "record" in rule}
    alerts = {rule["alert"]: rule for rule in found if "alert" in rule}

    def number(text: str) -> float:
        return float(re.findall(r"[-+0-9.e]+", text)[-1])

    rate = one.workload.arrivals.rate_per_s
    assert number(recorded["planner:planned_requests:per_second"]) == pytest.approx(rate, rel=1e-5)
    sustained = number(recorded["planner:sustained_requests:per_second"])
    assert sustained == pytest.approx(one.sustained_per_s, rel=1e-5) and sustained >= rate
    assert recorded["planner:planned_replicas"] == "vector(4)"
    assert recorded["planner:promised_latency:seconds"] == "vector(0.4)"
    expected = number(recorded["planner:expected_latency:seconds"])
    assert expected == pytest.approx(one.simulated.ttft.quantile_s(0.99), rel=1e-5)
    assert "histogram_quantile(0.99," in alerts["LlmTargetMissed"]["expr"]
    assert number(alerts["LlmTargetMissed"]["expr"]) == 0.4
    slower = re.search(r"> ([0-9.e-]+) unless", alerts["LlmSlowerThanPlanned"]["expr"])
    assert slower and float(slower[1]) == pytest.approx(SLOWER * expected, rel=1e-4)


@pytest.mark.parametrize("plan", WATCHED)
def test_a_dashboard_has_panels_side_by_side_each_of_the_chosen_source(plan: Plan) -> None:
    content = json.loads(exported(plan)["grafana-dashboard.json"])
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(content)
    assert len(content["uid"]) <= 40 and content["templating"]["list"][0]["query"] == "prometheus"
    found = content["panels"]
    assert len({panel["id"] for panel in found}) == len(found)
    for panel in found:
        place = panel["gridPos"]
        assert place["x"] >= 0 and place["x"] + place["w"] <= 24
        for target in panel.get("targets", []):
            assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["type"] == "row" or panel["targets"], panel["title"]
    for one, other in combinations((panel["gridPos"] for panel in found), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above


def test_the_label_is_the_one_that_pod_monitors_and_the_scrape_file_give() -> None:
    plan = pair("vllm")
    monitors = kinds(objects(plan), "PodMonitor")
    assert POOL == "app_kubernetes_io_name"
    assert all(one["spec"]["podTargetLabels"] == ["app.kubernetes.io/name"] for one in monitors)
    (job,) = yaml.safe_load(exported(plan)["scrape.yml"])["scrape_configs"]
    found = {one["labels"][POOL]: one["targets"] for one in job["static_configs"]}
    for replica in place_replicas(launch_specs(plan)):
        assert f"localhost:{replica.port}" in found[f"llm-{replica.spec.name}"]
    assert [len(hosts) for hosts in found.values()] == [spec.replicas for spec in launch_specs(plan)]
    other = mixed("tensorrt-llm", 2)  # which measures elsewhere
    (job,) = yaml.safe_load(exported(other)["scrape.yml"])["scrape_configs"]
    assert [one["labels"]["__metrics_path__"] for one in job["static_configs"]] == ["/prometheus/metrics"]
    (monitor,) = kinds(objects(other), "PodMonitor")
    assert [one["path"] for one in monitor["spec"]["podMetricsEndpoints"]] == ["/prometheus/metrics"]


@pytest.mark.parametrize("name", [NASTY[3], NASTY[6]])
def test_names_of_users_are_no_templates_and_break_no_file(name: str) -> None:
    plan = planned(launched(mixed().deployments[0].deployment, service=f"{name} {{{{ $value }}}}"))
    (resource,) = yaml.safe_load_all(exported(plan)["prometheus-rules.yaml"])
    assert not breaks(resource, "PrometheusRule")
    assert all("{{" not in rule["annotations"]["summary"] for rule in rules(plan) if "alert" in rule)


def test_an_engine_without_documented_metrics_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    known = tuple(one for one in metric_names() if one.engine != "tensorrt-llm")
    monkeypatch.setattr("planner.launch.observability.metric_names", lambda: known)
    with pytest.raises(UnsupportedFeatureError, match="engine = 'tensorrt-llm': has no documented metric"):
        exported(mixed("tensorrt-llm"))


def of_frontend(plan: Plan) -> dict[str, str]:
    """Rules and dashboard of a fleet behind Dynamo's frontend."""
    return {name: text for name, text in exported(plan).items() if "dynamo" in name}


@pytest.mark.parametrize("plan", WATCHED)
def test_a_fleet_of_dynamo_is_watched_at_its_frontend_by_model(plan: Plan) -> None:
    """Every expression asks for names of the frontend, of a model that is served, and replicas are left out."""
    found, models = of_frontend(plan), [spec.model.lower() for spec in launch_specs(plan)]
    (resource,) = yaml.safe_load_all(found["prometheus-rules-dynamo.yaml"])
    assert not breaks(resource, "PrometheusRule")
    asked = {rule["expr"] for group in resource["spec"]["groups"] for rule in group["rules"]}
    panels = json.loads(found["grafana-dashboard-dynamo.json"])["panels"]
    asked |= {target["expr"] for panel in panels for target in panel.get("targets", [])}
    for expression in asked:
        require_metrics(expression, "dynamo")
        assert set(re.findall(r'model="([^"]*)"', expression)) <= set(models)
    counted = [expression for expression in asked if "requests_total" in expression]
    assert counted and all('status="success"' in expression for expression in counted)
    assert "LlmReplicasMissing" not in found["prometheus-rules-dynamo.yaml"]


def test_deployments_that_a_frontend_cannot_tell_apart_have_no_rules_of_it() -> None:
    (one,) = mixed("vllm", 2).deployments
    twice = replace(mixed("vllm", 2), deployments=(one, replace(one, service="again")))
    assert of_frontend(twice) == {}
