"""Calls of attention against the sums they stand for; FlashInfer's through a stand-in that reads pages by its indices.

The stand-in takes the arguments of flashinfer-python 0.6.3 and computes plain attention in 64 bits over the very pages
it was told of, so that a wrong index, length, layout or scale shows.
"""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from calibration.bench import Workbench
from calibration.records import KernelCase, MeasurementOutcome
from calibration.session import available_cases
from calibration.workloads import build
from hardware_db import load_hardware
from planner.core import FloatArray
from tests.calibration.benches import cpu_session, torch_or_skip

KEY, VALUE, RANK, ROPE = 192, 128, 512, 64
"""DeepSeek-AI 2024, DeepSeek-V3, arXiv:2412.19437, sec. 4.2."""
H200 = load_hardware().skus["h200-sxm"]


def plain(q: FloatArray, keys: FloatArray, values: FloatArray, scale: float, causal: bool) -> FloatArray:
    """Attention of one sequence: q (new, heads, dim), keys and values (total, kv heads, dim), the last tokens new."""
    groups = q.shape[1] // keys.shape[1]
    keys, values = np.repeat(keys, groups, axis=1), np.repeat(values, groups, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, keys) * scale
    if causal:
        past = len(keys) - len(q)
        scores[:, np.arange(len(keys))[None, :] > past + np.arange(len(q))[:, None]] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), values))


def numbers(tensor: Any) -> FloatArray:
    return np.asarray(tensor.double().numpy())


class Ragged:
    """`BatchPrefillWithRaggedKVCacheWrapper`."""

    def __init__(self, workspace: Any, layout: str) -> None:
        assert layout == "NHD" and workspace.numel() >= 128 * 2**20

    def plan(
        self,
        qo_indptr: Any,
        kv_indptr: Any,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        head_dim_vo: int,
        *,
        causal: bool,
        q_data_type: Any,
        kv_data_type: Any,
    ) -> None:
        self.ends, self.heads, self.causal = (qo_indptr.tolist(), kv_indptr.tolist()), num_qo_heads, causal
        self.sizes, self.types = (num_kv_heads, head_dim_qk, head_dim_vo), (q_data_type, kv_data_type)

    def run(self, q: Any, k: Any, v: Any) -> Any:
        assert (k.shape[1], k.shape[2], v.shape[2]) == self.sizes and (q.dtype, k.dtype) == self.types
        parts = []
        for queries, own in zip(*map(spans, self.ends), strict=True):
            one = (numbers(q[queries]), numbers(k[own]), numbers(v[own]))
            parts.append(plain(*one, self.sizes[1] ** -0.5, self.causal))
        return torch_or_skip().from_numpy(np.concatenate(parts))


def spans(ends: list[int]) -> list[slice]:
    return [slice(start, end) for start, end in pairwise(ends)]


class Pages:
    """What both paged wrappers keep, and how they gather a sequence."""

    def __init__(self, workspace: Any, layout: str, use_tensor_cores: bool = False) -> None:
        assert layout == "NHD"

    def keep(self, starts: Any, order: Any, last: Any, page: int, types: tuple[Any, Any]) -> None:
        self.pages = [order[span].tolist() for span in spans(starts.tolist())]
        self.last, self.page, self.types = last.tolist(), page, types
        assert sorted(order.tolist()) == list(range(len(order))) and order.dtype == torch_or_skip().int32

    def gathered(self, pages: Any) -> list[FloatArray]:
        assert pages.dtype == self.types[1] and pages.shape[1] == self.page
        flat = [numbers(pages[own].flatten(0, 1)) for own in self.pages]
        cut = [self.page - last for last in self.last]
        return [rows[: len(rows) - less] for rows, less in zip(flat, cut, strict=True)]


class PagedPrefill(Pages):
    """`BatchPrefillWithPagedKVCacheWrapper`."""

    def plan(
        self,
        qo_indptr: Any,
        paged_kv_indptr: Any,
        paged_kv_indices: Any,
        paged_kv_last_page_len: Any,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool,
        q_data_type: Any,
        kv_data_type: Any,
    ) -> None:
        types = (q_data_type, kv_data_type)
        self.keep(paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size, types)
        self.own, self.dim, self.causal = spans(qo_indptr.tolist()), head_dim_qk, causal

    def run(self, q: Any, paged_kv_cache: tuple[Any, Any]) -> Any:
        keys, values = (self.gathered(part) for part in paged_kv_cache)
        made = [
            plain(numbers(q[own]), k, v, self.dim**-0.5, self.causal)
            for own, k, v in zip(self.own, keys, values, strict=True)
        ]
        return torch_or_skip().from_numpy(np.concatenate(made))


class PagedDecode(PagedPrefill):
    """`BatchDecodeWithPagedKVCacheWrapper`: one query a sequence."""

    def plan(  # type: ignore[override]
        self,
        indptr: Any,
        indices: Any,
        last_page_len: Any,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        q_data_type: Any,
        kv_data_type: Any,
    ) -> None:
        self.keep(indptr, indices, last_page_len, page_size, (q_data_type, kv_data_type))
        self.own, self.dim, self.causal = [slice(i, i + 1) for i in range(len(self.pages))], head_dim, False


class Latent(Pages):
    """`flashinfer.mla.BatchMLAPagedAttentionWrapper`."""

    def __init__(self, workspace: Any) -> None:
        super().__init__(workspace, "NHD")

    def plan(
        self,
        qo_indptr: Any,
        kv_indptr: Any,
        kv_indices: Any,
        kv_len_arr: Any,
        num_heads: int,
        head_dim_ckv: int,
        head_dim_kpe: int,
        page_size: int,
        causal: bool,
        sm_scale: float,
        q_data_type: Any,
        kv_data_type: Any,
    ) -> None:
        assert qo_indptr.tolist() == list(range(len(kv_len_arr) + 1)) and not causal
        last = torch_or_skip().full_like(kv_len_arr, page_size)
        self.keep(kv_indptr, kv_indices, last, page_size, (q_data_type, kv_data_type))
        self.scale, self.sizes = sm_scale, (head_dim_ckv, head_dim_kpe)
        assert [page_size * len(own) for own in self.pages] == kv_len_arr.tolist()

    def run(self, q_nope: Any, q_pe: Any, ckv_cache: Any, kpe_cache: Any) -> Any:
        assert (q_nope.shape[-1], q_pe.shape[-1]) == self.sizes
        made = []
        for index, (rows, ropes) in enumerate(zip(self.gathered(ckv_cache), self.gathered(kpe_cache), strict=True)):
            q = np.concatenate([numbers(q_nope[index]), numbers(q_pe[index])], axis=-1)[None]
            keys = np.concatenate([rows, ropes], axis=-1)[:, None]
            made.append(plain(q, keys, rows[:, None], self.scale, False))
        return torch_or_skip().from_numpy(np.concatenate(made))


def blackwell_decode(
    query: Any,
    kv_cache: Any,
    workspace_buffer: Any,
    qk_nope_head_dim: int,
    kv_lora_rank: int,
    qk_rope_head_dim: int,
    block_tables: Any,
    seq_lens: Any,
    max_seq_len: int,
    *,
    bmm1_scale: float,
    bmm2_scale: float,
) -> Any:
    """`flashinfer.mla.trtllm_batch_decode_with_kv_cache_mla`: sizes as its documentation asks."""
    assert (qk_nope_head_dim, kv_lora_rank, qk_rope_head_dim, bmm2_scale) == (128, RANK, ROPE, 1.0)
    assert kv_cache.shape[1] in (32, 64) and query.dtype == kv_cache.dtype and not workspace_buffer.any()
    assert seq_lens.tolist() == [max_seq_len] * len(query)
    made = []
    for queries, pages in zip(query, block_tables.tolist(), strict=True):
        rows = numbers(kv_cache[pages].flatten(0, 1))[:, None]
        made.append(plain(numbers(queries), rows, rows[..., :RANK], bmm1_scale, False))
    return torch_or_skip().from_numpy(np.concatenate(made))


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> Workbench:
    """A bench that takes FlashInfer to be there."""
    library: Any = ModuleType("flashinfer")
    library.BatchPrefillWithRaggedKVCacheWrapper = Ragged
    library.BatchPrefillWithPagedKVCacheWrapper = PagedPrefill
    library.BatchDecodeWithPagedKVCacheWrapper = PagedDecode
    library.mla = ModuleType("flashinfer.mla")
    library.mla.BatchMLAPagedAttentionWrapper = Latent
    library.mla.trtllm_batch_decode_with_kv_cache_mla = blackwell_decode
    monkeypatch.setitem(sys.modules, "flashinfer", library)
    return bench_of("flashinfer")


def bench_of(library: str) -> Workbench:
    bench = Workbench(torch_or_skip(), "cpu")
    bench.__dict__["attention_library"] = library
    return bench


BOTH = pytest.mark.parametrize("library", ["sdpa", "flashinfer"])
"""PyTorch's kernel itself, and the calls of FlashInfer."""


@BOTH
@pytest.mark.parametrize("past", [0, 16])
def test_latent_prefill_is_causal_with_keys_of_192_and_values_of_128(
    library: str, past: int, flashinfer: Workbench
) -> None:
    from calibration.attention import latent_prefill_call

    bench = bench_of(library)
    q = bench.normal(2, 8, 3, KEY)
    keys, values = bench.normal(2, past + 8, 3, KEY), bench.normal(2, past + 8, 3, VALUE)
    made = numbers(latent_prefill_call(bench, q, keys, values)()).reshape(2, 8, 3, VALUE)
    for index in range(2):
        one = (numbers(q[index]), numbers(keys[index]), numbers(values[index]))
        assert made[index] == pytest.approx(plain(*one, 1.0 / math.sqrt(KEY), True), abs=0.03)


@BOTH
def test_latent_decode_equals_attention_with_expanded_keys_and_values(library: str, flashinfer: Workbench) -> None:
    """Absorption changes the order of products, not the sum (arXiv:2405.04434, sec. 2.1.3): with W_UK absorbed into
    the queries and W_UV applied to the output, the latent form gives what per-head keys and values give."""
    from calibration.attention import latent_decode_call

    bench, torch = bench_of(library), torch_or_skip()
    batch, context, heads, nope = 2, 32, 4, KEY - ROPE
    latent, position = bench.normal(batch, context, RANK), bench.normal(batch, context, ROPE)
    up_keys, up_values = np.random.default_rng(1).normal(size=(2, heads, RANK, nope)) / math.sqrt(RANK)
    q_nope, q_rope = bench.normal(batch, heads, nope), bench.normal(batch, heads, ROPE)
    absorbed = np.einsum("bhn,hrn->bhr", numbers(q_nope), up_keys)
    q = torch.cat([torch.from_numpy(absorbed).to(bench.dtype), q_rope], dim=-1)
    cache = torch.cat([latent, position], dim=-1)
    made = numbers(latent_decode_call(bench, q, cache[:, -1:].clone(), cache)()).reshape(batch, heads, RANK)
    outputs = np.einsum("bhr,hrn->bhn", made, up_values)
    for index in range(batch):
        keys = np.einsum("cr,hrn->chn", numbers(latent[index]), up_keys)
        rope = np.repeat(numbers(position[index])[:, None], heads, axis=1)
        whole_q = np.concatenate([numbers(q_nope[index]), numbers(q_rope[index])], axis=-1)[None]
        values = np.einsum("cr,hrn->chn", numbers(latent[index]), up_values)
        expected = plain(whole_q, np.concatenate([keys, rope], axis=-1), values, 1.0 / math.sqrt(KEY), False)
        assert outputs[index] == pytest.approx(expected[0], abs=0.05)


def test_a_new_latent_row_is_written_before_it_is_read() -> None:
    from calibration.attention import latent_decode_call

    bench = bench_of("sdpa")
    q, fresh, cache = bench.normal(1, 2, RANK + ROPE), bench.normal(1, 1, RANK + ROPE), bench.normal(1, 5, RANK + ROPE)
    latent_decode_call(bench, q, fresh, cache)()
    assert np.array_equal(numbers(cache[:, -1:]), numbers(fresh))


@BOTH
@pytest.mark.parametrize("past", [0, 5])
def test_prefill_is_causal_attention_over_past_and_new_tokens(library: str, past: int, flashinfer: Workbench) -> None:
    from calibration.attention import prefill_call

    bench = bench_of(library)
    q, fresh, cache = bench.normal(1, 4, 6, 16), bench.normal(2, 1, 4, 2, 16), bench.normal(2, 1, past + 4, 2, 16)
    made = numbers(prefill_call(bench, q, fresh, cache)()).reshape(4, 6, 16)
    assert np.array_equal(numbers(cache[:, :, past:]), numbers(fresh))
    expected = plain(numbers(q[0]), numbers(cache[0, 0]), numbers(cache[1, 0]), 1 / 4, True)
    assert made == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("past", [0, 32])
def test_prefill_over_an_8_bit_cache_reads_what_the_cache_holds(past: int, flashinfer: Workbench) -> None:
    """The reference attends to the values as 8 bits hold them: a kernel that read 16 bits would differ."""
    from calibration.attention import prefill_call

    torch = torch_or_skip()
    q, fresh = flashinfer.normal(2, 16, 4, 64), flashinfer.normal(2, 2, 16, 2, 64)
    cache = flashinfer.normal(2, 2, past + 16, 2, 64).to(torch.float8_e4m3fn)
    made = numbers(prefill_call(flashinfer, q, fresh, cache)()).reshape(2, 16, 4, 64)
    assert np.array_equal(numbers(cache[:, :, past:]), numbers(fresh.to(torch.float8_e4m3fn)))
    for index in range(2):
        keys, values = numbers(cache[0, index]), numbers(cache[1, index])
        assert made[index] == pytest.approx(plain(numbers(q[index]), keys, values, 1 / 8, True), abs=1e-9)


@pytest.mark.parametrize(
    ("library", "bits", "close"), [("sdpa", 16, 0.02), ("flashinfer", 16, 1e-9), ("flashinfer", 8, 1e-9)]
)
def test_decode_attends_to_its_own_cache(library: str, bits: int, close: float, flashinfer: Workbench) -> None:
    """The new token's row is in the cache, of FlashInfer in pages."""
    from calibration.attention import decode_call

    bench = bench_of(library)
    q, fresh, cache = bench.normal(3, 4, 64), bench.normal(2, 3, 1, 2, 64), bench.normal(2, 3, 48, 2, 64)
    if bits == 8:
        cache = cache.to(torch_or_skip().float8_e4m3fn)
    made = numbers(decode_call(bench, q, fresh, cache)()).reshape(3, 1, 4, 64)
    for index in range(3):
        one = (numbers(q[index : index + 1]), numbers(cache[0, index]), numbers(cache[1, index]))
        assert made[index] == pytest.approx(plain(*one, 1 / 8, False), abs=close)


def test_latent_decode_over_8_bits_takes_the_kernel_of_blackwell(flashinfer: Workbench) -> None:
    from calibration.attention import latent_decode_call

    torch = torch_or_skip()
    q = flashinfer.normal(2, 4, RANK + ROPE).to(torch.float8_e4m3fn)
    cache = flashinfer.normal(2, 128, RANK + ROPE).to(torch.float8_e4m3fn)
    made = numbers(latent_decode_call(flashinfer, q, flashinfer.normal(2, 1, RANK + ROPE), cache)())
    for index in range(2):
        rows = numbers(cache[index])[:, None]
        expected = plain(numbers(q[index : index + 1]), rows, rows[..., :RANK], 1.0 / math.sqrt(KEY), False)
        assert made.reshape(2, 1, 4, RANK)[index] == pytest.approx(expected, abs=1e-9)


GROUPED = {"seq_len": 1, "num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "window": 0, "attn_dtype": "bf16"}
LATENT = {"seq_len": 1, "num_heads": 4, "attn_dtype": "fp8"}


@pytest.mark.parametrize(("operator", "fields"), [("generation_attention", GROUPED), ("generation_mla", LATENT)])
def test_an_8_bit_cache_is_refused_where_no_kernel_reads_it(
    operator: str, fields: dict[str, Any], tmp_path: Any
) -> None:
    """Not cast to 16 bits first: PyTorch's kernels do not read it, and the list is left out by name."""
    case = KernelCase(operator, {**fields, "kv_dtype": "fp8", "batch": 2, "prefix_len": 63})
    session = cpu_session(tmp_path)
    record = session.measure(case)
    assert (
        record.outcome is MeasurementOutcome.UNAVAILABLE and "no installed kernel reads an 8-bit cache" in record.note
    )
    kept, refused = available_cases(
        session, {f"{operator} fp8 cache": [case], "copy": [KernelCase("copy", {"bytes": 64})]}
    )
    assert list(kept) == ["copy"] and "FlashInfer is missing" in refused[f"{operator} fp8 cache"]


def test_scores_written_to_memory_are_refused_on_a_gpu() -> None:
    """Keys of 576 have no fused kernel on a CPU, so that what it says stands for a GPU without one."""
    from calibration.attention import sdpa_kernel

    bench = bench_of("sdpa")
    q, keys = bench.normal(1, 1, 4, RANK + ROPE), bench.normal(1, 1, 32, RANK + ROPE)
    assert sdpa_kernel(bench, q, keys, keys[..., :RANK]) == "math"
    bench.device = "cuda:0"
    with pytest.raises(RuntimeError, match="no fused kernel here for keys of 576 and values of 512"):
        sdpa_kernel(bench, q, keys, keys[..., :RANK])


SIZES = {"batch": 2, "prefix_len": 31, "num_heads": 4}


@pytest.mark.parametrize(
    ("operator", "fields", "library", "kernel", "bytes_each"),
    [
        (
            "context_mla",
            {"seq_len": 33, "kv_dtype": "bf16"},
            "flashinfer",
            "flashinfer_latent_prefill",
            2 * 2 * 64 * 4 * 320,
        ),
        ("context_mla", {"seq_len": 33, "kv_dtype": "bf16"}, "sdpa", "sdpa_math_latent_prefill", 2 * 2 * 64 * 4 * 320),
        (
            "generation_mla",
            {"seq_len": 1, "kv_dtype": "bf16"},
            "flashinfer",
            "flashinfer_latent_decode",
            2 * 2 * 32 * 576,
        ),
        ("generation_mla", {"seq_len": 1, "kv_dtype": "bf16"}, "sdpa", "sdpa_math_latent_decode", 2 * 2 * 32 * 576),
        (
            "generation_attention",
            {"seq_len": 1, "kv_dtype": "fp8", "num_kv_heads": 2, "head_dim": 64},
            "flashinfer",
            "flashinfer_decode_fp8_cache",
            2 * 2 * 32 * 2 * 64,
        ),
        (
            "context_attention",
            {"seq_len": 33, "kv_dtype": "fp8", "num_kv_heads": 2, "head_dim": 64},
            "flashinfer",
            "flashinfer_prefill_fp8_cache",
            2 * 2 * 64 * 2 * 64,
        ),
    ],
)
def test_a_case_names_its_kernel_and_counts_its_cache(
    operator: str, fields: dict[str, Any], library: str, kernel: str, bytes_each: int, flashinfer: Workbench
) -> None:
    work = build(KernelCase(operator, {**SIZES, **fields}), bench_of(library))
    assert work.kernel == kernel
    assert work.rotated_bytes == bytes_each * len(work.calls)
    work.calls[0]()


def test_rotation_turns_pairs_by_their_angle() -> None:
    """A pair of channels as a complex number, times e^(i angle) (Su et al. 2021, arXiv:2104.09864, eq. 12)."""
    bench = Workbench(torch_or_skip(), "cpu")
    x, angles = bench.normal(5, 3, 128), bench.normal(5, 1, 64).float()
    made = numbers(bench.rotated(x.float(), angles.cos(), angles.sin()))
    halves = numbers(x)
    turned = (halves[..., :64] + 1j * halves[..., 64:]) * np.exp(1j * numbers(angles))
    assert made == pytest.approx(np.concatenate([turned.real, turned.imag], axis=-1), abs=1e-5)


def test_rotation_without_a_compiler_is_refused_on_a_gpu() -> None:
    case = KernelCase("elementwise", {"op": "rope", "bytes": 2 * 2 * 4096 * 3})
    bench = Workbench(torch_or_skip(), "cpu")
    assert build(case, bench).kernel == "torch_rope"
    bench.device = "cuda:0"
    bench.__dict__["fusing"] = False
    with pytest.raises(RuntimeError, match="takes a compiler that fuses it"):
        build(case, bench)
