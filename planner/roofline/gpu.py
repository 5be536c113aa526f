"""A GPU as operators see it: peaks from its datasheet, coefficients from its calibration, links between GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from hardware_db import Calibration, Dtype, GpuSku, Topology
from planner.core import InputError
from planner.roofline.kernel_forms import Form, GpuPeaks
from planner.roofline.shape import Parallelism

FormType = TypeVar("FormType", bound=Form)
MOST_GATHERING_GPUS = 8
"""Most GPUs among which tokens reach the experts by all-gather and reduce-scatter; among more by all-to-all."""


@dataclass(frozen=True)
class CalibratedGpu:
    """One SKU and, where there is one, its calibration.

    Attributes:
        sku: datasheet.
        calibration: fits of its kernels; without one operators run on their rooflines.
    """

    sku: GpuSku
    calibration: Calibration | None = None

    def peaks(self, dtype: Dtype) -> GpuPeaks:
        """Peaks for a kernel that computes in `dtype`, or in 16 bit where the SKU has no units for it."""
        if dtype not in self.sku.peak_flops_per_s:
            dtype = half_precision(self.sku)
        flops_per_s = self.sku.peak_flops_per_s[dtype].value
        return GpuPeaks(flops_per_s, self.sku.hbm_bandwidth_bytes_per_s.value, float(self.sku.sm_count))

    @cached_property
    def _forms(self) -> dict[tuple[str, type[Form]], Form]:
        return {}

    def form(self, kind: type[FormType], *keys: str) -> FormType | None:
        """Fitted coefficients under the first of the keys the calibration has, or None."""
        key = self.first_key(*keys)
        if key is None or self.calibration is None:
            return None
        form = self._forms.get((key, kind))
        if form is None:
            form = self._forms[key, kind] = kind.of(self.calibration.kernels[key])
        return form  # type: ignore[return-value]

    def first_key(self, *keys: str) -> str | None:
        """The first of the keys the calibration has, or None."""
        if self.calibration is None:
            return None
        return next((key for key in keys if key in self.calibration.kernels), None)


def half_precision(sku: GpuSku) -> Dtype:
    """The 16-bit format of the SKU's matrix units: bf16 where it has it, else fp16.

    Args:
        sku: datasheet.

    Returns:
        BF16 or FP16.
    """
    return Dtype.BF16 if Dtype.BF16 in sku.peak_flops_per_s else Dtype.FP16


def kernel_activations(activations: Dtype, sku: GpuSku, weights: Dtype | None = None) -> Dtype:
    """Number format of the activations that a SKU's kernels multiply, where a format is asked for.

    That format where the SKU's matrix units multiply it; otherwise 16 bit, with weights unpacked on the way
    (weight-only kernels), which saves memory traffic but no FLOPs. 4-bit floating-point weights are unpacked to 16 bit
    wherever the units do not multiply them, 8-bit activations or not: DeepSeek-V4 on Hopper runs through Marlin
    (vLLM issue 42284, SGLang pull request 23686).

    Args:
        activations: number format that was asked for.
        sku: datasheet.
        weights: number format of the weights; None for those of the activations.

    Returns:
        The format itself or `half_precision`.
    """
    needed = [activations, *([weights] if weights is not None and weights.arithmetic is Dtype.FP4 else [])]
    return activations if all(sku.multiplies(dtype) for dtype in needed) else half_precision(sku)


def compute_dtype(activations: Dtype, sku: GpuSku) -> Dtype:
    """Number format of the matrix units that multiply activations of a format.

    Args:
        activations: number format that was asked for.
        sku: datasheet.

    Returns:
        The arithmetic of `kernel_activations`, a format the SKU has a peak for.
    """
    return kernel_activations(activations, sku).arithmetic


def ridge_point_flops_per_byte(sku: GpuSku, dtype: Dtype) -> float:
    """Arithmetic intensity [FLOP/byte] above which a kernel is compute-bound: peak FLOP/s / bandwidth.

    Source: Williams, Waterman, Patterson 2009, CACM 52(4).

    Args:
        sku: datasheet.
        dtype: number format of the arithmetic; the SKU must have a peak for it.
    """
    return sku.peak_flops_per_s[dtype].value / sku.hbm_bandwidth_bytes_per_s.value


def compute_bound_tokens(sku: GpuSku, dtype: Dtype, weight_bytes: float) -> float:
    """Tokens in a step [-] from which on a matrix product over weights read once waits for compute: ridge * bytes / 2.

    A product of m tokens with k x n weights takes 2 m k n FLOPs and reads b k n bytes of weights; activations, small
    beside weights while m is small beside k and n, are left out. Its intensity is thus 2 m / b, which meets the ridge
    point at m = ridge * b / 2. Splitting the weights over GPUs changes nothing. A decode step without speculation has
    one token per sequence.
    Source: Williams, Waterman, Patterson 2009, CACM 52(4), for the ridge; Pope et al. 2022, arXiv:2211.05102, sec. 2,
    for weights against tokens.

    Args:
        sku: its datasheet peaks.
        dtype: number format of the arithmetic; the SKU must have a peak for it.
        weight_bytes: of one stored weight [bytes], scales included.

    >>> from hardware_db import load_hardware
    >>> h100 = load_hardware().skus["h100-sxm"]
    >>> round(compute_bound_tokens(h100, Dtype.BF16, 2.0))  # 989.4e12 / 3.35e12
    295
    """
    return ridge_point_flops_per_byte(sku, dtype) * weight_bytes / 2.0


def all_reduce_link_bytes(payload_bytes: float, gpus: int) -> float:
    """Bytes each GPU sends in a ring all-reduce: 2 (n - 1) / n * payload.

    Bandwidth-optimal ring (Patarasuk and Yuan 2009, J. Parallel Distrib. Comput. 69(2), theorem 1).

    Args:
        payload_bytes: size of the buffer that is reduced [bytes].
        gpus: n, GPUs that take part.

    Returns:
        Sent by each GPU [bytes].

    >>> all_reduce_link_bytes(100.0, 4)
    150.0
    """
    return 2.0 * (gpus - 1) / gpus * payload_bytes


def link_bandwidth_bytes_per_s(sku: GpuSku, gpus: int) -> float:
    """Bandwidth per GPU and direction [bytes/s] among a group of GPUs.

    Inside the scale-up domain a switch gives every GPU its whole bandwidth; a mesh gives it one link per peer, so
    (n - 1) / (domain - 1) of it; a torus at least one ring, so at most its whole and at least a pair of links is
    taken as whole (optimistic for non-contiguous groups). Beyond the domain traffic goes over PCIe inside a node, and
    over the network between nodes.

    Args:
        sku: datasheet.
        gpus: n, GPUs of the group.
    """
    up = sku.scale_up
    if gpus > fast_domain_gpus(sku):
        return sku.node.nic_bytes_per_s_per_gpu.value
    if gpus > up.domain_gpus or up.topology is Topology.HOST:
        return sku.node.pcie_bytes_per_s.value
    whole = up.bandwidth_bytes_per_s.value
    if up.topology is Topology.MESH:
        return whole * max(gpus - 1, 1) / (up.domain_gpus - 1)
    return whole


def fast_domain_gpus(sku: GpuSku) -> int:
    """GPUs that reach one another without the network: of a scale-up domain or of a node, whichever is larger.

    Args:
        sku: datasheet.

    Returns:
        GPUs.
    """
    return max(sku.node.gpus, sku.scale_up.domain_gpus)


def require_tp_in_one_domain(sku: GpuSku, parallelism: Parallelism) -> None:
    """Refuse tensor parallelism beyond one fast domain or node, unless it is stated and fills domains, and dcp beyond.

    Args:
        sku: datasheet.
        parallelism: how the replica is split.

    Raises:
        InputError: the group is larger.
    """
    largest, tp = fast_domain_gpus(sku), parallelism.tp
    if tp > largest and not parallelism.across_domains:
        raise InputError("parallelism.tp", tp, f"{sku.id} has at most {largest} GPUs in one fast domain", "lower tp")
    if tp > largest and tp % largest:
        raise InputError("parallelism.tp", tp, f"{sku.id}: must fill domains of {largest} GPUs", f"use {2 * largest}")
    if parallelism.dcp > largest:
        bound = f"{sku.id} has at most {largest} GPUs in one fast domain"
        raise InputError("parallelism.dcp", parallelism.dcp, bound, f"use a divisor of {largest}")
