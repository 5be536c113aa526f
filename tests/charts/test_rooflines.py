"""Operators under the roof and ridge points: against datasheets, closed forms and the step times of the engine."""

from __future__ import annotations

import json

import pytest

import planner
from hardware_db import Dtype
from planner.charts import rooflines
from planner.charts.marks import Row
from planner.engine import ReplicaConfig
from planner.engine.replica import step_shape
from planner.llm import Precision
from planner.roofline import OperatorFamily, Parallelism
from planner.search import on_sku
from planner.serving import Pool, Role, pool_model
from planner.workload import TokenLengths
from tests.builders import FP8, HARDWARE, calibrated, replica

LENGTHS = TokenLengths.constant(1000, 100)
H100_BF16_PEAK, H100_BANDWIDTH = 989.4e12, 3.35e12
"""Dense bf16 FLOP/s and HBM3 bytes/s of the H100 SXM datasheet (NVIDIA, 2023)."""
DECODE_1 = step_shape([1000], [])
REPLICA_70B = replica("llama-3.3-70b-instruct", precision=FP8, tp=4)
SHAPES = {"decode": step_shape([1000] * 64, []), "prefill": step_shape([], [(2048, 0)])}


def config(
    sku: str = "h100-sxm", tp: int = 1, llm: str = "llama-3.1-8b", dtype: str = "bf16", activations: str = ""
) -> ReplicaConfig:
    return ReplicaConfig(
        llm=planner.load_llm(llm),
        sku=HARDWARE.skus[sku],
        engine=HARDWARE.engines["vllm"],
        precision=Precision(weights=Dtype(dtype), activations=Dtype(activations or dtype)),
        parallelism=Parallelism(tp=tp),
        max_batched_tokens=2048,
    )


def by_operator(rows: list[Row]) -> dict[str, Row]:
    return {row["operator"]: row for row in rows}


def test_a_single_decode_does_one_flop_per_byte_and_a_long_prompt_runs_at_the_peak() -> None:
    """2 FLOPs per weight of 2 bytes: intensity 1, bound by bandwidth, at bandwidth x 1 FLOP/s."""
    rows = by_operator(rooflines.roofline_rows(config(), {"decode": DECODE_1}))
    for operator in ("QKV", "feed-forward", "LM head"):
        assert rows[operator]["intensity_flops_per_byte"] == pytest.approx(1.0, rel=0.01)
        assert rows[operator]["attained_flops_per_s"] == pytest.approx(H100_BANDWIDTH, rel=0.01)
        assert rows[operator]["bound"] == "memory"
    row = by_operator(rooflines.roofline_rows(config(), {"prefill": SHAPES["prefill"]}))["feed-forward"]
    assert row["attained_flops_per_s"] == pytest.approx(H100_BF16_PEAK, rel=0.001) and row["bound"] == "compute"


def test_the_roof_bends_at_peak_over_bandwidth() -> None:
    roof = rooflines.roof_rows(config(), 1.0, 1e4)
    (ridge,) = [row for row in roof if row["is_ridge"]]
    assert ridge["intensity_flops_per_byte"] == pytest.approx(H100_BF16_PEAK / H100_BANDWIDTH, rel=0.001)
    assert roof[0]["attained_flops_per_s"] == pytest.approx(H100_BANDWIDTH)
    assert roof[-1]["attained_flops_per_s"] == pytest.approx(H100_BF16_PEAK, rel=0.001)


@pytest.mark.parametrize(
    "replica",
    [
        config(),
        config(tp=4, dtype="fp8"),
        config("l40s", dtype="int4", activations="bf16"),
        config("mi300x", llm="mixtral-8x7b-v0.1", dtype="fp8"),
        calibrated("deepseek-v3.2", precision=FP8, parallelism=Parallelism(dp=8, ep=8, pp=2)),
        calibrated("gpt-oss-120b", "b200-sxm"),
    ],
    ids=lambda replica: f"{replica.label} {replica.llm.id}",
)
def test_no_operator_is_above_the_roof(replica: ReplicaConfig) -> None:
    bandwidth = replica.sku.hbm_bandwidth_bytes_per_s.value
    for row in rooflines.roofline_rows(replica, SHAPES):
        roof = min(replica.sku.peak_flops_per_s[Dtype(row["dtype"])].value, bandwidth * row["intensity_flops_per_byte"])
        assert 0.0 < row["attained_flops_per_s"] <= roof * (1 + 1e-9)


@pytest.mark.parametrize("tp", [1, 2])
def test_operator_times_are_those_of_the_step(tp: int) -> None:
    """What a family's row lacks of its time are the passes over activations: rotary embedding, activation function."""
    replica = config(tp=tp)
    step = planner.step_time(replica, [1000] * 64)
    rows = by_operator(rooflines.roofline_rows(replica, {"decode": SHAPES["decode"]}))
    without_flops = (
        OperatorFamily.EMBEDDING,
        OperatorFamily.NORM,
        OperatorFamily.ALL_REDUCE,
        OperatorFamily.ALL_GATHER,
    )
    times_s = {rooflines.FAMILY_WORDS[f]: s for f, s in step.family_s.items() if s > 0 and f not in without_flops}
    second = H100_BANDWIDTH / (32 * 64 * 2)  # values per token and layer that one second moves, 16 bit
    times_s["QKV"] -= 2 * (32 + 8) / tp * 128 / second
    times_s["feed-forward"] -= 3 * 14336 / tp / second
    assert {name: row["time_s"] for name, row in rows.items()} == pytest.approx(times_s, rel=1e-4)
    assert all(row["time_share"] == pytest.approx(row["time_s"] / step.total_s) for row in rows.values())


@pytest.mark.parametrize("llm", ["deepseek-v3.2", "qwen3-next-80b-a3b-thinking", "gpt-oss-120b"])
def test_every_architecture_has_its_operators(llm: str) -> None:
    rows = by_operator(rooflines.roofline_rows(config("h200-sxm", llm=llm, tp=8), SHAPES))
    special = {"deepseek-v3.2": "sparse index", "qwen3-next-80b-a3b-thinking": "recurrence", "gpt-oss-120b": "experts"}
    assert set(rooflines.FAMILY_WORDS) == set(OperatorFamily)
    assert special[llm] in rows and {"QKV", "experts", "LM head"} <= set(rows)


def test_operators_in_one_place_share_a_label() -> None:
    """At batch 1 every weight matrix has intensity 1; attention over 1000 tokens reads other bytes and stands apart."""
    labels = rooflines.label_rows(rooflines.roofline_rows(config(llm="llama-2-7b"), {"decode": DECODE_1}))
    assert [row["label"] for row in labels] == ["feed-forward + 4"]  # MHA: one query per key, intensity 1 as well
    labels = rooflines.label_rows(rooflines.roofline_rows(config(), {"decode": DECODE_1}))
    assert [row["label"] for row in labels] == ["feed-forward + 3", "decode attention"]  # GQA: 4 queries per key


def test_a_pool_is_described_by_the_steps_it_runs() -> None:
    for role, kinds in ((Role.MIXED, ["decode step", "prefill step"]), (Role.PREFILL, ["prefill step"])):
        model = pool_model(Pool(role=role, config=replica(max_batched_tokens=2048), replicas=1), LENGTHS)
        shapes = rooflines.steps_of(model.pool, 7.0, model.costs)
        assert [name.split(",")[0] for name in shapes] == kinds
        assert float(shapes["prefill step, 2,048 tokens"].chunk_tokens) == 2048
        if role is Role.MIXED:
            assert float(shapes["decode step, 7 running"].decodes) == 7.0


@pytest.mark.parametrize(
    ("sku", "dtype", "weights", "tokens"),
    [
        ("h100-sxm", "bf16", "bf16", 989.4 / 3.35),  # NVIDIA H100 datasheet: dense TFLOP/s over TB/s
        ("h100-sxm", "fp8", "fp8", 1978.9 / 3.35 / 2),
        ("a100-sxm-80gb", "bf16", "bf16", 312.0 / 2.039),  # NVIDIA A100 80GB datasheet
        ("a100-sxm-80gb", "bf16", "int8", 312.0 / 2.039 / 2),  # half the bytes, the same arithmetic
    ],
)
def test_products_wait_for_compute_from_the_ridge_on(sku: str, dtype: str, weights: str, tokens: float) -> None:
    (row,) = [
        row
        for row in rooflines.ridge_rows([HARDWARE.skus[sku]], {Dtype(dtype): Dtype(weights)})
        if row["dtype"] == dtype
    ]
    assert row["compute_bound_tokens"] == pytest.approx(tokens, rel=2e-3)


def test_ridges_carry_the_sources_of_their_facts() -> None:
    rows = rooflines.ridge_rows(HARDWARE.skus.values())
    assert {row["sku"] for row in rows} == set(HARDWARE.skus)
    for row in rows:
        sku = HARDWARE.skus[row["sku"]]
        peak = sku.peak_flops_per_s[Dtype(row["dtype"])]
        assert (row["peak_source"], row["peak_retrieved_on"]) == (peak.source, peak.retrieved_on.isoformat())
        assert row["bandwidth_source"] == sku.hbm_bandwidth_bytes_per_s.source
        assert row["ridge_flops_per_byte"] * row["bandwidth_bytes_per_s"] == pytest.approx(row["peak_flops_per_s"])
    formats = {sku: [row["dtype"] for row in rows if row["sku"] == sku] for sku in ("h100-sxm", "t4")}
    assert "bf16" in formats["h100-sxm"] and "fp16" not in formats["h100-sxm"]  # sixteen bits stand once
    assert "fp16" in formats["t4"]  # no bf16 units


def test_the_share_of_the_roof_is_attained_over_roof() -> None:
    """Decode attention is one operator, so its share follows from its place in the picture; unmeasured it is 1."""
    config = calibrated()
    rows = by_operator(rooflines.roofline_rows(config, {"decode": SHAPES["decode"]}))
    row, bandwidth = rows["decode attention"], config.sku.hbm_bandwidth_bytes_per_s.value
    assert row["roof_share"] == pytest.approx(
        row["attained_flops_per_s"] / (bandwidth * row["intensity_flops_per_byte"])
    )
    assert all(0.0 < row["roof_share"] <= 1.0 + 1e-9 for row in rows.values())
    for row in rooflines.roofline_rows(replica(), {"decode": SHAPES["decode"]}):
        assert row["roof_share"] == pytest.approx(1.0)
        assert row["timed_by"] == "not measured: roofline of the datasheet"


def test_every_operator_says_where_its_time_comes_from() -> None:
    own = calibrated()
    assert own.calibration is not None
    fit = own.calibration.kernels["gemm/bf16"]
    int4 = Precision(weights=Dtype.INT4, activations=Dtype.BF16, kv_cache=Dtype.BF16)
    for config, words in (
        (
            own,
            f"{own.calibration.stack}, gemm/bf16: {100 * fit.median_error:.0f} % median error on {fit.held_out:,} held",
        ),
        (calibrated(sku="h100-pcie"), "not measured on H100 PCIe: shares of peak of H"),
        (calibrated(sku="h100-sxm", precision=int4), "in place of gemm/int4_wo"),
    ):
        assert words in by_operator(rooflines.roofline_rows(config, {"decode": SHAPES["decode"]}))["QKV"]["timed_by"]


def test_roofs_side_by_side_have_one_scale_and_the_same_steps() -> None:
    """Only the heights of operators and roofs may differ: what a step does is the same on every GPU."""
    found = [
        on_sku(Pool(role=Role.MIXED, config=REPLICA_70B, replicas=3), LENGTHS, sku, HARDWARE, calibrated=False)
        for sku in ("h100-sxm", "h200-sxm")
    ]
    configs = {one.sku: one.config for one in found if one.config is not None}
    shapes = {
        "decode step, 8 running": step_shape([1000] * 8, []),
        "prefill step, 512 tokens": step_shape([], [(512, 0)]),
    }
    points = {sku: rooflines.roofline_rows(config, shapes) for sku, config in configs.items()}
    drawn = rooflines.rooflines_side_by_side(configs, points, dict.fromkeys(configs, ("decode 1 ms",)))
    axes = [
        [layer["encoding"][axis]["scale"]["domain"] for axis in "xy" for layer in chart.to_dict()["layer"]]
        for chart in drawn.values()
    ]
    assert list(drawn) == ["h100-sxm", "h200-sxm"] and axes[0] == axes[1]
    text = json.dumps(rooflines.roofline(configs["h200-sxm"], SHAPES).to_dict(), allow_nan=False)
    assert "bf16: 989.4" in text and "fp8: 1,979" in text  # NVIDIA H200 datasheet, dense
    for one, other in zip(*points.values(), strict=True):
        assert one["intensity_flops_per_byte"] == other["intensity_flops_per_byte"]
        assert axes[0][0][0] <= one["intensity_flops_per_byte"] <= axes[0][0][1]
        if one["step"].startswith("decode"):  # 4.8 TB/s of the H200 over 3.35 TB/s of the H100
            assert other["attained_flops_per_s"] / one["attained_flops_per_s"] == pytest.approx(4.8 / 3.35, rel=1e-3)
