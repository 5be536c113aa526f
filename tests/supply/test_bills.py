"""Bills as prices. Truth: made-up bills in the published columns, whose USD per GPU-hour are worked out by hand."""

from __future__ import annotations

import csv
import io
import json
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


def focus(*changes: dict[str, str]) -> io.StringIO:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(USAGE))
    writer.writeheader()
    writer.writerows(USAGE | change for change in changes)
    return io.StringIO(text.getvalue())


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
        "gpuHours": 80.0,
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


def test_what_is_no_bill_is_refused() -> None:
    with pytest.raises(InputError, match="no JSON document"):
        read_prices(io.StringIO("{"))
    for text in ("{}", '{"data": 3}', '{"data": [1]}', '{"data": {"a": 1}}'):
        with pytest.raises(InputError, match="no price of a known SKU"):
            read_prices(io.StringIO(text))
