"""`LlmSpec`: a decoder-only language model as its shapes, read from a ``config.json``, and its pipeline stages.

What is not modelled raises `UnsupportedFeatureError` naming the feature; a wrong number is never returned silently. The
counts of parameters and bytes of a spec are in `planner.llm.sizes`. A pipeline stage holds whole, consecutive layers;
the first has the embeddings too, the last the head. A model whose layers are of several kinds has stages of unlike
cost: the fullest decides how much fits, the slowest how fast the pipeline is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from planner.core import Frozen, InputError, SpareLayers
from planner.llm.formats import Count, Precision, Size
from planner.llm.hf_config import (
    CONFIG_NAME,
    ConfigFields,
    context_tokens,
    language_fields,
    read_config,
    read_quantisation,
)
from planner.llm.hf_families import (
    decoder_fields,
    decoder_layers,
    family_of,
    is_known,
    layer_groups,
    layer_order,
    learned_positions,
    prediction_layers,
)
from planner.llm.hf_quantisation import native_precision
from planner.llm.hf_vision import vision_encoder
from planner.llm.layers import LayerEmbedding, LayerGroup, NormKind
from planner.llm.vision import VisionEncoder


class LlmSpec(Frozen):
    """A decoder-only transformer as its shapes. Sizes are in channels, heads, tokens; no bytes and no GPUs."""

    id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    source: str = Field(min_length=1)
    family: str = Field(default="", description="model_type of the language model in its config.json")
    hidden_size: Size
    vocab_size: Size
    max_context_tokens: Size
    tied_embeddings: bool
    learned_positions: Count = Field(default=0, description="rows of a learned position table (OPT)")
    layer_embedding: LayerEmbedding | None = Field(default=None, description="a row for every token and layer")
    norm: NormKind = NormKind.RMS
    norms_per_layer: Size = Field(default=2, description="of a layer of attention and feed-forward; half of one block")
    residual_block_layers: Count = Field(
        default=0, description="layers whose sum is kept for later ones to attend to (attention residuals); 0 = none"
    )
    residual_streams: Size = Field(
        default=1, description="copies of the residual that layers mix, read and write (hyper-connections); 1 = plain"
    )
    native_precision: Precision = Precision()
    layers: tuple[LayerGroup, ...] = Field(min_length=1)
    layer_order: tuple[Count, ...] = Field(
        default=(), description="which of `layers` each decoder layer is, in order; empty: one group after another"
    )
    mtp: LayerGroup | None = Field(default=None, description="decoder layer of one multi-token-prediction module")
    mtp_layers: Count = Field(default=0, description="multi-token-prediction modules; not counted in `parameters`")
    encoder: VisionEncoder | None = Field(default=None, description="of images; not counted in `parameters`")

    @model_validator(mode="after")
    def _modules_have_a_layer(self) -> Self:
        if (self.mtp is None) != (self.mtp_layers == 0):
            bound = "needs the decoder layer of a module in mtp, and mtp needs modules"
            raise InputError("mtp_layers", self.mtp_layers, bound, "give both or neither")
        return self

    @model_validator(mode="after")
    def _order_has_every_layer(self) -> Self:
        counts = {index: group.count for index, group in enumerate(self.layers)}
        if self.layer_order and Counter(self.layer_order) != counts:
            bound = "must name every group as often as it has layers"
            raise InputError("layer_order", len(self.layer_order), bound, "correct it, or leave it out")
        return self

    def __hash__(self) -> int:
        """Of some fields that tell models apart: all of them take long, and this is asked millions of times."""
        return hash((self.id, self.hidden_size, self.vocab_size))

    def with_layers(self, layers: Sequence[LayerGroup]) -> Self:
        """The model with these groups of layers only, in no order between them."""
        return self.model_copy(update={"layers": tuple(layers), "layer_order": ()})

    @property
    def num_layers(self) -> int:
        """Decoder layers of all groups."""
        return sum(group.count for group in self.layers)

    @property
    def routed_experts(self) -> int:
        """Routed experts of a layer, the most there are; 0 for a dense model."""
        return max((group.experts.experts for group in self.layers if group.experts is not None), default=0)

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

        Of a multimodal wrapper the language model in its ``text_config`` is taken, and its vision encoder
        (`planner.llm.hf_vision`) as `encoder`; what else it encodes, or an encoder of a family that is not modelled, is
        left out, which `source` then says. Name and source default to the keys ``_name`` and ``_source``, then to
        folder and path; the id to the name, in lower case and without the organisation. The native precision is that of
        the checkpoint (``quantization_config``, or ``hf_quant_config.json`` beside the file), in 16 bits where it is
        float32 or unnamed. Multi-token-prediction modules (``num_nextn_predict_layers``, ``mtp_num_hidden_layers``) are
        kept apart, in `mtp`.

        Raises:
            InputError: unreadable file, or a missing, malformed or inconsistent field.
            UnsupportedFeatureError: a family or feature that is not modelled, named in the message.

        >>> LlmSpec.from_config({"model_type": "llama"})
        Traceback (most recent call last):
        planner.core.errors.InputError: config.hidden_size = '(missing)': a decoder config needs it. Fix: add it, or ...
        """
        if isinstance(config, Mapping):
            fields, place, read_from = ConfigFields(config), None, "given"
        elif isinstance(config, str | Path):
            fields, place, read_from = _fields_of(config), _name_of(Path(config)), str(config)
        else:
            raise InputError("config", config, "is neither a mapping nor a path", "give a dict or a config.json")
        try:
            named = language_fields(fields)
            language = decoder_fields(named)
            name = name or fields.text("_name") or place or str(language.text("model_type"))
            source = source or fields.text("_source") or read_from
            wrapped = named.prefix != fields.prefix or fields.values.keys() - named.values.keys()
            encoder = vision_encoder(fields)
            if encoder is not None and fields.values.get("audio_config"):
                source = f"{source}; without the audio encoder of {fields.text('model_type')}"
            elif encoder is None and wrapped:
                source = f"{source}; the language model only, without the encoders of {fields.text('model_type')}"
            if language.values.get("tie_word_embeddings") is None and not is_known(language):
                source = f"{source}; embeddings and head counted apart, as tie_word_embeddings is absent"
            return _spec(language, id or id_of(name), name, source, encoder)
        except RecursionError:
            raise InputError("config", "(nested)", "is nested too deeply", "give a plain config.json") from None


def require_context(
    llm: LlmSpec, longest_tokens: int, max_request_tokens: int | None = None, field: str = "workload.lengths"
) -> None:
    """Refuse requests that are longer than a model takes, or than its engine is told to take.

    Args:
        llm: the model.
        longest_tokens: input and output of the longest request [tokens].
        max_request_tokens: what engines are told to take at most [tokens]; None: whatever the model takes.
        field: where the lengths stand, for the message.

    Raises:
        InputError: a request, or the limit, is above the model's context, or a request above the limit.

    >>> from planner.llm import load_llm
    >>> require_context(load_llm("mistral-7b-v0.1"), 40_000)
    Traceback (most recent call last):
    planner.core.errors.InputError: workload.lengths = 40000: longer than the 32768 tokens of context of ...
    """
    context = llm.max_context_tokens
    if max_request_tokens is not None and max_request_tokens > context:
        bound = f"more than the {context} tokens of context of {llm.id}"
        raise InputError("max_request_tokens", max_request_tokens, bound, f"write {context} or less, or leave it out")
    if longest_tokens > context:
        bound = f"longer than the {context} tokens of context of {llm.id}"
        raise InputError(field, longest_tokens, bound, "cut the lengths or choose another model")
    if max_request_tokens is not None and longest_tokens > max_request_tokens:
        bound = f"longer than the {max_request_tokens} tokens of max_request_tokens"
        raise InputError(field, longest_tokens, bound, "cut the lengths or raise max_request_tokens")


@dataclass(frozen=True)
class PipelineStage:
    """One stage of a pipeline.

    Attributes:
        layers: its decoder layers, by group.
        first: it has the embeddings.
        last: it has the final norm and the head.
    """

    layers: tuple[LayerGroup, ...]
    first: bool
    last: bool


def stage_sizes(layers: int, stages: int, spare: SpareLayers = SpareLayers.BEFORE_LAST) -> tuple[int, ...]:
    """Layers of each stage: as many everywhere, and what is left over one each.

    Sources: `get_pp_indices` of vLLM (vllm/distributed/utils.py: those before the last) and of SGLang
    (python/sglang/srt/distributed/utils.py: "the last N partitions will have one extra layer"); `Mapping.pp_layers` of
    TensorRT-LLM (tensorrt_llm/mapping.py: "first n ranks get one extra layer").

    Args:
        layers: of the model [-].
        stages: of the pipeline [-].
        spare: where the ones left over are.

    Returns:
        One number for each stage [-].

    Raises:
        InputError: there are fewer layers than stages.

    >>> stage_sizes(61, 4), stage_sizes(61, 4, SpareLayers.FIRST)
    ((15, 15, 16, 15), (16, 15, 15, 15))
    """
    if stages > layers:
        raise InputError("parallelism.pp", stages, f"the model has {layers} layers", f"use at most {layers}")
    each, left = divmod(layers, stages)
    first = {SpareLayers.FIRST: 0, SpareLayers.BEFORE_LAST: stages - 1 - left, SpareLayers.LAST: stages - left}[spare]
    return tuple(each + (first <= stage < first + left) for stage in range(stages))


@lru_cache(maxsize=256)
def pipeline_stages(
    llm: LlmSpec, stages: int, spare: SpareLayers = SpareLayers.BEFORE_LAST
) -> tuple[PipelineStage, ...]:
    """The stages of a pipeline, in order.

    Args:
        llm: model.
        stages: of the pipeline [-].
        spare: which stages have one layer more where layers do not divide evenly.

    Returns:
        One record for each stage.

    Raises:
        InputError: the model has fewer layers than stages.

    >>> from planner.llm import load_llm
    >>> [[group.count for group in stage.layers] for stage in pipeline_stages(load_llm("deepseek-v3"), 4)]
    [[3, 12], [15], [16], [15]]
    """
    order = llm.layer_order or tuple(i for i, group in enumerate(llm.layers) for _ in range(group.count))
    ends = tuple(accumulate(stage_sizes(len(order), stages, spare)))
    held = [Counter(order[start:end]) for start, end in zip((0, *ends), ends, strict=False)]
    return tuple(
        PipelineStage(
            layers=tuple(llm.layers[i].model_copy(update={"count": count}) for i, count in sorted(counts.items())),
            first=stage == 0,
            last=stage == stages - 1,
        )
        for stage, counts in enumerate(held)
    )


def _fields_of(path: str | Path) -> ConfigFields:
    config = read_config(path)
    beside = None if config.get("quantization_config") else read_quantisation(path)
    if beside is None:
        return ConfigFields(config)
    return ConfigFields({**config, "quantization_config": {"quant_method": "modelopt", **beside}})


def _spec(fields: ConfigFields, id: str, name: str, source: str, encoder: VisionEncoder | None) -> LlmSpec:
    family = family_of(fields)
    hidden, layers = fields.size("hidden_size"), decoder_layers(fields, family)
    mtp, mtp_layers = prediction_layers(fields, layers)
    return LlmSpec(
        id=id,
        name=name,
        source=source,
        encoder=encoder,
        family=str(fields.text("model_type")),
        hidden_size=hidden,
        vocab_size=fields.size("vocab_size"),
        max_context_tokens=context_tokens(fields),
        tied_embeddings=fields.flag("tie_word_embeddings", family.tied),
        learned_positions=learned_positions(fields, family),
        layer_embedding=family.layer_embedding(fields) if family.layer_embedding is not None else None,
        norm=family.norm,
        norms_per_layer=family.norms_per_layer,
        residual_block_layers=fields.count("attn_res_block_size"),
        residual_streams=fields.size("hc_mult", default=1),
        native_precision=native_precision(fields, layers, hidden),
        layers=layer_groups(layers),
        layer_order=layer_order(layers),
        mtp=mtp,
        mtp_layers=mtp_layers,
    )


def _name_of(path: Path) -> str:
    """Name of a model read from disk: its folder for a ``config.json``, else the file's own."""
    place = path.expanduser().resolve()
    if place.is_dir():
        return place.name
    return place.parent.name if place.name == CONFIG_NAME else place.stem


def id_of(name: str) -> str:
    """Lower-case name after the organisation, without the suffix of converted checkpoints. Raises nothing.

    >>> id_of("meta-llama/Llama-2-70b-hf"), id_of("模型_一")
    ('llama-2-70b', '模型-一')
    """
    last = name.rstrip("/").rsplit("/", 1)[-1].lower().removesuffix("-hf")
    return re.sub(r"[^\w.]+|_+", "-", last).strip("-.") or "llm"
