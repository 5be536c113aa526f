"""Words about the formats of a plan. Truth: the step times of both formats, from the same calibration."""

from __future__ import annotations

import pytest

from hardware_db import Calibration, Dtype, load_hardware, select_calibration
from planner.engine import ReplicaConfig
from planner.fleet.notes import _pool_warnings, weights_word
from planner.llm import Precision, format_words, load_llm
from planner.roofline import Parallelism
from planner.serving import Role
from planner.workload import TokenLengths, Workload

HARDWARE = load_hardware()
CHAT = Workload.of(1.0, TokenLengths.constant(1000, 200))
FP8 = Precision(weights=Dtype.FP8, activations=Dtype.FP8)


def config(llm: str, precision: Precision, slower_fp8: float = 1.0) -> ReplicaConfig:
    """On H100 with its vLLM calibration, whose FP8 products reach a share of the bandwidth they were measured at."""
    calibration = select_calibration(HARDWARE, "h100-sxm", "vllm")
    assert calibration is not None
    return ReplicaConfig(
        llm=load_llm(llm),
        sku=HARDWARE.skus["h100-sxm"],
        engine=HARDWARE.engines["vllm"],
        precision=precision,
        parallelism=Parallelism(tp=2),
        calibration=_with_slow_fp8(calibration, slower_fp8),
    )


def _with_slow_fp8(calibration: Calibration, factor: float) -> Calibration:
    fit = calibration.kernels["gemm/fp8"]
    share = fit.parameters["memory_efficiency"]
    slower = share.model_copy(update={name: getattr(share, name) / factor for name in ("value", "low", "high")})
    parameters = {**fit.parameters, "memory_efficiency": slower}
    changed = fit.model_copy(update={"parameters": parameters, "correction": None})
    return calibration.model_copy(update={"kernels": {**calibration.kernels, "gemm/fp8": changed}})


def words(config: ReplicaConfig, role: Role = Role.MIXED) -> list[str]:
    return list(_pool_warnings(config, role, CHAT, running=8.0))


def test_a_narrower_format_that_is_faster_needs_no_word() -> None:
    assert words(config("llama-3.1-8b", FP8)) == []


def test_a_narrower_format_on_a_slow_kernel_is_named_with_both_times() -> None:
    (line,) = words(config("llama-3.1-8b", FP8, slower_fp8=6.0))
    assert line.startswith("h100-sxm TP2: fp8 weights are narrower than bf16 weights and slower: a decode step")


@pytest.mark.parametrize("role", [Role.MIXED, Role.DECODE])
def test_a_checkpoint_stored_in_fewer_bits_than_it_is_served_in(role: Role) -> None:
    lines = words(config("gpt-oss-120b", FP8), role)
    assert any("are wider than bf16 weights (experts mxfp4) of the checkpoint and slower" in line for line in lines)
    assert words(config("gpt-oss-120b", load_llm("gpt-oss-120b").native_precision), role) == []


def test_a_format_is_named_as_people_name_it() -> None:
    """A sentence says FP8 whatever its scales, never the id FP8_BLOCK; where formats are listed the scales are said."""
    blocks = config("qwen3-32b", Precision(weights=Dtype.FP8_BLOCK, activations=Dtype.FP8_BLOCK))
    assert weights_word(blocks) == "FP8"
    assert format_words(blocks.llm, blocks.precision) == "block-scaled FP8"
