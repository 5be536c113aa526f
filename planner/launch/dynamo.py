"""A fleet as DynamoGraphDeployments of NVIDIA Dynamo: one file for each deployment, and a README.

Fields read on 2026-11-22 in ai-dynamo/dynamo: docs/kubernetes/dgd-guide.md (b13586e) and docs/kubernetes/
dgd-reference.mdx, dcd-reference.mdx (085a77e) for ``nvidia.com/v1beta1``, ``spec.components`` with ``name``, ``type``
(frontend, worker, prefill, decode), ``replicas``, ``multinode.nodeCount`` and ``podTemplate`` whose container is called
``main``, and ``backendFramework``; docs/kubernetes/deployment/multinode-deployment.md (055373f) for replicas on several
servers, whose words the operator writes; docs/kubernetes/dgd-kv-routing.md (78c06cb) for events of the KV cache;
examples/backends/trtllm/deploy/v1beta1/agg-with-config.yaml (2ac51dd) for an engine's own file. On 2026-11-26 the
definition of the resource: deploy/operator/config/crd/bases/nvidia.com_dynamographdeployments.yaml (0fddc01). Flags of
the router and of the backends: dynamo/common/configuration/groups/router_args.py, dynamo/vllm/backend_args.py and
dynamo/trtllm/backend_args.py of the wheel ai-dynamo 1.6.1 on PyPI. Engine flags besides are those of the engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from planner.core import UnsupportedFeatureError
from planner.fleet import Plan
from planner.launch.flags import rows_of
from planner.launch.kubernetes import gpu_tolerations
from planner.launch.readme import README_NAME, version_of
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


@dataclass(frozen=True)
class Backend:
    """An engine as a backend of Dynamo.

    Attributes:
        framework: value of ``backendFramework``.
        image: runtime image without its tag.
        module: Python module of the worker.
        model_flag: that names the checkpoint.
        renamed: flags of the engine's own server that the worker spells otherwise; to None where they are settings of
            the engine's file.
        events: words that make a worker publish what its KV cache holds.
        roles: words for a pool in a role, in place of those of the engine's own server.
        config_flag: that names the engine's own file; empty where it has none.
    """

    framework: str
    image: str
    module: str
    model_flag: str
    renamed: Mapping[str, str | None]
    events: tuple[str, ...]
    roles: Mapping[Role, tuple[str, ...]]
    config_flag: str


def _compact_json(content: Mapping[str, object]) -> str:
    return json.dumps(content, separators=(",", ":"))


_NIXL = _compact_json({"kv_connector": "NixlConnector", "kv_role": "kv_both"})
_ZMQ = {"publisher": "zmq", "topic": "kv-events"}
_MODE = "--disaggregation-mode"
BACKENDS = {
    "vllm": Backend(
        framework="vllm",
        image="nvcr.io/nvidia/ai-dynamo/vllm-runtime",
        module="dynamo.vllm",
        model_flag="--model",
        renamed={},
        events=(
            "--kv-events-config",
            _compact_json({**_ZMQ, "endpoint": "tcp://*:20080", "enable_kv_cache_events": True}),
        ),
        roles={
            Role.PREFILL: (_MODE, "prefill", "--kv-transfer-config", _NIXL),
            Role.DECODE: (_MODE, "decode", "--kv-transfer-config", _NIXL),
        },
        config_flag="",
    ),
    "sglang": Backend(
        framework="sglang",
        image="nvcr.io/nvidia/ai-dynamo/sglang-runtime",
        module="dynamo.sglang",
        model_flag="--model-path",
        renamed={},
        events=("--kv-events-config", _compact_json({**_ZMQ, "endpoint": "tcp://*:5557"})),
        roles={
            role: (
                *(_MODE, role.value, "--disaggregation-transfer-backend", "nixl"),
                *("--disaggregation-bootstrap-port", "12345", "--host", "0.0.0.0"),
            )
            for role in (Role.PREFILL, Role.DECODE)
        },
        config_flag="",
    ),
    "tensorrt-llm": Backend(
        framework="trtllm",
        image="nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime",
        module="dynamo.trtllm",
        model_flag="--model",
        renamed={
            "--tp_size": "--tensor-parallel-size",
            "--pp_size": "--pipeline-parallel-size",
            "--ep_size": "--expert-parallel-size",
            "--max_batch_size": "--max-batch-size",
            "--max_num_tokens": "--max-num-tokens",
            "--max_seq_len": "--max-seq-len",
            "--enable_chunked_prefill": None,
        },
        events=("--publish-kv-events",),
        roles={Role.PREFILL: (_MODE, "prefill"), Role.DECODE: (_MODE, "decode")},
        config_flag="--extra-engine-args",
    ),
}


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
    images = [f"{BACKENDS[pools[0].engine_id].image}:{RELEASE}" for pools in groups]
    rows = list(zip(graphs, groups, modes, images, strict=True))
    return {**graphs, README_NAME: text_of("dynamo.md.j2", name=plan.request.name, rows=rows, release=RELEASE)}


def _graph(pools: tuple[LaunchSpec, ...], mode: str) -> list[dict[str, Any]]:
    """The objects of one deployment."""
    backend = BACKENDS[pools[0].engine_id]
    workers = [
        {
            "pool": pool,
            "arguments": _arguments(backend, mode, pool),
            "file": yaml.safe_dump(content, sort_keys=False) if (content := _configuration(backend, pool)) else "",
            "tolerations": gpu_tolerations(pool),
        }
        for pool in pools
    ]
    name = pools[0].deployment_name
    return objects_of("dynamo.yaml.j2", name=name, backend=backend, release=RELEASE, mode=mode, workers=workers)


def _router_mode(pools: Sequence[LaunchSpec]) -> str:
    """The mode of the frontend, which routes to all pools alike.

    Raises:
        UnsupportedFeatureError: it has none, or Dynamo does not run the engine or the GPUs.
    """
    for pool in pools:
        if not pool.is_nvidia:
            bound = f"is made by {pool.vendor}; Dynamo's runtime images are for NVIDIA GPUs"
            raise UnsupportedFeatureError("sku", pool.sku, bound, "export to kubernetes, or plan with NVIDIA GPUs")
    if pools[0].engine_id not in BACKENDS:
        bound = f"is no backend of Dynamo, which has {', '.join(BACKENDS)}"
        raise UnsupportedFeatureError("engine", pools[0].engine_id, bound, "search one of them")
    routers = {Router(pool.router) for pool in pools}
    if len(routers) > 1:
        bound = "one frontend routes to prefill and decode workers in one mode"
        raise UnsupportedFeatureError("router", sorted(routers), bound, "plan both pools with one router")
    (router,) = routers
    if router not in ROUTER_MODES:
        bound = "the frontend of Dynamo has no such mode"
        fix = f"plan with one of: {', '.join(sorted(ROUTER_MODES))}"
        raise UnsupportedFeatureError("router", router.value, bound, fix)
    return ROUTER_MODES[router]


def _arguments(backend: Backend, mode: str, spec: LaunchSpec) -> list[str]:
    """Words of a worker; the role is told in Dynamo's own."""
    role_flags = {word for row in rows_of(spec.engine_id, f"role={spec.role.value}") for word in row.flag.split()}
    words = [backend.model_flag, literal(spec.model) if spec.model else "$(MODEL)"]
    for flag, value in spec.flags:
        name = backend.renamed.get(flag, flag)
        if flag not in role_flags and name is not None:
            words += [name, *([literal(value)] if value else [])]
    words += map(literal, backend.roles.get(spec.role, ()))
    if mode == ROUTER_MODES[Router.PREFIX_AFFINITY] and spec.role is not Role.DECODE:
        words += map(literal, backend.events)
    if _configuration(backend, spec):
        words += [backend.config_flag, f"/config/{spec.config_name}"]
    return words


def _configuration(backend: Backend, spec: LaunchSpec) -> dict[str, Any]:
    """Content of the engine's own file, with the flags that Dynamo's worker does not have."""
    content = dict(spec.configuration)
    for flag, value in spec.flags:
        if backend.renamed.get(flag, flag) is None:
            content[flag.removeprefix("--")] = yaml.safe_load(value) if value else True
    return content
