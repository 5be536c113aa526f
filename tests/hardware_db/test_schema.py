"""Facts about GPUs and engines against published tables, closed forms and the reference collection."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import BaseModel

from calibration.assemble import SKUS
from calibration.borrowed import FOLDERS
from hardware_db import (
    Dtype,
    Fact,
    GpuSku,
    Kind,
    Topology,
    load_hardware,
)
from tests.places import ROOT

DB = load_hardware()


SKU_IDS = sorted(DB.skus)


README = ROOT / "hardware_db" / "README.md"


UNIT = {"TFLOPS": 10**12, "TOPS": 10**12, "GB/s": 10**9, "TB/s": 10**12, "GiB": 2**30}


PCIE_X16_GB_PER_S = {"3": 16, "4": 32, "5": 64, "6": 128}


PEAK_COLUMNS = {
    Dtype.BF16: "bf16_tflops",
    Dtype.FP16: "fp16_tflops",
    Dtype.FP8: "fp8_tflops",
    Dtype.INT8: "int8_tops",
    Dtype.FP4: "fp4_tflops",
}


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def fact_at(sku: GpuSku, path: str) -> Fact:
    node: object = sku
    for name in path.split("."):
        node = node[Dtype(name)] if isinstance(node, dict) else getattr(node, name)
    assert isinstance(node, Fact)
    return node


def facts(record: BaseModel) -> Iterator[tuple[str, Fact]]:
    """Every fact anywhere below a record, with the name of the field that holds it."""
    for name in type(record).model_fields:
        value = getattr(record, name)
        for child in value.values() if isinstance(value, dict) else [value]:
            if isinstance(child, Fact):
                yield name, child
            elif isinstance(child, BaseModel):
                yield from facts(child)


@pytest.mark.parametrize(
    "row",
    read_csv(ROOT / "tests" / "reference" / "gpu_facts.csv"),
    ids=lambda row: f"{row['sku']}-{row['field']}",
)
def test_fact_equals_the_published_value(row: dict[str, str]) -> None:
    """`factor` is 0.5 where the publication counts both directions or structured sparsity."""
    published = float(Decimal(row["printed"]) * UNIT[row["unit"]] * Decimal(row["factor"]))
    tolerance = max(float(row["relative_tolerance"]), 1e-12)
    assert row["citation"].startswith("https://")
    assert fact_at(DB.skus[row["sku"]], row["field"]).value == pytest.approx(published, rel=tolerance)


AMENDED_CORES = {"b300-sxm": 148, "gb200-nvl72": 152, "gb300-nvl72": 152}
"""Processors the driver reports where the reference collection leaves them blank or gives those of the HGX board."""


def test_the_amended_processors_are_those_of_the_measured_tables(shared: Path) -> None:
    rows = {row["sku"]: row for row in read_csv(shared / "kernels" / "skus.csv")}
    for folder, sku_id in {**SKUS, **FOLDERS}.items():
        sku = DB.skus[sku_id]
        if sku.vendor != "NVIDIA":  # what the tables call the L2 cache of AMD's is the last level behind it
            continue
        assert sku.sm_count == int(rows[folder]["sm_count"])
        assert sku.l2_bytes is not None
        assert sku.l2_bytes.value == pytest.approx(float(rows[folder]["l2_bytes"]), rel=0.05)


@pytest.mark.parametrize(
    ("sku", "flop_per_clock_per_core", "clock_hz"),
    [
        (
            "a100-sxm-80gb",
            2048,
            1.410e9,
        ),  # NVIDIA A100 whitepaper: 1024 dense FP16 FMA per SM and clock, boost 1410 MHz
        ("mi300x", 2048, 2.1e9),  # AMD CDNA 3 whitepaper: 2048 dense BF16 FLOP per CU and clock, 2100 MHz
        ("mi355x", 4096, 2.4e9),  # AMD CDNA 4 whitepaper: 4096 dense BF16 FLOP per CU and clock, 2400 MHz
    ],
)
def test_peak_is_cores_times_rate_times_clock(sku: str, flop_per_clock_per_core: int, clock_hz: float) -> None:
    cores = DB.skus[sku].sm_count
    peak = DB.skus[sku].peak_flops_per_s[Dtype.BF16].value
    assert peak == pytest.approx(cores * flop_per_clock_per_core * clock_hz, rel=1e-3)


@pytest.mark.parametrize(
    ("sku", "bus_bits", "bits_per_s_per_pin"),
    [
        ("a100-sxm-40gb", 5120, 2.43e9),  # memory clock 1215 MHz, double data rate
        ("l40s", 384, 18e9),  # GDDR6 at 18 Gb/s
        ("rtx-4090", 384, 21e9),  # GDDR6X at 21 Gb/s
        ("mi300x", 8192, 5.2e9),  # 8 stacks of HBM3 at 5.2 Gb/s; AMD rounds 5.325 to 5.3 TB/s
    ],
)
def test_bandwidth_is_bus_width_times_pin_rate(sku: str, bus_bits: int, bits_per_s_per_pin: float) -> None:
    bandwidth = DB.skus[sku].hbm_bandwidth_bytes_per_s.value
    assert bandwidth == pytest.approx(bus_bits / 8 * bits_per_s_per_pin, rel=5e-3)


@pytest.mark.parametrize(
    ("engine", "kv_block_tokens", "memory_fraction", "share_of"),
    [
        ("vllm", 16, 0.92, "all"),  # CacheConfig: DEFAULT_BLOCK_SIZE, gpu_memory_utilization
        ("sglang", 1, None, "static"),  # ServerArgs: page_size; mem_fraction_static is what a reserve leaves
        ("tensorrt-llm", 32, 0.9, "free"),  # KvCacheConfig: tokens_per_block, free_gpu_memory_fraction
    ],
)
def test_engine_defaults_are_the_documented_ones(
    engine: str, kv_block_tokens: int, memory_fraction: float | None, share_of: str
) -> None:
    profile = DB.engines[engine]
    rule = profile.memory_rule()
    assert (profile.kv_block_tokens, rule.memory_fraction, rule.memory_fraction_of) == (
        kv_block_tokens,
        memory_fraction,
        share_of,
    )
    assert profile.source.startswith("https://")


def test_every_reference_accelerator_is_there(shared: Path) -> None:
    rows = read_csv(shared / "reference" / "gpu_specs.csv")
    assert {row["sku"].lower() for row in rows} <= set(SKU_IDS)


def test_facts_equal_the_reference_collection_after_conversion(shared: Path) -> None:
    for row in read_csv(shared / "reference" / "gpu_specs.csv"):
        sku = DB.skus[row["sku"].lower()]
        assert {key: fact.value for key, fact in sku.peak_flops_per_s.items()} == {
            key: float(Decimal(row[column]) * 10**12) for key, column in PEAK_COLUMNS.items() if row[column]
        }
        expected = {
            "hbm_capacity_bytes": Decimal(row["hbm_gib"]) * 2**30,
            "hbm_bandwidth_bytes_per_s": Decimal(row["hbm_bw_GBps"]) * 10**9,
            "scale_up.bandwidth_bytes_per_s": Decimal(row["scale_up_GBps_per_dir"]) * 10**9,
            "node.nic_bytes_per_s_per_gpu": Decimal(row["nic_gbps_per_gpu"]) * 10**9 / 8,
        }
        if row["l2_mb"]:
            expected["l2_bytes"] = Decimal(row["l2_mb"]) * 10**6
        if row["tdp_w"]:
            expected["tdp_watts"] = Decimal(row["tdp_w"])
        if row["pcie_gen"]:
            expected["node.pcie_bytes_per_s"] = Decimal(PCIE_X16_GB_PER_S[row["pcie_gen"]]) * 10**9
        for path, value in expected.items():
            # a capacity such as 140.4 GiB is no whole number of bytes: half a byte of rounding
            assert fact_at(sku, path).value == pytest.approx(float(value), abs=0.5, rel=1e-15), (sku.id, path)
        assert (sku.tdp_watts is None) == (not row["tdp_w"])
        assert sku.id in AMENDED_CORES or (sku.l2_bytes is None) == (not row["l2_mb"])


def test_descriptions_equal_the_reference_collection(shared: Path) -> None:
    for row in read_csv(shared / "reference" / "gpu_specs.csv"):
        sku = DB.skus[row["sku"].lower()]
        assert (sku.vendor, sku.architecture, sku.year) == (row["vendor"], row["arch"], int(row["year"]))
        assert sku.sm_count == AMENDED_CORES.get(sku.id) or sku.sm_count == int(row["sm_count"])
        assert (sku.scale_up.link, sku.scale_up.domain_gpus) == (row["scale_up_link"], int(row["scale_up_domain"]))
        assert sku.node.gpus == int(row["gpus_per_node"])
        assert sku.confidence == row["confidence"]
        if sku.id not in AMENDED_CORES:
            assert sku.note == row["notes"]
        capacity = sku.hbm_capacity_bytes
        assert capacity.source == row["source_url"]
        assert row["second_source_url"] in capacity.note
        assert ("reopened" in capacity.note) == (row["source_read"] != "both")


def test_figures_the_collection_calls_assumptions_are_marked_so(shared: Path) -> None:
    for row in read_csv(shared / "reference" / "gpu_specs.csv"):
        sku = DB.skus[row["sku"].lower()]
        if "NIC figure is an assumption" in row["notes"]:
            assert sku.node.nic_bytes_per_s_per_gpu.kind is Kind.ASSUMED
        if re.search(r"assumes (it is|both directions)", row["notes"]):
            assert sku.scale_up.bandwidth_bytes_per_s.kind is Kind.ASSUMED


@pytest.mark.parametrize("sku_id", SKU_IDS)
def test_every_fact_has_a_source_a_date_and_a_unit(sku_id: str) -> None:
    found = list(facts(DB.skus[sku_id]))
    assert len(found) >= 6
    for name, fact in found:
        assert len(fact.source) >= 8
        assert fact.note
        assert date(2026, 1, 1) <= fact.retrieved_on <= date(2026, 12, 31)
        assert re.search(r"_(bytes|watts|per_s|per_gpu)$", name)


@pytest.mark.parametrize("sku_id", SKU_IDS)
def test_facts_are_physically_plausible(sku_id: str) -> None:
    sku = DB.skus[sku_id]
    peaks = {dtype: fact.value for dtype, fact in sku.peak_flops_per_s.items()}
    wide = peaks.get(Dtype.BF16, peaks.get(Dtype.FP16))
    assert wide is not None
    assert peaks.get(Dtype.FP16, wide) == wide
    for narrower, wider in ((Dtype.FP8, wide), (Dtype.FP4, peaks.get(Dtype.FP8, wide))):
        assert peaks.get(narrower, math.inf) >= wider
    ridge_flop_per_byte = wide / sku.hbm_bandwidth_bytes_per_s.value
    assert 20 < ridge_flop_per_byte < 1000
    assert 8e9 < sku.hbm_capacity_bytes.value < 1e12
    # reading all of the memory once takes 5 to 100 ms on every accelerator since 2017
    assert 5e-3 < sku.hbm_capacity_bytes.value / sku.hbm_bandwidth_bytes_per_s.value < 0.1


@pytest.mark.parametrize("sku_id", SKU_IDS)
def test_links_are_consistent(sku_id: str) -> None:
    sku = DB.skus[sku_id]
    link, host = sku.scale_up, sku.node.pcie_bytes_per_s
    assert (link.topology is Topology.HOST) == (link.domain_gpus == 1)
    assert host.kind is Kind.ASSUMED
    if link.topology is Topology.HOST:
        assert link.bandwidth_bytes_per_s.value == host.value
    else:
        assert link.bandwidth_bytes_per_s.value > host.value
    assert sku.node.nic_bytes_per_s_per_gpu.value <= 2 * host.value


def test_equal_formats_are_only_those_of_the_datasheets() -> None:
    """Gaudi3 (white paper), Inferentia2 (configurable FP8) and Arc Pro B60 (unpacks it) run FP8 at the BF16 rate."""
    equal = {
        sku.id
        for sku in DB.skus.values()
        if Dtype.FP8 in sku.peak_flops_per_s
        and sku.peak_flops_per_s[Dtype.FP8].value == sku.peak_flops_per_s[Dtype.BF16].value
    }
    assert equal == {"gaudi3", "inferentia2", "arc-pro-b60"}
