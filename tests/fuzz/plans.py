"""Whole plans from a seed: a scenario of ordinary and extreme parts, planned and simulated, and held to what must hold.

A case is one number. It draws a scenario whose parts go together, damages a third of them as the readers' seeds are
damaged, and ends in an answer, a named refusal or a named infeasibility.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planner.core import Metric, json_text
from planner.engine import memory_footprint
from planner.fleet import Plan, plan
from planner.report import plan as plan_report
from planner.report import plan_summary, plan_to_dict
from planner.scenario import load_scenario, scenario_of_text
from planner.serving import Performance
from tests.builders import HARDWARE
from tests.fuzz.mutations import Mutation, mutated_tree

PROBABILITIES = (0.01, 0.5, 0.9, 0.95, 0.99, 0.999)
ROUNDING = 1e-6
"""Relative; sums of floats, and the tolerance of the solver."""
LLMS = (
    *("llama-3.1-8b",) * 4,
    *("qwen3-32b", "llama-3.3-70b-instruct", "phi-4", "qwen3-30b-a3b"),
    *("gpt-oss-20b", "mixtral-8x7b-v0.1", "deepseek-v3"),
)
SKUS = ("h100-sxm",) * 3 + ("h200-sxm", "l40s", "a100-sxm-80gb", "b200-sxm", "mi300x", "l4", "t4", "gaudi2", "tpu-v5e")
TOKENS = (*(1, 2, 16, 100, 200, 500, 1000, 2000, 4000) * 3, 20_000, 120_000)
PRESETS = ("azure-2023-conv", "azure-2023-code", "servegen-deepseek-r1")


def drawn(seed: int) -> dict[str, Any] | str:
    """A scenario; as damaged JSON text in one case of three."""
    chance = random.Random(seed)
    content = {name: part(chance) for name, part in _PARTS.items()} | _extras(chance)
    if chance.random() < 1 / 3:
        return mutated_tree(content, [Mutation.drawn(chance) for _ in range(chance.randint(1, 2))])
    return content


def outcome(seed: int) -> str:
    """What came of a case: "planned" or "infeasible". Raises PlannerError where it is refused, and what is broken."""
    content = drawn(seed)
    if isinstance(content, str):
        content = scenario_of_text(content).model_dump(mode="json", exclude_unset=True)
    found = plan(load_scenario(content), HARDWARE, alternatives=seed % 10 == 0)
    check(found)
    return "planned" if found.feasible else "infeasible"


# --- what is drawn ----------------------------------------------------------------------------------------------------


def _loguniform(chance: random.Random, low: float, high: float) -> float:
    return float(f"{math.exp(chance.uniform(math.log(low), math.log(high))):.3g}")


def _rate(chance: random.Random) -> float:
    if chance.random() < 0.1:
        return chance.choice([1e-9, 1e-6, 1e5, 1e9])
    return _loguniform(chance, 0.01, 300.0)


def _lengths(chance: random.Random) -> Any:
    if chance.random() < 0.04:
        return chance.choice(PRESETS)
    if chance.random() < 0.3:
        cells = [[chance.choice(TOKENS), chance.choice(TOKENS), chance.choice([0.01, 1, 5])] for _ in range(3)]
        return {"cells": cells}
    return {"input_tokens": chance.choice(TOKENS), "output_tokens": chance.choice(TOKENS)}


def _workload(chance: random.Random) -> dict[str, Any]:
    content: dict[str, Any] = {"rate_per_s": _rate(chance), "scv": chance.choice([1, 1, 1, 0, 0.1, 4, 50, 1000])}
    if chance.random() < 0.2:
        shares = chance.choice([(0.5, 0.5), (0.99, 0.01), (1e-6, 1 - 1e-6)])
        content["classes"] = [
            {"name": f"c{place}", "share": share, "lengths": _lengths(chance), "priority": chance.choice([0, 1])}
            for place, share in enumerate(shares)
        ]
    else:
        content["lengths"] = _lengths(chance)
        if chance.random() < 0.2:
            content["prefix_hit_rate"] = chance.choice([0.1, 0.9, 0.999])
    if chance.random() < 0.15:
        content["batch_mean"] = chance.choice([1.5, 8, 64])
    if chance.random() < 0.1:
        content["drift"] = chance.choice([{"cv": 0.2, "correlation_time_s": 600}, "azure-2023-conv", "none"])
    return content


def _slo(chance: random.Random) -> list[dict[str, Any]]:
    targets = []
    for metric in chance.sample(["ttft", "tpot", "e2e", "itl"], chance.choice([1, 2, 2, 3])):
        percentile = chance.choice([0.5, 0.9, 0.95, 0.99, 0.99, 0.999])
        longest = {"ttft": 5.0, "tpot": 0.2, "e2e": 200.0, "itl": 0.5}[metric]
        threshold = _loguniform(chance, longest / 50, 2 * longest)
        targets.append({"metric": metric, "percentile": percentile, "threshold_s": threshold})
    return targets


def _search(chance: random.Random) -> dict[str, Any]:
    content: dict[str, Any] = {
        "skus": sorted(set(chance.choices(SKUS, k=chance.choice([1, 1, 2])))),
        "modes": chance.choice([["mixed"], ["mixed"], ["disaggregated"], ["mixed", "disaggregated"]]),
        "tp": chance.choice([[1], [2], [4], [8], [1, 2]]),
        "max_running_requests": [chance.choice([1, 8, 64, 256])],
        "max_batched_tokens": [chance.choice([256, 2048, 8192])],
        "engine": chance.choice(["vllm", "vllm", "sglang", "tensorrt-llm"]),
    }
    rare: dict[str, Sequence[Any]] = {
        "pp": [[1], [2]],
        "prefix_cache": [[True], [False]],
        "calibrated": [False],
        "pair_skus": [False],
        "measured_only": [True],
        "simplicity": [0, 1],
        "router": ["random", "least_requests", "power_of_two", "least_tokens"],
    }
    return content | _some(chance, rare, 0.12)


def _some(chance: random.Random, rare: Mapping[str, Sequence[Any]], share: float) -> dict[str, Any]:
    return {name: chance.choice(values) for name, values in rare.items() if chance.random() < share}


_PARTS: Mapping[str, Callable[[random.Random], Any]] = {
    "llm": lambda chance: chance.choice(LLMS),
    "workload": _workload,
    "slo": _slo,
    "search": _search,
    "simulation": lambda chance: {"requests": chance.choice([100, 200, 400]), "seed": chance.choice([0, 7])},
    "confidence": lambda chance: chance.choice([0.5, 0.5, 0.5, 0.9, 0.999]),
}


def _extras(chance: random.Random) -> dict[str, Any]:
    sku = chance.choice(SKUS)
    rare: dict[str, Sequence[Any]] = {
        "objective": ["max_rate", "max_rate_per_cost"],
        "limits": [
            {"budget_usd_per_hour": chance.choice([0.01, 5, 50, 1e9])},
            {"gpus": {sku: chance.choice([0, 1, 8, 10**6])}},
            {"power_kw": chance.choice([0.1, 5, 1e6])},
            {"spare_replicas": 1},
            {"replicas_at_least": 2},
            {"survives_node_loss": True},
            {"pinned": {sku: 1}},
            {"forbidden": [sku]},
        ],
        "prices": [
            {"usd_per_gpu_hour": {sku: chance.choice([1e-9, 0.5, 100, 1e9])}},
            {"granularity": chance.choice(["gpu", "node"])},
            {"commitments": ["reserved_1yr"]},
            {"commitments": ["on_demand", "spot"], "spot": {"interruptions_per_hour": 0.05, "recovery_s": 300}},
            {"owned": {sku: {"capex_usd_per_gpu": chance.choice([0, 25_000]), "count": chance.choice([1, 16])}}},
        ],
        "profile": [
            {"factors": [0.2, 1.0, 1.7]},
            {"factors": [0, 1]},
            {"factors": [1], "cold_start_s": 600},
            "azure-2024-conv-day",
        ],
        "precision": [{"weights": "fp8", "activations": "fp8"}, {"weights": "int4"}, {"kv_cache": "fp8"}],
        "growth": [0.01, 1.5, 100],
        "attainment": [0.9, 0.999],
        "split": [{"input_tokens": [1000]}, {"output_tokens": [100]}],
        "by_class": [True],
        "offline": [[{"name": "batch", "lengths": _lengths(chance), "requests_per_hour": chance.choice([1, 1e4])}]],
        "services": [[{"name": "two", "llm": "llama-3.1-8b", "workload": _workload(chance), "slo": _slo(chance)}]],
        "max_request_tokens": [10, 8192, 10**6],
    }
    return _some(chance, rare, 0.08)


# --- what must hold ---------------------------------------------------------------------------------------------------


def check(found: Plan) -> None:
    """Raise AssertionError where a plan says what cannot be."""
    text = json_text(plan_to_dict(found))
    json.loads(text)
    for report in (plan_report.report(found), plan_summary.summary(found)):
        cells = " ".join(cell for table in report.tables for row in table.rows for cell in row)
        assert not re.search(r"\bnan\b", cells, re.IGNORECASE), "a number that is none"
    if not found.feasible:
        assert found.diagnosis or found.rejections, "infeasible without a reason"
        return
    for planned in found.deployments:
        for performance in (planned.predicted, *([planned.simulated] if found.simulated else [])):
            check_performance(performance)
        assert planned.predicted.stable, "a fleet whose queues grow"
        for pool in planned.deployment.pools:
            held = memory_footprint(pool.config)
            most = pool.config.sku.hbm_capacity_bytes.value
            used = held.weights_bytes + held.activation_bytes + held.kv_capacity_bytes
            assert held.fits and used <= most * (1 + ROUNDING), f"{used:.4g} of {most:.4g} bytes"
    _check_money(found)
    _check_targets(found)


def _check_money(found: Plan) -> None:
    cost = found.cost
    assert cost is not None
    total = math.fsum(bought.usd_per_hour for bought in found.bought)
    assert math.isclose(cost.usd_per_hour, total, rel_tol=ROUNDING, abs_tol=1e-9), (cost.usd_per_hour, total)
    held: dict[str, float] = {}
    for bought in found.bought:
        if not found.schedule:
            expected = bought.gpus[0] * bought.usd_per_gpu_hour
            assert math.isclose(bought.usd_per_hour, expected, rel_tol=ROUNDING), "cost that is not GPUs x price"
        held[bought.sku] = held.get(bought.sku, 0.0) + max(bought.gpus)
    assert all(count <= held.get(sku, 0.0) + ROUNDING for sku, count in found.gpus.items()), "GPUs that nobody bought"
    limits = found.request.limits
    if limits.budget_usd_per_hour is not None:
        assert cost.usd_per_hour <= limits.budget_usd_per_hour * (1 + ROUNDING), "over the budget"
    assert all(found.gpus.get(sku, 0) <= most for sku, most in limits.gpus.items()), "more GPUs than there are"


def _check_targets(found: Plan) -> None:
    cost = found.cost
    assert cost is not None
    asked = sum(planned.workload.rate_per_s for planned in found.deployments)
    assert 0.0 <= cost.goodput_per_s <= asked * (1 + ROUNDING), (cost.goodput_per_s, asked)
    warned = " ".join(found.warnings)
    for checked in found.targets:
        assert not math.isnan(checked.predicted_s) and not math.isnan(checked.simulated_s)
        assert 0.0 <= checked.simulated_attainment <= 1.0 + ROUNDING, checked.simulated_attainment
        assert checked.met or f"{checked.target.name}: simulated" in warned, f"{checked.target.name} misses, unsaid"
    if found.confidence is not None:
        assert 0.0 <= found.confidence.holds <= 1.0


def check_performance(found: Performance) -> None:
    """Raise AssertionError where latencies and loads say what cannot be."""
    for metric in Metric:
        distribution = found.distribution(metric)
        points = [distribution.quantile_s(probability) for probability in PROBABILITIES]
        assert all(point >= 0.0 for point in points), f"{metric}: {points}"  # NaN is not
        assert points == sorted(points), f"{metric}: percentiles out of order: {points}"
        assert distribution.mean_s >= 0.0
        assert not found.stable or math.isfinite(distribution.mean_s), f"{metric} of a stable deployment is unbounded"
    if found.stable:
        assert found.e2e.mean_s >= found.ttft.mean_s * (1 - ROUNDING), "an answer that ends before it starts"
    for pool in found.pools:
        assert pool.utilisation >= 0.0 and 0.0 <= pool.kv_occupancy <= 1.0 + ROUNDING, pool
