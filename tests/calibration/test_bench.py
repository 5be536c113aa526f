"""NVFP4 against the layout that cuBLAS documents and a product of the values that the codes stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calibration.bench import Workbench
from calibration.records import KernelCase, MeasurementOutcome
from calibration.session import usable_formats
from calibration.workloads import build
from planner.core import InputError
from tests.calibration.benches import cpu_session, torch_or_skip

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""OCP Microscaling Formats (MX) v1.0, table 5."""


def offset(row: int, column: int, columns: int) -> int:
    """Where a scale lies (NVIDIA, cuBLAS 12.9 documentation, section "1D Block Scaling Factors Layout")."""
    tile = (row // 128) * -(-columns // 4) + column // 4
    return tile * 512 + (row % 32) * 16 + (row % 128 // 32) * 4 + column % 4


def decoded(torch: Any, codes: Any) -> Any:
    values = torch.tensor([*E2M1, *(-value for value in E2M1)])
    pairs = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2)
    return values[pairs.long()]


def test_values_round_to_the_nearest_and_middles_to_the_even_code() -> None:
    """A block whose largest value is 6 has a scale of 1, so that its values are rounded as they are."""
    from calibration.bench import packed

    torch = torch_or_skip()
    near = [value + shift for value in (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0) for shift in (-0.125, 0.0, 0.125)]
    rows = torch.tensor([[6.0, *near[:15]], [6.0, *near[6:21]], [-6.0, *(-value for value in near[:15])]])
    codes, scales = packed(rows.bfloat16(), torch.tensor(1.0))
    assert scales.float().tolist() == [[1.0]] * 3
    for value, made in zip(rows.flatten().tolist(), decoded(torch, codes).flatten().tolist(), strict=True):
        nearest = min(range(8), key=lambda code: (abs(E2M1[code] - abs(value)), code % 2))
        assert made == (E2M1[nearest] if value >= 0 else -E2M1[nearest])


@pytest.mark.parametrize("shape", [(128, 4), (130, 6), (1, 4), (300, 9)])
def test_scales_lie_as_cublas_reads_them(shape: tuple[int, int]) -> None:
    from calibration.bench import laid_out

    torch = torch_or_skip()
    scales = (torch.arange(shape[0] * shape[1]) % 251).to(torch.uint8).view(shape)
    flat = laid_out(scales)
    assert len(flat) == -(-shape[0] // 128) * -(-shape[1] // 4) * 512
    where = [offset(row, column, shape[1]) for row in range(shape[0]) for column in range(shape[1])]
    assert torch.equal(flat[where], scales.flatten())
    assert int(flat.long().sum()) == int(scales.long().sum())  # what fills up the tiles is zero


def test_values_keep_within_a_quarter_of_their_block() -> None:
    """e2m1's largest gap, 4 to 6, is a third of the largest value: half of it, and e4m3's rounding of the scale."""
    from calibration.bench import _whole_scale, packed

    torch = torch_or_skip()
    x = Workbench(torch, "cpu").normal(32, 128)
    whole = _whole_scale(x)
    codes, scales = packed(x, whole)
    back = decoded(torch, codes).view(32, -1, 16) * (scales.float() * whole)[..., None]
    largest = x.float().view(32, -1, 16).abs().amax(-1, keepdim=True)
    assert float(((back - x.float().view(32, -1, 16)).abs() / largest).max()) <= 1 / 6 + 1 / 16


def test_the_product_is_called_with_what_makes_it_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of tensor cores: decode codes and scales as cuBLAS documents their layout, and multiply."""
    torch = torch_or_skip()
    functional = torch.nn.functional
    kinds, orders = functional.ScalingType, functional.SwizzleType

    def whole(codes: Any, scales: list[Any]) -> Any:
        values = decoded(torch, codes.view(torch.uint8))
        rows, k = values.shape
        where = [[offset(row, column, k // 16) for column in range(k // 16)] for row in range(rows)]
        own = scales[0].float()[torch.tensor(where)]
        return values * own.repeat_interleave(16, dim=1) * scales[1]

    def scaled_mm(
        a: Any, b: Any, scale_a: Any, kind_a: Any, scale_b: Any, kind_b: Any, *orders_: Any, **more: Any
    ) -> Any:
        assert kind_a == kind_b == [kinds.BlockWise1x16, kinds.TensorWise]
        assert list(orders_) == [[orders.SWIZZLE_32_4_4, orders.NO_SWIZZLE]] * 2
        assert a.dtype == b.dtype == torch.float4_e2m1fn_x2 and b.stride()[0] == 1
        assert scale_a[0].dtype == torch.float8_e4m3fn and scale_a[1].dtype == torch.float32
        return (whole(a, scale_a) @ whole(b.t(), scale_b).t()).to(more["output_dtype"])

    monkeypatch.setattr(functional, "scaled_mm", scaled_mm)
    bench = Workbench(torch, "cpu")
    from calibration.bench import nvfp4_product

    x, weight = bench.normal(24, 256), bench.normal(48, 256, scale=256**-0.5)
    made, exact = nvfp4_product(bench, x, weight)().float(), x.float() @ weight.float().t()
    error = (made - exact).norm() / exact.norm()
    assert 0.0 < float(error) < 0.2  # two roundings to 4 bits: each 8 to 10 % of a normal value in blocks of 16
    work = build(KernelCase("gemm", {"dtype": "nvfp4", "m": 4, "n": 32, "k": 64}), bench)
    assert work.kernel == "torch_scaled_mm_nvfp4+eager_quantise"
    assert work.rotated_bytes == pytest.approx(0.5625 * 32 * 64 * len(work.calls))
    assert np.isfinite(work.calls[0]().float().numpy()).all()  # type: ignore[attr-defined]


def test_without_tensor_cores_for_it_the_product_is_refused_in_pytorchs_words(tmp_path: Any) -> None:
    usable, refused = usable_formats(cpu_session(tmp_path, "b200-sxm"), ["nvfp4"])
    assert usable == [] and refused["nvfp4"]


def test_a_kernel_that_a_library_lacks_is_left_out_and_a_gpu_that_failed_ends_the_run(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both say "CUDA error": as cuBLAS 13.0 does on an H200 of block-scaled products whose rows 4 does not divide."""
    session, case = cpu_session(tmp_path), KernelCase("gemm", {"dtype": "bf16", "m": 65, "n": 256, "k": 256})

    def refuse(*_: Any) -> None:
        raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmulAlgoGetHeuristic`")

    monkeypatch.setattr("calibration.session.build", refuse)
    assert session.measure(case).outcome is MeasurementOutcome.UNAVAILABLE
    monkeypatch.setattr(session.bench.torch, "ones", refuse)
    with pytest.raises(InputError, match="--resume"):
        session.measure(case)
    assert case.key in session.folder.finished_keys()


def test_products_in_8_bits_come_within_the_formats_rounding() -> None:
    """Each row and each column has a scale of its own, so a large one spoils no other: half of 2^-3 over the values."""
    from calibration.workloads import _fp8_product

    torch = torch_or_skip()
    bench = Workbench(torch, "cpu")
    x, weight = bench.normal(64, 256), bench.normal(384, 256, scale=1 / 16)
    x[0] *= 1000.0
    exact = torch.nn.functional.linear(x, weight)
    error = (_fp8_product(bench, x, weight)() - exact).abs().mean(dim=1) / exact.abs().mean(dim=1)
    assert float(error.max()) < 2**-4
