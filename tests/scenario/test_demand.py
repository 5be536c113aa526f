"""Demand by area in a scenario: rates by clocks of their own, and what is refused."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from planner.core import InputError
from planner.fleet import plan, plan_regions
from planner.scenario import (
    build_request,
    demand_of_trace,
    load_scenario,
    read_scenario,
    scenario_of_region,
    scenario_of_text,
    scenario_text,
)
from planner.traffic import load_profile, read_trace

WORLD = "global-chat-llama-70b"


def changed(**demand: Any) -> dict[str, Any]:
    content = read_scenario(WORLD)[0].model_dump(mode="json", exclude_unset=True)
    content["demand"] = demand
    return content


def test_weights_share_out_the_rate_of_the_workload() -> None:
    request = load_scenario(WORLD, ["workload.rate_per_s=90"])
    assert {name: area.rate_per_s for name, area in request.areas.items()} == pytest.approx(
        {"us-east": 40.0, "europe": 30.0, "japan": 20.0}
    )


def test_users_send_what_workload_says_that_a_user_does() -> None:
    """20,000 people with 10 requests a day are 200,000 / 86,400 s; sessions count their requests."""
    content = changed(europe={"users": 20_000}, **{"us-east": {"users": 10_000}})
    content["workload"] |= {"rate_per_s": None, "requests_per_user_per_day": 10.0}
    request = load_scenario(content)
    assert request.users == 30_000
    assert {name: area.rate_per_s for name, area in request.areas.items()} == pytest.approx(
        {"europe": 200_000 / 86_400, "us-east": 100_000 / 86_400}
    )
    per_turn = {"input_tokens": 100, "output_tokens": 50}
    sessions = {"turns": 4, "turn_count": "fixed", "per_turn": per_turn}
    content["workload"] = {"sessions": sessions, "sessions_per_user_per_day": 2.0}
    assert load_scenario(content).areas["europe"].rate_per_s == pytest.approx(20_000 * 2 * 4 / 86_400)


def test_countries_count_as_of_the_area_they_are_in() -> None:
    """One profile of all, by the clock of each area; Austria and Spain are both of europe."""
    content = changed(DE={"weight": 2}, AT={"weight": 1}, Spain={"weight": 1}, japan={"weight": 4})
    request = load_scenario({**content, "profile": "office"})
    assert {name: area.rate_per_s for name, area in request.areas.items()} == pytest.approx(
        {"germany": 11.25, "europe": 11.25, "japan": 22.5}
    )
    assert {area.hours for area in request.areas.values()} == {load_profile("office")}


def trace_of(folder: Path, areas: tuple[str, str] = ("DE", "us-east"), hours: int = 24) -> str:
    """A request a minute from midnight UTC: from 8:00 to 16:00 of the first area, of 1000 tokens, else of the other."""
    start, rows = datetime(2026, 1, 1, tzinfo=UTC), ["time,region,input_tokens,output_tokens"]
    for minute in range(60 * hours):
        at = start + timedelta(minutes=minute)
        area, tokens = (areas[0], 1000) if 8 <= at.hour < 16 else (areas[1], 300)
        rows.append(f"{at.isoformat()},{area},{tokens},100")
    (folder / "rows.csv").write_text("\n".join(rows), encoding="utf-8")
    return str(folder / "rows.csv")


def traced(file: str, *areas: str, **workload: Any) -> dict[str, Any]:
    content = changed(**{area: {"trace": file} for area in areas})
    content["workload"] = workload
    return content


def test_a_trace_with_areas_says_rate_day_and_lengths_of_each(tmp_path: Path) -> None:
    request = load_scenario(traced(trace_of(tmp_path), "germany", "us-east"))
    germany, east = request.areas["germany"], request.areas["us-east"]
    assert germany.rate_per_s == pytest.approx(8 * 60 / 86_400)
    assert east.rate_per_s == pytest.approx(16 * 60 / 86_400)
    assert germany.hours is not None and east.hours is not None
    assert germany.hours.factors == pytest.approx([0.0] * 9 + [3.0] * 8 + [0.0] * 7)  # an hour ahead of UTC
    assert east.hours.factors == pytest.approx([1.5] * 3 + [0.0] * 8 + [1.5] * 13)  # five behind
    assert {kind.name: kind.lengths.mean_input for kind in request.workload.classes} == {
        "germany": 1000,
        "us-east": 300,
    }
    assert request.profile is not None
    assert request.profile.factors == pytest.approx([1.0] * 24)


def test_lengths_and_hours_of_the_scenario_go_before_those_of_a_trace(tmp_path: Path) -> None:
    file = trace_of(tmp_path, hours=18)  # no whole day, which is needed only where the hours are those of the trace
    content = {**traced(file, "germany", "us-east", lengths="azure-2023-conv"), "profile": "office"}
    request = load_scenario(content)
    assert request.areas["germany"].rate_per_s == pytest.approx(8 * 60 / (18 * 3600))
    assert request.areas["germany"].hours == load_profile("office")
    assert [kind.name for kind in request.workload.classes] == ["all"]
    with pytest.raises(InputError, match="never recorded"):
        load_scenario(traced(file, "germany", "us-east"))


def test_a_trace_that_names_other_areas_is_refused(tmp_path: Path) -> None:
    file = trace_of(tmp_path)
    with pytest.raises(InputError, match="has rows of germany, us-east"):
        load_scenario(traced(file, "germany"))
    with pytest.raises(InputError, match="demand has germany, japan"):
        load_scenario(traced(file, "germany", "japan"))
    with pytest.raises(InputError, match="germany"):
        load_scenario(traced(trace_of(tmp_path, ("germny", "us-east")), "germany", "us-east"))
    (tmp_path / "bare.csv").write_text("arrival_s,input_tokens,output_tokens\n0,10,10\n9,10,10\n", encoding="utf-8")
    with pytest.raises(InputError, match="add a column area"):
        load_scenario(traced(str(tmp_path / "bare.csv"), "germany"))


def test_what_a_trace_says_of_its_areas_can_be_written_without_it(tmp_path: Path) -> None:
    """The same request as by the file: rates, days, and lengths, which fit into the cells."""
    file = trace_of(tmp_path)
    by_file = load_scenario(traced(file, "germany", "us-east"))
    content = changed(**demand_of_trace(read_trace(file)))
    content["workload"] = {}
    written = load_scenario(content)
    for name, area in by_file.areas.items():
        assert written.areas[name].rate_per_s == pytest.approx(area.rate_per_s)
        assert written.areas[name].hours == area.hours
    means = [
        {kind.name: (kind.share, kind.lengths.mean_input, kind.lengths.mean_output) for kind in one.workload.classes}
        for one in (by_file, written)
    ]
    assert means[0] == {name: pytest.approx(figures) for name, figures in means[1].items()}


def test_a_known_day_goes_before_the_recorded_one(tmp_path: Path) -> None:
    trace = read_trace(trace_of(tmp_path, hours=18))  # of which 18 to 24 h was never recorded
    with pytest.raises(InputError, match="never recorded"):
        demand_of_trace(trace)
    found = demand_of_trace(trace, "office")
    assert [area["rate_per_s"] for area in found.values()] == pytest.approx([8 / 18 / 60, 10 / 18 / 60])
    assert not any("hours" in area for area in found.values())


def test_lengths_of_an_area_go_before_those_of_all() -> None:
    content = changed(uk={"weight": 3, "lengths": {"input_tokens": 9000, "output_tokens": 50}}, japan={"weight": 1})
    content["workload"]["lengths"] = {"input_tokens": 100, "output_tokens": 200}
    kinds = load_scenario(content).workload.classes
    assert {kind.name: (kind.share, kind.lengths.mean_input) for kind in kinds} == {
        "uk": (0.75, 9000),
        "japan": (0.25, 100),
    }


@pytest.mark.parametrize(
    ("workload", "field"),
    [
        ({"lengths": None}, "demand.japan.lengths"),
        ({"lengths": None, "classes": [{"name": "all", "share": 1, "lengths": "azure-2023-conv"}]}, "workload.classes"),
        ({"images": {"size": "640x480"}}, "workload.images"),
    ],
)
def test_lengths_of_some_areas_leave_no_doubt_about_the_others(workload: dict[str, Any], field: str) -> None:
    content = changed(uk={"weight": 3, "lengths": "azure-2023-code"}, japan={"weight": 1})
    content["workload"] |= workload
    with pytest.raises(InputError) as refused:
        load_scenario(content)
    assert refused.value.field == field


def test_rates_of_areas_sum_to_the_rate_of_the_request() -> None:
    content = changed(uk={"rate_per_s": 3.0}, india={"rate_per_s": 2.0})
    del content["workload"]["rate_per_s"]
    assert load_scenario(content).workload.arrivals.rate_per_s == pytest.approx(5.0)


def test_the_day_of_the_world_is_flatter_than_that_of_an_area() -> None:
    """Peaks at different hours: the peak of a sum is at most the sum of the peaks, with as many requests."""
    request = load_scenario(WORLD)
    assert request.profile is not None
    hours = request.areas["japan"].hours
    assert hours is not None
    assert math.fsum(request.profile.factors) == pytest.approx(24.0)
    assert max(request.profile.factors) < max(hours.factors) * 24.0 / math.fsum(hours.factors)


def test_a_plan_of_one_place_says_that_it_is_one() -> None:
    few = ["search.tp=[4]", "search.skus=[h100-sxm]", "prices.provider=GCP", "prices.region=us-east4"]
    found = plan(load_scenario(WORLD, few), simulate=False, alternatives=False)
    assert any("in one place" in line for line in found.warnings)


@pytest.mark.parametrize("access", ["20", "{fixed: {mean_ms: 28, share: 0.6}, mobile: {mean_ms: 70, share: 0.4}}"])
def test_demand_is_written_as_it_is_read(access: str) -> None:
    content = read_scenario(WORLD, [f"demand.japan.access_ms={access}"])[0]
    assert scenario_of_text(scenario_text(content.model_dump(mode="json"))).demand == content.demand


@pytest.mark.parametrize(
    ("demand", "words"),
    [
        ({"frence": {"weight": 1}}, "france"),
        ({"uk": {"weight": 1}, "japan": {"rate_per_s": 1}}, r"demand\.japan"),
        ({"uk": {}}, "rate_per_s, users, weight, trace"),
        ({"uk": {"users": 9, "weight": 1}}, "one of rate_per_s"),
        ({"uk": {"users": 9}}, r"workload\.rate_per_s"),
        ({"US": {"weight": 1}}, "us-east"),
        ({"austia": {"weight": 1}}, "austria"),
        ({"AT": {"weight": 1}, "PL": {"weight": 1, "ttft_s": 1.0}}, r"demand\.PL"),
        ({"uk": {"rate_per_s": 1}}, r"workload\.rate_per_s"),
        ({"uk": {"weight": 1, "hours": "azure-2024-conv-week"}}, "24 factors"),
        ({"uk": {"weight": 1, "hours": "ofice"}}, "hours"),
        ({"uk": {"weight": 1, "access_ms": {"fixed": {"mean_ms": 28, "share": 0.6}}}}, r"demand\.uk\.access_ms"),
    ],
)
def test_what_an_area_may_not_say(demand: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_scenario(changed(**demand))


def test_users_of_whom_nothing_is_known_are_asked_about() -> None:
    content = changed(uk={"users": 9})
    del content["workload"]["rate_per_s"]
    with pytest.raises(InputError, match="requests_per_user_per_day"):
        load_scenario(content)


@pytest.mark.parametrize(
    "more",
    [(), ("demand.japan.lengths=azure-2023-code", "prices.provider=Nebius")],
    ids=["alike", "of each area"],
)
def test_a_fleet_of_a_region_has_a_scenario_that_asks_for_the_same(more: tuple[str, ...]) -> None:
    """Read back, it is the request that the fleet was planned for: rate, day, targets less the way, prices, place."""
    few = ["search.tp=[4]", "search.skus=[h100-sxm]", "workload.rate_per_s=8", *more]
    content, folder = read_scenario(WORLD, few)
    found = plan_regions(build_request(content, folder), simulate=False)
    for fleet in found.fleets:
        own, _ = read_scenario(scenario_of_region(content.model_dump(mode="json", exclude_unset=True), fleet))
        request = build_request(own, folder)
        asked = fleet.plan.request
        assert request.model_copy(update={"workload": asked.workload}) == asked
        assert request.workload.rate_per_s == pytest.approx(asked.workload.rate_per_s)
        assert request.workload.open_arrivals.scv == pytest.approx(asked.workload.open_arrivals.scv)


def test_hours_of_longer_requests_count_as_of_more_of_them(tmp_path: Path) -> None:
    """As many requests in every hour, of 1000 tokens in a third of the hours: these take more of the same fleet."""
    content = traced(trace_of(tmp_path), "germany", "us-east")
    few = ["search.skus=[h100-sxm]", "search.tp=[4]", "growth=700"]
    found = plan_regions(load_scenario(content, few), simulate=False)
    costs = {one.name: one.usd_per_hour for one in found.others}
    assert found.usd_per_hour == pytest.approx(costs["this plan"])
    for fleet in found.fleets:
        profile, kinds = fleet.plan.request.profile, fleet.plan.request.workload.classes
        assert profile is not None
        assert profile.factors[8] > 1.5 > 1.0 > profile.factors[0]
        own = read_scenario(scenario_of_region(content, fleet))[0]
        assert [kind.name for kind in own.workload.classes] == [kind.name for kind in kinds]
    assert all(one.pool_s > 0.0 for one in found.latencies)
    assert len({one.pool_s for one in found.latencies}) == 2
