"""The grid is whole, what is dropped is dropped for a reason that full models confirm, and families hold together."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hardware_db import KvTierKind, select_calibration
from planner.core import InputError, Metric
from planner.engine import KvTier, LoraAdapters, ReplicaConfig, Speculation, memory_footprint, require_room
from planner.llm import Precision, load_llm
from planner.roofline import Parallelism, StepShape
from planner.search import Demand, FamilySet, Mode, Offer, SearchSpace, find_families
from planner.search.bounds import bounds_key
from planner.search.cache_keys import group_key
from planner.search.step_time_groups import step_time_group, with_limits
from planner.serving import Deployment, Pool, Role, evaluate, pool_model
from planner.workload import ArrivalProcess, LatencyTarget, RequestClass, Slo, TokenLengths, Workload
from tests.builders import CHAT, FP8, HARDWARE
from tests.search.caches import forget_all

SKUS = ("h100-sxm", "a100-sxm-80gb")
SMALL: dict[str, Any] = {
    "skus": SKUS,
    "tp": (1, 2),
    "max_running_requests": (32, 128),
    "max_batched_tokens": (512, 2048),
}


def slo(ttft_s: float = 0.5, tpot_s: float = 0.03) -> Slo:
    """A target on TTFT and one on TPOT."""
    targets = (
        LatencyTarget(metric=Metric.TTFT, percentile=0.99, threshold_s=ttft_s),
        LatencyTarget(metric=Metric.TPOT, percentile=0.99, threshold_s=tpot_s),
    )
    return Slo(targets=targets)


POISSON = ArrivalProcess(rate_per_s=10.0)


def demand(
    model: str = "llama-3.1-8b",
    goals: Slo | None = None,
    lengths: TokenLengths = CHAT,
    arrivals: ArrivalProcess = POISSON,
) -> Demand:
    """Chat."""
    workload = Workload(arrivals=arrivals, classes=(RequestClass(lengths=lengths),))
    return Demand(load_llm(model), Precision(), workload, goals or slo())


def found(asked: Demand | None = None, **changes: Any) -> FamilySet:
    """Families of the small search space, or of one with changes."""
    search = SearchSpace(**{**SMALL, **changes})
    offers = [
        Offer(HARDWARE.skus[sku], {engine: select_calibration(HARDWARE, sku, engine) for engine in search.engines})
        for sku in search.skus
    ]
    return find_families(asked or demand(), search, offers, HARDWARE.engines)


def test_every_combination_of_the_grid_is_there_once() -> None:
    """Mixed: all; prefill pools: chunk budgets only; decode pools: batch limits only."""
    got = found()
    assert got.considered == 2 * 2 * 2 * 2 * 3 and not got.rejections
    for role, count in ((Role.MIXED, 4), (Role.PREFILL, 2), (Role.DECODE, 2)):
        families = [family for family in got.families if family.role is role]
        assert {(family.sku, family.gpus) for family in families} == set(itertools.product(SKUS, (1, 2)))
        for family in families:
            knobs = {(m.config.max_batched_tokens, m.config.max_running_requests) for m in family.members}
            assert len(knobs) == len(family.members) == count
    assert len({family.name for family in got.families}) == len(got.families)
    names = [(family.role, member.name) for family in got.families for member in family.members]
    assert len(set(names)) == len(names)


def knobs(role: Role, config: ReplicaConfig) -> tuple[object, ...]:
    """What there is to choose of a pool."""
    budget = 0 if role is Role.DECODE else config.max_batched_tokens
    limit = 0 if role is Role.PREFILL else config.max_running_requests
    return role, config.sku.id, config.parallelism, budget, limit


def test_a_space_narrowed_to_pools_has_these_and_no_others() -> None:
    members = [member for family in found().families for member in family.members]
    of_tp_2 = [member for member in members if member.config.parallelism.tp == 2 and member.config.sku.id == SKUS[0]]
    first, last = ({member.role: member for member in order} for order in (of_tp_2[::-1], of_tp_2))
    assert first[Role.MIXED] != last[Role.MIXED]
    for member in (first, last):
        for roles in ((Role.MIXED,), (Role.PREFILL, Role.DECODE)):
            pools = [member[role].pool(3) for role in roles]
            narrowed = SearchSpace(**SMALL).narrowed(pools)
            assert narrowed is not None
            left = found(**{name: getattr(narrowed, name) for name in narrowed.model_fields_set})
            assert [knobs(one.role, one.config) for family in left.families for one in family.members] == [
                knobs(pool.role, pool.config) for pool in pools
            ]
    (outside,) = (SearchSpace(**{**SMALL, "tp": (1,)}).narrowed([member.pool(1)]) for member in of_tp_2[:1])
    assert outside is None


def test_only_what_fits_is_a_member() -> None:
    """Against the room that a replica surely has, on a model that needs several GPUs."""
    asked = demand("llama-3.1-70b", slo(5.0, 1.0))
    got = found(asked, tp=(1, 2, 4), max_running_requests=(32, 512), max_batched_tokens=(512, 16384))
    there = {(m.config.label, m.config.max_batched_tokens, m.config.max_running_requests)
             for family in got.families if family.role is Role.MIXED for m in family.members}  # fmt: skip
    for sku, tp, budget, limit in itertools.product(SKUS, (1, 2, 4), (512, 16384), (32, 512)):
        config = ReplicaConfig(
            llm=asked.llm,
            sku=HARDWARE.skus[sku],
            engine=HARDWARE.engines["vllm"],
            parallelism=Parallelism(tp=tp),
            calibration=select_calibration(HARDWARE, sku, "vllm"),
            max_batched_tokens=budget,
            max_running_requests=limit,
        )
        try:
            require_room(config, asked.workload.lengths.max_total, surely=True)
            fits = True
        except InputError:
            fits = False
        assert fits == ((config.label, budget, limit) in there)


def test_budgets_of_many_ranks_leave_sglang_a_share_of_memory() -> None:
    """It leaves 1.5 MiB free for every token of a step: those of one of eight ranks, not all 131,072."""
    asked = replace(demand("deepseek-v3", slo(5.0, 1.0)), precision=FP8)
    ranks = {"engine": "sglang", "skus": ("h200-sxm",), "tp": (1,), "dp": (8,), "ep": (8,)}
    assert found(asked, **ranks, max_batched_tokens=(131_072,)).families


@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v3", "gpt-oss-120b"])
@pytest.mark.parametrize("role", Role)
def test_slots_are_those_of_the_pool_model(model: str, role: Role) -> None:
    """Dense, latent attention with attention ranks, windows: with any limits, and however many there are of them."""
    asked = demand(model)
    config = ReplicaConfig(
        llm=asked.llm,
        sku=HARDWARE.skus["h200-sxm"],
        engine=HARDWARE.engines["vllm"],
        precision=FP8 if model == "deepseek-v3" else Precision(),
        parallelism=Parallelism(tp=2, dp=8, ep=16) if model == "deepseek-v3" else Parallelism(tp=4),
        max_batched_tokens=512,
        max_running_requests=8,
    )
    at = step_time_group(config, role, asked, bounds_key(asked), (512, 8192), 1024)
    for budget, limit in itertools.product((512, 8192), (8, 1024)):
        pool = Pool(role=role, config=with_limits(config, budget, limit), replicas=1)
        assert at.slots(budget, limit) == pytest.approx(pool_model(pool, CHAT).max_running, rel=1e-12)


@pytest.mark.parametrize("role", list(Role))
def test_bounds_of_other_targets_and_arrivals_are_those_of_a_group_made_for_them(role: Role) -> None:
    """Step times are shared between demands of the same lengths; nothing else may be."""
    config = found().families[0].members[0].config
    first = demand()
    other = demand(goals=slo(0.2, 0.008), arrivals=ArrivalProcess(rate_per_s=1.0, scv=3.0))

    def bounds(asked: Demand) -> list[float]:
        at = step_time_group(config, role, asked, bounds_key(asked), (512, 2048), 128)
        return [at.screen.bound_per_s(replicas, 2048, at.slots(2048, 128)) for replicas in (1, 4)]

    forget_all()
    alone = bounds(other)
    forget_all()
    assert bounds(first) != alone
    assert bounds(other) == alone


def test_what_misses_a_target_even_when_idle_does_so_by_full_evaluation() -> None:
    tight = demand(goals=slo(0.5, 0.0075))
    got = found(tight, modes=(Mode.MIXED,))
    there = {m.config.label for family in got.families for m in family.members}
    assert there and len(there) < 4
    for sku, tp in itertools.product(SKUS, (1, 2)):
        config = ReplicaConfig(
            llm=tight.llm,
            sku=HARDWARE.skus[sku],
            engine=HARDWARE.engines["vllm"],
            parallelism=Parallelism(tp=tp),
            calibration=select_calibration(HARDWARE, sku, "vllm"),
        )
        calm = evaluate(Deployment.mixed(config), tight.workload.at_rate(1e-3))
        assert calm.meets(tight.slo) == (config.label in there)


def test_a_sku_with_nothing_is_rejected_with_the_nearest_reason() -> None:
    """The ratio is the relaxation that would do: with it the SKU has a family, with a little less it has none."""
    hopeless = found(demand(goals=slo(0.5, 0.002)), skus=("a100-sxm-80gb",), modes=(Mode.MIXED,))
    (rejection,) = hopeless.rejections
    assert not hopeless.families and "p99 TPOT" in rejection.reason and "even when idle" in rejection.reason
    for factor, some in ((1.001, True), (0.999, False)):
        relaxed = demand(goals=slo(0.5, 0.002 * rejection.ratio * factor))
        assert bool(found(relaxed, skus=("a100-sxm-80gb",), modes=(Mode.MIXED,)).families) == some
    huge = found(demand("deepseek-v3"), modes=(Mode.MIXED,), pp=(1,), dp=(1,), ep=(1,))
    assert [one.ratio for one in huge.rejections] == [math.inf, math.inf]
    assert all("leave no KV cache" in one.reason for one in huge.rejections)


def test_without_decodes_there_is_nothing_to_hand_over() -> None:
    got = found(demand(lengths=TokenLengths.constant(500, 1)))
    assert {family.role for family in got.families} == {Role.MIXED}
    assert [one.mode for one in got.rejections] == [Mode.DISAGGREGATED] * 2
    assert all("nothing to decode" in one.reason for one in got.rejections)


def test_keys_tell_machines_apart_and_nothing_else() -> None:
    config = ReplicaConfig(llm=load_llm("llama-3.1-8b"), sku=HARDWARE.skus["h100-sxm"], engine=HARDWARE.engines["vllm"])
    same = config.model_copy(update={"sku": config.sku.model_copy(), "max_batched_tokens": 512})
    assert group_key(config) == group_key(same)
    others = (
        config.model_copy(update={"precision": FP8}),
        config.model_copy(update={"parallelism": Parallelism(tp=2)}),
        config.model_copy(update={"sku": HARDWARE.skus["h200-sxm"]}),
        config.model_copy(update={"calibration": select_calibration(HARDWARE, "h100-sxm", "vllm")}),
        config.model_copy(update={"speculation": Speculation(draft_tokens=2, acceptance=0.7, draft_cost=0.1)}),
    )
    assert len({group_key(one) for one in (config, *others)}) == 1 + len(others)


def test_what_an_engine_does_not_do_is_the_reason_of_a_rejection() -> None:
    llm = load_llm("gemma-4-31b")
    asked = Demand(llm, llm.native_precision, Workload.of(1.0, CHAT), slo(5.0, 0.5))
    got = found(asked, skus=("b200-sxm",), engine="tensorrt-llm", tp=(2,), prefix_cache=(False, True))
    assert {family.role for family in got.families} == {Role.MIXED}
    assert not any(member.config.schedule.prefix_cache for family in got.families for member in family.members)
    (rejected,) = got.rejections
    assert rejected.mode is Mode.DISAGGREGATED and "Gemma 4" in rejected.reason


def test_uneven_splits_are_left_out_and_the_rest_kept() -> None:
    # MiniMax-M2.5 in FP8 blocks: 192 channels of an expert on TP 8 are no multiple of a scale; whole experts are.
    llm = load_llm("minimax-m2.5")
    asked = Demand(llm, llm.native_precision, Workload.of(1.0, CHAT), slo(5.0, 0.5))
    got = found(asked, skus=("h200-sxm",), tp=(8,), pp=(1,), dp=(1,), ep=(1, 8), modes=(Mode.MIXED,))
    assert {member.config.parallelism.ep for family in got.families for member in family.members} == {8}


def test_sets_of_kv_tiers_are_families_of_their_own_and_decode_pools_have_none() -> None:
    """What a set costs is bought with the GPUs, and nothing is looked up where nothing but decodes run."""
    host = KvTier(kind=KvTierKind.HOST, size_bytes=1e12)
    families = found(tp=(1,), prefix_cache=(False, True), kv_tiers=((), (host,))).families
    tiers = [(family.role, family.members[0].config.schedule.kv_tiers) for family in families]
    assert sorted(set(tiers), key=str) == sorted(
        {(role, ()) for role in Role} | {(role, (host,)) for role in (Role.MIXED, Role.PREFILL)}, key=str
    )
    assert len({family.name for family in families}) == len(families)
    assert all(
        member.config.schedule.prefix_cache
        for family in families
        for member in family.members
        if member.config.schedule.kv_tiers
    )


def test_adapter_slots_are_looked_for_where_none_are_given() -> None:
    """Between a few, which leave memory to the KV cache, and one for each adapter, with which none is waited for."""
    asked: dict[str, Any] = {"skus": ("h100-sxm",), "tp": (1,), "modes": (Mode.MIXED,)}
    adapters = LoraAdapters(adapters=100)
    (family,) = found(**asked, lora=adapters).families
    slots = {member.config.lora.held for member in family.members if member.config.lora is not None}
    assert slots == {8, 32, 100} and len({member.name for member in family.members}) == len(family.members)
    by_slots = {member.config.lora: memory_footprint(member.config).kv_capacity_tokens for member in family.members}
    few, many = (by_slots[adapters.model_copy(update={"slots": held})] for held in (8, 100))
    assert few > many
    (given,) = found(**asked, lora=LoraAdapters(adapters=100, slots=16)).families
    assert {member.config.lora for member in given.members} == {LoraAdapters(adapters=100, slots=16)}


def test_every_member_has_the_memory_fraction_and_the_graphs_that_are_asked_for() -> None:
    """With and without a prefix cache; a smaller share of the memory holds fewer KV tokens, as vLLM documents it."""
    asked: dict[str, Any] = {"more_engines": ("sglang",), "prefix_cache": (False, True), "skus": ("h100-sxm",)}
    plain, given = found(**asked), found(**asked, memory_fraction=0.6, eager=True)
    members = [member.config for family in given.families for member in family.members]
    assert {(one.engine.id, one.schedule.prefix_cache) for one in members} == set(
        itertools.product(("vllm", "sglang"), (False, True))
    )
    assert {(one.memory_fraction, one.captured_decodes) for one in members} == {(0.6, 0.0)}
    own = {group_key(member.config): member.config for family in plain.families for member in family.members}
    assert all(one.memory_fraction is None and one.captured_decodes > 0 for one in own.values())
    assert not own.keys() & {group_key(one) for one in members}
    one = next(one for one in own.values() if one.engine.id == "vllm")
    less = one.model_copy(update={"memory_fraction": 0.6})
    assert 0 < memory_footprint(less).kv_capacity_tokens < memory_footprint(one).kv_capacity_tokens


def test_tokens_are_sent_as_often_as_the_front_end_can_of_a_full_batch() -> None:
    """SGLang's process takes 50 us a token: of 2,048 short sequences it sends those of some steps together. vLLM's does
    not lag, and a prefill pool sends nothing.
    """
    asked, seen = demand(lengths=TokenLengths.constant(100, 50)), set()
    sets = found(
        asked, engine="sglang", more_engines=("vllm",), max_running_requests=(2048,), tp=(1,), skus=("h100-sxm",)
    )
    for family in sets.families:
        for member in family.members:
            config, interval = member.config, member.config.schedule.stream_interval_steps
            seen.add((config.engine.id, member.role, interval))
            if interval > 1:
                step_s = config.timer.step_time(StepShape(2048.0, 2048.0 * 125.0)).total_s
                assert config.costs.stream_s * 2048 / interval <= step_s < config.costs.stream_s * 2048
    assert {interval for engine, role, interval in seen if engine == "vllm" or role is Role.PREFILL} == {1}
    assert {interval for engine, role, interval in seen if engine == "sglang" and role is not Role.PREFILL} <= {2, 5}


def test_a_step_without_graphs_is_never_faster() -> None:
    with_graphs, without = (
        next(family.members[0].config for family in found(eager=eager, modes=(Mode.MIXED,)).families)
        for eager in (False, True)
    )
    running = np.array([1.0, 8.0, 32.0])
    steps = StepShape(decodes=running, decode_context=1000.0 * running)
    graph_s, eager_s = with_graphs.timer.times_s(steps), without.timer.times_s(steps)
    assert np.all(eager_s >= graph_s) and eager_s[0] > graph_s[0]
