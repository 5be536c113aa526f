"""Steps of DeepSeek-V4-Flash worked out by hand: FLOPs and bytes of a decode and of a prompt, operator by operator."""

from __future__ import annotations

import pytest

from hardware_db import load_hardware
from planner.engine.replica import step_shape
from planner.llm import load_llm
from planner.roofline import Experts, Load, OperatorFamily, Parallelism, StepShape, step_operators

H200 = load_hardware().skus["h200-sxm"]
FLASH = load_llm("deepseek-v4-flash")
TP = 4

H, HEADS, D, RANK, GROUPS, OUT = 4096, 64 // TP, 512, 1024, 8 // TP, 1024
EXPERT, VOCABULARY = 3 * 4096 * 2048, 129_280
WINDOW_LAYERS, SPARSE_LAYERS, HEAVY_LAYERS = 2, 21, 20
LAYERS = WINDOW_LAYERS + SPARSE_LAYERS + HEAVY_LAYERS
FP8, FP4 = 1.0 + 4.0 / 128**2, 0.5 + 1.0 / 32
"""Bytes of a weight with its share of scales."""
EIGHT_BIT = H * (RANK + D) + RANK * HEADS * D + GROUPS * (4096 * OUT) + GROUPS * OUT * H
"""Weights of every attention on one of four GPUs: wq_a and wkv whole, wq_b, wo_a and wo_b a quarter."""
SPARSE_EIGHT_BIT = RANK * 64 * 128
SPARSE_SIXTEEN_BIT = H * (4 * D + 64 + 4 * 128)
HEAVY_SIXTEEN_BIT = H * 2 * D
"""Of an index (wq_b), of the pooling of two parts of keys and index keys with the heads' weights, and of one part."""


def work(shape: StepShape, *families: OperatorFamily) -> tuple[float, float]:
    """FLOPs and HBM bytes of a step on one GPU."""
    split = Parallelism(tp=TP, ep=TP)
    load = Load.of(shape, split)
    flops = moved = 0.0
    for one in step_operators(FLASH, H200, FLASH.native_precision, split):
        if not families or one.family in families:
            found = one.work(load)
            flops, moved = flops + one.count * float(found.flops), moved + one.count * float(found.hbm_bytes)
    return flops, moved


def matrix_flops(tokens: float) -> float:
    """2 FLOPs per weight and token: attention, router, six experts and the shared one a token, 24 mixes a block."""
    attention = LAYERS * EIGHT_BIT + SPARSE_LAYERS * (SPARSE_EIGHT_BIT + SPARSE_SIXTEEN_BIT)
    attention += HEAVY_LAYERS * HEAVY_SIXTEEN_BIT
    experts = LAYERS * (256 * H + (6 + 1) * EXPERT / TP)
    mixes = (LAYERS * 2 + 1) * 24 * 4 * H
    return 2.0 * tokens * (attention + experts + mixes)


def test_flops_of_a_decode_step() -> None:
    """32 sequences at 10,000 tokens: 128 of the window, with 512 of 2,500 entries or all of 78.125."""
    sequences, context = 32, 10_000
    keys = LAYERS * 128 + SPARSE_LAYERS * 512 + HEAVY_LAYERS * context / 128
    attention = sequences * 4 * HEADS * D * keys
    index = SPARSE_LAYERS * sequences * 2 * 64 * 128 * context / 4
    logits = 2 * sequences * H * VOCABULARY / TP
    expected = matrix_flops(sequences) + attention + index + logits
    assert work(step_shape([context] * sequences, []))[0] == pytest.approx(expected, rel=1e-12)


def test_bytes_of_a_decode_step() -> None:
    """One sequence at 100,000 tokens: weights once, keys and index keys; activations are below 1 %."""
    context = 100_000
    attention = FP8 * (LAYERS * EIGHT_BIT + SPARSE_LAYERS * SPARSE_EIGHT_BIT)
    attention += 2 * (SPARSE_LAYERS * SPARSE_SIXTEEN_BIT + HEAVY_LAYERS * HEAVY_SIXTEEN_BIT)
    experts = LAYERS * (2 * 256 * H + FP4 * 6 * EXPERT / TP + FP8 * EXPERT / TP)
    logits = 2 * H * VOCABULARY / TP
    keys = 584 * (LAYERS * 128 + SPARSE_LAYERS * 512 + HEAVY_LAYERS * context / 128)
    index = 128 * SPARSE_LAYERS * context / 4
    expected = attention + experts + logits + keys + index
    assert expected < work(step_shape([context], []))[1] < 1.01 * expected


def test_flops_of_a_prompt() -> None:
    """6,144 tokens: token i sees min(i, 128) of the window and min(i / 4, 512) or i / 128 entries."""
    new = 6144
    seen = range(1, new + 1)
    pairs = LAYERS * sum(min(i, 128) for i in seen)
    pairs += SPARSE_LAYERS * sum(min(i / 4, 512) for i in seen) + HEAVY_LAYERS * sum(i / 128 for i in seen)
    index = SPARSE_LAYERS * 2 * 64 * 128 * sum(i / 4 for i in seen)
    logits = 2 * H * VOCABULARY / TP  # of the last token
    expected = matrix_flops(new) + 4 * HEADS * D * pairs + index + logits
    assert work(step_shape([], [(new, 0)]))[0] == pytest.approx(expected, rel=1e-12)


def test_bytes_of_attention_of_a_prompt() -> None:
    """2,048 tokens after 32,768: keys before are read once, of entries as many as there are, own ones written."""
    new, past = 2048, 32_768
    own = 2 * 2 * HEADS * D + 584  # queries in, outputs out, a key of the window
    entries = SPARSE_LAYERS / 4 + HEAVY_LAYERS / 128
    expected = LAYERS * (new * own + 128 * 584) + (new + past) * entries * 584
    found = work(step_shape([], [(new, past)]), OperatorFamily.ATTENTION_PREFILL)[1]
    assert found == pytest.approx(expected, rel=1e-12)


def test_residual_streams_are_read_and_written_around_every_block() -> None:
    """Before a block 4 streams in, one state out; after it 4 and one in, 4 out; norms in and out; the last mix."""
    tokens = 1000
    values = LAYERS * 2 * ((4 + 1) + (2 * 4 + 1) + 2) + (4 + 1)
    found = work(StepShape(tokens, tokens * 10.0), OperatorFamily.NORM)[1]
    assert found == pytest.approx(tokens * values * H * 2)


@pytest.mark.parametrize(("sku", "activations"), [("h200-sxm", "bf16"), ("mi300x", "bf16"), ("b200-sxm", "fp8")])
def test_four_bit_experts_are_unpacked_where_the_gpu_has_no_units_for_them(sku: str, activations: str) -> None:
    hardware = load_hardware().skus[sku]
    made = step_operators(FLASH, hardware, FLASH.native_precision, Parallelism(tp=TP, ep=TP))
    found = {one.activations.value for one in made if isinstance(one, Experts)}
    assert found == {activations}
