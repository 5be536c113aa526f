"""KV tiers in theory: limits where the answer is known, and the simulation."""

from __future__ import annotations

import math

import pytest

from hardware_db import KvTierKind
from planner.core import Metric
from planner.engine import KvTier, Schedule, read_bytes_per_s, tier_loads
from planner.engine.kv_tiers import recompute_s
from planner.serving import Deployment, Performance, Router, evaluate, largest_stable_rate_per_s
from planner.simulator import simulate
from planner.workload import ArrivalProcess, RequestClass, SharedPrefixes, TokenLengths, Workload
from tests.builders import calibrated

HOST = KvTier(kind=KvTierKind.HOST, size_bytes=1.6e12)
SSD = KvTier(kind=KvTierKind.SSD, size_bytes=16e12)
SHARED = KvTier(kind=KvTierKind.SHARED, size_bytes=1e12)
ENDLESS = KvTier(kind=KvTierKind.HOST, size_bytes=1e17)


def pool(*tiers: KvTier, replicas: int = 1, engine: str = "vllm", router: Router = Router.ROUND_ROBIN) -> Deployment:
    config = calibrated(engine=engine, own_schedule=Schedule(prefix_cache=True, kv_tiers=tiers))
    deployment = Deployment.mixed(config, replicas)
    return Deployment(pools=(deployment.pools[0].model_copy(update={"router": router}),))


def prompts(rate_per_s: float, groups: int = 2000) -> Workload:
    """4,000 of 4,300 prompt tokens are one of so many documents."""
    documents = RequestClass(
        lengths=TokenLengths.constant(4300, 50), prefixes=SharedPrefixes(tokens=4000, groups=groups, skew=0.8)
    )
    return Workload(arrivals=ArrivalProcess(rate_per_s=rate_per_s), classes=(documents,))


def means_s(performance: Performance) -> list[float]:
    return [performance.distribution(metric).mean_s for metric in Metric]


def test_tiers_of_size_0_change_nothing_bit_for_bit() -> None:
    none = evaluate(pool(), prompts(4.0))
    empty = evaluate(pool(HOST.model_copy(update={"size_bytes": 0.0})), prompts(4.0))
    assert means_s(empty) == means_s(none)
    assert empty.pools == none.pools


def test_an_endless_tier_finds_every_prefix_that_was_asked_for_before() -> None:
    performance = evaluate(pool(ENDLESS), prompts(4.0))
    assert performance.pools[0].prefix_hits == pytest.approx(4000 / 4300)
    assert 0.0 < performance.pools[0].tier_hits[0] < 4000 / 4300


def test_an_endless_tier_that_loads_at_once_is_a_gpu_that_holds_everything() -> None:
    at_once = ENDLESS.model_copy(update={"read_bytes_per_s": 1e15, "latency_s": 0.0})
    behind, on_gpu = evaluate(pool(at_once), prompts(4.0)), evaluate(pool(), prompts(4.0, groups=10))
    assert means_s(behind) == pytest.approx(means_s(on_gpu), rel=0.02)


def test_a_tier_slower_than_computing_is_not_used() -> None:
    slow = ENDLESS.model_copy(update={"read_bytes_per_s": 1e8})
    assert evaluate(pool(slow), prompts(4.0)).pools[0].tier_hits == (0.0,)
    assert means_s(evaluate(pool(slow), prompts(4.0))) == pytest.approx(means_s(evaluate(pool(), prompts(4.0))))


def test_more_tiers_and_more_bandwidth_never_hurt() -> None:
    by_tiers = [evaluate(pool(*tiers), prompts(4.0)).ttft.mean_s for tiers in ((), (HOST,), (HOST, SSD))]
    assert by_tiers == sorted(by_tiers, reverse=True)
    speeds = (2e10, 4e10, 8e10, 1e12)
    by_speed = [
        evaluate(pool(HOST.model_copy(update={"read_bytes_per_s": speed})), prompts(4.0)).ttft.mean_s
        for speed in speeds
    ]
    assert by_speed == sorted(by_speed, reverse=True)


def test_a_link_that_cannot_keep_up_limits_the_rate() -> None:
    """Loads that take almost as long as computing hold up more than they save."""
    (endless,) = tier_loads(pool(ENDLESS).pools[0].config)
    own_s = recompute_s(pool(ENDLESS).pools[0].config, 4000)
    speed = read_bytes_per_s(pool(ENDLESS).pools[0].config, ENDLESS) * endless.load_s(4000) / (0.95 * own_s)
    narrow = ENDLESS.model_copy(update={"read_bytes_per_s": speed})
    deployment = pool(narrow)
    limit = largest_stable_rate_per_s(deployment, prompts(1.0))
    loads = evaluate(deployment, prompts(1.0)).pools[0]
    assert limit == pytest.approx(1.0 / loads.tier_link, rel=0.25)
    over = evaluate(deployment, prompts(1.3 * limit))
    assert not over.stable
    assert math.isinf(over.ttft.mean_s)


def test_an_engine_that_loads_layer_by_layer_waits_for_less() -> None:
    by_layer, whole = pool(HOST, engine="sglang"), pool(HOST, engine="sglang")
    config = whole.pools[0].config
    changed = config.engine.model_copy(update={"layerwise_kv_tiers": ()})
    whole = Deployment.mixed(config.model_copy(update={"engine": changed}))
    assert evaluate(by_layer, prompts(4.0)).ttft.mean_s < evaluate(whole, prompts(4.0)).ttft.mean_s


@pytest.mark.parametrize(
    ("tiers", "replicas", "router"),
    [
        ((HOST, SSD), 1, Router.ROUND_ROBIN),
        ((HOST, SHARED), 2, Router.ROUND_ROBIN),
        ((HOST,), 2, Router.PREFIX_AFFINITY),
    ],
)
def test_hits_and_first_tokens_are_those_of_the_simulation(
    tiers: tuple[KvTier, ...], replicas: int, router: Router
) -> None:
    deployment, workload = pool(*tiers, replicas=replicas, router=router), prompts(3.0 * replicas)
    theory = evaluate(deployment, workload)
    run = simulate(deployment, workload, requests=2500, warmup_fraction=0.3, seed=3)
    assert theory.pools[0].prefix_hits == pytest.approx(run.pools[0].prefix_hits, abs=0.03)
    assert theory.pools[0].tier_hits == pytest.approx(run.pools[0].tier_hits, abs=0.03)
    assert theory.pools[0].tier_link == pytest.approx(run.pools[0].tier_link, abs=0.02)
    assert theory.ttft.mean_s == pytest.approx(run.ttft.mean_s, rel=0.12)
