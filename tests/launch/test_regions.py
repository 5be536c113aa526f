"""Exports of a plan over regions: every request of an hour goes somewhere, to a fleet that has files."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
import yaml

from planner import launch
from planner.core import InputError
from planner.fleet import RegionsPlan
from planner.launch.routers import AREA_HEADER, TOTAL_WEIGHT
from tests.launch.schemas import object_breaks
from tests.report.test_regions import found  # noqa: F401 - a fixture


def test_routes_and_table_send_what_the_plan_routes(found: RegionsPlan) -> None:  # noqa: F811
    files = launch.export_regions(found, "kubernetes")
    folders = {name.partition("/")[0] for name in files if "/" in name} - {"routes"}
    rows = list(csv.DictReader(io.StringIO(files["routes/weights.csv"])))
    for hour in range(24):
        (route,) = yaml.safe_load_all(files[f"routes/{hour:02d}.yaml"])
        assert object_breaks(route) == []
        assert len(route["spec"]["rules"]) == len(found.request.areas)
        for rule in route["spec"]["rules"]:
            ((header,),) = (match["headers"] for match in rule["matches"])
            assert header["name"] == AREA_HEADER
            shares = sorted(one.shares[header["value"]][hour] for one in found.fleets if header["value"] in one.shares)
            weights = {one["name"]: one["weight"] for one in rule["backendRefs"]}
            assert sorted(weights.values()) == pytest.approx(
                [TOTAL_WEIGHT * share for share in shares if share > 5e-4], abs=0.5
            )
            assert weights.keys() <= folders
            told = [row for row in rows if (row["hour_utc"], row["area"]) == (str(hour), header["value"])]
            assert {row["region"]: int(row["weight"]) for row in told} == weights


def test_every_fleet_has_a_folder_with_what_its_own_export_has(found: RegionsPlan) -> None:  # noqa: F811
    files = launch.export_regions(found, "kubernetes")
    folders = list(dict.fromkeys(name.partition("/")[0] for name in files if "/" in name))
    for folder, fleet in zip(folders, found.fleets, strict=False):
        own = launch.export_files(fleet.plan, "kubernetes")
        assert {name: files[f"{folder}/{name}"] for name in own} == own


def test_the_dashboard_has_a_row_for_each_region_and_asks_for_its_series_alone(found: RegionsPlan) -> None:  # noqa: F811
    files = launch.export_regions(found, "observability")
    folders = list(dict.fromkeys(name.partition("/")[0] for name in files if "/" in name and "routes" not in name))
    panels = json.loads(files["grafana-dashboard.json"])["panels"]
    rows = [at for at, panel in enumerate(panels) if panel["type"] == "row"]
    assert [panels[at]["title"].partition(":")[0] for at in rows] == folders
    for folder, first, last in zip(folders, rows, [*rows[1:], len(panels)], strict=True):
        asked = [target["expr"] for panel in panels[first + 1 : last] for target in panel["targets"]]
        selectors = [selector for expression in asked for selector in re.findall(r"\{[^}]*\}", expression)]
        assert selectors
        assert all(f'region="{folder}"' in selector for selector in selectors)


def test_no_fleets_no_files(found: RegionsPlan) -> None:  # noqa: F811
    with pytest.raises(InputError, match="no fleets"):
        launch.export_regions(RegionsPlan(found.request), "kubernetes")
