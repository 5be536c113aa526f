"""Step time of a replica: cases worked by hand, limits, monotonicity."""

from __future__ import annotations

import pytest

from hardware_db import Dtype, GpuSku
from planner.core import InputError
from planner.engine import (
    Schedule,
    step_time,
)
from planner.engine.replica import _has_layers_of
from planner.llm import Part, PartPrecision, Precision, load_llm
from planner.roofline import Bound
from tests.builders import FP8, H100, HARDWARE, calibrated, replica, weights_bytes_per_gpu


def with_bandwidth(factor: float) -> GpuSku:
    """An H100 with another memory bandwidth."""
    fact = H100.hbm_bandwidth_bytes_per_s
    return H100.model_copy(update={"hbm_bandwidth_bytes_per_s": fact.model_copy(update={"value": factor * fact.value})})


class TestLlama8bOnH100ByHand:
    """Llama-3-8B in bf16 on one H100 SXM: 3.35 TB/s, 989.4 TFLOP/s."""

    def test_weights_take_16_gb(self) -> None:
        # 8.030 G parameters * 2 bytes = 16.06 GB, and sines and cosines of 131,072 positions and 128 channels
        assert weights_bytes_per_gpu(replica()) == 2 * 8_030_261_248 + 2 * 131_072 * 128

    def test_a_decode_step_streams_every_weight_but_the_looked_up_embedding_table(self) -> None:
        # All 16.06 GB over 3.35 TB/s would take 4.79 ms. The input embedding (128256 * 4096 * 2 B = 1.05 GB) is a
        # look-up of one row, not a stream, so 15.01 GB remain: 4.48 ms, plus KV and activations below 1 %.
        whole, table = 16.0605e9 / 3.35e12, 128256 * 4096 * 2 / 3.35e12
        assert whole == pytest.approx(4.794e-3, rel=1e-3)
        seconds = step_time(replica(), decode_contexts=[1]).total_s
        assert whole - table <= seconds <= 1.01 * (whole - table)

    def test_batch_32_reads_the_weights_once(self) -> None:
        one = step_time(replica(), decode_contexts=[1]).total_s
        batch = step_time(replica(), decode_contexts=[1] * 32).total_s
        assert one < batch < 1.03 * one  # 32 times the tokens for 2 % more time

    def test_kv_of_32_sequences_at_1000_tokens(self) -> None:
        # 32 * 1000 tokens * 131072 B / 3.35e12 B/s = 1.252 ms more
        short = step_time(replica(), decode_contexts=[1] * 32).total_s
        long = step_time(replica(), decode_contexts=[1001] * 32).total_s
        assert long - short == pytest.approx(32_000 * 131_072 / 3.35e12, rel=0.005)

    def test_prefill_is_compute_bound_and_decode_memory_bound(self) -> None:
        # 2048 tokens: 2 * 6.98e9 layer weights * 2048 / 989.4e12 = 28.9 ms of matrix work
        prefill = step_time(replica(), chunks=[(2048, 0)])
        assert prefill.bound is Bound.COMPUTE
        assert prefill.bound_s[Bound.COMPUTE] == pytest.approx(28.9e-3 + 1.1e-3, rel=0.01)
        assert step_time(replica(), decode_contexts=[100]).bound is Bound.MEMORY


def test_a_calibration_slows_and_says_whose_it_is() -> None:
    plain = replica("llama-3.1-70b", HARDWARE.skus["h200-sxm"], precision=FP8)
    fitted = calibrated("llama-3.1-70b", precision=FP8)
    for contexts, chunks in (([1000] * 64, []), ([], [(2048, 0)]), ([500] * 8, [(512, 512)])):
        bound = step_time(plain, contexts, chunks).total_s
        assert bound < step_time(fitted, contexts, chunks).total_s < 4 * bound
    assert any("uncalibrated" in note for note in plain.assumptions)
    assert not any("uncalibrated" in note for note in fitted.assumptions)
    borrowed = calibrated(sku="h100-pcie").assumptions
    assert any(note.startswith("h100-pcie: not measured: shares of peak as fitted on h") for note in borrowed)


def test_the_schedule_is_the_engines_unless_another_is_given() -> None:
    engine = HARDWARE.engines["vllm"]
    own = Schedule(mixed_steps=False, whole_prompts=True)
    assert replica().schedule.mixed_steps is engine.mixed_steps
    assert replica(own_schedule=own).schedule is own


def test_formats_a_gpu_cannot_multiply_and_kernels_that_stand_in_are_named_part_by_part() -> None:
    nvfp4 = Precision(weights=Dtype.NVFP4, activations=Dtype.NVFP4)
    notes = calibrated(sku="h100-sxm", precision=nvfp4).assumptions
    assert any("no nvfp4 matrix units, nvfp4 weights are dequantised and multiplied in bf16" in note for note in notes)
    assert any("gemm/nvfp4_wo is not measured, gemm/" in note for note in notes)
    experts = PartPrecision(part=Part.EXPERTS, weights=Dtype.MXFP4, activations=Dtype.MXFP4)
    mixed = calibrated(sku="h100-sxm").model_copy(
        update={"llm": load_llm("gpt-oss-120b"), "precision": Precision(parts=(experts,))}
    )
    assert any("no mxfp4 matrix units, mxfp4 weights" in note for note in mixed.assumptions)
    assert not any("matrix units" in note for note in calibrated(sku="b200-sxm", precision=nvfp4).assumptions)


def test_what_was_measured_counts_for_other_weights_in_the_same_layers() -> None:
    assert _has_layers_of(load_llm("llama-3.3-70b-instruct"), "llama-3.1-70b")
    assert not _has_layers_of(load_llm("llama-3.1-8b"), "llama-3.1-70b")


def test_infinite_bandwidth_leaves_the_compute_time() -> None:
    step = step_time(replica(sku=with_bandwidth(1e9)), chunks=[(1024, 0)])
    assert step.bound_s[Bound.MEMORY] < 1e-6 * step.total_s


@pytest.mark.parametrize(
    ("contexts", "chunks", "text"),
    [
        ([], [], "step = 'empty': needs at least one decode or one chunk"),
        ([0], [], "decode_contexts = 0: must be >= 1 token"),
        ([], [(0, 5)], r"chunks = \[\(0, 5\)\]: need new_tokens >= 1"),
        ([], [(5, -1)], "past_tokens >= 0"),
    ],
)
def test_impossible_steps_are_refused(contexts: list[int], chunks: list[tuple[int, int]], text: str) -> None:
    with pytest.raises(InputError, match=text):
        step_time(replica(), contexts, chunks)


@pytest.mark.parametrize("interval", [0, 1, 5, 10])
def test_sending_costs_a_sequence_a_share_of_its_steps(interval: int) -> None:
    """Tokens of so many steps are sent together; where they all go at the end, nothing is sent beside a step."""
    config = calibrated(engine="sglang")
    every = config.model_copy(update={"schedule": config.schedule.model_copy(update={"stream_interval_steps": 1})})
    some = config.model_copy(
        update={"schedule": config.schedule.model_copy(update={"stream_interval_steps": interval})}
    )
    assert every.stream_s > 0.0
    assert some.stream_s * interval == pytest.approx(every.stream_s if interval else 0.0)
    assert interval or some.stream_s == 0.0
