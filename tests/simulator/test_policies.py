"""Every policy of `Schedule`, adapters and masks: against the plain loop on random small cases, and by hand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from planner.core import InputError
from planner.engine import (
    AdapterWork,
    Batching,
    KvAllocation,
    LoraAdapters,
    Order,
    Preemption,
    ReplicaConfig,
    Schedule,
    adapter_popularity,
    expected_distinct,
    memory_footprint,
)
from planner.engine.footprint import lora_bytes_per_gpu
from planner.llm import GroupedQueryAttention, LlmSpec, load_llm
from planner.serving import Deployment, KvTransfer
from planner.simulator.events import RunRecord, run_events
from planner.simulator.traffic import DrawnTraffic
from planner.workload import Images, RequestClass, TokenLengths
from tests.simulator_oracle import (
    EARLY,
    LLAMA_8B_KV_BYTES_PER_TOKEN,
    PlainRun,
    gpu,
    linear,
    llama_8b,
    replica,
    with_kv_tokens,
    with_speculation,
)

CLASSES = tuple(
    RequestClass(name=name, lengths=TokenLengths.constant(1, 1), share=share, priority=priority, weight=weight)
    for name, share, priority, weight in (("a", 0.5, 1, 1.0), ("b", 0.25, 0, 4.0), ("c", 0.25, 5, 0.5))
)
PCIE_BYTES_PER_S = 2.0**36


def server(tokens: int, rng: np.random.Generator, fields: dict[str, object], **changes: object) -> ReplicaConfig:
    """A replica with room for `tokens` of KV cache, a fast host link, and any batch and budget."""
    sku = gpu(nic=2.0**35)
    link = sku.node.pcie_bytes_per_s.model_copy(update={"value": PCIE_BYTES_PER_S})
    sku = sku.model_copy(update={"node": sku.node.model_copy(update={"pcie_bytes_per_s": link})})
    running, budget = int(rng.choice([1, 3, 8, 64])), int(rng.choice([16, 50, 256, 2048]))
    sizes = {"max_running_requests": running, "max_batched_tokens": budget}
    config = with_kv_tokens(tokens, sku, **{**sizes, **changes})
    return linear(config.model_copy(update={"own_schedule": Schedule(**fields)}))


def requests(rng: np.random.Generator, most_input: int = 60) -> DrawnTraffic:
    """Up to 44 requests of three classes, some with shared prefixes, all with an adapter."""
    count = int(rng.integers(1, 45))
    inputs, outputs = rng.integers(1, most_input, count), rng.choice([1, 2, 20, 60, 120], count)
    rate = float(rng.choice([4.0, 30.0, 300.0]))
    sent_s = np.sort(np.floor(rng.random(count) * count / rate * 1024) / 1024)
    prefix = rng.integers(-1, 3, count)
    shared = np.where(prefix < 0, 0, np.minimum(rng.choice([10, 40, 100], count), inputs))
    kind, adapter = rng.integers(0, 3, count), rng.integers(0, 6, count)
    return DrawnTraffic(sent_s, inputs, outputs, kind, prefix, shared, adapter, images=np.full(count, -1))


def brought(offered: DrawnTraffic) -> list[tuple[int, int, int, int]]:
    columns = offered.class_index, offered.prefix, offered.prefix_tokens, offered.adapter
    return [tuple(row) for row in np.stack(columns, axis=1).tolist()]


def with_windows(llm: LlmSpec) -> LlmSpec:
    """The model with windows of 64 tokens in a quarter of its layers."""
    (group,) = llm.layers
    assert isinstance(group.attention, GroupedQueryAttention)
    window = group.attention.model_copy(update={"window": 64})
    narrow = group.model_copy(update={"count": group.count // 4, "attention": window})
    wide = group.model_copy(update={"count": group.count - group.count // 4})
    return llm.model_copy(update={"layers": (wide, narrow)})


def encoding_s(_: ReplicaConfig, images: Images) -> float:
    """An encoder as fast as a power of two."""
    return images.count * 2.0**-8


def check(deployment: Deployment, offered: DrawnTraffic) -> tuple[RunRecord, PlainRun]:
    """Times of all requests and the gaps between their tokens, held against the plain loop."""
    played = run_events(deployment, offered, classes=CLASSES)
    classes = [(one.priority, one.weight) for one in CLASSES]
    each_s = np.array([*(encoding_s(deployment.pools[0].config, images) for images in offered.kinds), 0.0])
    sizes = offered.inputs, offered.outputs, offered.sent_s.tolist(), brought(offered), classes
    plain = PlainRun(deployment, *sizes, each_s[offered.images].tolist())
    _, first, end = plain.run()
    assert not np.isnan(end).any()
    assert played.first_s == pytest.approx(first, rel=1e-9)
    assert played.end_s == pytest.approx(end, rel=1e-9)
    gaps = np.array([gap for times in plain.token_s for gap in np.diff(times)])
    found = np.concatenate([pool.gaps for pool in played.pools])
    assert found[:, 2].sum() == gaps.size
    assert found[:, 1] @ found[:, 2] == pytest.approx(gaps.sum(), rel=1e-9, abs=1e-12)
    if gaps.size:
        assert found[:, 1].max() == pytest.approx(gaps.max(), rel=0.01)
    for number, pool in enumerate(played.pools):
        assert pool.preempted == sum(one.preempted for one in plain.pools[number])
        hits = {request: tokens for one in plain.pools[number] for request, tokens in one.hits.items()}
        assert pool.hits.tolist() == [hits.get(request, 0) for request in pool.request.tolist()]
    if all(pool.config.speculation is None for pool in deployment.pools):
        assert gaps.size == (offered.outputs - 1).sum()
    return played, plain


def base(rng: np.random.Generator) -> dict[str, object]:
    """What goes with any policy."""
    return {
        "mixed_steps": bool(rng.random() < 0.6),
        "whole_prompts": bool(rng.random() < 0.3),
        "reserve_outputs": bool(rng.random() < 0.4),
        "receive_interval_steps": int(rng.choice([1, 1, 1, 5])),
        "watermark": float(rng.choice([0.0, 0.0, 0.05, 0.3])),
        "batch_wait_steps": int(rng.choice([0, 0, 5])),
        "batch_wait_fill": 0.5,
        "batch_wait_requests": int(rng.choice([0, 0, 2])),
    }


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
}


@pytest.mark.parametrize("policy", POLICIES)
def test_equals_the_plain_loop(policy: str) -> None:
    preempted = hits = 0
    for seed in range(6):
        rng = np.random.default_rng([0, seed, list(POLICIES).index(policy)])
        config = server(int(rng.choice([450, 600, 1500, 50_000])), rng, {**base(rng), **POLICIES[policy]})
        if rng.random() < 0.25:
            config = linear(with_speculation(config, int(rng.integers(1, 4)), float(rng.choice([0.0, 0.5, 1.0]))))
        deployment = Deployment.mixed(config, int(rng.integers(1, 3)))
        played, _ = check(deployment, requests(rng))
        preempted += played.pools[0].preempted
        hits += int(played.pools[0].hits.sum())
    assert not POLICIES[policy].get("preempts") or preempted > 0
    assert not POLICIES[policy].get("prefix_cache") or hits > 0


@pytest.mark.parametrize("order", Order)
def test_static_batches_equal_the_plain_loop(order: Order) -> None:
    for seed in range(6):
        rng = np.random.default_rng([0, seed])
        contiguous = rng.random() < 0.3
        fields: dict[str, object] = {
            "batching": Batching.STATIC,
            "order": order,
            "static_wait_s": float(rng.choice([0.0, 2.0**-5, 0.5])),
            "kv": KvAllocation.CONTIGUOUS if contiguous else KvAllocation.PAGED,
            "longest_tokens": 210,
        }
        config = server(int(rng.choice([450, 1500, 50_000])), rng, fields, mask_s=float(rng.choice([0.0, 2.0**-12])))
        check(Deployment.mixed(config, int(rng.integers(1, 3))), requests(rng))


@pytest.mark.parametrize("order", Order)
def test_adapters_and_masks_equal_the_plain_loop(order: Order) -> None:
    for seed in range(6):
        rng = np.random.default_rng([0, seed])
        lora = LoraAdapters(adapters=6, rank=int(rng.choice([16, 1024])), slots=int(rng.choice([1, 2, 4, 6])))
        fields = {**base(rng), "order": order, "preempts": order is Order.PRIORITY and bool(rng.random() < 0.5)}
        fields |= {"prefix_cache": bool(rng.random() < 0.3)}
        config = server(int(rng.choice([450, 1500, 50_000])), rng, fields, lora=lora, mask_s=2.0**-12)
        check(Deployment.mixed(config), requests(rng))


@pytest.mark.parametrize("policy", [*POLICIES, "static"])
def test_windows_equal_the_plain_loop(policy: str) -> None:
    """Layers with windows take room of their own for every sequence, and for the end of every prefix."""
    hits = 0
    for seed in range(3):
        rng = np.random.default_rng([8, seed])
        fields = {**base(rng), **POLICIES[policy]} if policy != "static" else {"batching": Batching.STATIC}
        config = server(int(rng.choice([450, 800, 1500, 50_000])), rng, fields, llm=with_windows(llama_8b()))
        played, _ = check(Deployment.mixed(config, int(rng.integers(1, 3))), requests(rng))
        assert played.pools[0].kv_blocks
        hits += int(played.pools[0].hits.sum())
    assert (hits > 0) == bool(POLICIES.get(policy, {}).get("prefix_cache"))


@pytest.mark.parametrize("policy", [*POLICIES, "static"])
def test_images_equal_the_plain_loop(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoded in the steps of the prompt, and again where it is processed again, in a decode pool too."""
    monkeypatch.setattr("planner.simulator.pool.images_s", encoding_s)
    kinds = tuple(Images(width=512, height=512, count=count) for count in (1, 5))
    for seed in range(3):
        rng = np.random.default_rng([7, seed])
        fields = {**base(rng), **POLICIES[policy]} if policy != "static" else {"batching": Batching.STATIC}
        config = server(int(rng.choice([450, 1500, 50_000])), rng, fields)
        deployment = Deployment.mixed(config, int(rng.integers(1, 3)))
        if policy != "static" and seed % 3 == 0:
            transfer = KvTransfer(shared=False, first_token_from_decode=False)
            deployment = Deployment.disaggregated(config, config, transfer=transfer)
        offered = requests(rng)
        images = rng.integers(-1, len(kinds), offered.inputs.size)
        check(deployment, dataclasses.replace(offered, images=images, kinds=kinds))


def test_two_pools_and_closed_loops_equal_the_plain_loop() -> None:
    """Any policy in each pool; in every other case each end sends the next request."""
    preempted = 0
    for seed in range(20):
        rng = np.random.default_rng([1, seed, 9])
        lora = LoraAdapters(adapters=6, slots=int(rng.choice([1, 4]))) if rng.random() < 0.3 else None
        configs = []
        for _ in range(2):
            fields = POLICIES[str(rng.choice(list(POLICIES)))]
            configs.append(server(int(rng.choice([450, 1500])), rng, {**base(rng), **fields}, lora=lora))
        replicas = (int(rng.integers(1, 3)), int(rng.integers(1, 3)))
        deployment = Deployment.disaggregated(*configs, replicas, transfer=EARLY)
        deployment = deployment.model_copy(update={"transfer": KvTransfer(shared=False, first_token_from_decode=False)})
        offered = requests(rng)
        if seed % 2:
            offered = dataclasses.replace(offered, sent_s=np.zeros(min(8, offered.inputs.size)))
        played, _ = check(deployment, offered)
        preempted += played.pools[1].preempted
    assert preempted > 0


# ------------------------------------------------------------------------------------- gaps between tokens


def plain(sent_s: list[float], inputs: list[int], outputs: list[int], **columns: list[int]) -> DrawnTraffic:
    """Requests by hand."""
    offered = DrawnTraffic.plain(np.array(sent_s), np.array(inputs), np.array(outputs))
    return dataclasses.replace(offered, **{name: np.array(values) for name, values in columns.items()})


def scheduled(config: ReplicaConfig, **fields: object) -> ReplicaConfig:
    return linear(config.model_copy(update={"own_schedule": Schedule(**fields)}))


def prompt_s(config: ReplicaConfig, *prompts: tuple[int, int]) -> float:
    """A step of prompts (new, past) alone."""
    new, past = (np.array([prompt[i] for prompt in prompts]) for i in (0, 1))
    pairs = float((new * past + new * (new + 1) / 2).sum())
    return config.timer.step_s(0, 0, int(new.sum()), pairs, int((new + past).sum()), len(prompts))


@pytest.mark.parametrize("mixed", [True, False])
def test_gaps_add_up_to_the_time_between_first_and_last_token(mixed: bool) -> None:
    rng = np.random.default_rng(3)
    offered = DrawnTraffic.plain(np.sort(rng.random(400) * 20), rng.integers(1, 3000, 400), rng.integers(1, 300, 400))
    config = replica(max_batched_tokens=512).model_copy(update={"own_schedule": Schedule(mixed_steps=mixed)})
    played = run_events(Deployment.mixed(config, 2), offered)
    _, gap_s, count = played.pools[0].gaps.T
    assert count.sum() == (offered.outputs - 1).sum()
    assert gap_s @ count == pytest.approx((played.end_s - played.first_s).sum(), rel=1e-9)


def test_a_prompt_beside_decodes_is_one_long_gap_without_mixed_steps() -> None:
    """Orca's stall: a prompt of four budgets takes four steps in which nobody else gets a token."""
    config = scheduled(replica(max_batched_tokens=256), mixed_steps=False)
    gaps = run_events(Deployment.mixed(config), plain([0.0, 0.5], [16, 1024], [400, 1])).pools[0].gaps
    stall_s = sum(prompt_s(config, (256, past)) for past in range(0, 1024, 256))
    longest = gaps[gaps[:, 1].argmax()]
    assert longest[1] == pytest.approx(stall_s + config.timer.decode_s(1, 150), rel=0.01)
    assert longest[2] == 1
    assert np.sort(gaps[:, 1])[-2] < 0.2 * longest[1]  # four steps and one's own


def test_a_preempted_sequence_has_one_gap_until_its_tokens_are_recomputed() -> None:
    """Two sequences that outgrow the cache: the younger waits for the end of the older, then is recomputed."""
    config = scheduled(with_kv_tokens(640), reserve_outputs=False)
    played = run_events(Deployment.mixed(config), plain([0.0, 0.0], [300, 300], [300, 300]))
    gaps = played.pools[0].gaps
    assert played.pools[0].preempted == 1
    assert gaps[:, 2].sum() == 2 * 299
    assert gaps[:, 1] @ gaps[:, 2] == pytest.approx((played.end_s - played.first_s).sum(), rel=1e-9)
    assert gaps[:, 1].max() > 200 * config.timer.decode_s(1, 450)


# ------------------------------------------------------------------------------------- order


def test_shortest_first_has_the_least_mean_wait_of_a_single_server() -> None:
    """Smith's rule (1956): of requests that are all there, the shortest first has the least mean time in system."""
    inputs = [900, 100, 500, 300, 700]
    ends = {}
    for order in (Order.FCFS, Order.SHORTEST_FIRST):
        config = scheduled(replica(max_running_requests=1, max_batched_tokens=1024), order=order)
        ends[order] = run_events(Deployment.mixed(config), plain([0.0] * 5, inputs, [5] * 5)).end_s
    assert np.argsort(ends[Order.SHORTEST_FIRST]).tolist() == np.argsort(inputs).tolist()
    services = np.diff(np.concatenate([[0.0], np.sort(ends[Order.SHORTEST_FIRST])]))
    assert ends[Order.SHORTEST_FIRST].mean() == pytest.approx((services * [5, 4, 3, 2, 1]).sum() / 5, rel=1e-12)
    assert ends[Order.SHORTEST_FIRST].mean() < ends[Order.FCFS].mean()


def test_fair_share_keeps_backlogged_classes_within_the_bound_of_its_paper() -> None:
    """PoolRecord tokens of two classes that both always wait differ by 2 max(longest input, tokens of a batch) at most
    (Sheng et al., OSDI 2024, theorem 4.4), whatever each of them asks for; first come first served has no bound."""
    rng = np.random.default_rng(0)
    kind = np.repeat([0, 1], 300)
    inputs, outputs = np.where(kind == 0, 400, 40), np.where(kind == 0, 100, 10)
    order = rng.permutation(600)
    classes = tuple(RequestClass(name=str(k), lengths=TokenLengths.constant(1, 1), share=0.5) for k in range(2))
    spread = {}
    for policy in (Order.FAIR_SHARE, Order.FCFS):
        config = scheduled(replica(max_running_requests=8, max_batched_tokens=512), order=policy)
        offered = plain([0.0] * 600, list(inputs[order]), list(outputs[order]), class_index=list(kind[order]))
        played = run_events(Deployment.mixed(config), offered, classes=classes)
        both_wait = played.end_s[np.argsort(played.end_s)][:200].max()
        served = [
            (inputs[order] + outputs[order])[(kind[order] == k) & (played.end_s <= both_wait)].sum() for k in (0, 1)
        ]
        spread[policy] = abs(served[0] - served[1])
    bound = 2 * max(400, 8 * 500)
    assert spread[Order.FAIR_SHARE] <= bound < spread[Order.FCFS]


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
    assert ends["recomputed"][0] - alone.sum() > prompt_s(config, (1000, 0)) - step_s


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


# ------------------------------------------------------------------------------------- memory


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
    both = prompt_s(config, (1100 - shared, shared), (1050 - shared, shared))
    assert played.first_s[1] - 1.0 == pytest.approx(both, rel=1e-12)
    held = played.pools[0].runs[:, 3].max()
    assert held == 62 + (75 - 62) + (72 - 62)  # ceil(1200 / 16) and ceil(1150 / 16) in all


def test_the_least_recently_used_prefix_goes_first() -> None:
    """Room for 20 blocks: after two prefixes of 8 a request of 10 private ones leaves the later prefix alone."""
    config = scheduled(with_kv_tokens(320), prefix_cache=True)
    offered = plain(
        [0.0, 1.0, 2.0, 3.0, 4.0],
        [129, 129, 150, 129, 129],
        [2, 2, 2, 2, 2],
        prefix=[0, 1, -1, 1, 0],
        prefix_tokens=[128, 128, 0, 128, 128],
    )
    hits = run_events(Deployment.mixed(config), offered).pools[0].hits.tolist()
    assert hits == [0, 0, 0, 128, 32]  # 20 - 10 = 10 blocks stay: 8 of the later prefix, the first 2 of the other


# ------------------------------------------------------------------------------------- static batches


def test_a_static_batch_pads_and_lasts_as_long_as_its_longest() -> None:
    config = scheduled(replica(), batching=Batching.STATIC)
    played = run_events(Deployment.mixed(config), plain([0.0, 0.0, 0.01], [100, 300, 50], [10, 50, 5]))
    prompts = prompt_s(config, (300, 0), (300, 0))
    steps = np.cumsum([config.timer.decode_s(2, 2 * (301 + k)) for k in range(49)])
    assert played.first_s[:2] == pytest.approx([prompts] * 2, rel=1e-12)
    assert played.end_s[:2] == pytest.approx([prompts + steps[8], prompts + steps[48]], rel=1e-12)
    assert played.first_s[2] == pytest.approx(played.end_s[1] + prompt_s(config, (50, 0)), rel=1e-12)


def test_a_static_batch_waits_to_fill_up() -> None:
    """Room for two, a third of a second apart: the first waits for the second, the third for half a second."""
    config = scheduled(replica(max_running_requests=2), batching=Batching.STATIC, static_wait_s=0.5)
    played = run_events(Deployment.mixed(config), plain([0.0, 0.3, 0.6], [100] * 3, [1] * 3))
    assert played.first_s[:2] == pytest.approx([0.3 + prompt_s(config, (100, 0), (100, 0))] * 2, rel=1e-12)
    assert played.first_s[2] == pytest.approx(0.6 + 0.5 + prompt_s(config, (100, 0)), rel=1e-12)


def test_continuous_batching_beats_static_batching_on_uneven_outputs() -> None:
    """Direction of Orca (Yu et al., OSDI 2022): outputs that differ leave static batches half empty."""
    rng = np.random.default_rng(0)
    offered = DrawnTraffic.plain(np.zeros(200), rng.integers(50, 800, 200), rng.geometric(1 / 150, 200))
    ends = [
        run_events(
            Deployment.mixed(scheduled(replica(max_running_requests=16), batching=batching)), offered
        ).end_s.max()
        for batching in Batching
    ]
    assert ends[1] > 1.5 * ends[0]


# ------------------------------------------------------------------------------------- adapters and masks


def test_an_adapter_is_loaded_before_its_first_request_and_stays() -> None:
    config = linear(replica(lora=LoraAdapters(adapters=3, slots=1)))
    offered = plain([0.0, 1.0, 2.0], [100, 100, 100], [2, 2, 2], adapter=[0, 0, 1])
    ttft = run_events(Deployment.mixed(config), offered).first_s - offered.sent_s
    load_s = 2 * 41_943_040 / 64e9  # LLaMA 3 8B at rank 16 (PEFT: trainable params), 2 bytes, over PCIe 5 x16
    work = AdapterWork.of(config)
    own = prompt_s(config, (100, 0)) + work.step_s(100, 1)
    assert ttft == pytest.approx([own + load_s, own, own + load_s], rel=1e-9)


def test_adapters_read_their_weights_once_for_all_their_tokens() -> None:
    """41.9 M values of 2 bytes at 3.35 TB/s each; many tokens are bound by 2 FLOPs per value and token."""
    work = AdapterWork.of(replica(lora=LoraAdapters(adapters=8)))
    assert work.step_s(8, 4) == pytest.approx(4 * 2 * 41_943_040 / 3.35e12, rel=1e-12)
    assert work.step_s(8, 4) == work.step_s(4, 4)
    assert work.step_s(100_000, 1) == pytest.approx(1e5 * 2 * 41_943_040 / 989.4e12, rel=1e-12)
    assert work.step_s(0, 0) == 0.0


def test_adapters_of_routed_experts_are_read_where_tokens_go() -> None:
    """One token visits two of eight experts; many visit them all (Mixtral: Jiang et al., arXiv:2401.04088, table 1)."""
    config = replica(llm=load_llm("mixtral-8x7b-v0.1"), lora=LoraAdapters(adapters=8))
    work = AdapterWork.of(config)
    sizes = 4096 + 14336
    routed, others = 32 * 16 * 8 * 3 * sizes, 32 * 16 * (2 * 8192 + 2 * 5120)
    assert work.step_s(1, 1) * 3.35e12 == pytest.approx(2 * (others + routed / 4), rel=1e-12)
    assert work.step_s(64, 1) * 3.35e12 == pytest.approx(2 * (others + routed), rel=1e-6)
    assert work.token_flops == 2 * (others + routed / 4)


def test_slots_take_memory_from_the_cache() -> None:
    many, none = replica(lora=LoraAdapters(adapters=100, slots=64)), replica()
    assert lora_bytes_per_gpu(many) == 64 * 2 * 41_943_040
    lost = memory_footprint(none).kv_capacity_tokens - memory_footprint(many).kv_capacity_tokens
    assert lost == pytest.approx(64 * 2 * 41_943_040 / LLAMA_8B_KV_BYTES_PER_TOKEN, abs=16)


def test_expected_distinct_adapters_are_those_of_draws() -> None:
    lora = LoraAdapters(adapters=30, skew=1.2)
    rng = np.random.default_rng(0)
    drawn = rng.choice(30, size=(4000, 12), p=adapter_popularity(lora))
    counted = np.array([np.unique(row).size for row in drawn])
    expected = expected_distinct(12, adapter_popularity(lora))
    assert counted.mean() == pytest.approx(expected, abs=4 * counted.std() / math.sqrt(4000))


def test_a_mask_takes_its_time_for_every_decoding_sequence() -> None:
    config, masked = linear(replica()), linear(replica(mask_s=0.001))
    offered = plain([0.0] * 4, [100] * 4, [50] * 4)
    fast, slow = (run_events(Deployment.mixed(one), offered).end_s for one in (config, masked))
    assert slow - fast == pytest.approx([49 * 4 * 0.001] * 4, rel=1e-9)


# ------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("fields", "changes", "text"),
    [
        ({"prefix_cache": True}, {}, r"schedule.prefix_cache = True: does not go with static batching. Fix: set it to"),
        ({"order": Order.PRIORITY, "preempts": True}, {}, r"schedule.preempts = True: does not go with static"),
        ({"reserve_outputs": False}, {}, r"schedule.reserve_outputs = False: does not go with static"),
        ({}, {"lora": LoraAdapters(adapters=2)}, r"replica.lora = True: does not go with static batching"),
    ],
)
def test_what_static_batching_excludes_is_refused(
    fields: dict[str, object], changes: dict[str, object], text: str
) -> None:
    config = scheduled(replica(**changes), batching=Batching.STATIC, **fields)
    with pytest.raises(InputError, match=text):
        run_events(Deployment.mixed(config), plain([0.0], [10], [10]))


def test_policies_that_exclude_each_other_are_refused() -> None:
    static = scheduled(replica(), batching=Batching.STATIC)
    with pytest.raises(InputError, match=r"pool.role = 'decode': does not go with static batching"):
        run_events(Deployment.disaggregated(replica(), static, transfer=EARLY), plain([0.0], [10], [10]))
    swapping = scheduled(replica(), prefix_cache=True, on_preemption=Preemption.SWAP)
    with pytest.raises(InputError, match=r"schedule.on_preemption = 'swap': a swapped KV cache cannot share blocks"):
        run_events(Deployment.mixed(swapping), plain([0.0], [10], [10]))
    large = scheduled(with_kv_tokens(2000), kv=KvAllocation.CONTIGUOUS)
    with pytest.raises(InputError, match=r"schedule.longest_tokens = 8192: one piece is more than the 2000 tokens"):
        run_events(Deployment.mixed(large), plain([0.0], [10], [10]))
    short = scheduled(replica(), kv=KvAllocation.CONTIGUOUS, longest_tokens=15)
    with pytest.raises(InputError, match=r"workload.lengths = 20: more than the 15 tokens of one contiguous piece"):
        run_events(Deployment.mixed(short), plain([0.0], [10], [10]))
