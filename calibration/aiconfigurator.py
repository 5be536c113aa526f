"""NVIDIA AIConfigurator's performance tables as tables of ``docs/explanation/calibration.md``.

The repository https://github.com/ai-dynamo/aiconfigurator (Apache-2.0; read 2026-11-22) keeps measured kernels as
``<table>_perf.parquet``, in earlier versions ``<table>_perf.txt`` (CSV), under
``src/aiconfigurator/systems/data/<system>/<backend>/<version>/`` or
``aic-core/src/aiconfigurator_core/systems/data/<system>/<family>/<backend>/<version>/``. Columns and units are those of
its readers, ``load_*_data`` in ``sdk/operations/{gemm,attention,mla,moe,communication}.py``, and of its writers,
``collector/collect_nccl.py``, ``collector/collect_all_reduce.py``, ``collector/{vllm,trtllm,sglang}``: every file
begins with ``framework, version, device, op_name, kernel_source``; ``latency`` is in milliseconds, DeepEP's times in
microseconds; ``message_size`` counts elements; ``step`` is what is cached, ``isl`` what is new.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from calibration.assemble import ENGINES, SKUS
from calibration.imported import Imported, number_column, read_columns, require_columns, text_column
from calibration.tables import ColumnTable, Mask, joined_tables
from planner.core import InputError

ADDRESS = "https://github.com/ai-dynamo/aiconfigurator (Apache-2.0), measured kernel tables"
S_PER_MS, S_PER_US = 1e-3, 1e-6
"""Seconds in a unit of the tables."""
SIXTEEN_BIT_FORMATS = {"bfloat16": "bf16", "float16": "bf16"}
"""Names of 16-bit formats; older files say float16 for what newer ones call bfloat16."""
SHARED_FORMATS = {name: name for name in ("fp8", "fp8_block", "nvfp4", "int4_wo")}
GEMM_FORMATS = {**SIXTEEN_BIT_FORMATS, **SHARED_FORMATS, "int8_wo": "int8_wo", "sq": "sq"}
EXPERT_FORMATS = {
    **SIXTEEN_BIT_FORMATS,
    **SHARED_FORMATS,
    "w4a16_mxfp4": "w4a16_mxfp4",
    "w4a8_mxfp4_mxfp8": "w4a8_mxfp4_mxfp8",
}
CACHE_FORMATS = {**SIXTEEN_BIT_FORMATS, "fp8": "fp8"}
"""Format names of ``common.GEMMQuantMode``, ``MoEQuantMode`` and ``KVCacheQuantMode`` -> those of our tables."""
MESSAGE_FORMATS = {"half": ("fp16", 2.0), "float16": ("fp16", 2.0), "bfloat16": ("bf16", 2.0), "int8": ("int8", 1.0)}
"""Format of a message -> its name in our tables and bytes per element."""
KNOWN_ROUTING = re.compile(r"balanced|power_law_\d+(\.\d+)?")
"""Distributions of tokens over experts that the fit knows how to deal."""
UNGATED_EXPERTS = {
    (1024.0, 2688.0, 22.0, 512.0),
    (2048.0, 5120.0, 22.0, 512.0),
    (2688.0, 1856.0, 6.0, 128.0),
    (8192.0, 5120.0, 22.0, 512.0),
}
"""(hidden_size, inter_size, topk, num_experts) of experts without a gate: Nemotron-H, which the tables do not mark.
Sources there: ``collector/cases/models/NemotronHForCausalLM_cases.yaml`` for the sizes,
``sdk/models/nemotron_h.py`` for ``is_gated=False`` and the smaller hidden size between latent projections. Rows of the
family's 2688-wide experts at hidden size 4096, before it was known to be latent, were timed with a gate: fitted as such
they agree with other models' (vLLM on A100: held-out median 11 %, without a gate 16 %)."""
COMMON = ("framework", "version", "kernel_source")
OPTIONAL = ("device", "op_name", "power", "power_limit", "tp_size", "beam_width", "implementation", "backend")
"""Columns that are known and not needed: what they say follows from others, or describes power."""


@dataclass(frozen=True)
class TableLayout:
    """How one of their tables maps to one of ours: our column -> their column.

    Attributes:
        table: our table.
        sizes: columns of numbers.
        formats: columns of number formats, with the names we know.
        absent: their optional columns, with the value where a file has none.
        finish: what else our table needs.
    """

    table: str
    sizes: Mapping[str, str]
    formats: Mapping[str, tuple[str, Mapping[str, str]]]
    absent: Mapping[str, float] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    finish: Callable[[ColumnTable], ColumnTable] = lambda table: table


def _with_decode_lengths(table: ColumnTable) -> ColumnTable:
    """One new token over all that came before it: ``isl`` + ``step`` is the length with it."""
    cached = table["prefix_len"] + table["seq_len"] - 1.0
    return table.with_columns(prefix_len=cached, seq_len=np.ones(len(table)))


def _with_gates(table: ColumnTable) -> ColumnTable:
    sizes = (table[name].tolist() for name in ("hidden", "inter", "topk", "num_experts"))
    plain = np.array([shape in UNGATED_EXPERTS for shape in zip(*sizes, strict=True)])
    plain |= np.char.find(table.text("kernel"), "nongated") >= 0
    return table.with_columns(gated=np.where(plain, 0.0, 1.0))


TOKENS = {"batch": "batch_size", "seq_len": "isl", "prefix_len": "step", "num_heads": "num_heads"}
HEADS = {"num_kv_heads": "num_key_value_heads", "head_dim": "head_dim", "window": "window_size"}
ATTENTION = {"attn_dtype": ("attn_dtype", CACHE_FORMATS), "kv_dtype": ("kv_cache_dtype", CACHE_FORMATS)}
LATENT = {"attn_dtype": ("mla_dtype", CACHE_FORMATS), "kv_dtype": ("kv_cache_dtype", CACHE_FORMATS)}
EXPERTS = {"num_tokens": "num_tokens", "hidden": "hidden_size", "inter": "inter_size", "topk": "topk"}
RANKS = {"num_experts": "num_experts", "tp": "moe_tp_size", "ep": "moe_ep_size"}
LAYOUTS = {
    "gemm_perf": TableLayout("gemm", {"m": "m", "n": "n", "k": "k"}, {"dtype": ("gemm_dtype", GEMM_FORMATS)}),
    "context_attention_perf": TableLayout(
        "context_attention", {**TOKENS, **HEADS}, ATTENTION, {"step": 0.0, "window_size": 0.0}
    ),
    "generation_attention_perf": TableLayout(
        "generation_attention", {**TOKENS, **HEADS}, ATTENTION, {"window_size": 0.0}, finish=_with_decode_lengths
    ),
    "context_mla_perf": TableLayout("context_mla", TOKENS, LATENT, {"step": 0.0}),
    "generation_mla_perf": TableLayout("generation_mla", TOKENS, LATENT, finish=_with_decode_lengths),
    "moe_perf": TableLayout(
        "moe",
        {**EXPERTS, **RANKS},
        {"dtype": ("moe_dtype", EXPERT_FORMATS)},
        texts={"distribution": "distribution"},
        finish=_with_gates,
    ),
}
"""Their table -> how it is read."""
LeftOut = list[str]
"""Reasons why rows were left out, one line each."""


def read_aiconfigurator(folder: Path) -> Imported:
    """The tables of a system, a family or one version; of several versions of an engine's table the newest.

    Args:
        folder: any folder of the repository's ``systems/data``, or one with ``*_perf`` files of one's own collection.

    Raises:
        InputError: no such folder, no table in it, several systems, a table that is a Git LFS pointer or lacks columns.
    """
    if not folder.is_dir():
        raise InputError("folder", str(folder), "is not a directory", "give systems/data/<system> of aiconfigurator")
    files, left_out = _newest_files(folder)
    if not files:
        fix = "give a folder with gemm_perf.parquet or gemm_perf.txt and others"
        raise InputError("folder", str(folder), "has no tables of AIConfigurator", fix)
    _require_one_system(files)
    by_name: dict[str, list[ColumnTable]] = {}
    descriptions = []
    for path in files:
        theirs = read_columns(path)
        require_columns(theirs, path.name, COMMON)
        name, table = _converted_table(path, theirs, left_out)
        descriptions.append(_description(path, theirs))
        if len(table):
            by_name.setdefault(name, []).append(table)
    tables = {name: joined_tables(pieces) for name, pieces in by_name.items()}
    return Imported(tables, f"{ADDRESS}: {'; '.join(descriptions)}", tuple(left_out))


def sku_of(folder: Path, given: str) -> str:
    """The SKU of a folder: what the user gave, else what its path names.

    Raises InputError: the path names another SKU than the user, or nobody names one.
    """
    named = [SKUS[folder_name] for folder_name in folder.resolve().parts if folder_name in SKUS]
    if given and named and given != named[-1]:
        raise InputError(
            "--sku", given, f"the folder is of {named[-1]}", f"give --sku {named[-1]}, or that SKU's folder"
        )
    if not given and not named:
        raise InputError("--sku", given, f"{folder.name} does not say which SKU it is of", "give --sku")
    return given or named[-1]


def engine_of(imported: Imported, given: str) -> str:
    """The engine to fit: what the user gave, else the only one with matrix products; raises InputError for several."""
    gemm = imported.tables.get("gemm")
    backends = [] if gemm is None else np.unique(gemm.text("backend")).tolist()
    known = [engine for engine, backend in ENGINES.items() if backend in backends]
    if not given and len(known) != 1:
        engines = ", ".join(known) or "no engine"
        raise InputError(
            "--engine", given, f"the folder has {engines}", "give --engine, one calibration is of one engine"
        )
    return given or known[0]


def _newest_files(folder: Path) -> tuple[list[Path], LeftOut]:
    """The files to read, and the others."""
    known = set(LAYOUTS) | set(OTHER_TABLES)
    every = sorted(path for path in folder.resolve().rglob("*_perf.*") if path.suffix in (".parquet", ".txt", ".csv"))
    foreign = sorted({path.stem for path in every if path.stem not in known})
    left_out = [f"{name}: no operator of a calibration" for name in foreign]
    best: dict[tuple[str, Path], Path] = {}
    for path in (path for path in every if path.stem in known):
        place = (path.stem, path.parent.parent)
        other = best.get(place)
        if other is None or _rank(path) > _rank(other):
            best[place] = path
    older = [path for path in every if path.stem in known and path not in best.values()]
    left_out += [f"{path.stem} of {_version_folder(path)}: a newer one was read" for path in older]
    return list(best.values()), left_out


def _require_one_system(files: Iterable[Path]) -> None:
    """Raise InputError where the files are of several systems, by their place in ``systems/data``."""
    parts = [path.parts[:-1] for path in files]
    places = [(some, max(i for i, part in enumerate(some) if part == "data")) for some in parts if "data" in some]
    systems = sorted({some[at + 1] for some, at in places if at + 1 < len(some)})
    if len(systems) > 1:
        fix = f"give one of them, e.g. systems/data/{systems[0]}"
        raise InputError("folder", ", ".join(systems), f"are {len(systems)} systems", fix)


def _rank(path: Path) -> tuple[list[tuple[int, int]], bool]:
    """Orders files by the version their folder names; Parquet before text, which it replaced."""
    words = re.findall(r"\d+|[a-z]+", path.parent.name.lower())
    key = [(2, int(word)) if word.isdigit() else (2, 0) if word == "post" else (0, 0) for word in words]
    return [*key, (1, 0)], path.suffix == ".parquet"


def _version_folder(path: Path) -> str:
    return f"{path.parent.parent.name}/{path.parent.name}"


def _description(path: Path, theirs: ColumnTable) -> str:
    versions = ", ".join(np.unique(theirs.columns["version"].astype(np.str_)).tolist())
    devices = ", ".join(np.unique(theirs.text("device")).tolist()) if "device" in theirs.columns else "no device named"
    return f"{_version_folder(path)}/{path.name} (version {versions}; {devices})"


def _converted_table(path: Path, theirs: ColumnTable, left_out: LeftOut) -> tuple[str, ColumnTable]:
    convert = OTHER_TABLES.get(path.stem)
    if convert is not None:
        return convert(path, theirs, left_out)
    layout = LAYOUTS[path.stem]
    return layout.table, _read_by_layout(path, layout, theirs, left_out)


def _read_by_layout(path: Path, layout: TableLayout, theirs: ColumnTable, left_out: LeftOut) -> ColumnTable:
    formats = {ours: name for ours, (name, _) in layout.formats.items()}
    wanted = [*layout.sizes.values(), *formats.values(), *layout.texts.values(), "latency"]
    require_columns(theirs, path.name, (name for name in wanted if name not in layout.absent))
    _note_unused_columns(path, theirs, wanted, left_out)
    keep, backends = _known_backends(path, theirs, left_out)
    columns = {"backend": backends, **_engine_columns(theirs)}
    for ours, (name, names) in layout.formats.items():
        keep &= _known_values(path, theirs, name, names, left_out)
        columns[ours] = np.array([names.get(value, "") for value in theirs.text(name).tolist()])
    for ours, name in layout.texts.items():
        good = np.array([KNOWN_ROUTING.fullmatch(value) is not None for value in theirs.text(name).tolist()])
        _leave_out_values(path, theirs, name, keep & ~good, left_out)
        keep &= good
        columns[ours] = theirs.text(name)
    for ours, name in layout.sizes.items():
        absent = name in layout.absent and name not in theirs.columns
        columns[ours] = np.full(len(theirs), layout.absent[name]) if absent else number_column(theirs, path.name, name)
    columns["latency_s"] = number_column(theirs, path.name, "latency") * S_PER_MS
    rows = ColumnTable(columns).rows(keep)
    return layout.finish(rows) if len(rows) else rows


def _engine_columns(theirs: ColumnTable) -> dict[str, np.ndarray]:
    version = theirs.columns["version"]
    texts = version if version.dtype.kind != "f" else np.array([f"{value:g}" for value in version.tolist()])
    return {"backend_version": texts.astype(np.str_), "kernel": theirs.text("kernel_source")}


def _known_backends(path: Path, theirs: ColumnTable, left_out: LeftOut) -> tuple[Mask, np.ndarray]:
    backends = np.char.lower(theirs.text("framework"))
    known = np.isin(backends, list(ENGINES.values()))
    _leave_out_values(path, theirs, "framework", ~known, left_out)
    return known, backends


def _known_values(path: Path, theirs: ColumnTable, column: str, names: Iterable[str], left_out: LeftOut) -> Mask:
    known = np.isin(theirs.text(column), list(names))
    _leave_out_values(path, theirs, column, ~known, left_out)
    return known


def _leave_out_values(path: Path, theirs: ColumnTable, column: str, unknown: Mask, left_out: LeftOut) -> None:
    values, counts = np.unique(theirs.text(column)[unknown], return_counts=True)
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        left_out.append(
            f"{path.stem} of {_version_folder(path)}: {count} rows of {column} {value}, which is not fitted"
        )


def _note_unused_columns(path: Path, theirs: ColumnTable, wanted: Iterable[str], left_out: LeftOut) -> None:
    extra = sorted(set(theirs.columns) - set(wanted) - set(COMMON) - set(OPTIONAL))
    if extra:
        left_out.append(f"{path.stem} of {_version_folder(path)}: columns {', '.join(extra)}, which are not used")


def _all_reduce(path: Path, theirs: ColumnTable, left_out: LeftOut) -> tuple[str, ColumnTable]:
    """The engines' own all-reduce; ``*_eager`` rows include the launch, the others replay a CUDA graph."""
    wanted = ("allreduce_dtype", "num_gpus", "message_size", "latency")
    require_columns(theirs, path.name, wanted)
    _note_unused_columns(path, theirs, wanted, left_out)
    keep, backends = _known_backends(path, theirs, left_out)
    eager = np.char.endswith(theirs.text("kernel_source"), "_eager")
    if "backend" in theirs.columns:
        eager |= np.char.endswith(theirs.text("backend"), "_eager")
    op = text_column(len(theirs), "all_reduce")
    columns = {"backend": backends, **_engine_columns(theirs), "mode": np.where(eager, "eager", "graph"), "op": op}
    return "collectives", _messages(path, theirs, "allreduce_dtype", columns, keep, left_out)


def _nccl(path: Path, theirs: ColumnTable, left_out: LeftOut) -> tuple[str, ColumnTable]:
    """nccl-tests; its framework column names who collected them, not the library."""
    wanted = ("nccl_dtype", "num_gpus", "message_size", "op_name", "latency")
    require_columns(theirs, path.name, wanted)
    _note_unused_columns(path, theirs, wanted, left_out)
    keep = _known_values(path, theirs, "op_name", ("all_reduce", "all_gather", "reduce_scatter", "alltoall"), left_out)
    fixed = {"backend": text_column(len(theirs), "nccl"), "mode": text_column(len(theirs), "ccl_tests")}
    columns = {**fixed, **_engine_columns(theirs), "op": theirs.text("op_name")}
    return "collectives", _messages(path, theirs, "nccl_dtype", columns, keep, left_out)


def _messages(
    path: Path, theirs: ColumnTable, dtype: str, columns: dict[str, np.ndarray], keep: Mask, left_out: LeftOut
) -> ColumnTable:
    keep = keep & _known_values(path, theirs, dtype, MESSAGE_FORMATS, left_out)
    kinds = [MESSAGE_FORMATS.get(value, ("", 0.0)) for value in theirs.text(dtype).tolist()]
    order = ("backend", "backend_version", "kernel", "mode", "op")
    elements = number_column(theirs, path.name, "message_size")
    table = ColumnTable(
        {name: columns[name] for name in order}
        | {
            "num_gpus": number_column(theirs, path.name, "num_gpus"),
            "dtype": np.array([name for name, _ in kinds]),
            "bytes": elements * np.array([width for _, width in kinds]),
            "latency_s": number_column(theirs, path.name, "latency") * S_PER_MS,
        }
    )
    return table.rows(keep)


EXCHANGE_SIZES = {"num_nodes": "node_num", "num_tokens": "num_token", "hidden": "hidden_size"}
ROUTING_SIZES = {"topk": "num_topk", "num_experts": "num_experts"}


def _exchange(
    path: Path, theirs: ColumnTable, left_out: LeftOut, *, kernel: str, times: tuple[str, ...]
) -> tuple[str, ColumnTable]:
    """Dispatch and combine of DeepEP, one of our rows each, the sum of `times`; only inside a node."""
    names = {**EXCHANGE_SIZES, **ROUTING_SIZES} | ({"num_sms": "dispatch_sms"} if kernel == "deepep_normal" else {})
    summed = {op: [f"{op}_{name}_us" for name in times] for op in ("dispatch", "combine")}
    require_columns(theirs, path.name, (*names.values(), *summed["dispatch"], *summed["combine"]))
    sizes = {"num_sms": np.zeros(len(theirs))}
    sizes |= {ours: number_column(theirs, path.name, name) for ours, name in names.items()}
    inside = sizes["num_nodes"] == 1.0
    if not inside.all():
        left_out.append(
            f"{path.stem} of {_version_folder(path)}: {(~inside).sum()} rows between nodes, which is not fitted"
        )
    versions = _engine_columns(theirs)["backend_version"]
    exchanges = []
    for op, columns in summed.items():
        fixed = {"backend": np.char.lower(theirs.text("framework")), "backend_version": versions}
        labels = {"kernel": text_column(len(theirs), kernel), "op": text_column(len(theirs), op)}
        time_us = sum((number_column(theirs, path.name, name) for name in columns), np.zeros(len(theirs)))
        exchanges.append(ColumnTable({**fixed, **labels, **sizes, "latency_s": time_us * S_PER_US}).rows(inside))
    return "ep_all_to_all", joined_tables(exchanges)


OTHER_TABLES: Mapping[str, Callable[[Path, ColumnTable, LeftOut], tuple[str, ColumnTable]]] = {
    "custom_allreduce_perf": _all_reduce,
    "nccl_perf": _nccl,
    "wideep_deepep_ll_perf": partial(_exchange, kernel="deepep_low_latency", times=("avg_t",)),
    "wideep_deepep_normal_perf": partial(_exchange, kernel="deepep_normal", times=("transmit", "notify")),
}
"""Their tables that take more than other names."""
