"""Bills as prices: a cloud bill in FOCUS columns, and the nodes of OpenCost.

- FOCUS (FinOps Open Cost and Usage Specification) 1.0 to 1.2, https://focus.finops.org/focus-specification/: rows of
  ``ChargeCategory`` Usage with ``EffectiveCost``, ``ConsumedQuantity`` in hours and the type of the instance in
  ``SkuPriceDetails`` (``InstanceType``), ``x_InstanceType`` or after the colon of ``x_UsageType`` (AWS,
  ``BoxUsage:p5.48xlarge``). ``PricingCategory`` Standard is on demand, Dynamic is spot.
- AWS's Cost and Usage Report, CUR 2.0 and older (docs.aws.amazon.com/cur, "CUR 2.0 table dictionary"): Usage in
  hours with ``line_item_unblended_cost`` and ``product_instance_type``.
- Azure's cost details (learn.microsoft.com/azure/cost-management-billing/automate/understand-usage-details-fields):
  Usage in ``1 Hour`` with ``CostInBillingCurrency``, and the type in ``ServiceType`` of ``AdditionalInfo``.
- OpenCost's ``/assets``, https://opencost.io/docs/integrations/api/: nodes with ``nodeType``, ``GPUHours`` and
  ``totalCost``, the machine around the GPUs included (core/pkg/opencost/asset_json.go of opencost/opencost).
Google's export prices GPUs apart from their machines, and OpenCost's allocations name none: both are refused by name.

Which GPUs an instance has is looked up in the packaged price lists. A price is all that was paid for instances of one
type, provider, region and commitment, less corrections, over their GPU-hours.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hardware_db import HardwareDb
from planner.core import InputError

FOCUS_COLUMNS = frozenset({"chargecategory", "effectivecost", "consumedquantity", "consumedunit"})
"""Columns, in small letters, by which a bill is known."""
HOURS = ("hours", "hour", "hrs", "hr", "h")
ON_DEMAND = "on_demand"
GOOGLE_COLUMNS = {"service.description", "sku.description", "usage.amount"}
"""Columns of Google's export, which is refused."""


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


def plain_column(column: str) -> str:
    """A column in small letters, of AWS's older reports as CUR 2.0 writes it.

    >>> plain_column("lineItem/UsageAmount"), plain_column("BilledCost")
    ('line_item_usage_amount', 'billedcost')
    """
    if "/" not in column:
        return column.lower()
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", column).replace("/", "_").lower()


def read_bill(columns: set[str], rows: Iterable[Mapping[str, str]], hardware: HardwareDb) -> Bill | None:
    """A bill in columns of FOCUS, AWS or Azure (in small letters); None for other columns.

    Raises InputError for Google's.
    """
    if columns >= GOOGLE_COLUMNS:
        fix = "export it in FOCUS columns, or give /assets of OpenCost"
        raise InputError("prices", "Google Cloud's billing export", "prices GPUs apart from their machines", fix)
    kind = next((kind for kind in _KINDS if columns >= kind.known_by), None)
    return None if kind is None else _summed(kind.label, (_charge(kind, row) for row in rows), hardware)


def opencost_bill(document: Mapping[str, Any], hardware: HardwareDb) -> Bill:
    """The answer of OpenCost's ``/assets``."""
    data = document.get("data")
    parts = data if isinstance(data, list) else [data]
    assets = [asset for part in parts if isinstance(part, dict) for asset in part.values()]
    if any(isinstance(asset, dict) and "gpuHours" in asset and "type" not in asset for asset in assets):
        bound = "are allocations, which do not say on which machines"
        raise InputError("prices", "OpenCost's allocations", bound, "give /assets of OpenCost")
    return _summed("OpenCost assets", map(_asset_charge, assets), hardware)


def known_types(hardware: HardwareDb) -> dict[str, tuple[str, int]]:
    """SKU and GPUs of the types of instances in the packaged price lists, by their names as `plain_type` has them."""
    listed = (price for price in hardware.prices if price.instance_type)
    known = {plain_type(price.instance_type): (price.sku, price.gpus_per_instance) for price in listed}
    return known | {plain_type(one.instance_type): (one.sku, one.gpus) for one in hardware.instances}


def _summed(label: str, charges: Iterator[_Charge | str], hardware: HardwareDb) -> Bill:
    known = known_types(hardware)
    left_out, rows = Counter[str](), 0
    sums: dict[tuple[str, str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    days: dict[tuple[str, str, str, str], str] = {}
    for charge in charges:
        rows += 1
        if isinstance(charge, str):
            left_out[charge] += 1
            continue
        if plain_type(charge.instance_type) not in known:
            left_out[f"of {charge.instance_type or 'no instance type'}, whose GPUs are not known"] += 1
            continue
        gpus = known[plain_type(charge.instance_type)][1]
        hours = gpus * charge.hours if charge.gpu_hours is None else charge.gpu_hours
        is_corrected = charge.usd < 0.0 and hours <= 0.0
        if not (math.isfinite(hours * charge.usd) and (is_corrected or (hours > 0.0 and charge.usd > 0.0))):
            left_out["without a cost, or without hours"] += 1
            continue
        key = (charge.provider, charge.region, charge.instance_type, charge.commitment)
        sums[key][0] += hours
        sums[key][1] += charge.usd
        days[key] = max(days.get(key, ""), charge.day)
    found = tuple(
        BilledInstances(*key, *known[plain_type(key[2])], hours, usd, days[key])
        for key, (hours, usd) in sums.items()
        if hours > 0.0 and usd > 0.0
    )
    return Bill(label, found, rows, dict(left_out))


def plain_type(instance_type: str) -> str:
    """A type of instance as price lists and bills alike spell it: Azure's bills say ``Standard_`` before it."""
    return instance_type.lower().removeprefix("standard_").replace(" ", "_")


@dataclass(frozen=True)
class _Kind:
    """Columns of a bill by what they hold, the first that is there; `usage` and `commitments` by their values."""

    label: str
    known_by: frozenset[str]
    category: tuple[str, ...]
    usage: Mapping[str, str]
    currency: tuple[str, ...]
    unit: tuple[str, ...]
    pricing: tuple[str, ...]
    commitments: Mapping[str, str]
    hours: tuple[str, ...]
    usd: tuple[str, ...]
    provider: tuple[str, ...]
    region: tuple[str, ...]
    day: tuple[str, ...]
    is_spot: str = ""
    """What a type of usage begins with that is spot."""
    default_provider: str = "own bill"


_KINDS = (
    _Kind(
        label="FOCUS bill",
        known_by=FOCUS_COLUMNS,
        category=("chargecategory",),
        usage={"usage": ""},
        currency=("billingcurrency",),
        unit=("consumedunit",),
        pricing=("pricingcategory",),
        commitments={"": ON_DEMAND, "standard": ON_DEMAND, "dynamic": "spot"},
        hours=("consumedquantity",),
        usd=("effectivecost",),
        provider=("providername", "serviceprovidername"),
        region=("regionid",),
        day=("chargeperiodstart",),
    ),
    _Kind(
        label="AWS Cost and Usage Report",
        known_by=frozenset({"line_item_line_item_type", "line_item_usage_amount", "line_item_unblended_cost"}),
        category=("line_item_line_item_type",),
        usage={"usage": "", "discountedusage": "Reserved", "savingsplancoveredusage": "SavingsPlan"},
        currency=("line_item_currency_code",),
        unit=("pricing_unit",),
        pricing=("pricing_term",),
        commitments={"": ON_DEMAND, "ondemand": ON_DEMAND, "spot": "spot"},
        hours=("line_item_usage_amount",),
        usd=("line_item_unblended_cost",),
        provider=(),
        region=("product_region_code", "product_region"),
        day=("line_item_usage_start_date",),
        is_spot="SpotUsage",
        default_provider="AWS",
    ),
    _Kind(
        label="Azure cost details",
        known_by=frozenset({"quantity", "unitofmeasure", "additionalinfo", "chargetype"}),
        category=("chargetype",),
        usage={"usage": ""},
        currency=("billingcurrency", "billingcurrencycode"),
        unit=("unitofmeasure",),
        pricing=("pricingmodel",),
        commitments={"": ON_DEMAND, "ondemand": ON_DEMAND, "spot": "spot"},
        hours=("quantity",),
        usd=("costinbillingcurrency", "cost", "pretaxcost"),
        provider=(),
        region=("resourcelocation", "resourcelocationnormalized"),
        day=("date",),
        default_provider="Azure",
    ),
)
"""Bills as tables. Committed usage does not say its term, and is left out."""


def _charge(kind: _Kind, row: Mapping[str, str]) -> _Charge | str:
    def cell(*names: str) -> str:
        return next((text for name in names if (text := (row.get(name) or "").strip())), "")

    term = kind.usage.get(cell(*kind.category).lower())
    if term is None:
        return "that are no usage (tax, credit, purchase)"
    if cell(*kind.currency).upper() not in ("", "USD"):
        return f"in {cell(*kind.currency).upper()[:8]}"
    if cell(*kind.unit).lower().removeprefix("1 ") not in HOURS:
        return "that are not counted in hours"
    pricing = term or cell(*kind.pricing)
    commitment = kind.commitments.get(pricing.lower())
    if commitment is None:
        return f"priced as {pricing[:20]}, for a term that the bill does not say"
    if kind.is_spot and kind.is_spot in cell("line_item_usage_type"):
        commitment = "spot"
    hours, usd = _number(cell(*kind.hours)), _number(cell(*kind.usd))
    provider = cell(*kind.provider) or kind.default_provider
    day = re.sub(r"^(\d\d)/(\d\d)/(\d{4})$", r"\3-\1-\2", cell(*kind.day)[:10])
    return _Charge(provider, cell(*kind.region) or "any", _instance_type(cell), commitment, None, hours, usd, day)


_TYPES_IN = ("skupricedetails", "x_skudetails", "additionalinfo")
"""Columns of JSON that name the type of the instance."""
_TYPE_NAMES = ("InstanceType", "x_InstanceType", "ServiceType")


def _instance_type(cell: Callable[..., str]) -> str:
    for column in _TYPES_IN:
        try:
            details = json.loads(cell(column) or "{}")
        except ValueError:
            continue
        told = (
            next((details[name] for name in _TYPE_NAMES if details.get(name)), "") if isinstance(details, dict) else ""
        )
        if told:
            return str(told)
    usage = cell("x_usagetype", "line_item_usage_type")
    return cell("x_instancetype", "product_instance_type") or usage.rpartition(":")[2]


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
        gpu_hours=_number(asset.get("GPUHours", asset.get("gpuHours"))),
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
