"""Kinds of attention and feed-forward: weights of one layer by hand, and shapes that contradict themselves."""

from __future__ import annotations

import pytest

from planner.core import InputError
from planner.llm import (
    DenseFeedForward,
    GroupedQueryAttention,
    LatentAttention,
    LayerGroup,
    LinearAttention,
    MoeFeedForward,
    StateSpace,
    active_parameters,
    load_llm,
    parameters,
)
from planner.llm.attention import BlockIndex, SparseIndex


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
