"""A plan as what scales its fleet: the planned day by the clock, the planned load by an autoscaler, and the settings
of the autoscalers of Dynamo and llm-d.

Fields read on 2026-11-24: triggers in https://keda.sh/docs/2.19/scalers/cron; HorizontalPodAutoscaler in
kubernetes-validate 1.37.0 on PyPI; external rules of the adapter in docs/externalmetrics.md of kubernetes-sigs/
prometheus-adapter; settings of Dynamo's planner in the wheel ai-dynamo 1.6.1 on PyPI (dynamo/planner/config/
planner_config.py); annotations by which the workload variant autoscaler of llm-d finds what it scales, and its metric
``wva_desired_replicas``, in its repository (its resource VariantAutoscaling is deprecated:
https://llm-d.ai/docs/architecture/advanced/autoscaling/hpa-wva). Resources scale the pods of the export `kubernetes`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from planner.core import Metric, UnsupportedFeatureError, significant
from planner.fleet import ScheduledPeriod
from planner.launch.dynamo import BACKENDS
from planner.launch.escaping import yaml_text
from planner.launch.fleet import Fleet, LaunchedDeployment
from planner.launch.kubernetes import MAX_REPLICAS_FACTOR, NAMESPACE, scale_target
from planner.launch.observability import Watched, metric_of
from planner.launch.pods import object_name
from planner.launch.readme import README_NAME, bullets, markdown_rows, name_text, page
from planner.launch.routers import finds_new_replicas
from planner.launch.spec import NVIDIA, LaunchSpec, deployments, launch_specs
from planner.launch.versions import version_of
from planner.serving import Pool, Role
from planner.traffic import HOURS_PER_DAY, HOURS_PER_WEEK, MetricQuantity

CRON_NAME, LOAD_NAME, ADAPTER_NAME = "keda-cron.yaml", "hpa.yaml", "prometheus-adapter.values.yaml"
VARIANTS_NAME, DYNAMO_SUFFIX = "llm-d-wva.yaml", ".dynamo-planner.json"
RATE_SERIES = "planner:measured_requests:per_second"
RATE_METRIC = "planner_measured_requests_per_second"
"""The measured rate: as the rules of `observability` record it, and as the adapter names it."""
VARIANT_METRIC = "wva_desired_replicas"
MINUTES_PER_DAY = 1440


def files(fleet: Fleet) -> dict[str, str]:
    """Every autoscaler that fits the fleet, to choose from, and a README: name -> content.

    Raises:
        UnsupportedFeatureError: the replicas of a router are listed in its file, or the fleet has neither a schedule
            nor metrics to scale by.
    """
    specs = launch_specs(fleet)
    for pools in deployments(specs):
        _require_discovery(pools)
    contents: dict[str, str] = {}
    if fleet.schedule:
        contents[CRON_NAME] = yaml_text(cron_objects(fleet, specs))
    watched = [Watched(pools, fleet.deployments[pools[0].deployment]) for pools in deployments(specs)]
    measured = [one for one in watched if metric_of(one.pools[-1].engine_id, MetricQuantity.REQUESTS) is not None]
    if measured:
        contents[LOAD_NAME] = yaml_text([scaler for one in measured for scaler in load_scalers(one)])
        contents[ADAPTER_NAME] = yaml_text([_ADAPTER])
    for one in watched:
        settings = dynamo_settings(one)
        if settings is not None:
            contents[f"{one.name}{DYNAMO_SUFFIX}"] = json.dumps(settings, indent=1) + "\n"
    variants = [scaler for one in measured for scaler in variant_scalers(one)]
    if variants:
        contents[VARIANTS_NAME] = yaml_text(variants)
    if not contents:
        bound = "has no documented metric to scale by, and the plan no schedule of a day"
        fix = "plan with a profile, or scale by hand"
        raise UnsupportedFeatureError("engine", specs[0].engine_id, bound, fix)
    return {**contents, README_NAME: _readme(fleet, specs, contents)}


def _require_discovery(pools: tuple[LaunchSpec, ...]) -> None:
    if not finds_new_replicas(pools):
        bound = "its router reads a list of replicas when it starts, and knows none that come later"
        raise UnsupportedFeatureError("engine", pools[0].engine_id, bound, "keep the planned replicas")


# --- the planned day ------------------------------------------------------------------------------------------------


def cron_objects(fleet: Fleet, specs: Sequence[LaunchSpec]) -> list[dict[str, Any]]:
    """A scaled object for each pool that holds its planned number of replicas in every period.

    Raises:
        UnsupportedFeatureError: the profile is neither a day nor a week, or two pools cannot be told apart in it.
    """
    hours = math.fsum(period.hours for period in fleet.schedule)
    if hours not in (HOURS_PER_DAY, HOURS_PER_WEEK):
        bound = f"repeats after {hours:g} h; a clock repeats by the day or by the week"
        raise UnsupportedFeatureError("profile", f"{hours:g} h", bound, "plan with a profile of 24 or 168 hours")
    early_min = math.ceil((fleet.profile.cold_start_s if fleet.profile else 0.0) / 60.0)
    pools = [pool for launched in fleet.deployments for pool in launched.deployment.pools]
    marks = [_mark(pool) for pool in pools]
    twice = next((mark for mark in marks if marks.count(mark) > 1), None)
    if twice is not None:
        bound = "is the configuration of two pools, which the schedule does not tell apart"
        raise UnsupportedFeatureError("schedule", twice, bound, "export each service by itself")
    return [
        _cron_object(spec, replicas_by_period(fleet.schedule, mark), fleet.schedule, early_min)
        for spec, mark in zip(specs, marks, strict=True)
    ]


def _mark(pool: Pool) -> str:
    """The start of the name that a schedule calls a pool (`planner.fleet.pool_name`)."""
    config = pool.config
    return f"{pool.role.value} {config.label} c{config.max_batched_tokens} b{config.max_running_requests}"


def replicas_by_period(schedule: Sequence[ScheduledPeriod], mark: str) -> list[int]:
    """Replicas of a pool in every period."""
    return [
        sum(count for name, count in period.replicas.items() if name == mark or name.startswith(f"{mark} "))
        for period in schedule
    ]


def _cron_object(
    spec: LaunchSpec, replicas: Sequence[int], schedule: Sequence[ScheduledPeriod], early_min: int
) -> dict[str, Any]:
    least = min(replicas)
    ends = [0]
    for period in schedule:
        ends.append(ends[-1] + round(60.0 * period.hours))
    weekly = ends[-1] > MINUTES_PER_DAY
    triggers, at = [], 0
    for count, group in groupby(replicas):
        first, at = at, at + len(list(group))
        if count > least:
            start, end = _clock(ends[first] - early_min, weekly), _clock(ends[at], weekly)
            told = {"timezone": "Etc/UTC", "start": start, "end": end, "desiredReplicas": str(count)}
            triggers.append({"type": "cron", "metadata": told})
    if not triggers:
        always = {"timezone": "Etc/UTC", "start": "0 0 * * *", "end": "59 23 * * *", "desiredReplicas": str(least)}
        triggers = [{"type": "cron", "metadata": always}]
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": f"{object_name(spec)}-cron"},
        "spec": {
            "scaleTargetRef": scale_target(spec),
            "minReplicaCount": least,
            "maxReplicaCount": max(replicas),
            "triggers": triggers,
        },
    }


def _clock(minute: int, weekly: bool) -> str:
    """A minute of the day, or of a week that begins on Monday, as cron writes it.

    >>> _clock(90, weekly=False), _clock(-5, weekly=False), _clock(1440 + 60, weekly=True), _clock(-60, weekly=True)
    ('30 1 * * *', '55 23 * * *', '0 1 * * 2', '0 23 * * 0')
    """
    day, left = divmod(minute, MINUTES_PER_DAY)
    hour, minute = divmod(left, 60)
    return f"{minute} {hour} * * {(day + 1) % 7 if weekly else '*'}"


# --- the planned load -----------------------------------------------------------------------------------------------


def load_scalers(one: Watched) -> list[dict[str, Any]]:
    """A HorizontalPodAutoscaler for each pool that keeps the requests/s of a replica at what was planned."""
    metric = {"name": RATE_METRIC, "selector": {"matchLabels": {"deployment": one.name}}}
    return [
        _scaler(pool, pool.replicas, {"metric": metric, "target": _average(one.planned_per_s / pool.replicas)}, {})
        for pool in one.pools
    ]


def _average(value: float) -> dict[str, str]:
    """A target for each replica, in thousandths, as Kubernetes writes quantities below one."""
    return {"type": "AverageValue", "averageValue": f"{max(1, round(1000.0 * value))}m"}


def _scaler(
    pool: LaunchSpec, least: int, external: Mapping[str, Any], annotations: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": object_name(pool), **({"annotations": dict(annotations)} if annotations else {})},
        "spec": {
            "scaleTargetRef": scale_target(pool),
            "minReplicas": least,
            "maxReplicas": MAX_REPLICAS_FACTOR * pool.replicas,
            "metrics": [{"type": "External", "external": dict(external)}],
        },
    }


_ADAPTER: Mapping[str, Any] = {
    "rules": {
        "external": [
            {
                "seriesQuery": RATE_SERIES,
                "resources": {"namespaced": False},
                "name": {"matches": f"^{RATE_SERIES}$", "as": RATE_METRIC},
                "metricsQuery": "max by (deployment) (<<.Series>>{<<.LabelMatchers>>})",
            }
        ]
    }
}
"""The recorded series as a metric that scalers can ask for; it has no namespace, since a rule has none."""


# --- autoscalers of Dynamo and llm-d --------------------------------------------------------------------------------


def dynamo_settings(one: Watched) -> dict[str, Any] | None:
    """Settings of Dynamo's planner for one deployment; None where Dynamo does not run it, or without its two targets.

    The planner holds means (`throughput_adjustment_interval_seconds`), so that the thresholds of percentiles are on the
    safe side of what it is told.
    """
    pools, launched = one.pools, one.launched
    thresholds_s = {target.metric: target.threshold_s for target in launched.slo.targets}
    runs = pools[0].vendor == NVIDIA and pools[0].engine_id in BACKENDS
    if not runs or not {Metric.TTFT, Metric.TPOT} <= set(thresholds_s):
        return None
    gpus = sum(pool.replicas * pool.gpus for pool in pools)
    sizes = {f"{'decode' if pool.role is Role.MIXED else pool.role.value}_engine_num_gpu": pool.gpus for pool in pools}
    least = (
        {f"{pool.role.value}_min_endpoint": pool.replicas for pool in pools}
        if len(pools) > 1
        else {"min_endpoint": pools[0].replicas}
    )
    return {
        "environment": "kubernetes",
        "backend": BACKENDS[pools[0].engine_id].framework,
        "mode": "disagg" if len(pools) > 1 else "agg",
        "optimization_target": "sla",
        "ttft_ms": round(1e3 * thresholds_s[Metric.TTFT], 3),
        "itl_ms": round(1e3 * thresholds_s[Metric.TPOT], 3),
        "min_gpu_budget": gpus,
        "max_gpu_budget": MAX_REPLICAS_FACTOR * gpus,
        **least,
        **sizes,
        "pre_deployment_sweeping_mode": "none",
        "enable_throughput_scaling": True,
        "enable_load_scaling": False,
    }


def variant_scalers(one: Watched) -> list[dict[str, Any]]:
    """A HorizontalPodAutoscaler for each pool that does what llm-d's workload variant autoscaler asks for."""
    if one.pools[0].engine_id != "vllm" or not one.pools[0].model:
        return []
    return [
        _scaler(
            pool,
            pool.replicas,
            {
                "metric": {"name": VARIANT_METRIC, "selector": {"matchLabels": {"variant_name": object_name(pool)}}},
                "target": {"type": "AverageValue", "averageValue": "1"},
            },
            {
                "llm-d.ai/managed": "true",
                "llm-d.ai/model-id": pool.model,
                **_variant_cost(one.launched, number),
            },
        )
        for number, pool in enumerate(one.pools)
    ]


def _variant_cost(launched: LaunchedDeployment, number: int) -> dict[str, str]:
    """What a replica costs [USD/h], which tells variants apart; nothing where the plan does not say."""
    if launched.figures is None:
        return {}
    pool, usd = launched.deployment.pools[number], launched.figures.pool_usd_per_hour[number]
    return {"llm-d.ai/variant-cost": f"{max(0.0, usd) / pool.replicas:.4f}"}


# --- words ----------------------------------------------------------------------------------------------------------


def _readme(fleet: Fleet, specs: Sequence[LaunchSpec], contents: Mapping[str, str]) -> str:
    rows = [
        (
            object_name(spec),
            f"{spec.replicas:,}",
            f"{MAX_REPLICAS_FACTOR * spec.replicas:,}",
            significant(fleet.deployments[spec.deployment].workload.arrivals.rate_per_s / spec.replicas),
        )
        for spec in specs
    ]
    chart = version_of("autoscaling", "prometheus-adapter (chart)")
    kinds = [text for name, text in _KINDS.items() if any(name in file for file in contents)]
    sections = [
        "Ways to scale the pods of the export `kubernetes`. Take one of them for a pool: two would undo each other.",
        bullets([text.replace("{version}", chart) for text in kinds]),
        markdown_rows(_HEAD, rows),
        "## Notes",
        bullets(_NOTES),
    ]
    return page(f"Scaling {name_text(fleet.name)}", sections)


_HEAD = "| Pool | Planned | At most | Requests/s of a planned replica |\n| --- | ---: | ---: | ---: |"
_KINDS = {
    CRON_NAME: f"`{CRON_NAME}` (KEDA): the planned number of replicas in every period of the profile, by the clock in "
    "UTC, ordered earlier by the cold start that was planned with. Set `timezone` where the profile is in another.",
    LOAD_NAME: f"`{LOAD_NAME}` (HorizontalPodAutoscaler): as many replicas as keep the requests/s of each at what was "
    "planned. It asks for the series that the rules of the export `observability` record, which "
    f"`{ADAPTER_NAME}` makes known to Kubernetes (`helm install prometheus-adapter "
    "prometheus-community/prometheus-adapter --version {version} -f` it).",
    DYNAMO_SUFFIX: f"`*{DYNAMO_SUFFIX}`: settings of the planner of NVIDIA Dynamo for a deployment of the "
    "export `dynamo` (`python3 -m dynamo.planner --config FILE` in a component of type `planner`).",
    VARIANTS_NAME: f"`{VARIANTS_NAME}`: scalers that follow the workload variant autoscaler of llm-d, with what a "
    "replica costs in USD/h.",
}
_NOTES = (
    "The fewest replicas are the planned ones, of a schedule those of its quietest period: with less the promises do "
    "not hold.",
    f"The most are {MAX_REPLICAS_FACTOR} times the planned ones, a choice that bounds the cost.",
    f"Scaled objects and scalers belong to the namespace of the pods, such as `{NAMESPACE}`.",
    "Dynamo's planner takes TTFT and ITL as means of an interval, not as the percentiles that were promised.",
    "`planner autoscale` plays a day with an autoscaler beside the planned schedule.",
)
