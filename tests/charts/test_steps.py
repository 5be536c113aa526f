"""Steps and batches as rows: against datasheets, closed forms and the engine's own functions."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import pytest

import planner
from hardware_db import Dtype, EngineCosts
from planner.charts import rooflines, steps
from planner.core import Metric, rebuilt
from planner.engine import ReplicaConfig, Speculation
from planner.roofline import Bound, Parallelism
from planner.serving import Pool, PoolModel, Role, pool_model, step_spread
from planner.serving.uncertainty import interval_90
from planner.workload import LatencyTarget, Slo, TokenLengths
from tests.builders import FP8, HARDWARE, calibrated, replica

LENGTHS = TokenLengths.constant(1000, 100)
SLO = Slo(targets=(LatencyTarget(metric=Metric.TPOT, percentile=0.99, threshold_s=0.05),))
H100 = HARDWARE.skus["h100-sxm"]


def modelled(config: ReplicaConfig, role: Role = Role.MIXED) -> PoolModel:
    return pool_model(Pool(role=role, config=config, replicas=1), LENGTHS)


PLAIN = modelled(replica())


FITTED = modelled(calibrated("llama-3.3-70b-instruct", precision=FP8, parallelism=Parallelism(tp=4)))


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
    engine = config.engine.with_costs(costs)
    model = modelled(rebuilt(config, engine=engine))
    shape = steps.decode_step(model, 40)
    rows = steps.step_rows(model, shape)
    assert rows[-1]["part"] == steps.OVERLAP and rows[-1]["time_ms"] < 0.0
    assert rows[-1]["end_ms"] == pytest.approx(1e3 * float(model.pool.config.timer.times_s(shape)))
    assert Bound.OVERHEAD not in {bound for bound, share in steps.bound_shares(rows).items() if share > 0.0}


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


def test_a_sweep_reaches_beyond_the_cache_and_says_so() -> None:
    rows = steps.batch_rows(PLAIN, batch=77)
    assert [row["fits"] for row in rows] == [row["batch"] <= PLAIN.kv_running for row in rows]
    assert {math.floor(PLAIN.kv_running), 77, 256} <= {row["batch"] for row in rows}
    assert rows[-1]["batch"] > PLAIN.kv_running
    times = [row["tpot_ms"] for row in rows]
    assert all(later >= earlier * (1 - 1e-9) for earlier, later in pairwise(times))


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
    assert [mark["label"].split()[0] for mark in marks][:2] == ["planned", "chosen"]
    assert sorted(mark["label"].split()[0] for mark in marks[2:]) == ["KV", "batch"]
    assert [mark["batch"] for mark in marks] == sorted(mark["batch"] for mark in marks)
    assert not any("chosen" in mark["label"] for mark in steps.batch_marks(PLAIN, running=12.3, chosen=12))
    assert len(steps.batch_marks(PLAIN)) == 2


def test_pictures_have_target_plan_choice_and_limits_with_room_for_their_words() -> None:
    """Each mark has a line of words of its own under the top of the picture; the curve ends below them."""
    prefill = modelled(replica(), Role.PREFILL)
    sweep, marks, label = steps.batch_rows(FITTED), steps.batch_marks(FITTED, 40, 64), FITTED.pool.config.label
    text = json.dumps(steps.batch_time_chart(sweep, marks, label, Role.MIXED, SLO).to_dict(), ensure_ascii=False)
    for words in ("target: p99 ≤ 50 ms", "planned mean 40", "chosen 64", "batch limit 256", "KV cache full"):
        assert words in text
    chunks, budget = steps.batch_rows(prefill), steps.batch_marks(prefill)
    assert "target" not in json.dumps(steps.batch_time_chart(chunks, budget, "TP1", Role.PREFILL, SLO).to_dict())
    assert steps.step_chart(
        steps.step_rows(FITTED, steps.decode_step(FITTED, 40)), "decode step, 40 running", label
    ).to_dict()
    spec: dict[str, Any] = steps.batch_throughput_chart(sweep, marks, label, Role.MIXED).to_dict()
    layers = spec["layer"]
    top = layers[0]["encoding"]["y"]["scale"]["domain"][1]
    highest = max(row["tokens_per_s_per_gpu"] for row in spec["datasets"][layers[0]["data"]["name"]])
    lowest_words = max(text["mark"].get("dy", 0) for layer in layers for text in layer.get("layer", ())) + 6
    assert highest / top <= 1.0 - lowest_words / 250.0  # of a picture of 340 px about 250 are left to the curve
