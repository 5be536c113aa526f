"""The way out: every proposal is made, and must lead to a plan; what it says must be what it does."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import pytest

import planner
from planner.analysis import PlanOutcome, Replanner, SmallestRelaxation
from planner.analysis.why import smallest_relaxations
from planner.core import PlannerError
from planner.fleet import Plan
from planner.scenario import (
    CompletedFix,
    Content,
    Fix,
    fixes,
    fixes_for_error,
    full_content,
    limit_in_words,
    read_scenario,
)
from planner.scenario.request_fixes import complete_fix, fix_from_relaxation, infeasibility_reason, rounded_up
from tests.builders import SMALL_CHAT, with_changes

NO_FLEET = {
    "target": ["slo.0.threshold_s=0.02"],
    "budget": ["limits.budget_usd_per_hour=5"],
    "GPUs": ["limits.gpus={h100-sxm: 2}"],
    "no GPUs": ["limits.gpus={h100-sxm: 0}"],
    "power": ["limits.power_kw=2"],
    "pin and budget": ["limits.pinned={h100-sxm: 100}", "limits.budget_usd_per_hour=100"],
    "quota": ["limits.quotas=[{sku: h100-sxm, gpus: 2}]"],
    "memory": ["search.tp=[1]", "precision={weights: bf16, activations: bf16, kv_cache: bf16}"],
    "forbidden": ["limits.forbidden=[h100-sxm]"],
    "no price": ["search.skus=[mi325x]", "prices.min_confidence=high"],
    "least rate": ["objective=max_rate", "limits.budget_usd_per_hour=2"],
}


def content_of(overrides: list[str]) -> Content:
    return full_content(read_scenario("chat-llama-70b", [*SMALL_CHAT, *overrides])[0])


def planned(content: Content) -> Plan:
    return planner.plan(planner.load_scenario(content), simulate=False, alternatives=False)


@functools.cache
def without_fleet(name: str) -> tuple[Content, Plan]:
    content = content_of(NO_FLEET[name])
    return content, planned(content)


@functools.cache
def way_out(name: str) -> tuple[CompletedFix, Mapping[str, Any]]:
    """The first fix, worked out, and the changes whose plan was found feasible."""
    content, plan = without_fleet(name)
    asked: list[Mapping[str, Any]] = []

    def solve(changes: Mapping[str, Any]) -> Plan:
        asked.append(changes)
        return planned(with_changes(content, changes))

    assert not plan.feasible
    found = complete_fix(fixes(plan)[0], solve)
    assert found is not None
    return found, asked[-1]


@pytest.mark.parametrize("name", NO_FLEET)
def test_the_first_fix_leads_to_a_fleet(name: str) -> None:
    found, solved = way_out(name)
    assert found.plan.feasible
    assert set(found.fix.changes) == set(solved)
    assert found.fix.changes == solved or "limits.gpus" in solved
    said = infeasibility_reason(without_fleet(name)[1])  # a sentence without names of the program
    assert said.endswith(".")
    assert not any(word in said for word in ("__", "serve_demand", "within_", "slices[", "resources["))


@pytest.mark.parametrize("name", ["target", "budget", "power", "forbidden", "memory", "quota"])
def test_where_one_thing_stands_in_the_way_the_first_fix_needs_no_other(name: str) -> None:
    assert way_out(name)[0].fix.changes == fixes(without_fleet(name)[1])[0].changes


def test_a_feasible_plan_needs_no_fix() -> None:
    plan = planned(content_of([]))
    assert fixes(plan) == ()
    assert infeasibility_reason(plan) == ""


def test_the_budget_needed_is_what_the_cheapest_fleet_costs() -> None:
    free = planned(content_of([]))
    _, plan = without_fleet("budget")
    (fix,) = fixes(plan)
    assert free.cost is not None
    assert fix.changes["limits.budget_usd_per_hour"] == rounded_up(free.cost.usd_per_hour, 3)


def test_a_lifted_limit_of_gpus_comes_back_as_what_is_used() -> None:
    found, _ = way_out("GPUs")
    assert found.fix.changes["limits.gpus"] == found.plan.gpus
    assert str(found.plan.gpus["h100-sxm"]) in found.fix.text
    again = planned(with_changes(without_fleet("GPUs")[0], found.fix.changes))
    assert again.gpus == found.plan.gpus


def test_a_loosened_target_lies_above_the_idle_latency() -> None:
    _, plan = without_fleet("target")
    (rejection,) = plan.rejections
    loosened = [fix.changes["slo.0.threshold_s"] for fix in fixes(plan) if "slo.0.threshold_s" in fix.changes]
    assert len(loosened) == 2
    assert all(threshold_s > rejection.ratio * 0.02 for threshold_s in loosened)


def test_a_fix_that_leads_nowhere_is_not_worked_out() -> None:
    content, plan = without_fleet("memory")
    hopeless = Fix("more of the same", {"search.tp": [1]})
    assert complete_fix(hopeless, lambda _: plan) is None
    refused = Fix("a mistake", {"search.tp": [0]})
    assert complete_fix(refused, lambda changes: planned(with_changes(content, changes))) is None


@pytest.mark.parametrize("name", ["forbidden", "no GPUs"])
def test_smallest_relaxations_become_changes_that_help(name: str) -> None:
    content, plan = without_fleet(name)
    found = [fix for one in smallest_relaxations(plan, Replanner()) if (fix := fix_from_relaxation(one)) is not None]
    assert found
    for fix in found:
        assert planned(with_changes(content, fix.changes)).feasible, fix


def test_relaxations_are_rounded_to_the_looser_side() -> None:
    there = PlanOutcome("optimal", "", usd_per_hour=1.0)
    less = fix_from_relaxation(SmallestRelaxation("demand", "workload.rate_per_s", "requests/s", 40.0, 31.267, there))
    more = fix_from_relaxation(SmallestRelaxation("p99 TTFT", "slo.0.threshold_s", "s", 0.02, 0.28041, there))
    pieces = fix_from_relaxation(SmallestRelaxation("most h20", "limits.gpus.h20", "GPUs", 2.0, 7.0, there))
    assert less is not None and less.changes == {"workload.rate_per_s": 31.2}
    assert more is not None and more.changes == {"slo.0.threshold_s": 0.281}
    assert pieces is not None and pieces.changes == {"limits.gpus.h20": 7}
    hopeless = SmallestRelaxation("budget", "limits.budget_usd_per_hour", "USD/h", 5.0, None, None)
    assert fix_from_relaxation(hopeless) is None


def test_rounding_up_never_goes_below_and_at_most_one_step_above() -> None:
    for value in (1.0, 0.2804, 70.9728, 999.5, 0.001001, 31.0, 24.0):
        for digits in (2, 3):
            rounded = rounded_up(value, digits)
            step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
            assert value <= rounded + 1e-12 <= value + step * (1.0 + 1e-9) + 1e-12
    assert rounded_up(-31.26, 3) == -31.2


def test_limits_are_said_in_words() -> None:
    request = planner.load_scenario(content_of([]))
    assert limit_in_words("budget_usd_per_hour", 5.0, request) == "the budget of 5.00 USD/h"
    assert limit_in_words("resources[h100-sxm].at_most", 2.0, request) == "at most 2 × H100 SXM"
    assert limit_in_words("slices[llama-3.3-70b-instruct].demand_per_s", 40.0, request).startswith("the demand of 40 ")


# --- bad input --------------------------------------------------------------------------------------------------------

BAD: dict[str, dict[str, Any]] = {
    "no SKU": {"search.skus": []},
    "no mode": {"search.modes": []},
    "no way of buying": {"prices.commitments": []},
    "unknown SKU": {"search.skus": ["h100-sxmm"]},
    "unknown SKU in limits": {"limits.gpus": {"h100-sxmm": 3}},
    "unknown model": {"llm": "llama-3.3-70b-instrukt"},
    "unknown lengths": {"workload.lengths": "azure-2023-con"},
    "constant lengths": {"workload.lengths": {"input_tokens": 200_000, "output_tokens": 100}},
    "scaled lengths": {"workload.lengths": {"preset": "azure-2023-conv", "mean_input_tokens": 100_000}},
    "cells": {"workload.lengths": {"cells": [[200_000, 100, 1.0], [10, 10, 1.0]]}},
    "number format": {"precision.weights": "nf4"},
    "spot": {"prices.commitments": ["spot"]},
    "CO2": {"limits.co2_kg_per_hour": 3},
    "pinned and forbidden": {"limits.pinned": {"h100-sxm": 2}, "limits.forbidden": ["h100-sxm"]},
}


@pytest.mark.parametrize("name", BAD)
def test_every_fix_of_bad_input_makes_it_good(name: str) -> None:
    content = with_changes(content_of(["search.tp=[8]"]), BAD[name])

    def error_of(given: Content) -> PlannerError | None:
        try:
            request = planner.load_scenario(given)
            planner.fleet.planning.market_of(request, planner.fleet.planning.hardware_for(request))
        except PlannerError as error:
            return error
        return None

    error = error_of(content)
    assert error is not None
    found = fixes_for_error(error, content)
    assert found, error
    for fix in found:
        assert error_of(with_changes(content, fix.changes)) is None, fix


def test_what_nobody_can_mend_has_no_fix() -> None:
    content = content_of([])
    assert fixes_for_error(PlannerError("workload.rate_per_s", -1, "must be > 0"), content) == ()


@pytest.mark.parametrize(("engine", "more"), [("sglang", {}), ("vllm", {"search.more_engines": ["sglang"]})])
def test_long_prompts_that_come_too_late_may_be_shared_out(engine: str, more: dict[str, Any]) -> None:
    """100,000 tokens into DeepSeek-V3.2 within 12 s: eight H200 by heads take 22, eight that share prompts out 6."""
    long = [
        *("llm=deepseek-v3.2", f"search.engine={engine}", "search.skus=[h200-sxm]", "workload.rate_per_s=0.1"),
        *("workload.lengths={input_tokens: 100000, output_tokens: 100}", "workload.scv=1", "limits={}"),
        *("search.tp=[1, 8]", "search.pp=[1]", "search.dp=[1]", "search.ep=[8]", "search.modes=[disaggregated]"),
        *("search.max_batched_tokens=[16384]", "slo=[{metric: ttft, percentile: 0.5, threshold_s: 12}]"),
    ]
    content = content_of(long)
    none = planned(content)
    assert not none.feasible
    (share,) = (fix for fix in fixes(none) if "search.pcp" in fix.changes)
    assert share.changes == {"search.pcp": [1, 8], **more}
    found = planned(with_changes(content, share.changes))
    assert found.feasible
    assert found.deployments[0].deployment.pools[0].config.parallelism.pcp == 8
