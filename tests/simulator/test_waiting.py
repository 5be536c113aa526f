"""In which order requests are admitted: by size, by fair shares, in static batches, with adapters."""

from __future__ import annotations

import numpy as np
import pytest

from planner.engine import AdapterWork, Batching, LoraAdapters, Order
from planner.serving import Deployment
from planner.simulator.events import run_events
from planner.simulator.traffic import DrawnTraffic
from planner.workload import RequestClass, TokenLengths
from tests.simulator_oracle import linear, plain, prompts_s, replica, scheduled


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


def test_a_static_batch_pads_and_lasts_as_long_as_its_longest() -> None:
    config = scheduled(replica(), batching=Batching.STATIC)
    played = run_events(Deployment.mixed(config), plain([0.0, 0.0, 0.01], [100, 300, 50], [10, 50, 5]))
    prompts = prompts_s(300, 300)
    steps = np.cumsum([config.timer.decode_s(2, 2 * (301 + k)) for k in range(49)])
    assert played.first_s[:2] == pytest.approx([prompts] * 2, rel=1e-12)
    assert played.end_s[:2] == pytest.approx([prompts + steps[8], prompts + steps[48]], rel=1e-12)
    assert played.first_s[2] == pytest.approx(played.end_s[1] + prompts_s(50), rel=1e-12)


def test_a_static_batch_waits_to_fill_up() -> None:
    """Room for two, a third of a second apart: the first waits for the second, the third for half a second."""
    config = scheduled(replica(max_running_requests=2), batching=Batching.STATIC, static_wait_s=0.5)
    played = run_events(Deployment.mixed(config), plain([0.0, 0.3, 0.6], [100] * 3, [1] * 3))
    assert played.first_s[:2] == pytest.approx([0.3 + prompts_s(100, 100)] * 2, rel=1e-12)
    assert played.first_s[2] == pytest.approx(0.6 + 0.5 + prompts_s(100), rel=1e-12)


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


def test_an_adapter_is_loaded_before_its_first_request_and_stays() -> None:
    config = linear(replica(lora=LoraAdapters(adapters=3, slots=1)))
    offered = plain([0.0, 1.0, 2.0], [100, 100, 100], [2, 2, 2], adapter=[0, 0, 1])
    ttft = run_events(Deployment.mixed(config), offered).first_s - offered.sent_s
    load_s = 2 * 41_943_040 / 64e9  # LLaMA 3 8B at rank 16 (PEFT: trainable params), 2 bytes, over PCIe 5 x16
    work = AdapterWork.of(config)
    own = prompts_s(100) + work.step_s(100, 1)
    assert ttft == pytest.approx([own + load_s, own, own + load_s], rel=1e-9)
