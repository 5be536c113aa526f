"""Tokens of a prompt shared out among GPUs: work is conserved, and what travels is what the engine gathers."""

from __future__ import annotations

import numpy as np
import pytest

from hardware_db import select_calibration
from planner.llm import LlmSpec, load_llm
from planner.roofline import (
    CalibratedGpu,
    Load,
    Operator,
    OperatorFamily,
    Parallelism,
    StepShape,
    attention_s,
    operator_seconds,
    prompt_attention,
    step_operators,
)
from tests.builders import FP8, HARDWARE

H200, FITTED = HARDWARE.skus["h200-sxm"], select_calibration(HARDWARE, "h200-sxm", "sglang")
LONG = 200_000.0


def chunk(new: float, past: float = 0.0) -> StepShape:
    """A chunk of one prompt."""
    return StepShape(0.0, 0.0, new, new * past + new * (new + 1.0) / 2.0, past + new, 1.0)


def operators_of(llm: LlmSpec, split: Parallelism) -> tuple[Operator, ...]:
    return step_operators(llm, H200, FP8, split)


def seconds_of(
    model: str, split: Parallelism, family: OperatorFamily | None = None, shape: StepShape | None = None
) -> float:
    """Time of kernels as measured, of a chunk after 100,000 tokens unless another is given [s]."""
    load, gpu = Load.of(shape or chunk(16_384.0, 100_000.0), split), CalibratedGpu(H200, FITTED)
    return sum(
        float(operator_seconds(one, load, gpu, getattr(one, "link_bytes_per_s", np.inf)))
        for one in operators_of(load_llm(model), split)
        if family is None or one.family is family
    )


def work_of(model: str, pcp: int, family: OperatorFamily, shape: StepShape) -> tuple[float, float]:
    """FLOPs of all layers on one GPU, and bytes on its links."""
    split = Parallelism(pcp=pcp, ep=pcp)
    load = Load.of(shape, split)
    found = [one for one in operators_of(load_llm(model), split) if one.family is family]
    works = [(one.count, one.work(load)) for one in found]
    return (
        sum(count * float(work.flops) for count, work in works),
        sum(count * float(work.link_bytes) for count, work in works),
    )


@pytest.mark.parametrize("family", [OperatorFamily.QKV, OperatorFamily.INDEX, OperatorFamily.ATTENTION_OUTPUT])
@pytest.mark.parametrize("model", ["qwen3-235b-a22b", "deepseek-r1", "deepseek-v3.2", "glm-5"])
def test_each_gpu_does_its_part_of_the_work_and_none_is_lost(model: str, family: OperatorFamily) -> None:
    for shape in (chunk(LONG), chunk(16_384.0, 100_000.0)):
        alone, shared = (work_of(model, pcp, family, shape)[0] for pcp in (1, 8))
        assert 8.0 * shared == pytest.approx(alone)


def test_attention_to_all_keys_is_shared_out_by_pairs() -> None:
    """Qwen3-235B: 4 FLOPs a pair and channel of 64 heads of 128 in 94 layers, of n (n + 1) / 2 pairs an eighth."""
    found = work_of("qwen3-235b-a22b", 8, OperatorFamily.ATTENTION_PREFILL, chunk(LONG))[0]
    assert found == pytest.approx(94 * 4 * 64 * 128 * LONG * (LONG + 1.0) / 2.0 / 8.0)


def test_an_eighth_of_the_queries_chooses_keys_in_an_eighth_of_the_time() -> None:
    """Kernels as measured, over the same keys: 2,048 of each query, wherever in a prompt it stands."""
    families = OperatorFamily.ATTENTION_PREFILL, OperatorFamily.INDEX
    for family in families:
        alone_s, shared_s = (seconds_of("deepseek-v3.2", Parallelism(pcp=pcp, ep=pcp), family) for pcp in (1, 8))
        assert shared_s == pytest.approx(alone_s / 8.0, rel=0.1)


@pytest.mark.parametrize(
    ("model", "values"),
    [
        ("qwen3-235b-a22b", 94 * 2 * 4 * 128 + 4096),  # keys and values of four heads; hidden states, once
        ("deepseek-v3.2", 61 * (576 + 128) + 7168),  # latent rows, and keys of the index
    ],
)
@pytest.mark.parametrize("pcp", [2, 8])
def test_keys_and_values_of_a_prompt_are_gathered_in_every_layer(model: str, values: int, pcp: int) -> None:
    """``materialize_full_kv`` of SGLang 0.5.23: in 16 bits, of which a GPU receives what the others have."""
    sent = work_of(model, pcp, OperatorFamily.ALL_GATHER, chunk(LONG))[1]
    assert sent == pytest.approx(LONG * values * 2 * (pcp - 1) / pcp)
    assert work_of(model, 1, OperatorFamily.ALL_GATHER, chunk(LONG))[1] == 0.0


def test_a_prompt_of_200_000_tokens_takes_its_share_and_what_travels() -> None:
    """On datasheets: linear and attention work over c, beside them what crosses NVLink at 450 GB/s, the copies that put
    it in order at 4.8 TB/s, and one row of logits on every GPU. Qwen3-Coder-30B: 48 layers, 4 KV heads of 128, 2,048
    channels, which go to the experts of all GPUs and back.
    """
    llm, gpu = load_llm("qwen3-coder-30b-a3b-instruct"), CalibratedGpu(H200)

    def took_s(pcp: int) -> float:
        split = Parallelism(pcp=pcp, ep=pcp)
        load = Load.of(chunk(LONG), split)
        return sum(
            float(operator_seconds(one, load, gpu, getattr(one, "link_bytes_per_s", np.inf)))
            for one in operators_of(llm, split)
        )

    head_s, alone_s = 151_936 * 2048 / 4.8e12, took_s(1)
    for pcp in (2, 4, 8):
        cached, hidden = 48 * LONG * 1024 * 2, LONG * 2048 * 2
        travels_s = (cached + hidden + 48 * 2 * hidden) * (pcp - 1) / pcp / 450e9
        copied_s = 3 * 2 * (cached + hidden) / 4.8e12
        expected_s = (alone_s - head_s) / pcp + head_s + travels_s + copied_s
        assert took_s(pcp) == pytest.approx(expected_s, rel=0.01)


def test_prompts_of_latent_attention_are_slower_shared_out_than_by_heads() -> None:
    """They run absorbed, on 576 and 512 channels of a pair in place of 192 and 128: 3.4 times the work at most.

    Measured so in SGLang pull request 34059, on four GPUs: 1.92, 2.18, 2.45 and 2.80 times as long for prompts of 8,
    32, 64 and 128 thousand tokens, of a model with such attention in a quarter of its layers.
    """
    ratios = []
    for tokens in (8192.0, 32_768.0, 65_536.0, 131_072.0):
        by_heads_s, shared_s = (
            seconds_of("deepseek-r1", split, shape=chunk(tokens))
            for split in (Parallelism(tp=8, ep=8), Parallelism(pcp=8, ep=8))
        )
        ratios.append(shared_s / by_heads_s)
    assert ratios == sorted(ratios)
    assert ratios[0] > 1.0
    assert 2.0 < ratios[-1] < 1088 / 320


@pytest.mark.parametrize("model", ["qwen3-235b-a22b", "deepseek-r1", "deepseek-v3.2"])
@pytest.mark.parametrize("calibration", [None, FITTED])
def test_compiled_code_takes_as_long_for_prompts_as_their_operators(model: str, calibration: object) -> None:
    gpu, split = CalibratedGpu(H200, calibration), Parallelism(pcp=8, ep=8)  # type: ignore[arg-type]
    load = Load.of(chunk(16_384.0, 100_000.0), split)
    operators = [one for one in operators_of(load_llm(model), split) if one.driver.value == "shape"]
    records, tables = prompt_attention(operators, gpu)
    found = attention_s(records, tables, load.chunks, load.new, load.past, load.cached)
    assert found == pytest.approx(sum(float(operator_seconds(one, load, gpu, np.inf)) for one in operators))


def test_parts_have_the_pairs_of_the_whole() -> None:
    """Blocks from both ends of a prompt, or every eighth token: of either a GPU has an eighth of the pairs."""
    whole, part = (Load.of(chunk(16_384.0, 100_000.0), Parallelism(pcp=pcp)) for pcp in (1, 8))
    pairs = [float(load.new * load.past + load.new * (load.new + 1.0) / 2.0) for load in (whole, part)]
    assert 8.0 * pairs[1] == pytest.approx(pairs[0])
    assert part.tokens == whole.tokens / 8.0 and part.group_tokens == whole.group_tokens
    assert part.new + part.cached == whole.new + whole.cached  # every GPU has all keys
