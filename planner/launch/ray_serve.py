"""A fleet as a Ray Serve configuration file with an application of Ray Serve LLM for each deployment, and a README.

Fields read on 2026-11-22 in the wheel ray 2.60.0 on PyPI: ray/serve/llm/__init__.py (builders `build_openai_app`,
`build_dp_openai_app` and `build_pd_openai_app` with their YAML forms), ray/llm/_internal/serve/core/configs/
llm_config.py (LLMConfig: model_loading_config, engine_kwargs, accelerator_type, placement_group_config, lora_config,
deployment_config), .../core/ingress/builder.py (llm_configs), .../serving_patterns/data_parallel/builder.py
(llm_config; num_replicas counts groups), .../serving_patterns/prefill_decode/builder.py (prefill_config,
decode_config; both need kv_transfer_config), ray/serve/config.py (request_router_config) and ray/util/accelerators/
accelerators.py. Keys of ``engine_kwargs`` are fields of vLLM's EngineArgs (vllm/engine/arg_utils.py), which are the
flags of ``vllm serve`` with underscores. Ray 2.60.0 brings vLLM 0.29.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import yaml

from planner.core import UnsupportedFeatureError, markdown_text
from planner.launch.escaping import slug
from planner.launch.flags import rows_of
from planner.launch.fleet import Fleet
from planner.launch.readme import README_NAME, bullets, markdown_rows, name_text, page
from planner.launch.spec import LaunchSpec, deployments, launch_specs
from planner.launch.versions import version_of
from planner.serving import Router

CONFIG_NAME = "serve.yaml"
ENGINE = "vllm"
"""The only engine of `LLMConfig.llm_engine` (its value there is vLLM)."""
RAY_VERSION = version_of("ray-serve", "Ray")
BUILDERS = {
    "mixed": "ray.serve.llm:build_openai_app",
    "ranks": "ray.serve.llm:build_dp_openai_app",
    "pair": "ray.serve.llm:build_pd_openai_app",
}
ROUTERS = {
    Router.POWER_OF_TWO: "",
    Router.ROUND_ROBIN: "ray.serve.experimental.round_robin_router.RoundRobinRouter",
    Router.PREFIX_AFFINITY: "ray.serve.llm.request_router.PrefixCacheAffinityRouter",
}
"""Request router class of each policy; empty for Serve's own, which is power of two choices."""
KV_TRANSFER = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
"""How prefill and decode engines transfer KV caches (docs.ray.io, serve/llm/user-guides/prefill-decode)."""
ACCELERATORS: Mapping[str, str] = MappingProxyType(
    {
        "a10g": "A10G",
        "a100-pcie-80gb": "A100",
        "a100-sxm-40gb": "A100",
        "a100-sxm-80gb": "A100",
        "b200-sxm": "B200",
        "b300-sxm": "B300",
        "gb200-nvl72": "GB200",
        "gb300-nvl72": "GB300",
        "h100-nvl": "H100",
        "h100-pcie": "H100",
        "h100-sxm": "H100",
        "h20": "H20",
        "h200-sxm": "H200",
        "l4": "L4",
        "l40s": "L40S",
        "mi250x": "AMD-Instinct-MI250X",
        "mi300x": "AMD-Instinct-MI300X-OAM",
        "mi325x": "AMD-Instinct-MI325X-OAM",
        "mi355x": "AMD-Instinct-MI355X-OAM",
        "rtx-pro-6000-blackwell-server": "RTX-PRO-6000",
        "t4": "T4",
        "v100-sxm-32gb": "V100",
    }
)
"""``accelerator_type`` by SKU: the names that Ray gives nodes by itself. They tell neither memory nor form factor."""


def files(fleet: Fleet) -> dict[str, str]:
    """One Serve configuration for the whole fleet and a README: name -> content.

    Raises:
        UnsupportedFeatureError: an engine other than vLLM, a router that Ray lacks, or a knob without a verified name.
    """
    _require_vllm(fleet)
    groups = deployments(launch_specs(fleet))
    content = {
        "http_options": {"host": "0.0.0.0", "port": 8000},
        "applications": [_application(pools, alone=len(groups) == 1) for pools in groups],
    }
    head = f"# Ray {RAY_VERSION} or later: serve deploy {CONFIG_NAME}\n"
    return {
        CONFIG_NAME: head + yaml.safe_dump(content, sort_keys=False, width=120),
        README_NAME: _readme(fleet, groups),
    }


def _require_vllm(fleet: Fleet) -> None:
    for launched in fleet.deployments:
        for pool in launched.deployment.pools:
            engine = pool.config.engine
            if engine.id != ENGINE:
                bound = "Ray Serve LLM runs vLLM only"
                raise UnsupportedFeatureError("engine", engine.name, bound, "search vllm, or export to another target")


def _application(pools: Sequence[LaunchSpec], alone: bool) -> dict[str, Any]:
    """The application of one deployment; `alone` in the file, it answers at the root."""
    name = pools[0].deployment_name
    configs = [_llm_config(spec, len(pools) > 1) for spec in pools]
    arguments: dict[str, Any]
    if len(pools) > 1:
        builder, arguments = BUILDERS["pair"], {"prefill_config": configs[0], "decode_config": configs[1]}
    elif pools[0].parallelism.dp > 1:
        builder, arguments = BUILDERS["ranks"], {"llm_config": configs[0]}
    else:
        builder, arguments = BUILDERS["mixed"], {"llm_configs": configs}
    return {
        "name": name,
        "route_prefix": "/" if alone else f"/{name}",
        "import_path": builder,
        "args": arguments,
    }


def _llm_config(spec: LaunchSpec, transfers_kv: bool) -> dict[str, Any]:
    """The LLMConfig of one pool."""
    source = spec.model or f"SET-TO-A-CHECKPOINT-{spec.deployment_name}"
    content: dict[str, Any] = {
        "model_loading_config": {"model_id": spec.model or slug(spec.service), "model_source": source},
        "engine_kwargs": engine_kwargs(spec) | ({"kv_transfer_config": dict(KV_TRANSFER)} if transfers_kv else {}),
    }
    if spec.sku in ACCELERATORS:
        content["accelerator_type"] = ACCELERATORS[spec.sku]
    if spec.servers == 1 and spec.parallelism.dp == 1:
        bundle = {"CPU": 1, "GPU": 1}
        content["placement_group_config"] = {"bundle_per_worker": bundle, "strategy": "STRICT_PACK"}
    slots = dict(spec.flags).get("--max-loras")
    if slots is not None:
        content["lora_config"] = {"max_num_adapters_per_replica": int(slots)}
    content["deployment_config"] = {"num_replicas": spec.replicas, **_router(spec)}
    return content


def engine_kwargs(spec: LaunchSpec) -> dict[str, Any]:
    """Flags of ``vllm serve`` as keyword arguments of the engine; those of the role are Ray's to write.

    A switch ``--no-x`` is ``x: false``, any other switch true.
    """
    role_flags = {word for row in rows_of(ENGINE, f"role={spec.role.value}") for word in row.flag.split()}
    arguments: dict[str, Any] = {}
    for flag, value in spec.flags:
        if flag in role_flags:
            continue
        if value:
            arguments[_keyword(flag)] = yaml.safe_load(value)
        elif flag.startswith("--no-"):
            arguments[_keyword(f"--{flag.removeprefix('--no-')}")] = False
        else:
            arguments[_keyword(flag)] = True
    return arguments


def _keyword(flag: str) -> str:
    """The field of EngineArgs that a flag sets.

    >>> _keyword("--max-num-seqs")
    'max_num_seqs'
    """
    return flag.removeprefix("--").replace("-", "_")


def _router(spec: LaunchSpec) -> dict[str, Any]:
    """Options of a deployment that say how requests are spread. Raises UnsupportedFeatureError for what Ray lacks."""
    router = Router(spec.router)
    if router not in ROUTERS:
        fix = f"plan with one of: {', '.join(sorted(ROUTERS))}"
        raise UnsupportedFeatureError("router", router.value, "Ray Serve LLM has no such request router", fix)
    name = ROUTERS[router]
    return {"request_router_config": {"request_router_class": name}} if name else {}


def _readme(fleet: Fleet, groups: Sequence[Sequence[LaunchSpec]]) -> str:
    rows = [
        (
            spec.deployment_name,
            name_text(spec.service),
            spec.role.value,
            f"{spec.replicas:,}",
            f"{spec.gpus} x {spec.sku}",
            ACCELERATORS.get(spec.sku, "any GPU"),
            spec.router.replace("_", " "),
        )
        for pools in groups
        for spec in pools
    ]
    sections = [
        f'Needs `pip install "ray[serve,llm]=={RAY_VERSION}"` on every server of a Ray cluster and HF_TOKEN in its '
        f"environment. `serve deploy {CONFIG_NAME}` starts everything; each application answers the OpenAI API under "
        "its route. Replica numbers are fixed: they are the plan's.",
        markdown_rows(_HEAD, rows),
        "## Notes",
        bullets(note for pools in groups for spec in pools for note in _notes(spec)),
    ]
    return page(f"{name_text(fleet.name)} on Ray Serve LLM", sections)


_HEAD = (
    "| Application | Service | Role | Replicas | GPUs each | Accelerator type | Router |\n"
    "| --- | --- | --- | ---: | --- | --- | --- |"
)


def _notes(spec: LaunchSpec) -> list[str]:
    notes = []
    if not spec.model:
        notes.append(f"`{spec.deployment_name}`: set `model_source` to a checkpoint of {name_text(spec.checkpoint)}.")
    if spec.sku not in ACCELERATORS:
        notes.append(f"Ray has no accelerator type for {spec.sku}: its replicas start on any GPU of the cluster.")
    elif spec.sku.startswith(("a100", "h100")):
        notes.append(
            f"Accelerator type {ACCELERATORS[spec.sku]} does not tell memory and form factor: keep other variants than "
            f"{spec.sku} out of the cluster."
        )
    if spec.servers > 1:
        notes.append("Replicas on several servers: Ray spreads their workers; it packs them as far as it can.")
    if "--max-loras" in dict(spec.flags):
        notes.append("Adapters: add `dynamic_lora_loading_path`, the cloud folder that holds them, to `lora_config`.")
    if spec.router == Router.PREFIX_AFFINITY:
        notes.append(
            "Prefix affinity: Ray matches the text of prompts, and takes power of two choices under imbalance."
        )
    return [*notes, *(markdown_text(note) for note in spec.notes if "Image" not in note and "router of" not in note)]
