"""Ray Serve configurations: fields of the builders of Ray Serve LLM, the plan's numbers, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from planner.core import UnsupportedFeatureError
from planner.engine import LoraAdapters, Speculation
from planner.launch.ray_serve import ACCELERATORS, ROUTERS, files
from planner.llm import load_llm
from planner.roofline import Parallelism
from planner.serving import Deployment, Router
from tests.builders import FP8, HARDWARE
from tests.made_up_fleets import NASTY, fleet, launched, mixed, named, on, pair, traffic

LLM_CONFIG_FIELDS = {
    "runtime_env",
    "model_loading_config",
    "llm_engine",
    "engine_kwargs",
    "accelerator_type",
    "accelerator_config",
    "placement_group_config",
    "lora_config",
    "deployment_config",
    "server_cls",
    "experimental_configs",
    "log_engine_metrics",
    "callback_config",
}
"""Fields of LLMConfig in ray/llm/_internal/serve/core/configs/llm_config.py of ray 2.60.0."""
RAY_ACCELERATORS = {
    "A10G",
    "A100",
    "B200",
    "B300",
    "GB200",
    "GB300",
    "H100",
    "H200",
    "H20",
    "L4",
    "L40S",
    "T4",
    "V100",
    "RTX-PRO-6000",
    "AMD-Instinct-MI250X",
    "AMD-Instinct-MI300X-OAM",
    "AMD-Instinct-MI325X-OAM",
    "AMD-Instinct-MI355X-OAM",
}
"""Those of ray/util/accelerators/accelerators.py of ray 2.60.0 that a SKU of the database has."""
ENGINE_ARGUMENTS = {
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "enable_expert_parallel",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "kv_cache_dtype",
    "dtype",
    "quantization",
    "gpu_memory_utilization",
    "max_model_len",
    "speculative_config",
    "enable_lora",
    "max_loras",
    "max_lora_rank",
    "kv_transfer_config",
}
"""Of the fields of EngineArgs in vllm/engine/arg_utils.py (0.33.0): those that a plan may set."""


def applications(written: dict[str, str]) -> list[dict[str, Any]]:
    """Applications of the Serve configuration."""
    content = yaml.safe_load(written["serve.yaml"])
    assert set(content) == {"http_options", "applications"}
    for application in content["applications"]:
        assert set(application) == {"name", "route_prefix", "import_path", "args"}
    return list(content["applications"])


def configs(written: dict[str, str]) -> list[dict[str, Any]]:
    """LLMConfigs of the only application, in order."""
    (application,) = applications(written)
    found: list[dict[str, Any]] = []
    for value in application["args"].values():
        found += value if isinstance(value, list) else [value]
    for config in found:
        assert set(config) <= LLM_CONFIG_FIELDS and set(config["engine_kwargs"]) <= ENGINE_ARGUMENTS
    return found


def test_numbers_are_those_of_the_plan_under_the_names_of_vllms_engine() -> None:
    one = launched(Deployment.mixed(on(tp=4, max_running_requests=96, max_batched_tokens=3072, memory_fraction=0.8), 5))
    (config,) = configs(files(fleet(one)))
    engine = config["engine_kwargs"]
    assert (engine["tensor_parallel_size"], engine["max_num_seqs"], engine["max_num_batched_tokens"]) == (4, 96, 3072)
    assert engine["gpu_memory_utilization"] == 0.8
    assert (one.workload.lengths.max_total, engine["max_model_len"]) == (1750, 2048)  # and 10 %
    assert engine["enable_prefix_caching"] is False and engine["enable_chunked_prefill"] is True
    assert config["deployment_config"]["num_replicas"] == 5 and config["accelerator_type"] == "H100"
    assert config["model_loading_config"]["model_source"] == "meta-llama/Llama-3.1-8B"
    assert config["placement_group_config"]["strategy"] == "STRICT_PACK"


def test_drafts_and_adapters_are_written_as_values_not_as_text() -> None:
    drafts = mixed(
        model="deepseek-v3",
        precision=load_llm("deepseek-v3").native_precision,
        parallelism=Parallelism(tp=8),
        speculation=Speculation(draft_tokens=2, acceptance=0.8),
    )
    (config,) = configs(files(drafts))
    assert config["engine_kwargs"]["speculative_config"] == {"method": "mtp", "num_speculative_tokens": 2}
    (config,) = configs(files(mixed(lora=LoraAdapters(adapters=20, rank=24, slots=6))))
    assert config["lora_config"] == {"max_num_adapters_per_replica": 6}
    assert (config["engine_kwargs"]["enable_lora"], config["engine_kwargs"]["max_lora_rank"]) == (True, 32)


def test_prefill_and_decode_go_to_the_builder_for_pairs_with_a_transfer_on_both_sides() -> None:
    """Truth: PDServingArgs demands kv_transfer_config of both configs and one model id."""
    written = files(pair())
    (application,) = applications(written)
    assert application["import_path"] == "ray.serve.llm:build_pd_openai_app"
    assert set(application["args"]) == {"prefill_config", "decode_config"}
    prefill, decode = configs(written)
    assert prefill["model_loading_config"]["model_id"] == decode["model_loading_config"]["model_id"]
    for config in (prefill, decode):
        assert config["engine_kwargs"]["kv_transfer_config"]["kv_connector"] == "NixlConnector"
    sizes = [
        (c["deployment_config"]["num_replicas"], c["engine_kwargs"]["tensor_parallel_size"]) for c in (prefill, decode)
    ]
    assert sizes == [(2, 1), (3, 2)]


def test_attention_ranks_go_to_the_builder_that_counts_groups() -> None:
    split = Parallelism(tp=1, dp=8, ep=8)
    written = files(mixed(model="qwen3-30b-a3b", replicas=2, parallelism=split, max_running_requests=256))
    (application,) = applications(written)
    assert application["import_path"] == "ray.serve.llm:build_dp_openai_app" and set(application["args"]) == {
        "llm_config"
    }
    (config,) = configs(written)
    assert (
        config["engine_kwargs"]["data_parallel_size"] == 8 and config["engine_kwargs"]["enable_expert_parallel"] is True
    )
    assert config["deployment_config"]["num_replicas"] == 2 and "placement_group_config" not in config


def test_replicas_on_several_servers_are_spread_by_ray() -> None:
    (config,) = configs(files(mixed(parallelism=Parallelism(tp=8, pp=2))))
    assert (config["engine_kwargs"]["tensor_parallel_size"], config["engine_kwargs"]["pipeline_parallel_size"]) == (
        8,
        2,
    )
    assert "placement_group_config" not in config


@pytest.mark.parametrize("router", list(ROUTERS))
def test_requests_are_routed_as_planned(router: Router) -> None:
    (config,) = configs(files(mixed(router=router)))
    chosen = config["deployment_config"].get("request_router_config", {}).get("request_router_class", "")
    assert chosen == ROUTERS[router] and (not chosen or chosen.startswith("ray.serve."))


def test_accelerator_types_are_rays_and_skus_are_ours() -> None:
    assert set(ACCELERATORS) <= set(HARDWARE.skus)
    assert set(ACCELERATORS.values()) <= RAY_ACCELERATORS


def test_a_gpu_without_a_type_runs_anywhere_and_says_so() -> None:
    written = files(mixed(sku=HARDWARE.skus["rtx-4090"]))
    assert "accelerator_type" not in configs(written)[0]
    assert "no accelerator type for rtx-4090" in written["README.md"]


def test_several_deployments_are_applications_with_routes_of_their_own() -> None:
    one = launched(Deployment.mixed(on(), 2), traffic(), service="chat")
    found = applications(files(fleet(one, one)))
    assert [application["route_prefix"] for application in found] == ["/llm-01-chat", "/llm-02-chat"]
    assert len({application["name"] for application in found}) == 2
    assert applications(files(fleet(one)))[0]["route_prefix"] == "/"


@pytest.mark.parametrize("name", NASTY)
def test_names_of_users_stay_text(name: str) -> None:
    written = files(named(name))
    (config,) = configs(written)
    loading = config["model_loading_config"]
    assert name not in (loading["model_id"], loading["model_source"])
    assert re.fullmatch(r"[a-z0-9-]+", loading["model_id"]) and loading["model_source"].startswith(
        "SET-TO-A-CHECKPOINT"
    )
    assert "set `model_source`" in written["README.md"]


def test_weights_to_be_converted_are_asked_of_the_engine() -> None:
    (config,) = configs(files(mixed(model="opt-13b", precision=FP8)))
    assert (
        config["engine_kwargs"]["quantization"].startswith("fp8") and config["engine_kwargs"]["kv_cache_dtype"] == "fp8"
    )


@pytest.mark.parametrize(
    ("made", "named_in_text"),
    [
        (mixed("sglang"), "engine = 'SGLang'"),
        (pair("tensorrt-llm"), "engine = 'TensorRT-LLM'"),
        (mixed(router=Router.LEAST_TOKENS), "router = 'least_tokens'"),
        (mixed(router=Router.RANDOM), "router = 'random'"),
    ],
)
def test_what_ray_does_not_have_is_refused_by_name(made: Any, named_in_text: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=re.escape(named_in_text)) as refused:
        files(made)
    assert "Fix:" in str(refused.value)
