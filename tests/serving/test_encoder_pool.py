"""Pools of encoders: what engines do with the images of a request, and the waits of closed forms and of simulation."""

from __future__ import annotations

import numpy as np
import pytest

from planner.core import InputError, Metric, UnsupportedFeatureError, rebuilt
from planner.engine import ReplicaConfig, images_s, step_time
from planner.llm import load_llm
from planner.serving import (
    Deployment,
    Performance,
    encoded_parts,
    encoder_limit_per_s,
    evaluate,
    largest_stable_rate_per_s,
)
from planner.simulator import simulate
from planner.simulator.events import run_events
from planner.simulator.traffic import draw
from planner.traffic import lengths_with_images
from planner.workload import ClosedLoop, ImageMix, Images, ImageSize, TokenLengths, Workload
from tests.builders import H100, HARDWARE, calibrated

QWEN = "qwen3-vl-8b-instruct"
SQUARE, WIDE = (1024, 1024), (1920, 1080)


def language(encoders: float, **changes: object) -> ReplicaConfig:
    """A replica whose images others encode, or itself."""
    return calibrated(QWEN, "h100-sxm", "sglang", encoders=encoders, **changes)


def asking(per_request: float, *sizes: tuple[int, int], text: tuple[int, int] = (200, 100)) -> TokenLengths:
    """Questions about so many images a request."""
    mix = ImageMix(per_request=per_request, sizes=tuple(ImageSize(width=w, height=h) for w, h in sizes))
    return lengths_with_images(TokenLengths.constant(*text), mix, load_llm(QWEN))


def latency_s(performance: Performance, percentile: float = 0.0) -> float:
    """A percentile of TTFT, or its mean [s]."""
    return performance.ttft.quantile_s(percentile) if percentile else performance.ttft.mean_s


@pytest.mark.parametrize(("count", "encoders", "parts"), [(1, 4, 1), (2, 4, 2), (7, 3, 3), (6, 2, 2)])
def test_images_are_dealt_out_evenly_as_the_language_server_does(count: int, encoders: int, parts: int) -> None:
    """``_assign_items_by_modality`` of SGLang 0.5.23: base = items // encoders, one more for the remainder."""
    config, images = language(1.0), Images(count=count, width=1024, height=1024)
    dealt = encoded_parts(config, images, encoders)
    base, more = divmod(count, encoders)
    counts = [base + 1] * more + [base] * (parts - more)
    assert dealt.seconds == tuple(images_s(config, Images(count=number, width=1024, height=1024)) for number in counts)


def test_embeddings_travel_as_long_as_an_engine_measured() -> None:
    """SGLang pull request 19575: about 500 MB of eight images of 1080p, 25 ms by RDMA between two processes."""
    config, images = language(1.0), Images(count=8, width=1920, height=1080)
    faster = H100.node.nic_bytes_per_s_per_gpu.value / 25e9  # 200 Gb/s, that of most such servers
    assert encoded_parts(config, images, 1).transfer_s * faster == pytest.approx(0.025, rel=0.1)


@pytest.mark.parametrize("encoders", [1, 2])
def test_a_request_alone_takes_its_longest_part_the_transfer_and_a_step_without_images(encoders: int) -> None:
    own = ReplicaConfig(llm=load_llm(QWEN), sku=H100, engine=HARDWARE.engines["sglang"])
    config = rebuilt(own, encoders=encoders)
    lengths = asking(2, SQUARE, text=(500, 2))
    images = Images(count=2, width=1024, height=1024)
    by_hand = step_time(own, (), [(lengths.input_tokens[0], 0)]).total_s
    dealt = encoded_parts(config, images, encoders)
    by_hand += dealt.seconds[0] + dealt.transfer_s
    assert dealt.seconds[0] == images_s(own, Images(count=2 // encoders, width=1024, height=1024))
    alone = Workload.of(1e-4, lengths)
    assert latency_s(simulate(Deployment.mixed(config), alone, requests=1)) == pytest.approx(by_hand, rel=1e-9)
    assert latency_s(evaluate(Deployment.mixed(config), alone)) == pytest.approx(by_hand, rel=0.01)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_encoder_is_a_server_of_pollaczek_and_khinchine(load: float) -> None:
    """Requests alike before one encoder: W = rho S / (2 (1 - rho)), on top of replicas that hardly wait."""
    config, lengths = language(1 / 40), asking(1, SQUARE)
    part = encoded_parts(config, Images(width=1024, height=1024), 1)
    workload = Workload.of(load / part.seconds[0], lengths)
    waited_s = load * part.seconds[0] / (2.0 * (1.0 - load))
    one, many = (Deployment.mixed(language(encoders), 40) for encoders in (1 / 40, 100.0))
    busy, free = (evaluate(deployment, workload) for deployment in (one, many))
    assert latency_s(busy) - latency_s(free) == pytest.approx(waited_s, rel=0.03)
    assert busy.pools[0].encoders_busy == pytest.approx(load)
    (pool,) = (record := run_events(one, draw(workload, 20_000, 5), seed=5)).pools
    spent_s = float((pool.arrival_s - record.sent_s[pool.request]).mean())
    known_s = config.costs.request_s + part.seconds[0] + part.transfer_s
    assert spent_s - known_s == pytest.approx(waited_s, rel=0.1)


@pytest.mark.parametrize(("encoders", "rate_per_s"), [(0.25, 12.0), (0.25, 16.0), (0.5, 25.0), (0.75, 20.0)])
def test_theory_is_what_simulation_shows(encoders: float, rate_per_s: float) -> None:
    deployment = Deployment.mixed(language(encoders), 4)
    workload = Workload.of(rate_per_s, asking(1.5, SQUARE, WIDE))
    theory, seen = evaluate(deployment, workload), simulate(deployment, workload, seed=2, requests=8000)
    assert theory.stable and seen.stable
    assert latency_s(theory) == pytest.approx(latency_s(seen), rel=0.06)
    assert latency_s(theory, 0.95) == pytest.approx(latency_s(seen, 0.95), rel=0.1)
    assert theory.tpot.mean_s == pytest.approx(seen.tpot.mean_s, rel=0.05)


def test_encoders_come_before_prefill_pools_too() -> None:
    deployment = Deployment.disaggregated(language(1.0), language(0.0), (2, 3))
    workload = Workload.of(10.0, asking(1.5, SQUARE, WIDE))
    assert deployment.gpus == 7
    theory, seen = evaluate(deployment, workload), simulate(deployment, workload, seed=2, requests=8000)
    assert latency_s(theory) == pytest.approx(latency_s(seen), rel=0.05)
    with pytest.raises(InputError, match="prefill pools have encoders"):
        Deployment.disaggregated(language(0.0), language(1.0))


def test_both_loops_of_the_simulator_agree_to_the_last_bit() -> None:
    deployment = Deployment.mixed(language(0.5), 4)
    traffic = draw(Workload.of(25.0, asking(1.5, SQUARE, WIDE)), 1500, 1)
    apart, together = (run_events(deployment, traffic, seed=3, apart=apart) for apart in (True, False))
    for name in ("first_s", "end_s", "encoded"):
        assert np.array_equal(getattr(apart, name), getattr(together, name)), name


def test_too_few_encoders_are_overloaded_and_more_of_them_are_not() -> None:
    lengths = asking(2, SQUARE)
    few, many = (Deployment.mixed(language(encoders), 4) for encoders in (0.25, 2.0))
    config = few.pools[0].config
    limit_per_s = encoder_limit_per_s(config, 4, lengths)
    assert limit_per_s == pytest.approx(1.0 / images_s(config, Images(count=2, width=1024, height=1024)))
    assert largest_stable_rate_per_s(few, Workload.of(1.0, lengths)) == limit_per_s
    over = Workload.of(1.2 * limit_per_s, lengths)
    assert not evaluate(few, over).stable and not simulate(few, over, requests=4000).stable
    assert evaluate(many, over).stable


def test_replicas_that_encode_nothing_have_room_for_more() -> None:
    """The pool itself carries more where its images are encoded elsewhere: that is what encoders are bought for."""
    lengths = asking(2, SQUARE)
    own, other = (
        largest_stable_rate_per_s(Deployment.mixed(language(encoders), 4), Workload.of(1.0, lengths))
        for encoders in (0.0, 8.0)
    )
    assert other > 1.2 * own


def test_text_alone_meets_no_encoder() -> None:
    text = Workload.of(20.0, TokenLengths.constant(500, 100))
    own, other = (evaluate(Deployment.mixed(language(encoders), 2), text) for encoders in (0.0, 0.5))
    assert other.ttft.mean_s == own.ttft.mean_s and other.pools[0].encoders_busy == 0.0


def test_users_in_a_closed_loop_are_left_to_the_simulator() -> None:
    deployment = Deployment.mixed(language(0.5), 2)
    asked = Workload.of(1.0, asking(1, SQUARE))
    loop = Workload(arrivals=ClosedLoop(concurrency=8, requests=200), classes=asked.classes)
    with pytest.raises(UnsupportedFeatureError, match="encoders"):
        evaluate(deployment, loop)
    seen = simulate(deployment, loop)
    assert seen.pools[0].encoders_busy > 0.0 and seen.distribution(Metric.TTFT).mean_s > 0.0


def test_a_model_without_an_encoder_has_no_pool_of_them() -> None:
    with pytest.raises(InputError, match="no vision encoder that is modelled"):
        ReplicaConfig(llm=load_llm("llama-3.1-8b"), sku=H100, engine=HARDWARE.engines["sglang"], encoders=1.0)
