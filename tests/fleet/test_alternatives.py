"""The best fleet of every other engine, beside the plan."""

from __future__ import annotations

from typing import Any

import pytest

from planner.fleet import Plan, plan
from planner.scenario import load_scenario


def scenario(*skus: str, **search: Any) -> dict[str, Any]:
    """Llama-3.1-8B at a steady rate."""
    return {
        "llm": "llama-3.1-8b",
        "precision": {"weights": "fp8", "activations": "fp8", "kv_cache": "fp8"},
        "workload": {"rate_per_s": 30.0, "lengths": {"input_tokens": 1000, "output_tokens": 200}},
        "slo": [{"metric": "tpot", "percentile": 0.99, "threshold_s": 0.03}],
        "search": {"skus": list(skus), "tp": [1], "modes": ["mixed"], **search},
        "prices": {"as_of": "2026-11-21"},
        "confidence": 0.5,
    }


def by_theory(content: dict[str, Any], alternatives: bool = False) -> Plan:
    return plan(load_scenario(content), simulate=False, alternatives=alternatives)


def test_another_engine_costs_what_planning_with_it_finds() -> None:
    """On the SKUs of the plan: the same question with the engine changed is the outside truth."""
    found = by_theory(scenario("h100-sxm", "a100-sxm-80gb"), alternatives=True)
    assert found.cost is not None
    engines = {each.restriction: each for each in found.alternatives if each.kind == "engine"}
    assert set(engines) == {"sglang", "tensorrt-llm"}
    for name, alternative in engines.items():
        own = by_theory(scenario(*found.gpus, engine=name))
        assert own.cost is not None and alternative.usd_per_hour is not None
        if alternative.is_bound:
            assert found.cost.usd_per_hour < alternative.usd_per_hour <= own.cost.usd_per_hour
        else:
            assert alternative.usd_per_hour == pytest.approx(own.cost.usd_per_hour)


@pytest.mark.parametrize(
    ("sku", "search", "engines"),
    [
        ("mi300x", {}, {"sglang"}),  # TensorRT-LLM does not run on it
        ("h100-sxm", {"more_engines": ["sglang"]}, {"tensorrt-llm"}),  # the one that was searched is in the plan
        ("h100-sxm", {"calibrated": False}, set()),  # datasheets know no engine
    ],
)
def test_engines_are_compared_where_their_kernels_were_measured(
    sku: str, search: dict[str, Any], engines: set[str]
) -> None:
    found = by_theory(scenario(sku, **search), alternatives=True)
    assert found.feasible
    assert {each.restriction for each in found.alternatives if each.kind == "engine"} == engines


def test_other_engines_are_compared_beside_gpus_that_have_to_be_bought_and_do_not_serve() -> None:
    """The pinned H100 idle beside A100 that serve: every other engine pays for them too."""
    content = scenario("a100-sxm-80gb", "h100-sxm")
    content["prices"] |= {"usd_per_gpu_hour": {"a100-sxm-80gb": 0.1, "h100-sxm": 30.0}}
    pinned = by_theory(content | {"limits": {"pinned": {"h100-sxm": 1}}}, alternatives=True)
    assert pinned.feasible
    costs = {each.restriction: each.usd_per_hour for each in pinned.alternatives if each.kind == "engine"}
    assert costs and all(cost is not None and cost >= 30.0 for cost in costs.values())


def test_a_mode_is_compared_after_what_a_sku_before_it_taught() -> None:
    """Looking at one SKU gives pools their true rates, and the mode is then looked at with these; planning for that
    mode alone costs no less."""
    skus = {"a100-sxm-80gb": 1.6, "b200-sxm": 6.0, "h200-sxm": 3.4518, "rtx-pro-6000-blackwell-server": 1.85}
    limits = {"max_running_requests": [64, 256], "max_batched_tokens": [1024, 2048, 8192]}
    content = scenario(*skus, modes=["mixed", "disaggregated"], **limits)
    del content["search"]["tp"]
    content |= {
        "precision": {"weights": "bf16", "activations": "bf16", "kv_cache": "bf16"},
        "workload": {
            "rate_per_s": 60.2,
            "lengths": {"input_tokens": 512, "output_tokens": 256},
            "drift": {"cv": 0.2, "correlation_time_s": 600.0},
        },
        "slo": [
            {"metric": "ttft", "percentile": 0.95, "threshold_s": 0.5},
            {"metric": "tpot", "percentile": 0.95, "threshold_s": 0.08},
        ],
        "prices": {"as_of": "2026-11-21", "usd_per_gpu_hour": skus},
    }
    found = by_theory(content, alternatives=True)
    (pairs,) = (each for each in found.alternatives if each.restriction == "disaggregated")
    alone = by_theory(content | {"search": {**content["search"], "modes": ["disaggregated"]}})
    assert alone.cost is not None and pairs.usd_per_hour is not None
    assert pairs.usd_per_hour <= alone.cost.usd_per_hour * 1.01
