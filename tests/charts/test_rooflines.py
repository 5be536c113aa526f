"""Rooflines, steps, batches and memory as rows: against datasheets, closed forms and the engine's own functions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import planner
from hardware_db import Dtype, EngineCosts
from planner.charts import replicas, rooflines, steps
from planner.charts.marks import GREY
from planner.core import Metric, rebuilt
from planner.engine import ReplicaConfig, Speculation, memory_footprint
from planner.engine.replica import step_shape
from planner.llm import Precision
from planner.roofline import Bound, Parallelism
from planner.search import PoolOnSku, on_sku
from planner.serving import Deployment, Pool, PoolModel, Role, evaluate, pool_model, step_spread
from planner.serving.uncertainty import interval_90
from planner.workload import LatencyTarget, Slo, TokenLengths, Workload
from tests.builders import FP8, HARDWARE, calibrated, replica
from tests.charts.titles import title_of

LENGTHS = TokenLengths.constant(1000, 100)
SLO = Slo(targets=(LatencyTarget(metric=Metric.TPOT, percentile=0.99, threshold_s=0.05),))
H100 = HARDWARE.skus["h100-sxm"]


def modelled(config: ReplicaConfig, role: Role = Role.MIXED) -> PoolModel:
    return pool_model(Pool(role=role, config=config, replicas=1), LENGTHS)


PLAIN = modelled(replica())
FITTED = modelled(calibrated("llama-3.3-70b-instruct", precision=FP8, parallelism=Parallelism(tp=4)))


# --- ridge points -----------------------------------------------------------------------------------------------------


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


def test_sixteen_bit_formats_stand_once() -> None:
    formats = [row["dtype"] for row in rooflines.ridge_rows([H100])]
    assert "bf16" in formats and "fp16" not in formats
    assert "fp16" in [row["dtype"] for row in rooflines.ridge_rows([HARDWARE.skus["t4"]])]  # no bf16 units


# --- operators under the roof -----------------------------------------------------------------------------------------


def test_without_measurements_every_operator_is_on_its_roof() -> None:
    rows = rooflines.roofline_rows(replica(), {"decode": step_shape([1000] * 64, [])})
    assert all(row["roof_share"] == pytest.approx(1.0) for row in rows)
    assert {row["timed_by"] for row in rows} == {"not measured: roofline of the datasheet"}


def test_the_share_of_the_roof_is_attained_over_roof() -> None:
    """Decode attention is one operator, so its share follows from its place in the picture."""
    config = calibrated()
    rows = rooflines.roofline_rows(config, {"decode": step_shape([1000] * 64, [])})
    (row,) = [row for row in rows if row["operator"] == "decode attention"]
    bandwidth = config.sku.hbm_bandwidth_bytes_per_s.value
    assert row["roof_share"] == pytest.approx(
        row["attained_flops_per_s"] / (bandwidth * row["intensity_flops_per_byte"])
    )
    assert all(0.0 < row["roof_share"] <= 1.0 + 1e-9 for row in rows)


def test_every_operator_says_where_its_time_comes_from() -> None:
    shape = {"decode": step_shape([1000] * 64, [])}

    def of(config: ReplicaConfig, operator: str) -> str:
        (text,) = [row["timed_by"] for row in rooflines.roofline_rows(config, shape) if row["operator"] == operator]
        return str(text)

    own = calibrated()
    assert own.calibration is not None
    fit = own.calibration.kernels["gemm/bf16"]
    assert of(own, "QKV") == (
        f"fitted {own.calibration.fitted_on}, {own.calibration.stack}, gemm/bf16: "
        f"{100 * fit.median_error:.0f} % median error on {fit.held_out:,} held out"
    )
    assert of(calibrated(sku="h100-pcie"), "QKV").startswith("not measured on h100-pcie: shares of peak of h")
    assert of(calibrated(sku="mi300x"), "QKV").startswith("not measured on mi300x: shares of peak of mi325x, fitted")
    int4 = Precision(weights=Dtype.INT4, activations=Dtype.BF16, kv_cache=Dtype.BF16)
    assert "in place of gemm/int4_wo" in of(calibrated(sku="h100-sxm", precision=int4), "QKV")


def test_steps_of_a_pool_are_those_of_its_mean() -> None:
    deployment = Deployment.mixed(replica())
    performance = evaluate(deployment, Workload.of(5.0, LENGTHS)).pools[0]
    shapes = rooflines.pool_shapes(deployment.pools[0], performance, LENGTHS)
    again = rooflines.steps_of(deployment.pools[0], max(1.0, performance.mean_running), PLAIN.costs)
    assert list(shapes) == list(again)
    assert [float(shape.decodes) for shape in shapes.values()] == [float(shape.decodes) for shape in again.values()]


# --- parts of a step --------------------------------------------------------------------------------------------------

STEPPED = [PLAIN, FITTED, modelled(calibrated("gpt-oss-120b", "b200-sxm", parallelism=Parallelism(tp=2)))]


@pytest.mark.parametrize("model", STEPPED, ids=lambda model: model.pool.config.label)
@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_parts_add_up_to_the_step(model: PoolModel, kind: str) -> None:
    shape = steps.decode_step(model, 40) if kind == "decode" else steps.prefill_step(model, 2048)
    rows, whole = steps.step_rows(model, shape), model.pool.config.timer.step_time(shape)
    assert rows[-1]["end_ms"] == pytest.approx(1e3 * whole.total_s)
    assert sum(row["share"] for row in rows) == pytest.approx(1.0)
    assert all(one["end_ms"] == pytest.approx(other["start_ms"]) for one, other in pairwise(rows))
    families = {row["part"]: row["time_ms"] for row in rows if row["part"] not in (steps.ENGINE, steps.OVERLAP)}
    spent = {rooflines.FAMILY_WORDS[family]: 1e3 * s for family, s in whole.family_s.items() if s > 0.0}
    assert families == pytest.approx(spent)


def test_a_step_waits_for_what_theory_says() -> None:
    """One token reads all weights; 2048 tokens are far above the ridge of 295; shards wait for each other's sums."""
    decode = {row["part"]: row["waits_for"] for row in steps.step_rows(PLAIN, steps.decode_step(PLAIN, 1))}
    prefill = {row["part"]: row["waits_for"] for row in steps.step_rows(PLAIN, steps.prefill_step(PLAIN, 2048))}
    assert set(decode.values()) == {"memory"}
    assert prefill["feed-forward"] == prefill["QKV"] == "compute" and prefill["norms"] == "memory"
    parts = {row["part"]: row["waits_for"] for row in steps.step_rows(FITTED, steps.decode_step(FITTED, 40))}
    assert parts["all-reduce"] == "link" and parts[steps.ENGINE] == "overhead"


def test_shares_of_resources_are_those_of_the_step_time() -> None:
    """Families of one kind of operator only split as `StepTime.bound_s`; a few passes hide in larger ones."""
    shape = steps.decode_step(FITTED, 40)
    whole = FITTED.pool.config.timer.step_time(shape)
    shares = steps.bound_shares(steps.step_rows(FITTED, shape))
    for bound, share in shares.items():
        assert share == pytest.approx(whole.bound_s[bound] / whole.total_s, abs=0.02)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)


def test_kernels_that_overlap_make_the_last_part_negative() -> None:
    config = FITTED.pool.config
    costs = EngineCosts(gap_s=-2e-6)
    engine = config.engine.model_copy(update={"costs": costs, "costs_by_architecture": {}})
    model = modelled(rebuilt(config, engine=engine))
    shape = steps.decode_step(model, 40)
    rows = steps.step_rows(model, shape)
    assert rows[-1]["part"] == steps.OVERLAP and rows[-1]["time_ms"] < 0.0
    assert rows[-1]["end_ms"] == pytest.approx(1e3 * float(model.pool.config.timer.times_s(shape)))
    assert Bound.OVERHEAD not in {bound for bound, share in steps.bound_shares(rows).items() if share > 0.0}


def test_grammar_masks_are_a_part_of_their_own() -> None:
    model = modelled(replica(mask_s=1e-4))
    rows = steps.step_rows(model, steps.decode_step(model, 40))
    assert rows[-1]["part"] == steps.EXTRAS
    assert rows[-1]["time_ms"] == pytest.approx(40 * 0.1)


# --- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_takes_what_its_bytes_take() -> None:
    """On a roofline a decode step reads weights once and every sequence's cache: bytes over bandwidth.

    Llama-3.1-8B: 7.50e9 weights outside the embedding in 16 bit, 2 x 32 x 8 x 128 cached values per token.
    """
    rows = {row["batch"]: row for row in steps.batch_rows(PLAIN)}
    context = PLAIN.costs.decode_context
    weights, cache = 2 * 7.504e9, 2 * 2 * 32 * 8 * 128 * context
    for batch in (1, 2, 8):
        ideal_ms = 1e3 * (weights + batch * cache) / H100.hbm_bandwidth_bytes_per_s.value
        assert rows[batch]["step_ms"] == pytest.approx(ideal_ms, rel=0.02)


def test_a_sweep_says_what_the_step_time_says() -> None:
    context = round(PLAIN.costs.decode_context)
    for row in steps.batch_rows(PLAIN)[::20]:
        alone = planner.step_time(PLAIN.pool.config, [context] * row["batch"])
        assert row["step_ms"] == pytest.approx(1e3 * alone.total_s, rel=0.002)
        assert row["tokens_per_s_per_gpu"] == pytest.approx(1e3 * row["batch"] / row["step_ms"])


def test_more_sequences_never_make_a_token_faster() -> None:
    for model in (PLAIN, FITTED):
        times = [row["tpot_ms"] for row in steps.batch_rows(model)]
        assert all(later >= earlier * (1 - 1e-9) for earlier, later in pairwise(times))


def test_a_sweep_reaches_beyond_the_cache_and_says_so() -> None:
    rows = steps.batch_rows(PLAIN, batch=77)
    assert [row["fits"] for row in rows] == [row["batch"] <= PLAIN.kv_running for row in rows]
    assert {math.floor(PLAIN.kv_running), 77, 256} <= {row["batch"] for row in rows}
    assert rows[-1]["batch"] > PLAIN.kv_running


def test_what_fits_is_what_the_memory_holds() -> None:
    """Requests of 1000 tokens, half of 100 more on average, half a block of 16: tokens of the cache over 1058."""
    tokens = memory_footprint(PLAIN.pool.config).kv_capacity_tokens
    assert PLAIN.kv_running == pytest.approx(tokens / 1058, rel=1e-3)


def test_intervals_are_those_of_the_fits() -> None:
    assert all(row["low_ms"] == row["step_ms"] == row["high_ms"] for row in steps.batch_rows(PLAIN)[::10])
    for row in steps.batch_rows(FITTED)[::20]:
        spread = step_spread(FITTED.pool.config, steps.decode_step(FITTED, row["batch"]))
        assert (row["low_ms"], row["high_ms"]) == pytest.approx(interval_90(row["step_ms"], spread))
        assert row["low_ms"] < row["step_ms"] < row["high_ms"]


def test_drafts_that_are_always_right_divide_the_time_of_a_token() -> None:
    """Leviathan et al. 2023, eq. 1 with acceptance 1: k guesses give k + 1 tokens per step."""
    drafting = modelled(replica(speculation=Speculation(draft_tokens=3, acceptance=1.0, draft_cost=0.0)))
    row = steps.decode_row(drafting, 8)
    assert row["tpot_ms"] == pytest.approx(row["step_ms"] / 4)
    assert row["tokens_per_s_per_gpu"] == pytest.approx(1e3 * 8 * 4 / row["step_ms"])


def test_a_prefill_pool_is_swept_over_prompt_tokens() -> None:
    model = modelled(replica(max_batched_tokens=2048), Role.PREFILL)
    rows = steps.batch_rows(model)
    assert rows[0]["batch"] == 16 and rows[-1]["batch"] == 3072 and all(row["fits"] for row in rows)
    assert [mark["label"] for mark in steps.batch_marks(model)] == ["chunk budget 2,048"]
    flops = 2 * 7.0e9  # per token: two for each weight that every token meets (no LM head)
    assert 0.85 * H100.peak_flops_per_s[Dtype.BF16].value < rows[-1]["tokens_per_s_per_gpu"] * flops
    assert rows[-1]["tokens_per_s_per_gpu"] * flops < H100.peak_flops_per_s[Dtype.BF16].value


def test_marks_name_the_plan_the_choice_and_the_limits() -> None:
    marks = steps.batch_marks(PLAIN, running=12.3, chosen=64)
    assert [mark["label"].split()[0] for mark in marks] == ["planned", "chosen", "batch", "KV"] or [
        mark["label"].split()[0] for mark in marks
    ] == ["planned", "chosen", "KV", "batch"]
    assert [mark["batch"] for mark in marks] == sorted(mark["batch"] for mark in marks)
    assert not any("chosen" in mark["label"] for mark in steps.batch_marks(PLAIN, running=12.3, chosen=12))
    assert len(steps.batch_marks(PLAIN)) == 2


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
    model = modelled(config)
    assert row["decode_ms"] == pytest.approx(1e3 * float(config.timer.times_s(steps.decode_step(model, 32))))
    assert row["low_ms"] < row["decode_ms"] < row["high_ms"]
    assert row["requests"] == math.floor(model.kv_running)
    assert row["timed_by"].startswith("fitted 20") and replicas.timed_by(replica()).startswith("datasheet")


def test_memory_is_weights_activations_cache_and_what_is_left() -> None:
    """Llama-3.3-70B has 70.55e9 weights (model card): 8 bit but for embedding and head, 2.1e9 in 16 bit."""
    config = replica("llama-3.3-70b-instruct", precision=FP8)
    rows = replicas.memory_rows(on(config, "h200-sxm", "l40s"))
    held = {row["part"]: row["gib"] * replicas.GIB for row in rows if row["sku"] == "h200-sxm"}
    footprint = memory_footprint(rebuilt(config, sku=HARDWARE.skus["h200-sxm"]))
    assert held["weights"] == pytest.approx(70.55e9 + 2.1e9, rel=0.005)
    assert held["KV cache"] == footprint.kv_capacity_bytes
    assert sum(held.values()) == pytest.approx(HARDWARE.skus["h200-sxm"].seen_bytes)
    small = [row for row in rows if row["sku"] == "l40s"]
    assert [row["part"] for row in small] == [part for part in replicas.MEMORY_COLORS if part != "not the engine's"]
    assert small[-1]["gib"] == 0.0 and small[-1]["requests"] == 0 and "no KV cache" in small[0]["reason"]


def test_a_group_too_large_for_a_sku_is_said_not_drawn() -> None:
    sku = next(s for s in HARDWARE.skus.values() if max(s.node.gpus, s.scale_up.domain_gpus) < 8)
    config = calibrated("llama-3.3-70b-instruct", "h100-sxm", precision=FP8, parallelism=Parallelism(tp=8))
    fitted = on(config, sku.id)
    assert fitted[0].config is None and "in one fast domain" in fitted[0].reason
    assert replicas.memory_rows(fitted) == []
    (row,) = replicas.sku_rows(fitted, 8.0)
    assert row["decode_ms"] is None and row["waits_for"] is None and row["reason"]


def test_a_request_that_does_not_fit_leaves_the_bar_and_no_times() -> None:
    lengths = TokenLengths.constant(120_000, 100)
    pool = Pool(role=Role.MIXED, config=replica(sku=HARDWARE.skus["h200-sxm"]), replicas=1)
    one = on_sku(pool, lengths, "l4", HARDWARE, calibrated=False)
    assert one.config is not None and one.model is None and "longest request" in one.reason
    assert {row["requests"] for row in replicas.memory_rows([one])} == {0}


def test_a_decode_pool_sees_only_requests_that_decode() -> None:
    lengths = TokenLengths.from_pairs([1000, 1000], [1, 100], [0.5, 0.5])
    pool = Pool(role=Role.DECODE, config=replica(), replicas=1)
    one = on_sku(pool, lengths, "h100-sxm", HARDWARE, calibrated=False)
    assert one.model is not None
    assert one.model.kv_running == pytest.approx(pool_model(pool, LENGTHS).kv_running)
    (row,) = replicas.sku_rows([one], 8.0)
    assert row["prefill_ms"] is None and row["decode_ms"] > 0.0


# --- pictures ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures() -> dict[str, dict[str, object]]:
    config, shape = FITTED.pool.config, steps.decode_step(FITTED, 40)
    prefill = modelled(replica(), Role.PREFILL)
    sweep, marks = steps.batch_rows(FITTED), steps.batch_marks(FITTED, 40, 64)
    chunks, budget = steps.batch_rows(prefill), steps.batch_marks(prefill)
    memory = replicas.memory_rows(on(replica("llama-3.3-70b-instruct", precision=FP8), "h200-sxm", "l40s"))
    found = {
        "parts": steps.step_chart(steps.step_rows(FITTED, shape), "decode step, 40 running", config.label),
        "time": steps.batch_time_chart(sweep, marks, config.label, Role.MIXED, SLO),
        "tokens": steps.batch_throughput_chart(sweep, marks, config.label, Role.MIXED),
        "chunk": steps.batch_time_chart(chunks, budget, "h100-sxm TP1", Role.PREFILL, SLO),
        "chunk tokens": steps.batch_throughput_chart(chunks, budget, "h100-sxm TP1", Role.PREFILL),
        "memory": replicas.memory_chart(memory, "h200-sxm", "TP1"),
        "roofline": rooflines.roofline(config, rooflines.steps_of(FITTED.pool, 40, FITTED.costs)),
    }
    return {name: chart.to_dict() for name, chart in found.items()}


def test_pictures_are_valid_and_say_what_they_show(pictures: dict[str, dict[str, Any]]) -> None:
    for spec in pictures.values():
        assert json.loads(json.dumps(spec, allow_nan=False)) == spec
        assert "-sxm TP4" in title_of(spec) or "TP1" in title_of(spec)
        assert spec["description"]


def test_axes_carry_units(pictures: dict[str, dict[str, object]]) -> None:
    def nodes(tree: object) -> Iterator[dict[str, object]]:
        if isinstance(tree, dict):
            yield tree
            for value in tree.values():
                yield from nodes(value)
        elif isinstance(tree, list):
            for value in tree:
                yield from nodes(value)

    titles = {
        node["title"]
        for spec in pictures.values()
        for node in nodes(spec)
        if node.get("type") == "quantitative" and "scale" in node and node.get("title")
    }
    assert titles == {
        "Time in the step (ms)",
        "Time per output token (ms)",
        "Output tokens/s per GPU",
        "Prefill step (ms)",
        "Prompt tokens/s per GPU",
        "Sequences in a step (log scale)",
        "Prompt tokens in a step (log scale)",
        "HBM of one GPU (GiB)",
        "Arithmetic intensity (FLOP per byte of HBM traffic)",
        "Attained per GPU (TFLOP/s)",
    }


def test_colours_are_told_apart_by_the_colour_blind(pictures: dict[str, dict[str, object]]) -> None:
    """The palette of Okabe and Ito (2008), https://jfly.uni-koeln.de/color/, and one grey."""
    palette = {"#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", GREY}
    text = json.dumps([{k: v for k, v in spec.items() if k != "config"} for spec in pictures.values()])
    used = {word[:7] for word in text.split('"') if word.startswith("#") and len(word) == 7}
    assert used and used <= palette


def test_roofs_are_named_by_the_peaks_of_the_datasheet(pictures: dict[str, dict[str, object]]) -> None:
    """NVIDIA H200 datasheet: 989.4 dense bf16 and 1,978.9 dense fp8 TFLOP/s."""
    text = json.dumps(pictures["roofline"])
    assert "bf16 peak: 989.4 TFLOP/s" in text and "fp8 peak: 1,979 TFLOP/s" in text


def test_roofs_side_by_side_have_one_scale_and_the_same_steps() -> None:
    """Only the heights of operators and roofs may differ: what a step does is the same on every GPU."""
    found = on(replica("llama-3.3-70b-instruct", precision=FP8, tp=4), "h100-sxm", "h200-sxm")
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
    for one, other in zip(*points.values(), strict=True):
        assert one["intensity_flops_per_byte"] == other["intensity_flops_per_byte"]
        assert axes[0][0][0] <= one["intensity_flops_per_byte"] <= axes[0][0][1]
        if one["step"].startswith("decode"):  # 4.8 TB/s of the H200 over 3.35 TB/s of the H100
            assert other["attained_flops_per_s"] / one["attained_flops_per_s"] == pytest.approx(4.8 / 3.35, rel=1e-3)


def test_words_above_a_curve_have_room(pictures: dict[str, dict[str, object]]) -> None:
    """Each mark has a line of words of its own under the top of the picture; the curve ends below them."""
    spec: dict[str, Any] = pictures["tokens"]
    layers = spec["layer"]
    top = layers[0]["encoding"]["y"]["scale"]["domain"][1]
    highest = max(row["tokens_per_s_per_gpu"] for row in spec["datasets"][layers[0]["data"]["name"]])
    lowest_words = max(layer["mark"].get("dy", 0) for layer in layers if layer["mark"]["type"] == "text") + 6
    assert highest / top <= 1.0 - lowest_words / 250.0  # of a picture of 340 px about 250 are left to the curve


def test_the_batch_picture_has_target_plan_choice_and_limits(pictures: dict[str, dict[str, object]]) -> None:
    text = json.dumps(pictures["time"], ensure_ascii=False)
    for label in ("target: p99 ≤ 50 ms", "planned mean 40", "chosen 64", "batch limit 256", "KV cache full"):
        assert label in text
    assert "target" not in json.dumps(pictures["chunk"])


def test_rows_are_plain_values() -> None:
    rows = steps.batch_rows(FITTED)[:3] + steps.step_rows(FITTED, steps.decode_step(FITTED, 40))
    rows += replicas.memory_rows(on(replica(), "h100-sxm")) + replicas.sku_rows(on(replica(), "h100-sxm"), 4.0)
    rows += rooflines.ridge_rows([H100]) + steps.batch_marks(FITTED, 4.0)
    assert all(isinstance(value, str | float | int | bool | None) for row in rows for value in row.values())
    assert not any(isinstance(value, np.generic) and not isinstance(value, float) for r in rows for value in r.values())
