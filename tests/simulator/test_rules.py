"""Policies that exclude each other are refused."""

from __future__ import annotations

import pytest

from planner.core import InputError
from planner.engine import Batching, KvAllocation, LoraAdapters, Order, Preemption, ReplicaConfig
from planner.serving import Deployment
from planner.simulator.events import run_events
from tests.simulator_oracle import EARLY, plain, replica, scheduled, with_kv_tokens


def refused(config: ReplicaConfig, decode: ReplicaConfig | None = None) -> str:
    """The field that a run of one request is refused for."""
    deployment = Deployment.mixed(config)
    if decode is not None:
        deployment = Deployment.disaggregated(config, decode, transfer=EARLY)
    with pytest.raises(InputError) as caught:
        run_events(deployment, plain([0.0], [10], [10]))
    return caught.value.field


@pytest.mark.parametrize(
    ("fields", "changes", "field"),
    [
        ({"prefix_cache": True}, {}, "schedule.prefix_cache"),
        ({"order": Order.PRIORITY, "preempts": True}, {}, "schedule.preempts"),
        ({"reserve_outputs": False}, {}, "schedule.reserve_outputs"),
        ({}, {"lora": LoraAdapters(adapters=2)}, "replica.lora"),
    ],
)
def test_what_static_batching_excludes_is_refused(
    fields: dict[str, object], changes: dict[str, object], field: str
) -> None:
    assert refused(scheduled(replica(**changes), batching=Batching.STATIC, **fields)) == field


def test_policies_that_exclude_each_other_are_refused() -> None:
    assert refused(replica(), decode=scheduled(replica(), batching=Batching.STATIC)) == "pool.role"
    swapping = scheduled(replica(), prefix_cache=True, on_preemption=Preemption.SWAP)
    assert refused(swapping) == "schedule.on_preemption"
    assert refused(scheduled(with_kv_tokens(2000), kv=KvAllocation.CONTIGUOUS)) == "schedule.longest_tokens"
    short = scheduled(replica(), kv=KvAllocation.CONTIGUOUS, longest_tokens=15)
    assert refused(short) == "workload.lengths"
