"""How much of a shared prefix is found, by what layers keep and what the engine keeps of it."""

from __future__ import annotations

import numpy as np
import pytest

from hardware_db import StateReuse
from planner.engine import ReplicaConfig, Schedule, prefix_reuse_notes, reusable_prefix_tokens, reuse_step_tokens
from planner.llm import GroupedQueryAttention, LinearAttention, load_llm
from planner.roofline import Parallelism
from tests.builders import HARDWARE, replica

HYBRID = "qwen3-next-80b-a3b-thinking"
CACHED = Schedule(prefix_cache=True)


def on(engine: str, model: str = HYBRID, **changes: object) -> ReplicaConfig:
    """A replica with a prefix cache under an engine."""
    config = replica(model, own_schedule=CACHED, **changes)
    return config.model_copy(update={"engine": HARDWARE.engines[engine]})


def found(config: ReplicaConfig, prefix: int, *inputs: int) -> int:
    """Tokens of a prefix that prompts of these lengths find."""
    return reusable_prefix_tokens(config, prefix, np.array(inputs))


def test_blocks_of_vllm_are_as_large_as_a_state() -> None:
    # vllm-project/vllm#40696: "Setting attention block size to 528 tokens" for Qwen3.5-4B, whose state is that of 32
    # value heads of 128 x 128 and whose full layers keep 4 KV heads of 256 channels.
    llm = load_llm(HYBRID)
    groups = []
    for group in llm.layers:
        kind = group.attention
        if isinstance(kind, GroupedQueryAttention):
            kind = kind.model_copy(update={"kv_heads": 4})
        groups.append(group.model_copy(update={"attention": kind}))
        assert not isinstance(kind, LinearAttention) or (kind.value_heads, kind.key_heads, kind.key_dim) == (
            32,
            16,
            128,
        )
    small = on("vllm").model_copy(update={"llm": llm.model_copy(update={"layers": tuple(groups)})})
    assert reuse_step_tokens(small) == 528
    # #40696: prompts below a block find nothing; of 552 tokens one block, with 24 left.
    assert [found(small, prompt, prompt) for prompt in (500, 552, 979)] == [0, 528, 528]


def test_vllm_finds_states_at_ends_of_chunks() -> None:
    # 1056 tokens to a block on any split that has a KV head to itself; chunks of 7 blocks in a budget of 8192.
    config = on("vllm", parallelism=Parallelism(tp=2))
    assert reuse_step_tokens(config) == 1056
    assert found(config, 10_000, 20_000) == 7392  # one chunk lies within the prefix
    assert found(config, 10_000, 10_400) == 9504  # a prompt ends with its last block inside it
    assert found(config, 4_000, 20_000) == 0  # none does


def test_sglang_finds_states_where_prompts_part() -> None:
    config = on("sglang")
    assert [found(config, prefix, prefix + 5000) for prefix in (200, 1000, 4000)] == [0, 768, 3840]


def test_tensorrt_keeps_no_state_unasked() -> None:
    config = on("tensorrt-llm", "nvidia-nemotron-3-nano-30b-a3b-bf16")
    assert config.engine.state_reuse is StateReuse.NONE
    assert found(config, 30_000, 31_000) == 0
    assert "no prefix is reused" in prefix_reuse_notes(config)[0]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v3", "gpt-oss-120b"])
def test_keys_and_values_are_found_block_by_block(model: str) -> None:
    config = on("vllm", model)
    assert found(config, 1000, 1100) == 992
    assert bool(prefix_reuse_notes(config)) == (model == "gpt-oss-120b")  # windows at the end of the prefix


@pytest.mark.parametrize("engine", list(HARDWARE.engines))
@pytest.mark.parametrize("prefix", [1, 100, 1056, 5000, 50_000])
def test_no_more_than_the_prefix_is_found(engine: str, prefix: int) -> None:
    config = on(engine)
    tokens = found(config, prefix, prefix + 100)
    assert 0 <= tokens <= prefix and tokens % reuse_step_tokens(config) == 0
    assert len(prefix_reuse_notes(config)) == 1
