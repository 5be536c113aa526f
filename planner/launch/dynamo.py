"""A fleet as DynamoGraphDeployments of NVIDIA Dynamo: one file for each deployment, and a README.

Fields read on 2026-11-22 in ai-dynamo/dynamo: docs/kubernetes/dgd-guide.md (b13586e) and docs/kubernetes/
dgd-reference.mdx, dcd-reference.mdx (085a77e) for ``nvidia.com/v1beta1``, ``spec.components`` with ``name``, ``type``
(frontend, worker, prefill, decode), ``replicas``, ``multinode.nodeCount`` and ``podTemplate`` whose container is called
``main``, and ``backendFramework``; docs/kubernetes/deployment/multinode-deployment.md (055373f) for replicas on several
servers, whose words the operator writes; docs/kubernetes/dgd-kv-routing.md (78c06cb) for events of the KV cache;
examples/backends/trtllm/deploy/v1beta1/agg-with-config.yaml (2ac51dd) for an engine's own file. On 2026-11-26 the
definition of the resource: deploy/operator/config/crd/bases/nvidia.com_dynamographdeployments.yaml (0fddc01). Modes
of the router: dynamo/common/configuration/groups/router_args.py of the wheel ai-dynamo 1.6.1 on PyPI. The words of an
engine as a backend of Dynamo are rows of the table of flags (``dynamo_...``); all others are those of the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from planner.core import UnsupportedFeatureError
from planner.fleet import Plan
from planner.launch.flags import only_of, rows_of, words_of
from planner.launch.kubernetes import gpu_tolerations
from planner.launch.readme import README_NAME, version_of
from planner.launch.routers import policy_of
from planner.launch.spec import LaunchSpec, deployments, launch_specs
from planner.launch.templates import literal, objects_of, text_of
from planner.serving import Role, Router

RELEASE = version_of("dynamo", "NVIDIA Dynamo")
"""Tag of the runtime images: the release whose wheel was read, which starts images of this tag itself
(dynamo/planner/tests/manual/scaling). Those of 1.6.0 hold vLLM 0.31.0, SGLang 0.5.21 and TensorRT-LLM 1.3.0rc29
(https://docs.nvidia.com/dynamo/v1.6.0/reference/release-artifacts, read 2026-11-22)."""
ROUTER_MODES = {
    Router.ROUND_ROBIN: "round-robin",
    Router.RANDOM: "random",
    Router.POWER_OF_TWO: "power-of-two",
    Router.LEAST_REQUESTS: "least-loaded",
    Router.PREFIX_AFFINITY: "kv",
}
"""Name of each router at the frontend (`--router-mode`, environment variable DYN_ROUTER_MODE)."""


def files(plan: Plan) -> dict[str, str]:
    """A file for each deployment and a README: name -> content.

    Raises:
        UnsupportedFeatureError: Dynamo or an engine has no verified way to say what was chosen; the message names it.
    """
    groups = deployments(launch_specs(plan))
    modes = [_router_mode(pools) for pools in groups]
    graphs = {
        f"{pools[0].deployment_name}.dynamo.yaml": yaml.safe_dump_all(_graph(pools, mode), sort_keys=False, width=120)
        for pools, mode in zip(groups, modes, strict=True)
    }
    images = [f"{only_of(pools[0].engine_id, 'dynamo_image')}:{RELEASE}" for pools in groups]
    rows = list(zip(graphs, groups, modes, images, strict=True))
    return {**graphs, README_NAME: text_of("dynamo.md.j2", name=plan.request.name, rows=rows, release=RELEASE)}


def _graph(pools: tuple[LaunchSpec, ...], mode: str) -> list[dict[str, Any]]:
    """The objects of one deployment."""
    engine = pools[0].engine_id
    workers = [
        {
            "pool": pool,
            "arguments": _arguments(mode, pool),
            "file": yaml.safe_dump(content, sort_keys=False) if (content := _configuration(pool)) else "",
            "tolerations": gpu_tolerations(pool),
        }
        for pool in pools
    ]
    return objects_of(
        "dynamo.yaml.j2",
        name=pools[0].deployment_name,
        release=RELEASE,
        mode=mode,
        workers=workers,
        **{part: only_of(engine, f"dynamo_{part}") for part in ("framework", "image", "module")},
    )


def _router_mode(pools: Sequence[LaunchSpec]) -> str:
    """The mode of the frontend, which routes to all pools alike.

    Raises:
        UnsupportedFeatureError: it has none, or Dynamo does not run the engine or the GPUs.
    """
    for pool in pools:
        if not pool.is_nvidia:
            bound = f"is made by {pool.vendor}; Dynamo's runtime images are for NVIDIA GPUs"
            raise UnsupportedFeatureError("sku", pool.sku, bound, "export to kubernetes, or plan with NVIDIA GPUs")
    routers = {Router(pool.router) for pool in pools}
    if len(routers) > 1:
        bound = "one frontend routes to prefill and decode workers in one mode"
        raise UnsupportedFeatureError("router", sorted(routers), bound, "plan both pools with one router")
    (router,) = routers
    return policy_of(ROUTER_MODES, router.value, "the frontend of Dynamo has no such mode")


def _arguments(mode: str, spec: LaunchSpec) -> list[str]:
    """Words of a worker; the role is told in Dynamo's own."""
    role_flags = {word for row in rows_of(spec.engine_id, f"role={spec.role.value}") for word in row.flag.split()}
    words = [*words_of(spec.engine_id, "dynamo_model"), literal(spec.model) if spec.model else "$(MODEL)"]
    renamed = _renamed(spec)
    for flag, value in spec.flags:
        name = renamed.get(flag, flag)
        if flag not in role_flags and name:
            words += [name, *([literal(value)] if value else [])]
    words += map(literal, words_of(spec.engine_id, f"dynamo_role={spec.role.value}"))
    if mode == ROUTER_MODES[Router.PREFIX_AFFINITY] and spec.role is not Role.DECODE:
        words += map(literal, words_of(spec.engine_id, "dynamo_events"))
    if _configuration(spec):
        words += [*words_of(spec.engine_id, "dynamo_config"), f"/config/{spec.config_name}"]
    return words


def _renamed(spec: LaunchSpec) -> dict[str, str]:
    """Flags of the engine's server that the worker spells otherwise; empty for settings of the engine's file."""
    return dict(row.flag.split("=") for row in rows_of(spec.engine_id, "dynamo_renamed"))


def _configuration(spec: LaunchSpec) -> dict[str, Any]:
    """Content of the engine's own file, with the flags that Dynamo's worker does not have."""
    content, renamed = dict(spec.configuration), _renamed(spec)
    for flag, value in spec.flags:
        if renamed.get(flag, flag) == "":
            content[flag.removeprefix("--")] = yaml.safe_load(value) if value else True
    return content
