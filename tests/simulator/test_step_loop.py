"""Replicas followed one by one, held to the last bit against the common clock of `planner.simulator.events`."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from hardware_db import EngineCosts
from planner.engine import (
    KvAllocation,
    Order,
    ReplicaConfig,
    Schedule,
    Speculation,
    memory_footprint,
    memory_share,
)
from planner.roofline import Parallelism
from planner.serving import Deployment, KvTransfer, Router
from planner.simulator.events import PoolRecord, RunRecord, run_events
from planner.simulator.traffic import DrawnTraffic
from tests.builders import calibrated
from tests.simulator_oracle import gpu, linear, replica, with_kv_tokens

ALONE = "planner.simulator.events.follow_alone"


def traffic(seed: int, count: int, rate_per_s: float, longest: tuple[int, int], ties: bool) -> DrawnTraffic:
    """Requests whose gaps are exponential, or all multiples of 1/64 s, so that much happens at one instant."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1.0 / rate_per_s, count)
    sent_s = np.cumsum(np.round(gaps * 64.0) / 64.0 if ties else gaps)
    inputs, outputs = (np.ceil(most * rng.random(count) ** 3).astype(np.int64) for most in longest)
    return DrawnTraffic.plain(sent_s, np.maximum(inputs, 1), np.maximum(outputs, 1))


def assert_same(one: RunRecord, other: RunRecord) -> None:
    for name in ("sent_s", "first_s", "end_s", "transfer_s", "sends"):
        assert np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True), name
    for mine, yours in zip(one.pools, other.pools, strict=True):
        for item in fields(PoolRecord):
            a, b = getattr(mine, item.name), getattr(yours, item.name)
            same = np.array_equal(a, b, equal_nan=True) if isinstance(a, np.ndarray) else a == b
            assert same, item.name


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("refused")


def both_ways(deployment: Deployment, requests: DrawnTraffic) -> tuple[RunRecord, RunRecord]:
    return run_events(deployment, requests), run_events(deployment, requests, apart=False)


def random_config(rng: np.random.Generator, tokens: int, *, linearly: bool, **schedule: object) -> ReplicaConfig:
    """A replica with so much room, whose blocks are reserved or not, with and without round times."""
    own = Schedule(reserve_outputs=bool(rng.random() < 0.3), watermark=float(rng.choice([0.0, 0.1])), **schedule)
    costs = EngineCosts(
        lag_steps=int(rng.integers(0, 3)),
        admission_s=float(rng.choice([0.0, 2.0**-6, 0.003])),
        request_s=float(rng.choice([0.0, 2.0**-7, 0.005])),
        transfer_request_s=float(rng.choice([0.0, 2.0**-8])),
        source="chosen for the test",
    )
    config = with_kv_tokens(
        tokens,
        gpu(nic=50e9 * float(rng.choice([1.0, 1e-2, 1e-3]))),
        max_running_requests=int(rng.choice([2, 8, 64])),
        max_batched_tokens=int(rng.choice([64, 256, 2048])),
        own_schedule=own,
    )
    config = config.model_copy(update={"engine": config.engine.model_copy(update={"costs": costs})})
    return linear(config) if linearly else config


def drafting(rng: np.random.Generator, config: ReplicaConfig) -> ReplicaConfig:
    """The replica with drafts of one to four tokens that cost something or not."""
    drafts = Speculation(
        draft_tokens=int(rng.integers(1, 5)),
        acceptance=float(rng.choice([0.0, 0.3, 0.75, 1.0])),
        draft_cost=float(rng.choice([0.0, 0.05])),
    )
    return config.model_copy(update={"speculation": drafts})


def with_prefixes(requests: DrawnTraffic, seed: int, groups: int, longest: int) -> DrawnTraffic:
    """Prompts that begin with one of some prefixes, longer ones than that; a fifth has a share that is just known."""
    rng = np.random.default_rng((seed, 1))
    prefix = rng.integers(0, groups, requests.sent_s.size)
    tokens = rng.integers(1, longest, groups)[prefix]
    own = rng.random(prefix.size) < 0.2
    known = np.where(own, rng.integers(0, requests.inputs), np.minimum(tokens, requests.inputs))
    return replace(requests, prefix=np.where(own, -1, prefix), prefix_tokens=known)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["mixed", "pair", "drafts", "drafts in a pair", "prefixes"])
def test_a_replica_followed_alone_does_what_it_does_on_the_common_clock(kind: str, seed: int) -> None:
    """Random limits, memory that runs out or not, links slow or fast, shared or not, few prefixes or many."""
    rng = np.random.default_rng(seed)
    ties, linearly = bool(rng.random() < 0.5), bool(rng.random() < 0.5)
    requests = traffic(seed, 300, float(rng.choice([2.0, 20.0, 60.0])), (400, 250), ties)
    shared: dict[str, object] = {"prefix_cache": True} if kind == "prefixes" else {}
    config = random_config(rng, int(rng.choice([700, 1200, 30_000])), linearly=linearly, **shared)
    if kind == "prefixes":
        requests = with_prefixes(requests, seed, int(rng.choice([1, 5, 60])), int(rng.choice([40, 400])))
    elif "drafts" in kind:
        config = drafting(rng, config)
    deployment = Deployment.mixed(config, int(rng.integers(1, 4)))
    if "pair" in kind:
        prefill = random_config(rng, int(rng.choice([1200, 60_000, 90_000])), linearly=linearly)
        policy = KvTransfer(
            shared=bool(rng.random() < 0.6),
            layerwise=bool(rng.random() < 0.5),
            first_token_from_decode=bool(rng.random() < 0.5),
        )
        replicas = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        deployment = Deployment.disaggregated(prefill, config, replicas).model_copy(update={"transfer": policy})
    alone, together = both_ways(deployment, requests)
    assert_same(alone, together)
    assert kind != "prefixes" or alone.pools[0].hits.sum() > 0


@pytest.mark.parametrize("model", ["deepseek-v3", "qwen3.5-27b"])
def test_drafts_of_a_model_of_its_own_are_timed_alike(model: str) -> None:
    """One with latent attention and one with recurrences: their steps are all in tables, those of their drafts too."""
    shape: dict[str, Any] = {"parallelism": Parallelism(tp=16, across_domains=True)} if model == "deepseek-v3" else {}
    config = calibrated(
        model, speculation=Speculation(draft_tokens=2, acceptance=0.8), max_batched_tokens=2048, **shape
    )
    assert config.timer.tables is not None
    alone, together = both_ways(Deployment.mixed(config, 2), traffic(8, 300, 20.0, (3000, 300), ties=False))
    assert_same(alone, together)
    assert not np.isnan(alone.end_s).any()


@pytest.mark.parametrize("blocks", [1500, 500])
def test_windows_kept_of_the_ends_of_prefixes_are_kept_alike(blocks: int) -> None:
    """Half of the layers see a window: of a prefix without its end nothing is found, and an end takes blocks."""
    own: dict[str, Any] = {
        "parallelism": Parallelism(tp=4),
        "own_schedule": Schedule(prefix_cache=True, reserve_outputs=False),
    }
    config = calibrated("gpt-oss-120b", **own)
    room = memory_footprint(config)
    spare = (room.kv_blocks - blocks) * config.engine.kv_block_tokens * room.kv_bytes_per_token
    fraction = memory_share(config) - spare / config.sku.seen_bytes
    config = calibrated("gpt-oss-120b", memory_fraction=fraction, **own)
    assert memory_footprint(config).kv_blocks == pytest.approx(blocks, abs=2)
    assert memory_footprint(config).sequence_blocks > 0
    requests = with_prefixes(traffic(7, 400, 20.0, (3000, 300), ties=False), 7, 30, 1500)
    alone, together = both_ways(Deployment.mixed(config, 2), requests)
    assert_same(alone, together)
    assert alone.pools[0].hits.sum() > 0


@pytest.mark.parametrize("reserves", [True, False])
def test_kv_caches_on_their_way_count_among_the_blocks_held(reserves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow link hundreds of prompts wait to be sent; memory is large enough for all of them."""
    config = replica(gpu(nic=5e8), own_schedule=Schedule(reserve_outputs=reserves))
    deployment = Deployment.disaggregated(config, config, (2, 2))
    requests = traffic(6, 300, 60.0, (400, 100), ties=False)
    together = run_events(deployment, requests, apart=False)
    monkeypatch.setattr("planner.simulator.events._EventLoop.run", refuse)
    assert_same(run_events(deployment, requests), together)
    held, in_step = together.pools[0].runs[:, 3], together.pools[0].runs[:, 9]
    assert held.max() > 3.0 * in_step.max() / config.engine.kv_block_tokens


@pytest.mark.parametrize(("model", "tp"), [("gpt-oss-120b", 4), ("deepseek-v3", 16)])
def test_calibrated_replicas_do_alike(model: str, tp: int) -> None:
    config = calibrated(model, max_batched_tokens=2048, parallelism=Parallelism(tp=tp, across_domains=tp > 8))
    alone, together = both_ways(Deployment.mixed(config, 3), traffic(2, 600, 30.0, (3000, 500), ties=False))
    assert_same(alone, together)
    assert not np.isnan(alone.end_s).any()


@pytest.mark.parametrize(
    ("changes", "router"),
    [
        ({}, Router.LEAST_REQUESTS),
        ({"own_schedule": Schedule(order=Order.SHORTEST_FIRST)}, Router.ROUND_ROBIN),
        ({"own_schedule": Schedule(mixed_steps=False)}, Router.ROUND_ROBIN),
        ({"own_schedule": Schedule(whole_prompts=True)}, Router.ROUND_ROBIN),
        ({"own_schedule": Schedule(receive_interval_steps=4)}, Router.ROUND_ROBIN),
        ({"own_schedule": Schedule(kv=KvAllocation.CONTIGUOUS, longest_tokens=2048)}, Router.ROUND_ROBIN),
        ({"mask_s": 1e-4}, Router.ROUND_ROBIN),
    ],
)
def test_other_rules_are_left_to_the_common_clock(
    changes: dict[str, Any], router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: ReplicaConfig = replica(**changes)
    deployment = Deployment.mixed(config, 2)
    pools = (deployment.pools[0].model_copy(update={"router": router}),)
    deployment = deployment.model_copy(update={"pools": pools})
    monkeypatch.setattr(ALONE, refuse)
    run_events(deployment, traffic(5, 20, 20.0, (300, 100), ties=False))
    with pytest.raises(AssertionError, match="refused"):
        run_events(Deployment.mixed(replica(), 2), traffic(5, 20, 20.0, (300, 100), ties=False))


def test_pairs_with_prefix_caches_or_pieces_on_the_link_are_left_to_the_common_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What waits to be sent keeps its prefix in use; SGLang sends prompts piece by piece."""
    monkeypatch.setattr(ALONE, refuse)
    requests = traffic(5, 20, 20.0, (300, 100), ties=False)
    sharing = replica(own_schedule=Schedule(prefix_cache=True))
    for config in (sharing, calibrated(engine="sglang")):
        run_events(Deployment.disaggregated(config, config, (1, 1)), requests)
    with pytest.raises(AssertionError, match="refused"):
        run_events(Deployment.mixed(sharing, 2), requests)
