"""What a language model is: parameters, weight bytes, KV bytes per token, read from its `config.json`.

`load_llm` takes a preset, a file, a folder or a mapping and gives an `LlmSpec`, a sequence of layer groups (`layers`).
`hf_*` know how the world writes configuration files; a feature that is not modelled is refused by name. Knows no GPUs.
"""

from planner.llm import hf_config
from planner.llm.hub import load_from_hub
from planner.llm.layers import (
    ACTIVATIONS_OF,
    BYTES_PER_VALUE,
    Attention,
    DenseFeedForward,
    GroupedQueryAttention,
    LatentAttention,
    LayerGroup,
    LinearAttention,
    MoeFeedForward,
    Part,
    PartPrecision,
    Precision,
    StateSpace,
    attention_matrices,
    attention_output_weights,
    attention_weights,
    feed_forward_weights,
    shared_expert_weights,
)
from planner.llm.load import list_llms, load_llm
from planner.llm.sizes import (
    active_parameters,
    embedding_parameters,
    kv_bytes_per_token,
    kv_window_bytes,
    linear_parameters,
    linear_parameters_by_part,
    lm_head_weights,
    parameters,
    state_bytes,
    weight_bytes,
)
from planner.llm.spec import LlmSpec

__all__ = [
    "ACTIVATIONS_OF",
    "BYTES_PER_VALUE",
    "Attention",
    "DenseFeedForward",
    "GroupedQueryAttention",
    "LatentAttention",
    "LayerGroup",
    "LinearAttention",
    "LlmSpec",
    "MoeFeedForward",
    "Part",
    "PartPrecision",
    "Precision",
    "StateSpace",
    "active_parameters",
    "attention_matrices",
    "attention_output_weights",
    "attention_weights",
    "embedding_parameters",
    "feed_forward_weights",
    "hf_config",
    "kv_bytes_per_token",
    "kv_window_bytes",
    "linear_parameters",
    "linear_parameters_by_part",
    "list_llms",
    "lm_head_weights",
    "load_from_hub",
    "load_llm",
    "parameters",
    "shared_expert_weights",
    "state_bytes",
    "weight_bytes",
]
