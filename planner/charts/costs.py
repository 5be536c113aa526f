"""Costs of plans and where the money goes: beside alternatives, other purchase options, hosted APIs, other plans."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import altair as alt

from hardware_db import sku_words
from planner.analysis import ApiBreakEven, CostYear, PurchaseOffer, api_names, headline, mean_served_per_s
from planner.charts.marks import (
    BLUE,
    FRAME_PX,
    GREEN,
    GREY,
    ORANGE,
    SECOND_SUBTITLE_PX,
    SKY,
    VERMILLION,
    Row,
    axis,
    bar_axes,
    bars,
    bars_px,
    change_words,
    colored,
    dots,
    end_labels,
    highlighted,
    inline_chart,
    layered,
    lines,
    present,
    rules,
    series,
    stroke_legend,
    titled,
    tooltip,
    words,
)
from planner.core import HOURS_PER_MONTH, UnknownNameError, money, percent, significant
from planner.fleet import Alternative, Plan
from planner.optimizer import Objective
from planner.scenario import PlanSide, share_of_threshold
from planner.supply import OWNED

NAMES_OF_ALTERNATIVES = {
    **{"plan": "{}", "format": "{}", "context": "{}", "sku": "only {}"},
    **{"mode": "only {}, any SKU", "engine": "{}, SKUs of the plan"},
}
"""Names of the bars by kind, in their order."""


def cost_comparison_rows(plan: Plan) -> list[Row]:
    """The plan, then the best fleet of each SKU, of each mode and of other engines; cheapest first, without one last.

    Returns rows with name, kind (of `NAMES_OF_ALTERNATIVES`), title, fleet (in words), is_feasible, is_chosen
    (costs and serves what the plan does), is_bound (costs at least so much), usd_per_month [USD],
    usd_per_thousand_requests [USD], cost (the one of the two that the bar shows: per month when every fleet serves the
    same demand, else per request), ratio (to the plan's cost) and reason (why there is no fleet). An infeasible plan
    has only rows without a fleet.
    """
    if plan.cost is None or not plan.alternatives:
        search = plan.request.search
        names = [("sku", sku) for sku in search.skus] + [("mode", mode.value) for mode in search.modes]
        return [_cost_row(plan, Alternative(name, kind, "", None, 0.0, False)) for kind, name in dict.fromkeys(names)]
    fleet = headline.fleet_words(plan)
    rate = sum(planned.workload.arrivals.rate_per_s for planned in plan.deployments)
    chosen = Alternative("the plan", "plan", fleet, plan.cost.usd_per_hour, rate, True)
    rows = [_cost_row(plan, alternative) for alternative in (chosen, *plan.alternatives)]
    for row in rows:
        row["ratio"] = row["cost"] / rows[0]["cost"] if row["is_feasible"] else None
    kinds = list(NAMES_OF_ALTERNATIVES)
    return sorted(rows, key=lambda row: (kinds.index(row["kind"]), not row["is_feasible"], row["cost"] or 0.0))


def _cost_row(plan: Plan, alternative: Alternative) -> Row:
    name, usd, rate = alternative.restriction, alternative.usd_per_hour, alternative.rate_per_s
    month = thousand = None
    reason = ""
    if usd is not None and rate > 0.0:
        month, thousand = usd * HOURS_PER_MONTH, 1e3 * usd / (3600.0 * rate)
    else:
        reason = headline.no_fleet_words(plan, name)
    return {
        "name": name,
        "kind": alternative.kind,
        "title": NAMES_OF_ALTERNATIVES[alternative.kind].format(sku_words(name)),
        "fleet": alternative.summary if month is not None else "",
        "is_feasible": month is not None,
        "is_chosen": alternative.is_chosen and month is not None,
        "is_bound": alternative.is_bound and month is not None,
        "usd_per_month": month,
        "usd_per_thousand_requests": thousand,
        "cost": month if _is_by_month(plan) else thousand,
        "ratio": None,
        "reason": reason,
    }


def _is_by_month(plan: Plan) -> bool:
    return plan.request.objective is Objective.MIN_COST


def cost_comparison(plan: Plan) -> alt.LayerChart:
    """Cost of the plan and of the best fleet of each SKU and mode, as bars; those without a fleet say so."""
    is_by_month = _is_by_month(plan)
    rows = [
        {**row, "end": row["cost"] or 0.0, "label": _alternative_label(row, is_by_month)}
        for row in cost_comparison_rows(plan)
    ]
    unit = "USD per month" if is_by_month else "USD per 1,000 requests"
    shown = tooltip("fleet", "usd_per_month", "usd_per_thousand_requests", title="Restricted to")
    how = "by theory; the plan is simulated" if plan.simulated else "by theory"
    title = titled("What would other fleets cost?", f"The best fleet of each SKU, mode and other engine, {how}.")
    axes = bar_axes(rows, "title", "end", unit, format=",~f")
    layers = [bars(rows, axes, highlighted("datum.kind === 'plan'"), shown), end_labels(rows, axes)]
    return layered(layers, title, bars_px(len(rows)), f"Cost of the alternatives in {unit}")


def _alternative_label(row: Row, is_by_month: bool) -> str:
    if not row["is_feasible"]:
        return "no fleet"
    label = f"${row['cost']:,.0f}" if is_by_month else f"${row['cost']:,.4f}"
    if row["kind"] != "plan":
        label += " (as planned)" if row["is_chosen"] else f" ({change_words(row['ratio'] - 1.0)})"
        label = f"at least {label}" if row["is_bound"] else label
    return label


# --- where the money goes ---------------------------------------------------------------------------------------------

USED, FREE, SPARE, STARTING = "used", "kept free", "spare replicas", "starting up"
DARK = "dark"
PART_COLORS = {USED: BLUE, FREE: SKY, SPARE: ORANGE, STARTING: VERMILLION, DARK: GREY}
"""By what a pool's money pays for."""


def pool_cost_rows(plan: Plan) -> list[Row]:
    """Cost of each pool, cut into what it pays for; all rows together are the cost of the plan.

    A pool's cost is divided by replicas: those that may fail are "spare replicas", of the others the predicted
    utilisation is "used" and the rest "kept free" for latency targets. GPUs of one's own that no pool runs
    on are "dark". What is left is "starting up" (replicas that load their weights while a schedule changes).
    Utilisation is that of the busiest period.

    Returns rows with pool (name), part, usd_per_month, start and end [USD] (parts one after another), share (of the
    pool's cost), replicas, gpus. No rows without a fleet.
    """
    if plan.cost is None:
        return []
    rows: list[Row] = []
    for name_of, planned in zip(plan.deployment_names, plan.deployments, strict=True):
        for index, pool in enumerate(planned.deployment.pools):
            used = planned.surviving.pools[index].replicas / pool.replicas
            utilisation = min(1.0, planned.predicted.pools[index].utilisation)
            shares = {USED: used * utilisation, FREE: used * (1.0 - utilisation), SPARE: 1.0 - used}
            name = f"{name_of} {pool.role}: {pool.gpus:,} × {pool.config.words}".strip()
            usd, start = planned.pool_usd_per_hour[index] * HOURS_PER_MONTH, 0.0
            for part, share in shares.items():
                if share > 0.0:
                    row = _part_row(name, part, usd * share, share, start)
                    rows.append(row | {"replicas": pool.replicas, "gpus": pool.gpus})
                    start = row["end"]
    for bought in plan.bought:
        if bought.purchase == OWNED and bought.sku not in plan.gpus:
            usd = bought.usd_per_hour * HOURS_PER_MONTH
            row = _part_row(f"{sku_words(bought.sku)} of your own", DARK, usd, 1.0, 0.0)
            rows.append(row | {"replicas": None, "gpus": round(max(bought.gpus))})
    rest = plan.cost.usd_per_month - math.fsum(row["usd_per_month"] for row in rows)
    if rest > 1e-6 * plan.cost.usd_per_month:
        rows.append(_part_row(STARTING, STARTING, rest, 1.0, 0.0) | {"replicas": None, "gpus": None})
    return rows


def _part_row(pool: str, part: str, usd: float, share: float, start: float) -> Row:
    return {"pool": pool, "part": part, "usd_per_month": usd, "share": share, "start": start, "end": start + usd}


def pool_cost_chart(plan: Plan) -> alt.LayerChart:
    """Cost of each pool a month, used and idle, as bars with the idle share in words."""
    rows = pool_cost_rows(plan)
    ends: dict[str, Row] = {}
    for row in rows:
        idle = ends.get(row["pool"], {"idle": 0.0})["idle"] + row["share"] * (row["part"] in (FREE, SPARE, DARK))
        label = f"${row['end']:,.0f}" + (f" ({percent(idle)} free)" if idle else "")
        ends[row["pool"]] = {"pool": row["pool"], "end": row["end"], "idle": idle, "label": label}
    axes = bar_axes(list(ends.values()), "pool", "end", "USD per month", width_px=220, format=",~f")
    shown = tooltip("pool", "usd_per_month", part="Pays for", share="Share of the pool's cost")
    drawn = bars(rows, axes, colored("part", present(PART_COLORS, rows, "part")), shown, "start")
    used = "load at the busiest period" if plan.schedule else "share of the largest stable rate"
    total = plan.cost.usd_per_month if plan.cost else 0.0
    title = titled(f"Where ${total:,.0f} a month goes", f"Used: {used}. Kept free: for the targets.")
    layers = [drawn, end_labels(list(ends.values()), axes)]
    return layered(layers, title, bars_px(len(ends), legend=True), "Cost of each pool, used and idle")


# --- other purchase options -------------------------------------------------------------------------------------------


def purchase_option_rows(offers: Sequence[PurchaseOffer], plan: Plan) -> list[Row]:
    """The fleet under every purchase option, cheapest first, those without a fleet last.

    Returns rows with way (the option by name), is_current (as the plan is bought), is_feasible, usd_per_month [USD],
    usd_per_thousand_requests [USD], difference (to the plan's cost, as a share of it), fleet, unpriced (SKUs of the
    search without a price) and reason (why there is no fleet).
    """
    own = plan.cost.usd_per_month if plan.cost else None
    rows: list[Row] = []
    for offer in offers:
        usd, requests = offer.usd_per_month, 3600.0 * HOURS_PER_MONTH * offer.rate_per_s
        rows.append(
            {
                "way": offer.alternative.name,
                "is_current": offer.alternative.commitments == plan.request.prices.commitments,
                "is_feasible": usd is not None,
                "usd_per_month": usd,
                "usd_per_thousand_requests": 1e3 * usd / requests if usd is not None and requests > 0.0 else None,
                "difference": usd / own - 1.0 if own and usd is not None else None,
                "fleet": offer.fleet,
                "unpriced": ", ".join(offer.alternative.unpriced),
                "reason": offer.reason,
            }
        )
    return sorted(rows, key=lambda row: (not row["is_feasible"], row["usd_per_month"] or 0.0))


def purchase_option_chart(offers: Sequence[PurchaseOffer], plan: Plan) -> alt.LayerChart:
    """Cost of the fleet a month under every purchase option, as bars with the fleet in words."""
    rows = purchase_option_rows(offers, plan)
    for row in rows:
        row["end"], row["label"] = row["usd_per_month"] or 0.0, "no fleet"
        if row["is_feasible"]:
            change = "as planned" if row["is_current"] else change_words(row["difference"])
            row["label"] = f"${row['usd_per_month']:,.0f} ({change}): {row['fleet']}"
    shown = tooltip("way", "fleet", "usd_per_month", "usd_per_thousand_requests", "unpriced", "reason")
    subtitle = "Darker: the plan. The others are planned anew, by theory."
    axes = bar_axes(rows, "way", "end", "USD per month", width_px=220, format=",~f")
    layers = [bars(rows, axes, highlighted("datum.is_current"), shown), end_labels(rows, axes)]
    title = titled("What does each way of buying cost?", subtitle)
    return layered(layers, title, bars_px(len(rows)), "Cost by way of buying in USD per month")


# --- against hosted APIs ----------------------------------------------------------------------------------------------

SELF_HOSTED = "this fleet"
API_COLOURS, API_DASHES = (ORANGE, GREEN, VERMILLION, SKY), ([8, 4], [2, 3], [10, 3, 2, 3], [5, 5], [14, 3])
"""Of one API after another."""
X_MARGIN, Y_MARGIN, Y_LIMIT = 1.12, 1.3, 2.5
"""Ends of the axes over what must be seen; the vertical one at most at `Y_LIMIT` times the fleet's cost. Choices."""


def api_cost_rows(plan: Plan, apis: Sequence[ApiBreakEven], headroom: float) -> list[Row]:
    """Cost against demand: the fleet of the plan, paid whether used or not, and every API, paid per request.

    Equations: fleet USD/month = its cost, up to the planned demand and its headroom (a share of that); API USD/month =
    rate x 3600 x 730 x USD per request; break-even where the two are equal
    (`planner.analysis.api_prices.break_even_rate_per_s`).

    Returns rows with option (`SELF_HOSTED` or the provider), point ("start", "break-even", "planned", "end"),
    rate_per_s [1/s] (mean), usd_per_month [USD] and within (the fleet serves that rate). An API that is cheaper at
    any rate the fleet serves has no break-even row.
    """
    if plan.cost is None:
        return []
    planned, usd = mean_served_per_s(plan), plan.cost.usd_per_month
    most = planned * (1.0 + max(0.0, headroom))
    points = [(SELF_HOSTED, "start", 0.0, usd), (SELF_HOSTED, "planned", planned, usd), (SELF_HOSTED, "end", most, usd)]
    for api, name in zip(apis, api_names(apis), strict=True):
        usd_per_rate = api.api_usd_per_thousand_requests / 1e3 * 3600.0 * HOURS_PER_MONTH
        rates = [("start", 0.0), ("planned", planned), ("end", X_MARGIN * most)]
        if api.fleet_break_even_per_s <= most:
            rates.append(("break-even", api.fleet_break_even_per_s))
        points += [(name, point, rate, usd_per_rate * rate) for point, rate in sorted(rates, key=lambda one: one[1])]
    names = ("option", "point", "rate_per_s", "usd_per_month")
    rows: list[Row] = [dict(zip(names, point, strict=True)) for point in points]
    return [{**row, "within": row["rate_per_s"] <= most * (1.0 + 1e-9)} for row in rows]


def line_styles(own: str, others: Iterable[str]) -> dict[str, tuple[str, list[int]]]:
    """Colour and dash of the fleet's line and of those of APIs.

    Args:
        own: name of the fleet.
        others: of APIs, in the order of the legend.

    Returns:
        By name; of twenty APIs no two have the same.
    """
    styles = zip(cycle(API_COLOURS), cycle(API_DASHES), strict=False)
    return {own: (BLUE, [1, 0])} | dict(zip(others, styles, strict=False))


def api_cost_chart(plan: Plan, apis: Sequence[ApiBreakEven], headroom: float) -> alt.LayerChart:
    """USD per month against demand: self-hosting flat until the fleet is full, APIs by request, break-even marked."""
    rows = api_cost_rows(plan, apis, headroom)
    styles = line_styles(SELF_HOSTED, api_names(apis))
    usd = plan.cost.usd_per_month if plan.cost else 0.0
    right = max((row["rate_per_s"] for row in rows), default=1.0)
    asked = max((row["usd_per_month"] for row in rows if row["point"] == "planned"), default=usd)
    top = min(Y_MARGIN * asked, Y_LIMIT * usd) or 1.0
    x = axis(alt.X, "rate_per_s", "Demand (requests/s, mean)", [0.0, right], tickCount=8)
    y = axis(alt.Y, "usd_per_month", "USD per month", [0.0, top], format=",~f", tickCount=6)
    look = series("option", styles, stroke_legend(list(styles), symbolStrokeWidth=2.5))
    shown = tooltip("option", "point", "rate_per_s", "usd_per_month")
    planned = mean_served_per_s(plan)
    beyond = [{"rate_per_s": planned * (1.0 + max(0.0, headroom)), "end": right}]
    marked = [row for row in rows if row["point"] in ("planned", "break-even")]
    shapes = alt.Scale(domain=["planned", "break-even"], range=["circle", "diamond"])
    shape = alt.Shape("point:N", legend=None, scale=shapes)
    layers = [
        lines(rows, shown, clip=True, x=x, y=y, **look),
        inline_chart(beyond).mark_rect(color=GREY, opacity=0.15).encode(x=x, x2="end:Q"),
        rules([{"rate_per_s": planned}], x=x),
        dots(marked, shown, size=90, clip=True, x=x, y=y, color=look["color"], shape=shape),
    ]
    evens = sorted((row for row in rows if row["point"] == "break-even"), key=lambda row: float(row["rate_per_s"]))
    for index, row in enumerate(evens):  # left and right in turn, as the points may lie close together
        label = [{**row, "label": f"{row['rate_per_s']:,.3g}/s"}]
        text = words(label, GREY, "left", 8, -10) if index % 2 else words(label, GREY, "right", -8, -10)
        layers.append(text.encode(x=x, y=y))
    subtitle = "Diamond: break-even. Vertical line: planned rate. Grey: beyond the fleet."
    title = titled("Which is cheaper at which demand?", subtitle)
    return layered(layers, title, FRAME_PX, "Cost of self-hosting and of hosted APIs against demand", grows=True)


def cost_year_rows(costs: CostYear) -> list[Row]:
    """Cumulated cost after each month of each way to serve the year.

    Returns rows with option (name of the path), month (from 1; 0 is the start), cumulated_usd and usd_in_month [USD].
    """
    return [
        {"option": path.name, "month": month, "cumulated_usd": total, "usd_in_month": usd}
        for path in costs.paths
        for month, (total, usd) in enumerate(zip((0.0, *path.cumulated_usd), (0.0, *path.usd), strict=True))
    ]


def cost_year_chart(costs: CostYear) -> alt.LayerChart:
    """Cumulated cost over the months, a line for each way to serve them; where two cross, one has paid back."""
    rows = cost_year_rows(costs)
    own, others = costs.paths[0].name, [path.name for path in costs.paths[1:]]
    styles = line_styles(own, others)
    x = axis(alt.X, "month", "Months from now", [0.0, float(len(costs.months))], tickCount=6)
    y = axis(alt.Y, "cumulated_usd", "USD since the start", format="~s", tickCount=6)
    look = series("option", styles, stroke_legend(list(styles), symbolStrokeWidth=2.5))
    shown = tooltip("option", "month", "cumulated_usd", "usd_in_month")
    title = titled("What has been paid after each month?", "Where two lines cross, the cheaper one has paid back.")
    drawn = [lines(rows, shown, x=x, y=y, **look)]
    return layered(drawn, title, FRAME_PX, "Cumulated cost, own against API", grows=True)


# --- plans side by side -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ComparedQuantity:
    """A quantity that plans are compared by.

    Attributes:
        field: of a row of `side_rows`.
        axis: the quantity with its unit.
        kind: "usd", "count" or "share", which decides how it is written.
    """

    field: str
    axis: str
    kind: str = "usd"

    def text(self, value: float) -> str:
        """A value as text."""
        if self.kind == "usd":
            return f"${significant(value) if value >= 1000.0 else money(value)}"
        return percent(value) if self.kind == "share" else f"{value:,.0f}"


COMPARED_QUANTITIES = {
    "Cost per month": ComparedQuantity("usd_per_month", "USD per month"),
    "Cost per million tokens": ComparedQuantity("usd_per_million_tokens", "USD per million input and output tokens"),
    "Cost per million output tokens": ComparedQuantity(
        "usd_per_million_output_tokens", "USD per million output tokens"
    ),
    "Cost per million input tokens": ComparedQuantity("usd_per_million_input_tokens", "USD per million input tokens"),
    "GPUs": ComparedQuantity("gpus", "GPUs", "count"),
    "Tightest target": ComparedQuantity("tightest_share", "Latency over its threshold (%)", "share"),
}
"""By the name that a person chooses them by."""


def side_rows(sides: Sequence[PlanSide], reference: PlanSide | None = None) -> list[Row]:
    """The quantities of every side, in the order given.

    Returns rows with name, is_reference, is_feasible (it has a fleet), fleet, reason, gpus, is_bound (usd_per_month is
    a lower bound), usd_per_month, usd_per_million_tokens, usd_per_million_input_tokens and
    usd_per_million_output_tokens [USD], tightest (name of the target with the least left), tightest_share (its latency
    over its threshold), is_fitted and step_times. Quantities are None without a fleet.
    """
    rows: list[Row] = []
    for side in sides:
        cost = side.plan.cost if side.plan else None
        check = side.tightest if cost else None
        tokens = ("usd_per_million_tokens", "usd_per_million_input_tokens", "usd_per_million_output_tokens")
        rows.append(
            {
                "name": side.name,
                "is_reference": side is reference,
                "is_feasible": cost is not None,
                "fleet": side.fleet,
                "reason": side.reason,
                "gpus": side.gpus if cost else None,
                "is_bound": cost is None and side.usd_per_month is not None,
                "usd_per_month": side.usd_per_month,
                **{name: getattr(cost, name, None) for name in tokens},
                "tightest": check.target.name if check else None,
                "tightest_share": share_of_threshold(check) if check else None,
                "is_fitted": side.is_fitted if cost else None,
                "step_times": side.step_times,
            }
        )
    return rows


def side_chart(rows: Sequence[Row], measure: str, of: str, subtitle: str) -> alt.LayerChart:
    """One quantity of every side as bars; a side without a fleet says so.

    The reference is darker, a plan on GPUs without measurements is outlined, and the labels say both again.

    Args:
        rows: of `side_rows`.
        measure: a name of `COMPARED_QUANTITIES`.
        of: what is compared, for the title: ``"each GPU alone"``.
        subtitle: what the bars hold for.

    Raises UnknownNameError for another name.
    """
    if measure not in COMPARED_QUANTITIES:
        raise UnknownNameError("measure", measure, COMPARED_QUANTITIES)
    quantity = COMPARED_QUANTITIES[measure]
    is_share = quantity.kind == "share"
    reference = next((row[quantity.field] for row in rows if row["is_reference"]), None)
    marks: list[Row] = []
    for row in rows:
        end = row[quantity.field] or 0.0
        at = max(end, 1.0) if is_share and end else end
        marks.append({**row, "end": end, "label_at": at, "label": _side_label(row, quantity, reference)})
    form = "%" if is_share else ",~f"
    most = 1.0 if is_share else 0.0
    axes = bar_axes(marks, "name", "end", quantity.axis, most=most, width_px=190, format=form, labelFlush=True)
    shown = tooltip(
        *("fleet", "gpus", "usd_per_month", "usd_per_million_input_tokens", "usd_per_million_output_tokens"),
        **{"name": "Which", "reason": "Why none", "tightest": "Tightest target", "tightest_share": "Of its threshold"},
        step_times="Step times from",
    )
    color: Any = highlighted("datum.is_reference")
    opacity = alt.condition("datum.is_fitted === false", alt.value(0.25), alt.value(1.0))
    drawn = bars(marks, axes, color, shown, strokeWidth=1.5).encode(stroke=color, fillOpacity=opacity)
    layers = [drawn, end_labels(marks, axes, "label_at")]
    if is_share:
        layers.append(rules([{"end": 1.0}], dashed=True, x=axes.at("end")))
    legend = ["At most 100 % holds the target." if is_share else "Shorter is better."]
    legend += ["Dark: the reference."] * any(row["is_reference"] for row in rows)
    legend += ["Outlined: not all GPUs measured."] * any(row["is_fitted"] is False for row in rows)
    title = titled(f"{measure} of {of}", [subtitle, " ".join(legend)])
    return layered(layers, title, SECOND_SUBTITLE_PX + bars_px(len(rows)), f"{quantity.axis} of {of}")


def _side_label(row: Row, quantity: ComparedQuantity, reference: float | None) -> str:
    value = row[quantity.field]
    if value is None:
        return "not planned closer" if row["is_bound"] else "no fleet"
    label = quantity.text(value)
    if quantity.kind == "share":
        label += f", {row['tightest']}"
    elif reference and not row["is_reference"]:
        label += f" ({change_words(value / reference - 1.0)})"
    label = f"at least {label}" if row["is_bound"] else label
    return f"{label}, not measured" if row["is_fitted"] is False else label
