"""NVFP4 as PyTorch multiplies it: e2m1 values in pairs, an e4m3 scale per 16 neighbours, one 32-bit scale for all.

Format: NVIDIA, cuBLAS 12.9 documentation, section "Narrow Precision Data Types Usage" (1D block scaling for FP4) and
"1D Block Scaling Factors Layout"; e2m1: OCP Microscaling Formats (MX) v1.0, section 5.3.3.
"""

from __future__ import annotations

from calibration.bench import EPSILON, FP8_LARGEST, Tensor, Workbench
from calibration.measure import Call

NEIGHBOURS = 16
"""Values that share a scale."""
E2M1_LARGEST = 6.0
"""Largest e2m1 value; the others are 0, 0.5, 1, 1.5, 2, 3, 4."""
ROUND_TO_EVEN = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))
"""Middles between neighbouring e2m1 values, and whether one that lies there goes up: to the even of the two codes."""
LEAST_SCALE = 2.0**-6
"""Smallest normal e4m3 value: a block of zeros is divided by it."""
SCALE_ROWS, SCALE_COLUMNS = 128, 4
"""Scales of one tile of their layout."""


def packed(x: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
    """16-bit values, shape (rows, k), as NVFP4 with a scale for all that is known before, as checkpoints hold it.

    Args:
        x: values; 16 divides k.
        whole: scale of all, one 32-bit value.

    Returns:
        Pairs of codes in bytes, the first in the low half, shape (rows, k / 2); e4m3 scales, shape (rows, k / 16).
    """
    import torch  # noqa: PLC0415 (torch is optional)

    blocks = x.float().view(x.shape[0], -1, NEIGHBOURS)
    largest = blocks.abs().amax(dim=-1)
    scales = (largest / (E2M1_LARGEST * whole)).clamp(LEAST_SCALE, FP8_LARGEST).to(torch.float8_e4m3fn)
    scaled = blocks / (scales.float() * whole)[..., None]
    size, codes = scaled.abs(), (scaled < 0).to(torch.uint8) * 8
    for middle, up in ROUND_TO_EVEN:
        codes = codes + ((size >= middle) if up else (size > middle)).to(torch.uint8)
    pairs = codes.view(x.shape[0], -1, 2)
    return pairs[..., 0] | (pairs[..., 1] << 4), scales


def laid_out(scales: Tensor) -> Tensor:
    """Scales in the order that tensor cores read: tiles of 128 x 4, rows 0, 32, 64, 96 of each side by side."""
    import torch  # noqa: PLC0415 (torch is optional)

    rows, columns = scales.shape
    down, across = -(-rows // SCALE_ROWS), -(-columns // SCALE_COLUMNS)
    whole = torch.zeros(down * SCALE_ROWS, across * SCALE_COLUMNS, dtype=torch.uint8, device=scales.device)
    whole[:rows, :columns] = scales.view(torch.uint8)
    tiles = whole.view(down, 4, 32, across, SCALE_COLUMNS).permute(0, 3, 2, 1, 4)
    return tiles.reshape(-1).view(scales.dtype)


def product(bench: Workbench, x: Tensor, weight: Tensor) -> Call:
    """Product x W^T in NVFP4 with the pass that quantises x; 32 divides the inner width, as cuBLAS asks.

    Raises:
        RuntimeError: 32 does not divide the inner width. AttributeError: this PyTorch has no such product.
    """
    torch = bench.torch
    functional, pair = torch.nn.functional, torch.float4_e2m1fn_x2
    multiply, kinds, orders = functional.scaled_mm, functional.ScalingType, functional.SwizzleType
    if x.shape[1] % (2 * NEIGHBOURS):
        raise RuntimeError(f"blocks of {NEIGHBOURS} and rows of 16 bytes do not divide an inner width of {x.shape[1]}")
    recipe, order = [kinds.BlockWise1x16, kinds.TensorWise], [orders.SWIZZLE_32_4_4, orders.NO_SWIZZLE]
    whole_x, whole_weight = (_whole_scale(values) for values in (x, weight))
    codes, scales = _packed_and_laid_out(weight, whole_weight)
    stored, stored_scales, quantised = codes.view(pair).t(), [scales, whole_weight], bench.fused(_packed_and_laid_out)

    def call() -> Tensor:
        values, own = quantised(x, whole_x)
        sides = (values.view(pair), stored, [own, whole_x], recipe, stored_scales, recipe)
        return multiply(*sides, order, order, output_dtype=bench.dtype)

    return call


def _packed_and_laid_out(x: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
    codes, scales = packed(x, whole)
    return codes, laid_out(scales)


def _whole_scale(values: Tensor) -> Tensor:
    """So that the largest scale of a block is the largest e4m3 value."""
    return values.abs().max().float().clamp(min=EPSILON) / (E2M1_LARGEST * FP8_LARGEST)
