"""The page of a scenario with `demand` by area of users: where to stand, who is served from where, and what it costs.

It stands in place of the tabs, which are about one fleet; the fleet of each region opens as a scenario of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import streamlit as st

import planner
from hardware_db import load_hardware
from planner import launch
from planner.analysis import headline
from planner.charts import demands
from planner.core import InputError, change, json_text, significant, with_unit
from planner.fleet import RegionsPlan, hardware_for
from planner.report import glossary, regions, regions_to_dict
from planner.scenario import Content, full_content, read_scenario, with_scenarios
from planner.traffic import HOURS, AreaTerms, profiles
from planner.web import bounds, components, fields, plan_tab, results, session

HINTS = glossary.hints_of("regions")
AS_WRITTEN = "as in the file"
"""Hours that are no packaged day."""
_AMOUNTS = ("weight", "rate_per_s", "users")
"""Of which one says how much an area asks for."""
_ACCESS_HINT = (
    "Mean round trip between users and the network, such as 20 ms; of several kinds of lines the share of requests "
    "and the mean of each, such as: fixed 60 % at 28 ms, mobile 40 % at 70 ms."
)
COLUMNS = {
    "weight": ("Weight", 0.001),
    "rate_per_s": ("Requests/s", 0.001),
    "users": ("Users", 1.0),
    "ttft_ms": ("TTFT at most (ms)", 1.0),
}
"""Numbers of an area: label and least value; of weight, rate and users there is the one that the scenario has."""


def show(content: Content, key: str) -> None:
    """The areas, and the plan for them."""
    _areas(content["demand"])
    was_answered = results.is_planned(key)
    request = results.request_of(key)
    bounds.check(content, request)
    hardware = hardware_for(request)
    compute = partial(planner.plan_regions, request, hardware)
    found = results.compute_once((results.REGIONS, key), compute, "Planning over regions")
    if results.is_planned(key) and not was_answered:
        st.rerun()  # what the sidebar says of the answer
    st.markdown(f"#### {components.plain(regions.headline(found))}")
    if not found.feasible:
        components.bullets(found.diagnosis)
        return
    components.metric_cards(_cards(found), "world")
    st.badge("Checked by simulation", icon=":material/check_circle:", color="green")
    components.chart(demands.world_map(found, hardware), demands.map_rows(found, hardware), "Regions", "world-map")
    components.chart(demands.route_chart(found), demands.route_rows(found), "Routes", "world-routes")
    components.tables(regions.tables(found), "world", HINTS)
    _files(content, found)
    with st.expander("What is assumed"):
        components.bullets(found.assumptions)


# --- areas ------------------------------------------------------------------------------------------------------------


def _areas(demand: Mapping[str, Mapping[str, Any]]) -> None:
    """The table of areas, to be edited, added to and taken from; planned at a button."""
    rows = area_rows(demand)
    days = [name for name in profiles.list_profiles() if profiles.profile_info(name).cycle_hours == HOURS]
    config = {
        "area": st.column_config.SelectboxColumn("Area", options=_places(demand), required=True),
        "hours": st.column_config.SelectboxColumn("Hours", options=[*days, AS_WRITTEN]),
        "access": st.column_config.TextColumn("Access network", help=_ACCESS_HINT),
        "residency": st.column_config.TextColumn("Served in", help="Areas, regions or providers; empty: everywhere."),
    }
    for name, (label, least) in COLUMNS.items():
        if name in rows[0]:
            config[name] = st.column_config.NumberColumn(label, min_value=least)
    st.markdown("**Where the users are**")
    with st.form("areas", border=False):
        edited = st.data_editor(
            rows, column_config=config, num_rows="dynamic", hide_index=True, key=f"areas-{results.name_of(repr(rows))}"
        )
        if st.form_submit_button("Plan these areas", icon=":material/calculate:"):
            session.change({"demand": demand_of(edited, demand)})
            st.rerun()


def _places(demand: Mapping[str, object]) -> list[str]:
    """Areas and the countries in them, and what else the scenario calls them."""
    areas = load_hardware().areas
    countries = {country for area in areas for country in area.countries}
    return list(dict.fromkeys([*(area.name for area in areas), *sorted(countries), *demand]))


def area_rows(demand: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The areas of a scenario as rows of the table; weights, rates or users, whichever it has."""
    amount = next((name for name in _AMOUNTS if any(area.get(name) for area in demand.values())), "rate_per_s")
    rows = []
    for name, area in demand.items():
        hours, ttft_s = area.get("hours"), area.get("ttft_s")
        row = {"area": name, "hours": hours if hours is None or isinstance(hours, str) else AS_WRITTEN}
        row[amount] = area.get(amount)
        row |= {"ttft_ms": None if ttft_s is None else 1000.0 * ttft_s, "access": _access_text(area)}
        rows.append(row | {"residency": ", ".join(area.get("residency") or ())})
    return rows


def _access_text(area: Mapping[str, Any]) -> str:
    """The access network of an area in words; as it was typed where that says none."""
    given = area.get("access_ms")
    try:
        return AreaTerms(**({} if given is None else {"access_ms": given})).access_text
    except InputError:
        return str(given)


def demand_of(rows: Iterable[Mapping[str, Any]], before: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The areas of a scenario from rows of the table; what the table does not have is as it was."""
    demand = {}
    for row in rows:
        area = dict(before.get(row["area"], {}))
        area |= {name: row[name] for name in _AMOUNTS if row.get(name) is not None}
        if (access := (row.get("access") or "").strip()) and access != _access_text(area):
            area["access_ms"] = access
        area["hours"] = area.get("hours") if row.get("hours") == AS_WRITTEN else row.get("hours")
        area["ttft_s"] = None if row.get("ttft_ms") is None else row["ttft_ms"] / 1000.0
        area["residency"] = [name.strip() for name in (row.get("residency") or "").split(",") if name.strip()]
        demand[row["area"]] = area
    return demand


# --- the answer -------------------------------------------------------------------------------------------------------


def _cards(plan: RegionsPlan) -> list[components.MetricCard]:
    """Cost, other ways of standing beside it, the longest latency at a user, and CO2."""
    own, *others = plan.others[:3]
    gpus = sum(sum(fleet.plan.gpus.values()) for fleet in plan.fleets)
    cost = headline.dollars(plan.usd_per_hour)
    cards = [components.MetricCard.named("card-world-cost", cost, f"{gpus} GPUs in the largest hours")]
    for other, name in zip(others, ("card-world-alone", "card-world-each"), strict=True):
        usd = headline.dollars(other.usd_per_hour) if other.sites else "-"
        more = change(other.usd_per_hour / own.usd_per_hour - 1.0) if other.sites else "targets do not hold"
        cards.append(components.MetricCard.named(name, usd, more))
    if plan.latencies:
        closest = max(plan.latencies, key=lambda one: one.at_user_s / one.target.threshold_s)
        at_user = with_unit(closest.at_user_s, closest.target.metric)
        limit = with_unit(closest.target.threshold_s, closest.target.metric)
        cards.append(components.MetricCard.named("card-world-latency", at_user, f"of {limit}, {closest.area}"))
    known = [fleet.co2_kg_per_hour for fleet in plan.fleets if fleet.co2_kg_per_hour is not None]
    co2 = f"{significant(sum(known))} kg" if known else "-"
    return [*cards, components.MetricCard.named("card-world-co2", co2, f"known of {len(known)} of {len(plan.fleets)}")]


def _files(content: Content, plan: RegionsPlan) -> None:
    """The answer as a file, and every region's fleet as a scenario that opens here."""
    written = with_scenarios(plan, content)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.download_button(
            **fields.widget("world-json"),
            data=json_text(regions_to_dict(written)),
            file_name=f"{components.slug(plan.request.name) or 'regions'}.json",
        )
        target = st.selectbox(**fields.widget("world-target"), options=list(launch.TARGETS))
        with components.errors_in_place():
            files = plan_tab.zip_bytes(launch.export_regions(plan, target))
            st.download_button(**fields.widget("world-files"), data=files)
    with st.container(horizontal=True):
        for number, fleet in enumerate(written.fleets):
            label = f"Open {fleet.site.name} for {', '.join(fleet.shares)}"
            opened = full_content(read_scenario(fleet.plan.scenario or {})[0])
            look = fields.widget("world-open", key=f"world-open-{number}", label=label)
            st.button(**look, on_click=session.replace_scenario, args=(opened,))
