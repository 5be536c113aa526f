"""A plan as tables for finance: the fleet, and its cost by purchase in the columns of FOCUS, as CSV and for Excel.

Columns: FOCUS 1.0, https://focus.finops.org, as focus-validator 1.0.0 on PyPI checks them; columns of one's own begin
with ``x_``. The workbook is an XML Spreadsheet, which Excel opens as one (Microsoft, "XML Spreadsheet Reference").
Read on 2026-11-24.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from xml.sax.saxutils import escape, quoteattr

from planner.core import HOURS_PER_MONTH, PLAN, InputError
from planner.fleet import BoughtGpus
from planner.launch.escaping import one_line
from planner.launch.fleet import Fleet
from planner.launch.readme import README_NAME, bullets, name_text, page
from planner.launch.spec import launch_specs

FLEET_NAME, FOCUS_NAME, WORKBOOK_NAME = "fleet.csv", "focus.csv", "finance.xml"
PLANNED = "planned"
"""Account that a planned cost is booked on: there is none yet."""
Cell = str | int | float
Rows = Sequence[Mapping[str, Cell]]


def files(fleet: Fleet) -> dict[str, str]:
    """The fleet, its cost in the columns of FOCUS, both as a workbook, and a README: name -> content.

    Raises:
        InputError: the document does not hold what the fleet costs.
    """
    if not fleet.bought or fleet.day is None or any(launched.figures is None for launched in fleet.deployments):
        raise InputError("plan.bought", "(missing)", "this document does not hold what the fleet costs", PLAN.remake)
    first = _next_month(fleet.day)
    after = _next_month(first)
    tables = {"Fleet": fleet_rows(fleet), "FOCUS": focus_rows(fleet, first, after)}
    return {
        FLEET_NAME: csv_text(tables["Fleet"]),
        FOCUS_NAME: csv_text(tables["FOCUS"]),
        WORKBOOK_NAME: workbook_text(tables),
        README_NAME: _readme(fleet, first, tables["FOCUS"]),
    }


def _next_month(day: date) -> date:
    return (day.replace(day=28) + timedelta(days=4)).replace(day=1)


def fleet_rows(fleet: Fleet) -> Rows:
    """A row for each pool."""
    rows: list[dict[str, Cell]] = []
    for spec in launch_specs(fleet):
        launched = fleet.deployments[spec.deployment]
        figures = launched.figures
        usd = 0.0 if figures is None else figures.pool_usd_per_hour[_place(fleet, spec.deployment, len(rows))]
        rows.append(
            {
                "pool": spec.name,
                "service": one_line(spec.service),
                "model": one_line(launched.deployment.pools[0].config.llm.name),
                "engine": one_line(spec.engine),
                "role": spec.role.value,
                "gpu": spec.sku,
                "replicas": spec.replicas,
                "gpus_per_replica": spec.gpus,
                "gpus": spec.replicas * spec.gpus,
                "requests_per_s": launched.workload.arrivals.rate_per_s,
                "usd_per_hour": usd,
                "usd_per_month": HOURS_PER_MONTH * usd,
            }
        )
    return rows


def _place(fleet: Fleet, deployment: int, pool: int) -> int:
    """The place of a pool in its deployment."""
    return pool - sum(len(launched.deployment.pools) for launched in fleet.deployments[:deployment])


def focus_rows(fleet: Fleet, first: date, after: date) -> Rows:
    """A row for each purchase of a month, in the columns of FOCUS."""
    hours = 24.0 * (after - first).days
    services = sorted({one_line(launched.service) for launched in fleet.deployments})
    tags = json.dumps({"plan": one_line(fleet.name), "services": ", ".join(services)}, ensure_ascii=False)
    return [_focus_row(line, f"{first}T00:00:00Z", f"{after}T00:00:00Z", hours, tags) for line in fleet.bought]


def _focus_row(line: BoughtGpus, start: str, end: str, hours: float, tags: str) -> dict[str, Cell]:
    price, usd = line.price, line.usd_per_hour * hours
    quantity = usd / line.usd_per_gpu_hour if line.usd_per_gpu_hour > 0.0 else 0.0
    provider = one_line(price.provider) if price is not None else "own"
    region = one_line(price.region) if price is not None else ""
    committed = line.committed and price is not None
    return {
        "AvailabilityZone": "",
        "BilledCost": usd,
        "BillingAccountId": PLANNED,
        "BillingAccountName": "",
        "BillingCurrency": "USD",
        "BillingPeriodEnd": end,
        "BillingPeriodStart": start,
        "ChargeCategory": "Purchase" if committed else "Usage",
        "ChargeClass": "",
        "ChargeDescription": f"{line.sku}, {line.purchase.replace('_', ' ')}",
        "ChargeFrequency": "Recurring" if line.committed else "Usage-Based",
        "ChargePeriodEnd": end,
        "ChargePeriodStart": start,
        "CommitmentDiscountCategory": "Usage" if committed else "",
        "CommitmentDiscountId": line.purchase if committed else "",
        "CommitmentDiscountName": "",
        "CommitmentDiscountStatus": "",
        "CommitmentDiscountType": line.purchase if committed else "",
        "ConsumedQuantity": "" if committed else quantity,
        "ConsumedUnit": "" if committed else "GPU Hours",
        "ContractedCost": usd,
        "ContractedUnitPrice": line.usd_per_gpu_hour,
        "EffectiveCost": usd,
        "InvoiceIssuerName": provider,
        "ListCost": usd,
        "ListUnitPrice": line.usd_per_gpu_hour,
        "PricingCategory": _pricing(line),
        "PricingQuantity": quantity,
        "PricingUnit": "GPU Hours",
        "ProviderName": provider,
        "PublisherName": provider,
        "RegionId": region,
        "RegionName": region,
        "ResourceId": "",
        "ResourceName": "",
        "ResourceType": "GPU",
        "ServiceCategory": "Compute",
        "ServiceName": one_line(price.instance_type or "GPU") if price is not None else "own GPUs",
        "SkuId": line.sku,
        "SkuPriceId": f"{line.sku}/{line.purchase}",
        "SubAccountId": "",
        "SubAccountName": "",
        "Tags": tags,
        "x_PriceSource": one_line(price.source_url) if price is not None else "",
        "x_PriceDate": str(price.retrieved_on) if price is not None else "",
    }


def _pricing(line: BoughtGpus) -> str:
    if line.price is None:
        return "Other"
    if line.committed:
        return "Committed"
    return "Dynamic" if line.purchase == "spot" else "Standard"


# --- text -----------------------------------------------------------------------------------------------------------


def csv_text(rows: Rows) -> str:
    r"""A table as CSV; a text that a spreadsheet would read as a formula is quoted by an apostrophe.

    >>> csv_text([{"a": "=1+1", "b": -2.5}])
    "a,b\n'=1+1,-2.5\n"
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _inert(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _inert(value: Cell) -> Cell:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t") else value


def workbook_text(tables: Mapping[str, Rows]) -> str:
    """Tables as the sheets of an XML Spreadsheet."""
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<?mso-application progid="Excel.Sheet"?>',
        f"<Workbook xmlns={quoteattr(_NAMESPACE)} xmlns:ss={quoteattr(_NAMESPACE)}>",
    ]
    for title, rows in tables.items():
        lines += [f"<Worksheet ss:Name={quoteattr(title)}>", "<Table>", _row(list(rows[0]))]
        lines += [_row(list(row.values())) for row in rows]
        lines += ["</Table>", "</Worksheet>"]
    return "\n".join([*lines, "</Workbook>", ""])


_NAMESPACE = "urn:schemas-microsoft-com:office:spreadsheet"


def _row(values: Sequence[Cell]) -> str:
    cells = "".join(
        f'<Cell><Data ss:Type="{"String" if isinstance(value, str) else "Number"}">{escape(str(value))}</Data></Cell>'
        for value in values
    )
    return f"<Row>{cells}</Row>"


def _readme(fleet: Fleet, first: date, charges: Rows) -> str:
    total = sum(float(row["BilledCost"]) for row in charges)
    sections = [
        bullets(
            (
                f"`{FLEET_NAME}`: the pools with their GPUs and cost; a month has {HOURS_PER_MONTH:g} hours.",
                f"`{FOCUS_NAME}`: a row for each purchase of {first:%B %Y}, the month after the day of the plan, "
                f"in the columns of FOCUS 1.0: {total:,.2f} USD.",
                f"`{WORKBOOK_NAME}`: both tables as sheets, to open with Excel.",
            )
        ),
        "## Notes",
        bullets(
            (
                "These are planned costs: no invoice stands behind them, and the billing account is `planned`.",
                "Costs are the mean over the demand profile times the hours of the month. Prices are those the plan "
                "was made with, as its negotiated ones too; list prices beside them are not known to it.",
            )
        ),
    ]
    return page(f"Cost of {name_text(fleet.name)}", sections)
