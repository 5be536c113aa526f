"""From a folder of measured tables to one complete calibration per engine.

Each engine's own rows are used where it has any; an operator it has no usable rows for takes the other engine whose
fit predicts best, and says so in its note. Where one engine runs several kernels for a format, the one with the most
rows stands for it: the engine chose it for most shapes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from statistics import mode

import numpy as np

from calibration import block_sparse, chosen_keys, compressed, operators, recurrent, served, sparse_index
from calibration.fit import Problem, fit, fittable
from calibration.served import SLOW_SHARE, expert_rows, expert_table
from calibration.tables import ColumnTable, Mask, read_table
from hardware_db import Calibration, GpuSku, KernelFit
from planner.core import InputError, UnknownNameError
from planner.roofline import EXCHANGE_SMS, WEIGHT_FORMATS, SizeCorrection, own_kernel

ENGINES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}
"""Engine profile -> its name in the tables' backend column."""
SKUS = {
    "a100_sxm": "a100-sxm-80gb",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "l40s": "l40s",
    "b200_sxm": "b200-sxm",
    "b300_sxm": "b300-sxm",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
    "rtx_pro_6000_server": "rtx-pro-6000-blackwell-server",
}
"""Folder of tables -> SKU measured in full; others are in `calibration.borrowed`."""
GEMM_DTYPES = {
    "bf16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "int8": "sq",
    "int8_wo": "int8_wo",
    "int4_wo": "int4_wo",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
}
EXPERT_DTYPES = {
    "bf16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "mxfp8": "mxfp8",
    "int4_wo": "int4_wo",
    "nvfp4": "nvfp4",
    "mxfp4": "w4a4_mxfp4",
    "mxfp4_wo": "w4a16_mxfp4",
    "mxfp4_fp8": "w4a8_mxfp4_mxfp8",
}
"""Variant of a calibration -> number format in the tables."""
COLLECTIVES = ("all_gather", "reduce_scatter")
COLLECTIVE_GPUS = (2, 4, 8)
"""Numbers of GPUs that collectives were measured over."""
FUSED_ON = ("b200", "b300", "gb200", "gb300")
"""GPUs on which the kernel that sums and norms takes what TensorRT-LLM's sum does, and its passes over the residual:
97 and 197 us for 32 and 64 MiB over two B300 (https://github.com/vllm-project/vllm/pull/37756)."""
MIN_ROWS = 200
"""Rows below which a kernel is not fitted (collectives, of two dozen sizes, apart)."""
MOST_TIMES_WORSE = 2.0
"""Held-out error of an engine's experts, over the least of any, beyond which another engine's stand for them. A choice:
experts of a dozen models or more are within 1.8, those of two (SGLang's NVFP4 on Blackwell) at 2.4 to 3."""
ELEMENTWISE_FOLDERS = {"a100-sxm-80gb": ("vidur_a100", "a100-sxm-80gb")}
ELEMENTWISE_DEFAULT = ("vidur_h100", "h100-sxm")
"""Folder of element-wise tables, and the SKU they were measured on, for a SKU without a table of its own; by SKU."""
SLOW_VECTOR_NOTE = "rows with m = 1, up to three times slower than m = 2, left out"
TUNING_BACKEND = "trtllm"
"""Backend that times several kernels for every product it meets (`served.tuned_products`)."""
TUNED_NOTE = "no rows of its own: of each shape the quickest of the others', since it tunes its products"
SCALE_PASS_BACKEND = "trtllm"
"""Backend whose table of 8-bit products contains a pass that finds the scale of the activation tensor."""
WIDEST_BESIDE = {256: 512}
"""Head dimension of windowed rows -> that of the same model's global layers."""
LATENT_DECODE_BACKENDS = {"l40s": "sglang", "rtx_pro_6000_server": "sglang"}
"""Folder -> backend of latent decode; TensorRT-LLM elsewhere. On these two its kernel does not split the cache."""
LATENT_NOTE = (
    "one backend for every engine: vLLM 0.14's kernel rows carry 100 to 300 us of host time, and SGLang's run the "
    "absorbed form in prefill and an 8-bit slow path in decode, which serving avoids"
)
FAST_PATH_NOTE = "rows with over 32 query heads per KV head, off TensorRT-LLM's fast path, left out"
GATED_DELTA_KEY_HEADS = 16.0
"""Key heads of every gated delta net of Qwen3.5 (config.json, ``linear_num_key_heads``) on one GPU."""
MIN_STATE_ROWS = 30
"""Fewest calls of Kimi Delta Attention: its tables have 11 batches of four head counts, and an update of the state
depends on their product."""
DELTA_ATTENTION_NOTE = "convolution included, the quickest measured of its shape"
COMMON_NOTE = "for layers whose kernels all engines share (Mamba-2)"
MODULE_NOTE = "whole modules, whose projections and passes the other fits take off"
COMPRESSED_NOTE = "whole modules of DeepSeek-V4, whose projections and index the other fits take off"
PLAIN_COMPRESSED_FOLDERS = ("rtx_pro_6000_server",)
"""Folders whose compressed attention was measured in plain tensor operations only: SGLang 0.5.14 takes 0.7 ms for every
decoded token and layer there, whatever the context, for want of a FlashMLA of that architecture."""
STREAM_NOTE = "of one block, half of a row that holds both of a layer"
MIN_SHAPES = 30
"""Fewest rows of kernels whose time depends on one or two sizes, of which tables have a few dozen."""
LIBRARY = "any"
"""Backend of what engines share: NCCL, DeepEP, element-wise kernels."""
SOURCE = (
    "https://github.com/ai-dynamo/aiconfigurator commit 095f58a51c4ca8e61b66ec108d86f223f8d559ce (Apache-2.0), "
    "measured kernel tables, and newer ones of its successor, AISimulate 0.13.0.dev (Apache-2.0); element-wise "
    "operators: https://github.com/microsoft/vidur commit 7d47513363ec447a741ac5e47241580b47724fbf (MIT)"
)


def document(calibration: Calibration) -> str:
    """The calibration as JSON with one operator a line, so that two versions compare well."""
    fields = calibration.model_dump(mode="json")
    kernels = fields.pop("kernels")
    lines = [f" {json.dumps(key)}: {json.dumps(kernels[key])}" for key in kernels]
    head = json.dumps(fields, indent=1).rstrip("}").rstrip()
    return head + ',\n "kernels": {\n' + ",\n".join(lines) + "\n }\n}\n"


@dataclass(frozen=True)
class Candidate:
    """One kernel of one engine that could stand for an operator."""

    backend: str
    version: str
    kernel: str
    problems: tuple[Problem, ...]
    note: str = ""
    spread: float = 0.0
    """Least spread [log] of its fit: what boxes differ by where its rows are another one's."""
    measured_by: str = ""
    """Backend whose rows these are, where not its own."""
    measured_on: str = ""
    """SKU whose rows these are, where not its own: its shares of the peaks stand in."""


def calibrate(
    folder: Path, skus: Mapping[str, GpuSku], sku_id: str, engines: tuple[str, ...], on: date
) -> dict[str, Calibration]:
    """One complete calibration per engine that has kernels of its own, beside latent attention, which all share.

    Raises:
        InputError: the folder has no usable tables.
        UnknownNameError: a SKU that is not among `skus`, or an engine that is not among `ENGINES`.
    """
    if sku_id not in skus:
        raise UnknownNameError("sku", sku_id, skus)
    for engine in engines:
        if engine not in ENGINES:
            raise UnknownNameError("engine", engine, ENGINES)
    fitted = {
        key: _without_slow_paths(key, _best_fits(candidates)) for key, candidates in operators_of(folder, skus, sku_id)
    }
    plain = fitted.get("gemm/bf16")
    if not plain:
        raise InputError("folder", str(folder), "has no bf16 matrix products", "give a folder with gemm.csv[.gz]")
    fitted = {key: _without_launch_floors(key, by_backend, plain) for key, by_backend in fitted.items()}
    for modules in (_modules, _compressed_modules):
        fitted |= {key: _best_fits(candidates) for key, candidates in modules(folder, skus[sku_id], fitted)}
    calibrations = {}
    for engine in engines:
        backend = ENGINES[engine]
        own = [  # latent attention is one engine's in every calibration
            by_backend[backend][0]
            for key, by_backend in fitted.items()
            if backend in by_backend and not key.startswith("latent_")
        ]
        if not own:
            continue
        version = mode(candidate.version for candidate in own)
        calibrations[engine] = Calibration(
            sku=sku_id,
            stack=f"{engine} {version}",
            engine=engine,
            fitted_on=on,
            kernels={
                key: _engine_fit(backend, by_backend)
                for key, by_backend in fitted.items()
                if by_backend and _is_for(backend, key, fitted)
            },
            source=SOURCE,
            note="Short bursts in CUDA graphs: clocks are higher than in sustained serving, host time is not included.",
        )
    return calibrations


def _is_for(backend: str, key: str, fitted: Mapping[str, FitsByBackend]) -> bool:
    """True if a calibration has this kernel: one for heads of one kind only where it is the backend's own, or where its
    attention of all kinds is lent.
    """
    kernel, heads = key.split("/", maxsplit=1)
    if not kernel.startswith("wide_") or backend in fitted[key]:
        return True
    usual = f"{kernel.replace('wide', 'attention')}/{heads.rsplit('_', 1)[1]}"
    return backend not in fitted.get(usual, {})


FitsByBackend = Mapping[str, tuple[Candidate, KernelFit]]
"""Backend -> its kernel and the fit of it."""


def _best_fits(candidates: list[Candidate]) -> FitsByBackend:
    """Per backend its best fit: of alternative problems the one with the least held-out error."""
    best = {}
    for candidate in candidates:
        fits = [fit(problem) for problem in candidate.problems]
        best[candidate.backend] = (candidate, min(fits, key=lambda result: result.median_error))
    return best


def _without_slow_paths(key: str, fitted: FitsByBackend) -> FitsByBackend:
    """Without experts that read their weights slower than any kernel chosen for serving, and without those of few
    models that tell less about others than another engine's do: another's stand for them.
    """
    if not key.startswith("experts/") or not fitted:
        return fitted
    share = {backend: one.parameters["memory_efficiency"].value for backend, (_, one) in fitted.items()}
    most = MOST_TIMES_WORSE * min(one.median_error for _, one in fitted.values())
    return {
        backend: (candidate, one)
        for backend, (candidate, one) in fitted.items()
        if share[backend] >= SLOW_SHARE and one.median_error <= most
    }


def _engine_fit(backend: str, fitted: FitsByBackend) -> KernelFit:
    """The backend's own fit; where it has none, that of the other backend whose kernel is fastest."""
    lender = backend if backend in fitted else _fastest_backend(fitted)
    candidate, result = fitted[lender]
    origin = f"{candidate.measured_by or candidate.backend} {candidate.version}, kernel {candidate.kernel}"
    if candidate.backend == LIBRARY:
        origin = f"library {candidate.version}, kernel {candidate.kernel}"
    elif lender != backend:
        origin = f"no usable rows of {backend}: those of {origin}"
    beyond = _interpolation_note(result)
    note = "; ".join(text for text in (origin, result.note, candidate.note, beyond) if text)
    spread = max(result.spread, round(candidate.spread, 4))
    return result.model_copy(update={"note": note, "spread": spread, "measured_on": candidate.measured_on})


def _without_launch_floors(key: str, fitted: FitsByBackend, plain: FitsByBackend) -> FitsByBackend:
    """Matrix products that quantise no activations, without launches that only their measurement has."""
    operator, variant = key.split("/", maxsplit=1)
    if operator != "gemm" or WEIGHT_FORMATS[variant].quantised:
        return fitted
    return {
        backend: (candidate, served.without_launch_floor(result, plain.get(backend, (candidate, result))[1]))
        for backend, (candidate, result) in fitted.items()
    }


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
    yield from _attention(folder, sku, "attention")
    yield from _wide_attention(folder, sku)
    yield from _attention(folder, sku, "latent")
    yield from _encoders(folder, sku)
    yield from _recurrent(folder, sku)
    yield from _sparse_index(folder, sku)
    yield from _compressed_kernels(folder, sku)
    yield from _experts(folder, sku)
    yield from _collectives(folder, skus, sku_id)
    yield from _exchange(folder, sku)
    yield from _elementwise(folder, skus, sku_id)


def _candidates(
    rows: ColumnTable, makes: Sequence[Callable[[ColumnTable], Problem]], note: str = "", least: int = MIN_ROWS
) -> list[Candidate]:
    """One candidate per backend: its kernel with the most rows, if there are at least so many."""
    candidates = []
    backends, kernels = rows.text("backend"), rows.text("kernel")
    for backend in np.unique(backends).tolist():
        names, counts = np.unique(kernels[backends == backend], return_counts=True)
        kernel = str(names[counts.argmax()])
        kernel_rows = rows.rows((backends == backend) & (kernels == kernel))
        problems = tuple(problem for problem in (make(kernel_rows) for make in makes) if fittable(problem))
        if problems and len(kernel_rows) >= least:
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
    table = served.newest_products(table, read_table(folder, "gemm_2026_10"))
    for variant, dtype in GEMM_DTYPES.items():
        at, note = served.without_host_time(table.rows(_rows_with(table, dtype=dtype)))
        if variant == "fp8" and sku.architecture.startswith("Blackwell"):
            at = at.rows(at["m"] > 1)
            note = "; ".join(text for text in (note, SLOW_VECTOR_NOTE) if text)
        if variant == "fp8" and (at.text("backend") == SCALE_PASS_BACKEND).any():
            at = served.without_scale_pass(at, read_table(folder, "computescale"), SCALE_PASS_BACKEND)
            note = "; ".join(text for text in (note, served.SCALE_PASS_NOTE) if text)
        tuned = served.tuned_products(at, TUNING_BACKEND)
        if candidates := _candidates(tuned, [partial(operators.gemm, sku=sku, variant=variant)], note):
            if len(tuned) > len(at):
                said = "; ".join(text for text in (TUNED_NOTE, note) if text)
                candidates = [replace(one, note=said) if one.backend == TUNING_BACKEND else one for one in candidates]
            yield f"gemm/{variant}", candidates


def _attention(folder: Path, sku: GpuSku, kind: str) -> Iterator[tuple[str, list[Candidate]]]:
    """Prefill and decode of a kind of attention: ``attention`` or ``latent``, which is one backend's."""
    latent = {"prefill": "trtllm", "decode": LATENT_DECODE_BACKENDS.get(folder.name, "trtllm")}
    for kv in operators.KV_BYTES:
        for phase, backend in latent.items():
            table = read_table(folder, operators.ATTENTION_TABLES[f"{kind}_{phase}"])
            if table is None:
                continue
            mask, note = _rows_with(table, kv_dtype=kv), ""
            if kind == "latent":
                mask, note = mask & _rows_with(table, backend=backend), LATENT_NOTE
            elif phase == "prefill":
                mask &= _prefill_arithmetic(table, kv)
            elif (mask & _rows_with(table, backend="trtllm")).any():
                note = FAST_PATH_NOTE
            if mask.any():
                makes = [partial(make, sku=sku, variant=kv) for make in operators.ATTENTION_PROBLEMS[f"{kind}_{phase}"]]
                yield f"{kind}_{phase}/{kv}", _candidates(table.rows(mask), makes, note)


def _wide_attention(folder: Path, sku: GpuSku) -> Iterator[tuple[str, list[Candidate]]]:
    """Attention over heads that engines have kernels of their own for; not lent from one engine to another."""
    kinds = {"wide_prefill": "context_attention", "wide_decode": "generation_attention"}
    for kernel, file in kinds.items():
        table = read_table(folder, file)
        if table is None:
            continue
        for kv in operators.KV_BYTES:
            rows = table.rows(_rows_with(table, kv_dtype=kv))
            if kernel == "wide_prefill":
                rows = rows.rows(_prefill_arithmetic(rows, kv))
            makes = [partial(make, sku=sku, variant=kv) for make in operators.ATTENTION_PROBLEMS[kernel]]
            for heads, mask in _wide_heads(rows):
                if candidates := _candidates(rows.rows(mask), makes):
                    yield f"{kernel}/{heads}_{kv}", candidates


def _wide_heads(rows: ColumnTable) -> Iterator[tuple[str, Mask]]:
    """Rows of each kind of such heads, by its name in `planner.roofline.own_kernel`.

    The windows over 256 channels in the tables are those of Gemma 4, which has heads of 512 beside them.
    """
    windowed = rows["window"] > 0
    for head_dim in sorted(set(rows["head_dim"].tolist())):
        for window in (False, True):
            beside = WIDEST_BESIDE.get(head_dim, 0) if window else 0
            name = own_kernel(int(head_dim), window, max(int(head_dim), beside))
            mask = (rows["head_dim"] == head_dim) & (windowed == window)
            if name and mask.any():
                yield name, mask


def _prefill_arithmetic(rows: ColumnTable, kv: str) -> Mask:
    """With an fp8 cache: the rows that multiply in fp8 where a backend has them, which is how it serves."""
    if kv != "fp8":
        return np.ones(len(rows), dtype=np.bool_)
    backends, fp8 = rows.text("backend"), _rows_with(rows, attn_dtype="fp8")
    return fp8 | ~np.isin(backends, np.unique(backends[fp8]))


def _encoders(folder: Path, sku: GpuSku) -> Iterator[tuple[str, list[Candidate]]]:
    """Attention of vision encoders by the channels of a head, for which kernels differ."""
    table = read_table(folder, "encoder_attention")
    if table is None:
        return
    for dim in np.unique(table["head_dim"]).tolist():
        candidates = _candidates(table.rows(table["head_dim"] == dim), [partial(operators.encoder_attention, sku=sku)])
        yield f"encoder_attention/{dim:g}", candidates


def _recurrent(folder: Path, sku: GpuSku) -> Iterator[tuple[str, list[Candidate]]]:
    delta_net, delta_attention = read_table(folder, "gdn"), read_table(folder, "kda")
    if delta_net is not None and "num_k_heads" not in delta_net.columns:  # left out where all rows have the same
        delta_net = delta_net.with_columns(num_k_heads=np.full(len(delta_net), GATED_DELTA_KEY_HEADS))
    for variant, table, rows_of, note, least in (
        ("gated_delta", delta_net, recurrent.layer_rows, "convolution included", MIN_ROWS),
        ("kda", delta_attention, recurrent.delta_attention_rows, DELTA_ATTENTION_NOTE, MIN_STATE_ROWS),
    ):
        if table is None:
            continue
        for kernel, phase, make in (
            ("recurrent_prefill", "context", recurrent.recurrent_prefill),
            ("recurrent_decode", "generation", recurrent.recurrent_decode),
        ):
            candidates = _candidates(rows_of(table, phase), [partial(make, sku=sku)], note, least)
            yield f"{kernel}/{variant}", candidates
            if variant == "gated_delta":
                own = [one for one in candidates if one.backend == ENGINES["vllm"]]
                yield (
                    f"{kernel}/common",
                    [replace(one, backend=LIBRARY, version=f"vLLM {one.version}", note=COMMON_NOTE) for one in own],
                )


def _sparse_index(folder: Path, sku: GpuSku) -> Iterator[tuple[str, list[Candidate]]]:
    scores, paged, top_k, attention = (
        read_table(folder, name)
        for name in (
            "glm5_mqa_logits_module",
            "dsv4_paged_mqa_logits_module",
            "glm5_topk_module",
            "glm5_dsa_attn_module",
        )
    )
    if scores is None or paged is None or top_k is None or attention is None:
        return
    yield "index_scores/prefill", _candidates(scores, [partial(sparse_index.prompt_scores, sku=sku)])
    yield "index_scores/decode", _candidates(paged, [partial(sparse_index.decode_scores, sku=sku)])
    yield "sparse_prefill/bf16", _candidates(attention, [partial(sparse_index.sparse_prefill, sku=sku)])
    note = "mean of two score patterns"
    rows = sparse_index.mean_of_modes(top_k)
    yield "index_selection/top_k", _candidates(rows, [partial(sparse_index.selection, sku=sku)], note)


def _modules(folder: Path, sku: GpuSku, fitted: Mapping[str, FitsByBackend]) -> Iterator[tuple[str, list[Candidate]]]:
    """Kernels measured with their projections only, which the fits of those take off."""
    prompts = (chosen_keys.prefill, partial(chosen_keys.prefill, dense=True))
    for kernel, name, kind, makes in (
        ("block_prefill", "msa_context_module", block_sparse, (block_sparse.prefill,)),
        ("block_decode", "msa_generation_module", block_sparse, (block_sparse.decode,)),
        ("chosen_prefill", "dsa_context_module", chosen_keys, prompts),
        ("chosen_decode", "dsa_generation_module", chosen_keys, (chosen_keys.decode,)),
    ):
        table = read_table(folder, name)
        if table is None:
            continue
        table = table.rows(kind.served(table))
        for kv in operators.KV_BYTES:
            candidates = []
            for backend in np.unique(table.text("backend")).tolist():
                rows = table.rows(_rows_with(table, backend=backend, kv_cache_dtype=kv))
                known = kind.module_rows(rows, sku, partial(_fit_of, fitted, backend))
                candidates += _candidates(known, [partial(make, sku=sku, variant=kv) for make in makes], MODULE_NOTE)
            yield f"{kernel}/{kv}", candidates


def _compressed_modules(
    folder: Path, sku: GpuSku, fitted: Mapping[str, FitsByBackend]
) -> Iterator[tuple[str, list[Candidate]]]:
    """Compressed attention, measured with its projections and index, which their fits take off."""
    if folder.name in PLAIN_COMPRESSED_FOLDERS:
        return
    for kernel, phase, make in (
        ("prefill", "context", compressed.prefill),
        ("decode", "generation", compressed.decode),
    ):
        for variant, kind in (("indexed", "csa"), ("pooled", "hca")):
            table = read_table(folder, f"dsv4_{kind}_{phase}_module")
            if table is None:
                continue
            candidates = []
            for backend in np.unique(table.text("backend")).tolist():
                rows = table.rows(_rows_with(table, backend=backend))
                known = compressed.module_rows(rows, sku, kernel, partial(_fit_of, fitted, backend))
                if len(known):
                    candidates += _candidates(known, [partial(make, sku=sku)], COMPRESSED_NOTE)
            yield f"compressed_{kernel}/{variant}", candidates


def _compressed_kernels(folder: Path, sku: GpuSku) -> Iterator[tuple[str, list[Candidate]]]:
    """The choice of compressed keys, and the mixes of residual streams around every block."""
    choice, mixes = read_table(folder, "dsv4_csa_topk_calib"), read_table(folder, "mhc_module")
    if choice is not None:
        for phase, note in (("prefill", "mean of two score patterns"), ("decode", "scores that differ")):
            rows = compressed.selection_rows(choice, phase)
            made = _candidates(rows, [partial(compressed.selection, sku=sku)], note, MIN_SHAPES)
            yield f"index_selection/compressed_{phase}", made
    if mixes is not None:
        for operation in ("pre", "post"):
            rows = compressed.stream_mix_rows(mixes, operation)
            made = _candidates(rows, [partial(compressed.stream_mix, sku=sku)], STREAM_NOTE, MIN_SHAPES)
            yield f"elementwise/mhc_{operation}", made


def _fit_of(fitted: Mapping[str, FitsByBackend], backend: str, key: str) -> KernelFit | None:
    """The fit that a calibration of this backend has under a key."""
    return _engine_fit(backend, fitted[key]) if fitted.get(key) else None


def _experts(folder: Path, sku: GpuSku) -> Iterator[tuple[str, list[Candidate]]]:
    table = expert_table(folder)
    if table is None:
        return
    for variant, dtype in EXPERT_DTYPES.items():
        candidates, found = [], expert_rows(table, sku.architecture, variant, dtype)
        most = max((chosen.models for chosen in found), default=0)
        for chosen in found:
            if chosen.models == 1 < most:  # an engine measured on one model takes the fit of one measured on more
                continue
            problem = operators.experts(chosen.rows, sku, variant, chosen.more)
            if len(chosen.rows) >= MIN_ROWS and fittable(problem):
                version = max(chosen.rows.text("backend_version").tolist())
                note, by = chosen.note, chosen.measured_by
                candidates.append(Candidate(chosen.backend, version, chosen.kernel, (problem,), note, measured_by=by))
        if candidates:
            yield f"experts/{variant}", candidates


def _collectives(folder: Path, skus: Mapping[str, GpuSku], sku_id: str) -> Iterator[tuple[str, list[Candidate]]]:
    for gpus in COLLECTIVE_GPUS:
        group = served.group_rows(folder, skus, sku_id, gpus, SKUS)
        if group is None:
            continue
        summed = _by_backend(group, _rows_with(group.rows, op="all_reduce", mode="graph"), 1.0)
        yield f"all_reduce/{gpus}", summed
        if sku_id.startswith(FUSED_ON):
            yield f"normed_reduce/{gpus}", [replace(c, backend=LIBRARY) for c in summed if c.backend == "trtllm"]
        for op in COLLECTIVES:
            at = _rows_with(group.rows, op=op, backend="nccl")
            yield (f"{op}/{gpus}", [replace(c, backend=LIBRARY) for c in _by_backend(group, at, (gpus - 1) / gpus)])


def _by_backend(group: served.GroupRows, at: Mask, share: float) -> list[Candidate]:
    candidates, rows = [], group.rows.rows(at)
    for backend in np.unique(rows.text("backend")).tolist():
        backend_rows = rows.rows(_rows_with(rows, backend=backend))
        problem = operators.collective(backend_rows, group.link_bytes_per_s, share)
        kernels = "/".join(np.unique(backend_rows.text("kernel")).tolist())
        version = str(backend_rows.columns["backend_version"][0])
        note = "; ".join(text for text in (f"library {backend}", group.note) if text)
        found = Candidate(backend, version, kernels, (problem,), note, group.spread, measured_on=group.measured_on)
        candidates.append(found)
    return candidates


def _exchange(folder: Path, sku: GpuSku) -> Iterator[tuple[str, list[Candidate]]]:
    table = read_table(folder, "ep_all_to_all")
    if table is None:
        return
    link, ranks = sku.scale_up.bandwidth_bytes_per_s.value, float(min(sku.node.gpus, 8))
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
