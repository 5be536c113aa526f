"""Kinds of attention and feed-forward: weights of one layer by hand, and shapes that contradict themselves."""

from __future__ import annotations

import pytest

from planner.llm import (
    StateSpace,
    active_parameters,
    load_llm,
    parameters,
)


def test_state_space_of_nemotron() -> None:
    llm = load_llm("nvidia-nemotron-3-nano-30b-a3b-bf16")
    mamba, experts, attention = llm.layers
    assert (mamba.count, experts.count, attention.count) == (23, 23, 6)  # model card: 23 Mamba-2 and MoE, 6 attention
    assert mamba.attention == StateSpace(heads=64, head_dim=64, state_size=128, groups=8, conv_kernel=4)
    assert (mamba.feed_forward, experts.attention, attention.feed_forward) == (None, None, None)
    assert mamba.attention.matrices(2688) == {"in_proj": (2688, 10304), "out_proj": (4096, 2688)}
    assert parameters(llm) == 31_577_940_288  # general.parameter_count of the converted checkpoint
    assert active_parameters(llm) == pytest.approx(3.6e9, rel=0.01)  # technical report: 3.6 B with embeddings
