"""Checkpoints there are of a model: formats and bytes against what publishers say, and which GPU runs which."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from hardware_db import Dtype, load_hardware
from planner.core import preset
from planner.llm import (
    LlmSpec,
    Part,
    Precision,
    checkpoint_bytes,
    checkpoint_named,
    checkpoints_of,
    converted_from,
    format_words,
    list_llms,
    load_llm,
    main_format,
    narrower_precisions,
    offered_on,
    published_as,
)
from planner.llm.checkpoints import runs_well

DB = load_hardware()
with preset("checkpoints.csv").open(encoding="utf-8") as file:
    ROWS = list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("llm", "published_bytes"),
    [
        ("gpt-oss-120b", 60.8 * 2**30),  # arXiv:2508.10925, table 1
        ("gpt-oss-20b", 12.8 * 2**30),  # the same
        ("kimi-k2.5", 594e9),  # K2.6, of the same layers and formats: knoxhub.io, "weight file sits at roughly 594 GB"
    ],
)
def test_own_checkpoints_have_the_published_bytes(llm: str, published_bytes: float) -> None:
    spec = load_llm(llm)
    assert checkpoint_bytes(spec, checkpoints_of(spec)[0]) == pytest.approx(published_bytes, rel=0.01)


def test_the_table_agrees_with_the_configurations_that_publishers_wrote(shared: Path) -> None:
    folder, seen = shared / "reference" / "models_2026", 0
    for row in ROWS:
        config = folder / f"{row['checkpoint'].replace('/', '--')}.json"
        if row["llm"] not in list_llms() or not config.is_file():
            continue
        content = json.loads(config.read_text())
        beside = config.with_suffix(".hf_quant_config.json")
        if beside.is_file() and not content.get("quantization_config", {}).get("weight_block_size"):
            content["quantization_config"] = {"quant_method": "modelopt", **json.loads(beside.read_text())}
        try:
            published = LlmSpec.from_config(content).native_precision
        except ValueError:  # a feature that is not modelled
            continue
        found = next(item for item in checkpoints_of(load_llm(row["llm"])) if item.repository == row["checkpoint"])
        parts = [part for part in Part if part is not Part.LM_HEAD or any(p.part is part for p in published.parts)]
        assert [found.precision.of(part) for part in parts] == [published.of(part) for part in parts], row["checkpoint"]
        assert not row["kv_cache"] or found.precision.kv_cache is published.kv_cache, row["checkpoint"]
        seen += 1
    assert seen >= 8


def test_every_row_has_a_source_and_stands_once() -> None:
    assert all(row["source_url"].startswith("https://") for row in ROWS)
    assert len({(row["llm"], row["checkpoint"]) for row in ROWS}) == len(ROWS)
    for row in ROWS:
        found = checkpoint_named(row["checkpoint"].upper())
        assert found is not None and found.precision.weights is Dtype(row["weights"])


def test_a_gpu_is_offered_what_its_units_multiply_and_nothing_that_is_unpacked() -> None:
    llm = load_llm("llama-3.3-70b-instruct")
    published = narrower_precisions(llm)
    for sku in DB.skus.values():
        for precision in offered_on(llm, published, sku.multiplies):
            assert sku.multiplies(precision.activations) and precision.activations is not Dtype.BF16
            assert runs_well(llm, precision, sku.multiplies)
    assert not any(item.weights is Dtype.NVFP4 for item in offered_on(llm, published, DB.skus["h100-sxm"].multiplies))
    assert any(item.weights is Dtype.NVFP4 for item in offered_on(llm, published, DB.skus["b200-sxm"].multiplies))
    assert all(item.weights is not Dtype.INT4 for item in published)


def test_fewer_bits_take_fewer_bytes() -> None:
    llm = load_llm("qwen3-32b")
    sizes = {main_format(llm, item.precision)[0]: checkpoint_bytes(llm, item) for item in checkpoints_of(llm)}
    assert sizes[Dtype.INT4] < sizes[Dtype.NVFP4] < sizes[Dtype.FP8] < sizes[Dtype.FP8_BLOCK] < sizes[Dtype.BF16]


def test_what_nobody_publishes_is_found_neither_published_nor_converted() -> None:
    llm = load_llm("opt-13b")
    fp8 = Precision(weights=Dtype.FP8, activations=Dtype.FP8)
    assert published_as(llm, fp8) is None
    made = converted_from(llm, fp8)
    assert made is not None and made.made_on_load and made.repository == llm.name
    nvfp4 = Precision(weights=Dtype.NVFP4, activations=Dtype.NVFP4)
    assert published_as(llm, nvfp4) is None and converted_from(llm, nvfp4) is None


def test_gpt_oss_is_mxfp4_and_said_to_be() -> None:
    for name in ("gpt-oss-120b", "gpt-oss-20b"):
        llm = load_llm(name)
        assert main_format(llm, llm.native_precision)[0] is Dtype.MXFP4
        assert format_words(llm, llm.native_precision).startswith("MXFP4")
        assert [item.own for item in checkpoints_of(llm)] == [True]  # nothing else is made of it
