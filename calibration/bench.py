"""Workbench where kernels are built: torch on one device, what it can do there, and formats that all of them share.

NVFP4 as PyTorch multiplies it: e2m1 values in pairs, an e4m3 scale per 16 neighbours, one 32-bit scale for all. Format:
NVIDIA, cuBLAS 12.9 documentation, section "Narrow Precision Data Types Usage" (1D block scaling for FP4) and "1D Block
Scaling Factors Layout"; e2m1: OCP Microscaling Formats (MX) v1.0, section 5.3.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from calibration.measure import Call, copies_for

Tensor = Any
"""torch.Tensor; torch is optional and its types are not used."""
FP8_LARGEST = 448.0
"""Largest e4m3 value (Micikevicius et al. 2022, FP8 Formats for Deep Learning, arXiv:2209.05433, table 1)."""
FP8_LARGEST_FNUZ = 240.0
"""The same of AMD's e4m3fnuz, whose exponent is biased by one more."""
BLOCK = 128
"""Values per scale of block-scaled fp8 (DeepSeek-AI 2024, arXiv:2412.19437, sec. 3.3.2)."""
CPU_BYTES = 2.0 * 2**30
"""Memory that trying the program on a CPU may take."""
WORKSPACE_BYTES = 128 * 2**20
"""Workspace of FlashInfer, as its documentation recommends (docs.flashinfer.ai/api/attention.html)."""
COMPILED_WIDTHS = 128
"""Sizes for which PyTorch may compile one function anew; past that it would run it unfused."""
EPSILON = 1e-6
"""Keeps a division by a norm or a largest value finite."""
UNAVAILABLE = (RuntimeError, TypeError, ValueError, AttributeError, ImportError)
"""Errors that torch and its companions raise where a kernel does not exist for this format, GPU or version."""


@dataclass
class Workbench:
    """Where cases are built: torch, a device, its 16-bit format and its L2 size [bytes]."""

    torch: Any
    device: str
    half: str = "bf16"
    l2_bytes: float = 0.0

    @property
    def dtype(self) -> Any:  # noqa: ANN401
        """The 16-bit torch dtype."""
        return self.torch.float16 if self.half == "fp16" else self.torch.bfloat16

    @property
    def cuda(self) -> bool:
        """True if the device is a GPU."""
        return self.device.startswith("cuda")

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Random normal values in 16 bits."""
        drawn = self.torch.randn(*shape, dtype=self.dtype, device=self.device)
        return drawn if scale == 1.0 else drawn.mul_(scale)

    def copies(self, bytes_per_copy: float) -> int:
        """Copies of the data that a case goes through in turn."""
        return copies_for(bytes_per_copy, self.l2_bytes, self._free_bytes())

    def _free_bytes(self) -> float:
        """Memory that data can still take, what torch keeps for reuse included; a modest share of a CPU's."""
        if not self.cuda:
            return CPU_BYTES
        cuda = self.torch.cuda
        return float(cuda.mem_get_info()[0] + cuda.memory_reserved() - cuda.memory_allocated())

    @cached_property
    def fusing(self) -> bool:
        """True if the compiler that fuses element-wise operations works here; tried once, on a GPU only."""
        if not self.cuda or find_spec("triton") is None:
            return False
        try:
            self.torch.compile(_gated, dynamic=True)(self.normal(4, 64))
        except UNAVAILABLE:
            return False
        return True

    def fused(self, function: Callable[..., Any], by_width: bool = False) -> Callable[..., Any]:
        """The function, compiled into fused kernels where that works.

        Args:
            function: of tensors.
            by_width: compile once for each size but the first, of all tensors: an index divided by a width that is
                known only when it runs takes four times as long (SwiGLU of 8192 rows on an H200, PyTorch 2.11).
        """
        if not self.fusing:
            return function
        compiled: Callable[..., Any] = self.torch.compile(function, dynamic=not by_width)
        if not by_width:
            return compiled
        dynamo = self.torch._dynamo
        dynamo.config.cache_size_limit = max(COMPILED_WIDTHS, dynamo.config.cache_size_limit)

        def call(*tensors: Tensor) -> Any:  # noqa: ANN401
            for tensor in tensors:
                dynamo.maybe_mark_dynamic(tensor, 0)
            return compiled(*tensors)

        return call

    @cached_property
    def gated(self) -> Callable[[Tensor], Tensor]:
        """SwiGLU's product of the two halves of its argument."""
        return self.fused(_gated, by_width=True)

    @cached_property
    def combined(self) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """Answers of experts, where each visit's lies, and the visits' shares, added up by token."""
        return self.fused(_combined, by_width=True)

    @cached_property
    def rotated(self) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """Heads turned by their positions: values, cosines, sines."""
        return self.fused(_rotated, by_width=True)

    @cached_property
    def quantise(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """16-bit values to fp8 with a scale per row."""
        return self.fused(quantise, by_width=True)

    @cached_property
    def rms_norm(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Rows over their root mean square, times a scale."""
        return self.fused(_rms_norm, by_width=True)

    @cached_property
    def added_norm(self) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
        """What a block made and the residual, added; the norm of the sum, and the sum: one pass, as engines run it."""
        return self.fused(_added_norm, by_width=True)

    @cached_property
    def grouped_products(self) -> bool:
        """True if torch has a product of groups of rows with matrices of their own; tried once."""
        ends = self.torch.tensor([16, 32], dtype=self.torch.int32, device=self.device)
        try:
            self.torch._grouped_mm(self.normal(32, 64), self.normal(2, 64, 64).transpose(1, 2), offs=ends)
        except UNAVAILABLE:
            return False
        return True

    @cached_property
    def workspace(self) -> Tensor:
        """Scratch memory of attention kernels; calls run one after the other and share it."""
        return self.torch.empty(WORKSPACE_BYTES, dtype=self.torch.uint8, device=self.device)

    @cached_property
    def zeroed(self) -> Tensor:
        """Scratch memory of kernels that count in it, and leave it as they found it."""
        return self.torch.zeros(WORKSPACE_BYTES, dtype=self.torch.uint8, device=self.device)

    @cached_property
    def attention_library(self) -> str:
        """The attention kernels to measure: FlashInfer's where it is installed, else PyTorch's own."""
        return "flashinfer" if self.cuda and find_spec("flashinfer") else "sdpa"


def _gated(x: Tensor) -> Tensor:
    import torch

    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def _rms_norm(x: Tensor, scale: Tensor) -> Tensor:
    import torch

    return torch.nn.functional.rms_norm(x, scale.shape, scale, EPSILON)


def _added_norm(x: Tensor, residual: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return _rms_norm(total, scale), total


def _combined(outputs: Tensor, places: Tensor, shares: Tensor) -> Tensor:
    rows = outputs[places].view(*shares.shape, -1)
    return (rows * shares[..., None]).sum(1).to(outputs.dtype)


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary embedding, halves paired (Su et al. 2021, RoFormer, arXiv:2104.09864, eq. 34, in the order of Llama)."""
    import torch

    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)


def fp8_of(torch: Any) -> tuple[Any, float]:  # noqa: ANN401 (torch is optional)
    """The e4m3 format that the GPU multiplies, and its largest value.

    MI300 (gfx94x) has the one without negative zero and infinities, whose largest value is 240; all others OCP's
    (https://rocm.docs.amd.com/projects/HIP/en/docs-6.2.0/reference/fp8_numbers.html, read 2026-11-24).
    """
    if getattr(torch.version, "hip", None) and torch.cuda.get_device_properties(0).gcnArchName.startswith("gfx94"):
        return torch.float8_e4m3fnuz, FP8_LARGEST_FNUZ
    return torch.float8_e4m3fn, FP8_LARGEST


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """16-bit values, shape (rows, k), as fp8 with a scale per row, and the scales, shape (rows, 1)."""
    import torch

    dtype, most = fp8_of(torch)
    largest = x.abs().amax(dim=-1, keepdim=True).float().clamp(min=EPSILON)
    return (x * (most / largest)).to(dtype), largest / most


# --- NVFP4 -------------------------------------------------------------------------------------------------------


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
    import torch

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
    import torch

    rows, columns = scales.shape
    down, across = -(-rows // SCALE_ROWS), -(-columns // SCALE_COLUMNS)
    whole = torch.zeros(down * SCALE_ROWS, across * SCALE_COLUMNS, dtype=torch.uint8, device=scales.device)
    whole[:rows, :columns] = scales.view(torch.uint8)
    tiles = whole.view(down, 4, 32, across, SCALE_COLUMNS).permute(0, 3, 2, 1, 4)
    return tiles.reshape(-1).view(scales.dtype)


def nvfp4_product(bench: Workbench, x: Tensor, weight: Tensor) -> Call:
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
