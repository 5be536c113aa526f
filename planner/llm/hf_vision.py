"""Read the vision encoder of a multimodal wrapper: ``vision_config`` of a Hugging Face ``config.json``.

One reader for each ``model_type`` of a wrapper. What the configuration leaves to the code is that of the class named at
each reader; limits on image sizes are not in it but in the ``preprocessor_config.json`` of the checkpoints, of which
every reader has those published.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.llm.hf_config import ConfigFields
from planner.llm.vision import (
    AnyImageRule,
    EncoderMatrix,
    FitPatches,
    FitPixels,
    FixedSquare,
    LongestEdge,
    NativePatches,
    Tiles,
    VisionEncoder,
)

CHANNELS = 3
"""Colours of a pixel."""


def vision_encoder(fields: ConfigFields) -> VisionEncoder | None:
    """The vision encoder of a wrapper; None for a model without one, or of a family whose encoder is not modelled.

    Raises:
        InputError: a missing or malformed field of its ``vision_config``.
    """
    vision, reader = fields.section("vision_config"), _READERS.get(fields.text("model_type") or "")
    return None if vision is None or not vision.values or reader is None else reader(vision, fields)


def _qwen(vision: ConfigFields, _: ConfigFields) -> VisionEncoder:
    """Qwen3VLVisionModel of ``modeling_qwen3_vl.py``; Qwen3.5 has the same without deepstack.

    Limits: ``preprocessor_config.json`` of Qwen/Qwen3-VL-8B-Instruct and Qwen/Qwen3.5-27B (size.shortest_edge 65536,
    longest_edge 16777216, both pixels). Marks: ``<|vision_start|>``, ``<|vision_end|>``.
    """
    hidden, intermediate = vision.size("hidden_size"), vision.size("intermediate_size")
    layers, out, merge = vision.size("depth"), vision.size("out_hidden_size"), vision.size("spatial_merge_size")
    merged, deep = hidden * merge**2, len(vision.integers("deepstack_visual_indexes"))
    frames = vision.size("temporal_patch_size")
    norm = 2 * hidden
    small = _biased(layers, hidden, intermediate) + hidden
    small += vision.size("num_position_embeddings") * hidden
    small += (1 + deep) * (merged + out) + norm + deep * 2 * merged
    return _encoder(
        vision,
        layers="depth",
        heads="num_heads",
        frames=frames,
        around=(
            EncoderMatrix(inputs=merged, outputs=merged, patches=merge**2, count=1 + deep),
            EncoderMatrix(inputs=merged, outputs=out, patches=merge**2, count=1 + deep),
        ),
        small=small,
        images=FitPixels(merge=merge, min_pixels=65_536, max_pixels=16_777_216, marks=2),
    )


def _gemma3(vision: ConfigFields, wrapper: ConfigFields) -> VisionEncoder:
    """SiglipVisionModel and Gemma3MultiModalProjector of ``modeling_gemma3.py``.

    Marks: two line breaks (one token) and the begin of an image before it, its end and two line breaks after it
    (``full_image_sequence`` of ``processing_gemma3.py``).
    """
    hidden, intermediate = vision.size("hidden_size"), vision.size("intermediate_size")
    layers, side, patch = vision.size("num_hidden_layers"), vision.size("image_size"), vision.size("patch_size")
    tokens, text = wrapper.size("mm_tokens_per_image", default=256), _text_hidden(wrapper)
    norm, patches = 2 * hidden, (side // patch) ** 2
    small = _biased(layers, hidden, intermediate) + hidden + patches * hidden + norm + hidden
    return _encoder(
        vision,
        around=(EncoderMatrix(inputs=hidden, outputs=text, patches=max(1, patches // tokens)),),
        small=small,
        images=FixedSquare(side_pixels=side, tokens=tokens, marks=4),
    )


def _gemma4(vision: ConfigFields, wrapper: ConfigFields) -> VisionEncoder:
    """Gemma4VisionModel and Gemma4MultimodalEmbedder of ``modeling_gemma4.py``: gated, four norms a layer, no biases.

    Queries and keys have norms over a head; ``standardize`` adds a bias and a scale of the outputs. Marks: the begin
    and the end of an image.
    """
    hidden, layers = vision.size("hidden_size"), vision.size("num_hidden_layers")
    heads = vision.size("num_attention_heads")
    head, pool = vision.size("head_dim", default=hidden // heads), vision.size("pooling_kernel_size", default=3)
    tokens = wrapper.size("vision_soft_tokens_per_image", default=vision.size("default_output_length", default=280))
    small = layers * (4 * hidden + 2 * head) + 2 * vision.size("position_embedding_size") * hidden
    small += 2 * hidden if vision.flag("standardize", default=False) else 0
    return _encoder(
        vision,
        head_dim=head,
        gated=True,
        around=(EncoderMatrix(inputs=hidden, outputs=_text_hidden(wrapper), patches=pool**2),),
        small=small,
        images=FitPatches(pool=pool, max_tokens=tokens, marks=2),
    )


def _merger(merged: int, text: int, merge: int) -> tuple[EncoderMatrix, EncoderMatrix]:
    """The two matrices that turn each square of merge x merge patches into a token of the language model."""
    return (
        EncoderMatrix(inputs=merged, outputs=merged, patches=merge**2),
        EncoderMatrix(inputs=merged, outputs=text, patches=merge**2),
    )


def _kimi_k25(vision: ConfigFields, _: ConfigFields) -> VisionEncoder:
    """MoonViT3dPretrainedModel and PatchMergerMLP of ``modeling_kimi_k25.py`` in moonshotai/Kimi-K2.5, biases in all.

    Limits: ``media_proc_cfg`` of its ``preprocessor_config.json`` (in_patch_limit 16384, patch_limit_on_one_side 512).
    Marks: begin, kind, content and end of the media (``chat_template.jinja``).
    """
    hidden, intermediate = vision.size("vt_hidden_size"), vision.size("vt_intermediate_size")
    layers, text, merge = vision.size("vt_num_hidden_layers"), vision.size("text_hidden_size"), _merge(vision)
    width = vision.size("mm_hidden_size", default=hidden)
    merged, norm = width * merge**2, 2 * hidden
    small = _biased(layers, hidden, intermediate) + norm + hidden + _moonvit_positions(vision)
    small += 2 * width + merged + text
    return _encoder(
        vision,
        around=_merger(merged, text, merge),
        small=small,
        images=NativePatches(merge=merge, max_patches=16_384, max_side_patches=512, marks=4),
        prefix="vt_",
    )


def _kimi_k3(vision: ConfigFields, _: ConfigFields) -> VisionEncoder:
    """The same with wider attention (``qkv_hidden_size``), RMS norms and hardly a bias: ``modeling_kimi_k3.py``.

    Limits: in_patch_limit 65536, patch_limit_on_one_side 512 of the ``preprocessor_config.json`` of moonshotai/Kimi-K3.
    """
    hidden, intermediate = vision.size("vt_hidden_size"), vision.size("vt_intermediate_size")
    layers, text, merge = vision.size("vt_num_hidden_layers"), vision.size("text_hidden_size"), _merge(vision)
    heads = vision.size("vt_num_attention_heads")
    wide = vision.size("qkv_hidden_size", default=hidden)
    merged = vision.size("mm_hidden_size", default=hidden) * merge**2
    norm = hidden if (vision.text("norm_type") or "rmsnorm") == "rmsnorm" else 2 * hidden
    small = (2 * layers + 1) * norm + _moonvit_positions(vision) + text
    small += layers * (3 * wide + hidden) if vision.flag("attn_bias", default=False) else 0
    small += layers * (intermediate + hidden) if vision.flag("linear_bias", default=False) else 0
    small += hidden if vision.flag("patch_embed_proj_bias", default=False) else 0
    return _encoder(
        vision,
        head_dim=wide // heads,
        around=_merger(merged, text, merge),
        small=small,
        images=NativePatches(merge=merge, max_patches=65_536, max_side_patches=512, marks=4),
        prefix="vt_",
    )


def _minimax_m3(vision: ConfigFields, wrapper: ConfigFields) -> VisionEncoder:
    """MiniMaxM3VLVisionModel and MiniMaxM3VLMultiModalProjector of ``modeling_minimax_m3_vl.py``.

    Limits: ``image_processing_minimax_m3_vl.py`` (672 x 672 pixels at most). Marks: start and end of an image.
    """
    hidden, intermediate = vision.size("hidden_size"), vision.size("intermediate_size")
    layers, text = vision.size("num_hidden_layers"), _text_hidden(wrapper)
    compression = vision.section("img_token_compression_config") or vision
    merge = compression.size("spatial_merge_size", default=2)
    frames, middle = compression.size("temporal_patch_size", default=2), wrapper.size("projector_hidden_size")
    norm = 2 * hidden
    small = _biased(layers, hidden, intermediate) + norm + 2 * (middle + text)
    return _encoder(
        vision,
        frames=frames,
        around=(
            EncoderMatrix(inputs=hidden, outputs=middle),
            EncoderMatrix(inputs=middle, outputs=text),
            EncoderMatrix(inputs=text * merge**2, outputs=middle, patches=merge**2),
            EncoderMatrix(inputs=middle, outputs=text, patches=merge**2),
        ),
        small=small,
        images=FitPixels(merge=merge, min_pixels=4 * 28 * 28, max_pixels=672 * 672, marks=2),
    )


def _llama4(vision: ConfigFields, wrapper: ConfigFields) -> VisionEncoder:
    """Llama4VisionModel and Llama4MultiModalProjector of ``modeling_llama4.py``.

    Limits: ``preprocessor_config.json`` of meta-llama/Llama-4-Scout-17B-16E-Instruct (max_patches 16). Marks: start,
    ``<|image|>`` and end of an image.
    """
    hidden, intermediate = vision.size("hidden_size"), vision.size("intermediate_size")
    layers, side, patch = vision.size("num_hidden_layers"), vision.size("image_size"), vision.size("patch_size")
    into, out = vision.size("projector_input_dim"), vision.size("projector_output_dim")
    shuffle = round(1.0 / vision.number("pixel_shuffle_ratio", least=0.05)) ** 2
    norm, patches = 2 * hidden, (side // patch) ** 2
    small = _biased(layers, hidden, intermediate) + 2 * norm + hidden + (patches + 1) * hidden
    return _encoder(
        vision,
        around=(
            EncoderMatrix(inputs=hidden * shuffle, outputs=into, patches=shuffle),
            EncoderMatrix(inputs=into, outputs=out, patches=shuffle),
            EncoderMatrix(inputs=vision.size("vision_output_dim"), outputs=_text_hidden(wrapper), patches=shuffle),
        ),
        small=small,
        images=Tiles(side_pixels=side, max_tiles=16, tokens_per_tile=patches // shuffle, marks=3),
    )


def _mistral3(vision: ConfigFields, wrapper: ConfigFields) -> VisionEncoder:
    """PixtralVisionModel and Mistral3MultiModalProjector: gated, RMS norms, no biases (``modeling_mistral3.py``)."""
    hidden, layers = vision.size("hidden_size"), vision.size("num_hidden_layers")
    heads, text = vision.size("num_attention_heads"), _text_hidden(wrapper)
    merge = wrapper.size("spatial_merge_size", default=2)
    biased = wrapper.flag("multimodal_projector_bias", default=False)
    small = (2 * layers + 1) * hidden + hidden + (2 * text if biased else 0)
    return _encoder(
        vision,
        head_dim=vision.size("head_dim", default=hidden // heads),
        gated=True,
        around=(
            EncoderMatrix(inputs=hidden * merge**2, outputs=hidden, patches=merge**2),
            EncoderMatrix(inputs=hidden, outputs=text, patches=merge**2),
            EncoderMatrix(inputs=text, outputs=text, patches=merge**2),
        ),
        small=small,
        images=LongestEdge(merge=merge, max_side_pixels=vision.size("image_size")),
    )


_READERS: dict[str, Callable[[ConfigFields, ConfigFields], VisionEncoder]] = {
    "qwen3_vl": _qwen,
    "qwen3_vl_moe": _qwen,
    "qwen3_5": _qwen,
    "qwen3_5_moe": _qwen,
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "kimi_k25": _kimi_k25,
    "kimi_k3": _kimi_k3,
    "minimax_m3_vl": _minimax_m3,
    "llama4": _llama4,
    "mistral3": _mistral3,
}


def _encoder(
    vision: ConfigFields,
    *,
    around: tuple[EncoderMatrix, ...],
    small: int,
    images: AnyImageRule,
    head_dim: int | None = None,
    gated: bool = False,
    frames: int = 1,
    prefix: str = "",
    layers: str = "num_hidden_layers",
    heads: str = "num_attention_heads",
) -> VisionEncoder:
    """With the patch embedding before the matrices `around` the layers; the keys of `layers` and `heads` are told."""
    hidden, patch, number = vision.size(f"{prefix}hidden_size"), vision.size("patch_size"), vision.size(prefix + heads)
    embedding = EncoderMatrix(inputs=CHANNELS * frames * patch**2, outputs=hidden)
    return VisionEncoder(
        layers=vision.size(prefix + layers),
        hidden_size=hidden,
        intermediate=vision.size(f"{prefix}intermediate_size"),
        gated=gated,
        heads=number,
        head_dim=head_dim or hidden // number,
        patch_size=patch,
        temporal_patch=frames,
        matrices=(embedding, *around),
        small_parameters=small,
        images=images,
    )


def _biased(layers: int, hidden: int, intermediate: int) -> int:
    """Small parameters of usual layers: two norms with biases, and a bias of every matrix."""
    return layers * (2 * 2 * hidden + 4 * hidden + intermediate + hidden)


def _merge(vision: ConfigFields) -> int:
    """Side of the square of patches that become one token."""
    kernel = vision.integers("merge_kernel_size")
    return kernel[0] if kernel else 2


def _moonvit_positions(vision: ConfigFields) -> int:
    """Values of the table of learned positions; those of time are computed."""
    width = vision.size("vt_hidden_size")
    return vision.size("init_pos_emb_height") * vision.size("init_pos_emb_width") * width


def _text_hidden(wrapper: ConfigFields) -> int:
    """Width of the language model."""
    return (wrapper.section("text_config") or wrapper).size("hidden_size")
