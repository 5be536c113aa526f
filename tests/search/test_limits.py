"""Limits that nobody named reach as far as they can matter and no further, and what is offered can be started."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from hardware_db import Dtype, EngineFeature, select_calibration
from planner.core import Metric, PlannerError
from planner.engine import ReplicaConfig, memory_footprint, one_request_room_tokens
from planner.engine.footprint import start_probability
from planner.fleet import plan
from planner.launch import launch_specs
from planner.launch.flags import rows_of
from planner.launch.fleet import Fleet, LaunchedDeployment
from planner.llm import load_llm, published_precisions
from planner.scenario import load_scenario
from planner.search import Capacity, Demand, FamilySet, Mode, Offer, SearchSpace, find_families
from planner.search.limits import LEAST_BUDGET, LEAST_RUNNING, USUAL_BUDGET, chunk_budgets, largest_budget
from planner.search.splits import NOT_STARTED
from planner.serving import Deployment, Role
from planner.workload import LatencyTarget, RequestClass, SharedPrefixes, Slo, TokenLengths, Workload
from tests.builders import HARDWARE

SLACK = Slo(
    targets=(
        LatencyTarget(metric=Metric.TTFT, percentile=0.99, threshold_s=5.0),
        LatencyTarget(metric=Metric.TPOT, percentile=0.99, threshold_s=0.1),
    )
)
"""Targets that hardly bind."""


def demand(model: str = "llama-3.1-8b", prompt: int = 1000, prefixes: SharedPrefixes | None = None) -> Demand:
    """Requests of one length."""
    llm = load_llm(model)
    kind = RequestClass(lengths=TokenLengths.constant(prompt, 200), prefixes=prefixes)
    workload = Workload(arrivals=Workload.of(5.0, kind.lengths).arrivals, classes=(kind,))
    return Demand(llm, llm.native_precision, workload, SLACK, published=published_precisions(llm))


def found(asked: Demand, sku: str = "h200-sxm", engine: str = "vllm", **given: Any) -> FamilySet:
    """Families on one SKU with one engine."""
    space = SearchSpace(skus=(sku,), engine=engine, **given)
    offer = Offer(HARDWARE.skus[sku], {engine: select_calibration(HARDWARE, sku, engine)})
    return find_families(asked, space, [offer], HARDWARE.engines)


@pytest.mark.parametrize(("prompt", "most"), [(100, USUAL_BUDGET), (20_000, 32_768), (100_000, 65_536)])
def test_chunk_budgets_reach_the_longest_prompt(prompt: int, most: int) -> None:
    """A larger budget than the longest prompt only puts several prompts in a step; engines' defaults stay in."""
    asked = demand("llama-3.1-8b", prompt)
    assert largest_budget(asked.workload) == most
    budgets = chunk_budgets(SearchSpace(skus=("h200-sxm",)), asked, 4)
    assert budgets[0] == 4 * LEAST_BUDGET and budgets[-1] == 4 * most
    assert all(after == 2 * before for before, after in itertools.pairwise(budgets))
    assert chunk_budgets(SearchSpace(skus=("h200-sxm",), max_batched_tokens=(700,)), asked, 4) == (700,)


def test_batch_limits_reach_what_memory_holds_and_say_it_once() -> None:
    """The largest limit of every mixed family is the only one that memory, not the limit, decides."""
    got = found(demand(), modes=(Mode.MIXED,), tp=(1,))
    members = [member.config for family in got.families for member in family.members]
    limits = sorted({config.max_running_requests for config in members})
    assert limits[0] == LEAST_RUNNING and all(b == 2 * a for a, b in itertools.pairwise(limits))
    capacity = Capacity(demand())
    for family in got.families:
        slots = {member.name: capacity._candidate(member).slots for member in family.members}
        assert len({(member.config.max_batched_tokens, slots[member.name], member.tag) for member in family.members}) \
            == len(family.members)  # fmt: skip


def test_what_is_left_open_holds_everything_that_may_be_given_and_started() -> None:
    """A mixture of experts with every choice by hand, on a grid of powers of two: each is among those offered."""
    asked = demand("qwen3-30b-a3b")
    names = {
        (m.role, m.config.parallelism, m.config.max_batched_tokens, m.config.max_running_requests)
        for family in found(asked, modes=(Mode.MIXED,), tp=(1, 2)).families
        for m in family.members
    }
    by_hand = found(
        asked, modes=(Mode.MIXED,), tp=(1, 2), dp=(1, 2), pp=(1,), ep=(1, 2), max_running_requests=(64, 256),
        max_batched_tokens=(2048, 8192),
    )  # fmt: skip
    given = {
        (m.role, m.config.parallelism, m.config.max_batched_tokens, m.config.max_running_requests)
        for family in by_hand.families
        for m in family.members
    }
    assert given
    # Left out are only splits that by their bounds sustain less than half of another's.
    assert {key for key in given if key[1] in {name[1] for name in names}} <= names


def test_prefix_caches_are_looked_at_where_prompts_share_something() -> None:
    shared = SharedPrefixes(tokens=500, groups=4)
    caches = {
        bool(prefixes): {
            (m.role, m.config.schedule.prefix_cache)
            for family in found(demand(prefixes=prefixes), tp=(1,)).families
            for m in family.members
        }
        for prefixes in (None, shared)
    }
    assert caches[False] == {(role, False) for role in Role}
    assert caches[True] == {(role, on) for role in (Role.MIXED, Role.PREFILL) for on in (False, True)} | {
        (Role.DECODE, False)
    }


def test_a_model_drafts_with_its_own_modules_where_it_has_some() -> None:
    """DeepSeek-V3 has one multi-token-prediction module (arXiv:2412.19437, section 2.2); nothing drafts a prompt."""
    got = found(demand("deepseek-v3"), tp=(8,), dp=(1,), ep=(8,))
    drafts = {
        (m.role, m.config.speculation.draft_tokens if m.config.speculation else 0)
        for family in got.families
        for m in family.members
    }
    assert drafts == {(Role.MIXED, 0), (Role.MIXED, 1), (Role.PREFILL, 0), (Role.DECODE, 0), (Role.DECODE, 1)}
    plain = found(demand("qwen3-30b-a3b"), tp=(1,), dp=(1,))
    assert not any(m.config.speculation for family in plain.families for m in family.members)


def test_a_small_kv_cache_comes_with_small_weights() -> None:
    """Qwen3-30B has FP8 checkpoints: its 16-bit weights keep their cache, the smaller ones may have either."""
    formats = {
        (m.config.precision.weights.arithmetic, m.config.precision.kv_cache)
        for family in found(demand("qwen3-30b-a3b"), tp=(1,), dp=(1,)).families
        for m in family.members
    }
    assert (Dtype.BF16, Dtype.FP8) not in formats and (Dtype.FP8, Dtype.FP8) in formats


def test_no_two_members_have_one_name_not_even_in_different_families() -> None:
    """Columns of the program are found by it: with either KV cache, with drafts and without, on every split."""
    got = found(demand("deepseek-v3"), "b200-sxm", tp=(8,))
    names = [(member.role, member.name) for family in got.families for member in family.members]
    assert {family.kv_cache for family in got.families} >= {"fp8"} and len(set(names)) == len(names)


@pytest.mark.parametrize(("model", "dp"), [("llama-3.1-8b", [1]), ("gpt-oss-20b", [1, 2])])
def test_leaving_the_search_open_never_costs_more_than_restricting_it(model: str, dp: list[int]) -> None:
    """Against one small grid by hand, by theory: the open search holds it, or what stands in for it."""
    space: dict[str, Any] = {"skus": ["h100-sxm"], "modes": ["mixed"], "simplicity": 0.0}
    by_hand = {"tp": [1, 2], "dp": dp, "max_running_requests": [64, 256], "max_batched_tokens": [1024, 8192]}
    costs = []
    for search in (space, {**space, **by_hand, "speculation": [None], "prefix_cache": [False]}):
        request = load_scenario(
            {
                "llm": model,
                "workload": {"rate_per_s": 40, "lengths": {"input_tokens": 500, "output_tokens": 100}},
                "slo": [{"metric": "ttft", "percentile": 0.99, "threshold_s": 0.5}],
                "search": search,
                "prices": {"usd_per_gpu_hour": {"h100-sxm": 2.0}},
            }
        )
        answer = plan(request, HARDWARE, simulate=False, alternatives=False)
        assert answer.cost is not None
        costs.append(answer.cost.usd_per_hour)
    assert costs[0] <= costs[1] * (1.0 + 1e-9)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize(
    ("model", "sku"),
    [("llama-3.1-8b", "h100-sxm"), ("qwen3-30b-a3b", "h200-sxm"), ("deepseek-v3", "b200-sxm"), ("qwen3-8b", "mi300x")],
)
def test_everything_that_is_offered_starts(model: str, sku: str, engine: str) -> None:
    """The export has words for one member of every step-time group: split, formats, drafts, cache."""
    asked = demand(model)
    one = {"max_batched_tokens": (2048,), "max_running_requests": (64,)}
    tp = (8,) if model == "deepseek-v3" else (1, 2)
    got = found(asked, sku, engine, modes=(Mode.MIXED,), tp=tp, **one)
    refused = {}
    for member in (m for family in got.families for m in family.members):
        deployment = Deployment(pools=(member.pool(1),))
        launched = LaunchedDeployment(model, deployment, asked.workload, asked.slo)
        try:
            launch_specs(Fleet("a test", (launched,)))
        except PlannerError as error:
            refused[member.name] = str(error)
    assert not refused


def test_what_is_not_started_has_no_verified_flag() -> None:
    """Once the table has a flag for it, it is offered."""
    knobs = {EngineFeature.RANKS: "dp"}
    for engine, features in NOT_STARTED.items():
        assert not any(rows_of(engine, knobs[feature]) for feature in features)
    for engine in ("vllm", "sglang"):
        assert rows_of(engine, "dp")


def test_what_starts_with_less_than_99_percent_is_not_offered() -> None:
    """Qwen3-32B in 16 bits on one H100: one token more than is sure is refused, though it is predicted to fit."""
    limits = {"max_running_requests": 16, "max_batched_tokens": 2048}
    llm = load_llm("qwen3-32b")
    config = ReplicaConfig(
        llm=llm, sku=HARDWARE.skus["h100-sxm"], engine=HARDWARE.engines["vllm"], memory_fraction=0.87, **limits
    )
    footprint = memory_footprint(config)
    most = next(
        tokens
        for tokens in itertools.count(one_request_room_tokens(config, footprint), -1)
        if start_probability(config, footprint, tokens) >= 0.99
    )
    assert most + 1000 < one_request_room_tokens(config, footprint)
    given = {
        "memory_fraction": 0.87,
        "tp": (1,),
        "modes": (Mode.MIXED,),
        **{name: (value,) for name, value in limits.items()},
    }
    for more, is_offered in ((0, True), (1, False)):
        asked = replace(demand(llm.id, most - 200 + more), published=())  # in no other format
        offered = found(asked, "h100-sxm", **given)
        assert bool(offered.families) is is_offered
        assert is_offered or all("99% sure" in one.reason for one in offered.rejections)
