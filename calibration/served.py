"""Rows as they serve: which measured kernel stands for an engine's, and what of a measured product is not served.

Tables name the kernels their collector got. Mostly an engine takes the same ones; where serving takes another for the
routed experts, or the collector got a tactic that no auto-tuner would choose, `SERVED` and `untuned` say so, with the
reason. Tables of matrix products contain passes and launches that engines fuse or do once. Both are identified by other
measurements, never by what would please: a pass that was timed alone is taken off, and a product that quantises nothing
starts no later than the same backend's 16-bit one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibration.tables import ColumnTable, Mask
from hardware_db import KernelFit

SLOW_SHARE = 0.25
"""Fitted share of the bandwidth below which a kernel is a slow path that serving avoids: kernels known to serve reach
0.5 to 1."""
UNTUNED_RATIO = 1.5
"""Times the bound of more or less work from which a row is a tactic that was not tuned: tuned rows scatter by 1.2."""
GROUP_LIMITED = {"hidden": 7168.0, "inter": 2048.0, "topk": 8.0, "num_experts": 256.0}
"""DeepSeek-V3, whose router picks groups of experts first (arXiv:2412.19437, sec. 2.1.2). Dealt in strides its tokens
all choose the groups of the first ranks: the time of a balanced row does not fall with their number."""


@dataclass(frozen=True)
class ServedKernels:
    """Kernels that run an engine's experts of one format.

    Attributes:
        backend: whose rows measure them.
        dtype: number format of the rows, by its name in the tables.
        kernels: their names; empty for the one with most rows, to which others that the backend took for a model or
            two give further shapes.
        reason: why not simply its own rows.
    """

    backend: str
    dtype: str
    kernels: tuple[str, ...] = ()
    reason: str = ""


SERVED = {
    ("vllm", "Hopper", "fp8"): ServedKernels(
        "trtllm",
        "fp8",
        reason="vLLM runs FlashInfer's CUTLASS experts, TensorRT-LLM's kernel, and tunes it at start-up "
        "(kernel_warmup.py); its own rows are the untuned tactic, 3 to 5 times slower",
    ),
    ("vllm", "Hopper", "fp8_block"): ServedKernels(
        "vllm",
        "fp8_block",
        ("vllm_fp8moe_triton_tritonexperts", "vllm_fp8moe_flashinfer_cutlass_flashinferexperts"),
        "Triton without expert parallelism, FlashInfer CUTLASS with it (fused_moe/oracle/fp8.py)",
    ),
    ("sglang", "Hopper", "fp8"): ServedKernels(
        "sglang",
        "fp8_block",
        ("sglang_fused_moe_triton",),
        "no rows per tensor: the same Triton kernel with scales in blocks",
    ),
    ("sglang", "Hopper", "bf16"): ServedKernels(
        "sglang",
        "bf16",
        ("sglang_fused_moe_triton",),
        "Triton is SGLang's default; its FlashInfer CUTLASS rows are an untuned tactic, 3 to 5 times slower",
    ),
    ("sglang", "Hopper", "mxfp4_wo"): ServedKernels(
        "vllm",
        "w4a16_mxfp4",
        ("vllm_gptossmxfp4moe_triton_oaitritonmxfp4expertsmonolithic",),
        "SGLang takes OpenAI's Triton kernels for gpt-oss (server_args.py, moe_runner_backend triton_kernel), as vLLM "
        "does; its own rows unpack the weights to 16 bit",
    ),
}
"""(Backend, start of the architecture, variant of a calibration) -> what runs, where that is not the kernel with most
of the backend's own rows."""


@dataclass(frozen=True)
class ExpertRows:
    """Rows of the kernels that stand for a backend's experts.

    Attributes:
        backend: the engine they stand for, by its name in the tables.
        measured_by: whose rows they are.
        kernel: name of those with most rows.
        rows: that shape the form.
        more: that give curves of further shapes; may be empty.
        note: what was chosen and left out, and why.
    """

    backend: str
    measured_by: str
    kernel: str
    rows: ColumnTable
    more: ColumnTable
    note: str


def served_kernels(backend: str, architecture: str, variant: str, dtype: str) -> ServedKernels:
    """Kernel that runs a backend's experts of a format: by `SERVED`, else its own rows."""
    for (whose, start, of), served in SERVED.items():
        if (whose, of) == (backend, variant) and architecture.startswith(start):
            return served
    return ServedKernels(backend, dtype)


def expert_rows(table: ColumnTable, architecture: str, variant: str, dtype: str) -> list[ExpertRows]:
    """Per backend the rows that stand for its experts of a format, where there are any."""
    found = []
    for backend in np.unique(table.text("backend")).tolist():
        served = served_kernels(str(backend), architecture, variant, dtype)
        at = (table.text("backend") == served.backend) & (table.text("dtype") == served.dtype)
        if served.kernels:
            at &= np.isin(table.text("kernel"), served.kernels)
        if at.any():
            found.append(_chosen(str(backend), served, table.rows(at)))
    return found


def _chosen(backend: str, served: ServedKernels, rows: ColumnTable) -> ExpertRows:
    notes = [served.reason]
    if served.backend == "vllm":
        at = _concentrated(rows)
        rows = rows.rows(~at)
        notes.append(f"{at.sum()} balanced rows of a group-limited router left out" if at.any() else "")
    if served.backend == "trtllm":
        at = untuned(rows)
        rows = rows.rows(~at)
        notes.append(f"{at.sum()} rows of {len(at)} with an untuned tactic left out" if at.any() else "")
    kernels = rows.text("kernel")
    names, counts = np.unique(kernels, return_counts=True)
    main = str(names[counts.argmax()])
    shaping = np.isin(kernels, served.kernels or (main,))
    others = ", ".join(name for name in names.tolist() if name != main)
    notes.append(f"further shapes: {others}" if others else "")
    note = "; ".join(text for text in notes if text)
    return ExpertRows(backend, served.backend, main, rows.rows(shaping), rows.rows(~shaping), note)


def _concentrated(rows: ColumnTable) -> Mask:
    """Balanced rows whose routing is not: those of a group-limited router on more than one GPU."""
    at = (rows.text("distribution") == "balanced") & (rows["ep"] > 1)
    for name, value in GROUP_LIMITED.items():
        at &= rows[name] == value
    return np.asarray(at)


def untuned(rows: ColumnTable) -> Mask:
    """Rows that take far longer than the same model under another split allows.

    A GPU that holds more of every layer (smaller tp and ep) bounds one that holds less, and so does one that holds
    less, times the ratio of the work, since kernels do not get less efficient with more of it. A line beyond
    `UNTUNED_RATIO` times either bound ran a tactic that TensorRT-LLM's auto-tuner would not have chosen.
    """
    line = rows.keys("hidden", "inter", "topk", "num_experts", "distribution", "num_tokens", "gated", "kernel")
    time, tp, ep = rows["latency_s"], rows["tp"], rows["ep"]
    slow = np.zeros(len(rows), dtype=np.bool_)
    order = np.argsort(line, kind="stable")
    for at in np.split(order, np.flatnonzero(np.diff(line[order])) + 1):
        tps, eps = tp[at], ep[at]
        more = (tps <= tps[:, None]) & (eps <= eps[:, None])
        less = (tps >= tps[:, None]) & (eps >= eps[:, None])
        ratio = (tps * eps) / (tps * eps)[:, None]
        bound = np.where(more, time[at], np.where(less, time[at] * ratio, np.inf)).min(axis=1)
        slow[at] = time[at] > UNTUNED_RATIO * bound
    return slow


# --- matrix products ---------------------------------------------------------------------------------------------


MOST_EXTRA_S = 5e-6
"""Start of a product beyond that of the engine's 16-bit one from which on it is the measurement's [s]. A choice: one
more launch takes 1.3 to 2.9 us (table ``scale_matrix``, small inputs)."""
SCALE_PASS_NOTE = (
    "the pass that finds a tensor's scale, measured alone, is taken off: checkpoints hold that scale (ModelOpt FP8)"
)


def without_scale_pass(rows: ColumnTable, passes: ColumnTable | None, backend: str) -> ColumnTable:
    """Products less the pass that computes the scale of the whole activation tensor before it is quantised.

    Args:
        rows: products, columns m, k and latency_s; those of other backends stay as they are.
        passes: the pass measured alone (table ``computescale``), if it was.
        backend: whose products contain it.
    """
    at = rows.text("backend") == backend
    if passes is None or not at.any() or not (passes.text("backend") == backend).any():
        return rows
    alone = passes.rows(passes.text("backend") == backend)
    seconds = dict(zip(zip(alone["m"].tolist(), alone["k"].tolist(), strict=True), alone["latency_s"], strict=True))
    sizes = zip(rows["m"][at].tolist(), rows["k"][at].tolist(), strict=True)
    left = rows["latency_s"].copy()
    left[at] -= np.array([seconds.get(size, np.nan) for size in sizes])
    return rows.with_columns(latency_s=left).rows(left > 0.0)


def without_launch_floor(result: KernelFit, plain: KernelFit) -> KernelFit:
    """A fit whose start is that of the 16-bit product, where it was found far later.

    Args:
        result: fit of a product of narrow weights that quantises no activations.
        plain: fit of the same backend's 16-bit product.
    """
    start, value = result.parameters["start_s"], plain.parameters["start_s"].value
    if start.value <= value + MOST_EXTRA_S:
        return result
    served = start.model_copy(update={"value": value, "low": min(start.low, value)})
    note = f"start of {1e6 * start.value:.1f} us cut to that of the 16-bit product, {1e6 * value:.1f}: one launch each"
    return result.model_copy(
        update={
            "parameters": {**result.parameters, "start_s": served},
            "note": "; ".join(text for text in (result.note, note) if text),
        }
    )
