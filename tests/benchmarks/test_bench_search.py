"""How long the search takes from cold caches. Run with: pytest tests/benchmarks --benchmark-enable."""

from __future__ import annotations

from typing import Any

import pytest

from hardware_db import Dtype, select_calibration
from planner.engine.step_times import _cached_timer
from planner.llm import Precision
from planner.scenario import load_scenario
from planner.search import Capacity, Demand, FamilySet, Offer, SearchSpace, find_families, worth_sizes
from planner.search.prompt_times import alone_s
from tests.builders import HARDWARE
from tests.search.caches import forget_all

REQUEST = load_scenario("chat-llama-70b")
DEMAND = Demand(REQUEST.llm, REQUEST.precision, REQUEST.workload, REQUEST.slo)
WORKED = SearchSpace(
    skus=("a100-sxm-80gb", "h100-sxm", "h200-sxm", "l40s", "b200-sxm", "mi300x"),
    max_running_requests=(128, 256),
    max_batched_tokens=(1024, 2048, 4096, 8192),
)
WHOLE = SearchSpace(
    skus=(*WORKED.skus, "mi325x", "h20", "b300-sxm", "h100-nvl", "gb200-nvl72", "mi355x"),
    max_running_requests=(32, 64, 96, 128, 192, 256),
    max_batched_tokens=(512, 1024, 1536, 2048, 3072, 4096, 6144, 8192),
    precisions=(Precision(kv_cache=Dtype.FP8), Precision()),
)
"""12 SKUs x 4 splits x 3 formats x 6 batch limits x 8 chunk budgets x 3 roles: 20,736 configurations."""


def cold() -> None:
    """Forget whatever was worked out."""
    forget_all()
    alone_s.cache_clear()
    _cached_timer.cache_clear()


def search(space: SearchSpace) -> tuple[FamilySet, int]:
    """Families, and the number of pools of them that a bound was asked for."""
    offers = [Offer(HARDWARE.skus[sku], {"vllm": select_calibration(HARDWARE, sku, "vllm")}) for sku in space.skus]
    found, capacity, bounds = find_families(DEMAND, space, offers, HARDWARE.engines), Capacity(DEMAND), 0
    for family in found.families:
        for size in worth_sizes(family, capacity, REQUEST.workload.rate_per_s):
            capacity.bound_per_s(family, size)
            bounds += 1
    return found, bounds


@pytest.mark.parametrize("space", [WORKED, WHOLE], ids=["worked example", "20,736"])
def test_families_and_bounds_from_cold(benchmark: Any, space: SearchSpace) -> None:
    if benchmark.disabled and space is WHOLE:
        pytest.skip("the same at a large size, which matters where it is timed")
    found, bounds = benchmark.pedantic(search, (space,), setup=cold, rounds=1 if benchmark.disabled else 3)
    assert found.considered == (576 if space is WORKED else 20_736) and bounds > 100


def test_the_best_member_of_a_family(benchmark: Any) -> None:
    """From cold; a full evaluation takes about 20 ms."""
    (family,) = [one for one in search(WORKED)[0].families if one.name == "mixed h100-sxm TP2 kv fp8"]

    def best() -> Capacity:
        capacity = Capacity(DEMAND)
        assert capacity.best(family, 10).member is not None
        return capacity

    capacity = benchmark.pedantic(best, setup=forget_all, rounds=3)
    assert 0 < capacity.evaluations < 16
