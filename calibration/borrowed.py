"""Calibrations of GPUs that were measured in part: what was measured there, and whose shares of peak stand in.

AMD's kernels are those of one library, AITER, which vLLM and SGLang both run. Its tables hold the fastest of all
candidate kernels for a shape, without the pass that quantises activations; where a table compares several kernels the
fastest that engines run stands for a shape. For each kernel the folders of `PARTS` are asked in turn, the GPU's own
first, then those of its nearest relatives, then the packaged calibrations of a GPU that was measured in full:

- *measured*: `assemble.MIN_ROWS` rows or more are fitted as on any GPU;
- *few rows*: the form is that of the next source, and only the launch floor and the shares of peak are fitted;
- *none*: the next source's fit is taken over as it is, in shares of this GPU's peaks.

A fit that is taken over from another vendor's GPU is slowed down (or sped up) by the median of measured / lent over the
kernels of the same family that were measured, where any were. Its `spread` grows by the *transfer variance*:
`transfer_spreads` holds every pair of calibrations against each other on the rows of every kernel, by how far the two
GPUs are apart. What was fitted to few rows keeps at least the spread of
the fit its form is from.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from functools import cached_property, partial
from itertools import combinations
from pathlib import Path

import numpy as np

from calibration import assemble, operators
from calibration.fit import ParameterBound, Problem, fit, fittable
from calibration.imported import MAX_IMPOSSIBLE_SHARE
from calibration.possible import possible_rows
from calibration.served import newest_products
from calibration.tables import ColumnTable, FloatArray, Mask, read_table
from hardware_db import NETWORK, Calibration, Coefficient, Correction, Dtype, GpuSku, KernelFit
from planner.core import InputError, UnknownNameError
from planner.roofline import GEMM_FALLBACKS, WEIGHT_FORMATS, SizeCorrection, link_bandwidth_bytes_per_s


@dataclass(frozen=True)
class PartialSources:
    """Sources of a GPU that was measured in part.

    Attributes:
        folders: of measured tables, nearest first: its own, the same die, the same vendor.
        lender: GPU measured in full, of its architecture or else of its years, whose packaged fits stand in last.
        engines: that run what was measured.
        stack: version of that in the calibration's name.
        source: of the tables.
        note: about all of its rows.
    """

    folders: tuple[str, ...]
    lender: str
    engines: tuple[str, ...] = ("vllm",)
    stack: str = ""
    source: str = ""
    note: str = ""


AITER = partial(
    PartialSources,
    engines=("vllm", "sglang"),
    stack="aiter-e4048607",
    source="https://github.com/ROCm/aiter commit e4048607 (MIT), tuned configurations; published measurements of "
    "attention and collectives as named in the tables (HazyResearch/HipKittens f09e9685, "
    "midiareshadi/attn-dsl-bench 94ea7f31, samuel-bohman/AI-benchmarking-guide 2b25b696, pull requests of ROCm/aiter "
    "and vLLM)",
    note="the fastest of all candidate kernels for each shape: engines are slower, never faster",
)
PROFILED = partial(
    PartialSources,
    source="https://github.com/casys-kaist/LLMServingSim commit 5daddb21 (MIT), profiles of Llama-3.1-8B",
    note="one model's layers in 16 bit",
)
PARTS = {
    "mi300x": AITER(("mi300x", "mi325x", "mi355x"), "h200-sxm"),
    "mi308x": AITER(("mi308x", "mi300x", "mi355x"), "h200-sxm"),
    "mi325x": AITER(("mi325x", "mi300x", "mi355x"), "h200-sxm"),
    "mi355x": AITER(("mi355x", "mi300x"), "b200-sxm"),
    "rtx-4090": PROFILED(("rtx_4090",), "l40s", stack="0.19.0"),
    "rtx-3090": PROFILED(("rtx3090", "a6000"), "a100-sxm-80gb", stack="cublas-5daddb21"),
    "rtx-a6000": PROFILED(("a6000",), "a100-sxm-80gb", stack="cublas-5daddb21"),
    "a40": PartialSources(
        ("vidur_a40", "a6000"),
        "a100-sxm-80gb",
        stack="vidur-7d475133",
        source="https://github.com/microsoft/vidur commit 7d475133 (MIT), profiles; attention of RTX A6000: "
        "https://github.com/casys-kaist/LLMServingSim commit 5daddb21 (MIT)",
        note="GPU time of 2023's kernels, resolution 1 us",
    ),
    "arc-pro-b60": PartialSources(
        ("b60",),
        "l40s",
        stack="0.28.0",
        source=assemble.SOURCE,
        note="attention, experts and collectives of vLLM 0.20.1, whose kernels start 20 to 80 us late",
    ),
}
"""SKU -> where its fits come from.

MI308X, MI300X with 80 of its 304 compute units and all of its memory, lends to none: on MI300X's block-scaled products
MI355X's shares of peak are off by 1 % (median), MI308X's by 38 %."""
FOLDERS = {name: sku for sku, part in PARTS.items() for name in part.folders[:1]}
"""Folder of tables -> SKU."""
GEMM_DTYPES = {"bf16": "bf16", "fp8_token": "fp8", "fp8_block": "fp8_block", "int8": "int8", "mxfp4": "mxfp4"}
EXPERT_DTYPES = {
    "bf16": "bf16",
    "fp8_token": "fp8",
    "fp8_block": "fp8_block",
    "mxfp8": "mxfp8",
    "int4_g32_wo": "w4a16_int4",
    "mxfp4": "w4a4_mxfp4",
    "mxfp4_wo": "w4a16_mxfp4",
    "mxfp4_fp8": "w4a8_mxfp4_mxfp8",
}
"""Variant of a calibration -> number format in AITER's tables: its fp8 has a scale per token, its int4 (of Kimi-K2) one
per 32 values."""
NOT_SERVED = (
    "hipkittens",
    "quickreduce_int8",
    "quickreduce_int6",
    "quickreduce_int4",
    "vllm_custom_allreduce_tuned_pr",
)
"""Kernels in the tables that engines do not run by default: research code, lossy collectives, an unmerged change."""
SERVED_PREFILL = "aiter"
"""Backend of prefill attention: SDPA and Triton kernels in the tables are there to compare."""
CUSTOM_ALL_REDUCE_BYTES = 16e6
"""Up to here engines run an all-reduce kernel of their own and not RCCL (vLLM's custom all-reduce and QuickReduce), so
that rows of RCCL's benchmark, with its launch time of 45 us, count from here on only."""
FREED = {
    "gemm": ("start_s", "compute_efficiency", "memory_efficiency"),
    "experts": ("start_s", "compute_efficiency", "memory_efficiency"),
    "attention_prefill": ("compute_efficiency",),
    "attention_decode": ("start_s", "memory_efficiency"),
    "latent_prefill": ("compute_efficiency",),
    "latent_decode": ("start_s", "memory_efficiency"),
    "all_reduce": ("start_s", "link_efficiency"),
}
"""Operator -> how the coefficients begin that few rows are fitted in: the share of what binds, and the launch floor
where small sizes were measured. Rows of attention hold one or two head counts, which cannot tell compute from bytes."""
SEEN_CHANGE, SEEN_ROWS = 0.1, 3
"""A coefficient is fitted to few rows where halving it moves so many by so much [log]; else it stays as lent."""
FAMILIES = {"all": "collective", "reduce": "collective", "expert": "exchange"}
"""First word of an operator -> family that is derated together; others are their own family."""
NORMAL_50 = 0.6745
"""Half of a normal distribution lies within so many standard deviations."""


class Distance(StrEnum):
    """How far two GPUs are apart."""

    ARCHITECTURE = "same architecture"
    VENDOR = "same vendor"
    OTHER = "other vendor"


def distance_of(first: GpuSku, second: GpuSku) -> Distance:
    """How far two GPUs are apart."""
    if first.vendor != second.vendor:
        return Distance.OTHER
    same = first.architecture.split()[0] == second.architecture.split()[0]
    return Distance.ARCHITECTURE if same else Distance.VENDOR


@dataclass(frozen=True)
class LentFit:
    """A fit and whose it is.

    Attributes:
        fit: in shares of peak.
        sku: GPU it was measured on.
        form_sku: GPU whose form it kept; the same unless there were few rows.
    """

    fit: KernelFit
    sku: GpuSku
    form_sku: GpuSku


@dataclass(frozen=True)
class PartialTables:
    """The folder of one GPU's measured tables.

    Attributes:
        folder: of the tables.
        sku: GPU they were measured on.
    """

    folder: Path
    sku: GpuSku

    @cached_property
    def problems(self) -> dict[str, Problem]:
        """Problems that there are rows for, by key of a calibration."""
        found: dict[str, Problem] = {}
        for key, problem in _makes(self.folder, self.sku):
            if len(problem.rows) and fittable(_grouped(replace(problem, bounds=_freed(key, problem)))):
                found[key] = problem
        return found

    @cached_property
    def fits(self) -> dict[str, KernelFit]:
        """Fits of what there are enough rows for, by key."""
        return {
            key: fit(problem)
            for key, problem in self.problems.items()
            if len(problem.rows) >= assemble.MIN_ROWS and fittable(problem)
        }


# --- rows of AMD's tables ---------------------------------------------------------------------------------------------


def _makes(folder: Path, sku: GpuSku) -> Iterator[tuple[str, Problem]]:
    """Key and problem of everything the folder's tables have rows of."""
    yield from _products(folder, sku)
    yield from _attention(folder, sku)
    table = read_table(folder, "collectives")
    if table is None:
        return
    small_rccl = (table.text("mode") == "ccl_tests") & (table["bytes"] < CUSTOM_ALL_REDUCE_BYTES)
    for gpus in (2, 4, 8):
        rows = _chosen(table.rows((table["num_gpus"] == gpus) & ~small_rccl), ("bytes",), op="all_reduce")
        if rows is not None:
            yield f"all_reduce/{gpus}", operators.collective(rows, link_bandwidth_bytes_per_s(sku, gpus), 1.0)


def _products(folder: Path, sku: GpuSku) -> Iterator[tuple[str, Problem]]:
    """Matrix products, of the tuned table where it has the format, else as published; and experts."""
    gemm, published, moe = (read_table(folder, name) for name in ("gemm", "gemm_published", "moe"))
    layers = read_table(folder, "mlp")
    if gemm is None and layers is not None:
        made = layers.rows(layers["n"] > 0)
        gemm = made.with_columns(m=made["num_tokens"], kernel=made.text("op"), dtype=np.full(len(made), "bf16"))
    elif gemm is not None:
        gemm = newest_products(gemm, read_table(folder, "gemm_2026_10"))
    tuned = sku.vendor == "AMD"
    for variant, dtype in (GEMM_DTYPES if tuned else assemble.GEMM_DTYPES).items():
        tables = ((gemm, dtype), (published, f"{dtype}_prequantised"), (published, dtype))
        found = (_credible("gemm", _chosen(table, ("m", "n", "k"), dtype=name), sku) for table, name in tables)
        rows = next((rows for rows in found if rows is not None), None)
        if rows is not None and _runs(sku, variant):
            yield f"gemm/{variant}", _gemm(rows, sku, variant) if tuned else operators.gemm(rows, sku, variant)
    for variant, dtype in (EXPERT_DTYPES if tuned else assemble.EXPERT_DTYPES).items():
        shape = ("num_tokens", "hidden", "inter", "topk", "num_experts", "tp", "ep", "distribution")
        rows = _credible("moe", _chosen(moe, shape, dtype=dtype), sku)
        if rows is not None and _runs(sku, variant):
            yield f"experts/{variant}", operators.experts(rows, sku, variant)


def _credible(name: str, rows: ColumnTable | None, sku: GpuSku) -> ColumnTable | None:
    """The rows that no peak of the GPU refutes; None where one in twenty is refuted: those of another GPU or unit.

    So are a sixth of MI308X's experts, which take as long for 32,768 tokens as for 8,192.
    """
    if rows is None:
        return None
    possible = possible_rows(name, rows, sku)
    return rows.rows(possible) if possible.mean() >= 1.0 - MAX_IMPOSSIBLE_SHARE else None


def _attention(folder: Path, sku: GpuSku) -> Iterator[tuple[str, Problem]]:
    """Attention over caches of 16 bit, and of 8 bit where it was measured."""
    latent = ("batch", "seq_len", "prefix_len", "num_heads")
    grouped = (*latent, "num_kv_heads", "head_dim", "window")
    for operator, table in operators.ATTENTION_TABLES.items():
        wanted = {"backend": SERVED_PREFILL} if operator == "attention_prefill" and sku.vendor == "AMD" else {}
        shape = latent if operator.startswith("latent") else grouped
        for stored, variant in {"bf16": "bf16", "fp16": "bf16", "fp8": "fp8"}.items():
            rows = _chosen(read_table(folder, table), shape, kv_dtype=stored, **wanted)
            if rows is not None:
                yield f"{operator}/{variant}", operators.ATTENTION_PROBLEMS[operator][0](rows, sku, variant)


def _runs(sku: GpuSku, variant: str) -> bool:
    """True if the GPU's matrix units multiply a format of `WEIGHT_FORMATS`."""
    return WEIGHT_FORMATS[variant].arithmetic in sku.peak_flops_per_s and (
        not variant.startswith("nvfp4") or variant.endswith("_wo") or sku.multiplies(Dtype.NVFP4)
    )


def _gemm(rows: ColumnTable, sku: GpuSku, variant: str) -> Problem:
    """Kernels alone: rows are timed on activations that are quantised already, and from memory."""
    problem = operators.gemm(rows, sku, variant, cold=True, prequantised=True)
    bounds = {name: bound for name, bound in problem.bounds.items() if name != "resident_gain"}
    return replace(problem, bounds=bounds, fixed={**problem.fixed, "resident_gain": 1.0})


def _chosen(table: ColumnTable | None, shape: tuple[str, ...], **wanted: str) -> ColumnTable | None:
    """The rows with these values of kernels that engines run, the fastest of each shape; None without any."""
    if table is None:
        return None
    mask: Mask = ~np.isin(table.text("kernel"), NOT_SERVED)
    for column, value in wanted.items():
        mask &= table.text(column) == value
    rows = table.rows(mask)
    if not len(rows):
        return None
    of_shape = rows.keys(*shape)
    order = np.lexsort((rows["latency_s"], of_shape))
    first = np.flatnonzero(np.diff(of_shape[order], prepend=-1))
    return rows.rows(order[first])


# --- fits ------------------------------------------------------------------------------------------------------------


def _freed(key: str, problem: Problem) -> dict[str, ParameterBound]:
    """The coefficients that few rows of a kernel are fitted in."""
    return {name: bound for name, bound in problem.bounds.items() if name.startswith(FREED[key.partition("/")[0]])}


def _grouped(problem: Problem) -> Problem:
    """The problem judged on its other sizes where only one shape was measured."""
    if problem.rows.keys(*problem.group).max():
        return problem
    return replace(problem, group=(problem.axis,), note="one shape measured: judged on its other sizes")


def _narrowed(key: str, problem: Problem, lent: KernelFit) -> Problem:
    """The problem in launch floor and shares of peak alone, with everything else as lent."""
    fixed = {name: bound.start for name, bound in problem.bounds.items()}
    fixed |= {name: coefficient.value for name, coefficient in lent.parameters.items()} | {"resident_gain": 1.0}
    table = SizeCorrection.of(lent.correction)

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        return problem.predict({**fixed, **values}, rows, table)

    at_lent = np.log(predict({}, problem.rows))
    bounds = {}
    for name, bound in _freed(key, problem).items():
        moved = np.abs(np.log(predict({name: fixed[name] / 2.0}, problem.rows)) - at_lent)
        if np.count_nonzero(moved > SEEN_CHANGE) >= SEEN_ROWS:
            bounds[name] = replace(bound, start=min(max(fixed[name], bound.low), bound.high))
    held = {name: value for name, value in fixed.items() if name not in bounds}
    return _grouped(replace(problem, predict=predict, bounds=bounds, fixed=held, sizes=None, shapes=None))


def _few_rows_fit(narrowed: Problem, lent: KernelFit) -> KernelFit:
    """The lender's form with launch floor and shares of peak fitted to few rows; head dimensions scale together."""
    result = fit(narrowed)
    fitted = {name: result.parameters[name] for name in narrowed.bounds}
    parameters = {**lent.parameters, **fitted}
    for name, coefficient in lent.parameters.items():
        stem, _, dim = name.rpartition("_")
        near = [other for other in fitted if other.rpartition("_")[0] == stem and dim.isdigit()]
        if name not in fitted and near:
            nearest = min(near, key=lambda other: abs(math.log(float(other.rpartition("_")[2]) / float(dim))))
            parameters[name] = _scaled(coefficient, fitted[nearest].value / lent.parameters[nearest].value)
    spread = max(result.spread, lent.spread)
    update = {"parameters": parameters, "correction": lent.correction, "spread": spread, "measured_shapes": None}
    return result.model_copy(update=update)


def _scaled(coefficient: Coefficient, factor: float) -> Coefficient:
    low, value, high = (
        min(1.0, float(f"{part * factor:.5g}")) for part in (coefficient.low, coefficient.value, coefficient.high)
    )
    return Coefficient(value=value, low=low, high=high)


def _with_quantise_pass(key: str, result: KernelFit, lent: KernelFit | None) -> KernelFit:
    """The fit with the lender's coefficients of the pass that quantises activations, which the rows leave out."""
    if lent is None or not key.startswith("gemm/") or not WEIGHT_FORMATS[key.partition("/")[2]].quantised:
        return result
    passes = {name: value for name, value in lent.parameters.items() if name.startswith("quantise")}
    return result.model_copy(update={"parameters": {**result.parameters, **passes}})


@dataclass(frozen=True)
class _Chain:
    """Sources of one SKU and engine, nearest first, and the packaged calibration that comes last."""

    tables: tuple[PartialTables, ...]
    packaged: Calibration
    lender: GpuSku

    def fit_of(self, key: str, start: int = 0) -> LentFit | None:
        """The fit of a kernel from the first source that has rows of it."""
        for place in range(start, len(self.tables)):
            source = self.tables[place]
            problem = source.problems.get(key)
            if problem is None:
                continue
            lent = self.fit_of(key, place + 1)
            if key in source.fits:
                result = _with_quantise_pass(key, source.fits[key], lent.fit if lent else None)
                return LentFit(result, source.sku, source.sku)
            if lent is not None:
                narrowed = _narrowed(key, problem, lent.fit)
                return LentFit(_few_rows_fit(narrowed, lent.fit), source.sku, lent.sku) if narrowed.bounds else lent
        lent_key = self.lent_key(key)
        if lent_key is None:
            return None
        lent_fit = self.packaged.kernels[lent_key].model_copy(update={"measured_shapes": None})
        return LentFit(lent_fit, self.lender, self.lender)

    def lent_key(self, key: str) -> str | None:
        """The packaged fit that stands for a kernel: its own, or for products that of the nearest format."""
        operator, _, variant = key.partition("/")
        names = GEMM_FALLBACKS.get(variant, (variant,)) if _is_product(key) else (variant,)
        keys = (f"{operator}/{name}" for name in names)
        return next((name for name in keys if name in self.packaged.kernels), None)

    @property
    def keys(self) -> list[str]:
        """Kernels of the calibration: those with rows, and the lender's that this GPU can run."""
        own = dict.fromkeys(key for source in self.tables for key in source.problems)
        lent = [
            key
            for key in self.packaged.kernels
            if key not in own and not self._has_relative(key, own) and not key.startswith(NETWORK)
        ]
        sku = self.tables[0].sku
        return [key for key in (*own, *lent) if not _is_product(key) or _runs(sku, key.partition("/")[2])]

    def _has_relative(self, key: str, own: Container[str]) -> bool:
        """True if products in a format that predictions fall back to were measured: nearer than the lender's."""
        operator, _, variant = key.partition("/")
        others = GEMM_FALLBACKS.get(variant, ()) if _is_product(key) else ()
        return any(f"{operator}/{other}" in own for other in others if other != "bf16")


def _is_product(key: str) -> bool:
    return key.startswith(("gemm/", "experts/"))


# --- how far borrowed fits may be off ---------------------------------------------------------------------------------


def family_of(key: str) -> str:
    """Kernels that are derated together: all formats of an operator, all collectives."""
    operator = key.partition("/")[0]
    return FAMILIES.get(operator.partition("_")[0], operator)


def lent_log_ratios(problem: Problem, lent: KernelFit) -> FloatArray:
    """log(measured / lent) of every row, with the lent shares of peak on the GPU the rows were measured on."""
    values = {name: b.start for name, b in problem.bounds.items()} | dict(problem.fixed)
    values |= {name: coefficient.value for name, coefficient in lent.parameters.items()}
    values["resident_gain"] = 1.0
    return np.log(problem.rows["latency_s"] / problem.predict(values, problem.rows, SizeCorrection.of(lent.correction)))


def transfer_spreads(
    tables: Iterable[PartialTables], chain: _Chain, packaged: Iterable[Calibration], skus: Mapping[str, GpuSku]
) -> dict[Distance, float]:
    """Standard deviation of log(true / lent) by how far the lender is: what shares of peak differ by between GPUs.

    For every kernel with rows in a folder, on those rows: the measured times and those by the fit of every other GPU
    that has one. Each pair counts once, with the median over the rows of its log ratio; the spread is the
    robust one, of which half the pairs lie within 0.67, since single slow kernels (Hopper's FP8 experts) say nothing of
    silicon; and never less than that of a nearer lender.
    """
    own = tuple(tables)
    differences: dict[Distance, list[float]] = {distance: [] for distance in Distance}
    for source in own:
        for key, problem in source.problems.items():
            ratios = {source.sku.id: (source.sku, np.zeros(len(problem.rows)))}
            for other in own:
                if other is not source and key in other.fits:
                    ratios[other.sku.id] = (other.sku, lent_log_ratios(problem, other.fits[key]))
            for calibration in packaged:
                lent_key = replace(chain, packaged=calibration).lent_key(key)
                if lent_key is not None:
                    result = calibration.kernels[lent_key]
                    ratios[calibration.sku] = (skus[calibration.sku], lent_log_ratios(problem, result))
            for (first, one), (second, two) in combinations(ratios.values(), 2):
                differences[distance_of(first, second)].append(abs(float(np.median(one - two))))
    spread, least = {}, 0.0
    for distance in Distance:
        if differences[distance]:
            least = max(least, float(np.median(differences[distance])) / NORMAL_50)
        spread[distance] = least
    return spread


def _deratings(chain: _Chain) -> dict[str, float]:
    """Family -> median of log(measured / lent) over its kernels with rows of this GPU or a relative."""
    found: dict[str, list[float]] = {}
    for source in reversed(chain.tables):
        for key, problem in source.problems.items():
            lent_key = chain.lent_key(key)
            if lent_key is not None:
                ratios = lent_log_ratios(problem, chain.packaged.kernels[lent_key])
                found.setdefault(family_of(key), []).append(float(np.median(ratios)))
    return {family: float(np.median(values)) for family, values in found.items()}


def _shifted(result: KernelFit, log_factor: float) -> KernelFit:
    """The fit with all times multiplied by exp(log_factor), never below the roofline."""
    table = result.correction or Correction(first_log2=(0.0,), second_log2=(0.0,), log_factor=((0.0,),))
    factors = tuple(tuple(round(value + log_factor, 4) for value in row) for row in table.log_factor)
    return result.model_copy(update={"correction": table.model_copy(update={"log_factor": factors})})


# --- the calibration -----------------------------------------------------------------------------------------------


def calibrate_partly(
    parent: Path,
    skus: Mapping[str, GpuSku],
    sku_id: str,
    engines: tuple[str, ...],
    packaged: Iterable[Calibration],
    on: date,
) -> dict[str, Calibration]:
    """One calibration per engine of a GPU measured in part, by the rule of this module.

    Args:
        parent: folder of the folders of tables.
        skus: known SKUs.
        sku_id: one of `PARTS`.
        engines: profiles wanted; those that do not run on the GPU are left out.
        packaged: calibrations to borrow from.
        on: date of the fit.

    Raises:
        InputError: no engine that runs on the GPU, or no packaged calibration of its lender.
        UnknownNameError: a SKU that is not in `PARTS`.
    """
    if sku_id not in PARTS or sku_id not in skus:
        raise UnknownNameError("sku", sku_id, PARTS)
    part = PARTS[sku_id]
    served = [engine for engine in engines if engine in part.engines]
    if not served:
        bound = f"was not measured on {sku_id}"
        raise InputError("engine", ", ".join(engines), bound, f"use {' or '.join(part.engines)}")
    lenders = [other for other in packaged if other.sku not in PARTS]
    tables = tuple(PartialTables(parent / name, skus[FOLDERS[name]]) for name in part.folders)
    return {
        engine: _calibration(
            _Chain(tables, _lender(lenders, part.lender, engine), skus[part.lender]),
            [_lender(lenders, lender, engine) for lender in sorted({other.sku for other in lenders})],
            skus,
            engine,
            on,
        )
        for engine in served
    }


def _lender(packaged: Iterable[Calibration], sku_id: str, engine: str) -> Calibration:
    """The newest packaged calibration of a SKU: of the engine, else of vLLM's, else any."""
    own = [calibration for calibration in packaged if calibration.sku == sku_id]
    if not own:
        raise InputError("calibrations", sku_id, "is not calibrated, so that nothing can be borrowed", "fit it first")
    for name in (engine, "vllm"):
        mine = [calibration for calibration in own if calibration.engine == name]
        if mine:
            return max(mine, key=lambda calibration: (calibration.fitted_on, calibration.stack))
    return max(own, key=lambda calibration: (calibration.fitted_on, calibration.stack))


def _calibration(
    chain: _Chain, packaged: list[Calibration], skus: Mapping[str, GpuSku], engine: str, on: date
) -> Calibration:
    own = chain.tables[0].sku
    part = PARTS[own.id]
    transfer = transfer_spreads(chain.tables, chain, packaged, skus)
    deratings = _deratings(chain)
    kernels = {}
    for key in chain.keys:
        lent = chain.fit_of(key)
        if lent is not None:
            kernels[key] = _stated(key, lent, own, transfer, deratings)
    stated = ", ".join(f"{100.0 * math.expm1(value):.0f} % {distance}" for distance, value in transfer.items())
    return Calibration(
        sku=own.id,
        stack=f"{engine} {part.stack}",
        engine=engine,
        fitted_on=on,
        kernels=kernels,
        source=f"{part.source}; borrowed: {chain.packaged.stack} on {chain.lender.id}, {chain.packaged.source}",
        note=f"Measured in part; {part.note}. Transfer spread of what is borrowed: {stated}.",
    )


def _stated(
    key: str, lent: LentFit, own: GpuSku, transfer: Mapping[Distance, float], deratings: Mapping[str, float]
) -> KernelFit:
    """The fit with its provenance, and the transfer variance of what is borrowed."""
    result, spread = lent.fit, lent.fit.spread
    if lent.sku.id == own.id:
        if lent.form_sku.id == own.id:
            return result.model_copy(update={"note": _joined("measured", result.note)})
        note = _joined(f"few rows: floor and shares of peak fitted, form of {lent.form_sku.id}", result.note)
        return result.model_copy(update={"note": note, "form_of": lent.form_sku.id})
    factor = deratings.get(family_of(key), 0.0) if lent.sku.vendor != own.vendor else 0.0
    text = f"borrowed from {lent.sku.id}"
    if factor:
        result = _shifted(result, factor)
        text += f", times {math.exp(factor):.2f} as measured for other kernels of this family"
    spread = math.hypot(spread, transfer[distance_of(own, lent.sku)])
    note = _joined(text, result.note)
    return result.model_copy(
        update={"note": note, "spread": float(f"{spread:.5g}"), "measured_on": lent.sku.id, "measured_shapes": None}
    )


def _joined(*texts: str) -> str:
    return "; ".join(text for text in texts if text)
