"""Microsoft Vidur's profiles as tables of ``docs/explanation/calibration.md``.

The repository https://github.com/microsoft/vidur (MIT; read 2026-11-22) keeps them as CSV:
``data/profiling/compute/<device>/<organisation>/<model>/{mlp,attention}.csv`` and
``data/profiling/network/<topology>/{all_reduce,send_recv}.csv``. Columns and units are those of its profilers,
``vidur/profiling/{mlp,attention,collectives}``: times ``time_stats.<operator>.median`` in milliseconds of GPU time
(Kineto; a resolution of a microsecond), 16-bit numbers, model-wide sizes beside the number of tensor-parallel workers,
``size`` of a collective in bytes. The layers are vLLM's of 2023 (Sarathi-Serve), the collectives NCCL's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calibration.assemble import ENGINES
from calibration.imported import Imported, number_column, read_columns, require_columns, text_column
from calibration.tables import ColumnTable, FloatArray, Mask, joined_tables
from planner.core import InputError, UnknownNameError

ADDRESS = "https://github.com/microsoft/vidur (MIT), profiles"
VERSION = "vidur"
"""Stands where an engine's version would: the profiles name none."""
S_PER_MS = 1e-3
"""Seconds in a millisecond, the unit of the profiles."""
FILES = ("mlp.csv", "attention.csv", "all_reduce.csv", "send_recv.csv")
MLP_SIZES = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "num_tokens", "num_tensor_parallel_workers")
ATTENTION_SIZES = ("n_embd", "n_q_head", "n_kv_head", "num_tensor_parallel_workers", "batch_size")
LENGTHS = ("prefill_chunk_size", "kv_cache_size", "is_prefill")
PASSES = ("input_layernorm", "post_attention_layernorm", "attn_rope", "mlp_act", "add")
"""Operators without a matrix product that are fitted (`calibration.assemble.ELEMENTWISE_OPS`)."""


def read_vidur(folder: Path, network: Path | None, engine: str) -> Imported:
    """The profiles of one device, as measurements of one engine.

    Args:
        folder: of one device's models, e.g. ``data/profiling/compute/h100``.
        network: of one topology, e.g. ``data/profiling/network/h100_dgx``; None: what `folder` has.
        engine: profile the layers stand for.

    Raises:
        UnknownNameError: the engine.
        InputError: no such folder, no profile in it, several devices, a profile that lacks a column.
    """
    if engine not in ENGINES:
        raise UnknownNameError("--engine", engine, ENGINES)
    places = [folder] if network is None else [folder, network]
    files = sorted({path for place in places for path in _profiles(place)})
    if not files:
        fix = "give data/profiling/compute/<device> of Vidur"
        raise InputError("folder", str(folder), f"has none of {', '.join(FILES)}", fix)
    for kind in ("compute", "network"):
        _require_one_device(files, kind)
    left_out: list[str] = []
    by_name: dict[str, list[ColumnTable]] = {}
    for path in files:
        theirs = read_columns(path)
        for name, table in _converted_tables(path, theirs, ENGINES[engine], left_out):
            if len(table):
                by_name.setdefault(name, []).append(table)
    described = ", ".join(_place(path) for path in files)
    tables = {name: joined_tables(pieces) for name, pieces in by_name.items()}
    return Imported(tables, f"{ADDRESS}: {described}", tuple(left_out))


def _profiles(folder: Path) -> list[Path]:
    if not folder.is_dir():
        fix = "give data/profiling/compute/<device> of Vidur"
        raise InputError("folder", str(folder), "is not a directory", fix)
    return [path for path in folder.resolve().rglob("*.csv") if path.name in FILES]


def _require_one_device(files: list[Path], kind: str) -> None:
    """Raise InputError where the files are of several devices (or topologies), by their place in the repository."""
    parts = [path.parts[:-1] for path in files]
    places = [(some, max(i for i, part in enumerate(some) if part == kind)) for some in parts if kind in some]
    devices = sorted({some[at + 1] for some, at in places if at + 1 < len(some)})
    if len(devices) > 1:
        option = "folder" if kind == "compute" else "--network"
        fix = f"give one of them, e.g. data/profiling/{kind}/{devices[0]}"
        raise InputError(option, ", ".join(devices), f"are {len(devices)} devices", fix)


def _place(path: Path) -> str:
    """The end of a path, as far as it says what a file is: from compute or network on."""
    parts = path.parts
    start = max((i for i, part in enumerate(parts) if part in ("compute", "network")), default=len(parts) - 2)
    return "/".join(parts[start:])


def _converted_tables(
    path: Path, theirs: ColumnTable, backend: str, left_out: list[str]
) -> list[tuple[str, ColumnTable]]:
    if path.name == "mlp.csv":
        require_columns(theirs, path.name, (*MLP_SIZES, "use_gated_mlp"))
        products = [*_gemm_tables(path, theirs, backend)]
        return [("gemm", table) for table in products] + [("mlp", table) for table in _passes(path, theirs, left_out)]
    if path.name == "attention.csv":
        require_columns(theirs, path.name, (*ATTENTION_SIZES, *LENGTHS, "attention_backend"))
        return _attention(path, theirs, backend)
    if path.name == "send_recv.csv":
        left_out.append(f"{_place(path)}: no operator of a calibration")
        return []
    return [("collectives", _all_reduce(path, theirs, backend, left_out))]


def _is_true(theirs: ColumnTable, column: str) -> Mask:
    return np.isin(np.char.lower(theirs.text(column)), ("true", "1", "1.0"))


def _median_s(path: Path, theirs: ColumnTable, op: str) -> FloatArray | None:
    """Times [s] of an operator, NaN where it was not measured; None where the file lacks it."""
    column = f"time_stats.{op}.median"
    return number_column(theirs, path.name, column) * S_PER_MS if column in theirs.columns else None


def _timed_rows(columns: dict[str, np.ndarray]) -> ColumnTable:
    """The rows with a time: an empty cell says that this model or phase has no such operator."""
    table = ColumnTable(columns)
    return table.rows(~np.isnan(table["latency_s"]))


def _engine_columns(rows: int, backend: str, kernel: str) -> dict[str, np.ndarray]:
    names = {"backend": backend, "backend_version": VERSION, "kernel": kernel}
    return {name: text_column(rows, value) for name, value in names.items()}


def _gemm_tables(path: Path, theirs: ColumnTable, backend: str) -> list[ColumnTable]:
    """Shapes (n, k) on one worker: query-key-value, output, gate and up together, down."""
    size = {name: number_column(theirs, path.name, name) for name in MLP_SIZES}
    hidden, tp = size["n_embd"], size["num_tensor_parallel_workers"]
    width = size["n_expanded_embd"] / tp
    heads = (size["n_head"] + 2.0 * size["n_kv_head"]) * hidden / size["n_head"] / tp
    up = np.where(_is_true(theirs, "use_gated_mlp"), 2.0, 1.0) * width
    shapes = {
        "attn_pre_proj": (heads, hidden),
        "attn_post_proj": (hidden, hidden / tp),
        "mlp_up_proj": (up, hidden),
        "mlp_down_proj": (hidden, width),
    }
    tables = []
    for op, (n, k) in shapes.items():
        seconds = _median_s(path, theirs, op)
        if seconds is not None:
            dtype = {"dtype": text_column(len(theirs), "bf16")}
            sizes = {"m": size["num_tokens"], "n": n, "k": k, "latency_s": seconds}
            tables.append(
                _timed_rows({**_engine_columns(len(theirs), backend, "torch linear, fp16"), **dtype, **sizes})
            )
    return tables


def _passes(path: Path, theirs: ColumnTable, left_out: list[str]) -> list[ColumnTable]:
    gated = _is_true(theirs, "use_gated_mlp")
    if not gated.all():
        left_out.append(f"{_place(path)}: element-wise operators of a model without a gate, whose traffic differs")
    rows = theirs.rows(gated)
    size = {name: number_column(rows, path.name, name) for name in MLP_SIZES}
    ours = {"hidden": "n_embd", "ffn": "n_expanded_embd", "num_heads": "n_head", "num_kv_heads": "n_kv_head"}
    tables = []
    for op in PASSES:
        seconds = _median_s(path, rows, op)
        if seconds is not None and len(rows):
            label = {"op": text_column(len(rows), op), "tp": size["num_tensor_parallel_workers"]}
            sizes = {"num_tokens": size["num_tokens"], **{name: size[theirs_] for name, theirs_ in ours.items()}}
            tables.append(_timed_rows({**label, **sizes, "latency_s": seconds}))
    return tables


def _attention(path: Path, theirs: ColumnTable, backend: str) -> list[tuple[str, ColumnTable]]:
    """Prompts (one chunk over what is cached) and decodes; the time to save keys and values belongs to both."""
    names = (*ATTENTION_SIZES, "prefill_chunk_size", "kv_cache_size")
    size = {name: number_column(theirs, path.name, name) for name in names}
    tp, saved_s = size["num_tensor_parallel_workers"], _median_s(path, theirs, "attn_kv_cache_save")
    added_s = np.zeros(len(theirs)) if saved_s is None else np.nan_to_num(saved_s)
    prompt = _is_true(theirs, "is_prefill")
    kernels = theirs.text("attention_backend")
    tables = []
    for name, op, mask in (
        ("context_attention", "attn_prefill", prompt),
        ("generation_attention", "attn_decode", ~prompt),
    ):
        seconds = _median_s(path, theirs, op)
        if seconds is None:
            continue
        new = size["prefill_chunk_size"] if op == "attn_prefill" else np.ones(len(theirs))
        formats = {column: text_column(len(theirs), "bf16") for column in ("attn_dtype", "kv_dtype")}
        columns = {
            **_engine_columns(len(theirs), backend, ""),
            "kernel": np.char.replace(kernels, "AttentionBackend.", ""),
            **formats,
            "batch": size["batch_size"],
            "seq_len": new,
            "prefix_len": size["kv_cache_size"],
            "num_heads": size["n_q_head"] / tp,
            "num_kv_heads": size["n_kv_head"] / tp,
            "head_dim": size["n_embd"] / size["n_q_head"],
            "window": np.zeros(len(theirs)),
            "latency_s": seconds + added_s,
        }
        tables.append((name, _timed_rows({key: column[mask] for key, column in columns.items()})))
    return tables


def _all_reduce(path: Path, theirs: ColumnTable, backend: str, left_out: list[str]) -> ColumnTable:
    """All-reduce inside one node. GPU time without the launch, as in a CUDA graph, which the fit expects."""
    require_columns(theirs, path.name, ("time_stats.all_reduce.median", "num_workers", "devices_per_node", "size"))
    workers, inside = (number_column(theirs, path.name, name) for name in ("num_workers", "devices_per_node"))
    across = workers != inside
    if across.any():
        left_out.append(f"{_place(path)}: {across.sum()} rows between nodes, which is not fitted")
    seconds = _median_s(path, theirs, "all_reduce")
    labels = {"mode": "graph", "op": "all_reduce", "dtype": "fp16"}
    columns = {
        **_engine_columns(len(theirs), backend, "NCCL through torch.distributed"),
        **{name: text_column(len(theirs), value) for name, value in labels.items()},
        "num_gpus": workers,
        "bytes": number_column(theirs, path.name, "size"),
        "latency_s": np.full(len(theirs), np.nan) if seconds is None else seconds,
    }
    return _timed_rows(columns).rows(~across[~np.isnan(columns["latency_s"])])
