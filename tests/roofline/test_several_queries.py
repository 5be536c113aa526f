"""Operators by hand where a sequence advances by several tokens at once, and where a window ends in chunks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hardware_db import load_hardware, select_calibration
from planner.core import UnknownNameError
from planner.llm import load_llm
from planner.roofline import (
    BlockDecodeForm,
    BlockHeads,
    GpuPeaks,
    Load,
    Operator,
    Parallelism,
    block_decode_s,
    step_operators,
)
from planner.roofline.block_sparse import BlockDecode
from planner.roofline.grouped import GroupedDecode
from planner.roofline.index import IndexScores
from planner.roofline.kernel_forms import check_kernel_fit

HARDWARE = load_hardware()
H200 = HARDWARE.skus["h200-sxm"]
DECODES = Load(
    tokens=8.0, group_tokens=8.0, rows=8.0, decodes=8.0, context=9000.0, chunks=0.0, new=1.0, past=0.0, cached=0.0
)
TWICE = replace(DECODES, queries=2.0)


def operators(llm: str) -> list[Operator]:
    spec = load_llm(llm)
    return step_operators(spec, H200, spec.native_precision, Parallelism(tp=8))


def of_kind(llm: str, kind: type[Operator]) -> Operator:
    return next(operator for operator in operators(llm) if isinstance(operator, kind))


@pytest.mark.parametrize(("llm", "kind"), [("deepseek-v3.2", IndexScores), ("minimax-m3", BlockDecode)])
def test_two_queries_work_twice_on_the_same_keys(llm: str, kind: type[Operator]) -> None:
    operator = of_kind(llm, kind)
    assert operator.work(TWICE).flops == pytest.approx(2.0 * operator.work(DECODES).flops)
    assert operator.work(TWICE).hbm_bytes < 1.1 * operator.work(DECODES).hbm_bytes


def test_the_index_of_chosen_blocks_scores_every_key() -> None:
    operator = of_kind("minimax-m3", BlockDecode)
    assert isinstance(operator, BlockDecode)
    chosen = 4.0 * operator.heads * operator.head_dim * min(9000.0, operator.top_k)
    scored = 2.0 * operator.index_heads * operator.index_dim * 9000.0
    assert operator.work(DECODES).flops == pytest.approx(8.0 * (chosen + scored))


def test_queries_read_their_own_blocks_and_share_the_index() -> None:
    form = BlockDecodeForm(start_s=0.0, memory_efficiency=0.5, index_efficiency=1.0, block_s=0.0, order=1.0)
    heads, gpu = BlockHeads(16.0, 1.0, 128.0, 2.0, 2048.0, 1.0, 128.0), GpuPeaks(1e15, 4e12, 132.0)
    one, two, three = (block_decode_s(64.0, 8192.0, queries, heads, form, gpu) for queries in (1.0, 2.0, 3.0))
    read_s = 64.0 * (2048.0 * heads.key_bytes + 4.0 * 16.0 * 128.0) / 2e12
    assert [two - one, three - two] == pytest.approx([read_s, read_s])


def test_a_token_of_a_chunked_window_sees_half_of_it() -> None:
    """Llama 4 attends within chunks of 8,192 tokens: on average over places, to half of one."""
    windows = {one.window for one in operators("llama-4-scout-17b-16e-instruct") if isinstance(one, GroupedDecode)}
    assert windows == {0.0, 4096.0}


def test_a_kernel_is_known_by_what_stands_before_the_slash() -> None:
    calibration = select_calibration(HARDWARE, "h200-sxm", "vllm")
    assert calibration is not None
    key, fit = next((key, fit) for key, fit in calibration.kernels.items() if "/" in key)
    check_kernel_fit(key, fit)
    with pytest.raises(UnknownNameError, match="kernels"):
        check_kernel_fit(f"nothing/{key}", fit)
