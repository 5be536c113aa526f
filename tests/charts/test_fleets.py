"""The picture of a fleet: what is drawn adds up to what is planned, and nothing overlaps."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache
from itertools import combinations, groupby
from typing import Any

import pytest

from planner.charts import Row, fleets
from planner.fleet import Plan, plan
from planner.launch import launch_specs
from planner.launch.placement import place_replicas, server_numbers
from planner.roofline import Parallelism
from planner.serving import Deployment, Pool
from tests.builders import HARDWARE, replica, small_request

MI300X = HARDWARE.skus["mi300x"]
LARGE = next(sku for sku in HARDWARE.skus.values() if sku.node.gpus > 8)


@cache
def small() -> Plan:
    return plan(small_request(), simulate=False, alternatives=False)


def nodes(pool: Pool) -> int:
    """Servers without a replica on two, by packing them one after the other."""
    node, gpus = pool.config.sku.node.gpus, pool.config.parallelism.gpus
    if gpus > node:
        return pool.replicas * math.ceil(gpus / node)
    servers, free = 0, 0
    for _ in range(pool.replicas):
        if free < gpus:
            servers, free = servers + 1, node
        free -= gpus
    return servers


def of(*deployments: Deployment) -> Plan:
    """The small plan with other pools."""
    like = small().deployments[0]
    each = (
        replace(like, deployment=one, nodes=tuple(nodes(pool) for pool in one.pools), pool_usd_per_hour=(1.0,) * 2)
        for one in deployments
    )
    return replace(small(), deployments=tuple(each))


def split(prefill: tuple[int, int], decode: tuple[int, int], **changes: Any) -> Deployment:
    """A disaggregated deployment of (TP, replicas) each."""
    pools = (replica(tp=prefill[0], **changes), replica(tp=decode[0], **changes))
    return Deployment.disaggregated(*pools, replicas=(prefill[1], decode[1]))


SHAPES = {
    "one GPU": of(Deployment.mixed(replica(), 1)),
    "part of a server": of(split((1, 9), (1, 3), sku=MI300X)),
    "TP2 and TP8": of(split((2, 7), (8, 2))),
    "three GPUs a replica": of(Deployment.mixed(replica(parallelism=Parallelism(pp=3)), 5)),
    "more than a server": of(Deployment.mixed(replica(parallelism=Parallelism(tp=8, pp=2)), 3)),
    "a server and a half": of(Deployment.mixed(replica(parallelism=Parallelism(tp=4, pp=3)), 4)),
    "large servers": of(Deployment.mixed(replica(sku=LARGE, tp=4), 19)),
    "several deployments": of(Deployment.mixed(replica(), 1), split((1, 3), (1, 1)), split((2, 6), (4, 3))),
    "thousands": of(split((2, 2401), (8, 130))),
    "thousands over servers": of(Deployment.mixed(replica(parallelism=Parallelism(tp=8, pp=2)), 500)),
    "many deployments": of(*(split((1, 50 + number), (4, 9)) for number in range(8))),
}


@pytest.fixture(params=SHAPES, ids=str)
def fleet(request: pytest.FixtureRequest) -> Plan:
    return SHAPES[request.param]


def pool_rows(found: Plan) -> list[tuple[Pool, int, list[Row]]]:
    """Each pool with its servers and its rows."""
    rows = fleets.fleet_rows(found)
    return [
        (pool, planned.nodes[index], [r for r in rows if (r["deployment"], r["role"]) == (number, pool.role.value)])
        for number, planned in enumerate(found.deployments, start=1)
        for index, pool in enumerate(planned.deployment.pools)
    ]


# --- data -----------------------------------------------------------------------------------------------------------


def test_what_is_drawn_adds_up_to_what_is_planned(fleet: Plan) -> None:
    """GPUs and servers; a server has all its GPUs, a replica its own, on two servers only where it is larger than one.

    However large the fleet, few boxes are drawn.
    """
    for pool, servers, rows in pool_rows(fleet):
        gpus, node = pool.config.parallelism.gpus, pool.config.sku.node.gpus
        used = [row for row in rows if row["is_used"]]
        assert sum(row["alike"] for row in used) == pool.gpus
        assert sum(row["alike"] for row in rows if row["gpu"] == 1) == servers
        for _, group in groupby(rows, key=lambda row: (row["unit"], row["server"])):
            assert [row["gpu"] for row in group] == list(range(1, node + 1))
        for _, group in groupby(used, key=lambda row: row["replica"]):
            found = list(group)
            assert len(found) == gpus
            assert len({(row["unit"], row["server"]) for row in found}) == math.ceil(gpus / node)
    assert box_count(fleet) <= fleets.BOX_LIMIT


def box_count(fleet: Plan) -> int:
    rows = fleets.fleet_rows(fleet)
    return len({(row["deployment"], row["role"], row["unit"], row["server"]) for row in rows})


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "large servers"])  # no export starts that SKU
def test_the_title_counts_servers_as_the_exports_fill_them(name: str) -> None:
    """Pools of one SKU share servers there, and the picture, which draws them apart, says so."""
    fleet = SHAPES[name]
    filled = len(server_numbers(place_replicas(launch_specs(fleet))))
    title = fleets.fleet_picture(fleet).to_dict()["title"]
    text = title["text"] if isinstance(title["text"], str) else title["text"]["expr"]
    assert re.search(rf"\b{filled:,} servers?\b", text)
    shared = filled < sum(servers for _, servers, _ in pool_rows(fleet))
    assert ("share servers" in " ".join(title["subtitle"])) == shared


def test_a_plan_without_fleet_has_no_rows_and_a_picture_all_the_same() -> None:
    none = replace(small(), deployments=(), cost=None)
    assert fleets.fleet_rows(none) == []
    assert fleets.fleet_picture(none).to_dict()


# --- geometry -------------------------------------------------------------------------------------------------------


def boxes(rows: list[Row], side: float = 0.0) -> list[tuple[float, float, float, float]]:
    return [(r["x"], r["y"], r.get("x2", r["x"] + side), r.get("y2", r["y"] + side)) for r in rows]


def overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def inside(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return other[0] <= one[0] and other[1] <= one[1] and one[2] <= other[2] and one[3] <= other[3]


def test_nothing_overlaps_and_every_gpu_stands_in_a_server_of_a_picture_of_its_size(fleet: Plan) -> None:
    """A frame holds the GPUs of one replica only."""
    drawn = fleets.drawing(fleet)
    servers, gpus, frames = boxes(drawn.servers), boxes(drawn.gpus, fleets.SIDE_PX), boxes(drawn.frames)
    for kind in (servers, gpus, frames):
        assert not any(overlap(*pair) for pair in combinations(kind, 2))
    for box in gpus + frames:
        assert sum(inside(box, server) for server in servers) == 1
    for frame in frames:
        within = [row for row, box in zip(drawn.gpus, gpus, strict=True) if inside(box, frame)]
        assert len({(row["role"], row["replica"]) for row in within}) == 1
    assert max(box[2] for box in servers) <= drawn.width <= fleets.WIDEST_PX + fleets.ARROW_PX
    assert max(box[3] for box in servers) <= drawn.height


def test_pools_stand_side_by_side_with_an_arrow_between_them() -> None:
    drawn = fleets.drawing(SHAPES["part of a server"])
    (arrow,) = drawn.arrows
    ends = {role: [r for r in drawn.gpus if r["role"] == role] for role in ("prefill", "decode")}
    assert max(r["x"] for r in ends["prefill"]) < arrow["x"] < arrow["x2"] < min(r["x"] for r in ends["decode"])


def test_a_small_fleet_takes_less_than_240_px_with_its_title() -> None:
    title = 60
    for name in ("one GPU", "part of a server", "TP2 and TP8"):
        assert fleets.drawing(SHAPES[name]).height + title < 240


def test_small_deployments_stand_beside_one_another() -> None:
    """Four of one server each take the height of one."""
    one = fleets.drawing(of(Deployment.mixed(replica(), 1))).height
    four = fleets.drawing(of(*(Deployment.mixed(replica(), 1) for _ in range(3))))
    assert four.height == one
    assert four.width <= fleets.WIDEST_PX


def test_a_fleet_of_many_deployments_is_folded_sooner() -> None:
    assert box_count(SHAPES["many deployments"]) <= 2 * fleets.BOX_LIMIT_OF_SEVERAL


# --- picture --------------------------------------------------------------------------------------------------------


def test_words_say_link_role_count_sku_replicas_and_servers() -> None:
    found = SHAPES["part of a server"]
    labels = [text["label"] for text in fleets.drawing(found).texts]
    assert f"KV, {found.deployments[0].deployment.kv_link_bytes_per_s / 1e9:g} GB/s" in labels
    assert any(label.endswith("ms mean") for label in labels)
    assert {"Prefill: 9 × MI300X", "9 replicas of TP1, 2 servers"} <= set(labels)
    numbered = [text["label"] for text in fleets.drawing(SHAPES["several deployments"]).texts]
    assert "2 · Decode: 1 × H100 SXM" in numbered


def test_roles_differ_by_letter_and_by_color_on_which_it_is_readable() -> None:
    """Contrast of at least 4.5 to 1: Web Content Accessibility Guidelines 2.2, success criterion 1.4.3."""
    drawn = fleets.drawing(SHAPES["several deployments"])
    used = [row for row in drawn.gpus if row["is_used"]]
    assert len({(row["role"], row["letter"], row["color"]) for row in used}) == 3
    assert len({row["letter"] for row in used}) == len({row["color"] for row in used}) == 3
    assert all(row["letter"] == "" and row["color"] == "transparent" for row in drawn.gpus if not row["is_used"])
    for row in used:
        light, dark = sorted((luminance(row["color"]), luminance(row["ink"])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def luminance(color: str) -> float:
    """Relative luminance of an sRGB color (WCAG 2.2, definitions)."""
    parts = [int(color[place : place + 2], 16) / 255.0 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
