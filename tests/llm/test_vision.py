"""Vision encoders: parameters against published checkpoints, image tokens against processors, work by hand."""

from __future__ import annotations

import csv
from typing import Any

import pytest

from planner.core import InputError
from planner.llm import (
    LlmSpec,
    Precision,
    VisionEncoder,
    encoder_parameters,
    encoder_weight_bytes,
    load_llm,
    parameters,
    weight_bytes,
)
from planner.llm.hf_config import ConfigFields
from planner.llm.hf_vision import vision_encoder
from tests.places import REFERENCE

PUBLISHED = list(csv.DictReader((REFERENCE / "vision_encoders.csv").read_text().splitlines()))

SIGLIP = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
PIXTRAL = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
LLAMA = {"hidden_size": 1408, "intermediate_size": 5632, "num_hidden_layers": 34, "num_attention_heads": 16}
MOONVIT = {
    "vt_hidden_size": 1152,
    "vt_intermediate_size": 4304,
    "vt_num_hidden_layers": 27,
    "vt_num_attention_heads": 16,
    "text_hidden_size": 7168,
    "init_pos_emb_height": 64,
    "init_pos_emb_width": 64,
    "merge_kernel_size": [2, 2],
    "patch_size": 14,
}
WRAPPERS: dict[str, dict[str, Any]] = {
    "gemma3": {"vision_config": {**SIGLIP, "image_size": 896, "patch_size": 14}, "mm_tokens_per_image": 256},
    "gemma4": {
        "vision_config": {**SIGLIP, "patch_size": 16, "position_embedding_size": 10_240, "standardize": True},
        "vision_soft_tokens_per_image": 280,
    },
    "mistral3": {"vision_config": {**PIXTRAL, "image_size": 1540, "patch_size": 14}, "spatial_merge_size": 2},
    "llama4": {
        "vision_config": {
            **LLAMA,
            "image_size": 336,
            "patch_size": 14,
            "pixel_shuffle_ratio": 0.5,
            "projector_input_dim": 4096,
            "projector_output_dim": 4096,
            "vision_output_dim": 4096,
        }
    },
    "kimi_k25": {"vision_config": MOONVIT},
    "minimax_m3_vl": {
        "projector_hidden_size": 6144,
        "vision_config": {
            "hidden_size": 1280,
            "intermediate_size": 5120,
            "num_hidden_layers": 32,
            "num_attention_heads": 16,
            "patch_size": 14,
            "img_token_compression_config": {"spatial_merge_size": 2, "temporal_patch_size": 2},
        },
    },
}
"""What published wrappers say of their encoders, around the smallest language model that is read."""
TEXT = {
    "model_type": "llama",
    "hidden_size": 5120,
    "intermediate_size": 1024,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 4,
    "head_dim": 128,
}


def wrapped(model_type: str, hidden: int = 5120, **changes: Any) -> LlmSpec:
    """A wrapper of a family around a small language model."""
    content = {**WRAPPERS[model_type], "model_type": model_type, "text_config": {**TEXT, "hidden_size": hidden}}
    return LlmSpec.from_config({**content, **changes})


def encoder_of(model_type: str, hidden: int = 5120) -> VisionEncoder:
    """The encoder alone of a published wrapper."""
    content = {**WRAPPERS[model_type], "model_type": model_type, "text_config": {"hidden_size": hidden}}
    encoder = vision_encoder(ConfigFields(content))
    assert encoder is not None
    return encoder


def tokens(model: LlmSpec | VisionEncoder, width: int, height: int) -> int:
    """Of one image in the prompt."""
    encoder = model.encoder if isinstance(model, LlmSpec) else model
    assert encoder is not None
    return encoder.encoded(width, height).tokens


@pytest.mark.parametrize("row", PUBLISHED, ids=[row["llm"] for row in PUBLISHED])
def test_a_language_model_and_its_encoder_are_all_of_the_checkpoint(row: dict[str, str]) -> None:
    language = load_llm(row["llm"])
    llm = wrapped(row["wrapper"], language.hidden_size) if row["wrapper"] else language
    assert parameters(language) + encoder_parameters(llm) == int(row["checkpoint_values"])
    if row["encoder_values"]:
        assert encoder_parameters(llm) == int(row["encoder_values"])


def test_encoders_whose_size_is_published_in_words() -> None:
    kimi, gemma = wrapped("kimi_k25", 7168), wrapped("gemma4", 2816)
    assert encoder_parameters(kimi) == pytest.approx(0.4e9, rel=0.2)  # "MoonViT (400M)", model card of Kimi-K2.5
    assert encoder_parameters(gemma) == pytest.approx(550e6, rel=0.05)  # "~550M", model card of Gemma 4 26B-A4B
    assert encoder_parameters(load_llm("kimi-k3")) == pytest.approx(0.45e9, rel=0.01)  # "~0.45B", ATOM kimi_k3_vit.py


def test_the_encoder_is_stored_in_16_bits_whatever_the_format_of_the_language_model() -> None:
    llm, language = load_llm("qwen3-vl-8b-instruct"), load_llm("qwen3-8b")
    for precision in (Precision(), Precision(weights="fp8", activations="fp8")):
        beside = weight_bytes(llm, precision) - weight_bytes(language, precision)
        assert beside == encoder_weight_bytes(llm) == 2 * encoder_parameters(llm)


def test_qwen_rounds_sides_to_merged_patches_within_its_limits() -> None:
    qwen = load_llm("qwen3-vl-8b-instruct")
    # 448 x 448 -> 196: huggingface.co/mlboydaisuke/Qwen3-VL-8B-CoreAI; start and end of the image beside them.
    assert tokens(qwen, 448, 448) == 196 + 2
    assert tokens(qwen, 1024, 768) == 32 * 24 + 2
    assert tokens(qwen, 100, 100) == 8 * 8 + 2  # up to 65536 pixels: 64 tokens of 32 x 32 pixels
    assert tokens(qwen, 9000, 9000) == 128 * 128 + 2  # down to 16777216: 16384 tokens


def test_minimax_has_a_budget_of_672_by_672() -> None:
    minimax = encoder_of("minimax_m3_vl", 6144)
    assert tokens(minimax, 672, 672) == tokens(minimax, 4000, 4000) == 24 * 24 + 2


def test_gemma_3_makes_256_tokens_of_every_image() -> None:
    gemma = wrapped("gemma3")
    assert {tokens(gemma, *size) for size in ((64, 64), (896, 896), (3000, 500))} == {256 + 4}


@pytest.mark.parametrize(("width", "height"), [(512, 512), (1920, 1080), (300, 4000), (5000, 20)])
def test_gemma_4_stays_within_its_budget_and_pads_to_it(width: int, height: int) -> None:
    gemma = wrapped("gemma4")
    assert gemma.encoder is not None
    image = gemma.encoder.encoded(width, height)
    assert image.patches == 280 * 9
    assert 1 <= image.tokens - 2 <= 280


def test_gemma_4_scales_a_square_to_sixteen_pooled_patches_a_side() -> None:
    assert tokens(wrapped("gemma4"), 512, 512) == 16 * 16 + 2  # sqrt(280) = 16.7


def test_llama_4_takes_the_canvas_of_its_processor_and_the_whole_image_beside_it() -> None:
    llama = wrapped("llama4")
    assert llama.encoder is not None
    # Best canvases of 300 x 224 and 640 x 536: 336 x 336 and 672 x 672 (MaxText, tests of processor_llama4).
    assert llama.encoder.encoded(300, 224).sequences == 1
    assert llama.encoder.encoded(640, 536).sequences == 4 + 1
    assert llama.encoder.encoded(5000, 5000).sequences == 17  # of max_patches = 16 (test_image_processing_llama4.py)
    assert tokens(llama, 300, 224) == 144 + 3
    assert tokens(llama, 640, 536) == 5 * 144 + 2 * 1 + 2 + 3  # separators inside two rows, and after each


def test_kimi_never_scales_up_and_pads_to_merged_patches() -> None:
    kimi = wrapped("kimi_k25", 7168)
    assert tokens(kimi, 28, 28) == 1 + 4
    assert tokens(kimi, 1024, 768) == 37 * 28 + 4  # ceil(1024 / 28) x ceil(768 / 28)
    assert tokens(kimi, 10_000, 10_000) == 64 * 64 + 4  # 16384 patches: 128 x 128


def test_pixtral_breaks_every_row() -> None:
    mistral = wrapped("mistral3")
    assert tokens(mistral, 1540, 1540) == tokens(mistral, 4000, 4000) == 55 * (55 + 1)
    assert tokens(mistral, 280, 140) == 5 * (10 + 1)


@pytest.mark.parametrize("model_type", sorted(WRAPPERS))
def test_larger_images_never_make_fewer_tokens(model_type: str) -> None:
    encoder = encoder_of(model_type)
    counts = [tokens(encoder, side, side) for side in (64, 128, 256, 512, 1024, 2048, 4096)]
    assert counts == sorted(counts)


def test_work_of_qwen3_vl_8b_on_one_image_by_hand() -> None:
    encoder = load_llm("qwen3-vl-8b-instruct").encoder
    assert encoder is not None
    image = encoder.encoded(448, 448)
    assert image.patches == 28 * 28
    layer = 4 * 1152**2 + 2 * 1152 * 4304
    merger = 4608**2 + 4608 * 4096  # of the outputs, and of three layers of deepstack
    by_hand = 27 * (2 * layer * 784 + 4 * 1152 * 784**2) + 2 * 784 * 1536 * 1152 + 4 * 2 * 196 * merger
    assert encoder.flops(image) == by_hand


def test_sizes_that_no_processor_takes_are_refused() -> None:
    encoder = load_llm("qwen3-vl-8b-instruct").encoder
    assert encoder is not None
    for width, height in ((0, 10), (10, 70_000), (10_000, 10)):
        with pytest.raises(InputError):
            encoder.encoded(width, height)
