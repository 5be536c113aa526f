"""Fields of a config.json: what is malformed, what is not modelled, windows and context."""

from __future__ import annotations

import math
from typing import Any

import pytest

from planner.core import InputError, UnsupportedFeatureError
from planner.llm import (
    GroupedQueryAttention,
    LlmSpec,
    load_llm,
)
from tests.configs import Config, llama, preset_config


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"hidden_size": None}, r"config\.hidden_size = '\(missing\)'.*needs it"),
        ({"max_position_embeddings": None}, r"config\.max_position_embeddings = '\(missing\)'"),
        ({"model_type": None}, r"config\.model_type = '\(missing\)': a decoder config names its family"),
        ({"hidden_size": 0}, r"config\.hidden_size = 0: must be from 1 to"),
        ({"hidden_size": 2**31}, r"config\.hidden_size = 2147483648: must be from 1 to 2147483647"),
        ({"hidden_size": True}, r"config\.hidden_size = True: must be a whole number"),
        ({"hidden_size": 65}, r"config\.hidden_size = 65: must be a multiple of num_attention_heads = 8 when head_dim"),
        ({"num_key_value_heads": 3}, r"config\.num_key_value_heads = 3: must divide num_attention_heads = 8"),
        ({"tie_word_embeddings": "yes"}, r"config\.tie_word_embeddings = 'yes': must be true or false"),
        ({"torch_dtype": "int3"}, r"config\.torch_dtype = 'int3': unknown type.*float16, bfloat16, float32"),
        ({"layer_types": "full_attention"}, r"config\.layer_types = 'full_attention': must be a list"),
        ({"rope_scaling": {"type": "linear"}}, r"config\.rope_scaling\.factor = None: must be a number from 1"),
        ({"rope_scaling": {"type": "linear", "factor": math.nan}}, r"config\.rope_scaling\.factor = nan"),
        ({"rope_scaling": {"type": "linear", "factor": 2e9}}, r"max_context_tokens = 1024000000000"),
    ],
)
def test_malformed_config(changes: Config, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint) as caught:
        LlmSpec.from_config(llama(**changes))
    assert not isinstance(caught.value, UnsupportedFeatureError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("preset", "field"),
    [("qwen3-8b", "head_dim"), ("qwen2.5-7b", "num_key_value_heads"), ("mixtral-8x7b-v0.1", "num_key_value_heads")],
)
def test_field_whose_class_default_belongs_to_another_model_is_required(preset: str, field: str) -> None:
    config = preset_config(preset)
    del config[field]
    with pytest.raises(InputError, match=rf"config\.{field} = '\(missing\)': this family needs it"):
        LlmSpec.from_config(config)


@pytest.mark.parametrize("value", [None, 7, 3.5, b"x", ["a"]])
def test_what_is_neither_a_mapping_nor_a_path(value: Any) -> None:
    with pytest.raises(InputError, match="is neither a mapping nor a path"):
        load_llm(value)


@pytest.mark.parametrize(
    ("changes", "feature"),
    [
        ({"kv_lora_rank": 512}, "multi-head latent attention"),
        ({"index_topk": 2048}, "a sparse attention index"),
        ({"full_attention_interval": 4}, "linear attention"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "hybrid local-global attention"),
        ({"sliding_window": 128}, "sliding window attention"),
        ({"attention_chunk_size": 8192}, "chunked attention"),
        ({"n_shared_experts": 1}, "shared experts"),
        ({"first_k_dense_replace": 3}, "leading dense layers"),
        ({"is_encoder_decoder": True}, "an encoder-decoder"),
        ({"vision_config": {"depth": 3}}, "a vision or audio encoder"),
        ({"text_config": {"hidden_size": 64}}, "multimodal wrappers"),
        ({"text_config": {"model_type": "llama", "cross_attention_layers": [3]}}, "cross-attention"),
        ({"indexer_types": ["full", "shared"]}, "a sparse attention index shared between layers"),
        ({"num_local_experts": 8}, "experts are not modelled in model_type llama"),
        ({"model_type": "falcon_mamba"}, "the state space of Mamba-1, which is not modelled"),
        ({"model_type": "bert\nbert", "is_encoder_decoder": True}, "an encoder-decoder"),
    ],
)
def test_unmodelled_features_are_named(changes: Config, feature: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=feature) as caught:
        LlmSpec.from_config(llama(**changes))
    assert "\n" not in str(caught.value)
    assert ". Fix: " in str(caught.value)


@pytest.mark.parametrize(
    ("model_type", "window", "tokens"),
    [
        ("mistral", {"sliding_window": None}, 0),
        ("mistral", {"sliding_window": 512}, 0),  # the context is 512 tokens
        ("mistral", {"sliding_window": 511}, 511),
        ("mistral", {"max_position_embeddings": 32768}, 4096),  # the class default is 4096
        ("qwen2", {"sliding_window": 128}, 0),  # use_sliding_window is false by default
        ("qwen2", {"sliding_window": 128, "use_sliding_window": True}, 0),  # from layer 28 on, of 3
        ("qwen2", {"sliding_window": 128, "use_sliding_window": True, "max_window_layers": 0}, 128),
        ("phi3", {"sliding_window": 511}, 511),
    ],
)
def test_sliding_windows_shorter_than_the_context_are_read(model_type: str, window: Config, tokens: int) -> None:
    (group,) = LlmSpec.from_config(llama(model_type=model_type) | window).layers
    assert isinstance(group.attention, GroupedQueryAttention)
    assert group.attention.window == tokens


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({}, 512),
        ({"model_max_length": 131072}, 131072),  # Command R+: 8192 positions, 128k context in its model card
        ({"rope_scaling": {"type": "linear", "factor": 4}}, 2048),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 512),
        # Qwen3-8B model card: YaRN with factor 4 on 32768 positions serves 131072 tokens.
        (
            {
                "max_position_embeddings": 40960,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            },
            131072,
        ),
    ],
)
def test_context_length(changes: Config, tokens: int) -> None:
    assert LlmSpec.from_config(llama(**changes)).max_context_tokens == tokens
