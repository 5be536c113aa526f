"""The fleet as a picture: servers as boxes, GPUs as squares, replicas as frames, the KV link as an arrow.

A role has a colour and a letter. Positions are pixels of a picture that is at most `WIDEST_PX` wide and shrinks with
the page (the signal `width` of Vega).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import altair as alt

from planner.analysis import fleet_words, sku_words
from planner.charts.marks import BLUE, GREEN, GREY, ORANGE, Row, inline_chart, layered, titled
from planner.core import counted, significant
from planner.fleet import Plan, PlannedDeployment
from planner.serving import Deployment, Pool, Role

MOST_BOXES, FEWER_BOXES = 40, 24
"""Most servers drawn of one deployment and of several; beyond it equal ones become one box."""
WIDEST_PX = 780
"""Width of the picture at most; it shrinks on a narrower page."""
SQUARE_PX, SIDE_PX, PAD_PX, GAP_PX = 22, 17, 4, 10
"""Pitch and size of GPUs, margin of a server around them, gap between servers and deployments."""
BETWEEN_PX = 36
"""Gap between deployments that stand beside one another."""
ARROW_PX = 134
"""Room between a prefill and a decode pool."""
HEADING_PX = 42
"""Room for the two lines above a pool."""
MOST_NAMED = 2
"""SKUs named in the title."""
LETTER_PX = 7.6
"""Width of a letter of a heading, somewhat more than it is."""

_LETTERS = {Role.PREFILL: "P", Role.DECODE: "D", Role.MIXED: "M"}
_COLORS = {Role.PREFILL: ORANGE, Role.DECODE: BLUE, Role.MIXED: GREEN}
_INK = {Role.PREFILL: "#1A1A1A", Role.DECODE: "#FFFFFF", Role.MIXED: "#1A1A1A"}
"""Of letters on a role's colour: contrast of at least 5 to 1."""


# --- data -----------------------------------------------------------------------------------------------------------


def fleet_rows(plan: Plan) -> list[Row]:
    """Every GPU of every server drawn; of a large fleet (more than 40 servers) one of those that are alike.

    Returns rows with deployment (number from 1), service, role, sku (id), name (as its vendor calls it), tp, unit
    (number from 1 in its pool: a server, or the servers of one larger replica), server (the same, of the servers drawn
    of a unit), alike (units that this one stands for), gpu (number from 1 in its server), replica (number from 1 in its
    pool; None for a GPU of the server that is not used) and is_used. An infeasible plan has none.
    """
    most = _unfolded(plan)
    return [
        row
        for number, planned in enumerate(plan.deployments, start=1)
        for pool in planned.deployment.pools
        for row in _pool_rows(number, planned.service, pool, most)
    ]


def _unfolded(plan: Plan) -> int:
    """Units of a pool from which equal ones are drawn as one, so that there are not too many boxes."""
    pools = [pool for planned in plan.deployments for pool in planned.deployment.pools]
    boxes = MOST_BOXES if len(plan.deployments) == 1 else FEWER_BOXES
    for most in (boxes, 12, 6, 3):
        if sum(_boxes(pool, most) for pool in pools) <= boxes:
            return most
    return 1


def _boxes(pool: Pool, most: int) -> int:
    """Servers drawn of a pool."""
    return sum(len(unit) for unit, _ in _units(pool, most))


Server = tuple[int | None, ...]
"""The replica on each GPU of a server, None for none."""


def _units(pool: Pool, most: int) -> list[tuple[tuple[Server, ...], int]]:
    """Servers of a pool by unit, and how many units each stands for.

    Replicas fill servers one after the other; none straddles two unless it is larger than one (the count of
    `PlannedDeployment.nodes`).
    """
    gpus, node = pool.config.parallelism.gpus, pool.config.sku.node.gpus
    if gpus > node:
        pieces = [min(node, gpus - start) for start in range(0, gpus, node)]
        count = pool.replicas if pool.replicas <= most else 1
        return [
            (tuple(_server([number] * piece, node) for piece in pieces), pool.replicas // count)
            for number in range(1, count + 1)
        ]
    each = node // gpus
    full, rest = divmod(pool.replicas, each)
    drawn = full if full + (rest > 0) <= most else min(full, 1)
    firsts = [number * each + 1 for number in range(drawn)]
    units = [(_filled(first, each, gpus, node), full // drawn) for first in firsts]
    if rest:
        units.append((_filled(full * each + 1, rest, gpus, node), 1))
    return [((server,), alike) for server, alike in units]


def _filled(first: int, replicas: int, gpus: int, node: int) -> Server:
    return _server([first + place // gpus for place in range(replicas * gpus)], node)


def _server(used: Sequence[int], node: int) -> Server:
    return (*used, *([None] * (node - len(used))))


def _pool_rows(number: int, service: str, pool: Pool, most: int) -> Iterator[Row]:
    for unit, (servers, alike) in enumerate(_units(pool, most), start=1):
        for place, server in enumerate(servers, start=1):
            for gpu, replica in enumerate(server, start=1):
                yield {
                    "deployment": number,
                    "service": service,
                    "role": pool.role.value,
                    "sku": pool.config.sku.id,
                    "name": sku_words(pool.config.sku),
                    "tp": pool.config.parallelism.tp,
                    "unit": unit,
                    "server": place,
                    "alike": alike,
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
        arrows: x, y, x2 and what a hover says.
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
    """Where everything of `fleet_rows` stands in the picture [px]."""
    whole = Drawing([], [], [], [], [], [])
    rows = fleet_rows(plan)
    left = top = 0.0
    for number, planned in enumerate(plan.deployments, start=1):
        part = _deployment(plan, planned, [row for row in rows if row["deployment"] == number])
        if left and left + part.width > WIDEST_PX:
            left, top = 0.0, whole.height + 2 * GAP_PX
        _put(whole, part, left, top)
        left += part.width + BETWEEN_PX
    return whole


def _put(whole: Drawing, part: Drawing, left: float, top: float) -> None:
    """Add a drawing to another one, its corner at `left` and `top`."""
    for name in ("gpus", "servers", "frames", "links", "texts", "arrows"):
        ends = {"x": left, "x2": left, "y": top, "y2": top}
        moved = [
            {**row, **{end: row[end] + by for end, by in ends.items() if end in row}} for row in getattr(part, name)
        ]
        getattr(whole, name).extend(moved)
    whole.width = max(whole.width, left + part.width)
    whole.height = max(whole.height, top + part.height)


def _deployment(plan: Plan, planned: PlannedDeployment, rows: list[Row]) -> Drawing:
    """The pools of one deployment beside one another."""
    drawn = Drawing([], [], [], [], [], [])
    pools = planned.deployment.pools
    room = (WIDEST_PX - ARROW_PX * (len(pools) - 1)) / len(pools)
    left = 0.0
    for index, pool in enumerate(pools):
        mine = [row for row in rows if row["role"] == pool.role.value]
        lines = _heading(plan, planned, index)
        for line, (text, kind) in enumerate(zip(lines, ("heading", "line"), strict=True)):
            drawn.texts.append({"label": text, "x": left, "y": 8.0 + 18 * line, "kind": kind})
        right, end = _draw_servers(drawn, pool, mine, left, HEADING_PX, room)
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
    model = f"{planned.service}, " if index == 0 and len({one.service for one in plan.deployments}) > 1 else ""
    split = pool.config.parallelism
    shape = f"TP{split.tp}" + (f" × PP{split.pp}" if split.pp > 1 else "")
    count = f"{pool.gpus:,} × {sku_words(pool.config.sku)}"
    role = pool.role.value if model else pool.role.value.capitalize()
    servers = counted(planned.nodes[index], "server")
    return f"{several}{model}{role}: {count}", (f"{counted(pool.replicas, 'replica')} of {shape}, {servers}")


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
    for place in range(node // gpus * gpus):
        block, inside = divmod(place, gpus)
        cells.append((block % beside * wide + inside % wide, block // beside * high + inside // wide))
    free = ((column, row) for row in range(node) for column in range(columns) if (column, row) not in cells)
    return cells + [next(free) for _ in range(node - len(cells))]


def _draw_servers(
    drawn: Drawing, pool: Pool, rows: list[Row], left: float, top: float, room: float
) -> tuple[float, float]:
    """Draw a pool's servers in lines that are at most `room` wide; returns the right and the lower end."""
    cells, (width, height) = _cells(pool), _server_px(pool)
    x, y, right = left, top, left
    for _, group in groupby(rows, key=lambda row: row["unit"]):
        unit = list(group)
        servers = [list(found) for _, found in groupby(unit, key=lambda row: row["server"])]
        alike = unit[0]["alike"]
        count = f"× {alike:,}" if alike > 1 else ""
        needed = len(servers) * (width + GAP_PX) - GAP_PX + (8 + LETTER_PX * len(count) if count else 0)
        if x > left and x + needed > left + room:
            x, y = left, y + height + GAP_PX
        for place, server in enumerate(servers):
            _draw_server(drawn, pool, server, cells, x + place * (width + GAP_PX), y)
        drawn.links += _links(pool, x, y + height / 2, width, len(servers))
        if count:
            drawn.texts.append(
                {"label": count, "x": x + needed - LETTER_PX * len(count), "y": y + height / 2, "kind": "count"}
            )
        right = max(right, x + needed)
        x += needed + GAP_PX
    return right, y + height


def _links(pool: Pool, x: float, y: float, width: float, servers: int) -> list[Row]:
    """Lines from each server of a replica to the next."""
    step = width + GAP_PX
    return [
        {"x": x + place * step + width, "x2": x + (place + 1) * step, "y": y, "color": _COLORS[pool.role]}
        for place in range(servers - 1)
    ]


def _draw_server(
    drawn: Drawing, pool: Pool, rows: Sequence[Row], cells: Sequence[tuple[int, int]], x: float, y: float
) -> None:
    width, height = _server_px(pool)
    drawn.servers.append({"x": x, "y": y, "x2": x + width, "y2": y + height})
    color = _COLORS[pool.role]
    placed, margin = [], (SQUARE_PX - SIDE_PX) / 2
    for row, (column, line) in zip(rows, cells, strict=True):
        corner = {"x": x + PAD_PX + SQUARE_PX * column + margin, "y": y + PAD_PX + SQUARE_PX * line + margin}
        said = {
            "letter": _LETTERS[pool.role] if row["is_used"] else "",
            "color": color if row["is_used"] else "transparent",
            "edge": color if row["is_used"] else GREY,
            "ink": _INK[pool.role],
            "pool": row["role"] if row["is_used"] else f"not used (server of {row['role']})",
            "of": "-" if row["replica"] is None else f"{row['replica']:,} of {pool.replicas:,}, TP{row['tp']}",
            "in": _server_words(row),
        }
        placed.append({**row, **corner, **said})
    drawn.gpus += placed
    if pool.config.parallelism.gpus > 1:
        drawn.frames += _frames(placed, color)


def _server_words(row: Row) -> str:
    first = f"{row['unit']:,}" if row["server"] == 1 else f"{row['unit']:,}, part {row['server']}"
    return f"{first} (one of {row['alike']:,} alike)" if row["alike"] > 1 else first


def _frames(placed: Sequence[Row], color: str) -> Iterator[Row]:
    """A frame around the GPUs of each replica."""
    used = [row for row in placed if row["is_used"]]
    for _, group in groupby(used, key=lambda row: row["replica"]):
        found = list(group)
        yield {
            "x": min(row["x"] for row in found) - 1,
            "y": min(row["y"] for row in found) - 1,
            "x2": max(row["x"] for row in found) + SIDE_PX + 1,
            "y2": max(row["y"] for row in found) + SIDE_PX + 1,
            "color": color,
        }


def _draw_arrow(drawn: Drawing, planned: PlannedDeployment, left: float, y: float) -> None:
    bandwidth, seconds = _link(planned.deployment), planned.predicted.kv_transfer_s
    sent = f"{significant(1e3 * seconds)} ms mean"
    end = left + ARROW_PX - 14
    drawn.arrows.append({"x": left + 14, "x2": end, "y": y, "link": bandwidth, "time": sent})
    middle = (left + 14 + end) / 2
    drawn.texts.append({"label": f"KV, {bandwidth}", "x": middle, "y": y - 12, "kind": "link"})
    drawn.texts.append({"label": sent, "x": middle, "y": y + 14, "kind": "link"})


def _link(deployment: Deployment) -> str:
    return f"{significant(deployment.kv_link_bytes_per_s / 1e9)} GB/s"


# --- picture --------------------------------------------------------------------------------------------------------


def fleet_picture(plan: Plan) -> alt.LayerChart:
    """The fleet: servers with their GPUs by role and replica, pools side by side, deployments below one another.

    A hover on a GPU says its pool, replica, SKU and server; one on an arrow how KV caches travel. Prefill is orange
    with a P, decode blue with a D, mixed green with an M.
    """
    drawn = drawing(plan)
    scale = f"min(1, width / {drawn.width:.0f})" if drawn.width else "1"
    layers = [*_boxes_layers(drawn, scale), *_gpu_layers(drawn, scale), *_text_layers(drawn, scale)]
    layers += _arrow_layers(drawn, scale)
    servers = sum(sum(planned.nodes) for planned in plan.deployments)
    title = titled(f"The fleet: {_gpus_words(plan)} in {counted(servers, 'server')}", _legend(plan))
    picture = layered(layers, title, max(1, math.ceil(drawn.height)), _description(plan))
    shown: alt.LayerChart = picture.properties(
        width=min(WIDEST_PX, math.ceil(drawn.width) or 1),
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),  # the height is that of the picture alone
    ).configure_view(strokeWidth=0)
    return shown


def _gpus_words(plan: Plan) -> str:
    """GPUs by SKU, or of how many SKUs where naming each is too long for a title."""
    if len(plan.gpus) <= MOST_NAMED:
        return fleet_words(plan) or "none"
    return f"{sum(plan.gpus.values()):,} GPUs of {len(plan.gpus)} SKUs"


def _legend(plan: Plan) -> str | list[str]:
    """What boxes, squares and frames are, on as many lines as it needs."""
    pools = [pool for planned in plan.deployments for pool in planned.deployment.pools]
    roles = ", ".join(f"{_LETTERS[role]} {role.value}" for role in dict.fromkeys(pool.role for pool in pools))
    gpus = f"Box: server. Square: GPU ({roles}; hollow: not used)."
    framed = any(pool.config.parallelism.gpus > 1 for pool in pools)
    return [gpus, "Frame: replica."] if framed else gpus


def _description(plan: Plan) -> str:
    return "; ".join(planned.deployment.summary for planned in plan.deployments) or "no fleet"


def _placed(rows: Sequence[Row], scale: str) -> alt.Chart:
    """A chart of rows whose places shrink with the page."""
    chart = inline_chart(rows)
    ends = [name for name in ("x", "y", "x2", "y2") if rows and name in rows[0]]
    return chart.transform_calculate(**{f"p{name}": f"{scale} * datum.{name}" for name in ends})


def _x(field: str) -> alt.X:
    """A position from the left in pixels."""
    return alt.X(f"{field}:Q", scale=None, axis=None)


def _y(field: str) -> alt.Y:
    """A position from the top in pixels."""
    return alt.Y(f"{field}:Q", scale=None, axis=None)


def _boxes_layers(drawn: Drawing, scale: str) -> list[alt.Chart]:
    ends: dict[str, Any] = {"x": _x("px"), "x2": "px2:Q", "y": _y("py"), "y2": "py2:Q"}
    box = _placed(drawn.servers, scale).mark_rect(fill="transparent", stroke=GREY, strokeWidth=1.5, cornerRadius=4)
    layers = [box.encode(**ends)]
    if drawn.frames:
        frame = _placed(drawn.frames, scale).mark_rect(cornerRadius=3, fillOpacity=0.45, strokeWidth=1.5)
        layers.append(
            frame.encode(**ends, fill=alt.Fill("color:N", scale=None), stroke=alt.Stroke("color:N", scale=None))
        )
    if drawn.links:
        line = _placed(drawn.links, scale).mark_rule(strokeWidth=4)
        color = alt.Color("color:N", scale=None, legend=None)
        layers.append(line.encode(x=_x("px"), x2="px2:Q", y=_y("py"), color=color))
    return layers


def _gpu_layers(drawn: Drawing, scale: str) -> list[alt.Chart]:
    base = _placed([{**row, "x2": row["x"] + SIDE_PX, "y2": row["y"] + SIDE_PX} for row in drawn.gpus], scale)
    tooltip = [
        alt.Tooltip("pool:N", title="Pool"),
        alt.Tooltip("of:N", title="Replica"),
        alt.Tooltip("name:N", title="SKU"),
        alt.Tooltip("in:N", title="Server"),
        alt.Tooltip("gpu:Q", title="GPU of the server"),
        alt.Tooltip("service:N", title="Model"),
    ]
    square = base.mark_rect(cornerRadius=2, strokeWidth=1.2).encode(
        x=_x("px"),
        x2="px2:Q",
        y=_y("py"),
        y2="py2:Q",
        fill=alt.Fill("color:N", scale=None),
        stroke=alt.Stroke("edge:N", scale=None),
        tooltip=tooltip,
    )
    size = alt.ExprRef(f"12 * {scale}")
    letter = base.transform_calculate(mx="(datum.px + datum.px2) / 2", my="(datum.py + datum.py2) / 2")
    letters = letter.mark_text(fontSize=size, fontWeight="bold", baseline="middle", align="center").encode(
        x=_x("mx"),
        y=_y("my"),
        text="letter:N",
        color=alt.Color("ink:N", scale=None, legend=None),
        tooltip=tooltip,
    )
    return [square, letters]


_TEXTS: tuple[tuple[str, int, Literal["bold", "normal"], Literal["left", "center"]], ...] = (
    ("heading", 14, "bold", "left"),
    ("line", 12, "normal", "left"),
    ("count", 14, "bold", "left"),
    ("link", 12, "normal", "center"),
)
"""Kinds of text: size [px], weight, alignment."""


def _text_layers(drawn: Drawing, scale: str) -> list[alt.Chart]:
    layers = []
    for kind, size, weight, align in _TEXTS:
        rows = [row for row in drawn.texts if row["kind"] == kind]
        if rows:
            font = alt.ExprRef(f"max(10, {size} * {scale})")
            mark = _placed(rows, scale).mark_text(
                align=align, baseline="middle", fontSize=font, fontWeight=weight, color=GREY
            )
            layers.append(mark.encode(x=_x("px"), y=_y("py"), text="label:N"))
    return layers


def _arrow_layers(drawn: Drawing, scale: str) -> list[alt.Chart]:
    if not drawn.arrows:
        return []
    tooltip = [
        alt.Tooltip("link:N", title="Link of a KV transfer"),
        alt.Tooltip("time:N", title="KV transfer"),
    ]
    base = _placed(drawn.arrows, scale)
    line = base.mark_rule(strokeWidth=2.5, color=GREY).encode(x=_x("px"), x2="px2:Q", y=_y("py"), tooltip=tooltip)
    tip = base.mark_point(shape="triangle-right", filled=True, size=130, opacity=1, color=GREY).encode(
        x=_x("px2"), y=_y("py"), tooltip=tooltip
    )
    return [line, tip]
