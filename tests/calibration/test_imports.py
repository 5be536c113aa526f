"""Other people's tables: published rows read as they mean, known efficiencies recovered, the same fit as our layout
gives, what cannot be true or read refused."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from calibration import assemble, operators
from calibration.__main__ import app
from calibration.aiconfigurator import engine_of, read_aiconfigurator, sku_of
from calibration.imported import (
    Imported,
    ImportedFit,
    checked_tables,
    completed_fit,
    fit_imported,
    merged_repeats,
    read_columns,
)
from calibration.possible import possible_rows
from calibration.tables import ColumnTable, read_table, write_table
from calibration.vidur import read_vidur
from hardware_db import Calibration, Dtype, load_hardware, network_fits, read_calibration
from planner.core import InputError, UnknownNameError
from planner.roofline import (
    WEIGHT_FORMATS,
    AttentionHeads,
    CollectiveForm,
    DecodeForm,
    ElementwiseForm,
    GemmForm,
    collective_s,
    decode_attention_s,
    elementwise_s,
    gemm_s,
)
from planner.scenario.user_hardware import calibration_of_json
from tests.places import SHARED

HARDWARE = load_hardware()
H100 = HARDWARE.skus["h100-sxm"]
TODAY = date(2026, 11, 22)
KERNELS = SHARED / "kernels"
WEIGHTS = tuple((n, k) for n in (2048, 4096, 6144, 8192, 14336, 28672) for k in (3072, 4096, 8192, 12288))
"""Weight shapes too large for the L2 cache, so that no row is faster than memory."""
TRUTH = {
    "start_s": 4e-6,
    "compute_efficiency": 0.72,
    "memory_efficiency": 0.84,
    "order": 3.0,
    "small_tile_loss": 0.15,
    "fill": 2.5,
    "split_s": 2e-6,
}
LINK = CollectiveForm(start_s=6e-6, link_efficiency=0.6, order=0.8)
Row = Mapping[str, Any]


def products(tokens: Sequence[int] = (1, 4, 16, 64, 65, 128, 256, 512, 1024, 2048, 4096, 8192)) -> list[Row]:
    """Matrix products whose times follow the form with `TRUTH`, in our layout."""
    m = np.tile(np.array(tokens, dtype=float), len(WEIGHTS))
    n, k = np.repeat(np.array(WEIGHTS, dtype=float), len(tokens), axis=0).T
    seconds = gemm_s(m, n, k, GemmForm(**TRUTH), operators.gpu_peaks(H100, Dtype.BF16), WEIGHT_FORMATS["bf16"])
    return [
        {"dtype": "bf16", "m": int(a), "n": int(b), "k": int(c), "latency_s": t}
        for a, b, c, t in zip(m, n, k, seconds, strict=True)
    ]


def messages(gpus: int) -> list[Row]:
    """All-reduces whose times follow the form with `LINK`, in our layout."""
    sizes = 2.0 ** np.arange(10, 31)
    seconds = collective_s(sizes, LINK, H100.scale_up.bandwidth_bytes_per_s.value)
    common = {"mode": "graph", "op": "all_reduce", "num_gpus": gpus, "dtype": "bf16"}
    return [{**common, "bytes": int(b), "latency_s": t} for b, t in zip(sizes, seconds, strict=True)]


# --- AIConfigurator ---------------------------------------------------------------------------------------------------

PREFIX = ("framework", "version", "device", "op_name", "kernel_source")
"""What every file there begins with (its collector/collect_nccl.py and tests/unit/sdk)."""
RENAMED = {"batch": "batch_size", "seq_len": "isl", "num_kv_heads": "num_key_value_heads", "window": "window_size"}
RENAMED |= {"kv_dtype": "kv_cache_dtype", "prefix_len": "step", "hidden": "hidden_size", "inter": "inter_size"}
RENAMED |= {"tp": "moe_tp_size", "ep": "moe_ep_size"}
COLUMNS = {
    "gemm": "dtype m n k",
    "context_attention": "batch seq_len num_heads num_kv_heads head_dim window attn_dtype kv_dtype prefix_len",
    "context_mla": "attn_dtype kv_dtype num_heads batch seq_len prefix_len",
    "moe": "dtype num_tokens hidden inter topk num_experts tp ep distribution",
}
NAMES = {table: {name: RENAMED.get(name, name) for name in names.split()} for table, names in COLUMNS.items()}
NAMES["gemm"]["dtype"], NAMES["moe"]["dtype"], NAMES["context_mla"]["attn_dtype"] = (
    "gemm_dtype",
    "moe_dtype",
    "mla_dtype",
)
NAMES["generation_attention"] = NAMES["context_attention"]
WIDE = {"bf16": "bfloat16"}


def theirs(table: str, row: Row, framework: str = "TRTLLM", version: str = "1.3.0rc20") -> dict[str, Any]:
    """One of our rows as theirs: milliseconds, elements, their names."""
    common = {"framework": framework, "version": version, "device": "NVIDIA H100 80GB HBM3", "op_name": table}
    common["kernel_source"] = row.get("kernel", "torch_flow")
    latency = {"latency": repr(float(row["latency_s"]) * 1e3)}
    if table == "collectives":
        elements = int(row["bytes"]) // 2
        sizes = {"allreduce_dtype": "bfloat16", "num_gpus": int(row["num_gpus"]), "message_size": elements}
        return {**common, **sizes, **latency}
    sizes = {column: WIDE.get(row[ours], row[ours]) for ours, column in NAMES[table].items()}
    return {**common, **sizes, **latency}


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    some = list(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(some[0]))
        writer.writeheader()
        writer.writerows(some)
    return path


def aic_folder(path: Path, version: str = "1.3.0rc20") -> Path:
    """A system's folder with one version of one engine: products and all-reduces of known efficiency."""
    place = path / "h100_sxm" / "trtllm" / version
    write_rows(place / "gemm_perf.txt", [theirs("gemm", row, version=version) for row in products()])
    reduced = [theirs("collectives", row, version=version) for row in messages(8)]
    write_rows(place / "custom_allreduce_perf.txt", reduced)
    return path / "h100_sxm"


def one(folder: Path, name: str, rows: Sequence[Mapping[str, Any]], table: str) -> ColumnTable:
    """What one file is read as."""
    write_rows(folder / "h100_sxm" / "trtllm" / "1.0.0" / name, rows)
    return read_aiconfigurator(folder / "h100_sxm").tables[table]


def test_published_rows_mean_what_their_reader_says(tmp_path):
    """Rows of that project's own tests (tests/unit/sdk, load_custom_allreduce_data): elements and milliseconds."""
    lines = [
        "framework,version,device,op_name,kernel_source,allreduce_dtype,num_gpus,message_size,latency",
        "TRTLLM,1.0.0rc6,NVIDIA B200,all_reduce,TRTLLM,bfloat16,2,128,0.0038",
        "TRTLLM,1.0.0rc6,NVIDIA B200,all_reduce,TRTLLM,bfloat16,2,8192,0.0045",
    ]
    path = tmp_path / "custom_allreduce_perf.txt"
    path.write_text("\n".join(lines) + "\n")
    imported = read_aiconfigurator(tmp_path)
    rows = imported.tables["collectives"]
    assert rows["bytes"].tolist() == [256.0, 16384.0]
    assert rows["latency_s"].tolist() == pytest.approx([3.8e-6, 4.5e-6])
    assert set(rows.text("mode")) == {"graph"}
    assert "version 1.0.0rc6; NVIDIA B200" in imported.source


def test_a_decode_row_counts_what_is_cached_before_its_token(tmp_path):
    """isl + step is the length with the new token (load_generation_attention_data), prefix_len the one without."""
    sizes = {"batch": 4, "seq_len": 1, "prefix_len": 1023, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
    row = {**sizes, "window": 0, "attn_dtype": "bf16", "kv_dtype": "fp8", "latency_s": 2e-5}
    written = [theirs("generation_attention", row), {**theirs("generation_attention", row), "isl": 1024, "step": 0}]
    rows = one(tmp_path, "generation_attention_perf.txt", written, "generation_attention")
    assert rows["prefix_len"].tolist() == [1023.0, 1023.0]
    assert rows["seq_len"].tolist() == [1.0, 1.0]
    assert set(rows.text("kv_dtype")) == {"fp8"}


def test_graph_eager_and_library_rows_are_told_apart(tmp_path):
    """kernel_source ends with _eager where the launch is included; nccl-tests' framework is not the library."""
    row = theirs("collectives", messages(8)[0], framework="VLLM")
    rows = [{**row, "kernel_source": f"vLLM_custom_{mode}"} for mode in ("eager", "graph")]
    assert one(tmp_path, "custom_allreduce_perf.txt", rows, "collectives").text("mode").tolist() == ["eager", "graph"]
    sizes = {"nccl_dtype": "int8", "num_gpus": 4, "message_size": 1024, "latency": 0.01}
    head = dict(zip(PREFIX, ("TRTLLM", "2.29.2", "NVIDIA", "all_gather", "NCCL"), strict=True))
    nccl = [{**head, **sizes}, {**head, **sizes, "nccl_dtype": "half"}]
    write_rows(tmp_path / "two" / "nccl_perf.txt", nccl)
    found = read_aiconfigurator(tmp_path / "two").tables["collectives"]
    assert set(found.text("backend")) == {"nccl"}
    assert found["bytes"].tolist() == [1024.0, 2048.0]


def test_experts_without_a_gate_are_recognised(tmp_path):
    """The tables do not say which experts have two matrices and which three; the family's shapes do."""
    row = {"dtype": "bf16", "num_tokens": 64, "hidden": 2688, "inter": 1856, "topk": 6, "num_experts": 128, "tp": 1}
    plain = {**row, "ep": 1, "distribution": "balanced", "latency_s": 1e-4}
    gated = {**plain, "hidden": 4096, "inter": 1536, "topk": 8}
    named = {**gated, "kernel": "moe_torch_flow_nongated"}
    rows = one(tmp_path, "moe_perf.txt", [theirs("moe", one_) for one_ in (plain, gated, named)], "moe")
    assert rows["gated"].tolist() == [0.0, 1.0, 0.0]


def test_what_is_not_known_is_left_out_and_said(tmp_path):
    row = theirs("gemm", products()[0])
    changes = ({}, {"gemm_dtype": "fp8_ootb"}, {"framework": "Ascend"})
    place = tmp_path / "trtllm" / "1.0.0"
    write_rows(place / "gemm_perf.txt", [{**row, **change, "clock_mhz": 1980} for change in changes])
    write_rows(place / "gdn_perf.txt", [row])
    imported = read_aiconfigurator(tmp_path)
    said = "\n".join(imported.left_out)
    assert len(imported.tables["gemm"]) == 1
    assert "1 rows of gemm_dtype fp8_ootb, which is not fitted" in said
    assert "1 rows of framework Ascend, which is not fitted" in said
    assert "columns clock_mhz, which are not used" in said
    assert "gdn_perf: no operator of a calibration" in said


def test_the_newest_version_is_read(tmp_path):
    """A release is newer than its candidates, a post-release newer than it, and numbers are compared as numbers."""
    for version in ("1.3.0rc9", "1.3.0", "1.3.0rc20", "0.9.0", "1.3.0.post1"):
        aic_folder(tmp_path, version)
    imported = read_aiconfigurator(tmp_path / "h100_sxm")
    assert set(imported.tables["gemm"].text("backend_version")) == {"1.3.0.post1"}
    assert sum("a newer one was read" in line for line in imported.left_out) == 8


def test_parquet_is_read_as_text_is(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = aic_folder(tmp_path)
    before = read_aiconfigurator(folder)
    place = folder / "trtllm" / "1.3.0rc20" / "gemm_perf.txt"
    rows = list(csv.DictReader(place.read_text(encoding="utf-8").splitlines()))
    typed = [{**row, **{name: float(row[name]) for name in ("m", "n", "k", "latency")}} for row in rows]
    parquet.write_table(pyarrow.Table.from_pylist(typed), place.with_suffix(".parquet"))
    after = read_aiconfigurator(folder)
    for name, column in before.tables["gemm"].columns.items():
        assert after.tables["gemm"].columns[name].tolist() == column.tolist()
    assert any("gemm_perf of trtllm/1.3.0rc20: a newer one was read" in line for line in after.left_out)


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_known_efficiencies_come_back_from_their_files(tmp_path):
    """Times made with 72 % of the FLOPs, 84 % of the bandwidth, 60 % of the link: the calibration says so."""
    out = tmp_path / "my.json"
    folder = aic_folder(tmp_path)
    said = run("fit-aiconfigurator", folder, "--sku", "h100-sxm", "--engine", "tensorrt-llm", "--out", out, "--no-fill")
    calibration = read_calibration(out)
    values = {name: c.value for name, c in calibration.kernels["gemm/bf16"].parameters.items()}
    assert values["compute_efficiency"] == pytest.approx(TRUTH["compute_efficiency"], rel=0.02)
    assert values["memory_efficiency"] == pytest.approx(TRUTH["memory_efficiency"], rel=0.02)
    link = calibration.kernels["all_reduce/8"].parameters["link_efficiency"].value
    assert link == pytest.approx(LINK.link_efficiency, rel=0.02)
    assert set(calibration.kernels) == {"gemm/bf16", "all_reduce/8"}
    assert (calibration.stack, calibration.engine) == ("tensorrt-llm 1.3.0rc20", "tensorrt-llm")
    assert "ai-dynamo/aiconfigurator" in calibration.source
    assert "NVIDIA H100 80GB HBM3" in calibration.source
    assert str(tmp_path) not in out.read_text()  # no place of this machine in a file that is passed on
    assert "read gemm: 288 rows" in said
    assert calibration_of_json(out.read_bytes()) == calibration  # an upload to the page takes it, too


def our_folder(path: Path, tables: Mapping[str, ColumnTable]) -> Path:
    """The same measurements in the layout of docs/explanation/calibration.md."""
    path.mkdir(parents=True)
    for name, table in tables.items():
        write_table(path / f"{name}.csv", table)
    return path


def excerpt(table: str, keep: Callable[[ColumnTable], Any]) -> ColumnTable:
    """Measured rows on A100."""
    rows = read_table(KERNELS / "a100_sxm", table)
    if rows is None:
        pytest.skip("needs the measured tables beside the repository (shared/kernels)")
    return rows.rows(keep(rows))


def few(table: ColumnTable, **sizes: Sequence[float]) -> Any:
    mask = np.ones(len(table), dtype=bool)
    for name, values in sizes.items():
        mask &= np.isin(table[name], values)
    return mask


EXCERPTS: Mapping[str, Callable[[ColumnTable], Any]] = {
    "gemm": lambda t: (
        few(t, m=[1, 16, 128, 1024, 8192], n=[1024, 2048, 4096, 8192, 16384])
        & (t["k"] >= 1024)
        & (t.text("kernel") == "vllm_default")
    ),
    "context_attention": lambda t: few(t, num_heads=[8], head_dim=[128], window=[0]),
    "context_mla": lambda t: (
        few(t, num_heads=[8, 16, 64, 128]) & (t.text("backend") == "trtllm") & (t.text("kv_dtype") == "bf16")
    ),
    "moe": lambda t: (
        few(t, ep=[1], num_tokens=[1, 16, 128, 1024])
        & (t.text("backend") == "vllm")
        & (t.text("distribution") == "power_law_1.2")
    ),
}


def test_the_same_measurements_give_the_same_fit_in_either_layout(tmp_path):
    """Measured A100 rows, as AIConfigurator publishes them and as our own tables: every coefficient agrees."""
    tables = {name: excerpt(name, keep) for name, keep in EXCERPTS.items()}
    for name, table in tables.items():
        columns = {column: values.tolist() for column, values in table.columns.items()}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        for backend in {row["backend"] for row in rows}:
            mine = [theirs(name, row, backend.upper()) for row in rows if row["backend"] == backend]
            write_rows(tmp_path / "a100_sxm" / backend / "1.3.0rc20" / f"{name}_perf.txt", mine)
    imported = read_aiconfigurator(tmp_path / "a100_sxm")
    sizes = {name: len(table) for name, table in imported.tables.items()}
    assert sizes == {name: len(table) for name, table in tables.items()}
    found = fit_imported(imported, HARDWARE.skus, "a100-sxm-80gb", "vllm", TODAY).calibration
    ours = our_folder(tmp_path / "ours" / "a100_sxm", tables)
    expected = assemble.calibrate(ours, HARDWARE.skus, "a100-sxm-80gb", ("vllm",), TODAY)["vllm"]
    assert {"gemm/bf16", "attention_prefill/bf16", "latent_prefill/bf16", "experts/bf16"} <= set(expected.kernels)
    assert found.kernels.keys() == expected.kernels.keys()
    for key, fit in expected.kernels.items():
        assert found.kernels[key].median_error == pytest.approx(fit.median_error, rel=1e-3), key
        for name, coefficient in fit.parameters.items():
            assert found.kernels[key].parameters[name].value == pytest.approx(coefficient.value, rel=1e-3), (key, name)


def test_expert_exchange_has_one_row_each_for_dispatch_and_combine(tmp_path):
    """Rows of that project's tests (tests/unit/sdk/database): microseconds; between nodes it is another operator."""
    shape = {"hidden_size": 7168, "num_token": 64, "num_topk": 8, "num_experts": 256}
    head = dict(zip(PREFIX, ("sglang", "0.5.12", "NVIDIA", "ll", "deepep"), strict=True))
    parts = {"dispatch_transmit_us": 120.5, "dispatch_notify_us": 10.25, "combine_transmit_us": 200.5}
    normal = {**head, "node_num": 1, **shape, "dispatch_sms": 20, **parts, "combine_notify_us": 20.25}
    low = {**head, "node_num": 1, **shape, "dispatch_avg_t_us": 15.5, "combine_avg_t_us": 12.25}
    write_rows(tmp_path / "wideep_deepep_normal_perf.txt", [normal, {**normal, "node_num": 2}])
    write_rows(tmp_path / "wideep_deepep_ll_perf.txt", [low])
    imported = read_aiconfigurator(tmp_path)
    rows = imported.tables["ep_all_to_all"]
    kinds = zip(rows.text("kernel").tolist(), rows.text("op").tolist(), strict=True)
    times = dict(zip(kinds, rows["latency_s"].tolist(), strict=True))
    assert times["deepep_low_latency", "dispatch"] == pytest.approx(15.5e-6)
    assert times["deepep_low_latency", "combine"] == pytest.approx(12.25e-6)
    assert times["deepep_normal", "dispatch"] == pytest.approx(130.75e-6)
    assert times["deepep_normal", "combine"] == pytest.approx(220.75e-6)
    assert any("1 rows between nodes" in line for line in imported.left_out)


def test_the_path_says_which_sku_it_is(tmp_path):
    assert sku_of(tmp_path / "h100_sxm" / "trtllm", "") == "h100-sxm"
    assert sku_of(tmp_path, "h200-sxm") == "h200-sxm"
    with pytest.raises(InputError, match=r"--sku = 'h200-sxm': the folder is of h100-sxm. Fix: give --sku h100-sxm"):
        sku_of(tmp_path / "h100_sxm", "h200-sxm")
    with pytest.raises(InputError, match=r"does not say which SKU it is of. Fix: give --sku"):
        sku_of(tmp_path, "")


def test_several_engines_ask_for_one(tmp_path):
    folder = aic_folder(tmp_path)
    assert engine_of(read_aiconfigurator(folder), "") == "tensorrt-llm"
    write_rows(folder / "vllm" / "0.24.0" / "gemm_perf.txt", [theirs("gemm", row, "VLLM") for row in products()])
    with pytest.raises(InputError, match=r"the folder has vllm, tensorrt-llm. Fix: give --engine"):
        engine_of(read_aiconfigurator(folder), "")
    imported = read_aiconfigurator(folder)
    with pytest.raises(InputError, match=r"'sglang': has no 16-bit matrix products.*use --engine vllm or tensorrt-llm"):
        fit_imported(imported, HARDWARE.skus, "h100-sxm", "sglang", TODAY)
    with pytest.raises(UnknownNameError, match="--sku = 'h1000'"):
        fit_imported(imported, HARDWARE.skus, "h1000", "vllm", TODAY)
    with pytest.raises(UnknownNameError, match="--engine = 'vlm'"):
        fit_imported(imported, HARDWARE.skus, "h100-sxm", "vlm", TODAY)


# --- what cannot be true ----------------------------------------------------------------------------------------------


MEASURED = [("a100_sxm", name) for name in ("context_attention", "generation_attention", "moe")]
MEASURED += [("rtx_pro_6000_server", name) for name in ("generation_mla", "collectives")]


@pytest.mark.parametrize(("folder", "name"), MEASURED)
def test_measured_rows_pass_the_gate(folder, name):
    """Sampled rows of two SKUs: a bound that real kernels break would be wrong, whatever its derivation."""
    rows = read_table(KERNELS / folder, name)
    if rows is None:
        pytest.skip("needs the measured tables beside the repository (shared/kernels)")
    some = rows.rows(np.arange(0, len(rows), 7))
    assert possible_rows(name, some, HARDWARE.skus[assemble.SKUS[folder]]).mean() > 0.9999


def table_of(rows: Sequence[Row]) -> ColumnTable:
    return ColumnTable({name: np.array([row[name] for row in rows]) for name in rows[0]})


def test_impossible_rows_are_left_out_and_counted():
    rows = [{**row, "m": float(row["m"])} for row in products()]
    fast = [{**rows[-1], "latency_s": 1e-7}, {**rows[-2], "latency_s": -1.0}, {**rows[-3], "latency_s": np.nan}]
    sound = checked_tables(Imported({"gemm": table_of([*rows, *fast])}, "a source"), H100)
    assert len(sound.tables["gemm"]) == len(rows)
    assert sound.left_out == (
        "gemm: 2 rows without a duration or with sizes that are none",
        "gemm: 1 rows faster than the peaks of h100-sxm allow",
    )


def test_another_unit_or_another_gpu_is_refused(tmp_path):
    """Seconds where milliseconds belong make everything a thousand times faster than the GPU."""
    seconds = [{**theirs("gemm", row), "latency": row["latency_s"]} for row in products()]
    write_rows(tmp_path / "trtllm" / "1.0" / "gemm_perf.txt", seconds)
    with pytest.raises(InputError, match=r"table = 'gemm'.*288 of 288 rows are faster than the peaks of h100-sxm"):
        checked_tables(read_aiconfigurator(tmp_path), H100)
    right = aic_folder(tmp_path / "right")
    with pytest.raises(InputError, match=r"faster than the peaks of t4 allow. Fix: check --sku"):
        checked_tables(read_aiconfigurator(right), HARDWARE.skus["t4"])


def test_repeated_points_count_once_with_their_median():
    rows = [{"m": m, "latency_s": t} for m, t in ((1.0, 5.0), (2.0, 7.0), (1.0, 1.0), (1.0, 2.0), (2.0, 9.0))]
    once = merged_repeats(table_of(rows))
    assert once["m"].tolist() == [1.0, 2.0]
    assert once["latency_s"].tolist() == [2.0, 8.0]


# --- what the tables lack ---------------------------------------------------------------------------------------------


def small_fit() -> ImportedFit:
    kernels = {"all_reduce/8": HARDWARE.calibrations[0].kernels["all_reduce/8"]}
    named = {"sku": "h100-sxm", "stack": "vllm 9.9", "engine": "vllm", "fitted_on": TODAY, "source": "own tables"}
    return ImportedFit(Calibration(**named, kernels=kernels), {}, ())


def test_operators_that_the_tables_lack_are_the_packaged_ones_and_say_so():
    fitted = small_fit()
    full = completed_fit(fitted, HARDWARE.calibrations)
    packaged = next(c for c in HARDWARE.calibrations if (c.sku, c.engine) == ("h100-sxm", "vllm"))
    assert {*full.calibration.kernels, *network_fits()} == {*packaged.kernels}
    assert full.calibration.kernels["all_reduce/8"] == fitted.calibration.kernels["all_reduce/8"]
    gemm = full.calibration.kernels["gemm/bf16"]
    assert gemm.parameters == packaged.kernels["gemm/bf16"].parameters
    assert gemm.note.startswith(f"not in the imported tables: packaged fit of {packaged.stack}")
    assert packaged.stack in full.calibration.source
    assert "all_reduce/8" not in full.filled


# --- Vidur ------------------------------------------------------------------------------------------------------------

LLAMA = {"n_head": 64, "n_kv_head": 8, "n_embd": 8192, "n_expanded_embd": 28672, "vocab_size": 32768}
"""Sizes of meta-llama/Llama-2-70b-hf as data/profiling/compute/h100/meta-llama/Llama-2-70b-hf/mlp.csv has them."""
MISTRAL = {"n_head": 32, "n_kv_head": 8, "n_embd": 4096, "n_expanded_embd": 14336, "vocab_size": 32768}
PASSES = ElementwiseForm(start_s=2.5e-6, memory_efficiency=0.7)


def stats(op: str, seconds: float) -> dict[str, float]:
    """Columns of one operator: min, max, mean, median, std [ms]."""
    return {f"time_stats.{op}.{name}": 1e3 * seconds * part for name, part in STATS}


STATS = (("min", 0.97), ("max", 1.1), ("mean", 1.01), ("median", 1.0), ("std", 0.01))


def mlp_row(model: Row, tokens: int, tp: int) -> dict[str, Any]:
    """One row of mlp.csv with times of known efficiency, traffic and shapes worked out by hand."""
    hidden, heads, kv, ffn = (float(model[name]) for name in ("n_embd", "n_head", "n_kv_head", "n_expanded_embd"))
    dim, there = hidden / heads, operators.gpu_peaks(H100, Dtype.BF16)
    shapes = {
        "attn_pre_proj": ((heads + 2 * kv) * dim / tp, hidden),
        "attn_post_proj": (hidden, hidden / tp),
        "mlp_up_proj": (2 * ffn / tp, hidden),
        "mlp_down_proj": (hidden, ffn / tp),
    }
    traffic = {
        "input_layernorm": 2 * hidden,
        "post_attention_layernorm": 2 * hidden,
        "attn_rope": 2 * (heads + kv) * dim / tp,
        "mlp_act": 3 * ffn / tp,
        "add": 3 * hidden,
    }
    row: dict[str, Any] = {}
    for op, (n, k) in shapes.items():
        row |= stats(op, float(gemm_s(tokens, n, k, GemmForm(**TRUTH), there, WEIGHT_FORMATS["bf16"])))
    for op, values in traffic.items():
        row |= stats(op, float(elementwise_s(2.0 * tokens * values, PASSES, there)))
    return {**row, **model, "use_gated_mlp": True, "num_tokens": tokens, "num_tensor_parallel_workers": tp}


ATTENTION = DecodeForm.from_values(
    {
        "start_s": 5e-6,
        "compute_efficiency": 0.6,
        "order": 3.0,
        "block_s": 2e-6,
        "fill": 3.0,
        "ungrouped_efficiency": 0.9,
        "group_growth": 0.1,
        "window_growth": 0.3,
        "splits_kv": 1.0,
        "splits_plain": 1.0,
        "memory_efficiency_128": 0.8,
    },
    None,
)


def attention_row(model: Row, batch: int, cached: int, tp: int) -> dict[str, Any]:
    heads, kv = float(model["n_head"]) / tp, float(model["n_kv_head"]) / tp
    there = operators.gpu_peaks(H100, Dtype.BF16)
    seconds = float(decode_attention_s(batch, cached + 1.0, AttentionHeads(heads, kv, 128.0, 2.0), ATTENTION, there))
    times = {**stats("attn_decode", 0.9 * seconds), **stats("attn_kv_cache_save", 0.1 * seconds)}
    sizes = {"n_embd": model["n_embd"], "n_q_head": model["n_head"], "n_kv_head": model["n_kv_head"], "block_size": 16}
    case = {"num_tensor_parallel_workers": tp, "max_model_len": 4096, "batch_size": batch, "prefill_chunk_size": 0}
    backend = "AttentionBackend.FLASH_ATTENTION"
    return {**times, **sizes, **case, "kv_cache_size": cached, "is_prefill": False, "attention_backend": backend}


def vidur_folder(path: Path) -> Path:
    """data/profiling of two models on one device and one topology."""
    compute, network = path / "data" / "profiling" / "compute" / "h100", path / "data" / "profiling" / "network"
    tokens = (1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    for name, model in (("meta-llama/Llama-2-70b-hf", LLAMA), ("mistralai/Mistral-7B", MISTRAL)):
        rows = [mlp_row(model, count, tp) for tp in (1, 2, 4, 8) for count in tokens]
        write_rows(compute / name / "mlp.csv", rows)
        cases = [(b, c, tp) for tp in (1, 2, 4, 8) for b in (1, 4, 16, 64, 128) for c in (256, 512, 1024, 2048, 3072)]
        decodes = [attention_row(model, *case) for case in cases]
        write_rows(compute / name / "attention.csv", decodes)
    reduced = [reduced_row(row, 8) for row in messages(8)] + [reduced_row(row, 4) for row in messages(8)]
    write_rows(network / "h100_dgx" / "all_reduce.csv", reduced)
    write_rows(network / "h100_dgx" / "send_recv.csv", reduced[:1])
    return path / "data" / "profiling"


def reduced_row(row: Row, per_node: int) -> dict[str, Any]:
    sizes = {"rank": 0, "num_workers": 8, "size": row["bytes"], "collective": "all_reduce"}
    return {**stats("all_reduce", row["latency_s"]), **sizes, "devices_per_node": per_node, "max_devices_per_node": 8}


def test_published_vidur_rows_mean_what_their_profiler_says(tmp_path):
    """First rows of the published h100_dgx/all_reduce.csv and of Llama-2-70b's mlp.csv (commits e26eb8f, 683364e)."""
    network = tmp_path / "network" / "h100_dgx"
    network.mkdir(parents=True)
    (network / "all_reduce.csv").write_text(
        ",time_stats.all_reduce.min,time_stats.all_reduce.max,time_stats.all_reduce.mean,time_stats.all_reduce.median,"
        "time_stats.all_reduce.std,rank,num_workers,size,collective,devices_per_node,max_devices_per_node\n"
        "0,0.015,0.038,0.03,0.037,0.010614455552060439,0,8,2048,all_reduce,8,8\n"
    )
    sizes = {**LLAMA, "use_gated_mlp": True, "num_tokens": 4096, "num_tensor_parallel_workers": 1}
    medians = {"attn_pre_proj": 0.9825, "attn_post_proj": 0.7885, "mlp_up_proj": 5.6685, "mlp_down_proj": 2.647}
    row = {**{f"time_stats.{op}.median": value for op, value in medians.items()}, "time_stats.add.median": 0.062}
    write_rows(tmp_path / "compute" / "h100" / "meta-llama" / "Llama-2-70b-hf" / "mlp.csv", [{**row, **sizes}])
    tables = read_vidur(tmp_path, None, "vllm").tables
    gemm = {(n, k): t for n, k, t in zip(*(tables["gemm"][c].tolist() for c in ("n", "k", "latency_s")), strict=True)}
    assert gemm == {  # shapes as shared/kernels/vidur_h100 has them
        (10240.0, 8192.0): pytest.approx(0.9825e-3),
        (8192.0, 8192.0): pytest.approx(0.7885e-3),
        (57344.0, 8192.0): pytest.approx(5.6685e-3),
        (8192.0, 28672.0): pytest.approx(2.647e-3),
    }
    assert tables["mlp"].text("op").tolist() == ["add"]
    assert (tables["collectives"]["bytes"].item(), tables["collectives"]["num_gpus"].item()) == (2048.0, 8.0)
    assert tables["collectives"]["latency_s"].item() == pytest.approx(37e-6)
    sound = checked_tables(Imported(tables, "published rows"), H100)
    assert {name: len(table) for name, table in sound.tables.items()} == {"gemm": 4, "mlp": 1, "collectives": 1}


def test_known_efficiencies_come_back_from_vidur_profiles(tmp_path):
    profiles, out = vidur_folder(tmp_path), tmp_path / "vidur.json"
    compute, network = profiles / "compute" / "h100", profiles / "network" / "h100_dgx"
    said = run("fit-vidur", compute, "--network", network, "--sku", "h100-sxm", "--out", out, "--no-fill")
    kernels = read_calibration(out).kernels
    gemm = kernels["gemm/bf16"].parameters
    assert gemm["compute_efficiency"].value == pytest.approx(TRUTH["compute_efficiency"], rel=0.03)
    assert gemm["memory_efficiency"].value == pytest.approx(TRUTH["memory_efficiency"], rel=0.03)
    decode = kernels["attention_decode/bf16"]
    assert decode.parameters["memory_efficiency_128"].value == pytest.approx(0.8, rel=0.05)
    assert kernels["all_reduce/8"].parameters["link_efficiency"].value == pytest.approx(LINK.link_efficiency, rel=0.02)
    passes = kernels["elementwise/bf16"].parameters
    assert passes["memory_efficiency"].value == pytest.approx(PASSES.memory_efficiency, rel=0.02)
    assert passes["start_s"].value == pytest.approx(PASSES.start_s, rel=0.05)
    assert "21 rows between nodes" in said
    assert "send_recv.csv: no operator of a calibration" in said
    text = out.read_text()
    assert "microsoft/vidur" in text
    assert str(tmp_path) not in text


def test_vidur_profiles_converted_before_give_the_same_shapes_and_fits(tmp_path):
    """Llama-2-70b on H100, converted once before by other code: shapes per worker and element-wise fits agree."""
    every = read_table(KERNELS / "vidur_h100", "mlp")
    if every is None:
        pytest.skip("needs the measured tables beside the repository (shared/kernels)")
    rows = every.rows((every["n"] == 0) | (every["num_tokens"] % 128 <= 8))
    wide: dict[tuple[float, float], dict[str, Any]] = {}
    columns = (rows.columns[name].tolist() for name in ("tp", "num_tokens", "op", "latency_s"))
    for tp, tokens, op, seconds in zip(*columns, strict=True):
        row = wide.setdefault((tp, tokens), {**LLAMA, "use_gated_mlp": True, "num_tokens": int(tokens)})
        row |= {"num_tensor_parallel_workers": int(tp), f"time_stats.{op}.median": seconds * 1e3}
    write_rows(tmp_path / "compute" / "h100" / "meta-llama" / "Llama-2-70b-hf" / "mlp.csv", wide.values())
    imported = read_vidur(tmp_path, None, "vllm")
    gemm, products_ = imported.tables["gemm"], rows.rows(rows["n"] > 0)
    known = set(zip(*(products_[name].tolist() for name in ("n", "k", "num_tokens", "latency_s")), strict=True))
    found = zip(*(gemm[name].tolist() for name in ("n", "k", "m", "latency_s")), strict=True)
    assert {(n, k, m, round(t, 10)) for n, k, m, t in found} == {(n, k, m, round(t, 10)) for n, k, m, t in known}
    fits = fit_imported(imported, HARDWARE.skus, "h100-sxm", "vllm", TODAY).calibration.kernels
    packaged = next(c for c in HARDWARE.calibrations if (c.sku, c.engine) == ("h100-sxm", "vllm")).kernels
    passes = [key for key, fit in packaged.items() if key.startswith("elementwise/") and "vidur" in fit.note]
    assert {"elementwise/bf16", "elementwise/norm", "elementwise/rope"} <= set(passes)
    for key in passes:
        assert fits[key].median_error == pytest.approx(packaged[key].median_error, rel=0.02), key
        for name, coefficient in packaged[key].parameters.items():
            assert fits[key].parameters[name].value == pytest.approx(coefficient.value, rel=0.01), (key, name)


def test_one_device_at_a_time(tmp_path):
    for device in ("a100", "h100"):
        write_rows(tmp_path / "compute" / device / "org" / "model" / "mlp.csv", [mlp_row(LLAMA, 1, 1)])
        write_rows(tmp_path / "network" / f"{device}_dgx" / "all_reduce.csv", [reduced_row(messages(8)[0], 8)])
    with pytest.raises(InputError, match=r"'a100, h100': are 2 devices. Fix: give one of them, e.g. data/profiling/c"):
        read_vidur(tmp_path / "compute", None, "vllm")
    with pytest.raises(InputError, match=r"--network = 'a100_dgx, h100_dgx': are 2 devices"):
        read_vidur(tmp_path / "compute" / "a100", tmp_path / "network", "vllm")
    with pytest.raises(UnknownNameError, match="--engine = 'vidur'"):
        read_vidur(tmp_path / "compute" / "a100", None, "vidur")


def test_a_model_without_a_gate_gives_products_but_no_passes(tmp_path):
    """Its activation reads one operand, not two: phi-2 in the published profiles."""
    plain = {**mlp_row(LLAMA, 16, 1), "use_gated_mlp": False}
    write_rows(tmp_path / "phi" / "mlp.csv", [plain])
    imported = read_vidur(tmp_path, None, "vllm")
    assert set(imported.tables) == {"gemm"}
    assert 28672.0 in imported.tables["gemm"]["n"].tolist()
    assert any("without a gate" in line for line in imported.left_out)


# --- hostile files ----------------------------------------------------------------------------------------------------

GEMM_HEADER = "framework,version,device,op_name,kernel_source,gemm_dtype,m,n,k,latency\n"
HOSTILE = {
    b"": "has no rows",
    b"version https://git-lfs.github.com/spec/v1\noid sha256:1db7\nsize 79676\n": "is a Git LFS pointer.*git lfs pull",
    b"\xff\xfe\x00binary": "cannot be read as a table",
    b"PAR1 and then nothing": "cannot be read as Parquet",
    b"framework,version,kernel_source\nVLLM,1,x\n": "lacks the columns m, n, k, gemm_dtype, latency",
    GEMM_HEADER.encode() + b"VLLM,1,d,gemm,x,bfloat16,1,2,3\n": "must have 10 cells",
    GEMM_HEADER.encode() + b"VLLM,1,d,gemm,x,bfloat16,many,2,3,0.1\n": "column m = 'many': must be a number",
}


@pytest.mark.parametrize(("content", "message"), list(HOSTILE.items()), ids=range(len(HOSTILE)))
def test_hostile_tables_are_refused(tmp_path, content, message):
    (tmp_path / "gemm_perf.txt").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_aiconfigurator(tmp_path)


@pytest.mark.parametrize("cell", ["inf", "nan", "-1", "", "1e300"])
@pytest.mark.parametrize("column", ["m", "latency"])
def test_hostile_numbers_are_no_measurements(tmp_path, cell, column):
    good = theirs("gemm", products()[0])
    write_rows(tmp_path / "gemm_perf.txt", [good, {**good, column: cell}])
    sound = checked_tables(read_aiconfigurator(tmp_path), H100)
    assert len(sound.tables["gemm"]) == 1


def test_heads_that_do_not_divide_are_no_shape(tmp_path):
    """Eight KV heads over sixteen workers: which of them have a copy the profile does not say."""
    row = attention_row(LLAMA, 4, 1024, 4)
    rows = [row, {**row, "num_tensor_parallel_workers": 16}]
    write_rows(tmp_path / "attention.csv", rows)
    sound = checked_tables(read_vidur(tmp_path, None, "vllm"), H100)
    assert sound.tables["generation_attention"]["num_kv_heads"].tolist() == [2.0]


def test_hostile_profiles_are_refused(tmp_path):
    with pytest.raises(InputError, match="is not a directory"):
        read_vidur(tmp_path / "nowhere", None, "vllm")
    with pytest.raises(InputError, match=r"has none of mlp.csv"):
        read_vidur(tmp_path, None, "vllm")
    (tmp_path / "mlp.csv").write_text("n_head,n_embd\n1,2\n")
    with pytest.raises(InputError, match="lacks the columns n_kv_head"):
        read_vidur(tmp_path, None, "vllm")
    with pytest.raises(InputError, match="is not a directory"):
        read_aiconfigurator(tmp_path / "nowhere")
    with pytest.raises(InputError, match="has no tables of AIConfigurator"):
        read_aiconfigurator(tmp_path)


def test_a_parquet_file_without_pyarrow_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    path = tmp_path / "gemm_perf.parquet"
    path.write_bytes(b"PAR1....PAR1")
    with pytest.raises(InputError, match=r"is Parquet, which takes pyarrow to read. Fix: pip install pyarrow"):
        read_columns(path)


def test_written_tables_read_back(tmp_path):
    table = ColumnTable({"kernel": np.array(["a,b", 'say "x"']), "latency_s": np.array([1.234567891e-6, 5e-3])})
    write_table(tmp_path / "gemm.csv", table)
    again = read_table(tmp_path, "gemm")
    assert again is not None
    assert again.text("kernel").tolist() == ["a,b", 'say "x"']
    assert again["latency_s"].tolist() == [1.234567891e-6, 5e-3]
