"""A plan as what watches its fleet: Prometheus rules and a Grafana dashboard, planned beside measured.

Names of metrics are data (`planner.traffic.metric_names`). Fields read on 2026-11-24: rule files in
https://prometheus.io/docs/prometheus/latest/configuration/recording_rules and .../alerting_rules; PrometheusRule in the
models of cloudcoil-models-prometheus-operator 0.93.1.1 on PyPI; the dashboard in
https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from planner.core import UnsupportedFeatureError
from planner.fleet import Plan, PlannedDeployment
from planner.launch.kubernetes import POOL_LABEL, WAITING_PER_REPLICA
from planner.launch.placement import PlacedReplica, place_replicas, replicas_of, server_numbers
from planner.launch.readme import README_NAME
from planner.launch.spec import LaunchSpec, deployments, launch_specs
from planner.launch.templates import objects_of, slug, text_of, yaml_text
from planner.traffic import MetricName, MetricQuantity, metric_names
from planner.workload import LatencyTarget

NAME = "observability"
"""Of the target."""
RULES_NAME = "prometheus-rules.yaml"
PLAIN_RULES_NAME = "rules.yml"
SCRAPE_NAME = "scrape.yml"
DYNAMO_RULES_NAME, DYNAMO_DASHBOARD_NAME = "prometheus-rules-dynamo.yaml", "grafana-dashboard-dynamo.json"
DYNAMO = "dynamo"
"""Whose metrics `planner.traffic.metric_names` calls so: the frontend of NVIDIA Dynamo."""
DASHBOARD_NAME = "grafana-dashboard.json"
POOL = POOL_LABEL.translate({ord("."): "_", ord("/"): "_"})
"""Name in Prometheus of the label of a pod that names its pool: other characters than letters, digits and ``_`` are
replaced (`sanitizeLabelName` of the Prometheus operator)."""
REGION = "region"
"""Label of Prometheus that says where series come from (`external_labels`)."""
PERCENTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
"""Percentiles of latencies that the document of a plan keeps."""
WINDOW = "5m"
"""Over which rates and percentiles are taken. A choice: hundreds of requests at the rates of a server."""
SLOWER = 1.25
"""Measured over expected latency from which a fleet within its planned traffic is called slower than planned. A
choice."""
SETTINGS = {
    "window": WINDOW,
    "latency_for": "10m",
    "traffic_for": "15m",
    "down_for": "5m",
    "slower": SLOWER,
    "waiting_each": WAITING_PER_REPLICA,
}
"""Of rules and their description. Alerts wait: percentiles of one window are noisy, traffic comes in waves,
and a replica may be replaced."""


@dataclass(frozen=True)
class Watched:
    """One deployment, and how its metrics are asked for.

    Attributes:
        pools: of the deployment.
        launched: the deployment.
        frontend: exporter of a frontend that measures in place of the engines, by the name of the model; empty: none.
        region: label of its series where one Prometheus reads several regions; empty: none.
    """

    pools: tuple[LaunchSpec, ...]
    launched: PlannedDeployment
    frontend: str = ""
    region: str = ""

    @property
    def name(self) -> str:
        """Of the deployment, in labels."""
        return self.pools[0].deployment_name

    @cached_property
    def planned_per_s(self) -> float:
        """Arrivals that were planned for [1/s]."""
        return self.launched.workload.arrivals.rate_per_s

    @property
    def sustained_per_s(self) -> float:
        """Arrivals that its replicas sustain under the targets [1/s]."""
        return self.launched.sustained_per_s

    @property
    def replicas(self) -> int:
        """Planned replicas of all pools."""
        return sum(pool.replicas for pool in self.pools)

    @property
    def measuring(self) -> tuple[LaunchSpec, ...]:
        """Pools with metrics of their own; a frontend has one set for all."""
        return self.pools[:1] if self.frontend else self.pools

    def expected_s(self, target: LatencyTarget) -> float | None:
        """The latency that the plan expects at a target [s]; None where it is unbounded, or no document would say."""
        expected_s = self.launched.simulated.latency_s(target)
        return expected_s if target.percentile in PERCENTILES and math.isfinite(expected_s) else None

    def of(self, quantity: MetricQuantity, pool: LaunchSpec, suffix: str = "") -> str:
        """The series of a pool that count something. Raises UnsupportedFeatureError where its engine has none."""
        metric = self.metric(pool, quantity)
        if metric is None:
            bound = f"has no documented metric of {quantity.value.replace('_', ' ')}"
            raise UnsupportedFeatureError("engine", pool.engine_id, bound, "watch it by its own dashboards")
        chosen = {"model": pool.model.lower(), **dict(metric.labels)} if self.frontend else {POOL: pool.object_name}
        chosen |= {REGION: self.region} if self.region else {}
        return f"{metric.metric}{suffix}{{{','.join(f'{name}={json.dumps(text)}' for name, text in chosen.items())}}}"

    def metric(self, pool: LaunchSpec, quantity: MetricQuantity) -> MetricName | None:
        """The name of a quantity that a pool, or what stands before it, exports."""
        return metric_of(self.frontend or pool.engine_id, quantity)

    @property
    def measured_rate(self) -> str:
        """Requests that were finished [1/s]: by the pool that finishes them."""
        return f"sum(rate({self.of(MetricQuantity.REQUESTS, self.pools[-1])}[{WINDOW}]))"

    def measured_latency(self, target: LatencyTarget) -> str | None:
        """The percentile of a target [s]; None where no metric of a server is that latency."""
        quantity, pool = MetricQuantity(target.metric.value), self.pools[-1]
        if quantity is MetricQuantity.TTFT:
            pool = self.pools[0]
        elif quantity is MetricQuantity.E2E and len(self.pools) > 1 and not self.frontend:
            return None
        if self.metric(pool, quantity) is None:
            quantity = MetricQuantity.ITL
        if self.metric(pool, quantity) is None:
            return None
        series = self.of(quantity, pool, "_bucket")
        return f"histogram_quantile({target.percentile:g}, sum by (le) (rate({series}[{WINDOW}])))"

    @property
    def replicas_up(self) -> str:
        """Replicas that answer."""
        names = "|".join(pool.object_name for pool in self.pools)
        return f'sum(up{{{POOL}=~"{names}"{f", {REGION}={json.dumps(self.region)}" if self.region else ""}}})'


def metric_of(exporter: str, quantity: MetricQuantity) -> MetricName | None:
    """The name to prefer of those that an engine, or a frontend, has for a quantity."""
    return next((one for one in metric_names() if (one.engine, one.quantity) == (exporter, quantity)), None)


def files(plan: Plan) -> dict[str, str]:
    """Rules for the operator and as a plain file, what to scrape outside of a cluster, a dashboard, a README.

    Raises:
        UnsupportedFeatureError: an engine has no documented metrics.
    """
    specs, watched = launch_specs(plan, with_encoders=True), watched_of(plan)
    rule = _rules(f"llm-{slug(plan.request.name)}", watched)
    facts = {
        "label": POOL,
        "has_dynamo": bool(_at_frontend(watched)),
        "knows_tpot": {
            one.name: metric_of(one.pools[-1].engine_id, MetricQuantity.TPOT) is not None for one in watched
        },
        **SETTINGS,
    }
    return {
        RULES_NAME: yaml_text([rule]),
        PLAIN_RULES_NAME: yaml_text([rule["spec"]]),
        SCRAPE_NAME: yaml_text([{"scrape_configs": [_scraped(place_replicas(specs))]}]),
        DASHBOARD_NAME: dashboard(plan.request.name, watched),
        **_dynamo_files(plan, watched),
        README_NAME: text_of("observability.md.j2", name=plan.request.name, watched=watched, **facts),
    }


def watched_of(plan: Plan, region: str = "") -> list[Watched]:
    """The deployments of a plan; where several regions are watched together, with the label of its series."""
    return [
        Watched(pools, plan.deployments[pools[0].deployment], region=region)
        for pools in deployments(launch_specs(plan, with_encoders=True))
    ]


def _rules(name: str, watched: Sequence[Watched]) -> dict[str, Any]:
    """The resource that holds what is recorded and what alerts."""
    facts = {"name": name, "watched": watched, "waiting": MetricQuantity.WAITING, **SETTINGS}
    (rule,) = objects_of("prometheus-rules.yaml.j2", **facts)
    return rule


def _at_frontend(watched: Sequence[Watched]) -> list[Watched]:
    """As the frontend of Dynamo measures it, which goes by model: deployments that are the only ones of a named one."""
    models = [one.pools[0].model for one in watched]
    return [
        replace(one, frontend=DYNAMO)
        for one, model in zip(watched, models, strict=True)
        if model and models.count(model) == 1
    ]


def _dynamo_files(plan: Plan, watched: Sequence[Watched]) -> dict[str, str]:
    """Rules and dashboard of a fleet that the export `dynamo` starts; none where no deployment can be told by model."""
    fronted = _at_frontend(watched)
    if not fronted:
        return {}
    rule = _rules(f"llm-{slug(plan.request.name)}-dynamo", fronted)
    picture = dashboard(f"{plan.request.name} at Dynamo's frontend", fronted)
    return {DYNAMO_RULES_NAME: yaml_text([rule]), DYNAMO_DASHBOARD_NAME: picture}


def _scraped(replicas: Sequence[PlacedReplica]) -> dict[str, Any]:
    """A job of Prometheus for replicas outside of a cluster, with the label that the operator gives those inside."""
    alone = len(server_numbers(replicas)) == 1
    pools = {replica.spec.name: replica.spec for replica in replicas}.values()
    static = [
        {
            "targets": [
                f"{'localhost' if alone else f'server-{replica.servers[0]}'}:{replica.port}"
                for replica in replicas_of(replicas, pool)
            ],
            "labels": {POOL: pool.object_name, "__metrics_path__": pool.metrics_path},
        }
        for pool in pools
    ]
    return {"job_name": "llm", "static_configs": static}


# --- the dashboard --------------------------------------------------------------------------------------------------


def dashboard(name: str, watched: Iterable[Watched]) -> str:
    """A dashboard of a fleet as JSON: for each deployment a row of panels, measured beside planned."""
    (found,) = objects_of("dashboard.yaml.j2", name=name, rows=[(one, _panels(one)) for one in watched])
    return json.dumps(found, indent=1) + "\n"


def _panels(one: Watched) -> list[tuple[str, dict[str, str], str]]:
    """Panels of a deployment: title, lines over time by their legends, and unit."""
    planned = {"planned": f"vector({one.planned_per_s:.6g})"}
    rates = {"measured": one.measured_rate, **planned, "sustained": f"vector({one.sustained_per_s:.6g})"}
    free = {"free": f"1 - {one.measured_rate} / {one.sustained_per_s:.6g}"}
    panels = [("Requests", rates, "reqps"), ("Share of the sustained rate that is free", free, "percentunit")]
    if not one.frontend:
        panels.append(("Replicas", {"answering": one.replicas_up, "planned": f"vector({one.replicas})"}, "short"))
    for target in one.launched.slo.targets:
        measured, expected = one.measured_latency(target), one.expected_s(target)
        lines = {} if measured is None else {"measured": measured}
        lines |= {} if expected is None else {"expected": f"vector({expected:.6g})"}
        panels.append((target.name, {**lines, "promised": f"vector({target.threshold_s:.6g})"}, "s"))
    for title, quantity, unit in _GAUGES:
        lines = {
            pool.role.value: f"{'avg' if unit == 'percentunit' else 'sum'}({one.of(quantity, pool)})"
            for pool in one.measuring
            if one.metric(pool, quantity) is not None
        }
        panels += [(title, lines, unit)] if lines else []
    return panels


_GAUGES = (
    ("Requests that decode", MetricQuantity.RUNNING, "short"),
    ("Requests that wait", MetricQuantity.WAITING, "short"),
    ("KV cache in use", MetricQuantity.KV_USAGE, "percentunit"),
)
