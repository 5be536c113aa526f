"""From a folder of measured tables to one complete calibration per engine.

Each engine's own rows are used where it has any; an operator it has no usable rows for takes the other engine whose
fit predicts best, and says so in its note. Where one engine runs several kernels for a format, the one with the most
rows stands for it: the engine chose it for most shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np

from calibration import operators
from calibration.fit import Problem, fit, fittable
from calibration.tables import ColumnTable, Mask, read_table
from hardware_db import Calibration, GpuSku, KernelFit
from planner.core import InputError, UnknownNameError
from planner.roofline import SizeCorrection

ENGINES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}
"""Engine profile -> its name in the tables' backend column."""
SKUS = {
    "a100_sxm": "a100-sxm-80gb",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "l40s": "l40s",
    "b200_sxm": "b200-sxm",
    "gb200": "gb200-nvl72",
    "rtx_pro_6000_server": "rtx-pro-6000-blackwell-server",
}
"""Folder of tables -> SKU."""
GEMM_DTYPES = {
    "bf16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "int8": "sq",
    "int8_wo": "int8_wo",
    "int4": "int4_wo",
    "fp4": "nvfp4",
}
EXPERT_DTYPES = {
    "bf16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "int4": "int4_wo",
    "fp4": "nvfp4",
    "mxfp4": "w4a16_mxfp4",
    "mxfp4_fp8": "w4a8_mxfp4_mxfp8",
}
"""Variant of a calibration -> number format in the tables."""
SPLITS = ((True, True), (True, False), (False, False))
"""Whether decode kernels split the cache: always; not in windowed or ungrouped layers; never. The best fit decides."""
COLLECTIVES = {"all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "all_to_all": "alltoall"}
MIN_ROWS = 200
"""Rows below which a kernel is not fitted (collectives, of two dozen sizes, apart)."""
EXCHANGE_SMS = 20.0
"""SMs given to the throughput kernel of expert exchange; DeepEP's default (deepseek-ai/DeepEP, Buffer.num_sms)."""
ELEMENTWISE_FOLDERS = {"a100-sxm-80gb": ("vidur_a100", "a100-sxm-80gb")}
ELEMENTWISE_DEFAULT = ("vidur_h100", "h100-sxm")
"""Folder of element-wise tables, and the SKU they were measured on, for a SKU without a table of its own; by SKU."""
HOST_BOUND_NOTE = "vLLM's rows for this format are timed with the host's launch time in them and are left out"
LATENT_DECODE_BACKENDS = {"l40s": "sglang", "rtx_pro_6000_server": "sglang"}
"""Folder -> backend of latent decode; TensorRT-LLM elsewhere. On these two its kernel does not split the cache."""
LATENT_NOTE = (
    "one backend for every engine: vLLM 0.14's kernel rows carry 100 to 300 us of host time, and SGLang's run the "
    "absorbed form in prefill and an 8-bit slow path in decode, which serving avoids"
)
FAST_PATH_NOTE = "rows with over 32 query heads per KV head, off TensorRT-LLM's fast path, left out"
LIBRARY = "any"
"""Backend of what engines share: NCCL, DeepEP, element-wise kernels."""
SOURCE = (
    "https://github.com/ai-dynamo/aiconfigurator commit 095f58a51c4ca8e61b66ec108d86f223f8d559ce (Apache-2.0), "
    "measured kernel tables; element-wise operators: https://github.com/microsoft/vidur commit "
    "7d47513363ec447a741ac5e47241580b47724fbf (MIT)"
)


@dataclass(frozen=True)
class Candidate:
    """One kernel of one engine that could stand for an operator."""

    backend: str
    version: str
    kernel: str
    problems: tuple[Problem, ...]
    note: str = ""


def calibrate(
    folder: Path, skus: Mapping[str, GpuSku], sku_id: str, engines: tuple[str, ...], on: date
) -> dict[str, Calibration]:
    """One complete calibration per engine that has matrix products of its own.

    Raises:
        InputError: the folder has no usable tables.
        UnknownNameError: a SKU that is not among `skus`, or an engine that is not among `ENGINES`.
    """
    if sku_id not in skus:
        raise UnknownNameError("sku", sku_id, skus)
    for engine in engines:
        if engine not in ENGINES:
            raise UnknownNameError("engine", engine, ENGINES)
    fitted = {key: _best_fits(candidates) for key, candidates in operators_of(folder, skus, sku_id)}
    gemm = fitted.get("gemm/bf16", {})
    if not gemm:
        raise InputError("folder", str(folder), "has no bf16 matrix products", "give a folder with gemm.csv[.gz]")
    calibrations = {}
    for engine in engines:
        backend = ENGINES[engine]
        if backend not in gemm:
            continue
        version = gemm[backend][0].version
        calibrations[engine] = Calibration(
            sku=sku_id,
            stack=f"{engine} {version}",
            engine=engine,
            fitted_on=on,
            kernels={key: _engine_fit(backend, by_backend) for key, by_backend in fitted.items() if by_backend},
            source=SOURCE,
            note="Short bursts in CUDA graphs: clocks are higher than in sustained serving, host time is not included.",
        )
    return calibrations


FitsByBackend = Mapping[str, tuple[Candidate, KernelFit]]
"""Backend -> its kernel and the fit of it."""


def _best_fits(candidates: list[Candidate]) -> FitsByBackend:
    """Per backend its best fit: of alternative problems the one with the least held-out error."""
    best = {}
    for candidate in candidates:
        fits = [fit(problem) for problem in candidate.problems]
        best[candidate.backend] = (candidate, min(fits, key=lambda result: result.median_error))
    return best


def _engine_fit(backend: str, fitted: FitsByBackend) -> KernelFit:
    """The backend's own fit; where it has none, that of the other backend whose kernel is fastest."""
    lender = backend if backend in fitted else _fastest_backend(fitted)
    candidate, result = fitted[lender]
    origin = f"{candidate.backend} {candidate.version}, kernel {candidate.kernel}"
    if candidate.backend == LIBRARY:
        origin = f"library {candidate.version}, kernel {candidate.kernel}"
    elif lender != backend:
        origin = f"no usable rows of {backend}: those of {origin}"
    beyond = _interpolation_note(result)
    note = "; ".join(text for text in (origin, result.note, candidate.note, beyond) if text)
    return result.model_copy(update={"note": note})


def _fastest_backend(fitted: FitsByBackend) -> str:
    """The backend with the shortest predicted times (geometric mean) on the first one's rows."""
    rows = next(iter(fitted.values()))[0].problems[0].rows

    def typical(backend: str) -> float:
        candidate, result = fitted[backend]
        values = {name: coefficient.value for name, coefficient in result.parameters.items()}
        return float(np.mean(np.log(candidate.problems[0].predict(values, rows, SizeCorrection.of(result.correction)))))

    return min(fitted, key=typical)


def _interpolation_note(result: KernelFit) -> str:
    """Why an error may exceed twice that of interpolation."""
    known = result.interpolation_error
    if known is None or result.median_error <= 2.0 * known:
        return ""
    return "interpolation knows its neighbours of the same shape, the fit is judged on shapes it has never seen"


def operators_of(folder: Path, skus: Mapping[str, GpuSku], sku_id: str) -> Iterator[tuple[str, list[Candidate]]]:
    """Every operator of a calibration with the kernels that could stand for it."""
    sku = skus[sku_id]
    yield from _gemms(folder, sku)
    yield from _attention(folder, sku)
    yield from _latent(folder, sku)
    yield from _experts(folder, sku)
    yield from _collectives(folder, sku)
    yield from _exchange(folder, sku)
    yield from _elementwise(folder, skus, sku_id)


def _candidates(
    rows: ColumnTable, makes: Sequence[Callable[[ColumnTable], Problem]], note: str = ""
) -> list[Candidate]:
    """One candidate per backend: its kernel with the most rows."""
    candidates = []
    backends, kernels = rows.text("backend"), rows.text("kernel")
    for backend in np.unique(backends).tolist():
        names, counts = np.unique(kernels[backends == backend], return_counts=True)
        kernel = str(names[counts.argmax()])
        kernel_rows = rows.rows((backends == backend) & (kernels == kernel))
        problems = tuple(problem for problem in (make(kernel_rows) for make in makes) if fittable(problem))
        if problems and len(kernel_rows) >= MIN_ROWS:
            version = str(kernel_rows.columns["backend_version"][0])
            candidates.append(Candidate(str(backend), version, kernel, problems, note))
    return candidates


def _rows_with(rows: ColumnTable, **wanted: str) -> Mask:
    """The rows whose columns of text have these values."""
    mask = np.ones(len(rows), dtype=np.bool_)
    for column, value in wanted.items():
        mask &= rows.text(column) == value
    return mask


def _gemms(folder: Path, sku: GpuSku) -> Iterator[tuple[str, list[Candidate]]]:
    table = read_table(folder, "gemm")
    if table is None:
        return
    for variant, dtype in GEMM_DTYPES.items():
        mask = _rows_with(table, dtype=dtype)
        note = ""
        if variant == "fp8_block":
            mask &= table.text("backend") != "vllm"
            note = HOST_BOUND_NOTE
        if variant == "fp8" and sku.architecture == "Blackwell":
            mask &= table["m"] > 1
            note = "rows with m = 1, three times slower than m = 2, left out"
        if mask.any():
            yield (
                f"gemm/{variant}",
                _candidates(table.rows(mask), [partial(operators.gemm, sku=sku, variant=variant)], note),
            )


def _attention(folder: Path, sku: GpuSku) -> Iterator[tuple[str, list[Candidate]]]:
    prefill, decode = read_table(folder, "context_attention"), read_table(folder, "generation_attention")
    for kv in operators.KV_BYTES:
        if prefill is not None:
            rows = prefill.rows(_rows_with(prefill, kv_dtype=kv) & _prefill_arithmetic(prefill, kv))
            if len(rows):
                yield (
                    f"attention_prefill/{kv}",
                    _candidates(rows, [partial(operators.attention_prefill, sku=sku, variant=kv)]),
                )
        if decode is not None and _rows_with(decode, kv_dtype=kv).any():
            rows = decode.rows(_rows_with(decode, kv_dtype=kv))
            yield (
                f"attention_decode/{kv}",
                _candidates(
                    rows,
                    [partial(operators.attention_decode, sku=sku, variant=kv, splits=splits) for splits in SPLITS],
                    FAST_PATH_NOTE if (rows.text("backend") == "trtllm").any() else "",
                ),
            )


def _prefill_arithmetic(rows: ColumnTable, kv: str) -> Mask:
    """With an fp8 cache: the rows that multiply in fp8 where a backend has them, which is how it serves."""
    if kv != "fp8":
        return np.ones(len(rows), dtype=np.bool_)
    backends, fp8 = rows.text("backend"), _rows_with(rows, attn_dtype="fp8")
    return fp8 | ~np.isin(backends, np.unique(backends[fp8]))


def _latent(folder: Path, sku: GpuSku) -> Iterator[tuple[str, list[Candidate]]]:
    prefill, decode = read_table(folder, "context_mla"), read_table(folder, "generation_mla")
    source = LATENT_DECODE_BACKENDS.get(folder.name, "trtllm")
    for kv in operators.KV_BYTES:
        if prefill is not None:
            rows = prefill.rows(_rows_with(prefill, kv_dtype=kv, backend="trtllm"))
            if len(rows):
                yield (
                    f"latent_prefill/{kv}",
                    _candidates(rows, [partial(operators.latent_prefill, sku=sku, variant=kv)], LATENT_NOTE),
                )
        if decode is not None:
            rows = decode.rows(_rows_with(decode, kv_dtype=kv, backend=source))
            if len(rows):
                yield (
                    f"latent_decode/{kv}",
                    _candidates(
                        rows,
                        [partial(operators.latent_decode, sku=sku, variant=kv, splits_kv=s) for s in (True, False)],
                        LATENT_NOTE,
                    ),
                )


def _experts(folder: Path, sku: GpuSku) -> Iterator[tuple[str, list[Candidate]]]:
    table = read_table(folder, "moe")
    if table is None:
        return
    for variant, dtype in EXPERT_DTYPES.items():
        mask = _rows_with(table, dtype=dtype)
        if mask.any():
            yield (
                f"experts/{variant}",
                _candidates(table.rows(mask), [partial(operators.experts, sku=sku, variant=variant)]),
            )


def _collectives(folder: Path, sku: GpuSku) -> Iterator[tuple[str, list[Candidate]]]:
    table = read_table(folder, "collectives")
    if table is None:
        return
    link = sku.scale_up.bandwidth_bytes_per_s.value
    for gpus in (2, 4, 8):
        group_rows = table.rows(table["num_gpus"] == gpus)
        if not len(group_rows):
            continue
        reduced = group_rows.rows(_rows_with(group_rows, op="all_reduce", mode="graph"))
        yield (f"all_reduce/{gpus}", _by_backend(reduced, link, 1.0))
        for key, op in COLLECTIVES.items():
            rows = group_rows.rows(_rows_with(group_rows, op=op, backend="nccl"))
            yield (f"{key}/{gpus}", [replace(c, backend=LIBRARY) for c in _by_backend(rows, link, (gpus - 1) / gpus)])


def _by_backend(rows: ColumnTable, link_bytes_per_s: float, share: float) -> list[Candidate]:
    candidates = []
    for backend in np.unique(rows.text("backend")).tolist():
        backend_rows = rows.rows(_rows_with(rows, backend=backend))
        problem = operators.collective(backend_rows, link_bytes_per_s, share)
        kernels = "/".join(np.unique(backend_rows.text("kernel")).tolist())
        version = str(backend_rows.columns["backend_version"][0])
        candidates.append(Candidate(backend, version, kernels, (problem,), f"library {backend}"))
    return candidates


def _exchange(folder: Path, sku: GpuSku) -> Iterator[tuple[str, list[Candidate]]]:
    table = read_table(folder, "ep_all_to_all")
    if table is None:
        return
    link, ranks = sku.scale_up.bandwidth_bytes_per_s.value, 4.0 if folder.name == "gb200" else 8.0
    for kernel, sms in (("low_latency", 0.0), ("normal", EXCHANGE_SMS)):
        for op, value_bytes in (("dispatch", 1.0 + 4.0 / 128.0), ("combine", 2.0)):
            mask = _rows_with(table, kernel=f"deepep_{kernel}", op=op) & (table["num_sms"] == sms)
            if mask.any():
                low_latency = kernel == "low_latency"
                problem = operators.expert_exchange(table.rows(mask), link, ranks, value_bytes, low_latency)
                note = f"{ranks:.0f} GPUs, {'8-bit' if op == 'dispatch' else '16-bit'} activations"
                version = f"of {table.text('backend')[0]} {table.columns['backend_version'][0]}"
                candidate = Candidate(LIBRARY, version, f"deepep_{kernel}", (problem,), note)
                yield (f"expert_{op}/{kernel}", [candidate])


ELEMENTWISE_OPS = {
    "bf16": ("input_layernorm", "post_attention_layernorm", "attn_rope", "mlp_act"),
    "norm": ("input_layernorm", "post_attention_layernorm"),
    "rope": ("attn_rope",),
    "activation": ("mlp_act",),
    "add": ("add",),
}
"""Variant -> operators in the tables; bf16 pools those that current engines still run one by one."""


def _elementwise(folder: Path, skus: Mapping[str, GpuSku], sku_id: str) -> Iterator[tuple[str, list[Candidate]]]:
    """From the folder's own table ``mlp`` where it has one, else from one of the folders beside it."""
    name, measured_on = ELEMENTWISE_FOLDERS.get(sku_id, ELEMENTWISE_DEFAULT)
    table = read_table(folder, "mlp")
    if table is not None:
        measured_on = sku_id
    else:
        table = read_table(folder.parent / name, "mlp")
    if table is None or measured_on not in skus:
        return
    inherited = f"measured on {measured_on}, whose start and share of bandwidth are taken over"
    note = inherited if measured_on != sku_id else "resolution 1 us"
    rows = operators.elementwise_rows(table)
    for variant, ops in ELEMENTWISE_OPS.items():
        problem = operators.elementwise(rows.rows(np.isin(rows.text("op"), ops)), skus[measured_on])
        yield (f"elementwise/{variant}", [Candidate(LIBRARY, "vidur 2023-24", "torch and vLLM", (problem,), note)])
