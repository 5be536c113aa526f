"""Memory of servers and the same replica on every SKU: against datasheets, footprints and step times."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest

from planner.charts import replicas, steps
from planner.charts.marks import Row
from planner.core import GIB, rebuilt
from planner.engine import ReplicaConfig, StartUp, memory, memory_footprint, memory_parts
from planner.roofline import Parallelism
from planner.search import PoolOnSku, on_sku
from planner.serving import Pool, Role, pool_model
from planner.workload import TokenLengths
from tests.builders import FP8, HARDWARE, calibrated, replica
from tests.charts.titles import title_of

LENGTHS = TokenLengths.constant(1000, 100)


def rows_of(found: StartUp) -> list[Row]:
    return replicas.server_memory_rows(memory_parts(found), found.seen_bytes)


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
    assert [row["part"] for row in rows] == list(memory_parts(found))
    assert rows[0]["start_gib"] == 0.0 and all(a["end_gib"] == b["start_gib"] for a, b in pairwise(rows))
    assert sum(row["gib"] for row in rows) == pytest.approx(found.seen_bytes / GIB, rel=1e-9)
    assert sum(row["share"] for row in rows) == pytest.approx(1.0, rel=1e-9)


def test_the_memory_is_marked_only_where_it_is_exceeded_and_what_takes_nothing_has_no_legend() -> None:
    fits, exceeds = memory("qwen3-32b", "h100-sxm", eager=True), memory("llama-3.3-70b-instruct", "l4")
    assert exceeds.weights_bytes > exceeds.seen_bytes and fits.graph_bytes == 0.0
    drawn = json.loads(replicas.server_memory_chart(rows_of(fits), "A server.").to_json())
    assert len(drawn["layer"]) == 1 and "graphs" not in drawn["layer"][0]["encoding"]["color"]["scale"]["domain"]
    assert title_of(drawn) == "Memory of one GPU as the server starts"
    drawn = json.loads(replicas.server_memory_chart(rows_of(exceeds), "A server.").to_json())
    (mark,) = drawn["datasets"][drawn["layer"][1]["data"]["name"]]
    assert mark["seen_gib"] == pytest.approx(exceeds.seen_bytes / GIB)


# --- on every SKU -----------------------------------------------------------------------------------------------------


def on(config: ReplicaConfig, *skus: str, fits: bool = False) -> list[PoolOnSku]:
    pool = Pool(role=Role.MIXED, config=config, replicas=3)
    return [on_sku(pool, LENGTHS, sku, HARDWARE, calibrated=fits) for sku in skus]


def test_a_memory_bound_step_shortens_as_bandwidth_grows() -> None:
    """Same chip, other memory: 4.8 TB/s of the H200 over 3.35 TB/s of the H100 (NVIDIA datasheets)."""
    rows = {row["sku"]: row for row in replicas.sku_rows(on(replica(), "h100-sxm", "h200-sxm"), 1.0)}
    assert rows["h100-sxm"]["decode_ms"] / rows["h200-sxm"]["decode_ms"] == pytest.approx(4.8 / 3.35, rel=1e-3)
    assert rows["h100-sxm"]["prefill_ms"] == pytest.approx(rows["h200-sxm"]["prefill_ms"], rel=0.1)
    assert rows["h100-sxm"]["waits_for"] == "memory" and rows["h100-sxm"]["waits_share"] == pytest.approx(1.0)


def test_rows_of_a_sku_are_its_step_times() -> None:
    config = calibrated(sku="h100-sxm")
    (row,) = replicas.sku_rows(on(config, "h100-sxm", fits=True), 32.0)
    model = pool_model(Pool(role=Role.MIXED, config=config, replicas=1), LENGTHS)
    assert row["decode_ms"] == pytest.approx(1e3 * float(config.timer.times_s(steps.decode_step(model, 32))))
    assert row["low_ms"] < row["decode_ms"] < row["high_ms"]
    assert row["requests"] == math.floor(model.kv_running)
    assert row["timed_by"].startswith("fitted 20") and replicas.timed_by(replica()).startswith("datasheet")


def test_memory_is_weights_activations_cache_and_what_is_left() -> None:
    """Llama-3.3-70B has 70.55e9 weights (model card): 8 bit but for embedding and head, 2.1e9 in 16 bit."""
    config = replica("llama-3.3-70b-instruct", precision=FP8)
    rows = replicas.memory_rows(on(config, "h200-sxm", "l40s"))
    held = {row["part"]: row["gib"] * GIB for row in rows if row["sku"] == "h200-sxm"}
    footprint = memory_footprint(rebuilt(config, sku=HARDWARE.skus["h200-sxm"]))
    assert held["weights"] == pytest.approx(70.55e9 + 2.1e9, rel=0.005)
    assert held["KV cache"] == footprint.kv_capacity_bytes
    assert sum(held.values()) == pytest.approx(HARDWARE.skus["h200-sxm"].seen_bytes)
    small = [row for row in rows if row["sku"] == "l40s"]
    assert [row["part"] for row in small] == list(held)[:-1]
    assert small[-1]["gib"] == 0.0 and small[-1]["requests"] == 0 and "no KV cache" in small[0]["reason"]


def test_a_group_too_large_for_a_sku_is_said_not_drawn() -> None:
    sku = next(s for s in HARDWARE.skus.values() if max(s.node.gpus, s.scale_up.domain_gpus) < 8)
    config = calibrated("llama-3.3-70b-instruct", "h100-sxm", precision=FP8, parallelism=Parallelism(tp=8))
    fitted = on(config, sku.id)
    assert fitted[0].config is None and "in one fast domain" in fitted[0].reason
    assert replicas.memory_rows(fitted) == []
    (row,) = replicas.sku_rows(fitted, 8.0)
    assert row["decode_ms"] is None and row["waits_for"] is None and row["reason"]


def test_a_decode_pool_sees_only_requests_that_decode() -> None:
    lengths = TokenLengths.from_pairs([1000, 1000], [1, 100], [0.5, 0.5])
    pool = Pool(role=Role.DECODE, config=replica(), replicas=1)
    one = on_sku(pool, lengths, "h100-sxm", HARDWARE, calibrated=False)
    assert one.model is not None
    assert one.model.kv_running == pytest.approx(pool_model(pool, LENGTHS).kv_running)
    (row,) = replicas.sku_rows([one], 8.0)
    assert row["prefill_ms"] is None and row["decode_ms"] > 0.0


def test_users_at_the_crowded_end_of_a_curve_are_named_as_far_as_their_labels_stand_apart() -> None:
    """One, two and four users are nearly as fast: their labels lay on one another on a phone."""
    speeds = {1: 98.6, 2: 97.3, 4: 94.6, 8: 90.4, 64: 60.4, 256: 27.7}  # Llama-3.3-70B on 8 x H100
    points: list[Row] = [
        {"users": users, "tokens_per_s_per_user": speed, "output_tokens_per_s_per_gpu": users * speed / 8}
        for users, speed in speeds.items()
    ]
    named = {row["label"] for row in replicas.box_chart(points, "a server").layer[2].data.values}
    assert {"1", "64", "256"} <= named and "2" not in named
