"""The best fleet of every other engine, beside the plan."""

from __future__ import annotations

from typing import Any

import pytest

from hardware_db import sku_words
from planner.fleet import Alternative, Plan, alternatives, plan
from planner.scenario import load_scenario
from tests.builders import ONE_GPU_REPLICAS
from tests.fleet.test_refinement import SLOW_ENOUGH

FEW: dict[str, Any] = {"max_batched_tokens": [2048], "max_running_requests": [64, 128]}


def scenario(*skus: str, **search: Any) -> dict[str, Any]:
    """Llama-3.1-8B at a steady rate."""
    return {
        "llm": "llama-3.1-8b",
        "precision": {"weights": "fp8", "activations": "fp8", "kv_cache": "fp8"},
        "workload": {"rate_per_s": 30.0, "lengths": {"input_tokens": 1000, "output_tokens": 200}},
        "slo": [{"metric": "tpot", "percentile": 0.99, "threshold_s": 0.03}],
        "search": {"skus": list(skus), "tp": [1], "modes": ["mixed"], **FEW} | search,
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


def test_fewer_bits_are_the_first_alternative_and_cost_what_asking_for_them_does() -> None:
    content = {**scenario("b200-sxm"), "llm": "qwen3-32b"}
    del content["precision"]
    found = by_theory(content, alternatives=True)
    assert found.cost is not None
    configs = [pool.config for planned in found.deployments for pool in planned.deployment.pools]
    assert {config.precision for config in configs} == {configs[0].llm.native_precision}
    first = found.alternatives[0]
    asked = by_theory({**content, "precision": "narrower"}, alternatives=True)
    assert asked.cost is not None and asked.cost.usd_per_hour < found.cost.usd_per_hour
    assert (first.kind, first.usd_per_hour) == ("format", pytest.approx(asked.cost.usd_per_hour))
    assert "NVFP4" in first.summary and "precision=narrower" in first.why_not and "accuracy" in first.why_not
    named = by_theory({**content, "precision": {"weights": "fp8", "activations": "fp8"}}, alternatives=True)
    assert all(one.kind != "format" for one in (*asked.alternatives, *named.alternatives))


def test_contexts_shared_out_are_an_alternative_to_long_prompts_alone() -> None:
    """They cost what asking for them does; short prompts, and those who say how contexts are held, are not asked."""
    content = scenario("h200-sxm", tp=[8], dp=[1], ep=[1], speculation=[None], calibrated=False)
    content["llm"] = "deepseek-r1"
    content["precision"] = {"weights": "fp8_block", "activations": "fp8", "kv_cache": "bf16"}
    content["workload"] = {"rate_per_s": 0.1, "lengths": {"input_tokens": 100_000, "output_tokens": 16_000}}
    content["slo"] = [{"metric": "tpot", "percentile": 0.95, "threshold_s": 0.1}]
    found = by_theory(content, alternatives=True)
    (shared,) = (one for one in found.alternatives if one.kind == "context")
    asked = by_theory({**content, "search": content["search"] | {"dcp": [1, 2, 4, 8]}}, alternatives=True)
    assert found.cost is not None and asked.cost is not None and shared.usd_per_hour is not None
    assert shared.usd_per_hour == pytest.approx(asked.cost.usd_per_hour)
    assert 2.0 * shared.usd_per_hour < found.cost.usd_per_hour
    assert "DCP8" in shared.summary and "search.dcp" in shared.why_not
    short = {**content, "workload": {"rate_per_s": 0.1, "lengths": {"input_tokens": 1000, "output_tokens": 16_000}}}
    none = (*asked.alternatives, *by_theory(short, alternatives=True).alternatives)
    assert all(one.kind != "context" for one in none)


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


def tied(*changes: str) -> Plan:
    request = load_scenario("chat-llama-70b", [*ONE_GPU_REPLICAS, *changes])
    return plan(request, simulate=False, alternatives=True)


def alternative(found: Plan, restriction: str) -> Alternative:
    return next(each for each in found.alternatives if each.restriction == restriction)


def test_an_alternative_that_costs_no_more_says_which_preference_passed_it_over() -> None:
    """Seven B200 in either mode (`test_refinement`): a pair falls behind by the preference for mixed replicas."""
    found = tied("search.skus=[b200-sxm]")
    pairs = alternative(found, "disaggregated")
    assert found.cost is not None and pairs.usd_per_hour == pytest.approx(found.cost.usd_per_hour)
    assert not pairs.is_chosen
    assert pairs.why_not == "mixed replicas are simpler to run than pairs of pools (search.simplicity)"
    assert all(not each.why_not for each in found.alternatives if each.is_chosen or each.usd_per_hour is None)


def test_a_cheaper_sku_that_was_not_measured_says_so_and_without_ties_it_is_the_plan() -> None:
    """MI300X has kernels lent by other GPUs, and is priced here a little below B200."""
    asked = (SLOW_ENOUGH, "search.modes=[mixed]", "workload.rate_per_s=36")
    alone = [
        tied(*asked, f"search.skus=[{sku}]", "search.simplicity=0", *prices)
        for sku, *prices in (("b200-sxm",), ("mi300x", "prices.usd_per_gpu_hour={mi300x: 1.0}"))
    ]
    measured, borrowed = (one.cost.usd_per_hour for one in alone if one.cost is not None)
    near = (
        *asked,
        "search.skus=[b200-sxm, mi300x]",
        f"prices.usd_per_gpu_hour={{mi300x: {0.985 * measured / borrowed}}}",
    )
    passed = alternative(tied(*near), "mi300x")
    assert passed.why_not == "step times of mi300x were not all measured (search.simplicity)"
    exact = tied(*near, "search.simplicity=0")
    assert all("search.simplicity" not in each.why_not for each in exact.alternatives)


def test_an_alternative_of_a_mode_is_the_fleet_that_a_plan_of_that_mode_is() -> None:
    """Of one SKU where that is a tie: cheapest are pairs of two, H100 for prompts and A100 for the rest."""
    content = scenario("h100-sxm", "a100-sxm-80gb", modes=["mixed", "disaggregated"])
    content["workload"]["rate_per_s"] = 100.0
    content["slo"] = [
        {"metric": "ttft", "percentile": 0.99, "threshold_s": 1.0},
        {"metric": "tpot", "percentile": 0.99, "threshold_s": 0.06},
    ]
    pairs = alternative(by_theory(content, alternatives=True), "disaggregated")
    alone = by_theory(content | {"search": {**content["search"], "modes": ["disaggregated"]}})
    assert alone.cost is not None and not pairs.is_bound
    assert pairs.usd_per_hour == pytest.approx(alone.cost.usd_per_hour)
    (sku,) = alone.gpus
    assert pairs.summary.count(sku_words(sku)) == 2 and " + " in pairs.summary


def test_an_alternative_that_takes_too_many_rounds_is_a_bound_that_names_no_fleet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = scenario("h100-sxm", "a100-sxm-80gb")
    exact = {each.restriction: each for each in by_theory(content, alternatives=True).alternatives}
    monkeypatch.setattr(alternatives, "MOST_ROUNDS", 0)
    hasty = {each.restriction: each for each in by_theory(content, alternatives=True).alternatives}
    undecided = [name for name, each in hasty.items() if each.summary == alternatives.UNDECIDED]
    assert undecided and exact.keys() == hasty.keys()
    for name in undecided:
        bound, cost = hasty[name].usd_per_hour, exact[name].usd_per_hour
        assert hasty[name].is_bound and bound is not None and cost is not None and bound <= cost
