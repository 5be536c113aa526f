"""A fleet as Kubernetes manifests: pods and a service for each pool, a router in front, and autoscaling beside them.

Fields read on 2026-11-22 in: docs/environment/kubernetes.md of vllm-project/router at c4f5b44 (router, service
discovery and the rights it needs); the scaled object and its Prometheus trigger in https://keda.sh/docs/2.1/scalers/prometheus
and docs/use_cases/autoscaling-keda of the vLLM production stack; guides/recipes/modelserver/components/monitoring of
llm-d/llm-d at 949ef32 (PodMonitor). Pods are those of `planner.launch.pods`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from planner.launch.escaping import kubernetes_literal, yaml_text
from planner.launch.flags import word_of
from planner.launch.fleet import Fleet
from planner.launch.pods import (
    GROUP_LABEL,
    MODELS,
    PART_LABEL,
    POOL_LABEL,
    SERVES,
    TOKEN_SECRET,
    UNKNOWN_GPU,
    PodPlace,
    node_selector,
    object_name,
    pool_objects,
)
from planner.launch.readme import README_NAME, bullets, closing_sections, name_text, page, pool_table
from planner.launch.routers import (
    RouterSpec,
    command_words,
    config_words,
    discovery_words,
    finds_new_replicas,
    require_policies,
    router_file,
    router_of,
)
from planner.launch.scripts import model_variable
from planner.launch.spec import LaunchSpec, deployments, launch_specs

SERVING_PORT = 8000
"""Port of every replica; each pod has an address of its own."""
AUTOSCALING_NAME = "autoscaling.yaml"
KUSTOMIZATION_NAME = "kustomization.yaml"
PROMETHEUS = "http://prometheus-operated.monitoring.svc:9090"
"""Where the scaler asks for metrics: the service that the Prometheus operator makes, as in the vLLM tutorial."""
WAITING_PER_REPLICA = 5
"""Waiting requests per replica from which one more is started. A choice: the planned replicas keep the queue short
enough for the TTFT target, so that a queue that stays is traffic beyond the plan."""
NAMESPACE = "default"
"""Namespace of scaled objects and of the pods that they ask for; kubectl refuses another one until it is replaced."""
MAX_REPLICAS_FACTOR = 2
"""Most replicas that the scaler starts, as a multiple of the planned ones. A choice: it bounds the cost."""


def files(fleet: Fleet) -> dict[str, str]:
    """Manifests of each deployment, their kustomization, autoscaling and a README: name -> content."""
    specs = launch_specs(fleet)
    manifests = {
        f"{pools[0].deployment_name}.yaml": yaml_text(deployment_objects(pools)) for pools in deployments(specs)
    }
    groups = deployments(specs)
    scaled = [one for pools in groups for spec in pools for one in autoscaling(spec, finds_new_replicas(pools))]
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(manifests),
    }
    return {
        **manifests,
        KUSTOMIZATION_NAME: yaml_text([kustomization]),
        **({AUTOSCALING_NAME: yaml_text(scaled)} if scaled else {}),
        README_NAME: readme(fleet, specs, {one["kind"] for one in scaled}),
    }


def deployment_objects(pools: tuple[LaunchSpec, ...]) -> list[dict[str, Any]]:
    """Everything of one deployment: pods and services of its pools, and the router.

    Raises:
        UnsupportedFeatureError: the router of the engine lacks the planned policy.
    """
    router = router_of(pools)
    if router is not None:
        require_policies(router)
    named = router is not None and bool(router.config_flag)
    objects = []
    for pool in pools:
        objects += [
            as_stateful(manifest) if named else manifest for manifest in pool_objects(pool, _place(pools, pool))
        ]
        objects.append(pool_service(pool, headless=named))
    return objects + (router_objects(router) if router is not None else [])


def _place(pools: Sequence[LaunchSpec], pool: LaunchSpec) -> PodPlace:
    annotation = word_of(pool.engine_id, f"router_{pool.role.value}_annotation")
    name, _, value = annotation.partition("=")
    return PodPlace({GROUP_LABEL: pools[0].deployment_name}, {name: value} if annotation else {}, SERVING_PORT)


def serving_labels(pool: LaunchSpec) -> dict[str, str]:
    """Labels of the pods of a pool that answer requests."""
    return {POOL_LABEL: object_name(pool), PART_LABEL: SERVES}


def pool_service(pool: LaunchSpec, headless: bool = False) -> dict[str, Any]:
    """The service of a pool; a headless one gives each replica a name."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": object_name(pool), "labels": {POOL_LABEL: object_name(pool)}},
        "spec": {
            **({"clusterIP": "None"} if headless else {}),
            "selector": serving_labels(pool),
            "ports": [{"name": "http", "port": SERVING_PORT, "targetPort": "http"}],
        },
    }


def as_stateful(manifest: dict[str, Any]) -> dict[str, Any]:
    """A Deployment as a StatefulSet, whose pods have names that a router's file can list; others as they are."""
    if manifest["kind"] != "Deployment":
        return manifest
    spec = {name: value for name, value in manifest["spec"].items() if name != "strategy"}  # one pod at a time anyway
    spec |= {"serviceName": manifest["metadata"]["name"], "podManagementPolicy": "Parallel"}
    return {**manifest, "kind": "StatefulSet", "spec": spec}


# --- the router -----------------------------------------------------------------------------------------------------


def router_objects(router: RouterSpec) -> list[dict[str, Any]]:
    """The router, the service that clients talk to, and what it needs to find the replicas."""
    name = f"{router.pools[0].deployment_name}-router"
    before = [_router_config_map(router, name)] if router.config_flag else _account_objects(name)
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": router.pools[0].deployment_name},
        "spec": {
            "selector": {POOL_LABEL: name},
            "ports": [{"name": "http", "port": router.port, "targetPort": "http"}],
        },
    }
    return [*before, _router_deployment(router, name), service]


def _router_deployment(router: RouterSpec, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": {POOL_LABEL: name}},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {POOL_LABEL: name}},
            "template": {
                "metadata": {"labels": {POOL_LABEL: name, GROUP_LABEL: router.pools[0].deployment_name}},
                "spec": _router_pod(router, name),
            },
        },
    }


def _router_pod(router: RouterSpec, name: str) -> dict[str, Any]:
    words = [kubernetes_literal(word) for word in command_words(router, str(router.port))]
    engine: dict[str, Any] = {
        "name": "router",
        "image": router.image,
        "ports": [{"name": "http", "containerPort": router.port}],
        "readinessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": 5},
    }
    if router.config_flag:
        words += config_words(router, f"/config/{router.config_name}")
        engine["volumeMounts"] = [{"name": "config", "mountPath": "/config", "readOnly": True}]
        volumes = {"volumes": [{"name": "config", "configMap": {"name": f"{name}-config"}}]}
        return {"containers": [{**engine, "command": words[:1], "args": words[1:]}], **volumes}
    labels = {pool.role: [f"{key}={value}" for key, value in serving_labels(pool).items()] for pool in router.pools}
    words += [*discovery_words(router, labels, "$(NAMESPACE)", SERVING_PORT), *router.policy]
    engine["env"] = [{"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}]
    return {"serviceAccountName": name, "containers": [{**engine, "command": words[:1], "args": words[1:]}]}


def _router_config_map(router: RouterSpec, name: str) -> dict[str, Any]:
    """The router's file, with the names that stateful pods have."""
    hosts = {
        pool.role: [
            f"{object_name(pool)}-{number}.{object_name(pool)}:{SERVING_PORT}" for number in range(pool.replicas)
        ]
        for pool in router.pools
    }
    text = router_file(router, str(router.port), hosts)
    metadata = {"name": f"{name}-config"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {router.config_name: text}}


def _account_objects(name: str) -> list[dict[str, Any]]:
    """The account of a router that finds its replicas by asking for pods."""
    group = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
        {
            "apiVersion": f"{group}/v1",
            "kind": "Role",
            "metadata": {"name": name},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}],
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name}],
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
        },
    ]


# --- autoscaling ----------------------------------------------------------------------------------------------------


def scale_target(spec: LaunchSpec) -> dict[str, str]:
    """What holds the number of replicas of a pool."""
    if spec.servers > 1:
        return {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": object_name(spec)}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": object_name(spec)}


def autoscaling(spec: LaunchSpec, scales: bool = True) -> list[dict[str, Any]]:
    """What scrapes a pool and, where it `scales`, adds replicas while requests wait; none without such a metric."""
    metric = word_of(spec.engine_id, "metric_waiting")
    if not metric:
        return []
    name = object_name(spec)
    monitor = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": serving_labels(spec)},
            "podTargetLabels": [POOL_LABEL],
            "podMetricsEndpoints": [{"port": "http", "path": spec.metrics_path}],
        },
    }
    if not scales:
        return [monitor]
    trigger = {
        "serverAddress": PROMETHEUS,
        "query": f'sum({metric}{{namespace="{NAMESPACE}",pod=~"{name}-.*"}})',
        "threshold": str(WAITING_PER_REPLICA),
    }
    scaled = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "scaleTargetRef": scale_target(spec),
            "minReplicaCount": spec.replicas,
            "maxReplicaCount": MAX_REPLICAS_FACTOR * spec.replicas,
            "triggers": [{"type": "prometheus", "metadata": trigger}],
        },
    }
    return [monitor, scaled]


# --- words ----------------------------------------------------------------------------------------------------------


def readme(fleet: Fleet, specs: Sequence[LaunchSpec], scaled: Collection[str]) -> str:
    """What the manifests are, what has to be set before they are applied, and what they leave out."""
    notes = [note for spec in specs for note in spec.notes]
    routers = [router for pools in deployments(specs) if (router := router_of(pools)) is not None]
    notes += [note for router in routers for note in router.notes]
    sections = [
        "`kubectl apply -k .` starts all of it: for each pool its pods and a service, and for each deployment of "
        "several replicas the router of the engine, behind the service that clients talk to.",
        object_table(specs),
        "## Where clients connect",
        "\n".join(_entry_line(pools) for pools in deployments(specs)),
        "## Before you apply",
        bullets(wanted_lines(specs)),
        *(["## Autoscaling", _AUTOSCALING if "ScaledObject" in scaled else _SCRAPED] if scaled else []),
        *closing_sections(fleet, specs, notes, NOT_WRITTEN),
    ]
    return page(f"{name_text(fleet.name)} on Kubernetes", sections)


def _entry_line(pools: tuple[LaunchSpec, ...]) -> str:
    router = router_of(pools)
    if router is not None:
        return f"- {name_text(pools[0].service)}: service `{pools[0].deployment_name}`, port {router.port}."
    spread = ""
    if pools[0].replicas > 1:
        planned = pools[0].router.replace("_", " ")
        spread = f"; it picks a replica as services of the cluster do, where {planned} was planned"
    service = name_text(pools[0].service)
    return f"- {service}: service `{object_name(pools[0])}`, port {SERVING_PORT}{spread}."


def object_table(specs: Sequence[LaunchSpec]) -> str:
    """The pools as a Markdown table, by the names of their objects."""
    return pool_table(specs, "Pool", {spec.name: object_name(spec) for spec in specs}, SERVING_PORT)


def wanted_lines(specs: Sequence[LaunchSpec], own_models: bool = True) -> list[str]:
    """What the user has to make or replace, as Markdown lines; `own_models`: the pods fetch their models themselves."""
    lines = [
        f"The secret `{TOKEN_SECRET}` with a Hugging Face token under the key `HF_TOKEN`, for models that ask for one."
    ]
    if own_models:
        lines += [_VOLUME, *(_model_line(spec) for spec in specs if not spec.model)]
    for spec in specs:
        if UNKNOWN_GPU in node_selector(spec).values():
            label = next(iter(node_selector(spec)))
            lines.append(f"`{object_name(spec)}`: the value of the node label `{label}` for the GPU `{spec.sku}`.")
    if any(spec.servers > 1 for spec in specs):
        lines.append("The LeaderWorkerSet controller, which starts replicas that span servers.")
    return lines


def _model_line(spec: LaunchSpec) -> str:
    checkpoint = name_text(spec.checkpoint)
    return f"The config map `{MODELS}`, key `{model_variable(spec)}`: a checkpoint of {checkpoint}."


_VOLUME = (
    "The volume `cache` of every pod is empty at its start and the model is downloaded into it: put a volume of your "
    "own there to keep it."
)
_SCRAPED = (
    f"`{AUTOSCALING_NAME}` has Prometheus scrape the pods (Prometheus operator). Nothing is scaled: the router reads a "
    "list of replicas when it starts."
)
_AUTOSCALING = (
    f"`{AUTOSCALING_NAME}` needs KEDA and the Prometheus operator and is applied by itself. It adds replicas while "
    f"requests wait, {WAITING_PER_REPLICA} for each, up to {MAX_REPLICAS_FACTOR} times the planned number; the fewest "
    "are the planned ones, since with less the promises below do not hold. Set the address of your Prometheus in it, "
    f"and replace the namespace `{NAMESPACE}` where the pods are in another one."
)
FIXED_REPLICAS = (
    "Autoscaling is not written: `replicas` are the planned ones, with fewer of which the promises do not hold."
)
NOT_WRITTEN = (
    "CPU and memory requests, network devices for RDMA, ingress, TLS, keys and quotas: none of them was planned. "
    "Prefill and decode pools need a fast network between their pods for the predicted hand-over of KV caches."
)
