"""Tables for finance: columns and words of FOCUS, and sums that are the plan's cost."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest

from planner import launch
from planner.core import HOURS_PER_MONTH, InputError
from planner.fleet import Plan
from planner.launch import fleet_of
from tests.launch.test_launch import NASTY, mixed, planned
from tests.scenario.test_saved_plans import planned as planned_shape

COLUMNS = Path(__file__).parents[1] / "reference" / "schemas" / "focus_columns.csv"
PLANS = ["mixed", "disaggregated", "several services", "offline work and a profile"]


def tables(plan: Plan) -> dict[str, list[dict[str, str]]]:
    """The CSV files of a plan."""
    files = launch.export_files(fleet_of(plan), "finance")
    return {name: list(csv.DictReader(io.StringIO(text))) for name, text in files.items() if name.endswith(".csv")}


@pytest.mark.parametrize("shape", PLANS)
def test_every_charge_has_the_columns_of_focus_with_their_types_and_words(shape: str) -> None:
    with COLUMNS.open(encoding="utf-8", newline="") as file:
        columns = list(csv.DictReader(file))
    for row in tables(planned_shape(shape))["focus.csv"]:
        assert {one["column"] for one in columns if one["required"] == "yes"} <= set(row)
        assert all(name.startswith("x_") for name in set(row) - {one["column"] for one in columns})
        for one in columns:
            value = row.get(one["column"], "")
            assert value or one["may_be_empty"] == "yes", one["column"]
            if not value:
                continue
            if one["type"] == "decimal":
                float(value)
            elif one["type"] == "datetime":
                assert datetime.strptime(value, "%Y-%m-%dT%H:%M:%SZ").day == 1
            elif one["type"] == "currency-code":
                assert value == "USD"
            elif one["type"] == "stringified-json-object":
                assert isinstance(json.loads(value), dict)
            assert not one["values"] or value in one["values"].split("|"), (one["column"], value)


@pytest.mark.parametrize("shape", PLANS)
def test_charges_add_up_to_the_cost_of_the_plan_over_the_hours_of_their_month(shape: str) -> None:
    plan = planned_shape(shape)
    found = tables(plan)
    charges = found["focus.csv"]
    ends = [datetime.fromisoformat(charges[0][name]) for name in ("ChargePeriodStart", "ChargePeriodEnd")]
    hours = (ends[1] - ends[0]).total_seconds() / 3600.0
    assert plan.cost is not None and hours in (672.0, 696.0, 720.0, 744.0)
    day = plan.request.prices.day
    assert (ends[0].year * 12 + ends[0].month) - (day.year * 12 + day.month) == 1
    for column in ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost"):
        total = sum(float(row[column]) for row in charges)
        assert total == pytest.approx(plan.cost.usd_per_hour * hours, rel=1e-9)
    for row in charges:
        assert float(row["PricingQuantity"]) * float(row["ListUnitPrice"]) == pytest.approx(float(row["ListCost"]))
    pools = found["fleet.csv"]
    usd = [usd for one in plan.deployments for usd in one.pool_usd_per_hour]
    assert [float(row["usd_per_hour"]) for row in pools] == pytest.approx(usd)
    assert float(pools[0]["usd_per_month"]) == pytest.approx(HOURS_PER_MONTH * usd[0])


def test_the_workbook_holds_the_tables_as_typed_cells() -> None:
    plan = planned_shape("several services")
    root = ElementTree.fromstring(launch.export_files(fleet_of(plan), "finance")["finance.xml"])
    space = "{urn:schemas-microsoft-com:office:spreadsheet}"
    sheets = {one.get(f"{space}Name"): one for one in root.findall(f"{space}Worksheet")}
    for title, name in (("Fleet", "fleet.csv"), ("FOCUS", "focus.csv")):
        rows = tables(plan)[name]
        cells = [[cell[0] for cell in row] for row in sheets[title].iter(f"{space}Row")]
        assert [data.text for data in cells[0]] == list(rows[0])
        assert len(cells) == len(rows) + 1
        for data, value in zip(cells[1], rows[0].values(), strict=True):
            if data.get(f"{space}Type") == "Number":
                assert float(data.text or "") == float(value)
            else:
                assert (data.text or "") == value


@pytest.mark.parametrize("name", [*NASTY, "=HYPERLINK(0)", "<b>&amp;", "@x"])
def test_names_of_users_are_no_formulas_and_no_markup(name: str) -> None:
    plan = planned(mixed().deployments[0].deployment, name)
    for rows in tables(plan).values():
        for row in rows:
            assert not any(value[:1] in ("=", "+", "@") for value in row.values())
    ElementTree.fromstring(launch.export_files(fleet_of(plan), "finance")["finance.xml"])


def test_a_document_without_costs_is_refused_and_gpus_of_ones_own_are_charged_by_nobody_else() -> None:
    fleet = fleet_of(mixed())
    with pytest.raises(InputError, match="does not hold what the fleet costs"):
        launch.export_files(replace(fleet, bought=()), "finance")
    own = tuple(replace(line, price=None) for line in fleet.bought)
    text = launch.export_files(replace(fleet, bought=own), "finance")["focus.csv"]
    for row in csv.DictReader(io.StringIO(text)):
        assert (row["ProviderName"], row["PricingCategory"], row["ServiceName"]) == ("own", "Other", "own GPUs")
