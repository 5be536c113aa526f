"""Attention over chosen keys: steps of MiniMax-M3 worked out by hand, kernel forms at their limits, growth, sharing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hardware_db import Dtype, load_hardware
from planner.engine import ReplicaConfig
from planner.engine.cache_layout import kv_bytes_per_token_per_gpu
from planner.engine.replica import step_time
from planner.llm import HEAD_GROUP, LlmSpec, Precision, load_llm
from planner.roofline import (
    BlockDecodeForm,
    BlockHeads,
    BlockPrefillForm,
    ChosenDecodeForm,
    ChosenHeads,
    ChosenPrefillForm,
    GpuPeaks,
    IndexHeads,
    Parallelism,
    block_decode_s,
    block_prefill_s,
    chosen_decode_index_s,
    chosen_decode_s,
    chosen_prefill_index_s,
    chosen_prefill_s,
    step_operators,
)
from tests.builders import calibrated, replica, weights_bytes_per_gpu

HARDWARE = load_hardware()
H200 = HARDWARE.skus["h200-sxm"]
PEAK, BANDWIDTH, LINK = 989.4e12, 4.8e12, 450e9
"""Of an H200 SXM: dense BF16 FLOP/s, HBM bytes/s, NVLink bytes/s and direction (datasheet)."""
PEAKS = GpuPeaks(1e15, 4e12, 132.0)
INDEX = IndexHeads(32.0, 128.0)


def uncalibrated(llm: str | LlmSpec, tp: int) -> ReplicaConfig:
    engine, spec = HARDWARE.engines["vllm"], load_llm(llm) if isinstance(llm, str) else llm
    return ReplicaConfig(llm=spec, sku=H200, engine=engine, parallelism=Parallelism(tp=tp))


# ------------------------------------------------------------------------------------------ by hand


def roof(flops: float, hbm_bytes: float) -> float:
    return max(flops / PEAK, hbm_bytes / BANDWIDTH)


def product(tokens: float, outputs: float, inputs: float) -> float:
    """A matrix product in 16 bit: weights once, inputs and outputs once."""
    return roof(2 * tokens * outputs * inputs, 2 * (outputs * inputs + tokens * (outputs + inputs)))


def passes(tokens: float, values: float) -> float:
    return roof(0, 2 * tokens * values)


def all_reduce(tokens: float) -> float:
    """Over 8 GPUs: a ring sends 2 x 7 / 8 of the 16-bit hidden states."""
    return 2 * 7 / 8 * tokens * 6144 * 2 / LINK


def m3_by_hand(tokens: float, full_s: float, sparse_s: float, rows: float) -> float:
    """A step of MiniMax-M3 on 8 H200: `full_s` and `sparse_s` are attention proper of a layer of either kind.

    On one GPU: 8 query heads, 1 key-value head (4 repeated twice), 1 index head and the index key, all of 128 channels;
    an eighth of 12 288 dense, 3072 shared and 3072 routed channels; an eighth of the vocabulary.
    """
    hidden = 6144
    norms = passes(tokens, 2 * 4 * hidden)
    layers = 0.0
    for count, index_heads, attention in ((3, 0, full_s), (57, 2, sparse_s)):
        normed = (8 + 1 + index_heads) * 128
        block = product(tokens, normed + 128, hidden) + passes(tokens, 2 * normed)  # norms ride on the rotation
        block += attention + product(tokens, hidden, 8 * 128) + all_reduce(tokens)
        layers += count * (norms + block)
    dense = product(tokens, 2 * 1536, hidden) + passes(tokens, 3 * 1536) + product(tokens, hidden, 1536)
    layers += 3 * (dense + all_reduce(tokens))
    visited = 128 * (1 - (1 - 4 / 128) ** tokens)
    expert = 3 * hidden * 384
    routed = roof(2 * tokens * 4 * expert, 2 * (visited * expert + tokens * 4 * (2 * hidden + 3 * 384)))
    shared = product(tokens, 2 * 384, hidden) + passes(tokens, 3 * 384) + product(tokens, hidden, 384)
    layers += 57 * (product(tokens, 128, hidden) + shared + routed + all_reduce(tokens))
    embedding = passes(tokens, 2 * hidden) + all_reduce(tokens)
    vocabulary = 200_064
    head = product(rows, vocabulary / 8, hidden) + 7 / 8 * rows * vocabulary * 2 / LINK
    return embedding + layers + head


def test_one_decode_step_of_m3_by_hand():
    sequences, context = 64, 8192
    io = 2 * 8 * 128 * 2  # queries and outputs of 8 heads
    full = roof(sequences * 4 * 8 * 128 * context, sequences * (context * 512 + 512 + io))
    # 2048 of 8192 keys of 512 bytes, an index key of 256 bytes for each; own keys, queries and outputs
    flops = sequences * (4 * 8 * 128 * 2048 + 2 * 128 * context)
    sparse = roof(flops, sequences * (2048 * 512 + context * 256 + 512 + 256 + io))
    by_hand = m3_by_hand(sequences, full, sparse, sequences)
    took = step_time(uncalibrated("minimax-m3", 8), [context] * sequences).total_s
    assert took == pytest.approx(by_hand, rel=1e-9)


def test_one_prefill_of_m3_by_hand():
    new, past = 4096, 16_384
    pairs = new * past + new * (new + 1) / 2
    io = 2 * 8 * 128 * 2
    full = roof(4 * 8 * 128 * pairs, (past + new) * 512 + new * (512 + io))
    # every query sees 2048 keys or more; all index keys are read and at least 2048 of the keys before the chunk
    flops = 4 * 8 * 128 * new * 2048 + 2 * 128 * pairs
    sparse = roof(flops, 2048 * 512 + past * 256 + new * (2 * 512 + 2 * 256 + io))
    took = step_time(uncalibrated("minimax-m3", 8), [], [(new, past)]).total_s
    assert took == pytest.approx(m3_by_hand(new, full, sparse, 1), rel=1e-9)


# ------------------------------------------------------------------------------------------ forms

M3_HEADS = BlockHeads(16.0, 1.0, 128.0, 2.0, 2048.0, 1.0, 128.0)
GLM_HEADS = ChosenHeads(8.0, 512.0, 64.0, 2048.0, 1.0)


def test_blocks_are_work_over_the_share_of_the_peaks_that_kernels_reach():
    decode = BlockDecodeForm(start_s=0.0, memory_efficiency=0.5, index_efficiency=0.25, block_s=0.0, order=1.0)
    read = 2 * (2048 * 512 + 4 * 16 * 128) + 4 * 100_000 * 256
    assert block_decode_s(32.0, 100_000.0, 1.0, M3_HEADS, decode, PEAKS) == pytest.approx(32 * read / 4e12)
    prefill = BlockPrefillForm(0.0, 0.5, 0.25, 0.125, 0.0, 0.0, order=1.0)
    chosen, pairs = 4096 * 2048, 4096 * 100_000 + 4096 * 4097 / 2
    flops = 2 * 4 * 16 * 128 * chosen + 8 * 2 * 128 * pairs
    moved = 4 * 4096 * 128 * (4 * 16 + 2 * (2 + 4)) + 104_096 * 256 + 2048 * 512
    took = block_prefill_s(1.0, 4096.0, 100_000.0, M3_HEADS, prefill, PEAKS)
    assert took == pytest.approx(flops / 1e15 + moved / 4e12)


def test_fewer_query_heads_than_a_tile_gain_no_attention():
    form = BlockPrefillForm(0.0, 0.2, 1.0, 1.0, 0.0, 0.0, order=1.0)
    few = BlockHeads(8.0, 1.0, 128.0, 2.0, 2048.0, 1.0, 128.0)
    saved = 4096 * 128 * 4 * 8 / 4e12  # queries and outputs only
    gap = block_prefill_s(1.0, 4096.0, 0.0, M3_HEADS, form, PEAKS) - block_prefill_s(1.0, 4096.0, 0.0, few, form, PEAKS)
    assert gap == pytest.approx(saved)


def test_chosen_keys_are_work_over_the_share_of_the_peaks_that_kernels_reach():
    decode = ChosenDecodeForm(0.0, 0.5, 0.0, 1.0, 0.0, 0.25)
    flops, row = 2 * 64 * 1088 * 2048, 2048 * 576
    assert chosen_decode_s(32.0, 9e4, GLM_HEADS, decode, PEAKS) == pytest.approx(32 * (flops / 5e14 + row / 4e12))
    assert chosen_decode_index_s(32.0, 9e4, INDEX, decode, PEAKS) == pytest.approx(32 * 9e4 * 132 / 1e12)
    prefill = ChosenPrefillForm(0.0, 0.5, 0.0, 1.0, 0.0, 0.25, 0.0)
    assert chosen_prefill_s(2.0, 100.0, 0.0, GLM_HEADS, prefill, PEAKS) == pytest.approx(
        2 * 5050 * 2 * 64 * 1088 / 5e14
    )
    assert chosen_prefill_index_s(2.0, 100.0, 0.0, INDEX, prefill, PEAKS) == pytest.approx(2 * 5050 * 8192 / 2.5e14)


LENGTHS = np.array([1.0, 64.0, 500.0, 2047.0, 2048.0, 2049.0, 4096.0, 30_000.0, 1e6])


@pytest.mark.parametrize("order", [0.5, 1.0, 4.0])
def test_all_forms_grow_with_keys_tokens_and_sequences(order: float):
    block = BlockDecodeForm(1e-5, 0.5, 0.8, 2e-6, order)
    chosen = ChosenDecodeForm(1e-5, 0.5, 0.3, order, 1e-5, 0.4)
    prompts = BlockPrefillForm(1e-5, 0.2, 0.6, 0.3, 100.0, 1e-8, max(order, 1.0))
    latent = ChosenPrefillForm(1e-5, 0.3, 0.4, 0.5, 1e-5, 0.5, 1e-9)
    grown = [
        block_decode_s(8.0, LENGTHS, 1.0, M3_HEADS, block, PEAKS),
        block_decode_s(LENGTHS, 5000.0, 1.0, M3_HEADS, block, PEAKS),
        chosen_decode_s(8.0, LENGTHS, GLM_HEADS, chosen, PEAKS),
        chosen_decode_s(LENGTHS, 5000.0, GLM_HEADS, chosen, PEAKS),
        chosen_decode_index_s(8.0, LENGTHS, INDEX, chosen, PEAKS),
    ]
    for new, past in ((LENGTHS, 0.0 * LENGTHS), (0.0 * LENGTHS + 512.0, LENGTHS)):
        grown.append(block_prefill_s(1.0, new, past, M3_HEADS, prompts, PEAKS))
        grown.append(chosen_prefill_s(1.0, new, past, GLM_HEADS, latent, PEAKS))
        grown.append(chosen_prefill_index_s(1.0, new, past, INDEX, latent, PEAKS))
    for seconds in grown:
        assert (np.diff(np.broadcast_to(seconds, LENGTHS.shape)) >= 0.0).all()


# ------------------------------------------------------------------------------------------ in a step


def test_shared_layers_have_no_index_operators():
    for llm, kind, layers in (("glm-5.2", "ChoosingIndex", 21), ("glm-5", "ChoosingIndex", 78)):
        operators = step_operators(load_llm(llm), H200, Precision(), Parallelism(tp=8))
        assert sum(operator.count for operator in operators if type(operator).__name__ == kind) == layers


# ------------------------------------------------------------------------------------------ in memory


def test_where_no_kernel_of_it_was_timed_m3_is_as_far_from_its_roofline_as_elsewhere():
    def far(sku: str) -> float:
        known, bare = calibrated("minimax-m3", sku, parallelism=Parallelism(tp=8)), HARDWARE.skus[sku]
        prompt = [], [(4096, 16_384)]
        return step_time(known, *prompt).total_s / step_time(replica("minimax-m3", bare, tp=8), *prompt).total_s

    assert far("a100-sxm-80gb") == pytest.approx(far("h200-sxm"), rel=0.2)


def test_every_gpu_keeps_all_index_keys():
    llm = load_llm("minimax-m3")
    for tp, kv_heads in ((1, 4), (2, 2), (4, 1), (8, 1)):
        assert kv_bytes_per_token_per_gpu(llm, Dtype.BF16, tp) == 60 * 2 * kv_heads * 128 * 2 + 57 * 256
    assert kv_bytes_per_token_per_gpu(load_llm("glm-5.2"), Dtype.FP8, 8) == 78 * 576 + 21 * 132


def test_an_index_is_split_as_engines_do():
    def attention_bytes(llm: str, tp: int) -> float:
        replica, bare = (uncalibrated(one, tp) for one in (llm, without_index(llm)))
        return weights_bytes_per_gpu(replica) - weights_bytes_per_gpu(bare)

    def without_index(llm: str) -> LlmSpec:
        spec = load_llm(llm)
        kinds = [group.attention and group.attention.model_copy(update={"index": None}) for group in spec.layers]
        groups = [group.model_copy(update={"attention": kind}) for group, kind in zip(spec.layers, kinds, strict=True)]
        return spec.model_copy(update={"layers": tuple(groups)})

    # blocks: 4 heads with the KV heads, one at least, and the key on every GPU, and norms of 256 in all
    small = 57 * 256 * 2
    assert attention_bytes("minimax-m3", 2) == pytest.approx(57 * 6144 * (2 + 1) * 128 * 2 + small / 2)
    assert attention_bytes("minimax-m3", 8) == pytest.approx(57 * 6144 * (1 + 1) * 128 * 2 + small / 8)
    # latent attention: whole on every GPU
    index = 2048 * 32 * 128 + 6144 * (128 + 32)
    assert attention_bytes("glm-5", 8) == pytest.approx(78 * index * 2 + 78 * 256 * 2 / 8)


@pytest.mark.parametrize("groups", [1.0, 2.0, 5.0])
def test_heads_that_fill_their_groups_do_no_more_than_they_need(groups: float) -> None:
    """And one head more fills a group up: its least is a fraction of what is done."""
    full = ChosenHeads(groups * HEAD_GROUP, 512.0, 64.0, 2048.0, 2.0)
    assert full.least_flops == full.groups * full.group_flops == 2.0 * full.heads * (2.0 * 512.0 + 64.0)
    more = replace(full, heads=full.heads + 1.0)
    assert more.groups == groups + 1.0
    assert more.least_flops / full.least_flops == pytest.approx(more.heads / full.heads)
