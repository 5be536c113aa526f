"""Kernel form of compressed attention: pairs by counting, limits, growth, and the same in plain floats."""

from __future__ import annotations

import numpy as np
import pytest

from hardware_db import Calibration, Coefficient, load_hardware
from planner.llm import load_llm
from planner.roofline import (
    CalibratedGpu,
    CompressedForm,
    CompressedHeads,
    GpuPeaks,
    Load,
    Parallelism,
    StepShape,
    compressed_attention_s,
    compressed_pairs,
    padded_heads,
    step_operators,
)
from planner.roofline.compressed import CompressedDecode, CompressedPrefill

PEAKS = GpuPeaks(1e15, 4e12, 132.0)
HEAVY = CompressedHeads(64.0, 512.0, 584.0, 128.0, 128.0, 0.0)
SPARSE = CompressedHeads(64.0, 512.0, 584.0, 128.0, 4.0, 512.0)
ALONE = CompressedHeads(64.0, 512.0, 584.0, 128.0, 0.0, 0.0)
FORM = {"start_s": 2e-5, "compute_efficiency": 0.4, "memory_efficiency": 0.6, "row_keys": 100.0}
FLASH = load_llm("deepseek-v4-flash")


@pytest.mark.parametrize("shape", [HEAVY, SPARSE, ALONE], ids=["heavy", "sparse", "window"])
@pytest.mark.parametrize(("new", "past"), [(1, 0), (5, 100), (300, 0), (200, 2000), (64, 100_000)])
def test_pairs_by_counting(shape: CompressedHeads, new: int, past: int) -> None:
    seen = [past + i for i in range(1, new + 1)]
    pairs = sum(min(i, 128) for i in seen)
    if shape.ratio:
        pairs += sum(min(i / shape.ratio, shape.top_k or np.inf) for i in seen)
    assert compressed_pairs(float(new), float(past), shape) == pytest.approx(pairs)


def test_whole_kernels_take_their_flops_and_their_bytes() -> None:
    form = CompressedForm(start_s=0.0, compute_efficiency=0.5, memory_efficiency=0.25, row_keys=0.0)
    compute = 4 * 64 * 512 * 1e9 / 1e15
    passes = 1e3 * 512 * (7 + 4) * 64 / 4e12
    assert compressed_attention_s(1e3, 1e9, 8e9, HEAVY, form, PEAKS) == pytest.approx(
        2 * compute + 4 * (passes + 8e9 / 4e12)
    )


def test_fewer_heads_than_a_group_cost_as_much_in_the_attention_kernel() -> None:
    form = CompressedForm(start_s=0.0, compute_efficiency=0.5, memory_efficiency=1.0, row_keys=0.0)
    free = GpuPeaks(1e15, 1e30, 132.0)
    few, group, two = (
        compressed_attention_s(1e3, 1e6, 0.0, CompressedHeads(heads, 512.0, 584.0, 128.0, 4.0, 512.0), form, free)
        for heads in (8.0, 64.0, 65.0)
    )
    assert few == group
    assert two == 2.0 * group
    assert [padded_heads(heads) for heads in (1.0, 64.0, 65.0, 128.0)] == [64.0, 64.0, 128.0, 128.0]


def calibrated() -> Calibration:
    """A packaged calibration of H200 with the same form of compressed attention for every layer."""
    one = next(c for c in load_hardware().calibrations if c.sku == "h200-sxm" and c.engine == "vllm")
    values = {name: Coefficient(value=value, low=value, high=value) for name, value in FORM.items()}
    fit = one.kernels["elementwise/bf16"].model_copy(update={"parameters": values, "correction": None})
    keys = (f"compressed_{phase}/{kind}" for phase in ("prefill", "decode") for kind in ("indexed", "pooled"))
    return one.model_copy(update={"kernels": {**one.kernels, **dict.fromkeys(keys, fit)}})


def operators(kind: type) -> list[CompressedPrefill | CompressedDecode]:
    sku = load_hardware().skus["h200-sxm"]
    split = Parallelism(tp=4, ep=4)
    return [one for one in step_operators(FLASH, sku, FLASH.native_precision, split) if isinstance(one, kind)]


def test_kernels_grow_with_context_and_prompt() -> None:
    gpu, split = CalibratedGpu(load_hardware().skus["h200-sxm"], calibrated()), Parallelism(tp=4, ep=4)
    contexts, new, none = np.geomspace(1, 2**20, 40), np.geomspace(1, 65_536, 40).round(), np.zeros(40)
    loads = [(CompressedDecode, StepShape(none + count, count * contexts)) for count in (1.0, 16.0, 256.0)]
    for past in (0.0, 1000.0, 100_000.0):
        pairs = new * past + new * (new + 1) / 2
        loads.append((CompressedPrefill, StepShape(none, none, new, pairs, new + past, none + 1)))
    for kind, shape in loads:
        for one in operators(kind):
            assert np.all(np.diff(one.kernel_s(Load.of(shape, split), gpu)) >= 0.0)


def test_latent_attention_stands_in_where_nothing_was_measured() -> None:
    hardware = load_hardware()
    packaged = next(c for c in hardware.calibrations if c.sku == "l40s" and c.engine == "vllm")
    gpu = CalibratedGpu(hardware.skus["l40s"], packaged)
    for one in operators(CompressedDecode):
        key = gpu.first_key(*one.fit_keys)
        assert key is not None
        assert key.startswith("latent_decode/")
        efficiency = packaged.kernels[key].parameters["compute_efficiency"].value
        load = Load.of(StepShape(1e6, 1e6 * 5e4), Parallelism(tp=4, ep=4))
        shape = one.shape
        assert one.kernel_s(load, gpu) >= 4 * shape.heads * shape.head_dim * 1e6 * 128 / efficiency / PEAKS.flops_per_s
