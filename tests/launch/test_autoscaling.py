"""Autoscalers of a plan: the day by the clock, the load that was planned, and fields that their schemas have."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import yaml

from planner import launch
from planner.core import UnsupportedFeatureError
from planner.fleet import Plan, ScheduledPeriod
from planner.launch.autoscaling import RATE_SERIES
from planner.traffic import DemandProfile, metric_names
from planner.workload import Slo
from tests.launch.schemas import breaks, object_breaks
from tests.launch.test_kubernetes import objects as manifests
from tests.launch.test_observability import rules
from tests.made_up_fleets import mixed, pair, spread

NAME = "mixed h100-sxm TP2 c2048 b256"


def exported(plan: Plan) -> dict[str, str]:
    """Files of a plan."""
    return launch.export_files(plan, "autoscaling")


def objects(plan: Plan, name: str) -> list[dict[str, Any]]:
    """The objects of one file."""
    return list(yaml.safe_load_all(exported(plan)[name]))


def scheduled(plan: Plan, replicas: list[int], hours: float, cold_start_s: float = 0.0) -> Plan:
    """A plan whose only pool follows a day."""
    pool = plan.deployments[0].deployment.pools[0]
    config = pool.config
    name = f"mixed {config.label} c{config.max_batched_tokens} b{config.max_running_requests} fp8"
    periods = tuple(
        ScheduledPeriod(f"{n}", hours, 1.0, 1.0, {name: count} if count else {}, {}, 1.0)
        for n, count in enumerate(replicas)
    )
    profile = DemandProfile(factors=(1.0,) * len(replicas), period_hours=hours, cold_start_s=cold_start_s)
    request = plan.request.model_copy(update={"profile": profile})
    return replace(plan, schedule=periods, request=request)


def active(trigger: dict[str, str], minute: int, weekly: bool) -> bool:
    """Whether a cron trigger of KEDA is on: its last start is later than its last end."""

    def at(text: str) -> int:
        clock_minute, hour, *_, day = text.split()
        of_day = int(clock_minute) + 60 * int(hour)
        return of_day + 1440 * ((int(day) - 1) % 7) if weekly else of_day

    cycle = 7 * 1440 if weekly else 1440
    return (minute - at(trigger["start"])) % cycle < (minute - at(trigger["end"])) % cycle


@pytest.mark.parametrize(
    ("replicas", "hours"),
    [([1, 1, 3, 4, 2, 1], 4.0), ([2, 2], 12.0), ([0, 3], 12.0), ([1, 3] * 7, 12.0)],
)
def test_at_every_hour_the_clock_asks_for_the_planned_replicas(replicas: list[int], hours: float) -> None:
    plan = scheduled(mixed("vllm", max(replicas), tp=2), replicas, hours)
    (scaled,) = objects(plan, "keda-cron.yaml")
    assert not object_breaks(scaled)
    spec, weekly = scaled["spec"], hours * len(replicas) > 24.0
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (min(replicas), max(replicas))
    for period, planned in enumerate(replicas):
        minute = round(60 * hours * (period + 0.5))
        asked = [
            int(one["metadata"]["desiredReplicas"])
            for one in spec["triggers"]
            if active(one["metadata"], minute, weekly)
        ]
        assert max([spec["minReplicaCount"], *asked]) == planned, period


def test_replicas_are_ordered_before_they_are_needed_by_their_cold_start() -> None:
    (scaled,) = objects(scheduled(mixed("vllm", 3, tp=2), [1, 3], 12.0, cold_start_s=290.0), "keda-cron.yaml")
    (trigger,) = scaled["spec"]["triggers"]
    assert (trigger["metadata"]["start"], trigger["metadata"]["end"]) == ("55 11 * * *", "0 0 * * *")


def test_a_profile_that_no_clock_repeats_is_refused() -> None:
    with pytest.raises(UnsupportedFeatureError, match=r"profile = '36 h': .*by the day or by the week"):
        exported(scheduled(mixed("vllm", 3), [1, 2, 3], 12.0))


@pytest.mark.parametrize("plan", [pair("vllm", (2, 3)), spread()])
def test_at_the_planned_rate_the_autoscaler_keeps_the_planned_replicas(plan: Plan) -> None:
    """By its rule for external metrics: replicas = total over the target of each, rounded up (autoscaling/v2)."""
    rate = plan.deployments[0].workload.arrivals.rate_per_s
    pools = plan.deployments[0].deployment.pools
    workloads = ("Deployment", "LeaderWorkerSet")
    names = {one["metadata"]["name"]: one["kind"] for one in manifests(plan) if one["kind"] in workloads}
    for scaler, pool in zip(objects(plan, "hpa.yaml"), pools, strict=True):
        assert not object_breaks(scaler)
        spec = scaler["spec"]
        target = spec["metrics"][0]["external"]["target"]["averageValue"]
        wanted = rate / (float(target.removesuffix("m")) / 1000.0)
        assert wanted == pytest.approx(pool.replicas, rel=1e-3)
        assert spec["minReplicas"] == pool.replicas < spec["maxReplicas"]
        assert names[spec["scaleTargetRef"]["name"]] == spec["scaleTargetRef"]["kind"]


def test_the_adapter_passes_on_the_series_that_the_rules_record() -> None:
    plan = pair("vllm")
    recorded = {rule.get("record"): rule for rule in rules(plan)}
    values = yaml.safe_load(exported(plan)["prometheus-adapter.values.yaml"])
    assert not breaks(values, "PrometheusAdapterValues")
    (rule,) = values["rules"]["external"]
    assert re.fullmatch(rule["name"]["matches"], RATE_SERIES)
    assert "--version 5.3.0 -f" in exported(plan)["README.md"]
    assert rule["seriesQuery"] == RATE_SERIES and RATE_SERIES in recorded
    for scaler in objects(plan, "hpa.yaml"):
        metric = scaler["spec"]["metrics"][0]["external"]["metric"]
        assert metric["name"] == rule["name"]["as"]
        assert metric["selector"]["matchLabels"].items() <= recorded[RATE_SERIES]["labels"].items()


def test_the_planner_of_dynamo_gets_targets_and_engines_as_planned() -> None:
    agg, disagg = (
        json.loads(exported(plan)["llm-01-main.dynamo-planner.json"]) for plan in (mixed("vllm", 4, tp=2), pair("vllm"))
    )
    assert not breaks(agg, "PlannerConfig") and not breaks(disagg, "PlannerConfig")
    assert (agg["ttft_ms"], agg["itl_ms"], agg["mode"], agg["decode_engine_num_gpu"]) == (500.0, 30.0, "agg", 2)
    assert (disagg["prefill_min_endpoint"], disagg["decode_min_endpoint"], disagg["min_gpu_budget"]) == (2, 3, 5)
    assert disagg["mode"] == "disagg"


def test_variants_of_llm_d_say_what_a_replica_costs() -> None:
    found = objects(pair("vllm", (2, 3), tp=2), "llm-d-wva.yaml")
    for scaler in found:
        assert not object_breaks(scaler)
        asked = scaler["spec"]["metrics"][0]["external"]["metric"]
        assert asked["selector"]["matchLabels"] == {"variant_name": scaler["spec"]["scaleTargetRef"]["name"]}
        assert scaler["metadata"]["annotations"]["llm-d.ai/variant-cost"] == "5.0000", "two GPUs at 2.50 USD/h"
    assert "llm-d-wva.yaml" not in exported(mixed("sglang"))


def test_a_router_with_a_fixed_list_and_an_engine_without_metrics_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedFeatureError, match="its router reads a list of replicas when it starts"):
        exported(pair("tensorrt-llm"))
    known = tuple(one for one in metric_names() if one.engine != "tensorrt-llm")
    monkeypatch.setattr("planner.launch.observability.metric_names", lambda: known)
    assert set(exported(mixed("tensorrt-llm"))) == {"llm-01-main.dynamo-planner.json", "README.md"}
    plan = mixed("tensorrt-llm")
    only = Slo(targets=plan.deployments[0].slo.targets[:1])
    with pytest.raises(UnsupportedFeatureError, match="no documented metric to scale by"):
        exported(replace(plan, deployments=(replace(plan.deployments[0], slo=only),)))
    assert "keda-cron.yaml" in exported(scheduled(mixed("tensorrt-llm", 3), [1, 3], 12.0))
