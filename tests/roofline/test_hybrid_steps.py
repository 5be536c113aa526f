"""Steps of models with a linear state and latent experts, worked out by hand from their shapes."""

from __future__ import annotations

import math

import pytest

from hardware_db import load_hardware
from planner.engine.replica import step_shape
from planner.llm import Precision, load_llm
from planner.roofline import Load, OperatorFamily, Parallelism, StepShape, step_operators
from planner.roofline.recurrent import Recurrence

B200 = load_hardware().skus["b200-sxm"]
K3 = load_llm("kimi-k3")
SUPER = load_llm("nvidia-nemotron-3-super-120b-a12b-fp8")
TP = 8

H, LATENT, EXPERT, WIDE, HEADS = 7168, 3584, 3072, 96 * 128, 96
DELTA_SPLIT = 5 * WIDE * H + HEADS * H + 128 * WIDE  # queries, keys, values, gate, output; step; second of the decay
MLA_SPLIT = 1536 * HEADS * 192 + 512 * HEADS * 256 + 2 * H * WIDE  # q_b, kv_b, output and its gate
MLA_WHOLE = H * (1536 + 512 + 64)
ROUTED = 3 * LATENT * EXPERT
DENSE, SHARED = 3 * 33_792 * H, 3 * 2 * EXPERT * H
WHOLE_MOE = 896 * H + 2 * LATENT * H  # router and latent projections: on every GPU
DELTA_LAYERS, MLA_LAYERS, MOE_LAYERS = 69, 24, 92


def work(
    shape: StepShape, family: OperatorFamily | None = None, split: Parallelism | None = None, llm: str = "kimi-k3"
) -> tuple[float, float, float]:
    """FLOPs, HBM bytes and link bytes of a step on one GPU."""
    split, spec = split or Parallelism(tp=TP), load_llm(llm)
    load = Load.of(shape, split)
    done = [
        (one.count, one.work(load))
        for one in step_operators(spec, B200, spec.native_precision, split)
        if family in (None, one.family)
    ]
    flops = sum(count * float(found.flops) for count, found in done)
    return (
        flops,
        sum(count * float(found.hbm_bytes) for count, found in done),
        sum(count * float(found.link_bytes) for count, found in done),
    )


def matrix_flops(tokens: float) -> float:
    """2 FLOPs per weight and token in the matrices of all layers, of which each GPU has an eighth or all."""
    delta = DELTA_SPLIT / TP + 128 * H
    mla = MLA_SPLIT / TP + MLA_WHOLE
    moe = WHOLE_MOE + SHARED / TP + 16 * ROUTED / TP
    return 2.0 * tokens * (DELTA_LAYERS * delta + MLA_LAYERS * mla + MOE_LAYERS * moe + DENSE / TP)


def test_flops_of_a_decode_step_of_kimi_k3():
    sequences, context = 64, 4096
    updates = DELTA_LAYERS * sequences * 8 * (HEADS / TP) * 128 * 128  # decay, delta, update, read-out of each state
    attention = MLA_LAYERS * sequences * context * 2 * (HEADS / TP) * (576 + 512)  # scores and sums on latent rows
    logits = 2 * sequences * H * 163_840 / TP
    expected = matrix_flops(sequences) + updates + attention + logits
    assert work(step_shape([context] * sequences, []))[0] == pytest.approx(expected, rel=1e-12)


def test_bytes_of_a_decode_step_of_kimi_k3():
    """One sequence: weights once, its state and its cache; its activations are below 0.3 %."""
    context = 100_000
    visited = 16 * ROUTED * 17 / 32  # bytes of MXFP4, scales included
    moe = 2 * (WHOLE_MOE + SHARED / TP) + visited / TP
    delta = 2 * (DELTA_SPLIT / TP + 128 * H)
    mla = 2 * (MLA_SPLIT / TP + MLA_WHOLE)
    weights = DELTA_LAYERS * delta + MLA_LAYERS * mla + MOE_LAYERS * moe + 2 * (DENSE + H * 163_840) / TP
    state = DELTA_LAYERS * 2 * 4 * (HEADS / TP) * 128 * 128  # read and written, 32 bit
    cache = MLA_LAYERS * 576 * 2 * context  # latent rows, on every GPU
    found = work(step_shape([context], []))[1]
    assert weights + state + cache < found < 1.003 * (weights + state + cache)


def test_a_prompt_of_kimi_k3():
    new = 2048
    pairs = new * (new + 1) / 2
    scans = DELTA_LAYERS * new * 4 * (HEADS / TP) * (128 * 128 + 64 * (128 + 128))
    attention = MLA_LAYERS * pairs * 2 * (HEADS / TP) * (192 + 128)  # keys and values made per head
    logits = 2 * H * 163_840 / TP  # of the last token
    expected = matrix_flops(new) + scans + attention + logits
    assert work(step_shape([], [(new, 0)]))[0] == pytest.approx(expected, rel=1e-12)


def test_states_are_moved_by_sequence_and_not_by_context():
    near, far = (work(step_shape([context] * 16, []), OperatorFamily.RECURRENCE)[1] for context in (10, 1_000_000))
    assert near == far


def test_sums_of_latent_experts_are_latent_and_then_hidden():
    """All-reduces of K3: the embedding, two a layer, and the latent sum that its norm wants first."""
    sent = work(step_shape([10] * 4, []), OperatorFamily.ALL_REDUCE)[2]
    assert sent == pytest.approx((1 + 2 * 93 + MOE_LAYERS * LATENT / H) * 2 * (TP - 1) / TP * 4 * H * 2)


def test_attention_ranks_send_latent_vectors_to_the_experts():
    split = Parallelism(tp=1, dp=16, ep=16, across_domains=True)
    found = work(step_shape([10] * 64, []), OperatorFamily.EXPERT_EXCHANGE, split)[2]
    # One copy to the other of two servers, where almost surely one of a token's 22 experts is.
    sent = 64 / 16 * (1 + 4 / 128 + 2)
    assert found == pytest.approx(sent * MOE_LAYERS * LATENT, rel=1e-4)
    found = work(step_shape([10] * 64, []), OperatorFamily.EXPERT_EXCHANGE, split, SUPER.id)[2]
    assert found == pytest.approx(sent * 40 * 1024, rel=1e-4)


def test_experts_are_as_small_as_their_latent_vector():
    """Nemotron 3 Super, one token: 22 experts of 2 matrices of 1024 x 2688."""
    flops = work(step_shape([10], []), OperatorFamily.EXPERTS, Parallelism(), SUPER.id)[0]
    assert flops == pytest.approx(40 * 22 * 2 * 2 * 1024 * 2688)


def test_residuals_kept_are_read_by_every_layer():
    """Blocks of 12: the mixes of layer i find ceil(i / 12) and i // 12 + 1 residuals beside the running one."""
    plain = K3.model_copy(update={"residual_block_layers": 0})
    load = Load.of(step_shape([10], []), Parallelism())
    both = [
        sum(
            float(one.work(load).hbm_bytes) * one.count for one in step_operators(llm, B200, Precision(), Parallelism())
        )
        for llm in (K3, plain)
    ]
    rows = sum(math.ceil(layer / 12) + layer // 12 + 1 + 2 * 2 for layer in range(93)) + 8 + 2  # found, running, sum
    assert both[0] - both[1] == pytest.approx(rows * H * 2)


@pytest.mark.parametrize("queries", [1.0, 4.0])
def test_guesses_read_a_state_once_and_write_it_each(queries: float) -> None:
    """Measured: 8 guesses of 256 sequences of K3 take 4.3 times as long as 1 (H200, vLLM), not 8 times."""
    shape = step_shape([10] * 16, [])
    load = Load.of(shape, Parallelism(), queries)
    one = next(one for one in step_operators(K3, B200, Precision(), Parallelism()) if isinstance(one, Recurrence))
    state = 4 * HEADS * 128 * 128
    moved = float(one.work(load).hbm_bytes) - 16 * queries * one.shape.token_bytes
    assert moved == pytest.approx(16 * (1 + queries) * state)
