"""What tables of matrix products contain and serving does not, against made-up tables whose parts are known."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.gemm_floors import without_launch_floor, without_scale_pass
from calibration.tables import ColumnTable
from hardware_db import Coefficient, KernelFit, load_hardware


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
