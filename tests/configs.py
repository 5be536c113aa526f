"""Configurations of models that several test modules start from."""

from __future__ import annotations

import json
from typing import Any

from hardware_db import Dtype
from planner.core import preset
from planner.llm import LlmSpec, attentions

Config = dict[str, Any]


def preset_config(llm: str) -> Config:
    """The content of a preset."""
    text = preset("llms", f"{llm}.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def llama(**changes: Any) -> Config:
    """A small plain config; None removes a key."""
    config: Config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 100,
        "max_position_embeddings": 512,
    } | changes
    return {key: value for key, value in config.items() if value is not None}


def with_text(config: Config, **changes: Any) -> Config:
    """A multimodal config with changes in its language model."""
    return config | {"text_config": config["text_config"] | changes}


def kv_window_bytes(llm: LlmSpec, dtype: Dtype, tokens: float) -> float:
    """Bytes of KV cache of the windowed layers of a sequence of so many tokens, a chunk counted at its fullest."""
    found = attentions(llm.layers)
    return sum(count * kind.window_bytes(dtype) * min(tokens, kind.cache_window) for count, kind in found)
