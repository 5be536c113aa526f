"""A fleet as Kubernetes manifests: pods and a service for each pool, a router in front, and autoscaling beside them.

Pods of a pool are a Deployment, a StatefulSet where a router's file lists them by name, or a LeaderWorkerSet where a
replica spans servers. Fields read on 2026-11-22 in: docs/deployment/k8s.md of vLLM at 051f9b8 (GPU resources of NVIDIA
and AMD, shared memory, probes); guides/pd-disaggregation/modelserver/gpu/vllm/base/patch-decode.yaml of llm-d/llm-d at
34272a6 (how often the probes ask, address of the pod for NIXL); api/leaderworkerset/v1/leaderworkerset_types.go of
kubernetes-sigs/lws at 024af08 (LeaderWorkerSet and the variables that it sets); docs/environment/kubernetes.md of
vllm-project/router at c4f5b44 (router, service discovery and the rights it needs); the scaled object and its Prometheus
trigger in https://keda.sh/docs/2.1/scalers/prometheus and docs/use_cases/autoscaling-keda of the vLLM production stack;
guides/recipes/modelserver/components/monitoring of llm-d/llm-d at 949ef32 (PodMonitor). On 2026-11-26, in
https://docs.rs/k8s-openapi and k8s-pb: PodDisruptionBudgetSpec and TopologySpreadConstraint. HF_HOME of the container:
https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables, read 2026-11-22.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.fleet import Plan
from planner.launch.flags import word_of
from planner.launch.readme import README_NAME, readme_facts
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
from planner.launch.servers import FIRST_RANK, LEADER, RANK, filled_words
from planner.launch.spec import LaunchSpec, configuration_text, deployments, launch_specs, replica_words
from planner.launch.templates import literal, objects_of, text_of, yaml_text

SERVING_PORT = 8000
"""Port of every replica; each pod has an address of its own."""
AUTOSCALING_NAME = "autoscaling.yaml"
KUSTOMIZATION_NAME = "kustomization.yaml"
PROMETHEUS = "http://prometheus-operated.monitoring.svc:9090"
"""Address of Prometheus for the scaler: the service that the Prometheus operator makes, as in the vLLM tutorial."""
WAITING_PER_REPLICA = 5
"""Waiting requests per replica from which one more is started. A choice: the planned replicas keep the queue short
enough for the TTFT target, so that a queue that stays is traffic beyond the plan."""
NAMESPACE = "default"
"""Namespace of scaled objects and of the pods that they ask for; kubectl refuses another one until it is replaced."""
MAX_REPLICAS_FACTOR = 2
"""Most replicas that the scaler starts, as a multiple of the planned ones. A choice: it bounds the cost."""
POOL_LABEL = "app.kubernetes.io/name"
"""Label with the name of the pool."""
GROUP_LABEL = "app.kubernetes.io/part-of"
"""Label with the name of the deployment that the pool belongs to."""
PART_LABEL = "app.kubernetes.io/component"
"""Label that tells pods that answer requests from the further servers of a replica."""
STARTUP = {"startup_s": 30, "startup_failures": 120}
"""Period of the startup probe [s] and failures allowed: as in the llm-d guide named above."""


@dataclass(frozen=True)
class PodPlace:
    """Placement of pods by a target: labels besides their own, annotations, port, and containers started before.

    Where they are `named`, a router's file can list them.
    """

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    port: int
    before: tuple[Mapping[str, Any], ...] = ()
    named: bool = False


def files(plan: Plan) -> dict[str, str]:
    """Manifests of each deployment, their kustomization, autoscaling and a README: name -> content.

    Raises:
        UnsupportedFeatureError: the router of the engine lacks the planned policy.
    """
    specs = launch_specs(plan)
    groups = deployments(specs)
    manifests = {f"{pools[0].deployment_name}.yaml": yaml_text(deployment_objects(pools)) for pools in groups}
    scaled = [
        (pool, metric, finds_new_replicas(pools))
        for pools in groups
        for pool in pools
        if (metric := word_of(pool.engine_id, "metric_waiting"))
    ]
    facts = {
        "scaled": scaled,
        "namespace": NAMESPACE,
        "most": MAX_REPLICAS_FACTOR,
        "waiting": WAITING_PER_REPLICA,
    }
    scalers = objects_of(
        "scaled.yaml.j2", prometheus=PROMETHEUS, scale_target=scale_target, serving_labels=serving_labels, **facts
    )
    kustomization = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    entries = [(pools, router_of(pools)) for pools in groups]
    notes = [note for _, router in entries if router is not None for note in router.notes]
    facts |= readme_facts(plan, specs, notes) | {"entries": entries, "port": SERVING_PORT}
    return {
        **manifests,
        KUSTOMIZATION_NAME: yaml_text([{**kustomization, "resources": list(manifests)}]),
        **({AUTOSCALING_NAME: yaml_text(scalers)} if scaled else {}),
        README_NAME: text_of("kubernetes.md.j2", **facts),
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
    words, configuration = _router_words(router) if router is not None else ([], "")
    beside = objects_of(
        "kubernetes.yaml.j2",
        pools=pools,
        port=SERVING_PORT,
        router=router,
        serving_labels=serving_labels,
        words=words,
        configuration=configuration,
    )
    objects = []
    for pool, service in zip(pools, beside, strict=False):
        annotation, _, value = word_of(pool.engine_id, f"router_{pool.role.value}_annotation").partition("=")
        group = {GROUP_LABEL: pools[0].deployment_name}
        place = PodPlace(group, {annotation: value} if annotation else {}, SERVING_PORT, named=named)
        objects += [*pool_objects(pool, place), service]
    return [*objects, *beside[len(pools) :]]


def serving_labels(pool: LaunchSpec) -> dict[str, str]:
    """Labels of the pods of a pool that answer requests."""
    return {POOL_LABEL: pool.object_name, PART_LABEL: "server"}


def pool_objects(pool: LaunchSpec, place: PodPlace) -> list[dict[str, Any]]:
    """The engine's own file, if it needs one, the pods of a pool, and how many of several may be evicted at once."""
    return objects_of(
        "pool.yaml.j2",
        pool=pool,
        place=place,
        pod=pod_template(pool, place, spread=pool.servers == 1 and pool.replicas > 1),
        further=pod_template(pool, place, further=True) if pool.servers > 1 else {},
        configuration=configuration_text(pool),
    )


def pod_template(pool: LaunchSpec, place: PodPlace, further: bool = False, spread: bool = False) -> dict[str, Any]:
    """The pod of one server of a replica: the one that answers requests, or a further one."""
    (pod,) = objects_of(
        "pod.yaml.j2",
        pool=pool,
        place=place,
        further=further,
        spread=spread,
        words=command_line(pool, place.port, further),
        environment=environment(pool),
        resources=gpu_resources(pool),
        tolerations=gpu_tolerations(pool),
        **STARTUP,
    )
    return pod


def gpu_tolerations(pool: LaunchSpec) -> list[dict[str, str]]:
    """For the taint by which nodes with GPUs keep other pods away."""
    return [{"key": pool.gpu_resource, "operator": "Exists", "effect": "NoSchedule"}]


def gpu_resources(pool: LaunchSpec) -> dict[str, Any]:
    """GPUs of one server of a replica; what else a container needs was not planned."""
    return {part: {pool.gpu_resource: str(pool.gpus_each)} for part in ("limits", "requests")}


def command_line(pool: LaunchSpec, port: int, further: bool = False) -> list[str]:
    """Words that start the engine on one server of a replica.

    ``$(NAME)`` is a variable of the container, which Kubernetes fills in; a LeaderWorkerSet sets those of the servers.
    The first rank of a further server is a product, for which a shell stands in front.
    """
    words = replica_words(pool, "$(MODEL)", port, {RANK: "$(LWS_WORKER_INDEX)", LEADER: "$(LWS_LEADER_ADDRESS)"})
    if not further:
        return words
    more = pool.server_words.further
    if FIRST_RANK not in more:
        return words + list(more)
    start = " ".join(filled_words(more, {FIRST_RANK: f"$((LWS_WORKER_INDEX * {pool.server_words.ranks_each}))"}))
    return ["/bin/bash", "-c", literal(f'exec "$@" {start}'), "--", *words]


def environment(pool: LaunchSpec) -> list[dict[str, Any]]:
    """Variables of the engine's container; the secret ``hf-token`` and the config map ``models`` are the user's."""
    token = {"secretKeyRef": {"name": "hf-token", "key": "HF_TOKEN", "optional": True}}
    variables: list[dict[str, Any]] = [{"name": "HF_TOKEN", "valueFrom": token}]
    variables += [{"name": name, "value": literal(value)} for name, value in pool.environment]
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    variables += [{"name": name, "valueFrom": address} for name in pool.address_variables]
    if not pool.model:
        checkpoint = {"configMapKeyRef": {"name": "models", "key": pool.model_variable}}
        variables.append({"name": "MODEL", "valueFrom": checkpoint})
    return variables


def _router_words(router: RouterSpec) -> tuple[list[str], str]:
    """Words that start a router, and its file with the names that pods of a StatefulSet have; empty: it has none."""
    words = [literal(word) for word in command_words(router, str(router.port))]
    if not router.config_flag:
        labels = {pool.role: [f"{key}={value}" for key, value in serving_labels(pool).items()] for pool in router.pools}
        return [*words, *discovery_words(router, labels, "$(NAMESPACE)", SERVING_PORT), *router.policy], ""
    hosts = {
        pool.role: [f"{pool.object_name}-{number}.{pool.object_name}:{SERVING_PORT}" for number in range(pool.replicas)]
        for pool in router.pools
    }
    return words + config_words(router, f"/config/{router.config_name}"), router_file(router, str(router.port), hosts)


def scale_target(pool: LaunchSpec) -> dict[str, str]:
    """The object that holds the number of replicas of a pool."""
    if pool.servers > 1:
        return {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": pool.object_name}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": pool.object_name}
