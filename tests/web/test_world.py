"""The page of a scenario with areas of users: its table says what the scenario says, its answer what the plan does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from planner.charts import demands
from planner.core import InputError
from planner.fleet import RegionsPlan
from planner.report import regions
from planner.scenario import load_scenario
from planner.traffic import load_profile
from planner.web import results, world
from tests.charts.test_costs import is_json
from tests.places import DATA
from tests.report.test_regions import FEW
from tests.scenario.test_demand import trace_of
from tests.web.pages import content_of, fine, press, said, scenario, values
from tests.web.test_app import opened, small

WORLD = "global-chat-llama-70b"


@pytest.fixture(scope="module")
def page() -> AppTest:
    return opened({"base": WORLD, **dict(setting.split("=") for setting in FEW)})


@pytest.fixture(scope="module")
def found(page: AppTest) -> RegionsPlan:
    plan = results.store().get((results.REGIONS, json.dumps(scenario(page), sort_keys=True)))
    assert isinstance(plan, RegionsPlan)
    return plan


def test_a_table_that_is_left_as_it_is_changes_nothing() -> None:
    demand = content_of(name=WORLD)["demand"]
    assert world.demand_of(world.area_rows(demand), demand) == demand


def test_an_edited_table_is_what_is_planned() -> None:
    content = content_of(name=WORLD)
    rows = [{**row, "ttft_ms": 500.0} for row in world.area_rows(content["demand"])]
    content["demand"] = world.demand_of([*rows, {"area": "india", "weight": 5.0, "residency": "asia, eu"}], {})
    request = load_scenario(content)
    assert {area.ttft_s for area in request.areas.values()} == {0.5, None}
    assert request.areas["india"].residency == ("asia", "eu")
    assert request.areas["india"].rate_per_s == pytest.approx(45.0 * 5.0 / 50.0)


def test_kinds_of_lines_are_edited_in_words() -> None:
    """Users by fixed lines and phones: what is typed is planned, what is not touched is as it was, and bad is said."""
    content = content_of("demand.japan.access_ms=30", name=WORLD)
    rows = {row["area"]: row for row in world.area_rows(content["demand"])}
    assert {name: row["access"] for name, row in rows.items()} == {
        "us-east": "20 ms",
        "europe": "20 ms",
        "japan": "30 ms",
    }
    words = "fixed 60 % at 28 ms, mobile 40 % at 70 ms"
    content["demand"] = world.demand_of([{**rows["europe"], "access": words}, rows["japan"]], content["demand"])
    areas = load_scenario(content).areas
    assert areas["europe"].access_text == words and areas["japan"].access_ms == 30.0
    assert world.demand_of(world.area_rows(content["demand"]), content["demand"]) == content["demand"]
    content["demand"] = world.demand_of([{**rows["europe"], "access": "soon"}], content["demand"])
    assert world.area_rows(content["demand"])[0]["access"] == "soon"
    with pytest.raises(InputError, match=r"demand\.europe\.access_ms = 'soon'"):
        load_scenario(content)


def test_users_and_their_hours_are_edited_as_users() -> None:
    content = content_of(name=WORLD)
    del content["workload"]["rate_per_s"]
    content["workload"]["requests_per_user_per_day"] = 10.0
    demand = {"europe": {"users": 20_000, "hours": "office"}, "JP": {"users": 10_000}}
    rows = [{**row, "users": 2 * row["users"]} for row in world.area_rows(demand)]
    content["demand"] = world.demand_of(rows, demand)
    request = load_scenario(content)
    assert request.users == 60_000
    assert request.areas["japan"].rate_per_s == pytest.approx(20_000 * 10.0 / 86_400)
    assert request.areas["europe"].hours == load_profile("office")


def test_how_much_areas_ask_for_is_said_of_them() -> None:
    """By users of areas, which no rate stands beside; it says neither that a trace is replayed nor any rate."""
    demand = json.dumps({"europe": {"users": 200_000, "hours": "office"}})
    few = dict(setting.split("=") for setting in FEW)
    stated = {"workload.rate_per_s": "null", "workload.requests_per_user_per_day": "10", "demand": demand}
    app = opened({"base": WORLD, **few, **stated})
    assert not app.exception and not app.error
    assert "Each area says how much it asks for." in said(app) + str([text.value for text in app.sidebar.caption])


def test_the_answer_is_that_of_the_plan(page: AppTest, found: RegionsPlan) -> None:
    assert not page.exception and not page.error
    assert regions.headline(found) in said(page)
    assert float(values(page)["$ per hour"].removeprefix("$")) == pytest.approx(found.usd_per_hour, rel=0.01)
    assert all(line in said(page) for line in found.assumptions)
    assert "The answer is for these inputs." in [one.value for one in page.sidebar.caption]


def test_a_fleet_opens_as_a_scenario_of_its_own(page: AppTest, found: RegionsPlan) -> None:
    opened_one = page.button(key="world-open-0").click().run()
    assert scenario(opened_one)["prices"]["region"] == found.fleets[0].site.region
    assert not scenario(opened_one)["demand"] and "Headroom" in values(opened_one)


def test_a_scenario_of_one_place_gets_areas_at_a_button() -> None:
    app = press(small(), "by-area")
    assert set(scenario(app)["demand"]) == {"us-east", "europe"} and "Each area for itself" in values(app)


def test_an_uploaded_trace_with_areas_becomes_their_demand(tmp_path: Path) -> None:
    """Rates, days and lengths as recorded; a residency that was said stays; a trace of one place ends the areas."""
    few = dict(setting.split("=") for setting in FEW)
    demand = json.dumps({"germany": {"weight": 1, "residency": ["eu"]}, "japan": {"weight": 1}})
    app = opened({"base": WORLD, **few, "demand": demand})
    raw = Path(trace_of(tmp_path)).read_bytes()
    app = fine(app.file_uploader(key="trace-file").set_value(("rows.csv", raw, "text/csv")).run())
    assert not app.error
    request = load_scenario(scenario(app))
    assert {name: area.rate_per_s * 86_400 for name, area in request.areas.items()} == pytest.approx(
        {"germany": 480.0, "us-east": 960.0}
    )
    assert {kind.name: kind.lengths.mean_input for kind in request.workload.classes} == {
        "germany": 1000,
        "us-east": 300,
    }
    hours = request.areas["germany"].hours
    assert hours is not None and hours.factors == pytest.approx([0.0] * 9 + [3.0] * 8 + [0.0] * 7)
    assert request.areas["germany"].residency == ("eu",)
    assert "Each area for itself" in values(app)
    one_place = (DATA / "traces" / "azure_2023_conv_head.csv").read_bytes()
    app = fine(app.file_uploader(key="trace-file").set_value(("head.csv", one_place, "text/csv")).run())
    assert not app.error and not scenario(app)["demand"] and load_scenario(scenario(app)).workload.rate_per_s > 0


@pytest.mark.parametrize(
    ("hours", "areas", "words"), [(24, ("germny", "us-east"), "germany"), (18, ("DE", "us-east"), "never recorded")]
)
def test_a_trace_of_unknown_areas_or_half_a_day_is_refused_and_changes_nothing(
    tmp_path: Path, hours: int, areas: tuple[str, str], words: str
) -> None:
    content = content_of(name=WORLD)
    app = AppTest.from_function(_details, default_timeout=30)
    app.session_state["scenario"], app.session_state["past"], app.session_state["complaint"] = content, [], None
    raw = Path(trace_of(tmp_path, areas, hours)).read_bytes()
    app = fine(app.run().file_uploader(key="trace-file").set_value(("rows.csv", raw, "text/csv")).run())
    assert words in str(app.session_state["complaint"])
    assert scenario(app) == content


def _details() -> None:
    from planner.web import inputs_traffic

    inputs_traffic.show_details()


def test_every_request_of_an_hour_is_drawn_once(found: RegionsPlan) -> None:
    rows = demands.route_rows(found)
    for area, rates in found.rates_per_s.items():
        for hour, rate in enumerate(rates):
            here = [row for row in rows if (row["area"], row["hour"]) == (area, hour)]
            assert sum(row["rate_per_s"] for row in here) == pytest.approx(rate)
            assert sum(row["to_band"] - row["from_band"] for row in here) == pytest.approx(demands.AREA_SHARE)
    assert sum(row["share"] for row in demands.map_rows(found, results.hardware_for(found.request))) == pytest.approx(
        3.0
    )
    assert is_json(demands.route_chart(found))
    assert is_json(demands.world_map(found, results.hardware_for(found.request)))
