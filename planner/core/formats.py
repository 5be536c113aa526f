"""Words that layers share: number formats, where a pipeline puts spare layers, latency metrics and units."""

from __future__ import annotations

from enum import StrEnum


class Dtype(StrEnum):
    """Number formats of weights, activations and KV cache.

    A SKU states peaks for what its matrix units multiply: bf16, fp16, fp8, int8, int4, fp4. Formats that differ in
    their scales only run on the units of `arithmetic`, where the GPU can apply their scales
    (`hardware_db.GpuSku.multiplies`).
    """

    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    """e4m3 with one scale per tensor."""
    FP8_TOKEN = "fp8_token"
    """e4m3 with a scale per token of activations and per output channel of weights."""
    FP8_BLOCK = "fp8_block"
    """e4m3 with a scale per 128 x 128 block of weights and per 128 values of activations (DeepSeek-V3)."""
    MXFP8 = "mxfp8"
    """e4m3 with a power-of-two scale per 32 values (OCP Microscaling)."""
    INT8 = "int8"
    """Scale per output channel of weights and per token of activations."""
    INT4 = "int4"
    """16-bit scale per group of 128 values (AWQ, GPTQ)."""
    INT4_G32 = "int4_g32"
    """16-bit scale per group of 32 values (Kimi-K2.5)."""
    FP4 = "fp4"
    """e2m1 as matrix units multiply it; stored as `NVFP4` or `MXFP4`."""
    NVFP4 = "nvfp4"
    """e2m1 with an fp8 scale per 16 values and one 32-bit scale per tensor."""
    MXFP4 = "mxfp4"
    """e2m1 with a power-of-two scale per 32 values (OCP Microscaling)."""

    @property
    def arithmetic(self) -> Dtype:
        """The format in which matrix units multiply values stored so."""
        return _ARITHMETIC.get(self, self)


_ARITHMETIC = {
    Dtype.FP8_TOKEN: Dtype.FP8,
    Dtype.FP8_BLOCK: Dtype.FP8,
    Dtype.MXFP8: Dtype.FP8,
    Dtype.INT4_G32: Dtype.INT4,
    Dtype.NVFP4: Dtype.FP4,
    Dtype.MXFP4: Dtype.FP4,
}


class SpareLayers(StrEnum):
    """Stages of a pipeline that hold one layer more, where layers do not divide evenly."""

    BEFORE_LAST = "before_last"
    """Those just before the last, which holds the head too (vLLM)."""
    LAST = "last"
    """The last ones (SGLang)."""
    FIRST = "first"
    """The first ones (TensorRT-LLM)."""


class Metric(StrEnum):
    """Latency metrics of one request, and of one gap between tokens.

    TTFT: arrival to first token. TPOT: (E2E - TTFT) / (output tokens - 1). E2E: arrival to last token. ITL: one gap
    between two tokens of a request; its percentiles are over all gaps of all requests.
    """

    TTFT = "ttft"
    TPOT = "tpot"
    E2E = "e2e"
    ITL = "itl"


HOURS_PER_MONTH = 730.0
"""8760 h / 12, the month cloud price lists use."""
GIB = 2.0**30
"""Bytes of a GiB, in which drivers and engines print memory."""
