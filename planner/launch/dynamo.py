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

from planner.core import UnsupportedFeatureError, markdown_text
from planner.launch.escaping import kubernetes_literal
from planner.launch.flags import rows_of
from planner.launch.fleet import Fleet
from planner.launch.pods import MODELS, gpu_resource, gpu_tolerations, node_selector
from planner.launch.readme import README_NAME, bullets, markdown_rows, name_text, page
from planner.launch.scripts import model_variable
from planner.launch.spec import NVIDIA, LaunchSpec, deployments, launch_specs
from planner.launch.versions import version_of
from planner.serving import Role, Router

TOKEN_SECRET = "hf-token-secret"
"""Secret of the user with HF_TOKEN, by the name that Dynamo's documents give it."""
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
"""What the frontend calls a router (`--router-mode`, environment variable DYN_ROUTER_MODE)."""


@dataclass(frozen=True)
class Backend:
    """How Dynamo runs an engine.

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


def files(fleet: Fleet) -> dict[str, str]:
    """A file for each deployment and a README: name -> content.

    Raises:
        UnsupportedFeatureError: Dynamo or an engine has no verified way to say what was chosen; the message names it.
    """
    graphs = list(map(_Graph.of, deployments(launch_specs(fleet))))
    return {**{graph.file_name: graph.text for graph in graphs}, README_NAME: _readme(fleet, graphs)}


@dataclass(frozen=True)
class _Graph:
    """One deployment as a graph of components."""

    pools: tuple[LaunchSpec, ...]
    backend: Backend
    router_mode: str

    @classmethod
    def of(cls, pools: tuple[LaunchSpec, ...]) -> _Graph:
        for pool in pools:
            if pool.vendor != NVIDIA:
                bound = f"is made by {pool.vendor}; Dynamo's runtime images are for NVIDIA GPUs"
                raise UnsupportedFeatureError("sku", pool.sku, bound, "export to kubernetes, or plan with NVIDIA GPUs")
        if pools[0].engine_id not in BACKENDS:
            bound = f"is no backend of Dynamo, which has {', '.join(BACKENDS)}"
            raise UnsupportedFeatureError("engine", pools[0].engine_id, bound, "search one of them")
        return cls(pools, BACKENDS[pools[0].engine_id], _router_mode(pools))

    @property
    def name(self) -> str:
        """Of the resource."""
        return self.pools[0].deployment_name

    @property
    def file_name(self) -> str:
        return f"{self.name}.dynamo.yaml"

    @property
    def text(self) -> str:
        """The objects as YAML documents."""
        objects = [_config_map(self, pool) for pool in self.pools if _configuration(self.backend, pool)]
        objects.append(
            {
                "apiVersion": "nvidia.com/v1beta1",
                "kind": "DynamoGraphDeployment",
                "metadata": {"name": self.name},
                "spec": {
                    "backendFramework": self.backend.framework,
                    "components": [self._frontend(), *(_worker(self, pool) for pool in self.pools)],
                },
            }
        )
        return yaml.safe_dump_all(objects, sort_keys=False, width=120)

    @property
    def image(self) -> str:
        return f"{self.backend.image}:{RELEASE}"

    def _frontend(self) -> dict[str, Any]:
        container = {
            "name": "main",
            "image": self.image,
            "envFrom": _token_source(),
            "env": [{"name": "DYN_ROUTER_MODE", "value": self.router_mode}],
        }
        return {
            "name": "Frontend",
            "type": "frontend",
            "replicas": 1,
            "podTemplate": {"spec": {"containers": [container]}},
        }


def _token_source() -> list[dict[str, Any]]:
    """The Hugging Face token, as variables of a container (a new list each time, so that YAML needs no anchors)."""
    return [{"secretRef": {"name": TOKEN_SECRET}}]


def _router_mode(pools: Sequence[LaunchSpec]) -> str:
    """The mode of the frontend, which routes to all pools alike. Raises UnsupportedFeatureError where it has none."""
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


def _worker(graph: _Graph, spec: LaunchSpec) -> dict[str, Any]:
    """The component of one pool."""
    container: dict[str, Any] = {
        "name": "main",
        "image": graph.image,
        "command": ["python3", "-m", graph.backend.module],
        "args": _arguments(graph, spec),
        "envFrom": _token_source(),
        "resources": {"limits": {gpu_resource(spec): str(spec.gpus_each)}},
    }
    pod: dict[str, Any] = {
        "nodeSelector": node_selector(spec),
        "tolerations": gpu_tolerations(spec),
        "containers": [container],
    }
    if not spec.model:
        key = {"configMapKeyRef": {"name": MODELS, "key": model_variable(spec)}}
        container["env"] = [{"name": "MODEL", "valueFrom": key}]
    if _configuration(graph.backend, spec):
        container["volumeMounts"] = [{"name": "config", "mountPath": "/config", "readOnly": True}]
        pod["volumes"] = [{"name": "config", "configMap": {"name": _config_map_name(graph, spec)}}]
    kind = "worker" if spec.role is Role.MIXED else spec.role.value
    component: dict[str, Any] = {"name": kind, "type": kind, "replicas": spec.replicas}
    if spec.servers > 1:
        component["multinode"] = {"nodeCount": spec.servers}
    return {**component, "podTemplate": {"spec": pod}}


def _arguments(graph: _Graph, spec: LaunchSpec) -> list[str]:
    """Words of a worker; the role is told in Dynamo's own."""
    backend = graph.backend
    role_flags = {word for row in rows_of(spec.engine_id, f"role={spec.role.value}") for word in row.flag.split()}
    words = [backend.model_flag, kubernetes_literal(spec.model) if spec.model else "$(MODEL)"]
    for flag, value in spec.flags:
        name = backend.renamed.get(flag, flag)
        if flag not in role_flags and name is not None:
            words += [name, *([kubernetes_literal(value)] if value else [])]
    words += map(kubernetes_literal, backend.roles.get(spec.role, ()))
    if graph.router_mode == ROUTER_MODES[Router.PREFIX_AFFINITY] and spec.role is not Role.DECODE:
        words += map(kubernetes_literal, backend.events)
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


def _config_map_name(graph: _Graph, spec: LaunchSpec) -> str:
    return f"{graph.name}-{spec.role.value}-config"


def _config_map(graph: _Graph, spec: LaunchSpec) -> dict[str, Any]:
    text = yaml.safe_dump(_configuration(graph.backend, spec), sort_keys=False)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": _config_map_name(graph, spec)},
        "data": {spec.config_name: text},
    }


def _readme(fleet: Fleet, graphs: Sequence[_Graph]) -> str:
    rows = [
        (
            graph.file_name,
            name_text(pool.service),
            pool.role.value,
            f"{pool.replicas:,}",
            f"{pool.gpus} x {pool.sku}",
            pool.servers,
            graph.router_mode,
        )
        for graph in graphs
        for pool in graph.pools
    ]
    sections = [
        f"Install the Dynamo platform {RELEASE} (its operator serves `nvidia.com/v1beta1`), create the secret "
        f"`{TOKEN_SECRET}` with HF_TOKEN, then `kubectl apply -f` each file. The frontend of a deployment is the "
        "service `NAME-frontend` at port 8000. Replicas on several servers need Grove or LeaderWorkerSet there.",
        markdown_rows(_HEAD, rows),
        "## Notes",
        bullets(note for graph in graphs for note in _notes(graph)),
    ]
    return page(f"{name_text(fleet.name)} on NVIDIA Dynamo", sections)


_HEAD = (
    "| File | Service | Role | Replicas | GPUs each | Servers each | Router mode |\n"
    "| --- | --- | --- | ---: | --- | ---: | --- |"
)


def _notes(graph: _Graph) -> list[str]:
    notes = [
        f"The images are Dynamo's ({graph.image}), which bring their own version of the engine; the plan was made for "
        f"{markdown_text(pool.engine)} {markdown_text(pool.engine_version)}."
        for pool in graph.pools[:1]
    ]
    notes += [
        f"`{pool.name}`: put the key `{model_variable(pool)}` with a checkpoint of "
        f"{name_text(pool.checkpoint)} into the ConfigMap `{MODELS}`."
        for pool in graph.pools
        if not pool.model
    ]
    if graph.router_mode == ROUTER_MODES[Router.PREFIX_AFFINITY]:
        notes.append("Router mode kv weighs cached blocks against load by a cost of its own; the plan by queue length.")
    if len(graph.pools) > 1:
        notes.append("KV caches travel over NIXL: without RDMA between the servers they fall back to TCP.")
    return [*notes, *(markdown_text(note) for pool in graph.pools for note in pool.notes if "Image" not in note)]
