"""Small deployments and requests that several test modules share."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import yaml

from hardware_db import Dtype, GpuSku, load_hardware, select_calibration
from planner.engine import ReplicaConfig
from planner.engine.weights import stage_weights_bytes
from planner.fleet import PlanRequest
from planner.llm import Precision, load_llm, pipeline_stages
from planner.roofline import Parallelism
from planner.scenario import load_scenario
from planner.serving import Deployment
from planner.workload import TokenLengths, Workload

YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""That of libyaml where PyYAML has it: twenty times as fast."""
HARDWARE = load_hardware()
H100 = HARDWARE.skus["h100-sxm"]
FP8 = Precision(weights=Dtype.FP8, activations=Dtype.FP8, kv_cache=Dtype.FP8)
CHAT = TokenLengths.from_pairs([200, 800, 2000, 400], [50, 150, 300, 600], [0.3, 0.4, 0.1, 0.2])


def replica(model: str = "llama-3.1-8b", sku: GpuSku = H100, tp: int = 1, **changes: Any) -> ReplicaConfig:
    """A replica with defaults for everything a test does not speak about."""
    split = changes.pop("parallelism", Parallelism(tp=tp))
    return ReplicaConfig(llm=load_llm(model), sku=sku, engine=HARDWARE.engines["vllm"], parallelism=split, **changes)


def weights_bytes_per_gpu(config: ReplicaConfig) -> float:
    """Bytes of weights on one GPU of the fullest stage of a pipeline."""
    stages = pipeline_stages(config.llm, config.parallelism.pp, config.engine.spare_layers)
    return max(stage_weights_bytes(config, stage) for stage in stages)


def calibrated(
    model: str = "llama-3.1-8b", sku: str = "h200-sxm", engine: str = "vllm", **changes: Any
) -> ReplicaConfig:
    """A replica predicted with the fits that ship for its SKU and engine."""
    return ReplicaConfig(
        llm=load_llm(model),
        sku=HARDWARE.skus[sku],
        engine=HARDWARE.engines[engine],
        calibration=select_calibration(HARDWARE, sku, engine),
        **changes,
    )


def mixed(replicas: int = 1, **changes: Any) -> Deployment:
    """A mixed deployment of Llama-3.1-8B on H100."""
    return Deployment.mixed(replica(**changes), replicas)


def disaggregated(replicas: tuple[int, int] = (1, 1), **changes: Any) -> Deployment:
    """A disaggregated deployment of Llama-3.1-8B on H100."""
    return Deployment.disaggregated(replica(**changes), replica(**changes), replicas)


def chat(rate_per_s: float, scv: float = 1.0) -> Workload:
    """A chat-like mix of four lengths."""
    return Workload.of(rate_per_s, CHAT, scv)


SMALL_CHAT = (
    "workload.drift=none",
    "confidence=0.5",
    "search.skus=[h100-sxm]",
    "search.modes=[mixed]",
    "search.tp=[8]",
    "search.max_running_requests=[256]",
    "search.max_batched_tokens=[2048]",
    "simulation.requests=500",
)
"""Overrides of the packaged chat-llama-70b with which it is planned in a second or two: few choices, and a fleet whose
targets hold so clearly that a short simulation shows it."""
ONE_GPU_REPLICAS = (
    "workload.drift=none",
    "confidence=0.5",
    "prices.granularity=gpu",
    "search.tp=[1]",
    "search.max_running_requests=[256]",
    "search.max_batched_tokens=[1024, 4096]",
)
"""Of the worked example at a steady rate: replicas of one GPU, few limits, GPUs bought singly."""


SMALL_SCENARIO: dict[str, Any] = {
    "name": "small",
    "llm": "llama-3.1-8b",
    "workload": {"rate_per_s": 20, "lengths": {"input_tokens": 1000, "output_tokens": 100}},
    "slo": [
        {"metric": "ttft", "percentile": 0.95, "threshold_s": 1.0},
        {"metric": "tpot", "percentile": 0.95, "threshold_s": 0.05},
    ],
    "search": {
        **{"skus": ["h100-sxm"], "modes": ["mixed"], "tp": [1], "calibrated": False},
        **{"max_running_requests": [64], "max_batched_tokens": [2048]},
    },
    "prices": {"as_of": "2026-11-21", "usd_per_gpu_hour": {"h100-sxm": 2.0, "a100-sxm-80gb": 1.0}},
    "simulation": {"requests": 300},
    "confidence": 0.5,
}
"""A scenario that is planned in a moment, at 2 USD a GPU and hour."""


def with_changes(content: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A scenario with other values at dotted paths."""
    changed = copy.deepcopy(dict(content))
    for path, value in changes.items():
        *way, last = path.split(".")
        place: Any = changed
        for name in way:
            place = place[int(name) if isinstance(place, list) else name]
        place[int(last) if isinstance(place, list) else last] = value
    return changed


def small_request(**changes: Any) -> PlanRequest:
    """A plan over two SKUs that is searched in a fraction of a second."""
    content: dict[str, Any] = {
        "name": "small",
        "llm": "llama-3.1-8b",
        "workload": {"rate_per_s": 30.0, "lengths": {"input_tokens": 800, "output_tokens": 150}},
        "slo": [
            {"metric": "ttft", "percentile": 0.95, "threshold_s": 0.5},
            {"metric": "tpot", "percentile": 0.95, "threshold_s": 0.03},
        ],
        "search": {
            "skus": ["h100-sxm", "a100-sxm-80gb"],
            "tp": [1, 2],
            "max_batched_tokens": [1024, 4096],
            "max_running_requests": [128],
            "calibrated": False,
        },
        "prices": {"as_of": "2026-11-21"},
        "simulation": {"requests": 1500},
        "confidence": 0.5,
    }
    for key, value in changes.items():
        content[key] = {**content[key], **value} if isinstance(value, dict) and key in content else value
    return load_scenario(content)
