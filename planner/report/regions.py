"""A plan over regions in a sentence and tables, and as JSON."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from planner.core import Columns, Report, Table, change, duration, money, percent, significant, unit, with_unit
from planner.fleet import RegionFleet, RegionLoss, RegionsPlan, Standing, UserLatency
from planner.report.records import document, plan_to_dict


def headline(plan: RegionsPlan) -> str:
    """Where to stand and what it costs, or why nowhere."""
    if not plan.feasible:
        return f"No regions serve {', '.join(plan.request.areas)}: {'; '.join(plan.diagnosis)}."
    sites = " and ".join(dict.fromkeys(fleet.site.name for fleet in plan.fleets))
    held = "every target holds at the users" if all(one.met for one in plan.latencies) else "NOT all targets hold"
    how = "in simulation" if all(fleet.plan.simulated for fleet in plan.fleets) else "in theory"
    return f"Serve {', '.join(plan.request.areas)} from {sites}: {money(plan.usd_per_hour)} USD/hour; {held} {how}."


def tables(plan: RegionsPlan) -> tuple[Table, ...]:
    """Regions, what users see, who serves whom when, other ways of standing, and the loss of a region."""
    if not plan.feasible:
        return ()
    hours = range(0, 24, 6)
    routes = tuple(
        (area, fleet.site.name, *(percent(shares[hour]) for hour in hours))
        for fleet in plan.fleets
        for area, shares in fleet.shares.items()
    )
    route_columns = ("area", "served from", *(f"{hour:02d}:00" for hour in hours))
    return (
        Table.of("Regions", plan.fleets, _FLEET_COLUMNS, _FLEET_NOTE),
        Table.of("At the users", plan.latencies, _LATENCY_COLUMNS, _LATENCY_NOTE),
        Table("Share of each area served, by hour of UTC", route_columns, routes),
        Table.of("Ways of standing", plan.others, {**_STANDING_COLUMNS, **_against(plan.others[0])}, _STANDING_NOTE),
        Table.of("Loss of a region", plan.losses, _LOSS_COLUMNS, _LOSS_NOTE),
    )


def report(plan: RegionsPlan) -> Report:
    """Everything a plan over regions says."""
    lists = {"Why, and what would help": plan.diagnosis} if not plan.feasible else {}
    notes = {"Assumptions": plan.assumptions}
    return Report(headline(plan), tables(plan), lists, f"Regions: {plan.request.name}", notes)


def regions_to_dict(plan: RegionsPlan) -> dict[str, Any]:
    """A plan over regions as plain JSON data; under `plan` of each region the document of its own plan."""
    found = document(
        "regions",
        {
            "headline": headline(plan),
            "usd_per_hour": plan.usd_per_hour if plan.feasible else None,
            "areas": plan.request.areas,
            "rates_per_s": plan.rates_per_s,
            "latencies": [{**vars(one), "at_user_s": one.at_user_s, "met": one.met} for one in plan.latencies],
            "others": [dataclasses.asdict(one) for one in plan.others],
            "losses": [dataclasses.asdict(one) for one in plan.losses],
            "assumptions": plan.assumptions,
            "diagnosis": plan.diagnosis,
        },
    )
    found["regions"]["fleets"] = [
        {
            "provider": fleet.site.provider,
            "region": fleet.site.region,
            "usd_per_hour": fleet.usd_per_hour,
            "out_usd_per_hour": fleet.out_usd_per_hour,
            "moved": fleet.moved,
            "power_kw": fleet.power_kw,
            "co2_kg_per_hour": fleet.co2_kg_per_hour,
            "shares": {area: list(shares) for area, shares in fleet.shares.items()},
            "plan": plan_to_dict(fleet.plan),
        }
        for fleet in plan.fleets
    ]
    return found


def _parts(one: UserLatency) -> str:
    metric = one.target.metric
    parts = f"{duration(one.network_s, metric)} network + {duration(one.pool_s, metric)} here"
    return f"{with_unit(one.at_user_s, metric)} = {parts}"


def _against(own: Standing) -> Columns[Standing]:
    """How much more a way of standing costs than this plan."""
    return {
        "against this plan": lambda one: (
            change(one.usd_per_hour / own.usd_per_hour - 1.0) if math.isfinite(one.usd_per_hour) else "-"
        )
    }


_FLEET_COLUMNS: Columns[RegionFleet] = {
    "region": lambda one: one.site.name,
    "serves": lambda one: ", ".join(one.shares),
    "fleet in the largest hour": lambda one: one.plan.summary,
    "GPUs": lambda one: str(sum(one.plan.gpus.values())),
    "USD/h": lambda one: money(one.usd_per_hour),
    "transfer out": lambda one: money(one.out_usd_per_hour),
    "kW": lambda one: "-" if one.power_kw is None else significant(one.power_kw),
    "kg CO2/h": lambda one: "-" if one.co2_kg_per_hour is None else significant(one.co2_kg_per_hour),
}
_LATENCY_COLUMNS: Columns[UserLatency] = {
    "area": lambda one: one.area,
    "served from": lambda one: one.site,
    "of its requests": lambda one: percent(one.share),
    "target": lambda one: f"p{100 * one.target.percentile:g} {one.target.metric.value.upper()}",
    "at the user": _parts,
    "at most": lambda one: f"{duration(one.target.threshold_s, one.target.metric)} {unit(one.target.metric)}",
    "met": lambda one: "yes" if one.met else "NO",
}
_STANDING_COLUMNS: Columns[Standing] = {
    "way": lambda one: one.name,
    "regions": lambda one: ", ".join(one.sites) or "none holds the targets",
    "USD/h": lambda one: money(one.usd_per_hour) if math.isfinite(one.usd_per_hour) else "-",
}
_LOSS_COLUMNS: Columns[RegionLoss] = {
    "lost": lambda one: one.site,
    "survives": lambda one: "yes" if one.survives else "degraded" if one.survives_degraded else "no",
    "still served": lambda one: ", ".join(f"{area} {percent(share)}" for area, share in one.kept.items()),
    "degraded": lambda one: ", ".join(f"{area} {percent(share)}" for area, share in one.kept_degraded.items()),
    "USD/h more without it": lambda one: (
        money(one.more_usd_per_hour) if math.isfinite(one.more_usd_per_hour) else "targets hold nowhere else"
    ),
    "USD/h to survive it": lambda one: money(one.spare_usd_per_hour) if math.isfinite(one.spare_usd_per_hour) else "-",
}
_FLEET_NOTE = (
    "Mean over the day of cost, of it transfer out, power (GPUs at their TDP, times the PUE) and its CO2; -: not known."
)
_LATENCY_NOTE = "In the busiest hour of the region. Network: what the way adds at that percentile."
_STANDING_NOTE = (
    "By the program of all regions, which plans none closer: compare them with one another. Every area for itself: "
    "what it costs more, serving one another's peaks saves. Any regions: the least, to which more regions would come; "
    "no distance: if the way took no time, what keeping pools apart costs."
)
_LOSS_NOTE = (
    "Survives: in simulation too, where the plan was simulated. Still served within every target by GPUs that the "
    "other regions hold in their largest hour, as much in all as they can, in the worst hour; degraded: with TTFT and "
    "E2E twice as long. More without it: least cost of standing elsewhere, by the program. To survive it: GPUs held "
    "all day besides."
)
