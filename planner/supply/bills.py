"""Bills as prices: a cloud bill in FOCUS columns, and the nodes of OpenCost.

- FOCUS (FinOps Open Cost and Usage Specification) 1.0 to 1.2, https://focus.finops.org/focus-specification/: rows of
  ``ChargeCategory`` Usage with ``EffectiveCost``, ``ConsumedQuantity`` in hours and the type of the instance in
  ``SkuPriceDetails`` (``InstanceType``), ``x_InstanceType`` or after the colon of ``x_UsageType`` (AWS,
  ``BoxUsage:p5.48xlarge``). ``PricingCategory`` Standard is on demand, Dynamic is spot.
- OpenCost's ``/assets``, https://opencost.io/docs/integrations/api/: nodes with ``nodeType``, ``gpuHours`` and
  ``totalCost``, the machine around the GPUs included.

Which GPUs an instance has is looked up in the packaged price lists. A price is all that was paid for instances of one
type, provider, region and commitment over their GPU-hours.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hardware_db import HardwareDb

FOCUS_COLUMNS = {"chargecategory", "effectivecost", "consumedquantity", "consumedunit"}
"""Columns, in small letters, by which a bill is known."""
HOURS = ("hours", "hour", "hrs", "hr", "h")
ON_DEMAND = "on_demand"
COMMITMENTS = {"": ON_DEMAND, "standard": ON_DEMAND, "dynamic": "spot"}
"""FOCUS's PricingCategory -> commitment. Committed usage does not say its term, and is left out."""


@dataclass(frozen=True)
class BilledInstances:
    """Instances of one type that were paid for.

    Attributes:
        provider, region, instance_type, commitment: what tells them from others.
        sku, gpus: that each has.
        gpu_hours, usd: of all of them.
        day: the last that the bill names, as written.
    """

    provider: str
    region: str
    instance_type: str
    commitment: str
    sku: str
    gpus: int
    gpu_hours: float
    usd: float
    day: str


@dataclass(frozen=True)
class Bill:
    """The content of a bill.

    Attributes:
        format: name of the format.
        instances: by type.
        rows: read.
        left_out: rows by reason.
    """

    format: str
    instances: tuple[BilledInstances, ...]
    rows: int
    left_out: Mapping[str, int]


@dataclass(frozen=True)
class _Charge:
    provider: str
    region: str
    instance_type: str
    commitment: str
    gpu_hours: float | None
    """None: to be worked out from the hours of the instance."""
    hours: float
    usd: float
    day: str


def focus_bill(rows: Iterable[Mapping[str, str]], hardware: HardwareDb) -> Bill:
    """A bill in FOCUS columns (in small letters)."""
    return _summed("FOCUS bill", map(_focus_charge, rows), hardware)


def opencost_bill(document: Mapping[str, Any], hardware: HardwareDb) -> Bill:
    """The answer of OpenCost's ``/assets``."""
    data = document.get("data")
    parts = data if isinstance(data, list) else [data]
    assets = [asset for part in parts if isinstance(part, dict) for asset in part.values()]
    return _summed("OpenCost assets", map(_asset_charge, assets), hardware)


def _summed(label: str, charges: Iterator[_Charge | str], hardware: HardwareDb) -> Bill:
    known = {
        price.instance_type.lower(): (price.sku, price.gpus_per_instance)
        for price in hardware.prices
        if price.instance_type
    } | {one.instance_type.lower(): (one.sku, one.gpus) for one in hardware.instances}
    left_out, rows = Counter[str](), 0
    sums: dict[tuple[str, str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    days: dict[tuple[str, str, str, str], str] = {}
    for charge in charges:
        rows += 1
        if isinstance(charge, str):
            left_out[charge] += 1
            continue
        if charge.instance_type.lower() not in known:
            left_out[f"of {charge.instance_type or 'no instance type'}, whose GPUs are not known"] += 1
            continue
        gpus = known[charge.instance_type.lower()][1]
        hours = gpus * charge.hours if charge.gpu_hours is None else charge.gpu_hours
        if not (math.isfinite(hours) and hours > 0.0 and math.isfinite(charge.usd) and charge.usd > 0.0):
            left_out["without a cost, or without hours"] += 1
            continue
        key = (charge.provider, charge.region, charge.instance_type, charge.commitment)
        sums[key][0] += hours
        sums[key][1] += charge.usd
        days[key] = max(days.get(key, ""), charge.day)
    found = tuple(
        BilledInstances(*key, *known[key[2].lower()], hours, usd, days[key]) for key, (hours, usd) in sums.items()
    )
    return Bill(label, found, rows, dict(left_out))


def _focus_charge(row: Mapping[str, str]) -> _Charge | str:
    def cell(name: str) -> str:
        return (row.get(name) or "").strip()

    if cell("chargecategory").lower() != "usage":
        return "that are no usage (tax, credit, purchase)"
    if cell("billingcurrency").upper() not in ("", "USD"):
        return f"in {cell('billingcurrency').upper()[:8]}"
    if cell("consumedunit").lower() not in HOURS:
        return "that are not counted in hours"
    commitment = COMMITMENTS.get(cell("pricingcategory").lower())
    if commitment is None:
        return f"priced as {cell('pricingcategory')[:20]}, for a term that the bill does not say"
    hours, usd = (_number(cell(name)) for name in ("consumedquantity", "effectivecost"))
    provider = cell("providername") or cell("serviceprovidername") or "own bill"
    day = cell("chargeperiodstart")[:10]
    return _Charge(provider, cell("regionid") or "any", _instance_type(cell), commitment, None, hours, usd, day)


def _instance_type(cell: Any) -> str:  # noqa: ANN401 - a function of a column's name
    try:
        details = json.loads(cell("skupricedetails") or "{}")
    except ValueError:
        details = {}
    told = details.get("InstanceType") or details.get("x_InstanceType") if isinstance(details, dict) else ""
    return str(told or cell("x_instancetype") or cell("x_usagetype").rpartition(":")[2])


def _asset_charge(asset: object) -> _Charge | str:
    if not isinstance(asset, dict) or asset.get("type") != "Node":
        return "that are no nodes (disks, networks, load balancers)"
    properties = asset.get("properties")
    place = properties if isinstance(properties, dict) else {}
    labels = asset.get("labels")
    region = (labels if isinstance(labels, dict) else {}).get("label_topology_kubernetes_io_region", "any")
    window = asset.get("window")
    end = (window if isinstance(window, dict) else {}).get("end", "")
    return _Charge(
        provider=str(place.get("provider") or "own cluster"),
        region=str(region),
        instance_type=str(asset.get("nodeType", "")),
        commitment="spot" if asset.get("preemptible") in (1, True) else ON_DEMAND,
        gpu_hours=_number(asset.get("gpuHours")),
        hours=0.0,
        usd=_number(asset.get("totalCost")),
        day=str(end)[:10],
    )


def _number(value: object) -> float:
    """A number or the text of one; NaN for anything else."""
    try:
        return float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except ValueError:
        return math.nan
