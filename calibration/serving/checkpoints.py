"""Checkpoints as benchmarks name them: the preset whose layers they have, and the number format of each part.

Which preset has the layers of a name, `planner.llm.names` says. Labels such as ``fp8`` or ``nvfp4``, the
checkpoint's name and the kernels of its experts say which format each part was in; what published NVFP4 checkpoints
leave in 16 bit stands in `presets/checkpoints.csv`.
"""

from __future__ import annotations

from functools import cache

from calibration.serving.measured_runs import ServingPoint
from hardware_db import Dtype, GpuSku
from planner.core import UnknownNameError
from planner.llm import (
    LlmSpec,
    Part,
    PartPrecision,
    Precision,
    checkpoint_named,
    checkpoints_of,
    list_llms,
    load_llm,
    preset_of,
)


@cache
def model_of(name: str) -> LlmSpec:
    """The preset with the layers of a checkpoint.

    Raises UnknownNameError, which names the nearest presets.
    """
    found = preset_of(name)
    if found is None:
        raise UnknownNameError("points.model", name.rsplit("/", 1)[-1], list_llms())
    return load_llm(found)


# --- formats ----------------------------------------------------------------------------------------------------------


def precision_of(point: ServingPoint, llm: LlmSpec, sku: GpuSku) -> Precision:
    """Number formats of a run: its labels, and the checkpoint's own formats where labels leave them open."""
    labels = f"{point.precision} {point.quantisation}".lower()
    return _formats(point, labels, llm, sku).model_copy(update={"kv_cache": point.kv_cache})


def _formats(point: ServingPoint, labels: str, llm: LlmSpec, sku: GpuSku) -> Precision:
    native = llm.native_precision
    if "fp4" in labels:
        return _four_bit_formats(point, labels, llm, sku)
    if "int4" in labels or "w4a16" in labels:
        return native if native.weights.arithmetic is Dtype.INT4 else Precision(weights=Dtype.INT4)
    if "fp8" in labels and native.weights.arithmetic is Dtype.FP8:
        return native
    if "fp8" in labels:
        weights = Dtype.FP8_BLOCK if "fp8_block" in labels else Dtype.FP8
        return Precision(weights=weights, activations=Dtype.FP8)
    return Precision() if labels.strip() else native


def _four_bit_formats(point: ServingPoint, labels: str, llm: LlmSpec, sku: GpuSku) -> Precision:
    """MXFP4 where the checkpoint is stored so, or where the GPU's units take no other; else NVFP4.

    Activations of NVFP4 are stored alike (W4A4). Those of a checkpoint that states none, such as gpt-oss, are of 8 bits
    where the GPU scales them in blocks, which is what TensorRT-LLM, FlashInfer and AITER run there, else of 16.
    """
    native = llm.native_precision
    named = checkpoint_named(point.checkpoint or point.model)
    requantised = named is not None and named.precision.weights is Dtype.NVFP4
    if Dtype.MXFP4 in {native.of(part)[0] for part in Part} and not requantised:
        return _with_experts(native, *_mxfp4_experts(point, sku))
    no_nvfp4 = sku.multiplies(Dtype.MXFP4) and not sku.multiplies(Dtype.NVFP4)  # what multiplies neither unpacks
    stored = Dtype.MXFP4 if "mxfp4" in labels or no_nvfp4 else Dtype.NVFP4
    precision = _left_in_sixteen_bit(point.checkpoint or point.model, llm, stored)
    return _with_experts(precision, stored, Dtype.BF16) if _unpacks(point) else precision


def _unpacks(point: ServingPoint) -> bool:
    """True if the kernels of the experts multiply in 16 bit whatever the GPU has."""
    return "marlin" in point.moe_backend.lower()


def _mxfp4_experts(point: ServingPoint, sku: GpuSku) -> tuple[Dtype, Dtype]:
    """Formats by the kernels of the run. Marlin unpacks MXFP4 as it does INT4, for which its kernels are measured."""
    if _unpacks(point):
        return Dtype.INT4_G32, Dtype.BF16
    return Dtype.MXFP4, Dtype.MXFP8 if sku.multiplies(Dtype.MXFP8) else Dtype.BF16


def _with_experts(precision: Precision, weights: Dtype, activations: Dtype) -> Precision:
    """With other formats of the routed experts."""
    others = tuple(part for part in precision.parts if part.part is not Part.EXPERTS)
    experts = PartPrecision(part=Part.EXPERTS, weights=weights, activations=activations)
    return precision.model_copy(update={"parts": (*others, experts)})


def _left_in_sixteen_bit(name: str, llm: LlmSpec, stored: Dtype) -> Precision:
    """4-bit weights and activations, but for what the checkpoint, or the latest in NVFP4 of its model, leaves alone."""
    of_model = (item for item in reversed(checkpoints_of(llm)) if item.precision.weights is Dtype.NVFP4)
    found = checkpoint_named(name) or next(of_model, None)
    alone = found.precision.parts if found is not None and found.precision.weights is Dtype.NVFP4 else ()
    parts = tuple(
        PartPrecision(part=item.part, weights=stored, activations=stored) if item.weights is Dtype.NVFP4 else item
        for item in alone
    )
    return Precision(weights=stored, activations=stored, parts=parts)
