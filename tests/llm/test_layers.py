"""Kinds of attention and feed-forward: weights of one layer by hand, and shapes that contradict themselves."""

from __future__ import annotations

import pytest

from hardware_db import Dtype
from planner.core import InputError
from planner.llm import (
    DenseFeedForward,
    GroupedQueryAttention,
    LatentAttention,
    LayerGroup,
    LinearAttention,
    LlmSpec,
    MoeFeedForward,
    Part,
    StateSpace,
    active_parameters,
    kv_bytes_per_token,
    load_llm,
    parameters,
)
from planner.llm.attention import BlockIndex, SparseIndex
from planner.llm.sizes import index_bytes_per_token
from tests.configs import preset_config


def test_weights_of_one_layer_of_llama_3_1_405b() -> None:
    # Shapes of table 3 of Llama Team 2024, arXiv:2407.21783: width 16384, feed-forward 53248, 128 and 8 heads.
    group = load_llm("llama-3.1-405b").layers[0]
    matrices = group.attention.matrices(16384)
    weights = {name: inputs * outputs for name, (inputs, outputs) in matrices.items()}
    assert weights["q_proj"] + weights["k_proj"] + weights["v_proj"] == 16384 * 16384 + 2 * 16384 * 1024
    assert weights["o_proj"] == 16384 * 16384
    assert group.feed_forward.weights(16384) == 3 * 16384 * 53248
    assert group.feed_forward.small_parameters(16384) == 0


def test_latent_attention_of_deepseek_v3() -> None:
    # DeepSeek-AI 2024, arXiv:2412.19437, sec. 4.2: 128 heads of 128, query rank 1536, KV rank 512, 64 with position.
    dense, sparse = load_llm("deepseek-v3").layers
    v3 = LatentAttention(heads=128, query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
    assert dense.attention == sparse.attention == v3
    assert (dense.count, sparse.count) == (3, 58)
    assert sparse.feed_forward == MoeFeedForward(
        experts=256, experts_per_token=8, intermediate=2048, router_bias=True, shared_intermediate=2048
    )
    by_hand = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    assert v3.weights(7168) == by_hand == 187_105_280
    assert sparse.feed_forward.parts(7168)[Part.SHARED_EXPERTS] == 3 * 7168 * 2048


def test_full_query_projection_of_latent_attention() -> None:
    # DeepSeek-V2-Lite: 16 heads, no compression of queries (arXiv:2405.04434, appendix B).
    lite = LatentAttention(heads=16, query_rank=0, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
    by_hand = 2048 * 16 * 192 + 2048 * 576 + 512 * 16 * 256 + 16 * 128 * 2048
    assert lite.weights(2048) == by_hand
    config = {key: value for key, value in preset_config("deepseek-v3").items() if key != "quantization_config"}
    config |= {"model_type": "deepseek_v2", "q_lora_rank": None, "num_nextn_predict_layers": 0}
    lite_like = LlmSpec.from_config(config)
    assert "q_proj" in lite_like.layers[0].attention.matrices(7168)
    moe = lite_like.layers[1].feed_forward
    assert isinstance(moe, MoeFeedForward)
    assert not moe.router_bias


def test_sparse_index_of_deepseek_v3_2() -> None:
    llm, v3 = load_llm("deepseek-v3.2"), load_llm("deepseek-v3")
    attention = llm.layers[0].attention
    assert isinstance(attention, LatentAttention)
    assert attention.index == SparseIndex(heads=64, head_dim=128, top_k=2048)
    by_hand = 1536 * 64 * 128 + 7168 * 128 + 7168 * 64 + 2 * 128  # wq_b, wk, weights_proj, LayerNorm of the keys
    assert parameters(llm) - parameters(v3) == 61 * by_hand
    assert index_bytes_per_token(llm) == 61 * 132
    assert kv_bytes_per_token(llm, Dtype.BF16) == 70_272 + 61 * 132


def test_gated_delta_net_of_qwen3_next() -> None:
    linear, full = load_llm("qwen3-next-80b-a3b-thinking").layers
    net = LinearAttention(key_heads=16, value_heads=32, key_dim=128, value_dim=128, conv_kernel=4)
    assert (linear.count, full.count) == (36, 12)
    assert linear.attention == net
    # in_proj_qkvz [12288, 2048], in_proj_ba [64, 2048], out_proj [2048, 4096] of the checkpoint
    assert net.weights(2048) == 12288 * 2048 + 64 * 2048 + 2048 * 4096
    assert isinstance(full.attention, GroupedQueryAttention)
    assert full.attention.output_gate
    matrices = full.attention.matrices(2048)
    assert [matrices[name] for name in ("q_proj", "k_proj", "v_proj")] == [(2048, 8192), (2048, 512), (2048, 512)]
    assert matrices["o_proj"] == (4096, 2048)


def test_state_space_of_nemotron() -> None:
    llm = load_llm("nvidia-nemotron-3-nano-30b-a3b-bf16")
    mamba, experts, attention = llm.layers
    assert (mamba.count, experts.count, attention.count) == (23, 23, 6)  # model card: 23 Mamba-2 and MoE, 6 attention
    assert mamba.attention == StateSpace(heads=64, head_dim=64, state_size=128, groups=8, conv_kernel=4)
    assert (mamba.feed_forward, experts.attention, attention.feed_forward) == (None, None, None)
    assert mamba.attention.matrices(2688) == {"in_proj": (2688, 10304), "out_proj": (4096, 2688)}
    assert parameters(llm) == 31_577_940_288  # general.parameter_count of the converted checkpoint
    assert active_parameters(llm) == pytest.approx(3.6e9, rel=0.01)  # technical report: 3.6 B with embeddings


def test_shapes_refuse_what_contradicts_itself() -> None:
    with pytest.raises(InputError, match=r"kv_heads = 3: must divide heads = 8"):
        GroupedQueryAttention(heads=8, kv_heads=3, head_dim=16)
    with pytest.raises(InputError, match=r"experts_per_token = 5: must not be above experts = 4"):
        MoeFeedForward(experts=4, experts_per_token=5, intermediate=8)
    with pytest.raises(InputError, match=r"count = 0"):
        LayerGroup(
            count=0,
            attention=GroupedQueryAttention(heads=1, kv_heads=1, head_dim=1),
            feed_forward=DenseFeedForward(intermediate=1),
        )
    with pytest.raises(InputError, match="window = 0: chunked attention needs the length of a chunk"):
        GroupedQueryAttention(heads=8, kv_heads=8, head_dim=16, chunked=True)
    with pytest.raises(InputError, match="query_rank = 0: the sparse index reads the compressed query"):
        LatentAttention(
            heads=1, query_rank=0, kv_rank=1, nope_dim=1, rope_dim=1, value_dim=1, index=SparseIndex(heads=1)
        )
    with pytest.raises(InputError, match="key_heads = 3: must divide value_heads = 8"):
        LinearAttention(key_heads=3, value_heads=8, key_dim=1, value_dim=1, conv_kernel=4)
    with pytest.raises(InputError, match="shared_gate = True: there is no shared expert to weigh"):
        MoeFeedForward(experts=4, experts_per_token=1, intermediate=8, shared_gate=True)
    with pytest.raises(InputError, match="a layer needs attention, a feed-forward block or both"):
        LayerGroup(count=1, attention=None, feed_forward=None)
    with pytest.raises(InputError, match="an index chooses among all keys"):
        GroupedQueryAttention(heads=8, kv_heads=1, head_dim=128, window=512, index=BlockIndex())
