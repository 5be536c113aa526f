"""Number formats: bytes of a value with its share of the scale, and formats of the parts of a model."""

from __future__ import annotations

import pytest

from hardware_db import Dtype
from planner.core import InputError
from planner.llm import (
    BYTES_PER_VALUE,
    Part,
    PartPrecision,
    Precision,
)


@pytest.mark.parametrize(
    ("dtype", "value_bits", "scale_bits", "values"),
    [
        (Dtype.MXFP4, 4, 8, 32),  # OCP Microscaling Formats 1.0, table 1
        (Dtype.MXFP8, 8, 8, 32),
        (Dtype.NVFP4, 4, 8, 16),  # NVIDIA 2025, arXiv:2509.25149, sec. 2
        (Dtype.INT4, 4, 16, 128),  # Lin et al. 2023, arXiv:2306.00978, sec. 5.1
        (Dtype.INT4_G32, 4, 16, 32),  # config.json of huggingface.co/moonshotai/Kimi-K2-Thinking
        (Dtype.FP8_BLOCK, 8, 32, 128 * 128),  # DeepSeek-AI 2024, arXiv:2412.19437, sec. 3.3.2
    ],
)
def test_bytes_per_value_are_the_value_and_its_share_of_the_scale(
    dtype: Dtype, value_bits: int, scale_bits: int, values: int
) -> None:
    assert BYTES_PER_VALUE[dtype] == (value_bits + scale_bits / values) / 8


def test_a_format_of_matrix_units_is_no_way_to_store_values() -> None:
    with pytest.raises(InputError, match=r"weights = 'fp4': says how values are multiplied.* Fix: use nvfp4 or mxfp4"):
        Precision(weights=Dtype.FP4)
    with pytest.raises(
        InputError, match=r"no engine multiplies int8 weights with them\. Fix: use one of int8, bf16, fp16"
    ):
        Precision(weights=Dtype.INT8, activations=Dtype.FP8)


def test_formats_of_parts() -> None:
    exception = PartPrecision(part=Part.EXPERTS, weights=Dtype.MXFP4, activations=Dtype.BF16)
    precision = Precision(weights=Dtype.FP8, activations=Dtype.FP8, parts=(exception,))
    assert precision.of(Part.EXPERTS) == (Dtype.MXFP4, Dtype.BF16)
    assert precision.of(Part.ATTENTION) == (Dtype.FP8, Dtype.FP8)
    assert precision.of(Part.LM_HEAD) == (Dtype.BF16, Dtype.BF16)
    assert Precision(weights=Dtype.FP16, activations=Dtype.FP16).of(Part.LM_HEAD) == (Dtype.FP16, Dtype.FP16)
    with pytest.raises(InputError, match=r"parts = 'experts, experts': names a part twice"):
        Precision(parts=(exception, exception))
