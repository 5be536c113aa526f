"""KV tiers: what they hold and how long loads take, against bytes over bandwidth."""

from __future__ import annotations

from typing import Any

import pytest

from hardware_db import KvTierKind, kv_tier_facts
from planner.core import InputError
from planner.engine import (
    KvTier,
    ReplicaConfig,
    Schedule,
    kv_tier_notes,
    kv_tiers_usd_per_gpu_hour,
    levels_worth_loading,
    prompt_s,
    read_bytes_per_s,
    tier_loads,
)
from planner.engine.kv_tiers import recompute_s
from tests.builders import H100, HARDWARE, replica

LLAMA_8B_BYTES = 2 * 32 * 8 * 128 * 2  # keys and values, layers, heads, width, bytes: its config.json
HOST = KvTier(kind=KvTierKind.HOST, size_bytes=8e12, read_bytes_per_s=50e9, latency_s=1e-3)


def behind(*tiers: KvTier, engine: str = "vllm", **changes: Any) -> ReplicaConfig:
    config = replica(own_schedule=Schedule(prefix_cache=True, kv_tiers=tiers), **changes)
    fields = {name: getattr(config, name) for name in ReplicaConfig.model_fields}
    return ReplicaConfig(**{**fields, "engine": HARDWARE.engines[engine]})


def test_a_load_is_latency_and_bytes_over_bandwidth() -> None:
    (loads,) = tier_loads(behind(HOST))
    assert loads.load_s(2000) == pytest.approx(1e-3 + 2000 * LLAMA_8B_BYTES / 50e9)
    assert loads.load_s(0) == 0.0


def test_gpus_of_a_replica_load_their_heads_at_the_same_time() -> None:
    (one,), (four,) = tier_loads(behind(HOST)), tier_loads(behind(HOST, tp=4))
    assert four.token_s == pytest.approx(one.token_s / 4)
    assert four.blocks == pytest.approx(4 * one.blocks, rel=1e-6)


def test_a_replica_has_the_part_of_its_gpus_of_a_server() -> None:
    (loads,) = tier_loads(behind(HOST))
    assert loads.blocks == 8e12 / 8 // (16 * LLAMA_8B_BYTES)


def test_bandwidth_not_given_is_a_share_of_the_link_of_the_sku() -> None:
    """vLLM reports 83.4 GB/s with loads and stores together on an H100: 41.7 each way of PCIe 5.0's 64."""
    host = read_bytes_per_s(behind(HOST), KvTier(kind=KvTierKind.HOST, size_bytes=1))
    assert host == pytest.approx(41.7e9, rel=0.01)
    shared = read_bytes_per_s(behind(HOST), KvTier(kind=KvTierKind.SHARED, size_bytes=1))
    assert shared < H100.node.nic_bytes_per_s_per_gpu.value
    for kind in KvTierKind:
        facts = kv_tier_facts()[kind]
        assert (facts.link_share or facts.read_bytes_per_s) is not None


def test_what_loads_slower_than_it_computes_is_left_alone() -> None:
    slow = HOST.model_copy(update={"read_bytes_per_s": 1e6})
    fast = HOST.model_copy(update={"read_bytes_per_s": 1e15, "latency_s": 0.0})
    for tier, count in ((slow, 0), (fast, 1)):
        config = behind(tier)
        assert levels_worth_loading(config, tier_loads(config), [4000]) == count
    config = behind(fast, slow.model_copy(update={"kind": KvTierKind.SSD}))
    assert levels_worth_loading(config, tier_loads(config), [4000, 4000]) == 1


def test_computing_more_tokens_takes_longer_and_a_whole_prompt_its_steps() -> None:
    config = behind(HOST)
    times_s = [recompute_s(config, tokens) for tokens in (0, 100, 1000, 8000, 20_000)]
    assert times_s == sorted(times_s)
    assert times_s[0] == 0.0
    assert prompt_s(config, 2 * config.step_tokens) > 2 * prompt_s(config, config.step_tokens)


def test_layers_loaded_while_others_are_computed_delay_a_prompt_by_what_is_left() -> None:
    """Splitwise, section 4.3: max(transfer / layers, transfer - step)."""
    (loads,) = tier_loads(behind(HOST, engine="sglang"))
    load_s = loads.load_s(2000)
    assert loads.delay_s(2000, step_s=10.0) == pytest.approx(load_s / 32)
    assert loads.delay_s(2000, step_s=0.25 * load_s) == pytest.approx(0.75 * load_s)
    (whole,) = tier_loads(behind(HOST))
    assert whole.delay_s(2000, step_s=10.0) == whole.load_s(2000)


def test_cost_is_that_of_a_server_shared_by_its_gpus() -> None:
    tier = HOST.model_copy(update={"size_bytes": 1e12, "usd_per_gb_month": 0.73})
    assert kv_tiers_usd_per_gpu_hour(behind(tier)) == pytest.approx(1000 * 0.73 / 730 / 8)
    assert kv_tiers_usd_per_gpu_hour(behind(HOST)) == 0.0
    assert "part of the server" in kv_tier_notes(behind(HOST))[0]


def test_tiers_are_levels_of_a_prefix_cache_each_of_another_kind() -> None:
    with pytest.raises(InputError, match="prefix_cache"):
        Schedule(kv_tiers=(HOST,))
    with pytest.raises(InputError, match="host memory first"):
        Schedule(prefix_cache=True, kv_tiers=(HOST, HOST))
    with pytest.raises(InputError, match="host memory first"):
        Schedule(prefix_cache=True, kv_tiers=(HOST.model_copy(update={"kind": KvTierKind.SSD}), HOST))


def test_a_tier_that_an_engine_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="a KV tier in a shared store"):
        behind(HOST.model_copy(update={"kind": KvTierKind.SHARED}), engine="tensorrt-llm")
