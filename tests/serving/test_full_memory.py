"""KV memory that fills: the simulator as judge, and nothing changed where memory is ample."""

from __future__ import annotations

from typing import Any

import pytest

from planner.core import rebuilt
from planner.engine import Preemption, ReplicaConfig, Schedule, StepTimeShift
from planner.queueing import largest_mixed_rate
from planner.serving import (
    Deployment,
    Pool,
    PoolLimit,
    Role,
    evaluate,
    largest_stable_rate_per_s,
    pool_model,
    requests_to_settle,
)
from planner.simulator import simulate
from planner.workload import TokenLengths, Workload
from tests.builders import FP8, HARDWARE, calibrated, mixed, replica
from tests.queueing.servers import AZURE

LONG = TokenLengths.from_pairs([500] * 4, [300, 800, 1500, 3400], [0.3, 0.3, 0.3, 0.1])


def growing(**changes: Any) -> ReplicaConfig:
    """Llama-3.1-8B whose requests grow into KV memory, as many at once as it holds."""
    schedule = Schedule(reserve_outputs=False, **changes)
    return replica(sku=HARDWARE.skus["l40s"], max_running_requests=1024, own_schedule=schedule)


TIGHT = replica(
    "llama-3.3-70b-instruct",
    max_running_requests=512,
    precision=FP8,
    memory_fraction=0.95,
    own_schedule=Schedule(reserve_outputs=False),
)
"""70B with FP8 weights on one H100: room for some twenty requests."""


@pytest.mark.parametrize(
    ("config", "lengths"),
    [
        (growing(), LONG),
        (growing(watermark=0.01), LONG),
        (growing(on_preemption=Preemption.SWAP), LONG),
        (TIGHT, TokenLengths.from_pairs([1000] * 3, [200, 500, 1000], [0.4, 0.4, 0.2])),
        (replica(max_batched_tokens=1024), AZURE),  # prompts give out first
        (replica(max_running_requests=64), AZURE),  # places do
    ],
)
def test_the_largest_stable_rate_is_what_an_overloaded_simulation_serves(
    config: ReplicaConfig, lengths: TokenLengths
) -> None:
    deployment = Deployment.mixed(config)
    limit = largest_stable_rate_per_s(deployment, Workload.of(1.0, lengths))
    run = simulate(deployment, Workload.of(1.15 * limit, lengths), requests=5000, warmup_fraction=0.6)
    served = run.output_tokens_per_s / lengths.mean_output
    assert limit == pytest.approx(served, rel=0.06)
    assert limit < 1.01 * served


def test_preemptions_and_memory_held_are_as_simulated_near_the_limit() -> None:
    deployment, lengths = Deployment.mixed(TIGHT), TokenLengths.from_pairs([1000] * 2, [200, 800], [0.5, 0.5])
    limit = largest_stable_rate_per_s(deployment, Workload.of(1.0, lengths))
    workload = Workload.of(0.95 * limit, lengths)
    theory, run = evaluate(deployment, workload).pools[0], simulate(deployment, workload, requests=12_000).pools[0]
    assert theory.limit is PoolLimit.KV_CAPACITY
    assert theory.preempted == pytest.approx(run.preempted, rel=0.5)
    assert theory.kv_occupancy_p99 == pytest.approx(run.kv_occupancy_p99, abs=0.03)
    assert theory.utilisation == pytest.approx(0.95, rel=1e-6)


def test_ample_memory_changes_nothing() -> None:
    plenty = replica(max_running_requests=16, own_schedule=Schedule(reserve_outputs=False))
    model = pool_model(Deployment.mixed(plenty).pools[0], LONG)
    workload = Workload.of(0.5, LONG)
    figures = evaluate(Deployment.mixed(plenty), workload).pools[0]
    limit = largest_stable_rate_per_s(Deployment.mixed(plenty), workload)
    assert limit == pytest.approx(largest_mixed_rate(model.server, LONG), rel=1e-12)
    assert figures.preempted == figures.kv_occupancy_p99 == 0.0
    assert requests_to_settle(Deployment.mixed(plenty), workload) == 0


def test_reserved_outputs_are_never_preempted() -> None:
    reserved = mixed(max_running_requests=1024, own_schedule=Schedule(reserve_outputs=True))
    limit = largest_stable_rate_per_s(reserved, Workload.of(1.0, LONG))
    assert evaluate(reserved, Workload.of(0.97 * limit, LONG)).pools[0].preempted == 0.0


def test_preemptions_grow_with_the_rate_and_beyond_the_limit_the_pool_is_unstable() -> None:
    deployment = Deployment.mixed(TIGHT)
    lengths = TokenLengths.constant(1000, 500)
    limit = largest_stable_rate_per_s(deployment, Workload.of(1.0, lengths))
    found = [evaluate(deployment, Workload.of(load * limit, lengths)) for load in (0.5, 0.8, 0.9, 0.99, 1.01)]
    preempted = [each.pools[0].preempted for each in found]
    assert preempted == sorted(preempted) and preempted[-2] > preempted[0]
    assert [each.stable for each in found] == [True, True, True, True, False]


def test_a_run_long_enough_to_settle_grows_towards_the_limit() -> None:
    deployment, lengths = Deployment.mixed(TIGHT), TokenLengths.constant(1000, 500)
    limit = largest_stable_rate_per_s(deployment, Workload.of(1.0, lengths))
    needed = [requests_to_settle(deployment, Workload.of(load * limit, lengths)) for load in (0.8, 0.9, 0.97)]
    assert 0 < needed[0] < needed[1] < needed[2]


def test_prompts_that_turn_out_faster_than_decodes_save_no_time_where_memory_is_full() -> None:
    """Steps with prompts may be off otherwise than steps of decodes: work again then costs nothing, not less."""
    config = calibrated("llama-3.1-8b", "h100-sxm", max_running_requests=2048)
    workload = Workload.of(1.0, TokenLengths.constant(1000, 200))

    def rate_per_s(prompt: float) -> float:
        shifted = rebuilt(config, shift=StepTimeShift(decode=1.5, prompt=prompt))
        pools = (Pool(role=Role.PREFILL, config=config, replicas=9), Pool(role=Role.DECODE, config=shifted, replicas=1))
        return largest_stable_rate_per_s(Deployment(pools=pools), workload)

    assert rate_per_s(0.4) == pytest.approx(rate_per_s(0.6))
