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
from itertools import accumulate, groupby
from typing import Any

from planner.core import Metric, UnsupportedFeatureError
from planner.fleet import Plan, ScheduledPeriod
from planner.launch.flags import word_of
from planner.launch.kubernetes import MAX_REPLICAS_FACTOR, NAMESPACE, scale_target
from planner.launch.observability import Watched, metric_of
from planner.launch.readme import README_NAME, version_of
from planner.launch.routers import finds_new_replicas
from planner.launch.spec import LaunchSpec, deployments, launch_specs
from planner.launch.templates import objects_of, text_of, yaml_text
from planner.traffic import HOURS_PER_DAY, HOURS_PER_WEEK, MetricQuantity

CRON_NAME, LOAD_NAME, ADAPTER_NAME = "keda-cron.yaml", "hpa.yaml", "prometheus-adapter.values.yaml"
VARIANTS_NAME, DYNAMO_SUFFIX = "llm-d-wva.yaml", ".dynamo-planner.json"
RATE_SERIES = "planner:measured_requests:per_second"
RATE_METRIC = "planner_measured_requests_per_second"
"""The measured rate: as the rules of `observability` record it, and as the adapter names it."""
VARIANT_METRIC = "wva_desired_replicas"
MINUTES_PER_DAY = 1440


def files(plan: Plan) -> dict[str, str]:
    """Every autoscaler that fits the fleet, to choose from, and a README: name -> content.

    Raises:
        UnsupportedFeatureError: the replicas of a router are listed in its file, or the fleet has neither a schedule
            nor metrics to scale by.
    """
    specs = launch_specs(plan)
    for pools in deployments(specs):
        if not finds_new_replicas(pools):
            bound = "its router reads a list of replicas when it starts, and knows none that come later"
            raise UnsupportedFeatureError("engine", pools[0].engine_id, bound, "keep the planned replicas")
    contents: dict[str, str] = {}
    if plan.schedule:
        contents[CRON_NAME] = yaml_text(cron_objects(plan, specs))
    watched = [Watched(pools, plan.deployments[pools[0].deployment]) for pools in deployments(specs)]
    measured = [one for one in watched if metric_of(one.pools[-1].engine_id, MetricQuantity.REQUESTS) is not None]
    if measured:
        contents[LOAD_NAME] = yaml_text([scaler for one in measured for scaler in load_scalers(one)])
        contents[ADAPTER_NAME] = yaml_text(
            objects_of("prometheus-adapter.yaml.j2", series=RATE_SERIES, metric=RATE_METRIC)
        )
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
    text = text_of(
        "autoscaling.md.j2",
        plan=plan,
        specs=specs,
        files=list(contents),
        chart=version_of("autoscaling", "prometheus-adapter (chart)"),
        most=MAX_REPLICAS_FACTOR,
        namespace=NAMESPACE,
    )
    return {**contents, README_NAME: text}


# --- the planned day ------------------------------------------------------------------------------------------------


def cron_objects(plan: Plan, specs: Sequence[LaunchSpec]) -> list[dict[str, Any]]:
    """A scaled object for each pool that holds its planned number of replicas in every period.

    Raises:
        UnsupportedFeatureError: the profile is neither a day nor a week, or two pools cannot be told apart in it.
    """
    hours = math.fsum(period.hours for period in plan.schedule)
    if hours not in (HOURS_PER_DAY, HOURS_PER_WEEK):
        bound = f"repeats after {hours:g} h; a clock repeats by the day or by the week"
        raise UnsupportedFeatureError("profile", f"{hours:g} h", bound, "plan with a profile of 24 or 168 hours")
    early_min = math.ceil((plan.request.profile.cold_start_s if plan.request.profile else 0.0) / 60.0)
    pools = [pool for launched in plan.deployments for pool in launched.deployment.pools]
    marks = [  # the start of the name that a schedule calls a pool (`planner.fleet.pool_name`)
        f"{pool.role.value} {pool.config.label} c{pool.config.max_batched_tokens} b{pool.config.max_running_requests}"
        for pool in pools
    ]
    twice = next((mark for mark in marks if marks.count(mark) > 1), None)
    if twice is not None:
        bound = "is the configuration of two pools, which the schedule does not tell apart"
        raise UnsupportedFeatureError("schedule", twice, bound, "export each service by itself")
    return [
        scaler
        for spec, mark in zip(specs, marks, strict=True)
        for scaler in _cron_object(spec, replicas_by_period(plan.schedule, mark), plan.schedule, early_min)
    ]


def replicas_by_period(schedule: Sequence[ScheduledPeriod], mark: str) -> list[int]:
    """Replicas of a pool in every period."""
    return [
        sum(count for name, count in period.replicas.items() if name == mark or name.startswith(f"{mark} "))
        for period in schedule
    ]


def _cron_object(
    spec: LaunchSpec, replicas: Sequence[int], schedule: Sequence[ScheduledPeriod], early_min: int
) -> list[dict[str, Any]]:
    ends = list(accumulate((round(60.0 * period.hours) for period in schedule), initial=0))
    weekly = ends[-1] > MINUTES_PER_DAY
    triggers, at = [], 0
    for count, group in groupby(replicas):
        first, at = at, at + len(list(group))
        if count > min(replicas):
            triggers.append((_clock(ends[first] - early_min, weekly), _clock(ends[at], weekly), count))
    triggers = triggers or [("0 0 * * *", "59 23 * * *", min(replicas))]
    return objects_of("keda-cron.yaml.j2", pool=spec, target=scale_target(spec), replicas=replicas, triggers=triggers)


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
    """A HorizontalPodAutoscaler for each pool that keeps the requests/s of a replica at what was planned.

    Rates are in thousandths, as Kubernetes writes quantities below one.
    """
    return _scalers(
        [(pool, f"{max(1, round(1e3 * one.planned_per_s / pool.replicas))}m", one.name, {}) for pool in one.pools],
        RATE_METRIC,
        "deployment",
    )


def _scalers(
    pools: Sequence[tuple[LaunchSpec, str, str, Mapping[str, str]]], metric: str, label: str
) -> list[dict[str, Any]]:
    """Scalers of pools by a metric, each with its value for one replica, the value of a label, and annotations."""
    facts = {"metric": metric, "label": label, "most": MAX_REPLICAS_FACTOR, "scale_target": scale_target}
    return objects_of("hpa.yaml.j2", pools=pools, **facts)


# --- autoscalers of Dynamo and llm-d --------------------------------------------------------------------------------


def dynamo_settings(one: Watched) -> dict[str, Any] | None:
    """Settings of Dynamo's planner for one deployment; None where Dynamo does not run it, or without its two targets.

    The planner holds means (`throughput_adjustment_interval_seconds`), so that the thresholds of percentiles are on the
    safe side of what it is told.
    """
    pools, launched = one.pools, one.launched
    thresholds_s = {target.metric: target.threshold_s for target in launched.slo.targets}
    backend = word_of(pools[0].engine_id, "dynamo_framework")
    if not (pools[0].is_nvidia and backend) or not {Metric.TTFT, Metric.TPOT} <= set(thresholds_s):
        return None
    (settings,) = objects_of(
        "dynamo-planner.yaml.j2",
        backend=backend,
        pools=pools,
        ttft_s=thresholds_s[Metric.TTFT],
        itl_s=thresholds_s[Metric.TPOT],
        gpus=sum(pool.replicas * pool.gpus for pool in pools),
        most=MAX_REPLICAS_FACTOR,
    )
    return settings


def variant_scalers(one: Watched) -> list[dict[str, Any]]:
    """A HorizontalPodAutoscaler for each pool that does what llm-d's workload variant autoscaler asks for."""
    if one.pools[0].engine_id != "vllm" or not one.pools[0].model:
        return []
    pools = []
    for pool, usd in zip(one.pools, one.launched.pool_usd_per_hour, strict=True):
        cost = f"{max(0.0, usd / pool.replicas):.4f}"  # of a replica, which tells variants apart
        told = {"llm-d.ai/managed": "true", "llm-d.ai/model-id": pool.model, "llm-d.ai/variant-cost": cost}
        pools.append((pool, "1", pool.object_name, told))
    return _scalers(pools, VARIANT_METRIC, "variant_name")
