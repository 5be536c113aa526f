"""The bar of a server's memory: its parts against the GPU's memory, for servers that start and one that cannot."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from planner.charts import server_memory_chart, server_memory_rows
from planner.charts.marks import Row
from planner.charts.server_memory import PART_COLORS
from planner.engine import StartUp, memory, memory_parts
from tests.charts.titles import title_of

GIB = 2.0**30


def rows_of(found: StartUp) -> list[Row]:
    return server_memory_rows(memory_parts(found), found.seen_bytes)


@pytest.mark.parametrize(
    ("llm", "sku", "engine", "tp"),
    [
        ("llama-3.3-70b-instruct", "h100-sxm", "vllm", 4),
        ("llama-3.3-70b-instruct", "h100-sxm", "vllm", 2),  # does not start: its longest request does not fit
        ("qwen3-32b", "h200-sxm", "sglang", 1),
        ("gpt-oss-120b", "h100-sxm", "vllm", 2),
    ],
)
def test_parts_stand_one_after_another_and_fill_the_memory(llm: str, sku: str, engine: str, tp: int) -> None:
    found = memory(llm, sku, engine=engine, tp=tp)
    rows = rows_of(found)
    assert [row["part"] for row in rows] == list(PART_COLORS)
    assert rows[0]["start_gib"] == 0.0 and all(a["end_gib"] == b["start_gib"] for a, b in pairwise(rows))
    assert sum(row["gib"] for row in rows) == pytest.approx(found.seen_bytes / GIB, rel=1e-9)
    assert sum(row["share"] for row in rows) == pytest.approx(1.0, rel=1e-9)


def test_the_memory_is_marked_only_where_it_is_exceeded() -> None:
    fits, exceeds = memory("qwen3-32b", "h100-sxm"), memory("llama-3.3-70b-instruct", "l4")
    assert exceeds.weights_bytes > exceeds.seen_bytes
    for found, layers in ((fits, 1), (exceeds, 2)):
        drawn = json.loads(server_memory_chart(rows_of(found), "A server.").to_json())
        assert len(drawn["layer"]) == layers
        assert title_of(drawn) == "Memory of one GPU as the server starts"
    (mark,) = drawn["datasets"][drawn["layer"][1]["data"]["name"]]
    assert mark["seen_gib"] == pytest.approx(exceeds.seen_bytes / GIB)


def test_what_takes_nothing_has_no_place_in_the_legend() -> None:
    eager = memory("qwen3-32b", "h100-sxm", eager=True)
    assert eager.graph_bytes == 0.0
    drawn = json.loads(server_memory_chart(rows_of(eager), "A server.").to_json())
    assert "graphs" not in drawn["layer"][0]["encoding"]["color"]["scale"]["domain"]
