"""The fleet as a picture: servers as boxes, GPUs as squares, replicas as frames, the KV link as an arrow.

A role has a colour and a letter. Positions are pixels of a picture that is at most `WIDEST_PX` wide and shrinks with
the page (the signal `width` of Vega).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, Literal, NamedTuple

import altair as alt

from planner.analysis import fleet_words
from planner.charts.marks import BLUE, GREEN, GREY, ORANGE, Row, inline_chart, layered, titled, tooltip
from planner.core import number_of, significant
from planner.fleet import Plan, PlannedDeployment
from planner.report import encoder_words
from planner.serving import Pool, Role

BOX_LIMIT, BOX_LIMIT_OF_SEVERAL = 40, 24
"""Most servers drawn of one deployment and of several; beyond that, equal ones become one box. Choices."""
WIDEST_PX = 780
"""Width of the picture at most; it shrinks on a narrower page."""
SQUARE_PX, SIDE_PX, PAD_PX, GAP_PX = 22, 17, 4, 10
"""Pitch and size of GPUs, margin of a server around them, gap between servers and deployments."""
DEPLOYMENT_GAP_PX = 36
"""Gap between deployments that stand beside one another."""
ARROW_PX = 134
"""Room between a prefill and a decode pool."""
HEADING_PX = 42
"""Height of the two lines above a pool."""
NAMED_SKUS = 2
"""Most SKUs named in the title."""
LETTER_PX = 7.6
"""Width of a letter of a heading: a little more than the average, so that headings never overlap. A choice."""

ROLE_LETTERS = {Role.PREFILL: "P", Role.DECODE: "D", Role.MIXED: "M"}
ROLE_COLORS = {Role.PREFILL: ORANGE, Role.DECODE: BLUE, Role.MIXED: GREEN}
LETTER_COLORS = {Role.PREFILL: "#1A1A1A", Role.DECODE: "#FFFFFF", Role.MIXED: "#1A1A1A"}
"""Of letters on the role's colour: contrast of at least 5 to 1."""


# --- data -----------------------------------------------------------------------------------------------------------


def fleet_rows(plan: Plan) -> list[Row]:
    """Every GPU of every server drawn; in a fleet of more than `BOX_LIMIT` servers, one stands for all that are equal.

    Returns rows with deployment (number from 1), service, role, sku (id), name (as its vendor calls it), tp, unit
    (number from 1 in its pool: a server, or the servers of one larger replica), server (number from 1 in its unit),
    alike (units that this one stands for), gpu (number from 1 in its server), replica (number from 1 in its pool; None
    for an unused GPU of the server) and is_used. An infeasible plan has none.
    """
    fold_limit = _fold_limit(plan)
    return [
        row
        for number, planned in enumerate(plan.deployments, start=1)
        for pool in planned.deployment.pools
        for row in _pool_rows(number, planned.service, pool, fold_limit)
    ]


def _fold_limit(plan: Plan) -> int:
    """Most units of a pool that are drawn one by one, so that there are not too many boxes."""
    pools = [pool for planned in plan.deployments for pool in planned.deployment.pools]
    boxes = BOX_LIMIT if len(plan.deployments) == 1 else BOX_LIMIT_OF_SEVERAL
    for fold_limit in (boxes, 12, 6, 3):
        if sum(len(unit.servers) for pool in pools for unit in _units(pool, fold_limit)) <= boxes:
            return fold_limit
    return 1


Server = tuple[int | None, ...]
"""The replica on each GPU of a server, None for none."""


class DrawnUnit(NamedTuple):
    """Servers that are drawn together: one, or those of one replica that is larger.

    Attributes:
        servers: of the unit.
        alike: units that this one stands for, itself included.
    """

    servers: tuple[Server, ...]
    alike: int


def _units(pool: Pool, fold_limit: int) -> list[DrawnUnit]:
    """Servers of a pool by unit; of more than `fold_limit` equal units one stands for all.

    Replicas fill servers one after the other; none straddles two unless it is larger than one (the count of
    `PlannedDeployment.nodes`).
    """
    gpus, node = pool.config.parallelism.gpus, pool.config.sku.node.gpus
    if gpus > node:
        pieces = [min(node, gpus - start) for start in range(0, gpus, node)]
        count = pool.replicas if pool.replicas <= fold_limit else 1
        return [
            DrawnUnit(tuple(_server([number] * piece, node) for piece in pieces), pool.replicas // count)
            for number in range(1, count + 1)
        ]
    each = node // gpus
    full, rest = divmod(pool.replicas, each)
    drawn = full if full + (rest > 0) <= fold_limit else min(full, 1)
    firsts = [number * each + 1 for number in range(drawn)]
    units = [DrawnUnit((_server_of_replicas(first, each, gpus, node),), full // drawn) for first in firsts]
    if rest:
        units.append(DrawnUnit((_server_of_replicas(full * each + 1, rest, gpus, node),), 1))
    return units


def _server_of_replicas(first: int, replicas: int, gpus: int, node: int) -> Server:
    return _server([first + place // gpus for place in range(replicas * gpus)], node)


def _server(used: Sequence[int], node: int) -> Server:
    return (*used, *([None] * (node - len(used))))


def _pool_rows(number: int, service: str, pool: Pool, fold_limit: int) -> Iterator[Row]:
    for number_in_pool, unit in enumerate(_units(pool, fold_limit), start=1):
        for number_in_unit, server in enumerate(unit.servers, start=1):
            for gpu, replica in enumerate(server, start=1):
                yield {
                    "deployment": number,
                    "service": service,
                    "role": pool.role.value,
                    "sku": pool.config.sku.id,
                    "name": pool.config.sku.short_name,
                    "tp": pool.config.parallelism.tp,
                    "unit": number_in_pool,
                    "server": number_in_unit,
                    "alike": unit.alike,
                    "gpu": gpu,
                    "replica": replica,
                    "is_used": replica is not None,
                }


# --- geometry -------------------------------------------------------------------------------------------------------


@dataclass
class Drawing:
    """Marks with their places [px]; x from the left, y from the top.

    Attributes:
        gpus: squares, rows of `fleet_rows` with x, y, letter, color and ink.
        servers: boxes: x, y, x2, y2.
        frames: around the GPUs of a replica in a server: the same and color.
        links: lines between the servers of one replica: x, y, x2, color.
        texts: label, x, y, kind ("heading", "line", "count" or "link").
        arrows: x, y, x2 and what a tooltip says.
        width: of all.
        height: of all.
    """

    gpus: list[Row]
    servers: list[Row]
    frames: list[Row]
    links: list[Row]
    texts: list[Row]
    arrows: list[Row]
    width: float = 0.0
    height: float = 0.0


def drawing(plan: Plan) -> Drawing:
    """The marks of `fleet_rows` with their places in the picture [px]."""
    whole = Drawing([], [], [], [], [], [])
    rows = fleet_rows(plan)
    left = top = 0.0
    for number, planned in enumerate(plan.deployments, start=1):
        deployment = _draw_deployment(plan, planned, [row for row in rows if row["deployment"] == number])
        if left and left + deployment.width > WIDEST_PX:
            left, top = 0.0, whole.height + 2 * GAP_PX
        _add_drawing(whole, deployment, left, top)
        left += deployment.width + DEPLOYMENT_GAP_PX
    return whole


def _add_drawing(whole: Drawing, added: Drawing, left: float, top: float) -> None:
    """Add a drawing to another one, its corner at `left` and `top`."""
    for name in ("gpus", "servers", "frames", "links", "texts", "arrows"):
        ends = {"x": left, "x2": left, "y": top, "y2": top}
        moved = [
            {**row, **{end: row[end] + by for end, by in ends.items() if end in row}} for row in getattr(added, name)
        ]
        getattr(whole, name).extend(moved)
    whole.width = max(whole.width, left + added.width)
    whole.height = max(whole.height, top + added.height)


def _draw_deployment(plan: Plan, planned: PlannedDeployment, rows: list[Row]) -> Drawing:
    """The pools of one deployment beside one another."""
    drawn = Drawing([], [], [], [], [], [])
    pools = planned.deployment.pools
    room = (WIDEST_PX - ARROW_PX * (len(pools) - 1)) / len(pools)
    left = 0.0
    for index, pool in enumerate(pools):
        pool_rows = [row for row in rows if row["role"] == pool.role.value]
        lines = _heading(plan, planned, index)
        for line, (text, kind) in enumerate(zip(lines, ("heading", "line"), strict=True)):
            drawn.texts.append({"label": text, "x": left, "y": 8.0 + 18 * line, "kind": kind})
        right, end = _draw_servers(drawn, pool, pool_rows, left, HEADING_PX, room)
        right = max(right, left + LETTER_PX * len(lines[0]), left + 0.82 * LETTER_PX * len(lines[1]))
        drawn.width, drawn.height = max(drawn.width, right), max(drawn.height, end)
        if index == 0 and len(pools) == 2:
            _draw_arrow(drawn, planned, right, HEADING_PX + _server_px(pool)[1] / 2)
            left = right + ARROW_PX
    return drawn


def _heading(plan: Plan, planned: PlannedDeployment, index: int) -> tuple[str, str]:
    """The two lines over a pool: ``Prefill: 9 × MI300X`` and ``9 replicas of TP1, 2 servers``."""
    pool = planned.deployment.pools[index]
    number = plan.deployments.index(planned) + 1
    several = f"{number} · " if len(plan.deployments) > 1 else ""
    model = f"{planned.service}, " if index == 0 and len({other.service for other in plan.deployments}) > 1 else ""
    shape = pool.config.parallelism.label
    count = f"{pool.gpus:,} × {pool.config.sku.short_name}"
    role = pool.role.value if model else pool.role.value.capitalize()
    servers = number_of(planned.nodes[index], "server")
    return f"{several}{model}{role}: {count}", (
        f"{number_of(pool.replicas, 'replica')} of {shape}{encoder_words(pool)}, {servers}"
    )


def _columns(pool: Pool) -> int:
    """GPUs side by side in a server."""
    gpus = pool.config.sku.node.gpus
    return min(gpus, 4 if gpus <= 8 else 8 if gpus <= 32 else 12)


def _server_px(pool: Pool) -> tuple[float, float]:
    """Width and height of a server."""
    columns = _columns(pool)
    lines = 1 + max(row for _, row in _cells(pool))
    return 2 * PAD_PX + SQUARE_PX * columns, 2 * PAD_PX + SQUARE_PX * lines


def _cells(pool: Pool) -> list[tuple[int, int]]:
    """Column and row of each GPU of a server: those of one replica in a block, the rest where there is room."""
    node, columns = pool.config.sku.node.gpus, _columns(pool)
    gpus = min(pool.config.parallelism.gpus, node)
    wide = max(size for size in range(1, columns + 1) if gpus % size == 0)
    wide = wide if wide > 1 or gpus == 1 else min(gpus, columns)
    high, beside = math.ceil(gpus / wide), columns // wide
    cells = []
    for index in range(node // gpus * gpus):
        block, inside = divmod(index, gpus)
        cells.append((block % beside * wide + inside % wide, block // beside * high + inside // wide))
    free = ((column, row) for row in range(node) for column in range(columns) if (column, row) not in cells)
    return cells + list(islice(free, node - len(cells)))


def _draw_servers(
    drawn: Drawing, pool: Pool, rows: list[Row], left: float, top: float, room: float
) -> tuple[float, float]:
    """Draw a pool's servers in lines that are at most `room` wide; returns the right and the lower end."""
    cells, (width, height) = _cells(pool), _server_px(pool)
    x, y, right = left, top, left
    for _, unit_rows in groupby(rows, key=lambda row: row["unit"]):
        unit = list(unit_rows)
        servers = [list(server_rows) for _, server_rows in groupby(unit, key=lambda row: row["server"])]
        alike = unit[0]["alike"]
        count = f"× {alike:,}" if alike > 1 else ""
        needed = len(servers) * (width + GAP_PX) - GAP_PX + (8 + LETTER_PX * len(count) if count else 0)
        if x > left and x + needed > left + room:
            x, y = left, y + height + GAP_PX
        for index, server in enumerate(servers):
            _draw_server(drawn, pool, server, cells, x + index * (width + GAP_PX), y)
        drawn.links += _replica_links(pool, x, y + height / 2, width, len(servers))
        if count:
            drawn.texts.append(
                {"label": count, "x": x + needed - LETTER_PX * len(count), "y": y + height / 2, "kind": "count"}
            )
        right = max(right, x + needed)
        x += needed + GAP_PX
    return right, y + height


def _replica_links(pool: Pool, x: float, y: float, width: float, servers: int) -> list[Row]:
    """Lines from each server of a replica to the next."""
    step = width + GAP_PX
    return [
        {"x": x + index * step + width, "x2": x + (index + 1) * step, "y": y, "color": ROLE_COLORS[pool.role]}
        for index in range(servers - 1)
    ]


def _draw_server(
    drawn: Drawing, pool: Pool, rows: Sequence[Row], cells: Sequence[tuple[int, int]], x: float, y: float
) -> None:
    width, height = _server_px(pool)
    drawn.servers.append({"x": x, "y": y, "x2": x + width, "y2": y + height})
    color = ROLE_COLORS[pool.role]
    squares, margin = [], (SQUARE_PX - SIDE_PX) / 2
    for row, (column, line) in zip(rows, cells, strict=True):
        corner = {"x": x + PAD_PX + SQUARE_PX * column + margin, "y": y + PAD_PX + SQUARE_PX * line + margin}
        unit = f"{row['unit']:,}" if row["server"] == 1 else f"{row['unit']:,}, part {row['server']}"
        looks = {
            "letter": ROLE_LETTERS[pool.role] if row["is_used"] else "",
            "color": color if row["is_used"] else "transparent",
            "edge": color if row["is_used"] else GREY,
            "ink": LETTER_COLORS[pool.role],
            "pool": row["role"] if row["is_used"] else f"not used (server of {row['role']})",
            "of": "-" if row["replica"] is None else f"{row['replica']:,} of {pool.replicas:,}, TP{row['tp']}",
            "in": f"{unit} (one of {row['alike']:,} alike)" if row["alike"] > 1 else unit,
        }
        squares.append({**row, **corner, **looks})
    drawn.gpus += squares
    if pool.config.parallelism.gpus > 1:
        drawn.frames += _replica_frames(squares, color)


def _replica_frames(squares: Sequence[Row], color: str) -> Iterator[Row]:
    """A frame around the GPUs of each replica."""
    used = [row for row in squares if row["is_used"]]
    for _, group in groupby(used, key=lambda row: row["replica"]):
        replica = list(group)
        yield {
            "x": min(row["x"] for row in replica) - 1,
            "y": min(row["y"] for row in replica) - 1,
            "x2": max(row["x"] for row in replica) + SIDE_PX + 1,
            "y2": max(row["y"] for row in replica) + SIDE_PX + 1,
            "color": color,
        }


def _draw_arrow(drawn: Drawing, planned: PlannedDeployment, left: float, y: float) -> None:
    bandwidth = f"{significant(planned.deployment.kv_link_bytes_per_s / 1e9)} GB/s"
    transfer_time = f"{significant(1e3 * planned.predicted.kv_transfer_s)} ms mean"
    end = left + ARROW_PX - 14
    drawn.arrows.append({"x": left + 14, "x2": end, "y": y, "link": bandwidth, "time": transfer_time})
    middle = (left + 14 + end) / 2
    drawn.texts.append({"label": f"KV, {bandwidth}", "x": middle, "y": y - 12, "kind": "link"})
    drawn.texts.append({"label": transfer_time, "x": middle, "y": y + 14, "kind": "link"})


# --- picture --------------------------------------------------------------------------------------------------------


def fleet_picture(plan: Plan) -> alt.LayerChart:
    """The fleet: servers with their GPUs by role and replica, pools side by side, deployments below one another.

    The tooltip of a GPU names its pool, replica, SKU and server; that of an arrow the link and the time of a KV
    transfer. Prefill is orange with a P, decode blue with a D, mixed green with an M.
    """
    drawn = drawing(plan)
    scale = f"min(1, width / {drawn.width:.0f})" if drawn.width else "1"
    layers = [*_box_layers(drawn, scale), *_gpu_layers(drawn, scale), *_text_layers(drawn, scale)]
    layers += _arrow_layers(drawn, scale)
    gpus = f"{sum(plan.gpus.values()):,} GPUs of {len(plan.gpus)} SKUs"
    if len(plan.gpus) <= NAMED_SKUS:  # to name more is too long for a title
        gpus = fleet_words(plan) or "none"
    title = titled(f"The fleet: {gpus} in {number_of(plan.servers, 'server')}", _legend_in_words(plan))
    description = "; ".join(planned.deployment.summary for planned in plan.deployments) or "no fleet"
    picture = layered(layers, title, max(1, math.ceil(drawn.height)), description)
    sized: alt.LayerChart = picture.properties(
        width=min(WIDEST_PX, math.ceil(drawn.width) or 1),
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),  # the height is that of the picture alone
    ).configure_view(strokeWidth=0)
    return sized


def _legend_in_words(plan: Plan) -> str | list[str]:
    """Meaning of boxes, squares and frames, on as many lines as needed."""
    pools = [pool for planned in plan.deployments for pool in planned.deployment.pools]
    roles = ", ".join(f"{ROLE_LETTERS[role]} {role.value}" for role in dict.fromkeys(pool.role for pool in pools))
    gpus = f"Box: server. Square: GPU ({roles}; hollow: not used)."
    framed = any(pool.config.parallelism.gpus > 1 for pool in pools)
    shared = sum(sum(planned.nodes) for planned in plan.deployments) > plan.servers
    spread = ", and each is spread over them" if plan.request.limits.survives_node_loss else ""
    more = ["Frame: replica."] * framed + [f"Pools drawn apart share servers{spread}."] * shared
    return [gpus, " ".join(more)] if more else gpus


def _scaled_chart(rows: Sequence[Row], scale: str) -> alt.Chart:
    """A chart of rows whose positions shrink with the page."""
    chart = inline_chart(rows)
    ends = [name for name in ("x", "y", "x2", "y2") if rows and name in rows[0]]
    return chart.transform_calculate(**{f"p{name}": f"{scale} * datum.{name}" for name in ends})


def _places(x: str = "px", y: str = "py", x2: str = "", y2: str = "") -> dict[str, Any]:
    """Positions in pixels from the left and from the top, by column."""
    ends = {"x2": x2, "y2": y2}
    across, down = (kind(f"{column}:Q", scale=None, axis=None) for kind, column in ((alt.X, x), (alt.Y, y)))
    return {"x": across, "y": down} | {name: f"{column}:Q" for name, column in ends.items() if column}


def _as_given(channel: Any, column: str) -> Any:  # noqa: ANN401
    """A colour that the rows hold."""
    return channel(f"{column}:N", scale=None, legend=None)


def _box_layers(drawn: Drawing, scale: str) -> list[alt.Chart]:
    ends = _places(x2="px2", y2="py2")
    look: dict[str, Any] = {"fill": "transparent", "stroke": GREY, "strokeWidth": 1.5, "cornerRadius": 4}
    layers = [_scaled_chart(drawn.servers, scale).mark_rect(**look).encode(**ends)]
    if drawn.frames:
        frame = _scaled_chart(drawn.frames, scale).mark_rect(cornerRadius=3, fillOpacity=0.45, strokeWidth=1.5)
        layers.append(frame.encode(**ends, fill=_as_given(alt.Fill, "color"), stroke=_as_given(alt.Stroke, "color")))
    if drawn.links:
        line = _scaled_chart(drawn.links, scale).mark_rule(strokeWidth=4)
        layers.append(line.encode(**_places(x2="px2"), color=_as_given(alt.Color, "color")))
    return layers


def _gpu_layers(drawn: Drawing, scale: str) -> list[alt.Chart]:
    base = _scaled_chart([{**row, "x2": row["x"] + SIDE_PX, "y2": row["y"] + SIDE_PX} for row in drawn.gpus], scale)
    titles = {"pool": "Pool", "of": "Replica", "name": "SKU", "in": "Server", "gpu": "GPU of the server"}
    shown = tooltip(**titles, service="Model")
    colors = {"fill": _as_given(alt.Fill, "color"), "stroke": _as_given(alt.Stroke, "edge")}
    square = base.mark_rect(cornerRadius=2, strokeWidth=1.2).encode(**_places(x2="px2", y2="py2"), **colors)
    size = alt.ExprRef(f"12 * {scale}")
    letter = base.transform_calculate(mx="(datum.px + datum.px2) / 2", my="(datum.py + datum.py2) / 2")
    letters = letter.mark_text(fontSize=size, fontWeight="bold", baseline="middle", align="center")
    ink = _as_given(alt.Color, "ink")
    return [
        square.encode(tooltip=shown),
        letters.encode(**_places("mx", "my"), text="letter:N", color=ink, tooltip=shown),
    ]


TEXT_STYLES: tuple[tuple[str, int, Literal["bold", "normal"], Literal["left", "center"]], ...] = (
    ("heading", 14, "bold", "left"),
    ("line", 12, "normal", "left"),
    ("count", 14, "bold", "left"),
    ("link", 12, "normal", "center"),
)
"""Kinds of text with their size [px], weight and alignment."""


def _text_layers(drawn: Drawing, scale: str) -> list[alt.Chart]:
    layers = []
    for kind, size, weight, align in TEXT_STYLES:
        rows = [row for row in drawn.texts if row["kind"] == kind]
        if rows:
            look: dict[str, Any] = {"align": align, "fontWeight": weight, "baseline": "middle", "color": GREY}
            mark = _scaled_chart(rows, scale).mark_text(fontSize=alt.ExprRef(f"max(10, {size} * {scale})"), **look)
            layers.append(mark.encode(**_places(), text="label:N"))
    return layers


def _arrow_layers(drawn: Drawing, scale: str) -> list[alt.Chart]:
    if not drawn.arrows:
        return []
    base, shown = _scaled_chart(drawn.arrows, scale), tooltip(link="Link of a KV transfer", time="KV transfer")
    line = base.mark_rule(strokeWidth=2.5, color=GREY).encode(**_places(x2="px2"), tooltip=shown)
    tip = base.mark_point(shape="triangle-right", filled=True, size=130, opacity=1, color=GREY)
    return [line, tip.encode(**_places("px2"), tooltip=shown)]
