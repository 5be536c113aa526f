"""A plan as what watches its fleet: Prometheus rules and a Grafana dashboard, planned beside measured.

Names of metrics are data (`planner.traffic.metric_names`). Fields read on 2026-11-24: rule files in
https://prometheus.io/docs/prometheus/latest/configuration/recording_rules and .../alerting_rules; PrometheusRule in the
models of cloudcoil-models-prometheus-operator 0.93.1.1 on PyPI; the dashboard in
https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from planner.core import UnsupportedFeatureError, significant, with_unit
from planner.launch.escaping import one_line, slug, yaml_text
from planner.launch.fleet import Fleet, LaunchedDeployment
from planner.launch.placement import PlacedReplica, place_replicas, replicas_of, server_numbers
from planner.launch.pods import POOL_LABEL, object_name
from planner.launch.readme import README_NAME, bullets, markdown_rows, name_text, page
from planner.launch.spec import LaunchSpec, deployments, launch_specs
from planner.traffic import MetricName, MetricQuantity, metric_names
from planner.workload import LatencyTarget

RULES_NAME = "prometheus-rules.yaml"
PLAIN_RULES_NAME = "rules.yml"
SCRAPE_NAME = "scrape.yml"
DYNAMO_RULES_NAME, DYNAMO_DASHBOARD_NAME = "prometheus-rules-dynamo.yaml", "grafana-dashboard-dynamo.json"
DYNAMO = "dynamo"
"""Whose metrics `planner.traffic.metric_names` calls so: the frontend of NVIDIA Dynamo."""
DASHBOARD_NAME = "grafana-dashboard.json"
POOL = POOL_LABEL.translate({ord("."): "_", ord("/"): "_"})
"""What Prometheus calls the label of the pod that names its pool: other characters than letters, digits and ``_`` are
replaced (`sanitizeLabelName` of the Prometheus operator)."""
WINDOW = "5m"
"""Over which rates and percentiles are taken. A choice: hundreds of requests at the rates of a server."""
LATENCY_FOR, TRAFFIC_FOR, DOWN_FOR = "10m", "15m", "5m"
"""For how long something holds before it is said. Choices: percentiles of one window are noisy, traffic comes in waves,
and a replica may be replaced."""
SLOWER = 1.25
"""Measured over expected latency from which a fleet within its planned traffic is called slower than planned. A
choice."""
WAITING_EACH = 5
"""Waiting requests of a replica from which its queue is said to grow, as in the scaled objects of `kubernetes`."""


@dataclass(frozen=True)
class Watched:
    """One deployment, and how its metrics are asked for.

    Attributes:
        pools: of the deployment.
        launched: the deployment.
        frontend: exporter of a frontend that measures in place of the engines, by the name of the model; empty: none.
    """

    pools: tuple[LaunchSpec, ...]
    launched: LaunchedDeployment
    frontend: str = ""

    @property
    def name(self) -> str:
        """Of the deployment, in labels."""
        return self.pools[0].deployment_name

    @cached_property
    def planned_per_s(self) -> float:
        """Arrivals that were planned for [1/s]."""
        return self.launched.workload.arrivals.rate_per_s

    @property
    def sustained_per_s(self) -> float | None:
        """Arrivals that its replicas sustain under the targets [1/s]; None where the plan does not say."""
        figures = self.launched.figures
        if figures is None:
            return None
        sizes = [pool.replicas for pool in self.launched.deployment.pools]
        return min(size * rate for size, rate in zip(sizes, figures.sustained_per_replica_s, strict=True))

    def of(self, quantity: MetricQuantity, pool: LaunchSpec, suffix: str = "") -> str:
        """The series of a pool that count something. Raises UnsupportedFeatureError where its engine has none."""
        metric = self.metric(pool, quantity)
        if metric is None:
            bound = f"has no documented metric of {quantity.value.replace('_', ' ')}"
            raise UnsupportedFeatureError("engine", pool.engine_id, bound, "watch it by its own dashboards")
        chosen = {"model": pool.model.lower(), **dict(metric.labels)} if self.frontend else {POOL: object_name(pool)}
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
        names = "|".join(object_name(pool) for pool in self.pools)
        return f'sum(up{{{POOL}=~"{names}"}})'


def metric_of(exporter: str, quantity: MetricQuantity) -> MetricName | None:
    """The name to prefer of those that an engine, or a frontend, has for a quantity."""
    return next((one for one in metric_names() if (one.engine, one.quantity) == (exporter, quantity)), None)


def files(fleet: Fleet) -> dict[str, str]:
    """Rules for the operator and as a plain file, what to scrape outside of a cluster, a dashboard, a README.

    Raises:
        UnsupportedFeatureError: an engine has no documented metrics.
    """
    specs = launch_specs(fleet)
    watched = [Watched(pools, fleet.deployments[pools[0].deployment]) for pools in deployments(specs)]
    groups, rule = _rules(f"llm-{slug(fleet.name)}", watched)
    return {
        RULES_NAME: yaml_text([rule]),
        PLAIN_RULES_NAME: yaml_text([{"groups": groups}]),
        SCRAPE_NAME: yaml_text([{"scrape_configs": [_scraped(place_replicas(specs))]}]),
        DASHBOARD_NAME: json.dumps(dashboard(fleet.name, watched), indent=1) + "\n",
        **_dynamo_files(fleet, watched),
        README_NAME: _readme(fleet, watched),
    }


def _rules(name: str, watched: Iterable[Watched]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Groups of rules, and the resource that holds them."""
    groups = [group for one in watched for group in (_recorded(one), _alerts(one))]
    kind = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule"}
    return groups, {**kind, "metadata": {"name": name}, "spec": {"groups": groups}}


def _at_frontend(watched: Sequence[Watched]) -> list[Watched]:
    """As the frontend of Dynamo measures it, which goes by model: deployments that are the only ones of a named one."""
    models = [one.pools[0].model for one in watched]
    return [
        replace(one, frontend=DYNAMO)
        for one, model in zip(watched, models, strict=True)
        if model and models.count(model) == 1
    ]


def _dynamo_files(fleet: Fleet, watched: Sequence[Watched]) -> dict[str, str]:
    """Rules and dashboard of a fleet that the export `dynamo` starts; none where no deployment can be told by model."""
    fronted = _at_frontend(watched)
    if not fronted:
        return {}
    _, rule = _rules(f"llm-{slug(fleet.name)}-dynamo", fronted)
    picture = json.dumps(dashboard(f"{fleet.name} at Dynamo's frontend", fronted), indent=1) + "\n"
    return {DYNAMO_RULES_NAME: yaml_text([rule]), DYNAMO_DASHBOARD_NAME: picture}


def _scraped(replicas: Sequence[PlacedReplica]) -> dict[str, Any]:
    """A job of Prometheus for replicas outside of a cluster, with the label that the operator gives those inside."""
    alone = len(server_numbers(replicas)) == 1
    pools = {replica.spec.name: replica.spec for replica in replicas}.values()
    hosts = {
        pool.name: [
            f"{'localhost' if alone else f'server-{replica.servers[0]}'}:{replica.port}"
            for replica in replicas_of(replicas, pool)
        ]
        for pool in pools
    }
    static = [
        {"targets": hosts[pool.name], "labels": {POOL: object_name(pool), "__metrics_path__": pool.metrics_path}}
        for pool in pools
    ]
    return {"job_name": "llm", "static_configs": static}


# --- rules ----------------------------------------------------------------------------------------------------------


def _recorded(one: Watched) -> dict[str, Any]:
    """What was planned and what is measured, as series of equal labels."""
    labels = {"deployment": one.name}
    rules = [
        _record("planner:planned_requests:per_second", f"vector({one.planned_per_s:.6g})", labels),
        _record("planner:measured_requests:per_second", one.measured_rate, labels),
    ]
    if not one.frontend:
        replicas = f"vector({sum(pool.replicas for pool in one.pools)})"
        rules += [
            _record("planner:planned_replicas", replicas, labels),
            _record("planner:measured_replicas", one.replicas_up, labels),
        ]
    if one.sustained_per_s is not None:
        rules.append(_record("planner:sustained_requests:per_second", f"vector({one.sustained_per_s:.6g})", labels))
    for target in one.launched.slo.targets:
        of_target = {**labels, "target": target.name}
        rules.append(_record("planner:promised_latency:seconds", f"vector({target.threshold_s:.6g})", of_target))
        measured, expected = one.measured_latency(target), _expected_s(one, target)
        if measured is not None:
            rules.append(_record("planner:measured_latency:seconds", measured, of_target))
        if expected is not None:
            rules.append(_record("planner:expected_latency:seconds", f"vector({expected:.6g})", of_target))
    return {"name": f"{one.name}.recorded", "interval": "30s", "rules": rules}


def _expected_s(one: Watched, target: LatencyTarget) -> float | None:
    return None if one.launched.figures is None else one.launched.figures.expected(target)


def _record(name: str, expression: str, labels: Mapping[str, str]) -> dict[str, Any]:
    return {"record": name, "expr": expression, "labels": dict(labels)}


def _alerts(one: Watched) -> dict[str, Any]:
    """What the plan did not reckon with, and what misses what it promised."""
    service = one_line(one.launched.service)
    replicas = sum(pool.replicas for pool in one.pools)
    rate = f"{one.measured_rate} > {one.planned_per_s:.6g}"
    rules = [
        _alert(
            one,
            "LlmTrafficAbovePlan",
            rate,
            TRAFFIC_FOR,
            "warning",
            f"{service} gets more than the {significant(one.planned_per_s)} requests/s that were planned for.",
        ),
    ]
    if not one.frontend:
        missing = f"({one.replicas_up} or vector(0)) < {replicas}"
        text = f"{service} has fewer than its {replicas} planned replicas."
        rules.append(_alert(one, "LlmReplicasMissing", missing, DOWN_FOR, "critical", text))
    if one.sustained_per_s is not None:
        sustained = significant(one.sustained_per_s)
        text = f"{service} gets more than the {sustained} requests/s that its replicas sustain: plan again."
        limit = f"{one.measured_rate} > {one.sustained_per_s:.6g}"
        rules.append(_alert(one, "LlmTrafficAboveSustained", limit, TRAFFIC_FOR, "critical", text))
    for target in one.launched.slo.targets:
        rules += _latency_alerts(one, target, service, rate)
    for pool in one.pools[:1] if one.frontend else one.pools:
        if one.metric(pool, MetricQuantity.WAITING) is not None:
            waiting = f"sum({one.of(MetricQuantity.WAITING, pool)}) > {WAITING_EACH * pool.replicas}"
            text = f"Requests wait at {object_name(pool)}, more than {WAITING_EACH} for each replica."
            rules.append(_alert(one, "LlmQueueGrows", waiting, LATENCY_FOR, "warning", text, pool=object_name(pool)))
    return {"name": f"{one.name}.alerts", "rules": rules}


def _latency_alerts(one: Watched, target: LatencyTarget, service: str, beyond: str) -> list[dict[str, Any]]:
    measured, expected = one.measured_latency(target), _expected_s(one, target)
    if measured is None:
        return []
    promised = with_unit(target.threshold_s, target.metric)
    text = f"{target.name} of {service} is above the {promised} that were promised."
    missed = f"{measured} > {target.threshold_s:.6g}"
    rules = [_alert(one, "LlmTargetMissed", missed, LATENCY_FOR, "critical", text, target=target.name)]
    if expected:
        slow = f"{measured} > {SLOWER * expected:.6g} unless ({beyond})"
        shown = with_unit(expected, target.metric)
        text = (
            f"{target.name} of {service} is more than {SLOWER:g} times the {shown} that were expected, though its "
            "traffic is within the plan: `planner check` says what differs."
        )
        rules.append(_alert(one, "LlmSlowerThanPlanned", slow, LATENCY_FOR, "info", text, target=target.name))
    return rules


def _alert(
    one: Watched, name: str, expression: str, lasting: str, severity: str, text: str, **labels: str
) -> dict[str, Any]:
    """An alert; braces of a user's name are no template of Prometheus."""
    return {
        "alert": name,
        "expr": expression,
        "for": lasting,
        "labels": {"severity": severity, "deployment": one.name, **labels},
        "annotations": {"summary": text.replace("{{", "{ {")},
    }


# --- the dashboard --------------------------------------------------------------------------------------------------

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT = 8, 8
"""Of a panel, in the 24 columns of a dashboard. A choice: three beside one another."""


def dashboard(name: str, watched: Iterable[Watched]) -> dict[str, Any]:
    """A dashboard of a fleet: for each deployment a row of panels, measured beside planned."""
    panels: list[dict[str, Any]] = []
    top = 0
    for one in watched:
        panels.append(_row(one, len(panels) + 1, top))
        inside = _panels(one)
        for number, panel in enumerate(inside):
            place = {
                "x": WIDTH * (number % 3),
                "y": top + 1 + HEIGHT * (number // 3),
                "w": WIDTH,
                "h": HEIGHT,
            }
            panels.append({"id": len(panels) + 1, "gridPos": place, **panel})
        top += 1 + HEIGHT * -(-len(inside) // 3)
    query = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {
        "title": f"{one_line(name)}: planned and measured",
        "uid": f"llm-{slug(name)}"[:40],
        "tags": ["llm", "planner"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [query]},
        "panels": panels,
    }


def _row(one: Watched, number: int, top: int) -> dict[str, Any]:
    text = one_line(one.launched.service)
    place = {"x": 0, "y": top, "w": 24, "h": 1}
    return {"id": number, "type": "row", "title": f"{text} ({one.name})", "gridPos": place, "panels": []}


def _panels(one: Watched) -> list[dict[str, Any]]:
    rates = {"measured": one.measured_rate, "planned": f"vector({one.planned_per_s:.6g})"}
    panels = []
    if one.sustained_per_s is not None:
        rates["sustained"] = f"vector({one.sustained_per_s:.6g})"
        headroom = f"1 - {one.measured_rate} / {one.sustained_per_s:.6g}"
        panels.append(
            _panel("Headroom: share of the sustained rate that is free", {"headroom": headroom}, "percentunit")
        )
    panels.insert(0, _panel("Requests", rates, "reqps"))
    replicas = sum(pool.replicas for pool in one.pools)
    if not one.frontend:
        panels.append(_panel("Replicas", {"answering": one.replicas_up, "planned": f"vector({replicas})"}, "short"))
    for target in one.launched.slo.targets:
        measured, expected = one.measured_latency(target), _expected_s(one, target)
        lines = {} if measured is None else {"measured": measured}
        lines |= {} if expected is None else {"expected": f"vector({expected:.6g})"}
        panels.append(_panel(target.name, {**lines, "promised": f"vector({target.threshold_s:.6g})"}, "s"))
    for title, quantity, unit in _GAUGES:
        lines = {
            pool.role.value: f"{'avg' if unit == 'percentunit' else 'sum'}({one.of(quantity, pool)})"
            for pool in (one.pools[:1] if one.frontend else one.pools)
            if one.metric(pool, quantity) is not None
        }
        panels += [_panel(title, lines, unit)] if lines else []
    return panels


_GAUGES = (
    ("Requests that decode", MetricQuantity.RUNNING, "short"),
    ("Requests that wait", MetricQuantity.WAITING, "short"),
    ("KV cache in use", MetricQuantity.KV_USAGE, "percentunit"),
)


def _panel(title: str, lines: Mapping[str, str], unit: str) -> dict[str, Any]:
    """A panel of lines over time, by their legends."""
    targets = [
        {"refId": chr(ord("A") + number), "expr": expression, "legendFormat": legend, "datasource": dict(SOURCE)}
        for number, (legend, expression) in enumerate(lines.items())
    ]
    return {
        "type": "timeseries",
        "title": title,
        "datasource": dict(SOURCE),
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
    }


# --- words ----------------------------------------------------------------------------------------------------------


def _readme(fleet: Fleet, watched: Sequence[Watched]) -> str:
    rows = [
        (
            name_text(one.launched.service),
            one.name,
            f"{significant(one.planned_per_s)}/s",
            "-" if one.sustained_per_s is None else f"{significant(one.sustained_per_s)}/s",
            target.name,
            with_unit(target.threshold_s, target.metric),
            "-" if (expected := _expected_s(one, target)) is None else with_unit(expected, target.metric),
        )
        for one in watched
        for target in one.launched.slo.targets
    ]
    sections = [
        f"`{RULES_NAME}` for the Prometheus operator (`kubectl apply -f`; Prometheus may ask for a label on rules, "
        f"such as `release`), `{PLAIN_RULES_NAME}` for a Prometheus without it (`rule_files`), `{DASHBOARD_NAME}` to "
        "import into Grafana.",
        *([_DYNAMO] if _at_frontend(watched) else []),
        f"Series are told apart by the label `{POOL}`, which the pod monitors of the export `kubernetes` copy from the "
        f"pods. Outside of a cluster `{SCRAPE_NAME}` gives it: replace `server-1`, ... by addresses of the servers.",
        markdown_rows(_HEAD, rows),
        "## Alerts",
        bullets(_ALERTS),
        "## Notes",
        bullets(_notes(watched)),
    ]
    return page(f"Watching {name_text(fleet.name)}", sections)


_DYNAMO = (
    f"Of a fleet that the export `dynamo` starts: `{DYNAMO_RULES_NAME}` and `{DYNAMO_DASHBOARD_NAME}` in their place. "
    "The frontend measures there, with routing and hand-over in its latencies, and goes by the name of the model, "
    "in lower case; replicas and queues of workers are the operator's to watch. `planner check --engine dynamo` reads "
    "its metrics."
)
_HEAD = (
    "| Service | Deployment | Planned | Sustained | Target | Promised | Expected |\n"
    "| --- | --- | ---: | ---: | --- | ---: | ---: |"
)
_ALERTS = (
    f"`LlmTargetMissed`: a percentile over {WINDOW} is above its target for {LATENCY_FOR}.",
    f"`LlmSlowerThanPlanned`: it is {SLOWER:g} times what was expected, with traffic within the plan.",
    f"`LlmTrafficAbovePlan`, `LlmTrafficAboveSustained`: more requests than planned, than the replicas sustain, for "
    f"{TRAFFIC_FOR}.",
    f"`LlmReplicasMissing`: fewer replicas answer than were planned, for {DOWN_FOR}.",
    f"`LlmQueueGrows`: more than {WAITING_EACH} requests wait for each replica, for {LATENCY_FOR}.",
)


def _notes(watched: Sequence[Watched]) -> list[str]:
    notes = [
        "Servers measure from the arrival at the engine; the plan's targets are at the client, router and network "
        "included. Percentiles are read off buckets.",
        "Requests are counted when they are finished: while a queue grows more arrive than are counted.",
    ]
    for one in watched:
        if len(one.pools) > 1:
            notes.append(
                f"`{one.name}`: TTFT is that of the prefill pool, without the hand-over of the KV cache; no metric of "
                "a server is the time from arrival to the last token."
            )
        metrics = {target.metric.value for target in one.launched.slo.targets}
        if "tpot" in metrics and metric_of(one.pools[-1].engine_id, MetricQuantity.TPOT) is None:
            notes.append(
                f"`{one.name}`: {one.pools[-1].engine} measures gaps between tokens, not the mean of a request."
            )
    return notes
