"""What nobody named reaches as far as it can matter and no further, and what is offered can be started."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from hardware_db import Dtype, select_calibration
from planner.core import Metric, PlannerError
from planner.engine import ReplicaConfig, memory_footprint, one_request_room_tokens
from planner.engine.footprint import start_probability
from planner.fleet import plan
from planner.launch import launch_specs
from planner.llm import LlmSpec, Precision, load_llm, narrower_precisions, weight_bytes
from planner.scenario import load_scenario
from planner.search import Capacity, Demand, FamilySet, Mode, Offer, SearchSpace, find_families
from planner.search.grid import (
    LEAST_BUDGET,
    LEAST_RUNNING,
    USUAL_BUDGET,
    WEIGHTS_SHARE,
    Split,
    chunk_budgets,
    largest_budget,
    splits,
)
from planner.serving import Deployment, Role
from planner.workload import LatencyTarget, RequestClass, SharedPrefixes, Slo, TokenLengths, Workload
from tests.builders import FP8, HARDWARE
from tests.made_up_fleets import launched, planned

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
    return Demand(llm, llm.native_precision, workload, SLACK, published=narrower_precisions(llm))


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


def test_no_two_members_have_one_name_not_even_in_different_families() -> None:
    """Columns of the program are found by it: with either KV cache, with drafts and without, on every split."""
    got = found(demand("deepseek-v3"), "b200-sxm", tp=(8,))
    names = [(member.role, member.name) for family in got.families for member in family.members]
    assert {family.hands_on for family in got.families} >= {"kv fp8"} and len(set(names)) == len(names)


def test_leaving_the_search_open_never_costs_more_than_restricting_it() -> None:
    """Against one small grid by hand, by theory: the open search holds it, or what stands in for it."""
    space: dict[str, Any] = {"skus": ["h100-sxm"], "modes": ["mixed"], "simplicity": 0.0}
    by_hand = {"tp": [1, 2], "dp": [1, 2], "max_running_requests": [64, 256], "max_batched_tokens": [1024, 8192]}
    costs = []
    for search in (space, {**space, **by_hand, "speculation": [None], "prefix_cache": [False]}):
        request = load_scenario(
            {
                "llm": "gpt-oss-20b",
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


@pytest.mark.parametrize(
    ("engine", "model", "sku"),
    [
        ("vllm", "deepseek-v3", "b200-sxm"),
        ("vllm", "qwen3-8b", "mi300x"),
        ("sglang", "deepseek-v3", "b200-sxm"),
        ("sglang", "llama-3.1-8b", "h100-sxm"),
        ("tensorrt-llm", "qwen3-30b-a3b", "h200-sxm"),
    ],
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
        try:
            launch_specs(planned(launched(deployment, asked.workload, model, asked.slo)))
        except PlannerError as error:
            refused[member.name] = str(error)
    assert not refused


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


def splits_of(
    llm: LlmSpec | str,
    sku: str = "h200-sxm",
    precision: Precision = FP8,
    engine: str = "vllm",
    **given: tuple[int, ...],
) -> list[Split]:
    """Splits of a model on a SKU."""
    model = load_llm(llm) if isinstance(llm, str) else llm
    space = SearchSpace(skus=(sku,), **given)
    return list(splits(space, model, precision, HARDWARE.skus[sku], HARDWARE.engines[engine]))


def test_a_dense_model_is_split_over_a_server_and_no_further() -> None:
    """Attention ranks of a dense model are replicas under another name; it fits, so there is no pipeline."""
    assert splits_of("llama-3.3-70b-instruct") == [Split(tp, 1, 1, 1) for tp in (1, 2, 4, 8)]


def test_weights_that_do_not_fit_a_server_get_the_stages_they_need() -> None:
    """Llama 3.1 405B in BF16, 812 GB: two servers of eight H100s (Meta's own deployment: TP8 PP2), or twice that."""
    llm, sixteen_bit = load_llm("llama-3.1-405b"), Precision(weights=Dtype.BF16, activations=Dtype.BF16)
    server = 8 * HARDWARE.skus["h100-sxm"].hbm_capacity_bytes.value
    assert WEIGHTS_SHARE * server < weight_bytes(llm, sixteen_bit) < 2 * WEIGHTS_SHARE * server
    assert {split.pp for split in splits_of(llm, "h100-sxm", sixteen_bit)} == {1, 2, 4}


def test_nobody_is_offered_a_trillion_parameters_on_a_hundred_small_gpus() -> None:
    """Kimi-K3 would take 16 stages of eight L4s: a pipeline that nobody runs, unless it is asked for."""
    kimi = load_llm("kimi-k3")
    assert {split.pp for split in splits_of(kimi, "l4", kimi.native_precision)} == {1}
    assert {split.pp for split in splits_of(kimi, "l4", kimi.native_precision, pp=(16,))} == {16}


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(Split(8, 1, 1, 1), id="SGLang, DeepSeek-V3 on eight H200: --tp 8"),
        pytest.param(Split(1, 1, 8, 8), id="vLLM: --data-parallel-size 8 --enable-expert-parallel"),
        pytest.param(Split(1, 1, 32, 32, 32), id="DeepSeek-V3 prefill: EP32, 32 copies, arXiv:2412.19437 sec. 3.4.1"),
        pytest.param(Split(8, 1, 1, 8), id="vLLM: --tensor-parallel-size 8 --enable-expert-parallel"),
    ],
)
def test_a_mixture_of_experts_is_offered_what_engines_document(recipe: Split) -> None:
    """The published ways to serve DeepSeek-V3 are among those looked at."""
    assert recipe in splits_of("deepseek-v3")


@pytest.mark.parametrize(
    ("llm", "sku"), [("deepseek-v3", "h200-sxm"), ("gpt-oss-120b", "gb200-nvl72"), ("glm-4.7", "l40s")]
)
def test_experts_are_whole_and_over_all_gpus_or_none(llm: str, sku: str) -> None:
    """vLLM spreads experts over all GPUs of the stage or over none, with attention ranks or without."""
    experts = max(getattr(group.feed_forward, "experts", 0) for group in load_llm(llm).layers)
    for split in splits_of(llm, sku):
        assert split.ep in (1, split.tp * split.dp)
        assert split.ep == 1 or (experts + split.redundant_experts) % split.ep == 0
        assert split.dp == 1 or split.pp == 1
    assert {split.ep for split in splits_of(llm, sku) if split.tp * split.dp == 8} == {1, 8}


def test_experts_are_spread_as_wide_as_there_are_any() -> None:
    """DeepSeek-V3 over up to 256 GPUs, as Kimi-K2 with 384 experts (powers of two); copies beyond a server."""
    for llm in ("deepseek-v3", "kimi-k2-instruct"):
        assert max(split.tp * split.dp for split in splits_of(llm)) == 256
        for split in splits_of(llm):
            assert (split.redundant_experts >= 32) == (split.dp > 1 and split.ep > 8)


def test_experts_over_some_gpus_only_where_the_engine_takes_that() -> None:
    """SGLang's moe_tp_size = tp_size / ep_size: eight GPUs may have 1, 2, 4 or 8 groups of experts; vLLM 1 or 8."""
    assert {split.ep for split in splits_of("deepseek-v3", engine="sglang") if split.tp * split.dp == 8} == {1, 2, 4, 8}
    assert Split(2, 1, 4, 2) not in splits_of("deepseek-v3")


def test_given_degrees_are_taken_as_they_are() -> None:
    """What is named stays; what is not follows from it."""
    assert splits_of("deepseek-v3", tp=(8,), pp=(1,), dp=(1,), ep=(4,)) == [Split(8, 1, 1, 4)]
    assert {split.tp for split in splits_of("deepseek-v3", tp=(2, 4))} == {2, 4}
    every = {"tp": (1, 2), "pp": (1, 2), "dp": (1, 4), "ep": (1, 2)}
    assert len(splits_of("deepseek-v3", **every)) == 16
    assert len(splits_of("deepseek-v3", **every, dcp=(1, 2))) == 32


def test_contexts_are_shared_out_only_where_that_is_asked_for() -> None:
    assert {split.dcp for split in splits_of("deepseek-v3")} == {1}


def test_prompts_are_shared_out_where_that_is_asked_for_and_by_prefill_pools_alone() -> None:
    """A decode pool beside such a prefill pool has none of it: in SGLang "Decode cp size should be equal to 1"."""
    assert {split.pcp for split in splits_of("deepseek-v3.2")} == {1}
    asked, given = demand("deepseek-v3.2", 30_000), {"tp": (1, 8), "pp": (1,), "dp": (1,), "pcp": (1, 8)}
    families = found(asked, engine="sglang", **given).families
    pools = {(one.role, one.members[0].config.parallelism.pcp) for one in families}
    assert {(Role.PREFILL, 8), (Role.DECODE, 1)} <= pools
    assert not {(Role.MIXED, 8), (Role.DECODE, 8)} & pools
