"""A fleet as values of the Helm chart of the vLLM production stack: a release for each deployment.

Read on 2026-11-24 in vllm-project/production-stack: helm/values.schema.json and helm/values.yaml at e8cb495 (release
vllm-stack-0.1.13), helm/templates/deployment-vllm-multi.yaml at 010004e (how fields become flags: a prefix cache that
is not asked for is switched off, `/dev/shm` is mounted where `tensorParallelSize` stands, and further words follow as
`extraArgs`), helm/templates/deployment-router.yaml at 04d2c33 (the router finds pods by all labels of the engines). On
2026-11-25 .github/workflows/scheduled-release.yml at 4e9ae00: the run that releases a chart pushes the router's image
of the same commit, tagged ``v`` and the version of the chart (pull request 801, after issue 787 had asked for it).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.core import UnsupportedFeatureError
from planner.launch.escaping import kubernetes_literal, yaml_text
from planner.launch.fleet import Fleet
from planner.launch.kubernetes import FIXED_REPLICAS, SERVING_PORT, object_table
from planner.launch.pods import (
    GROUP_LABEL,
    STARTUP,
    TOKEN_SECRET,
    UNKNOWN_GPU,
    gpu_resources,
    gpu_tolerations,
    node_selector,
)
from planner.launch.readme import README_NAME, bullets, closing_sections, name_text, page
from planner.launch.spec import NVIDIA, LaunchSpec, deployments, launch_specs
from planner.launch.versions import version_of
from planner.serving import Role, Router

POLICIES = {Router.ROUND_ROBIN: "roundrobin", Router.PREFIX_AFFINITY: "prefixaware"}
"""What the stack's router calls a policy (`routingLogic`)."""
FIELDS = {
    "--tensor-parallel-size": ("tensorParallelSize", int),
    "--max-model-len": ("maxModelLen", int),
    "--max-num-seqs": ("maxNumSeqs", int),
    "--gpu-memory-utilization": ("gpuMemoryUtilization", str),
    "--dtype": ("dtype", str),
}
"""Flags that have a field of their own, and its type."""
SWITCHES = {
    "--enable-prefix-caching": ("enablePrefixCaching", True),
    "--no-enable-prefix-caching": ("enablePrefixCaching", False),
    "--enable-chunked-prefill": ("enableChunkedPrefill", True),
    "--no-enable-chunked-prefill": ("enableChunkedPrefill", False),
}
SHM_SIZE = "16Gi"
"""Most shared memory of an engine. A choice: memory is taken as it is used."""
UNKNOWN_MODEL = "set-checkpoint"
CHART, ROUTER_IMAGE = "vllm-stack (chart)", "lmcache/lmstack-router"
"""What `presets/target_versions.csv` calls the chart, and the router's image."""
MODEL_NAME = "pool"
"""Name of the only entry of `modelSpec`, by which the chart names its objects."""
MAX_RELEASE = 40
"""Most characters of a release: with what the chart appends (``-router-service-account``) names have at most 63."""


def files(fleet: Fleet) -> dict[str, str]:
    """Values of a release for each deployment and a README: name -> content.

    Raises:
        UnsupportedFeatureError: another engine than vLLM, prefill and decode pools, replicas of several servers, or a
            policy that the router lacks.
    """
    specs = launch_specs(fleet)
    contents = {f"{spec.deployment_name}.values.yaml": yaml_text([values(spec)]) for spec in _mixed_pools(specs)}
    return {**contents, README_NAME: _readme(fleet, specs)}


def _mixed_pools(specs: Sequence[LaunchSpec]) -> Sequence[LaunchSpec]:
    """The pools, each a deployment. Raises UnsupportedFeatureError for what the chart cannot run as planned."""
    for pools in deployments(specs):
        pool, elsewhere = pools[0], "export to kubernetes, or plan mixed pools of vLLM on one server"
        if pool.engine_id != "vllm":
            raise UnsupportedFeatureError("engine", pool.engine_id, "the production stack runs vLLM only", elsewhere)
        if pool.role is not Role.MIXED:
            bound = "its router hands KV caches over by LMCache, which was not planned"
            raise UnsupportedFeatureError("deployment.pools.role", "prefill, decode", bound, elsewhere)
        if pool.servers > 1:
            bound = "a replica of the chart is one pod; on several servers it is a Ray cluster, which was not planned"
            raise UnsupportedFeatureError("parallelism", pool.parallelism.label, bound, elsewhere)
        if Router(pool.router) not in POLICIES and pool.replicas > 1:
            fix = f"plan with one of: {', '.join(sorted(POLICIES))}"
            raise UnsupportedFeatureError("router", pool.router, "the router of the stack has no such policy", fix)
    return specs


def release_name(pool: LaunchSpec) -> str:
    """Of the release of a pool; its number tells it from others."""
    return pool.deployment_name[:MAX_RELEASE].rstrip("-")


def values(pool: LaunchSpec) -> dict[str, Any]:
    """Values of the release of one pool."""
    repository, _, tag = pool.image.rpartition(":")
    label, gpu = next(iter(node_selector(pool).items()))
    terms = [{"matchExpressions": [{"key": label, "operator": "In", "values": [gpu]}]}]
    model = {
        "name": MODEL_NAME,
        "repository": repository,
        "tag": tag,
        "modelURL": pool.model or UNKNOWN_MODEL,
        "replicaCount": pool.replicas,
        "resources": gpu_resources(pool),
        "shmSize": SHM_SIZE,
        "nodeSelectorTerms": terms,
        "hf_token": {"secretName": TOKEN_SECRET, "secretKey": "HF_TOKEN"},
        **({"env": _environment(pool)} if pool.environment else {}),
        "vllmConfig": _vllm_config(pool),
    }
    startup = {"initialDelaySeconds": 15, "httpGet": {"path": pool.health_path, "port": SERVING_PORT}}
    startup |= {name: STARTUP[name] for name in ("periodSeconds", "failureThreshold")}
    return {
        "servingEngineSpec": {
            **({} if pool.vendor == NVIDIA else {"runtimeClassName": ""}),
            "labels": {GROUP_LABEL: pool.deployment_name},
            "containerPort": SERVING_PORT,
            "startupProbe": startup,
            "tolerations": gpu_tolerations(pool),
            "modelSpec": [model],
        },
        "routerSpec": {
            "repository": ROUTER_IMAGE,
            "tag": version_of("production-stack", f"{ROUTER_IMAGE} (image)"),
            "routingLogic": POLICIES.get(Router(pool.router), POLICIES[Router.ROUND_ROBIN]),
            "labels": {GROUP_LABEL: f"{pool.deployment_name}-router"},
        },
    }


def _environment(pool: LaunchSpec) -> list[dict[str, str]]:
    return [{"name": name, "value": kubernetes_literal(value)} for name, value in pool.environment]


def _vllm_config(pool: LaunchSpec) -> dict[str, Any]:
    """Flags as the chart's fields, and what has none as further words."""
    config: dict[str, Any] = {}
    words: list[str] = []
    for flag, value in pool.flags:
        if flag in FIELDS:
            name, kind = FIELDS[flag]
            config[name] = kind(value)
        elif flag in SWITCHES:
            name, config[SWITCHES[flag][0]] = SWITCHES[flag]
        else:
            words += [flag, *([kubernetes_literal(value)] if value else [])]
    return {**config, **({"extraArgs": words} if words else {})}


def _readme(fleet: Fleet, specs: Sequence[LaunchSpec]) -> str:
    version = version_of("production-stack", CHART)
    commands = "\n".join(
        f"helm install {release_name(spec)} vllm/vllm-stack --version {version} -f {spec.deployment_name}.values.yaml"
        for spec in specs
    )
    wanted = [f"The secret `{TOKEN_SECRET}` with a Hugging Face token under the key `HF_TOKEN`."]
    wanted += [
        f"`{spec.deployment_name}`: `modelURL`, a checkpoint of {name_text(spec.checkpoint)}."
        for spec in specs
        if not spec.model
    ]
    wanted += [
        f"`{spec.deployment_name}`: the value of the node label for the GPU `{spec.sku}` in `nodeSelectorTerms`."
        for spec in specs
        if UNKNOWN_GPU in node_selector(spec).values()
    ]
    sections = [
        "A release of the chart for each deployment, so that each has a router of its own:",
        f"```bash\nhelm repo add vllm https://vllm-project.github.io/production-stack\n{commands}\n```",
        object_table(specs),
        "Clients connect to the service `RELEASE-router-service`, port 80.",
        "## Before you apply",
        bullets(wanted),
        FIXED_REPLICAS,
        *closing_sections(fleet, specs, [*(note for spec in specs for note in spec.notes), _ROUTER_TAG]),
    ]
    return page(f"{name_text(fleet.name)} on the vLLM production stack", sections)


_ROUTER_TAG = (
    f"The router's image `{ROUTER_IMAGE}` is pinned to the tag that the project's release run pushes with this chart; "
    "the chart alone would take `latest`. It is built for amd64. Where the tag is missing, `v0.1.12` of the release "
    "before has been seen to run; `kubectl get pods -o jsonpath='{..imageID}'` names the digest of what runs."
)
