"""Time that each case of a run should take, and a check that a fit can be true: all from arithmetic.

The time of a case is that of the packaged fit of its kernel (of the SKU, else of a relative), else the least that the
datasheet allows. ``run --dry-run`` prints them, and `impossible_fits` asks the same of a fit before it is written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from calibration.fit_measured import PASSES
from calibration.measure import Effort, calls_per_replay, copies_for
from calibration.operators import kernel_s
from calibration.possible import TOLERANCE, VARIANTS, least_time_s, least_work, row_of
from calibration.records import KernelCase
from hardware_db import Calibration, GpuSku, KernelFit
from planner.core import InputError

LEAST_S = 2e-6
"""Shortest time of a call taken where only the datasheet is known: a launch on a GPU is no shorter. A choice."""
SETUP_S = 0.02
"""Around a case: data, warm-up, recording. A choice until it is measured; it is a third of a full run."""
PASS_KEYS = {op: key for key, op in PASSES.items()}
"""Measured element-wise operation -> variant of a calibration."""


@dataclass(frozen=True)
class ExpectedCase:
    """A case before it is measured.

    Attributes:
        case: what would be measured.
        call_s: of one call [s].
        wall_s: to measure it [s].
        fitted: a fit says so; else the datasheet.
    """

    case: KernelCase
    call_s: float
    wall_s: float
    fitted: bool


def expected_case(case: KernelCase, packaged: Calibration | None, sku: GpuSku, effort: Effort) -> ExpectedCase:
    """How long a call of a case should take, and measuring it."""
    fit = packaged.kernels.get(fit_key(case)) if packaged is not None else None
    call_s = max(LEAST_S, least_s(case, sku)) if fit is None else fitted_s(case, fit, sku)
    return ExpectedCase(case, call_s, _wall_s(case, call_s, sku, effort), fit is not None)


def fit_key(case: KernelCase) -> str:
    """The key of a case's kernel in a calibration; empty for what no fit is about.

    >>> fit_key(KernelCase("gemm", {"dtype": "bf16", "m": 1, "n": 256, "k": 256}))
    'gemm/bf16'
    """
    dtype = VARIANTS.get(str(case.fields.get("dtype", case.fields.get("kv_dtype", ""))), "")
    keys = {
        "gemm": f"gemm/{dtype}",
        "moe": f"experts/{dtype}",
        "context_attention": f"attention_prefill/{dtype}",
        "generation_attention": f"attention_decode/{dtype}",
        "context_mla": f"latent_prefill/{dtype}",
        "generation_mla": f"latent_decode/{dtype}",
        "elementwise": f"elementwise/{PASS_KEYS.get(str(case.fields.get('op')), 'bf16')}",
        "copy": "elementwise/bf16",
    }
    return keys.get(case.operator, "")


def fitted_s(case: KernelCase, fit: KernelFit, sku: GpuSku) -> float:
    """Time of a case by the fit of its kernel [s]."""
    return float(kernel_s(fit_key(case), fit, case.row, sku)[0])


def least_s(case: KernelCase, sku: GpuSku) -> float:
    """The least that the datasheet allows [s]."""
    return float(least_time_s(case.operator, row_of(case), sku, kept_bytes=0.0)[0])


def impossible_fits(calibration: Calibration, cases: Sequence[KernelCase], sku: GpuSku) -> list[str]:
    """A sentence for each fit that implies more than a peak in some case, or a time that is none.

    Args:
        calibration: to be written.
        cases: shapes that it is asked about.
        sku: whose peaks bound it.
    """
    found: dict[str, str] = {}
    for case in cases:
        key = fit_key(case)
        if key not in calibration.kernels or key in found:
            continue
        call_s, bound_s = fitted_s(case, calibration.kernels[key], sku), least_s(case, sku)
        if not (math.isfinite(call_s) and call_s > 0.0):
            found[key] = f"{key}: {call_s:.4g} s for {case.key} is no duration"
        elif call_s * (1.0 + TOLERANCE) < bound_s:
            found[key] = f"{key}: {call_s:.4g} s for {case.key}, where {sku.id} needs {bound_s:.4g}"
    return list(found.values())


def require_possible(calibration: Calibration, cases: Sequence[KernelCase], sku: GpuSku) -> None:
    """Refuse a calibration with impossible fits. Raises InputError naming them."""
    wrong = impossible_fits(calibration, cases, sku)
    if wrong:
        fix = "look at the raw measurements of these shapes; nothing was written"
        raise InputError("fit", f"{len(wrong)} of {len(calibration.kernels)} kernels", "; ".join(wrong[:3]), fix)


def _wall_s(case: KernelCase, call_s: float, sku: GpuSku, effort: Effort) -> float:
    """As `calibration.measure.time_calls` goes about it, the flush of the cache before every replay included."""
    cache = sku.l2_bytes.value if sku.l2_bytes is not None else 0.0
    copies = copies_for(float(least_work(case.operator, row_of(case), sku).hbm_bytes[0]), cache)
    replay_s = calls_per_replay(call_s, copies, effort) * call_s
    for_least = math.ceil(effort.least_s / replay_s)
    replays = min(max(effort.replays, for_least), 4 * effort.replays, math.ceil(effort.total_s / replay_s))
    flush_s = 2.0 * cache / sku.hbm_bandwidth_bytes_per_s.value
    return SETUP_S + (effort.warmups + 1) * call_s + (max(3, replays) + 1) * (replay_s + flush_s)
