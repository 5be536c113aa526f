"""Number formats of checkpoints: methods, lists of unquantised modules by part, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hardware_db import Dtype
from planner.core import InputError, UnsupportedFeatureError
from planner.llm import LlmSpec, Part, Precision, load_llm, weight_bytes
from planner.llm.hf_quantisation import MAX_STRAY_SHARE
from tests.configs import Config, llama, preset_config


def precision_of(llm: str, **quantisation: Any) -> Precision:
    """The native precision of a preset with another quantisation."""
    config = {key: value for key, value in preset_config(llm).items() if key != "quantization_config"}
    return LlmSpec.from_config(config | {"quantization_config": quantisation}).native_precision


def parts(precision: Precision) -> dict[Part, str]:
    """Weights and activations of every part that differs."""
    return {exception.part: f"{exception.weights} {exception.activations}" for exception in precision.parts}


SIXTEEN_BIT = "bf16 bf16"


def compressed(weights: Config, activations: Config | None = None, **more: Any) -> Config:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"], **more}


def quark(weight: Config, inputs: Config | None = None, **more: Any) -> Config:
    """As AMD Quark writes it, e.g. in config.json of huggingface.co/amd/Llama-3.1-405B-Instruct-MXFP4."""
    formats = {"weight": weight, "input_tensors": inputs, "output_tensors": None, "bias": None}
    rest = {"layer_quant_config": {}, "layer_type_quant_config": {}, "export": {"kv_cache_group": []}}
    return {"quant_method": "quark", "global_quant_config": formats, "exclude": ["lm_head"], **rest, **more}


FP4_E8M0 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
PER_CHANNEL = {"dtype": "fp8_e4m3", "qscheme": "per_channel", "group_size": None}
FLOAT8 = {"num_bits": 8, "type": "float"}
INTEGER8 = {"num_bits": 8, "type": "int"}


@pytest.mark.parametrize(
    ("quantisation", "formats"),
    [
        (None, "bf16 bf16 bf16"),
        (
            {"quant_method": "fp8", "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]},
            "fp8 fp8 bf16",
        ),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block fp8 bf16"),
        (compressed(INTEGER8), "int8 bf16 bf16"),
        (compressed(FLOAT8 | {"strategy": "block", "block_structure": [128, 128]}, FLOAT8), "fp8_block fp8 bf16"),
        ({"quant_method": "fbgemm_fp8"}, "fp8_token fp8_token bf16"),
        ({"quant_method": "gptq", "bits": 8}, "int8 bf16 bf16"),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "data_type": "int"}, "int4 bf16 bf16"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "int4_g32 bf16 bf16"),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}, "nvfp4 bf16 bf16"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_MXFP4_MXFP8"}, "mxfp4 mxfp8 bf16"),
        (compressed({"num_bits": 4, "type": "float", "group_size": 16}), "nvfp4 bf16 bf16"),
        (compressed({"num_bits": 4, "type": "float", "group_size": 32}), "mxfp4 bf16 bf16"),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
            "fp8 fp8 fp8",
        ),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4 bf16 bf16"),
        (
            {"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}},
            "nvfp4 nvfp4 fp8",
        ),
        (compressed(FLOAT8, FLOAT8, kv_cache_scheme=FLOAT8), "fp8 fp8 fp8"),
        (compressed(INTEGER8, INTEGER8), "int8 int8 bf16"),
        (compressed({"num_bits": 4, "type": "int", "group_size": 32}), "int4_g32 bf16 bf16"),
        # FP8-dynamic of huggingface.co/RedHatAI: scales per channel and per token
        (compressed(FLOAT8 | {"strategy": "channel"}, FLOAT8 | {"strategy": "token"}), "fp8_token fp8_token bf16"),
        (compressed(FLOAT8 | {"strategy": "group", "group_size": 32}), "mxfp8 bf16 bf16"),
        (compressed({"num_bits": 4, "type": "int", "group_size": 128}, INTEGER8), "int4 int8 bf16"),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, "fp8_token fp8_token bf16"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ", "group_size": 128}, "int4 fp8 bf16"),
        # config.json of huggingface.co/Qwen/Qwen3-32B-FP8-Static-PerTensor, which names no method
        ({"quant_algo": "FP8", "kv_cache_scheme": "FP8", "producer": {"name": "modelopt"}}, "fp8 fp8 fp8"),
        (quark(FP4_E8M0, FP4_E8M0), "mxfp4 mxfp4 bf16"),
        (quark(FP4_E8M0, {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}), "mxfp4 fp8 bf16"),
        (quark(PER_CHANNEL, PER_CHANNEL, kv_cache_quant_config={"*k_proj": {}}), "fp8_token fp8_token fp8"),
        (quark({"dtype": "int4", "qscheme": "per_group", "group_size": 128}), "int4 bf16 bf16"),
    ],
)
def test_native_precision_is_that_of_the_checkpoint(quantisation: Config | None, formats: str) -> None:
    precision = LlmSpec.from_config(llama(quantization_config=quantisation)).native_precision
    assert f"{precision.weights} {precision.activations} {precision.kv_cache}" == formats


@pytest.mark.parametrize(
    ("key", "name", "expected"),
    [
        ("torch_dtype", "float16", Dtype.FP16),
        ("dtype", "bfloat16", Dtype.BF16),
        ("torch_dtype", "torch.float16", Dtype.FP16),
        ("torch_dtype", "float32", Dtype.BF16),
    ],
)
def test_sixteen_bit_format_of_the_checkpoint(key: str, name: str, expected: Dtype) -> None:
    precision = LlmSpec.from_config(llama(**{key: name})).native_precision
    assert precision == Precision(weights=expected, activations=expected, kv_cache=expected)


@pytest.mark.parametrize(
    ("quantisation", "complaint"),
    [
        ({"quant_method": "mxfp4"}, r"quantization_config = 'mxfp4': applies to no module of this model"),
        (quark(FP4_E8M0, layer_type_quant_config={"Linear": {}}), "formats by type of layer are not modelled"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, r"= \[64, 64\]: fp8 is modelled with 128 x 128"),
        ({"quant_method": "fp8", "ignored_layers": ["surprise"]}, "= 'surprise': is left unquantised but is no module"),
        ({"quant_method": "auto-round", "bits": 4, "data_type": "mx_fp"}, "only int is modelled"),
        ({"quant_method": "auto-round", "bits": 4, "extra_config": {"lm_head": {"bits": 8}}}, "bits of their own"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*": {"bits": 8}}}, "formats per module are not modelled"),
        (
            {"quant_method": "fp8", "ignored_layers": ["model.layers.0.mlp.experts.3"]},
            "single experts are not modelled",
        ),
        ({"quant_method": "fp8", "ignored_layers": ["re:(.*a)*b"]}, "only plain regular expressions with up to 4"),
        (
            {"quant_method": "fp8", "ignored_layers": ["model.layers.0.self_attn"]},
            "33% of the weights of part attention",
        ),
        (
            {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.mlp.gate_proj"]},
            "11% of the weights of part feed_forward differ from its rest",
        ),
        ({"quant_method": "awq", "bits": 8}, r"bits = 8: 8-bit weights of this method are not modelled"),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "INT3"},
            "kv_cache_quant_algo = 'INT3'",
        ),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 64},
            r"group_size = 64: int4 is modelled with 128 or 32 values",
        ),
        (compressed({"num_bits": 2, "type": "int"}), "num_bits = 2: 2-bit 'int' quantisation is not modelled"),
        (
            compressed(FLOAT8, config_groups={"a": {"weights": FLOAT8}, "b": {"weights": INTEGER8}}),
            "needs one number format for all layers or targets for each, has 2",
        ),
    ],
)
def test_other_quantisations_are_refused(quantisation: Config, complaint: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=complaint) as caught:
        LlmSpec.from_config(llama(quantization_config=quantisation))
    assert "Fix: remove quantization_config and choose the precision yourself" in str(caught.value)


def test_a_list_that_is_no_regular_expression_is_malformed() -> None:
    with pytest.raises(InputError, match=r"ignored_layers = '\[': is no regular expression\. Fix: correct") as caught:
        LlmSpec.from_config(llama(quantization_config={"quant_method": "fp8", "ignored_layers": ["re:["]}))
    assert not isinstance(caught.value, UnsupportedFeatureError)


# ------------------------------------------------------------------------------------------ published checkpoints


def test_attention_in_16_bit_of_deepseek_v3_nvfp4() -> None:
    # hf_quant_config.json of huggingface.co/nvidia/DeepSeek-V3-0324-FP4: attention of every layer, routers, norms,
    # head, embeddings and the multi-token-prediction layer 61 are left out.
    excluded = [f"model.layers.{layer}.self_attn*" for layer in range(61)]
    excluded += [f"model.layers.{layer}.mlp.gate" for layer in range(3, 61)]
    excluded += [f"model.layers.{layer}.input_layernorm" for layer in range(61)]
    excluded += ["lm_head", "model.embed_tokens", "model.norm", "model.layers.61*"]
    inner = {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16, "exclude_modules": excluded}
    precision = precision_of("deepseek-v3", quant_method="modelopt", quantization=inner)
    assert (precision.weights, precision.activations, precision.kv_cache) == (Dtype.NVFP4, Dtype.NVFP4, Dtype.BF16)
    assert parts(precision) == {Part.ATTENTION: SIXTEEN_BIT}


def test_attention_output_of_deepseek_v3_1_nvfp4_is_narrower_than_the_rest_of_attention() -> None:
    # hf_quant_config.json of huggingface.co/nvidia/DeepSeek-V3.1-NVFP4: o_proj is not left out.
    left_out = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
    excluded = [f"model.layers.{layer}.self_attn.{name}" for layer in range(61) for name in left_out]
    inner = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16}
    inner["exclude_modules"] = [*excluded, "lm_head", "model.layers.61*"]
    precision = precision_of("deepseek-v3", quant_method="modelopt", quantization=inner)
    assert parts(precision) == {Part.ATTENTION: SIXTEEN_BIT, Part.ATTENTION_OUTPUT: "nvfp4 nvfp4"}


def test_an_algorithm_for_each_layer() -> None:
    # quantized_layers of hf_quant_config.json of huggingface.co/nvidia/Qwen3.6-27B-NVFP4, with the names of Qwen3-32B
    layers: Config = {"lm_head": {"quant_algo": "W4A16_NVFP4", "group_size": 16}}
    for layer in range(64):
        layers |= {f"model.layers.{layer}.mlp.{name}_proj": layers["lm_head"] for name in ("gate", "up", "down")}
        layers |= {f"model.layers.{layer}.self_attn.{name}_proj": {"quant_algo": "FP8"} for name in "qkvo"}
    mixed = {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8", "quantized_layers": layers}
    precision = precision_of("qwen3-32b", quant_method="modelopt", quantization=mixed)
    assert (precision.weights, precision.activations, precision.kv_cache) == (Dtype.NVFP4, Dtype.BF16, Dtype.FP8)
    assert parts(precision) == {Part.ATTENTION: "fp8 fp8", Part.LM_HEAD: "nvfp4 bf16"}


def test_experts_only_of_kimi_k2() -> None:
    # Lists of huggingface.co/moonshotai/Kimi-K2-Thinking, config.json; there with groups of 32.
    ignore = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]
    weights = {"num_bits": 4, "type": "int", "group_size": 128}
    precision = precision_of("kimi-k2-instruct", **compressed(weights, ignore=ignore))
    assert precision.weights is Dtype.INT4
    assert parts(precision) == {
        Part.ATTENTION: SIXTEEN_BIT,
        Part.FEED_FORWARD: SIXTEEN_BIT,
        Part.SHARED_EXPERTS: SIXTEEN_BIT,
    }
    small = precision_of("kimi-k2-instruct", **compressed(weights | {"group_size": 32}, ignore=ignore))
    assert (small.weights, small.parts) == (Dtype.INT4_G32, precision.parts)
    llm = load_llm("kimi-k2-instruct")  # "594 GB": model card of huggingface.co/moonshotai/Kimi-K2-Thinking
    assert weight_bytes(llm, small) == pytest.approx(594e9, rel=0.005)


def test_lists_of_gpt_oss() -> None:
    # config.json of huggingface.co/openai/gpt-oss-120b
    names = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    precision = precision_of("gpt-oss-120b", quant_method="mxfp4", modules_to_not_convert=names)
    assert precision == load_llm("gpt-oss-120b").native_precision
    assert parts(precision) == {Part.EXPERTS: "mxfp4 bf16"}


def test_lists_of_llama_4_fp8() -> None:
    # config.json of huggingface.co/RedHatAI/Llama-4-Maverick-17B-128E-Instruct-FP8
    ignore = ["re:.*lm_head", "re:.*self_attn", "re:.*router", "re:.*vision_model.*", "re:.*multi_modal_projector.*"]
    llm = "llama-4-maverick-17b-128e-instruct"
    precision = precision_of(llm, **compressed(FLOAT8, FLOAT8, ignore=[*ignore, "Llama4TextAttention"]))
    assert parts(precision) == {Part.ATTENTION: SIXTEEN_BIT}


def test_first_and_last_layers_in_16_bit_of_llama_405b() -> None:
    # config.json of huggingface.co/meta-llama/Llama-3.1-405B-FP8: attention everywhere, all of layers 0 and 125.
    names = [f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(126) for name in "qkvo"]
    names += [f"model.layers.{layer}.mlp.{name}_proj" for layer in (0, 125) for name in ("gate", "up", "down")]
    precision = precision_of("llama-3.1-405b", quant_method="fbgemm_fp8", modules_to_not_convert=[*names, "lm_head"])
    assert parts(precision) == {Part.ATTENTION: SIXTEEN_BIT}  # 2 of 126 dense layers are below the bound
    assert MAX_STRAY_SHARE > 2 / 126


def test_linear_attention_and_small_projections() -> None:
    # Names of huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct-FP8, config.json.
    names = [f"model.layers.{layer}.linear_attn.in_proj_ba" for layer in range(48) if (layer + 1) % 4]
    names += [f"model.layers.{layer}.linear_attn.conv1d" for layer in range(48) if (layer + 1) % 4]
    names += [f"model.layers.{layer}.mlp.{gate}" for layer in range(48) for gate in ("gate", "shared_expert_gate")]
    names += ["lm_head", "mtp.fc", "model.embed_tokens"]
    quantisation = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": names}
    assert precision_of("qwen3-next-80b-a3b-thinking", **quantisation).parts == ()
    whole = ["re:.*linear_attn.*", "re:.*self_attn.*", "re:.*shared_expert\\..*"]
    precision = precision_of("qwen3-next-80b-a3b-thinking", quant_method="fp8", ignored_layers=whole)
    assert parts(precision) == {Part.ATTENTION: SIXTEEN_BIT, Part.SHARED_EXPERTS: SIXTEEN_BIT}


def test_groups_with_targets_of_their_own() -> None:
    groups = {
        "experts": {"targets": ["re:.*experts\\..*"], "weights": {"num_bits": 4, "type": "int", "group_size": 128}},
        "rest": {"targets": ["re:.*self_attn.*"], "weights": FLOAT8, "input_activations": FLOAT8},
    }
    precision = precision_of("qwen3-30b-a3b", quant_method="compressed-tensors", config_groups=groups)
    assert (precision.weights, precision.activations) == (Dtype.INT4, Dtype.BF16)
    assert parts(precision) == {Part.ATTENTION: "fp8 fp8"}
    groups["rest"]["targets"] = ["re:.*surprise.*"]
    with pytest.raises(UnsupportedFeatureError, match="'fp8': applies to no module of this model"):
        precision_of("qwen3-30b-a3b", quant_method="compressed-tensors", config_groups=groups)


# ------------------------------------------------------------------------------------------ the file beside


def test_hf_quant_config_beside_a_config_is_read(tmp_path: Path) -> None:
    # hf_quant_config.json of huggingface.co/nvidia/Qwen3-30B-A3B-FP4
    quantisation: Config = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16}
    quantisation["exclude_modules"] = [f"model.layers.{layer}.mlp.gate" for layer in range(48)] + ["lm_head"]
    beside = {"producer": {"name": "modelopt", "version": "0.33.0"}, "quantization": quantisation}
    (tmp_path / "config.json").write_text(json.dumps(preset_config("qwen3-30b-a3b")), encoding="utf-8")
    assert load_llm(tmp_path).native_precision == Precision()
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside), encoding="utf-8")
    expected = Precision(weights=Dtype.NVFP4, activations=Dtype.NVFP4, kv_cache=Dtype.FP8)
    assert load_llm(tmp_path).native_precision == expected
    assert load_llm(tmp_path / "config.json").native_precision == expected
    (tmp_path / "hf_quant_config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(InputError, match="is a JSON list, not an object"):
        load_llm(tmp_path)
