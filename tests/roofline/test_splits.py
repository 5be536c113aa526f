"""What cannot be split evenly is refused by name; what can is counted as engines hold it."""

from __future__ import annotations

import pytest

from hardware_db import Dtype
from planner.core import InputError
from planner.llm import LayerGroup, Precision, StateSpace, load_llm
from planner.roofline import Parallelism, require_split, step_operators
from tests.builders import HARDWARE

BF16 = Precision()
FP8_BLOCK = Precision(weights=Dtype.FP8_BLOCK, activations=Dtype.FP8_BLOCK)
UNPACKED = Precision(weights=Dtype.FP8_BLOCK, activations=Dtype.BF16)


@pytest.mark.parametrize(
    ("model", "split", "precision", "named"),
    [
        ("llama-3.1-8b", Parallelism(tp=3), BF16, "32 query heads do not split evenly"),
        ("phi-4", Parallelism(tp=4), BF16, "10 KV heads do not split evenly"),
        (
            "qwen3-next-80b-a3b-thinking",
            Parallelism(tp=32),
            BF16,
            "16 key heads of linear attention do not split evenly",
        ),
        ("nvidia-nemotron-3-nano-30b-a3b-bf16", Parallelism(tp=16), BF16, "8 groups of Mamba-2 do not split evenly"),
        ("deepseek-r1", Parallelism(dp=24, ep=24), BF16, "256 experts do not split evenly over 24. Fix: use a divisor"),
        ("gpt-oss-120b", Parallelism(dp=128), BF16, "channels of an expert do not split evenly"),
        ("deepseek-v4-flash", Parallelism(tp=16, across_domains=True), BF16, "groups of heads"),
        # Issues of vLLM: Qwen3-235B-A22B-FP8 and MiniMax-M2.5 on TP 8 (192 channels), DeepSeek-R1 on TP 32 (64).
        ("qwen3-235b-a22b", Parallelism(tp=8), FP8_BLOCK, "192 of 1536 channels of an expert on a GPU are no multiple"),
        ("deepseek-r1", Parallelism(tp=32), FP8_BLOCK, "no multiple of the 128 of one fp8_block scale"),
        ("deepseek-r1", Parallelism(tp=32), UNPACKED, "no multiple of the 128 of one fp8_block scale"),
        # verify_with_parallel_config of vLLM: dcp at most tp / KV heads, and tp above these.
        ("llama-3.1-70b", Parallelism(tp=8, dcp=2), BF16, "none is kept twice. Fix: raise tp above 8"),
        ("qwen3-235b-a22b", Parallelism(tp=8, dcp=4), BF16, "2 GPUs that keep the same of 4 KV heads"),
        ("gpt-oss-120b", Parallelism(tp=16, dcp=2), BF16, "do not share out windows"),
        ("deepseek-v3.2", Parallelism(tp=8, dcp=8), BF16, "keys that an index chooses"),
        ("deepseek-v4-flash", Parallelism(tp=8, dcp=8), BF16, "do not share out windows"),
        # model_overrides/deepseek_v2.py of SGLang 0.5.23: attention TP 1 and ep_size == tp_size.
        ("deepseek-r1", Parallelism(tp=2, pcp=4, ep=8), BF16, "Fix: use tp = 1 and ep = 4"),
        ("deepseek-r1", Parallelism(pcp=8), BF16, "Fix: use tp = 1 and ep = 8"),
        ("deepseek-v4-flash", Parallelism(pcp=8, ep=8), BF16, "of heads that attend to all keys only"),
        ("gpt-oss-120b", Parallelism(pcp=8, ep=8), BF16, "of heads that attend to all keys only"),
        ("minimax-m3", Parallelism(pcp=8, ep=8), BF16, "of heads that attend to all keys only"),
        ("qwen3-next-80b-a3b-thinking", Parallelism(pcp=8, ep=8), BF16, "of heads that attend to all keys only"),
    ],
)
def test_uneven_splits_are_refused_by_name(model: str, split: Parallelism, precision: Precision, named: str) -> None:
    with pytest.raises(InputError) as refused:
        require_split(load_llm(model), split, precision)
    assert named in str(refused.value) and "Fix:" in str(refused.value)


@pytest.mark.parametrize(
    ("model", "split", "precision"),
    [
        ("llama-3.1-70b", Parallelism(tp=16), BF16),  # 8 KV heads, each on two GPUs
        ("deepseek-r1", Parallelism(tp=16), FP8_BLOCK),  # 128 channels of an expert, one scale
        ("qwen3-235b-a22b", Parallelism(tp=8, ep=8), FP8_BLOCK),  # what vLLM's error asks for
        ("deepseek-r1", Parallelism(dp=24, ep=24, redundant_experts=8), BF16),
        ("qwen3-next-80b-a3b-thinking", Parallelism(tp=8), BF16),
        # Cases of vLLM's context_parallel_deployment.md.
        ("deepseek-r1", Parallelism(tp=8, dcp=8), FP8_BLOCK),
        ("kimi-k2-instruct", Parallelism(tp=16, dcp=8), FP8_BLOCK),
        ("qwen3-235b-a22b", Parallelism(tp=8, dcp=2), BF16),
        # Registered tests of SGLang: Qwen3 with tp 4, attn-cp 2, ep 4; DeepSeek; and its pull request 23292.
        ("qwen3-30b-a3b", Parallelism(tp=2, pcp=2, ep=4), BF16),
        ("deepseek-v3.2", Parallelism(pcp=8, ep=8), FP8_BLOCK),
        ("deepseek-r1", Parallelism(pcp=8, ep=8), FP8_BLOCK),
    ],
)
def test_splits_that_people_run_are_taken(model: str, split: Parallelism, precision: Precision) -> None:
    require_split(load_llm(model), split, precision)


def test_a_single_group_of_mamba_is_on_every_gpu() -> None:
    # MambaMixer2 of vLLM: extra groups are added where one group meets several GPUs.
    kind = StateSpace(heads=64, head_dim=64, state_size=128, groups=1, conv_kernel=4)
    assert [kind.groups_per_gpu(tp) for tp in (1, 2, 8)] == [1, 1, 1]
    llm = load_llm("nvidia-nemotron-3-nano-30b-a3b-bf16")
    one = llm.model_copy(
        update={"layers": (LayerGroup(count=1, attention=kind, feed_forward=None),), "layer_order": ()}
    )
    into = [
        operator.n
        for tp in (1, 4)
        for operator in step_operators(one, HARDWARE.skus["h100-sxm"], BF16, Parallelism(tp=tp))
        if getattr(operator, "k", 0) == llm.hidden_size and operator.family.value == "qkv"
    ]
    assert into == [2 * 4096 + 2 * 128 + 64, 2 * 1024 + 2 * 128 + 16]
