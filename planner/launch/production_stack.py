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
from planner.fleet import Plan
from planner.launch.kubernetes import SERVING_PORT, STARTUP, gpu_resources, gpu_tolerations
from planner.launch.readme import README_NAME, readme_facts, version_of
from planner.launch.routers import policy_of
from planner.launch.spec import LaunchSpec, deployments, launch_specs
from planner.launch.templates import literal, objects_of, text_of, yaml_text
from planner.serving import Role, Router

POLICIES = {Router.ROUND_ROBIN: "roundrobin", Router.PREFIX_AFFINITY: "prefixaware"}
"""Name of each policy at the stack's router (`routingLogic`)."""
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
CHART, ROUTER_IMAGE = "vllm-stack (chart)", "lmcache/lmstack-router"
"""Names of the chart and of the router's image in `presets/target_versions.csv`."""
MAX_RELEASE = 40
"""Most characters of a release: with what the chart appends (``-router-service-account``) names have at most 63."""


def files(plan: Plan) -> dict[str, str]:
    """Values of a release for each deployment and a README: name -> content.

    Raises:
        UnsupportedFeatureError: another engine than vLLM, prefill and decode pools, replicas of several servers, or a
            policy that the router lacks.
    """
    specs = launch_specs(plan)
    contents = {f"{spec.deployment_name}.values.yaml": yaml_text([values(spec)]) for spec in _mixed_pools(specs)}
    facts = {
        "version": version_of("production-stack", CHART),
        "port": SERVING_PORT,
        "image": ROUTER_IMAGE,
        "release": release_name,
    }
    return {**contents, README_NAME: text_of("production-stack.md.j2", **readme_facts(plan, specs), **facts)}


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
        if pool.replicas > 1:
            policy_of(POLICIES, pool.router, "the router of the stack has no such policy")
    return specs


def release_name(pool: LaunchSpec) -> str:
    """Of the release of a pool; its number tells it from others."""
    return pool.deployment_name[:MAX_RELEASE].rstrip("-")


def values(pool: LaunchSpec) -> dict[str, Any]:
    """Values of the release of one pool."""
    repository, _, tag = pool.image.rpartition(":")
    (found,) = objects_of(
        "production-stack.yaml.j2",
        pool=pool,
        image={"repository": repository, "tag": tag},
        port=SERVING_PORT,
        resources=gpu_resources(pool),
        tolerations=gpu_tolerations(pool),
        config=_vllm_config(pool),
        router_image=ROUTER_IMAGE,
        router_tag=version_of("production-stack", f"{ROUTER_IMAGE} (image)"),
        policy=POLICIES.get(Router(pool.router), POLICIES[Router.ROUND_ROBIN]),
        **STARTUP,
    )
    return found


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
            words += [flag, *([literal(value)] if value else [])]
    return {**config, **({"extraArgs": words} if words else {})}
