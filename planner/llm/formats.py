"""Number formats of a model's parts, and the whole numbers that its shapes are made of."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from planner.core import Dtype, Frozen, InputError

MAX_SIZE = 2**31 - 1
"""Largest size, a signed 32-bit index; published shapes stay below 2**25 (context of Llama 4 Scout: 10 485 760)."""

Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
Count = Annotated[int, Field(ge=0, le=MAX_SIZE)]

BYTES_PER_VALUE: dict[Dtype, float] = {
    Dtype.BF16: 2.0,
    Dtype.FP16: 2.0,
    Dtype.FP8: 1.0,
    Dtype.FP8_TOKEN: 1.0,
    Dtype.FP8_BLOCK: 1.0 + 4.0 / (128 * 128),
    Dtype.MXFP8: 1.0 + 1.0 / 32,
    Dtype.INT8: 1.0,
    Dtype.INT4: 0.5 + 2.0 / 128,
    Dtype.INT4_G32: 0.5 + 2.0 / 32,
    Dtype.NVFP4: 0.5 + 1.0 / 16,
    Dtype.MXFP4: 0.5 + 1.0 / 32,
}
"""Bytes per stored value, block scales included.

INT4: one 16-bit scale per group of 128 (GPTQ, Frantar et al. 2023, sec. 5; AWQ uses the same group) or of 32. NVFP4:
one FP8 scale per 16 values. MXFP4 and MXFP8: one 8-bit scale per 32 values (OCP Microscaling Formats 1.0, table 1).
FP8_BLOCK: one 32-bit scale per 128 x 128 block (DeepSeek-AI 2024, arXiv:2412.19437, sec. 3.3.2). The scales of FP8,
FP8_TOKEN and INT8, one a tensor or one a row of thousands, are left out.
"""

_SIXTEEN_BIT = (Dtype.BF16, Dtype.FP16)
_EIGHT_BIT_FLOAT = (Dtype.FP8, Dtype.FP8_TOKEN, Dtype.FP8_BLOCK, Dtype.MXFP8)
ACTIVATIONS_OF: dict[Dtype, tuple[Dtype, ...]] = {
    Dtype.BF16: _SIXTEEN_BIT,
    Dtype.FP16: _SIXTEEN_BIT,
    **dict.fromkeys(_EIGHT_BIT_FLOAT, (*_EIGHT_BIT_FLOAT, *_SIXTEEN_BIT)),
    Dtype.INT8: (Dtype.INT8, *_SIXTEEN_BIT),
    **dict.fromkeys((Dtype.INT4, Dtype.INT4_G32), (*_SIXTEEN_BIT, *_EIGHT_BIT_FLOAT, Dtype.INT8)),
    Dtype.NVFP4: (Dtype.NVFP4, *_EIGHT_BIT_FLOAT, *_SIXTEEN_BIT),
    Dtype.MXFP4: (Dtype.MXFP4, *_EIGHT_BIT_FLOAT, *_SIXTEEN_BIT),
}
"""Weights of a format, and the activations that kernels of serving engines multiply them with; with 16-bit ones, the
weights are unpacked on the way (weight-only kernels)."""


class Part(StrEnum):
    """The matrices of a model that checkpoints quantise together or leave alone together."""

    ATTENTION = "attention"
    """Projections of attention of every kind, linear attention and state space included."""
    ATTENTION_OUTPUT = "attention_output"
    """The last of them, where it is stored in another format than the rest."""
    FEED_FORWARD = "feed_forward"
    """Dense feed-forward layers, those before or between expert layers included."""
    EXPERTS = "experts"
    SHARED_EXPERTS = "shared_experts"
    LM_HEAD = "lm_head"


def _require_multiplied(weights: Dtype, activations: Dtype) -> None:
    """Refuse formats that no kernel multiplies; raises InputError."""
    for name, dtype in (("weights", weights), ("activations", activations)):
        if dtype is Dtype.FP4:
            raise InputError(
                name, dtype.value, "says how values are multiplied, not their scales", "use nvfp4 or mxfp4"
            )
    if activations not in ACTIVATIONS_OF[weights]:
        known = ", ".join(dtype.value for dtype in ACTIVATIONS_OF[weights])
        bound = f"no engine multiplies {weights.value} weights with them"
        raise InputError("activations", activations.value, bound, f"use one of {known}")


class PartPrecision(Frozen):
    """The number formats of one part that differs from the rest."""

    part: Part
    weights: Dtype
    activations: Dtype

    @model_validator(mode="after")
    def _multiplied(self) -> Self:
        _require_multiplied(self.weights, self.activations)
        return self


class Precision(Frozen):
    """Number formats of a served model. Embeddings, norms and router stay in 16 bit, as checkpoints do.

    `parts` are the exceptions: the LM head, too, stays in 16 bit unless it is one of them.
    """

    weights: Dtype = Dtype.BF16
    activations: Dtype = Dtype.BF16
    kv_cache: Dtype = Dtype.BF16
    parts: tuple[PartPrecision, ...] = ()

    @model_validator(mode="after")
    def _stored_and_multiplied(self) -> Self:
        _require_multiplied(self.weights, self.activations)
        if self.kv_cache is Dtype.FP4:
            raise InputError("kv_cache", "fp4", "says how values are multiplied, not their scales", "use nvfp4")
        return self

    @model_validator(mode="after")
    def _one_exception_a_part(self) -> Self:
        named = [exception.part for exception in self.parts]
        if len(named) != len(set(named)):
            raise InputError("parts", ", ".join(named), "names a part twice", "give each part once")
        return self

    @classmethod
    def named(cls, weights: Dtype, kv_cache: Dtype = Dtype.BF16) -> Self:
        """Weights in a format, multiplied in it where engines do.

        >>> [Precision.named(Dtype(name)).activations.value for name in ("fp8", "int4")]
        ['fp8', 'bf16']
        """
        eight = (Dtype.FP8, Dtype.FP8_TOKEN, Dtype.FP8_BLOCK, Dtype.INT8, Dtype.NVFP4, Dtype.FP16)
        return cls(weights=weights, activations=weights if weights in eight else Dtype.BF16, kv_cache=kv_cache)

    def of(self, part: Part) -> tuple[Dtype, Dtype]:
        """Formats of the weights and the activations of one part.

        >>> experts = PartPrecision(part=Part.EXPERTS, weights=Dtype.MXFP4, activations=Dtype.BF16)
        >>> [dtype.value for dtype in Precision(parts=(experts,)).of(Part.EXPERTS)]  # gpt-oss
        ['mxfp4', 'bf16']
        """
        for exception in self.parts:
            if exception.part is part:
                return exception.weights, exception.activations
        if part is Part.ATTENTION_OUTPUT:
            return self.of(Part.ATTENTION)
        if part is Part.LM_HEAD:
            sixteen_bit = Dtype.FP16 if self.activations is Dtype.FP16 else Dtype.BF16
            return sixteen_bit, sixteen_bit
        return self.weights, self.activations
