"""Where kernels are built: torch on one device, what it can do there, and what is shared by all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from calibration.measure import copies_for

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
EPSILON = 1e-6
"""Keeps a division by a norm or a largest value finite."""
UNAVAILABLE = (RuntimeError, TypeError, ValueError, AttributeError, ImportError)
"""What torch and its companions raise where a kernel does not exist for this format, GPU or version."""


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
        """Whether the device is a GPU."""
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
        """Whether the compiler that fuses element-wise operations works here; tried once, on a GPU only."""
        if not self.cuda or find_spec("triton") is None:
            return False
        try:
            self.torch.compile(_gated, dynamic=True)(self.normal(4, 64))
        except UNAVAILABLE:
            return False
        return True

    def fused(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, compiled into fused kernels where that works."""
        if not self.fusing:
            return function
        compiled: Callable[..., Any] = self.torch.compile(function, dynamic=True)
        return compiled

    @cached_property
    def gated(self) -> Callable[[Tensor], Tensor]:
        """SwiGLU's product of the two halves of its argument."""
        return self.fused(_gated)

    @cached_property
    def rotated(self) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """Heads turned by their positions: values, cosines, sines."""
        return self.fused(_rotated)

    @cached_property
    def quantise(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """16-bit values to fp8 with one scale for all."""
        return self.fused(quantise)

    @cached_property
    def quantise_blocks(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """16-bit values to fp8 with a scale per 128 neighbours."""
        return self.fused(quantise_blocks)

    @cached_property
    def grouped_products(self) -> bool:
        """Whether torch has a product of groups of rows with matrices of their own; tried once."""
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
    import torch  # noqa: PLC0415 (torch is optional)

    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary embedding, halves paired (Su et al. 2021, RoFormer, arXiv:2104.09864, eq. 34, in the order of Llama)."""
    import torch  # noqa: PLC0415 (torch is optional)

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
    """16-bit values as fp8 with one scale for all, and that scale."""
    import torch  # noqa: PLC0415 (torch is optional)

    dtype, most = fp8_of(torch)
    low, high = torch.aminmax(x)
    largest = torch.maximum(-low, high).float().clamp(min=EPSILON)
    return (x * (most / largest)).to(dtype), largest / most


def quantise_blocks(x: Tensor) -> tuple[Tensor, Tensor]:
    """16-bit values, shape (rows, k), as fp8 with a scale per 128 neighbours, and the scales, shape (rows, k / 128)."""
    import torch  # noqa: PLC0415 (torch is optional)

    blocks = x.view(x.shape[0], -1, BLOCK)
    largest = blocks.abs().amax(dim=-1).float().clamp(min=EPSILON)
    dtype, most = fp8_of(torch)
    return (blocks * (most / largest)[..., None]).to(dtype).view(x.shape), largest / most
