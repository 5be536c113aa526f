"""Which measured kernel stands for an engine's experts, and what curves of measured shapes do."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibration import assemble, operators
from calibration.fit import fit
from calibration.served import (
    GROUP_LIMITED,
    SERVED,
    SLOW_SHARE,
    GroupRows,
    expert_rows,
    expert_table,
    group_rows,
    newest_products,
    reached_share,
    served_kernels,
    untuned,
    without_host_time,
    without_launch_floor,
    without_scale_pass,
)
from calibration.tables import ColumnTable, read_table
from hardware_db import Calibration, Coefficient, Dtype, GpuSku, KernelFit, load_hardware
from planner.core import FloatArray
from planner.roofline import (
    CalibratedGpu,
    Driver,
    Experts,
    Load,
    MatrixProduct,
    OperatorFamily,
    ShapeCorrection,
    SizeCorrection,
    operator_seconds,
)
from tests.places import SHARED

HARDWARE = load_hardware()
H200 = HARDWARE.skus["h200-sxm"]
TABLES = SHARED / "kernels"
NEEDS_TABLES = pytest.mark.skipif(not TABLES.is_dir(), reason="needs the measured tables beside the repository")

ENGINE_CHOICES = [
    # vLLM tunes FlashInfer's CUTLASS experts at start-up; the kernel is TensorRT-LLM's, whose rows are tuned.
    ("vllm", "Hopper", "fp8", "trtllm", "fp8"),
    # fused_moe/oracle/fp8.py: "On Hopper for Block Fp8, prefer Triton for TP and FI CUTLASS for EP".
    ("vllm", "Hopper", "fp8_block", "vllm", "fp8_block"),
    # SGLang's Triton experts take scales per tensor and per block.
    ("sglang", "Hopper", "fp8", "sglang", "fp8_block"),
    # server_args.py: gpt-oss in MXFP4 runs OpenAI's Triton kernels, which only vLLM's rows measure.
    ("sglang", "Hopper", "mxfp4_wo", "vllm", "w4a16_mxfp4"),
    # On Blackwell vLLM's rows are FlashInfer's TRT-LLM-gen kernels, its default there.
    ("vllm", "Blackwell", "fp8", "vllm", "fp8"),
    ("vllm", "Blackwell Ultra", "nvfp4", "vllm", "nvfp4"),
    ("trtllm", "Hopper", "fp8", "trtllm", "fp8"),
]


@pytest.mark.parametrize(("engine", "architecture", "variant", "backend", "dtype"), ENGINE_CHOICES)
def test_an_engine_runs_the_kernel_it_takes_in_serving(
    engine: str, architecture: str, variant: str, backend: str, dtype: str
) -> None:
    served = served_kernels(engine, architecture, variant, assemble.EXPERT_DTYPES[variant])
    assert (served.backend, served.dtype) == (backend, dtype)


@NEEDS_TABLES
def test_what_is_said_to_run_is_in_the_tables() -> None:
    table = measured_experts()
    for (backend, _, variant), served in SERVED.items():
        found = {one.backend: one for one in expert_rows(table, "Hopper", variant, assemble.EXPERT_DTYPES[variant])}
        names = set(found[backend].rows.text("kernel").tolist())
        assert set(served.kernels) <= names
        assert found[backend].measured_by == served.backend


@functools.cache
def measured_experts() -> ColumnTable:
    table = expert_table(TABLES / "h200_sxm")
    assert table is not None
    return table


@NEEDS_TABLES
def test_of_an_engine_the_newest_version_counts_and_only_kernels_it_takes_by_itself() -> None:
    table = expert_table(TABLES / "gb300")
    assert table is not None
    vllm = table.rows(table.text("backend") == "vllm")
    wide = vllm["ep"] >= 8.0  # version 0.25 was measured there alone
    assert set(vllm.text("backend_version")[wide & (vllm.text("dtype") == "fp8")].tolist()) == {"0.25.0"}
    assert set(vllm.text("backend_version")[~wide & (vllm.text("dtype") == "fp8")].tolist()) == {"0.24.0"}
    sglang = table.rows((table.text("backend") == "sglang") & (table.text("backend_version") == "0.5.17"))
    assert set(sglang.text("kernel")[sglang.text("dtype") == "fp8_block"].tolist()) == {"sglang_fused_moe_triton"}


@NEEDS_TABLES
def test_rows_of_a_group_limited_router_carry_the_load_of_its_ties() -> None:
    """SGLang's balanced rows of DeepSeek-V3, against routing by hand: sixteen times the ranks, under twice as fast."""
    raw = read_table(TABLES / "h200_sxm", "moe")
    assert raw is not None
    at = (raw.text("backend") == "sglang") & (raw.text("dtype") == "fp8_block") & (raw["num_tokens"] == 16384.0)
    for name, value in {**GROUP_LIMITED, "tp": 1.0}.items():
        at &= raw[name] == value
    rows = raw.rows(at & (raw.text("distribution") == "balanced"))
    seconds = dict(zip(rows["ep"].tolist(), rows["latency_s"].tolist(), strict=True))
    tokens, experts, visits, groups, kept = 256, 256, 8, 8, 4
    hot = (np.arange(tokens)[:, None] + 32 * np.arange(visits)) % experts
    scores = np.zeros((tokens, experts))
    np.put_along_axis(scores, hot, 1.0, axis=1)
    by_group = -np.sort(-scores.reshape(tokens, groups, -1), axis=2)[:, :, :2].sum(axis=2)
    chosen_groups = np.argsort(-by_group, axis=1, kind="stable")[:, :kept]
    allowed = np.isin(np.arange(experts) // 32, chosen_groups.ravel()).reshape(1, -1) & np.ones((tokens, 1), dtype=bool)
    picked = np.argsort(-np.where(allowed, scores, -1.0), axis=1, kind="stable")[:, :visits]
    for ranks in (2, 4, 8, 16, 32):
        share = (picked < experts // ranks).mean()
        assert seconds[float(ranks)] / seconds[1.0] == pytest.approx(share, rel=0.15), ranks
    assert seconds[1.0] / seconds[16.0] < 2.0
    taken = {one.backend: one for one in expert_rows(raw, "Hopper", "fp8_block", "fp8_block")}["sglang"].rows
    deepseek = np.all([taken[name] == value for name, value in GROUP_LIMITED.items()], axis=0)
    assert np.all(taken["ep"][deepseek] == 1.0) and "balanced" not in taken.text("distribution")[deepseek]


def lines(latency: dict[tuple[float, float], float]) -> ColumnTable:
    """Rows of one model at one load: time by (tp, ep)."""
    n = len(latency)
    tp, ep = np.array(list(latency), dtype=np.float64).T
    same = {"hidden": 4096.0, "inter": 1536.0, "topk": 8.0, "num_experts": 128.0, "num_tokens": 64.0, "gated": 1.0}
    columns = {name: np.full(n, value) for name, value in same.items()}
    text = {"distribution": np.array(["balanced"] * n), "kernel": np.array(["cutlass"] * n)}
    return ColumnTable({**columns, **text, "tp": tp, "ep": ep, "latency_s": np.array(list(latency.values()))})


def test_a_row_slower_than_more_work_was_not_tuned() -> None:
    # Half of the experts cannot take six times as long as all of them.
    assert untuned(lines({(1, 1): 100e-6, (1, 2): 60e-6, (1, 4): 600e-6})).tolist() == [False, False, True]


def test_a_row_far_slower_than_less_work_allows_was_not_tuned() -> None:
    # Twice the work takes at most about twice as long.
    assert untuned(lines({(1, 1): 900e-6, (2, 1): 100e-6, (4, 1): 60e-6})).tolist() == [True, False, False]


SHAPES = [(2048.0, 768.0, 8.0, 128.0), (4096.0, 1536.0, 8.0, 128.0), (7168.0, 2048.0, 8.0, 256.0)]


def synthetic(bias: float, sku: GpuSku = H200) -> ColumnTable:
    """Rows of a form with known coefficients; the middle one of three models is `bias` [log] slower."""
    tokens = 2.0 ** np.arange(0.0, 15.0)
    rows = [(*shape, ep, n) for shape in SHAPES for ep in (1.0, 4.0) for n in tokens]
    hidden, inter, topk, experts, ep, n = np.array(rows).T
    ones = np.ones(len(n))
    text = {"distribution": np.array(["balanced"] * len(n))}
    sizes = {"hidden": hidden, "inter": inter, "topk": topk, "num_experts": experts, "ep": ep, "num_tokens": n}
    table = ColumnTable({**sizes, **text, "tp": ones, "gated": ones, "latency_s": ones})
    problem = operators.experts(table, sku, "bf16")
    truth = {"start_s": 2e-5, "token_s": 3e-9, "compute_efficiency": 0.5, "memory_efficiency": 0.8, "order": 2.5}
    time: FloatArray = problem.predict(
        {**truth, "small_tile_loss": 0.1, "fill": 3.0, "resident_gain": 1.0}, problem.rows
    )
    return table.with_columns(latency_s=time * np.exp(bias * (hidden == 4096.0)))


def test_a_measured_shape_gets_what_was_measured_there() -> None:
    problem = operators.experts(synthetic(0.3), H200, "bf16")
    result = fit(problem)
    assert result.measured_shape_error is not None and result.measured_shape_error < 0.04
    assert result.median_error > 0.04  # a model left out has no curve of its own
    without = fit(replace(problem, shapes=None))
    assert without.measured_shapes is None and without.measured_shape_error is None


def test_a_product_between_measured_widths_gets_what_is_common_to_them() -> None:
    """All products with an inner width of 4096 take a third longer than a form says: so does one never measured."""
    wide, tokens = [1024.0, 1448.0, 2048.0, 2896.0, 4096.0, 5792.0], 2.0 ** np.arange(14.0)
    n, k, m = (axis.ravel() for axis in np.meshgrid(wide, [1024.0, 2048.0, 4096.0], tokens))
    truth = {"start_s": 4e-6, "compute_efficiency": 0.7, "memory_efficiency": 0.8, "order": 2.5, "small_tile_loss": 0.1}
    truth |= {"fill": 3.0, "split_s": 2e-6, "resident_gain": 1.0}
    table = ColumnTable({"m": m, "n": n, "k": k, "latency_s": np.ones(len(m))})
    problem = operators.gemm(table, H200, "bf16")
    times = problem.predict(truth, table) * np.where(k == 4096.0, 4.0 / 3.0, 1.0)
    left_out = (n == 2048.0) & (k == 4096.0)
    known = table.with_columns(latency_s=times).rows(~left_out)
    result = fit(operators.gemm(known, H200, "bf16"))
    gpu = CalibratedGpu(H200, HARDWARE.calibrations[0].model_copy(update={"kernels": {"gemm/bf16": result}}))
    product = MatrixProduct(
        OperatorFamily.FEED_FORWARD, Dtype.BF16, 1.0, Driver.TOKENS, 2048.0, 4096.0, Dtype.BF16, Dtype.BF16
    )
    load = Load(tokens, tokens, tokens, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0)
    taken_s = product.kernel_s(load, gpu)
    assert np.median(np.abs(taken_s / times[left_out] - 1.0)) < 0.08


def test_curves_never_make_more_tokens_faster() -> None:
    rows = synthetic(0.0)
    dipped = rows["latency_s"] * np.where((rows["num_tokens"] > 100) & (rows["num_tokens"] < 1000), 0.3, 1.0)
    problem = operators.experts(rows.with_columns(latency_s=dipped), H200, "bf16")
    result = fit(problem)
    measured = ShapeCorrection.of(result.measured_shapes)
    assert measured is not None
    values = {name: one.value for name, one in result.parameters.items()}
    base = problem.predict(values, problem.rows, SizeCorrection.of(result.correction))
    shape = problem.shapes
    assert shape is not None
    for one in set(map(tuple, shape(problem.rows).tolist())):
        at = (shape(problem.rows) == one).all(axis=1)
        tokens = problem.rows["num_tokens"][at]
        order = np.argsort(tokens)
        time = (base[at] * measured.at(one).factor(tokens, 1.0))[order]
        on_knots = np.isin(np.round(np.log2(tokens[order]), 4), measured.size_log2)
        assert np.all(np.diff(time[on_knots]) >= -1e-3 * time[on_knots][1:])


@NEEDS_TABLES
def test_a_slow_path_stands_for_no_engine() -> None:
    """vLLM's own FP8 rows on Hopper are one: fitted to them, experts would read at 11 % of the bandwidth."""
    table = measured_experts()
    at = (table.text("backend") == "vllm") & (table.text("dtype") == "fp8")
    problem = operators.experts(table.rows(np.flatnonzero(at)[::150]), H200, "fp8")
    slow = fit(replace(problem, shapes=None))
    assert slow.parameters["memory_efficiency"].value < SLOW_SHARE
    candidate = assemble.Candidate("vllm", "0", "k", (problem,))
    assert not assemble._without_slow_paths("experts/fp8", {"vllm": (candidate, slow)})


@pytest.mark.parametrize(
    "fits",
    [one for one in HARDWARE.calibrations if one.sku in ("h100-sxm", "h200-sxm")],
    ids=lambda one: one.stack if one.sku == "h100-sxm" else f"{one.sku} {one.stack}",
)
def test_fp8_experts_decode_faster_than_16_bit_ones_on_hopper(fits: Calibration) -> None:
    """Half the bytes: kernels of other engines and measured runs gain 1.5 to 1.9 times; nothing serves them slower."""
    gpu, tokens = CalibratedGpu(HARDWARE.skus[fits.sku], fits), np.array([16.0, 64.0, 256.0])
    load = Load(tokens, tokens, tokens, *[np.zeros(3)] * 6)
    for hidden, inter, visits, total in ((2880, 2880, 4, 128), (4096, 1536, 8, 128), (7168, 2048, 8, 256)):

        def seconds(dtype: Dtype, sizes: tuple[int, ...] = (hidden, inter, visits, total)) -> FloatArray:
            width, wide, k, count = sizes
            split = (True, count, k, 1, dtype, dtype, 0.8)
            one = Experts(
                OperatorFamily.EXPERTS, dtype.arithmetic, 1.0, Driver.GROUP_TOKENS, float(width), wide / 4.0, *split
            )
            return np.asarray(operator_seconds(one, load, gpu, 1e11))

        for dtype in (Dtype.FP8, Dtype.FP8_BLOCK):
            assert np.all(seconds(dtype) < 0.85 * seconds(Dtype.BF16)), (hidden, dtype)


def products(backend: str, extra_s: float) -> ColumnTable:
    m, k = np.array([1.0, 64.0, 4096.0]), np.array([4096.0, 4096.0, 8192.0])
    seconds = 5e-6 + 1e-9 * m + extra_s * (1.0 + m / 4096.0)
    return ColumnTable({"backend": np.array([backend] * 3), "m": m, "k": k, "latency_s": seconds})


def test_the_scale_pass_measured_alone_is_taken_off_its_own_backend_only() -> None:
    bare = products("trtllm", 0.0)
    alone = bare.with_columns(latency_s=7e-6 * (1.0 + bare["m"] / 4096.0))
    served = without_scale_pass(products("trtllm", 7e-6), alone, "trtllm")
    np.testing.assert_allclose(served["latency_s"], bare["latency_s"])
    other = products("vllm", 7e-6)
    assert without_scale_pass(other, alone, "trtllm") is other
    assert without_scale_pass(other, None, "trtllm") is other


def test_products_whose_scale_pass_was_not_measured_are_left_out() -> None:
    bare = products("trtllm", 0.0)
    alone = bare.with_columns(latency_s=np.full(3, 1e-6)).rows(np.array([True, False, True]))
    assert without_scale_pass(bare, alone, "trtllm")["m"].tolist() == [1.0, 4096.0]


def fit_from(start_s: float) -> KernelFit:
    start = Coefficient(value=start_s, low=0.9 * start_s, high=1.1 * start_s)
    errors = {"median_error": 0.05, "p90_error": 0.1, "spread": 0.1}
    return KernelFit(parameters={"start_s": start}, samples=100, held_out=20, **errors)


@pytest.mark.parametrize(("start_s", "served_s"), [(11e-6, 4.6e-6), (6.0e-6, 6.0e-6)])
def test_a_start_far_beyond_the_16_bit_product_is_cut_to_it(start_s: float, served_s: float) -> None:
    served = without_launch_floor(fit_from(start_s), fit_from(4.6e-6))
    assert served.parameters["start_s"].value == served_s
    assert ("cut to" in served.note) == (start_s != served_s)


def test_the_shipped_8_bit_products_of_hopper_start_alike_in_all_engines() -> None:
    # one product and at most one quantisation pass of 1.3 to 2.9 us (AIConfigurator's scale_matrix tables)
    for one in load_hardware().calibrations:
        if one.sku in ("h100-sxm", "h200-sxm"):
            plain = one.kernels["gemm/bf16"].parameters["start_s"].value
            assert one.kernels["gemm/fp8"].parameters["start_s"].value < plain + 3e-6, one.stack


SKUS = load_hardware().skus
FOLDERS = {"staged": "l40s", "peer": "rtx-pro-6000-blackwell-server", "switched": "h100-sxm"}


def timed_products(*rows: tuple[str, str, str, float, float]) -> ColumnTable:
    """Matrix products of backends: kernel, format, tokens, time."""
    names = ("backend", "kernel", "dtype", "m", "latency_s")
    return ColumnTable({name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)})


def test_newer_rows_of_a_backend_replace_its_older_ones_format_by_format() -> None:
    older = timed_products(
        ("vllm", "a", "fp8", 1.0, 9e-6), ("vllm", "b", "bf16", 1.0, 8e-6), ("trtllm", "c", "fp8", 1.0, 7e-6)
    )
    newer = timed_products(("vllm", "d", "fp8", 1.0, 5e-6), ("vllm", "e", "fp8", 64.0, 6e-6))
    found = newest_products(older, newer)
    rows = sorted(zip(found.text("backend"), found.text("dtype"), found["latency_s"].tolist(), strict=True))
    assert rows == [("trtllm", "fp8", 7e-6), ("vllm", "bf16", 8e-6), ("vllm", "fp8", 5e-6), ("vllm", "fp8", 6e-6)]
    assert set(found.text("kernel").tolist()) == {"b", "c", "d/e"}  # by size a backend takes the one or the other
    assert newest_products(older, None)["latency_s"].tolist() == older["latency_s"].tolist()


def test_a_backend_without_one_quick_product_was_launched_by_its_host() -> None:
    """AIConfigurator's vLLM 0.24 on B300: no block-scaled product under 155 us; TensorRT-LLM's smallest take 4.3."""
    rows = timed_products(("vllm", "a", "fp8_block", 1.0, 155e-6), ("trtllm", "b", "fp8_block", 1.0, 4.3e-6))
    kept, note = without_host_time(rows)
    assert kept.text("backend").tolist() == ["trtllm"]
    assert "vllm" in note
    assert without_host_time(kept)[1] == ""


@pytest.mark.skipif(not (SHARED / "kernels").is_dir(), reason="the measured tables are not beside the checkout")
def test_the_newest_block_scaled_products_of_b300_are_a_tenth_of_those_with_host_time() -> None:
    folder = SHARED / "kernels" / "b300_sxm"
    older, newer = read_table(folder, "gemm"), read_table(folder, "gemm_2026_10")
    assert older is not None and newer is not None
    tables = (older, newest_products(older, newer))
    medians = []
    for table in tables:
        at = (table.text("backend") == "vllm") & (table.text("dtype") == "fp8_block") & (table["m"] <= 64)
        medians.append(float(np.median(table["latency_s"][at])))
    assert medians[1] / medians[0] == pytest.approx(0.1, abs=0.03)


def write_box(folder: Path, shares: dict[str, float], link_bytes_per_s: float, gpus: int = 4) -> None:
    """A table of all-reduces by library that reach this share of the link, round a ring, at every size."""
    folder.mkdir(parents=True)
    lines = ["backend,backend_version,kernel,mode,op,num_gpus,dtype,bytes,latency_s"]
    for library, share in shares.items():
        for size in (2**20, 2**24, 2**28):
            took = 2.0 * (gpus - 1) / gpus * size / (share * link_bytes_per_s)
            lines.append(f"{library},1.0,ring,graph,all_reduce,{gpus},bf16,{size},{took:.9g}")
    (folder / "collectives.csv").write_text("\n".join(lines) + "\n")


def rows_of(root: Path, folder: str, gpus: int = 4) -> GroupRows:
    found = group_rows(root / folder, SKUS, FOLDERS[folder], gpus, FOLDERS)
    assert found is not None
    return found


def test_the_reached_share_is_that_of_a_ring(tmp_path: Path) -> None:
    write_box(tmp_path / "peer", {"vllm": 0.47}, 64e9)
    assert reached_share(rows_of(tmp_path, "peer")) == pytest.approx(0.47)


def test_a_box_that_sends_the_long_way_borrows_from_one_of_its_topology(tmp_path: Path) -> None:
    write_box(tmp_path / "staged", {"vllm": 0.1}, 32e9)
    write_box(tmp_path / "peer", {"vllm": 0.4}, 64e9)
    write_box(tmp_path / "switched", {"vllm": 0.9}, 450e9)  # another topology: neither judge nor lender
    found = rows_of(tmp_path, "staged")
    assert found.link_bytes_per_s == 64e9
    assert "10 % of the link, that of rtx-pro-6000-blackwell-server 40 %" in found.note
    assert found.spread == pytest.approx(math.log(4.0) / math.sqrt(2.0))  # sample deviation of two logarithms
    assert rows_of(tmp_path, "peer").note == ""


def test_a_slower_box_within_reason_keeps_its_rows(tmp_path: Path) -> None:
    write_box(tmp_path / "staged", {"vllm": 0.3}, 32e9)
    write_box(tmp_path / "peer", {"vllm": 0.5}, 64e9)
    found = rows_of(tmp_path, "staged")
    assert (found.link_bytes_per_s, found.note, found.spread) == (32e9, "", 0.0)


def test_a_library_far_below_another_in_the_same_box_is_refused(tmp_path: Path) -> None:
    write_box(tmp_path / "switched", {"vllm": 0.2, "sglang": 0.6, "trtllm": 0.62}, 450e9)
    found = rows_of(tmp_path, "switched")
    assert set(found.rows.text("backend")) == {"sglang", "trtllm"}
    assert "vllm (20 % of the link)" in found.note


def test_the_shipped_pcie_fits_are_not_those_of_a_staged_box() -> None:
    calibrations = [one for one in load_hardware().calibrations if one.sku == "l40s"]
    assert calibrations
    for one in calibrations:
        for gpus in (4, 8):
            fit = one.kernels[f"all_reduce/{gpus}"]
            # boxes with peer access reach 0.38 to 0.74 of a PCIe link round a ring; the payload is 1 / (2 (n - 1) / n)
            assert fit.parameters["link_efficiency"].value * 2.0 * (gpus - 1) / gpus > 0.35
            assert "rtx-pro-6000-blackwell-server" in fit.note
            assert fit.spread > 0.5
            assert fit.measured_on == "rtx-pro-6000-blackwell-server"
