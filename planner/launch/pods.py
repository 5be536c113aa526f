"""Pods of a pool as Kubernetes objects: a Deployment, or a LeaderWorkerSet where a replica spans servers.

Fields read on 2026-11-22 in: docs/deployment/k8s.md of vLLM at 051f9b8 (GPU resources of NVIDIA and AMD, shared memory,
probes); guides/pd-disaggregation/modelserver/gpu/vllm/base/patch-decode.yaml of llm-d/llm-d at 34272a6 (how often the
probes ask, address of the pod for NIXL); api/leaderworkerset/v1/leaderworkerset_types.go of kubernetes-sigs/lws at
024af08 (LeaderWorkerSet and the variables that it sets). Labels of GPUs are data: `presets/gpu_labels.csv`.
"""

from __future__ import annotations

import csv
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from planner.core import InputError
from planner.launch.escaping import kubernetes_literal
from planner.launch.flags import words_of
from planner.launch.scripts import model_variable
from planner.launch.servers import FIRST_RANK, LEADER, RANK, filled_words
from planner.launch.spec import NVIDIA, LaunchSpec
from planner.presets import preset

POOL_LABEL = "app.kubernetes.io/name"
"""Label with the name of the pool."""
GROUP_LABEL = "app.kubernetes.io/part-of"
"""Label with the name of the deployment that the pool belongs to."""
PART_LABEL = "app.kubernetes.io/component"
"""Label that tells pods that answer requests (`SERVES`) from the further servers of a replica."""
SERVES = "server"
MODELS = "models"
"""ConfigMap of the user with the checkpoints that the plan does not name."""
TOKEN_SECRET = "hf-token"
"""Secret of the user with a Hugging Face token, under the key HF_TOKEN; optional."""
CACHE = "/cache"
"""Where models are downloaded to: HF_HOME of the container (Hugging Face Hub documentation, environment variables:
https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables, read 2026-11-22)."""
UNKNOWN_GPU = "set-the-label-of-your-nodes"
"""Value of the node selector for a GPU whose label has no source; its pods stay pending until it is replaced."""
STARTUP = {"periodSeconds": 30, "timeoutSeconds": 5, "failureThreshold": 120}
READINESS = {"periodSeconds": 5, "timeoutSeconds": 2, "failureThreshold": 3}
LIVENESS = {"periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3}
"""How often probes ask [s] and how often they may fail: as in the llm-d guide named above."""


@dataclass(frozen=True)
class PodPlace:
    """How a writer places pods: labels besides their own, annotations, port, and containers started before."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    port: int
    before: tuple[Mapping[str, Any], ...] = ()


def object_name(spec: LaunchSpec) -> str:
    """Name of a pool's objects; those of services must start with a letter."""
    return f"llm-{spec.name}"


@cache
def gpu_labels() -> dict[str, tuple[str, str]]:
    """Label and value that nodes carry, by SKU. Raises InputError where a row has no source."""
    text = preset("gpu_labels.csv").read_text(encoding="utf-8")
    labels = {}
    for line, row in enumerate(csv.DictReader(text.splitlines()), start=2):
        if not row["source_url"] or not row["retrieved_on"]:
            raise InputError(f"gpu_labels.csv line {line}", row["sku"], "needs a source and a date", "complete the row")
        labels[row["sku"]] = (row["label"], row["value"])
    return labels


def node_selector(spec: LaunchSpec) -> dict[str, str]:
    """The label of the nodes that have the planned GPU."""
    usual = "nvidia.com/gpu.product" if spec.vendor == NVIDIA else "amd.com/gpu.product-name"
    label, value = gpu_labels().get(spec.sku, (usual, UNKNOWN_GPU))
    return {label: value}


def gpu_resource(spec: LaunchSpec) -> str:
    """What the device plugin of the GPU's vendor calls one GPU."""
    return "nvidia.com/gpu" if spec.vendor == NVIDIA else "amd.com/gpu"


def gpu_tolerations(spec: LaunchSpec) -> list[dict[str, str]]:
    """For the taint by which nodes with GPUs keep other pods away (a new list each time: YAML needs no anchors)."""
    return [{"key": gpu_resource(spec), "operator": "Exists", "effect": "NoSchedule"}]


def pool_objects(spec: LaunchSpec, place: PodPlace) -> list[dict[str, Any]]:
    """The engine's own file, if it needs one, the pods of a pool, and how many of several may be evicted at once."""
    objects = [config_map(spec)] if spec.configuration else []
    if spec.servers > 1:
        return [*objects, _leader_worker_set(spec, place)]
    budget = [_disruption_budget(spec)] if spec.replicas > 1 else []
    return [*objects, _deployment(spec, place), *budget]


def config_map(spec: LaunchSpec) -> dict[str, Any]:
    """The engine's own YAML file as a ConfigMap."""
    text = yaml.safe_dump(dict(spec.configuration), sort_keys=False)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{object_name(spec)}-config"},
        "data": {spec.config_name: text},
    }


def _deployment(spec: LaunchSpec, place: PodPlace) -> dict[str, Any]:
    template = pod_template(spec, place)
    if spec.replicas > 1:
        template["spec"]["topologySpreadConstraints"] = [_spread(spec)]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": object_name(spec), "labels": {POOL_LABEL: object_name(spec), **place.labels}},
        "spec": {
            "replicas": spec.replicas,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "selector": {"matchLabels": {POOL_LABEL: object_name(spec)}},
            "template": template,
        },
    }


def _disruption_budget(spec: LaunchSpec) -> dict[str, Any]:
    """Nodes are drained one replica at a time; a lone one may be evicted, or its node would never be drained.

    Pods that are not ready do not hold a node back. Fields:
    https://docs.rs/k8s-openapi/latest/k8s_openapi/api/policy/v1/struct.PodDisruptionBudgetSpec.html, read 2026-11-26.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": object_name(spec), "labels": {POOL_LABEL: object_name(spec)}},
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": {POOL_LABEL: object_name(spec)}},
        },
    }


def _leader_worker_set(spec: LaunchSpec, place: PodPlace) -> dict[str, Any]:
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": object_name(spec), "labels": {POOL_LABEL: object_name(spec), **place.labels}},
        "spec": {
            "replicas": spec.replicas,
            "leaderWorkerTemplate": {
                "size": spec.servers,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": pod_template(spec, place),
                "workerTemplate": pod_template(spec, place, further=True),
            },
        },
    }


def pod_template(spec: LaunchSpec, place: PodPlace, further: bool = False) -> dict[str, Any]:
    """The pod of one server of a replica: the one that answers requests, or a further one."""
    part = "worker" if further else SERVES
    metadata: dict[str, Any] = {"labels": {POOL_LABEL: object_name(spec), PART_LABEL: part, **place.labels}}
    if place.annotations and not further:
        metadata["annotations"] = dict(place.annotations)
    volumes: list[dict[str, Any]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "cache", "emptyDir": {}},
    ]
    if spec.configuration:
        volumes.append({"name": "config", "configMap": {"name": f"{object_name(spec)}-config"}})
    pod: dict[str, Any] = {
        "nodeSelector": node_selector(spec),
        "tolerations": gpu_tolerations(spec),
        "containers": [container(spec, place, further)],
        "volumes": volumes,
    }
    if place.before and not further:
        pod["initContainers"] = [dict(container) for container in place.before]
    return {"metadata": metadata, "spec": pod}


def _spread(spec: LaunchSpec) -> dict[str, Any]:
    """Pods of a pool are spread over nodes; where the plan counts on that, one waits rather than break it.

    Nodes that are down or drained, which have a taint, count as none.

    Fields: https://docs.rs/k8s-pb/latest/k8s_pb/api/core/v1/struct.TopologySpreadConstraint.html, read 2026-11-26.
    """
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule" if spec.must_spread else "ScheduleAnyway",
        "nodeTaintsPolicy": "Honor",
        "labelSelector": {"matchLabels": {POOL_LABEL: object_name(spec), PART_LABEL: SERVES}},
    }


def container(spec: LaunchSpec, place: PodPlace, further: bool = False) -> dict[str, Any]:
    """The engine's container."""
    mounts: list[dict[str, Any]] = [
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "cache", "mountPath": CACHE},
    ]
    if spec.configuration:
        mounts.append({"name": "config", "mountPath": "/config", "readOnly": True})
    serving = {
        "ports": [{"name": "http", "containerPort": place.port}],
        **{f"{name}Probe": _probe(spec, seconds) for name, seconds in _PROBES},
    }
    words = command_words(spec, place.port, further)
    return {
        "name": "engine",
        "image": spec.image,
        "command": words[:1],
        "args": words[1:],
        "env": [*environment(spec), {"name": "HF_HOME", "value": CACHE}],
        **({} if further else serving),
        "resources": gpu_resources(spec),
        "volumeMounts": mounts,
    }


_PROBES = (("startup", STARTUP), ("readiness", READINESS), ("liveness", LIVENESS))


def _probe(spec: LaunchSpec, seconds: Mapping[str, int]) -> dict[str, Any]:
    return {"httpGet": {"path": spec.health_path, "port": "http"}, **seconds}


def gpu_resources(spec: LaunchSpec) -> dict[str, Any]:
    """GPUs of one server of a replica; what else a container needs was not planned."""
    gpus = {gpu_resource(spec): str(spec.gpus_each)}
    return {"limits": dict(gpus), "requests": dict(gpus)}


def command_words(spec: LaunchSpec, port: int, further: bool = False) -> list[str]:
    """Words that start the engine on one server of a replica.

    ``$(NAME)`` is a variable of the container, which Kubernetes fills in; a LeaderWorkerSet sets those of the servers.
    The first rank of a further server is a product, for which a shell stands in front.
    """
    places = {"{model}": kubernetes_literal(spec.model) if spec.model else "$(MODEL)", "{port}": str(port)}
    words = [places.get(word) or kubernetes_literal(word) for word in spec.command]
    words += [kubernetes_literal(word) for word in (*spec.words, *words_of(spec.engine_id, "metrics"))]
    if spec.configuration:
        words += [w.replace("{value}", f"/config/{spec.config_name}") for w in shlex.split(spec.config_flag)]
    own = {RANK: "$(LWS_WORKER_INDEX)", LEADER: "$(LWS_LEADER_ADDRESS)"}
    words += filled_words(spec.server_words.every, own)
    if not further:
        return words
    more = spec.server_words.further
    if FIRST_RANK not in more:
        return words + list(more)
    start = " ".join(filled_words(more, {FIRST_RANK: f"$((LWS_WORKER_INDEX * {spec.server_words.ranks_each}))"}))
    return ["/bin/bash", "-c", kubernetes_literal(f'exec "$@" {start}'), "--", *words]


def environment(spec: LaunchSpec) -> list[dict[str, Any]]:
    """Variables of the engine's container."""
    token = {"secretKeyRef": {"name": TOKEN_SECRET, "key": "HF_TOKEN", "optional": True}}
    variables: list[dict[str, Any]] = [{"name": "HF_TOKEN", "valueFrom": token}]
    variables += [{"name": name, "value": kubernetes_literal(value)} for name, value in spec.environment]
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    variables += [{"name": name, "valueFrom": address} for name in spec.address_variables]
    if not spec.model:
        checkpoint = {"configMapKeyRef": {"name": MODELS, "key": model_variable(spec)}}
        variables.append({"name": "MODEL", "valueFrom": checkpoint})
    return variables
