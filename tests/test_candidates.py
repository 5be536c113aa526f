"""The search finds what trying everything finds, and says why it drops the rest."""

from __future__ import annotations

import math

import pytest

from hardware_db import Price, select_price
from planner.candidates import (
    RATE_TOLERANCE,
    CandidateSet,
    Demand,
    Mode,
    Offer,
    SearchSpace,
    find_candidates,
    fluid_bound_per_s,
    sustained_rate_per_s,
)
from planner.deployment import Deployment
from planner.errors import InputError
from planner.llm import Precision, load_llm
from planner.performance import evaluate
from planner.replica import Parallelism, ReplicaConfig
from planner.workload import LatencyTarget, Metric, Slo
from tests.builders import FP8, HARDWARE, chat

ENGINE = HARDWARE.engines["vllm"]
SLO = Slo(
    targets=(
        LatencyTarget(metric=Metric.TTFT, percentile=0.99, threshold_s=0.3),
        LatencyTarget(metric=Metric.TPOT, percentile=0.99, threshold_s=0.02),
    )
)
DEMAND = Demand(load_llm("llama-3.1-8b"), Precision(), chat(80.0), SLO)
SEARCH = SearchSpace(
    skus=("h100-sxm", "a100-sxm-80gb"), tp=(1, 2), max_running_requests=(32, 128), max_batched_tokens=(512, 2048)
)


def price(sku: str) -> Price:
    """The listed on-demand price."""
    found = select_price(HARDWARE, sku)
    assert found is not None
    return found


def search(demand: Demand = DEMAND, space: SearchSpace = SEARCH) -> CandidateSet:
    """The candidates of a search space."""
    return find_candidates(demand, space, [Offer(HARDWARE.skus[sku], price(sku)) for sku in space.skus], ENGINE)


FOUND = search()


def smallest_fleet(sku: str, tp: int, batch: int, budget: int) -> int | None:
    """Replicas needed, by trying 1, 2, 3, ...; None when 40 do not suffice."""
    config = ReplicaConfig(
        llm=DEMAND.llm,
        sku=HARDWARE.skus[sku],
        engine=ENGINE,
        precision=DEMAND.precision,
        parallelism=Parallelism(tp=tp),
        max_running_requests=batch,
        max_batched_tokens=budget,
    )
    for replicas in range(1, 41):
        if evaluate(Deployment.mixed(config, replicas), DEMAND.workload).meets(SLO):
            return replicas
    return None


@pytest.mark.parametrize("sku", SEARCH.skus)
def test_the_cheapest_mixed_fleet_is_that_of_trying_every_configuration(sku: str) -> None:
    gpus = [
        tp * size
        for tp in SEARCH.tp
        for batch in SEARCH.max_running_requests
        for budget in SEARCH.max_batched_tokens
        if (size := smallest_fleet(sku, tp, batch, budget)) is not None
    ]
    ours = [
        pool.replicas * pool.config.parallelism.gpus
        for option in FOUND.options
        for pool in option.pools
        if option.mode is Mode.MIXED and option.skus == {sku}
    ]
    assert min(ours, default=None) == min(gpus, default=None)


def test_every_option_meets_the_slo_at_its_size_and_one_replica_fewer_does_not() -> None:
    assert FOUND.options
    for option in FOUND.options:
        assert evaluate(option.deployment(option.replicas), DEMAND.workload).meets(SLO), option.name
        if option.mode is Mode.MIXED and option.replicas > (1,):
            fewer = option.deployment((option.replicas[0] - 1,))
            assert not evaluate(fewer, DEMAND.workload).meets(SLO), option.name


@pytest.mark.parametrize("mode", list(Mode))
def test_a_sustained_rate_holds_and_a_little_more_does_not(mode: Mode) -> None:
    option = next(option for option in FOUND.options if option.mode is mode)
    replicas = tuple(1 for _ in option.pools)
    upper = fluid_bound_per_s(option, replicas, DEMAND)
    rate = sustained_rate_per_s(option, replicas, DEMAND, upper)
    assert 0.0 < rate <= upper
    deployment = option.deployment(replicas)
    assert evaluate(deployment, DEMAND.workload.at_rate(rate)).meets(SLO)
    assert not evaluate(deployment, DEMAND.workload.at_rate(rate * (1 + 2 * RATE_TOLERANCE))).meets(SLO)


@pytest.mark.parametrize("mode", list(Mode))
def test_nothing_above_the_fluid_bound_is_stable_or_fast_enough(mode: Mode) -> None:
    option = next(option for option in FOUND.options if option.mode is mode)
    bound = fluid_bound_per_s(option, option.replicas, DEMAND)
    beyond = DEMAND.workload.at_rate(1.02 * bound)
    assert not evaluate(option.deployment(option.replicas), beyond).meets(SLO)


def test_options_come_cheapest_first() -> None:
    costs = [option.fleet_usd_per_hour for option in FOUND.options]
    assert costs == sorted(costs)


def test_the_search_prunes() -> None:
    # Trying pool sizes one after another would take far more evaluations than there are configurations.
    assert FOUND.considered == 2 * 2 * (4 + 2 + 2)
    assert FOUND.evaluated < 12 * FOUND.considered


def test_what_cannot_meet_the_target_is_named_with_its_best_latency() -> None:
    strict = Slo(targets=(LatencyTarget(metric=Metric.TPOT, percentile=0.99, threshold_s=1e-4),))
    found = search(Demand(DEMAND.llm, DEMAND.precision, DEMAND.workload, strict))
    assert not found.options
    assert {(r.sku, r.mode) for r in found.rejections} == {(s, m) for s in SEARCH.skus for m in Mode}
    for rejection in found.rejections:
        assert "p99 TPOT" in rejection.reason
        assert "> 0.1 ms even when idle" in rejection.reason
        assert 1.0 < rejection.ratio < 1000.0


def test_a_model_that_does_not_fit_is_named_with_the_shortfall() -> None:
    space = SearchSpace(skus=("l4",), tp=(1,))
    demand = Demand(load_llm("llama-3.3-70b-instruct"), FP8, chat(1.0), SLO)
    found = search(demand, space)
    assert not found.options
    assert all("leave no KV cache" in rejection.reason for rejection in found.rejections)
    assert all(rejection.ratio == math.inf for rejection in found.rejections)


def test_an_e2e_target_binds_both_modes() -> None:
    e2e = Slo(targets=(LatencyTarget(metric=Metric.E2E, percentile=0.9, threshold_s=4.0),))
    found = search(Demand(DEMAND.llm, DEMAND.precision, DEMAND.workload, e2e))
    assert {option.mode for option in found.options} == set(Mode)
    for option in found.options:
        deployment = option.deployment(option.replicas)
        assert evaluate(deployment, DEMAND.workload).e2e.quantile_s(0.9) <= 4.0


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"tp": (0,)}, "tp = 0: must be >= 1"),
        ({"max_batched_tokens": ()}, "max_batched_tokens"),
        ({"max_running_requests": tuple(range(1, 2000)), "max_batched_tokens": tuple(range(16, 200))}, "more than"),
    ],
)
def test_bad_search_spaces_are_refused(changes: dict[str, tuple[int, ...]], text: str) -> None:
    with pytest.raises(InputError, match=text):
        SearchSpace(skus=("h100-sxm",), **changes)
