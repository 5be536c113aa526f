"""Requests with images: encoder time and image tokens in theory and simulation."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

from planner.core import Metric, rebuilt
from planner.engine import Batching, KvAllocation, ReplicaConfig, Schedule, images_s, step_time
from planner.fleet import split_by_length
from planner.llm import load_llm
from planner.roofline import Parallelism
from planner.serving import Deployment, Performance, evaluate, largest_stable_rate_per_s
from planner.simulator import simulate
from planner.traffic import LengthSplit, lengths_with_images
from planner.workload import (
    ArrivalProcess,
    ImageMix,
    Images,
    ImageSize,
    RequestClass,
    SharedPrefixes,
    TokenLengths,
    Workload,
)
from tests.builders import calibrated, replica

QWEN = "qwen3-vl-8b-instruct"
LLM = load_llm(QWEN)
TEXT = TokenLengths.from_pairs([100, 500, 1500], [100, 200, 50], [0.4, 0.4, 0.2])
SIZES = (ImageSize(width=1024, height=1024, weight=0.7), ImageSize(width=1920, height=1080, weight=0.3))
ONE = ImageMix(per_request=1, sizes=SIZES[:1])


def with_images(per_request: float, text: TokenLengths = TEXT) -> TokenLengths:
    """Texts with so many images a request."""
    return lengths_with_images(text, ImageMix(per_request=per_request, sizes=SIZES), LLM)


def alone_s(run: Any, config: Any, lengths: TokenLengths) -> float:
    """Mean TTFT of requests that meet nobody [s]."""
    performance: Performance = run(Deployment.mixed(config), Workload.of(1e-4, lengths))
    return performance.ttft.mean_s


def test_a_request_alone_takes_its_step_and_its_encoder() -> None:
    config = replica(QWEN)
    lengths = lengths_with_images(TokenLengths.constant(500, 2), ONE, LLM)
    tokens = lengths.input_tokens[0]
    assert tokens == 500 + 32 * 32 + 2
    by_hand = step_time(config, (), [(tokens, 0)]).total_s + images_s(config, Images(width=1024, height=1024))
    seen = simulate(Deployment.mixed(config), Workload.of(1e-4, lengths), requests=1)
    assert seen.ttft.mean_s == pytest.approx(by_hand, rel=1e-9)
    assert alone_s(evaluate, config, lengths) == pytest.approx(by_hand, rel=0.01)


def test_chunks_of_a_prompt_share_the_time_of_its_encoder() -> None:
    config = replica(QWEN, max_batched_tokens=512)
    lengths = lengths_with_images(TokenLengths.constant(500, 2), ONE, LLM)
    chunks = [(512, 0), (512, 512), (lengths.input_tokens[0] - 1024, 1024)]
    by_hand = sum(step_time(config, (), [chunk]).total_s for chunk in chunks)
    by_hand += images_s(config, Images(width=1024, height=1024))
    seen = simulate(Deployment.mixed(config), Workload.of(1e-4, lengths), requests=1)
    assert seen.ttft.mean_s == pytest.approx(by_hand, rel=1e-9)


def test_no_images_change_nothing() -> None:
    config, none = calibrated(QWEN), with_images(0.0)
    assert none is TEXT
    deployment, workload = Deployment.mixed(config), Workload.of(5.0, none)
    theory = evaluate(deployment, workload)
    assert not any("encoder" in note for note in theory.assumptions)
    assert largest_stable_rate_per_s(deployment, workload) == largest_stable_rate_per_s(
        deployment, Workload.of(5.0, TEXT)
    )


@pytest.mark.parametrize(
    ("per_request", "rate_per_s", "disaggregated"), [(0.5, 6.0, True), (1.0, 6.0, False), (2.5, 2.0, False)]
)
def test_simulation_agrees_with_theory(per_request: float, rate_per_s: float, disaggregated: bool) -> None:
    config = calibrated(QWEN, "h100-sxm")
    deployment = Deployment.disaggregated(config, config) if disaggregated else Deployment.mixed(config)
    workload = Workload.of(rate_per_s, with_images(per_request))
    theory, seen = evaluate(deployment, workload), simulate(deployment, workload, requests=3000)
    assert theory.ttft.mean_s == pytest.approx(seen.ttft.mean_s, rel=0.06)
    assert theory.tpot.mean_s == pytest.approx(seen.tpot.mean_s, rel=0.06)
    assert theory.ttft.quantile_s(0.95) == pytest.approx(seen.ttft.quantile_s(0.95), rel=0.12)


def test_images_make_first_tokens_later_and_the_cache_fuller() -> None:
    deployment = Deployment.mixed(calibrated(QWEN))
    seen = [evaluate(deployment, Workload.of(2.0, with_images(number))) for number in (0.0, 0.5, 1.0, 2.0)]
    for less, more in pairwise(seen):
        assert less.ttft.mean_s < more.ttft.mean_s
        assert less.pools[0].kv_occupancy < more.pools[0].kv_occupancy
    stable = [
        largest_stable_rate_per_s(deployment, Workload.of(1.0, with_images(number))) for number in (0.0, 0.5, 1.0, 2.0)
    ]
    assert stable == sorted(stable, reverse=True)


def test_the_encoder_costs_more_than_its_tokens_alone() -> None:
    config, images = calibrated(QWEN), with_images(1.0)
    text = TokenLengths.from_pairs(images.inputs, images.outputs, images.probabilities)
    deployment = Deployment.mixed(config)
    assert alone_s(evaluate, config, images) > alone_s(evaluate, config, text) + 0.9 * images_s(
        config, Images(width=1024, height=1024)
    )
    assert largest_stable_rate_per_s(deployment, Workload.of(1.0, images)) < largest_stable_rate_per_s(
        deployment, Workload.of(1.0, text)
    )


def test_attention_ranks_encode_their_own_images() -> None:
    lengths = lengths_with_images(TokenLengths.constant(100, 2), ONE, LLM)
    one = Deployment.mixed(replica(QWEN))
    four = Deployment.mixed(replica(QWEN, parallelism=Parallelism(dp=4), max_batched_tokens=32_768))
    rates = [largest_stable_rate_per_s(deployment, Workload.of(1.0, lengths)) for deployment in (one, four)]
    assert 3.0 < rates[1] / rates[0] < 4.5


def test_prefixes_spare_tokens_but_no_encoder() -> None:
    config = replica(QWEN, own_schedule=Schedule(prefix_cache=True))
    images = lengths_with_images(TokenLengths.constant(1024, 2), ONE, LLM)
    kind = RequestClass(lengths=images, prefixes=SharedPrefixes(tokens=1024))
    workload = Workload(arrivals=ArrivalProcess(rate_per_s=0.5), classes=(kind,))
    deployment = Deployment.mixed(config)
    theory, seen = evaluate(deployment, workload), simulate(deployment, workload, requests=300)
    encoder_s = images_s(config, Images(width=1024, height=1024))
    left = step_time(config, (), [(1026, 1024)]).total_s + encoder_s
    assert theory.ttft.mean_s == pytest.approx(left, rel=0.05)
    assert seen.ttft.quantile_s(0.5) == pytest.approx(left, rel=1e-6)


def test_static_batches_encode_before_their_prompts() -> None:
    schedule = Schedule(batching=Batching.STATIC, kv=KvAllocation.PAGED, reserve_outputs=True)
    config = replica(QWEN, own_schedule=schedule)
    images = lengths_with_images(TokenLengths.constant(100, 2), ONE, LLM)
    plain = TokenLengths.from_pairs(images.inputs, images.outputs)
    encoder_s = images_s(config, Images(width=1024, height=1024))
    later_s = alone_s(simulate, config, images) - alone_s(simulate, config, plain)
    assert later_s == pytest.approx(encoder_s, rel=0.02)


@pytest.mark.parametrize("users", [1, 32])
def test_closed_loops_wait_for_the_encoder(users: int) -> None:
    deployment = Deployment.mixed(calibrated(QWEN))
    images = lengths_with_images(TokenLengths.constant(200, 300), ONE, LLM)
    theory = evaluate(deployment, Workload.closed(users, images, requests=400))
    seen = simulate(deployment, Workload.closed(users, images, requests=400))
    assert theory.e2e.mean_s == pytest.approx(seen.e2e.mean_s, rel=0.03)


def test_intervals_are_wider_where_kernels_stand_in() -> None:
    """Prompts' kernels in the place of the encoder's own, which were measured on this GPU."""
    measured = calibrated(QWEN)
    assert measured.calibration is not None
    kernels = {key: fit for key, fit in measured.calibration.kernels.items() if not key.startswith("encoder_attention")}
    assert len(kernels) < len(measured.calibration.kernels)
    lent = rebuilt(measured, calibration=measured.calibration.model_copy(update={"kernels": kernels}))

    def ratio(config: ReplicaConfig, metric: Metric) -> float:
        low, high = evaluate(Deployment.mixed(config), Workload.of(0.01, with_images(1.0))).interval[metric]
        return math.log(high / low)

    assert ratio(lent, Metric.TTFT) > ratio(measured, Metric.TTFT)
    assert ratio(lent, Metric.TPOT) == pytest.approx(ratio(measured, Metric.TPOT))


def test_lengths_that_are_cut_keep_their_images() -> None:
    lengths = with_images(0.5)
    parts = split_by_length(lengths, LengthSplit(input_tokens=(1000,)))
    pairs = [pair for part in parts for pair in zip(part.lengths.input_tokens, part.lengths.images, strict=True)]
    assert sorted(pairs, key=str) == sorted(zip(lengths.input_tokens, lengths.images, strict=True), key=str)
