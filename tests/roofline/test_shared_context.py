"""Tokens of a context shared out among GPUs: work is conserved, and what travels is what engines send."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hardware_db import select_calibration
from planner.llm import LlmSpec, Precision, load_llm
from planner.roofline import (
    CalibratedGpu,
    LatentDecode,
    LatentDecodeForm,
    LatentRow,
    Load,
    Operator,
    OperatorFamily,
    OperatorWork,
    Parallelism,
    StepShape,
    attention_s,
    latent_decode_s,
    operator_seconds,
    prompt_attention,
    step_operators,
)
from planner.roofline.shared_context import GatheredCache, OfDecodes
from tests.builders import HARDWARE

H200, FITTED = HARDWARE.skus["h200-sxm"], select_calibration(HARDWARE, "h200-sxm", "vllm")
DECODES = StepShape(decodes=4.0, decode_context=4 * 100_000.0)


def operators_of(llm: LlmSpec, dcp: int) -> tuple[Operator, ...]:
    return step_operators(llm, H200, Precision(), Parallelism(tp=8, dcp=dcp))


def attention_work(llm: LlmSpec, dcp: int) -> OperatorWork:
    """Of decodes' attention on one GPU."""
    found = [one for one in operators_of(llm, dcp) if one.family is OperatorFamily.ATTENTION_DECODE]
    return found[0].work(Load.of(DECODES, Parallelism(tp=8, dcp=dcp)))


@pytest.mark.parametrize(("model", "most", "row_bytes"), [("deepseek-r1", 8, 576 * 2), ("qwen3-235b-a22b", 2, 512)])
def test_gpus_read_different_rows_and_no_product_is_lost(model: str, most: int, row_bytes: int) -> None:
    """DeepSeek-R1 has a row of 576 values, Qwen3-235B keys and values of 128 channels of a head: in 16 bit."""
    alone, shared = (attention_work(load_llm(model), dcp) for dcp in (1, most))
    assert shared.flops == pytest.approx(alone.flops)
    cached = 400_000 * row_bytes
    beside = [float(work.hbm_bytes) - cached / dcp for work, dcp in ((alone, 1), (shared, most))]
    assert 0.0 < beside[0] <= beside[1] < 0.01 * cached  # queries and outputs, of more heads


def test_decodes_of_deepseek_send_queries_sums_and_outputs() -> None:
    """128 heads on 8 GPUs, by token and layer: 576 channels of a query and 512 of an output in 16 bits, and 8 times
    the logarithm of a sum in 32; of each a GPU sends 7 eighths (``cp_lse_ag_out_rs`` of vLLM).
    """
    load = Load.of(DECODES, Parallelism(tp=8, dcp=8))
    sent = [float(one.work(load).link_bytes) / 4 for one in operators_of(load_llm("deepseek-r1"), 8) if _merges(one)]
    assert sent[4:] == pytest.approx([128 * 576 * 2 * 7 / 8, 128 * 8 * 4 * 7 / 8, 0.0, 128 * 512 * 2 * 7 / 8])


def _merges(operator: Operator) -> bool:
    return isinstance(operator, OfDecodes)


def test_prompts_of_latent_attention_gather_what_is_cached_and_no_more() -> None:
    """A chunk of 8,192 tokens after 100,000: 576 values of each in 16 bits, of which 7 eighths come from others."""
    chunk = StepShape(0.0, 0.0, 8192.0, 8192.0 * (100_000.0 + 8193.0 / 2.0), 108_192.0, 1.0)
    split, latent = Parallelism(tp=8, dcp=8), load_llm("deepseek-r1")
    gather = next(one for one in operators_of(latent, 8) if isinstance(one, GatheredCache))
    assert gather.work(Load.of(chunk, split)).link_bytes == pytest.approx(100_000 * 576 * 2 * 7 / 8)
    first = replace(chunk, chunk_pairs=8192.0 * 8193.0 / 2.0, chunk_context=8192.0)
    for gpu in (CalibratedGpu(H200), CalibratedGpu(H200, FITTED)):
        link = gather.link_bytes_per_s
        assert operator_seconds(gather, Load.of(first, split), gpu, link) == 0.0
        took_s = float(operator_seconds(gather, Load.of(chunk, split), gpu, link))
        assert took_s >= gather.count * 100_000 * 576 * 2 * 7 / 8 / link
        merging = [one for one in operators_of(latent, 8) if _merges(one)]
        assert sum(float(operator_seconds(one, Load.of(first, split), gpu, link)) for one in merging) == 0.0


@pytest.mark.parametrize("calibration", [None, FITTED])
def test_compiled_code_takes_as_long_for_prompts_as_their_operators(calibration: object) -> None:
    gpu = CalibratedGpu(H200, calibration)  # type: ignore[arg-type]
    load = Load.of(StepShape(0.0, 0.0, 1024.0, 1024.0 * 50_512.5, 51_024.0, 1.0), Parallelism(tp=8, dcp=8))
    operators = [one for one in operators_of(load_llm("deepseek-r1"), 8) if one.driver.value == "shape"]
    records, tables = prompt_attention(operators, gpu)
    found = attention_s(records, tables, load.chunks, load.new, load.past, load.cached)
    links = [getattr(one, "link_bytes_per_s", np.inf) for one in operators]
    summed = sum(float(operator_seconds(one, load, gpu, link)) for one, link in zip(operators, links, strict=True))
    assert found == pytest.approx(summed)


def test_alone_a_gpu_takes_as_long_as_its_kernel_to_the_last_bit() -> None:
    """Kernels of 16 heads over the whole of a context, with nothing beside them."""
    operators, gpu = operators_of(load_llm("deepseek-r1"), 1), CalibratedGpu(H200, FITTED)
    assert not any(isinstance(one, OfDecodes | GatheredCache) for one in operators)
    (decode,) = {one for one in operators if isinstance(one, LatentDecode) and one.count > 10}
    form, peaks = gpu.form(LatentDecodeForm, *decode.fit_keys), gpu.peaks(decode.kv_cache.arithmetic)
    expected_s = latent_decode_s(4.0, 100_000.0, LatentRow(16.0, 512.0, 64.0, 2.0), form, peaks)
    assert decode.kernel_s(Load.of(DECODES, Parallelism(tp=8)), gpu) == expected_s
