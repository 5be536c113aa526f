"""The best member of a family is that of trying them all; nothing is evaluated twice; bounds stay bounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest

from hardware_db import select_calibration
from planner.core import Metric
from planner.engine import ReplicaConfig
from planner.llm import Precision, load_llm
from planner.roofline import Parallelism
from planner.search import Capacity, ConfigurationFamily, Demand, PoolOption, worth_sizes
from planner.search.candidates import GROWTH, RATE_TOLERANCE
from planner.serving import Deployment, Role, Router, encoder_limit_per_s, evaluate, sustainable_rate_per_s
from planner.traffic import lengths_with_images
from planner.workload import (
    ArrivalProcess,
    ImageMix,
    ImageSize,
    LatencyTarget,
    RequestClass,
    Slo,
    TokenLengths,
    Workload,
)
from tests.builders import CHAT, HARDWARE, calibrated
from tests.search.caches import forget_all

FINE = 0.002
"""Tolerance of the rates found by trying everything."""


def target(metric: str, threshold_s: float, percentile: float = 0.99) -> LatencyTarget:
    """One target."""
    return LatencyTarget(metric=Metric(metric), percentile=percentile, threshold_s=threshold_s)


def promised(ttft_s: float = 0.5, tpot_s: float = 0.02, attainment: float | None = None) -> Slo:
    """A target on TTFT and one on TPOT."""
    return Slo(targets=(target("ttft", ttft_s), target("tpot", tpot_s)), attainment=attainment)


def demand(slo: Slo | None = None, workload: Workload | None = None, model: str = "llama-3.1-8b") -> Demand:
    """Chat at a rate that does not matter."""
    return Demand(load_llm(model), Precision(), workload or Workload.of(50.0, CHAT), slo or promised())


def family(
    role: Role = Role.MIXED,
    sku: str = "h100-sxm",
    tp: int = 1,
    budgets: tuple[int, ...] = (512, 2048, 8192),
    limits: tuple[int, ...] = (16, 64, 256),
    calibrated: bool = True,
    router: Router = Router.ROUND_ROBIN,
    model: str = "llama-3.1-8b",
) -> ConfigurationFamily:
    """All chunk budgets and batch limits of one machine."""
    members = tuple(
        PoolOption(
            role,
            ReplicaConfig(
                llm=load_llm(model),
                sku=HARDWARE.skus[sku],
                engine=HARDWARE.engines["vllm"],
                parallelism=Parallelism(tp=tp),
                calibration=select_calibration(HARDWARE, sku, "vllm") if calibrated else None,
                max_batched_tokens=budget,
                max_running_requests=limit,
            ),
            router,
        )
        for budget, limit in itertools.product(budgets, limits)
    )
    return ConfigurationFamily(role, members)


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    """Every test starts cold."""
    forget_all()
    yield
    forget_all()


SLOS = {
    "both matter": promised(),
    "TPOT matters": promised(5.0, 0.012),
    "TTFT matters": promised(0.15, 0.5),
    "few slots help": promised(20.0, 0.009),
}


@pytest.mark.parametrize(("case", "calibrated"), [*((case, True) for case in SLOS), ("both matter", False)], ids=str)
def test_the_best_member_is_that_of_trying_every_one(case: str, calibrated: bool) -> None:
    asked, some = demand(SLOS[case]), family(calibrated=calibrated)
    capacity = Capacity(asked)
    best = capacity.best(some, 3)
    rates = {
        member.name: sustainable_rate_per_s(
            Deployment(pools=(member.pool(3),)), asked.workload, asked.slo, tolerance=FINE
        )
        for member in some.members
    }
    largest = max(rates.values())
    assert (1.0 - 2.0 * RATE_TOLERANCE) * largest <= best.rate_per_s <= (1.0 + FINE) * largest
    assert best.member is not None
    assert rates[best.member.name] >= (1.0 - 2.0 * RATE_TOLERANCE) * largest
    assert best.rate_per_s <= rates[best.member.name] * (1.0 + FINE)


def test_the_best_rate_has_been_seen_to_hold_and_a_little_more_does_not() -> None:
    asked, some = demand(), family()
    best = Capacity(asked).best(some, 4)
    assert best.member is not None
    deployment = Deployment(pools=(best.member.pool(4),))
    assert evaluate(deployment, asked.workload.at_rate(best.rate_per_s)).meets(asked.slo)
    assert not evaluate(deployment, asked.workload.at_rate(1.02 * best.rate_per_s)).meets(asked.slo)


def test_nothing_is_evaluated_twice() -> None:
    """Not in one plan, nor in the next one with another rate, records read anew and other objects."""
    first = Capacity(demand())
    found = first.best(family(), 3)
    assert first.evaluations > 0
    before = first.evaluations
    assert first.best(family(), 3).rate_per_s == found.rate_per_s
    assert first.evaluations == before
    again = Capacity(demand(workload=Workload.of(999.0, CHAT.model_copy())))
    best = again.best(family(), 3)
    assert again.evaluations == 0
    assert best.rate_per_s == found.rate_per_s
    assert best.member is not None and found.member is not None
    assert best.member.name == found.member.name


def test_where_a_pool_carries_nothing_smaller_ones_do_not_either() -> None:
    """Gaps shorter than a step hold by chance where requests hardly meet: that is no rate to plan with."""
    capacity, some = Capacity(demand(Slo(targets=(target("itl", 1e-3),)))), family()
    assert capacity.bound_per_s(some, 1) > 0.0
    assert capacity.best(some, 8).member is None
    assert [capacity.bound_per_s(some, replicas) for replicas in range(1, 9)] == [0.0] * 8


def test_bounds_stay_above_the_rates_they_become() -> None:
    """Whatever was evaluated before: the exact rate of a pool bounds that of smaller ones."""
    some, asked = family(), demand()
    cold = Capacity(asked)
    bounds = {size: cold.bound_per_s(some, size) for size in (1, 2, 3, 5, 8)}
    learned = dict(bounds)
    for size in (8, 5, 3, 2, 1):
        learned[size] = cold.bound_per_s(some, size)
        rate = cold.best(some, size).rate_per_s
        assert rate <= learned[size] <= bounds[size]
        assert cold.bound_per_s(some, size) == rate
    assert learned[5] < 0.999 * bounds[5]


@pytest.mark.parametrize("role", Role)
def test_rates_per_replica_do_not_fall_with_the_pool(role: Role) -> None:
    """What makes a rate of a pool a bound of smaller ones; to the tolerance of the rates and `GROWTH`."""
    some, capacity = family(role, budgets=(2048,), limits=(256,)), Capacity(demand())
    rates = [capacity.best(some, size).rate_per_s / size for size in (1, 2, 3, 4, 6, 8, 12, 16)]
    for smaller, larger in itertools.pairwise(rates):
        assert larger >= smaller * (1.0 - RATE_TOLERANCE) / (1.0 + GROWTH)
    assert rates[-1] > rates[0] > 0.0


def test_looser_targets_never_cost_rate() -> None:
    some = family(budgets=(2048,), limits=(64,))
    rates = [Capacity(demand(promised(0.5, tpot_s))).best(some, 2).rate_per_s for tpot_s in (0.008, 0.012, 0.02, 0.05)]
    assert all(b >= a * (1.0 - RATE_TOLERANCE) for a, b in itertools.pairwise(rates))
    assert rates[-1] > rates[0]


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_pools_of_one_role_are_judged_by_its_targets(role: Role) -> None:
    """A prefill pool's rate moves with TTFT and not with TPOT; a decode pool's the other way round."""
    some = family(role, budgets=(2048,), limits=(256,))
    plain, first, rest = (
        Capacity(demand(slo)).best(some, 2).rate_per_s
        for slo in (promised(0.2, 0.008), promised(0.1, 0.008), promised(0.2, 0.007))
    )
    tighter, same = (first, rest) if role is Role.PREFILL else (rest, first)
    assert tighter < 0.99 * plain
    assert same == pytest.approx(plain, rel=2 * RATE_TOLERANCE)


def test_a_pair_at_the_rates_of_its_pools_meets_both_targets_but_for_the_links() -> None:
    """The two halves are judged as the whole is: 95 % of the smaller rate leaves room for the wait for links."""
    asked, capacity = demand(), Capacity(demand())
    prompts = capacity.best(family(Role.PREFILL, budgets=(2048,), limits=(256,)), 2)
    tokens = capacity.best(family(Role.DECODE, budgets=(2048,), limits=(256,)), 2)
    assert prompts.member is not None and tokens.member is not None
    deployment = Deployment(pools=(prompts.member.pool(2), tokens.member.pool(2)))
    rate = 0.95 * min(prompts.rate_per_s, tokens.rate_per_s)
    assert evaluate(deployment, asked.workload.at_rate(rate)).meets(asked.slo)


def test_joint_promises_gaps_and_classes_are_judged_by_full_evaluations() -> None:
    some = family(budgets=(2048,), limits=(64,))
    short = RequestClass(name="short", lengths=TokenLengths.constant(200, 50), share=0.5)
    long = RequestClass(name="long", lengths=TokenLengths.constant(2000, 200), share=0.5)
    strict = short.model_copy(update={"slo": promised(0.1, 0.05)})

    def rate(asked: Demand) -> float:
        return Capacity(asked).best(some, 2).rate_per_s

    mixed, told = (
        demand(workload=Workload(arrivals=ArrivalProcess(rate_per_s=9.0), classes=classes))
        for classes in ((short, long), (strict, long))
    )
    assert 0.0 < rate(told) < rate(mixed)
    together = demand(promised(attainment=0.99))
    found = rate(together)
    deployment = Deployment(pools=(some.members[0].pool(2),))
    assert evaluate(deployment, together.workload.at_rate(found)).attainment(together.slo) >= 0.99
    assert found <= rate(demand()) * (1.0 + RATE_TOLERANCE)
    gaps = Slo(targets=(*promised().targets, target("itl", 0.06, 0.9)))
    assert 0.0 < rate(demand(gaps)) <= rate(demand()) * (1.0 + RATE_TOLERANCE)


def test_rates_above_the_demand_are_not_looked_for() -> None:
    some, capped, whole = family(), Capacity(demand()), Capacity(demand())
    found = capped.best(some, 4, at_most_per_s=10.0)
    assert found.rate_per_s == 10.0
    assert capped.evaluations == 1
    assert capped.best(some, 4, at_most_per_s=5.0).rate_per_s == 5.0
    assert capped.bound_per_s(some, 4) > 10.0
    assert whole.best(some, 4).rate_per_s > 10.0


def test_targets_that_nobody_meets_leave_no_member() -> None:
    best = Capacity(demand(promised(0.5, 1e-4))).best(family(), 2)
    assert best.member is None and best.rate_per_s == 0.0
    assert worth_sizes(family(), Capacity(demand(promised(0.5, 1e-4))), 50.0) == ()


@pytest.mark.parametrize("rate_per_s", [0.5, 100.0, 3000.0])
def test_sizes_worth_a_column_reach_beyond_the_true_need(rate_per_s: float) -> None:
    some, capacity = family(budgets=(2048,), limits=(256,)), Capacity(demand())
    sizes = worth_sizes(some, capacity, rate_per_s)
    assert sizes == tuple(sorted(set(sizes))) and sizes[0] == 1
    assert capacity.best(some, sizes[-1], rate_per_s).rate_per_s == rate_per_s
    assert len(sizes) <= 8 + math.ceil(math.log(sizes[-1], 1.25)) + 4


def test_other_routers_are_judged_as_they_are() -> None:
    """Requests dealt out at random wait longer than in turn, so that less is sustained."""
    in_turn, random = (
        Capacity(demand(promised(0.15))).best(family(budgets=(2048,), limits=(256,), router=router), 4).rate_per_s
        for router in (Router.ROUND_ROBIN, Router.RANDOM)
    )
    assert 0.0 < random < in_turn


@pytest.mark.parametrize("role", [Role.MIXED, Role.DECODE])
def test_of_limits_that_sustain_the_same_the_smallest_is_named(role: Role) -> None:
    """Every smaller limit of the same budget carries less: against trying each of them alone."""
    some = family(role, budgets=(2048,), limits=(16, 64, 256, 1024, 2048))
    best = Capacity(demand()).best(some, 2)
    assert best.member is not None
    chosen = best.member.config.max_running_requests
    assert chosen < 2048
    for member in some.members:
        alone = Capacity(demand()).rate_per_s(member, 2)
        if member.config.max_running_requests < chosen:
            assert alone < best.rate_per_s * 1.02
        else:
            assert alone >= best.rate_per_s * 0.97 or member.config.max_running_requests > chosen


def test_a_smaller_chunk_budget_is_named_where_a_larger_one_sustains_no_more() -> None:
    """Prompts below the smallest budget, hardly ever two at once: a step holds them whatever its budget."""
    few = family(Role.PREFILL, budgets=(2048, 4096, 8192), limits=(256,))
    best = Capacity(demand()).best(few, 2, at_most_per_s=0.2)
    assert best.member is not None and best.rate_per_s == 0.2
    assert best.member.config.max_batched_tokens == 2048


def test_prefill_pools_are_judged_behind_their_encoders() -> None:
    """As many prompts with more encoders as with few, but no later: what the pair then is, `evaluate` says too."""
    mix = ImageMix(per_request=2, sizes=(ImageSize(width=1024, height=1024),))
    lengths = lengths_with_images(TokenLengths.constant(200, 50), mix, load_llm("qwen3-vl-8b-instruct"))
    asked = demand(promised(ttft_s=0.4, tpot_s=0.1), Workload.of(5.0, lengths), "qwen3-vl-8b-instruct")
    few, many = (
        PoolOption(Role.PREFILL, calibrated("qwen3-vl-8b-instruct", "h100-sxm", "sglang", encoders=encoders))
        for encoders in (0.5, 2.0)
    )
    rates = [Capacity(asked).rate_per_s(one, 2) for one in (few, many)]
    assert 0.0 < 1.1 * rates[0] < rates[1]
    decode = calibrated("qwen3-vl-8b-instruct", "h100-sxm", "sglang")
    for one, rate in zip((few, many), rates, strict=True):
        seen = evaluate(Deployment.disaggregated(one.config, decode, (2, 4)), asked.workload.at_rate(rate))
        assert seen.ttft.quantile_s(0.99) == pytest.approx(0.4, rel=0.15)


def test_encoders_bound_a_pool_and_smaller_pools_may_have_more_of_them() -> None:
    """A quarter of an encoder a replica: one for any of these pools. What four miss says nothing of two."""
    config = calibrated("qwen3-vl-8b-instruct", "h100-sxm", "sglang", encoders=0.25)
    one = ConfigurationFamily(Role.MIXED, (PoolOption(Role.MIXED, config),))
    mix = ImageMix(per_request=4, sizes=(ImageSize(width=1024, height=1024),))
    lengths = lengths_with_images(TokenLengths.constant(200, 50), mix, config.llm)
    asked = demand(promised(ttft_s=2.0, tpot_s=0.1), Workload.of(5.0, lengths), "qwen3-vl-8b-instruct")
    capacity, sizes = Capacity(asked), (4, 3, 2, 1)
    bounds = [capacity.bound_per_s(one, size) for size in sizes]
    rates = [capacity.best(one, size).rate_per_s for size in sizes]
    true = [sustainable_rate_per_s(Deployment.mixed(config, size), asked.workload, asked.slo) for size in sizes]
    assert bounds[0] == encoder_limit_per_s(config, 4, lengths) < 4.0 * rates[3]
    for bound, rate, held in zip(bounds, rates, true, strict=True):
        assert held * (1.0 - 2.0 * RATE_TOLERANCE) <= rate <= bound * (1.0 + 1e-9)
