"""Price lists against published prices, the packaged table, and hostile files."""

from __future__ import annotations

import io
from datetime import date
from pathlib import Path

import pytest

from hardware_db import load_hardware
from planner.core import InputError, UnknownNameError
from planner.supply import PriceList, PricePolicy, offered_prices, prices_csv, read_prices
from planner.supply.price_lists import CloudGpu, cloud_gpus, with_prices

DAY = date(2026, 11, 22)
NEBIUS = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice
cpu-d3_4vcpu-16gb,,0,4,16,0.0992,eu-north1,,
gpu-h100-sxm_1gpu-16vcpu-200gb,H100,1,16,200,2.95,eu-north1,"{'Gpus': [{'Name': 'H100'}]}",1.25
gpu-h100-sxm_8gpu-128vcpu-1600gb,H100,8,128,1600,23.60,eu-north1,,10.00
gpu-b200-sxm_8gpu-160vcpu-1792gb,B200,8,160,1792,44.00,us-central1,,
gpu-x_1gpu,GH200,1,16,200,1.99,eu-north1,,
"""
"""Rows of catalogs/v8/nebius/vms.csv of skypilot-org/skypilot-catalog, commit 0082b04, and one of another GPU."""
GCP = """InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice
a2-highgpu-1g,12.0,85.0,,,,us-central1,us-central1-a,0.73948,0.36975
,,,A100,1.0,,us-central1,us-central1-a,2.933908,1.146720
,,,A100,2.0,,us-central1,us-central1-a,5.867816,2.293440
"""
"""Machine: catalogs/v8/gcp/vms.csv, commit 006059e. The GPU: cloud.google.com/compute/gpus-pricing."""


def _catalog(text: str, provider: str) -> PriceList:
    return read_prices(io.StringIO(text), "vms.csv", provider=provider, retrieved_on=DAY)


def test_the_cheapest_of_a_list_is_by_sku_commitment_and_region() -> None:
    found = _catalog(NEBIUS, "nebius")

    def usd(**asked: str) -> dict[str, float]:
        return {sku: price.usd_per_gpu_hour for sku, price in found.cheapest(**asked).items()}

    assert usd() == {"b200-sxm": 5.5, "h100-sxm": 2.95}
    assert usd(commitment="spot") == {"h100-sxm": 1.25}  # eight of them: 10 USD
    assert usd(region="us-central1") == {"b200-sxm": 5.5}
    halved = [price.model_copy(update={"usd_per_gpu_hour": price.usd_per_gpu_hour / 2.0}) for price in found.prices]
    for prices in ((*found.prices, *halved), (*halved, *found.prices)):
        assert PriceList(prices=prices, format="catalog").cheapest("spot")["h100-sxm"].usd_per_gpu_hour == 0.625


# --- catalogs -------------------------------------------------------------------------------------------------------


def test_a_catalog_is_priced_by_the_gpu() -> None:
    """2.95 USD for one H100 and 23.60 for eight are the same price; spot beside it."""
    found = _catalog(NEBIUS, "nebius")
    assert found.unknown == (("GH200 (gpu-x_1gpu)", 1),), "listed, not guessed"
    h100 = [(p.commitment, p.gpus_per_instance, p.usd_per_gpu_hour) for p in found.prices if p.sku == "h100-sxm"]
    assert sorted(h100) == [("on_demand", 1, 2.95), ("on_demand", 8, 2.95), ("spot", 1, 1.25), ("spot", 8, 1.25)]
    (b200,) = (p for p in found.prices if p.sku == "b200-sxm")
    assert (b200.provider, b200.region, b200.usd_per_gpu_hour) == ("Nebius", "us-central1", 5.5)
    assert (b200.retrieved_on, b200.source_url) == (DAY, "https://github.com/skypilot-org/skypilot-catalog")


def test_gpu_and_machine_priced_apart_are_added() -> None:
    """Google lists a2-highgpu-1g in Iowa at 3.673385 USD/h: 2.933908 for its A100 and the rest for the machine."""
    found = _catalog(GCP, "GCP")
    (on_demand,) = (p for p in found.prices if p.commitment == "on_demand")
    assert on_demand.usd_per_gpu_hour == pytest.approx(3.673385, abs=1e-5)
    assert (on_demand.sku, on_demand.instance_type) == ("a100-sxm-40gb", "a2-highgpu-1g")
    assert any("2 prices of GPUs without that of their machine left out" in note for note in found.notes)


def test_one_name_is_another_gpu_on_another_cloud() -> None:
    """H100: PCIe at RunPod (fetch_runpod.py), NVL or SXM at Azure by the size, SXM at AWS."""
    header = "InstanceType,AcceleratorName,AcceleratorCount,Region,Price,SpotPrice\n"
    rows = {
        "runpod": "1x_H100_SECURE,H100,1,US,2.39,\n",
        "azure": "Standard_NC40ads_H100_v5,H100,1,eastus,6.98,\nStandard_ND96isr_H100_v5,H100,8,eastus,98.32,0\n",
        "aws": "p5.48xlarge,H100,8,us-east-1,55.04,\n",
    }
    skus = {cloud: [p.sku for p in _catalog(header + text, cloud).prices] for cloud, text in rows.items()}
    assert skus == {"runpod": ["h100-pcie"], "azure": ["h100-nvl", "h100-sxm"], "aws": ["h100-sxm"]}


def test_zones_fractions_and_zeros() -> None:
    """The cheapest zone counts; a sixth of an A10 and the 0 that Azure's catalog writes for no price do not."""
    text = "InstanceType,AcceleratorName,AcceleratorCount,Region,AvailabilityZone,Price,SpotPrice\n"
    text += "p5.48xlarge,H100,8,us-east-1,a,55.04,30\np5.48xlarge,H100,8,us-east-1,b,55.04,20\n"
    text += "g6f.large,L4,0.125,us-east-1,a,0.2,\np4d.24xlarge,A100,8,us-east-1,a,0,\n"
    found = _catalog(text, "aws")
    assert [(p.commitment, p.usd_per_gpu_hour) for p in found.prices] == [("on_demand", 6.88), ("spot", 2.5)]
    assert {note for note in found.notes if "left out" in note} == {
        "1 offers of a part of a GPU left out",
        "1 prices of 0 left out",
    }


def test_the_folder_of_a_catalog_says_whose_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "catalogs" / "v8" / "nebius"
    folder.mkdir(parents=True)
    (folder / "vms.csv").write_text(NEBIUS, encoding="utf-8")
    assert read_prices(folder / "vms.csv", retrieved_on=DAY).format == "SkyPilot catalog of nebius"
    with pytest.raises(InputError, match=r"a catalog does not say whose it is\. Fix: give one of: AWS, Azure"):
        read_prices(io.StringIO(NEBIUS), retrieved_on=DAY)
    with pytest.raises(UnknownNameError, match="provider"):
        _catalog(NEBIUS, "Nebulus")


def test_the_table_of_names_agrees_with_the_packaged_prices() -> None:
    """Oracle: for instance types that both name, the packaged price list says the same SKU."""
    checked = 0
    for price in load_hardware().prices:
        for one in cloud_gpus():
            written = price.instance_type if price.provider != "Azure" else f"Standard_{price.instance_type}"
            if one.provider == price.provider and one.instance not in ("", "*") and _fits(written, one):
                assert price.sku == one.sku, (price.provider, price.instance_type)
                checked += 1
    assert checked >= 20


def _fits(instance: str, one: CloudGpu) -> bool:
    from fnmatch import fnmatchcase

    return fnmatchcase(instance, one.instance)


# --- tables ---------------------------------------------------------------------------------------------------------


def test_the_packaged_price_table_is_read_as_it_is() -> None:
    """Round trip of a real table; of readings of one offer on several days the last row counts."""
    packaged = load_hardware().prices
    found = read_prices(io.StringIO(prices_csv(packaged)))
    assert set(found.prices) <= set(packaged)
    assert {p.sku for p in found.prices} == {p.sku for p in packaged}
    assert read_prices(io.StringIO(prices_csv(found.prices))).prices == found.prices


def test_a_plain_table_needs_two_columns() -> None:
    found = read_prices(
        io.StringIO("SKU,usd_per_gpu_hour\nH100 SXM,1.85\nl4,0.3\nDGX-2,9\n,\nl4,\n"), "own.csv", retrieved_on=DAY
    )
    assert [(p.sku, p.provider, p.region, p.commitment) for p in found.prices] == [
        ("h100-sxm", "own prices", "any", "on_demand"),
        ("l4", "own prices", "any", "on_demand"),
    ]
    assert found.unknown == (("DGX-2", 1),)
    assert found.prices[0].source_url == "own file own.csv"


def test_a_plan_uses_the_prices_of_a_file_alone() -> None:
    """An own price takes the place of all listed ones of its SKU, and only of those."""
    own = read_prices(io.StringIO("sku,usd_per_gpu_hour,provider\nh100-sxm,1.23,Ours\n"), retrieved_on=DAY).prices
    db = with_prices(load_hardware(), own)
    policy = PricePolicy(as_of=DAY)
    assert [(p.provider, p.usd_per_gpu_hour) for p in offered_prices("h100-sxm", policy, db)] == [("Ours", 1.23)]
    assert offered_prices("l4", policy, db) == offered_prices("l4", policy, load_hardware())
    with pytest.raises(UnknownNameError, match=r"prices\.sku"):
        with_prices(db, [own[0].model_copy(update={"sku": "h101"})])


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sku,price_per_month\nl4,200\n", "no column usd_per_gpu_hour. Fix: add it: USD of one GPU for one hour"),
        ("gpu,usd_per_gpu_hour\nl4,1\n", "no column sku"),
        ("sku,usd_per_gpu_hour\nl4,cheap\n", "line 2: usd_per_gpu_hour = 'cheap': must be a number"),
        ("sku,usd_per_gpu_hour\nl4,-1\n", "must be a number >= 0"),
        ("sku,usd_per_gpu_hour\nl4,inf\n", "must be a number >= 0"),
        ("sku,usd_per_gpu_hour,gpus_per_instance\nl4,1,none\n", "line 2: .*gpus_per_instance"),
        ("sku,usd_per_gpu_hour,retrieved_on\nl4,1,yesterday\n", "line 2: .*retrieved_on"),
        ("sku,usd_per_gpu_hour\nabacus,1\n", r"holds no price of a known SKU \(abacus\)"),
        ("", "is empty"),
        ("\0\0", "is a binary file"),
        ('sku,usd_per_gpu_hour\nl4,"' + "1" * 200_000, "is not a table"),
    ],
)
def test_bad_tables_are_refused_with_their_line(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_prices(io.StringIO(text), retrieved_on=DAY)
    with pytest.raises(InputError, match="does not say when its prices were read"):
        read_prices(io.StringIO(NEBIUS), provider="nebius")
