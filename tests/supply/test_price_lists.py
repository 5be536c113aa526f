"""Price lists against published prices, the packaged table, and hostile files."""

from __future__ import annotations

import io
import json
from datetime import date
from pathlib import Path

import pytest

from hardware_db import load_hardware
from planner.core import InputError, UnknownNameError
from planner.supply import PriceList, PricePolicy, offered_prices, prices_csv, read_prices, typed_sku
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


# --- catalogs and offers of other clouds ------------------------------------------------------------------------------

VAST_VMS = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice
1x-RTX4090-32-65536,RTX4090,1,32,64,0.40,"Texas, US, NA",,0.20
8x-H100_SXM-256,H100-SXM,8,256,2048,17.60,"Norway, NO, EU",,
1x-H100-64,H100,1,64,256,1.90,"Utah, US, NA",,
"""
"""In the columns of catalogs/v8/vast/vms.csv, `fetch_vast.py` of skypilot-org/skypilot; prices are made up."""
VAST_OFFERS = json.dumps(
    [
        {"gpu_name": gpu, "gpu_ram": ram, "num_gpus": gpus, "dph_total": usd, "min_bid": bid, "geolocation": place}
        for gpu, ram, gpus, usd, bid, place in (
            ("H100 SXM", 81559, 8, 16.0, 8.0, "US"),
            ("A100 SXM4", 81920, 1, 0.9, None, "DE"),
            ("A100 SXM4", 40960, 1, 0.6, 0.3, "DE"),
            ("GTX 1080", 8192, 1, 0.1, 0.1, "DE"),
        )
    ]
)
"""In the form of `vastai search offers --raw`."""
NEBIUS_LIST = "GPU model,Price per GPU-hour,Region\nNVIDIA H200 SXM,3.50,eu-north1\nNVIDIA B200,5.50,us-central1\n"
CRUSOE_LIST = """{"prices": [
 {"gpu_type": "A100 80GB PCIe", "on_demand_per_gpu_hour": 1.65, "spot_per_gpu_hour": 0.95, "region": "us-east1"},
 {"gpu_type": "MI300X", "on_demand_per_gpu_hour": 3.45, "currency": "USD", "region": "us-east1"},
 {"gpu_type": "L40S", "on_demand_per_gpu_hour": 1.1, "currency": "EUR", "region": "eu"}
]}"""


GPU_INFO = "{{'Gpus': [{{'Name': '{}', 'Manufacturer': 'NVIDIA', 'Count': 1, 'MemoryInfo': {{'SizeInMiB': {}}}}}]}}"
INFORMED = [
    ("hyperbolic", "1x-H100-75-722", "H100", "NVIDIA-H100-80GB-HBM3", 81559, "h100-sxm"),
    ("hyperstack", "n3-H100x1", "H100-80G-PCIe", "H100-80G-PCIe", 81920, "h100-pcie"),
    ("hyperstack", "n3-A100x1", "A100-80G-PCIe", "A100-80G-PCIe", 81920, "a100-pcie-80gb"),
    ("cudo", "epyc-genoa-a100-pcie_1x2v4gb", "A100", "A100", 81920, "a100-pcie-80gb"),
    ("mithril", "h100-80gb.sxm.1x", "H100", "H100", 81920, "h100-sxm"),
    ("jarvislabs", "1x_H100_24V_200G", "H100", "H100", 81920, None),
    ("seeweb", "ECS1GPU3", "A100", "A100", 81920, None),
    ("seeweb", "ECS1GPU7", "L40S", "L40S", 49152, "l40s"),
]
"""Rows of the catalogs of these clouds (skypilot-org/skypilot-catalog, catalogs/v8, commits 0082b04 to 57d6578)."""


@pytest.mark.parametrize(("cloud", "machine", "name", "told", "mib", "sku"), INFORMED)
def test_what_a_catalog_tells_of_a_gpu_counts(
    tmp_path: Path, cloud: str, machine: str, name: str, told: str, mib: int, sku: str | None
) -> None:
    """The column GPUInfo names form and memory where AcceleratorName does not; two forms of 80 GB stay unknown."""
    file = tmp_path / "catalogs" / "v8" / cloud / "vms.csv"
    file.parent.mkdir(parents=True)
    head = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice"
    file.write_text(f'{head}\n{machine},{name},1,16,120,1.5,here,"{GPU_INFO.format(told, mib)}",\n', encoding="utf-8")
    if sku is None:
        with pytest.raises(InputError, match=name):
            read_prices(file, retrieved_on=DAY)
        return
    found = read_prices(file, retrieved_on=DAY)
    assert [(p.sku, p.usd_per_gpu_hour) for p in found.prices] == [(sku, 1.5)]


def test_a_catalog_is_of_the_cloud_of_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "catalogs" / "v8" / "vast"
    folder.mkdir(parents=True)
    (folder / "vms.csv").write_text(VAST_VMS, encoding="utf-8")
    found = read_prices(folder / "vms.csv", retrieved_on=DAY)
    prices = {(p.sku, p.provider, p.commitment): p.usd_per_gpu_hour for p in found.prices}
    assert prices == {
        ("rtx-4090", "vast", "on_demand"): 0.40,
        ("rtx-4090", "vast", "spot"): 0.20,
        ("h100-sxm", "vast", "on_demand"): 2.20,
    }
    assert found.unknown == (("H100 (1x-H100-64)", 1),), "a name of several GPUs is listed, not guessed"
    (tmp_path / "vms.csv").write_text(VAST_VMS, encoding="utf-8")
    with pytest.raises(InputError, match="a catalog does not say whose it is"):
        read_prices(tmp_path / "vms.csv", retrieved_on=DAY)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            VAST_OFFERS,
            {
                ("h100-sxm", "Vast.ai", "on_demand"): 2.0,
                ("h100-sxm", "Vast.ai", "spot"): 1.0,
                ("a100-sxm-80gb", "Vast.ai", "on_demand"): 0.9,
                ("a100-sxm-40gb", "Vast.ai", "on_demand"): 0.6,
                ("a100-sxm-40gb", "Vast.ai", "spot"): 0.3,
            },
        ),
        (NEBIUS_LIST, {("h200-sxm", "Ours", "on_demand"): 3.5, ("b200-sxm", "Ours", "on_demand"): 5.5}),
        (
            CRUSOE_LIST,
            {
                ("a100-pcie-80gb", "Ours", "on_demand"): 1.65,
                ("a100-pcie-80gb", "Ours", "spot"): 0.95,
                ("mi300x", "Ours", "on_demand"): 3.45,
            },
        ),
    ],
)
def test_offers_are_of_a_gpu_or_of_a_machine(text: str, expected: dict[tuple[str, str, str], float]) -> None:
    provider = None if "dph_total" in text else "Ours"
    found = read_prices(io.StringIO(text), "prices", provider=provider, retrieved_on=DAY)
    assert {(p.sku, p.provider, p.commitment): p.usd_per_gpu_hour for p in found.prices} == pytest.approx(expected)


def test_a_gpu_that_no_sku_is_known_for_is_listed_by_its_name() -> None:
    table = "gpu_name,usd_per_gpu_hour\nMystery X1,2\n,3\nH100 SXM,2.5\n"
    found = read_prices(io.StringIO(table), retrieved_on=DAY)
    assert found.unknown == (("(no name)", 1), ("Mystery X1", 1)) and len(found.prices) == 1


def test_a_machine_of_an_unknown_size_has_no_price_of_a_gpu() -> None:
    with pytest.raises(InputError, match="holds no price of a known SKU"):
        read_prices(io.StringIO("gpu_type,price_per_hour\nL40S,8\n"), "x.csv", retrieved_on=DAY)
    found = read_prices(io.StringIO("gpu_type,gpus,price_per_hour\nL40S,8,8\n"), "x.csv", retrieved_on=DAY)
    assert [price.usd_per_gpu_hour for price in found.prices] == [1.0]


RUNPOD = {"data": {"gpuTypes": [{"id": "NVIDIA H200", "displayName": "H200 SXM", "securePrice": 3.99}]}}
LAMBDA = {
    "data": {
        "gpu_8x_h100_sxm5": {
            "instance_type": {
                "gpu_description": "H100 (80 GB SXM5)",
                "price_cents_per_hour": 2392,
                "specs": {"memory_gib": 1800, "gpus": 8},
            },
            "regions_with_capacity_available": [{"name": "us-east-1"}],
        }
    }
}
PRIME = {"items": [{"gpuType": "H100_80GB", "socket": "SXM5", "gpuCount": 8, "prices": {"onDemand": 19.2}}]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (json.dumps(RUNPOD), {"h200-sxm": 3.99}),
        (json.dumps(LAMBDA), {"h100-sxm": 2.99}),
        (json.dumps(PRIME), {"h100-sxm": 2.4}),
        ("GPU,On-Demand ($/GPU-hr)\nNVIDIA H100 HGX 80GB,$3.90\n", {"h100-sxm": 3.9}),
        ("Platform,GPU,Price per GPU hour\ngpu-h200-sxm,NVIDIA H200 NVLink,$3.50\n", {"h200-sxm": 3.5}),
        ("sku;usd_per_gpu_hour\nh100-sxm;2,49\n", {"h100-sxm": 2.49}),
        ('gpu,gpus,price_per_hour\nB200,8,"$40.00/hr"\n', {"b200-sxm": 5.0}),
    ],
)
def test_lists_are_found_in_documents_and_prices_by_the_words_of_their_column(
    text: str, expected: dict[str, float]
) -> None:
    found = read_prices(io.StringIO(text), "prices", retrieved_on=DAY)
    assert {price.sku: price.usd_per_gpu_hour for price in found.prices} == pytest.approx(expected)


@pytest.mark.parametrize(
    "text",
    [
        "gpu,gpus,price_per_hour\nH100 SXM,8,2392\n",
        "sku,usd_per_gpu_hour\nh100-sxm,1490\n",
        json.dumps([{"gpu_type": "H100_sxm5", "num_gpus": 8, "hourly_price": 1920}]),
    ],
)
def test_cents_and_months_are_no_price_of_a_gpu_hour(text: str) -> None:
    """Nobody pays ten times the dearest listed price: 299 USD for an hour of an H100 are cents."""
    with pytest.raises(InputError, match="cents, a month, a server"):
        read_prices(io.StringIO(text), "prices", retrieved_on=DAY)


def test_a_machine_that_the_packaged_lists_know_tells_its_gpu() -> None:
    """OCI's catalog calls the SXM with 40 and with 80 GB A100 and A100-80GB; the shapes are those of its price list."""
    header = "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region\n"
    shapes = "BM.GPU4.8,A100,8.0,24.4,,us\nBM.GPU.A100-v2.8,A100-80GB,8.0,32.0,,us\nBM.GPU4.8,A100,4.0,12.0,,us\n"
    found = _catalog(header + shapes, "oci")
    assert {price.sku: price.usd_per_gpu_hour for price in found.prices} == {
        "a100-sxm-40gb": pytest.approx(3.05),
        "a100-sxm-80gb": 4.0,
    }
    assert found.unknown == (("A100 (BM.GPU4.8)", 1),), "half of a machine is another"


def test_another_form_or_memory_is_another_gpu() -> None:
    """NVIDIA sells the H200 NVL as a card, the A100 with 40 and 80 GB, the H20 with 96 and 141."""
    names = ("H200 NVL", "A100-PCIE-40GB", "H20 141GB", "V100-SXM2-16GB", "A100-SXM4-40GB", "H100 94GB", "HGX H100")
    skus = load_hardware().skus
    meant = [typed_sku(name, skus) for name in names]
    assert meant == [*names[:4], "a100-sxm-40gb", "h100-nvl", "h100-sxm"]


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sku,price_per_month\nl4,200\n", "no column usd_per_gpu_hour. Fix: add it: USD of one GPU for one hour"),
        ("machine,usd_per_gpu_hour\nl4,1\n", "no column sku"),
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
