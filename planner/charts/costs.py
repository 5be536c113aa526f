"""What the plan and its alternatives cost, as bars."""

from __future__ import annotations

import altair as alt

from planner.charts.marks import (
    AXIS_HEIGHT_PX,
    BAR_HEIGHT_PX,
    BLUE,
    GREY,
    SKY,
    Row,
    inline_chart,
    layered,
    titled,
    words,
)
from planner.optimizer import Objective
from planner.planning import HOURS_PER_MONTH, Alternative, Plan


def cost_comparison_rows(plan: Plan) -> list[Row]:
    """The plan, then the best fleet of each SKU, then of each mode; cheapest first, those without a fleet last.

    Returns rows with name, kind ("plan", "sku" or "mode"), fleet (in words), is_feasible, is_chosen (costs and serves
    what the plan does), usd_per_month [USD], usd_per_thousand_requests [USD], cost (the one of the two that the bar
    shows: by the month when every fleet serves the same demand, else by the request), ratio (to the plan's cost) and
    reason (why there is none). An infeasible plan has only rows without a fleet.
    """
    if plan.cost is None or not plan.alternatives:
        rows = [_fleetless_row(plan, "sku", sku) for sku in dict.fromkeys(plan.request.search.skus)]
        return rows + [_fleetless_row(plan, "mode", mode.value) for mode in dict.fromkeys(plan.request.search.modes)]
    fleet = " + ".join(f"{count} x {sku}" for sku, count in plan.gpus.items())
    rate = sum(planned.workload.arrivals.rate_per_s for planned in plan.deployments)
    chosen = Alternative("the plan", "plan", fleet, plan.cost.usd_per_hour, rate, True)
    rows = [_cost_row(plan, alternative) for alternative in (chosen, *plan.alternatives)]
    own_cost = rows[0]["cost"]
    for row in rows:
        row["ratio"] = row["cost"] / own_cost if row["is_feasible"] else None
    kinds = ("plan", "sku", "mode")
    return sorted(rows, key=lambda row: (kinds.index(row["kind"]), not row["is_feasible"], row["cost"] or 0.0))


def _cost_row(plan: Plan, alternative: Alternative) -> Row:
    if alternative.usd_per_hour is None or alternative.rate_per_s <= 0.0:
        return _fleetless_row(plan, alternative.kind, alternative.restriction)
    per_month = alternative.usd_per_hour * HOURS_PER_MONTH
    per_thousand = 1e3 * alternative.usd_per_hour / (3600.0 * alternative.rate_per_s)
    return {
        "name": alternative.restriction,
        "kind": alternative.kind,
        "fleet": alternative.summary,
        "is_feasible": True,
        "is_chosen": alternative.is_chosen,
        "is_bound": alternative.is_bound,
        "usd_per_month": per_month,
        "usd_per_thousand_requests": per_thousand,
        "cost": per_month if _is_by_month(plan) else per_thousand,
        "reason": "",
    }


def _is_by_month(plan: Plan) -> bool:
    return plan.request.objective is Objective.MIN_COST


def _fleetless_row(plan: Plan, kind: str, name: str) -> Row:
    found = [item for item in plan.rejections if name in (item.sku, item.mode.value)]
    nearest = min(found, key=lambda item: item.ratio, default=None)
    return {
        "name": name,
        "kind": kind,
        "fleet": "",
        "is_feasible": False,
        "is_chosen": False,
        "is_bound": False,
        "usd_per_month": None,
        "usd_per_thousand_requests": None,
        "cost": None,
        "ratio": None,
        "reason": nearest.reason if nearest else "none meets the targets within the limits",
    }


def cost_comparison(plan: Plan) -> alt.LayerChart:
    """What the plan and the best fleet of each SKU and of each mode cost, as bars; what cannot be done is named."""
    rows = [_labelled(row, _is_by_month(plan)) for row in cost_comparison_rows(plan)]
    unit = "USD per month" if _is_by_month(plan) else "USD per 1,000 requests"
    longest = max((row["end"] for row in rows), default=0.0) or 1.0
    y = alt.Y("title:N", title=None, sort=None, axis=alt.Axis(labelLimit=260, labelOverlap=False, domain=False))
    domain = alt.Scale(domain=[0.0, 1.45 * longest], nice=False)
    x = alt.X("end:Q", title=unit, scale=domain, axis=alt.Axis(format=",~f", tickCount=5))
    base = inline_chart(rows).encode(x=x, y=y)
    bars = base.mark_bar(height={"band": 0.7}).encode(
        color=alt.condition("datum.kind === 'plan'", alt.value(BLUE), alt.value(SKY)),
        tooltip=[
            alt.Tooltip("title:N", title="Restricted to"),
            alt.Tooltip("fleet:N", title="Fleet"),
            alt.Tooltip("usd_per_month:Q", title="USD per month", format=",.0f"),
            alt.Tooltip("usd_per_thousand_requests:Q", title="USD per 1,000 requests", format=",.4f"),
        ],
    )
    text = words(rows, GREY, "left", dx=6).encode(x=x, y=y)
    title = titled(
        "Cost of the plan and of the best fleet of each SKU and mode",
        "The plan is simulated, the others are from theory alone.",
    )
    height = AXIS_HEIGHT_PX + BAR_HEIGHT_PX * len(rows)
    return layered([bars, text], title, height, f"Cost of the alternatives in {unit}")


def _labelled(row: Row, is_by_month: bool) -> Row:
    titles = {"plan": "{}", "sku": "only {}", "mode": "only {}, any SKU"}
    end = row["cost"] if row["is_feasible"] else 0.0
    label = f"${end:,.0f}" if is_by_month else f"${end:,.4f}"
    if not row["is_feasible"]:
        label = "no fleet"
    elif row["kind"] != "plan":
        change = round(row["ratio"] - 1.0, 2) + 0.0  # no minus zero
        label += " (as planned)" if row["is_chosen"] else f" ({change:+.0%})"
        label = f"at least {label}" if row["is_bound"] else label
    return {**row, "title": titles[row["kind"]].format(row["name"]), "label": label, "end": end}
