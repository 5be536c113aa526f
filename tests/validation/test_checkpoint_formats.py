"""Formats of measured runs. Truth: the lists of published checkpoints, what the servers' flags say."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from hardware_db import Dtype
from planner.core import preset
from planner.llm import Part, list_llms, load_llm
from planner.validation.checkpoint_formats import precision_of
from tests.validation.points import DB, POINT, point_with

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
