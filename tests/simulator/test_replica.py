"""Steps of a replica under every policy: against the plain loop on random small cases, and by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hardware_db import EngineCosts
from planner.core import Metric
from planner.engine import Batching, KvAllocation, LoraAdapters, Order, Preemption, ReplicaConfig, Schedule
from planner.llm import GroupedQueryAttention, LlmSpec
from planner.roofline import Parallelism
from planner.serving import Deployment, KvTransfer, PoolLimit, Role
from planner.simulator import simulate
from planner.simulator.events import RunRecord, run_events
from planner.simulator.traffic import DrawnTraffic, draw
from planner.workload import Images, RequestClass, TokenLengths, Workload
from tests.simulator_oracle import (
    LLAMA_8B_KV_BYTES_PER_TOKEN,
    PlainRun,
    brought,
    gpu,
    linear,
    llama_8b,
    looped,
    plain,
    prompts_s,
    replica,
    scheduled,
    uniform,
    with_kv_tokens,
    with_speculation,
)

CLASSES = tuple(
    RequestClass(name=name, lengths=TokenLengths.constant(1, 1), share=share, priority=priority, weight=weight)
    for name, share, priority, weight in (("a", 0.5, 1, 1.0), ("b", 0.25, 0, 4.0), ("c", 0.25, 5, 0.5))
)
POLICIES: dict[str, dict[str, object]] = {
    "first come": {},
    "swap": {"on_preemption": Preemption.SWAP, "reserve_outputs": False},
    "shortest": {"order": Order.SHORTEST_FIRST},
    "priority": {"order": Order.PRIORITY},
    "priority preempts": {"order": Order.PRIORITY, "preempts": True},
    "priority swaps": {"order": Order.PRIORITY, "preempts": True, "on_preemption": Preemption.SWAP},
    "fair": {"order": Order.FAIR_SHARE},
    "prefix": {"prefix_cache": True},
    "prefix growing": {"prefix_cache": True, "reserve_outputs": False},
    "prefix priority": {"prefix_cache": True, "order": Order.PRIORITY, "preempts": True},
    "contiguous": {"kv": KvAllocation.CONTIGUOUS, "longest_tokens": 210},
    "static": {"batching": Batching.STATIC},
}
CONTINUOUS = [policy for policy in POLICIES if policy != "static"]

# ------------------------------------------------------------------------------------- the plain loop


ROOMS = (450, 600, 1500, 50_000)
"""KV capacities [tokens]."""


def server(rng: np.random.Generator, policy: str, rooms: tuple[int, ...] = ROOMS, **changes: object) -> ReplicaConfig:
    """A replica with little room or much, any batch and budget, a fast host link, and what goes with any policy."""
    fields = POLICIES[policy]
    if policy != "static":
        fields = {
            "mixed_steps": bool(rng.random() < 0.6),
            "whole_prompts": bool(rng.random() < 0.3),
            "reserve_outputs": bool(rng.random() < 0.4),
            "receive_interval_steps": int(rng.choice([1, 1, 1, 5, 30])),
            "watermark": float(rng.choice([0.0, 0.0, 0.05, 0.3])),
            "batch_wait_steps": int(rng.choice([0, 0, 5])),
            "batch_wait_fill": float(rng.choice([0.3, 1.0])),
            "batch_wait_requests": int(rng.choice([0, 0, 2])),
            **fields,
        }
    sku = gpu(nic=2.0**35)
    link = sku.node.pcie_bytes_per_s.model_copy(update={"value": 2.0**36})
    sku = sku.model_copy(update={"node": sku.node.model_copy(update={"pcie_bytes_per_s": link})})
    running, budget = int(rng.choice([1, 3, 8, 64])), int(rng.choice([16, 50, 256, 2048]))
    sizes = {"max_running_requests": running, "max_batched_tokens": budget}
    config = with_kv_tokens(int(rng.choice(rooms)), sku, **{**sizes, **changes})
    costs = EngineCosts(
        request_s=float(rng.choice([0.0, 2.0**-6])),
        admission_s=float(rng.choice([0.0, 2.0**-10])),
        lag_steps=int(rng.choice([0, 0, 1, 3])),
    )
    engine = config.engine.model_copy(update={"costs": costs if policy != "static" else EngineCosts()})
    if policy != "static" and rng.random() < 0.25:
        config = with_speculation(config, int(rng.integers(1, 4)), float(rng.choice([0.0, 0.5, 1.0])))
    return scheduled(config.model_copy(update={"engine": engine}), **fields)


def requests(rng: np.random.Generator) -> DrawnTraffic:
    """Up to 44 requests of three classes, some with shared prefixes, all with an adapter; a third in a closed loop."""
    count = int(rng.integers(1, 45))
    inputs, outputs = rng.integers(1, int(rng.choice([60, 200])), count), rng.choice([1, 2, 20, 60, 120], count)
    inputs = np.minimum(inputs, 209 - outputs)
    rate = float(rng.choice([4.0, 30.0, 300.0]))
    sent_s = np.sort(np.floor(rng.random(count) * count / rate * 1024) / 1024)
    if rng.random() < 0.35:
        sent_s = np.zeros(min(int(rng.choice([1, 8, 32])), count))
    prefix = rng.integers(-1, 3, count)
    shared = np.where(prefix < 0, 0, np.minimum(rng.choice([10, 40, 100], count), inputs))
    kind, adapter = rng.integers(0, 3, count), rng.integers(0, 6, count)
    return DrawnTraffic(sent_s, inputs, outputs, kind, prefix, shared, adapter, images=np.full(count, -1))


def encoding_s(_: ReplicaConfig, images: Images) -> float:
    """An encoder as fast as a power of two."""
    return images.count * 2.0**-8


def check(deployment: Deployment, offered: DrawnTraffic) -> RunRecord:
    """Times of all requests and the gaps between their tokens, held against the plain loop."""
    played = run_events(deployment, offered, classes=CLASSES)
    classes = [(one.priority, one.weight) for one in CLASSES]
    each_s = np.array([*(encoding_s(deployment.pools[0].config, images) for images in offered.kinds), 0.0])
    sizes = offered.inputs, offered.outputs, offered.sent_s.tolist(), brought(offered), classes
    oracle = PlainRun(deployment, *sizes, each_s[offered.images].tolist())
    sent, first, end = oracle.run()
    assert not np.isnan(end).any()
    assert played.sent_s == pytest.approx(sent, rel=1e-9)
    assert played.first_s == pytest.approx(first, rel=1e-9)
    assert played.end_s == pytest.approx(end, rel=1e-9)
    gaps = np.array([gap for times in oracle.token_s for gap in np.diff(times)])
    found = np.concatenate([pool.gaps for pool in played.pools])
    assert found[:, 2].sum() == gaps.size
    assert found[:, 1] @ found[:, 2] == pytest.approx(gaps.sum(), rel=1e-9, abs=1e-12)
    if gaps.size:
        assert found[:, 1].max() == pytest.approx(gaps.max(), rel=0.01)
    for number, pool in enumerate(played.pools):
        assert pool.preempted == sum(one.preempted for one in oracle.pools[number])
        hits = {request: tokens for one in oracle.pools[number] for request, tokens in one.hits.items()}
        assert pool.hits.tolist() == [hits.get(request, 0) for request in pool.request.tolist()]
    if all(pool.config.speculation is None for pool in deployment.pools):
        assert gaps.size == (offered.outputs - 1).sum()
    return played


@pytest.mark.parametrize("policy", CONTINUOUS)
def test_every_policy_equals_the_plain_loop(policy: str) -> None:
    preempted = hits = 0
    for seed in range(6):
        rng = np.random.default_rng([0, seed, CONTINUOUS.index(policy)])
        played = check(Deployment.mixed(server(rng, policy), int(rng.integers(1, 4))), requests(rng))
        preempted += played.pools[0].preempted
        hits += int(played.pools[0].hits.sum())
    assert preempted > 0 or POLICIES[policy].get("reserve_outputs", True)
    assert preempted > 0 or not POLICIES[policy].get("preempts")
    assert hits > 0 or not POLICIES[policy].get("prefix_cache")


@pytest.mark.parametrize("order", Order)
def test_static_batches_equal_the_plain_loop(order: Order) -> None:
    for seed in range(4):
        rng = np.random.default_rng([0, seed])
        config = server(rng, "static", mask_s=float(rng.choice([0.0, 2.0**-12])))
        kv = KvAllocation.CONTIGUOUS if rng.random() < 0.3 else KvAllocation.PAGED
        wait_s = float(rng.choice([0.0, 2.0**-5, 0.5]))
        fields = {"batching": Batching.STATIC, "order": order, "static_wait_s": wait_s, "kv": kv}
        check(Deployment.mixed(scheduled(config, longest_tokens=210, **fields), int(rng.integers(1, 3))), requests(rng))


@pytest.mark.parametrize("policy", ["first come", "shortest", "priority", "priority preempts", "fair", "prefix"])
def test_adapters_and_masks_equal_the_plain_loop(policy: str) -> None:
    for seed in range(3):
        rng = np.random.default_rng([0, seed])
        lora = LoraAdapters(adapters=6, rank=int(rng.choice([16, 1024])), slots=int(rng.choice([1, 2, 4, 6])))
        check(Deployment.mixed(server(rng, policy, lora=lora, mask_s=2.0**-12)), requests(rng))


def with_windows(llm: LlmSpec) -> LlmSpec:
    """The model with windows of 64 tokens in a quarter of its layers."""
    (group,) = llm.layers
    assert isinstance(group.attention, GroupedQueryAttention)
    window = group.attention.model_copy(update={"window": 64})
    narrow = group.model_copy(update={"count": group.count // 4, "attention": window})
    wide = group.model_copy(update={"count": group.count - group.count // 4})
    return llm.model_copy(update={"layers": (wide, narrow)})


@pytest.mark.parametrize("policy", POLICIES)
def test_windows_equal_the_plain_loop(policy: str) -> None:
    """Layers with windows take room of their own for every sequence, and for the end of every prefix."""
    hits = 0
    for seed in range(2):
        rng = np.random.default_rng([8, seed])
        config = server(rng, policy, llm=with_windows(llama_8b()))
        hits += int(check(Deployment.mixed(config, int(rng.integers(1, 3))), requests(rng)).pools[0].hits.sum())
    assert (hits > 0) == bool(POLICIES[policy].get("prefix_cache"))


@pytest.mark.parametrize("policy", POLICIES)
def test_images_equal_the_plain_loop(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoded in the steps of the prompt, and again where it is processed again, in a decode pool too."""
    monkeypatch.setattr("planner.simulator.pool.images_s", encoding_s)
    kinds = tuple(Images(width=512, height=512, count=count) for count in (1, 5))
    for seed in range(2):
        rng = np.random.default_rng([7, seed])
        config = server(rng, policy)
        deployment = Deployment.mixed(config, int(rng.integers(1, 3)))
        if policy != "static" and seed % 3 == 0:
            transfer = KvTransfer(shared=False, first_token_from_decode=False)
            deployment = Deployment.disaggregated(config, config, transfer=transfer)
        offered = requests(rng)
        images = rng.integers(-1, len(kinds), offered.inputs.size)
        check(deployment, dataclasses.replace(offered, images=images, kinds=kinds))


def test_two_pools_equal_the_plain_loop() -> None:
    """Any policy in each pool; the links are free, as the plain loop has them."""
    preempted = {Role.PREFILL: 0, Role.DECODE: 0}
    for seed in range(20):
        rng = np.random.default_rng([1, seed, 9])
        lora = LoraAdapters(adapters=6, slots=int(rng.choice([1, 4]))) if rng.random() < 0.2 else None
        configs = [server(rng, str(rng.choice(CONTINUOUS)), (300, 450), lora=lora) for _ in range(2)]
        replicas = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
        transfer = KvTransfer(shared=False, first_token_from_decode=False)
        deployment = Deployment.disaggregated(*configs, replicas, transfer=transfer)
        for pool in check(deployment, requests(rng)).pools:
            preempted[pool.pool.role] += pool.preempted
    assert preempted[Role.DECODE] > 10


@pytest.mark.parametrize("policy", [Schedule(), Schedule(mixed_steps=False), Schedule(reserve_outputs=False)])
def test_curved_step_times_change_little(policy: Schedule) -> None:
    """Runs of steps are lines between curved step times: means stay within 1e-3 of the plain loop."""
    config = with_kv_tokens(9000, max_batched_tokens=512).model_copy(update={"own_schedule": policy})
    drawn = uniform(1000, 200, 60)
    result = looped(config, 8, drawn)
    sent, first, end = PlainRun(Deployment.mixed(config), *drawn, [0.0] * 8).run()
    assert result.ttft.mean_s == pytest.approx((first - sent).mean(), rel=1e-3)
    assert result.e2e.mean_s == pytest.approx((end - sent).mean(), rel=1e-3)


# ------------------------------------------------------------------------------------- prompts and decodes


def ttft_s(config: ReplicaConfig, *prompts: int) -> list[float]:
    """TTFT of prompts that come together and end with their first token [s]."""
    drawn = np.array(prompts), np.ones(len(prompts), dtype=np.int64)
    return list(looped(config, len(prompts), drawn).samples_s[Metric.TTFT])


def test_prompts_first_stall_decodes_and_come_sooner() -> None:
    """A prompt of four budgets meets one decoding sequence: prompts first takes four steps of their own; mixed steps
    lose one token of each budget and take five."""
    base, offered = replica(max_batched_tokens=256), plain([0.0, 0.5], [16, 1024], [400, 1])
    separate = scheduled(base, mixed_steps=False)
    stall_s = sum(prompts_s((256, past)) for past in range(0, 1024, 256))
    lone_s = prompts_s(16) + sum(separate.timer.decode_s(1, 16 + j) for j in range(1, 400))
    played, mixed = (run_events(Deployment.mixed(one), offered) for one in (separate, scheduled(base)))
    assert played.end_s[0] == pytest.approx(lone_s + stall_s, rel=1e-9)
    assert stall_s < played.first_s[1] - 0.5 < stall_s + separate.timer.decode_s(1, 416)
    assert played.first_s[1] < mixed.first_s[1]
    gaps = played.pools[0].gaps
    longest = gaps[gaps[:, 1].argmax()]
    assert longest[1] == pytest.approx(stall_s + separate.timer.decode_s(1, 150), rel=0.01)
    assert longest[2] == 1
    assert np.sort(gaps[:, 1])[-2] < 0.2 * longest[1]  # four steps and one's own


def test_whole_prompts_share_a_step_only_where_they_fit() -> None:
    """Budget 256: prompts of 150 and 150 take a step each, 100 and 150 share one, 600 goes alone in one."""
    config = scheduled(replica(max_batched_tokens=256), whole_prompts=True)
    one = prompts_s(100)
    assert ttft_s(config, 150, 150) == pytest.approx([prompts_s(150), 2 * prompts_s(150)], rel=1e-12)
    assert ttft_s(config, 100, 150) == pytest.approx([prompts_s(100, 150)] * 2, rel=1e-12)
    assert ttft_s(config, 100, 600, 50) == pytest.approx(np.cumsum([one, prompts_s(600), prompts_s(50)]), rel=1e-12)


@pytest.mark.parametrize(
    ("inputs", "waits", "steps"),
    [
        ([16, 64], {"batch_wait_fill": 0.9}, 20),
        ([16, 64], {"batch_wait_fill": 64 / 8192}, 0),
        ([16, 16, 64], {"batch_wait_requests": 2}, 20),  # two decode, and one of two prompts waits
        ([16, 16, 64], {"batch_wait_requests": 3}, 0),  # of three attention ranks one is idle
    ],
)
def test_a_batch_wait_holds_a_prompt_for_its_steps_beside_decodes(
    inputs: list[int], waits: dict[str, object], steps: int
) -> None:
    offered = plain([0.5 * k for k in range(len(inputs))], inputs, [400] * (len(inputs) - 1) + [1])
    base, held = (
        run_events(Deployment.mixed(scheduled(replica(), **fields)), offered).first_s
        for fields in ({}, {"batch_wait_steps": 20, **waits})
    )
    step_s = scheduled(replica()).timer.decode_s(len(inputs) - 1, 150)
    assert np.array_equal(held[:-1], base[:-1])
    assert held[-1] - base[-1] == pytest.approx(steps * step_s, rel=0.02)


def test_a_receive_interval_delays_by_half_an_interval_on_average() -> None:
    """Poisson arrivals see a uniform phase of the interval: the wait for a look grows from 1/2 to n/2 steps."""
    count, interval = 600, 30
    drawn = np.full(count, 1), np.ones(count, dtype=np.int64)
    drawn[1][0] = 8000  # decodes beside all others
    step = linear(replica()).timer.decode_s(1, 4000)
    workload = Workload.of(0.1 / step, TokenLengths.constant(1, 1))
    means, spreads = [], []
    for every in (1, interval):
        config = scheduled(replica(), receive_interval_steps=every)
        result = simulate(Deployment.mixed(config), workload, drawn=drawn, requests=count, warmup_fraction=0.0)
        means.append(result.samples_s[Metric.TTFT][1:].mean())
        spreads.append(result.samples_s[Metric.TTFT][1:].std())
    error = spreads[1] / np.sqrt(count / 3)  # arrivals of one interval share its look
    assert means[1] - means[0] == pytest.approx((interval - 1) / 2 * step, abs=4 * error)
    assert 4 * error < 0.25 * (interval - 1) / 2 * step


# ------------------------------------------------------------------------------------- the front end


def streaming(stream_s: float, **changes: object) -> ReplicaConfig:
    """A replica of lines whose tokens each take so long to be sent."""
    base = replica(**changes)
    costs = base.engine.costs.model_copy(update={"stream_s": stream_s})
    return linear(base.model_copy(update={"engine": base.engine.model_copy(update={"costs": costs})}))


@pytest.mark.parametrize("stream_s", [0.0, 2.0**-13, 2.0**-11.5, 2.0**-10])
def test_tokens_leave_in_the_order_of_steps_as_in_two_queues_in_tandem(stream_s: float) -> None:
    """Lindley's recursion, step by step: the tokens of a step leave once it has ended and those before have left.

    Context makes steps longer, from shorter than their tokens take to send to longer than that.
    """
    outputs = [40, 90, 90, 300, 1000, 1000, 1000, 1000]
    config = streaming(stream_s)
    record = run_events(Deployment.mixed(config), plain([0.0] * 8, [200] * 8, outputs))
    ended_s = left_s = prompts_s(*[200] * 8)
    left_s += 8 * stream_s
    assert record.first_s == pytest.approx([left_s] * 8, rel=1e-12)
    for step in range(1, max(outputs)):
        running = [tokens for tokens in outputs if tokens > step]
        ended_s += config.timer.decode_s(len(running), len(running) * (200.0 + step))
        left_s = max(left_s, ended_s) + len(running) * stream_s
        for request, tokens in enumerate(outputs):
            if tokens == step + 1:
                assert record.end_s[request] == pytest.approx(left_s, rel=1e-12)


def test_a_front_end_that_is_slower_than_the_gpus_sets_the_pace() -> None:
    """Users that each wait for the whole answer get one token in `stream_s`, whatever a step takes."""
    stream_s, users = 2.0**-11, 32
    config = streaming(stream_s)
    assert users * stream_s > 2.0 * config.timer.decode_s(users, users * 300)
    lengths = TokenLengths.from_pairs([100, 100], [100, 300], [0.5, 0.5])
    run = simulate(Deployment.mixed(config), Workload.closed(users, lengths, requests=1000))
    assert 200.0 * run.rate_per_s == pytest.approx(1.0 / stream_s, rel=0.03)


# ------------------------------------------------------------------------------------- pipelines


def staged(stages: int, **changes: object) -> ReplicaConfig:
    """A replica of pipeline stages, on its rooflines."""
    return replica(**{"max_batched_tokens": 2048, "parallelism": Parallelism(pp=stages), **changes})


def flow_shop_s(stage_s: list[float], stages: int) -> list[float]:
    """When each of some jobs leaves a line of alike stages [s], at most `stages` of them in it at once."""
    free, ends = [0.0] * stages, []
    for number, seconds in enumerate(stage_s):
        at = ends[number - stages] if number >= stages else 0.0
        for stage in range(stages):
            at = max(at, free[stage]) + seconds
            free[stage] = at
        ends.append(at)
    return ends


@pytest.mark.parametrize("stages", [1, 4])
def test_as_many_prompts_as_stages_go_through_together(stages: int) -> None:
    config = staged(stages)
    through_s = prompts_s(2048, timer=config.timer)
    assert prompts_s(*[2048] * stages, timer=config.timer) == pytest.approx(through_s, rel=1e-12)
    assert ttft_s(config, *[2048] * stages) == pytest.approx([through_s] * stages, rel=1e-12)
    last_s = (9 * stages - 1) * through_s / stages  # a line of alike jobs
    assert ttft_s(config, *[2048] * 8 * stages)[-1] == pytest.approx(last_s, abs=through_s)


@pytest.mark.parametrize("pieces", [1, 2, 3, 4, 7])
def test_pieces_of_a_lone_prompt_follow_one_another_through_the_stages(pieces: int) -> None:
    """Piece j enters the first stage while piece j - 1 is in the second; their attention grows, so piece by piece."""
    config = staged(2, max_batched_tokens=512)
    times = []
    for first in range(0, pieces, 2):
        both = [(512, 512 * k) for k in range(first, min(first + 2, pieces))]
        times += [prompts_s(*both, timer=config.timer) / 2.0] * len(both)
    assert ttft_s(config, pieces * 512) == pytest.approx([flow_shop_s(times, 2)[-1]], rel=0.05)


@pytest.mark.parametrize(("stages", "whole"), [(2, True), (4, False)])
def test_every_token_is_processed_once_in_a_pipeline(stages: int, whole: bool) -> None:
    rng = np.random.default_rng(3)
    config = staged(stages, max_batched_tokens=512, own_schedule=Schedule(whole_prompts=whole))
    inputs, outputs = rng.integers(1, 500 if whole else 3000, 80), rng.integers(1, 40, 80)
    workload = Workload.closed(16, TokenLengths.constant(1, 1), requests=80)
    record = run_events(Deployment.mixed(config), draw(workload, 0, 0, (inputs, outputs)))
    steps, decodes, chunk = (record.pools[0].runs.T[i] for i in (2, 5, 7))
    assert float(chunk.sum()) == inputs.sum()
    assert float(steps @ decodes) == (outputs - 1).sum()
    assert float((chunk + decodes).max()) <= 512 * stages


def test_a_whole_prompt_fits_into_a_micro_batch_and_not_into_two() -> None:
    """Budget 2048 in each of two: 1500 and 1500 go side by side, a third prompt waits though 1096 tokens are left."""
    config = staged(2, own_schedule=Schedule(whole_prompts=True))
    step_s, last_s = (prompts_s(*prompts, timer=config.timer) for prompts in ((1500, 1500), (1000,)))
    assert ttft_s(config, 1500, 1500, 1000) == pytest.approx([step_s, step_s, step_s + last_s], rel=1e-12)


# ------------------------------------------------------------------------------------- memory and preemption


def test_growing_caches_run_more_requests_and_recompute_the_youngest() -> None:
    """Every output token comes from a decode step or from the end of a prompt, first or recomputed."""
    drawn = uniform(200, 400, 120)
    offered = draw(Workload.closed(24, TokenLengths.constant(1, 1), requests=120), 0, 0, drawn)
    (whole,), (grown,) = (
        run_events(Deployment.mixed(scheduled(with_kv_tokens(4000), reserve_outputs=kept)), offered).pools
        for kept in (True, False)
    )
    for pool in (whole, grown):
        _, _, steps, held, _, decodes, _, chunk, *_ = pool.runs.T
        assert held.max() <= pool.kv_blocks
        assert steps @ decodes + pool.preempted == (drawn[1] - 1).sum()
        assert (steps @ chunk > drawn[0].sum()) == (pool.preempted > 0)
    assert whole.preempted == 0
    assert grown.preempted > 0
    running = [((pool.runs[:, 1] - pool.runs[:, 0]) @ pool.runs[:, 4]) / pool.runs[-1, 1] for pool in (whole, grown)]
    assert running[1] > 1.1 * running[0]


def test_without_memory_pressure_reservations_do_not_matter() -> None:
    drawn = uniform(1000, 200, 40)
    kept, grown = (looped(scheduled(replica(), reserve_outputs=flag), 4, drawn) for flag in (True, False))
    assert np.array_equal(kept.samples_s[Metric.E2E], grown.samples_s[Metric.E2E])
    assert grown.pools[0].kv_occupancy < kept.pools[0].kv_occupancy


def test_the_oldest_of_two_that_outgrow_the_cache_is_not_preempted_and_the_other_has_one_long_gap() -> None:
    """The first takes as long as alone; the second waits for its end, then has its tokens recomputed."""
    config = scheduled(with_kv_tokens(640), reserve_outputs=False)
    alone = run_events(Deployment.mixed(config), plain([0.0], [300], [300])).end_s[0]
    played = run_events(Deployment.mixed(config), plain([0.0, 0.0], [300, 300], [300, 300]))
    gaps = played.pools[0].gaps
    assert played.end_s[0] == pytest.approx(alone, rel=0.05)
    assert alone < played.end_s[1] < 2 * played.end_s[0]
    assert played.pools[0].preempted == 1
    assert gaps[:, 2].sum() == 2 * 299
    assert gaps[:, 1] @ gaps[:, 2] == pytest.approx((played.end_s - played.first_s).sum(), rel=1e-9)
    assert gaps[:, 1].max() > 200 * config.timer.decode_s(1, 450)


def test_an_urgent_request_takes_the_place_of_another_and_swapping_costs_two_copies() -> None:
    """One place: the second request waits for the end of a step, then runs as if alone. The first is copied out and
    back, or has its prompt and tokens computed again."""
    urgent = tuple(
        RequestClass(name=str(k), lengths=TokenLengths.constant(1, 1), share=0.5, priority=k) for k in range(2)
    )
    both, ends = plain([0.0, 1.0], [1000, 500], [400, 20], class_index=[1, 0]), {}
    for name, fields in {
        "waits": {},
        "recomputed": {"preempts": True},
        "swapped": {"preempts": True, "on_preemption": Preemption.SWAP},
    }.items():
        config = scheduled(replica(max_running_requests=1), order=Order.PRIORITY, **fields)
        ends[name] = run_events(Deployment.mixed(config), both, classes=urgent).end_s
    alone = run_events(Deployment.mixed(config), plain([0.0, 9.0], [1000, 500], [400, 20])).end_s - [0.0, 9.0]
    step_s = config.timer.decode_s(1, 1200)
    copy_s = 16 * LLAMA_8B_KV_BYTES_PER_TOKEN / 64e9  # a block of 16 tokens over the PCIe link of an H100
    assert alone[1] < ends["recomputed"][1] - 1.0 < alone[1] + 1.01 * step_s
    assert ends["waits"] == pytest.approx([alone[0], alone[0] + alone[1]], rel=1e-9)
    copies = (ends["swapped"][0] - alone[0] - alone[1]) / copy_s
    assert copies == pytest.approx(2 * round(copies / 2), abs=1e-6)  # as many blocks back as out
    assert 1000 / 16 < copies / 2 < 1400 / 16
    assert ends["recomputed"][0] - alone.sum() > prompts_s(1000) - step_s


def test_a_watermark_keeps_blocks_free_for_those_that_run() -> None:
    requests_of_100 = plain([0.0] * 40, [100] * 40, [200] * 40)
    lost = []
    for watermark in (0.0, 0.3):
        config = scheduled(with_kv_tokens(2000), reserve_outputs=False, watermark=watermark)
        pool = run_events(Deployment.mixed(config), requests_of_100).pools[0]
        lost.append(pool.preempted)
        beginning = pool.runs[pool.runs[:, 7] > 0]
        assert beginning[0, 3] <= (1 - watermark) * 125 + 7
    assert lost[1] < lost[0]


def test_contiguous_memory_holds_as_many_sequences_as_pieces() -> None:
    """125 blocks of 16 tokens: 7 pieces of 272 tokens, or 15 paged sequences of 128."""
    most = {}
    for kv in KvAllocation:
        config = scheduled(with_kv_tokens(2000), kv=kv, longest_tokens=272)
        runs = run_events(Deployment.mixed(config), plain([0.0] * 60, [64] * 60, [64] * 60)).pools[0].runs
        most[kv] = runs[:, 5].max()
    assert most == {KvAllocation.CONTIGUOUS: 125 // 17, KvAllocation.PAGED: 125 // 8}


def test_a_shared_prefix_is_processed_and_held_once() -> None:
    """Blocks of 16: of a prefix of 1000 tokens 62 can be shared. The second prompt does the rest, and reads all."""
    config = scheduled(replica(), prefix_cache=True)
    offered = plain([0.0, 1.0, 1.0], [1100, 1100, 1050], [100] * 3, prefix=[4, 4, 4], prefix_tokens=[1000] * 3)
    played = run_events(Deployment.mixed(config), offered)
    shared = 62 * 16
    assert played.pools[0].hits.tolist() == [0, shared, shared]
    both = prompts_s((1100 - shared, shared), (1050 - shared, shared))
    assert played.first_s[1] - 1.0 == pytest.approx(both, rel=1e-12)
    held = played.pools[0].runs[:, 3].max()
    assert held == 62 + (75 - 62) + (72 - 62)  # ceil(1200 / 16) and ceil(1150 / 16) in all


# ------------------------------------------------------------------------------------- speculation, adapters, masks


def test_drafts_that_are_never_right_change_nothing_but_their_price() -> None:
    drawn = uniform(1000, 50, 40)
    one, wrong = linear(replica()), linear(with_speculation(replica(), 3, 0.0))
    assert np.array_equal(looped(one, 4, drawn).samples_s[Metric.E2E], looped(wrong, 4, drawn).samples_s[Metric.E2E])


@pytest.mark.parametrize(("acceptance", "steps"), [(1.0, 25), (0.5, 53)])  # 99 gaps at 4 and at 1.875 tokens a step
def test_a_sequence_gains_its_expected_tokens_in_every_step(acceptance: float, steps: int) -> None:
    config = linear(with_speculation(replica(), 3, acceptance))
    result = looped(config, 1, (np.array([500]), np.array([100])))
    gain = 4.0 if acceptance == 1.0 else 1.875
    expected = sum(config.timer.decode_s(1, 501 + gain * k) for k in range(steps))
    assert result.e2e.mean_s - result.ttft.mean_s == pytest.approx(expected, rel=1e-12)


def test_drafts_take_their_part_of_the_token_budget() -> None:
    """Four tokens per sequence of a budget of 64: 16 at once."""
    config = linear(with_speculation(replica(max_batched_tokens=64, max_running_requests=64), 3, 0.5))
    result = looped(config, 40, (np.full(200, 8), np.full(200, 60)))
    assert result.pools[0].mean_running == pytest.approx(16, abs=1.5)
    assert result.pools[0].limit is PoolLimit.RUNNING_REQUESTS


def test_a_mask_takes_its_time_for_every_decoding_sequence() -> None:
    config, masked = linear(replica()), linear(replica(mask_s=0.001))
    offered = plain([0.0] * 4, [100] * 4, [50] * 4)
    fast, slow = (run_events(Deployment.mixed(one), offered).end_s for one in (config, masked))
    assert slow - fast == pytest.approx([49 * 4 * 0.001] * 4, rel=1e-9)
