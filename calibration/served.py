"""Rows as they serve: which measured kernel stands for an engine's, and what of a measured product is not served.

Tables name the kernels their collector got. Mostly an engine takes the same ones; where serving takes another for the
routed experts, or the collector got a tactic that no auto-tuner would choose, `SERVED` and `untuned` say so, with the
reason. Tables of matrix products contain passes and launches that engines fuse or do once. Both are identified by other
measurements, never by what would please: a pass that was timed alone is taken off, and a product that quantises nothing
starts no later than the same backend's 16-bit one.

Of collectives: GPUs of one topology (NVSwitch, PCIe) reach much the same share of their link in whichever box,
unless the box sends their traffic the long way: through host memory where peer access is off, or between sockets. Such
rows say nothing about the next box, so that those of a box that does not are taken in their place; the note says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibration.tables import ColumnTable, FloatArray, Mask, joined_tables, read_table
from hardware_db import GpuSku, KernelFit

SLOW_SHARE = 0.25
"""Fitted share of the bandwidth below which a kernel is a slow path that serving avoids: kernels known to serve reach
0.5 to 1."""
UNTUNED_RATIO = 1.5
"""Times the bound of more or less work from which a row is a tactic that was not tuned: tuned rows scatter by 1.2."""
GROUP_LIMITED = {"hidden": 7168.0, "inter": 2048.0, "topk": 8.0, "num_experts": 256.0}
"""DeepSeek-V3, whose router picks four of eight groups of experts first (arXiv:2412.19437, sec. 2.1.2)."""
GROUP_LIMITED_BACKENDS = ("vllm", "sglang")
"""Backends whose rows were timed with that router on made-up scores of 0 and 1. It takes what these leave open from the
first experts, so that the first rank gets more pairs than the row says: of balanced rows over 16 ranks 4.5 of a
token's 8 instead of 0.5, and their time does not fall with the ranks. TensorRT-LLM's do not use it."""
EXPERT_TABLES = ("moe", "moe_2026_10")
"""Tables of routed experts, of which the newest version of an engine that measured a shape and split counts."""


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

    @property
    def models(self) -> int:
        """Shapes of models among the rows that shape the form."""
        return len(set(_shapes(self.rows)))


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


def expert_table(folder: Path) -> ColumnTable | None:
    """Routed experts of a folder: of every engine, format, shape and split the newest version that measured it.

    Kernels that an engine does not take by itself (column ``default_eligible``) are left out; whether experts have two
    matrices or three is that of the same shape in the first table, three where it is not in there.
    """
    tables = [table for table in (read_table(folder, name) for name in EXPERT_TABLES) if table is not None]
    if len(tables) < len(EXPERT_TABLES):
        return tables[0] if tables else None
    first, second = tables
    if "default_eligible" in second.columns:
        second = second.rows(second.text("default_eligible") != "False")
    plain = {shape for shape, gated in zip(_shapes(first), first["gated"].tolist(), strict=True) if not gated}
    second = second.with_columns(gated=np.array([float(shape not in plain) for shape in _shapes(second)]))
    joined = ColumnTable({name: np.concatenate([first[name], second[name]]) for name in first.columns})
    versions, which = np.unique(joined.text("backend_version"), return_inverse=True)
    ages = np.array([_release(version) for version in versions.tolist()])[which]
    groups = joined.keys("backend", "dtype", "hidden", "inter", "topk", "num_experts", "tp", "ep")
    newest = np.zeros(groups.max() + 1)
    np.maximum.at(newest, groups, ages)
    return joined.rows(ages == newest[groups])


def _shapes(table: ColumnTable) -> list[tuple[float, ...]]:
    return list(zip(*(table[name].tolist() for name in GROUP_LIMITED), strict=True))


def _release(version: str) -> float:
    """A number that grows with the release: 0.31.0 comes after 0.24.0."""
    major, minor, *patch = (int(part) for part in re.findall(r"[0-9]+", version)[:3])
    return float((major * 1000 + minor) * 1_000_000 + sum(patch))


def _chosen(backend: str, served: ServedKernels, rows: ColumnTable) -> ExpertRows:
    notes = [served.reason]
    if served.backend in GROUP_LIMITED_BACKENDS:
        at = _misrouted(rows)
        rows = rows.rows(~at)
        notes.append(f"{at.sum()} rows of a group-limited router left out" if at.any() else "")
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


def _misrouted(rows: ColumnTable) -> Mask:
    """Rows of a group-limited router whose load is another one: all on more than one GPU, balanced ones on one too."""
    at = (rows.text("distribution") == "balanced") | (rows["ep"] > 1)
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


HOST_FLOOR_S = 40e-6
"""Quickest product of a format from which on a backend's rows hold the host's time [s]. A choice: replayed from a CUDA
graph the smallest take 1.5 to 12 us, launched one by one 55 to 280 (tables ``gemm``)."""
MOST_EXTRA_S = 5e-6
"""Start of a product beyond that of the engine's 16-bit one from which on it is the measurement's [s]. A choice: one
more launch takes 1.3 to 2.9 us (table ``scale_matrix``, small inputs)."""
SCALE_PASS_NOTE = (
    "the pass that finds a tensor's scale, measured alone, is taken off: checkpoints hold that scale (ModelOpt FP8)"
)


def newest_products(table: ColumnTable, newer: ColumnTable | None) -> ColumnTable:
    """The table with a backend's rows of a format taken from the newer one where it has any.

    Of each backend all kernels count as one: at every size it took one of them, by the size.
    """
    if newer is not None:
        both = joined_tables([table, newer])
        of_backend, fresh = both.keys("backend", "dtype"), np.arange(len(both)) >= len(table)
        table = both.rows(fresh | ~np.isin(of_backend, of_backend[fresh]))
    kind, kernels = table.keys("backend", "dtype"), table.text("kernel")
    names = np.array(["/".join(np.unique(kernels[kind == number])) for number in range(kind.max() + 1)])
    return table.with_columns(kernel=names[kind])


def without_host_time(rows: ColumnTable) -> tuple[ColumnTable, str]:
    """Products of one format without the backends that were launched one by one, and a note of which those were."""
    backends = rows.text("backend")
    slow = [name for name in np.unique(backends).tolist() if rows["latency_s"][backends == name].min() > HOST_FLOOR_S]
    note = f"left out as launched outside a graph, with the host's time: {', '.join(slow)}" if slow else ""
    return rows.rows(~np.isin(backends, slow)), note


def tuned_products(rows: ColumnTable, backend: str) -> ColumnTable:
    """The rows of a format, with those of a backend that tunes its products made of the others' where it has none.

    TensorRT-LLM times cuBLAS, CUTLASS and kernels of its own for every size it meets (``AutoTuner`` of
    ``tensorrt_llm/_torch/autotuner.py``), so that of each shape the quickest row of the other backends is the nearest
    there is; any one of them has sizes at which it chose badly.
    """
    others = np.unique(rows.text("backend"))
    if backend in others or len(others) < 2:
        return rows
    shape = rows.keys("m", "n", "k")
    order = np.lexsort((rows["latency_s"], shape))
    quickest = rows.rows(order[np.unique(shape[order], return_index=True)[1]])
    names = {name: "/".join(np.unique(rows.text(name))) for name in ("kernel", "backend_version")}
    named = {name: np.full(len(quickest), text) for name, text in {**names, "backend": backend}.items()}
    return joined_tables([rows, quickest.with_columns(**named)])


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


# --- collectives -----------------------------------------------------------------------------------------------------


LEAST_OF_BEST = 0.5
"""Share of what another box of the topology (or another library in the box) reaches below which rows are refused. A
choice: boxes with peer access reach 0.38 to 0.74 of a PCIe link over 2 to 8 GPUs (RTX PRO 6000, Arc Pro B60, A100 pairs
joined over PCIe), NVSwitch ones 0.6 to 1.04; the rows refused by it 0.1 to 0.2 (docs/explanation/calibration.md)."""


@dataclass(frozen=True)
class GroupRows:
    """Rows of collectives over one number of GPUs.

    Attributes:
        rows: columns of the table ``collectives``.
        link_bytes_per_s: of the link they ran over, per GPU and direction.
        note: what was refused, and where the rows are from; empty where they are the SKU's own and all of them.
        spread: standard deviation of log(time) between the boxes where rows are borrowed, else 0.
        measured_on: SKU they are borrowed from, else empty.
    """

    rows: ColumnTable
    link_bytes_per_s: float
    note: str = ""
    spread: float = 0.0
    measured_on: str = ""


def group_rows(
    folder: Path, skus: Mapping[str, GpuSku], sku_id: str, gpus: int, folders: Mapping[str, str]
) -> GroupRows | None:
    """The rows to fit the collectives of a SKU over so many GPUs to; None where nothing was measured.

    Args:
        folder: of the SKU's own tables.
        skus: datasheets.
        sku_id: the SKU.
        gpus: that take part.
        folders: folder of tables -> SKU, of those that may stand beside `folder`.
    """
    own = _measured(folder, skus[sku_id], gpus)
    if own is None:
        return None
    topology, best = skus[sku_id].scale_up.topology, reached_share(own)
    lender, lent = sku_id, own
    for name, other in folders.items():
        if other != sku_id and other in skus and skus[other].scale_up.topology is topology:
            found = _measured(folder.parent / name, skus[other], gpus)
            if found is not None and reached_share(found) > reached_share(lent):
                lender, lent = other, found
    most = reached_share(lent)
    if best >= LEAST_OF_BEST * most:
        return _without_slow_libraries(own)
    note = (
        f"own rows refused: over {gpus} GPUs their box reaches {100 * best:.0f} % of the link, that of {lender} "
        f"{100 * most:.0f} %; share of the link and start taken over from {lender}"
    )
    return GroupRows(lent.rows, lent.link_bytes_per_s, note, math.log(most / best) / math.sqrt(2.0), lender)


def reached_share(group: GroupRows) -> float:
    """Largest share of the link that any of the rows reaches [-], all of them sent round a ring."""
    return float(np.max(_shares(group)))


def _measured(folder: Path, sku: GpuSku, gpus: int) -> GroupRows | None:
    table = read_table(folder, "collectives") if folder.is_dir() else None
    if table is None or not (table["num_gpus"] == gpus).any():
        return None
    return GroupRows(table.rows(table["num_gpus"] == gpus), sku.scale_up.bandwidth_bytes_per_s.value)


def _shares(group: GroupRows) -> FloatArray:
    """Bytes over each link / time / bandwidth; twice (n - 1) / n of the buffer in an all-reduce, once otherwise."""
    rows = group.rows
    rounds = np.where(rows.text("op") == "all_reduce", 2.0, 1.0) * (rows["num_gpus"] - 1.0) / rows["num_gpus"]
    return np.asarray(rounds * rows["bytes"] / rows["latency_s"] / group.link_bytes_per_s)


def _without_slow_libraries(group: GroupRows) -> GroupRows:
    """Without the all-reduces of libraries that reach far less than another one in the same box."""
    rows, shares = group.rows, _shares(group)
    libraries = rows.text("backend")
    served = (rows.text("op") == "all_reduce") & (rows.text("mode") == "graph")
    best = {str(name): float(shares[served & (libraries == name)].max()) for name in np.unique(libraries[served])}
    slow = sorted(name for name, share in best.items() if share < LEAST_OF_BEST * max(best.values()))
    if not slow:
        return group
    shown = ", ".join(f"{name} ({100 * best[name]:.0f} % of the link)" for name in slow)
    note = f"all-reduces refused of {shown}: in the same box another library reaches {100 * max(best.values()):.0f} %"
    return GroupRows(rows.rows(~(served & np.isin(libraries, slow))), group.link_bytes_per_s, note)
