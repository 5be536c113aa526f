"""What a plan costs and where the money goes, beside its alternatives, other purchase options and hosted APIs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle

import altair as alt

from planner.analysis import ApiBreakEven, PurchaseOffer, api_names, mean_served_per_s, mean_sustained_per_s
from planner.charts.marks import (
    AXIS_HEIGHT_PX,
    BAR_HEIGHT_PX,
    BLUE,
    GREEN,
    GREY,
    LEGEND_HEIGHT_PX,
    ORANGE,
    SKY,
    VERMILLION,
    Row,
    bar_scale,
    category_axis,
    change_words,
    inline_chart,
    layered,
    legend_of,
    line_styles,
    stroke_legend,
    titled,
    words,
)
from planner.core import HOURS_PER_MONTH, percent
from planner.fleet import Alternative, Plan
from planner.optimizer import Objective


def cost_comparison_rows(plan: Plan) -> list[Row]:
    """The plan, then the best fleet of each SKU, of each mode and of other engines; cheapest first, without one last.

    Returns rows with name, kind ("plan", "sku", "mode" or "engine"), fleet (in words), is_feasible, is_chosen (costs
    and serves what the plan does), is_bound (costs at least so much), usd_per_month [USD], usd_per_thousand_requests
    [USD], cost (the one of the two that the bar shows: per month when every fleet serves the same demand, else per
    request), ratio (to the plan's cost) and reason (why there is no fleet). An infeasible plan has only rows without a
    fleet.
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
    kinds = ("plan", "sku", "mode", "engine")
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
    rejections = [rejection for rejection in plan.rejections if name in (rejection.sku, rejection.mode.value)]
    nearest = min(rejections, key=lambda rejection: rejection.ratio, default=None)
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
    """What the plan and the best fleet of each SKU and of each mode cost, as bars; those without a fleet say so."""
    rows = [_alternative_label(row, _is_by_month(plan)) for row in cost_comparison_rows(plan)]
    unit = "USD per month" if _is_by_month(plan) else "USD per 1,000 requests"
    tooltip = [
        alt.Tooltip("title:N", title="Restricted to"),
        alt.Tooltip("fleet:N", title="Fleet"),
        alt.Tooltip("usd_per_month:Q", title="USD per month", format=",.0f"),
        alt.Tooltip("usd_per_thousand_requests:Q", title="USD per 1,000 requests", format=",.4f"),
    ]
    layers = _labelled_bars(rows, category_axis("title", 260), unit, "datum.kind === 'plan'", tooltip)
    how = "by theory; the plan is simulated" if plan.simulated else "by theory"
    title = titled("The plan and its alternatives", f"The best fleet of each SKU, mode and other engine, {how}.")
    height = AXIS_HEIGHT_PX + BAR_HEIGHT_PX * len(rows)
    return layered(layers, title, height, f"Cost of the alternatives in {unit}")


def _labelled_bars(
    rows: Sequence[Row], y: alt.Y, unit: str, highlighted: str, tooltip: list[alt.Tooltip]
) -> list[alt.Chart]:
    """Bars up to each row's `end` with its `label` behind; darker where the Vega expression `highlighted` holds."""
    longest = max((row["end"] for row in rows), default=0.0) or 1.0
    scale = bar_scale(longest, (row["label"] for row in rows))
    x = alt.X("end:Q", title=unit, scale=scale, axis=alt.Axis(format=",~f", tickCount=5))
    color = alt.condition(highlighted, alt.value(BLUE), alt.value(SKY))
    bars = inline_chart(rows).encode(x=x, y=y).mark_bar(height={"band": 0.7}).encode(color=color, tooltip=tooltip)
    return [bars, words(rows, GREY, "left", dx=6).encode(x=x, y=y)]


def _alternative_label(row: Row, is_by_month: bool) -> Row:
    """A row with the name and the end of its bar and the label behind it."""
    titles = {"plan": "{}", "sku": "only {}", "mode": "only {}, any SKU", "engine": "{}, SKUs of the plan"}
    end = row["cost"] if row["is_feasible"] else 0.0
    label = f"${end:,.0f}" if is_by_month else f"${end:,.4f}"
    if not row["is_feasible"]:
        label = "no fleet"
    elif row["kind"] != "plan":
        label += " (as planned)" if row["is_chosen"] else f" ({change_words(row['ratio'] - 1.0)})"
        label = f"at least {label}" if row["is_bound"] else label
    return {**row, "title": titles[row["kind"]].format(row["name"]), "label": label, "end": end}


# --- where the money goes ---------------------------------------------------------------------------------------------

USED, HEADROOM, SPARE, STARTING = "used", "headroom", "spare replicas", "starting up"
"""What a pool's money pays for."""


def pool_cost_rows(plan: Plan) -> list[Row]:
    """What each pool costs, cut into what it pays for; all rows together are the cost of the plan.

    A pool's cost is divided by replicas: those that may fail are "spare replicas", of the others the predicted
    utilisation is "used" and the rest "headroom", which latency targets keep free. What pools do not explain is
    "starting up" (replicas that load their weights while a schedule changes). Utilisation is that of the busiest
    period.

    Returns rows with pool (name), part, usd_per_month [USD], share (of the pool's cost), replicas, gpus. No rows
    without a fleet.
    """
    if plan.cost is None:
        return []
    several = len(plan.deployments) > 1
    rows: list[Row] = []
    for number, planned in enumerate(plan.deployments, start=1):
        for index, pool in enumerate(planned.deployment.pools):
            used = planned.surviving.pools[index].replicas / pool.replicas
            utilisation = min(1.0, planned.predicted.pools[index].utilisation)
            shares = {USED: used * utilisation, HEADROOM: used * (1.0 - utilisation), SPARE: 1.0 - used}
            name = f"{number} " * several + f"{pool.role}: {pool.replicas} x {pool.config.label}"
            usd = planned.pool_usd_per_hour[index] * HOURS_PER_MONTH
            rows += [
                {
                    "pool": name,
                    "part": part,
                    "usd_per_month": usd * share,
                    "share": share,
                    "replicas": pool.replicas,
                    "gpus": pool.gpus,
                }
                for part, share in shares.items()
                if share > 0.0
            ]
    rest = plan.cost.usd_per_month - math.fsum(row["usd_per_month"] for row in rows)
    if rest > 1e-6 * plan.cost.usd_per_month:
        rows.append(
            {"pool": STARTING, "part": STARTING, "usd_per_month": rest, "share": 1.0, "replicas": None, "gpus": None}
        )
    return rows


def pool_cost_chart(plan: Plan) -> alt.LayerChart:
    """What each pool costs a month, used and idle, as bars with the idle share in words."""
    rows = pool_cost_rows(plan)
    parts = [part for part in (USED, HEADROOM, SPARE, STARTING) if any(row["part"] == part for row in rows)]
    colors = {USED: BLUE, HEADROOM: SKY, SPARE: ORANGE, STARTING: VERMILLION}
    pools = list(dict.fromkeys(row["pool"] for row in rows))
    ends = [_pool_end(name, [row for row in rows if row["pool"] == name]) for name in pools]
    longest = max((row["usd_per_month"] for row in ends), default=0.0) or 1.0
    y = category_axis("pool", 220)
    scale = bar_scale(longest, (row["label"] for row in ends))
    x = alt.X("usd_per_month:Q", title="USD per month", scale=scale, axis=alt.Axis(format=",~f", tickCount=5))
    bars = (
        inline_chart([{**row, "order": parts.index(row["part"])} for row in rows])
        .mark_bar(height={"band": 0.7})
        .encode(
            x=x.stack("zero"),
            y=y,
            order="order:Q",
            color=alt.Color(
                "part:N",
                title=None,
                scale=alt.Scale(domain=parts, range=[colors[part] for part in parts]),
                legend=legend_of(parts),
            ),
            tooltip=[
                alt.Tooltip("pool:N", title="Pool"),
                alt.Tooltip("part:N", title="Pays for"),
                alt.Tooltip("usd_per_month:Q", title="USD per month", format=",.0f"),
                alt.Tooltip("share:Q", title="Share of the pool's cost", format=".1%"),
            ],
        )
    )
    text = words(ends, GREY, "left", dx=6).encode(x=x, y=y)
    used = "load at the busiest period" if plan.schedule else "share of the largest stable rate"
    total = plan.cost.usd_per_month if plan.cost else 0.0
    title = titled(
        f"Where ${total:,.0f} a month goes",
        f"Used: {used}. Headroom: kept free for the targets.",
    )
    height = AXIS_HEIGHT_PX + LEGEND_HEIGHT_PX + BAR_HEIGHT_PX * len(pools)
    return layered([bars, text], title, height, "Cost of each pool, used and idle")


def _pool_end(name: str, rows: Sequence[Row]) -> Row:
    usd = math.fsum(row["usd_per_month"] for row in rows)
    idle = math.fsum(row["share"] for row in rows if row["part"] in (HEADROOM, SPARE))
    return {"pool": name, "usd_per_month": usd, "label": f"${usd:,.0f}" + (f" ({percent(idle)} idle)" if idle else "")}


# --- other purchase options -------------------------------------------------------------------------------------------


def purchase_option_rows(offers: Sequence[PurchaseOffer], plan: Plan) -> list[Row]:
    """The fleet under every purchase option, cheapest first, those without a fleet last.

    Returns rows with way (the option by name), is_current (as the plan is bought), is_feasible, usd_per_month [USD],
    usd_per_thousand_requests [USD], difference (to the plan's cost, as a share of it), fleet, unpriced (SKUs of the
    search without a price) and reason (why there is no fleet).
    """
    current_usd = plan.cost.usd_per_month if plan.cost else None
    rows: list[Row] = [
        {
            "way": offer.alternative.name,
            "is_current": offer.alternative.commitments == plan.request.prices.commitments,
            "is_feasible": offer.usd_per_month is not None,
            "usd_per_month": offer.usd_per_month,
            "usd_per_thousand_requests": _per_thousand(offer.usd_per_month, offer.rate_per_s),
            "difference": _change(offer.usd_per_month, current_usd),
            "fleet": offer.fleet,
            "unpriced": ", ".join(offer.alternative.unpriced),
            "reason": offer.reason,
        }
        for offer in offers
    ]
    return sorted(rows, key=lambda row: (not row["is_feasible"], row["usd_per_month"] or 0.0))


def _change(usd: float | None, current_usd: float | None) -> float | None:
    return usd / current_usd - 1.0 if current_usd and usd is not None else None


def _per_thousand(usd_per_month: float | None, rate_per_s: float) -> float | None:
    if usd_per_month is None or rate_per_s <= 0.0:
        return None
    return 1e3 * usd_per_month / (3600.0 * HOURS_PER_MONTH * rate_per_s)


def purchase_option_chart(offers: Sequence[PurchaseOffer], plan: Plan) -> alt.LayerChart:
    """What the fleet costs a month under every purchase option, as bars with the fleet in words."""
    rows = [_purchase_option_label(row) for row in purchase_option_rows(offers, plan)]
    tooltip = [
        alt.Tooltip("way:N", title="Bought"),
        alt.Tooltip("fleet:N", title="Fleet"),
        alt.Tooltip("usd_per_month:Q", title="USD per month", format=",.0f"),
        alt.Tooltip("usd_per_thousand_requests:Q", title="USD per 1,000 requests", format=",.4f"),
        alt.Tooltip("unpriced:N", title="No price listed for"),
        alt.Tooltip("reason:N", title="Why there is no fleet"),
    ]
    layers = _labelled_bars(rows, category_axis("way", 220), "USD per month", "datum.is_current", tooltip)
    title = titled(
        "The same demand, bought in other ways",
        "Darker: the plan. The others are planned anew, by theory.",
    )
    height = AXIS_HEIGHT_PX + BAR_HEIGHT_PX * len(rows)
    return layered(layers, title, height, "Cost by way of buying in USD per month")


def _purchase_option_label(row: Row) -> Row:
    if not row["is_feasible"]:
        return {**row, "label": "no fleet", "end": 0.0}
    change = "as planned" if row["is_current"] else change_words(row["difference"])
    return {**row, "label": f"${row['usd_per_month']:,.0f} ({change}): {row['fleet']}", "end": row["usd_per_month"]}


# --- against hosted APIs ----------------------------------------------------------------------------------------------

SELF_HOSTED = "this fleet"
API_LINE_STYLES = ((ORANGE, [8, 4]), (GREEN, [2, 3]), (VERMILLION, [10, 3, 2, 3]), (SKY, [5, 5]))
"""Colour and dash of one API after another."""
X_MARGIN, Y_MARGIN, Y_LIMIT = 1.12, 1.3, 2.5
"""Ends of the axes over what must be seen; the vertical one at most at `Y_LIMIT` times the fleet's cost. Choices."""


def api_cost_rows(plan: Plan, apis: Sequence[ApiBreakEven]) -> list[Row]:
    """Cost against demand: the fleet of the plan, paid whether used or not, and every API, paid per request.

    Equations: fleet USD/month = its cost, up to the rate it sustains; API USD/month = rate x 3600 x 730 x USD per
    request; break-even where the two are equal (`planner.analysis.api_prices.break_even_rate_per_s`).

    Returns rows with option (`SELF_HOSTED` or the provider), point ("start", "break-even", "planned", "end"),
    rate_per_s [1/s] (mean), usd_per_month [USD] and within (the fleet sustains that rate). An API that is cheaper at
    any rate the fleet sustains has no break-even row.
    """
    if plan.cost is None:
        return []
    planned, sustained = mean_served_per_s(plan), mean_sustained_per_s(plan)
    end = X_MARGIN * max(planned, sustained)
    usd = plan.cost.usd_per_month
    rows = [_api_point(SELF_HOSTED, point, rate, usd, sustained) for point, rate in _fleet_points(planned, sustained)]
    for api, name in zip(apis, api_names(apis), strict=True):
        usd_per_rate = api.api_usd_per_thousand_requests / 1e3 * 3600.0 * HOURS_PER_MONTH
        points = [("start", 0.0), ("planned", planned), ("end", end)]
        if api.fleet_break_even_per_s <= sustained:
            points.append(("break-even", api.fleet_break_even_per_s))
        by_rate = sorted(points, key=lambda point: point[1])
        rows += [_api_point(name, point, rate, usd_per_rate * rate, sustained) for point, rate in by_rate]
    return rows


def _fleet_points(planned: float, sustained: float) -> list[tuple[str, float]]:
    return [("start", 0.0), ("planned", planned), ("end", max(planned, sustained))]


def _api_point(option: str, point: str, rate: float, usd: float, sustained: float) -> Row:
    within = rate <= sustained * (1.0 + 1e-9)
    return {"option": option, "point": point, "rate_per_s": rate, "usd_per_month": usd, "within": within}


def api_cost_chart(plan: Plan, apis: Sequence[ApiBreakEven]) -> alt.LayerChart:
    """USD per month against demand: self-hosting flat until the fleet is full, APIs by request, break-even marked."""
    rows = api_cost_rows(plan, apis)
    styles = {SELF_HOSTED: (BLUE, [1, 0])} | dict(zip(api_names(apis), cycle(API_LINE_STYLES), strict=False))
    usd = plan.cost.usd_per_month if plan.cost else 0.0
    right = max((row["rate_per_s"] for row in rows), default=1.0)
    asked = max((row["usd_per_month"] for row in rows if row["point"] == "planned"), default=usd)
    top = min(Y_MARGIN * asked, Y_LIMIT * usd) or 1.0
    x = alt.X(
        "rate_per_s:Q",
        title="Demand (requests/s, mean)",
        scale=alt.Scale(domain=[0.0, right], nice=False),
        axis=alt.Axis(tickCount=8),
    )
    y = alt.Y(
        "usd_per_month:Q",
        title="USD per month",
        scale=alt.Scale(domain=[0.0, top], nice=False),
        axis=alt.Axis(format=",~f", tickCount=6),
    )
    color, dash = line_styles("option", styles, stroke_legend(list(styles), symbolStrokeWidth=2.5))
    tooltip = [
        alt.Tooltip("option:N", title="Option"),
        alt.Tooltip("point:N", title="Point"),
        alt.Tooltip("rate_per_s:Q", title="Requests/s", format=",.4~r"),
        alt.Tooltip("usd_per_month:Q", title="USD per month", format=",.0f"),
    ]
    lines = inline_chart(rows).mark_line(clip=True, strokeWidth=2.5).encode(x=x, y=y, color=color, strokeDash=dash)
    points = [row for row in rows if row["point"] in ("planned", "break-even")]
    marks = inline_chart(points).mark_point(filled=True, size=90, opacity=1, clip=True)
    shape = alt.Shape(
        "point:N", legend=None, scale=alt.Scale(domain=["planned", "break-even"], range=["circle", "diamond"])
    )
    layers = [
        *_plan_marks(plan, right, x),
        lines.encode(tooltip=tooltip),
        marks.encode(x=x, y=y, color=color, shape=shape, tooltip=tooltip),
        *_break_even_labels(rows, x, y),
    ]
    subtitle = "Diamond: break-even. Vertical line: planned rate. Grey: beyond the fleet."
    title = titled("Self-hosting against hosted APIs", subtitle)
    return layered(layers, title, 420, "Cost of self-hosting and of hosted APIs against demand")


def _break_even_labels(rows: Sequence[Row], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """The break-even rates beside their points, left and right in turn, as the points may lie close together."""
    points = sorted((row for row in rows if row["point"] == "break-even"), key=lambda row: float(row["rate_per_s"]))
    layers = []
    for index, row in enumerate(points):
        labelled = [{**row, "label": f"{row['rate_per_s']:,.3g}/s"}]
        text = words(labelled, GREY, "left", 8, -10) if index % 2 else words(labelled, GREY, "right", -8, -10)
        layers.append(text.encode(x=x, y=y))
    return layers


def _plan_marks(plan: Plan, right: float, x: alt.X) -> list[alt.Chart]:
    """The planned rate, and the area in which the fleet would have to grow."""
    planned, sustained = mean_served_per_s(plan), mean_sustained_per_s(plan)
    full = inline_chart([{"rate_per_s": max(planned, sustained), "end": right}])
    rule = inline_chart([{"rate_per_s": planned}]).mark_rule(color=GREY, strokeWidth=1.5)
    return [full.mark_rect(color=GREY, opacity=0.15).encode(x=x, x2="end:Q"), rule.encode(x=x)]
