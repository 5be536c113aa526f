"""How long the simulator takes: `pytest tests/benchmarks --benchmark-enable --benchmark-only`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hardware_db import load_hardware, select_calibration
from planner.engine import ReplicaConfig, Schedule, Speculation
from planner.llm import load_llm
from planner.roofline import Parallelism
from planner.serving import Deployment
from planner.simulator import simulate
from planner.workload import SharedPrefixes, TokenLengths, Workload
from tests.builders import calibrated

AZURE_CHAT_MEAN_INPUT = 1155  # Azure LLM inference trace 2023, conversation (Patel et al. 2024, Splitwise)
AZURE_CHAT_MEAN_OUTPUT = 211


def azure_like() -> TokenLengths:
    """Log-normal lengths with the means of the trace."""
    rng = np.random.default_rng(1)
    inputs = rng.lognormal(np.log(AZURE_CHAT_MEAN_INPUT) - 0.405, 0.9, 20_000)
    outputs = rng.lognormal(np.log(AZURE_CHAT_MEAN_OUTPUT) - 0.32, 0.8, 20_000)
    return TokenLengths.from_pairs(inputs.clip(1, 8000).astype(int), outputs.clip(1, 2000).astype(int))


def llama_70b(sku: str) -> ReplicaConfig:
    db = load_hardware()
    return ReplicaConfig(
        llm=load_llm("llama-3.3-70b-instruct"),
        sku=db.skus[sku],
        engine=db.engines["vllm"],
        parallelism=Parallelism(tp=2),
    )


@pytest.mark.parametrize("rate_per_s", [5.0, 50.0, 100.0])
def test_bench_hundred_thousand_requests(benchmark: Any, rate_per_s: float) -> None:
    """100 000 requests like those of the trace over 8 replicas, at its own rate (19 366 an hour), 10 and 20 times."""
    db = load_hardware()
    replica = ReplicaConfig(
        llm=load_llm("llama-3.1-8b"),
        sku=db.skus["h100-sxm"],
        engine=db.engines["vllm"],
        max_batched_tokens=2048,
        calibration=select_calibration(db, "h100-sxm", "vllm"),
    )
    count = 100_000 if benchmark.enabled else 1_000
    deployment, workload = Deployment.mixed(replica, 8), Workload.of(rate_per_s, azure_like())
    result = benchmark.pedantic(simulate, (deployment, workload), {"requests": count, "warmup_fraction": 0.0}, rounds=1)
    assert result.requests == count


@pytest.mark.parametrize("feature", ["plain", "prefixes", "drafts"])
def test_bench_replicas_that_share_prefixes_or_draft(benchmark: Any, feature: str) -> None:
    """10 000 requests over 4 replicas: nothing to share, 3,000 tokens of 20 prefixes, two drafted tokens a step."""
    prefixes = SharedPrefixes(tokens=3000, groups=20) if feature == "prefixes" else None
    config = calibrated(
        "llama-3.1-8b",
        own_schedule=Schedule(prefix_cache=feature == "prefixes", reserve_outputs=False),
        speculation=Speculation(draft_tokens=2, acceptance=0.7, draft_cost=0.05) if feature == "drafts" else None,
    )
    workload = Workload.of(10.0, TokenLengths.constant(4000, 200))
    (kind,) = workload.classes
    workload = workload.model_copy(update={"classes": (kind.model_copy(update={"prefixes": prefixes}),)})
    count = 10_000 if benchmark.enabled else 500
    result = benchmark.pedantic(simulate, (Deployment.mixed(config, 4), workload), {"requests": count}, rounds=3)
    assert result.requests > count // 2


@pytest.mark.parametrize("sku", ["h100-sxm", "h200-sxm"])
def test_bench_mixed(benchmark: Any, sku: str) -> None:
    """4000 requests at 40/s over 6 replicas: the H100s are short of KV cache, the H200s are not."""
    deployment, workload = Deployment.mixed(llama_70b(sku), 6), Workload.of(40.0, azure_like())
    assert benchmark(simulate, deployment, workload).requests == 3600
