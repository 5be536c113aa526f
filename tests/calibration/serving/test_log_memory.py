"""Memory of a start-up log taken into account. Truth: what the log says, which the prediction then has to meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration import (
    StartupLog,
    benchmark_files,
    log_headline,
    measured_more_bytes,
    memory_of_log,
    other_settings,
    planned_start,
    read_costs,
    read_startup_log,
    with_measured_memory,
)
from hardware_db import EngineCosts, HardwareDb, load_hardware, with_engine_costs
from planner.core import InputError, rebuilt
from planner.engine import memory, memory_footprint
from planner.llm import load_llm

GIB = 2**30
DB = load_hardware()


def log_of(engine: str, kv_gib: float) -> StartupLog:
    """A log that states the size of the cache, in the form each engine's source prints it."""
    line = {
        "vllm": f"INFO 08-01 10:00:40 [gpu_worker.py:2] Available KV cache memory: {kv_gib} GiB",
        "sglang": f"[2026-08-26 14:45:31] KV Cache is allocated. #tokens: 330323, KV size: {kv_gib} GB",
        "tensorrt-llm": f"[TensorRT-LLM][INFO] [MemUsageChange] Allocated {kv_gib} GiB for max tokens in paged KV "
        "cache (8224).",
    }[engine]
    found = read_startup_log(line)
    assert (found.engine, found.kv_bytes) == (engine, round(kv_gib * GIB))
    return found


def learned(log: StartupLog, llm: str, sku: str, **settings: object) -> HardwareDb:
    """The database after that log."""
    costs = with_measured_memory(
        DB.engines[log.engine].costs_on(DB.skus[sku]), memory_of_log(log, llm, sku, **settings), log
    )
    return with_engine_costs(DB, log.engine, costs)


@pytest.mark.parametrize("apart_gib", [-0.5, 0.0, 3.0])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_the_server_of_the_log_is_then_predicted_as_the_log_says(engine: str, apart_gib: float) -> None:
    """Whatever the cache is a share of."""
    before = memory("llama-3.1-8b", "h100-sxm", engine=engine)
    log = log_of(engine, round(before.kv_bytes / GIB - apart_gib, 2))
    after = memory_of_log(log, "llama-3.1-8b", "h100-sxm", hardware=learned(log, "llama-3.1-8b", "h100-sxm"))
    assert after.kv_bytes == pytest.approx(log.kv_bytes, rel=1e-6)


def test_a_server_that_is_predicted_not_to_start_is_learned_of_too() -> None:
    settings = {"memory_fraction": 0.79, "max_request_tokens": 2048}
    assert memory("qwen3-32b", "h100-sxm", **settings).kv_bytes == 0.0  # type: ignore[arg-type]
    log = log_of("vllm", 0.4)
    db = learned(log, "qwen3-32b", "h100-sxm", **settings)
    assert memory("qwen3-32b", "h100-sxm", hardware=db, **settings).kv_bytes == pytest.approx(log.kv_bytes, rel=1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("apart_gib", [-0.5, 2.0])
def test_another_model_lacks_the_same_bytes_with_and_without_a_calibration(apart_gib: float) -> None:
    before = memory("llama-3.1-8b", "h100-sxm")
    db = learned(log_of("vllm", round(before.kv_bytes / GIB - apart_gib, 2)), "llama-3.1-8b", "h100-sxm")
    more = db.engines["vllm"].costs.memory_more_bytes
    assert more == pytest.approx(apart_gib * GIB, abs=0.01 * GIB)
    for llm, tp in (("qwen3-32b", 1), ("llama-3.3-70b-instruct", 4)):
        plain, taught = memory(llm, "h100-sxm", tp=tp), memory(llm, "h100-sxm", tp=tp, hardware=db)
        assert plain.replica.calibration is None
        assert plain.kv_bytes - taught.kv_bytes == pytest.approx(more, rel=1e-6)
    calibrated = rebuilt(before.replica, calibration=next(one for one in DB.calibrations if one.sku == "h100-sxm"))
    told = rebuilt(calibrated, engine=db.engines["vllm"])
    rooms = [memory_footprint(replica).kv_capacity_bytes for replica in (calibrated, told)]
    assert rooms[0] - rooms[1] == pytest.approx(more, rel=1e-6)


@pytest.mark.parametrize("more_bytes", [-1e11, 1e300])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_no_part_is_ever_below_nothing(more_bytes: float, engine: str) -> None:
    db = with_engine_costs(DB, engine, EngineCosts(memory_more_bytes=more_bytes))
    found = memory("llama-3.1-8b", "h100-sxm", engine=engine, hardware=db).footprint
    parts = (found.activation_bytes, found.sampling_bytes, found.outside_bytes, found.context_bytes)
    assert min(*parts, found.kv_capacity_bytes) >= 0.0


def test_costs_keep_the_memory_in_a_file(tmp_path: Path) -> None:
    log = log_of("vllm", 50.0)
    costs = learned(log, "llama-3.1-8b", "h100-sxm").engines["vllm"].costs
    own = DB.engines["vllm"].costs_on(DB.skus["h100-sxm"])
    changed = {"memory_more_bytes": costs.memory_more_bytes, "source": costs.source}
    assert costs == own.model_copy(update=changed)
    assert costs.source == f"{own.source}; memory as in a start-up log of llama-3.1-8b @ h100-sxm"
    (tmp_path / "costs.json").write_text(costs.model_dump_json(), encoding="utf-8")
    assert read_costs(tmp_path / "costs.json") == costs


def test_a_log_without_the_cache_is_refused_with_what_to_do() -> None:
    log = read_startup_log("INFO [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='org/m'\n")
    found = memory_of_log(log, "llama-3.1-8b", "h100-sxm")
    with pytest.raises(InputError, match="Fix: give the log of a whole start, with the line of the KV cache"):
        measured_more_bytes(found, log)
    assert "does not say" in log_headline(found, log)


def test_a_planned_replica_starts_on_the_gpu_of_the_log_and_what_differs_is_named() -> None:
    replica = memory("llama-3.1-8b", "h100-sxm", max_running_requests=256, max_batched_tokens=8192).replica
    same = StartupLog(**{**vars(log_of("vllm", 50.0)), "tp": 1, "max_num_seqs": 256, "max_num_batched_tokens": 8192})
    assert other_settings(replica, same) == ()
    seen = round(79.0 * GIB)
    alike = StartupLog(**{**vars(same), "gpu_total_bytes": seen})
    assert planned_start(replica, alike).seen_bytes == seen
    other = StartupLog(**{**vars(same), "tp": 2, "max_num_seqs": 128, "gpu_total_bytes": round(140 * GIB)})
    assert [line.partition(":")[0] for line in other_settings(replica, other)] == [
        "memory of a GPU",
        "TP",
        "running requests of a rank",
    ]
    plain = StartupLog(**{**vars(same), "quantization": "none", "kv_cache_dtype": "auto"})
    assert other_settings(replica, plain) == ()
    small = memory("llama-3.1-8b", "h100-sxm", precision="fp8", max_running_requests=256, max_batched_tokens=8192)
    assert other_settings(small.replica, plain) == ("weights: fewer bits here, 16 bit in the log",)


def test_limits_of_a_log_are_those_of_one_rank() -> None:
    """vLLM, SGLang and TensorRT-LLM print what each of their schedulers is told; a replica has that of all."""
    log = StartupLog(**{**vars(log_of("vllm", 50.0)), "max_num_seqs": 128, "max_num_batched_tokens": 2048})
    found = memory_of_log(log, "deepseek-v3", "h200-sxm", dp=8, ep=8).replica
    assert (found.max_running_requests, found.max_batched_tokens) == (8 * 128, 8 * 2048)
    assert other_settings(found, log) == ()


def test_a_server_of_results_is_told_its_formats() -> None:
    """Those its runs are played in: the checkpoint's own, and the cache as given."""
    server = benchmark_files.server_of(model="llama-3.1-8b", sku="h100-sxm", engine=DB.engines["vllm"], kv_cache="fp8")
    found = benchmark_files.memory_settings(server, DB.skus["h100-sxm"])
    native = load_llm("llama-3.1-8b").native_precision
    assert found["precision"] == native.model_copy(update={"kv_cache": found["precision"].kv_cache})
    assert (found["precision"].kv_cache.value, found["tp"], found["engine"]) == ("fp8", 1, "vllm")
