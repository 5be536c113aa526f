"""NVIDIA AIConfigurator's performance tables as tables of ``docs/calibration.md``.

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
from pathlib import Path

import numpy as np

from calibration.assemble import ENGINES, SKUS
from calibration.imported import Imported, joined, need, numbers, read_columns, text_column
from calibration.tables import Mask, Table
from planner.core import InputError

ADDRESS = "https://github.com/ai-dynamo/aiconfigurator (Apache-2.0), measured kernel tables"
MS, US = 1e-3, 1e-6
"""Seconds in the units of the tables."""
HALF = {"bfloat16": "bf16", "float16": "bf16"}
"""Names of 16-bit formats; older files say float16 for what newer ones call bfloat16."""
SAME = {name: name for name in ("fp8", "fp8_block", "nvfp4", "int4_wo")}
GEMM_FORMATS = {**HALF, **SAME, "int8_wo": "int8_wo", "sq": "sq"}
EXPERT_FORMATS = {**HALF, **SAME, "w4a16_mxfp4": "w4a16_mxfp4", "w4a8_mxfp4_mxfp8": "w4a8_mxfp4_mxfp8"}
CACHE_FORMATS = {**HALF, "fp8": "fp8"}
"""Format names of ``common.GEMMQuantMode``, ``MoEQuantMode`` and ``KVCacheQuantMode`` -> those of our tables."""
MESSAGE_FORMATS = {"half": ("fp16", 2.0), "float16": ("fp16", 2.0), "bfloat16": ("bf16", 2.0), "int8": ("int8", 1.0)}
"""Format of a message -> its name in our tables and bytes per element."""
ROUTING = re.compile(r"balanced|power_law_\d+(\.\d+)?")
"""Distributions of tokens over experts that the fit knows how to deal."""
PLAIN_EXPERTS = {
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
class Layout:
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
    finish: Callable[[Table], Table] = lambda table: table


def _decode(table: Table) -> Table:
    """One new token over all that came before it: ``isl`` + ``step`` is the length with it."""
    cached = table["prefix_len"] + table["seq_len"] - 1.0
    return table.with_columns(prefix_len=cached, seq_len=np.ones(len(table)))


def _gated(table: Table) -> Table:
    sizes = (table[name].tolist() for name in ("hidden", "inter", "topk", "num_experts"))
    plain = np.array([shape in PLAIN_EXPERTS for shape in zip(*sizes, strict=True)])
    plain |= np.char.find(table.text("kernel"), "nongated") >= 0
    return table.with_columns(gated=np.where(plain, 0.0, 1.0))


TOKENS = {"batch": "batch_size", "seq_len": "isl", "prefix_len": "step", "num_heads": "num_heads"}
HEADS = {"num_kv_heads": "num_key_value_heads", "head_dim": "head_dim", "window": "window_size"}
ATTENTION = {"attn_dtype": ("attn_dtype", CACHE_FORMATS), "kv_dtype": ("kv_cache_dtype", CACHE_FORMATS)}
LATENT = {"attn_dtype": ("mla_dtype", CACHE_FORMATS), "kv_dtype": ("kv_cache_dtype", CACHE_FORMATS)}
EXPERTS = {"num_tokens": "num_tokens", "hidden": "hidden_size", "inter": "inter_size", "topk": "topk"}
RANKS = {"num_experts": "num_experts", "tp": "moe_tp_size", "ep": "moe_ep_size"}
LAYOUTS = {
    "gemm_perf": Layout("gemm", {"m": "m", "n": "n", "k": "k"}, {"dtype": ("gemm_dtype", GEMM_FORMATS)}),
    "context_attention_perf": Layout(
        "context_attention", {**TOKENS, **HEADS}, ATTENTION, {"step": 0.0, "window_size": 0.0}
    ),
    "generation_attention_perf": Layout(
        "generation_attention", {**TOKENS, **HEADS}, ATTENTION, {"window_size": 0.0}, finish=_decode
    ),
    "context_mla_perf": Layout("context_mla", TOKENS, LATENT, {"step": 0.0}),
    "generation_mla_perf": Layout("generation_mla", TOKENS, LATENT, finish=_decode),
    "moe_perf": Layout(
        "moe",
        {**EXPERTS, **RANKS},
        {"dtype": ("moe_dtype", EXPERT_FORMATS)},
        texts={"distribution": "distribution"},
        finish=_gated,
    ),
}
"""Their table -> how it is read."""
Said = list[str]
"""What was left out, one line each."""


def read_aiconfigurator(folder: Path) -> Imported:
    """The tables of a system, a family or one version; of several versions of an engine's table the newest.

    Args:
        folder: any folder of the repository's ``systems/data``, or one with ``*_perf`` files of one's own collection.

    Raises:
        InputError: no such folder, no table in it, several systems, a table that is a Git LFS pointer or lacks columns.
    """
    if not folder.is_dir():
        raise InputError("folder", str(folder), "is not a directory", "give systems/data/<system> of aiconfigurator")
    files, said = _newest(folder)
    if not files:
        fix = "give a folder with gemm_perf.parquet or gemm_perf.txt and others"
        raise InputError("folder", str(folder), "has no tables of AIConfigurator", fix)
    _one_system(files)
    parts: dict[str, list[Table]] = {}
    described = []
    for path in files:
        theirs = read_columns(path)
        need(theirs, path.name, COMMON)
        name, table = _converted(path, theirs, said)
        described.append(_described(path, theirs))
        if len(table):
            parts.setdefault(name, []).append(table)
    tables = {name: joined(some) for name, some in parts.items()}
    return Imported(tables, f"{ADDRESS}: {'; '.join(described)}", tuple(said))


def sku_of(folder: Path, given: str) -> str:
    """The SKU of a folder: what the user gave, else what its path names.

    Raises InputError: the path names another SKU than the user, or nobody names one.
    """
    named = [SKUS[part] for part in folder.resolve().parts if part in SKUS]
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
        found = ", ".join(known) or "no engine"
        raise InputError(
            "--engine", given, f"the folder has {found}", "give --engine, one calibration is of one engine"
        )
    return given or known[0]


def _newest(folder: Path) -> tuple[list[Path], Said]:
    """The files to read, and the others."""
    known = set(LAYOUTS) | set(OTHERS)
    every = sorted(path for path in folder.resolve().rglob("*_perf.*") if path.suffix in (".parquet", ".txt", ".csv"))
    foreign = sorted({path.stem for path in every if path.stem not in known})
    said = [f"{name}: no operator of a calibration" for name in foreign]
    best: dict[tuple[str, Path], Path] = {}
    for path in (path for path in every if path.stem in known):
        place = (path.stem, path.parent.parent)
        other = best.get(place)
        if other is None or _rank(path) > _rank(other):
            best[place] = path
    older = [path for path in every if path.stem in known and path not in best.values()]
    said += [f"{path.stem} of {_place(path)}: a newer one was read" for path in older]
    return list(best.values()), said


def _one_system(files: Iterable[Path]) -> None:
    """Raise InputError where the files are of several systems, by their place in ``systems/data``."""
    parts = [path.parts[:-1] for path in files]
    places = [(some, max(i for i, part in enumerate(some) if part == "data")) for some in parts if "data" in some]
    systems = sorted({some[at + 1] for some, at in places if at + 1 < len(some)})
    if len(systems) > 1:
        fix = f"give one of them, e.g. systems/data/{systems[0]}"
        raise InputError("folder", ", ".join(systems), f"are {len(systems)} systems", fix)


def _rank(path: Path) -> tuple[list[tuple[int, int]], bool]:
    """Orders files by the version their folder names; Parquet before text, which it replaced."""
    parts = re.findall(r"\d+|[a-z]+", path.parent.name.lower())
    key = [(2, int(part)) if part.isdigit() else (2, 0) if part == "post" else (0, 0) for part in parts]
    return [*key, (1, 0)], path.suffix == ".parquet"


def _place(path: Path) -> str:
    return f"{path.parent.parent.name}/{path.parent.name}"


def _described(path: Path, theirs: Table) -> str:
    versions = ", ".join(np.unique(theirs.columns["version"].astype(np.str_)).tolist())
    devices = ", ".join(np.unique(theirs.text("device")).tolist()) if "device" in theirs.columns else "no device named"
    return f"{_place(path)}/{path.name} (version {versions}; {devices})"


def _converted(path: Path, theirs: Table, said: Said) -> tuple[str, Table]:
    convert = OTHERS.get(path.stem)
    if convert is not None:
        return convert(path, theirs, said)
    layout = LAYOUTS[path.stem]
    return layout.table, _by_layout(path, layout, theirs, said)


def _by_layout(path: Path, layout: Layout, theirs: Table, said: Said) -> Table:
    formats = {ours: name for ours, (name, _) in layout.formats.items()}
    wanted = [*layout.sizes.values(), *formats.values(), *layout.texts.values(), "latency"]
    need(theirs, path.name, (name for name in wanted if name not in layout.absent))
    _say_columns(path, theirs, wanted, said)
    keep, backends = _known_backends(path, theirs, said)
    columns = {"backend": backends, **_stack(theirs)}
    for ours, (name, names) in layout.formats.items():
        keep &= _known(path, theirs, name, names, said)
        columns[ours] = np.array([names.get(value, "") for value in theirs.text(name).tolist()])
    for ours, name in layout.texts.items():
        good = np.array([ROUTING.fullmatch(value) is not None for value in theirs.text(name).tolist()])
        _say_values(path, theirs, name, keep & ~good, said)
        keep &= good
        columns[ours] = theirs.text(name)
    for ours, name in layout.sizes.items():
        absent = name in layout.absent and name not in theirs.columns
        columns[ours] = np.full(len(theirs), layout.absent[name]) if absent else numbers(theirs, path.name, name)
    columns["latency_s"] = numbers(theirs, path.name, "latency") * MS
    rows = Table(columns).rows(keep)
    return layout.finish(rows) if len(rows) else rows


def _stack(theirs: Table) -> dict[str, np.ndarray]:
    version = theirs.columns["version"]
    texts = version if version.dtype.kind != "f" else np.array([f"{value:g}" for value in version.tolist()])
    return {"backend_version": texts.astype(np.str_), "kernel": theirs.text("kernel_source")}


def _known_backends(path: Path, theirs: Table, said: Said) -> tuple[Mask, np.ndarray]:
    backends = np.char.lower(theirs.text("framework"))
    known = np.isin(backends, list(ENGINES.values()))
    _say_values(path, theirs, "framework", ~known, said)
    return known, backends


def _known(path: Path, theirs: Table, column: str, names: Iterable[str], said: Said) -> Mask:
    known = np.isin(theirs.text(column), list(names))
    _say_values(path, theirs, column, ~known, said)
    return known


def _say_values(path: Path, theirs: Table, column: str, unknown: Mask, said: Said) -> None:
    values, counts = np.unique(theirs.text(column)[unknown], return_counts=True)
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        said.append(f"{path.stem} of {_place(path)}: {count} rows of {column} {value}, which is not fitted")


def _say_columns(path: Path, theirs: Table, wanted: Iterable[str], said: Said) -> None:
    extra = sorted(set(theirs.columns) - set(wanted) - set(COMMON) - set(OPTIONAL))
    if extra:
        said.append(f"{path.stem} of {_place(path)}: columns {', '.join(extra)}, which are not used")


def _all_reduce(path: Path, theirs: Table, said: Said) -> tuple[str, Table]:
    """The engines' own all-reduce; ``*_eager`` rows include the launch, the others replay a CUDA graph."""
    wanted = ("allreduce_dtype", "num_gpus", "message_size", "latency")
    need(theirs, path.name, wanted)
    _say_columns(path, theirs, wanted, said)
    keep, backends = _known_backends(path, theirs, said)
    eager = np.char.endswith(theirs.text("kernel_source"), "_eager")
    if "backend" in theirs.columns:
        eager |= np.char.endswith(theirs.text("backend"), "_eager")
    op = text_column(len(theirs), "all_reduce")
    columns = {"backend": backends, **_stack(theirs), "mode": np.where(eager, "eager", "graph"), "op": op}
    return "collectives", _messages(path, theirs, "allreduce_dtype", columns, keep, said)


def _nccl(path: Path, theirs: Table, said: Said) -> tuple[str, Table]:
    """nccl-tests; its framework column names who collected them, not the library."""
    wanted = ("nccl_dtype", "num_gpus", "message_size", "op_name", "latency")
    need(theirs, path.name, wanted)
    _say_columns(path, theirs, wanted, said)
    keep = _known(path, theirs, "op_name", ("all_reduce", "all_gather", "reduce_scatter", "alltoall"), said)
    fixed = {"backend": text_column(len(theirs), "nccl"), "mode": text_column(len(theirs), "ccl_tests")}
    columns = {**fixed, **_stack(theirs), "op": theirs.text("op_name")}
    return "collectives", _messages(path, theirs, "nccl_dtype", columns, keep, said)


def _messages(path: Path, theirs: Table, dtype: str, columns: dict[str, np.ndarray], keep: Mask, said: Said) -> Table:
    keep = keep & _known(path, theirs, dtype, MESSAGE_FORMATS, said)
    kinds = [MESSAGE_FORMATS.get(value, ("", 0.0)) for value in theirs.text(dtype).tolist()]
    order = ("backend", "backend_version", "kernel", "mode", "op")
    elements = numbers(theirs, path.name, "message_size")
    table = Table(
        {name: columns[name] for name in order}
        | {
            "num_gpus": numbers(theirs, path.name, "num_gpus"),
            "dtype": np.array([name for name, _ in kinds]),
            "bytes": elements * np.array([width for _, width in kinds]),
            "latency_s": numbers(theirs, path.name, "latency") * MS,
        }
    )
    return table.rows(keep)


EXCHANGED = {"num_nodes": "node_num", "num_tokens": "num_token", "hidden": "hidden_size"}
ROUTED = {"topk": "num_topk", "num_experts": "num_experts"}


def _exchange(path: Path, theirs: Table, said: Said, kernel: str, times: Mapping[str, tuple[str, ...]]) -> Table:
    """Dispatch and combine of DeepEP, one of our rows each; only inside a node."""
    names = {**EXCHANGED, **ROUTED}
    need(theirs, path.name, (*names.values(), *(name for some in times.values() for name in some)))
    sizes = {ours: numbers(theirs, path.name, name) for ours, name in names.items()}
    sms = numbers(theirs, path.name, "dispatch_sms") if kernel == "deepep_normal" else np.zeros(len(theirs))
    inside = sizes["num_nodes"] == 1.0
    if not inside.all():
        said.append(f"{path.stem} of {_place(path)}: {(~inside).sum()} rows between nodes, which is not fitted")
    versions = _stack(theirs)["backend_version"]
    parts = []
    for op, some in times.items():
        fixed = {"backend": np.char.lower(theirs.text("framework")), "backend_version": versions}
        labels = {"kernel": text_column(len(theirs), kernel), "op": text_column(len(theirs), op)}
        spent = sum((numbers(theirs, path.name, name) for name in some), np.zeros(len(theirs)))
        parts.append(Table({**fixed, **labels, "num_sms": sms, **sizes, "latency_s": spent * US}).rows(inside))
    return joined(parts)


def _low_latency(path: Path, theirs: Table, said: Said) -> tuple[str, Table]:
    times = {"dispatch": ("dispatch_avg_t_us",), "combine": ("combine_avg_t_us",)}
    return "ep_all_to_all", _exchange(path, theirs, said, "deepep_low_latency", times)


def _throughput(path: Path, theirs: Table, said: Said) -> tuple[str, Table]:
    need(theirs, path.name, ("dispatch_sms",))
    times = {op: (f"{op}_transmit_us", f"{op}_notify_us") for op in ("dispatch", "combine")}
    return "ep_all_to_all", _exchange(path, theirs, said, "deepep_normal", times)


OTHERS: Mapping[str, Callable[[Path, Table, Said], tuple[str, Table]]] = {
    "custom_allreduce_perf": _all_reduce,
    "nccl_perf": _nccl,
    "wideep_deepep_ll_perf": _low_latency,
    "wideep_deepep_normal_perf": _throughput,
}
"""Their tables that take more than other names."""
