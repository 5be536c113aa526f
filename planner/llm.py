"""The architecture of a language model, read from a Hugging Face ``config.json``.

Answers: how many parameters (total, active per token), how many bytes of weights at a precision, how many bytes
of KV cache per token. Layers are grouped by shape, so hybrids only add kinds of attention and feed-forward later.
What is not modelled raises `UnsupportedFeatureError` naming the feature; a wrong number is never returned silently.
The shapes of one layer and their weights are in `planner.llm_layers` and offered here too.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from pydantic import Field

from hardware_db.schema import Dtype, Frozen
from planner.errors import InputError, UnknownNameError
from planner.hf_config import CONFIG_NAME, ConfigFields, context_tokens, number_formats, read_config, refuse_unmodelled
from planner.hf_families import FAMILIES, layer_groups, learned_positions
from planner.llm_layers import (
    BYTES_PER_VALUE,
    Count,
    DenseFeedForward,
    GroupedQueryAttention,
    LayerGroup,
    MoeFeedForward,
    NormKind,
    Precision,
    Size,
    feed_forward_weights,
    output_weights,
    qkv_weights,
    router_weights,
)

__all__ = [
    "BYTES_PER_VALUE",
    "DenseFeedForward",
    "GroupedQueryAttention",
    "LayerGroup",
    "LlmSpec",
    "MoeFeedForward",
    "NormKind",
    "Precision",
    "active_parameters",
    "embedding_parameters",
    "feed_forward_weights",
    "kv_bytes_per_token",
    "linear_parameters",
    "list_llms",
    "lm_head_weights",
    "load_llm",
    "output_weights",
    "parameters",
    "qkv_weights",
    "router_weights",
    "weight_bytes",
]


class LlmSpec(Frozen):
    """A decoder-only transformer as its shapes. Sizes are in channels, heads, tokens; no bytes and no GPUs."""

    id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    source: str = Field(min_length=1)
    hidden_size: Size
    vocab_size: Size
    max_context_tokens: Size
    tied_embeddings: bool
    learned_positions: Count = Field(default=0, description="rows of a learned position table (OPT)")
    norm: NormKind = NormKind.RMS
    norms_per_layer: Size = 2
    native_precision: Precision = Precision()
    layers: tuple[LayerGroup, ...] = Field(min_length=1)

    @property
    def num_layers(self) -> int:
        """Decoder layers of all groups."""
        return sum(group.count for group in self.layers)

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, object] | str | Path,
        *,
        id: str | None = None,
        name: str | None = None,
        source: str | None = None,
    ) -> LlmSpec:
        """From a Hugging Face ``config.json``: its content, its path, or the folder that contains it.

        Name and source default to the keys ``_name`` and ``_source``, then to folder and path; the id to the name,
        in lower case and without the organisation. The native precision is that of the checkpoint, in 16 bits where
        it is float32 or unnamed.
        Multi-token-prediction modules (``num_nextn_predict_layers``, ``num_mtp_modules``) are not served by default
        and not counted.

        Raises:
            InputError: unreadable file, or a missing, malformed or inconsistent field.
            UnsupportedFeatureError: a family or feature that is not modelled, named in the message.

        >>> LlmSpec.from_config({"model_type": "llama"})
        Traceback (most recent call last):
        planner.errors.InputError: config.hidden_size = '(missing)': a decoder config needs it. Fix: add it, or ...
        """
        if isinstance(config, Mapping):
            fields, place, read_from = ConfigFields(config), None, "given"
        elif isinstance(config, str | Path):
            fields, place, read_from = ConfigFields(read_config(config)), _name_of(Path(config)), str(config)
        else:
            raise InputError("config", config, "is neither a mapping nor a path", "give a dict or a config.json")
        try:
            refuse_unmodelled(fields, tuple(FAMILIES))
            name = name or fields.text("_name") or place or str(fields.text("model_type"))
            return _spec(fields, id or _id_of(name), name, source or fields.text("_source") or read_from)
        except RecursionError:
            raise InputError("config", "(nested)", "is nested too deeply", "give a plain config.json") from None


def _spec(fields: ConfigFields, id: str, name: str, source: str) -> LlmSpec:
    family = FAMILIES[str(fields.text("model_type"))]
    weights, activations, kv_cache = number_formats(fields)
    return LlmSpec(
        id=id,
        name=name,
        source=source,
        hidden_size=fields.size("hidden_size"),
        vocab_size=fields.size("vocab_size"),
        max_context_tokens=context_tokens(fields),
        tied_embeddings=fields.flag("tie_word_embeddings", family.tied),
        learned_positions=learned_positions(fields, family),
        norm=family.norm,
        norms_per_layer=family.norms_per_layer,
        native_precision=Precision(weights=weights, activations=activations, kv_cache=kv_cache),
        layers=layer_groups(fields, family),
    )


def _name_of(path: Path) -> str:
    """Name of a model read from disk: its folder for a ``config.json``, else the file's own."""
    place = path.expanduser().resolve()
    if place.is_dir():
        return place.name
    return place.parent.name if place.name == CONFIG_NAME else place.stem


def _id_of(name: str) -> str:
    """Lower-case name after the organisation, without the suffix of converted checkpoints.

    >>> _id_of("meta-llama/Llama-2-70b-hf")
    'llama-2-70b'
    """
    last = name.rstrip("/").rsplit("/", 1)[-1].lower().removesuffix("-hf")
    return re.sub(r"[^a-z0-9.]+", "-", last).strip("-.") or "llm"


def list_llms() -> tuple[str, ...]:
    """Ids of the presets that ship with the package, sorted.

    >>> "llama-3.3-70b-instruct" in list_llms()
    True
    """
    folder = resources.files("planner").joinpath("presets", "llms")
    return tuple(sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json")))


def load_llm(llm: Mapping[str, object] | str | Path) -> LlmSpec:
    """A model by preset id, by path to a ``config.json`` or its folder, or by the content of a config.

    A name without a path separator that is no file is a preset id; case does not matter.

    Raises:
        UnknownNameError: no preset of that id. InputError, UnsupportedFeatureError: as `LlmSpec.from_config`.

    >>> load_llm("llama-3.1-8b").num_layers
    32
    """
    if not isinstance(llm, str):
        return LlmSpec.from_config(llm)
    presets = list_llms()
    if llm.lower() in presets:
        return _preset(llm.lower())
    if llm.endswith(".json") or any(mark in llm for mark in "/\\~") or llm in (".", "..") or _exists(llm):
        return _from_path(llm, presets)
    raise UnknownNameError("llm", llm, [preset for preset in presets if preset.startswith(llm.lower())] or presets)


def _from_path(path: str, presets: tuple[str, ...]) -> LlmSpec:
    near = difflib.get_close_matches(_id_of(path), presets, n=1)
    if near and not _exists(path):
        raise InputError("llm", path, "no such file or folder", f"give a config.json, or the preset {near[0]}")
    return LlmSpec.from_config(path)


def _exists(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        return False


@functools.cache
def _preset(id: str) -> LlmSpec:
    text = resources.files("planner").joinpath("presets", "llms", f"{id}.json").read_text(encoding="utf-8")
    return LlmSpec.from_config(json.loads(text), id=id)


_UNQUANTISED_BYTES = BYTES_PER_VALUE[Dtype.BF16]


def lm_head_weights(llm: LlmSpec) -> int:
    """Weights of the matrix that turns hidden states into logits, stored or tied to the embeddings.

    ``vocab * hidden``. Source: Press & Wolf 2017, arXiv:1608.05859, sec. 2. Raises nothing.

    >>> lm_head_weights(load_llm("llama-3.1-8b"))  # 128256 x 4096
    525336576
    """
    return llm.vocab_size * llm.hidden_size


def embedding_parameters(llm: LlmSpec) -> int:
    """Parameters of token embeddings, LM head (once when tied) and learned positions.

    ``vocab * hidden * (1 if tied else 2) + positions * hidden``. Source: Press & Wolf 2017, arXiv:1608.05859, sec. 2;
    Zhang et al. 2022, OPT, arXiv:2205.01068 (learned positions). Raises nothing.

    >>> embedding_parameters(load_llm("llama-3.1-8b"))  # 2 x 128256 x 4096
    1050673152
    """
    tables = 1 if llm.tied_embeddings else 2
    return tables * lm_head_weights(llm) + llm.learned_positions * llm.hidden_size


def linear_parameters(llm: LlmSpec) -> int:
    """Weights that quantisation shrinks: attention projections and feed-forward matrices of all layers and experts.

    ``sum over groups of count * (qkv + output + experts * feed_forward)``. Source: the FP8 tensors of
    https://huggingface.co/RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic (68 451 041 280 values). Raises nothing.

    >>> linear_parameters(load_llm("llama-3.3-70b-instruct"))
    68451041280
    """
    return sum(
        group.count
        * (
            qkv_weights(group, llm.hidden_size)
            + output_weights(group, llm.hidden_size)
            + _copies(group.feed_forward) * feed_forward_weights(group.feed_forward, llm.hidden_size)
        )
        for group in llm.layers
    )


def parameters(llm: LlmSpec) -> int:
    """All stored parameters: embeddings, LM head, projections, experts, router, norms, biases.

    Tied embeddings count once; multi-token-prediction modules do not count. Sum of `embedding_parameters`,
    `linear_parameters` and, per layer, router, norms and biases, plus the final norm. Source: the total of
    https://huggingface.co/api/models/meta-llama/Llama-3.1-8B, field safetensors.total. Raises nothing.

    >>> parameters(load_llm("llama-3.1-8b"))
    8030261248
    """
    small = sum(group.count * _router_norm_and_bias_parameters(llm, group) for group in llm.layers)
    return embedding_parameters(llm) + linear_parameters(llm) + small + _norm_parameters(llm)


def active_parameters(llm: LlmSpec) -> int:
    """Parameters one token uses: `parameters` without the experts its router does not choose; embeddings included.

    ``parameters - sum over MoE groups of count * (experts - experts_per_token) * feed_forward``. Source: Jiang et al.
    2024, Mixtral of Experts, arXiv:2401.04088, sec. 1 (13 B of 47 B active). Raises nothing.

    >>> round(active_parameters(load_llm("mixtral-8x7b-v0.1")) / 1e9, 1)
    12.9
    """
    idle = sum(
        group.count
        * (group.feed_forward.experts - group.feed_forward.experts_per_token)
        * feed_forward_weights(group.feed_forward, llm.hidden_size)
        for group in llm.layers
        if isinstance(group.feed_forward, MoeFeedForward)
    )
    return parameters(llm) - idle


def weight_bytes(llm: LlmSpec, precision: Precision) -> float:
    """Bytes of all weights of one copy of the model at a precision [bytes].

    ``linear_parameters * BYTES_PER_VALUE[precision.weights] + (parameters - linear_parameters) * 2``: embeddings, LM
    head, norms, biases, router and positions stay in 16 bits. Source: the tensors of
    https://huggingface.co/RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic: 68.451 GB in FP8, 2 x 2.109 GB in BF16; its
    channel scales, 0.02 % of the bytes, are not counted. Raises nothing.

    >>> fp8 = Precision(weights=Dtype.FP8, activations=Dtype.FP8)
    >>> round(weight_bytes(load_llm("llama-3.3-70b-instruct"), fp8) / 1e9, 2)  # 68.451 + 2 x 2.103
    72.66
    """
    linear = linear_parameters(llm)
    return linear * BYTES_PER_VALUE[precision.weights] + (parameters(llm) - linear) * _UNQUANTISED_BYTES


def kv_bytes_per_token(llm: LlmSpec, kv_dtype: Dtype) -> float:
    """Bytes of KV cache one token of context occupies, all layers together [bytes/token].

    ``sum over layers of 2 * kv_heads * head_dim * BYTES_PER_VALUE[kv_dtype]`` (keys and values). Source: Kwon et al.
    2023, PagedAttention, arXiv:2309.06180, sec. 3: 800 KB per token for OPT-13B in FP16. Raises nothing.

    >>> kv_bytes_per_token(load_llm("opt-13b"), Dtype.FP16) / 1024
    800.0
    """
    values = sum(2 * group.count * group.attention.kv_heads * group.attention.head_dim for group in llm.layers)
    return values * BYTES_PER_VALUE[kv_dtype]


def _copies(feed_forward: DenseFeedForward | MoeFeedForward) -> int:
    return feed_forward.experts if isinstance(feed_forward, MoeFeedForward) else 1


def _norm_parameters(llm: LlmSpec) -> int:
    """Parameters of one norm over the hidden channels."""
    return llm.hidden_size * (2 if llm.norm is NormKind.LAYER else 1)


def _router_norm_and_bias_parameters(llm: LlmSpec, group: LayerGroup) -> int:
    """Parameters of one layer that are not in its attention and feed-forward matrices."""
    attention, feed_forward, hidden = group.attention, group.feed_forward, llm.hidden_size
    count = router_weights(feed_forward, hidden) + llm.norms_per_layer * _norm_parameters(llm)
    count += attention.qk_norm_values
    if attention.qkv_bias:
        count += (attention.heads + 2 * attention.kv_heads) * attention.head_dim
    if attention.output_bias:
        count += hidden
    if isinstance(feed_forward, MoeFeedForward):
        return count + (feed_forward.experts if feed_forward.router_bias else 0)
    if feed_forward.bias:
        count += (2 if feed_forward.gated else 1) * feed_forward.intermediate + hidden
    return count
