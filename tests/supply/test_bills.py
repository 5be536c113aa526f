"""Bills as prices. Truth: made-up bills in the published columns, whose USD per GPU-hour are worked out by hand."""

from __future__ import annotations

import csv
import io
import json
import math
from datetime import date
from typing import Any

import pytest

from hardware_db import load_hardware
from planner.core import InputError
from planner.supply import prices_csv, read_prices

HARDWARE = load_hardware()
INSTANCE = next(price for price in HARDWARE.prices if price.instance_type and price.gpus_per_instance == 8)
"""A packaged price of an instance of eight GPUs."""
USAGE = {
    "ChargeCategory": "Usage",
    "ProviderName": "Made-up Cloud",
    "RegionId": "r-1",
    "BillingCurrency": "USD",
    "PricingCategory": "Standard",
    "ConsumedQuantity": "10",
    "ConsumedUnit": "Hours",
    "EffectiveCost": "160.0",
    "SkuPriceDetails": json.dumps({"InstanceType": INSTANCE.instance_type}),
    "ChargePeriodStart": "2026-10-31T00:00:00Z",
}


def table(row: dict[str, str], *changes: dict[str, str]) -> io.StringIO:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(row))
    writer.writeheader()
    writer.writerows(row | change for change in changes)
    return io.StringIO(text.getvalue())


def focus(*changes: dict[str, str]) -> io.StringIO:
    return table(USAGE, *changes)


def test_a_focus_bill_gives_what_was_paid_for_a_gpu_hour() -> None:
    """160 USD for 10 h and 80 USD for 2 h of eight GPUs: 240 over 96 GPU-hours; spot apart."""
    spot = {"PricingCategory": "Dynamic", "EffectiveCost": "40"}
    found = read_prices(focus({}, {"ConsumedQuantity": "2", "EffectiveCost": "80"}, spot), "bill.csv")
    assert found.format == "FOCUS bill"
    by_commitment = {price.commitment: price for price in found.prices}
    assert by_commitment["on_demand"].usd_per_gpu_hour == pytest.approx(2.5)
    assert by_commitment["spot"].usd_per_gpu_hour == pytest.approx(0.5)
    kept = by_commitment["on_demand"]
    assert (kept.sku, kept.gpus_per_instance, kept.region) == (INSTANCE.sku, 8, "r-1")
    assert kept.retrieved_on == date(2026, 10, 31)
    assert read_prices(io.StringIO(prices_csv(found.prices))).prices == found.prices, "as a table again"


def test_rows_that_are_left_out_are_counted_with_the_reason() -> None:
    found = read_prices(
        focus(
            {},
            {"ChargeCategory": "Tax"},
            {"BillingCurrency": "EUR"},
            {"ConsumedUnit": "GB-Mo"},
            {"PricingCategory": "Committed"},
            {"SkuPriceDetails": json.dumps({"InstanceType": "m7i.large"})},
        )
    )
    assert found.notes[0] == "6 rows read"
    text = "\n".join(found.notes)
    for reason in ("no usage", "in EUR", "not counted in hours", "Committed", "m7i.large"):
        assert reason in text
    assert len(found.notes) == 6


@pytest.mark.parametrize(
    ("hours", "usd", "counts"),
    [
        ("0.1", "8", True),
        ("0", "8", False),
        ("2", "0", False),
        ("inf", "8", False),
        ("2", "inf", False),
        ("2", "nan", False),
    ],
)
def test_only_what_was_used_and_paid_for_counts(hours: str, usd: str, counts: bool) -> None:
    found = read_prices(focus({"RegionId": "other"}, {"ConsumedQuantity": hours, "EffectiveCost": usd}), "bill.csv")
    assert any(price.region == "r-1" for price in found.prices) is counts


def test_prices_of_a_bill_read_back_as_a_table() -> None:
    """Round trip: bill, prices, table, prices."""
    found = read_prices(focus({}))
    again = read_prices(io.StringIO(prices_csv(found.prices)))
    assert again.prices == found.prices


def opencost(**changes: Any) -> io.StringIO:
    node = {
        "type": "Node",
        "properties": {"category": "Compute", "provider": "Made-up Cloud", "name": "gpu-node"},
        "labels": {"label_topology_kubernetes_io_region": "r-1"},
        "window": {"start": "2026-10-01T00:00:00Z", "end": "2026-10-31T00:00:00Z"},
        "nodeType": INSTANCE.instance_type,
        "gpuCount": 8,
        "GPUHours": 80.0,
        "totalCost": 200.0,
        "preemptible": 0,
        **changes,
    }
    disk = {"type": "Disk", "totalCost": 3.0}
    return io.StringIO(json.dumps({"code": 200, "data": {"a": node, "b": node, "c": disk}}))


def test_opencost_nodes_give_the_cost_of_the_whole_machine_per_gpu_hour() -> None:
    found = read_prices(opencost())
    (price,) = found.prices
    assert (price.usd_per_gpu_hour, price.sku, price.commitment) == (2.5, INSTANCE.sku, "on_demand")
    assert found.notes == ("3 rows read", "1 rows that are no nodes (disks, networks, load balancers) left out")
    (spot,) = read_prices(opencost(preemptible=1)).prices
    assert spot.commitment == "spot"


def test_nodes_of_nobody_in_particular_are_the_own_clusters() -> None:
    (price,) = read_prices(opencost(properties={"category": "Compute"})).prices
    assert price.provider == "own cluster"


@pytest.mark.parametrize("hours", [1.0, 0.0, -1.0, math.inf, math.nan, "x"])
@pytest.mark.parametrize("usd", [1.0, 0.0, -1.0, math.inf, math.nan, None])
def test_only_hours_that_cost_something_are_a_price(hours: object, usd: object) -> None:
    """A price is money over hours; a correction takes from a price that is there, and is none alone."""
    if hours == usd == 1.0:
        assert read_prices(opencost(GPUHours=hours, totalCost=usd)).prices[0].usd_per_gpu_hour == 1.0
        return
    with pytest.raises(InputError, match="no price of a known SKU"):
        read_prices(opencost(GPUHours=hours, totalCost=usd))


def test_what_is_no_bill_is_refused() -> None:
    with pytest.raises(InputError, match="no JSON document"):
        read_prices(io.StringIO("{"))
    for text in ("{}", '{"data": 3}', '{"data": [1]}', '{"data": {"a": 1}}'):
        with pytest.raises(InputError, match="no price of a known SKU"):
            read_prices(io.StringIO(text))


CUR = {
    "line_item_line_item_type": "Usage",
    "line_item_usage_type": "BoxUsage:p5.48xlarge",
    "line_item_usage_amount": "10",
    "line_item_unblended_cost": "160.0",
    "line_item_currency_code": "USD",
    "line_item_usage_start_date": "2026-10-01T00:00:00.000Z",
    "pricing_term": "OnDemand",
    "pricing_unit": "Hrs",
    "product_instance_type": "p5.48xlarge",
    "product_region_code": "us-east-1",
}
AZURE = {
    "Date": "10/31/2026",
    "ResourceLocation": "eastus",
    "UnitOfMeasure": "1 Hour",
    "Quantity": "10",
    "CostInBillingCurrency": "160.0",
    "BillingCurrency": "USD",
    "AdditionalInfo": json.dumps({"ServiceType": "Standard_ND96isr_H100_v5", "VCPUs": 96}),
    "ChargeType": "Usage",
    "PricingModel": "OnDemand",
}


def test_bills_of_aws_and_azure_give_what_was_paid_on_demand_and_spot() -> None:
    """160 USD for 10 h of eight H100 are 2 USD a GPU-hour; what is no usage, or committed, is left out."""
    spot = {"line_item_usage_type": "SpotUsage:p5.48xlarge", "line_item_unblended_cost": "80"}
    reserved = {"line_item_line_item_type": "DiscountedUsage", "line_item_unblended_cost": "0"}
    cur = table(CUR, {}, spot, reserved, {"line_item_line_item_type": "Tax"})
    found = {price.commitment: price for price in read_prices(cur, "cur.csv").prices}
    assert {name: price.usd_per_gpu_hour for name, price in found.items()} == {"on_demand": 2.0, "spot": 1.0}
    assert (found["spot"].sku, found["spot"].provider, found["spot"].region) == ("h100-sxm", "AWS", "us-east-1")
    (azure,) = read_prices(table(AZURE, {}, {"ChargeType": "Purchase"}, {"PricingModel": "Reservation"})).prices
    assert (azure.sku, azure.usd_per_gpu_hour, azure.retrieved_on) == ("h100-sxm", 2.0, date(2026, 10, 31))


def test_the_older_report_of_aws_has_the_same_columns_under_other_names() -> None:
    older = {"line_item_": "lineItem/", "pricing_": "pricing/", "product_": "product/"}

    def renamed(column: str) -> str:
        start = next(start for start in older if column.startswith(start))
        head, *words = column.removeprefix(start).split("_")
        last = "".join(word.title() for word in (head, *words))
        return older[start] + (last if start == "line_item_" else last[0].lower() + last[1:])

    assert renamed("line_item_line_item_type") == "lineItem/LineItemType"
    row = {renamed(column): cell for column, cell in CUR.items()}
    assert read_prices(table(row, {})).prices == read_prices(table(CUR, {})).prices


def test_corrections_count_against_what_they_correct() -> None:
    """160 USD, of which 32 were given back: 128 over 80 GPU-hours."""
    (price,) = read_prices(focus({}, {"EffectiveCost": "-32", "ConsumedQuantity": "0"})).prices
    assert price.usd_per_gpu_hour == pytest.approx(1.6)


def test_bills_that_do_not_say_what_a_machine_cost_are_refused_by_name() -> None:
    google = "service.description,sku.description,usage.amount,cost\nCompute Engine,Nvidia H100 80GB GPU,8,80\n"
    with pytest.raises(InputError, match=r"apart from their machines\. Fix: export it in FOCUS"):
        read_prices(io.StringIO(google))
    allocation = {"llm": {"name": "llm", "gpuCount": 8, "gpuHours": 192, "totalCost": 600}}
    with pytest.raises(InputError, match=r"on which machines\. Fix: give /assets"):
        read_prices(io.StringIO(json.dumps({"code": 200, "data": [allocation]})))
