"""Names and formats of checkpoints. Truth: their pages, published config.json and lists, and the servers' flags."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from calibration.serving.checkpoints import model_of, precision_of
from hardware_db import Dtype
from planner.core import UnknownNameError, UnsupportedFeatureError, preset
from planner.llm import LlmSpec, Part, architecture_name, list_llms, load_llm, preset_of
from tests.calibration.serving.points import DB, POINT, point_with
from tests.places import REFERENCE

with (REFERENCE / "checkpoint_names.csv").open(encoding="utf-8", newline="") as file:
    NAMES = {row["preset"]: row["names"] for row in csv.DictReader(file)}
"""Names of published checkpoints with the layers of each preset."""


def test_every_name_of_the_measured_runs_resolves(shared: Path) -> None:
    names = {
        row[column]
        for path in (shared / "validation").glob("*.csv")
        for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())
        for column in ("checkpoint", "model", "model_prefix")
        if row.get(column)
    }
    assert len(names) > 40
    assert {name: model_of(name).id for name in names}.keys() == names


@pytest.mark.parametrize("expected", NAMES)
def test_owner_precision_tuning_and_date_do_not_change_the_layers(expected: str) -> None:
    names = NAMES[expected].split()
    assert {name: model_of(name).id for name in names} == dict.fromkeys(names, expected)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4", "nvidia-nemotron-3-super-120b-a12b-fp8"),
        ("Qwen/Qwen3-VL-32B-Instruct", "qwen3"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.1"),  # another vocabulary, no window
    ],
)
def test_other_layers_are_refused_with_the_nearest_presets(name: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=f"unknown name. Fix: use one close to it of: .*{near}"):
        model_of(name)


def test_every_preset_is_found_by_its_own_name() -> None:
    assert {model_of(id).id for id in list_llms()} == set(list_llms())
    for id in list_llms():  # presets of one architecture, such as an FP8 and an NVFP4 checkpoint, have its layers
        assert load_llm(id).layers == model_of(architecture_name(id)).layers


def test_every_row_of_the_table_names_a_preset_and_its_page() -> None:
    rows = list(csv.DictReader(preset("checkpoint_names.csv").read_text(encoding="utf-8").splitlines()))
    assert {row["preset"] for row in rows} <= set(list_llms())
    assert all(row["source_url"].startswith("https://huggingface.co/") for row in rows)
    assert {row["name"]: preset_of(row["name"]) for row in rows} == {row["name"]: row["preset"] for row in rows}
    assert not {row["name"] for row in rows} & {architecture_name(id) for id in list_llms()}


def test_checkpoints_of_the_reference_collection_have_the_layers_of_their_preset(shared: Path) -> None:
    """Their config.json without its quantisation, against the preset that their name leads to.

    But for Step-3.7: the collection's file leaves out the heads of its windowed layers.
    """
    folder, found = shared / "reference" / "models_2026", 0
    for path in sorted(folder.glob("*.json")):
        if path.stem == "stepfun-ai--Step-3.7-Flash":
            continue
        try:
            named = model_of(path.stem.replace("--", "/"))
        except UnknownNameError:
            continue
        config = json.loads(path.read_text(encoding="utf-8"))
        for section in (config, config.get("text_config", {})):
            section.pop("quantization_config", None)
        try:
            spec = LlmSpec.from_config(config)
        except UnsupportedFeatureError:
            continue
        assert (spec.hidden_size, spec.layers, spec.tied_embeddings) == (
            named.hidden_size,
            named.layers,
            named.tied_embeddings,
        )
        assert spec.vocab_size == named.vocab_size
        found += 1
    if not found:
        pytest.skip("no checkpoints of 2026 beside the checkout (reference/models_2026)")
    assert found >= 35
    assert load_llm("kimi-k2.5").max_context_tokens == 262_144


NVFP4 = (Dtype.NVFP4, Dtype.NVFP4)


def test_labels_of_precision() -> None:
    h100 = DB.skus["h100-sxm"]
    llama, deepseek, gpt = (load_llm(name) for name in ("llama-3.1-8b", "deepseek-r1", "gpt-oss-120b"))
    assert precision_of(POINT, llama, h100).weights is Dtype.BF16
    fp8 = precision_of(point_with(precision="fp8", kv_cache=Dtype.FP8), llama, h100)
    assert (fp8.weights, fp8.activations, fp8.kv_cache) == (Dtype.FP8, Dtype.FP8, Dtype.FP8)
    stored = precision_of(point_with(precision="fp8"), deepseek, h100)
    assert stored.weights is Dtype.FP8_BLOCK
    experts = {
        sku: precision_of(point_with(precision="fp4", quantisation="nvfp4 nvfp4"), gpt, DB.skus[sku]).of(Part.EXPERTS)
        for sku in ("h200-sxm", "b200-sxm", "mi355x")
    }
    assert experts["h200-sxm"] == (Dtype.MXFP4, Dtype.BF16)  # no units for blocks: multiplied in 16 bit
    assert experts["b200-sxm"] == experts["mi355x"] == (Dtype.MXFP4, Dtype.MXFP8)  # by checkpoint, whatever the label


def test_nvfp4_is_played_part_by_part() -> None:
    llm, b200 = load_llm("deepseek-r1"), DB.skus["b200-sxm"]
    second = precision_of(point_with(precision="fp4", checkpoint="nvidia/DeepSeek-R1-0528-FP4-V2"), llm, b200)
    assert {second.of(part) for part in (Part.EXPERTS, Part.SHARED_EXPERTS, Part.FEED_FORWARD)} == {NVFP4}
    assert second.of(Part.ATTENTION) == (Dtype.BF16, Dtype.BF16)
    assert second.of(Part.ATTENTION_OUTPUT) == NVFP4
    first = precision_of(point_with(precision="fp4", checkpoint="nvidia/DeepSeek-R1-0528-FP4"), llm, b200)
    assert first.of(Part.ATTENTION_OUTPUT) == (Dtype.BF16, Dtype.BF16)
    marlin = precision_of(point_with(precision="fp4", moe_backend="Marlin"), llm, b200)
    assert marlin.of(Part.EXPERTS) == (Dtype.NVFP4, Dtype.BF16)
    amd = precision_of(point_with(precision="fp4"), llm, DB.skus["mi355x"])
    assert amd.of(Part.EXPERTS) == (Dtype.MXFP4, Dtype.MXFP4)


def test_lists_of_nvfp4_checkpoints_are_those_they_publish(shared: Path) -> None:
    folder, seen = shared / "reference" / "models_2026", 0
    with preset("checkpoints.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["weights"] != "nvfp4" or row["activations"] != "nvfp4" or row["llm"] not in list_llms():
                continue
            stem = row["checkpoint"].replace("/", "--")
            if not (folder / f"{stem}.json").is_file():
                continue
            config = json.loads((folder / f"{stem}.json").read_text())
            beside = folder / f"{stem}.hf_quant_config.json"
            if beside.is_file() and "quantization_config" not in config:  # engines ask config.json first
                config["quantization_config"] = {"quant_method": "modelopt", **json.loads(beside.read_text())}
            published = load_llm(config).native_precision
            point = point_with(precision="fp4", checkpoint=row["checkpoint"], kv_cache=published.kv_cache)
            played = precision_of(point, load_llm(row["llm"]), DB.skus["b200-sxm"])
            assert all(played.of(part) == published.of(part) for part in Part), row["checkpoint"]
            seen += 1
    assert seen >= 7
