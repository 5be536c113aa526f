"""Models by the names that people and gateways use."""

from __future__ import annotations

import pytest

from planner.core import Dtype, InputError
from planner.llm import load_llm


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("Qwen3.6-35B-A3B", "qwen3.5-35b-a3b"),  # same layers: qwen3_5_moe.md of Transformers
        ("Qwen/Qwen3-32B", "qwen3-32b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Llama-3.3-70B", "llama-3.3-70b-instruct"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "qwen2.5-32b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b-v0.1"),
        ("moonshotai/Kimi-K2-Thinking", "kimi-k2.5"),  # its experts have 4 bits, those of K2-Instruct 8
        ("us.meta.llama3-3-70b-instruct-v1:0", "llama-3.3-70b-instruct"),  # Bedrock
        ("qwen.qwen3-235b-a22b-2507-v1:0", "qwen3-235b-a22b"),
        ("meta/llama-3.3-70b-instruct-maas", "llama-3.3-70b-instruct"),  # Vertex
    ],
)
def test_a_checkpoint_is_the_preset_with_its_layers(name: str, preset: str) -> None:
    called, own = load_llm(name), load_llm(preset)
    assert (called.id, called.layers, called.native_precision) == (own.id, own.layers, own.native_precision)
    assert called.name == name.rsplit("/", 1)[-1]
    assert f"has the layers of the preset {preset}" in called.source


def test_a_name_with_a_format_is_in_that_format_or_refused() -> None:
    assert load_llm("Qwen/Qwen3-32B-FP8").native_precision.weights is Dtype.FP8_BLOCK  # its config.json: 128 x 128
    with pytest.raises(InputError):
        load_llm("somebody/Qwen3-32B-W4A16-mine")


@pytest.mark.parametrize("name", ["Qwen3.7-999B", "llama-9", "gpt-5"])
def test_a_name_of_nothing_known_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="unknown name"):
        load_llm(name)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("nim/meta/llama-3.1-8b-instruct", "llama-3.1-8b"),
        ("accounts/fireworks/models/llama-v3p3-70b-instruct", "llama-3.3-70b-instruct"),
        ("hf.co/unsloth/Qwen3-8B-GGUF:Q4_K_M", "qwen3-8b"),
        ("llama3.1:8b-instruct-q4_K_M", "llama-3.1-8b"),
        ("bartowski/Qwen2.5-72B-Instruct-GGUF", "qwen2.5-72b"),
    ],
)
def test_what_is_no_preset_says_which_is_near_however_it_is_served(name: str, near: str) -> None:
    """Formats of llama.cpp are not modelled, so the name is refused; its layers are known."""
    with pytest.raises(InputError) as refused:
        load_llm(name)
    assert f" {near}," in f"{refused.value.fix},"
